"""`m_estimate` against statsmodels on original records, and against the truth on released ones."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import integrate, optimize, stats
from scipy.stats import binom

import ldpbayes as ldp
from ldpbayes import losses
from ldpbayes.estimation import Combined, DoublyRandom, Oracle, SmoothedDoublyRandom, SymmetricLaplaceCorrection
from ldpbayes.estimation._problem import natural_units, posed, records_of
from ldpbayes.estimation.losses import as_loss
from ldpbayes.estimation.m_estimation import Estimator, _fixed_point

N = 5000
COLUMNS = ("age", "income", "ill")
FEW = 2000  # where many releases are estimated
PLACED = {"start": np.zeros(3), "space": ldp.estimation.Box(-9, 9)}  # where no naive estimate is needed for them


def logistic_records(rng, count=N):
    x = rng.uniform(-0.5, 0.5, (count, 2))
    y = rng.random(count) < 1 / (1 + np.exp(-(0.3 + x @ [1.0, -2.0])))
    return np.column_stack([x, y])


def noisy(mechanism, records, seed=0):
    """A release with zero-inflated noise from NumPy, which compiles nothing."""
    rng, z = np.random.default_rng([9, seed]), np.array(records, float)
    part = z.reshape(len(z), -1)  # one memory with the values
    kept = rng.random(len(z)) >= mechanism.zero_probability
    size = kept * mechanism.scale * np.sqrt(rng.exponential(size=len(z)))
    noise = size[:, None] * rng.normal(size=(len(z), mechanism.dimension))
    part[:, mechanism.index] = np.clip(part[:, mechanism.index], mechanism.lower, mechanism.upper) + noise
    return ldp.Release(z, mechanism)


def released(rows, seed=0, **changes):
    options = {"zero_probability": 0.3, "scale": 0.4, "lower": -0.5, "upper": 0.5, "columns": COLUMNS}
    return noisy(ldp.ZeroInflatedLaplaceMechanism(**options | {"perturbed": ("age", "income")} | changes), rows, seed)


@pytest.fixture(scope="module")
def data():
    rows = logistic_records(np.random.default_rng(5))
    return rows, released(rows)


@pytest.fixture(scope="module")
def fits(data):
    """Logistic regressions of the release by each method, each made once."""
    return functools.cache(lambda method: ldp.m_estimate(losses.logistic(), data[1], method))


def test_oracle_is_statsmodels_logit_with_its_robust_errors_and_takes_columns_by_name(data):
    rows, _ = data
    frame = pd.DataFrame(rows, columns=COLUMNS)[["ill", "income", "age"]]  # in another order
    ours = ldp.m_estimate(losses.logistic("ill", features=("age", "income")), frame, "oracle", **PLACED)
    theirs = sm.Logit(rows[:, 2], sm.add_constant(rows[:, :2])).fit(disp=0, tol=1e-12, cov_type="HC0")
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-7)
    np.testing.assert_allclose(ours.standard_error, theirs.bse * np.sqrt(N / (N - 3)), rtol=1e-6)
    np.testing.assert_allclose(np.array(ours.interval()), theirs.conf_int().T, rtol=2e-4)
    assert ours.converged and ours.names == ["intercept", "age", "income"]


@pytest.mark.slow  # as above
def test_columns_may_be_named(data):
    named = ldp.m_estimate(losses.squared("income", features=("ill", "age")), data[1], "naive", **PLACED)
    numbered = ldp.m_estimate(losses.squared(1, features=(2, 0)), data[1], "naive", **PLACED)
    assert named.names == ["intercept", "ill", "age"]
    np.testing.assert_array_equal(named.params, numbered.params)


def test_data_frames_lack_no_column_and_hold_numbers(data):
    rows, release = data
    frame = pd.DataFrame(rows, columns=COLUMNS)
    for records, names in ((pd.DataFrame(rows), ("x0", "x1", "x2")), (frame["age"], ("x0",)), (frame, COLUMNS)):
        assert records_of(records, Oracle()).mechanism.names == names
    loss = losses.logistic("ill", features=("age", "income"))
    shuffled = pd.DataFrame(release.values, columns=COLUMNS)[["income", "ill", "age"]]
    again = ldp.Release(shuffled, release.mechanism)
    np.testing.assert_array_equal(again.values, release.values)
    for bad, message in (
        (frame.drop(columns="age"), "uses column 'age', but the columns are income, ill"),
        (frame.assign(town="here"), "column 'town' holds"),
        (frame.assign(age=np.nan), "column 'age' has 5000 missing values"),
        (pd.concat([frame, frame[["age"]]], axis=1), "several columns of the name 'age'"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            ldp.m_estimate(loss, bad, "oracle")
    with pytest.raises(ValueError, match="the mechanism's columns are age, income, ill; got income, age"):
        ldp.Release(shuffled.drop(columns="ill")[["income", "age"]], release.mechanism)


@functools.partial(jax.jit, static_argnames="loss")
def scores_of(criterion, loss, theta):
    return criterion.scores(loss, theta, (0,))


@pytest.mark.slow
def test_standard_errors_of_a_median_know_the_spread_of_the_original_records():
    sigma, count, loss = 0.2, 20_000, losses.absolute(features=())
    rows = sigma * np.random.default_rng(6).normal(size=count)
    release = noisy(ldp.ZeroInflatedLaplaceMechanism(0.25, 1.8, -1.0, 1.0), rows)
    estimate = ldp.m_estimate(loss, release, "dr", start=np.zeros(1), space=ldp.estimation.Box(-9, 9))
    with jax.enable_x64(True):
        scores = np.asarray(scores_of(estimate._evidence.criteria[0], loss, estimate.params))
    want = np.std(scores) / np.sqrt(count) / (2 * stats.norm.pdf(0) / sigma)
    # 2.5 % bias of the kernel's width, and three standard errors of 2.7 % of a density from 5,000 records
    assert estimate.standard_error[0] == pytest.approx(want, rel=0.11)


def _agrees_with_quantile_regression(loss, level, rows):
    ours = ldp.m_estimate(loss, rows, "oracle", **PLACED)
    theirs = sm.QuantReg(rows[:, -1], sm.add_constant(rows[:, :-1])).fit(level, p_tol=1e-10)
    # smoothing moves the estimate by an amount of smaller order than its error
    assert np.all(np.abs(ours.params - theirs.params) < 0.25 * theirs.bse)
    # two kernel estimates of one density, from some 300 records near the quantile each: 4.5 times 1/sqrt(300)
    np.testing.assert_allclose(ours.standard_error, theirs.bse, rtol=0.26)


@pytest.mark.slow  # as with a weight in a column
def test_the_oracle_of_a_squared_loss_is_least_squares(rng):
    x = rng.normal(size=(2000, 2))
    y = 1 + x @ [0.5, -1.0] + rng.standard_t(3, size=2000)
    rows, design = np.column_stack([x, y]), sm.add_constant(x)
    squared = ldp.m_estimate(losses.squared(), rows, "oracle", **PLACED)
    ols = sm.OLS(y, design).fit(cov_type="HC1")
    np.testing.assert_allclose(squared.params, ols.params, rtol=1e-8)
    np.testing.assert_allclose(squared.standard_error, ols.bse, rtol=1e-6)


@pytest.mark.slow
def test_the_oracle_of_a_huber_loss_has_clipped_residuals_without_correlation_to_the_features(rng):
    x = rng.normal(size=(2000, 2))
    y, design = 1 + x @ [0.5, -1.0] + rng.standard_t(3, size=2000), sm.add_constant(x)
    huber = ldp.m_estimate(losses.huber(1.3), np.column_stack([x, y]), "oracle")
    scores = np.clip(y - design @ huber.params, -1.3, 1.3) @ design
    np.testing.assert_allclose(scores, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "level"), [(losses.pinball(0.8), 0.8), pytest.param(losses.absolute(), 0.5, marks=pytest.mark.slow)]
)
def test_oracles_are_quantile_regression(rng, loss, level):
    x = rng.normal(size=(2000, 2))
    rows = np.column_stack([x, 1 + x @ [0.5, -1.0] + rng.standard_t(3, size=2000)])
    _agrees_with_quantile_regression(loss, level, rows)


@pytest.mark.slow
def test_oracle_of_the_hinge_loss_is_a_support_vector_machine_without_a_penalty(rng):
    x, count = rng.normal(size=(1000, 2)), 1000
    y = np.where(x @ [1.0, 0.5] + rng.normal(size=count) > 0, 1.0, -1.0)
    ours = ldp.m_estimate(losses.hinge(), np.column_stack([x, y]), "oracle", **PLACED)
    signed = y[:, None] * sm.add_constant(x)
    # the linear program: least mean of slacks e >= 0 with e >= 1 - y x'theta
    least = optimize.linprog(
        np.r_[np.zeros(3), np.full(count, 1 / count)],
        np.hstack([-signed, -np.eye(count)]),
        -np.ones(count),
        bounds=[(None, None)] * 3 + [(0, None)] * count,
    )
    # an estimate's own error raises the mean loss by some 3/2 N; smoothing is to cost less than a tenth of that
    excess = np.maximum(1 - signed @ ours.params, 0).mean() - least.fun
    assert -1e-12 < excess < 1.5e-4


@pytest.mark.parametrize(
    "method", ["dr", *(pytest.param(name, marks=pytest.mark.slow) for name in ("combined", "sdr", "sl"))]
)
def test_private_estimates_of_a_logistic_regression_find_the_truth_and_the_naive_one_does_not(fits, method):
    estimate = fits(method)
    z = (estimate.params - [0.3, 1.0, -2.0]) / estimate.standard_error
    assert np.all(np.abs(z) < 4.5)  # error rate 2e-5
    assert estimate.names == ["intercept", "age", "income"] and estimate.converged
    naive = fits("naive")
    assert np.abs((naive.params[2] + 2.0) / naive.standard_error[2]) > 6


@pytest.mark.parametrize("method", ["dr", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sdr", "sl"))])
def test_combined_has_the_smallest_errors(fits, method):
    assert np.all(fits("combined").standard_error < 1.01 * fits(method).standard_error)


@pytest.mark.slow
def test_parameters_of_any_form_and_losses_of_any_kind_are_estimated(data):
    rows = data[0][:FEW]
    release = ldp.Release(data[1].values[:FEW], data[1].mechanism)

    def network(x, theta, xp=jnp):
        hidden = xp.tanh(theta["slopes"] @ x[:2] + theta["shifts"])
        return (x[2] - theta["out"] @ hidden - theta["mean"]) ** 2

    start = {"slopes": np.array([[1.0, -1.0]]), "shifts": np.zeros(1), "out": np.ones(1), "mean": 0.5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.estimation.EstimationWarning)
        estimate = ldp.m_estimate(network, release, "dr", start=start, space=ldp.estimation.Box(-5, 5), draws=2)
    assert jax.tree.structure(estimate.estimate) == jax.tree.structure(start)

    def risk(flat):  # of the original records
        theta = {"slopes": flat[None, :2], "shifts": flat[2:3], "out": flat[3:4], "mean": flat[4]}
        return np.mean(network(rows.T, theta, np))

    flat = np.concatenate([np.ravel(estimate.estimate[name]) for name in start])
    oracle = optimize.minimize(risk, [1.0, -1.0, 0.0, 1.0, 0.5], bounds=[(-5, 5)] * 5)
    assert risk(flat) < oracle.fun + 0.01 < np.var(rows[:, 2]) - 0.005


def _is_rounded_off_like(want, theirs):
    assert theirs.converged
    # both are off by rounding, and only by a fraction of their errors
    assert np.all(np.abs(theirs.params - want.params) < 0.3 * want.standard_error)
    np.testing.assert_allclose(theirs.standard_error, want.standard_error, rtol=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["oracle", "dr"])
def test_a_users_regression_with_kinks_in_its_parameter_is_rounded_off_like_ours(data, method):
    source = data[0] if method == "oracle" else data[1]

    def loss(x, theta):  # the median regression of the first column on the second
        return jnp.abs(x[0] - theta[0] - theta[1] * x[1])

    theirs = ldp.m_estimate(loss, source, method, start=np.zeros(2), draws=4)
    _is_rounded_off_like(ldp.m_estimate(losses.absolute(0, features=(1,)), source, method, draws=4), theirs)


def test_support_can_be_narrower_wider_or_left_out(data):
    estimates = [
        ldp.m_estimate(losses.logistic(), data[1], "dr", support=support)
        for support in ("bounds", (-0.5, 0.5), (np.full(2, -2.0), np.full(2, 2.0)), None)
    ]
    np.testing.assert_array_equal(estimates[0].params, estimates[1].params)
    assert estimates[0].standard_error[1] < estimates[2].standard_error[1]
    assert np.ptp([e.params[1] for e in estimates]) > 0


def squared_log(x, theta):
    return (theta - jnp.log(x)) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dr", pytest.param("combined", marks=pytest.mark.slow)])
def test_a_loss_that_is_only_defined_on_the_support_is_estimated(method):
    rng = np.random.default_rng(4)
    release = noisy(ldp.ZeroInflatedLaplaceMechanism(0.2, 2.0, 1.0, 3.0), rng.uniform(1, 3, 3000))
    assert np.mean(release.values < 0) > 0.1
    estimate = ldp.m_estimate(squared_log, release, method, start=0.0, space=ldp.estimation.Box(-9, 9))
    assert abs(estimate.estimate - (1.5 * np.log(3) - 1)) < 4.5 * estimate.standard_error[0]
    # nor is anything asked of the loss outside the support by an update
    assert estimate.update(release).count == 6000
    with pytest.raises(ValueError, match="the loss must be finite"):
        ldp.m_estimate(squared_log, release, "sdr", start=0.0)


@pytest.mark.parametrize("method", ["naive", pytest.param("combined", marks=pytest.mark.slow)])
def test_an_update_with_records_at_which_the_loss_is_not_finite_is_refused(method):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.2, 2.0, 1.0, 3.0)
    values = np.linspace(-1.5, 5.5, 500)

    def loss(x, theta):
        return (theta - jnp.sqrt(x + 10)) ** 2

    space = ldp.estimation.Box(-9, 9)
    before = ldp.m_estimate(loss, ldp.Release(values, mechanism), method, start=0.0, space=space)
    far = ldp.Release(np.r_[values, -11.0], mechanism)
    with pytest.raises(ValueError, match=r"the loss must be finite, but at the start it is nan for record 500 and"):
        before.update(far)


def test_exact_integration_has_no_noise_of_its_own(data, fits):
    rng = np.random.default_rng(3)
    release = noisy(ldp.ZeroInflatedLaplaceMechanism(0.1, 0.94, 0.0, 1.0), rng.random(2000))
    options = {"start": 0.0, "space": ldp.estimation.Box(-9, 9)}

    def loss(x, theta):
        return (theta - jnp.where((x >= 0.5) & (x <= 1), 1.0, 0.0)) ** 2

    exact, same = (
        ldp.m_estimate(loss, release, "dr", draws="exact", cuts=(0.5,), seed=seed, **options) for seed in (0, 1)
    )
    assert exact.estimate == same.estimate
    assert abs(exact.estimate - 0.5) < 4.5 * exact.standard_error[0]
    drawn = ldp.m_estimate(losses.logistic(), data[1], "dr", seed=1)
    assert np.all(drawn.params != fits("dr").params)


@pytest.mark.parametrize("method", ["dr", pytest.param("combined", marks=pytest.mark.slow)])
def test_a_new_batch_updates_the_estimate_without_drawing_anything_for_the_old_records(data, fits, method):
    before, rest = fits(method), released(logistic_records(np.random.default_rng(7)), seed=1)
    after = before.update(rest)
    assert after.count == 2 * N and before.count == N
    # the evidence of the old records is a part of the new one, as it was
    for old, new in zip(before._evidence.criteria, after._evidence.criteria, strict=True):
        for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
            np.testing.assert_array_equal(a, b[:, :N])
    assert np.all(after.standard_error < before.standard_error)
    assert np.all(np.abs(after.params - [0.3, 1.0, -2.0]) < 4.5 * after.standard_error)
    other = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.38, -0.5, 0.5, COLUMNS, ("age", "income"))  # milder noise
    milder = before.update(ldp.Release(rest.values, other))
    assert milder.count == 2 * N
    with pytest.raises(ValueError, match="an update needs records of a mechanism like"):
        before.update(released(rest.values, perturbed=("age",), lower=-9, upper=9))
    public = ldp.ZeroInflatedLaplaceMechanism(0.3, np.r_[0.0, np.ones(9)], -9, 9, COLUMNS, ("age", "income"))
    held = ldp.m_estimate(losses.logistic(), data[1], method, support=(-0.5, 0.5))
    with pytest.raises(ValueError, match="1 records without noise lie outside the support"):
        held.update(ldp.Release(np.full((10, 3), 2.0), public))


def test_an_update_with_other_columns_is_refused_and_one_with_other_bounds_has_its_own_support():
    rng = np.random.default_rng(8)

    def batch(upper, seed):
        mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.5 * upper, 0.0, upper, ("y",))
        return noisy(mechanism, upper * rng.uniform(size=(3000, 1)), seed)

    loss = losses.squared("y", features=())
    first, wider = batch(1.0, 0), batch(4.0, 1)
    options = {"draws": 4, "start": np.zeros(1), "space": ldp.estimation.Box(-9, 9)}
    estimate = ldp.m_estimate(loss, first, "dr", **options)
    both = estimate.update(wider)
    assert abs(both.params[0] - (0.5 + 2) / 2) < 4.5 * both.standard_error[0]  # error rate 7e-6
    # a support that was given stays
    held = ldp.m_estimate(loss, first, "dr", support=(0, 1), **options).update(wider)
    assert held.params[0] < 0.8
    swapped = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.5, 0.0, 1.0, ("x",))
    with pytest.raises(ValueError, match="an update needs records with the columns y, in this order, got x"):
        estimate.update(ldp.Release(first.values, swapped))


def expectile(x, theta):
    return jnp.where(x > theta, 0.9, 0.1) * (x - theta) ** 2


def test_sdr_is_left_out_where_a_second_derivative_jumps():
    release = uniform_numbers()
    with pytest.raises(ValueError, match="needs 4 derivatives of the loss, 2 in the perturbed columns and 2 in the"):
        ldp.m_estimate(expectile, release, "sdr", start=0.5)
    with jax.enable_x64(True):
        problem = posed(expectile, 0.5, release, Combined())
        estimator = Estimator(problem.loss, release.mechanism, Combined(), ldp.estimation.Box(-9, 9))
        evidence = jax.eval_shape(estimator.evidence, jax.random.key(0), problem.records.rows)
    assert len(evidence.criteria) == 2  # dr truncated and not; sdr alone is off by twelve standard errors


@pytest.mark.slow
def test_a_loss_whose_second_derivative_jumps_is_estimated_by_what_is_left():
    rows = np.random.default_rng(0).uniform(size=20_000)
    release = noisy(ldp.ZeroInflatedLaplaceMechanism(0.25, 0.5, 0.0, 1.0), rows)
    estimate = ldp.m_estimate(expectile, release, start=0.5, draws=4, space=ldp.estimation.Box(-9, 9))
    assert len(estimate._evidence.criteria) == 2
    assert abs(estimate.estimate - 0.75) < 4.5 * estimate.standard_error[0]


def deviation(x, theta):
    return jnp.abs(x - theta)


def uniform_numbers(low=0.0, width=1.0):
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.5 * width, low, low + width)
    return noisy(mechanism, low + width * np.random.default_rng(0).uniform(size=6000))


@functools.cache
def estimated_deviation(low, width):
    """The median of uniform numbers between `low` and `low + width`, and its error, in units of that interval."""
    estimate = ldp.m_estimate(deviation, uniform_numbers(low, width), "dr", start=0.0, draws=4)
    assert estimate.converged
    return (estimate.estimate - low) / width, estimate.standard_error[0] / width


@pytest.mark.slow
def test_a_users_loss_with_kinks_in_its_parameter_is_rounded_off_like_ours():
    theirs = ldp.m_estimate(deviation, uniform_numbers(), "dr", start=0.0, draws=4)
    options = {"start": np.zeros(1), "space": ldp.estimation.Box(-9, 9), "draws": 4}
    _is_rounded_off_like(ldp.m_estimate(losses.absolute(features=()), uniform_numbers(), "dr", **options), theirs)


@pytest.mark.parametrize(
    ("low", "width"),
    [
        (5.0, 0.001),
        pytest.param(-500.0, 1000.0, marks=pytest.mark.slow),
        pytest.param(0.0, 1000.0, marks=pytest.mark.slow),
        pytest.param(0.0, 0.001, marks=pytest.mark.slow),
    ],
)
def test_a_loss_with_kinks_is_estimated_in_any_units(low, width):
    (first, error), (place, spread) = estimated_deviation(0.0, 1.0), estimated_deviation(low, width)
    assert abs(first - 0.5) < 4.5 * error  # the median; error rate 7e-6
    # three tenths of a width of rounding off, which is 0.02 of a unit of 0.2: a tenth of a standard error
    assert abs(place - first) < 0.2 * error
    assert spread == pytest.approx(error, rel=0.1)  # units agree to a tenth, and so do the widths that they give


def test_a_unit_above_all_kinks_is_the_one_as_far_below_them():
    rows, loss = np.linspace(5.0, 5.001, 100)[:, None], losses.absolute(features=())
    with jax.enable_x64(True):
        above, below = (natural_units(loss, rows, np.array([5.0005 + move])) for move in (0.01, -0.01))
    np.testing.assert_allclose(above, below, rtol=1e-9)
    assert 0.005 < above[0] < 0.05  # the kinks are 0.01 away; a loss without any has a unit of 6


@pytest.mark.slow
def test_standard_errors_of_a_loss_with_kinks_are_the_spread_of_its_estimates():
    count, replicates = 3000, 100
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 500.0, 0.0, 1000.0)
    loss = as_loss(lambda x, theta: jnp.abs(x - theta[0]), scalar=True)

    def one(key, estimator):
        keys = jax.random.split(key, 3)
        z = estimator.mechanism.randomize(keys[0], jax.random.uniform(keys[1], (count,), maxval=1000.0))
        fit = estimator(keys[2], z[:, None], jnp.array([500.0]))
        return fit.theta[0], fit.covariance[0, 0]

    with jax.enable_x64(True):
        units = jnp.array([200.0])
        estimator = Estimator(loss, mechanism, DoublyRandom(4), ldp.estimation.Box(-1e4, 1e4), units=units)
        keys = jax.random.split(jax.random.key(0), replicates)
        fits = jax.jit(lambda keys, e: jax.lax.map(lambda key: one(key, e), keys))
        thetas, variances = (np.asarray(part) for part in fits(keys, estimator))
    # a standard deviation of 100 replicates has a standard error of 7 %; the kernel's width costs a few per cent
    assert np.sqrt(np.mean(variances)) == pytest.approx(np.std(thetas), rel=0.25)


def test_records_in_single_precision_lie_on_the_support_that_they_were_clipped_to():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.1, 0.0, 0.3, ("y",))
    rows = np.minimum(np.random.default_rng(2).exponential(0.3, (3000, 1)), 0.3)
    values = noisy(mechanism, rows).values.astype(np.float32)
    assert np.mean(values == np.float32(0.3)) > 0.05 and float(np.float32(0.3)) > 0.3
    wide = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.1, -1.0, 1.0, ("y",))
    for options in ({}, {"support": (0.0, 0.3)}):
        release = ldp.Release(values, wide if options else mechanism)
        options |= {"draws": 4, "start": np.zeros(1), "space": ldp.estimation.Box(-9, 9)}
        estimate = ldp.m_estimate(losses.squared("y", features=()), release, "dr", **options)
        assert abs(estimate.params[0] - rows.mean()) < 4.5 * estimate.standard_error[0]


@pytest.mark.parametrize(
    "method", ["naive", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dr", "combined"))]
)
def test_bootstrap_and_sandwich_agree(fits, method):
    estimate = fits(method)
    bootstrap = estimate.bootstrap(150, seed=1)
    # a standard deviation of 150 replicates is within 4.5 of its own standard errors, 1/sqrt(300)
    np.testing.assert_allclose(bootstrap.standard_error, estimate.standard_error, rtol=4.5 / np.sqrt(300))
    np.testing.assert_array_equal(bootstrap.params, estimate.params)


def test_boundary_many_minima_and_missing_convergence_are_said(data):
    with pytest.warns(ldp.estimation.EstimationWarning, match=r"on the boundary of the parameter space \(income\)"):
        held = ldp.m_estimate(
            losses.logistic(), data[1], "dr", space=ldp.estimation.Box(*np.full((2, 3), [[-1.5], [1.5]]))
        )
    assert held.boundary.tolist() == [False, False, True] and np.isnan(held.standard_error[2])
    assert "on the boundary" in held.summary()

    def wavy(x, theta):
        return (theta**2 - 1) ** 2 + 0.01 * theta * x[0]

    with pytest.warns(ldp.estimation.EstimationWarning, match="2 minima were found"):
        found = ldp.m_estimate(wavy, data[1], "naive", start=0.5, space=ldp.estimation.Box(-3, 3), starts=8)
    assert len(found.minima) == 2 and found.minima[0][1] <= found.minima[1][1]
    np.testing.assert_allclose(sorted(theta[0] for theta, _ in found.minima), [-1, 1], atol=0.01)


def test_summary_is_a_table_with_names_and_intervals(fits):
    table = fits("dr").summary()
    assert "5000 records" in table and "[0.025" in table and "0.975]" in table
    assert [line.split()[0] for line in table.splitlines()[4:7]] == ["intercept", "age", "income"]


@pytest.mark.parametrize("loss", [losses.squared(), pytest.param(losses.logistic(), marks=pytest.mark.slow)])
def test_independent_noise_is_corrected(data, loss):
    mechanism = ldp.mechanisms.IndependentLaplaceMechanism(0.4, -0.5, 0.5, COLUMNS, ("age", "income"))
    values = data[0].copy()
    values[:, :2] += np.random.default_rng(1).laplace(0, 0.4 / np.sqrt(2), (N, 2))  # all records lie between the bounds
    release = ldp.Release(values, mechanism)
    estimate = ldp.m_estimate(loss, release, "independent", **PLACED)
    truth = [0.3, 1.0, -2.0]
    if loss == losses.squared():  # the line that is nearest to the original records
        truth, biased = (
            np.linalg.lstsq(sm.add_constant(rows[:, :2]), rows[:, 2])[0] for rows in (data[0], release.values)
        )
        assert np.abs(biased[2] - truth[2]) > 6 * estimate.standard_error[2]
    assert np.all(np.abs(estimate.params - truth) < 4.5 * estimate.standard_error)


def asymptotic_variances(covariance, theta, sigma, delta, scale):
    """Lu, Chen & Qiu, preprint, Proposition 6.1."""
    inverse, square = np.linalg.inv(covariance), theta @ theta
    ours = scale**2 * square * covariance + (sigma * scale) ** 2 * np.eye(len(theta))
    ours += 2 * scale**4 * square * np.eye(len(theta))
    outer = scale**4 * np.outer(theta, theta)
    sl = inverse @ (sigma**2 * covariance + ours + 3 * outer) @ inverse
    rest = inverse @ (ours + (2 + delta) * outer) @ inverse
    return {"sl": sl, "dr": sl - (2 - 1 / delta) * rest, "sdr": sl - delta * rest}


PAPERS = {
    "dr": DoublyRandom(draws=1, support=None),
    "sdr": SmoothedDoublyRandom(draws=1),
    "sl": SymmetricLaplaceCorrection(draws=1),
}


@jax.jit
def linear_scores(method, mechanism, z, key, theta):
    loss = losses.squared(intercept=False)
    (criterion,) = method.evidence(loss, mechanism, z, key, everywhere=True).criteria
    return criterion.scores(loss, theta, (0, 1))


@pytest.mark.parametrize("delta", [0.2, pytest.param(0.7, marks=pytest.mark.slow)])
def test_asymptotic_variances_of_the_linear_model_are_the_papers(delta):
    theta, sigma, scale, count = np.array([0.8, -0.5]), 0.6, 0.7, 1_000_000
    mechanism = ldp.ZeroInflatedLaplaceMechanism(delta, scale, -1.0, 1.0, 3, (0, 1))
    covariance = np.array([[1 / 3, 1 / 6], [1 / 6, 1 / 3]])
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, (count, 3))
    x = np.where((u[:, 2] > 0)[:, None], u[:, :2], u[:, :1])  # half of the time both coordinates are equal
    z = noisy(mechanism, np.column_stack([x, x @ theta + sigma * rng.normal(size=count)])).values
    inverse, key = np.linalg.inv(covariance), jax.random.key(3)
    with jax.enable_x64(True):
        for method, want in asymptotic_variances(covariance, theta, sigma, delta, scale).items():
            influence = np.asarray(linear_scores(PAPERS[method], mechanism, z, key, theta)) @ inverse
            products = influence[:, :, None] * influence[:, None, :]
            error = products.std(axis=0) / np.sqrt(count)
            assert np.all(np.abs(products.mean(axis=0) - want) < 5 * error), method
            assert np.all(error < 0.1 * np.abs(np.diag(want)).mean())  # the test can tell


def coverage(estimator, simulate, truth, replicates, batch=1):
    """Number of replicates in which each interval covers the truth."""

    def one(key):
        keys = jax.random.split(key, 3)
        z = estimator.mechanism.randomize(keys[1], simulate(keys[0]))
        fit = estimator(keys[2], z if z.ndim > 1 else z[:, None], jnp.zeros(len(truth)))
        error = jnp.sqrt(jnp.diagonal(fit.covariance))
        return jnp.abs(fit.theta - truth) <= stats.norm.ppf(0.975) * error

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(11), replicates)
        run = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=batch))
        return np.asarray(run(keys)).sum(axis=0)


def regression_rows(response):
    def simulate(key):
        keys = jax.random.split(key)
        x = jax.random.uniform(keys[0], (FEW, 2), minval=-0.5, maxval=0.5)
        return jnp.column_stack([x, response(keys[1], 0.3 + x @ jnp.array([1.0, -2.0]))])

    return simulate


ROWS = ldp.ZeroInflatedLaplaceMechanism(0.3, 0.4, -0.5, 0.5, 3, (0, 1))
NUMBER = ldp.ZeroInflatedLaplaceMechanism(0.1, 0.94, 0.0, 1.0)
SINE = as_loss(lambda x, theta: (theta[0] - jnp.abs(jnp.sin(2 * jnp.pi * x))) ** 2, scalar=True)
CASES = {
    "logistic": (losses.logistic(), ROWS, regression_rows(lambda k, eta: jax.random.bernoulli(k, jax.nn.sigmoid(eta)))),
    "median": (losses.absolute(), ROWS, regression_rows(lambda k, eta: eta + 0.5 * jax.random.normal(k, (FEW,)))),
    "sine": (SINE, NUMBER, lambda key: jax.random.uniform(key, (FEW,))),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"),
    [("logistic", "sdr"), ("logistic", "combined"), ("median", "combined"), ("sine", "dr"), ("sine", "combined")],
)
def test_intervals_cover_the_truth_as_often_as_they_say(name, method):
    loss, mechanism, simulate = CASES[name]
    truth = np.array([2 / np.pi]) if name == "sine" else np.array([0.3, 1.0, -2.0])
    options = {"dr": DoublyRandom(4), "sdr": SmoothedDoublyRandom(4), "combined": Combined(4)}
    estimator = Estimator(loss, mechanism, options[method], ldp.estimation.Box(-20.0, 20.0))
    replicates = 200
    covered = coverage(estimator, simulate, truth, replicates)
    low, high = binom.interval(1 - 0.01 / 3, replicates, 0.95)  # of 1 % for the three parameters of a regression
    assert np.all((covered >= low) & (covered <= high)), covered


def test_reweighing_that_overshoots_ends_at_its_fixed_point(x64):
    metric = np.array([1.0, 1e6])
    for factor, share in ((-3.7, 0.0), (-0.9, 0.0), (0.3, 0.3**2), (0.9, 0.9**2)):
        fixed, first = np.array([0.2, 5e-4]), np.array([1.2, -3e-4])
        second, third = (fixed + factor**k * (first - fixed) for k in (1, 2))
        want = fixed + share * (first - fixed)  # the third point where the map does not turn back
        np.testing.assert_allclose(_fixed_point(first, second, third, metric), want, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda r: ldp.m_estimate(losses.logistic(), r, "gmm"), ValueError, "method must be one of combined, dr"),
        (lambda r: ldp.m_estimate(losses.logistic(), r.values), TypeError, "an array only for method='oracle'"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, "oracle"), ValueError, "a release has none"),
        (lambda r: ldp.m_estimate(losses.absolute(), r, "sdr"), ValueError, "needs 4 derivatives of the loss"),
        (
            lambda r: ldp.m_estimate(losses.absolute(), r, "sl"),
            ValueError,
            r"use loss.smoothed\(width\)",
        ),
        pytest.param(
            lambda r: ldp.m_estimate(lambda x, t: jnp.abs(x[2] - x[0] * t), r, "sdr", start=0.5),
            ValueError,
            "has kinks or jumps",
            marks=pytest.mark.slow,  # as where a second derivative jumps
        ),
        (
            lambda r: ldp.m_estimate(lambda x, t: (x - t) ** 2, r, start=0.0),
            ValueError,
            r"must be a number, got an array",
        ),
        (
            lambda r: ldp.m_estimate(lambda x, t: jnp.log(x[0]) * t, r, start=1.0),
            ValueError,
            "the loss must be finite, but at the start it is nan for record",
        ),
        (lambda r: ldp.m_estimate(lambda x, t: t**2, r), ValueError, "start is needed"),
        (lambda r: ldp.m_estimate(3, r, start=0.0), TypeError, r"loss must be a function loss\(x, theta\)"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, start=np.zeros(5)), ValueError, "an array of 3 parameters"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, space=(0, 1)), TypeError, "space must be a Box or a Ball"),
        (
            lambda r: ldp.m_estimate(losses.logistic(), r, space=ldp.estimation.Box([-1] * 4, 1)),
            ValueError,
            "space is for 4 parameters, but this loss has 3",
        ),
        (
            lambda r: ldp.m_estimate(losses.logistic(), r, start=[0, 0, 3.0], space=ldp.estimation.Ball(0, 2)),
            ValueError,
            "start lies outside the space",
        ),
        (lambda r: ldp.m_estimate(losses.logistic, r), TypeError, r"write losses.logistic\(...\)"),
        (
            lambda r: ldp.m_estimate(losses.absolute("weight"), r),
            ValueError,
            "uses column 'weight', but the columns are age, income, ill",
        ),
        (lambda r: ldp.m_estimate(losses.absolute(3), r), ValueError, "uses column 3, but the columns are"),
        (
            lambda r: ldp.m_estimate(lambda x, t: (x[3] - t) ** 2, r, start=0.0),
            ValueError,
            "the loss uses an index that a record does not have: index 3 is out of bounds",
        ),
        (
            lambda r: ldp.m_estimate(losses.logistic(), released(r.values * [1, 1, 2])),
            ValueError,
            r"for responses between 0 and 1; column 2 has \d+ other values, the first \(2\) at",
        ),
        (lambda r: ldp.m_estimate(losses.hinge(), r), ValueError, "for responses -1 and 1; column 2 has"),
        (
            lambda r: ldp.m_estimate(losses.logistic(), released(r.values[:10]), **PLACED),
            ValueError,
            "10 records are too few for 3 parameters with method 'combined': more than 13 are needed",
        ),
        (lambda r: ldp.m_estimate(losses.huber(0.1), r, "sdr"), ValueError, "2 in the parameters, but this loss, or a"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, cuts=(np.nan,)), ValueError, "a sequence of finite numbers"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, cuts=(0.0, np.inf)), ValueError, "a sequence of finite"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, cuts=0.5), ValueError, "a sequence of finite numbers, got 0.5"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, draws=0), ValueError, "draws must be a positive integer"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, draws="exact"), ValueError, "one perturbed column, got 2"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, support=(1, 0)), ValueError, "lower bound must be below"),
        (lambda r: ldp.m_estimate(losses.logistic(), r, support="box"), ValueError, "support must be 'bounds', a pair"),
        (
            lambda r: ldp.m_estimate(
                losses.logistic(), released(np.full((4, 3), 0.4), scale=np.array([0.0, 1, 1, 1])), support=(-0.3, 0.3)
            ),
            ValueError,
            r"1 records without noise lie outside the support, the first \(.*\) at 0",
        ),
        (
            lambda r: ldp.m_estimate(losses.logistic(), r, starts=0),
            ValueError,
            "starts must be an integer of at",
        ),
        (lambda r: ldp.m_estimate(losses.logistic(), [[1.0, np.nan]], "oracle"), ValueError, "must be finite"),
        (
            lambda r: ldp.m_estimate(losses.logistic(), ldp.Release([0, 1], ldp.RandomizedResponse(1.0, 2))),
            TypeError,
            "m_estimate takes releases with additive noise, got RandomizedResponse; for others use ldpbayes.fit",
        ),
        (
            lambda r: ldp.m_estimate(losses.logistic(), ldp.Release([0.1], ldp.LaplaceMechanism(1.0, 0, 1))),
            ValueError,
            "method 'combined' is not for LaplaceMechanism; use 'sl' or 'independent'",
        ),
        (
            lambda r: ldp.m_estimate(
                losses.logistic(), ldp.Release(r.values, ldp.SymmetricLaplaceMechanism(0.4, -0.5, 0.5, 3, (0, 1))), "dr"
            ),
            ValueError,
            "method 'dr' is not for SymmetricLaplaceMechanism; use 'sl'",
        ),
        (lambda r: ldp.m_estimate(losses.logistic(), r).interval(1.0), ValueError, "level must be between 0 and 1"),
        (
            lambda r: ldp.m_estimate(losses.logistic(), r).bootstrap(1),
            ValueError,
            "draws must be an integer of at",
        ),
    ],
)
def test_bad_input_is_named(data, call, error, message):
    with pytest.raises(error, match=message):
        call(data[1])


@pytest.mark.slow
def test_a_quantile_of_numbers_under_laplace_noise_is_that_of_a_rounded_loss():
    """No method is for the loss itself, and the advice says so; the rounded one is within 5 standard errors.

    It is a quantile of the records and logistic noise of the width, whose distribution function is by quadrature.
    """
    mechanism, loss, width = ldp.LaplaceMechanism(10.0, lower=-5, upper=5), losses.pinball(0.9, features=()), 0.25
    x = np.random.default_rng(0).normal(1.0, 1.0, 4000)
    release = ldp.Release(np.clip(x, -5, 5) + np.random.default_rng(1).laplace(size=4000), mechanism)
    with pytest.raises(ValueError, match="use 'sl' or 'independent'"):
        ldp.m_estimate(loss, release)
    with pytest.raises(ValueError, match=r"biased; use loss.smoothed\(width\), .* ldpbayes.fit: no"):
        ldp.m_estimate(loss, release, "independent")
    space = ldp.estimation.Box(-9, 9)
    estimate = ldp.m_estimate(loss.smoothed(width), release, "sl", start=np.zeros(1), space=space)

    def below(quantile):
        return integrate.quad(lambda u: stats.norm.cdf(quantile - u, 1) * stats.logistic.pdf(u, scale=width), -9, 9)[0]

    expected = optimize.brentq(lambda quantile: below(quantile) - 0.9, -5, 9)
    assert abs(estimate.params[0] - expected) < 5 * estimate.standard_error[0]
    assert estimate.standard_error[0] < 0.15


@pytest.mark.parametrize("method", ["naive", pytest.param("sl", marks=pytest.mark.slow)])
def test_a_weight_in_a_column_counts_as_repeated_records_with_the_errors_of_weighted_regression(method):
    """Errors of original rows are HC1 of statsmodels."""
    rng = np.random.default_rng(0)
    # as many records as their weights add up to, so that the repeated records have the original ones' shape
    x, weight = rng.normal(size=400), rng.permutation(np.repeat([0, 1, 3], [160, 160, 80]))
    rows = np.column_stack([x, 1 + 0.5 * x + (1 + np.abs(x)) * rng.normal(size=400), weight])

    def loss(row, theta):
        return row[2] * (row[1] - theta[0] - theta[1] * row[0]) ** 2 / 2

    options = {"start": np.zeros(2), "space": ldp.estimation.Box(-9, 9)}
    original = ldp.m_estimate(loss, rows, "oracle", **options)
    wls = sm.WLS(rows[:, 1], sm.add_constant(x), weights=weight).fit(cov_type="HC1")
    np.testing.assert_allclose(original.params, wls.params, rtol=1e-8)
    np.testing.assert_allclose(original.standard_error, wls.bse, rtol=1e-8)
    mechanism = ldp.SymmetricLaplaceMechanism(1.0, [-4, -8], [4, 10], columns=("x", "y", "w"), perturbed=("x", "y"))
    released = rows.copy()
    released[:, :2] += np.sqrt(rng.exponential(size=(400, 1))) * rng.normal(size=(400, 2))
    repeated = np.repeat(released, weight, axis=0)
    repeated[:, 2] = 1
    one, other = (
        ldp.m_estimate(loss, ldp.Release(part, mechanism), method, **options) for part in (released, repeated)
    )
    np.testing.assert_allclose(one.params, other.params, rtol=1e-6)
