"""Mechanisms by the names of their noise: samples, densities, dtypes, guarantees against tests between inputs.

Statistical tests use fixed seeds and fail by chance with probability 1e-4 each when a seed is changed.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms import (
    AdditiveMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    RandomizedResponse,
    StaircaseMechanism,
    mechanism_from_spec,
)
from ldpbayes.noise import Laplace, Staircase, WithPublicRecords
from tests.programs import call, evaluate, log_prob, randomize

pytestmark = pytest.mark.usefixtures("x64")

ERROR_RATE = 1e-4
LOWER, UPPER = -1.0, 2.0
MAKERS = [
    pytest.param(lambda e, lo=LOWER, up=UPPER: LaplaceMechanism(e, lo, up), stats.laplace, id="laplace"),
    pytest.param(lambda e, lo=LOWER, up=UPPER: GaussianMechanism(e, 1e-5, lo, up), stats.norm, id="gaussian"),
]
both = pytest.mark.parametrize(("make", "law"), MAKERS)


@both
@pytest.mark.parametrize("x", [0.3, LOWER, -7.0, np.inf], ids=["inside", "at-bound", "clipped", "infinite"])
def test_samples_follow_the_law_of_the_clipped_record(make, law, x):
    mechanism = make(0.8)
    z = randomize(mechanism, np.full(20_000, x), seed=1)
    assert stats.kstest(z, law(np.clip(x, LOWER, UPPER), mechanism.scale).cdf).pvalue > ERROR_RATE


@both
def test_samples_follow_personal_budgets(make, law):
    budgets = np.geomspace(0.1, 10, 20_000)
    mechanism = make(budgets)
    x = np.linspace(-3, 4, 20_000)[::-1]
    z = randomize(mechanism, x, seed=2)
    noise = (z - np.clip(x, LOWER, UPPER)) / mechanism.scale
    for part in (noise, noise[:5000], noise[-5000:]):
        assert stats.kstest(part, law.cdf).pvalue > ERROR_RATE


@both
def test_density_is_the_textbook_one_and_integrates_to_one(make, law):
    mechanism = make(0.8)
    z, x = np.linspace(-30, 30, 101), np.array([[-9.0], [0.3], [2.0]])
    expected = law.logpdf(z, np.clip(x, LOWER, UPPER), mechanism.scale)
    np.testing.assert_allclose(call("log_prob", mechanism, z, x), expected, rtol=1e-14, atol=1e-14)
    # Gauss-Legendre on either side of the kink
    total = sum(
        integrate.fixed_quad(lambda z: np.exp(call("log_prob", mechanism, z, x)[1]), *ends, n=101)[0]
        for ends in ((-200, 0.3), (0.3, 200))
    )
    assert total == pytest.approx(1, abs=1e-9)


@both
def test_moments_are_those_of_the_law(make, law):
    mechanism = make(np.array([0.5, 2.0]))
    mean, variance = call("moments", mechanism, np.array([[-5.0], [0.0], [1.0]]))
    assert mean.shape == variance.shape == (3, 2)
    np.testing.assert_allclose(mean[:, 0], [LOWER, 0, 1])
    np.testing.assert_allclose(variance[1], law(0, mechanism.scale).var(), rtol=1e-14)


slopes_of_records = jax.jit(jax.vmap(jax.grad(lambda m, z, x: m.log_prob(z, x), argnums=(0, 2)), (None, 0, 0)))


@both
def test_log_prob_has_finite_gradients_everywhere(make, law):
    x = np.array([-9.0, LOWER, 0.5, UPPER, 9.0])
    with jax.enable_x64(False):  # where less is finite
        for z in (x, np.full(5, -50.0), np.full(5, 50.0)):
            slopes = slopes_of_records(make(1.0), z, x)
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))


@both
def test_dtype_follows_the_data_not_the_parameters(make, law):
    def results(mechanism, key, data):
        return mechanism.log_prob(data, data), mechanism.randomize(key, data), *mechanism.moments(data)

    for mechanism in (make(1.0), make(np.array([1.0, 2.0]))):
        for x64 in (False, True):
            with jax.enable_x64(x64):
                wide, key = jnp.float64 if x64 else jnp.float32, jax.eval_shape(lambda: jax.random.key(0))
                for dtype, expected in ((jnp.float32, jnp.float32), (jnp.int32, wide), (jnp.float64, wide)):
                    shapes = jax.eval_shape(results, mechanism, key, np.ones(2, dtype))
                    assert all(shape.dtype == expected for shape in shapes)
                # and where the mechanism is not traced
                shapes = jax.eval_shape(functools.partial(results, mechanism), key, np.ones(2, np.float32))
                assert all(shape.dtype == jnp.float32 for shape in shapes)


@both
def test_host_side_fields_are_double_precision_whatever_jax_uses(make, law):
    scalar = make(np.float32(0.5))
    assert all(type(v) is float for v in jax.tree.leaves(scalar)) and type(scalar.scale) is float
    array = make(jnp.asarray(np.array([0.5, 1.0])))
    assert type(array.epsilon) is np.ndarray and array.epsilon.dtype == array.scale.dtype == np.float64
    assert array.resolution == min(array.scale) and type(array.resolution) is float


@both
def test_mapping_over_budgets_agrees_with_one_at_a_time(make, law):
    budgets = np.array([0.3, 1.0, 4.0])
    mechanism = make(budgets)
    axes = jax.tree.map(lambda leaf: 0 if np.ndim(leaf) else None, mechanism)
    z = np.arange(5.0)
    mapped = jax.jit(jax.vmap(lambda m, z: m.log_prob(z, 0.2), in_axes=(axes, None)))(mechanism, z)
    alone = [call("log_prob", make(b), z, 0.2) for b in budgets]
    np.testing.assert_allclose(mapped, alone, rtol=1e-5)


def test_constraints_ranges_and_tails():
    laplace, gaussian = LaplaceMechanism([1.0, 2.0], -1, 3), GaussianMechanism(1.0, 1e-5, -1, 3)
    for mechanism in (laplace, gaussian):
        assert mechanism.domain(3.0) and not mechanism.domain(3.1)
        assert mechanism.support is constraints.real
    assert laplace.released_range == (-1.0, 3.0) and laplace.linear_tails
    assert gaussian.released_range == (-1 - 12 * gaussian.scale, 3 + 12 * gaussian.scale)
    assert not gaussian.linear_tails
    np.testing.assert_array_equal(laplace.scale, [4.0, 2.0])


def test_breakpoints_are_numpy_on_the_host_and_jax_when_traced():
    z = np.arange(6.0).reshape(2, 3)
    for mechanism, m in ((LaplaceMechanism(1.0, 0, 1), 1), (GaussianMechanism(1.0, 1e-5, 0, 1), 0)):
        points = mechanism.breakpoints(z)
        assert type(points) is np.ndarray and points.shape == (2, 3, m)
        assert mechanism.breakpoints(1.5).shape == (m,)
        traced = jax.jit(mechanism.breakpoints)(z)
        np.testing.assert_array_equal(traced, points)
    np.testing.assert_array_equal(LaplaceMechanism(1.0, 0, 1).breakpoints(z)[..., 0], z)


def test_laplace_log_likelihood_ratio_is_bounded_by_epsilon():
    mechanism = LaplaceMechanism(1.3, LOWER, UPPER)
    z = np.linspace(-20, 20, 401)
    ratio = np.abs(np.diff(call("log_prob", mechanism, z, np.array([[-9.0], [9.0]])), axis=0))
    assert ratio.max() == pytest.approx(1.3, rel=1e-14)


def test_traced_parameters_are_left_alone():
    slope = jax.jit(jax.grad(lambda epsilon: LaplaceMechanism(epsilon, 0.0, 1.0).log_prob(0.5, 0.5)))(2.0)
    assert slope == pytest.approx(0.5)
    shifted = jax.jit(lambda upper: GaussianMechanism(1.0, 1e-5, 0.0, upper).released_range[1])(1.0)
    assert shifted == pytest.approx(GaussianMechanism(1.0, 1e-5, 0.0, 1.0).released_range[1], rel=1e-6)
    assert jax.jit(lambda rows: rows.scale)(LaplaceMechanism(0.5, [0.0, 0.0], [1.0, 2.0], columns=2)) == 6.0
    with pytest.raises(ValueError, match="make the mechanism outside the traced function"):
        jax.jit(lambda epsilon: GaussianMechanism(epsilon, 1e-5, 0.0, 1.0).scale)(1.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((0.0, 0, 1), "epsilon must be positive and finite, got 0.0"),
        ((np.nan, 0, 1), "epsilon must be positive and finite, got nan"),
        (([1.0, -2.0], 0, 1), r"epsilon must be positive and finite, got epsilon\[1\] = -2.0"),
        (("1", 0, 1), "epsilon must be positive and finite, got the string '1'"),
        ((True, 0, 1), "epsilon must be positive and finite, got True"),
        ((["1", "2"], 0, 1), "epsilon must be positive and finite, got an array of strings"),
        ((np.array([1.0, None]), 0, 1), "epsilon must be positive and finite, got an array of objects, such as None"),
        (([], 0, 1), "epsilon must be positive and finite, got an empty array"),
        ((1.0, -np.inf, 1), "lower must be finite, got -inf"),
        ((1.0, 0, np.nan), "upper must be finite, got nan"),
        ((1.0, 1, 1), "lower must be below upper, got lower = 1.0, upper = 1.0"),
        ((1.0, -1e308, 1e308), "upper - lower must be finite"),
        ((1e-5, 0, 1e307), "the scale of the noise must be positive and finite, got inf"),
        (([1.0, 1e-5], 0, 1e307), "the scale of the noise must be positive and finite, got inf"),
        ((np.ma.array([1.0, 2.0], mask=[0, 1]), 0, 1), "epsilon must be positive and finite, got a masked array"),
        (([1.0, 2.0], [0, 0, 0], 1), "parameters must broadcast against each other, got shapes"),
    ],
)
@both
def test_bad_parameters_are_named(make, law, parameters, message):
    with pytest.raises(ValueError, match=message):
        make(*parameters)


def test_budgets_whose_noise_cannot_be_represented_are_refused():
    for epsilon, upper, scale in ((1e-308, 20, "inf"), (1e308, 1e-300, "0.0")):
        with pytest.raises(ValueError, match=f"the scale of the noise must be positive and finite, got {scale} in Lap"):
            LaplaceMechanism(epsilon, 0, upper)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, np.nan])
def test_delta_outside_its_range_is_named(delta):
    with pytest.raises(ValueError, match=f"delta must be between 0 and 1, exclusive, got {delta}"):
        GaussianMechanism(1.0, delta, 0, 1)


@both
def test_missing_records_are_refused(make, law):
    with pytest.raises(ValueError, match=r"x must be a number .*, got x\[1\] = nan"):
        make(1.0).randomize(jax.random.key(0), np.array([0.0, np.nan]))


@both
def test_text_is_refused_and_lists_are_not(make, law):
    with pytest.raises(ValueError, match=r"x must be a number .* got an array of strings"):
        make(1.0).randomize(jax.random.key(0), np.array(["1", "2"]))
    assert jax.eval_shape(lambda: make(1.0).randomize(jax.random.key(0), [0, 1])).shape == (2,)


MECHANISMS = [
    StaircaseMechanism(0.5, LOWER, UPPER),
    StaircaseMechanism(2.0, LOWER, UPPER, 0.8),
    StaircaseMechanism(6.0, LOWER, UPPER, 1.0),
    AdditiveMechanism(Staircase(5.0, 1.0, 0.1), LOWER, UPPER),
]
NAMES = ["small", "given", "uniform", "wide"]
every = pytest.mark.parametrize("mechanism", MECHANISMS, ids=NAMES)


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
    densities = call("log_prob", mechanism, z[:, None], x)
    ratio = densities.max(axis=1) - densities.min(axis=1)
    # logs of densities are small numbers
    assert ratio.max() == pytest.approx(epsilon, abs=1e-12)
    assert np.all((np.abs(ratio - epsilon) < 1e-12) | (np.abs(ratio) < 1e-12))


def pieces_and_breakpoints(mechanism, z):
    return *mechanism.noise.pieces(z, mechanism.lower, mechanism.upper), mechanism.breakpoints(z)


@every
def test_steps_are_those_of_the_density(mechanism, rng):
    z = rng.uniform(-15, 15, (50, 20))
    x = np.concatenate([[-9.0, LOWER, UPPER, 9.0], rng.uniform(LOWER, UPPER, 20)])
    expected = np.exp(call("log_prob", mechanism, z[..., None], x))
    cuts, levels = mechanism.noise.pieces(z, LOWER, UPPER)
    assert type(cuts) is np.ndarray and cuts.shape == (50, 20, 2) and levels.shape == (50, 20, 3)
    assert np.all((cuts[..., 0] <= cuts[..., 1]) & (cuts[..., 0] >= LOWER) & (cuts[..., 1] <= UPPER))
    which = np.sum(x[:, None] > cuts[..., None, :], axis=-1)
    np.testing.assert_allclose(np.take_along_axis(levels, which, axis=-1), expected, rtol=1e-12)
    traced = evaluate(pieces_and_breakpoints, mechanism, z)
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
    mapped = jax.jit(jax.vmap(lambda b, z: StaircaseMechanism(b, LOWER, UPPER).pieces(z)))(budgets, z)
    np.testing.assert_allclose(mapped[1], mechanism.pieces(z)[1], rtol=1e-13)
    single = mechanism.pieces(jnp.asarray(z, jnp.float32))
    assert single[0].dtype == single[1].dtype == jnp.float32
    assert mechanism.pieces(0.5)[0].shape == (3, 2) and MECHANISMS[0].pieces(1)[1].shape == (3,)
    assert mechanism.implausible(z) == []


def of_few(mechanism, z, x):
    """Log densities of up to 1,024 values (..., n) of each row at one record, in one shape for all calls."""
    padded = np.pad(z, [(0, 0)] * (z.ndim - 1) + [(0, 1024 - z.shape[-1])], mode="edge")
    return call("log_prob", mechanism, padded, x)[..., : z.shape[-1]]


def exact(law, mechanism, z):
    """P(z | θ) by SciPy's adaptive quadrature, cut where the density of the noise jumps."""
    cuts = np.array([LOWER, *jumps(mechanism, z, LOWER, UPPER), UPPER])
    at = np.concatenate([[LOWER], (cuts[1:] + cuts[:-1]) / 2, [UPPER]])
    levels = np.exp(call("log_prob", mechanism, z, np.pad(at, (0, 64 - len(at)), mode="edge")))[: len(at)]
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
BY_DEFAULT = {(1, "at-the-bound"), (3, "gamma")}


@pytest.mark.parametrize(
    ("mechanism", "base", "law"),
    [
        pytest.param(
            MECHANISMS[i],
            *base.values,
            marks=() if (i, base.id) in BY_DEFAULT else pytest.mark.slow,
            id=f"{base.id}-{NAMES[i]}",
        )
        for i in range(4)
        for base in BASES
    ],
)
def test_channel_likelihood_is_that_of_adaptive_quadrature(mechanism, base, law):
    z = np.array([-11.3, -2.2, -0.9, 0.1, 0.77, 1.9, 2.4, 8.2])
    expected = np.log([exact(law, mechanism, at) for at in z])
    np.testing.assert_allclose(channel(base, mechanism, z), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(MECHANISMS[0], marks=pytest.mark.slow, id="small"),
        pytest.param(MECHANISMS[1], id="given"),
        pytest.param(MECHANISMS[2], marks=pytest.mark.slow, id="uniform"),
    ],
)
def test_closed_form_is_the_channels(mechanism):
    base, z = dist.Normal(0.3, 0.7), np.linspace(-8, 9, 40)
    closed = log_prob(base, mechanism, z)
    np.testing.assert_allclose(closed, channel(base, mechanism, z), rtol=0, atol=1e-10)


def test_budgets_that_are_traced_choose_their_gamma():
    def total(mechanism, z):
        return jnp.sum(ldp.Privatized(dist.Normal(0.3, 0.7), mechanism).log_prob(z))

    z = np.array([-3.0, 0.2, 0.5, 4.0])
    traced = jax.jit(jax.value_and_grad(lambda epsilon: total(StaircaseMechanism(epsilon, LOWER, UPPER), z)))
    known = jax.jit(total)
    mechanism = StaircaseMechanism(1.2, LOWER, UPPER)
    value, slope = traced(1.2)
    assert value == pytest.approx(float(known(mechanism, z)), rel=1e-12)
    step = 1e-5  # the second difference is of the order of its square; none of these values passes a jump on the way
    above, below = (float(known(StaircaseMechanism(1.2 + h, LOWER, UPPER), z)) for h in (step, -step))
    assert float(slope) == pytest.approx((above - below) / (2 * step), rel=1e-6)
    assert mechanism.noise.gamma == Staircase.optimal_gamma(1.2)
    slopes = slopes_of_records(mechanism, np.full(4, 0.7), np.array([-9.0, LOWER, 0.5, UPPER]))
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
        densities = of_few(mechanism, at, bound)
        np.testing.assert_allclose(densities, densities[[1, 1, 1]], rtol=0, atol=1e-12)
    assert len(LaplaceMechanism(1.0, LOWER, UPPER).released_breakpoints) == 0


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(StaircaseMechanism(0.3, LOWER, UPPER), id="step"),
        pytest.param(MECHANISMS[3], marks=pytest.mark.slow, id="wide"),
    ],
)
def test_sketch_of_a_release_has_its_likelihood_and_few_nodes(mechanism, rng):
    z = randomize(mechanism, rng.normal(0.3, 0.7, 5000), seed=5)
    low, high = mechanism.released_range
    assert np.mean((z < low) | (z > high)) > 0.1  # which are moved by whole steps
    of = ldp.Release(z, mechanism).sketch()
    assert len(of.nodes) < 1200 and of.size == 5000
    short = jax.jit(lambda base: law_of_nodes(of, base).log_prob(of.nodes))
    for base in (dist.Normal(0.3, 0.7), dist.Normal(0.0, 0.5)):
        assert of.weights @ np.asarray(short(base)) == pytest.approx(log_prob(base, mechanism, z).sum(), abs=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "gamma"),
    [
        pytest.param(e, g, marks=() if (e, g) in ((0.2, None), (4.0, 0.3)) else pytest.mark.slow)
        for e in (0.2, 1.0, 4.0)
        for g in (None, 0.3, 0.9)
    ],
)
def test_guarantee_is_the_budget_with_the_curve_of_the_bounds(epsilon, gamma):
    mechanism = StaircaseMechanism(epsilon, LOWER, UPPER, gamma)
    guarantee = mechanism.guarantee
    assert (guarantee.unit, guarantee.trust_model) == ("record", "local")
    assert f"epsilon = {epsilon:g} and delta = 0" in guarantee.statement()
    far = (75 / epsilon + 2) * (UPPER - LOWER)  # beyond which there is less than exp(-75)
    low, high = LOWER - far, UPPER + far
    cells = np.unique(np.concatenate([jumps(mechanism, bound, low, high) for bound in (LOWER, UPPER)]))
    middles, widths = (cells[1:] + cells[:-1]) / 2, np.diff(cells)
    null, other = (np.exp(of_few(mechanism, middles, x)) * widths for x in (LOWER - 5, UPPER + 5))
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
        mean, variance = call("moments", StaircaseMechanism(epsilon, LOWER, UPPER), np.array([-4.0, 0.5]))
        np.testing.assert_allclose(mean, [LOWER, 0.5])
        np.testing.assert_allclose(variance, staircase, rtol=1e-12)


def test_what_no_records_explain_is_said():
    mechanism = StaircaseMechanism(1.0, LOWER, UPPER)
    x = np.linspace(LOWER, UPPER, 5000)
    assert not mechanism.implausible(randomize(mechanism, x, seed=6))
    assert mechanism.implausible(randomize(StaircaseMechanism(0.2, LOWER, UPPER), x, seed=6))
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
        (lambda: AdditiveMechanism(Staircase(1.0, 1.0, 0.5), 0, 1, 2), "not for rows or statistics"),
        (lambda: AdditiveMechanism(Staircase(1.0, 1.0, 0.5), sensitivity=0.5), "not for rows or statistics"),
        (lambda: WithPublicRecords(Staircase(1.0, 1.0, 0.5)), "one parameter, a scale for all columns"),
        (
            lambda: mechanism_from_spec(
                {"mechanism": "staircase", "epsilon": 1.0, "lower": 0, "upper": 1, "columns": 2}
            ),
            "unexpected keyword argument",
        ),
    ],
)
def test_what_it_is_not_for_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_staircase_noise_refuses_missing_records():
    with pytest.raises(ValueError, match=r"x must be a number .*, got x\[1\] = nan"):
        MECHANISMS[0].randomize(jax.random.key(0), np.array([0.0, np.nan]))


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


LOW, HIGH = -1.0, 3.0
ADDITIVE = [
    pytest.param(lambda e: LaplaceMechanism(e, LOW, HIGH), id="laplace"),
    pytest.param(lambda e: GaussianMechanism(e, 1e-5, LOW, HIGH), id="gaussian"),
]


def masses(mechanism, inputs, cells=4000, nodes=10):
    """Integrate p(z | x) over cells of z for each input: an array (inputs, cells), Gauss-Legendre between the kinks."""
    reach = 42 * mechanism.scale
    # an even number of cells between the bounds, so that the inputs used here are cell edges
    inner = np.linspace(LOW, HIGH, cells // 2 + 1)
    outer = np.geomspace(1, 1 + reach, cells // 4)[1:] - 1
    edges = np.concatenate([(LOW - outer)[::-1], inner, HIGH + outer])
    t, w = np.polynomial.legendre.leggauss(nodes)
    half = np.diff(edges)[:, None] / 2
    z = edges[:-1, None] + half * (1 + t)
    density = np.exp(call("log_prob", mechanism, z, np.reshape(inputs, (-1, 1, 1))))
    return np.sum(w * half * density, axis=-1)


def errors_of_likelihood_ratio_tests(null, alternative):
    """Errors (alpha, beta) of the tests that reject on the cells of largest likelihood ratio: Neyman-Pearson."""
    order = np.argsort(-alternative / np.maximum(null, 1e-300))
    alpha = np.concatenate([[0], np.cumsum(null[order])])
    return np.clip(alpha, 0, 1), 1 - np.concatenate([[0], np.cumsum(alternative[order])])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("make", ADDITIVE)
def test_best_tests_between_the_bounds_lie_on_the_stated_curve(make, epsilon):
    mechanism = make(epsilon)
    null, alternative = masses(mechanism, [LOW, HIGH])
    # the law is monotone in the likelihood ratio, so every cell edge is the threshold of an optimal test
    for p, q in ((null, alternative), (alternative, null)):
        alpha, beta = errors_of_likelihood_ratio_tests(p, q)
        np.testing.assert_allclose(beta, mechanism.guarantee.tradeoff(alpha), atol=1e-9)
        assert np.ptp(alpha) > 0.999


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("make", ADDITIVE)
def test_other_pairs_of_inputs_are_harder_to_tell_apart_than_stated(make, epsilon):
    mechanism = make(epsilon)
    # inputs beyond the bounds are clipped, so the first pair is the worst one again
    for pair, strictly in (((LOW - 9, HIGH + 9), False), ((LOW, 2.0), True), ((0.0, 1.0), True)):
        alpha, beta = errors_of_likelihood_ratio_tests(*masses(mechanism, pair))
        slack = beta - mechanism.guarantee.tradeoff(alpha)
        assert slack.min() > -1e-9
        assert (slack.max() > 1e-4) == strictly


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("make", ADDITIVE)
def test_hockey_stick_of_the_densities_is_the_stated_delta(make, epsilon):
    mechanism = make(epsilon)
    alpha, beta = errors_of_likelihood_ratio_tests(*masses(mechanism, [LOW, HIGH]))
    for at in (0.0, epsilon / 2, epsilon, 2 * epsilon):
        # the supremum over tests, second order in the width of a cell
        assert mechanism.guarantee.delta(at) == pytest.approx(np.max(1 - beta - np.exp(at) * alpha), abs=2e-6)


def test_gaussian_guarantee_reaches_the_pair_it_was_calibrated_for():
    for epsilon, delta in ((0.01, 1e-12), (1.0, 1e-5), (50.0, 1e-12), (50.0, 0.3)):
        guarantee = GaussianMechanism(epsilon, delta, LOW, HIGH).guarantee
        assert guarantee.delta(epsilon) == pytest.approx(delta, rel=1e-10)
        assert guarantee.epsilon(delta) == pytest.approx(epsilon, rel=1e-10)


@pytest.mark.parametrize(
    "mechanism",
    [LaplaceMechanism(1.0, 0, 1), GaussianMechanism(1.0, 1e-6, 0, 1), RandomizedResponse(1.0, 3)],
    ids=lambda m: m.name,
)
def test_guarantee_states_its_budget_unit_and_trust_model(mechanism):
    guarantee = mechanism.guarantee
    assert (guarantee.unit, guarantee.trust_model) == ("record", "local")
    delta = 1e-6 if mechanism.name == "gaussian" else 0
    assert f"epsilon = 1 and delta = {delta:.4g}" in guarantee.statement()
