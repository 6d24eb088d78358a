"""Names that have moved: the former ones work for one more release, with a DeprecationWarning that has the new one."""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["former", "former_modules"]


def _in(place: str, *names: str) -> dict[str, str]:
    return {name: f"{place}.{name}" for name in names}


MODULES = {
    "ldpbayes.estimation.function_loss": _in("ldpbayes.estimation.losses", "as_loss"),
    "ldpbayes.studies.checkpoint": _in("ldpbayes.studies", "Checkpoint"),
    "ldpbayes.studies.ldp_bayes": _in(
        "ldpbayes.studies.papers.kulkarni_et_al", "histogram_distance", "histogram_error", "kosarak_records"
    ),
    "ldpbayes.studies.zil": _in(
        "ldpbayes.studies.papers.lu_chen_qiu",
        "logistic_posteriors",
        "logistic_regression",
        "logistic_setting",
        "median_regression",
        "nonsmooth_means",
    )
    | _in("ldpbayes.studies", "Setting", "replicate", "replicator"),
}
"""Former modules, and the new places of their names."""


def former(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` for names that it no longer has.

    Parameters
    ----------
    module : str
        The module.
    names : dict of str to str
        New places, dotted, by former name.

    Returns
    -------
    callable
        From a name to what it stands for, with a DeprecationWarning; AttributeError for any other.
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, attribute = names[name].rpartition(".")
        warnings.warn(f"{module}.{name} is now {names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(place), attribute)

    return __getattr__


class _Finder(MetaPathFinder, Loader):
    """Finds former modules, which have no file."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None  # Python's own kind of module will do

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = former(module.__name__, MODULES[module.__name__])


def former_modules() -> None:
    """Let former modules be imported; the finder is asked last, and only for what no other finder has found."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
