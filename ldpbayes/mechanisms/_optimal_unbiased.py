"""The randomizer of finitely many labels that is unbiased and loses least of squared error, by a linear programme.

Let c_o be the least probability of output o over all labels. Then p(o | y) = c_o + t_o with 0 ≤ t_o ≤ (exp(ε) − 1) c_o,
and given c each label has a problem of its own: where to put the mass that is left, so that the mean is right and the
spread is small. Spread is least (for every convex loss) where that mass fills a window of neighbouring outputs, the two
at its ends in part. So the programme is needed for c alone; windows then make a matrix that keeps its constraints to
rounding, whatever the solver's tolerance.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ldpbayes._checks import checked
from ldpbayes.mechanisms._finite_outputs import increasing
from ldpbayes.mechanisms._optimal_bins import checked_law

__all__ = ["UnbiasedLaws", "optimal_unbiased", "wide_outputs"]

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
