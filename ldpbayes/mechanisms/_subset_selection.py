"""Subset selection: release a set of categories of fixed size, which rather holds the own one than not."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._checks import at_least
from ldpbayes._pytree import static
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._bit_vectors import BitVectorProtocol, row_sums
from ldpbayes.mechanisms._registry import register

__all__ = ["SubsetSelection"]


@register("subset_selection")
@dataclasses.dataclass(frozen=True)
class SubsetSelection(BitVectorProtocol):
    """Release a random set of w categories, exp(epsilon) times likelier if it holds x.

    See [YB] and [WHNWXY].

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. An infinite budget
        leaves a set that holds x for certain.
    categories : int
        Number of categories d, at least 2. Records are the codes 0, ..., d - 1.
    subset_size : int, optional
        Size w of the set, from 1 to d - 1. Default: of the two integers around d / (exp(epsilon) + 1) the one whose
        frequency estimates have the smaller variance; with personal budgets it must be given.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the size is left out with personal budgets.
    """

    epsilon: Any
    categories: int = static()
    subset_size: int = static(default=None)  # None until it is made

    def __post_init__(self) -> None:
        self._check_budget_and_categories()
        size = self._optimal_size() if self.subset_size is None else self.subset_size
        object.__setattr__(self, "subset_size", at_least(1, "subset_size", size, self.categories - 1))

    def _optimal_size(self) -> int:
        if not is_concrete(self.epsilon) or np.ndim(self.epsilon):
            raise ValueError("subset_size must be given where epsilon is an array or traced")
        d, around = self.categories, self.categories * float(self._keep / (1 + self._keep))
        sizes = np.clip([np.floor(around), np.ceil(around)], 1, d - 1).astype(int)

        def variance(w: int) -> Any:
            """Of the estimate of a frequency near zero, times the number of records."""
            p, q = _subset_probabilities(d, w, self._keep)
            return q * (1 - q) / (p - q) ** 2

        return int(min(sizes, key=variance))

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw the set as bits; codes outside 0, ..., d - 1 raise ValueError where they can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler.
        """
        x = self._codes(x)
        d, w = self.categories, self.subset_size
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        shape = jnp.broadcast_shapes(x.shape, epsilon.shape)
        key_own, key_others = jax.random.split(key)
        held = jax.random.uniform(key_own, shape, epsilon.dtype) < jax.nn.sigmoid(epsilon + np.log(w / (d - w)).item())
        # the set is the first w categories of an order: x is first or last in it, the others are shuffled
        order = jax.random.uniform(key_others, (*shape, d), epsilon.dtype)
        own = x[..., None] == jnp.arange(d)
        order = jnp.where(own, jnp.where(held, -1.0, 2.0)[..., None], order)
        rank = jnp.argsort(jnp.argsort(order, axis=-1), axis=-1)
        return (rank < w).astype(jnp.uint8)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log probability of a set that holds x; see `PureProtocol.log_supported`."""
        d, w = self.categories, self.subset_size
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        # C(d - 1, w - 1) sets hold x and C(d - 1, w) do not
        log_sets = float(np.sum(np.log(np.arange(d - w + 1, d)) - np.log(np.arange(1, w))))
        constant = -log_sets - jax.nn.softplus(np.log((d - w) / w).item() - epsilon)
        return jnp.broadcast_to(constant, jnp.broadcast_shapes(jnp.shape(z)[:-1], epsilon.shape))

    @property
    def support_probabilities(self) -> tuple[Any, Any]:
        """P(k in S(z) | x) for k = x and k other than x; see `PureProtocol.support_probabilities`."""
        return _subset_probabilities(self.categories, self.subset_size, self._keep)

    @property
    def separation(self) -> Any:
        """P(x in S(z), x' not in S(z) | x); see `PureProtocol.separation`."""
        d, w = self.categories, self.subset_size
        return self.support_probabilities[0] * (d - w) / (d - 1)

    @property
    def support(self) -> constraints.Constraint:
        """Zeros and ones, w of them ones."""
        return _SizedSubset(self.subset_size)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        wrong = row_sums(values) != self.subset_size
        if wrong.any():
            row = np.argmax(wrong)
            raise ValueError(
                f"SubsetSelection releases sets of {self.subset_size} categories; {wrong.sum()} of {len(values)} rows "
                f"have another size, the first ({row_sums(values[row])}) at {row}"
            )
        return values


def _subset_probabilities(d: int, w: int, keep: Any) -> tuple[Any, Any]:
    p = w / (w + (d - w) * keep)
    return p, (p * (w - 1) + (1 - p) * w) / (d - 1)


class _SizedSubset(constraints.Constraint):
    """Bit vectors with a given number of ones."""

    is_discrete = True
    event_dim = 1

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, z: Any) -> Any:
        bits = (z == 0) | (z == 1)
        return bits.all(axis=-1) & ((z != 0).sum(axis=-1) == self.size)

    def feasible_like(self, prototype: jax.Array) -> jax.Array:
        """The first ``size`` categories."""
        return jnp.broadcast_to(jnp.arange(prototype.shape[-1]) < self.size, prototype.shape).astype(prototype.dtype)

    def tree_flatten(self) -> tuple:
        """Nothing is traced."""
        return (), ((), {"size": self.size})

    def eq(self, other: object, static: bool = False) -> bool:
        """Whether the sizes are the same."""
        return isinstance(other, _SizedSubset) and self.size == other.size

    __eq__ = eq
    __hash__ = None  # type: ignore[assignment]
