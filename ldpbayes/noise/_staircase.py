"""Staircase noise: of all noise that keeps a pure budget, that with the smallest cost."""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.pytrees import pytree
from ldpbayes._core.tracing import array_of, is_concrete
from ldpbayes.noise._noise import Noise
from ldpbayes.privacy import Tradeoff
from ldpbayes.privacy.tradeoffs import PureProtocolTradeoff


@pytree
@dataclasses.dataclass(frozen=True)
class Staircase(Noise):
    """Density a exp(−k ε), where k jumps are passed on the way from zero: they are at ±γΔ, ±(1 + γ)Δ, ... ([GV]).

    a = (1 − exp(−ε))/(2Δ(γ + exp(−ε)(1 − γ))). Over a step Δ the density falls by exp(ε) exactly, so that inputs which
    are at most a step apart are hidden with ε. The noise is for clipped numbers whose range is at most a step.

    Parameters
    ----------
    step : array_like
        Δ, positive and finite, in the unit of the data; a number, or one a record.
    epsilon : array_like
        ε, positive and finite; a number, or one a record.
    gamma : array_like
        γ, in (0, 1]: where the jump is in a step. See `optimal_gamma`; γ → 0 is the same law as γ = 1.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    step: Any
    epsilon: Any
    gamma: Any

    linear_tails: ClassVar[bool] = True  # from step to step
    # there are infinitely many, of which `breakpoints` takes those that matter
    kinks: ClassVar[tuple[float, ...]] = ()
    norm: ClassVar[int] = 1  # of one column only

    def __post_init__(self) -> None:
        for name in ("step", "epsilon"):
            self._check(name, "positive and finite", lambda a: (a > 0) & (a < np.inf))
        self._check("gamma", "in (0, 1]", lambda a: (a > 0) & (a <= 1))

    def _shares(self) -> tuple[Any, Any, Any]:
        """exp(−ε), what it lacks of one, and γ + exp(−ε)(1 − γ): a step's mass over its length and highest level."""
        xp: Any = np if is_concrete(self) else jnp
        epsilon, gamma = xp.asarray(self.epsilon), xp.asarray(self.gamma)
        fall = xp.exp(-epsilon)
        return fall, -xp.expm1(-epsilon), gamma + fall * (1 - gamma)

    def sample(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw a sign, how many whole steps, on which side of the jump, and where there; see `Noise.sample`.

        The number of steps is geometric ([GV]): the whole part of an exponential variable.
        """
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
        """See `Noise.log_prob`."""
        step, epsilon, gamma, peak = (
            jnp.asarray(part)[..., None] for part in (self.step, self.epsilon, self.gamma, self._log_peak())
        )
        jumps = jnp.floor(jnp.abs(value) / step - gamma) + 1
        return jnp.sum(peak - epsilon * jumps, axis=-1)

    def _log_peak(self) -> Any:
        """Log of a, the density at zero."""
        xp: Any = np if is_concrete(self) else jnp
        _, lack, total = self._shares()
        return xp.log(lack) - xp.log(2 * xp.asarray(self.step)) - xp.log(total)

    @property
    def standard_deviation(self) -> Any:
        """From the moments of the whole steps, which are geometric, and of the rest, a mixture of two uniform laws."""
        xp: Any = np if is_concrete(self) else jnp
        fall, lack, total = self._shares()
        outer, gamma = fall * (1 - self.gamma) / total, self.gamma
        # E(G + V)² with E G = b/(1 − b), E G² = b(1 + b)/(1 − b)², b = exp(−ε): no term is negative
        first, second = (gamma + outer) / 2, (gamma**2 + outer * (1 + gamma)) / 3
        return self.step * xp.sqrt(fall * (1 + fall) + 2 * fall * lack * first + lack**2 * second) / lack

    @property
    def period(self) -> Any:  # type: ignore[override]
        """The step."""
        return self.step

    @property
    def resolution(self) -> float:
        """Infinite: between jumps the density is constant."""
        return math.inf

    @property
    def reach(self) -> Any:
        """A step: further out all is as in the step before."""
        return self.step

    def depth(self, distance: np.ndarray) -> np.ndarray:
        """The exact tail, one law for all distances; see `Noise.depth`."""
        fall, lack, total = self._shares()
        steps = np.multiply(distance, self.standard_deviation / self.step)
        whole = np.floor(steps)
        part = steps - whole
        rest = np.where(part < self.gamma, 1 - part / total, fall * (1 - part) / total)
        return 1 + (whole * self.epsilon - np.log(fall + lack * rest)) / math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """The exact curve of inputs at most a step apart: their likelihood ratio is exp(ε), 1 or exp(−ε).

        Parameters
        ----------
        distance : array (*batch, 1)
            How far apart the inputs are, positive.

        Raises
        ------
        ValueError
            If the inputs are more than a step apart, or have several columns.
        """
        distance = np.abs(np.asarray(distance, float))
        if distance.shape[-1:] != (1,) or np.any(distance[..., 0] > self.step):
            raise ValueError(f"the inputs must be numbers at most a step apart ({self.step}), got {distance}")
        apart, gamma = distance[..., 0] / self.step, np.asarray(self.gamma)
        fall, lack, total = self._shares()
        # what favours the first input: on its own side the stretch before each jump, between the two the part that is
        # before the jump of the one and beyond that of the other
        between = np.maximum(np.minimum(gamma, apart - gamma), 0.0)
        favoured = (lack * (np.minimum(gamma, apart) + between) + fall * apart) / (2 * total)
        return PureProtocolTradeoff(self.epsilon, favoured)

    def pieces(self, z: ArrayLike, lower: Any, upper: Any) -> tuple[Any, Any]:
        """p(z | x) as a step function of a number x, to whose clipped value noise is added; see `PiecewiseConstant`.

        Of all jumps only the first beyond zero on either side that the noise z − clip(x) can be at are of interest: a
        range of one step holds no second one. Where it cannot be at one, the cut is at a bound and nothing steps there.

        Parameters
        ----------
        z : array_like
            Released values; NumPy in, NumPy out; JAX in, JAX out.
        lower, upper : array_like
            Bounds, at most a step apart.

        Returns
        -------
        tuple of arrays (*batch, 2) and (*batch, 3)
            Cuts in ascending order, and the densities before, between and behind them.
        """
        z = array_of(z)
        law: Any = self
        xp: Any = np if isinstance(z, np.ndarray) and is_concrete(self, lower, upper) else jnp
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

    def breakpoints(self, z: ArrayLike, lower: Any, upper: Any) -> Any:
        """The cuts of `pieces`; see `Noise.breakpoints`."""
        return self.pieces(z, lower, upper)[0]

    def released_breakpoints(self, lower: Any, upper: Any) -> np.ndarray:
        """Where the noise of a record at a bound jumps, near it; see `Noise.released_breakpoints`."""
        step, gamma, low, high = (np.asarray(part)[..., None] for part in (self.step, self.gamma, lower, upper))
        # with the range, which is at most a step
        jumps = (np.arange(3) + gamma) * step
        return np.unique([low - jumps, low + jumps, high - jumps, high + jumps])

    def check_records(self, lower: Any, upper: Any, numbers: bool) -> None:
        """Refuse all but clipped numbers whose range is at most a step; see `Noise.check_records`."""
        if not numbers or lower is None:
            raise ValueError(
                "Staircase noise is for numbers with bounds, each of which gets it: not for rows of columns, "
                "statistics or records that are released without noise"
            )
        if is_concrete(self.step, lower, upper) and np.any(np.subtract(upper, lower) > self.step):
            raise ValueError(
                "upper - lower must be at most the step of the Staircase noise, got "
                f"lower = {lower!r}, upper = {upper!r}, step = {self.step!r}"
            )


def _for_squared_error(xp: Any, epsilon: Any) -> Any:
    """[GV] have, with b = exp(−ε), γ = (c − b)/(1 − b) with c³ = b(1 + b)/2; here times (c² + cb + b²) over itself."""
    fall, root = xp.exp(-epsilon), xp.exp(-epsilon / 3)
    share = xp.cbrt((1 + fall) / 2)
    return root * (1 + 2 * fall) / (2 * (share**2 + share * root**2 + root**4))


def optimal_gamma(epsilon: ArrayLike) -> Any:
    """The γ of `Staircase` noise with the smallest variance among all noise that keeps the budget ([GV]).

    Parameters
    ----------
    epsilon : array_like
        Budget, positive and finite; may be traced.

    Returns
    -------
    array_like
        In (0, 1/2], a float for a number; 1/2 in the limit of a small budget.
    """
    if not is_concrete(epsilon):
        return _for_squared_error(jnp, epsilon)
    found = _for_squared_error(np, np.asarray(epsilon, float))
    return found if np.ndim(found) else float(found)
