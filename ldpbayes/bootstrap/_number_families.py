"""Families of numbers: counts, waiting times, normal, beta."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special, stats

from ldpbayes._core.checks import LARGEST_CODE, at_least
from ldpbayes._core.pytrees import checked_field, pytree, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap._family import NumberFamily, Range, clamped_law
from ldpbayes.bootstrap._sums import PointMasses
from ldpbayes.numerics.tails import poisson_log_mass

NORMAL_REACH = 9.0  # standard deviations that hold all of a normal law but 2e-19
POSITIVE = "a positive and finite number"


@pytree
@dataclasses.dataclass(frozen=True)
class Binomial(NumberFamily):
    """Numbers of successes in ``trials`` trials; parameter ``probs``. Nothing needs to be clamped.

    Parameters
    ----------
    trials : int
        Number of trials of a record.
    """

    trials: int = static()

    base: ClassVar = dist.BinomialProbs
    record_range: ClassVar[tuple[float, float]] = (0.0, math.inf)
    lattice_step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", at_least(1, "trials", self.trials, LARGEST_CODE))

    @property
    def lower(self) -> float:  # type: ignore[override]
        return 0.0

    @property
    def upper(self) -> float:  # type: ignore[override]
        return float(self.trials)

    @property
    def known(self) -> Params:  # type: ignore[override]
        return {"total_count": self.trials}

    @property
    def ranges(self) -> dict[str, Range]:
        return {"probs": Range(0.0, 1.0)}

    def constrained(self, vector: Array, like: Params | None = None) -> Params:
        return self.nearest({"probs": vector[0]})  # a probability may be 0 or 1, where a logit is infinite

    def mean(self, params: Params) -> jax.Array:
        return self.trials * params["probs"]

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        share = mean / self.trials
        within = self.nearest({"probs": share})
        return within, within["probs"] != share

    def solve_clamped(self, mean: Array) -> tuple[Params, jax.Array]:
        return self.solve(mean)

    def law(self, params: Params) -> PointMasses:
        p, k = params["probs"], np.arange(self.trials + 1.0)
        choose = special.gammaln(self.trials + 1.0) - special.gammaln(k + 1) - special.gammaln(self.trials - k + 1)
        masses = jnp.exp(choose + special.xlogy(k, p) + special.xlog1py(self.trials - k, -p))
        return PointMasses(jnp.asarray(k), masses / jnp.sum(masses))

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        p = jnp.asarray(params["probs"], float)
        inside = jnp.clip(p, 1e-300, 1 - 1e-16)
        successes = jax.random.binomial(key, count * self.trials, inside, dtype=inside.dtype)
        return jnp.where(p > 0, jnp.where(p < 1, successes, count * self.trials), 0.0)

    def checked(self, data: Array) -> np.ndarray:
        x = super().checked(data)
        if (x > self.trials).any():
            raise ValueError(f"records are numbers of successes out of {self.trials}, got {x.max():g}")
        return x


@pytree
@dataclasses.dataclass(frozen=True)
class Bernoulli(Binomial):
    """Records that are 0 or 1; parameter ``probs``."""

    trials: int = static(default=1, init=False)

    base: ClassVar = dist.BernoulliProbs
    known: ClassVar[Params] = {}


@pytree
@dataclasses.dataclass(frozen=True)
class Poisson(NumberFamily):
    """Poisson counts, those above a bound clamped to it; parameter ``rate``.

    Parameters
    ----------
    upper : int
        The largest count that is not clamped. The rate is looked for from a thousandth of it to three times as much.
    """

    upper: Array = static(default=None)

    base: ClassVar = dist.Poisson
    record_range: ClassVar[tuple[float, float]] = (0.0, math.inf)
    lattice_step: ClassVar[float] = 1.0
    lower = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_field(self, "upper", "a whole number of at least 1", lambda a: (a >= 1) & (a == np.round(a)))

    @property
    def ranges(self) -> dict[str, Range]:
        return {"rate": Range(1e-3 * self.upper, 3.0 * self.upper, positive=True)}

    def mean(self, params: Params) -> jax.Array:
        return jnp.asarray(params["rate"])

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        within = self.nearest({"rate": mean})
        return within, within["rate"] != mean

    def law(self, params: Params) -> PointMasses:
        k = np.arange(self.upper + 1)
        masses = jnp.exp(poisson_log_mass(jnp.asarray(k), jnp.asarray(params["rate"], float)))
        above = special.gammainc(self.upper + 1.0, params["rate"])  # P(k > upper)
        masses = masses.at[-1].add(above)
        return PointMasses(jnp.asarray(k), masses / jnp.sum(masses))


class RateFamily(NumberFamily):
    """Gamma laws of a known field ``concentration``; the parameter is their ``rate``."""

    concentration: Array
    record_range: ClassVar[tuple[float, float]] = (0.0, math.inf)

    @property
    def ranges(self) -> dict[str, Range]:
        c = self.concentration
        return {"rate": Range(0.1 * c / self.upper, 1e3 * c / self.upper, positive=True)}

    def mean(self, params: Params) -> jax.Array:
        return self.concentration / params["rate"]

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        allowed = self.ranges["rate"]
        within = jnp.clip(mean, self.concentration / allowed.upper, self.concentration / allowed.lower)
        return {"rate": self.concentration / within}, within != mean


@pytree
@dataclasses.dataclass(frozen=True)
class Exponential(RateFamily):
    """Exponential records, those above a bound clamped to it; parameter ``rate``.

    Parameters
    ----------
    upper : float
        Bound to which records are clamped, in their unit. Their mean is looked for from a thousandth of it to ten times
        as much.
    """

    upper: Array = None

    base: ClassVar = dist.Exponential
    concentration = 1.0
    lower = 0.0

    def law(self, params: Params) -> PointMasses:
        rate = params["rate"]
        cuts = 0.0, 3 / rate, 42 / rate  # beyond which there is 1e-18
        return clamped_law(cuts, self.lower, self.upper, lambda x: rate * jnp.exp(-rate * x))


def _gamma_law(concentration: Array, rate: Array, lower: Array, upper: Array) -> PointMasses:
    """Clamped gamma law; its density is smooth in the logarithm, falling by exp(−concentration) a unit."""
    mode = jnp.log(concentration / rate)
    left = jnp.sqrt(74 / concentration) + 37 / concentration  # exp(−37) of the density at the mode is left there
    right = jnp.log1p(jnp.sqrt(74 / concentration) + 40 / concentration)

    def density(log_x: jax.Array) -> jax.Array:
        excess = jnp.exp(log_x - mode) - 1 - (log_x - mode)
        at_mode = concentration * (jnp.log(concentration) - 1) - special.gammaln(concentration)
        return jnp.exp(at_mode - concentration * excess)

    low, high = (jnp.log(jnp.asarray(bound, float)) for bound in (lower, upper))
    return clamped_law((mode - left, mode, mode + right), low, high, density, jnp.exp)


def _check_positive_lower(family: NumberFamily) -> None:
    if family.lower is not None:
        checked_field(family, "lower", "a positive number: its logarithm is a statistic", lambda a: a > 0)


@pytree
@dataclasses.dataclass(frozen=True)
class GammaRate(RateFamily):
    """Gamma records of known concentration (shape); parameter ``rate``.

    Parameters
    ----------
    concentration : float
        The shape, known.
    lower, upper : float
        Bounds to which records are clamped, positive, in their unit. Their mean is looked for from a thousandth of the
        upper to ten times as much.
    """

    concentration: Array
    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Gamma

    def __post_init__(self) -> None:
        checked_field(self, "concentration", POSITIVE, lambda a: (a.ndim == 0) & (a > 0) & (a < math.inf))
        _check_positive_lower(self)
        super().__post_init__()

    @property
    def known(self) -> Params:  # type: ignore[override]
        return {"concentration": self.concentration}

    def law(self, params: Params) -> PointMasses:
        return _gamma_law(self.concentration, params["rate"], self.lower, self.upper)


@pytree
@dataclasses.dataclass(frozen=True)
class Gamma(NumberFamily):
    """Gamma records; parameters ``concentration`` (shape) and ``rate``.

    The statistics are the logarithm of the record and the record itself, each from 0 to 1 between the bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, positive, in their unit. The concentration is looked for from 0.01 to 1000,
        the rate so that both bounds can be means.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Gamma
    record_range: ClassVar[tuple[float, float]] = (0.0, math.inf)
    columns: ClassVar[tuple[str, ...]] = ("log x", "x")
    smooth_coordinate: ClassVar = (jnp.log, jnp.exp)

    def __post_init__(self) -> None:
        _check_positive_lower(self)
        super().__post_init__()

    @property
    def ranges(self) -> dict[str, Range]:
        return {
            "concentration": Range(0.01, 1e3, positive=True),
            "rate": Range(1e-3 / self.upper, 1e3 / self.lower, positive=True),
        }

    def _scaled(self, log_x: Array, x: Array) -> jax.Array:
        """The statistics, each from 0 to 1."""
        start, end = jnp.log(self.lower), jnp.log(self.upper)
        return jnp.stack([(log_x - start) / (end - start), (x - self.lower) / self.width], axis=-1)

    def statistics(self, x: Array) -> jax.Array:
        x = self.clamp(x)
        return self._scaled(jnp.log(x), x)

    def sensitivity(self, order: int) -> float:
        """Both statistics increase from 0 to 1, so that the bounds are furthest apart."""
        return {1: 2.0, 2: math.sqrt(2.0)}[order]

    def mean(self, params: Params) -> jax.Array:
        concentration, rate = params["concentration"], params["rate"]
        return self._scaled(special.digamma(concentration) - jnp.log(rate), concentration / rate)

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        """Log k − ψ(k) = log mean(x) − mean(log x) by Newton steps from Minka's approximation.

        A mean of x outside the bounds is brought there. Where the logarithm of the mean is not above the mean of the
        logarithm, there is no maximum: the largest concentration is taken.
        """
        start, end = jnp.log(self.lower), jnp.log(self.upper)
        log_x, x = start + (end - start) * mean[0], self.lower + self.width * mean[1]
        inside = jnp.clip(x, self.lower, self.upper)
        allowed = self.ranges["concentration"]
        gap = jnp.log(inside) - log_x
        least, most = (jnp.log(k) - special.digamma(k) for k in (allowed.upper, allowed.lower))
        clipped = jnp.clip(gap, least, most)
        k = (3 - clipped + jnp.sqrt((clipped - 3) ** 2 + 24 * clipped)) / (12 * clipped)
        for _ in range(5):  # each squares the relative error, which starts below 0.015 ([Minka])
            error = jnp.log(k) - special.digamma(k) - clipped
            k = 1 / (1 / k + error / (k**2 * (1 / k - special.polygamma(1, k))))
        k = jnp.clip(k, allowed.lower, allowed.upper)
        rate = jnp.clip(k / inside, self.ranges["rate"].lower, self.ranges["rate"].upper)
        return {"concentration": k, "rate": rate}, (inside != x) | (clipped != gap)

    def law(self, params: Params) -> PointMasses:
        return _gamma_law(params["concentration"], params["rate"], self.lower, self.upper)


def _normal_law(loc: Array, deviation: Array, lower: Array, upper: Array) -> PointMasses:
    cuts = loc - NORMAL_REACH * deviation, loc, loc + NORMAL_REACH * deviation
    return clamped_law(cuts, lower, upper, lambda x: stats.norm.pdf(x, loc, deviation))


@pytree
@dataclasses.dataclass(frozen=True)
class NormalMean(NumberFamily):
    """Normal records of known standard deviation; parameter ``loc``.

    Parameters
    ----------
    scale : float
        The standard deviation, known.
    lower, upper : float
        Bounds to which records are clamped, in their unit. The mean is looked for up to the distance of the bounds
        beyond them.
    """

    scale: Array
    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Normal

    def __post_init__(self) -> None:
        checked_field(self, "scale", POSITIVE, lambda a: (a.ndim == 0) & (a > 0) & (a < math.inf))
        super().__post_init__()

    @property
    def known(self) -> Params:  # type: ignore[override]
        return {"scale": self.scale}

    @property
    def ranges(self) -> dict[str, Range]:
        return {"loc": Range(self.lower - self.width, self.upper + self.width)}

    def mean(self, params: Params) -> jax.Array:
        return jnp.asarray(params["loc"])

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        within = self.nearest({"loc": mean})
        return within, within["loc"] != mean

    def law(self, params: Params) -> PointMasses:
        return _normal_law(params["loc"], self.scale, self.lower, self.upper)


@pytree
@dataclasses.dataclass(frozen=True)
class Normal(NumberFamily):
    """Normal records of unknown mean and standard deviation; parameters ``loc`` and ``scale``, as NumPyro's.

    The statistics are u and u², with u = −1 and 1 at the bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, in their unit. The mean is looked for up to their distance beyond them,
        the standard deviation from a thousandth of it to ten times as much.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Normal
    columns: ClassVar[tuple[str, ...]] = ("u", "u*u")

    @property
    def ranges(self) -> dict[str, Range]:
        width = self.width
        return {
            "loc": Range(self.lower - width, self.upper + width),
            "scale": Range(1e-3 * width, 10 * width, positive=True),
        }

    def _standardised(self, x: Array) -> Array:
        return (x - (self.lower + self.upper) / 2) / (self.width / 2)

    def statistics(self, x: Array) -> jax.Array:
        u = self._standardised(self.clamp(x))
        return jnp.stack([u, u**2], axis=-1)

    def sensitivity(self, order: int) -> float:
        """9/4 at u = 1, −1/2; or 2 at u = ±1.

        With m = |u − u'|/2 and p = |u + u'|/2 ≤ 1 − m, the distances are 2m + 4pm ≤ 6m − 4m², which is largest at
        m = 3/4, and (2m)² + (4pm)² ≤ 4m² (1 + 4 (1 − m)²), which increases on [0, 1].
        """
        return {1: 2.25, 2: 2.0}[order]

    def mean(self, params: Params) -> jax.Array:
        loc, deviation = self._standardised(params["loc"]), params["scale"] / (self.width / 2)
        return jnp.stack([loc, loc**2 + deviation**2])

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        ranges, half = self.ranges, self.width / 2
        loc = (self.lower + self.upper) / 2 + half * mean[0]
        variance = half**2 * (mean[1] - mean[0] ** 2)
        within = jnp.clip(loc, ranges["loc"].lower, ranges["loc"].upper)
        clipped = jnp.clip(variance, ranges["scale"].lower ** 2, ranges["scale"].upper ** 2)
        return {"loc": within, "scale": jnp.sqrt(clipped)}, (within != loc) | (clipped != variance)

    def law(self, params: Params) -> PointMasses:
        return _normal_law(params["loc"], params["scale"], self.lower, self.upper)


@pytree
@dataclasses.dataclass(frozen=True)
class Beta(NumberFamily):
    """Beta records; parameters ``concentration1`` and ``concentration0``.

    The statistics are log x and log(1 − x), each from 0 to 1 between the bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, inside (0, 1). Both concentrations are looked for from 0.01 to 1000.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Beta
    record_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    columns: ClassVar[tuple[str, ...]] = ("log x", "log(1 - x)")
    smooth_coordinate: ClassVar = (special.logit, special.expit)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lower", "upper"):
            allowed = "inside (0, 1): logarithms of x and 1 - x are the statistics"
            checked_field(self, name, allowed, lambda a: (a > 0) & (a < 1))

    @property
    def ranges(self) -> dict[str, Range]:
        return {name: Range(0.01, 1e3, positive=True) for name in ("concentration0", "concentration1")}

    def _scaled(self, log_x: Array, log_rest: Array) -> jax.Array:
        """The statistics, each from 0 to 1."""
        lower, upper = jnp.asarray(self.lower, float), jnp.asarray(self.upper, float)
        first = (log_x - jnp.log(lower)) / (jnp.log(upper) - jnp.log(lower))
        second = (log_rest - jnp.log1p(-upper)) / (jnp.log1p(-lower) - jnp.log1p(-upper))
        return jnp.stack([first, second], axis=-1)

    def statistics(self, x: Array) -> jax.Array:
        x = self.clamp(x)
        return self._scaled(jnp.log(x), jnp.log1p(-x))

    def sensitivity(self, order: int) -> float:
        """One statistic increases from 0 to 1, the other falls, so that the bounds are furthest apart."""
        return {1: 2.0, 2: math.sqrt(2.0)}[order]

    def mean(self, params: Params) -> jax.Array:
        one, zero = params["concentration1"], params["concentration0"]
        both = special.digamma(one + zero)
        return self._scaled(special.digamma(one) - both, special.digamma(zero) - both)

    def law(self, params: Params) -> PointMasses:
        """The density is smooth in the logit, falling exponentially on both sides."""
        one, zero = params["concentration1"], params["concentration0"]
        mode, near = jnp.log(one / zero), jnp.sqrt(74 * (1 / one + 1 / zero))

        def density(logit: jax.Array) -> jax.Array:
            log_x, log_rest = -jnp.logaddexp(0.0, -logit), -jnp.logaddexp(0.0, logit)
            return jnp.exp(one * log_x + zero * log_rest - special.betaln(one, zero))

        low, high = (special.logit(jnp.asarray(bound, float)) for bound in (self.lower, self.upper))
        cuts = mode - near - 37 / one, mode, mode + near + 37 / zero
        return clamped_law(cuts, low, high, density, special.expit)
