"""Additive mechanisms: they clip numbers or columns of rows, and add noise of any law, or of a law for a budget."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

import ldpbayes.noise as laws
from ldpbayes._core import checks
from ldpbayes._core.checks import FINITE, INSIDE_0_1, NOT_NEGATIVE, ONE_ABOVE_0, POSITIVE, SHARE, checked, refuse
from ldpbayes._core.pytrees import check_fields, ruled, shown_fields, static, unchecked
from ldpbayes._core.tabular import column_names, rows_of
from ldpbayes._core.types import Array, Key, array_of, extreme, floating, is_concrete
from ldpbayes.mechanisms import protocol
from ldpbayes.mechanisms.plausibility import implausible_numbers
from ldpbayes.mechanisms.protocol import DiscreteMechanism, Mechanism, NumericMechanism, PiecewiseConstant, registered
from ldpbayes.noise import Noise
from ldpbayes.numerics.arrays import rounded, snapped
from ldpbayes.privacy import Guarantee, Tradeoff, gaussian_scale
from ldpbayes.privacy.tradeoffs import LaplaceTradeoff, PureProtocolTradeoff

ColumnNames: TypeAlias = Any  # how many columns a row has, or a sequence of their names (a tuple); None for a number
ColumnSubset: TypeAlias = Any  # a sequence of positions or names of columns, kept as a tuple; None for all


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of a record: their number or names, None for a number; and the perturbed ones in order, None for all."""

    columns: ColumnNames
    perturbed: ColumnSubset

    event_shape = property(lambda self: () if self.columns is None else (self.width,))
    width = property(lambda self: len(self.keys))
    names = property(lambda self: tuple(key if isinstance(key, str) else f"x{key}" for key in self.keys))
    dimension = property(lambda self: self.width if self.perturbed is None else len(self.perturbed))
    others = property(lambda self: np.setdiff1d(np.arange(self.width), self.index))  # columns that are not perturbed

    @property
    def keys(self) -> Sequence:
        """Names of all columns, or their positions: what `perturbed` holds some of."""
        return self.columns if isinstance(self.columns, tuple) else range(1 if self.columns is None else self.columns)

    @property
    def index(self) -> tuple[int, ...]:
        return tuple(range(self.width)) if self.perturbed is None else tuple(map(self.keys.index, self.perturbed))

    def split(self, rows: ArrayLike) -> jax.Array:
        """The perturbed columns, with an axis of columns also for a number."""
        rows = jnp.asarray(rows)
        return rows[..., None] if self.columns is None else jnp.take(rows, np.array(self.index), axis=-1)

    def join(self, rows: jax.Array, part: jax.Array) -> jax.Array:
        """Rows with their perturbed columns replaced; inverse of `split`."""
        if self.columns is None:
            return part[..., 0]
        if self.perturbed is None:
            return part
        return jnp.broadcast_to(rows, part.shape[:-1] + rows.shape[-1:]).at[..., self.index].set(part)

    def in_order(self, frame: Any) -> Any:
        """A data frame with these columns, if they have names, in their order; anything else as it is."""
        names = column_names(frame)
        if names is None or not isinstance(self.columns, tuple):
            return frame
        if set(names) != set(self.columns) or len(names) != len(self.columns):
            raise ValueError(f"the mechanism's columns are {', '.join(self.columns)}; got {', '.join(map(str, names))}")
        return rows_of(frame, self.columns)


def checked_columns(columns: ColumnNames, perturbed: ColumnSubset) -> tuple[Columns, np.ndarray]:
    """Columns as they are kept, and the order (dimension,) in which a user named the perturbed ones, empty for all:
    bounds are kept in the order of the row, ``bounds[order]``.
    """
    if isinstance(columns, (list, tuple)):
        columns = tuple(columns)
        if not columns or not all(isinstance(c, str) for c in columns) or len(set(columns)) < len(columns):
            raise ValueError(f"columns must be distinct names, or the number of columns, got {columns!r}")
    elif columns is not None:
        if not checks.is_integer(columns) or columns < 1:
            raise ValueError(f"columns must be a positive integer, or names, got {columns!r}")
        columns = checks.at_least(1, "columns", columns, checks.LARGEST_CODE)
    whole = Columns(columns, None)
    if perturbed is None:
        return whole, np.empty(0, int)
    if columns is None:
        raise ValueError("perturbed selects columns of a row, so give columns, too")
    names, selection = whole.keys, tuple(perturbed) if isinstance(perturbed, (list, tuple)) else (perturbed,)
    if positions := all(checks.is_integer(name) and 0 <= name < len(names) for name in selection):
        selection = tuple(names[position] for position in selection)
    valid = positions or (columns == names and all(isinstance(name, str) and name in names for name in selection))
    if not valid or not selection or len(set(selection)) < len(selection):
        text = f"{tuple(names[:9])}{' ...' * (len(names) > 9)}"
        raise ValueError(f"perturbed must be distinct columns out of {text}, got {perturbed!r}")
    ordered = tuple(sorted(selection, key=names.index))
    return Columns(columns, ordered), np.array([selection.index(name) for name in ordered])


class _Integers(constraints.integer_greater_than):
    """All whole numbers, of which NumPyro takes one in the place of a masked value."""

    def feasible_like(self, prototype: Array) -> jax.Array:
        return jnp.zeros_like(prototype)


_INTEGER = _Integers(-math.inf)


class Columnwise(Mechanism):
    """A mechanism of numbers, or of rows of which it perturbs some columns."""

    columns: ColumnNames
    perturbed: ColumnSubset

    _of_rows = "; rows of {0} numbers need a mechanism with columns={0}"
    _columns = property(lambda self: Columns(self.columns, self.perturbed))
    index = property(attrgetter("_columns.index"), doc="Positions of the perturbed columns in a row.")
    names = property(attrgetter("_columns.names"), doc="Names of the columns: x0, x1, ... by default.")
    dimension = property(attrgetter("_columns.dimension"), doc="Number of perturbed columns.")
    event_shape = property(attrgetter("_columns.event_shape"), doc="Shape of one released value: () for a number.")
    record_shape = property(attrgetter("event_shape"), doc="Shape of one record: () for a number.")

    def validated(self, values: ArrayLike) -> np.ndarray:
        """Return released values, like `Mechanism.validated`; the columns of a data frame are read by their names."""
        is_frame = column_names(values) is not None  # else names of columns, perhaps many, are not needed
        return super().validated(self._columns.in_order(values) if is_frame else values)


class Additive(Columnwise, NumericMechanism, DiscreteMechanism):
    """Base of additive mechanisms: z = clip(x, lower, upper) + noise in the perturbed columns, and z = x in others."""

    lower: Array  # arrays of bounds are in the order of the columns of a row
    upper: Array
    sensitivity: Array = None
    noise: Noise  #: The law of the noise: a field or a property.

    clips = True
    trust_model = property(lambda self: "local" if self.bounded else "central")  # type: ignore[assignment]
    monotone = property(lambda self: self.noise.monotone)  # type: ignore[assignment]
    bounded = property(lambda self: self.lower is not None)
    omits_noise = property(attrgetter("noise.omitted"))  # type: ignore[assignment]
    linear_tails = property(attrgetter("noise.linear_tails"), doc="See `NumericMechanism`.")
    resolution = property(lambda self: extreme("min", self.noise.resolution))
    period = property(lambda self: None if self.noise.period is None else extreme("min", self.noise.period))
    released_breakpoints = property(lambda self: self._law.released_breakpoints(self.lower, self.upper))
    _shared = property(lambda self: () if self.columns is None else ("lower", "upper", "standard_deviations"))
    # the noise of the records that get some
    _law = property(attrgetter("noise.underlying"))
    form_classes = property(lambda self: (*type(self).__mro__, *type(self._law).__mro__))
    has_atoms = property(lambda self: self.columns is None and self.omits_noise)
    #: Probability that a record is released without noise, after clipping: one number, or one for each record.
    unperturbed = property(attrgetter("noise.absent"))

    def __post_init__(self) -> None:
        self._check_columns_and_bounds()
        self._check_noise()

    def _check_columns_and_bounds(self) -> None:
        """Bring columns and bounds into the form in which they are kept, or raise ValueError."""
        check_fields(self)
        columns, order = checked_columns(self.columns, self.perturbed)
        object.__setattr__(self, "columns", columns.columns)
        object.__setattr__(self, "perturbed", columns.perturbed)
        if not (self.lower is None) == (self.upper is None) == (self.sensitivity is not None):
            raise ValueError(
                "give lower and upper, the bounds of a record; or, for a statistic of many records, sensitivity, its "
                "largest change by one record (math.inf if records are not clipped: then there is no guarantee). "
                f"Got {self!r}"
            )
        if not self.bounded:
            return
        for name in ("lower", "upper"):
            self._check(name, *FINITE)
            shape, d = np.shape(getattr(self, name)), columns.dimension
            if columns.columns is not None and shape not in ((), (d,)):
                raise ValueError(f"{name} must be a number or one per perturbed column (here {d}), got shape {shape}")
            if shape and len(order) > 1:
                object.__setattr__(self, name, getattr(self, name)[order])
                self._check(name, *FINITE)
        if self.columns is None:
            shapes = {name: np.shape(value) for name, value in shown_fields(self) if np.ndim(value)}
            try:
                np.broadcast_shapes(*shapes.values())
            except ValueError:
                raise ValueError(f"parameters must broadcast against each other, got shapes {shapes}") from None
        checks.check_order(self.lower, self.upper)

    def _clip(self, part: jax.Array) -> jax.Array:
        """Perturbed columns (*batch, dimension), clipped."""
        if not self.bounded:
            return part
        bounds = (jnp.asarray(bound, part.dtype) for bound in (self.lower, self.upper))
        return jnp.clip(part, *(bound[..., None] if self.columns is None else bound for bound in bounds))

    def clipped(self, x: ArrayLike) -> jax.Array:
        """Return the records `x`, with the perturbed columns clipped to the bounds."""
        x = floating(x)
        return self._columns.join(x, self._clip(self._columns.split(x)))

    @property
    def _full_bounds(self) -> tuple[Array, Array]:
        """The bounds of a number, or of every column of a row: infinite in those that are not perturbed."""
        if not self.bounded:
            return -math.inf, math.inf
        if self.perturbed is None:
            return self.lower, self.upper
        xp = np if is_concrete(self.lower, self.upper) else jnp
        # position of each column's bound; columns that are not perturbed take the infinite one at the end
        position = np.full(self._columns.width, self.dimension)
        position[list(self.index)] = np.arange(self.dimension)
        sides = ((self.lower, -math.inf), (self.upper, math.inf))
        lower, upper = (xp.append(xp.broadcast_to(bound, (self.dimension,)), end)[position] for bound, end in sides)
        return lower, upper

    def at_bounds(self, z: ArrayLike) -> tuple[Array, Array]:
        """Return whether each released value is at the lower bound, and at the upper bound, up to single precision."""
        values = array_of(z)
        values = values if values.dtype.kind == "f" else values.astype(float)

        def at(bound: Array) -> Array:
            xp = np if isinstance(values, np.ndarray) and is_concrete(bound) else jnp
            return (values == xp.asarray(bound, values.dtype)) | (values == rounded(xp, bound, values.dtype))

        lower, upper = map(at, self._full_bounds)
        return lower, upper

    @property
    def ranges(self) -> np.ndarray:
        """Upper minus lower bound of each perturbed column (dimension,), or of each record if records are numbers."""
        ranges = np.subtract(self.upper, self.lower)
        return ranges[..., None] if self.columns is None else np.broadcast_to(ranges, (self.dimension,))

    def _check_noise(self) -> None:
        """ValueError for noise whose scale is not positive, or neither a number nor one a record (or column)."""
        left_out, (scale, *_) = self.omits_noise, jax.tree.leaves(self.noise)
        self._law.check_records(self.lower, self.upper, self.columns is None and not left_out)
        if self.noise.per_column:
            columns = np.shape(self.noise.standard_deviation)[-1]
            if self.columns is None or columns != self.dimension:
                wanted = "a number without columns" if self.columns is None else f"{self.dimension} perturbed columns"
                raise ValueError(f"noise with {columns} standard deviations is for {columns} columns, not for {wanted}")
            return
        for name in ("lower", "upper") if left_out and self.bounded and self.columns is None else ():
            if shape := np.shape(getattr(self, name)):
                raise ValueError(f"{name} must be a number or one per perturbed column (here 1), got shape {shape}")
        for shape in map(np.shape, jax.tree.leaves(self.noise)) if left_out or self.columns is not None else ():
            if len(shape) > 1:
                raise ValueError(f"scale must be a number, or one for each record, got shape {shape}")
        for name in ("lower", "upper", "sensitivity") if self.noise.discrete else ():
            if getattr(self, name) is not None:
                allowed = f"a whole number up to 2**53 under {type(self).__name__}"
                self._check(name, allowed, lambda a: (a == np.round(a)) & ((np.abs(a) <= 2.0**53) | np.isinf(a)))
        if is_concrete(scale) and not left_out:
            good = np.ravel((np.asarray(scale) > 0) & (np.asarray(scale) < np.inf))
            if not good.all():
                bad = np.ravel(scale)[np.argmin(good)]
                raise ValueError(f"the scale of the noise must be positive and finite, got {bad} in {self!r}")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        bounds = () if self.columns is not None or not self.bounded else (np.shape(self.lower), np.shape(self.upper))
        return np.broadcast_shapes(self.noise.batch_shape, *bounds)

    @property
    def perturbing(self) -> "Additive":
        """The mechanism for the records that get noise, if some get none; else the mechanism itself."""
        if not self.omits_noise:
            return self
        fields = self.lower, self.upper, self.columns, self.perturbed, self.sensitivity
        return unchecked(AdditiveMechanism, self.noise.present, *fields)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x = self._columns.in_order(x)
        if is_concrete(x):
            checked("x", x, "a number (drop or impute missing records first)", lambda a: ~np.isnan(a))
        x = jnp.asarray(x)
        if x.shape[x.ndim - len(self.event_shape) :] != self.event_shape:
            raise ValueError(f"x must be rows of {self._columns.width} columns, got an array of shape {x.shape}")
        dtype, x = x.dtype, x.astype(jnp.result_type(x, float))
        if self.noise.discrete and is_concrete(x):
            checked("x", x, "a whole number", lambda a: a == np.round(a))
        clipped = self._clip(self._columns.split(x))
        shape = jnp.broadcast_shapes(clipped.shape[:-1], self.batch_shape)
        z = self._columns.join(x, clipped + self.noise.sample(key, (*shape, self.dimension), x.dtype))
        return z.astype(dtype) if self.noise.discrete else z

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Return log p(z | x): −inf if a column that is not perturbed differs, or if `z` is not whole under discrete
        noise. If noise may be omitted, the law of z has a unit mass at clip(x).
        """
        z, x = jnp.asarray(z), jnp.asarray(x)
        dtype = jnp.result_type(z, x, float)
        difference = self._columns.split(z.astype(dtype)) - self._clip(self._columns.split(x.astype(dtype)))
        result = self.noise.astype(dtype).continued(difference)
        if np.ndim(result) > max(difference.ndim - 1, len(self.noise.batch_shape)):
            name = f"{type(self.noise).__name__}.log_prob"
            raise ValueError(f"{name} must return the joint log density of all columns: sum over the last axis")
        if self.noise.discrete:
            released = self._columns.split(z)
            result = jnp.where(jnp.all(released == jnp.round(released), axis=-1), result, -jnp.inf)
        if self.perturbed is None:
            return result
        others = self._columns.others
        return jnp.where(jnp.all(z[..., others] == x[..., others], axis=-1), result, -jnp.inf)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        mean = self.clipped(x)
        law = self.noise.astype(mean.dtype)
        noise = law.over_columns(law.variance)
        zeros = jnp.zeros_like(mean)
        mean, variance = jnp.broadcast_arrays(mean, self._columns.join(zeros, self._columns.split(zeros) + noise))
        return mean, variance

    def unbiased(self, z: ArrayLike) -> jax.Array:
        if not self._law.has_variance:
            raise ValueError("unbiased values do not exist, because the noise has no finite variance")
        return jnp.asarray(z)

    def breakpoints(self, z: ArrayLike) -> Array:
        return self._law.breakpoints(array_of(z), self.lower, self.upper)

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(z).reshape(len(z), -1)

    @property
    def domain(self) -> constraints.Constraint:
        if self.noise.discrete:
            return constraints.integer_interval(*self._full_bounds) if self.bounded else _INTEGER
        if not self.bounded:
            return self.support
        box = constraints.interval(*self._full_bounds)
        return box if self.columns is None else constraints.independent(box, 1)

    @property
    def support(self) -> constraints.Constraint:
        if self.noise.discrete:
            return _INTEGER if self.columns is None else constraints.independent(_INTEGER, 1)
        return constraints.real if self.columns is None else constraints.real_vector

    @property
    def released_range(self) -> tuple[Array, Array] | None:
        if self.columns is not None or not self.bounded:
            return None
        # a whole number of periods, of which one is wider than what lies between the bounds
        reach = self.noise.reach if self.period is None else (3 * self.period - (self.upper - self.lower)) / 2
        return extreme("min", self.lower - reach), extreme("max", self.upper + reach)

    #: The guarantee for records that differ in one column only; for a statistic, for data sets that differ in a record.
    attribute_guarantee = property(lambda self: self._guarantee(self.noise.tradeoff_in_one_column, "attribute"))
    #: The guarantee for any two records; for a statistic, for two data sets that differ in one record.
    guarantee = property(lambda self: self._guarantee(self.noise.tradeoff, "record"))

    def _guarantee(self, of_ranges: Callable[[np.ndarray], Tradeoff], unit: str) -> Guarantee:
        exposed = tuple(self.names[j] for j in self._columns.others)
        common: Any = {"unit": unit, "exposed": exposed, "assumption": self.noise.assumption}
        if self.bounded:
            return Guarantee(of_ranges(self.ranges), **common)
        if np.isinf(self.sensitivity):
            return Guarantee(PureProtocolTradeoff(np.inf, 1.0), **common)
        tradeoff = self.noise.tradeoff_within(self.sensitivity, self.dimension)
        return Guarantee(tradeoff, trust_model=self.trust_model, **common)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        """Finite numbers, those at a bound as `snapped` has them; public records must be between the bounds."""
        if self.noise.discrete:
            return protocol.checked_integers(values, type(self).__name__)
        values = values.astype(int) if values.dtype == bool else values
        if not self.omits_noise or not is_concrete(self):
            return values
        lower, upper = self._full_bounds
        values = snapped(values, (lower, upper))
        certain = np.equal(self.noise.absent, 1)
        if np.shape(certain) in ((), (1,), (len(values),)) and certain.any():
            public = np.broadcast_to(certain, len(values))
            beyond = (values < lower) | (values > upper)
            bad = public & (beyond if self.columns is None else np.any(beyond, axis=1))
            refuse(bad, "records without noise are clipped, so they must be between the bounds; {} are not")
        return values

    def implausible(self, values: np.ndarray) -> list[str]:
        """Reasons if too many or too few numbers lie beyond the bounds; none unless all noise has one shape of law."""
        one_shape = self._law.symmetric and not any(map(np.ndim, jax.tree.leaves(self._law)[1:]))
        if not (self.bounded and one_shape) or self.noise.discrete:
            return []
        if not np.all(np.isfinite(self.noise.standard_deviation)):
            return []
        noisy = 1 - np.asarray(self.noise.chance)
        if self.columns is None:
            law = self.lower, self.upper, self.noise.standard_deviation
            return implausible_numbers([values], [law], noisy, self.noise.depth)
        deviations = np.asarray(self.noise.over_columns(self.noise.standard_deviation))
        deviations = np.moveaxis(np.broadcast_to(deviations, (*deviations.shape[:-1], self.dimension)), -1, 0)
        lower, upper = (np.broadcast_to(bound, (self.dimension,)) for bound in (self.lower, self.upper))
        names, laws = [f"column {self.names[j]}: " for j in self.index], zip(lower, upper, deviations, strict=True)
        return implausible_numbers(values.T[list(self.index)], laws, noisy, self.noise.depth, names)


@registered("additive", "Noise of any law on a clipped number, on columns of a row, or on a statistic of many records.")
class AdditiveMechanism(Additive):
    """Noise of any law, added to a clipped number, to columns of a row, or to a statistic of many records.

    Mechanisms such as `LaplaceMechanism` take a budget instead of a scale.

    Parameters
    ----------
    noise : Noise
        The law of the noise, such as one of `ldpbayes.noise`, with its scale in the unit of the data.
    lower, upper : array_like, optional
        Clipping bounds in the unit of the data, finite, lower < upper, chosen without looking at the data. For rows:
        one number, or one for each perturbed column, in the order of `perturbed`. Default: no bounds.
    columns : int or sequence of str, optional
        Number or names of the columns of a row. Default: a record is one number.
    perturbed : sequence of int or str, optional
        Positions or names of the columns that get noise; others are released without noise. Default: all columns.
    sensitivity : float, optional
        Instead of bounds, for a statistic of many records: its largest change if one record changes, in its unit; over
        several columns, in the norm `Noise.norm`. ``math.inf``: records without bounds, which have no guarantee.
    """

    noise: Noise
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.noise, Noise):
            raise TypeError(f"noise must be one of ldpbayes.noise, such as Laplace(scale=3.0), got {self.noise!r}")
        if jax.tree_util.all_leaves([self.noise]):
            kind = type(self.noise).__name__
            raise TypeError(f"{kind} must be decorated with @ldpbayes.noise.pytree, above @dataclasses.dataclass")
        super().__post_init__()


@registered(
    "laplace", "Laplace noise for a privacy budget, on a clipped number, on columns of a row, or on a statistic."
)
class LaplaceMechanism(Additive):
    """Laplace noise for a privacy budget, added to a clipped number, to columns of a row, or to a statistic ([DMNS]).

    The scale of the noise is the sensitivity divided by epsilon. With bounds, every record gets noise; the sensitivity
    is then upper − lower, summed over the perturbed columns of a row. With `sensitivity`, noise is added once, to a
    statistic of many records. The guarantee then protects each person in the statistic.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget in nats, positive and finite: one number, or one personal budget for each record.
    lower, upper, columns, perturbed, sensitivity : optional
        As in `AdditiveMechanism`.

    Examples
    --------
    >>> ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=20).scale
    20.0
    """

    epsilon: Array = ruled(POSITIVE)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)
    scale = property(lambda self: _diameter(self, 1) / self.epsilon, doc="Laplace's b: sensitivity over epsilon.")
    noise = property(lambda self: unchecked(laws.Laplace, self.scale))

    @classmethod
    def from_scale(cls, scale: Array, lower: Array = None, upper: Array = None, **options: Any) -> AdditiveMechanism:
        """Return an `AdditiveMechanism`, with further `options`, for Laplace's b = `scale` in the unit of the data."""
        return AdditiveMechanism(laws.Laplace(scale), lower, upper, **options)

    @property
    def guarantee(self) -> Guarantee:
        guarantee = super().guarantee
        if self.columns is not None:
            return guarantee
        return dataclasses.replace(guarantee, tradeoff=LaplaceTradeoff(self.epsilon))  # without rounding


@dataclasses.dataclass(frozen=True)
class _StatedDeviation(Additive):
    """Noise whose standard deviation `scale` is stated and may be 0, for public records."""

    scale: Array = ruled(NOT_NEGATIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)


@registered(
    "symmetric_laplace", "Symmetric multivariate Laplace noise on a clipped number or on clipped columns of a row."
)
class SymmetricLaplaceMechanism(_StatedDeviation):
    """`SymmetricLaplace` noise, added to a clipped number or to clipped columns of a row ([LCQ] sec. 3).

    Parameters
    ----------
    scale : array_like
        Standard deviation λ ≥ 0 of the noise in each column, in the unit of the data: one number, or one for each
        record. A record with λ = 0 is public: it is released without noise.
    lower, upper, columns, perturbed
        As in `AdditiveMechanism`.

    Examples
    --------
    >>> print(ldp.SymmetricLaplaceMechanism(scale=10.0, lower=0, upper=20).guarantee.epsilon(0.0).round(3))
    2.828
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.SymmetricLaplace, self.scale)))


@registered("independent_laplace", "Independent Laplace noise on a number, or in every perturbed column of a row.")
class IndependentLaplaceMechanism(_StatedDeviation):
    """Independent Laplace noise on a number, or in every perturbed column of a row.

    `SymmetricLaplaceMechanism` describes the parameters; Laplace's b in a column is scale/√2. The guarantee for records
    that differ in several columns is a curve slightly below the exact one, as `Laplace.tradeoff` describes.
    """

    noise = property(lambda self: unchecked(laws.WithPublicRecords, unchecked(laws.Laplace, self.scale / math.sqrt(2))))


@registered("zero_inflated_laplace", "Symmetric Laplace noise that is omitted for some records at random.")
class ZeroInflatedLaplaceMechanism(Additive):
    """Symmetric Laplace noise that is omitted for some records at random ([LCQ] Definition 3.1).

    Records without noise can often be recognised in the release, if records have many columns or if the bounds are
    narrow compared with the scale. `ldpbayes.privacy.zil_parameters` computes the scale for a privacy target.

    Parameters
    ----------
    zero_probability : array_like
        Probability δ in (0, 1) that a record gets no noise: one number, or one number for each record.
    scale, lower, upper, columns, perturbed
        As in `SymmetricLaplaceMechanism`.

    Examples
    --------
    >>> print(ldp.ZeroInflatedLaplaceMechanism(0.01, scale=10.0, lower=0, upper=20).guarantee.epsilon(0.02).round(3))
    2.808
    """

    zero_probability: Array = ruled(INSIDE_0_1)
    scale: Array = ruled(NOT_NEGATIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)

    @property
    def noise(self) -> laws.ZeroInflated:  # type: ignore[override]
        return unchecked(laws.ZeroInflated, unchecked(laws.SymmetricLaplace, self.scale), self.zero_probability)


@registered("gaussian", "Gaussian noise for a privacy target, on a number, on columns of a row, or on a statistic.")
class GaussianMechanism(Additive):
    """Gaussian noise for a privacy target, added to a number, to columns of a row, or to a statistic ([BW] Theorem 8).

    The attribute `scale` is the smallest standard deviation that gives (epsilon, delta)-differential privacy,
    proportional to the sensitivity. With bounds, every record gets noise; the sensitivity is then upper − lower, of
    rows its Euclidean norm over the perturbed columns. With `sensitivity`, noise is added once, to a statistic of many
    records. The guarantee then protects each person in the statistic.

    Parameters
    ----------
    epsilon, delta : array_like
        Privacy target: epsilon in nats, positive and finite, and delta in (0, 1), each one number or one for each
        record. JAX tracers raise a ValueError, because NumPy computes `scale`: `jax.vmap` over them must also map over
        `scale`.
    lower, upper, columns, perturbed, sensitivity : optional
        As in `AdditiveMechanism`.

    Examples
    --------
    >>> round(ldp.GaussianMechanism(epsilon=1.0, delta=1e-6, lower=0, upper=20).scale, 2)
    84.49
    """

    epsilon: Array = ruled(POSITIVE)
    delta: Array = ruled(INSIDE_0_1)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)
    scale: Array = dataclasses.field(init=False)
    noise = property(lambda self: unchecked(laws.Gaussian, self.scale))

    def __post_init__(self) -> None:
        self._check_columns_and_bounds()
        if not is_concrete(self.epsilon, self.delta):
            raise ValueError("epsilon and delta must be concrete; make the mechanism outside the traced function")
        object.__setattr__(self, "scale", _diameter(self, 2) * gaussian_scale(self.epsilon, self.delta))
        self._check_noise()

    @classmethod
    def from_standard_deviation(
        cls, standard_deviation: Array, lower: Array = None, upper: Array = None, **options: Any
    ) -> AdditiveMechanism:
        """Return an `AdditiveMechanism`, with further `options`, for a `standard_deviation` in the unit of the data."""
        return AdditiveMechanism(laws.Gaussian(standard_deviation), lower, upper, **options)

    @classmethod
    def classical(
        cls, epsilon: Array, delta: Array, lower: Array = None, upper: Array = None, **options: Any
    ) -> AdditiveMechanism:
        """Return an `AdditiveMechanism`, with further `options`, of standard deviation √(2 log(1.25/δ)) Δ/ε for
        sensitivity Δ ([DR] Theorem A.1). That is more noise than needed for ε < 1, and too little for large ε.
        """
        epsilon = checked("epsilon", epsilon, *POSITIVE)
        delta = checked("delta", delta, *INSIDE_0_1)
        unit_noise = AdditiveMechanism(laws.Gaussian(1.0), lower, upper, **options)
        deviation = np.sqrt(2 * (math.log(1.25) - np.log(delta))) * _diameter(unit_noise, 2) / epsilon
        # `unit_noise` has its bounds in the order of the row already
        return dataclasses.replace(unit_noise, noise=laws.Gaussian(deviation))

    @property
    def guarantee(self) -> Guarantee:
        return dataclasses.replace(super().guarantee, stated_delta=self.delta)


def _diameter(mechanism: Additive, norm: int) -> Array:
    """Largest distance of two inputs in a norm of rows: of numbers, of rows, or of a statistic of two data sets."""
    if not mechanism.bounded:
        return mechanism.sensitivity
    if mechanism.columns is None:
        return mechanism.upper - mechanism.lower
    concrete = is_concrete(mechanism.lower, mechanism.upper)
    xp = np if concrete else jnp
    widths = xp.atleast_1d(xp.subtract(mechanism.upper, mechanism.lower))  # one for all columns, or one for each
    distance = xp.linalg.norm(widths, norm) * (mechanism.dimension / len(widths)) ** (1 / norm)
    return float(distance) if concrete else distance


@registered("staircase", "Staircase noise for a privacy budget, on a clipped number.")
class StaircaseMechanism(Additive, PiecewiseConstant):
    """Staircase noise for a privacy budget, added to a clipped number ([GV]).

    `ldpbayes.noise.Staircase` is the law. With the default γ, no other noise with this budget has a smaller variance.
    The gain over Laplace noise is large for large budgets, and vanishes for small budgets.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget in nats, positive and finite: one number, or one number for each record.
    lower, upper : array_like
        As in `AdditiveMechanism`.
    gamma : array_like, optional
        Number γ in (0, 1], which places the jumps of the density. Default: the γ of the least variance.
    """

    epsilon: Array = ruled(POSITIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    gamma: Array = ruled(SHARE, default=None)
    columns = perturbed = None

    def __post_init__(self) -> None:
        super().__post_init__()
        with np.errstate(all="ignore"):
            if is_concrete(self) and not np.all(np.isfinite(self.noise.variance)):
                raise ValueError(f"the variance of the noise must be finite, got inf in {self!r}")

    @property
    def noise(self) -> laws.Staircase:  # type: ignore[override]
        gamma = laws.Staircase.optimal_gamma(self.epsilon) if self.gamma is None else self.gamma
        return unchecked(laws.Staircase, self.upper - self.lower, self.epsilon, gamma)

    def pieces(self, z: ArrayLike) -> tuple[Array, Array]:
        return self.noise.pieces(z, self.lower, self.upper)


@dataclasses.dataclass(frozen=True)
class _WholeNumberMechanism(Additive):
    """Noise of whole numbers; without bounds and sensitivity it is for a count, which one record moves by 1."""

    scale: Array = ruled(POSITIVE)
    lower: Array = None
    upper: Array = None
    columns: ColumnNames = static(default=None)
    perturbed: ColumnSubset = static(default=None)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None and self.sensitivity is None:
            object.__setattr__(self, "sensitivity", 1.0)
        super().__post_init__()


@registered("discrete_laplace", "Discrete Laplace (geometric) noise on a whole number: P(noise = k) ∝ exp(−|k|/scale).")
class DiscreteLaplaceMechanism(_WholeNumberMechanism):
    """Discrete Laplace (geometric) noise on a whole number: P(noise = k) ∝ exp(−|k|/scale) ([GRS]).

    Without bounds, the released value is a statistic of many records, such as a count (central model), and the budget
    is `sensitivity`/`scale`. With bounds, each record is clipped and gets its own noise (local model).

    Parameters
    ----------
    scale : array_like
        Scale of the noise in the unit of the data, positive (as in OpenDP): one number, or one for each released value.
    lower, upper, columns, perturbed : optional
        As in `AdditiveMechanism`. Bounds are whole numbers.
    sensitivity : float, optional
        Largest change of the statistic if one record changes, a whole number. Default: 1 if there are no bounds.

    Examples
    --------
    >>> print(ldp.DiscreteLaplaceMechanism(scale=2.0).guarantee.epsilon(0.0))
    0.5
    """

    noise = property(lambda self: unchecked(laws.DiscreteLaplace, self.scale))


@registered("discrete_gaussian", "Discrete Gaussian noise on a whole number: P(noise = k) ∝ exp(−k²/(2 scale²)).")
class DiscreteGaussianMechanism(_WholeNumberMechanism):
    """Discrete Gaussian noise on a whole number: P(noise = k) ∝ exp(−k²/(2 scale²)) ([CKS]).

    `DiscreteLaplaceMechanism` describes the parameters. A scale above 1 is nearly the standard deviation of the noise.

    Examples
    --------
    >>> print(ldp.DiscreteGaussianMechanism(scale=2.0).guarantee.epsilon(1e-6).round(3))
    2.276
    """

    noise = property(lambda self: unchecked(laws.DiscreteGaussian, self.scale))
