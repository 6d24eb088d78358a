"""Normal records, with known or unknown variance."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy import stats

from ldpbayes._pytree import checked_field, pytree
from ldpbayes.bootstrap.families._family import Params
from ldpbayes.bootstrap.families._on_the_line import OnTheLine, Range, rule_between
from ldpbayes.numerics._point_masses import PointMasses

__all__ = ["Gaussian", "GaussianMean"]

REACH = 9.0  # standard deviations that hold all of a normal law but 2e-19


def _law(loc: Any, scale: Any, lower: Any, upper: Any) -> PointMasses:
    return rule_between(
        loc - REACH * scale,
        loc,
        loc + REACH * scale,
        lower,
        upper,
        lambda x: stats.norm.pdf(x, loc, scale),
    )


@pytree
@dataclasses.dataclass(frozen=True)
class GaussianMean(OnTheLine):
    """Normal records of known standard deviation; parameter ``loc``.

    Parameters
    ----------
    scale : float
        The standard deviation, known.
    lower, upper : float
        Bounds to which records are clamped, in their unit. The mean is looked for up to the distance of the bounds
        beyond them.
    """

    scale: Any
    lower: Any = None
    upper: Any = None

    def __post_init__(self) -> None:
        checked_field(self, "scale", "a positive and finite number", lambda a: (a.ndim == 0) & (a > 0) & (a < math.inf))
        super().__post_init__()

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        return {"loc": Range(self.lower - self.width, self.upper + self.width)}

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Normal(params["loc"], self.scale)

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        return jnp.asarray(params["loc"])

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: the mean itself."""
        within = jnp.clip(mean, self.ranges["loc"].lower, self.ranges["loc"].upper)
        return {"loc": within}, within != mean

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`."""
        return _law(params["loc"], self.scale, self.lower, self.upper)


@pytree
@dataclasses.dataclass(frozen=True)
class Gaussian(OnTheLine):
    """Normal records of unknown mean and standard deviation; parameters ``loc`` and ``scale``.

    The statistics are u and u², with u = −1 and 1 at the bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, in their unit. The mean is looked for up to their distance beyond them,
        the standard deviation from a thousandth of it to ten times as much.
    """

    lower: Any = None
    upper: Any = None

    columns: ClassVar[tuple[str, ...]] = ("u", "u*u")

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        width = self.width
        return {
            "loc": Range(self.lower - width, self.upper + width),
            "scale": Range(1e-3 * width, 10 * width, positive=True),
        }

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Normal(params["loc"], params["scale"])

    def _standardised(self, loc: Any, scale: Any) -> tuple[Any, Any]:
        return (loc - (self.lower + self.upper) / 2) / (self.width / 2), scale / (self.width / 2)

    def statistics(self, x: Any) -> jax.Array:
        """See `Family.statistics`."""
        u, _ = self._standardised(self.clamp(x), 1.0)
        return jnp.stack([u, u**2], axis=-1)

    def sensitivity(self, order: int) -> float:
        """See `Family.sensitivity`: 9/4 at u = 1, −1/2; or 2 at u = ±1.

        With m = |u − u'|/2 and p = |u + u'|/2 ≤ 1 − m, the distances are 2m + 4pm ≤ 6m − 4m², which is largest at
        m = 3/4, and (2m)² + (4pm)² ≤ 4m² (1 + 4 (1 − m)²), which increases on [0, 1].
        """
        return {1: 2.25, 2: 2.0}[order]

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        loc, scale = self._standardised(params["loc"], params["scale"])
        return jnp.stack([loc, loc**2 + scale**2])

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`; a variance below that of the smallest standard deviation is replaced by it."""
        ranges, half = self.ranges, self.width / 2
        loc = (self.lower + self.upper) / 2 + half * mean[0]
        variance = half**2 * (mean[1] - mean[0] ** 2)
        within = jnp.clip(loc, ranges["loc"].lower, ranges["loc"].upper)
        least, most = ranges["scale"].lower ** 2, ranges["scale"].upper ** 2
        kept = jnp.clip(variance, least, most)
        return {"loc": within, "scale": jnp.sqrt(kept)}, (within != loc) | (kept != variance)

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`."""
        return _law(params["loc"], params["scale"], self.lower, self.upper)
