"""Releases: released values, the mechanism that made them, and how they are sketched."""

import dataclasses
import json
import os
import pathlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, ClassVar

import jax
import numpy as np

from ldpbayes._core import archive
from ldpbayes._core.archive import blocks_of, read_arrays, reading, save_arrays, signed, verified, whole_file
from ldpbayes._core.checks import LdpBayesWarning, Rule, at_least, checked, ends_of, unmasked, warn
from ldpbayes._core.pytrees import Holding, host, pytree_dataclass, static, unchecked
from ldpbayes._core.tabular import array_and_gaps, codes_of, entries_of, is_missing, levels_in_order
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.data.category_sketches import CountSketch, ExpandedSketch, expansion_pays
from ldpbayes.data.readers.files import SPEC_KEY, parquet_file, pyarrow, spec_text, values_of
from ldpbayes.data.sketches import Groups, MixedSketch, MomentSketch, PanelSketch, TotalSketch, budgets_of, levels_of
from ldpbayes.mechanisms import AdditiveMechanism, Mechanism, Repeated, StatisticsMechanism, mechanism_from_spec
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.plausibility import FALSE_REPORT_LEVEL
from ldpbayes.mechanisms.protocol import OF_ONE_VALUE, Promise, joined_mechanism, parts_of, statements
from ldpbayes.noise import Gaussian
from ldpbayes.privacy.guarantee import counted_once

WHOLE_COUNTS: Rule = "whole numbers of records, not negative", lambda a: (a >= 0) & (a == np.floor(a)) & (a < np.inf)


class ReleaseWarning(LdpBayesWarning):
    """Warning that the released values are nearly impossible under the stated mechanism, whatever the records are.

    Its message says which of their properties is. Usually, the stated mechanism or one of its parameters is wrong.
    """


class RepeatedAnswersWarning(LdpBayesWarning):
    """Warning that several released values may be about one person, but are counted as independent answers."""


@pytree_dataclass(eq=False, repr=False)
class Release(Holding):
    """Released values, together with the mechanism that made them.

    Usually, each value belongs to one record (the original value of one person), and the guarantee protects each
    record. A release can also have a single value that is a statistic of many records: a noisy count, sum or mean. Its
    mechanism has no clipping bounds, and states the sensitivity (the largest change of the statistic if one record
    changes).

    Parameters
    ----------
    values : array_like (N, *event) or None
        One released value for each of N records: a number, a code, or an array of the shape ``mechanism.event_shape``.
        Categories can also be words: of a categorical series, or of ``about["levels"]``. None makes a plan, whose
        values a model can simulate. Raises ValueError if a value is impossible under the mechanism, or not among the
        words. A `ReleaseWarning` is issued if the values are nearly impossible.
    mechanism : Mechanism
        The mechanism that made the values, of a registered class (`ldpbayes.mechanisms.register`). Each parameter is
        one number for all records, or an array (N,) with one number for each record.
    count : int or array_like, optional
        Number of records, only if ``values`` is None. Or totals in place of records: how many records released each
        value, as in ``Release([0, 1], mechanism, count=[20, 80])``.
    times, persons : optional
        Largest number of values about one person (default: 1), which guarantee and privacy statements take together; or
        an identifier of the person of each value (N,), from which it is counted. Standard errors then allow for reports
        of one person that are alike, and `by_person` joins them. Files do not hold persons.
    missing : {"drop"}, optional
        "drop" to leave out missing values (None or NaN), whose number is then in ``about["missing"]``, together with
        their persons and their parameters of the mechanism. Default: missing values raise a ValueError. If NaN is a
        value of the mechanism, as of `Withheld`, nothing is left out.
    about : dict, optional
        Public facts about the release, which `save` stores as JSON, such as ``"sampler"``, the program that drew the
        values, ``"column"``, the name of their column, and ``"levels"``, the words for the codes 0, 1, ... Default:
        none.

    Examples
    --------
    >>> release = ldp.Release([1, 0, 1, 1], ldp.RandomizedResponse(epsilon=1.0))
    >>> print(len(release), release.guarantee.epsilon(0.0))
    4 1.0
    """

    values: Any
    mechanism: Mechanism
    count: int = static(default=None)
    doubts: tuple[str, ...] = host(default=(), init=False, repr=False)
    times: int | None = host(default=None, kw_only=True)
    about: dict[str, Any] | None = host(default=None, kw_only=True)
    added: tuple[Promise, ...] = host(default=(), init=False, repr=False)  # as of a sketch; of a part, of the whole
    row_counts: Any = host(default=None, init=False, repr=False)  # (rows of the data,), of values left out or repeated
    of_persons: Any = host(default=None, init=False, repr=False)  # (N,) codes of the persons of values; not in files
    persons: dataclasses.InitVar[Any] = dataclasses.field(default=None, kw_only=True)
    missing: dataclasses.InitVar[str | None] = dataclasses.field(default=None, kw_only=True)

    _beside: ClassVar[tuple[str, ...]] = ("times", "about")  # fields that a file holds beside values and mechanism

    def __post_init__(self, persons: Any = None, missing: str | None = None) -> None:
        kind = type(self.mechanism).__name__
        if not isinstance(self.mechanism, Mechanism):
            hint = "one for all records: make one release for each protocol"
            raise TypeError(f"mechanism must be an ldpbayes mechanism ({hint}), got {kind}")
        if "name" not in vars(type(self.mechanism)):
            raise TypeError(f'{kind} is not registered: decorate it with @ldpbayes.mechanisms.register("name")')
        words = (self.about or {}).get("levels", ()) if isinstance(self.about, dict | None) else None
        if not isinstance(words, Iterable) or not all(isinstance(word, str) for word in words):
            raise TypeError(f'about must be a dict, with a list of words under "levels" if any, got {self.about!r}')
        if len({*words}) < len([*words]):
            raise ValueError(f'the words under "levels" must differ, got {words!r}')
        if missing not in (None, "drop"):
            raise ValueError(f'missing must be "drop" to leave out missing values, or None; got {missing!r}')
        if self.values is None:
            if self.count is None:
                raise ValueError("a release without values needs count, its number of records; got None")
            count = at_least(1, "count", self.count)
        elif isinstance(self.values, jax.core.Tracer):
            count = self.values.shape[0]
        else:
            persons = self._read_words_and_rows(persons, missing)
            object.__setattr__(self, "values", self.mechanism.validated(self.values))
            count = len(self.values)
            if self.count not in (None, count):
                raise ValueError(f"count is {self.count}, but there are {count} values; leave count out")
        object.__setattr__(self, "count", count)
        if self.mechanism.batch_shape not in ((), (1,), (count,)):
            shape, hint = self.mechanism.batch_shape, "give one budget, or one for each record"
            raise ValueError(f"the mechanism's parameters have shape {shape}, but there are {count} records: {hint}")
        if persons is not None:
            entries = entries_of(persons)
            counts = Counter(entries)
            if self.times is not None or counts.total() != count or any(map(is_missing, counts)):
                raise ValueError(f"persons must have one person for each of the {count} values; do not give times")
            object.__setattr__(self, "times", max(counts.values()))
            numbers = {person: number for number, person in enumerate(counts)}
            object.__setattr__(self, "of_persons", np.array([numbers[person] for person in entries]))
        elif self.times is not None:
            object.__setattr__(self, "times", at_least(1, "times", self.times))
        if isinstance(self.values, np.ndarray) and is_concrete(self.mechanism):
            self._doubt(doubts_about(self.mechanism, self.values))

    def _read_words_and_rows(self, persons: Any, missing: str | None) -> Any:
        """Make codes of words, and records of rows of the data, without missing ones; return the records' persons."""
        values, about, count = self.values, self.about or {}, self.count
        levels = about.get("levels", levels_in_order(values))
        if levels is not None and self.mechanism.of_categories and not self.mechanism.event_shape:
            values = codes_of(values, [*levels], int(ends_of(self.mechanism.support)[1]) + 1)
            about = about if values is self.values else about | {"levels": [*map(str, levels)]}
        if missing or np.ndim(count):
            values, gaps = array_and_gaps(values if missing else unmasked(values))
            gaps &= not self.mechanism.may_be_missing  # NaN is then a value
            counts = checked("count", count, *WHOLE_COUNTS) if np.ndim(count) else np.ones(len(values))
            if np.shape(counts) != (len(values),) or (persons is not None and len(persons) != len(values)):
                raise ValueError(f"count and persons must have one entry for each of the {len(values)} values")
            if missing and gaps.any():
                about = about | {"missing": f"{counts[gaps].sum():,.0f} of {counts.sum():,.0f} values, left out"}
                counts = np.where(gaps, 0, counts)
            object.__setattr__(self, "row_counts", counts.astype(int))
            object.__setattr__(self, "count", None if np.ndim(count) else count)
            if self.mechanism.batch_shape == (len(values),):
                object.__setattr__(self, "mechanism", self.mechanism.of_records((len(values),), self.rows))
            persons = None if persons is None else np.array(entries_of(persons), object)[self.rows]
            values = values[self.rows]
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "about", about or self.about)
        return persons

    def _doubt(self, problem: str | None) -> None:
        if problem:
            object.__setattr__(self, "doubts", (*self.doubts, problem))
            warn(problem, ReleaseWarning)

    #: For each release in this one, its mechanism and the number of values about one person.
    promises = property(lambda self: self.added or (self._promise,))
    #: The guarantee for each person, for all values about this person.
    guarantee = property(lambda self: self._promise.stated(self.mechanism.guarantee).composed(self._promise.times or 1))
    #: The program that drew the values of a secure release, or None.
    sampler = property(lambda self: (self.about or {}).get("sampler"))
    size = property(lambda self: self.count, doc="Number of records.")

    @property
    def rows(self) -> Array:
        """For each value, the row of the data that it came from; None if each row of the data is a value."""
        return None if self.row_counts is None else np.repeat(np.arange(len(self.row_counts)), self.row_counts)

    #: Persons (N,) as clusters of the values, None if they are unknown, or if there is one, or one value of each.
    clusters = property(lambda self: self.of_persons if 1 < (self.times or 1) < self.count else None)

    @property
    def _counts(self) -> dict[str, Any]:
        return {"records" + " to simulate" * (self.values is None): self.count, "reports a person": self.times}

    @property
    def _promise(self) -> Promise:
        unknown = self.mechanism.trust_model == "central" and self.count > 1 and self.times is None
        return Promise(self.mechanism, self.times, change=OF_ONE_VALUE if unknown else "")

    def __len__(self) -> int:
        return self.count

    def __add__(self, other: "Release") -> "Release":
        """Return a release of the values of both, whose ``times`` are added, since one person may be in both. Raises
        ValueError if the mechanisms are of different kinds, or if one of the releases has no values.
        """
        both = self, other
        plain = {*map(type, both)} == {Release} and all(part.values is not None for part in both)  # tables have keys
        if not plain or len({jax.tree.structure(release.mechanism) for release in both}) > 1:
            wanted = "releases with values and with mechanisms of one kind"
            raise ValueError(f"only {wanted} can be added, got {self} and {other}")
        mechanism = joined_mechanism((self.mechanism, other.mechanism), (self.count, other.count))
        values, times = np.concatenate([self.values, other.values]), (self.times or 1) + (other.times or 1)
        total = Release(values, mechanism, times=times, about=self.about if self.about == other.about else None)
        object.__setattr__(total, "added", self.promises + other.promises)
        return total

    def by_person(self, permanent: Mechanism | None = None) -> "Release":
        """Return a release with one value for each person, in the order of their first reports, for people with one
        unknown record each, about which all their reports are. The likelihood is then exact, and nobody counts twice.

        Codes become rows of a `ldpbayes.mechanisms.Repeated`; `permanent` is the step by which a person drew a lasting
        answer, if all reports are about that one, and then bounds the guarantee for any number of reports. Numbers
        under Gaussian noise become the mean of a person's reports, which is sufficient. Raises ValueError without
        ``persons``, or for other mechanisms.
        """
        if self.of_persons is None or self.values is None:
            raise ValueError("by_person needs a release with persons=, the person of each value; files do not hold it")
        one, noise = self.mechanism, self.mechanism.noise
        if not isinstance(one, Additive) or not isinstance(noise, Gaussian) or one.record_shape:
            if one.event_shape:
                raise ValueError(f"by_person needs codes, or numbers under Gaussian noise; {one.name} releases rows")
            values = Repeated.rows(self.values, self.of_persons)
            mechanism: Any = Repeated(one, values.shape[1], permanent)
        elif permanent is not None or np.ndim(one.lower) or np.ndim(one.upper):
            raise ValueError("numbers need bounds that all persons share, and take no permanent step")
        else:
            weights = np.broadcast_to(np.asarray(noise.standard_deviation, float) ** -2.0, self.count)
            precisions = np.bincount(self.of_persons, weights)
            values = np.bincount(self.of_persons, weights * self.values) / precisions
            deviations = precisions**-0.5
            noise = Gaussian(deviations[0] if (deviations == deviations[0]).all() else deviations)
            mechanism = AdditiveMechanism(noise, one.lower, one.upper, sensitivity=one.sensitivity)
        joined = Release(values, mechanism, about=self.about)
        object.__setattr__(joined, "added", self.added)  # a part has the promise of the whole
        return joined

    def sketch(
        self,
        *,
        panels: int | None = None,
        lattice: bool | None = None,
        keep_records: bool = True,
        by: Any = None,
        expand: bool | None = None,
        at: ExpandedSketch | None = None,
    ) -> Any:
        """Compress the release to a sketch: a small summary that `fit` uses in place of the released values.

        The time to sample a posterior from a sketch does not depend on the number of records. The class of the sketch
        depends on the released values:

        - numbers under continuous noise: `PanelSketch`, or `MixedSketch` if the records have different budgets;
        - discrete values, such as codes, bits or whole numbers: `CountSketch`;
        - categories, if there are thousands of different released values: `ExpandedSketch`;
        - rows under Gaussian noise: `MomentSketch`;
        - statistics of each record (`ldpbayes.mechanisms.StatisticsMechanism`): `TotalSketch`.

        Raises ValueError if none of these fits, as for numbers of more than 64 different budgets, bounds or noise
        scales.

        Parameters
        ----------
        panels, lattice : optional
            Only for `PanelSketch`, which more panels make more exact: the number of panels, intervals that divide the
            range of likely released values (default: 40, or more if the noise is narrow), and whether every integer
            between the clipping bounds is an end of a panel, for counts (default: under Laplace noise, for at most 128
            integers).
        keep_records : bool
            True (default) to keep a reference to the released values, which `fit` uses if the sketch is not exact
            enough.
        by : array_like (N,), optional
            The group of each record, or with ``count`` or ``missing`` of each row of the data: labels that can be
            sorted, or integer codes 0, ..., G − 1. The name of a series becomes the name of the axis of groups in
            results. Discrete values give one sketch, for models with a law of batch shape (G,); other values give
            `Groups` of G sketches. Default: no groups.
        expand : bool, optional
            Only for categories under a pure protocol (`ldpbayes.mechanisms.PureProtocol`): True for an
            `ExpandedSketch`, False for a `CountSketch`. Default: True for thousands of different values, and enough
            records for an accurate polynomial.
        at : ExpandedSketch, optional
            An earlier sketch, to which the new one can be added: the polynomials get one centre and order.
        """
        if self.values is None:
            raise ValueError("a release without values cannot be sketched; simulate first")
        if expand is False and at is not None:
            raise ValueError("at= is only for expansions, but expand is False")
        values, mechanism, coords = self.values, self.mechanism, None
        if by is not None:
            by, coords = levels_of(by, self.count if self.rows is None else len(self.row_counts))
            by = by if self.rows is None else by[self.rows]
        if expand or at is not None or (expand is None and expansion_pays(values, mechanism, by)):
            sketch: Any = ExpandedSketch.of(values, mechanism, by, at, keep_records)
        elif mechanism.support.is_discrete:
            sketch = CountSketch.of(values, mechanism, by)
        elif by is not None:
            options: Any = {"panels": panels, "lattice": lattice, "keep_records": keep_records}
            return Groups(tuple(part.sketch(**options) for part in grouped(self, by)), coords)
        elif isinstance(mechanism, StatisticsMechanism):
            sketch = TotalSketch.of(values, mechanism)
        elif mechanism.record_shape:
            sketch = MomentSketch.of(values, mechanism)
        else:
            codes, mechanisms = budgets_of(mechanism, self.count)
            of_budget = [(values[codes == code], one) for code, one in enumerate(mechanisms)]
            sketch = MixedSketch.of([PanelSketch.of(*pair, panels, lattice, keep_records) for pair in of_budget])
        promise = self._promise._replace(mechanism=sketch.mechanism)
        added = self.added or ((promise,) if promise != Promise(sketch.mechanism) else ())
        return dataclasses.replace(sketch, doubts=self.doubts, added=added, coords=coords)

    def save(self, path: str | os.PathLike) -> None:
        """Write the release to an ``.npz`` or ``.parquet`` file, as `load` describes it. A failed write leaves an old
        file as it is. Raises ValueError if the release has no values.
        """
        npz = is_npz(path)
        if self.values is None:
            raise ValueError("a release without values cannot be saved")
        with whole_file(path) as file:
            write_release(self, file, npz)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Release":
        """Read a release from a file that `save` or another program wrote; ValueError if it is damaged or not a
        release.

        A ``.npz`` file holds an array ``values`` (N, *event) and a string ``mechanism``, the JSON text of
        `Mechanism.spec`. A ``.parquet`` file holds a column ``value`` without nulls (lists if a released value is a
        row), and the JSON text in the metadata of the schema, under ``ldpbayes.mechanism``. The text can also have
        fields of the release, as in ``"release": {"times": 30}``, and a ``digest``, with which the rest must agree.
        """
        with reading(path, " is not a valid release file") as file:
            contents: Any = read_arrays(file, "values", "mechanism").values() if is_npz(path) else _read_parquet(file)
            values, text = contents
            mechanism, beside = mechanism_and_more(verified(str(text), lambda: blocks_of(values=values)))
            kind: Any = cls
            if "keys" in beside and cls is Release:
                from ldpbayes.data._tables import NoisyTable as kind  # a release, whose module imports this one
            return kind(values, mechanism, **{name: beside.get(name) for name in kind._beside})


def write_release(release: Release, file: BinaryIO, npz: bool) -> None:
    """Write a release to an open file, in NumPy's format or as a Parquet file."""
    fields = {name: getattr(release, name) for name in release._beside}
    beside = {name: value for name, value in fields.items() if value is not None}
    beside = {"table" if "keys" in beside else "release": beside} if beside else {}
    header, values = release.mechanism.spec() | beside, release.values
    if npz:
        save_arrays(file, "mechanism", header, {"values": values})
        return
    pa = pyarrow()
    column = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1]) if values.ndim > 1 else values
    text = signed(json.dumps(header, default=np.ndarray.tolist), blocks_of(values=values))
    table = pa.table({"value": column}).replace_schema_metadata({SPEC_KEY: text})
    pa.parquet.write_table(table, file, row_group_size=archive.ROWS_PER_DIGEST, write_page_checksum=True)


def mechanism_and_more(header: Any) -> tuple[Mechanism, dict[str, Any]]:
    """The mechanism of a file's header, and what stands beside it."""
    parts = [header.pop(name, {}) for name in ("digest", "table", "release")] if isinstance(header, dict) else []
    return mechanism_from_spec(header), {name: value for part in parts[1:] for name, value in part.items()}


def simulated_release(key: Key, records: np.ndarray, mechanism: Mechanism) -> Release:
    """A release of the records, in double precision; a real one needs a cryptographically secure sampler."""
    with jax.enable_x64(True):
        return Release(np.asarray(mechanism.randomize(key, records)), mechanism)


def grouped(release: Release, codes: np.ndarray) -> Iterator[Release]:
    """Releases of groups by codes 0, ..., G − 1 (N,), with the promise of all; budgets that agree are one number."""
    added = parts_of(uuid.uuid4().hex, release.promises)
    for code, rows in enumerate(np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])):
        if not len(rows):
            raise ValueError(f"by must have records for every group, but group {code} has none")
        part = part_of(release, rows)
        mechanism = part.mechanism._map_personal(lambda leaf: leaf[0] if (leaf == leaf[0]).all() else leaf)
        beside = release.doubts * (code == 0), release.times, release.about, added
        yield unchecked(Release, part.values, mechanism, part.count, *beside)


def part_of(release: Release, rows: np.ndarray) -> Release:
    """A release of the values at some positions, in order, with the promise of all."""
    mechanism, beside = release.mechanism.of_records((release.count,), rows), (release.times, release.about)
    values = None if release.values is None else release.values[rows]
    of_data = np.arange(release.count) if release.rows is None else release.rows
    counts = np.bincount(of_data[rows], minlength=release.count if release.rows is None else len(release.row_counts))
    of_persons = None if release.of_persons is None else release.of_persons[rows]
    return unchecked(
        Release, values, mechanism, len(rows), release.doubts, *beside, release.promises, counts, of_persons
    )


def promises(data: Sequence[Any], others: Sequence[Promise] = (), same: bool = False, different: bool = False) -> str:
    """Statements of releases, sketches and other promises; ValueError if those about the same people do not compose."""
    return statements([*(promise for part in data for promise in part.promises), *others], same, different)


def warn_of_repeats(*releases: Sequence[Promise], same_people: bool = False) -> list[str]:
    """Warn, and return the warnings, if answers that a likelihood takes as independent may be of one person."""
    total = sum if same_people else max
    counts = [(total(promise.times or 1 for promise in counted_once(part)), part[0]) for part in releases]
    # Of T answers a person, a sum of scores has at most T times the variance; values under central trust are none.
    most = max((n for n, first in counts if n > 1 and first.guarantee.trust_model == "local"), default=1)
    text = (
        f"up to {most:,} of the released values may be about one person, but are taken as independent: intervals and "
        f"standard errors are too small, by a factor of up to {most**0.5:.3g}; give the person of each value, "
        "as persons=, for standard errors, and fit release.by_person(), or keep one value of each person"
    )
    if most > 1:
        warn(text, RepeatedAnswersWarning)
    return [text] * (most > 1)


def doubts_about(mechanism: Mechanism, values: np.ndarray) -> str | None:
    """Evidence that a mechanism did not release these validated values, whatever the records; None without any."""
    reasons = "; ".join(mechanism.implausible(values))
    problem = f"these values are nearly impossible under {mechanism!r}, whatever the records are"
    advice = "Check the parameters of the mechanism, and that the values were not changed after the release"
    return f"{problem} (probability below {FALSE_REPORT_LEVEL:g}): {reasons}. {advice}" if reasons else None


def is_npz(path: str | os.PathLike) -> bool:
    """Whether a release file is in NumPy's format and not Parquet; ValueError if its name ends otherwise."""
    suffix = pathlib.Path(path).suffix
    if suffix not in (".npz", ".parquet"):
        raise ValueError(f"the name of a release file must end in .npz or .parquet, got {pathlib.Path(path).name!r}")
    return suffix == ".npz"


def _read_parquet(file: BinaryIO) -> tuple[Any, str]:
    opened = parquet_file(file)
    text = spec_text(opened)
    if opened.schema_arrow.names.count("value") != 1 or not text:
        raise ValueError(f"it needs one column 'value' and schema metadata {SPEC_KEY!r} (the mechanism's spec)")
    return values_of(opened.read(columns=["value"])["value"], "its column 'value' has nulls"), text
