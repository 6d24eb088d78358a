"""Features of all mechanisms: specs, equality, being a pytree; and the promise of several releases together."""

import dataclasses
import json
from collections import Counter

import jax
import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    RandomizedResponse,
    mechanism_from_spec,
)
from ldpbayes.mechanisms.protocol import Promise, statements

BUDGETS = np.array([[0.1, 1.0, 1 / 3]])
EVERY = [
    LaplaceMechanism(1.0, -5, 5),
    LaplaceMechanism(BUDGETS, -5, 5),
    GaussianMechanism(1.0, 1e-5, -5, 5),
    GaussianMechanism(BUDGETS, 1e-5, -5, 5),
    RandomizedResponse(1.0),
    RandomizedResponse(BUDGETS, 7),
]
each = pytest.mark.parametrize("instance", EVERY, ids=lambda m: f"{m.name}-{np.ndim(m.epsilon)}d")


@each
def test_spec_survives_json(instance):
    again = mechanism_from_spec(json.loads(json.dumps(instance.spec())))
    assert again == instance and type(again == instance) is bool
    assert again.spec() == instance.spec()


def test_specs_read_like_constructors():
    assert EVERY[0].spec() == {"mechanism": "laplace", "epsilon": 1.0, "lower": -5.0, "upper": 5.0}
    assert list(EVERY[2].spec()) == ["mechanism", "epsilon", "delta", "lower", "upper"]
    assert EVERY[5].spec() == {"mechanism": "randomized_response", "epsilon": BUDGETS.tolist(), "categories": 7}
    assert repr(EVERY[2]) == "GaussianMechanism(epsilon=1.0, delta=1e-05, lower=-5.0, upper=5.0)"
    assert "epsilon=<1,000 values in [1, 3]>, lower" in repr(LaplaceMechanism(np.linspace(1, 3, 1000), 0, 1))


@each
def test_pytree_round_trip_through_jit_and_foreign_leaves(instance):
    leaves, tree = jax.tree.flatten(instance)
    assert jax.tree.unflatten(tree, leaves) == instance
    assert all(a is b for a, b in zip(leaves, jax.tree.leaves(jax.tree.unflatten(tree, leaves)), strict=True))
    marks = [object() for _ in leaves]
    assert jax.tree.leaves(jax.tree.unflatten(tree, marks)) == marks
    with jax.enable_x64(True):
        assert jax.jit(lambda m: m)(instance) == instance
        # a static field is a Python value under jit, a leaf is traced
        assert jax.jit(lambda m: m.epsilon * 2)(instance) == pytest.approx(np.multiply(instance.epsilon, 2))


def test_leaves_are_named_and_static_fields_shape_the_tree():
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(EVERY[2])]
    assert paths == [".epsilon", ".delta", ".lower", ".upper", ".scale"]
    assert jax.tree.structure(RandomizedResponse(1.0, 2)) != jax.tree.structure(RandomizedResponse(1.0, 3))


def test_mechanisms_differ_by_class_and_by_any_field():
    assert LaplaceMechanism(1.0, 0, 1) == LaplaceMechanism(np.float32(1), 0.0, 1.0)
    for other in (LaplaceMechanism(2.0, 0, 1), LaplaceMechanism([1.0], 0, 1), RandomizedResponse(1.0), "laplace"):
        assert LaplaceMechanism(1.0, 0, 1) != other
    assert RandomizedResponse(1.0, 2) != RandomizedResponse(1.0, 3)
    assert LaplaceMechanism(BUDGETS, 0, 1) != LaplaceMechanism(BUDGETS * 2, 0, 1)


def test_fields_cannot_be_changed_even_in_place():
    budgets = np.ones(3)
    instance = LaplaceMechanism(budgets, 0, 1)
    budgets[0] = -1
    assert instance.epsilon[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        instance.epsilon[0] = -1
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.epsilon = 2.0


LAPLACE, RESPONSE = ldp.LaplaceMechanism(1.0, 0, 1), ldp.RandomizedResponse(1.0)
GAUSSIAN = ldp.GaussianMechanism(0.5, 1e-7, sensitivity=1.0)
PERSONAL = ldp.RandomizedResponse(np.array([0.5, 2.0]))
LABELS = ldp.mechanisms.RPWithPrior(0.75, (0.0, 1.0), 0.5)


def sentence(unit, promised):
    return f"someone with one {unit} in each {promised} in all."


@pytest.mark.parametrize(
    ("mechanisms", "total"),
    [
        ([RESPONSE, LAPLACE], sentence("record", "is promised epsilon = 2 and delta = 0")),
        ([LAPLACE] * 30, sentence("record", "is promised epsilon = 30 and delta = 0")),
        ([LAPLACE, GAUSSIAN, GAUSSIAN], sentence("record", "is promised epsilon = 2 and delta = 2e-07")),
        ([LAPLACE, PERSONAL], sentence("record", "is promised epsilon between 1.5 and 3 and delta = 0")),
        ([LAPLACE, LABELS], sentence("label", "is promised epsilon = 1.75 and delta = 0")),
        (
            [LAPLACE, ldp.RandomizedResponse(np.array([1.0, np.inf]))],
            sentence("record", "may be promised nothing"),
        ),
        (
            [ldp.ZeroInflatedLaplaceMechanism(0.6, 1.0, 0, 1)] * 2,  # one of the two gives more than half away
            sentence("record", "may be promised nothing"),
        ),
    ],
)
def test_budgets_of_several_releases_add_up_before_each_promise(mechanisms, total):
    first, *rest = statements(map(Promise, mechanisms)).split("\n")
    assert first.startswith(f"{len(mechanisms)} releases. Where they are about the same people, their budgets add up: ")
    assert total in first
    different = Counter(mechanism.guarantee.statement() for mechanism in mechanisms)
    assert rest == [f"{n} releases, each: {text}" if n > 1 else text for text, n in different.items()]


def test_a_sum_of_sketches_is_of_several_releases(x64):
    values, rows = np.array([0, 1, 1, 0]), np.linspace(-1, 1, 12).reshape(6, 2)
    statistics = ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-4, 1.0, 2.0, columns=2, clip=True)
    kinds = {
        "CountSketch": ldp.Release(values, RESPONSE).sketch(),
        "PanelSketch": ldp.Release(values + 0.1, LAPLACE).sketch(panels=8),
        "MomentSketch": ldp.Release(rows, ldp.GaussianMechanism(1.0, 1e-6, -1, 1, columns=2)).sketch(),
        "TotalSketch": ldp.Release(statistics.statistics(rows), statistics).sketch(),
    }
    for name, sketch in kinds.items():
        total = sum([sketch] * 30)
        assert type(total).__name__ == name and sketch.promises == (Promise(sketch.mechanism),)
        assert len(total.promises) == 30 and len((total + total).promises) == 60
        assert statements(total.promises).startswith("30 releases.")
        assert jax.tree.map(lambda leaf: leaf, total).promises == total.promises
    other = ldp.Release(values, ldp.RandomizedResponse(2.0)).sketch()
    privacy = ldp.frequencies(kinds["CountSketch"] + other).privacy
    assert "is promised epsilon = 3 and delta = 0 in all" in privacy and privacy.count("Each record") == 2
    assert kinds["PanelSketch"].refine().promises == (Promise(LAPLACE),)
    with pytest.raises(ValueError, match="sketches of different kinds cannot be added"):
        kinds["CountSketch"] + kinds["PanelSketch"]


def test_one_release_promises_what_its_mechanism_does_and_none_nothing():
    assert statements([Promise(LAPLACE)]) == LAPLACE.guarantee.statement()
    assert statements([]) == ""


def test_a_record_that_is_given_away_does_not_hide_the_next_worst_one():
    shares = np.array([0.1, 0.5, 0.99995])
    release = ldp.Release(
        [0.2, 0.3, 0.4],
        ldp.mechanisms.AdditiveMechanism(ldp.noise.ZeroInflated(ldp.noise.Laplace(1.0), shares), 0.0, 1.0),
    )
    assert "between 0.1001 and 0.5001" in statements(release.promises)
    scales = ldp.noise.SymmetricLaplace(np.array([1e-3, 0.05, 0.1, 20.0]))
    rows = ldp.Release(np.zeros((4, 4)), ldp.mechanisms.AdditiveMechanism(scales, 0.0, 1.0, columns=4))
    assert statements(rows.promises) == rows.mechanism.guarantee.statement()
