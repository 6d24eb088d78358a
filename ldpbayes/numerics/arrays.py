"""Work on large arrays: in chunks, by Hadamard transforms, packed, by products of bits, and in lower precision."""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from scipy.linalg import hadamard

from ldpbayes._core.types import Array, ArrayModule, array_of

CACHE_SIZE = 1 << 15  # floating-point numbers that stay in a core's cache


def by_rows(function: Callable[..., jax.Array], rows: int) -> Callable[..., jax.Array]:
    """Apply `function`, from arrays (n, ...) to a number for each row (n,), to about `rows` rows at a time."""

    def apply(*arrays: jax.Array) -> jax.Array:
        n, size = arrays[0].shape[0], max(1, rows)
        if n <= 2 * size:
            return function(*arrays)
        count = -(-n // size)

        @jax.checkpoint
        def chunk(start: jax.Array) -> jax.Array:
            return function(*(lax.dynamic_slice_in_dim(a, start, size) for a in arrays))

        # the last chunk overlaps the one before, so that none has another shape
        parts = lax.map(chunk, jnp.minimum(jnp.arange(count) * size, n - size))
        return jnp.concatenate([parts[:-1].ravel(), parts[-1, count * size - n :]])

    return apply


HADAMARD_FACTOR = 32  # size of the matrices that a Hadamard matrix is a product of


def hadamard_transform(values: Array) -> Array:
    """Σ_l (−1)^(number of ones that i and l share) values[..., l], for each i; the length is a power of two."""
    shape, done = values.shape, 1
    while done < shape[-1]:
        size = min(HADAMARD_FACTOR, shape[-1] // done)
        matrix = hadamard(size, values.dtype)
        values = (matrix @ values.reshape(*shape[:-1], -1, size, done)).reshape(shape)
        done *= size
    return values


def evenly_spaced(rows: np.ndarray, count: int) -> np.ndarray:
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]


# Factors of entries off the diagonal: with √2, Euclidean distances of packed vectors are those of matrices.
OFF_DIAGONALS = {"scaled": math.sqrt(2.0), "once": 1.0}


def diagonal_first_pairs(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column indices of the diagonal and then the upper triangle of a matrix (d, d), row by row."""
    above = np.triu_indices(d, 1)
    return np.concatenate([np.arange(d), above[0]]), np.concatenate([np.arange(d), above[1]])


def packed(matrix: Array, off_diagonal: str) -> Array:
    """Entries (*batch, d (d + 1)/2) of symmetric matrices: the diagonal, then the others times a factor."""
    rows, columns = diagonal_first_pairs(matrix.shape[-1])
    return matrix[..., rows, columns] * np.where(rows == columns, 1.0, OFF_DIAGONALS[off_diagonal]).astype(matrix.dtype)


def unpacked(vector: Array, d: int, off_diagonal: str) -> Array:
    """The symmetric matrices (*batch, d, d) from which `packed` made the vectors."""
    vector = array_of(vector)
    rows, columns = diagonal_first_pairs(d)
    where = np.zeros((d, d), int)
    where[rows, columns] = where[columns, rows] = np.arange(len(rows))
    return vector[..., where] / np.where(np.eye(d, dtype=bool), 1.0, OFF_DIAGONALS[off_diagonal]).astype(vector.dtype)


# A product with bits is exact arithmetic on fixed-point numbers in eight digits of seven bits, the lowest first.
DIGIT_SHIFTS = 7 * np.arange(8)[:, None]
DIGIT_BIAS = int(np.sum(64 << DIGIT_SHIFTS))  # added to a number, it makes each digit larger by 64: from 0 to 127
FRACTION_BITS = 54  # fractional bits of numbers below one, which fill half of the range of the digits
MAX_TERMS = 1 << 24  # terms of a sum of digits, each up to 64 in size, that is exact in 32 bits


def pays() -> bool:
    """Whether XLA multiplies 8-bit integers fast, as on a CPU, where it has YNNPACK."""
    return jax.default_backend() == "cpu"


def bit_product(bits: Array, vector: Array) -> jax.Array:
    """``bits @ vector`` (n,) for booleans or int8 (n, d) and a float64 vector (d,); all NaN if that is not finite."""
    return _product_p.bind(jnp.asarray(bits), jnp.asarray(vector)[None], axis=1)[0]


def _product_by_digits(bits: jax.Array, vectors: jax.Array, *, axis: int) -> jax.Array:
    """Products of each of the vectors (k, m) with the bits along an axis of the bits, of length m."""
    # without the barrier XLA recomputes the vectors for each digit
    vectors = lax.optimization_barrier(vectors)
    largest = jnp.max(jnp.abs(vectors), axis=1, keepdims=True)
    scale = jnp.ldexp(1.0, jnp.minimum(FRACTION_BITS - jnp.frexp(largest)[1], 1000))
    fixed = jnp.rint(vectors * scale).astype(jnp.int64) + DIGIT_BIAS
    digits = (((fixed[:, None] >> DIGIT_SHIFTS) & 127) - 64).astype(jnp.int8)
    sums = jnp.tensordot(digits, bits.astype(jnp.int8), ((2,), (axis,)), preferred_element_type=jnp.int32)
    total = sums[:, -1].astype(vectors.dtype)
    for digit in range(len(DIGIT_SHIFTS) - 2, -1, -1):
        total = total * 128 + sums[:, digit]
    return total * jnp.where(jnp.isfinite(largest), 1 / scale, jnp.nan)


_product_p = Primitive("bit_product")
_product_p.def_impl(jax.jit(_product_p.bind, static_argnames="axis"))


@_product_p.def_abstract_eval
def _shape(bits: Array, vectors: Array, *, axis: int) -> jax.core.ShapedArray:
    if vectors.dtype != jnp.float64 or max(bits.shape) > MAX_TERMS:
        raise ValueError(f"bit_product takes float64 and up to {MAX_TERMS} rows and columns, got {vectors}, {bits}")
    return jax.core.ShapedArray((vectors.shape[0], bits.shape[1 - axis]), vectors.dtype)


def _batch(arguments: tuple, dimensions: tuple, *, axis: int) -> tuple:
    (bits, vectors), (bits_at, vectors_at) = arguments, dimensions
    if bits_at is not None:
        bits = jnp.moveaxis(bits, bits_at, 0)
        vectors = batching.bdim_at_front(vectors, vectors_at, len(bits))
        return lax.map(lambda pair: _product_p.bind(*pair, axis=axis), (bits, vectors)), 0
    vectors = jnp.moveaxis(vectors, vectors_at, 0)
    product = _product_p.bind(bits, vectors.reshape(-1, vectors.shape[-1]), axis=axis)
    return product.reshape(*vectors.shape[:-1], -1), 0


# bilinear, so differentiable in the vector any number of times, in both modes
ad.defbilinear(_product_p, None, lambda out, bits, _, *, axis: _product_p.bind(bits, out, axis=1 - axis))
batching.primitive_batchers[_product_p] = _batch
mlir.register_lowering(_product_p, mlir.lower_fun(_product_by_digits, multiple_results=False))


def snapped(values: np.ndarray, points: Sequence[Array]) -> np.ndarray:
    """Values with exact points in the place of rounded ones: 0.1 in single precision is slightly above a bound of 0.1.
    Doubles are compared with points in single precision, which noise never produces.
    """
    result = values
    for point in points if values.dtype.kind == "f" else ():
        point = np.asarray(point, float)
        nearest = rounded(np, point, values.dtype)
        inexact = nearest != point
        if not np.any(inexact):
            continue
        replaced = (values == nearest) & inexact
        if replaced.any():
            result = values.astype(float) if result is values else result
            np.copyto(result, point, where=replaced)
    return result


def rounded(xp: ArrayModule, point: Array, dtype: np.dtype) -> Array:
    """A point rounded to the floating-point type `dtype`, or to single precision if that is double."""
    if xp is jnp:
        # XLA may leave out a cast to single precision and back
        point = jnp.asarray(point, dtype)
        return lax.reduce_precision(point, 8, 23) if dtype == jnp.float64 else point
    with np.errstate(over="ignore"):
        return np.asarray(point).astype(np.float32 if dtype == np.float64 else dtype).astype(dtype)


def width_classes(widths: Array) -> np.ndarray:
    """Numbers of classes of positive widths, each up to twice as wide as the one before; the first is up to 4."""
    return np.maximum(np.ceil(np.log2(np.maximum(widths, 1.0)) - 1e-9), 2.0)


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of each kind of equal rows of numbers (n, columns), NaN like NaN, and the kind (n,) of each row."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.int64)  # -0.0 is 0.0
    _, first, kinds = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    return first, kinds.ravel()


def equal_pairs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of positions of equal rows (n, ...), each row with the first one that it equals."""
    _, first, of = np.unique(rows.reshape(len(rows), -1), axis=0, return_index=True, return_inverse=True)
    return [(int(first[kind]), i) for i, kind in enumerate(of.ravel()) if first[kind] != i]
