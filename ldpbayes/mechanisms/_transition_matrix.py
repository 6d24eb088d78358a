"""The mechanism for categories that is given as a matrix of probabilities."""

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
    """Any mechanism for categories, given by its matrix of probabilities p(z | x).

    The guarantee is for the two categories x that are easiest to distinguish. Some outputs z may be possible for one
    category and impossible for the other category. Such an output reveals the category. Then epsilon is infinite at
    delta = 0. Epsilon is finite if delta is at least the probability of such outputs.

    Parameters
    ----------
    matrix : array_like (k, m)
        Probabilities p(z | x), with one row for each category x = 0, ..., k − 1 and one column for each output z = 0,
        ..., m − 1. There are k ≥ 2 rows. All records have the same matrix. If a row does not sum to one, up to 1e-9, a
        ValueError is raised.
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
            raise ValueError(f"matrix must have a row for each category, at least two, got {np.shape(self.matrix)}")

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
            problem = "an output with a zero column in the matrix is impossible; {} values are such outputs"
            refuse(impossible, problem, values)
        return values
