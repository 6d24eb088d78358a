"""`Privatized`: the law of a released value, as a NumPyro distribution; and the laws of the nodes of sketches."""

import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints

from ldpbayes._core.pytrees import pytree_dataclass, unchecked
from ldpbayes._core.types import Array, Key, array_of, is_concrete
from ldpbayes.data import CountSketch, ExpandedSketch, MixedSketch, PanelSketch, Release, Sketch
from ldpbayes.data.sketches import MOMENTS_PER_PANEL, MOST_COUNTED_ATOMS, MomentSketch
from ldpbayes.laws.compound import WRAPPERS, LogOf, MixtureOverClasses, law_of_records
from ldpbayes.laws.families import family_of, is_narrow, unexpanded
from ldpbayes.likelihood import latent
from ldpbayes.likelihood.closed_forms import ClosedForm, closed_form, for_all_records, is_own, register_closed_form
from ldpbayes.likelihood.closed_forms.categories import category_probabilities
from ldpbayes.mechanisms import Mechanism, MultiplicativeScrambling
from ldpbayes.mechanisms.reporting import Floored, Published
from ldpbayes.numerics.arrays import distinct
from ldpbayes.numerics.special import log_sum

# the methods that admit these ways
BY_CLOSED_FORM, BY_CHANNEL, BY_QUADRATURE = ("auto", "closed_form"), ("auto", "channel"), ("auto", "quadrature")
MAX_CHANNEL_PANELS = 200  # a sketch refined further has nodes enough for a closed form, if there is one, to be faster
MOST_DRAWS = 1000  # of records and values, to simulate values that are published
COUNT_INSTEAD = "use release.sketch(expand=False), which counts released values"


class Privatized(dist.Distribution):
    """Law of a released value z whose original record x follows ``base_dist`` ([KJKH] sec. 3.2): x is integrated out.

    Parameters
    ----------
    base_dist : numpyro.distributions.Distribution
        Law of a record, of event shape () for numbers and categories, and (columns,) for rows. Under an additive
        mechanism also a ``Delta``, a known number, which need not be whole under discrete noise (`Noise.continued`),
        but no law that contains one, such as a mixture.
    mechanism : Mechanism
        The mechanism. Its parameters may be arrays, such as one budget for each record. They broadcast with the batch
        shape of ``base_dist``.
    method : {"auto", "closed_form", "channel", "quadrature"}
        How ``log_prob`` integrates: by a formula, on panels that all records share ("channel": fast if many records
        have one law, but not exact if it is narrow beside the panels), or on panels that follow the law of each record
        ("quadrature"). ValueError if this is impossible. Default: "auto", a formula if one is registered, else the
        faster numerical method that is exact. If JAX traces the parameters of a law of many records, "auto" uses a
        channel, and only `fit` checks that it is exact.
    panels : int, optional
        Number of panels of 8 nodes of a channel, which is then used. Default: 40, or more if the noise is narrow.

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
            latent.check_nodes(self._law, mechanism)
        batch_shape = lax.broadcast_shapes(base_dist.batch_shape, mechanism.batch_shape)
        super().__init__(batch_shape, mechanism.event_shape, validate_args=validate_args)

    def _closed_form(self) -> ClosedForm | None:
        return closed_form(self._law, self.mechanism) if self.method in BY_CLOSED_FORM else None

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        if isinstance(self.mechanism, Published):
            return self._sample_published(key, sample_shape)
        x_key, z_key = jax.random.split(key)
        x = self.base_dist.expand(self.batch_shape).sample(x_key, sample_shape)
        return self.mechanism.simulate(z_key, x)

    def _sample_published(self, key: Key, sample_shape: tuple[int, ...]) -> jax.Array:
        """Records and values are drawn until each value is one that is published; NaN where none of many draws is."""
        values = self._like(cast(Any, self.mechanism).mechanism)

        def again(state: tuple) -> tuple:
            number, z = state
            return number + 1, jnp.where(jnp.isnan(z), values.sample(jax.random.fold_in(key, number), sample_shape), z)

        start = 1, values.sample(jax.random.fold_in(key, 0), sample_shape)
        return lax.while_loop(lambda state: (state[0] < MOST_DRAWS) & jnp.isnan(state[1]).any(), again, start)[1]

    def _validate_sample(self, value: Any) -> None:
        self.mechanism.validated_batch(value)

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        """Return the log density (*batch) of `value` (*batch, *event_shape). ValueError if it cannot be released."""
        if self._validate_args:
            self._validate_sample(value)
        if isinstance(self.mechanism, Published):
            rule, times = self.mechanism.others
            others = self._like(rule).log_prob(np.full(self.mechanism.batch_shape, np.nan))
            return self._like(self.mechanism.mechanism).log_prob(value) + jnp.where(times == 0, 0.0, times * others)
        form = self._closed_form() or functools.partial(_by_numbers, method=self.method, panels=self.panels)
        batch_shape = jnp.shape(value)[: jnp.ndim(value) - self.event_dim]
        mechanism, kinds = self.mechanism, None
        one_law = self._law.batch_shape == () and self._unclipped and not self.event_shape
        one_law = one_law and len(batch_shape) == 1 and mechanism.batch_shape in ((), batch_shape)
        if one_law and is_concrete(value, mechanism):  # equal cells of a table count once
            columns = [np.broadcast_to(part, batch_shape) for part in (value, *mechanism.personal_parameters())]
            first, of_cells = distinct(np.stack(columns, axis=-1).astype(float))
            if 2 * len(first) < len(of_cells):
                first = np.resize(first, 1 << (len(first) - 1).bit_length())  # few sizes are compiled
                mechanism, value, kinds = mechanism.of_records(batch_shape, first), np.asarray(value)[first], of_cells
        log_prob = form(self._law, mechanism, value)
        log_prob = log_prob if kinds is None else log_prob[kinds]
        return jnp.broadcast_to(log_prob, lax.broadcast_shapes(batch_shape, self.batch_shape))

    def _like(self, mechanism: Mechanism) -> "Privatized":
        """The law of values that another mechanism releases of the same records."""
        return Privatized(self.base_dist, mechanism, method=self.method, panels=self.panels, validate_args=False)

    @property
    def log_published(self) -> jax.Array:
        """Log probability (*batch) that a value is published, under `Published`; AttributeError otherwise."""
        rule: Any = self.mechanism
        return self._like(rule.any_published).log_prob(np.full(rule.batch_shape, np.nan))

    def on_fixed_panels(self, value: Any) -> bool:
        """Return whether `log_prob` integrates by a channel, with panels that nobody asked for."""
        if self._closed_form() or self._law.support.is_discrete or self.panels is not None:
            return False
        return not _follows(self._law, self.mechanism, value, self.method, None)

    @property
    def is_narrow(self) -> jax.Array:
        """Whether the law of records is narrow beside the panels of a channel, which then cannot be exact."""
        edges = latent.latent_nodes(self._law, self.mechanism).edges
        return is_narrow(self._law, edges, latent.VERY_NARROW_PANEL_SHARE)

    def cdf(self, value: Any) -> jax.Array:
        """Return P(z ≤ value) for a released number z. A released NaN counts as larger than every number.

        TypeError unless all noise is additive (reported or not). For counts without bounds, JAX must not trace `value`.
        """
        mechanism: Any = self.mechanism
        if mechanism.noise is None or mechanism.record_shape or mechanism.has_atoms:
            raise TypeError(f"cdf is only for numbers that all have additive noise, got {type(mechanism).__name__}")
        log_published: Any = 0.0
        if isinstance(mechanism, Published):
            mechanism, log_published = mechanism.mechanism, self.log_published
        below = unchecked(Floored, mechanism, value)  # prints all that is no larger as the value
        return jnp.exp(self._like(below).log_prob(value) - log_published)

    @property
    def mean(self) -> jax.Array:
        """Expectation of a released value, by quadrature over the record. For rows, clipping is ignored."""
        if self._unclipped:
            mean = self._law.mean if self.event_shape else self.mechanism.moments(self._law.mean)[0]
            return jnp.broadcast_to(mean, self.batch_shape + self.event_shape)
        return self._moments_by_quadrature()[0]

    @property
    def variance(self) -> jax.Array:
        if self._unclipped:
            return self._law.variance + self.mechanism.moments(self.mean)[1]
        return self._moments_by_quadrature()[1]

    def _moments_by_quadrature(self) -> tuple[jax.Array, jax.Array]:
        law, shape = self._law, self.batch_shape + self.event_shape
        if isinstance(law, dist.Delta):
            mean, variance = self.mechanism.moments(law.v)
            return jnp.broadcast_to(mean, shape), jnp.broadcast_to(variance, shape)
        x, mass = latent.latent_nodes(law, self.mechanism, self.panels).points(law, 1 + len(self.batch_shape))
        means, variances = self.mechanism.moments(x)
        mass = mass.reshape(mass.shape + (1,) * (means.ndim - mass.ndim))
        mean = jnp.sum(mass * means, axis=0)
        variance = jnp.sum(mass * (variances + (means - mean) ** 2), axis=0)
        return jnp.broadcast_to(mean, shape), jnp.broadcast_to(variance, shape)


@for_all_records
def _by_numbers(
    base: dist.Distribution, mechanism: Any, z: Array, method: str = "auto", panels: int | None = None
) -> jax.Array:
    """Log density of numbers or counts under any mechanism: by quadrature, a channel, or a sum."""
    # a channel, in which probabilities are not kept as logs, is for noise that reaches from one bound to the other
    whole = (mechanism.clips and mechanism.domain.is_discrete) or not mechanism.bounded
    if whole and base.support.is_discrete:
        return latent.log_sum_over_counts(base, mechanism, z)
    if base.support.is_discrete or not _follows(base, mechanism, z, method, panels):
        return latent.build_channel(base, mechanism, z, panels).log_prob(base)
    return latent.integrated(base, mechanism, z)


def _follows(base: dist.Distribution, mechanism: Any, z: Array, method: str, panels: int | None) -> bool:
    if method in BY_CHANNEL and method in BY_QUADRATURE:
        return panels is None and latent.is_needed(base, mechanism, z)
    return method in BY_QUADRATURE


def privatized_law(distribution: dist.Distribution, mechanism: Mechanism, **options: Any) -> dist.Distribution:
    """`Privatized` inside the wrappers that a distribution has in a model: expanded by plates, masked, or an event."""
    if not isinstance(distribution, WRAPPERS):
        _check_unpublished(distribution, mechanism)
        return Privatized(distribution, mechanism, **options)
    inner = privatized_law(distribution.base_dist, mechanism, **options)
    if isinstance(distribution, dist.ExpandedDistribution):
        return inner.expand(lax.broadcast_shapes(distribution.batch_shape, inner.batch_shape))
    if isinstance(distribution, dist.MaskedDistribution):
        return inner.mask(distribution._mask)
    return inner.to_event(distribution.reinterpreted_batch_ndims)


def _check_unpublished(base: dist.Distribution, mechanism: Any) -> None:
    """ValueError if a number of values is not published, and no law of theirs is known."""
    number = mechanism.unpublished if isinstance(mechanism, Published) else None
    shape = unexpanded(base).batch_shape
    if number is not None and shape and np.ndim(number) == 0 and not (is_concrete(number) and number == 0):
        problem = f"values that were not published have no law, as those that were have laws of shape {shape}"
        hint = "add a value NaN for each, with its law, or take their number as unknown (unpublished=None)"
        raise ValueError(f"{problem}; {hint}")


class ExpandedLaw(dist.Distribution):
    """All records of an `ExpandedSketch` as one event, their number; `theta` (*sketch.law_shape, d) are the shares."""

    pytree_data_fields = ("theta", "polynomial")
    support = constraints.nonnegative

    def __init__(self, base_dist: dist.Distribution, sketch: ExpandedSketch) -> None:
        if is_own(base_dist, sketch.mechanism):
            pair = f"{type(base_dist).__name__} under {type(sketch.mechanism).__name__}"
            raise ValueError(f"your closed form for {pair} is not used by an expansion; {COUNT_INSTEAD}")
        self.theta, self.polynomial = category_probabilities(base_dist, sketch.mechanism), sketch.polynomial
        self.sketch = sketch  # lost where the law is taken apart as a pytree
        super().__init__()

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        return jnp.sum(self.polynomial(self.theta))

    def expand(self, batch_shape: tuple[int, ...]) -> "ExpandedLaw":
        if tuple(batch_shape):
            problem = f"an expansion must be one site, but plates or masks give it shape {batch_shape}"
            raise ValueError(f"{problem}; {COUNT_INSTEAD}")
        return self


def law_of_nodes(sketch: Sketch, base_dist: dist.Distribution, **options: Any) -> Privatized | ExpandedLaw:
    """Return the law of a sketch's nodes, or of all records of an expansion, if original records follow ``base_dist``.

    Nodes replace the released values. An expansion is a sketch of categories whose log-likelihood is a polynomial.

    Parameters
    ----------
    sketch : Sketch
        The sketch or the expansion. ValueError if counts are released without noise between bounds 1,024 or more apart.
    base_dist : numpyro.distributions.Distribution
        Law of a record, with the batch shape ``sketch.law_shape``: one law for each group of the sketch.
    **options
        ``method`` and ``panels`` of `Privatized`, by default chosen for the sketch. Not allowed for an expansion.
    """
    if isinstance(sketch, ExpandedSketch):
        if options:
            raise ValueError(f"{' and '.join(options)} cannot be chosen for an expansion; {COUNT_INSTEAD}")
        return ExpandedLaw(base_dist, sketch)
    _check_unpublished(base_dist, sketch.mechanism)
    if isinstance(sketch, CountSketch) and sketch.groups is not None:
        base_dist = law_of_records(base_dist, sketch.groups, sketch.mechanism)
    return Privatized(base_dist, sketch.mechanism, **_method(sketch, base_dist) | options)


@pytree_dataclass(eq=False)
class PreparedLikelihood:
    """Released numbers with weights, and the channel to them from all laws with the same support and breaks."""

    mechanism: Any
    values: Any  # (m,)
    weights: Any  # (m,)
    channel: Any

    @classmethod
    def of(cls, data: Any, law: dist.Distribution) -> "PreparedLikelihood":
        """Of a release or a sketch, whose channel is built for one of the laws; errors as of `Privatized`."""
        release = isinstance(data, Release)
        values, weights = (data.values, np.ones(data.count)) if release else (data.occupied, data.weights)
        options = {} if release else _method(data, law)
        return cls.at(values, weights, data.mechanism, law, options.get("panels"))

    @classmethod
    def at(
        cls, values: Any, weights: Any, mechanism: Any, law: dist.Distribution, panels: int | None = None
    ) -> "PreparedLikelihood":
        """Of released values (m,) with weights (m,); or of columns (m, parts), for a mechanism each."""
        Privatized(law, mechanism, method="channel")
        noisy = mechanism.perturbing if mechanism.omits_noise else mechanism
        return cls(mechanism, values, weights.ravel(), latent.build_channel(law, noisy, values, panels))

    def log_prob(self, law: dist.Distribution) -> jax.Array:
        log_prob = for_all_records(lambda law, *_: self.channel.log_prob(law))
        return jnp.ravel(log_prob(law, self.mechanism, self.values))


def _method(sketch: Sketch, base_dist: dist.Distribution) -> dict[str, Any]:
    """How the likelihood of a sketch's nodes is computed: options of `Privatized`."""
    if isinstance(sketch, MixedSketch):
        choices = [_method(part, base_dist) for part in sketch.parts]
        return max(choices, key=lambda choice: choice.get("panels", 0))
    users_form = is_own(base_dist, sketch.mechanism)
    normal_rows = isinstance(unexpanded(base_dist), dist.MultivariateNormal)
    if isinstance(sketch, MomentSketch) and (users_form or not normal_rows):
        kind = type(base_dist).__name__
        moments = "first and second moments, so it is only for records that are MultivariateNormal (see linear_rows)"
        raise ValueError(f"a sketch of rows holds {moments}; for a {kind} fit the release itself")
    if not isinstance(sketch, PanelSketch):
        return {}
    if base_dist.support.is_discrete and sketch.mechanism.has_atoms:
        between = math.ceil(sketch.edges[-1]) - math.floor(sketch.edges[0]) - 1
        share = sketch.mechanism.unperturbed
        if between > len(sketch.places) - 2 and not (is_concrete(share) and not np.any(share)):
            most = f"where some have no noise, a sketch can hold at most {MOST_COUNTED_ATOMS} different counts"
            raise ValueError(f"{most}, but {between} are between the bounds; fit the release itself")
    panels = sketch.channel_panels * (2 if sketch.order == MOMENTS_PER_PANEL else 1)
    # one matrix product beats any closed form of ours at a sketch's few nodes (reference/benchmarks.md), unless
    # parameters move a kink, which cuts panels anew each time
    formula = panels > MAX_CHANNEL_PANELS or users_form
    formula |= bool(family_of(base_dist).breaks()) and closed_form(base_dist, sketch.mechanism) is not None
    if isinstance(base_dist, MixtureOverClasses):  # whose laws may be narrow beside the panels
        formula |= closed_form(base_dist.component_distribution, sketch.mechanism) is not None
    return {"method": "auto" if formula else "channel", "panels": panels}


def log_prob_by_class(laws: dist.Distribution, mechanism: Mechanism, z: Array) -> jax.Array:
    """Log p(z | class), (*batch, classes), of released values whose records follow these laws (*batch, classes)."""
    law = Privatized(laws, mechanism._map_personal(lambda leaf: leaf[..., None]), validate_args=False)
    return law.log_prob(array_of(z)[(..., None, *[slice(None)] * len(mechanism.event_shape))])


@register_closed_form(MixtureOverClasses, Mechanism)
def mixture_over_classes(base: MixtureOverClasses, mechanism: Mechanism, z: Array) -> jax.Array:
    """Each class by its own form: a channel would take every record's weights to every node."""
    weights = jax.nn.log_softmax(base.mixing_distribution.logits)
    return log_sum(weights + log_prob_by_class(base.component_distribution, mechanism, z))


@register_closed_form(dist.Distribution, MultiplicativeScrambling)
def scrambled(base: dist.Distribution, mechanism: MultiplicativeScrambling, z: Array) -> jax.Array:
    """Of logarithms under Gaussian noise, by their own form or on panels; of whole numbers as a sum over them."""
    if base.support.is_discrete:
        return _by_numbers(base, mechanism, z)
    normal = isinstance(base, dist.LogNormal)
    of_log = dist.Normal(base.loc, base.scale, validate_args=False) if normal else LogOf(base)
    logs = Privatized(of_log, mechanism.of_logs, validate_args=False)
    return logs.log_prob(mechanism.log_of(z)) - jnp.log(jnp.asarray(z))
