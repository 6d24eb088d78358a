"""The registry of mechanisms: names, specs, classes that are defined again, entry points."""

import contextlib
import dataclasses
import sys
import textwrap
import tracemalloc

import jax
import numpy as np
import pytest

from ldpbayes.data import Release
from ldpbayes.mechanisms import (
    LaplaceMechanism,
    mechanism_from_spec,
    mechanism_names,
    register,
)


@pytest.fixture
def registry(monkeypatch):
    """Undo what a test registers."""
    module = sys.modules[register.__module__]
    monkeypatch.setattr(module, "_registry", dict(module._registry))
    return module._registry


def test_names_find_their_classes():
    assert {"gaussian", "laplace", "randomized_response"} <= set(mechanism_names())
    assert mechanism_names() == sorted(mechanism_names())
    assert mechanism_from_spec({"mechanism": "laplace", "epsilon": 1.0, "lower": -5, "upper": 5}) == LaplaceMechanism(
        1.0, -5, 5
    )
    assert mechanism_from_spec({"mechanism": "randomized_response", "epsilon": 1.0}).categories == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"mechanism": "laplce"},
            "mechanism must be one of additive, .*hadamard_response, incomplete, .*, got 'laplce'",
        ),
        ({"epsilon": 1.0}, 'spec must be a dict with the mechanism\'s name under "mechanism"'),
        ("laplace", "spec must be a dict"),
        ({"mechanism": "laplace", "lower": 0, "upper": 1}, "'laplace' takes epsilon, .*: missing .* 'epsilon'"),
        ({"mechanism": "laplace", "epsilon": 1.0, "lower": 0}, "give lower and upper, the bounds"),
        (
            {"mechanism": "laplace", "epsilon": 1, "lower": 0, "upper": 1, "name": 1, "scale": 3},
            "mechanism 'laplace' takes epsilon, lower, upper, .*: .* unexpected keyword argument 'name'",
        ),
        ({"mechanism": "gaussian", "epsilon": 1, "delta": 2, "lower": 0, "upper": 1}, "delta must be between"),
    ],
)
def test_bad_specs_say_what_is_wrong(spec, message):
    with pytest.raises(ValueError, match=message):
        mechanism_from_spec(spec)


def test_register_refuses_what_is_no_mechanism_and_names_that_are_taken(registry):
    @dataclasses.dataclass(frozen=True)
    class Other(LaplaceMechanism):
        pass

    with pytest.raises(ValueError, match="mechanism name 'laplace' is taken by"):
        register("laplace")(Other)
    with pytest.raises(TypeError, match=r"must be a subclass of ldpbayes\.mechanisms\.NumericMechanism"):
        register("dict")(dict)
    with pytest.raises(TypeError, match="must be a frozen dataclass"):
        register("plain")(type("Plain", (LaplaceMechanism,), {}))
    with pytest.raises(TypeError, match="name must be a non-empty string"):
        register(Other)


def test_running_a_class_definition_again_replaces_it(registry):
    def define():
        @register("again")
        @dataclasses.dataclass(frozen=True)
        class Again(LaplaceMechanism):
            pass

        return Again

    first, second = define(), define()
    assert first is not second and registry["again"] is second
    assert mechanism_from_spec({"mechanism": "again", "epsilon": 1, "lower": 0, "upper": 1}) == second(1, 0, 1)
    with pytest.raises(ValueError, match="is already registered as 'again'"):
        register("once more")(second)


def install(folder, monkeypatch, package, entry_point, source):
    """Lay out an installed distribution: a module and the metadata that pip would write."""
    (folder / f"{package}.py").write_text(textwrap.dedent(source))
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[ldpbayes.mechanisms]\n{entry_point}\n")
    monkeypatch.syspath_prepend(folder)


SOURCE = """
    import dataclasses
    from ldpbayes.mechanisms import LaplaceMechanism, register

    {decorator}
    @dataclasses.dataclass(frozen=True)
    class Theirs(LaplaceMechanism):
        pass
"""


@pytest.mark.parametrize("decorator", ["", '@register("theirs")'], ids=["undecorated", "decorated"])
def test_third_parties_register_through_an_entry_point(tmp_path, monkeypatch, registry, decorator):
    package = f"third_party_{bool(decorator)}"
    install(tmp_path, monkeypatch, package, f"theirs = {package}:Theirs", SOURCE.format(decorator=decorator))
    assert package not in sys.modules
    made = mechanism_from_spec({"mechanism": "theirs", "epsilon": 1.0, "lower": 0, "upper": 1})
    assert type(made).__module__ == package and "theirs" in mechanism_names()
    assert made.spec()["mechanism"] == "theirs"
    assert len(jax.tree.leaves(made)) == 3


@pytest.mark.parametrize(
    ("package", "entry_point", "decorator", "error", "message"),
    [
        ("clashing", "laplace = clashing:Theirs", "", ValueError, "mechanism name 'laplace' is taken by"),
        ("renaming", "a = renaming:Theirs", '@register("b")', ValueError, "is already registered as 'b'"),
        ("wrong", "wrong = wrong:dataclasses", "", TypeError, "mechanism 'wrong' must be a subclass"),
        ("absent", "absent = absent:Nothing", "", ImportError, "entry point absent = absent:Nothing of ldpbayes"),
    ],
)
def test_broken_entry_points_are_named(
    tmp_path, monkeypatch, registry, package, entry_point, decorator, error, message
):
    install(tmp_path, monkeypatch, package, entry_point, SOURCE.format(decorator=decorator))
    with pytest.raises(error, match=message):
        mechanism_names()


MANY = 2**31 - 1
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
NORMS = {"radius": 1.0, "response_bound": 1.0}
LARGE = [
    *({"mechanism": f"{name}_laplace", "scale": 1.0} for name in ("symmetric", "independent")),
    {"mechanism": "zero_inflated_laplace", "scale": 1.0, "zero_probability": 0.1},
    {"mechanism": "discrete_gaussian", "scale": 1.0},
    {"mechanism": "gaussian", **BUDGET},
    {"mechanism": "additive", "noise": {"law": "Laplace", "scale": 1.0}},
]
LARGE = [spec | {"lower": 0.0, "upper": 1.0, "columns": MANY} for spec in LARGE]
LARGE += [{"mechanism": f"linear_{kind}", "columns": MANY, **BUDGET, **NORMS} for kind in ("records", "statistics")]
LARGE += [
    {"mechanism": f"logistic_{kind}", "columns": MANY, **BUDGET, "radius": 1.0} for kind in ("records", "statistics")
]
CODES = ("randomized_response", "hadamard_response", "optimal_unary_encoding", "subset_selection")
LARGE += [{"mechanism": name, "epsilon": 1.0, "categories": 10**9} for name in CODES]


@pytest.mark.parametrize("spec", LARGE, ids=lambda spec: spec["mechanism"])
@pytest.mark.parametrize("values", [[[1.0, 2.0]], [1, 0]], ids=["row", "codes"])
def test_a_small_file_does_not_ask_for_the_memory_of_its_columns_or_categories(spec, values):
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):  # rows of another width are refused; few codes of many are not
            Release(values, mechanism_from_spec(spec))
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_columns_that_are_no_columns_of_many_are_refused_without_a_list_of_all():
    for perturbed in ("x", [0, MANY], [0, np.int64(MANY)], [0, 0]):
        with pytest.raises(ValueError, match=r"distinct columns out of \(0, 1, 2, 3, 4, 5, 6, 7, 8\) \.\.\., got"):
            mechanism_from_spec(LARGE[0] | {"perturbed": perturbed})
