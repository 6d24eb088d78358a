"""Atoms: where records released without noise gather, in densities, in sketches and in single precision."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import ldpbayes as ldp
from ldpbayes.inference.approximations.panels import SKETCH_ERROR_NATS, Certificate
from ldpbayes.inference.density import Density
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms.additive import Additive
from tests.programs import constant, log_prob, randomize, value_and_grad

pytestmark = pytest.mark.usefixtures("x64")

COUNTS = ldp.ZeroInflatedLaplaceMechanism(0.5, 4.0, 0, 20)


def negative_binomial(parameters, data):
    ldp.observe("z", dist.NegativeBinomial2(*parameters), data)


@pytest.fixture(scope="module")
def counts():
    x = np.random.default_rng(0).negative_binomial(0.8, 0.8 / 3.8, 3000).astype(float)
    return ldp.Release(randomize(COUNTS, x), COUNTS)


def test_an_atom_keeps_its_log_mass_however_small_that_is():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.5, 100.0, 0, 300)
    rates = np.array([180.0, 5.0, 0.1])
    value, (slope,) = value_and_grad(dist.Poisson, (rates,), constant(mechanism), 180.0)
    # a log mass of k log(rate) - rate - log k! is as exact as its largest term, 1e3
    np.testing.assert_allclose(value, np.log(0.5) + stats.poisson(rates).logpmf(180), rtol=1e-12)
    np.testing.assert_allclose(slope, 180 / rates - 1, rtol=1e-9, atol=1e-9)


def test_a_sketch_of_counts_says_what_the_records_say(counts):
    sketch = counts.sketch()
    np.testing.assert_array_equal(sketch.atoms, [np.sum(counts.values == k) for k in range(21)])
    # the bounds of counts must be known before tracing, so the data are not arguments here
    of = jax.jit(lambda p: [log_density(negative_binomial, (p, data), {}, {})[0] for data in (sketch, counts)])
    for parameters in ((3.0, 0.8), (2.13, 0.32), (8.0, 3.0)):
        # 3,000 terms of size 5 with a rounding error of 1e-15 each, and a channel good to 1e-10 a record
        assert np.subtract(*map(float, of(parameters))) == pytest.approx(0.0, abs=1e-6)


def test_halves_of_a_sketch_of_counts_add_up(counts):
    whole, halves = counts.sketch(), [ldp.Release(counts.values[i::2], COUNTS).sketch() for i in (0, 1)]
    both = halves[0] + halves[1]
    np.testing.assert_array_equal(both.atoms, whole.atoms)
    np.testing.assert_allclose(both.weights, whole.weights, rtol=1e-9, atol=1e-9)
    assert both.size == whole.size == 3000 and len(both.probes) <= 256


def test_a_sketch_of_counts_with_too_many_atoms_is_refused():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.5, 400.0, 0, 5000)
    sketch = ldp.Release([3.0, 4.5], mechanism).sketch()
    assert len(sketch.atoms) == 2
    with pytest.raises(ValueError, match="at most 1024 different counts"):
        law_of_nodes(sketch, dist.Poisson(3.0))
    law_of_nodes(sketch, dist.Normal(3.0, 1.0))


class Blind(ldp.ZeroInflatedLaplaceMechanism):
    """Zero-inflated noise whose author forgot that it leaves atoms."""

    name = "blind"
    has_atoms = False


@pytest.mark.slow
def test_the_certificate_sees_atoms_that_a_sketch_ignores(counts):
    # the reference of such a sketch is as wrong as the sketch itself
    blind = Blind(0.5, 4.0, 0, 20)
    jax.tree_util.register_pytree_node(
        Blind,
        lambda m: ((m.zero_probability, m.scale, m.lower, m.upper), None),
        lambda _, leaves: Blind(*leaves),
    )
    drawn = {"parameters": np.log([[[3.0, 0.8], [2.5, 0.9]]])}

    def model(data):
        parameters = numpyro.sample("parameters", dist.HalfNormal(9.0).expand([2]).to_event(1))
        ldp.observe("z", dist.NegativeBinomial2(parameters[0], parameters[1]), data)

    sketches = [counts.sketch(), ldp.Release(counts.values, blind).sketch()]
    densities = [Density(model, (sketch,), {}) for sketch in sketches]
    errors = [Certificate(density, density, {"parameters": np.zeros(2)}).error(drawn) for density in densities]
    assert errors[0] < SKETCH_ERROR_NATS < 1 < errors[1]


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_records_released_in_single_precision_are_at_rounded_bounds(dtype):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.1, 0.0, 0.1)
    with jax.enable_x64(dtype == np.float64):
        z = np.asarray(jax.jit(mechanism.randomize)(jax.random.key(0), np.repeat([0.05, 0.3], 500)))
    assert z.dtype == dtype
    at_bound = np.sum(z == dtype(0.1))
    assert at_bound > 100  # three in ten of 500
    density = jax.jit(ldp.Privatized(dist.Normal(0.05, 0.05), mechanism).log_prob)
    # double precision that has been single is recognised too
    for values in (z, z.astype(float)):
        sketch = ldp.Release(values, mechanism).sketch()
        np.testing.assert_array_equal(sketch.atoms, [0, at_bound])
        atoms = np.asarray(density(values[values == dtype(0.1)][:3]))
        # the log of a mass of 0.05, whose argument has been rounded to single precision
        np.testing.assert_allclose(atoms, np.log(0.3 * stats.norm.sf(1.0)), atol=1e-6)


BEYOND = {"exponential": (dist.Exponential, (0.5,), (0, 10)), "beta": (dist.Beta, (2.0, 3.0), (0, 1))}


@pytest.mark.parametrize("name", ["exponential", pytest.param("beta", marks=pytest.mark.slow)])
def test_a_sketch_is_finite_where_no_record_can_be_at_a_bound(name):
    law, parameters, bounds = BEYOND[name]
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 2.0, *bounds)
    drawn = jax.jit(lambda key: ldp.Privatized(law(*parameters), mechanism).sample(key, (300,)))
    release = ldp.Release(drawn(jax.random.key(1)), mechanism)

    def model(parameters, data):
        ldp.observe("z", law(*parameters), data)

    def of(parameters, data):
        return log_density(model, (parameters, data), {}, {})[0]

    sketched, slope = jax.jit(jax.value_and_grad(of))(parameters, release.sketch())
    each = jax.jit(of)(parameters, release)
    assert np.isfinite(sketched) and np.all(np.isfinite(slope))
    # 300 records, each good to 1e-8
    assert float(sketched) == pytest.approx(float(each), abs=3e-6)


def test_a_bound_that_the_support_does_not_pass_is_a_number_like_others():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 2.0, 0, 10)
    near, at = log_prob(dist.Exponential(0.5), mechanism, np.array([1e-12, 0.0]))
    assert at == pytest.approx(near, abs=1e-10)
    below = ldp.ZeroInflatedLaplaceMechanism(0.2, 2.0, -1, 10)
    near, at = log_prob(dist.Poisson(0.5), constant(below), np.array([-1 + 1e-12, -1.0]))
    assert at == pytest.approx(near, abs=1e-10)


def test_zero_inflated_records_have_atoms_by_kind():
    assert all(issubclass(kind, Additive) for kind in (ldp.SymmetricLaplaceMechanism, Blind))
    sketch = ldp.Release([0.3, 1.0, 2.0], ldp.SymmetricLaplaceMechanism(1.0, 0, 2)).sketch()
    np.testing.assert_array_equal(sketch.places, [0, 1, 2])
    np.testing.assert_array_equal(sketch.atoms, [0, 1, 1])
    assert not len(ldp.Release([0.3, 1.0], ldp.LaplaceMechanism(1.0, 0, 2)).sketch().places)


def test_a_public_number_at_a_bound_has_the_gradient_of_its_log_mass():
    mechanism = ldp.SymmetricLaplaceMechanism([0.0, 0.0, 0.0], -2, 3)
    z = np.array([-2.0, 0.3, 3.0])

    def of_mean(loc):
        return ldp.Privatized(dist.Normal(loc, 1.2), mechanism).log_prob(z)

    law = stats.norm(0.4, 1.2)
    value, *jacobians = jax.jit(lambda loc: [f(loc) for f in (of_mean, jax.jacrev(of_mean), jax.jacfwd(of_mean))])(0.4)
    np.testing.assert_allclose(value, [law.logcdf(-2), law.logpdf(0.3), law.logsf(3)], rtol=1e-13)
    hazards = [-law.pdf(-2) / law.cdf(-2), (0.3 - 0.4) / 1.2**2, law.pdf(3) / law.sf(3)]
    for jacobian in jacobians:
        np.testing.assert_allclose(jacobian, hazards, rtol=1e-12)
