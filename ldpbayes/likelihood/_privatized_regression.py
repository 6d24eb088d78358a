"""The former name of the law of released rows of a regression."""

import warnings
from collections.abc import Callable
from typing import Any

import numpyro.distributions as dist

from ldpbayes.likelihood._privatized import Privatized
from ldpbayes.likelihood.closed_forms import RegressionRows
from ldpbayes.mechanisms import Additive

__all__ = ["PrivatizedRegression"]


def PrivatizedRegression(
    covariates: dist.MultivariateNormal,
    response: Callable[[Any], dist.Distribution],
    slopes: Any,
    mechanism: Additive,
    intercept: Any = 0.0,
    *,
    scales: int = 24,
    nodes: int = 7,
    validate_args: bool | None = None,
) -> Privatized:
    """Deprecated: ``Privatized(RegressionRows(covariates, response, slopes, intercept, place=...), mechanism)``.

    Parameters
    ----------
    covariates, response, slopes, intercept, scales, nodes
        Of `RegressionRows`; the place of the response is the column that is not perturbed.
    mechanism, validate_args
        Of `Privatized`.
    """
    warnings.warn(
        "PrivatizedRegression(...) is now Privatized(RegressionRows(...), mechanism), and observe takes RegressionRows",
        DeprecationWarning,
        stacklevel=2,
    )
    others = [j for j in range(mechanism.record_shape[0]) if j not in mechanism.index] if mechanism.record_shape else []
    if len(others) != 1:
        raise ValueError(f"mechanism must perturb all columns but one, the response; got {mechanism}")
    rows = RegressionRows(covariates, response, slopes, intercept, place=others[0], scales=scales, nodes=nodes)
    return Privatized(rows, mechanism, validate_args=validate_args)
