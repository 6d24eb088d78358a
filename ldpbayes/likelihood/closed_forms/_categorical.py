"""One likelihood for every pure protocol: p(z | θ) goes through θ(S(z)), the mass of the categories that z supports."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions.constraints import Constraint

from ldpbayes._tracing import is_concrete
from ldpbayes.likelihood._dispatch import register_closed_form
from ldpbayes.likelihood._latent import latent
from ldpbayes.likelihood._masses import log_prob_on_support
from ldpbayes.likelihood._supported_mass import supported_mass
from ldpbayes.mechanisms import PureProtocol

__all__ = ["Grouped", "category_probabilities", "log_constant"]


class Grouped(dist.Distribution):
    """Records of several groups: record i follows law ``groups[i]`` of a batch of laws.

    Parameters
    ----------
    base_dist : numpyro.distributions.Distribution
        Univariate, of batch shape (G,).
    groups : array_like of int (N,)
        From 0 to G − 1.
    validate_args : bool, optional
        Of `numpyro.distributions.Distribution`.
    """

    arg_constraints: dict[str, Constraint] = {}
    pytree_data_fields = ("base_dist", "groups")

    def __init__(self, base_dist: Any, groups: Any, *, validate_args: bool | None = None) -> None:
        self.base_dist, self.groups = base_dist, groups
        super().__init__(jnp.shape(groups), (), validate_args=validate_args)

    @property
    def support(self) -> Constraint:
        """Support of the laws, which must be common to them."""
        return self.base_dist.support

    def sample(self, key: ArrayLike, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw from every law for every record and keep the record's own: for simulation.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        sample_shape : tuple of int
            Shape of the draws, before the batch.
        """
        draws = self.base_dist.sample(key, (*sample_shape, self.batch_shape[0]))
        return jnp.take_along_axis(draws, jnp.asarray(self.groups)[:, None], axis=-1)[..., 0]

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        """Log density under each record's own law.

        Parameters
        ----------
        value : array_like (*batch, N)
            Records.
        intermediates : list, optional
            Not used: NumPyro's own distributions have the argument.
        """
        if jnp.shape(value)[-1:] == self.batch_shape:
            rows = self.base_dist.log_prob(jnp.asarray(value)[..., None])
            return jnp.take_along_axis(rows, jnp.asarray(self.groups)[:, None], axis=-1)[..., 0]
        return self.base_dist.log_prob(value)[..., jnp.asarray(self.groups)]


@register_closed_form(dist.Distribution, PureProtocol)
def pure_protocol(base: Any, mechanism: PureProtocol, z: Any) -> jax.Array:
    """Categories under a pure protocol.

    p(z | θ) = exp(log_supported(z))·(e^−ε + (1 − e^−ε)·θ(S(z))). Sources: [Warner] for two categories under
    randomized response; [KJKH], supplement 11, eq. 33, for optimal unary encoding.
    """
    groups = base.groups if isinstance(base, Grouped) else None
    theta = category_probabilities(base.base_dist if isinstance(base, Grouped) else base, mechanism)
    epsilon = jnp.asarray(mechanism.epsilon)
    fraction = jnp.exp(-epsilon) - jnp.expm1(-epsilon) * supported_mass(mechanism, z, theta, groups)
    # at an infinite budget the mass itself, which can be zero
    tiny = jnp.finfo(fraction.dtype).tiny
    positive = fraction > tiny
    return log_constant(mechanism, z) + jnp.log(jnp.where(positive, fraction, tiny))


def log_constant(mechanism: PureProtocol, z: Any) -> jax.Array:
    """Log p(z | x) for a supported x, computed once, outside the traced function, where z is known.

    Parameters
    ----------
    mechanism : PureProtocol
        What released the values.
    z : array_like
        Released values.
    """
    if not is_concrete(z, mechanism):
        return mechanism.log_supported(z)
    with jax.ensure_compile_time_eval():
        return jnp.asarray(mechanism.log_supported(z))


def category_probabilities(base: Any, mechanism: PureProtocol) -> Any:
    """Probabilities of a mechanism's categories under a discrete law.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Univariate, on the codes 0, ..., categories − 1 or some of them.
    mechanism : PureProtocol
        Whose categories these are.

    Returns
    -------
    Array (*base.batch_shape, categories)

    Raises
    ------
    ValueError
        If the law is continuous or can take other values.
    """
    nodes = latent(base, mechanism).nodes  # checks the support
    if isinstance(base, (dist.CategoricalProbs, dist.CategoricalLogits)):
        inside = base.probs
    else:
        inside = jnp.moveaxis(jnp.exp(log_prob_on_support(base, nodes)), 0, -1)
    if len(nodes) == mechanism.categories:
        return inside
    around = (int(nodes[0]), mechanism.categories - 1 - int(nodes[-1]))
    return jnp.pad(inside, [(0, 0)] * (np.ndim(inside) - 1) + [around])
