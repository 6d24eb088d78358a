"""Several reports of a person: the likelihood and the shares of joined reports by enumeration, errors of single ones.

Statistical tests fix their seeds, and state how often they would fail by chance with other seeds.
"""

import itertools
import warnings

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, optimize, stats

import ldpbayes as ldp
from ldpbayes.data import RepeatedAnswersWarning, SamplingDesign
from ldpbayes.data.release import part_of
from ldpbayes.mechanisms import AdditiveMechanism, Repeated, TransitionMatrix
from ldpbayes.noise import Gaussian

pytestmark = pytest.mark.usefixtures("x64")

THREE = TransitionMatrix([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
KEPT = TransitionMatrix([[0.8, 0.2], [0.3, 0.7]])
PERSONS = np.array(["b", "a", "b", "c", "a", "b", "d"])
ANSWERS = np.array([0, 2, 1, 1, 2, 0, 1])


def likelihood(theta, kept):
    """Of the answers of a person, by loops over the truth and the permanent answer."""
    keep = np.eye(2) if kept is None else np.asarray(kept.matrix)
    terms = []
    for person in dict.fromkeys(PERSONS):
        own = ANSWERS[person == PERSONS]
        pairs = itertools.product(range(2), range(2))
        terms.append(sum(theta[x] * keep[x, b] * np.prod([THREE.matrix[b, z] for z in own]) for x, b in pairs))
    return np.log(terms)


@pytest.mark.parametrize("kept", [None, KEPT])
def test_answers_of_a_person_are_about_one_truth(kept):
    release = ldp.Release(ANSWERS, THREE, persons=PERSONS, about={"levels": ["no", "yes", "?"]})
    joined, theta = release.by_person(kept), np.array([0.3, 0.7])
    assert joined.mechanism == Repeated(THREE, 3, kept) and joined.about == release.about and joined.times is None
    np.testing.assert_array_equal(joined.values, [[0, 1, 0], [2, 2, -1], [1, -1, -1], [1, -1, -1]])
    log_prob = ldp.Privatized(dist.Categorical(theta), joined.mechanism).log_prob(joined.values)
    np.testing.assert_allclose(log_prob, likelihood(theta, kept), rtol=1e-12)
    several = ldp.Release([*ANSWERS, np.nan], THREE, persons=[*PERSONS, "e"], missing="drop")
    np.testing.assert_array_equal(several.by_person().values, joined.values)


def test_the_promise_of_memorised_answers_is_that_of_the_permanent_step():
    daily, kept = ldp.RandomizedResponse(truth=0.75), ldp.RandomizedResponse(truth=0.8)
    release = ldp.Release(np.arange(6000) % 2, daily, persons=np.repeat([0, 1], 3000))
    assert release.guarantee.epsilon(0.0) == pytest.approx(3000 * np.log(3))
    joined = release.by_person(kept)
    assert joined.guarantee.epsilon(0.0) == pytest.approx(np.log(4), rel=1e-9)
    assert "3000 reports" in release.guarantee.statement() or "3,000 reports" in release.guarantee.statement()
    few = part_of(release, np.arange(10)).by_person(kept)
    assert few.promises == release.promises  # as a person has more reports elsewhere


def test_numbers_of_a_person_under_gaussian_noise_are_joined_without_loss():
    """Ratios of likelihoods of all reports, by quadrature over the record between the bounds and at them."""
    scales, persons, low, high = np.array([1.0, 2.0, 0.7, 1.5, 1.0]), [5, 5, 7, 5, 7], -1.0, 2.0
    z = np.array([0.3, 2.9, -1.7, 0.1, -0.4])
    joined = ldp.Release(z, AdditiveMechanism(Gaussian(scales), low, high), persons=persons).by_person()

    def of_person(rows, mean):
        law = stats.norm(mean, 1.2)

        def noise(x):
            return np.prod(stats.norm.pdf(z[rows], x, scales[rows]))

        inside = integrate.quad(lambda x: law.pdf(x) * noise(x), low, high, epsabs=0, epsrel=1e-12)[0]
        return inside + law.cdf(low) * noise(low) + law.sf(high) * noise(high)

    rows = [[0, 1, 3], [2, 4]]
    log_prob = [ldp.Privatized(dist.Normal(mean, 1.2), joined.mechanism).log_prob(joined.values) for mean in (0.1, 1.0)]
    expected = [np.log(of_person(row, 0.1)) - np.log(of_person(row, 1.0)) for row in rows]
    np.testing.assert_allclose(log_prob[0] - log_prob[1], expected, rtol=1e-10)
    equal = ldp.Release(z, ldp.GaussianMechanism(1.0, 1e-6, low, high), persons=[1, 1, 1, 1, 2])
    several, each = equal.by_person().guarantee.epsilon(1e-6), equal.guarantee.epsilon(1e-6)
    np.testing.assert_allclose(np.max(several), each, rtol=1e-9)


def test_shares_from_rows_of_answers_are_unbiased_with_their_exact_variance():
    """From as many rows of each kind as expected, some with missing answers; sums over all rows."""
    panel, theta, people = Repeated(THREE, 3, KEPT), np.array([0.3, 0.7]), 1e6
    rows = np.array([*itertools.product(range(-1, 3), repeat=3)])
    answers = np.sum(rows >= 0, axis=1)
    laws = np.array([[np.prod([law[z] for z in row if z >= 0]) for law in THREE.matrix] for row in rows])
    laws = 0.2 ** (3 - answers) * 0.8**answers * (laws @ np.asarray(KEPT.matrix).T @ theta)
    assert laws.sum() == pytest.approx(1.0)
    sketch = ldp.data.CountSketch(panel, rows, people * laws)
    estimate = ldp.frequencies(sketch)
    np.testing.assert_allclose(estimate.params, theta, rtol=1e-12)
    even = np.mean(KEPT.matrix @ THREE.matrix, axis=0)
    inverse = np.linalg.pinv((KEPT.matrix @ THREE.matrix) / np.sqrt(even)) / np.sqrt(even)[:, None]  # (answers, k)
    inverse = np.vstack([inverse, [0.0, 0.0]])
    some, n = answers > 0, people * laws[answers > 0].sum()
    means = inverse[rows[some]].sum(axis=1) / answers[some, None] - theta
    covariance = (means.T * laws[some] / laws[some].sum()) @ means / (n - 1)
    np.testing.assert_allclose(estimate.covariance, covariance, rtol=1e-5)  # n − 1 of those who answered, or of all
    likeliest = ldp.frequencies(sketch, "mle", tolerance=1e-10)
    np.testing.assert_allclose(likeliest.params, theta, rtol=1e-5)
    with pytest.raises(ValueError, match="pure protocol"):
        ldp.frequencies(sketch, "base_cut")
    assert estimate.privacy == likeliest.privacy == panel.guarantee.statement()


@pytest.mark.slow
def test_maximum_likelihood_from_rows_of_answers_is_that_of_a_search():
    panel = Repeated(THREE, 3, KEPT)
    x = np.random.default_rng(0).integers(0, 5, 400) > 2
    rows = np.asarray(panel.randomize(jax.random.key(0), x), float)
    rows[np.random.default_rng(1).random(rows.shape) < 0.3] = np.nan
    release = ldp.Release(rows, panel)
    likelihoods = np.exp(panel.log_probs(release.values))

    def loss(share):
        return -np.sum(np.log(likelihoods @ [1 - share, share]))

    best = optimize.minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-10}).x
    curvature = np.sum((np.diff(likelihoods).ravel() / (likelihoods @ [1 - best, best])) ** 2)
    for data in (release, release.sketch()):
        estimate = ldp.frequencies(data, "mle", tolerance=1e-12)
        assert estimate.params[1] == pytest.approx(best, abs=1e-6)
        assert estimate.standard_error[1] == pytest.approx(curvature**-0.5, rel=1e-5)
    survey = ldp.frequencies(release, sampling=SamplingDesign(np.ones(400)))
    np.testing.assert_allclose(survey.standard_error, ldp.frequencies(release).standard_error, rtol=1e-10)


def test_standard_errors_of_single_answers_allow_for_answers_of_one_person():
    """The variance of a mean of sums over persons; without persons, too small, and warned of."""
    rng, daily = np.random.default_rng(0), ldp.RandomizedResponse(truth=0.75)
    persons = np.repeat(np.arange(300), rng.integers(1, 8, 300))
    answers = (rng.random(persons.size) < np.where(rng.random(300) < 0.3, 0.75, 0.25)[persons]).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate = ldp.frequencies(ldp.Release(answers, daily, persons=persons))
        numbers = answers + rng.normal(size=persons.size)
        rows = ldp.Release(numbers, AdditiveMechanism(Gaussian(1.0), 0, 1), persons=persons)
        mean = ldp.m_estimate(ldp.losses.squared(features=()), rows, "naive")
    terms = (answers - 0.25) / 0.5
    sums = np.bincount(persons, terms - terms.mean())
    assert estimate.params[1] == pytest.approx(terms.mean())
    assert estimate.standard_error[1] == pytest.approx(np.sqrt(300 / 299 * sums @ sums) / terms.size)
    sums = np.bincount(persons, numbers - numbers.mean())
    assert mean.standard_error[0] == pytest.approx(np.sqrt(300 / 299 * sums @ sums) / terms.size)
    with pytest.warns(RepeatedAnswersWarning, match="give the person of each value"):
        alone = ldp.frequencies(ldp.Release(answers, daily, times=7))
    assert alone.standard_error[1] < 0.8 * estimate.standard_error[1]
    with pytest.warns(RepeatedAnswersWarning):
        ldp.frequencies(ldp.Release(answers, daily, persons=persons), "base_cut")
    with pytest.warns(RepeatedAnswersWarning):  # of one person alone
        ldp.frequencies(ldp.Release(answers[:20], daily, persons=[1] * 20))
    both = [
        ldp.Release(answers, daily, persons=persons),
        ldp.Release(rng.integers(0, 2, persons.size), daily, persons=persons),
    ]
    table = ldp.frequencies(both)
    assert table.contrast([0, 0, 1, 1]).standard_error == pytest.approx(estimate.standard_error[1], rel=1e-9)
    with pytest.warns(RepeatedAnswersWarning):
        ldp.frequencies([ldp.Release(answers, daily, times=7), both[1]])
    with pytest.raises(ValueError, match="reports of a person must be in one cluster"):
        design = SamplingDesign(np.ones(persons.size), clusters=np.arange(persons.size) % 50)
        ldp.frequencies(ldp.Release(answers, daily, persons=persons), sampling=design)


@pytest.mark.slow
def test_intervals_from_memorised_answers_cover():
    """90 % intervals for 200 data sets: the number that cover lies in a band of probability 99 % for each of three."""
    people, theta, daily, kept = 400, 0.3, ldp.RandomizedResponse(truth=0.7), ldp.RandomizedResponse(truth=0.85)
    rng, covered, grid = np.random.default_rng(0), np.zeros(3), np.linspace(0, 1, 2001)
    reported = 0.15 + 0.7 * theta  # share of permanent answers yes, which the answers alone are about
    for _ in range(200):
        persons = np.repeat(np.arange(people), rng.permutation(np.arange(people) % 14 + 1))
        truth = rng.random(people) < theta
        permanent = np.where(rng.random(people) < 0.85, truth, ~truth)[persons]
        answers = np.where(rng.random(persons.size) < 0.7, permanent, ~permanent).astype(int)
        release = ldp.Release(answers, daily, persons=persons)
        joined = release.by_person(kept).sketch()
        likelihoods = np.exp(joined.mechanism.log_probs(joined.nodes))
        logs = joined.weights @ np.log(likelihoods @ np.stack([1 - grid, grid]))
        cdf = np.cumsum(np.exp(logs - logs.max()))
        low, high = np.interp([0.05, 0.95], cdf / cdf[-1], grid)
        covered[0] += low <= theta <= high
        for row, data, target in ((1, joined, theta), (2, release, reported)):
            low, high = np.array(ldp.frequencies(data).interval(0.9))[:, 1]
            covered[row] += low <= target <= high
    few, many = stats.binom.ppf([0.005, 0.995], 200, 0.9)
    assert np.all((covered >= few) & (covered <= many)), covered


@pytest.mark.parametrize(
    ("release", "permanent", "error", "message"),
    [
        (ldp.Release([0, 1], THREE), None, ValueError, "needs a release with persons="),
        (ldp.Release([0, 1], THREE, persons=[1, 1]), ldp.RandomizedResponse(1.0, 3), ValueError, "as categories"),
        (ldp.Release([0.5, 1], ldp.LaplaceMechanism(1.0, 0, 1), persons=[1, 1]), None, TypeError, "one matrix"),
        (ldp.Release([0.5, 1], ldp.GaussianMechanism(1.0, 1e-6, 0, 1), persons=[1, 1]), KEPT, ValueError, "permanent"),
        (ldp.Release([0, 1], ldp.RandomizedResponse([1.0, 2.0]), persons=[1, 1]), None, TypeError, "one matrix"),
    ],
)
def test_what_cannot_be_joined_is_refused(release, permanent, error, message):
    with pytest.raises(error, match=message):
        release.by_person(permanent)


def test_the_reports_of_persons_that_are_rows_have_what_there_is_and_else_clear_errors():
    sketch = ldp.mechanisms.CountMeanSketch(3.0, 20, 4, 16)
    values = jax.jit(sketch.randomize)(jax.random.key(0), np.arange(600) % 20)
    release = ldp.Release(values, sketch, persons=np.arange(600) // 2)
    with pytest.warns(RepeatedAnswersWarning):
        unbiased = ldp.frequencies(release)
    np.testing.assert_array_equal(unbiased.params, ldp.frequencies(ldp.Release(values, sketch)).params)
    with pytest.raises(ValueError, match=r"by_person needs codes, or numbers .*; count_mean_sketch releases rows"):
        release.by_person()


def test_a_category_that_no_answer_supports_has_the_error_of_the_mechanism():
    mechanism, persons = ldp.OptimalUnaryEncoding(4.0, 30), np.arange(40) // 2
    rows = np.zeros((40, 30), np.uint8)
    rows[:, 0] = 1
    p, q = mechanism.support_probabilities
    error = ldp.frequencies(ldp.Release(rows, mechanism, persons=persons)).standard_error
    np.testing.assert_allclose(error[1:], np.sqrt(q * (1 - q) / 40) / (p - q), rtol=1e-6)
