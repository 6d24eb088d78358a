"""``ldpbayes regress``: from a release of labels and a file of features to a linear predictor, in seconds."""

import argparse
import pathlib
from typing import TYPE_CHECKING

import numpy as np

from ldpbayes.cli._input import BadInput
from ldpbayes.cli._releases import load_release
from ldpbayes.cli._table import CSV, Table

if TYPE_CHECKING:
    from ldpbayes.learning import LinearFit

__all__ = ["LAWS", "load_features", "regressed"]

LAWS = ("bernoulli", "laplace", "log_normal", "normal", "poisson")
"""Names of laws of labels in `ldpbayes.learning` that need nothing but their name."""


def regressed(args: argparse.Namespace) -> "LinearFit":
    """The fit that the command prints.

    Parameters
    ----------
    args : argparse.Namespace
        What was typed.

    Raises
    ------
    BadInput
        If the release or the features are none, or do not fit each other, or an option is wrong.
    """
    from ldpbayes import learning

    release = load_release(args)
    names, features = load_features(args)
    try:
        objective = learning.MarginalLikelihood(getattr(learning, args.law))
        fitted = learning.linear_fit(
            named(names, features), release, objective=objective, penalty=args.penalty, intercept=not args.no_intercept
        )
        fitted.interval(args.level)  # so that a level that is none is bad input
        return fitted
    except (TypeError, ValueError) as error:
        raise BadInput(f"{args.release}: {error}") from None


class named(np.ndarray):
    """A matrix whose columns have names, as those of a data frame have."""

    columns: list[str]

    def __new__(cls, names: list[str], matrix: np.ndarray) -> "named":
        """The matrix itself, with names."""
        made = np.asarray(matrix).view(cls)
        made.columns = names
        return made


def load_features(args: argparse.Namespace) -> tuple[list[str], np.ndarray]:
    """Names and values of the features that ``--features`` names, a row a label.

    Parameters
    ----------
    args : argparse.Namespace
        What was typed: a ``.csv`` file of numbers, the names in its first line or not; an ``.npy`` file of a matrix; or
        columns of the release's ``.csv`` file.

    Returns
    -------
    tuple of list of str and ndarray (n, d)

    Raises
    ------
    BadInput
        If there is no such file or column, or it does not hold a matrix of numbers.
    """
    path = args.features
    releases = args.release if isinstance(args.release, list) else [args.release]
    if path.suffix not in (*CSV, ".npy") and len(releases) == 1 and releases[0].suffix in CSV:
        table = Table(releases[0])
        names = table.columns([str(path)])
        return names, table.matrix(names)
    if path.suffix not in (*CSV, ".npy"):
        raise BadInput(f"--features must be a .csv or .npy file, or columns of a .csv file of labels; got {path}")
    if not path.is_file():
        raise BadInput(f"--features: no file {path}")
    try:
        names, matrix = _numpy_file(path) if path.suffix == ".npy" else _csv_file(path)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--features: {path} is not a matrix of numbers: {error}") from None
    if matrix.ndim != 2 or not matrix.size:
        raise BadInput(f"--features: {path} holds an array of shape {matrix.shape}, not a row a label")
    return names or [f"x[{j}]" for j in range(matrix.shape[1])], matrix


def _numpy_file(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    return [], np.asarray(np.load(path, allow_pickle=False), float)


def _csv_file(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    table = Table(path, headless=True)
    if not all(table.names):
        raise BadInput(
            f"--features: column {table.names.index('') + 1} of {path} has no name: an index, as pandas writes one? "
            "Leave it out (to_csv(index=False)), or name it"
        )
    return table.names, table.matrix(table.names)
