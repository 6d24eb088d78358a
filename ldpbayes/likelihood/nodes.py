"""The law of a sketch's nodes, or of all records of an expansion."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from ldpbayes._core.pytrees import pytree_dataclass
from ldpbayes._core.tracing import is_concrete
from ldpbayes.data import CountSketch, ExpandedSketch, MixedSketch, MomentSketch, PanelSketch, Release, Sketch
from ldpbayes.data.panel_sketch import MOMENTS_PER_PANEL, MOST_COUNTED_ATOMS
from ldpbayes.likelihood._channel import build_channel
from ldpbayes.likelihood.closed_forms.categories import category_probabilities
from ldpbayes.likelihood.families import family_of, unexpanded
from ldpbayes.likelihood.mixtures import MixtureOverClasses
from ldpbayes.likelihood.privatized import Privatized, law_of_records
from ldpbayes.likelihood.registry import closed_form, for_all_records, is_own

MAX_CHANNEL_PANELS = 200  # a sketch refined further has nodes enough for a closed form, if there is one, to be faster
COUNT_INSTEAD = "use release.sketch(expand=False), which counts released values"


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

    A sketch is a compressed release. Its nodes are the numbers that replace the released values. An expansion is a
    sketch of categories whose log-likelihood is a polynomial. Raises ValueError for counts if some are released without
    noise and more than 1,024 whole numbers are between the bounds.

    Parameters
    ----------
    sketch : Sketch
        The sketch or the expansion.
    base_dist : numpyro.distributions.Distribution
        Law of a record, with the batch shape ``sketch.law_shape``: one law for each group of the sketch.
    **options
        ``method`` and ``panels`` of `Privatized`. By default, the function chooses them for the sketch. They are not
        allowed for an expansion.
    """
    if isinstance(sketch, ExpandedSketch):
        if options:
            raise ValueError(f"{' and '.join(options)} cannot be chosen for an expansion; {COUNT_INSTEAD}")
        return ExpandedLaw(base_dist, sketch)
    if isinstance(sketch, CountSketch) and sketch.groups is not None:
        base_dist = law_of_records(base_dist, sketch.groups, sketch.mechanism)
    return Privatized(base_dist, sketch.mechanism, **_method(sketch, base_dist) | options)


@pytree_dataclass(eq=False)
class PreparedLikelihood:
    """Released numbers with weights, and the channel that leads to them from all laws with the same support and breaks:
    what does not depend on the parameters of the law is computed once. An argument of compiled functions.
    """

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
        return cls(mechanism, values, weights.ravel(), build_channel(law, noisy, values, panels))

    def log_prob(self, law: dist.Distribution) -> jax.Array:
        """Log densities (m,) of the released numbers under a law."""
        log_prob = for_all_records(lambda law, *_: self.channel.log_prob(law))
        return jnp.ravel(log_prob(law, self.mechanism, self.values))


def _method(sketch: Sketch, base_dist: dist.Distribution) -> dict[str, Any]:
    """How the likelihood of a sketch's nodes is computed: options of `Privatized`."""
    if isinstance(sketch, MixedSketch):
        choices = [_method(part, base_dist) for part in sketch.parts]
        return max(choices, key=lambda choice: choice.get("panels", 0))
    own = is_own(base_dist, sketch.mechanism)
    if isinstance(sketch, MomentSketch) and (own or not isinstance(unexpanded(base_dist), dist.MultivariateNormal)):
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
    formula = panels > MAX_CHANNEL_PANELS or own
    formula |= bool(family_of(base_dist).breaks()) and closed_form(base_dist, sketch.mechanism) is not None
    if isinstance(base_dist, MixtureOverClasses):  # whose laws may be narrow beside the panels
        formula |= closed_form(base_dist.component_distribution, sketch.mechanism) is not None
    return {"method": "auto" if formula else "channel", "panels": panels}
