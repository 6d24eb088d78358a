"""A picture of coverage against the number of records, a panel a parameter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["PANELS", "draw_coverage"]

PANELS = (
    ("Bernoulli", "probs"),
    ("binomial", "probs"),
    ("multinomial", "probs[0]"),
    ("Poisson", "rate"),
    ("exponential", "rate"),
    ("gamma, known shape", "rate"),
    ("gamma", "concentration"),
    ("beta", "concentration1"),
    ("Gaussian, known variance", "loc"),
    ("Gaussian", "loc"),
    ("Gaussian", "scale"),
    ("linear regression", "coef[0]"),
)
LINES = {
    "percentile": ("noise-aware", "o", "bootstrap"),
    "private Fisher": ("naive", "s", "Fisher"),
    "Fisher": ("non-private", None, "Fisher, not private"),
}
PRIVATE = ("percentile", "private Fisher")
STYLES = ("-", "--", ":", "-.")


def draw_coverage(
    rows: Sequence[Mapping[str, Any]],
    colours: Mapping[str, str],
    *,
    panels: Sequence[tuple[str, str]] = PANELS,
    across: int = 4,
) -> Any:
    """Coverage against the number of records, on a grey band of what 99 % of exact intervals would have.

    Parameters
    ----------
    rows : sequence of mapping
        From `figure_1`.
    colours : mapping of str to str
        Of ``noise-aware``, ``naive`` and ``non-private``: `ldpbayes.plots.COLOURS`.
    panels : sequence of (str, str)
        Settings and parameters; those without rows are left out.
    across : int
        Number of panels beside one another.

    Returns
    -------
    matplotlib.figure.Figure
        Full lines are of the first budget, broken ones of the second.
    """
    from matplotlib.figure import Figure

    drawn = [panel for panel in panels if any((row["setting"], row["parameter"]) == panel for row in rows)]
    down = math.ceil(len(drawn) / across)
    figure = Figure(figsize=(2.75 * across, 2.25 * down + 0.6), layout="constrained")
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for ax, (setting, parameter) in zip(axes, drawn, strict=False):
        of_panel = [row for row in rows if (row["setting"], row["parameter"]) == (setting, parameter)]
        ax.axhspan(of_panel[0]["low"], of_panel[0]["high"], color="0.85", linewidth=0)
        ax.axhline(0.95, color="0.5", linewidth=0.6)
        budgets = list(dict.fromkeys(row["epsilon"] for row in of_panel))
        for method, (colour, marker, name) in LINES.items():
            private = method in PRIVATE
            for epsilon, style in zip(budgets if private else budgets[:1], STYLES, strict=False):
                points = [row for row in of_panel if (row["method"], row["epsilon"]) == (method, epsilon)]
                ax.plot(
                    [row["count"] for row in points],
                    [row["coverage"] for row in points],
                    color=colours[colour],
                    linestyle=style,
                    marker=marker,
                    markersize=3,
                    linewidth=1.2,
                    label=f"{name}, ε = {epsilon:g}" if private else name,
                )
        ax.set_xscale("log")
        ax.set_ylim(0.0, 1.03)
        ax.set_title(f"{setting}: {parameter}", fontsize=9)
        ax.tick_params(labelsize=8)
    for ax in axes[len(drawn) :]:
        ax.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8, frameon=False)
    figure.supxlabel("number of records", fontsize=9)
    figure.supylabel("coverage of 95 % intervals", fontsize=9)
    return figure
