"""Closed forms of p(z | θ) against 60-digit arithmetic over the whole range that is claimed.

The claim: 1e-9 in log density, absolute or relative, whichever is larger, for epsilon in [0.01, 20], means up to 50
sigma outside the bounds and sigma from 1e-3 to 1e3 of the range, with finite gradients throughout.
"""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import ldpbayes as ldp
from tests.likelihood import reference
from tests.likelihood.reference import error, log_density, log_gradient

pytestmark = pytest.mark.usefixtures("x64")
CLAIM = 1e-9

LAWS = {"normal": dist.Normal, "exponential": dist.Exponential, "laplace": dist.Laplace}
NOISE = {
    "laplace": ldp.LaplaceMechanism,
    "gaussian": lambda e, lower, upper: ldp.GaussianMechanism(e, 1e-5, lower, upper),
}
PAIRS = [(law, noise) for law in LAWS for noise in NOISE if (law, noise) != ("laplace", "gaussian")]
pairs = pytest.mark.parametrize(("law", "noise"), PAIRS, ids=["-".join(pair) for pair in PAIRS])


def budgets(rng, n):
    return 10 ** rng.uniform(-2, np.log10(20), n)


def released(kind, u, lower, upper, noise):
    """z inside, at either bound, 1e-9 of the range beside it, and up to 40 noise scales outside."""
    nudge = 1e-9 * (upper - lower) * np.sign(u - 0.5)
    inside, far = lower + u * (upper - lower), 40 * u * noise
    return np.choose(kind, [inside, lower, upper, lower - far, upper + far, lower + nudge, upper + nudge])


def corners(*axes):
    return np.array(np.meshgrid(*axes, indexing="ij")).reshape(len(axes), -1)


def grid(law, noise):
    """Base parameters, mechanism and z: a random half and all combinations of extremes."""
    rng, n = np.random.default_rng(7), 300
    span = 10 ** rng.uniform(-2, 2, n)
    sigma = span * 10 ** rng.uniform(-3, 3, n)
    far = rng.uniform(0, 50, n) * sigma
    where = rng.integers(0, 3, n)
    if law != "exponential":
        lower = span * rng.normal(0, 2, n)
        loc = np.choose(where, [lower - far, lower + rng.uniform(size=n) * span, lower + span + far])
        epsilon, s, at, kind, u = corners([0.01, 1, 20], [0.01, 10, 1e4], [-50, 0, 0.5, 1, 51], range(3, 7), [0, 1])
        edge = np.select([at < 0, at > 1], [-5 - 50 * s, 5 + 50 * s], -5 + 10 * at)
        parameters = np.concatenate([loc, edge]), np.concatenate([sigma, s])
        low, high = np.full(s.shape, -5.0), np.full(s.shape, 5.0)
    else:
        lower = np.choose(where, [0 * span, far, -span * rng.uniform(0, 2, n)])
        epsilon, s, low, kind, u = corners([0.01, 1, 20], [0.01, 1, 10, 1e4], [-20, -5, 0, 5], range(3, 7), [0, 1])
        parameters, high = (1 / np.concatenate([sigma, s]),), low + 10
    lower, upper = np.concatenate([lower, low]), np.concatenate([lower + span, high])
    epsilon = np.concatenate([budgets(rng, n), epsilon])
    if law == "exponential":  # the rate at, and ever nearer to, that of the Laplace noise
        parameters[0][:60] = (epsilon / (upper - lower))[:60] * np.repeat(
            1 + np.array([0, 1e-15, -1e-12, 1e-9, -1e-5]), 12
        )
    mechanism = NOISE[noise](epsilon, lower, upper)
    kind = np.concatenate([rng.integers(0, 7, n), kind]).astype(int)
    u = np.concatenate([rng.uniform(size=n), u])
    return parameters, mechanism, released(kind, u, lower, upper, mechanism.scale)


@functools.cache
def compiled(law):
    def total(parameters, mechanism, z):
        log_prob = ldp.Privatized(LAWS[law](*parameters), mechanism).log_prob(z)
        return log_prob.sum(), log_prob

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))


@functools.cache
def evaluated(law, noise):
    """The grid as the reference's arguments, with the value and the gradients in them (noise scale before z)."""
    with jax.enable_x64(True):
        parameters, mechanism, z = grid(law, noise)
        (_, value), (by_parameters, by_mechanism, by_z) = compiled(law)(parameters, mechanism, z)
    # a Laplace mechanism knows ε, a Gaussian one its scale
    by_epsilon = by_mechanism.epsilon * -mechanism.epsilon / mechanism.scale
    by_noise = by_epsilon if noise == "laplace" else by_mechanism.scale
    arguments = (*parameters, mechanism.lower, mechanism.upper, mechanism.scale, z)
    return arguments, np.asarray(value), [np.asarray(g) for g in (*by_parameters, by_noise, by_z)]


@pairs
def test_the_log_density_agrees_with_60_digits_to_1e_9_everywhere(law, noise):
    arguments, value, _ = evaluated(law, noise)
    assert error(value, log_density(getattr(reference, f"{law}_{noise}"), *arguments)).max() < CLAIM


@pairs
def test_gradients_are_finite_everywhere(law, noise):
    _, _, gradients = evaluated(law, noise)
    assert all(np.isfinite(g).all() for g in gradients)


@pairs
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_reference(law, noise, every):
    """At every seventh point (no axis of the grid has a multiple of seven values), and at all of them.

    Also where θ sits on a clip bound or on the removable singularity; in z not at the bounds, which are kinks.
    """
    arguments, _, gradients = evaluated(law, noise)
    arguments, gradients = ([array[::every] for array in arrays] for arrays in (arguments, gradients))
    k = len(gradients) - 2
    *_, lower, upper, scale, z = arguments
    expected = log_gradient(getattr(reference, f"{law}_{noise}"), *arguments)
    expected = [*expected[:k], expected[k + 2], expected[k + 3]]
    # one unit of each argument: σ for the normal's mean and scale, the rate itself, the noise scale for noise and z
    units = [*(arguments[k - 1] for _ in range(k)), scale, scale]
    atoms = [np.zeros(z.shape, bool)] * (k + 1) + [(z == lower) | (z == upper)]
    for actual, wanted, unit, kink in zip(gradients, expected, units, atoms, strict=True):
        # a derivative of a value that is good to 1e-9 of its size, per unit of the argument
        assert error(actual * unit, wanted * unit)[~kink].max() < CLAIM


def normal_density(loc, scale, x):
    return mp.npdf(x, loc, scale)


def laplace_density(loc, scale, x):
    return mp.exp(-abs(x - loc) / scale) / (2 * scale)


def exponential_density(rate, x):
    return rate * mp.exp(-rate * x)


@pairs
def test_the_reference_is_the_definition(law, noise):
    rng = np.random.default_rng(3)
    noise_density = getattr(reference, f"{noise}_noise")
    with mp.workdps(30):
        for lower in (-2.0, 0.0, 1.0) if law == "exponential" else (-2.0, 1.0):
            upper, scale = mp.mpf(lower + 4), mp.mpf(rng.uniform(0.5, 4))
            bounds = (mp.mpf(lower), upper)
            cuts = ()
            if law != "exponential":
                parameters, support = [mp.mpf(rng.uniform(-3, 6)), mp.mpf(rng.uniform(0.5, 3))], (-np.inf, np.inf)
                density = functools.partial(normal_density if law == "normal" else laplace_density, *parameters)
                atoms = getattr(reference, f"{law}_atoms")(*parameters, *bounds)
                cuts = parameters[:1]
            else:
                parameters, support = [mp.mpf(0.7)], (0, np.inf)
                density = functools.partial(exponential_density, *parameters)
                atoms = reference.exponential_atoms(*parameters, *bounds)
            for z in map(mp.mpf, (lower - 5, lower + 0.3, lower + 7)):
                integral = reference.marginal_by_quadrature(
                    density, atoms, noise_density, *bounds, scale, z, cuts, support
                )
                closed = getattr(reference, f"{law}_{noise}")(*parameters, *bounds, scale, z)
                assert abs(closed / integral - 1) < 1e-20  # tanh-sinh quadrature of analytic pieces at 30 digits


def test_nothing_happens_where_the_exponential_rate_meets_the_noise_rate():
    arguments, value, (by_rate, *_) = evaluated("exponential", "laplace")
    rate, _, _, scale, _ = arguments
    singular = np.abs(rate * scale - 1) < 1e-4
    assert singular.sum() >= 60
    arguments = [a[singular] for a in arguments]
    assert error(value[singular], log_density(reference.exponential_laplace, *arguments)).max() < CLAIM
    expected = log_gradient(reference.exponential_laplace, *arguments)[0] * rate[singular]
    assert error((by_rate * rate)[singular], expected).max() < CLAIM


@pairs
def test_densities_integrate_to_one(law, noise):
    size = len(evaluated(law, noise)[1])
    parameters = tuple(np.full(size, each) for each in ((0.6,) if law == "exponential" else (0.4, 0.8)))
    t, w = np.polynomial.legendre.leggauss(40)
    for epsilon in (0.1, 5.0):
        mechanism = NOISE[noise](*(np.full(size, each) for each in (epsilon, -1.0, 2.0)))
        reach = 40 * mechanism.scale[0]  # beyond it lies less than e^-40
        outside = np.linspace(0, reach, 41)  # pieces of at most one noise scale between the kinks: exact to rounding
        edges = np.concatenate([-1 - outside[:0:-1], np.linspace(-1, 2, 25), 2 + outside[1:]])
        half = np.diff(edges)[:, None] / 2
        z = edges[:-1, None] + half * (1 + t)
        parts = np.resize(z, (-(-z.size // size), size))  # of the grid's size, for which all has been compiled
        log_density = np.concatenate([compiled(law)(parameters, mechanism, part)[0][1] for part in parts])
        density = np.exp(log_density[: z.size]).reshape(z.shape)
        assert abs(np.sum(density * w * half) - 1) < 1e-11  # 4000 terms


def test_an_adaptive_integrator_in_double_precision_agrees():
    """One cross-check that shares nothing with the reference."""
    mechanism, z = ldp.LaplaceMechanism(1.5, -1.0, 2.0), 0.7
    law, kernel = stats.norm(0.4, 0.8), stats.laplace(0, 2.0)
    inside, _ = integrate.quad(lambda x: law.pdf(x) * kernel.pdf(z - x), -1, 2, points=[z], epsabs=1e-13)
    total = inside + law.cdf(-1.0) * kernel.pdf(z + 1) + law.sf(2.0) * kernel.pdf(z - 2)
    value = jax.jit(ldp.Privatized(dist.Normal(0.4, 0.8), mechanism).log_prob)(z)
    assert abs(value - np.log(total)) < 1e-12  # quad: 1e-13


@pytest.mark.parametrize(
    ("law", "noise"),
    [pytest.param(*pair, id="-".join(pair), marks=() if i == 0 else pytest.mark.slow) for i, pair in enumerate(PAIRS)],
)
def test_single_precision_is_finite_everywhere_and_good_to_1e_4_at_moderate_points(law, noise):
    extreme = jax.tree.map(np.float32, grid(law, noise))
    rng, shape = np.random.default_rng(11), extreme[2].shape
    parameters = tuple(np.float32(rng.uniform(0.3, 4, (len(extreme[0]), *shape))))
    mechanism = jax.tree.map(np.float32, NOISE[noise](np.full(shape, 1.0), np.full(shape, -5.0), np.full(shape, 5.0)))
    z = np.float32(rng.normal(0, 15, shape))
    with jax.enable_x64(False):
        (_, value), (by_parameters, _, by_z) = compiled(law)(*extreme)
        assert value.dtype == np.float32
        assert np.isfinite(value).all()
        assert all(np.isfinite(g).all() for g in (*by_parameters, by_z))
        (_, value), _ = compiled(law)(parameters, mechanism, z)
    expected = log_density(getattr(reference, f"{law}_{noise}"), *parameters, -5.0, 5.0, np.float32(mechanism.scale), z)
    assert error(value, expected).max() < 1e-4


# --- randomized response --------------------------------------------------------------------------------------------


def response(masses, epsilon, z):
    """Σ_x θ_x p(z | x) with p(x | x) = e^ε q and q = 1/(e^ε + k − 1) for every other answer."""
    q = 1 / (mp.exp(epsilon) + len(masses) - 1)
    return mp.fsum(m * (q * mp.exp(epsilon) if x == z else q) for x, m in enumerate(masses)) / mp.fsum(masses)


def bernoulli_logits(logit):
    return [1 / (1 + mp.exp(logit)), 1 / (1 + mp.exp(-logit))]


EXTREME = np.array([1e-300, 1e-15, 1e-6, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - 1e-12])
LOGITS = np.array([-1e5, -800.0, -40.0, -1.0, 0.0, 2.0, 40.0, 800.0, 1e5])
CATEGORICAL = np.array([[0.2, 0.3, 0.5], [1e-300, 1e-12, 1.0], [1 - 2e-9, 1e-9, 1e-9], [0.5, 0.5, 1e-30]])
CATEGORICAL_LOGITS = np.array([[0.0, 1.0, -1.0], [-800.0, 0.0, 30.0], [500.0, 499.0, -500.0], [-1e4, -1e4, -1e4]])
RESPONSES = {
    "bernoulli-probs": (dist.BernoulliProbs, EXTREME, lambda p: [1 - p, p]),
    "bernoulli-logits": (dist.BernoulliLogits, LOGITS, bernoulli_logits),
    "categorical-probs": (dist.CategoricalProbs, CATEGORICAL, list),
    "categorical-logits": (dist.CategoricalLogits, CATEGORICAL_LOGITS, lambda logits: [mp.exp(x) for x in logits]),
}


@pytest.mark.parametrize(("law", "values", "masses"), RESPONSES.values(), ids=RESPONSES.keys())
def test_randomized_response_agrees_with_its_definition_at_extreme_probabilities(law, values, masses):
    k = 2 if values.ndim == 1 else 3
    epsilon, which, z = (
        a.astype(int) if i else a for i, a in enumerate(corners([0.01, 1, 20], range(len(values)), range(k)))
    )

    def total(parameter, epsilon):
        log_prob = ldp.Privatized(law(parameter), ldp.RandomizedResponse(epsilon, k)).log_prob(z)
        return log_prob.sum(), log_prob

    (_, value), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(values[which], epsilon)
    with mp.workdps(reference.DIGITS):
        expected = []
        for row, e, answer in zip(values[which].tolist(), epsilon.tolist(), z.tolist(), strict=True):
            exact = mp.mpf(row) if k == 2 else [mp.mpf(x) for x in row]
            expected.append(float(mp.log(response(masses(exact), mp.mpf(e), answer))))
    assert error(value, np.array(expected)).max() < CLAIM
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("z", [0, 1])
def test_the_gradients_of_randomized_response_are_those_of_its_definition(z):
    p, epsilon = np.array([0.02, 0.3, 0.9]), np.array([0.1, 1.0, 8.0])

    def total(p, epsilon):
        return ldp.Privatized(dist.BernoulliProbs(p), ldp.RandomizedResponse(epsilon)).log_prob(z).sum()

    expected = log_gradient(lambda p, e: response([1 - p, p], e, z), p, epsilon)
    for actual, wanted in zip(jax.jit(jax.grad(total, argnums=(0, 1)))(p, epsilon), expected, strict=True):
        assert error(actual, wanted).max() < CLAIM


def test_a_subclass_and_an_expanded_base_use_the_closed_form():
    class MyNormal(dist.Normal):
        pass

    mechanism, z = ldp.LaplaceMechanism(1.0, -1.0, 1.0), np.linspace(-3, 3, 5)
    laws = dist.Normal(0.3, 0.7), MyNormal(0.3, 0.7), dist.Normal(0.3, 0.7).expand((5,))
    methods = "closed_form", "auto", "auto"
    forms = [ldp.Privatized(law, mechanism, method=way).log_prob for law, way in zip(laws, methods, strict=True)]
    # one program for each, so that equal operations round equally
    expected, *others = (jax.jit(form)(z) for form in forms)
    for other in others:
        np.testing.assert_array_equal(other, expected)


def test_second_derivatives_of_laplace_records_know_of_the_kink():
    mechanism = ldp.LaplaceMechanism(2.0, -4, 4)
    z = np.array([-9.0, -3.9, -0.2, 0.3, 1.0, 7.0])

    def total(theta):
        return jnp.sum(ldp.Privatized(dist.Laplace(theta[0], theta[1]), mechanism).log_prob(z))

    derivatives = jax.jit(jax.jacfwd(lambda at: (jax.grad(total)(at),) * 2, has_aux=True))
    at, step = np.array([0.31, 0.8]), 1e-5
    sides = [[derivatives(at + sign * step * unit)[1] for sign in (1, -1)] for unit in np.eye(2)]
    # central differences of slopes of size 1, good to 1e-15, are off by 1e-15 / 1e-5 and by the square of the step
    differences = [(up - down) / (2 * step) for up, down in sides]
    np.testing.assert_allclose(derivatives(at)[0], np.stack(differences), atol=1e-8)
