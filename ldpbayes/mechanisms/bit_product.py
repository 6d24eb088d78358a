"""Products of a matrix of bits with real vectors, in 8-bit integers.

XLA would turn every bit into a floating-point number first, which takes several times as long as reading it. But
processors multiply 8-bit integers as fast as memory delivers them. So the bits stay as they are and the vectors become
integers: fixed-point numbers of eight digits in base 128, each from -64 to 63. The sums over each digit are exact. All
that is lost is the rounding to fixed point: in each entry, up to 2^-54 of the vector's largest.

The product is a primitive of JAX since it needs a rule of its own for being transposed: the digits have no derivative.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["bit_product", "pays"]

SHIFTS = 7 * np.arange(8)[:, None]  # of the digits, the lowest first
BIAS = int(np.sum(64 << SHIFTS))  # digits from 0 to 127 of a number plus this are, less 64, the digits of the number
POINT = 54  # fractional bits of numbers below one: half of what the digits hold
LONGEST = 1 << 24  # exact sums of 64 times as much in 32 bits


def pays():
    """Whether XLA multiplies 8-bit integers fast: on the CPU with YNNPACK, which JAX has from 0.9."""
    return jax.__version_info__ >= (0, 9) and jax.default_backend() == "cpu"


def bit_product(bits, vector):
    """Return ``bits @ vector``, differentiable in the vector any number of times, in both modes.

    Parameters
    ----------
    bits : array (n, d)
        Zeros and ones, as booleans or 8-bit integers; n and d at most 2^24.
    vector : array (d,) of float64
        Where an entry is not finite, no entry of the product is.

    Returns
    -------
    jax.Array (n,)
    """
    return product_p.bind(jnp.asarray(bits), jnp.asarray(vector)[None], axis=1)[0]


def by_digits(bits, vectors, *, axis):
    """Products of each of the vectors (k, m) with the bits along an axis of theirs, of length m."""
    vectors = lax.optimization_barrier(vectors)  # else whatever led to them is computed again for each digit
    largest = jnp.max(jnp.abs(vectors), axis=1, keepdims=True)
    scale = jnp.ldexp(1.0, jnp.minimum(POINT - jnp.frexp(largest)[1], 1000))
    fixed = jnp.rint(vectors * scale).astype(jnp.int64) + BIAS
    digits = (((fixed[:, None] >> SHIFTS) & 127) - 64).astype(jnp.int8)
    sums = lax.dot_general(
        digits.reshape(-1, vectors.shape[1]),
        bits.astype(jnp.int8),
        (((1,), (axis,)), ((), ())),
        preferred_element_type=jnp.int32,
    ).reshape(len(vectors), len(SHIFTS), -1)
    total = sums[:, -1].astype(vectors.dtype)
    for digit in range(len(SHIFTS) - 2, -1, -1):
        total = total * 128 + sums[:, digit]
    return total * jnp.where(jnp.isfinite(largest), 1 / scale, jnp.nan)


product_p = Primitive("bit_product")
product_p.def_impl(jax.jit(product_p.bind, static_argnames="axis"))


@product_p.def_abstract_eval
def _shape(bits, vectors, *, axis):
    if vectors.dtype != jnp.float64 or max(bits.shape) > LONGEST:
        raise ValueError(f"bit_product takes float64 and up to {LONGEST} rows and columns, got {vectors}, {bits}")
    return jax.core.ShapedArray((vectors.shape[0], bits.shape[1 - axis]), vectors.dtype)


def _transpose(cotangents, bits, vectors, *, axis):
    if type(cotangents) is ad.Zero:
        return None, ad.Zero(vectors.aval)
    return None, product_p.bind(bits, cotangents, axis=1 - axis)


def _batch(arguments, dimensions, *, axis):
    (bits, vectors), (bits_at, vectors_at) = arguments, dimensions
    if bits_at is not None:
        return jax.vmap(functools.partial(by_digits, axis=axis), dimensions)(bits, vectors), 0
    vectors = jnp.moveaxis(vectors, vectors_at, 0)
    product = product_p.bind(bits, vectors.reshape(-1, vectors.shape[-1]), axis=axis)
    return product.reshape(*vectors.shape[:-1], -1), 0


ad.defjvp(product_p, None, lambda tangents, bits, _, *, axis: product_p.bind(bits, tangents, axis=axis))
ad.primitive_transposes[product_p] = _transpose
batching.primitive_batchers[product_p] = _batch
mlir.register_lowering(product_p, mlir.lower_fun(by_digits, multiple_results=False))
