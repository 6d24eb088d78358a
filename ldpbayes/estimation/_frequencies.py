"""Shares of categories, and their errors."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import at_least, checked, warn
from ldpbayes.data import ExpandedSketch, Sketch
from ldpbayes.data.release import Release
from ldpbayes.estimation.estimates import (
    Contrast,
    Estimate,
    Shown,
    contrast,
    in_line,
    normal_interval,
    normal_quantile,
    table,
    tails,
    variances_under,
)
from ldpbayes.likelihood.supported_mass import supported_mass
from ldpbayes.mechanisms import PureProtocol
from ldpbayes.mechanisms.protocol import statements

MOST = 4096  # categories up to which a matrix of their pairs is affordable
CHUNK = 1 << 20  # entries of the rows at a time


def products(mechanism: PureProtocol, z: jax.Array, more: jax.Array, low: jax.Array, basis: jax.Array) -> jax.Array:
    """Σ_i r_i r_iᵀ of rows r_i = low_i @ basis + more_i 1[k ∈ S(z_i)], in chunks: an array (categories, categories).

    Parameters
    ----------
    mechanism : PureProtocol
        That released the values.
    z : array (n, ...)
        Released values.
    more : array (n,)
        What a category in S(z_i) has more.
    low : array (n, m)
        Coefficients of the rows that are common to all values.
    basis : array (m, categories)
        These rows.
    """
    n, d = len(z), mechanism.categories
    rows = min(n, max(1, CHUNK // d))

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        part, low_here, more_here = (
            lax.dynamic_slice_in_dim(a, jnp.minimum(start, n - rows), rows) for a in (z, low, more)
        )
        row = low_here @ basis + more_here[:, None] * mechanism.membership(part)
        # the last chunk overlaps the one before, so that it has the same shape
        new = jnp.arange(rows) >= start - (n - rows)
        row = jnp.where(new[:, None], row, 0.0)
        return total + row.T @ row, None

    return lax.scan(add, jnp.zeros((d, d)), jnp.arange(0, n, rows))[0]


SHOWN = 40  # categories of a summary
_NO_ERRORS = "this {!r} estimate has no standard errors; use method='unbiased'"


@dataclasses.dataclass(frozen=True)
class LinearVariance:
    """Variance of the linear estimate of a frequency θ: θ own + (1 − θ) other + θ (1 − θ) sampling.

    The first two are the perturbation of records that have the category and of those that have not.
    """

    own: float
    other: float
    sampling: float

    def __call__(self, theta: Any) -> Any:
        """The variance at a frequency, or at each of an array."""
        return theta * self.own + (1 - theta) * self.other + theta * (1 - theta) * self.sampling

    def interval(self, estimate: np.ndarray, quantile: float) -> tuple[np.ndarray, np.ndarray]:
        """All frequencies from which an estimate is at most so many of *their* standard deviations away.

        Below 0 and above 1 the variance is continued as a constant, so that every estimate has an interval.

        Parameters
        ----------
        estimate : array (categories,)
            The linear estimate.
        quantile : float
            How many.
        """
        square = quantile**2
        lead = 1 + square * self.sampling
        middle = estimate + square * (self.own - self.other + self.sampling) / 2
        root = np.sqrt(np.maximum(middle**2 - lead * (estimate**2 - square * self.other), 0.0))
        absent, sure = (quantile * np.sqrt(self(theta)) for theta in (0.0, 1.0))
        low, high = (middle - root) / lead, (middle + root) / lead
        low = np.where(estimate < absent, estimate - absent, np.where(estimate > 1 + sure, estimate - sure, low))
        high = np.where(estimate > 1 - sure, estimate + sure, np.where(estimate < -absent, estimate + absent, high))
        return low, high


class Joint(Protocol):
    """How the estimates of all categories vary together."""

    def covariance(self) -> np.ndarray:
        """The matrix (categories, categories)."""
        ...

    def variances(self, weights: np.ndarray) -> np.ndarray:
        """Variances (m,) of weighted sums.

        Parameters
        ----------
        weights : array (m, categories)
            Of the sums.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """A covariance that is a matrix already; NaN for categories that have none."""

    matrix: np.ndarray

    def covariance(self) -> np.ndarray:
        """See `Joint.covariance`."""
        return self.matrix

    def variances(self, weights: np.ndarray) -> np.ndarray:
        """See `Joint.variances`."""
        return variances_under(self.matrix, weights)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Frequencies(Shown):
    """Estimated frequencies of the categories, as probabilities of the population; an `Estimate`.

    Attributes
    ----------
    method : str
        Name of the method.
    estimate : array (categories,)
        The frequencies.
    standard_error : array (categories,) or None
        None where no theory gives it: after thresholding or projecting, and for ``mle`` with more than 4096 categories.
    converged : bool
        Whether ``mle`` came within its tolerance; the other methods are exact.
    iterations : int
        Of ``mle``.
    gap : float or None
        Upper bound on what the log-likelihood still lacks of its maximum, in nats, for ``mle``.
    """

    method: str
    estimate: np.ndarray
    standard_error: np.ndarray | None = None
    converged: bool = True
    iterations: int = 0
    gap: float | None = None
    _joint: Joint | None = None
    _variance: LinearVariance | None = None
    _mechanisms: tuple[PureProtocol, ...] = ()

    def __repr__(self) -> str:
        """Return a line; `summary` has a table."""
        done = "" if self.converged else ", NOT CONVERGED"
        head = f"{self.method}, {len(self.estimate):,} categories{done}"
        named = [f"{name}:" for name in self.names]
        return f"{type(self).__name__}({in_line(head, named, self.estimate, self.standard_error)})"

    @property
    def params(self) -> np.ndarray:
        """The estimate; see `Estimate.params`."""
        return self.estimate

    @property
    def names(self) -> list[str]:
        """The codes of the categories; see `Estimate.names`."""
        return [str(code) for code in range(len(self.estimate))]

    @cached_property
    def covariance(self) -> np.ndarray | None:
        """Covariance (categories, categories) of ``unbiased`` and ``mle``.

        None for other methods, and for more than 4096 categories. That of ``unbiased`` is made of the released values
        when it is asked for: the products of records' terms say how estimates vary together under any protocol. With
        one budget its diagonal has the squares of the standard errors, but for estimates below 0 or above 1, where
        these are those of 0 and 1. With several budgets they differ by sampling error, of which it has more.
        """
        return None if self._joint is None or len(self.estimate) > MOST else self._joint.covariance()

    @property
    def privacy(self) -> str:
        """What the mechanisms of the releases promise; see `Estimate.privacy`."""
        return statements(self._mechanisms)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals, category by category; they may reach beyond [0, 1].

        Those of ``unbiased`` are score intervals ([Wilson]): the frequencies under which the estimate would be no
        further off than so many standard deviations. They hold where few records tell of a category, as with infinite
        budgets and many categories; then the standard error, at the estimate itself, does not. Those of ``mle`` are
        normal, and NaN with the errors.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.

        Returns
        -------
        low, high : array (categories,)

        Raises
        ------
        ValueError
            If the estimate has no standard errors, or for a level outside (0, 1).
        """
        if self.standard_error is None:
            raise ValueError(_NO_ERRORS.format(self.method))
        if self._variance is not None:
            return self._variance.interval(self.estimate, normal_quantile(level))
        return normal_interval(self.estimate, self.standard_error, level)

    def contrast(self, weights: ArrayLike | Mapping[Any, float], level: float = 0.95) -> Contrast:
        """Estimate, standard error and interval of Σ w_k θ_k: of a sum of shares, say, or of a difference.

        Errors of several categories go together, so that the error of a sum does not follow from theirs.

        Parameters
        ----------
        weights : array_like (categories,) or (m, categories), or dict
            Of one sum, or of m. The share of some categories has ones for these and zeros for the others. A dict has
            the weights of one sum by code, as ``{0: 1, 3: -1}``; others have weight 0.
        level : float
            Coverage of the interval, between 0 and 1.

        Returns
        -------
        Contrast
            The interval is normal, and too short where hardly any record supports a category of the sum; for a single
            category `interval` then has a better one. NaN for the error of an ``mle`` sum with a category that has
            none, being estimated as 0.

        Raises
        ------
        ValueError
            If the estimate has no standard errors, for weights of another shape, of codes that there are not or that
            are not finite, and for another level.
        """
        if self._joint is None:
            raise ValueError(_NO_ERRORS.format(self.method))
        return contrast(self.estimate, self._joint.variances, weights, level, self.names)

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the frequencies in plain text; of many categories the most frequent ones.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        shown = np.sort(np.argsort(-self.estimate, kind="stable")[:SHOWN])
        head, columns = f"{'frequency':>10}", [self.estimate]
        if self.standard_error is not None:
            lower, upper = tails(level)
            head += f" {'std err':>10} {lower:>10} {upper:>10}"
            columns += [self.standard_error, *self.interval(level)]
        rows = [(str(k), " ".join(f"{column[k]:10.4f}" for column in columns)) for k in shown]
        title = f"Frequencies, method {self.method!r}, {len(self.estimate)} categories"
        title += f", the {SHOWN} most frequent" if len(self.estimate) > SHOWN else ""
        return table(title + ("" if self.converged else ", NOT CONVERGED"), "category", head, rows)


_PROTOCOL: type[Estimate] = Frequencies  # for the type checker


Evaluated = tuple[float, np.ndarray]
"""Mean log-likelihood and its gradient."""


class Sample(NamedTuple):
    """Released values, each once, with the number of records that have it.

    Attributes
    ----------
    mechanism : PureProtocol
        That released them, with one budget or one a value.
    nodes : array (n, ...)
        The values.
    weights : array (n,)
        How many records have each.
    """

    mechanism: PureProtocol
    nodes: jax.Array
    weights: jax.Array


class Options(NamedTuple):
    """Options of all methods; see `frequencies`.

    Attributes
    ----------
    alpha : float
        Of ``base_cut``: expected number of categories that do not occur but are kept, at most.
    tolerance : float
        Of ``mle``: how far the log-likelihood may be from its maximum, in nats.
    max_iterations : int
        Of ``mle``.
    """

    alpha: float
    tolerance: float
    max_iterations: int


def maximum_likelihood(sample: Sample, options: Options) -> Frequencies:
    """The frequencies under which the released values are most likely, with the observed information's errors.

    Parameters
    ----------
    sample : Sample
        What was released.
    options : Options
        Of which the tolerance and the number of iterations matter.
    """
    mechanism, z, weights = sample
    tolerance, max_iterations = options.tolerance, options.max_iterations
    size, d = float(weights.sum()), mechanism.categories

    def likelihood(theta: np.ndarray) -> Evaluated:
        mean, gradient = _likelihood(mechanism, z, weights, theta)
        return float(mean), np.asarray(gradient)

    def information(theta: np.ndarray) -> np.ndarray:
        return np.asarray(_information(mechanism, z, weights, theta))

    slack = 0.1 * tolerance / size
    theta = np.full(d, 1 / d)
    at = likelihood(theta)
    gap, iterations = math.inf, 0
    while gap > tolerance and iterations < max_iterations:
        theta, at = squarem(theta, at, likelihood, slack)
        if d <= MOST:
            theta, at = newton(theta, at, likelihood, information(theta), slack)
        gap, iterations = max(size * (float(at[1].max()) - 1), 0.0), iterations + 1
    if gap > tolerance:
        warn(
            f"maximum likelihood has not converged in {max_iterations} iterations: the log-likelihood may be "
            f"{gap:.3g} nats below its maximum, the tolerance is {tolerance:.3g}",
            RuntimeWarning,
        )
    error, covariance = _errors(theta, size, information(theta)) if d <= MOST else (None, None)
    joint = None if covariance is None else Dense(covariance)
    return Frequencies("mle", theta, error, gap <= tolerance, iterations, gap, joint)


def squarem(
    theta: np.ndarray, at: Evaluated, likelihood: Callable[[np.ndarray], Evaluated], slack: float
) -> tuple[np.ndarray, Evaluated]:
    """Two EM steps, extrapolated if that does not make the log-likelihood smaller ([VR], scheme S3).

    Parameters
    ----------
    theta : array (k,)
        Shares.
    at : tuple
        Mean log-likelihood and its gradient (k,) there.
    likelihood : callable
        From shares to these two.
    slack : float
        By how much the log-likelihood may get smaller: its rounding error.
    """
    mean, gradient = at
    first = theta * gradient
    second = first * likelihood(first)[1]
    step = first - theta
    bend = second - first - step
    if np.linalg.norm(step) > np.linalg.norm(bend) > 0:
        length = np.linalg.norm(step) / np.linalg.norm(bend)
        ahead = theta + 2 * length * step + length**2 * bend
        ahead = np.where(ahead > 0, ahead, second)
        ahead /= ahead.sum()
        there = likelihood(ahead)
        if there[0] >= mean - slack:
            return ahead, there
    second /= second.sum()
    return second, likelihood(second)


def newton(
    theta: np.ndarray,
    at: Evaluated,
    likelihood: Callable[[np.ndarray], Evaluated],
    information: np.ndarray,
    slack: float,
) -> tuple[np.ndarray, Evaluated]:
    """Maximize the quadratic model over θ ≥ 0, and go there as far as the log-likelihood does not get smaller.

    The model is of mean log-likelihood − Σθ, whose maximum over θ ≥ 0 sums to one, so that no constraint is needed.

    Parameters
    ----------
    theta : array (k,)
        Shares.
    at : tuple
        Mean log-likelihood and its gradient (k,) there.
    likelihood : callable
        From shares to these two.
    information : array (k, k)
        Minus the second derivative there.
    slack : float
        By how much the log-likelihood may get smaller: its rounding error.
    """
    mean, gradient = at
    diagonal = np.diag(information)
    damped = information + np.diag(np.where(diagonal > 0, 1e-10 * diagonal, 1.0))
    root = scipy.linalg.cholesky(damped, lower=True)
    aim = scipy.linalg.solve_triangular(root, damped @ theta + gradient - 1, lower=True)
    target, _ = scipy.optimize.nnls(root.T, aim, maxiter=10 * len(theta))
    if target.any():
        target /= target.sum()
        for fraction in 0.5 ** np.arange(10):
            ahead = theta + fraction * (target - theta)
            there = likelihood(ahead)
            if there[0] >= mean - slack:
                return ahead, there
    return theta, at


def _errors(theta: np.ndarray, size: float, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors and covariance: (size × information)⁻¹ − θθᵀ/size on the positive frequencies; NaN elsewhere.

    That is the inverse on the tangent space Σ δ = 0, since information @ θ = 1 at the maximum.
    """
    positive = theta > 0
    values, vectors = np.linalg.eigh(information[np.ix_(positive, positive)])
    values = np.maximum(values, np.finfo(float).eps * len(values) * values[-1])
    error = np.full(len(theta), np.nan)
    error[positive] = np.sqrt(np.maximum(np.sum(vectors**2 / values, axis=1) - theta[positive] ** 2, 0.0) / size)
    covariance = np.full((len(theta), len(theta)), np.nan)
    inverse = (vectors / values) @ vectors.T
    covariance[np.ix_(positive, positive)] = (inverse - np.outer(theta[positive], theta[positive])) / size
    return error, covariance


def _kernel(mechanism: PureProtocol) -> tuple[jax.Array, jax.Array]:
    """Values of K_ik = p(z_i | k)/p(z_i | supported): e^−ε, and how much more a supported category has."""
    epsilon = jnp.asarray(mechanism.epsilon)
    return jnp.exp(-epsilon), -jnp.expm1(-epsilon)


def _evidence(mechanism: PureProtocol, z: jax.Array, theta: jax.Array) -> jax.Array:
    """K_i·θ for each node, for a θ that need not sum to one."""
    low, more = _kernel(mechanism)
    return low * jnp.sum(theta) + more * supported_mass(mechanism, z, theta)


@jax.jit
def _likelihood(
    mechanism: PureProtocol, z: jax.Array, weights: jax.Array, theta: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean log-likelihood up to a constant, and its gradient, the mean of K_i/(K_i·θ)."""

    def mean(theta: jax.Array) -> jax.Array:
        return weights @ jnp.log(_evidence(mechanism, z, theta)) / weights.sum()

    return jax.value_and_grad(mean)(theta)


@jax.jit
def _information(mechanism: PureProtocol, z: jax.Array, weights: jax.Array, theta: jax.Array) -> jax.Array:
    """Mean of K_i K_iᵀ/(K_i·θ)², minus the Hessian of `_likelihood`: (categories, categories)."""
    scale = jnp.sqrt(weights / weights.sum()) / _evidence(mechanism, z, theta)
    low, more = (scale * part for part in _kernel(mechanism))
    return products(mechanism, z, more, low[:, None], jnp.ones((1, len(theta))))


@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
    """Terms of a linear estimate about their means: slope_i (1[k ∈ S(z_i)] − q_i − (p_i − q_i) θ_k) of record i.

    They are independent, so that the sum of their products estimates the covariance, whatever the protocol.

    Attributes
    ----------
    mechanism : PureProtocol
        That released the values.
    nodes : array (n, ...)
        Released values.
    root : array (n,)
        Slope of each value, times the square root of the number of records that have it.
    common : array (n, 2)
        Minus q_i and p_i − q_i, times the same.
    basis : array (2, categories)
        What these are multiplied by: ones, and the estimate θ.
    """

    mechanism: PureProtocol
    nodes: jax.Array
    root: np.ndarray
    common: np.ndarray
    basis: np.ndarray

    @classmethod
    def of(cls, sample: Sample, slope: Any, estimate: np.ndarray) -> "Terms":
        """Those of an estimate.

        Parameters
        ----------
        sample : Sample
            What was released.
        slope : float or array (n,)
            By what a record of each value moves the estimate of a category that it supports.
        estimate : array (categories,)
            The linear estimate.
        """
        p, q = sample.mechanism.support_probabilities
        root = slope * np.sqrt(np.asarray(sample.weights))
        common = -np.stack(np.broadcast_arrays(root * q, root * (p - q)), axis=1)
        basis = np.stack([np.ones_like(estimate), estimate])
        return cls(sample.mechanism, sample.nodes, root, common, basis)

    def covariance(self) -> np.ndarray:
        """See `Joint.covariance`; a matrix product over the released values."""
        with jax.enable_x64(True):
            return np.asarray(_products(self.mechanism, self.nodes, self.root, self.common, self.basis))

    def variances(self, weights: np.ndarray) -> np.ndarray:
        """See `Joint.variances`; a pass over the released values for each sum.

        Parameters
        ----------
        weights : array (m, categories)
            Of the sums.
        """
        with jax.enable_x64(True):
            common = self.common @ (self.basis @ weights.T)
            return np.asarray(_squares(self.mechanism, self.nodes, self.root, common, weights))


_products = jax.jit(products)


@jax.jit
def _squares(
    mechanism: PureProtocol, z: jax.Array, root: jax.Array, common: jax.Array, weights: jax.Array
) -> jax.Array:
    """Sums of squares of weighted sums of terms, one a row of the weights."""

    def square(one: tuple[jax.Array, jax.Array]) -> jax.Array:
        terms = root * supported_mass(mechanism, z, one[0]) + one[1]
        return terms @ terms

    return lax.map(square, (weights, common.T))


def frequencies(
    data: Release | Sketch,
    method: str = "unbiased",
    *,
    alpha: float = 0.02,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Frequencies:
    """Estimate the frequency of each category.

    Parameters
    ----------
    data : Release, CountSketch or ExpandedSketch
        Of a pure protocol, with one budget or one a record; a release, or what an expansion was made from, is counted.
    method : str
        - ``unbiased``: the linear estimate Σ w_i (1[k ∈ S(z_i)] − q_i)/(p_i − q_i) / Σ w_i, where p_i and q_i are the
          mechanism's `support_probabilities` ([WBLJ] sec. 3). With personal budgets w_i is the inverse of a term's
          variance if all categories were equally frequent.
        - ``base_cut``: estimates below T = Φ⁻¹(1 − alpha/categories)·σ are set to 0, where σ is the standard deviation
          of the estimate of a category that does not occur.
        - ``norm_sub``: negative estimates are set to 0 and the same number is subtracted from the others, again and
          again, until none is negative and they sum to one. That is the projection, and computed as such.
        - ``projection``: the point of the simplex that is closest to the unbiased estimate ([HRMS]; [WC]).
        - ``mle``: maximum likelihood; see Notes.
    alpha : float
        Of ``base_cut``: bounds the expected number of categories that do not occur but are kept. Positive, and less
        than the number of categories.
    tolerance : float
        Of ``mle``: how far the log-likelihood may be from its maximum, in nats.
    max_iterations : int
        Of ``mle``.

    Returns
    -------
    Frequencies
        ``unbiased`` and ``mle`` come with standard errors and a covariance, for sampling and perturbation together.

    Raises
    ------
    TypeError
        If `data` is neither a release nor a sketch, or its mechanism is not a pure protocol.
    ValueError
        For an unknown method, a release without values, a sketch of groups, or an option that is out of range.

    Warns
    -----
    RuntimeWarning
        If ``mle`` has not converged.

    Notes
    -----
    ``base_cut`` and ``norm_sub`` are those of [WLLSL].

    ``mle`` repeats EM steps θ_k ← θ_k g_k, where g_k is the mean of p(z_i | k)/p(z_i | θ), extrapolated by SQUAREM
    ([VR]). EM approaches zeros of θ slowly; up to 4096 categories each iteration therefore ends with a Newton step over
    θ ≥ 0, which sets them ([KCSA]). The log-likelihood of N records is concave and its maximum at most N (max g_k − 1)
    above the present value ([Lindsay]): this `gap` ends the iterations.

    Its standard errors come from the observed information about the positive frequencies, with their sum held at one.
    There are none (NaN) for a frequency estimated as 0, at the edge of the simplex, where normal theory fails and
    ``unbiased`` has one; they are enormous where the released values do not tell categories apart.
    """
    make = _METHODS.get(method) if isinstance(method, str) else None
    if make is None:
        raise ValueError(f"method must be one of {', '.join(_METHODS)}, got {method!r}")
    _check(data)
    sketch: Any = data.sketch(expand=False) if isinstance(data, Release) else data
    sketch = sketch.exact if isinstance(sketch, ExpandedSketch) else sketch
    d = sketch.mechanism.categories
    alpha = checked("alpha", alpha, f"positive and less than {d}", lambda a: (a > 0) & (a < d))
    tolerance = checked("tolerance", tolerance, "positive", lambda a: a > 0)
    options = Options(alpha, tolerance, at_least(1, "max_iterations", max_iterations))
    with jax.enable_x64(True):
        made = make(Sample(sketch.mechanism, jnp.asarray(sketch.nodes), jnp.asarray(sketch.weights, float)), options)
    return dataclasses.replace(made, _mechanisms=sketch.mechanisms)


def _check(data: Any) -> None:
    if not isinstance(data, (Release, Sketch)):
        raise TypeError(f"data must be a Release or a CountSketch, got {type(data).__name__}")
    if not isinstance(data.mechanism, PureProtocol):
        raise TypeError(
            "frequencies are those of categories under a pure protocol, such as RandomizedResponse; "
            f"got a release of {type(data.mechanism).__name__}"
        )
    if isinstance(data, Release) and data.values is None:
        raise ValueError("a release without values has no frequencies to estimate; simulate first")
    if isinstance(data, Sketch) and data.law_shape:
        raise ValueError(f"the sketch holds {data.law_shape[0]} groups; make one sketch a group, without by=")


def _unbiased(sample: Sample, options: Options) -> Frequencies:
    estimate, slope, variance = _linear(sample)
    error = np.sqrt(variance(np.clip(estimate, 0, 1)))
    terms = Terms.of(sample, slope, estimate)
    return Frequencies("unbiased", estimate, error, _joint=terms, _variance=variance)


def _base_cut(sample: Sample, options: Options) -> Frequencies:
    estimate, _, variance = _linear(sample)
    threshold = -special.ndtri(options.alpha / len(estimate)) * np.sqrt(variance(0.0))
    return Frequencies("base_cut", np.where(estimate < threshold, 0.0, estimate))


def _projected(method: str, sample: Sample, options: Options) -> Frequencies:
    return Frequencies(method, _project(_linear(sample)[0]))


_METHODS: dict[str, Callable[[Sample, Options], Frequencies]] = {
    "unbiased": _unbiased,
    "base_cut": _base_cut,
    "norm_sub": functools.partial(_projected, "norm_sub"),
    "projection": functools.partial(_projected, "projection"),
    "mle": maximum_likelihood,
}


def _linear(sample: Sample) -> tuple[np.ndarray, np.ndarray, LinearVariance]:
    """Return the linear estimate, what a record of each value moves it by, and its variance given the frequency."""
    mechanism, z, weights = sample
    p, q = mechanism.support_probabilities
    gain = p - q
    even = q + gain / mechanism.categories  # P(k in S(z)) if all categories were equally frequent
    precision = gain**2 / (even * (1 - even))
    counts = np.asarray(weights)
    slope = precision / gain / np.sum(counts * precision)
    estimate = np.asarray(_supporters(mechanism, z, counts * slope)) - np.sum(counts * slope * q)

    def total(each: Any) -> float:
        return np.sum(counts * slope**2 * each)

    return estimate, slope, LinearVariance(total(p * (1 - p)), total(q * (1 - q)), total(gain**2))


def _project(x: np.ndarray) -> np.ndarray:
    """Closest point of the simplex, by sorting ([WC] Algorithm 1)."""
    descending = np.sort(x)[::-1]
    shift = (1 - np.cumsum(descending)) / np.arange(1, len(x) + 1)
    return np.maximum(x + shift[np.flatnonzero(descending + shift > 0)[-1]], 0.0)


@jax.jit
def _supporters(mechanism: PureProtocol, z: jax.Array, weights: jax.Array) -> jax.Array:
    """Σ_i weights_i 1[k ∈ S(z_i)], for every category k."""
    _, transpose = jax.vjp(lambda theta: supported_mass(mechanism, z, theta), jnp.zeros(mechanism.categories))
    return transpose(weights)[0]
