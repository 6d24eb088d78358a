"""What a mechanism is does not depend on whether it is being traced."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.likelihood import law_of_nodes

pytestmark = pytest.mark.usefixtures("x64")

MECHANISMS = [
    ldp.AdditiveMechanism(ldp.noise.Laplace(3.0), -5, 5),
    ldp.LaplaceMechanism(1.0, -5, 5),
    ldp.GaussianMechanism(1.0, 1e-4, -5, 5),
    ldp.SymmetricLaplaceMechanism(9.0, -5, 5),
    ldp.IndependentLaplaceMechanism(9.0, -5, 5),
    ldp.ZeroInflatedLaplaceMechanism(0.2, 9.0, -5, 5),
    ldp.DiscreteLaplaceMechanism(2.0),
    ldp.DiscreteGaussianMechanism(2.0),
    ldp.RandomizedResponse(1.0),
    ldp.OptimalUnaryEncoding(1.0, 2),
    ldp.SymmetricUnaryEncoding(1.0, 2),
    ldp.SubsetSelection(1.0, 2, 1),
    ldp.LocalHashing(1.0, 2, 2),
    ldp.HadamardResponse(1.0, 2),
]
KNOWN = {"discrete_gaussian"}
"""Mechanisms that must be known before tracing, since a scale says how many terms a sum has: their data are traced."""


def test_every_mechanism_is_here():
    assert {mechanism.name for mechanism in MECHANISMS} == set(ldp.mechanism_names())


def total(data, parameter):
    """Log-likelihood of a sketch or a release."""
    if getattr(data.mechanism, "noise", None) is not None and data.mechanism.noise.discrete:
        base = dist.Poisson(jnp.exp(parameter))
    elif data.mechanism.support.is_discrete:
        base = dist.Bernoulli(jax.nn.sigmoid(parameter))
    else:
        base = dist.Normal(parameter, 2.0)
    if isinstance(data, ldp.Release):
        return jnp.sum(ldp.Privatized(base, data.mechanism).log_prob(data.values))
    return data.weights @ law_of_nodes(data, base, method="closed_form").log_prob(data.nodes)  # compiles faster


def pairs(mechanism):
    """Two releases, and their sketches, that have the same structure."""
    discrete = mechanism.support.is_discrete
    records = [np.arange(40) % 2 if discrete else np.linspace(-9, 9, 40) + shift for shift in (0, 1)]
    releases = [ldp.Release(mechanism.randomize(jax.random.key(i), x), mechanism) for i, x in enumerate(records)]
    sketches = [release.sketch() for release in releases]
    if len({len(sketch.nodes) for sketch in sketches}) > 1 or mechanism.name == "local_hashing":
        sketches = sketches[:1] * 2  # different kinds were released
    return releases, sketches


@pytest.mark.parametrize("kind", ["releases", "sketches"])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_data_are_arguments_of_compiled_mapped_scanned_and_differentiated_functions(mechanism, kind):
    pair = pairs(mechanism)[kind == "sketches"]
    slope = jax.value_and_grad(total, argnums=1)

    @jax.jit
    def traced(stacked, parameter):
        if mechanism.name in KNOWN:
            stacked = dataclasses.replace(stacked, mechanism=mechanism)
            axes = dataclasses.replace(jax.tree.map(lambda _: 0, stacked), mechanism=None)
        ...

    # as constants they are seen as they are, as arguments they are tracers
    constant = [jax.jit(lambda at, data=data: slope(data, at))(0.3) for data in pair]
