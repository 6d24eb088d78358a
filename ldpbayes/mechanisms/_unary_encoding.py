"""Unary encodings: perturb each bit of the one-hot code of the category on its own."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import static
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._bit_vectors import BitVectorProtocol, row_sums
from ldpbayes.mechanisms._registry import register

__all__ = ["OptimalUnaryEncoding", "SymmetricUnaryEncoding"]


class _UnaryEncoding(BitVectorProtocol):
    """Each bit of the one-hot code of x is perturbed on its own: 1 stays with probability p, 0 becomes 1 with q."""

    _independent_bits: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def _log_odds(self) -> tuple[Any, Any]:
        """Logits of p and of q in the shape of the budget; minus or plus infinity at an infinite budget."""

    def __post_init__(self) -> None:
        self._check_budget_and_categories()

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw the bits; codes outside 0, ..., categories - 1 raise ValueError where they can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler, such as OpenDP's.
        """
        x = self._codes(x)
        own, other = (jax.nn.sigmoid(a)[..., None] for a in self._log_odds)
        shape = jnp.broadcast_shapes(x.shape, jnp.shape(self.epsilon)) + self.event_shape
        probability = jnp.where(x[..., None] == jnp.arange(self.categories), own, other)
        return (jax.random.uniform(key, shape, probability.dtype) < probability).astype(jnp.uint8)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log of p times the probabilities of the other bits, when x is one of those set."""
        own, other = self._log_odds
        ones = row_sums(z).astype(other.dtype) - 1
        zeros = self.categories - 1 - ones
        # at an infinite budget q = 0: with one bit set, 0 log 0 is 0; with none or several, the value is impossible
        exact = jnp.isinf(other)
        log_q = jnp.where(exact & (ones != 0), -jnp.inf, -ones * jax.nn.softplus(-jnp.where(exact, 0.0, other)))
        return -jax.nn.softplus(-own) + log_q - zeros * jax.nn.softplus(other)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        if is_concrete(self.epsilon) and np.any(np.isinf(self.epsilon)):
            self._check_possible(row_sums(values) == 1, "it is, with one bit set")
        return values

    @property
    def support_probabilities(self) -> tuple[Any, Any]:
        """The probabilities p and q; see `PureProtocol.support_probabilities`."""
        with jax.enable_x64(True):
            p, q = (np.asarray(jax.nn.sigmoid(a), float)[()] for a in self._log_odds)
        return p, q

    @property
    def separation(self) -> Any:
        """Return p (1 - q); see `PureProtocol.separation`."""
        p, q = self.support_probabilities
        return p * (1 - q)


@register("optimal_unary_encoding")
@dataclasses.dataclass(frozen=True)
class OptimalUnaryEncoding(_UnaryEncoding):
    """Unary encoding with p = 1/2 and q = 1 / (exp(epsilon) + 1) (OUE).

    See [WBLJ] sec. 4.2 and [KJKH] eq. 9, whose q and p are p and 1 - q here.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. A record of infinite
        budget is released as it is: p = 1, q = 0.
    categories : int
        Number of categories, at least 2. Records are the codes 0, ..., categories - 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    epsilon: Any
    categories: int = static()

    @property
    def _log_odds(self) -> tuple[jax.Array, jax.Array]:
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        return jnp.where(jnp.isinf(epsilon), jnp.inf, 0.0), -epsilon


@register("symmetric_unary_encoding")
@dataclasses.dataclass(frozen=True)
class SymmetricUnaryEncoding(_UnaryEncoding):
    """Unary encoding with p = 1 - q = 1 / (1 + exp(-epsilon / 2)) (SUE): the permanent response of basic RAPPOR.

    See [EPK], whose f is 2 q, and [WBLJ] sec. 4.2.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. A record of infinite
        budget is released as it is.
    categories : int
        Number of categories, at least 2. Records are the codes 0, ..., categories - 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    epsilon: Any
    categories: int = static()

    @property
    def _log_odds(self) -> tuple[jax.Array, jax.Array]:
        half = jnp.asarray(self.epsilon, jnp.result_type(float)) / 2
        return half, -half
