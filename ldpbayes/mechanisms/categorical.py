"""Mechanisms for categories that release a category: k-ary randomized response."""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes.mechanisms.mechanism import Mechanism, _concrete, register
from ldpbayes.privacy import Guarantee, RandomizedResponseTradeoff
from ldpbayes.privacy.tradeoff import checked

__all__ = ["RandomizedResponse"]


@register("randomized_response")
@dataclasses.dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Keep the category with probability p = exp(epsilon) q, else release one of the others, each with probability q.

    q = 1 / (exp(epsilon) + categories - 1): Warner (1965) for two categories, Kairouz, Bonawitz & Ramage (2016,
    "Discrete distribution estimation under local privacy") for more.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive and finite; an array holds personal budgets, one a record.
    categories : int
        Number of categories k, at least 2. Records are the codes 0, ..., k - 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    epsilon: Any
    categories: int = dataclasses.field(default=2, metadata={"static": True})

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        try:
            k = 0 if isinstance(self.categories, (bool, np.bool_)) else operator.index(self.categories)
        except TypeError:
            k = 0
        if k < 2:
            raise ValueError(f"categories must be an integer of at least 2, got {self.categories!r}")
        object.__setattr__(self, "categories", k)

    def _log_flip_odds(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Epsilon and log((k - 1) q / p) = log(k - 1) - epsilon, in the floating dtype of the data."""
        epsilon = jnp.asarray(self.epsilon, dtype)
        return epsilon, float(np.log(self.categories - 1)) - epsilon

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Keep or replace each code; codes outside 0, ..., k - 1 raise ValueError where they can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler, such as OpenDP's.
        The result has the dtype of `x` (integers for booleans).
        """
        x = jnp.asarray(x)
        x = x.astype(int) if x.dtype == bool else x
        if _concrete(x):
            last = self.categories - 1
            checked("x", x, f"an integer from 0 to {last}", lambda a: (a >= 0) & (a <= last) & (a == np.floor(a)))
        _, log_odds = self._log_flip_odds(jnp.result_type(x, float))
        shape = jnp.broadcast_shapes(x.shape, log_odds.shape)
        key_flip, key_other = jax.random.split(key)
        flip = jax.random.uniform(key_flip, shape, log_odds.dtype) < jax.nn.sigmoid(log_odds)
        # one of the k - 1 other codes: skip over x
        other = jax.random.randint(key_other, shape, 0, self.categories - 1)
        other = other + (other >= x)
        return jnp.where(flip, other.astype(x.dtype), x)

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Log probability of z given x; codes may be integers or floats. See `Mechanism.log_prob`."""
        epsilon, log_odds = self._log_flip_odds(jnp.result_type(z, x, float))
        return -jax.nn.softplus(log_odds) - jnp.where(jnp.equal(z, x), 0, epsilon)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return the mean and the variance of the code z given x; see `Mechanism.moments`."""
        dtype = jnp.result_type(x, float)
        x, k = jnp.asarray(x, dtype), self.categories
        epsilon, log_odds = self._log_flip_odds(dtype)
        q = jnp.exp(-jax.nn.softplus(log_odds) - epsilon)
        # sums over all codes of z - x and (z - x)^2: centred at x, so that nothing cancels when z = x nearly always
        first = k * (k - 1) / 2 - k * x
        second = (k - 1) * k * (2 * k - 1) / 6 - k * (k - 1) * x + k * x**2
        return x + q * first, q * second - (q * first) ** 2

    @property
    def domain(self) -> constraints.Constraint:
        """The codes 0, ..., k - 1."""
        return constraints.integer_interval(0, self.categories - 1)

    @property
    def support(self) -> constraints.Constraint:
        """The codes 0, ..., k - 1."""
        return constraints.integer_interval(0, self.categories - 1)

    @property
    def guarantee(self) -> Guarantee:
        """Pure local differential privacy, with the trade-off curve of any two categories."""
        return Guarantee(RandomizedResponseTradeoff(self.epsilon, self.categories))
