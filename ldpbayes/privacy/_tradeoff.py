"""Trade-off functions: the exact privacy of a mechanism, from which every (epsilon, delta) pair follows.

For two neighbouring inputs, ``f(alpha)`` is the smallest type II error of any test between them at level ``alpha``
([DRS] Definition 2.1). Each class below is the curve of the worst pair of inputs and is attained, not a bound.
``delta(epsilon)`` is the hockey-stick divergence of the same pair and follows from the curve by convex conjugation:
``delta(epsilon) = 1 + f*(-exp(epsilon))`` ([DRS] sec. 2.4).
"""

import abc
import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._checks import checked
from ldpbayes.numerics._roots import find_root

__all__ = [
    "GaussianTradeoff",
    "LaplaceTradeoff",
    "PureProtocolTradeoff",
    "Tradeoff",
]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def _positive(name: str, value: ArrayLike) -> Any:
    return checked(name, value, "positive and finite", lambda a: (a > 0) & (a < np.inf))


def _epsilon(value: ArrayLike) -> Any:
    return checked("epsilon", value, "non-negative and finite", lambda a: (a >= 0) & (a < np.inf))


def _probability(name: str, value: ArrayLike) -> Any:
    return checked(name, value, "in [0, 1]", lambda a: (a >= 0) & (a <= 1))


class Tradeoff(abc.ABC):
    """The trade-off function of a worst pair of inputs; parameters may be arrays, one entry for each personal budget.

    Methods broadcast their argument against the parameters and return float64.
    """

    zero_probability: Any = 0.0
    """Probability that the input is released exactly as it is."""

    @abc.abstractmethod
    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error of a test.

        Parameters
        ----------
        alpha : array_like
            The test's level, its type I error, in [0, 1].

        Raises
        ------
        ValueError
            For a level outside [0, 1].
        """

    @abc.abstractmethod
    def delta(self, epsilon: ArrayLike) -> Any:
        """Smallest delta at which (epsilon, delta)-differential privacy holds.

        Parameters
        ----------
        epsilon : array_like
            Non-negative and finite.

        Raises
        ------
        ValueError
            For any other epsilon.
        """

    @abc.abstractmethod
    def epsilon(self, delta: ArrayLike) -> Any:
        """Smallest epsilon at which (epsilon, delta)-differential privacy holds; infinite where none is enough.

        Parameters
        ----------
        delta : array_like
            In [0, 1].

        Raises
        ------
        ValueError
            For a delta outside [0, 1].
        """


@dataclasses.dataclass(frozen=True, eq=False)
class LaplaceTradeoff(Tradeoff):
    """Two Laplace laws of unit scale whose centres are `budget` apart ([DMNS]; [DRS]).

    The likelihood ratio is exp(+-budget) beyond the centres and exp(2 z - budget) between them, hence three pieces:
    a line of slope -exp(budget), the hyperbola exp(-budget) / (4 alpha), a line of slope -exp(-budget).

    Parameters
    ----------
    budget : array_like
        Epsilon: sensitivity over noise scale, positive and finite.
    """

    budget: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", _positive("epsilon", self.budget))

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        alpha, budget = np.asarray(_probability("alpha", alpha)), self.budget
        with np.errstate(divide="ignore", over="ignore"):
            log_alpha = np.log(alpha)
            steep = -np.expm1(np.minimum(budget + log_alpha, 0.0))
            middle = np.exp(-budget - log_alpha) / 4
        shallow = np.exp(-budget) * (1 - alpha)
        return np.where(log_alpha < -budget - np.log(2), steep, np.where(alpha > 0.5, shallow, middle))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """1 - exp((epsilon - budget) / 2) up to the budget, then 0; the test rejects beyond (epsilon + budget) / 2."""
        return -np.expm1(-np.maximum(self.budget - _epsilon(epsilon), 0.0) / 2)

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`; 0 where 0 is enough."""
        with np.errstate(divide="ignore"):
            return np.maximum(self.budget + 2 * np.log1p(-np.asarray(_probability("delta", delta))), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class PureProtocolTradeoff(Tradeoff):
    """Two laws whose likelihood ratio is exp(budget), 1 or exp(-budget).

    So it is for two categories under randomized response, unary encodings and their relatives: the outputs that favour
    the first have mass `separation` under it and exp(-budget) times that under the second, and the other way round. The
    curve is the convex polygon with slopes -exp(budget), -1 and -exp(-budget) (Neyman-Pearson with randomization at
    the ties).

    Parameters
    ----------
    budget : array_like
        Epsilon, positive; infinite where some outputs give the category away.
    separation : array_like
        Mass of the outputs that favour the category which is true, in (0, 1].
    """

    budget: Any
    separation: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", checked("epsilon", self.budget, "positive", lambda a: a > 0))
        separation = checked("separation", self.separation, "in (0, 1]", lambda a: (a > 0) & (a <= 1))
        object.__setattr__(self, "separation", separation)

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`: a convex polygon is the maximum of its lines."""
        alpha, budget = np.asarray(_probability("alpha", alpha)), np.asarray(self.budget)
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = -np.expm1(np.minimum(budget + np.log(alpha), 0.0))
        steep = np.where(np.isinf(budget), 0.0, steep)
        middle = 1 + self.separation * np.expm1(-budget) - alpha
        return np.maximum(np.maximum(steep, middle), np.exp(-budget) * (1 - alpha))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """Separation times 1 - exp(epsilon - budget) up to the budget, then 0."""
        return -self.separation * np.expm1(-np.maximum(self.budget - _epsilon(epsilon), 0.0))

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`; 0 where 0 is enough."""
        share = np.minimum(np.asarray(_probability("delta", delta)) / self.separation, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(share < 1, np.maximum(self.budget + np.log1p(-share), 0.0), 0.0)[()]


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianTradeoff(Tradeoff):
    """Two unit normal laws, `mu` apart ([DRS] eq. 6 and Corollary 2.13; [BW]).

    Parameters
    ----------
    mu : array_like
        Sensitivity over noise standard deviation, positive and finite.
    """

    mu: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _positive("mu", self.mu))

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        return special.ndtr(-special.ndtri(_probability("alpha", alpha)) - self.mu)

    def log_delta(self, epsilon: ArrayLike) -> Any:
        """Log of `delta`, to nearly full relative precision also where delta itself underflows.

        Parameters
        ----------
        epsilon : array_like
            Non-negative and finite.
        """
        return _gaussian_log_delta(self.mu, _epsilon(epsilon))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), without its overflow and cancellation."""
        return np.exp(self.log_delta(epsilon))

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`, by root finding; 0 where 0 is enough, infinite at delta = 0."""
        delta, mu = np.broadcast_arrays(_probability("delta", delta), self.mu)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            target = np.log(delta)
            # Phi(-a) > delta(epsilon) at a = epsilon/mu - mu/2, so the epsilon at which Phi(-a) = delta is too large
            high = mu * (mu / 2 - special.ndtri_exp(target)) * (1 + 1e-9)
            found = find_root(
                lambda epsilon, mu, target: _gaussian_log_delta(mu, epsilon) - target,
                (np.zeros_like(high), high),
                args=(mu, target),
            )
            enough = target >= _gaussian_log_delta(mu, 0.0)
        return np.where(enough, 0.0, np.where(delta > 0, found.x, np.inf))[()]


def _gaussian_log_delta(mu: ArrayLike, epsilon: ArrayLike) -> np.ndarray:
    """Log delta of two normals, through Mills ratios: delta = phi(a) (R(a) - R(b)), a, b = epsilon/mu -+ mu/2."""
    mu, epsilon = np.broadcast_arrays(np.asarray(mu, float), np.asarray(epsilon, float))
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_density = -(a**2) / 2 - np.log(2 * np.pi) / 2
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        # where a and b are near, R(a) - R(b) cancels, but it is the integral of -R' > 0 over a short interval
        points = a[..., None] + mu[..., None] * (1 + _NODES) / 2
        near = log_density + np.log(mu / 2 * np.sum(_WEIGHTS * _minus_mills_slope(points), axis=-1))
        apart = log_density + np.log(_mills(a) - _mills(b))
        # where delta is near one, its precise part is what it lacks of one
        large = np.log1p(-(special.ndtr(a) + np.exp(log_density) * _mills(b)))
    return np.where(mu < 1, near, np.where(a > -1, apart, large))


def _mills(t: np.ndarray) -> np.ndarray:
    """Mills ratio R(t) = Phi(-t) / phi(t)."""
    return np.sqrt(np.pi / 2) * special.erfcx(t / np.sqrt(2))


def _minus_mills_slope(t: np.ndarray) -> np.ndarray:
    """-R'(t) = 1 - t R(t), by its asymptotic series t^-2 (1 - 3 t^-2 (1 - 5 t^-2 (...))) where that cancels."""
    far = np.maximum(t, 25.0)
    series = np.ones_like(far)
    for odd in range(19, 1, -2):
        series = 1 - odd / far**2 * series
    return np.where(t > 25, series / far**2, 1 - t * _mills(t))
