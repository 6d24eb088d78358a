"""Corrections: unbiased losses and scores at every single record; their names and options, and how another is added."""

import contextlib
import dataclasses
import functools
import gc
import io
import itertools
import pathlib
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import ldpbayes as ldp
from ldpbayes.estimation import (
    Combined,
    Correction,
    DoublyRandom,
    Estimate,
    EvidenceCorrection,
    IndependentLaplaceCorrection,
    Naive,
    Oracle,
    SmoothedDoublyRandom,
    SymmetricLaplaceCorrection,
    losses,
)
from ldpbayes.estimation._corrections import Deconvolutions, correction_from, support_controls
from ldpbayes.estimation.losses import as_loss
from ldpbayes.estimation.m_estimation import Estimator
from ldpbayes.noise import Gaussian, Laplace, SymmetricLaplace, WithPublicRecords, ZeroInflated

precise = pytest.mark.usefixtures("x64")
REPEATS = 40_000
SIGMAS = 4.5  # each mean of a test may be that far off: error rate 7e-6 each, below 1e-3 in this file
THETA = np.array([0.2, 0.7, -0.4])
X = np.array([[0.1, -0.3, 1.0], [-0.5, 0.5, 0.0], [0.45, 0.2, 1.0]])  # two perturbed columns and a response
SUPPORT = (np.full(2, -0.5), np.full(2, 0.5))


def rows_mechanism(**changes):
    options = {"zero_probability": 0.3, "scale": 0.6, "lower": -0.5, "upper": 0.5, "columns": 3, "perturbed": (0, 1)}
    return ldp.ZeroInflatedLaplaceMechanism(**options | changes)


def corrected(method, mechanism, rows, key):
    """The corrected loss that a method minimises first; none of these looks at which loss it is."""
    return method.evidence(losses.squared(), mechanism, jnp.asarray(rows), key, everywhere=True).criteria[0]


evidence_of = jax.jit(corrected)


@functools.partial(jax.jit, static_argnames=("loss", "index"))
def values_of(points, loss, theta, index):
    return points.values(loss, theta, index)


@functools.partial(jax.jit, static_argnames="loss")
def values_and_scores(loss, x, theta):
    scores = jax.jacobian(lambda at: loss.values(x, at))(theta)
    return jnp.concatenate([loss.values(x, theta)[:, None], scores], axis=1)


def assert_unbiased(loss, mechanism, x, theta, make, count=REPEATS):
    """Values and scores, averaged over releases of the same records, are those of the original ones."""
    x = jnp.asarray(x)

    def one(key):
        keys = jax.random.split(key)
        z = mechanism.randomize(keys[0], x if mechanism.event_shape else x[:, 0])
        points = make(mechanism, z if mechanism.event_shape else z[:, None], keys[1])
        return jnp.concatenate(
            [points.values(loss, theta, mechanism.index)[:, None], points.scores(loss, theta, mechanism.index)], axis=1
        )

    draws = np.asarray(
        jax.jit(lambda k: jax.lax.map(one, k, batch_size=500))(jax.random.split(jax.random.key(1), count))
    )
    want = values_and_scores(loss, x, theta)
    error = draws.std(axis=0) / np.sqrt(count)
    assert np.all(np.abs(draws.mean(axis=0) - want) <= SIGMAS * error + 1e-12)
    return draws


METHODS = {
    "dr": DoublyRandom(1, None),
    "dr, averaged": DoublyRandom(4, None),
    "dr, truncated": DoublyRandom(4, SUPPORT),
    "sdr": SmoothedDoublyRandom(1),
    "sdr, averaged": SmoothedDoublyRandom(3),
    "sl": SymmetricLaplaceCorrection(1),
}
# the default suite has their averaged versions, one with personal parameters and one with symmetric noise below
SLOW = ("dr", "dr, averaged", "dr, truncated", "sdr", "sl")


@precise
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in METHODS]
)
def test_smooth_losses_and_scores_are_unbiased(name):
    def make(mechanism, z, key):
        return corrected(METHODS[name], mechanism, z, key)

    assert_unbiased(losses.logistic(), rows_mechanism(), X, THETA, make)


@precise
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "name"),
    [
        pytest.param(losses.absolute(), "dr, truncated", id="absolute"),
        pytest.param(losses.pinball(0.3), "dr", id="pinball"),
        pytest.param(losses.hinge(), "dr, averaged", id="hinge"),
    ],
)
def test_losses_with_kinks_and_their_scores_are_unbiased(loss, name):
    def make(mechanism, z, key):
        return corrected(METHODS[name], mechanism, z, key)

    assert_unbiased(loss, rows_mechanism(), X, THETA, make)


UNIT = (np.array([0.0]), np.array([1.0]))
EXACT = {"draws": "exact", "cuts": (0.0, 0.5, 1.0)}


@precise
@pytest.mark.parametrize(
    ("options", "support"),
    [
        pytest.param({"draws": 8}, UNIT, id="draws in the support"),
        pytest.param(EXACT, UNIT, marks=pytest.mark.slow, id="exact in the support"),
        pytest.param({"draws": 1}, None, marks=pytest.mark.slow, id="one draw"),
        pytest.param(EXACT, None, marks=pytest.mark.slow, id="exact"),
    ],
)
def test_jumps_in_one_column_are_unbiased(options, support):
    loss = as_loss(lambda x, theta: (theta[0] - ((x >= 0.5) & (x <= 1))) ** 2, scalar=True)
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.1, 0.94, 0.0, 1.0)

    def make(mechanism, z, key):
        return corrected(DoublyRandom(support=support, **options), mechanism, z, key)

    assert_unbiased(loss, mechanism, np.array([[0.1], [0.6], [0.99]]), jnp.array([0.3]), make)


@precise
@pytest.mark.slow
def test_networks_with_relu_units_are_unbiased():
    def network(x, theta):
        return (x[2] - jnp.maximum(x[:2] @ theta[:4].reshape(2, 2), 0.0) @ theta[4:]) ** 2

    theta = jnp.array([0.9, -0.4, 0.3, 1.2, 0.8, -0.7])

    def make(mechanism, z, key):
        return corrected(DoublyRandom(2, SUPPORT), mechanism, z, key)

    assert_unbiased(as_loss(network), rows_mechanism(), X, theta, make)


@precise
@pytest.mark.parametrize("name", ["dr, truncated", pytest.param("sdr, averaged", marks=pytest.mark.slow)])
def test_personal_parameters_and_public_records_are_unbiased(name):
    mechanism = rows_mechanism(zero_probability=np.array([0.1, 0.3, 0.5]), scale=np.array([0.4, 0.0, 1.0]))

    def make(mechanism, z, key):
        return corrected(METHODS[name], mechanism, z, key)

    draws = assert_unbiased(losses.logistic(), mechanism, X, THETA, make, count=20_000)
    assert np.ptp(draws[:, 1], axis=0).max() < 1e-12  # the public record is exact every time


@precise
def test_symmetric_and_independent_noise_have_unbiased_losses_too():
    symmetric = ldp.SymmetricLaplaceMechanism(0.6, -0.5, 0.5, 3, (0, 1))
    assert_unbiased(losses.logistic(), symmetric, X, THETA, lambda m, z, key: corrected(METHODS["sl"], m, z, key))
    independent = ldp.mechanisms.IndependentLaplaceMechanism(0.6, -0.5, 0.5, 3, (0, 1))
    loss = losses.logistic()
    ones = jnp.ones((1, len(X)))

    def one(key):
        rows = independent.randomize(key, jnp.asarray(X))
        return Deconvolutions(rows[None], ones, 0.6 * ones).values(loss, THETA, (0, 1))[0]

    draws = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), REPEATS)))
    error = draws.std(axis=0) / np.sqrt(REPEATS)
    assert np.all(np.abs(draws.mean(axis=0) - loss.values(X, THETA)) <= SIGMAS * error)


@precise
@pytest.mark.slow
@pytest.mark.parametrize("support", [SUPPORT, None], ids=["support", "none"])
def test_averaging_over_the_analysts_noise_is_what_many_single_draws_average_to(support):
    mechanism, z = rows_mechanism(), jnp.asarray(X) + jnp.array([0.3, -0.4, 0.0])
    loss = losses.pinball(0.4)

    def value(key, draws):
        return corrected(DoublyRandom(draws, support), mechanism, z, key).values(loss, THETA, (0, 1))

    keys = jax.random.split(jax.random.key(3), 20_000)
    one, many = (np.asarray(jax.jit(jax.vmap(lambda k, d=d: value(k, d)))(keys[: 20_000 // d])) for d in (1, 16))
    error = np.hypot(one.std(axis=0) / np.sqrt(len(one)), many.std(axis=0) / np.sqrt(len(many)))
    assert np.all(np.abs(one.mean(axis=0) - many.mean(axis=0)) < SIGMAS * error)
    # the low-discrepancy sequence does better than 16 independent draws
    assert np.all(many.var(axis=0) < one.var(axis=0) / 16)


@precise
def test_exact_integration_is_the_mean_over_the_noise():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.8, 0.0, 1.0)
    z, theta = np.array([-2.0, 0.3, 1.7, 0.5, 0.0, 0.99]), np.array([0.5])
    loss = as_loss(lambda x, theta: jnp.maximum(x - theta[0], 0.0) + x**3, scalar=True)
    nodes, h = np.linspace(-12, 12, 1_200_001, retstep=True)  # 39 scales of the noise beyond all values
    scale = np.sqrt(0.2) * 0.8 / np.sqrt(2)
    values = np.maximum(nodes - 0.5, 0.0) + nodes**3
    for support in (None, UNIT):
        exact = evidence_of(DoublyRandom("exact", support, cuts=(0.5,)), mechanism, z[:, None], jax.random.key(0))
        all_exact = values_of(exact, loss, theta, (0,))
        for i, at in enumerate(z):
            inside = 1.0 if support is None else (nodes >= 0) & (nodes <= 1)
            density = np.exp(-np.abs(nodes - at) / scale) / (2 * scale)
            here = support is None or 0 <= at <= 1
            want = (values[np.searchsorted(nodes, at)] if here else 0.0) / 0.2 - 4 * h * np.sum(
                inside * density * values
            )
            # the trapezoidal rule's error at the ends of the support
            assert all_exact[i] == pytest.approx(want, abs=2e-4)


WAVE = as_loss(lambda x, theta: theta[0] * jnp.abs(jnp.sin(2 * jnp.pi * x)) * jnp.exp(x), scalar=True)


@precise
@pytest.mark.parametrize("scale", [1e-4, 2e-3, 0.05, 1.0, 5.0])
def test_exact_integration_follows_noise_from_narrow_to_wide(scale):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.5, scale, 0.0, 1.0)
    noise = np.sqrt(0.5) * scale / np.sqrt(2)
    z = np.array([-0.2, 0.003, 0.3, 0.5, 0.93, 1.02])

    exact = evidence_of(DoublyRandom("exact", UNIT, cuts=(0.5,)), mechanism, z[:, None], jax.random.key(0))
    got = values_of(exact, WAVE, np.array([1.0]), (0,))
    for at, found in zip(z, got, strict=True):
        ends = np.clip([0, 0.5, 1, *(at + noise * np.array([-40, -20, -10, -4, -1, 0, 1, 4, 10, 20, 40]))], 0, 1)
        parts = [
            integrate.quad(lambda u, at: abs(np.sin(2 * np.pi * u)) * np.exp(u - abs(u - at) / noise), a, b, (at,))[0]
            for a, b in itertools.pairwise(np.unique(ends))
        ]
        here = abs(np.sin(2 * np.pi * at)) * np.exp(at)
        want = 2 * here * (0 <= at <= 1) - sum(parts) / (2 * noise)
        assert float(found) == pytest.approx(want, abs=1e-9)  # QUADPACK's own tolerance is 1.5e-8 a part, rarely used


@precise
def test_functions_that_only_see_beyond_the_support_have_mean_zero():
    mechanism = rows_mechanism(zero_probability=np.array([0.1, 0.3, 0.5]), scale=np.array([0.4, 0.0, 1.0]))

    def one(key):
        return support_controls(mechanism, mechanism.randomize(key, jnp.asarray(X)), SUPPORT)

    draws = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(4), REPEATS)))
    assert draws.shape == (REPEATS, 3, 4)
    error = draws.std(axis=0) / np.sqrt(REPEATS)
    assert np.all(np.abs(draws.mean(axis=0)) <= SIGMAS * error + 1e-12)
    assert np.all(draws[:, 1] == 0)  # a public record inside the support has nothing beyond it


@precise
def test_a_truncated_loss_is_never_looked_at_outside_the_support():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 2.0, 1.0, 3.0)
    loss = as_loss(lambda x, theta: theta[0] * jnp.log(x), scalar=True)  # undefined for most released values
    rng = np.random.default_rng(0)
    z = 1.5 + (rng.random(2000) > 0.2) * rng.laplace(0, np.sqrt(2), 2000)
    assert np.mean(z < 0) > 0.1
    points = evidence_of(DoublyRandom(4, (1.0, 3.0)), mechanism, z[:, None], jax.random.key(1))
    values = np.asarray(jax.jit(lambda points: points.scores(loss, jnp.array([1.0]), (0,)))(points))
    assert np.all(np.isfinite(values))
    assert abs(values.mean() - np.log(1.5)) < SIGMAS * values.std() / np.sqrt(2000)


@precise
def test_batches_add_up():
    mechanism, z = rows_mechanism(), jnp.asarray(X)
    parts = [evidence_of(DoublyRandom(2, None), mechanism, z[i : i + 1], jax.random.key(i)) for i in range(3)]
    evidence = functools.reduce(EvidenceCorrection.joined, (EvidenceCorrection.of(part.terms) for part in parts))
    (together,), loss = evidence.criteria, losses.logistic()
    want = np.concatenate([values_of(part, loss, THETA, (0, 1)) for part in parts])
    np.testing.assert_allclose(values_of(together, loss, THETA, (0, 1)), want)
    assert together.count == 3
    doubled = values_of(evidence.weighted(jnp.array([2.0, 1.0, 0.0])).criteria[0], loss, THETA, (0, 1))
    np.testing.assert_allclose(doubled, want * [2, 1, 0])


ZERO_INFLATED = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.5, 0.0, 1.0)
MEAN = losses.squared(features=())
PLACED = {"start": np.zeros(1), "space": ldp.estimation.Box([-9.0], [9.0])}  # no naive estimate is needed for them


def release(mechanism=ZERO_INFLATED, count=300):
    """Numbers between 0 and 1 with Laplace noise of standard deviation 0.5, left out of three in ten."""
    rng = np.random.default_rng(2)
    noise = rng.laplace(0, 0.5 / np.sqrt(2), count) * (rng.random(count) > 0.3)
    return ldp.Release(rng.random(count) + noise, mechanism)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("combined", Combined()),
        ("dr", DoublyRandom()),
        ("sdr", SmoothedDoublyRandom()),
        ("sl", SymmetricLaplaceCorrection()),
        ("independent", IndependentLaplaceCorrection()),
        ("naive", Naive()),
        ("oracle", Oracle()),
    ],
)
def test_a_name_stands_for_a_method_with_its_defaults(name, method):
    assert correction_from(name) == method and method.name == name
    assert correction_from(method) is method


def test_options_beside_a_name_are_those_of_the_method_it_stands_for():
    assert correction_from("dr", draws=2, support=(0, 1), cuts=[0.5]) == DoublyRandom(2, (0.0, 1.0), cuts=(0.5,))
    assert correction_from("sl", draws=3, support=(0, 1)) == SymmetricLaplaceCorrection(3)  # it knows no support
    named = ldp.m_estimate(MEAN, release(), "dr", draws=2, support=(0, 1), seed=4, **PLACED)
    made = ldp.m_estimate(MEAN, release(), DoublyRandom(draws=2, support=(0, 1)), seed=4, **PLACED)
    np.testing.assert_array_equal(made.params, named.params)
    np.testing.assert_array_equal(made.covariance, named.covariance)
    assert made.method == "dr"


def test_methods_are_equal_by_their_options():
    ends = [0.0, 1.0]
    assert DoublyRandom(support=(ends, 2)) == DoublyRandom(support=(np.array(ends), 2.0))
    assert DoublyRandom(support=None) != DoublyRandom() != DoublyRandom(support=(0, 1)) != Combined(support=(0, 1))
    assert len({DoublyRandom(), DoublyRandom(), DoublyRandom(4), Naive(), Oracle()}) == 4
    assert repr(DoublyRandom(4)) == "DoublyRandom(draws=4, cuts=(), support='bounds')"


def test_supports_of_a_kind_share_what_is_compiled():
    wider = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.1, -2.0, 3.0)
    estimators = [
        Estimator(MEAN, mechanism, DoublyRandom(4, support), ldp.estimation.Box(-1.0, 1.0))
        for mechanism in (ZERO_INFLATED, wider)
        for support in ("bounds", (0.1, 0.9), (np.zeros(1), np.ones(1)))
    ]
    assert len({jax.tree.structure(estimator) for estimator in estimators}) == 1
    assert len({tuple(np.shape(leaf) for leaf in jax.tree.leaves(estimator)) for estimator in estimators}) == 1
    np.testing.assert_array_equal(estimators[3].method.support, [[-2.0], [3.0]])
    assert jax.jit(lambda method: method)(DoublyRandom()) == DoublyRandom()  # the word is no leaf


SYMMETRIC, INDEPENDENT = SymmetricLaplace(0.5), Laplace(0.5)
TAKEN = {
    Combined: {"zero-inflated": (1, 2), "zero-inflated Laplace": (1,)},
    DoublyRandom: {"zero-inflated": (1, 2), "zero-inflated Laplace": (1,)},
    SmoothedDoublyRandom: {"zero-inflated": (1, 2), "zero-inflated Laplace": (1,)},
    SymmetricLaplaceCorrection: {
        "zero-inflated": (1, 2),
        "zero-inflated Laplace": (1,),
        "symmetric": (1, 2),
        "symmetric, public": (1, 2),
        "independent": (1,),
        "independent, public": (1,),
    },
    IndependentLaplaceCorrection: {
        "symmetric": (1,),
        "symmetric, public": (1,),
        "independent": (1, 2),
        "independent, public": (1, 2),
    },
}


@pytest.mark.parametrize("cls", TAKEN)
def test_methods_say_which_noise_they_are_for(cls):
    noises = {
        "zero-inflated": ZeroInflated(SYMMETRIC, 0.2),
        "zero-inflated Laplace": ZeroInflated(INDEPENDENT, 0.2),  # in one column the same law
        "symmetric": SYMMETRIC,
        "symmetric, public": WithPublicRecords(SYMMETRIC),
        "independent": INDEPENDENT,
        "independent, public": WithPublicRecords(INDEPENDENT),
        "Gaussian": Gaussian(0.5),
    }
    for name, noise in noises.items():
        taken = tuple(columns for columns in (1, 2) if cls().takes(noise, columns))
        assert taken == TAKEN[cls].get(name, ()), name


def test_a_release_with_laplace_noise_is_corrected_like_the_same_symmetric_noise():
    values = release().values
    laplace = ldp.LaplaceMechanism(2.0, 0.0, 1.0)  # of scale 1/2
    symmetric = ldp.SymmetricLaplaceMechanism(np.sqrt(0.5), 0.0, 1.0)
    method, key = SymmetricLaplaceCorrection(draws=1), jax.random.key(0)
    evidence = jax.jit(lambda mechanism: method.evidence(MEAN, mechanism, jnp.asarray(values[:, None]), key))
    both = [evidence(mechanism) for mechanism in (laplace, symmetric)]
    for one, other in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # in single precision
    estimate = ldp.m_estimate(MEAN, ldp.Release(values, laplace), method, **PLACED)
    # ½ λ² times the second derivative is a constant; the solver's last step is 1e-6 of a unit, and its square is left
    assert estimate.params[0] == pytest.approx(values.mean(), rel=1e-9)


def test_every_record_is_corrected_for_its_own_independent_noise(x64):
    scales = np.array([0.0, 0.5, 1.0])
    mechanism = ldp.mechanisms.IndependentLaplaceMechanism(scales, 0.0, 1.0)
    z = np.array([[0.3], [-0.4], [1.7]])
    later = ldp.mechanisms.IndependentLaplaceMechanism(2.0, 0.0, 1.0)

    @jax.jit
    def values(mechanisms, z, theta):
        one, other = (IndependentLaplaceCorrection().evidence(MEAN, each, z, None) for each in mechanisms)
        return one.joined(other).criteria[0].values(MEAN, theta, (0,))

    want = 0.5 * (np.tile(z[:, 0], 2) - 0.2) ** 2 - 0.5 * np.r_[scales, 2.0, 2.0, 2.0] ** 2
    np.testing.assert_allclose(values((mechanism, later), z, np.array([0.2])), want, rtol=1e-13)


def test_an_estimate_keeps_nothing_of_a_release_but_its_evidence():
    given = release()
    values = weakref.ref(given.values)
    estimate = ldp.m_estimate(MEAN, given, DoublyRandom(draws=2), **PLACED)
    del given
    gc.collect()
    assert values() is None
    held = jax.tree.leaves((estimate._solver.estimator, estimate._promises, estimate.params, estimate.covariance))
    assert max(np.size(leaf) for leaf in held) < 10 and jax.tree.leaves(estimate._evidence)[0].shape[1] == 300


def test_estimates_of_all_kinds_are_estimates_and_repeat_what_was_promised():
    first, other = release(), ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, 0.0, 1.0)
    estimate = ldp.m_estimate(MEAN, first, DoublyRandom(draws=2), **PLACED)
    promised = ZERO_INFLATED.guarantee.statement()
    assert estimate.privacy == promised
    assert estimate.update(first).privacy.endswith(f"\n2 releases, each: {promised}")
    total, *each = estimate.update(release(other)).privacy.split("\n")
    assert total.startswith("2 releases.") and each == [promised, other.guarantee.statement()]
    twice = estimate.update(dataclasses.replace(first, times=2)).privacy.split("\n")
    assert twice[1:] == [promised, ZERO_INFLATED.guarantee.composed(2).statement()]
    assert "No record is protected" in ldp.m_estimate(MEAN, np.linspace(0, 1, 50), Oracle(), **PLACED).privacy
    codes = ldp.Release(np.random.default_rng(0).integers(0, 4, 200), ldp.RandomizedResponse(2.0, 4))
    for method in ("unbiased", "mle", "projection"):
        frequencies = ldp.frequencies(codes, method)
        assert frequencies.privacy == codes.mechanism.guarantee.statement()
        for what in (estimate, frequencies):
            assert isinstance(what, Estimate) and len(what.names) == len(what.params)
            assert len(what.summary(0.9).splitlines()) == len(what.params) + 5
    assert "[0.05" in ldp.frequencies(codes).summary(0.9)


def test_maximum_likelihood_has_a_covariance_and_its_frequencies_sum_to_one():
    codes = ldp.Release(np.random.default_rng(0).integers(0, 4, 200), ldp.RandomizedResponse(2.0, 4))
    found = ldp.frequencies(codes, "mle")
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.covariance)), found.standard_error, rtol=1e-10)
    # the sum is known, so that it has no variance: to rounding of entries of 1e-3
    np.testing.assert_allclose(found.covariance.sum(axis=0), 0, atol=1e-14)
    assert ldp.frequencies(codes, "projection").covariance is None


def walked_through():
    """What the page on M-estimation defines in its section on methods of one's own, and what it prints."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "how_to" / "m_estimation.md").read_text()
    section = page.split("\n## Your own loss, your own correction\n")[1].split("\n## ")[0]
    printed = io.StringIO()
    names = {}
    with contextlib.redirect_stdout(printed):
        exec("\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL)), names)
    return names, printed.getvalue(), re.search(r"\n\n```\n(.*?)```", section, re.DOTALL)[1]


@pytest.mark.slow
def test_a_loss_and_a_method_of_ones_own_are_added_as_the_page_says():
    names, printed, shown = walked_through()
    assert printed == shown
    method, loss, release = names["SecondOrder"](), names["loss"], names["release"]
    estimate = ldp.m_estimate(loss, release, method)
    assert estimate.method == "SecondOrder" and estimate.names == ["intercept", "age"]
    assert np.all(np.abs(estimate.params - [0.3, 0.8]) < 4.5 * estimate.standard_error)  # error rate 1e-5
    assert estimate.update(release).count == 8000
    with pytest.raises(ValueError, match="method 'SecondOrder' is not for LaplaceMechanism; use 'sl' or 'independent'"):
        ldp.m_estimate(MEAN, ldp.Release([0.3, 0.4], ldp.LaplaceMechanism(1.0, 0, 1)), method)
    with pytest.raises(ValueError, match="method 'SecondOrder' needs 4 derivatives of the loss, 2 in the perturbed"):
        ldp.m_estimate(losses.absolute(), release, method)


def test_a_method_that_lacks_what_it_must_have_cannot_be_made():
    class Nothing(Correction):
        pass

    class Anything(Correction):
        def takes(self, noise, columns):
            return True

    with pytest.raises(TypeError, match=r"abstract method '?takes'?"):
        Nothing()
    with pytest.raises(NotImplementedError, match="Anything must define the method terms"):
        ldp.m_estimate(MEAN, release(), Anything(), **PLACED)


class Scaled(Correction):
    """Not a dataclass decorated by us, and with no options: the loss itself."""

    def takes(self, noise, columns):
        return True

    def evidence(self, loss, mechanism, rows, key, *, everywhere):
        return Naive().evidence(loss, mechanism, rows, key)


def test_a_method_from_elsewhere_is_an_argument_of_compiled_functions():
    estimator = Estimator(MEAN, ZERO_INFLATED, Scaled(), ldp.estimation.Box(-5.0, 5.0))
    rows, start = release().values[:, None], jnp.zeros(1)
    fit = jax.jit(lambda estimator: estimator(jax.random.key(0), rows, start))(estimator)
    np.testing.assert_allclose(fit.theta, rows.mean(axis=0), rtol=1e-5)  # in single precision
    assert isinstance(estimator.evidence(None, rows), EvidenceCorrection)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: correction_from(DoublyRandom(), draws=4),
            TypeError,
            r"draws=4 is only for a method given by name; use method=Doub",
        ),
        (lambda: ldp.m_estimate(MEAN, release(), Combined(), support=None), TypeError, "support=None is only for a "),
        (
            lambda: correction_from(DoublyRandom),
            TypeError,
            r"method must be one of combined, .*; call it, DoublyRandom\(",
        ),
        (lambda: correction_from(3), TypeError, "or a Correction, got 3"),
        (
            lambda: correction_from("gmm"),
            ValueError,
            "method must be one of combined, dr, sdr, sl, independent, naive, or",
        ),
        (lambda: DoublyRandom(draws=True), ValueError, "draws must be a positive integer or 'exact', got True"),
        (lambda: Combined(support=(0, 1, 2)), ValueError, "support must be 'bounds', a pair"),
        (lambda: Combined(support=([0, 0], [1, 1, 1])), ValueError, "the support's bounds must have the same length"),
        (lambda: Combined(support=(0, np.inf)), ValueError, "support's upper bound must be finite, got inf"),
        (lambda: SmoothedDoublyRandom(cuts=0.5), ValueError, "cuts must be a sequence of finite numbers, got 0.5"),
        (
            lambda: Estimator(MEAN, ZERO_INFLATED, "dr", ldp.estimation.Box(-1.0, 1.0)),
            TypeError,
            r"method must be a Correction, such as DoublyRandom\(draws=4\), got 'dr'",
        ),
        (
            lambda: Estimator(MEAN, ldp.LaplaceMechanism(1.0, 0, 1), DoublyRandom(), ldp.estimation.Box(-1.0, 1.0)),
            ValueError,
            "method 'dr' is not for LaplaceMechanism; use 'sl' or 'independent'",
        ),
        (
            lambda: Estimator(MEAN, ZERO_INFLATED, DoublyRandom(support=([0, 0], 1)), ldp.estimation.Box(-1.0, 1.0)),
            ValueError,
            r"one for each perturbed column \(here 1\), got shape \(2,\)",
        ),
        (
            lambda: ldp.m_estimate(MEAN, ldp.Release([0.3, 2.0], ldp.GaussianMechanism(1.0, 0.1, 0, 1))),
            ValueError,
            "method 'combined' is not for GaussianMechanism; use ldpbayes.fit, or your own",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
