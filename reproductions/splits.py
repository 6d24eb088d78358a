"""Tables of the papers from local files, and their random splits into records for training and for testing."""

import dataclasses
import hashlib
import os
import pathlib

import numpy as np

TRAINING = 0.8


def data_file(name, folder=None):
    """Path of a file in the folder, by default that of the environment variable LDPBAYES_DATA."""
    folder = os.environ.get("LDPBAYES_DATA") if folder is None else folder
    if folder is None:
        raise FileNotFoundError(f"set LDPBAYES_DATA to the folder with {name}, or give folder=")
    path = pathlib.Path(folder) / name
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return path


@dataclasses.dataclass(frozen=True)
class Splits:
    """Random splits of a table, one a replicate: rows (replicates, n, d + 1), the response last."""

    train: np.ndarray
    test: np.ndarray
    digest: str  # of the table, for checkpoints

    @classmethod
    def of(cls, covariates, response, replicates, seed):
        """Splits of covariates (N, d) and a response (N,), 80 % for training; two at least, for standard deviations."""
        if replicates < 2:
            raise ValueError(f"at least 2 splits are needed for a standard deviation, got {replicates}")
        rows, rng = np.column_stack([covariates, response]).astype(float), np.random.default_rng(seed)
        orders = np.stack([rng.permutation(len(rows)) for _ in range(replicates)])
        count = round(TRAINING * len(rows))
        digest = hashlib.sha256(rows.tobytes()).hexdigest()[:20]
        return cls(rows[orders[:, :count]], rows[orders[:, count:]], digest)

    def predictors(self, coefficients):
        """Linear predictors (replicates, n) of the records for testing, from coefficients (replicates, 1 + d)."""
        return coefficients[:, :1] + np.einsum("rnd,rd->rn", self.test[..., :-1], coefficients[:, 1:])
