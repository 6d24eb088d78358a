"""The law of a released value from its definition, in NumPy and SciPy: fine quadrature, sums and enumeration.

Nothing of the package is used but the parameters of a mechanism. `tests/likelihood/reference.py` has the same for a few
pairs in arithmetic of 60 digits; this one is for any pair, to about 1e-10.
"""

import itertools

import numpy as np
import xxhash
from scipy import special, stats
from scipy.linalg import hadamard

__all__ = ["log_marginal", "log_row_marginal"]

PANELS, ORDER = 4, 24
MOST = 2000  # counts that are summed


def log_marginal(law, mechanism, z):
    """Log density (mass, for categories) of one released value.

    Parameters
    ----------
    law : scipy frozen distribution
        Of the record.
    mechanism : Mechanism
        With scalar parameters.
    z : float, int or array
        One released value.
    """
    if hasattr(mechanism, "categories"):
        codes = np.arange(mechanism.categories)
        return float(np.log(np.sum(law.pmf(codes) * [category_probability(mechanism, z, x) for x in codes])))
    lower, upper = float(mechanism.lower), float(mechanism.upper)
    kept, noise = chance_of_none(mechanism), additive_noise(mechanism)
    if kept:  # clipped and released in single precision
        z = next((bound for bound in (lower, upper) if z == np.float32(bound)), z)
    if hasattr(law, "pmf"):
        x = np.arange(MOST + 1)
        log_mass = np.append(law.logpmf(x), law.logsf(MOST))
        places = np.clip(np.append(x, np.inf), lower, upper)
        noisy = np.log1p(-kept) + special.logsumexp(log_mass + noise.logpdf(z - places))
        own = special.logsumexp(log_mass, b=places == z) if kept else -np.inf
        return float(noisy if own == -np.inf else np.log(kept) + own)
    start, stop = law.support()
    if kept and ((z == lower and start < lower) or (z == upper and stop > upper)):
        return float(np.log(kept) + (law.logcdf(lower) if z == lower else law.logsf(upper)))
    noisy = law.cdf(lower) * noise.pdf(z - lower) + law.sf(upper) * noise.pdf(z - upper)
    noisy += smooth_part(law, noise, lower, upper, z)
    own = law.pdf(z) if lower <= z <= upper else 0.0
    return float(np.log(kept * own + (1 - kept) * noisy))


def chance_of_none(mechanism):
    """Probability that a record gets no noise."""
    return float(getattr(mechanism, "zero_probability", 0.0))


def additive_noise(mechanism):
    """The noise as a SciPy distribution."""
    scale = float(mechanism.scale)
    name = type(mechanism).__name__
    if name == "GaussianMechanism":
        return stats.norm(0, scale)
    return stats.laplace(0, scale if name == "LaplaceMechanism" else scale / np.sqrt(2))


def smooth_part(law, noise, lower, upper, z):
    """∫ p(x) p(z | x) dx between the bounds, cut at z, at the ends of the support and at quantiles of the law."""
    start, stop = law.support()
    cuts = [lower, upper, z, start, stop, *law.ppf([1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6])]
    cuts = np.unique(np.clip(cuts, max(lower, start), min(upper, stop)))
    if max(lower, start) >= min(upper, stop):
        return 0.0
    edges = np.unique(np.concatenate([np.linspace(a, b, PANELS + 1) for a, b in itertools.pairwise(cuts)]))
    t, w = np.polynomial.legendre.leggauss(ORDER)
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + t)
    return float(np.sum(half * w * law.pdf(x) * noise.pdf(z - x)))


def log_row_marginal(mean, covariance, mechanism, z):
    """Log density of a normal row plus (zero-inflated) symmetric Laplace noise in all columns, without clipping.

    The noise is normal with variance scale² W, W ~ Exp(1); the integral over log W by the trapezoidal rule.
    """
    t = np.linspace(-30, 5, 1500)
    w = np.exp(t)
    total = covariance + (float(mechanism.scale) ** 2 * w)[:, None, None] * np.eye(len(mean))
    away = z - mean
    square = np.einsum("i,nij,j->n", away, np.linalg.inv(total), away)
    _, log_det = np.linalg.slogdet(2 * np.pi * total)
    noisy = np.sum(np.exp(t - w - 0.5 * (square + log_det))) * (t[1] - t[0])
    kept = chance_of_none(mechanism)
    return float(np.log(kept * stats.multivariate_normal(mean, covariance).pdf(z) + (1 - kept) * noisy))


def category_probability(mechanism, z, x):
    """P(z | x) as the protocol's definition has it."""
    e, k, name = np.exp(float(mechanism.epsilon)), mechanism.categories, type(mechanism).__name__
    if name == "RandomizedResponse":
        return (e if z == x else 1.0) / (e + k - 1)
    if name in ("OptimalUnaryEncoding", "SymmetricUnaryEncoding"):
        p, q = (
            (0.5, 1 / (e + 1)) if name.startswith("Optimal") else (np.sqrt(e) / (np.sqrt(e) + 1), 1 / (np.sqrt(e) + 1))
        )
        own = np.arange(k) == x
        ones = np.where(own, p, q)
        return np.prod(np.where(np.asarray(z) != 0, ones, 1 - ones))
    if name == "SubsetSelection":
        w = mechanism.subset_size
        sets = np.prod(np.arange(k - w + 1, k + 1) / np.arange(1, w + 1))
        with_x = sets * w / k
        return (e if z[x] else 1.0) / (e * with_x + sets - with_x)
    if name == "HadamardResponse":
        size = 1 << k.bit_length()
        agrees = hadamard(size)[x + 1, z] == 1
        return 2 / size * (e if agrees else 1.0) / (e + 1)
    seed, value = (int(number) for number in z)
    same = xxhash.xxh32(str(x), seed=seed).intdigest() % mechanism.hash_range == value
    return 2.0**-32 * (e if same else 1.0) / (e + mechanism.hash_range - 1)
