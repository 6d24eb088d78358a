"""RPWithPrior: a label is released near to itself, or anywhere in an interval that holds most labels."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._checks import check_order, checked
from ldpbayes._pytree import static
from ldpbayes._tracing import array_of, extreme, floating, is_concrete
from ldpbayes.mechanisms._mechanism import NumericMechanism
from ldpbayes.mechanisms._piecewise import PiecewiseConstant
from ldpbayes.mechanisms._registry import register
from ldpbayes.numerics._rounding import snapped
from ldpbayes.privacy import Guarantee, PureProtocolTradeoff

__all__ = ["RPWithPrior"]

RULES = {"projection": True, "uniform": False}
"""What becomes of a label outside the interval, and whether it is that of the interval's nearest end."""


@register("rp_with_prior")
@dataclasses.dataclass(frozen=True)
class RPWithPrior(NumericMechanism, PiecewiseConstant):
    """Release a label within a half-width ζ of itself, or else anywhere: pure privacy of labels ([LH] eqs. 3.4-3.17).

    With γ = 2ζ + exp(−ε)(b − a), the density of a released label z in [a − ζ, b + ζ] is 1/γ where |z − x| ≤ ζ and
    exp(−ε)/γ elsewhere, for labels x in the interval [a, b].

    Parameters
    ----------
    epsilon : array_like
        Privacy budget ε of each label, positive and finite; an array holds personal budgets, one a label.
    interval : pair of float
        a < b, finite: where labels keep their neighbourhood. Choose it without looking at the labels, or from a
        private histogram of them (`ldpbayes.mechanisms.optimal_interval`, `optimal_half_width`).
    half_width : array_like
        ζ, positive and finite, in the unit of the labels.
    outside : {"projection", "uniform"}
        A label outside the interval is released as the nearest end of the interval would be (eq. 3.12), or uniformly
        on [a − ζ, b + ζ] (eq. 3.17).

    Raises
    ------
    ValueError
        If a parameter is out of range or the rule is unknown.
    """

    epsilon: Any
    interval: Any
    half_width: Any
    outside: str = static(default="projection")

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        self._check("half_width", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        try:
            lower, upper = self.interval
        except (TypeError, ValueError):
            raise ValueError(f"interval must be a pair of numbers, lower < upper, got {self.interval!r}") from None
        if is_concrete(lower, upper):
            if np.ndim(lower) or np.ndim(upper):
                raise ValueError(f"interval must be a pair of numbers, one for all labels, got {self.interval!r}")
            lower, upper = (checked("interval", end, "finite", np.isfinite) for end in (lower, upper))
            check_order(lower, upper)
        object.__setattr__(self, "interval", (lower, upper))
        if self.outside not in RULES:
            raise ValueError(f"outside must be one of {', '.join(RULES)}, got {self.outside!r}")

    @property
    def _projects(self) -> bool:
        return RULES[self.outside]

    @property
    def _ends(self) -> tuple[Any, Any]:
        """Of the released labels, a − ζ and b + ζ."""
        return self.interval[0] - self.half_width, self.interval[1] + self.half_width

    def _law(self, dtype: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
        """exp(−ε), a, b, ζ and γ in the floating dtype of the data."""
        keep = jnp.exp(-jnp.asarray(self.epsilon, dtype))
        lower, upper, half = (jnp.asarray(part, dtype) for part in (*self.interval, self.half_width))
        return keep, lower, upper, half, 2 * half + keep * (upper - lower)

    def _near(self, dtype: Any) -> jax.Array:
        """Probability 2ζ(1 − exp(−ε))/γ with which a label inside is released uniformly within ζ, and not anywhere."""
        *_, half, total = self._law(dtype)
        return -2 * half * jnp.expm1(-jnp.asarray(self.epsilon, dtype)) / total

    def _inside(self, x: jax.Array) -> jax.Array:
        return (x >= jnp.asarray(self.interval[0], x.dtype)) & (x <= jnp.asarray(self.interval[1], x.dtype))

    def _projected(self, x: ArrayLike) -> jax.Array:
        x = floating(x)
        return jnp.clip(x, *(jnp.asarray(end, x.dtype) for end in self.interval))

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Draw labels near to themselves or anywhere; NaN raises where it can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler that is safe in
        floating point.
        """
        if is_concrete(x):
            checked("x", x, "a number (drop or impute missing labels first)", lambda a: ~np.isnan(a))
        x = floating(x)
        _, lower, upper, half, _ = self._law(x.dtype)
        shape = jnp.broadcast_shapes(x.shape, self.batch_shape)
        choice, place = jax.random.uniform(key, (2, *shape), x.dtype)
        near = choice < self._near(x.dtype)
        near = near if self._projects else near & self._inside(x)
        start = jnp.where(near, self._projected(x), lower) - half
        length = jnp.where(near, 0.0, upper - lower) + 2 * half
        return jnp.minimum(start + length * place, upper + half)

    def pieces(self, z: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """See `PiecewiseConstant.pieces`: steps at z − ζ and z + ζ; under the uniform rule at the ends."""
        z = floating(z)
        keep, lower, upper, half, total = self._law(z.dtype)
        z = jnp.broadcast_to(z, jnp.broadcast_shapes(z.shape, total.shape))
        possible = (z >= lower - half) & (z <= upper + half)
        high, low = (jnp.where(possible, level / total, 0.0) for level in (1.0, keep))
        if self._projects:
            # beyond the interval's end labels are taken to be at it, which may be within ζ of z
            below, above = jnp.where(z <= lower + half, high, low), jnp.where(z >= upper - half, high, low)
            return jnp.stack([z - half, z + half], axis=-1), jnp.stack([below, high, above], axis=-1)
        flat = jnp.where(possible, 1 / (2 * half + upper - lower), 0.0)
        start = jnp.nextafter(lower, -jnp.inf)  # the interval's lower end is inside
        near = jnp.clip(z - half, start, upper), jnp.clip(z + half, start, upper)
        cuts = jnp.stack(jnp.broadcast_arrays(start, *near, upper), axis=-1)
        return cuts, jnp.stack([flat, low, high, low, flat], axis=-1)

    def breakpoints(self, z: ArrayLike) -> Any:
        """See `NumericMechanism.breakpoints`: the steps."""
        at = array_of(z)
        xp: Any = jnp if isinstance(at, jax.Array) or not is_concrete(self) else np
        ends = () if self._projects else self.interval
        return xp.stack(xp.broadcast_arrays(at - self.half_width, at + self.half_width, *ends), axis=-1)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return the mean and the variance of z given x: those of two uniform laws, mixed."""
        x = floating(x)
        _, lower, upper, half, _ = self._law(x.dtype)
        near = self._near(x.dtype)
        near = near if self._projects else jnp.where(self._inside(x), near, 0.0)
        middle, apart = (lower + upper) / 2, self._projected(x) - (lower + upper) / 2
        within, anywhere = half**2 / 3, (upper - lower + 2 * half) ** 2 / 12
        return middle + near * apart, near * within + (1 - near) * anywhere + near * (1 - near) * apart**2

    def unbiased(self, z: ArrayLike) -> jax.Array:
        """See `Mechanism.unbiased`: the mean of z is linear in the projected label.

        Raises
        ------
        ValueError
            Under the uniform rule: a label outside the interval tells nothing of where it is.
        """
        if not self._projects:
            raise ValueError("RPWithPrior has unbiased values under outside='projection' only")
        z = floating(z)
        middle = (jnp.asarray(self.interval[0], z.dtype) + jnp.asarray(self.interval[1], z.dtype)) / 2
        return middle + (z - middle) / self._near(z.dtype)

    @property
    def domain(self) -> constraints.Constraint:
        """The interval; under the uniform rule with a margin, in which labels are released as any others outside it."""
        return constraints.interval(*(self.interval if self._projects else self._ends))

    @property
    def support(self) -> constraints.Constraint:
        """The interval, widened by ζ."""
        return constraints.interval(*self._ends)

    linear_tails = False

    @property
    def resolution(self) -> float:
        """Infinite: between its steps p(z | x) is constant."""
        return float("inf")

    @property
    def released_range(self) -> tuple[Any, Any]:
        """The ends of the support."""
        low, high = self._ends
        return extreme("min", low), extreme("max", high)

    @property
    def released_breakpoints(self) -> np.ndarray:
        """Where the labels at the interval's ends come into reach, or go; see `NumericMechanism`."""
        lower, upper = self.interval
        return np.ravel(np.add.outer([lower, upper], np.multiply.outer([-1.0, 1.0], self.half_width)))

    @property
    def guarantee(self) -> Guarantee:
        """Pure differential privacy of labels, with the exact trade-off curve of the interval's two ends.

        Their neighbourhoods differ in a length of min(2ζ, b − a), of density 1/γ under the one, exp(−ε)/γ under the
        other. No pair of labels is told apart better, one that is released uniformly included.
        """
        width = self.interval[1] - self.interval[0]
        total = 2 * self.half_width + np.exp(-self.epsilon) * width
        return Guarantee(
            PureProtocolTradeoff(self.epsilon, np.minimum(2 * self.half_width, width) / total), unit="label"
        )

    def _validated(self, values: np.ndarray) -> np.ndarray:
        """Numbers in the support, its ends included as other precisions round them."""
        return super()._validated(snapped(values, self._ends) if is_concrete(self) else values)
