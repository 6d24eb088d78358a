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
        return (self.lower_bound, self.center, self.scale), (
            ("lower_bound", "center", "scale"),
            {"positive": self.positive},
        )

    def eq(self, other: object, static: bool = False) -> Any:
        return self is other


@biject_to.register(Coordinates)
def _(support: Coordinates) -> transforms.Transform:
    affine = transforms.AffineTransform(support.center, support.scale, domain=constraints.real)
    return transforms.ComposeTransform([affine, transforms.ExpTransform()]) if support.positive else affine


class Pooled(dist.Normal):
    """A normal law, sampled in coordinates that are nearly standard normal a posteriori ([PRS]). Given an estimate
    `center` ± error, precision = 1/error² (0 for none), the posterior is Normal(w center + (1 − w) loc, w error²), with
    w = scale² / (scale² + error²), and the coordinate is the value less that mean, over that standard deviation: the
    centred form where the estimate is sharp, the non-centred one where there is none.
    """

    pytree_data_fields = ("support",)

    def __init__(self, loc: ArrayLike, scale: ArrayLike, center: ArrayLike, precision: ArrayLike) -> None:
        informed = jnp.square(scale) * jnp.asarray(precision)
        weight = informed / (1 + informed)
        self.support = Coordinates(loc + weight * (jnp.asarray(center) - loc), scale / jnp.sqrt(1 + informed))
        super().__init__(loc, scale, validate_args=False)


class Located(dist.Distribution):
    """A law on the real line, sampled in the coordinates (x − center)/scale: chains start near the center."""

    support: Any = constraints.real
    pytree_data_fields = ("law", "support")

    def __init__(self, law: dist.Distribution, center: float, scale: float) -> None:
        self.law, self.support = law, Coordinates(jnp.asarray(center), jnp.asarray(scale))
        super().__init__(law.batch_shape, validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self.law.sample(key, sample_shape)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> jax.Array:
        return self.law.log_prob(value)


class FlatPositive(dist.ImproperUniform):
    """A flat law on the positive numbers, sampled in the coordinate (log x − log center)/error, for estimates ± error
    (relative).
    """

    def __init__(self, center: ArrayLike, error: ArrayLike) -> None:
        support = Coordinates(jnp.log(center), jnp.asarray(error), positive=True)
        super().__init__(support, jnp.shape(center), (), validate_args=False)


class PooledGamma(dist.Distribution):
    """The law of loc + log g for g ~ Gamma(concentration, concentration), of mean 1: counts whose rates have it are
    negative binomial. It is sampled in coordinates like those of `Pooled`, with a prior precision of `concentration`.
    """

    support: Any = constraints.real
    pytree_data_fields = ("loc", "concentration", "support")

    def __init__(self, loc: ArrayLike, concentration: ArrayLike, center: ArrayLike, precision: ArrayLike) -> None:
        self.loc, self.concentration = loc, concentration
        total = concentration + jnp.asarray(precision)
        self.support = Coordinates(loc + precision / total * (jnp.asarray(center) - loc), 1 / jnp.sqrt(total))
        super().__init__(jnp.broadcast_shapes(*map(jnp.shape, (loc, concentration, center))), validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        k = jnp.asarray(self.concentration)
        return jnp.asarray(self.loc) + jax.random.loggamma(key, k, (*sample_shape, *self.batch_shape)) - jnp.log(k)

    def log_prob(self, value: ArrayLike, intermediates: Any = None) -> jax.Array:
        log_g, k = jnp.subtract(value, self.loc), jnp.asarray(self.concentration)
        return k * (log_g - jnp.exp(log_g)) + k * jnp.log(k) - jax.scipy.special.gammaln(k)
