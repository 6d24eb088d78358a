"""Scores of intervals (coverage with its band and verdict, tails, widths, bias), and their tables and picture."""

import math

import numpy as np
from scipy.stats import binom

from reproductions.ferrando_wang_sheldon.trials import LEVEL

MARKS = {"inside": " ", "below": "-", "above": "+"}
CURVE = ("setting", "parameter", "epsilon", "count", "threshold", "method")
SHARES = ("coverage", "left", "right", "outside")
ACROSS = {"bias correction": "threshold", "budgets": "epsilon"}
"""The axis of a part's curves, where it is not the number of records."""
APART = ("bias correction",)
"""Parts in which every setting has its own points."""


def scores(label, names, truth, ends, fisher=None):
    """Rows of a method, one a parameter with intervals: estimates, lower and upper ends (trials, p), ends of `fisher`.

    ``low`` and ``high`` are the ends of the 99 % binomial band of the ``coverage``, on which the ``verdict`` is;
    ``left`` and ``right`` are shares of intervals above and below the truth; ``relative_width`` is a ratio to `fisher`.
    """
    rows = []
    for j, name in enumerate(names):
        estimate, low, high = (np.asarray(part)[:, j] for part in ends)
        if np.isnan(low).all():
            continue
        size, miss = len(estimate), estimate - truth[j]
        left, right = int(np.sum(low > truth[j])), int(np.sum(high < truth[j]))
        covered = size - left - right
        least, most = map(float, binom.interval(0.99, size, LEVEL))
        rows.append(
            label
            | {"parameter": name, "coverage": covered / size, "low": least / size, "high": most / size}
            | {"verdict": "below" if covered < least else "above" if covered > most else "inside"}
            | {"left": left / size, "right": right / size, "width": float(np.mean(high - low))}
            | {"bias": float(np.mean(miss)), "bias_error": float(np.std(miss) / np.sqrt(size))}
            | {"rmse": float(np.sqrt(np.mean(miss**2)))}
        )
        if fisher is not None:
            rows[-1]["relative_width"] = float(np.mean(high - low) / np.mean((fisher[2] - fisher[1])[:, j]))
    return rows


def table(rows, value="coverage"):
    """Rows of a figure as text: a curve a line, the parts of a figure below one another."""
    parts = {}
    for row in rows:
        part = row.get("part")
        parts.setdefault((part, row["setting"] if part in APART else None), []).append(row)
    return "\n\n".join(_part(of_part, value) for of_part in parts.values())


def _part(rows, value):
    part = rows[0].get("part")
    across = ACROSS.get(str(part), "count")
    curve = [key for key in CURVE if key in rows[0] and key != across]
    points = sorted({row[across] for row in rows})
    lines = {}
    for row in rows:
        text = f"{row[value]:.3f}" if value in SHARES else f"{row[value]:.4g}"
        mark = MARKS[row["verdict"]] if value == "coverage" else ""
        lines.setdefault(tuple(str(row[key]) for key in curve), {})[row[across]] = text + mark
    heads = [[*curve, *(f"{across} {point:g}" if i == 0 else f"{point:g}" for i, point in enumerate(points))]]
    body = [[*line, *(cells.get(point, "") for point in points)] for line, cells in lines.items()]
    widths = [max(len(line[i]) for line in heads + body) for i in range(len(heads[0]))]

    def padded(line):
        pieces = enumerate(zip(line, widths, strict=True))
        return "  ".join(text.ljust(w) if i < len(curve) else text.rjust(w) for i, (text, w) in pieces).rstrip()

    title = [] if part is None else [f"{part}: {value}"]
    return "\n".join([*title, *map(padded, heads + body)])


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


def draw_coverage(rows, colours, *, panels=PANELS, across=4):
    """Coverage against the number of records, on a grey band of what 99 % of exact intervals would have."""
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
