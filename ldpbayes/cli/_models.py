"""The models that the command line names: how they are loaded, and what they are given."""

import contextlib
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ldpbayes as ldp
from ldpbayes import Release, Sketch
from ldpbayes.cli._csv import BadInput, guess, naming
from ldpbayes.cli._releases import Named
from ldpbayes.mechanisms import StatisticsMechanism

MOMENTS = {"linear_regression", "multivariate_normal"}  # models of normal rows, for which moments are sufficient
# Names of the axes of ``theta``, by model, and models of several releases with the name of their plate of releases.
AXES = {"hierarchical": ("group",), "regional_histograms": ("region", "category"), "oue_histogram": ("category",)}
GROUPED = {name: axes[0] for name, axes in AXES.items() if axes[0] != "category"}
INNER = {"regional_histograms": {"offset"}}  # sites that are coordinates of the sampler only, and no parameters


def as_sketch(named: Named, model: str, say: Callable[[str], object]) -> Release | Sketch:
    """The release as a sketch, or as it is if it has none that the model takes; `say` is then called with a note."""
    mechanism: Any = named.release.mechanism
    if isinstance(mechanism, StatisticsMechanism):
        return named.release  # models of statistics sum its values
    if not mechanism.record_shape or model in MOMENTS:
        with contextlib.suppress(ValueError):  # such as personal budgets
            return named.release.sketch()
    say("  no sketch of these: the model gets the records themselves")
    return named.release


def load_model(name: str, *arguments: Any) -> Callable:
    """The model of a ``.py`` file, or of a factory, with its required `arguments` and default priors."""
    if name in ldp.models.__all__:
        with naming(f"--model {name}"):
            return getattr(ldp.models, name)(*arguments)
    path = pathlib.Path(name)
    if path.suffix != ".py":
        known = f"{', '.join(ldp.models.__all__)}, or a Python file (.py)"
        raise BadInput(f"no model {name!r}{guess(name, ldp.models.__all__)}; --model must be one of {known}")
    if not path.is_file():
        raise BadInput(f"--model: no file {path}")
    spec = importlib.util.spec_from_file_location("ldpbayes_user_model", path)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
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
    """Run a model, or its file: it can import modules of its folder, and its errors become `BadInput` with their line;
    of the package's own models, only ValueError and TypeError do.
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


def place_names(model: str, releases: Sequence[Named], levels: Sequence[str]) -> dict[str, Any]:
    """Options ``dims`` and ``coords`` of `ldpbayes.fit`: groups have their words, the first categories the `levels`."""
    axes: Sequence[str] = AXES.get(model, ())
    coords: dict[str, list[str]] = {}
    if model in GROUPED:
        words = [release.word for release in releases]
        coords[GROUPED[model]] = words if len(set(words)) == len(words) else [release.name for release in releases]
    if "category" in axes and levels:
        count = getattr(releases[0].release.mechanism, "categories", 0)
        coords["category"] = [*levels, *map(str, range(len(levels), count))][:count]
    return {"dims": {"theta": list(axes)}, "coords": coords} if coords else {}
