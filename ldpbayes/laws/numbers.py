"""Laplace, exponential, gamma, beta, Cauchy, logistic and Student laws."""

import abc
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special

from ldpbayes._core.pytrees import pytree_dataclass
from ldpbayes._core.types import Array, Params
from ldpbayes.laws.families import Family, is_empty, register_family
from ldpbayes.laws.parametric import NumberFamily, OneParameterFamily
from ldpbayes.numerics import tails
from ldpbayes.numerics.special import betainc, log1mexp, stacked, student_t_cdf


@register_family(dist.Beta)
class _OfBeta(Family):
    def cdf(self, x: Array) -> jax.Array:
        """With derivatives in both concentrations, which NumPyro's own lacks."""
        return betainc(1.0 * self.law.concentration1, 1.0 * self.law.concentration0, x)  # perhaps whole numbers


@register_family(dist.Cauchy, dist.HalfCauchy)
class _OfCauchy(Family):
    tame = True

    def centres(self) -> list[tuple[Array, Array]]:
        """Without moments, of which there are none, or which may be infinite."""
        return [(getattr(self.law, "loc", 0.0), self.law.scale)]


@register_family(dist.Logistic)
class _OfLogistic(Family):
    tame = True

    def tails(self, x: Array) -> jax.Array:
        return tails.logistic_tails((x - self.law.loc) / self.law.scale)


@register_family(dist.StudentT)
class _OfStudentT(_OfCauchy):
    tame = False

    def cdf(self, x: Array) -> jax.Array:
        """With a derivative in the degrees of freedom, which NumPyro's own lacks."""
        return student_t_cdf(self.law.df, (x - self.law.loc) / self.law.scale)

    def tails(self, x: Array) -> jax.Array:
        return tails.student_t_tails(self.law.df, (x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Array) -> jax.Array:
        return self.law.scale * tails.integrated_student_t_tail(self.law.df, (edges - self.law.loc) / self.law.scale)


@register_family(dist.AsymmetricLaplace, dist.AsymmetricLaplaceQuantile)
class _OfAsymmetricLaplace(Family):
    def breaks(self) -> list[Array]:
        return [self.law.loc]


@register_family(dist.Laplace)
class _OfLaplace(_OfAsymmetricLaplace):
    tame = True

    def cdf(self, x: Array) -> jax.Array:
        """With a derivative at the centre, which NumPyro's own lacks."""
        return self.tails(x)[0]

    def tails(self, x: Array) -> jax.Array:
        return tails.laplace_tails((x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Array) -> jax.Array:
        return self.law.scale * tails.integrated_laplace_tail((edges - self.law.loc) / self.law.scale)


@register_family(dist.Exponential)
class _OfExponential(Family):
    tame = True

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        below = -np.inf if is_empty(first, 0.0, -1) else log1mexp(-self.law.rate * jnp.maximum(first, 0.0))
        return stacked(below, -self.law.rate * jnp.maximum(last, 0.0))


class WaitingTimes(OneParameterFamily):
    """Gamma records of a known field ``concentration``; the parameter is their ``rate``."""

    concentration: Array
    record_range = (0.0, math.inf)
    ranges = property(lambda self: {"rate": tuple(c * self.concentration / self.upper for c in (0.1, 1e3))})

    def of_mean(self, mean: Array) -> Array:
        return self.concentration / mean


@pytree_dataclass
class Exponential(WaitingTimes):
    """Family of exponential records. The parameter is ``rate``; 1/``rate`` is from ``upper``/1000 to 10 ``upper``."""

    option: ClassVar = "exponential"
    upper: Array = None
    base: ClassVar = dist.Exponential
    concentration = 1.0
    lower = 0.0

    def reach(self, record: dist.Exponential) -> tuple[Array, Array, Array]:
        return 0.0, 3 / record.rate, 42 / record.rate  # beyond which there is 1e-18


class GammaLaw(NumberFamily):
    """The gamma law, whose density is smooth in the logarithm, falling by exp(−concentration) a unit."""

    base: ClassVar = dist.Gamma
    record_range = (0.0, math.inf)
    open_range: ClassVar[str | None] = "and positive, because the logarithm of a record is a statistic"
    coordinate: ClassVar = (jnp.log, jnp.exp)

    def reach(self, record: dist.Gamma) -> tuple[Array, Array, Array]:
        concentration, mode = record.concentration, jnp.log(record.concentration / record.rate)
        left = jnp.sqrt(74 / concentration) + 37 / concentration  # exp(−37) of the density at the mode is left there
        return mode - left, mode, mode + jnp.log1p(jnp.sqrt(74 / concentration) + 40 / concentration)

    def density(self, record: dist.Gamma, y: Array) -> jax.Array:
        concentration = record.concentration
        away = y - jnp.log(concentration / record.rate)
        at_mode = concentration * (jnp.log(concentration) - 1) - special.gammaln(concentration)
        return jnp.exp(at_mode - concentration * (jnp.exp(away) - 1 - away))


@pytree_dataclass
class GammaRate(WaitingTimes, GammaLaw):
    """Family of gamma records of a known shape ``concentration`` (positive), with positive bounds.

    The parameter is ``rate``. The estimated mean is limited to the range from ``upper``/1000 to 10 ``upper``.
    """

    option: ClassVar = "gamma_rate"
    option_help: ClassVar = {"concentration": "known shape"}
    concentration: Array
    lower: Array = None
    upper: Array = None
    known_arguments: ClassVar = ("concentration",)


class ScaledStatistics(NumberFamily):
    """Families of two monotone statistics of a record, each moved and scaled to be 0 at a bound and 1 at the other."""

    @abc.abstractmethod
    def natural(self, x: Array) -> jax.Array:
        """The statistics (*batch, 2) in their own units."""

    def extremes(self) -> tuple[jax.Array, jax.Array]:
        """Their least and their largest values (2,) between the bounds."""
        ends = [self.natural(jnp.asarray(end, float)) for end in (self.lower, self.upper)]
        return jnp.minimum(*ends), jnp.maximum(*ends)

    def scaled(self, natural: jax.Array) -> jax.Array:
        least, most = self.extremes()
        return (natural - least) / (most - least)

    def statistics(self, x: Array) -> jax.Array:
        return self.scaled(self.natural(self.clamp(x)))

    def sensitivity(self, order: int) -> float:
        return {1: 2.0, 2: math.sqrt(2.0)}[order]  # between the bounds: both statistics move from 0 to 1 or back


@pytree_dataclass
class Gamma(ScaledStatistics, GammaLaw):
    """Family of gamma records, with positive bounds. The parameters are ``concentration``, the shape, and ``rate``.

    The statistics are log x and x, scaled to the range from 0 to 1 between the bounds. The concentration is estimated
    from 0.01 to 1000, and the rate from 0.001/``upper`` to 1000/``lower``.
    """

    option: ClassVar = "gamma"
    lower: Array = None
    upper: Array = None
    columns: ClassVar[tuple[str, ...]] = ("log x", "x")
    ranges = property(lambda self: {"concentration": (0.01, 1e3), "rate": (1e-3 / self.upper, 1e3 / self.lower)})

    def natural(self, x: Array) -> jax.Array:
        return jnp.stack([jnp.log(x), x], axis=-1)

    def mean(self, params: Params) -> jax.Array:
        concentration, rate = params["concentration"], params["rate"]
        return self.scaled(jnp.stack([special.digamma(concentration) - jnp.log(rate), concentration / rate]))

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Solve log k − ψ(k) = log mean(x) − mean(log x) for the concentration k, ψ the digamma function ([Minka]). If
        the right side is not positive, the likelihood has no maximum, and k is the largest allowed number.
        """
        least, most = self.extremes()
        log_x, x = least + (most - least) * mean
        inside = jnp.clip(x, self.lower, self.upper)
        ks, rates = self.ranges["concentration"], self.ranges["rate"]
        gap = jnp.log(inside) - log_x
        clipped = jnp.clip(gap, *(jnp.log(k) - special.digamma(k) for k in ks[::-1]))
        k = (3 - clipped + jnp.sqrt((clipped - 3) ** 2 + 24 * clipped)) / (12 * clipped)
        for _ in range(5):  # each squares the relative error, which starts below 0.015 ([Minka])
            error = jnp.log(k) - special.digamma(k) - clipped
            k = 1 / (1 / k + error / (k**2 * (1 / k - special.polygamma(1, k))))
        k = jnp.clip(k, *ks)
        return {"concentration": k, "rate": jnp.clip(k / inside, *rates)}, (inside != x) | (clipped != gap)


@pytree_dataclass
class Beta(ScaledStatistics):
    """Family of beta records, of density ∝ x^(``concentration1`` − 1) (1 − x)^(``concentration0`` − 1).

    The statistics are log x and log(1 − x), scaled to the range from 0 to 1 between the bounds, which must be strictly
    between 0 and 1. Both parameters, the concentrations, are estimated from 0.01 to 1000.
    """

    option: ClassVar = "beta"
    lower: Array = None
    upper: Array = None
    base: ClassVar = dist.Beta
    record_range = (0.0, 1.0)
    open_range: ClassVar[str | None] = "but not an end, because log(x) and log(1 - x) are the statistics"
    columns: ClassVar[tuple[str, ...]] = ("log x", "log(1 - x)")
    coordinate: ClassVar = (special.logit, special.expit)
    ranges = {"concentration0": (0.01, 1e3), "concentration1": (0.01, 1e3)}

    def natural(self, x: Array) -> jax.Array:
        return jnp.stack([jnp.log(x), jnp.log1p(-x)], axis=-1)

    def mean(self, params: Params) -> jax.Array:
        both = jnp.stack([params["concentration1"], params["concentration0"]])
        return self.scaled(special.digamma(both) - special.digamma(jnp.sum(both)))

    def reach(self, record: dist.Beta) -> tuple[Array, Array, Array]:
        one, zero = record.concentration1, record.concentration0
        mode, near = jnp.log(one / zero), jnp.sqrt(74 * (1 / one + 1 / zero))
        return mode - near - 37 / one, mode, mode + near + 37 / zero  # the density falls exponentially on both sides

    def density(self, record: dist.Beta, y: Array) -> jax.Array:
        one, zero = record.concentration1, record.concentration0
        log_x, log_rest = -jnp.logaddexp(0.0, -y), -jnp.logaddexp(0.0, y)
        return jnp.exp(one * log_x + zero * log_rest - special.betaln(one, zero))
