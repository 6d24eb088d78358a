"""Optimal designs of label mechanisms: intervals, bins and unbiased outputs for a prior."""

import bisect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ldpbayes._core.checks import check_order, checked
from ldpbayes.mechanisms.finite_outputs import increasing


class Histogram(NamedTuple):
    """A density that is constant between nodes and zero outside them.

    Attributes
    ----------
    nodes : array (k + 1,)
        Ends of the bins, strictly increasing, in the unit of the data.
    densities : array (k,)
        Of each bin, non-negative, per unit of the data; they integrate to one where a function of this package made
        the histogram. Where one is taken, any pair of nodes and densities will do, and it is normalised.
    """

    nodes: Any
    densities: Any

    @property
    def probabilities(self) -> np.ndarray:
        """Of each bin: density times width."""
        return np.asarray(self.densities) * np.diff(self.nodes)

    @property
    def midpoints(self) -> np.ndarray:
        """Of each bin."""
        return (np.asarray(self.nodes)[1:] + np.asarray(self.nodes)[:-1]) / 2

    @property
    def mean(self) -> float:
        """Mean of the density."""
        return float(self.probabilities @ self.midpoints)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the density."""
        squares = (self.midpoints - self.mean) ** 2 + np.diff(self.nodes) ** 2 / 12
        return float(np.sqrt(self.probabilities @ squares))

    def quantiles(self, probabilities: Any) -> np.ndarray:
        """Points below which the density has these probabilities.

        Parameters
        ----------
        probabilities : array_like
            In [0, 1].
        """
        cumulative = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        return np.interp(probabilities, cumulative, np.asarray(self.nodes))

    def highest_density_interval(self, probability: float) -> tuple[float, float]:
        """The interval that spans the bins of highest density, as many as it takes to have some probability.

        Bins of one density are in it or are not together: of a uniform density it is the whole range.

        Parameters
        ----------
        probability : float
            In (0, 1].
        """
        densities, mass = np.asarray(self.densities), np.append(0.0, np.cumsum(self.probabilities))

        def span(level: float) -> tuple[int, int]:
            # densities that are equal but for rounding are taken to be
            high = np.flatnonzero(densities >= level * (1 - 1e-9))
            return int(high[0]), int(high[-1]) + 1

        def held(level: float) -> float:
            first, last = span(level)
            return mass[last] - mass[first]

        levels = np.unique(densities[densities > 0])[::-1]
        wanted = min(probability, held(levels[-1]))
        first, last = span(levels[bisect.bisect_left(levels, wanted, key=held)])
        return float(self.nodes[first]), float(self.nodes[last])

    def within(self, lower: float, upper: float) -> "Histogram":
        """The density given that it is between two numbers.

        Parameters
        ----------
        lower, upper : float
            lower < upper.

        Raises
        ------
        ValueError
            If nothing of it is.
        """
        inside = (np.asarray(self.nodes) > lower) & (np.asarray(self.nodes) < upper)
        nodes = np.concatenate([[lower], np.asarray(self.nodes)[inside], [upper]])
        which = np.searchsorted(self.nodes, (nodes[1:] + nodes[:-1]) / 2) - 1
        outside = (which < 0) | (which >= len(self.densities))
        densities = np.where(outside, 0.0, np.asarray(self.densities)[np.clip(which, 0, len(self.densities) - 1)])
        return checked_histogram((nodes, densities))


def checked_histogram(given: Any) -> Histogram:
    """A pair of nodes and densities as a histogram that integrates to one.

    Parameters
    ----------
    given : Histogram or pair of array_like
        Nodes (k + 1,) and densities (k,), which need not integrate to one.

    Returns
    -------
    Histogram
        Of float64 arrays.

    Raises
    ------
    ValueError
        If it is no such pair, the nodes are unsorted, a density is negative, all are zero, or anything is not finite.
    """
    try:
        nodes, densities = given
    except (TypeError, ValueError):
        raise ValueError(
            f"a histogram must be a pair (nodes, densities), got {type(given).__name__} {given!r:.60}"
        ) from None
    nodes = np.atleast_1d(checked("the histogram's nodes", nodes, "finite numbers", np.isfinite))
    densities = np.atleast_1d(
        checked("the histogram's densities", densities, "finite and not negative", lambda a: np.isfinite(a) & (a >= 0))
    )
    if nodes.ndim > 1 or densities.ndim > 1 or len(nodes) != len(densities) + 1:
        raise ValueError(
            "a histogram of k bins is (nodes, densities), k + 1 nodes first (np.histogram has them last), got shapes "
            f"{nodes.shape} and {densities.shape}"
        )
    wrong = np.flatnonzero(np.diff(nodes) <= 0)
    if len(wrong):
        i = wrong[0]
        raise ValueError(
            "the histogram has unsorted nodes: they must increase strictly, got "
            f"nodes[{i}] = {nodes[i]:g} and nodes[{i + 1}] = {nodes[i + 1]:g}"
        )
    largest = densities.max()
    if largest == 0:
        raise ValueError("the histogram is degenerate: all its densities are zero")
    # divided by the largest first, so that the sum can neither overflow nor vanish
    densities = densities / largest
    return Histogram(nodes, densities / (densities @ np.diff(nodes)))


NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
MAX_BINS = 256  # finer histograms are merged to as many bins of equal probability
GRID = 30  # half-widths tried before the best of them is refined
LEAST = 1e-6  # of the interval: a smaller half-width would explain 1e-12 more, which is lost in rounding

Interval = tuple[float, float]
ChoiceOfInterval = Callable[[Histogram, float, float], Interval]


class OptimalHalfWidth(NamedTuple):
    """What `optimal_half_width` found: ``RPWithPrior(epsilon, found.interval, found.half_width)``.

    Attributes
    ----------
    half_width : float
        ζ, in the unit of the labels.
    interval : tuple of float
        a < b, in the unit of the labels.
    explained : float
        Share of the variance of a label that its release explains, from 0 to 1; see `explained_variance`.
    """

    half_width: float
    interval: Interval
    explained: float


def explained_variance(histogram: Any, epsilon: float, interval: Any, half_width: float) -> float:
    """Share of the variance of a label Y that its release Z under `RPWithPrior` explains, Var E[Y | Z] / Var Y.

    It is the Fisher information about the mean of the labels in one release, relative to that in a label, where the
    law of the labels is the prior, tilted by exp(η y), since the covariance of Y and 1{Z = z} is the derivative of
    P(Z = z) with respect to η. So it measures what is learnt of a mean, counts labels that lie far out for what they
    matter to squared error, and needs no law but the prior.

    Parameters
    ----------
    histogram : Histogram or pair of array_like
        Nodes (k + 1,) and densities (k,) of the prior of a label. More than 256 bins are merged.
    epsilon : float
        Privacy budget, positive and finite.
    interval : pair of float
        a < b, of `RPWithPrior`; labels outside are projected to the nearest end.
    half_width : float
        ζ, positive and finite.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If a number is out of range or the histogram is none.
    """
    epsilon = checked("epsilon", epsilon, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    half_width = checked("half_width", half_width, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    return _explained(_merged(checked_histogram(histogram)), epsilon, _checked_interval(interval), half_width)


def optimal_half_width(
    histogram: Any, epsilon: float, *, interval: Interval | ChoiceOfInterval | None = None
) -> OptimalHalfWidth:
    """The half-width of `RPWithPrior` whose releases explain most of the labels' variance under a prior.

    [LH] chooses ζ by hand. Here it maximizes `explained_variance`. As ε → 0 that is a constant share of the interval,
    which depends on the prior only: 0.39 of it for a uniform one. (The variance of the unbiased value of a label is
    then least at half of the interval.) As ε grows, ζ falls like exp(−ε/3). The maximum
    is flat.

    Parameters
    ----------
    histogram : Histogram or pair of array_like
        Nodes (k + 1,) and densities (k,) of the prior of a label: public knowledge, or estimated from released values
        (`ldpbayes.estimation.label_prior`); never computed from the labels themselves.
    epsilon : float
        Privacy budget, positive and finite.
    interval : pair of float or callable, optional
        a < b; or what chooses them from the histogram, ε and ζ, such as `optimal_interval`. By default the support
        of the histogram.

    Returns
    -------
    OptimalHalfWidth

    Raises
    ------
    ValueError
        If a number is out of range or the histogram is none.

    Notes
    -----
    The interval is not chosen by the same criterion, since that would shrink it to a point: the release is then one
    bit, whether a label is above a threshold. A bit tells most of a mean if the law of the labels is known, and fails
    where it is not: for ε from 0.5 to 2, on two public data sets, it raised the test error of a linear model by 12 %
    to 67 %.
    Labels outside the interval are told apart by nothing; keep the public range unless it is several times wider than
    where labels lie.
    """
    prior = checked_histogram(histogram)
    epsilon = checked("epsilon", epsilon, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    support = np.flatnonzero(prior.densities)
    ends = float(prior.nodes[support[0]]), float(prior.nodes[support[-1] + 1])
    if not callable(interval):
        ends = ends if interval is None else _checked_interval(interval)
    merged = _merged(prior)

    def at(log_width: float) -> OptimalHalfWidth:
        half_width = float(np.exp(log_width))
        chosen = interval(prior, epsilon, half_width) if callable(interval) else ends
        return OptimalHalfWidth(half_width, chosen, _explained(merged, epsilon, chosen, half_width))

    widest = np.log(ends[1] - ends[0])
    # squared error grows like ζ² by the uniform noise and like exp(−ε)/ζ by labels released anywhere
    least = max(-epsilon / 3 - np.log(100), np.log(LEAST))
    tried = [at(x) for x in np.linspace(widest + least, widest, GRID)]
    best = max(range(GRID), key=lambda i: tried[i].explained)
    around = [float(np.log(tried[i].half_width)) for i in (max(best - 1, 0), min(best + 1, GRID - 1))]
    refined = scipy.optimize.minimize_scalar(lambda x: -at(x).explained, bounds=around, method="bounded")
    # an interval chosen for each ζ may jump between two of them, so that the refined one need not be better
    return max(at(float(refined.x)), tried[best], key=lambda found: found.explained)


def _explained(prior: Histogram, epsilon: float, interval: Interval, half_width: float) -> float:
    """`explained_variance`, by Gauss-Legendre quadrature between the points where P(Z = z) or its slopes have steps."""
    nodes, densities = prior
    lower, upper = interval
    centred = nodes - prior.mean
    mass = np.concatenate([[0.0], np.cumsum(prior.probabilities)])
    moment = np.concatenate([[0.0], np.cumsum(densities * np.diff(centred**2) / 2)])

    def below(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < x) and E[(Y − EY) 1{Y < x}]."""
        x = np.clip(x, nodes[0], nodes[-1])
        bin_ = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(densities) - 1)
        density, start = densities[bin_], nodes[bin_]
        first = moment[bin_] + density * (x - start) * ((x + start) / 2 - prior.mean)
        return mass[bin_] + density * (x - start), first

    ends = lower - half_width, upper + half_width
    cuts = np.concatenate([np.add.outer([-half_width, half_width], nodes).ravel(), ends])
    cuts = np.append(cuts, [lower + half_width, upper - half_width, (lower + upper) / 2])
    cuts = np.unique(np.clip(cuts, *ends))
    halves = np.diff(cuts)[:, None] / 2
    z = ((cuts[1:] + cuts[:-1])[:, None] / 2 + halves * NODES).ravel()
    weights = (halves * WEIGHTS).ravel()
    # a label at or beyond the interval's end is near to z where that end is
    high = below(np.where(z + half_width >= upper, np.inf, z + half_width))
    low = below(np.where(z - half_width <= lower, -np.inf, z - half_width))
    keep, more = np.exp(-epsilon), -np.expm1(-epsilon)
    density = keep + more * (high[0] - low[0])
    covariance = more * (high[1] - low[1])
    total = 2 * half_width + keep * (upper - lower)
    # rounding must not make it more than all
    return min(float(weights @ (covariance**2 / density) / total / prior.standard_deviation**2), 1.0)


def _merged(prior: Histogram) -> Histogram:
    """The histogram, or one with at most `MAX_BINS` bins whose probabilities are its own."""
    if len(prior.densities) <= MAX_BINS:
        return prior
    mass = np.concatenate([[0.0], np.cumsum(prior.probabilities)])
    nodes = np.unique(np.concatenate([prior.quantiles(np.linspace(0, mass[-1], MAX_BINS)), prior.nodes[[0, -1]]]))
    return Histogram(nodes, np.diff(np.interp(nodes, prior.nodes, mass)) / np.diff(nodes))


def _checked_interval(interval: Any) -> Interval:
    """Two finite numbers, or ValueError."""
    try:
        lower, upper = interval
    except (TypeError, ValueError):
        raise ValueError(f"interval must be a pair of numbers, lower < upper, got {interval!r}") from None
    lower, upper = (checked("interval", end, "finite", np.isfinite) for end in (lower, upper))
    check_order(lower, upper)
    return lower, upper


def optimal_interval(histogram: Any, epsilon: float, half_width: float) -> tuple[float, float]:
    """The interval in which a label most often lies and is released near the truth ([LH], 3.5 and Algorithm 1).

    It maximizes F(a, b) = 2ζ/(2ζ + e^−ε (b − a)) · P(a ≤ Y ≤ b), the probability that a label Y, whose density is the
    histogram, lies in [a, b] and that `RPWithPrior` releases it within the half-width ζ of itself.

    Within a bin the objective is a ratio of linear functions of a, and of b, hence monotone: the best interval has its
    ends at nodes. Among those, Dinkelbach's method finds it: for a ratio λ, the pair that maximizes
    P(a ≤ Y ≤ b) − λ (2ζ + e^−ε (b − a)) is the best difference of two entries of one array, which takes a cumulative
    minimum; then λ is the ratio at that pair, until it grows no more. That takes O(k) a step and a few steps ([LH]'s
    own search is O(k²), and its interior points never improve on nodes).

    Parameters
    ----------
    histogram : Histogram or pair of array_like
        Nodes (k + 1,) and densities (k,) of the prior of a label; they need not integrate to one.
    epsilon : float
        Privacy budget, positive; may be infinite, which gives the histogram's support.
    half_width : float
        ζ, positive and finite, in the unit of the labels.

    Returns
    -------
    tuple of float
        (a, b), two of the nodes.

    Raises
    ------
    ValueError
        If the histogram is none (see `checked_histogram`), or a number is out of range.
    """
    nodes, densities = checked_histogram(histogram)
    epsilon, half_width = _checked_numbers(epsilon, half_width)
    support = np.flatnonzero(densities)
    first, last = support[0], support[-1] + 1
    nodes = nodes[first : last + 1]
    cumulative = np.concatenate([[0.0], np.cumsum(densities[first:last] * np.diff(nodes))])
    length = np.exp(-epsilon) * (nodes - nodes[0])
    low, high = best = 0, len(nodes) - 1
    ratio = 0.0
    while (found := (cumulative[high] - cumulative[low]) / (2 * half_width + (length[high] - length[low]))) > ratio:
        ratio, best = found, (low, high)
        gain = cumulative - ratio * length
        high = int(np.argmax(gain - np.minimum.accumulate(gain)))
        low = int(np.argmin(gain[: high + 1]))
    return float(nodes[best[0]]), float(nodes[best[1]])


def _checked_numbers(epsilon: float, half_width: float) -> tuple[float, float]:
    """Both, or ValueError."""
    return (
        checked("epsilon", epsilon, "a positive number", lambda a: a > 0),
        checked("half_width", half_width, "positive and finite", lambda a: (a > 0) & (a < np.inf)),
    )


CANCELLED = 1e-13  # of the labels' variance: by how much rounding may move a loss
APART = 1e-6  # of the distance of two values: how near an edge may be to one of them


class OptimalBins(NamedTuple):
    """Bins, what is released for each, and the mean squared error of it.

    Attributes
    ----------
    edges : array (d + 1,)
        Ends of the bins: the first and the last label, and between two outputs their middle.
    outputs : array (d,)
        In ascending order.
    loss : float
        E[(z − x)²] over the labels' law.
    """

    edges: np.ndarray
    outputs: np.ndarray
    loss: float


def optimal_bins(values: ArrayLike, probabilities: ArrayLike, epsilon: float) -> OptimalBins:
    """Optimal bins for labels that take finitely many values ([GKKLMVZ]), in O(k²) a number of bins.

    A label whose bin's output is o_i is released as o_i with probability p = exp(ε) q, and as each other output with
    probability q = 1/(exp(ε) + d − 1). A bin of mass P and mean m has, among all labels with mean μ, the best output
    (μ + (exp(ε) − 1) P m)/(1 + (exp(ε) − 1) P); what bins lose adds up, so a shortest path over their ends finds the
    best ones of each number d. No mechanism of this budget has a smaller mean squared error.

    Parameters
    ----------
    values : array_like (k,)
        What labels may be, strictly increasing.
    probabilities : array_like (k,)
        Of each value, non-negative; they are normalised.
    epsilon : float
        Privacy budget, positive and finite.

    Returns
    -------
    OptimalBins
        With the fewest bins that attain the smallest loss, to rounding.

    Raises
    ------
    ValueError
        If the budget is not positive, the values are unsorted, a probability is negative, or only one value has any.
    """
    values, probabilities = checked_law(values, probabilities)
    budget = checked("epsilon", epsilon, "a positive number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
    first, last = values[0], values[-1]
    values, probabilities = values[probabilities > 0], probabilities[probabilities > 0]
    mean = probabilities @ values
    scale = np.max(np.abs(values - mean))
    centred = (values - mean) / scale
    costs, outputs = _bins(centred, probabilities, budget)
    k = len(values)
    # costs of the first i values in one bin, in two, ...; infinite where there are too few of them
    best, came_from, found = costs[0], [], []
    for d in range(2, k + 1):
        # costs[r, i] is infinite unless r < i, so no bin is empty
        through = best[:, None] + costs
        came = np.argmin(through, axis=0)
        best = np.take_along_axis(through, came[None], axis=0)[0]
        came_from.append(came)
        found.append(best[k] / (1 + (d - 1) * np.exp(-budget)))
    losses = np.array(found)
    fewest = int(np.argmax(losses <= losses.min() + CANCELLED))
    ends = [k]
    for came in reversed(came_from[: fewest + 1]):
        ends.append(int(came[ends[-1]]))
    ends.append(0)
    starts, stops = np.array(ends[:0:-1]), np.array(ends[-2::-1])
    released = mean + scale * outputs[starts, stops]
    # the best output of a label is the nearest one, so this clips what is a tie, or rounding
    below, above = values[stops[:-1] - 1], values[stops[:-1]]
    off = APART * (above - below)
    middles = np.clip((released[1:] + released[:-1]) / 2, below + off, above - off)
    return OptimalBins(np.concatenate([[first], middles, [last]]), released, float(losses[fewest] * scale**2))


def _bins(values: np.ndarray, probabilities: np.ndarray, budget: float) -> tuple[np.ndarray, np.ndarray]:
    """What each bin of values r, ..., i − 1 costs, exp(−ε) times, and its best output; arrays (k + 1, k + 1)."""
    keep, gain = np.exp(-budget), -np.expm1(-budget)
    sums = np.concatenate(
        [np.zeros((3, 1)), np.cumsum(probabilities * values ** np.arange(3)[:, None], axis=1)], axis=1
    )
    mass, first, second = (keep * total[-1] + gain * (total - total[:, None]) for total in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        outputs = first / mass
        costs = second - first * outputs
    bins = np.arange(len(values) + 1)
    return np.where(bins[:, None] < bins, costs, np.inf), outputs


def checked_law(values: Any, probabilities: Any) -> tuple[np.ndarray, np.ndarray]:
    """A law on finitely many numbers, as float64 arrays, its probabilities normalised.

    Parameters
    ----------
    values : array_like (k,)
        Strictly increasing.
    probabilities : array_like (k,)
        Of each value, non-negative.

    Raises
    ------
    ValueError
        If they are not that, or fewer than two values have a probability.
    """
    values = np.atleast_1d(checked("values", values, "finite numbers", np.isfinite))
    allowed = "finite and not negative"
    probabilities = np.atleast_1d(checked("probabilities", probabilities, allowed, lambda a: (a >= 0) & (a < np.inf)))
    if probabilities.shape != values.shape:
        raise ValueError(f"probabilities must be one a value, got shapes {probabilities.shape} and {values.shape}")
    if values.ndim > 1 or np.count_nonzero(probabilities) < 2:
        raise ValueError(
            f"the law of labels is degenerate: {np.count_nonzero(probabilities)} of {values.size} values have a "
            "probability, and two must"
        )
    increasing("values", values, 2)
    return values, probabilities / probabilities.sum()


WIDTH = 1.75  # of the default outputs' range: how many times the narrowest possible one; what is used is below 1.5
STEPS = 40  # of the default outputs in half the narrowest possible range
SLACK = 1e-8  # by how much further than the labels means reach under two outputs that can help
ROUNDING = 2e-14  # of half the labels' range
TOLERANCE = 1e-10  # of the solver, the least that HiGHS takes: probabilities below it are none


class UnbiasedLaws(NamedTuple):
    """What is released for each of some labels, with which probabilities, and the mean squared error of it.

    Attributes
    ----------
    outputs : array (m,)
        In ascending order; all have a probability.
    matrix : array (k, m)
        p(output | label): each row sums to one and has its label as mean.
    loss : float
        E[(z − x)²] over the labels' law.
    """

    outputs: np.ndarray
    matrix: np.ndarray
    loss: float


def wide_outputs(values: np.ndarray, budget: float) -> np.ndarray:
    """Outputs among which good ones are found: an even grid wider than is needed, and the labels themselves.

    Parameters
    ----------
    values : array (k,)
        Labels, increasing.
    budget : float
        Epsilon.

    Returns
    -------
    ndarray
        Increasing.
    """
    centre, half = (values[0] + values[-1]) / 2, (values[-1] - values[0]) / 2
    steps = np.arange(-round(WIDTH * STEPS), round(WIDTH * STEPS) + 1) / STEPS
    grid = centre + half / np.tanh(budget / 2) * steps
    # of two outputs that rounding alone keeps apart one is enough
    far = np.min(np.abs(grid[:, None] - values), axis=1) > 1e-6 * half
    return np.sort(np.concatenate([grid[far], values]))


def optimal_unbiased(
    values: ArrayLike, probabilities: ArrayLike, epsilon: float, outputs: ArrayLike | None = None
) -> UnbiasedLaws:
    """Laws of the output for each label, of least mean squared error among unbiased ones ([BGKKLMVZ] Algorithm 1).

    Parameters
    ----------
    values : array_like (k,)
        What labels may be, strictly increasing.
    probabilities : array_like (k,)
        Of each value, non-negative; they are normalised.
    epsilon : float
        Privacy budget, positive and finite.
    outputs : array_like, optional
        What may be released, strictly increasing. It must reach (exp(ε) + 1)/(exp(ε) − 1) times half the labels' range
        on both sides of their centre, and further (up to 1.5 times that has been seen) for the optimum. By default an
        even grid of 141 numbers to 1.75 times that, and the labels themselves.

    Returns
    -------
    UnbiasedLaws
        With the outputs that have a probability.

    Raises
    ------
    ValueError
        If the budget is not positive, the values or outputs are unsorted, a probability is negative, only one value has
        any, or the outputs do not reach far enough.
    RuntimeError
        If the solver gives up.
    """
    values, probabilities = checked_law(values, probabilities)
    budget = checked("epsilon", epsilon, "a positive number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
    given = wide_outputs(values, budget) if outputs is None else outputs
    outputs = np.atleast_1d(checked("outputs", given, "finite numbers", np.isfinite))
    increasing("outputs", outputs, 2)
    # labels from -1 to 1
    centre, half = (values[0] + values[-1]) / 2, (values[-1] - values[0]) / 2
    labels, places = (values - centre) / half, (outputs - centre) / half
    if _two_outputs(places[[0, -1]], budget) is None:
        reach = half / np.tanh(budget / 2)
        raise ValueError(
            f"no randomizer with outputs from {outputs[0]:g} to {outputs[-1]:g} is unbiased at epsilon = {budget:g}: "
            f"let them reach from {centre - reach:g} to {centre + reach:g}"
        )
    spare = _solve(labels, probabilities, budget, places)
    spare = _possible(places, np.where(spare > TOLERANCE, spare, 0.0), budget)
    kept = spare > 0
    matrix = _windows(labels, places[kept], spare[kept], budget)
    loss = probabilities @ np.sum(matrix * (outputs[kept] - values[:, None]) ** 2, axis=1)
    return UnbiasedLaws(outputs[kept], matrix, float(loss))


def _solve(labels: np.ndarray, probabilities: np.ndarray, budget: float, places: np.ndarray) -> np.ndarray:
    """The linear programme's (exp(ε) − 1) c_o: with it as a variable, large budgets make no large numbers."""
    k, m = len(labels), len(places)
    keep = 1 / np.expm1(budget)
    cost = probabilities[:, None] * (places - labels[:, None]) ** 2 / np.max(places**2)
    rows, every = scipy.sparse.eye_array(k), np.ones((k, 1))
    sums, means = scipy.sparse.kron(rows, np.ones((1, m))), scipy.sparse.kron(rows, places[None])
    shared = scipy.sparse.csr_array(np.concatenate([keep * every * np.ones(m), keep * every * places]))
    found = scipy.optimize.linprog(
        np.concatenate([cost.ravel(), keep * cost.sum(axis=0)]),
        A_ub=scipy.sparse.hstack(
            [scipy.sparse.eye_array(k * m), -scipy.sparse.kron(every, scipy.sparse.eye_array(m))], format="csr"
        ),
        b_ub=np.zeros(k * m),
        A_eq=scipy.sparse.hstack([scipy.sparse.vstack([sums, means]), shared], format="csr"),
        b_eq=np.concatenate([np.ones(k), labels]),
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
    )
    if found.x is None:
        raise RuntimeError(f"the linear programme was not solved: {found.message}")
    return found.x[k * m :]


def _possible(places: np.ndarray, spare: np.ndarray, budget: float) -> np.ndarray:
    """What is nearest to a solution, in the direction of two outputs, and makes both extreme labels possible exactly.

    The means that are possible under a mixture of two solutions reach at least as far as the mixed ends, so the share
    of the second one follows from how much the first one lacks: it is of the order of the solver's tolerance.
    """
    low, high = _reach(places, spare, budget)
    lacking = max(low + 1, 1 - high)
    if lacking <= ROUNDING:
        return spare
    ends = np.flatnonzero(spare)[[0, -1]]
    two = _two_outputs(places[ends], budget)
    if two is None:
        ends = np.array([0, -1])
        two = _two_outputs(places[ends], budget)
    other = np.zeros_like(spare)
    other[ends] = two
    low, high = _reach(places, other, budget)
    more = min(-1 - low, high - 1)
    # outputs that reach just far enough have hardly another solution
    share = lacking / (lacking + more) if more > SLACK else 1.0
    return (1 - share) * spare + share * other


def _two_outputs(places: np.ndarray, budget: float) -> np.ndarray | None:
    """(exp(ε) − 1) c of a randomizer of labels from −1 to 1 with two outputs, as far from its limits as may be.

    None where there is none, and then there is none either with more outputs between the two: it could be spread to
    them.
    """
    first, last = places
    # the first output's probability given the first label and given the last, and the last one's the other way round
    most = np.array([last + 1, 1 - first]) / (last - first)
    least = np.array([last - 1, -1 - first]) / (last - first)
    lowest, highest = np.exp(-budget) * most, least
    if np.any(highest < lowest * (1 - 1e-12)):
        return None
    return np.expm1(budget) * (lowest + highest) / 2


def _reach(places: np.ndarray, spare: np.ndarray, budget: float) -> tuple[float, float]:
    """Least and largest mean that a label's law can have: the window is at the one end or at the other."""
    keep = 1 / np.expm1(budget)
    total, moments = (np.concatenate([[0.0], np.cumsum(part)]) for part in (spare, spare * places))
    rest = 1 - keep * total[-1]
    within = np.interp([rest, total[-1] - rest], total, moments)
    low, high = keep * moments[-1] + within[0], keep * moments[-1] + moments[-1] - within[1]
    return float(low), float(high)


def _windows(labels: np.ndarray, places: np.ndarray, spare: np.ndarray, budget: float) -> np.ndarray:
    """The law of each label: the least probabilities, and a window of what may be added whose mean is right."""
    keep = 1 / np.expm1(budget)
    total, moments = (np.concatenate([[0.0], np.cumsum(part)]) for part in (spare, spare * places))
    rest = 1 - keep * total[-1]
    # the moment of a window grows with its start, linearly between those where an end passes from output to output
    starts = np.unique(np.clip(np.concatenate([total, total - rest]), 0.0, total[-1] - rest))
    moment = np.interp(starts + rest, total, moments) - np.interp(starts, total, moments)
    start = np.interp(labels - keep * moments[-1], moment, starts)[:, None]
    stop, low, high = start + rest, total[:-1], total[1:]
    partly = np.clip(np.minimum(stop, high) - np.maximum(start, low), 0.0, spare)
    window = np.where((start <= low) & (high <= stop), spare, partly)
    return keep * spare + window
