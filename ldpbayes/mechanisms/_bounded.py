"""Noise in a bounded domain: a number gets noise that never leaves the bounds of the records."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.checks import FINITE, ONE_ABOVE_0, POSITIVE, check_order, checked
from ldpbayes._core.pytrees import check_fields, ruled, unchecked
from ldpbayes._core.types import Array, Key, array_of, extreme, floating, is_concrete
from ldpbayes.mechanisms.protocol import NumericMechanism, registered
from ldpbayes.noise import Gaussian, Laplace
from ldpbayes.numerics.arrays import snapped
from ldpbayes.privacy import Guarantee
from ldpbayes.privacy.bounded_domain import BoundedDomainTradeoff


@dataclasses.dataclass(frozen=True)
class BoundedDomain(NumericMechanism):
    """Base: the law of clip(x) + noise, given that it is between the bounds."""

    scale: Array = ruled(POSITIVE)
    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    sensitivity: Array = ruled(ONE_ABOVE_0, default=None)

    noise, bounded, has_atoms, linear_tails, clips = None, True, False, False, True
    _law: ClassVar[Any]  # of the noise if there was no domain
    _half: ClassVar[Any]  # P(0 ≤ noise ≤ t) for t ≥ 0 in scales
    _distance: ClassVar[Any]  # the inverse of `_half`
    domain = property(lambda self: constraints.interval(self.lower, self.upper))
    support = property(lambda self: self.domain)
    resolution = property(lambda self: extreme("min", self.scale))
    released_range = property(lambda self: (extreme("min", self.lower), extreme("max", self.upper)))
    trust_model = property(lambda self: "local" if self.sensitivity is None else "central")  # type: ignore[assignment]
    monotone = property(lambda self: self.sensitivity is None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_fields(self)
        shapes = [np.shape(part) for part in (self.scale, self.lower, self.upper)]
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(f"scale, lower and upper must broadcast, got shapes {shapes}") from None
        check_order(self.lower, self.upper)

    def _in_scales(self, x: ArrayLike, dtype: Any) -> tuple[jax.Array, ...]:
        """The clipped record, the scale, and P(0 ≤ noise ≤ t) at the record's distances t from both bounds."""
        scale, lower, upper = (jnp.asarray(part, dtype) for part in (self.scale, self.lower, self.upper))
        x = jnp.clip(jnp.asarray(x, dtype), lower, upper)
        return x, scale, self._half((x - lower) / scale), self._half((upper - x) / scale)

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z = floating(z)
        x, scale, below, above = self._in_scales(x, jnp.result_type(z, array_of(x), float))
        inside = (z >= jnp.asarray(self.lower, z.dtype)) & (z <= jnp.asarray(self.upper, z.dtype))
        log_density = unchecked(self._law, scale).log_prob(jnp.where(inside, z - x, 0.0)[..., None])
        return jnp.where(inside, log_density - jnp.log(below + above), -jnp.inf)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        if is_concrete(x):
            checked("x", x, "a number (drop or impute missing records first)", lambda a: ~np.isnan(a))
        x, scale, below, above = self._in_scales(x, jnp.result_type(array_of(x), float))
        share = jax.random.uniform(key, jnp.broadcast_shapes(x.shape, self.batch_shape), x.dtype)
        place = share * above - (1 - share) * below  # P(0 ≤ noise ≤ z − x), with its sign
        z = x + scale * jnp.sign(place) * self._distance(jnp.abs(place))
        return jnp.clip(z, jnp.asarray(self.lower, z.dtype), jnp.asarray(self.upper, z.dtype))

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        raise ValueError(f"{type(self).__name__} has no formula for the moments of released values; simulate them")

    def breakpoints(self, z: ArrayLike) -> Array:
        return unchecked(self._law, self.scale).breakpoints(array_of(z), self.lower, self.upper)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        return super()._validated(snapped(values, (self.lower, self.upper)) if is_concrete(self) else values)

    @property
    def guarantee(self) -> Guarantee:
        width = np.subtract(self.upper, self.lower) / self.scale
        step = width if self.sensitivity is None else np.minimum(self.sensitivity / np.asarray(self.scale), width)
        return Guarantee(BoundedDomainTradeoff(self._law.__name__.lower(), width, step), trust_model=self.trust_model)


@registered("bounded_laplace", "Laplace noise on a clipped number that stays between the bounds.")
class BoundedLaplaceMechanism(BoundedDomain):
    """Laplace noise in a bounded domain: a clipped number x is released as z between the bounds, with the density of
    Laplace noise at z − x, divided by the probability that x + noise is between the bounds ([HABM]).

    Without `sensitivity`, epsilon at delta = 0 is (upper − lower)/scale, as without a domain. With `sensitivity`, it is
    larger than sensitivity/scale, by at most log 2, and other pairs of epsilon and delta are bounds.

    Parameters
    ----------
    scale : array_like
        Scale b of the Laplace law, positive, in the unit of the data: one number, or one for each record.
    lower, upper : array_like
        Bounds of records and of released values, finite, lower < upper, chosen without looking at the data.
    sensitivity : float, optional
        For a statistic of many records that is between the bounds: its largest change if one record changes. Default:
        the released value is of one record, which may be anywhere between the bounds.

    Examples
    --------
    >>> print(ldp.mechanisms.BoundedLaplaceMechanism(scale=0.5, lower=0, upper=1).guarantee.epsilon(0.0).round(3))
    2.0
    """

    _law = Laplace
    _half = staticmethod(lambda t: -jnp.expm1(-t) / 2)
    _distance = staticmethod(lambda half: -jnp.log1p(-2 * half))


@registered("bounded_gaussian", "Gaussian noise on a clipped number that stays between the bounds.")
class BoundedGaussianMechanism(BoundedDomain):
    """Gaussian noise in a bounded domain, with the standard deviation `scale` of the normal law before it is cut off
    ([Liu]). `BoundedLaplaceMechanism` describes the parameters. Epsilon at delta = 0 is finite; without `sensitivity`
    it is (upper − lower)²/(2 scale²).
    """

    _law = Gaussian
    _half = staticmethod(lambda t: special.erf(t / np.sqrt(2)) / 2)
    _distance = staticmethod(lambda half: np.sqrt(2) * special.erfinv(2 * half))
