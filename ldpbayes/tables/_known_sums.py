"""Sums of cells that are known exactly: which there are, and whole numbers given their sum."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize, signal, special

from ldpbayes._core.checks import checked
from ldpbayes.data import NoisyTable

END_SHARE = 1e-15  # share of the largest probability below which ends of a sum's law are cut off
MAX_PROBABILITIES = 1 << 23  # probabilities of parts given their sum that are held at once
MAX_TILT = 1e5  # largest slope of log probabilities, a whole number, by which laws are tilted
WHOLE_NUMBER = "a whole number", lambda a: a == np.round(a)


def known_sums(table: NoisyTable, total: Any, least: np.ndarray, most: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Rows and sum of disjoint cells, of nested sums the outer without the inner; these limit `most` in place."""
    stated: list[tuple[str, np.ndarray, int]] = []
    if isinstance(names := getattr(getattr(total, "index", None), "names", None), Sequence):  # a series of pandas
        total = {names[0] if len(names) == 1 else (*names,): total}
        if None in names:
            raise ValueError(f"total is a series whose index has no name; name it by a key of {', '.join(table.keys)}")
    for key, sums in (total if isinstance(total, Mapping) else {None: total}).items():
        sums = dict(sums.items()) if hasattr(sums, "items") else sums
        names = () if key is None else key if isinstance(key, tuple) else (key,)
        if unknown := set(names) - set(table.keys):
            keys = ", ".join(table.keys) or "none"
            raise ValueError(f"total names the key {unknown.pop()!r}; the table's keys are {keys}")
        for label, value in sums.items() if isinstance(sums, Mapping) else [((), sums)]:
            pairs = dict(zip(names, label if isinstance(label, tuple) else (label,), strict=True))
            name = ", ".join(f"{key} = {label!r}" for key, label in pairs.items()) or "all cells"
            inside = np.all([np.ones(table.count, bool), *(table.keys[key] == pairs[key] for key in pairs)], axis=0)
            if not inside.any():
                raise ValueError(f"total of {name}: the table has no such cell")
            stated.append((name, inside, int(checked(f"total of {name}", value, *WHOLE_NUMBER))))
    stated.sort(key=lambda entry: np.count_nonzero(entry[1]))
    owner, result = np.full(table.count, -1), []  # the widest known sum so far that a cell is in
    for number, (name, inside, value) in enumerate(stated):
        inner = np.setdiff1d(owner[inside], -1)
        if (crossing := np.isin(owner, inner) & ~inside).any():
            other = stated[owner[crossing][0]][0]
            hint = "give such sums as tables with small noise, and queries='keys'"
            raise ValueError(f"total of {name} and total of {other} have only a part of their cells in common: {hint}")
        rest = np.flatnonzero(inside & (owner < 0))
        taken = sum(stated[i][2] for i in inner)
        left, low, high = value - taken, least[rest].sum(), most[rest].sum()
        if not low <= left <= high:
            parts = f", and known sums of its parts add up to {taken}" if len(inner) else ""
            bounds = f"whose sum must be from {low:g} to {high:g}"
            raise ValueError(f"total of {name} is {value}{parts}: {left} is left for {len(rest)} cells, {bounds}")
        owner[inside] = number
        if np.isfinite(low):
            most[rest] = np.minimum(most[rest], left - (low - least[rest]))
        result += [(rest, left)] if len(rest) else []
    return result


def tilted(log_p: np.ndarray, target: float) -> np.ndarray:
    """Normalised log probabilities (n, places) in proportion to p·exp(θ place), where the mean sum is `target`."""
    places = np.arange(float(log_p.shape[1]))

    def convex(theta: float) -> float:  # whose derivative is the mean sum less the target
        return special.logsumexp(log_p + theta * places, axis=1).sum() - theta * target

    theta = optimize.minimize_scalar(convex, bounds=(-MAX_TILT, MAX_TILT), method="bounded").x
    return special.log_softmax(log_p + theta * places, axis=1)


def tree_of_sums(laws: list) -> tuple:
    """The law of a sum of whole numbers, and the trees of its two halves; a law is a first number and probabilities."""
    if len(laws) == 1:
        return laws[0], None, None
    left, right = (tree_of_sums(half) for half in (laws[: len(laws) // 2], laws[len(laws) // 2 :]))
    # a fast Fourier transform, which serves long laws, leaves rounding errors of either sign
    p = np.maximum(signal.convolve(left[0][1], right[0][1]), 0.0)
    kept = np.flatnonzero(p > END_SHARE * p.max())
    return (left[0][0] + right[0][0] + int(kept[0]), p[kept[0] : kept[-1] + 1] / p.max()), left, right


def draw_given_sums(rng: np.random.Generator, tree: tuple, sums: np.ndarray) -> np.ndarray:
    """Draws (n, count) of the numbers of a tree given their sums (count,), which are split in two, and so on."""
    _, left, right = tree
    if left is None:
        return sums[None]
    distinct, which = np.unique(sums, return_inverse=True)
    if len(distinct) > 1 and len(distinct) * len(left[0][1]) > MAX_PROBABILITIES:
        return np.hstack([draw_given_sums(rng, tree, half) for half in np.array_split(sums, 2)])
    cumulative = np.cumsum(split_weights(left[0], right[0], distinct), axis=1)
    cumulative = cumulative / cumulative[:, -1:] + np.arange(len(distinct))[:, None]
    places = cumulative.ravel().searchsorted(which + rng.random(len(sums)))
    part = left[0][0] + places - which * cumulative.shape[1]
    return np.concatenate([draw_given_sums(rng, left, part), draw_given_sums(rng, right, sums - part)])


def split_weights(a: tuple, b: tuple, sums: np.ndarray) -> np.ndarray:
    """Weights (sums, numbers) of the numbers of law a, given sums of two numbers of laws a and b."""
    other = sums[:, None] - a[0] - np.arange(len(a[1])) - b[0]
    return np.where((other >= 0) & (other < len(b[1])), b[1][np.clip(other, 0, len(b[1]) - 1)], 0.0) * a[1]
