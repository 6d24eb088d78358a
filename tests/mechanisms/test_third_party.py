"""What somebody else's mechanism, noise and closed form get from the protocols, and what they must say for it."""

import dataclasses
import importlib.util
import inspect
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.cli import main as cli
from ldpbayes.likelihood import closed_forms as _dispatch
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms import protocol as _registry
from tests.programs import constant, log_prob

SOURCE = pathlib.Path(__file__).parent.parent / "third_party" / "logistic.py"


@pytest.fixture(scope="module")
def mechanism():
    """Somebody's mechanism, known to the registry while these tests run."""
    known = dict(_registry._registry)
    spec = importlib.util.spec_from_file_location("third_party_logistic", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module.LogisticMechanism(2.0, -2.0, 3.0)
    _registry._registry.clear()
    _registry._registry.update(known)


@pytest.fixture(scope="module")
def release(mechanism):
    rng = np.random.default_rng(0)
    return ldp.Release(np.clip(rng.normal(0.4, 1.1, 2000), -2, 3) + rng.logistic(0, 2.0, 2000), mechanism)


def test_it_takes_forty_lines():
    assert len([line for line in SOURCE.read_text().splitlines() if line.strip()]) <= 40


def test_the_command_line_describes_it_by_the_sentence_with_which_it_is_registered(mechanism, capsys):
    assert cli(["mechanisms"]) == 0
    assert "test_logistic(scale, lower, upper)\n    Logistic noise on a clipped number." in capsys.readouterr().out


def test_a_mechanism_that_forgets_a_trait_is_not_registered_and_is_told_which(mechanism):
    forgotten = "breakpoints", "resolution", "name"
    kept = {n: value for n, value in vars(type(mechanism)).items() if n not in forgotten and not n.startswith("__")}
    kept["__annotations__"] = inspect.get_annotations(type(mechanism))
    forgetful = type("Forgetful", (ldp.mechanisms.NumericMechanism,), kept)
    with pytest.raises(TypeError, match=r"define.*\n  resolution: shortest length .*\n  breakpoints: a method"):
        ldp.mechanisms.register("test_forgetful")(dataclasses.dataclass(frozen=True)(forgetful))


def test_a_mechanism_that_does_not_say_what_it_releases_is_not_registered():
    @dataclasses.dataclass(frozen=True)
    class Vague(ldp.mechanisms.Mechanism):
        scale: Any

    with pytest.raises(TypeError, match=r"must be a subclass of .*NumericMechanism or DiscreteMechanism"):
        ldp.mechanisms.register("test_vague")(Vague)


def test_a_noise_that_forgets_a_trait_is_told_which():
    with pytest.raises(TypeError, match=r"linear_tails: True if .*\n  kinks: .*\n  norm: 1 or 2"):
        type("Forgetful", (ldp.noise.Noise,), {**_methods(), "standard_deviation": 1.0})


def _methods():
    return {
        name: getattr(ldp.noise.Laplace, name)
        for name in ("sample", "log_prob", "resolution", "reach", "depth", "tradeoff")
    }


def test_it_gets_a_likelihood_a_sketch_and_a_guarantee(mechanism, release, x64):
    base, release = dist.Normal(0.4, 1.1), ldp.Release(release.values[:200], mechanism)
    z = np.array([-6.0, -1.3, 0.2, 2.9, 8.0])
    density = stats.truncnorm((-2 - 0.4) / 1.1, (3 - 0.4) / 1.1, 0.4, 1.1).pdf
    inside = np.diff(stats.norm(0.4, 1.1).cdf([-2, 3]))[0]
    # NumPy builds a channel where JAX traces neither the mechanism nor the values
    found, whole = jax.jit(
        lambda base: [ldp.Privatized(base, mechanism).log_prob(values) for values in (z, release.values)]
    )(base)
    for at, got in zip(z, np.asarray(found), strict=True):
        kernel = stats.logistic(at, 2.0).pdf
        smooth = inside * integrate.quad(lambda x, k=kernel: density(x) * k(x), -2, 3, epsabs=1e-13)[0]
        atoms = stats.norm(0.4, 1.1).cdf(-2) * kernel(-2) + stats.norm(0.4, 1.1).sf(3) * kernel(3)
        assert float(got) == pytest.approx(np.log(smooth + atoms), abs=1e-9)  # what quad promises, against exp(-10)
    # the certificate lets pass 1e-3 nats; with a smooth kernel the panels do far better
    sketch = release.sketch(panels=80)
    sketched = jax.jit(lambda base: law_of_nodes(sketch, base).log_prob(sketch.nodes))(base)
    assert sketch.weights @ np.asarray(sketched) == pytest.approx(np.asarray(whole).sum(), abs=1e-6)
    assert "epsilon = 2.5 " in mechanism.guarantee.statement()
    again = ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec())))
    assert again == mechanism


@pytest.mark.slow
def test_it_gets_a_certified_posterior(release):
    def model(data):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        ldp.observe("z", dist.Normal(mu, 1.1), data)

    posterior = ldp.fit(model, release.sketch(panels=80), seed=0, num_warmup=200, num_samples=200, progress_bar=False)
    draws = np.asarray(posterior["posterior"]["mu"])
    # 2,000 numbers of variance 1.1² + (2 π)²/3, hardly clipped: five standard deviations leave one seed in 2e6
    assert abs(draws.mean() - 0.4) < 5 * np.sqrt((1.1**2 + (2 * np.pi) ** 2 / 3) / 2000)
    assert json.loads(posterior.attrs["certificates"])[0]["error_nats"] < 1e-3


@ldp.noise.pytree
@dataclasses.dataclass(frozen=True)
class Uniform(ldp.noise.Noise):
    """Noise with a jump on either side: density 1/(2 width) between −width and width."""

    width: Any

    linear_tails = False
    norm = 1
    kinks = property(lambda self: (-self.width, self.width))
    resolution = standard_deviation = property(lambda self: self.width / np.sqrt(3))
    reach = property(lambda self: self.width)

    def sample(self, key, shape, dtype):
        return self.width * jax.random.uniform(key, shape, dtype, -1, 1)

    def log_prob(self, value):
        return jnp.sum(jnp.where(jnp.abs(value) <= self.width, -jnp.log(2 * self.width), -jnp.inf), axis=-1)

    def depth(self, distance):
        return -np.log2(np.maximum(0.5 - distance / (2 * np.sqrt(3)), np.finfo(float).tiny))

    def tradeoff(self, distance):
        return ldp.privacy.approximate_tradeoff(1.0, 0.5)


def test_a_noise_of_ones_own_is_enough_for_an_additive_mechanism(x64):
    mechanism = ldp.mechanisms.AdditiveMechanism(Uniform(1.0), -2.0, 3.0)
    law, z = stats.norm(0.4, 1.1), np.array([-1.7, 0.2, 1.9])
    # a record below −2 is clipped to −2, which is within 1 of the first value
    want = np.log((law.cdf(z + 1) - [0.0, *law.cdf(z[1:] - 1)]) / 2)
    np.testing.assert_allclose(log_prob(dist.Normal(0.4, 1.1), constant(mechanism), z), want, atol=1e-12)


def test_what_needs_too_much_memory_is_advised_to_do_what_has_not_been_done():
    law, mechanism, z = (
        dist.Normal(0.4, 1.1),
        ldp.mechanisms.AdditiveMechanism(Uniform(1.0), -2.0, 3.0),
        np.zeros(500_000),
    )
    with pytest.raises(ValueError, match=r"more than 1 GiB; use release\.sketch\(\), or fewer panels"):
        jax.eval_shape(lambda: ldp.Privatized(law, mechanism).log_prob(z))
    with pytest.raises(ValueError, match="more than 1 GiB; use the release itself instead of a sketch, or fewer pa"):
        jax.eval_shape(lambda: ldp.Privatized(law, mechanism, panels=80).log_prob(z))  # as a sketch's nodes are


def test_a_closed_form_of_ones_own_is_what_observe_uses_with_a_sketch_too(monkeypatch, x64):
    monkeypatch.setattr(_dispatch._FORMS, "users", {})
    mechanism = ldp.LaplaceMechanism(1.0, -5, 5)
    release = ldp.Release(np.linspace(-9.0, 9.0, 50), mechanism)

    @ldp.likelihood.register_closed_form(dist.Normal, ldp.noise.Laplace)
    def mine(base, mechanism, z):
        return jnp.full(jnp.shape(z), 0.25) * base.scale

    with pytest.raises(ValueError, match="already registered for Normal under Laplace"):
        ldp.likelihood.register_closed_form(dist.Normal, ldp.noise.Laplace)(lambda base, mechanism, z: z)

    def model(data):
        ldp.observe("z", dist.Normal(0.0, 2.0), data)

    log_density = jax.jit(lambda data: numpyro.infer.util.log_density(model, (data,), {}, {})[0])
    for data in (release, release.sketch()):
        assert float(log_density(data)) == pytest.approx(25.0, rel=1e-12)  # 50 records of 0.25 × 2
    channel = log_prob(dist.Normal(0.0, 2.0), constant(mechanism), 0.0, method="channel")
    assert float(channel) != pytest.approx(0.5)


def slope(base_of, data):
    """Derivative of a model's log density in the parameter of a law."""

    def log_density(parameter):
        return numpyro.infer.util.log_density(lambda: ldp.observe("z", base_of(parameter), data), (), {}, {})[0]

    return float(jax.jit(jax.grad(log_density))(0.4))


def test_what_no_record_is_near_to_need_not_have_a_density(monkeypatch, x64):
    # a sketch has nodes where no record is, and beyond what this noise can release
    bounded = ldp.mechanisms.AdditiveMechanism(Uniform(1.0), -2.0, 3.0)
    assert np.isfinite(slope(lambda mu: dist.Normal(mu, 1.1), ldp.Release([-2.5, 0.1, 0.4, 3.7], bounded).sketch()))
    monkeypatch.setattr(_dispatch._FORMS, "users", {})

    @ldp.likelihood.register_closed_form(dist.Normal, ldp.noise.Laplace)
    def only_near(base, mechanism, z):
        return jnp.log(jnp.where(jnp.abs(z) < 4, 1.0, 0.0)) - (z - base.loc) ** 2

    release = ldp.Release(np.array([-1.0, 0.2, 0.5, 1.5]), ldp.LaplaceMechanism(1.0, -5, 5))
    want = slope(lambda mu: dist.Normal(mu, 1.1), release)
    assert slope(lambda mu: dist.Normal(mu, 1.1), release.sketch()) == pytest.approx(want, rel=1e-9)


def test_a_mechanism_that_was_not_registered_is_told_so():
    unregistered = type("Unregistered", (ldp.LaplaceMechanism,), {})
    with pytest.raises(
        TypeError, match=r"Unregistered is not registered: decorate it with @ldpbayes.mechanisms.register"
    ):
        ldp.Release([0.5], unregistered(1.0, 0, 1))
