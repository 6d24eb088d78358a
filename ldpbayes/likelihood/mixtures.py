"""Laws of records that depend on a latent class: their mixture, and the log density of what was released, by class."""

from typing import Any

import jax
import numpyro.distributions as dist
from jax import lax

from ldpbayes._core.tracing import array_of
from ldpbayes._core.types import Array
from ldpbayes.likelihood.privatized import Privatized
from ldpbayes.likelihood.registry import register_closed_form
from ldpbayes.mechanisms import Mechanism
from ldpbayes.numerics.special import log_sum


class MixtureOverClasses(dist.MixtureSameFamily):
    """A mixture with log weights (*batch, classes) of laws (*batch, classes), which may have any support in common."""

    def __init__(self, logits: Array, laws: Any) -> None:
        self._mixing_distribution = dist.Categorical(logits=logits, validate_args=False)
        self._component_distribution, self._mixture_size = laws, logits.shape[-1]
        batch_shape = lax.broadcast_shapes(logits.shape[:-1], laws.batch_shape[:-1])
        dist.Distribution.__init__(self, batch_shape, laws.event_shape, validate_args=False)


def log_prob_by_class(laws: dist.Distribution, mechanism: Mechanism, z: Array) -> jax.Array:
    """Log p(z | class), (*batch, classes), of released values whose records follow these laws (*batch, classes)."""
    law = Privatized(laws, mechanism._map_personal(lambda leaf: leaf[..., None]), validate_args=False)
    return law.log_prob(array_of(z)[(..., None, *[slice(None)] * len(mechanism.event_shape))])


@register_closed_form(MixtureOverClasses, Mechanism)
def mixture_over_classes(base: MixtureOverClasses, mechanism: Mechanism, z: Array) -> jax.Array:
    """Each class by its own form: a channel would take every record's weights to every node."""
    weights = jax.nn.log_softmax(base.mixing_distribution.logits)
    return log_sum(weights + log_prob_by_class(base.component_distribution, mechanism, z))
