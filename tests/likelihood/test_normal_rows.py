"""Marginals under symmetric and zero-inflated noise against quadrature, mixtures by simulation, and their sketches."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.likelihood import RegressionRows, law_of_nodes
from tests import programs

pytestmark = pytest.mark.usefixtures("x64")


def log_prob(law, z):
    """In one compiled call: term by term each of a hundred small operations is compiled by itself."""
    return np.asarray(jax.jit(law.log_prob)(jnp.asarray(z)))


NUMBER = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -1.0, 1.0)
BASES = {
    "normal": lambda: dist.Normal(0.3, 0.6),
    "narrow normal": lambda: dist.Normal(0.3, 0.05),
    "exponential": lambda: dist.Exponential(1.3),
    "student": lambda: dist.StudentT(4.0, 0.2, 0.5),
}


def clipped_density(law, z, noise):
    """Definition: masses at both bounds and the density between them, with Laplace noise of standard deviation 0.7."""
    kernel = stats.laplace(scale=noise / np.sqrt(2)).pdf
    edges = sorted({-1.0, 0.2, 0.3, 0.4, 1.0, min(max(z, -1.0), 1.0)})
    inside = sum(
        integrate.quad(lambda x: law.pdf(x) * kernel(z - x), a, b, epsabs=1e-13, limit=200)[0]
        for a, b in itertools.pairwise(edges)
    )
    return law.cdf(-1.0) * kernel(z + 1) + law.sf(1.0) * kernel(z - 1) + inside


SCIPY = {
    "normal": stats.norm(0.3, 0.6),
    "narrow normal": stats.norm(0.3, 0.05),
    "exponential": stats.expon(scale=1 / 1.3),
    "student": stats.t(4, 0.2, 0.5),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("normal", "exponential") else pytest.mark.slow) for name in BASES]
)
def test_density_of_numbers_is_the_definition_with_atoms_at_the_bounds(name):
    law, z = SCIPY[name], np.array([-4.0, -0.99, 0.3, 0.8, 2.5, -1.0, 1.0])
    got = programs.log_prob(BASES[name](), NUMBER, z)
    for at, value in zip(z[:5], got[:5], strict=True):
        own = law.pdf(at) if abs(at) < 1 else 0.0
        assert value == pytest.approx(np.log(0.8 * clipped_density(law, at, 0.7) + 0.2 * own), abs=1e-8)
    masses = [0.2 * law.cdf(-1.0), 0.2 * law.sf(1.0)]
    if name == "exponential":  # no record is ever clipped to the lower bound, which then is a number like others
        masses[0] = 0.8 * clipped_density(law, -1.0, 0.7)
    np.testing.assert_allclose(got[5:], np.log(masses), rtol=1e-9, atol=1e-9)


def test_total_mass_is_one_for_discrete_records_too():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, 1.0, 4.0)
    private = ldp.Privatized(dist.Binomial(5, 0.3), mechanism)
    law = stats.binom(5, 0.3)
    z = np.concatenate([np.arange(1.0, 5.0), np.linspace(-14.003, 19.002, 330_017)])
    atoms, density = np.split(np.exp(log_prob(private, z)), [4])
    np.testing.assert_allclose(atoms, 0.2 * np.array([law.cdf(1), law.pmf(2), law.pmf(3), law.sf(3)]))
    assert 33.005 / 330_016 * density.sum() + atoms.sum() == pytest.approx(1, abs=1e-6)


def test_symmetric_noise_on_numbers_is_laplace_noise():
    z = np.linspace(-3, 3, 13)
    symmetric = ldp.SymmetricLaplaceMechanism(0.7, -1.0, 1.0)
    independent = ldp.mechanisms.IndependentLaplaceMechanism(0.7, -1.0, 1.0)
    mechanisms = ldp.LaplaceMechanism(2 * np.sqrt(2) / 0.7, -1.0, 1.0), symmetric, independent
    for base in (dist.Normal(0.3, 0.6), dist.Exponential(1.3)):
        laws = [ldp.Privatized(base, mechanism) for mechanism in mechanisms]
        want, *others = jax.jit(lambda z, laws=laws: [law.log_prob(z) for law in laws])(z)
        for other in others:
            np.testing.assert_allclose(other, want, atol=1e-9)


def test_public_records_have_the_law_of_the_records():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, np.array([0.0, 0.7]), -1.0, 1.0)
    laws = [ldp.Privatized(dist.Normal(0.3, 0.6), m) for m in (mechanism, NUMBER)]
    got, noisy = jax.jit(lambda z: [law.log_prob(z) for law in laws])(np.array([0.5, 0.5]))
    assert float(got[0]) == pytest.approx(stats.norm(0.3, 0.6).logpdf(0.5))
    assert float(got[1]) == pytest.approx(float(noisy[1]))
    rows = ldp.ZeroInflatedLaplaceMechanism(0.2, np.array([0.0, 0.7]), -1.0, 1.0, 2)
    base = dist.MultivariateNormal(np.zeros(2), scale_tril=np.eye(2))
    assert float(log_prob(ldp.Privatized(base, rows), np.ones((2, 2)))[0]) == pytest.approx(-1 - np.log(2 * np.pi))


@pytest.mark.parametrize("count", [pytest.param(3, marks=pytest.mark.slow), 64])  # 64 are the nodes of the mixture
def test_every_record_may_have_its_own_covariance(count):
    mechanism = ldp.SymmetricLaplaceMechanism(1.0, -50, 50, 2)
    covariances = np.linspace(0.5, 3.0, count)[:, None, None] * np.array([[1.0, 0.3], [0.3, 2.0]])
    z = np.stack([np.linspace(-1, 1, count), np.linspace(2, -2, count)], axis=1)

    def one(covariance, z):
        return ldp.Privatized(dist.MultivariateNormal(np.zeros(2), covariance), mechanism).log_prob(z)

    together, alone = jax.jit(lambda c, z: (one(c, z), jax.lax.map(lambda part: one(*part), (c, z))))(covariances, z)
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("d", [1, pytest.param(3, marks=pytest.mark.slow), 6])
def test_normal_mixture_is_the_integral_over_the_scale(d):
    mechanism = ldp.mechanisms.AdditiveMechanism(ldp.noise.SymmetricLaplace(1.0), columns=d, sensitivity=np.inf)
    t = np.linspace(-40, 6, 2301)

    @jax.jit
    def mixture(row, covariance):
        law = dist.MultivariateNormal(np.zeros(d), covariance)
        return ldp.Privatized(law, mechanism).log_prob(row)

    for ratio in (0.01, 0.3, 20.0):  # of the variance of the records to that of the noise
        for distance in (0.0, 0.1, 1.0, 6.0, 20.0):
            # the trapezoidal rule over log w: poles at a distance of π and a step of 1/50 leave exp(-2π² · 50)
            total = ratio + np.exp(t)
            terms = t - np.exp(t) - distance**2 / (2 * total) - d / 2 * np.log(2 * np.pi * total)
            want = special.logsumexp(terms) + np.log(t[1] - t[0])
            got = float(mixture(np.eye(d)[0] * distance, ratio * np.eye(d)))
            assert got == pytest.approx(want, abs=1e-8)


COVARIANCE = np.array([[0.5, 0.2, 0.1], [0.2, 0.4, -0.1], [0.1, -0.1, 0.3]])


@pytest.mark.parametrize(
    "perturbed", [(0, 2), *(pytest.param(columns, marks=pytest.mark.slow) for columns in (None, (1,)))]
)
def test_density_of_rows_is_a_mixture_of_normals_given_the_columns_that_are_not_perturbed(perturbed):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -9.0, 9.0, 3, perturbed)
    mean, z = np.array([0.1, -0.2, 0.3]), np.array([[0.3, 0.2, -0.5], [2.0, 0.0, 1.0]])
    noise = 0.49 * np.diag(np.isin(np.arange(3), mechanism.index))
    personal = ldp.ZeroInflatedLaplaceMechanism(0.2, np.full(1, 0.7), -9.0, 9.0, 3, perturbed)

    @jax.jit
    def compiled(row, covariance):
        base = dist.MultivariateNormal(mean, covariance)
        return ldp.Privatized(base, mechanism).log_prob(row), ldp.Privatized(base, personal).log_prob(row[None])[0]

    for row in z:

        def mixed(t, row=row):
            w = np.exp(t)
            return np.exp(t - w) * stats.multivariate_normal(mean, COVARIANCE + w * noise).pdf(row)

        noisy = integrate.quad(mixed, -40, 5, limit=400, epsabs=1e-14, points=[-10, -5, -2, 0, 1, 2])[0]
        want = np.log(0.8 * noisy + 0.2 * stats.multivariate_normal(mean, COVARIANCE).pdf(row))
        assert [float(value) for value in compiled(row, COVARIANCE)] == pytest.approx([want, want], abs=1e-7)


def test_gradients_are_finite_where_eigenvalues_coincide_and_far_out():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -9.0, 9.0, 3)

    def log_prob(scale, z):
        base = dist.MultivariateNormal(jnp.zeros(3), scale_tril=scale * jnp.eye(3))
        return ldp.Privatized(base, mechanism).log_prob(z)

    gradient = jax.jit(jax.grad(log_prob, (0, 1)))
    for z in (np.zeros(3), np.ones(3), np.full(3, 50.0)):
        for scale in (1e-3, 0.5, 30.0):
            assert all(np.all(np.isfinite(slope)) for slope in gradient(scale, z))

    def number(loc, z):
        return ldp.Privatized(dist.Normal(loc, 0.5), NUMBER).log_prob(z)

    slopes = jax.jit(jax.vmap(jax.grad(number), (None, 0)))(0.3, np.array([-30.0, -1.0, 0.2, 1.0, 9.0]))
    assert np.all(np.isfinite(slopes))


def test_samples_follow_the_density():
    private = ldp.Privatized(dist.Normal(0.3, 0.6), NUMBER)
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -99.0, 99.0, 3)

    @jax.jit
    def samples(covariance):
        rows = ldp.Privatized(dist.MultivariateNormal(np.zeros(3), covariance), mechanism)
        draws = [law.sample(jax.random.key(seed), (40_000,)) for seed, law in enumerate((private, rows))]
        return *draws, rows.variance

    z, draws, variance = map(np.asarray, samples(COVARIANCE))
    edges = np.array([-50, -2, -1.2, -1 - 1e-9, -1 + 1e-9, -0.5, 0, 0.5, 1 - 1e-9, 1 + 1e-9, 1.5, 2.5, 50])
    atoms, nodes = np.diff(edges) < 1e-6, np.linspace(edges[:-1], edges[1:], 20_002)[1:-1]
    density = np.exp(programs.log_prob(dist.Normal(0.3, 0.6), NUMBER, np.where(atoms, np.round(nodes), nodes)))
    share = np.where(atoms, density[0], np.diff(edges) / 20_000 * density.sum(axis=0))
    counts = np.histogram(z, edges)[0]
    assert stats.chisquare(counts, len(z) * share / sum(share)).pvalue > 1e-4
    assert sum(share) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.06)  # four standard errors
    np.testing.assert_allclose(variance, np.diag(COVARIANCE) + 0.8 * 0.49)


def test_sketches_count_the_atoms_apart_and_say_the_same_as_the_records():
    base = dist.Normal(0.3, 0.6)
    z = jax.jit(lambda key: ldp.Privatized(base, NUMBER).sample(key, (50_000,)))(jax.random.key(2))
    release = ldp.Release(z, NUMBER)
    sketch = release.sketch()
    assert sketch.size == 50_000 and sketch.weights.sum() == pytest.approx(50_000)
    np.testing.assert_array_equal(sketch.atoms, [np.sum(release.values == at) for at in (-1, 0, 1)])
    assert sketch.atoms[[0, 2]].min() > 100 and sketch.atoms[1] == 0
    halves = [ldp.Release(release.values[i::2], NUMBER).sketch() for i in (0, 1)]
    weights = sketch.weights, (halves[0] + halves[1]).weights
    np.testing.assert_array_equal((halves[0] + halves[1]).nodes, sketch.nodes)

    @jax.jit
    def totals(loc, scale, values):
        law = dist.Normal(loc, scale)
        of_nodes = law_of_nodes(sketch, law).log_prob(sketch.nodes)
        return jnp.sum(ldp.Privatized(law, NUMBER).log_prob(values)), [each @ of_nodes for each in weights]

    for parameters in ((0.3, 0.6), (0.1, 0.3), (-0.2, 1.5)):
        want, sketches = totals(*parameters, release.values)
        for got in sketches:
            assert float(got) == pytest.approx(float(want), abs=1e-5)


def regression(delta=0.2):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(delta, 0.7, -9.0, 9.0, 2, (0,))
    covariates = dist.MultivariateNormal(np.array([0.3]), scale_tril=np.sqrt([[0.4]]))
    return ldp.Privatized(RegressionRows(covariates, dist.BernoulliLogits, np.array([1.5]), 0.2), mechanism)


def test_regression_on_perturbed_covariates_is_the_integral_over_them():
    law = stats.norm(0.3, np.sqrt(0.4))
    kernel = stats.laplace(scale=0.7 / np.sqrt(2)).pdf
    own = jax.jit(lambda z: regression().log_prob(z))
    for z in (-3.0, 0.1, 4.0):
        for y in (0.0, 1.0):

            def joint(x, y=y):
                p = 1 / (1 + np.exp(-(0.2 + 1.5 * x)))
                return law.pdf(x) * (p if y else 1 - p)

            noisy = integrate.quad(lambda x, z=z: joint(x) * kernel(z - x), -7, 8, points=[z, 0.3], limit=300)[0]
            want = np.log(0.2 * joint(z) + 0.8 * noisy)
            assert float(own(np.array([z, y]))) == pytest.approx(want, abs=1e-8)


@pytest.mark.slow
def test_regression_is_as_accurate_as_documented():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 3.0, -99.0, 99.0, 7, tuple(range(6)))
    covariates = dist.MultivariateNormal(jnp.zeros(6), 0.81 * jnp.eye(6))

    def law(**points):
        return ldp.Privatized(RegressionRows(covariates, dist.BernoulliLogits, jnp.ones(6), **points), mechanism)

    z = law().sample(jax.random.key(0), (5000,))
    stated, exact = jax.jit(lambda z: [law(**points).log_prob(z) for points in ({}, {"scales": 96})])(z)
    assert abs(np.sum(stated - exact)) < 1e-6  # a finer rule changes nothing


def test_linear_regression_is_the_joint_normal():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.7, -9.0, 9.0, 3, (0, 1))
    covariance, slopes = COVARIANCE[:2, :2], np.array([0.5, -1.0])
    covariates = dist.MultivariateNormal(np.array([0.1, -0.2]), scale_tril=np.linalg.cholesky(covariance))
    base = RegressionRows(covariates, lambda eta: dist.Normal(eta, 0.6), slopes, 0.4, scales=64, nodes=31)
    ours = ldp.Privatized(base, mechanism)
    cross = covariance @ slopes
    joint = np.block([[covariance, cross[:, None]], [cross[None], slopes @ cross + 0.36]])
    mean = np.array([0.1, -0.2, 0.4 + 0.05 + 0.2])
    z = np.array([[0.3, -0.4, 1.0], [2.0, 0.1, 0.5]])
    theirs = ldp.Privatized(dist.MultivariateNormal(mean, scale_tril=np.linalg.cholesky(joint)), mechanism)

    @jax.jit
    def compiled(z, key):
        return [law.log_prob(z) for law in (ours, theirs)], ours.sample(key, (40_000,))

    densities, draws = compiled(z, jax.random.key(0))
    np.testing.assert_allclose(*densities, atol=1e-6)
    np.testing.assert_allclose(np.asarray(draws).mean(axis=0), mean, atol=4.5 * 1.1 / 200)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ldp.Privatized(dist.Normal(0, 1), ldp.SymmetricLaplaceMechanism(1.0, 0, 1, 3)), r"event shape \(3,\)"),
        (
            lambda: ldp.Privatized(dist.Dirichlet(jnp.ones(3)), ldp.SymmetricLaplaceMechanism(1.0, 0, 1, 3)),
            "for rows, only MultivariateNormal and RegressionRows have one",
        ),
        (
            lambda: jax.eval_shape(
                ldp.Privatized(
                    dist.MultivariateNormal(np.zeros(4), scale_tril=np.eye(4)),
                    ldp.mechanisms.IndependentLaplaceMechanism(1.0, 0, 1, 4),
                ).log_prob,
                np.zeros(4),
            ),
            "independent Laplace noise can have noise in at most 3 columns, got 4",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_rows_that_are_next_to_impossible_have_the_error_that_is_stated():
    mechanism = ldp.mechanisms.AdditiveMechanism(
        ldp.noise.SymmetricLaplace(1.0), columns=2, perturbed=(0,), sensitivity=np.inf
    )
    law = dist.MultivariateNormal(np.zeros(1), 0.01 * np.eye(1))  # a tenth of the noise: s = 1/100
    rows = np.stack([np.append(0, np.linspace(2, 28, 14)), np.ones(15)], axis=-1)
    bases = [RegressionRows(law, dist.BernoulliLogits, np.zeros(1), 0.4, scales=k) for k in (36, 72)]
    found = jax.jit(lambda z: [ldp.Privatized(base, mechanism).log_prob(z) for base in bases])(rows)
    # a normal plus a Laplace number of mean absolute deviation 1/√2, beside a response of probability 1/(1 + exp(−0.4))
    rate, sides = np.sqrt(2), np.array([[1.0], [-1.0]])
    sides = stats.norm.logcdf((sides * rows[:, 0] - 0.01 * rate) / 0.1) - sides * rate * rows[:, 0]
    exact = np.logaddexp(*sides) + np.log(rate / 2) + 0.01 - np.log1p(np.exp(-0.4))
    below = np.maximum(exact.max() - exact, 0.1)
    assert below.max() > 38

    def stated(scales):
        step = (6.7 - 0.7 * np.log(0.01)) / (scales - 1)
        return 2 * np.exp(-2 * np.pi**2 / (below * step**2))

    coarse, fine = np.abs(np.asarray(found) - exact)
    assert np.all(coarse[below < 12] < 1e-8)
    assert np.all(coarse < 1e-8 + 3 * stated(36))  # the third and fourth derivatives count, too
    assert np.all(fine[below < 30] < 1e-7)
