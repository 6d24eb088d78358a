"""Beta records: shares between 0 and 1."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy import special

from ldpbayes._pytree import checked_field, pytree
from ldpbayes.bootstrap.families._on_the_line import OnTheLine, Range, rule_between
from ldpbayes.numerics._point_masses import PointMasses

__all__ = ["Beta"]


@pytree
@dataclasses.dataclass(frozen=True)
class Beta(OnTheLine):
    """Beta records; parameters ``concentration1`` and ``concentration0``.

    The statistics are log x and log(1 − x), each from 0 to 1 between the bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, inside (0, 1). Both concentrations are looked for from 0.01 to 1000.
    """

    lower: Any = None
    upper: Any = None

    natural: ClassVar[tuple[float, float]] = (0.0, 1.0)
    columns: ClassVar[tuple[str, ...]] = ("log x", "log(1 - x)")
    coordinate: ClassVar = (special.logit, special.expit)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lower", "upper"):
            allowed = "inside (0, 1): logarithms of x and 1 - x are the statistics"
            checked_field(self, name, allowed, lambda a: (a > 0) & (a < 1))

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        return {name: Range(0.01, 1e3, positive=True) for name in ("concentration0", "concentration1")}

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Beta(params["concentration1"], params["concentration0"])

    def _units(self, first: Any, second: Any) -> jax.Array:
        """The statistics, each from 0 to 1."""
        lower, upper = jnp.asarray(self.lower, float), jnp.asarray(self.upper, float)
        one = (first - jnp.log(lower)) / (jnp.log(upper) - jnp.log(lower))
        other = (second - jnp.log1p(-upper)) / (jnp.log1p(-lower) - jnp.log1p(-upper))
        return jnp.stack([one, other], axis=-1)

    def statistics(self, x: Any) -> jax.Array:
        """See `Family.statistics`."""
        x = self.clamp(x)
        return self._units(jnp.log(x), jnp.log1p(-x))

    def sensitivity(self, order: int) -> float:
        """See `Family.sensitivity`: one statistic increases, the other falls, so that the bounds are furthest apart."""
        return {1: 2.0, 2: math.sqrt(2.0)}[order]

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        one, zero = params["concentration1"], params["concentration0"]
        both = special.digamma(one + zero)
        return self._units(special.digamma(one) - both, special.digamma(zero) - both)

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`; the density is smooth in the logit, falling exponentially on both sides."""
        one, zero = params["concentration1"], params["concentration0"]
        mode, near = jnp.log(one / zero), jnp.sqrt(74 * (1 / one + 1 / zero))

        def density(logit: jax.Array) -> jax.Array:
            log_x, log_1mx = -jnp.logaddexp(0.0, -logit), -jnp.logaddexp(0.0, logit)
            return jnp.exp(one * log_x + zero * log_1mx - special.betaln(one, zero))

        return rule_between(
            mode - near - 37 / one,
            mode,
            mode + near + 37 / zero,
            special.logit(jnp.asarray(self.lower, float)),
            special.logit(jnp.asarray(self.upper, float)),
            density,
            special.expit,
        )
