"""What a family of distributions of one's own says is what its likelihood rests on."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import ldpbayes as ldp
from ldpbayes.laws import families as _families
from ldpbayes.likelihood import Family, register_family

MECHANISM = ldp.LaplaceMechanism(2.0, -1.0, 4.0)
Z = np.array([-3.0, 0.53, 1.7, 9.0])


@pytest.fixture(autouse=True)
def registry(monkeypatch, x64):
    """One that is forgotten after the test."""
    monkeypatch.setattr(_families._FAMILIES, "users", {})


class Peaked(dist.Distribution):
    """A Laplace law of scale 0.7, as an analyst would write it: a density and nothing else."""

    arg_constraints = {"loc": constraints.real}
    support = constraints.real

    def __init__(self, loc, *, validate_args=None):
        self.loc = loc
        super().__init__(jnp.shape(loc), validate_args=validate_args)

    def log_prob(self, value):
        return -jnp.abs(value - self.loc) / 0.7 - jnp.log(1.4)


class Geometric(dist.Distribution):
    """With probability 0.9 of a zero."""

    arg_constraints = {}
    support = constraints.nonnegative_integer

    def log_prob(self, value):
        return jnp.log(0.9) + value * jnp.log(0.1)


def log_density(law, mechanism, z):
    return np.asarray(jax.jit(lambda z: ldp.Privatized(law, mechanism).log_prob(z))(z))


def test_kinks_and_a_cdf_that_a_family_names_are_used():
    want = log_density(dist.Laplace(0.55, 0.7), MECHANISM, Z)
    assert np.max(np.abs(log_density(Peaked(0.55), MECHANISM, Z) - want)) > 1e-7  # a kink inside a panel
    asked = []

    @register_family(Peaked)
    class OfPeaked(Family):
        def breaks(self):
            return [self.law.loc]

        def cdf(self, x):
            asked.append(x)
            return dist.Laplace(self.law.loc, 0.7).cdf(x)

    # both rest on the same nodes and differ in rounding
    np.testing.assert_allclose(log_density(Peaked(0.55), MECHANISM, Z), want, atol=1e-12)
    assert asked
    sketch = ldp.Release(Z, MECHANISM).sketch(panels=80)
    of_nodes = jax.jit(lambda z: ldp.likelihood.law_of_nodes(sketch, Peaked(0.55)).log_prob(z))(Z)
    np.testing.assert_allclose(of_nodes, want, atol=1e-9)  # either grid is exact to 1e-9


def test_a_tail_of_counts_that_a_family_knows_keeps_its_digits():
    # with epsilon = 30 a record at the upper bound weighs exp(30) times what lies below it, and has a mass of 1e-16
    mechanism, z = ldp.LaplaceMechanism(30.0, 0.0, 16.0), np.array([20.0])
    want = log_density(dist.GeometricProbs(0.9), mechanism, z)
    assert np.max(np.abs(log_density(Geometric(), mechanism, z) - want)) > 1e-5

    @register_family(Geometric)
    class OfGeometric(Family):
        def log_mass_above(self, nodes, log_masses):
            return (nodes[-1] + 1) * jnp.log(0.1)

    np.testing.assert_allclose(log_density(Geometric(), mechanism, z), want, rtol=1e-12)
    np.testing.assert_allclose(log_density(Geometric().expand([1]), mechanism, z), want, rtol=1e-12)


def test_ones_own_family_wins_over_ours_and_is_not_overwritten():
    @register_family(dist.Normal)
    class Mine(Family):
        def log_mass_outside(self, first, last):
            return jnp.full((2, *jnp.shape(first)), -jnp.inf)

    assert isinstance(_families.family_of(dist.Normal().expand([3])), Mine)
    law = dist.Normal(0.0, 9.0)
    channel = jax.jit(ldp.Privatized(law, MECHANISM, method="channel").log_prob)(Z)
    assert np.max(np.abs(channel - log_density(law, MECHANISM, Z))) > 0.1  # most of it was outside
    with pytest.raises(ValueError, match="already registered for Normal"):
        register_family(dist.Normal)(type("Other", (Family,), {}))
    with pytest.raises(TypeError, match="takes classes"):
        register_family(dist.Normal())
    with pytest.raises(TypeError, match="subclasses of Family"):
        register_family(dist.Normal)(dist.Gamma)
