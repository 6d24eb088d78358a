"""What OpenDP released is read with OpenDP's own laws.

OpenDP's draws cannot be seeded: every statistical claim is tested at an error rate of 1e-6 (a few dozen of them are
made). Parts that read frames need neither OpenDP nor polars.
"""

import importlib.util
import math

import numpy as np
import pytest
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import AdditiveMechanism, Floored, Incomplete, Withheld
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from tests.programs import call

ERROR_RATE = 1e-6
sizes = pytest.mark.parametrize("draws", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
SUMMARY = {
    "column": ["n", "income", "mean", "mean", "median"],
    "aggregate": ["Frame Length", "Sum", "Sum", "Length", "0.5-Quantile"],
    "distribution": ["Integer Laplace", "Float Gaussian", "Float Laplace", "Integer Laplace", "ExponentialMin"],
    "scale": [2.0, 30.0, 30.0, 2.0, 2.0],
}
FRAME = {"town": ["Ash", "Bay"], "n": np.array([12, 0], np.uint32), "income": [410.5, -3.25], "mean": [4.0, 1.0]}
FRAME |= {"median": [4.0, 2.0]}


def added(noise, sensitivity=math.inf):
    return AdditiveMechanism(noise, sensitivity=sensitivity)


@pytest.fixture
def dp():
    opendp = pytest.importorskip("opendp.prelude", reason="OpenDP is not installed")
    opendp.enable_features("contrib")
    return opendp


@pytest.fixture
def pl():
    return pytest.importorskip("polars", reason="polars is not installed")


def test_a_column_is_read_with_its_noise_and_the_floor_of_its_type():
    table = ldp.opendp.read_table(FRAME, SUMMARY, "n", sensitivity=3)
    assert table.mechanism == Floored(added(DiscreteLaplace(2.0), sensitivity=3.0), 0)
    assert list(table.keys) == ["town"] and table.labels.tolist() == ["Ash", "Bay"]
    assert table.guarantee.epsilon(0.0) == pytest.approx(1.5)
    signed = FRAME | {"n": np.array([12, -1])}
    assert ldp.opendp.read_table(signed, SUMMARY, "n").mechanism == added(DiscreteLaplace(2.0))
    from_csv = FRAME | {"n": [12, 0]}
    floored = ldp.opendp.read_table(from_csv, SUMMARY, "n", signed=False, privacy="As OpenDP says.")
    assert floored.mechanism == Floored(added(DiscreteLaplace(2.0)), 0)
    assert floored.privacy == "As OpenDP says."
    income = ldp.opendp.read_table(FRAME, SUMMARY, "income", "town")
    assert income.mechanism == added(Gaussian(30.0))  # the scale is the standard deviation


def test_without_keys_a_query_is_a_table_of_one_cell():
    table = ldp.opendp.read_table({"n": np.array([7])}, SUMMARY, "n")
    assert table.count == 1 and not table.keys


@pytest.mark.parametrize(
    ("frame", "value", "options", "message"),
    [
        (FRAME, "mean", {}, r"computed from several noisy numbers \(Sum and Length\): query each"),
        (FRAME, "median", {}, "must be one of Integer Laplace.*got ExponentialMin"),
        (FRAME, "incom", {}, "no column 'incom'; did you mean 'income'|no column 'incom'.*income"),
        (FRAME, "n", {"keys": "city"}, "there is no column 'city'"),
        (FRAME, "n", {"cells": {"town": ["Ash"]}}, "this query released all rows"),
        (FRAME | {"n": [12.0, 0.0]}, "n", {}, "column 'n' holds float64, which does not show.*give signed=True or"),
        (FRAME | {"n": [-1, 2]}, "n", {"signed": False}, "floor 0"),
    ],
)
def test_what_has_no_likelihood_is_refused(frame, value, options, message):
    with pytest.raises(ValueError, match=message):
        ldp.opendp.read_table(frame, SUMMARY, value, **options)
    with pytest.raises(ValueError, match="there is no column 'distribution'"):
        ldp.opendp.read_table(FRAME, {"column": ["n"], "aggregate": ["Sum"]}, "n")


def test_absent_cells_are_withheld_counts_and_missing_sums():
    summary = {name: part[:2] for name, part in SUMMARY.items()} | {"threshold": np.array([9.0, np.nan])}
    cells = {"town": ["Ash", "Cove", "Bay"]}
    frame = {name: FRAME[name] for name in ("town", "income")} | {"n": np.array([12, 10], np.uint32)}
    count, income = (ldp.opendp.read_table(frame, summary, name, cells=cells) for name in ("n", "income"))
    # OpenDP prints what is above its threshold
    assert count.mechanism == Withheld(added(DiscreteLaplace(2.0)), 10)
    assert income.mechanism == Incomplete(added(Gaussian(30.0)))
    np.testing.assert_array_equal(count.values, [12, np.nan, 10])
    np.testing.assert_array_equal(income.values, [410.5, np.nan, -3.25])
    released = ldp.opendp.read_table(frame, summary, "n")
    assert released.mechanism == Withheld(added(DiscreteLaplace(2.0)), 10) and released.count == 2
    none = {name: part[:0] for name, part in frame.items()}
    assert np.isnan(ldp.opendp.read_table(none, summary, "n", cells=cells).values).all()
    with pytest.raises(ValueError, match=r"cells= lacks 1 released cells, such as .*Bay"):
        ldp.opendp.read_table(frame, summary, "n", cells={"town": ["Ash", "Cove"]})


def p_value(counts, probabilities):
    """Pearson's chi-squared test of counts, with neighbours put together until 25 or more are expected of them."""
    expected = np.asarray(probabilities) * counts.sum()
    groups = np.floor(np.cumsum(expected) / 25).astype(int)
    expected, counts = (np.bincount(groups, each) for each in (expected, counts))
    kept = expected > 5
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    return stats.chi2.sf(statistic, kept.sum() - 1)


GRID = np.arange(-200, 201)  # beyond which there is less than exp(-60) of all noise here


def p_value_of_whole_numbers(values, mechanism, x):
    probabilities = np.exp(call("log_prob", mechanism, GRID.astype(float), np.full(len(GRID), float(x))))
    return p_value(np.bincount(values - GRID[0], minlength=len(GRID)), probabilities)


@sizes
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise_on_vectors_of_integers_is_discrete(dp, law, draws):
    metric = dp.l1_distance(T=int) if law == "laplace" else dp.l2_distance(T=float)
    measurement = (dp.vector_domain(dp.atom_domain(T=int)), metric) >> getattr(dp.m, f"then_{law}")(1.5)
    mechanism = ldp.opendp.read_mechanism(measurement, d_in=2)
    noise = {"laplace": DiscreteLaplace, "gaussian": DiscreteGaussian}[law](1.5)
    assert mechanism == added(noise, sensitivity=2.0)
    values = np.array(measurement([3] * draws))
    assert p_value_of_whole_numbers(values, mechanism, 3) > ERROR_RATE
    wrong = added(type(noise)(1.3))  # the test tells scales apart
    assert p_value_of_whole_numbers(values, wrong, 3) < ERROR_RATE


@sizes
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise_on_vectors_of_floats_is_continuous(dp, law, draws):
    metric = dp.l1_distance(T=float) if law == "laplace" else dp.l2_distance(T=float)
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), metric
    measurement = space >> getattr(dp.m, f"then_{law}")(1.5)
    mechanism = ldp.opendp.read_mechanism(measurement)
    assert mechanism == added({"laplace": Laplace, "gaussian": Gaussian}[law](1.5))
    edges = np.linspace(-8, 10, 200)
    density = np.exp(call("log_prob", mechanism, fine := np.linspace(-8, 10, 19901), np.full(len(fine), 1.0)))
    masses = integrate.simpson(np.stack([density[i * 100 : i * 100 + 101] for i in range(199)]), dx=fine[1] - fine[0])
    counts, _ = np.histogram(measurement([1.0] * draws), edges)
    assert p_value(counts, masses / masses.sum()) > ERROR_RATE


def test_noise_on_a_coarse_grid_is_refused(dp):
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    assert ldp.opendp.read_mechanism(space >> dp.m.then_laplace(1.5, k=-30)) == added(Laplace(1.5))
    with pytest.raises(ValueError, match=r"on a grid finer than 1e-06 scales, got f64 on a grid of 2\^-2"):
        ldp.opendp.read_mechanism(space >> dp.m.then_laplace(1.5, k=-2))


@sizes
def test_unsigned_numbers_are_floored(dp, draws):
    space = dp.vector_domain(dp.atom_domain(T="u32")), dp.l1_distance(T="u32")
    measurement = space >> dp.m.then_laplace(2.0)
    mechanism = ldp.opendp.read_mechanism(measurement)
    assert mechanism == Floored(added(DiscreteLaplace(2.0)), 0)
    values = np.array(measurement([1] * draws), int)
    assert values.min() >= 0 and p_value_of_whole_numbers(values, mechanism, 1) > ERROR_RATE


def test_a_chain_has_the_law_of_its_noise_and_the_sensitivity_of_its_transformations(dp):
    space = dp.vector_domain(dp.atom_domain(bounds=(0, 10))), dp.symmetric_distance()
    chain = space >> dp.t.then_sum() >> dp.m.then_laplace(scale=20.0)
    mechanism = ldp.opendp.read_mechanism(chain, d_in=2)
    assert mechanism == added(DiscreteLaplace(20.0), sensitivity=20.0)
    assert mechanism.guarantee.epsilon(0.0) == pytest.approx(chain.map(2))
    assert ldp.opendp.read_mechanism(dp.serialize(chain), d_in=2) == mechanism
    gaussian = (dp.atom_domain(T=int), dp.absolute_distance(T=float)) >> dp.m.then_gaussian(3.0)
    restated = dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(gaussian), 1e-6)
    assert ldp.opendp.read_mechanism(restated) == added(DiscreteGaussian(3.0))
    query = dp.Context.compositor(
        data=[1, 2, 30], privacy_unit=dp.unit_of(contributions=1), privacy_loss=dp.loss_of(epsilon=1.0),
        split_evenly_over=1, domain=dp.vector_domain(dp.atom_domain(T=int)),
    ).query().clamp((0, 10)).sum().laplace()  # fmt: skip
    assert ldp.opendp.read_mechanism(query.resolve(), d_in=1).guarantee.epsilon(0.0) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="got make_noisy_max; for data frames"):
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
        ldp.opendp.read_mechanism(space >> dp.m.then_noisy_max(dp.max_divergence(), 1.0))


def test_randomized_response_of_categories_gives_their_shares(dp):
    categories = ["car", "bus", "bicycle"]
    measurement = dp.m.make_randomized_response(categories, 0.6)
    mechanism = ldp.opendp.read_mechanism(measurement)
    assert mechanism.categories == 3 and mechanism.epsilon == pytest.approx(measurement.map(1))
    answers = np.repeat([0, 1, 2], [2500, 1000, 500])
    codes = np.array([categories.index(measurement(categories[code])) for code in answers])
    for code in range(3):
        counts = np.bincount(codes[answers == code], minlength=3)
        assert p_value(counts, np.exp(call("log_prob", mechanism, np.arange(3), np.full(3, code)))) > ERROR_RATE
    estimate = ldp.frequencies(ldp.Release(codes, mechanism))
    error = np.abs(estimate.estimate - [0.625, 0.25, 0.125])
    assert (error < stats.norm.isf(ERROR_RATE / 6) * estimate.standard_error).all()


def test_randomized_response_of_bools(dp):
    measurement = dp.m.make_randomized_response_bool(0.75)
    mechanism = ldp.opendp.read_mechanism(measurement)
    assert mechanism.categories == 2 and mechanism.epsilon == pytest.approx(measurement.map(1))
    kept = sum(measurement(True) for _ in range(3000))
    assert stats.binomtest(kept, 3000, float(np.exp(call("log_prob", mechanism, 1, 1)))).pvalue > ERROR_RATE
    assert ldp.opendp.read_mechanism(dp.m.make_randomized_response_bool(1.0)).epsilon == math.inf


def test_bits_are_flipped_on_their_own_and_one_hot_codes_are_unary_encodings(dp):
    def made(weight):
        return dp.m.make_randomized_response_bitvec(dp.bitvector_domain(weight), dp.discrete_distance(), f=0.5)

    one_hot = ldp.opendp.read_mechanism(made(1), categories=8)
    assert one_hot == ldp.SymmetricUnaryEncoding(2 * math.log(3), 8)
    assert one_hot.epsilon == pytest.approx(made(1).map(1))
    bit = ldp.opendp.read_mechanism(made(4000))
    assert bit == ldp.RandomizedResponse(math.log(3))
    codes = np.random.default_rng(0).choice(8, 4000, p=[0.3, 0.2, 0.2, 0.1, 0.05, 0.05, 0.05, 0.05])
    sent = np.eye(8, dtype=np.uint8)[codes]
    # One vector of all records, as each bit is flipped on its own; the last bit of every record is among them.
    bits = np.unpackbits(np.frombuffer(made(4000)(np.packbits(sent).tobytes()), np.uint8)).reshape(4000, 8)
    release = ldp.Release(bits, one_hot)
    for value in (0, 1):
        counts = np.bincount(bits[sent == value], minlength=2)
        assert p_value(counts, np.exp(call("log_prob", bit, np.arange(2), np.full(2, value)))) > ERROR_RATE
    patterns = np.bincount((2 * bits + sent)[:, -1], minlength=4)
    assert stats.binomtest(int(patterns[2]), int(patterns[0] + patterns[2]), 0.25).pvalue > ERROR_RATE
    estimate = ldp.frequencies(release)
    error = np.abs(estimate.estimate - np.bincount(codes, minlength=8) / 4000)
    assert (error < stats.norm.isf(ERROR_RATE / 16) * estimate.standard_error).all()
    last = ldp.frequencies(ldp.Release(bits[:, -1], bit))
    assert last.estimate[1] == pytest.approx(
        (codes == 7).mean(), abs=stats.norm.isf(ERROR_RATE) * last.standard_error[1]
    )


def query_of_groups(dp, pl, lengths, aggregates, *, scale, threshold=None, measure="max_divergence"):
    """(released, summary) of a query of groups of these lengths, without a search for scale and threshold."""
    frame = pl.LazyFrame({"group": np.repeat(np.arange(len(lengths)), lengths), "one": np.ones(sum(lengths), int)})
    columns = [dp.series_domain(name, dp.atom_domain(T=dp.i64)) for name in ("group", "one")]
    domain, measure = dp.lazyframe_domain(columns), getattr(dp, measure)()
    invariant = None if threshold else "keys"
    margin = dp.polars.Margin(by=["group"], invariant=invariant, max_length=50, max_groups=len(lengths))
    plan = frame.group_by("group").agg(*aggregates)
    measurement = dp.m.make_private_lazyframe(
        dp.with_margin(domain, margin),
        dp.symmetric_distance(),
        dp.approximate(measure) if threshold else measure,
        plan,
        global_scale=scale,
        threshold=threshold,
    )
    return measurement(frame).collect(), dp.summarize_polars_measurement(measurement)


@pytest.mark.parametrize("measure", ["max_divergence", "zero_concentrated_divergence"])
def test_counts_and_sums_of_groups_have_the_laws_of_their_tables(dp, pl, measure):
    aggregates = [dp.len(signed=False).alias("n"), dp.len(signed=True).alias("signed"), pl.col("one").dp.sum((0, 1))]
    aggregates += [pl.col("one").dp.mean((0, 1)).alias("mean")]
    released, summary = query_of_groups(dp, pl, [4] * 2000, aggregates, scale=2.0, measure=measure)
    tables = {name: ldp.opendp.read_table(released, summary, name) for name in ("n", "signed", "one")}
    with pytest.raises(ValueError, match=r"computed from several noisy numbers \(Sum and Length"):
        ldp.opendp.read_table(released, summary, "mean")
    assert all(list(table.keys) == ["group"] for table in tables.values())
    assert isinstance(tables["n"].mechanism, Floored) and tables["n"].values.min() == 0
    for name in ("signed", "one"):
        values = tables[name].values.astype(int)
        assert values.min() < 0 and p_value_of_whole_numbers(values, tables[name].mechanism, 4) > ERROR_RATE
    assert p_value_of_whole_numbers(tables["n"].values.astype(int), tables["n"].mechanism, 4) > ERROR_RATE


def test_rows_at_or_below_the_threshold_are_withheld(dp, pl):
    aggregates = [dp.len(signed=True), pl.col("one").dp.sum((0, 1))]
    released, summary = query_of_groups(dp, pl, [5] * 4000, aggregates, scale=2.0, threshold=6)
    cells = {"group": np.arange(4000)}
    table = ldp.opendp.read_table(released, summary, "len", cells=cells)
    assert table.mechanism == Withheld(added(DiscreteLaplace(2.0)), 7) and table.count == 4000
    assert np.nanmin(table.values) == 7  # 6 is not released
    missing = np.isnan(table.values).sum()
    probability = float(np.exp(call("log_prob", table.mechanism, np.nan, 5.0)))
    assert stats.binomtest(int(missing), 4000, probability).pvalue > ERROR_RATE
    sums = ldp.opendp.read_table(released, summary, "one", cells=cells)
    assert (np.isnan(sums.values) == np.isnan(table.values)).all()
    shown = sums.values[~np.isnan(sums.values)].astype(int)
    assert p_value_of_whole_numbers(shown, sums.mechanism.mechanism, 5) > ERROR_RATE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*default value is currently signed:FutureWarning")
def test_a_context_of_counts_and_sums_gives_posteriors_on_the_truth(dp, pl):
    rng = np.random.default_rng(0)
    town, income = rng.choice(["Ash", "Bay", "Cove"], 600, p=[0.6, 0.3, 0.1]), rng.uniform(0, 10, 600)
    context = dp.Context.compositor(
        data=pl.LazyFrame({"town": town, "income": income}),
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(epsilon=3.0),
        split_evenly_over=2,
        margins=[dp.polars.Margin(by=["town"], invariant="keys", max_length=600, max_groups=3)],
    )
    incomes = pl.col("income").fill_null(0.0).fill_nan(0.0)
    query = context.query().group_by("town").agg(dp.len().alias("n"), incomes.dp.sum((0.0, 10.0)))
    released, summary = query.release().collect(), query.summarize()
    tables = {name: ldp.opendp.read_table(released, summary, name, sensitivity=reach)
              for name, reach in (("n", 1), ("income", 10))}  # fmt: skip
    assert tables["n"].guarantee.epsilon(0.0) == pytest.approx(0.75) and tables["n"].guarantee.composed
    post = ldp.tables.true_table(tables, num_samples=4000, seed=0)["posterior"]
    true = {"n": [(town == name).sum() for name in post["town"].values]}
    true["income"] = [income[town == name].sum() for name in post["town"].values]
    for name, truth in true.items():
        scale = summary.filter(pl.col("column") == name)["scale"].item()
        assert (np.abs(post[name].mean(("chain", "draw")).values - truth) < 17 * scale).all()  # exp(-17) is 4e-8
    mean = (post["income"] / post["n"]).sel(town="Ash")
    low, high = mean.quantile([1e-3, 1 - 1e-3])
    assert low - 1 < true["income"][list(post["town"].values).index("Ash")] / (town == "Ash").sum() < high + 1


def test_without_opendp_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"opendp.*pip install 'ldpbayes\[opendp\]'"):
        ldp.opendp.read_mechanism("{}")
