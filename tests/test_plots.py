"""Pictures show the numbers they were given."""

import jax
import numpy as np
import pytest
import xarray as xr

import ldpbayes as ldp

pyplot = pytest.importorskip("matplotlib.pyplot")
from ldpbayes.plots import COLOURS, plot_areas, plot_replicates, plot_shares, plot_tradeoffs  # noqa: E402
from ldpbayes.privacy import Guarantee, approximate_tradeoff  # noqa: E402
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff  # noqa: E402


def test_shares_are_drawn_with_their_intervals_beside_the_truth():
    mechanism = ldp.OptimalUnaryEncoding(1.0, 3)
    release = ldp.Release(mechanism.randomize(jax.random.key(0), np.arange(300) % 3), mechanism)
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
    estimator = ldp.bootstrap.sufficient_statistics(ldp.bootstrap.Bernoulli(), count=200, epsilon=1.0)
    found = ldp.parametric_bootstrap(estimator, np.asarray(60.0), draws=99)
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
