"""Masses and densities that are hard to resolve: singular, far out, overflowing."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.laws.families import log_mass_outside
from ldpbayes.likelihood.closed_forms import with_unperturbed
from ldpbayes.likelihood.latent import latent_nodes

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("lower", [1e-9, *(pytest.param(lower, marks=pytest.mark.slow) for lower in (1e-3, 0.1))])
def test_a_density_that_is_singular_just_outside_the_bounds_is_resolved(lower, x64):
    # Gamma of shape 0.3 between `lower` and 10: nodes that do not crowd towards 0 are off by up to 0.02 a record
    mechanism, law = ldp.LaplaceMechanism(4.0, lower, 10), stats.gamma(0.3, scale=2)
    noise, z = stats.laplace(0, mechanism.scale), np.array([lower, 0.5, 3.0])
    edges = np.unique(np.concatenate([np.geomspace(lower, 10, 2000), z]))
    t, w = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + t)
    inside = np.sum(half * w * law.pdf(x) * noise.pdf(z[:, None, None] - x), axis=(1, 2))
    expected = np.log(inside + law.cdf(lower) * noise.pdf(z - lower) + law.sf(10) * noise.pdf(z - 10))
    found = jax.jit(ldp.Privatized(dist.Gamma(0.3, 0.5), mechanism).log_prob)(z)
    np.testing.assert_allclose(found, expected, atol=1e-10)  # the claim for bases resolved by the grid is 1e-9


def far_and_narrow(kind):
    """Half of the mass outside the bounds, far from them and on a short scale, whose cdf has no derivative in df."""
    parts = [dist.StudentT(5.0, 0.0, 1.0), dist.StudentT(5.0, 50.0, 0.5)]
    weights = dist.Categorical(np.array([0.5, 0.5]))
    if kind == "general":
        return dist.MixtureGeneral(weights, parts)
    return dist.MixtureSameFamily(weights, dist.StudentT(5.0, np.array([0.0, 50.0]), np.array([1.0, 0.5])))


@pytest.mark.parametrize("kind", [pytest.param("general", marks=pytest.mark.slow), "same family"])
def test_mass_far_outside_the_bounds_is_not_missed(kind, x64):
    mechanism = ldp.LaplaceMechanism(30.0, -5, 5)
    laws, kernel = (stats.t(5), stats.t(5, 50, 0.5)), stats.laplace(scale=1 / 3)
    z = np.array([0.3, 6.0])
    inside = [
        integrate.quad(lambda x, at=at: kernel.pdf(at - x) * sum(law.pdf(x) for law in laws), -5, 5, points=[0.3])[0]
        for at in z
    ]
    below, above = (sum(f(law) for law in laws) for f in (lambda law: law.cdf(-5), lambda law: law.sf(5)))
    want = np.log(0.5 * (inside + below * kernel.pdf(z + 5) + above * kernel.pdf(z - 5)))
    got = jax.jit(lambda z: ldp.Privatized(far_and_narrow(kind), mechanism).log_prob(z))(z)
    np.testing.assert_allclose(got, want, atol=1e-8)  # quad's own tolerance


class Narrow(dist.Distribution):
    """A logistic law of scale 1/50, as an analyst would write it: a density and a mean."""

    arg_constraints = {"loc": constraints.real}
    support = constraints.real
    mean = property(lambda self: self.loc)

    def __init__(self, loc):
        self.loc = jnp.asarray(loc)
        super().__init__(batch_shape=jnp.shape(loc))

    def log_prob(self, value):
        t = 50 * (value - self.loc)
        return -t - 2 * jax.nn.softplus(-t) + jnp.log(50.0)


def test_a_mass_without_a_cdf_is_found_around_its_mean(x64):
    first, last = jnp.asarray(-5.0), jnp.asarray(5.0)
    below, above = jax.jit(lambda loc: log_mass_outside(Narrow(loc), first, last))(20.0)
    law = stats.logistic(20, 1 / 50)
    np.testing.assert_allclose([below, above], [law.logcdf(-5), law.logsf(5)], rtol=1e-9, atol=1e-9)


WILD = {
    "gumbel": (dist.Gumbel, (1.0, 2.0)),
    "inverse gamma": (dist.InverseGamma, (2.0, 1.0)),
    "truncated normal": (lambda m, s: dist.TruncatedNormal(m, s, low=0.0), (1.0, 1.0)),
    "kumaraswamy": (dist.Kumaraswamy, (0.5, 0.7)),
    "logit-normal": (
        lambda m, s: dist.TransformedDistribution(dist.Normal(m, s), dist.transforms.SigmoidTransform()),
        (0.3, 1.0),
    ),
    "beta": (dist.Beta, (2.0, 0.5)),
    "uniform": (dist.Uniform, (0.3, 1.7)),
}


# in double precision the last four are right in any case, as most are in single precision
@pytest.mark.parametrize(
    ("name", "double"),
    [pytest.param(name, i < 3, marks=() if name == "gumbel" else pytest.mark.slow) for i, name in enumerate(WILD)],
)
def test_densities_that_overflow_have_derivatives(name, double):
    law, parameters = WILD[name]
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.5, 0.0, 1.0)
    z = np.array([-3.0, 0.2, 1.0 - 1e-7, 1.3])

    def total(p):
        private = ldp.Privatized(law(*p), mechanism)
        grid = latent_nodes(private.base_dist, mechanism)
        # the density at the nodes and the masses outside, and what is added for records without noise
        noisy = jnp.vdot(grid.density(private.base_dist), np.cos(np.arange(len(grid.nodes) + 2)))
        return noisy + jnp.sum(with_unperturbed(private.base_dist, mechanism, z, jnp.zeros(4)))

    with jax.enable_x64(double):
        value, slope = jax.jit(jax.value_and_grad(total))(parameters)
        assert np.isfinite(value) and np.all(np.isfinite(slope)) and np.any(np.abs(slope) > 0)
