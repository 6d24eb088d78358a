"""Noisy tables: read from frames, refused with key and column, written to files, and the labels of what fit returns."""

import functools
import html
import itertools
import json
import warnings
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.data import NoisyTable, ReleaseWarning
from ldpbayes.data.release import promises
from ldpbayes.mechanisms.plausibility import implausible_repeats
from ldpbayes.mechanisms.protocol import OF_ONE_VALUE
from ldpbayes.mechanisms.reporting import Floored, Incomplete, Published, Rounded, Withheld
from tests.programs import evaluate

NOISES = {
    "discrete_gaussian": ldp.noise.DiscreteGaussian,
    "discrete_laplace": ldp.noise.DiscreteLaplace,
    "gaussian": ldp.noise.Gaussian,
    "geometric": ldp.noise.DiscreteLaplace,
    "laplace": ldp.noise.Laplace,
}
COUNTS = {
    "state": ["Ohio", "Ohio", "Iowa", "Iowa"],
    "county": ["Adams", "Allen", "Adair", "Adams"],
    "n": [101, 12, 57, 40],
    "sd": [10.0, 10.0, 5.0, 5.0],
}
KEYS = ["state", "county"]


def table_of(changes=None, **options):
    options = {"value": "n", "keys": KEYS, "noise": "discrete_gaussian", "standard_deviation": "sd"} | options
    return NoisyTable.from_frame(pd.DataFrame(COUNTS | (changes or {})), **options)


@pytest.mark.parametrize("moment", ["scale", "standard_deviation", "variance"])
@pytest.mark.parametrize("noise", NOISES)
def test_each_way_to_state_the_noise_gives_the_noise_of_that_scale(noise, moment):
    scales = np.array([0.15, 0.3, 0.7, 1.0, 3.7, 250.0, 1e5])
    law = NOISES[noise](scales)
    stated = {"scale": scales, "standard_deviation": law.standard_deviation, "variance": law.variance}[moment]
    frame = {"place": np.arange(7), "n": np.arange(7), "spread": stated}
    found = NoisyTable.from_frame(frame, "n", "place", noise, **{moment: "spread"}).mechanism.noise
    # the scale is found to 4 rounding errors, and moves less, relatively, than the standard deviation does
    np.testing.assert_allclose(jax.tree.leaves(found)[0], scales, rtol=1e-14)
    np.testing.assert_allclose(found.variance, law.variance, rtol=1e-12)


def test_variance_and_scale_of_discrete_gaussian_noise_differ_where_they_do():
    # P(0) : P(1) = 1 : exp(-1/(2 scale²)), by hand up to 6 terms
    scale, k = 0.6, np.arange(-6, 7)
    p = np.exp(-(k**2) / (2 * scale**2))
    variance = np.sum(p * k**2) / np.sum(p)
    table = table_of(standard_deviation=None, variance=variance)
    np.testing.assert_allclose(table.mechanism.noise.scale, scale, rtol=1e-12)
    assert abs(np.sqrt(variance) / scale - 1) > 1e-3


def test_a_frame_of_any_kind_makes_the_table():
    table = table_of()
    assert table.values.dtype == np.int32 and table.values.tolist() == COUNTS["n"]
    assert {key: labels.tolist() for key, labels in table.keys.items()} == {key: COUNTS[key] for key in KEYS}
    assert (table.dim, table.labels[0]) == ("cell", "Ohio, Adams")
    np.testing.assert_allclose(table.mechanism.noise.variance, [100, 100, 25, 25], rtol=1e-12)
    nullable = pd.DataFrame(COUNTS).convert_dtypes()
    for frame in (COUNTS, nullable, nullable.convert_dtypes(dtype_backend="pyarrow")):
        other = NoisyTable.from_frame(frame, "n", KEYS, "discrete_gaussian", standard_deviation="sd")
        assert other.keys == table.keys and other.mechanism == table.mechanism
        np.testing.assert_array_equal(other.values, table.values)
    polars = pytest.importorskip("polars")
    assert NoisyTable.from_frame(polars.DataFrame(COUNTS), "n", KEYS, "gaussian", variance="sd").keys == table.keys


def test_one_scale_for_all_is_one_number_and_a_single_key_names_the_axis():
    table = table_of({"code": [4, 3, 2, 1]}, keys="code", standard_deviation=None, scale=2.5)
    assert table.mechanism.noise.scale == 2.5 and table.dim == "code"
    assert table.labels.tolist() == [4, 3, 2, 1]  # as they are, not as text
    labels, places = table_of(keys=KEYS).levels("state")
    assert labels.tolist() == ["Ohio", "Iowa"] and places.tolist() == [0, 0, 1, 1]


def test_missing_values_were_withheld_where_there_is_a_threshold_and_are_incomplete_otherwise():
    gap = {"n": [101, None, 57, 40]}
    withheld = table_of(gap, threshold=20)
    assert isinstance(withheld.mechanism, Withheld) and withheld.mechanism.threshold == 20
    incomplete = table_of(gap)
    assert isinstance(incomplete.mechanism, Incomplete)
    for table in (withheld, incomplete):
        assert np.isnan(table.values).tolist() == [False, True, False, False]
        assert "4 cells by state, county, 1 not reported" in repr(table)
    assert isinstance(table_of(threshold=5).mechanism, Withheld)  # no cell was, and each could have been


@pytest.mark.parametrize("noise", NOISES)
def test_a_table_with_a_threshold_of_which_only_published_rows_were_given_is_doubted(noise):
    # Of 400 cells near the threshold about half are withheld. Seeds are fixed; a complete table is doubted never, one
    # of cells far above it with probability below 3e-4.
    rng, scale, place = np.random.default_rng(3), 6.0, np.arange(400)
    values = rng.poisson(30, 400) + np.rint(rng.normal(0, scale, 400))
    frame = {"place": place, "n": np.where(values < 30, np.nan, values)}
    options = {"keys": "place", "noise": noise, "standard_deviation": scale, "threshold": 30}
    published = {name: column[values >= 30] for name, column in frame.items()}
    with pytest.warns(ldp.data.ReleaseWarning, match="no cell is withheld, although .* are just above the threshold"):
        table = NoisyTable.from_frame(published, "n", **options)
    assert len(table.doubts) == 1
    with warnings.catch_warnings(action="error"):
        NoisyTable.from_frame(frame, "n", **options)
        NoisyTable.from_frame({"place": place, "n": values + 40}, "n", **options)


def test_a_table_states_how_many_cells_were_not_published_or_that_it_is_unknown(tmp_path):
    frame = {"place": np.arange(40), "n": np.full(40, 30) + np.arange(40) % 7}
    options = {"keys": "place", "noise": "discrete_gaussian", "scale": 6.0, "privacy": "As stated."}
    with warnings.catch_warnings(action="error"):
        tables = [
            NoisyTable.from_frame(frame, "n", threshold=30, unpublished=n, **options) for n in ("unknown", 100, 0)
        ]
    assert [table.mechanism.unpublished for table in tables] == [None, 2.5, 0.0]
    assert "40 cells by place, 100 not published" in repr(tables[1])
    for table in tables:
        table.save(tmp_path / "table.npz")
        again = NoisyTable.load(tmp_path / "table.npz")
        assert again.mechanism == table.mechanism and repr(again) == repr(table)
        assert table[::-1].mechanism == table.mechanism
    assert tables[0][:5].mechanism == tables[0].mechanism and tables[2][:5].mechanism == tables[2].mechanism
    with pytest.raises(ValueError, match="how many cells of a part of the table were not published"):
        tables[1][:5]
    each = Published(Withheld(ldp.DiscreteGaussianMechanism(scale=6.0), 30), np.array([1.0, 2.0, 0.0]))
    with pytest.raises(ValueError, match="how many cells of a part of the table were not published"):
        NoisyTable([31, 33, 35], each, keys={"place": [0, 1, 2]})[:2]
    assert "3 cells by place, 3 not published" in repr(NoisyTable([31, 33, 35], each, keys={"place": [0, 1, 2]}))
    # 40 of 80 values just above a threshold that was applied after rounding, and none withheld
    rounded = {"place": np.arange(80), "n": np.repeat([90, 95], 40)}
    with pytest.warns(ReleaseWarning, match="no cell is withheld"):
        NoisyTable.from_frame(rounded, "n", threshold=90, unit=5, **options | {"scale": 30.0})
    few, spreads = {"place": [0, 1], "n": [31, None]}, {"place": [0, 1], "n": [31, 33], "s": [2.0, 3.0]}
    for columns, changes, error in (
        (frame, {"threshold": 30, "unpublished": -1}, "unpublished must be an integer of at least 0, got -1"),
        (frame, {"threshold": 30, "unpublished": "many"}, "unpublished must be an integer of at least 0, got 'many'"),
        (frame, {"unpublished": 10}, "unpublished must be given with a threshold"),
        (few, {"threshold": 30, "unpublished": 10}, "holds nan for 1: a cell without a value is one of those that"),
        (spreads, {"threshold": 30, "unpublished": 10, "scale": "s"}, "a number with one noise for all cells"),
    ):
        with pytest.raises(ValueError, match=error):
            NoisyTable.from_frame(columns, "n", **options | changes)
    assert NoisyTable.from_frame(spreads, "n", threshold=30, unpublished="unknown", **options | {"scale": "s"})


@pytest.mark.parametrize("noise", NOISES)
def test_a_sharp_edge_that_no_rule_explains_is_doubted(noise):
    # A complete table is doubted with probability below 2e-6; seeds are fixed.
    rng, options = np.random.default_rng(4), {"keys": "place", "noise": noise, "scale": 10.0}

    def noisy(rate, scale=10.0):
        noises = NOISES[noise](scale).sample(jax.random.key(0), (3000, 1), float)
        return rng.poisson(rate, 3000) + np.asarray(noises)[:, 0]

    counts = noisy(80)
    whole = {"place": np.arange(3000), "n": counts}
    for keep, end in ((counts >= 88, "least, and none is below"), (counts <= 70, "largest, and none is above")):
        part = {name: column[keep] for name, column in whole.items()}
        with pytest.warns(ReleaseWarning, match=f"values are within .* of the {end} it: noise would do this with"):
            NoisyTable.from_frame(part, "n", **options)
    missing = whole | {"n": np.where(counts < 88, np.nan, counts)}  # not at random
    with pytest.warns(ReleaseWarning, match="state the rule if values were left out"):
        NoisyTable.from_frame(missing, "n", **options)
    floored = whole | {"n": np.maximum(noisy(2), 0)}
    with pytest.warns(ReleaseWarning, match="none is below it"):
        NoisyTable.from_frame(floored, "n", **options)
    with warnings.catch_warnings(action="error"):
        NoisyTable.from_frame(floored, "n", floor=0, **options)
        NoisyTable.from_frame(whole, "n", **options)
        for rate, scale in itertools.product((0.01, 50.0), (0.1, 0.4, 300.0)):
            NoisyTable.from_frame(whole | {"n": noisy(rate, scale)}, "n", **options | {"scale": scale})


def test_cells_whose_joined_labels_would_be_equal_have_labels_of_their_own():
    first = {"state": ["a, b", "a", "a, b"], "county": ["c", "b, c", "d"]}
    labels = NoisyTable([1, 2, 3], ldp.DiscreteLaplaceMechanism(1.0), keys=first).labels.tolist()
    assert labels == ["'a, b', c", "a, 'b, c'", "'a, b', d"]
    alone = NoisyTable([1], ldp.DiscreteLaplaceMechanism(1.0), keys={"state": ["a, b"], "county": ["c"]})
    assert alone.labels.tolist() == ["a, b, c"]


def test_dates_of_two_resolutions_are_one_label():
    days = np.array(["2020-01-31", "2020-02-29"], "M8[D]")
    texts = [
        NoisyTable([1, 2], ldp.DiscreteLaplaceMechanism(1.0), keys={"day": days.astype(f"M8[{unit}]")}).labels
        for unit in ("D", "h", "s", "ms", "ns")
    ]
    assert all(each.tolist() == ["2020-01-31", "2020-02-29"] for each in texts)
    fine = np.array(["2020-01-31T10:00:00.500", "2020-01-31T10:00:00"], "M8[ns]")
    labels = NoisyTable([1, 2], ldp.DiscreteLaplaceMechanism(1.0), keys={"time": fine}).labels
    assert labels.tolist() == ["2020-01-31T10:00:00.500", "2020-01-31T10:00"]


def test_decimal_numbers_are_numbers():
    import polars as pl

    numbers = [Decimal("3.5"), None, Decimal("-1")]
    for column in (pl.Series(numbers, dtype=pl.Decimal(10, 2)), pd.Series(numbers)):
        frame = {"place": np.arange(3), "n": column}
        table = NoisyTable.from_frame(frame, "n", "place", "laplace", scale=2.0)
        np.testing.assert_array_equal(table.values, [3.5, np.nan, -1])


def test_rules_stand_around_the_noise_in_the_order_in_which_they_were_applied():
    mechanism = table_of({"n": [100, 15, 55, None]}, unit=5, floor=0, threshold=10).mechanism
    kinds = [type(each) for each in (mechanism, mechanism.mechanism, mechanism.mechanism.mechanism)]
    assert kinds == [Withheld, Floored, Rounded]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"noise": None}, "noise must be one of .*values do not show it.*got None"),
        ({}, {"noise": "discrete_gausian"}, "got 'discrete_gausian' .did you mean discrete_gaussian"),
        ({}, {"noise": "staircase"}, "or a class of noise with one parameter"),
        ({}, {"noise": ldp.noise.Staircase}, "or a class of noise with one parameter"),
        ({}, {"standard_deviation": None}, "give one of scale, standard_deviation, variance and margin, got none"),
        ({}, {"variance": 3.0}, "got standard_deviation and variance"),
        ({}, {"standard_deviation": -1.0}, "standard_deviation must be a positive and finite number, got -1.0"),
        ({"sd": [10, 10, 0, 5]}, {}, "column 'sd' holds 0.0 for Iowa, Adair: a standard_deviation must be positive"),
        ({"sd": [10, None, 5, 5]}, {}, "column 'sd' holds nan for Ohio, Allen: a standard_deviation"),
        ({"sd": [10, "x", 5, 5]}, {}, "column 'sd' holds x for Ohio, Allen: not a number"),
        ({"n": [101, 12, "57*", 40]}, {}, r"column 'n' holds 57\* for Iowa, Adair: not a number"),
        ({"n": ["101", "12", "57", "40"]}, {}, "column 'n' holds 101 for Ohio, Adams and 3 other cells: not a number"),
        ({"n": [101, 12, 57.5, 40]}, {}, "column 'n' holds 57.5 for Iowa, Adair: possible values are whole numbers"),
        (
            {"n": [101, 12, np.inf, 40]},
            {"noise": "laplace"},
            "column 'n' holds inf for Iowa, Adair: possible values are finite numbers",
        ),
        (
            {},
            {"threshold": 41},
            "column 'n' holds 12.0 for Ohio, Allen and 1 other cells: possible values are whole numbers, threshold 41",
        ),
        ({}, {"floor": 20}, "column 'n' holds 12.0 for Ohio, Allen: possible values are whole numbers, floor 20"),
        (
            {"n": [100, 15, 55, 41]},
            {"unit": 5},
            "column 'n' holds 41.0 for Iowa, Adams: possible values are whole numbers, unit 5",
        ),
        ({}, {"floor": np.nan}, "floor must be finite, got nan"),
        (
            {"county": ["Adams", "Adams", "Adair", "Adams"]},
            {},
            r"rows 0 and 1 are of the same cell \(state Ohio, county Adams\)",
        ),
        ({"county": ["Adams", None, "Adair", "Adams"]}, {}, "key 'county' has no label in row 1"),
        ({}, {"value": "m"}, "there is no column 'm'; the columns are state, county, n, sd"),
        ({}, {"keys": ["state", "conty"]}, "no column 'conty' .did you mean county"),
        ({}, {"standard_deviation": "SD"}, "there is no column 'SD'"),
    ],
)
def test_what_is_no_table_is_refused_with_key_and_column(changes, options, message):
    with pytest.raises(ValueError, match=message):
        table_of(changes, **options)


def test_something_that_is_no_frame_is_refused():
    with pytest.raises(TypeError, match="from a data frame, or from a dict of columns; got ndarray"):
        NoisyTable.from_frame(np.ones((3, 3)), "n", "state", "laplace", scale=1.0)
    mechanism = ldp.DiscreteGaussianMechanism(scale=10.0)
    with pytest.raises(ValueError, match="key 'state' needs a label for each of 2 cells, got shape \\(3,\\)"):
        NoisyTable([1, 2], mechanism, keys={"state": ["A", "B", "C"]})
    with pytest.raises(ValueError, match=r"rows 0 and 1 are of the same cell \(state A\)"):
        NoisyTable([1, 2], mechanism, keys={"state": ["A", "A"]})


def sampled(law, seed):
    """A draw of the noise at each of its scales."""
    return law.sample(jax.random.key(seed), (len(jax.tree.leaves(law)[0]), 1), float)[:, 0]


def repeated(noise, deviation, groups, seed, values="n"):
    rng = np.random.default_rng(seed)
    cells = np.repeat(rng.integers(0, 1000, groups), 2)
    one = NoisyTable.from_frame({"k": [0], "n": [0]}, "n", "k", noise, standard_deviation=deviation).mechanism.noise
    error = evaluate(sampled, jax.tree.map(lambda scale: np.full(2 * groups, scale), one), seed)
    place = np.repeat(np.arange(groups), 2)
    return {
        "place": place,
        "take": np.tile([1, 2], groups),
        values: np.round(cells + error, 2),
        "v": deviation**2 * np.ones(2 * groups),
        "sd": deviation * np.ones(2 * groups),
    }


@pytest.mark.filterwarnings("ignore:.* noise would do this:ldpbayes.data.ReleaseWarning")
@pytest.mark.parametrize("noise", NOISES)
def test_a_variance_given_as_a_standard_deviation_is_seen_in_repeated_values_and_the_other_way_round(noise):
    frame = repeated(noise, 20.0, 60, 1)
    for moment, column, wrong in (
        ("variance", "v", ""),
        ("standard_deviation", "sd", ""),
        (
            "standard_deviation",
            "v",
            "less than is possible for noise with standard_deviation = 'v'.*could be the variance$",
        ),
        ("variance", "sd", "more than is possible for noise with variance = 'sd'.*could be the .*standard_deviation$"),
    ):
        options = {moment: column, "repeats": "take"}
        if not wrong:
            assert not NoisyTable.from_frame(frame, "n", "place", noise, **options).doubts
            continue
        with pytest.warns(ReleaseWarning, match=wrong):
            table = NoisyTable.from_frame(frame, "n", "place", noise, **options)
        assert sum("repeated values" in doubt for doubt in table.doubts) == 1 and [*table.keys] == ["place", "take"]
    with pytest.raises(
        ValueError, match=r"rows 0 and 1 are of the same cell \(place 0\).*numbers repeated measurements"
    ):
        NoisyTable.from_frame(frame, "n", "place", noise, variance="v")


@pytest.mark.parametrize("scale", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("noise", NOISES)
def test_the_spread_of_repeated_values_is_never_doubted_where_the_noise_is_as_stated(noise, scale):
    """Each p-value is above a uniform variable, whose -log has mean 1 and variance 1: its mean over 20,000 pairs is at
    most 1 + 6 standard errors, with an error rate of 1e-9.
    """
    from ldpbayes.mechanisms import plausibility

    pairs, statistics = 20_000, []
    scales = np.repeat(np.random.default_rng(0).uniform(0.5, 2, pairs), 2) * scale
    law = NOISES[noise](scales)
    values = evaluate(sampled, law, 3)
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(plausibility.special, "chdtrc", lambda freedom, x: statistics.append(x / freedom) or 1.0)
        assert implausible_repeats(values, law, np.repeat(np.arange(pairs), 2)) == ""
    assert len(statistics) == 2 and max(statistics) < 1 + 6 / np.sqrt(pairs)


def test_rounded_or_equal_or_single_values_are_no_reason_for_doubt():
    rng, cells = np.random.default_rng(0), np.repeat(np.arange(20_000), 2)
    assert implausible_repeats(np.round(rng.normal(size=40_000)), ldp.noise.Gaussian(1.0), cells) == ""
    assert implausible_repeats(rng.normal(size=40_000), ldp.noise.Gaussian(1e-3), np.arange(40_000)) == ""
    gaps = np.where(np.arange(40_000) % 2, rng.normal(size=40_000), np.nan)
    assert implausible_repeats(gaps, ldp.noise.Gaussian(1e-3), cells) == ""
    coarse = np.repeat(rng.integers(0, 9, 200), 2)  # whole, by rounding
    assert implausible_repeats(coarse * 1.0, ldp.noise.Gaussian(0.01), np.repeat(np.arange(200), 2)) == ""
    assert implausible_repeats(np.zeros(400), ldp.noise.Gaussian(1.0), np.repeat(np.arange(200), 2)) == "less"


def test_what_is_promised_follows_from_the_sensitivity_or_is_what_the_publisher_states():
    derived, stated, silent = table_of(sensitivity=1), table_of(privacy="zCDP with rho = 2.56."), table_of()
    assert derived.privacy is None and "central differential privacy" in derived.mechanism.guarantee.statement()
    assert derived.mechanism.sensitivity == 1
    assert stated.privacy == "zCDP with rho = 2.56."
    assert silent.privacy.startswith("Nothing is known of what the table promises")
    assert "zCDP with rho = 2.56." in stated._repr_html_() and "guarantee" not in stated._repr_html_()
    assert "guarantee" in derived._repr_html_()


EPSILONS = np.array([0.0, 0.3, 0.9, 2.0])


def told(law, scales, change):
    """δ of two tables whose cells differ by `change`, at some ε, by enumeration of all values of those cells."""
    values = np.arange(-60, 61)
    changed = [(s, d) for s, d in zip(scales, change, strict=True) if d] or [(1.0, 0)]
    cells = [np.exp(-np.abs(values[:, None] - [0, d]) / s) for s, d in changed]
    if law == "discrete_gaussian":
        cells = [np.exp(-((values[:, None] - [0, d]) ** 2) / (2 * s**2)) for s, d in changed]
    p, q = (functools.reduce(np.multiply.outer, [(each / each.sum(axis=0))[:, i] for each in cells]) for i in (0, 1))
    return [np.maximum(p - np.exp(epsilon) * q, 0).sum() for epsilon in EPSILONS]


@pytest.mark.parametrize("scales", [(2.0, 2.0, 2.0), (1.7, 4.0, 2.5), (0.4, 0.6, 0.5)])
@pytest.mark.parametrize("law", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize("neighbours, times", [("add_remove", 1), ("add_remove", 2), ("replace", 1), ("replace", 2)])
def test_no_two_neighbouring_tables_are_told_better_than_stated(law, scales, neighbours, times):
    """Who is added changes up to `times` of three counts by one; who is replaced changes others, too, back by one."""
    frame = {"k": ["a", "b", "c"], "n": [5, 7, 9], "s": scales}
    table = NoisyTable.from_frame(frame, "n", "k", law, scale="s", sensitivity=1, neighbours=neighbours, times=times)
    added = [c for c in itertools.product([0, 1], repeat=3) if sum(c) <= times]
    pairs = {tuple(np.subtract(b, a)) for a in added for b in added if neighbours == "replace" or not any(a)}
    one_way = {min(change, tuple(np.negative(change))) for change in pairs}  # noise is symmetric
    for epsilon, worst in zip(EPSILONS, np.max([told(law, scales, change) for change in one_way], axis=0), strict=True):
        assert worst <= np.max(table.guarantee.delta(epsilon)) + 1e-12, (epsilon, worst)
        if len({*scales}) == 1 and law == "discrete_gaussian":
            assert table.guarantee.delta(epsilon) == pytest.approx(worst, rel=1e-9)
    if law == "discrete_laplace":
        budgets = np.sort([sum(1 / s for s, c in zip(scales, change, strict=True) if c) for change in pairs])
        assert np.max(table.guarantee.epsilon(0.0)) >= budgets[-1] - 1e-12
        if len({*scales}) == 1:
            assert np.max(table.guarantee.epsilon(0.0)) == pytest.approx(budgets[-1])


def test_a_table_states_what_one_person_changes():
    """A record that moves to another cell changes two counts of scale 2: epsilon is 1, not .5."""
    frame = {"k": ["a", "b", "c"], "n": [5, 7, 9]}

    def table(**stated):
        return NoisyTable.from_frame(frame, "n", "k", "discrete_laplace", scale=2.0, sensitivity=1, **stated)

    moved, added, unknown = table(neighbours="replace", times=1), table(neighbours="add_remove", times=1), table()
    replaced = "one person is replaced by another one: this changes up to 2 of the released values, each by up to 1 "
    assert "epsilon = 1 and" in promises([moved]) and replaced in promises([moved])
    assert "epsilon = 0.5 and" in promises([added]) and "added or removed: this changes up to 1 of" in promises([added])
    assert "epsilon = 0.5 and" in promises([unknown]) and OF_ONE_VALUE in promises([unknown])
    assert OF_ONE_VALUE not in promises([unknown[:1]])  # of one value only
    for each in (moved, added, unknown):
        stated = promises([each])
        assert stated == each.guarantee.statement() == promises([each.sketch()])
        assert stated in html.unescape(each._repr_html_())
        assert ldp.privacy.compose(each).statement() == stated
    assert table(neighbours="replace", times=1, privacy="As stated.").guarantee.epsilon(0.0) == 1.0
    assert moved[:2].guarantee.epsilon(0.0) == 1.0 and moved[:1].guarantee.epsilon(0.0) == 0.5
    assert ldp.privacy.compose(moved, moved).epsilon(0.0) == 2.0
    # somebody who is replaced is removed from a table and added to it
    assert "someone with one record in each is promised epsilon = 2 and" in promises([moved, added])
    assert "someone with one released value in each is promised epsilon = 1.5 and" in promises([moved, unknown])
    three = table(neighbours="replace", times=2).guarantee  # all the cells that there are
    assert three.epsilon(0.0) == pytest.approx(1.5)
    floored = table(neighbours="replace", times=1, floor=0)
    assert floored.guarantee.epsilon(0.0) == 1.0


def test_several_statistics_of_a_plain_release_are_stated_as_one_value():
    several = ldp.Release([3, 9], ldp.DiscreteLaplaceMechanism(2.0))
    one, local = ldp.Release([3], ldp.DiscreteLaplaceMechanism(2.0)), ldp.Release([0, 1], ldp.RandomizedResponse(1.0))
    rows = ldp.Release([[3.0, 9.0]], ldp.LaplaceMechanism(1.0, columns=2, sensitivity=1.0))
    twice = ldp.Release([3, 9], ldp.DiscreteLaplaceMechanism(2.0), times=2)
    assert OF_ONE_VALUE in several.guarantee.statement() and OF_ONE_VALUE in promises([several.sketch()])
    for each in (one, local, rows, twice):
        assert OF_ONE_VALUE not in promises([each])
    assert twice.guarantee.epsilon(0.0) == 1.0 and "A person with up to 2 reports" in promises([twice])


@pytest.mark.parametrize("stated", [{"neighbours": "replace"}, {"neighbours": "swap", "times": 1}])
def test_neighbours_need_the_number_of_cells(stated):
    with pytest.raises(ValueError, match="neighbours must be one of add_remove, replace, with a sensitivity and times"):
        table_of(**stated)
    with pytest.raises(ValueError, match="with a sensitivity and times, a person's largest number of cells"):
        NoisyTable([1.0], ldp.LaplaceMechanism(1.0, 0, 1), neighbours="replace", times=1)


@pytest.mark.parametrize("privacy", [5, [], {"epsilon": 1}])
def test_a_statement_is_a_text(privacy):
    with pytest.raises(TypeError, match="privacy must be a text, got"):
        table_of(privacy=privacy)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_files_keep_the_keys_the_gaps_and_the_statement(tmp_path, suffix):
    cells, how = {"n": [101, None, 57, 40], "state": [1, 1, 2, 2]}, {"neighbours": "replace", "times": 2}
    table = table_of(cells, threshold=20, privacy="As stated.", **how)
    path = tmp_path / f"counts{suffix}"
    table.save(path)
    loaded = NoisyTable.load(path)
    assert loaded.keys == table.keys and loaded.privacy == "As stated." and loaded.mechanism == table.mechanism
    assert (loaded.neighbours, loaded.times) == ("replace", 2)
    np.testing.assert_array_equal(loaded.values, table.values)
    assert loaded.keys["state"].dtype.kind == "i"
    assert type(ldp.Release.load(path)) is NoisyTable
    ldp.Release([1, 2], ldp.DiscreteGaussianMechanism(scale=10.0)).save(path)
    assert not NoisyTable.load(path).keys


def test_some_of_the_cells_are_a_table():
    table = table_of(privacy="As stated.")
    for rows in (np.array([False, True, False, True]), [1, 3], slice(1, None, 2)):
        part = table[rows]
        assert part.labels.tolist() == ["Ohio, Allen", "Iowa, Adams"] and part.privacy == "As stated."
        assert part.values.tolist() == [12, 40]
        np.testing.assert_allclose(part.mechanism.noise.standard_deviation, [10, 5])
    assert table_of(standard_deviation=None, scale=2.0)[:2].mechanism.noise.scale == 2


def test_a_table_is_an_argument_of_compiled_functions_that_know_its_keys():
    table = table_of()

    @jax.jit
    def sums(table):
        labels, places = table.levels("state")
        return jax.ops.segment_sum(table.values, places, len(labels))

    assert sums(table).tolist() == [113, 97]
    traces = sums._cache_size()
    assert sums(jax.tree.map(lambda leaf: 2 * leaf, table)).tolist() == [226, 194] and sums._cache_size() == traces
    renamed = table_of({"state": ["Ohio", "Iowa", "Iowa", "Utah"]})
    assert sums(renamed).tolist() == [101, 69, 40]
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), table)
    assert jax.vmap(lambda each: each.values.sum() + each.levels("county")[1].sum())(stacked).tolist() == [213, 213]


def rates(table, population, spread=0.3):
    states, state = table.levels("state")
    with numpyro.plate("state", len(states)):
        level = numpyro.sample("level", dist.Normal(-2, 1))
    with numpyro.plate("cell", table.count):
        rate = numpyro.deterministic("rate", jnp.exp(level[state]))
    share = numpyro.deterministic("share", rate / rate.sum())
    ldp.observe("n", dist.Normal(population * share * rate.sum(), 1.0), table)


SHORT = {"num_warmup": 30, "num_samples": 20, "num_chains": 2, "progress_bar": False}
POPULATION = np.array([1000.0, 100.0, 500.0, 400.0])


@pytest.fixture(scope="module")
def fitted():
    table = table_of(privacy="As stated.", noise="gaussian", standard_deviation=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.ConvergenceWarning)
        return table, ldp.fit(rates, table, POPULATION, posterior_predictive=True, **SHORT)


def test_keys_label_the_observed_cells_and_the_plates_of_their_names(fitted):
    table, result = fitted
    posterior = result["posterior"]
    assert posterior["level"].dims == ("chain", "draw", "state") and posterior["state"].values.tolist() == [
        "Ohio",
        "Iowa",
    ]
    for group in ("observed_data", "posterior_predictive"):
        assert result[group]["n"].dims[-1:] == ("cell",)
        assert result[group]["cell"].values.tolist() == table.labels.tolist()
    assert posterior["rate"].dims[-1] == "cell" and posterior["share"].dims[-1] == "share_dim_0"  # in no plate
    assert posterior["rate"].sel(cell="Iowa, Adair").shape == (2, 20)


def test_each_key_lies_along_the_cells_and_can_be_grouped_by(fitted):
    _, result = fitted
    rate = result["posterior"]["rate"]
    assert rate["county"].dims == ("cell",) and rate["county"].values.tolist() == COUNTS["county"]
    assert rate["state_of_cell"].values.tolist() == COUNTS["state"]  # state itself is an axis of this model
    means = rate.groupby("state_of_cell").mean().sel(state_of_cell="Iowa")
    np.testing.assert_allclose(means, rate.isel(cell=[2, 3]).mean("cell"))


def test_the_publishers_statement_stands_with_the_result(fitted):
    _, result = fitted
    assert result.attrs["privacy"] == "As stated."
    assert json.loads(result.attrs["mechanisms"])[0]["noise"] == {"law": "Gaussian", "standard_deviation": 5.0}


def axes_of(model, *args, dims=None, coords=None):
    from ldpbayes.inference.density import density_of, sites_of
    from ldpbayes.inference.result import labels

    return labels(dims, coords, sites_of(density_of(model, args, {})))


def test_dims_and_coords_that_a_user_gives_come_before_those_of_the_keys():
    table = table_of(noise="gaussian")
    names, coords, keys = axes_of(rates, table, POPULATION, dims={"n": ["area"]}, coords={"state": ["OH", "IA"]})
    assert names["n"] == ["area"] and coords["area"].tolist() == table.labels.tolist()
    assert coords["state"].tolist() == ["OH", "IA"]
    assert keys["county"][0] == "area"


def test_plates_of_another_size_and_tables_with_other_cells_are_not_mixed_up():
    table, other = table_of(), table_of({"n": [1, 2, 3, 4]})[1:]

    def model(table, other):
        with numpyro.plate("state", 3):  # not the states of the tables
            numpyro.sample("x", dist.Normal())
        mean = numpyro.sample("mean", dist.LogNormal())
        ldp.observe("n", dist.Poisson(mean), table)
        ldp.observe("m", dist.Poisson(mean), other)

    names, coords, keys = axes_of(model, table, other)
    assert (names["n"], names["m"]) == (["n_cell"], ["m_cell"]) and "state" not in coords
    assert coords["m_cell"].tolist() == other.labels.tolist()
    assert keys["county"][0] == "n_cell" and keys["county_of_m_cell"][1].tolist() == COUNTS["county"][1:]


def test_two_tables_of_the_same_cells_share_their_axis():
    def model(table, other):
        mean = numpyro.sample("mean", dist.LogNormal())
        ldp.observe("n", dist.Poisson(mean), table)
        ldp.observe("m", dist.Poisson(2 * mean), other)

    names, coords, _ = axes_of(model, table_of(), table_of({"n": [1, 2, 3, 4]}))
    assert names["n"] == names["m"] == ["cell"] and [*coords] == ["cell"]


def test_the_statement_of_a_publisher_stands_beside_the_guarantees_of_other_releases():
    stated, derived = table_of(privacy="As stated."), table_of(sensitivity=1, standard_deviation=None, scale=10.0)
    text = promises([stated, derived, stated])
    assert text.endswith("\nAs stated.") and text.count("As stated.") == 1
    assert text.startswith(derived.guarantee.statement())


@pytest.mark.parametrize("name", ["table.npz", "table.parquet"])
def test_a_release_that_is_loaded_from_the_file_of_a_table_is_the_table(tmp_path, name):
    law = ldp.LaplaceMechanism(1.0, sensitivity=1.0)
    table = NoisyTable([1.0, 2.0, 40.0], law, keys={"k": [*"abc"]}, neighbours="replace", times=1)
    table.save(tmp_path / name)
    loaded = ldp.Release.load(tmp_path / name)
    assert isinstance(loaded, NoisyTable) and loaded.guarantee.epsilon(0.0) == 2.0
    with pytest.raises(ValueError, match="cannot be read in parts"):
        ldp.data.sketch_from(tmp_path / name)


def test_a_sketch_of_a_table_keeps_the_statement_of_the_publisher(tmp_path):
    law = ldp.mechanisms.AdditiveMechanism(ldp.noise.DiscreteLaplace(1.0), sensitivity=1)
    table = NoisyTable(np.arange(4), law, keys={"k": [*"abcd"]}, privacy="The office states 19.6.")
    table.sketch().save(tmp_path / "sketch.npz")
    loaded = ldp.data.Sketch.load(tmp_path / "sketch.npz")
    assert promises([table]) == promises([table.sketch()]) == promises([loaded]) == "The office states 19.6."
    with pytest.raises(ValueError, match="only a statement of its publisher"):
        ldp.privacy.compose(loaded)


def test_keys_beyond_63_bits_stay_integers_in_files(tmp_path):
    keys = np.array([2**63 + 1001, 7 * 10**18 + 1, 5], np.uint64)
    table = NoisyTable([1.0, 2.0, 40.0], ldp.LaplaceMechanism(1.0, sensitivity=1.0), keys={"k": keys})
    table.save(tmp_path / "table.npz")
    np.testing.assert_array_equal(NoisyTable.load(tmp_path / "table.npz").keys["k"], keys)


@pytest.mark.parametrize(
    ("noise", "law"), [("laplace", stats.laplace), ("gaussian", stats.norm), ("discrete_gaussian", stats.norm)]
)
def test_a_margin_of_error_holds_the_noise_with_its_probability(noise, law):
    frame = {"place": ["a", "b"], "n": [3, 4], "moe": [16.4, 30.0]}
    table = NoisyTable.from_frame(frame, "n", "place", noise, margin="moe", margin_level=0.9)
    within = law(scale=jax.tree.leaves(table.mechanism.noise)[0])
    np.testing.assert_allclose(within.cdf(frame["moe"]) - within.cdf(np.negative(frame["moe"])), 0.9, rtol=1e-9)
    for options, message in (
        ({"margin": 3.0}, "give margin and margin_level together"),
        ({"scale": 3.0, "margin_level": 0.9}, "give margin and margin_level together"),
        ({"margin": 3.0, "margin_level": 1.0}, "margin_level must be a number between 0 and 1"),
        ({"margin": 0.0, "margin_level": 0.9}, "margin must be a positive"),
        ({"margin": 3.0, "scale": 3.0, "margin_level": 0.9}, "got scale and margin"),
    ):
        with pytest.raises(ValueError, match=message):
            NoisyTable.from_frame(frame, "n", "place", noise, **options)


def test_values_above_a_cap_are_refused_with_their_cell():
    frame = {"place": ["a", "b"], "share": [1.0, 1.2]}
    with pytest.raises(ValueError, match=r"'share' holds 1.2 for b: possible values are finite numbers, cap 1"):
        NoisyTable.from_frame(frame, "share", "place", "laplace", scale=0.1, cap=1)
    table = NoisyTable.from_frame(frame | {"share": [1.0, 0.2]}, "share", "place", "laplace", scale=0.1, floor=0, cap=1)
    assert "Capped(mechanism=Floored(" in repr(table)
