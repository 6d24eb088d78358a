"""Safe release of real data: cryptographic randomness, exact arithmetic, and error messages that show no data.

Randomized answers compare random 64-bit words with whole-number thresholds. Additive noise is OpenDP's: records are
whole numbers of steps of a public grid, and all that is private is exact.
"""

import decimal
import importlib.metadata
import math
import secrets
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._core.checks import require
from ldpbayes._core.pytrees import shown
from ldpbayes._core.tabular import column_names, rows_of
from ldpbayes.data import Release
from ldpbayes.mechanisms import (
    AdditiveMechanism,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    HadamardResponse,
    LaplaceMechanism,
    LocalHashing,
    Mechanism,
    OptimalUnaryEncoding,
    RandomizedResponse,
    SubsetSelection,
    SymmetricUnaryEncoding,
)
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace

__all__ = ["release"]


def release(
    mechanism: Mechanism,
    data: ArrayLike,
    *,
    clip: bool = False,
    times: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Release:
    """Release real data through a mechanism, with cryptographic randomness and safe from floating-point attacks.

    The result may be published: random numbers are drawn with exact arithmetic, so the guarantee of the mechanism holds
    for this program. All rounding is towards more privacy, and too small to change likelihoods. Answers about
    categories are drawn with Python's module `secrets`, and noise by OpenDP (the extra ``opendp``), as a multiple of a
    small step ([Mironov]; [CKS]). There is no random seed. The run time may depend on the data.

    If you release data about the same person again, the budgets of the two releases add up.

    Parameters
    ----------
    mechanism : Mechanism
        Randomized response, unary encoding, subset selection, Hadamard response or local hashing; or Laplace, Gaussian,
        discrete Laplace or discrete Gaussian noise in all columns. Budgets may be personal.
    data : array_like (N,) or (N, columns)
        Original records: codes 0, ..., k − 1, or numbers between the bounds; or one statistic. Numbers must be whole
        for discrete noise. The columns of a data frame are read by the names in the mechanism.
    clip : bool
        True to clip numbers to the bounds. Default: False. Numbers beyond the bounds then raise a ValueError.
    times : int, optional
        Largest number of records about one person, as in `Release`. Default: 1.
    about : dict, optional
        Public facts that are stored with the release and the name of the sampler, such as ``{"column": "smokes"}``.

    Raises
    ------
    ValueError, TypeError
        No safe sampler exists for the mechanism, or data are missing or not allowed. Messages show no records or
        positions.
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism, the first argument, must be an ldpbayes mechanism; got {type(mechanism).__name__}")
    if problem := _unsafe(mechanism):
        raise ValueError(f"{type(mechanism).__name__} cannot be released: {problem}")
    draw = answers if type(mechanism) in ANSWERS else noisy
    values, sampler = draw(mechanism, _read(mechanism, data, clip))
    about = {**(about or {}), "sampler": sampler}
    return Release(values.reshape(-1, *mechanism.event_shape), mechanism, times=times, about=about)


def _unsafe(mechanism: Any) -> str | None:
    """Why a mechanism cannot be run safely; None if it can."""
    if type(mechanism) in ANSWERS:
        infinite = np.isinf(mechanism.epsilon).any()
        return "a record of infinite budget would be released unchanged; epsilon must be finite" if infinite else None
    if type(mechanism) not in SAFE_MECHANISMS or type(mechanism.noise) not in SAFE_NOISES:
        kinds, laws = (", ".join(kind.__name__ for kind in table) for table in (ANSWERS, SAFE_NOISES))
        return f"it has no safe sampler; samplers exist for {kinds}, and for {laws} noise"
    if mechanism.perturbed is not None and mechanism.dimension < len(mechanism.names):
        return "nothing would protect the columns that get no noise; leave them out"
    if mechanism.columns is None and np.ndim(mechanism.lower) + np.ndim(mechanism.upper):
        return "bounds must be numbers, public and the same for all records"
    if not mechanism.bounded and (np.isinf(mechanism.sensitivity) or mechanism.columns or mechanism.batch_shape):
        return "a statistic must be one number, with a finite sensitivity and one scale"
    step, deviations, ranges = step_of(mechanism), scales(mechanism), widths(mechanism)
    if mechanism.noise.discrete:
        largest = max(np.max(deviations), np.max(ranges), np.max(np.abs(mechanism.lower)) if mechanism.bounded else 0)
        return "bounds, sensitivity and scale must be below 2^50" if largest >= MOST_STEPS else None
    fine = 2.0**-900 < step < 2.0**900 and np.min(deviations) >= FEWEST_STEPS * step  # nothing under- or overflows
    return None if fine else f"its range and scale ({np.min(deviations):g}) are too large, too small or too far apart"


def _read(mechanism: Any, data: Any, clip: bool) -> np.ndarray:
    """Original records in double precision, between the bounds, or codes as integers; errors do not quote them."""
    codes = type(mechanism) in ANSWERS
    statistic = not codes and not mechanism.bounded
    if clip and (codes or statistic):
        raise ValueError("clip is only for numbers with bounds, not for categories and statistics")
    array = _array(data, None if codes else mechanism.columns)
    array, event = np.atleast_1d(array) if statistic else array, mechanism.record_shape
    if array.ndim != 1 + len(event) or array.shape[1:] != event or not array.size or (statistic and array.size > 1):
        needed = "one number" if statistic else f"rows of {event[0]} columns" if event else "one number for each record"
        raise ValueError(f"data must be {needed}, got an array of shape {array.shape}")
    if mechanism.batch_shape not in ((), (1,), array.shape[:1]):
        raise ValueError(f"there are {len(array)} records, but budgets of shape {mechanism.batch_shape}")
    if not np.isfinite(array).all():
        raise ValueError("some records are missing, or infinite")
    low, high = (0, mechanism.categories - 1) if codes else (mechanism.lower, mechanism.upper)
    if statistic:
        high = MOST_STEPS if mechanism.noise.discrete else FARTHEST_STEPS * step_of(mechanism)
        low = -high
    array = np.clip(array, low, high) if clip else array
    if ((array < low) | (array > high)).any():
        advice = "" if codes or statistic else "; clip=True (--clip) moves them to the bounds"
        raise ValueError(f"some records lie outside {shown(low)}..{shown(high)}{advice}")
    if (codes or mechanism.noise.discrete) and (array % 1 != 0).any():
        raise ValueError("some records are not whole numbers")
    return array.astype(np.int64) if codes else array


def _array(data: Any, columns: Any) -> np.ndarray:
    """Data as an array of doubles, a frame's `columns` in their order, if they have names."""
    names = column_names(data)
    if names is not None and isinstance(columns, tuple):
        if sorted(map(str, names)) != sorted(columns):
            raise ValueError(f"data must have the columns {', '.join(columns)}, and no others")
        data = rows_of(data, columns)
    if np.ma.is_masked(data):
        raise ValueError("some records are missing")
    try:
        array = np.asarray(data)
    except Exception:  # whose message may quote the data
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ValueError("data must be an array of numbers: no words, no None, no rows of different lengths")
    with np.errstate(over="ignore"):
        return array.astype(float)


PROBABILITY_PARTS = 1 << 64  # a probability is a whole number of parts in 2^64
WORDS_AT_ONCE = 1 << 22  # random words that are held at a time, of answers with a word a category


def random_words(*shape: int) -> np.ndarray:
    """Independent uniform integers from 0 to 2^64 − 1, by the operating system's cryptographic generator."""
    return np.frombuffer(bytearray(secrets.token_bytes(8 * math.prod(shape))), np.uint64).reshape(shape)


def uniform(number: int, size: int) -> np.ndarray:
    """Integers 0, ..., number − 1, exactly equally likely: words beyond the last whole multiple are drawn again."""
    words, last = random_words(size), np.uint64(PROBABILITY_PARTS - PROBABILITY_PARTS % number - 1)
    while (beyond := words > last).any():
        words[beyond] = random_words(beyond.sum())
    return (words % np.uint64(number)).astype(np.int64)


def flip_threshold(odds: Fraction | int, epsilon: float) -> int:
    """The probability t, in parts of 2^64, of an answer that does not support the record: the least with odds·(2^64 −
    t)/t ≤ e^epsilon, for `odds` times as many such answers as others. ValueError if the ratio is below 1.
    """
    with decimal.localcontext(prec=50):  # `exp` rounds to the nearest; of large budgets e^100 is a lower bound
        ratio = Fraction(decimal.Decimal(min(epsilon, 100.0)).exp()) * (1 - Fraction(1, 10**45))
    t = math.ceil(PROBABILITY_PARTS * odds / (ratio + odds))
    if odds * (PROBABILITY_PARTS - t) < t:
        raise ValueError(f"epsilon is too small for probabilities in multiples of 2^-64, got {epsilon}")
    return t


def answers(mechanism: Any, x: np.ndarray) -> tuple[np.ndarray, str]:
    """Answers to codes (n,), and who drew them."""
    budgets, budget_of = np.unique(np.broadcast_to(mechanism.epsilon, len(x)), return_inverse=True)
    draw, thresholds = ANSWERS[type(mechanism)]
    pairs = np.array([thresholds(mechanism, float(epsilon)) for epsilon in budgets], np.uint64)[budget_of]
    size = max(1, WORDS_AT_ONCE // math.prod(mechanism.event_shape))
    chunks = (slice(start, start + size) for start in range(0, len(x), size))
    parts = [draw(mechanism, x[rows], *pairs[rows].T) for rows in chunks]
    return np.concatenate(parts), "Python's secrets, probabilities in parts of 2^64"


def _flipped(code: np.ndarray, flip: np.ndarray, number: int) -> np.ndarray:
    other = uniform(number - 1, len(code))
    return np.where(random_words(len(code)) < flip, other + (other >= code), code)


def _bits(mechanism: Any, x: np.ndarray, off: np.ndarray, on: np.ndarray) -> np.ndarray:
    words, is_true = random_words(len(x), mechanism.categories), x[:, None] == np.arange(mechanism.categories)
    return np.where(is_true, words >= off[:, None], words < on[:, None]).astype(np.uint8)


def _subset(mechanism: SubsetSelection, x: np.ndarray, flip: np.ndarray, _: np.ndarray) -> np.ndarray:
    """The own code is in the set or not; the others are the first ones of a random order, drawn again where it ties."""
    d, held = mechanism.categories, random_words(len(x)) >= flip
    words, is_true = random_words(len(x), d - 1), x[:, None] == np.arange(d)
    while (ties := (np.diff(np.sort(words, axis=1), axis=1) == 0).any(axis=1)).any():
        words[ties] = random_words(ties.sum(), d - 1)
    z, rank = np.empty((len(x), d), np.uint8), np.argsort(np.argsort(words, axis=1), axis=1)
    z[is_true], z[~is_true] = held, (rank < (mechanism.subset_size - held)[:, None]).ravel()
    return z


def _column(mechanism: HadamardResponse, x: np.ndarray, flip: np.ndarray, _: np.ndarray) -> np.ndarray:
    row, column = x + 1, uniform(mechanism.columns, len(x))
    odd = np.bitwise_count(row & column) % 2 == 1
    # the lowest bit of the row maps the columns that support x onto the others
    return np.where(odd == (random_words(len(x)) < flip), column, column ^ (row & -row))


def _seed_and_hash(mechanism: LocalHashing, x: np.ndarray, flip: np.ndarray, _: np.ndarray) -> np.ndarray:
    seed = uniform(1 << 32, len(x))
    code = np.asarray(mechanism.hash(seed.astype(np.uint32), x), np.int64)
    return np.stack([seed, _flipped(code, flip, mechanism.hash_range)], axis=-1)


def _by_odds(odds: Callable[[Any], Any]) -> Callable[[Any, float], tuple[int, int]]:
    return lambda mechanism, epsilon: (flip_threshold(odds(mechanism), epsilon), 0)


# How each class is drawn, and not others derived from it; and from a mechanism and epsilon, in parts of 2^64, the
# probability that an answer does not support the record (for unary encodings, that its own bit is 0), and for unary
# encodings that another bit is 1.
ANSWERS: dict[type, tuple[Callable, Callable]] = {
    HadamardResponse: (_column, _by_odds(lambda m: 1)),
    LocalHashing: (_seed_and_hash, _by_odds(lambda m: m.hash_range - 1)),
    OptimalUnaryEncoding: (_bits, lambda m, epsilon: (PROBABILITY_PARTS // 2, flip_threshold(1, epsilon))),
    RandomizedResponse: (lambda m, x, flip, _: _flipped(x, flip, m.categories), _by_odds(lambda m: m.categories - 1)),
    SubsetSelection: (_subset, _by_odds(lambda m: Fraction(m.categories - m.subset_size, m.subset_size))),
    # two codes differ in two bits, which tell them apart alike
    SymmetricUnaryEncoding: (_bits, lambda m, epsilon: (flip_threshold(1, epsilon / 2),) * 2),
}


SAFE_NOISES = (DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace)
SAFE_MECHANISMS = (
    AdditiveMechanism,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
)
# Steps in the widest range or the largest scale; fewer for a statistic, which can be FARTHEST steps from 0 (of 2^63).
MOST_STEPS, MOST_STEPS_OF_STATISTIC, FARTHEST_STEPS = 2.0**50, 2.0**36, 2.0**62
FEWEST_STEPS = 2.0**20  # steps in a scale: curves of a law on the grid exceed those of the continuous law by 1/steps²


def widths(mechanism: Any) -> np.ndarray:
    """How far one record can move each column."""
    return mechanism.ranges if mechanism.bounded else np.array([mechanism.sensitivity])


def scales(mechanism: Any) -> np.ndarray:
    """OpenDP's scale of the noise, in the unit of the data: a number, or one a record."""
    noise = mechanism.noise
    return np.asarray(noise.standard_deviation if isinstance(noise, Gaussian) else noise.scale)


def step_of(mechanism: Any) -> float:
    """Distance of neighbouring points of the grid: 1 under discrete noise, else a power of two."""
    widest = max(np.max(widths(mechanism)), np.max(scales(mechanism)))
    steps = MOST_STEPS if mechanism.bounded else MOST_STEPS_OF_STATISTIC
    return 1.0 if mechanism.noise.discrete else 2.0 ** math.frexp(widest)[1] / steps


def measurements(mechanism: Any) -> dict[float, tuple[Any, int, float]]:
    """For each scale OpenDP's measurement of whole numbers of steps, how many steps apart two records can be, and the
    bound that the mechanism states: epsilon, or ρ = μ²/2 for Gaussian noise. The scale is the least from the stated one
    on at which OpenDP's bound is at most that. A range counts two steps more than it has: records are rounded to the
    grid, and the curve on the grid exceeds the continuous one by 1/steps². Discrete Gaussian noise has its stated
    scale, whose curve is exact.
    """
    require("opendp", "opendp")
    import opendp.prelude as dp

    dp.enable_features("contrib")
    noise, step, domain = mechanism.noise, step_of(mechanism), dp.vector_domain(dp.atom_domain(T="i64"))
    moves = [math.ceil(Fraction(width) / Fraction(step)) + 2 * (not noise.discrete) for width in widths(mechanism)]
    if noise.norm == 1:
        distance, bounds = sum(moves), mechanism.guarantee.epsilon(0.0)
        metric, make = dp.l1_distance(T="i64"), dp.m.make_laplace
        least = distance / bounds
    else:
        distance = math.isqrt(sum(move**2 for move in moves) - 1) + 1
        bounds = math.inf if noise.discrete else mechanism.guarantee.tradeoff.mu**2 / 2
        metric, make = dp.l2_distance(T="i64"), dp.m.make_gaussian
        least = distance / np.sqrt(2 * bounds)
    result = {}
    for scale, bound, start in sorted({*np.broadcast(scales(mechanism), bounds, least)}, reverse=True):
        steps = max(scale / step, start)
        while (measurement := make(domain, metric, scale=steps)).map(distance) > bound:
            steps = math.nextafter(steps, math.inf)
        result[float(scale)] = measurement, distance, float(bound)  # the least bound of a scale comes last, and counts
    return result


def noisy(mechanism: Any, x: np.ndarray) -> tuple[np.ndarray, str]:
    """Records (n,) or (n, columns), between the bounds, with noise; and who drew the noise."""
    step, origin = step_of(mechanism), np.asarray(mechanism.lower if mechanism.bounded else 0.0)
    steps, scale_of = np.rint((x - origin) / step).astype(np.int64), np.broadcast_to(scales(mechanism), len(x))
    z = np.empty_like(steps)
    for scale, (measurement, _, _) in measurements(mechanism).items():
        rows = scale_of == scale
        z[rows] = np.reshape(_run(measurement, steps[rows].ravel().tolist()), steps[rows].shape)
    grid = "whole numbers" if mechanism.noise.discrete else f"multiples of 2^{math.frexp(step)[1] - 1}"
    sampler = f"OpenDP {importlib.metadata.version('opendp')}, noise on {grid}"
    return z + origin.astype(np.int64) if mechanism.noise.discrete else origin + step * z, sampler


def _run(measurement: Any, steps: list[int]) -> list[int]:
    """Draw; OpenDP's own errors may quote what it was given, and are not passed on."""
    try:
        return measurement(steps)
    except Exception:
        pass
    raise RuntimeError("OpenDP's sampler failed; nothing is released")
