"""Discrete Gaussian noise: integers, independent in every column."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ldpbayes._pytree import pytree
from ldpbayes._tracing import is_concrete
from ldpbayes.noise._discrete_laplace import DiscreteLaplace, integer_distances
from ldpbayes.noise._noise import Noise
from ldpbayes.numerics._theta import log_theta, theta_variance
from ldpbayes.privacy import DiscreteGaussianRowsTradeoff, DiscreteGaussianTradeoff, Tradeoff
from ldpbayes.privacy._discrete import gaussian_log_tail

__all__ = ["DiscreteGaussian"]


@pytree
@dataclasses.dataclass(frozen=True)
class DiscreteGaussian(Noise):
    """P(k) ∝ exp(−k²/(2 scale²)) on the integers, in every column, independently.

    Source: [CKS] Definition 1. The scale is that of OpenDP; the standard deviation is nearly the same, and much less
    where the scale is well below 1.

    Parameters
    ----------
    scale : array_like
        Positive and finite; a number, or one a record.

    Raises
    ------
    ValueError
        If the scale is out of range.
    """

    scale: Any

    discrete: ClassVar[bool] = True
    linear_tails: ClassVar[bool] = False
    kinks: ClassVar[tuple[float, ...]] = ()
    norm: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self._check("scale", "positive and finite", lambda a: (a > 0) & (a < np.inf))

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw integers, in a floating-point type; see `Noise.sample`.

        By rejection from discrete Laplace noise of scale t = ⌊scale⌋ + 1, k being accepted with probability
        exp(−(|k| − scale²/t)²/(2 scale²)) ([CKS] Algorithm 3); about one half is.
        """
        best = jnp.promote_types(dtype, jnp.result_type(float))
        scale = lax.stop_gradient(jnp.asarray(self.scale, best))[..., None]
        proposal = DiscreteLaplace(jnp.floor(scale) + 1)

        def again(state: tuple) -> tuple:
            key, drawn, done = state
            key, proposing, accepting = jax.random.split(key, 3)
            k = proposal.sample(proposing, (*shape, 1), best)[..., 0]
            above = (jnp.abs(k) - scale * (scale / proposal.scale)) / scale
            accepted = jax.random.exponential(accepting, shape, best) >= above**2 / 2
            return key, jnp.where(done, drawn, k), done | accepted

        start = (key, jnp.zeros(shape, best), jnp.zeros(shape, bool))
        return lax.while_loop(lambda state: ~jnp.all(state[2]), again, start)[1].astype(dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log probability, −inf where a column is no integer; see `Noise.log_prob`."""
        scale = jnp.asarray(self.scale)[..., None]
        log_prob = -((value / scale) ** 2) / 2 - log_theta(jnp, scale)
        return jnp.sum(jnp.where(value == jnp.round(value), log_prob, -jnp.inf), axis=-1)

    @property
    def standard_deviation(self) -> Any:
        """Of the law, exactly; 0 where the probability of all integers but 0 underflows."""
        xp = np if is_concrete(self.scale) else jnp
        return xp.sqrt(theta_variance(xp, self.scale))

    @property
    def resolution(self) -> Any:
        """The scale."""
        return self.scale

    @property
    def reach(self) -> Any:
        """12.25 scales: 2 exp(−12.25²/2) is 5e-33."""
        return 12.25 * self.scale

    def depth(self, distance: np.ndarray) -> np.ndarray:
        """See `Noise.depth`."""
        with np.errstate(invalid="ignore"):
            away = np.multiply(distance, self.standard_deviation) * (1 + 1e-12)
        # where the standard deviation underflows nothing more is known of a distance than that it is one
        beyond = np.floor(np.where(np.isnan(away), 0.0, away)) + 1
        return -gaussian_log_tail(beyond, self.scale) / math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The curve of inputs apart in one column; in several, that of the worst rows as far apart in Euclidean norm.

        Parameters
        ----------
        distance : array (*batch, columns)
            How far apart the inputs are, column by column: integers, one of them not 0.

        Raises
        ------
        ValueError
            If a distance is no integer, or all are 0.
        """
        apart, alone = integer_distances(distance)
        if alone:
            return DiscreteGaussianTradeoff(self.scale, apart)
        return DiscreteGaussianRowsTradeoff(self.scale, np.linalg.norm(distance, axis=-1), np.shape(distance)[-1])

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        """The curve of the worst integer vector: it may be one over several columns; see `Noise.tradeoff_within`."""
        if columns == 1 or sensitivity == 1:
            return DiscreteGaussianTradeoff(self.scale, sensitivity)
        return DiscreteGaussianRowsTradeoff(self.scale, sensitivity, columns)
