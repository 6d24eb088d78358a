"""Reproductions of the regression figures of Kulkarni et al.; what they recorded is in docs/how_to/regression.md."""

import functools
import os

import jax
import numpy as np
import pytest
from scipy import integrate, special, stats

from ldpbayes.estimation.losses import as_loss, logistic, squared
from ldpbayes.likelihood import ChebyshevExpansion
from ldpbayes.models import linear_regression, logistic_regression
from ldpbayes.privacy import gaussian_scale
from reproductions.kulkarni_et_al.regression import (
    ExpandedRecords,
    _area_under_curve,
    _budget_of,
    adult,
    expansion_error,
    ldp_sgd,
    linear_coefficients,
    linear_regression_error,
    logistic_coefficients,
    logistic_regression_auc,
    wine,
)
from tests.checkpoints import read

needs_data = pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")


# tables


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("table", "count"), [(wine, 6_497), (adult, 48_842)])
def test_covariates_are_centred_principal_components_of_which_a_ball_holds_95_percent(table, count):
    covariates, response = table(4, radius=2.0)
    assert covariates.shape == (count, 4) and response.shape == (count,)
    np.testing.assert_allclose(covariates.mean(axis=0), 0, atol=1e-12)
    covariance = np.cov(covariates.T)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=1e-10)
    assert np.all(np.diff(np.diag(covariance)) < 0)
    assert np.mean(np.linalg.norm(covariates, axis=1) <= 2.0) == pytest.approx(0.95, abs=1 / count)


@pytest.mark.slow
@needs_data
def test_responses_are_the_quality_in_points_and_whether_the_income_is_high():
    quality = wine(1)[1]
    assert quality.mean() == pytest.approx(0, abs=1e-12)
    assert len(np.unique(quality)) == 7 and np.ptp(quality) == 6  # from 3 to 9 points
    income = adult(1)[1]
    assert set(income) == {0, 1} and income.sum() == 11_687


def test_tables_that_are_not_there_are_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no file .*winequality-red\.csv"):
        wine(folder=tmp_path)
    monkeypatch.delenv("LDPBAYES_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"set LDPBAYES_DATA to the folder with adult\.data"):
        adult()


# the baseline


def records(rng, count=60, d=2):
    x = rng.normal(size=(count, d))
    return np.column_stack([x, rng.random(count) < special.expit(x.sum(axis=1))])


@pytest.mark.parametrize("loss", [logistic(intercept=False), squared(intercept=False)])
def test_without_noise_a_group_moves_the_parameters_by_the_mean_of_its_clipped_gradients(loss, rng):
    rows, step, size = 2 * records(rng), 0.7, 7
    rows[:, -1] /= 2
    # at such a budget the noise is below 2e-6, and a group has as many users as the constant says
    epsilon = 1e12
    found = ldp_sgd(
        jax.random.key(0),
        rows[None],
        loss,
        parameters=2,
        epsilon=epsilon,
        delta=1e-5,
        steps=np.array([step]),
        group=size * epsilon**2 / (2 * np.log(2)),
    )
    theta, clipped = np.zeros(2), 0
    for t in range(60 // size):
        x, y = rows[t * size : (t + 1) * size, :2], rows[t * size : (t + 1) * size, 2]
        eta = x @ theta
        gradients = ((special.expit(eta) if "logistic" in loss.kernel.__name__ else eta) - y)[:, None] * x
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped += np.sum(norms > 1)
        theta -= step / np.sqrt(t + 1) * np.mean(gradients / np.maximum(norms, 1), axis=0)
    assert 0 < clipped < 56
    # eight steps of at most 0.7 with noise of 2e-6, times 1.6 for how much of an error a step can pass on
    np.testing.assert_allclose(found[0, 0], theta, atol=1e-4)


def test_gradients_carry_the_noise_of_their_budget_and_a_group_its_mean():
    nothing = as_loss(lambda x, theta: 0.0 * theta.sum())
    epsilon, delta, replicates, steps = 1.5, 1e-6, 2000, np.array([1.0, 3.0])
    group = 10 * epsilon**2 / (3 * np.log(3))
    found = ldp_sgd(
        jax.random.key(3),
        np.zeros((replicates, 45, 1)),
        nothing,
        parameters=3,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        group=group,
    )
    # 45 users are 4 groups of 11, of which 10 were asked for
    scale = gaussian_scale(epsilon, delta, 2.0) * np.sqrt(np.sum(1 / np.arange(1, 5)) / 11)
    statistics = np.sum(found**2, axis=(0, 2)) / (scale * steps) ** 2
    # 6,000 squares of a standard normal for either step: a two-sided test at level 1e-4, with this seed
    assert np.all(np.abs(stats.chi2.cdf(statistics, 6000) - 0.5) < 0.5 - 0.5e-4)


@pytest.mark.slow
def test_with_many_users_the_baseline_finds_the_slopes(rng):
    rows = records(rng, 20_000)[None]
    found = ldp_sgd(
        jax.random.key(0),
        rows,
        logistic(intercept=False),
        parameters=2,
        epsilon=8.0,
        delta=1e-5,
        steps=np.array([0.3, 1.0]),
    )
    # the last steps of 1/√20,000 on noise of 2·0.6 leave a standard deviation of about 0.2
    np.testing.assert_allclose(found[0, 1], 1.0, atol=0.6)


# Figure 6


def test_the_expansion_of_order_two_is_that_of_order_one_and_higher_ones_are_closer():
    rows = expansion_error((3,), (1, 2, 3, 5), replicates=10, count=200)
    assert [(row["dimension"], row["order"]) for row in rows] == [(3, 1), (3, 2), (3, 3), (3, 5)]
    for name in ("mean", "record", "release", "outside"):
        assert rows[0][name] == pytest.approx(rows[1][name], abs=1e-12)
    for better, worse in zip(rows[2:], rows[1:], strict=False):
        assert all(better[name] < worse[name] for name in ("mean", "record", "release"))
    # Figure 6 shows the difference of two means that are both 1/2 but for the sampling of 200 records
    assert rows[1]["mean"] < rows[1]["record"] / 5


def test_means_given_a_release_are_those_of_adaptive_quadrature(rng):
    run = ExpandedRecords(rng, rng.standard_normal((4, 4)), 20, noise=2.0)
    for mean, center in zip(run.means, run.given_release[:, 0], strict=True):

        def integrand(t, center=center):
            return special.expit(center + run.deviation * t) * stats.norm.pdf(t)

        # quad's own tolerance
        assert mean == pytest.approx(integrate.quad(integrand, -9, 9, epsabs=1e-12)[0], abs=1e-10)


# Figures 4 and 5

QUICK = {"replicates": 3, "num_warmup": 100, "num_samples": 50}


def table(rng, count=2_000, logistic=False):
    """Records in the unit disc, nearly normal."""
    x = rng.normal(size=(count, 2)) * [0.3, 0.2]
    eta = x @ [1.5, -2.0]
    return x, (rng.random(count) < special.expit(2 * eta)).astype(int) if logistic else eta + rng.normal(
        size=count
    ) * 0.4


def by_method(rows, epsilon):
    return {row["method"]: row for row in rows if row["epsilon"] == epsilon}


@pytest.mark.slow
def test_with_a_large_budget_all_methods_come_near_to_the_non_private_regression_and_are_kept(tmp_path, rng):
    methods = ["statistics", "statistics, bound", "records", "ldp-sgd"]  # others take more to compile
    settings = {"methods": methods, "epsilons": (1.0, 400.0), "checkpoint": tmp_path / "study.npz", **QUICK}
    x, y = table(rng)
    rows = linear_regression_error(linear_regression(), x, y, **settings)
    (non_private,) = by_method(rows, np.inf).values()
    # a residual of 0.4, and what the sampling of 400 records for testing does to it, four standard errors
    assert non_private["rmse"] == pytest.approx(0.4, abs=0.4 * 4 / np.sqrt(2 * 3 * 400)) and non_private["away"] == 0
    assert list(by_method(rows, 1.0)) == [*methods, "ldp-sgd, tuned"]
    for name, row in by_method(rows, 400.0).items():
        # the response's standard deviation is 0.6 in all, that of what is to be predicted
        assert row["away"] < 0.15 and row["rmse"] == pytest.approx(non_private["rmse"], rel=0.1), name
    small, large = by_method(rows, 1.0), by_method(rows, 400.0)
    assert large["ldp-sgd"] == large["ldp-sgd, tuned"] | {"method": "ldp-sgd"}
    assert small["ldp-sgd, tuned"]["rmse"] < small["ldp-sgd"]["rmse"]
    assert (small["ldp-sgd"]["step"], small["ldp-sgd"]["group"]) == (
        large["ldp-sgd"]["step"],
        large["ldp-sgd"]["group"],
    )
    kept = read(tmp_path / "study.npz")[1]
    assert kept["1.0 records"].shape == (3, 1, 3) and kept["1.0 ldp-sgd"].shape == (3, 75, 3)
    again = linear_regression_error(linear_regression(), x, y, **settings)  # from the file: nothing is sampled
    assert again == rows
    for wrong, said in (({"replicates": 2}, "replicates is 3 in the file"), ({"delta": 1e-6}, "bounds is")):
        with pytest.raises(ValueError, match=f"other settings: {said}"):
            linear_regression_error(linear_regression(), x, y, **settings | wrong)
    with pytest.raises(ValueError, match=r"other settings: table is"):
        linear_regression_error(linear_regression(), x, 2 * y, **settings)
    with pytest.raises(ValueError, match="other settings: the model or its priors are different"):
        linear_regression_error(linear_regression(concentration=3.0), x, y, **settings)


@pytest.mark.slow  # a reproduction; that these posteriors find the slopes is seen in tests/models/test_regression.py
def test_logistic_regressions_come_near_to_the_non_private_one_too(rng):
    x, y = table(rng, 600, logistic=True)
    expansion = logistic_regression()  # here the same, to be compiled once
    rows = logistic_regression_auc(logistic_regression(), x, y, expansion=expansion, epsilons=(400.0,), **QUICK)
    (non_private,) = by_method(rows, np.inf).values()
    found = by_method(rows, 400.0)
    records = ["records", "records, mode", "records, expansion", "records, expansion, mode"]
    assert list(found) == ["statistics", "ldp-sgd", "ldp-sgd, tuned", *records]
    for name, row in found.items():
        assert row["auc"] == pytest.approx(non_private["auc"], abs=0.02), name
    # the same model has the same releases
    assert found["records, expansion"] == found["records"] | {"method": "records, expansion"}
    assert found["records, expansion, mode"] == found["records, mode"] | {"method": "records, expansion, mode"}


def test_the_budget_of_a_scale_is_that_at_which_it_is_needed():
    for ratio in (1.0, 1.3, 20.0):
        scale = ratio * gaussian_scale(0.7, 1e-5)
        epsilon = _budget_of(scale, 0.7, 1e-5)
        assert epsilon <= 0.7 * (1 + 1e-9) and gaussian_scale(epsilon, 1e-5) == pytest.approx(scale, rel=1e-9)


def test_the_area_is_the_share_of_pairs_in_order(rng):
    predictors, y = rng.integers(0, 5, size=(2, 30)), rng.integers(0, 2, size=(2, 30))
    for area, eta, labels in zip(_area_under_curve(predictors, y), predictors, y, strict=True):
        difference = eta[labels == 1][:, None] - eta[labels == 0]
        assert area == pytest.approx(np.mean((difference > 0) + 0.5 * (difference == 0)), rel=1e-12)


def test_non_private_coefficients_are_posterior_means_and_modes(rng):
    x, y = table(rng)
    slopes = linear_coefficients(np.column_stack([x, y])[None])[0, 1:]
    variance = np.mean((y - x @ np.linalg.lstsq(x, y)[0]) ** 2)
    np.testing.assert_allclose(x.T @ (y - x @ slopes) / variance - slopes / 5, 0, atol=1e-8)
    x, y = table(rng, logistic=True)
    slopes = logistic_coefficients(np.column_stack([x, y])[None])[0, 1:]
    np.testing.assert_allclose(x.T @ (y - special.expit(x @ slopes)) - slopes / 5, 0, atol=1e-8)


@pytest.mark.slow
def test_exact_sensitivities_lower_the_error_where_the_noise_dominates(rng):
    # like wine's first components, but so many records that the data say something in spite of the noise
    x = rng.normal(size=(200_000, 3)) * [0.36, 0.34, 0.26]
    y = x @ [0.2, -0.75, 0.65] + 0.75 * rng.normal(size=len(x))
    methods = ["statistics", "statistics, bound", "statistics, scaled"]
    rows = linear_regression_error(linear_regression(), x, y, methods=methods, epsilons=(4.0,))
    found = by_method(rows, 4.0)
    for row in rows:
        print(row)
    assert found["statistics"]["away"] < 0.85 * found["statistics, bound"]["away"]
    assert found["statistics, scaled"]["away"] < found["statistics"]["away"]


@pytest.mark.slow
@needs_data
def test_statistics_are_ahead_of_the_baseline_at_small_budgets_as_in_figure_4():
    rows = linear_regression_error(linear_regression(), *wine(), epsilons=(0.4, 0.8, 1.6, 4.0, 16.0))
    for row in rows:
        print(row)
    small, large = by_method(rows, 0.4), by_method(rows, 16.0)
    assert small["statistics"]["rmse"] < small["ldp-sgd"]["rmse"]
    assert large["statistics"]["rmse"] > large["ldp-sgd"]["rmse"]


@pytest.mark.slow
@needs_data
def test_statistics_are_ahead_of_the_baseline_at_small_budgets_as_in_figure_5():
    expansion = logistic_regression(expansion=ChebyshevExpansion())
    methods = ["statistics", "ldp-sgd", "records, mode", "records, expansion, mode"]
    figure = functools.partial(logistic_regression_auc, logistic_regression(), *adult(), expansion=expansion)
    rows = figure(methods=methods)
    # chains on all records take long, and are compared at the budget at which records say most
    chains = {"replicates": 10, "num_warmup": 100, "num_samples": 100}
    rows += figure(methods=["records", "records, expansion"], epsilons=(4.0,), **chains)[1:]
    for row in rows:
        print(row)
    for epsilon in (0.4, 0.8):
        found = by_method(rows, epsilon)
        assert found["statistics"]["auc"] > found["ldp-sgd, tuned"]["auc"]
    assert by_method(rows, 4.0)["statistics"]["auc"] > rows[0]["auc"] - 0.02


@pytest.mark.slow
def test_the_expansion_of_order_two_is_moderately_accurate_as_in_figure_6():
    for row in expansion_error():
        print(row)
        if row["order"] == 2:  # what the figure shows, and what the likelihood takes
            assert row["mean"] < 0.002 and 0.005 < row["release"] < 0.02
