"""What the command line is given, release files and models, and the messages where they cannot be used."""

import contextlib
import importlib.util
import os
import pathlib
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ldpbayes import Release, Sketch

__all__ = ["BadInput", "as_sketch", "blaming", "load_model", "load_release"]


class BadInput(Exception):
    """The user gave something that cannot be used; the message says what and why, and the exit code is 2."""


def load_release(path: pathlib.Path) -> "Release":
    """The release in a file.

    Parameters
    ----------
    path : pathlib.Path
        Of an ``.npz`` or ``.parquet`` file as `Release.save` writes it.

    Returns
    -------
    Release

    Raises
    ------
    BadInput
        If there is no such file, it is not of this form, or the release in it is invalid.
    """
    from ldpbayes import Release

    try:
        return Release.load(path)
    except FileNotFoundError as error:
        raise BadInput(str(error)) from None
    except (ValueError, TypeError, OSError) as error:
        raise BadInput(f"{path} is not a valid release file: {error}") from None


MOMENTS = {"linear_regression", "multivariate_normal"}
"""Models whose rows are normal, so that their moments say all."""


def as_sketch(path: pathlib.Path, release: "Release", model: str, say: Callable[[str], object]) -> "Release | Sketch":
    """The release as a sketch, or as it is where there is none.

    Parameters
    ----------
    path : pathlib.Path
        Of its file, for the message.
    release : Release
        With values.
    model : str
        What the user gave as ``--model``.
    say : callable
        Is called with the reason where there is no sketch.

    Returns
    -------
    Release or Sketch

    Raises
    ------
    BadInput
        If the mechanism cannot have released the values.
    """
    from ldpbayes.mechanisms import StatisticsMechanism
    from ldpbayes.noise import Gaussian, IndependentGaussian

    mechanism: Any = release.mechanism
    discrete = mechanism.support.is_discrete
    if not discrete and mechanism.batch_shape:
        say("  personal budgets: the model gets the records themselves")
        return release
    if isinstance(mechanism, StatisticsMechanism):
        return release  # which models of statistics sum
    normal = isinstance(getattr(mechanism, "noise", None), (Gaussian, IndependentGaussian))
    if mechanism.record_shape and not (normal and model in MOMENTS):
        say("  rows: the model gets the records themselves")
        return release
    if not discrete and not mechanism.record_shape and mechanism.released_range is None:
        say("  the mechanism has no sketch: the model gets the records themselves")
        return release
    try:
        return release.sketch()
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from None


def load_model(name: str, *arguments: Any) -> Callable:
    """The model of that name, with its default priors, or the one that a Python file defines.

    Parameters
    ----------
    name : str
        Of a factory in `ldpbayes.models`, or a path that ends in ``.py``.
    *arguments
        What the factory cannot do without.

    Returns
    -------
    callable
        NumPyro model of a release.

    Raises
    ------
    BadInput
        If there is no such factory or file, or the file fails or defines no ``model``.
    """
    from ldpbayes import models

    if name in models.__all__:
        try:
            return getattr(models, name)(*arguments)
        except ValueError as error:
            raise BadInput(f"--model {name}: {error}") from None
    path = pathlib.Path(name)
    if path.suffix != ".py":
        raise BadInput(f"--model must be one of {', '.join(models.__all__)}, or a Python file (.py); got {name!r}")
    if not path.is_file():
        raise BadInput(f"--model: no file {path}")
    spec = importlib.util.spec_from_file_location("ldpbayes_user_model", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"--model: {path} cannot be read as a Python file")
    module = importlib.util.module_from_spec(spec)
    with blaming(name):
        spec.loader.exec_module(module)
    model = getattr(module, "model", None)
    if not callable(model):
        raise BadInput(f"--model: {path} defines no function model(release)")
    return model


@contextlib.contextmanager
def blaming(model: str) -> Iterator[None]:
    """Turn errors of a model into messages; for a user's file, with the line that raised them.

    Parameters
    ----------
    model : str
        What the user gave as ``--model``.

    Raises
    ------
    BadInput
        For an error in a user's file, or a ValueError or TypeError of the package's own models.
    """
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
