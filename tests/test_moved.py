"""Names that have moved: the former ones work, and say what the new ones are."""

import importlib
import warnings

import pytest

import ldpbayes as ldp
from ldpbayes._moved import MODULES

FORMER = [(module, name, new) for module, names in MODULES.items() for name, new in names.items()]
FORMER += [
    ("ldpbayes.likelihood", name, f"ldpbayes.data.{name}")
    for name in ("CountSketch", "PanelSketch", "Sketch", "sketch")
]
FORMER += [("ldpbayes.mechanisms", "RowMechanism", "ldpbayes.mechanisms.Additive")]


@pytest.mark.parametrize(("module", "name", "new"), FORMER)
def test_a_former_name_is_the_new_one_and_says_so(module, name, new):
    place, _, attribute = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"^{module}.{name} is now {new}$") as said:
        value = getattr(importlib.import_module(module), name)
    assert value is getattr(importlib.import_module(place), attribute)
    assert attribute in importlib.import_module(place).__all__
    assert said[0].filename == __file__


def test_former_modules_are_imported_as_before():
    with pytest.warns(DeprecationWarning, match="is now ldpbayes.studies.papers.kulkarni_et_al.histogram_error"):
        from ldpbayes.studies.ldp_bayes import histogram_error
    assert histogram_error is ldp.studies.papers.kulkarni_et_al.histogram_error
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from ldpbayes.studies.zil import nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ldpbayes.studies.nothing")


def test_what_the_package_itself_imports_has_not_moved():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for module in (ldp.models, ldp.studies, ldp.plots, ldp.likelihood, ldp.mechanisms):
            assert all(hasattr(module, name) for name in module.__all__)
