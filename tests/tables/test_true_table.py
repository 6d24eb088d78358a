"""The true table: exact probabilities of what cells were against enumeration, and draws against these."""

import functools
import itertools
import json

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.inference.result import dataset
from ldpbayes.mechanisms import AdditiveMechanism, Floored, Incomplete, Rounded, Withheld
from ldpbayes.tables import NoisyTable, estimate_table, true_table
from ldpbayes.tables._true_table import _TablePosterior, split_weights, tilted, tree_of_sums

SCALE = 3.0


def theta(scale):
    k = np.arange(-400, 401)
    return special.logsumexp(-((k / scale) ** 2) / 2)


# log density of noise d at scale 3, or its log distribution function; written here for themselves
DENSITY = {
    "laplace": lambda d: -np.abs(d) / SCALE,
    "gaussian": lambda d: -((d / SCALE) ** 2) / 2,
    "discrete_laplace": lambda d: -np.abs(d) / SCALE + np.log(np.tanh(1 / (2 * SCALE))),
    "discrete_gaussian": lambda d: -((d / SCALE) ** 2) / 2 - theta(SCALE),
}
NOISES = {
    "laplace": noise.Laplace(SCALE),
    "gaussian": noise.Gaussian(SCALE),
    "discrete_laplace": noise.DiscreteLaplace(SCALE),
    "discrete_gaussian": noise.DiscreteGaussian(SCALE),
}


def log_cdf(name, t):
    if name == "laplace":
        return stats.laplace.logcdf(t, scale=SCALE)
    if name == "gaussian":
        return stats.norm.logcdf(t, scale=SCALE)
    k = np.arange(-400, 401)
    return special.logsumexp(np.where(k <= np.asarray(t)[..., None], DENSITY[name](k), -np.inf), axis=-1)


def mechanism(name, rule=None):
    plain = AdditiveMechanism(NOISES[name], sensitivity=1)
    return plain if rule is None else rule(plain)


def table(values, mechanism, **keys):
    return NoisyTable(values, mechanism, keys=keys or {"cell": [f"c{i}" for i in range(len(values))]})


def law_of(table, **options):
    return _TablePosterior(
        "n", table, **({"prior": None, "whole": None, "nonnegative": None, "total": None, "zeros": None} | options)
    )


def probabilities(table, upto=400, **options):
    """P(cell = 0, ..., upto − 1) for each cell, as `true_table` draws them."""
    law, result = law_of(table, **options), np.zeros((table.count, upto))
    with jax.enable_x64(True):
        for row in range(table.count):
            (edges,), (log_p,) = law.window(np.array([row]))
            p = np.exp(log_p - special.logsumexp(log_p))
            assert np.all((np.diff(edges) == 1) | (p == 0))
            inside = (p > 0) & (edges[:-1] < upto)
            result[row, edges[:-1][inside].astype(int)] = p[inside]
    return result


def normalised(logs):
    return np.exp(logs - special.logsumexp(logs, axis=-1, keepdims=True))


K = np.arange(400)
VALUES = np.array([0, 7, -9, 50])


@pytest.mark.parametrize("name", NOISES)
def test_cells_have_the_law_that_enumeration_gives(name):
    expected = normalised(DENSITY[name](VALUES[:, None] - K))
    got = probabilities(table(VALUES, mechanism(name)), whole=True)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.slow
def test_floored_withheld_rounded_and_missing_cells_have_theirs(name):
    discrete = NOISES[name].discrete
    z = np.array([0.0, 7.0, 12.0])
    floor = np.where(z[:, None] == 0, log_cdf(name, 0 - K), DENSITY[name](z[:, None] - K))
    if not discrete:  # the constant of the density, which the atom lacks
        floor[1:] += np.log(1 / (2 * SCALE) if name == "laplace" else 1 / (SCALE * np.sqrt(2 * np.pi)))
    got = probabilities(table(z, mechanism(name, Floored)), whole=True)
    np.testing.assert_allclose(got, normalised(floor), rtol=0, atol=1e-12)
    z = np.array([np.nan, 7.0, 12.0])
    below = log_cdf(name, 5 - discrete - K)
    kept = np.where(np.isnan(z)[:, None], below, DENSITY[name](np.nan_to_num(z)[:, None] - K))
    got = probabilities(table(z, mechanism(name, lambda plain: Withheld(plain, threshold=5.0))), whole=True)
    np.testing.assert_allclose(got, normalised(kept), rtol=0, atol=1e-12)
    z = np.array([0.0, 5.0, 10.0])
    if discrete:
        ends = log_cdf(name, z[:, None] + 2 - K), log_cdf(name, z[:, None] - 3 - K)
    else:
        ends = log_cdf(name, z[:, None] + 2.5 - K), log_cdf(name, z[:, None] - 2.5 - K)
    rounded = ends[0] + np.log1p(-np.exp(np.minimum(ends[1] - ends[0], -1e-17)))
    got = probabilities(table(z, mechanism(name, lambda plain: Rounded(plain, unit=5.0))), whole=True)
    inside = normalised(rounded) > 1e-9  # further out the difference of two distribution functions cancels here
    np.testing.assert_allclose(got[inside], normalised(rounded)[inside], rtol=1e-5, atol=1e-12)
    z = np.array([np.nan, 7.0])
    posterior = stats.poisson.logpmf(K, 20) + np.where(
        np.isnan(z)[:, None], 0.0, DENSITY[name](np.nan_to_num(z)[:, None] - K)
    )
    got = probabilities(table(z, mechanism(name, Incomplete)), whole=True, prior=dist.Poisson(20.0))
    np.testing.assert_allclose(got, normalised(posterior), rtol=0, atol=1e-13)


def test_priors_are_one_for_all_cells_or_one_a_cell_and_bound_them():
    z = np.array([3, 40, 12])
    rates, noisy = np.array([2.0, 30.0, 300.0]), mechanism("discrete_gaussian")
    expected = normalised(stats.poisson.logpmf(K, rates[:, None]) + DENSITY["discrete_gaussian"](z[:, None] - K))
    np.testing.assert_allclose(probabilities(table(z, noisy), prior=dist.Poisson(rates)), expected, rtol=0, atol=1e-13)
    expected = normalised(stats.binom.logpmf(K, 20, 0.5) + DENSITY["discrete_gaussian"](z[:, None] - K))
    got = probabilities(table(z, noisy), prior=dist.Binomial(20, 0.5))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


def joint_by_enumeration(name, z, total, prior=0.0):
    """P(x1, x2, x3 | their sum), (total + 1, total + 1, total + 1)."""
    k = np.arange(total + 1)
    logs = [DENSITY[name](value - k) + prior for value in z]
    joint = logs[0][:, None, None] + logs[1][:, None] + logs[2]
    sums = k[:, None, None] + k[:, None] + k
    joint = np.where(sums == total, joint, -np.inf)
    return np.exp(joint - special.logsumexp(joint))


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("z, total", [((3, 20, -8), 30), ((3, 20, -8), 0), ((0, 1, 2), 50), ((30, 40, 45), 50)])
def test_cells_given_their_sum_have_the_law_that_enumeration_gives(name, z, total):
    # Also where the known sum is far from that of the released values, so that none of their windows has room for it.
    law = law_of(table(z, mechanism(name)), whole=True, total=total)
    (known,) = law.sums
    with jax.enable_x64(True):
        edges, log_p = law.window(*known)
    parts = list(zip(edges[:, 0].astype(int), np.exp(log_p), strict=True))
    _, left, right = tree_of_sums(parts)
    first = split_weights(left[0], right[0], np.array([total]))[0]
    joint = np.zeros((total + 1,) * 3)
    for x, p in zip(left[0][0] + np.arange(len(first)), first / first.sum(), strict=True):
        if p > 0:
            second = split_weights(right[1][0], right[2][0], np.array([total - x]))[0]
            for y, q in zip(right[1][0][0] + np.arange(len(second)), second / second.sum(), strict=True):
                if q > 0:
                    joint[int(x), int(y), int(total - x - y)] = p * q
    np.testing.assert_allclose(joint, joint_by_enumeration(name, z, total), rtol=0, atol=1e-10)


def test_draws_follow_the_exact_laws_with_and_without_a_known_sum():
    # The largest of 2 × 3 × 51 standardised frequencies of 40,000 draws is above 5 with probability 2e-4.
    z, count = np.array([3, 20, -8]), 40_000
    release = table(z, mechanism("discrete_gaussian"))
    free = draws(true_table(release, num_samples=count))[0]
    given = draws(true_table(release, num_samples=count, total=30, seed=1))[0]
    assert set(given.sum(axis=1)) == {30}
    joint = joint_by_enumeration("discrete_gaussian", z, 30)
    marginals = [np.pad(joint.sum(axis=tuple({0, 1, 2} - {j})), (0, 20)) for j in range(3)]
    for sample, laws in ((free, probabilities(release, 51)), (given, marginals)):
        for j in range(3):
            seen = np.bincount(sample[:, j], minlength=51) / count
            assert np.all(np.abs(seen[:51] - laws[j]) < 5 * np.sqrt(laws[j] / count) + 3 / count)


def draws(result, name="cells"):
    return dataset(result["posterior"])[name].values


def test_ratios_means_and_comparisons_follow_brute_force():
    # Distribution functions of 40,000 draws are off by more than 0.012 with probability 2 exp(−2·40,000·0.012²) = 2e-5.
    n, total = table([12, 40], mechanism("discrete_gaussian")), table([30, 90], mechanism("discrete_laplace"))
    post = dataset(true_table({"sum": total, "n": n}, num_samples=40_000)["posterior"])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (post["sum"] / post["n"]).values[0]
    laws = probabilities(total, 200), probabilities(n, 200)
    k = np.arange(200)
    for cell, cut in itertools.product(range(2), (1.5, 2.25, 3.0)):
        joint = laws[0][cell][:, None] * laws[1][cell]
        exact = joint[(k[:, None] < cut * k)].sum()
        assert abs(np.mean(mean[:, cell] < cut) - exact) < 0.012
    a, b = (post["n"].isel(cell=j) for j in range(2))
    exact = np.sum(np.tril(laws[1][0][:, None] * laws[1][1], -1))
    assert abs(float((a > b).mean()) - exact) < 0.012


def test_real_cells_have_the_truncated_law_in_closed_form():
    # Kolmogorov's distance of 20,000 draws exceeds 0.0165 with probability 4e-5 (each of the four).
    for name, law in (("gaussian", stats.norm), ("laplace", stats.laplace)):
        z = np.array([4.0, -6.0])
        sample = draws(true_table(table(z, mechanism(name)), nonnegative=True, num_samples=20_000))[0]
        for j in range(2):
            beyond = law.cdf(z[j] / SCALE)

            def cdf(x, at=z[j], beyond=beyond, law=law):
                return (beyond - law.cdf((at - x) / SCALE)) / beyond

            assert sample[:, j].min() >= 0
            assert stats.kstest(sample[:, j], cdf).statistic < 0.0165
        free = draws(true_table(table(z, mechanism(name)), num_samples=20_000))[0]
        assert stats.kstest(free[:, 1], law(z[1], SCALE).cdf).statistic < 0.0165


def test_real_cells_under_a_prior_are_on_a_fine_grid():
    # Kolmogorov's distance of 20,000 draws exceeds 0.0165 with probability 4e-5 (each of the three).
    z, narrow = np.array([4.0, -6.0, 12.0]), 0.01
    laws = [
        (dist.Gamma(2.0, 0.5), stats.gamma(2, scale=2), "laplace"),
        (dist.Normal(5.0, narrow), stats.norm(5, narrow), "gaussian"),
    ]
    for prior, reference, name in laws:
        sample = draws(true_table(table(z, mechanism(name)), prior=prior, num_samples=20_000))[0]
        grid = np.linspace(*reference.ppf([1e-12, 1 - 1e-12]), 40_001)
        for j in range(3):
            density = reference.pdf(grid) * np.exp(DENSITY[name](z[j] - grid))
            cdf = integrate.cumulative_trapezoid(density, grid, initial=0)
            interpolated = functools.partial(np.interp, xp=grid, fp=cdf / cdf[-1])
            assert stats.kstest(sample[:, j], interpolated).statistic < 0.0165


def distribution_of(release, **options):
    """Edges of blocks of the only cell, and the probabilities below each, as `true_table` draws it."""
    with jax.enable_x64(True):
        (edges,), (log_p,) = law_of(release, **options).window(np.array([0]))
    return edges, np.concatenate([[0.0], np.cumsum(normalised(log_p))])


STEEP = {
    "Gamma": (lambda: dist.Gamma(0.1, 0.01), stats.gamma(0.1, scale=100)),
    "Weibull": (lambda: dist.Weibull(5.0, 0.3), stats.weibull_min(0.3, scale=5)),
    "LogNormal": (lambda: dist.LogNormal(0.0, 3.0), stats.lognorm(3)),
    "HalfCauchy": (lambda: dist.HalfCauchy(1e-4), stats.halfcauchy(scale=1e-4)),
    "Pareto, whose end is not 0": (lambda: dist.Pareto(1.0, 0.5), stats.pareto(0.5)),
    "Beta, steep at both ends": (lambda: dist.Beta(0.3, 0.2), stats.beta(0.3, 0.2)),
    "Cauchy, narrow": (lambda: dist.Cauchy(1.0, 1e-5), stats.cauchy(1, 1e-5)),
    "Student's t, narrow": (lambda: dist.StudentT(2.0, 7.0, 1e-4), stats.t(2, 7, 1e-4)),
    "smooth": (lambda: dist.Gamma(2.0, 0.1), stats.gamma(2, scale=10)),
}


STEEP_BY_DEFAULT = {  # a density that is infinite at 0, at an end that is not 0, at both ends; and a narrow one
    ("Gamma", "laplace"),
    ("Pareto, whose end is not 0", "gaussian"),
    ("Beta, steep at both ends", "gaussian"),
    ("Cauchy, narrow", "laplace"),
}


@pytest.mark.parametrize(
    ("name", "noisy"),
    [
        pytest.param(*pair, marks=() if pair in STEEP_BY_DEFAULT else pytest.mark.slow)
        for pair in itertools.product(STEEP, ["gaussian", "laplace"])
    ],
)
def test_cells_under_a_steep_prior_have_the_law_that_quadrature_gives(name, noisy):
    # Over panels between quantiles of the prior, which are steep as it is: with t its distribution function, the
    # integrand is the density of the noise alone. Panels halve towards both ends of t and at z.
    (make, reference), z = STEEP[name], 4.0
    release = NoisyTable([z], mechanism(noisy), keys={"cell": ["a"]})
    edges, below = distribution_of(release, prior=make())
    at = np.interp([1e-3, 0.1, 0.5, 0.9, 0.97], below, edges)
    ends = 0.5 ** np.arange(1.0, 200.0)
    ends = np.unique([0, *ends, *(1 - ends[:50]), 1, *reference.cdf(at), reference.cdf(z), *np.linspace(0, 1, 3000)])
    nodes, weights = np.polynomial.legendre.leggauss(10)
    t = ends[:-1, None] + np.diff(ends)[:, None] * (1 + nodes) / 2
    mass = (np.exp(DENSITY[noisy](z - reference.ppf(t))) @ weights) * np.diff(ends)
    expected = np.interp(reference.cdf(at), ends, np.concatenate([[0], np.cumsum(mass)]) / mass.sum())
    np.testing.assert_allclose(np.interp(at, edges, below), expected, rtol=0, atol=1e-5)  # as docs promise


COUNTS = np.arange(200_000)
STEEP_COUNTS = {
    "negative binomial": (
        lambda: dist.NegativeBinomial2(5000.0, 0.05),
        stats.nbinom(0.05, 0.05 / 5000.05).logpmf(COUNTS),
    ),
    "zero-inflated": (
        lambda: dist.ZeroInflatedPoisson(0.4, 9000.0),
        np.logaddexp(np.where(COUNTS == 0, np.log(0.4), -np.inf), np.log(0.6) + stats.poisson(9000).logpmf(COUNTS)),
    ),
    "beta-binomial": (lambda: dist.BetaBinomial(2.0, 0.05, 30_000), stats.betabinom(30_000, 2.0, 0.05).logpmf(COUNTS)),
    "narrow": (lambda: dist.Poisson(900.0), stats.poisson(900).logpmf(COUNTS)),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("zero-inflated", "beta-binomial") else pytest.param(name, marks=pytest.mark.slow)
        for name in STEEP_COUNTS
    ],
)
def test_counts_under_a_steep_prior_and_wide_noise_have_the_law_that_enumeration_gives(name):
    (make, log_prior), scale, z = STEEP_COUNTS[name], 5000.0, 3000
    prior = make()
    release = NoisyTable([z], AdditiveMechanism(noise.DiscreteGaussian(scale), sensitivity=1), keys={"cell": ["a"]})
    edges, below = distribution_of(release, prior=prior)
    p = normalised(log_prior - ((z - COUNTS) / scale) ** 2 / 2)
    exact = np.concatenate([[0.0], np.cumsum(p)])
    np.testing.assert_allclose(np.interp(np.arange(len(exact)), edges, below), exact, rtol=0, atol=1e-5)
    sample = draws(true_table(release, prior=prior, num_samples=20_000))[0, :, 0]
    spread = np.sqrt(np.sum(p * COUNTS**2) - np.sum(p * COUNTS) ** 2)  # 5 standard errors: probability 6e-7
    assert abs(sample.mean() - p @ COUNTS) < 5 * spread / np.sqrt(20_000)


SUPPORTS = {  # by default a list of categories, ends that are not 0, one infinite end, two finite ones; laws of others
    "Bernoulli": (lambda: dist.Bernoulli(0.3), 0, 1),
    "BernoulliLogits": (lambda: dist.BernoulliLogits(0.3), 0, 1),
    "Categorical": (lambda: dist.Categorical(np.ones(3) / 3), 0, 2),
    "DiscreteUniform": (lambda: dist.DiscreteUniform(4, 9), 4, 9),
    "Binomial": (lambda: dist.Binomial(5, 0.5), 0, 5),
    "BetaBinomial": (lambda: dist.BetaBinomial(1.0, 1.0, 7), 0, 7),
    "TruncatedPolyaGamma": (lambda: dist.TruncatedPolyaGamma(), 0, 2.5),
    "Uniform": (lambda: dist.Uniform(2.0, 6.0), 2, 6),
    "truncated at the left": (lambda: dist.TruncatedNormal(0.0, 20.0, low=3.0), 3, np.inf),
    "truncated at the right": (lambda: dist.TruncatedNormal(0.0, 20.0, high=-3.0), -np.inf, -3),
    "Pareto": (lambda: dist.Pareto(30.0, 1.0), 30, np.inf),
    "VonMises": (lambda: dist.VonMises(0.0, 1.0), -np.pi, np.pi),
    "transformed": (
        lambda: dist.TransformedDistribution(
            dist.Exponential(0.1), dist.transforms.AffineTransform(5.0, 2.0, domain=dist.constraints.positive)
        ),
        5,
        np.inf,
    ),
    "mixture": (
        lambda: dist.MixtureSameFamily(dist.Categorical(np.ones(2) / 2), dist.Gamma(np.array([1.0, 2.0]), 1.0)),
        0,
        np.inf,
    ),
    "expanded": (lambda: dist.Kumaraswamy(2.0, 2.0).expand([3]), 0, 1),
}
SUPPORTS_BY_DEFAULT = "Categorical", "DiscreteUniform", "VonMises", "transformed", "truncated at the left", "mixture"
SUPPORTS_BY_DEFAULT += ("expanded",)


@pytest.mark.parametrize(
    "name", [name if name in SUPPORTS_BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in SUPPORTS]
)
def test_cells_stay_in_the_support_of_their_prior_whatever_its_kind(name):
    make, low, high = SUPPORTS[name]
    prior = make()
    release = table([-20, 7, 40], mechanism("discrete_gaussian" if prior.support.is_discrete else "gaussian"))
    cells = draws(true_table(release, prior=prior, num_samples=200))
    assert low <= cells.min() and cells.max() <= high


def test_noise_wider_than_the_places_is_drawn_in_blocks():
    # Kolmogorov's distance of 20,000 draws exceeds 0.0165 with probability 4e-5.
    release = table([3_000_000, 40], ldp.DiscreteGaussianMechanism(scale=1e5, sensitivity=1))
    sample = draws(true_table(release, num_samples=20_000))[0]
    assert sample.dtype.kind == "i" and len(set(sample[:, 0] % 10)) == 10
    assert stats.kstest(sample[:, 0], stats.norm(3_000_000, 1e5).cdf).statistic < 0.0165
    assert stats.kstest(sample[:, 1], stats.truncnorm(-40e-5, np.inf, 40, 1e5).cdf).statistic < 0.0165


def test_zeros_are_zero_and_sums_may_be_nested():
    release = table(
        [5, 8, -3, 12, 2], mechanism("discrete_gaussian"), state=list("AABBB"), age=["0", "1", "0", "1", "2"]
    )
    total = {None: 40, "state": {"A": 9}, ("state", "age"): {("B", "0"): 4}}
    zeros = np.array([0, 0, 0, 0, 1], bool)
    result = dataset(true_table(release, total=total, zeros=zeros, num_samples=50)["posterior"])["cells"]
    assert (result.sum("cell") == 40).all() and (result[..., 2] == 4).all() and (result[..., 4] == 0).all()
    by_state = result.groupby("state").sum()
    assert (by_state.sel(state="A") == 9).all() and (by_state.sel(state="B") == 31).all()


def test_known_sums_may_be_a_series_of_pandas():
    release = table([5, 8, -3, 12], mechanism("discrete_gaussian"), state=list("AABB"), age=list("0101"))
    of_states = pd.Series([20, 15], pd.Index(["A", "B"], name="state"))
    options = {"num_samples": 20, "seed": 3}
    expected = draws(true_table(release, total={"state": {"A": 20, "B": 15}}, **options))
    for total in (of_states, {"state": of_states}):
        np.testing.assert_array_equal(draws(true_table(release, total=total, **options)), expected)
    of_cells = pd.Series([7], pd.MultiIndex.from_tuples([("A", "1")], names=["state", "age"]))
    assert np.all(draws(true_table(release, total=of_cells, **options))[..., 1] == 7)
    with pytest.raises(ValueError, match="name it by a key of state, age"):
        true_table(release, total=of_states.rename_axis(None))


def test_many_cells_given_their_sum_keep_it_and_their_means():
    # 300 cells whose released values fall short of the known sum by 7 standard deviations of their sum.
    rng = np.random.default_rng(1)
    x = rng.poisson(30, 300)
    z = x + np.rint(rng.normal(0, 3, 300)).astype(int)
    known = int(z.sum() + 7 * 3 * np.sqrt(300))
    sample = draws(true_table(table(z, mechanism("discrete_gaussian")), total=known, num_samples=400))[0]
    assert set(sample.sum(axis=1)) == {known}
    # all deviations are equal, so each mean moves by the same amount; the error of an average over 300 cells is 0
    np.testing.assert_allclose(sample.mean(axis=0) - z, (known - z.sum()) / 300, atol=6 * 3 / np.sqrt(400))


def test_a_tilt_finds_the_known_sum_where_log_probabilities_are_steep():
    logs = -np.array([[1e4 * (k - 2) ** 2 for k in range(6)], [0.0, 0.0, 0.0, np.inf, np.inf, np.inf]])
    for target in (2.0, 4.0, 3.0):
        p = np.exp(tilted(logs, target))
        np.testing.assert_allclose(np.sum(p @ np.arange(6.0)), target, atol=0.02)


def test_the_result_says_whose_uncertainty_it_is_and_carries_keys_and_privacy():
    keys = {"state": ["A", "A", "B"], "county": ["x", "y", "x"]}
    n = NoisyTable([3, 4, 5], mechanism("discrete_laplace"), keys=keys)
    states = NoisyTable([30, 5], ldp.DiscreteGaussianMechanism(scale=4.0, sensitivity=1), keys={"state": ["A", "B"]})
    result = true_table({"n": n, "by state": states}, num_samples=10, total={"n": 12})
    post = dataset(result["posterior"])
    assert dict(post["n"].sizes) == {"chain": 1, "draw": 10, "cell": 3}
    assert list(post["cell"].values) == ["A, x", "A, y", "B, x"] and list(post["county"].values) == ["x", "y", "x"]
    assert post["by state"].dims == ("chain", "draw", "state") and (post["n"].sum("cell") == 12).all()
    assert "not of a population" in result.attrs["uncertainty"] and "2 releases" in result.attrs["privacy"]
    assert len(json.loads(result.attrs["mechanisms"])) == 2


def test_a_table_with_a_statement_of_its_publisher_is_not_said_to_be_unprotected():
    stated = NoisyTable(
        [3, 4], AdditiveMechanism(NOISES["discrete_laplace"], sensitivity=np.inf), privacy="As the law has it."
    )
    result = true_table({"n": stated}, num_samples=5)
    assert result.attrs["privacy"] == estimate_table(stated, np.eye(2)).privacy == "As the law has it."


def test_tables_of_the_same_cells_are_matched_by_key_whatever_the_order_of_rows():
    keys = {"state": np.array(list("AABB")), "age": np.array(list("0101"))}
    n, order = table([30, 40, 50, 60], mechanism("discrete_gaussian"), **keys), np.array([2, 0, 3, 1])
    values = np.array([300, 400, 500, 600])
    other = table(values[order], mechanism("discrete_gaussian"), age=keys["age"][order], state=keys["state"][order])
    post = dataset(true_table({"n": n, "sum": other}, num_samples=400)["posterior"])
    assert (post["sum"] / post["n"]).dims == ("chain", "draw", "cell") and list(post["age"].values) == list("0101")
    np.testing.assert_allclose(post["sum"].mean(("chain", "draw")), values, atol=5 * SCALE / np.sqrt(400))
    assert n.rows_of(other).tolist() == order.tolist() and n.rows_of(n[:2]) is None

    def model(n, other):
        rate = numpyro.sample("rate", dist.Gamma(2, 0.1))
        ldp.observe("a", dist.Poisson(rate).expand([4]), n)
        ldp.observe("b", dist.Poisson(10 * rate).expand([4]), other)

    with pytest.raises(ValueError, match=r"equal cells in another order, so that rows differ.*a\[a.rows_of\(b\)\]"):
        ldp.fit(model, n, other, progress_bar=False)


def test_draws_are_a_function_of_the_seed_and_differ_between_tables():
    release = table([30, 40], mechanism("discrete_gaussian"))
    first, again, other = (draws(true_table(release, seed=seed, num_samples=50)) for seed in (0, 0, 1))
    both = dataset(true_table({"a": release, "b": release}, num_samples=50)["posterior"])
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert np.array_equal(both["a"].values, first) and not np.array_equal(both["b"].values, first)


GAUSSIAN = mechanism("gaussian")


@pytest.mark.parametrize(
    "values, options, message",
    [
        (
            [3.0, np.nan],
            {"mechanism": Incomplete(GAUSSIAN), "whole": True},
            "cell 'c1', reported as nan, has no proper post",
        ),
        pytest.param(
            [np.nan, 3.0],
            {"mechanism": Withheld(GAUSSIAN, 2.0)},
            "cell 'c0', reported as nan, has no proper posterior",
            marks=pytest.mark.slow,
        ),
        ([3.0, 4.0], {"prior": dist.Gamma(0.5, 1.0), "whole": True}, "whose density is infinite at a whole number"),
        ([3.0, 4.0], {"prior": dist.Poisson(3.0), "whole": False}, "whole=False is not possible, because the noise"),
        ([3.0, 4.0], {"prior": dist.Poisson(np.ones(3))}, r"prior must be a NumPyro law of batch shape \(\) or \(2,\)"),
        ([3.0, 4.0], {"zeros": [True]}, "zeros must be 2 bools"),
        ([3.0, 4.0], {"total": 5.0, "nonnegative": True}, "total is only for whole numbers: give other sums"),
        ([3.0, 4.0], {"queries": "keys", "total": 5}, "total is not possible with queries="),
        ([3.0, 4.0], {"num_samples": 0}, "num_samples must be an integer of at least 1"),
    ],
)
def test_what_has_no_answer_is_refused_with_the_cell_or_argument(values, options, message):
    options = dict(options)
    with pytest.raises(ValueError, match=message):
        true_table(table(values, options.pop("mechanism", GAUSSIAN)), **options)


@pytest.mark.parametrize(
    "total, message",
    [
        (
            {"state": {"B": 25}, None: 20},
            "total of all cells is 20, and known sums of its parts add up to 25: -5 is left for 1 cells",
        ),
        (
            {"state": {"A": 5, "B": 4}, None: 10},
            "total of all cells is 10, and known sums of its parts add up to 9: 1 is left for 0",
        ),
        ({"state": {"B": 25}, "age": {"0": 3}}, "total of age = '0' and total of state = 'B' have only a part"),
        ({"state": {"C": 25}}, "total of state = 'C': the table has no such cell"),
        ({"land": {"C": 25}}, "total names the key 'land'; the table's keys are state, age"),
        ({"state": {"A": 2.5}}, "total of state = 'A' must be a whole number, got 2.5"),
        (-1, "total of all cells is -1: -1 is left for 3 cells, whose sum must be from 0"),
    ],
)
def test_totals_that_contradict_are_refused_by_key_and_label(total, message):
    release = table([3, 40, 8], mechanism("discrete_gaussian"), state=["A", "B", "B"], age=["0", "0", "1"])
    with pytest.raises(ValueError, match=message):
        true_table(release, total=total)


def test_options_of_chains_and_other_data_are_refused():
    release = table([3, 4], mechanism("discrete_gaussian"))
    with pytest.raises(TypeError, match="true_table has no option num_warmup"):
        true_table(release, num_warmup=10)
    with pytest.raises(TypeError, match="n must be a NoisyTable with values, got"):
        true_table({"n": [1, 2]})


def test_windows_that_need_an_odd_step_end(x64):
    wide = ldp.mechanisms.AdditiveMechanism(ldp.noise.DiscreteGaussian(1000.0), sensitivity=1)
    cells = true_table(ldp.NoisyTable(np.array([50_000]), wide), num_samples=2000)["posterior"]["cells"].values
    # five standard errors of the mean and of the standard deviation of 2,000 draws: 6e-7 each
    assert abs(cells.mean() - 50_000) < 5 * 1000 / 2000**0.5 and abs(cells.std() / 1000 - 1) < 5 / 4000**0.5


def test_a_prior_that_overflows_beside_its_end_has_a_posterior(x64):
    law = ldp.GaussianMechanism.from_standard_deviation(10.0, sensitivity=1.0)
    prior = dist.InverseGamma(0.5, 1e-3)  # nearly 1/x^1.5 from 1e-3 on
    cells = true_table(ldp.NoisyTable([100.0], law), prior=prior, num_samples=4000)["posterior"]["cells"].values
    x, w = np.polynomial.legendre.leggauss(400)
    x = 100 + 60 * x
    w = w * np.exp(-((x - 100) ** 2) / 200) * x**-1.5
    # what lies near 0 has the prior's whole mass, 1/(.018 · 100^1.5) of that here, times exp(-50)
    assert abs(cells.mean() - w @ x / w.sum()) < 5 * 10 / 4000**0.5
