"""Smooth densities: the law itself against quadrature and mpmath, and what a mechanism releases of it."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.likelihood import SmoothDensity, SmoothMass, law_of_nodes
from ldpbayes.likelihood.latent import latent_nodes

pytestmark = pytest.mark.usefixtures("x64")
LOW, HIGH, KNOTS = -1.0, 4.0, 9
VALUES = {
    "constant": np.full(KNOTS, 7.0),
    "smooth": np.random.default_rng(0).normal(size=KNOTS),
    "steep": np.random.default_rng(1).uniform(-30, 30, KNOTS),
}
cases = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)


def exact(values, function, low=LOW, high=HIGH):
    """∫ function(x) exp(f(x)) dx over ∫ exp(f(x)) dx by mpmath, f linear between the knots."""
    with mpmath.workdps(30):
        step = mpmath.mpf(HIGH - LOW) / (KNOTS - 1)

        def integral(function, low, high):
            total = mpmath.mpf(0)
            for j in range(KNOTS - 1):
                left, right = LOW + step * j, LOW + step * (j + 1)
                a, b = max(left, mpmath.mpf(low)), min(right, mpmath.mpf(high))
                if a < b:
                    slope = (mpmath.mpf(values[j + 1]) - mpmath.mpf(values[j])) / step
                    total += mpmath.quad(
                        lambda x, left=left, slope=slope, j=j: function(x) * mpmath.exp(values[j] + slope * (x - left)),
                        [a, b],
                    )
            return total

        return float(integral(function, low, high) / integral(lambda x: 1, LOW, HIGH))


@cases
def test_density_cdf_and_moments_are_those_of_the_exponential_of_a_linear_spline(values):
    law = SmoothDensity(values, LOW, HIGH)
    for x in (-0.9, 0.375, 1.7, 3.999):
        np.testing.assert_allclose(law.cdf(x), exact(values, lambda t: 1, high=x), rtol=1e-12, atol=1e-15)
    mean = exact(values, lambda t: t)
    np.testing.assert_allclose(law.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(law.variance, exact(values, lambda t: (t - mean) ** 2), rtol=1e-9)
    density = integrate.quad(lambda x: float(jnp.exp(law.log_prob(x))), 0.25, 0.5, epsabs=0, epsrel=1e-13)[0]
    np.testing.assert_allclose(density, exact(values, lambda t: 1, 0.25, 0.5), rtol=1e-12)
    assert law.log_prob(LOW - 1e-9) == law.log_prob(HIGH + 1e-9) == -np.inf


def test_a_constant_log_density_is_the_uniform_law():
    law, uniform = SmoothDensity(VALUES["constant"], LOW, HIGH), dist.Uniform(LOW, HIGH)
    x, q = np.linspace(LOW, HIGH, 103), np.linspace(0, 1, 103)
    np.testing.assert_allclose(law.log_prob(x[1:-1]), uniform.log_prob(x[1:-1]), atol=4e-16)
    np.testing.assert_allclose(law.cdf(x), uniform.cdf(x), atol=4e-16)
    np.testing.assert_allclose(law.icdf(q), uniform.icdf(q), atol=2e-15)


@cases
def test_quantiles_invert_the_cdf_and_draws_have_the_law(values):
    law = SmoothDensity(values, LOW, HIGH)
    q = np.concatenate([[0.0, 1e-9], np.linspace(0.001, 0.999, 97), [1.0]])
    np.testing.assert_allclose(law.cdf(law.icdf(q)), q, atol=2e-14)
    draws = np.asarray(law.sample(jax.random.key(0), (20_000,)))
    assert stats.kstest(draws, lambda x: np.asarray(law.cdf(x))).pvalue > 1e-4  # a right sampler fails once in 1e4 keys


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_gradients_are_finite_for_all_knots_within_30(rng, scale):
    x, q = np.linspace(LOW, HIGH, 41), np.linspace(0, 1, 41)

    def numbers(values):
        law = SmoothDensity(values, LOW, HIGH)
        return law.log_prob(x), law.cdf(x), law.icdf(q), law.mean, law.variance

    jacobian = jax.jit(jax.jacrev(numbers))
    for _ in range(50):
        for part in jacobian(rng.uniform(-scale, scale, KNOTS)):
            assert np.all(np.isfinite(part))


MECHANISMS = {
    "laplace": ldp.LaplaceMechanism(2.0, LOW, HIGH),
    "narrower bounds": ldp.LaplaceMechanism(2.0, 0.0, 3.0),
    "gaussian": ldp.GaussianMechanism(1.0, 1e-4, LOW, HIGH),
    "square wave": ldp.mechanisms.SquareWaveMechanism(2.0, LOW, HIGH),
}


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("laplace", np.array([0.1, 0.3])),
        pytest.param("laplace", None, marks=pytest.mark.slow),
        pytest.param("narrower bounds", np.array([0.1, 0.3]), marks=pytest.mark.slow),
        pytest.param("gaussian", np.array([0.1, 0.3]), marks=pytest.mark.slow),
        ("square wave", None),
    ],
)
def test_what_is_released_is_the_integral_over_the_density_and_the_atoms(name, outside):
    mechanism, law = MECHANISMS[name], SmoothDensity(VALUES["smooth"], LOW, HIGH, outside)
    z = np.array([-1.05, 0.2, 1.1, 4.05])
    below, above = (0.0, 0.0) if outside is None else outside
    found = np.exp(ldp.Privatized(law, mechanism).log_prob(z))
    kinks = np.ravel(mechanism.breakpoints(z)).clip(LOW, HIGH)
    cuts = np.unique([*law.knots, 0.0, 3.0, *kinks])[:, None]
    t, w = np.polynomial.legendre.leggauss(30)  # exact to rounding between the kinks of both
    nodes = ((cuts[1:] + cuts[:-1]) / 2 + (cuts[1:] - cuts[:-1]) / 2 * t).ravel()
    masses = np.exp(law.log_prob(nodes)) * ((cuts[1:] - cuts[:-1]) / 2 * w).ravel()
    x = np.concatenate([nodes, [LOW, HIGH]])
    exact = np.exp(mechanism.log_prob(z[:, None], x)) @ np.concatenate([masses, [below, above]])
    np.testing.assert_allclose(found, exact, rtol=1e-11)


def test_sketches_and_groups_have_the_densities_of_their_laws(rng):
    mechanism = ldp.LaplaceMechanism(2.0, LOW, HIGH)
    release = ldp.Release(np.asarray(mechanism.randomize(jax.random.key(0), rng.uniform(LOW, HIGH, 500))), mechanism)
    law, sketch = SmoothDensity(VALUES["smooth"], LOW, HIGH), release.sketch()
    whole = jnp.sum(ldp.Privatized(law, mechanism).log_prob(release.values))
    compressed = jnp.sum(sketch.weights * law_of_nodes(sketch, law).log_prob(sketch.nodes))
    np.testing.assert_allclose(compressed, whole, atol=1e-3)  # nats over 500 records; fit certifies it
    grid = latent_nodes(law, mechanism)
    assert grid.cut(law).pieces is None and np.isin(law.knots[1:-1], grid.edges).all()
    both = SmoothDensity(np.stack([VALUES["smooth"], VALUES["constant"]]), LOW, HIGH)
    rows = ldp.Privatized(both, mechanism).log_prob(release.values[:5, None])
    np.testing.assert_allclose(rows[:, 0], ldp.Privatized(law, mechanism).log_prob(release.values[:5]), rtol=1e-12)


def test_laws_are_arguments_of_compiled_and_mapped_functions():
    mechanism = ldp.LaplaceMechanism(2.0, LOW, HIGH)
    laws = SmoothDensity(np.stack(list(VALUES.values())[:2]), LOW, HIGH)
    density = jax.jit(jax.vmap(lambda law: ldp.Privatized(law, mechanism).log_prob(jnp.array([0.3, 2.0]))))
    each = [
        ldp.Privatized(SmoothDensity(f, LOW, HIGH), mechanism).log_prob(np.array([0.3, 2.0])) for f in laws.log_density
    ]
    np.testing.assert_allclose(density(laws), each, rtol=1e-12)


COUNTS, ATOMS = np.arange(-3, 10), np.array([0.1, 0.25])
AT_COUNTS = np.interp(COUNTS, np.linspace(-3, 9, 5), [0.0, 1.0, -2.0, 0.5, 1.5])


def mass(outside=None):
    return SmoothMass([0.0, 1.0, -2.0, 0.5, 1.5], -3, 9, outside)


@pytest.mark.parametrize("outside", [None, ATOMS])
def test_masses_of_counts_are_exponentials_of_a_linear_spline_and_the_atoms(outside):
    law, masses = mass(outside), np.exp(AT_COUNTS) / np.exp(AT_COUNTS).sum()
    if outside is not None:
        masses = (1 - outside.sum()) * masses
        masses[[0, -1]] += outside
    np.testing.assert_allclose(np.exp(law.log_prob(COUNTS)), masses, rtol=1e-13)
    np.testing.assert_allclose(law.cdf(COUNTS), np.cumsum(masses), rtol=1e-13)
    np.testing.assert_array_equal(law.icdf(np.cumsum(masses) - 1e-9), COUNTS)
    assert law.icdf(1.0) == 9 and law.icdf(0.0) == -3 and law.cdf(20.0) == 1.0 and law.cdf(-4.0) == 0.0
    assert law.log_prob(-4) == law.log_prob(10) == law.log_prob(0.5) == -np.inf and law.cdf(0.5) == law.cdf(0)
    mean = masses @ COUNTS
    np.testing.assert_allclose(law.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(law.variance, masses @ (COUNTS - mean) ** 2, rtol=1e-12)
    draws = np.asarray(law.sample(jax.random.key(0), (20_000,)))
    found = np.array([np.sum(draws == count) for count in COUNTS])
    assert stats.chisquare(found, 20_000 * masses).pvalue > 1e-4  # a right sampler fails once in 1e4 keys
    # what a mechanism releases of it
    mechanism, z = ldp.DiscreteLaplaceMechanism(1.0, -3, 9), np.array([-5, 2, 11])
    kernel = np.exp(mechanism.log_prob(z[:, None], COUNTS))
    np.testing.assert_allclose(np.exp(ldp.Privatized(law, mechanism).log_prob(z)), kernel @ masses, rtol=1e-12)


def test_masses_are_arguments_of_compiled_and_mapped_functions_with_finite_gradients(rng):
    values = rng.uniform(-30, 30, (20, 5))
    laws = SmoothMass(values, -3, 9, ATOMS)
    found = jax.jit(jax.vmap(lambda law: law.log_prob(COUNTS)))(jax.vmap(lambda f: SmoothMass(f, -3, 9, ATOMS))(values))
    np.testing.assert_allclose(found, laws.log_prob(COUNTS[:, None]).T, rtol=1e-12)
    numbers = jax.jit(jax.jacrev(lambda f: (SmoothMass(f, -3, 9).log_prob(COUNTS), SmoothMass(f, -3, 9).variance)))
    assert all(np.all(np.isfinite(part)) for each in values for part in numbers(each))
    with pytest.raises(ValueError, match="must be whole"):
        SmoothMass(np.zeros(5), 0.5, 9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), 0, 1), "needs at least 4 knots, got shape"),
        ((0.0, 0, 1), "needs at least 4 knots"),
        ((np.zeros(5), 1, 0), "lower"),
        ((np.zeros(5), 0, np.inf), "finite"),
        ((np.zeros(5), 0, 1, [0.5]), "outside must be two probabilities"),
        ((np.zeros(5), 0, 1, [0.5, 0.5]), "whose sum is below 1"),
        ((np.zeros(5), 0, 1, [-0.1, 0.5]), "outside must be probabilities"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SmoothDensity(*arguments)


def test_laws_with_some_shared_arrays_give_their_rows_to_groups(x64):
    mechanism = ldp.LaplaceMechanism(2.0, 0.0, 1.0)
    releases = [ldp.Release(np.array([0.2, 0.4]) + k, mechanism) for k in (0.0, 0.3)]
    own = np.random.default_rng(0).normal(size=(2, 5))
    laws = SmoothDensity(own, 0.0, 1.0, np.array([0.1, 0.2]))  # as many atoms as groups
    together = log_density(lambda: ldp.observe("x", laws, releases), (), {}, {})[0]
    alone = sum(
        float(ldp.Privatized(SmoothDensity(row, 0.0, 1.0, [0.1, 0.2]), mechanism).log_prob(each.values).sum())
        for row, each in zip(own, releases, strict=True)
    )
    assert float(together) == pytest.approx(alone, rel=1e-6)


def test_quantiles_reach_the_upper_atom_where_pieces_before_it_have_no_mass():
    law = SmoothDensity(np.array([0.0, -40.0, -80.0, -120.0], np.float32), 0.0, 1.0, np.array([0.0, 0.1]))
    assert float(law.icdf(0.999)) == 1.0 and float(law.icdf(0.5)) < 0.1
    assert np.mean(np.asarray(law.sample(jax.random.key(0), (4000,))) == 1.0) == pytest.approx(0.1, abs=0.02)
