"""Categories under randomized answers, and laws on the real line under piecewise constant or linear densities."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.types import Array, is_concrete
from ldpbayes.laws.compound import Grouped
from ldpbayes.laws.families import CATEGORICAL, family_of, log_prob_on_support
from ldpbayes.likelihood.closed_forms import register_closed_form
from ldpbayes.likelihood.latent import latent_nodes
from ldpbayes.mechanisms import (
    Categories,
    CountSketchProtocol,
    HadamardResponse,
    LikelihoodTable,
    MatrixProtocol,
    PureProtocol,
    RandomizedResponse,
)
from ldpbayes.mechanisms.protocol import PiecewiseConstant, PiecewiseLinear
from ldpbayes.numerics.arrays import CACHE_SIZE, bit_product, by_rows, hadamard_transform, pays
from ldpbayes.numerics.special import log_or_nothing, log_sum

BITS_AT_ONCE = 1 << 23  # memberships at a time as 8-bit integers, for which a loop costs more than the cache saves
FEWEST_FOR_BITS = 64  # categories from which on `bit_product` is faster, for one chain and for four


@functools.singledispatch
def supported_mass(mechanism: PureProtocol, z: Array, theta: Array, groups: Array | None = None) -> jax.Array:
    """Probability of S(z) under a law theta (*batch, codes) that broadcasts with z, or that of its group."""
    theta = jnp.asarray(theta)
    batch = np.shape(z)[: np.ndim(z) - len(mechanism.event_shape)]
    if groups is None and theta.ndim > 1:
        return jnp.sum(mechanism.membership(z).astype(theta.dtype) * theta, axis=-1)
    rows = jnp.reshape(z, (-1, *mechanism.event_shape))
    bits = mechanism.membership
    if groups is not None:
        at_once = CACHE_SIZE // mechanism.categories
        mass = by_rows(lambda z, g: jnp.sum(jnp.where(bits(z), theta[g], 0.0), axis=-1), at_once)
        return mass(rows, jnp.asarray(groups)).reshape(batch)
    many = mechanism.categories >= FEWEST_FOR_BITS and len(rows) * mechanism.categories > 2 * CACHE_SIZE
    # bit_product has absolute precision, which is enough if p(z | theta) is at least exp(-7) of its largest
    precise = is_concrete(mechanism.epsilon) and np.max(mechanism.epsilon) <= 7
    if many and pays() and theta.dtype == jnp.float64 and precise:
        mass = by_rows(lambda z: bit_product(bits(z), theta), BITS_AT_ONCE // mechanism.categories)
    else:
        mass = by_rows(lambda z: bits(z).astype(theta.dtype) @ theta, CACHE_SIZE // mechanism.categories)
    return mass(rows).reshape(batch)


def _at_codes(theta: Array, z: Array, groups: Array | None) -> jax.Array:
    """Probability of each code under a law theta (*batch, codes) that broadcasts with z, or that of its group."""
    z, theta = jnp.asarray(z).astype(jnp.int32), jnp.asarray(theta)
    if groups is not None:
        return theta[jnp.asarray(groups), z]
    if theta.ndim == 1:
        return theta[z]
    batch = jnp.broadcast_shapes(z.shape, theta.shape[:-1])
    theta, z = jnp.broadcast_to(theta, (*batch, theta.shape[-1])), jnp.broadcast_to(z, batch)
    return jnp.take_along_axis(theta, z[..., None], axis=-1)[..., 0]


_of_any = supported_mass.dispatch(object)


@supported_mass.register
def _of_hadamard(
    mechanism: HadamardResponse, z: Array, theta: Array, groups: Array | None = None, row: Array | None = None
) -> jax.Array:
    """By a fast transform, of laws of codes in rows if each record has its `row` of them."""
    theta = jnp.asarray(theta)
    if groups is not None or (row is None and theta.ndim > 1):
        return _of_any(mechanism, z, theta, groups)
    before = mechanism.first_row
    pads = [(0, 0)] * (theta.ndim - 1) + [(before, mechanism.columns - before - mechanism.categories)]
    differences = hadamard_transform(jnp.pad(theta, pads))
    mass = (theta.sum(axis=-1, keepdims=True) + differences) / 2
    return mass[jnp.asarray(z).astype(jnp.int32)] if row is None else mass[row, jnp.asarray(z).astype(jnp.int32)]


@supported_mass.register
def _of_sketch(mechanism: CountSketchProtocol, z: Array, theta: Array, groups: Array | None = None) -> jax.Array:
    """From the laws of cells under each hash function: never categories by records."""
    z, theta = jnp.asarray(z), jnp.asarray(theta)
    if groups is not None or theta.ndim > 1:
        return _of_any(mechanism, z, theta, groups)
    table, batch, rows = mechanism.table(theta), z.shape[:-1], z.reshape(-1, z.shape[-1])
    if isinstance(mechanism.inner, HadamardResponse):
        return _of_hadamard(mechanism.inner, mechanism.opened(rows), table, row=rows[:, 0]).reshape(batch)
    at_once = max(mechanism.hashes, CACHE_SIZE // mechanism.cells)
    mass = by_rows(lambda z: jnp.sum(jnp.where(mechanism.opened(z), table[z[:, 0]], 0.0), axis=-1), at_once)
    return mass(rows).reshape(batch)


supported_mass.register(RandomizedResponse, lambda mechanism, z, theta, groups=None: _at_codes(theta, z, groups))


@register_closed_form(dist.Distribution, PureProtocol)
def pure_protocol(base: dist.Distribution, mechanism: PureProtocol, z: Array) -> jax.Array:
    """exp(log_supported(z))·(e^−ε + (1 − e^−ε)·θ(S(z))): [Warner]; [KJKH] suppl. 11, eq. 33, for unary encoding."""
    theta, groups = _shares(base, mechanism)
    epsilon = jnp.asarray(mechanism.epsilon)
    fraction = jnp.exp(-epsilon) - jnp.expm1(-epsilon) * supported_mass(mechanism, z, theta, groups)
    # at an infinite budget the mass itself, which can be zero
    tiny = jnp.finfo(fraction.dtype).tiny
    log_fraction = jnp.log(jnp.where(fraction > tiny, fraction, tiny))
    # if all is known, computed once, outside the traced function
    with jax.ensure_compile_time_eval() if is_concrete(z, mechanism) else contextlib.nullcontext():
        log_supported = _log_supported(mechanism, z)
    return log_supported + log_fraction


_log_supported = jax.jit(lambda mechanism, z: mechanism.log_supported(z))


@register_closed_form(dist.Distribution, MatrixProtocol)
def matrix_protocol(base: dist.Distribution, mechanism: MatrixProtocol, z: Array) -> jax.Array:
    """p(z | θ) = Σ_x θ_x P(z | x)."""
    theta, groups = _shares(base, mechanism)
    matrix = jnp.asarray(mechanism.matrix, theta.dtype)
    if matrix.ndim == 2:
        return log_or_nothing(_at_codes(theta @ matrix, z, groups))
    column = jnp.vectorize(lambda of, z: of[:, z], signature="(k,m),()->(k)")(matrix, jnp.asarray(z).astype(int))
    return log_or_nothing(jnp.sum((theta if groups is None else theta[jnp.asarray(groups)]) * column, axis=-1))


@register_closed_form(dist.Distribution, LikelihoodTable)
def likelihood_table(base: dist.Distribution, mechanism: LikelihoodTable, z: Array) -> jax.Array:
    """p(z | θ) = Σ_x θ_x p(z | x), where p(z | x) has a sum over permanent answers."""
    theta, groups = _shares(base, mechanism)
    theta = theta if groups is None else theta[jnp.asarray(groups)]
    return log_sum(log_or_nothing(theta) + mechanism.log_probs(z).astype(theta.dtype))


def _shares(base: dist.Distribution, mechanism: Categories) -> tuple[Array, Array | None]:
    """`category_probabilities`, and the group of each record if those are of groups."""
    grouped = isinstance(base, Grouped)
    return category_probabilities(base.base_dist if grouped else base, mechanism), base.groups if grouped else None


def category_probabilities(base: dist.Distribution, mechanism: Categories) -> Array:
    """Probabilities (*batch, categories) of a mechanism's categories; ValueError if the law can take other values."""
    nodes = latent_nodes(base, mechanism).nodes  # checks the support
    if isinstance(base, CATEGORICAL):
        inside = base.probs
    else:
        inside = jnp.moveaxis(jnp.exp(log_prob_on_support(base, nodes)), 0, -1)
    around = (int(nodes[0]), mechanism.categories - 1 - int(nodes[-1]))
    return jnp.pad(inside, [(0, 0)] * (np.ndim(inside) - 1) + [around])


@register_closed_form((dist.Normal, dist.Laplace, dist.StudentT, dist.Cauchy, dist.Logistic), PiecewiseConstant)
def piecewise_constant(base: dist.Distribution, mechanism: PiecewiseConstant, z: Array) -> jax.Array:
    """Sum of the levels of p(z | x), each times the probability of the records between its two cuts ([LH] eq. 3.4)."""
    cuts, levels = (jnp.moveaxis(part, -1, 0) for part in mechanism.pieces(z))
    lower, upper = family_of(base).tails(cuts)
    # differences of the tails on an interval's own side of the median keep their digits
    inner = jnp.where(lower[:-1] > 0.5, upper[:-1] - upper[1:], lower[1:] - lower[:-1])
    return log_or_nothing(levels[0] * lower[0] + jnp.sum(levels[1:-1] * inner, axis=0) + levels[-1] * upper[-1])


@register_closed_form((dist.Normal, dist.Laplace, dist.StudentT), PiecewiseLinear)
def piecewise_linear(base: dist.Distribution, mechanism: PiecewiseLinear, z: Array) -> jax.Array:
    """By parts, E g(X) = g(first node) + ∫ g'(s) P(X > s) ds: each rise times the mean upper tail over its cell."""
    levels = jnp.moveaxis(mechanism.levels(z), -1, 0)
    nodes = jnp.asarray(mechanism.nodes, levels.dtype)
    nodes = nodes.reshape((-1,) + (1,) * max(levels.ndim - 1, len(base.batch_shape)))
    above = family_of(base).integrated_tail(nodes) / (nodes[1:] - nodes[:-1])
    return log_or_nothing(levels[0] + jnp.sum((levels[1:] - levels[:-1]) * above, axis=0))
