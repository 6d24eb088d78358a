"""The penalised estimate of a law without a parametric family."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import ldpbayes as ldp
from ldpbayes import functionals
from ldpbayes.estimation import estimate_density
from ldpbayes.estimation.estimates import Estimate
from ldpbayes.estimation.smoothing import (
    ROUGHNESS,
    SmoothFamily,
    log_likelihood_at,
    prior_of,
    smooth_basis,
)
from ldpbayes.likelihood import SmoothMass

N = 5000
RNG = np.random.default_rng(0)
RECORDS = 10 * RNG.beta(5, 2, N)
MECHANISM = ldp.LaplaceMechanism(2.0, 0.0, 10.0)
FAMILY = SmoothFamily(0.0, 10.0, 41, whole=False)


def released(records=RECORDS, mechanism=MECHANISM, seed=0):
    """A release with (discrete) Laplace noise from NumPy, which compiles nothing."""
    rng, scale, size = np.random.default_rng([7, seed]), mechanism.scale, len(records)
    noise = rng.laplace(0, scale, size)
    if isinstance(mechanism, ldp.DiscreteLaplaceMechanism):
        noise = rng.geometric(1 - np.exp(-1 / scale), size) - rng.geometric(1 - np.exp(-1 / scale), size)
    if isinstance(mechanism, ldp.ZeroInflatedLaplaceMechanism):
        noise = rng.laplace(0, scale / np.sqrt(2), size) * (rng.random(size) >= mechanism.zero_probability)
    return ldp.Release(np.clip(records, mechanism.lower, mechanism.upper) + noise, mechanism)


@functools.cache
def sketch():
    return released().sketch()


@functools.cache
def estimated():
    """The estimate of the sketch, with the default functionals."""
    return estimate_density(sketch())


@jax.jit
def mean_and_cdf(thetas, at):
    def values(theta):
        law = FAMILY.law(theta)
        return jnp.append(law.mean, law.cdf(at))

    return jax.vmap(values)(thetas)


def test_second_differences_of_the_prior_are_independent_and_its_sizes_are_the_roughness():
    basis = smooth_basis(12)
    second = np.diff(basis, n=2, axis=0)
    covariance = second @ second.T
    np.testing.assert_allclose(covariance, covariance[0, 0] * np.eye(10), atol=1e-12)
    assert np.sum(basis[:, 0] ** 2) == pytest.approx(13 / 11 * 12)  # a straight line of variance one, but for its ends
    assert np.mean(np.sum(basis[:, 1:] ** 2, axis=1)) == pytest.approx(1.0)
    np.testing.assert_allclose(basis.T @ np.ones(12), 0, atol=1e-10)


def test_the_estimate_is_the_mode_and_its_roughness_has_the_largest_marginal_likelihood():
    fit, likelihood = FAMILY.fit(sketch())
    assert fit.converged
    with jax.enable_x64(True):

        def slope_and_information(theta, roughness):
            _, slope, information, _ = log_likelihood_at(theta, likelihood, FAMILY)
            return np.asarray(slope - theta / roughness**2), np.asarray(information) + np.eye(40) / roughness**2

        slope, information = slope_and_information(fit.coefficients, fit.roughness)
        # the search ends where a step is within 0.005 standard errors
        assert slope @ np.linalg.solve(information, slope) < 40 * 0.005**2

        def marginal(roughness):
            """Minus the log posterior of the log of a roughness by Laplace's method, at the mode by Newton's."""
            theta = fit.coefficients
            for _ in range(8):
                _, slope, information, _ = log_likelihood_at(theta, likelihood, FAMILY)
                theta = theta + np.linalg.solve(information + np.eye(40) / roughness**2, slope - theta / roughness**2)
            value, _, information, _ = log_likelihood_at(theta, likelihood, FAMILY)
            log_det = np.linalg.slogdet(np.asarray(information) * roughness**2 + np.eye(40))[1]
            prior = theta @ theta / roughness**2 / 2 + roughness**2 / ROUGHNESS**2 / 2 - np.log(roughness)
            return -float(value) + float(prior) + log_det / 2

        best = optimize.minimize_scalar(
            lambda log: marginal(np.exp(log)), bracket=np.log(fit.roughness) + np.array([-0.3, 0.0, 0.3]), tol=1e-4
        )
    # The criterion is the same but for the change of the information with the roughness, which moves the maximum by
    # less than a standard error of log τ, about (2 · degrees of freedom)^−1/2 = 0.3; its value by less than 0.1 nats.
    assert marginal_excess(marginal, fit.roughness, best) < 0.1


def marginal_excess(marginal, roughness, best):
    with jax.enable_x64(True):
        return marginal(float(roughness)) - best.fun


def test_standard_errors_are_those_of_draws_from_the_normal_law_of_the_coefficients():
    estimate = estimated().of({"mean": functionals.mean, "cdf": functionals.cdf([3.0, 7.0])})
    theta, covariance, _ = estimate._fit
    at = np.array([3.0, 7.0])
    draws = np.random.default_rng(1).multivariate_normal(theta, covariance / 100, 4000)
    with jax.enable_x64(True):
        values = np.asarray(mean_and_cdf(draws, at))
    # a tenth of the errors, at which functionals are linear; the relative error of a deviation of 4,000 draws is 1.1 %
    np.testing.assert_allclose(10 * np.std(values, axis=0), estimate.standard_error, rtol=0.06)
    assert isinstance(estimate, Estimate) and estimate.names == ["mean", "cdf[3.0]", "cdf[7.0]"]
    assert estimate.contrast({"cdf[7.0]": 1, "cdf[3.0]": -1}).standard_error > 0
    assert "epsilon = 2" in estimate.privacy and "Smooth density on [0, 10]" in estimate.summary()


# A miss of 4.5 standard errors has probability 1e-5 a number; the penalty's bias is part of the errors.
def test_the_estimate_finds_the_law_of_the_records():
    estimate = estimated()
    assert not isinstance(estimate.law, SmoothMass) and len(estimate.law.knots) == 41 and len(estimate.names) == 7
    truth = np.array([RECORDS.mean(), RECORDS.std(), *np.quantile(RECORDS, [0.05, 0.25, 0.5, 0.75, 0.95])])
    assert np.all(np.abs(estimate.params - truth) < 4.5 * estimate.standard_error)
    # the mean's is that of the released values, but for what the prior knows
    assert 0.5 < estimate.standard_error[0] / (np.asarray(released().values).std() / np.sqrt(N)) < 1.1


# Error rate 1e-5. A roughness of 0 is the most likely one in most data sets of uniform records; errors vanish at it.
def test_errors_do_not_vanish_where_the_records_are_uniform():
    squares = 0.0
    for seed in range(20):
        records = 10 * np.random.default_rng(seed).random(2000)
        estimate = estimate_density(released(records, seed=seed).sketch(), functionals={"mean": functionals.mean})
        squares += ((estimate.params[0] - records.mean()) / estimate.standard_error[0]) ** 2
    assert squares < stats.chi2.isf(1e-5, 20)


def test_a_sketch_and_the_release_have_one_estimate():
    part = released(RECORDS[:800])
    whole, sketched = estimate_density(part), estimate_density(part.sketch())
    assert np.max(np.abs(whole.params - sketched.params) / whole.standard_error) < 0.02  # both searches end at 0.005
    budgets = ldp.LaplaceMechanism(np.full(800, 2.0), 0.0, 10.0)
    personal = estimate_density(ldp.Release(part.values, budgets))
    assert np.max(np.abs(whole.params - personal.params) / whole.standard_error) < 0.02


@pytest.mark.slow  # as priors of labels do
def test_the_estimate_moves_and_scales_with_the_records():
    other = ldp.Release(50 + 20 * released().values, ldp.LaplaceMechanism(2.0, 50.0, 250.0)).sketch()
    one, two = estimated(), estimate_density(other)
    np.testing.assert_allclose(two.params[[0, 2, 4]], 50 + 20 * one.params[[0, 2, 4]], rtol=1e-3)
    assert two.roughness == pytest.approx(one.roughness, rel=0.05)


# A miss of 4.5 standard errors has probability 1e-5 a number.
@pytest.mark.parametrize(
    "mechanism",
    [
        ldp.DiscreteLaplaceMechanism(1.0, 0, 20),
        pytest.param(ldp.LaplaceMechanism(1.0, 0.0, 20.0), marks=pytest.mark.slow),
    ],
)
def test_masses_of_whole_numbers_are_found_where_the_mechanism_takes_them(mechanism):
    counts = np.random.default_rng(3).negative_binomial(1, 0.25, N)
    whole = isinstance(mechanism, ldp.DiscreteLaplaceMechanism)
    estimate = estimate_density(released(counts, mechanism).sketch())
    assert isinstance(estimate.law, SmoothMass) == whole and estimate.names[:2] == ["mean", "sd"]
    assert len(estimate.names) == (2 if whole else 7) and len(estimate.law.knots) == (21 if whole else 41)
    asked = estimate.of({"mass": functionals.density([1.0, 4.0]), "below": functionals.cdf(5.0)})
    kept = np.clip(counts, 0, 20)
    truth = np.array([kept.mean(), kept.std(), np.mean(kept == 1), np.mean(kept == 4), np.mean(kept <= 5)])
    found, errors = (np.append(a, b) for a, b in zip(_numbers(estimate), _numbers(asked), strict=True))
    checked = slice(None) if whole else slice(2)  # numbers that are not whole have no masses
    assert np.all(np.abs(found[[0, 1, -3, -2, -1]] - truth)[checked] < 4.5 * errors[[0, 1, -3, -2, -1]][checked])


def _numbers(estimate):
    return estimate.params, estimate.standard_error


@pytest.mark.slow  # the posterior's test has atoms, too
def test_atoms_of_clipping_are_found():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 5.0, 0.0, 10.0)
    records = np.where(np.arange(N) % 10 == 0, 12.0, RECORDS)
    shares = {"above": lambda law: law.outside[1], "below": lambda law: law.outside[0]}
    estimate = estimate_density(released(records, mechanism).sketch(), outside=True, functionals=shares)
    above, below = zip(estimate.params, estimate.standard_error, strict=True)
    # 200 of 1,000 records without noise are at the bound, none at the other
    assert abs(above[0] - 0.1) < 4.5 * above[1] and above[1] < 0.015
    assert below[0] < 0.003


def test_a_wider_interval_holds_records_that_the_mechanism_clips():
    estimate = estimate_density(sketch(), -5.0, 20.0, functionals={"inside": functionals.share(0.0, 10.0)})
    assert estimate.law.lower == -5.0 and estimate.params[0] > 0.5


def test_prior_of_has_the_atoms_last():
    means, precisions = prior_of(2.0, 5, True)
    np.testing.assert_allclose(means, [0, 0, 0, 0, -3, -3])
    np.testing.assert_allclose(precisions, [0.25] * 4 + [1 / 1.5**2] * 2)
    assert len(prior_of(2.0, 5, False)[0]) == 4


@pytest.mark.parametrize(
    ("data", "options", "error", "said"),
    [
        (RECORDS, {}, TypeError, "one release, or one sketch"),
        (sketch, {"lower": 1.0}, ValueError, "include the bounds 0 and 10"),
        (sketch, {"knots": 3}, ValueError, "knots"),
        (sketch, {"functionals": {}}, ValueError, "one or more"),
        (ldp.Release(None, MECHANISM, count=9), {}, ValueError, "released values"),
        (ldp.Release([3.0], ldp.LaplaceMechanism(1.0, sensitivity=1.0)), {}, ValueError, "clips numbers"),
        (ldp.Release([0, 1], ldp.RandomizedResponse(1.0, 2)), {}, ValueError, "categories"),
        (lambda: released().sketch(by=np.arange(N) % 2), {}, TypeError, "without groups"),
    ],
)
def test_what_has_no_estimate_density_is_refused(data, options, error, said):
    with pytest.raises(error, match=said):
        estimate_density(data() if callable(data) else data, **options)


def test_a_law_with_all_its_records_at_a_bound_is_said_to_be_unknown():
    with pytest.warns(ldp.estimation.EstimationWarning, match="at the upper end"):
        estimate_density(released(np.full(N, 30.0), ldp.LaplaceMechanism(20.0, 0.0, 10.0)).sketch())


def test_values_at_a_bound_without_noise_need_atoms():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.5, 1.0, 0.0, 10.0)
    with pytest.raises(ValueError, match="outside="):
        estimate_density(released(np.full(50, 30.0), mechanism), knots=8)
