"""Intervals of the true table cover as often as they say; results of long studies are in docs/how_to/tables.md."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.inference.result import dataset
from ldpbayes.mechanisms import AdditiveMechanism, Incomplete, Withheld
from ldpbayes.tables import NoisyTable, true_table

CELLS, LEVEL = 12, 0.9


def band(count, error=0.01):
    """Least and largest share of hits in so many independent intervals, but for 1 % of studies."""
    low, high = stats.binom.ppf([error / 2, 1 - error / 2], count, LEVEL)
    return low / count, high / count


def hits(truth, draws, rng):
    """Whether central 90 % intervals hold the truth; a truth at an end, as it may be for whole numbers, does so with
    the probability that makes the level exact. Draws have an axis of draws before those of the truth.
    """
    below, equal = (np.sum(draws < truth, axis=0), np.sum(draws == truth, axis=0))
    place = (below + rng.random(np.shape(truth)) * (equal + 1)) / (len(draws) + 1)
    return np.abs(place - 0.5) < LEVEL / 2


def release(key, x, mechanism):
    """Many tables of some cells as one: their cells are independent."""
    if mechanism is PLAIN["discrete Gaussian"]:
        k = np.arange(-90, 91)  # nine scales: the law as it is defined, from NumPy, which compiles nothing
        law = np.exp(-((k / 10.0) ** 2) / 2)
        z = x.ravel() + np.random.default_rng([8, key]).choice(k, x.size, p=law / law.sum())
        return NoisyTable(z.astype(int), mechanism, keys={"cell": np.arange(x.size)})
    with jax.enable_x64(True):
        z = np.asarray(mechanism.randomize(jax.random.key(key), x.ravel()))
    return NoisyTable(z, mechanism, keys={"cell": np.arange(x.size)})


def sampled(table, x, **options):
    post = dataset(true_table(table, **options)["posterior"])["cells"].values[0]
    return post.reshape(len(post), *x.shape)


PLAIN = {
    "discrete Gaussian": ldp.DiscreteGaussianMechanism(scale=10.0, sensitivity=1),
    "discrete Laplace": AdditiveMechanism(noise.DiscreteLaplace(7.0), sensitivity=1),
    "Gaussian": AdditiveMechanism(noise.Gaussian(10.0), sensitivity=1),
    "Laplace": AdditiveMechanism(noise.Laplace(7.0), sensitivity=1),
}


def study(tables, num_samples, kind="discrete Gaussian"):
    """Hit rates of cells, of a table's total and of a share, for truths from the stated prior."""
    rng = np.random.default_rng(tables)
    x = rng.poisson(40.0, (tables, CELLS)).astype(float)
    draws = sampled(release(1, x, PLAIN[kind]), x, prior=dist.Poisson(40.0), num_samples=num_samples)
    share, shares = x[:, 0] / x.sum(axis=1), draws[..., 0] / draws.sum(axis=-1)
    parts = (x, draws), (x.sum(axis=1), draws.sum(axis=-1)), (share, shares)
    return [np.mean(hits(truth, each, rng)) for truth, each in parts]


def study_of_withheld(tables, num_samples):
    """Hit rates of a table's total with withheld cells counted as such, taken as missing, and left out (with the total
    estimated from the reported ones).
    """
    rng = np.random.default_rng(tables + 1)
    x = rng.geometric(1 / 41, (tables, CELLS)) - 1.0  # of mean 40
    rule = Withheld(PLAIN["Gaussian"], threshold=30.0)
    table = release(2, x, rule)
    missing = NoisyTable(table.values, Incomplete(rule.mechanism), keys=table.keys)
    options = {"prior": dist.Geometric(1 / 41), "num_samples": num_samples}
    withheld, ignored = (sampled(each, x, **options) for each in (table, missing))
    gone = np.isnan(table.values).reshape(x.shape)
    total, left = x.sum(axis=1), np.where(gone, np.nan, withheld)
    kept = np.maximum(np.sum(~gone, axis=1), 1)
    scaled = np.nansum(left, axis=-1) * CELLS / kept
    rates = [np.mean(hits(total, each.sum(axis=-1), rng)) for each in (withheld, ignored)]
    return *rates, np.mean(hits(total, scaled, rng)), np.mean(hits(x, withheld, rng)[gone]), np.sum(gone)


def study_of_known_totals(tables, num_samples):
    """Hit rate of a cell, where the total of its table is known and the prior is flat."""
    rng, result = np.random.default_rng(tables + 2), []
    x = rng.integers(0, 60, (tables, 4)).astype(float)
    for i, (row, z) in enumerate(
        zip(x, release(3, x, PLAIN["discrete Gaussian"]).values.reshape(x.shape), strict=True)
    ):
        # given the total the flat law of the cells is on 0, ..., 59, which a stated prior says
        table = NoisyTable(z, PLAIN["discrete Gaussian"])
        draws = sampled(table, row, prior=dist.DiscreteUniform(0, 59), total=row.sum(), num_samples=num_samples, seed=i)
        result.append(hits(row[0], draws[:, 0], rng))
    return np.mean(result)


def study_of_means(count, tables, num_samples=2000):
    """Shares of intervals of a mean of 4 in [0, 10] that lie above and below it, and their median width: from draws of
    the true table, draws where negative counts are possible, draws whose mean is possible, and by the delta method. The
    noisy sum has standard deviation 20, the noisy count 10.
    """
    rng = np.random.default_rng(count)
    keys = {"group": np.arange(tables)}
    total = NoisyTable(
        rng.normal(4.0 * count, 20.0, tables), AdditiveMechanism(noise.Gaussian(20.0), sensitivity=10), keys=keys
    )
    n = release(count, np.full(tables, float(count)), PLAIN["discrete Gaussian"])
    n = NoisyTable(n.values, n.mechanism, keys=keys)
    rows = []
    for bounds in ({"n": True}, {"n": False}):
        post = dataset(true_table({"sum": total, "n": n}, nonnegative=bounds, num_samples=num_samples)["posterior"])
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.nan_to_num((post["sum"] / post["n"]).values[0], nan=0.0, posinf=1e9, neginf=-1e9)
        rows.append(np.quantile(mean, [0.05, 0.95], axis=0, method="nearest"))
        if bounds["n"]:
            possible = np.where((mean >= 0) & (mean <= 10), mean, np.nan)
            possible[:, np.isnan(possible).all(axis=0)] = [[0.0], [10.0]] * (num_samples // 2)
            rows.append(np.nanquantile(possible, [0.05, 0.95], axis=0))
    z = np.where(n.values == 0, 0.5, n.values)
    ratio = total.values / z
    half = stats.norm.ppf(0.95) * np.sqrt(20.0**2 + (10 * ratio) ** 2) / np.abs(z)
    rows.append((ratio - half, ratio + half))
    return [(np.mean(low > 4.0), np.mean(high < 4.0), np.median(high - low)) for low, high in rows]


def test_intervals_of_cells_totals_and_shares_cover():
    # Three rates and 1 % each: one study in 33 fails for an unlucky seed, of which this is not one.
    cells, total, share = study(100, 400)
    assert all(band(n)[0] <= rate <= band(n)[1] for n, rate in ((1200, cells), (100, total), (100, share)))


@pytest.mark.slow
def test_what_is_withheld_must_not_be_left_out():
    # Two rates and 1 % each, and rates far below the level.
    withheld, ignored, left_out, cells, count = study_of_withheld(100, 400)
    assert band(100)[0] <= withheld <= band(100)[1] and band(count)[0] <= cells <= band(count)[1]
    assert ignored < 0.6 and left_out < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLAIN)
def test_coverage_over_1000_tables(kind):
    rates = study(1000, 2000, kind)
    print(kind, rates)
    assert all(band(n)[0] <= rate <= band(n)[1] for n, rate in zip((12_000, 1000, 1000), rates, strict=True))


@pytest.mark.slow
def test_coverage_over_1000_tables_with_withheld_cells():
    withheld, ignored, left_out, cells, count = study_of_withheld(1000, 2000)
    print(withheld, ignored, left_out, cells, count)
    assert band(1000)[0] <= withheld <= band(1000)[1] and band(count)[0] <= cells <= band(count)[1]
    assert ignored < 0.6 and left_out < 0.3


@pytest.mark.slow
def test_coverage_over_1000_tables_of_known_total():
    rate = study_of_known_totals(1000, 1000)
    print(rate)
    assert band(1000)[0] <= rate <= band(1000)[1]


@pytest.mark.slow
def test_means_are_right_where_the_delta_method_is_and_where_it_is_not():
    for count in (10, 20, 40, 100, 300, 1000):
        rows = study_of_means(count, 4000)
        print(count, [tuple(round(float(each), 3) for each in row) for row in rows])
        low, high = stats.binom.ppf([1e-4, 1 - 1e-4], 4000, 0.05) / 4000
        table, possible, _, delta = rows
        assert possible[0] <= high and possible[1] <= high + 0.01
        if count >= 40:
            assert low <= table[0] <= high and low <= table[1] <= high
        if count <= 40:
            assert delta[0] < low and delta[1] > high + 0.02
        if count >= 300:
            np.testing.assert_allclose(possible[2], delta[2], rtol=0.02)
