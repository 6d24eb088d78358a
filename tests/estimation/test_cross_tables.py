"""Tables of several randomized answers, and functions of estimates: against closed forms and simulated tables.

Statistical tests fix their seeds; each band fails by chance with probability 1e-4 when a seed is changed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.mechanisms import Crosswise, ForcedResponse

CELLS = np.array([0.2, 0.1, 0.1, 0.15, 0.2, 0.25])  # of two answers to the first, and three to the second question
FIRST, SECOND = np.array([[0.75, 0.25], [0.25, 0.75]]), 0.7 * np.eye(3) + 0.1
DESIGNS = ldp.RandomizedResponse(truth=0.75), ForcedResponse([0.1, 0.1, 0.1])
BOTH = np.einsum("ij,kl->ikjl", FIRST, SECOND).reshape(6, 6)


def released(rng, people):
    cell = rng.choice(6, people, p=CELLS @ BOTH)
    return [ldp.Release(codes, design) for codes, design in zip(np.divmod(cell, 3), DESIGNS, strict=True)]


def log_odds(cells):
    return jnp.log(cells[0] * cells[4] / (cells[1] * cells[3]))


def test_cells_are_those_of_the_product_of_both_designs():
    releases = released(np.random.default_rng(1), 5000)
    counts = np.bincount(3 * releases[0].values + releases[1].values, minlength=6) / 5000
    inverse = np.linalg.inv(BOTH)
    table = ldp.frequencies(releases)
    np.testing.assert_allclose(table.estimate, counts @ inverse, rtol=1e-10)
    covariance = inverse.T @ (np.diag(counts) - np.outer(counts, counts)) @ inverse / 5000
    np.testing.assert_allclose(table.covariance, covariance, rtol=1e-9, atol=1e-18)
    assert table.names == ["0, 0", "0, 1", "0, 2", "1, 0", "1, 1", "1, 2"]
    np.testing.assert_allclose(ldp.frequencies(releases, "mle").estimate, table.estimate, atol=1e-5)
    assert "someone with one record in each is promised epsilon = 3.179" in table.privacy  # log 3 + log 8
    margin = table.contrast({"1, 0": 1, "1, 1": 1, "1, 2": 1})
    alone = ldp.frequencies(releases[0])
    np.testing.assert_allclose([margin.estimate, margin.standard_error], [alone.estimate[1], alone.standard_error[1]])


def test_functions_have_the_errors_of_the_delta_method():
    table = ldp.frequencies(released(np.random.default_rng(2), 5000))
    p = table.estimate
    gradient = np.array([1 / p[0], -1 / p[1], 0, -1 / p[3], 1 / p[4], 0])
    odds = table.transform(log_odds, ["log odds ratio"])
    np.testing.assert_allclose(odds.estimate, [np.log(p[0] * p[4] / (p[1] * p[3]))], rtol=1e-12)
    np.testing.assert_allclose(odds.standard_error, [np.sqrt(gradient @ table.covariance @ gradient)], rtol=1e-10)
    assert odds.privacy == table.privacy and "log odds ratio" in odds.summary()
    identity = table.transform(lambda cells: cells)
    np.testing.assert_allclose(identity.covariance, table.covariance, rtol=1e-12)
    assert identity.names[5] == "f[5]"
    for function, message in (
        (lambda c: jnp.outer(c, c), "a number or a vector"),
        (lambda c: c[:2], "with a name each"),
        (lambda c: {"a": c[0]}, "a number or a vector"),
    ):
        with pytest.raises(ValueError, match=message):
            table.transform(function, ["a"])
    with pytest.raises(ValueError, match="no standard errors"):
        ldp.frequencies(released(np.random.default_rng(2), 100), "projection").transform(log_odds)


def test_the_correlation_of_two_answers_is_the_published_correction_for_attenuation():
    """Under Warner's design, the covariance of answers is (2 p − 1) (2 q − 1) times that of the truth (Fox and Tracy,
    1984).
    """
    rng = np.random.default_rng(6)
    truth = rng.random((3000, 1)) < 0.4
    codes = (truth ^ (rng.random((3000, 2)) < [0.35, 0.3])).astype(int)  # two traits that go together, as answered
    releases = [ldp.Release(z, ldp.RandomizedResponse(truth=p)) for z, p in zip(codes.T, (0.75, 0.8), strict=True)]
    a, b = (ldp.frequencies(release).estimate[1] for release in releases)
    expected = np.cov(codes.T, bias=True)[0, 1] / (0.5 * 0.6) / np.sqrt(a * (1 - a) * b * (1 - b))

    def phi(p):
        a, b = p[2] + p[3], p[1] + p[3]
        return (p[3] - a * b) / jnp.sqrt(a * (1 - a) * b * (1 - b))

    np.testing.assert_allclose(ldp.frequencies(releases).transform(phi).estimate, [expected], rtol=1e-10)


def test_functions_of_what_has_no_error_have_none():
    """Maximum likelihood sets a share to 0, whose error is NaN; functions of the others keep theirs."""
    release = ldp.Release([0] * 40 + [1] * 45 + [2] * 5, ldp.RandomizedResponse(1.0, 3))
    shares = ldp.frequencies(release, "mle")
    errors = shares.transform(lambda p: jnp.stack([p[0] - p[1], p[2] + p[0], p[1]])).standard_error
    assert shares.estimate[2] == 0 and np.isnan(errors).tolist() == [False, True, False]
    assert errors[2] == pytest.approx(shares.standard_error[1])


@pytest.mark.slow
def test_intervals_of_an_odds_ratio_cover_it():
    """400 tables of 20,000 people: 95 % intervals in the binomial's band."""
    truth, held = np.log(CELLS[0] * CELLS[4] / (CELLS[1] * CELLS[3])), 0
    for seed in range(400):
        odds = ldp.frequencies(released(np.random.default_rng([3, seed]), 20_000)).transform(log_odds)
        low, high = odds.interval()
        held += int(low[0] < truth < high[0])
    low, high = stats.binom.interval(1 - 1e-4, 400, 0.95)
    assert low <= held <= high, held


@pytest.mark.slow
def test_transform_serves_other_estimates():
    release = ldp.Release([-3, -1, 1, 2, 2, 3, 4, 8] * 9, ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=4))
    mean = ldp.m_estimate(ldp.losses.squared(features=()), release, "sl")
    log_mean = mean.transform(lambda theta: jnp.log(theta[0]))
    np.testing.assert_allclose(log_mean.standard_error, mean.standard_error / mean.params, rtol=1e-10)


@pytest.mark.parametrize(
    "other",
    [
        ldp.Release([0, 1], Crosswise(0.2)),
        ldp.Release([0, 1, 1], Crosswise(np.array([0.2, 0.3, 0.2]))),
        ldp.Release(np.eye(3, dtype=int), ldp.OptimalUnaryEncoding(1.0, 3)),
        np.array([0, 1, 1]),
    ],
)
def test_other_answers_are_refused(other):
    with pytest.raises(TypeError, match="data must be releases of codes of equally many people"):
        ldp.frequencies([ldp.Release([0, 1, 1], Crosswise(0.2)), other])


def test_a_table_has_a_domain_and_a_sampling_design():
    releases = released(np.random.default_rng(5), 500)
    inside = np.arange(500) % 5 > 0
    parts = [ldp.Release(part.values[inside], part.mechanism) for part in releases]
    part = ldp.frequencies(releases, domain=inside)
    np.testing.assert_allclose(part.estimate, ldp.frequencies(parts).estimate, rtol=1e-9)
    assert part.names[1] == "0, 1" and jax.config.jax_enable_x64 is False
