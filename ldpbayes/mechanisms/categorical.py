"""Mechanisms for categories that release one of a few labels: randomized response and Hadamard response."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes.mechanisms.mechanism import register
from ldpbayes.mechanisms.pure_protocol import PureProtocol

__all__ = ["HadamardResponse", "RandomizedResponse"]

MOST_PAIRS = 1 << 24  # of columns and categories up to which all are looked at


@register("randomized_response")
@dataclasses.dataclass(frozen=True)
class RandomizedResponse(PureProtocol):
    """Keep the category with probability p = exp(epsilon) q, else release one of the others, each with probability q.

    q = 1 / (exp(epsilon) + categories - 1): Warner (1965) for two categories, Kairouz, Bonawitz & Ramage (2016,
    "Discrete distribution estimation under local privacy") for more. S(z) = {z}.

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
    categories: int = dataclasses.field(default=2, metadata={"static": True})

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
            exact = 2 / jnp.finfo(dtype).eps
        else:
            exact = 0 if dtype.kind == "b" else jnp.iinfo(dtype).max
        dtype = dtype if self.categories - 1 <= exact else int
        _, log_odds = self._log_flip_odds(jnp.result_type(float))
        shape = jnp.broadcast_shapes(codes.shape, log_odds.shape)
        key_flip, key_other = jax.random.split(key)
        flip = jax.random.uniform(key_flip, shape, log_odds.dtype) < jax.nn.sigmoid(log_odds)
        # one of the k - 1 other codes: skip over the record's own
        other = jax.random.randint(key_other, shape, 0, self.categories - 1)
        other = other + (other >= codes)
        return jnp.where(flip, other, codes).astype(dtype)

    def _support_counts(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(values, minlength=self.categories)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Whether z = x; see `PureProtocol.supports`."""
        return jnp.equal(z, x)

    def supported_mass(self, z: ArrayLike, theta: ArrayLike, groups: ArrayLike | None = None) -> jax.Array:
        """Entry z of theta; see `PureProtocol.supported_mass`."""
        z, theta = jnp.asarray(z).astype(jnp.int32), jnp.asarray(theta)
        if groups is not None:
            return theta[jnp.asarray(groups), z]
        if theta.ndim == 1:
            return theta[z]
        batch = jnp.broadcast_shapes(z.shape, theta.shape[:-1])
        theta, z = jnp.broadcast_to(theta, (*batch, theta.shape[-1])), jnp.broadcast_to(z, batch)
        return jnp.take_along_axis(theta, z[..., None], axis=-1)[..., 0]

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
        # sums over all codes of z - x and (z - x)^2: centred at x, so that nothing cancels when z = x nearly always
        first = k * (k - 1) / 2 - k * x
        second = (k - 1) * k * (2 * k - 1) / 6 - k * (k - 1) * x + k * x**2
        return x + q * first, q * second - (q * first) ** 2

    @property
    def support(self) -> constraints.Constraint:
        """The codes 0, ..., k - 1."""
        return constraints.integer_interval(0, self.categories - 1)


@register("hadamard_response")
@dataclasses.dataclass(frozen=True)
class HadamardResponse(PureProtocol):
    """Release a column of a Hadamard matrix, exp(epsilon) times likelier where the row of x has a one.

    Acharya, Sun & Zhang (2019, "Hadamard response: estimating distributions privately, efficiently, and with little
    communication"), Algorithm 1, for high privacy: K is the smallest power of two above the number of categories, z is
    in 0, ..., K - 1, and x is in S(z) where the binary numbers x + 1 and z share an even number of ones. For epsilon
    well above 1 `SubsetSelection` and `LocalHashing` lose less.

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
    categories: int = dataclasses.field(metadata={"static": True})

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
        # flipping the lowest bit of x + 1 maps the columns with a one in its row onto the others
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
        if self.categories == 2:  # of more, a row of the first three has a one in any column
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
