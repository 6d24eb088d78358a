"""Time of a replication of Table 2 of Lu, Chen & Qiu (n = 5,000, six covariates, five estimators) against SciPy's.

    python -m benchmarks.m_estimation              # about two minutes on two cores

A replication simulates records and their release and fits oracle, naive, SL, SDR and DR. Ours: 1,000 replications in
one compiled call, standard errors included, each core a device of JAX. SciPy's: one after the other, in NumPy, by
L-BFGS-B in the same box from the same start; with gradients derived by hand, and without, as one would type the losses.
"""

import argparse
import dataclasses
import os
import platform
import statistics
import time

import numpy as np
from scipy import optimize, special, stats

COUNT, COLUMNS, BOUND, DELTA, BOX = 5000, 6, 0.5, 0.2, 3.0


def ours(scale, replicates):
    """Seconds of compilation, seconds a replication, and the root mean square errors."""
    from reproductions.lu_chen_qiu import logistic_setting, replicator

    setting = logistic_setting(COUNT, scale, BOUND)
    papers = {name: setting.estimators[name] for name in ("oracle", "naive", "sl", "sdr", "dr")}
    run = replicator(dataclasses.replace(setting, estimators=papers), replicates)
    start = time.perf_counter()
    run(0)
    middle = time.perf_counter()
    fits = run(1)
    seconds = time.perf_counter() - middle
    errors = {name: float(np.sqrt(np.mean((fit.theta - 1) ** 2))) for name, fit in fits.items()}
    return middle - start - seconds, seconds / replicates, errors


def simulate(rng, scale):
    """Original, released and doubly randomized covariates, and the response."""

    def noise(scale):
        return scale * np.sqrt(rng.exponential(size=COUNT))[:, None] * rng.normal(size=(COUNT, COLUMNS))

    x = stats.truncnorm.rvs(-BOUND, BOUND, size=(COUNT, COLUMNS), random_state=rng)
    y = (rng.random(COUNT) < special.expit(x.sum(axis=1))).astype(float)
    z = x + np.where((rng.random(COUNT) < DELTA)[:, None], 0.0, noise(scale))
    return x, y, z, z + noise(scale * np.sqrt(DELTA))


def logistic(x, y, theta):
    """Mean loss and its gradient."""
    eta = x @ theta
    return np.mean(np.logaddexp(0, eta) - y * eta), x.T @ (special.expit(eta) - y) / len(x)


def laplacian(x, theta):
    """Mean Laplacian of the loss in the covariates, and its gradient."""
    p = special.expit(x @ theta)
    bend, square = p * (1 - p), theta @ theta
    return square * bend.mean(), 2 * theta * bend.mean() + square * (x.T @ (bend * (1 - 2 * p))) / len(x)


def criteria(data, scale):
    """The five mean losses with their gradients, as functions of the coefficients."""
    x, y, z, again = data

    def mix(*terms):
        def mixed(theta):
            values, slopes = zip(*(function(theta) for _, function in terms), strict=True)
            weights = [weight for weight, _ in terms]
            return np.dot(weights, values), np.dot(weights, slopes)

        return mixed

    def at(points):
        return lambda theta: logistic(points, y, theta)

    def bend(theta):
        return laplacian(again, theta)

    return {
        "oracle": at(x),
        "naive": at(z),
        "sl": mix((1, at(again)), (-(scale**2) / 2, bend)),
        "sdr": mix((1, at(z)), (-(1 - DELTA) * scale**2 / 2, bend)),
        "dr": mix((1 - 1 / DELTA, at(again)), (1 / DELTA, at(z))),
    }


def scipys(scale, replicates, gradients):
    """Seconds a replication, and the root mean square errors."""
    rng, seconds, found = np.random.default_rng(0), [], {}
    for _ in range(replicates):
        start = time.perf_counter()
        for name, criterion in criteria(simulate(rng, scale), scale).items():
            function = criterion if gradients else lambda theta, criterion=criterion: criterion(theta)[0]
            options = {"jac": gradients or None, "method": "L-BFGS-B", "bounds": [(-BOX, BOX)] * COLUMNS}
            found.setdefault(name, []).append(optimize.minimize(function, np.zeros(COLUMNS), **options).x)
        seconds.append(time.perf_counter() - start)
    errors = {name: float(np.sqrt(np.mean((np.array(thetas) - 1) ** 2))) for name, thetas in found.items()}
    return statistics.median(seconds), errors


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=1000)
    arguments = parser.parse_args()
    import jax

    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for scale in (0.5, 1.0):
        compilation, seconds, errors = ours(scale, arguments.replicates)
        print(f"scale {scale}: {1e3 * seconds:.2f} ms a replication, after {compilation:.1f} s of compilation")
        print(f"    {show(errors)}", flush=True)
        for gradients in (True, False):
            theirs, errors = scipys(scale, 40, gradients)
            how = "gradients by hand" if gradients else "no gradients"
            print(f"  SciPy, {how}: {1e3 * theirs:.1f} ms, {theirs / seconds:.1f} times ours")
            print(f"    {show(errors)}", flush=True)


def show(errors):
    """Root mean square errors in a line."""
    return ", ".join(f"{name} {error:.3f}" for name, error in sorted(errors.items()))


if __name__ == "__main__":
    main()
