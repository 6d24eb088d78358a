"""Laws that are sampled in coordinates in which a posterior is nearly standard normal."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints, transforms


class Coordinates(constraints.greater_than):
    """The real line in the coordinates (x − center)/scale, or the positive numbers in (log x − center)/scale. NumPyro
    lets "greater than −∞" depend on other sites.
    """

    def __init__(self, center: Any, scale: Any, positive: bool = False) -> None:
        super().__init__(jnp.full(jnp.shape(center), 0.0 if positive else -jnp.inf))
        self.center, self.scale, self.positive = center, scale, positive

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.ones_like(prototype)

    def tree_flatten(self) -> Any:
        names, fixed = ("lower_bound", "center", "scale"), {"positive": self.positive}
        return (self.lower_bound, self.center, self.scale), (names, fixed)

    def eq(self, other: object, static: bool = False) -> Any:
        return self is other


@biject_to.register(Coordinates)
def _(support: Coordinates) -> transforms.Transform:
    affine = transforms.AffineTransform(support.center, support.scale, domain=constraints.real)
    return transforms.ComposeTransform([affine, transforms.ExpTransform()]) if support.positive else affine


class Located(dist.Distribution):
    """A law of numbers, or of positive ones, in the coordinates of `Coordinates`."""

    support: Any = constraints.real
    pytree_data_fields = ("law", "support")

    def __init__(self, law: dist.Distribution, center: Any, scale: Any, positive: bool = False) -> None:
        self.law, self.support = law, Coordinates(jnp.asarray(center), jnp.asarray(scale), positive)
        super().__init__(jnp.broadcast_shapes(law.batch_shape, jnp.shape(center)), validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self.law.expand(self.batch_shape).sample(key, sample_shape)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> jax.Array:
        return self.law.log_prob(value)


def pooled(loc: ArrayLike, scale: ArrayLike, center: ArrayLike, precision: ArrayLike) -> Located:
    """A normal law in coordinates that are nearly standard normal a posteriori ([PRS]). Given an estimate `center` ±
    error, precision = 1/error² (0 for none), the posterior is Normal(w center + (1 − w) loc, w error²), with w = scale²
    / (scale² + error²), and the coordinate is the value less that mean, over that standard deviation: the centred form
    where the estimate is sharp, the non-centred one where there is none.
    """
    informed = jnp.square(scale) * jnp.asarray(precision)
    weight = informed / (1 + informed)
    law = dist.Normal(loc, scale, validate_args=False)
    return Located(law, loc + weight * (jnp.asarray(center) - loc), scale / jnp.sqrt(1 + informed))


def pooled_gamma(loc: ArrayLike, concentration: ArrayLike, center: ArrayLike, precision: ArrayLike) -> Located:
    """The law of loc + log g for g ~ Gamma(concentration, concentration), of mean 1: counts whose rates have it are
    negative binomial. The coordinates are those of `pooled`, with a prior precision of `concentration`.
    """
    gamma = dist.Gamma(concentration, concentration, validate_args=False)
    parts = [transforms.ExpTransform().inv, transforms.AffineTransform(loc, 1.0)]
    total = concentration + jnp.asarray(precision)
    mean = loc + precision / total * (jnp.asarray(center) - loc)
    return Located(dist.TransformedDistribution(gamma, parts), mean, 1 / jnp.sqrt(total))


class FlatPositive(dist.ImproperUniform):
    """Flat law on positive numbers, sampled as (log x − log center)/error, for estimates ± error (relative)."""

    def __init__(self, center: ArrayLike, error: ArrayLike) -> None:
        support = Coordinates(jnp.log(center), jnp.asarray(error), positive=True)
        super().__init__(support, jnp.shape(center), (), validate_args=False)
