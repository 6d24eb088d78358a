"""Bad input, and the models that the command line names."""

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
from typing import Any

import numpy as np

from ldpbayes import Release, Sketch
from ldpbayes.mechanisms import StatisticsMechanism
from ldpbayes.noise import Gaussian, IndependentGaussian

MOMENTS = {"linear_regression", "multivariate_normal"}  # models of normal rows, for which moments are sufficient


class BadInput(Exception):
    """The user gave something that cannot be used; the message says what and why, and the exit code is 2."""


def guess(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, to stand behind an unknown one; empty where nothing is close."""
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def as_sketch(name: str, release: Release, model: str, say: Callable[[str], object]) -> Release | Sketch:
    """The release as a sketch, or as it is where there is none; `say` is then called with the reason."""
    mechanism: Any = release.mechanism
    discrete = mechanism.support.is_discrete
    if not discrete and mechanism.batch_shape:
        say("  personal budgets: the model gets the records themselves")
        return release
    if isinstance(mechanism, StatisticsMechanism):
        return release  # models of statistics sum its values
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
    """The model of a factory in `ldpbayes.models`, with its default priors, or of a file whose name ends in ``.py``.

    `arguments` are the factory's required ones.
    """
    from ldpbayes import models

    if name in models.__all__:
        try:
            return getattr(models, name)(*arguments)
        except ValueError as error:
            raise BadInput(f"--model {name}: {error}") from None
    path = pathlib.Path(name)
    if path.suffix != ".py":
        known = f"{', '.join(models.__all__)}, or a Python file (.py)"
        raise BadInput(f"no model {name!r}{guess(name, models.__all__)}; --model must be one of {known}")
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
    """Run a model, or its file: it can import modules of its folder, and its errors become `BadInput` with their line.

    Of the package's own models, only ValueError and TypeError do.
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

    The priors are those of a model made with the defaults, and features, where a factory needs some, are one column.
    """
    from ldpbayes import models

    rows = []
    for name in models.__all__:
        factory = getattr(models, name)
        parameters = inspect.signature(factory).parameters.values()
        needed = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
        priors = repr(factory(*(np.zeros((1, 1)) for _ in needed))).removeprefix(f"{name}(").removesuffix(")")
        if needed:  # they come first, and are no priors
            first = next(parameter.name for parameter in parameters if parameter.name not in needed)
            priors = priors[priors.index(f"{first}=") :]
        text = (inspect.getdoc(factory) or "").replace("``", "").replace("`", "")
        returned = " ".join(text.partition("Returns\n-------\ncallable\n")[2].partition("\n\n")[0].split())
        takes = re.split(r"[;.] TypeError", returned)[0].rstrip(".")
        description = text.partition("\n\n")[0].replace("\n", " ")
        rows.append({"name": name, "priors": priors, "description": description, "takes": takes})
    return rows
