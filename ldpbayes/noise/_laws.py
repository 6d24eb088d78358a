"""Laws of noise with a formula, continuous or on the integers, and continuous noise that some records do not get."""

import dataclasses
import math
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from scipy import special

from ldpbayes._core.checks import INSIDE_0_1, NOT_NEGATIVE, POSITIVE, SHARE, WHOLE_SCALE
from ldpbayes._core.pytrees import pytree_dataclass, ruled
from ldpbayes._core.types import Array, ArrayModule, Key, array_of, is_concrete
from ldpbayes.noise._noise import Noise
from ldpbayes.numerics.radial_law import log_density
from ldpbayes.numerics.special import SQRT_HALF, erfcx, log1mexp, log_ndtr, log_theta, theta_variance
from ldpbayes.privacy import Tradeoff, discrete, tradeoffs
from ldpbayes.privacy.symmetric_laplace import SymmetricLaplaceTradeoff

# Half of a rule of 16 nodes for the standard normal law, as its integrand is even.
_HERMITE_NODES, _HERMITE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_HERMITE = _HERMITE_NODES[8:], _HERMITE_WEIGHTS[8:] * math.sqrt(2 / math.pi)
DEVIATIONS_OF_PUBLIC = 1e200  # a distance at which no epsilon is finite, as of records without noise


class _LaplaceColumns(Noise):
    """Noise whose law in one column is Laplace's."""

    linear_tails = True
    monotone = True
    kinks = (0.0,)
    reach = 0.0  # `linear_tails` hold from zero on

    def depth(self, distance: np.ndarray) -> np.ndarray:
        return 1 + math.sqrt(2) / math.log(2) * distance

    def log_tail(self, distance: jax.Array) -> jax.Array:
        return -distance / self.resolution - math.log(2)


@pytree_dataclass
class Laplace(_LaplaceColumns):
    """Laplace noise, independent in every column, with density exp(−|x|/b) / (2 b) at x, for b = `scale` ≥ 0 in the
    unit of the data: one number, or one for each record. The standard deviation is √2 b.
    """

    scale: Array = ruled(NOT_NEGATIVE)
    # what the log ratio of inputs lacks of their whole budget is a sum over the columns, and in the widest of them, up
    # to the budget, it has the law that it would have if there were no others: one column alone is the worst
    norm = 1
    standard_deviation = property(lambda self: math.sqrt(2) * self.scale)
    resolution = property(lambda self: self.scale)

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        return jnp.asarray(self.scale, dtype)[..., None] * jax.random.laplace(key, shape, dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        scale = jnp.asarray(self.scale)[..., None]
        return jnp.sum(-jnp.abs(value / scale) - jnp.log(scale), axis=-1) - value.shape[-1] * math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the exact curve of inputs that differ in one column; else that of randomized response, just below."""
        with np.errstate(divide="ignore"):
            budget = np.sum(distance, axis=-1) / np.asarray(self.scale)
        if np.all(np.count_nonzero(distance, axis=-1) == 1) and np.all(np.isfinite(budget)):
            return tradeoffs.LaplaceTradeoff(budget)
        return tradeoffs.PureProtocolTradeoff(budget, 1 / (1 + np.exp(-budget)))


@pytree_dataclass
class SymmetricLaplace(_LaplaceColumns):
    """Symmetric Laplace noise in d columns, uncorrelated but dependent between columns ([LCQ] sec. 3.2; [KKP]).

    The law SL_d(λ² I) is that of λ √W X, for independent W ~ Exp(1) and X ~ N(0, I); in one column, that of Laplace
    noise of scale λ/√2. The `standard_deviation` λ ≥ 0 in each column, in the unit of the data, is one number, or one
    for each record.
    """

    standard_deviation: Array = ruled(NOT_NEGATIVE)
    norm = 2
    resolution = property(lambda self: self.standard_deviation / math.sqrt(2))

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        keys = jax.random.split(key)
        root = jnp.sqrt(jax.random.exponential(keys[0], shape[:-1], dtype))
        noise = root[..., None] * jax.random.normal(keys[1], shape, dtype)
        return jnp.asarray(self.standard_deviation, dtype)[..., None] * noise

    def log_prob(self, value: jax.Array) -> jax.Array:
        sigma, dimension = jnp.asarray(self.standard_deviation), value.shape[-1]
        square = jnp.sum((value / sigma[..., None]) ** 2, axis=-1)
        apart = square > 0
        # the norm's gradient at 0 is guarded: NaN would spread even from where it is not selected
        radius = jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)
        return log_density(jnp, radius, dimension) - dimension * jnp.log(sigma)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        with np.errstate(divide="ignore"):
            scaled_distance = np.linalg.norm(distance, axis=-1) / np.asarray(self.standard_deviation)
        return SymmetricLaplaceTradeoff(scaled_distance, np.shape(distance)[-1])


class _NormalColumns(Noise):
    """Normal noise, independent in the columns."""

    linear_tails = False
    monotone = True
    kinks = ()
    norm = 2
    resolution = property(lambda self: self.standard_deviation)
    reach = property(lambda self: 12.0 * self.standard_deviation)

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        sigma = self.over_columns(jnp.asarray(self.standard_deviation, dtype))
        return sigma * jax.random.normal(key, shape, dtype)

    def log_prob(self, value: jax.Array) -> jax.Array:
        sigma = self.over_columns(self.standard_deviation)
        constant = value.shape[-1] * math.log(2 * math.pi) / 2
        return jnp.sum(-((value / sigma) ** 2) / 2 - jnp.log(sigma), axis=-1) - constant

    def depth(self, distance: np.ndarray) -> np.ndarray:
        return -np.log2(np.maximum(special.ndtr(-distance), np.finfo(float).tiny))

    def log_tail(self, distance: jax.Array) -> jax.Array:
        return log_ndtr(-distance / self.standard_deviation)


@pytree_dataclass
class Gaussian(_NormalColumns):
    """Normal noise, independent in every column, with equal `standard_deviation` ≥ 0 in all columns, in the unit of the
    data: one number, or one for each record.
    """

    standard_deviation: Array = ruled(NOT_NEGATIVE)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        with np.errstate(divide="ignore"):
            mu = np.linalg.norm(distance, axis=-1) / np.asarray(self.standard_deviation)
        return tradeoffs.GaussianTradeoff(np.minimum(mu, DEVIATIONS_OF_PUBLIC))


@pytree_dataclass
class IndependentGaussian(_NormalColumns):
    """Normal noise, independent in every column, of positive `standard_deviations` (*batch, columns) in their units."""

    standard_deviations: Array = ruled(("positive and finite, one a column", lambda a: POSITIVE[1](a) & (a.ndim > 0)))
    per_column = True
    standard_deviation = property(lambda self: self.standard_deviations)
    batch_shape = property(lambda self: np.shape(self.standard_deviations)[:-1])

    def over_columns(self, moment: Array) -> Array:
        return jnp.asarray(moment)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        return tradeoffs.GaussianTradeoff(np.linalg.norm(distance / np.asarray(self.standard_deviations), axis=-1))


@pytree_dataclass
class Staircase(Noise):
    """Staircase noise: a density a exp(−k ε) that falls in steps, with jumps at ±γΔ, ±(1 + γ)Δ, ... ([GV]).

    Here k is the number of jumps between 0 and the noise, and a = (1 − exp(−ε))/(2Δ(γ + exp(−ε)(1 − γ))). Two inputs
    that differ by at most Δ have the budget ε. All records must lie in an interval of length Δ.

    Parameters
    ----------
    step, epsilon : array_like
        Length Δ in the unit of the data, and budget ε in nats, positive and finite: one number, or one for each record.
    gamma : array_like
        Number γ in (0, 1], which gives the positions of the jumps. See `optimal_gamma`.
    """

    step: Array = ruled(POSITIVE)
    epsilon: Array = ruled(POSITIVE)
    gamma: Array = ruled(SHARE)

    linear_tails = True  # from step to step
    kinks = ()  # infinitely many, of which `breakpoints` takes those that matter
    norm = 1  # of one column only
    period = property(lambda self: self.step)
    reach = property(lambda self: self.step)  # each further one repeats the density, lower by exp(−ε)
    resolution = math.inf

    def _shares(self) -> tuple[Array, Array, Array]:
        """exp(−ε), 1 − exp(−ε), and γ + exp(−ε)(1 − γ): a step's mass over its length and highest level."""
        xp = np if is_concrete(self) else jnp
        epsilon, gamma = xp.asarray(self.epsilon), xp.asarray(self.gamma)
        fall = xp.exp(-epsilon)
        return fall, -xp.expm1(-epsilon), gamma + fall * (1 - gamma)

    @staticmethod
    def optimal_gamma(epsilon: Array) -> Array:
        """Return the γ in (0, 1/2] of the least variance for a number or array `epsilon` ([GV]): (c − b)/(1 − b), with
        b = exp(−ε) and c³ = b(1 + b)/2.
        """
        xp = np if is_concrete(epsilon) else jnp
        epsilon = np.asarray(epsilon, float) if xp is np else epsilon
        fall, root = xp.exp(-epsilon), xp.exp(-epsilon / 3)
        share = xp.cbrt((1 + fall) / 2)
        gamma = root * (1 + 2 * fall) / (2 * (share**2 + share * root**2 + root**4))
        return gamma if np.ndim(gamma) or xp is jnp else float(gamma)

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
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
        parts = self.step, self.epsilon, self.gamma, self._log_peak()
        step, epsilon, gamma, peak = (jnp.asarray(part)[..., None] for part in parts)
        jumps = jnp.floor(jnp.abs(value) / step - gamma) + 1
        return jnp.sum(peak - epsilon * jumps, axis=-1)

    def _log_peak(self) -> Array:
        """Log of a, the density at zero."""
        xp = np if is_concrete(self) else jnp
        _, lack, total = self._shares()
        return xp.log(lack) - xp.log(2 * xp.asarray(self.step)) - xp.log(total)

    @property
    def standard_deviation(self) -> Array:
        xp = np if is_concrete(self) else jnp
        fall, lack, total = self._shares()
        outer, gamma = fall * (1 - self.gamma) / total, self.gamma
        # E(G + V)² with E G = b/(1 − b), E G² = b(1 + b)/(1 − b)², b = exp(−ε): no term is negative
        first, second = (gamma + outer) / 2, (gamma**2 + outer * (1 + gamma)) / 3
        return self.step * xp.sqrt(fall * (1 + fall) + 2 * fall * lack * first + lack**2 * second) / lack

    def _beyond(self, xp: ArrayModule, steps: Array) -> tuple[Array, Array]:
        """Whole steps k, and a share: the noise is beyond so many steps with probability exp(−k ε) share/2."""
        fall, lack, total = self._shares()
        whole = xp.floor(steps)
        part = steps - whole
        return whole, fall + lack * xp.where(part < self.gamma, 1 - part / total, fall * (1 - part) / total)

    def depth(self, distance: np.ndarray) -> np.ndarray:
        whole, rest = self._beyond(np, np.multiply(distance, self.standard_deviation / self.step))
        return 1 + (whole * self.epsilon - np.log(rest)) / math.log(2)

    def log_tail(self, distance: jax.Array) -> jax.Array:
        whole, rest = self._beyond(jnp, distance / self.step)
        return -whole * self.epsilon + jnp.log(rest) - math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the exact curve of numbers at most `step` apart, whose likelihood ratio is exp(ε), 1 or exp(−ε)."""
        distance = np.abs(np.asarray(distance, float))
        if distance.shape[-1:] != (1,) or np.any(distance[..., 0] > self.step):
            raise ValueError(f"the inputs must be numbers that differ by at most the step {self.step}, got {distance}")
        steps, gamma = distance[..., 0] / self.step, np.asarray(self.gamma)
        fall, lack, total = self._shares()
        # outputs that favour the first input: on its own side the stretch before each jump, between the two inputs the
        # part that is before the first one's jump and beyond the second one's
        between = np.maximum(np.minimum(gamma, steps - gamma), 0.0)
        favoured = (lack * (np.minimum(gamma, steps) + between) + fall * steps) / (2 * total)
        return tradeoffs.PureProtocolTradeoff(self.epsilon, favoured)

    def pieces(self, z: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Return p(z | x) as a step function of x: ascending jumps (*z.shape, 2), at a bound without a jump, and
        densities around them (*z.shape, 3).
        """
        z = array_of(z)
        law: Any = self
        xp = np if isinstance(z, np.ndarray) and is_concrete(self, lower, upper) else jnp
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

    def breakpoints(self, z: Array, lower: Array, upper: Array) -> Array:
        return self.pieces(z, lower, upper)[0]

    def released_breakpoints(self, lower: Array, upper: Array) -> np.ndarray:
        step, gamma, low, high = (np.asarray(part)[..., None] for part in (self.step, self.gamma, lower, upper))
        # three, as the range is at most a step
        jumps = (np.arange(3) + gamma) * step
        return np.unique([low - jumps, low + jumps, high - jumps, high + jumps])

    def check_records(self, lower: Array, upper: Array, numbers: bool) -> None:
        if not numbers or lower is None:
            raise ValueError("Staircase noise is only for bounded numbers, each with noise, not for rows or statistics")
        if is_concrete(self.step, lower, upper) and np.any(np.subtract(upper, lower) > self.step):
            raise ValueError(f"upper - lower must be at most the step {self.step!r}, got {lower!r} and {upper!r}")


@dataclasses.dataclass(frozen=True)
class _WholeNumberNoise(Noise):
    """Noise on the integers with a scale, independent in the columns."""

    scale: Array = ruled(WHOLE_SCALE)
    discrete = True
    resolution = property(lambda self: self.scale)

    def log_prob(self, value: jax.Array) -> jax.Array:
        return jnp.where(jnp.all(value == jnp.round(value), axis=-1), self.continued(value), -jnp.inf)


@pytree_dataclass
class DiscreteLaplace(_WholeNumberNoise):
    """Discrete Laplace (geometric) noise on the integers, independent in every column: P(k) = (1 − a)/(1 + a)·a^|k|
    with a = exp(−1/`scale`) ([GRS]). The scale > 0, as in OpenDP, is one number, or one for each record, in the unit of
    the data.
    """

    linear_tails = True
    monotone = True
    kinks = (0.0,)
    norm = 1  # as of Laplace noise
    reach = 0.0  # `linear_tails` hold from zero on

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        # the whole part of an exponential variable is geometric; it is drawn in the best precision that there is
        scale = jnp.asarray(self.scale, jnp.promote_types(dtype, jnp.result_type(float)))[..., None]
        first, second = jnp.floor(scale * jax.random.exponential(key, (2, *shape), scale.dtype))
        return (first - second).astype(dtype)

    def continued(self, value: jax.Array) -> jax.Array:
        """As `Noise.continued`; over all integers k, its sum at k − x is between 1/cosh(½/scale) and 1 for real x."""
        rate = 1.0 / jnp.asarray(self.scale)[..., None]
        return jnp.sum(-jnp.abs(value) * rate + log1mexp(-rate) - jnp.log1p(jnp.exp(-rate)), axis=-1)

    def log_tail(self, distance: jax.Array) -> jax.Array:
        rate = 1.0 / jnp.asarray(self.scale)
        return -distance * rate - jnp.log1p(jnp.exp(-rate))

    @property
    def standard_deviation(self) -> Array:
        xp = np if is_concrete(self.scale) else jnp
        half = 0.5 / xp.asarray(self.scale)
        return -math.sqrt(2) * xp.exp(-half) / xp.expm1(-2 * half)

    def depth(self, distance: np.ndarray) -> np.ndarray:
        scale = np.asarray(self.scale)
        # P(noise ≥ m) = a^m/(1 + a); a distance that should be an integer may be one only to rounding
        beyond = np.floor(np.multiply(distance, self.standard_deviation) * (1 + 1e-12)) + 1
        return (beyond / scale + np.log1p(np.exp(-1 / scale))) / math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """As of `Laplace`: exact if inputs differ in one column, else slightly lower."""
        total, in_one_column = _integer_distance(distance)
        if in_one_column:
            return discrete.DiscreteLaplaceTradeoff(self.scale, total)
        return tradeoffs.approximate_tradeoff(total / np.asarray(self.scale))


@pytree_dataclass
class DiscreteGaussian(_WholeNumberNoise):
    """Discrete Gaussian noise on the integers, independent in every column: P(k) ∝ exp(−k²/(2 `scale`²)) ([CKS]). The
    scale > 0, as in OpenDP, is one number, or one for each record, in the unit of the data. Above 1 it is nearly the
    standard deviation; well below 1 it is much larger.
    """

    linear_tails = False
    kinks = ()
    norm = 2
    reach = property(lambda self: 12.25 * self.scale)  # 2 exp(−12.25²/2) is 5e-33

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        """Draw integers, in a floating-point dtype, by rejection from discrete Laplace noise ([CKS] Algorithm 3)."""
        best = jnp.promote_types(dtype, jnp.result_type(float))
        scale = lax.stop_gradient(jnp.asarray(self.scale, best))[..., None]
        proposal = DiscreteLaplace(jnp.floor(scale) + 1)

        def propose(state: tuple) -> tuple:
            key, values, done = state
            key, proposal_key, acceptance_key = jax.random.split(key, 3)
            k = proposal.sample(proposal_key, (*shape, 1), best)[..., 0]
            excess = (jnp.abs(k) - scale * (scale / proposal.scale)) / scale
            accepted = jax.random.exponential(acceptance_key, shape, best) >= excess**2 / 2
            return key, jnp.where(done, values, k), done | accepted

        start = (key, jnp.zeros(shape, best), jnp.zeros(shape, bool))
        return lax.while_loop(lambda state: ~jnp.all(state[2]), propose, start)[1].astype(dtype)

    def continued(self, value: jax.Array) -> jax.Array:
        """As `Noise.continued`; over all integers k, its sum at k − x is between 1 − 4 exp(−2π² scale²) and 1."""
        scale = jnp.asarray(self.scale)[..., None]
        return jnp.sum(-((value / scale) ** 2) / 2 - log_theta(jnp, scale), axis=-1)

    def log_tail(self, distance: jax.Array) -> jax.Array:
        # With g(t) = exp(−t²/(2 s²)), Σ g(t + j) = ∫ g from t + g(t)·E ψ(t/s² + iU), U normal of standard deviation 1/s
        # and ψ(w) = 1/(1 − exp(−w)) − 1/w: g is U's characteristic function, and the sums are geometric. The poles of
        # ψ, ±2πi and beyond, are so far out that the rule is exact to rounding from s = 1.5 on; below, few terms count.
        scale, log_whole = jnp.asarray(self.scale), log_theta(jnp, self.scale)
        smooth = scale >= 1.5
        s, narrow = jnp.where(smooth, scale, 1.5), jnp.where(smooth, 1.5, scale)[..., None]
        steep = (distance / s**2)[..., None]
        nodes, weights = (jnp.asarray(part, scale.dtype) for part in _HERMITE)
        u = nodes / s[..., None]
        rise, turn = -jnp.expm1(-steep), 4 * jnp.exp(-steep) * jnp.sin(u / 2) ** 2
        psi = (rise + turn / 2) / (rise**2 + turn) - steep / (steep**2 + u**2)
        integral = s * math.sqrt(math.pi / 2) * erfcx(distance / s * SQRT_HALF)
        j = jnp.arange(14, dtype=scale.dtype)
        few = jnp.sum(jnp.exp(-j * (2 * distance[..., None] + j) / (2 * narrow**2)), axis=-1)
        terms = jnp.where(smooth, integral + jnp.sum(weights * psi, axis=-1), few)
        return -((distance / scale) ** 2) / 2 + jnp.log(terms) - log_whole

    @property
    def standard_deviation(self) -> Array:
        """Standard deviation in one column. It is 0 if P(k) underflows for every k except 0."""
        xp = np if is_concrete(self.scale) else jnp
        return xp.sqrt(theta_variance(xp, self.scale))

    def depth(self, distance: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            length = np.multiply(distance, self.standard_deviation) * (1 + 1e-12)
        # 0 · inf, where the standard deviation underflows: any distance above 0 is then at least 1
        beyond = np.floor(np.where(np.isnan(length), 0.0, length)) + 1
        return -discrete.gaussian_log_tail(beyond, self.scale) / math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the curve of inputs that differ by `distance`; in several columns, of the worst rows as far apart."""
        total, in_one_column = _integer_distance(distance)
        if in_one_column:
            return discrete.DiscreteGaussianTradeoff(self.scale, total)
        length = np.linalg.norm(distance, axis=-1)
        return discrete.DiscreteGaussianRowsTradeoff(self.scale, length, np.shape(distance)[-1])

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        if columns == 1 or sensitivity == 1:
            return discrete.DiscreteGaussianTradeoff(self.scale, sensitivity)
        return discrete.DiscreteGaussianRowsTradeoff(self.scale, sensitivity, columns)


def _integer_distance(distance: np.ndarray) -> tuple[Array, bool]:
    """Sum of integer distances over the columns, and whether they are in one; ValueError unless integers, not all 0."""
    distance = np.abs(np.atleast_1d(np.asarray(distance, float)))
    if not np.all(np.isfinite(distance) & (distance == np.round(distance))) or not distance.any(axis=-1).all():
        raise ValueError(f"under discrete noise the distance of inputs must be integers, not all 0, got {distance}")
    return distance.sum(axis=-1)[()], bool(np.all(np.count_nonzero(distance, axis=-1) == 1))


@pytree_dataclass
class WithPublicRecords(Noise):
    """Continuous `noise`, as in `ZeroInflated`. A record with scale 0 is public, and is released without noise."""

    noise: Noise
    omitted = True
    underlying = property(attrgetter("noise"))
    depth, kinks, linear_tails, monotone, norm, reach, resolution, sample = (  # type: ignore[assignment]
        property(attrgetter(f"noise.{name}"))
        for name in ("depth", "kinks", "linear_tails", "monotone", "norm", "reach", "resolution", "sample")
    )
    standard_deviation, tradeoff, tradeoff_within = (  # type: ignore[assignment]
        property(attrgetter(f"noise.{name}")) for name in ("standard_deviation", "tradeoff", "tradeoff_within")
    )

    def __post_init__(self) -> None:
        noise, parameters = self.noise, jax.tree.leaves(self.noise)
        continuous = isinstance(noise, Noise) and not noise.discrete and not noise.omitted
        # a parameter that is not in the shape of the records would be one a column
        if not continuous or [*map(np.shape, parameters)] != [noise.batch_shape]:
            wanted = "a `Noise` with a continuous law and one parameter, a scale for all columns"
            raise ValueError(f"noise must be {wanted}, got {noise!r}")
        super().__post_init__()

    @property
    def absent(self) -> Array:
        (scale,) = jax.tree.leaves(self.noise)
        xp = np if is_concrete(scale, self.chance) else jnp
        return xp.where(xp.asarray(scale) > 0, self.chance, 1.0)

    @property
    def present(self) -> Noise:
        if is_concrete(self.noise) and all(np.all(np.greater(scale, 0)) for scale in jax.tree.leaves(self.noise)):
            return self.noise
        return jax.tree.map(lambda scale: jnp.where(jnp.asarray(scale) > 0, jnp.asarray(scale), 1.0), self.noise)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log density, or of a record without noise the log of the unit mass at zero."""
        absent = jnp.asarray(self.absent, value.dtype)
        noisy = self.present.log_prob(value) + jnp.log1p(-jnp.where(absent < 1, absent, 0.0))
        noisy = jnp.where(absent < 1, noisy, -jnp.inf)
        atom = jnp.where(absent > 0, jnp.log(jnp.where(absent > 0, absent, 1.0)), noisy)
        return jnp.where(jnp.all(value == 0, axis=-1), atom, noisy)

    @property
    def variance(self) -> Array:
        return (1 - jnp.asarray(self.chance)) * jnp.asarray(self.noise.standard_deviation) ** 2


@pytree_dataclass
class ZeroInflated(WithPublicRecords):
    """Continuous noise that is omitted for a record with probability δ ([LCQ] Definition 3.1, there ZIL(δ, λ² I)).

    Parameters
    ----------
    noise : Noise
        Continuous noise with one parameter, its scale ≥ 0 in the unit of the data.
    probability : array_like
        Probability δ in (0, 1) that a record gets no noise: one number, or one number for each record.
    """

    probability: Array = ruled(INSIDE_0_1)
    chance = property(attrgetter("probability"))

    def sample(self, key: Key, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        keys = jax.random.split(key)
        without = jax.random.bernoulli(keys[0], jnp.asarray(self.probability, dtype), shape[:-1])
        return jnp.where(without[..., None], 0.0, self.noise.sample(keys[1], shape, dtype))

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the curve of inputs that differ by `distance`, below that of `noise` ([LCQ] Theorem 3.3)."""
        return tradeoffs.ZeroInflatedTradeoff(self.noise.tradeoff(distance), self.probability)

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        return tradeoffs.ZeroInflatedTradeoff(self.noise.tradeoff_within(sensitivity, columns), self.probability)
