"""A randomizer of categories that is given as a matrix."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.checks import refuse
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key
from ldpbayes.mechanisms._categories import Categories
from ldpbayes.mechanisms.plausibility import implausible_counts
from ldpbayes.mechanisms.protocol import drawn_columns
from ldpbayes.mechanisms.registry import registered_dataclass
from ldpbayes.numerics.special import log_or_nothing
from ldpbayes.privacy import FiniteTradeoff, Guarantee
from ldpbayes.privacy.tradeoffs import checked_laws


@registered_dataclass("transition_matrix")
class TransitionMatrix(Categories):
    """Any randomizer of categories, given by its matrix of probabilities p(z | x).

    The guarantee is for the worst pair of rows. An output that is possible for one record and impossible for another
    reveals which of the two it is. Then epsilon is infinite at delta = 0, and finite if delta is at least the
    probability of such outputs.

    Parameters
    ----------
    matrix : array_like (k, m)
        Probabilities p(z | x): a row for each record 0, ..., k − 1 and a column for each output 0, ..., m − 1, k ≥ 2.
        Each row sums to one, to 1e-9. Otherwise a ValueError is raised. All records have the same matrix.
    """

    matrix: Array

    _shared: ClassVar[tuple[str, ...]] = ("matrix",)
    categories = property(lambda self: np.shape(self.matrix)[0], doc="Number k of categories.")
    support = property(lambda self: constraints.integer_interval(0, np.shape(self.matrix)[1] - 1))
    guarantee = property(lambda self: Guarantee(FiniteTradeoff(self.matrix)))

    def __post_init__(self) -> None:
        if is_concrete(self.matrix):
            object.__setattr__(self, "matrix", checked_laws("matrix", self.matrix))
        if np.ndim(self.matrix) != 2 or len(self.matrix) < 2:
            raise ValueError(f"matrix must have a row for each record, two at least, got shape {np.shape(self.matrix)}")

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        codes, matrix = self._codes(x), jnp.asarray(self.matrix, jnp.result_type(float))
        return drawn_columns(matrix, codes, jax.random.uniform(key, codes.shape, matrix.dtype))

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        matrix = jnp.asarray(self.matrix, jnp.result_type(x, float))
        return log_or_nothing(matrix[jnp.asarray(x).astype(int), jnp.asarray(z).astype(int)])

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(z)[:, None]

    def implausible(self, values: np.ndarray) -> list[str]:
        counts = np.bincount(values, minlength=self.matrix.shape[1])
        ends = self.matrix.min(axis=0), self.matrix.max(axis=0)
        return implausible_counts(counts, len(values), *ends, 2 * len(counts), "are {}".format)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = super()._validated(values)
        if is_concrete(self.matrix):
            impossible = ~np.any(self.matrix, axis=0)[values]
            refuse(impossible, "no record leads to an output whose column is zero; {} of these are", values)
        return values
