"""Sampling designs: the covariance of totals against a plain loop and against samplics, and what is refused."""

import jax
import numpy as np
import pytest

from ldpbayes.data import SamplingDesign
from ldpbayes.data.sampling import design_in

RNG = np.random.default_rng(0)
STRATA = np.repeat(["north", "south", "west"], [40, 60, 100])
CLUSTERS = np.concatenate(
    [np.repeat(np.arange(8), 5), np.repeat(np.arange(8, 20), 5), np.repeat(np.arange(20, 30), 10)]
)
WEIGHTS = RNG.uniform(0.5, 4.0, 200)
SCORES = RNG.normal(size=(200, 3)) + RNG.normal(size=(30, 3))[CLUSTERS]
POPULATION = np.repeat([8.0, 40.0, np.inf], [40, 60, 100])  # all clusters of the north were sampled


def by_loop(scores, strata, clusters, population, lonely="error"):
    """The covariance by the definition; a lonely stratum by the rules of R's survey package."""
    total, counted, strata_of = np.zeros((scores.shape[1],) * 2), 0, np.unique(strata)
    sums = {c: scores[clusters == c].sum(axis=0) for c in np.unique(clusters)}
    for stratum in strata_of:
        inside = strata == stratum
        units = np.array([sums[c] for c in np.unique(clusters[inside])])
        n, rest = len(units), 1 - len(units) / population[inside][0]
        if n == 1 and rest > 0:
            centre = np.mean(list(sums.values()), axis=0) if lonely == "adjust" else units[0]
            total += rest * np.outer(units[0] - centre, units[0] - centre)
            counted += lonely != "average"
            continue
        counted += 1
        deviations = units - units.mean(axis=0)
        total += rest * n / max(n - 1, 1) * deviations.T @ deviations
    return total * len(strata_of) / counted


@pytest.mark.parametrize("population", [None, POPULATION], ids=["large", "finite"])
@pytest.mark.parametrize("clustered", [True, False])
def test_the_covariance_is_that_of_its_definition(clustered, population):
    clusters = CLUSTERS if clustered else np.arange(200)
    if not clustered and population is not None:
        population = 100 * population
    design = SamplingDesign(WEIGHTS, strata=STRATA, clusters=CLUSTERS if clustered else None, population=population)
    known = np.full(200, np.inf) if population is None else population
    expected = by_loop(SCORES, STRATA, clusters, known)
    np.testing.assert_allclose(design.covariance(SCORES), expected, rtol=1e-12)
    assert design.degrees_of_freedom == len(np.unique(clusters)) - 3
    # JAX maps it over scores, and takes the design as an argument
    both = jax.jit(jax.vmap(lambda d, s: d.covariance(s), (None, 0)))(design, np.stack([SCORES, 2 * SCORES]))
    np.testing.assert_allclose(both, [expected, 4 * expected], rtol=1e-4)


@pytest.mark.parametrize("lonely", ["certainty", "average", "adjust"])
@pytest.mark.parametrize("population", [np.inf, 50.0])
def test_lonely_clusters_are_taken_as_by_the_survey_package(lonely, population):
    strata = np.where(CLUSTERS == 29, "island", STRATA)
    design = SamplingDesign(strata=strata, clusters=CLUSTERS, population=population, lonely=lonely)
    expected = by_loop(SCORES, strata, CLUSTERS, np.full(200, population), lonely)
    np.testing.assert_allclose(design.covariance(SCORES), expected, rtol=1e-12)


def test_a_lonely_cluster_that_is_its_whole_stratum_adds_nothing():
    strata = np.where(CLUSTERS == 29, "island", STRATA)
    population = np.where(CLUSTERS == 29, 1.0, np.inf)
    design = SamplingDesign(strata=strata, clusters=CLUSTERS, population=population)
    np.testing.assert_allclose(design.covariance(SCORES), by_loop(SCORES, strata, CLUSTERS, population), rtol=1e-12)


def test_groups_with_counts_are_as_many_records():
    groups, counts = np.array([0, 0, 1, 1, 2, 2]), np.array([5, 1, 2, 9, 30, 3])
    rows = np.repeat(np.arange(6), counts)
    for clusters in (None, groups // 2):
        options = {"strata": np.zeros(6, int), "population": 70.0}
        design = SamplingDesign(clusters=clusters, **options)
        design.check(6, counts)
        long = SamplingDesign(
            strata=np.zeros(len(rows)), clusters=None if clusters is None else clusters[rows], population=70.0
        )
        expected = long.covariance(SCORES[:6][rows])
        np.testing.assert_allclose(design.covariance(SCORES[:6], counts), expected, rtol=1e-12)


def test_labels_may_begin_anew_in_each_stratum():
    anew = CLUSTERS - np.array([0, 8, 20])[np.unique(STRATA, return_inverse=True)[1]]
    with pytest.raises(ValueError, match="clusters cross strata: 12 labels are 30 in strata; give nest"):
        SamplingDesign(strata=STRATA, clusters=anew)
    nested = SamplingDesign(strata=STRATA, clusters=anew, nest=True)
    plain = SamplingDesign(strata=STRATA, clusters=CLUSTERS)
    np.testing.assert_allclose(nested.covariance(SCORES), plain.covariance(SCORES), rtol=1e-12)


def test_weights():
    design = SamplingDesign([1, 1, 3, 3])
    np.testing.assert_allclose(design.normalised, [0.5, 0.5, 1.5, 1.5])
    assert design.kish_design_effect == 1.25
    assert "SamplingDesign(weights=[1.0, 1.0, 3.0, 3.0]" in repr(design)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs arrays with one entry for each record"),
        ({"weights": 2.0}, "needs arrays with one entry for each record"),
        ({"weights": [[1, 2]]}, "needs arrays with one entry for each record"),
        ({"weights": [1, 2], "strata": [0, 0, 0]}, r"got shapes \{'weights': \(2,\), 'strata': \(3,\)\}"),
        ({"weights": [1, -1]}, r"weights must be non-negative and finite, got weights\[1\] = -1"),
        ({"weights": [1, np.nan]}, "got weights.1. = nan"),
        ({"weights": [1, None]}, "got weights.1. = nan"),
        ({"weights": np.ma.array([1.0, 9.0], mask=[0, 1])}, "got weights.1. = nan"),
        ({"strata": np.ma.array(["a", "b"], mask=[0, 1])}, "strata has no label in row 1"),
        ({"weights": [0, 0]}, "only zeros"),
        ({"weights": ["a", "b"]}, "an array of strings"),
        ({"strata": ["a", None]}, "strata has no label in row 1"),
        ({"clusters": [1, np.nan]}, "clusters has no label in row 1"),
        ({"strata": [0, 0, 1, 1], "clusters": [1, 2, 2, 3]}, "clusters cross strata: 3 labels are 4 in strata"),
        ({"strata": [0, 0, 1], "clusters": [1, 2, 3]}, "merge strata, or give lonely='certainty' or 'average' or 'adj"),
        ({"strata": [0, 1], "clusters": [1, 2], "lonely": "average"}, "one sampled cluster"),
        ({"strata": [0, 0], "lonely": "fail"}, "lonely must be one of error, certainty, average, adjust"),
        ({"clusters": [0, 1], "population": 1}, "more clusters than their population"),
        ({"clusters": [0, 1], "population": [4, 5]}, "1 populations differ in their stratum"),
        ({"weights": [1, 1], "population": 0}, "population must be positive"),
    ],
)
def test_bad_designs_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SamplingDesign(**arguments)


def test_designs_that_do_not_fit_data_are_refused():
    design = SamplingDesign(np.ones(3), strata=[0, 0, 1])
    with pytest.raises(ValueError, match="has 3 entries, but the data have 4"):
        design.check(4)
    with pytest.raises(ValueError, match="1 records are of strata with one sampled cluster"):
        design.check(3)
    design.check(3, np.array([1, 1, 2]))  # the third entry is a group of two records
    with pytest.raises(ValueError, match="more clusters than their population"):
        SamplingDesign(np.ones(3), population=2).check(3)
    assert np.isnan(jax.jit(lambda d: d.covariance(np.ones((3, 1))))(design)).all()
    with pytest.raises(TypeError, match="sampling must be a SamplingDesign, got ndarray"):
        design_in(np.ones(3), None, 3)
    for domain in ([True, False], [0, 1, 1], [False] * 3, np.ma.array([True] * 3, mask=[0, 1, 0])):
        with pytest.raises(ValueError, match="domain must be an array of 3 bools, some of them True"):
            design_in(None, domain, 3)


def test_a_domain_in_one_cluster_shows_no_variance():
    inside, scores = np.array([1.0, 2, 0, 0]), np.array([[0.5], [-0.5], [0], [0]])
    apart, together = SamplingDesign(inside), SamplingDesign(inside, clusters=[0, 0, 1, 2])
    assert np.isfinite(apart.covariance(scores)).all() and np.isnan(together.covariance(scores)).all()
    assert np.isnan(SamplingDesign([3.0, 0, 0]).covariance(np.zeros((3, 1)))).all()
    assert np.isfinite(SamplingDesign([3.0, 0, 0]).covariance(np.zeros((3, 1)), np.array([2, 1, 1]))).all()
    whole = SamplingDesign([3.0, 0, 0], strata=[0, 1, 1], population=[1, 9, 9])  # the only record of its stratum
    assert not np.any(whole.covariance(np.zeros((3, 1))))
