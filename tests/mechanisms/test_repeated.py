"""Several randomized answers of each person: density, likelihood and guarantee by enumeration, and missing answers.

Statistical tests fix their seeds and fail by chance with probability 1e-6 when a seed is changed.
"""

import itertools

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.mechanisms import Crosswise, Repeated, TransitionMatrix, mechanism_from_spec
from ldpbayes.privacy import FiniteTradeoff

pytestmark = pytest.mark.usefixtures("x64")

THREE = TransitionMatrix([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
PERMANENT = TransitionMatrix([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]])
PANELS = {
    "independent": Repeated(THREE, 3),
    "permanent": Repeated(THREE, 3, PERMANENT),
    "binary": Repeated(ldp.RandomizedResponse(truth=0.75), 4, ldp.RandomizedResponse(truth=0.9)),
    "one": Repeated(Crosswise(0.2), 1),
}


def enumerated(panel):
    """All rows of answers, some missing, and their probabilities given each category, by sums and products."""
    inner = np.asarray(panel.mechanism.matrix)
    kept = np.eye(len(inner)) if panel.permanent is None else np.asarray(panel.permanent.matrix)
    rows = np.array([*itertools.product(range(-1, inner.shape[1]), repeat=panel.times)])
    products = [[np.prod([law[z] for z in row if z >= 0]) for law in inner] for row in rows]
    return rows, np.array(products) @ kept.T


@pytest.mark.parametrize(
    "name", ["permanent", *(pytest.param(name, marks=pytest.mark.slow) for name in PANELS if name != "permanent")]
)
def test_density_likelihood_and_guarantee_are_those_of_all_rows(name):
    panel = PANELS[name]
    rows, laws = enumerated(panel)
    k = panel.categories
    np.testing.assert_allclose(np.exp(panel.log_prob(rows[:, None], np.arange(k))), laws, rtol=1e-12)
    theta = np.arange(1, k + 1) / np.sum(np.arange(1, k + 1))
    base = dist.Categorical(theta)
    np.testing.assert_allclose(np.exp(ldp.Privatized(base, panel).log_prob(rows)), laws @ theta, rtol=1e-12)
    whole = (rows >= 0).all(axis=1)
    budgets, exact = np.linspace(0, 8, 17), FiniteTradeoff(laws[whole].T / laws[whole].T.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(panel.guarantee.delta(budgets), exact.delta(budgets), atol=1e-12)


@pytest.mark.slow
def test_a_sketch_counts_answers_and_misses_nothing():
    panel = PANELS["permanent"]
    x = np.random.default_rng(1).integers(0, 3, 400)
    rows = np.asarray(panel.randomize(jax.random.key(1), x)).astype(float)
    rows[np.random.default_rng(2).random(rows.shape) < 0.3] = np.nan
    release = ldp.Release(rows, panel)
    assert (release.values == -1).sum() == np.isnan(rows).sum()
    sketch, base = release.sketch(), dist.Categorical(np.array([0.2, 0.3, 0.5]))
    of_nodes = ldp.Privatized(base, sketch.mechanism).log_prob(sketch.nodes) @ sketch.weights
    assert len(sketch.nodes) <= 20  # as many as counts of up to three answers
    assert float(of_nodes) == pytest.approx(
        float(ldp.Privatized(base, panel).log_prob(release.values).sum()), rel=1e-12
    )


def test_draws_have_the_law_of_rows():
    """Chi-square at 1e-6 a category."""
    panel = PANELS["permanent"]
    rows, laws = enumerated(panel)
    rows, laws = rows[(rows >= 0).all(axis=1)], laws[(rows >= 0).all(axis=1)]
    draws = np.asarray(panel.randomize(jax.random.key(2), np.repeat([0, 1, 2], 20_000))) @ [9, 3, 1]
    for category, codes in enumerate(draws.reshape(3, -1)):
        counts = np.bincount(codes, minlength=27)[rows @ [9, 3, 1]]
        assert stats.chisquare(counts, 20_000 * laws[:, category]).pvalue > 1e-6


def test_the_guarantee_of_many_answers_is_composed_or_that_of_the_permanent_step():
    answer, kept = ldp.RandomizedResponse(truth=0.6), ldp.RandomizedResponse(truth=0.9)
    assert Repeated(THREE, 400).guarantee.epsilon(0.0) == pytest.approx(400 * float(THREE.guarantee.epsilon(0.0)))
    assert float(Repeated(answer, 9000, kept).guarantee.epsilon(0.0)) == pytest.approx(np.log(9), rel=1e-9)
    faint, kept_well = ldp.RandomizedResponse(0.1, 10), ldp.RandomizedResponse(2.0, 10)
    assert float(Repeated(faint, 6, kept_well).guarantee.epsilon(0.0)) == pytest.approx(0.6)  # six answers tell less
    few = [float(Repeated(answer, times, kept).guarantee.epsilon(0.0)) for times in (1, 5, 50)]
    assert few == sorted(few) and few[0] < few[2] < np.log(9)


@pytest.mark.parametrize(("truth", "times"), [(0.6, 350), (0.6, 4999), (0.9, 140), (0.9, 800)])
def test_the_guarantee_of_long_panels_loses_no_small_probabilities(truth, times):
    """Pure epsilon is that of the row of `times` equal answers, however rare it is."""
    panel = Repeated(ldp.RandomizedResponse(truth=truth), times)
    assert float(panel.guarantee.epsilon(0.0)) == pytest.approx(times * np.log(truth / (1 - truth)), rel=1e-9)


def test_a_plan_knows_what_more_answers_tell():
    """The information of rows of answers about a share, by the sum over all rows."""
    panel = PANELS["binary"]
    rows, laws = enumerated(panel)
    laws = laws[(rows >= 0).all(axis=1)]
    variance = 1 / np.sum((laws[:, 1] - laws[:, 0]) ** 2 / (laws @ [0.7, 0.3]))
    planned = ldp.studies.design(dist.Bernoulli, {"probs": 0.3}, panel).standard_errors(100)
    assert planned["Repeated"][0] == pytest.approx(np.sqrt(variance / 100), rel=1e-9)


@pytest.mark.slow
def test_a_memorised_panel_with_missing_days_finds_the_share():
    """Posterior of a flat prior: its width is that of the expected information, within 3 %, seven times the error of a
    sum of so many rows; its mean is within 4.9 widths of the truth.
    """
    panel, people, theta, absent = PANELS["binary"], 20_000, 0.3, 0.25
    rng = np.random.default_rng(7)
    z = np.asarray(panel.randomize(jax.random.key(7), (rng.random(people) < theta).astype(int)), float)
    z[rng.random(z.shape) < absent] = np.nan
    sketch, grid = ldp.Release(z, panel).sketch(), np.linspace(0.2, 0.4, 401)
    logs = ldp.Privatized(dist.Bernoulli(grid[:, None]), panel).log_prob(sketch.nodes) @ sketch.weights
    posterior = np.exp(logs - logs.max())
    posterior /= posterior.sum()
    mean = posterior @ grid
    width = np.sqrt(posterior @ (grid - mean) ** 2)
    rows, laws = enumerated(panel)
    patterns = np.prod(np.where(rows < 0, absent, 1 - absent), axis=1)
    information = people * patterns @ ((laws[:, 1] - laws[:, 0]) ** 2 / (laws @ [1 - theta, theta]))
    assert width == pytest.approx(information**-0.5, rel=0.03)
    assert abs(mean - theta) < 4.9 * width


def test_file_spec_and_compiled_functions(tmp_path):
    panel = PANELS["permanent"]
    release = ldp.Release([[0, 1, np.nan], [2, 2, 2]], panel)
    release.save(tmp_path / "z.npz")
    again = ldp.Release.load(tmp_path / "z.npz")
    assert again.mechanism == panel == mechanism_from_spec(panel.spec())
    np.testing.assert_array_equal(again.values, release.values)
    base = dist.Categorical(np.array([0.2, 0.3, 0.5]))
    compiled = jax.jit(lambda mechanism, z: ldp.Privatized(base, mechanism, validate_args=False).log_prob(z))
    np.testing.assert_allclose(compiled(panel, release.values), ldp.Privatized(base, panel).log_prob(release.values))
    two = jax.tree.map(
        lambda *leaves: np.stack(leaves),
        panel,
        Repeated(THREE, 3, TransitionMatrix(np.eye(3)[:, :2] + [[0, 0], [0, 0], [0.5, 0.5]])),
    )
    mapped = jax.vmap(compiled, (0, None))(two, release.values)
    np.testing.assert_allclose(mapped[0], compiled(panel, release.values))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Repeated(ldp.OptimalUnaryEncoding(1.0, 3), 2), TypeError, "one matrix for all records"),
        (lambda: Repeated(Crosswise(np.array([0.2, 0.3])), 2), TypeError, "one matrix for all records"),
        (lambda: Repeated(THREE, 0), ValueError, "times must be an integer of at least 1"),
        (lambda: Repeated(THREE, 2, THREE), ValueError, "must have the 3 answers of permanent as categories, it has 2"),
        (lambda: ldp.Release([[0, 1, 3]], PANELS["independent"]), ValueError, "values must be integers in -1..2"),
        (lambda: ldp.Release([[0, 1]], PANELS["independent"]), ValueError, "row of 3 numbers"),
    ],
)
def test_bad_input_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_values_that_nan_stands_for_are_not_left_out():
    rows = [[0, np.nan, 1], [1, 1, 1]]
    assert ldp.Release(rows, PANELS["independent"], missing="drop").count == 2
    masked = ldp.Release(np.ma.masked_array([1, 0, 1], [0, 1, 0]), Crosswise(0.2), missing="drop")
    assert masked.values.tolist() == [1, 1] and masked.about == {"missing": "1 of 3 values, left out"}
