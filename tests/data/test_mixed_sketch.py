"""Numbers with a few budgets: one sketch with a part for each, and the log-likelihood of all records."""

import functools
import itertools

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import integrate

import ldpbayes as ldp
from ldpbayes.data import MixedSketch, PanelSketch, sketch_from
from ldpbayes.data.release import promises
from ldpbayes.likelihood import SmoothDensity, law_of_nodes
from ldpbayes.mechanisms import AdditiveMechanism, SquareWaveMechanism, StaircaseMechanism, ZeroInflatedLaplaceMechanism

N = 600
RNG = np.random.default_rng(0)
RECORDS = RNG.normal(1, 2, N)
ODD = np.arange(N) % 2 == 1
EPSILON, SCALE = np.where(ODD, 1.0, 3.0), np.where(ODD, 1.0, 2.0)
LOWER, UPPER = np.where(np.arange(N) % 3, -5.0, -3.0), np.where(np.arange(N) % 3, 5.0, 4.0)
NORMAL = dist.Normal(1.0, 2.0)
TWO = ldp.LaplaceMechanism(EPSILON, -5, 5)


@jax.jit
def randomized(mechanism, records):
    return mechanism.randomize(jax.random.key(0), records)


def released(mechanism, records=RECORDS):
    with jax.enable_x64(True):
        return ldp.Release(np.asarray(randomized(mechanism, records)), mechanism)


def log_likelihood(law, data):
    return log_density(lambda: ldp.observe("z", law, data), (), {}, {})[0]


compiled = jax.jit(log_likelihood)


def at(law, data):
    """The log-likelihood of a release or a sketch; parameters of records stand for all, so that shapes are few."""
    if isinstance(data, ldp.Release):
        data = jax.tree.map(lambda leaf: np.broadcast_to(leaf, np.shape(data.values)), data)
    with jax.enable_x64(True):
        return float(compiled(law, data))


def at_known(law, data):
    """The log-likelihood of a release or a sketch whose mechanism JAX does not trace."""
    with jax.enable_x64(True):
        return float(jax.jit(functools.partial(log_likelihood, data=data))(law))


CASES = {
    "budgets": TWO,
    "bounds": ldp.LaplaceMechanism(1.0, LOWER, UPPER),
    "bounds and budgets": ldp.LaplaceMechanism(EPSILON, LOWER, UPPER),
    "Gaussian budgets": ldp.GaussianMechanism(EPSILON, 1e-6, -5, 5),
    "scales": AdditiveMechanism(ldp.noise.Laplace(SCALE), -5, 5),
    "staircase": StaircaseMechanism(EPSILON, -5, 5),
    "square wave": SquareWaveMechanism(EPSILON, -5, 5),
    "zero-inflated": ZeroInflatedLaplaceMechanism(np.where(ODD, 0.1, 0.3), SCALE, -5, 5),
    "one record alone": ldp.LaplaceMechanism(np.where(np.arange(N) == 17, 2.5, 1.0), -5, 5),
    "thirty": ldp.LaplaceMechanism(np.linspace(0.5, 4, 30)[np.arange(N) % 30], -5, 5),
}


@pytest.mark.parametrize("case", CASES)
def test_a_sketch_of_few_budgets_has_the_log_likelihood_of_the_records(case):
    release = released(CASES[case])
    sketch = release.sketch()
    assert isinstance(sketch, MixedSketch) and sketch.size == N and sketch.law_shape == ()
    assert at(NORMAL, sketch) == pytest.approx(at(NORMAL, release), abs=1e-6)  # the bound, in nats


def test_a_sketch_of_few_budgets_has_the_log_likelihood_of_a_smooth_density():
    release, law = released(TWO), SmoothDensity(np.random.default_rng(3).normal(size=41), -5.0, 5.0)
    assert at(law, release.sketch()) == pytest.approx(at_known(law, release), abs=1e-6)


def test_a_sketch_of_counts_has_panels_between_the_whole_numbers():
    release = released(ldp.LaplaceMechanism(EPSILON, 0, 12), np.random.default_rng(1).poisson(3, N).astype(float))
    law = dist.Poisson(3.0)
    assert at_known(law, release.sketch()) == pytest.approx(at_known(law, release), abs=1e-6)


def test_the_log_likelihood_is_that_of_quadrature():
    release = released(ldp.LaplaceMechanism([1.0, 3.0, 3.0], [-5.0, -5.0, -3.0], 5.0), RECORDS[:3])

    def density(z, epsilon, lower):
        scale = (5 - lower) / epsilon

        def at_record(x):
            return np.exp(-abs(z - np.clip(x, lower, 5)) / scale - (x - 1) ** 2 / 8) / (2 * scale * np.sqrt(8 * np.pi))

        cuts = [-30.0, *sorted({lower, np.clip(z, lower, 5), 5.0}), 30.0]
        parts = itertools.pairwise(cuts)
        return sum(integrate.quad(at_record, a, b, epsabs=1e-13, epsrel=1e-12)[0] for a, b in parts)

    truth = sum(map(np.log, map(density, release.values, [1.0, 3.0, 3.0], [-5.0, -5.0, -3.0])))
    assert at(NORMAL, release.sketch()) == pytest.approx(truth, abs=1e-6)


def test_the_order_of_the_records_does_not_matter():
    order, release = np.random.default_rng(2).permutation(N), released(TWO)
    other = ldp.Release(release.values[order], ldp.LaplaceMechanism(EPSILON[order], -5, 5)).sketch()
    assert other.mechanism == release.sketch().mechanism
    np.testing.assert_allclose(other.weights, release.sketch().weights, atol=1e-9)  # sums of 300 numbers up to 1


def test_nodes_of_each_budget_are_occupied_as_in_its_part():
    sketch = released(CASES["bounds and budgets"]).sketch()
    for part, weights, occupied in zip(sketch.parts, sketch.weights.T, sketch.occupied.T, strict=True):
        np.testing.assert_array_equal(weights[: len(part.nodes)], part.weights)
        np.testing.assert_array_equal(occupied[: len(part.nodes)], part.occupied)
        assert not weights[len(part.nodes) :].any()


def test_budgets_that_differ_by_rounding_are_one():
    sketch = released(ldp.LaplaceMechanism(np.where(ODD, 0.1 + 0.2, 0.3), -5, 5)).sketch()
    assert isinstance(sketch, PanelSketch) and sketch.size == N and sketch.mechanism.epsilon == pytest.approx(0.3)
    assert isinstance(released(ldp.LaplaceMechanism(np.full(N, 2.0), -5, 5)).sketch(), PanelSketch)


def test_too_many_budgets_are_refused_with_what_is_allowed():
    release = released(ldp.LaplaceMechanism(np.linspace(1, 2, N), -5, 5))
    with pytest.raises(ValueError, match=r"at most 64 different budgets, .* have more; use the release itself"):
        release.sketch()
    several = [
        released(ldp.LaplaceMechanism(np.linspace(a, a + 1, N)[: N // 10 + 4], -5, 5), RECORDS[:64]).sketch()
        for a in (1, 2)
    ]
    with pytest.raises(ValueError, match=r"at most 64 different budgets, .* have more"):
        several[0] + several[1]


def test_sketches_of_the_same_or_other_budgets_add():
    first, second = released(TWO), released(ldp.LaplaceMechanism(np.where(ODD, 3.0, 5.0), -5, 5))
    one = released(ldp.LaplaceMechanism(2.0, -5, 5))
    for parts, budgets in (
        ((first, first), [1, 3]),
        ((first, second), [1, 3, 5]),
        ((first, one), [1, 2, 3]),
        ((one, second), [2, 3, 5]),
        ((one, released(ldp.LaplaceMechanism(1.0, -5, 5))), [1, 2]),
    ):
        a, b = (each.sketch() for each in parts)
        for total in (a + b, b + a):
            assert total.mechanism.epsilon.tolist() == budgets and total.size == 2 * N
            assert at(NORMAL, total) == pytest.approx(sum(at(NORMAL, each) for each in parts), abs=1e-6)
            assert {*promises([total]).split("\n")} == {*promises([a, b]).split("\n")}
    with pytest.raises(ValueError, match="different mechanisms"):
        first.sketch() + released(ldp.GaussianMechanism(EPSILON, 1e-6, -5, 5)).sketch()


def test_the_promise_is_that_of_the_release():
    release = released(TWO)
    for sketch in (release.sketch(), sum(release.sketch(by=ODD.astype(int)))):
        assert promises([sketch]) == promises([release]) == release.guarantee.statement()
    often = ldp.Release(release.values, TWO, times=3)
    assert promises([often.sketch()]) == promises([often])


def test_saved_sketches_are_read_again(tmp_path):
    for number, case in enumerate(("bounds and budgets", "zero-inflated")):
        sketch = released(CASES[case]).sketch()
        sketch.save(tmp_path / f"{number}.npz")
        again = ldp.Sketch.load(tmp_path / f"{number}.npz")
        assert repr(again) == repr(sketch) and again.mechanism == sketch.mechanism
        np.testing.assert_array_equal(again.nodes, sketch.nodes)
        np.testing.assert_array_equal(again.weights, sketch.weights)
        assert all(np.array_equal(a.probes, b.probes) for a, b in zip(again.parts, sketch.parts, strict=True))
        assert (again + sketch).size == 2 * N


def test_files_with_several_budgets_are_sketched_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("ldpbayes._core.archive.ROWS_PER_DIGEST", 128)
    release = released(TWO)
    release.save(tmp_path / "a.npz")
    release.save(tmp_path / "a.parquet")
    np.save(tmp_path / "a.npy", release.values)
    arrays = [release.values[:100], release.values[100:]]
    for source, mechanism in (("a.npz", None), ("a.parquet", None), ("a.npy", TWO), (arrays, TWO)):
        made = sketch_from(tmp_path / source if isinstance(source, str) else source, mechanism, progress_bar=False)
        assert made.mechanism == release.sketch().mechanism
        np.testing.assert_allclose(made.weights, release.sketch().weights, atol=1e-9)
        assert promises([made]) == promises([release])
    np.save(tmp_path / "b.npy", released(ldp.LaplaceMechanism(5.0, -5, 5)).values)
    single = sketch_from(tmp_path / "b.npy", ldp.LaplaceMechanism(5.0, -5, 5), progress_bar=False)
    single.save(tmp_path / "b.npz")
    both = sketch_from([tmp_path / "a.npz", tmp_path / "b.npz"], progress_bar=False)
    assert both.mechanism.epsilon.tolist() == [1, 3, 5] and [each.name for each in both.sources] == ["b.npy", "a.npz"]
    for wrong in (EPSILON[:-1], np.append(EPSILON, 1.0)):
        with pytest.raises(ValueError, match=r"a.npy: the mechanism's parameters .* there are 600 records"):
            sketch_from(tmp_path / "a.npy", ldp.LaplaceMechanism(wrong, -5, 5), progress_bar=False)


def test_answers_in_files_may_have_budgets_of_their_own(tmp_path):
    answers = ldp.Release(np.arange(N) % 3 == 0, ldp.RandomizedResponse(EPSILON))
    answers.save(tmp_path / "a.npz")
    made, whole = sketch_from(tmp_path / "a.npz", progress_bar=False), answers.sketch()
    assert sorted(zip(made.nodes, made.mechanism.epsilon, made.weights, strict=True)) == sorted(
        zip(whole.nodes, whole.mechanism.epsilon, whole.weights, strict=True)
    )


def test_groups_with_several_budgets_are_one_site_of_their_laws():
    group, means = np.arange(N) % 3, np.array([0.0, 1.0, 2.0])
    epsilon = np.where(group == 1, 2.0, EPSILON)
    release = released(ldp.LaplaceMechanism(epsilon, -5, 5))
    parts = release.sketch(by=group)
    assert [type(part) for part in parts] == [MixedSketch, PanelSketch, MixedSketch]
    assert at(dist.Normal(means, 2.0), parts) == pytest.approx(at(dist.Normal(means[group], 2.0), release), abs=1e-6)


def test_a_sketch_is_a_pytree_that_can_be_mapped_over(x64):
    sketches = [released(TWO, RECORDS + shift).sketch() for shift in (0, 1, 2)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *sketches)

    def total(sketch, mean):
        return (law_of_nodes(sketch, dist.Normal(mean, 2.0)).log_prob(sketch.nodes) * sketch.weights).sum()

    together = jax.jit(jax.vmap(total, (0, None)))(stacked, 1.0)
    # sums of 600 terms of size 3
    np.testing.assert_allclose(together, [at(NORMAL, each) for each in sketches], rtol=1e-12)


@pytest.mark.slow
def test_a_density_is_estimated_from_few_budgets_as_from_the_records():
    release = released(TWO)
    ours, theirs = map(ldp.estimation.estimate_density, (release.sketch(), release))
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-6)
    np.testing.assert_allclose(ours.standard_error, theirs.standard_error, rtol=1e-6)
    assert ours.privacy == theirs.privacy
