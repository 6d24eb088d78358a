"""Base densities with kinks and jumps inside the bounds, against quadrature that is cut at them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import ldpbayes as ldp
from ldpbayes.laws.families import density_breaks
from ldpbayes.likelihood import law_of_nodes

pytestmark = pytest.mark.usefixtures("x64")
LOWER, UPPER, PANEL = -1.0, 4.0, 5.0 / 40  # width of a panel of the fixed grid
EDGE = LOWER + 12 * PANEL
FAR = 120.0  # below and above it the heaviest tail here has a mass of exp(-120)
Z = np.array([-3.0, 0.62, 0.53, 0.57, 1.7, 9.0])
NOISE = {
    "laplace": ldp.LaplaceMechanism(2.0, LOWER, UPPER),
    "zero-inflated": ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, LOWER, UPPER),
    "gaussian": ldp.GaussianMechanism(2.0, 1e-5, LOWER, UPPER),
}
# all over a panel, on its edge and next to it, at and beyond the bounds
PLACES = EDGE + PANEL * np.array([0.0, 1e-9, 0.07, 0.3, 0.5, 0.9])
PLACES = np.concatenate([PLACES, [LOWER - 2.0, LOWER, LOWER + 0.05, UPPER - 0.01, UPPER, UPPER + 2.0]])


def two(components, **options):
    return dist.MixtureGeneral(dist.Categorical(probs=jnp.array([0.3, 0.7])), components, **options)


def laplaces(place):
    return dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.array([0.3, 0.7])),
        dist.Laplace(jnp.stack([place, place + 0.03], axis=-1), jnp.array([0.7, 0.4])),
    )


def step(place):
    return two([dist.Uniform(place, place + 0.05), dist.Normal(1.0, 1.2)], support=constraints.real)


def moved(place):
    block = dist.TransformedDistribution(dist.Uniform(0.0, 1.0), dist.transforms.AffineTransform(place, 0.6))
    return two([block, dist.Normal(1.0, 1.2)], support=constraints.real)


# the law with its first break at a place, and how far behind it the others are
BASES = {
    "laplace": (lambda place: dist.Laplace(place, 0.7), [0.0]),
    "asymmetric-laplace": (lambda place: dist.AsymmetricLaplace(place, 0.7, 1.3), [0.0]),
    "asymmetric-laplace-quantile": (lambda place: dist.AsymmetricLaplaceQuantile(place, 0.7, 0.3), [0.0]),
    "mixture-of-laplaces": (laplaces, [0.0, 0.03]),
    "uniform-and-normal": (step, [0.0, 0.05]),
    "moved-uniform-and-normal": (moved, [0.0, 0.6]),
}
# kernels with a kink, without one, and with a kink and records that are not perturbed
CASES = [
    ("laplace", "laplace"),
    ("mixture-of-laplaces", "laplace"),
    *(pytest.param(name, "laplace", marks=pytest.mark.slow) for name in BASES if name.startswith(("asymm", "moved"))),
    ("uniform-and-normal", "gaussian"),
    ("laplace", "zero-inflated"),
]
WITH_GRADIENT = [("laplace", "laplace"), ("uniform-and-normal", "gaussian"), ("moved-uniform-and-normal", "laplace")]


def by_quadrature(law, behind, mechanism):
    """Log density at each of `Z`: Gauss rules of 20 points between edges, breaks and z, no two edges 1.2 apart."""
    t, w = np.polynomial.legendre.leggauss(20)
    noise, share = mechanism.perturbing if mechanism.has_atoms else mechanism, mechanism.unperturbed

    def integral(function, start, stop, cuts, pieces):
        edges = jnp.sort(jnp.clip(jnp.append(jnp.linspace(start, stop, pieces + 1), cuts), start, stop))
        half = 0.5 * jnp.diff(edges)[:, None]
        return jnp.sum(half * w * function(edges[:-1, None] + half * (1 + t)))

    def log_density(place, z):
        density, kernel = (lambda x: jnp.exp(law(place).log_prob(x))), (lambda x: jnp.exp(noise.log_prob(z, x)))
        cuts = place + jnp.array(behind)
        inside = integral(lambda x: density(x) * kernel(x), LOWER, UPPER, jnp.append(cuts, z), 40)
        below, above = integral(density, -FAR, LOWER, cuts, 100), integral(density, UPPER, FAR, cuts, 100)
        noisy = inside + below * kernel(LOWER) + above * kernel(UPPER)
        return jnp.log((1 - share) * noisy + share * jnp.where((z > LOWER) & (z < UPPER), density(z), 0.0))

    return lambda place: jax.vmap(log_density, in_axes=(None, 0))(place, Z)


@functools.cache
def compiled(name, noise, slope):
    """Log densities at `Z` and the reference, for an array of places, and derivatives of the first where asked for."""
    (law, behind), mechanism = BASES[name], NOISE[noise]

    def log_prob(place):
        return ldp.Privatized(law(place), mechanism).log_prob(Z)

    def all_of_it(place):
        gradient = jax.jacfwd(log_prob)(place) if slope else None
        return log_prob(place), by_quadrature(law, behind, mechanism)(place), gradient

    return jax.jit(jax.vmap(all_of_it))


@pytest.mark.parametrize(("name", "noise"), CASES)
def test_a_density_with_breaks_agrees_with_quadrature_cut_at_them(name, noise):
    value, expected, _ = compiled(name, noise, (name, noise) == WITH_GRADIENT[0])(PLACES)
    assert np.max(np.abs(value - expected)) < 1e-9


@pytest.mark.parametrize(
    ("name", "noise"), [WITH_GRADIENT[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in WITH_GRADIENT[1:])]
)
def test_the_gradient_knows_that_breaks_move(name, noise):
    """Also on the edge of a panel, where the break leaves one for the next."""
    width = 1e-4
    places = np.array([EDGE, EDGE + 0.3 * PANEL, EDGE + 0.5 * PANEL, 2.0])
    _, expected, gradient = compiled(name, noise, True)(np.concatenate([places - width, places + width, places]))
    below, above, _ = np.split(expected, 3)
    # a central difference is off by width²/6 third derivatives, here below 10, and by rounding of 1e-15/width
    difference = (above - below) / (2 * width)
    np.testing.assert_allclose(np.split(gradient, 3)[2], difference, rtol=0, atol=10 * width**2)


@pytest.mark.slow
def test_a_law_a_record_and_the_grid_of_a_sketch_say_what_one_law_and_the_default_grid_say():
    """Personal budgets, a law a record, 80 panels instead of 40: the same to 1e-9, which both grids are exact to."""
    law, mechanism = BASES["mixture-of-laplaces"][0], NOISE["laplace"]
    budgets = ldp.LaplaceMechanism(np.full(len(Z), 2.0), LOWER, UPPER)
    expected = compiled("mixture-of-laplaces", "laplace", False)(np.full(len(PLACES), 0.55))[0][0]
    sketch = ldp.Release(Z, mechanism).sketch(panels=80)

    @jax.jit
    def both(place, places):
        return ldp.Privatized(law(places), budgets).log_prob(Z), law_of_nodes(sketch, law(place)).log_prob(Z)

    personal, of_nodes = both(0.55, np.full(len(Z), 0.55))
    np.testing.assert_allclose(personal, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(of_nodes, expected, rtol=0, atol=1e-9)


def test_only_kinks_and_jumps_inside_the_support_are_breaks():
    smooth = [
        dist.Normal(),
        dist.LogNormal(),
        dist.Uniform(),
        two([dist.Gamma(2.0, 1.0), dist.Exponential(1.0)]),
        dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(2) / 2), dist.Normal(jnp.arange(2.0), 1.0)),
    ]
    assert all(density_breaks(base) is None for base in smooth)
    broken = [dist.TruncatedDistribution(dist.Laplace(0.3, 1.0), low=0.0), BASES["asymmetric-laplace-quantile"][0](0.3)]
    broken += [step(jnp.array(0.3)), moved(0.3), laplaces(jnp.zeros(3))]
    places = [[0.3], [0.3], [0.3, 0.3 + 0.05], [0.3, 0.3 + 0.6], [[0.0] * 3, [0.03] * 3]]
    for base, expected in zip(broken, places, strict=True):
        np.testing.assert_array_equal(density_breaks(base), expected)
