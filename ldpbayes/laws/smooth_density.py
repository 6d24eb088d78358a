"""Laws without a parametric family: a density, or masses of whole numbers, whose logarithm is a linear spline."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.util import is_prng_key

from ldpbayes._core.checks import check_order
from ldpbayes._core.types import Array, ArrayModule, Key, is_concrete
from ldpbayes.laws.families import Family, aligned, register_family
from ldpbayes.numerics.special import log_or_nothing, relative_expm1, stacked

FEWEST_KNOTS = 4  # knots
STEEP_FALLS = np.array([4.0, 14.0])  # of the log density of a steep piece, where panels of integrals end


class SmoothDensity(dist.Distribution):
    """Density on an interval. Its logarithm is linear between equally spaced knots, and its ends may have atoms.

    The density is exp(f(x))/Z, where f interpolates the values at the knots, and Z normalises. With enough knots, every
    law on the interval is close to such a density. An atom is the positive probability of an end: of the records beyond
    it, which a mechanism with these bounds clips to it.

    Parameters
    ----------
    log_density : array_like (*batch, knots)
        At least four finite values f at the knots, from `lower` to `upper`, up to a common constant.
    lower, upper : float
        Ends of the interval, finite, lower < upper, in the unit of the data.
    outside : array_like (*batch, 2), optional
        The atoms: probabilities of records below `lower` and above `upper`, with a sum below 1. Default: none.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"log_density": constraints.real_vector}
    pytree_data_fields = ("log_density", "outside")
    pytree_aux_fields = ("lower", "upper")

    def __init__(
        self,
        log_density: ArrayLike,
        lower: float,
        upper: float,
        outside: ArrayLike | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.lower, self.upper = float(lower), float(upper)
        check_order(self.lower, self.upper)
        if not np.isfinite([self.lower, self.upper]).all():
            raise ValueError(f"lower and upper must be finite, got {lower} and {upper}")
        if np.ndim(log_density) < 1 or np.shape(log_density)[-1] < FEWEST_KNOTS:
            raise ValueError(f"log_density needs at least {FEWEST_KNOTS} knots, got shape {np.shape(log_density)}")
        concrete = is_concrete(log_density, outside)
        xp: ArrayModule = np if concrete else jnp  # operations of JAX one by one would each be compiled
        values = xp.asarray(log_density)
        values = values.astype(jnp.result_type(values, float))
        atoms: Array = None
        batch = values.shape[:-1]
        if outside is not None:
            if np.shape(outside)[-1:] != (2,):
                raise ValueError(f"outside must be two probabilities, got shape {np.shape(outside)}")
            atoms = xp.asarray(outside, values.dtype)
            if concrete and not (np.all(atoms >= 0) and np.all(np.sum(atoms, axis=-1) < 1)):
                raise ValueError(f"outside must be probabilities whose sum is below 1, got {atoms}")
            batch = np.broadcast_shapes(batch, atoms.shape[:-1])
            atoms = xp.broadcast_to(atoms, (*batch, 2))
        # each law has arrays of its own, of which rows can be taken
        self.log_density: Array = xp.broadcast_to(values, (*batch, values.shape[-1]))
        self.outside: Array = atoms
        super().__init__(batch_shape=batch, event_shape=(), validate_args=validate_args)

    support = property(lambda self: constraints.interval(self.lower, self.upper))
    knots = property(lambda s: np.linspace(s.lower, s.upper, s.log_density.shape[-1]), doc="Positions of the knots.")
    _step = property(lambda self: (self.upper - self.lower) / (self.log_density.shape[-1] - 1))
    _atoms = property(lambda self: (0.0, 0.0) if self.outside is None else jnp.moveaxis(self.outside, -1, 0))
    # probability of the interval without atoms; log integrals of exp(f) over the pieces, of length one; their shares
    _inside = property(lambda self: 1.0 - sum(self._atoms))
    _log_pieces = property(lambda self: _log_integral(self.log_density[..., :-1], self.log_density[..., 1:]))
    _masses = property(lambda self: jax.nn.softmax(self._log_pieces, axis=-1))

    def _place(self, x: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Piece of each value, how far in it is, from 0 to 1, and log densities at the piece's ends."""
        shape = jnp.broadcast_shapes(jnp.shape(x), self.batch_shape)
        pieces = self.log_density.shape[-1] - 1
        at = (jnp.broadcast_to(x, shape) - self.lower) / self._step
        piece = jnp.clip(jax.lax.stop_gradient(jnp.floor(at)).astype(int), 0, pieces - 1)
        return piece, at - piece, _taken(self.log_density, piece), _taken(self.log_density, piece + 1)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the log density at `value`, without the atoms: −inf outside the interval."""
        value = jnp.asarray(value)
        _, share, left, right = self._place(value)
        total = jax.nn.logsumexp(self._log_pieces, axis=-1)
        log_prob = left + share * (right - left) - total - np.log(self._step) + jnp.log(self._inside)
        return jnp.where((value >= self.lower) & (value <= self.upper), log_prob, -jnp.inf)

    def cdf(self, value: ArrayLike) -> jax.Array:
        """Return P(X ≤ value) for a record X that is clipped to the interval, the atoms included."""
        value = jnp.asarray(value)
        piece, share, left, right = self._place(jnp.clip(value, self.lower, self.upper))
        masses, total = self._masses, jax.nn.logsumexp(self._log_pieces, axis=-1)
        before = _taken(jnp.concatenate([jnp.zeros_like(masses[..., :1]), jnp.cumsum(masses, axis=-1)], -1), piece)
        within = share * jnp.exp(_log_integral(left, left + share * (right - left)) - total)
        inside = jnp.where(value >= self.upper, 1.0, before + within)
        cdf = self._atoms[0] + self._inside * inside
        return jnp.where(value < self.lower, 0.0, jnp.where(value >= self.upper, 1.0, cdf))

    def icdf(self, q: ArrayLike) -> jax.Array:
        """Return the smallest x with P(X ≤ x) ≥ q, for a record X that is clipped to the interval."""
        below, above = self._atoms
        beyond = jnp.asarray(q) > 1.0 - above
        q = jnp.clip((jnp.asarray(q) - below) / self._inside, 0.0, 1.0)
        masses, batch = self._masses, jnp.broadcast_shapes(q.shape, self.batch_shape)
        masses = jnp.broadcast_to(masses, (*batch, masses.shape[-1]))
        total = jnp.cumsum(masses, axis=-1)
        piece = jnp.minimum(jnp.sum(total[..., :-1] < q[..., None], axis=-1), masses.shape[-1] - 1)
        mass = _taken(masses, piece)
        rest = jnp.clip((q - _taken(total, piece) + mass) / jnp.where(mass > 0, mass, 1.0), 0.0, 1.0)
        rise = _taken(self.log_density, piece + 1) - _taken(self.log_density, piece)
        return jnp.where(beyond, self.upper, self.lower + self._step * (piece + _share_below(rest, rise)))

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        assert is_prng_key(key)
        return self.icdf(jax.random.uniform(key, sample_shape + self.batch_shape, self.log_density.dtype))

    def _moment(self, power: int) -> jax.Array:
        """E (X − lower)^power for power 1 or 2, atoms included."""
        half = 0.5 * jnp.diff(self.log_density, axis=-1)
        first, second = _tilted_moments(half)
        start = np.arange(self.log_density.shape[-1] - 1.0)
        of_pieces = start + first if power == 1 else start**2 + 2 * start * first + second
        inside = self._step**power * jnp.sum(self._masses * of_pieces, axis=-1)
        return self._inside * inside + self._atoms[1] * (self.upper - self.lower) ** power

    mean = property(lambda self: self.lower + self._moment(1))
    variance = property(lambda self: self._moment(2) - self._moment(1) ** 2)


class SmoothMass(SmoothDensity):
    """Law of whole numbers whose log probabilities are linear between equally spaced knots: `SmoothDensity` for counts.

    The probability of k is proportional to exp(f(k)) for k from `lower` to `upper`, whole numbers (else ValueError),
    where those `outside` are added. ``args`` and ``kwargs`` are those of `SmoothDensity`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not (self.lower.is_integer() and self.upper.is_integer()):
            raise ValueError(f"lower and upper of counts must be whole, got {self.lower:g} and {self.upper:g}")

    support = property(lambda self: constraints.integer_interval(int(self.lower), int(self.upper)))
    _counts = property(lambda self: np.arange(self.lower, self.upper + 1))

    @property
    def log_masses(self) -> jax.Array:
        """Log probabilities of the whole numbers `lower`, ..., `upper`, of shape ``(*batch, upper − lower + 1)``."""
        at_knots = np.maximum(1 - np.abs(self._counts[:, None] - self.knots) / self._step, 0.0)
        log_masses = jax.nn.log_softmax(self.log_density @ at_knots.T.astype(self.log_density.dtype), axis=-1)
        if self.outside is None:
            return log_masses
        log_masses = log_masses + jnp.log(self._inside)[..., None]
        for end in (0, -1):
            atom = log_or_nothing(self.outside[..., end])
            log_masses = log_masses.at[..., end].set(jnp.logaddexp(log_masses[..., end], atom))
        return log_masses

    def log_prob(self, value: ArrayLike) -> jax.Array:
        return jnp.where(self.support(jnp.asarray(value)), self._at(self.log_masses, value), -jnp.inf)

    def cdf(self, value: ArrayLike) -> jax.Array:
        value = jnp.asarray(value)
        below = self._at(jnp.cumsum(self._masses, axis=-1), value)
        return jnp.where(value < self.lower, 0.0, jnp.where(value < self.upper, below, 1.0))

    def icdf(self, q: ArrayLike) -> jax.Array:
        below = jnp.cumsum(self._masses, axis=-1)[..., :-1] < jnp.asarray(q)[..., None]
        return self.lower + jnp.sum(below, axis=-1)

    def _at(self, values: jax.Array, count: ArrayLike) -> jax.Array:
        index = (jnp.clip(jnp.asarray(count), self.lower, self.upper) - self.lower).astype(int)
        return _taken(values, jnp.broadcast_to(index, jnp.broadcast_shapes(index.shape, self.batch_shape)))

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return super().sample(key, sample_shape).astype(int)

    _masses = property(lambda self: jnp.exp(self.log_masses))

    def _moment(self, power: int) -> jax.Array:
        return jnp.sum(self._masses * (self._counts - self.lower) ** power, axis=-1)


@register_family(SmoothDensity)
class _OfSmoothDensity(Family):
    tame = True

    def breaks(self) -> list[Array]:
        return list(self.law.knots[1:-1])

    def steep_points(self) -> list[Array]:
        """Where the density has fallen by some factors from the higher end of each piece that is steep."""
        law, rise = self.law, jnp.moveaxis(jnp.diff(self.law.log_density, axis=-1), -1, 0)  # (pieces, *batch)
        share = aligned(STEEP_FALLS, 1 + rise.ndim) / jnp.maximum(jnp.abs(rise), STEEP_FALLS[0])
        share = jnp.where(rise > 0, 1 - share, share).reshape(-1, *rise.shape[1:])
        first = aligned(np.tile(law.knots[:-1], len(STEEP_FALLS)), share.ndim)
        return [first + law._step * jnp.clip(share, 0.0, 1.0)]

    def log_mass_outside(self, first: Array, last: Array) -> Array:
        """Of the atoms, and of what lies between the interval's ends and edges inside it."""
        law, (below, above) = self.law, self.law._atoms
        below = jnp.where(first <= law.lower, below, law.cdf(first))
        above = jnp.where(last >= law.upper, above, 1.0 - law.cdf(last))
        return log_or_nothing(stacked(below, above))


register_family(SmoothMass)(Family)


def _taken(values: Array, index: jax.Array) -> jax.Array:
    """Values (*batch, n) at indices (..., *batch)."""
    values = jnp.asarray(values)
    if values.ndim == 1:
        return values[index]
    values = jnp.broadcast_to(values, (*index.shape, values.shape[-1]))
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _log_integral(left: Array, right: Array) -> jax.Array:
    """Log ∫ exp(f), f linear on [0, 1], from the larger end."""
    fall = left - right
    steep = jnp.where(fall < 0, -fall, fall)  # abs() would have no derivative at 0
    return jnp.where(fall < 0, right, left) + jnp.log(relative_expm1(steep))


def _share_below(rest: jax.Array, rise: jax.Array) -> jax.Array:
    """The t with ∫_0^t exp(rise·s) ds = rest·∫_0^1 exp(rise·s) ds, from the end where the density is larger."""
    size = jnp.abs(rise)
    q = jnp.where(rise > 0, 1.0 - rest, rest)  # of the mass, counted from the larger end
    small = size < 1e-5
    far = jnp.where(small, 1.0, size)
    # the logarithm of 1 − q (1 − exp(−far)), which is tiny where q is near one
    near = q < 0.5
    low = jnp.log1p(jnp.where(near, q, 0.0) * jnp.expm1(-far))
    high = jnp.log(jnp.where(near, 1.0, 1 - q + q * jnp.exp(-far)))
    formula = -jnp.where(near, low, high) / far
    share = jnp.clip(jnp.where(small, q - 0.5 * size * q * (1 - q), formula), 0.0, 1.0)
    return jnp.where(rise > 0, 1.0 - share, share)


def _tilted_moments(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """First two moments of a density proportional to exp(2 u t) on [0, 1]."""
    small = jnp.abs(u) < 0.06
    near, far = jnp.where(small, u, 0.0), jnp.where(small, 1.0, u)
    size = jnp.abs(far)
    square = near**2
    series = near / 3 * (1 - square / 15 * (1 - square * 2 / 21 * (1 - square / 10)))
    langevin = jnp.where(small, series, jnp.sign(far) / jnp.tanh(size) - 1 / far)
    shrink = 4 * jnp.exp(-2 * size) / jnp.expm1(-2 * size) ** 2  # 1/sinh²
    series = (1 - square / 5 * (1 - square * 10 / 63 * (1 - square * 7 / 50))) / 3
    variance = jnp.where(small, series, 1 / far**2 - shrink) / 4
    first = 0.5 + 0.5 * langevin
    return first, variance + first**2
