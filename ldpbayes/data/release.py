"""Releases: released values, the mechanism that made them, and how they are sketched."""

import dataclasses
import json
import os
import pathlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from ldpbayes._core.checks import LdpBayesWarning, at_least, warn
from ldpbayes._core.printing import Holding
from ldpbayes._core.pytrees import host, pytree_dataclass, static, unchecked
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Key
from ldpbayes.data._parquet import pyarrow, values_of
from ldpbayes.data._sketches import Groups, MomentSketch, TotalSketch, levels_of
from ldpbayes.data.category_sketches import CountSketch, ExpandedSketch, expansion_pays
from ldpbayes.data.frames import is_missing
from ldpbayes.data.panel_sketch import PanelSketch
from ldpbayes.mechanisms import Mechanism, StatisticsMechanism, mechanism_from_spec
from ldpbayes.mechanisms.plausibility import LEVEL
from ldpbayes.mechanisms.protocol import Promise, joined_mechanism, statements

SPEC_KEY = "ldpbayes.mechanism"  # of a mechanism's spec, in the schema metadata of a Parquet file


class ReleaseWarning(LdpBayesWarning):
    """The values are nearly impossible under the mechanism, for any records. The message says why."""


@pytree_dataclass(eq=False, repr=False)
class Release(Holding):
    """Released values with their mechanism; or, without values, a plan for ``count`` records that a model can simulate.

    Each value belongs to one record, and the guarantee protects each record. Or there is one value, a statistic of many
    records (a noisy count, sum or mean). Its mechanism then has no bounds and states the sensitivity.

    Parameters
    ----------
    values : array_like (N, *event) or None
        One released value for each record: a number, a code, or a row of the mechanism's ``event_shape`` (such as
        bits). Raises ValueError if values are impossible. Nearly impossible values cause a `ReleaseWarning`, which is
        kept in ``doubts``.
    mechanism : Mechanism
        The mechanism that made the values, of a registered class. Its parameters are numbers or arrays (N,).
    count : int, optional
        Number of records. It is given only if there are no values.
    times : int, optional
        Largest number of values about one person (default: 1). ``guarantee`` and statements are for all these values.
    about : dict, optional
        Public facts in the form of JSON, which a file keeps. ``sampler`` is the program that drew the values
        (`ldpbayes.secure.release`). ``column`` is the name of the column, and ``levels`` are words for codes 0, 1, ...
    persons : array_like (N,), optional
        The person of each value, from which ``times`` is computed. The array is not kept.

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
    persons: dataclasses.InitVar[Any] = dataclasses.field(default=None, kw_only=True)

    _beside: ClassVar[tuple[str, ...]] = ("times", "about")  # fields that a file holds beside values and mechanism

    def __post_init__(self, persons: Any = None) -> None:
        kind = type(self.mechanism).__name__
        if not isinstance(self.mechanism, Mechanism):
            hint = "one for all records: make a release for each protocol"
            raise TypeError(f"mechanism must be an ldpbayes mechanism ({hint}), got {kind}")
        if "name" not in vars(type(self.mechanism)):
            raise TypeError(f'{kind} is not registered: decorate it with @ldpbayes.mechanisms.register("name")')
        if self.values is None:
            if self.count is None:
                raise ValueError("a release without values needs count, its number of records; got None")
            count = at_least(1, "count", self.count)
        elif isinstance(self.values, jax.core.Tracer):
            count = self.values.shape[0]
        else:
            object.__setattr__(self, "values", self.mechanism.validated(self.values))
            count = len(self.values)
            if self.count not in (None, count):
                raise ValueError(f"count is {self.count}, but there are {count} values; leave count out")
        object.__setattr__(self, "count", count)
        if self.mechanism.batch_shape not in ((), (1,), (count,)):
            shape, hint = self.mechanism.batch_shape, "give one budget, or one for each record"
            raise ValueError(f"the mechanism's parameters have shape {shape}, but there are {count} records: {hint}")
        if persons is not None:
            counts = Counter(persons.tolist() if hasattr(persons, "tolist") else persons)
            if self.times is not None or counts.total() != count or any(map(is_missing, counts)):
                raise ValueError(f"persons replaces times, and must have one person for each of the {count} values")
            object.__setattr__(self, "times", max(counts.values()))
        elif self.times is not None:
            object.__setattr__(self, "times", at_least(1, "times", self.times))
        if isinstance(self.values, np.ndarray) and is_concrete(self.mechanism):
            problem = doubts_about(self.mechanism, self.values)
            if problem:
                object.__setattr__(self, "doubts", (problem,))
                warn(problem, ReleaseWarning)

    def _counts(self) -> dict[str, Any]:
        return {"records" + " to simulate" * (self.values is None): self.count, "reports a person": self.times}

    promises = property(lambda self: (Promise(self.mechanism, self.times),), doc="The mechanism and ``times``.")
    guarantee = property(lambda self: self.mechanism.guarantee.composed(self.times or 1), doc="For each person.")
    sampler = property(lambda self: (self.about or {}).get("sampler"), doc="The sampler of a secure release, or None.")
    size = property(lambda self: self.count, doc="Number of records.")

    def __len__(self) -> int:
        return self.count

    def __add__(self, other: "Release") -> "Release":
        """The values of both releases; ValueError for mechanisms of different kinds. One person may be in both."""
        both = self, other
        plain = {*map(type, both)} == {Release} and all(each.values is not None for each in both)  # tables have keys
        if not plain or len({jax.tree.structure(each.mechanism) for each in both}) > 1:
            raise ValueError(f"releases with values of one kind of mechanism add, not {self} and {other}")
        mechanism = joined_mechanism((self.mechanism, other.mechanism), (self.count, other.count))
        values, times = np.concatenate([self.values, other.values]), (self.times or 1) + (other.times or 1)
        return Release(values, mechanism, times=times, about=self.about if self.about == other.about else None)

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
        """Compress the release to a small summary. The time to sample a posterior then does not depend on the number of
        records.

        Numbers give a `PanelSketch`, discrete outputs a `CountSketch`, categories with many kinds of outputs an
        `ExpandedSketch`, rows under Gaussian noise a `MomentSketch`, and statistics a `TotalSketch`. Raises ValueError
        for other releases, for values beyond the released range, for personal budgets with continuous noise, and for
        options of other kinds of sketches.

        Parameters
        ----------
        panels : int, optional
            For numbers: the number of panels over the released range. Default: 40, or more for narrow noise.
        lattice : bool, optional
            For numbers: True to cut the panels at the integers, where the log-likelihood of a count has kinks under
            Laplace noise. Default: True if at most 128 integers lie between the bounds.
        keep_records : bool
            True to keep a reference to ``values`` (default): `fit` can then refine a coarse sketch and check
            expansions.
        by : array_like (N,), optional
            The group of each record: strings or other sortable labels (a series names the axis), or integer codes 0,
            ..., G − 1. Discrete outputs give one sketch, for laws of batch shape (G,). Other releases give `Groups`.
        expand : bool, optional
            For categories under a pure protocol: True to keep a polynomial of the shares instead of counts. Default:
            True for thousands of kinds of outputs, if there are enough records for an accurate polynomial.
        at : ExpandedSketch, optional
            A sketch whose place and order are used for the expansion, in one pass. The two sketches can then be added.
        """
        if self.values is None:
            raise ValueError("a release without values cannot be sketched; simulate first")
        if expand is False and at is not None:
            raise ValueError("at= is for expansions, and expand is False")
        values, mechanism = self.values, self.mechanism
        by, coords = (None, None) if by is None else levels_of(by, self.count)
        if expand or at is not None or (expand is None and expansion_pays(values, mechanism, by)):
            sketch: Any = ExpandedSketch.of(values, mechanism, by, at, keep_records)
        elif mechanism.support.is_discrete:
            sketch = CountSketch.of(values, mechanism, by)
        elif by is not None:
            options = {"panels": panels, "lattice": lattice, "keep_records": keep_records}
            return Groups(tuple(self._of_groups(by, options)), coords)
        elif isinstance(mechanism, StatisticsMechanism):
            sketch = TotalSketch.of(values, mechanism)
        elif mechanism.record_shape:
            sketch = MomentSketch.of(values, mechanism)
        else:
            sketch = PanelSketch.of(values, mechanism, panels, lattice, keep_records)
        added = (Promise(sketch.mechanism, self.times),) if self.times else ()
        return dataclasses.replace(sketch, doubts=self.doubts, added=added, coords=coords)

    def _of_groups(self, codes: np.ndarray, options: Any) -> Iterator[Any]:
        """A sketch a group, with the promise of all groups together; personal budgets that agree are one number."""
        promises, doubts = self.promises, self.doubts
        for code, rows in enumerate(np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])):
            if not len(rows):
                raise ValueError(f"by: group {code} has no record, and no sketch")
            mechanism = self.mechanism.of_records((self.count,), rows)
            mechanism = mechanism._map_personal(lambda leaf: leaf[0] if (leaf == leaf[0]).all() else leaf)
            part = unchecked(Release, self.values[rows], mechanism, len(rows), doubts * (code == 0))
            yield dataclasses.replace(part.sketch(**options), added=promises)

    def save(self, path: str | os.PathLike) -> None:
        """Write to ``.npz`` or ``.parquet`` (see `load`). Raises ValueError for other endings or without values."""
        if self.values is None:
            raise ValueError("a release without values cannot be saved")
        path, values, own = pathlib.Path(path), self.values, {name: getattr(self, name) for name in self._beside}
        beside = {name: value for name, value in own.items() if value is not None}
        beside = {"table" if "keys" in beside else "release": beside} if beside else {}
        spec = json.dumps(self.mechanism.spec() | beside, default=np.ndarray.tolist)
        if _is_npz(path):
            np.savez(path, values=values, mechanism=np.array(spec))
        else:
            pa = pyarrow()
            column = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1]) if values.ndim > 1 else values
            pa.parquet.write_table(pa.table({"value": column}).replace_schema_metadata({SPEC_KEY: spec}), path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Release":
        """Read a release file. Raises ValueError if its form is wrong, if it is damaged, or if its release is invalid.

        ``.npz`` holds ``values``, of shape (N, *event), and ``mechanism``, the JSON text of `Mechanism.spec`.
        ``.parquet`` holds a column ``value`` without nulls (of lists for rows) and this text in the schema metadata,
        under ``ldpbayes.mechanism``. Beside the parameters, the text may have ``"release": {"times": 30}``.
        """
        path = pathlib.Path(path)
        if not path.exists():
            raise FileNotFoundError(f"no release file {path}")
        values, text = _read_npz(path) if _is_npz(path) else _read_parquet(path)
        mechanism, beside = mechanism_and_more(text, path.name)
        options: Any = {name: beside.get(name) for name in cls._beside}
        return cls(values, mechanism, **options)


def mechanism_and_more(text: str, name: str) -> tuple[Mechanism, dict[str, Any]]:
    """The mechanism of a file's spec, and what stands beside it."""
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the mechanism spec in {name} is not JSON: {error}") from None
    beside = {**spec.pop("table", {}), **spec.pop("release", {})} if isinstance(spec, dict) else {}
    return mechanism_from_spec(spec), beside


def simulated_release(key: Key, records: np.ndarray, mechanism: Mechanism) -> Release:
    """A release of the records, in double precision; a real one needs a cryptographically secure sampler."""
    with jax.enable_x64(True):
        return Release(np.asarray(mechanism.randomize(key, records)), mechanism)


def promises(data: Sequence[Any], others: Sequence[Mechanism] = (), same_people: bool = False) -> str:
    """What releases and sketches promise, and other mechanisms; of tables, what their publishers state. ValueError for
    releases about the same people whose promises do not compose.
    """
    stated = dict.fromkeys(each.privacy for each in data)
    plain = promised([each for each in data if not each.privacy])
    if same_people and any(stated):
        raise ValueError("same_people: a table has a statement of its publisher, and no guarantee to compose")
    return "\n".join(filter(None, [statements([*plain, *map(Promise, others)], same_people), *stated]))


def promised(data: Sequence[Any]) -> list[Promise]:
    """The promises of releases and sketches; that of a release once, if its groups were sketched apart and share it."""
    return [*{(place, id(each)): each for part in data for place, each in enumerate(part.promises)}.values()]


def doubts_about(mechanism: Mechanism, values: np.ndarray) -> str | None:
    """Evidence that a mechanism did not release these validated values, whatever the records; None without any."""
    reasons = "; ".join(mechanism.implausible(values))
    problem = f"could hardly have released these values, whatever the records are (probability below {LEVEL:g})"
    advice = "Check its parameters, and that the values are as they were released"
    return f"{mechanism!r} {problem}: {reasons}. {advice}" if reasons else None


def _is_npz(path: pathlib.Path) -> bool:
    if path.suffix not in (".npz", ".parquet"):
        raise ValueError(f"a release file ends in .npz or .parquet, got {path.name!r}")
    return path.suffix == ".npz"


def _read_npz(path: pathlib.Path) -> tuple[Any, str]:
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path.name} is no .npz file, or not all of one: it does not end as a zip archive does")
    try:
        with np.load(path, allow_pickle=False) as archive:
            absent = {"values", "mechanism"} - set(archive.files)
            if absent:
                raise ValueError(f"{path.name} lacks {' and '.join(sorted(absent))}; it has {', '.join(archive.files)}")
            return _entry(archive, "values", path), str(_entry(archive, "mechanism", path))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from None


def _entry(archive: Any, name: str, path: pathlib.Path) -> np.ndarray:
    try:
        entry = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise ValueError(f"{path.name} is damaged: {error}") from None
        kind = "values as an array of numbers" if name == "values" else "the mechanism's spec as a string of JSON"
        problem = f"{name} in {path.name} is an array of Python objects, which could hold code and is not read"
        raise ValueError(f"{problem}; save {kind}, or write the file with Release.save") from None
    if not isinstance(entry, np.ndarray):  # NumPy returns an entry of unknown form as bytes
        raise ValueError(f"{path.name} is damaged: {name} in it is no array")
    return entry


def _read_parquet(path: pathlib.Path) -> tuple[Any, str]:
    pa = pyarrow()
    try:
        table = pa.parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name} is not a Parquet file, or damaged: {error}") from None
    metadata = table.schema.metadata or {}
    if "value" not in table.column_names or SPEC_KEY.encode() not in metadata:
        raise ValueError(f"{path.name} needs a column 'value' and schema metadata {SPEC_KEY!r} (the mechanism's spec)")
    what = f"{path.name} has nulls in its column 'value'"
    return values_of(table["value"], what), metadata[SPEC_KEY.encode()].decode()
