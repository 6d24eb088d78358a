"""The commands that estimate: bootstrap and regress; tables of posteriors."""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ldpbayes.cli._csv import CSV, Table
from ldpbayes.cli._input import BadInput
from ldpbayes.cli._releases import Named, load_release
from ldpbayes.inference import arviz_

if TYPE_CHECKING:
    from ldpbayes.bootstrap import BootstrapEstimate
    from ldpbayes.learning import LinearPredictor


OPTIONS = ("lower", "upper", "trials", "categories", "scale", "concentration")
FAMILIES = {
    "bernoulli": "Bernoulli",
    "beta": "Beta",
    "binomial": "Binomial",
    "exponential": "Exponential",
    "gamma": "Gamma",
    "gamma_rate": "GammaRate",
    "gaussian": "Gaussian",
    "gaussian_mean": "GaussianMean",
    "multinomial": "Multinomial",
    "multivariate_normal": "MultivariateNormal",
    "poisson": "Poisson",
}
WHOLE = {"trials", "categories"}


def bootstrapped(args: argparse.Namespace) -> "BootstrapEstimate":
    """The estimate that the command prints.

    Parameters
    ----------
    args : argparse.Namespace
        What was typed.

    Raises
    ------
    BadInput
        If the release is none, or none of the family with these bounds and this count, or an option is wrong.
    """
    from ldpbayes import bootstrap

    release = load_release(args)
    try:
        estimator = _estimator(args, release.mechanism)
        made = bootstrap.parametric_bootstrap(
            estimator,
            release,
            draws=args.draws,
            seed=args.seed,
            kind=args.kind,
            correction=bootstrap.Matched() if args.match else None,
        )
        made.interval(args.level)  # so that a level for which there are too few draws is bad input
        return made
    except (TypeError, ValueError) as error:
        raise BadInput(f"{args.release}: {error}") from None


def _estimator(args: argparse.Namespace, mechanism: Any) -> Any:
    from ldpbayes import bootstrap
    from ldpbayes.bootstrap.regression import RegressionMoments

    given = {name: value for name in OPTIONS if (value := getattr(args, name)) is not None}
    if args.family == "least_squares":
        _only(args.family, given, {"lower", "upper"})
        rows = RegressionMoments(**{"lower": None, "upper": None} | given)
        return bootstrap.LeastSquares(rows, mechanism, args.count, intercept=not args.no_intercept)
    if args.family not in FAMILIES:
        known = ", ".join([*FAMILIES, "least_squares"])
        raise BadInput(f"--family must be one of {known}, got {args.family!r}")
    family = getattr(bootstrap, FAMILIES[args.family])
    fields = {field.name: field for field in dataclasses.fields(family) if field.init}
    _only(args.family, given, set(fields))
    needed = [f"--{name}" for name, field in fields.items() if field.default is dataclasses.MISSING]
    lacking = [name for name in needed if name[2:] not in given]
    if lacking:
        raise BadInput(f"--family {args.family} needs {' and '.join(lacking)}")
    whole = {name: int(value) if name in WHOLE and value == int(value) else value for name, value in given.items()}
    return bootstrap.SufficientStatistics(family(**whole), mechanism, args.count, args.account_for_clamping)


def _only(family: str, given: dict[str, Any], allowed: set[str]) -> None:
    beyond = [f"--{name}" for name in given if name not in allowed]
    if beyond:
        raise BadInput(f"--family {family} has no {' and '.join(beyond)}")


LAWS = ("bernoulli", "laplace", "log_normal", "normal", "poisson")
"""Laws of labels that ``--law`` may name: functions of `ldpbayes.learning`, whose names end with ``_labels``."""


def regressed(args: argparse.Namespace) -> "LinearPredictor":
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
        objective = learning.MarginalLikelihood(getattr(learning, f"{args.law}_labels"))
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


AXES = {"hierarchical": ("group",), "regional_histograms": ("region", "category"), "oue_histogram": ("category",)}
"""By model, what the axes of ``theta`` are called."""
GROUPED = {name: axes[0] for name, axes in AXES.items() if axes[0] != "category"}
"""Models of several releases, and what their plates of them are called."""
INNER = {"regional_histograms": {"offset"}}
"""By model, sites that are coordinates of the sampler only, and no parameters."""
SHOWN = 8


def few(lines: Iterable[str]) -> str:
    """The first lines, and how many others there are.

    Parameters
    ----------
    lines : iterable of str
        All of them.
    """
    every = list(lines)
    beyond = len(every) - SHOWN
    return "\n".join(every[:SHOWN] + [f"... and {beyond:,} more"] * (beyond > 0))


def place_names(model: str, releases: Sequence[Named], levels: Sequence[str]) -> dict[str, Any]:
    """Arguments ``dims`` and ``coords`` of `ldpbayes.fit`: groups and categories are called by their words.

    Parameters
    ----------
    model : str
        What the user gave as ``--model``.
    releases : sequence of Named
        That the model is given.
    levels : sequence of str
        Words for the first categories; those without have their codes.
    """
    axes: Sequence[str] = AXES.get(model, ())
    coords: dict[str, list[str]] = {}
    if model in GROUPED:
        words = [release.word for release in releases]
        coords[GROUPED[model]] = words if len(set(words)) == len(words) else [release.name for release in releases]
    if "category" in axes and levels:
        count = getattr(releases[0].release.mechanism, "categories", 0)
        coords["category"] = [*levels, *map(str, range(len(levels), count))][:count]
    return {"dims": {"theta": list(axes)}, "coords": coords} if coords else {}


def summary(result: Any, model: str) -> str:
    """The table of a posterior, without sites that are no parameters.

    Parameters
    ----------
    result : arviz.InferenceData or xarray.DataTree
        What `ldpbayes.fit` returned.
    model : str
        What the user gave as ``--model``.
    """
    shown = [name for name in result["posterior"].data_vars if name not in INNER.get(model, ())]
    with np.errstate(invalid="ignore"):  # a parameter that never changes has no effective sample size
        return arviz_.summary(result, shown)
