"""Posteriors by expansion: where a model is cut, what the certificate sees, and that the posterior is the records'."""

import dataclasses
import json
import pickle
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import ldpbayes as ldp
from ldpbayes.inference import compiled_programs as _programs
from ldpbayes.inference import result as _reweight
from ldpbayes.inference.approximations import _expanded, polynomial
from ldpbayes.inference.approximations.polynomial import NoExpansion, cut_model
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.inference.result import resample, smoothed_weights
from ldpbayes.models import clipped_gaussian, label_regression, oue_histogram, regional_histograms, warner
from ldpbayes.numerics.polynomial import Frame
from tests.inference.problems import GivenUp, outcome, problem_of

SHORT = {"num_warmup": 300, "num_samples": 1000, "num_chains": 2, "progress_bar": False}
FEW = {"num_warmup": 5, "num_samples": 5}
RNG = np.random.default_rng(0)
N = 2000
X = RNG.normal(size=N)
YES = RNG.uniform(size=N) < 1 / (1 + np.exp(-(0.5 + X)))
RR = ldp.RandomizedResponse(1.0)
Z = np.where(RNG.uniform(size=N) < np.e / (1 + np.e), YES, ~YES)


def logistic(release, x):
    a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, 1))
    ldp.observe("z", dist.BernoulliLogits(a + b * x), release)


def quiet_fit(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.ConvergenceWarning)
        return ldp.fit(*args, **{"seed": 1, **SHORT, **kwargs})


def report(result):
    return json.loads(result.attrs["expansion"])


def on_a_grid(log_density, *axes):
    """Means and standard deviations of a density on a grid, which sums of smooth functions on it are exact for."""
    points = np.stack([part.ravel() for part in np.meshgrid(*axes, indexing="ij")])
    weights = np.exp((logs := log_density(*points)) - logs.max())
    means = points @ weights / weights.sum()
    return means, np.sqrt((points - means[:, None]) ** 2 @ weights / weights.sum())


def agrees(result, names, exact):
    """Whether means and standard deviations are the exact ones, up to Monte Carlo error."""
    for name, mean, sd in zip(names, *exact, strict=True):
        draws = np.asarray(result["posterior"][name])
        # 4 standard errors, for four numbers in a test: error rate 3e-4; the variance's own error is that of squares
        assert abs(draws.mean() - mean) < 4 * sd / np.sqrt(float(az.ess(draws)))
        squares = (draws - mean) ** 2
        assert abs(squares.mean() - sd**2) < 4 * squares.std() / np.sqrt(float(az.ess(squares)))


@pytest.fixture(scope="module")
def exact():
    """The posterior of the logistic regression under randomized response, on a grid."""

    def log_density(a, b):
        share = 1 / (1 + np.exp(-(a + b * X[:, None])))
        yes = (1 + (np.e - 1) * share) / (1 + np.e)
        return np.log(np.where(Z[:, None], yes, 1 - yes)).sum(axis=0) - (a**2 + b**2) / 2

    return on_a_grid(log_density, np.linspace(-0.6, 1.8, 60), np.linspace(-0.3, 2.7, 60))


@pytest.fixture(scope="module")
def fitted():
    return quiet_fit(logistic, ldp.Release(Z, RR), X, expand=True)


# --- where a model is cut -------------------------------------------------------------------------------------------


def _pieces(model, *args):
    density = Density(model, args, {})
    sites = sites_of(density)
    parameters = jax.tree.map(lambda each: np.full(each.shape, 0.3), jax.eval_shape(density.start, jax.random.key(0)))
    return density, parameters, cut_model(density, sites, parameters)


def _categories(count, categories, seed=0):
    mechanism = ldp.OptimalUnaryEncoding(1.0, categories)
    rng = np.random.default_rng(seed)
    own = rng.integers(0, categories, count)[:, None] == np.arange(categories)
    bits = rng.random((count, categories)) < np.where(own, 0.5, 1 / (1 + np.e))
    return ldp.Release(bits.astype(int), mechanism)


def _numbers():
    budgets = ldp.LaplaceMechanism(np.linspace(0.5, 2, N), -5, 5)
    return ldp.Release(X + np.random.default_rng(1).laplace(0, budgets.scale), budgets)


@pytest.mark.parametrize(
    ("make", "names", "shape"),
    [
        (lambda: (logistic, ldp.Release(Z, RR), X), ("a", "b"), (2,)),
        (lambda: (clipped_gaussian(), _numbers()), ("mu", "sigma"), (2,)),
        pytest.param(lambda: (oue_histogram(), _categories(1500, 5)), ("theta",), (5,), marks=pytest.mark.slow),
        (lambda: (regional_histograms(), [_categories(700, 3, i) for i in range(2)]), ("theta",), (2, 3)),
    ],
    ids=["covariates", "numbers", "categories", "groups"],
)
def test_a_model_is_the_sum_of_what_is_above_and_below_its_cut(make, names, shape, x64):
    density, parameters, found = _pieces(*make())
    assert (found.names, found.shape) == (names, shape)
    whole, above, below = jax.jit(
        lambda u: (density.potential(u), found.rest(u), found.likelihood(found.coordinates(u)))
    )(parameters)
    assert np.isclose(above - below, whole, rtol=1e-12)


def test_groups_that_share_a_number_are_not_taken_apart(x64):
    def model(z, group):
        means = numpyro.sample("means", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        # The first group's numbers are seen by the second group's records, too.
        numpyro.sample("z", dist.Normal((means + means[0])[group].sum(-1), 1), obs=z)

    assert _pieces(model, X, np.arange(N) % 2)[2].shape == (6,)


def test_effects_of_groups_that_have_nothing_in_common_are_taken_apart(x64):
    def model(z):
        effects = numpyro.sample("u", dist.Normal(0, 1).expand([200]))
        numpyro.sample("z", dist.Normal(effects[np.arange(N) % 200]), obs=z)

    assert _pieces(model, X)[2].shape == (200, 1)


def test_a_model_that_cannot_be_cut_says_why(x64, monkeypatch):
    def effects(z):
        group = numpyro.sample("u", dist.Normal(0, 1).expand([500]))[np.arange(N) % 500]
        numpyro.sample("z", dist.Normal(group + numpyro.sample("a", dist.Normal(0, 1))), obs=z)

    with pytest.raises(NoExpansion, match=r"500 of 'u'.*numpyro\.deterministic"):
        _pieces(effects, X)
    with pytest.raises(NoExpansion, match="no observed site has 1000 records"):
        _pieces(warner(), ldp.Release(Z[:900], RR))
    few = ldp.Release(X, ldp.LaplaceMechanism(10.0, -5, 5)).sketch()
    with pytest.raises(NoExpansion):
        _pieces(clipped_gaussian(), few)
    monkeypatch.setattr(polynomial, "REQUESTED_RECORDS", N + 1)
    with pytest.warns(ldp.inference.ExpansionWarning, match=f"no observed site has {N + 1} records"):
        result = quiet_fit(logistic, ldp.Release(Z, RR), X, expand=True, **FEW)
    assert report(result)["ran"] == "records"


# --- the posterior is the records' ----------------------------------------------------------------------------------


def test_the_posterior_is_the_exact_one_and_says_how_it_was_found(fitted, exact):
    agrees(fitted, ["a", "b"], exact)
    said = report(fitted)
    assert said["ran"] == "expansion" and said["error_sd_nats"] <= 0.01
    assert said["sites"] == ["a", "b"] and said["count"] == N and said["passes"] < 300


def test_other_data_of_the_same_structure_compile_nothing_anew(fitted, monkeypatch):
    monkeypatch.setattr(_programs.Program, "__init__", lambda *args: pytest.fail("something is compiled"))
    again = quiet_fit(logistic, ldp.Release(Z[::-1], RR), X[::-1], expand=True)
    assert np.allclose(again["posterior"]["a"].mean(), fitted["posterior"]["a"].mean(), atol=0.05)


@pytest.mark.slow
def test_an_expansion_is_chosen_where_it_pays_and_the_posterior_is_narrow(monkeypatch, fitted):
    assert report(quiet_fit(logistic, ldp.Release(Z, RR), X, **FEW)) is None
    monkeypatch.setattr(polynomial, "MIN_WORK_TO_EXPAND", 0.0)
    chosen = quiet_fit(logistic, ldp.Release(Z, RR), X)
    assert np.array_equal(chosen["posterior"]["a"], fitted["posterior"]["a"])
    monkeypatch.setattr(polynomial, "NARROW_RATIO", 1e-4)
    assert report(quiet_fit(logistic, ldp.Release(Z, RR), X, **FEW)) is None


@pytest.mark.slow
def test_an_expansion_that_is_not_exact_enough_is_reweighted(monkeypatch, exact):
    monkeypatch.setattr(polynomial, "ORDERS", (3,))
    monkeypatch.setattr(_expanded, "NEGLIGIBLE_SD_NATS", 1e-6)
    result = quiet_fit(logistic, ldp.Release(Z, RR), X, expand=True)
    said = report(result)
    assert said["ran"] == "expansion, reweighted" and said["pareto_k"] < 0.7
    assert 1e-6 < said["error_sd_nats"] < 0.3 and said["effective_share"] > 0.5
    agrees(result, ["a", "b"], exact)


def test_weights_are_those_of_the_posterior():
    # draws of N(0, 1) with ratios of N(0.3, 1): importance weights make the mean 0.3
    draws = np.random.default_rng(4).normal(size=(4, 5000))
    ratios = 0.3 * draws
    weights = smoothed_weights(ratios.ravel())
    assert weights.good and abs(weights.share - np.exp(-0.09)) < 0.02  # 1 / E w² with E w = 1
    drawn = resample({"x": draws}, weights.log.reshape(draws.shape), jax.random.key(0))["x"]
    # sd of a mean of 20,000 / e^0.09 effective draws is 0.0074; 4 of them: error rate 6e-5
    assert abs(drawn.mean() - 0.3) < 0.03 and abs(drawn.std() - 1) < 0.03
    # a tail that would have no mean on a scale of its own, in weights that differ by at most 22 %
    even = smoothed_weights(0.2 * np.exp(-np.random.default_rng(6).exponential(size=2000) * 4))
    assert even.good and even.share > 0.99
    heavy = smoothed_weights(np.random.default_rng(5).standard_cauchy(2000))
    assert not heavy.good and not smoothed_weights(np.full(100, np.nan)).good


# --- the certificate bites ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_expansion_at_a_wrong_point_is_seen_and_made_again(fitted, exact):
    right = ldp.expand(logistic, ldp.Release(Z, RR), X)
    far = ldp.expand(logistic, ldp.Release(Z, RR), X, at=_moved(right, 8.0))
    result = quiet_fit(logistic, ldp.Release(Z, RR), X, expand=far)
    assert report(result)["ran"] == "expansion"
    # The passes of the second expansion, too, were made: there was none for the mode.
    assert report(result)["passes"] > len(right.points)
    agrees(result, ["a", "b"], exact)


def _moved(expansion, sds):
    points = expansion.points + sds * expansion.points.std(axis=0)
    return dataclasses.replace(expansion, order=2, points=points, frame=Frame.of_draws(points))


def two_modes(z):
    numpyro.sample("z", dist.Normal(numpyro.sample("m", dist.Normal(0, 2)) ** 2, 3), obs=z)


SQUARES = 1 + 3 * RNG.normal(size=N)


def test_a_posterior_with_two_modes_is_not_expanded(x64):
    assert "standard deviations apart" in _given_up(two_modes, SQUARES)[0]


@pytest.mark.slow
def test_a_posterior_with_two_modes_is_left_to_the_records():
    with pytest.warns(ldp.inference.ExpansionWarning, match="standard deviations apart"):
        result = quiet_fit(two_modes, SQUARES, num_chains=6, num_samples=100, expand=True)
    assert report(result)["ran"] == "records"
    signs = np.sign(np.asarray(result["posterior"]["m"]).mean(axis=1))
    assert {-1.0, 1.0} == set(
        signs
    )  # each has half of the starts: that none or all of six are in it has probability 3 %


@pytest.mark.slow
def test_few_records_of_heavy_tails_are_seen_to_be_more_than_a_polynomial(monkeypatch):
    monkeypatch.setattr(polynomial, "REQUESTED_RECORDS", 5)
    z = np.array([-6.0, -5.5, 0.0, 0.3, 5.0, 6.5])

    def model(z):
        numpyro.sample("z", dist.Cauchy(numpyro.sample("m", dist.Normal(0, 5)), 1), obs=z)

    with pytest.warns(ldp.inference.ExpansionWarning, match="the data as they are"):
        result = quiet_fit(model, z, expand=True, num_samples=4000)
    assert report(result)["ran"] == "records"

    def log_density(m):
        return -np.log1p((z[:, None] - m) ** 2).sum(axis=0) - m**2 / 50

    agrees(result, ["m"], on_a_grid(log_density, np.linspace(-20, 20, 4001)))


@pytest.mark.slow
def test_a_share_of_zero_is_no_matter():
    honest = np.random.default_rng(3).uniform(size=N) < np.e / (1 + np.e)
    release = ldp.Release(~honest, RR)  # nobody says yes but by chance: the share's posterior begins at its mode, 0
    result = quiet_fit(warner(), release, expand=True)
    assert report(result)["ran"].startswith("expansion")
    yes, p = (~honest).sum(), np.e / (1 + np.e)

    def log_density(theta):
        share = p * theta + (1 - p) * (1 - theta)
        return yes * np.log(share) + (N - yes) * np.log1p(-share)

    agrees(result, ["theta"], on_a_grid(log_density, (np.arange(4000) + 0.5) / 4000))


@pytest.fixture
def uneven(monkeypatch):
    """Every expansion needs weights, and none are even enough."""
    monkeypatch.setattr(_expanded, "NEGLIGIBLE_SD_NATS", 0.0)
    monkeypatch.setattr(polynomial, "MAX_EXPANSIONS", 2)  # of which one is at the draws of the other
    monkeypatch.setattr(_reweight, "MAX_PARETO_K", -5.0)


def _given_up(model, *args):
    """Why an expansion is given up for the records, and its report."""
    with pytest.raises(GivenUp) as up:
        outcome(polynomial.propose, NUTS(model), problem_of(model, *args, expand=True), **SHORT)
    return up.value.args


def test_what_cannot_be_reweighted_is_no_posterior(x64, uneven, fitted):
    why, report = _given_up(logistic, ldp.Release(Z, RR), X)
    assert "importance weights are too uneven" in why and np.isfinite(report.pareto_k)


def test_draws_that_lack_a_tail_are_no_posterior(x64, monkeypatch, fitted):
    monkeypatch.setattr(_expanded, "TAIL_TOLERANCE", -1.0)  # any tail is too much
    assert "tail that no draw reaches" in _given_up(logistic, ldp.Release(Z, RR), X)[0]


@pytest.mark.slow
def test_what_cannot_be_reweighted_is_left_to_the_records(uneven, exact):
    with pytest.warns(ldp.inference.ExpansionWarning, match="importance weights are too uneven"):
        result = quiet_fit(logistic, ldp.Release(Z, RR), X, expand=True)
    assert report(result)["ran"] == "records" and "pareto_k" in report(result)
    agrees(result, ["a", "b"], exact)


# --- shards ---------------------------------------------------------------------------------------------------------


def shards_of(count):
    return [(ldp.Release(Z[part::count], RR), X[part::count]) for part in range(count)]


def test_expansions_of_shards_add_to_that_of_all_records():
    whole = ldp.expand(logistic, ldp.Release(Z, RR), X)
    parts = [pickle.loads(pickle.dumps(ldp.expand(logistic, *shard, at=whole))) for shard in shards_of(2)]
    total = sum(parts)
    assert total.count == N and np.allclose(total.values, whole.values) and np.allclose(total.slopes, whole.slopes)
    with pytest.raises(ValueError, match="if their points are equal"):
        total + _moved(whole, 1.0)


@pytest.mark.slow
def test_a_second_round_of_expansions_of_shards_has_the_exact_posterior(exact):
    shards = shards_of(4)
    first = ldp.expand(logistic, *shards[0])
    total = sum(ldp.expand(logistic, *shard, at=first) for shard in shards)
    posterior = quiet_fit(logistic, *shards[1], expand=total)
    assert report(posterior)["ran"] == "expansion of shards" and report(posterior)["passes"] == 0
    again = sum(ldp.expand(logistic, *shard, at=posterior) for shard in shards)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error", ldp.inference.ExpansionWarning
        )  # the second round is good enough by its own account
        result = quiet_fit(logistic, *shards[2], expand=again)
    agrees(result, ["a", "b"], exact)


@pytest.mark.slow
def test_shards_expanded_elsewhere_are_doubted():
    shards = shards_of(4)
    far = _moved(ldp.expand(logistic, *shards[0]), 5.0)
    total = sum(ldp.expand(logistic, *shard, at=far) for shard in shards)
    # A quadratic from so far away has no maximum, or one that is elsewhere: an error, or a warning.
    with warnings.catch_warnings():
        warnings.simplefilter("error", ldp.inference.ExpansionWarning)
        with pytest.raises((ValueError, ldp.inference.ExpansionWarning), match="expand the shards again"):
            quiet_fit(logistic, *shards[0], expand=total, num_samples=100)


# --- sketches of categories -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def categories():
    return _categories(3000, 4)


@pytest.mark.slow
def test_a_sketch_of_categories_is_compared_with_its_records(categories):
    result = quiet_fit(oue_histogram(), categories.sketch(expand=True))
    assert report(result)["ran"] == "expansion" and report(result)["error_sd_nats"] < 0.01
    # The same prior and the same likelihood by counts; both chains' errors, 8 numbers, 4 standard errors: 5e-4.
    counted = quiet_fit(oue_histogram(), categories.sketch(expand=False))
    means, errors = [], []
    for draws in (np.asarray(each["posterior"]["theta"]) for each in (result, counted)):
        means.append(draws.mean(axis=(0, 1)))
        errors.append([draws[..., j].std() / np.sqrt(float(az.ess(draws[..., j]))) for j in range(4)])
    assert np.all(np.abs(means[0] - means[1]) < 4 * np.hypot(*errors))


@pytest.mark.slow
def test_a_sketch_made_at_a_wrong_point_is_left_to_its_records(categories):
    other = ldp.OptimalUnaryEncoding(1.0, 4)
    skewed = ldp.Release(other.randomize(jax.random.key(5), np.zeros(300_000, int)), other).sketch(expand=True)
    wrong = categories.sketch(expand=True, at=skewed)
    with pytest.warns(ldp.inference.ExpansionWarning, match="the data as they are"):
        result = quiet_fit(oue_histogram(), wrong)
    assert report(result)["ran"] == "records"
    right = quiet_fit(oue_histogram(), categories.sketch(expand=False))
    assert np.array_equal(result["posterior"]["theta"], right["posterior"]["theta"])


def test_a_sketch_without_records_says_where_it_was_made(categories):
    sketch = categories.sketch(expand=True, keep_records=False)
    assert report(quiet_fit(oue_histogram(), sketch, **FEW))["ran"] == "expansion without records"
    with pytest.raises(ValueError, match="keep_records=True"):
        quiet_fit(oue_histogram(), sketch, expand=False)


# --- wrong input ----------------------------------------------------------------------------------------------------


def test_what_is_no_expansion_of_this_model_is_refused():
    release = ldp.Release(Z, RR)
    with pytest.raises(ValueError, match="expand must be True, False, None or an Expansion, got 'yes'"):
        ldp.fit(logistic, release, X, expand="yes")
    with pytest.raises(ValueError, match="order must be 2, 3 or 4, got 5"):
        ldp.expand(logistic, release, X, order=5)
    with pytest.raises(ValueError, match="at must be an expansion, or a posterior with draws of a, b"):
        ldp.expand(logistic, release, X, at={"posterior": {"a": jnp.zeros((1, 3))}})
    frame = Frame.of_draws(np.arange(9.0)[:, None])
    other = polynomial.Expansion(("mu",), 2, N, frame, np.zeros((9, 1)), np.zeros(9), np.zeros((9, 1)))
    with pytest.raises(ValueError, match=r"expand is an expansion of another model: it depends on \('mu',\)"):
        ldp.fit(logistic, release, X, expand=other, progress_bar=False)
    with pytest.raises(ValueError, match="at is an expansion of another model"):
        ldp.expand(logistic, release, X, at=other)
    with pytest.raises(ValueError, match="expand= needs HMC or NUTS"):
        ldp.fit(logistic, release, X, expand=True, kernel=numpyro.infer.SA, progress_bar=False)


def test_a_regression_with_a_scale_is_cut_at_the_scale_itself(x64):
    numbers = ldp.Release(X + np.random.default_rng(0).laplace(0, 10, N), ldp.LaplaceMechanism(1.0, -5, 5))
    found = _pieces(label_regression(X[:, None]), numbers)[2]
    assert found.names == ("intercept", "sigma", "slopes") and not found.unconstrained


def test_a_sum_of_expansions_promises_what_all_shards_do():
    values = np.arange(120) % 2
    shards = [
        ldp.Release(values, ldp.RandomizedResponse(1.0)),
        ldp.Release(values, ldp.RandomizedResponse(4.0), times=6),
    ]
    first = ldp.expand(ldp.models.warner(), shards[0], order=2)
    total = first + ldp.expand(ldp.models.warner(), shards[1], at=first)
    assert [promise.times for promise in total.promises] == [None, 6]
    assert (first + ldp.expand(ldp.models.warner(), shards[0], at=first)).promises == first.promises
