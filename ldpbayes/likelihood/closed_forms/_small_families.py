"""Beta, Cauchy, logistic and Student laws; truncated, transformed and zero-inflated laws, mixtures, point masses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.likelihood import families
from ldpbayes.likelihood.families import Family, family_of, register_family
from ldpbayes.likelihood.registry import register_closed_form
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.reporting import Reported
from ldpbayes.numerics.special import betainc, log_sum, student_t_cdf
from ldpbayes.numerics.tails import integrated_student_t_tail, logistic_tails, student_t_tails


@register_family(dist.Beta)
class _Beta(Family):
    def cdf(self, x: Array) -> jax.Array:
        """With derivatives in both concentrations, which NumPyro's own lacks."""
        return betainc(1.0 * self.law.concentration1, 1.0 * self.law.concentration0, x)  # perhaps whole numbers


@register_family(dist.Cauchy, dist.HalfCauchy)
class _Cauchy(Family):
    tame = True

    def centres(self) -> list[tuple[Array, Array]]:
        """Without moments, of which there are none, or which may be infinite."""
        return [(getattr(self.law, "loc", 0.0), self.law.scale)]


@register_family(dist.Logistic)
class _Logistic(Family):
    tame = True

    def tails(self, x: Array) -> jax.Array:
        return logistic_tails((x - self.law.loc) / self.law.scale)


@register_family(dist.StudentT)
class _StudentT(_Cauchy):
    tame = False

    def cdf(self, x: Array) -> jax.Array:
        """With a derivative in the degrees of freedom, which NumPyro's own lacks."""
        return student_t_cdf(self.law.df, (x - self.law.loc) / self.law.scale)

    def tails(self, x: Array) -> jax.Array:
        return student_t_tails(self.law.df, (x - self.law.loc) / self.law.scale)

    def integrated_tail(self, edges: Array) -> jax.Array:
        return self.law.scale * integrated_student_t_tail(self.law.df, (edges - self.law.loc) / self.law.scale)


@register_family(dist.LeftTruncatedDistribution, dist.RightTruncatedDistribution, dist.TwoSidedTruncatedDistribution)
class _Truncated(Family):
    def breaks(self) -> list[Array]:
        return family_of(self.law.base_dist).breaks()

    def centres(self) -> list[tuple[Array, Array]]:
        return family_of(self.law.base_dist).centres()


@register_family(dist.TransformedDistribution)
class _Transformed(Family):
    def breaks(self) -> list[Array]:
        """The images of those of the law that is transformed, and of the ends of its support."""
        part = self.law.base_dist
        points = family_of(part).breaks()
        if type(self.law) is dist.TransformedDistribution:  # whose support is all that its transforms can reach
            points = points + [end for end in families.ends_of(part.support) if not families.is_infinite(end)]
        for transform in self.law.transforms:
            points = [transform(point) for point in points]
        return _interior(points, self.law)

    def centres(self) -> list[tuple[Array, Array]]:
        """The images of those of the law that is transformed, and of the points a width away."""
        pairs = [(c, c - w, c + w) for c, w in family_of(self.law.base_dist).centres()]
        for transform in self.law.transforms:
            pairs = [tuple(transform(point) for point in points) for points in pairs]
        return [(middle, 0.5 * jnp.abs(high - low)) for middle, low, high in pairs]


@register_family(dist.discrete.ZeroInflatedProbs)
class _ZeroInflated(Family):
    def cdf(self, x: Array) -> Array:
        return self.law.gate + (1.0 - self.law.gate) * family_of(self.law.base_dist).cdf(x)

    def log_mass(self, counts: Array) -> jax.Array:
        gate = self.law.gate
        inflated = jnp.log1p(-gate) + family_of(self.law.base_dist).log_mass(counts)
        return jnp.where(counts == 0, jnp.log(gate + jnp.exp(inflated)), inflated)

    def log_mass_above(self, nodes: Array, log_masses: Array) -> jax.Array:
        """From that of the other law: zeros are above no node."""
        part = self.law.base_dist
        above = family_of(part).log_mass_above(nodes, families.log_prob_on_support(part, nodes))
        return jnp.log1p(-self.law.gate) + above


@register_family(dist.MixtureSameFamily)
class _MixtureSameFamily(Family):
    """Components of one class, in a batch, which have one support."""

    def _apart(self, point: Array) -> list[Array]:
        batch = (*self.law.batch_shape, self.law.mixture_size)
        return [*jnp.moveaxis(jnp.broadcast_to(point, batch), -1, 0)]

    def breaks(self) -> list[Array]:
        return [part for point in family_of(self.law.component_distribution).breaks() for part in self._apart(point)]

    def centres(self) -> list[tuple[Array, Array]]:
        pairs = family_of(self.law.component_distribution).centres()
        return [own for pair in pairs for own in zip(*map(self._apart, pair), strict=True)]

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        log_weights = jax.nn.log_softmax(self.law.mixing_distribution.logits)
        first, last = (edge.reshape(*jnp.shape(edge), 1) for edge in (first, last))
        return log_sum(log_weights + families.log_mass_outside(self.law.component_distribution, first, last))


@register_family(dist.MixtureGeneral)
class _MixtureGeneral(Family):
    """Components of any classes."""

    def breaks(self) -> list[Array]:
        """Those of all components and, where the support goes on there, the ends of their supports."""
        parts = self.law.component_distributions
        points = [point for part in parts for point in (*families.ends_of(part.support), *family_of(part).breaks())]
        return _interior(points, self.law)

    def centres(self) -> list[tuple[Array, Array]]:
        return [pair for part in self.law.component_distributions for pair in family_of(part).centres()]

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        log_weights = jax.nn.log_softmax(self.law.mixing_distribution.logits)
        parts = [families.log_mass_outside(law, first, last) for law in self.law.component_distributions]
        return log_sum(log_weights + jnp.stack(jnp.broadcast_arrays(*parts), axis=-1))


@register_closed_form(dist.Delta, (Additive, Reported))
def noisy_number(base: dist.Delta, mechanism: Mechanism, z: Array) -> jax.Array:
    """A number that is what it is, with noise."""
    return mechanism.log_prob(z, base.v) + base.log_density


def _interior(points: list[Array], law: Any) -> list[Array]:
    """The points that are not known to be infinite or an end of a law's support."""

    def is_end(point: Array, end: Array) -> bool:
        if not is_concrete(point, end):
            return point is end or families.is_infinite(point)
        return bool(np.all(np.isinf(point) | (np.asarray(point) == end)))

    return [point for point in points if not any(is_end(point, end) for end in families.ends_of(law.support))]
