"""Shares from sums of bits: the estimates and errors of the reports, those of independent formulas, and coverage.

Statistical tests fix their seeds; each states the probability with which another seed fails.
"""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import optimize, stats

import ldpbayes as ldp
from ldpbayes._core.checks import ArgumentError
from ldpbayes.data import BitCounts
from ldpbayes.estimation.estimates import EstimationWarning
from ldpbayes.mechanisms import Rappor, UnaryEncoding

SUMS = [1801, 1631, 1458, 1471, 1365, 1364]
ENCODING = ldp.OptimalUnaryEncoding(epsilon=1.0, categories=6)
SHARES = np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.05])


def filters(rng, cohorts, categories, width, hashes):
    """Bits of values by random hash functions."""
    bits = np.zeros((cohorts, categories, width), np.uint8)
    for _ in range(hashes):
        places = rng.integers(width, size=(cohorts, categories))
        bits[np.arange(cohorts)[:, None], np.arange(categories), places] = 1
    return bits


def drawn_counts(rng, mechanism, persons, theta, unlisted=None):
    """Sums of bits of persons in random cohorts, bit for bit; `unlisted` are bits of further values of equal shares."""
    bits = np.asarray(mechanism.bits)
    if unlisted is not None:
        number = unlisted.shape[1]
        bits = np.concatenate([bits, unlisted], axis=1)
        theta = np.append(theta, np.full(number, (1 - theta.sum()) / number))
    f, p, q, times = mechanism.f, mechanism.p, mechanism.q, int(mechanism.reports)
    cohorts = rng.multinomial(persons, np.full(len(bits), 1 / len(bits)))
    sums = []
    for block, n in zip(bits, cohorts, strict=True):
        ones = (rng.multinomial(n, theta) @ block).astype(int)
        kept = rng.binomial(ones, 1 - f / 2) + rng.binomial(n - ones, f / 2)
        sums.append(rng.binomial(kept * times, q) + rng.binomial((n - kept) * times, p))
    return BitCounts(mechanism, sums, cohorts * times)


def test_sums_of_a_unary_encoding_give_what_the_reports_give():
    estimate = ldp.frequencies(BitCounts(ENCODING, SUMS, 5000))
    np.testing.assert_allclose(estimate.params, [0.39496, 0.24781, 0.09806, 0.10932, 0.01757, 0.01670], atol=5e-6)
    x = np.random.default_rng(0).choice(6, 3000, p=SHARES)
    for encoding in (ENCODING, UnaryEncoding(6, 0.75, 0.5), ldp.SymmetricUnaryEncoding(2.0, 6)):
        release = ldp.Release(encoding.randomize(jax.random.key(0), x), encoding)
        rows = ldp.frequencies(release)
        sums = ldp.frequencies(BitCounts(encoding, release.values.sum(axis=0, dtype=int), 3000))
        for name in ("params", "standard_error"):
            np.testing.assert_allclose(getattr(sums, name), getattr(rows, name), rtol=1e-10)
        np.testing.assert_allclose(sums.interval(0.9), rows.interval(0.9), rtol=1e-9)
        assert sums.privacy == rows.privacy
        projected = [ldp.frequencies(data, "projection").params for data in (release, BitCounts.of(release.sketch()))]
        np.testing.assert_allclose(*projected, atol=1e-10)
        # the covariance of the estimate of rows is that of their terms, with a relative error of (2/3000)**0.5
        error = np.sqrt(np.diagonal(rows.covariance))
        np.testing.assert_allclose(sums.covariance, rows.covariance, atol=0.1 * np.max(error) ** 2)
        assert sums.contrast({0: 1, 1: -1}).standard_error == pytest.approx(
            rows.contrast({0: 1, 1: -1}).standard_error, rel=0.05
        )


def test_sums_without_noise_are_counts():
    exact = ldp.frequencies(BitCounts(ldp.OptimalUnaryEncoding(np.inf, 3), [50, 30, 20], 100))
    np.testing.assert_allclose(exact.params, [0.5, 0.3, 0.2])
    np.testing.assert_allclose(exact.standard_error, np.sqrt([0.0025, 0.0021, 0.0016]))
    np.testing.assert_allclose(exact.covariance[0, 1], -0.0015)


def test_the_covariance_of_sums_is_that_of_the_bits_of_a_person_by_enumeration():
    """One cohort and as many bits as categories, so that the estimate is linear whatever the covariance is."""
    bits = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1]])
    mechanism, n = Rappor(bits, 2, p=0.4, q=0.8, f=0.3, reports=2), 10_000
    theta = np.array([0.5, 0.3, 0.2])
    means = np.where(bits, 0.85 * 0.8 + 0.15 * 0.4, 0.85 * 0.4 + 0.15 * 0.8)  # of a person of each category
    kept = 0.85 * 0.15 * 0.4**2 + np.where(bits, 0.85 * 0.16 + 0.15 * 0.24, 0.15 * 0.16 + 0.85 * 0.24) / 2
    of_person = np.diag(theta @ kept) + (means.T * theta) @ means - np.outer(theta @ means, theta @ means)
    inverse = np.linalg.inv(bits.T) / (0.7 * 0.4)
    counts = BitCounts(mechanism, np.round(2 * n * theta @ means), 2 * n)
    estimate = ldp.frequencies(counts)
    np.testing.assert_allclose(estimate.params, theta, atol=1e-4)
    np.testing.assert_allclose(estimate.covariance, inverse @ of_person @ inverse.T / n, rtol=1e-3, atol=1e-9)


def test_reports_of_cohorts_give_the_estimate_of_their_sums_and_sums_add():
    rng = np.random.default_rng(1)
    mechanism = Rappor(filters(rng, 3, 6, 16, 2), 2, p=0.25, q=0.75)
    x = rng.choice(6, 4000, p=SHARES)
    release = ldp.Release(mechanism.randomize(jax.random.key(1), x), mechanism, about={"levels": [*"abcdef"]})
    cohort, reports = release.values[:, 0], np.bincount(release.values[:, 0])
    sums = np.stack([release.values[cohort == c, 1:].sum(axis=0) for c in range(3)])
    estimate, of_sums = ldp.frequencies(release), ldp.frequencies(BitCounts(mechanism, sums, reports))
    np.testing.assert_allclose(estimate.params, of_sums.params, rtol=1e-12)
    assert estimate.names == [*"abcdef"] and np.all(np.abs(estimate.params - SHARES) < 5 * estimate.standard_error)
    halves = [ldp.Release(release.values[part], mechanism).sketch() for part in (slice(1500), slice(1500, None))]
    both = sum(map(BitCounts.of, halves))
    np.testing.assert_array_equal(both.sums, sums)
    assert "4,000 reports" in repr(both) and both.size == 4000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mechanism", "persons", "others"),
    [
        ("one report", {"p": 0.3, "q": 0.7}, 20_000, 0),
        ("little noise", {"p": 0.05, "q": 0.95}, 20_000, 0),
        ("memoised series", {"p": 0.5, "q": 0.75, "f": 0.5, "reports": 5}, 20_000, 0),
        ("few unlisted values", {"p": 0.3, "q": 0.7, "rest": True}, 400_000, 3),
        ("many unlisted values", {"p": 0.05, "q": 0.95, "rest": True}, 400_000, 100),
    ],
)
def test_intervals_of_candidates_cover_as_often_as_they_say(name, mechanism, persons, others):
    """Coverage of 90 % intervals of 20 candidates in 200 draws inside its 99 % band, with at least 1,000 independent
    ones among them.
    """
    rng = np.random.default_rng(2)
    mechanism = Rappor(filters(rng, 4, 20, 32, 2), 2, **mechanism)
    theta = np.r_[0.3, 0.2, 0.1, np.full(17, 0.4 / 17)] * (0.7 if others else 1.0)
    covered = []
    for _ in range(200):
        unlisted = filters(rng, 4, others, 32, 2) if others else None
        low, high = ldp.frequencies(drawn_counts(rng, mechanism, persons, theta, unlisted)).interval(0.9)
        covered.append((low[:20] <= theta) & (theta <= high[:20]))
    least, most = stats.binom.ppf([0.005, 0.995], 1000, 0.9) / 1000
    assert least <= np.mean(covered) <= most


def test_values_that_are_not_listed_are_noticed():
    rng = np.random.default_rng(4)
    theta, options = np.array([0.3, 0.2]), {"hashes": 2, "p": 0.25, "q": 0.75}
    bits, unlisted = filters(rng, 2, 2, 16, 2), filters(rng, 2, 4, 16, 2)
    counts = drawn_counts(rng, Rappor(bits, **options, rest=True), 50_000, theta, unlisted)
    rest = ldp.frequencies(counts)
    assert np.all(np.abs(rest.params - [0.3, 0.2, 0.5]) < 4 * rest.standard_error)
    with pytest.warns(EstimationWarning, match="if there are values that are not listed, give rest=True"):
        ldp.frequencies(BitCounts(Rappor(bits, **options), counts.sums, counts.reports))


def test_a_map_and_sums_from_elsewhere_are_doubted_or_refused():
    bits = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]])
    mechanism = Rappor(bits, 2, p=0.5, q=0.75)
    with pytest.raises(ValueError, match="cannot be told apart: a and c, b and d"):
        ldp.frequencies(BitCounts(mechanism, [600] * 4, 1000, about={"levels": [*"abcd"]}))
    with pytest.raises(ValueError, match=r"the 4 sums cannot identify the shares of 5 cat.*leave out categories"):
        ldp.frequencies(BitCounts(Rappor(np.eye(4), 1, 0.5, 0.75, rest=True), [600] * 4, 1000))
    with pytest.warns(EstimationWarning, match="100 of 1,000 have bit 0 .and 3 other kinds., where at least 500.0"):
        ldp.frequencies(BitCounts(Rappor(np.eye(4), 1, 0.5, 0.75), [100] * 4, 1000))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: BitCounts(ENCODING, SUMS, 1700), "1 sums are above the number of reports, the first (1801.0)"),
        (lambda: BitCounts(ENCODING, SUMS[:5], 5000), "sums must be of shape (6,), that of the mechanism's bits"),
        (lambda: BitCounts(ENCODING, [1.5] * 6, 5000), "sums must be whole numbers"),
        (lambda: BitCounts(ENCODING, [-1] * 6, 5000), "sums must be whole numbers"),
        (lambda: BitCounts(ENCODING, [np.nan] * 6, 5000), "sums must be whole numbers"),
        (lambda: BitCounts(ENCODING, SUMS, [5000, 1]), "reports must be 1 numbers of reports"),
        (lambda: BitCounts(ENCODING, [0] * 6, 0), "not all 0"),
        (lambda: BitCounts(ldp.SubsetSelection(1.0, 6), SUMS, 5000), "mechanism must be a unary encoding or Rappor"),
        (lambda: BitCounts(UnaryEncoding(6, [0.7, 0.6], 0.5), SUMS, 5000), "with one set of parameters for all"),
        (lambda: ldp.frequencies(BitCounts(ENCODING, SUMS, 5000, about={"levels": ["a"]})), "1 words for 6 categories"),
        (lambda: ldp.frequencies(BitCounts(ENCODING, SUMS, 5000), "mle"), "sums of bits take method='unbiased'"),
        (lambda: ldp.frequencies(BitCounts(ENCODING, SUMS, 5000), domain=[True]), "without a sampling design"),
        (lambda: BitCounts(ENCODING, SUMS, 5000) + BitCounts(UnaryEncoding(6, 0.7, 0.5), SUMS, 5000), "be added"),
        (
            lambda: ldp.frequencies(ldp.Release(None, Rappor([[1, 0], [0, 1]], 1, 0.4, 0.6), 5)),
            "no frequencies to estimate",
        ),
    ],
)
def test_bad_sums_are_refused_in_words(make, problem):
    with pytest.raises((ArgumentError, ValueError, TypeError)) as error:
        make()
    assert problem in str(error.value)


def test_sums_are_kept_in_files_and_have_no_posterior_of_records(tmp_path):
    mechanism = Rappor([[[1, 0], [0, 1]]] * 2, 1, p=0.25, q=0.75, f=0.25)
    counts = BitCounts(mechanism, [[30, 60], [50, 40]], [90, 80], about={"levels": ["a", "b"]})
    counts.save(tmp_path / "counts.npz")
    again = ldp.data.Sketch.load(tmp_path / "counts.npz")
    assert ldp.frequencies(again).params.tolist() == ldp.frequencies(counts).params.tolist()
    assert ldp.frequencies(again).names == ["a", "b"]
    with pytest.raises(AttributeError, match="sums of bits have no likelihood of single records"):
        ldp.fit(lambda data: ldp.observe("z", dist.Categorical(np.ones(2) / 2), data), counts)


def test_non_negative_least_squares_finds_the_largest_candidates():
    """Of the shares, at three standard errors of each: probability 0.02 that one of six is beyond them."""
    rng = np.random.default_rng(3)
    mechanism = Rappor(filters(rng, 8, 40, 64, 2), 2, p=0.5, q=0.75, rest=True)
    theta = np.r_[0.25, 0.2, 0.15, 0.1, 0.05, 0.02, np.zeros(34)]
    counts = drawn_counts(rng, mechanism, 200_000, theta, filters(rng, 8, 50, 64, 2))
    estimate = ldp.frequencies(counts)
    design = np.moveaxis(mechanism.bits, 1, 2).reshape(-1, 40).astype(float)
    target = (counts.sums / counts.reports[:, None] - 0.5).ravel() / 0.25
    design = np.column_stack([design, np.full(len(design), 1 - (1 - 1 / 64) ** 2)])
    reference = optimize.nnls(design, target)[0]
    assert np.argsort(-estimate.params[:40])[:5].tolist() == np.argsort(-reference[:40])[:5].tolist() == [0, 1, 2, 3, 4]
    assert np.all(np.abs(estimate.params[:6] - reference[:6]) < 3 * estimate.standard_error[:6])
    assert np.all(np.abs(estimate.params[:6] - theta[:6]) < 3 * estimate.standard_error[:6])
    assert estimate.names[-1] == "40"


def test_words_that_are_not_one_for_each_category_are_refused():
    encoding, sums = ldp.OptimalUnaryEncoding(1.0, 3), [60, 50, 40]
    with pytest.raises(ValueError, match="there are 2 words for 3 categories"):
        ldp.frequencies(BitCounts(encoding, sums, 100, about={"levels": ["a", "b"]}))
    assert ldp.frequencies(BitCounts(encoding, sums, 100, about={"levels": ["a", "b", "c"]})).names == ["a", "b", "c"]
