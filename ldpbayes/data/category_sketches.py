"""Sketches of categories: counts of the released values, and an expansion where these are too many."""

import dataclasses
import functools
import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import ArgumentError, checked, refuse
from ldpbayes._core.pytrees import equal, host, pytree_dataclass
from ldpbayes._core.types import is_concrete
from ldpbayes.data.sketches import MixedSketch, Sketch
from ldpbayes.mechanisms import Categories, PureProtocol
from ldpbayes.mechanisms.protocol import joined_mechanism
from ldpbayes.numerics.arrays import evenly_spaced
from ldpbayes.numerics.polynomial import Frame, Polynomial

VALUES_COUNTED_AT_ONCE = 1 << 20  # released values that are counted at a time, which bounds the memory
FEW_KINDS = 1 << 20  # fewer kinds than this are counted in a table, without sorting


@pytree_dataclass(eq=False, repr=False)
class CountSketch(Sketch):
    """Sketch of discrete released values: the different values, and the number of records that released each of them.

    It leads to exactly the posterior of the single values. Values z count as equal if their probabilities p(z | x) are
    equal for every record x (`DiscreteMechanism.equivalence`) and they have one budget.

    - ``nodes`` (nodes, *event): the different released values; ``mechanism`` has one budget, or one for each of them;
    - ``weights``, ``groups`` (nodes,): for each, the number of records, and their group, from 0 (None without groups).
    """

    nodes: Any
    weights: Any
    groups: Any = None

    _counts = property(lambda self: {"records": self.size, "nodes": self.weights.shape[-1], "groups": self.num_groups})

    @classmethod
    def of(cls, values: ArrayLike, mechanism: Any, by: np.ndarray | None = None) -> "CountSketch":
        """Count how often each value occurs among N released values (N, *event). `Release.sketch` describes `by`."""
        array = np.asarray(values)
        num_groups = None if by is None else int(np.max(by)) + 1
        return cls(mechanism, array, np.ones(len(array)), by, num_groups=num_groups)._compressed()

    def _plus(self, other: Any) -> "CountSketch":
        mechanism = joined_mechanism((self.mechanism, other.mechanism), (len(self.nodes), len(other.nodes)))
        nodes, weights = (np.concatenate([getattr(one, n) for one in (self, other)]) for n in ("nodes", "weights"))
        groups = None if self.groups is None else np.concatenate([self.groups, other.groups])
        num_groups = max(self.law_shape + other.law_shape, default=None)
        return CountSketch(mechanism, nodes, weights, groups, num_groups=num_groups)._compressed()

    def _compressed(self) -> "CountSketch":
        """One node of each kind, budget and group, found in each chunk of nodes and then among those of all chunks."""
        n = len(self.nodes)
        chunks = [slice(start, start + VALUES_COUNTED_AT_ONCE) for start in range(0, n, VALUES_COUNTED_AT_ONCE)]
        parts = [_distinct(self._words(chunk), self.weights[chunk]) for chunk in chunks]
        first = np.concatenate([chunk.start + rows for chunk, (rows, _) in zip(chunks, parts, strict=True)])
        weights = np.concatenate([totals for _, totals in parts])
        if len(chunks) > 1:
            rows, weights = _distinct(self._words(first), weights)
            first = first[rows]
        nodes = self.nodes if len(first) == n else self.nodes[first]
        groups = None if self.groups is None else self.groups[first]
        mechanism = self.mechanism.of_records((n,), first)
        return dataclasses.replace(self, mechanism=mechanism, nodes=nodes, weights=weights, groups=groups)

    def _words(self, rows: Any) -> np.ndarray:
        """Rows of 64-bit words that are equal for nodes of one kind, budget and group."""
        mechanism = self.mechanism.of_records((len(self.nodes),), rows)
        kinds = mechanism.equivalence(self.nodes[rows])
        if kinds.dtype == np.uint8 and kinds.shape[1] > 1:  # eight in a word
            kinds = np.ascontiguousarray(np.pad(kinds, ((0, 0), (0, -kinds.shape[1] % 8)))).view(np.int64)
        columns = [kinds.astype(np.int64, copy=False).view(np.uint64)]
        columns += [np.asarray(leaf).view(np.uint64)[:, None] for leaf in mechanism.personal_parameters()]
        if self.groups is not None:
            columns.append(self.groups[rows].astype(np.uint64)[:, None])
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)


@pytree_dataclass(eq=False, repr=False)
class BitCounts(Sketch):
    """Sums of the bits of all reports, which is all that most collectors of bits keep, for `frequencies`.

    `BitCounts.of` makes them from reports; their sum is that of all reports. The posterior of `fit` needs the reports
    themselves, since sums have no likelihood of independent records.

    Parameters
    ----------
    mechanism : OptimalUnaryEncoding, SymmetricUnaryEncoding, UnaryEncoding or Rappor
        The mechanism of the reports, with one set of parameters.
    sums : array_like (m,) or (cohorts, m)
        For each bit, the number of reports in which it is 1, in each cohort, if there are several.
    reports : array_like
        Number of reports, in each cohort.
    about : dict, optional
        Public facts, such as the words for the categories under ``"levels"``.

    Raises
    ------
    ValueError
        If sums do not fit the mechanism, or are above the number of reports.

    Examples
    --------
    >>> encoding = ldp.OptimalUnaryEncoding(epsilon=1.0, categories=6)
    >>> counts = ldp.data.BitCounts(encoding, [1801, 1631, 1458, 1471, 1365, 1364], 5000)
    >>> ldp.frequencies(counts).params.round(5).tolist()
    [0.39496, 0.24781, 0.09806, 0.10932, 0.01757, 0.0167]
    """

    sums: Any
    reports: Any
    about: dict[str, Any] | None = host(default=None, kw_only=True)

    _counts = property(lambda self: {"reports": self.reports.sum(), "sums": self.sums.size})
    size = property(lambda self: self.reports.sum() / self.mechanism.bit_law.reports, doc="Number of persons.")

    def __post_init__(self) -> None:
        mechanism = self.mechanism
        if not isinstance(mechanism, Categories) or mechanism.batch_shape or mechanism.bit_law is None:
            wanted = "a unary encoding or Rappor, with one set of parameters for all reports"
            raise ArgumentError("mechanism", wanted, repr(mechanism))
        cohorts, bits, _ = self.mechanism.bit_law.design.shape
        whole = "whole numbers from 0 to 2**53", lambda a: (a >= 0) & (a <= 2.0**53) & (a == np.floor(a))
        sums, reports = (np.asarray(checked(name, getattr(self, name), *whole)) for name in ("sums", "reports"))
        if sums.shape != (cohorts, bits) and (cohorts > 1 or sums.shape != (bits,)):
            shape = f"({cohorts}, {bits})" if cohorts > 1 else f"({bits},)"
            raise ArgumentError("sums", f"of shape {shape}, that of the mechanism's bits", f"shape {sums.shape}")
        if reports.shape not in ((cohorts,), *[()] * (cohorts == 1)) or not reports.any():
            raise ArgumentError("reports", f"{cohorts} numbers of reports, not all 0", repr(self.reports))
        sums, reports = sums.reshape(cohorts, bits), reports.reshape(cohorts)
        refuse(sums > reports[:, None], "{} sums are above the number of reports", sums, "in cohort {}, bit {}")
        object.__setattr__(self, "sums", sums)
        object.__setattr__(self, "reports", reports)

    @classmethod
    def of(cls, sketch: CountSketch) -> "BitCounts":
        """Sums of the bits in a sketch without groups, as made by ``release.sketch(expand=False)``."""
        if sketch.law_shape:
            raise ValueError(f"sums of bits are of all reports, but the sketch holds {sketch.num_groups} groups")
        mechanism, rows, weights = sketch.mechanism, sketch.nodes, sketch.weights
        if mechanism.batch_shape or mechanism.bit_law is None:  # the error is that of BitCounts
            return cls(mechanism, rows, weights)
        cohorts, bits, _ = mechanism.bit_law.design.shape
        cohort = rows[:, 0].astype(int) if rows.shape[1] > bits else np.zeros(len(rows), int)
        sums = [weights[cohort == c] @ rows[cohort == c, -bits:] for c in range(cohorts)]
        reports = np.bincount(cohort, weights, cohorts) * mechanism.bit_law.reports
        return cls(mechanism, np.stack(sums), reports, added=sketch.promises)

    @property
    def nodes(self) -> Any:
        raise AttributeError("sums of bits have no likelihood of single records: use ldpbayes.frequencies, or reports")

    weights = nodes

    def _plus(self, other: Any) -> "BitCounts":
        if not (equal(self.mechanism, other.mechanism) and self.about == other.about):
            raise ValueError(f"sums of bits of different mechanisms or facts cannot be added: {self} and {other}")
        return dataclasses.replace(self, sums=self.sums + other.sums, reports=self.reports + other.reports)


def _distinct(words: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A row of each kind (the first one) and the total weight of each kind."""
    if words.shape[1] == 1 and words.max() < FEW_KINDS:
        kind = words[:, 0].astype(np.intp)
        total, first = np.bincount(kind, weights), np.full(int(kind.max()) + 1, -1)
        first[kind[::-1]] = np.arange(len(kind))[::-1]
        return first[first >= 0], total[first >= 0]
    order = np.lexsort(words.T)
    words = words[order]
    starts = np.flatnonzero(np.concatenate([[True], (words[1:] != words[:-1]).any(axis=1)]))
    first, total = order[starts], np.add.reduceat(weights[order], starts)
    # Kinds come in order of appearance, so that a release without duplicates stays as it is.
    order = np.argsort(first)
    return first[order], total[order]


MOST_CATEGORIES_OF_ORDER_4 = 24  # up to which the fourth order, d⁴/4 numbers a gradient, costs little
MOST_CATEGORIES_OF_ORDER_3 = 256  # up to which the third order, d³/2 numbers, is kept: 67 MB; no expansion beyond
MOST_CATEGORIES_BY_DEFAULT = 128  # up to which an expansion is the default
LEAST_KINDS_TO_EXPAND = 1 << 12  # kinds from which on a gradient by counts takes longer than one by expansion
PROBED_RECORDS = 1 << 15  # among which kinds are counted, and from which the search for the mode starts
MOST_SQUARES_PER_RECORD = 0.05  # r² / N of accurate expansions; errors in nats are multiples of its powers


@pytree_dataclass(eq=False, repr=False)
class ExpandedSketch(Sketch):
    """Sketch of released categories: a polynomial that approximates the log-likelihood near the posterior mode.

    The mechanism must be a pure protocol (`ldpbayes.mechanisms.PureProtocol`), with one budget, or one for each record.
    With many records the posterior of the shares θ is narrow, and a polynomial of order 3 or 4 in θ accurate enough.

    - ``polynomial``: its value is a log-likelihood, in nats, of shares (d,) of d categories, or (G, d) with G groups;
    - ``count``, ``records``: the number of records, and the released values, or None if they were not kept.
    """

    polynomial: Polynomial
    count: Any
    records: "tuple[CategoryRecords, ...] | None" = host(default=None)

    @classmethod
    def of(
        cls,
        values: ArrayLike,
        mechanism: Any,
        by: np.ndarray | None = None,
        at: "ExpandedSketch | Frame | None" = None,
        keep_records: bool = True,
    ) -> "ExpandedSketch":
        """Expand the log-likelihood of values (N, *event) near the mean of the shares; see `Release.sketch`."""
        array = np.asanyarray(values)
        num_groups = None if by is None else int(np.max(by)) + 1
        why_not = _hindrance(mechanism)
        if why_not:
            raise ValueError(f"expand=True needs {why_not}")
        if not isinstance(at, ExpandedSketch | Frame | None):
            raise ArgumentError("at", "an ExpandedSketch, from release.sketch(expand=True)", type(at).__name__)
        records = CategoryRecords(array, mechanism, by)
        if not isinstance(at, ExpandedSketch):
            order = 4 if mechanism.categories <= MOST_CATEGORIES_OF_ORDER_4 else 3
            frame = at or frame_at_mode(records, records.derivatives, () if num_groups is None else (num_groups,))
        else:
            order = at.polynomial.order
            frame, num_groups = _frame_of(at, records, num_groups), at.num_groups
        polynomial = records.expansion(frame, order)
        return cls(mechanism, polynomial, len(array), (records,) if keep_records else None, num_groups=num_groups)

    @property
    def nodes(self) -> Any:
        raise AttributeError("an expansion has no nodes and weights; use release.sketch(expand=False) or sketch.exact")

    weights = nodes
    size = property(lambda self: self.count)

    @property
    def exact(self) -> CountSketch:
        """A `CountSketch` of the same records, which is exact. Raises ValueError if the values were not kept."""
        total: Any = sum(CountSketch.of(part.values, part.mechanism, part.by) for part in self._required_records())
        kept = {name: getattr(self, name) for name in ("num_groups", "doubts", "added", "coords")}
        return dataclasses.replace(total, **kept)

    def log_likelihood(self, theta: ArrayLike) -> np.ndarray:
        """Return exact log-likelihoods (m,), in nats, at shares (m, d) or (m, G, d); ValueError without the values."""
        points = np.asarray(theta, float)
        shape = (*self.law_shape, self.mechanism.categories)
        if points.shape[1:] != shape or points.ndim != 1 + len(shape):
            raise ArgumentError("theta", f"of shape (m, {', '.join(map(str, shape))})", f"{points.shape}")
        return sum((part.log_likelihood(points) for part in self._required_records()), np.zeros(len(points)))

    def _required_records(self) -> "tuple[CategoryRecords, ...]":
        if self.records is None:
            raise ValueError("the sketch has not kept its records; make it with keep_records=True")
        return self.records

    def _plus(self, other: Any) -> "ExpandedSketch":
        mechanism = joined_mechanism((self.mechanism, other.mechanism), (self.count, other.count))
        records = None if self.records is None or other.records is None else self.records + other.records
        polynomial, count = self.polynomial.plus(other.polynomial), self.count + other.count
        return ExpandedSketch(mechanism, polynomial, count, records, num_groups=self.num_groups)


def expansion_pays(values: ArrayLike, mechanism: Any, by: np.ndarray | None) -> bool:
    """Whether an expansion is the default: counting hardly shortens the release, and the expansion is accurate."""
    if _hindrance(mechanism) or mechanism.categories > MOST_CATEGORIES_BY_DEFAULT:
        return False
    array = np.asanyarray(values)
    fewest = len(array) if by is None else np.bincount(by).min()
    if (mechanism.categories - 1) ** 2 > MOST_SQUARES_PER_RECORD * fewest:
        return False
    probe = CategoryRecords(array, mechanism).thinned(PROBED_RECORDS)
    return len(CountSketch.of(probe.values, probe.mechanism).nodes) >= LEAST_KINDS_TO_EXPAND


def _hindrance(mechanism: Any) -> str | None:
    """Why a release of this mechanism is not expanded."""
    if not isinstance(mechanism, PureProtocol):
        return f"categories under a pure protocol, got {type(mechanism).__name__}"
    if mechanism.categories > MOST_CATEGORIES_OF_ORDER_3:
        return f"at most {MOST_CATEGORIES_OF_ORDER_3} categories, got {mechanism.categories}"
    if np.any(np.isinf(mechanism.epsilon)):
        return "finite budgets, but some are infinite"
    return None


TRUSTED_EXTRA_RADIUS = 6.0  # standard deviations beyond the typical radius √r in which an expansion is believed
MEMBERSHIPS_AT_ONCE = 1 << 20  # memberships at a time, as double-precision numbers
PRODUCTS_AT_ONCE = 1 << 20  # products of pairs at a time, which a core's cache holds


@dataclasses.dataclass(frozen=True, eq=False)
class CategoryRecords:
    """A release read in chunks; shares θ (*batch, d), in which p(z_i | θ) is linear, have a batch (G,) with groups."""

    values: Any  # (N, *event), possibly a memory map
    mechanism: Any  # of finite budgets
    by: Any = None  # group of each record (N,)

    def __len__(self) -> int:
        return len(self.values)

    def thinned(self, count: int) -> "CategoryRecords":
        """At most `count` of the records, evenly spread, without groups."""
        rows = evenly_spaced(np.arange(len(self)), count)
        return CategoryRecords(self.values[rows], self.mechanism.of_records((len(self),), rows))

    def derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, gradient and information of each group's log-likelihood at shares (*batch, d), but for a constant."""
        value, gradient = np.zeros(theta.shape[:-1]), np.zeros(theta.shape)
        information = np.zeros((*theta.shape, theta.shape[-1]))
        for group, rows, rest, _ in self._chunks():
            mass = rows @ theta[group] + rest
            value[group] += np.log(mass).sum()
            rows /= mass[:, None]
            gradient[group] += rows.sum(axis=0)
            information[group] += rows.T @ rows
        return value, gradient, information

    def expansion(self, frame: Frame, order: int) -> Polynomial:
        """Each group's log-likelihood, expanded to order 3 or 4 at a frame whose lift has columns that sum to 0."""
        *batch, r, _ = frame.root.shape
        rows, columns = np.triu_indices(r)
        shapes = [(), (r,), (r, r), (r, len(rows)), (len(rows),) * 2]
        sums = [np.zeros((*batch, *shape)) for shape in shapes[: order + 1]]
        size = max(1, PRODUCTS_AT_ONCE // len(rows))
        for group, linear, rest, constant in self._chunks():
            mass = linear @ frame.center[group] + rest
            sums[0][group] += np.log(mass).sum() + constant
            slopes = (frame.lift[group].T @ linear.T) / mass
            sums[1][group] += slopes.sum(axis=1)
            sums[2][group] += slopes @ slopes.T
            width = min(size, 1 << (len(mass) - 1).bit_length())  # of few lengths, for each of which it is compiled
            for start in range(0, len(mass), width):
                part = slopes[:, start : start + width]
                with jax.enable_x64(True):
                    products = _products(np.pad(part, [(0, 0), (0, width - part.shape[1])]), order)
                for total, product in zip(sums[3:], products, strict=True):
                    total[group] += np.asarray(product)
        # The derivatives of log f, of a linear f whose own is v, are v, -v², 2 v³ and -6 v⁴; see `Polynomial`.
        twice = np.where(rows == columns, 1.0, 2.0)
        fourth = -0.25 * sums[4] * twice[:, None] * twice if order > 3 else None
        radius = np.full(np.shape(sums[0]), math.sqrt(frame.root.shape[-2]) + TRUSTED_EXTRA_RADIUS)
        return Polynomial(frame.center, frame.root, sums[0], sums[1], -sums[2], radius, twice * sums[3], fourth)

    def log_likelihood(self, points: np.ndarray) -> np.ndarray:
        """Log-likelihood (m,) at shares (m, *batch, d), constants and all groups included."""
        total, groups = np.zeros(len(points)), np.moveaxis(points, 0, -1)
        for group, rows, rest, constant in self._chunks():
            size = max(1, MEMBERSHIPS_AT_ONCE // len(points))
            for start in range(0, len(rows), size):
                part = slice(start, start + size)
                total += np.log(rows[part] @ groups[group] + rest[part, None]).sum(axis=0)
            total += constant
        return total

    def _chunks(self) -> Iterator[tuple[Any, np.ndarray, np.ndarray, float]]:
        """Of each chunk's records of a group: the group, l and c of p(z | θ) = k (l·θ + c), and the sum of log k."""
        n = len(self)
        size = 1 << (max(1, MEMBERSHIPS_AT_ONCE // self.mechanism.categories).bit_length() - 1)
        for start in range(0, n, size):
            _free_pages(self.values)
            part = slice(start, start + size)
            mechanism, values = self.mechanism.of_records((n,), part), np.asarray(self.values[part])
            with jax.enable_x64(True):
                memberships, constants = map(np.asarray, _membership_and_constant(mechanism, values))
            epsilon = np.broadcast_to(mechanism.epsilon, len(memberships))
            rows, rest = memberships * -np.expm1(-epsilon)[:, None], np.exp(-epsilon)
            if self.by is None:
                yield (), rows, rest, constants.sum()
                continue
            groups = np.asarray(self.by[part])
            order = np.argsort(groups, kind="stable")
            for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
                yield groups[members[0]], rows[members], rest[members], constants[members].sum()


def _free_pages(values: Any) -> None:
    """Give back the memory of the pages of a mapped file that have been read; the system would keep it for later."""
    mode = None
    while values is not None and not isinstance(values, mmap.mmap):
        values, mode = getattr(values, "base", None), getattr(values, "mode", mode)
    # Pages that are the file's own come back when they are read again; private copies of them would be lost.
    if values is not None and mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        values.madvise(mmap.MADV_DONTNEED)


@jax.jit
def _membership_and_constant(mechanism: Any, values: Any) -> tuple[jax.Array, jax.Array]:
    return mechanism.membership(values), mechanism.log_supported(values)


@functools.partial(jax.jit, static_argnums=1)
def _products(v: jax.Array, order: int) -> tuple[jax.Array, ...]:
    """Sums over records of products of three slopes (r, n), and of four, as pairs."""
    rows, columns = np.triu_indices(v.shape[0])
    products = v[rows] * v[columns]
    return tuple(left @ products.T for left in (v, products)[: order - 2])


Derivatives: TypeAlias = Callable[[np.ndarray], Sequence[Any]]
"""Value, gradient and information of a log-likelihood at shares (*batch, d)."""
MOST_PASSES_TO_MODE = 30  # over the records in search of the mode; three or four are needed
LAST_STEP_LENGTH = 1.0  # standard deviations; the next step would be shorter by about √(r / N)


def _frame_of(at: ExpandedSketch, records: CategoryRecords, num_groups: int | None) -> Frame:
    """The frame of another expansion; ValueError if it is of other categories or groups."""
    d, other = records.mechanism.categories, at.mechanism.categories
    if d != other:
        raise ValueError(f"at= is an expansion for {other} categories, but the values have {d}")
    if (num_groups is None) != (at.num_groups is None) or (num_groups or 0) > (at.num_groups or 0):
        mine, theirs = (f"{g or 'no'} groups" for g in (num_groups, at.num_groups))
        raise ValueError(f"at= is an expansion for {theirs}, but the values have {mine}")
    center, root = np.asarray(at.polynomial.center), np.asarray(at.polynomial.root)
    return Frame(center, root, np.linalg.pinv(root))


def frame_at_mode(records: CategoryRecords, derivatives: Derivatives, batch: tuple[int, ...] = ()) -> Frame:
    """Coordinates around each group's mode, with standard deviations of about one; by the derivatives of all records,
    among which are these.
    """
    d = records.mechanism.categories
    start, _ = _mode(records.thinned(PROBED_RECORDS).derivatives, np.full(d, 1 / d))
    center, information = _mode(derivatives, np.broadcast_to(start, (*batch, d)))
    basis = _tangent(d)
    # A uniform law of the shares has covariance (I − 11ᵀ/d) / (d (d + 1)), where the records say nothing.
    lower = np.linalg.cholesky(basis.T @ information @ basis + d * (d + 1) * np.eye(d - 1))
    return Frame(center, np.swapaxes(basis @ lower, -1, -2), basis @ np.swapaxes(np.linalg.inv(lower), -1, -2))


def _mode(derivatives: Derivatives, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Modes of the log-likelihoods plus Σ log θ_k, to a fraction of a standard deviation, and the information there."""
    best, kept = -np.inf, theta
    for _ in range(MOST_PASSES_TO_MODE):
        value, gradient, information = derivatives(theta)
        objective = np.sum(value) + np.sum(np.log(theta))
        if objective < best - 1e-9 * abs(best):  # a step too far, of which half is taken
            theta = (theta + kept) / 2
            continue
        best, kept = objective, theta
        theta = _barrier_maximum(theta, gradient, information)  # of the expansion of second order
        step = theta - kept
        if np.all(np.einsum("...i,...ij,...j->...", step, information, step) < LAST_STEP_LENGTH**2):
            break
    return theta, information


def _barrier_maximum(theta: np.ndarray, gradient: np.ndarray, information: np.ndarray) -> np.ndarray:
    """The maximum of a quadratic log-likelihood plus Σ log θ_k over the simplex, by Newton steps that stay inside."""
    if theta.ndim > 1:
        return np.stack([_barrier_maximum(*group) for group in zip(theta, gradient, information, strict=True)])

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
    """An orthonormal basis (d, d - 1) of the directions in which the sum of shares is constant."""
    return np.linalg.qr(np.column_stack([np.ones(d), np.eye(d)[:, 1:]]))[0][:, 1:]


def joined_sketch(sketches: Sequence[Any]) -> CountSketch | ExpandedSketch | MixedSketch:
    """A sketch of several groups from one of each group, of one kind, order and tree structure of the mechanism."""
    mechanisms = [part.mechanism for part in sketches]
    if isinstance(sketches[0], ExpandedSketch):
        polynomials = [part.polynomial for part in sketches]
        stacked = jax.tree.map(lambda *parts: (np if is_concrete(parts) else jnp).stack(parts), *polynomials)
        records: Any = None
        if all(part.records is not None for part in sketches):
            pairs = [(group, values) for group, part in enumerate(sketches) for values in part.records]
            records = tuple(dataclasses.replace(values, by=np.broadcast_to(g, len(values))) for g, values in pairs)
        count = sum(part.count for part in sketches)
        return ExpandedSketch(sketches[0].mechanism, stacked, count, records, num_groups=len(sketches))
    if mechanisms[0].support.is_discrete:
        sizes = [len(part.nodes) for part in sketches]
        mechanism, groups = joined_mechanism(mechanisms, sizes), np.repeat(np.arange(len(sketches)), sizes)
        columns = ([getattr(part, name) for part in sketches] for name in ("nodes", "weights"))
        nodes, weights = ((np if is_concrete(parts) else jnp).concatenate(parts) for parts in columns)
        return CountSketch(mechanism, nodes, weights, groups, num_groups=len(sketches))
    return MixedSketch(joined_mechanism(mechanisms), tuple(sketches), num_groups=len(sketches))
