"""Releases: released values, the mechanism that made them, and how they are sketched."""

import dataclasses
import os
import pathlib
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import LdpBayesWarning, at_least, warn
from ldpbayes._core.printing import Holding
from ldpbayes._core.pytrees import host, pytree_dataclass, static
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Key
from ldpbayes.data._files import read_release, write_release
from ldpbayes.data._sketches import MomentSketch, Sketch, TotalSketch
from ldpbayes.data.category_sketches import CountSketch, ExpandedSketch, expansion_pays
from ldpbayes.data.panel_sketch import PanelSketch
from ldpbayes.mechanisms import Mechanism, StatisticsMechanism, mechanism_from_spec
from ldpbayes.mechanisms.plausibility import LEVEL


class ReleaseWarning(LdpBayesWarning):
    """The stated mechanism could hardly have released these values, whatever the records; the message says why."""


@pytree_dataclass(eq=False, repr=False)
class Release(Holding):
    """Released values with their mechanism; without values, a plan for ``count`` records that a model can simulate.

    A value belongs to one record, and so does the guarantee; or it is a statistic of many records (a noisy count, sum
    or mean), the only value of its release, whose mechanism has no bounds and states by how much one person moves it.

    Parameters
    ----------
    values : array_like (N, *event) or None
        One released value a record: a number or a code, or a row of the mechanism's ``event_shape`` (bits, say).
    mechanism : Mechanism
        What made them. Its parameters are scalars, or arrays of shape (N,) for personal budgets.
    count : int, optional
        Number of records; only without values.

    Raises
    ------
    TypeError, ValueError
        If ``mechanism`` is not registered; for values that `Mechanism.validated` refuses, personal budgets of another
        length, or a wrong count.

    Warns
    -----
    ReleaseWarning
        If `Mechanism.implausible` gives reasons. ``doubts`` keeps the warning, for `fit` and sketches of the release.
    """

    values: Any
    mechanism: Mechanism
    count: int = static(default=None)
    doubts: tuple[str, ...] = host(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        kind = type(self.mechanism).__name__
        if not isinstance(self.mechanism, Mechanism):
            hint = "one for all records: make a release for each protocol"
            raise TypeError(f"mechanism must be an ldpbayes mechanism ({hint}), got {kind}")
        if "name" not in vars(type(self.mechanism)):
            raise TypeError(f'{kind} is not registered: decorate it with @ldpbayes.mechanisms.register("name")')
        if self.values is None:
            count = at_least(1, "count", self.count)
        elif isinstance(self.values, jax.core.Tracer):
            count = self.values.shape[0]
        else:
            object.__setattr__(self, "values", self.mechanism.validated(self.values))
            count = len(self.values)
            if self.count not in (None, count):
                raise ValueError(f"count is {self.count}, but there are {count} values; leave count out")
        object.__setattr__(self, "count", count)
        if self.mechanism.batch_shape not in ((), (1,), (self.count,)):
            raise ValueError(
                f"the mechanism's parameters have shape {self.mechanism.batch_shape}, but there are {self.count} "
                "records: give one budget, or one a record"
            )
        if isinstance(self.values, np.ndarray) and is_concrete(self.mechanism):
            problem = doubts_about(self.mechanism, self.values)
            if problem:
                object.__setattr__(self, "doubts", (problem,))
                warn(problem, ReleaseWarning)

    def _counts(self) -> dict[str, Any]:
        return {"records" if self.values is not None else "records to simulate": self.count}

    def __len__(self) -> int:
        return self.count

    def sketch(
        self,
        *,
        panels: int | None = None,
        lattice: bool | None = None,
        keep_records: bool = True,
        by: ArrayLike | None = None,
        expand: bool | None = None,
        at: ExpandedSketch | None = None,
    ) -> Sketch:
        """Compress to weighted nodes or an expansion, so that a posterior costs no more for more records.

        A `PanelSketch` is of numbers, a `CountSketch` of discrete outputs, an `ExpandedSketch` of categories with many
        kinds of outputs, a `MomentSketch` of rows under Gaussian noise, a `TotalSketch` of statistics.

        Parameters
        ----------
        panels : int, optional
            Of numbers: panels over the released range. Default: 40, more where the mechanism's noise is narrow.
        lattice : bool, optional
            Of numbers: cut the panels at the integers, where a count's log-likelihood has kinks under Laplace noise.
            Default: where at most 128 integers lie between the bounds.
        keep_records : bool
            Keep a reference to ``values``: `fit` can then refine a coarse sketch, and check an expansion.
        by : array of int (N,), optional
            Of discrete outputs: group of each record, 0, ..., G − 1; the records' law then has batch shape (G,).
        expand : bool, optional
            Of categories under a pure protocol: keep the log-likelihood as a polynomial of the shares, not a count of
            each kind of output. Default: for thousands of kinds, and records enough for it to be as good.
        at : ExpandedSketch, optional
            Expand where this sketch was expanded, to its order, in one pass; the two then add.

        Raises
        ------
        ValueError
            For a release without values, personal budgets of a continuous one, rows under other than Gaussian noise, a
            mechanism of numbers without a released range, values beyond it, or options that do not suit the release.
        """
        if self.values is None:
            raise ValueError("a release without values cannot be sketched; simulate first")
        if expand is False and at is not None:
            raise ValueError("at= is for expansions, and expand is False")
        values, mechanism = self.values, self.mechanism
        if expand or at is not None or (expand is None and expansion_pays(values, mechanism, by)):
            sketch: Any = ExpandedSketch.of(values, mechanism, by, at, keep_records)
        elif mechanism.support.is_discrete:
            sketch = CountSketch.of(values, mechanism, by)
        elif by is not None:
            raise ValueError("by= is for releases with discrete outputs; make one sketch a group")
        elif isinstance(mechanism, StatisticsMechanism):
            sketch = TotalSketch.of(values, mechanism)
        elif mechanism.record_shape:
            sketch = MomentSketch.of(values, mechanism)
        else:
            sketch = PanelSketch.of(values, mechanism, panels, lattice, keep_records)
        return dataclasses.replace(sketch, doubts=self.doubts)

    def save(self, path: str | os.PathLike) -> None:
        """Write to ``.npz`` or ``.parquet`` (see `load`); ValueError for another ending, or without values."""
        if self.values is None:
            raise ValueError("a release without values cannot be saved")
        write_release(pathlib.Path(path), self.values, self.mechanism.spec())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Release":
        """Read a release file; ValueError where it has another form or is damaged, or its release is invalid.

        ``.npz`` holds ``values``, shape (N, *event), and ``mechanism``, the mechanism's JSON spec as a string.
        ``.parquet`` holds a column ``value`` without nulls (of lists, where an event is a row), and the spec in the
        schema metadata under ``ldpbayes.mechanism``.
        """
        values, spec = read_release(pathlib.Path(path))
        return cls(values, mechanism_from_spec(spec))


def simulated_release(key: Key, records: np.ndarray, mechanism: Mechanism) -> Release:
    """A release of the records, in double precision; a real one needs a cryptographically secure sampler."""
    with jax.enable_x64(True):
        return Release(np.asarray(mechanism.randomize(key, records)), mechanism)


def doubts_about(mechanism: Mechanism, values: np.ndarray) -> str | None:
    """Evidence that a mechanism did not release these validated values, whatever the records; None without any."""
    reasons = mechanism.implausible(values)
    if not reasons:
        return None
    return (
        f"{mechanism!r} could hardly have released these values, whatever the records are (probability below "
        f"{LEVEL:g}): {'; '.join(reasons)}. Check its parameters, and that the values are as they were released"
    )
