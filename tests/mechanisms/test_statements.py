"""What several releases promise together: the sum of their budgets, and each promise."""

from collections import Counter

import jax
import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes.mechanisms.protocol import statements

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
    first, *rest = statements(mechanisms).split("\n")
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
        assert type(total).__name__ == name and sketch.mechanisms == (sketch.mechanism,)
        assert len(total.mechanisms) == 30 and len((total + total).mechanisms) == 60
        assert statements(total.mechanisms).startswith("30 releases.")
        assert jax.tree.map(lambda leaf: leaf, total).mechanisms == total.mechanisms
    other = ldp.Release(values, ldp.RandomizedResponse(2.0)).sketch()
    privacy = ldp.frequencies(kinds["CountSketch"] + other).privacy
    assert "is promised epsilon = 3 and delta = 0 in all" in privacy and privacy.count("Each record") == 2
    assert kinds["PanelSketch"].refine().mechanisms == (LAPLACE,)
    with pytest.raises(TypeError, match="unsupported operand"):
        kinds["CountSketch"] + kinds["PanelSketch"]


def test_one_release_promises_what_its_mechanism_does_and_none_nothing():
    assert statements([LAPLACE]) == LAPLACE.guarantee.statement()
    assert statements([]) == ""
