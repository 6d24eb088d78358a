"""Categories under randomized answers, and laws on the real line under piecewise constant or linear densities."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions.constraints import Constraint

from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key
from ldpbayes.likelihood._masses import log_prob_on_support
from ldpbayes.likelihood.families import family_of
from ldpbayes.likelihood.latent import latent_nodes
from ldpbayes.likelihood.registry import register_closed_form
from ldpbayes.likelihood.supported_mass import supported_mass
from ldpbayes.mechanisms import PureProtocol
from ldpbayes.mechanisms.protocol import PiecewiseConstant, PiecewiseLinear
from ldpbayes.numerics.special import log_or_nothing


class Grouped(dist.Distribution):
    """Records of several groups: record i follows law ``groups[i]`` of a batch of laws.

    Parameters
    ----------
    base_dist : numpyro.distributions.Distribution
        Univariate, of batch shape (G,).
    groups : array_like of int (N,)
        From 0 to G − 1.
    """

    arg_constraints: dict[str, Constraint] = {}
    pytree_data_fields = ("base_dist", "groups")

    def __init__(self, base_dist: dist.Distribution, groups: Any, *, validate_args: bool | None = None) -> None:
        self.base_dist, self.groups = base_dist, groups
        super().__init__(jnp.shape(groups), (), validate_args=validate_args)

    @property
    def support(self) -> Constraint:
        """Support of the laws, which must be common to them."""
        return self.base_dist.support

    def _own(self, of_all_laws: jax.Array) -> jax.Array:
        """A record's own entry in rows (*batch, N, G)."""
        return jnp.take_along_axis(of_all_laws, jnp.asarray(self.groups)[:, None], axis=-1)[..., 0]

    def sample(self, key: Key, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        return self._own(self.base_dist.sample(key, (*sample_shape, self.batch_shape[0])))

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        if jnp.shape(value)[-1:] == self.batch_shape:
            return self._own(self.base_dist.log_prob(jnp.asarray(value)[..., None]))
        return self.base_dist.log_prob(value)[..., jnp.asarray(self.groups)]


@register_closed_form(dist.Distribution, PureProtocol)
def pure_protocol(base: dist.Distribution, mechanism: PureProtocol, z: Array) -> jax.Array:
    """Categories under a pure protocol. p(z | θ) = exp(log_supported(z))·(e^−ε + (1 − e^−ε)·θ(S(z))). Sources: [Warner]
    for two categories under randomized response; [KJKH], supplement 11, eq. 33, for optimal unary encoding.
    """
    groups = base.groups if isinstance(base, Grouped) else None
    theta = category_probabilities(base.base_dist if isinstance(base, Grouped) else base, mechanism)
    epsilon = jnp.asarray(mechanism.epsilon)
    fraction = jnp.exp(-epsilon) - jnp.expm1(-epsilon) * supported_mass(mechanism, z, theta, groups)
    # at an infinite budget the mass itself, which can be zero
    tiny = jnp.finfo(fraction.dtype).tiny
    log_fraction = jnp.log(jnp.where(fraction > tiny, fraction, tiny))
    if not is_concrete(z, mechanism):
        return mechanism.log_supported(z) + log_fraction
    with jax.ensure_compile_time_eval():  # computed once, outside the traced function
        log_supported = jnp.asarray(mechanism.log_supported(z))
    return log_supported + log_fraction


def category_probabilities(base: dist.Distribution, mechanism: PureProtocol) -> Array:
    """Probabilities (*batch, categories) of a mechanism's categories; ValueError if the law can take other values."""
    nodes = latent_nodes(base, mechanism).nodes  # checks the support
    if isinstance(base, (dist.CategoricalProbs, dist.CategoricalLogits)):
        inside = base.probs
    else:
        inside = jnp.moveaxis(jnp.exp(log_prob_on_support(base, nodes)), 0, -1)
    if len(nodes) == mechanism.categories:
        return inside
    around = (int(nodes[0]), mechanism.categories - 1 - int(nodes[-1]))
    return jnp.pad(inside, [(0, 0)] * (np.ndim(inside) - 1) + [around])


@register_closed_form(dist.Normal, PiecewiseConstant)
@register_closed_form(dist.Laplace, PiecewiseConstant)
@register_closed_form(dist.StudentT, PiecewiseConstant)
@register_closed_form(dist.Cauchy, PiecewiseConstant)
@register_closed_form(dist.Logistic, PiecewiseConstant)
def piecewise_constant(base: dist.Distribution, mechanism: PiecewiseConstant, z: Array) -> jax.Array:
    """Sum of the levels of p(z | x), each times the probability of the records between its two cuts ([LH] eq. 3.4). The
    probability of an interval is a difference of the tails on its own side of the median, which keeps its digits.
    """
    cuts, levels = (jnp.moveaxis(part, -1, 0) for part in mechanism.pieces(z))
    lower, upper = family_of(base).tails(cuts)
    inner = jnp.where(lower[:-1] > 0.5, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    return log_or_nothing(levels[0] * lower[0] + jnp.sum(levels[1:-1] * inner, axis=0) + levels[-1] * upper[-1])


@register_closed_form(dist.Normal, PiecewiseLinear)
@register_closed_form(dist.Laplace, PiecewiseLinear)
@register_closed_form(dist.StudentT, PiecewiseLinear)
def piecewise_linear(base: dist.Distribution, mechanism: PiecewiseLinear, z: Array) -> jax.Array:
    """By parts, E g(X) = g(first node) + ∫ g'(s) P(X > s) ds: each rise times the mean upper tail over its cell."""
    levels = jnp.moveaxis(mechanism.levels(z), -1, 0)
    nodes = jnp.asarray(mechanism.nodes, levels.dtype)
    nodes = nodes.reshape((-1,) + (1,) * max(levels.ndim - 1, len(base.batch_shape)))
    above = family_of(base).integrated_tail(nodes) / (nodes[1:] - nodes[:-1])
    return log_or_nothing(levels[0] + jnp.sum((levels[1:] - levels[:-1]) * above, axis=0))
