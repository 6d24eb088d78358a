"""Released values of which some are the records themselves: what is mixed with the density of the noisy ones.

Where clipping gathers records at a bound, the released values of those that get no noise have atoms there.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes._tracing import is_concrete
from ldpbayes.likelihood._latent import latent
from ldpbayes.likelihood._masses import aligned, log_mass_outside, log_prob_on_support, static_support_ends
from ldpbayes.likelihood._mixing import normal_log_density
from ldpbayes.numerics._logs import log_or_nothing, logsumexp
from ldpbayes.numerics._special import log_sum

__all__ = ["log_shares", "with_unperturbed"]


def log_shares(share: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Logs of the shares of records without noise and with it, −inf with zero gradient where there are none.

    Parameters
    ----------
    share : array_like
        Between 0 and 1, both included: which of the two it is need not be known while it is traced.
    """
    share = jnp.asarray(share, jnp.result_type(float))
    return log_or_nothing(share), jnp.where(share < 1, jnp.log1p(-jnp.where(share < 1, share, 0.0)), -jnp.inf)


def with_unperturbed(base: Any, mechanism: Any, z: Any, noisy: Any) -> jax.Array:
    """Log density of released values some of which are the records themselves, given that of the noisy ones.

    The reference measure is Lebesgue's plus unit masses at what a clipped record can be, for a discrete base; for
    numbers, at the bounds, where clipping gathers records, unless the base's support, whatever its parameters, has
    nothing beyond: then a value there is like any other. It must not depend on parameters, or likelihoods would not
    compare.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Law of a record.
    mechanism : Mechanism
        Its noise is `Omitted`.
    z : array (*batch, *event)
        Released values.
    noisy : array (*batch)
        Log density of z under ``mechanism.perturbing``.

    Returns
    -------
    Array (*batch)
    """
    share = mechanism.unperturbed
    if is_concrete(share) and not np.any(share):
        return noisy  # as what follows is, for less
    log_share, log_rest = log_shares(share)
    some, noisy = jnp.asarray(share) > 0, log_rest + noisy
    if mechanism.record_shape:
        own = normal_log_density(base, z) if isinstance(base, dist.MultivariateNormal) else base.log_prob(z)
        return logsumexp(log_share + own, noisy)
    discrete = base.support.is_discrete
    if not (mechanism.bounded or discrete):
        return logsumexp(log_share + log_prob_on_support(base, jnp.asarray(z)[None])[0], noisy)
    at_lower, at_upper = (some & at for at in mechanism.at_bounds(z))
    ends = (mechanism.lower, mechanism.upper) if mechanism.bounded else (-np.inf, np.inf)
    lower, upper = (jnp.asarray(end) for end in ends)
    if discrete:
        grid = latent(base, mechanism)
        masses = grid.log_masses(base)
        rank = max(1 + jnp.ndim(z), masses.ndim)
        # a bound that no record can be clipped to has no atom
        gathered = [(at & reached)[None] for at, reached in zip((at_lower, at_upper), grid.open_ends, strict=True)]
        z = jnp.where(at_lower, lower, jnp.where(at_upper, upper, z))
        parts = [some & (z == aligned(jnp.clip(grid.nodes, lower, upper), rank)), *gathered]
        batch = jnp.broadcast_shapes(*(h.shape[1:] for h in parts))
        here = jnp.concatenate([jnp.broadcast_to(h, (len(h), *batch)) for h in parts])
        own = log_sum(jnp.where(here, aligned(masses, rank), -jnp.inf), axis=0)
        return jnp.where(jnp.any(here, axis=0), log_share + own, noisy)
    first, last = static_support_ends(base)
    at_lower, at_upper = at_lower & (first < lower), at_upper & (last > upper)
    inside = (z >= lower) & (z <= upper) & ~(at_lower | at_upper)
    below, above = log_mass_outside(base, lower, upper)
    # where it is not looked at, the base is asked about the middle of the bounds; and at a bound, where its density may
    # have a pole, about the number next to it
    info = jnp.finfo(jnp.result_type(z, float))
    near = (bound + side * (info.eps * jnp.abs(bound) + info.tiny) for bound, side in ((lower, 1), (upper, -1)))
    own = log_prob_on_support(base, jnp.where(inside, jnp.clip(z, *near), (lower + upper) / 2)[None])[0]
    # not logaddexp: where neither is possible, as at the atom of a public number, its derivative is NaN
    mixed = logsumexp(noisy, jnp.where(inside, log_share + own, -jnp.inf))
    return jnp.where(at_lower, log_share + below, jnp.where(at_upper, log_share + above, mixed))
