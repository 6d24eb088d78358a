"""Staircase noise, which has the smallest variance of all noise with a given pure budget."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ldpbayes._core.checks import POSITIVE, SHARE
from ldpbayes._core.pytrees import pytree_dataclass, ruled
from ldpbayes._core.types import Array, ArrayModule, Key, array_of, is_concrete
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import PureProtocolTradeoff, Tradeoff


@pytree_dataclass
class Staircase(Noise):
    """Staircase noise: a density a exp(−k ε) that falls in steps, with jumps at ±γΔ, ±(1 + γ)Δ, ... ([GV]).

    Here k is the number of jumps between 0 and the noise, and a = (1 − exp(−ε))/(2Δ(γ + exp(−ε)(1 − γ))). Two inputs
    that differ by at most Δ have the budget ε. All records must lie in an interval of length Δ.

    Parameters
    ----------
    step, epsilon : array_like
        Length Δ in the unit of the data, and budget ε in nats, positive and finite: one number, or one for each record.
    gamma : array_like
        Number γ in (0, 1], which gives the positions of the jumps. See `optimal_gamma`.
    """

    step: Array = ruled(POSITIVE)
    epsilon: Array = ruled(POSITIVE)
    gamma: Array = ruled(SHARE)

    linear_tails: ClassVar[bool] = True  # from step to step
    kinks: ClassVar[tuple[float, ...]] = ()  # infinitely many, of which `breakpoints` takes those that matter
    norm: ClassVar[int] = 1  # of one column only
    period = property(lambda self: self.step)
    reach = property(lambda self: self.step)  # each further one repeats the density, lower by exp(−ε)
    resolution: ClassVar[float] = math.inf

    def _shares(self) -> tuple[Array, Array, Array]:
        """exp(−ε), 1 − exp(−ε), and γ + exp(−ε)(1 − γ): a step's mass over its length and highest level."""
        xp = np if is_concrete(self) else jnp
        epsilon, gamma = xp.asarray(self.epsilon), xp.asarray(self.gamma)
        fall = xp.exp(-epsilon)
        return fall, -xp.expm1(-epsilon), gamma + fall * (1 - gamma)

    @staticmethod
    def optimal_gamma(epsilon: Array) -> Array:
        """Return the γ in (0, 1/2] of the least variance for a number or array `epsilon` ([GV]): (c − b)/(1 − b), with
        b = exp(−ε) and c³ = b(1 + b)/2.
        """
        xp = np if is_concrete(epsilon) else jnp
        epsilon = np.asarray(epsilon, float) if xp is np else epsilon
        fall, root = xp.exp(-epsilon), xp.exp(-epsilon / 3)
        share = xp.cbrt((1 + fall) / 2)
        gamma = root * (1 + 2 * fall) / (2 * (share**2 + share * root**2 + root**4))
        return gamma if np.ndim(gamma) or xp is jnp else float(gamma)

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        law: Any = self.astype(dtype)
        fall, _, total = (part[..., None] for part in law._shares())
        step, epsilon, gamma = (leaf[..., None] for leaf in (law.step, law.epsilon, law.gamma))
        keys = jax.random.split(key, 4)
        whole = jnp.floor(jax.random.exponential(keys[0], shape, dtype) / epsilon)
        outer = jax.random.uniform(keys[1], shape, dtype) < fall * (1 - gamma) / total
        place = jax.random.uniform(keys[2], shape, dtype)
        part = jnp.where(outer, gamma + (1 - gamma) * place, gamma * place)
        return jax.random.rademacher(keys[3], shape, dtype) * step * (whole + part)

    def log_prob(self, value: jax.Array) -> jax.Array:
        parts = self.step, self.epsilon, self.gamma, self._log_peak()
        step, epsilon, gamma, peak = (jnp.asarray(part)[..., None] for part in parts)
        jumps = jnp.floor(jnp.abs(value) / step - gamma) + 1
        return jnp.sum(peak - epsilon * jumps, axis=-1)

    def _log_peak(self) -> Array:
        """Log of a, the density at zero."""
        xp = np if is_concrete(self) else jnp
        _, lack, total = self._shares()
        return xp.log(lack) - xp.log(2 * xp.asarray(self.step)) - xp.log(total)

    @property
    def standard_deviation(self) -> Array:
        xp = np if is_concrete(self) else jnp
        fall, lack, total = self._shares()
        outer, gamma = fall * (1 - self.gamma) / total, self.gamma
        # E(G + V)² with E G = b/(1 − b), E G² = b(1 + b)/(1 − b)², b = exp(−ε): no term is negative
        first, second = (gamma + outer) / 2, (gamma**2 + outer * (1 + gamma)) / 3
        return self.step * xp.sqrt(fall * (1 + fall) + 2 * fall * lack * first + lack**2 * second) / lack

    def _beyond(self, xp: ArrayModule, steps: Array) -> tuple[Array, Array]:
        """Whole steps k, and a share: the noise is beyond so many steps with probability exp(−k ε) share/2."""
        fall, lack, total = self._shares()
        whole = xp.floor(steps)
        part = steps - whole
        return whole, fall + lack * xp.where(part < self.gamma, 1 - part / total, fall * (1 - part) / total)

    def depth(self, distance: np.ndarray) -> np.ndarray:
        whole, rest = self._beyond(np, np.multiply(distance, self.standard_deviation / self.step))
        return 1 + (whole * self.epsilon - np.log(rest)) / math.log(2)

    def log_tail(self, distance: jax.Array) -> jax.Array:
        whole, rest = self._beyond(jnp, distance / self.step)
        return -whole * self.epsilon + jnp.log(rest) - math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the exact curve of numbers at most `step` apart, whose likelihood ratio is exp(ε), 1 or exp(−ε)."""
        distance = np.abs(np.asarray(distance, float))
        if distance.shape[-1:] != (1,) or np.any(distance[..., 0] > self.step):
            raise ValueError(f"the inputs must be numbers that differ by at most the step {self.step}, got {distance}")
        steps, gamma = distance[..., 0] / self.step, np.asarray(self.gamma)
        fall, lack, total = self._shares()
        # outputs that favour the first input: on its own side the stretch before each jump, between the two inputs the
        # part that is before the first one's jump and beyond the second one's
        between = np.maximum(np.minimum(gamma, steps - gamma), 0.0)
        favoured = (lack * (np.minimum(gamma, steps) + between) + fall * steps) / (2 * total)
        return PureProtocolTradeoff(self.epsilon, favoured)

    def pieces(self, z: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Return p(z | x) as a step function of x: ascending jumps (*z.shape, 2), at a bound without a jump, and
        densities around them (*z.shape, 3).
        """
        z = array_of(z)
        law: Any = self
        xp = np if isinstance(z, np.ndarray) and is_concrete(self, lower, upper) else jnp
        if xp is jnp:
            z = jnp.asarray(z, jnp.result_type(z, float))
            law, lower, upper = self.astype(z.dtype), jnp.asarray(lower, z.dtype), jnp.asarray(upper, z.dtype)
        step, epsilon, gamma = law.step, law.epsilon, law.gamma
        above = xp.maximum(xp.ceil((z - upper) / step - gamma), 0.0)  # jumps that all positive noise has passed
        below = xp.maximum(xp.ceil((lower - z) / step - gamma), 0.0)
        first = xp.maximum(z - (above + gamma) * step, lower)
        second = xp.minimum(z + (below + gamma) * step, upper)
        middle = xp.maximum(above, below)
        passed = xp.where(first > lower, above + 1, middle), middle, xp.where(second < upper, below + 1, middle)
        levels = [xp.exp(law._log_peak() - epsilon * jumps) for jumps in passed]
        return xp.stack(xp.broadcast_arrays(first, second), axis=-1), xp.stack(xp.broadcast_arrays(*levels), axis=-1)

    def breakpoints(self, z: Array, lower: Array, upper: Array) -> Array:
        return self.pieces(z, lower, upper)[0]

    def released_breakpoints(self, lower: Array, upper: Array) -> np.ndarray:
        step, gamma, low, high = (np.asarray(part)[..., None] for part in (self.step, self.gamma, lower, upper))
        # three, as the range is at most a step
        jumps = (np.arange(3) + gamma) * step
        return np.unique([low - jumps, low + jumps, high - jumps, high + jumps])

    def check_records(self, lower: Array, upper: Array, numbers: bool) -> None:
        if not numbers or lower is None:
            raise ValueError("Staircase noise is only for bounded numbers, each with noise, not for rows or statistics")
        if is_concrete(self.step, lower, upper) and np.any(np.subtract(upper, lower) > self.step):
            raise ValueError(f"upper - lower must be at most the step {self.step!r}, got {lower!r} and {upper!r}")
