"""Mechanisms that add noise to a number or to columns of a row.

A record is one number, or a row of which all columns or some are perturbed. The noise of a row is drawn jointly: its
columns are uncorrelated, but for the independent mechanism not independent.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes.mechanisms.mechanism import Mechanism, _array, _concrete, check_order
from ldpbayes.mechanisms.plausibility import implausible_numbers
from ldpbayes.privacy import Guarantee, LaplaceTradeoff, PureProtocolTradeoff, Tradeoff
from ldpbayes.privacy.radial_law import log_density
from ldpbayes.privacy.tradeoff import checked

__all__ = ["RowMechanism", "snapped"]


class RowMechanism(Mechanism):
    """z = clip(x) + scale * noise in the perturbed columns, z = x in the others.

    Subclasses have the fields ``scale`` (numbers, or one a record; 0 for a public record), ``lower`` and ``upper``
    (numbers, or arrays over the perturbed columns), and the static ``columns`` and ``perturbed``. The perturbed columns
    are kept in the order of the row, and arrays of bounds with them.
    """

    scale: Any
    lower: Any
    upper: Any
    columns: Any
    perturbed: Any

    linear_tails: ClassVar[bool] = True

    kept: ClassVar[Any] = 0.0
    """Probability that a record gets no noise at all."""

    @abc.abstractmethod
    def _noise(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw noise of scale one, shape ``(*shape, dimension)``."""

    def _noise_log_prob(self, noise: jax.Array) -> jax.Array:
        """Log density of noise of scale one, from ``(*shape, dimension)`` to ``shape``: here symmetric Laplace."""
        square = jnp.sum(noise**2, axis=-1)
        apart = square > 0
        # the norm's gradient at 0 is guarded: NaN would spread even from where it is not selected
        radius = jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)
        return log_density(jnp, radius, noise.shape[-1])

    @abc.abstractmethod
    def _tradeoff(self, ranges: np.ndarray) -> Tradeoff:
        """Trade-off function of inputs as far apart as `ranges` says, coordinate by coordinate."""

    def __post_init__(self) -> None:
        columns, perturbed = self.columns, self.perturbed
        if columns is not None:
            if isinstance(columns, (list, tuple)):
                columns = tuple(columns)
                if not columns or not all(isinstance(c, str) for c in columns) or len(set(columns)) < len(columns):
                    raise ValueError(f"columns must be distinct names, or how many there are, got {self.columns!r}")
            elif not _is_integer(columns) or columns < 1:
                raise ValueError(f"columns must be a positive integer, or names, got {columns!r}")
        if perturbed is not None:
            if columns is None:
                raise ValueError("perturbed names columns of a row, so it needs columns=")
            perturbed = tuple(perturbed) if isinstance(perturbed, (list, tuple)) else (perturbed,)
            names = columns if isinstance(columns, tuple) else tuple(range(int(columns)))
            if all(_is_integer(name) and 0 <= name < len(names) for name in perturbed):
                perturbed = tuple(names[position] for position in perturbed)
            # a bool is a number to Python, and would be a column
            known = all((isinstance(name, str) or _is_integer(name)) and name in names for name in perturbed)
            if not known or not perturbed or len(set(perturbed)) < len(perturbed):
                raise ValueError(f"perturbed must be distinct columns out of {names}, got {self.perturbed!r}")
            given, perturbed = perturbed, tuple(sorted(perturbed, key=names.index))
            order = [given.index(name) for name in perturbed]
        object.__setattr__(self, "columns", columns if columns is None or isinstance(columns, tuple) else int(columns))
        object.__setattr__(self, "perturbed", perturbed)
        self._check("scale", "non-negative and finite", lambda a: (a >= 0) & (a < np.inf))
        for name in ("lower", "upper"):
            self._check(name, "finite", np.isfinite)
            shape = np.shape(getattr(self, name))
            if shape not in ((), (self.dimension,)) or (shape and columns is None):
                raise ValueError(
                    f"{name} must be a number, or one a perturbed column (here {self.dimension}), got shape {shape}"
                )
            if shape and perturbed is not None:
                object.__setattr__(self, name, getattr(self, name)[np.array(order)])
                self._check(name, "finite", np.isfinite)
        check_order(self.lower, self.upper)
        for name in ("scale", "zero_probability"):
            if np.ndim(getattr(self, name, 0.0)) > 1:
                raise ValueError(f"{name} must be a number, or one a record, got shape {np.shape(getattr(self, name))}")

    @property
    def index(self) -> tuple[int, ...]:
        """Positions of the perturbed columns in a row."""
        if self.perturbed is None:
            return tuple(range(self._width))
        return tuple(c if isinstance(self.columns, int) else self.columns.index(c) for c in self.perturbed)

    @property
    def unperturbed(self) -> Any:
        """Probability that a record is released as it is: 1 for a public record, `kept` for others."""
        xp = np if _concrete(self.scale, self.kept) else jnp
        return xp.where(xp.asarray(self.scale) > 0, self.kept, 1.0)

    @property
    def has_atoms(self) -> bool:
        """Whether records are numbers: some may be public, or get no noise; see `Mechanism.has_atoms`."""
        return self.columns is None

    @property
    def noise(self) -> "RowMechanism":
        """The mechanism of the records that do get noise; for public records one that is never used."""
        if _concrete(self.scale) and np.all(np.greater(self.scale, 0)):
            return self
        return dataclasses.replace(self, scale=jnp.where(jnp.asarray(self.scale) > 0, jnp.asarray(self.scale), 1.0))

    @property
    def _width(self) -> int:
        return 1 if self.columns is None else self.columns if isinstance(self.columns, int) else len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns: x0, x1, ... where they were not given any."""
        return self.columns if isinstance(self.columns, tuple) else tuple(f"x{j}" for j in range(self._width))

    @property
    def dimension(self) -> int:
        """Number of perturbed columns."""
        return self._width if self.perturbed is None else len(self.perturbed)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """() for a number, (columns,) for a row."""
        return () if self.columns is None else (self._width,)

    record_shape = event_shape

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """() or (N,): one scale and zero probability, or one a record."""
        return np.broadcast_shapes(np.shape(self.scale), np.shape(self.kept))

    def _map_personal(self, function: Any) -> "RowMechanism":
        """See `Mechanism._map_personal`; arrays of bounds are over columns."""
        personal = [name for name in ("scale", "zero_probability") if np.ndim(getattr(self, name, 0.0))]
        return dataclasses.replace(self, **{name: function(getattr(self, name)) for name in personal})

    def _split(self, rows: ArrayLike) -> jax.Array:
        """The perturbed columns, with an axis of columns also for a number."""
        rows = jnp.asarray(rows)
        # not rows[..., index]: JAX 0.8.0 compiles the clipping of that wrongly where the rows are constants
        return rows[..., None] if self.columns is None else jnp.take(rows, np.array(self.index), axis=-1)

    def _join(self, rows: jax.Array, part: jax.Array) -> jax.Array:
        """Rows with their perturbed columns replaced; inverse of `_split`."""
        if self.columns is None:
            return part[..., 0]
        if self.perturbed is None:
            return part
        return jnp.broadcast_to(rows, part.shape[:-1] + rows.shape[-1:]).at[..., self.index].set(part)

    def _bounds_as(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(self.lower, dtype), jnp.asarray(self.upper, dtype)

    def clipped(self, x: ArrayLike) -> jax.Array:
        """Records with their perturbed columns clipped to the bounds."""
        x = jnp.asarray(x)
        return self._join(x, jnp.clip(self._split(x), *self._bounds_as(jnp.result_type(x, float))))

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Clip the perturbed columns of `x`, shape (*batch, *event), and add noise; NaN raises where it can be seen.

        For simulation and studies; see `Mechanism.randomize`.
        """
        x = self._in_order(x)
        if _concrete(x):
            checked("x", x, "a number (drop or impute missing records first)", lambda a: ~np.isnan(a))
        x = jnp.asarray(x)
        self._check_event("x", x)
        dtype = jnp.result_type(x, float)
        clipped = jnp.clip(self._split(x.astype(dtype)), *self._bounds_as(dtype))
        scale = jnp.asarray(self.scale, dtype)
        shape = jnp.broadcast_shapes(clipped.shape[:-1], self.batch_shape)
        part = clipped + scale[..., None] * self._noise(key, shape, dtype)
        return self._join(x.astype(dtype), part)

    def validated(self, values: ArrayLike) -> np.ndarray:
        """See `Mechanism.validated`; a data frame's columns are taken by their names, where the mechanism's have some.

        Raises
        ------
        ValueError
            If the data frame has other columns than the mechanism.
        """
        return super().validated(self._in_order(values))

    def _in_order(self, frame: Any) -> Any:
        """A data frame with the mechanism's columns in their order; anything else as it is."""
        names = getattr(frame, "columns", None)
        if names is None or not isinstance(self.columns, tuple):
            return frame
        if set(names) != set(self.columns) or len(names) != len(self.columns):
            raise ValueError(f"the mechanism's columns are {', '.join(self.columns)}; got {', '.join(map(str, names))}")
        return frame[list(self.columns)]

    def _validated(self, values: np.ndarray) -> np.ndarray:
        """Any finite numbers, those at a bound as `snapped` has them; public records are between the bounds."""
        if not _concrete(self.scale, self.lower, self.upper):
            return values
        lower, upper = self._full_bounds
        values = snapped(values, (lower, upper))
        if np.shape(self.scale) in ((), (1,), (len(values),)):
            public = np.broadcast_to(np.equal(self.scale, 0), len(values))
            if public.any():
                beyond = (values < lower) | (values > upper)
                bad = public & (beyond if self.columns is None else np.any(beyond, axis=1))
                if bad.any():
                    raise ValueError(
                        f"public records lie between the bounds, being clipped without noise; {bad.sum()} of these do "
                        f"not, the first at {np.argmax(bad)}"
                    )
        return values

    def at_bounds(self, z: ArrayLike) -> tuple[Any, Any]:
        """Whether released values are at the lower bound and whether at the upper one, rounded or not; see `snapped`.

        Both in the shape of `z`, and False in columns that are not perturbed. NumPy in, NumPy out; JAX in, JAX out.
        """
        z = _array(z)
        z = z if z.dtype.kind == "f" else z.astype(float)

        def at(bound):
            xp = np if isinstance(z, np.ndarray) and _concrete(bound) else jnp
            return (z == xp.asarray(bound, z.dtype)) | (z == _rounded(xp, bound, z.dtype))

        return tuple(at(bound) for bound in self._full_bounds)

    def implausible(self, values: np.ndarray) -> list[str]:
        """Numbers in a perturbed column too far beyond its bounds, or too few; see `Mechanism.implausible`.

        In one column each of these noises is Laplace, of scale 1/√2 times its standard deviation.
        """
        lower, upper = (np.broadcast_to(bound, (self.dimension,)) for bound in (self.lower, self.upper))
        said = []
        for j, column in enumerate(self.index):
            z = values[:, column] if self.event_shape else values
            problems = implausible_numbers(
                z, lower[j], upper[j], self.scale, 1 - np.asarray(self.kept), _laplace_depth, self.dimension
            )
            said += [f"column {self.names[column]}: {what}" if self.event_shape else what for what in problems]
        return said

    def _check_event(self, name: str, rows: jax.Array) -> None:
        if rows.ndim < len(self.event_shape) or rows.shape[rows.ndim - len(self.event_shape) :] != self.event_shape:
            raise ValueError(f"{name} must be rows of {self._width} columns, got an array of shape {rows.shape}")

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Log p(z | x), with respect to Lebesgue measure in the perturbed columns plus a unit mass at clip(x).

        −inf where a column that is not perturbed differs. Only a zero-inflated or public record has mass at clip(x).
        """
        z, x = jnp.asarray(z), jnp.asarray(x)
        dtype = jnp.result_type(z, x, float)
        difference = self._split(z.astype(dtype)) - jnp.clip(self._split(x.astype(dtype)), *self._bounds_as(dtype))
        scale, kept = jnp.asarray(self.scale, dtype), jnp.asarray(self.kept, dtype)
        public, same = scale == 0, jnp.all(difference == 0, axis=-1)
        safe = jnp.where(public, 1.0, scale)
        noisy = self._noise_log_prob(difference / safe[..., None]) - self.dimension * jnp.log(safe)
        noisy = jnp.where(public, -jnp.inf, noisy + jnp.log1p(-kept))
        mass = jnp.where(public, 1.0, kept)
        atom = jnp.where(mass > 0, jnp.log(jnp.where(mass > 0, mass, 1.0)), noisy)
        result = jnp.where(same, atom, noisy)
        if self.perturbed is None:
            return result
        others = np.setdiff1d(np.arange(self._width), self.index)
        return jnp.where(jnp.all(z[..., others] == x[..., others], axis=-1), result, -jnp.inf)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return clip(x) and the variance of the noise, 0 in columns that are not perturbed."""
        mean = self.clipped(x)
        dtype = jnp.result_type(mean, float)
        noise = (1 - jnp.asarray(self.kept, dtype)) * jnp.asarray(self.scale, dtype) ** 2
        shape = jnp.broadcast_shapes(mean.shape[: mean.ndim - len(self.event_shape)], noise.shape)
        variance = self._join(
            jnp.zeros(shape + self.event_shape, dtype),
            jnp.broadcast_to(noise[..., None], (*shape, self.dimension)),
        )
        return tuple(jnp.broadcast_arrays(mean, variance))

    def breakpoints(self, z: ArrayLike) -> Any:
        """p(z | x) of a number has a kink at x = z; see `Mechanism.breakpoints`."""
        return _array(z)[..., None]

    @property
    def _full_bounds(self) -> tuple[Any, Any]:
        """The bounds of a number, or of every column of a row: infinite in those that are not perturbed."""
        if self.perturbed is None:
            return self.lower, self.upper
        xp = np if _concrete(self.lower, self.upper) else jnp
        # which bound a column has, if any: what is not perturbed takes the infinite one at the end
        which = np.full(self._width, self.dimension)
        which[list(self.index)] = np.arange(self.dimension)
        sides = ((self.lower, -math.inf), (self.upper, math.inf))
        return tuple(xp.append(xp.broadcast_to(bound, (self.dimension,)), end)[which] for bound, end in sides)

    @property
    def domain(self) -> constraints.Constraint:
        """The box between the bounds: what is left of x after clipping."""
        box = constraints.interval(*self._full_bounds)
        return box if self.columns is None else constraints.independent(box, 1)

    @property
    def support(self) -> constraints.Constraint:
        """The real line, or rows of real numbers."""
        return constraints.real if self.columns is None else constraints.real_vector

    @property
    def resolution(self) -> Any:
        """The smallest scale of the noise, as a Laplace scale; see `Mechanism.resolution`."""
        return float(np.min(self.scale)) / math.sqrt(2) if _concrete(self.scale) else None

    @property
    def released_range(self) -> tuple[Any, Any] | None:
        """The bounds, for a number; see `Mechanism.released_range`."""
        return None if self.columns is not None else (self.lower, self.upper)

    @property
    def ranges(self) -> np.ndarray:
        """Upper less lower bound of each perturbed column, shape (dimension,)."""
        return np.broadcast_to(np.subtract(self.upper, self.lower), (self.dimension,))

    @property
    def guarantee(self) -> Guarantee:
        """The curve of two records that differ in all perturbed columns by their whole range.

        Columns that are released as they are, and public records, have no protection.
        """
        return self._guarantee(self.ranges, "record")

    @property
    def attribute_guarantee(self) -> Guarantee:
        """The curve of two records that differ in one perturbed column only, the one with the widest range."""
        alone = np.where(np.arange(self.dimension) == np.argmax(self.ranges), self.ranges, 0.0)
        return self._guarantee(alone, "attribute")

    def _guarantee(self, ranges: np.ndarray, unit: str) -> Guarantee:
        tradeoff = self._tradeoff(ranges)
        pure = isinstance(tradeoff, (LaplaceTradeoff, PureProtocolTradeoff))
        # a curve that has no finite epsilon without a delta is quoted at epsilon = 1
        exposed = tuple(name for j, name in enumerate(self.names) if j not in self.index)
        return Guarantee(tradeoff, unit=unit, stated_delta=0.0 if pure else tradeoff.delta(1.0), exposed=exposed)

    def _distance(self, ranges: np.ndarray) -> Any:
        with np.errstate(divide="ignore"):
            return np.linalg.norm(ranges) / np.asarray(self.scale)


def snapped(values: np.ndarray, points: Sequence[ArrayLike]) -> np.ndarray:
    """Values of which those that equal a point, but for having been rounded, equal it in double precision.

    A record that is clipped to 0.1 and released in single precision is 0.10000000149, beyond the bound. Values in half
    and in single precision are compared with the point in theirs, and doubles with it in single precision: those that
    are there were single before, as noise in double precision hits it with probability nil.

    Parameters
    ----------
    values : array
        Integers are as they are.
    points : sequence of array_like
        Each broadcasts with the values.

    Returns
    -------
    array
        In double precision where anything is replaced, and else the values themselves.
    """
    result = values
    for point in points if values.dtype.kind == "f" else ():
        point = np.asarray(point, float)
        held = _rounded(np, point, values.dtype)
        inexact = held != point
        if not np.any(inexact):
            continue
        replaced = (values == held) & inexact
        if replaced.any():
            result = values.astype(float) if result is values else result
            np.copyto(result, point, where=replaced)
    return result


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _rounded(xp: Any, point: ArrayLike, dtype: Any) -> Any:
    """A point in a floating-point type; if that is double precision, as it is after having been single."""
    if xp is jnp:
        # not a cast there and back, which XLA may leave out
        point = jnp.asarray(point, dtype)
        return lax.reduce_precision(point, 8, 23) if dtype == jnp.float64 else point
    with np.errstate(over="ignore"):
        return np.asarray(point).astype(np.float32 if dtype == np.float64 else dtype).astype(dtype)


def _laplace_depth(distance: np.ndarray) -> np.ndarray:
    """Minus the binary logarithm of a Laplace tail, at a distance in standard deviations."""
    return 1 + math.sqrt(2) / math.log(2) * distance
