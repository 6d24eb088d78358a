"""Gaussian noise on a record of covariates and a numeric response."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import static, unchecked
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._additive import Additive
from ldpbayes.mechanisms._ball import checked_regression_columns, projected, responses_in_range, rows_in_ball
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import IndependentGaussian
from ldpbayes.privacy import GaussianTradeoff, Guarantee, gaussian_scale

__all__ = ["LinearRecordsMechanism"]


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
        How many columns a row has, or what they are called; the response is the last.
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

    epsilon: Any
    delta: Any
    radius: Any
    response_bound: Any
    columns: Any = static()
    split: Any = 0.5
    clip: bool = static(default=False)
    scale: Any = dataclasses.field(init=False)

    perturbed = None
    sensitivity = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", checked_regression_columns(self.columns))
        object.__setattr__(self, "clip", bool(self.clip))
        for name in ("epsilon", "radius", "response_bound"):
            self._check(name, "positive and finite", lambda a: (a > 0) & (a < np.inf))
        for name in ("delta", "split"):
            self._check(name, "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
        if not is_concrete(self.epsilon, self.delta):
            raise ValueError("epsilon and delta must be concrete; make the mechanism outside the traced function")
        object.__setattr__(self, "scale", gaussian_scale(self.epsilon, self.delta))

    @property
    def noise(self) -> IndependentGaussian:  # type: ignore[override]
        """The same in all covariates, another in the response."""
        xp: Any = np if is_concrete(self.scale, self.split, self.radius, self.response_bound) else jnp
        covariate = 2 * self.radius * self.scale / xp.sqrt(1 - self.split)
        response = 2 * self.response_bound * self.scale / xp.sqrt(self.split)
        covariate, response = xp.broadcast_arrays(covariate, response)
        each = xp.stack([covariate] * (self.dimension - 1) + [response], axis=-1)
        return unchecked(IndependentGaussian, each)

    @property
    def _far(self) -> Any:
        xp: Any = np if is_concrete(self.radius, self.response_bound) else jnp
        return xp.stack([self.radius] * (self.dimension - 1) + [self.response_bound], axis=-1)

    @property
    def lower(self) -> Any:  # type: ignore[override]
        """Of each column: the smallest that it can be, whatever the others are."""
        return -self._far

    @property
    def upper(self) -> Any:  # type: ignore[override]
        """Of each column: the largest that it can be."""
        return self._far

    def _clip(self, part: jax.Array) -> jax.Array:
        if not self.clip:
            return part
        y = jnp.clip(part[..., -1:], -self.response_bound, self.response_bound)
        return jnp.concatenate([projected(part[..., :-1], self.radius), y], axis=-1)

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Add noise to rows; see `Additive.randomize`.

        Raises
        ------
        ValueError
            For records outside the ball or the range where ``clip`` is False and they can be seen.
        """
        covariates, y = rows_in_ball(x, self.columns, self.radius, self.clip)
        y = responses_in_range(y, self.response_bound, self.clip)
        return self.simulate(key, jnp.concatenate([covariates, y[..., None]], axis=-1))

    def simulate(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """See `Mechanism.simulate`."""
        return super().randomize(key, x)

    @property
    def guarantee(self) -> Guarantee:
        """The curve of two records that differ in all covariates and in the response."""
        return Guarantee(GaussianTradeoff(1 / np.asarray(self.scale)[()]), stated_delta=self.delta)

    @property
    def attribute_guarantee(self) -> Guarantee:
        """The curve of two records that differ in the response only, or only in a covariate, whichever is worse."""
        share = np.sqrt(np.maximum(self.split, 1 - np.asarray(self.split)))
        return Guarantee(GaussianTradeoff((share / self.scale)[()]), unit="attribute", stated_delta=self.delta)
