"""Integrals on adaptive cells against closed forms, draws against distribution functions."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from ldpbayes.numerics import cubature
from ldpbayes.numerics.cubature import ImproperDensity, NotIntegrable, integrate
from tests.inference.integrals import nodes_of


def starts(n):
    """Points where a prior of spread 3 has its mass, and at all scales."""
    rng, count = np.random.default_rng(1), 128 * 4 ** (n - 1)
    return rng.normal(size=(2 * count, n)) * np.append(np.full(count, 3.0), 10.0 ** rng.uniform(-1, 3, count))[:, None]


def cells_of(log_density, n, **options):
    return integrate(log_density, starts(n), np.ones(n), np.full(n, np.inf), **{"limit": 200_000} | options)


def normal(n, seed=0, distance=7.0):
    root = np.random.default_rng(seed).normal(size=(n, n))
    return stats.multivariate_normal(np.full(n, distance), root @ root.T)


def softmax_density(x):
    """Of the logits of a Dirichlet law: its constant is a ratio of gamma functions."""
    return x @ [1.0, 3.0, 5.0] - 12 * np.log1p(np.exp(x).sum(axis=1))


CASES = {
    "normal": (lambda x: normal(1).logpdf(x), 1, 0.0),
    "two normal": (lambda x: normal(2).logpdf(x), 2, 0.0),
    "three normal": (lambda x: normal(3).logpdf(x), 3, 0.0),
    "beta near 0": (
        lambda x: 0.5 * special.log_expit(x[:, 0]) + 20 * special.log_expit(-x[:, 0]),
        1,
        special.betaln(0.5, 20),
    ),
    "arcsine": (lambda x: 0.5 * (special.log_expit(x[:, 0]) + special.log_expit(-x[:, 0])), 1, np.log(np.pi)),
    "gamma": (lambda x: 3 * x[:, 0] - np.exp(x[:, 0]), 1, special.gammaln(3)),
    "Cauchy": (lambda x: stats.cauchy.logpdf(x[:, 0]), 1, 0.0),
    "plateau": (
        lambda x: np.logaddexp(stats.norm.logpdf(x[:, 0], 3, 0.3), stats.norm.logpdf(x[:, 0], -2, 800)),
        1,
        np.log(2),
    ),
    "two modes": (
        lambda x: np.logaddexp(stats.norm.logpdf(x, 3, 0.3).sum(axis=1), stats.norm.logpdf(x, -30, 2).sum(axis=1)),
        2,
        np.log(2),
    ),
    "banana": (lambda x: stats.norm.logpdf(x[:, 0]) + stats.norm.logpdf(x[:, 1], x[:, 0] ** 2, 0.3), 2, 0.0),
    "funnel": (lambda x: stats.norm.logpdf(x[:, 0], 0, 3) + stats.norm.logpdf(x[:, 1], 0, np.exp(x[:, 0] / 2)), 2, 0.0),
    "ridge": (
        lambda x: stats.norm.logpdf(x).sum(axis=1) + stats.norm.logpdf(x.sum(axis=1), 1, 0.02),
        2,
        stats.norm.logpdf(1, 0, (2 + 0.02**2) ** 0.5),
    ),
    "simplex": (softmax_density, 3, special.gammaln([1, 3, 5, 3]).sum() - special.gammaln(12)),
    # What nodes of smooth cells do not see: jumps, kinks, arms that are thin, modes far apart, necks.
    "half": (lambda x: np.where(x[:, 0] > 0, -x[:, 0], -np.inf), 1, 0.0),
    "cut": (
        lambda x: np.where((x[:, 0] > 2) & (x[:, 0] < 9), stats.norm.logpdf(x[:, 0]), -np.inf),
        1,
        np.log(stats.norm.sf(2) - stats.norm.sf(9)),
    ),
    "step": (
        lambda x: stats.norm.logpdf(x[:, 0]) + np.where(x[:, 0] > 0.37, 1.0, 0.0),
        1,
        np.log(stats.norm.cdf(0.37) + np.e * stats.norm.sf(0.37)),
    ),
    "kink": (lambda x: stats.laplace.logpdf(x[:, 0], 10, 0.1), 1, 0.0),
    "kinks": (lambda x: stats.laplace.logpdf(x).sum(axis=1), 2, 0.0),
    "needle": (
        lambda x: np.logaddexp(stats.norm.logpdf(x[:, 0], -4, 1), stats.norm.logpdf(x[:, 0], 4, 0.05)),
        1,
        np.log(2),
    ),
    "arms": (
        lambda x: stats.norm.logpdf(x).sum(axis=1) + stats.norm.logpdf(x.prod(axis=1), 0, 0.03),
        2,
        0.304217386870,  # the product has density K0(|u|) / π
    ),
    "neck": (
        lambda x: (
            np.log(2 / np.pi)
            + x[:, 0]
            - np.log1p(np.exp(2 * x[:, 0]))
            + stats.norm.logpdf(x[:, 1], 0, np.exp(x[:, 0]))
            + stats.norm.logpdf(x[:, 1])
        ),
        2,
        -1.370521,  # ∫ of the half-Cauchy density of a spread times the density of 0 in N(0, 1 + spread²)
    ),
    "permutations": (
        lambda x: special.logsumexp(
            [stats.norm.logpdf(x, at, 0.1).sum(axis=1) for at in itertools.permutations([-2.0, 0.5, 3.0])], axis=0
        ),
        3,
        np.log(6),
    ),
}


UNSEEN = {"neck": 1e-3}  # nats by which an integral was off more than its error says: the end of a narrowing neck


@pytest.mark.parametrize("name", CASES)
def test_integrals_are_those_of_closed_forms(name):
    log_density, n, expected = CASES[name]
    with np.errstate(over="ignore", under="ignore"):
        cells = cells_of(log_density, n)
    assert abs(cells.log_integral - expected) < max(cells.error, 1e-8, UNSEEN.get(name, 0.0))
    assert cells.error < 1e-3 and cells.evaluations <= 150_000
    assert np.isclose(cells.masses.sum(), 1, rtol=1e-12)


def test_moments_are_exact():
    law = normal(3)
    points, weights = nodes_of(cells_of(law.logpdf, 3))
    mean = weights @ points
    np.testing.assert_allclose(mean, law.mean, atol=1e-5)  # what is outside of the cells has mass 1e-6
    covariance = (points - mean).T * weights @ (points - mean)
    np.testing.assert_allclose(covariance, law.cov, atol=1e-4 * np.max(law.cov))


@pytest.mark.parametrize("name", ["beta near 0", "banana", "two modes", "simplex"])
def test_draws_follow_the_density(name):
    """Kolmogorov-Smirnov tests of the axes at 1e-4, with a fixed seed, where one is known; log densities are exact."""
    log_density, n, _ = CASES[name]
    with np.errstate(over="ignore", under="ignore"):
        cells = cells_of(log_density, n)
    points, heights = cells.draws(np.random.default_rng(0).random((20_000, 1 + n)))
    assert 0.5 * np.mean(np.abs(np.expm1(heights - log_density(points)))) <= cells.error  # the total variation
    for axis, law in {
        "beta near 0": lambda x: [(special.expit(x), stats.beta(0.5, 20))],
        "banana": lambda x, y: [(x, stats.norm), ((y - x**2) / 0.3, stats.norm)],
        "two modes": lambda x, y: [(np.where(y > -10, (y - 3) / 0.3, (y + 30) / 2), stats.norm)],
        "simplex": lambda *x: [(1 / (1 + np.exp(x).sum(axis=0)), stats.beta(3, 9))],
    }[name](*points.T):
        assert stats.kstest(axis, law.cdf).pvalue > 1e-4


def test_a_quantile_of_one_variable_is_an_entry_of_its_draws():
    cells = cells_of(CASES["gamma"][0], 1)
    levels = np.array([1e-3, 0.05, 0.5, 0.95, 0.999])
    order = np.argsort(cells.low[:, 0])
    upper = np.cumsum(cells.masses[order])
    holder = np.searchsorted(upper, levels)
    own = (levels - (upper - cells.masses[order])[holder]) / cells.masses[order][holder]
    first = np.concatenate([[0], np.cumsum(cells.masses)])[order[holder]] + 0.5 * cells.masses[order[holder]]
    points, _ = cells.draws(np.column_stack([first, own]))
    np.testing.assert_allclose(np.exp(points[:, 0]), stats.gamma(3).ppf(levels), rtol=1e-5)


@pytest.mark.parametrize(
    ("log_density", "n"),
    [
        (lambda x: 0 * x, 1),
        (special.log_expit, 1),
        (lambda x, y: -0.5 * x**2 + 0 * y, 2),
        (lambda x, y: -0.5 * x**2 - 0.5 * np.log1p(y**2), 2),
    ],
)
def test_a_density_without_an_integral_is_named(log_density, n):
    with pytest.raises(ImproperDensity, match="without end"):
        cells_of(lambda x: log_density(*x.T), n)


def test_what_cells_do_not_resolve_is_refused():
    with pytest.raises(NotIntegrable, match="too heavy"):
        cells_of(lambda x: stats.t(0.5).logpdf(x[:, 0]), 1)
    with pytest.raises(NotIntegrable, match="more than 2,000 evaluations"):
        cells_of(CASES["funnel"][0], 2, limit=2000)
    with pytest.raises(NotIntegrable, match="zero or undefined at all 256 starting points"):
        cells_of(lambda x: np.full(len(x), np.nan), 1)
    with pytest.raises(NotIntegrable, match=r"undefined \(NaN\) beside"):
        cells_of(lambda x: np.where((x[:, 0] > 0.3) & (x[:, 0] < 0.5), np.nan, -0.5 * x[:, 0] ** 2), 1)


def test_rings_end_the_search_around_the_mode():
    def two(x):
        return np.logaddexp(-0.5 * x[:, 0] ** 2, -0.5 * (x[:, 0] - 40) ** 2 - 1)

    whole, near = (cells_of(two, 1, rings=rings) for rings in (cubature.RINGS, 1))
    assert abs(whole.log_integral - near.log_integral - np.log1p(np.exp(-1))) < 1e-6
