"""Symmetric matrices as vectors: the diagonal, then what is above it, row by row."""

import math
from typing import Any

import numpy as np

from ldpbayes._tracing import array_of

__all__ = ["OFF_DIAGONALS", "packed", "pairs", "unpacked"]

OFF_DIAGONALS = {"scaled": math.sqrt(2.0), "once": 1.0}
"""What entries off the diagonal are multiplied by: with √2, Euclidean distances of vectors are those of matrices."""


def pairs(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries: (0, 0), ..., (d−1, d−1), (0, 1), (0, 2), ..., (d−2, d−1).

    Parameters
    ----------
    d : int
        Size of the matrix.
    """
    above = np.triu_indices(d, 1)
    return np.concatenate([np.arange(d), above[0]]), np.concatenate([np.arange(d), above[1]])


def packed(matrix: Any, off_diagonal: str) -> Any:
    """Entries of symmetric matrices (*batch, d, d) as vectors (*batch, d (d + 1)/2).

    Parameters
    ----------
    matrix : array (*batch, d, d)
        Symmetric.
    off_diagonal : {"scaled", "once"}
        What entries off the diagonal are multiplied by.
    """
    d = matrix.shape[-1]
    rows, columns = pairs(d)
    return matrix[..., rows, columns] * np.where(rows == columns, 1.0, OFF_DIAGONALS[off_diagonal]).astype(matrix.dtype)


def unpacked(vector: Any, d: int, off_diagonal: str) -> Any:
    """Inverse of `packed`.

    Parameters
    ----------
    vector : array (*batch, d (d + 1)/2)
        Entries.
    d : int
        Size of the matrices.
    off_diagonal : {"scaled", "once"}
        As for `packed`.
    """
    vector = array_of(vector)
    rows, columns = pairs(d)
    where = np.zeros((d, d), int)
    where[rows, columns] = where[columns, rows] = np.arange(len(rows))
    return vector[..., where] / np.where(np.eye(d, dtype=bool), 1.0, OFF_DIAGONALS[off_diagonal]).astype(vector.dtype)
