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
WHOLE = "a whole number", lambda a: a == np.round(a)


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
    for key, sums in (total if isinstance(total, Mapping) else {None: total}).items():
        names = () if key is None else key if isinstance(key, tuple) else (key,)
        if unknown := set(names) - set(table.keys):
            raise ValueError(
                f"total names the key {unknown.pop()!r}; the table's keys are {', '.join(table.keys) or 'none'}"
            )
        for label, value in sums.items() if isinstance(sums, Mapping) else [((), sums)]:
            pairs = list(zip(names, label if isinstance(label, tuple) else (label,), strict=True))
            name = ", ".join(f"{key} = {each!r}" for key, each in pairs) or "all cells"
            inside = np.all([np.ones(table.count, bool), *(table.keys[key] == each for key, each in pairs)], axis=0)
            if not inside.any():
                raise ValueError(f"total of {name}: the table has no such cell")
            requests.append((name, inside, checked(f"total of {name}", value, *(WHOLE if whole else FINITE))))
    outer: list[tuple[str, np.ndarray, float]] = []  # disjoint sums so far
    result = []
    for name, inside, value in sorted(requests, key=lambda request: np.count_nonzero(request[1])):
        inner = [each for each in outer if (each[1] & inside).any()]
        for other in [other for other, cells, _ in inner if (cells & ~inside).any()]:
            hint = "give such margins as tables of little noise, with queries='keys'"
            raise ValueError(f"total of {name} and total of {other} overlap, and neither is within the other: {hint}")
        rest = inside & ~np.any([~inside, *(cells for _, cells, _ in inner)], axis=0)
        left = value - sum(each for _, _, each in inner)
        low, high, n = least[rest].sum(), most[rest].sum(), int(rest.sum())
        if not (low <= left <= high or (n == 0 and math.isclose(left, 0, abs_tol=1e-9 * abs(value)))):
            known = f", of which {value - left:g} in {len(inner)} known sums" if inner else ""
            bounds = f"which hold at least {low:g} and at most {high:g}"
            raise ValueError(f"total of {name} is {value:g}{known}: {left:g} is left for {n} cells, {bounds}")
        outer = [each for each in outer if not (each[1] & inside).any()] + [(name, inside, value)]
        result += [KnownSum(name, np.flatnonzero(rest), left)] if n else []
    return result


def tree_of_sums(laws: list) -> tuple:
    """The law of a sum of whole numbers, and the trees of its two halves; a law is a first number and probabilities."""
    if len(laws) == 1:
        return laws[0], None, None
    left, right = (tree_of_sums(half) for half in (laws[: len(laws) // 2], laws[len(laws) // 2 :]))
    # a fast Fourier transform, which serves long laws, leaves rounding errors of either sign
    p = np.maximum(signal.convolve(left[0][1], right[0][1]), 0.0)
    kept = np.flatnonzero(p > NEGLIGIBLE * p.max())
    return (left[0][0] + right[0][0] + int(kept[0]), p[kept[0] : kept[-1] + 1] / p.max()), left, right


def draw_given_sums(rng: np.random.Generator, tree: tuple, sums: np.ndarray) -> np.ndarray:
    """Draws (n, count) of the numbers of a tree given their sums (count,), which are split in two, and so on."""
    _, left, right = tree
    if left is None:
        return sums[None]
    distinct, which = np.unique(sums, return_inverse=True)
    part, size = np.empty(len(sums), int), max(1, BLOCK // len(left[0][1]))
    for start in range(0, len(distinct), size):
        cumulative = np.cumsum(split_weights(left[0], right[0], distinct[start : start + size]), axis=1)
        cumulative = cumulative / cumulative[:, -1:] + np.arange(len(cumulative))[:, None]
        (mine,) = np.nonzero((which >= start) & (which < start + size))
        places = cumulative.ravel().searchsorted(which[mine] - start + rng.random(len(mine)))
        part[mine] = left[0][0] + places - (which[mine] - start) * cumulative.shape[1]
    return np.concatenate([draw_given_sums(rng, left, part), draw_given_sums(rng, right, sums - part)])


def split_weights(a: tuple, b: tuple, sums: np.ndarray) -> np.ndarray:
    """Weights (sums, numbers) of the numbers of law a, given sums of two numbers of laws a and b."""
    other = sums[:, None] - a[0] - np.arange(len(a[1])) - b[0]
    return np.where((other >= 0) & (other < len(b[1])), b[1][np.clip(other, 0, len(b[1]) - 1)], 0.0) * a[1]
