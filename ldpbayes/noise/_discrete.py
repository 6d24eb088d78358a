"""Noise on whole numbers: discrete Laplace noise and discrete Gaussian noise."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ldpbayes._core.checks import WHOLE_SCALE
from ldpbayes._core.pytrees import pytree_dataclass, ruled
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.noise._noise import Noise
from ldpbayes.numerics.special import SQRT_HALF, erfcx, log1mexp, log_theta, theta_variance
from ldpbayes.privacy import DiscreteGaussianTradeoff, DiscreteLaplaceTradeoff, Tradeoff, approximate_tradeoff
from ldpbayes.privacy.discrete import DiscreteGaussianRowsTradeoff, gaussian_log_tail

# Half of a rule of 16 nodes for the standard normal law, as its integrand is even.
_HERMITE_NODES, _HERMITE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_HERMITE = _HERMITE_NODES[8:], _HERMITE_WEIGHTS[8:] * math.sqrt(2 / math.pi)


@dataclasses.dataclass(frozen=True)
class _WholeNumberNoise(Noise):
    """Noise on the integers with a scale, independent in the columns."""

    scale: Array = ruled(WHOLE_SCALE)
    discrete: ClassVar[bool] = True
    resolution = property(lambda self: self.scale)

    def log_prob(self, value: jax.Array) -> jax.Array:
        return jnp.where(jnp.all(value == jnp.round(value), axis=-1), self.continued(value), -jnp.inf)


@pytree_dataclass
class DiscreteLaplace(_WholeNumberNoise):
    """Discrete Laplace (geometric) noise on the integers, independent in every column: P(k) = (1 − a)/(1 + a)·a^|k|
    with a = exp(−1/`scale`) ([GRS]). The scale > 0, as in OpenDP, is one number, or one for each record, in the unit of
    the data.
    """

    linear_tails: ClassVar[bool] = True
    monotone = True
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    norm: ClassVar[int] = 1  # as of Laplace noise
    reach: ClassVar[float] = 0.0  # `linear_tails` hold from zero on

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
            return DiscreteLaplaceTradeoff(self.scale, total)
        return approximate_tradeoff(total / np.asarray(self.scale))


@pytree_dataclass
class DiscreteGaussian(_WholeNumberNoise):
    """Discrete Gaussian noise on the integers, independent in every column: P(k) ∝ exp(−k²/(2 `scale`²)) ([CKS]). The
    scale > 0, as in OpenDP, is one number, or one for each record, in the unit of the data. Above 1 it is nearly the
    standard deviation; well below 1 it is much larger.
    """

    linear_tails: ClassVar[bool] = False
    kinks: ClassVar[tuple[float, ...]] = ()
    norm: ClassVar[int] = 2
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
        return -gaussian_log_tail(beyond, self.scale) / math.log(2)

    def tradeoff(self, distance: np.ndarray) -> Tradeoff:
        """Return the curve of inputs that differ by `distance`; in several columns, of the worst rows as far apart."""
        total, in_one_column = _integer_distance(distance)
        if in_one_column:
            return DiscreteGaussianTradeoff(self.scale, total)
        return DiscreteGaussianRowsTradeoff(self.scale, np.linalg.norm(distance, axis=-1), np.shape(distance)[-1])

    def tradeoff_within(self, sensitivity: float, columns: int) -> Tradeoff:
        if columns == 1 or sensitivity == 1:
            return DiscreteGaussianTradeoff(self.scale, sensitivity)
        return DiscreteGaussianRowsTradeoff(self.scale, sensitivity, columns)


def _integer_distance(distance: np.ndarray) -> tuple[Array, bool]:
    """Sum of integer distances over the columns, and whether they are in one; ValueError unless integers, not all 0."""
    distance = np.abs(np.atleast_1d(np.asarray(distance, float)))
    if not np.all(np.isfinite(distance) & (distance == np.round(distance))) or not distance.any(axis=-1).all():
        raise ValueError(f"under discrete noise the distance of inputs must be integers, not all 0, got {distance}")
    return distance.sum(axis=-1)[()], bool(np.all(np.count_nonzero(distance, axis=-1) == 1))
