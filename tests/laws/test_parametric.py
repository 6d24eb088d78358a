"""Families: sensitivities that nothing exceeds, laws of clamped records and of their sums, and estimates from them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, optimize, special, stats

from ldpbayes import bootstrap, mechanisms, noise
from ldpbayes.bootstrap.statistics import SufficientStatisticsEstimator
from ldpbayes.laws.parametric import PointMasses, free_parameters, sum_of_draws, table_of_one, table_of_sum
from ldpbayes.mechanisms import AdditiveMechanism, DiscreteGaussianMechanism, DiscreteLaplaceMechanism

pytestmark = pytest.mark.usefixtures("x64")

ON_THE_LINE = {
    "gaussian mean": (bootstrap.NormalMean(2.0, -1.0, 4.0), {"loc": 1.2}, stats.norm(1.2, 2.0)),
    "gaussian": (bootstrap.Normal(-1.0, 4.0), {"loc": 2.5, "scale": 1.5}, stats.norm(2.5, 1.5)),
    "exponential": (bootstrap.Exponential(2.0), {"rate": 0.8}, stats.expon(scale=1 / 0.8)),
    "gamma rate": (bootstrap.GammaRate(0.7, 0.01, 3.0), {"rate": 0.5}, stats.gamma(0.7, scale=2.0)),
    "gamma": (bootstrap.Gamma(0.05, 4.0), {"concentration": 2.0, "rate": 1.3}, stats.gamma(2.0, scale=1 / 1.3)),
    "beta": (bootstrap.Beta(0.02, 0.9), {"concentration1": 0.8, "concentration0": 2.0}, stats.beta(0.8, 2.0)),
    "poisson": (bootstrap.Poisson(6), {"rate": 3.0}, stats.poisson(3.0)),
    "binomial": (bootstrap.Binomial(5), {"probs": 0.3}, stats.binom(5, 0.3)),
    "bernoulli": (bootstrap.Bernoulli(), {"probs": 0.3}, stats.bernoulli(0.3)),
}
ROWS = {
    "multinomial": bootstrap.Multinomial(4),
    "normal rows of 1": bootstrap.NormalVector([-1.0], [3.0]),
    "normal rows of 2": bootstrap.NormalVector([-1.0, 0.0], [3.0, 1.0]),
    "normal rows of 3": bootstrap.NormalVector([-1.0, 0.0, 5.0], [3.0, 1.0, 9.0]),
}
FAMILIES = {name: family for name, (family, *_) in ON_THE_LINE.items()} | ROWS


def on_demand(names, default):
    """Parameters of a test: those that are not ``default`` take a path that another one takes too, and are slow."""
    return [name if name in default else pytest.param(name, marks=pytest.mark.slow) for name in names]


# functions of the family, so that families of a kind share what is compiled, in whichever test


@jax.jit
def moments_of(family, params):
    return family.moments(params)


@jax.jit
def statistics_of(family, x):
    return family.statistics(x)


@jax.jit
def mean_and_slope(family, scale):
    return jax.value_and_grad(lambda scale: family.moments({"scale": scale})[0][0])(scale)


@jax.jit
def solved(family, mean):
    return family.solve(mean), family.solve_clamped(mean)


@jax.jit
def totals_of(family, params, count):
    keys = jax.random.split(jax.random.key(1), 20_000)
    return jax.vmap(lambda key: family.total(key, params, count))(keys)


@jax.jit
def table_of(family, params, count):
    return table_of_sum(family.law(params), count, None)


def records(family, rng, size):
    """Records all over what is not clamped, many of them at its ends."""
    if isinstance(family, bootstrap.Multinomial):
        return rng.integers(0, family.categories, size)
    lower, upper = np.asarray(family.lower), np.asarray(family.upper)
    share = np.clip(rng.uniform(-0.3, 1.3, (size, *lower.shape)), 0, 1)
    x = lower + (upper - lower) * share
    return np.round(x) if getattr(family, "lattice_step", None) else x


def furthest(family, order):
    """Two records whose statistics are as far apart as is stated."""
    if isinstance(family, bootstrap.Multinomial):
        return 0, 1
    if not isinstance(family, bootstrap.NormalVector):
        if isinstance(family, bootstrap.Normal) and order == 1:
            return family.upper, family.lower + (family.upper - family.lower) / 4  # u = 1 and -1/2
        return family.lower, family.upper
    d, s = family.dimension, np.sqrt(2)
    if order == 1:
        away = (6 + 2 * s * (d - 1)) / (2 * (2 * s * d + 4 - 2 * s))
        return family.upper, family.upper - away * (family.upper - family.lower)
    signs = np.where(np.arange(d) < (d + 1) // 2, -1.0, 1.0)  # sums to 0 or −1
    return family.upper, family.centre + family.half * signs


@pytest.mark.parametrize("name", FAMILIES)
def test_no_two_records_exceed_the_sensitivity_and_two_attain_it(name, rng):
    family = FAMILIES[name]
    pairs = [records(family, rng, 1_000_000) for _ in range(2)]
    for order in (1, 2):
        for side, record in enumerate(furthest(family, order)):
            pairs[side][order - 1] = record
    first, second = (np.asarray(statistics_of(family, side)) for side in pairs)
    distance = np.abs(first - second).reshape(len(first), -1)
    for order, norms in ((1, distance.sum(axis=1)), (2, np.sqrt((distance**2).sum(axis=1)))):
        stated = family.sensitivity(order)
        assert norms.max() <= stated * (1 + 1e-12)
        assert norms[order - 1] == pytest.approx(stated, rel=1e-12)


def test_noise_on_whole_numbers_is_for_statistics_that_are_whole():
    kinds = DiscreteLaplaceMechanism, DiscreteGaussianMechanism
    for family, sensitivity, released in ((bootstrap.Multinomial(3), 2.0, 0), (bootstrap.Poisson(upper=9), 9.0, 1)):
        made = [
            SufficientStatisticsEstimator(family, kind(2.0, columns=family.columns, sensitivity=sensitivity), 5)
            for kind in kinds
        ]
        assert made[released].release(np.array([1, 0, 2, 2, 1]), seed=0).values.dtype.kind in "if"
    real = DiscreteLaplaceMechanism(2.0, sensitivity=9.0)
    with pytest.raises(ValueError, match="must have continuous noise: the statistics are real numbers"):
        SufficientStatisticsEstimator(bootstrap.Exponential(upper=9.0), real, 5)


@pytest.mark.parametrize("wrapped", [noise.WithPublicRecords, lambda law: noise.ZeroInflated(law, 0.1)])
def test_a_statistic_is_measured_in_the_norm_of_its_noise_whatever_wraps_it(wrapped):
    family = bootstrap.Gamma(0.1, 10.0)  # two records move the sums by 1 in both columns

    def estimator(law, sensitivity):
        mechanism = AdditiveMechanism(law, columns=family.columns, sensitivity=sensitivity)
        return SufficientStatisticsEstimator(family, mechanism, 50)

    for law in (noise.Laplace(1.0), wrapped(noise.Laplace(1.0))):
        with pytest.raises(ValueError, match=r"statistics by 2, but the sensitivity of the mechanism is 1\.41421"):
            estimator(law, 2**0.5)
        assert estimator(law, 2.0).mechanism.noise.norm == 1
    assert estimator(wrapped(noise.SymmetricLaplace(1.0)), 2**0.5).mechanism.noise.norm == 2
    # in units of the first column's noise, as a sensitivity is, the second column moves by 10
    with pytest.raises(ValueError, match=r"can change the statistics by 14\.1421"):
        estimator(noise.IndependentGaussian([1.0, 0.1]), 2**0.5)


@pytest.mark.parametrize("name", on_demand(ON_THE_LINE, ["gaussian mean", "gaussian", "gamma", "beta", "poisson"]))
def test_moments_of_clamped_records_are_those_of_adaptive_quadrature(name):
    family, params, law = ON_THE_LINE[name]
    record = family.distribution(params)
    np.testing.assert_allclose([record.mean, record.variance], law.stats(), rtol=1e-6)
    center, spread = moments_of(family, params)

    def statistics(x):
        return np.ravel(statistics_of(family, x))

    if family.lattice_step:
        k = np.arange(200.0)
        values = np.asarray(statistics_of(family, k)).reshape(len(k), -1)
        value, square = law.pmf(k) @ values, (law.pmf(k) * values.T) @ values
    else:
        low, high = family.lower, family.upper

        def mean(function):
            inside = integrate.quad_vec(lambda x: law.pdf(x) * function(x), low, high, epsabs=1e-12)[0]
            return inside + law.cdf(low) * function(low) + law.sf(high) * function(high)

        value, square = mean(statistics), mean(lambda x: np.outer(statistics(x), statistics(x)))
    np.testing.assert_allclose(center, value, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(spread, square - np.outer(value, value), rtol=1e-7, atol=1e-9)


@noise.pytree
@dataclasses.dataclass(frozen=True)
class HalfNormal(bootstrap.OneParameterFamily):
    """A family as an analyst would write it, of `docs/how_to/bootstrap.md`."""

    upper: float = None

    base = dist.HalfNormal
    record_range = (0.0, np.inf)
    lower = 0.0

    @property
    def ranges(self):
        return {"scale": (1e-3 * self.upper, 10 * self.upper)}

    def of_mean(self, mean):
        return mean * np.sqrt(np.pi / 2)

    def reach(self, record):
        return 0.0, record.scale, 9 * record.scale


def test_a_family_of_ones_own_is_a_law_a_range_and_where_its_density_is():
    family, law = HalfNormal(2.0), stats.halfnorm(scale=1.5)
    center, spread = moments_of(family, {"scale": 1.5})
    first, second = (integrate.quad(lambda x, k=k: x**k * law.pdf(x), 0, 2)[0] + 2**k * law.sf(2) for k in (1, 2))
    np.testing.assert_allclose([center[0], spread[0, 0]], [first, second - first**2], rtol=1e-8)  # quad's own tolerance
    plain, clamped = solved(family, np.asarray(first))
    assert float(plain[0]["scale"]) == pytest.approx(first * np.sqrt(np.pi / 2), rel=1e-12)
    assert float(clamped[0]["scale"]) == pytest.approx(1.5, rel=1e-7)
    with pytest.raises(ValueError, match="upper is missing"):
        HalfNormal()
    forgetful = type("Forgetful", (HalfNormal,), {"reach": bootstrap.NumberFamily.reach})
    with pytest.raises(NotImplementedError, match="Forgetful must define the method `reach`"):
        forgetful(2.0).law({"scale": 1.5})


@noise.pytree
@dataclasses.dataclass(frozen=True)
class Geometric(bootstrap.Counts):
    upper: int = mechanisms.static(default=None)
    base = dist.GeometricProbs
    ranges = {"probs": (0.01, 0.99)}

    def of_mean(self, mean):
        return 1 / (1 + mean)


def test_a_family_of_whole_numbers_of_ones_own_derives_from_counts():
    law = stats.geom(0.3, loc=-1)
    clamped = sum(min(k, 9) * law.pmf(k) for k in range(200))  # beyond which there is 0.7^200, 1e-31
    assert float(moments_of(Geometric(9), {"probs": 0.3})[0][0]) == pytest.approx(clamped, rel=1e-12)
    integrated = type("Integrated", (HalfNormal,), {"base": dist.GeometricProbs})
    with pytest.raises(TypeError, match=r"Integrated has whole numbers: derive it from .*Counts"):
        integrated(9.0).law({"probs": 0.3})


class Rayleigh(HalfNormal):
    """A law whose density is 0 at the bound, where its logarithm has no derivative."""

    def distribution(self, params):
        return dist.Weibull(np.sqrt(2) * params["scale"], 2.0)

    def of_mean(self, mean):
        return mean / np.sqrt(np.pi / 2)

    def reach(self, record):
        return 0.0, record.scale / np.sqrt(2), 6.5 * record.scale


def test_a_density_that_is_0_at_a_bound_has_derivatives_there():
    family, scale, bound = noise.pytree(dataclasses.dataclass(frozen=True)(Rayleigh))(3.0), 1.2, 3.0
    ratio = bound / (np.sqrt(2) * scale)
    mean = np.sqrt(np.pi / 2) * special.erf(ratio) * scale  # the integral of P(x > t) from 0 to the bound
    slope = mean / scale - bound / scale * np.exp(-(ratio**2))
    value, backwards = mean_and_slope(family, scale)
    np.testing.assert_allclose([value, backwards], [mean, slope], rtol=1e-10)


OUTSIDE = {
    "gaussian": np.array([0.9, 0.5]),  # a second moment below the square of the first
    "gamma": np.array([0.9, 0.1]),  # log of the mean below the mean of the log
    "beta": np.array([0.99, 1.2]),
    "exponential": np.array(-1.0),
    "poisson": np.array(-2.0),
    "binomial": np.array(7.0),
}


@pytest.mark.parametrize("name", on_demand(ON_THE_LINE, ["gaussian", "gamma", "poisson"]))
def test_a_clamped_expectation_is_inverted(name):
    family, params, _ = ON_THE_LINE[name]
    center, _ = moments_of(family, params)
    found, outside = solved(family, np.asarray(center if family.columns else center[0]))[1]
    assert not outside
    for parameter, value in params.items():
        assert float(found[parameter]) == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize("name", ON_THE_LINE)
def test_a_mean_of_statistics_without_clamping_gives_the_parameters_back(name):
    family, params, _ = ON_THE_LINE[name]
    params = {key: jnp.asarray(value) for key, value in params.items()}
    found, outside = jax.jit(lambda at: family.solve(family.mean(at)))(params)
    assert not outside
    for parameter, value in params.items():
        assert float(found[parameter]) == pytest.approx(float(value), rel=1e-9)


def test_gamma_and_beta_estimates_are_those_of_maximum_likelihood(rng):
    x = rng.gamma(1.7, 2.0, 300)
    family = bootstrap.Gamma(1e-3 * x.min(), 2 * x.max())
    found, _ = jax.jit(lambda x: family.solve(family.statistics(x).mean(axis=0)))(x)
    shape, _, scale = stats.gamma.fit(x, floc=0)
    assert float(found["concentration"]) == pytest.approx(shape, rel=1e-6)
    assert float(found["rate"]) == pytest.approx(1 / scale, rel=1e-6)
    y = rng.beta(2.0, 0.6, 300)
    beta = bootstrap.Beta(0.5 * y.min(), 1 - 0.5 * (1 - y.max()))
    found, _ = jax.jit(lambda y: beta.solve(beta.statistics(y).mean(axis=0)))(y)
    loss = optimize.minimize(lambda p: -stats.beta.logpdf(y, *np.exp(p)).mean(), [0.0, 0.0], tol=1e-12)
    expected = np.exp(loss.x)
    np.testing.assert_allclose([found["concentration1"], found["concentration0"]], expected, rtol=1e-4)


@pytest.mark.parametrize("name", on_demand(OUTSIDE, ["gaussian", "gamma", "poisson", "binomial"]))
def test_statistics_that_no_records_have_give_parameters_in_the_ranges_and_are_flagged(name):
    family = ON_THE_LINE[name][0]
    for found, outside in solved(family, OUTSIDE[name]):
        assert outside
        for parameter, (least, most) in family.ranges.items():
            assert float(least) * (1 - 1e-9) <= float(found[parameter]) <= float(most) * (1 + 1e-9)


def test_shares_are_projected_onto_the_simplex():
    family = bootstrap.Multinomial(3)
    found, outside = jax.jit(family.solve)(np.array([0.7, 0.6, -0.2]))
    np.testing.assert_allclose(found["probs"], [0.55, 0.45, 0.0])
    assert outside


def test_a_covariance_that_noise_has_made_negative_is_raised():
    family = bootstrap.NormalVector([-1.0, -1.0], [1.0, 1.0])
    second = np.array([[0.5, 0.6], [0.6, 0.5]])
    mean = np.array([0.0, 0.0, second[0, 0], second[1, 1], np.sqrt(2) * second[0, 1]])
    found, outside = jax.jit(family.solve)(mean)
    assert outside
    values = np.linalg.eigvalsh(found["covariance_matrix"])
    np.testing.assert_allclose(values, [4e-6, 1.1], rtol=1e-9)


def allowed(family, params):
    """Whether a family's law has these parameters."""
    law = family.distribution(params)
    return jnp.all(jnp.stack([jnp.all(law.arg_constraints[name](value)) for name, value in params.items()]))


def parameters_of(name):
    family = FAMILIES[name]
    params = ON_THE_LINE[name][1] if name in ON_THE_LINE else {"probs": [0.1, 0.2, 0.3, 0.4]}
    if name.startswith("normal rows"):
        params = {"loc": family.centre, "covariance_matrix": 0.8 * np.eye(family.dimension) + 0.2}
    return {key: np.asarray(value) for key, value in params.items()}


@pytest.mark.parametrize(
    "name", on_demand(FAMILIES, ["gaussian", "gamma", "binomial", "multinomial", "normal rows of 2"])
)
def test_any_step_of_free_values_leads_to_parameters_and_the_free_values_of_parameters_lead_back(name, rng):
    family, params = FAMILIES[name], parameters_of(name)
    free = jax.eval_shape(lambda params: free_parameters(family.constraints, params)[0], params)
    steps = rng.normal(0, 3, (20, *free.shape))
    away = {key: value - np.abs(rng.normal(0, 3, (20, *value.shape))) for key, value in params.items()}

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0, 0))
    def moved(params, step, away):
        free, params_of = free_parameters(family.constraints, params)
        ahead = [params_of(free + step), family.nearest(away)]
        return params_of(free), [allowed(family, at) for at in ahead]

    back, ahead = moved(params, steps, away)
    for key, value in back.items():
        np.testing.assert_allclose(value[0], params[key], rtol=1e-12)
    assert np.all(ahead)


# --- laws of sums ---------------------------------------------------------------------------------------------------


def of_sum(family, law, count):
    """Points, and the distribution function of a sum of clamped records, halfway up its jumps: by direct convolution.

    The mass of each cell stands at its ends, so that its mean is right; which adds a sixth of its width squared.
    """
    cells = 1_000_000 // count
    edges, width = np.linspace(family.lower, family.upper, cells + 1, retstep=True)
    t, w = np.polynomial.legendre.leggauss(8)
    share, inside = (1 + t) / 2, width / 2 * w * law.pdf(edges[:-1, None] + width / 2 * (1 + t))
    masses = np.zeros(cells + 1)
    masses[:-1] += inside @ (1 - share)
    masses[1:] += inside @ share
    masses[[0, -1]] += law.cdf(family.lower), law.sf(family.upper)
    size = count * cells + 1
    total = np.fft.irfft(np.fft.rfft(masses, 2**21) ** count, 2**21)[:size]
    return count * family.lower + width * np.arange(size), np.cumsum(total) - total / 2


@pytest.mark.slow
def test_the_table_of_a_sum_has_the_exact_distribution_function():
    """Errors are those of `of_sum`, 1e-6, and of linear interpolation, (1/205)²/8 · f' or 2e-6."""
    k = np.arange(25.0)
    masses = stats.poisson.pmf(k, 3.0)
    poisson = PointMasses(jnp.asarray(k), jnp.asarray(masses))
    edges, below, _ = jax.jit(table_of_sum, static_argnums=2)(poisson, 100.0, 1.0)
    np.testing.assert_allclose(below[1:], stats.poisson.cdf(np.floor(edges[1:]), 300.0), atol=1e-9)
    for shape, count in ((1e-3, 10_000), (0.01, 1000), (1.0, 60)):  # just smooth enough, and hardly clamped
        edges, below, smooth = table_of(bootstrap.GammaRate(shape, 1e-12, 60.0), {"rate": 1.0}, float(count))
        assert smooth
        points = np.linspace(edges[0], edges[-1], 20_001)
        np.testing.assert_allclose(np.interp(points, edges, below), stats.gamma.cdf(points, shape * count), atol=5e-6)
    for family, params, law, count in [
        (bootstrap.NormalMean(0.2, -3.0, 3.0), {"loc": 0.1}, stats.norm(0.1, 0.2), 100),
        (*ON_THE_LINE["gaussian mean"], 100),
        (bootstrap.NormalMean(1.0, 0.0, 5.0), {"loc": -1.0}, stats.norm(-1.0, 1.0), 400),
        (bootstrap.Exponential(1.0), {"rate": 0.1}, stats.expon(scale=10.0), 800),
        (bootstrap.GammaRate(0.01, 1e-3, 3.0), {"rate": 0.01}, stats.gamma(0.01, scale=100.0), 1200),
    ]:
        edges, below, smooth = table_of(family, params, float(count))
        assert smooth
        points, expected = of_sum(family, law, count)
        np.testing.assert_allclose(np.interp(points, edges, below), expected, atol=5e-6)


@pytest.mark.parametrize(
    "name",
    on_demand([name for name in ON_THE_LINE if not ON_THE_LINE[name][0].lattice_step], ["gaussian mean", "gamma"]),
)
def test_the_table_of_a_record_between_the_bounds_has_the_exact_distribution_function(name):
    family, params, law = ON_THE_LINE[name]
    at, below = jax.jit(lambda params: table_of_one(family.law(params)))(params)
    middle = np.stack([(part[1:] + part[:-1]) / 2 for part in (np.asarray(at), np.asarray(below))])
    low, high = law.cdf(family.lower), law.cdf(family.upper)
    np.testing.assert_allclose(middle[1], (law.cdf(middle[0]) - low) / (high - low), atol=2e-6)


@pytest.mark.parametrize(
    ("family", "params", "law", "count"),
    [
        (bootstrap.NormalMean(1.0, 0.0, 5.0), {"loc": -3.0}, stats.norm(-3.0, 1.0), 300),
        (bootstrap.NormalMean(300.0, 0.0, 5.0), {"loc": -3.0}, stats.norm(-3.0, 300.0), 1000),
        *(
            pytest.param(family, params, law, 100, marks=pytest.mark.slow)
            for family, params, law in [
                (bootstrap.NormalMean(1.0, 0.0, 5.0), {"loc": -2.0}, stats.norm(-2.0, 1.0)),
                (bootstrap.Exponential(1.0), {"rate": 0.01}, stats.expon(scale=100.0)),
                (bootstrap.GammaRate(0.01, 1e-3, 3.0), {"rate": 0.01}, stats.gamma(0.01, scale=100.0)),
            ]
        ),
    ],
    ids=["all but a few at a bound", "most at both bounds", "normal", "exponential", "gamma"],
)
def test_sums_of_records_of_which_nearly_all_are_clamped_have_their_atoms(family, params, law, count):
    """20,000 draws of a right law are further than 0.0224 from it with probability 2·exp(−20) (Massart)."""
    totals = np.asarray(totals_of(family, {name: np.asarray(at) for name, at in params.items()}, float(count)))
    # halfway up the jumps, of the draws too: those on an atom are within rounding of it
    points, below = of_sum(family, law, count)
    slack = 1e-9 * count * family.upper
    drawn = (np.searchsorted(np.sort(totals), points[:, None] + [-slack, slack])).mean(axis=1) / len(totals)
    np.testing.assert_allclose(drawn, below, atol=0.0224)
    assert totals.min() >= count * family.lower - slack
    assert totals.max() <= count * family.upper + slack
    spread = np.sqrt(moments_of(family, params)[1][0, 0] * count)
    excess = stats.kurtosis(totals)
    assert totals.std() == pytest.approx(spread, rel=5 * np.sqrt((excess + 2) / 4 / len(totals)))


def drawn(name, params, count, rng):
    """Records of a law of codes or rows."""
    if name == "multinomial":
        return rng.choice(4, count, p=params["probs"])
    return rng.multivariate_normal(params["loc"], params["covariance_matrix"], count)


@pytest.mark.parametrize("name", on_demand(FAMILIES, ["poisson", "multinomial", "normal rows of 2"]))
def test_totals_are_distributed_as_sums_over_records(name, rng):
    """Each test errs with probability 1e-6, of a right law; there are two a statistic."""
    family, params, count, draws = FAMILIES[name], parameters_of(name), 150, 4000
    if name.startswith("normal rows"):  # whose count sets how many blocks are drawn, so that it is no argument
        keys = jax.random.split(jax.random.key(1), draws)
        totals = jax.jit(jax.vmap(lambda key: family.total(key, params, count)))(keys)
    else:
        totals = totals_of(family, params, float(count))[:draws]
    totals = np.asarray(totals).reshape(draws, -1)
    if name in ON_THE_LINE:
        x = ON_THE_LINE[name][2].rvs(draws * count, random_state=rng)
    else:
        x = drawn(name, params, draws * count, rng)
    direct = np.asarray(statistics_of(family, x)).reshape(draws, count, -1).sum(axis=1)
    for j in range(totals.shape[1]):
        lattice = getattr(family, "lattice_step", None) or name == "multinomial"
        jitter = rng.uniform(-0.5, 0.5, (2, draws)) if lattice else 0
        one, other = np.stack([totals[:, j], direct[:, j]]) + jitter
        assert stats.ks_2samp(one, other).pvalue > 1e-6
        assert abs(one.mean() - other.mean()) < 4.9 * np.hypot(one.std(), other.std()) / np.sqrt(draws)


def test_a_table_is_made_once_for_all_keys():
    family = ON_THE_LINE["gaussian mean"][0]
    keys = jax.random.split(jax.random.key(0), 64)
    traced = jax.make_jaxpr(jax.vmap(lambda key: sum_of_draws(key, family.law({"loc": 1.2}), 100.0)))(keys)
    assert not [eqn for eqn in traced.jaxpr.eqns if eqn.primitive.name == "cos" and eqn.outvars[0].aval.shape[0] == 64]


def test_point_masses_have_the_moments_of_the_law_they_stand_for():
    compressed = jax.jit(lambda law: law.compressed(12))
    law = jax.jit(ON_THE_LINE["gaussian"][0].law)({"loc": 2.5, "scale": 1.5})
    few = compressed(law)
    assert few.nodes.shape == (12,)
    for power in range(24):
        moment, expected = (np.asarray(masses.weights) @ np.asarray(masses.nodes) ** power for masses in (few, law))
        assert moment == pytest.approx(expected, rel=1e-10)
    nodes, weights = (np.resize(part, len(law.nodes)) for part in ([0.0, 0.5, 1.0], [0.1, 0.0, 0.9]))
    weights /= weights.sum()
    two = compressed(PointMasses(nodes, weights))
    assert np.isfinite(two.nodes).all()
    assert np.asarray(two.weights) @ np.asarray(two.nodes) ** 5 == pytest.approx(weights @ nodes**5)


WIDE = {
    "gaussian": {"lower": -20.0, "upper": 25.0},
    "gamma": {"lower": 1e-4, "upper": 60.0},
    "beta": {"lower": 1e-4, "upper": 1 - 1e-4},
}


@pytest.mark.parametrize("name", on_demand(WIDE, ["gamma", "beta"]))
def test_sums_from_few_masses_have_the_mean_and_covariance_of_sums_over_records(name):
    """A mean off by 2e-5 standard deviations is one off by a fiftieth of a standard error at a million records."""
    family, params, _ = ON_THE_LINE[name]

    @jax.jit
    def masses_of(bounded):
        few = bounded.masses(bounded.law(params))
        return few.weights, bounded.statistics(few.nodes)

    for bounded in (family, dataclasses.replace(family, **WIDE[name])):
        weights, values = map(np.asarray, masses_of(bounded))
        center, spread = map(np.asarray, moments_of(bounded, params))
        root = np.sqrt(np.diagonal(spread))
        np.testing.assert_array_less(np.abs(weights @ values - center) / root, 2e-5)
        away = values - center
        unit = np.outer(root, root)
        np.testing.assert_allclose((weights * away.T) @ away / unit, spread / unit, atol=2e-4)


@pytest.mark.parametrize("name", on_demand(ON_THE_LINE, ["gaussian mean", "gamma", "poisson"]))
def test_asymptotic_covariances_without_noise_or_clamping_are_inverse_information(name):
    family, params, _ = ON_THE_LINE[name]
    wide = {
        "gaussian mean": {"lower": -40.0, "upper": 40.0},
        "gaussian": {"lower": -20.0, "upper": 25.0},
        "exponential": {"upper": 60.0},
        "gamma rate": {"lower": 1e-9, "upper": 120.0},
        "gamma": {"lower": 1e-7, "upper": 60.0},
        "beta": {"lower": 1e-12, "upper": 1 - 1e-9},
        "poisson": {"upper": 60},
    }.get(name, {})
    family = dataclasses.replace(family, **wide)
    params = {key: jnp.asarray(value) for key, value in params.items()}
    expected = {
        "gaussian mean": lambda: [[4.0]],
        "gaussian": lambda: np.diag([1.5**2, 1.5**2 / 2]),
        "exponential": lambda: [[0.8**2]],
        "gamma rate": lambda: [[0.5**2 / 0.7]],
        "gamma": lambda: np.linalg.inv([[special.polygamma(1, 2.0), -1 / 1.3], [-1 / 1.3, 2.0 / 1.3**2]]),
        "beta": lambda: np.linalg.inv(
            np.diag(special.polygamma(1, [2.0, 0.8])) - special.polygamma(1, 2.8) * np.ones((2, 2))
        ),
        "poisson": lambda: [[3.0]],
        "binomial": lambda: [[0.3 * 0.7 / 5]],
        "bernoulli": lambda: [[0.3 * 0.7]],
    }[name]()
    both = jax.jit(lambda at: [family.covariance(at, 0.0, 1, clamped=clamped) for clamped in (False, True)])(params)
    for found in both:
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-8)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bootstrap.Normal(), "needs bounds"),
        (lambda: bootstrap.Normal(0.0), "upper is missing"),
        (lambda: bootstrap.Poisson(), "needs bounds"),
        (lambda: bootstrap.Poisson(6.5), "whole number"),
        (lambda: bootstrap.Exponential(), "needs bounds"),
        (lambda: bootstrap.Normal(3.0, 1.0), "below upper"),
        (lambda: bootstrap.Gamma(0.0, 1.0), "positive"),
        (lambda: bootstrap.Beta(0.1, 1.0), "but not an end"),
        (lambda: bootstrap.Beta(0.1, 1.5), "from 0 to 1"),
        (lambda: bootstrap.NormalMean(-1.0, 0.0, 1.0), "positive"),
        (lambda: bootstrap.NormalVector(0.0, 1.0), "one for each column"),
        (lambda: bootstrap.NormalVector(), "needs bounds"),
        (lambda: bootstrap.Multinomial(1), "of at least 2"),
        (lambda: bootstrap.Normal(0.0, 1.0).checked([[1.0]]), "array of numbers"),
        (lambda: bootstrap.Normal(0.0, 1.0).checked([1.0, np.nan]), "finite"),
        (lambda: bootstrap.Poisson(5).checked([1.5]), "whole"),
        (lambda: bootstrap.Bernoulli().checked([2]), "from 0 to 1"),
        (lambda: bootstrap.Multinomial(3).checked([3]), "from 0 to 2"),
        (lambda: bootstrap.NormalVector([0.0], [1.0]).checked([[1.0, 2.0]]), "rows"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
