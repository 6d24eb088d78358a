"""Randomized response: keep the category, or release another one at random."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._pytree import static
from ldpbayes.mechanisms._pure_protocol import PureProtocol
from ldpbayes.mechanisms._registry import register

__all__ = ["RandomizedResponse"]


@register("randomized_response")
@dataclasses.dataclass(frozen=True)
class RandomizedResponse(PureProtocol):
    """Keep the category with probability p = exp(epsilon) q, else release one of the others, each with probability q.

    q = 1 / (exp(epsilon) + categories - 1): [Warner] for two categories, [KBR] for more. S(z) = {z}.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. A record of infinite
        budget is released as it is.
    categories : int
        Number of categories k, at least 2. Records are the codes 0, ..., k - 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    epsilon: Any
    categories: int = static(default=2)

    def __post_init__(self) -> None:
        self._check_budget_and_categories()

    def _log_flip_odds(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Epsilon and log((k - 1) q / p) = log(k - 1) - epsilon, in the floating dtype of the data."""
        epsilon = jnp.asarray(self.epsilon, dtype)
        return epsilon, float(np.log(self.categories - 1)) - epsilon

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Keep or replace each code; codes outside 0, ..., k - 1 raise ValueError where they can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler, such as OpenDP's.
        The result has the dtype of `x` where that holds all codes, and is of integers where it does not.
        """
        codes, dtype = self._codes(x), jnp.asarray(x).dtype
        if jnp.issubdtype(dtype, jnp.floating):
            exact = 2 / float(jnp.finfo(dtype).eps)
        else:
            exact = 0 if dtype.kind == "b" else jnp.iinfo(dtype).max
        released_dtype = dtype if self.categories - 1 <= exact else int
        _, log_odds = self._log_flip_odds(jnp.result_type(float))
        shape = jnp.broadcast_shapes(codes.shape, log_odds.shape)
        key_flip, key_other = jax.random.split(key)
        flip = jax.random.uniform(key_flip, shape, log_odds.dtype) < jax.nn.sigmoid(log_odds)
        # of the k - 1 other codes, those from the record's own on are one larger than what is drawn
        other = jax.random.randint(key_other, shape, 0, self.categories - 1)
        other = other + (other >= codes)
        return jnp.where(flip, other, codes).astype(released_dtype)

    def _support_counts(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(values, minlength=self.categories)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Whether z = x; see `PureProtocol.supports`."""
        return jnp.equal(z, x)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log p; see `PureProtocol.log_supported`."""
        _, log_odds = self._log_flip_odds(jnp.result_type(z, float))
        return jnp.broadcast_to(-jax.nn.softplus(log_odds), jnp.broadcast_shapes(jnp.shape(z), log_odds.shape))

    @property
    def support_probabilities(self) -> tuple[Any, Any]:
        """The probabilities p and q; see `PureProtocol.support_probabilities`."""
        p = 1 / (1 + (self.categories - 1) * self._keep)
        return p, p * self._keep

    @property
    def separation(self) -> Any:
        """The probability p; see `PureProtocol.separation`."""
        return self.support_probabilities[0]

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return the mean and the variance of the code z given x; see `Mechanism.moments`."""
        dtype = jnp.result_type(x, float)
        x, k = jnp.asarray(x, dtype), self.categories
        epsilon, log_odds = self._log_flip_odds(dtype)
        q = jnp.exp(-jax.nn.softplus(log_odds) - epsilon)
        # these are sums over all codes z of z - x and (z - x)^2; so centred, nothing cancels where z = x nearly always
        first = k * (k - 1) / 2 - k * x
        second = (k - 1) * k * (2 * k - 1) / 6 - k * (k - 1) * x + k * x**2
        return x + q * first, q * second - (q * first) ** 2

    @property
    def support(self) -> constraints.Constraint:
        """The codes 0, ..., k - 1."""
        return constraints.integer_interval(0, self.categories - 1)
