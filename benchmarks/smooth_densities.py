"""What a law without a parametric family costs: the penalised estimate, and posteriors of few and many records.

    python benchmarks/smooth_densities.py

Mechanisms and numbers of records in processes of their own: seconds of the first fit (cold, with the start of Python
and without compiled code on disk) and of a second one of other records, steps a trajectory, and milliseconds of the
estimate, the least of five.
"""

import subprocess
import sys
import time
import warnings

import numpy as np

MECHANISMS = ("LaplaceMechanism", "ZeroInflatedLaplaceMechanism", "SquareWaveMechanism")


START = time.perf_counter()


def row(name, count):
    import jax

    import ldpbayes as ldp
    from ldpbayes.estimation import estimate_density

    warnings.simplefilter("ignore")
    parameters = (0.1, 0.94) if name.startswith("Zero") else (1.0,)
    mechanism = getattr(ldp.mechanisms, name)(*parameters, 0.0, 1.0)

    def sketch(seed):
        with jax.enable_x64(True):
            records = np.random.default_rng(seed).beta(5, 2, count)
            return ldp.Release(np.asarray(mechanism.randomize(jax.random.key(seed), records)), mechanism).sketch()

    def fitted(data, start):
        statistics = ldp.fit(ldp.models.smooth_density(), data, progress_bar=False)["sample_stats"]
        steps, diverged = float(statistics["n_steps"].mean()), int(statistics["diverging"].sum())
        return f"{time.perf_counter() - start:.1f} s ({steps:.0f} steps, {diverged} divergences)"

    first, second = sketch(0), sketch(1)
    cold, warm = fitted(first, START), fitted(second, time.perf_counter())
    times = []
    for _ in range(6):
        start = time.perf_counter()
        estimate_density(second)
        times.append(time.perf_counter() - start)
    print(f"{name}, {count:,} records: cold {cold}, again {warm}; estimate {1e3 * min(times):.0f} ms", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        row(sys.argv[1], int(sys.argv[2]))
    else:
        for name in MECHANISMS:
            for count in (10**3, 10**6):
                subprocess.run([sys.executable, __file__, name, str(count)], check=True)
