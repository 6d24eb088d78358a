"""Time and memory of posteriors of histograms: few categories and any number of records, or many categories.

    python benchmarks/histogram.py                 # the whole table, about a quarter of an hour on two cores
    python benchmarks/histogram.py --only gradient # rows whose name starts so

Every row runs in a process of its own. Optimal unary encoding and local hashing, ε = 1.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import time

from own_process import printed

ROWS = (
    [f"fit-6-{10**k}" for k in range(3, 8)]
    + [
        "gradient-64-150000",
        "gradient-100-100000",
        "gradient-1000-1000000",
        "gradient_hashing-100-100000",
        "gradient_hashing-1000-1000000",
    ]
    + ["nuts-100-100000"]
)


def release(d, count, hashing=False):
    """Simulated in pieces, since a random number is eight times as large as the bit it makes."""
    import jax
    import numpy as np

    import ldpbayes as ldp

    rng = np.random.default_rng(d + count)
    theta = rng.dirichlet(np.ones(d))
    mechanism = (ldp.LocalHashing if hashing else ldp.OptimalUnaryEncoding)(1.0, d)
    values = np.empty((count, *mechanism.event_shape), np.uint32 if hashing else np.uint8)
    step = 20_000
    draw = jax.jit(mechanism.randomize)
    for start in range(0, count, step):
        x = rng.choice(d, min(step, count - start), p=theta)
        values[start : start + step] = draw(jax.random.key(start), x)
    return ldp.Release(values, mechanism)


def time_fit(d, count):
    """Seconds of the pass over the records, and of `fit` on the sketch, compilation included."""
    import ldpbayes as ldp
    from ldpbayes.models import oue_histogram

    data = release(d, count)
    data.sketch()
    start = time.perf_counter()
    sketch = data.sketch()
    middle = time.perf_counter()
    ldp.fit(oue_histogram(), sketch, progress_bar=False)
    return {"pass_s": middle - start, "fit_s": time.perf_counter() - middle, "nodes": len(sketch.nodes)}


def median_ms(function, repeats):
    """Median of single calls after a first one."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def time_gradient(d, count, hashing=False):
    """Milliseconds of value and gradient, for one chain and a chain of four, and of reading the 8-bit matrix twice.

    Last the same two with each bit turned into a floating-point number, the way of GPUs and of JAX before 0.9.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro.distributions as dist

    import ldpbayes as ldp
    from ldpbayes.likelihood.closed_forms import categories

    data = release(d, count, hashing)
    simulated = peak_gib()
    words = np.ones(d * count, np.uint8).view(np.uint64) if hashing else data.values.reshape(-1).view(np.uint64)
    twice = 2 * median_ms(words.sum, 20)
    repeats = 3 if d * count > 10**8 else 20
    with jax.enable_x64(True):
        # as in `fit`: a constant where it is small, else an argument
        large = data.values.nbytes > 1 << 26
        argument = jax.device_put(data.values if large else data.values[:0])

        def log_likelihood(logits, z):
            law = ldp.Privatized(dist.Categorical(logits=logits), data.mechanism)
            return jnp.sum(law.log_prob(z if large else data.values))

        logits = np.random.default_rng(0).normal(size=(4, d))

        def gradients():
            gradient = jax.value_and_grad(lambda *a: log_likelihood(*a))  # another function, so that it is traced again
            one, four = jax.jit(gradient), jax.jit(jax.vmap(gradient, (0, None)))
            alone = median_ms(lambda: jax.block_until_ready(one(logits[0], argument)), repeats)
            return alone, median_ms(lambda: jax.block_until_ready(four(logits, argument)), repeats) / 4

        times, peak = gradients(), peak_gib()
        categories.pays = lambda: False
        as_numbers = gradients()
    return {
        "read_twice_ms": twice,
        "gradient_ms": times,
        "ratios": [t / twice for t in times],
        "peak_gib": peak,
        "peak_gib_before": simulated,
        "ratios_as_numbers": [t / twice for t in as_numbers],
    }


def time_nuts(d, count):
    """Seconds of `fit` on counts, compilation included, and what the chains say of themselves."""
    import arviz as az
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes.models import oue_histogram

    sketch = release(d, count).sketch(expand=False)
    start = time.perf_counter()
    options = {"num_warmup": 500, "num_samples": 1000, "progress_bar": False, "expand": False}
    posterior = ldp.fit(oue_histogram(), sketch, **options)
    seconds = time.perf_counter() - start
    theta = posterior["posterior"]
    return {
        "fit_s": seconds,
        "largest_rhat": float(np.max(az.rhat(theta)["theta"].values)),
        "least_ess": float(np.min(az.ess(theta)["theta"].values)),
        "leapfrogs": float(posterior["sample_stats"]["n_steps"].mean()),
        "nodes": len(sketch.nodes),
    }


def peak_gib():
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


KINDS = {
    "fit": time_fit,
    "gradient": time_gradient,
    "gradient_hashing": lambda d, count: time_gradient(d, count, hashing=True),
    "nuts": time_nuts,
}


def main():
    """Run every row in its own process and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        kind, d, count = arguments.row.split("-")
        print(json.dumps(KINDS[kind](int(d), int(count))))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for row in (row for row in ROWS if row.startswith(arguments.only)):
        print(f"{row:30} {printed(__file__, '--row', row)}", flush=True)


if __name__ == "__main__":
    main()
