"""Staircase noise: density, sampler, moments, tail and trade-off curve against sums over its steps, by definition.

Statistical tests use fixed seeds and fail by chance with probability 1e-4 each when a seed is changed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from ldpbayes.noise import Staircase

pytestmark = pytest.mark.usefixtures("x64")
ERROR_RATE = 1e-4
LAWS = [(3.0, 0.3, 0.45), (0.5, 1.0, 0.2), (2.0, 2.5, 1.0), (1.0, 8.0, Staircase.optimal_gamma(8.0)), (1.0, 1.0, 1e-9)]
laws = pytest.mark.parametrize("parameters", LAWS, ids=str)


def stairs(step, epsilon, gamma):
    """Edges ≥ 0 of the steps and the levels between them, as [GV] write them down, as far as exp(−75)."""
    whole = np.arange(np.ceil(75 / epsilon))
    peak = (1 - np.exp(-epsilon)) / (2 * step * (gamma + np.exp(-epsilon) * (1 - gamma)))
    edges = np.stack([whole, whole + gamma], axis=-1).ravel() * step
    levels = np.stack([np.exp(-whole * epsilon), np.exp(-(whole + 1) * epsilon)], axis=-1).ravel() * peak
    return np.append(edges, len(whole) * step), levels


@jax.jit
def variance(noise):
    return noise.variance


@functools.partial(jax.jit, static_argnums=(2, 3))
def samples(noise, key, shape, dtype):
    return noise.sample(key, shape, dtype)


@jax.jit
def log_densities(noise, values):
    return noise.log_prob(values)


def log_density(noise, values):
    """Of numbers, in chunks of one shape, so that they are compiled once."""
    padded = np.resize(values, (-(-len(values) // 256), 256, 1))
    return np.concatenate([log_densities(noise, part) for part in padded])[: len(values)]


@laws
def test_density_is_the_papers_and_integrates_to_one(parameters):
    edges, levels = stairs(*parameters)
    middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    for side in (1, -1):
        got = log_density(Staircase(*parameters), side * middles)
        here = widths > 0  # γ = 1 leaves no second half
        # logs down to −75, each from a handful of roundings
        np.testing.assert_allclose(got[here], np.log(levels[here]), rtol=1e-13, atol=1e-13)
    assert 2 * np.sum(levels * widths) == pytest.approx(1, abs=1e-13)
    one, both = (log_densities(Staircase(*parameters), np.full(columns, 0.1)) for columns in (1, 2))
    assert both == 2 * one


@laws
def test_standard_deviation_is_that_of_the_density(parameters):
    edges, levels = stairs(*parameters)
    noise = Staircase(*parameters)
    # terms are positive, so that each sum has the precision of its terms
    second = 2 * np.sum(levels * np.diff(edges**3) / 3)
    assert noise.variance == pytest.approx(second, rel=1e-12)
    assert variance(noise) == pytest.approx(second, rel=1e-12)


@laws
def test_tail_is_that_of_the_density_and_falls_alike_over_every_step(parameters):
    edges, levels = stairs(*parameters)
    noise = Staircase(*parameters)
    points = np.linspace(0, 20 / parameters[1], 101) * parameters[0]
    beyond = np.diff(np.maximum(edges, points[:, None]), axis=-1) @ levels
    np.testing.assert_allclose(noise.depth(points / noise.standard_deviation), -np.log2(beyond), rtol=0, atol=1e-10)
    further = noise.depth((points + noise.period) / noise.standard_deviation) - noise.depth(
        points / noise.standard_deviation
    )
    np.testing.assert_allclose(further, parameters[1] / np.log(2), rtol=1e-6)


@laws
def test_samples_follow_the_density(parameters):
    edges, levels = stairs(*parameters)
    below = np.append(0, np.cumsum(levels * np.diff(edges)))
    noise = Staircase(*parameters)

    def cdf(x):
        return 0.5 + np.sign(x) * np.interp(np.abs(x), edges, below)

    for dtype in (jnp.float32, jnp.float64):
        drawn = samples(noise, jax.random.key(3), (20_000, 1), dtype)
        assert drawn.dtype == dtype
        assert stats.kstest(np.asarray(drawn[:, 0], float), cdf).pvalue > ERROR_RATE


def test_records_have_noise_of_their_own():
    step, epsilon, gamma = np.array([[1.0, 2.0, 5.0], [0.2, 1.0, 3.0], [0.5, 0.3, 0.9]])
    noise = Staircase(step, epsilon, gamma)
    assert noise.batch_shape == (3,)
    drawn = np.asarray(samples(noise, jax.random.key(4), (40_000, 3, 1), jnp.float64))[..., 0]
    at = drawn[:2, :, None]
    laws = [Staircase(*law) for law in zip(step, epsilon, gamma, strict=True)]
    alone = [log_densities(law, at[:, j]) for j, law in enumerate(laws)]
    np.testing.assert_allclose(log_densities(noise, at), np.stack(alone, axis=-1), rtol=1e-14)
    # squares have a relative standard deviation below 3 each: five standard errors of the mean, for three laws
    np.testing.assert_allclose(np.mean(drawn**2, axis=0), noise.variance, rtol=5 * 3 / np.sqrt(len(drawn)))


def polygon(noise, apart):
    """Levels and type II errors of the likelihood ratio tests between noise and noise that is shifted, exactly."""
    edges, _ = stairs(noise.step, noise.epsilon, noise.gamma)
    jumps = np.concatenate([-edges[::-1], edges])
    cells = np.unique(np.concatenate([jumps, jumps + apart]))
    middles, widths = (cells[1:] + cells[:-1]) / 2, np.diff(cells)
    # a cell that only rounding has made has next to no mass, whatever its ratio
    null, other = (np.exp(log_density(noise, middles - at)) * widths for at in (0, apart))
    order = np.argsort(-other / null)
    return np.cumsum(null[order]), 1 - np.cumsum(other[order])


@pytest.mark.parametrize("apart", [0.15, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [0.1, 0.4, 0.5, 0.75, 1.0])
def test_best_tests_of_inputs_a_step_or_less_apart_lie_on_the_stated_curve(gamma, apart):
    noise = Staircase(2.0, 0.8, gamma)
    alpha, beta = polygon(noise, 2.0 * apart)
    curve = noise.tradeoff(np.array([2.0 * apart]))
    alpha = np.clip(alpha, 0, 1)
    # some hundreds of masses are added up
    np.testing.assert_allclose(curve(alpha), np.clip(beta, 0, 1), atol=1e-12)
    assert np.ptp(alpha) > 0.99
    for epsilon in (0.0, 0.3, 0.8, 1.0):
        assert curve.delta(epsilon) == pytest.approx(np.max(1 - beta - np.exp(epsilon) * alpha, initial=0), abs=1e-12)


def test_curve_is_stated_only_where_it_is_exact():
    noise = Staircase(2.0, 0.8, 0.4)
    for distance in ([2.1], [1.0, 1.0], [[1.0], [3.0]]):
        with pytest.raises(ValueError, match="differ by at most the step"):
            noise.tradeoff(np.array(distance))
    several = Staircase(np.array([2.0, 4.0]), np.array([0.8, 1.6]), 0.4).tradeoff(np.array([[2.0], [1.0]]))
    one = Staircase(4.0, 1.6, 0.4).tradeoff(np.array([1.0]))
    assert several.delta(0.3)[1] == one.delta(0.3)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0, 20.0, 60.0])
def test_optimal_gamma_has_the_smallest_variance(epsilon):
    gamma = Staircase.optimal_gamma(epsilon)
    found = optimize.minimize_scalar(
        lambda t: np.log(Staircase(1.0, epsilon, np.exp(t)).variance),
        bounds=(np.log(gamma) - 1, min(np.log(gamma) + 1, 0)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    # the variance is flat there: its rounding, 1e-15, leaves half the digits of its argument, of which small budgets
    # lose some more, the variance being nearly the same for all
    assert found.x == pytest.approx(np.log(gamma), abs=1e-6 / min(epsilon, 1))
    assert Staircase(1.0, epsilon, gamma).variance <= np.exp(found.fun) * (1 + 1e-13)


def test_optimal_gamma_is_accurate_for_every_budget():
    assert Staircase.optimal_gamma(1e-9) == pytest.approx(0.5, abs=1e-9)
    assert type(Staircase.optimal_gamma(1.0)) is float and Staircase.optimal_gamma(np.array([1.0, 2.0])).shape == (2,)
    # γ tends to exp(−ε/3)/2^(1/3)
    assert Staircase.optimal_gamma(300.0) == pytest.approx(np.exp(-100) / 2 ** (1 / 3), rel=1e-13)
    b = np.exp(-1.0)
    papers = -b / (1 - b) + np.cbrt(b - 2 * b**2 + 2 * b**4 - b**5) / (2 ** (1 / 3) * (1 - b) ** 2)
    assert Staircase.optimal_gamma(1.0) == pytest.approx(papers, rel=1e-14)
    assert jax.jit(Staircase.optimal_gamma)(1.0) == pytest.approx(papers, rel=1e-14)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((0.0, 1.0, 0.5), "step must be positive and finite, got 0.0"),
        ((1.0, np.inf, 0.5), "epsilon must be positive and finite, got inf"),
        ((1.0, 1.0, 0.0), r"gamma must be in \(0, 1\], got 0.0"),
        ((1.0, 1.0, 1.5), r"gamma must be in \(0, 1\], got 1.5"),
        ((1.0, 1.0, np.nan), r"gamma must be in \(0, 1\], got nan"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        Staircase(*parameters)
