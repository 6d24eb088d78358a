"""Mechanisms for regressions: what they take, what they release, and that their promise is exact."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.privacy import gaussian_scale, linear_sensitivity, logistic_sensitivity
from tests.programs import call, randomize

pytestmark = pytest.mark.usefixtures("x64")

NAMES = ("a", "b", "y")
LINEAR = ldp.mechanisms.LinearRecordsMechanism(1.5, 1e-4, radius=2.0, response_bound=3.0, columns=NAMES, split=0.3)
LOGISTIC = ldp.mechanisms.LogisticRecordsMechanism(1.5, 1e-4, radius=2.0, columns=NAMES, split=0.4)
SUMS = ldp.mechanisms.LinearStatisticsMechanism(
    1.5, 1e-4, radius=2.0, response_bound=3.0, columns=NAMES, ratios=(1, 2, 3)
)
LABELLED = ldp.mechanisms.LogisticStatisticsMechanism(1.5, 1e-4, radius=2.0, columns=NAMES, ratios=(2, 1))
EVERY = [LINEAR, LOGISTIC, SUMS, LABELLED]
each = pytest.mark.parametrize("mechanism", EVERY, ids=lambda m: m.name)


def records(n=6, label=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    x *= 2 * rng.uniform(size=(n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    return np.column_stack([x, rng.integers(0, 2, n) if label else rng.uniform(-3, 3, n)])


@each
def test_specs_survive_json_and_files(mechanism, tmp_path):
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    rows = records(label=mechanism in (LOGISTIC, LABELLED))
    given = mechanism.statistics(rows) if hasattr(mechanism, "statistics") else rows
    release = ldp.Release(randomize(mechanism, given), mechanism)
    release.save(tmp_path / "z.npz")
    again = ldp.Release.load(tmp_path / "z.npz")
    assert again.mechanism == mechanism
    np.testing.assert_array_equal(again.values, release.values)


def test_noise_in_columns_of_different_scales_is_drawn_as_its_density_says():
    law = noise.IndependentGaussian([0.5, 2.0])
    draws = np.asarray(jax.jit(lambda key: law.sample(key, (20_000, 2), float))(jax.random.key(1)))
    for column, scale in enumerate((0.5, 2.0)):
        assert stats.kstest(draws[:, column] / scale, "norm").pvalue > 1e-4  # one seed in 10,000 fails each
    want = stats.norm(scale=[0.5, 2.0]).logpdf(draws[:5]).sum(axis=1)
    np.testing.assert_allclose(call("log_prob", law, draws[:5]), want, rtol=1e-12)
    assert law.tradeoff(np.array([1.0, 3.0])).mu == pytest.approx(2.5)  # 1/0.5 and 3/2 at a right angle
    mechanism = ldp.mechanisms.AdditiveMechanism(law, [-1, 0], [1, 9], columns=3, perturbed=(0, 2))
    x = np.array([0.3, 7.0, 99.0])
    z = randomize(mechanism, np.broadcast_to(x, (20_000, 3)), seed=2)
    assert np.all(z[:, 1] == 7) and stats.kstest((z[:, 2] - 9) / 2, "norm").pvalue > 1e-4
    assert ldp.mechanisms.mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    np.testing.assert_allclose(call("moments", mechanism, x)[1], [0.25, 0, 4])
    with pytest.raises(ValueError, match="noise with 2 standard deviations is for 2 columns, not for 3 perturbed"):
        ldp.mechanisms.AdditiveMechanism(law, -1, 1, columns=3)


def test_noise_without_bounds_promises_nothing_and_says_so():
    mechanism = ldp.mechanisms.AdditiveMechanism(noise.IndependentGaussian([1.0, 2.0]), columns=2, sensitivity=np.inf)
    assert mechanism.guarantee.statement() == "No record is protected: the budget is infinite."
    assert mechanism.guarantee.delta(3.0) == 1


def test_a_split_budget_keeps_the_promise_exactly_for_the_farthest_records():
    # μ² of both parts add up to that of (epsilon, delta)
    x, y = LINEAR.noise.standard_deviations[[0, -1]]
    mu = np.hypot(2 * 2.0 / x, 2 * 3.0 / y)
    assert mu == pytest.approx(1 / gaussian_scale(1.5, 1e-4), rel=1e-12)
    assert (6 / y) ** 2 == pytest.approx(0.3 * mu**2)
    assert LINEAR.guarantee.epsilon(1e-4) == pytest.approx(1.5, abs=1e-9)
    np.testing.assert_allclose(LINEAR.noise.tradeoff(np.array([4.0, 0, 6.0])).mu, mu)


def test_gaussian_noise_beside_randomized_response_keeps_the_promise_exactly():
    # the hockey stick of the released row, integrated over the covariate in which the records differ and both labels
    e, p = 1.5, 1 / (1 + np.exp(-LOGISTIC.response_epsilon))
    far = stats.norm([[2.0], [-2.0]], LOGISTIC.standard_deviation)

    def excess(z, label):
        first, second = far.pdf(z)[:, 0]
        return max((p if label else 1 - p) * first - np.exp(e) * (1 - p if label else p) * second, 0.0)

    # excess is positive beyond the point where the likelihood ratio is exp(e)
    delta = 0.0
    for label in (0, 1):
        start = (e + (1 - 2 * label) * LOGISTIC.response_epsilon) * LOGISTIC.standard_deviation**2 / 4
        delta += integrate.quad(
            excess, start, start + 40 * LOGISTIC.standard_deviation, (label,), epsabs=1e-15, limit=200
        )[0]
    assert delta == pytest.approx(1e-4, rel=1e-7)
    assert LOGISTIC.guarantee.delta(e) == pytest.approx(1e-4, rel=1e-9)
    # less noise than where the parts are composed as if their worst outcomes coincided
    assert LOGISTIC.standard_deviation < 4 * gaussian_scale(1.5 - LOGISTIC.response_epsilon, 1e-4)


def test_an_attribute_is_hidden_as_its_worst_one_is():
    for split in (0.5, 0.9):
        mechanism = ldp.mechanisms.LogisticRecordsMechanism(4.0, 1e-6, 1.0, 3, split)
        attribute, keep = mechanism.attribute_guarantee, 1 / (1 + np.exp(-4.0 * split))
        # a label that is said to be 1 is so with probability `keep`; the false alarms that are left are used at random
        alarms = min(0.05, 1 - keep)
        label = alarms * keep / (1 - keep) + (0.05 - alarms) * (1 - keep) / keep
        power = 1 - attribute.tradeoff(0.05)  # 36.9 % and 97.4 %; covariates give 1e-6 away at an epsilon of 4
        assert label - 1e-12 < power < label + 1e-5
        covariate = normal_delta(2 / mechanism.standard_deviation, 3.9)
        assert attribute.delta(3.9) == pytest.approx(covariate, rel=1e-9)
        assert attribute.delta(0.0) >= 2 * keep - 1
        assert attribute.epsilon(0.0) == np.inf and mechanism.guarantee.tradeoff(0.05) < attribute.tradeoff(0.05)
    # not the widest column, but the one with the least noise for its width
    rows = ldp.mechanisms.AdditiveMechanism(noise.IndependentGaussian([1.0, 0.1]), [0.0, 0.0], [2.0, 1.0], columns=2)
    np.testing.assert_allclose(rows.attribute_guarantee.delta([0.0, 9.0]), normal_delta(10.0, np.array([0.0, 9.0])))


def normal_delta(mu, epsilon):
    """Power less exp(epsilon) times level of the best test between normal laws so far apart."""
    return stats.norm.sf(epsilon / mu - mu / 2) - np.exp(epsilon) * stats.norm.sf(epsilon / mu + mu / 2)


def test_statistics_are_products_in_the_order_of_their_names():
    rows = np.array([[1.0, -0.5, 3.0]])
    assert SUMS._columns.names == ("a*a", "b*b", "a*b", "a*y", "b*y", "y*y")
    np.testing.assert_allclose(SUMS.statistics(rows), [[1, 0.25, -0.5 * np.sqrt(2), 3, -1.5, 9]])
    once = dataclasses.replace(SUMS, off_diagonal="once")
    np.testing.assert_allclose(once.statistics(rows)[:, 2], -0.5)
    for zero in (0, -1):
        rows[0, 2] = zero
        np.testing.assert_allclose(LABELLED.statistics(rows), [[1, 0.25, -0.5 * np.sqrt(2), -1, 0.5]])
    np.testing.assert_allclose(jax.jit(LABELLED.statistics)(rows), LABELLED.statistics(rows))


def test_noise_of_statistics_is_that_of_the_exact_sensitivity():
    unit = gaussian_scale(1.5, 1e-4)
    assert SUMS.standard_deviation == pytest.approx(linear_sensitivity(2, 2.0, 3.0, (1, 2, 3)) * unit)
    np.testing.assert_allclose(SUMS.noise.standard_deviations, SUMS.standard_deviation * np.array([1, 1, 1, 2, 2, 3]))
    assert LABELLED.standard_deviation == pytest.approx(logistic_sensitivity(2, 2.0, (2, 1)) * unit)
    np.testing.assert_allclose(
        LABELLED.noise.standard_deviations, LABELLED.standard_deviation * np.array([1, 1, 1, 0.5, 0.5])
    )


def test_the_trust_model_says_whose_noise_is_in_a_sum():
    of_all = SUMS.total(400)
    np.testing.assert_allclose(of_all.noise.standard_deviations, 20 * SUMS.noise.standard_deviations)
    assert of_all.guarantee.trust_model == "local" and of_all.guarantee.epsilon(1e-4) == pytest.approx(1.5, abs=1e-9)
    central = dataclasses.replace(SUMS, trust_model="central", count=400)
    np.testing.assert_allclose(central.noise.standard_deviations, SUMS.noise.standard_deviations)
    assert "two data sets that differ in one record" in central.guarantee.statement()
    for summed in (of_all, central):
        with pytest.raises(ValueError, match="total needs a local mechanism that releases each record separately"):
            summed.total(3)


@each
def test_records_outside_the_bounds_are_refused_or_clipped_when_asked_for(mechanism):
    rows = records(label=mechanism in (LOGISTIC, LABELLED))
    rows[1, :2] = [3.0, 4.0]

    def take(mechanism, rows):
        if hasattr(mechanism, "statistics"):
            return mechanism.statistics(rows)
        # in one program, which knows the rows and refuses some
        return jax.jit(lambda key: mechanism.randomize(key, rows))(jax.random.key(0))

    with pytest.raises(ValueError, match=r"1 of 6 rows exceed radius = 2, up to 5: scale .* clip them, .* at 1"):
        take(mechanism, rows)
    inside = rows.copy()
    inside[1, :2] = [1.2, 1.6]
    clipping = dataclasses.replace(mechanism, clip=True)
    np.testing.assert_allclose(take(clipping, rows), take(mechanism, inside), rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda r: take(clipping, r))(rows), take(clipping, rows), rtol=1e-12)
    for bad, message in ((rows[:, :2], "must have 3 columns, the response last"), (rows * np.nan, "missing values")):
        with pytest.raises(ValueError, match=message):
            take(clipping, bad)
    rows = inside
    rows[2, 2] = 4.0
    if mechanism in (LINEAR, SUMS):
        with pytest.raises(ValueError, match="1 of 6 rows exceed response_bound = 3, up to 4: scale"):
            take(mechanism, rows)
        inside[2, 2] = 3.0
        np.testing.assert_allclose(take(clipping, rows), take(mechanism, inside), rtol=1e-12)
    else:
        with pytest.raises(ValueError, match=r"labels must be 0 and 1 \(or -1 and 1\)"):
            take(clipping, rows)


def test_columns_of_a_data_frame_are_taken_by_their_names():
    pandas = pytest.importorskip("pandas")
    rows = records()
    frame = pandas.DataFrame(rows, columns=list(NAMES))[["y", "b", "a"]]
    np.testing.assert_array_equal(SUMS.statistics(frame), SUMS.statistics(rows))
    both = jax.jit(lambda key: [LINEAR.randomize(key, each) for each in (frame, rows)])(jax.random.key(0))
    np.testing.assert_array_equal(*both)
    with pytest.raises(ValueError, match="the mechanism's columns are a, b, y; got"):
        SUMS.statistics(frame.rename(columns={"a": "c"}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataclasses.replace(LINEAR, split=1.0), "split must be between 0 and 1, exclusive, got 1.0"),
        (
            lambda: dataclasses.replace(LOGISTIC, split=0.0),
            "split must be a number between 0 and 1, exclusive, got 0.0",
        ),
        (lambda: dataclasses.replace(LINEAR, radius=-1.0), "radius must be positive"),
        (lambda: dataclasses.replace(LINEAR, columns=1), "columns must be at least two, covariates"),
        (lambda: dataclasses.replace(SUMS, ratios=(1, 2)), "ratios must be 3 numbers, one for each block"),
        (lambda: dataclasses.replace(SUMS, trust_model="nobody"), "trust_model must be one of local, central"),
        (lambda: dataclasses.replace(SUMS, count=0), "count must be a whole number of records, at least 1"),
        (lambda: ldp.Release([[0.0, 0.0, 0.5]], LOGISTIC), "released labels, 0 or 1; 1 are not"),
    ],
)
def test_bad_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_statistics_that_no_records_could_have_are_reported_and_kept():
    n = 10_000
    central = dataclasses.replace(SUMS, trust_model="central", count=n)
    fair = n * np.array([1.0, 1.0, 0.2, 0.5, 0.5, 2.0])
    assert ldp.Release([fair], central).doubts == ()
    for place, value, message in (
        (0, -0.1 * n, r"a\*a: 1 of 1 lie .* below the lower bound 0"),
        (5, 9.5 * n, r"y\*y: 1 of 1 lie .* above the upper bound 90000"),
        (2, 1.6 * n, "the matrix of second moments has an eigenvalue"),
    ):
        wrong = fair.copy()
        wrong[place] = value
        with pytest.warns(ldp.data.ReleaseWarning, match=message):
            assert ldp.Release([wrong], central).values[0, place] == value
    wrong = fair.copy()
    wrong[:2] = 2.5 * n  # each is possible, both are not
    with pytest.warns(ldp.data.ReleaseWarning, match="the covariates' squares together"):
        ldp.Release([wrong], central)


@each
def test_parameters_are_leaves_that_a_function_can_be_traced_and_mapped_over(mechanism):
    rows = records(label=mechanism in (LOGISTIC, LABELLED))
    given = mechanism.statistics(rows) if hasattr(mechanism, "statistics") else rows
    z = randomize(mechanism, given)

    def density(mechanism, z):
        return mechanism.log_prob(z, given).sum()

    known = call("log_prob", mechanism, z, given).sum()
    assert np.isfinite(known)
    twice = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), mechanism)
    np.testing.assert_allclose(jax.jit(jax.vmap(density, (0, None)))(twice, z), [known] * 2, rtol=1e-12)


def test_by_default_it_does_not_matter_in_which_units_the_columns_are():
    rows, plain = records(), dataclasses.replace(SUMS, ratios=None)
    assert plain.ratios == (1.0, 1.5, 2.25)
    large = dataclasses.replace(plain, radius=2e3, response_bound=3e-2, ratios=None)
    noisy = [mechanism.statistics(rows * unit) for mechanism, unit in ((plain, 1), (large, [1e3, 1e3, 1e-2]))]
    ratio = noisy[1] / noisy[0]
    np.testing.assert_allclose(large.noise.standard_deviations / plain.noise.standard_deviations, ratio[0], rtol=1e-9)
    assert dataclasses.replace(LABELLED, ratios=None).ratios == (1.0, 0.5)
