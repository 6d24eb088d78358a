"""The staircase mechanism, and classical Gaussian noise: what they promise, release and say to the likelihood.

Statistical tests use fixed seeds and fail by chance with probability 1e-4 each when a seed is changed.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms import (
    AdditiveMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    StaircaseMechanism,
    mechanism_from_spec,
)
from ldpbayes.mechanisms.registry import mechanism_by_name
from ldpbayes.noise import Laplace, Staircase, WithPublicRecords, optimal_gamma

pytestmark = pytest.mark.usefixtures("x64")
LOWER, UPPER = -1.0, 2.0
MECHANISMS = [
    StaircaseMechanism(0.5, LOWER, UPPER),
    StaircaseMechanism(2.0, LOWER, UPPER, 0.8),
    StaircaseMechanism(6.0, LOWER, UPPER, 1.0),
    AdditiveMechanism(Staircase(5.0, 1.0, 0.1), LOWER, UPPER),
]
every = pytest.mark.parametrize("mechanism", MECHANISMS, ids=["small", "given", "uniform", "wide"])


def jumps(mechanism, center, low, high):
    """Where the density of noise around a point jumps, as [GV] define it."""
    noise = mechanism.noise
    furthest = max(abs(center - low), abs(center - high))
    offsets = (np.arange(np.ceil(furthest / noise.step) + 1) + noise.gamma) * noise.step
    points = np.sort(np.concatenate([center - offsets, center + offsets]))
    return points[(points > low) & (points < high)]


@every
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_likelihood_ratio_of_inputs_reaches_exp_epsilon_exactly_and_never_exceeds_it(mechanism, epsilon, rng):
    noise = mechanism.noise
    mechanism = (
        StaircaseMechanism(epsilon, LOWER, UPPER, noise.gamma)
        if isinstance(mechanism, StaircaseMechanism)
        else AdditiveMechanism(Staircase(noise.step, epsilon, noise.gamma), LOWER, UPPER)
    )
    # at the jumps themselves, a set of measure zero, rounding says on which side of them a value is
    z = rng.uniform(-10, 11, 4000)
    x = np.concatenate([[-np.inf, LOWER, UPPER, np.inf, -3.0], np.linspace(LOWER, UPPER, 30)])
    log_prob = np.asarray(mechanism.log_prob(z[:, None], x))
    ratio = log_prob.max(axis=1) - log_prob.min(axis=1)
    # logs of densities are small numbers
    assert ratio.max() == pytest.approx(epsilon, abs=1e-12)
    assert np.all((np.abs(ratio - epsilon) < 1e-12) | (np.abs(ratio) < 1e-12))


@every
def test_steps_are_those_of_the_density(mechanism, rng):
    z = rng.uniform(-15, 15, (50, 20))
    x = np.concatenate([[-9.0, LOWER, UPPER, 9.0], rng.uniform(LOWER, UPPER, 20)])
    expected = np.exp(np.asarray(mechanism.log_prob(z[..., None], x)))
    cuts, levels = mechanism.noise.pieces(z, LOWER, UPPER)
    assert type(cuts) is np.ndarray and cuts.shape == (50, 20, 2) and levels.shape == (50, 20, 3)
    assert np.all((cuts[..., 0] <= cuts[..., 1]) & (cuts[..., 0] >= LOWER) & (cuts[..., 1] <= UPPER))
    which = np.sum(x[:, None] > cuts[..., None, :], axis=-1)
    np.testing.assert_allclose(np.take_along_axis(levels, which, axis=-1), expected, rtol=1e-12)
    traced = jax.jit(lambda m, z: (*m.noise.pieces(z, m.lower, m.upper), m.breakpoints(z)))(mechanism, z)
    np.testing.assert_allclose(traced[0], cuts, rtol=0, atol=1e-13)
    np.testing.assert_allclose(traced[1], levels, rtol=1e-12)
    np.testing.assert_array_equal(mechanism.breakpoints(z), cuts)
    np.testing.assert_allclose(traced[2], cuts, rtol=0, atol=1e-13)


def test_steps_of_records_with_budgets_of_their_own_are_those_of_each():
    budgets, z = np.array([0.3, 1.0, 4.0]), np.array([-2.0, 0.5, 3.1])
    mechanism = StaircaseMechanism(budgets, LOWER, UPPER)
    alone = [StaircaseMechanism(b, LOWER, UPPER).pieces(at) for b, at in zip(budgets, z, strict=True)]
    for got, one in zip(mechanism.pieces(z), zip(*alone, strict=True), strict=True):
        np.testing.assert_allclose(got, np.stack(one), rtol=1e-14)
    mapped = jax.vmap(lambda b, z: StaircaseMechanism(b, LOWER, UPPER).pieces(z))(budgets, z)
    np.testing.assert_allclose(mapped[1], mechanism.pieces(z)[1], rtol=1e-13)
    single = mechanism.pieces(jnp.asarray(z, jnp.float32))
    assert single[0].dtype == single[1].dtype == jnp.float32
    assert mechanism.pieces(0.5)[0].shape == (3, 2) and MECHANISMS[0].pieces(1)[1].shape == (3,)
    assert mechanism.implausible(z) == []


def exact(law, mechanism, z):
    """P(z | θ) by SciPy's adaptive quadrature, cut where the density of the noise jumps."""
    cuts = np.array([LOWER, *jumps(mechanism, z, LOWER, UPPER), UPPER])
    at = np.concatenate([[LOWER], (cuts[1:] + cuts[:-1]) / 2, [UPPER]])
    levels = np.exp(np.asarray(mechanism.log_prob(z, at)))
    inside = [integrate.quad(law.pdf, *ends, epsabs=1e-14, epsrel=1e-13)[0] for ends in itertools.pairwise(cuts)]
    return levels @ [law.cdf(LOWER), *inside, law.sf(UPPER)]


def channel(base, mechanism, z):
    """Log density by the channel, which is built where the function is compiled."""
    return jax.jit(lambda base: ldp.Privatized(base, mechanism, method="channel").log_prob(z))(base)


BASES = [
    pytest.param(dist.Normal(0.3, 0.7), stats.norm(0.3, 0.7), id="normal"),
    pytest.param(dist.Gamma(2.5, 2.0), stats.gamma(2.5, scale=0.5), id="gamma"),
    pytest.param(dist.Normal(1.9, 0.2), stats.norm(1.9, 0.2), id="at-the-bound"),
]


@every
@pytest.mark.parametrize(("base", "law"), BASES)
def test_channel_likelihood_is_that_of_adaptive_quadrature(mechanism, base, law):
    z = np.array([-11.3, -2.2, -0.9, 0.1, 0.77, 1.9, 2.4, 8.2])
    expected = np.log([exact(law, mechanism, at) for at in z])
    np.testing.assert_allclose(channel(base, mechanism, z), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mechanism", MECHANISMS[:3], ids=["small", "given", "uniform"])
def test_closed_form_is_the_channels(mechanism):
    base, z = dist.Normal(0.3, 0.7), np.linspace(-8, 9, 40)
    closed = jax.jit(lambda m, z: ldp.Privatized(base, m).log_prob(z))(mechanism, z)
    np.testing.assert_allclose(closed, channel(base, mechanism, z), rtol=0, atol=1e-10)


def test_budgets_that_are_traced_choose_their_gamma():
    def log_prob(epsilon, z):
        return jnp.sum(ldp.Privatized(dist.Normal(0.3, 0.7), StaircaseMechanism(epsilon, LOWER, UPPER)).log_prob(z))

    z = np.array([-3.0, 0.2, 0.5, 4.0])
    value, slope = jax.jit(jax.value_and_grad(log_prob))(1.2, z)
    assert value == pytest.approx(float(log_prob(1.2, z)), rel=1e-12)
    step = 1e-5  # the second difference is of the order of its square; none of these values passes a jump on the way
    assert float(slope) == pytest.approx(
        float(log_prob(1.2 + step, z) - log_prob(1.2 - step, z)) / (2 * step), rel=1e-6
    )
    mechanism = StaircaseMechanism(1.2, LOWER, UPPER)
    assert mechanism.noise.gamma == optimal_gamma(1.2)
    for x in (-9.0, LOWER, 0.5, UPPER):
        slopes = jax.grad(lambda m, z, x=x: m.log_prob(z, x), argnums=(0, 1))(mechanism, 0.7)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize("mechanism", [MECHANISMS[0], MECHANISMS[3]], ids=["step", "wide"])
def test_nothing_happens_between_released_breakpoints(mechanism):
    low, high = mechanism.released_range
    points = np.asarray(mechanism.released_breakpoints)
    assert type(mechanism.released_breakpoints) is np.ndarray
    edges = np.concatenate([[low], points[(points > low) & (points < high)], [high]])
    # two ways to the same point differ by rounding
    edges = edges[np.append(True, np.diff(edges) > 1e-9)]
    for bound in (LOWER, UPPER):
        wanted = jumps(mechanism, bound, low, high)
        assert np.abs(wanted[:, None] - points).min(axis=1).max() < 1e-9
        at = edges[:-1] + np.diff(edges) * np.array([[1e-6], [0.5], [1 - 1e-6]])
        log_prob = np.asarray(mechanism.log_prob(at, bound))
        np.testing.assert_allclose(log_prob, log_prob[[1, 1, 1]], rtol=0, atol=1e-12)
    assert len(LaplaceMechanism(1.0, LOWER, UPPER).released_breakpoints) == 0


@pytest.mark.parametrize("mechanism", [StaircaseMechanism(0.3, LOWER, UPPER), MECHANISMS[3]], ids=["step", "wide"])
def test_sketch_of_a_release_has_its_likelihood_and_few_nodes(mechanism, rng):
    z = np.asarray(mechanism.randomize(jax.random.key(5), rng.normal(0.3, 0.7, 5000)))
    low, high = mechanism.released_range
    assert np.mean((z < low) | (z > high)) > 0.1  # which are moved by whole steps
    of = ldp.Release(z, mechanism).sketch()
    assert len(of.nodes) < 1200 and of.size == 5000
    short = jax.jit(lambda base: jnp.sum(of.weights * law_of_nodes(of, base).log_prob(of.nodes)))
    whole = jax.jit(lambda base: jnp.sum(ldp.Privatized(base, mechanism).log_prob(z)))
    for base in (dist.Normal(0.3, 0.7), dist.Normal(0.0, 0.5)):
        assert float(short(base)) == pytest.approx(float(whole(base)), abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("gamma", [None, 0.3, 0.9])
def test_guarantee_is_the_budget_with_the_curve_of_the_bounds(epsilon, gamma):
    mechanism = StaircaseMechanism(epsilon, LOWER, UPPER, gamma)
    guarantee = mechanism.guarantee
    assert (guarantee.unit, guarantee.trust_model) == ("record", "local")
    assert f"epsilon = {epsilon:g} and delta = 0" in guarantee.statement()
    far = (75 / epsilon + 2) * (UPPER - LOWER)  # beyond which there is less than exp(-75)
    low, high = LOWER - far, UPPER + far
    cells = np.unique(np.concatenate([jumps(mechanism, bound, low, high) for bound in (LOWER, UPPER)]))
    middles, widths = (cells[1:] + cells[:-1]) / 2, np.diff(cells)
    null, other = (np.exp(np.asarray(mechanism.log_prob(middles, x))) * widths for x in (LOWER - 5, UPPER + 5))
    order = np.argsort(-other / null)
    alpha, beta = np.cumsum(null[order]), 1 - np.cumsum(other[order])
    # some hundreds of masses are added up
    np.testing.assert_allclose(guarantee.tradeoff(np.clip(alpha, 0, 1)), np.clip(beta, 0, 1), atol=1e-12)
    assert guarantee.epsilon(0.0) == pytest.approx(epsilon, rel=1e-14)


def test_noise_has_less_variance_than_laplace_noise_of_the_budget():
    for epsilon, most in ((0.1, 1.0), (1.0, 0.96), (5.0, 0.4), (10.0, 0.1)):
        staircase, laplace = (
            kind(epsilon, LOWER, UPPER).noise.variance for kind in (StaircaseMechanism, LaplaceMechanism)
        )
        assert staircase < most * laplace
        mean, variance = StaircaseMechanism(epsilon, LOWER, UPPER).moments(jnp.array([-4.0, 0.5]))
        np.testing.assert_allclose(mean, [LOWER, 0.5])
        np.testing.assert_allclose(variance, staircase, rtol=1e-12)


def test_what_no_records_explain_is_said():
    mechanism = StaircaseMechanism(1.0, LOWER, UPPER)
    x = np.linspace(LOWER, UPPER, 2000)
    assert not mechanism.implausible(np.asarray(mechanism.randomize(jax.random.key(6), x)))
    assert mechanism.implausible(np.asarray(StaircaseMechanism(0.2, LOWER, UPPER).randomize(jax.random.key(6), x)))
    assert mechanism.implausible(x)


def test_specs_make_the_mechanism_again():
    for mechanism in (MECHANISMS[0], MECHANISMS[1], StaircaseMechanism([1.0, 2.0], LOWER, UPPER)):
        assert mechanism_from_spec(mechanism.spec()) == mechanism
    assert MECHANISMS[0].spec() == {"mechanism": "staircase", "epsilon": 0.5, "lower": LOWER, "upper": UPPER}
    assert repr(MECHANISMS[1]) == "StaircaseMechanism(epsilon=2.0, lower=-1.0, upper=2.0, gamma=0.8)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StaircaseMechanism(0.0, 0, 1), "epsilon must be positive and finite, got 0.0"),
        (lambda: StaircaseMechanism(1.0, 0, 1, 0.0), r"gamma must be in \(0, 1\], got 0.0"),
        (lambda: StaircaseMechanism(1.0, 1, 1), "lower must be below upper"),
        (lambda: StaircaseMechanism(1.0, None, 1), "lower must be finite, got None"),
        (lambda: StaircaseMechanism([1.0, 2.0], 0, [1, 2, 3]), "must broadcast against each other"),
        (lambda: StaircaseMechanism(1e-200, 0, 1), "the variance of the noise must be finite, got inf"),
        (lambda: AdditiveMechanism(Staircase(1.0, 1.0, 0.5), 0, 1.1), "upper - lower must be at most the step"),
        (lambda: AdditiveMechanism(Staircase(1.0, 1.0, 0.5), 0, 1, 2), "not for rows of columns, statistics"),
        (lambda: AdditiveMechanism(Staircase(1.0, 1.0, 0.5), sensitivity=0.5), "not for rows of columns, statistics"),
        (lambda: AdditiveMechanism(WithPublicRecords(Staircase(1.0, 1.0, 0.5)), 0, 1), "released without noise"),
        (lambda: mechanism_by_name("staircase", epsilon=1.0, lower=0, upper=1, columns=2), "unknown parameter"),
    ],
)
def test_what_it_is_not_for_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_missing_records_are_refused():
    with pytest.raises(ValueError, match=r"x must be a number .*, got x\[1\] = nan"):
        MECHANISMS[0].randomize(jax.random.key(0), jnp.array([0.0, jnp.nan]))


def test_classical_gaussian_noise_has_the_textbook_scale_and_the_exact_curve():
    epsilon, delta = np.array([0.2, 0.9]), 1e-5
    mechanism = GaussianMechanism.classical(epsilon, delta, LOWER, UPPER)
    np.testing.assert_allclose(
        mechanism.noise.standard_deviation, np.sqrt(2 * np.log(1.25e5)) * 3 / epsilon, rtol=1e-14
    )
    # proven below one, and there never less noise than is needed
    assert np.all(mechanism.guarantee.delta(epsilon) < delta)
    assert np.all(mechanism.noise.standard_deviation > GaussianMechanism(epsilon, delta, LOWER, UPPER).scale)
    too_little = GaussianMechanism.classical(20.0, delta, LOWER, UPPER)
    assert too_little.guarantee.delta(20.0) > delta
    rows = GaussianMechanism.classical(0.5, 0.1, [0, 1], [3, 5], columns=("a", "b", "c"), perturbed=["c", "a"])
    assert rows.noise.standard_deviation == pytest.approx(np.sqrt(2 * np.log(12.5)) * 5 / 0.5, rel=1e-14)
    np.testing.assert_array_equal(rows.upper, [5, 3])
    statistic = GaussianMechanism.classical(0.5, 0.1, sensitivity=2.0)
    assert statistic.noise.standard_deviation == pytest.approx(np.sqrt(2 * np.log(12.5)) * 4, rel=1e-14)
    assert statistic.guarantee.trust_model == "central"
    for bad, message in (
        ((0.0, 0.1, 0, 1), "epsilon must be"),
        ((1.0, 1.0, 0, 1), "delta must be"),
        ((1.0, 0.1, 1, 0), "lower"),
    ):
        with pytest.raises(ValueError, match=message):
            GaussianMechanism.classical(*bad)


def test_laplace_noise_is_cut_where_it_was():
    z = np.array([[0.2, 3.0]])
    np.testing.assert_array_equal(AdditiveMechanism(Laplace(2.0), LOWER, UPPER).breakpoints(z), z[..., None])
    assert AdditiveMechanism(WithPublicRecords(Laplace(2.0)), LOWER, UPPER).breakpoints(z).shape == (1, 2, 1)
