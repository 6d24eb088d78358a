"""Local mechanisms for up to millions of categories, which are hashed into few cells: count-mean sketches."""

import abc
import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import special

from ldpbayes._core.checks import ArgumentError, at_least, refuse, whole_numbers_up_to
from ldpbayes._core.pytrees import static
from ldpbayes._core.types import Array, Key
from ldpbayes.mechanisms._categories import (
    MOST_HASHED_CATEGORIES,
    HadamardResponse,
    PureProtocol,
    SymmetricUnaryEncoding,
    xxh32_of_decimal,
)
from ldpbayes.mechanisms.protocol import registered

MOST_HASHES = MOST_CELLS = 1 << 20
BITS = np.arange(32, dtype=np.uint32)  # of a word of a released value
CHECKED_REPORTS = 1 << 15  # reports that are searched for implausible counts


@dataclasses.dataclass(frozen=True)
class CountSketchProtocol(PureProtocol):
    """Base of count-mean sketches: a person draws one of k hash functions, hashes the category to one of m cells, and
    releases the number of the function, and the cell under a pure protocol for m categories.

    A value supports a category if it supports the category's cell. The functions are known: function j is xxHash32 of
    the code's decimal digits with seed j, modulo m. The guarantee is that of the protocol for cells, for two categories
    that all functions hash apart. `PureProtocol` describes epsilon and categories (here at most 10^7).

    Parameters
    ----------
    hashes : int
        Number k of hash functions. Default: 64.
    cells : int
        Number m of cells, at least 2. Default: 1024.
    """

    hashes: int = static(default=64)
    cells: int = static(default=1024)
    monotone = True
    inner: ClassVar[Any]  # the protocol for cells
    separation = property(lambda self: self.inner.separation)
    # with q of ideal hash functions
    support_probabilities = property(lambda self: _with_collisions(self.cells, *self.inner.support_probabilities))
    collision_variance = property(lambda self: 1 / (self.hashes * (self.cells - 1)))
    _last: ClassVar[Any]  # the largest number in each place of a released value
    support = property(
        lambda self: constraints.independent(constraints.integer_interval(np.uint32(0), self._last), 1),
        doc="Released values: 32-bit words, the number of the hash function first.",
    )

    @abc.abstractmethod
    def opened(self, z: ArrayLike) -> jax.Array:
        """Return what the protocol for cells has released, in the form that it has there."""

    @abc.abstractmethod
    def _packed(self, released: jax.Array) -> jax.Array:
        """Inverse of `opened`: rows of 32-bit words."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, "categories", self.categories, MOST_HASHED_CATEGORIES)
        object.__setattr__(self, "hashes", at_least(1, "hashes", self.hashes, MOST_HASHES))
        object.__setattr__(self, "cells", at_least(2, "cells", self.cells, MOST_CELLS))

    def hash(self, function: ArrayLike, x: ArrayLike) -> jax.Array:
        """Return the cell of each code `x` under each function, from 0 to `cells` − 1. Arguments broadcast."""
        return xxh32_of_decimal(x, function, self.categories - 1) % np.uint32(self.cells)

    def table(self, theta: jax.Array) -> jax.Array:
        """Return sums (hashes, cells) of shares (categories,) of the categories that are in a cell."""

        @jax.checkpoint  # the cells of all categories under all functions are too many to keep
        def row(function: jax.Array) -> jax.Array:
            return jnp.zeros(self.cells, theta.dtype).at[self.hash(function, np.arange(self.categories))].add(theta)

        return jax.lax.map(row, jnp.arange(self.hashes, dtype=jnp.uint32))

    @jax.jit
    def collisions(self, theta: jax.Array) -> jax.Array:
        """Return what the shares (categories,) are expected to add to the estimates of other categories, for these hash
        functions; for the mean over all hash functions it is 0.
        """
        table, back = jax.vjp(self.table, theta)
        others = back(table)[0] / self.hashes - theta
        return (self.cells * others - (theta.sum() - theta)) / (self.cells - 1)

    @property
    def largest_collision(self) -> float:
        """Largest portion of a share that is added to another category's, but for one in as many as there are."""
        functions = np.arange(self.hashes + 1)
        rare = special.bdtrc(functions, self.hashes, 1 / self.cells) * self.categories < 1
        return float(functions[rare][0] / self.hashes)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x, (first, second) = self._codes(x), jax.random.split(key)
        shape = jnp.broadcast_shapes(x.shape, jnp.shape(self.epsilon))
        function = jax.random.randint(first, shape, 0, self.hashes).astype(jnp.uint32)
        released = self._packed(self.inner.randomize(second, self.hash(function, x)))
        return jnp.concatenate([function[..., None], released], axis=-1)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        return self.inner.supports(self.opened(z), self.hash(jnp.asarray(z)[..., 0], x))

    def log_supported(self, z: ArrayLike) -> jax.Array:
        return self.inner.log_supported(self.opened(z)) - math.log(self.hashes)

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return z

    def implausible(self, values: np.ndarray) -> list[str]:
        some: Any = self.of_records((len(values),), slice(CHECKED_REPORTS))
        found = some.inner.implausible(np.asarray(self.opened(values[:CHECKED_REPORTS])))
        return [sentence.replace("category", "cell") for sentence in found]

    def _validated(self, values: np.ndarray) -> np.ndarray:
        last = self._last if values.dtype == np.uint32 else self._last.astype(np.int64)
        whole_numbers_up_to("values", values, int(last.max()))
        bad = values > last
        bad |= (values < 0) | (values != np.floor(values)) if values.dtype.kind != "u" else False
        least = (
            f"a hash function from 0 to {last[0]}, and then words from 0 to {', '.join(map(str, np.unique(last[1:])))}"
        )
        refuse(bad, f"{type(self).__name__} releases {least}; {{}} numbers are not", values, "in row {}, place {}")
        values = values.astype(np.uint32, copy=False)
        # the released values are concrete, even while something else is being traced
        with jax.ensure_compile_time_eval():
            self._check_possible(values, self._is_of_a_cell, "a value that a cell has")
        return values

    def _is_of_a_cell(self, z: np.ndarray) -> np.ndarray:
        exact = dataclasses.replace(self, epsilon=np.inf).inner
        return np.isfinite(exact.log_prob(self.opened(z)[:, None], np.arange(self.cells))).any(axis=1)


def _with_collisions(cells: int, p: Array, q: Array) -> tuple[Array, Array]:
    return p, q + (p - q) / cells


@registered(
    "count_mean_sketch", "Hash the category to one of m cells by one of k functions, then release a flipped bit a cell."
)
class CountMeanSketch(CountSketchProtocol):
    """Count-mean sketch (CMS): one of k hash functions, and a randomly flipped bit for each of m cells ([Apple]).

    Each bit of the cell's one-hot code is flipped with probability 1/(exp(epsilon/2) + 1), as by
    `SymmetricUnaryEncoding`. A released value is a row of 32-bit words: the number of the function, then the bits, 32
    in a word, those of the first cells lowest. `CountSketchProtocol` describes the parameters.

    Examples
    --------
    >>> sketch = ldp.mechanisms.CountMeanSketch(epsilon=4.0, categories=100_000, hashes=64, cells=1024)
    >>> sketch.event_shape
    (33,)
    """

    inner = property(lambda self: SymmetricUnaryEncoding(self.epsilon, self.cells), doc="The protocol for cells.")
    event_shape = property(lambda self: (1 + -(-self.cells // 32),), doc="A hash function, and words of bits.")

    @property
    def _last(self) -> np.ndarray:
        last = np.full(self.event_shape, 2**32 - 1, np.uint32)
        last[[0, -1]] = self.hashes - 1, (1 << (self.cells - 1) % 32 + 1) - 1
        return last

    def opened(self, z: ArrayLike) -> jax.Array:
        bits = (jnp.asarray(z).astype(jnp.uint32)[..., 1:, None] >> BITS) & np.uint32(1)
        return bits.astype(jnp.uint8).reshape(*bits.shape[:-2], -1)[..., : self.cells]

    def _packed(self, released: jax.Array) -> jax.Array:
        bits = jnp.pad(released, [(0, 0)] * (released.ndim - 1) + [(0, -self.cells % 32)]).astype(jnp.uint32)
        return jnp.sum(bits.reshape(*bits.shape[:-1], -1, 32) << BITS, axis=-1, dtype=jnp.uint32)


@registered(
    "hadamard_count_mean_sketch",
    "Hash the category to one of m cells by one of k functions, then release one bit of the cell's Hadamard row.",
)
class HadamardCountMeanSketch(CountSketchProtocol):
    """Hadamard count-mean sketch (HCMS): one of k hash functions, and one random bit about the cell ([Apple]).

    The m cells, a power of two, are the rows of a Hadamard matrix. The sign in the cell's row and a random column l is
    flipped with probability 1/(exp(epsilon) + 1). A released value is a pair: the number of the function, and l, plus m
    if the released sign is −1. `CountSketchProtocol` describes the parameters.

    Examples
    --------
    >>> sketch = ldp.mechanisms.HadamardCountMeanSketch(epsilon=4.0, categories=1_000_000, hashes=64, cells=1024)
    >>> sketch.guarantee.epsilon(0.0)
    4.0
    """

    event_shape = (2,)  # hash function and signed column
    inner = property(lambda self: _HadamardBit(self.epsilon, self.cells), doc="The protocol for cells.")
    _last = property(lambda self: np.array([self.hashes - 1, 2 * self.cells - 1], np.uint32))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cells.bit_count() > 1:
            raise ArgumentError("cells", "a power of two", str(self.cells))

    def opened(self, z: ArrayLike) -> jax.Array:
        return jnp.asarray(z)[..., 1].astype(jnp.int32)

    def _packed(self, released: jax.Array) -> jax.Array:
        return released[..., None].astype(jnp.uint32)


@dataclasses.dataclass(frozen=True)
class _HadamardBit(HadamardResponse):
    """Hadamard response with the last m rows of a matrix of 2 m columns: a column m + l has the signs of column l,
    turned round.
    """

    first_row = property(lambda self: self.categories)
