"""Numbers multiplied by a log-normal one: density, likelihood, moments, guarantee and file.

The references are integrals of SciPy's log-normal density over the original record.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import MultiplicativeScrambling, mechanism_from_spec
from tests.programs import call

pytestmark = pytest.mark.usefixtures("x64")

MECHANISM = MultiplicativeScrambling(mean=1.2, sd=0.5, lower=1.0, upper=50.0)
VARIANCE = np.log1p((0.5 / 1.2) ** 2)
FACTOR = stats.lognorm(np.sqrt(VARIANCE), scale=1.2 * np.exp(-VARIANCE / 2))


def test_the_factor_has_the_stated_mean_and_deviation_and_the_density_is_its():
    assert (FACTOR.mean(), FACTOR.std()) == pytest.approx((1.2, 0.5), rel=1e-12)
    z, x = np.array([0.2, 3.0, 80.0])[:, None], np.array([1.0, 4.0, 50.0])
    np.testing.assert_allclose(call("log_prob", MECHANISM, z, x), FACTOR.logpdf(z / x) - np.log(x), rtol=1e-10)
    for x in (0.1, 0.0, -3.0):  # clipped
        np.testing.assert_array_equal(call("log_prob", MECHANISM, z, x), call("log_prob", MECHANISM, z, 1.0))
    assert np.all(call("randomize", MECHANISM, jax.random.key(0), np.array([0.0, -3.0])) > 0)
    mean, variance = MECHANISM.moments(np.array([4.0, 99.0]))
    np.testing.assert_allclose([mean, variance], [[4.8, 60.0], [4.0, 625.0]])


LAWS = {
    "student": (dist.StudentT(3.0, 2.0, 2.0), stats.t(3, 2, 2)),  # whose distribution function has no derivative
    "uniform": (dist.Uniform(2.0, 9.0), stats.uniform(2, 7)),  # whose density NumPyro continues beyond its ends
    "gamma": (dist.Gamma(2.0, 0.3), stats.gamma(2, scale=1 / 0.3)),
    "lognormal": (dist.LogNormal(1.0, 1.0), stats.lognorm(1.0, scale=np.e)),
    "normal": (dist.Normal(8.0, 4.0), stats.norm(8, 4)),  # a part is below the lower bound, and below zero
    "laplace": (dist.Laplace(-1.0, 3.0), stats.laplace(-1, 3)),  # with a kink that has no logarithm
}


@pytest.mark.parametrize(
    "name", ["uniform", *(pytest.param(name, marks=pytest.mark.slow) for name in LAWS if name != "uniform")]
)
def test_likelihood_of_numbers_against_quadrature(name):
    base, law = LAWS[name]
    z = np.array([0.3, 1.0, 5.0, 40.0])
    for value, found in zip(z, np.exp(ldp.Privatized(base, MECHANISM).log_prob(z)), strict=True):
        middle = np.clip(value / 1.2, 1.01, 49)

        def integrand(log_x, value=value):
            return law.pdf(np.exp(log_x)) * FACTOR.pdf(value / np.exp(log_x))

        pieces = itertools.pairwise(np.log(sorted([1, 2, middle, 9, 50])))  # 2 and 9 are ends of laws
        inside = sum(integrate.quad(integrand, *ends, epsabs=1e-15, epsrel=1e-12)[0] for ends in pieces)
        ends = law.cdf(1) * FACTOR.pdf(value) + law.sf(50) * FACTOR.pdf(value / 50) / 50
        assert found == pytest.approx(inside + ends, rel=1e-9)


@pytest.mark.slow
def test_likelihood_of_whole_numbers_is_a_sum():
    z, x = np.array([0.5, 5.0, 60.0]), np.arange(200)
    terms = stats.poisson(6).pmf(x) * FACTOR.pdf(z[:, None] / np.clip(x, 1, 50)) / np.clip(x, 1, 50)
    np.testing.assert_allclose(
        np.exp(ldp.Privatized(dist.Poisson(6.0), MECHANISM).log_prob(z)), terms.sum(1), rtol=1e-10
    )


def test_draws_follow_the_factor_and_their_mean_is_unbiased():
    """Kolmogorov-Smirnov at 1e-6; a mean within 5 standard errors, a false alarm in 1e6."""
    x = np.tile([2.0, 9.0], 10_000)
    z = np.asarray(call("randomize", MECHANISM, jax.random.key(3), x))
    assert stats.kstest(z / x, FACTOR.cdf).pvalue > 1e-6
    unbiased = np.asarray(MECHANISM.unbiased(z))
    assert abs(unbiased.mean() - 5.5) < 5 * unbiased.std() / np.sqrt(len(x))


def test_the_guarantee_is_that_of_the_logarithms_and_the_file_is_read_again(tmp_path):
    """Gaussian noise of standard deviation √VARIANCE on a range of log 50: [BW] Theorem 8 at epsilon = 20."""
    mu = np.log(50) / np.sqrt(VARIANCE)
    delta = stats.norm.cdf(mu / 2 - 20 / mu) - np.exp(20 + stats.norm.logcdf(-mu / 2 - 20 / mu))
    assert float(MECHANISM.guarantee.delta(20.0)) == pytest.approx(delta, rel=1e-9)
    release = ldp.Release([0.4, 3.0, 70.0], MECHANISM)
    release.save(tmp_path / "z.npz")
    assert ldp.Release.load(tmp_path / "z.npz").mechanism == MECHANISM == mechanism_from_spec(MECHANISM.spec())


@pytest.mark.slow
def test_factors_that_differ_by_record_and_parameters_of_a_compiled_function():
    sd, z = np.array([0.3, 0.5, 0.9]), np.array([0.4, 3.0, 70.0])
    several = MultiplicativeScrambling(1.2, sd, 1.0, 50.0)
    singles = [ldp.Privatized(dist.Gamma(2.0, 0.3), MultiplicativeScrambling(1.2, s, 1.0, 50.0)) for s in sd]
    expected = [law.log_prob(value) for law, value in zip(singles, z, strict=True)]
    compiled = jax.jit(lambda mechanism: ldp.Privatized(dist.Gamma(2.0, 0.3), mechanism).log_prob(z))(several)
    np.testing.assert_allclose(compiled, expected, rtol=1e-9)


@pytest.mark.parametrize("z", [0.0, -1.0, np.nan])
def test_values_that_cannot_be_a_product_are_refused(z):
    with pytest.raises(ValueError, match=r"positive numbers|finite"):
        ldp.Release([1.0, z], MECHANISM)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lower": 0.0}, "lower must be positive"),
        ({"sd": -1.0}, "sd must be positive"),
        ({"upper": 1.0}, "lower must be below upper"),
    ],
)
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiplicativeScrambling(**{"mean": 1.0, "sd": 0.5, "lower": 1.0, "upper": 50.0} | arguments)


@pytest.mark.slow
def test_the_logarithms_are_a_release_that_can_be_sketched():
    z = np.asarray(MECHANISM.randomize(jax.random.key(1), np.linspace(1, 40, 500)))
    logs = ldp.Release(np.asarray(MECHANISM.log_of(z)), MECHANISM.of_logs)
    whole = jnp.sum(ldp.Privatized(dist.LogNormal(2.0, 0.7), MECHANISM).log_prob(z))
    of_logs = jnp.sum(ldp.Privatized(dist.Normal(2.0, 0.7), MECHANISM.of_logs).log_prob(logs.values)) - np.log(z).sum()
    assert float(whole) == pytest.approx(float(of_logs), rel=1e-12)
    assert logs.sketch().size == pytest.approx(500)
