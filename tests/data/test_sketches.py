"""Sketches of rows and of statistics: exact, and whatever the number of records."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import util

import ldpbayes as ldp
from ldpbayes.data.release import promises
from ldpbayes.data.sketches import MomentSketch, TotalSketch
from ldpbayes.likelihood import RegressionRows, law_of_nodes, linear_rows
from ldpbayes.privacy import compose

pytestmark = pytest.mark.usefixtures("x64")

MECHANISM = ldp.mechanisms.LinearRecordsMechanism(2.0, 1e-4, 1.0, 2.0, columns=4)
SLOPES = np.array([1.0, -1.0, 0.5])


def covariates():
    return dist.MultivariateNormal(np.array([0.1, 0.0, -0.2]), 0.2 * np.eye(3))


def release(n, mechanism=MECHANISM, seed=0):
    """Rows of the law `linear_rows(covariates(), SLOPES, 0.3)` with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal([0.1, 0.0, -0.2], np.sqrt(0.2), (n, 3))
    rows = np.column_stack([x, x @ SLOPES + rng.normal(0, 0.3, n)])
    return ldp.Release(rows + rng.normal(0, mechanism.noise.standard_deviations, rows.shape), mechanism)


def sketch_of(values, mechanism, **options):
    return ldp.Release(values, mechanism).sketch(**options)


@jax.jit
def by_nodes(of):
    return of.weights @ law_of_nodes(of, linear_rows(covariates(), SLOPES, 0.3)).log_prob(of.nodes)


@jax.jit
def of_records(records):
    law = ldp.Privatized(linear_rows(covariates(), SLOPES, 0.3), records.mechanism)
    return law.log_prob(records.values)


@pytest.mark.parametrize("n", [1, pytest.param(3, marks=pytest.mark.slow), 100_000])
def test_a_sketch_of_rows_has_the_likelihood_of_all_of_them(n):
    records = release(n)
    made = records.sketch()
    assert isinstance(made, MomentSketch) and made.nodes.shape == (8, 4) and made.size == n
    want = np.asarray(of_records(records))
    # a sum of n terms of size up to m is good to about √n rounding errors of n·m
    size = np.abs(want).max()
    np.testing.assert_allclose(by_nodes(made), want.sum(), atol=1e-15 * n * size + 1e-12)
    np.testing.assert_allclose(made.weights @ made.nodes, records.values.sum(axis=0), rtol=1e-10)


def test_sketches_of_rows_add_and_read_in_chunks(monkeypatch):
    records = release(1000)
    whole = records.sketch()
    parts = [sketch_of(records.values[rows], MECHANISM) for rows in (slice(0, 1), slice(1, 400), slice(400, None))]
    np.testing.assert_allclose(by_nodes(sum(parts)), by_nodes(whole), rtol=1e-13)
    monkeypatch.setattr("ldpbayes.data.sketches.ROWS_READ_AT_ONCE", 64)
    np.testing.assert_allclose(by_nodes(records.sketch()), by_nodes(whole), rtol=1e-13)
    with pytest.raises(ValueError, match="sketches of different mechanisms or groups cannot be added"):
        whole + release(10, ldp.mechanisms.LinearRecordsMechanism(1.0, 1e-4, 1.0, 2.0, columns=4)).sketch()


def test_groups_with_budgets_of_their_own_are_one_site():
    groups = [release(200), release(300, ldp.mechanisms.LinearRecordsMechanism(0.5, 1e-4, 1.0, 2.0, columns=4), seed=1)]
    sketches = [part.sketch() for part in groups]
    personal = ldp.mechanisms.LinearRecordsMechanism(np.repeat([2.0, 0.5], [200, 300]), 1e-4, 1.0, 2.0, columns=4)
    rows = ldp.Release(np.concatenate([part.values for part in groups]), personal)
    # a law a group: its own slopes, as a hierarchical model has them
    each = np.array([[1.0, -1.0, 0.5], [0.0, 2.0, -0.5]])

    def observed(base, data):
        return util.log_density(lambda: ldp.observe("z", base, data), (), {}, {})[0]

    def log_probs(base, part):
        return ldp.Privatized(base, part.mechanism).log_prob(part.values).sum()

    @jax.jit
    def densities(slopes):
        law = covariates()
        laws = [linear_rows(law, own, 0.3) for own in (slopes[0], *slopes)]
        common, apart = [
            sum(log_probs(base, part) for base, part in zip(bases, groups, strict=True))
            for bases in (laws[:1] * 2, laws[1:])
        ]
        together = [observed(laws[0].expand([2]), data) for data in (groups, sketches)]
        own = [observed(linear_rows(law, slopes, 0.3), data) for data in (groups, sketches)]
        return (common, [*together, observed(laws[0], rows)]), (apart, own)

    for want, found in densities(each):
        np.testing.assert_allclose(found, want, rtol=1e-12)
    with pytest.raises(ValueError, match="one budget for all; sketch the rows of each budget separately"):
        rows.sketch()


def test_rows_of_other_laws_or_noises_have_no_such_sketch():
    records = release(10)

    def observed():
        other = RegressionRows(covariates(), dist.BernoulliLogits, np.zeros(3))
        ldp.observe("z", other, records.sketch())

    with pytest.raises(
        ValueError, match="first and second moments, so it is only for records that are MultivariateNormal"
    ):
        jax.eval_shape(observed)
    laplace = ldp.SymmetricLaplaceMechanism(1.0, -1, 1, columns=4)
    with pytest.raises(ValueError, match="rows can be sketched under Gaussian noise in numeric columns"):
        MomentSketch.of(records.values, laplace)
    with pytest.raises(ValueError, match="rows can be sketched under Gaussian noise in numeric columns"):
        MomentSketch.of(np.eye(4), ldp.mechanisms.LogisticRecordsMechanism(1.0, 1e-4, 1.0, 4))


def test_statistics_of_single_records_are_summed():
    mechanism = ldp.mechanisms.LinearStatisticsMechanism(2.0, 1e-4, 1.0, 2.0, columns=4)
    values = np.random.default_rng(0).normal(0, mechanism.noise.standard_deviations, (50, 10))
    made = ldp.Release(values, mechanism).sketch()
    assert isinstance(made, TotalSketch) and made.size == 50 and made.mechanism == mechanism.total(50)
    np.testing.assert_allclose(made.nodes, values.sum(axis=0, keepdims=True))
    parts = sum(sketch_of(values[rows], mechanism) for rows in (slice(0, 20), slice(20, None)))
    np.testing.assert_allclose(parts.nodes, made.nodes)
    assert parts.mechanism == made.mechanism
    with pytest.raises(ValueError, match="total needs a local mechanism"):
        ldp.Release(made.nodes, made.mechanism).sketch()
    with pytest.raises(ValueError, match="sketches of different mechanisms or groups cannot be added"):
        made + TotalSketch.of(values, ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-4, 1.0, 2.0, columns=4))


def test_sketches_are_arguments_of_compiled_and_mapped_functions():
    made = [release(40, seed=seed).sketch() for seed in (0, 1)]

    def total(of, slope):
        base = linear_rows(dist.MultivariateNormal(np.zeros(3), 0.2 * np.eye(3)), slope * np.ones(3), 0.3)
        with numpyro.handlers.seed(rng_seed=0):
            return util.log_density(lambda data: ldp.observe("z", base, data), (of,), {}, {})[0]

    alone = jax.jit(total)
    known = [alone(of, 0.4) for of in made]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *made)
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(total, 1), (0, None)))(stacked, 0.4)
    np.testing.assert_allclose(values, known, rtol=1e-12)
    assert np.all(np.isfinite(slopes))


WORDS = np.array(["south", "north", "west", "north", "south", "west"])
LEVELS = ("north", "south", "west")


@pytest.mark.parametrize(
    ("by", "levels", "axis"),
    [
        (WORDS, LEVELS, "group"),
        ([*WORDS], LEVELS, "group"),
        (pd.Series(WORDS, name="region"), LEVELS, "region"),
        (pd.Series(pd.Categorical(WORDS, ["west", "east", "south", "north"])), ("west", "south", "north"), "group"),
        (pd.Categorical(WORDS), LEVELS, "group"),
        (np.array([2.5, 1.0, 3.0, 1.0, 2.5, 3.0]), (1.0, 2.5, 3.0), "group"),
        (WORDS == "north", (False, True), "group"),
        ([(1, "b"), (1, "a"), (2, "a"), (1, "a"), (1, "b"), (2, "a")], ((1, "a"), (1, "b"), (2, "a")), "group"),
        ([(1, 2), (0, 3), (0, 3), (0, 3), (1, 2), (1, 2)], ((0, 3), (1, 2)), "group"),
    ],
)
def test_groups_may_have_any_levels_in_their_order(by, levels, axis):
    """As codes of the same groups would make them, with the names beside."""
    codes = np.array([levels.index(word) for word in by])
    discrete = ldp.Release([0, 1, 1, 0, 0, 1], ldp.RandomizedResponse(1.0))
    numbers = ldp.Release([0.5, 7.0, -3.0, 2.0, 9.0, 1.0], ldp.LaplaceMechanism(1.0, 0, 5))
    for release in (discrete, numbers):
        named, coded = release.sketch(by=by), release.sketch(by=codes)
        assert named.coords == {"group": levels, axis: levels} and coded.coords is None
        for one, other in zip(jax.tree.leaves(named), jax.tree.leaves(coded), strict=True):
            np.testing.assert_array_equal(one, other)
        assert jax.tree.map(lambda leaf: leaf, named).coords == named.coords


def test_sketches_of_numbers_by_group_are_those_of_each_group():
    release = ldp.Release([0.5, 7.0, -3.0, 2.0, 9.0, 1.0], ldp.LaplaceMechanism([1.0, 2, 1, 2, 1, 1], 0, 5), times=2)
    groups = release.sketch(by=WORDS, panels=8)
    assert [part.mechanism.epsilon for part in groups] == [2.0, 1.0, 1.0] and len(groups) == 3
    for level, part in zip(LEVELS, groups, strict=True):
        rows = level == WORDS
        mechanism = ldp.LaplaceMechanism(part.mechanism.epsilon, 0, 5)
        alone = ldp.Release(release.values[rows], mechanism).sketch(panels=8)
        np.testing.assert_array_equal(part.weights, alone.weights)
        assert part.refine() is not None and part.mechanism == mechanism
    assert promises([*groups]) == promises([release])  # one release, whose promise is stated once
    rows = ldp.Release(np.arange(12.0).reshape(6, 2), ldp.GaussianMechanism(1.0, 1e-6, 0, 12, columns=2))
    assert [part.size for part in rows.sketch(by=WORDS)] == [2, 2, 2]
    total = jax.jit(lambda groups: sum(part.weights.sum() for part in groups))
    assert float(total(groups)) == pytest.approx(6)
    other = release.sketch(by=np.char.add("the ", WORDS), panels=8)  # other names cost no compilation
    assert float(total(other)) == pytest.approx(6) and total._cache_size() == 1
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), groups, other)
    np.testing.assert_allclose(jax.vmap(total)(stacked), 6.0)


@pytest.mark.parametrize("times", [None, 2])
def test_the_promise_of_a_release_counts_once_also_for_sums_and_files_of_its_groups(times, tmp_path):
    release = ldp.Release([0.5, 7.0, -3.0, 2.0, 9.0, 1.0], ldp.LaplaceMechanism(1.0, 0, 5), times=times)
    groups, alone = release.sketch(by=WORDS, panels=8), release.guarantee
    for place, part in enumerate(groups):
        part.save(tmp_path / f"{place}.npz")
    saved = [ldp.Sketch.load(tmp_path / f"{place}.npz") for place in range(3)]
    for parts in (groups, saved, [sum(groups)], [groups[0] + saved[1], saved[2]], [groups[1]]):
        assert promises([*parts]) == alone.statement()
        assert compose(*parts).epsilon(0.0) == pytest.approx(alone.epsilon(0.0))
    other = release.sketch(by=WORDS, panels=8)  # perhaps of the same people
    assert promises([*groups, *other]).startswith("2 releases. Where")
    assert compose(*groups, *other).epsilon(0.0) == pytest.approx(2 * alone.epsilon(0.0))


def test_groups_that_cannot_be_made_are_refused():
    numbers = ldp.Release([0.5, 7.0, -3.0], ldp.LaplaceMechanism([1.0, 2.0, 2.0], 0, 5))
    for by, message in (
        (["a", None, "b"], "by has no level in row 1"),
        (["a", "b", np.nan], "by has no level in row 2"),  # which NumPy would spell as a word
        (pd.Series([1, None, 2], dtype="Int64"), "by has no level in row 1"),
        ([0.5, 1.0, np.nan], "by has no level in row 2"),
        (np.zeros((3, 2), int), "by must hold a level, or an integer ≥ 0, for each of the 3 records"),
        (["a", "b"], "by must hold a level, or an integer ≥ 0, for each of the 3 records"),
        ([0, 1, -1], "by must hold a level, or an integer ≥ 0, for each of the 3 records"),
        ([0, 2, 2], "group 1 has none"),
    ):
        with pytest.raises(ValueError, match=message):
            numbers.sketch(by=by)
    answers = [ldp.Release([0, 1], ldp.RandomizedResponse(1.0)).sketch(by=by) for by in (["a", "b"], ["a", "c"])]
    with pytest.raises(ValueError, match="different mechanisms or groups cannot be added"):
        answers[0] + answers[1]
    assert (answers[0] + answers[0]).coords == {"group": ("a", "b")}


def test_integers_are_codes_in_every_container():
    release = ldp.Release([0, 1, 1], ldp.RandomizedResponse(1.0))
    for by in ([2, 0, 2], np.array([2, 0, 2], "uint8"), pd.Series([2, 0, 2], dtype="Int64", name="region")):
        sketch = release.sketch(by=by)
        assert sketch.coords is None and sketch.num_groups == 3 and sorted(sketch.groups) == [0, 2, 2]
