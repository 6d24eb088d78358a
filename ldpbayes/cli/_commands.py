"""What the commands bootstrap and regress compute, the features of labels, and tables of posteriors."""

import argparse
import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ldpbayes.cli._csv import CSV, Table
from ldpbayes.cli._input import BadInput
from ldpbayes.cli._parser import FAMILY_OPTIONS
from ldpbayes.cli._releases import Named, load_release
from ldpbayes.inference.result import summary_table

if TYPE_CHECKING:
    from ldpbayes.bootstrap import BootstrapEstimate, PrivateEstimator
    from ldpbayes.learning import LinearPredictor

FAMILIES = {
    "bernoulli": "Bernoulli",
    "beta": "Beta",
    "binomial": "Binomial",
    "exponential": "Exponential",
    "gamma": "Gamma",
    "gamma_rate": "GammaRate",
    "gaussian": "Normal",
    "gaussian_mean": "NormalMean",
    "multinomial": "Multinomial",
    "multivariate_normal": "NormalVector",
    "poisson": "Poisson",
}
WHOLE = {"trials", "categories"}  # parameters of families that are integers
AXES = {"hierarchical": ("group",), "regional_histograms": ("region", "category"), "oue_histogram": ("category",)}
"""Names of the axes of ``theta``, by model."""
GROUPED = {name: axes[0] for name, axes in AXES.items() if axes[0] != "category"}
"""Models of several releases, and the name of their plate of releases."""
INNER = {"regional_histograms": {"offset"}}  # sites that are coordinates of the sampler only, and no parameters
LINES = 8  # of notes on releases that are printed


def bootstrapped(args: argparse.Namespace) -> "BootstrapEstimate":
    """The estimate that the command prints."""
    from ldpbayes import bootstrap

    release = load_release(args)
    try:
        estimator = _estimator(args, release.mechanism)
        options = {"draws": args.draws, "seed": args.seed, "kind": args.kind}
        correction = bootstrap.Matched() if args.match else None
        estimate = bootstrap.parametric_bootstrap(estimator, release, correction=correction, **options)
        estimate.interval(args.level)  # so that a level for which there are too few draws is bad input
        return estimate
    except (TypeError, ValueError) as error:
        raise BadInput(f"{args.release}: {error}") from None


def _estimator(args: argparse.Namespace, mechanism: Any) -> "PrivateEstimator":
    from ldpbayes import bootstrap
    from ldpbayes.bootstrap.regression import LeastSquaresEstimator, RegressionMoments
    from ldpbayes.bootstrap.statistics import SufficientStatisticsEstimator

    options = {name: value for name in FAMILY_OPTIONS if (value := getattr(args, name)) is not None}
    if args.family == "least_squares":
        _refuse_others(args.family, options, {"lower", "upper"})
        rows = RegressionMoments(**{"lower": None, "upper": None} | options)
        return LeastSquaresEstimator(rows, mechanism, args.count, intercept=not args.no_intercept)
    if args.family not in FAMILIES:
        raise BadInput(f"--family must be one of {', '.join(FAMILIES)}, least_squares, got {args.family!r}")
    family = getattr(bootstrap, FAMILIES[args.family])
    fields = {field.name: field for field in dataclasses.fields(family) if field.init}
    _refuse_others(args.family, options, set(fields))
    needed = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    if lacking := [f"--{name}" for name in needed if name not in options]:
        raise BadInput(f"--family {args.family} needs {' and '.join(lacking)}")
    values = {name: int(value) if name in WHOLE and value == int(value) else value for name, value in options.items()}
    return SufficientStatisticsEstimator(family(**values), mechanism, args.count, args.account_for_clamping)


def _refuse_others(family: str, options: Iterable[str], allowed: set[str]) -> None:
    if beyond := [f"--{name}" for name in options if name not in allowed]:
        raise BadInput(f"--family {family} has no {' and '.join(beyond)}")


def regressed(args: argparse.Namespace) -> "LinearPredictor":
    """The fit that the command prints."""
    from ldpbayes import learning

    release = load_release(args)
    names, features = load_features(args)
    try:
        objective = learning.MarginalLikelihood(getattr(learning, f"{args.law}_labels"))
        matrix, intercept = NamedMatrix(names, features), not args.no_intercept
        fit = learning.linear_fit(matrix, release, objective=objective, penalty=args.penalty, intercept=intercept)
        fit.interval(args.level)  # so that a level that is none is bad input
        return fit
    except (TypeError, ValueError) as error:
        raise BadInput(f"{args.release}: {error}") from None


class NamedMatrix(np.ndarray):
    """A matrix with names of its columns, like a data frame."""

    columns: list[str]

    def __new__(cls, names: list[str], matrix: np.ndarray) -> "NamedMatrix":
        view = np.asarray(matrix).view(cls)
        view.columns = names
        return view


def load_features(args: argparse.Namespace) -> tuple[list[str], np.ndarray]:
    """Names and values (n, d) of the features that ``--features`` names, a row a label.

    They are in a ``.csv`` file, with or without names, in an ``.npy`` file, or columns of the release's ``.csv`` file.
    """
    path = args.features
    releases = args.release if isinstance(args.release, list) else [args.release]
    if path.suffix not in (*CSV, ".npy"):
        if len(releases) == 1 and releases[0].suffix in CSV:
            table = Table(releases[0])
            names = table.columns([str(path)])
            return names, table.matrix(names)
        raise BadInput(f"--features must be a .csv or .npy file, or columns of a .csv file of labels; got {path}")
    if not path.is_file():
        raise BadInput(f"--features: no file {path}")
    try:
        if path.suffix == ".npy":
            names, matrix = [], np.asarray(np.load(path, allow_pickle=False), float)
        else:
            names, matrix = _named_columns(path)
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--features: {path} is not a matrix of numbers: {error}") from None
    if matrix.ndim != 2 or not matrix.size:
        raise BadInput(f"--features: {path} holds an array of shape {matrix.shape}, not a row a label")
    return names or [f"x[{j}]" for j in range(matrix.shape[1])], matrix


def _named_columns(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    table = Table(path, headless=True)
    if not all(table.names):
        advice = "an index, as pandas writes one? Leave it out (to_csv(index=False)), or name it"
        raise BadInput(f"--features: column {table.names.index('') + 1} of {path} has no name: {advice}")
    return table.names, table.matrix(table.names)


def few(lines: Iterable[str]) -> str:
    """The first lines, and how many others there are."""
    texts = list(lines)
    beyond = len(texts) - LINES
    return "\n".join(texts[:LINES] + [f"... and {beyond:,} more"] * (beyond > 0))


def place_names(model: str, releases: Sequence[Named], levels: Sequence[str]) -> dict[str, Any]:
    """Arguments ``dims`` and ``coords`` of `ldpbayes.fit`: groups and categories are called by their words.

    `levels` are words for the first categories; those without a word have their codes.
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
    """The table of a posterior, without sites that are no parameters."""
    shown = [name for name in result["posterior"].data_vars if name not in INNER.get(model, ())]
    with np.errstate(invalid="ignore"):  # a parameter that never changes has no effective sample size
        return summary_table(result, shown)
