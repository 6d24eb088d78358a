"""`Privatized` as a distribution: any base against quadrature, transformations, batch shapes and moments."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.likelihood._latent import latent
from ldpbayes.likelihood._masses import log_mass_outside
from ldpbayes.likelihood._mixing import with_unperturbed
from ldpbayes.numerics._special import betainc, student_t_cdf
from tests.brute_force import log_marginal
from tests.likelihood import reference

pytestmark = pytest.mark.usefixtures("x64")
LOWER, UPPER = -1.0, 4.0
LAPLACE, GAUSSIAN = ldp.LaplaceMechanism(2.0, LOWER, UPPER), ldp.GaussianMechanism(2.0, 1e-5, LOWER, UPPER)
NOISE = {"laplace": LAPLACE, "gaussian": GAUSSIAN}
noises = pytest.mark.parametrize("noise", NOISE)
Z = np.array([-30.0, -1.3, LOWER, -0.2, 0.0, 1.7, 3.9, UPPER, 9.0, 60.0])


class Logistic(dist.Distribution):
    """As an analyst would write it: a density and nothing else."""

    arg_constraints = {"loc": constraints.real}
    support = constraints.real

    def __init__(self, loc):
        self.loc = jnp.asarray(loc)
        super().__init__(batch_shape=jnp.shape(loc))

    def log_prob(self, value):
        return -(value - self.loc) - 2 * jax.nn.softplus(-(value - self.loc))


class LogisticWithCdf(Logistic):
    def cdf(self, value):
        return jax.nn.sigmoid(value - self.loc)


def mixture(weight, loc, scale):
    components = [dist.Normal(0.5, 0.4), dist.Normal(loc, scale)]
    return dist.MixtureGeneral(dist.Categorical(probs=jnp.stack([weight, 1 - weight])), components)


def student_t(df, loc, scale):
    constant = mp.gamma((df + 1) / 2) / (mp.gamma(df / 2) * mp.sqrt(df * mp.pi) * scale)
    return lambda x: constant * (1 + ((x - loc) / scale) ** 2 / df) ** (-(df + 1) / 2)


def gamma(shape, rate):
    return lambda x: rate**shape * x ** (shape - 1) * mp.exp(-rate * x) / mp.gamma(shape)


def log_normal(loc, scale):
    return lambda x: mp.npdf(mp.log(x), loc, scale) / x


def mixture_density(weight, loc, scale):
    return lambda x: weight * mp.npdf(x, 0.5, 0.4) + (1 - weight) * mp.npdf(x, loc, scale)


def beta(a, b):
    return lambda x: x ** (a - 1) * (1 - x) ** (b - 1) / mp.beta(a, b)


def uniform(low, high):
    return lambda x: 1 / (high - low)


def truncated(loc, scale, low, high):
    mass = reference.normal_mass((low - loc) / scale, (high - loc) / scale)
    return lambda x: mp.npdf(x, loc, scale) / mass


def logistic(loc):
    return lambda x: mp.sech((x - loc) / 2) ** 2 / 4


# name: distribution, its density from the same parameters, the parameters, support
BASES = {
    "student-t": (dist.StudentT, student_t, (3.3, 0.4, 1.2), (-np.inf, np.inf)),
    "gamma-0.3": (dist.Gamma, gamma, (0.3, 0.5), (0, np.inf)),
    "gamma-2": (dist.Gamma, gamma, (2.0, 0.8), (0, np.inf)),
    "log-normal": (dist.LogNormal, log_normal, (0.2, 0.7), (0, np.inf)),
    "mixture": (mixture, mixture_density, (0.3, 2.5, 1.1), (-np.inf, np.inf)),
    "beta": (dist.Beta, beta, (0.5, 0.5), (0, 1)),
    "uniform": (dist.Uniform, uniform, (-0.3, 2.2), (-0.3, 2.2)),
    "truncated-normal": (
        lambda *p: dist.TruncatedNormal(p[0], p[1], low=p[2], high=p[3]),
        truncated,
        (1.0, 0.8, -0.5, 6.0),
        (-0.5, 6.0),
    ),
    "user-written": (Logistic, logistic, (0.7,), (-np.inf, np.inf)),
    "user-written-with-cdf": (LogisticWithCdf, logistic, (0.7,), (-np.inf, np.inf)),
}


def by_quadrature(density, support, mechanism, noise_density):
    """The definition, by adaptive tanh-sinh rules, which take singularities at their ends."""
    lower, upper = mp.mpf(LOWER), mp.mpf(UPPER)
    below = mp.quad(density, [support[0], *([-10] if support[0] < -10 else []), lower]) if support[0] < lower else 0
    above = mp.quad(density, [upper, *([20] if support[1] > 20 else []), support[1]]) if support[1] > upper else 0
    cuts = [0.01, 0.1, 0.5, 1, 2, 3]
    return [
        mp.log(
            reference.marginal_by_quadrature(
                density,
                (below, above),
                noise_density,
                lower,
                upper,
                mp.mpf(float(mechanism.scale)),
                mp.mpf(z),
                cuts,
                support,
            )
        )
        for z in Z.tolist()
    ]


@noises
@pytest.mark.parametrize("name", BASES)
def test_any_base_agrees_with_adaptive_quadrature(name, noise):
    make, density, parameters, support = BASES[name]
    mechanism = NOISE[noise]

    def log_prob(parameters):
        value = ldp.Privatized(make(*parameters), mechanism).log_prob(Z)
        return value.sum(), value

    compiled = jax.jit(jax.value_and_grad(log_prob, has_aux=True))
    (_, value), gradient = compiled(parameters)
    # a density that is singular at an end of its support has 1e-7 of its mass within 1e-24 of it
    with mp.workdps(40 if name in ("gamma-0.3", "beta") else 16):
        expected = by_quadrature(
            density(*map(mp.mpf, parameters)), support, mechanism, getattr(reference, f"{noise}_noise")
        )
    np.testing.assert_allclose(value, np.array(expected, float), rtol=0, atol=1e-10)
    assert np.isfinite(gradient).all()
    # central differences: error h² f''' ≈ 1e-8, and the rounding of a sum of 10 terms of up to 50, 5e-13/h
    h = 1e-4
    for i in range(len(parameters)):
        up, down = (compiled((*parameters[:i], parameters[i] + s, *parameters[i + 1 :]))[0][0] for s in (h, -h))
        assert abs((up - down) / (2 * h) - gradient[i]) < 1e-6 * max(1, abs(gradient[i]))


@noises
@pytest.mark.parametrize("law", [dist.Normal, dist.Exponential])
def test_the_channel_equals_the_closed_form(law, noise):
    """On a grid with sigma at least 5 % of the range, one budget and one law for every record."""
    rng, n = np.random.default_rng(0), 150
    epsilon, scale = 10 ** rng.uniform(-1, 1.3, n), 10 ** rng.uniform(np.log10(0.25), 1.5, n)
    make = ldp.LaplaceMechanism if noise == "laplace" else lambda e, *b: ldp.GaussianMechanism(e, 1e-5, *b)
    mechanism = make(epsilon, LOWER, UPPER)
    parameters = (rng.uniform(-6, 9, n), scale) if law is dist.Normal else (1 / (4 * scale),)
    z = rng.uniform(LOWER, UPPER, n) + np.where(rng.uniform(size=n) < 0.5, 0, 20 * rng.normal(size=n) * mechanism.scale)

    def values(method):
        def total(parameters):
            value = ldp.Privatized(law(*parameters), mechanism, method=method).log_prob(z)
            return value.sum(), value

        (_, value), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(parameters)
        return value, gradient

    (closed, closed_gradient), (channel, channel_gradient) = values("closed_form"), values("channel")
    np.testing.assert_allclose(channel, closed, rtol=0, atol=1e-10)
    for actual, expected, unit in zip(channel_gradient, closed_gradient, [scale, scale], strict=False):
        np.testing.assert_allclose(
            actual * unit, expected * unit, rtol=1e-8, atol=1e-8
        )  # one derivative costs 1/h ≈ 60


# --- transformations and shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["closed_form", "channel"])
def test_jit_vmap_and_grad_agree_with_plain_evaluation(method):
    def log_prob(loc, z):
        return ldp.Privatized(dist.Normal(loc, 1.5), LAPLACE, method=method).log_prob(z)

    locs = np.array([-2.0, LOWER, 0.5])
    plain = np.stack([log_prob(loc, Z) for loc in locs])
    tolerance = {"rtol": 1e-12, "atol": 1e-12}  # reordered sums of some 300 terms
    compiled = jax.jit(log_prob)
    np.testing.assert_allclose(compiled(0.5, Z), plain[2], **tolerance)
    np.testing.assert_allclose(jax.jit(jax.vmap(log_prob, (0, None)))(locs, Z), plain, **tolerance)
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(log_prob), (None, 0)))(0.5, Z)
    np.testing.assert_allclose(value, plain[2], **tolerance)
    difference = (compiled(0.5 + 1e-5, Z) - compiled(0.5 - 1e-5, Z)) / 2e-5
    np.testing.assert_allclose(slope, difference, atol=1e-8)  # h² f''' + 1e-13/h


def test_a_mechanism_may_be_an_argument_of_a_compiled_function():
    log_prob = jax.jit(lambda mechanism, z: ldp.Privatized(dist.Gamma(2.0, 0.8), mechanism).log_prob(z))
    expected = ldp.Privatized(dist.Gamma(2.0, 0.8), LAPLACE).log_prob(Z)
    np.testing.assert_allclose(log_prob(LAPLACE, Z), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["closed_form", "channel"])
@pytest.mark.parametrize(
    "z", [0.3, np.array([0.3, -2.0, 7.0]), np.array([[0.3], [-2.0]])], ids=["()", "(3,)", "(2, 1)"]
)
@pytest.mark.parametrize("epsilon", [1.0, np.array([0.5, 1.0, 4.0])], ids=["one-budget", "personal-budgets"])
def test_a_mean_and_a_budget_for_every_record_broadcast(method, z, epsilon):
    loc = np.array([0.0, 1.0, 5.0])
    law = ldp.Privatized(dist.Normal(loc, 1.5), ldp.LaplaceMechanism(epsilon, LOWER, UPPER), method=method)
    assert law.batch_shape == (3,)
    value = jax.jit(law.log_prob)(z)
    assert value.shape == np.broadcast_shapes(np.shape(z), (3,))
    scale = (UPPER - LOWER) / np.asarray(epsilon)
    arguments = np.broadcast_arrays(loc, 1.5, LOWER, UPPER, scale, z)
    expected = reference.log_density(reference.normal_laplace, *arguments).reshape(value.shape)
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)


@noises
@pytest.mark.parametrize(
    "law",
    [dist.Normal(0.4, 1.5), dist.StudentT(3.0, 1.0, 2.0), dist.Poisson(2.5)],
    ids=["normal", "student", "poisson"],
)
def test_mean_and_variance_are_those_of_the_clipped_record_plus_noise(law, noise):
    mechanism = NOISE[noise]
    value = ldp.Privatized(law, mechanism)
    with mp.workdps(20):
        lower, upper = mp.mpf(LOWER), mp.mpf(UPPER)
        if isinstance(law, dist.Poisson):
            moments = [
                mp.nsum(
                    lambda k, p=p: min(k, upper) ** p * mp.exp(-mp.mpf(2.5)) * mp.mpf(2.5) ** k / mp.factorial(k),
                    [0, 60],
                )
                for p in (1, 2)
            ]
        else:
            density = (
                (lambda x: mp.npdf(x, 0.4, 1.5)) if isinstance(law, dist.Normal) else student_t(*map(mp.mpf, (3, 1, 2)))
            )
            below, above = mp.quad(density, [-mp.inf, -10, lower]), mp.quad(density, [upper, 20, mp.inf])
            moments = [
                mp.quad(lambda x, p=p: x**p * density(x), [lower, 1, upper]) + below * lower**p + above * upper**p
                for p in (1, 2)
            ]
        mean, variance = float(moments[0]), float(moments[1] - moments[0] ** 2)
    noise_variance = mechanism.scale**2 * (2 if noise == "laplace" else 1)
    np.testing.assert_allclose(value.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(value.variance, variance + noise_variance, rtol=1e-10)


def test_samples_have_the_stated_mean_and_variance():
    n = 200_000
    law = ldp.Privatized(dist.Gamma(2.0, 0.8), LAPLACE)
    z = np.asarray(law.sample(jax.random.key(0), (n,)))
    # five standard errors; the kurtosis of the sum is below that of Laplace noise, 6
    assert abs(z.mean() - law.mean) < 5 * np.sqrt(law.variance / n)
    assert abs(z.var() - law.variance) < 5 * law.variance * np.sqrt(5 / n)


@pytest.mark.parametrize("lower", [1e-9, 1e-3, 0.1])
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
    found = ldp.Privatized(dist.Gamma(0.3, 0.5), mechanism).log_prob(z)
    np.testing.assert_allclose(found, expected, atol=1e-10)  # the claim for bases resolved by the grid is 1e-9


def far_and_narrow(kind):
    """Half of the mass outside the bounds, far from them and on a short scale, whose cdf has no derivative in df."""
    parts = [dist.StudentT(5.0, 0.0, 1.0), dist.StudentT(5.0, 50.0, 0.5)]
    weights = dist.Categorical(np.array([0.5, 0.5]))
    if kind == "general":
        return dist.MixtureGeneral(weights, parts)
    return dist.MixtureSameFamily(weights, dist.StudentT(5.0, np.array([0.0, 50.0]), np.array([1.0, 0.5])))


@pytest.mark.parametrize("kind", ["general", "same family"])
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


class Narrow(Logistic):
    """A fiftieth as wide, with a mean."""

    mean = property(lambda self: self.loc)

    def log_prob(self, value):
        return super().log_prob(self.loc + 50 * (value - self.loc)) + jnp.log(50.0)


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
@pytest.mark.parametrize(("name", "double"), [(name, i < 3) for i, name in enumerate(WILD)])
def test_densities_that_overflow_have_derivatives(name, double):
    law, parameters = WILD[name]
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.5, 0.0, 1.0)
    z = np.array([-3.0, 0.2, 1.0 - 1e-7, 1.3])

    def total(p):
        private = ldp.Privatized(law(*p), mechanism)
        grid = latent(private.base_dist, mechanism)
        # the density at the nodes and the masses outside, and what is added for records without noise
        noisy = jnp.vdot(grid.density(private.base_dist), np.cos(np.arange(len(grid.nodes) + 2)))
        return noisy + jnp.sum(with_unperturbed(private.base_dist, mechanism, z, jnp.zeros(4)))

    with jax.enable_x64(double):
        value, slope = jax.jit(jax.value_and_grad(total))(parameters)
        assert np.isfinite(value) and np.all(np.isfinite(slope)) and np.any(np.abs(slope) > 0)


@pytest.mark.parametrize(("a", "b", "x"), [(2.0, 0.5, 0.3), (2.5, 0.5, 0.9), (0.3, 0.7, 0.2), (5.0, 3.0, 0.6)])
def test_the_incomplete_beta_function_has_derivatives_in_its_parameters(a, b, x, x64):
    def exact(a, b, x):
        return mp.betainc(a, b, 0, x, regularized=True)

    value, slopes = jax.value_and_grad(betainc, (0, 1, 2))(a, b, x)
    assert float(value) == pytest.approx(float(exact(a, b, x)), rel=1e-13)
    want = [mp.diff(exact, (a, b, x), order) for order in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    np.testing.assert_allclose(slopes, np.array(want, float), rtol=1e-9)


def test_the_cdf_of_a_student_t_has_derivatives_everywhere(x64):
    df, t = 3.3, np.array([-40.0, -1.2, -1e-9, 0.0, 2.5])

    def exact(df, t):
        between = mp.betainc(0.5, df / 2, 0, t * t / (df + t * t), regularized=True)
        return (1 + mp.sign(t) * between) / 2

    value = jax.jit(student_t_cdf)(df, t)
    of_df, of_t = (jax.vmap(jax.grad(student_t_cdf, i), (None, 0))(df, t) for i in (0, 1))
    with mp.workdps(30):
        np.testing.assert_allclose(value, [float(exact(mp.mpf(df), mp.mpf(at))) for at in t], rtol=1e-13)
        in_df = [float(mp.diff(lambda d, at=at: exact(d, mp.mpf(at)), mp.mpf(df))) for at in t]
    # a central difference of values that are rounded, times their size
    np.testing.assert_allclose(of_df, in_df, rtol=1e-9, atol=1e-11 * np.asarray(value).max())
    np.testing.assert_allclose(of_t, stats.t(df).pdf(t), rtol=1e-12)


def test_moments_broadcast_with_personal_budgets(x64):
    epsilon = np.array([0.5, 1.0, 3.0])
    law = ldp.Privatized(dist.Normal(0.0, 1.0), ldp.LaplaceMechanism(epsilon, -5, 5))
    np.testing.assert_allclose(law.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(law.variance, 2 * (10 / epsilon) ** 2 + 1, rtol=1e-5)  # 1 less what is clipped
    of_nodes = ldp.Privatized(dist.Normal(0.0, 1.0), ldp.LaplaceMechanism(np.full(322, 1.0), -5, 5))
    np.testing.assert_allclose(of_nodes.variance, law.variance[1])


def test_laws_and_bounds_of_one_record_each_broadcast(x64):
    z = np.array([-0.4, 1.0, 1.9])
    lower = np.array([-0.5, 0.0, 0.25])
    personal = ldp.LaplaceMechanism(np.array([0.5, 1.0, 3.0]), lower, lower + 4)
    gammas = ldp.Privatized(dist.Gamma(2.0, 1.0), personal)
    uniforms = ldp.Privatized(dist.Uniform(lower, lower + 2), ldp.ZeroInflatedLaplaceMechanism(0.3, 1.0, 0, 2))
    got = jax.jit(lambda z: [gammas.log_prob(z), uniforms.log_prob(z)])(z)
    for i, at in enumerate(z):
        want = log_marginal(stats.gamma(2.0), personal.of_records((3,), i), at)
        assert float(got[0][i]) == pytest.approx(want, abs=1e-9)
        assert float(got[1][i]) == pytest.approx(
            log_marginal(stats.uniform(lower[i], 2), uniforms.mechanism, at), abs=1e-9
        )


@pytest.mark.parametrize("bounds", [(-3.0, 0.0), (-3.0, -1.0)])
def test_counts_above_the_bounds_are_all_at_the_upper_one(bounds, x64):
    z = np.array([-3.0, -1.0, 0.5])
    got = jax.jit(ldp.Privatized(dist.Poisson(2.0), ldp.LaplaceMechanism(1.0, *bounds)).log_prob)(z)
    width = bounds[1] - bounds[0]
    np.testing.assert_allclose(got, stats.laplace(bounds[1], width).logpdf(z), rtol=1e-12)
