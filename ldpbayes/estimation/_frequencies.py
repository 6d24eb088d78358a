"""Shares of categories, and their errors."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from ldpbayes._core.checks import ABOVE_0, at_least, checked, warn
from ldpbayes._core.types import Array
from ldpbayes.data import ExpandedSketch, Sketch
from ldpbayes.data.release import Release
from ldpbayes.estimation.estimates import Estimate, cells, table
from ldpbayes.likelihood.closed_forms.categories import supported_mass
from ldpbayes.mechanisms import Mechanism, PureProtocol
from ldpbayes.mechanisms.protocol import statements
from ldpbayes.numerics.minimise import Likelihood, likeliest_shares, nearest_probabilities

DENSE_CATEGORIES = 4096  # categories up to which a matrix of their pairs is affordable
CHUNK = 1 << 20  # entries of the rows of a product that are held at a time
SUMMARY_CATEGORIES = 40  # categories that a summary shows


class Sample(NamedTuple):
    mechanism: PureProtocol
    nodes: Array  # distinct released values (n, ...)
    weights: Array  # number of records (n,) that have each


class Options(NamedTuple):
    method: str
    alpha: float
    tolerance: float
    max_iterations: int


def frequencies(
    data: Release | Sketch,
    method: str = "unbiased",
    *,
    alpha: float = 0.02,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> "FrequencyEstimate":
    """Estimate the frequency of each category; ``unbiased`` and ``mle`` with errors for sampling and perturbation.

    Parameters
    ----------
    data : Release, CountSketch or ExpandedSketch
        Of a pure protocol, with one budget or one a record; a release, or the source of an expansion, is counted.
    method : str
        - ``unbiased``: the linear estimate Σ w_i (1[k ∈ S(z_i)] − q_i)/(p_i − q_i) / Σ w_i, where p_i and q_i are the
          mechanism's `support_probabilities` ([WBLJ] sec. 3). With personal budgets w_i is the inverse of a term's
          variance if all categories were equally frequent.
        - ``base_cut``: estimates below T = Φ⁻¹(1 − alpha/categories)·σ are set to 0, where σ is the standard deviation
          of the estimate of a category that does not occur ([WLLSL]).
        - ``norm_sub``: negative estimates are set to 0 and one number is subtracted from the others, repeatedly, until
          none is negative and they sum to one ([WLLSL]). That is the projection, and computed as such.
        - ``projection``: the point of the simplex that is closest to the unbiased estimate ([HRMS]; [WC]).
        - ``mle``: maximum likelihood; see Notes.
    alpha : float
        Of ``base_cut``: bounds the expected number of categories that do not occur but are kept. Positive, and less
        than the number of categories.
    tolerance : float
        Of ``mle``: distance of the log-likelihood from its maximum, in nats, at which iterations end.
    max_iterations : int
        Of ``mle``, which warns (RuntimeWarning) if they were too few.

    Raises
    ------
    TypeError
        If the mechanism of `data` is not a pure protocol.
    ValueError
        For a release without values, or a sketch of groups.

    Notes
    -----
    ``mle`` repeats EM steps, extrapolated by SQUAREM ([VR]), which approach zeros of θ slowly; up to 4096 categories
    each iteration therefore ends with a Newton step over θ ≥ 0, which sets them ([KCSA]). The `gap`, a bound on the
    distance of the log-likelihood from its maximum ([Lindsay]), ends the iterations. Standard errors come from the
    observed information about the positive frequencies, with their sum held at one. There are none (NaN) for a
    frequency estimated as 0, at the edge of the simplex, where normal theory fails and ``unbiased`` has one; they are
    enormous where the released values do not tell categories apart.
    """
    estimator = _METHODS.get(method) if isinstance(method, str) else None
    if estimator is None:
        raise ValueError(f"method must be one of {', '.join(_METHODS)}, got {method!r}")
    sketch = _exact_counts(data)
    d = sketch.mechanism.categories
    alpha = checked("alpha", alpha, f"positive and less than {d}", lambda a: (a > 0) & (a < d))
    tolerance = checked("tolerance", tolerance, *ABOVE_0)
    options = Options(method, alpha, tolerance, at_least(1, "max_iterations", max_iterations))
    with jax.enable_x64(True):
        sample = Sample(sketch.mechanism, jnp.asarray(sketch.nodes), jnp.asarray(sketch.weights, float))
        estimate = estimator(sample, options)
    return dataclasses.replace(estimate, _mechanisms=sketch.mechanisms)


def _exact_counts(data: Release | Sketch) -> Sketch:
    """A sketch of the exact counts of released values."""
    if not isinstance(data, (Release, Sketch)):
        raise TypeError(f"data must be a Release or a CountSketch, got {type(data).__name__}")
    if not isinstance(data.mechanism, PureProtocol):
        wanted = "categories under a pure protocol, such as RandomizedResponse"
        raise TypeError(f"frequencies are those of {wanted}; got a release of {type(data.mechanism).__name__}")
    if isinstance(data, Release) and data.values is None:
        raise ValueError("a release without values has no frequencies to estimate; simulate first")
    if isinstance(data, Sketch) and data.law_shape:
        raise ValueError(f"the sketch holds {data.law_shape[0]} groups; make one sketch a group, without by=")
    sketch = data.sketch(expand=False) if isinstance(data, Release) else data
    return sketch.exact if isinstance(sketch, ExpandedSketch) else sketch


@dataclasses.dataclass(frozen=True)
class LinearVariance:
    """Variance of the linear estimate of a frequency θ: θ own + (1 − θ) other + θ (1 − θ) sampling."""

    own: float  # by the perturbation of records that have the category
    other: float  # by that of records that have not
    sampling: float

    def __call__(self, theta: Array) -> Array:
        return theta * self.own + (1 - theta) * self.other + theta * (1 - theta) * self.sampling

    def end(self, estimate: np.ndarray, z: float) -> np.ndarray:
        """The frequencies that are z of *their* standard deviations away from an estimate, the furthest if several are.

        The variance is constant below 0 and above 1, so that every estimate has an end.
        """
        lead = 1 + z**2 * self.sampling
        middle = estimate + z**2 * (self.own - self.other + self.sampling) / 2
        root = np.sqrt(np.maximum(middle**2 - lead * (estimate**2 - z**2 * self.other), 0.0))
        below, above = (estimate + z * np.sqrt(self(theta)) for theta in (0.0, 1.0))
        end = (middle + np.sign(z) * root) / lead
        if z < 0:
            return np.where(below < 0, below, np.where(above > 1, above, end))
        return np.where(above > 1, above, np.where(below < 0, below, end))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FrequencyEstimate(Estimate):
    """Estimated frequencies of the categories, as probabilities of the population.

    Intervals of ``unbiased`` are score intervals ([Wilson]): the frequencies under which the estimate would be no
    further off than so many standard deviations. They hold where few records tell of a category, as with infinite
    budgets and many categories; then the standard error, at the estimate itself, does not. They may reach beyond
    [0, 1]. Intervals of ``mle`` and contrasts are normal; those of a sum are too short where hardly any record supports
    one of its categories. ValueError for both if the estimate has no standard errors.

    There are no errors (``standard_error`` is None) after thresholding or projecting, and for ``mle`` with more than
    4096 categories. ``gap`` is an upper bound on the distance of the log-likelihood of ``mle`` from its maximum, in
    nats; ``mle`` has ``converged`` if it is within the tolerance.
    """

    method: str
    estimate: np.ndarray
    standard_error: np.ndarray | None = None
    converged: bool = True
    iterations: int = 0
    gap: float | None = None
    _sample: Sample | None = None
    _slope: Array = None
    _variance: LinearVariance | None = None
    _matrix: np.ndarray | None = None
    _mechanisms: tuple[Mechanism, ...] = ()

    @property
    def params(self) -> np.ndarray:
        return self.estimate

    @cached_property
    def names(self) -> list[str]:
        """The codes of the categories."""
        return [str(code) for code in range(len(self.estimate))]

    @cached_property
    def covariance(self) -> np.ndarray | None:
        """Covariance (categories, categories) of ``unbiased`` and ``mle``.

        None for other methods, and for more than 4096 categories. ``unbiased`` computes it at first use from products
        of the released values' terms, whatever the protocol. With one budget its diagonal has the squares of the
        standard errors, but for estimates below 0 or above 1, whose errors are those of 0 and 1. With several budgets
        they differ by sampling error, of which the covariance has more.
        """
        if self._sample is None or len(self.estimate) > DENSE_CATEGORIES:
            return self._matrix
        with jax.enable_x64(True):
            return np.asarray(_products(self._sample, *_terms(self._sample, self._slope, self.estimate)))

    @cached_property
    def privacy(self) -> str:
        return statements(self._mechanisms)

    @property
    def _title(self) -> str:
        end = "" if self.converged else ", NOT CONVERGED"
        return f"Frequencies, method {self.method!r}, {len(self.estimate)} categories{end}"

    def _check_errors(self) -> None:
        if self.standard_error is None:
            raise ValueError(f"this {self.method!r} estimate has no standard errors; use method='unbiased'")

    def _quantile(self, probability: float) -> np.ndarray:
        self._check_errors()
        if self._variance is None:
            return super()._quantile(probability)
        return self._variance.end(self.estimate, special.ndtri(probability))

    def _variances(self, weights: np.ndarray) -> np.ndarray:
        self._check_errors()
        if self._sample is None:
            return super()._variances(weights)
        with jax.enable_x64(True):
            return np.asarray(_squares(self._sample, *_terms(self._sample, self._slope, self.estimate), weights))

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the frequencies in plain text; of many categories the most frequent ones."""
        shown = np.sort(np.argsort(-self.estimate, kind="stable")[:SUMMARY_CATEGORIES])
        columns = {"frequency": self.estimate}
        if self.standard_error is not None:
            columns |= {"std err": self.standard_error} | self._ends(level)
        some = f", the {SUMMARY_CATEGORIES} most frequent" if len(self.estimate) > SUMMARY_CATEGORIES else ""
        columns = {head: column[shown] for head, column in columns.items()}
        return table(self._title + some, [self.names[code] for code in shown], cells(columns))


def _unbiased(sample: Sample, options: Options) -> FrequencyEstimate:
    estimate, slope, variance = _linear(sample)
    error = np.sqrt(variance(np.clip(estimate, 0, 1)))
    return FrequencyEstimate(options.method, estimate, error, _sample=sample, _slope=slope, _variance=variance)


def _base_cut(sample: Sample, options: Options) -> FrequencyEstimate:
    estimate, _, variance = _linear(sample)
    threshold = -special.ndtri(options.alpha / len(estimate)) * np.sqrt(variance(0.0))
    return FrequencyEstimate(options.method, np.where(estimate < threshold, 0.0, estimate))


def _projected(sample: Sample, options: Options) -> FrequencyEstimate:
    return FrequencyEstimate(options.method, nearest_probabilities(_linear(sample)[0], np))


def _linear(sample: Sample) -> tuple[np.ndarray, np.ndarray, LinearVariance]:
    """The linear estimate, its change by a record of each value, and its variance given the frequency."""
    mechanism, z, weights = sample
    p, q = mechanism.support_probabilities
    gain = p - q
    even = q + gain / mechanism.categories  # P(k in S(z)) if all categories were equally frequent
    precision = gain**2 / (even * (1 - even))
    counts = np.asarray(weights)
    slope = precision / gain / np.sum(counts * precision)
    estimate = np.asarray(_supporters(mechanism, z, counts * slope)) - np.sum(counts * slope * q)
    own, other, sampling = (np.sum(counts * slope**2 * each) for each in (p * (1 - p), q * (1 - q), gain**2))
    return estimate, slope, LinearVariance(own, other, sampling)


@jax.jit
def _supporters(mechanism: PureProtocol, z: jax.Array, weights: jax.Array) -> jax.Array:
    """Σ_i weights_i 1[k ∈ S(z_i)], for every category k."""
    _, transpose = jax.vjp(lambda theta: supported_mass(mechanism, z, theta), jnp.zeros(mechanism.categories))
    return transpose(weights)[0]


def _terms(sample: Sample, slope: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Terms slope_i (1[k ∈ S(z_i)] − q_i − (p_i − q_i) θ_k) of an estimate, as extra_i 1[k ∈ S(z_i)] + low_i @ basis.

    They are independent with mean zero, so that the sum of their products estimates the covariance. Each is multiplied
    by the square root of the number of records with the value.
    """
    p, q = sample.mechanism.support_probabilities
    extra = slope * np.sqrt(np.asarray(sample.weights))
    low = -np.stack(np.broadcast_arrays(extra * q, extra * (p - q)), axis=1)
    return extra, low, np.stack([np.ones_like(theta), theta])


@jax.jit
def _squares(sample: Sample, extra: Array, low: Array, basis: Array, weights: Array) -> jax.Array:
    """Sums of squares of sums of terms with weights (m, categories), by a pass over the released values for each."""

    def square(row_and_column: tuple[jax.Array, jax.Array]) -> jax.Array:
        row, column = row_and_column
        terms = extra * supported_mass(sample.mechanism, sample.nodes, row) + column
        return terms @ terms

    return lax.map(square, (weights, (low @ (basis @ weights.T)).T))


@jax.jit
def _products(sample: Sample, extra: jax.Array, low: jax.Array, basis: jax.Array) -> jax.Array:
    """Σ_i r_i r_iᵀ (categories, categories) of rows r_i = low_i @ basis + extra_i 1[k ∈ S(z_i)], in chunks."""
    n, d = len(sample.nodes), sample.mechanism.categories
    rows = min(n, max(1, CHUNK // d))

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        part, low_here, extra_here = (
            lax.dynamic_slice_in_dim(a, jnp.minimum(start, n - rows), rows) for a in (sample.nodes, low, extra)
        )
        row = low_here @ basis + extra_here[:, None] * sample.mechanism.membership(part)
        # the last chunk overlaps the one before, so that it has the shape of the others
        new = jnp.arange(rows) >= start - (n - rows)
        row = jnp.where(new[:, None], row, 0.0)
        return total + row.T @ row, None

    return lax.scan(add, jnp.zeros((d, d)), jnp.arange(0, n, rows))[0]


def _maximum_likelihood(sample: Sample, options: Options) -> FrequencyEstimate:
    """The frequencies under which the released values are most likely, with the observed information's errors."""
    count, d = float(sample.weights.sum()), sample.mechanism.categories
    dense = d <= DENSE_CATEGORIES

    def likelihood(theta: np.ndarray) -> Likelihood:
        mean, gradient = _likelihood(sample, theta)
        return float(mean), np.asarray(gradient)

    def information(theta: np.ndarray) -> np.ndarray:
        return np.asarray(_information(sample, theta))

    newton = information if dense else None
    theta, gap, steps = likeliest_shares(likelihood, newton, d, count, options.tolerance, options.max_iterations)
    converged = gap <= options.tolerance
    if not converged:
        below = f"the log-likelihood may be {gap:.3g} nats below its maximum, the tolerance is {options.tolerance:.3g}"
        warn(f"maximum likelihood has not converged in {options.max_iterations} iterations: {below}", RuntimeWarning)
    error, covariance = _errors(theta, count, information(theta)) if dense else (None, None)
    return FrequencyEstimate(options.method, theta, error, converged, steps, gap, _matrix=covariance)


_METHODS: dict[str, Callable[[Sample, Options], FrequencyEstimate]] = {
    "unbiased": _unbiased,
    "base_cut": _base_cut,
    "norm_sub": _projected,
    "projection": _projected,
    "mle": _maximum_likelihood,
}


def _errors(theta: np.ndarray, count: float, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors and covariance: (count × information)⁻¹ − θθᵀ/count on the positive frequencies; NaN elsewhere.

    That is the inverse on the tangent space Σ δ = 0, since information @ θ = 1 at the maximum.
    """
    positive = theta > 0
    values, vectors = np.linalg.eigh(information[np.ix_(positive, positive)])
    values = np.maximum(values, np.finfo(float).eps * len(values) * values[-1])
    inverse = (vectors / values) @ vectors.T
    covariance = np.full((len(theta), len(theta)), np.nan)
    covariance[np.ix_(positive, positive)] = (inverse - np.outer(theta[positive], theta[positive])) / count
    return np.sqrt(np.maximum(np.diagonal(covariance), 0.0)), covariance


def _kernel(mechanism: PureProtocol) -> tuple[jax.Array, jax.Array]:
    """K_ik = p(z_i | k)/p(z_i | supported): its value e^−ε for other categories, and how much larger supported ones."""
    epsilon = jnp.asarray(mechanism.epsilon)
    return jnp.exp(-epsilon), -jnp.expm1(-epsilon)


def _mixed(sample: Sample, theta: jax.Array) -> jax.Array:
    """K_i·θ for each node, for a θ that need not sum to one."""
    low, extra = _kernel(sample.mechanism)
    return low * jnp.sum(theta) + extra * supported_mass(sample.mechanism, sample.nodes, theta)


@jax.jit
def _likelihood(sample: Sample, theta: Array) -> tuple[jax.Array, jax.Array]:
    """Mean log-likelihood up to a constant, and its gradient, the mean of K_i/(K_i·θ)."""
    weights = sample.weights / sample.weights.sum()
    return jax.value_and_grad(lambda at: weights @ jnp.log(_mixed(sample, at)))(theta)


@jax.jit
def _information(sample: Sample, theta: jax.Array) -> jax.Array:
    """Mean of K_i K_iᵀ/(K_i·θ)², minus the Hessian of the mean log-likelihood: (categories, categories)."""
    root = jnp.sqrt(sample.weights / sample.weights.sum()) / _mixed(sample, theta)
    low, extra = (root * part for part in _kernel(sample.mechanism))
    return _products(sample, extra, low[:, None], jnp.ones((1, len(theta))))
