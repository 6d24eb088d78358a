"""Mechanisms for the records (x, y) of a regression: noise on each record, or on statistics of one or many records."""

import dataclasses
import math
from operator import attrgetter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.checks import INSIDE_0_1, ONE_INSIDE_0_1, ONE_POSITIVE, POSITIVE, checked, refuse
from ldpbayes._core.pytrees import check_fields, ruled, static, unchecked
from ldpbayes._core.types import Array, ArrayModule, Key, array_of, floating, is_concrete
from ldpbayes.mechanisms._categories import RandomizedResponse
from ldpbayes.mechanisms.additive import Additive, ColumnNames, Columns, Columnwise, checked_columns
from ldpbayes.mechanisms.plausibility import FALSE_REPORT_LEVEL, implausible_numbers
from ldpbayes.mechanisms.protocol import NumericMechanism, registered
from ldpbayes.noise import Gaussian, IndependentGaussian
from ldpbayes.numerics.arrays import OFF_DIAGONALS, diagonal_first_pairs, packed, unpacked
from ldpbayes.privacy import Guarantee, gaussian_scale, linear_sensitivity, logistic_sensitivity
from ldpbayes.privacy.calibration import GaussianWithResponseTradeoff, gaussian_beside_response
from ldpbayes.privacy.tradeoffs import GaussianTradeoff, WorstTradeoff

RECORD_COUNT = "a whole number of records, at least 1", lambda a: (a >= 1) & (a == np.round(a))
RADIUS_ROUNDING = 1e-6  # relative: rows scaled to the radius in single precision may lie this far beyond it


class _Regression(Columnwise):
    """A mechanism for records (x, y): covariates in a ball, then a number within a bound or a label."""

    delta: Array
    radius: Array
    response_bound: Array
    columns: ColumnNames
    clip: bool

    perturbed = None
    _labels: ClassVar[bool] = False
    _tradeoff: Any  # of any two records
    _attribute_tradeoff: Any  # of records that differ in one column

    def _check_records(self, *host: str) -> None:
        """Bring fields into their form; ValueError if one is out of range, or traced and needed on the `host`."""
        check_fields(self)
        if not is_concrete([getattr(self, name) for name in host]):
            raise ValueError(f"{', '.join(host)} must be concrete; make the mechanism outside the traced function")
        kept, _ = checked_columns(self.columns, None)
        if kept.columns is None or kept.width < 2:
            raise ValueError(f"columns must be at least two, covariates and then a response, got {self.columns!r}")
        object.__setattr__(self, "columns", kept.columns)
        object.__setattr__(self, "clip", bool(self.clip))

    def _parts(self, rows: Array) -> tuple[Array, Array]:
        """Covariates (*batch, d) and responses (*batch,) of rows or a data frame; labels as −1 and 1. With `clip`,
        those beyond the bounds are drawn back to them; else concrete ones are refused. NumPy in, NumPy out.
        """
        whole = Columns(self.columns, None)
        rows = whole.in_order(rows)
        concrete = is_concrete(rows)
        rows = np.asarray(rows) if concrete else jnp.asarray(rows)
        rows = rows if rows.dtype.kind == "f" else rows.astype(float)
        if rows.shape[-1:] != (whole.width,):
            raise ValueError(f"rows must have {whole.width} columns, the response last; got shape {rows.shape}")
        x, y = rows[..., :-1], rows[..., -1]
        if concrete:
            refuse(np.isnan(rows).any(axis=-1), "{} rows have missing values: drop or impute them")
        y = signs(y) if self._labels else y
        if concrete and not self.clip and is_concrete(self.radius, self.response_bound):
            for name, sizes in (("radius", np.linalg.norm(x, axis=-1)), ("response_bound", np.abs(y))):
                bound = getattr(self, name)
                problem = f"{{}} of {sizes.size} rows exceed {name} = {bound:g}, up to {np.max(sizes, initial=0):g}"
                hint = "scale the rows, or let the mechanism clip them"
                refuse(sizes > bound * (1 + RADIUS_ROUNDING), f"{problem}: {hint}")
        if self.clip or concrete:
            xp = np if is_concrete(y, self.response_bound) else jnp
            x, y = projected(x, self.radius), xp.clip(y, -self.response_bound, self.response_bound)
        return x, y

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(self._tradeoff, trust_model=self.trust_model, stated_delta=self.delta)

    @property
    def attribute_guarantee(self) -> Guarantee:
        """The guarantee for records that differ in one column: the weaker one of the response and a covariate."""
        return Guarantee(self._attribute_tradeoff, unit="attribute", stated_delta=self.delta)


@registered("linear_records", "Gaussian noise on covariates in a ball and on a bounded response.")
class LinearRecordsMechanism(_Regression, Additive):
    """Gaussian noise on covariates x in a ball and on a bounded response y ([KJKH] sec. 3.2.3 and 12.1).

    The noise has standard deviation 2 `response_bound`/(μ √c) in the response and 2 `radius`/(μ √(1 − c)) in each
    covariate, where c is `split`, and 1/μ, computed exactly from epsilon and delta, is the attribute
    `unit_standard_deviation`. Less noise is not enough, because two records may differ by 2 `radius` in x and also by 2
    `response_bound` in y.

    Parameters
    ----------
    epsilon, delta : array_like
        Privacy target: epsilon in nats, positive and finite, and delta in (0, 1), each one number or one for each
        record. JAX tracers raise a ValueError, because NumPy computes the noise.
    radius, response_bound : float
        Largest Euclidean norm of a record's covariates, and largest absolute value of a response, in their units.
        Choose them without looking at the data.
    columns : int or sequence of str
        Number or names of the columns of a row (x, y). The response is the last column.
    split : float
        Number c in (0, 1): a larger c gives less noise in the response and more in the covariates. Default: 0.5.
    clip : bool
        True to clip records beyond `radius` or `response_bound`. Default: False. Such records then raise a ValueError.
    """

    epsilon: Array = ruled(POSITIVE)
    delta: Array = ruled(INSIDE_0_1)
    radius: Array = ruled(POSITIVE)
    response_bound: Array = ruled(POSITIVE)
    columns: ColumnNames = static()
    split: Array = ruled(INSIDE_0_1, default=0.5)
    clip: bool = static(default=False)
    unit_standard_deviation: Array = dataclasses.field(init=False)

    sensitivity = None
    #: Largest value of each column, for any values of the others.
    upper = property(lambda self: self._by_column(self.radius, self.response_bound))
    lower = property(lambda self: -self.upper)
    _tradeoff = property(lambda self: GaussianTradeoff(1 / np.asarray(self.unit_standard_deviation)[()]))

    def __post_init__(self) -> None:
        self._check_records("epsilon", "delta")
        object.__setattr__(self, "unit_standard_deviation", gaussian_scale(self.epsilon, self.delta))

    @property
    def noise(self) -> IndependentGaussian:  # type: ignore[override]
        covariate = 2 * self.radius * self.unit_standard_deviation / (1 - self.split) ** 0.5
        response = 2 * self.response_bound * self.unit_standard_deviation / self.split**0.5
        return unchecked(IndependentGaussian, self._by_column(covariate, response))

    def _by_column(self, covariate: Array, response: Array) -> Array:
        """A value for each covariate and one for the response, along a last axis."""
        xp: ArrayModule = np if is_concrete(covariate, response) else jnp
        covariate, response = xp.broadcast_arrays(covariate, response)
        return xp.stack([covariate] * (self.dimension - 1) + [response], axis=-1)

    def _clip(self, part: jax.Array) -> jax.Array:
        if not self.clip:
            return part
        y = jnp.clip(part[..., -1:], -self.response_bound, self.response_bound)
        return jnp.concatenate([projected(part[..., :-1], self.radius), y], axis=-1)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        """Add noise to records `x`. Records beyond the bounds raise a ValueError unless ``clip`` is True."""
        covariates, y = self._parts(x)
        return self.simulate(key, jnp.concatenate([covariates, y[..., None]], axis=-1))

    def simulate(self, key: Key, x: ArrayLike) -> jax.Array:
        return super().randomize(key, x)

    @property
    def _attribute_tradeoff(self) -> GaussianTradeoff:
        share = np.sqrt(np.maximum(self.split, 1 - np.asarray(self.split)))
        return GaussianTradeoff((share / self.unit_standard_deviation)[()])


@registered("logistic_records", "Gaussian noise on covariates in a ball, and randomized response on a label.")
class LogisticRecordsMechanism(_Regression, NumericMechanism):
    """Gaussian noise on covariates in a ball, and randomized response on a label ([KJKH] sec. 3.2.3 and 12.2).

    The covariates get the least noise, of the attribute `standard_deviation`, for which label and covariates together
    are (epsilon, delta)-private. [KJKH] needs more noise, because it adds up budgets, as if the worst cases of both
    occurred together.

    Parameters
    ----------
    epsilon, delta : float
        Privacy target: epsilon in nats, positive and finite, and delta in (0, 1).
    radius, columns, clip
        As in `LinearRecordsMechanism`. The label is the last column.
    split : float
        Share of epsilon that the label gets, strictly between 0 and 1. Default: 0.5.
    """

    epsilon: Array = ruled(ONE_POSITIVE)
    delta: Array = ruled(ONE_INSIDE_0_1)
    radius: Array = ruled(ONE_POSITIVE)
    columns: ColumnNames = static()
    split: Array = ruled(ONE_INSIDE_0_1, default=0.5)
    clip: bool = static(default=False)
    standard_deviation: Array = dataclasses.field(init=False)

    response_bound: ClassVar[float] = 1.0  # type: ignore[misc]  # of a label, −1 or 1
    _labels = True
    bounded = True
    linear_tails = has_atoms = False
    resolution = property(attrgetter("standard_deviation"), doc="See `NumericMechanism`.")
    response_epsilon = property(lambda self: self.epsilon * self.split, doc="Budget of the label in nats.")
    noise = property(lambda self: unchecked(Gaussian, self.standard_deviation))  # of the covariates
    _label = property(lambda self: unchecked(RandomizedResponse, self.response_epsilon, 2))
    _apart = property(lambda self: 2 * self.radius / self.standard_deviation)  # largest distance of two covariates
    _tradeoff = property(lambda self: GaussianWithResponseTradeoff(self._apart, self.response_epsilon))
    _attribute_tradeoff = property(
        lambda self: WorstTradeoff([GaussianTradeoff(self._apart), self._label.guarantee.tradeoff])
    )
    # the covariates get noise
    _columns = property(lambda self: Columns(self.columns, Columns(self.columns, None).keys[:-1]))
    released_range = None  # rows are not compressed on panels
    domain = support = constraints.real_vector  # rows of numbers, of which the last is a label

    def __post_init__(self) -> None:
        self._check_records("epsilon", "delta", "split")
        apart = gaussian_beside_response(self.epsilon, self.delta, self.response_epsilon)
        object.__setattr__(self, "standard_deviation", 2 * self.radius / float(apart))

    def breakpoints(self, z: ArrayLike) -> Array:
        return array_of(z)[..., None][..., :0]

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        """Draw a released row for each record. Labels 0 and 1 (or −1 and 1) are released as 0 and 1."""
        covariates, y = self._parts(x)
        return self.simulate(key, jnp.concatenate([covariates, (y > 0).astype(covariates.dtype)[..., None]], axis=-1))

    def simulate(self, key: Key, x: ArrayLike) -> jax.Array:
        x = floating(x)
        keys = jax.random.split(key)
        covariates, y = self._clipped(x), x[..., -1]
        z = covariates + self.noise.sample(keys[0], covariates.shape, x.dtype)
        flip = jax.random.bernoulli(keys[1], jax.nn.sigmoid(-jnp.asarray(self.response_epsilon, x.dtype)), y.shape)
        return jnp.concatenate([z, jnp.where(flip, 1 - y, y)[..., None]], axis=-1)

    def _clipped(self, rows: jax.Array) -> jax.Array:
        return projected(rows[..., :-1], self.radius) if self.clip else rows[..., :-1]

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z, x = jnp.asarray(z), jnp.asarray(x)
        noise = self.noise.log_prob(z[..., :-1] - self._clipped(x))
        return noise + self._label.log_prob(z[..., -1], x[..., -1])

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        x = jnp.asarray(x)
        variance = jnp.broadcast_to(jnp.asarray(self.standard_deviation) ** 2, x[..., :-1].shape)
        label, label_variance = self._label.moments(x[..., -1:])
        mean = jnp.concatenate([self._clipped(x), label], axis=-1)
        return mean, jnp.concatenate([variance, label_variance], axis=-1)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        labels = values[:, -1]
        problem = "the last column must hold released labels, 0 or 1; {} are not"
        refuse(~np.isin(labels, (0, 1)), problem, labels)
        return values.astype(float) if values.dtype.kind != "f" else values

    def implausible(self, values: np.ndarray) -> list[str]:
        d = self.dimension
        names = [f"column {name}: " for name in self.names[:d]]
        laws = [(-self.radius, self.radius, self.standard_deviation)] * d
        return implausible_numbers(values[:, :d].T, laws, 1.0, self.noise.depth, names)


@dataclasses.dataclass(frozen=True)
class StatisticsMechanism(_Regression, Additive):
    """Base of mechanisms that add Gaussian noise to statistics of a record (x, y), or to their sum over records.

    `LinearStatisticsMechanism` describes ``epsilon``, ``delta``, ``radius``, ``response_bound``, ``columns``,
    ``ratios``, ``off_diagonal``, ``trust_model``, ``count`` and ``clip``.
    """

    epsilon: Array = ruled(ONE_POSITIVE)
    delta: Array = ruled(ONE_INSIDE_0_1)
    radius: Array = ruled(ONE_POSITIVE)
    response_bound: Array = ruled(ONE_POSITIVE)
    columns: ColumnNames = static()
    ratios: Array = static(default=None)
    off_diagonal: str = static(default="scaled")
    trust_model: str = static(default="local")
    count: Array = ruled(RECORD_COUNT, default=None)
    clip: bool = static(default=False)
    standard_deviation: Array = dataclasses.field(init=False)

    lower = upper = None
    _tradeoff = property(lambda self: GaussianTradeoff(self.sensitivity / self.standard_deviation))
    event_shape = property(lambda self: (sum(self._blocks),))  # without the names of the statistics
    covariates = property(lambda self: Columns(self.columns, None).width - 1, doc="Number of covariates.")

    def __post_init__(self) -> None:
        self._check_records("epsilon", "delta", "radius")
        for name, allowed in (("trust_model", ("local", "central")), ("off_diagonal", tuple(OFF_DIAGONALS))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        units = np.array([self.radius**2, self.radius * self.response_bound, self.response_bound**2])
        units = units[: len(self._blocks)]
        ratios = units / units[0] if self.ratios is None else self.ratios
        ratios = np.atleast_1d(checked("ratios", ratios, *POSITIVE))
        if ratios.shape != units.shape:
            raise ValueError(f"ratios must be {len(units)} numbers, one for each block, got {self.ratios!r}")
        object.__setattr__(self, "ratios", tuple(ratios.tolist()))
        deviation = float(self.sensitivity * gaussian_scale(self.epsilon, self.delta))
        object.__setattr__(self, "standard_deviation", deviation)

    @property
    def sensitivity(self) -> float:  # type: ignore[override]
        """Largest distance between the statistics of two records, in the unit of a squared covariate."""
        if self._labels:
            return logistic_sensitivity(self.covariates, self.radius, self.ratios)
        return linear_sensitivity(self.covariates, self.radius, self.response_bound, self.ratios)

    def statistics(self, rows: Array) -> Array:
        """Return the statistics (*batch, m) of records `rows` (*batch, columns), before noise is added; ValueError for
        unknown labels, and unless ``clip`` is True for records beyond the bounds.
        """
        x, y = self._parts(rows)
        y = y[..., None]
        blocks = [packed(x[..., :, None] * x[..., None, :], self.off_diagonal), x * y, y * y]
        return (np if is_concrete(x) else jnp).concatenate(blocks[: len(self._blocks)], axis=-1)

    @property
    def _blocks(self) -> tuple[int, ...]:
        """Number of statistics in each block: products of covariates, those with the response, its square."""
        d = self.covariates
        return (d * (d + 1) // 2, d) if self._labels else (d * (d + 1) // 2, d, 1)

    @property
    def _columns(self) -> Columns:
        """The statistics are the columns of a released row."""
        *x, y = Columns(self.columns, None).names
        second = [f"{x[j]}*{x[k]}" for j, k in zip(*diagonal_first_pairs(len(x)), strict=True)]
        names = second + [f"{name}*{y}" for name in x] + [f"{y}*{y}"]
        return Columns(tuple(names[: sum(self._blocks)]), None)

    @property
    def noise(self) -> IndependentGaussian:  # type: ignore[override]
        """The law of the noise in a released value, which is about one record or is the sum over several records."""
        summed = 1.0 if self.trust_model == "central" or self.count is None else self.count
        relative = np.repeat(self.ratios, self._blocks) / self.ratios[0]
        first = array_of(self.standard_deviation * summed**0.5)
        return unchecked(IndependentGaussian, first[..., None] * relative)

    def total(self, count: int) -> "StatisticsMechanism":
        """Return the mechanism for the sum of `count` values of this mechanism; ValueError for one of sums."""
        if self.trust_model == "central" or self.count is not None:
            raise ValueError(f"total needs a local mechanism that releases each record separately, got {self!r}")
        names = [field.name for field in dataclasses.fields(self)]
        return unchecked(type(self), *(count if name == "count" else getattr(self, name) for name in names))

    attribute_guarantee = _Regression.guarantee  # one attribute may change all statistics

    def implausible(self, values: np.ndarray) -> list[str]:
        if self.trust_model == "central" and self.count is None:
            return []
        n = 1.0 if self.count is None else float(self.count)
        d, r, bound = self.covariates, self.radius, self.response_bound
        product = OFF_DIAGONALS[self.off_diagonal] * r**2 / 2
        ends = [(0.0, r**2), (-product, product), (-r * bound, r * bound), (0.0, bound**2)]
        lower, upper = np.repeat(ends, [d, d * (d - 1) // 2, d, 1], axis=0)[: sum(self._blocks)].T
        deviations = np.asarray(self.noise.standard_deviations)
        columns = [*values.T, values[:, :d].sum(axis=1)]
        names = [f"{name}: " for name in (*self._columns.names, "the covariates' squares together")]
        every = np.append(deviations, math.sqrt(d) * deviations[0])
        laws = zip(n * np.append(lower, 0.0), n * np.append(upper, r**2), every, strict=True)
        sentences = implausible_numbers(columns, laws, 1.0, self.noise.depth, names)
        # Off-diagonals scaled by √2 give the noise of the matrix one variance, sd², in every direction v vᵀ (else at
        # most twice that). By a comparison of Gaussian processes, and their concentration, the least eigenvalue is
        # below −sd (√(2d) + t) with probability at most exp(−t²/2).
        least = np.linalg.eigvalsh(unpacked(values[:, : self._blocks[0]], d, self.off_diagonal))[:, 0]
        root = math.sqrt(2.0) / OFF_DIAGONALS[self.off_diagonal]
        bound = -deviations[0] * root * (math.sqrt(2 * d) + math.sqrt(2 * math.log(len(values) / FALSE_REPORT_LEVEL)))
        if (least < bound).any():
            sentences.append(f"the matrix of second moments has an eigenvalue {least.min():.4g}, below {bound:.4g}")
        return sentences


@registered(
    "linear_statistics", "Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y, y²], or on its sum over records."
)
class LinearStatisticsMechanism(StatisticsMechanism):
    """Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y, y²], or on its sum over records ([KJKH] sec. 3.1.1).

    Here x_j and x_k are two covariates (j < k). In the local model, a released value is t with noise, or the sum of
    `count` such values. In the central model, it is a sum to which noise was added once. `randomize` takes results of
    `statistics`, or their sums. The noise is the least for `ldpbayes.privacy.linear_sensitivity`. The attribute
    `standard_deviation` is that of the first statistic of a record (in the central model, of the sum).

    Parameters
    ----------
    epsilon, delta : float
        Privacy target: epsilon in nats, positive and finite, and delta in (0, 1).
    radius, response_bound, columns, clip
        As in `LinearRecordsMechanism`.
    ratios : sequence of float
        Ratios of the standard deviations of the noise in products of covariates, covariates times response, and squared
        response. Default: R² : R R_y : R_y², where R is `radius` and R_y is `response_bound`; [KJKH] has equal ones.
    off_diagonal : {"scaled", "once"}
        s = √2 (default), or 1. With √2, the noise in x_j x_k has half the variance, under the same guarantee.
    trust_model : {"local", "central"}
        "local": the statistics of every record get noise (default). "central": a curator adds noise to their sum.
    count : int, optional
        Number of records in a released sum. Default: 1 in the local model, and unknown in the central model.
    """


@registered(
    "logistic_statistics", "Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y] with y in {−1, 1}, or on its sum."
)
class LogisticStatisticsMechanism(StatisticsMechanism):
    """Gaussian noise on t(x, y) = [x_j², s x_j x_k, x_j y] with y in {−1, 1}, or on its sum ([KJKH] sec. 3.1.2).

    A logistic log-likelihood that is expanded to second order depends on the data only through these statistics
    ([HAB]). Labels are 0 and 1, or −1 and 1. `LinearStatisticsMechanism` describes the parameters; the default `ratios`
    are R² : R.
    """

    response_bound: ClassVar[float] = 1.0  # type: ignore[misc]  # of a label, −1 or 1
    _labels = True


def projected(x: Array, radius: Array) -> Array:
    """Covariates (*batch, d), those outside the ball drawn back to its surface; NumPy in, NumPy out."""
    xp = np if is_concrete(x, radius) else jnp
    square = xp.sum(x * x, axis=-1, keepdims=True)
    outside = square > radius**2
    return x * xp.where(outside, radius / xp.sqrt(xp.where(outside, square, 1.0)), 1.0)


def signs(y: Array) -> Array:
    """Labels 0 and 1 (or −1 and 1) as −1 and 1; ValueError for other concrete values."""
    xp = np if is_concrete(y) else jnp
    if xp is np and not (np.isin(y, (0, 1)).all() or np.isin(y, (-1, 1)).all()):
        raise ValueError(f"labels must be 0 and 1 (or -1 and 1), got {np.unique(y)[:5].tolist()}")
    return xp.where(y > 0, 1.0, -1.0).astype(y.dtype)
