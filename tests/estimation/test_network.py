"""Networks trained on released labels."""

import functools
import sys

import jax
import numpy as np
import optax
import pytest

import ldpbayes as ldp
from ldpbayes.estimation import EstimationWarning, Network, SquaredError, network_fit, train_network

COUNT = 300
SMALL = Network(widths=(16, 8), epochs=30, batch=64, optimiser=optax.adam(1e-2))
MECHANISM = ldp.LaplaceMechanism(8.0, 0.0, 1.0)


@pytest.fixture(scope="module")
def features():
    return np.random.default_rng(1).normal(size=(COUNT, 2)) * [3.0, 0.1] + [10.0, 0.0]


@pytest.fixture(scope="module")
def labels(features):
    return 0.5 + 0.4 * np.sin((features[:, 0] - 10.0) / 2)


@pytest.fixture(scope="module")
def released(labels):
    return ldp.Release(labels + np.random.default_rng(2).laplace(0, 1 / 8, COUNT), MECHANISM)


@pytest.fixture(scope="module")
def fitted(features, released):
    return network_fit(features, released, network=SMALL)


def test_a_network_learns_the_curve_and_the_scale_from_noisy_labels(fitted, features, labels, released):
    predicted = fitted.predict(features, bounds=(0.0, 1.0))
    # the variance of labels is 0.06: the network explains three quarters of it, a line less than half
    assert np.mean((predicted - labels) ** 2) < 0.015
    assert fitted.losses.shape == (30,) and fitted.losses[-1] < fitted.losses[0]
    assert 0 < fitted.scale < 0.25 and fitted.count == COUNT
    assert "Each label" in fitted.privacy
    assert predicted.min() >= 0 and predicted.max() <= 1


def test_a_seed_gives_the_same_network_again_and_another_seed_another(fitted, features, released):
    again = network_fit(features, released, network=SMALL)
    np.testing.assert_array_equal(again.losses, fitted.losses)
    other = network_fit(features, released, network=SMALL, seed=1)
    assert np.any(other.losses != fitted.losses)


def test_features_far_from_zero_are_standardised_in_double_precision(fitted, features, released):
    far = features * 2.0**-20 + 2.0**6  # in single precision a column has 2 different numbers, in double all
    moved = network_fit(far, released, network=SMALL)
    # the same standardised features to 1e-8, hence in single precision to rounding, over 150 steps
    np.testing.assert_allclose(moved.predict(far), fitted.predict(features), atol=0.02)


def test_columns_of_a_data_frame_are_those_of_the_training(features, released):
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    frame = pandas.DataFrame(features, columns=["age", "rooms"])
    fit = network_fit(frame, released, network=SMALL)
    np.testing.assert_array_equal(fit.predict(frame), fit.predict(features))
    with pytest.raises(ValueError, match=r"columns of the fit in the same order, \['age', 'rooms'\]"):
        fit.predict(frame[["rooms", "age"]])


def test_trials_are_trained_together(features, released):
    fitted = network_fit(features, released, network=SMALL, objective=SquaredError())
    keys = jax.random.split(jax.random.key(0), 2)
    train = jax.jit(jax.vmap(functools.partial(train_network, SMALL, SquaredError()), (0, None, 0, None)))
    values = np.stack([released.values, released.values[::-1]]).astype(np.float32)
    standard = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(np.float32)
    with jax.enable_x64(False):
        keys = keys.at[0].set(jax.random.key(0))
        trained, losses = train(keys, standard, values, released.mechanism)
    assert losses.shape == (2, 30) and trained.layers[0][0].shape == (2, 2, 16)
    # the first trial is the fit above: sums in another order, in single precision, over 150 steps
    np.testing.assert_allclose(losses[0], fitted.losses, atol=0.02)


def test_layers_start_as_those_of_pytorch_do(features, released):
    network = Network(widths=(128, 64), standardise=False)
    data = (features, released.values, MECHANISM)
    start = jax.jit(lambda seed: network.start(SquaredError(), jax.random.key(seed), *data))(0)
    assert [w.shape for w, _ in start.layers] == [(2, 128), (128, 64), (64, 1)]
    for weights, bias in start.layers:
        bound = 1 / np.sqrt(weights.shape[0])
        drawn = np.concatenate([np.ravel(weights), bias])
        assert np.all(np.abs(drawn) <= bound)
        # a uniform law's mean, within five of its standard errors
        assert abs(drawn.mean()) < 5 * bound / np.sqrt(3 * len(drawn))
    assert start.middle == 0 and start.unit == 1


def test_one_step_is_that_of_the_optimiser_with_weight_decay_in_the_gradient(features, released):
    network = Network(widths=(4,), epochs=1, batch=COUNT, optimiser=optax.sgd(0.1), weight_decay=0.5)
    key = jax.random.key(3)
    with jax.enable_x64(True):
        values = released.values.astype(float)
        data = (features, values, MECHANISM)

        @jax.jit
        def both(key):
            start = network.start(SquaredError(), jax.random.split(key)[0], *data)

            def mean(layers):
                prediction, _ = network.predictor(start._replace(layers=layers), features)
                return ((values - prediction) ** 2).mean()

            first, slope = jax.value_and_grad(mean)(start.layers)
            expected = jax.tree.map(lambda w, g: w - 0.1 * (g + 0.5 * w), start.layers, slope)
            return first, expected, *train_network(network, SquaredError(), key, *data)

        first, expected, trained, losses = both(key)
        assert losses[0] == pytest.approx(float(first), rel=1e-12)
    for found, wanted in zip(jax.tree.leaves(trained.layers), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-14)


def test_wrong_input_is_refused(features, released, monkeypatch):
    with pytest.raises(ValueError, match="features must be finite"):
        network_fit(np.full((COUNT, 2), np.inf), released)
    with pytest.raises(ValueError, match="without values"):
        network_fit(features, ldp.Release(None, MECHANISM, COUNT))
    with pytest.raises(TypeError, match="not both"):
        network_fit(features, released, network=SMALL, epochs=3)
    for name, value in (("epochs", 0), ("batch", 0), ("widths", (0,)), ("weight_decay", -1.0)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            Network(**{name: value})
    with pytest.raises(TypeError, match="activation must be"):
        Network(activation="relu")
    with pytest.warns(EstimationWarning, match="loss is not finite"):
        network_fit(features * 1e30, released, objective=SquaredError(), widths=(4,), epochs=1, standardise=False)
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match=r"pip install 'ldpbayes\[learning\]'"):
        network_fit(features, released, epochs=3)
