"""How frequent each category is, estimated from a release of a pure protocol.

A release determines an unbiased linear estimate, which may be negative and need not sum to one; the consistent methods
mend that. Maximum likelihood starts from the law of the released values instead, log-concave in the frequencies θ.
"""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import linalg, optimize, stats

from ldpbayes.estimation.sandwich import normal_interval, normal_quantile
from ldpbayes.inference.release import Release
from ldpbayes.likelihood.sketch import CountSketch, Sketch
from ldpbayes.mechanisms import PureProtocol
from ldpbayes.mechanisms.pure_protocol import at_least
from ldpbayes.privacy.tradeoff import checked

__all__ = ["Frequencies", "frequencies"]

METHODS = ("unbiased", "base_cut", "norm_sub", "projection", "mle")
MAX_INFORMATION = 4096  # categories up to which a matrix of their pairs is affordable
CHUNK = 1 << 20  # entries of the likelihood's matrix at a time, where its products with itself are summed


@dataclasses.dataclass(frozen=True)
class _Variance:
    """Variance of the linear estimate of a frequency θ: θ own + (1 − θ) other + θ (1 − θ) sampling.

    The first two are the perturbation of records that have the category and of those that have not.
    """

    own: float
    other: float
    sampling: float

    def __call__(self, theta):
        return theta * self.own + (1 - theta) * self.other + theta * (1 - theta) * self.sampling

    def interval(self, estimate, quantile):
        """All frequencies from which an estimate is at most so many of *their* standard deviations away.

        Below 0 and above 1 the variance is continued as a constant, so that every estimate has an interval.
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


@dataclasses.dataclass(frozen=True, eq=False)
class Frequencies:
    """Estimated frequencies of the categories, as probabilities of the population.

    Attributes
    ----------
    method : str
    estimate : array (categories,)
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
    _variance: _Variance | None = dataclasses.field(default=None, repr=False)

    def interval(self, level=0.95):
        """Confidence intervals, category by category; they may reach beyond [0, 1].

        Those of ``unbiased`` are score intervals (Wilson 1927): the frequencies under which the estimate would be no
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
            raise ValueError(f"this {self.method!r} estimate has no standard errors; use method='unbiased'")
        if self._variance is not None:
            return self._variance.interval(self.estimate, normal_quantile(level))
        return normal_interval(self.estimate, self.standard_error, level)


def frequencies(data, method="unbiased", *, alpha=0.02, tolerance=1e-6, max_iterations=1000):
    """Estimate the frequency of each category.

    Parameters
    ----------
    data : Release or CountSketch
        Of a pure protocol, with one budget or one a record; a release is sketched first.
    method : str
        - ``unbiased``: the linear estimate Σ w_i (1[k ∈ S(z_i)] − q_i)/(p_i − q_i) / Σ w_i, where p_i and q_i are the
          mechanism's `support_probabilities` (Wang, Blocki, Li & Jha 2017, Section 3). With personal budgets w_i is the
          inverse of a term's variance if all categories were equally frequent.
        - ``base_cut``: estimates below T = Φ⁻¹(1 − alpha/categories)·σ are set to 0, where σ is the standard deviation
          of the estimate of a category that does not occur.
        - ``norm_sub``: negative estimates are set to 0 and the same number is subtracted from the others, again and
          again, until none is negative and they sum to one. That is the projection, and computed as such.
        - ``projection``: the point of the simplex that is closest to the unbiased estimate (Hay, Rastogi, Miklau &
          Suciu 2010; Wang & Carreira-Perpiñán 2013).
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
        ``unbiased`` and ``mle`` come with standard errors, for sampling and perturbation together.

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
    ``base_cut`` and ``norm_sub`` are those of Wang, Lopuhaä-Zwakenberg, Li, Škorić & Li (2020, "Locally differentially
    private frequency estimation with consistency").

    ``mle`` repeats EM steps θ_k ← θ_k g_k, where g_k is the mean of p(z_i | k)/p(z_i | θ), extrapolated by SQUAREM
    (Varadhan & Roland 2008, "Simple and globally convergent methods for accelerating the convergence of any EM
    algorithm"). EM approaches zeros of θ slowly; up to 4096 categories each iteration therefore ends with a Newton
    step over θ ≥ 0, which sets them (Kim, Carbonetto, Stephens & Anitescu 2020, "A fast algorithm for maximum
    likelihood estimation of mixture proportions using sequential quadratic programming"). The log-likelihood of N
    records is concave and its maximum at most N (max g_k − 1) above the present value (Lindsay 1983, "The geometry of
    mixture likelihoods"): this `gap` ends the iterations.

    Its standard errors come from the observed information about the positive frequencies, with their sum held at one.
    There are none (NaN) for a frequency estimated as 0, at the edge of the simplex, where normal theory fails and
    ``unbiased`` has one; they are enormous where the released values do not tell categories apart.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    _check(data)
    d = data.mechanism.categories
    alpha = checked("alpha", alpha, f"positive and less than {d}", lambda a: (a > 0) & (a < d))
    tolerance = checked("tolerance", tolerance, "positive", lambda a: a > 0)
    at_least(1, "max_iterations", max_iterations)

    sketch = data.sketch() if isinstance(data, Release) else data
    with jax.enable_x64(True):
        sample = sketch.mechanism, jnp.asarray(sketch.nodes), jnp.asarray(sketch.weights, float)
        if method == "mle":
            return _maximum_likelihood(*sample, tolerance, max_iterations)
        estimate, variance = _unbiased(*sample)
    if method == "unbiased":
        return Frequencies(method, estimate, np.sqrt(variance(np.clip(estimate, 0, 1))), _variance=variance)
    if method == "base_cut":
        threshold = stats.norm.isf(alpha / d) * np.sqrt(variance(0.0))
        return Frequencies(method, np.where(estimate < threshold, 0.0, estimate))
    return Frequencies(method, _project(estimate))


def _check(data):
    if not isinstance(data, (Release, Sketch)):
        raise TypeError(f"data must be a Release or a CountSketch, got {type(data).__name__}")
    if not isinstance(data.mechanism, PureProtocol):
        raise TypeError(
            "frequencies are those of categories under a pure protocol, such as RandomizedResponse; "
            f"got a release of {type(data.mechanism).__name__}"
        )
    if isinstance(data, Release) and data.values is None:
        raise ValueError("a release without values has no frequencies to estimate; simulate first")
    if isinstance(data, CountSketch) and data.groups is not None:
        raise ValueError(f"the sketch holds {data.num_groups} groups; make one sketch a group, without by=")


def _unbiased(mechanism, z, weights):
    """Return the linear estimate, and its variance as a function of the frequency."""
    p, q = mechanism.support_probabilities
    gain = p - q
    even = q + gain / mechanism.categories  # P(k in S(z)) if all categories were equally frequent
    precision = gain**2 / (even * (1 - even))
    weights = np.asarray(weights)
    slope = precision / gain / np.sum(weights * precision)
    estimate = np.asarray(_supporters(mechanism, z, weights * slope)) - np.sum(weights * slope * q)

    def total(each):
        return np.sum(weights * slope**2 * each)

    return estimate, _Variance(total(p * (1 - p)), total(q * (1 - q)), total(gain**2))


def _project(x):
    """Closest point of the simplex, by sorting: Wang & Carreira-Perpiñán (2013), Algorithm 1."""
    descending = np.sort(x)[::-1]
    shift = (1 - np.cumsum(descending)) / np.arange(1, len(x) + 1)
    return np.maximum(x + shift[np.flatnonzero(descending + shift > 0)[-1]], 0.0)


def _maximum_likelihood(mechanism, z, weights, tolerance, max_iterations):
    size, d = float(weights.sum()), mechanism.categories

    def likelihood(theta):
        mean, gradient = _likelihood(mechanism, z, weights, theta)
        return float(mean), np.asarray(gradient)

    def information(theta):
        return np.asarray(_information(mechanism, z, weights, theta))

    slack = 0.1 * tolerance / size
    theta = np.full(d, 1 / d)
    at = likelihood(theta)
    gap, iterations = np.inf, 0
    while gap > tolerance and iterations < max_iterations:
        theta, at = _squarem(theta, at, likelihood, slack)
        if d <= MAX_INFORMATION:
            theta, at = _newton(theta, at, likelihood, information(theta), slack)
        gap, iterations = max(size * (float(at[1].max()) - 1), 0.0), iterations + 1
    if gap > tolerance:
        warnings.warn(
            f"maximum likelihood has not converged in {max_iterations} iterations: the log-likelihood may be "
            f"{gap:.3g} nats below its maximum, the tolerance is {tolerance:.3g}",
            RuntimeWarning,
            stacklevel=3,
        )
    error = _standard_error(theta, size, information(theta)) if d <= MAX_INFORMATION else None
    return Frequencies("mle", theta, error, gap <= tolerance, iterations, gap)


def _squarem(theta, at, likelihood, slack):
    """Two EM steps, extrapolated if that does not make the log-likelihood smaller: Varadhan & Roland, scheme S3."""
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


def _newton(theta, at, likelihood, information, slack):
    """Maximize the quadratic model over θ ≥ 0, and go there as far as the log-likelihood does not get smaller.

    The model is of mean log-likelihood − Σθ, whose maximum over θ ≥ 0 sums to one, so that no constraint is needed.
    """
    mean, gradient = at
    diagonal = np.diag(information)
    damped = information + np.diag(np.where(diagonal > 0, 1e-10 * diagonal, 1.0))
    root = linalg.cholesky(damped, lower=True)
    aim = linalg.solve_triangular(root, damped @ theta + gradient - 1, lower=True)
    target, _ = optimize.nnls(root.T, aim, maxiter=10 * len(theta))
    if target.any():
        target /= target.sum()
        for fraction in 0.5 ** np.arange(10):
            ahead = theta + fraction * (target - theta)
            there = likelihood(ahead)
            if there[0] >= mean - slack:
                return ahead, there
    return theta, at


def _standard_error(theta, size, information):
    """Square roots of the diagonal of (size × information)⁻¹ − θθᵀ/size on the positive frequencies; NaN elsewhere.

    That is the inverse on the tangent space Σ δ = 0, since information @ θ = 1 at the maximum.
    """
    positive = theta > 0
    values, vectors = np.linalg.eigh(information[np.ix_(positive, positive)])
    values = np.maximum(values, np.finfo(float).eps * len(values) * values[-1])
    error = np.full(len(theta), np.nan)
    error[positive] = np.sqrt(np.maximum(np.sum(vectors**2 / values, axis=1) - theta[positive] ** 2, 0.0) / size)
    return error


@jax.jit
def _supporters(mechanism, z, weights):
    """Σ_i weights_i 1[k ∈ S(z_i)], for every category k."""
    _, transpose = jax.vjp(lambda theta: mechanism.supported_mass(z, theta), jnp.zeros(mechanism.categories))
    return transpose(weights)[0]


def _kernel(mechanism):
    """Values of K_ik = p(z_i | k)/p(z_i | supported): e^−ε, and how much more a supported category has."""
    epsilon = jnp.asarray(mechanism.epsilon)
    return jnp.exp(-epsilon), -jnp.expm1(-epsilon)


def _evidence(mechanism, z, theta):
    """K_i·θ for each node, for a θ that need not sum to one."""
    low, more = _kernel(mechanism)
    return low * jnp.sum(theta) + more * mechanism.supported_mass(z, theta)


@jax.jit
def _likelihood(mechanism, z, weights, theta):
    """Mean log-likelihood up to a constant, and its gradient, the mean of K_i/(K_i·θ)."""

    def mean(theta):
        return weights @ jnp.log(_evidence(mechanism, z, theta)) / weights.sum()

    return jax.value_and_grad(mean)(theta)


@jax.jit
def _information(mechanism, z, weights, theta):
    """Mean of K_i K_iᵀ/(K_i·θ)², minus the Hessian of `_likelihood`: (categories, categories), in chunks of nodes."""
    n, d = len(z), mechanism.categories
    scale = jnp.sqrt(weights / weights.sum()) / _evidence(mechanism, z, theta)
    low, more = (scale * part for part in _kernel(mechanism))
    rows = min(n, max(1, CHUNK // d))

    def add(total, start):
        part, low_here, more_here = (
            lax.dynamic_slice_in_dim(a, jnp.minimum(start, n - rows), rows) for a in (z, low, more)
        )
        kernel = low_here[:, None] + more_here[:, None] * mechanism.membership(part)
        # the last chunk overlaps the one before, so that it has the same shape
        new = jnp.arange(rows) >= start - (n - rows)
        kernel = jnp.where(new[:, None], kernel, 0.0)
        return total + kernel.T @ kernel, None

    return lax.scan(add, jnp.zeros((d, d)), jnp.arange(0, n, rows))[0]
