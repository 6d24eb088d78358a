"""Clipped counts under Laplace or Gaussian noise against sums in 60-digit arithmetic.

The claim, as for the closed forms: 1e-9 in log density, absolute or relative, whichever is larger, with finite
gradients, from tiny to huge means and concentrations and for z up to 40 noise scales outside the bounds.
"""

import jax
import mpmath as mp
import numpy as np
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from tests.likelihood import reference
from tests.likelihood.reference import error, log_density, log_gradient

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


# both noises of every law; its other parametrisations and settings are slow
SHORT = {
    "poisson": ("laplace-0-20", "gaussian-personal-bounds"),
    "geometric": ("gaussian-personal-bounds",),
    "geometric-logits": ("laplace-0-20",),
    "negative-binomial-2": ("laplace-0-200",),
    "negative-binomial-probs": ("gaussian-personal-bounds",),
    "negative-binomial-logits": ("laplace-0-20",),
    "zero-inflated-poisson": ("gaussian-2-15",),
    "binomial": ("gaussian-2-15",),
    "binomial-logits": ("laplace-0-20",),
}


@pytest.mark.parametrize(
    ("family", "setting"),
    [pytest.param(*case, marks=() if case[1] in SHORT[case[0]] else pytest.mark.slow) for case in SELECTED],
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
        np.testing.assert_allclose(value, mechanism.log_prob(z, atom), atol=1e-10)


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
