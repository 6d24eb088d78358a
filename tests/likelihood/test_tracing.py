"""What a mechanism is does not depend on whether it is being traced."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.likelihood._law_of_nodes import law_of_nodes

MECHANISMS = [
    ldp.LaplaceMechanism(1.0, -5, 5),
    ldp.GaussianMechanism(1.0, 1e-4, -5, 5),
    ldp.SymmetricLaplaceMechanism(9.0, -5, 5),
    ldp.IndependentLaplaceMechanism(9.0, -5, 5),
    ldp.ZeroInflatedLaplaceMechanism(0.2, 9.0, -5, 5),
    ldp.RandomizedResponse(1.0),
    ldp.OptimalUnaryEncoding(1.0, 2),
    ldp.SymmetricUnaryEncoding(1.0, 2),
    ldp.SubsetSelection(1.0, 2, 1),
    ldp.LocalHashing(1.0, 2, 2),
    ldp.HadamardResponse(1.0, 2),
]


def test_every_mechanism_is_here():
    assert {mechanism.name for mechanism in MECHANISMS} == set(ldp.mechanism_names())


def total(data, parameter):
    """Log-likelihood of a sketch or a release."""
    discrete = data.mechanism.support.is_discrete
    base = dist.Bernoulli(jax.nn.sigmoid(parameter)) if discrete else dist.Normal(parameter, 2.0)
    if isinstance(data, ldp.Release):
        return jnp.sum(ldp.Privatized(base, data.mechanism).log_prob(data.values))
    return data.weights @ law_of_nodes(data, base, method="closed_form").log_prob(data.nodes)  # compiles faster


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_sketches_and_releases_are_arguments_of_compiled_mapped_and_differentiated_functions(mechanism, x64):
    discrete = mechanism.support.is_discrete
    records = [np.arange(40) % 2 if discrete else np.linspace(-9, 9, 40) + shift for shift in (0, 1)]
    releases = [ldp.Release(mechanism.randomize(jax.random.key(i), x), mechanism) for i, x in enumerate(records)]
    sketches = [release.sketch() for release in releases]
    if len({len(sketch.nodes) for sketch in sketches}) > 1 or mechanism.name == "local_hashing":
        sketches = sketches[:1] * 2  # different kinds were released
    for pair in (sketches, releases) if discrete else (sketches,):  # test_random_cases.py has releases of numbers
        # as constants they are seen as they are, as arguments they are tracers
        constant = jax.jit(jax.value_and_grad(lambda at, data=pair[1]: total(data, at)))(0.3)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.asarray(leaves)), *pair)
        arguments = jax.jit(jax.vmap(jax.value_and_grad(total, argnums=1), (0, None)))(stacked, 0.3)
        assert np.all(np.isfinite(arguments))
        # 40 terms of size 4 and rounding errors of 1e-15, those of a sketch's signed weights a hundred times as large
        np.testing.assert_allclose(np.array(arguments)[:, 1], constant, rtol=1e-11)


@pytest.mark.parametrize("scale", [[1.0, 0.5, 2.0], [1.0, 0.0, 2.0]], ids=["perturbed", "one public"])
def test_whether_records_are_public_need_not_be_known(scale, x64):
    z, scale = np.array([0.0, 0.4, 2.5]), np.array(scale)
    rows, mean = np.stack([z, z], axis=1) / 3, np.zeros(2)

    def numbers(scale, loc):
        return ldp.Privatized(dist.Normal(loc, 1.0), ldp.SymmetricLaplaceMechanism(scale, 0, 1)).log_prob(z).sum()

    def of_rows(scale, loc):
        law = dist.MultivariateNormal(mean + loc, jnp.eye(2))
        return ldp.Privatized(law, ldp.SymmetricLaplaceMechanism(scale, 0, 1, 2)).log_prob(rows).sum()

    for function in (numbers, of_rows):
        slope = jax.value_and_grad(function, 1)
        known = jax.jit(lambda loc, slope=slope: slope(scale, loc))(0.2)
        assert np.all(np.isfinite(known))
        np.testing.assert_allclose(jax.jit(slope)(scale, 0.2), known, rtol=1e-10)
