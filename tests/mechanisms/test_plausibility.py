"""What is said of released values that no records explain: never of a mechanism's own, always of another one's."""

import dataclasses
import functools
import warnings
from typing import ClassVar

import jax
import numpy as np
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.mechanisms.plausibility import FALSE_REPORT_LEVEL, improbable_count
from tests.programs import randomize
from tests.protocols import PROTOCOLS

N = 4000
PERSONAL = np.resize([0.5, 1.0, 2.0], N)
budgets = pytest.mark.parametrize(
    "epsilon",
    [
        pytest.param(0.1, id="0.1"),
        pytest.param(PERSONAL, id="personal"),
        pytest.param(1.0, marks=pytest.mark.slow, id="1"),
        pytest.param(8.0, marks=pytest.mark.slow, id="8"),
    ],
)
NUMBERS = {
    "laplace": lambda e: ldp.LaplaceMechanism(e, -5, 5),
    "gaussian": lambda e: ldp.GaussianMechanism(e, 1e-3, -5, 5),
    "symmetric": lambda e: ldp.SymmetricLaplaceMechanism(10 / e, -5, 5),
    "independent": lambda e: ldp.mechanisms.IndependentLaplaceMechanism(10 / e, -5, 5),
    "zero-inflated": lambda e: ldp.ZeroInflatedLaplaceMechanism(0.3, 10 / e, -5, 5),
}


def released(make, epsilon, records, seed=0):
    """Values under budgets of their own, which may all be equal: one program for each mechanism."""
    return randomize(make(np.broadcast_to(epsilon, len(records))), records, seed)


# Records at a bound, in the middle, far outside, everywhere. A false alarm has probability 1e-12 a release, whatever
# the records: 136 releases, fixed seeds.
RECORDS = {
    "lower": np.full(N, -5.0),
    "upper": np.full(N, 5.0),
    "middle": np.zeros(N),
    "spread": np.linspace(-50, 50, N),
}


@budgets
@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_nothing_is_said_of_a_mechanisms_own_numbers(make, epsilon):
    mechanism = make(epsilon)
    for seed, records in enumerate(RECORDS.values()):
        assert mechanism.implausible(released(make, epsilon, records, seed)) == []


@budgets
@pytest.mark.parametrize("make", PROTOCOLS.values(), ids=PROTOCOLS)
def test_nothing_is_said_of_a_mechanisms_own_categories(make, epsilon):
    mechanism, of_five = make(epsilon, 5), functools.partial(make, categories=5)
    for seed, records in enumerate((np.zeros(N, int), np.arange(N) % 5)):
        assert mechanism.implausible(released(of_five, epsilon, records, seed)) == []


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_more_noise_than_stated_is_seen(make):
    values = released(make, 0.5, RECORDS["middle"])
    said = make(5.0).implausible(values)
    assert len(said) == 2 and "below the lower bound -5" in said[0] and "above the upper bound 5" in said[1]
    assert make(np.full(N, 5.0)).implausible(values)  # and where budgets are personal


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_less_noise_than_stated_is_seen_and_none_at_all(make):
    for values in (released(make, 5.0, RECORDS["spread"] / 10), RECORDS["spread"] / 10):
        (said,) = make(0.2).implausible(values)
        assert "lie outside the bounds -5 and 5, where at least" in said and "less noise than stated" in said


@pytest.mark.parametrize("name", ["k-rr", "hadamard", "oue", "sue", "subset"])
def test_a_larger_budget_than_stated_is_seen_in_categories(name):
    values = released(functools.partial(PROTOCOLS[name], categories=5), 4.0, np.zeros(N, int))
    said = PROTOCOLS[name](0.3, 5).implausible(values)
    assert any("support category" in what for what in said)  # too many the common one, or too few the others


@pytest.mark.parametrize("name", ["oue", "sue"])
def test_too_many_bits_are_seen_however_common_the_categories(name):
    values = released(functools.partial(PROTOCOLS[name], categories=5), 0.3, np.arange(N) % 5)
    said = PROTOCOLS[name](3.0, 5).implausible(values)
    assert "bits are set, where" in said[-1]


def test_the_counts_and_what_is_expected_are_those_of_the_values():
    mechanism = ldp.LaplaceMechanism(2.0, 0, 2)  # scale 1
    values = np.concatenate([np.linspace(-1, 3, 96), [12.0, 13.0, 14.0, 60.0]])
    (said,) = mechanism.implausible(values)
    depth = int(1 + 58 / np.log(2))  # of the value at 60, the most telling one
    assert said == (
        f"1 of 100 lie 58 or more above the upper bound 2, where at most {100 * 0.5**depth:.3g} are expected"
    )
    assert mechanism.implausible(values[:96]) == []


def test_records_at_a_bound_that_single_precision_rounds_beyond_it_are_not_beyond_it():
    mechanism = ldp.ZeroInflatedLaplaceMechanism(0.9, 0.05, 0.0, 0.1)
    single = jax.jit(lambda key: mechanism.randomize(key, np.full(N, 0.1)))
    values = np.asarray(single(jax.random.key(0)))
    assert values.dtype == np.float32 and np.mean(values.astype(float) > 0.1) > 0.9
    assert mechanism.implausible(values) == []


def test_public_records_have_no_noise_to_look_at():
    rng, scale = np.random.default_rng(0), np.resize([0.0, 3.0], N)
    values = np.where(scale > 0, rng.laplace(0, 3 / np.sqrt(2), N), 1.0)
    mechanism = ldp.SymmetricLaplaceMechanism(scale, 0, 3 / np.sqrt(2))
    assert mechanism.implausible(values) == []
    assert "of 2,000 lie" in ldp.SymmetricLaplaceMechanism(scale / 20, 0, 3 / np.sqrt(2)).implausible(values)[0]
    assert ldp.SymmetricLaplaceMechanism(0.0, 0, 1).implausible(np.ones(5)) == []


def test_columns_are_looked_at_one_by_one_and_only_those_with_noise():
    mechanism = ldp.SymmetricLaplaceMechanism(1.0, 0, 1, ("a", "b", "y"), ("a", "b"))
    rows = 0.5 + np.random.default_rng(0).laplace(0, 1 / np.sqrt(2), (N, 3))
    rows[:, 2] = 1e6
    assert mechanism.implausible(rows) == []
    rows[:, 1] *= 20
    assert all(what.startswith("column b: ") for what in mechanism.implausible(rows))
    assert len(mechanism.implausible(rows)) == 2


@pytest.mark.parametrize("p", [1e-300, 1e-9, 0.3, 0.999])
def test_the_level_is_that_of_the_binomial_law(p):
    n, tests = 1000, 7
    counts = np.arange(n + 1)
    for few, tail in ((False, stats.binom.sf(counts - 1, n, p)), (True, stats.binom.cdf(counts, n, p))):
        sure = np.abs(np.log(np.maximum(tail, 1e-300)) - np.log(FALSE_REPORT_LEVEL / tests)) > 1e-6
        said = improbable_count(counts, n, p, tests, few)
        np.testing.assert_array_equal(said[sure], (tail * tests < FALSE_REPORT_LEVEL)[sure])


def test_sums_of_unequal_probabilities_have_lighter_tails_than_the_binomial_one_that_is_used():
    # Hoeffding's theorem, at 12 unequal probabilities: exact tails by convolution
    probabilities = np.linspace(0.02, 0.9, 12)
    law = np.ones(1)
    for p in probabilities:
        law = np.convolve(law, [1 - p, p])
    mean, counts = probabilities.mean(), np.arange(13)
    upper, lower = law[::-1].cumsum()[::-1], law.cumsum()
    above, below = counts >= 12 * mean + 1, counts <= 12 * mean - 1
    assert np.all(upper[above] <= stats.binom.sf(counts - 1, 12, mean)[above])
    assert np.all(lower[below] <= stats.binom.cdf(counts, 12, mean)[below])


WRONG = ldp.LaplaceMechanism(1.0, 0, 2)


def test_a_release_warns_where_it_is_made_and_its_sketches_remember():
    values = 3 + np.random.default_rng(0).laplace(0, 20, N)
    with pytest.warns(ldp.data.ReleaseWarning, match=r"nearly impossible under .* \(probability below 1e-12\)") as said:
        release = ldp.Release(values, WRONG)
    assert said[0].filename == __file__ and issubclass(ldp.data.ReleaseWarning, ldp.LdpBayesWarning)
    assert release.doubts == (str(said[0].message),)
    sketch = release.sketch(keep_records=False)
    good = ldp.Release([0.5], WRONG)
    assert good.doubts == good.sketch().doubts == ()
    assert (sketch + good.sketch()).doubts == release.sketch().refine().doubts == sketch.doubts == release.doubts


def test_categories_too_remember():
    bits = released(functools.partial(ldp.OptimalUnaryEncoding, categories=5), 0.3, np.arange(N) % 5)
    with pytest.warns(ldp.data.ReleaseWarning, match="bits are set"):
        release = ldp.Release(bits, ldp.OptimalUnaryEncoding(3.0, 5))
    sketch = release.sketch()
    assert (sketch + sketch).doubts == 2 * release.doubts == 2 * sketch.doubts


def test_nothing_is_said_of_one_record_or_of_traced_ones():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ldp.Release([0.7], WRONG).doubts == ()
        jax.jit(lambda z: ldp.Release(z, WRONG).values)(np.full(10, 1e9))


@ldp.noise.pytree
@dataclasses.dataclass(frozen=True)
class HeavyTailed(ldp.noise.Laplace):
    """Noise that says that it has no variance, so that there is no unit of distance for its `depth`."""

    has_variance: ClassVar[bool] = False
    standard_deviation: ClassVar[float] = np.inf


def test_noise_without_a_variance_is_not_checked():
    mechanism = ldp.mechanisms.AdditiveMechanism(HeavyTailed(1.0), lower=0, upper=1)
    values = 0.5 + np.random.default_rng(0).laplace(0, 1, 500)
    with warnings.catch_warnings(action="error"):
        assert ldp.Release(values, mechanism).doubts == ()
