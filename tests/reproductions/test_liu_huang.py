"""Reproductions of the tables of Liu & Huang; what they recorded is in docs/reference/label_privacy_studies.md."""

import dataclasses
import os

import jax
import numpy as np
import pytest

from ldpbayes.estimation import SquaredError, linear_fit, release_labels
from ldpbayes.mechanisms import LaplaceMechanism
from reproductions.liu_huang.data import (
    CATEGORICAL,
    EPSILONS,
    FIELDS,
    NUMERIC,
    PARAMETERS,
    PRINTED,
    TABLE_1,
    TABLE_2,
    TABLE_4,
    TABLE_6,
    Setting,
    california,
    california_setting,
    communities,
    criteo,
)
from reproductions.liu_huang.learners import LEARNERS, PAPER, networks, stacked
from reproductions.liu_huang.releases import RELEASES, _histogram
from reproductions.liu_huang.tables import COLUMNS, Table, criteo_like, run_times, table_1, table_2, table_4
from reproductions.splits import Splits

needs_data = pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")
SHORT = dataclasses.replace(PAPER, widths=(8, 4), epochs=2, batch=64)


def made_up(count=120, bounds=(0.0, 1.0)):
    """A setting whose labels depend on the first of three features."""
    rng = np.random.default_rng(3)
    features = rng.uniform(size=(count, 3))
    labels = bounds[0] + (bounds[1] - bounds[0]) * np.clip(
        0.2 + 0.5 * features[:, 0] + 0.1 * rng.normal(size=count), 0, 1
    )
    return Setting(features, labels, bounds, PARAMETERS["communities"], TABLE_1, cell=(bounds[1] - bounds[0]) / 50)


# data


@pytest.mark.slow
@needs_data
def test_communities_are_those_of_the_paper():
    features, labels = communities()
    # 101 attributes with the response and the one that the paper's code drops
    assert features.shape == (1994, 99) and labels.shape == (1994,)
    assert np.isfinite(features).all() and features.min() == 0 and features.max() == 1
    assert len(np.unique(labels)) == 98 and (labels.min(), labels.max()) == (0, 1)
    assert Splits.of(features, labels, 2, 0).train.shape[1] == 1595  # of the paper's Table 6


@pytest.mark.slow
@needs_data
def test_block_groups_have_the_features_of_scikit_learn():
    features, labels = california()
    # the first two rows as they are printed in scikit-learn's documentation
    first = [8.3252, 41.0, 6.98412698, 1.02380952, 322.0, 2.55555556, 37.88, -122.23]
    second = [8.3014, 21.0, 6.23813708, 0.97188049, 2401.0, 2.10984183, 37.86, -122.22]
    np.testing.assert_allclose(features[:2], [first, second], rtol=1e-8)
    np.testing.assert_allclose(labels[:2], [4.526, 3.585])
    assert features.shape == (20640, 8) and (labels.min(), labels.max()) == (0.14999, 5.00001)
    assert Splits.of(features, labels, 2, 0).train.shape[1] == 16512


def test_a_missing_number_is_the_mean_of_the_others_and_attributes_with_more_are_dropped(tmp_path, monkeypatch):
    names = "state,population,OtherPerCap,racepctblack,LemasSwornFT,ViolentCrimesPerPop"
    (tmp_path / "communities.data").write_text(f"{names}\n1,0.1,0.2,0,NA,1\n2,0.3,?,0,0.5,0\n3,0.5,0.4,0,NA,0.25\n")
    features, labels = communities(tmp_path)
    np.testing.assert_allclose(features, [[0.1, 0.2], [0.3, 0.3], [0.5, 0.4]])
    np.testing.assert_allclose(labels, [1, 0, 0.25])
    with pytest.raises(FileNotFoundError, match=r"no file .*cal_housing_full\.data"):
        california(tmp_path)
    monkeypatch.delenv("LDPBAYES_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set LDPBAYES_DATA to the folder with communities"):
        communities()


def criteo_lines(count=200):
    """A file of the schema, and its rows."""
    rng = np.random.default_rng(5)
    rows = []
    for i in range(count):
        amount = [-1.0, 12.5, 400.0, 400.01][i % 4]
        row = {"Sale": int(amount > 0), "SalesAmountInEuro": amount, "click_timestamp": 1_598_891_820 + i}
        row |= {NUMERIC[0]: -1, NUMERIC[1]: i % 7, NUMERIC[2]: round(float(rng.uniform(0, 90)), 2)}
        row |= {name: f"{name}{rng.integers(3)}" for name in CATEGORICAL}
        row["user_id"], row["product_country"] = f"user{i}", "-1" if i < 8 else "FR"
        rows.append(row)
    return rows


def test_sales_are_those_up_to_400_euros_with_rare_categories_as_one(tmp_path):
    rows = criteo_lines()
    path = tmp_path / "CriteoSearchData"
    path.write_text("".join("\t".join(str(row[name]) for name in FIELDS) + "\n" for row in rows))
    sales = criteo(path, threshold=5)
    kept = [row for row in rows if 0 <= row["SalesAmountInEuro"] <= 400]
    np.testing.assert_array_equal(sales.labels, np.float32([row["SalesAmountInEuro"] for row in kept]))
    np.testing.assert_array_equal(sales.numeric, np.float32([[row[name] for name in NUMERIC] for row in kept]))
    assert sales.categories.shape == (100, 17) and len(FIELDS) == 23
    of = dict(zip(CATEGORICAL, sales.categories.T, strict=True))
    assert not of["user_id"].any() and sales.sizes[-1] == 1  # each of them is rare
    countries = np.array([row["product_country"] for row in kept])
    np.testing.assert_array_equal(of["product_country"], np.where(countries == "FR", 1, 0))  # four are missing
    brands = np.array([row["product_brand"] for row in kept])
    first = list(dict.fromkeys(brands))
    np.testing.assert_array_equal(of["product_brand"], [1 + first.index(brand) for brand in brands])
    assert criteo(path, threshold=1).sizes[-1] == 101


def test_a_file_of_another_schema_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("1\t2\t3\n")
    with pytest.raises(ValueError, match=r"line 1 of .* has 3 columns, not 23"):
        criteo(path)
    path.write_text("\t".join(["1", "many", *"0" * 21]) + "\n")
    with pytest.raises(ValueError, match=r"line 1 of .* no number"):
        criteo(path)
    path.write_text("\t".join(["0", "-1", *"0" * 21]) + "\n")
    with pytest.raises(ValueError, match="no sale"):
        criteo(path)


# what is printed


def test_printed_numbers_are_those_of_the_paper():
    assert TABLE_1[0.05]["Laplace"] == (8.3956, 3.1062) and TABLE_1[np.inf]["Unbiased"] == (0.0194, 0.0018)
    ours = [TABLE_1[epsilon]["RPWithPrior"][0] for epsilon in (0.5, 0.8, 1, 1.5, 2)]
    assert ours == [0.0544, 0.0453, 0.0411, 0.0372, 0.0329]
    assert [TABLE_4[epsilon]["RPWithPrior"][0] for epsilon in (0.5, 0.8, 1)] == [1.4537, 1.1232, 1.0726]
    assert TABLE_4[2.0]["RRonBins"] == (1.0917, 0.1835) and TABLE_4[6.0]["staircase"] == (0.7113, 0.0402)
    assert TABLE_2[0.5]["RPWithPrior"] == (6302.61, 6246.0) and TABLE_2[8.0]["Unbiased"] == (2911.97, 58.3)
    assert PARAMETERS["communities"][1.5] == (0.6, 0.4) and PARAMETERS["communities"][4.0] == (4 / 3.5, 0.4)
    assert PARAMETERS["california"][0.8] == (0.01, 2.2) and PARAMETERS["criteo"][8.0] == (0.002, 70.0)
    assert TABLE_6["RRonBins"]["california"] == 6.187591076
    assert set(PRINTED) < set(COLUMNS) and tuple(TABLE_1) == tuple(TABLE_4) == EPSILONS


# releases


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASES)
def test_no_release_spends_more_than_its_budget(name):
    setting, spent = made_up(), {"Gaussian": 1e-4, "Gaussian, analytic": 1e-4}
    released = RELEASES[name](jax.random.key(0), setting.labels, 1.0, setting)
    assert released.values.shape == setting.labels.shape and np.isfinite(released.values).all()
    if name == "labels":
        assert released.mechanism is None
        return
    first = PARAMETERS["communities"][1.0][0]
    costs_a_prior = name in ("RRonBins", "Unbiased", "Algorithm 4", "private prior", "prior from the labels")
    left = 1.0 - first * costs_a_prior
    guarantee = released.mechanism.guarantee
    assert guarantee.delta(left) <= spent.get(name, 1e-9) * (1 + 1e-6)


def test_the_histogram_of_algorithm_3_has_bins_of_a_standard_deviation_and_proper_densities():
    values = np.random.default_rng(0).exponential(size=1000)
    values /= values.max()
    nodes, densities = _histogram(values, made_up())
    assert densities @ np.diff(nodes) == pytest.approx(1)
    np.testing.assert_allclose(np.diff(nodes)[1:-1], values.std())
    assert (nodes[0], nodes[-1]) == (values.min(), values.max()) and np.any(np.isclose(nodes, values.mean()))


@pytest.mark.slow
def test_the_half_width_is_at_most_half_of_the_interval():
    setting = made_up()
    for name in ("Algorithm 4", "prior from the labels"):
        made = RELEASES[name](jax.random.key(0), setting.labels, 0.5, setting).mechanism
        assert 2 * made.half_width <= (made.interval[1] - made.interval[0]) * (1 + 1e-9)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("epsilon", "share"), [(4.0, 0.16), (6.0, 0.30), (8.0, 0.54)])
def test_the_interval_for_the_budget_of_a_prior_leaves_out_labels_and_that_of_algorithm_4_does_not(epsilon, share):
    setting = california_setting(None)
    for name, outside in (("prior from the labels", share), ("Algorithm 4", 0.0)):
        lower, upper = RELEASES[name](jax.random.key(1), setting.labels, epsilon, setting).mechanism.interval
        assert np.mean((setting.labels < lower) | (setting.labels > upper)) == pytest.approx(outside, abs=0.005)


# learning


@pytest.mark.slow
def test_networks_of_several_splits_learn_from_labels():
    setting = made_up(600)
    train, test = setting.features[None, :500].repeat(2, 0), setting.features[None, 500:].repeat(2, 0)
    labels = setting.labels[None, :500].repeat(2, 0)
    network = dataclasses.replace(PAPER, widths=(32, 16), epochs=60, batch=16)
    unused = stacked([LaplaceMechanism(1.0, 0.0, 1.0)] * 2)
    found, _ = networks(jax.random.key(0), train, labels, unused, test, network, SquaredError())
    errors = np.mean((found - setting.labels[500:]) ** 2, axis=1)
    assert not np.array_equal(found[0], found[1])  # other initial weights
    assert (errors < 0.5 * setting.labels.var()).all()  # 0.01 of noise, 0.02 of the first feature


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_learners_predict_labels_in_their_range_from_released_ones(name):
    setting = made_up(400)
    splits = Splits.of(setting.features, setting.labels, 2, 0)
    keys = jax.random.split(jax.random.key(1), 2)
    released = [RELEASES["public range"](k, t[:, -1], 4.0, setting) for k, t in zip(keys, splits.train, strict=True)]
    found = LEARNERS[name](jax.random.key(0), splits, released, setting, SHORT)
    assert found.shape == splits.test.shape[:2] and np.isfinite(found).all()
    if name != "paper":
        assert (found >= 0).all() and (found <= 1).all()
    if name.endswith("linear"):
        assert (np.mean((found - splits.test[..., -1]) ** 2, axis=1) < 0.8 * setting.labels.var()).all()


# tables


@pytest.mark.slow
def test_a_table_is_made_cell_by_cell_and_resumed(tmp_path, monkeypatch):
    setting = made_up()
    module = "reproductions.liu_huang.tables"
    monkeypatch.setattr(f"{module}.communities_setting", lambda folder: setting)
    path = tmp_path / "table.npz"
    columns = ("Laplace", "public range, marginal likelihood, linear")
    given = {"trials": 2, "epochs": 2, "checkpoint": path}
    first = table_1(epsilons=(1.0,), columns=columns, **given)
    asked = []

    def counted(key, labels, epsilon, setting):
        asked.append(epsilon)
        return RELEASES["Laplace"](key, labels, epsilon, setting)

    monkeypatch.setattr(f"{module}.RELEASES", {"Laplace": counted, "labels": RELEASES["labels"]})
    table = table_1(epsilons=(1.0, 2.0, np.inf), columns=columns[:1], **given)
    assert asked == [2.0, 2.0]  # what is there is not computed again, and at infinity nothing is drawn
    np.testing.assert_array_equal(table.errors[1.0, "Laplace"], first.errors[1.0, "Laplace"])
    assert first.errors[1.0, columns[1]].shape == (2,) and (first.errors[1.0, columns[1]] > 0).all()
    with pytest.raises(ValueError, match="other settings"):
        table_1(epsilons=(1.0,), columns=columns, **given | {"epochs": 3})


@pytest.mark.slow
def test_the_table_of_sales_takes_a_local_copy(tmp_path):
    path = tmp_path / "CriteoSearchData"
    rows = criteo_lines(400)
    path.write_text("".join("\t".join(str(row[name]) for name in FIELDS) + "\n" for row in rows))
    features = criteo(path).features()
    assert features.shape == (200, 20) and np.isfinite(features).all()
    columns = ("RPWithPrior", "public range, marginal likelihood, linear")
    table = table_2(path, trials=2, epsilons=(1.0,), columns=columns, epochs=1)
    assert all(table.errors[1.0, column].shape == (2,) for column in columns)
    assert table.printed is TABLE_2


def test_the_table_in_markdown_has_the_printed_numbers_beside():
    errors = {(0.5, "RPWithPrior"): np.array([0.05, 0.06]), (np.inf, "RPWithPrior"): np.array([0.01, 0.03])}
    errors[0.5, "public range, marginal likelihood, linear"] = np.array([0.03, 0.04])
    table = Table(errors, TABLE_1)
    lines = table.table().splitlines()
    assert lines[0] == "| ε | RPWithPrior | public range, marginal likelihood, linear |"
    assert lines[2] == "| 0.5 | 0.0550 ± 0.0071 (0.0544 ± 0.0065) | 0.0350 ± 0.0071 |"
    assert lines[3] == "| ∞ | 0.0200 ± 0.0141 (0.0177 ± 0.0021) |  |"
    assert table.ratio(0.5, "RPWithPrior") == pytest.approx(0.055 / 0.0544)


# run times


@pytest.mark.slow
@needs_data
def test_run_times_have_a_row_a_data_set_and_mechanism():
    rows = run_times(mechanisms=("Laplace",), count=2000, repeats=1, fits=False)
    counts = [("communities", 1595), ("california", 16512), ("criteo", 2000)]
    assert [(row["data"], row["count"]) for row in rows] == counts
    assert {row["method"] for row in rows} == {"Laplace"} and all(row["seconds"] > 0 for row in rows)
    assert [row["printed"] for row in rows] == [0.288116455, 0.279757977, 3.408373356]


def test_made_up_sales_are_in_the_range():
    features, labels = criteo_like(10_000)
    assert features.shape == (10_000, 5) and labels.min() >= 0 and labels.max() == 400
    assert labels.mean() == pytest.approx(60, rel=0.15) and 0.002 < np.mean(labels == 400) < 0.03


@pytest.mark.slow
@needs_data
def test_the_marginal_likelihood_beats_the_papers_own_column():
    # means of ten trials, over the printed means
    column = "public range, marginal likelihood, network"
    for study, epsilons, most in ((table_1, (0.5, 0.8, 1.0, 1.5, 2.0), 0.65), (table_4, (0.5, 0.8, 1.0), 0.6)):
        found = study(columns=(column,), epsilons=epsilons)
        assert all(found.ratio(epsilon, column) <= most for epsilon in epsilons)


@pytest.mark.slow
@needs_data
def test_the_printed_column_is_that_of_a_prior_from_the_labels_and_not_of_a_private_one():
    printed, private = "RPWithPrior, prior from the labels", "RPWithPrior"
    found = table_1(columns=(printed, private), epsilons=(0.1, 0.5, 1.0))
    for epsilon in (0.1, 0.5, 1.0):
        mean, deviation = TABLE_1[epsilon]["RPWithPrior"]
        # two means of ten trials, whose standard errors are about a third of a deviation each
        assert abs(found.mean(epsilon, printed) - mean) < 2 * deviation
        assert found.mean(epsilon, private) > mean + 5 * deviation


@pytest.mark.slow
@needs_data
def test_a_linear_fit_does_not_end_where_all_labels_are_at_a_bound():
    """There the likelihood has a maximum, 18 nats above the one that is found."""
    features, labels = communities(None)
    rows = np.random.default_rng(0).permutation(len(labels))[:1595]
    release = release_labels(labels[rows], 0.3, lower=0, upper=1, seed=0).release
    fitted = linear_fit(features[rows], release)
    predicted = fitted.predict(features[rows], bounds=(0, 1)).mean()
    # unbiased labels have a mean of 0.34, with a standard error of 0.1, the original ones of 0.24
    assert 0.1 < predicted < 0.6
    assert fitted.loss < 875
