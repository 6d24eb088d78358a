"""The named mechanisms that add noise are one mechanism: noise is an object, for numbers, rows and statistics."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes import noise

pytestmark = pytest.mark.usefixtures("x64")

PAIRS = [
    (ldp.LaplaceMechanism(2.0, -1, 3), ldp.mechanisms.AdditiveMechanism(noise.Laplace(2.0), -1, 3)),
    (ldp.GaussianMechanism(1.0, 1e-3, -1, 3), None),
    (ldp.SymmetricLaplaceMechanism(0.7, -1, 3), ldp.mechanisms.AdditiveMechanism(noise.SymmetricLaplace(0.7), -1, 3)),
    (
        ldp.mechanisms.IndependentLaplaceMechanism(np.sqrt(2) * 0.5, -1, 3),
        ldp.mechanisms.AdditiveMechanism(noise.Laplace(0.5), -1, 3),
    ),
    (
        ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -1, 3),
        ldp.mechanisms.AdditiveMechanism(noise.ZeroInflated(noise.SymmetricLaplace(0.7), 0.2), -1, 3),
    ),
]


@pytest.mark.parametrize(("named", "plain"), PAIRS, ids=lambda m: getattr(m, "name", ""))
def test_a_name_and_its_noise_say_the_same(named, plain):
    if plain is None:
        plain = ldp.mechanisms.AdditiveMechanism(noise.Gaussian(named.scale), -1, 3)
    z, x = np.array([-4.0, 0.2, 0.5, 6.0]), np.array([-2.0, 0.2, 1.0, 9.0])
    np.testing.assert_allclose(plain.log_prob(z, x), named.log_prob(z, x), rtol=1e-14)
    laws = [ldp.Privatized(dist.Normal(0.3, 1.1), mechanism) for mechanism in (plain, named)]
    # a public record's noise may be left out by type, and here is not: the same to rounding
    np.testing.assert_allclose(laws[0].log_prob(z), laws[1].log_prob(z), rtol=1e-13)
    curves = [mechanism.guarantee.tradeoff([0.01, 0.3]) for mechanism in (plain, named)]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-9)
    draws = [mechanism.randomize(jax.random.key(0), x) for mechanism in (plain, named)]
    np.testing.assert_allclose(draws[0], draws[1], rtol=1e-14)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(plain.spec()))) == plain


def test_scales_are_stated_by_name_and_cannot_be_confused():
    laplace = ldp.LaplaceMechanism.from_scale(3.0, 0, 10)
    gaussian = ldp.GaussianMechanism.from_standard_deviation(3.0, 0, 10)
    assert laplace == ldp.mechanisms.AdditiveMechanism(noise.Laplace(scale=3.0), 0, 10)
    assert gaussian.noise.standard_deviation == 3.0 and gaussian.noise.variance == 9.0
    assert laplace.noise.standard_deviation == pytest.approx(3 * np.sqrt(2))
    assert laplace.guarantee.epsilon(0.0) == pytest.approx(10 / 3)
    for make in (lambda: noise.Laplace(standard_deviation=3.0), lambda: noise.Gaussian(scale=3.0)):
        with pytest.raises(TypeError, match="unexpected keyword"):
            make()
    with pytest.raises(TypeError, match=r"noise must be one of ldpbayes\.noise"):
        ldp.mechanisms.AdditiveMechanism(3.0, 0, 10)
    with pytest.raises(ValueError, match="positive and finite, got 0"):
        ldp.mechanisms.AdditiveMechanism(noise.Laplace(0.0), 0, 10)
    with pytest.raises(ValueError, match="a noise is a dict with the name of one"):
        ldp.mechanisms.mechanism_from_spec(
            {"mechanism": "additive", "noise": {"law": "Cauchy"}, "lower": 0, "upper": 1}
        )


ROWS = {"columns": ("a", "b", "c"), "perturbed": ("c", "a")}


@pytest.mark.parametrize(
    ("mechanism", "scale"),
    [
        (ldp.GaussianMechanism(1.0, 1e-3, [0, -1], [4, 2], **ROWS), None),
        (ldp.LaplaceMechanism(1.0, [0, -1], [4, 2], **ROWS), 7.0),
    ],
    ids=["gaussian", "laplace"],
)
def test_numbers_and_rows_get_the_same_noise(mechanism, scale):
    x = np.array([[9.0, 5.0, 1.0], [0.5, -7.0, 3.5]])
    z = np.array([[1.0, 5.0, -2.0], [0.1, -7.0, 3.0]])
    if scale is None:  # calibrated to the diagonal of the box
        assert mechanism.scale == pytest.approx(5 * ldp.privacy.gaussian_scale(1.0, 1e-3))
        law = stats.norm(scale=mechanism.scale)
        assert mechanism.guarantee.epsilon(1e-3) == pytest.approx(1.0)
    else:  # to the sum of the ranges
        assert mechanism.scale == scale
        law = stats.laplace(scale=scale)
        assert mechanism.guarantee.epsilon(0.0) == pytest.approx(1.0)
    clipped = np.clip(x[:, [0, 2]], [-1, 0], [2, 4])  # bounds follow the names: a from −1 to 2, c from 0 to 4
    want = law.logpdf(z[:, [0, 2]] - clipped).sum(axis=1)
    np.testing.assert_allclose(mechanism.log_prob(z, x), want, rtol=1e-13)
    assert mechanism.guarantee.exposed == ("b",)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    draws = np.asarray(mechanism.randomize(jax.random.key(1), np.broadcast_to(x[1], (20_000, 3))))
    assert np.all(draws[:, 1] == -7)
    for column, at in ((0, 0.5), (2, 3.5)):
        assert stats.kstest(draws[:, column] - at, law.cdf).pvalue > 1e-4  # one seed in 10,000 fails each


def test_rows_of_a_normal_law_under_gaussian_noise_are_normal():
    mechanism = ldp.GaussianMechanism(2.0, 1e-2, [-5.0, -5.0], [5.0, 5.0], columns=3, perturbed=(0, 2))
    root = np.array([[1.0, 0, 0], [0.4, 0.8, 0], [-0.3, 0.2, 1.5]])
    covariance, mean, z = root @ root.T, np.array([0.1, -0.2, 0.3]), np.array([[9.0, 1.0, -4.0], [0.1, 0.2, 0.3]])
    total = covariance + mechanism.scale**2 * np.diag([1.0, 0, 1.0])
    law = ldp.Privatized(dist.MultivariateNormal(mean, covariance), mechanism)
    np.testing.assert_allclose(law.log_prob(z), stats.multivariate_normal(mean, total).logpdf(z), rtol=1e-12)


def test_a_statistic_has_a_sensitivity_and_the_guarantee_of_a_person_in_it():
    total = ldp.LaplaceMechanism(epsilon=0.5, sensitivity=20.0)
    assert total.scale == 40.0 and total.guarantee.trust_model == "central"
    assert total.guarantee.epsilon(0.0) == pytest.approx(0.5)
    assert "central differential privacy with epsilon = 0.5 " in total.guarantee.statement()
    mean = ldp.GaussianMechanism(1.0, 1e-6, sensitivity=0.1)
    assert mean.guarantee.delta(1.0) == pytest.approx(1e-6, rel=1e-8) and mean.spec()["sensitivity"] == 0.1
    release = ldp.Release([-3.0, 1e6], total)  # anything may be released
    assert release.doubts == () and ldp.mechanisms.mechanism_from_spec(total.spec()) == total
    with pytest.raises(ValueError, match="sketch"):
        release.sketch()
    for make, message in (
        (lambda: ldp.LaplaceMechanism(1.0), "give both bounds, lower and upper"),
        (lambda: ldp.LaplaceMechanism(1.0, 0), "give both bounds, lower and upper"),
        (lambda: ldp.LaplaceMechanism(1.0, 0, 1, sensitivity=1.0), "sensitivity is for a statistic without bounds"),
        (lambda: ldp.LaplaceMechanism(1.0, sensitivity=-1.0), "sensitivity must be a positive number"),
        (lambda: ldp.DiscreteLaplaceMechanism(1.0, sensitivity=0.5), "sensitivity must be a whole number"),
        (lambda: ldp.mechanisms.AdditiveMechanism(noise.DiscreteLaplace(1.0), 0.5, 10), "lower must be a whole number"),
        (lambda: noise.ZeroInflated(noise.DiscreteLaplace(1.0), 0.2), "left out must be a continuous one"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_whole_numbers_stay_whole():
    count = ldp.DiscreteLaplaceMechanism(scale=36.0)
    assert count.sensitivity == 1.0 and count.guarantee.epsilon(0.0) == pytest.approx(1 / 36)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(count.spec()))) == count
    z = count.randomize(jax.random.key(0), jnp.array([1200, 3]))
    assert jnp.issubdtype(z.dtype, jnp.integer)
    assert ldp.Release(z, count).values.dtype == np.int32
    with pytest.raises(ValueError, match=r"values must be integers under DiscreteLaplaceMechanism; 1 are not"):
        ldp.Release([3.0, 1.5], count)
    with pytest.raises(ValueError, match="x must be a whole number"):
        count.randomize(jax.random.key(0), np.array([0.5]))


@pytest.mark.parametrize("law", [noise.Laplace, noise.DiscreteLaplace])
def test_records_with_bounds_of_their_own_have_guarantees_of_their_own(law):
    mechanism = ldp.mechanisms.AdditiveMechanism(law(2.0), np.array([0.0, 0.0, 1.0]), np.array([1.0, 4.0, 2.0]))
    np.testing.assert_allclose(mechanism.guarantee.epsilon(0.0), [0.5, 2.0, 0.5], rtol=1e-12)
    np.testing.assert_allclose(mechanism.attribute_guarantee.epsilon(0.0), [0.5, 2.0, 0.5], rtol=1e-12)
