"""What label privacy costs, against loops that do the same.

    python benchmarks/label_privacy.py

The optimal interval of `RPWithPrior` at 10,000 bins, against the paper's double loop over pairs of bins with its inner
loop vectorised; the half-width; both steps of a release of 1.3 million labels, the size of Criteo's data, each time the
least of three; and a linear fit of as many, against the same in NumPy and SciPy.
"""

import os
import platform
import time

import numpy as np


def seconds(function):
    """The least of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def double_loop(nodes, densities, epsilon, half_width):
    """The best pair of nodes, by trying all of them: one vector of right ends for each left end."""
    cumulative = np.append(0, np.cumsum(densities * np.diff(nodes)))
    cumulative /= cumulative[-1]
    best, found = 0.0, None
    for i in range(len(densities)):
        total = 2 * half_width + np.exp(-epsilon) * (nodes[i + 1 :] - nodes[i])
        values = 2 * half_width * (cumulative[i + 1 :] - cumulative[i]) / total
        j = int(np.argmax(values))
        if values[j] > best:
            best, found = values[j], (float(nodes[i]), float(nodes[i + 1 + j]))
    return found


def interval_row(bins=10_000):
    """Seconds of the optimal interval, with those of the double loop."""
    from ldpbayes.mechanisms import optimal_half_width, optimal_interval

    rng = np.random.default_rng(0)
    nodes, densities = np.linspace(0, 1, bins + 1), rng.gamma(0.5, size=bins) * np.exp(-3 * np.linspace(0, 1, bins))
    for half_width in (0.003, 0.03, 0.3):
        ours = seconds(lambda half=half_width: optimal_interval((nodes, densities), 1.0, half))
        loop = seconds(lambda half=half_width: double_loop(nodes, densities, 1.0, half))
        same = optimal_interval((nodes, densities), 1.0, half_width) == double_loop(nodes, densities, 1.0, half_width)
        print(
            f"optimal interval, {bins:,} bins, half-width {half_width:g}: {1e3 * ours:7.2f} ms, double loop "
            f"{1e3 * loop:7.1f} ms, ratio {loop / ours:6.0f}, {'the same' if same else 'ANOTHER'} interval",
            flush=True,
        )
    whole = seconds(lambda: optimal_half_width((nodes, densities), 1.0))
    chosen = seconds(lambda: optimal_half_width((nodes, densities), 1.0, interval=optimal_interval))
    print(
        f"optimal half-width, {bins:,} bins: {1e3 * whole:.0f} ms; with its interval {1e3 * chosen:.0f} ms", flush=True
    )


def release_row(count=1_316_781):
    """Seconds of the prior, and of both steps of a release."""
    from ldpbayes.estimation import label_prior, release_labels

    labels = np.minimum(np.random.default_rng(0).lognormal(3.5, 1.2, count), 400)
    made = release_labels(labels, 1.0, lower=0, upper=400, prior_epsilon=0.02)
    both = seconds(lambda: release_labels(labels, 1.0, lower=0, upper=400, prior_epsilon=0.02))
    smooth = seconds(lambda: label_prior(made.prior_release))
    noisy = seconds(lambda: label_prior(made.prior_release, deconvolved=False))
    print(
        f"{count:,} labels: prior {smooth:.2f} s ([LH]'s histogram {noisy:.2f} s), release with its prior {both:.2f} s",
        flush=True,
    )


def numpy_fit(features, z, mechanism, penalty):
    """The same maximum a posteriori as one would write it in NumPy, by L-BFGS with its gradient."""
    from scipy import optimize, special

    (lower, upper), half, keep = mechanism.interval, mechanism.half_width, np.exp(-mechanism.epsilon)
    total = 2 * half + keep * (upper - lower)
    centre, unit = features.mean(axis=0), features.std(axis=0)
    design = np.column_stack([np.ones(len(z)), (features - centre) / unit])
    start = np.where(z - half <= lower, -np.inf, z - half)
    stop = np.where(z + half >= upper, np.inf, z + half)

    def objective(theta):
        eta, sigma = design @ theta[:-1], np.exp(theta[-1])
        a, b = (start - eta) / sigma, (stop - eta) / sigma
        density = (keep + (1 - keep) * (special.ndtr(b) - special.ndtr(a))) / total
        weight = (1 - keep) / total / np.sqrt(2 * np.pi) / density
        at_a, at_b = weight * np.exp(-0.5 * a**2), weight * np.exp(-0.5 * b**2)
        by_sigma = np.where(np.isfinite(a), a, 0) * at_a - np.where(np.isfinite(b), b, 0) * at_b
        slope = np.append(-(design.T @ (at_a - at_b)) / sigma, -by_sigma.sum())
        slope[1:-1] += penalty * theta[1:-1]
        return -np.log(density).sum() + penalty / 2 * np.sum(theta[1:-1] ** 2), slope

    theta = np.append(np.zeros(design.shape[1]), np.log((upper - lower) / 4))
    theta[0] = (lower + upper) / 2
    found = optimize.minimize(objective, theta, jac=True, method="L-BFGS-B", options={"maxiter": 500, "maxfun": 1000})
    return found.x[1:-1] / unit


def fit_row(count=1_316_781, columns=20):
    """Seconds of a linear fit by maximum a posteriori at Criteo's size, compilation included, and in NumPy."""
    import jax

    import ldpbayes as ldp

    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, columns))
    labels = 0.5 + features @ (0.05 * rng.normal(size=columns)) + 0.1 * rng.normal(size=count)
    mechanism = ldp.RPWithPrior(1.0, *reversed(ldp.mechanisms.optimal_half_width(([0, 1], [1.0]), 1.0)[:2]))
    with jax.enable_x64(True):
        start = time.perf_counter()
        z = np.asarray(mechanism.randomize(jax.random.key(0), labels))
        first = time.perf_counter() - start
        again = seconds(lambda: np.asarray(mechanism.randomize(jax.random.key(1), labels)))
    print(f"{count:,} labels released by RPWithPrior: {first:.2f} s the first time, then {again:.2f} s", flush=True)
    start = time.perf_counter()
    fitted = ldp.estimation.linear_fit(features, ldp.Release(z, mechanism), penalty=1.0)
    ours = time.perf_counter() - start
    start = time.perf_counter()
    theirs = numpy_fit(features, z, mechanism, 1.0)
    loop = time.perf_counter() - start
    chosen = time.perf_counter()
    ldp.estimation.linear_fit(features, ldp.Release(z, mechanism))
    chosen = time.perf_counter() - chosen
    print(
        f"linear fit of {columns} features with standard errors: {ours:.1f} s; in NumPy and SciPy without them "
        f"{loop:.1f} s, ratio {loop / ours:.1f}; coefficients {np.abs(fitted.coefficients - theirs).max():.1e} "
        f"apart; with the default penalty {chosen:.1f} s",
        flush=True,
    )


def main():
    """Run all."""
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    interval_row()
    release_row()
    fit_row()


if __name__ == "__main__":
    main()
