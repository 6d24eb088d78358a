"""Laws that are made from other laws: wrappers, groups, mixtures, truncated and transformed laws."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax

from ldpbayes._core.checks import ends_of
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.laws import families
from ldpbayes.laws.families import Family, family_of, register_family, unexpanded
from ldpbayes.mechanisms import Mechanism
from ldpbayes.numerics.special import log_or_nothing, log_sum

WRAPPERS = (dist.ExpandedDistribution, dist.MaskedDistribution, dist.Independent)  # that a law has in a model


def unwrapped(distribution: dist.Distribution) -> tuple[Any, Array]:
    """The distribution inside expansions, masks and events, and the masks together, which broadcast with its batch."""
    if not isinstance(distribution, WRAPPERS):
        return distribution, True
    law, keep = unwrapped(distribution.base_dist)
    if isinstance(distribution, dist.MaskedDistribution):
        mask = distribution._mask
        mask = np.asarray(mask) if is_concrete(mask) else mask  # jnp would make a tracer of it while another is traced
        # a mask of events is one of everything in them
        keep = keep & mask.reshape(mask.shape + (1,) * (distribution.event_dim - law.event_dim))
    return law, keep


class Grouped(dist.Distribution):
    """Records of several groups: record i follows law ``groups[i]`` (N,) of a univariate law of batch shape (G,)."""

    pytree_data_fields = ("base_dist", "groups")
    support = property(lambda self: self.base_dist.support)

    def __init__(self, base_dist: dist.Distribution, groups: Any, *, validate_args: bool | None = None) -> None:
        self.base_dist, self.groups = base_dist, groups
        super().__init__(jnp.shape(groups), (), validate_args=validate_args)

    def _own(self, of_all_laws: jax.Array) -> jax.Array:
        return jnp.take_along_axis(of_all_laws, jnp.asarray(self.groups)[:, None], axis=-1)[..., 0]

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self._own(self.base_dist.sample(key, (*sample_shape, self.batch_shape[0])))

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        if jnp.shape(value)[-1:] == self.batch_shape:
            return self._own(self.base_dist.log_prob(jnp.asarray(value)[..., None]))
        return self.base_dist.log_prob(value)[..., jnp.asarray(self.groups)]


def of_unwrapped(function: Callable[[Any], Array], law: dist.Distribution) -> jax.Array:
    """``function`` (*batch, ...) of the law inside expansions, masks and events, broadcast to their shape."""
    inner, _ = unwrapped(law)
    grouped, batch, shape = isinstance(inner, Grouped), inner.batch_shape, law.shape()
    values = jnp.asarray(of_unwrapped(function, inner.base_dist)[inner.groups] if grouped else function(inner))
    if values.shape[: len(batch)] != batch:
        raise ValueError(f"a function of a law must return shape {batch}, possibly with more axes; got {values.shape}")
    values = values.reshape((1,) * (len(shape) - len(batch)) + values.shape)
    return jnp.broadcast_to(values, shape + values.shape[len(shape) :])


def law_of_records(law: Any, groups: Array, mechanism: Mechanism | None = None) -> dist.Distribution:
    """Laws (N,) of records from a law (G,) a group: of its class, or `Grouped` where a mechanism takes categories."""
    if mechanism is not None and mechanism.support.is_discrete and mechanism.noise is None:
        return Grouped(law, groups)
    bare = unexpanded(law)
    if bare.batch_shape in ((), (1,)):
        return bare.expand(np.shape(groups))
    (count,) = bare.batch_shape
    if any(np.ndim(leaf) > 1 for leaf in jax.tree.leaves(bare)):
        # An axis of another kind that is as long by chance does not fit rows of which there are twice as many.
        twice = np.tile(np.arange(count), 2)
        value = jnp.zeros(bare.event_shape, int if bare.support.is_discrete else float)
        try:
            fits = jax.eval_shape(lambda: _rows(bare, twice, count).log_prob(value)).shape == twice.shape
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise TypeError(f"a {type(bare).__name__} cannot be repeated for the records of each group")
    return _rows(bare, groups, count)


def _rows(law: Any, rows: Array, count: int) -> Any:
    """Rows of the arrays of a law, and of the laws that it is made from, whose first axis is as long as `count`."""

    def rows_of(part: Any) -> Any:
        if isinstance(part, dist.Distribution):
            return _rows(part, rows, count)
        return part[rows] if np.shape(part)[:1] == (count,) else part

    batch = (*np.shape(rows), *law.batch_shape[1:]) if law.batch_shape[:1] == (count,) else law.batch_shape
    if isinstance(law, dist.ExpandedDistribution):
        return _rows(law.base_dist, rows, count).expand(batch)
    taken = jax.tree.map(rows_of, law, is_leaf=lambda part: part is not law and isinstance(part, dist.Distribution))
    taken._batch_shape = batch
    return taken


class MixtureOverClasses(dist.MixtureSameFamily):
    """A mixture with log weights (*batch, classes) of laws (*batch, classes), which may have any support in common."""

    def __init__(self, logits: Array, laws: Any) -> None:
        self._mixing_distribution = dist.Categorical(logits=logits, validate_args=False)
        self._component_distribution, self._mixture_size = laws, logits.shape[-1]
        batch_shape = lax.broadcast_shapes(logits.shape[:-1], laws.batch_shape[:-1])
        dist.Distribution.__init__(self, batch_shape, laws.event_shape, validate_args=False)


@register_family(dist.LeftTruncatedDistribution, dist.RightTruncatedDistribution, dist.TwoSidedTruncatedDistribution)
class _OfTruncated(Family):
    def breaks(self) -> list[Array]:
        return family_of(self.law.base_dist).breaks()

    def centres(self) -> list[tuple[Array, Array]]:
        return family_of(self.law.base_dist).centres()


@register_family(dist.TransformedDistribution)
class _OfTransformed(Family):
    def breaks(self) -> list[Array]:
        """The images of those of the law that is transformed, and of the ends of its support."""
        part = self.law.base_dist
        points = family_of(part).breaks()
        if type(self.law) is dist.TransformedDistribution:  # whose support is all that its transforms can reach
            points = points + [end for end in ends_of(part.support) if not families.is_infinite(end)]
        for transform in self.law.transforms:
            points = [transform(point) for point in points]
        return _interior(points, self.law)

    def centres(self) -> list[tuple[Array, Array]]:
        pairs = [(c, c - w, c + w) for c, w in family_of(self.law.base_dist).centres()]
        for transform in self.law.transforms:
            pairs = [tuple(transform(point) for point in points) for points in pairs]
        return [(middle, 0.5 * jnp.abs(high - low)) for middle, low, high in pairs]


class LogOf(dist.Distribution):
    """The law of log X; X may be a number of any sign, of which only the positive part has logarithms."""

    support = dist.constraints.real
    pytree_data_fields = ("base_dist",)

    def __init__(self, base: Any) -> None:
        self.base_dist = copy.copy(base)
        self.base_dist._validate_args = False  # densities are also asked for beyond the support
        super().__init__(base.batch_shape, validate_args=False)

    def log_prob(self, value: Array) -> jax.Array:
        """With −inf outside the support of X, over which NumPyro continues some densities."""
        base, x = self.base_dist, jnp.exp(value)
        inside = base.support(x)
        safe = jnp.where(inside, x, base.support.feasible_like(x))
        return jnp.where(inside, base.log_prob(safe) + value, -jnp.inf)


@register_family(LogOf)
class _OfLog(Family):
    def breaks(self) -> list[Array]:
        part = self.law.base_dist
        ends = [end for end in ends_of(part.support) if not families.is_infinite(end)]
        return [log_or_nothing(point) for point in [*family_of(part).breaks(), *ends]]

    def centres(self) -> list[tuple[Array, Array]]:
        return [(log_or_nothing(c), w / jnp.maximum(c, 0.0)) for c, w in family_of(self.law.base_dist).centres()]

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        """Of X, which may be negative."""
        return families.log_mass_outside(self.law.base_dist, jnp.exp(first), jnp.exp(last))


@register_family(dist.discrete.ZeroInflatedProbs)
class _OfZeroInflated(Family):
    def cdf(self, x: Array) -> Array:
        return self.law.gate + (1.0 - self.law.gate) * family_of(self.law.base_dist).cdf(x)

    def log_mass(self, counts: Array) -> jax.Array:
        gate = self.law.gate
        inflated = jnp.log1p(-gate) + family_of(self.law.base_dist).log_mass(counts)
        return jnp.where(counts == 0, jnp.log(gate + jnp.exp(inflated)), inflated)

    def log_mass_above(self, nodes: Array, log_masses: Array) -> jax.Array:
        part = self.law.base_dist
        above = family_of(part).log_mass_above(nodes, families.log_prob_on_support(part, nodes))
        return jnp.log1p(-self.law.gate) + above


@register_family(dist.MixtureSameFamily)
class _OfMixtureSameFamily(Family):
    """Components of one class, in a batch, which have one support."""

    def _apart(self, point: Array) -> list[Array]:
        batch = (*self.law.batch_shape, self.law.mixture_size)
        return [*jnp.moveaxis(jnp.broadcast_to(point, batch), -1, 0)]

    def breaks(self) -> list[Array]:
        return [part for point in family_of(self.law.component_distribution).breaks() for part in self._apart(point)]

    def centres(self) -> list[tuple[Array, Array]]:
        pairs = family_of(self.law.component_distribution).centres()
        return [of_component for pair in pairs for of_component in zip(*map(self._apart, pair), strict=True)]

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        log_weights = jax.nn.log_softmax(self.law.mixing_distribution.logits)
        first, last = (edge.reshape(*jnp.shape(edge), 1) for edge in (first, last))
        return log_sum(log_weights + families.log_mass_outside(self.law.component_distribution, first, last))


@register_family(dist.MixtureGeneral)
class _OfMixtureGeneral(Family):
    def breaks(self) -> list[Array]:
        """Of all components and, where the support goes on there, the ends of their supports."""
        parts = self.law.component_distributions
        points = [point for part in parts for point in (*ends_of(part.support), *family_of(part).breaks())]
        return _interior(points, self.law)

    def centres(self) -> list[tuple[Array, Array]]:
        return [pair for part in self.law.component_distributions for pair in family_of(part).centres()]

    def log_mass_outside(self, first: Array, last: Array) -> jax.Array:
        log_weights = jax.nn.log_softmax(self.law.mixing_distribution.logits)
        parts = [families.log_mass_outside(law, first, last) for law in self.law.component_distributions]
        return log_sum(log_weights + jnp.stack(jnp.broadcast_arrays(*parts), axis=-1))


def _interior(points: list[Array], law: Any) -> list[Array]:
    """The points that are not known to be infinite or an end of a law's support."""

    def is_end(point: Array, end: Array) -> bool:
        if not is_concrete(point, end):
            return point is end or families.is_infinite(point)
        return bool(np.all(np.isinf(point) | (np.asarray(point) == end)))

    return [point for point in points if not any(is_end(point, end) for end in ends_of(law.support))]
