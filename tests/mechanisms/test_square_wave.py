"""The square wave mechanism: its half-width, and that it is `RPWithPrior` of that half-width.

Statistical tests fix their seeds and fail by chance with probability 1e-6 each when a seed is changed.
"""

import dataclasses

import jax
import mpmath
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms import SquareWaveMechanism, mechanism_from_spec
from tests.programs import call, randomize

pytestmark = pytest.mark.usefixtures("x64")

LOWER, UPPER = -1.0, 3.0


@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 0.3, 1.0, 4.0, 12.0, 30.0])
def test_the_half_width_is_the_papers_and_maximises_its_bound_on_mutual_information(epsilon):
    """The bound is log(2b + 1) less the entropy of z given x, whatever x is; 60 digits."""
    with mpmath.workdps(60):
        ratio = mpmath.exp(epsilon)
        width = (epsilon * ratio - ratio + 1) / (2 * ratio * (ratio - 1 - epsilon))

        def bound(b):
            high, low = ratio / (2 * b * ratio + 1), 1 / (2 * b * ratio + 1)
            return mpmath.log(2 * b + 1) + 2 * b * high * mpmath.log(high) + low * mpmath.log(low)

        slope = [mpmath.diff(bound, width * factor) for factor in (0.9, 1, 1.1)]
        assert slope[0] > 1e20 * abs(slope[1]) and slope[2] < -1e20 * abs(slope[1])
        assert SquareWaveMechanism(epsilon, 0, 1).half_width == pytest.approx(float(width), rel=1e-12)


def test_it_is_the_mixture_of_rp_with_prior_of_this_half_width():
    epsilon = 1.3
    mechanism = SquareWaveMechanism(epsilon, LOWER, UPPER)
    b = mechanism.half_width / (UPPER - LOWER)
    twin = ldp.RPWithPrior(epsilon, (LOWER, UPPER), mechanism.half_width)
    z, x = np.linspace(LOWER - 5, UPPER + 5, 301), np.array([-4.0, LOWER, 0.3, UPPER, 9.0])[:, None]
    log_density = call("log_prob", mechanism, z, x)
    density = np.exp(log_density)
    scaled, place = (z - LOWER) / (UPPER - LOWER), (np.clip(x, LOWER, UPPER) - LOWER) / (UPPER - LOWER)
    level = np.where(np.abs(scaled - place) <= b, np.exp(epsilon), 1.0) / (2 * b * np.exp(epsilon) + 1)
    inside = (scaled >= -b) & (scaled <= 1 + b)
    np.testing.assert_allclose(density, np.where(inside, level, 0.0) / (UPPER - LOWER), rtol=1e-12)
    # two programs, which may round differently
    np.testing.assert_allclose(log_density, call("log_prob", twin, z, x), rtol=1e-14)
    np.testing.assert_allclose(randomize(mechanism, x[:, 0]), randomize(twin, x[:, 0]), rtol=1e-14)
    assert mechanism.guarantee.unit == "record" and mechanism.guarantee.epsilon(0.0) == pytest.approx(epsilon)
    level = np.linspace(0, 1, 11)
    assert np.array_equal(mechanism.guarantee.tradeoff(level), twin.guarantee.tradeoff(level))


def test_draws_follow_the_density():
    """Kolmogorov-Smirnov at 1e-6 a record."""
    mechanism = SquareWaveMechanism(1.0, LOWER, UPPER)
    half = mechanism.half_width
    for place, x in enumerate((-4.0, 0.3, 2.9)):
        z = randomize(mechanism, np.full(20_000, x), seed=place)
        at = np.clip(x, LOWER, UPPER)
        cuts = np.unique([LOWER - half, at - half, at + half, UPPER + half])
        mass = np.exp(call("log_prob", mechanism, (cuts[1:] + cuts[:-1]) / 2, x)) * np.diff(cuts)
        cdf = np.append(0, np.cumsum(mass))
        assert cdf[-1] == pytest.approx(1, rel=1e-12)
        assert stats.kstest(z, lambda v, cuts=cuts, cdf=cdf: np.interp(v, cuts, cdf)).pvalue > 1e-6


def test_likelihood_is_the_probability_of_the_neighbourhood_times_the_levels():
    mechanism = SquareWaveMechanism(2.0, 0.0, 1.0)
    z, law, half = np.array([-0.1, 0.35, 0.9, 1.08]), stats.norm(0.4, 0.3), mechanism.half_width
    # records beyond a bound are taken to be at the bound
    above, below = np.where(z + half >= 1, np.inf, z + half), np.where(z - half <= 0, -np.inf, z - half)
    near = law.cdf(above) - law.cdf(below)
    low = 1 / (2 * half * np.exp(2.0) + 1)
    expected = np.log(low + low * np.expm1(2.0) * near)
    for method in ("closed_form", "channel"):
        # NumPy builds a channel where JAX traces neither the mechanism nor the values
        likelihood = jax.jit(lambda law, m=method: ldp.Privatized(law, mechanism, method=m).log_prob(z))(
            dist.Normal(0.4, 0.3)
        )
        np.testing.assert_allclose(likelihood, expected, atol=1e-8)


@pytest.mark.slow
def test_sketch_and_records_have_one_likelihood_and_fit_finds_the_law():
    """The posterior mean is within five posterior standard deviations of the truth (6e-7)."""
    mechanism = SquareWaveMechanism(2.0, 0.0, 1.0)
    x = np.random.default_rng(3).normal(0.6, 0.2, 10_000)
    release = ldp.Release(randomize(mechanism, x, seed=3), mechanism)

    def model(data):
        mu = numpyro.sample("mu", dist.Normal(0.5, 1))
        ldp.observe("z", dist.Normal(mu, 0.2), data)

    sketch = release.sketch()
    laws = [dist.Normal(0.6, 0.2), dist.Normal(0.61, 0.19)]
    records = [np.sum(ldp.Privatized(law, mechanism).log_prob(release.values)) for law in laws]
    nodes = [sketch.weights @ law_of_nodes(sketch, law).log_prob(sketch.nodes) for law in laws]
    np.testing.assert_allclose(np.diff(nodes), np.diff(records), atol=1e-6)
    mean = ldp.fit(model, sketch, seed=0, progress_bar=False)["posterior"]["mu"].values
    assert abs(mean.mean() - 0.6) < 5 * mean.std()


def test_parameters_may_be_personal_budgets_or_arguments_and_specs_make_the_mechanism():
    mechanism = SquareWaveMechanism(1.0, LOWER, UPPER)
    assert mechanism.spec() == {"mechanism": "square_wave", "epsilon": 1.0, "lower": LOWER, "upper": UPPER}
    assert mechanism_from_spec(mechanism.spec()) == mechanism
    budgets = np.array([0.5, 1.0, 2.0])
    personal = SquareWaveMechanism(budgets, LOWER, UPPER)
    each = [call("log_prob", SquareWaveMechanism(epsilon, LOWER, UPPER), 0.7, 0.4) for epsilon in budgets]
    np.testing.assert_allclose(call("log_prob", personal, np.full(3, 0.7), 0.4), each, rtol=1e-14)
    of_budget = jax.jit(jax.vmap(lambda e: dataclasses.replace(mechanism, epsilon=e).log_prob(0.7, 0.4)))
    np.testing.assert_allclose(of_budget(budgets), each, rtol=1e-14)
    assert "SquareWaveMechanism" not in ldp.__all__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0, 1), "epsilon must be positive and at most 30"),
        ((31.0, 0, 1), "epsilon must be positive and at most 30"),
        ((np.nan, 0, 1), "epsilon must be positive"),
        ((1.0, 1, 0), "lower must be below upper"),
        ((1.0, -np.inf, 1), "lower must be a finite number"),
        ((1.0, [0, 1], 2), "lower must be a finite number"),
    ],
)
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SquareWaveMechanism(*arguments)


def test_values_beyond_the_half_width_are_refused():
    mechanism = SquareWaveMechanism(1.0, 0, 1)
    with pytest.raises(ValueError, match="SquareWaveMechanism releases numbers from"):
        ldp.Release([0.2, 1.4], mechanism)
    ends = np.array([-mechanism.half_width, 1 + mechanism.half_width])
    np.testing.assert_array_equal(mechanism.validated(ends.astype(np.float32)), ends)
