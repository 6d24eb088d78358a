"""Clipped counts under continuous noise against sums in 60 digits, counts under discrete noise against enumeration.

The first claim, as for the closed forms: 1e-9 in log density, absolute or relative, whichever is larger, with finite
gradients, from tiny to huge means and concentrations and for z up to 40 noise scales outside the bounds. The second:
1e-10 in log probability, or 1e-13 of it where it is large, and as much in its derivatives in the parameters, for rates
of 0.1 to 1e5 wherever the released value lies.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import nn
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Laplace
from tests.likelihood import reference
from tests.likelihood.reference import error, log_density, log_gradient
from tests.programs import call, constant

pytestmark = pytest.mark.usefixtures("x64")
CLAIM = 1e-9
N = 100


def power(rng, low, high):
    return 10 ** rng.uniform(low, high, N)


def probability(rng, low):
    """Close to 0 for one half and to 1 for the other."""
    p = power(rng, low, -0.3)
    return np.where(np.arange(N) % 2, p, 1 - p)


def sigmoid(logit):
    return 1 / (1 + mp.exp(-logit))


# name: distribution, parameters, the law in terms of the parameters (and inflated zeros), unit of each parameter
FAMILIES = {
    "poisson": (dist.Poisson, lambda rng: (power(rng, -6, 6),), reference.poisson),
    "geometric": (dist.GeometricProbs, lambda rng: (probability(rng, -10),), reference.geometric),
    "geometric-logits": (
        dist.GeometricLogits,
        lambda rng: (rng.uniform(-25, 25, N),),
        lambda logit: reference.geometric(sigmoid(logit)),
    ),
    "negative-binomial-2": (
        dist.NegativeBinomial2,
        lambda rng: (power(rng, -4, 6), power(rng, -8, 8)),
        reference.negative_binomial,
    ),
    "negative-binomial-probs": (
        dist.NegativeBinomialProbs,
        lambda rng: (power(rng, -3, 6), probability(rng, -8)),
        lambda count, p: reference.negative_binomial(count * p / (1 - p), count),
    ),
    "negative-binomial-logits": (
        dist.NegativeBinomialLogits,
        lambda rng: (power(rng, -3, 6), rng.uniform(-20, 20, N)),
        lambda count, logit: reference.negative_binomial(count * mp.exp(logit), count),
    ),
    "zero-inflated-poisson": (
        dist.ZeroInflatedPoisson,
        lambda rng: (probability(rng, -8), power(rng, -6, 6)),
        lambda gate, rate: reference.poisson(rate),
    ),
    "binomial": (
        lambda p: dist.BinomialProbs(p, 50),
        lambda rng: (probability(rng, -8),),
        lambda p: reference.binomial(50, p),
    ),
    "binomial-logits": (
        lambda logit: dist.BinomialLogits(logit, 50),
        lambda rng: (rng.uniform(-25, 25, N),),
        lambda logit: reference.binomial(50, sigmoid(logit)),
    ),
}
PROBABILITIES = {
    "geometric": (0,),
    "negative-binomial-probs": (1,),
    "zero-inflated-poisson": (0,),
    "binomial": (0,),
}
SETTINGS = {
    "laplace-0-20": ("laplace", 0.0, 20.0),
    "gaussian-2-15": ("gaussian", 2.0, 15.0),
    "laplace-0-200": ("laplace", 0.0, 200.0),
    "gaussian-personal-bounds": ("gaussian", np.resize([0.5, -3.0, 0.0], N), np.resize([10.3, 4.0, 20.0], N)),
}


def released(rng, lower, upper, noise):
    """z inside, at either bound, and up to exactly 40 noise scales outside."""
    u = rng.uniform(size=N)
    far = 40 * noise * np.where(rng.uniform(size=N) < 0.3, 1.0, u)
    values = [lower + u * (upper - lower), lower + 0 * u, upper + 0 * u, lower - far, upper + far]
    return np.choose(rng.integers(0, 5, N), values)


# two settings for another parametrisation of the same law, the widest bounds for the laws with a tail integral
SELECTED = [
    (family, setting)
    for family in FAMILIES
    for setting in SETTINGS
    if (setting != "laplace-0-200" or family in ("poisson", "negative-binomial-2"))
    and (setting != "gaussian-2-15" or not family.endswith(("logits", "probs")))
]


# every setting, and every parametrisation that is computed in its own way; all others are slow
SHORT = {
    "poisson": "gaussian-personal-bounds",
    "geometric-logits": "laplace-0-20",
    "negative-binomial-2": "laplace-0-200",
    "negative-binomial-probs": "gaussian-personal-bounds",
    "negative-binomial-logits": "laplace-0-20",
    "zero-inflated-poisson": "gaussian-2-15",
}


@pytest.mark.parametrize(
    ("family", "setting"),
    [pytest.param(*case, marks=() if case[1] == SHORT.get(case[0]) else pytest.mark.slow) for case in SELECTED],
)
def test_counts_agree_with_60_digits_and_their_gradients_do(family, setting):
    distribution, draw, law = FAMILIES[family]
    noise, lower, upper = SETTINGS[setting]
    rng = np.random.default_rng([list(FAMILIES).index(family), list(SETTINGS).index(setting)])
    parameters, epsilon = draw(rng), 10 ** rng.uniform(-2, np.log10(20), N)
    epsilon[:20] = [0.01, 20] * 10
    if noise == "laplace":
        mechanism, varied = ldp.LaplaceMechanism(epsilon, lower, upper), "epsilon"
    else:
        mechanism, varied = ldp.GaussianMechanism(epsilon, 1e-5, lower, upper), "scale"
    z = released(rng, lower, upper, mechanism.scale)
    leaves, tree = jax.tree.flatten(mechanism)
    position = next(i for i, leaf in enumerate(leaves) if leaf is getattr(mechanism, varied))

    def total(parameters, value, z):
        varied = jax.tree.unflatten(tree, [*leaves[:position], value, *leaves[position + 1 :]])
        log_prob = ldp.Privatized(distribution(*parameters), varied).log_prob(z)
        return log_prob.sum(), log_prob

    compiled = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))
    (_, value), (by_parameters, by_noise, by_z) = compiled(parameters, leaves[position], z)

    def density(*arguments):
        *parameters, lower, upper, scale, z = arguments
        zeros = parameters[0] if family == "zero-inflated-poisson" else 0
        kernel = getattr(reference, f"{noise}_noise")
        return reference.count_marginal(law(*parameters), lower, upper, kernel, scale, z, zeros)

    arguments = np.broadcast_arrays(*parameters, lower, upper, mechanism.scale, z)
    assert error(value, log_density(density, *arguments)).max() < CLAIM
    if noise == "laplace":
        by_noise = by_noise * -mechanism.epsilon / mechanism.scale
    gradients = [np.asarray(g) for g in (*by_parameters, by_noise, by_z)]
    assert all(np.isfinite(g).all() for g in gradients)

    some = np.flatnonzero((z != lower) & (z != upper) & (z != np.round(z)))[:12]  # z at a value of x is a kink
    k = len(parameters)
    expected = log_gradient(density, *(a[some] for a in arguments))
    expected = [*expected[:k], expected[k + 2], expected[k + 3]]
    units = [np.minimum(p, 1 - p) if i in PROBABILITIES.get(family, ()) else p for i, p in enumerate(parameters)]
    units = [*(np.ones(N) if u.min() < 0 else u for u in units), mechanism.scale, mechanism.scale]
    for actual, wanted, unit in zip(gradients, expected, units, strict=True):
        # a derivative of a value that is good to 1e-9 of its size, per unit of the argument
        assert error((actual * unit)[some], wanted * unit[some]).max() < CLAIM


@pytest.mark.parametrize("family", ["poisson", pytest.param("negative-binomial-2", marks=pytest.mark.slow)])
def test_the_mass_above_the_upper_bound_keeps_its_relative_accuracy(family):
    """With epsilon = 20 and z beyond the bound, what is clipped there weighs e^20 times what lies below."""
    distribution, _, law = FAMILIES[family]
    parameters = (np.geomspace(1e-6, 10, 30),) + ((np.geomspace(1e-8, 1e8, 30),) if family != "poisson" else ())
    mechanism, z = ldp.LaplaceMechanism(20.0, 0.0, 20.0), np.full(30, 25.0)
    value = jax.jit(lambda p: ldp.Privatized(distribution(*p), mechanism).log_prob(z))(parameters)

    def density(*arguments):
        *parameters, lower, upper, scale, z = arguments
        return reference.count_marginal(law(*parameters), lower, upper, reference.laplace_noise, scale, z)

    assert error(value, log_density(density, *parameters, 0.0, 20.0, mechanism.scale, z)).max() < CLAIM


def test_a_count_wholly_below_or_above_the_bounds_is_one_atom():
    mechanism = ldp.LaplaceMechanism(1.0, 3.5, 9.0)
    z = np.array([2.0, 5.0, 11.0])
    log_prob = jax.jit(lambda p: ldp.Privatized(dist.BinomialProbs(p, 30), mechanism).log_prob(z))
    for probability, atom in ((1e-12, 3.5), (1 - 1e-12, 9.0)):
        value = log_prob(probability)
        # all but 30e-12 of the mass lies on one side, and ε = 1 lets the rest weigh at most e times as much
        np.testing.assert_allclose(value, call("log_prob", mechanism, z, atom), atol=1e-10)


def test_discrete_densities_integrate_to_one():
    mechanism = ldp.LaplaceMechanism(2.0, 0.0, 12.0)
    t, w = np.polynomial.legendre.leggauss(20)
    edges = np.concatenate([np.arange(-240.0, 0, 6), np.arange(0.0, 12), np.arange(12.0, 253, 6)])  # kinks at integers
    half = np.diff(edges)[:, None] / 2
    law = ldp.Privatized(dist.NegativeBinomial2(4.0, 1.5), mechanism)
    density = np.exp(jax.jit(law.log_prob)(edges[:-1, None] + half * (1 + t)))
    assert abs(np.sum(density * w * half) - 1) < 1e-12  # beyond 40 noise scales lies e^-40


def test_single_precision_counts_are_finite_and_good_to_1e_4():
    rng = np.random.default_rng(5)
    mean, concentration = rng.uniform(0.5, 30, 50).astype(np.float32), rng.uniform(0.5, 30, 50).astype(np.float32)
    z = rng.uniform(-10, 30, 50).astype(np.float32)
    mechanism = ldp.LaplaceMechanism(1.0, 0.0, 20.0)

    def density(*arguments):
        return reference.count_marginal(
            reference.negative_binomial(*arguments[:2]),
            mp.mpf(0),
            mp.mpf(20),
            reference.laplace_noise,
            mp.mpf(20),
            arguments[2],
        )

    with jax.enable_x64(False):
        law = ldp.Privatized(dist.NegativeBinomial2(mean, concentration), mechanism)
        value = jax.jit(law.log_prob)(z)
    assert value.dtype == np.float32
    assert error(value, log_density(density, mean, concentration, z)).max() < 1e-4


# --- counts under discrete noise --------------------------------------------------------------------------------------

NOISES = [pytest.param(DiscreteLaplace, id="laplace"), pytest.param(DiscreteGaussian, id="gaussian")]


def statistic(noise):
    return ldp.mechanisms.AdditiveMechanism(noise, sensitivity=1)


def noisy_count(base, mechanism, z):
    """Log probability, also of values that are not released, which have none."""
    return ldp.Privatized(base, mechanism, validate_args=False).log_prob(z)


def enumerated(law, scale, z, first, ratio, least):
    """Log Σ p(k) P(noise = z − k), and the posterior mean of k, from p(0) and p(k)/p(k − 1), up to `least` at least."""
    s, root = mp.mpf(scale), mp.mpf(1)
    if law is DiscreteLaplace:
        weight, fall = mp.tanh(1 / (2 * s)) * mp.exp(-abs(z) / s), mp.exp(-1 / s)
    else:
        theta = mp.jtheta(3, 0, mp.exp(-1 / (2 * s**2))) if s < 20 else s * mp.sqrt(2 * mp.pi)
        weight, fall = mp.exp(-(mp.mpf(z) ** 2) / (2 * s**2)) / theta, mp.exp(-1 / s**2)
        root = mp.exp((2 * mp.mpf(z) - 1) / (2 * s**2))
    mass, total, moment, largest, k = first, mp.mpf(0), mp.mpf(0), mp.mpf(0), 0
    while True:
        term = mass * weight
        total, moment, largest = total + term, moment + k * term, max(largest, term)
        if k > least and term < largest * mp.mpf(10) ** -25:
            return mp.log(total), moment / total
        k += 1
        mass *= ratio(k)
        if law is DiscreteLaplace:
            weight *= fall if k > z else 1 / fall
        else:
            weight *= root
            root *= fall


def assert_close(got, want, scale=1.0):
    assert np.all(np.abs(np.asarray(got, float) - want) < 1e-10 * scale + 1e-13 * np.abs(want)), (got, want)


POISSON = [
    (0.1, 0.5, -50),
    (0.1, 36.0, 40),
    (1.0, 0.5, 0),
    (1.0, 1000.0, 1234),
    (30.0, 0.5, 25),
    (30.0, 36.0, 400),
    (1234.0, 36.0, 1234),
    (1200.0, 1000.0, 5000),
    (1300.0, 0.5, -3),
    (20_000.0, 36.0, 1234),  # a window around z would miss what counts
    (100.0, 36.0, 3000),
]


def compiled(law, base):
    """Log probability and its derivatives in the base's parameters, as a function of (scale, z, parameters).

    Shapes depend on the scale of Gaussian noise only, so that under Laplace noise one program serves all scales.
    """

    @functools.partial(jax.jit, static_argnums=() if law is DiscreteLaplace else 0)
    def function(scale, z, parameters):
        return jax.value_and_grad(lambda p: noisy_count(base(*p), statistic(law(scale)), z))(parameters)

    return function


@pytest.mark.parametrize(
    "law",
    [
        pytest.param(DiscreteLaplace, id="laplace", marks=pytest.mark.slow),
        pytest.param(DiscreteGaussian, id="gaussian"),
    ],
)
def test_a_noisy_poisson_count_is_the_sum_over_all_counts(law):
    ours = compiled(law, dist.Poisson)
    for rate, scale, z in POISSON:
        with mp.workdps(34):
            r = mp.mpf(rate)
            log_total, mean = enumerated(law, scale, z, mp.exp(-r), lambda k, r=r: r / k, max(z, rate))
            want = float(log_total), float(mean / r - 1)
        value, (slope,) = ours(scale, float(z), (rate,))
        assert_close(value, want[0])
        assert_close(slope, want[1], 1 / np.sqrt(rate))


@pytest.mark.slow
@pytest.mark.parametrize("law", NOISES)
@pytest.mark.parametrize("z", [-50, 1234, 100_000])
def test_a_noisy_poisson_count_of_a_large_rate_is_the_sum_too(law, z):
    rate = 1e5
    with mp.workdps(34):
        log_total, mean = enumerated(law, 36.0, z, mp.exp(-rate), lambda k: rate / mp.mpf(k), max(z, rate))
        want = float(log_total), float(mean / rate - 1)
    value, (slope,) = compiled(law, dist.Poisson)(36.0, float(z), (rate,))
    assert_close(value, want[0])
    assert_close(slope, want[1], 1 / np.sqrt(rate))


NEGATIVE_BINOMIAL = [(1e-6, 0.9), (1e-3, 0.99), (0.3, 0.5), (1.0, 0.97), (2.5, 0.9), (30.0, 0.9), (1e4, 1e-3)]


@pytest.mark.parametrize(
    ("places", "law"),
    [
        pytest.param(places, law, id=f"{places}-{name}", marks=() if i == j == 0 else pytest.mark.slow)
        for i, places in enumerate([(-5, 150), (0, 3)])
        for j, (name, law) in enumerate([("laplace", DiscreteLaplace), ("gaussian", DiscreteGaussian)])
    ],
)
def test_a_noisy_negative_binomial_count_is_the_sum_over_all_counts(places, law):
    ours = compiled(law, dist.NegativeBinomialProbs)
    for (alpha, q), scale, z in itertools.product(NEGATIVE_BINOMIAL, (0.5, 20.0), places):
        with mp.workdps(34):
            a, exact = mp.mpf(alpha), mp.mpf(q)

            def log_total(a, scale=scale, z=z, q=exact):
                least = max(z, a * q / (1 - q))
                return enumerated(law, scale, z, (1 - q) ** a, lambda k: (a + k - 1) / k * q, least)

            value, mean = log_total(a)
            step = a * mp.mpf(10) ** -10  # central: an error of 1e-20, and of 1e-24 by rounding
            by_alpha = (log_total(a + step)[0] - log_total(a - step)[0]) / (2 * step)
            want = float(value), float(by_alpha), float(mean / exact - a / (1 - exact))
        got, (by_alpha, by_q) = ours(scale, float(z), (alpha, q))
        assert_close(got, want[0])
        assert_close(by_alpha, want[1], 1 / min(alpha, 1.0))
        assert_close(by_q, want[2], 1 / q)


@pytest.mark.slow
def test_the_posterior_of_a_rate_from_one_noisy_count_is_that_of_enumeration():
    """Gamma(2, 0.01) prior, z = 1234, scale 36: on a grid of rates, against all counts up to 4000 by SciPy."""
    z, k, rates = 1234, np.arange(4001), np.linspace(600, 1900, 131)
    prior = stats.gamma(2, scale=100).logpdf(rates)
    masses = stats.poisson(rates[:, None]).pmf(k)
    for noise in (DiscreteLaplace(36.0), DiscreteGaussian(36.0)):
        kernel = np.exp(np.asarray(noise.log_prob((z - k[:, None]).astype(float))))
        enumeration = masses @ kernel * np.exp(prior)
        log_prob = jax.jit(lambda rates, noise=noise: noisy_count(dist.Poisson(rates), statistic(noise), z))
        ours = np.exp(log_prob(rates) + prior)
        got, want = (np.asarray(p) / np.sum(p) for p in (ours, enumeration))
        np.testing.assert_allclose(got, want, atol=1e-10 * want.max())
        assert np.sum(got * rates) == pytest.approx(np.sum(want * rates), rel=1e-10)


K = np.arange(300)
MASSES = {  # the last: the noise by default, where the law is not the case of another or taken by another test
    "poisson": (lambda: dist.Poisson(7.0), stats.poisson(7).pmf(K), None),
    "negative-binomial": (lambda: dist.NegativeBinomial2(6.0, 0.7), stats.nbinom(0.7, 0.7 / 6.7).pmf(K), None),
    "geometric": (lambda: dist.Geometric(0.2), stats.geom(0.2, loc=-1).pmf(K), "laplace"),
    "geometric-logits": (lambda: dist.Geometric(logits=-1.0), stats.geom(1 / (1 + np.e), loc=-1).pmf(K), None),
    "zero-inflated-poisson": (
        lambda: dist.ZeroInflatedPoisson(0.2, 7.0),
        0.2 * (K == 0) + 0.8 * stats.poisson(7).pmf(K),
        "laplace",
    ),
    "binomial": (lambda: dist.Binomial(30, 0.3), stats.binom(30, 0.3).pmf(K), "gaussian"),
    "bernoulli": (lambda: dist.Bernoulli(0.3), stats.bernoulli(0.3).pmf(K), None),
    "uniform": (lambda: dist.DiscreteUniform(2, 9), ((K >= 2) & (K <= 9)) / 8, None),
}


@pytest.mark.parametrize(
    ("law", "masses", "noise"),
    [
        pytest.param(*case, noise, id=f"{law}-{name}", marks=() if name == default else pytest.mark.slow)
        for law, (*case, default) in MASSES.items()
        for name, noise in [("laplace", DiscreteLaplace(2.5)), ("gaussian", DiscreteGaussian(1.7))]
    ],
)
def test_every_count_is_summed_with_and_without_clipping(law, masses, noise):
    z, law = np.array([-3, 0, 5, 20]), law()
    mechanisms = statistic(noise), ldp.mechanisms.AdditiveMechanism(noise, 2, 10)
    log_masses = jax.jit(lambda: [ldp.Privatized(law, mechanism).log_prob(z) for mechanism in mechanisms])()
    for mechanism, log_mass in zip(mechanisms, log_masses, strict=True):
        places = np.clip(K, 2, 10) if mechanism.bounded else K
        kernel = np.exp(call("log_prob", constant(noise), (z - places[:, None])[..., None].astype(float)))
        np.testing.assert_allclose(log_mass, np.log(masses @ kernel), rtol=1e-12)


@pytest.mark.slow
def test_bases_and_values_broadcast_and_values_that_are_no_integers_have_no_mass():
    rates, z = jnp.array([1.0, 2.0, 30.0]), jnp.array([3.0, 50.0, 20.0])
    for noise in (DiscreteLaplace(2.0), DiscreteGaussian(2.0), DiscreteLaplace(np.array([1.0, 2.0, 3.0]))):
        mechanism = statistic(noise)
        table = noisy_count(dist.Poisson(rates), mechanism, z[:, None])
        assert table.shape == (3, 3)
        np.testing.assert_allclose(noisy_count(dist.Poisson(rates), mechanism, z), np.diag(table), rtol=1e-14)
        np.testing.assert_allclose(noisy_count(dist.Poisson(rates), mechanism, 50.0), table[1], rtol=1e-14)
        trials = noisy_count(dist.Binomial(np.array([3, 4, 60]), 0.3), mechanism, z[:, None])
        assert trials.shape == (3, 3)
        assert noisy_count(dist.Poisson(2.0), mechanism, jnp.array([0.5, 1.0, 2.0]))[0] == -np.inf


def test_chunks_of_many_values_are_each_as_by_itself():
    mechanism, z = statistic(DiscreteGaussian(3.0)), np.random.default_rng(0).poisson(50, 40_000) - 20
    values, counts = np.unique(z, return_counts=True)

    @jax.jit
    def both(rate, z, values, counts):
        function = jax.value_and_grad(lambda r, z, n: noisy_count(dist.Poisson(r), mechanism, z) @ n)
        return function(rate, z, jnp.ones(len(z))), function(rate, values, counts)

    # the rounding of a sum of 40,000
    np.testing.assert_allclose(*both(40.0, z, values, 1.0 * counts), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("law", NOISES)
def test_gradients_are_finite_everywhere(law):
    z = jnp.array([-50.0, 0.0, 1.0, 1234.0, 1e5])
    rates = jnp.array([1e-290, 1e-100, 1e-10, 1e-3, 1.0, 50.0, 1e5, 1e15, 1e100])
    shapes = jnp.array([1e-100, 1e-10, 1e-3, 1.0, 30.0, 1e10])[:, None, None]
    logits = jnp.array([-500.0, -50.0, -3.0, 0.0, 3.0, 30.0, 500.0])[:, None]

    @functools.partial(jax.jit, static_argnums=() if law is DiscreteLaplace else 0)
    def gradients(scale):
        def total(rate, shape, logit):
            mechanism, negative_binomial = statistic(law(scale)), dist.NegativeBinomialLogits(shape, logit)
            poisson = noisy_count(dist.Poisson(rate), mechanism, z[:, None])
            return jnp.sum(poisson) + jnp.sum(noisy_count(negative_binomial, mechanism, z))

        return jax.grad(total, argnums=(0, 1, 2))(rates, shapes, logits)

    for scale in (1e-3, 36.0):
        assert all(np.all(np.isfinite(gradient)) for gradient in gradients(scale))


def test_a_scale_may_be_traced_where_no_shape_depends_on_it():
    def log_prob(noise):
        return jax.jit(lambda s, z: noisy_count(dist.Poisson(3.0), statistic(noise(s)), z))(2.0, 4)

    want = jax.jit(lambda z: noisy_count(dist.Poisson(3.0), statistic(DiscreteLaplace(2.0)), z))(4)
    assert log_prob(DiscreteLaplace) == pytest.approx(float(want), rel=1e-14)
    with pytest.raises(ValueError, match="scale that JAX does not trace"):
        log_prob(DiscreteGaussian)


def test_sums_that_are_not_known_are_refused():
    mixture = dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), dist.Poisson(jnp.array([1.0, 9.0])))
    with pytest.raises(ValueError, match="the sum over an unbounded MixtureSameFamily is not available"):
        inflated = dist.ZeroInflatedDistribution(mixture, gate=jnp.array(0.1))
        jax.eval_shape(lambda z: noisy_count(inflated, statistic(DiscreteLaplace(2.0)), z), 4)
    with pytest.raises(ValueError, match="needs a support and bounds that JAX does not trace"):
        jax.jit(lambda n: noisy_count(dist.Binomial(n, 0.5), statistic(DiscreteLaplace(2.0)), 4))(3)
    with pytest.raises(ValueError, match=r"Binomial.* has 16777218 values, but a sum can have at most 16777216"):
        ldp.likelihood.Privatized(dist.Binomial(2**24 + 1, 0.5), statistic(DiscreteLaplace(2.0)))


@pytest.mark.parametrize(("law", "trials"), [(dist.BernoulliLogits, 1), (lambda eta: dist.Binomial(5, logits=eta), 5)])
def test_derivatives_at_log_odds_of_0_are_those_of_the_sum(law, trials):
    """Where NumPyro's own are wrong, and many fits start: Σ_k C(n, k) p(z | k) σ^k (1 − σ)^(n − k), by hand."""
    mechanism = ldp.LaplaceMechanism(1.0, 0, trials)
    k, z = np.arange(trials + 1), 0.3
    kernel = call("log_prob", mechanism, z, k)
    weights = np.exp(kernel - kernel.max()) * special.comb(trials, k)
    weights /= weights.sum()  # of k given z, at σ = 1/2
    mean = weights @ k
    slope, bend = mean - trials / 2, weights @ (k - mean) ** 2 - trials / 4
    first = jax.grad(lambda eta: ldp.Privatized(law(eta), mechanism).log_prob(z))
    found = jax.jit(jax.value_and_grad(first))(0.0)
    np.testing.assert_allclose(found, [slope, bend], rtol=0, atol=1e-12)


@pytest.mark.parametrize("noise", [Laplace(2.0), pytest.param(DiscreteGaussian(2.0), marks=pytest.mark.slow)], ids=repr)
@pytest.mark.parametrize("bounds", [{"sensitivity": 1.0}, {"lower": 0.0, "upper": 15.0}], ids=["statistic", "clipped"])
def test_a_cell_without_trials_or_exposure_has_the_noise_alone_and_derivatives_of_0(noise, bounds):
    """For a rate r e^t with r = 0 the derivative in t is 0 as well."""
    mechanism, z, trials = ldp.mechanisms.AdditiveMechanism(noise, **bounds), np.array([3.0, 4.0]), np.array([0, 5])

    def log_probs(t):
        t = t * jnp.ones(2)
        laws = (
            dist.BinomialProbs(nn.sigmoid(t), trials),
            dist.BinomialLogits(t, trials),
            dist.Poisson(trials * jnp.exp(t)),
        )
        return jnp.stack([ldp.Privatized(law, mechanism).log_prob(z) for law in laws], axis=-1)

    with_derivatives = jax.jit(lambda t: (log_probs(t), jax.jacfwd(log_probs)(t), jax.jacrev(log_probs)(t)))
    values, *jacobians = map(np.asarray, with_derivatives(0.3))
    np.testing.assert_allclose(values[0], call("log_prob", constant(mechanism), z[0], 0.0), atol=1e-12)
    h = 1e-4  # central differences: an error of h²/6 |f'''| < 2e-8 here and rounding of 1e-16/h
    above, below = (np.asarray(with_derivatives(0.3 + step)[0])[1] for step in (h, -h))
    for empty, proper in jacobians:
        assert np.abs(empty).max() < 1e-100  # a rate is raised by 1e-154, which moves a derivative by as much
        np.testing.assert_allclose(proper, (above - below) / (2 * h), atol=1e-7)
