"""Pictures show the numbers they were given."""

import numpy as np
import pytest
import xarray as xr

import ldpbayes as ldp

pyplot = pytest.importorskip("matplotlib.pyplot")
from ldpbayes.plots import (  # noqa: E402
    COLOURS,
    plot_areas,
    plot_calibration,
    plot_density,
    plot_design,
    plot_replicates,
    plot_shares,
    plot_tradeoffs,
)
from ldpbayes.privacy import Guarantee, approximate_tradeoff  # noqa: E402
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff  # noqa: E402
from ldpbayes.studies import CalibrationStudy, SurveyDesign  # noqa: E402


def test_shares_are_drawn_with_their_intervals_beside_the_truth():
    mechanism = ldp.OptimalUnaryEncoding(1.0, 3)
    own = np.arange(300)[:, None] % 3 == np.arange(3)
    bits = np.random.default_rng(0).random((300, 3)) < np.where(own, 0.5, 1 / (1 + np.e))
    release = ldp.Release(bits.astype(int), mechanism)
    unbiased, projected = (ldp.frequencies(release, method) for method in ("unbiased", "projection"))
    draws = np.random.default_rng(0).dirichlet([3.0, 2.0, 1.0], 500)
    _, ax = pyplot.subplots()
    shares = {"unbiased": unbiased, "projection": projected, "noise-aware": draws}
    plot_shares(range(3), shares, truth=[0.4, 0.3, 0.3], ax=ax)
    marks, *intervals = (np.array(lines.get_segments()) for lines in ax.collections)
    np.testing.assert_allclose(marks[:, 0, 1], [0.4, 0.3, 0.3])
    expected = [unbiased.interval(0.95), (projected.estimate,) * 2, np.quantile(draws, [0.025, 0.975], axis=0)]
    centres = [unbiased.estimate, projected.estimate, draws.mean(axis=0)]
    for segments, ends, points, centre in zip(intervals, expected, ax.lines, centres, strict=True):
        np.testing.assert_allclose(segments[:, :, 1].T, ends)
        np.testing.assert_allclose(points.get_ydata(), centre)
    assert ax.lines[2].get_color() == COLOURS["noise-aware"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["truth", *shares]
    pyplot.close()


def test_tradeoffs_are_drawn_with_their_envelopes():
    curve = SymmetricLaplaceTradeoff(0.5)
    envelope = approximate_tradeoff(1.0, curve.delta(1.0))
    _, ax = pyplot.subplots()
    plot_tradeoffs({"many columns": Guarantee(curve)}, envelopes=[envelope], ax=ax)
    _, below, above = ax.lines
    np.testing.assert_allclose(above.get_ydata(), curve(above.get_xdata()))
    np.testing.assert_allclose(below.get_ydata(), envelope(below.get_xdata()))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["no information", "many columns"]
    pyplot.close()


def test_replicates_are_drawn_with_the_estimate_and_its_interval():
    draws, params = np.random.default_rng(0).normal(0.3, 0.05, (99, 1)), np.array([0.3])
    found = ldp.bootstrap.BootstrapEstimate(
        params, params, ["probs"], draws, None, None, False, 0, params, "percentile", "none"
    )
    _, ax = pyplot.subplots()
    plot_replicates(found, "probs", reference=0.4, ax=ax)
    estimate, reference = ax.lines
    assert estimate.get_xdata()[0] == found.params[0]
    assert reference.get_xdata()[0] == 0.4
    assert sum(patch.get_width() * patch.get_height() for patch in ax.patches[:-1]) == pytest.approx(1.0)
    low, high = found.interval()
    assert ax.patches[-1].get_x() == low[0]
    assert ax.patches[-1].get_width() == pytest.approx(high[0] - low[0])
    with pytest.raises(ValueError, match="name must be one of probs"):
        plot_replicates(found, "rate", ax=ax)
    pyplot.close()


def test_areas_are_ordered_by_their_rates_with_both_kinds_of_intervals():
    _, axes = pyplot.subplots()
    rng = np.random.default_rng(0)
    centers = np.array([0.3, 0.1, 0.2])
    population = xr.DataArray(centers + 0.01 * rng.normal(size=(2, 500, 3)), dims=("chain", "draw", "county"))
    population = population.assign_coords(county=["c", "a", "b"])
    table = centers + 0.02 * rng.normal(size=(1000, 3))
    table[0] = np.nan  # a ratio that does not exist in a draw
    plot_areas([0.32, np.nan, 0.2], population, table=table, level=0.9, ax=axes)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    of_table, of_population = (collection.get_segments() for collection in axes.collections)
    lengths = [[np.ptp(segment[:, 0]) for segment in segments] for segments in (of_table, of_population)]
    # 90 % intervals are 3.29 standard deviations long; quantiles of 1,000 draws are off by a tenth at most
    np.testing.assert_allclose(lengths, [[3.29 * 0.02] * 3, [3.29 * 0.01] * 3], rtol=0.1)
    pyplot.close()


def bands(ax):
    """Lower and upper ends (2, k) of every band, in the order in which they were drawn."""
    for band in ax.collections:
        y = band.get_paths()[0].vertices[:, 1]  # a corner, the lower ends, a corner, the upper ends backwards, the end
        k = (len(y) - 3) // 2
        yield np.array([y[1 : k + 1], y[-2 : k + 1 : -1]])


X = np.linspace(0, 1, 30)
COVARIANCE = 0.01 * np.exp(-np.abs(X[:, None] - X) / 0.2)


def test_the_simultaneous_band_of_a_curve_holds_the_pointwise_one_and_held_out_curves():
    """Its coverage is off by 0.004 (standard error), of the quantile of 4,000 draws and the share of 20,000 curves: by
    more than 0.02 in one of a million tests.
    """
    rng = np.random.default_rng(0)
    centre = 2 + np.sin(6 * X)
    draws, held_out = (rng.multivariate_normal(centre, COVARIANCE, size) for size in (4000, 20_000))
    estimate = ldp.tables.TableEstimate(centre, [*map(str, X)], COVARIANCE, "")
    _, ax = pyplot.subplots()
    curves = {"noise-aware": xr.DataArray(draws.reshape(4, 1000, 30), dims=("chain", "draw", "at")), "fast": estimate}
    plot_density(X, curves, truth=centre, ax=ax)
    entries = ["truth", "noise-aware", "95% at all points", "95% at a point", "fast"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == entries
    truth, mean, fast = (line.get_ydata() for line in ax.lines)
    np.testing.assert_array_equal(truth, centre)
    np.testing.assert_allclose(mean, draws.mean(axis=0))
    np.testing.assert_allclose(fast, centre)
    all_bands = list(bands(ax))
    assert len(all_bands) == 4
    for simultaneous, pointwise in (all_bands[:2], all_bands[2:]):
        assert (simultaneous[0] < pointwise[0]).all() and (simultaneous[1] > pointwise[1]).all()
        inside = (held_out > simultaneous[0]) & (held_out < simultaneous[1])
        assert abs(inside.all(axis=1).mean() - 0.95) < 0.02
        shares = ((held_out > pointwise[0]) & (held_out < pointwise[1])).mean(axis=0)
        np.testing.assert_allclose(shares, 0.95, atol=0.025)  # 30 points, each off by up to 0.005 (standard error)
    np.testing.assert_allclose(all_bands[1], np.quantile(draws, [0.025, 0.975], axis=0))
    pyplot.close()


def test_bands_of_a_curve_end_at_0_and_the_released_values_beside_it_are_a_density_of_all_of_them():
    mechanism = ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=1)
    release = ldp.Release(0.5 + np.random.default_rng(0).laplace(0, 1, 5000), mechanism)
    draws = np.random.default_rng(0).normal(0.1, 0.2, (50, 30)).clip(0)
    draws[:, 0] = 0.0  # as a cdf begins, without an error
    _, ax = pyplot.subplots()
    plot_density(X, {"noise-aware": draws}, release=release, ax=ax)
    assert min(band.min() for band in bands(ax)) == 0.0
    heights, edges, _ = ax.patches[0].get_data()
    values = np.asarray(release.values)
    assert heights @ np.diff(edges) == pytest.approx(np.mean((values >= 0) & (values <= 1)))
    pyplot.close()


def test_whole_numbers_beside_a_curve_have_a_bar_each():
    release = ldp.Release([0, 2, 2, 3, 40], ldp.DiscreteLaplaceMechanism(1.0, 0, 5))
    ax = plot_density(np.linspace(0, 5, 30), {"a": np.ones((9, 30))}, release=release)
    heights, edges, _ = ax.patches[0].get_data()
    np.testing.assert_allclose(edges, np.arange(-0.5, 6))
    np.testing.assert_allclose(heights, [0.2, 0, 0.4, 0.2, 0, 0])
    pyplot.close()


def test_a_plan_has_a_line_a_kind_and_number_of_people():
    mechanisms = {f"laplace {e}": ldp.LaplaceMechanism(e, 0, 1) for e in (2.0, 0.5)}
    mechanisms["gaussian"] = ldp.GaussianMechanism(1.0, 1e-5, 0, 1)
    plan = SurveyDesign(["mu"], np.array([0.5]), mechanisms, np.array([[1.0], [9.0], [4.0]]), np.array([0.1]))
    ax = plot_design(plan, "mu", (100, 400))
    first, second, *_ = ax.lines
    np.testing.assert_allclose(first.get_xdata(), [0.5, 2.0])
    np.testing.assert_allclose(first.get_ydata(), 2 * 1.959963984540054 * np.array([3.0, 1.0]) / 10)
    np.testing.assert_allclose(second.get_ydata(), np.asarray(first.get_ydata()) / 2)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["Laplace", "Gaussian", "100 people", "400 people"]
    with pytest.raises(ValueError, match="name must be one of mu"):
        plot_design(plan, "sigma")
    inflated = {"zil": ldp.ZeroInflatedLaplaceMechanism(0.1, 1.0, 0, 1)}
    with pytest.raises(ValueError, match="no finite epsilon at delta = 0"):
        plot_design(SurveyDesign(["mu"], np.array([0.5]), inflated, np.ones((1, 1)), np.ones(1)), "mu")
    pyplot.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": X[::-1]}, "x must be increasing points"),
        ({"x": 0.5}, "x must be increasing points"),
        ({"curves": {"a": np.ones((100, 29))}}, r"curves\['a'\] must have the 30 points of x .* got shape \(100, 29\)"),
        ({"curves": {"a": np.full((100, 30), np.nan)}}, "must be finite numbers"),
        ({"truth": np.ones(3)}, "truth must have the 30 points"),
        ({"level": 1.0}, "level must be a number between 0 and 1"),
        ({"release": ldp.Release(None, ldp.LaplaceMechanism(1.0, 0, 1), count=3)}, "release must hold released"),
    ],
)
def test_curves_of_another_shape_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plot_density(**({"x": X, "curves": {"a": np.ones((100, 30))}} | changes))


def test_calibration_is_drawn_beside_its_band():
    rng = np.random.default_rng(0)
    study = CalibrationStudy({"mu": rng.random(200), "sigma": rng.beta(1, 3, 200)})
    ax = plot_calibration(study, ax=pyplot.figure().subplots())
    mu, sigma, _ = ax.get_lines()
    band = ax.collections[0].get_paths()[0].vertices
    highest = np.max(band[:, 1])
    assert np.max(np.abs(mu.get_ydata())) < highest < np.max(sigma.get_ydata())  # posteriors too far to the right
    x, y = sigma.get_data()
    np.testing.assert_allclose(y, [np.mean(study.pit["sigma"] <= at) - at for at in x])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["99 % band", "mu", "sigma"]
    with pytest.raises(ValueError, match="names must be among mu, sigma, got 'tau'"):
        plot_calibration(study, ["tau"])


def test_draws_may_have_their_named_axes_in_any_order_and_others_must_be_last():
    """``az.extract`` returns (area, sample); of as many draws as areas, the shape does not tell the axes apart."""
    rng = np.random.default_rng(0)
    for count in (4, 6):
        rates = xr.DataArray(rng.random((2, count // 2, 4)), dims=("chain", "draw", "area"))
        layouts = [rates, rates.transpose("area", "draw", "chain"), rates.stack(sample=("chain", "draw"))]
        assert layouts[2].dims == ("area", "sample")
        for layout in layouts:
            means = rates.mean(("chain", "draw")).values
            ax = plot_areas(means, layout, table=layout, ax=pyplot.figure().subplots())
            np.testing.assert_allclose(ax.lines[0].get_xdata(), np.sort(means))
            ax = plot_shares(range(4), {"a": layout}, ax=pyplot.figure().subplots())
            np.testing.assert_allclose(ax.lines[0].get_ydata(), means)
            ax = plot_density(np.arange(4.0), {"a": layout}, ax=pyplot.figure().subplots())
            np.testing.assert_allclose(ax.lines[0].get_ydata(), means)
            pyplot.close("all")
    last = np.ones((4, 6))
    with pytest.raises(
        ValueError, match=r"population must have the 4 areas of raw along the last axis, got .*\(4, 6\)"
    ):
        plot_areas(np.ones(4), last)
    with pytest.raises(ValueError, match=r"table must have the 4 areas of raw along the last axis"):
        plot_areas(np.ones(4), last.T, table=last)
    with pytest.raises(ValueError, match=r"shares\['a'\] must have the 4 values of x along the last axis"):
        plot_shares(range(4), {"a": last})
    pyplot.close("all")


def test_of_many_areas_some_are_labelled_and_one_far_rate_does_not_squash_the_others():
    rng = np.random.default_rng(0)
    population = rng.normal(np.linspace(0.1, 0.3, 200), 0.01, (500, 200))
    raw = population[0] + 0.02 * rng.normal(size=200)
    raw[7] = 50.0
    ax = plot_areas(raw, population, labels=[f"a{place}" for place in range(200)], ax=pyplot.figure().subplots())
    order = np.argsort(population.mean(axis=0))
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"a{place}" for place in order[::4]]
    low, high = ax.get_xlim()
    assert low < population.min() and population.max() < high < 1.0  # three interquartile ranges, of about .1
    (beyond,) = (line for line in ax.lines if line.get_marker() == ">")
    assert beyond.get_ydata().tolist() == [order.tolist().index(7)] and low < beyond.get_xdata()[0] < high
    pyplot.close()
