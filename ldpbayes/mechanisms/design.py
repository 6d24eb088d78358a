"""Optimal choices for mechanisms for labels: intervals, bins and unbiased outputs, given a prior of the labels."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ldpbayes._core.checks import FINITE_NUMBERS, NOT_NEGATIVE, ONE_ABOVE_0, ONE_POSITIVE, check_order, checked, refuse
from ldpbayes._core.types import Array, is_concrete


class Histogram(NamedTuple):
    """A histogram: a density that is constant between two neighbouring nodes, and zero outside all nodes.

    Attributes
    ----------
    nodes : array (k + 1,)
        Ends of the k bins, strictly increasing, in the unit of the data, as are all lengths below.
    densities : array (k,)
        Density in each bin, not negative. Functions that take a histogram normalise the densities.
    """

    nodes: np.ndarray
    densities: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of each bin, an array (k,)."""
        return self.densities * np.diff(self.nodes)

    @property
    def cumulative(self) -> np.ndarray:
        """Probability of a value below each node, an array (k + 1,)."""
        return np.append(0.0, np.cumsum(self.probabilities))

    @property
    def midpoints(self) -> np.ndarray:
        """Middle of each bin, an array (k,)."""
        return (self.nodes[1:] + self.nodes[:-1]) / 2

    @property
    def mean(self) -> float:
        """Mean of the density."""
        return float(self.probabilities @ self.midpoints)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the density."""
        squares = (self.midpoints - self.mean) ** 2 + np.diff(self.nodes) ** 2 / 12
        return float(np.sqrt(self.probabilities @ squares))

    def quantiles(self, probabilities: Array) -> np.ndarray:
        """Return the quantiles of the density for `probabilities` in [0, 1]."""
        return np.interp(probabilities, self.cumulative, self.nodes)

    def highest_density_interval(self, probability: float) -> tuple[float, float]:
        """Return the interval that spans the bins of highest density, as many as give it a `probability` in (0, 1]."""
        densities, mass = self.densities, self.cumulative
        highest = np.argsort(-densities)[: np.count_nonzero(densities)]
        # the first and the last bin that the one, two, ... highest span, and the probability from the one to the other
        first, last = np.minimum.accumulate(highest), np.maximum.accumulate(highest)
        spanned = mass[last + 1] - mass[first]
        least = densities[highest[np.argmax(spanned >= min(probability, spanned[-1]))]]
        # densities that differ by rounding count as equal
        bins = np.flatnonzero(densities >= least * (1 - 1e-9))
        return float(self.nodes[bins[0]]), float(self.nodes[bins[-1] + 1])

    def within(self, lower: float, upper: float) -> "Histogram":
        """Return the conditional density, given lower < y < upper; ValueError if this has probability zero."""
        nodes = np.unique(np.clip([lower, *self.nodes, upper], lower, upper))
        densities = np.pad(self.densities, 1)  # with those below and above all nodes
        return checked_histogram((nodes, densities[np.searchsorted(self.nodes, (nodes[1:] + nodes[:-1]) / 2)]))


def increasing(name: str, value: Any, least: int) -> np.ndarray:
    """An increasing array of at least `least` finite numbers, in double precision, or ValueError; a tracer as it is."""
    if not is_concrete(value):
        return value
    value = np.atleast_1d(checked(name, value, *FINITE_NUMBERS))
    if value.ndim != 1 or len(value) < least:
        raise ValueError(f"{name} must be an array of at least {least} numbers, got shape {np.shape(value)}")
    refuse(np.append(False, np.diff(value) <= 0), f"{name} must increase strictly; {{}} do not", value)
    return value


Interval: TypeAlias = tuple[float, float]
IntervalRule: TypeAlias = Callable[[Histogram, float, float], Interval]
HistogramLike: TypeAlias = tuple[ArrayLike, ArrayLike]


def checked_histogram(histogram: HistogramLike) -> Histogram:
    """A pair of nodes and densities as a histogram of float64 arrays that integrates to one, or ValueError."""
    try:
        nodes, densities = histogram
    except (TypeError, ValueError):
        raise ValueError(f"a histogram must be a pair (nodes, densities), got {histogram!r:.60}") from None
    nodes = np.atleast_1d(checked("the histogram's nodes", nodes, *FINITE_NUMBERS))
    densities = np.atleast_1d(checked("the histogram's densities", densities, *NOT_NEGATIVE))
    if nodes.ndim > 1 or densities.shape != (len(nodes) - 1,):
        shapes = f"{nodes.shape} and {densities.shape}"
        hint = "np.histogram returns the nodes last"
        raise ValueError(f"a histogram must have k + 1 nodes and k densities ({hint}), got shapes {shapes}")
    increasing("the histogram's nodes", nodes, 2)
    largest = densities.max()
    if largest == 0:
        raise ValueError("the histogram is degenerate: all its densities are zero")
    # divided by the largest first, so that the sum can neither overflow nor vanish
    densities = densities / largest
    return Histogram(nodes, densities / (densities @ np.diff(nodes)))


GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)  # Gauss-Legendre rule between two cuts
MOST_BINS = 256  # finer histograms are merged to as many bins of equal probability
HALF_WIDTHS_TRIED = 30  # half-widths tried before the best of them is refined
LEAST_HALF_WIDTH = 1e-6  # of the interval: a smaller one would explain 1e-12 more, which is lost in rounding


class HalfWidthDesign(NamedTuple):
    """Result of `optimal_half_width`: ζ, the pair a < b, and the share of a label's variance that is explained."""

    half_width: float
    interval: Interval
    explained: float


def _merged(prior: Histogram) -> Histogram:
    """The histogram, or one with at most `MOST_BINS` bins whose probabilities are its own."""
    if len(prior.densities) <= MOST_BINS:
        return prior
    mass = prior.cumulative
    nodes = np.unique(np.concatenate([prior.quantiles(np.linspace(0, mass[-1], MOST_BINS)), prior.nodes[[0, -1]]]))
    return Histogram(nodes, np.diff(np.interp(nodes, prior.nodes, mass)) / np.diff(nodes))


def explained_variance(histogram: HistogramLike, epsilon: float, interval: Interval, half_width: float) -> float:
    """Return the share of the variance of a label Y that its released value Z under `RPWithPrior` explains.

    It is Var E[Y | Z] / Var Y.

    Parameters
    ----------
    histogram : pair of array_like
        Nodes (k + 1,) and densities (k,) of the prior of a label. More than 256 bins are merged into 256 bins.
    epsilon, interval, half_width
        Budget in nats, interval, and distance ζ, as in `RPWithPrior` with ``outside="projection"``.
    """
    epsilon, half_width = checked("epsilon", epsilon, *ONE_POSITIVE), checked("half_width", half_width, *ONE_POSITIVE)
    return _explained(_merged(checked_histogram(histogram)), epsilon, checked_interval(interval), half_width)


def _explained(prior: Histogram, epsilon: float, interval: Interval, half_width: float) -> float:
    """`explained_variance`, by Gauss-Legendre quadrature between the points where P(Z = z) or its slopes have steps."""
    (nodes, densities), (lower, upper) = prior, interval
    mass, mean = prior.cumulative, prior.mean
    moment = np.concatenate([[0.0], np.cumsum(densities * np.diff((nodes - mean) ** 2) / 2)])

    def below(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < x) and E[(Y − EY) 1{Y < x}]."""
        x = np.clip(x, nodes[0], nodes[-1])
        bin_ = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(densities) - 1)
        density, start = densities[bin_], nodes[bin_]
        first = moment[bin_] + density * (x - start) * ((x + start) / 2 - mean)
        return mass[bin_] + density * (x - start), first

    ends = lower - half_width, upper + half_width
    cuts = np.append(np.add.outer([-half_width, half_width], [*nodes, lower, upper]), (lower + upper) / 2)
    cuts = np.unique(np.clip(cuts, *ends))
    halves = np.diff(cuts)[:, None] / 2
    z = ((cuts[1:] + cuts[:-1])[:, None] / 2 + halves * GAUSS_NODES).ravel()
    weights = (halves * GAUSS_WEIGHTS).ravel()
    # a label at or beyond the interval's end is near to z where that end is
    high = below(np.where(z + half_width >= upper, np.inf, z + half_width))
    low = below(np.where(z - half_width <= lower, -np.inf, z - half_width))
    keep, more = np.exp(-epsilon), -np.expm1(-epsilon)
    density = keep + more * (high[0] - low[0])
    covariance = more * (high[1] - low[1])
    total = 2 * half_width + keep * (upper - lower)
    # rounding must not make it larger than 1
    return min(float(weights @ (covariance**2 / density) / total / prior.standard_deviation**2), 1.0)


def optimal_half_width(
    histogram: HistogramLike, epsilon: float, *, interval: Interval | IntervalRule | None = None
) -> HalfWidthDesign:
    """Return the half-width ζ of `RPWithPrior` with the largest explained variance of the labels under a prior.

    This is Var E[Y | Z] / Var Y for a label Y that is released as Z with ``outside="projection"`` ([LH] chooses ζ by
    hand). Values of ζ near the maximum are nearly as good. Do not choose the interval by the same criterion: it would
    shrink to a point, which raised the test error of a linear model by 12 % to 67 % on two public data sets. Use the
    publicly known range of the labels, unless it is several times wider than the true range.

    Parameters
    ----------
    histogram : pair of array_like
        Nodes (k + 1,) and densities (k,) of the prior of a label; more than 256 bins are merged into 256. The prior
        must be public, or estimated from released values (`ldpbayes.estimation.label_prior`), never from the original
        labels.
    epsilon : float
        Budget ε in nats, positive and finite.
    interval : pair of float or callable, optional
        The interval a < b, or a function of the histogram, ε and ζ, such as `optimal_interval`. Default: the prior's
        range.

    Returns
    -------
    HalfWidthDesign
        ``half_width`` and ``interval`` in the unit of the labels, and the ``explained`` share of the variance.
    """
    prior = checked_histogram(histogram)
    epsilon = checked("epsilon", epsilon, *ONE_POSITIVE)
    support = np.flatnonzero(prior.densities)
    ends = float(prior.nodes[support[0]]), float(prior.nodes[support[-1] + 1])
    if not callable(interval):
        ends = ends if interval is None else checked_interval(interval)
    merged = _merged(prior)

    def design(log_half_width: float) -> HalfWidthDesign:
        half_width = float(np.exp(log_half_width))
        choice = interval(prior, epsilon, half_width) if callable(interval) else ends
        return HalfWidthDesign(half_width, choice, _explained(merged, epsilon, choice, half_width))

    widest = np.log(ends[1] - ends[0])
    # squared error grows like ζ² by the uniform noise and like exp(−ε)/ζ by labels released anywhere
    least = max(-epsilon / 3 - np.log(100), np.log(LEAST_HALF_WIDTH))
    grid = [design(x) for x in np.linspace(widest + least, widest, HALF_WIDTHS_TRIED)]
    best = max(range(HALF_WIDTHS_TRIED), key=lambda i: grid[i].explained)
    around = [float(np.log(grid[i].half_width)) for i in (max(best - 1, 0), min(best + 1, HALF_WIDTHS_TRIED - 1))]
    refined = scipy.optimize.minimize_scalar(lambda x: -design(x).explained, bounds=around, method="bounded")
    # an interval chosen for each ζ may jump between two of them, so that the refined one need not be better
    return max(design(float(refined.x)), grid[best], key=lambda one: one.explained)


def checked_interval(interval: Interval) -> Interval:
    """A pair lower < upper of finite numbers, or ValueError; tracers are left alone."""
    try:
        lower, upper = interval
    except (TypeError, ValueError):
        raise ValueError(f"interval must be a pair of numbers, lower < upper, got {interval!r}") from None
    if is_concrete(lower, upper):
        one_number = "finite numbers, one for all labels", lambda end: (end.ndim == 0) & np.isfinite(end)
        lower, upper = (checked("interval", end, *one_number) for end in (lower, upper))
        check_order(lower, upper)
    return lower, upper


def optimal_interval(histogram: HistogramLike, epsilon: float, half_width: float) -> tuple[float, float]:
    """Return the interval for which `RPWithPrior` most probably releases a label near itself ([LH] Algorithm 1).

    The result is the pair of nodes a, b of the histogram that maximises F(a, b) = 2ζ/(2ζ + e^−ε (b − a)) · P(a ≤ Y ≤
    b), the probability that a label Y is in [a, b] and is released within a distance ζ of Y.

    Parameters
    ----------
    histogram, epsilon
        As in `optimal_half_width`. For an infinite budget, the result is the range of the histogram.
    half_width : float
        Distance ζ, positive, in the unit of the labels.
    """
    prior = checked_histogram(histogram)
    epsilon = checked("epsilon", epsilon, *ONE_ABOVE_0)
    half_width = checked("half_width", half_width, *ONE_POSITIVE)
    support = np.flatnonzero(prior.densities)
    nodes, cumulative = (part[support[0] : support[-1] + 2] for part in (prior.nodes, prior.cumulative))
    length = np.exp(-epsilon) * (nodes - nodes[0])
    # Within a bin F is a ratio of linear functions of a, and of b, so monotone: the best ends are nodes. Dinkelbach's
    # method: for a ratio λ, the pair that maximizes P(a ≤ Y ≤ b) − λ (2ζ + e^−ε (b − a)) is the best difference of two
    # entries of one array; then λ is the ratio at that pair, until it grows no more: a few steps of O(k).
    low, high = best = 0, len(nodes) - 1
    ratio = 0.0
    while (new := (cumulative[high] - cumulative[low]) / (2 * half_width + (length[high] - length[low]))) > ratio:
        ratio, best = new, (low, high)
        gain = cumulative - ratio * length
        high = int(np.argmax(gain - np.minimum.accumulate(gain)))
        low = int(np.argmin(gain[: high + 1]))
    return float(nodes[best[0]]), float(nodes[best[1]])


LOSS_ROUNDING = 1e-13  # of a loss, relative to the labels' variance
EDGE_MARGIN = 1e-6  # least distance of an edge from a value, in units of the distance of two values


def optimal_bins(values: np.ndarray, probabilities: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """The bins of `RROnBins` with the least mean squared error ([GKKLMVZ]), the fewest of several, for labels with
    increasing values and probabilities (k,): edges between bins (d − 1,), midway between outputs, and outputs (d,). An
    output is (μ + (exp(ε) − 1) P m)/(1 + (exp(ε) − 1) P) for a bin of probability P and mean m, if μ is the mean of all
    labels. No other mechanism with this budget has a smaller error.
    """
    probabilities, budget = _checked_law(probabilities, epsilon)
    values, probabilities = values[probabilities > 0], probabilities[probabilities > 0]
    mean = probabilities @ values
    spread = np.max(np.abs(values - mean))
    centred = (values - mean) / spread
    # exp(−ε) times the cost of each bin of values r, ..., i − 1, and its best output; arrays (k + 1, k + 1)
    keep, gain, k = np.exp(-budget), -np.expm1(-budget), len(values)
    moments = np.cumsum(probabilities * centred ** np.arange(3)[:, None], axis=1)
    sums = np.concatenate([np.zeros((3, 1)), moments], axis=1)
    mass, first_moment, second_moment = (keep * total[-1] + gain * (total - total[:, None]) for total in sums)
    bins = np.arange(k + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        outputs = first_moment / mass
        costs = np.where(bins[:, None] < bins, second_moment - first_moment * outputs, np.inf)
    # costs of the first i values in one bin, in two, ...; infinite where there are too few of them
    best, predecessors, totals = costs[0], [], []
    for d in range(2, k + 1):
        # costs[r, i] is infinite unless r < i, so no bin is empty
        through = best[:, None] + costs
        predecessor = np.argmin(through, axis=0)
        best = np.take_along_axis(through, predecessor[None], axis=0)[0]
        predecessors.append(predecessor)
        totals.append(best[k] / (1 + (d - 1) * keep))
    losses = np.array(totals)
    fewest = int(np.argmax(losses <= losses.min() + LOSS_ROUNDING))
    ends = [k]
    for predecessor in reversed(predecessors[: fewest + 1]):
        ends.insert(0, int(predecessor[ends[0]]))
    released = mean + spread * outputs[[0, *ends[:-1]], ends]
    # the best output of a label is the nearest one, so only ties and rounding errors are clipped here
    above = np.array(ends[:-1])
    margin = EDGE_MARGIN * (values[above] - values[above - 1])
    middles = np.clip((released[1:] + released[:-1]) / 2, values[above - 1] + margin, values[above] - margin)
    return middles, released


def _checked_law(probabilities: np.ndarray, epsilon: float) -> tuple[np.ndarray, float]:
    """A law, normalised, and the budget; ValueError if only one label is possible."""
    if (possible := np.count_nonzero(probabilities > 0)) < 2:
        raise ValueError(
            f"the law of labels is degenerate: only {possible} of {probabilities.size} values are possible"
        )
    return probabilities / probabilities.sum(), checked("epsilon", epsilon, *ONE_POSITIVE)


DEFAULT_OUTPUTS = np.arange(-70, 71) / 40  # in units of half the narrowest possible range; optima need less than 1.5
LEAST_SPARE_REACH = 1e-8  # beyond the labels, in half their range: two outputs whose means reach less far cannot help
REACH_ROUNDING = 2e-14  # of half the labels' range
SOLVER_TOLERANCE = 1e-10  # of the solver, the least that HiGHS takes: smaller probabilities count as 0


def optimal_unbiased(
    values: np.ndarray, probabilities: np.ndarray, epsilon: float, outputs: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The best `UnbiasedRandomizer` ([BGKKLMVZ] Algorithm 1) for labels with increasing values and probabilities (k,):
    outputs (m,), and p(output | label) (k, m) without zero columns. Increasing `outputs` from which to choose must
    reach half the labels' range over tanh(ε/2) from its middle.
    """
    probabilities, budget = _checked_law(probabilities, epsilon)
    centre, half = (values[0] + values[-1]) / 2, (values[-1] - values[0]) / 2
    if outputs is None:
        grid = centre + half / np.tanh(budget / 2) * DEFAULT_OUTPUTS
        # of two outputs that differ by rounding only, one is enough
        far = np.min(np.abs(grid[:, None] - values), axis=1) > 1e-6 * half
        outputs = np.sort(np.concatenate([grid[far], values]))
    labels, places = (values - centre) / half, (outputs - centre) / half  # labels from -1 to 1
    spare = _solve(labels, probabilities, budget, places)
    spare = _possible(places, np.where(spare > SOLVER_TOLERANCE, spare, 0.0), budget)
    kept = spare > 0
    return outputs[kept], _windows(labels, places[kept], spare[kept], budget)


def _solve(labels: np.ndarray, probabilities: np.ndarray, budget: float, places: np.ndarray) -> np.ndarray:
    """The linear programme's (exp(ε) − 1) c_o: with it as a variable, large budgets make no large numbers."""
    k, m = len(labels), len(places)
    keep = 1 / np.expm1(budget)
    cost = probabilities[:, None] * (places - labels[:, None]) ** 2 / np.max(places**2)
    rows, ones = scipy.sparse.eye_array(k), np.ones((k, 1))
    sums, means = scipy.sparse.kron(rows, np.ones((1, m))), scipy.sparse.kron(rows, places[None])
    columns = scipy.sparse.kron(ones, scipy.sparse.eye_array(m))
    shared = scipy.sparse.csr_array(np.concatenate([keep * ones * np.ones(m), keep * ones * places]))
    solution = scipy.optimize.linprog(
        np.concatenate([cost.ravel(), keep * cost.sum(axis=0)]),
        A_ub=scipy.sparse.hstack([scipy.sparse.eye_array(k * m), -columns], format="csr"),
        b_ub=np.zeros(k * m),
        A_eq=scipy.sparse.hstack([scipy.sparse.vstack([sums, means]), shared], format="csr"),
        b_eq=np.concatenate([np.ones(k), labels]),
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": SOLVER_TOLERANCE, "dual_feasibility_tolerance": SOLVER_TOLERANCE},
    )
    if solution.x is None:
        raise RuntimeError(f"the linear programme was not solved: {solution.message}")
    return solution.x[k * m :]


def _possible(places: np.ndarray, spare: np.ndarray, budget: float) -> np.ndarray:
    """The mixture of a solution and a law of two outputs under which both extreme labels are possible exactly. The
    share of the law follows from the solution's shortfall, of the order of the solver's tolerance.
    """
    means = _means(places, spare, budget)[1]
    shortfall = max(means[0] + 1, 1 - means[-1])
    if shortfall <= REACH_ROUNDING:
        return spare
    ends = np.flatnonzero(spare)[[0, -1]]
    two = _two_outputs(places[ends], budget)
    if two is None:
        ends = np.array([0, -1])
        two = _two_outputs(places[ends], budget)
    other = np.zeros_like(spare)
    other[ends] = two
    means = _means(places, other, budget)[1]
    spare_reach = min(-1 - means[0], means[-1] - 1)
    # outputs that reach just far enough have hardly another solution
    share = shortfall / (shortfall + spare_reach) if spare_reach > LEAST_SPARE_REACH else 1.0
    return (1 - share) * spare + share * other


def _two_outputs(places: np.ndarray, budget: float) -> np.ndarray | None:
    """(exp(ε) − 1) c of a randomizer of labels from −1 to 1 with two outputs, as far from its limits as may be; None
    where there is none. Then more outputs between the two do not help: they could be spread to the two.
    """
    first, last = places
    # the first output's probability given the first label and given the last, and the last one's the other way round
    most = np.array([last + 1, 1 - first]) / (last - first)
    least = np.array([last - 1, -1 - first]) / (last - first)
    lowest, highest = np.exp(-budget) * most, least
    if np.any(highest < lowest * (1 - 1e-12)):
        return None
    return np.expm1(budget) * (lowest + highest) / 2


def _means(places: np.ndarray, spare: np.ndarray, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """Where a label's window may start, and the increasing means of its law there: linear in the start in between."""
    keep = 1 / np.expm1(budget)
    total, moments = (np.concatenate([[0.0], np.cumsum(part)]) for part in (spare, spare * places))
    length = 1 - keep * total[-1]
    starts = np.unique(np.clip(np.concatenate([total, total - length]), 0.0, total[-1] - length))
    means = keep * moments[-1] + np.interp(starts + length, total, moments) - np.interp(starts, total, moments)
    return starts, means


def _windows(labels: np.ndarray, places: np.ndarray, spare: np.ndarray, budget: float) -> np.ndarray:
    """The law of each label: the least probabilities, and a window of additional ones whose mean is right."""
    keep = 1 / np.expm1(budget)
    starts, means = _means(places, spare, budget)
    start = np.interp(labels, means, starts)[:, None]
    total = np.concatenate([[0.0], np.cumsum(spare)])
    stop, low, high = start + 1 - keep * total[-1], total[:-1], total[1:]
    overlap = np.clip(np.minimum(stop, high) - np.maximum(start, low), 0.0, spare)
    window = np.where((start <= low) & (high <= stop), spare, overlap)
    return keep * spare + window
