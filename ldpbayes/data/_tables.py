"""Noisy tables: releases whose values are cells with keys, as statistical offices publish them."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import numpy as np

from ldpbayes._core.checks import ONE_INSIDE_0_1, ONE_POSITIVE, ArgumentError, at_least, checked, guess
from ldpbayes._core.pytrees import equal, host, pytree_dataclass, static
from ldpbayes._core.tabular import column, columns_of, is_missing
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.data.readers import format_of
from ldpbayes.data.release import Release
from ldpbayes.mechanisms import AdditiveMechanism, Capped, Floored, Incomplete, Published, Rounded, Withheld
from ldpbayes.mechanisms.plausibility import FALSE_EDGE_LEVEL, FALSE_REPORT_LEVEL, implausible_repeats, sharp_edge
from ldpbayes.mechanisms.protocol import Promise
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, Noise
from ldpbayes.numerics.minimise import find_root

TABLE_NOISES = {"discrete_gaussian": DiscreteGaussian, "discrete_laplace": DiscreteLaplace, "gaussian": Gaussian}
TABLE_NOISES |= {"geometric": DiscreteLaplace, "laplace": Laplace}
NEIGHBOURS = {"add_remove": (1, "added or removed"), "replace": (2, "replaced by another one")}
# Of values below a threshold or above it by half a standard deviation of the noise, noise puts a third below; with so
# many above and none missing, cells were left out: the probability of a false report is (2/3)^20 = 3e-4.
SUSPICIOUS_NEIGHBOURS = 20
UNSTATED_PROMISE = (
    "Nothing is known of what the table promises: no sensitivity and no statement of its publisher was given."
)


class Keys(dict[str, np.ndarray]):
    """A label a cell (N,), by the name of the key: part of a pytree's structure, so that compiled models know them."""

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Keys) and equal((*self.items(),), (*other.items(),)))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple((name, len(labels)) for name, labels in self.items()))


@pytree_dataclass(eq=False, repr=False)
class NoisyTable(Release):
    """A table of noisy statistics, such as counts: one released value for each cell, and keys that identify the cells.

    A key is a column of labels, such as the state or the age group, which the results of `fit` have, too. `from_frame`
    and `from_file` make tables. ``table[rows]`` is a table of some cells, for a slice, a boolean mask or positions.

    Parameters
    ----------
    values, mechanism, count, times, about, persons, missing
        As in `Release`, for N cells. NaN means that a value was not reported. The mechanism has no clipping bounds. If
        the noisy values were changed before printing, use a reporting rule of `ldpbayes.mechanisms`, such as
        ``Rounded(mechanism, unit)``.
    keys : dict of str to array (N,)
        The labels of the N cells, by names of keys; that with the largest areas (such as states) comes first. Raises
        ValueError if a label is missing, or if two cells have equal labels in all keys.
    privacy : str, optional
        The privacy statement of the publisher, which `fit` shows instead of the guarantee of the mechanism.
    neighbours : {"add_remove", "replace"}, optional
        Which data sets the guarantee and the sensitivity compare: one person is added or removed, or is replaced by
        another one. Give also ``times``, the largest number of cells in which one person is counted: a person who is
        replaced changes twice as many. Then the guarantee is of the whole table. Default: it is of one released value.

    Examples
    --------
    >>> frame = {"state": ["A", "B"], "count": [51, 39]}
    >>> ldp.NoisyTable.from_frame(frame, "count", "state", "discrete_laplace", scale=2.0, sensitivity=1.0)
    NoisyTable(2 cells by state, AdditiveMechanism(noise=DiscreteLaplace(scale=2.0), sensitivity=1.0))
    """

    keys: Mapping[str, Any] = static(default=None)
    privacy: str | None = host(default=None)
    neighbours: str | None = host(default=None, kw_only=True)

    #: Arguments of `from_frame` of which one has the size of the noise, a number or the name of a column.
    NOISE_SIZES: ClassVar[tuple[str, ...]] = ("scale", "standard_deviation", "variance", "margin")
    #: Name of the axis of cells in the results of `fit`: that of the only key, or "cell".
    dim = property(lambda self: next(iter(self.keys)) if len(self.keys) == 1 else "cell")
    _beside: ClassVar[tuple[str, ...]] = ("keys", "privacy", "neighbours", *Release._beside)

    def __post_init__(self, persons: Any = None, missing: str | None = None) -> None:
        super().__post_init__(persons, missing)
        if not isinstance(self.privacy, str | None):
            raise TypeError(f"privacy must be a text, got {self.privacy!r}")
        complete = self.neighbours in NEIGHBOURS and self.times and self.mechanism.trust_model == "central"
        if self.neighbours is not None and not complete:
            wanted = f"one of {', '.join(NEIGHBOURS)}, with a sensitivity and times, a person's largest number of cells"
            raise ArgumentError("neighbours", wanted, f"{self.neighbours!r} and times={self.times!r}")
        keys = Keys()
        for name, labels in columns_of(dict(self.keys or {})).items():
            if labels.shape != (self.count,):
                raise ValueError(f"key {name!r} needs a label for each of {self.count} cells, got shape {labels.shape}")
            if gaps := [row for row, label in enumerate(labels.tolist()) if is_missing(label)]:
                raise ValueError(f"key {name!r} has no label in row {gaps[0]}")
            labels = np.datetime_as_string(labels, unit="auto") if labels.dtype.kind == "M" else labels
            keys[name] = labels if labels.dtype.kind in "iufbU" else labels.astype(str)
        first = _first_rows(zip(*keys.values(), strict=True))
        for row in np.flatnonzero(first != np.arange(len(first)))[:1]:
            cell = ", ".join(f"{name} {labels[row]}" for name, labels in keys.items())
            hint = "add a key, such as a column that numbers repeated measurements"
            raise ValueError(f"rows {first[row]} and {row} are of the same cell ({cell}); {hint}")
        object.__setattr__(self, "keys", keys)
        rule: Any = self.mechanism
        known = isinstance(self.values, np.ndarray) and is_concrete(rule)
        plain = (rule is rule.innermost or isinstance(rule, Incomplete)) and type(rule.noise) in TABLE_NOISES.values()
        if known and plain:
            for sign, side, end in ((1.0, "below", "least"), (-1.0, "above", "largest")):
                if edge := sharp_edge(sign * self.values, rule.noise):
                    many = f"{edge[0]:,} values are within {edge[1]:g} of the {end}, and none is {side} it"
                    chance = f"noise would do this with probability below {FALSE_EDGE_LEVEL:g}"
                    hint = "state the rule if values were left out or changed, or less noise if there is less"
                    self._doubt(f"{many}: {chance}; {hint}")
        if known and isinstance(rule, Withheld):
            width, withheld = rule.noise.standard_deviation / 2, rule.interval(np.full(self.values.shape, np.nan))[1]
            highest, wide = rule.interval(self.values)[1], (width >= 1) | (not rule.noise.discrete)
            near = np.count_nonzero((highest <= withheld + width) & wide)
            if near >= SUSPICIOUS_NEIGHBOURS and not np.isnan(self.values).any():
                ways = 'give unpublished=, their number or "unknown", or a row without a value for each'
                hint = f"if withheld cells were left out, results are biased: {ways}"
                self._doubt(f"no cell is withheld, although {near:,} values are just above the threshold; {hint}")

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
        margin: float | str | None = None,
        margin_level: float | None = None,
        sensitivity: float | None = None,
        neighbours: str | None = None,
        times: int | None = None,
        privacy: str | None = None,
        unit: float | None = None,
        floor: float | None = None,
        threshold: float | None = None,
        cap: float | None = None,
        unpublished: int | str | None = None,
        repeats: str | None = None,
        about: dict[str, Any] | None = None,
    ) -> "NoisyTable":
        """Make a table from a data frame or a dict of columns.

        Raises ValueError if a released value is impossible, for example a fraction under discrete noise.

        Parameters
        ----------
        frame : data frame or dict of str to array
            The data, with one row for each cell.
        value, keys : str, str or sequence of str
            The column of released values, and the key columns, of which that with the largest areas (such as states) is
            first.
        noise : str or class
            The law of the noise: "laplace", "gaussian", "discrete_laplace" (also called "geometric") or
            "discrete_gaussian". Or a class of `ldpbayes.noise` whose only parameter is the scale.
        scale, standard_deviation, variance, margin : float or str
            The size of the noise, by exactly one of these: a number for all cells, or the name of a column of numbers.
            All are in the unit of the values, but the variance, which is in its square. A margin is the half of an
            interval that has the noise with the probability ``margin_level``; of discrete noise, as if it were the
            continuous law with its standard deviation.
        margin_level : float, optional
            Only with ``margin``: a probability between 0 and 1, such as 0.9 for margins of error at 90 %.
        sensitivity : float, optional
            The largest change of a value before noise if one record changes. Default: unknown, without a privacy
            guarantee.
        neighbours, times, privacy, about : optional
            As in `NoisyTable`.
        unit, floor, threshold, cap : float, optional
            Reporting rules. In this order, the noisy values were rounded to multiples of ``unit``, printed as ``floor``
            if below ``floor``, printed as ``cap`` if above ``cap``, and are missing (NaN) in the frame if below
            ``threshold``. Without ``threshold``, missing values must be missing for reasons that are unrelated to the
            values.
        unpublished : int or "unknown", optional
            The number of cells that could have been published, but have no row because they are below ``threshold``,
            or "unknown" (see `ldpbayes.mechanisms.Published`). Default: the table has a row for each cell.
        repeats : str, optional
            If cells were measured several times, each time with new noise: the column that numbers the measurements of
            a cell, which becomes the last key. A `ReleaseWarning` is issued if they differ too much or too little for
            the stated noise.
        """
        law, columns = _law(noise), columns_of(frame)
        stated = {"scale": scale, "standard_deviation": standard_deviation, "variance": variance}
        stated |= {} if margin is None else {"margin": margin}
        moments = [name for name, number in stated.items() if number is not None]
        if len(moments) != 1:
            problem = " and ".join(moments) or "none"
            raise ValueError(f"give one of scale, standard_deviation, variance and margin, got {problem}")
        if (margin_level is None) != (margin is None):
            raise ValueError(f"give margin and margin_level together, got margin_level={margin_level!r}")
        level = 0.9 if margin_level is None else checked("margin_level", margin_level, *ONE_INSIDE_0_1)
        moment, names = moments[0], [*([keys] if isinstance(keys, str) else keys), *([repeats] if repeats else [])]
        spread, labels = stated[moment], {name: column(columns, name) for name in names}
        values = _numbers(columns, value, labels)
        gaps = np.isnan(values)
        if isinstance(spread, str):
            spreads = _numbers(columns, spread, labels)
            if threshold is None:  # any scale will do where a value is missing
                spreads = np.where(gaps & np.isnan(spreads), np.nanmax(spreads), spreads)
            _refuse(~((spreads > 0) & (spreads < np.inf)), spread, spreads, labels, f"a {moment} must be positive")
            spreads = spreads[0] if (spreads == spreads[0]).all() else spreads
        else:
            spreads = checked(moment, spread, *ONE_POSITIVE)
        reach = math.inf if sensitivity is None else sensitivity
        mechanism: Any = AdditiveMechanism(law(_scale(law, moment, spreads, level)), sensitivity=reach)
        possible = f"{'whole' if law.discrete else 'finite'} numbers"
        rules: Any = ("unit", Rounded, unit), ("floor", Floored, floor), ("cap", Capped, cap)
        rules = *rules, ("threshold", Withheld, threshold)
        for name, rule, limit in rules:
            if limit is not None:
                mechanism, possible = rule(mechanism, limit), f"{possible}, {name} {limit}"
        if unpublished is not None:
            number = None if unpublished == "unknown" else at_least(0, "unpublished", unpublished)
            if threshold is None or (number and mechanism.batch_shape):
                wanted = "given with a threshold, and a number with one noise for all cells (else add rows)"
                raise ArgumentError("unpublished", wanted, repr(unpublished))
            _refuse(gaps, value, values, labels, "a cell without a value is one of those that unpublished= counts")
            mechanism = Published(mechanism, None if number is None else number / len(values))
        reported = Incomplete(mechanism) if threshold is None else mechanism
        low, high = reported.interval(values)
        _refuse(np.isinf(values) | (low > high), value, values, labels, f"possible values are {possible}")
        mechanism = reported if gaps.any() else mechanism
        privacy = UNSTATED_PROMISE if sensitivity is privacy is None else privacy
        stated_beside: Any = {"privacy": privacy, "neighbours": neighbours, "times": times, "about": about}
        table = cls(values, mechanism, keys=labels, **stated_beside)
        if repeats and unit is floor is cap is threshold is None:
            cells = _first_rows(cell[:-1] for cell in zip(*table.keys.values(), strict=True))
            verdicts = {
                name: implausible_repeats(values, law(_scale(law, name, spreads, level)), cells) for name in stated
            }
            if verdict := verdicts[moment]:
                fits = " or the ".join(name for name in stated if not verdicts[name])
                problem = f"repeated values differ {verdict} than is possible for noise with {moment} = {spread!r}"
                problem += f" (probability below {FALSE_REPORT_LEVEL:g})"
                problem += f"; the stated number could be the {fits}" if fits else ""
                table._doubt(problem)
        return table

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike,
        value: str | None = None,
        keys: str | Sequence[str] = (),
        *,
        format: str | None = None,
        **options: Any,
    ) -> "NoisyTable":
        """Make a table from a file, such as a CSV or a Parquet file.

        Parameters
        ----------
        path, value, keys
            The file, and names of columns as in `from_frame`, which some formats state.
        format : str, optional
            The format: "csv", "parquet", "census" (see `ldpbayes.tables.read_measurements`), "opendp" (see
            `ldpbayes.opendp.read_table`), or one with a `ldpbayes.data.readers.reader`. Default: by the ending of the
            name.
        **options
            Options of `from_frame` and of the format, such as ``summary`` of "opendp". Those of "csv" say how cells are
            written: ``encoding``, such as "latin-1"; ``comment``, with which lines begin that are left out;
            ``withheld``, marks of missing values, such as ``["*", "<20"]``; ``percent=True``, for 12% as 0.12;
            ``thousands`` and ``decimal``, the characters in 1,204.5. The number of cells that are marked, percentages
            or in thousands is in ``about["cells"]``.
        """
        keys = [keys] if isinstance(keys, str) else [*keys]
        spreads = (options.get(name) for name in cls.NOISE_SIZES)
        numbers = dict.fromkeys(name for name in (value, *spreads) if isinstance(name, str))
        chosen = format_of(path, format)[1]
        of_format = {name: options.pop(name) for name in chosen.options.keys() & options.keys()}
        columns, stated = chosen.read(path, keys, [*numbers], **of_format)
        typed = {name: argument for name, argument in {"value": value, "keys": keys}.items() if argument}
        return cls.from_frame(columns, **{**stated, **typed, **options})

    def __getitem__(self, rows: Any) -> "NoisyTable":
        """Return a table of some of the cells. `rows` is a slice, a boolean mask or an array of positions. ValueError
        if a number of cells was not published, which belongs to the whole table.
        """
        rule, values = cast(Any, self.mechanism), self.values[rows]
        numbered = isinstance(rule, Published) and rule.unpublished is not None and np.any(rule.unpublished)
        if numbered and len(values) < self.count:
            hint = "make a table of each part, with its own number, or with unpublished='unknown'"
            raise ValueError(f"how many cells of a part of the table were not published is not known: {hint}")
        mechanism, keys = self.mechanism.of_records((self.count,), rows), {k: v[rows] for k, v in self.keys.items()}
        beside: Any = {name: getattr(self, name) for name in ("privacy", "neighbours", "times", "about")}
        return NoisyTable(values, mechanism, keys=keys, **beside)

    @property
    def _promise(self) -> Promise:
        if self.neighbours is None:
            return super()._promise._replace(publisher=self.privacy)
        (cells, word), mechanism = NEIGHBOURS[self.neighbours], cast(Any, self.mechanism)
        changed, most = min(cells * (self.times or 1), self.count), f"{mechanism.sensitivity:g} before noise"
        sentence = f"It compares data sets in which one person is {word}: this changes up to {changed} of the released"
        sentence = f"{sentence} values, each by up to {most}."
        beside: Any = {"neighbours": self.neighbours, "publisher": self.privacy}
        return Promise(mechanism, changed=changed, change=sentence, **beside)

    @property
    def labels(self) -> np.ndarray:
        """Labels (N,) of the cells: those of all keys, joined by commas. If two cells then have one label, labels with
        commas or quotation marks are written in quotation marks.
        """
        if len(self.keys) < 2:
            return self.keys.get(self.dim, np.arange(self.count))
        rows = [[*map(str, row)] for row in zip(*self.keys.values(), strict=True)]
        if len({*map(", ".join, rows)}) < len(rows):
            rows = [[repr(part) if {*part} & {*",'\""} else part for part in row] for row in rows]
        return np.array([", ".join(row) for row in rows])

    def levels(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels (k,) of `key`, in order of appearance, and the number of each cell's label (N,)."""
        labels, first, codes = np.unique(self.keys[key], return_index=True, return_inverse=True)
        order = np.argsort(first)
        return labels[order], np.argsort(order)[codes]

    def rows_of(self, other: "NoisyTable") -> np.ndarray | None:
        """Return the position in this table of each cell of another; None if the two have different keys or cells."""
        if self.keys.keys() != other.keys.keys() or not self.keys or self.count != other.count:
            return None
        ours, theirs = (zip(*(table.keys[key].tolist() for key in other.keys), strict=True) for table in (self, other))
        places = {cell: row for row, cell in enumerate(ours)}
        rows = [places.get(cell, -1) for cell in theirs]
        return None if -1 in rows else np.array(rows)

    @property
    def _counts(self) -> dict[str, Any]:
        gaps, rule = 0 if self.values is None else np.count_nonzero(np.isnan(self.values)), cast(Any, self.mechanism)
        counts = {f"cells by {', '.join(self.keys)}": self.count} | ({"not reported": gaps} if gaps else {})
        if isinstance(rule, Published) and rule.unpublished is not None:
            counts["not published"] = round(np.sum(np.broadcast_to(rule.unpublished, self.count)))
        return counts


def _law(noise: Any) -> Any:
    """The class of a noise with one parameter."""
    law: Any = TABLE_NOISES.get(noise) if isinstance(noise, str) else noise
    if not (isinstance(law, type) and issubclass(law, Noise) and len(getattr(law, "__match_args__", ())) == 1):
        why = "look it up in the publisher's documents: intervals depend on it, and values do not show it"
        allowed = f"{', '.join(TABLE_NOISES)}, or a class of noise with one parameter ({why})"
        raise ArgumentError("noise", f"one of {allowed}", f"{noise!r}{guess(str(noise), TABLE_NOISES)}")
    return law


def _scale(law: Any, moment: str, value: Array, level: float) -> Array:
    """The parameter of a noise with this parameter, standard deviation, variance or margin at a level."""
    if moment == "scale":
        return value
    deviation = np.sqrt(value) if moment == "variance" else value
    if moment == "margin":
        unit = {DiscreteGaussian: Gaussian, DiscreteLaplace: Laplace}.get(law, law)(1.0)
        # No more than 1/√(1 − level) deviations, by Chebyshev's inequality.
        bracket = 0.0, unit.standard_deviation / math.sqrt(1 - level)
        with jax.enable_x64(True):
            margin = find_root(lambda t: np.asarray(unit.log_tail(t)), math.log((1 - level) / 2), bracket).x
        deviation = value * unit.standard_deviation / margin
    if not law.discrete:
        return deviation / law(1.0).standard_deviation
    # Between a tenth of the deviation and, where the noise is hardly ever not 0, a parameter of about 1.
    bracket = deviation / 10, 2 * deviation + 1
    return find_root(lambda b, sd: law(b).standard_deviation / sd, 1.0, bracket, deviation).x


def _first_rows(cells: Iterable[tuple]) -> np.ndarray:
    """For each row, by its labels, the first of the same cell."""
    first: dict[tuple, int] = {}
    return np.array([first.setdefault(cell, row) for row, cell in enumerate(cells)])


def _numbers(columns: Mapping[str, Any], name: str, labels: Mapping[str, Any]) -> np.ndarray:
    """A column as numbers (N,), NaN where they are missing."""
    cells = column(columns, name)
    if cells.dtype.kind not in "iuf":
        cells = [np.nan if is_missing(cell) else cell for cell in cells]
        words = np.array([np.asarray(cell).dtype.kind not in "iuf" for cell in cells])
        _refuse(words, name, cells, labels, "not a number")
    return np.array(cells, float)


def _refuse(bad: np.ndarray, column: str, values: Any, labels: Mapping[str, Any], problem: str) -> None:
    """ValueError if any values are bad, with the cell of the first of them."""
    if bad.any():
        row, others = int(np.argmax(bad)), np.count_nonzero(bad) - 1
        more = f" and {others:,} other cells" if others else ""
        cell = ", ".join(str(label[row]) for label in labels.values()) + more
        raise ValueError(f"column {column!r} holds {values[row]!s} for {cell}: {problem}")
