"""``ldpbayes bootstrap``: from a release of statistics and the name of a family to an estimate."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from ldpbayes.cli._input import BadInput
from ldpbayes.cli._releases import load_release

if TYPE_CHECKING:
    from ldpbayes.bootstrap import BootstrapEstimate

__all__ = ["bootstrapped"]

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
    from ldpbayes.bootstrap._regression_moments import RegressionMoments

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
