"""Gaussian noise on a record's covariates, randomized response on its label."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._pytree import static, unchecked
from ldpbayes._tracing import array_of, is_concrete
from ldpbayes.mechanisms._ball import checked_regression_columns, projected, rows_in_ball, signs
from ldpbayes.mechanisms._columns import Columns
from ldpbayes.mechanisms._mechanism import NumericMechanism
from ldpbayes.mechanisms._plausibility import implausible_numbers
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import Gaussian
from ldpbayes.privacy import (
    GaussianTradeoff,
    GaussianWithResponseTradeoff,
    Guarantee,
    PureProtocolTradeoff,
    WorstTradeoff,
    gaussian_beside_response,
)

__all__ = ["LogisticRecordsMechanism"]


@register("logistic_records")
@dataclasses.dataclass(frozen=True)
class LogisticRecordsMechanism(NumericMechanism):
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
    radius : float
        Largest Euclidean norm of the covariates of a record, in their unit. Choose it without looking at the data.
    columns : int or sequence of str
        How many columns a row has, or what they are called; the label is the last.
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

    epsilon: Any
    delta: Any
    radius: Any
    columns: Any = static()
    split: Any = 0.5
    clip: bool = static(default=False)
    scale: Any = dataclasses.field(init=False)

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
    def response_epsilon(self) -> Any:
        """Budget of the label's randomized response."""
        return self.epsilon * self.split

    @property
    def noise(self) -> Gaussian:
        """Of the covariates."""
        return unchecked(Gaussian, self.scale)

    @property
    def resolution(self) -> Any:
        """The standard deviation of the noise in a covariate."""
        return self.scale

    @property
    def released_range(self) -> None:
        """Rows are not compressed on panels."""
        return None

    def breakpoints(self, z: ArrayLike) -> Any:
        """None: normal densities are smooth."""
        return array_of(z)[..., None][..., :0]

    @property
    def index(self) -> tuple[int, ...]:
        """Positions of the covariates in a row."""
        return tuple(range(self._width - 1))

    @property
    def dimension(self) -> int:
        """Number of covariates."""
        return self._width - 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns: x0, x1, ... where they were not given any."""
        return Columns(self.columns, None).names

    @property
    def _width(self) -> int:
        return Columns(self.columns, None).width

    @property
    def event_shape(self) -> tuple[int, ...]:
        """(columns,)."""
        return (self._width,)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """As the released value's."""
        return self.event_shape

    @property
    def domain(self) -> constraints.Constraint:
        """Rows of numbers, of which the last is a label."""
        return constraints.real_vector

    @property
    def support(self) -> constraints.Constraint:
        """Rows of numbers, of which the last is a label."""
        return constraints.real_vector

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """See `Mechanism.randomize`; labels 0 and 1 (or −1 and 1), released as 0 and 1.

        Raises
        ------
        ValueError
            For covariates outside the ball where ``clip`` is False, and other labels, where they can be seen.
        """
        covariates, y = rows_in_ball(x, self.columns, self.radius, self.clip)
        y = (signs(y) > 0).astype(covariates.dtype)
        return self.simulate(key, jnp.concatenate([covariates, y[..., None]], axis=-1))

    def simulate(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """See `Mechanism.simulate`."""
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
        """See `Mechanism.log_prob`; the reference measure counts labels."""
        z, x = jnp.asarray(z), jnp.asarray(x)
        noise = self.noise.log_prob(z[..., :-1] - self._clipped(x))
        epsilon = jnp.asarray(self.response_epsilon)
        return noise + jax.nn.log_sigmoid(jnp.where(z[..., -1] == x[..., -1], epsilon, -epsilon))

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """See `Mechanism.moments`."""
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
        """The curve of two records that differ in one covariate only, or only in the label, whichever is worse."""
        response = self.response_epsilon
        label = PureProtocolTradeoff(response, 1 / (1 + np.exp(-response)))
        tradeoff = WorstTradeoff([GaussianTradeoff(2 * self.radius / self.scale), label])
        return Guarantee(tradeoff, unit="attribute", stated_delta=self.delta)

    def validated(self, values: ArrayLike) -> np.ndarray:
        """See `Mechanism.validated`; a data frame's columns are taken by their names, where there are some."""
        return super().validated(Columns(self.columns, None).in_order(values))

    def _validated(self, values: np.ndarray) -> np.ndarray:
        wrong = ~np.isin(values[:, -1], (0, 1))
        if wrong.any():
            raise ValueError(
                f"the last column holds released labels, 0 or 1; {wrong.sum()} of these are not, the first "
                f"({values[wrong][0, -1]:g}) at {np.argmax(wrong)}"
            )
        return values.astype(float) if values.dtype.kind != "f" else values

    def implausible(self, values: np.ndarray) -> list[str]:
        """Numbers too far outside the ball, or too few; see `Mechanism.implausible`."""
        said = []
        for j in self.index:
            bounds = -self.radius, self.radius
            problems = implausible_numbers(values[:, j], *bounds, self.scale, 1.0, self.noise.depth, self.dimension)
            said += [f"column {self.names[j]}: {what}" for what in problems]
        return said
