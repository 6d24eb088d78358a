"""Smooth densities: the law itself against quadrature and mpmath, and what a mechanism releases of it."""

import jax
import mpmath
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import ldpbayes as ldp
from ldpbayes.likelihood import SmoothDensity, SmoothMass, law_of_nodes
from ldpbayes.likelihood.latent import latent_nodes
from tests.programs import call, constant, evaluate, log_prob, randomize, sample

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


def numbers(law, x, q):
    return law.log_prob(x), law.cdf(x), law.icdf(q), law.cdf(law.icdf(q)), law.mean, law.variance


X, Q = np.linspace(LOW, HIGH, 103), np.concatenate([[0.0, 1e-9], np.linspace(0.001, 0.999, 97), [1.0]])


@cases
def test_density_cdf_and_moments_are_those_of_the_exponential_of_a_linear_spline(values):
    t, w = np.polynomial.legendre.leggauss(30)  # exact to rounding inside a piece
    x = np.concatenate([[-0.9, 0.375, 1.7, 3.999, LOW - 1e-9, HIGH + 1e-9], 0.375 + 0.125 * t, np.zeros(67)])
    log_prob, cdf, *_, mean, variance = evaluate(numbers, SmoothDensity(values, LOW, HIGH), x, Q)
    exact_cdf = [exact(values, lambda t: 1, high=each) for each in x[:4]]
    np.testing.assert_allclose(cdf[:4], exact_cdf, rtol=1e-12, atol=1e-15)
    exact_mean = exact(values, lambda t: t)
    np.testing.assert_allclose(mean, exact_mean, rtol=1e-12)
    np.testing.assert_allclose(variance, exact(values, lambda t: (t - exact_mean) ** 2), rtol=1e-9)
    density = 0.125 * w @ np.exp(log_prob[6:36])
    np.testing.assert_allclose(density, exact(values, lambda t: 1, 0.25, 0.5), rtol=1e-12)
    np.testing.assert_array_equal(log_prob[4:6], -np.inf)


def test_a_constant_log_density_is_the_uniform_law():
    q = np.linspace(0, 1, 100)
    log_prob, cdf, icdf, *_ = evaluate(numbers, SmoothDensity(VALUES["constant"], LOW, HIGH), X, q)
    np.testing.assert_allclose(log_prob[1:-1], -np.log(HIGH - LOW), atol=4e-16)
    np.testing.assert_allclose(cdf, (X - LOW) / (HIGH - LOW), atol=4e-16)
    np.testing.assert_allclose(icdf, LOW + q * (HIGH - LOW), atol=2e-15)


@cases
def test_quantiles_invert_the_cdf_and_draws_have_the_law(values):
    law = SmoothDensity(values, LOW, HIGH)
    inverted = evaluate(numbers, law, X, Q)[3]
    np.testing.assert_allclose(inverted, Q, atol=2e-14)
    draws = np.sort(sample(law, 0, (20_000,)))
    cdf = call("cdf", law, draws)
    assert stats.kstest(cdf, "uniform").pvalue > 1e-4  # a right sampler fails once in 1e4 keys


def numbers_of(values):
    x, q = np.linspace(LOW, HIGH, 41), np.linspace(0, 1, 41)
    law = SmoothDensity(values, LOW, HIGH)
    return law.log_prob(x), law.cdf(x), law.icdf(q), law.mean, law.variance


def derivatives_of_numbers(values):
    return jax.jacrev(numbers_of)(values)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_gradients_are_finite_for_all_knots_within_30(rng, scale):
    for _ in range(50):
        for part in evaluate(derivatives_of_numbers, rng.uniform(-scale, scale, KNOTS)):
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
    found = np.exp(log_prob(law, mechanism, z))
    kinks = np.ravel(call("breakpoints", mechanism, z)).clip(LOW, HIGH)
    cuts = np.unique([*law.knots, 0.0, 3.0, *kinks])[:, None]
    t, w = np.polynomial.legendre.leggauss(30)  # exact to rounding between the kinks of both
    nodes = ((cuts[1:] + cuts[:-1]) / 2 + (cuts[1:] - cuts[:-1]) / 2 * t).ravel()
    masses = np.exp(call("log_prob", law, nodes)) * ((cuts[1:] - cuts[:-1]) / 2 * w).ravel()
    x = np.concatenate([nodes, [LOW, HIGH]])
    exact = np.exp(call("log_prob", mechanism, z[:, None], x)) @ np.concatenate([masses, [below, above]])
    np.testing.assert_allclose(found, exact, rtol=1e-11)


def of_nodes(sketch, law):
    return law_of_nodes(sketch, law).log_prob(sketch.nodes)


def edges_of(law, mechanism):
    grid = latent_nodes(law, mechanism)
    assert grid.cut(law).pieces is None
    return grid.edges


def test_sketches_and_groups_have_the_densities_of_their_laws(rng):
    mechanism = ldp.LaplaceMechanism(2.0, LOW, HIGH)
    release = ldp.Release(randomize(mechanism, rng.uniform(LOW, HIGH, 500)), mechanism)
    law, sketch = SmoothDensity(VALUES["smooth"], LOW, HIGH), release.sketch()
    own = log_prob(law, mechanism, release.values)
    compressed = np.sum(sketch.weights * evaluate(of_nodes, sketch, law))
    np.testing.assert_allclose(compressed, own.sum(), atol=1e-3)  # nats over 500 records; fit certifies it
    assert np.isin(law.knots[1:-1], evaluate(edges_of, constant(law), constant(mechanism))).all()
    both = SmoothDensity(np.stack([VALUES["smooth"], VALUES["constant"]]), LOW, HIGH)
    rows = log_prob(both, mechanism, release.values[:5, None])
    np.testing.assert_allclose(rows[:, 0], own[:5], rtol=1e-12)


def mapped_densities(laws, mechanism, z):
    return jax.vmap(lambda law: ldp.Privatized(law, mechanism).log_prob(z))(laws)


def test_laws_are_arguments_of_compiled_and_mapped_functions():
    mechanism, z = ldp.LaplaceMechanism(2.0, LOW, HIGH), np.array([0.3, 2.0])
    values = np.stack(list(VALUES.values())[:2])
    each = [log_prob(SmoothDensity(f, LOW, HIGH), mechanism, z) for f in values]
    mapped = evaluate(mapped_densities, SmoothDensity(values, LOW, HIGH), mechanism, z)
    np.testing.assert_allclose(mapped, each, rtol=1e-12)


COUNTS, ATOMS = np.arange(-3, 10), np.array([0.1, 0.25])
AT_COUNTS = np.interp(COUNTS, np.linspace(-3, 9, 5), [0.0, 1.0, -2.0, 0.5, 1.5])


@pytest.mark.parametrize("outside", [None, ATOMS])
def test_masses_of_counts_are_exponentials_of_a_linear_spline_and_the_atoms(outside):
    law = SmoothMass(np.array([0.0, 1.0, -2.0, 0.5, 1.5]), -3, 9, outside)
    masses = np.exp(AT_COUNTS) / np.exp(AT_COUNTS).sum()
    if outside is not None:
        masses = (1 - outside.sum()) * masses
        masses[[0, -1]] += outside
    x, q = np.append(COUNTS, [20.0, -4.0, 10.0, 0.5]), np.append(np.cumsum(masses) - 1e-9, [1.0, 0.0])
    log_masses, cdf, icdf, _, mean, variance = evaluate(numbers, law, x, q)
    np.testing.assert_allclose(np.exp(log_masses[:13]), masses, rtol=1e-13)
    np.testing.assert_allclose(cdf[:13], np.cumsum(masses), rtol=1e-13)
    np.testing.assert_array_equal(icdf, [*COUNTS, 9, -3])
    np.testing.assert_array_equal(log_masses[13:], -np.inf)
    np.testing.assert_array_equal(cdf[13:], [1.0, 0.0, 1.0, cdf[3]])
    exact = masses @ COUNTS
    np.testing.assert_allclose(mean, exact, rtol=1e-13)
    np.testing.assert_allclose(variance, masses @ (COUNTS - exact) ** 2, rtol=1e-12)
    draws = sample(law, 0, (20_000,))
    found = np.array([np.sum(draws == count) for count in COUNTS])
    assert stats.chisquare(found, 20_000 * masses).pvalue > 1e-4  # a right sampler fails once in 1e4 keys
    # what a mechanism releases of it
    mechanism, z = constant(ldp.DiscreteLaplaceMechanism(1.0, -3, 9)), np.array([-5, 2, 11])
    kernel = np.exp(call("log_prob", mechanism, z[:, None], COUNTS))
    np.testing.assert_allclose(np.exp(log_prob(law, mechanism, z)), kernel @ masses, rtol=1e-12)


def masses_of_mapped(values, laws):
    mapped = jax.vmap(lambda f: SmoothMass(f, -3, 9, ATOMS))(values)
    return jax.vmap(lambda law: law.log_prob(COUNTS))(mapped), laws.log_prob(COUNTS[:, None])


def slopes_of_masses(values):
    def numbers(f):
        return SmoothMass(f, -3, 9).log_prob(COUNTS), SmoothMass(f, -3, 9).variance

    return jax.vmap(jax.jacrev(numbers))(values)


def test_masses_are_arguments_of_compiled_and_mapped_functions_with_finite_gradients(rng):
    values = rng.uniform(-30, 30, (20, 5))
    mapped, together = evaluate(masses_of_mapped, values, SmoothMass(values, -3, 9, ATOMS))
    np.testing.assert_allclose(mapped, together.T, rtol=1e-12)
    assert all(np.all(np.isfinite(part)) for part in evaluate(slopes_of_masses, values))
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


def log_density_of_groups(laws, releases):
    return log_density(lambda: ldp.observe("x", laws, releases), (), {}, {})[0]


def test_laws_with_some_shared_arrays_give_their_rows_to_groups():
    mechanism = ldp.LaplaceMechanism(2.0, 0.0, 1.0)
    releases = [ldp.Release(np.array([0.2, 0.4]) + k, mechanism) for k in (0.0, 0.3)]
    own = np.random.default_rng(0).normal(size=(2, 5))
    laws = SmoothDensity(own, 0.0, 1.0, np.array([0.1, 0.2]))  # as many atoms as groups
    together = evaluate(log_density_of_groups, laws, releases)
    rows = [SmoothDensity(row, 0.0, 1.0, np.array([0.1, 0.2])) for row in own]
    alone = sum(log_prob(row, mechanism, each.values).sum() for row, each in zip(rows, releases, strict=True))
    assert together == pytest.approx(alone, rel=1e-6)


def test_quantiles_reach_the_upper_atom_where_pieces_before_it_have_no_mass():
    law = SmoothDensity(np.array([0.0, -40.0, -80.0, -120.0], np.float32), 0.0, 1.0, np.array([0.0, 0.1]))
    high, middle = call("icdf", law, np.array([0.999, 0.5], np.float32))
    assert high == 1.0 and middle < 0.1
    assert np.mean(sample(law, 0, (4000,)) == 1.0) == pytest.approx(0.1, abs=0.02)
