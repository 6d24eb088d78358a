"""Marginal densities of clipped and privatized data from their definition, in arithmetic of 60 digits.

p(z) = P(x ≤ lower) p(z | lower) + ∫ f(x) p(z | x) dx between the bounds + P(x ≥ upper) p(z | upper). Every argument is
taken as the exact value of a double. Textbook expressions that would lose all digits in double precision lose some 20
of the 60 here; `marginal_by_quadrature` integrates the definition itself and checks them.
"""

import itertools

import mpmath as mp
import numpy as np

DIGITS = 60
GRADIENT_STEP = 1e-20  # of each parameter's size: a central difference at 60 digits is then exact to 1e-20 at least


def normal_mass(u, v):
    """Φ(v) − Φ(u), mirrored to the side where the complementary error functions are small."""
    u, v = (-v, -u) if u + v < 0 else (u, v)
    return (mp.erfc(u / mp.sqrt(2)) - mp.erfc(v / mp.sqrt(2))) / 2


def laplace_noise(z, x, scale):
    return mp.exp(-abs(z - x) / scale) / (2 * scale)


def gaussian_noise(z, x, scale):
    return mp.npdf(z, x, scale)


def exponential_integral(rate, start, stop):
    """∫ exp(rate x) dx from start to stop; the singularity at rate = 0 is removable."""
    if rate == 0:
        return stop - start
    return mp.exp(rate * start) * mp.expm1(rate * (stop - start)) / rate


def normal_atoms(loc, scale, lower, upper):
    return normal_mass(-mp.inf, (lower - loc) / scale), normal_mass((upper - loc) / scale, mp.inf)


def exponential_atoms(rate, lower, upper):
    return -mp.expm1(-rate * max(lower, 0)), mp.exp(-rate * max(upper, 0))


def normal_laplace(loc, scale, lower, upper, noise, z):
    below, above = normal_atoms(loc, scale, lower, upper)
    middle = min(max(z, lower), upper)

    def tilted(k, start, stop):  # ∫ N(x; loc, scale²) exp(k x) dx
        u, v = ((x - loc) / scale - k * scale for x in (start, stop))
        return mp.exp(k * loc + (k * scale) ** 2 / 2) * normal_mass(u, v)

    left = mp.exp(-z / noise) * tilted(1 / noise, lower, middle)
    right = mp.exp(z / noise) * tilted(-1 / noise, middle, upper)
    atoms = below * laplace_noise(z, lower, noise) + above * laplace_noise(z, upper, noise)
    return atoms + (left + right) / (2 * noise)


def exponential_laplace(rate, lower, upper, noise, z):
    below, above = exponential_atoms(rate, lower, upper)
    start = max(lower, mp.mpf(0))
    stop = max(upper, start)
    middle = min(max(z, start), stop)
    left = mp.exp(-z / noise) * exponential_integral(1 / noise - rate, start, middle)
    right = mp.exp(z / noise) * exponential_integral(-1 / noise - rate, middle, stop)
    atoms = below * laplace_noise(z, lower, noise) + above * laplace_noise(z, upper, noise)
    return atoms + rate * (left + right) / (2 * noise)


def laplace_atoms(loc, scale, lower, upper):
    def tail(x):
        return mp.exp(x) / 2 if x < 0 else 1 - mp.exp(-x) / 2

    return tail((lower - loc) / scale), tail((loc - upper) / scale)


def laplace_laplace(loc, scale, lower, upper, noise, z):
    below, above = laplace_atoms(loc, scale, lower, upper)
    points = sorted([lower, upper, *(min(max(point, lower), upper) for point in (loc, z))])
    inside = mp.mpf(0)
    for start, stop in itertools.pairwise(points):  # between them the exponent is linear
        side, towards = (1 if start >= point else -1 for point in (loc, z))
        rate = -side / scale - towards / noise
        inside += mp.exp(side * loc / scale + towards * z / noise) * exponential_integral(rate, start, stop)
    atoms = below * laplace_noise(z, lower, noise) + above * laplace_noise(z, upper, noise)
    return atoms + inside / (4 * scale * noise)


def normal_gaussian(loc, scale, lower, upper, noise, z):
    below, above = normal_atoms(loc, scale, lower, upper)
    variance = scale**2 + noise**2
    mean, deviation = (loc * noise**2 + z * scale**2) / variance, scale * noise / mp.sqrt(variance)
    inside = mp.npdf(z, loc, mp.sqrt(variance)) * normal_mass((lower - mean) / deviation, (upper - mean) / deviation)
    return below * gaussian_noise(z, lower, noise) + above * gaussian_noise(z, upper, noise) + inside


def exponential_gaussian(rate, lower, upper, noise, z):
    below, above = exponential_atoms(rate, lower, upper)
    start = max(lower, mp.mpf(0))
    stop = max(upper, start)
    mean = z - rate * noise**2
    mass = normal_mass((start - mean) / noise, (stop - mean) / noise)
    inside = rate * mp.exp(-rate * z + (rate * noise) ** 2 / 2) * mass
    return below * gaussian_noise(z, lower, noise) + above * gaussian_noise(z, upper, noise) + inside


def marginal_by_quadrature(density, atoms, noise_density, lower, upper, noise, z, cuts=(), support=(-np.inf, np.inf)):
    """The definition itself, integrated piece by piece: cut at z, at a few noise scales around it, and at `cuts`."""
    start, stop = max(lower, mp.mpf(support[0])), min(upper, mp.mpf(support[1]))
    inner = [z + k * noise for k in (-12, -4, -1, 0, 1, 4, 12)] + list(cuts)
    nodes = [start, *sorted({mp.mpf(c) for c in inner if start < c < stop}), stop]
    inside = mp.quad(lambda x: density(x) * noise_density(z, x, noise), nodes) if start < stop else 0
    return atoms[0] * noise_density(z, lower, noise) + atoms[1] * noise_density(z, upper, noise) + inside


# --- counts: finite sums over the clipped support -------------------------------------------------------------------


def poisson(rate):
    return mp.exp(-rate), lambda k: rate / (k + 1)


def geometric(p):
    return p, lambda k: 1 - p


def negative_binomial(mean, concentration):
    """Mean and concentration; the first mass and the ratio of each mass to the one before."""
    q = mean / (mean + concentration)
    return (1 - q) ** concentration, lambda k: q * (concentration + k) / (k + 1)


def binomial(n, p):
    return (1 - p) ** int(n), lambda k: (n - k) / (k + 1) * p / (1 - p)


def count_masses(first, ratio, last):
    masses = [first]
    for k in range(last):
        masses.append(masses[-1] * ratio(k))
    return masses


def count_marginal(law, lower, upper, noise_density, noise, z, zeros=0):
    """Marginal density of a count; `zeros` inflates the mass at zero.

    The mass above the last inner value is summed term by term where terms fall off, else taken as a complement.
    """
    first, ratio = law
    last = int(mp.ceil(upper)) - 1
    masses = count_masses(first, ratio, last)
    if max(ratio(last), ratio(mp.mpf(10) ** 9)) < mp.mpf(9) / 10:
        survival, term, k = mp.mpf(0), masses[-1] * ratio(last), last + 1
        while term > survival * mp.mpf(10) ** (-DIGITS):
            survival, term, k = survival + term, term * ratio(k), k + 1
    else:
        survival = 1 - mp.fsum(masses)
    total = mp.fsum(m * noise_density(z, min(max(mp.mpf(k), lower), upper), noise) for k, m in enumerate(masses))
    total = (1 - zeros) * (total + survival * noise_density(z, upper, noise))
    return total + zeros * noise_density(z, max(mp.mpf(0), lower), noise)


# --- over a whole grid ----------------------------------------------------------------------------------------------


def log_density(function, *arguments):
    """Log of `function` at every point of a grid: arrays of doubles in, array of doubles out."""
    with mp.workdps(DIGITS):
        return np.array([float(mp.log(function(*map(mp.mpf, row)))) for row in _rows(arguments)])


def log_gradient(function, *arguments):
    """Derivative of the log of `function` in each argument by central differences: (arguments, points)."""
    with mp.workdps(DIGITS):
        columns = []
        for row in _rows(arguments):
            row = [mp.mpf(value) for value in row]
            column = []
            for i, value in enumerate(row):
                step = (abs(value) if value else mp.mpf(1)) * GRADIENT_STEP
                up, down = ([*row[:i], value + s, *row[i + 1 :]] for s in (step, -step))
                column.append(float((mp.log(function(*up)) - mp.log(function(*down))) / (2 * step)))
            columns.append(column)
    return np.array(columns).T


def _rows(arguments):
    return zip(*(np.asarray(a, float).ravel().tolist() for a in np.broadcast_arrays(*arguments)), strict=True)


def error(actual, expected):
    """Absolute or relative error, whichever is smaller (the claim: 1e-9 absolute or relative, whichever is larger)."""
    return np.abs(np.asarray(actual) - expected) / np.maximum(1.0, np.abs(expected))
