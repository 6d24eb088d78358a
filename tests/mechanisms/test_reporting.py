"""Reporting rules against their definition: every number that noise can make, reported, and added up."""

import itertools
import json
import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import integrate

import ldpbayes as ldp
from ldpbayes.mechanisms import (
    AdditiveMechanism,
    Banded,
    Capped,
    Floored,
    Incomplete,
    Rounded,
    StaircaseMechanism,
    SymmetricLaplaceMechanism,
    Withheld,
    mechanism_from_spec,
)
from ldpbayes.mechanisms.reporting import Reported
from ldpbayes.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Staircase,
    SymmetricLaplace,
)
from tests.programs import call, randomize

pytestmark = pytest.mark.usefixtures("x64")
NAN = np.nan
WHOLE = AdditiveMechanism(DiscreteGaussian(3.0), sensitivity=1.0)
# each rule, and what it reports
RULES = {
    "floored": (lambda m: Floored(m, 2.0), lambda z: np.maximum(z, 2)),
    "banded": (lambda m: Banded(m, [4.0, 5.0, 9.0]), lambda z: np.searchsorted([4, 5, 9], z, "right") * 1.0),
    "rounded, withheld, then banded, of which one band is withheld": (
        lambda m: Withheld(Banded(Rounded(m, 4.0), [3.0, 7.0, 12.0]), 2.0),
        lambda z: np.where(z < 6, NAN, np.searchsorted([3, 7, 12], 4 * np.floor(z / 4 + 0.5), "right")),
    ),
    "withheld, then banded": (
        lambda m: Banded(Withheld(m, 6.0), [8.0]),
        lambda z: np.where(z < 6, NAN, (z >= 8) * 1.0),
    ),
    "capped": (lambda m: Capped(m, 9.0), lambda z: np.minimum(z, 9)),
    "rounded, floored, capped, then withheld": (
        lambda m: Withheld(Capped(Floored(Rounded(m, 4.0), 2.0), 11.0), 5.0),
        lambda z: np.where(z < 6, NAN, np.minimum(4 * np.floor(z / 4 + 0.5), 11)),
    ),
    "capped, then rounded": (
        lambda m: Rounded(Capped(m, 9.0), 4.0),
        lambda z: 4 * np.floor(np.minimum(z, 9) / 4 + 0.5),
    ),
    "capped below the floor": (lambda m: Floored(Capped(m, 3.0), 5.0), lambda z: np.full_like(z, 5)),
    "withheld": (lambda m: Withheld(m, 10.0), lambda z: np.where(z < 10, NAN, z)),
    "rounded": (lambda m: Rounded(m, 5.0), lambda z: 5 * np.floor(z / 5 + 0.5)),
    "rounded to an even number, with ties": (lambda m: Rounded(m, 4.0), lambda z: 4 * np.floor(z / 4 + 0.5)),
    "withheld, then rounded": (
        lambda m: Rounded(Withheld(m, 7.0), 5.0),
        lambda z: np.where(z < 7, NAN, 5 * np.floor(z / 5 + 0.5)),
    ),
    "rounded, then withheld": (
        lambda m: Withheld(Rounded(m, 5.0), 10.0),
        lambda z: np.where(5 * np.floor(z / 5 + 0.5) < 10, NAN, 5 * np.floor(z / 5 + 0.5)),
    ),
    "floored, then rounded": (
        lambda m: Rounded(Floored(m, 2.0), 4.0),
        lambda z: 4 * np.floor(np.maximum(z, 2) / 4 + 0.5),
    ),
    "withheld, then floored": (
        lambda m: Floored(Withheld(m, 5.0), 8.0),
        lambda z: np.where(z < 5, NAN, np.maximum(z, 8)),
    ),
}


SHORT = {"rounded, then withheld": DiscreteGaussian}  # others are slow


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        pytest.param(name, noise, id=name, marks=() if SHORT.get(name) is type(noise) else pytest.mark.slow)
        for name in RULES
        for noise in (DiscreteGaussian(3.0), DiscreteLaplace(0.8))
    ],
)
def test_probabilities_are_those_of_all_numbers_that_are_reported_alike(name, noise):
    make, reported = RULES[name]
    rule, x = make(AdditiveMechanism(noise, sensitivity=1.0)), 7
    numbers = np.arange(-398.0, 402.0)  # ends of groups of 4 and of 5, or 1e-200 beyond
    mass, printed = np.exp(call("log_prob", noise, (numbers - x)[:, None])), reported(numbers)
    z = np.unique(printed[np.abs(numbers - x) < 40])
    want = [np.sum(mass[np.isnan(printed) if np.isnan(each) else printed == each]) for each in z]
    # the rule and the values are arguments of compiled functions, mapped or not
    plain = call("log_prob", rule, z, x)
    np.testing.assert_allclose(np.exp(plain), want, rtol=1e-12)
    traced = jax.jit(jax.vmap(lambda rule, z: rule.log_prob(z, x), (None, 0)))(rule, z)
    np.testing.assert_allclose(traced, plain, rtol=1e-12)
    draws = randomize(rule, np.full(200, x))
    assert set(np.unique(draws[~np.isnan(draws)])) <= set(z) and (np.isnan(draws).any() == np.isnan(z).any())
    again = mechanism_from_spec(json.loads(json.dumps(rule.spec())))
    assert again == rule and again.guarantee.statement() == rule.innermost.guarantee.statement()


CONTINUOUS = [
    Laplace(2.0),
    SymmetricLaplace(2.0),
    Gaussian(2.0),
    Staircase(3.0, 1.0, 0.3),
]
INTERVALS = np.array(
    [(-np.inf, np.inf), (-np.inf, -3), (-np.inf, 2), (1, np.inf), (-2, 3), (-3, 2), (5, 6), (-31.5, -30.5), (0, 1.2)]
)


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(noise, id=type(noise).__name__, marks=() if isinstance(noise, Gaussian) else pytest.mark.slow)
        for noise in CONTINUOUS
    ],
)
def test_intervals_of_continuous_noise_have_the_integral_of_its_density_and_its_derivative(noise):
    jumps = np.concatenate([3 * np.arange(15) + 0.9, [0.0]])
    cuts = np.unique(np.concatenate([np.arange(-42.0, 43.0), jumps, -jumps]))

    def density(t):
        return np.exp(call("log_prob", noise, t[:, None]))

    got = np.exp(call("log_interval", noise, *INTERVALS.T))
    for (low, high), probability in zip(INTERVALS, got, strict=True):
        ends = np.clip([low, high], -42, 42)
        points = np.unique(np.concatenate([ends, cuts[(cuts > ends[0]) & (cuts < ends[1])]]))
        parts = [integrate.fixed_quad(density, *pair, n=12)[0] for pair in itertools.pairwise(points)]
        want = np.sum(parts)
        # 42 is 21 scales at least, but for the staircase's 14 steps, of which exp(-14) is left
        assert probability == pytest.approx(want, rel=1e-10 if np.isfinite([low, high]).all() else 1e-5)

    def of_shift(x):
        return noise.log_interval(INTERVALS[1:, 0] - x, INTERVALS[1:, 1] - x)

    h, both = 1e-6, jax.jit(lambda x: jax.jvp(of_shift, (x,), (1.0,)))
    above, below = (np.asarray(both(0.13 + step)[0]) for step in (h, -h))
    np.testing.assert_allclose(both(0.13)[1], (above - below) / (2 * h), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("law", [DiscreteLaplace, DiscreteGaussian])
@pytest.mark.parametrize("scale", [1.4999, 1.5001, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.3, 20.0))])
@pytest.mark.slow
def test_tails_of_discrete_noise_are_sums_of_its_formula_from_any_real_number_on(law, scale):
    noise, start = law(scale), np.array([0.0, 0.4, 1.0, 6.6, 35.0])
    away = start[:, None] + np.arange(1500)
    want = np.logaddexp.reduce(np.asarray(noise.continued(away[..., None])), axis=1)
    np.testing.assert_allclose(noise.log_tail(start), want, rtol=1e-13, atol=1e-13)
    # both ends far out on one side, where a difference of probabilities near 1 would have no digits
    far = np.logaddexp.reduce(np.asarray(noise.log_prob(np.arange(40.0, 44.0)[:, None])))
    np.testing.assert_allclose(noise.log_interval(np.array([40.0, -43.0]), np.array([43.0, -40.0])), far, rtol=1e-12)


def test_sums_around_real_numbers_are_off_by_what_is_stated():
    n, k = np.linspace(0, 1, 21), np.arange(-400.0, 400.0)
    for scale in (0.7, 2.0):
        total = np.exp(call("continued", DiscreteLaplace(scale), (k - n[:, None])[..., None])).sum(axis=1)
        np.testing.assert_allclose(total, np.cosh((0.5 - n) / scale) / np.cosh(0.5 / scale), rtol=1e-12)
        assert 1 / np.cosh(0.5 / scale) >= 1 - 1 / (8 * scale**2)
        total = np.exp(call("continued", DiscreteGaussian(scale), (k - n[:, None])[..., None])).sum(axis=1)
        assert np.all(total <= 1 + 1e-12) and np.all(total >= 1 - 4 * np.exp(-2 * np.pi**2 * scale**2) - 1e-12)


def test_a_third_partys_noise_without_tails_is_told_so():
    theirs = type("Theirs", (Laplace,), {"log_tail": ldp.noise.Noise.log_tail})(1.0)
    with pytest.raises(ValueError, match="Theirs has no log_tail, the log of P"):
        theirs.log_interval(np.zeros(1), np.ones(1))


def test_bands_are_read_from_text():
    words = ["< 10", "[10, 20)", "20-29", "30 to 39", ">= 60", "(39, 59]", "10-19", "<=9", "60+", "> 59"]
    codes, rule = Banded.from_text(WHOLE, words)
    assert codes.tolist() == [0, 1, 2, 3, 5, 4, 1, 0, 5, 5] and rule.edges.tolist() == [10, 20, 30, 40, 60]
    low, high = rule.interval(codes)
    assert (low[2], high[2], low[4], high[4]) == (20, 29, 60, np.inf)
    codes, rule = Banded.from_text(
        AdditiveMechanism(Gaussian(1.0), sensitivity=1.0), ["0.5-1.5", "-2 - 0.5", "<-2", "8+"]
    )
    assert codes.tolist() == [2, 1, 0, 4] and rule.edges.tolist() == [-2, 0.5, 1.5, 8]
    assert len(ldp.Release(codes, rule)) == 4


KINDS = {
    Floored: np.maximum,
    Capped: np.minimum,
    Withheld: lambda v, a: np.where(v < a, NAN, v),
    Rounded: lambda v, a: a * np.floor(v / a + 0.5),
    Banded: lambda v, a: np.where(np.isnan(v), v, np.searchsorted(a, v, "right")),
}


def test_nested_rules_know_what_they_can_print_and_of_which_numbers():
    rng, numbers = np.random.default_rng(0), np.arange(-60.0, 61.0)
    for _ in range(300):
        rule, printed = WHOLE, numbers
        for kind in rng.choice(list(KINDS), rng.integers(1, 5)):
            if kind is Withheld and rule.may_be_missing:
                continue
            argument = float(rng.integers(1, 6) if kind is Rounded else rng.integers(-8, 12))
            argument = np.unique(rng.integers(-8, 12, 3)).astype(float) if kind is Banded else argument
            rule, printed = kind(rule, argument), KINDS[kind](printed, argument)
        candidates = np.append(np.arange(-20.0, 20.5, 0.5), NAN if rule.may_be_missing else 0.0)
        for z, low, high in zip(candidates, *rule.interval(candidates), strict=True):
            those = numbers[np.isnan(printed) if np.isnan(z) else printed == z]
            want = (np.min(those), np.max(those)) if len(those) else (np.inf, -np.inf)
            want = [end * np.inf if abs(end) == 60 else end for end in want]  # the numbers go on
            assert [low, high] == want, (rule, z)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_release_files_hold_what_is_missing_as_nan(ending, tmp_path):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    for values, rule in (
        ([NAN, 12, 15], Withheld(WHOLE, 10)),
        ([NAN, -3, 4], Incomplete(WHOLE)),
        ([0, 4, 2], Floored(WHOLE)),
        (
            [NAN, 30.0, 40.0],
            Rounded(Withheld(AdditiveMechanism(Laplace(np.array([1.0, 2, 3])), sensitivity=1.0), 30), 10),
        ),
    ):
        release = ldp.Release(values, rule)
        release.save(tmp_path / f"r.{ending}")
        again = ldp.Release.load(tmp_path / f"r.{ending}")
        np.testing.assert_array_equal(again.values, values)
        assert again.mechanism == rule and again.values.dtype == release.values.dtype
        assert (release.values.dtype.kind == "i") == isinstance(rule, Floored)  # no NaN among them: whole numbers


def test_single_precision_is_read_as_what_it_was():
    rule = Withheld(AdditiveMechanism(Gaussian(1.0), sensitivity=1.0), 0.7)  # above 0.7 in single precision
    assert ldp.Release(np.array([0.7, 0.9], np.float32), rule).values[0] == 0.7
    rule = Rounded(AdditiveMechanism(Gaussian(1.0), sensitivity=1.0), 0.1)
    low, high = rule.interval(ldp.Release(np.array([0.3, 0.7], np.float32), rule).values)
    np.testing.assert_allclose([low, high], [[0.25, 0.65], [0.35, 0.75]], rtol=1e-12)


REFUSED = [
    (
        lambda: ldp.Release([0, -3], Floored(WHOLE)),
        r"Floored.* cannot print 1 of the values, the first \(-3\) at 1",
    ),
    (lambda: ldp.Release([0, 3], Banded(WHOLE, [4, 9])), r"cannot print 1 of the values, the first \(3\) at 1"),
    (lambda: ldp.Release([0, 1.5], Banded(WHOLE, [4, 9])), r"cannot print 1 of the values, the first \(1.5\) at 1"),
    (lambda: ldp.Release([0, NAN], Banded(WHOLE, [4, 9])), "values must be finite"),
    (lambda: Banded(WHOLE, [4, 4]), "edges must be a list of increasing numbers"),
    (lambda: Banded(WHOLE, 4), "edges must be a list of increasing numbers"),
    (lambda: Banded.from_text(WHOLE, ["<10", "many"]), r"1 cells are no bands, the first \(many\) at 1"),
    (lambda: Banded.from_text(WHOLE, ["<10", "5-12"]), r"2 bands have an end of another band inside, .* \(<10\) at 0"),
    (lambda: Banded.from_text(AdditiveMechanism(Gaussian(1.0), sensitivity=1.0), ["7"]), r"no bands, .* \(7\)"),
    (
        lambda: ldp.Release([0, 13], Capped(WHOLE, 12)),
        r"cap=12.0\) cannot print 1 of the values, the first \(13\) at 1",
    ),
    (lambda: ldp.Release([0.5, 1.2], Capped(AdditiveMechanism(Gaussian(1.0), sensitivity=1.0), 1)), r"\(1.2\) at 1"),
    (
        lambda: ldp.Release([5, NAN], Capped(WHOLE, 12)),
        r"finite .NaN is printed by Withheld and Incomplete only.; 1 are not, the first \(nan\) at 1",
    ),
    (lambda: ldp.Release([NAN, 9], Withheld(WHOLE, 10)), r"threshold=10.0\) cannot print .* \(9.0\) at 1"),
    (lambda: ldp.Release([5, 9], Rounded(WHOLE, 5)), r"unit=5.0\) cannot print 1 of the values, the first \(9"),
    (lambda: ldp.Release([2.5, 1], Incomplete(WHOLE)), r"cannot print 1 of the values, the first \(2.5\) at 0"),
    (
        lambda: ldp.Release([5, NAN], Rounded(WHOLE, 5)),
        r"finite .NaN is printed by Withheld and Incomplete only.; 1 are not, the first \(nan\) at 1",
    ),
    # all that is printed is at least 5, so that no number is withheld
    (lambda: ldp.Release([5, NAN], Withheld(Floored(WHOLE, 5), 3)), r"cannot print 1 of .* the first \(nan\) at 1"),
    (lambda: ldp.Release([5, NAN], Withheld(Floored(WHOLE, 3), 3)), r"cannot print 1 of .* the first \(nan\) at 1"),
    (
        lambda: ldp.Release([5, np.inf], Withheld(WHOLE, 1)),
        r"finite .NaN is printed by Withheld and Incomplete only.; 1 are not, the first \(inf\) at 1",
    ),
    (lambda: Withheld(Incomplete(WHOLE), 3), "NaN would have two meanings under Withheld"),
    (lambda: Floored(WHOLE, 0.5), "floor must be a whole number under discrete noise, got 0.5"),
    (lambda: Rounded(WHOLE, -1), "unit must be positive and finite, got -1"),
    (lambda: Withheld(WHOLE, "10"), "threshold must be finite, got the string '10'"),
    (lambda: Floored(WHOLE).moments(1.0), "Floored has no formula for the moments"),
    (lambda: Floored(WHOLE).unbiased(1.0), "Floored has no unbiased values"),
    (lambda: ldp.Release([0.0], Floored(AdditiveMechanism(Laplace(1.0), -1, 1))).sketch(), "has no released_range"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_no_rule_can_report_or_be_is_refused_with_its_place(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "mechanism",
    [
        ldp.RandomizedResponse(1.0),
        ldp.LaplaceMechanism(1.0, 0, 1, columns=2),
        SymmetricLaplaceMechanism([0.0, 2.0], 0, 4),
        "laplace",
    ],
)
def test_rules_are_for_noisy_numbers(mechanism):
    with pytest.raises(TypeError, match=r"Floored takes an additive mechanism of numbers .or a rule around one"):
        Floored(mechanism)


def test_values_that_cannot_be_are_impossible_where_they_are_traced():
    rule = Withheld(WHOLE, 10.0)
    both = jax.jit(lambda z: jax.jvp(lambda x: rule.log_prob(z, x), (7.0,), (1.0,)))(np.array([9.0, 10.5, 11.0]))
    log_prob, slope = map(np.asarray, both)
    assert np.isneginf(log_prob[:2]).all() and np.isfinite(log_prob[2]) and np.isfinite(slope).all()


@pytest.mark.slow
def test_what_is_missing_at_random_says_nothing():
    rule = Incomplete(Floored(WHOLE, 2.0))
    log_prob, slope = jax.jvp(lambda x: rule.log_prob(np.array([NAN, 2.0]), x), (1.5,), (1.0,))
    assert log_prob[0] == slope[0] == 0 and log_prob[1] == Floored(WHOLE, 2.0).log_prob(2.0, 1.5)
    mean, variance = Incomplete(WHOLE).moments(4.0)
    assert (mean, variance) == (4, pytest.approx(float(WHOLE.noise.variance)))
    assert not np.isnan(rule.randomize(jax.random.key(0), np.arange(5))).any()


@pytest.mark.parametrize(
    "mechanism",
    [ldp.LaplaceMechanism(1.0, 0, 4), StaircaseMechanism(1.0, 0, 4)],
    ids=["laplace", "staircase"],
)
def test_breakpoints_are_where_the_probability_bends(mechanism):
    rule, z = Rounded(Withheld(mechanism, 2.0), 1.0), np.array([NAN, 3.0])
    cuts = rule.breakpoints(z)
    assert isinstance(cuts, np.ndarray) and np.isfinite(cuts).all()
    traced = jax.jit(lambda z: rule.breakpoints(z))(z)
    np.testing.assert_allclose(traced, cuts, rtol=1e-12)
    assert isinstance(rule, Reported)


@jax.jit
def applied(rule, numbers):
    return rule._applied(numbers)


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize(("inner", "outer"), [("0.1", "0.2"), ("0.7", "1.4"), ("0.01", "0.1"), ("0.3", "0.6")])
def test_rules_around_rounding_print_what_fractions_say_at_ties_and_thresholds(inner, outer, x64):
    with jax.enable_x64(x64):
        unit, wide, places = Fraction(inner), Fraction(outer), range(-300, 301)
        rounded = Rounded(AdditiveMechanism(Laplace(1.0), sensitivity=1.0), float(inner))
        printed = applied(rounded, np.array([float(place * unit) for place in places], float if x64 else np.float32))
        again = applied(Rounded(rounded, float(outer)), printed)
        # All are multiples of the wider unit, which differ by it.
        expected = [float(wide * math.floor(place * unit / wide + Fraction(1, 2))) for place in places]
        np.testing.assert_allclose(again, expected, atol=0.01 * float(outer))
        for threshold in (3, 7, 9, 21, 147):
            withheld = applied(Withheld(rounded, float(threshold * unit)), printed)
            np.testing.assert_array_equal(np.isnan(withheld), [place < threshold for place in places])
