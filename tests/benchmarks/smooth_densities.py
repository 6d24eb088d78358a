"""What a law without a parametric family costs: the penalised estimate, and posteriors of few and many records.

    python tests/benchmarks/smooth_densities.py

Each mechanism in a process of its own: seconds of the first fit (10³ records, cold: compiled code on disk is not used),
of a second one, and of one of 10⁶ records; steps a trajectory; and milliseconds of the estimate, the least of five.
"""

import subprocess
import sys
import time
import warnings

import numpy as np

MECHANISMS = ("LaplaceMechanism", "ZeroInflatedLaplaceMechanism", "SquareWaveMechanism")


def row(name):
    import jax

    import ldpbayes as ldp
    from ldpbayes.estimation import estimate_density

    warnings.simplefilter("ignore")
    parameters = (0.1, 0.94) if name.startswith("Zero") else (1.0,)
    mechanism = getattr(ldp.mechanisms, name)(*parameters, 0.0, 1.0)

    def sketch(count, seed):
        with jax.enable_x64(True):
            records = np.random.default_rng(seed).beta(5, 2, count)
            return ldp.Release(np.asarray(mechanism.randomize(jax.random.key(seed), records)), mechanism).sketch()

    def fitted(data):
        start = time.perf_counter()
        statistics = ldp.fit(ldp.models.smooth_density(), data, progress_bar=False)["sample_stats"]
        steps, diverged = float(statistics["n_steps"].mean()), int(statistics["diverging"].sum())
        return f"{time.perf_counter() - start:.1f} s ({steps:.0f} steps, {diverged} divergences)"

    few, again, many = sketch(10**3, 0), sketch(10**3, 1), sketch(10**6, 2)
    print(f"{name}: 10³ records {fitted(few)}, again {fitted(again)}; 10⁶ {fitted(many)}", flush=True)
    for data, label in ((again, "10³"), (many, "10⁶")):
        times = []
        for _ in range(6):
            start = time.perf_counter()
            estimate_density(data)
            times.append(time.perf_counter() - start)
        print(f"{name}: estimate from {label} records {1e3 * min(times):.0f} ms", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        row(sys.argv[1])
    else:
        for name in MECHANISMS:
            subprocess.run([sys.executable, __file__, name], check=True)
