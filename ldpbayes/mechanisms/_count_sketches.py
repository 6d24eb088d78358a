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

MOST_HASHES, MOST_CELLS = 1 << 20, 1 << 20
WORD = 32  # bits in a word of a released value
CHECKED_REPORTS = 1 << 15  # reports that are searched for implausible counts


@dataclasses.dataclass(frozen=True)
class CountSketchProtocol(PureProtocol):
    """Base of count-mean sketches: a person draws one of k hash functions, hashes the category to one of m cells, and
    releases the number of the function and the cell under a pure protocol for m categories.

    A value supports a category if it supports the category's cell. The functions are known: function j is xxHash32 of
    the code's decimal digits with seed j, modulo m. The guarantee is that of the protocol for cells, for two categories
    that all functions hash apart. `PureProtocol` describes epsilon and categories (here at most 10^7).

    Parameters
    ----------
    hashes : int
        Number k of hash functions.
    cells : int
        Number m of cells, at least 2.
    """

    hashes: int = static(default=64)
    cells: int = static(default=1024)
    monotone = True
    inner: ClassVar[Any]  # the protocol for cells
    separation = property(lambda self: self.inner.separation)
    #: Variance, over hash functions, of how much of another category's share an estimate takes for the category's own.
    collision_variance = property(lambda self: 1 / (self.hashes * (self.cells - 1)))

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(2, "categories", self.categories, MOST_HASHED_CATEGORIES)
        object.__setattr__(self, "hashes", at_least(1, "hashes", self.hashes, MOST_HASHES))
        object.__setattr__(self, "cells", at_least(2, "cells", self.cells, MOST_CELLS))

    @property
    def support_probabilities(self) -> tuple[Array, Array]:
        p, q = self.inner.support_probabilities
        return p, q + (p - q) / self.cells  # of ideal hash functions

    @property
    def support(self) -> constraints.Constraint:
        last = np.array([self.hashes - 1, *self._last], np.uint32)
        return constraints.independent(constraints.integer_interval(np.uint32(0), last), 1)

    @property
    @abc.abstractmethod
    def _last(self) -> list[int]:
        """The largest number in each place of a released value but the first."""

    @abc.abstractmethod
    def cell_of(self, z: jax.Array, cell: jax.Array) -> jax.Array:
        """Return whether released values support a cell, in the broadcast shape of the cell and the batch."""

    @abc.abstractmethod
    def _packed(self, released: jax.Array) -> jax.Array:
        """What the inner protocol has released, as rows of 32-bit words."""

    def hash(self, function: ArrayLike, x: ArrayLike) -> jax.Array:
        """Return the cell of each code `x` under each function, from 0 to `cells` − 1. Arguments broadcast."""
        return xxh32_of_decimal(x, function, self.categories - 1) % np.uint32(self.cells)

    def table(self, theta: jax.Array) -> jax.Array:
        """Sums (hashes, cells) of numbers (categories,), one for each category, by function and cell."""

        @jax.checkpoint  # the cells of all categories under all functions are too many to keep
        def row(function: jax.Array) -> jax.Array:
            return jnp.zeros(self.cells, theta.dtype).at[self.hash(function, np.arange(self.categories))].add(theta)

        return jax.lax.map(row, jnp.arange(self.hashes, dtype=jnp.uint32))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x, (first, second) = self._codes(x), jax.random.split(key)
        shape = jnp.broadcast_shapes(x.shape, jnp.shape(self.epsilon))
        function = jax.random.randint(first, shape, 0, self.hashes).astype(jnp.uint32)
        released = self._packed(self.inner.randomize(second, self.hash(function, x)))
        return jnp.concatenate([function[..., None], released], axis=-1)

    def supports(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z = jnp.asarray(z).astype(jnp.uint32)
        return self.cell_of(z, self.hash(z[..., 0], x).astype(jnp.int32))

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return z

    def _validated(self, values: np.ndarray) -> np.ndarray:
        last, kind = np.array([self.hashes - 1, *self._last]), values.dtype.kind
        whole_numbers_up_to("values", values, int(last.max()))
        bad = values > (last.astype(values.dtype) if values.dtype == np.uint32 else last)
        bad |= (values < 0) | (values != np.floor(values)) if kind != "u" else False
        problem = f"{type(self).__name__} releases {self._what}; {{}} numbers are not"
        refuse(bad, problem, values, "in row {}, place {}")
        return values.astype(np.uint32, copy=False)


@registered(
    "count_mean_sketch", "Hash the category to one of m cells by one of k functions, then release a flipped bit a cell."
)
class CountMeanSketch(CountSketchProtocol):
    """Count-mean sketch (CMS): one of k hash functions, and a randomly flipped bit for each of m cells ([Apple]).

    Each bit of the cell's one-hot code is flipped with probability 1/(exp(epsilon/2) + 1), as by
    `SymmetricUnaryEncoding`. A released value is a row of 32-bit words: the number of the function, then the bits, 32
    in a word, those of the first cells lowest. `CountSketchProtocol` describes the parameters (m ≤ 2^20).

    Examples
    --------
    >>> sketch = ldp.mechanisms.CountMeanSketch(epsilon=4.0, categories=100_000, hashes=64, cells=1024)
    >>> sketch.event_shape
    (33,)
    """

    inner = property(lambda self: SymmetricUnaryEncoding(self.epsilon, self.cells), doc="The protocol for cells.")
    event_shape = property(lambda self: (1 + -(-self.cells // WORD),), doc="A hash function, and words of bits.")
    _what = property(lambda self: f"the number of one of {self.hashes} functions and {self.cells} bits in words")

    @property
    def _last(self) -> list[int]:
        full, rest = divmod(self.cells, WORD)
        return [2**WORD - 1] * full + [2**rest - 1] * (rest > 0)

    def bits(self, z: ArrayLike) -> jax.Array:
        """The bits of the cells (*batch, cells) in released values."""
        words = jnp.asarray(z).astype(jnp.uint32)[..., 1:, None]
        bits = (words >> np.arange(WORD, dtype=np.uint32)) & np.uint32(1)
        return bits.reshape(*bits.shape[:-2], -1)[..., : self.cells]

    def _packed(self, released: jax.Array) -> jax.Array:
        pad = [(0, 0)] * (released.ndim - 1) + [(0, -self.cells % WORD)]
        bits = jnp.pad(released, pad).reshape(*released.shape[:-1], -1, WORD).astype(jnp.uint32)
        return jnp.sum(bits << np.arange(WORD, dtype=np.uint32), axis=-1, dtype=jnp.uint32)

    def cell_of(self, z: jax.Array, cell: jax.Array) -> jax.Array:
        rows = z.reshape(-1, *self.event_shape)
        words = rows[jnp.arange(len(rows)).reshape(z.shape[:-1]), 1 + cell // WORD]
        return (words >> (cell % WORD).astype(jnp.uint32)) & np.uint32(1) != 0

    def log_supported(self, z: ArrayLike) -> jax.Array:
        ones = jax.lax.population_count(jnp.asarray(z).astype(jnp.uint32)[..., 1:]).sum(axis=-1)
        return self.inner.log_supported_by(ones) - math.log(self.hashes)

    def implausible(self, values: np.ndarray) -> list[str]:
        some = self.of_records((len(values),), slice(CHECKED_REPORTS)).inner
        sentences = some.implausible(np.asarray(self.bits(values[:CHECKED_REPORTS])))
        return [sentence.replace("category", "cell") for sentence in sentences]

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values, allowed = super()._validated(values), "itself, with one bit set"
        self._check_possible(values, lambda z: np.bitwise_count(z[:, 1:]).sum(axis=1) == 1, allowed)
        return values


@registered(
    "hadamard_count_mean_sketch",
    "Hash the category to one of m cells by one of k functions, then release one bit of the cell's Hadamard row.",
)
class HadamardCountMeanSketch(CountSketchProtocol):
    """Hadamard count-mean sketch (HCMS): one of k hash functions, and one random bit about the cell ([Apple]).

    The m cells, a power of two, are the rows of a Hadamard matrix. The sign in row `cell` and a random column l is
    flipped with probability 1/(exp(epsilon) + 1). A released value is a pair: the number of the function, and l, plus m
    if the released sign is −1. `CountSketchProtocol` describes the parameters.

    Examples
    --------
    >>> ldp.mechanisms.HadamardCountMeanSketch(epsilon=4.0, categories=1_000_000, hashes=64, cells=1024).hashes
    64
    """

    event_shape = (2,)  # hash function and column
    inner = property(lambda self: _HadamardBit(self.epsilon, self.cells), doc="The protocol for cells.")
    _last = property(lambda self: [2 * self.cells - 1])
    _what = property(lambda self: f"pairs of a function below {self.hashes} and a signed column below {2 * self.cells}")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cells.bit_count() > 1:
            raise ArgumentError("cells", "a power of two", str(self.cells))

    def _packed(self, released: jax.Array) -> jax.Array:
        return released[..., None].astype(jnp.uint32)

    def cell_of(self, z: jax.Array, cell: jax.Array) -> jax.Array:
        return self.inner.supports(z[..., 1], cell)

    def log_supported(self, z: ArrayLike) -> jax.Array:
        return self.inner.log_supported(jnp.asarray(z)[..., 1]) - math.log(self.hashes)

    def implausible(self, values: np.ndarray) -> list[str]:
        sentences = self.of_records((len(values),)).inner.implausible(values[:, 1])
        return [sentence.replace("category", "cell") for sentence in sentences]

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        self._check_possible(values, lambda z: z[:, 1] != self.cells, "a sign that a cell has")
        return values


@dataclasses.dataclass(frozen=True)
class _HadamardBit(HadamardResponse):
    """Hadamard response with the rows m, ..., 2 m − 1 of a matrix of 2 m columns: the second half of the columns has
    the signs of the first half, turned round.
    """

    first_row = property(lambda self: self.categories)
