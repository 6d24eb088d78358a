"""Pure protocols: mechanisms for categories whose p(z | x) takes two values, and with them one likelihood for all.

Each released value z supports a set of categories S(z), and p(z | x) is exp(epsilon) times larger for the categories in
S(z) than for the others ([WBLJ] Definition 3). Whatever is asked of z then goes through the membership of categories in
S(z).
"""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._checks import LARGEST_CODE, at_least, checked
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._mechanism import DiscreteMechanism
from ldpbayes.mechanisms._plausibility import implausible_support
from ldpbayes.privacy import Guarantee, PureProtocolTradeoff

__all__ = ["PureProtocol"]


class PureProtocol(DiscreteMechanism):
    """p(z | x) = exp(log_supported(z)) for x in S(z), and exp(-epsilon) times that for the other categories.

    Subclasses have the fields ``epsilon`` (a number, or an array with one budget a record; infinity stands for a record
    whose code is not perturbed) and ``categories`` (a static integer; records are the codes 0, ..., categories - 1).
    """

    epsilon: Any
    categories: int

    _independent_bits: ClassVar[bool] = False
    """Whether codes are in S(z) independently of each other, given x."""

    @abc.abstractmethod
    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Whether the code x is in S(z), in the broadcast shape of x and the batch shape of z.

        Parameters
        ----------
        z : array_like
            Released values.
        x : array_like
            Codes, integers or floats.
        """

    @abc.abstractmethod
    def log_supported(self, z: ArrayLike) -> jax.Array:
        """Log p(z | x) for the codes x in S(z), in the batch shape of z; nothing of the model enters it.

        Parameters
        ----------
        z : array_like
            Released values.
        """

    @property
    @abc.abstractmethod
    def support_probabilities(self) -> tuple[Any, Any]:
        """P(k in S(z) | x) for k = x and for any k other than x, as floats or arrays in the shape of the budget."""

    @property
    @abc.abstractmethod
    def separation(self) -> Any:
        """Largest P(x in S(z), x' not in S(z) | x) over pairs of codes: the mass on which they differ."""

    def _check_budget_and_categories(self) -> None:
        self._check("epsilon", "positive", lambda a: a > 0)
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories, LARGEST_CODE))

    def membership(self, z: ArrayLike) -> jax.Array:
        """Which codes are in S(z): zeros and ones, the codes along a new last axis.

        Parameters
        ----------
        z : array_like
            Released values.
        """
        ahead = np.ndim(z) - len(self.event_shape)
        return self.supports(jnp.expand_dims(z, ahead), np.arange(self.categories))

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        """The released values themselves; see `DiscreteMechanism.equivalence`.

        It is worth a method of its own where several released values have the same S(z): a sketch then keeps one.
        """
        return np.asarray(z).reshape(len(z), -1)

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Log probability of z given x; codes may be integers or floats. See `Mechanism.log_prob`."""
        dtype = jnp.result_type(x, float)
        penalty = jnp.where(self.supports(z, x), 0.0, -jnp.asarray(self.epsilon, dtype))
        return self.log_supported(z).astype(dtype) + penalty.astype(dtype)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """NaN, as for NumPyro's Categorical: released values are labels; see `Mechanism.moments`."""
        nothing = jnp.full(np.broadcast_shapes(np.shape(x), np.shape(self.epsilon)) + self.event_shape, jnp.nan)
        return nothing, nothing

    @property
    def domain(self) -> constraints.Constraint:
        """The codes 0, ..., categories - 1."""
        return constraints.integer_interval(0, self.categories - 1)

    @property
    def guarantee(self) -> Guarantee:
        """Pure local differential privacy, with the trade-off curve of the pair of codes that differ most."""
        return Guarantee(PureProtocolTradeoff(self.epsilon, self.separation))

    def implausible(self, values: np.ndarray) -> list[str]:
        """Categories that too many or too few values support; see `Mechanism.implausible`."""
        counts, n = self._support_counts(values), len(values)
        if counts is None:
            return []
        p, q = (float(np.mean(np.broadcast_to(a, n))) for a in self.support_probabilities)
        bits = (n * self.categories, n * (p + (self.categories - 1) * q)) if self._independent_bits else None
        return implausible_support(counts, n, p, q, bits)

    def _support_counts(self, values: np.ndarray) -> np.ndarray | None:
        """How many of the released values (NumPy) support each code; None where that takes too long to look at."""
        return None

    def _codes(self, x: ArrayLike) -> jax.Array:
        """Records as an integer array; ValueError for other codes, where they can be seen."""
        last = self.categories - 1
        if is_concrete(x) and np.asarray(x).dtype != bool:
            checked("x", x, f"an integer from 0 to {last}", lambda a: (a >= 0) & (a <= last) & (a == np.floor(a)))
        return jnp.asarray(x).astype(int)

    def _check_possible(self, possible: Any, what: str) -> None:
        """ValueError where the value of a record of infinite budget is not `possible`: no category leads to it."""
        if not is_concrete(self.epsilon) or np.shape(self.epsilon) not in ((), (1,), (len(possible),)):
            return
        wrong = np.isinf(self.epsilon) & ~possible
        if wrong.any():
            raise ValueError(
                f"a record of infinite budget is released as {what}; {wrong.sum()} are not, the first in row "
                f"{np.argmax(wrong)}"
            )

    @property
    def _keep(self) -> np.ndarray:
        """exp(-epsilon) in double precision, for what is computed on the host."""
        return np.exp(-np.asarray(self.epsilon))
