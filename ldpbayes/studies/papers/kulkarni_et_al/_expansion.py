"""Figure 6 of [KJKH]: how well a polynomial stands for the sigmoid."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev
from scipy import special

from ldpbayes._checks import at_least, checked

__all__ = ["expansion_error"]

SERIES = 64
"""Degree at which the series is found: at a half width of 3 its coefficients fall as exp(−asinh(π/3)) = 0.4 does."""

POINTS = np.linspace(-9.0, 9.0, 181)
"""Of the trapezoidal rule for means over a standard normal.

The sigmoid's nearest poles are ±πi, so that at a standard deviation s of the predictor the rule's error is of the order
exp(−2π²/(0.1 s)), below 1e-17 up to s = 5; the tails that are cut off hold 1e-18.
"""


def expansion_error(
    dimensions: Sequence[int] = (2, 4, 6, 8, 10),
    orders: Sequence[int] = (2, 3, 5, 9),
    *,
    replicates: int = 50,
    count: int = 1000,
    half_width: float = 3.0,
    noise: float = 1.0,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Error of Chebyshev expansions of the sigmoid, where [KJKH] supplement 7 uses them (Figure 6).

    As there, records x are normal with mean zero and a random covariance WWᵀ/d (W standard normal), the same for all
    replicates, restricted to norm 1 (longer ones are divided by their norm); every replicate draws new records and new
    slopes θ from a standard normal.

    The figure shows the difference of the means over records. Were there no end of these, both means would be 1/2 at
    any order: with x also −x may occur, and sigmoid − 1/2 and its expansion are odd (so the expansion of order two has
    no quadratic term, and is that of order one). What the figure shows is therefore how the sampling errors of both
    means differ. The likelihood of perturbed records takes the mean over one record's x given its released z, the
    distance of which from its expansion is shown beside it.

    Parameters
    ----------
    dimensions : sequence of int
        d, the numbers of covariates.
    orders : sequence of int
        M, the degrees of the expansions.
    replicates : int
        Draws of the slopes for each d.
    count : int
        Records a replicate.
    half_width : float
        The expansion is that on [−half_width, half_width]: the sum of the first terms of the Chebyshev series.
    noise : float
        Standard deviation of the Gaussian noise with which records are released.
    seed : int
        Of NumPy's generator.

    Returns
    -------
    list of dict
        A row for each ``dimension`` and ``order``, with means over replicates of absolute errors: ``mean`` of the
        mean over records, as in the figure; ``record`` of the sigmoid at a record; ``release`` of the sigmoid's mean
        given z, with x normal with the records' covariance; and ``outside``, the share of such means that the expansion
        puts outside [0, 1].

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    for d in dimensions:
        at_least(1, "dimensions", d)
    for order in orders:
        at_least(0, "orders", order, SERIES)
    at_least(1, "replicates", replicates)
    at_least(1, "count", count)
    positive = "a positive and finite number"
    half_width, noise = (
        checked(name, value, positive, lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
        for name, value in (("half_width", half_width), ("noise", noise))
    )
    series = Chebyshev.interpolate(special.expit, SERIES, domain=[-half_width, half_width])
    rows = []
    for d in dimensions:
        rng = np.random.default_rng([seed, d])
        root = rng.standard_normal((d, d)) / np.sqrt(d)
        runs = [_Run(rng, root, count, noise) for _ in range(replicates)]
        for order in orders:
            expansion = series.truncate(order + 1)
            errors = np.mean([run.errors(expansion) for run in runs], axis=0)
            named = zip(("mean", "record", "release", "outside"), errors, strict=True)
            rows.append({"dimension": d, "order": order} | {name: float(value) for name, value in named})
    return rows


class _Run:
    """Records and slopes of one replicate, with the values of the sigmoid that no expansion changes."""

    def __init__(self, rng: np.random.Generator, root: np.ndarray, count: int, noise: float) -> None:
        d = len(root)
        theta = rng.standard_normal(d)
        x = rng.standard_normal((count, d)) @ root.T
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
        z = x + noise * rng.standard_normal((count, d))
        # x | z is normal with mean Gz and covariance noise² G, where G = S (S + noise²)⁻¹
        second = x.T @ x / count
        gain = np.linalg.solve(second + noise**2 * np.eye(d), second).T
        self.deviation = noise * np.sqrt(theta @ gain @ theta)
        self.at_records, self.given_release = x @ theta, (z @ gain.T @ theta)[:, None]
        self.sigmoids = special.expit(self.at_records)
        self.means = self._mean(special.expit)

    def _mean(self, function: Callable) -> np.ndarray:
        weights = np.exp(-0.5 * POINTS**2)
        return function(self.given_release + self.deviation * POINTS) @ (weights / weights.sum())

    def errors(self, expansion: Chebyshev) -> tuple[float, float, float, float]:
        """Errors of the mean, at records, given releases; and the share of means outside [0, 1]."""
        difference, means = expansion(self.at_records) - self.sigmoids, self._mean(expansion)
        return (
            float(abs(np.mean(difference))),
            float(np.mean(np.abs(difference))),
            float(np.mean(np.abs(means - self.means))),
            float(np.mean((means < 0) | (means > 1))),
        )
