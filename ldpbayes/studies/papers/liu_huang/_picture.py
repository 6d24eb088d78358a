"""A picture of errors against the budget, a panel a table, printed figures beside ours."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ldpbayes.studies.papers.liu_huang._tables import Table

__all__ = ["draw_errors"]

PRINTED = (("RPWithPrior", "o", "[LH] RPWithPrior, printed"), ("Laplace", "s", "[LH] Laplace, printed"))
OURS = (
    ("RPWithPrior", ":", "RPWithPrior with a private prior, squared error"),
    ("public range, marginal likelihood, linear", "--", "RPWithPrior, marginal likelihood, linear"),
    ("public range, marginal likelihood, network", "-", "RPWithPrior, marginal likelihood, network"),
)


def draw_errors(tables: Mapping[str, Table], colours: Mapping[str, str]) -> Any:
    """Mean squared error on test records against ε, on logarithmic axes.

    Parameters
    ----------
    tables : mapping of str to Table
        By the title of their panel.
    colours : mapping of str to str
        Of ``noise-aware``, ``naive`` and ``non-private``: `ldpbayes.plots.COLOURS`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(tables), 4.6), layout="constrained")
    for axis, (title, table) in zip(np.atleast_1d(figure.subplots(1, len(tables))), tables.items(), strict=True):
        for column, marker, label in PRINTED:
            points = [(e, row[column][0]) for e, row in table.printed.items() if np.isfinite(e) and e >= 0.3]
            axis.plot(*zip(*points, strict=True), marker, color=colours["naive"], fillstyle="none", label=label)
        for column, style, label in OURS:
            points = [(e, table.mean(e, name)) for e, name in table.errors if name == column and 0.3 <= e < np.inf]
            if points:
                colour = colours["naive" if column == "RPWithPrior" else "noise-aware"]
                axis.plot(*zip(*points, strict=True), style, color=colour, label=label)
        not_private = table.printed[np.inf]["Laplace"][0]
        axis.axhline(not_private, color=colours["non-private"], linewidth=1, label="[LH] without privacy, printed")
        axis.set(xscale="log", yscale="log", title=title, xlabel="ε", ylabel="mean squared error of test labels")
        ticks = [e for e in table.printed if 0.3 <= e < np.inf]
        axis.set_xticks(ticks, [f"{e:g}" for e in ticks])
        axis.minorticks_off()
        low, high = axis.get_ylim()
        marks = [mark for power in range(-3, 2) for mark in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
        marks = [mark for mark in marks if low < mark < high]
        axis.set_yticks(marks, [f"{mark:g}" for mark in marks])
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure
