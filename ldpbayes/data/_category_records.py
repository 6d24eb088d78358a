"""Records of categories under a pure protocol: their log-likelihood in the shares, and its derivatives, in passes."""

import dataclasses
import functools
import math
import mmap
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ldpbayes.numerics._polynomial import Frame, Polynomial, pairs

__all__ = ["CategoryRecords"]

REACH = 6.0  # standard deviations beyond the typical radius √r in which an expansion is believed
ENTRIES = 1 << 20  # memberships at a time, as double-precision numbers
PRODUCTS = 1 << 20  # products of pairs at a time, which a core's cache holds


@dataclasses.dataclass(frozen=True, eq=False)
class CategoryRecords:
    """What was released, read in chunks: p(z_i | θ) = c_i (e^−ε_i + (1 − e^−ε_i) θ(S(z_i))) is linear in θ.

    Attributes
    ----------
    values : ndarray (N, *event)
        Released values; a NumPy memory map stays one.
    mechanism : PureProtocol
        What released them, of finite budgets, with one budget or one a record.
    by : ndarray of int (N,), optional
        Group of each record. Without, a batch of groups has the shape () below, and (G,) with them.
    """

    values: Any
    mechanism: Any
    by: Any = None

    def __len__(self) -> int:
        """Number of records."""
        return len(self.values)

    def thinned(self, count: int) -> "CategoryRecords":
        """Some of them, evenly spread and without their groups; all, where there are no more.

        Parameters
        ----------
        count : int
            How many.
        """
        if count >= len(self):
            return dataclasses.replace(self, by=None)
        rows = np.linspace(0, len(self) - 1, count).astype(int)
        return CategoryRecords(self.values[rows], self.mechanism.of_records((len(self),), rows))

    def derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Value, gradient and information, in the shares, of each group's log-likelihood, but for a constant.

        Parameters
        ----------
        theta : ndarray (*batch, d)
            Shares.
        """
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
        """The expansion of each group's log-likelihood at a frame's center.

        Parameters
        ----------
        frame : Frame
            Of shares, with a lift whose columns sum to zero.
        order : int
            2, 3 or 4.
        """
        *batch, r, _ = frame.root.shape
        rows, columns = pairs(r)
        shapes = [(), (r,), (r, r), (r, len(rows)), (len(rows),) * 2]
        sums = [np.zeros((*batch, *shape)) for shape in shapes[: order + 1]]
        size = max(1, PRODUCTS // len(rows))
        for group, linear, rest, constant in self._chunks():
            mass = linear @ frame.center[group] + rest
            sums[0][group] += np.log(mass).sum() + constant
            slopes = (frame.lift[group].T @ linear.T) / mass
            sums[1][group] += slopes.sum(axis=1)
            sums[2][group] += slopes @ slopes.T
            width = min(size, 1 << (len(mass) - 1).bit_length())  # of few lengths, for each of which it is compiled
            for start in range(0, len(mass) if order > 2 else 0, width):
                part = slopes[:, start : start + width]
                with jax.enable_x64(True):
                    products = _products(np.pad(part, [(0, 0), (0, width - part.shape[1])]), order)
                for total, each in zip(sums[3:], products, strict=True):
                    total[group] += np.asarray(each)
        # The derivatives of log f, of a linear f whose own is v, are v, -v², 2 v³ and -6 v⁴; see `Polynomial`.
        twice = np.where(rows == columns, 1.0, 2.0)
        third = twice * sums[3] if order > 2 else np.zeros((*batch, *shapes[3]))
        fourth = -0.25 * sums[4] * twice[:, None] * twice if order > 3 else None
        radius = np.full(np.shape(sums[0]), math.sqrt(frame.root.shape[-2]) + REACH)
        return Polynomial(frame.center, frame.root, sums[0], sums[1], -sums[2], radius, third, fourth)

    def log_likelihood(self, points: np.ndarray) -> np.ndarray:
        """Log-likelihood (m,), constants and all groups included.

        Parameters
        ----------
        points : ndarray (m, *batch, d)
            Shares.
        """
        total, groups = np.zeros(len(points)), np.moveaxis(points, 0, -1)
        for group, rows, rest, constant in self._chunks():
            size = max(1, ENTRIES // len(points))
            for start in range(0, len(rows), size):
                part = slice(start, start + size)
                total += np.log(rows[part] @ groups[group] + rest[part, None]).sum(axis=0)
            total += constant
        return total

    def _chunks(self) -> Iterator[tuple[Any, np.ndarray, np.ndarray, float]]:
        """Of each chunk's records of a group: the group, l and c of p(z | θ) = k (l·θ + c), and the sum of log k."""
        n = len(self)
        size = 1 << (max(1, ENTRIES // self.mechanism.categories).bit_length() - 1)
        for start in range(0, n, size):
            _let_pages_go(self.values)
            part = slice(start, start + size)
            mechanism: Any = self.mechanism.of_records((n,), part)
            with jax.enable_x64(True):
                supported, constants = (np.asarray(a) for a in _looked_at(mechanism, np.asarray(self.values[part])))
            epsilon = np.broadcast_to(mechanism.epsilon, len(supported))
            rows, rest = supported * -np.expm1(-epsilon)[:, None], np.exp(-epsilon)
            if self.by is None:
                yield (), rows, rest, constants.sum()
                continue
            groups = np.asarray(self.by[part])
            order = np.argsort(groups, kind="stable")
            for mine in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
                yield groups[mine[0]], rows[mine], rest[mine], constants[mine].sum()


def _let_pages_go(values: Any) -> None:
    """Of a file that is mapped, give back the memory of what has been read, which the system would keep for later."""
    while values is not None and not isinstance(values, np.memmap):
        values = getattr(values, "base", None)
    # Pages that are the file's own come back when they are read again; private copies of them would be lost.
    if values is not None and values.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        base = values.base
        while base is not None and not isinstance(base, mmap.mmap):
            base = getattr(base, "base", None)
        if base is not None:
            base.madvise(mmap.MADV_DONTNEED)


@jax.jit
def _looked_at(mechanism: Any, values: Any) -> tuple[jax.Array, jax.Array]:
    return mechanism.membership(values), mechanism.log_supported(values)


@functools.partial(jax.jit, static_argnums=1)
def _products(v: jax.Array, order: int) -> tuple[jax.Array, ...]:
    """Sums over records of products of three slopes (r, n), and of four, as pairs."""
    rows, columns = pairs(v.shape[0])
    products = v[rows] * v[columns]
    return tuple(left @ products.T for left in (v, products)[: order - 2])
