"""What a mechanism is does not depend on whether it is being traced."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import ldpbayes as ldp
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms.additive import Additive

pytestmark = pytest.mark.usefixtures("x64")

MECHANISMS = [
    ldp.mechanisms.AdditiveMechanism(ldp.noise.Laplace(3.0), -5, 5),
    ldp.LaplaceMechanism(1.0, -5, 5),
    ldp.GaussianMechanism(1.0, 1e-4, -5, 5),
    ldp.SymmetricLaplaceMechanism(9.0, -5, 5),
    ldp.mechanisms.IndependentLaplaceMechanism(9.0, -5, 5),
    ldp.ZeroInflatedLaplaceMechanism(0.2, 9.0, -5, 5),
    ldp.mechanisms.BoundedLaplaceMechanism(9.0, -5, 5),
    ldp.mechanisms.BoundedGaussianMechanism(9.0, -5, 5),
    ldp.DiscreteLaplaceMechanism(2.0),
    ldp.DiscreteGaussianMechanism(2.0),
    ldp.RPWithPrior(1.0, (-5, 5), 2.0),
    ldp.mechanisms.SquareWaveMechanism(1.0, -5, 5),
    ldp.mechanisms.StaircaseMechanism(1.0, -5, 5),
    ldp.mechanisms.Floored(ldp.DiscreteLaplaceMechanism(2.0), 1.0),
    ldp.mechanisms.Banded(ldp.DiscreteLaplaceMechanism(2.0), [0.0, 2.0]),
    ldp.mechanisms.Capped(ldp.DiscreteLaplaceMechanism(2.0), 1.0),
    ldp.mechanisms.Withheld(ldp.DiscreteGaussianMechanism(2.0), 1.0),
    ldp.mechanisms.Published(ldp.mechanisms.Withheld(ldp.DiscreteGaussianMechanism(2.0), -99.0)),
    ldp.mechanisms.Rounded(ldp.DiscreteLaplaceMechanism(2.0), 2.0),
    ldp.mechanisms.Incomplete(ldp.DiscreteLaplaceMechanism(2.0)),
    ldp.RROnBins(1.0, [-5, -1, 2, 5], [-3.0, 0.5, 3.0]),
    ldp.mechanisms.UnbiasedRandomizer.optimal(([-5, 5], [0.1]), 1.0, nodes=4),
    ldp.RandomizedResponse(1.0),
    ldp.OptimalUnaryEncoding(1.0, 2),
    ldp.SymmetricUnaryEncoding(1.0, 2),
    ldp.mechanisms.UnaryEncoding(2, 0.7, 0.4),
    ldp.mechanisms.Rappor([[1, 0], [0, 1]], 1, 0.4, 0.7, 0.2),
    ldp.SubsetSelection(1.0, 2, 1),
    ldp.LocalHashing(1.0, 2, 2),
    ldp.HadamardResponse(1.0, 2),
    ldp.mechanisms.CountMeanSketch(1.0, 2, 2, 2),
    ldp.mechanisms.HadamardCountMeanSketch(1.0, 2, 2, 2),
    ldp.mechanisms.TransitionMatrix([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]]),
    ldp.mechanisms.MirroredQuestion(0.3),
    ldp.mechanisms.Crosswise(0.3),
    ldp.mechanisms.Triangular(0.3),
    ldp.mechanisms.Mangat(0.3),
    ldp.mechanisms.UnrelatedQuestion(0.7, 0.3),
    ldp.mechanisms.ForcedResponse([0.1, 0.2]),
    ldp.mechanisms.Kuk(0.3, 0.6, 2),
    ldp.mechanisms.Repeated(ldp.mechanisms.Crosswise(0.3), 2, ldp.mechanisms.Crosswise(0.2)),
    ldp.mechanisms.Noncompliance(ldp.mechanisms.Crosswise(0.3), 0.1, [1.0, 0.0]),
    ldp.mechanisms.MultiplicativeScrambling(1.0, 0.5, 0.5, 5.0),
]
KNOWN = {"discrete_gaussian", "banded", "capped", "floored", "withheld", "published", "rounded", "incomplete"}
"""Mechanisms that must be known before tracing, since a number says how many terms a sum has: their data are traced."""

UNSKETCHED = {"multiplicative_scrambling"}
"""Mechanisms of which only the logarithms have a sketch."""


REGRESSIONS = [
    ldp.mechanisms.LinearRecordsMechanism(4.0, 1e-4, 1.0, 1.0, columns=3),
    ldp.mechanisms.LogisticRecordsMechanism(4.0, 1e-4, 1.0, columns=3),
    ldp.mechanisms.LinearStatisticsMechanism(4.0, 1e-4, 1.0, 1.0, columns=3),
    ldp.mechanisms.LogisticStatisticsMechanism(4.0, 1e-4, 1.0, columns=3),
]


def test_every_mechanism_is_here():
    assert {mechanism.name for mechanism in MECHANISMS + REGRESSIONS} == set(ldp.mechanisms.mechanism_names())


def total(data, parameter, mechanism=None):
    """Log-likelihood of a sketch or a release, the mechanism being the data's own or one that is known."""
    mechanism = data.mechanism if mechanism is None else mechanism
    if mechanism.name == "multiplicative_scrambling":
        base = dist.LogNormal(parameter, 2.0)
    elif not mechanism.domain.is_discrete:
        base = dist.Normal(parameter, 2.0)
    elif isinstance(getattr(mechanism, "innermost", mechanism), Additive):
        base = dist.Poisson(jnp.exp(parameter))
    else:
        base = dist.Bernoulli(jax.nn.sigmoid(parameter))
    if isinstance(data, ldp.Release):
        return jnp.sum(ldp.Privatized(base, mechanism).log_prob(data.values))
    if mechanism is data.mechanism:
        # which compiles faster than a channel, where there is one
        method = "channel" if mechanism.name.startswith("bounded") else "closed_form"
        law = law_of_nodes(data, base, method=method)
    else:
        law = ldp.Privatized(base, mechanism)
    return data.weights @ law.log_prob(data.nodes)


def pairs(mechanism):
    """Two releases, and their sketches, that have the same structure."""
    discrete = mechanism.domain.is_discrete
    records = [np.arange(40) % 2 if discrete else np.linspace(-9, 9, 40) + shift for shift in (0, 1)]
    drawn = jax.jit(mechanism.randomize)
    releases = [ldp.Release(drawn(jax.random.key(i), x), mechanism) for i, x in enumerate(records)]
    if mechanism.name in UNSKETCHED:
        return releases, None
    sketches = [release.sketch() for release in releases]
    if len({len(sketch.nodes) for sketch in sketches}) > 1 or mechanism.name == "local_hashing":
        sketches = sketches[:1] * 2  # different kinds were released
    return releases, sketches


SHORT = {f"{name}-sketches" for name in ("laplace", "discrete_gaussian", "rp_with_prior")}
SHORT |= {"unbiased_randomizer-releases", "randomized_response-sketches", "local_hashing-sketches"}
"""Of the default suite: one of each kind of likelihood; all others are slow."""


@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [
        pytest.param(
            mechanism,
            kind,
            id=f"{mechanism.name}-{kind}",
            marks=() if f"{mechanism.name}-{kind}" in SHORT else pytest.mark.slow,
        )
        for mechanism in MECHANISMS
        for kind in ("releases", "sketches")[: 1 if mechanism.name in UNSKETCHED else 2]
    ],
)
def test_data_are_arguments_of_compiled_mapped_scanned_and_differentiated_functions(mechanism, kind):
    first, second = pairs(mechanism)[kind == "sketches"]
    known = mechanism if mechanism.name in KNOWN else None
    slope = jax.value_and_grad(total, argnums=1)

    @jax.jit
    @jax.vmap
    def traced(part):
        return jax.lax.scan(lambda at, data: (at, slope(data, at, known)), 0.3, part)[1]

    values, slopes = traced(jax.tree.map(lambda *leaves: np.stack(leaves)[:, None], first, second))
    # with data that are known before tracing: 40 terms of size 4 and rounding errors of 1e-15, those of a sketch's
    # signed weights a hundred times as large; a central difference is off by 1e-8 third derivatives
    step = 1e-4
    constant = jax.jit(lambda at: [total(data, at) for data in (first, second)])
    (_, below), both, (_, above) = (constant(at) for at in (0.3 - step, 0.3, 0.3 + step))
    np.testing.assert_allclose(values[:, 0], both, rtol=1e-11)
    assert np.all(np.isfinite(slopes))
    np.testing.assert_allclose(slopes[1, 0], (above - below) / (2 * step), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(m, marks=() if m.name == "linear_statistics" else pytest.mark.slow) for m in REGRESSIONS],
    ids=lambda mechanism: mechanism.name,
)
def test_data_of_regressions_are_arguments_of_compiled_mapped_and_differentiated_functions(mechanism):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.uniform(-0.5, 0.5, (2, 40, 2)).reshape(-1, 2), rng.integers(0, 2, 80)])
    given = mechanism.statistics(rows) if isinstance(mechanism, ldp.mechanisms.StatisticsMechanism) else rows
    values = np.asarray(jax.jit(mechanism.randomize)(jax.random.key(0), given)).reshape(2, 40, -1)
    linear = mechanism.name.startswith("linear")
    model = (ldp.models.linear_regression if linear else ldp.models.logistic_regression)(concentration=None)
    releases = [ldp.Release(part, mechanism) for part in values]
    data = releases if mechanism.name == "logistic_records" else [release.sketch() for release in releases]

    def total(part, slope):
        at = {"slopes": slope * np.ones(2), "scale": np.full(2, 0.5)} | ({"sigma": 0.5} if linear else {})
        return log_density(model, (part,), {}, at)[0]

    step = 1e-4
    constant = jax.jit(lambda at: [total(part, at) for part in data])
    (_, below), known, (_, above) = (constant(at) for at in (0.3 - step, 0.3, 0.3 + step))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *data)
    found, slopes = jax.jit(jax.vmap(jax.value_and_grad(total, 1), (0, None)))(stacked, 0.3)
    np.testing.assert_allclose(found, known, rtol=1e-11)
    np.testing.assert_allclose(slopes[1], (above - below) / (2 * step), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param([1.0, 0.5, 2.0], id="perturbed", marks=pytest.mark.slow),
        pytest.param([1.0, 0.0, 2.0], id="one public"),
    ],
)
def test_whether_records_are_public_need_not_be_known(scale):
    z, scale = np.array([0.0, 0.4, 2.5]), np.array(scale)
    rows, mean = np.stack([z, z], axis=1) / 3, np.zeros(2)

    def numbers(scale, loc):
        return ldp.Privatized(dist.Normal(loc, 1.0), ldp.SymmetricLaplaceMechanism(scale, 0, 1)).log_prob(z).sum()

    def of_rows(scale, loc):
        law = dist.MultivariateNormal(mean + loc, jnp.eye(2))
        return ldp.Privatized(law, ldp.SymmetricLaplaceMechanism(scale, 0, 1, 2)).log_prob(rows).sum()

    slopes = [jax.value_and_grad(function, 1) for function in (numbers, of_rows)]
    known, traced = jax.jit(lambda traced: [[slope(s, 0.2) for slope in slopes] for s in (scale, traced)])(scale)
    assert np.all(np.isfinite(known))
    np.testing.assert_allclose(traced, known, rtol=1e-10)
