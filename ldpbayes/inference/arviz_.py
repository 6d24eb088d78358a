"""ArviZ 0.23 and 1.x: all differences between these versions that the package has to know."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def arviz() -> Any:
    """ArviZ, imported without its warning that it is being refactored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as az
    return az


def from_groups(groups: Mapping[str, Any], dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any]) -> Any:
    """Groups of arrays as InferenceData in ArviZ 0.23, as an xarray.DataTree in 1.x."""
    from_dict = arviz().from_dict
    if "posterior" in inspect.signature(from_dict).parameters:
        return from_dict(**groups, dims=dims, coords=coords)
    return from_dict(groups, dims=dims, coords=coords)


def with_draws(result: Any, group: str, draws: np.ndarray) -> None:
    """Number the draws of a group, in place."""
    if callable(result.groups):
        result.assign_coords(draw=draws, groups=group, inplace=True)
    else:
        result[group].dataset = result[group].to_dataset().assign_coords(draw=draws)


def group_names(result: Any) -> set[str]:
    """Names of the groups of a result."""
    return set(result.groups()) if callable(result.groups) else {name.strip("/") for name in result.groups}


def dataset(group: Any) -> Any:
    """A group as an xarray.Dataset."""
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def psislw(log_ratios: np.ndarray) -> tuple[np.ndarray, Any]:
    """Pareto-smoothed log weights of log ratios, and the shape of their tail; ArviZ 0.23 writes into the ratios."""
    az = arviz()
    if hasattr(az, "psislw"):
        return az.psislw(log_ratios)
    from arviz_stats.base import array_stats

    return array_stats.psislw(-log_ratios)  # which takes ratios with the opposite sign


def summary(result: Any, names: Sequence[str]) -> str:
    """Table of some sites of a posterior, with highest-density intervals of 95 %."""
    az = arviz()
    is_old = "hdi_prob" in inspect.signature(az.summary).parameters
    interval = {"hdi_prob": 0.95} if is_old else {"ci_prob": 0.95, "ci_kind": "hdi"}
    return az.summary(result, var_names=list(names), **interval).to_string()
