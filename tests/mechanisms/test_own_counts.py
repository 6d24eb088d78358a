"""The mechanism of counts that docs/how_to/own_mechanism.md writes with the public interface, taken from there."""

import json
import pathlib
import re

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import protocol as _registry
from tests.programs import call, randomize

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "how_to" / "own_mechanism.md"
Z, X = np.arange(-300, 311), np.arange(11)


@pytest.fixture(scope="module")
def example():
    """What the page's example defines, known to the registry while these tests run."""
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "Geometric" in block)
    known, names = dict(_registry._registry), {"__name__": __name__}
    exec(code.partition("\nmechanism = ")[0], names)  # as a user does; what follows runs chains
    yield names
    _registry._registry.clear()
    _registry._registry.update(known)


@pytest.fixture(scope="module")
def mechanism(example):
    return example["GeometricCounts"](2.0)


@pytest.fixture(scope="module")
def release(mechanism):
    visits = np.random.default_rng(0).poisson(6, 5000)
    return ldp.Release(randomize(mechanism, visits, seed=1), mechanism)


def law_of(mechanism, base=None):
    return ldp.Privatized(dist.Poisson(6.0) if base is None else base, mechanism)


def in_one_program(mechanism):
    """Log density, mean and variance of the law of released counts."""
    law = law_of(mechanism)
    return jax.jit(lambda z: (law.log_prob(z), law.mean, law.variance))(Z)


def test_its_likelihood_adds_up_to_one_and_is_the_sum_over_counts_that_are_clipped(mechanism, x64):
    log_prob, *own = in_one_program(mechanism)
    assert special.logsumexp(log_prob) == pytest.approx(0, abs=1e-12)
    masses = np.append(stats.poisson(6).pmf(X[:-1]), stats.poisson(6).sf(9))
    noise = np.log(np.tanh(0.1)) - 0.2 * np.abs(Z[:, None] - X)
    np.testing.assert_allclose(log_prob, special.logsumexp(noise, b=masses, axis=1), rtol=1e-12)
    same, *moments = in_one_program(ldp.DiscreteLaplaceMechanism(5.0, 0, 10))
    np.testing.assert_allclose(log_prob, same, rtol=1e-12)
    np.testing.assert_allclose(own, moments, rtol=1e-12)


def test_values_in_the_far_tail_keep_their_likelihood_under_little_noise(example, x64):
    # exp(−50·60) is no floating-point number, and the mass at 10 is 1e-18
    mechanism = example["GeometricCounts"](500.0)
    want = stats.poisson(0.01).logpmf(np.array([0, 10])) - 50 * np.array([60, 0]) + np.log(np.tanh(25.0))
    law = law_of(mechanism, dist.Poisson(0.01))
    got = jax.jit(lambda z: law.log_prob(z))(np.array([-60, 10]))
    # the other counts add exp(−50) of the first value, and 1/1000 (those above 10) of the second
    np.testing.assert_allclose(got, want, atol=1.1e-3)


def test_its_guarantee_is_the_best_test_between_two_records(mechanism, x64):
    best = ldp.privacy.FiniteTradeoff(np.exp(call("log_prob", mechanism, Z, X[:, None])))
    at = np.linspace(0, 2, 9)
    np.testing.assert_allclose(mechanism.guarantee.delta(at), best.delta(at), atol=1e-12)


def test_a_sketch_of_it_says_what_the_release_does_and_both_are_argument_of_compiled_functions(example, release, x64):
    at = {"rate": 5.5}
    density = jax.jit(lambda data: log_density(example["model"], (data,), {}, at)[0])
    assert density(release.sketch()) == pytest.approx(float(density(release)), rel=1e-12)
    every = jax.jit(jax.vmap(lambda mechanism: law_of(mechanism).log_prob(3)))
    one = jax.jit(lambda: [law_of(example["GeometricCounts"](epsilon)).log_prob(3) for epsilon in (0.5, 2.0)])
    np.testing.assert_allclose(every(example["GeometricCounts"](np.array([0.5, 2.0]))), one(), rtol=1e-12)


@pytest.mark.slow
def test_it_is_fitted(example, release):
    options = {"num_warmup": 100, "num_samples": 100, "num_chains": 1, "progress_bar": False}
    rate = ldp.fit(example["model"], release.sketch(), seed=0, **options)["posterior"]["rate"].values
    # One seed: the records' mean lies within 5 standard errors, √((6 + 50)/5000), of the truth with probability 6e-7,
    # clipping takes away at most a quarter of what is known, and the mean of draws adds no more than their deviation.
    assert abs(rate.mean() - 6) < 6 * np.sqrt(56 / 5000)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_it_comes_back_from_specs_and_release_files(mechanism, release, ending, tmp_path):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    release.save(tmp_path / f"r.{ending}")
    again = ldp.Release.load(tmp_path / f"r.{ending}")
    assert again.mechanism == mechanism
    np.testing.assert_array_equal(again.values, release.values)


def test_what_it_cannot_take_is_named(example, mechanism):
    with pytest.raises(ValueError, match="epsilon must be positive and finite, got the string '2'"):
        example["GeometricCounts"]("2")
    with pytest.raises(ValueError, match=r"must be integers under GeometricCounts; 1 are not, the first \(0.5\) at 1"):
        ldp.Release([1, 0.5], mechanism)
    with pytest.raises(ValueError, match="GeometricCounts takes whole numbers, but the base Normal is continuous"):
        law_of(mechanism, dist.Normal(0.0, 1.0))
    refuses = type("Refuses", (type(mechanism),), {"clips": False})(2.0)
    with pytest.raises(ValueError, match=r"takes values 0..10, but .* Poisson has .* define clips = True"):
        law_of(refuses)
