"""Random splits of a table, what is released of them, and the baseline's descents on them."""

import dataclasses
import hashlib

import jax
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._checks import at_least, checked
from ldpbayes.data import Release
from ldpbayes.estimation.losses import Loss
from ldpbayes.mechanisms import Mechanism, StatisticsMechanism
from ldpbayes.studies.papers.kulkarni_et_al._ldp_sgd import ldp_sgd

__all__ = ["GROUPS", "STEPS", "Splits", "with_intercept"]

STEPS = 2.0 ** np.arange(-8, 7)
GROUPS = (1.0, 4.0, 16.0, 64.0, 256.0)
"""What the baseline is tried with: step lengths, and constants of the size of its groups."""
TRAINING = 0.8


@dataclasses.dataclass(frozen=True)
class Splits:
    """Random splits of a table in records for training and records for testing, one a replicate.

    Attributes
    ----------
    train, test : ndarray (replicates, N, d + 1)
        Rows, the response last.
    digest : str
        Of the table.
    """

    train: np.ndarray
    test: np.ndarray
    digest: str

    @classmethod
    def of(cls, covariates: ArrayLike, response: ArrayLike, replicates: int, seed: int) -> "Splits":
        """Split a table.

        Parameters
        ----------
        covariates, response : array_like (N, d), (N,)
            The table; at least five records.
        replicates : int
            How many splits.
        seed : int
            Of NumPy's generator.
        """
        at_least(2, "replicates", replicates)
        x = np.atleast_1d(checked("covariates", covariates, "finite numbers (N, d)", np.isfinite))
        y = np.atleast_1d(checked("response", response, "finite numbers (N,)", np.isfinite))
        if x.ndim != 2 or y.shape != x.shape[:1] or len(x) < 5:
            raise ValueError(
                f"covariates must be of shape (N, d) and response (N,) with N at least 5, got {x.shape} and {y.shape}"
            )
        rows, rng = np.column_stack([x, y]), np.random.default_rng(seed)
        orders = np.stack([rng.permutation(len(rows)) for _ in range(replicates)])
        count = round(TRAINING * len(rows))
        digest = hashlib.sha256(rows.tobytes()).hexdigest()[:20]
        return cls(rows[orders[:, :count]], rows[orders[:, count:]], digest)

    @property
    def columns(self) -> int:
        """Of a row: d + 1."""
        return self.train.shape[-1]

    def predictors(self, coefficients: np.ndarray) -> np.ndarray:
        """Linear predictors (replicates, n) of the records for testing, from coefficients (replicates, 1 + d)."""
        return coefficients[:, :1] + np.einsum("rnd,rd->rn", self.test[..., :-1], coefficients[:, 1:])

    def releases(self, key: jax.Array, mechanism: Mechanism) -> list[Release]:
        """Perturbed records for training, a release a replicate.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        mechanism : Mechanism
            Of rows.
        """
        with jax.enable_x64(True):
            keys = jax.random.split(key, len(self.train))
            values = [mechanism.randomize(each, rows) for each, rows in zip(keys, self.train, strict=True)]
            return [Release(np.asarray(each), mechanism) for each in values]

    def totals(self, key: jax.Array, mechanism: StatisticsMechanism) -> list[Release]:
        """Sums of the locally perturbed statistics of the records for training, a release of one a replicate.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        mechanism : StatisticsMechanism
            Of one record.
        """
        total = mechanism.total(self.train.shape[1])
        with jax.enable_x64(True):
            # the sum of the records' noises is normal, and drawn as such
            sums = np.stack([np.asarray(mechanism.statistics(rows)).sum(axis=0) for rows in self.train])
            values = np.asarray(total.randomize(key, sums))
            return [Release(value[None], total) for value in values]

    def descents(self, key: jax.Array, loss: Loss, epsilon: float, delta: float) -> np.ndarray:
        """Coefficients of the baseline for all `GROUPS` and `STEPS`, (replicates, groups · steps, 1 + d).

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        loss : Loss
            Without an intercept.
        epsilon, delta : float
            Budget of a record.
        """
        found = [
            ldp_sgd(
                key,
                self.train,
                loss,
                parameters=self.columns - 1,
                epsilon=epsilon,
                delta=delta,
                steps=STEPS,
                group=group,
            )
            for group in GROUPS
        ]
        return with_intercept(np.concatenate(found, axis=1))


def with_intercept(slopes: np.ndarray) -> np.ndarray:
    """Coefficients (..., 1 + d): an intercept of zero before slopes (..., d)."""
    return np.concatenate([np.zeros_like(slopes[..., :1]), slopes], axis=-1)
