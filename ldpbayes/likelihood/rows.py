"""Marginal densities under symmetric, zero-inflated and independent Laplace noise, of numbers and of rows.

Symmetric Laplace noise is a normal with variance λ² W, W ~ Exp(1). So a normal row plus such noise is a mixture of
normals over W, an integral in one dimension however long the row is. Zero-inflated noise mixes that with the law of the
records themselves, and where clipping gathers records at a bound the released values have atoms there.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import cho_solve, solve_triangular

from ldpbayes.likelihood.closed_forms import exponential_laplace, normal_laplace, register_closed_form
from ldpbayes.likelihood.latent import is_concrete, latent
from ldpbayes.likelihood.masses import aligned, log_mass_outside, log_prob_on_support, static_support_ends
from ldpbayes.likelihood.special import log_sum
from ldpbayes.mechanisms import IndependentLaplaceMechanism, SymmetricLaplaceMechanism

__all__ = [
    "conditional_normal",
    "log_shares",
    "mixing_precisions",
    "mixing_rule",
    "normal_log_density",
    "normal_mixture",
    "squared_distances",
    "with_unperturbed",
]

MIXING_NODES = 64


def mixing_rule(nodes=MIXING_NODES):
    """Nodes w and log weights of ∫ f(w) exp(−w) dw over w > 0, for f that vary on any scale of w.

    The double-exponential map w = exp(t − exp(−t)) has points on every scale down to 1e-12. A Gauss-Laguerre rule has
    none below 0.02, where the mixture is decided if the records vary much less than the noise.

    Parameters
    ----------
    nodes : int

    Returns
    -------
    tuple of two arrays (nodes,)
    """
    t, step = np.linspace(-3.2, 4.3, nodes, retstep=True)
    w = np.exp(t - np.exp(-t))
    return w, np.log(step) + np.log1p(np.exp(-t)) + t - np.exp(-t) - w


@register_closed_form(dist.Normal, SymmetricLaplaceMechanism)
@register_closed_form(dist.Normal, IndependentLaplaceMechanism)
def normal_number(base, mechanism, z):
    """Normal numbers, clipped at both bounds: in one dimension the noise is Laplace of scale λ/√2."""
    return normal_laplace(base, _Laplace(mechanism), z)


@register_closed_form(dist.Exponential, SymmetricLaplaceMechanism)
@register_closed_form(dist.Exponential, IndependentLaplaceMechanism)
def exponential_number(base, mechanism, z):
    """Exponential numbers, clipped at both bounds: in one dimension the noise is Laplace of scale λ/√2."""
    return exponential_laplace(base, _Laplace(mechanism), z)


class _Laplace:
    """What the closed forms for Laplace noise look at."""

    def __init__(self, mechanism):
        self.lower, self.upper, self.scale = mechanism.lower, mechanism.upper, mechanism.scale / math.sqrt(2)


@register_closed_form(dist.MultivariateNormal, SymmetricLaplaceMechanism)
def normal_rows(base, mechanism, z):
    """Multivariate normal rows plus symmetric Laplace noise in the perturbed columns; clipping is left out.

    Columns that are not perturbed have their normal density, the others that of a normal mixture given them.
    """
    mean, covariance, log_rest = conditional_normal(base, z, mechanism.index)
    return log_rest + normal_mixture(z[..., mechanism.index] - mean, covariance, mechanism.scale)


def normal_log_density(base, z):
    """``base.log_prob(z)`` of a multivariate normal, all rows in one triangular system where they have one law."""
    if base.batch_shape:
        return base.log_prob(z)
    d = base.event_shape[0]
    white = solve_triangular(base.scale_tril, (z - base.loc).reshape(-1, d).T, lower=True)
    log_root = jnp.sum(jnp.log(jnp.diagonal(base.scale_tril)))
    return -0.5 * jnp.sum(white * white, axis=0).reshape(z.shape[:-1]) - log_root - 0.5 * d * math.log(2 * math.pi)


def conditional_normal(base, z, index):
    """Law of some columns of a multivariate normal given the others, and the log density of those.

    Parameters
    ----------
    base : numpyro.distributions.MultivariateNormal
    z : array (*batch, columns)
    index : tuple of int
        The columns whose law is wanted.

    Returns
    -------
    tuple
        Means (*batch, index), covariance (index, index), log density of the other columns (*batch).
    """
    index = np.array(index)
    others = np.setdiff1d(np.arange(base.event_shape[0]), index)
    loc, covariance = base.loc, base.covariance_matrix
    if not len(others):
        return loc, covariance, 0.0
    rest = dist.MultivariateNormal(loc[..., others], covariance[..., others[:, None], others])
    cross = covariance[..., index[:, None], others]
    gain = jnp.swapaxes(cho_solve((rest.scale_tril, True), jnp.swapaxes(cross, -1, -2)), -1, -2)
    away = z[..., others] - loc[..., others]
    mean = loc[..., index] + jnp.einsum("...ij,...j->...i", gain, away)
    inner = covariance[..., index[:, None], index] - gain @ jnp.swapaxes(cross, -1, -2)
    return mean, inner, normal_log_density(rest, z[..., others])


def normal_mixture(away, covariance, scale, nodes=MIXING_NODES):
    """Log density of normal vectors plus SL(scale² I), at a distance from their mean.

    To 1e-8 in up to six dimensions where every principal standard deviation is at least a tenth of the scale.

    Parameters
    ----------
    away : array (*batch, d)
    covariance : array (d, d)
        Or one of each record, (*batch, d, d).
    scale : array_like
        A number, or one a record.
    nodes : int
        Of `mixing_rule`.

    Returns
    -------
    array (*batch)
    """
    w, log_weights = mixing_rule(nodes)
    if jnp.ndim(scale) or covariance.ndim > 2:
        return _mixture_one_by_one(away, covariance, scale, w, log_weights)
    d = away.shape[-1]
    precisions, log_roots = mixing_precisions(covariance, scale, w)
    squares = squared_distances(away, precisions)
    return log_sum(log_weights - log_roots - 0.5 * squares) - 0.5 * d * math.log(2 * math.pi)


def mixing_precisions(covariance, scale, w):
    """For covariance + scale² w I at nodes w the inverses (nodes, d, d), and half the log determinants (nodes,)."""
    roots = jnp.linalg.cholesky(covariance + (scale**2 * w)[:, None, None] * np.eye(covariance.shape[-1]))
    inverses = solve_triangular(roots, jnp.broadcast_to(np.eye(covariance.shape[-1]), roots.shape), lower=True)
    log_roots = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
    return jnp.swapaxes(inverses, 1, 2) @ inverses, log_roots


def squared_distances(away, precisions):
    """awayᵀ P away for vectors (*batch, d) and matrices (nodes, d, d), shape (*batch, nodes), as one product."""
    products = away[..., :, None] * away[..., None, :]
    return products.reshape((*away.shape[:-1], -1)) @ precisions.reshape(len(precisions), -1).T


def _mixture_one_by_one(away, covariance, scale, w, log_weights):
    """`normal_mixture` for personal scales and covariances: a factorisation for each record and node."""

    def one(away, covariance, scale):
        total = covariance + (scale**2 * w)[:, None, None] * jnp.eye(len(away))
        roots = jnp.linalg.cholesky(total)
        white = jax.vmap(lambda root: solve_triangular(root, away, lower=True))(roots)
        log_roots = jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
        return log_sum(log_weights - log_roots - 0.5 * jnp.sum(white**2, axis=1))

    d = away.shape[-1]
    batch = jnp.broadcast_shapes(away.shape[:-1], jnp.shape(scale), covariance.shape[:-2])
    away = jnp.broadcast_to(away, (*batch, d)).reshape(-1, d)
    scale = jnp.broadcast_to(scale, batch).ravel()
    own = covariance.ndim > 2
    covariance = jnp.broadcast_to(covariance, (*batch, d, d)).reshape(-1, d, d) if own else covariance
    flat = jax.vmap(one, (0, 0 if own else None, 0))(away, covariance, scale)
    return flat.reshape(batch) - 0.5 * d * math.log(2 * math.pi)


def log_shares(share):
    """Logs of the shares of records without noise and with it, −inf with zero gradient where there are none.

    Parameters
    ----------
    share : array_like
        Between 0 and 1, both included: which of the two it is need not be known while it is traced.

    Returns
    -------
    tuple of two arrays
    """
    share = jnp.asarray(share, jnp.result_type(float))
    log_share = jnp.where(share > 0, jnp.log(jnp.where(share > 0, share, 1.0)), -jnp.inf)
    return log_share, jnp.where(share < 1, jnp.log1p(-jnp.where(share < 1, share, 0.0)), -jnp.inf)


def with_unperturbed(base, mechanism, z, noisy):
    """Log density of released values some of which are the records themselves, given that of the noisy ones.

    The reference measure is Lebesgue's plus unit masses at what a clipped record can be, for a discrete base; for
    numbers, at the bounds, where clipping gathers records, unless the base's support, whatever its parameters, has
    nothing beyond: then a value there is like any other. It must not depend on parameters, or likelihoods would not
    compare.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
    mechanism : Mechanism
    z : array (*batch, *event)
    noisy : array (*batch)
        Log density of z under ``mechanism.noise``.

    Returns
    -------
    array (*batch)
    """
    share = mechanism.unperturbed
    if is_concrete(share) and not np.any(share):
        return noisy  # as what follows is, for less
    log_share, log_rest = log_shares(share)
    some, noisy = jnp.asarray(share) > 0, log_rest + noisy
    if mechanism.record_shape:
        own = normal_log_density(base, z) if isinstance(base, dist.MultivariateNormal) else base.log_prob(z)
        return jnp.logaddexp(log_share + own, noisy)
    at_lower, at_upper = (some & at for at in mechanism.at_bounds(z))
    lower, upper = jnp.asarray(mechanism.lower), jnp.asarray(mechanism.upper)
    if base.support.is_discrete:
        grid = latent(base, mechanism)
        masses = grid.log_masses(base)
        rank = max(1 + jnp.ndim(z), masses.ndim)
        # a bound that no record can be clipped to has no atom
        ends = [at & reached for at, reached in zip((at_lower, at_upper), grid.open_ends, strict=True)]
        z = jnp.where(at_lower, lower, jnp.where(at_upper, upper, z))
        here = [some & (z == aligned(jnp.clip(grid.nodes, lower, upper), rank)), *(end[None] for end in ends)]
        batch = jnp.broadcast_shapes(*(h.shape[1:] for h in here))
        here = jnp.concatenate([jnp.broadcast_to(h, (len(h), *batch)) for h in here])
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
    mixed = jnp.logaddexp(noisy, jnp.where(inside, log_share + own, -jnp.inf))
    return jnp.where(at_lower, log_share + below, jnp.where(at_upper, log_share + above, mixed))
