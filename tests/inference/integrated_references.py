"""Forty posteriors of one to three parameters in NumPy and SciPy: data, densities, evidence, means and quantiles.

Nothing of JAX, NumPyro or ldpbayes is used. A setting has its data, which `test_integrated_settings.py` passes to a
NumPyro model, and views of the posterior density, which `posterior_grids.py` integrates. Positive parameters are
integrated on the log scale, shares on the logit scale, and heavy tails on the scale of the inverse hyperbolic sine.

``python -m tests.inference.integrated_references`` writes `integrated_references.json`; with the beginnings of names
as arguments, only these settings.
"""

import json
import pathlib
import sys
import time
import zlib

import numpy as np
from scipy import special, stats
from scipy.special import betaln, expit, gammaln, log_expit, log_ndtr

from tests.inference.posterior_grids import View, reference

FILE = pathlib.Path(__file__).parent / "integrated_references.json"
SETTINGS = {}


def setting(name):
    """Register a function of a random generator that returns data, and views or, for independent parts, their lists."""

    def register(function):
        SETTINGS[name] = function
        return function

    return register


def parts_of(name):
    """Data and views of a setting."""
    return SETTINGS[name](np.random.default_rng(zlib.crc32(name.encode())))


def data_of(name):
    return parts_of(name)[0]


def compute(name):
    """The reference of a setting: log evidence, summaries of all quantities, and how far finer grids change them."""
    views = parts_of(name)[1]
    if not isinstance(views[0], list):
        return reference(views)
    parts = [reference(part) for part in views]
    return {
        "log_evidence": sum(part["log_evidence"] for part in parts),
        "entries": {name: entry for part in parts for name, entry in part["entries"].items()},
        "change": max(part["change"] for part in parts),
        "evidence_change": sum(part["evidence_change"] for part in parts),
    }


# --- densities of parameters, with respect to coordinates u -----------------------------------------------------------


def normal(u, mean, sd):
    return stats.norm.logpdf(u, mean, sd)


def gamma_of_log(u, shape, rate):
    return shape * np.log(rate) + shape * u - rate * np.exp(u) - gammaln(shape)


def half_normal_of_log(u, scale):
    return np.log(2) + stats.norm.logpdf(np.exp(u), 0, scale) + u


def half_cauchy_of_log(u, scale):
    return np.log(2 / np.pi) - np.logaddexp(u - np.log(scale), np.log(scale) - u)


def beta_of_logit(u, a, b):
    return a * log_expit(u) + b * log_expit(-u) - betaln(a, b)


def cauchy_of_sinh(u):
    """Of any scale s, where the parameter is s·sinh(u)."""
    return -np.log(np.pi) - np.log(np.cosh(u))


def student_of_sinh(u, freedom):
    """Of any scale s, where the parameter is s·sinh(u)."""
    return stats.t.logpdf(np.sinh(u), freedom) + np.log(np.cosh(u))


# --- log densities (values, points) of released values ----------------------------------------------------------------


def laplace(difference, scale):
    return -np.abs(difference) / scale - np.log(2 * scale)


def log_ndtr_difference(high, low):
    """Log of Φ(high) − Φ(low)."""
    flip = low > 0
    high, low = np.where(flip, -low, high), np.where(flip, -high, low)
    above, below = log_ndtr(high), log_ndtr(low)
    return np.where(high > low, above + np.log1p(-np.exp(np.minimum(below - above, 0.0))), -np.inf)


def normal_laplace(z, mean, sd, scale, lower=-np.inf, upper=np.inf):
    """Normal numbers, clipped, with Laplace noise: a sum over the atoms, and the parts below and above z."""
    z = np.asarray(z, float)[:, None]
    cut, tilt, rise = np.clip(z, lower, upper), sd**2 / scale, (sd / scale) ** 2 / 2
    below = log_ndtr_difference((cut - mean - tilt) / sd, (lower - mean - tilt) / sd) + (mean - z) / scale + rise
    above = log_ndtr_difference((upper - mean + tilt) / sd, (cut - mean + tilt) / sd) + (z - mean) / scale + rise
    result = np.logaddexp(below, above) - np.log(2 * scale)
    if np.isfinite(lower):
        result = np.logaddexp(result, log_ndtr((lower - mean) / sd) + laplace(z - lower, scale))
        result = np.logaddexp(result, log_ndtr((mean - upper) / sd) + laplace(z - upper, scale))
    return result


def normal_gaussian(z, mean, sd, scale, lower=-np.inf, upper=np.inf):
    """Normal numbers, clipped, with Gaussian noise."""
    z = np.asarray(z, float)[:, None]
    variance = sd**2 + scale**2
    result = stats.norm.logpdf(z, mean, np.sqrt(variance))
    if np.isfinite(lower):
        center, width = (mean * scale**2 + z * sd**2) / variance, sd * scale / np.sqrt(variance)
        result = result + log_ndtr_difference((upper - center) / width, (lower - center) / width)
        result = np.logaddexp(result, log_ndtr((lower - mean) / sd) + stats.norm.logpdf(z, lower, scale))
        result = np.logaddexp(result, log_ndtr((mean - upper) / sd) + stats.norm.logpdf(z, upper, scale))
    return result


def discrete_laplace(difference, scale):
    return -np.abs(difference) / scale + np.log(np.tanh(0.5 / scale))


def discrete_gaussian(difference, scale):
    k = np.arange(-40 * int(scale + 1), 40 * int(scale + 1) + 1)
    return -(difference**2) / (2 * scale**2) - np.log(np.exp(-(k**2) / (2 * scale**2)).sum())


def mixed(log_kernel, log_masses):
    """Log of Σₖ exp(kernel (values, k) + masses (k, points)), the masses relative to the largest of each point."""
    top = log_masses.max(axis=0)
    row = log_kernel.max(axis=1)
    return np.log(np.exp(log_kernel - row[:, None]) @ np.exp(log_masses - top)) + top + row[:, None]


def summed(log_kernel, log_masses):
    """As `mixed`, without the loss of terms that are small relative to the largest mass."""
    return special.logsumexp(log_kernel[:, :, None] + log_masses[None], axis=1)


def panels(low, high, count, order=16):
    """Gauss-Legendre nodes and weights on panels (..., count·order) between two arrays."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    edges = np.linspace(0, 1, count + 1)
    t = (edges[:-1, None] + (nodes + 1) / (2 * count)).ravel()
    low, high = np.asarray(low, float)[..., None], np.asarray(high, float)[..., None]
    return low + (high - low) * t, (high - low) * np.tile(weights, count) / (2 * count)


def laplace_by_panels(z, log_pdf, log_below, log_above, scale, lower, upper, count):
    """Any law, clipped, with Laplace noise: panels on both sides of each z, and the two atoms."""
    result = []
    for value in np.asarray(z, float):
        cut = np.clip(value, lower, upper)
        x, w = (np.concatenate(part) for part in zip(panels(lower, cut, count), panels(cut, upper, count), strict=True))
        x, w = x[w > 0], w[w > 0]
        inner = special.logsumexp(log_pdf(x[:, None]) + (laplace(value - x, scale) + np.log(w))[:, None], axis=0)
        atoms = log_below(lower) + laplace(value - lower, scale), log_above(upper) + laplace(value - upper, scale)
        result.append(special.logsumexp([inner, *atoms], axis=0))
    return np.stack(result)


def square_wave(z, cdf, epsilon, lower, upper):
    """Any continuous law, clipped, under the square wave mechanism; `cdf` is of numbers (values, 1)."""
    z, width = np.asarray(z, float)[:, None], upper - lower
    b = (epsilon * np.exp(epsilon) - np.exp(epsilon) + 1) / (2 * np.exp(epsilon) * (np.exp(epsilon) - 1 - epsilon))
    far = 1 / (2 * b * np.exp(epsilon) + 1)
    end, begin = z + b * width, z - b * width
    near = np.where(end >= upper, 1.0, cdf(np.minimum(end, upper))) - np.where(
        begin <= lower, 0.0, cdf(np.maximum(begin, lower))
    )
    return np.log(far * (1 + np.expm1(epsilon) * near) / width)


def square_wave_draws(rng, x, epsilon, lower, upper):
    b = (epsilon * np.exp(epsilon) - np.exp(epsilon) + 1) / (2 * np.exp(epsilon) * (np.exp(epsilon) - 1 - epsilon))
    unit = (np.clip(x, lower, upper) - lower) / (upper - lower)
    near = rng.random(len(x)) < 2 * b * np.exp(epsilon) / (2 * b * np.exp(epsilon) + 1)
    anywhere = rng.random(len(x))
    # what is not near is uniform on the unit interval's length left over: [−b, 1 + b] without [x − b, x + b]
    far = np.where(anywhere < unit, anywhere - b, anywhere + b)
    return lower + (upper - lower) * np.where(near, unit + b * rng.uniform(-1, 1, len(x)), far)


def answers_to(rng, yes, epsilon):
    return np.where(rng.random(np.shape(yes)) < expit(epsilon), yes, ~yes).astype(int)


def log_likelihood_of_yes(u, yes, no, epsilon):
    """Of numbers of randomized answers, where u are log-odds of a true yes."""
    keep = expit(epsilon)
    return yes * np.log(1 - keep + (2 * keep - 1) * expit(u)) + no * np.log(1 - keep + (2 * keep - 1) * expit(-u))


def shares_of(parts):
    """Shares (categories, points), where each of the first is a part of what is left, and the last is the rest."""
    rest, shares = np.ones_like(parts[0]), []
    for part in parts:
        shares.append(rest * part)
        rest = rest * (1 - part)
    return np.stack([*shares, rest])


def views_of_shares(log_likelihood, concentrations, name="theta", **options):
    """A view for each category, in which its share comes first. `log_likelihood` takes shares (categories, points).

    Under a Dirichlet law the parts of what is left are independent and have Beta laws. Coordinates are the parts, or
    their logits where the density of a part has poles.
    """
    views, count, even = [], len(concentrations), min(concentrations) >= 1
    if even:
        options |= {"sheared": False, "limits": {k: (0, 1) for k in range(count)}}
        options |= {"start": (0.3,) * count, "scale": (0.1,) * count}
    for first in range(count):
        order = [first, *(k for k in range(count) if k != first)]
        own = np.array(concentrations)[order]
        others = np.cumsum(own[::-1])[::-1][1:]

        def log_density(*u, fine, order=order, own=own, others=others):
            law = stats.beta.logpdf if even else beta_of_logit
            prior = sum(law(each, a, b) for each, a, b in zip(u, own, others, strict=False))
            return prior + log_likelihood(shares_of(u if even else [*map(expit, u)])[np.argsort(order)])

        entries = {f"{name}[{first}]": (0, identity if even else expit, 2)}
        views.append(View(log_density, count - 1, entries, **options))
    return views


def identity(u):
    return u


# --- one parameter ----------------------------------------------------------------------------------------------------


@setting("share at the edge")
def _(rng):
    answers = answers_to(rng, rng.random(40) < 0.01, 1.0)
    answers[:] = np.arange(40) < 8  # a share below that of false answers

    def log_density(u, fine):
        return beta_of_logit(u, 0.5, 0.5) + log_likelihood_of_yes(u, answers.sum(), (1 - answers).sum(), 1.0)

    return {"answers": answers}, [View(log_density, 1, {"theta": (0, expit, 2)})]


@setting("share near one")
def _(rng):
    answers = answers_to(rng, rng.random(1000) < 0.998, 2.0)

    def log_density(u, fine):
        return beta_of_logit(u, 1, 1) + log_likelihood_of_yes(u, answers.sum(), (1 - answers).sum(), 2.0)

    entries = {"theta": (0, expit, 2), "rest": (0, lambda u: expit(-u), 2)}
    return {"answers": answers}, [View(log_density, 1, entries)]


def plateau(errors):
    n, false = 3500, 1 - expit(1.1)
    yes = round(n * false + errors * np.sqrt(n * false * (1 - false)))

    def log_density(u, fine):
        return normal(u, -2, 8) + log_likelihood_of_yes(u, yes, n - yes, 1.1)

    view = View(log_density, 1, {"a": (0, identity, 2), "theta": (0, expit, 2)}, sheared=False, scale=(3.0,))
    return {"answers": (np.arange(n) < yes).astype(int)}, [view]


@setting("plateau, 3.4 standard errors")
def _(rng):
    return plateau(3.4)


@setting("plateau, 4.2 standard errors")
def _(rng):
    return plateau(4.2)


@setting("square of a mean")
def _(rng):
    z = 4 + rng.normal(0, 1, 3) + rng.laplace(0, 0.5, 3)

    def log_density(u, fine):
        return normal(u, 0, 3) + normal_laplace(z, u**2, 1.0, 0.5).sum(0)

    return {"z": z}, [View(log_density, 1, {"mu": (0, identity, 2)}, sheared=False, refine=2)]


@setting("Cauchy prior, one clipped record")
def _(rng):
    z = np.array([14.0 + rng.normal()])

    def log_density(u, fine):
        return cauchy_of_sinh(u) + normal_laplace(z, np.sinh(u), 1.0, 20.0, -10, 10).sum(0)

    return {"z": z}, [View(log_density, 1, {"mu": (0, np.sinh, 0)}, sheared=False, refine=2)]


@setting("half-Cauchy prior, one record")
def _(rng):
    z = np.array([5.0 + rng.normal()])

    def log_density(u, fine):
        return half_cauchy_of_log(u, 2.0) + normal_gaussian(z, 0.0, np.exp(u), 1.0).sum(0)

    return {"z": z}, [View(log_density, 1, {"tau": (0, np.exp, 1)}, sheared=False, depth=60)]


@setting("noisy count")
def _(rng):
    z, n = np.array([int(rng.poisson(260) + rng.integers(-20, 20))]), np.arange(4500)[:, None]

    def log_density(u, fine):
        masses = stats.poisson.logpmf(n, np.exp(u))
        return gamma_of_log(u, 2, 0.01) + mixed(discrete_laplace(z[:, None] - n.T, 36.0), masses).sum(0)

    return {"z": z}, [View(log_density, 1, {"rate": (0, np.exp, 2)}, start=(5.5,), scale=(0.3,), refine=0.5)]


@setting("exponential, sketch of 100,000")
def _(rng):
    z = np.clip(rng.exponential(1.6, 100_000), 0, 10) + rng.laplace(0, 10, 100_000)

    def log_density(u, fine):
        # one divided by the scale of the noise is 0.1
        result, low, high, cut = np.empty(len(u)), z < 0, z > 10, np.clip(z, 0, 10)
        start = np.exp(np.where(high, -1.0, np.where(low, 0.0, -cut / 10)) - np.where(high, (z - 10) / 10, 0.0))
        for i, rate in enumerate(np.exp(u)):
            # from 0 to the cut, and from the cut to 10; with exponents in which neither overflows
            k, m = rate - 0.1, rate + 0.1
            left = start * -np.expm1(-k * cut) / k
            right = (
                np.exp(np.where(low, z / 10, 0.0)) * (np.exp(-rate * cut) - np.exp(-rate * 10 + (cut - 10) / 10)) / m
            )
            atom = np.exp(-rate * 10 - np.abs(z - 10) / 10)
            result[i] = np.log((rate * (left + np.where(high, 0.0, right)) + atom) / 20).sum()
        return gamma_of_log(u, 2, 1) + result

    view = View(log_density, 1, {"rate": (0, np.exp, 2)}, start=(-0.5,), scale=(0.05,), refine=0.08)
    return {"z": z}, [view]


@setting("negative noisy count")
def _(rng):
    z, n = np.array([-12.0 + rng.normal()]), np.arange(2000)[:, None]

    def log_density(u, fine):
        masses = stats.poisson.logpmf(n, np.exp(u))
        return normal(u, 4, 1.5) + mixed(stats.norm.logpdf(z[:, None], n.T, 20), masses).sum(0)

    return {"z": z}, [View(log_density, 1, {"rate": (0, np.exp, 2)}, start=(2.0,), sheared=False)]


@setting("uniform location of a Student law")
def _(rng):
    z = np.clip(6.2 + rng.standard_t(4, 12), -8, 8) + rng.laplace(0, 8, 12)

    def log_density(u, fine):
        mu = -3 + 9 * expit(u)
        law = stats.t(4, mu, 1.0)
        values = laplace_by_panels(z, law.logpdf, law.logcdf, law.logsf, 8.0, -8, 8, 6 * fine)
        return beta_of_logit(u, 1, 1) + values.sum(0)

    return {"z": z}, [View(log_density, 1, {"mu": (0, lambda u: -3 + 9 * expit(u), 2)}, sheared=False)]


def log_negative_binomial(n, mean, concentration):
    p = concentration / (concentration + mean)
    rest = mean / (concentration + mean)
    binomial = gammaln(n + concentration) - gammaln(concentration) - gammaln(n + 1)
    return binomial + concentration * np.log(p) + n * np.log(rest)


def clipped_counts(z, mean, concentration, scale, most, weights):
    """Negative binomial counts, clipped to 0, ..., most, with discrete Laplace noise."""
    n = np.arange(most)[:, None]
    masses = log_negative_binomial(n, mean, concentration)
    tail = special.betainc(most, concentration, mean / (mean + concentration))  # P(count ≥ most)
    masses = np.concatenate([masses, np.log(tail)[None]])
    kernel = discrete_laplace(np.asarray(z)[:, None] - np.arange(most + 1), scale)
    return weights @ summed(kernel, masses)


@setting("negative binomial, 30 records")
def _(rng):
    x = rng.negative_binomial(2, 2 / (2 + 4.0), 30)
    z = np.clip(x, 0, 20) + rng.geometric(1 - np.exp(-0.1), 30) - rng.geometric(1 - np.exp(-0.1), 30)

    def log_density(u, fine):
        return gamma_of_log(u, 2, 0.5) + clipped_counts(z, np.exp(u), np.full_like(u, 2.0), 10.0, 20, np.ones(30))

    return {"z": z}, [View(log_density, 1, {"mean": (0, np.exp, 2)}, start=(1.0,))]


@setting("binomial under k-ary response")
def _(rng):
    x, keep = rng.binomial(10, 0.2, 200), np.exp(2.0) / (np.exp(2.0) + 10)
    z = np.where(rng.random(200) < keep, x, (x + rng.integers(1, 11, 200)) % 11)
    counts, k = np.bincount(z, minlength=11), np.arange(11)[:, None]

    def log_density(u, fine):
        masses = np.exp(np.log(special.comb(10, k)) + k * log_expit(u) + (10 - k) * log_expit(-u))
        other = (1 - keep) / 10
        return beta_of_logit(u, 2, 5) + counts @ np.log(other + (keep - other) * masses)

    return {"z": z}, [View(log_density, 1, {"theta": (0, expit, 2)}, start=(-1.4,), scale=(0.2,))]


@setting("beta law, square wave")
def _(rng):
    z = square_wave_draws(rng, rng.beta(1.5, 2, 50), 1.0, 0, 1)

    def log_density(u, fine):
        values = square_wave(z, lambda x: special.betainc(np.exp(u), 2.0, x), 1.0, 0, 1)
        return half_normal_of_log(u, 3.0) + values.sum(0)

    return {"z": z}, [View(log_density, 1, {"a": (0, np.exp, 2)}, scale=(0.3,))]


# --- two parameters ---------------------------------------------------------------------------------------------------


@setting("normal, sketch of 2,000")
def _(rng):
    z = np.clip(rng.normal(1, 2, 2000), -5, 5) + rng.laplace(0, 10, 2000)

    def log_density(mu, sigma, fine):
        return normal(mu, 0, 5) + stats.gamma.logpdf(sigma, 2) + normal_laplace(z, mu, sigma, 10.0, -5, 5).sum(0)

    entries = {"mu": (0, identity, 2), "sigma": (1, identity, 2)}
    view = View(log_density, 2, entries, (1.0, 2.0), (0.3, 0.8), False, 32.0, 0.6, limits={1: (0, np.inf)})
    return {"z": z}, [view]


@setting("normal, one record")
def _(rng):
    z = np.array([3.0 + rng.normal()])

    def log_density(mu, sigma, fine):
        return normal(mu, 0, 5) + stats.gamma.logpdf(sigma, 2) + normal_laplace(z, mu, sigma, 10.0, -5, 5).sum(0)

    entries = {"mu": (0, identity, 2), "sigma": (1, identity, 2)}
    return {"z": z}, [View(log_density, 2, entries, (0.0, 1.5), (4.0, 1.0), False, refine=3, limits={1: (0, np.inf)})]


@setting("normal, ten records with Gaussian noise")
def _(rng):
    z = np.clip(rng.normal(-1, 1.5, 10), -5, 5) + rng.normal(0, 2, 10)

    def log_density(u, sigma, fine):
        prior = student_of_sinh(u, 3) + stats.halfnorm.logpdf(sigma, 0, 2)
        return prior + normal_gaussian(z, 2 * np.sinh(u), sigma, 2.0, -5, 5).sum(0)

    entries = {"mu": (0, lambda u: 2 * np.sinh(u), 2), "sigma": (1, identity, 2)}
    entries["precision"] = (1, lambda sigma: sigma**-2, 0)
    return {"z": z}, [
        View(log_density, 2, entries, (-0.5, 1.5), (0.4, 0.8), False, refine=1.5, limits={1: (0, np.inf)})
    ]


@setting("ridge of a sum")
def _(rng):
    z = rng.normal(3, np.hypot(0.3, 0.5), 20)

    def log_density(a, b, fine):
        return normal(a, 0, 10) + normal(b, 0, 10) + normal_gaussian(z, a + b, 0.3, 0.5).sum(0)

    return {"z": z}, [View(log_density, 2, {"a": (0, identity, 2), "b": (1, identity, 2)}, (1.5, 1.5), (2.0, 2.0))]


@setting("ridge of a product")
def _(rng):
    z = np.array([int(rng.poisson(250))])
    n = np.arange(900)[:, None]

    def log_density(u, v, fine):
        masses = stats.poisson.logpmf(n, 100 * np.exp(u + v))
        return normal(u, 0, 1) + normal(v, 0, 1) + mixed(discrete_laplace(z[:, None] - n.T, 3.0), masses).sum(0)

    return {"z": z}, [View(log_density, 2, {"a": (0, np.exp, 2), "b": (1, np.exp, 2)}, (0.45, 0.45), (0.5, 0.5))]


@setting("gamma law")
def _(rng):
    z = np.clip(rng.gamma(1.5, 1 / 0.6, 100), 0, 10) + rng.normal(0, 3, 100)

    def log_likelihood(log_shape, log_rate, fine):
        # integrated by parts: what multiplies the distribution function is the derivative of the noise's density
        t, w = panels(0.0, 1.0, 6 * fine)
        x, w = 10 * t**4, 40 * t**3 * w
        below = special.gammainc(np.exp(log_shape), np.exp(log_rate) * x[:, None])
        slope = stats.norm.pdf(z[:, None], x, 3) * (z[:, None] - x) / 9
        return np.log(stats.norm.pdf(z[:, None], 10, 3) - (slope * w) @ below).sum(0)

    def log_density(u, v, fine):
        return normal(u, 0, 1) + normal(v, 0, 1) + log_likelihood(u, v, fine)

    def by_mean(u, v, fine):  # the log mean, and the log shape
        return log_density(v, v - u, fine)

    entries = {"shape": (0, np.exp, 2), "rate": (1, np.exp, 2)}
    views = [View(log_density, 2, entries, (0.4, -0.5), (0.4, 0.4), refine=1.4)]
    return {"z": z}, [*views, View(by_mean, 2, {"mean": (0, np.exp, 2)}, (0.9, 0.4), (0.2, 0.4), refine=2)]


@setting("log-normal law, eight records")
def _(rng):
    z = np.clip(np.exp(rng.normal(1, 0.8, 8)), 0, 20) + rng.laplace(0, 10, 8)

    def log_density(m, s, fine):
        total = normal(m, 0, 2) + stats.gamma.logpdf(s, 3, scale=1 / 3)
        end = (np.log(20) - m) / s
        for value in z:  # by t = (log x − m)/s, which is standard normal
            high = np.clip(end, -12, 12)
            cut = np.clip((np.log(value) - m) / s, -12, high) if value > 0 else np.full_like(m, -12.0)
            parts = [log_ndtr(-end) + laplace(value - 20, 10.0)]
            for low, top in ((-12.0 + 0 * m, cut), (cut, high)):
                t, w = panels(low, top, 3 * fine)
                inner = stats.norm.logpdf(t) + laplace(value - np.exp(m[:, None] + s[:, None] * t), 10.0)
                parts.append(special.logsumexp(inner, axis=-1, b=w))
            total = total + special.logsumexp(parts, axis=0)
        return total

    entries = {"location": (0, identity, 2), "spread": (1, identity, 2)}
    return {"z": z}, [View(log_density, 2, entries, (0.5, 0.7), (1.0, 0.5), False, 28.0, 1.3, limits={1: (0, np.inf)})]


@setting("clipped counts, sketch of 300")
def _(rng):
    x = rng.negative_binomial(1.5, 1.5 / (1.5 + 3.0), 300)
    z = np.clip(x, 0, 15) + rng.geometric(1 - np.exp(-1 / 15), 300) - rng.geometric(1 - np.exp(-1 / 15), 300)
    values, counts = np.unique(z, return_counts=True)

    def log_density(u, v, fine):
        return normal(u, 0, 2) + normal(v, 0, 1) + clipped_counts(values, np.exp(u), np.exp(v), 15.0, 15, counts)

    entries = {"mean": (0, np.exp, 2), "concentration": (1, np.exp, 2)}
    return {"z": z}, [View(log_density, 2, entries, (1.1, 0.4), (0.3, 0.7), refine=1.4)]


@setting("beta law of two shapes, square wave")
def _(rng):
    z = square_wave_draws(rng, rng.beta(2, 4, 25), 2.0, 0, 1)

    def log_density(u, v, fine):
        values = square_wave(z, lambda x: special.betainc(np.exp(u), np.exp(v), x), 2.0, 0, 1)
        return gamma_of_log(u, 2, 0.5) + gamma_of_log(v, 2, 0.5) + values.sum(0)

    view = View(log_density, 2, {"a": (0, np.exp, 2), "b": (1, np.exp, 2)}, (0.7, 1.3), (0.4, 0.4), refine=0.8)
    return {"z": z}, [view]


@setting("three categories, sketch of k-ary answers")
def _(rng):
    x, keep = rng.choice(3, 500, p=[0.6, 0.38, 0.02]), np.exp(1.0) / (np.exp(1.0) + 2)
    z = np.where(rng.random(500) < keep, x, (x + rng.integers(1, 3, 500)) % 3)
    counts, other = np.bincount(z, minlength=3), (1 - keep) / 2

    def log_likelihood(shares):
        return counts @ np.log(other + (keep - other) * shares)

    return {"z": z}, views_of_shares(log_likelihood, [1.0, 1.0, 1.0])


def bits_of(rng, x, keep, false, categories):
    own = x[:, None] == np.arange(categories)
    return (rng.random(own.shape) < np.where(own, keep, false)).astype(np.uint8)


def log_likelihood_of_bits(bits, keep, false):
    patterns, counts = np.unique(bits, axis=0, return_counts=True)
    own = np.eye(bits.shape[1], dtype=bool)[None]  # (1, true category, bit)
    chance = np.where(own, keep, false)
    kernel = np.where(patterns[:, None, :] == 1, chance, 1 - chance).prod(axis=-1)  # (patterns, true category)
    return lambda shares: counts @ np.log(kernel @ shares)


@setting("three categories, thirty unary answers")
def _(rng):
    false = 1 / (np.exp(1.0) + 1)
    bits = bits_of(rng, rng.choice(3, 30, p=[0.8, 0.2, 0.0]), 0.5, false, 3)
    return {"z": bits}, views_of_shares(log_likelihood_of_bits(bits, 0.5, false), [0.5, 0.5, 0.5], depth=45.0, refine=2)


@setting("two shares in a plate")
def _(rng):
    answers = [answers_to(rng, rng.random(n) < share, 1.0) for n, share in ((100, 0.3), (40, 0.95))]
    parts = []
    for group, each in enumerate(answers):

        def log_density(u, fine, each=each):
            return beta_of_logit(u, 1, 1) + log_likelihood_of_yes(u, each.sum(), (1 - each).sum(), 1.0)

        parts.append([View(log_density, 1, {f"theta[{group}]": (0, expit, 2)})])
    return {"first": answers[0], "second": answers[1]}, parts


@setting("two components change places")
def _(rng):
    z = np.clip(rng.normal(np.where(rng.random(25) < 0.5, -2.5, 2.5), 1), -10, 10) + rng.laplace(0, 1, 25)

    def log_density(a, b, fine):
        parts = [normal_laplace(z, each, 1.0, 1.0, -10, 10) for each in (a, b)]
        return normal(a, 0, 3) + normal(b, 0, 3) + (np.logaddexp(*parts) - np.log(2)).sum(0)

    entries = {"mu[0]": (0, identity, 2), "mu[1]": (1, identity, 2)}
    return {"z": z}, [View(log_density, 2, entries, sheared=False, refine=1.5)]


@setting("heavy priors, three records")
def _(rng):
    z = np.array([-1.0, 1.5, 7.0]) + rng.normal(0, 0.5, 3)

    def log_density(u, v, fine):
        prior = cauchy_of_sinh(u) + half_cauchy_of_log(v, 1)
        return prior + normal_laplace(z, 2 * np.sinh(u), np.exp(v), 0.8).sum(0)

    entries = {"mu": (0, lambda u: 2 * np.sinh(u), 2), "sigma": (1, np.exp, 2)}
    return {"z": z}, [View(log_density, 2, entries, (0.3, 1.0), (0.7, 0.7), sheared=False, depth=50, refine=2.5)]


@setting("table of three cells on a line")
def _(rng):
    z = rng.poisson(np.exp(np.array([4.2, 5.1, 6.0]))) + rng.integers(-8, 9, 3)

    def log_density(base, slope, fine):
        total = normal(base, 5, 2) + normal(slope, 0, 1)
        for x, value in zip((-1, 0, 1), z, strict=True):
            n = np.arange(max(0, value - 420), value + 421)[:, None]
            total = (
                total + mixed(discrete_laplace(value - n.T, 10.0), stats.poisson.logpmf(n, np.exp(base + slope * x)))[0]
            )
        return total

    view = View(
        log_density, 2, {"base": (0, identity, 2), "slope": (1, identity, 2)}, (5.1, 0.9), (0.1, 0.1), refine=0.7
    )
    return {"z": z}, [view]


def answers_at_levels(rng, logits, count, epsilon):
    """Levels of a covariate (count,) and randomized answers, and their numbers (levels,) of yes and no."""
    level = rng.integers(0, len(logits), count)
    answers = answers_to(rng, rng.random(count) < expit(np.asarray(logits)[level]), epsilon)
    yes = np.bincount(level, answers, len(logits))
    return level, answers, yes, np.bincount(level, minlength=len(logits)) - yes


@setting("logistic line")
def _(rng):
    x = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    level, answers, yes, no = answers_at_levels(rng, 0.5 + 2 * x, 200, 2.0)

    def log_density(a, b, fine):
        total = normal(a, 0, 3) + normal(b, 0, 3)
        for each in range(5):
            total = total + log_likelihood_of_yes(a + b * x[each], yes[each], no[each], 2.0)
        return total

    view = View(log_density, 2, {"a": (0, identity, 2), "b": (1, identity, 2)}, (0.5, 2.0), (0.3, 0.6))
    return {"x": x[level], "answers": answers}, [view]


# --- three parameters -------------------------------------------------------------------------------------------------


@setting("contaminated normal")
def _(rng):
    z = np.clip(np.where(rng.random(12) < 0.6, rng.normal(4, 0.7, 12), rng.normal(0, 1, 12)), -8, 8)
    z = z + rng.laplace(0, 1, 12)
    clean = normal_laplace(z, 0.0, 1.0, 1.0, -8, 8)

    def log_density(u, mu, v, fine):
        prior = beta_of_logit(u, 1, 1) + normal(mu, 0, 3) + normal(v, 0, 0.5)
        other = normal_laplace(z, mu, np.exp(v), 1.0, -8, 8)
        return prior + np.logaddexp(log_expit(u) + other, log_expit(-u) + clean).sum(0)

    entries = {"share": (0, expit, 2), "mu": (1, identity, 2), "sigma": (2, np.exp, 2)}
    view = View(log_density, 3, entries, (0.4, 4.0, 0.0), (0.7, 1.0, 0.5), sheared=False, depth=26, refine=1.3)
    return {"z": z}, [view]


@setting("two groups with one spread")
def _(rng):
    z = [np.clip(rng.normal(m, 1.5, n), -6, 6) + rng.normal(0, 1, n) for m, n in ((-1, 10), (3, 6))]

    def log_density(a, b, sigma, fine):
        prior = normal(a, 0, 3) + normal(b, 0, 3) + stats.halfnorm.logpdf(sigma, 0, 2)
        parts = (normal_gaussian(each, mu, sigma, 1.0, -6, 6).sum(0) for each, mu in zip(z, (a, b), strict=True))
        return prior + sum(parts)

    entries = {"mu[0]": (0, identity, 2), "mu[1]": (1, identity, 2), "sigma": (2, identity, 2)}
    view = View(log_density, 3, entries, (-1.0, 3.0, 1.5), (0.6, 0.7, 0.4), False, 30.0, 1.0, limits={2: (0, np.inf)})
    return {"first": z[0], "second": z[1]}, [view]


@setting("ridge of three")
def _(rng):
    z = rng.normal(2, np.sqrt(0.5), 8)

    def log_density(a, b, c, fine):
        prior = normal(a, 0, 5) + normal(b, 0, 5) + normal(c, 0, 5)
        return prior + normal_gaussian(z, a + b + c, 0.5, 0.5).sum(0)

    entries = {name: (i, identity, 2) for i, name in enumerate("abc")}
    return {"z": z}, [View(log_density, 3, entries, (0.7, 0.7, 0.6), (3.0, 3.0, 3.0))]


@setting("mixture with Dirichlet weights")
def _(rng):
    z = np.clip(np.where(rng.random(15) < 0.4, rng.normal(-2, 1, 15), rng.normal(2.5, 1, 15)), -8, 8)
    z = z + rng.laplace(0, 0.7, 15)

    def log_density(u, a, b, fine):
        prior = beta_of_logit(u, 2, 2) + normal(a, 0, 3) + normal(b, 0, 3)
        parts = [normal_laplace(z, each, 1.0, 0.7, -8, 8) for each in (a, b)]
        return prior + np.logaddexp(log_expit(u) + parts[0], log_expit(-u) + parts[1]).sum(0)

    entries = {"weights[0]": (0, expit, 2), "weights[1]": (0, lambda u: expit(-u), 2)}
    entries |= {"mu[0]": (1, identity, 2), "mu[1]": (2, identity, 2)}
    return {"z": z}, [View(log_density, 3, entries, sheared=False, depth=28, refine=1.1)]


@setting("four categories, sketch of unary answers")
def _(rng):
    keep = expit(1.0)  # a budget of 2, half for each of two bits
    bits = bits_of(rng, rng.choice(4, 200, p=[0.5, 0.3, 0.15, 0.05]), keep, 1 - keep, 4)
    return {"z": bits}, views_of_shares(log_likelihood_of_bits(bits, keep, 1 - keep), [1.0] * 4, depth=30.0)


@setting("Student law, square wave")
def _(rng):
    z = square_wave_draws(rng, 1 + 2 * rng.standard_t(3, 5), 2.0, -10, 10)

    def log_density(mu, u, v, fine):
        prior = normal(mu, 0, 5) + normal(u, 1.0, 0.4) + gamma_of_log(v, 2, 0.1)
        values = square_wave(z, lambda x: special.stdtr(np.exp(v), (x - mu) / np.exp(u)), 2.0, -10, 10)
        return prior + values.sum(0)

    entries = {"mu": (0, identity, 2), "sigma": (1, np.exp, 2), "freedom": (2, np.exp, 2)}
    view = View(log_density, 3, entries, (1.0, 1.0, 2.5), (1.0, 0.4, 0.7), depth=28, refine=1.1)
    return {"z": z}, [view]


@setting("table of three free cells")
def _(rng):
    z = np.array([-9, 30, 220]) + rng.integers(-5, 6, 3)
    n = np.arange(0, 600)[:, None]
    parts = []
    for cell, value in enumerate(z):

        def log_density(u, fine, value=value):
            kernel = discrete_gaussian(value - n.T, 15.0)
            return gamma_of_log(u, 1, 0.02) + summed(kernel, stats.poisson.logpmf(n, np.exp(u)))[0]

        parts.append([View(log_density, 1, {f"rate[{cell}]": (0, np.exp, 2)}, start=(3.0,), sheared=False)])
    return {"z": z}, parts


@setting("logistic curve")
def _(rng):
    x = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    level, answers, yes, no = answers_at_levels(rng, -0.5 + x + 1.5 * x**2, 1000, 1.0)

    def log_density(a, b, c, fine):
        total = normal(a, 0, 2) + normal(b, 0, 2) + normal(c, 0, 2)
        for each in range(5):
            total = total + log_likelihood_of_yes(a + b * x[each] + c * x[each] ** 2, yes[each], no[each], 1.0)
        return total

    entries = {name: (i, identity, 2) for i, name in enumerate(("a", "b", "c"))}
    return {"x": x[level], "answers": answers}, [
        View(log_density, 3, entries, (-0.5, 1.0, 1.5), (0.3, 0.3, 0.5), refine=2)
    ]


@setting("Student law, one record")
def _(rng):
    z = np.array([6.0 + rng.normal()])

    def log_density(mu, u, v, fine):
        freedom, sigma = 1 + 2 * np.exp(v), 1 + 2 * np.exp(u)
        constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - np.log(freedom * np.pi) / 2 - np.log(sigma)

        def log_pdf(x):
            return constant - (freedom + 1) / 2 * np.log1p(((x - mu) / sigma) ** 2 / freedom)

        def log_below(x):
            return np.log(special.stdtr(freedom, (x - mu) / sigma))

        def log_above(x):
            return np.log(special.stdtr(freedom, (mu - x) / sigma))

        prior = normal(mu, 0, 2) + normal(u, 0, 0.5) + normal(v, 0, 0.5)
        return prior + laplace_by_panels(z, log_pdf, log_below, log_above, 40.0, -20, 20, 3 * fine)[0]

    shifted = lambda u: 1 + 2 * np.exp(u)  # noqa: E731
    entries = {"mu": (0, identity, 2), "sigma": (1, shifted, 2), "freedom": (2, shifted, 2)}
    view = View(log_density, 3, entries, (0.0, 0.0, 0.0), (2.0, 0.5, 0.5), depth=26, refine=0.8)
    return {"z": z}, [view]


@setting("zero-inflated noise and a scale of a scale")
def _(rng):
    x, noisy = np.clip(rng.normal(3.5, 1.5, 12), -5, 5), rng.random(12) > 0.3
    x[0], noisy[0] = 5.0, False  # a released value at a bound has a probability, not a density
    z = x + noisy * rng.laplace(0, np.sqrt(2), 12)

    def log_density(mu, u, v, fine):
        s, sigma = np.exp(u), np.exp(v)
        total = normal(u, 1, 0.3) + normal(mu, 0, s) + normal(v, 0.4, 0.4)
        noise = np.log(0.7) + normal_laplace(z, mu, sigma, np.sqrt(2), -5, 5)
        exact = np.where((np.abs(z) < 5)[:, None], np.log(0.3) + stats.norm.logpdf(z[:, None], mu, sigma), -np.inf)
        each = np.logaddexp(noise, exact)
        each = np.where((z == 5)[:, None], np.log(0.3) + log_ndtr((mu - 5) / sigma), each)
        each = np.where((z == -5)[:, None], np.log(0.3) + log_ndtr((-5 - mu) / sigma), each)
        return total + each.sum(0)

    entries = {"mu": (0, identity, 2), "s": (1, np.exp, 2), "sigma": (2, np.exp, 2)}
    view = View(log_density, 3, entries, (3.5, 1.2, 0.3), (0.5, 0.3, 0.3), sheared=False, depth=26, refine=1.0)
    return {"z": z}, [view]


def write(beginnings=("",)):
    """Compute references and write them to the file, one line for each quantity."""
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in SETTINGS:
        if name.startswith(tuple(beginnings)):
            start = time.perf_counter()
            recorded[name] = compute(name)
            seconds = time.perf_counter() - start
            changes = (recorded[name].pop("change"), recorded[name].pop("evidence_change"))
            print(f"{name}: {seconds:.1f} s, changes {changes[0]:.1e} and {changes[1]:.1e}", flush=True)
    texts = []
    for name in SETTINGS:
        if name in recorded:
            entries = ",\n".join(
                f"   {json.dumps(entry)}: {json.dumps(values)}" for entry, values in recorded[name]["entries"].items()
            )
            evidence = f'  "log_evidence": {json.dumps(recorded[name]["log_evidence"])}'
            texts.append(f' {json.dumps(name)}: {{\n{evidence},\n  "entries": {{\n{entries}\n  }}\n }}')
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n")


if __name__ == "__main__":
    write(sys.argv[1:] or [""])
