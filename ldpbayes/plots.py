"""Plots of posteriors, releases, trade-off curves, bootstrap replicates and studies.

Every function draws on Matplotlib axes ``ax``, by default the current axes, and returns them. Colour-blind readers can
distinguish the colours (palette of Okabe and Ito).
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import FINITE_NUMBERS, ONE_INSIDE_0_1, checked, require
from ldpbayes._core.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ldpbayes.bootstrap import BootstrapEstimate
    from ldpbayes.data import Release
    from ldpbayes.privacy import Guarantee, Tradeoff
    from ldpbayes.studies import CalibrationStudy, SurveyDesign

__all__ = [
    "COLOURS",
    "plot_areas",
    "plot_calibration",
    "plot_density",
    "plot_design",
    "plot_intervals",
    "plot_release",
    "plot_replicates",
    "plot_shares",
    "plot_tradeoffs",
]

#: Colours of the analyses in pictures, as hexadecimal codes, for example ``COLOURS["naive"]``.
COLOURS = {"naive": "#D55E00", "noise-aware": "#0072B2", "non-private": "#4D4D4D"}
_GREY = COLOURS["non-private"]
MAX_LABELS = 60  # areas that are labelled at most
FENCE_RANGES = 3.0  # interquartile ranges beyond the quartiles, where values do not stretch the axis (Tukey's fence)
_MORE_COLOURS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINE_COLOURS = COLOURS["noise-aware"], COLOURS["naive"], *_MORE_COLOURS


def __dir__() -> list[str]:
    """Public names, so that completion with Tab does not show imports."""
    return sorted(__all__)


def plot_intervals(
    estimates: Mapping[str, Mapping[str, ArrayLike]],
    *,
    reference: ArrayLike | None = None,
    level: float = 0.95,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot posterior means and equal-tailed intervals of a number, for several groups (rows) and analyses (colours).

    Parameters
    ----------
    estimates : mapping of str to mapping of str to array_like
        ``{group: {analysis: draws}}``, where ``draws`` is an array of any shape, with posterior draws of the number.
        The first group is at the top.
    reference, level, ax
        Posterior draws in a reference analysis, shown by a grey line and band, the probability of the intervals, and
        the axes.
    """
    ax = _axes(ax, "top", "right", "left")
    analyses = list(dict.fromkeys(name for group in estimates.values() for name in group))
    colours = _colours(analyses)
    offsets = {name: 0.34 * (i - (len(analyses) - 1) / 2) for i, name in enumerate(analyses)}
    above: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
    if reference is not None:
        mean, low, high = _interval(np.ravel(reference), level)
        ax.axvspan(low, high, color=_GREY, alpha=0.18, linewidth=0)
        ax.axvline(mean, color=_GREY, linewidth=1)
        ax.annotate("non-private", (mean, 1), (0, 3), xycoords=("data", "axes fraction"), color=_GREY, **above)
    unlabelled = set(analyses)
    for row, group in enumerate(estimates.values()):
        for name, draws in group.items():
            mean, low, high = _interval(np.ravel(draws), level)
            y = row + offsets[name]
            ax.plot([low, high], [y, y], color=colours[name], linewidth=2.5, solid_capstyle="butt")
            ax.plot(mean, y, "o", color=colours[name], markersize=6)
            if name in unlabelled:
                unlabelled.remove(name)
                place, distance = (above | {"va": "top"}, -7) if offsets[name] > 0 else (above, 7)
                ax.annotate(name, (mean, y), (0, distance), color=colours[name], bbox=box, **place)
    ax.set_yticks(range(len(estimates)), list(estimates))
    ax.set_ylim(len(estimates) - 0.45, -0.65)
    ax.tick_params(axis="y", length=0)
    return ax


def plot_shares(
    x: ArrayLike,
    shares: Mapping[str, Any],
    *,
    truth: ArrayLike | None = None,
    level: float = 0.95,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot estimated probabilities of k values, with intervals, for one or several analyses.

    Parameters
    ----------
    x : array_like (k,)
        The values, such as codes of categories. The difference between neighbouring values is 1.
    shares : mapping of str to array_like (..., k) or FrequencyEstimate
        For each analysis: posterior draws of the k probabilities, shown with equal-tailed intervals, or a point
        estimate from `ldpbayes.frequencies`, with its confidence intervals if there are standard errors.
    truth, level, ax
        True probabilities (k,), shown as grey marks, posterior probability or coverage of the intervals, and the axes.
    """
    ax = _axes(ax, "top", "right")
    colours, x = _colours(list(shares)), np.asarray(x, float)
    k = f"the {len(x)} values of x"
    if truth is not None:
        ax.hlines(truth, x - 0.4, x + 0.4, color=_GREY, linewidth=1, label="truth")
    for i, (name, estimate) in enumerate(shares.items()):
        at = x + 0.3 * (i - (len(shares) - 1) / 2)
        if _is_estimate(estimate):
            centre = estimate.estimate
            low, high = (centre, centre) if estimate.standard_error is None else estimate.interval(level)
        else:
            centre, low, high = _interval(_draws(f"shares[{name!r}]", estimate, len(x), k), level)
        ax.vlines(at, low, high, color=colours[name], linewidth=2)
        ax.plot(at, centre, "o", color=colours[name], markersize=3.5, label=name)
    return _with_legend(ax)


def plot_density(
    x: ArrayLike,
    curves: Mapping[str, Any],
    *,
    release: "Release | None" = None,
    truth: ArrayLike | None = None,
    level: float = 0.95,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot densities or cdfs with two bands: a dark band for each point, and a lighter band for all points together.

    Each band contains the curve, at a point or at all points together, with the posterior probability ``level``. The
    lighter band is mean ± c sd, cut at 0, with the posterior standard deviation sd at a point, and one number c for all
    points.

    Parameters
    ----------
    x : array_like (k,)
        The points at which the curves are known, in the unit of the data, in increasing order.
    curves : mapping of str to array_like (..., k) or Estimate
        For each analysis: posterior draws of the curve, as from `ldpbayes.predict` with
        ``kind=ldpbayes.functionals.density(x)``, or an estimate, as from the method ``of`` of a `DensityEstimate`.
    release, truth, ax
        A release of numbers, whose histogram is shown between the first and the last point, where the area of a bar is
        the share of the released numbers in its bin; the true curve (k,), shown as a grey line; and the axes.
    """
    x, level = np.asarray(checked("x", x, *FINITE_NUMBERS)), checked("level", level, *ONE_INSIDE_0_1)
    if x.ndim != 1 or np.any(np.diff(x) <= 0):
        raise ValueError(f"x must be increasing points of shape (k,), got shape {x.shape}: {x}")
    draws = {name: _curves(f"curves[{name!r}]", curve, len(x)) for name, curve in curves.items()}
    ax, colours = _axes(ax, "top", "right"), _colours(list(draws))
    if truth is not None:
        ax.plot(x, _curves("truth", truth, len(x)).T, color=_GREY, linewidth=1, label="truth")
    if release is not None:
        if np.ndim(release.values) != 1:
            raise ValueError(f"release must hold released numbers, got values of shape {np.shape(release.values)}")
        whole = release.mechanism.support.is_discrete
        bins = np.arange(np.ceil(x[0]) - 0.5, x[-1] + 1) if whole else np.linspace(x[0], x[-1], 61)
        counts, edges = np.histogram(release.values, bins)
        heights = counts / (len(release) * np.diff(edges))
        ax.stairs(heights, edges, color="#999999", linewidth=0.8, label="released, with noise")
    for name, of_curve in draws.items():
        (mean, *pointwise), sd = _interval(of_curve, level), of_curve.std(axis=0)
        reach = np.quantile(np.max(np.abs(of_curve - mean) / np.where(sd > 0, sd, 1.0), axis=1), level) * sd
        ax.plot(x, mean, color=colours[name], linewidth=1.5, label=name)
        for where, ends, alpha in (("all points", (mean - reach, mean + reach), 0.15), ("a point", pointwise, 0.3)):
            label = f"{100 * level:g}% at {where}" if name == next(iter(draws)) else None
            ax.fill_between(x, *np.maximum(ends, 0), color=colours[name], alpha=alpha, linewidth=0, label=label)
    ax.set_ylim(bottom=0)
    return _with_legend(ax)


def plot_areas(
    raw: ArrayLike,
    population: ArrayLike,
    *,
    table: ArrayLike | None = None,
    labels: Sequence[str] | None = None,
    level: float = 0.9,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the released rates of areas and posterior intervals, a row for each area, by the posterior mean.

    If there are more than 60 areas, only some are labelled, at equal distances. Released rates far from all others (by
    more than 3 interquartile ranges) are triangles at the edge of the picture.

    Parameters
    ----------
    raw : array_like (areas,)
        Released rates: noisy counts divided by exposures (such as numbers of people), or NaN if no count was reported.
    population : array_like (..., areas)
        Posterior draws of the rates in the population, such as the site ``rate`` of `ldpbayes.models.small_areas`. An
        xarray array may have its axes ``chain`` and ``draw``, or ``sample``, in any order. Raises ValueError if the
        last of the other axes is not the axis of areas.
    table : array_like (..., areas), optional
        Posterior draws of the rates in the table before noise: draws of `ldpbayes.tables.true_table`, divided by
        exposures.
    labels, level, ax
        Names of the areas (by default the coordinates of an xarray array), posterior probability of the equal-tailed
        intervals, and the axes.
    """
    ax = _axes(ax, "top", "right", "left")
    raw, population = np.asarray(raw, float), _draws_first(population)
    if labels is None:
        coords, dims = getattr(population, "coords", {}), getattr(population, "dims", ("",))  # of xarray
        labels = [*map(str, np.asarray(coords[dims[-1]]))] if dims[-1] in coords else []
    areas = len(raw), f"the {len(raw)} areas of raw"
    draws = _draws("population", population, *areas)
    order = np.argsort(draws.mean(axis=0))
    row, height, raw = np.arange(len(raw)), min(6.0, 300.0 / len(raw)), raw[order]  # points
    mean, low, high = _interval(draws[:, order], level)
    ends = [raw, low, high]
    if table is not None:
        of_table = _draws("table", table, *areas)[:, order]  # of ratios some may not exist
        sides = np.nanquantile(of_table, [(1 - level) / 2, (1 + level) / 2], axis=0)
        ax.hlines(row, *sides, color=COLOURS["naive"], alpha=0.35, linewidth=height, label="the table, before noise")
        ends += [*sides]
    ax.hlines(row, low, high, color=COLOURS["noise-aware"], linewidth=height / 3, label="the population")
    ax.plot(mean, row, "o", color=COLOURS["noise-aware"], markersize=height / 1.5)
    quartiles = np.nanquantile(np.concatenate(ends), [0.25, 0.75])
    near = np.clip(np.concatenate(ends), *quartiles + FENCE_RANGES * np.diff(quartiles) * [-1, 1])
    left, right = np.nanmin([*near, *low]), np.nanmax([*near, *high])
    ax.set_xlim(left - 0.05 * (right - left), right + 0.05 * (right - left))
    ax.plot(raw, row, "|", color=_GREY, markersize=1.5 * height, label="released")
    for marker, beyond, end in (("<", raw < left, left), (">", raw > right, right)):
        ax.plot(np.full(beyond.sum(), end), row[beyond], marker, color=_GREY, markersize=height)
    shown = row[:: -(-len(row) // MAX_LABELS)] if len(labels) else row[:0]
    ax.set_yticks(shown, [labels[order[place]] for place in shown])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-1, len(raw))
    return _with_legend(ax, "lower right")


def plot_release(release: "Release", *, bins: Array = 60, ax: "Axes | None" = None) -> "Axes":
    """Plot a histogram of the released numbers of a release, and mark the range between the clipping bounds.

    Parameters
    ----------
    release, bins, ax
        A release of numbers, the number of bins or their edges, as in ``numpy.histogram``, and the axes.
    """
    ax = _axes(ax, "top", "right")
    ax.hist(np.asarray(release.values), bins=bins, color="#999999")
    domain: Any = release.mechanism.domain
    low, high = float(np.min(domain.lower_bound)), float(np.max(domain.upper_bound))
    ax.axvspan(low, high, color=COLOURS["noise-aware"], alpha=0.25, linewidth=0)
    ax.set(xlabel="released value", ylabel="records")
    return ax


def plot_tradeoffs(
    curves: "Mapping[str, Tradeoff | Guarantee]", *, envelopes: "Sequence[Tradeoff]" = (), ax: "Axes | None" = None
) -> "Axes":
    """Plot trade-off curves: for each rate of false alarms, the smallest possible rate of missed detections of an
    attacker who tries to tell two possible values of a record apart.

    Parameters
    ----------
    curves : mapping of str to Tradeoff or Guarantee
        The curves by their labels in the legend. Each curve is for one budget.
    envelopes, ax
        Further curves, such as results of `ldpbayes.privacy.approximate_tradeoff`, drawn as thin grey lines, and the
        axes.
    """
    from ldpbayes.privacy import Guarantee

    ax = _axes(ax, "top", "right")
    alpha = np.concatenate([[0.0], np.geomspace(1e-5, 0.02, 60), np.linspace(0.02, 1, 240)[1:]])
    ax.plot([0, 1], [1, 0], color=_GREY, linewidth=1, linestyle=":", label="no information")
    for envelope in envelopes:
        ax.plot(alpha, envelope(alpha), color=_GREY, linewidth=0.8)
    for (name, curve), colour in _coloured(curves.items()):
        tradeoff = curve.tradeoff if isinstance(curve, Guarantee) else curve
        ax.plot(alpha, tradeoff(alpha), color=colour, linewidth=2, label=name)
    ax.set_aspect("equal")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="false alarms (type I error)", ylabel="misses (type II error)")
    return _with_legend(ax)


def plot_design(
    plan: "SurveyDesign",
    name: str,
    counts: Sequence[int] = (1_000, 10_000),
    *,
    level: float = 0.95,
    delta: float = 0.0,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the widths of confidence intervals against the privacy budget ε: a colour and line for each class of
    mechanisms, and a style of line for each number of people.

    Parameters
    ----------
    plan, name : SurveyDesign and str
        A plan made by `ldpbayes.studies.design`, and the parameter or functional that is estimated: one of
        ``plan.names``. Raises ValueError for another name.
    counts : sequence of int
        Numbers of people in the survey, at most four numbers.
    delta : float
        The δ for which ε is computed, unless a mechanism states its own δ. Raises ValueError if a mechanism has no
        finite ε for this δ.
    level, ax
        Coverage of the intervals, and the axes.
    """
    if name not in plan.names:
        raise ValueError(f"name must be one of {', '.join(plan.names)}, got {name!r}")
    ax, kinds = _axes(ax, "top", "right"), dict[str, list[tuple[float, str]]]()
    for label, mechanism in plan.mechanisms.items():
        stated = mechanism.guarantee.stated_delta
        epsilon = float(np.max(mechanism.guarantee.epsilon(delta if stated is None else stated)))
        if not np.isfinite(epsilon):
            raise ValueError(f"{label} has no finite epsilon at delta = {delta:g}; give another delta")
        kinds.setdefault(type(mechanism).__name__.removesuffix("Mechanism"), []).append((epsilon, label))
    tables = {count: {(r["mechanism"], r["name"]): r["width"] for r in plan.table(count, level)} for count in counts}
    styles = dict(zip(counts, ("-", "--", ":", "-."), strict=False))
    for (kind, points), colour in _coloured(kinds.items()):
        points.sort()
        budgets = [epsilon for epsilon, _ in points]
        for count, style in styles.items():
            widths = [tables[count][label, name] for _, label in points]
            shown = kind if count == counts[0] else None
            ax.plot(budgets, widths, color=colour, linestyle=style, marker="o", markersize=3.5, label=shown)
    for count, style in styles.items():
        ax.plot([], [], color=_GREY, linestyle=style, label=f"{count:,} people")
    ax.set(xscale="log", yscale="log", xlabel="ε", ylabel=f"width of {100 * level:g} % intervals of {name}")
    ticks = sorted({epsilon for points in kinds.values() for epsilon, _ in points})
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    return _with_legend(ax)


def plot_calibration(
    study: "CalibrationStudy", names: Sequence[str] | None = None, *, confidence: float = 0.99, ax: "Axes | None" = None
) -> "Axes":
    """Plot the result of a calibration study: one curve for each parameter, and a band for calibrated posteriors.

    A curve is the empirical cdf of the PIT values (see `CalibrationStudy`) of one parameter, minus the uniform cdf. If
    posteriors are calibrated, the curve is in the band. Other curves mean:

    - Above the band on the left and below it on the right: the posteriors are too narrow.
    - Below the band on the left and above it on the right: the posteriors are too wide.
    - Above the band everywhere: the posteriors lie too far to the right (too large values).

    Parameters
    ----------
    study, names : CalibrationStudy and sequence of str
        A study made by `ldpbayes.studies.sbc`, and the parameters to show, by default all. Raises ValueError for
        unknown names.
    confidence, ax
        Probability with which the whole curve of one parameter lies in the band, if posteriors are calibrated, and the
        axes.
    """
    unknown = [name for name in names or () if name not in study.pit]
    if unknown:
        raise ValueError(f"names must be among {', '.join(study.pit)}, got {unknown[0]!r}")
    ax, (points, low, high) = _axes(ax, "top", "right"), study.band(confidence)
    least, most = (np.pad(end - points, 1) for end in (low, high))
    points = np.concatenate([[0.0], points, [1.0]])
    ax.fill_between(points, least, most, color=_GREY, alpha=0.15, linewidth=0, label=f"{100 * confidence:g} % band")
    for name, colour in _coloured(study.pit if names is None else names):
        cdf = np.searchsorted(np.sort(study.pit[name]), points, side="right") / study.replicates
        ax.plot(points, cdf - points, color=colour, label=name)
    ax.axhline(0, color=_GREY, linewidth=0.8)
    ax.set(xlabel="posterior probability below the truth", ylabel="empirical cdf − uniform cdf", xlim=(0, 1))
    ax.set_ylim(top=1.4 * ax.get_ylim()[1])  # room for the legend
    return _with_legend(ax, "upper right")


def plot_replicates(
    estimate: "BootstrapEstimate",
    name: str,
    *,
    level: float = 0.95,
    reference: float | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot a histogram of the bootstrap replicates of one parameter, with the estimate and the confidence interval.

    Parameters
    ----------
    estimate, name : BootstrapEstimate and str
        An estimate made by `ldpbayes.parametric_bootstrap`, and one of ``estimate.names``. Raises ValueError for
        another name.
    reference, level, ax
        Another estimate, such as that from original records, shown as a grey line, the coverage of the interval, and
        the axes.
    """
    if name not in estimate.names:
        raise ValueError(f"name must be one of {', '.join(estimate.names)}, got {name!r}")
    ax, j = _axes(ax, "top", "right", "left"), estimate.names.index(name)
    low, high = (end[j] for end in estimate.interval(level))
    draws, colour = estimate.draws[:, j], COLOURS["noise-aware"]
    ax.hist(draws[np.isfinite(draws)], bins="fd", density=True, color=colour, alpha=0.35, label="replicates")
    ax.axvspan(low, high, ymax=0.04, color=colour, linewidth=0, label=f"{level:.0%} interval")
    ax.axvline(estimate.params[j], color=colour, linewidth=2, label="estimate")
    if reference is not None:
        ax.axvline(reference, color=_GREY, linewidth=1, linestyle="--", label="non-private")
    ax.set(xlabel=name, yticks=[])
    return _with_legend(ax)


def _interval(draws: np.ndarray, level: float) -> np.ndarray:
    """Mean and equal-tailed interval of the draws along the first axis."""
    return np.stack([draws.mean(axis=0), *np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)])


def _is_estimate(value: Any) -> bool:
    from ldpbayes.estimation import Estimate  # importing this takes a second, and draws do not need it

    return isinstance(value, Estimate)


def _curves(name: str, curve: Any, points: int) -> np.ndarray:
    """Draws (draws, points) of a curve, of an estimate by its normal law."""
    if _is_estimate(curve):
        law = np.zeros(len(curve.params)), curve.covariance
        moves = np.random.default_rng(0).multivariate_normal(*law, 4000, check_valid="ignore")
        curve = curve.params + np.concatenate([moves, -moves])  # so that the estimate is the mean
    return _draws(name, checked(name, _draws_first(curve), *FINITE_NUMBERS), points, f"the {points} points of x")


def _draws_first(draws: Any) -> Any:
    """An array whose axes have names, with the axes of draws in front: ``az.extract`` puts them last."""
    return draws.transpose("chain", "draw", "sample", ..., missing_dims="ignore") if hasattr(draws, "dims") else draws


def _draws(name: str, draws: Any, size: int, what: str) -> np.ndarray:
    draws = np.asarray(_draws_first(draws))
    if draws.shape[-1:] != (size,):
        raise ValueError(f"{name} must have {what} along the last axis, got shape {draws.shape}")
    return draws.reshape(-1, size)


def _coloured(items: Iterable) -> Iterator[tuple[Any, str]]:
    return zip(items, itertools.cycle(_LINE_COLOURS), strict=False)


def _colours(names: Sequence[str]) -> dict[str, str]:
    more = itertools.cycle(_MORE_COLOURS)
    return {name: COLOURS[name] if name in COLOURS else next(more) for name in names}


def _axes(ax: "Axes | None", *without: str) -> "Axes":
    if ax is None:
        require("demo", "matplotlib")
        from matplotlib import pyplot

        ax = pyplot.gca()
    ax.spines[list(without)].set_visible(False)
    return ax


def _with_legend(ax: "Axes", place: Literal["best", "lower right", "upper right"] = "best") -> "Axes":
    ax.legend(frameon=False, loc=place)
    return ax
