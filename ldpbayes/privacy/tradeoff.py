"""Trade-off functions: the exact privacy of a mechanism, from which every (epsilon, delta) pair follows.

For two neighbouring inputs, ``f(alpha)`` is the smallest type II error of any test between them at level ``alpha``
(Dong, Roth & Su 2022, "Gaussian differential privacy", arXiv:1905.02383, Definition 2.1). Each class below is the curve
of the worst pair of inputs and is attained, not a bound. ``delta(epsilon)`` is the hockey-stick divergence of the same
pair and follows from the curve by convex conjugation: ``delta(epsilon) = 1 + f*(-exp(epsilon))`` (ibid., Section 2.4).
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import elementwise

__all__ = ["GaussianTradeoff", "Guarantee", "LaplaceTradeoff", "PureProtocolTradeoff", "Tradeoff", "checked"]

_UNITS = ("record", "attribute", "label")
_TRUST_MODELS = ("local", "central")
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def checked(name: str, value: Any, allowed: str, ok: Callable[[np.ndarray], Any]) -> Any:
    """Return a number as a float, an array as a read-only float64 copy, or say what is wrong with it.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : array_like
        Any shape but an empty one.
    allowed : str
        What is allowed, in words: the message reads "`name` must be `allowed`, got ...".
    ok : callable
        Elementwise test of a float64 array; NaN must fail it.

    Raises
    ------
    ValueError
        If `value` is empty, not numeric, masked in part, or fails the test; names the first entry that does.
    """
    if np.ma.is_masked(value):
        raise ValueError(f"{name} must be {allowed}, got a masked array, {np.ma.count_masked(value)} of it masked")
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        raise ValueError(f"{name} must be {allowed}, got {value!r}") from None
    if given.dtype.kind not in "iuf" or given.size == 0:
        shown = f"an array of {given.dtype}" if given.size > 1 else repr(value)
        raise ValueError(f"{name} must be {allowed}, got {shown}")
    array = np.array(given, dtype=np.float64)
    bad = np.argwhere(~np.asarray(ok(array)))
    if len(bad):
        where = f"{name}[{', '.join(map(str, bad[0]))}] = " if array.ndim else ""
        raise ValueError(f"{name} must be {allowed}, got {where}{given[tuple(bad[0])].item()!r}")
    array.setflags(write=False)
    return array if array.ndim else float(array)


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

    zero_probability: ArrayLike = 0.0
    """Probability that the input is released exactly as it is."""

    @abc.abstractmethod
    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha` in [0, 1]; ValueError outside."""

    @abc.abstractmethod
    def delta(self, epsilon: ArrayLike) -> Any:
        """Smallest delta at which (epsilon, delta)-differential privacy holds; ValueError unless 0 <= epsilon < inf."""

    @abc.abstractmethod
    def epsilon(self, delta: ArrayLike) -> Any:
        """Smallest epsilon at which (epsilon, delta)-differential privacy holds; ValueError unless 0 <= delta <= 1."""


@dataclasses.dataclass(frozen=True, eq=False)
class LaplaceTradeoff(Tradeoff):
    """Two Laplace laws of unit scale whose centres are `budget` apart (Dong, Roth & Su 2022).

    The likelihood ratio is exp(+-budget) beyond the centres and exp(2 z - budget) between them, hence three pieces:
    a line of slope -exp(budget), the hyperbola exp(-budget) / (4 alpha), a line of slope -exp(-budget).

    Parameters
    ----------
    budget : array_like
        Epsilon: sensitivity over noise scale, positive and finite.
    """

    budget: ArrayLike

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

    budget: ArrayLike
    separation: ArrayLike

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
    """Two unit normal laws, `mu` apart (Dong, Roth & Su 2022, Equation 6 and Corollary 2.13; Balle & Wang 2018).

    Parameters
    ----------
    mu : array_like
        Sensitivity over noise standard deviation, positive and finite.
    """

    mu: ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _positive("mu", self.mu))

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        return special.ndtr(-special.ndtri(_probability("alpha", alpha)) - self.mu)

    def log_delta(self, epsilon: ArrayLike) -> Any:
        """Log of `delta`, to nearly full relative precision also where delta itself underflows."""
        return _gaussian_log_delta(self.mu, _epsilon(epsilon))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), without its overflow and cancellation."""
        return np.exp(self.log_delta(epsilon))

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`, by root finding; 0 where 0 is enough, infinite at delta = 0."""
        delta, mu = np.broadcast_arrays(_probability("delta", delta), self.mu)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            target = np.log(delta)
            # Phi(-a) > delta(epsilon) at a = epsilon/mu - mu/2, so the epsilon that makes Phi(-a) = delta is too large
            high = mu * (mu / 2 - special.ndtri_exp(target)) * (1 + 1e-9)
            found = elementwise.find_root(
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
        # near: R(a) - R(b) cancels, but it is the integral of -R' > 0 over a short interval
        points = a[..., None] + mu[..., None] * (1 + _NODES) / 2
        near = log_density + np.log(mu / 2 * np.sum(_WEIGHTS * _minus_mills_slope(points), axis=-1))
        apart = log_density + np.log(_mills(a) - _mills(b))
        # large: delta is near one, so add up what is missing
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


@dataclasses.dataclass(frozen=True, eq=False)
class Guarantee:
    """What a mechanism promises: a trade-off function, what it protects, and against whom.

    Parameters
    ----------
    tradeoff : Tradeoff
        The exact curve of the worst pair of neighbouring inputs.
    unit : {"record", "attribute", "label"}
        What neighbours may differ in.
    trust_model : {"local", "central"}
        Whether each value is perturbed before anybody else sees it, or by a trusted curator.
    stated_delta : array_like
        The delta of the pair that `statement` quotes; zero for pure differential privacy.
    exposed : tuple of str
        Columns that are released as they are: neighbours agree in them, and nothing protects them.
    """

    tradeoff: Tradeoff
    unit: str = "record"
    trust_model: str = "local"
    stated_delta: ArrayLike = 0.0
    exposed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, allowed in (("unit", self.unit, _UNITS), ("trust_model", self.trust_model, _TRUST_MODELS)):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        object.__setattr__(self, "stated_delta", _probability("stated_delta", self.stated_delta))

    def delta(self, epsilon: ArrayLike) -> Any:
        """Smallest delta at `epsilon`; see `Tradeoff.delta`."""
        return self.tradeoff.delta(epsilon)

    def epsilon(self, delta: ArrayLike) -> Any:
        """Smallest epsilon at `delta`; see `Tradeoff.epsilon`."""
        return self.tradeoff.epsilon(delta)

    def statement(self, epsilon: float | None = None) -> str:
        """Return the guarantee in plain sentences; personal budgets are quoted as a range.

        Further sentences say what is given away: records of infinite budget, or released exactly as they are, and
        columns without noise.

        Parameters
        ----------
        epsilon : float, optional
            Quote this epsilon with its delta, instead of `stated_delta` with its epsilon.
        """
        delta = self.stated_delta if epsilon is None else self.delta(epsilon)
        epsilon = self.epsilon(delta) if epsilon is None else epsilon
        epsilon, delta, power = np.broadcast_arrays(epsilon, delta, 1 - self.tradeoff(0.05))
        given_away = (np.isinf(epsilon) | (delta == 1)) & (power == 1)
        if given_away.all():
            return f"No {self.unit} is protected: the budget is infinite."
        exposed = " and ".join(self.exposed)
        aside = f", {exposed} aside, " if exposed else " "
        protected = (
            f"is protected by {self.trust_model} differential privacy with "
            f"epsilon {_quote(epsilon[~given_away])} and delta {_quote(delta[~given_away])}: "
            f"no test between two possible values of one {self.unit} that raises a false alarm 5% of the time "
            f"detects the truth more than {100 * np.max(power[~given_away]):.3g}% of the time."
        )
        if np.any(self.tradeoff.zero_probability):
            protected += (
                f" With probability {_quote(self.tradeoff.zero_probability, '')} it is released exactly as it is."
            )
        if exposed:
            protected += f" Nothing protects {exposed}."
        if given_away.any():
            return f"Each {self.unit}{aside}of finite budget {protected} One of infinite budget is not protected."
        return f"Each {self.unit}{aside}{protected}"


def _quote(value: ArrayLike, equals: str = "= ") -> str:
    low, high = f"{np.min(value):.4g}", f"{np.max(value):.4g}"
    return f"{equals}{low}" if low == high else f"between {low} and {high}"
