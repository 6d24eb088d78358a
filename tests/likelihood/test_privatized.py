"""`Privatized` as a distribution: any base against quadrature, transformations, batch shapes and moments."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import ldpbayes as ldp
from tests.brute_force import log_marginal
from tests.likelihood import reference
from tests.programs import constant, evaluate, log_prob, value_and_grad

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
    constant = rate**shape / mp.gamma(shape)
    return lambda x: constant * x ** (shape - 1) * mp.exp(-rate * x)


def log_normal(loc, scale):
    return lambda x: mp.npdf(mp.log(x), loc, scale) / x


def mixture_density(weight, loc, scale):
    return lambda x: weight * mp.npdf(x, 0.5, 0.4) + (1 - weight) * mp.npdf(x, loc, scale)


def beta(a, b):
    constant = 1 / mp.beta(a, b)
    return lambda x: constant * x ** (a - 1) * (1 - x) ** (b - 1)


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


# both noises, and bases whose mass outside the bounds is found in different ways; one is singular where it ends
SHORT = {"beta": "gaussian", "user-written": "laplace"}


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        pytest.param(name, noise, marks=() if SHORT.get(name) == noise else pytest.mark.slow)
        for name in BASES
        for noise in NOISE
    ],
)
def test_any_base_agrees_with_adaptive_quadrature(name, noise):
    make, density, parameters, support = BASES[name]
    mechanism = NOISE[noise]

    value, gradient = value_and_grad(make, parameters, mechanism, Z)
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
        ends = ((*parameters[:i], parameters[i] + s, *parameters[i + 1 :]) for s in (h, -h))
        up, down = (value_and_grad(make, end, mechanism, Z)[0].sum() for end in ends)
        assert abs((up - down) / (2 * h) - gradient[i]) < 1e-6 * max(1, abs(gradient[i]))


@pytest.mark.parametrize(
    ("law", "noise"),
    [
        (dist.Normal, "laplace"),
        pytest.param(dist.Exponential, "gaussian", marks=pytest.mark.slow),
        pytest.param(dist.Normal, "gaussian", marks=pytest.mark.slow),
        pytest.param(dist.Exponential, "laplace", marks=pytest.mark.slow),
    ],
)
def test_the_channel_equals_the_closed_form(law, noise):
    """On a grid with sigma at least 5 % of the range, one budget and one law for every record."""
    rng, n = np.random.default_rng(0), 150
    epsilon, scale = 10 ** rng.uniform(-1, 1.3, n), 10 ** rng.uniform(np.log10(0.25), 1.5, n)
    make = ldp.LaplaceMechanism if noise == "laplace" else lambda e, *b: ldp.GaussianMechanism(e, 1e-5, *b)
    mechanism = make(epsilon, LOWER, UPPER)
    parameters = (rng.uniform(-6, 9, n), scale) if law is dist.Normal else (1 / (4 * scale),)
    z = rng.uniform(LOWER, UPPER, n) + np.where(rng.uniform(size=n) < 0.5, 0, 20 * rng.normal(size=n) * mechanism.scale)

    closed, closed_gradient = value_and_grad(law, parameters, mechanism, z, method="closed_form")
    channel, channel_gradient = value_and_grad(law, parameters, mechanism, z, method="channel")
    np.testing.assert_allclose(channel, closed, rtol=0, atol=1e-10)
    for actual, expected, unit in zip(channel_gradient, closed_gradient, [scale, scale], strict=False):
        np.testing.assert_allclose(
            actual * unit, expected * unit, rtol=1e-8, atol=1e-8
        )  # one derivative costs 1/h ≈ 60


# --- transformations and shapes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [pytest.param("closed_form", marks=pytest.mark.slow), "channel"])
def test_jit_vmap_and_grad_agree_with_plain_evaluation(method):
    def of_normal(loc, z):
        return ldp.Privatized(dist.Normal(loc, 1.5), LAPLACE, method=method).log_prob(z)

    locs = np.array([-2.0, LOWER, 0.5])
    plain = np.stack([of_normal(loc, Z) for loc in locs])
    tolerance = {"rtol": 1e-12, "atol": 1e-12}  # reordered sums of some 300 terms

    @jax.jit
    def transformed(loc, locs, z):
        return jax.vmap(of_normal, (0, None))(locs, z), *slopes(loc, z)

    slopes = jax.vmap(jax.value_and_grad(of_normal), (None, 0))
    mapped, value, slope = transformed(0.5, locs, Z)
    np.testing.assert_allclose(mapped, plain, **tolerance)
    np.testing.assert_allclose(value, plain[2], **tolerance)
    above, below = (transformed(0.5 + step, locs, Z)[1] for step in (1e-5, -1e-5))
    np.testing.assert_allclose(slope, (above - below) / 2e-5, atol=1e-8)  # h² f''' + 1e-13/h


@pytest.mark.slow  # as those of sketches are in every test of tracing
def test_a_mechanism_may_be_an_argument_of_a_compiled_function():
    @jax.jit
    def both(mechanism, z):
        return [ldp.Privatized(dist.Gamma(2.0, 0.8), m).log_prob(z) for m in (mechanism, LAPLACE)]

    argument, constant = both(LAPLACE, Z)
    np.testing.assert_allclose(argument, constant, rtol=1e-12, atol=1e-12)


def mean_and_variance(law):
    return law.mean, law.variance


def moments_of(law):
    """Mean and variance; bounds of counts must be known."""
    known = isinstance(law.base_dist, dist.Poisson)
    return evaluate(mean_and_variance, constant(law) if known else law)


VALUES = {"()": 0.3, "(3,)": np.array([0.3, -2.0, 7.0]), "(2, 1)": np.array([[0.3], [-2.0]])}
BUDGETS = {"one-budget": 1.0, "personal-budgets": np.array([0.5, 1.0, 4.0])}


@pytest.mark.parametrize("method", ["closed_form", "channel"])
@pytest.mark.parametrize(
    ("shape", "budget"),
    [
        ("(2, 1)", "personal-budgets"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("()", "one-budget"),
                ("()", "personal-budgets"),
                ("(3,)", "one-budget"),
                ("(3,)", "personal-budgets"),
                ("(2, 1)", "one-budget"),
            ]
        ),
    ],
)
def test_a_mean_and_a_budget_for_every_record_broadcast(method, shape, budget):
    z, epsilon = VALUES[shape], BUDGETS[budget]
    loc = np.array([0.0, 1.0, 5.0])
    base, mechanism = dist.Normal(loc, np.full(3, 1.5)), ldp.LaplaceMechanism(epsilon, LOWER, UPPER)
    assert ldp.Privatized(base, mechanism, method=method).batch_shape == (3,)
    value = log_prob(base, mechanism, z, method=method)
    assert value.shape == np.broadcast_shapes(np.shape(z), (3,))
    scale = (UPPER - LOWER) / np.asarray(epsilon)
    arguments = np.broadcast_arrays(loc, 1.5, LOWER, UPPER, scale, z)
    expected = reference.log_density(reference.normal_laplace, *arguments).reshape(value.shape)
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)


MOMENTS = {
    "normal": lambda: dist.Normal(0.4, 1.5),
    "student": lambda: dist.StudentT(3.0, 1.0, 2.0),
    "poisson": lambda: dist.Poisson(2.5),
}


@pytest.mark.parametrize(
    ("law", "noise"),
    [
        ("normal", "gaussian"),
        ("poisson", "laplace"),
        pytest.param("student", "laplace", marks=pytest.mark.slow),
        pytest.param("normal", "laplace", marks=pytest.mark.slow),
        pytest.param("student", "gaussian", marks=pytest.mark.slow),
        pytest.param("poisson", "gaussian", marks=pytest.mark.slow),
    ],
)
def test_mean_and_variance_are_those_of_the_clipped_record_plus_noise(law, noise):
    law, mechanism = MOMENTS[law](), NOISE[noise]
    value = moments_of(ldp.Privatized(law, mechanism))
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
    np.testing.assert_allclose(value[0], mean, rtol=1e-10)
    np.testing.assert_allclose(value[1], variance + noise_variance, rtol=1e-10)


def test_the_mean_of_a_statistic_needs_no_variance_of_its_law():
    class WithoutVariance(dist.Normal):
        @property
        def variance(self):
            raise NotImplementedError

    statistic = ldp.mechanisms.AdditiveMechanism(ldp.noise.Laplace(2.0), sensitivity=1.0)
    assert ldp.likelihood.Privatized(WithoutVariance(3.0, 1.0), statistic).mean == 3.0


def test_samples_have_the_stated_mean_and_variance():
    n = 200_000
    law = ldp.Privatized(dist.Normal(2.5, 1.5), LAPLACE)
    z = np.asarray(jax.jit(lambda key: law.sample(key, (n,)))(jax.random.key(0)))
    mean, variance = moments_of(law)
    # five standard errors; the kurtosis of the sum is below that of Laplace noise, 6
    assert abs(z.mean() - mean) < 5 * np.sqrt(variance / n)
    assert abs(z.var() - variance) < 5 * variance * np.sqrt(5 / n)


def test_moments_broadcast_with_personal_budgets(x64):
    epsilon = np.array([0.5, 1.0, 3.0])
    law = ldp.Privatized(dist.Normal(0.0, 1.0), ldp.LaplaceMechanism(epsilon, -5, 5))
    mean, variance = moments_of(law)
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(variance, 2 * (10 / epsilon) ** 2 + 1, rtol=1e-5)  # 1 less what is clipped
    of_nodes = ldp.Privatized(dist.Normal(0.0, 1.0), ldp.LaplaceMechanism(np.full(322, 1.0), -5, 5))
    np.testing.assert_allclose(moments_of(of_nodes)[1], variance[1])


def test_moments_of_a_law_that_is_far_narrower_than_the_bounds_are_exact(x64):
    law = ldp.Privatized(
        dist.Normal(0.31234, 1e-5), ldp.mechanisms.AdditiveMechanism(ldp.noise.Gaussian(1e-5), 0.0, 1.0)
    )
    mean, variance = moments_of(law)
    np.testing.assert_allclose(mean, 0.31234, rtol=1e-14)
    np.testing.assert_allclose(variance, 2e-10, rtol=1e-9)  # of squares of distances from a rounded mean


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
    got = log_prob(dist.Poisson(2.0), constant(ldp.LaplaceMechanism(1.0, *bounds)), z)
    width = bounds[1] - bounds[0]
    np.testing.assert_allclose(got, stats.laplace(bounds[1], width).logpdf(z), rtol=1e-12)
