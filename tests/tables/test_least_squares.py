"""Linear queries of one table: least squares against statsmodels, exact draws, and chains against quadrature."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import sparse

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.inference.result import dataset
from ldpbayes.mechanisms import AdditiveMechanism, Floored, Incomplete, Withheld
from ldpbayes.tables import NoisyTable, estimate_table, true_table

STATE, COUNTY = np.repeat(["A", "B", "C"], 2), np.array(["x", "y"] * 3)
TRUE = np.array([12, 30, 4, 9, 50, 22])


def hierarchy(kind=ldp.DiscreteGaussianMechanism, seed=0):
    """Counties, states and the total, with noise of standard deviations 6, 3 and 2 each."""
    rng = np.random.default_rng(seed)
    parts = {
        "county": (TRUE, 6.0),
        "state": (TRUE.reshape(3, 2).sum(axis=1), 3.0),
        "all": (TRUE[None].sum(axis=1), 2.0),
    }
    keys = {"county": {"state": STATE, "county": COUNTY}, "state": {"state": ["A", "B", "C"]}, "all": {}}
    return {
        name: NoisyTable(
            x + np.rint(rng.normal(0, scale, len(x))).astype(int), kind(scale=scale, sensitivity=1), keys=keys[name]
        )
        for name, (x, scale) in parts.items()
    }


def test_estimate_and_covariance_are_those_of_statsmodels():
    rng = np.random.default_rng(3)
    matrix = sparse.random(300, 40, density=0.1, random_state=rng, format="csr")
    deviations = rng.uniform(1, 9, 300)
    release = NoisyTable(matrix @ rng.normal(0, 30, 40), AdditiveMechanism(noise.Gaussian(deviations), sensitivity=1))
    estimate = estimate_table(release, matrix)
    fit = sm.GLS(release.values, matrix.toarray(), sigma=deviations**2).fit(cov_type="fixed scale")
    np.testing.assert_allclose(estimate.estimate, fit.params, rtol=0, atol=1e-9)
    np.testing.assert_allclose(estimate.covariance, fit.cov_params(), rtol=0, atol=1e-9)
    weights = rng.normal(size=40)
    contrast = estimate.contrast(weights)
    np.testing.assert_allclose(contrast.standard_error, np.sqrt(weights @ fit.cov_params() @ weights), rtol=1e-9)


def test_tables_with_fewer_keys_are_sums_of_the_cells():
    tables = hierarchy()
    estimate = estimate_table(tables)
    matrix = np.vstack([np.eye(6), np.kron(np.eye(3), np.ones(2)), np.ones(6)])
    values = np.concatenate([each.values for each in tables.values()])
    variances = np.concatenate(
        [np.full(n, each.mechanism.noise.variance) for n, each in zip((6, 3, 1), tables.values(), strict=True)]
    )
    fit = sm.GLS(values, matrix, sigma=variances).fit(cov_type="fixed scale")
    np.testing.assert_allclose(estimate.estimate, fit.params, rtol=0, atol=1e-9)
    assert estimate.names == ["A, x", "A, y", "B, x", "B, y", "C, x", "C, y"]
    assert "the table before noise" in estimate.summary() and "3 releases" in estimate.privacy
    explicit = dict(zip(tables, np.split(matrix, [6, 9]), strict=True))
    np.testing.assert_allclose(estimate_table(tables, explicit).estimate, estimate.estimate)


def test_missing_values_are_left_out():
    tables = hierarchy()
    county = tables["county"]
    kept = np.arange(6) != 2
    gap = NoisyTable(np.where(kept, county.values, np.nan), Incomplete(county.mechanism), keys=county.keys)
    rows = {"county": np.eye(6)[kept], "state": np.kron(np.eye(3), np.ones(2)), "all": np.ones((1, 6))}
    less = NoisyTable(county.values[kept], county.mechanism)
    expected = estimate_table(tables | {"county": less}, rows)
    got = estimate_table(tables | {"county": gap})
    np.testing.assert_allclose(got.estimate, expected.estimate, rtol=1e-12)
    np.testing.assert_allclose(got.covariance, expected.covariance, rtol=1e-12)


def test_draws_without_bounds_follow_the_normal_law_of_least_squares():
    # Means of 20,000 draws are within 5 standard errors, and variances within 5 of theirs, but for 7e-6 of runs.
    tables = hierarchy()
    estimate = estimate_table(tables)
    result = true_table(tables, queries="keys", nonnegative=False, num_samples=20_000)
    sample = dataset(result["posterior"])["cells"]
    assert sample.sizes == {"chain": 1, "draw": 20_000, "cell": 6} and list(sample["state"].values) == list(STATE)
    error = estimate.standard_error / np.sqrt(20_000)
    assert np.all(np.abs(sample.values[0].mean(axis=0) - estimate.estimate) < 5 * error)
    np.testing.assert_allclose(np.cov(sample.values[0].T), estimate.covariance, atol=5 * 36 * np.sqrt(2 / 20_000))


def moments_by_quadrature(log_density, upto):
    x = (np.arange(1500) + 0.5) * upto / 1500
    logs = log_density(x[:, None], x)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    means = [np.sum(p.sum(axis=1 - j) * x) for j in range(2)]
    return np.array(means), np.sqrt([np.sum(p.sum(axis=1 - j) * (x - means[j]) ** 2) for j in range(2)])


@pytest.mark.slow
def test_chains_of_cells_that_are_not_negative_follow_quadrature():
    # Laplace noise on two cells, one of them far below 0, and discrete Gaussian noise on their sum. Monte Carlo errors
    # at 800 effective draws are 0.035 standard deviations: 5 of them, but for 1e-5 of seeds.
    cells = NoisyTable(
        [-4.0, 6.0], AdditiveMechanism(noise.Laplace(3.0), sensitivity=1), keys={"age": ["young", "old"]}
    )
    both = NoisyTable([9], ldp.DiscreteGaussianMechanism(scale=2.0, sensitivity=1))
    options = {"num_samples": 500, "num_warmup": 500, "progress_bar": False}
    result = true_table({"cells": cells, "both": both}, queries="keys", **options)
    sample = dataset(result["posterior"])["cells"]
    assert sample.sizes == {"chain": 4, "draw": 500, "age": 2} and "sample_stats" in result

    def log_density(x, y):
        return -np.abs(x + 4) / 3 - np.abs(y - 6) / 3 - (x + y - 9) ** 2 / 8

    means, deviations = moments_by_quadrature(log_density, 40.0)
    flat = sample.values.reshape(-1, 2)
    assert flat.min() >= 0 and list(dataset(result["posterior"]).data_vars) == ["cells"]
    assert np.all(np.abs(flat.mean(axis=0) - means) < 0.18 * deviations)
    assert np.all(np.abs(flat.std(axis=0) / deviations - 1) < 0.18)


@pytest.mark.slow
def test_chains_of_a_hierarchy_agree_with_rejection_from_the_normal_law():
    # The posterior of cells that are not negative is the normal law where no cell is.
    tables = hierarchy(seed=5)
    free = true_table(tables, queries="keys", nonnegative=False, num_samples=400_000)
    draws = dataset(free["posterior"])["cells"].values[0]
    kept = draws[(draws >= 0).all(axis=1)]
    result = true_table(tables, queries="keys", num_samples=2000, progress_bar=False)
    sample = dataset(result["posterior"])["cells"].values.reshape(-1, 6)
    assert np.all(np.abs(sample.mean(axis=0) - kept.mean(axis=0)) < 0.1 * kept.std(axis=0))
    assert np.all(np.abs(sample.std(axis=0) / kept.std(axis=0) - 1) < 0.06)


@pytest.mark.slow
def test_chains_of_as_many_cells_as_are_worth_tables_run():
    cells = NoisyTable(
        np.arange(200), ldp.DiscreteGaussianMechanism(scale=6.0, sensitivity=1), keys={"county": np.arange(200)}
    )
    options = {"num_samples": 3, "num_warmup": 10, "num_chains": 1, "progress_bar": False}
    result = true_table(cells, queries="keys", **options)
    assert dict(dataset(result["posterior"])["cells"].sizes) == {"chain": 1, "draw": 3, "county": 200}


def test_what_queries_do_not_determine_is_refused_by_name():
    tables = hierarchy()
    gap = NoisyTable([3.0, *[np.nan] * 5], Incomplete(tables["county"].mechanism), keys=tables["county"].keys)
    with pytest.raises(
        ValueError, match=r"the queries have rank 4, and 4 of 6 cells are not determined \(B, x, B, y, C"
    ):
        estimate_table(tables | {"county": gap})
    with pytest.raises(ValueError, match=r"cells have keys .'state', 'county'.: give the queries"):
        estimate_table(tables | {"sex": NoisyTable([1, 2], tables["all"].mechanism, keys={"sex": ["f", "m"]})})
    with pytest.raises(ValueError, match="state: 1 released values have labels of no cell, the first C"):
        estimate_table(tables | {"county": tables["county"][:4]})
    with pytest.raises(ValueError, match=r"queries of cells must be 3 rows of finite numbers, got \(2, 4\)"):
        estimate_table(tables["state"], np.ones((2, 4)))
    with pytest.raises(ValueError, match="queries must all have one column for each cell"):
        estimate_table({"a": tables["state"], "b": tables["all"]}, {"a": np.eye(3), "b": np.ones((1, 4))})


@pytest.mark.parametrize(
    "rule", [Floored, lambda plain: Withheld(plain, threshold=4.0), lambda plain: Incomplete(Floored(plain))]
)
def test_values_that_rules_have_changed_are_refused(rule):
    release = NoisyTable([5.0, 6.0], rule(AdditiveMechanism(noise.Gaussian(2.0), sensitivity=1)), keys={"age": [1, 2]})
    with pytest.raises(TypeError, match=r"cells has the reporting rule (Floored|Withheld|Incomplete), which makes"):
        estimate_table(release)
