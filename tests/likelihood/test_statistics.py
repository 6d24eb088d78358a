"""Normal statistics under noise without clipping, against exact convolutions."""

import jax
import mpmath
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.likelihood.closed_forms import closed_form
from tests.programs import call, constant

pytestmark = pytest.mark.usefixtures("x64")

Z = np.array([-50.0, -3.0, 0.2, 7.0, 400.0])


def convolution(z, mean, sigma, b):
    """Log density of N(mean, sigma²) plus Laplace noise of scale b, and its derivative in the mean, in 60 digits."""
    with mpmath.workdps(60):
        z, m, s, b = (mpmath.mpf(float(v)) for v in (z, mean, sigma, b))

        def log_density(m):
            t, shift = (z - m) / s, s / b
            sides = (mpmath.exp(shift**2 / 2 + sign * t * shift) * mpmath.ncdf(-sign * t - shift) for sign in (-1, 1))
            return mpmath.log(sum(sides) / (2 * b))

        return float(log_density(m)), float(mpmath.diff(log_density, m))


@pytest.mark.parametrize("scale", [0.01, *(pytest.param(b, marks=pytest.mark.slow) for b in (0.5, 3.0)), 100.0])
@pytest.mark.parametrize(
    "law", [noise.Laplace, lambda b: noise.SymmetricLaplace(np.sqrt(2) * b)], ids=["laplace", "symmetric"]
)
def test_a_normal_statistic_under_laplace_noise_is_the_convolution(law, scale):
    mechanism = ldp.mechanisms.AdditiveMechanism(law(scale), sensitivity=1.0)
    want = np.array([convolution(z, 0.3, 1.2, scale) for z in Z])

    @jax.jit
    def ours(mean):
        return jax.vmap(
            lambda z: jax.value_and_grad(lambda m: ldp.Privatized(dist.Normal(m, 1.2), mechanism).log_prob(z))(mean)
        )(Z)

    # 40 roundings of numbers as large as the result
    np.testing.assert_allclose(np.stack(ours(0.3), axis=1), want, rtol=1e-13, atol=1e-13)


def test_a_normal_statistic_under_gaussian_noise_is_normal():
    mechanism = ldp.GaussianMechanism(1.0, 1e-5, sensitivity=2.0)
    got = jax.jit(ldp.Privatized(dist.Normal(0.3, 1.2), mechanism).log_prob)(Z)
    np.testing.assert_allclose(got, stats.norm(0.3, np.hypot(1.2, mechanism.scale)).logpdf(Z), rtol=1e-14)


COVARIANCE = np.array([[1.0, 0.4], [0.4, 2.0]])


def by_product_rule(z, scale):
    """∫∫ N(x, y) Laplace(z − (x, y)) dx dy by Gauss rules of 30 points between edges 1.5 or 2 apart."""
    t, w = np.polynomial.legendre.leggauss(30)
    sides = []
    for at, reach in zip(z, (9.0, 12.0), strict=True):
        edges = np.sort(np.append(np.linspace(-reach, reach, 13), at))
        half = 0.5 * np.diff(edges)[:, None]
        x = (edges[:-1, None] + half * (1 + t)).ravel()
        sides.append((x, (half * w).ravel() * np.exp(-np.abs(at - x) / scale) / (2 * scale)))
    (x, wx), (y, wy) = sides
    density = stats.multivariate_normal([0, 0], COVARIANCE).pdf(np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1))
    return np.log(wx @ density @ wy)


@jax.jit
def of_normal_rows(covariance, mechanism, z):
    law = dist.MultivariateNormal(np.zeros(len(covariance)), covariance)
    return ldp.Privatized(law, mechanism).log_prob(z)


def test_normal_rows_under_independent_laplace_noise_are_the_convolution_in_both_columns():
    mechanism = ldp.LaplaceMechanism.from_scale(0.7, columns=2, sensitivity=1.0)
    z = np.array([[0.5, -1.0], [6.0, 2.0], [-4.0, 5.0]])
    got = of_normal_rows(COVARIANCE, mechanism, z)
    # the reference's 30 points over two standard deviations are exact to 1e-9, the mixing rule is as documented
    np.testing.assert_allclose(got, [by_product_rule(row, 0.7) for row in z], atol=1e-8)


@pytest.mark.parametrize(("spread", "within"), [pytest.param(0.5, 1e-8, marks=pytest.mark.slow), (0.1, 5e-6)])
def test_normal_rows_under_independent_laplace_noise_are_as_accurate_as_documented(spread, within):
    mechanism = ldp.LaplaceMechanism.from_scale(1.0, columns=3, sensitivity=1.0)
    z = np.array([[0.5, -1.0, 0.0], [6.0, 0.3, -2.0]])
    got = of_normal_rows(spread**2 * np.eye(3), mechanism, z)
    # independent columns have the exact convolution each
    want = [sum(convolution(at, 0.0, spread, 1.0)[0] for at in row) for row in z]
    np.testing.assert_allclose(got, want, rtol=0, atol=within)


def test_a_regression_under_gaussian_noise_is_the_joint_normal():
    covariance, slopes = np.array([[0.5, 0.1], [0.1, 0.8]]), np.array([0.5, -1.0])
    mechanism = ldp.GaussianMechanism(1.0, 1e-2, -9.0, 9.0, columns=3, perturbed=(0, 1))
    rows = ldp.likelihood.RegressionRows(
        dist.MultivariateNormal(np.array([0.1, -0.2]), covariance),
        lambda eta: dist.Normal(eta, 0.6),
        slopes,
        0.4,
        nodes=40,
    )
    cross = covariance @ slopes
    joint = np.block([[covariance, cross[:, None]], [cross[None], slopes @ cross + 0.36]])
    mean, added = np.array([0.1, -0.2, 0.65]), mechanism.scale**2 * np.diag([1.0, 1.0, 0.0])
    z = np.array([[3.0, -4.0, 1.0], [20.0, 1.0, 0.5]])
    want = stats.multivariate_normal(mean, joint + added).logpdf(z)
    # Gauss-Hermite with 40 nodes integrates the response, nearly as wide as the predictor, to rounding
    np.testing.assert_allclose(jax.jit(ldp.Privatized(rows, mechanism).log_prob)(z), want, rtol=0, atol=1e-9)


def test_a_statistic_is_observed_like_a_record():
    release = ldp.Release([3.0], ldp.LaplaceMechanism(1.0, sensitivity=2.0))

    def model(data):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        ldp.observe("z", dist.Normal(mean, 1.2), data)

    got = jax.jit(lambda mean: numpyro.infer.util.log_density(model, (release,), {}, {"mean": mean})[0])(0.3)
    assert float(got) == pytest.approx(convolution(3.0, 0.3, 1.2, 2.0)[0] + stats.norm(0, 5).logpdf(0.3), rel=1e-13)


@pytest.mark.parametrize(
    ("base", "mechanism"),
    [
        (dist.Gamma(2.0, 1.0), ldp.LaplaceMechanism(1.0, sensitivity=2.0)),
        (dist.Exponential(1.0), ldp.LaplaceMechanism(1.0, sensitivity=2.0)),
    ],
    ids=["gamma", "exponential"],
)
def test_what_has_no_likelihood_without_bounds_is_refused_in_words(base, mechanism):
    with pytest.raises(ValueError, match=r"without bounds|is continuous"):
        ldp.Privatized(base, mechanism)


def enumerated(law, noise, z, lower=-np.inf, upper=np.inf):
    """Log probabilities of a SciPy law of counts below 400 under a noise with values and probabilities of its own."""
    x = np.arange(400)
    kernel = call("log_prob", constant(noise), z - np.clip(x, lower, upper)[:, None, None].astype(float))
    return special.logsumexp(law.logpmf(x)[:, None] + kernel, axis=0)


@pytest.mark.parametrize(
    "law",
    [pytest.param(noise.DiscreteLaplace(2.0), marks=pytest.mark.slow), noise.DiscreteGaussian(1.5), noise.Laplace(2.0)],
)
def test_a_count_of_finitely_many_values_needs_no_bounds(law):
    z = np.array([-30.0, 0.0, 4.0, 10.0, 90.0])
    private = ldp.Privatized(dist.Binomial(20, 0.3), ldp.mechanisms.AdditiveMechanism(law, sensitivity=1.0))
    # sums of 21 terms whose logs are as large as the result
    mean, variance = jax.jit(lambda: (private.mean, private.variance))()
    got = jax.jit(private.log_prob)(z)
    np.testing.assert_allclose(got, enumerated(stats.binom(20, 0.3), law, z[:, None]), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose([mean, variance], [6.0, 4.2 + law.variance], rtol=1e-12)


@pytest.mark.parametrize(
    "law", [noise.DiscreteLaplace(2.0), pytest.param(noise.DiscreteGaussian(1.5), marks=pytest.mark.slow)]
)
def test_a_count_that_is_clipped_has_a_likelihood_under_discrete_noise(law):
    z = np.array([-30.0, 0.0, 4.0, 10.0, 90.0])
    mechanism = ldp.mechanisms.AdditiveMechanism(law, 0, 10)
    want = enumerated(stats.poisson(3.0), law, z[:, None], 0, 10)
    # sums of 12 terms, of which the last, a tail of a Poisson law, is good to 1e-12
    personal = ldp.mechanisms.AdditiveMechanism(law, np.zeros(5), np.array([10, 10, 10, 3, 2]))
    laws = ldp.Privatized(dist.Poisson(3.0), mechanism), ldp.Privatized(dist.Poisson(np.full(5, 3.0)), personal)
    one, got = jax.jit(lambda z: [law.log_prob(z) for law in laws])(z)
    np.testing.assert_allclose(one, want, rtol=1e-12, atol=1e-12)
    want[3:] = [enumerated(stats.poisson(3.0), law, z[i : i + 1, None], 0, most)[0] for i, most in ((3, 3), (4, 2))]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_a_form_registered_for_statistics_does_not_serve_records():
    mechanisms = ldp.GaussianMechanism(1.0, 1e-5, sensitivity=2.0), ldp.GaussianMechanism(1.0, 1e-5, 0, 2)
    forms = [closed_form(dist.Normal(), mechanism) for mechanism in mechanisms]
    assert None not in forms and forms[0] is not forms[1]
    assert closed_form(dist.Exponential(), mechanisms[0]) is None
    assert closed_form(dist.Exponential(), mechanisms[1]) is not None


def test_noisy_counts_of_several_groups_have_a_law_a_group():
    mechanism, rates = ldp.DiscreteLaplaceMechanism(3.0), np.array([10.0, 25.0])
    releases = [ldp.Release([12, 15], mechanism), ldp.Release([30], mechanism)]

    def model(data):
        ldp.observe("z", dist.Poisson(rates), data)

    groups, sketches = list(zip(rates, releases, strict=True)), [release.sketch() for release in releases]

    @jax.jit
    def compiled():
        alone = [ldp.Privatized(dist.Poisson(rate), mechanism).log_prob(part.values).sum() for rate, part in groups]
        return alone, [numpyro.infer.util.log_density(model, (data,), {}, {})[0] for data in (releases, sketches)]

    alone, together = compiled()
    np.testing.assert_allclose(together, np.sum(alone), rtol=1e-13)
