"""Losses of released labels: what they are, that they can be differentiated, and that they serve any JAX model."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.estimation import (
    MarginalLikelihood,
    SquaredError,
    UnbiasedLabels,
)
from ldpbayes.mechanisms import RPWithPrior


def student_t(df):
    return lambda prediction, scale: dist.StudentT(df, prediction, scale, validate_args=False)


LAPLACE = ldp.LaplaceMechanism(1.0, 0.0, 1.0)
WINDOW = RPWithPrior(1.0, (0.0, 1.0), 0.4)
LABELS = np.array([-0.2, 0.1, 0.5, 1.3])


def test_the_marginal_likelihood_is_that_of_the_privatized_law(x64):
    prediction, scale = jnp.array([0.0, 0.2, 0.4, 0.9]), 0.3
    for law, label in (
        (dist.Laplace, dist.Laplace(prediction, scale)),
        (lambda p, s: dist.Normal(2 * p, s), dist.Normal(2 * prediction, scale)),
    ):
        both = jax.jit(
            lambda z, law=law, label=label: (
                MarginalLikelihood(law).loss(prediction, scale, z, LAPLACE),
                -ldp.Privatized(label, LAPLACE).log_prob(z),
            )
        )
        np.testing.assert_allclose(*both(LABELS), rtol=1e-12)


def test_squared_errors_take_released_or_unbiased_labels():
    prediction = jnp.full(4, 0.3)
    np.testing.assert_allclose(SquaredError().loss(prediction, 1.0, LABELS, WINDOW), (LABELS - 0.3) ** 2, rtol=1e-6)
    unbiased = WINDOW.unbiased(LABELS)
    np.testing.assert_allclose(UnbiasedLabels().loss(prediction, 1.0, LABELS, WINDOW), (unbiased - 0.3) ** 2, rtol=1e-5)
    with pytest.raises(ValueError, match="unbiased"):
        UnbiasedLabels().loss(prediction, 1.0, LABELS, RPWithPrior(1.0, (0.0, 1.0), 0.4, outside="uniform"))


CLIPPED = {
    "normal": (dist.Normal, stats.norm, lambda p, s: (p, s)),
    "heavy-tailed": (student_t(1.5), lambda p, s: stats.t(1.5, p, s), lambda p, s: (p, s)),
    "log-normal": (
        dist.LogNormal,
        lambda p, s: stats.lognorm(s, 0, np.exp(p)),
        lambda p, s: (np.exp(p), s * np.exp(p)),
    ),
}


@pytest.mark.parametrize(
    "law, reference, bulk",
    # the heavy-tailed law's tails are the most of the three
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (name != "heavy-tailed"), id=name)
        for name, case in CLIPPED.items()
    ],
)
def test_means_of_clipped_labels_are_exact_however_narrow_wide_or_far_away_their_law_is(law, reference, bulk, x64):
    def exact(prediction, scale):  # the integral of P(y > t) from 0 to 1, cut on all scales of the law
        centre, width = bulk(prediction, scale)
        cuts = centre + width * np.array([-100.0, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100, 1e3])
        cuts = np.unique(np.clip([0, 1e-9, 1e-6, 1e-3, 1e-2, 0.1, 1, *cuts], 0, 1))
        tail = reference(prediction, scale).sf
        return sum(integrate.quad(tail, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(cuts))

    prediction, scale = (
        grid.ravel() for grid in np.meshgrid([-9.0, -0.4, 0.31234, 1.0, 5.0], [1e-4, 0.01, 0.3, 9, 100])
    )
    mean = MarginalLikelihood(law).mean(prediction, scale, (0.0, 1.0))
    # 8 nodes on panels of half a width, or whose ends are in the ratio 1.5: exact to 1e-10 of the range
    np.testing.assert_allclose(mean, [exact(*pair) for pair in zip(prediction, scale, strict=True)], rtol=0, atol=1e-10)


def test_means_of_clipped_counts_are_sums_over_them(x64):
    counts, rates = np.arange(4000), np.array([0.3, 40.0, 900.0])
    for bounds in ((0.0, 1000.0), (3.5, 41.0)):
        exact = stats.poisson.pmf(counts, rates[:, None]) @ np.clip(counts, *bounds)
        mean = MarginalLikelihood(dist.Poisson).mean(np.log(rates), None, bounds)
        np.testing.assert_allclose(mean, exact, rtol=1e-11)  # masses at 900 have lost 3 of 16 digits
    odds = np.array([-800.0, 0.4, 800.0])
    mean = MarginalLikelihood(dist.BernoulliLogits).mean(odds, None, (0.2, 3.0))
    np.testing.assert_allclose(mean, 0.2 + 0.8 * special.expit(odds), rtol=1e-14)
    with pytest.raises(ValueError, match="a sum has at most"):
        MarginalLikelihood(dist.Poisson).mean(np.zeros(1), None, (0.0, 1e9))


@pytest.mark.parametrize("mechanism", [LAPLACE, WINDOW], ids=["laplace", "window"])
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_gradients_are_finite_wherever_a_training_may_go(mechanism, dtype):
    with jax.enable_x64(dtype is np.float64):
        prediction, log_scale, z = np.meshgrid([-1e4, -3.0, 0.0, 0.5, 1.0, 40.0, 1e4], [-9.0, -2.0, 0.0, 7.0], LABELS)
        given = [jnp.asarray(part.ravel(), dtype) for part in (prediction, log_scale, z)]

        @jax.jit
        def total(prediction, log_scale, z, mechanism):
            def loss(prediction, log_scale):
                return jnp.sum(MarginalLikelihood().loss(prediction, jnp.exp(log_scale), z, mechanism))

            return jax.value_and_grad(loss, (0, 1))(prediction, log_scale)

        value, slopes = total(*given, mechanism)
        assert np.isfinite(value) and all(np.isfinite(slope).all() for slope in slopes)


def test_the_log_density_of_released_labels_is_a_loss_for_a_network_that_the_reader_brings(rng):
    def network(params, x):  # of any library: a pure function of parameters and features
        hidden = jnp.tanh(x @ params["first"] + params["bias"])
        return hidden @ params["last"]

    def loss(params, x, z, mechanism):
        law = dist.Normal(network(params, x), jnp.exp(params["log_scale"]))
        return -ldp.Privatized(law, mechanism).log_prob(z).mean()

    x = rng.normal(size=(500, 2)).astype(np.float32)
    y = np.clip(0.5 + 0.3 * np.sin(2 * x[:, 0]), 0, 1)
    z = jnp.asarray(WINDOW.randomize(jax.random.key(0), y))
    params = {
        "first": rng.normal(size=(2, 8)),
        "bias": np.zeros(8),
        "last": 0.1 * rng.normal(size=8),
        "log_scale": np.log(0.3),
    }
    params = jax.tree.map(jnp.float32, params)
    step = jax.jit(jax.value_and_grad(loss))
    first, slope = step(params, x, z, WINDOW)
    for _ in range(100):
        _, slope = step(params, x, z, WINDOW)
        params = jax.tree.map(lambda p, g: p - 0.3 * g, params, slope)
    assert step(params, x, z, WINDOW)[0] < first
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, slope)))


def test_a_law_has_a_scale_or_none():
    assert (
        MarginalLikelihood().scaled
        and MarginalLikelihood(dist.LogNormal).scaled
        and not MarginalLikelihood(dist.Poisson).scaled
    )
    label = MarginalLikelihood(dist.LogNormal).label(jnp.log(3.0), 0.5)
    assert label.mean == pytest.approx(3.0 * np.exp(0.5**2 / 2), rel=1e-6)
    for law in (lambda: None, lambda a, b, c: None, "normal", dist.Bernoulli, dist.Gamma):
        with pytest.raises(TypeError, match="law must be a function"):
            MarginalLikelihood(law)
    with pytest.raises(ValueError, match="scale must be a positive number, got -1"):
        MarginalLikelihood(scale=-1.0)
    assert MarginalLikelihood(dist.Poisson).label(jnp.log(3.0), None).mean == pytest.approx(3.0, rel=1e-6)
    assert MarginalLikelihood(dist.BernoulliLogits).label(jnp.array(0.0), None).mean == 0.5
