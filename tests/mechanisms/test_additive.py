"""The additive mechanism: noise for numbers, rows and statistics; columns, bounds and public records."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.mechanisms import IndependentLaplaceMechanism, SymmetricLaplaceMechanism, ZeroInflatedLaplaceMechanism
from ldpbayes.numerics.arrays import snapped
from tests.programs import call, evaluate, log_prob, randomize

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


# the first and the last differ most
@pytest.mark.parametrize(
    ("named", "plain"),
    [pytest.param(*pair, marks=pytest.mark.slow if 0 < i < len(PAIRS) - 1 else ()) for i, pair in enumerate(PAIRS)],
    ids=lambda m: getattr(m, "name", ""),
)
def test_a_name_and_its_noise_say_the_same(named, plain):
    if plain is None:
        plain = ldp.mechanisms.AdditiveMechanism(noise.Gaussian(named.scale), -1, 3)
    z, x = np.array([-4.0, 0.2, 0.5, 6.0]), np.array([-2.0, 0.2, 1.0, 9.0])
    ours, theirs = (call("log_prob", mechanism, z, x) for mechanism in (plain, named))
    np.testing.assert_allclose(ours, theirs, rtol=1e-14)
    ours, theirs = (log_prob(dist.Normal(0.3, 1.1), mechanism, z) for mechanism in (plain, named))
    # a public record's noise may be left out by type, and here is not: the same to rounding
    np.testing.assert_allclose(ours, theirs, rtol=1e-13)
    curves = [mechanism.guarantee.tradeoff([0.01, 0.3]) for mechanism in (plain, named)]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-9)
    draws = [randomize(mechanism, x) for mechanism in (plain, named)]
    np.testing.assert_allclose(draws[0], draws[1], rtol=1e-14)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(plain.spec()))) == plain


def test_what_a_noise_of_ones_own_lacks_is_said():
    class Columnwise(noise.Laplace):
        def log_prob(self, value):
            return -jnp.abs(value) / self.scale - jnp.log(2 * self.scale)

    @dataclasses.dataclass(frozen=True)
    class Plain(noise.Laplace):
        pass

    with pytest.raises(TypeError, match=r"Plain must be decorated with @ldpbayes\.noise\.pytree"):
        ldp.mechanisms.AdditiveMechanism(Plain(3.0), 0, 10)
    columnwise = ldp.mechanisms.AdditiveMechanism(noise.pytree(Columnwise)(3.0), 0, 10)
    with pytest.raises(ValueError, match=r"Columnwise\.log_prob must return the joint log density of all columns"):
        jax.eval_shape(columnwise.log_prob, np.array([1.0, 2.0]), 3.0)


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
    with pytest.raises(ValueError, match="noise must be a dict with the name of a class"):
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
    np.testing.assert_allclose(call("log_prob", mechanism, z, x), want, rtol=1e-13)
    assert mechanism.guarantee.exposed == ("b",)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    draws = randomize(mechanism, np.broadcast_to(x[1], (20_000, 3)), seed=1)
    assert np.all(draws[:, 1] == -7)
    for column, at in ((0, 0.5), (2, 3.5)):
        assert stats.kstest(draws[:, column] - at, law.cdf).pvalue > 1e-4  # one seed in 10,000 fails each


def of_rows(mean, covariance, mechanism, z):
    return ldp.Privatized(dist.MultivariateNormal(mean, covariance), mechanism).log_prob(z)


def test_rows_of_a_normal_law_under_gaussian_noise_are_normal():
    mechanism = ldp.GaussianMechanism(2.0, 1e-2, [-5.0, -5.0], [5.0, 5.0], columns=3, perturbed=(0, 2))
    root = np.array([[1.0, 0, 0], [0.4, 0.8, 0], [-0.3, 0.2, 1.5]])
    covariance, mean, z = root @ root.T, np.array([0.1, -0.2, 0.3]), np.array([[9.0, 1.0, -4.0], [0.1, 0.2, 0.3]])
    total = covariance + mechanism.scale**2 * np.diag([1.0, 0, 1.0])
    found = evaluate(of_rows, mean, covariance, mechanism, z)
    np.testing.assert_allclose(found, stats.multivariate_normal(mean, total).logpdf(z), rtol=1e-12)


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
        (lambda: ldp.LaplaceMechanism(1.0), "give lower and upper, the bounds"),
        (lambda: ldp.LaplaceMechanism(1.0, 0), "give lower and upper, the bounds"),
        (lambda: ldp.LaplaceMechanism(1.0, 0, 1, sensitivity=1.0), "or, for a statistic of many records, sensitivity"),
        (lambda: ldp.LaplaceMechanism(1.0, sensitivity=-1.0), "sensitivity must be a positive number"),
        (lambda: ldp.DiscreteLaplaceMechanism(1.0, sensitivity=0.5), "sensitivity must be a whole number"),
        (lambda: ldp.mechanisms.AdditiveMechanism(noise.DiscreteLaplace(1.0), 0.5, 10), "lower must be a whole number"),
        (lambda: noise.ZeroInflated(noise.DiscreteLaplace(1.0), 0.2), "noise must be a `Noise` with a continuous law"),
        *(
            (lambda wrap=wrap, law=law: wrap(law), "noise must be .* one parameter, a scale for all columns, got ")
            # of columns with scales 1 and 0.001, the guarantee was that of the first: δ of 2e-8 for 1
            for law in (
                noise.IndependentGaussian([1.0, 0.001]),
                noise.IndependentGaussian([2.0]),
                noise.IndependentGaussian(np.ones((3, 2))),
                noise.Staircase(1.0, 1.0, 0.5),
                noise.WithPublicRecords(noise.Laplace(1.0)),
                noise.ZeroInflated(noise.Gaussian(1.0), 0.1),
            )
            for wrap in (noise.WithPublicRecords, lambda law: noise.ZeroInflated(law, 1e-9))
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_whole_numbers_stay_whole():
    count = ldp.DiscreteLaplaceMechanism(scale=36.0)
    assert count.sensitivity == 1.0 and count.guarantee.epsilon(0.0) == pytest.approx(1 / 36)
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(count.spec()))) == count
    z = randomize(count, np.array([1200, 3]))
    assert np.issubdtype(z.dtype, np.integer)
    assert ldp.Release(z.astype(np.int32), count).values.dtype == np.int32
    with pytest.raises(ValueError, match=r"values must be integers under DiscreteLaplaceMechanism; 1 are not"):
        ldp.Release([3.0, 1.5], count)
    with pytest.raises(ValueError, match="x must be a whole number"):
        count.randomize(jax.random.key(0), np.array([0.5]))


@pytest.mark.parametrize("law", [noise.Laplace, noise.DiscreteLaplace])
def test_records_with_bounds_of_their_own_have_guarantees_of_their_own(law):
    mechanism = ldp.mechanisms.AdditiveMechanism(law(2.0), np.array([0.0, 0.0, 1.0]), np.array([1.0, 4.0, 2.0]))
    np.testing.assert_allclose(mechanism.guarantee.epsilon(0.0), [0.5, 2.0, 0.5], rtol=1e-12)
    np.testing.assert_allclose(mechanism.attribute_guarantee.epsilon(0.0), [0.5, 2.0, 0.5], rtol=1e-12)


ERROR_RATE = 1e-4  # of each test of a sampler, at its fixed seed
N = 50_000
gradient = jax.jit(jax.grad(lambda mechanism, z, x: mechanism.log_prob(z, x), 2))


def sphere(d):
    return 2 * np.pi ** (d / 2) / special.gamma(d / 2)


@pytest.mark.parametrize("d", [1, 6, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_symmetric_sampler_follows_its_density(d):
    scale = 0.7
    mechanism = SymmetricLaplaceMechanism(scale, -1.0, 1.0, columns=d)
    x = np.linspace(-0.9, 0.9, d)
    noise = randomize(mechanism, np.broadcast_to(x, (N, d)), seed=d) - x
    edges = scale * np.array([0, 0.2, 0.5, 0.8, 1.2, 1.7, 2.5, 4, 40]) * np.sqrt(d)
    # Gauss-Legendre between the edges: smooth there, as the kink is at 0
    nodes, weights = np.polynomial.legendre.leggauss(60)
    half = np.diff(edges)[:, None] / 2
    r = edges[:-1, None] + half * (1 + nodes)
    density = np.exp(call("log_prob", mechanism, x + r[..., None] * np.eye(d)[0], x))
    share = np.sum(half * weights * sphere(d) * r ** (d - 1) * density, axis=1)
    assert sum(share) == pytest.approx(1, abs=1e-7)
    counts = np.histogram(np.linalg.norm(noise, axis=1), edges)[0]
    assert stats.chisquare(counts, N * share / sum(share)).pvalue > ERROR_RATE
    # directions are uniform, and a column alone is Laplace with standard deviation λ
    for column in range(d):
        assert stats.kstest(noise[:, column], stats.laplace(scale=scale / np.sqrt(2)).cdf).pvalue > ERROR_RATE
    if d > 1:
        cosine = noise[:, 0] / np.linalg.norm(noise, axis=1)
        law = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2)
        assert stats.kstest(cosine, law.cdf).pvalue > ERROR_RATE


def test_density_of_a_number_is_laplace_and_its_gradient_is_finite_everywhere():
    mechanism = SymmetricLaplaceMechanism(0.5, -1.0, 1.0)
    z = np.array([-3.0, 0.2, 0.2, 4.0])
    x = np.array([0.5, 0.2, -2.0, 0.0])
    law = stats.laplace(loc=np.clip(x, -1, 1), scale=0.5 / np.sqrt(2))
    np.testing.assert_allclose(call("log_prob", mechanism, z, x), law.logpdf(z), rtol=1e-14)
    rows = SymmetricLaplaceMechanism(0.5, -1.0, 1.0, columns=3)
    for at in (np.zeros(3), np.array([1e-9, 0, 0]), np.array([300.0, 0, 0])):
        assert np.all(np.isfinite(gradient(rows, at, np.full(3, 0.1))))
    assert np.all(np.isfinite(gradient(rows, np.full(3, 0.1), np.full(3, 0.1))))


def test_zero_inflated_records_are_kept_with_the_stated_probability_and_else_noisy():
    delta, scale = 0.2, 0.5
    mechanism = ZeroInflatedLaplaceMechanism(delta, scale, -1.0, 1.0, columns=3)
    x = np.random.default_rng(0).uniform(-1, 1, (N, 3))
    z = randomize(mechanism, x, seed=1)
    kept = np.all(z == x, axis=1)
    assert stats.binomtest(int(kept.sum()), N, delta).pvalue > ERROR_RATE
    assert not np.any((z == x)[~kept])  # all columns together
    noisy = (z - x)[~kept, 1]
    assert stats.kstest(noisy, stats.laplace(scale=scale / np.sqrt(2)).cdf).pvalue > ERROR_RATE
    density = call("log_prob", mechanism, z, x)
    np.testing.assert_allclose(density[kept], np.log(delta))
    present = call("log_prob", mechanism.perturbing, z, x)
    np.testing.assert_allclose(density[~kept], np.log1p(-delta) + present[~kept])


def test_independent_noise_is_independent():
    mechanism = IndependentLaplaceMechanism(0.5, -1.0, 1.0, columns=2)
    noise = randomize(mechanism, np.zeros((N, 2)), seed=3)
    law = stats.laplace(scale=0.5 / np.sqrt(2))
    # both probability integral transforms together are uniform on the square
    u = law.cdf(noise)
    counts = np.histogram2d(*u.T, bins=6, range=[(0, 1), (0, 1)])[0]
    assert stats.chisquare(counts.ravel()).pvalue > ERROR_RATE
    np.testing.assert_allclose(
        call("log_prob", mechanism, noise, np.zeros(2)), law.logpdf(noise).sum(axis=1), rtol=1e-13, atol=1e-14
    )


def test_named_columns_are_clipped_perturbed_or_passed_through():
    mechanism = ZeroInflatedLaplaceMechanism(
        0.2, 0.5, [-1, 0], [1, 2], columns=("age", "answer", "income"), perturbed=("income", "age")
    )
    assert mechanism.index == (0, 2) and mechanism.dimension == 2 and mechanism.event_shape == (3,)
    x = np.array([[5.0, 77.0, -3.0], [0.5, -7.0, 1.5]])
    z = randomize(mechanism, x)
    assert np.all(z[:, 1] == x[:, 1])
    mean, variance = call("moments", mechanism, x)
    np.testing.assert_allclose(mean, [[2, 77, -1], [0.5, -7, 1]])  # the age is from 0 to 2
    np.testing.assert_allclose(variance, np.broadcast_to([0.2, 0, 0.2], (2, 3)))
    assert call("log_prob", mechanism, z, x).shape == (2,)
    assert np.all(call("log_prob", mechanism, z + [0, 1, 0], x) == -np.inf)
    assert ldp.mechanisms.mechanism_from_spec(mechanism.spec()) == mechanism
    assert mechanism.guarantee.unit == "record" and mechanism.attribute_guarantee.unit == "attribute"
    statement = mechanism.guarantee.statement(epsilon=2.0)
    assert statement.startswith("Each record, answer aside, is protected") and "Nothing protects answer." in statement
    rounded_up = np.ceil(1e4 * mechanism.guarantee.delta(2.0)) / 1e4
    assert f"epsilon = 2 and delta = {rounded_up:.4g}" in statement
    assert mechanism == dataclasses.replace(mechanism, perturbed=(0, 2))
    numbered = ZeroInflatedLaplaceMechanism(0.2, 0.5, 0, 1, 4, (0, 1)).guarantee.statement()
    assert numbered.startswith("Each record, x2 and x3 aside, is protected")


@pytest.mark.parametrize("perturbed", [("income", "age"), (2, 0)])
def test_arrays_of_bounds_follow_their_columns_in_whatever_order_these_are_named(perturbed):
    lower, upper = np.array([0.0, 18.0]), np.array([1e5, 90.0])
    make = functools.partial(SymmetricLaplaceMechanism, 1e-9, columns=("age", "answer", "income"), perturbed=perturbed)
    mechanism = make(lower, upper)
    x = np.array([50.0, 3.0, 30_000.0])
    np.testing.assert_array_equal(call("clipped", mechanism, x), x)
    np.testing.assert_array_equal(call("clipped", mechanism, 10 * x), [90, 30, 1e5])
    np.testing.assert_array_equal(mechanism.ranges, [72, 1e5])
    assert ldp.Release(x[None] + 1, mechanism).values.tolist() == [[51, 4, 30_001]]  # and nothing is beyond its bounds
    same = (
        ldp.mechanisms.mechanism_from_spec(mechanism.spec()),
        dataclasses.replace(mechanism),
        jax.tree.unflatten(*jax.tree.flatten(mechanism)[::-1]),
        make([0.0, 18.0], upper, perturbed=("income", "age")),
    )
    assert all(other == mechanism for other in same)
    traced = jax.jit(lambda lower, upper: make(lower, upper).clipped(10 * x))(lower, upper)
    np.testing.assert_array_equal(traced, [90, 30, 1e5])
    other = dataclasses.replace(mechanism, perturbed=("answer", "income"))  # its bounds, for other columns
    np.testing.assert_array_equal(call("clipped", other, 10 * x), [500, 30, 1e5])
    with pytest.raises(ValueError, match="read-only"):
        mechanism.lower[0] = -1


def test_columns_of_a_data_frame_are_found_by_their_names(rng):
    mechanism = ldp.LaplaceMechanism(1.0, -1, 1, columns=("age", "income"))
    rows = rng.normal(size=(5, 2))
    frame = pd.DataFrame({"income": rows[:, 1], "age": rows[:, 0]})
    np.testing.assert_array_equal(ldp.Release(frame, mechanism).values, rows)
    both = jax.jit(lambda key: [mechanism.randomize(key, each) for each in (frame, rows)])(jax.random.key(0))
    np.testing.assert_array_equal(*both)
    for other in (frame.rename(columns=str.upper), frame.assign(extra=0), frame[["age"]]):
        with pytest.raises(ValueError, match="the mechanism's columns are age, income; got"):
            ldp.Release(other, mechanism)


def test_personal_parameters_and_public_records():
    scale = np.where(np.arange(1000) < 500, 0.0, 2.0)
    mechanism = ZeroInflatedLaplaceMechanism(0.2, scale, 0.0, 1.0)
    x = np.full(1000, 0.5)
    z = randomize(mechanism, x)
    assert np.all(z[:500] == 0.5) and np.mean(z[500:] == 0.5) == pytest.approx(0.2, abs=0.08)  # 4.5 standard deviations
    np.testing.assert_array_equal(call("log_prob", mechanism, z, x)[:500], 0)
    assert np.all(call("log_prob", mechanism, z + 0.1, x)[:500] == -np.inf)
    release = ldp.Release(z, mechanism)
    assert "not protected" in release.mechanism.guarantee.statement()
    np.testing.assert_allclose(mechanism.guarantee.delta(1.0)[[0, -1]], [1.0, 0.2])
    with pytest.raises(ValueError, match="give one budget, or one for each record"):
        ldp.Release(z[:-1], mechanism)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_records_at_a_bound_are_there_in_double_precision_whatever_they_were_released_in(dtype):
    single = np.array([0.0, 0.1, 0.05, 7.0], np.float16 if dtype == np.float16 else np.float32).astype(dtype)
    noisy = ldp.Release(single, ZeroInflatedLaplaceMechanism(0.3, 1.0, 0.0, 0.1)).values
    np.testing.assert_array_equal(noisy, np.where(np.arange(4) == 1, 0.1, single.astype(float)))
    # a public record may be rounded to the other side of its bound
    assert ldp.Release(single[:2], SymmetricLaplaceMechanism(0.0, 0.0, 0.1)).values[1] == 0.1
    rows = np.broadcast_to(single[1], (2, 3))
    released = ldp.Release(rows, SymmetricLaplaceMechanism([0.0, 1.0], -1.0, [0.1, 0.7], 3, (0, 2))).values
    np.testing.assert_array_equal(released, [[0.1, single[1], single[1]]] * 2)


def test_values_that_no_rounding_has_moved_stay_as_they_are():
    for values in (np.array([0.1, 0.7]), np.array([0.5, 1], np.float32), np.array([2500, 2501])):
        assert snapped(values, (0.1, [2501.0, 2501.0])) is values
    assert snapped(np.array([2500, 0.1], np.float32), (2501.0, 0.1)).tolist() == [2500.0, 0.1]


def test_bounds_are_recognized_in_every_precision_traced_or_not():
    mechanism = ZeroInflatedLaplaceMechanism(0.3, 1.0, 0.1, 0.7)
    kinds = (mechanism.at_bounds, lambda z: jax.jit(ZeroInflatedLaplaceMechanism.at_bounds)(mechanism, z))
    for dtype in (np.float16, np.float32, np.float64):
        z = np.array([0.1, 0.7, 0.3, 0.1, 0.7], np.float16 if dtype == np.float16 else np.float32).astype(dtype)
        z[3:] = 0.1, 0.7
        for at_bounds, of in itertools.product(kinds, (np.asarray, jnp.asarray)):
            at_lower, at_upper = at_bounds(of(z))
            np.testing.assert_array_equal(at_lower, [True, False, False, True, False])
            np.testing.assert_array_equal(at_upper, [False, True, False, False, True])
    assert all(type(at) is np.ndarray for at in mechanism.at_bounds(z))
    with jax.enable_x64(False):
        np.testing.assert_array_equal(kinds[1](z)[0], [True, False, False, True, False])
    some = SymmetricLaplaceMechanism(1.0, 0.1, [0.7, 0.9], 3, (0, 2))
    rows = np.full((2, 3), 0.1)
    np.testing.assert_array_equal(some.at_bounds(rows)[0], [[True, False, True]] * 2)
    np.testing.assert_array_equal(jax.jit(lambda m: m.at_bounds(rows)[0])(some), [[True, False, True]] * 2)
    np.testing.assert_array_equal(some.at_bounds(np.full((1, 3), np.float32(0.9)))[1], [[False, False, True]])


@pytest.mark.slow
def test_in_many_columns_most_rows_inside_the_bounds_are_original_ones():
    mechanism = ZeroInflatedLaplaceMechanism(0.2, 2.0, -0.5, 0.5, columns=6)
    x = np.asarray(jax.random.uniform(jax.random.key(5), (400_000, 6), minval=-0.5, maxval=0.5))
    z = np.asarray(mechanism.randomize(jax.random.key(6), x))
    original, inside = np.all(z == x, axis=1), np.all(np.abs(z) <= 0.5, axis=1)
    assert np.mean(original[inside]) == pytest.approx(0.944, abs=0.004)  # as documented; five standard errors


def test_guarantees_are_the_papers_theorem():
    mechanism = ZeroInflatedLaplaceMechanism(0.2, 0.5, -1.0, 1.0, columns=6)
    record, attribute = mechanism.guarantee.tradeoff, mechanism.attribute_guarantee.tradeoff
    assert record.tradeoff.distance == pytest.approx(2 * np.sqrt(6) / 0.5)  # the diameter of [−M, M]^d is 2M√d
    assert attribute.tradeoff.distance == pytest.approx(4.0)  # Table 2's T_{6,4,0.2}
    assert record.tradeoff.dimension == attribute.tradeoff.dimension == 6
    statement = mechanism.attribute_guarantee.statement()
    assert "Each attribute" in statement and "With probability 0.2 it is released exactly as it is." in statement


def test_best_tests_between_numbers_are_on_the_stated_curve():
    mechanism = ZeroInflatedLaplaceMechanism(0.1, 0.94, 0.0, 1.0)
    z = np.linspace(-25, 25, 400_001)
    cells = (z[:-1] + z[1:]) / 2
    p, q = (0.9 * np.diff(stats.laplace(loc=at, scale=0.94 / np.sqrt(2)).cdf(z)) for at in (0.0, 1.0))
    order = np.argsort(-np.abs(cells) + np.abs(cells - 1), kind="stable")  # the density ratio grows with this
    level, power = np.cumsum(p[order]), np.cumsum(q[order]) + 0.1  # an atom at 1 is never a false alarm
    inner = slice(1000, len(cells) - 1000, 997)
    np.testing.assert_allclose(1 - power[inner], mechanism.guarantee.tradeoff(level[inner]), atol=1e-6)


def test_traced_mechanisms_can_be_mapped_over():
    def released(scale, key):
        return ZeroInflatedLaplaceMechanism(0.2, scale, -1.0, 1.0, 2).randomize(key, jnp.zeros((5, 2)))

    mapped = jax.jit(jax.vmap(released))(np.array([0.5, 1.0]), jax.random.split(jax.random.key(0), 2))
    mapped = np.asarray(mapped)
    assert mapped.shape == (2, 5, 2)
    np.testing.assert_allclose(mapped[1], jax.jit(released)(1.0, jax.random.split(jax.random.key(0), 2)[1]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ZeroInflatedLaplaceMechanism(0.0, 1.0, 0, 1), "zero_probability must be between 0 and 1, exclusive"),
        (lambda: ZeroInflatedLaplaceMechanism(1.0, 1.0, 0, 1), "zero_probability must be between 0 and 1, exclusive"),
        (lambda: SymmetricLaplaceMechanism(-1.0, 0, 1), "scale must be non-negative and finite, got -1.0"),
        (lambda: SymmetricLaplaceMechanism(1.0, 1, 1), "lower must be below upper"),
        (lambda: SymmetricLaplaceMechanism(1.0, [0, 0], 1), "lower must be a number or one per perturbed column"),
        (lambda: SymmetricLaplaceMechanism(1.0, [0, 0], 1, columns=3), r"\(here 3\), got shape \(2,\)"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, columns=0), "columns must be a positive integer, or names"),
        (
            lambda: SymmetricLaplaceMechanism(1.0, 0, 1, columns=2**64),
            "columns must be an integer from 1 to 2147483647",
        ),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, columns=("a", "a")), "columns must be distinct names"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, perturbed=(0,)), "give columns, too"),
        (
            lambda: SymmetricLaplaceMechanism(1.0, 0, 1, 3, (0, 5)),
            r"perturbed must be distinct columns out of \(0, 1, 2\)",
        ),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, 3, True), r"out of \(0, 1, 2\), got True"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, 3, (0, np.True_)), r"perturbed must be distinct columns out of"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, 3, (2, True)), r"perturbed must be distinct columns out of"),
        (lambda: SymmetricLaplaceMechanism(1.0, 0, 1, np.True_), "columns must be a positive integer, or names"),
        (lambda: SymmetricLaplaceMechanism(1.0, -1e308, 1e308), "upper - lower must be finite"),
        (lambda: SymmetricLaplaceMechanism([[1.0]], 0, 1), "scale must be a number, or one for each record"),
        (
            lambda: SymmetricLaplaceMechanism(1.0, 0, 1, 3).randomize(jax.random.key(0), np.zeros((4, 2))),
            r"x must be rows of 3 columns, got an array of shape \(4, 2\)",
        ),
        (
            lambda: SymmetricLaplaceMechanism(1.0, 0, 1).randomize(jax.random.key(0), [0.1, np.nan]),
            "x must be a number",
        ),
        (lambda: ldp.Release(np.zeros((3, 2)), SymmetricLaplaceMechanism(1.0, 0, 1, 3)), "a row of 3 numbers for"),
        (lambda: ldp.Release([[0.0, np.inf]], SymmetricLaplaceMechanism(1.0, 0, 1, 2)), "values must be finite"),
        (
            lambda: ldp.Release([0.5, 1.5, 1.5], SymmetricLaplaceMechanism([0.0, 1.0, 0.0], 0, 1)),
            "they must be between the bounds; 1 are not, the first at 2",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
