"""The class `Privatized`: the law of a released value, as a NumPyro distribution."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key
from ldpbayes.likelihood._channel import build_channel
from ldpbayes.likelihood._quadrature import integrated, is_needed
from ldpbayes.likelihood.families import unexpanded
from ldpbayes.likelihood.latent import VERY_NARROW, check_nodes, is_narrow, latent_nodes, log_sum_over_counts
from ldpbayes.likelihood.registry import ClosedForm, closed_form, for_all_records
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.reporting import Floored
from ldpbayes.numerics.arrays import distinct

WRAPPERS = (dist.ExpandedDistribution, dist.MaskedDistribution, dist.Independent)  # that a law has in a model
# the methods that admit these ways
BY_CLOSED_FORM, BY_CHANNEL, BY_QUADRATURE = ("auto", "closed_form"), ("auto", "channel"), ("auto", "quadrature")


class Privatized(dist.Distribution):
    """Law of a released value z whose original record x follows ``base_dist`` ([KJKH] sec. 3.2).

    The mechanism releases x as z. The method ``log_prob`` integrates over the unknown x.

    Parameters
    ----------
    base_dist : numpyro.distributions.Distribution
        Law of a record. Its event shape is () for numbers and categories, and (columns,) for rows. Under an additive
        mechanism, it may also be a ``Delta``, which means that the record is a known number. Under discrete noise, this
        number need not be whole (see `Noise.continued`). Laws that contain a ``Delta``, such as mixtures, are not
        allowed.
    mechanism : Mechanism
        The mechanism. Its parameters may be arrays, such as one budget for each record. They broadcast with the batch
        shape of ``base_dist``.
    method : {"auto", "closed_form", "channel", "quadrature"}
        How ``log_prob`` integrates: by a formula ("closed_form"), numerically on panels that all records share
        ("channel"), or numerically on panels that follow the law of each record ("quadrature"). A channel is fast if
        many records have one law, but it cannot resolve a law that is narrow beside the panels. Default: "auto", which
        uses a formula if one is registered, and otherwise the faster of the numerical methods that is exact. If JAX
        traces the parameters of a law of many records, "auto" uses a channel, and only `fit` checks that it is exact. A
        ValueError is raised if the method is not possible for this law and this mechanism.
    panels : int, optional
        Number of panels (intervals with 8 nodes each) of a channel, which is then used whatever the law. Default: 40,
        or more if the noise is narrow.

    Examples
    --------
    >>> import ldpbayes as ldp, numpyro.distributions as dist
    >>> law = ldp.Privatized(dist.Normal(2.0, 1.0), ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=4))
    >>> round(float(law.log_prob(2.0)), 2)
    -2.27
    """

    pytree_data_fields = ("base_dist", "mechanism")
    _validate_args = True  # released values are input; NumPyro's own default has changed between versions
    pytree_aux_fields = ("method", "panels")
    support = property(lambda self: self.mechanism.support)
    _law = property(lambda self: unexpanded(self.base_dist))
    _unclipped = property(lambda self: self.mechanism.record_shape or not self.mechanism.bounded)

    def __init__(
        self,
        base_dist: dist.Distribution,
        mechanism: Mechanism,
        *,
        method: str = "auto",
        panels: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if base_dist.event_shape != mechanism.record_shape:
            wanted = f"have event shape {mechanism.record_shape}" if mechanism.record_shape else "be univariate"
            shape = base_dist.event_shape
            raise ValueError(f"base_dist must {wanted}, got {type(base_dist).__name__} of event shape {shape}")
        parts = jax.tree.leaves(base_dist, is_leaf=lambda part: isinstance(part, dist.Delta))
        noisy = mechanism.noise is not None and method in BY_CLOSED_FORM
        is_number = noisy and isinstance(unexpanded(base_dist), dist.Delta)
        if not is_number and any(isinstance(part, dist.Delta) for part in parts):
            raise ValueError("base_dist must have no point masses, got Delta; for known records use mechanism.log_prob")
        if method not in BY_CLOSED_FORM + BY_CHANNEL + BY_QUADRATURE:
            raise ValueError(f"method must be one of auto, closed_form, channel, quadrature, got {method!r}")
        self.base_dist, self.mechanism, self.method, self.panels = base_dist, mechanism, method, panels
        if self._closed_form() is None:
            if method not in BY_CHANNEL + BY_QUADRATURE or mechanism.record_shape:
                for_rows = "for rows, only MultivariateNormal and RegressionRows have one"
                hint = for_rows if mechanism.record_shape else "use method='channel'"
                pair = f"{type(base_dist).__name__} under {type(mechanism).__name__}"
                raise ValueError(f"no closed form for {pair}; {hint}")
            check_nodes(self._law, mechanism)
        batch_shape = lax.broadcast_shapes(base_dist.batch_shape, mechanism.batch_shape)
        super().__init__(batch_shape, mechanism.event_shape, validate_args=validate_args)

    def _closed_form(self) -> ClosedForm | None:
        return closed_form(self._law, self.mechanism) if self.method in BY_CLOSED_FORM else None

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Simulate released values: draw records x from ``base_dist``, and then let the mechanism release them as z."""
        x_key, z_key = jax.random.split(key)
        x = self.base_dist.expand(self.batch_shape).sample(x_key, sample_shape)
        return self.mechanism.simulate(z_key, x)

    def _validate_sample(self, value: Any) -> None:
        self.mechanism.validated_batch(value)

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        """Return the log density (*batch) of released values (*batch, *event_shape).

        Raises ValueError for values that the mechanism cannot release.
        """
        if self._validate_args:
            self._validate_sample(value)
        form = self._closed_form() or functools.partial(_by_numbers, method=self.method, panels=self.panels)
        batch_shape = jnp.shape(value)[: jnp.ndim(value) - self.event_dim]
        mechanism, kinds = self.mechanism, None
        one_law = self._law.batch_shape == () and self._unclipped and not self.event_shape
        one_law = one_law and len(batch_shape) == 1 and mechanism.batch_shape in ((), batch_shape)
        if one_law and is_concrete(value, mechanism):  # equal cells of a table count once
            columns = [np.broadcast_to(each, batch_shape) for each in (value, *mechanism.personal_parameters())]
            first, of_cells = distinct(np.stack(columns, axis=-1).astype(float))
            if 2 * len(first) < len(of_cells):
                first = np.resize(first, 1 << (len(first) - 1).bit_length())  # few sizes are compiled
                mechanism, value, kinds = mechanism.of_records(batch_shape, first), np.asarray(value)[first], of_cells
        log_prob = form(self._law, mechanism, value)
        log_prob = log_prob if kinds is None else log_prob[kinds]
        return jnp.broadcast_to(log_prob, lax.broadcast_shapes(batch_shape, self.batch_shape))

    def on_fixed_panels(self, value: Any) -> bool:
        """Return whether `log_prob` integrates by a channel, with panels that nobody asked for."""
        if self._closed_form() or self._law.support.is_discrete or self.panels is not None:
            return False
        return not _follows(self._law, self.mechanism, value, self.method, None)

    @property
    def is_narrow(self) -> jax.Array:
        """Whether the law of records is narrow beside the panels of a channel, which then cannot be exact."""
        return is_narrow(self._law, latent_nodes(self._law, self.mechanism).edges, VERY_NARROW)

    def cdf(self, value: Any) -> jax.Array:
        """Return P(z ≤ value) for a released number z. A released NaN counts as larger than every number.

        The noise must be additive. Reporting rules, such as "print 0 for negative numbers", are allowed. Other
        mechanisms raise TypeError. If records are counts and the mechanism has no bounds, JAX must not trace `value`.
        """
        mechanism: Any = self.mechanism
        if mechanism.noise is None or mechanism.record_shape or mechanism.has_atoms:
            raise TypeError(f"cdf is only for numbers that all have additive noise, got {type(mechanism).__name__}")
        below = unchecked(Floored, mechanism, value)  # prints all that is no larger as the value
        law = Privatized(self.base_dist, below, method=self.method, panels=self.panels, validate_args=False)
        return jnp.exp(law.log_prob(value))

    @property
    def mean(self) -> jax.Array:
        """Expectation of a released value, by quadrature over the original record. For rows, clipping is ignored."""
        if self._unclipped:
            mean = self._law.mean if self.event_shape else self.mechanism.moments(self._law.mean)[0]
            return jnp.broadcast_to(mean, self.batch_shape + self.event_shape)
        return self._moments_by_quadrature()[0]

    @property
    def variance(self) -> jax.Array:
        """Variance of a released value, computed in the same way as `mean`."""
        if self._unclipped:
            return self._law.variance + self.mechanism.moments(self.mean)[1]
        return self._moments_by_quadrature()[1]

    def _moments_by_quadrature(self) -> tuple[jax.Array, jax.Array]:
        law, shape = self._law, self.batch_shape + self.event_shape
        if isinstance(law, dist.Delta):
            mean, variance = self.mechanism.moments(law.v)
            return jnp.broadcast_to(mean, shape), jnp.broadcast_to(variance, shape)
        x, mass = latent_nodes(law, self.mechanism, self.panels).points(law, 1 + len(self.batch_shape))
        means, variances = self.mechanism.moments(x)
        mass = mass.reshape(mass.shape + (1,) * (means.ndim - mass.ndim))
        mean = jnp.sum(mass * means, axis=0)
        variance = jnp.sum(mass * (variances + (means - mean) ** 2), axis=0)
        return jnp.broadcast_to(mean, shape), jnp.broadcast_to(variance, shape)


@for_all_records
def _by_numbers(
    base: dist.Distribution, mechanism: Any, z: Array, method: str = "auto", panels: int | None = None
) -> jax.Array:
    """The log density of any law of numbers or counts under any mechanism: by quadrature, a channel, or a sum."""
    # a channel, in which probabilities are not kept as logs, is for noise that reaches from one bound to the other
    whole = (mechanism.clips and mechanism.domain.is_discrete) or not mechanism.bounded
    if whole and base.support.is_discrete:
        return log_sum_over_counts(base, mechanism, z)
    if base.support.is_discrete or not _follows(base, mechanism, z, method, panels):
        return build_channel(base, mechanism, z, panels).log_prob(base)
    return integrated(base, mechanism, z)


def _follows(base: dist.Distribution, mechanism: Any, z: Array, method: str, panels: int | None) -> bool:
    """Whether nodes follow the law of each record."""
    if method in BY_CHANNEL and method in BY_QUADRATURE:
        return panels is None and is_needed(base, mechanism, z)
    return method in BY_QUADRATURE


def privatized_law(distribution: dist.Distribution, mechanism: Mechanism, **options: Any) -> dist.Distribution:
    """`Privatized` inside the wrappers that a distribution has in a model: expanded by plates, masked, or an event."""
    if not isinstance(distribution, WRAPPERS):
        return Privatized(distribution, mechanism, **options)
    inner = privatized_law(distribution.base_dist, mechanism, **options)
    if isinstance(distribution, dist.ExpandedDistribution):
        return inner.expand(lax.broadcast_shapes(distribution.batch_shape, inner.batch_shape))
    if isinstance(distribution, dist.MaskedDistribution):
        return inner.mask(distribution._mask)
    return inner.to_event(distribution.reinterpreted_batch_ndims)


def unwrapped(distribution: dist.Distribution) -> tuple[Any, Array]:
    """The distribution inside expansions, masks and events, and the masks together, which broadcast with its batch."""
    if not isinstance(distribution, WRAPPERS):
        return distribution, True
    law, keep = unwrapped(distribution.base_dist)
    mask = getattr(distribution, "_mask", None)
    if mask is not None:
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
        """A record's own entry in rows (*batch, N, G)."""
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
    own = unexpanded(law)
    if own.batch_shape in ((), (1,)):
        return own.expand(np.shape(groups))
    (count,) = own.batch_shape
    if any(np.ndim(leaf) > 1 for leaf in jax.tree.leaves(own)):
        # An axis of another kind that is as long by chance does not fit rows of which there are twice as many.
        twice = np.tile(np.arange(count), 2)
        value = jnp.zeros(own.event_shape, int if own.support.is_discrete else float)
        try:
            fits = jax.eval_shape(lambda: _rows(own, twice, count).log_prob(value)).shape == twice.shape
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise TypeError(f"a {type(own).__name__} cannot be repeated for the records of each group")
    return _rows(own, groups, count)


def _rows(law: Any, rows: Array, count: int) -> Any:
    """Rows of the arrays of a law, and of the laws that it is made from, whose first axis is as long as `count`."""

    def own(part: Any) -> Any:
        if isinstance(part, dist.Distribution):
            return _rows(part, rows, count)
        return part[rows] if np.shape(part)[:1] == (count,) else part

    batch = (*np.shape(rows), *law.batch_shape[1:]) if law.batch_shape[:1] == (count,) else law.batch_shape
    if isinstance(law, dist.ExpandedDistribution):
        return _rows(law.base_dist, rows, count).expand(batch)
    taken = jax.tree.map(own, law, is_leaf=lambda part: part is not law and isinstance(part, dist.Distribution))
    taken._batch_shape = batch
    return taken
