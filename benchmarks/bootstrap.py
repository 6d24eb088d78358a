"""What replicates of a private estimate cost, against a loop in NumPy that does the same.

    python benchmarks/bootstrap.py

The experiment is the paper's: the mean of normal records of known variance, clamped to [-3, 3], with Laplace noise at
epsilon = 0.5; an estimate with 1,000 replicates, for each of 100 releases. The loop draws the records of a replicate,
clamps and sums them and adds the noise; it runs for a part of the releases, since each costs the same. Ours includes
all that `parametric_bootstrap` does, interval and privacy statement too; compiling is apart. Memory is the peak of a
process of its own.
"""

import os
import platform
import resource
import subprocess
import sys
import time

import numpy as np

BOUND, EPSILON = 3.0, 0.5


def loop(seed, estimate, count, draws):
    """Replicates in NumPy."""
    rng = np.random.default_rng(seed)
    found = np.empty(draws)
    for draw in range(draws):
        x = np.clip(rng.normal(estimate, 1.0, count), -BOUND, BOUND)
        found[draw] = (x.sum() + rng.laplace(0, 2 * BOUND / EPSILON)) / count
    return np.quantile(found, [0.025, 0.975])


def compare(count, releases, looped):
    """Seconds a release, with the loop's, in one process."""
    import ldpbayes as ldp

    family = ldp.bootstrap.NormalMean(1.0, -BOUND, BOUND)
    estimator = ldp.bootstrap.sufficient_statistics(family, count=count, epsilon=EPSILON)
    rng = np.random.default_rng(0)
    made = [estimator.release(rng.normal(0.5, 1.0, count), seed=seed) for seed in range(min(releases, 10))]
    start = time.perf_counter()
    ldp.parametric_bootstrap(estimator, made[0])
    compiling = time.perf_counter() - start
    start = time.perf_counter()
    for seed in range(releases):
        estimate = ldp.parametric_bootstrap(estimator, made[seed % len(made)], seed=seed)
        estimate.interval()
    ours = (time.perf_counter() - start) / releases
    start = time.perf_counter()
    for seed in range(looped):
        loop(seed, float(estimate.params[0]), count, 1000)
    numpy = (time.perf_counter() - start) / looped
    print(
        f"{count:>9,} records: {1e3 * ours:7.1f} ms a release, NumPy {1e3 * numpy:9.1f} ms, ratio {numpy / ours:6.1f}; "
        f"first call {compiling:.1f} s; for {releases} releases {ours * releases:.2f} s",
        flush=True,
    )


def peak(kind):
    """Peak memory of 10,000 replicates at 1,000,000 records, with sums that are drawn or records that are."""
    import jax
    import jax.numpy as jnp

    import ldpbayes as ldp

    count = 1_000_000
    family = ldp.bootstrap.NormalMean(1.0, -BOUND, BOUND)
    estimator = ldp.bootstrap.sufficient_statistics(family, count=count, epsilon=EPSILON)
    start = time.perf_counter()
    draws = 10_000
    if kind == "sums":
        ldp.parametric_bootstrap(estimator, np.asarray(0.5 * count), draws=draws)
    else:

        def mean(key, x):
            return jnp.mean(jnp.clip(x, -BOUND, BOUND)) + jax.random.laplace(key, ()) * 2 * BOUND / EPSILON / len(x)

        def simulate(key, params):
            return params + jax.random.normal(key, (count,))

        ldp.parametric_bootstrap(mean, np.asarray(0.5), simulate, draws=draws)
    seconds, memory = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{draws:,} replicates of {count:,} records, {kind} drawn: {memory:.2f} GiB at most, {seconds:.0f} s",
        flush=True,
    )


def main():
    """Run all."""
    if len(sys.argv) > 1:
        peak(sys.argv[1])
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    compare(1_000, releases=100, looped=20)
    compare(100_000, releases=100, looped=1)
    for kind in ("sums", "records"):
        subprocess.run([sys.executable, __file__, kind], check=True)


if __name__ == "__main__":
    main()
