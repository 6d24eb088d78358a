"""Exponential and gamma records: statistics are the record and its logarithm."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy import special

from ldpbayes._pytree import checked_field, pytree
from ldpbayes.bootstrap.families._family import Params
from ldpbayes.bootstrap.families._on_the_line import OnTheLine, Range, rule_between
from ldpbayes.numerics._point_masses import PointMasses

__all__ = ["Exponential", "Gamma", "GammaRate"]


@pytree
@dataclasses.dataclass(frozen=True)
class Exponential(OnTheLine):
    """Exponential records, those above a bound clamped to it; parameter ``rate``.

    Parameters
    ----------
    upper : float
        Bound to which records are clamped, in their unit. Their mean is looked for from a thousandth of it to ten times
        as much.
    """

    upper: Any = None

    natural: ClassVar[tuple[float, float]] = (0.0, math.inf)
    lower = 0.0

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        return {"rate": Range(0.1 / self.upper, 1e3 / self.upper, positive=True)}

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Exponential(params["rate"])

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        return 1 / params["rate"]

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: one over the mean."""
        return _rate(1.0, mean, self.ranges["rate"])

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`."""
        rate = params["rate"]
        return rule_between(
            0.0,
            3 / rate,
            42 / rate,  # beyond which there is 1e-18
            self.lower,
            self.upper,
            lambda x: rate * jnp.exp(-rate * x),
        )


def _rate(concentration: Any, mean: jax.Array, allowed: Range) -> tuple[Params, jax.Array]:
    """Rate of a gamma law with a mean, that may be none, inside a range."""
    least, most = concentration / allowed.upper, concentration / allowed.lower
    within = jnp.clip(mean, least, most)
    return {"rate": concentration / within}, within != mean


def _law(concentration: Any, rate: Any, lower: Any, upper: Any) -> PointMasses:
    """Of a clamped gamma variable; its density is smooth in the logarithm, falling by exp(−concentration) a unit."""
    mode = jnp.log(concentration / rate)
    left = jnp.sqrt(74 / concentration) + 37 / concentration  # exp(−37) of the density at the mode is left there
    right = jnp.log1p(jnp.sqrt(74 / concentration) + 40 / concentration)

    def density(log_x: jax.Array) -> jax.Array:
        excess = jnp.exp(log_x - mode) - 1 - (log_x - mode)
        at_mode = concentration * (jnp.log(concentration) - 1) - special.gammaln(concentration)
        return jnp.exp(at_mode - concentration * excess)

    return rule_between(
        mode - left,
        mode,
        mode + right,
        jnp.log(jnp.asarray(lower, float)),
        jnp.log(jnp.asarray(upper, float)),
        density,
        jnp.exp,
    )


def _check_positive_lower(family: Any) -> None:
    if family.lower is not None:
        checked_field(family, "lower", "a positive number: its logarithm is a statistic", lambda a: a > 0)


@pytree
@dataclasses.dataclass(frozen=True)
class GammaRate(OnTheLine):
    """Gamma records of known concentration (shape); parameter ``rate``.

    Parameters
    ----------
    concentration : float
        The shape, known.
    lower, upper : float
        Bounds to which records are clamped, positive, in their unit. Their mean is looked for from a thousandth of the
        upper to ten times as much.
    """

    concentration: Any
    lower: Any = None
    upper: Any = None

    natural: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def __post_init__(self) -> None:
        allowed = "a positive and finite number"
        checked_field(self, "concentration", allowed, lambda a: (a.ndim == 0) & (a > 0) & (a < math.inf))
        _check_positive_lower(self)
        super().__post_init__()

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        c = self.concentration
        return {"rate": Range(0.1 * c / self.upper, 1e3 * c / self.upper, positive=True)}

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Gamma(self.concentration, params["rate"])

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        return self.concentration / params["rate"]

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: the concentration over the mean."""
        return _rate(self.concentration, mean, self.ranges["rate"])

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`."""
        return _law(self.concentration, params["rate"], self.lower, self.upper)


@pytree
@dataclasses.dataclass(frozen=True)
class Gamma(OnTheLine):
    """Gamma records; parameters ``concentration`` (shape) and ``rate``.

    The statistics are the logarithm of the record and the record itself, each from 0 to 1 between the bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, positive, in their unit. The concentration is looked for from 0.01 to 1000,
        the rate so that both bounds can be means.
    """

    lower: Any = None
    upper: Any = None

    natural: ClassVar[tuple[float, float]] = (0.0, math.inf)
    columns: ClassVar[tuple[str, ...]] = ("log x", "x")
    coordinate: ClassVar = (jnp.log, jnp.exp)

    def __post_init__(self) -> None:
        _check_positive_lower(self)
        super().__post_init__()

    @property
    def ranges(self) -> dict[str, Range]:
        """See `Family.ranges`."""
        return {
            "concentration": Range(0.01, 1e3, positive=True),
            "rate": Range(1e-3 / self.upper, 1e3 / self.lower, positive=True),
        }

    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """See `Family.distribution`."""
        return dist.Gamma(params["concentration"], params["rate"])

    def _units(self, log_x: Any, x: Any) -> jax.Array:
        """The statistics, each from 0 to 1."""
        start, end = jnp.log(self.lower), jnp.log(self.upper)
        return jnp.stack([(log_x - start) / (end - start), (x - self.lower) / self.width], axis=-1)

    def _raw(self, mean: jax.Array) -> tuple[jax.Array, jax.Array]:
        start, end = jnp.log(self.lower), jnp.log(self.upper)
        return start + (end - start) * mean[0], self.lower + self.width * mean[1]

    def statistics(self, x: Any) -> jax.Array:
        """See `Family.statistics`."""
        x = self.clamp(x)
        return self._units(jnp.log(x), x)

    def sensitivity(self, order: int) -> float:
        """See `Family.sensitivity`: both statistics increase from 0 to 1, so that the bounds are furthest apart."""
        return {1: 2.0, 2: math.sqrt(2.0)}[order]

    def mean(self, params: Mapping[str, Any]) -> jax.Array:
        """See `Family.mean`."""
        concentration, rate = params["concentration"], params["rate"]
        return self._units(special.digamma(concentration) - jnp.log(rate), concentration / rate)

    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """See `Family.solve`: log k − ψ(k) = log mean(x) − mean(log x) by Newton steps from Minka's approximation.

        A mean of x outside the bounds is brought there. Where the logarithm of the mean is not above the mean of the
        logarithm, there is no maximum: the largest concentration is taken.
        """
        log_x, x = self._raw(mean)
        inside = jnp.clip(x, self.lower, self.upper)
        allowed = self.ranges["concentration"]
        gap = jnp.log(inside) - log_x
        least, most = (jnp.log(k) - special.digamma(k) for k in (allowed.upper, allowed.lower))
        kept = jnp.clip(gap, least, most)
        k = (3 - kept + jnp.sqrt((kept - 3) ** 2 + 24 * kept)) / (12 * kept)
        for _ in range(5):  # each squares the relative error, which starts below 0.015 ([Minka])
            miss = jnp.log(k) - special.digamma(k) - kept
            k = 1 / (1 / k + miss / (k**2 * (1 / k - special.polygamma(1, k))))
        k = jnp.clip(k, allowed.lower, allowed.upper)
        rate = jnp.clip(k / inside, self.ranges["rate"].lower, self.ranges["rate"].upper)
        return {"concentration": k, "rate": rate}, (inside != x) | (kept != gap)

    def law(self, params: Mapping[str, Any]) -> PointMasses:
        """See `OnTheLine.law`."""
        return _law(params["concentration"], params["rate"], self.lower, self.upper)
