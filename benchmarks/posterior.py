"""Time of a posterior against the number of records, and against what a user would otherwise do.

    python benchmarks/posterior.py            # the whole table, half an hour on two cores
    python benchmarks/posterior.py --only fit # rows whose name starts so

Every row runs in a process of its own, without a compilation cache; a row that takes more than ten minutes is cut and
reported as a bound. The model is `clipped_gaussian` in the setting of Kulkarni et al., Figure 1, at ε = 1.
"""

import argparse
import json
import os
import platform
import tempfile
import time

from own_process import printed

LIMIT = 600  # seconds a row
CHAINS, WARMUP, SAMPLES = 4, 300, 300
ROWS = [f"fit-{10**k}" for k in range(3, 8)] + [
    f"{rival}-{count}" for count in (5_000, 100_000) for rival in ("sketch", "closed_form", "latent")
]


def release(count):
    """Simulated records; seconds are counted from after this."""
    import numpy as np

    import ldpbayes as ldp

    rng = np.random.default_rng(count)
    z = np.clip(rng.normal(1, 2, count), -5, 5) + rng.laplace(0, 10, count)
    return ldp.Release(z, ldp.LaplaceMechanism(1.0, -5, 5))


def explicit_latent(data):
    """What a user writes without us: every record a latent variable, clipped, observed with Laplace noise."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    sigma = numpyro.sample("sigma", dist.Gamma(2, 1))
    with numpyro.plate("records", data.count):
        x = numpyro.sample("x", dist.Normal(0, 1)) * sigma + mu  # non-centred: the noise says little about one record
        noise = data.mechanism.scale
        numpyro.sample(
            "z", dist.Laplace(jnp.clip(x, data.mechanism.lower, data.mechanism.upper), noise), obs=data.values
        )


def time_fit(count):
    """Seconds of the pass over the data, and of `fit` on the sketch, compilation included."""
    import ldpbayes as ldp
    from ldpbayes.models import clipped_gaussian

    data = release(count)
    data.sketch()  # the first pass pays for page faults
    start = time.perf_counter()
    sketch = data.sketch()
    middle = time.perf_counter()
    ldp.fit(clipped_gaussian(), sketch, progress_bar=False)
    return {"pass_s": middle - start, "fit_s": time.perf_counter() - middle}


def time_draws(rival, count):
    """Seconds to 1,000 effective draws of the worse of both parameters, with the warm-up, compiling and compiled.

    A run of W warm-up iterations and S draws a chain that takes t seconds and yields E effective draws counts as
    t·(W + S·1000/E)/(W + S): longer chains need no second warm-up.
    """
    import jax
    import numpy as np
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    from ldpbayes.models import clipped_gaussian

    data = release(count)
    start = time.perf_counter()
    if rival == "sketch":
        data = data.sketch()
    sketching, model = time.perf_counter() - start, explicit_latent if rival == "latent" else clipped_gaussian()
    settings = {"num_warmup": WARMUP, "num_samples": SAMPLES, "num_chains": CHAINS, "chain_method": "vectorized"}
    with jax.enable_x64(True), tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # the second run loads what the first one compiled
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        seconds = []
        for key in jax.random.split(jax.random.key(0), 2):
            start = time.perf_counter()
            mcmc = MCMC(NUTS(model), **settings, progress_bar=False)
            mcmc.run(key, data)
            draws = mcmc.get_samples(group_by_chain=True)
            ess = min(float(effective_sample_size(np.asarray(draws[name]))) for name in ("mu", "sigma"))
            seconds.append(time.perf_counter() - start)
            if seconds[0] > 0.4 * LIMIT:  # no time for a second run; compilation is a small part of this one
                break
    to_1000 = sketching + seconds[-1] * (WARMUP + SAMPLES * 1000 / ess) / (WARMUP + SAMPLES)
    compilation = seconds[0] - seconds[1] if len(seconds) == 2 else None
    return {"ess": ess, "run_s": seconds[-1], "to_1000_s": to_1000, "compilation_s": compilation}


def main():
    """Run every row in its own process and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        kind, count = arguments.row.rsplit("-", 1)
        result = time_fit(int(count)) if kind == "fit" else time_draws(kind, int(count))
        print(json.dumps(result))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for row in (row for row in ROWS if row.startswith(arguments.only)):
        start = time.perf_counter()
        result = printed(__file__, "--row", row, limit=LIMIT)
        print(f"{row:20} {result}   ({time.perf_counter() - start:.0f} s in all)", flush=True)


if __name__ == "__main__":
    main()
