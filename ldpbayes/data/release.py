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
from ldpbayes._core.pytrees import host, pytree, static
from ldpbayes._core.tracing import is_concrete
from ldpbayes.data._files import read_release, write_release
from ldpbayes.data._sketches import MomentSketch, Sketch, TotalSketch
from ldpbayes.data.category_sketches import CountSketch, ExpandedSketch, expands
from ldpbayes.data.panel_sketch import PanelSketch
from ldpbayes.mechanisms import Mechanism, StatisticsMechanism, mechanism_from_spec
from ldpbayes.mechanisms.plausibility import LEVEL


def sketch(
    values: ArrayLike,
    mechanism: Mechanism,
    *,
    panels: int | None = None,
    lattice: bool | None = None,
    keep_records: bool = True,
    by: ArrayLike | None = None,
    expand: bool | None = None,
    at: ExpandedSketch | None = None,
) -> Sketch:
    """Compress released values to weighted nodes in one streaming pass, or to an expansion in a few.

    Parameters
    ----------
    values : array (N, *event)
        Released values; a NumPy memory map is read in chunks.
    mechanism : Mechanism
        What released them: numbers with one budget for all records, or discrete outputs, where the records of each
        budget are counted on their own.
    panels : int, optional
        Panels over the released range. Default: 40, more where the mechanism's noise is narrow.
    lattice : bool, optional
        Cut the panels at the integers, where a count's log-likelihood has kinks under Laplace noise. Default: where at
        most 128 integers lie between the bounds.
    keep_records : bool
        Whether a reference to ``values`` is kept, so that `fit` can refine a sketch that turns out to be too coarse.
        An expansion without them cannot be compared with what it stands for.
    by : array of int (N,), optional
        Group of each record, 0, ..., G − 1, for discrete outputs: the records' law then has batch shape (G,).
    expand : bool, optional
        For categories under a pure protocol: whether the log-likelihood is kept as a polynomial of the shares, instead
        of a count of each kind of released value. Default: where there are thousands of kinds, and records enough for
        the polynomial to be as good as the counts.
    at : ExpandedSketch, optional
        Expand where this sketch was expanded, and to the same order, so that the two add; it takes one pass.

    Returns
    -------
    PanelSketch, CountSketch, ExpandedSketch, MomentSketch or TotalSketch
        Of numbers, of discrete outputs, of categories in many kinds of released values, of rows under Gaussian noise,
        of locally perturbed statistics.

    Raises
    ------
    ValueError
        For personal budgets of a continuous release (sketch each budget's records apart), rows under other noise than
        Gaussian, a mechanism of numbers that names no released range, values that the mechanism cannot have released, a
        number of panels that is no positive integer, or groups of another length, negative, or of a continuous release;
        for an expansion that is asked for where there is none, or elsewhere than at a sketch's of the same categories
        and groups.
    """
    if expand is False and at is not None:
        raise ValueError("at= is for expansions, and expand is False")
    if expand or at is not None or (expand is None and expands(values, mechanism, by)):
        return ExpandedSketch.of(values, mechanism, by, at, keep_records)
    if mechanism.support.is_discrete:
        return CountSketch.of(values, mechanism, by)
    if by is not None:
        raise ValueError("by= is for releases with discrete outputs; make one sketch a group")
    if isinstance(mechanism, StatisticsMechanism):
        return TotalSketch.of(values, mechanism)
    if mechanism.record_shape:
        return MomentSketch.of(values, mechanism)
    return PanelSketch.of(values, mechanism, panels, lattice, keep_records)


class ReleaseWarning(LdpBayesWarning):
    """The stated mechanism could hardly have released these values, whatever the records; the message says why."""


def doubts_about(mechanism: Mechanism, values: np.ndarray) -> str | None:
    """What speaks against values having been released by a mechanism, whatever the records; None where nothing does.

    Parameters
    ----------
    mechanism : Mechanism
        What is said to have made them.
    values : ndarray (N, *event)
        Released values that are `validated`.

    Returns
    -------
    str or None
    """
    said = mechanism.implausible(values)
    if not said:
        return None
    return (
        f"{mechanism!r} could hardly have released these values, whatever the records are (probability below "
        f"{LEVEL:g}): {'; '.join(said)}. Check its parameters, and that the values are as they were released"
    )


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Release(Holding):
    """Released values with their mechanism; without values, a plan for ``count`` records that a model can simulate.

    A value belongs to one record, and so does the guarantee of the mechanism; or it is a statistic of many records (a
    noisy count, sum or mean), the only value of a release, whose mechanism has no bounds and states by how much one
    person can move the statistic. A mechanism with bounds that is forced to make the same noise, such as
    ``LaplaceMechanism(n / scale, 0, n)`` for a count, would state the guarantee of a record that is a whole count, not
    that of a person in it.

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
    TypeError
        If ``mechanism`` is not a mechanism.
    ValueError
        For an empty, non-finite or non-numeric release, values of another shape or outside the mechanism's support
        (see `Mechanism.validated`), personal budgets of another length, or a count that contradicts the values.

    Warns
    -----
    ReleaseWarning
        If the mechanism could hardly have released these values, whatever the records (`Mechanism.implausible`).

    Attributes
    ----------
    doubts : tuple of str
        The warnings that were given; `fit` gives them again. A sketch of the release has them, too.
    """

    values: Any
    mechanism: Mechanism
    count: int = static(default=None)
    doubts: tuple[str, ...] = host(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        """Check everything before any computation."""
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(
                "mechanism must be an ldpbayes mechanism (one for all records: make a release for each protocol), "
                f"got {type(self.mechanism).__name__}"
            )
        if "name" not in vars(type(self.mechanism)):
            kind = type(self.mechanism).__name__
            raise TypeError(f'{kind} is not registered: decorate it with @ldpbayes.register("name")')
        if self.values is None:
            if self.count is None:
                raise ValueError("a release without values needs count, its number of records; got None")
            object.__setattr__(self, "count", at_least(1, "count", self.count))
        elif isinstance(self.values, jax.core.Tracer):
            object.__setattr__(self, "count", self.values.shape[0])
        else:
            values = self.mechanism.validated(self.values)
            if self.count is not None and self.count != len(values):
                raise ValueError(f"count is {self.count}, but there are {len(values)} values; leave count out")
            object.__setattr__(self, "values", values)
            object.__setattr__(self, "count", len(values))
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
        """Number of records."""
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
        """Compress to weighted nodes or an expansion: the cost of a posterior then does not depend on their number.

        Parameters
        ----------
        panels, lattice, keep_records, by, expand, at
            As in `ldpbayes.data.sketch`.

        Returns
        -------
        Sketch
            A `PanelSketch` of numbers, a `CountSketch` of discrete outputs, an `ExpandedSketch` of categories in many
            kinds of released values, a `MomentSketch` of rows under Gaussian noise, a `TotalSketch` of locally
            perturbed statistics.

        Raises
        ------
        ValueError
            For a release without values, and for the reasons of `ldpbayes.data.sketch`.
        """
        if self.values is None:
            raise ValueError("a release without values cannot be sketched; simulate first")
        options: dict[str, Any] = {"panels": panels, "lattice": lattice, "expand": expand, "at": at}
        made = sketch(self.values, self.mechanism, keep_records=keep_records, by=by, **options)
        return dataclasses.replace(made, doubts=self.doubts)  # type: ignore[type-var]  # every sketch is a dataclass

    def save(self, path: str | os.PathLike) -> None:
        """Write to ``.npz`` or ``.parquet``; see `Release.load` for both formats.

        Parameters
        ----------
        path : str or path-like
            Ends in ``.npz`` or ``.parquet``.

        Raises
        ------
        ValueError
            For another ending, or a release without values.
        """
        path = pathlib.Path(path)
        if self.values is None:
            raise ValueError("a release without values cannot be saved")
        write_release(path, self.values, self.mechanism.spec())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Release":
        """Read a release file.

        ``.npz`` holds ``values``, shape (N, *event), and ``mechanism``, the mechanism's JSON spec as a string.
        ``.parquet`` holds a column ``value`` without nulls (of lists, where an event is a row), and the spec in the
        schema metadata under ``ldpbayes.mechanism``.

        Parameters
        ----------
        path : str or path-like
            Ends in ``.npz`` or ``.parquet``.

        Returns
        -------
        Release

        Raises
        ------
        ValueError
            If the file is not of this form, or damaged, or the release it holds is invalid.
        FileNotFoundError
            If there is no such file.
        """
        path = pathlib.Path(path)
        if not path.exists():
            raise FileNotFoundError(f"no release file {path}")
        values, spec = read_release(path)
        return cls(values, mechanism_from_spec(spec))
