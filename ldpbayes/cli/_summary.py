"""What is printed of a fit: lines about its releases, and the table of its posterior with the names of places in it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ldpbayes.cli._releases import Named
from ldpbayes.inference import arviz_

__all__ = ["GROUPED", "few", "place_names", "summary"]

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
