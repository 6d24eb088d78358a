"""Noise given by its density: its law, draws, guarantee, likelihood and sketch against closed forms and SciPy.

Statistical tests fix their seeds and fail by chance with probability 1e-6 each when a seed is changed.
"""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy import stats as densities
from scipy import integrate, stats
from scipy.optimize import brentq

import ldpbayes as ldp
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms import AdditiveMechanism
from ldpbayes.noise import FromDensity
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, LaplaceTradeoff
from tests.programs import call, evaluate, log_prob, randomize

pytestmark = pytest.mark.usefixtures("x64")


def student(t):
    return densities.t.logpdf(t, 3.0)


def uniform(t):
    return jnp.where(jnp.abs(t) <= 1, -math.log(2.0), -jnp.inf)


def skewed(t):
    """An exponential law, moved to mean 0."""
    return jnp.where(t >= -1, -(t + 1), -jnp.inf)


def two_modes(t):
    return jnp.logaddexp(densities.norm.logpdf(t, -4.0, 0.5), densities.norm.logpdf(t, 4.0, 0.5)) - math.log(2.0)


CAUCHY = partial(FromDensity, densities.cauchy.logpdf, 2.0)
CASES = {  # how the noise is made, and its law
    "cauchy": (CAUCHY, stats.cauchy(0, 2)),
    "student": (partial(FromDensity, student, 0.5), stats.t(3, 0, 0.5)),
    "normal": (partial(FromDensity, densities.norm.logpdf, 3.0), stats.norm(0, 3)),
    "laplace": (partial(FromDensity, densities.laplace.logpdf, 1.5, breaks=[0.0]), stats.laplace(0, 1.5)),
    "uniform": (partial(FromDensity, uniform, 2.0, breaks=(1.0, -1.0)), stats.uniform(-2, 4)),
    "skewed": (partial(FromDensity, skewed, 1.0, breaks=(-1,)), stats.expon(-1)),
}


def density_and_draws(noise, at):
    return noise.log_prob(at[:, None]), noise.sample(jax.random.key(0), (50_000, 1), float)[:, 0]


@pytest.mark.parametrize("name", CASES)
def test_density_draws_and_tails_are_those_of_the_law(name):
    """Kolmogorov-Smirnov at 1e-6 a law."""
    make, law = CASES[name]
    noise = make()
    at = np.linspace(-6, 6, 101) + 0.01
    log_density, draws = evaluate(density_and_draws, noise, at)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(log_density, law.logpdf(at), atol=1e-12)
    assert stats.kstest(draws, law.cdf).pvalue > 1e-6
    assert law.cdf(-noise.reach) + law.sf(noise.reach) < 1e-31
    expected = law.std() if np.isfinite(law.std()) and name != "cauchy" else np.inf
    assert noise.standard_deviation == pytest.approx(expected, rel=1e-6)
    if name in ("student", "normal", "laplace"):
        distance = np.array([0.5, 2.0, 5.0])
        np.testing.assert_allclose(noise.depth(distance), -np.log2(law.sf(distance * law.std())), rtol=2e-3)


def many_draws(noise):
    return noise.sample(jax.random.key(1), (1_000_000,), float)


def test_draws_reach_far_tails():
    """Of 10⁶ Cauchy draws the share beyond 1000 scales is 2/π/1000, within five standard errors (6e-7)."""
    draws = evaluate(many_draws, CAUCHY())
    share, expected = np.mean(np.abs(draws) > 2000), 2 * stats.cauchy.sf(1000)
    assert abs(share - expected) < 5 * np.sqrt(expected / 1_000_000)


def delta_by_quadrature(law, distance, epsilon):
    """∫ (f − e^ε f_d)₊, piece by piece between the zeros of the integrand."""
    grid = np.sort(np.concatenate([np.sinh(np.linspace(-40, 40, 8001)), distance + np.sinh(np.linspace(-5, 5, 4001))]))

    def excess(t):
        return law.pdf(t) - np.exp(epsilon) * law.pdf(t - distance)

    sign = np.sign(excess(grid))
    ends = [np.sort([a, b]) for a, b, s, r in zip(grid, grid[1:], sign, sign[1:], strict=False) if s != r]
    roots = [-np.inf, *(brentq(excess, a, b) for a, b in ends), np.inf]
    total = 0.0
    for low, high in itertools.pairwise(roots):
        here = law.cdf(high) - law.cdf(low) - np.exp(epsilon) * (law.cdf(high - distance) - law.cdf(low - distance))
        total += max(here, 0.0)
    return total


@pytest.mark.parametrize(
    ("name", "distance"),
    [
        ("cauchy", 10.0),
        pytest.param("cauchy", 0.4, marks=pytest.mark.slow),
        pytest.param("student", 1.0, marks=pytest.mark.slow),
    ],
)
def test_the_guarantee_of_heavy_tails_is_that_of_the_worst_pair_and_never_less(name, distance):
    make, law = CASES[name]
    noise = make()
    guarantee = AdditiveMechanism(noise, 0.0, distance).guarantee
    budgets = np.linspace(0, 0.9 * float(guarantee.epsilon(0.0)), 6)
    exact = np.array([delta_by_quadrature(law, distance, e) for e in budgets])
    stated = guarantee.delta(budgets)
    assert np.all(stated >= exact - 1e-9)
    np.testing.assert_allclose(stated, exact, atol=2e-4)


def test_the_pure_budget_of_cauchy_noise_is_its_closed_form():
    """The largest ratio of densities d scales apart is (d² + 2 + √(d⁴ + 4d²))/2."""
    for d in (0.2, 5.0):
        exact = np.log((d**2 + 2 + np.sqrt(d**4 + 4 * d**2)) / 2)
        stated = float(AdditiveMechanism(CAUCHY(), 0.0, 2 * d).guarantee.epsilon(0.0))
        assert exact <= stated < exact * 1.001
    text = AdditiveMechanism(CAUCHY(), 0.0, 10.0).guarantee.statement()
    assert text.startswith("Each record is protected by local differential privacy with epsilon = 3.295 and delta = 0")


@pytest.mark.parametrize(
    ("name", "curve"), [("normal", GaussianTradeoff(2.0 / 3)), ("laplace", LaplaceTradeoff(2.0 / 1.5))]
)
def test_the_guarantee_of_known_laws_is_their_curve_and_never_less(name, curve):
    guarantee = AdditiveMechanism(CASES[name][0](), -1.0, 1.0).guarantee
    budgets, level = np.linspace(0, 3, 13), np.linspace(0, 1, 21)
    assert np.all(guarantee.delta(budgets) >= curve.delta(budgets) - 1e-9)
    np.testing.assert_allclose(guarantee.delta(budgets), curve.delta(budgets), atol=1e-4)
    assert np.all(guarantee.tradeoff(level) <= curve(level) + 1e-9)
    np.testing.assert_allclose(guarantee.tradeoff(level), curve(level), atol=1e-3)
    pure = float(guarantee.epsilon(0.0))
    assert (curve.epsilon(0.0) == pure == np.inf) or curve.epsilon(0.0) <= pure < curve.epsilon(0.0) * 1.001
    assert curve.epsilon(1e-6) <= guarantee.epsilon(1e-6) < curve.epsilon(1e-6) * 1.01


TEETH = np.arange(-4.0, 5.0)


def narrow_teeth(t):
    """Nine normal laws a scale apart, so that inputs a whole number of scales apart are nearly alike."""
    parts = densities.norm.logpdf(t[..., None], TEETH, 0.1)
    return jax.scipy.special.logsumexp(parts, axis=-1) - math.log(len(TEETH))


def steps(t):
    """A uniform law on the intervals from k − 1/8 to k + 1/8, for k from −4 to 4."""
    inside = (jnp.abs(t - jnp.round(t)) <= 0.125) & (jnp.abs(t) < 4.5)
    return jnp.where(inside, math.log(4 / 9), -jnp.inf)


def lopsided(t):
    """Modes of different widths at uneven places, with mean zero."""
    places, widths, shares = jnp.array([-3.0, -1.1, 2.2]), jnp.array([0.2, 0.5, 0.3]), jnp.array([0.35, 0.2, 0.45])
    places = places - shares @ places
    return jax.scipy.special.logsumexp(densities.norm.logpdf(t[..., None], places, widths), b=shares, axis=-1)


MANY_MODES = {
    "two": (two_modes, (), 8.0),
    "comb": (narrow_teeth, (), 4.0),
    "comb, near": (narrow_teeth, (), 1.0),
    "steps": (steps, tuple(np.concatenate([TEETH - 0.125, TEETH + 0.125])), 3.0),
    "lopsided": (lopsided, (), 2.0),
}


@pytest.mark.parametrize("name", MANY_MODES)
def test_no_distance_of_inputs_is_worse_than_what_is_stated(name):
    """Sums on a grid of 2^-11 scales, over distances of 2^-6 scales. Jumps are on the grid, and where p = exp(ε) q, of
    slopes below 60 at 20 places at most, a sum is wrong by 2^-22 · 60 · 20/8 = 4e-5 at most.
    """
    log_density, breaks, widest = MANY_MODES[name]
    step = 2.0**-11
    with np.errstate(divide="ignore"):
        mass = step * np.exp(evaluate(log_density, np.arange(-8.0, 8.0, step) + step / 2))
    guarantee = AdditiveMechanism(FromDensity(log_density, 2.0, breaks), 1.0, 1.0 + 2.0 * widest).guarantee
    for epsilon in (0.0, 0.4, 1.5, 3.0):
        worst = 0.0
        for shift in range(32, int(widest / step) + 1, 32):
            near, far = np.append(mass, np.zeros(shift)), np.append(np.zeros(shift), mass)
            both = [np.maximum(p - np.exp(epsilon) * q, 0.0).sum() for p, q in ((near, far), (far, near))]
            worst = max(worst, *both)
        # panels of narrow teeth state up to a hundredth more
        assert worst - 4e-5 <= guarantee.delta(epsilon) <= worst + 0.01, (epsilon, worst)
    text = guarantee.statement()
    given_away = text.startswith("No record is protected")  # as by steps, of which some are told with certainty
    assert given_away or text.endswith("no distance of two inputs is known to be worse.")
    assert given_away or name != "steps"


def test_noise_with_jumps_gives_inputs_away():
    guarantee = AdditiveMechanism(CASES["uniform"][0](), 0.0, 1.0).guarantee
    assert guarantee.delta(0.0) == pytest.approx(0.25) == guarantee.delta(20.0) and np.isinf(guarantee.epsilon(0.2))
    assert guarantee.epsilon(0.2501) < 1e-3
    personal = AdditiveMechanism(FromDensity(densities.cauchy.logpdf, [1.0, 2.0]), 0.0, 1.0).guarantee
    worst = AdditiveMechanism(FromDensity(densities.cauchy.logpdf, 1.0), 0.0, 1.0).guarantee
    assert personal.delta(0.1) == worst.delta(0.1)


def test_the_channel_integrates_the_density():
    z = np.array([-1e6, -3.0, 4.4, 17.0, 1e9])
    for name in ("cauchy", "uniform"):
        make, law = CASES[name]
        mechanism = AdditiveMechanism(make(), 0.0, 10.0)
        base = stats.norm(4, 2)

        def density(v, law=law, base=base):
            inner = integrate.quad(
                lambda x: base.pdf(x) * law.pdf(v - x), 0, 10, points=[v - 2, v + 2] if 0 < v < 10 else None
            )
            return inner[0] + base.cdf(0) * law.pdf(v) + base.sf(10) * law.pdf(v - 10)

        expected = np.array([density(v) for v in z])
        here = expected > 0
        ours = np.exp(log_prob(dist.Normal(4.0, 2.0), mechanism, z[here]))
        np.testing.assert_allclose(ours, expected[here], rtol=1e-6)


def of_nodes(sketch, law):
    return law_of_nodes(sketch, law).log_prob(sketch.nodes)


def test_a_sketch_of_heavy_tails_has_the_likelihood_of_its_records():
    mechanism = AdditiveMechanism(CAUCHY(), 0.0, 10.0)
    x = np.random.default_rng(0).normal(4, 2, 3000)
    release = ldp.Release(randomize(mechanism, x), mechanism)
    sketch = release.sketch()
    assert len(sketch.nodes) < 5000
    laws = [dist.Normal(mu, 2.0) for mu in (3.5, 4.5)]
    records = [log_prob(law, mechanism, release.values).sum() for law in laws]
    nodes = [sketch.weights @ evaluate(of_nodes, sketch, law) for law in laws]
    np.testing.assert_allclose(nodes, records, atol=1e-4)


def dented(t):
    """A Cauchy law in which one half is denser; it has a jump at 0."""
    return densities.cauchy.logpdf(t) + jnp.where(t > 0, math.log(1.5), math.log(0.5))


def test_panels_of_heavy_tails_are_cut_where_the_density_jumps():
    """At 0.7 the density is cut in two halves, so that the law of released numbers jumps 0.7 beyond either bound."""

    def moved(t):
        return dented(t - 0.7)

    mechanism = AdditiveMechanism(FromDensity(moved, 2.0, breaks=(0.7,)), 0.0, 10.0)
    edges = np.array(ldp.Release([1.0, 2.0], mechanism).sketch().edges)
    assert np.abs(edges - 1.4).min() < 1e-9 and np.abs(edges - 11.4).min() < 1e-9 and np.diff(edges).min() > 1e-3


@pytest.mark.slow
def test_fit_certifies_a_sketch_of_cauchy_noise_and_finds_the_law():
    """The posterior mean is within five posterior standard deviations of the truth (6e-7)."""
    mechanism = AdditiveMechanism(CAUCHY(), 0.0, 10.0)
    x = np.random.default_rng(2).normal(4, 2, 20_000)
    release = ldp.Release(randomize(mechanism, x, 2), mechanism)

    def model(data):
        mu = numpyro.sample("mu", dist.Normal(5, 5))
        ldp.observe("z", dist.Normal(mu, 2.0), data)

    result = ldp.fit(model, release.sketch(), seed=0, progress_bar=False)
    mu = result["posterior"]["mu"].values
    assert abs(mu.mean() - 4) < 5 * mu.std()
    assert '"error_nats"' in result.attrs["certificates"] and "epsilon = 3.295" in result.attrs["privacy"]


def released_zeros(scale):
    mechanism = AdditiveMechanism(FromDensity(densities.cauchy.logpdf, scale), 0.0, 1.0)
    return mechanism.randomize(jax.random.key(0), jnp.zeros(5))


def mapped_at_one(noises):
    return jax.vmap(lambda noise: noise.log_prob(jnp.ones(1)))(noises)


def test_scales_may_be_personal_or_arguments_of_compiled_functions():
    personal = AdditiveMechanism(FromDensity(densities.cauchy.logpdf, [1.0, 2.0, 4.0]), 0.0, 1.0)
    z = np.array([0.3, -5.0, 100.0])
    each = [stats.cauchy(0.5, s).logpdf(v) for s, v in zip((1.0, 2.0, 4.0), z, strict=True)]
    np.testing.assert_allclose(call("log_prob", personal, z, 0.5), each, rtol=1e-12)
    np.testing.assert_allclose(evaluate(released_zeros, 2.0), 2 * evaluate(released_zeros, 1.0), rtol=1e-12)
    mapped = evaluate(mapped_at_one, FromDensity(densities.cauchy.logpdf, [1.0, 2.0]))
    np.testing.assert_allclose(mapped, stats.cauchy(0, [1, 2]).logpdf(1))


def test_moments_say_that_there_is_no_variance_and_specs_name_a_function_that_no_file_holds():
    mechanism = AdditiveMechanism(CAUCHY(), 0.0, 1.0)
    assert np.isinf(mechanism.moments(0.5)[1])
    with pytest.raises(ValueError, match="the noise has no finite variance"):
        jax.jit(lambda m: m.unbiased(0.3))(mechanism)
    assert call("unbiased", AdditiveMechanism(CASES["student"][0](), 0.0, 1.0), 0.3) == 0.3
    assert ldp.Release([1e12, 0.2], mechanism).doubts == ()
    spec = mechanism.spec()
    assert spec["noise"] == {"law": "FromDensity", "log_density": "logpdf", "scale": 2.0, "breaks": []}
    with pytest.raises(ValueError, match=r"log_density must be a function .files do not store"):
        ldp.mechanisms.mechanism_from_spec(spec)
    with pytest.raises(ValueError, match="no log_tail"):
        call("cdf", ldp.Privatized(dist.Normal(0, 1), mechanism), 0.3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FromDensity(densities.laplace.logpdf),
            r"integrates to 1.00000\d+; give all kinks and jumps as breaks",
        ),
        (lambda: FromDensity(uniform), "must be a density, but it integrates to"),
        (lambda: FromDensity(lambda t: densities.norm.logpdf(t) + 0.1), "integrates to 1.10517"),
        (lambda: FromDensity(lambda t: densities.norm.logpdf(t, 1.0)), "noise with mean zero, got mean 1"),
        (lambda: FromDensity(lambda t: jnp.where(t > 0, jnp.nan, -t)), "must be below infinity everywhere, got nan at"),
        (lambda: FromDensity(lambda t: jnp.zeros(3)), r"must be elementwise, got shape \(3,\)"),
        (lambda: FromDensity(lambda t: densities.t.logpdf(t, 0.5)), "tails of log_density are too heavy|integrates to"),
        (lambda: FromDensity(densities.cauchy.logpdf, 0.0), "scale must be positive"),
        (lambda: FromDensity(densities.laplace.logpdf, 1.0, [np.nan]), "breaks must be finite numbers"),
        (lambda: AdditiveMechanism(CAUCHY(), 0.0, 1.0, columns=2), "only for numbers, each with noise, not for rows"),
    ],
)
def test_what_is_no_density_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match="log_density must be a function"):
        FromDensity(3.0)
