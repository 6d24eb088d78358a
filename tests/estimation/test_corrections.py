"""Correction methods as objects: their names and options, what they take, and how another one is added."""

import contextlib
import gc
import io
import pathlib
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes import losses
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
)
from ldpbayes.estimation._corrections import correction_from
from ldpbayes.estimation.m_estimation import Estimator
from ldpbayes.noise import Gaussian, Laplace, SymmetricLaplace, WithPublicRecords, ZeroInflated

ZERO_INFLATED = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.5, 0.0, 1.0)
MEAN = losses.squared(features=())


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
    assert correction_from("dr", draws=2, support=(0, 1), cuts=[0.5]) == DoublyRandom(2, (0.0, 1.0), (0.5,))
    assert correction_from("sl", draws=3, support=(0, 1)) == SymmetricLaplaceCorrection(3)  # it knows no support
    named = ldp.m_estimate(MEAN, release(), "dr", draws=2, support=(0, 1), seed=4)
    made = ldp.m_estimate(MEAN, release(), DoublyRandom(draws=2, support=(0, 1)), seed=4)
    np.testing.assert_array_equal(made.params, named.params)
    np.testing.assert_array_equal(made.covariance, named.covariance)
    assert made.method == "dr"


def test_methods_are_equal_by_their_options():
    ends = [0.0, 1.0]
    assert DoublyRandom(support=(ends, 2)) == DoublyRandom(support=(np.array(ends), 2.0))
    assert DoublyRandom(support=None) != DoublyRandom() != DoublyRandom(support=(0, 1)) != Combined(support=(0, 1))
    assert len({DoublyRandom(), DoublyRandom(), DoublyRandom(4), Naive(), Oracle()}) == 4
    assert repr(DoublyRandom(4)) == "DoublyRandom(draws=4, support='bounds', cuts=())"


def test_supports_of_a_kind_share_what_is_compiled():
    wider = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.1, -2.0, 3.0)
    estimators = [
        Estimator(MEAN, mechanism, DoublyRandom(4, support), ldp.estimation.Box(-1.0, 1.0)).settled
        for mechanism in (ZERO_INFLATED, wider)
        for support in ("bounds", (0.1, 0.9), (np.zeros(1), np.ones(1)))
    ]
    assert len({jax.tree.structure(estimator) for estimator in estimators}) == 1
    assert len({tuple(np.shape(leaf) for leaf in jax.tree.leaves(estimator)) for estimator in estimators}) == 1
    np.testing.assert_array_equal(estimators[3].method.support, [[-2.0], [3.0]])


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
    both = [method.evidence(MEAN, mechanism, jnp.asarray(values[:, None]), key) for mechanism in (laplace, symmetric)]
    for one, other in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # in single precision
    estimate = ldp.m_estimate(MEAN, ldp.Release(values, laplace), method)
    # ½ λ² times the second derivative is a constant; the solver's last step is 1e-6 of a unit, and its square is left
    assert estimate.params[0] == pytest.approx(values.mean(), rel=1e-9)


def test_every_record_is_corrected_for_its_own_independent_noise(x64):
    scales = np.array([0.0, 0.5, 1.0])
    mechanism = ldp.mechanisms.IndependentLaplaceMechanism(scales, 0.0, 1.0)
    z = jnp.array([[0.3], [-0.4], [1.7]])
    evidence = IndependentLaplaceCorrection().evidence(MEAN, mechanism, z, None)
    later = ldp.mechanisms.IndependentLaplaceMechanism(2.0, 0.0, 1.0)
    both = evidence.joined(IndependentLaplaceCorrection().evidence(MEAN, later, z, None))
    want = 0.5 * (np.tile(z[:, 0], 2) - 0.2) ** 2 - 0.5 * np.r_[scales, 2.0, 2.0, 2.0] ** 2
    np.testing.assert_allclose(both.criteria[0].values(MEAN, jnp.array([0.2]), (0,)), want, rtol=1e-13)


def test_an_estimate_keeps_nothing_of_a_release_but_its_evidence():
    given = release()
    values = weakref.ref(given.values)
    estimate = ldp.m_estimate(MEAN, given, DoublyRandom(draws=2))
    del given
    gc.collect()
    assert values() is None
    held = jax.tree.leaves((estimate._solver.estimator, estimate._mechanisms, estimate.params, estimate.covariance))
    assert max(np.size(leaf) for leaf in held) < 10 and jax.tree.leaves(estimate._evidence)[0].shape[1] == 300


def test_estimates_of_all_kinds_are_estimates_and_repeat_what_was_promised():
    first, other = release(), ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, 0.0, 1.0)
    estimate = ldp.m_estimate(MEAN, first, DoublyRandom(draws=2))
    promised = ZERO_INFLATED.guarantee.statement()
    assert estimate.privacy == promised
    assert estimate.update(first).privacy.endswith(f"\n2 releases, each: {promised}")
    total, *each = estimate.update(release(other)).privacy.split("\n")
    assert total.startswith("2 releases.") and each == [promised, other.guarantee.statement()]
    assert "No record is protected" in ldp.m_estimate(MEAN, np.linspace(0, 1, 50), Oracle()).privacy
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
    page = (pathlib.Path(__file__).parents[2] / "docs" / "m_estimation.md").read_text()
    section = page.split("\n## Your own loss, your own correction\n")[1].split("\n## ")[0]
    printed = io.StringIO()
    names = {}
    with contextlib.redirect_stdout(printed):
        exec("\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL)), names)
    return names, printed.getvalue(), re.search(r"\n\n```\n(.*?)```", section, re.DOTALL)[1]


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
        def takes(self, noise, columns):
            return True

    with pytest.raises(TypeError, match=r"abstract method '?evidence'?"):
        Nothing()


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
            r"draws=4 goes with a method's name; here say Doub",
        ),
        (lambda: ldp.m_estimate(MEAN, release(), Combined(), support=None), TypeError, "support=None goes with a met"),
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
        (lambda: Combined(support=([0, 0], [1, 1, 1])), ValueError, "the support's bounds must be of one length"),
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
            r"one a perturbed column \(here 1\), got shape \(2,\)",
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
