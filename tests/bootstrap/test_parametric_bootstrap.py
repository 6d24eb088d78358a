"""The parametric bootstrap: its intervals, its bias corrections, and what it refuses."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes import bootstrap
from ldpbayes.bootstrap._bootstrap import Replication, names_of
from ldpbayes.bootstrap.statistics import SufficientStatisticsEstimator
from ldpbayes.estimation import Estimate

COUNT = 400
FAMILY = bootstrap.Normal(-4.0, 4.0)
ESTIMATOR = bootstrap.sufficient_statistics(FAMILY, count=COUNT, epsilon=1.0)


@functools.cache
def made(kind="percentile"):
    x = np.random.default_rng(1).normal(0.5, 1.0, COUNT)
    release = ESTIMATOR.release(x, seed=2)
    return release, ldp.parametric_bootstrap(ESTIMATOR, release, draws=999, kind=kind)


SHARE = bootstrap.sufficient_statistics(bootstrap.Bernoulli(), count=COUNT, epsilon=1.0)  # quick to compile


@functools.cache
def made_of_a_share():
    return ldp.parametric_bootstrap(SHARE, np.asarray(0.3 * COUNT), draws=2000)


def private_share(key, x):
    noise = jax.random.laplace(key, ()) / len(x)
    return {"probs": jnp.mean(jnp.clip(x, 0.0, 1.0)) + noise}


def simulate(key, params):
    return (jax.random.uniform(key, (COUNT,)) < params["probs"]).astype(float)


# --- what it returns ------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_the_replicates():
    _, found = made()
    ordered = np.sort(found.draws, axis=0)  # the 25th and the 975th of 999 are the quantiles at 0.025 and 0.975
    low, high = ordered[24], ordered[974]
    for kind, expected in {
        "percentile": (low, high),
        "pivotal": (2 * found.params - high, 2 * found.params - low),
        bootstrap.Transformed(np.exp, np.log): tuple(
            np.log(2 * np.exp(found.params) - np.exp(end)) for end in (high, low)
        ),
    }.items():
        np.testing.assert_allclose(found.interval(0.95, kind), expected, rtol=1e-12)
    t = np.sort((found.draws - found.params) / found.draws_error, axis=0)
    expected = found.params - found.formula_error * t[974], found.params - found.formula_error * t[24]
    np.testing.assert_allclose(found.interval(0.95, "studentised"), expected, rtol=1e-12)
    ends = found.interval(0.95, side="lower")
    np.testing.assert_allclose(ends[0], ordered[49])
    assert np.isposinf(ends[1]).all()
    ends = found.interval(0.95, "pivotal", side="upper")
    assert np.isneginf(ends[0]).all()
    np.testing.assert_allclose(ends[1], 2 * found.params - ordered[49])
    np.testing.assert_allclose(found.interval(kind="log")[0][1], found.params[1] ** 2 / high[1])


def test_logarithmic_intervals_reach_to_infinity_where_replicates_are_negative():
    _, found = made()
    draws = np.arange(1.0, 1000.0)[:, None] * [1.0, 1.0]
    draws[:100, 0] = -1.0  # a tenth is no scale, and the 25th smallest of 999 is one of those
    draws[-10:, 1] = np.nan  # is left out, as in other intervals
    other = dataclasses.replace(found, params=np.array([500.0, 500.0]), draws=draws)
    low, high = other.interval(0.95, "log")
    np.testing.assert_allclose(low, 500**2 / np.array([975.0, 0.975 * 990]), rtol=1e-3)  # of interpolation
    np.testing.assert_allclose(high, [np.inf, 500**2 / (0.025 * 990)], rtol=1e-3)
    logit = bootstrap.Transformed(special.logit, special.expit)
    shares = dataclasses.replace(found, params=np.array([0.1, 0.9]), draws=draws / 1000 * [1.0, 1.2])
    low, high = shares.interval(0.95, logit)
    assert high[0] == 1
    assert low[1] == 0


def test_it_is_an_estimate_like_all_others():
    release, found = made()
    assert isinstance(found, Estimate)
    assert found.names == ["loc", "scale"]
    np.testing.assert_allclose(found.params, [found.estimate["loc"], found.estimate["scale"]])
    np.testing.assert_allclose(found.standard_error, found.draws.std(axis=0, ddof=1))
    spread = (found.draws @ [1.0, -1.0]).std(ddof=1)
    assert found.contrast({"loc": 1, "scale": -1}).standard_error == pytest.approx(spread)
    np.testing.assert_allclose(found.bias, found.draws.mean(axis=0) - found.params)
    assert found.privacy == release.mechanism.guarantee.statement()
    several = dataclasses.replace(SHARE.release((np.arange(COUNT) < 120).astype(float), seed=0), times=3)
    assert ldp.parametric_bootstrap(SHARE, several, draws=2000).privacy == several.guarantee.statement()
    text = found.summary()
    for part in ("999 replicates", "loc", "scale", "[0.025", f"{found.params[0]:.4g}"):
        assert part in text
    assert dict(found.replicates.sizes) == {"draw": 999}
    np.testing.assert_array_equal(found.replicates["scale"], found.draws[:, 1])


def test_standard_errors_by_formula_are_those_of_the_replicates():
    """To the 4.5 % (five standard errors) to which 999 replicates tell them, and 10 % for what is not linear."""
    _, found = made()
    np.testing.assert_allclose(found.formula_error, found.standard_error, rtol=0.145)


@pytest.mark.parametrize("of_a_family", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_replicate_depends_on_the_seed_and_its_number_but_not_on_the_batch_it_runs_in(of_a_family):
    arguments = (ESTIMATOR, made()[0]) if of_a_family else (private_share, {"probs": 0.5}, simulate)
    found = ldp.parametric_bootstrap(*arguments, draws=999)
    for size in (7, 2000):
        again = ldp.parametric_bootstrap(*arguments, draws=999, batch_size=size)
        np.testing.assert_allclose(again.draws, found.draws, rtol=1e-9)
    other = ldp.parametric_bootstrap(*arguments, draws=999, seed=1)
    assert (other.draws != found.draws).all()


def test_another_target_is_a_function_of_the_parameters():
    def odds(params):
        return {"odds": params["probs"] / (1 - params["probs"])}

    found = ldp.parametric_bootstrap(SHARE, np.asarray(0.3 * COUNT), draws=2000, target=odds)
    assert found.names == ["odds"]
    shares = made_of_a_share().draws
    np.testing.assert_allclose(found.draws, shares / (1 - shares), rtol=1e-9)
    with pytest.raises(ValueError, match="formula for standard errors"):
        found.interval(kind="studentised")


def test_names_follow_the_pytree():
    tree = {"b": np.zeros(2), "a": {"c": np.zeros((1, 2))}, "d": 1.0}
    assert names_of(tree) == ["a.c[0,0]", "a.c[0,1]", "b[0]", "b[1]", "d"]
    assert names_of(np.zeros(())) == ["theta"]


def test_estimators_are_arguments_of_compiled_functions(x64):
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"loc": jnp.array([0.5]), "covariance_matrix": jnp.array([[1.0]])}
    family = bootstrap.NormalVector([-4.0], [4.0])

    @jax.jit
    def of_budget(epsilon):
        mechanism = ldp.LaplaceMechanism(epsilon, columns=family.columns, sensitivity=2.25)
        return Replication(SufficientStatisticsEstimator(family, mechanism, COUNT), keys).replicates(params).target

    alone = [of_budget(epsilon) for epsilon in (0.5, 2.0)]
    together = jax.vmap(of_budget)(jnp.array([0.5, 2.0]))
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    compiled = Replication.replicates._cache_size()
    for epsilon in (0.3, 0.4):
        other = bootstrap.sufficient_statistics(bootstrap.NormalVector([-5.0], [3.0]), count=COUNT, epsilon=epsilon)
        Replication(other, keys).replicates(params)
    assert Replication.replicates._cache_size() <= compiled + 1


# --- bias -----------------------------------------------------------------------------------------------------------

CLAMPED = bootstrap.Poisson(3)  # a third of the counts of mean 3 are above


@functools.cache
def clamped():
    """A release of many records with little noise: what is left of the error is the bias."""
    x = np.random.default_rng(3).poisson(3.0, 100_000)
    estimator = bootstrap.sufficient_statistics(CLAMPED, count=len(x), epsilon=10.0)
    return estimator, estimator.release(x, seed=0)


def test_matching_removes_the_bias_of_clamping_and_one_step_a_part():
    """Errors are below five standard errors, 0.0029 and noise of 4e-6, over the slope of what is matched, 0.42."""
    estimator, release = clamped()
    plain = ldp.parametric_bootstrap(estimator, release, draws=400)
    assert plain.params[0] < 3 - 0.1
    one = ldp.parametric_bootstrap(estimator, release, draws=400, correction=bootstrap.OneStep())
    np.testing.assert_allclose(one.params, 2 * plain.params - plain.draws.mean(axis=0), rtol=1e-12)
    assert abs(one.bias[0]) < 1e-12
    assert plain.params[0] < one.params[0] < 3
    matched = ldp.parametric_bootstrap(estimator, release, draws=400, correction=bootstrap.Matched())
    assert_right(matched)
    assert "bias corrected" in matched.summary()
    assert matched.uncorrected[0] == plain.params[0]


def assert_right(found):
    assert abs(found.params[0] - 3) < 5 * 0.0029 / 0.42
    low, high = found.interval()
    assert low[0] < 3 < high[0]


@pytest.mark.slow
def test_accounting_for_clamping_removes_its_bias_too():
    estimator, release = clamped()
    matched = ldp.parametric_bootstrap(estimator, release, draws=400, correction=bootstrap.Matched())
    aware = SufficientStatisticsEstimator(CLAMPED, estimator.mechanism, estimator.count, account_for_clamping=True)
    solved = ldp.parametric_bootstrap(aware, release, draws=400)
    assert_right(solved)
    # they are one estimator, so that their errors are equal to those of a standard deviation of 400 draws
    assert matched.standard_error[0] == pytest.approx(solved.standard_error[0], rel=5 / np.sqrt(2 * 400))


@pytest.mark.parametrize(
    "correction",
    [
        pytest.param(bootstrap.OneStep(), marks=pytest.mark.slow, id="one step"),
        pytest.param(bootstrap.Matched(), id="matched"),
    ],
)
def test_corrected_probabilities_are_probabilities(correction):
    shares = bootstrap.sufficient_statistics(bootstrap.Multinomial(4), count=60, epsilon=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.bootstrap.BootstrapWarning)  # at an edge there is no bias to be removed
        for count in (-5.0, 4.0, 200.0, COUNT + 3.0):
            found = ldp.parametric_bootstrap(SHARE, np.asarray(count), draws=2000, correction=correction)
            for probs in (found.params, found.draws):
                assert probs.min() >= 0 and probs.max() <= 1
        found = ldp.parametric_bootstrap(shares, np.array([-3.0, 9, 17, 35]), correction=correction, draws=199)
    for probs in (found.params, *found.draws):
        assert probs.min() >= 0
        assert probs.sum() == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("correction", [bootstrap.OneStep(), bootstrap.Matched()], ids=["one step", "matched"])
def test_intervals_of_corrected_probabilities_cover(correction, x64):
    """40 releases of 50 records at a probability of 0.1, whose noise is as large: an eighth of the shares is negative.

    Intervals that cover with a chance of 0.94 cover at most 30 times with a probability of 2e-4.
    """
    estimator = bootstrap.sufficient_statistics(bootstrap.Bernoulli(), count=50, epsilon=0.5)
    keys = jax.random.split(jax.random.key(5), 40)
    releases = jax.vmap(lambda key: estimator.simulate_release(key, {"probs": jnp.asarray(0.1)}))(keys)
    assert 1 <= (releases < 0).sum() <= 12
    covered = 0
    for seed, release in enumerate(np.asarray(releases)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ldp.bootstrap.BootstrapWarning)
            found = ldp.parametric_bootstrap(estimator, release, draws=199, correction=correction, seed=seed)
        assert 0 <= found.params[0] <= 1
        assert found.draws.min() >= 0 and found.draws.max() <= 1
        low, high = found.interval()
        covered += low[0] <= 0.1 <= high[0]
    assert covered > 30


def test_a_correction_that_does_not_settle_says_so():
    estimator, _ = clamped()
    with pytest.warns(ldp.bootstrap.BootstrapWarning, match="has not converged"):
        ldp.parametric_bootstrap(estimator, np.asarray(3.5e5), correction=bootstrap.Matched(), draws=400)


# --- a user's own functions -----------------------------------------------------------------------------------------


def test_a_users_function_and_simulator_have_the_replicates_of_the_family():
    """Standard errors agree to five standard errors of a standard deviation from 2,000 draws."""
    family = made_of_a_share()
    own = ldp.parametric_bootstrap(private_share, {"probs": 0.3}, simulate, draws=2000)
    assert own.standard_error[0] == pytest.approx(family.standard_error[0], rel=5 * np.sqrt(2 / (2 * 2000)))
    other = ldp.parametric_bootstrap(SHARE, np.asarray(0.3 * COUNT), simulate, draws=2000)
    assert other.standard_error[0] == pytest.approx(family.standard_error[0], rel=5 * np.sqrt(2 / (2 * 2000)))


ORIGINAL = np.random.default_rng(0).normal(size=COUNT)


def test_functions_that_hold_public_arrays_as_long_as_the_data_are_given_as_such():
    grid = np.linspace(0.0, 1.0, COUNT)

    def nearest(key, x):
        noisy = private_share(key, x)["probs"]
        return {"probs": jnp.asarray(grid)[jnp.argmin(jnp.abs(grid - noisy))]}

    with pytest.raises(ValueError, match=r"FunctionEstimator\(function\)"):
        ldp.parametric_bootstrap(nearest, {"probs": 0.5}, simulate, draws=100)
    found = ldp.parametric_bootstrap(bootstrap.FunctionEstimator(nearest), {"probs": 0.5}, simulate, draws=100)
    assert np.isclose(found.draws[:, None, 0], grid).any(axis=1).all()
    constant = bootstrap.FunctionEstimator(lambda key, x: {"probs": jax.random.laplace(key)})
    with pytest.raises(ValueError, match="does not use its argument"):
        ldp.parametric_bootstrap(constant, {"probs": 0.5}, simulate, draws=100)


@pytest.mark.parametrize(
    ("estimator", "release", "simulator", "message"),
    [
        (
            lambda key, x: {"probs": jnp.mean(jnp.asarray(ORIGINAL)) + jax.random.laplace(key)},
            None,
            simulate,
            "does not use its argument",
        ),
        (lambda key, x: {"probs": jnp.mean(x * ORIGINAL)}, None, simulate, "holds an array of shape"),
        (lambda key, x: {"probs": jax.jit(lambda y: jnp.mean(y * ORIGINAL))(x)}, None, simulate, "holds an array"),
        (private_share, {"mean": 0.5}, simulate, "simulator does not fit"),
        (private_share, {"probs": np.zeros(2)}, simulate, "does not fit"),
        (private_share, {"probs": 0.5}, lambda key, params: None, "simulator does not fit"),
        (private_share, {"probs": 0.5}, None, "needs simulator="),
    ],
    ids=["reads other data", "holds data", "holds data inside", "names", "shapes", "nothing simulated", "no simulator"],
)
def test_functions_that_do_not_fit_or_read_data_in_a_replicate_are_refused(estimator, release, simulator, message):
    with pytest.raises(ValueError, match=message):
        ldp.parametric_bootstrap(estimator, {"probs": 0.5} if release is None else release, simulator, draws=100)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bootstrap.sufficient_statistics(FAMILY, count=None, epsilon=1.0), ValueError, "count is missing"),
        (lambda: bootstrap.sufficient_statistics(FAMILY, count=1, epsilon=1.0), ValueError, "of at least 2"),
        (lambda: bootstrap.sufficient_statistics(None, count=9, epsilon=1.0), TypeError, "family"),
        (lambda: bootstrap.sufficient_statistics(FAMILY, count=9, epsilon=-1.0), ValueError, "epsilon"),
        (
            lambda: SufficientStatisticsEstimator(FAMILY, ldp.LaplaceMechanism(1.0, columns=2, sensitivity=2.0), 9),
            ValueError,
            "one record can change",
        ),
        (lambda: SufficientStatisticsEstimator(FAMILY, ldp.LaplaceMechanism(1.0, 0, 1), 9), ValueError, "no bounds"),
        (
            lambda: bootstrap.sufficient_statistics(
                bootstrap.NormalVector([0.0], [1.0]), count=9, epsilon=1.0, account_for_clamping=True
            ),
            ValueError,
            "account_for_clamping is not possible",
        ),
        (
            lambda: bootstrap.sufficient_statistics(bootstrap.Multinomial(3), count=9, epsilon=1.0).law({}),
            ValueError,
            "families of numbers",
        ),
        (
            lambda: SufficientStatisticsEstimator(
                bootstrap.Multinomial(3),
                ldp.mechanisms.AdditiveMechanism(ldp.noise.DiscreteLaplace(2.0), columns=3, sensitivity=1),
                9,
            ),
            ValueError,
            "statistics by 2",
        ),
        (
            lambda: ldp.parametric_bootstrap(ESTIMATOR, made()[0], lambda key, params: jnp.zeros(9)),
            ValueError,
            "is for 400 records",
        ),
        (lambda: ESTIMATOR.release(np.zeros(9), seed=0), ValueError, "is for 400 records"),
        (lambda: ldp.parametric_bootstrap(ESTIMATOR, np.zeros(COUNT)), ValueError, "raw records"),
        (lambda: ldp.parametric_bootstrap(ESTIMATOR, np.array([np.nan, 0.0])), ValueError, "finite"),
        (
            lambda: ldp.parametric_bootstrap(ESTIMATOR, ldp.Release([0.0], ldp.LaplaceMechanism(1.0, sensitivity=1))),
            ValueError,
            "the release is by",
        ),
        (lambda: ldp.parametric_bootstrap(ESTIMATOR, made()[0], draws=1), ValueError, "draws"),
        (lambda: ldp.parametric_bootstrap(ESTIMATOR, made()[0], batch_size=0), ValueError, "batch_size"),
        (lambda: ldp.parametric_bootstrap(ESTIMATOR, made()[0], kind="bca"), ValueError, "kind must be one of"),
        (lambda: ldp.parametric_bootstrap(ESTIMATOR, made()[0], correction="one step"), TypeError, "OneStep"),
        (lambda: ldp.parametric_bootstrap("mean", made()[0]), TypeError, "estimator"),
        (lambda: made()[1].interval(0.999), ValueError, "at least 1999 replicates"),
        (lambda: made()[1].interval(1.5), ValueError, "level"),
        (lambda: made()[1].interval(side="left"), ValueError, "side"),
    ],
)
def test_bad_input_is_refused_before_any_work(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_releases_outside_the_domain_are_used_as_documented_counted_and_reported():
    with pytest.warns(ldp.bootstrap.BootstrapWarning, match="outside the domain"):
        found = ldp.parametric_bootstrap(ESTIMATOR, np.array([380.0, 100.0]), draws=999)
    assert found.outside
    assert found.outside_draws > 0
    assert found.estimate["scale"] == pytest.approx(8e-3)  # the smallest of its range
    assert f"{found.outside_draws} outside the domain" in found.summary()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ldp.bootstrap.BootstrapWarning)
        assert not made()[1].outside


# --- the same release, two ways -------------------------------------------------------------------------------------


def test_the_likelihood_of_released_sums_is_that_of_normal_sums_with_the_moments_of_records(x64):
    """Bounds are 9 standard deviations away, so that moments are those of records that are not clamped."""
    sums = bootstrap.sufficient_statistics(bootstrap.Normal(-10.0, 10.0), count=COUNT, epsilon=8.0, delta=1e-5)
    released = np.array([21.0, 6.0])

    def model(release):
        loc = numpyro.sample("loc", dist.ImproperUniform(dist.constraints.real, (), ()))
        ldp.observe("sums", sums.law({"loc": loc, "scale": 1.0}), release)

    of_one = bootstrap.sufficient_statistics(bootstrap.Binomial(5), count=COUNT, epsilon=1.0).law
    at = {"loc": 0.5}
    found = jax.jit(lambda at: log_density(model, (ldp.Release(released[None], sums.mechanism),), {}, at)[0])(at)
    moments = jax.jit(lambda at: (of_one(at).mean, of_one(at).variance))({"probs": 0.3})
    noise = np.eye(2) * np.asarray(sums.mechanism.noise.variance)
    center, spread = COUNT * np.array([0.05, 0.0125]), COUNT * np.array([[1e-2, 1e-3], [1e-3, 3e-4]])
    assert float(found) == pytest.approx(stats.multivariate_normal.logpdf(released, center, spread + noise), rel=1e-9)
    assert list(map(float, moments)) == pytest.approx([COUNT * 1.5, COUNT * 1.05], rel=1e-9)


@pytest.mark.slow
def test_bootstrap_and_posterior_of_one_release_agree():
    """Ends of intervals differ by less than a third of a standard error, to which prior and shape may move them."""
    sums = bootstrap.sufficient_statistics(FAMILY, count=COUNT, epsilon=8.0, delta=1e-5)
    release = sums.release(np.random.default_rng(1).normal(0.5, 1.0, COUNT), seed=5)
    found = ldp.parametric_bootstrap(sums, release, draws=999)

    def model(release):
        loc = numpyro.sample("loc", dist.Normal(0.0, 10.0))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
        ldp.observe("sums", sums.law({"loc": loc, "scale": scale}), release)

    posterior = ldp.fit(model, release, num_chains=2, num_warmup=300, num_samples=500, progress_bar=False)["posterior"]
    for j, name in enumerate(found.names):
        ends = np.quantile(posterior[name].values, [0.025, 0.975])
        np.testing.assert_allclose(ends, [end[j] for end in found.interval()], atol=found.standard_error[j] / 3)
