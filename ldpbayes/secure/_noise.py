"""Additive noise by OpenDP: records are whole numbers of steps of a public grid, and all that is private is exact."""

import importlib.metadata
import math
from fractions import Fraction
from typing import Any

import numpy as np

import ldpbayes.mechanisms as mechanisms
from ldpbayes._core.checks import require
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace

NOISES = (DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace)
MECHANISMS = [getattr(mechanisms, f"{name}Mechanism") for name in ("Additive", *(law.__name__ for law in NOISES))]
# Steps in the widest range or the largest scale; fewer for a statistic, which can be FARTHEST steps from 0 (of 2^63).
MOST, MOST_OF_STATISTIC, FARTHEST = 2.0**50, 2.0**36, 2.0**62
FEWEST = 2.0**20  # steps in a scale: curves of a law on the grid exceed those of the continuous law by 1/steps²


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
    steps = MOST if mechanism.bounded else MOST_OF_STATISTIC
    return 1.0 if mechanism.noise.discrete else 2.0 ** math.frexp(widest)[1] / steps


def measurements(mechanism: Any) -> dict[float, tuple[Any, int, float]]:
    """For each scale OpenDP's measurement of whole numbers of steps, how many steps apart two records can be, and the
    bound that the mechanism states: epsilon, or for Gaussian noise ρ = μ²/2 of zero-concentrated differential privacy.

    The measurement has the least scale, from the stated one on, at which OpenDP's own bound is at most that. A range
    counts two steps more than it has: records are rounded to the grid, and the curve of the law on the grid exceeds
    that of the continuous law by 1/steps². Discrete Gaussian noise has its stated scale, for which its curve is exact.
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
