"""Records that are one of several categories."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._checks import LARGEST_CODE, at_least
from ldpbayes._pytree import pytree, static
from ldpbayes.bootstrap.families._family import Family, Params
from ldpbayes.numerics._point_masses import PointMasses

__all__ = ["Multinomial"]


@pytree
@dataclasses.dataclass(frozen=True)
class Multinomial(Family):
    """Records that are codes of categories, whose counts are multinomial; parameter ``probs`` (categories,).

    Parameters
    ----------
    categories : int
        Number of categories, 2 at least.
    """

    categories: int = static()

    step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories, LARGEST_CODE))

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """One a category."""
        return tuple(f"category {k}" for k in range(self.categories))

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Categorical(probs=params["probs"])

    def statistics(self, x: Any) -> jax.Array:
        """See `Family.statistics`: which category a record has."""
        return jax.nn.one_hot(jnp.asarray(x), self.categories, dtype=float)

    def sensitivity(self, order: int) -> float:
        """See `Family.sensitivity`: one count falls by one, another rises."""
        return {1: 2.0, 2: math.sqrt(2.0)}[order]

    def nearest(self, params: Mapping[str, Any]) -> Params:
        """See `Family.nearest`: on the simplex, by Euclidean distance ([WC])."""
        falling = jnp.sort(params["probs"])[::-1]
        excess = (jnp.cumsum(falling) - 1) / jnp.arange(1, self.categories + 1)
        kept = jnp.sum(falling > excess)
        probs = jnp.maximum(params["probs"] - excess[kept - 1], 0.0)
        return {"probs": probs / jnp.sum(probs)}

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: the nearest point of the simplex."""
        within = self.nearest({"probs": mean})
        return within, jnp.any(within["probs"] == 0)

    def solve_clamped(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve_clamped`: nothing is clamped."""
        return self.solve(mean)

    def covariance(self, params: Mapping[str, Any], noise: Any, count: Any, *, clamped: bool) -> jax.Array:
        """See `Family.covariance`; of shares that sum to one, but may be negative."""
        p, size = params["probs"], self.categories
        centred = jnp.eye(size) - 1 / size
        return (jnp.diag(p) - jnp.outer(p, p)) / count + noise / count**2 * centred

    def total(self, key: Any, params: Mapping[str, Any], count: Any) -> jax.Array:
        """See `Family.total`: multinomial counts."""
        return PointMasses(jnp.arange(self.categories), params["probs"]).counts(key, count)

    def checked(self, data: Any) -> np.ndarray:
        """See `Family.checked`."""
        x = np.asarray(data)
        if x.ndim != 1 or not x.size or x.dtype.kind not in "iufb" or not (x == np.round(x)).all():
            raise ValueError(f"Multinomial takes an array of codes (n,), got shape {x.shape} of {x.dtype}")
        if x.min() < 0 or x.max() >= self.categories:
            raise ValueError(f"codes must be from 0 to {self.categories - 1}, got {x.min():g} to {x.max():g}")
        return x.astype(int)
