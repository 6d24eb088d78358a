"""Records that are counts: Bernoulli, binomial and Poisson."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special

from ldpbayes._checks import LARGEST_CODE, at_least
from ldpbayes._pytree import checked_field, pytree, static
from ldpbayes.bootstrap.families._family import Params
from ldpbayes.bootstrap.families._on_the_line import OnTheLine, Range
from ldpbayes.numerics._counts import poisson_log_mass
from ldpbayes.numerics._point_masses import PointMasses

__all__ = ["Bernoulli", "Binomial", "Poisson"]


@pytree
@dataclasses.dataclass(frozen=True)
class Binomial(OnTheLine):
    """Numbers of successes in so many trials; parameter ``probs``. Nothing needs to be clamped.

    Parameters
    ----------
    trials : int
        Number of trials of a record.
    """

    trials: int = static()

    natural: ClassVar[tuple[float, float]] = (0.0, math.inf)
    step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", at_least(1, "trials", self.trials, LARGEST_CODE))

    @property
    def lower(self) -> float:  # type: ignore[override]
        """No success."""
        return 0.0

    @property
    def upper(self) -> float:  # type: ignore[override]
        """Nothing but successes."""
        return float(self.trials)

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        return {"probs": Range(0.0, 1.0)}

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Binomial(self.trials, params["probs"])

    def params(self, free: jax.Array, like: Any = None) -> Params:
        """See `Family.params`: a probability may be 0 or 1, which no logit is."""
        return self.nearest({"probs": free[0]})

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        return self.trials * params["probs"]

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: the share of successes, from 0 to 1."""
        share = mean / self.trials
        within = self.nearest({"probs": share})
        return within, within["probs"] != share

    def solve_clamped(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve_clamped`: nothing is clamped."""
        return self.solve(mean)

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`."""
        p, k = params["probs"], np.arange(self.trials + 1.0)
        choose = special.gammaln(self.trials + 1.0) - special.gammaln(k + 1) - special.gammaln(self.trials - k + 1)
        masses = jnp.exp(choose + special.xlogy(k, p) + special.xlog1py(self.trials - k, -p))
        return PointMasses(jnp.asarray(k), masses / jnp.sum(masses))

    def total(self, key: Any, params: Mapping[str, Any], count: Any) -> jax.Array:
        """See `Family.total`: binomial."""
        p = jnp.asarray(params["probs"], float)
        inside = jnp.clip(p, 1e-300, 1 - 1e-16)
        drawn = jax.random.binomial(key, count * self.trials, inside, dtype=inside.dtype)
        return jnp.where(p > 0, jnp.where(p < 1, drawn, count * self.trials), 0.0)

    def checked(self, data: Any) -> np.ndarray:
        """See `Family.checked`."""
        x = super().checked(data)
        if (x > self.trials).any():
            raise ValueError(f"records are numbers of successes out of {self.trials}, got {x.max():g}")
        return x


@pytree
@dataclasses.dataclass(frozen=True)
class Bernoulli(Binomial):
    """Records that are 0 or 1; parameter ``probs``."""

    trials: int = static(default=1, init=False)

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Bernoulli(probs=params["probs"])


@pytree
@dataclasses.dataclass(frozen=True)
class Poisson(OnTheLine):
    """Poisson counts, those above a bound clamped to it; parameter ``rate``.

    Parameters
    ----------
    upper : int
        The largest count that is not clamped. The rate is looked for from a thousandth of it to three times as much.
    """

    upper: Any = static(default=None)

    natural: ClassVar[tuple[float, float]] = (0.0, math.inf)
    step: ClassVar[float] = 1.0
    lower = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_field(self, "upper", "a whole number of at least 1", lambda a: (a >= 1) & (a == np.round(a)))

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        return {"rate": Range(1e-3 * self.upper, 3.0 * self.upper, positive=True)}

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Poisson(params["rate"])

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        return jnp.asarray(params["rate"])

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: the mean itself."""
        within = jnp.clip(mean, self.ranges["rate"].lower, self.ranges["rate"].upper)
        return {"rate": within}, within != mean

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`."""
        k = np.arange(self.upper + 1)
        masses = jnp.exp(poisson_log_mass(jnp.asarray(k), jnp.asarray(params["rate"], float)))
        above = special.gammainc(self.upper + 1.0, params["rate"])  # P(k > upper)
        masses = masses.at[-1].add(above)
        return PointMasses(jnp.asarray(k), masses / jnp.sum(masses))
