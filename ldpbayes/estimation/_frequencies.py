"""How frequent each category is, estimated from a release of a pure protocol.

A release determines an unbiased linear estimate, which may be negative and need not sum to one; the consistent methods
mend that. Maximum likelihood starts from the law of the released values instead, log-concave in the frequencies θ.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from ldpbayes._checks import at_least, checked
from ldpbayes.data import ExpandedSketch, Sketch
from ldpbayes.data._release import Release
from ldpbayes.estimation._frequencies_result import Frequencies, LinearVariance
from ldpbayes.estimation._maximum_likelihood import Options, Sample, maximum_likelihood
from ldpbayes.estimation._terms import Terms
from ldpbayes.likelihood._supported_mass import supported_mass
from ldpbayes.mechanisms import PureProtocol

__all__ = ["frequencies"]


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
