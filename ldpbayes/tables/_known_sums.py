"""Sums of cells that are known exactly: which there are, and whole numbers given their sum."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import signal

from ldpbayes._core.checks import FINITE, checked
from ldpbayes.data import NoisyTable

NEGLIGIBLE = 1e-24  # share of the largest probability below which ends of a sum's law are cut off
BLOCK = 1 << 22  # probabilities of parts given their sum that are held at once


class KnownSum(NamedTuple):
    """Cells (rows) whose sum is known, none of which is in another known sum."""

    name: str
    rows: np.ndarray
    value: float


def known_sums(table: NoisyTable, total: Any, least: np.ndarray, most: np.ndarray, whole: bool) -> list[KnownSum]:
    """Known sums as sums of disjoint cells: of nested ones, the outer without the inner. ValueError, by key and label,
    for sums that contradict one another or the cells' bounds, or that overlap without being nested.
    """
    requests = []
    for keys, sums in (total if isinstance(total, Mapping) else {None: total}).items():
        names = () if keys is None else keys if isinstance(keys, tuple) else (keys,)
        for key in names:
            if key not in table.keys:
                raise ValueError(f"total names the key {key!r}; the keys of the table are {', '.join(table.keys) or 'none'}")
        for label, value in (sums.items() if isinstance(sums, Mapping) else [((), sums)]):
            labels = label if isinstance(label, tuple) else (label,)
            name = ", ".join(f"{key} = {each!r}" for key, each in zip(names, labels, strict=True)) or "all cells"
            inside = np.ones(table.count, bool)
            for key, each in zip(names, labels, strict=True):
                inside &= table.keys[key] == each
            if not inside.any():
                raise ValueError(f"total of {name}: the table has no such cell")
            rule = ("a whole number", lambda a: a == np.round(a)) if whole else FINITE
            requests.append((name, inside, checked(f"total of {name}", value, *rule)))
    outer: list[tuple[str, np.ndarray, float]] = []  # disjoint sums so far
    result = []
    for name, inside, value in sorted(requests, key=lambda request: np.count_nonzero(request[1])):
        inner = [each for each in outer if (each[1] & inside).any()]
        for other, cells, _ in inner:
            if (cells & ~inside).any():
                how = "cells of two such margins have no exact law here; give the margins as tables with little noise"
                raise ValueError(f"total of {name} and total of {other} overlap, and neither is within the other: {how}")
        rest = inside & ~np.any([np.zeros_like(inside), *(cells for _, cells, _ in inner)], axis=0)
        left = value - sum(each for _, _, each in inner)
        low, high, n = least[rest].sum(), most[rest].sum(), int(rest.sum())
        if not low <= left <= high and not (n == 0 and math.isclose(left, 0, abs_tol=1e-9 * abs(value))):
            known = f", of which {value - left:g} in {len(inner)} known sums" if inner else ""
            problem = f"total of {name} is {value:g}{known}: {left:g} is left for {n} cells"
            raise ValueError(f"{problem}, which hold at least {low:g} and at most {high:g}")
        outer = [each for each in outer if not (each[1] & inside).any()] + [(name, inside, value)]
        result += [KnownSum(name, np.flatnonzero(rest), left)] if n else []
    return result


class Sums:
    """Independent whole numbers, whose laws are added in pairs, so that they can be had given their sum: from the sum
    of all the two parts, and so on down the tree.
    """

    def __init__(self, first: np.ndarray, p: np.ndarray) -> None:
        laws = [_cut(int(low), each) for low, each in zip(first, p, strict=True)]
        self.levels = [laws]
        while len(laws) > 1:
            pairs = zip(laws[::2], laws[1::2], strict=False)
            odd = laws[len(laws) - len(laws) % 2 :]
            laws = [_cut(a[0] + b[0], signal.convolve(a[1], b[1])) for a, b in pairs] + odd
            self.levels.append(laws)

    def sample(self, rng: np.random.Generator, total: float, count: int) -> np.ndarray:
        """Draws (n, count) of the numbers given that their sum is `total`."""
        values = np.full((1, count), int(total))
        for level in self.levels[-2::-1]:
            parts = np.empty((len(level), count), int)
            for j in range(len(level) // 2):
                parts[2 * j] = _split(rng, level[2 * j], level[2 * j + 1], values[j])
                parts[2 * j + 1] = values[j] - parts[2 * j]
            if len(level) % 2:
                parts[-1] = values[-1]
            values = parts
        return values

    def marginals(self, total: float) -> list[tuple[int, np.ndarray]]:
        """First number and probabilities of each of the numbers given that their sum is `total`."""
        rest = [(int(total), np.ones(1))]  # of each law of a level: the weight of its values by what all others are
        for level in self.levels[-2::-1]:
            below = []
            for j, outside in enumerate(rest):
                pair = level[2 * j : 2 * j + 2]
                for other in pair[::-1] if len(pair) == 2 else [(0, np.ones(1))]:
                    weights = signal.convolve(outside[1], other[1][::-1])
                    below.append(_cut(outside[0] - other[0] - len(other[1]) + 1, weights))
            rest = below
        result = []
        for (first, p), (start, weights) in zip(self.levels[0], rest, strict=True):
            low, high = max(first, start), min(first + len(p), start + len(weights))
            joint = p[low - first : high - first] * weights[low - start : high - start]
            result.append((low, joint / joint.sum()))
        return result


def _cut(first: int, p: np.ndarray) -> tuple[int, np.ndarray]:
    """A law without its negligible ends."""
    p = np.maximum(p, 0.0)  # a fast Fourier transform leaves rounding errors of either sign
    kept = np.flatnonzero(p > NEGLIGIBLE * p.max())
    return first + int(kept[0]), p[kept[0] : kept[-1] + 1] / p.max()


def _split(rng: np.random.Generator, a: tuple, b: tuple, sums: np.ndarray) -> np.ndarray:
    """The first of two numbers of the laws a and b, given sums of the two."""
    distinct, which = np.unique(sums, return_inverse=True)
    values, size = np.empty(len(sums), int), max(1, BLOCK // len(a[1]))
    for start in range(0, len(distinct), size):
        at = distinct[start : start + size, None] - a[0] - np.arange(len(a[1])) - b[0]
        weights = np.where((at >= 0) & (at < len(b[1])), b[1][np.clip(at, 0, len(b[1]) - 1)], 0.0) * a[1]
        cumulative = np.cumsum(weights, axis=1)
        cumulative /= cumulative[:, -1:]
        mine = np.flatnonzero((which >= start) & (which < start + size))
        row = which[mine] - start
        places = (cumulative + np.arange(len(cumulative))[:, None]).ravel().searchsorted(row + rng.random(len(mine)))
        values[mine] = a[0] + places - row * len(a[1])
    return values
