"""Models and data that the command line names."""

import contextlib
import difflib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ldpbayes import Release, Sketch


class BadInput(Exception):
    """The user gave something that cannot be used; the message says what and why, and the exit code is 2."""


MOMENTS = {"linear_regression", "multivariate_normal"}
"""Models whose rows are normal, so that their moments say all."""


def guess(word: str, known: Iterable[str]) -> str:
    """What was probably meant by a word that is not known, to stand behind it; empty where nothing is close.

    Parameters
    ----------
    word : str
        What was typed.
    known : iterable of str
        What it may be.
    """
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def as_sketch(name: str, release: "Release", model: str, say: Callable[[str], object]) -> "Release | Sketch":
    """The release as a sketch, or as it is where there is none.

    Parameters
    ----------
    name : str
        Of the release, for the message.
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
        raise BadInput(f"{name}: {error}") from None


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
        known = ", ".join(models.__all__)
        raise BadInput(
            f"no model {name!r}{guess(name, models.__all__)}; --model must be one of {known}, or a Python file (.py)"
        )
    if not path.is_file():
        raise BadInput(f"--model: no file {path}")
    spec = importlib.util.spec_from_file_location("ldpbayes_user_model", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"--model: {path} cannot be read as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pickle look for what the file defines
    with blaming(name):
        spec.loader.exec_module(module)
    model = getattr(module, "model", None)
    if not callable(model):
        raise BadInput(f"--model: {path} defines no function model(release)")
    return model


@contextlib.contextmanager
def blaming(model: str) -> Iterator[None]:
    """Run a model, or its file: it can import modules of its folder, and its errors become messages with their line.

    Parameters
    ----------
    model : str
        What the user gave as ``--model``.

    Raises
    ------
    BadInput
        For an error in a user's file, or a ValueError or TypeError of the package's own models.
    """
    path = pathlib.Path(model).absolute()
    folder = [str(path.parent)] if path.suffix == ".py" else []
    sys.path[:0] = folder  # as ``python model.py`` does
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if not folder:
            if isinstance(error, (ValueError, TypeError)):
                raise BadInput(f"{error}" if str(error).startswith(model) else f"model {model}: {error}") from None
            raise
        trace = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in trace if os.path.abspath(frame.filename) == str(path)]
        where = f"{model}:{lines[-1]}" if lines else model
        if isinstance(error, SyntaxError):
            where = f"{os.path.relpath(error.filename or model)}:{error.lineno}"
        raise BadInput(f"{where}: {type(error).__name__}: {error}") from None
    finally:
        for added in folder:
            sys.path.remove(added)


def described_models() -> list[dict[str, Any]]:
    """For each factory of `ldpbayes.models` a dict of text: ``name``, ``priors``, ``description``, ``takes``.

    The priors are those of a model made with the defaults; features, where a factory needs some, are one column.
    """
    from ldpbayes import models

    rows = []
    for name in models.__all__:
        factory = getattr(models, name)
        parameters = inspect.signature(factory).parameters.values()
        needed = [each.name for each in parameters if each.default is inspect.Parameter.empty]
        priors = repr(factory(*(np.zeros((1, 1)) for _ in needed))).removeprefix(f"{name}(").removesuffix(")")
        if needed:  # they come first, and are no priors
            first = next(each.name for each in parameters if each.name not in needed)
            priors = priors[priors.index(f"{first}=") :]
        text = (inspect.getdoc(factory) or "").replace("``", "").replace("`", "")
        returned = " ".join(text.partition("Returns\n-------\ncallable\n")[2].partition("\n\n")[0].split())
        rows.append(
            {
                "name": name,
                "priors": priors,
                "description": text.partition("\n\n")[0].replace("\n", " "),
                "takes": re.split(r"[;.] TypeError", returned)[0].rstrip("."),
            }
        )
    return rows
