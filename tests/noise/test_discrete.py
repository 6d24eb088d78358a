"""Discrete noise: masses, samplers and trade-off curves against sums in extended precision, by definition."""

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from ldpbayes.mechanisms import AdditiveMechanism, DiscreteGaussianMechanism
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace
from ldpbayes.privacy.discrete import DiscreteGaussianRowsTradeoff, DiscreteGaussianTradeoff, DiscreteLaplaceTradeoff
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, LaplaceTradeoff, PureProtocolTradeoff

pytestmark = pytest.mark.usefixtures("x64")
LAWS = [pytest.param(DiscreteLaplace, id="laplace"), pytest.param(DiscreteGaussian, id="gaussian")]
SCALES = [0.01, 0.4, 1.0, 63.0, 64.0, 1e4, *(pytest.param(scale, marks=pytest.mark.slow) for scale in (0.1, 3.3, 1e3))]


def log_weight(law, k, scale):
    """Log of what the mass at k is proportional to."""
    k, scale = np.asarray(k, np.longdouble), np.longdouble(scale)
    return -np.abs(k) / scale if law is DiscreteLaplace else -((k / scale) ** 2) / 2


def masses(law, scale):
    """All integers whose mass is not negligible, and their masses, summed in extended precision."""
    reach = int(48 * scale if law is DiscreteLaplace else 11 * scale) + 2
    k = np.arange(-reach, reach + 1)
    weight = np.exp(log_weight(law, k, scale))
    return k, weight / np.sum(weight)


@functools.cache
def of_scale(law):
    """Log mass at 3, the standard deviation, and the derivative of the first, of a traced scale."""

    def both(scale):
        log_mass = law(scale).log_prob(jnp.array([3.0]))
        return log_mass, (log_mass, law(scale).standard_deviation)

    def derivative(scale):
        slope, values = jax.grad(both, has_aux=True)(scale)
        return values, slope

    return jax.jit(derivative)


@jax.jit
def log_masses(noise, value):
    return noise.log_prob(value)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", SCALES)
def test_masses_sum_to_one_with_the_stated_standard_deviation(law, scale):
    k, mass = masses(law, scale)
    noise = law(scale)
    some = (np.arange(len(k)) % max(len(k) // 100, 1) == 0) & (mass > 0)
    # of one shape for all scales, so that they are compiled once
    got = log_masses(noise, np.resize(k[some], 256)[:, None].astype(float))[: some.sum()]
    # what a sum of 1e6 terms in extended precision may be off by, and what lies beyond exp(-48)
    np.testing.assert_allclose(got, np.log(mass[some]).astype(float), rtol=2e-14, atol=1e-13)
    np.testing.assert_allclose(noise.variance, float(np.sum(k**2 * mass)), rtol=1e-12)
    (traced, deviation), _ = of_scale(law)(scale)
    np.testing.assert_allclose(traced, log_masses(noise, np.array([3.0])), rtol=1e-14)
    np.testing.assert_allclose(deviation, noise.standard_deviation, rtol=1e-14)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.01, 0.3989, 0.399, 2.0, 1e4])
def test_the_derivative_in_the_scale_is_that_of_the_mass(law, scale):
    k, s = 3, mpmath.mpf(scale)
    with mpmath.workdps(40):
        if law is DiscreteLaplace:
            want = mpmath.diff(lambda s: mpmath.log(mpmath.tanh(1 / (2 * s))) - k / s, s)
        else:

            def log_mass(s):
                theta = mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * s**2))) if s < 20 else s * mpmath.sqrt(2 * mpmath.pi)
                return -(k**2) / (2 * s**2) - mpmath.log(theta)

            want = mpmath.diff(log_mass, s)
    _, got = of_scale(law)(scale)
    assert got == pytest.approx(float(want), rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
def test_nothing_but_integers_has_a_mass_and_columns_are_independent(law):
    noise = law(np.array([0.5, 3.0]))
    value = np.array([[1.0, -2.0, 0.0], [1.0, 0.5, 0.0]])
    found = log_masses(noise, value)
    np.testing.assert_array_equal(found[1], -np.inf)
    columns = [log_masses(law(0.5), np.array([x])) for x in (1.0, -2.0, 0.0)]
    assert found[0] == pytest.approx(float(np.sum(columns)), rel=1e-14)
    assert np.all(np.isfinite(jax.jit(jax.grad(lambda s: law(s).log_prob(value[0])))(0.5)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.01, 0.7, 5.0, 300.0])
def test_depth_is_that_of_the_tail(law, scale):
    k, mass = masses(law, scale)
    noise = law(scale)
    steps = np.unique(np.round(np.array([0.0, 0.5, 1.0, 2.5, 5.0]) * scale))
    tails = np.array([np.sum(mass[k > step]) for step in steps])
    seen = tails > 0
    with np.errstate(invalid="ignore"):  # a standard deviation may underflow
        depth = noise.depth(steps[seen] / noise.standard_deviation)
    np.testing.assert_allclose(depth, -np.log2(tails[seen]).astype(float), rtol=1e-12)


@pytest.mark.parametrize("scale", [0.08, 0.1, 1.0, 12.0, 500.0])
def test_nothing_is_beyond_the_reach_of_gaussian_noise(scale):
    first = int(DiscreteGaussian(scale).reach) + 1
    with mpmath.workdps(50):
        tail = mpmath.nsum(lambda k: mpmath.exp(-((first + k) ** 2) / (2 * mpmath.mpf(scale) ** 2)), [0, mpmath.inf])
        assert 2 * tail / max(scale * 2.5, 1) < 1e-32


@jax.jit
def draws_of(noise):
    return noise.sample(jax.random.key(7), (10_000, 2, 2), np.float64)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [0.4, pytest.param(2.0, marks=pytest.mark.slow), 36.0])
def test_the_sampler_has_the_stated_masses(law, scale):
    """χ² of 40,000 draws with a fixed seed; a right sampler fails once in 1e6 seeds."""
    n = 40_000
    draws = np.asarray(draws_of(law(np.full(2, scale)))).ravel()
    k, mass = masses(law, scale)
    assert np.all(draws == np.round(draws))
    # cells of at least 20 draws on average: some integers together, tails included
    cells = np.minimum((np.cumsum(mass) * 50).astype(int), 49)
    expected = n * np.bincount(cells, mass.astype(float), minlength=50)
    found = np.bincount(cells[np.clip(draws.astype(int) - k[0], 0, len(k) - 1)], minlength=50)
    used = expected > 0
    assert np.min(expected[used]) > 20 or scale < 1
    merged = expected[used] >= 20
    want = np.append(expected[used][merged], np.sum(expected[used][~merged]))
    got = np.append(found[used][merged], np.sum(found[used][~merged]))
    chi_square = np.sum((got - want)[want > 5] ** 2 / want[want > 5])
    assert chi_square < stats.chi2.isf(1e-6, np.sum(want > 5) - 1)


@pytest.mark.parametrize("law", LAWS)
def test_the_sampler_takes_a_traced_scale_and_returns_the_type_asked_for(law):
    def draw(scale):
        return law(scale).sample(jax.random.key(0), (5, 2), jnp.float32)

    traced = jax.jit(lambda s: jax.jvp(draw, (s,), (1.0,)))
    drawn, slope = traced(3.0)
    assert drawn.dtype == jnp.float32
    known, fine = jax.jit(lambda: [draw(3.0), draw(0.01)])()
    np.testing.assert_array_equal(drawn, known)
    np.testing.assert_array_equal(slope, 0)  # integers do not move with the scale
    np.testing.assert_array_equal(fine, 0)


CURVES = {DiscreteLaplace: DiscreteLaplaceTradeoff, DiscreteGaussian: DiscreteGaussianTradeoff}


def errors_and_deltas(law, scale, distance, epsilons):
    """Vertices of the curve, by sorted likelihood ratios, and hockey-stick divergences, in extended precision."""
    reach = int(48 * scale if law is DiscreteLaplace else 40 * scale) + 2
    k = np.arange(-reach, reach + distance + 1)
    total = np.sum(np.exp(log_weight(law, np.arange(-reach, reach + 1), scale)))
    ratio = log_weight(law, k - distance, scale) - log_weight(law, k, scale)
    order = np.argsort(-ratio, kind="stable")
    first, second = (np.exp(log_weight(law, k - shift, scale)) / total for shift in (0, distance))
    level = np.append(0.0, np.cumsum(first[order])).astype(float)
    error = np.append(np.cumsum(second[order][::-1])[::-1], 0.0).astype(float)
    deltas = [float(np.sum(second * -np.expm1(np.minimum(np.longdouble(e) - ratio, 0)))) for e in epsilons]
    return level, error, np.array(deltas)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("scale", "distance"),
    [
        (0.01, 1),
        (0.4, 1),
        (1.0, 5),
        (63.0, 7),
        (64.0, 7),
        (1e4, 7000),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(0.1, 2), (1.0, 1), (3.3, 2), (300.0, 500), (1e4, 1)]
        ),
    ],
)
def test_curves_and_deltas_are_those_of_the_most_powerful_tests(law, scale, distance):
    curve = CURVES[law](scale, distance)
    largest = distance / scale * (1 if law is DiscreteLaplace else 4)
    epsilons = np.array([0.0, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999]) * largest
    level, error, deltas = errors_and_deltas(law, scale, distance, epsilons)
    alpha = np.array([1e-8, 1e-5, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.9, 0.99])
    # rounding of sums of up to a million terms, and what lies beyond the window
    np.testing.assert_allclose(curve(alpha), np.interp(alpha, level, error), atol=1e-13)
    assert curve(0.0) == 1 and curve(1.0) == 0
    resolved = deltas > 1e-290
    np.testing.assert_allclose(curve.delta(epsilons)[resolved], deltas[resolved], rtol=2e-13)
    # the epsilon of a delta has that delta; rounding it changes delta by up to 1e4 as much
    np.testing.assert_allclose(curve.delta(curve.epsilon(deltas))[resolved], deltas[resolved], rtol=1e-12)


def test_tiny_deltas_keep_their_digits():
    """Of laws so near that the two tails cancel, and so far out that there is hardly any."""
    scale, epsilon, first = 1000, 0.02, 20001  # the ratio exp((2 k − 1)/(2·1000²)) exceeds exp(0.02) from there on
    with mpmath.workdps(40):
        want = mpmath.mpf(0)
        for k in range(first, first + 3000):  # the last term is exp(-60) of the first
            mass = mpmath.exp(-(mpmath.mpf(k - 1) ** 2) / (2 * scale**2)) / (scale * mpmath.sqrt(2 * mpmath.pi))
            want -= mass * mpmath.expm1(mpmath.mpf(epsilon) - mpmath.mpf(2 * k - 1) / (2 * scale**2))
    assert want < 1e-90
    # the rounding of an exponent of 200
    assert DiscreteGaussianTradeoff(scale, 1).delta(epsilon) == pytest.approx(float(want), rel=2e-13)


@pytest.mark.parametrize("curve", CURVES.values())
def test_curves_take_arrays_of_scales_and_distances(curve):
    scales, distances = np.array([0.3, 2.0, 100.0]), np.array([1, 2, 30])
    together = curve(scales, distances)
    for method, argument in (("__call__", 0.05), ("delta", 0.2), ("epsilon", 0.01)):
        one_by_one = [getattr(curve(s, d), method)(argument) for s, d in zip(scales, distances, strict=True)]
        np.testing.assert_array_equal(getattr(together, method)(argument), one_by_one)
        grid = getattr(curve(scales[:, None], 3), method)(np.full(4, argument))
        assert grid.shape == (3, 4)


def test_pure_noise_has_delta_zero_from_its_budget_on():
    for scale, distance in ((36.0, 1), (0.001, 3), (7.0, 10**6)):
        curve = DiscreteLaplaceTradeoff(scale, distance)
        assert curve.delta(distance / scale) == 0
        assert curve.epsilon(0.0) == distance / scale
        assert np.all(np.isfinite(curve([0.0, 1e-300, 0.5, 1.0])))


@pytest.mark.parametrize("distance", [1, 40, 10**6])
def test_fine_noise_has_the_curves_of_continuous_noise(distance):
    """A grid of 1e-6 scales is not to be told from none by more than the mass of a point, 1e-6."""
    scale, alpha = 1e6, np.linspace(0, 1, 11)
    pairs = (
        (DiscreteLaplaceTradeoff(scale, distance), LaplaceTradeoff(distance / scale)),
        (DiscreteGaussianTradeoff(scale, distance), GaussianTradeoff(distance / scale)),
    )
    for discrete, continuous in pairs:
        np.testing.assert_allclose(discrete(alpha), continuous(alpha), atol=1e-6)
        np.testing.assert_allclose(
            discrete.delta(0.1 * distance / scale), continuous.delta(0.1 * distance / scale), rtol=1e-5
        )


def worst_rows(scale, distance, columns, epsilons, reach):
    """Largest hockey-stick divergence and lowest corners of all integer vectors so long, over all released rows."""
    side = np.arange(-reach, reach + 1)
    mass = np.exp(-((side / scale) ** 2) / 2)
    first = functools.reduce(np.multiply.outer, [mass / mass.sum()] * columns)
    worst, corners = np.zeros(len(epsilons)), []
    for vector in itertools.product(range(int(distance) + 1), repeat=columns):
        if list(vector) != sorted(vector) or not 0 < np.dot(vector, vector) <= distance**2 + 1e-9:
            continue
        # what the shift moves beyond the grid is negligible
        second = np.roll(first, vector, tuple(range(columns)))
        sticks = [np.sum(np.maximum(second - np.exp(e) * first, 0.0)) for e in epsilons]
        worst = np.maximum(worst, sticks)
        order = np.argsort(-(second / first).ravel())
        corners.append([np.cumsum(first.ravel()[order]), 1 - np.cumsum(second.ravel()[order])])
    return worst, np.concatenate(corners, axis=1)


@pytest.mark.parametrize(("scale", "distance", "columns"), [(1.0, 2.0, 4), (0.4, 3.0, 2), (1.3, 6**0.5, 3)])
def test_rows_are_hidden_as_the_worst_integer_vector_is(scale, distance, columns):
    epsilons = [0.0, 0.5, 2.0, 5.0]
    worst, (level, error) = worst_rows(scale, distance, columns, epsilons, reach=10)
    curve = DiscreteGaussianRowsTradeoff(scale, distance, columns)
    # outputs beyond the grid have a mass of exp(-(10 - 2)²/2 1.3²) = 6e-9; sums of 2e5 terms round less
    np.testing.assert_allclose(curve.delta(epsilons), worst, rtol=1e-10, atol=1e-8)
    below = error - curve(np.clip(level, 0.0, 1.0))
    assert np.min(below) > -1e-8 and np.min(np.abs(below[(level > 0.05) & (level < 0.5)])) < 1e-8
    assert curve.epsilon(curve.delta(1.0)) == pytest.approx(1.0, rel=1e-10)


def test_one_column_is_not_the_worst_way_to_move_rows_of_counts():
    statistic = DiscreteGaussianMechanism(1.0, columns=4, sensitivity=2.0)
    (worst,), _ = worst_rows(1.0, 2.0, 4, [2.0], reach=10)
    assert statistic.guarantee.delta(2.0) == pytest.approx(worst, rel=1e-9)  # 0.315, in one column 0.267
    assert statistic.attribute_guarantee.delta(2.0) == statistic.guarantee.delta(2.0)
    # one column, or counts that move by one in all, have the curve of one column
    for mechanism in (DiscreteGaussianMechanism(1.0, sensitivity=2.0), DiscreteGaussianMechanism(0.5, columns=3)):
        want = DiscreteGaussianTradeoff(mechanism.scale, mechanism.sensitivity).delta(2.0)
        assert mechanism.guarantee.delta(2.0) == want
    rows = DiscreteGaussianMechanism(1.0, 0, 1, columns=3)
    assert rows.guarantee.delta(1.0) == pytest.approx(worst_rows(1.0, 3**0.5, 3, [1.0], reach=10)[0][0], rel=1e-9)
    assert rows.attribute_guarantee.delta(1.0) == DiscreteGaussianTradeoff(1.0, 1).delta(1.0)


def test_where_vectors_are_too_many_the_curve_of_rows_is_just_below_theirs():
    epsilons, alpha = np.array([0.0, 0.1, 0.5]), np.array([0.01, 0.05, 0.5])
    near = [DiscreteGaussianRowsTradeoff(scale, 3.0, 3) for scale in (16.0, 16.0 * (1 + 1e-9))]
    # by one of the two at the last scale at which they are gone through, and by the other just above it: the standard
    # deviation is smaller by 1.99/(2·16²), 0.4 %, times the slope of log delta, about (ε/μ)² + 2 and 9 at most
    ratio = near[1].delta(epsilons) / near[0].delta(epsilons)
    assert np.all(ratio > 1 - 1e-8) and np.all(ratio < 1.05)
    assert np.all(near[1](alpha) <= near[0](alpha))
    scales = np.array([2.0, 1000.0])  # one a released row
    far = DiscreteGaussianRowsTradeoff(scales, 100.0, 50)
    np.testing.assert_allclose(far.delta(0.1)[1], GaussianTradeoff(0.1).delta(0.1), rtol=1e-5)
    assert far.delta(0.1).shape == (2,) and DiscreteGaussianRowsTradeoff(1.0, 100.0, 50).epsilon(0.5) == np.inf


def test_noises_know_their_curves():
    assert isinstance(DiscreteLaplace(2.0).tradeoff(np.array([0.0, 3.0])), DiscreteLaplaceTradeoff)
    assert isinstance(DiscreteLaplace(2.0).tradeoff(np.array([1.0, 3.0])), PureProtocolTradeoff)
    assert DiscreteLaplace(2.0).tradeoff(np.array([1.0, 3.0])).epsilon(0.0) == 2
    curve = DiscreteGaussian(np.array([2.0, 5.0])).tradeoff(np.array([-3.0]))
    np.testing.assert_array_equal(curve.delta(1.0), DiscreteGaussianTradeoff([2.0, 5.0], 3).delta(1.0))
    assert isinstance(DiscreteGaussian(2.0).tradeoff(np.array([1.0, 1.0])), DiscreteGaussianRowsTradeoff)
    for law in (DiscreteLaplace(2.0), DiscreteGaussian(2.0)):
        for distance in ([0.5], [0.0], [np.inf]):
            with pytest.raises(ValueError, match="must be integers, not all 0"):
                law.tradeoff(np.array(distance))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_impossible_parameters_are_refused(bad):
    for make in (DiscreteLaplace, DiscreteGaussian, lambda s: DiscreteLaplaceTradeoff(s, 1)):
        with pytest.raises(ValueError, match=r"scale must be positive and at most 2\*\*53"):
            make(bad)
    for distance in (0, 1.5, np.inf):
        with pytest.raises(ValueError, match="distance must be a positive integer"):
            DiscreteGaussianTradeoff(1.0, distance)


def test_curves_of_huge_scales_and_distances_are_found_at_once():
    for scale in (1e15, 2.0**53):  # where neighbouring numbers of double precision are up to 64 apart
        curve = DiscreteGaussianTradeoff(scale, scale)  # of normal laws one standard deviation apart
        delta = stats.norm.cdf(-0.5) - np.e * stats.norm.cdf(-1.5)
        np.testing.assert_allclose(curve.delta(1.0), delta, rtol=1e-9)
        np.testing.assert_allclose(curve.delta(curve.epsilon(1e-6)), 1e-6, rtol=1e-6)
        np.testing.assert_allclose(curve(0.3), stats.norm.cdf(stats.norm.isf(0.3) - 1), rtol=1e-9)
    for scale, distance in ((2.0, 2.0**53), (1e8, 2.0**53), (1e-3, 1e12)):
        curve = DiscreteGaussianTradeoff(scale, distance)
        np.testing.assert_allclose(curve.delta(1.0), 1.0, rtol=1e-15)
        np.testing.assert_allclose(curve.epsilon(1e-6), (distance / scale) ** 2 / 2, rtol=1e-5)  # and little more


def test_whole_numbers_that_floats_leave_out_are_refused():
    for law in (DiscreteLaplace, DiscreteGaussian):
        with pytest.raises(ValueError, match=r"scale must be positive and at most 2\*\*53, got 1e\+17"):
            law(1e17)
        for bounds in ({"lower": 0, "upper": 1e17}, {"lower": -1e17, "upper": 0}, {"sensitivity": 1e17}):
            with pytest.raises(
                ValueError, match=r"must be a whole number up to 2\*\*53 under AdditiveM.*, got -?1e\+17"
            ):
                AdditiveMechanism(law(2.0), **bounds)
        AdditiveMechanism(law(2.0), sensitivity=np.inf)


@pytest.mark.parametrize(("scale", "distance", "beyond"), [(64, 6000, 150), (64, 100, 400), (100, 20_000, 500)])
def test_delta_of_laws_far_apart_is_the_sum_over_what_is_rejected(scale, distance, beyond):
    k = distance + beyond  # the ratio of the laws is exp(epsilon) there
    epsilon = (k - distance / 2) * distance / scale**2
    mp = mpmath.mp
    with mp.workdps(60):
        mass = {j: mp.exp(-(mp.mpf(j) ** 2) / (2 * scale**2)) for j in range(beyond, k + 20 * scale)}
        total = mp.jtheta(3, 0, mp.exp(-mp.mpf(1) / (2 * scale**2)))
        above = mp.fsum(mass[j] for j in range(beyond + 1, beyond + 20 * scale))
        far = mp.fsum(mass[j] for j in range(k + 1, k + 20 * scale))
        delta = float((above - mp.exp(mp.mpf(epsilon)) * far) / total)
    np.testing.assert_allclose(DiscreteGaussianTradeoff(scale, distance).delta(epsilon), delta, rtol=1e-10)
