"""Families of numbers (counts, waiting times, normal, beta), of codes and of rows."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special, stats

from ldpbayes._core.checks import LARGEST_CODE, ONE_POSITIVE, at_least, check_order
from ldpbayes._core.pytrees import checked_field, pytree, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap._clamped_sums import PointMasses
from ldpbayes.bootstrap._parametric_family import NumberFamily, ParametricFamily, Range, clamped_law
from ldpbayes.numerics.arrays import diagonal_first_pairs, packed, unpacked
from ldpbayes.numerics.tails import poisson_log_mass

NORMAL_REACH = 9.0  # standard deviations that hold all of a normal law but 2e-19
LEAST_VARIANCE = 4e-6  # in any direction, for bounds -1 and 1: a thousandth of their distance, squared
BLOCK = 2048  # records that are drawn at a time


@pytree
@dataclasses.dataclass(frozen=True)
class Binomial(NumberFamily):
    """Numbers of successes in ``trials`` trials, an integer; parameter ``probs``. Nothing needs to be clamped."""

    trials: int = static()

    base: ClassVar = dist.BinomialProbs
    known: ClassVar = {"total_count": "trials"}
    record_range: ClassVar[tuple[float, float]] = (0.0, math.inf)
    lattice_step: ClassVar[float] = 1.0
    lower = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", at_least(1, "trials", self.trials, LARGEST_CODE))

    @property
    def upper(self) -> float:  # type: ignore[override]
        return float(self.trials)

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
    known: ClassVar = {}


@pytree
@dataclasses.dataclass(frozen=True)
class Poisson(NumberFamily):
    """Poisson counts, those above ``upper`` clamped to it; parameter ``rate``.

    The rate is looked for from a thousandth of the bound to three times as much.
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
    """Exponential records, those above ``upper`` clamped to it; parameter ``rate``.

    Their mean is looked for from a thousandth of the bound to ten times as much.
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
    """Gamma records of known concentration; parameter ``rate``.

    Their mean is looked for from a thousandth of the upper bound to ten times as much.

    Parameters
    ----------
    concentration : float
        The shape, known, positive and finite, else ValueError.
    lower, upper : float
        Bounds to which records are clamped, as for `Gamma`.
    """

    concentration: Array
    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Gamma
    known: ClassVar = {"concentration": "concentration"}

    def __post_init__(self) -> None:
        checked_field(self, "concentration", *ONE_POSITIVE)
        _check_positive_lower(self)
        super().__post_init__()

    def law(self, params: Params) -> PointMasses:
        return _gamma_law(self.concentration, params["rate"], self.lower, self.upper)


@pytree
@dataclasses.dataclass(frozen=True)
class Gamma(NumberFamily):
    """Gamma records; parameters ``concentration`` (shape) and ``rate``.

    The statistics are the logarithm of the record and the record itself, each from 0 to 1 between the bounds. The
    concentration is looked for from 0.01 to 1000, the rate so that both bounds can be means.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, in their unit, positive and in order, else ValueError.
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
        rate = Range(1e-3 / self.upper, 1e3 / self.lower, positive=True)
        return {"concentration": Range(0.01, 1e3, positive=True), "rate": rate}

    def _scaled(self, log_x: Array, x: Array) -> jax.Array:
        start, end = jnp.log(self.lower), jnp.log(self.upper)
        return jnp.stack([(log_x - start) / (end - start), (x - self.lower) / self.width], axis=-1)

    def statistics(self, x: Array) -> jax.Array:
        x = self.clamp(x)
        return self._scaled(jnp.log(x), x)

    def sensitivity(self, order: int) -> float:
        return {1: 2.0, 2: math.sqrt(2.0)}[order]  # between the bounds: both statistics increase from 0 to 1

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

    The mean is looked for up to the distance of the bounds beyond them.

    Parameters
    ----------
    scale : float
        The standard deviation, known, positive and finite, else ValueError.
    lower, upper : float
        Bounds to which records are clamped, as for `Normal`.
    """

    scale: Array
    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Normal
    known: ClassVar = {"scale": "scale"}

    def __post_init__(self) -> None:
        checked_field(self, "scale", *ONE_POSITIVE)
        super().__post_init__()

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

    The statistics are u and u², with u = −1 and 1 at the bounds. The mean is looked for up to the bounds' distance
    beyond them, the standard deviation from a thousandth of it to ten times as much.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, in their unit, finite and in order, else ValueError.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Normal
    columns: ClassVar[tuple[str, ...]] = ("u", "u*u")

    @property
    def ranges(self) -> dict[str, Range]:
        scale = Range(1e-3 * self.width, 10 * self.width, positive=True)
        return {"loc": Range(self.lower - self.width, self.upper + self.width), "scale": scale}

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

    The statistics are log x and log(1 − x), each from 0 to 1 between the bounds. Both concentrations are looked for
    from 0.01 to 1000.

    Parameters
    ----------
    lower, upper : float
        Bounds to which records are clamped, inside (0, 1) and in order, else ValueError.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.Beta
    record_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    columns: ClassVar[tuple[str, ...]] = ("log x", "log(1 - x)")
    smooth_coordinate: ClassVar = (special.logit, special.expit)

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "inside (0, 1): logarithms of x and 1 - x are the statistics"
        for name in ("lower", "upper"):
            checked_field(self, name, allowed, lambda a: (a > 0) & (a < 1))

    @property
    def ranges(self) -> dict[str, Range]:
        return {name: Range(0.01, 1e3, positive=True) for name in ("concentration0", "concentration1")}

    def _scaled(self, log_x: Array, log_rest: Array) -> jax.Array:
        lower, upper = jnp.asarray(self.lower, float), jnp.asarray(self.upper, float)
        first = (log_x - jnp.log(lower)) / (jnp.log(upper) - jnp.log(lower))
        second = (log_rest - jnp.log1p(-upper)) / (jnp.log1p(-lower) - jnp.log1p(-upper))
        return jnp.stack([first, second], axis=-1)

    def statistics(self, x: Array) -> jax.Array:
        x = self.clamp(x)
        return self._scaled(jnp.log(x), jnp.log1p(-x))

    def sensitivity(self, order: int) -> float:
        return {1: 2.0, 2: math.sqrt(2.0)}[order]  # between the bounds: one rises from 0 to 1, the other falls

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


@pytree
@dataclasses.dataclass(frozen=True)
class Multinomial(ParametricFamily):
    """Records that are codes of 2 or more categories; parameter ``probs`` (categories,)."""

    categories: int = static()

    base: ClassVar = dist.CategoricalProbs
    lattice_step: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", at_least(2, "categories", self.categories, LARGEST_CODE))

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"category {k}" for k in range(self.categories))

    def statistics(self, x: Array) -> jax.Array:
        return jax.nn.one_hot(jnp.asarray(x), self.categories, dtype=float)

    def sensitivity(self, order: int) -> float:
        return {1: 2.0, 2: math.sqrt(2.0)}[order]  # one count falls by one, another rises

    def nearest(self, params: Params) -> Params:
        """The nearest point of the simplex, by Euclidean distance ([WC])."""
        falling = jnp.sort(params["probs"])[::-1]
        excess = (jnp.cumsum(falling) - 1) / jnp.arange(1, self.categories + 1)
        kept = jnp.sum(falling > excess)
        probs = jnp.maximum(params["probs"] - excess[kept - 1], 0.0)
        return {"probs": probs / jnp.sum(probs)}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        within = self.nearest({"probs": mean})
        return within, jnp.any(within["probs"] == 0)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Covariance of shares that sum to one, but may be negative."""
        p, size = params["probs"], self.categories
        centred = jnp.eye(size) - 1 / size
        return (jnp.diag(p) - jnp.outer(p, p)) / count + noise / count**2 * centred

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        return PointMasses(jnp.arange(self.categories), params["probs"]).counts(key, count)

    def checked(self, data: Array) -> np.ndarray:
        x = np.asarray(data)
        if x.ndim != 1 or not x.size or x.dtype.kind not in "iufb" or not (x == np.round(x)).all():
            raise ValueError(f"Multinomial takes an array of codes (n,), got shape {x.shape} of {x.dtype}")
        if x.min() < 0 or x.max() >= self.categories:
            raise ValueError(f"codes must be from 0 to {self.categories - 1}, got {x.min():g} to {x.max():g}")
        return x.astype(int)


@pytree
@dataclasses.dataclass(frozen=True)
class NormalVector(ParametricFamily):
    """Normal rows of unknown mean and covariance; parameters ``loc`` (d,) and ``covariance_matrix`` (d, d).

    The statistics are u_j, u_j² and √2 u_j u_k (j < k), with u = −1 and 1 at the bounds. A mean is brought between the
    bounds; variances in any direction are at least a thousandth of their distance, squared.

    Parameters
    ----------
    lower, upper : array_like (d,)
        Bounds to which the columns are clamped, in their units, finite and in order, else ValueError.
    """

    lower: Array = None
    upper: Array = None

    base: ClassVar = dist.MultivariateNormal
    accounts_for_clamping: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{type(self).__name__} needs bounds to which columns are clamped, chosen without looking at them: "
                    f"{name} is missing"
                )
            checked_field(self, name, "finite numbers, one a column", np.isfinite)
        if np.ndim(self.lower) != 1 or np.shape(self.lower) != np.shape(self.upper):
            shapes = f"{np.shape(self.lower)} and {np.shape(self.upper)}"
            raise ValueError(f"lower and upper must be arrays, one a column; got shapes {shapes}")
        check_order(self.lower, self.upper)

    @property
    def dimension(self) -> int:
        return len(self.lower)

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        d = self.dimension
        first = tuple(f"u{j}" for j in range(d))
        return first + tuple(f"u{j}*u{k}" for j, k in zip(*diagonal_first_pairs(d), strict=True))

    @property
    def centre(self) -> Array:
        return (self.lower + self.upper) / 2

    @property
    def half(self) -> Array:
        return (self.upper - self.lower) / 2

    def statistics(self, x: Array) -> jax.Array:
        x = jnp.asarray(x)
        u = (jnp.clip(x.astype(jnp.result_type(x, float)), self.lower, self.upper) - self.centre) / self.half
        return jnp.concatenate([u, packed(u[..., :, None] * u[..., None, :], "scaled")], axis=-1)

    def sensitivity(self, order: int) -> float:
        """D (6 + 2√2 (d − 1))²/(4 (2√2 d + 4 − 2√2)), or √(2d (d + 1)).

        With m = |u − u'|/2 and p = |u + u'|/2 ≤ 1 − m in each column, |u_j u_k − u'_j u'_k| is at most
        2 (p_j m_k + m_j p_k), so that u = 1 everywhere is as good as anything, and u' = 1 − 2m. With M = Σm and s = √2
        the sum of the absolute differences is (6 + 2s(d − 1)) M − 2s M² − (4 − 2s) Σm²: concave, so largest where all m
        are equal. The squared distance is that of u' alone, |1 − u'|² + d² + |u'|⁴ − 2 (1·u')²; convex in each column
        for d > 1, so that u' is a corner, and largest where its columns sum to 0 or −1.
        """
        d, s = self.dimension, math.sqrt(2.0)
        if order == 2:
            return math.sqrt(2.0 * d * (d + 1))
        return d * (6 + 2 * s * (d - 1)) ** 2 / (4 * (2 * s * d + 4 - 2 * s))

    def split(self, mean: Array) -> tuple[jax.Array, jax.Array]:
        """First (d,) and second (d, d) moments of the standardised columns, from a noisy mean of statistics."""
        d = self.dimension
        return mean[:d], unpacked(mean[d:], d, "scaled")

    def checked(self, data: Array) -> np.ndarray:
        x = np.asarray(data)
        if x.ndim != 2 or not len(x) or x.shape[1] != self.dimension or x.dtype.kind not in "iufb":
            rows = f"rows (n, {self.dimension}) of numbers"
            raise ValueError(f"{type(self).__name__} takes {rows}, got shape {x.shape} of {x.dtype}")
        if not np.isfinite(x).all():
            raise ValueError(f"records must be finite; {(~np.isfinite(x).all(axis=1)).sum()} rows are not")
        return x.astype(float)

    def nearest(self, params: Params) -> Params:
        unit = jnp.outer(self.half, self.half)
        covariance, _ = with_least_eigenvalue(params["covariance_matrix"] / unit, LEAST_VARIANCE)
        return {"loc": jnp.clip(params["loc"], self.lower, self.upper), "covariance_matrix": covariance * unit}

    def unconstrained(self, params: Params) -> jax.Array:
        return jnp.concatenate([params["loc"], log_cholesky(params["covariance_matrix"])])

    def constrained(self, vector: Array, like: Params | None = None) -> Params:
        d = self.dimension
        return {"loc": vector[:d], "covariance_matrix": from_log_cholesky(vector[d:], d)}

    def solve(self, mean: Array) -> tuple[Params, jax.Array]:
        first, second = self.split(mean)
        within = jnp.clip(first, -1.0, 1.0)
        covariance, raised = with_least_eigenvalue(second - jnp.outer(within, within), LEAST_VARIANCE)
        loc, unit = self.centre + self.half * within, jnp.outer(self.half, self.half)
        return {"loc": loc, "covariance_matrix": covariance * unit}, raised | jnp.any(within != first)

    def covariance(self, params: Params, noise: Array, count: Array, *, clamped: bool) -> jax.Array:
        """Of the entries of the matrix Σ it is (Σ_ik Σ_jl + Σ_il Σ_jk)/n, and the noise's."""
        covariance, d = params["covariance_matrix"], self.dimension
        once = jnp.einsum("ik,jl->ijkl", covariance, covariance)
        of_second = (once + once.swapaxes(0, 1)).reshape(d * d, d * d)
        first = (params["loc"] - self.centre) / self.half
        second = covariance / jnp.outer(self.half, self.half) + jnp.outer(first, first)

        def flat_params(mean: jax.Array) -> jax.Array:
            one, two = self.split(mean)
            entries = (two - jnp.outer(one, one)) * jnp.outer(self.half, self.half)
            return jnp.concatenate([entries.ravel(), self.half * one])

        response = jax.jacfwd(flat_params)(jnp.concatenate([first, packed(second, "scaled")]))
        of_records = jax.scipy.linalg.block_diag(of_second, covariance) / count
        return of_records + noise / count**2 * response @ response.T

    def total(self, key: Key, params: Params, count: Array) -> jax.Array:
        # records are drawn and clamped, a block at a time
        root = jnp.linalg.cholesky(params["covariance_matrix"])

        def block_total(key: Key, size: int) -> jax.Array:
            rows = params["loc"] + jax.random.normal(key, (size, self.dimension), root.dtype) @ root.T
            return self.statistics(rows).sum(axis=0)

        whole, rest = divmod(int(count), BLOCK)
        keys = jax.random.split(key, whole + 1)
        start = block_total(keys[0], rest)
        return jax.lax.scan(lambda total, key: (total + block_total(key, BLOCK), None), start, keys[1:])[0]


def with_least_eigenvalue(matrix: jax.Array, least: Array) -> tuple[jax.Array, jax.Array]:
    """The nearest symmetric matrix with no eigenvalue below ``least``, and whether any had to be raised."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.maximum(values, least)) @ vectors.T, values[0] < least


def log_cholesky(covariance: jax.Array) -> jax.Array:
    """The Cholesky root of a positive matrix as a vector of any numbers: logarithms of its diagonal, entries below."""
    root = jnp.linalg.cholesky(covariance)
    return jnp.concatenate([jnp.log(jnp.diagonal(root)), root[np.tril_indices(len(root), -1)]])


def from_log_cholesky(vector: jax.Array, size: int) -> jax.Array:
    """Inverse of `log_cholesky`, for a matrix of ``size`` rows."""
    root = jnp.diag(jnp.exp(vector[:size])).at[np.tril_indices(size, -1)].set(vector[size:])
    return root @ root.T
