"""Laws of what a reporting rule prints, of numbers that are what they are, and of normal numbers under discrete noise.

References are sums over counts by `scipy.stats` masses, and adaptive quadrature over normal records.
"""

import functools
import itertools
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import (
    AdditiveMechanism,
    Capped,
    Floored,
    Incomplete,
    Rounded,
    StaircaseMechanism,
    Withheld,
    ZeroInflatedLaplaceMechanism,
)
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, SymmetricLaplace
from tests.programs import call, constant

pytestmark = pytest.mark.usefixtures("x64")
K = np.arange(60000)  # of the widest law, 1e-13 is beyond
RATES = np.array([0.05, 2.0, 30.0, 600.0])
COUNTS = {
    "poisson": (dist.Poisson, lambda r: stats.poisson(r).logpmf(K)),
    "negative binomial": (
        lambda r: dist.NegativeBinomial2(r, 0.3),
        lambda r: stats.nbinom(0.3, 0.3 / (0.3 + r)).logpmf(K),
    ),
    "geometric": (lambda r: dist.GeometricProbs(1 / (1 + r)), lambda r: stats.geom(1 / (1 + r), loc=-1).logpmf(K)),
    "zero-inflated": (
        lambda r: dist.ZeroInflatedPoisson(0.2, r),
        lambda r: np.logaddexp(np.where(K == 0, np.log(0.2), -np.inf), np.log(0.8) + stats.poisson(r).logpmf(K)),
    ),
}


def statistic(noise):
    return AdditiveMechanism(noise, sensitivity=1.0)


# both kinds of noise with every law; what else there is, once
SUMS = [*itertools.product(["gaussian", "laplace"], ["poisson", "negative binomial"])]
SUMS += [("gaussian", "geometric"), ("laplace", "zero-inflated"), ("continuous", "poisson"), ("exponential", "poisson")]
NOISES = {
    "gaussian": DiscreteGaussian(np.array([4.0, 4.0, 4.0, 1.0])),  # windows of two widths
    "laplace": DiscreteLaplace(np.array([2.0, 4.0, 0.7, 1.0])),
    "continuous": Gaussian(3.0),
    "exponential": Laplace(3.0),
}


@pytest.mark.parametrize(
    ("noise", "law"),
    [pytest.param(*case, marks=() if number == 0 else pytest.mark.slow) for number, case in enumerate(SUMS)],
)
def test_sums_over_all_counts_in_rules_are_exact_and_have_their_gradients(noise, law):
    base, log_mass = COUNTS[law]
    rule = Capped(Withheld(Rounded(statistic(NOISES[noise]), 4.0), 12.0), 400.0)
    z = np.array([np.nan, 12.0, 16.0, 400.0])

    def total(rates):
        log_prob = ldp.Privatized(base(rates[:, None]), rule).log_prob(z)
        return jnp.sum(log_prob), log_prob

    (_, got), slope = jax.jit(jax.value_and_grad(total, has_aux=True))(RATES)
    # log P(reported z | k) is checked against its definition where rules are
    kernel = call("log_prob", constant(rule), z, K[:, None])
    want = [special.logsumexp(log_mass(rate)[:, None] + kernel, axis=0) for rate in RATES]
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-10)
    h = 1e-4 * RATES
    ends = (
        np.sum([special.logsumexp(log_mass(rate)[:, None] + kernel, axis=0) for rate in r], axis=1)
        for r in (RATES + h, RATES - h)
    )
    np.testing.assert_allclose(slope, np.subtract(*ends) / (2 * h), rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("noise", [Gaussian(3.0), Laplace(3.0)], ids=["gaussian", "laplace"])
def test_counts_under_continuous_noise_without_bounds_are_sums_over_counts(noise):
    z = np.array([-7.3, 0.0, 12.4, 500.0])
    got = jax.jit(lambda r: ldp.Privatized(dist.Poisson(r[:, None]), statistic(noise)).log_prob(z))(RATES)
    kernel = call("log_prob", statistic(noise), z, K[:, None])
    want = [special.logsumexp(stats.poisson(r).logpmf(K)[:, None] + kernel, axis=0) for r in RATES]
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-10)


def quadrature(base, function, cuts):
    """Log of ∫ p(x) function(x) dx, cut at points."""
    points = base.loc + base.scale * np.arange(-38, 39, 2.0)
    points = np.unique(np.concatenate([points, [cut for cut in cuts if points[0] < cut < points[-1]]]))
    t, w = np.polynomial.legendre.leggauss(40)
    half = np.diff(points)[:, None] / 2
    x = points[:-1, None] + half * (1 + t)
    values = stats.norm(base.loc, base.scale).logpdf(x) + function(x)
    return special.logsumexp(values, b=half * w)


NORMALS = [Gaussian(4.0), Laplace(3.0), SymmetricLaplace(60.0), DiscreteLaplace(3.0), DiscreteLaplace(60.0)]


@pytest.mark.parametrize(
    "noise",
    [pytest.param(noise, marks=() if number == 3 else pytest.mark.slow) for number, noise in enumerate(NORMALS)],
)
def test_normal_statistics_in_rules_are_integrals(noise):
    rule = Withheld(Rounded(statistic(noise), 5.0), 20.0)
    z = np.array([np.nan, 20.0, 100.0])
    low, high = rule.interval(z)

    def of_parameters(parameters):
        return ldp.Privatized(dist.Normal(*parameters), rule).log_prob(z)

    with_slopes = jax.jit(lambda at: (of_parameters(at), jax.jacfwd(of_parameters)(at)))
    for loc, scale in ((3.0, 2.0), (-60.0, 0.7), (20.0, 40.0)):
        base, at = dist.Normal(loc, scale), np.array([loc, scale])
        want = [
            quadrature(base, lambda x, a=a, b=b: call("log_interval", constant(noise), a - x, b - x), (a, b))
            for a, b in zip(low, high, strict=True)
        ]
        log_prob, slopes = with_slopes(at)
        np.testing.assert_allclose(log_prob, want, rtol=1e-11, atol=1e-9)
        ends = [[np.asarray(with_slopes(at + step)[0]) for step in (h, -h)] for h in 1e-5 * np.eye(2)]
        numeric = np.stack([(above - below) / 2e-5 for above, below in ends], axis=-1)
        np.testing.assert_allclose(slopes, numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_normal_statistics_under_discrete_gaussian_noise_in_rules_are_sums_of_their_masses():
    mechanism, base, k = (
        statistic(DiscreteGaussian(4.0)),
        dist.Normal(np.array([[3.3], [-40.0]]), 2.5),
        np.arange(-400.0, 400),
    )
    mass = np.asarray(ldp.Privatized(base, mechanism).log_prob(k))
    rule = Withheld(mechanism, 20.0)
    got = ldp.Privatized(base, rule).log_prob(np.array([np.nan, 25.0]))
    np.testing.assert_allclose(got[:, 0], special.logsumexp(mass[:, k < 20], axis=1), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(got[:, 1], mass[:, k == 25][:, 0], rtol=1e-14)


@pytest.mark.parametrize("bounds", [None, (-2.0, 6.0)], ids=["statistic", "clipped"])
@pytest.mark.parametrize("noise", [DiscreteLaplace(3.0), DiscreteGaussian(0.6)], ids=["laplace", "gaussian"])
@pytest.mark.slow
def test_normal_numbers_under_discrete_noise_are_integrals_of_its_formula(noise, bounds):
    mechanism = statistic(noise) if bounds is None else AdditiveMechanism(noise, *bounds)
    z, base = np.array([-30.0, 0.0, 5.0, 5.5]), dist.Normal(1.3, 1.7)
    got = jax.jit(lambda z: ldp.Privatized(base, mechanism).log_prob(z))(z)
    cuts = [*z, *(bounds or ())]
    want = [quadrature(base, lambda x, at=at: call("log_prob", constant(mechanism), at, x), cuts) for at in z[:3]]
    np.testing.assert_allclose(got[:3], want, rtol=1e-10)
    assert np.isneginf(got[3])


@pytest.mark.parametrize(("scale", "deviation"), [(3.0, 1.7), pytest.param(0.7, 0.9, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_errors_of_normal_numbers_under_discrete_noise_are_those_stated(scale, deviation):
    k = np.arange(-600.0, 600.0)
    ripple = 2 * np.exp(-2 * np.pi**2 * deviation**2)
    total = np.exp(ldp.Privatized(dist.Normal(0.3, deviation), statistic(DiscreteLaplace(scale))).log_prob(k)).sum()
    assert total == pytest.approx(2 * scale * np.tanh(0.5 / scale), abs=ripple + 1e-12)
    assert total == pytest.approx(1 - 1 / (12 * scale**2), abs=1 / (120 * scale**4))
    total = np.exp(ldp.Privatized(dist.Normal(0.3, deviation), statistic(DiscreteGaussian(scale))).log_prob(k)).sum()
    assert total == pytest.approx(1 - 2 * np.exp(-2 * np.pi**2 * scale**2), abs=ripple + 1e-7)
    # a normal number that is rounded before it gets the noise has a variance larger by 1/12
    x = np.arange(-30.0, 31.0)
    law = stats.norm(0.3, deviation)
    masses = law.cdf(x + 0.5) - law.cdf(x - 0.5)
    noise = np.exp(DiscreteGaussian(scale).log_prob((np.arange(-3.0, 4.0)[:, None] - x)[..., None]))
    rounded = ldp.Privatized(dist.Normal(0.3, np.sqrt(deviation**2 + 1 / 12)), statistic(DiscreteGaussian(scale)))
    np.testing.assert_allclose(np.exp(rounded.log_prob(np.arange(-3.0, 4.0))), noise @ masses, rtol=5e-3)


BOUNDED = [
    ldp.LaplaceMechanism(1.0, -1.0, 3.0),
    ldp.GaussianMechanism(2.0, 1e-3, -1.0, 3.0),
    StaircaseMechanism(1.0, -1.0, 3.0),
]


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(mechanism, id=type(mechanism).__name__, marks=() if number == 0 else pytest.mark.slow)
        for number, mechanism in enumerate(BOUNDED)
    ],
)
@pytest.mark.slow
def test_clipped_records_in_rules_are_integrals(mechanism):
    base, z = dist.Normal(0.4, 1.3), np.array([np.nan, 2.5, 7.0])
    rule = Rounded(Withheld(mechanism, 1.2), 0.5)
    got = ldp.Privatized(base, rule).log_prob(z)
    law, (low, high) = stats.norm(0.4, 1.3), rule.interval(z)
    at = [rule.log_prob(z, end) + tail for end, tail in ((-1.0, law.logcdf(-1.0)), (3.0, law.logsf(3.0)))]
    for i in range(3):

        def density(x, i=i):
            return law.pdf(x) * np.exp(float(rule.log_prob(z[i : i + 1], x)[0]))

        cuts = np.unique(np.clip([-1, 3, low[i], high[i], *np.ravel(rule.breakpoints(z)[i])], -1, 3))
        inside = sum(integrate.fixed_quad(np.vectorize(density), *pair, n=24)[0] for pair in itertools.pairwise(cuts))
        assert got[i] == pytest.approx(np.log(inside + np.exp(at[0][i]) + np.exp(at[1][i])), abs=1e-9)
    # what is printed as it was released has its law without a rule
    alone = Withheld(mechanism, 1.2)
    np.testing.assert_allclose(
        ldp.Privatized(base, alone).log_prob(np.array([2.25]))[0],
        ldp.Privatized(base, mechanism).log_prob(2.25),
        atol=1e-9,
    )


@pytest.mark.slow
def test_clipped_counts_in_rules_are_sums_and_a_sketch_of_them_says_as_much():
    rule = Withheld(ldp.DiscreteLaplaceMechanism(2.0, 0, 10), 3.0)
    z = np.asarray(rule.randomize(jax.random.key(0), np.random.default_rng(0).poisson(4, 300)))
    release = ldp.Release(z, rule)

    def model(data):
        ldp.observe("z", dist.Poisson(numpyro.param("rate", 4.5)), data)

    both = [log_density(model, (data,), {}, {})[0] for data in (release, release.sketch())]
    assert both[0] == pytest.approx(float(both[1]), rel=1e-12)
    masses = np.append(stats.poisson(4.5).pmf(K[:10]), stats.poisson(4.5).sf(9))
    want = np.log(np.exp(rule.log_prob(z, K[:11, None])).T @ masses).sum()
    assert both[0] == pytest.approx(want, rel=1e-12)


MECHANISMS = [statistic(noise) for noise in (Laplace(2.0), Gaussian(2.0), DiscreteLaplace(2.0), DiscreteGaussian(2.0))]
MECHANISMS += [ldp.LaplaceMechanism(1.0, 0, 8), ldp.DiscreteGaussianMechanism(2.0, 0, 8), StaircaseMechanism(1.0, 0, 8)]
MECHANISMS += [Withheld(MECHANISMS[3], 3.0), Floored(ldp.LaplaceMechanism(1.0, 0, 8), 5.0), Incomplete(MECHANISMS[0])]


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(each, marks=() if number in (3, 7) else pytest.mark.slow) for number, each in enumerate(MECHANISMS)],
)
def test_a_number_that_is_what_it_is_has_the_mechanisms_own_density(mechanism):
    z = np.array([5.0, 9.0])
    moments = mechanism not in MECHANISMS[7:9]

    @jax.jit
    def both(number, numbers):
        def own(n):
            return mechanism.log_prob(z, n)

        def marginal(n):
            return ldp.Privatized(dist.Delta(n), mechanism).log_prob(z)

        law, several = ldp.Privatized(dist.Delta(number), mechanism), dist.Delta(numbers).expand([2])
        return (
            [marginal(number), own(number)],
            [jax.grad(lambda n, f=f: jnp.sum(f(n)))(number) for f in (marginal, own)],
            [ldp.Privatized(several, mechanism).log_prob(z), own(numbers)],
            [(law.mean, law.variance), mechanism.moments(number)] if moments else [(), ()],
        )

    of_one, slopes, of_several, of_moments = both(4.3, np.array([1.0, 4.3]))
    np.testing.assert_array_equal(*of_one)
    np.testing.assert_allclose(*slopes, rtol=1e-12)
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(*of_several, rtol=1e-14)
    np.testing.assert_allclose(*of_moments, rtol=1e-6)


def test_point_masses_elsewhere_are_refused():
    number, mechanism = dist.Delta(1.0), ldp.LaplaceMechanism(1.0, 0, 1)
    mixture = dist.MixtureGeneral(
        dist.Categorical(jnp.array([0.5, 0.5])), [dist.Normal(0, 1), number], support=number.support
    )
    for law, kind, options in (
        (mixture, mechanism, {}),
        (number, mechanism, {"method": "channel"}),
        (number, ldp.RandomizedResponse(1.0), {}),
    ):
        with pytest.raises(ValueError, match="base_dist must have no point masses, got Delta"):
            ldp.Privatized(law, kind, **options)


CDFS = [
    (lambda: dist.Normal(3.0, 2.0), statistic(Laplace(3.0))),
    (lambda: dist.Normal(3.0, 2.0), statistic(DiscreteGaussian(3.0))),
    (lambda: dist.Poisson(4.0), statistic(DiscreteLaplace(3.0))),
    (lambda: dist.Delta(4.0), statistic(Gaussian(3.0))),
    (lambda: dist.Gamma(2.0, 0.5), ldp.LaplaceMechanism(1.0, 0, 8)),
    (lambda: dist.Binomial(9, 0.3), ldp.DiscreteGaussianMechanism(2.0, 0, 8)),
]


@pytest.mark.parametrize(
    ("base", "mechanism"),
    [pytest.param(*case, marks=() if number == 2 else pytest.mark.slow) for number, case in enumerate(CDFS)],
)
def test_the_cdf_is_what_a_threshold_withholds_and_what_a_unit_rounds_off(base, mechanism):
    discrete, threshold = mechanism.noise.discrete, 6.0
    before = threshold - 1 if discrete else np.nextafter(threshold, -np.inf)
    ends, values = ((9.0, 5.0) if discrete else (10.0, 6.0)), np.array([-500.0, 0.0, 3.5, 600.0])
    at, of_density = np.array([before, *ends]), values[1:3]

    @jax.jit
    def numbers():
        law = ldp.Privatized(base(), mechanism)
        withheld = ldp.Privatized(base(), Withheld(mechanism, threshold)).log_prob(np.array([np.nan]))
        rounded = ldp.Privatized(base(), Rounded(mechanism, 4.0)).log_prob(np.array([8.0]))
        # the derivative of a continuous law's distribution function is the density
        slopes = None if discrete else (jax.vmap(jax.grad(law.cdf))(of_density), law.log_prob(of_density))
        return withheld, rounded, law.cdf(np.concatenate([at, values])), slopes

    withheld, rounded, cdf, slopes = jax.tree.map(np.asarray, numbers())
    np.testing.assert_allclose(np.exp(withheld)[0], cdf[0], rtol=1e-12)
    np.testing.assert_allclose(np.exp(rounded)[0], cdf[1] - cdf[2], rtol=1e-8)
    assert np.all(np.diff(cdf[3:]) > 0) and cdf[3] < 1e-5 and cdf[-1] > 1 - 1e-5
    if not discrete:
        np.testing.assert_allclose(slopes[0], np.exp(slopes[1]), rtol=1e-7)


@pytest.mark.slow
def test_cdf_and_moments_are_refused_where_there_are_none():
    with pytest.raises(TypeError, match="cdf is only for numbers that all have additive noise, got RandomizedR"):
        ldp.Privatized(dist.Bernoulli(0.5), ldp.RandomizedResponse(1.0)).cdf(0)
    with pytest.raises(TypeError, match="all have additive noise, got ZeroInflatedLaplaceMechanism"):
        ldp.Privatized(dist.Normal(), ZeroInflatedLaplaceMechanism(0.2, 2.0, -1.0, 3.0)).cdf(0)
    for rule in (Floored(statistic(Laplace(1.0))), Floored(ldp.LaplaceMechanism(1.0, 0, 1))):
        with pytest.raises(ValueError, match="Floored has no formula for the moments"):
            ldp.Privatized(dist.Normal(0.0, 1.0), rule).mean  # noqa: B018
    with pytest.raises(ValueError, match="StudentT has no closed form under Floored without bounds"):
        ldp.Privatized(dist.StudentT(3.0), Floored(statistic(Laplace(1.0))))


OPTIONS = {"num_warmup": 300, "num_samples": 500, "num_chains": 2, "progress_bar": False, "seed": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", [*MECHANISMS[:4], MECHANISMS[7]], ids=lambda mechanism: type(mechanism.noise).__name__
)
def test_a_fixed_number_is_fitted_under_a_flat_prior(mechanism):
    release = ldp.Release([41.0], mechanism)

    def model(release):
        n = numpyro.sample("n", dist.ImproperUniform(dist.constraints.real, (), ()))
        ldp.observe("z", dist.Delta(n), release)

    draws = ldp.fit(model, release, **OPTIONS)["posterior"]["n"].values.ravel()
    deviation = float(np.sqrt(mechanism.noise.variance))
    # at least 100 effective draws: five standard errors
    assert abs(draws.mean() - 41) < 0.5 * deviation
    assert draws.std() == pytest.approx(deviation, rel=0.4)


@pytest.mark.slow
def test_an_enumerated_whole_number_is_summed_over():
    release = ldp.Release([4.0], statistic(DiscreteGaussian(2.0)))

    def model():
        n = numpyro.sample("n", dist.Binomial(9, 0.3), infer={"enumerate": "parallel"})
        ldp.observe("z", dist.Delta(n), release)

    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as summed

    got = summed(enum(config_enumerate(model), -2), (), {}, {})[0]
    x = np.arange(10)
    want = special.logsumexp(stats.binom(9, 0.3).logpmf(x) + np.asarray(release.mechanism.log_prob(4.0, x)))
    assert got == pytest.approx(want, rel=1e-10)


@jax.jit
@functools.partial(jax.value_and_grad, argnums=0)
def total_of_shares(parameters, shares, rule):
    return jnp.sum(ldp.Privatized(dist.Beta(*parameters), rule).log_prob(shares))


@pytest.mark.slow
@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")
def test_shares_that_were_clamped_to_0_1_have_the_maximum_of_quadrature():
    path = pathlib.Path(os.environ["LDPBAYES_DATA"]).parent / "cases" / "capped_shares.csv"
    shares = np.loadtxt(path, skiprows=1)
    mechanism = ldp.GaussianMechanism.from_standard_deviation(0.1, 0.0, 1.0)
    rule = Capped(Floored(mechanism, 0.0), 1.0)
    shares = ldp.Release(shares, rule).values
    x, w = np.polynomial.legendre.leggauss(400)
    u, w = (x + 1) / 2, w / 2
    x, w = u**2 * (3 - 2 * u), w * 6 * u * (1 - u)  # denser at both ends

    def by_quadrature(parameters):
        law, noise = stats.beta(*parameters).pdf(x) * w, stats.norm(0, 0.1)
        inside = noise.pdf(shares[:, None] - x) @ law
        return np.log(np.where(shares == 1, noise.sf(1 - x) @ law, np.where(shares == 0, noise.cdf(-x) @ law, inside)))

    best, h = np.array([16.354, 1.762]), 1e-4
    slopes = []
    for parameters in (best, best + [h, 0], best + [0, h]):
        got, slope = total_of_shares(parameters, shares, rule)
        assert float(got) == pytest.approx(np.sum(by_quadrature(parameters)), rel=1e-10)
        slopes.append(slope)
    newton = -np.linalg.solve(np.subtract(slopes[1:], slopes[0]).T / h, slopes[0])
    np.testing.assert_allclose(newton, 0, atol=6e-4)


@pytest.mark.slow
def test_intervals_from_capped_values_cover():
    """Of 200 data sets, 90 % intervals hold the mean of normal numbers as often as they should, at 99 %."""
    rule, count = Capped(Floored(AdditiveMechanism(Gaussian(1.0), sensitivity=np.inf), -1.0), 2.0), 200
    grid = np.linspace(-1.0, 3.0, 161)

    @jax.jit
    def log_density_of(z):
        return jnp.sum(ldp.Privatized(dist.Normal(grid[:, None], 1.5), rule).log_prob(z), axis=1)

    rng, covered = np.random.default_rng(0), 0
    for _ in range(count):
        mean = rng.normal(1.0, 0.3)
        z = np.clip(rng.normal(mean, np.hypot(1.5, 1.0), 60), -1.0, 2.0)
        p = np.exp(special.log_softmax(np.asarray(log_density_of(z)) + stats.norm(1.0, 0.3).logpdf(grid)))
        covered += 0.05 < np.interp(mean, grid, np.cumsum(p) - p / 2) < 0.95
    low, high = stats.binom(count, 0.9).ppf([0.005, 0.995])
    assert low <= covered <= high
