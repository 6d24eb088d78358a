"""Corrected losses and scores: unbiased at every single record, whatever their draws, support and parameters."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import ldpbayes as ldp
from ldpbayes.estimation import DoublyRandom, SmoothedDoublyRandom, SymmetricLaplaceCorrection, losses
from ldpbayes.estimation._corrections import DeconvolvedLoss, support_controls
from ldpbayes.estimation.losses._loss import as_loss

pytestmark = pytest.mark.usefixtures("x64")

REPEATS = 40_000
SIGMAS = 4.5  # each mean of a test may be that far off: error rate 7e-6 each, below 1e-3 in this file
THETA = np.array([0.2, 0.7, -0.4])
X = np.array([[0.1, -0.3, 1.0], [-0.5, 0.5, 0.0], [0.45, 0.2, 1.0]])  # two perturbed columns and a response
SUPPORT = (np.full(2, -0.5), np.full(2, 0.5))


def rows_mechanism(**changes):
    options = {"zero_probability": 0.3, "scale": 0.6, "lower": -0.5, "upper": 0.5, "columns": 3, "perturbed": (0, 1)}
    return ldp.ZeroInflatedLaplaceMechanism(**options | changes)


def corrected(method, mechanism, rows, key):
    """The corrected loss that a method minimises first; none of these looks at which loss it is."""
    return method.evidence(losses.squared(), mechanism, jnp.asarray(rows), key, everywhere=True).criteria[0]


def assert_unbiased(loss, mechanism, x, theta, make, count=REPEATS):
    """Values and scores, averaged over releases of the same records, are those of the original ones."""
    x = jnp.asarray(x)

    def one(key):
        keys = jax.random.split(key)
        z = mechanism.randomize(keys[0], x if mechanism.event_shape else x[:, 0])
        points = make(mechanism, z if mechanism.event_shape else z[:, None], keys[1])
        return jnp.concatenate(
            [points.values(loss, theta, mechanism.index)[:, None], points.scores(loss, theta, mechanism.index)], axis=1
        )

    draws = np.asarray(
        jax.jit(lambda k: jax.lax.map(one, k, batch_size=500))(jax.random.split(jax.random.key(1), count))
    )
    want = np.concatenate([loss.values(x, theta)[:, None], jax.jacobian(lambda t: loss.values(x, t))(theta)], axis=1)
    error = draws.std(axis=0) / np.sqrt(count)
    assert np.all(np.abs(draws.mean(axis=0) - want) <= SIGMAS * error + 1e-12)
    return draws


METHODS = {
    "dr": DoublyRandom(1, None),
    "dr, averaged": DoublyRandom(4, None),
    "dr, truncated": DoublyRandom(4, SUPPORT),
    "sdr": SmoothedDoublyRandom(1),
    "sdr, averaged": SmoothedDoublyRandom(3),
    "sl": SymmetricLaplaceCorrection(1),
}


@pytest.mark.parametrize("name", METHODS)
def test_smooth_losses_and_scores_are_unbiased(name):
    def make(mechanism, z, key):
        return corrected(METHODS[name], mechanism, z, key)

    assert_unbiased(losses.logistic(), rows_mechanism(), X, THETA, make)


@pytest.mark.parametrize(
    ("loss", "name"),
    [(losses.pinball(0.3), "dr"), (losses.hinge(), "dr, averaged"), (losses.absolute(), "dr, truncated")],
    ids=["check", "hinge", "absolute"],
)
def test_losses_with_kinks_and_their_scores_are_unbiased(loss, name):
    def make(mechanism, z, key):
        return corrected(METHODS[name], mechanism, z, key)

    assert_unbiased(loss, rows_mechanism(), X, THETA, make)


UNIT = (np.array([0.0]), np.array([1.0]))
EXACT = {"draws": "exact", "cuts": (0.0, 0.5, 1.0)}


@pytest.mark.parametrize(
    ("options", "support"),
    [({"draws": 1}, None), ({"draws": 8}, UNIT), (EXACT, None), (EXACT, UNIT)],
    ids=["one draw", "draws in the support", "exact", "exact in the support"],
)
def test_jumps_in_one_column_are_unbiased(options, support):
    loss = as_loss(lambda x, theta: (theta[0] - ((x >= 0.5) & (x <= 1))) ** 2, scalar=True)
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.1, 0.94, 0.0, 1.0)

    def make(mechanism, z, key):
        return corrected(DoublyRandom(support=support, **options), mechanism, z, key)

    assert_unbiased(loss, mechanism, np.array([[0.1], [0.6], [0.99]]), jnp.array([0.3]), make)


def test_networks_with_relu_units_are_unbiased():
    def network(x, theta):
        return (x[2] - jnp.maximum(x[:2] @ theta[:4].reshape(2, 2), 0.0) @ theta[4:]) ** 2

    theta = jnp.array([0.9, -0.4, 0.3, 1.2, 0.8, -0.7])

    def make(mechanism, z, key):
        return corrected(DoublyRandom(2, SUPPORT), mechanism, z, key)

    assert_unbiased(as_loss(network), rows_mechanism(), X, theta, make)


def test_personal_parameters_and_public_records_are_unbiased():
    mechanism = rows_mechanism(zero_probability=np.array([0.1, 0.3, 0.5]), scale=np.array([0.4, 0.0, 1.0]))
    for name in ("dr, truncated", "sdr, averaged"):

        def make(mechanism, z, key, name=name):
            return corrected(METHODS[name], mechanism, z, key)

        draws = assert_unbiased(losses.logistic(), mechanism, X, THETA, make, count=20_000)
        assert np.ptp(draws[:, 1], axis=0).max() < 1e-12, name  # the public record is exact every time


def test_symmetric_and_independent_noise_have_unbiased_losses_too():
    symmetric = ldp.SymmetricLaplaceMechanism(0.6, -0.5, 0.5, 3, (0, 1))
    assert_unbiased(losses.logistic(), symmetric, X, THETA, lambda m, z, key: corrected(METHODS["sl"], m, z, key))
    independent = ldp.mechanisms.IndependentLaplaceMechanism(0.6, -0.5, 0.5, 3, (0, 1))
    loss = losses.logistic()
    fixed = DeconvolvedLoss(loss, (0, 1), 0.6)

    def one(key):
        return fixed.values(independent.randomize(key, jnp.asarray(X)), THETA)

    draws = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), REPEATS)))
    error = draws.std(axis=0) / np.sqrt(REPEATS)
    assert np.all(np.abs(draws.mean(axis=0) - loss.values(X, THETA)) <= SIGMAS * error)


def test_averaging_over_the_analysts_noise_is_what_many_single_draws_average_to():
    mechanism, z = rows_mechanism(), jnp.asarray(X) + jnp.array([0.3, -0.4, 0.0])
    loss = losses.pinball(0.4)
    for support in (None, SUPPORT):

        def value(key, draws, support=support):
            return corrected(DoublyRandom(draws, support), mechanism, z, key).values(loss, THETA, (0, 1))

        keys = jax.random.split(jax.random.key(3), 20_000)
        one, many = (np.asarray(jax.jit(jax.vmap(lambda k, d=d: value(k, d)))(keys[: 20_000 // d])) for d in (1, 16))
        error = np.hypot(one.std(axis=0) / np.sqrt(len(one)), many.std(axis=0) / np.sqrt(len(many)))
        assert np.all(np.abs(one.mean(axis=0) - many.mean(axis=0)) < SIGMAS * error)
        # the low-discrepancy sequence does better than 16 independent draws
        assert np.all(many.var(axis=0) < one.var(axis=0) / 16)


def test_exact_integration_is_the_mean_over_the_noise():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.8, 0.0, 1.0)
    z = jnp.array([[-2.0], [0.3], [1.7], [0.5]])
    loss = as_loss(lambda x, theta: jnp.maximum(x - theta[0], 0.0) + x**3, scalar=True)
    theta = jnp.array([0.5])
    nodes, h = np.linspace(-40, 40, 4_000_001, retstep=True)
    scale = np.sqrt(0.2) * 0.8 / np.sqrt(2)
    for support in (None, (np.array([0.0]), np.array([1.0]))):
        exact = corrected(DoublyRandom("exact", support, (0.5,)), mechanism, z, jax.random.key(0))
        for i, at in enumerate(np.asarray(z)[:, 0]):
            inside = 1.0 if support is None else (nodes >= 0) & (nodes <= 1)
            density = np.exp(-np.abs(nodes - at) / scale) / (2 * scale)
            values = np.asarray(loss.values(jnp.asarray(nodes)[:, None], theta))
            here = support is None or 0 <= at <= 1
            want = (values[np.searchsorted(nodes, at)] if here else 0.0) / 0.2 - 4 * h * np.sum(
                inside * density * values
            )
            got = exact.values(loss, theta, (0,))[i]
            assert got == pytest.approx(want, abs=2e-4)  # the trapezoidal rule's error at the ends of the support


@pytest.mark.parametrize("scale", [1e-4, 2e-3, 0.05, 1.0, 5.0])
def test_exact_integration_follows_noise_from_narrow_to_wide(scale):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.5, scale, 0.0, 1.0)
    noise = np.sqrt(0.5) * scale / np.sqrt(2)
    z = np.array([-0.2, 0.003, 0.3, 0.5, 0.93, 1.02])

    def function(u):
        return jnp.abs(jnp.sin(2 * jnp.pi * u)) * jnp.exp(u)

    loss = as_loss(lambda x, theta: theta[0] * function(x), scalar=True)
    exact = corrected(DoublyRandom("exact", UNIT, (0.5,)), mechanism, z[:, None], jax.random.key(0))
    got = exact.values(loss, jnp.array([1.0]), (0,))
    for at, found in zip(z, got, strict=True):
        ends = np.clip([0, 0.5, 1, *(at + noise * np.array([-40, -20, -10, -4, -1, 0, 1, 4, 10, 20, 40]))], 0, 1)
        parts = [
            integrate.quad(lambda u, at: abs(np.sin(2 * np.pi * u)) * np.exp(u - abs(u - at) / noise), a, b, (at,))[0]
            for a, b in itertools.pairwise(np.unique(ends))
        ]
        want = 2 * float(function(at)) * (0 <= at <= 1) - sum(parts) / (2 * noise)
        assert float(found) == pytest.approx(want, abs=1e-9)  # QUADPACK's own tolerance is 1.5e-8 a part, rarely used


def test_functions_that_only_see_beyond_the_support_have_mean_zero():
    mechanism = rows_mechanism(zero_probability=np.array([0.1, 0.3, 0.5]), scale=np.array([0.4, 0.0, 1.0]))

    def one(key):
        return support_controls(mechanism, mechanism.randomize(key, jnp.asarray(X)), SUPPORT)

    draws = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(4), REPEATS)))
    assert draws.shape == (REPEATS, 3, 4)
    error = draws.std(axis=0) / np.sqrt(REPEATS)
    assert np.all(np.abs(draws.mean(axis=0)) <= SIGMAS * error + 1e-12)
    assert np.all(draws[:, 1] == 0)  # a public record inside the support has nothing beyond it


def test_a_truncated_loss_is_never_looked_at_outside_the_support():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 2.0, 1.0, 3.0)
    loss = as_loss(lambda x, theta: theta[0] * jnp.log(x), scalar=True)  # undefined for most released values
    z = mechanism.randomize(jax.random.key(0), np.full(2000, 1.5))[:, None]
    assert np.mean(np.asarray(z) < 0) > 0.1
    points = corrected(DoublyRandom(4, (1.0, 3.0)), mechanism, z, jax.random.key(1))
    values = points.scores(loss, jnp.array([1.0]), (0,))
    assert np.all(np.isfinite(values))
    assert abs(values.mean() - np.log(1.5)) < SIGMAS * values.std() / np.sqrt(2000)


def test_batches_add_up():
    mechanism, z = rows_mechanism(), jnp.asarray(X)
    parts = [corrected(DoublyRandom(2, None), mechanism, z[i : i + 1], jax.random.key(i)) for i in range(3)]
    together = parts[0] + parts[1] + parts[2]
    loss = losses.logistic()
    want = np.concatenate([part.values(loss, THETA, (0, 1)) for part in parts])
    np.testing.assert_allclose(together.values(loss, THETA, (0, 1)), want)
    assert together.count == 3
    doubled = together.weighted(jnp.array([2.0, 1.0, 0.0])).values(loss, THETA, (0, 1))
    np.testing.assert_allclose(doubled, want * [2, 1, 0])
