"""Products of a matrix of bits with real vectors, in 8-bit integers.

XLA would turn every bit into a floating-point number first, which takes several times as long as reading it. But
processors multiply 8-bit integers as fast as memory delivers them. So the bits stay as they are and the vectors become
integers: fixed-point numbers of eight digits in base 128, each from −64 to 63. The sums over each digit are exact. All
that is lost is the rounding to fixed point: in each entry, up to 2⁻⁵⁴ of the vector's largest.

The product is a primitive of JAX since it needs a transpose rule of its own: the digits have no derivative.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

__all__ = ["bit_product", "pays"]

SHIFTS = 7 * np.arange(8)[:, None]  # a digit has 7 bits; the lowest comes first
BIAS = int(np.sum(64 << SHIFTS))  # added to a number, it makes each digit larger by 64: from 0 to 127
POINT = 54  # numbers below one have so many fractional bits, which fill half of what the digits hold
LONGEST = 1 << 24  # sums of so many digits, each up to 64 in size, are exact in 32 bits


def pays() -> bool:
    """Whether XLA multiplies 8-bit integers fast: on the CPU, where it has YNNPACK."""
    return jax.default_backend() == "cpu"


def bit_product(bits: ArrayLike, vector: ArrayLike) -> jax.Array:
    """Return ``bits @ vector``, differentiable in the vector any number of times, in both modes.

    Parameters
    ----------
    bits : array (n, d)
        Zeros and ones, as booleans or 8-bit integers; n and d at most 2²⁴.
    vector : array (d,) of float64
        Where an entry is not finite, no entry of the product is.

    Returns
    -------
    jax.Array (n,)
    """
    return product_p.bind(jnp.asarray(bits), jnp.asarray(vector)[None], axis=1)[0]


def by_digits(bits: jax.Array, vectors: jax.Array, *, axis: int) -> jax.Array:
    """Products of each of the vectors (k, m) with the bits along an axis of theirs, of length m."""
    # without the barrier XLA computes whatever led to the vectors again for each digit
    vectors = lax.optimization_barrier(vectors)
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
def _shape(bits: Any, vectors: Any, *, axis: int) -> Any:
    if vectors.dtype != jnp.float64 or max(bits.shape) > LONGEST:
        raise ValueError(f"bit_product takes float64 and up to {LONGEST} rows and columns, got {vectors}, {bits}")
    return jax.core.ShapedArray((vectors.shape[0], bits.shape[1 - axis]), vectors.dtype)


def _transpose(cotangents: Any, bits: Any, vectors: Any, *, axis: int) -> tuple:
    if type(cotangents) is ad.Zero:
        return None, ad.Zero(vectors.aval)
    return None, product_p.bind(bits, cotangents, axis=1 - axis)


def _batch(arguments: Any, dimensions: Any, *, axis: int) -> tuple:
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
