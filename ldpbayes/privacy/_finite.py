"""How well finitely many laws on finitely many outputs can be told from each other."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._checks import checked
from ldpbayes.privacy._tradeoff import Tradeoff, _epsilon, _probability

__all__ = ["FiniteTradeoff", "Polygon", "upper_hull"]

ROUNDING = 1e-9  # by which probabilities may miss a sum of one


class Polygon(Tradeoff):
    """A curve whose best tests are the corners of a concave polygon of (level, power), from (0, 0) to (1, 1).

    Parameters
    ----------
    level, power : array (corners,)
        From left to right; several of level 0 reject on what gives an input away.
    """

    def __init__(self, level: np.ndarray, power: np.ndarray) -> None:
        self._level, self._power = level, power

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        return np.clip(1 - np.interp(_probability("alpha", alpha), self._level, self._power), 0.0, 1.0)[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """Largest power less exp(epsilon) times the level, of all corners."""
        epsilon = np.asarray(_epsilon(epsilon))[..., None]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            gain = self._power[1:] * -np.expm1(epsilon + np.log(self._level[1:] / self._power[1:]))
        return np.maximum(gain.max(axis=-1), 0.0)[()]

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`: the largest log of (power − delta)/level, of all corners; 0 where 0 is enough."""
        delta = np.asarray(_probability("delta", delta))[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.log(np.maximum(self._power[1:] - delta, 0.0) / self._level[1:])
        return np.maximum(np.fmax.reduce(needed, axis=-1), 0.0)[()]


@dataclasses.dataclass(frozen=True, eq=False)
class FiniteTradeoff(Polygon):
    """Any two of some laws on the same outputs: what no test between any pair of them can beat.

    Of each ordered pair the best tests reject on the outputs of the largest likelihood ratio (Neyman-Pearson), so their
    (level, power) are the corners of a concave polygon. Their hull over all pairs gives delta(epsilon) of the worst
    pair at every epsilon, exactly, and with it the curve: the largest convex one that is below that of each pair
    ([DRS] sec. 2.4). Laws that mix some of these, such as those of labels between two nodes, are never a worse pair.

    Parameters
    ----------
    laws : array_like (k, m)
        Probabilities of m outputs under k laws, positive; each row sums to one.

    Raises
    ------
    ValueError
        If a probability is not positive, or a row does not sum to one.
    """

    laws: Any
    _level: Any = dataclasses.field(init=False, repr=False)
    _power: Any = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        laws = np.asarray(checked("laws", self.laws, "positive and finite", lambda a: (a > 0) & (a < np.inf)))
        if laws.ndim != 2:
            raise ValueError(f"laws must be rows of probabilities, an array (k, m), got shape {laws.shape}")
        missed = np.abs(laws.sum(axis=1) - 1)
        worst = np.argmax(missed)
        if missed[worst] > ROUNDING:
            single = missed[worst] < laws.shape[1] * np.finfo(np.float32).eps
            raise ValueError(
                f"laws must be rows of probabilities that sum to one up to {ROUNDING:g}; row {worst} misses it by "
                f"{missed[worst]:.2g}"
                + ("; that is rounding to single precision: compute them in double precision" if single else "")
            )
        object.__setattr__(self, "laws", laws)
        corners = np.array([[0.0, 0.0], [1.0, 1.0]])
        for row in range(len(laws)):
            one = laws[row]
            order = np.argsort(-laws / one, axis=1, kind="stable")
            # sums from the outputs that tell most on, so that small ones are to full precision
            level, power = (np.cumsum(law, axis=1)[:, :-1] for law in (one[order], np.take_along_axis(laws, order, 1)))
            above = power > np.interp(level, *corners.T)
            corners = upper_hull(np.concatenate([corners, np.stack([level[above], power[above]], axis=1)]))
        object.__setattr__(self, "_level", corners[:, 0])
        object.__setattr__(self, "_power", corners[:, 1])


def upper_hull(points: np.ndarray) -> np.ndarray:
    """Corners of the smallest concave curve above some points (n, 2), from left to right."""
    hull: list[np.ndarray] = []
    for point in points[np.lexsort(points.T[::-1])]:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            if (y1 - y0) * (point[0] - x0) > (point[1] - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append(point)
    return np.array(hull)
