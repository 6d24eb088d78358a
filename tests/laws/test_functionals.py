"""Functionals of laws against closed forms, SciPy and dense quadrature, with their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from mpmath import mp
from scipy import special, stats

from ldpbayes import functionals
from ldpbayes.likelihood import SmoothDensity
from tests.programs import constant, evaluate

pytestmark = pytest.mark.usefixtures("x64")
FRACTIONS = np.array([0.01, 0.1, 0.5, 0.9, 0.999])
SHAPES = np.array([0.05, 1.0, 3.0, 200.0])
SIGMAS = np.array([0.05, 0.5, 1.0, 3.0])
CURVE = functionals.lorenz(FRACTIONS)


def of_shares(law, longer):
    """Lorenz curve from SciPy's law and that of records in proportion to their size."""
    return longer.cdf(law.ppf(FRACTIONS[:, None])).T


LAWS = {  # how the law is made, its Gini coefficient, its Lorenz curve
    "exponential": (lambda: dist.Exponential(2.0), 0.5, FRACTIONS + (1 - FRACTIONS) * np.log1p(-FRACTIONS)),
    "uniform": (lambda: dist.Uniform(0.0, 3.0), 1 / 3, FRACTIONS**2),
    "uniform above zero": (lambda: dist.Uniform(1.0, 3.0), 1 / 6, (FRACTIONS + FRACTIONS**2) / 2),
    "log-normal": (
        lambda: dist.LogNormal(1.0, SIGMAS),
        special.erf(SIGMAS / 2),
        stats.norm.cdf(stats.norm.ppf(FRACTIONS) - SIGMAS[:, None]),
    ),
    "Pareto without a variance": (lambda: dist.Pareto(2.0, 1.5), 0.5, 1 - (1 - FRACTIONS) ** (1 / 3)),
    "gamma": (
        lambda: dist.Gamma(SHAPES, 2.0),
        np.exp(special.gammaln(SHAPES + 0.5) - special.gammaln(SHAPES + 1)) / np.sqrt(np.pi),
        of_shares(stats.gamma(SHAPES), stats.gamma(SHAPES + 1)),
    ),
    "beta": (
        lambda: dist.Beta(np.array([0.2, 2.0, 40.0]), 3.0),
        [2 / a * np.exp(special.betaln(2 * a, 6) - 2 * special.betaln(a, 3)) for a in (0.2, 2, 40)],
        of_shares(stats.beta([0.2, 2, 40], 3), stats.beta([1.2, 3, 41], 3)),
    ),
}


def gini_and_curve(law):
    return functionals.gini(law), CURVE(law)


SLOW = {"beta", "exponential", "uniform"}


@pytest.mark.parametrize(
    "make, coefficient, curve",
    [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, case in LAWS.items()],
)
def test_gini_coefficients_and_lorenz_curves_are_those_of_closed_forms(make, coefficient, curve):
    law = make()
    gini, shares = evaluate(gini_and_curve, law)
    np.testing.assert_allclose(gini, coefficient, rtol=0, atol=1e-10)
    np.testing.assert_allclose(shares, curve, rtol=0, atol=1e-10)
    assert shares.shape == (*law.batch_shape, len(FRACTIONS))


@pytest.mark.parametrize("rise", [5.0, 20.0, 200.0])
def test_the_gini_coefficient_of_a_steep_density_is_that_of_its_pieces_in_closed_form(rise):
    steps = rise * np.random.default_rng(2).choice([-1.0, 1.0], 40)
    law = SmoothDensity(np.append(0.0, np.cumsum(steps)), 0.0, 1.0)
    starts = np.cumsum(np.append(0.0, steps[:-1]))
    mass = [mp.exp(start) * mp.expm1(u) / u for start, u in zip(starts, map(mp.mpf, steps), strict=True)]
    above, means, squares = mp.mpf(1), mp.mpf(0), mp.mpf(0)
    for m, u in zip([m / sum(mass) for m in mass], map(mp.mpf, steps), strict=True):
        # P(X > x) = above − m G, where G = expm1(u s)/expm1(u) over a piece 0 ≤ s ≤ 1
        first = 1 / u - 1 / mp.expm1(u)
        second = (mp.expm1(2 * u) / (2 * u) - 2 * mp.expm1(u) / u + 1) / mp.expm1(u) ** 2
        means += (above - m * first) / 40
        squares += (above**2 - 2 * above * m * first + m**2 * second) / 40
        above -= m
    assert evaluate(functionals.gini, law) == pytest.approx(float(1 - squares / means), abs=1e-9)


@pytest.mark.parametrize("outside", [pytest.param(None, marks=pytest.mark.slow), (0.05, 0.1)])
def test_smooth_densities_agree_with_dense_quadrature_atoms_and_all(outside):
    values = np.cumsum(np.random.default_rng(0).normal(size=(2, 41)), axis=-1)
    law = SmoothDensity(values, 1.0, 100.0, outside)
    below, above = outside or (0.0, 0.0)
    t, w = np.polynomial.legendre.leggauss(64)
    half = 0.5 * (law.knots[1] - law.knots[0])
    x, w = (law.knots[:-1, None] + half * (1 + t)).ravel(), np.tile(half * w, 40)
    density = np.array([np.interp(x, law.knots, each) for each in values])
    density = np.exp(density - density.max(axis=-1, keepdims=True)) * w
    density *= (1 - below - above) / density.sum(axis=-1, keepdims=True)  # masses of the nodes
    mean = density @ x + below + 100 * above
    # at a knot the curve is a sum of masses; an atom at the lower end is a line, one at the upper end the rest
    place = 20 * 64
    held = (density[:, :place] @ x[:place] + below) / mean

    @jax.jit
    def of_law(law):
        several = functionals.quantile([0.02, 0.95])(law), functionals.cdf([0.99, 1.0, 100.0])(law)
        levels = law.cdf(law.knots[20])
        ends = functionals.lorenz([0.02, 0.95])(law)
        curve = functionals._lorenz(law, levels[None])[0]  # at a fraction of each law's own
        return law.cdf(x[:, None]), functionals.gini(law), functionals.mean(law), curve, ends, *several

    cdf, gini, means, curve, ends, quantiles, shares = of_law(law)
    np.testing.assert_allclose(means, mean, rtol=1e-12)
    np.testing.assert_allclose(gini, 1 - (1 + (1 - np.asarray(cdf).T) ** 2 @ w) / mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(curve, held, rtol=0, atol=1e-8)
    if outside:
        np.testing.assert_allclose(ends, np.array([0.02 / mean, 1 - 5 / mean]).T, rtol=1e-8)
        np.testing.assert_array_equal(quantiles, [[1.0, 100.0]] * 2)
        np.testing.assert_allclose(shares, [[0, 0.05, 1]] * 2, rtol=1e-12)
        slope = jax.jit(jax.grad(lambda f: functionals.quantile(0.02)(SmoothDensity(f, 1.0, 100.0, outside))))
        np.testing.assert_array_equal(slope(values[0]), np.zeros(41))


LEVELS = np.array([1e-6, 0.1, 0.5, 0.999])
QUANTILES = functionals.quantile(LEVELS)


def test_quantiles_invert_any_distribution_function():
    gamma, scipy_gamma = dist.Gamma(SHAPES, 3.0), stats.gamma(SHAPES[:, None], scale=1 / 3)
    np.testing.assert_allclose(evaluate(QUANTILES, gamma), scipy_gamma.ppf(LEVELS), rtol=1e-9)
    probabilities, locations = np.array([0.3, 0.7]), np.array([-2.0, 3.0])
    mixture = dist.MixtureSameFamily(dist.Categorical(probabilities), dist.Normal(locations, np.array([0.5, 0.5])))
    quantiles = evaluate(QUANTILES, mixture)
    cdf = stats.norm.cdf(quantiles[:, None], locations, 0.5) @ probabilities
    np.testing.assert_allclose(cdf, LEVELS, rtol=1e-9)
    np.testing.assert_array_equal(evaluate(QUANTILES, dist.Poisson(3.3)), stats.poisson.ppf(LEVELS, 3.3))
    assert evaluate(QUANTILES, dist.Normal(2.0, 1.0))[2] == 2.0


def test_derivatives_are_those_of_differences():
    def difference(function, at, step=1e-5):
        return (function(at + step) - function(at - step)) / (2 * step)

    quantile, at = functionals.quantile(0.3), functionals.cdf([0.0, 2.0, np.inf])

    def ends_of_log_normal(s):
        return functionals.gini(dist.LogNormal(0.0, s)), functionals.lorenz(0.3)(dist.LogNormal(0.0, s))

    @jax.jit
    def derivatives(shapes):
        return (
            jax.vmap(jax.grad(lambda a: quantile(dist.Gamma(a, 3.0))))(shapes),
            jax.jacfwd(ends_of_log_normal)(0.7),
            jax.grad(lambda b: functionals.gini(dist.Uniform(1.0, b)))(3.0),
            jax.jacfwd(lambda a: at(dist.Gamma(a, 3.0)))(2.0),
        )

    of_quantiles, (gini, curve), of_uniform, of_cdf = derivatives(SHAPES)
    expected = difference(lambda a: stats.gamma.ppf(0.3, a, scale=1 / 3), SHAPES)
    np.testing.assert_allclose(of_quantiles[1:], expected[1:], rtol=1e-7)
    np.testing.assert_allclose(gini, np.exp(-0.49 / 4) / np.sqrt(np.pi), rtol=1e-10)
    np.testing.assert_allclose(curve, -stats.norm.pdf(stats.norm.ppf(0.3) - 0.7), rtol=1e-10)
    np.testing.assert_allclose(of_uniform, 1 / 24, rtol=1e-10)
    expected = [0.0, difference(lambda a: stats.gamma.cdf(6.0, a), 2.0), 0.0]
    np.testing.assert_allclose(of_cdf, expected, rtol=1e-7, atol=1e-12)


def test_wrappers_batches_and_transformations_change_nothing():
    law = dist.Exponential(np.array([1.0, 2.0]))
    share, one = functionals.share([0, 1], [1, np.inf]), functionals.share(1, 2)
    expected = np.stack([1 - np.exp([-1.0, -2.0]), np.exp([-1.0, -2.0])], axis=-1)

    @jax.jit
    def shares(law):
        wrapped = [share(same) for same in (law, law.mask(np.array([True, False])), law.to_event(1))]
        mapped = jax.vmap(lambda rate: share(dist.Exponential(rate)))(law.rate)
        return [*wrapped, mapped], share(law.expand((3, 2))), one(law), functionals.sd(law)

    alike, several, of_one, sd = shares(law)
    for same in (share(law), *alike):
        np.testing.assert_allclose(same, expected, rtol=1e-12)
    np.testing.assert_allclose(several, [expected] * 3, rtol=1e-12)
    assert share.dim == "interval" and share.labels == ("(0, 1]", "(1, inf]")
    assert CURVE.dim == "fraction" and CURVE.labels == tuple(FRACTIONS)
    assert one.dim is one.labels is None and of_one.shape == (2,)
    np.testing.assert_allclose(sd, [1.0, 0.5])


def test_what_has_no_such_functional_is_said():
    for make, message in (
        (lambda: functionals.quantile(1.0), "q must be between 0 and 1, exclusive, got 1.0"),
        (lambda: functionals.quantile([0.5, np.nan]), r"q must be between 0 and 1, exclusive, got q\[1\] = nan"),
        (lambda: functionals.lorenz(-0.1), "at must be between 0 and 1, exclusive, got -0.1"),
        (lambda: functionals.cdf(np.nan), "at must be numbers, perhaps infinite, got nan"),
        (lambda: functionals.share(2, [3, 2]), "low must be below high"),
        (lambda: functionals.cdf(np.zeros((2, 2))), r"must be a number or of shape \(m,\), got shape \(2, 2\)"),
        (
            lambda: evaluate(functionals.gini, dist.Normal(1.0, 1.0)),
            "continuous and without negative numbers, got Normal",
        ),
        (lambda: evaluate(CURVE, dist.Poisson(1.0)), "continuous and without negative numbers, got Poisson"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    for function, law, message in (
        (functionals.mean, dist.Categorical(np.ones(2) / 2), "a univariate law of numbers, got Categorical"),
        (functionals.mean, dist.MultivariateNormal(np.zeros(2), np.eye(2)), "univariate .* got MultivariateNormal"),
        (functionals.mean, 3.0, "univariate law of numbers, got float"),
        (functionals.quantile(0.5), dist.VonMises(0.0, 1.0), "VonMises lacks the cdf or the moments"),
    ):
        with pytest.raises(TypeError, match=message):
            evaluate(function, constant(law))


def test_masses_of_counts_are_those_of_scipy_at_any_points():
    points = np.array([3.0, 0.5, 7.0, -1.0])
    law = dist.NegativeBinomial2(2.0, np.array([1.0, 0.3]))
    density = evaluate(functionals.density(points), law)
    expected = [stats.nbinom.pmf(points, size, size / (size + 2.0)) for size in (1.0, 0.3)]
    # NumPyro's logarithms of gamma functions are good to 1e-6 in single precision, in which these may run
    np.testing.assert_allclose(density, expected, rtol=5e-6)


COUNTS = {
    "bernoulli": (lambda: dist.Bernoulli(0.3), stats.bernoulli(0.3)),
    "binomial": (lambda: dist.Binomial(np.array([3, 7]), 0.4), stats.binom(np.array([[3], [7]]), 0.4)),
    "geometric": (lambda: dist.Geometric(0.2), stats.geom(0.2, loc=-1)),
    "log-odds": (lambda: dist.GeometricLogits(-0.5), stats.geom(special.expit(-0.5), loc=-1)),
    # NumPyro's probabilities of this law are right to 3e-7
    "beta-binomial": (lambda: dist.BetaBinomial(2.0, 3.0, 5), stats.betabinom(5, 2.0, 3.0)),
}
POINTS = np.array([-1.0, 0.0, 1.0, 2.5, 4.0, 9.0])
CDF, SOME_QUANTILES = functionals.cdf(POINTS), functionals.quantile([0.001, 0.45, 0.97])


@pytest.mark.parametrize("law", COUNTS)
def test_counts_have_the_cdf_and_the_quantiles_of_scipy(law):
    (make, reference), finite = COUNTS[law], law in ("binomial", "beta-binomial")
    law = make()
    np.testing.assert_allclose(evaluate(CDF, constant(law)), reference.cdf(POINTS), rtol=0, atol=3e-7)
    quantiles = SOME_QUANTILES(law) if finite else evaluate(SOME_QUANTILES, law)
    np.testing.assert_array_equal(quantiles, reference.ppf(SOME_QUANTILES.points))


def test_zero_inflated_counts_have_the_cdf_of_their_mixture():
    law = dist.ZeroInflatedPoisson(np.array([0.2, 0.6]), 2.0)
    expected = np.array([[0.2], [0.6]]) + np.array([[0.8], [0.4]]) * stats.poisson(2.0).cdf(np.maximum(POINTS, 0.0))
    expected[:, 0] = 0.0
    np.testing.assert_allclose(evaluate(CDF, law), expected, rtol=1e-12)


def densities_at(points, laws):
    return jnp.stack([functionals.density(at)(law) for at, law in zip(points, laws, strict=True)])


def test_at_an_end_that_a_support_leaves_out_the_density_is_its_limit():
    laws = [dist.HalfNormal(2.0), dist.Exponential(3.0), dist.Gamma(2.0), dist.HalfCauchy(1.0), dist.LogNormal()]
    laws += [dist.Weibull(1.0, 1.0), dist.Beta(1.0, 3.0), dist.Pareto(1.5, 3.0), laws[0]]
    found = evaluate(densities_at, constant((*[0.0] * 7, 1.5, -1e-9)), laws)
    expected = [np.sqrt(0.5 / np.pi), 3, 0, 2 / np.pi, 0, 1, 3, 2, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)
    assert found[-1] == 0.0
