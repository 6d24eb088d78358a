"""Laws that are sampled in coordinates in which a posterior is nearly standard normal."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints, transforms


class _LinearMap(transforms.Transform):
    """A linear map of vectors."""

    domain = codomain = constraints.real_vector
    matrices: tuple[str, ...]  # attributes

    def tree_flatten(self) -> Any:
        return tuple(getattr(self, name) for name in self.matrices), (self.matrices, {})


class _Stretch(_LinearMap):
    """Vectors that are `factor` times as long along a unit vector `direction`, and elsewhere as they were."""

    matrices = "direction", "factor"

    def __init__(self, direction: Any, factor: Any) -> None:
        self.direction, self.factor = direction, factor

    def __call__(self, x: Any) -> Any:
        return x + (self.factor - 1) * jnp.sum(x * self.direction, axis=-1, keepdims=True) * self.direction

    def _inverse(self, y: Any) -> Any:
        return _Stretch(self.direction, 1 / self.factor)(y)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> jax.Array:
        return jnp.broadcast_to(jnp.log(self.factor)[..., 0], jnp.shape(x)[:-1])


class AlongAxes(_LinearMap):
    """Vectors whose coordinates, in units of `spread` (p,), are along orthogonal axes, the columns of `axes` (p, p)."""

    matrices = "axes", "spread"

    def __init__(self, axes: Any, spread: Any) -> None:
        self.axes, self.spread = axes, spread

    def __call__(self, x: Any) -> Any:
        return (self.spread * x) @ self.axes.T

    def _inverse(self, y: Any) -> Any:
        return y @ self.axes / self.spread

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> jax.Array:
        return jnp.broadcast_to(jnp.sum(jnp.log(self.spread)), jnp.shape(x)[:-1])


class _Coordinates(constraints.Constraint):
    """(x − center)/scale or, for positive x, (log x − center)/scale, after a linear map of vectors."""

    def __init__(self, center: Any, scale: Any, positive: bool = False, linear: _LinearMap | None = None) -> None:
        affine = transforms.AffineTransform(center, scale, domain=constraints.real)
        parts = [*([linear] if linear else []), affine, *([transforms.ExpTransform()] if positive else [])]
        self.transform = transforms.ComposeTransform(parts) if len(parts) > 1 else affine
        self.event_dim = self.transform.codomain.event_dim

    def __call__(self, x: Any) -> Any:
        return self.transform.codomain(x)

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.ones_like(prototype)

    def tree_flatten(self) -> Any:
        return (self.transform,), (("transform",), {"event_dim": self.event_dim})


biject_to.register(_Coordinates)(lambda support: support.transform)


class Located(dist.Distribution):
    """A law of numbers, of positive ones or of vectors, in coordinates that the law itself does not depend on."""

    support: Any = constraints.real
    pytree_data_fields = ("law", "support")

    def __init__(
        self, law: dist.Distribution, center: Any, scale: Any, positive: bool = False, linear: _LinearMap | None = None
    ) -> None:
        self.law, self.support = law, _Coordinates(jnp.asarray(center), jnp.asarray(scale), positive, linear)
        batch = jnp.shape(center)[: jnp.ndim(center) - law.event_dim]
        super().__init__(jnp.broadcast_shapes(law.batch_shape, batch), law.event_shape, validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self.law.expand(self.batch_shape).sample(key, sample_shape)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> jax.Array:
        return self.law.log_prob(value)


def located(law: dist.Distribution, center: Any, scale: Any) -> dist.Distribution:
    """A prior of a number, or of a positive one (with a relative scale), sampled near a center; others as they are."""
    if law.support is constraints.positive:
        return Located(law, jnp.log(center), scale, positive=True)
    return Located(law, center, scale) if law.support is constraints.real else law


def pooled(loc: ArrayLike, scale: ArrayLike, center: ArrayLike, precision: ArrayLike) -> Located:
    """A normal law in coordinates that are nearly standard normal a posteriori ([PRS]): centred where an estimate
    `center` ± error is sharp (precision = 1/error²), non-centred where it is not.
    """
    informed = jnp.square(scale) * jnp.asarray(precision)
    weight = informed / (1 + informed)
    law = dist.Normal(loc, scale, validate_args=False)
    return Located(law, loc + weight * (jnp.asarray(center) - loc), scale / jnp.sqrt(1 + informed))


def pooled_relative(loc: ArrayLike, scale: ArrayLike, center: ArrayLike, precision: ArrayLike) -> Located:
    """Normal numbers in the coordinates of `pooled`, with estimates (..., k) up to a number that is added to all k."""
    loc, scale, center, precision = jnp.broadcast_arrays(loc, scale, center, jnp.asarray(precision, float))
    informed = jnp.square(scale) * precision
    sharpness = precision / (1 + informed)  # of loc − center, which is this number and an error
    total = jnp.sum(sharpness, axis=-1, keepdims=True)
    total = jnp.where(total > 0, total, 1.0)
    level = jnp.sum(sharpness * (loc - center), axis=-1, keepdims=True) / total
    weight, error = informed / (1 + informed), scale / jnp.sqrt(1 + informed)
    moved = weight / error / jnp.sqrt(total)
    length = jnp.sum(jnp.square(moved), axis=-1, keepdims=True)
    direction = moved / jnp.sqrt(jnp.where(length > 0, length, 1.0))
    law = dist.Normal(loc, scale, validate_args=False).to_event(1)
    stretch = _Stretch(direction, jnp.sqrt(1 + length))
    return Located(law, loc + weight * (center + level - loc), error, linear=stretch)


def pooled_gamma(loc: ArrayLike, concentration: ArrayLike, center: ArrayLike, precision: ArrayLike) -> Located:
    """The law of loc + log g for g ~ Gamma(concentration, concentration), in coordinates as of `pooled`."""
    gamma = dist.Gamma(concentration, concentration, validate_args=False)
    parts = [transforms.ExpTransform().inv, transforms.AffineTransform(loc, 1.0)]
    total = concentration + jnp.asarray(precision)
    mean = loc + precision / total * (jnp.asarray(center) - loc)
    return Located(dist.TransformedDistribution(gamma, parts), mean, 1 / jnp.sqrt(total))


class FlatPositive(dist.ImproperUniform):
    """Flat law on positive numbers, sampled as (log x − log center)/error, for estimates ± error (relative)."""

    def __init__(self, center: ArrayLike, error: ArrayLike) -> None:
        support = _Coordinates(jnp.log(center), jnp.asarray(error), positive=True)
        super().__init__(support, jnp.shape(center), (), validate_args=False)
