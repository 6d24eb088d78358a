"""Several randomized answers of each person to one question."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import special

from ldpbayes._core.checks import at_least
from ldpbayes._core.pytrees import static
from ldpbayes._core.types import Key
from ldpbayes.mechanisms._categories import LikelihoodTable
from ldpbayes.mechanisms.protocol import Mechanism, checked_integers, registered
from ldpbayes.numerics.special import log_or_nothing, log_sum
from ldpbayes.privacy import FiniteTradeoff, Guarantee

MOST_OUTCOMES = 5000  # counts of answers, or outcomes of bits, for which the guarantee is computed exactly
RAREST = 1e-300  # probability of a row of answers that double precision holds


@registered("repeated", "Several answers of each person by one design, perhaps about a memorised randomized answer.")
class Repeated(LikelihoodTable):
    """Several answers of each person by one design, as in a panel: a released value is a row of `times` answers.

    The answers are independent, given the truth. With `permanent`, a person draws one permanent answer by this design
    and keeps it, and the answers are about it: the permanent and the instantaneous step of [EPK]. Missing answers are
    the code −1, or NaN in data, and say nothing: they must be missing for reasons unrelated to the truth.

    The guarantee is exact for up to 5,000 possible counts of the answers, if the probabilities of all rows of answers
    are above 1e-300. Otherwise it is a bound: the composition of `times` answers, or the guarantee of the permanent
    step, which holds for any number of answers, whichever has the smaller epsilon at delta = 0.

    Parameters
    ----------
    mechanism, permanent : Mechanism
        Designs, each a `MatrixProtocol` or `RandomizedResponse` with one set of parameters for all records. The
        released codes of `permanent` (default: none) are the categories of `mechanism`. In a `spec`, `mechanism` is
        under "of".
    times : int
        Number of answers of each person, including missing ones.

    Examples
    --------
    >>> panel = ldp.mechanisms.Repeated(ldp.RandomizedResponse(truth=0.75), times=3)
    >>> round(float(panel.guarantee.epsilon(0.0)), 3)  # 3 log 3
    3.296
    >>> release = ldp.Release([[1, 1, 0], [0, float("nan"), 0]], panel)  # a missing day
    """

    mechanism: Any
    times: int = static()
    permanent: Any = None

    may_be_missing = True
    categories = property(lambda self: (self.permanent or self.mechanism).categories, doc="Number k of categories.")
    event_shape = property(lambda self: (self.times,), doc="One code for each answer, −1 if it is missing.")
    support = property(lambda self: constraints.independent(constraints.integer_interval(-1, self._answers - 1), 1))
    _answers = property(lambda self: np.shape(self.mechanism.matrix)[-1])
    _shared = ("mechanism", "permanent")

    def __post_init__(self) -> None:
        for name, part in (("mechanism", self.mechanism), ("permanent", self.permanent)):
            fits = isinstance(part, Mechanism) and part.has_matrix and part.batch_shape == ()
            if not fits and (part is not None or name == "mechanism"):
                raise TypeError(f"{name} must be a design with one matrix for all records, got {part!r}")
        object.__setattr__(self, "times", at_least(1, "times", self.times))
        if self.permanent is not None and np.shape(self.permanent.matrix)[1] != self.mechanism.categories:
            kept, categories = np.shape(self.permanent.matrix)[1], self.mechanism.categories
            raise ValueError(f"mechanism must have the {kept} answers of permanent as categories, it has {categories}")

    @property
    def guarantee(self) -> Guarantee:
        m = self._answers
        matrix = np.asarray(self.mechanism.matrix)
        rarest = self.times * np.log(matrix[matrix > 0].min())
        if math.comb(self.times + m - 1, m - 1) > MOST_OUTCOMES or rarest < np.log(RAREST):
            bounds = [part.guarantee for part in (self.permanent,) if part is not None]
            bounds.append(self.mechanism.guarantee.composed(self.times))
            return min(bounds, key=lambda bound: np.max(bound.epsilon(0.0)))
        bars = np.array([*itertools.combinations(range(self.times + m - 1), m - 1)]).reshape(-1, m - 1)
        edges = np.pad(bars, [(0, 0), (1, 1)], constant_values=((0, 0), (-1, self.times + m - 1)))
        counts = np.diff(edges, axis=1) - 1
        orders = special.gammaln(self.times + 1) - special.gammaln(counts + 1).sum(axis=1)
        laws = np.exp(orders + special.xlogy(counts, matrix[:, None]).sum(axis=2))
        laws /= laws.sum(axis=1, keepdims=True)
        return Guarantee(FiniteTradeoff(laws if self.permanent is None else np.asarray(self.permanent.matrix) @ laws))

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        first, second = jax.random.split(key)
        kept = self._codes(x) if self.permanent is None else self.permanent.randomize(first, x)
        return self.mechanism.randomize(second, jnp.repeat(kept[..., None].astype(int), self.times, axis=-1))

    def log_probs(self, z: ArrayLike) -> jax.Array:
        z = jnp.asarray(z).astype(int)
        logs = log_or_nothing(jnp.asarray(self.mechanism.matrix, jnp.result_type(float)))
        each = jnp.where((z >= 0)[..., None], jnp.moveaxis(logs, 0, -1)[jnp.maximum(z, 0)], 0.0).sum(axis=-2)
        if self.permanent is None:
            return each
        return log_sum(log_or_nothing(jnp.asarray(self.permanent.matrix, each.dtype)) + each[..., None, :])

    def possible_values(self, most: int) -> np.ndarray | None:
        m = self._answers
        return np.array([*np.ndindex((m,) * self.times)]) if m**self.times <= most else None

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.stack([np.sum(z == code, axis=-1) for code in range(self._answers)], axis=-1)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        missing = np.isnan(values) if values.dtype.kind == "f" else False
        return checked_integers(np.where(missing, -1, values), type(self).__name__, -1, self._answers - 1)

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"mechanism": self.name, "of": self.mechanism.spec()}

    @property
    def one_answer(self) -> np.ndarray:
        """The matrix P(z | x) of one answer (categories, answers), by both steps."""
        matrix = np.asarray(self.mechanism.matrix)
        return matrix if self.permanent is None else np.asarray(self.permanent.matrix) @ matrix

    @staticmethod
    def rows(answers: ArrayLike, persons: ArrayLike) -> np.ndarray:
        """Return a row of answers for each person 0, ..., P − 1, from all answers (N,) and their persons (N,), in their
        order; rows are filled up with −1, and their length is the largest number of answers.
        """
        persons = np.asarray(persons)
        counts, order = np.bincount(persons), np.argsort(persons, kind="stable")
        rows = np.full((len(counts), counts.max()), -1)
        rows[persons[order], np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)] = np.asarray(
            answers
        )[order]
        return rows
