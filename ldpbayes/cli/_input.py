"""What the command line is given: release files and models, and what is said where they cannot be used."""

import contextlib
import importlib.util
import os
import pathlib
import traceback

__all__ = ["BadInput", "as_sketch", "blaming", "load_model", "load_release"]


class BadInput(Exception):
    """What the user gave cannot be used; the message says why."""


def load_release(path):
    """The release in a file."""
    from ldpbayes import Release

    try:
        return Release.load(path)
    except FileNotFoundError as error:
        raise BadInput(error) from None
    except (ValueError, TypeError, OSError) as error:
        raise BadInput(f"{path} is not a valid release file: {error}") from None


def as_sketch(path, release, say):
    """The release as a sketch, or as it is where there is none, saying why."""
    import jax

    discrete = release.mechanism.support.is_discrete
    if not discrete and any(getattr(leaf, "ndim", 0) for leaf in jax.tree.leaves(release.mechanism)):
        say("  personal budgets: the model gets the records themselves")
        return release
    if not discrete and release.mechanism.released_range is None:
        say("  the mechanism has no sketch: the model gets the records themselves")
        return release
    try:
        return release.sketch()
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from None


def load_model(name):
    """The model of that name, or the one that a Python file defines."""
    from ldpbayes import models

    if name in models.__all__:
        return getattr(models, name)()
    path = pathlib.Path(name)
    if path.suffix != ".py":
        raise BadInput(f"--model must be one of {', '.join(models.__all__)}, or a Python file (.py); got {name!r}")
    if not path.is_file():
        raise BadInput(f"--model: no file {path}")
    spec = importlib.util.spec_from_file_location("ldpbayes_user_model", path)
    module = importlib.util.module_from_spec(spec)
    with blaming(name):
        spec.loader.exec_module(module)
    model = getattr(module, "model", None)
    if not callable(model):
        raise BadInput(f"--model: {path} defines no function model(release)")
    return model


@contextlib.contextmanager
def blaming(model):
    """Turn what a model raises into a message; for a user's file, with the line that raised it."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if not model.endswith(".py"):
            if isinstance(error, (ValueError, TypeError)):
                raise BadInput(f"model {model}: {error}") from None
            raise
        path = str(pathlib.Path(model).absolute())
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if os.path.abspath(f.filename) == path]
        if isinstance(error, SyntaxError):
            lines = [error.lineno]
        where = f"{model}:{lines[-1]}" if lines else model
        raise BadInput(f"{where}: {type(error).__name__}: {error}") from None
