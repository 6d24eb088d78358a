"""Records of a regression, released one by one."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.pytrees import static, unchecked
from ldpbayes._core.tracing import array_of, is_concrete
from ldpbayes._core.types import Array
from ldpbayes.mechanisms.additive import Additive, Columns, Columnwise, checked_columns
from ldpbayes.mechanisms.plausibility import implausible_columns
from ldpbayes.mechanisms.protocol import NumericMechanism
from ldpbayes.mechanisms.registry import register
from ldpbayes.noise import Gaussian, IndependentGaussian
from ldpbayes.privacy import GaussianTradeoff, Guarantee, gaussian_scale
from ldpbayes.privacy.calibration import GaussianWithResponseTradeoff, gaussian_beside_response
from ldpbayes.privacy.tradeoffs import PureProtocolTradeoff, WorstTradeoff


@register("linear_records")
@dataclasses.dataclass(frozen=True)
class LinearRecordsMechanism(Additive):
    """Gaussian noise on covariates x in a ball and on a response y in its range ([KJKH] sec. 3.2.3 and 12.1).

    Covariates and response have noise of different scales, and share one budget: with μ the Gaussian parameter of
    (epsilon, delta), exactly, the response has μ √c and the covariates μ √(1 − c), for a split c. Two records may
    differ by 2 radius in x and by 2 response_bound in y, at once, so that the pair is (epsilon, delta)-private and no
    less noise would do.

    Parameters
    ----------
    epsilon : array_like
        Positive and finite; an array holds personal budgets, one a record.
    delta : array_like
        Between 0 and 1, exclusive.
    radius : float
        Largest Euclidean norm of the covariates of a record, in their unit. Choose it without looking at the data.
    response_bound : float
        Largest absolute value of a response.
    columns : int or sequence of str
        The number of columns of a row, or their names; the response is the last.
    split : float
        Share c of the budget (of μ²) that goes to the response, between 0 and 1, exclusive.
    clip : bool
        Whether records outside the ball or the range are clipped; if not, they are refused.

    Attributes
    ----------
    scale : float or ndarray
        Standard deviation of the noise, per unit of sensitivity, that the whole budget would need: 1/μ.

    Raises
    ------
    ValueError
        If a parameter is out of range, or epsilon or delta is being traced: calibration solves an equation on the host.
    """

    epsilon: Array
    delta: Array
    radius: Array
    response_bound: Array
    columns: Any = static()
    split: Array = 0.5
    clip: bool = static(default=False)
    scale: Array = dataclasses.field(init=False)

    perturbed = None
    sensitivity = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", checked_regression_columns(self.columns))
        object.__setattr__(self, "clip", bool(self.clip))
        self._check_positive("epsilon", "radius", "response_bound")
        self._check_probability("delta", "split")
        if not is_concrete(self.epsilon, self.delta):
            raise ValueError("epsilon and delta must be concrete; make the mechanism outside the traced function")
        object.__setattr__(self, "scale", gaussian_scale(self.epsilon, self.delta))

    @property
    def noise(self) -> IndependentGaussian:  # type: ignore[override]
        """Of one standard deviation in all covariates and of another in the response."""
        xp: Any = np if is_concrete(self.scale, self.split, self.radius, self.response_bound) else jnp
        covariate = 2 * self.radius * self.scale / xp.sqrt(1 - self.split)
        response = 2 * self.response_bound * self.scale / xp.sqrt(self.split)
        covariate, response = xp.broadcast_arrays(covariate, response)
        each = xp.stack([covariate] * (self.dimension - 1) + [response], axis=-1)
        return unchecked(IndependentGaussian, each)

    @property
    def _largest(self) -> Array:
        """Largest absolute value of each column."""
        xp: Any = np if is_concrete(self.radius, self.response_bound) else jnp
        return xp.stack([self.radius] * (self.dimension - 1) + [self.response_bound], axis=-1)

    @property
    def lower(self) -> Array:  # type: ignore[override]
        """Of each column: its smallest value, for any values of the others."""
        return -self._largest

    @property
    def upper(self) -> Array:  # type: ignore[override]
        return self._largest

    def _clip(self, part: jax.Array) -> jax.Array:
        if not self.clip:
            return part
        y = jnp.clip(part[..., -1:], -self.response_bound, self.response_bound)
        return jnp.concatenate([projected(part[..., :-1], self.radius), y], axis=-1)

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Add noise; ValueError for concrete records outside the ball or the range, unless ``clip``."""
        covariates, y = rows_in_ball(x, self.columns, self.radius, self.clip)
        y = responses_in_range(y, self.response_bound, self.clip)
        return self.simulate(key, jnp.concatenate([covariates, y[..., None]], axis=-1))

    def simulate(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        return super().randomize(key, x)

    @property
    def guarantee(self) -> Guarantee:
        """The curve of two records that differ in all covariates and in the response."""
        return Guarantee(GaussianTradeoff(1 / np.asarray(self.scale)[()]), stated_delta=self.delta)

    @property
    def attribute_guarantee(self) -> Guarantee:
        """The curve of two records that differ in the response only, or in a covariate only, the worse of both."""
        share = np.sqrt(np.maximum(self.split, 1 - np.asarray(self.split)))
        return Guarantee(GaussianTradeoff((share / self.scale)[()]), unit="attribute", stated_delta=self.delta)


@register("logistic_records")
@dataclasses.dataclass(frozen=True)
class LogisticRecordsMechanism(Columnwise, NumericMechanism):
    """Gaussian noise on covariates in a ball, randomized response on a label ([KJKH] sec. 3.2.3 and 12.2).

    The label keeps split · epsilon by randomized response; the covariates get the least noise with which both together
    are (epsilon, delta)-private. That is less than the paper's, which composes (1 − split) · epsilon with the label's
    budget as if the worst outcomes of both coincided.

    Parameters
    ----------
    epsilon : float
        Positive and finite.
    delta : float
        Between 0 and 1, exclusive.
    radius, columns
        As for `LinearRecordsMechanism`; the label is the last column.
    split : float
        Share of epsilon that goes to the label, between 0 and 1, exclusive.
    clip : bool
        Whether covariates outside the ball are drawn back to it; if not, such records are refused.

    Attributes
    ----------
    scale : float
        Standard deviation of the noise in a covariate, in its unit.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a budget is being traced: calibration solves an equation on the host.
    """

    epsilon: Array
    delta: Array
    radius: Array
    columns: Any = static()
    split: Array = 0.5
    clip: bool = static(default=False)
    scale: Array = dataclasses.field(init=False)

    perturbed = None
    linear_tails = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", checked_regression_columns(self.columns))
        object.__setattr__(self, "clip", bool(self.clip))
        for name in ("epsilon", "radius"):
            self._check(name, "a positive and finite number", lambda a: (a > 0) & (a < np.inf) & (a.ndim == 0))
        for name in ("delta", "split"):
            self._check(name, "a number between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1) & (a.ndim == 0))
        if not is_concrete(self.epsilon, self.delta, self.split):
            raise ValueError("budget and split must be concrete; make the mechanism outside the traced function")
        apart = gaussian_beside_response(self.epsilon, self.delta, self.response_epsilon)
        object.__setattr__(self, "scale", 2 * self.radius / float(apart))

    @property
    def response_epsilon(self) -> Array:
        """Budget of the label's randomized response."""
        return self.epsilon * self.split

    @property
    def noise(self) -> Gaussian:
        """Of the covariates."""
        return unchecked(Gaussian, self.scale)

    @property
    def resolution(self) -> Array:
        return self.scale

    @property
    def released_range(self) -> None:
        """None: rows are not compressed on panels."""
        return None

    def breakpoints(self, z: ArrayLike) -> Array:
        return array_of(z)[..., None][..., :0]

    @property
    def _columns(self) -> Columns:
        """Of the covariates, which get noise."""
        columns = self.columns if isinstance(self.columns, tuple) else range(self.columns)
        return Columns(self.columns, tuple(columns[:-1]))

    @property
    def domain(self) -> constraints.Constraint:
        """Rows of numbers, of which the last is a label."""
        return constraints.real_vector

    support = domain

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Labels 0 and 1 (or −1 and 1) are released as 0 and 1; other concrete ones raise ValueError."""
        covariates, y = rows_in_ball(x, self.columns, self.radius, self.clip)
        y = (signs(y) > 0).astype(covariates.dtype)
        return self.simulate(key, jnp.concatenate([covariates, y[..., None]], axis=-1))

    def simulate(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        x = jnp.asarray(x)
        x = x.astype(jnp.result_type(x, float))
        keys = jax.random.split(key)
        covariates, y = self._clipped(x), x[..., -1]
        z = covariates + self.noise.sample(keys[0], covariates.shape, x.dtype)
        flip = jax.random.bernoulli(keys[1], jax.nn.sigmoid(-jnp.asarray(self.response_epsilon, x.dtype)), y.shape)
        return jnp.concatenate([z, jnp.where(flip, 1 - y, y)[..., None]], axis=-1)

    def _clipped(self, rows: jax.Array) -> jax.Array:
        return projected(rows[..., :-1], self.radius) if self.clip else rows[..., :-1]

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """The reference measure counts labels."""
        z, x = jnp.asarray(z), jnp.asarray(x)
        noise = self.noise.log_prob(z[..., :-1] - self._clipped(x))
        epsilon = jnp.asarray(self.response_epsilon)
        return noise + jax.nn.log_sigmoid(jnp.where(z[..., -1] == x[..., -1], epsilon, -epsilon))

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        x = jnp.asarray(x)
        flip = jax.nn.sigmoid(-jnp.asarray(self.response_epsilon))
        one = flip + (1 - 2 * flip) * x[..., -1:]
        variance = jnp.broadcast_to(jnp.asarray(self.scale) ** 2, x[..., :-1].shape)
        mean = jnp.concatenate([self._clipped(x), one], axis=-1)
        return mean, jnp.concatenate([variance, one * (1 - one)], axis=-1)

    @property
    def guarantee(self) -> Guarantee:
        """The exact curve of two records that differ in all covariates and in the label."""
        tradeoff = GaussianWithResponseTradeoff(2 * self.radius / self.scale, self.response_epsilon)
        return Guarantee(tradeoff, stated_delta=self.delta)

    @property
    def attribute_guarantee(self) -> Guarantee:
        """The curve of two records that differ in the label only, or in a covariate only, the worse of both."""
        response = self.response_epsilon
        label = PureProtocolTradeoff(response, 1 / (1 + np.exp(-response)))
        tradeoff = WorstTradeoff([GaussianTradeoff(2 * self.radius / self.scale), label])
        return Guarantee(tradeoff, unit="attribute", stated_delta=self.delta)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        wrong = ~np.isin(values[:, -1], (0, 1))
        if wrong.any():
            raise ValueError(
                f"the last column holds released labels, 0 or 1; {wrong.sum()} of these are not, the first "
                f"({values[wrong][0, -1]:g}) at {np.argmax(wrong)}"
            )
        return values.astype(float) if values.dtype.kind != "f" else values

    def implausible(self, values: np.ndarray) -> list[str]:
        """Numbers too far outside the ball, or too few."""
        d = self.dimension
        bounds, deviations = np.full(d, self.radius), np.full(d, self.scale)
        names = [f"column {name}" for name in self.names[:d]]
        return implausible_columns(names, values[:, :d].T, -bounds, bounds, deviations, 1.0, self.noise.depth)


ROUNDING = 1e-6  # relative: rows scaled to the radius in single precision may lie this far beyond it


def checked_regression_columns(columns: Any) -> Any:
    """Columns of rows (x, y) as they are kept; ValueError unless there are two at least, the response last."""
    kept, _ = checked_columns(columns, None)
    if kept.columns is None or kept.width < 2:
        raise ValueError(f"columns must be covariates and a response, two at least, the response last; got {columns!r}")
    return kept.columns


def projected(x: Array, radius: Array) -> Array:
    """Covariates (*batch, d), those outside the ball drawn back to its surface; NumPy in, NumPy out."""
    xp: Any = np if is_concrete(x, radius) else jnp
    square = xp.sum(x * x, axis=-1, keepdims=True)
    outside = square > radius**2
    return x * xp.where(outside, radius / xp.sqrt(xp.where(outside, square, 1.0)), 1.0)


def rows_in_ball(rows: Array, columns: Any, radius: Array, clip: bool) -> tuple[Array, Array]:
    """Covariates (*batch, d) inside the ball, and responses (*batch,) as they are, of rows or a data frame.

    With `clip`, covariates outside are drawn back to the ball's surface; else they are refused if they are concrete.
    ValueError also for rows of another width and missing values.
    """
    whole = Columns(columns, None)
    rows = whole.in_order(rows)
    rows = np.asarray(rows) if is_concrete(rows) else jnp.asarray(rows)
    rows = rows if rows.dtype.kind == "f" else rows.astype(float)
    if rows.ndim < 1 or rows.shape[-1] != whole.width:
        raise ValueError(f"rows must have {whole.width} columns, the response last; got an array of shape {rows.shape}")
    x, y = rows[..., :-1], rows[..., -1]
    if is_concrete(rows):
        if np.isnan(rows).any():
            raise ValueError(f"{int(np.isnan(rows).any(axis=-1).sum())} rows have missing values; drop or impute them")
        if not clip and is_concrete(radius):
            norms = np.linalg.norm(x, axis=-1)
            beyond = norms > radius * (1 + ROUNDING)
            if beyond.any():
                raise ValueError(
                    f"{int(beyond.sum())} of {beyond.size} rows have covariates of norm above radius = {radius:g}, the "
                    f"largest {norms.max():g}: scale them, or say clip=True to have them drawn back to the ball"
                )
    return projected(x, radius) if clip or is_concrete(rows) else x, y


def responses_in_range(y: Array, bound: Array, clip: bool) -> Array:
    """Responses between −bound and bound; others are clipped, or refused with ValueError if they are concrete."""
    if is_concrete(y, bound):
        beyond = np.abs(y) > bound * (1 + ROUNDING)
        if beyond.any() and not clip:
            raise ValueError(
                f"{int(beyond.sum())} of {beyond.size} responses lie beyond response_bound = {bound:g}, the largest in "
                f"absolute value {np.abs(y).max():g}: scale them, or say clip=True"
            )
        return np.clip(y, -bound, bound)
    return jnp.clip(y, -bound, bound) if clip else y


def signs(y: Array) -> Array:
    """Labels 0 and 1 (or −1 and 1) as −1 and 1; ValueError for other concrete values."""
    if is_concrete(y):
        zero_one, plus_minus = np.isin(y, (0, 1)), np.isin(y, (-1, 1))
        if not (zero_one.all() or plus_minus.all()):
            raise ValueError(f"labels must be 0 and 1 (or -1 and 1), got {np.unique(y)[:5].tolist()}")
        return np.where(y > 0, 1.0, -1.0).astype(y.dtype)
    return jnp.where(y > 0, 1.0, -1.0).astype(y.dtype)
