"""Sketches of categories in many kinds: the log-likelihood as a polynomial of the shares."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import host, pytree, static
from ldpbayes.data._category_records import CategoryRecords
from ldpbayes.data._count_sketch import CountSketch, group_numbers
from ldpbayes.data._sketch import Sketch
from ldpbayes.mechanisms import PureProtocol
from ldpbayes.mechanisms._joined import joined_mechanism
from ldpbayes.numerics._polynomial import Frame, Polynomial

__all__ = ["ExpandedSketch", "expands"]

FOURTH = 24  # categories up to which the fourth order, d⁴/4 numbers a gradient, costs little
MOST = 256  # categories up to which the third order, d³/2 numbers, is kept: 67 MB
FEWEST_KINDS = 1 << 12  # kinds from which on a gradient by counts takes longer than one by expansion
LOOKED_AT = 1 << 15  # records among which kinds are counted, and from which the search for the mode starts
NARROW = 0.05  # r² / N up to which an expansion is accurate; its errors in nats are multiples of powers of r² / N
WIDE = 128  # categories up to which an expansion is made without being asked for
PASSES = 30  # over the records in search of the mode; three or four are needed
NEAR = 1.0  # standard deviations: after a step of that length the next one would be shorter by a factor √(r / N) or so


@pytree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExpandedSketch(Sketch):
    """The log-likelihood of categories under a pure protocol, expanded where the posterior is, as a polynomial.

    Each record's log p(z | θ) is a smooth function of one number that is linear in the shares θ; where a posterior is
    narrow, low orders of all of them together are as good as the records (see `log_likelihood`, with which they can be
    compared).

    Attributes
    ----------
    mechanism : Mechanism
        What made the release, with one budget or one a record.
    polynomial : Polynomial
        Of the shares (d,), or for groups of the shares (G, d), one a group.
    size : int
        Number of records.
    num_groups : int, optional
        How many groups there are, G, in a sketch made with ``by=``.
    records : tuple of CategoryRecords, optional
        What it was made from.
    parts : tuple of ExpandedSketch, optional
        Of the groups, where sketches of one group each have been put side by side.
    doubts : tuple of str
        The warnings that were given when the releases were made.
    added : tuple of Mechanism
        See `Sketch`.
    """

    mechanism: Any
    polynomial: Polynomial
    size: Any
    num_groups: int | None = static(default=None)
    records: tuple[CategoryRecords, ...] | None = host(default=None)
    doubts: tuple[str, ...] = host(default=())
    added: tuple[Any, ...] = host(default=())
    parts: "tuple[ExpandedSketch, ...] | None" = host(default=None)

    @classmethod
    def of(
        cls,
        values: ArrayLike,
        mechanism: Any,
        by: ArrayLike | None = None,
        at: "ExpandedSketch | None" = None,
        keep_records: bool = True,
        order: int | None = None,
    ) -> "ExpandedSketch":
        """Expand the log-likelihood of released values, in a few passes over them.

        Parameters
        ----------
        values, mechanism, by, at, keep_records
            As in `ldpbayes.data.sketch`, whose errors are raised, too.
        order : int, optional
            2, 3 or 4. Default: 4 up to 24 categories, 3 beyond.

        Notes
        -----
        It is expanded at the mode that the posterior has in softmax coordinates under a uniform prior: that is the
        maximum of the log-likelihood plus Σ log θ_k, which lies near the posterior's mean also where a share is small.
        """
        array = np.asanyarray(values)
        groups, num_groups = group_numbers(by, len(array))
        why_not = _hindrance(mechanism)
        if why_not:
            raise ValueError(f"expand=True is for categories under a pure protocol: {why_not}")
        if at is not None and not isinstance(at, ExpandedSketch):
            raise ValueError(
                f"at must be an ExpandedSketch, got {type(at).__name__}; release.sketch(expand=True) is one"
            )
        if order is None:
            order = (4 if mechanism.categories <= FOURTH else 3) if at is None else at.polynomial.order
        if order not in (2, 3, 4):
            raise ValueError(f"order must be 2, 3 or 4, got {order!r}")
        records = CategoryRecords(array, mechanism, groups)
        if at is None:
            frame = _frame(records, () if num_groups is None else (num_groups,))
        else:
            frame, num_groups = _frame_of(at, records, num_groups), at.num_groups
        made = records.expansion(frame, order)
        return cls(mechanism, made, len(array), num_groups, (records,) if keep_records else None)

    @property
    def law_shape(self) -> tuple[int, ...]:
        """() for one law of all records, (G,) for a law a group."""
        return () if self.num_groups is None else (self.num_groups,)

    @property
    def nodes(self) -> Any:  # type: ignore[override]
        """There are none, and no weights: AttributeError, which says what has some."""
        raise AttributeError(
            "an expansion has no nodes and weights; release.sketch(expand=False) counts released values instead, or "
            "sketch.exact where it kept its records"
        )

    weights = nodes

    @property
    def exact(self) -> CountSketch:
        """The same records, counted: a `CountSketch`, whose log-likelihood is exact. ValueError without records."""
        made = [CountSketch.of(part.values, part.mechanism, part.by) for part in self._kept()]
        counts = sum(made[1:], made[0])
        return dataclasses.replace(counts, num_groups=self.num_groups, doubts=self.doubts, added=self.added)

    def log_likelihood(self, theta: ArrayLike) -> np.ndarray:
        """Exact log-likelihood, by a pass over the records that were kept; on the host.

        Parameters
        ----------
        theta : array_like (m, d), or (m, G, d) for groups
            Shares, at m points.

        Returns
        -------
        ndarray (m,)

        Raises
        ------
        ValueError
            Without records, or for points of another shape.
        """
        points = np.asarray(theta, float)
        shape = (*self.law_shape, self.mechanism.categories)
        if points.shape[1:] != shape or points.ndim != 1 + len(shape):
            raise ValueError(f"theta must be of shape (m, {', '.join(map(str, shape))}), got {points.shape}")
        if self.parts is not None:
            return sum((part.log_likelihood(points[:, j]) for j, part in enumerate(self.parts)), np.zeros(len(points)))
        return sum((part.log_likelihood(points) for part in self._kept()), np.zeros(len(points)))

    def _kept(self) -> tuple[CategoryRecords, ...]:
        if self.records is None:
            raise ValueError("the sketch has not kept its records; make it with keep_records=True")
        return self.records

    def _counts(self) -> dict[str, Any]:
        return {"records": self.size, "groups": self.num_groups}

    def _plus(self, other: Any) -> "ExpandedSketch":
        """Sketch of the two releases together, both expanded at one point (``at=``); budgets may differ."""
        mechanisms = self.mechanism, other.mechanism
        if len({jax.tree.structure(mechanism) for mechanism in mechanisms}) > 1:
            raise ValueError(f"sketches of different mechanisms do not add: {mechanisms[0]} and {mechanisms[1]}")
        return ExpandedSketch(
            joined_mechanism(mechanisms, (self.size, other.size)),
            self.polynomial.plus(other.polynomial),
            self.size + other.size,
            self.num_groups,
            None if self.records is None or other.records is None else self.records + other.records,
        )


def expands(values: ArrayLike, mechanism: Any, by: ArrayLike | None) -> bool:
    """Whether an expansion is made where nobody says so: counting hardly shortens the release, and it is accurate.

    Parameters
    ----------
    values, mechanism, by
        As in `ldpbayes.data.sketch`.
    """
    if _hindrance(mechanism) or mechanism.categories > WIDE:
        return False
    array = np.asanyarray(values)
    groups, _ = group_numbers(by, len(array))
    fewest = len(array) if groups is None else np.bincount(groups).min()
    if (mechanism.categories - 1) ** 2 > NARROW * fewest:
        return False
    some = CategoryRecords(array, mechanism).thinned(LOOKED_AT)
    return len(CountSketch.of(some.values, some.mechanism).nodes) >= FEWEST_KINDS


def _hindrance(mechanism: Any) -> str | None:
    """Why a release of this mechanism is not expanded."""
    if not isinstance(mechanism, PureProtocol):
        return f"got {type(mechanism).__name__}"
    if mechanism.categories > MOST:
        return f"up to {MOST} of them, got {mechanism.categories}"
    if np.any(np.isinf(mechanism.epsilon)):
        return "of finite budgets, where no released value excludes a category; some here are infinite"
    return None


# --- where it is expanded -------------------------------------------------------------------------------------------


def _frame_of(at: ExpandedSketch, records: CategoryRecords, num_groups: int | None) -> Frame:
    d, other = records.mechanism.categories, at.mechanism.categories
    if d != other:
        raise ValueError(f"at= is an expansion for {other} categories, and here are {d}")
    if (num_groups is None) != (at.num_groups is None) or (num_groups or 0) > (at.num_groups or 0):
        mine, theirs = (f"{g or 'no'} groups" for g in (num_groups, at.num_groups))
        raise ValueError(f"at= is an expansion for {theirs}, and here are {mine}")
    center, root = np.asarray(at.polynomial.center), np.asarray(at.polynomial.root)
    return Frame(center, root, np.linalg.pinv(root))


def _frame(records: CategoryRecords, batch: tuple[int, ...]) -> Frame:
    """Coordinates around each group's mode in which standard deviations are about one, under a uniform prior."""
    d = records.mechanism.categories
    start, _ = _mode(records.thinned(LOOKED_AT), np.full(d, 1 / d))
    center, information = _mode(records, np.broadcast_to(start, (*batch, d)))
    basis = _tangent(d)
    # A uniform law of the shares has covariance (I − 11ᵀ/d) / (d (d + 1)), where the records say nothing.
    lower = np.linalg.cholesky(basis.T @ information @ basis + d * (d + 1) * np.eye(d - 1))
    return Frame(center, np.swapaxes(basis @ lower, -1, -2), basis @ np.swapaxes(np.linalg.inv(lower), -1, -2))


def _mode(records: CategoryRecords, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Modes of the log-likelihoods plus Σ log θ_k, to a fraction of a standard deviation, and the information there.

    Each pass maximises, for the log-likelihood's expansion of second order, the whole objective.
    """
    best, kept = -np.inf, theta
    for _ in range(PASSES):
        value, gradient, information = records.derivatives(theta)
        objective = np.sum(value) + np.sum(np.log(theta))
        if objective < best - 1e-9 * abs(best):  # a step too far, of which half is taken
            theta = (theta + kept) / 2
            continue
        best, kept = objective, theta
        theta = _with_barrier(theta, gradient, information)
        step = theta - kept
        if np.all(np.einsum("...i,...ij,...j->...", step, information, step) < NEAR**2):
            break
    return theta, information


def _with_barrier(theta: np.ndarray, gradient: np.ndarray, information: np.ndarray) -> np.ndarray:
    """The maximum of a quadratic log-likelihood plus Σ log θ_k over the simplex, by Newton steps that stay inside."""
    if theta.ndim > 1:
        return np.stack([_with_barrier(*each) for each in zip(theta, gradient, information, strict=True)])

    def objective(x: np.ndarray) -> float:
        return (gradient - 0.5 * information @ (x - theta)) @ (x - theta) + np.sum(np.log(x))

    x, basis = theta, _tangent(len(theta))
    for _ in range(100):
        slope = basis.T @ (gradient - information @ (x - theta) + 1 / x)
        step = basis @ np.linalg.solve(basis.T @ (information + np.diag(x**-2)) @ basis, slope)
        rise = slope @ (basis.T @ step)
        if rise < 1e-8:
            break
        length = min(1.0, 0.95 / np.max(-step / x))
        while objective(x + length * step) < objective(x) + 0.1 * length * rise and length > 1e-6:
            length /= 2
        x = x + length * step
    return x / x.sum()


def _tangent(d: int) -> np.ndarray:
    """An orthonormal basis (d, d - 1) of what leaves the sum of shares as it is."""
    return np.linalg.qr(np.column_stack([np.ones(d), np.eye(d)[:, 1:]]))[0][:, 1:]
