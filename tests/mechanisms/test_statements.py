"""What several releases promise together, and what one of many personal budgets does."""

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes import mechanisms, noise
from ldpbayes.mechanisms import AdditiveMechanism
from ldpbayes.mechanisms.protocol import Promise, parts_of, statements
from ldpbayes.privacy import compose

SCALES = np.array([3.0, 8.0, 5.5, 4.0])


@pytest.mark.parametrize(
    "mechanism",
    [
        ldp.DiscreteGaussianMechanism(scale=SCALES, sensitivity=1),
        AdditiveMechanism(noise.Gaussian(SCALES), sensitivity=2.0),
        ldp.LaplaceMechanism(epsilon=SCALES, lower=0, upper=1),
        ldp.RandomizedResponse(SCALES, 4),
        ldp.RandomizedResponse(np.append(SCALES, np.inf), 4),
        ldp.SymmetricLaplaceMechanism(scale=np.append(SCALES, 0.0), lower=0, upper=1),
    ],
)
def test_the_statement_of_personal_parameters_is_that_of_all_of_them(mechanism):
    assert statements([Promise(mechanism)]) == mechanism.guarantee.statement()


@pytest.mark.parametrize("law", [noise.DiscreteLaplace, noise.Gaussian, noise.Laplace])
@pytest.mark.parametrize("sensitivity", [1.0, 3.0])
def test_promises_are_monotone_in_the_scale_of_noise(law, sensitivity):
    guarantee = AdditiveMechanism(law(np.geomspace(0.2, 60, 400)), sensitivity=sensitivity).guarantee
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        assert np.diff(guarantee.delta(epsilon)).max() <= 1e-15  # of probabilities, which are rounded to 1e-16


GRID = np.geomspace(0.02, 20.0, 300)
SHARES = np.linspace(0.02, 0.98, 97)
PERSONAL = {
    "randomized response": ldp.RandomizedResponse(GRID, 5),
    "unary encoding": ldp.OptimalUnaryEncoding(GRID, 5),
    "RAPPOR": ldp.SymmetricUnaryEncoding(GRID, 5),
    "local hashing": ldp.LocalHashing(GRID, 9, 3),
    "count-mean sketch": mechanisms.CountMeanSketch(GRID, 9, 2, 4),
    "Hadamard count-mean sketch": mechanisms.HadamardCountMeanSketch(GRID, 9, 2, 4),
    "Hadamard": ldp.HadamardResponse(GRID, 5),
    "subsets": ldp.SubsetSelection(GRID, 9, 4),
    "bins": mechanisms.RROnBins(GRID, [0.0, 1.0, 2.0, 3.0], [0.5, 1.5, 2.5]),
    "square wave": mechanisms.SquareWaveMechanism(GRID, 0, 1),
    "near or anywhere, budgets": mechanisms.RPWithPrior(GRID, (0, 1), 0.2),
    "near or anywhere, widths": mechanisms.RPWithPrior(2.0, (0, 1), GRID),
    "staircase, budgets": mechanisms.StaircaseMechanism(GRID, 0, 1),
    "staircase, gamma": mechanisms.StaircaseMechanism(2.0, 0, 1, SHARES),
    "staircase, steps": AdditiveMechanism(noise.Staircase(1 + GRID, 2.0, 0.3), 0, 1),
    "Laplace": ldp.LaplaceMechanism(GRID, 0, 1),
    "Laplace, bounds": AdditiveMechanism(noise.Laplace(1.0), 0, GRID),
    "Gaussian, deltas": ldp.GaussianMechanism(1.0, np.geomspace(1e-9, 0.5, 90), 0, 1),
    "Gaussian, scales and bounds": AdditiveMechanism(noise.Gaussian(GRID[::-1]), 0, 1 + GRID[::2].repeat(2)),
    "symmetric Laplace": ldp.SymmetricLaplaceMechanism(GRID[::50], 0, 1, columns=2),
    "omitted noise": ldp.ZeroInflatedLaplaceMechanism(SHARES, 1.0, 0, 1),
    "whole numbers": ldp.DiscreteLaplaceMechanism(GRID, 0, 3),
    "whole numbers, bounds": ldp.DiscreteGaussianMechanism(0.6, 0, np.arange(1.0, 30.0)),
    "whole numbers, Gaussian": ldp.DiscreteGaussianMechanism(GRID, 0, 2),
    "rows of them": ldp.DiscreteGaussianMechanism(GRID[::15], 0, 2, columns=2),
    "records": mechanisms.LinearRecordsMechanism(GRID, 1e-6, 1.0, 1.0, 3),
    "rounded": mechanisms.Rounded(ldp.LaplaceMechanism(1.0, 0, 1), SHARES),
}
LEVELS = [0.01, 0.05, 0.3, 0.7]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "symmetric Laplace" else name for name in PERSONAL]
)
def test_no_personal_parameter_is_worse_than_what_is_stated(name):
    """Whatever is in the middle: the widths of `RPWithPrior`, staircase noise's gamma and discrete Gaussian scales."""
    mechanism = PERSONAL[name]
    stated, each = Promise(mechanism).guarantee, mechanism.guarantee
    for epsilon in (0.0, 0.2, 1.0, 3.0):
        np.testing.assert_allclose(np.max(stated.delta(epsilon)), np.max(each.delta(epsilon)), rtol=1e-12, atol=1e-15)
    for alpha in LEVELS:
        np.testing.assert_allclose(np.min(stated.tradeoff(alpha)), np.min(each.tradeoff(alpha)), rtol=1e-12)
    assert statements([Promise(mechanism)]) == each.statement()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("law", [noise.Laplace, noise.SymmetricLaplace, noise.Gaussian])
def test_records_without_noise_are_not_protected_and_others_are_as_stated(law):
    for columns in (None, 2):
        some = AdditiveMechanism(noise.WithPublicRecords(law(np.array([0.0, 2.0, 5.0]))), 0, 1, columns=columns)
        noisy = AdditiveMechanism(noise.WithPublicRecords(law(np.array([2.0, 5.0]))), 0, 1, columns=columns)
        assert some.guarantee.delta(1.0).tolist() == [1.0, *noisy.guarantee.delta(1.0).tolist()]
        text = statements([Promise(some)])
        assert text == some.guarantee.statement() and text.endswith("One of infinite budget is not protected.")
        assert noisy.guarantee.statement().split("protected by")[1].rstrip(".") in text
        none = AdditiveMechanism(noise.WithPublicRecords(law(0.0)), 0, 1, columns=columns)
        assert statements([Promise(none)]).startswith("No record is protected")


def test_the_largest_power_of_personal_widths_is_stated():
    """At epsilon 2 the neighbourhoods of both ends of [0, 1] are apart for a half-width of .5: δ(0) = .762."""
    widths = np.array([0.005, 0.5, 100.0])
    mechanism = mechanisms.RPWithPrior(2.0, (0.0, 1.0), widths)
    densities = [1.0, np.exp(-2)] / (2 * widths[:, None] + np.exp(-2))
    apart = np.minimum(2 * widths, 1.0) * (densities[:, 0] - densities[:, 1])  # of a uniform mass near one end only
    assert apart.max() == pytest.approx(0.762, abs=5e-4)
    assert np.max(compose(Promise(mechanism)).delta(0.0)) == pytest.approx(apart.max())
    assert "more than 37% of the time" in statements([Promise(mechanism)])  # .05 exp(2) = .3695


def test_thousands_of_personal_parameters_compose_in_parts():
    pytest.importorskip("dp_accounting", reason="the extra opendp is not installed")
    widths = np.append(np.geomspace(0.001, 100, 3_000), 0.5)
    many = mechanisms.RPWithPrior(2.0, (0.0, 1.0), widths)
    worst = mechanisms.RPWithPrior(2.0, (0.0, 1.0), 0.5)
    total, two = compose(Promise(many), Promise(many)), compose(worst, worst)
    np.testing.assert_allclose(total.delta([0.5, 2.0]), two.delta([0.5, 2.0]), rtol=1e-4)


def test_every_scale_of_discrete_gaussian_noise_counts():
    """Delta at epsilon = 3 is .011 at scale .74 and .013 at .82."""
    scales = np.array([0.74, 0.82, 5.0])
    mechanism = ldp.DiscreteGaussianMechanism(scale=scales, sensitivity=1)
    assert statements([Promise(mechanism)]) == mechanism.guarantee.statement()
    assert mechanism.guarantee.delta(3.0)[1] > mechanism.guarantee.delta(3.0)[0]


def test_budgets_of_releases_about_different_people_are_not_added():
    four = [ldp.RandomizedResponse(0.7)] * 3 + [ldp.LaplaceMechanism(1.0, 0, 1)]
    answer, number = (each.guarantee.statement() for each in four[2:])
    heading, *rest = statements(map(Promise, four), different_people=True).split("\n")
    assert heading == "4 releases about different people. What each promises:"
    assert rest == [f"3 releases, each: {answer}", number]
    assert statements([Promise(four[0])], different_people=True) == answer
    with pytest.raises(ValueError, match="same_people=True or different_people=True, not both"):
        statements(map(Promise, four), True, True)


def test_the_promise_of_parts_counts_once_and_is_that_with_the_most_values_about_a_person():
    mechanism = ldp.RandomizedResponse(0.7)
    promises = [part for times in (None, 3, 2) for part in parts_of("chunks", [Promise(mechanism, times)])]
    assert statements(promises) == mechanism.guarantee.composed(3).statement()
    assert statements([*promises, Promise(mechanism)]).startswith("2 releases. Where they are about the same people")
