"""Numbers that are multiplied by a random one before they are told."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.checks import POSITIVE, check_order, refuse
from ldpbayes._core.pytrees import check_fields, ruled
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.mechanisms.additive import AdditiveMechanism
from ldpbayes.mechanisms.protocol import NumericMechanism, registered
from ldpbayes.noise import Gaussian


@registered("multiplicative_scrambling", "Multiply a positive number by a random log-normal number.")
class MultiplicativeScrambling(NumericMechanism):
    """Multiplicative scrambling: people multiply a positive number by a random one, and tell the product ([EH]).

    The random number S is log-normal. The logarithm of the released value is that of the clipped record plus Gaussian
    noise: the likelihood and the guarantee are computed so. `unbiased` is z/E[S], whose mean estimates the mean record
    whatever the law of S is. A record of 0 would be told as it is, so that records must be positive.

    Parameters
    ----------
    mean, sd : array_like
        Mean and standard deviation of S, positive: one number, or one for each record. S has no unit.
    lower, upper : array_like
        Clipping bounds in the unit of the data, positive and finite, lower < upper.

    Examples
    --------
    >>> mechanism = ldp.mechanisms.MultiplicativeScrambling(mean=1.0, sd=0.5, lower=100, upper=10_000)
    >>> round(float(mechanism.guarantee.epsilon(1e-5)), 1)
    88.8
    """

    mean: Array = ruled(POSITIVE)
    sd: Array = ruled(POSITIVE)
    lower: Array = ruled(POSITIVE)
    upper: Array = ruled(POSITIVE)
    noise, bounded, has_atoms, linear_tails, released_range = None, True, False, False, None
    domain = property(lambda self: constraints.interval(self.lower, self.upper))
    support = constraints.positive
    resolution = property(lambda self: self.lower * self._of_log[1])
    guarantee = property(lambda self: self.of_logs.guarantee)

    def __post_init__(self) -> None:
        check_fields(self)
        check_order(self.lower, self.upper)

    @property
    def _of_log(self) -> tuple[Array, Array]:
        """Mean and standard deviation of log S."""
        xp = np if is_concrete(self.mean, self.sd) else jnp
        variance = xp.log1p((self.sd / self.mean) ** 2)
        return xp.log(self.mean) - variance / 2, xp.sqrt(variance)

    @property
    def of_logs(self) -> AdditiveMechanism:
        """The mechanism that makes log z − E[log S] of log x."""
        xp = np if is_concrete(self.lower, self.upper) else jnp
        return AdditiveMechanism(Gaussian(self._of_log[1]), xp.log(self.lower), xp.log(self.upper))

    def log_of(self, z: ArrayLike) -> jax.Array:
        """Return log z − E[log S]: what `of_logs` releases."""
        return jnp.log(jnp.asarray(z)) - self._of_log[0]

    def _log_record(self, x: ArrayLike) -> jax.Array:
        """Of the clipped record: a record that is not positive has no logarithm."""
        return jnp.log(jnp.clip(jnp.asarray(x, float), self.lower, self.upper))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        return jnp.exp(self.of_logs.randomize(key, self._log_record(x)) + self._of_log[0])

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        return self.of_logs.log_prob(self.log_of(z), self._log_record(x)) - jnp.log(jnp.asarray(z))

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        record = jnp.clip(jnp.asarray(x, float), self.lower, self.upper)
        return record * self.mean, (record * self.sd) ** 2

    def unbiased(self, z: ArrayLike) -> jax.Array:
        return jnp.asarray(z) / self.mean

    def breakpoints(self, z: ArrayLike) -> Array:
        return (z if isinstance(z, np.ndarray) else jnp.asarray(z))[..., None][..., :0]

    def _validated(self, values: np.ndarray) -> np.ndarray:
        refuse(values <= 0, "MultiplicativeScrambling releases positive numbers; {} values are not", values)
        return super()._validated(values)
