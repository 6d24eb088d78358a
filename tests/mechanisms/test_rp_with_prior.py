"""RPWithPrior: its density, its sampler, its guarantee and its unbiased values."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

import ldpbayes as ldp

pytestmark = pytest.mark.usefixtures("x64")

LOWER, UPPER = 0.1, 1.4
MECHANISMS = [
    pytest.param(ldp.RPWithPrior(epsilon, (LOWER, UPPER), half_width, outside), id=f"{outside}-{epsilon}-{half_width}")
    for outside in ("projection", "uniform")
    for epsilon, half_width in ((1.3, 0.2), (0.1, 0.9), (6.0, 0.65))
]
LABELS = [-3.0, LOWER, 0.35, 0.9, UPPER, 7.0]  # below, at the ends, inside, above


def cells(mechanism, labels):
    """Intervals of z on which the densities of these labels are constant: middles, lengths, densities (labels, n)."""
    half = mechanism.half_width
    centers = np.clip(labels, LOWER, UPPER)
    edges = np.unique(np.concatenate([[LOWER - half, UPPER + half], centers - half, centers + half]))
    middles = (edges[1:] + edges[:-1]) / 2
    density = np.exp(np.asarray(mechanism.log_prob(middles, np.reshape(labels, (-1, 1)))))
    return middles, np.diff(edges), density


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_densities_integrate_to_one_for_labels_inside_and_outside(mechanism):
    _, lengths, density = cells(mechanism, LABELS)
    np.testing.assert_allclose(density @ lengths, 1.0, rtol=1e-13)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_worst_likelihood_ratio_is_exp_epsilon(mechanism):
    _, _, density = cells(mechanism, [*LABELS, *np.linspace(-1, 3, 41)])
    assert np.max(density.max(axis=0) / density.min(axis=0)) == pytest.approx(np.exp(mechanism.epsilon), rel=1e-12)
    for z in (LOWER - mechanism.half_width - 1e-9, UPPER + mechanism.half_width + 1e-9):
        assert mechanism.log_prob(z, 0.5) == -np.inf


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_best_tests_lie_on_the_stated_curve_and_no_pair_of_labels_is_told_apart_better(mechanism):
    labels = [LOWER, UPPER, *LABELS, *np.linspace(LOWER, UPPER, 9)]
    _, lengths, density = cells(mechanism, labels)
    masses = density * lengths
    level = np.linspace(0, 1, 101)
    budgets = np.linspace(0, 1.2 * mechanism.epsilon, 7)
    for i, j in itertools.permutations(range(len(labels)), 2):
        order = np.argsort(-masses[j] / masses[i])
        alpha = np.concatenate([[0.0], np.cumsum(masses[i][order])])
        beta = 1 - np.concatenate([[0.0], np.cumsum(masses[j][order])])
        # the curve of a pair is the polygon through the errors of its likelihood ratio tests
        slack = np.interp(level, alpha, beta) - mechanism.guarantee.tradeoff(level)
        divergence = np.maximum(masses[j] - np.exp(budgets)[:, None] * masses[i], 0).sum(axis=1)
        excess = divergence - mechanism.guarantee.delta(budgets)
        assert slack.min() > -1e-12
        assert excess.max() < 1e-12
        if {i, j} == {0, 1}:
            assert np.abs(slack).max() < 1e-12
            assert np.abs(excess).max() < 1e-12
    assert mechanism.guarantee.unit == "label"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_sampler_follows_the_density(mechanism):
    """Kolmogorov-Smirnov at 1e-6 a label and mechanism; moments within five standard errors (6e-7 each)."""
    n = 20_000
    draws = np.asarray(mechanism.randomize(jax.random.key(0), np.broadcast_to(LABELS, (n, len(LABELS))))).T
    mean, variance = mechanism.moments(LABELS)
    for i, x in enumerate(LABELS):
        half = mechanism.half_width
        middles, lengths, density = cells(mechanism, [x])
        edges = np.concatenate([[LOWER - half], LOWER - half + np.cumsum(lengths)])
        cumulative = np.concatenate([[0.0], np.cumsum(density[0] * lengths)])
        assert stats.kstest(draws[i], lambda z, e=edges, c=cumulative: np.interp(z, e, c)).pvalue > 1e-6
        first = density[0] * lengths @ middles
        second = density[0] * lengths @ (middles**2 + lengths**2 / 12)
        np.testing.assert_allclose([mean[i], variance[i]], [first, second - first**2], rtol=1e-12)


def test_unbiased_values_have_the_projected_label_as_their_mean():
    mechanism = ldp.RPWithPrior(1.3, (LOWER, UPPER), 0.2)
    middles, lengths, density = cells(mechanism, LABELS)
    means = density * lengths @ np.asarray(mechanism.unbiased(middles))
    np.testing.assert_allclose(means, np.clip(LABELS, LOWER, UPPER), rtol=1e-12)
    with pytest.raises(ValueError, match="projection"):
        ldp.RPWithPrior(1.3, (LOWER, UPPER), 0.2, "uniform").unbiased(middles)


def test_budgets_may_be_personal_and_parameters_arguments_of_compiled_functions():
    personal = ldp.RPWithPrior([0.5, 1.0, 2.0], (LOWER, UPPER), 0.2)
    z = np.array([0.0, 0.7, 1.5])
    release = ldp.Release(z, personal)
    each = [ldp.RPWithPrior(e, (LOWER, UPPER), 0.2).log_prob(v, 0.6) for e, v in zip((0.5, 1.0, 2.0), z, strict=True)]
    np.testing.assert_allclose(personal.log_prob(release.values, 0.6), each, rtol=1e-14)
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(ldp.RPWithPrior(e, (0.0, e), 0.1 * e) for e in (0.5, 1.0, 2.0))
    )
    mapped = jax.jit(jax.vmap(lambda mechanism, key: mechanism.log_prob(mechanism.randomize(key, 0.3), 0.3)))
    assert np.all(np.isfinite(mapped(stacked, jax.random.split(jax.random.key(0), 3))))


def test_specs_make_the_same_mechanism_and_values_rounded_to_single_precision_are_its_own():
    mechanism = ldp.RPWithPrior(1.0, (LOWER, UPPER), 0.2, "uniform")
    assert ldp.mechanisms.mechanism_from_spec(mechanism.spec()) == mechanism
    ends = np.array([LOWER - 0.2, UPPER + 0.2])
    np.testing.assert_array_equal(mechanism.validated(ends.astype(np.float32)), ends)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ldp.RPWithPrior(0.0, (0, 1), 0.1), "epsilon must be positive"),
        (lambda: ldp.RPWithPrior(1.0, (1, 0), 0.1), "lower must be below upper"),
        (lambda: ldp.RPWithPrior(1.0, (0, np.nan), 0.1), "interval must be finite"),
        (lambda: ldp.RPWithPrior(1.0, 3.0, 0.1), "pair of numbers"),
        (lambda: ldp.RPWithPrior(1.0, (0, [1, 2]), 0.1), "one for all labels"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), 0.0), "half_width must be positive"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), -1.0), "half_width must be positive"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), 0.1, "clip"), "outside must be one of projection, uniform"),
        (lambda: ldp.RPWithPrior(1.0, (0, 1), 0.1).randomize(jax.random.key(0), [0.1, np.nan]), "missing labels"),
        (lambda: ldp.Release([0.2, 1.2], ldp.RPWithPrior(1.0, (0, 1), 0.1)), "releases numbers from -0.1 to 1.1"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_moments_of_the_law_of_released_labels_are_those_of_its_density():
    mechanism = ldp.RPWithPrior(1.3, (LOWER, UPPER), 0.2)
    law = ldp.Privatized(dist.Normal(0.5, 0.4), mechanism)
    total = [
        integrate.quad(
            lambda z, k=k: z**k * float(jnp.exp(law.log_prob(z))), -0.1 + 1e-13, 1.6 - 1e-13, points=[0.3, 1.2]
        )[0]
        for k in range(3)
    ]
    assert total[0] == pytest.approx(1.0, abs=1e-9)
    assert float(law.mean) == pytest.approx(total[1], abs=1e-9)
    assert float(law.variance) == pytest.approx(total[2] - total[1] ** 2, abs=1e-9)
