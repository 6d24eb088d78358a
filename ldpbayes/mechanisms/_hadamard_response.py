"""Hadamard response: release a column of a Hadamard matrix."""

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

__all__ = ["HadamardResponse"]

MOST_PAIRS = 1 << 24  # pairs of a column and a category up to which `implausible` looks at them all


@register("hadamard_response")
@dataclasses.dataclass(frozen=True)
class HadamardResponse(PureProtocol):
    """Release a column of a Hadamard matrix, exp(epsilon) times likelier where the row of x has a one.

    This is [ASZ], Algorithm 1, for high privacy: K is the smallest power of two above the number of categories, z is in
    0, ..., K - 1, and x is in S(z) where the binary numbers x + 1 and z share an even number of ones. For epsilon well
    above 1 `SubsetSelection` and `LocalHashing` lose less.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive; an array holds personal budgets, one a record. An infinite budget
        leaves z uniform over the K/2 columns that x has a one in.
    categories : int
        Number of categories, at least 2. Records are the codes 0, ..., categories - 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    epsilon: Any
    categories: int = static()

    def __post_init__(self) -> None:
        self._check_budget_and_categories()

    @property
    def columns(self) -> int:
        """K, the number of values that can be released."""
        return 1 << self.categories.bit_length()

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw z; codes outside 0, ..., categories - 1 raise ValueError where they can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler.
        """
        row = self._codes(x).astype(jnp.int32) + 1
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        shape = jnp.broadcast_shapes(row.shape, epsilon.shape)
        key_column, key_side = jax.random.split(key)
        column = jax.random.randint(key_column, shape, 0, self.columns)
        wanted = jax.random.uniform(key_side, shape, epsilon.dtype) < jax.nn.sigmoid(epsilon)
        # the columns with a one in row x + 1 are mapped onto the others by flipping the lowest bit that x + 1 has
        return jnp.where(_even_parity(row & column) == wanted, column, column ^ (row & -row))

    def _support_counts(self, values: np.ndarray) -> np.ndarray | None:
        if self.columns * self.categories > MOST_PAIRS:
            return None
        rows = np.arange(1, self.categories + 1)
        ones = np.bitwise_count(np.arange(self.columns)[:, None] & rows) % 2 == 0
        return np.bincount(values, minlength=self.columns) @ ones

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Whether row x + 1 of the matrix has a one in column z; see `PureProtocol.supports`."""
        return _even_parity(jnp.asarray(z).astype(jnp.int32) & (jnp.asarray(x).astype(jnp.int32) + 1))

    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log of 2 / (K (1 + exp(-epsilon))); see `PureProtocol.log_supported`."""
        epsilon = jnp.asarray(self.epsilon, jnp.result_type(float))
        constant = np.log(2 / self.columns).item() - jax.nn.softplus(-epsilon)
        return jnp.broadcast_to(constant, jnp.broadcast_shapes(jnp.shape(z), epsilon.shape))

    @property
    def support_probabilities(self) -> tuple[Any, Any]:
        """1 / (1 + exp(-epsilon)), and one half: two rows agree in half of the columns."""
        return 1 / (1 + self._keep), 0.5 + 0 * self._keep

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        # with three categories or more, one of the first three rows has a one in any column
        if self.categories == 2:
            self._check_possible(values != 3, "a column that a category has a one in")
        return values

    @property
    def separation(self) -> Any:
        """Half of the first of `support_probabilities`; see `PureProtocol.separation`."""
        return self.support_probabilities[0] / 2

    @property
    def support(self) -> constraints.Constraint:
        """The columns 0, ..., K - 1."""
        return constraints.integer_interval(0, self.columns - 1)


def _even_parity(bits: jax.Array) -> jax.Array:
    return jax.lax.population_count(bits) % 2 == 0
