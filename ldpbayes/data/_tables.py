"""Noisy tables: releases whose values are cells with keys, as statistical offices publish them."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import elementwise

from ldpbayes._core.checks import FINITE, ONE_POSITIVE, checked, warn
from ldpbayes._core.pytrees import host, pytree_dataclass, static
from ldpbayes._core.types import Array
from ldpbayes.data.frames import columns_of, is_missing
from ldpbayes.data.release import Release, ReleaseWarning
from ldpbayes.mechanisms import AdditiveMechanism
from ldpbayes.mechanisms.plausibility import LEVEL, implausible_repeats
from ldpbayes.mechanisms.reporting import Floored, Incomplete, Rounded, Withheld
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise

NOISES = {"discrete_gaussian": DiscreteGaussian, "discrete_laplace": DiscreteLaplace, "gaussian": Gaussian}
NOISES |= {"geometric": DiscreteLaplace, "laplace": Laplace}
UNSTATED = "Nothing is known of what the table promises: no sensitivity and no statement of its publisher was given."


class Keys(dict[str, np.ndarray]):
    """A label a cell (N,), by the name of the key: part of a pytree's structure, so that compiled models know them."""

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Keys) or [*self] != [*other]:
            return self is other
        return all(np.array_equal(labels, other[name]) for name, labels in self.items())

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple((name, len(labels)) for name, labels in self.items()))


@pytree_dataclass(eq=False, repr=False)
class NoisyTable(Release):
    """A release of statistics, a cell each, with keys that say whom each cell counts.

    `from_frame` reads one, `fit` labels its result by the keys, and ``table[rows]`` has some of the cells.

    Parameters
    ----------
    values, mechanism, count
        As of `Release`: a value a cell (N,), NaN where it was not reported, and an additive mechanism without bounds,
        which rules of reporting may stand around.
    keys : dict of str to array (N,)
        Labels of the cells by the name of the key, outermost first: ``{"state": [...], "county": [...]}``. ValueError
        for missing labels, other than N, or two cells with equal ones.
    privacy : str, optional
        The publisher's own statement, which then stands wherever the guarantee would.
    """

    keys: Mapping[str, Any] = static(default=None)
    privacy: str | None = host(default=None)

    _beside: ClassVar[tuple[str, ...]] = ("keys", "privacy")

    def __post_init__(self) -> None:
        super().__post_init__()
        keys = _keys(columns_of(self.keys or {}), self.keys or ())
        for name, labels in keys.items():
            if labels.shape != (self.count,):
                raise ValueError(f"key {name!r} needs a label for each of {self.count} cells, got shape {labels.shape}")
        if keys:
            _rows(keys)
        object.__setattr__(self, "keys", keys)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        value: str,
        keys: str | Sequence[str],
        noise: str | type[Noise] | None = None,
        *,
        scale: float | str | None = None,
        standard_deviation: float | str | None = None,
        variance: float | str | None = None,
        sensitivity: float | None = None,
        privacy: str | None = None,
        unit: float | None = None,
        floor: float | None = None,
        threshold: float | None = None,
        cells: Any = None,
        repeats: str | None = None,
    ) -> "NoisyTable":
        """The table in a data frame or a dict of columns; ValueError, with column and cell, for what is none.

        Parameters
        ----------
        frame, value, keys
            A row a cell; the column of values; the columns of keys, outermost first.
        noise : str or class
            "laplace", "gaussian", "discrete_laplace" or "geometric", "discrete_gaussian"; or a class of one parameter.
        scale, standard_deviation, variance : float or str
            One of them, a number or a column: the parameter of the noise (Laplace's b), or a moment that gives it.
        sensitivity, privacy : float, str, optional
            How far one record moves a value; or what the publisher states. With neither, no promise is known.
        unit, floor, threshold : float, optional
            What was done to noisy values, in this order: rounded to multiples of the unit; reported as the floor if
            below it; withheld if below the threshold.
        cells : data frame or dict, optional
            Keys of all cells that could have been reported, in the order of the table, with the column of scales. Cells
            without a value were withheld, if there is a threshold; else they are missing for other reasons.
        repeats : str, optional
            A column that numbers measurements of a cell: the last key. A `ReleaseWarning` says if the measurements
            differ by more or less than their noise does, with probability below 1e-12.
        """
        law, columns = _law(noise), columns_of(frame)
        stated: dict[str, Any] = {"scale": scale, "standard_deviation": standard_deviation, "variance": variance}
        given = [name for name, each in stated.items() if each is not None]
        if len(given) != 1:
            raise ValueError(f"give one of scale, standard_deviation and variance, got {' and '.join(given) or 'none'}")
        moment, names = given[0], [*([keys] if isinstance(keys, str) else keys), *([repeats] if repeats else [])]
        spread, labels = stated[moment], _keys(columns, names)
        rows, values = _rows(labels), _numbers(columns, value, labels)
        number = None if isinstance(spread, str) else checked(moment, spread, *ONE_POSITIVE)
        spreads = _numbers(columns, spread, labels) if number is None else np.full(len(rows), number)
        if cells is not None:
            others = columns_of(cells)
            labels = _keys(others, names)
            places, own = _rows(labels), number or (_numbers(others, spread, labels) if spread in others else np.nan)
            if lost := [", ".join(map(str, key)) for key in rows if key not in places]:
                raise ValueError(f"cells lacks {len(lost)} cells of the frame, the first {lost[0]}")
            at = np.array([rows.get(key, -1) for key in places])
            values, spreads = np.where(at < 0, np.nan, values[at]), np.where(at < 0, own, spreads[at])
        gaps = np.isnan(values)
        if threshold is None:  # any scale will do where a value is missing
            spreads = np.where(gaps & np.isnan(spreads), np.nanmax(spreads), spreads)
        _refuse(~((spreads > 0) & (spreads < np.inf)), str(spread), spreads, labels, f"a {moment} is positive")
        wrong = np.isinf(values) | (law.discrete & ~gaps & (values != np.round(values)))
        _refuse(wrong, value, values, labels, f"no {'whole' if law.discrete else 'finite'} number")
        spreads = spreads[0] if (spreads == spreads[0]).all() else spreads
        reach = math.inf if sensitivity is None else sensitivity
        mechanism: Any = AdditiveMechanism(law(_scale(law, moment, spreads)), sensitivity=reach)
        rules: Any = ("unit", unit, Rounded), ("floor", floor, Floored), ("threshold", threshold, Withheld)
        for name, limit, rule in rules:
            if limit is not None:
                limit = checked(name, limit, *(ONE_POSITIVE if rule is Rounded else FINITE))
                steps = limit * np.round(values / limit) if rule is Rounded else np.maximum(values, limit)
                problem = f"{'no multiple of' if rule is Rounded else 'below'} the {name} {limit:g}"
                _refuse(np.abs(values - steps) > 1e-9 * np.abs(values), value, values, labels, problem)
                mechanism = rule(mechanism, limit)
        mechanism = Incomplete(mechanism) if threshold is None and gaps.any() else mechanism
        table = cls(values, mechanism, keys=labels, privacy=UNSTATED if sensitivity is privacy is None else privacy)
        if repeats and unit is floor is threshold is None:
            codes: dict[tuple, int] = {}
            outer = np.array([codes.setdefault(key[:-1], len(codes)) for key in _rows(labels)])
            verdicts = {name: implausible_repeats(values, law(_scale(law, name, spreads)), outer) for name in stated}
            if verdict := verdicts[moment]:
                fits = " or the ".join(name for name in stated if not verdicts[name]) or "none of the three"
                problem = f"repeated values differ by {verdict} than noise with {spread!r} as its {moment} does"
                problem += f" (probability below {LEVEL:g}); as they vary, it could be the {fits}"
                object.__setattr__(table, "doubts", (*table.doubts, problem))
                warn(problem, ReleaseWarning)
        return table

    def __getitem__(self, rows: Any) -> "NoisyTable":
        """The table of some cells, by a slice, a mask or positions."""
        mechanism, keys = self.mechanism.of_records((self.count,), rows), {k: v[rows] for k, v in self.keys.items()}
        return NoisyTable(self.values[rows], mechanism, keys=keys, privacy=self.privacy)

    @property
    def dim(self) -> str:
        """Name of the axis of cells: that of the only key, or "cell"."""
        return next(iter(self.keys)) if len(self.keys) == 1 else "cell"

    @property
    def labels(self) -> np.ndarray:
        """A label a cell (N,): that of its only key, or those of its keys with commas between them."""
        if len(self.keys) < 2:
            return self.keys.get(self.dim, np.arange(self.count))
        return np.array([", ".join(map(str, row)) for row in zip(*self.keys.values(), strict=True)])

    def levels(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Distinct labels of a key in the order of the cells, and the position (N,) of each cell's label among them."""
        labels, first, codes = np.unique(self.keys[key], return_index=True, return_inverse=True)
        order = np.argsort(first)
        return labels[order], np.argsort(order)[codes]

    def _counts(self) -> dict[str, Any]:
        gaps = 0 if self.values is None else np.count_nonzero(np.isnan(self.values))
        return {f"cells by {', '.join(self.keys)}": self.count} | ({"not reported": gaps} if gaps else {})

    def _promises(self) -> list[tuple[str, str]]:
        return [("privacy", self.privacy)] if self.privacy else super()._promises()


def _law(noise: Any) -> Any:
    """The class of a noise with one parameter."""
    law: Any = NOISES.get(noise) if isinstance(noise, str) else noise
    if not (isinstance(law, type) and issubclass(law, Noise) and len(getattr(law, "__match_args__", ())) == 1):
        why = "values do not tell it, and intervals depend on it: the publisher's documents name it"
        allowed = f"{', '.join(NOISES)}, or a class of noise with one parameter ({why})"
        raise ValueError(f"noise must be one of {allowed}, got {noise!r}{_meant(noise, NOISES)}")
    return law


def _scale(law: Any, moment: str, value: Array) -> Array:
    """The parameter of a noise with this parameter, standard deviation or variance."""
    deviation = np.sqrt(value) if moment == "variance" else value
    if moment == "scale" or not law.discrete:
        return deviation if moment == "scale" else deviation / law(1.0).standard_deviation
    # Between a tenth of the deviation and, where the noise is hardly ever not 0, a parameter of about 1.
    bracket = deviation / 10, 2 * deviation + 1
    return elementwise.find_root(lambda b, sd: law(b).standard_deviation / sd - 1, bracket, args=(deviation,)).x


def _keys(columns: Mapping[str, Any], names: Iterable[str]) -> Keys:
    """Labels by key; ValueError if one is missing."""
    keys = Keys()
    for name in names:
        labels = _column(columns, name)
        for row, label in enumerate(labels if labels.dtype.kind in "Of" else ()):
            if is_missing(label):
                raise ValueError(f"key {name!r} has no label in row {row}")
        keys[name] = labels if labels.dtype.kind in "iufbU" else labels.astype(str)
    return keys


def _rows(keys: Keys) -> dict[tuple, int]:
    """The row of each cell by its labels; ValueError if two rows have the same."""
    rows: dict[tuple, int] = {}
    for row, cell in enumerate(zip(*keys.values(), strict=True)):
        if rows.setdefault(cell, row) != row:
            labels = ", ".join(f"{name} {label}" for name, label in zip(keys, cell, strict=True))
            hint = "repeats= names a column that numbers measurements of a cell"
            raise ValueError(f"rows {rows[cell]} and {row} are of one cell ({labels}); add a key, or {hint}")
    return rows


def _column(columns: Mapping[str, Any], name: str) -> Any:
    if name not in columns:
        raise ValueError(f"there is no column {name!r}{_meant(name, columns)}; the columns are {', '.join(columns)}")
    return columns[name]


def _numbers(columns: Mapping[str, Any], name: str, labels: Keys) -> np.ndarray:
    """A column as numbers (N,), NaN where they are missing."""
    column = _column(columns, name)
    if column.dtype.kind not in "iuf":
        gaps = np.array([is_missing(each) for each in column])
        words = np.array([np.asarray(each).dtype.kind not in "iuf" for each in column])
        _refuse(words & ~gaps, name, column, labels, "no number")
        column = np.where(gaps, np.nan, column)
    return column.astype(float)


def _refuse(bad: np.ndarray, column: str, values: np.ndarray, labels: Keys, problem: str) -> None:
    """ValueError if any values are bad, with the cell of the first of them."""
    if bad.any():
        row, others = int(np.argmax(bad)), np.count_nonzero(bad) - 1
        cell = ", ".join(str(each[row]) for each in labels.values()) + (f" and {others:,} cells more" if others else "")
        raise ValueError(f"column {column!r} holds {values[row]!s} for {cell}: {problem}")


def _meant(word: Any, known: Iterable[str]) -> str:
    return "".join(f" (did you mean {close!r}?)" for close in difflib.get_close_matches(str(word), [*known], 1))
