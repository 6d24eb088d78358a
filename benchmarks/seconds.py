"""Seconds to a posterior: compiling, sampling and all that `fit` does, cold, again, and with compiled code on disk.

    python benchmarks/seconds.py                                  # this version
    python benchmarks/seconds.py --against ../other/bin/python    # beside another environment's, and ratios
    python benchmarks/seconds.py --only counts                    # rows whose name starts so

A row runs in processes of its own, one after the other, for both environments in turns: `cold` is the first fit in a
fresh process without any compiled code, `again` the second in the same process on other data with another seed, `warm`
the first in a fresh process that finds the compiled code of an earlier one on disk. Importing the package is apart.
Four chains of 1,000 + 1,000, but for `hierarchical` (300 + 300).
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time

from own_process import printed

OPTIONS = {"progress_bar": False}
SHORT = OPTIONS | {"num_warmup": 300, "num_samples": 300}


def gaussian(seed):
    """Normal records under Laplace noise, 5,000 of them, sketched."""
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    rng = np.random.default_rng(seed)
    z = np.clip(rng.normal(1, 2, 5000), -5, 5) + rng.laplace(0, 10, 5000)
    return models.clipped_gaussian(), [ldp.Release(z, ldp.LaplaceMechanism(1.0, -5, 5)).sketch()], OPTIONS


def histogram(seed):
    """A histogram of 16 categories under optimal unary encoding, 20,000 records."""
    import jax
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    mechanism = ldp.OptimalUnaryEncoding(1.0, 16)
    x = np.random.default_rng(seed).choice(16, 20_000, p=np.arange(1, 17) / 136)
    z = np.asarray(mechanism.randomize(jax.random.key(seed), x))
    return models.oue_histogram(), [ldp.Release(z, mechanism).sketch()], OPTIONS


def counts(seed):
    """Poisson counts under Laplace noise, 5,000 of them, sketched."""
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    rng = np.random.default_rng(seed)
    z = np.clip(rng.poisson(4.0, 5000), 0, 20) + rng.laplace(0, 20, 5000)
    return models.clipped_counts(), [ldp.Release(z, ldp.LaplaceMechanism(1.0, 0, 20)).sketch()], OPTIONS


def exponential(seed):
    """Exponential waiting times under Laplace noise, 5,000 of them, sketched."""
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    rng = np.random.default_rng(seed)
    z = np.clip(rng.exponential(1.0, 5000), 0, 5) + rng.laplace(0, 5, 5000)
    return models.clipped_exponential(), [ldp.Release(z, ldp.LaplaceMechanism(1.0, 0, 5)).sketch()], OPTIONS


def share(seed):
    """Yes and no under randomized response, 5,000 of them, counted."""
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    yes = np.random.default_rng(seed).random(5000) < 0.4
    return models.warner(), [ldp.Release(yes.astype(int), ldp.RandomizedResponse(1.0)).sketch()], OPTIONS


def rows(seed):
    """Rows of three columns, 500 of them, under symmetric multivariate Laplace noise."""
    import jax
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    mechanism = ldp.SymmetricLaplaceMechanism(4.0, -5, 5, columns=3)
    x = np.random.default_rng(seed).normal(size=(500, 3)) * [1.0, 0.5, 2.0] + [1.0, 0.0, -1.0]
    z = np.asarray(mechanism.randomize(jax.random.key(seed), x))
    return models.multivariate_normal(), [ldp.Release(z, mechanism)], OPTIONS


def regression(seed):
    """A user's own linear regression on public covariates, 5,000 records."""
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import ldpbayes as ldp

    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, 5000)
    z = np.clip(rng.normal(0.5 + x, 1.0), -5, 5) + rng.laplace(0, 5, 5000)

    def model(x, release):
        intercept, slope = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("intercept", "slope"))
        sigma = numpyro.sample("sigma", dist.Gamma(2, 1))
        ldp.observe("z", dist.Normal(intercept + slope * x, sigma), release)

    return model, [x, ldp.Release(z, ldp.LaplaceMechanism(2.0, -5, 5))], OPTIONS


def hierarchical(seed, groups=8):
    """Means of groups of 3,000 records each, under budgets from 0.3 to 4, sketched."""
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    rng, sketches = np.random.default_rng(seed), []
    for epsilon in np.geomspace(0.3, 4.0, groups):
        mechanism = ldp.LaplaceMechanism(float(epsilon), -5, 5)
        x = np.clip(rng.normal(rng.normal(0, 1), 1.5, 3000), -5, 5)
        sketches.append(ldp.Release(x + rng.laplace(0, 10 / epsilon, 3000), mechanism).sketch())
    return models.hierarchical(), [sketches], SHORT


def many(seed):
    """The same with 64 groups."""
    return hierarchical(seed, 64)


CASES = (gaussian, exponential, counts, share, histogram, rows, regression, hierarchical, many)
CASES = {case.__name__: case for case in CASES}


def time_fits(case, fits):
    """Seconds of so many fits in this process, on different data, and what they say of themselves."""
    import warnings

    warnings.simplefilter("ignore")
    if os.environ.get("SECONDS_CACHE"):
        import jax

        jax.config.update("jax_compilation_cache_dir", os.environ["SECONDS_CACHE"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    import ldpbayes as ldp

    seconds, errors, memory = [], [], []
    for seed in range(fits):
        model, arguments, options = CASES[case](seed)
        start = time.perf_counter()
        result = ldp.fit(model, *arguments, seed=seed, **options)
        seconds.append(time.perf_counter() - start)
        errors += [part["error_nats"] for part in json.loads(result.attrs["certificates"])[-1:]]
        memory.append(_megabytes())
    return {"seconds": seconds, "errors": errors, "megabytes": memory}


def time_plain():
    """Seconds of NumPyro's own `MCMC`, 4 vectorised chains, on a plain normal model of 100 numbers."""
    import jax
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(y):
        mu, sigma = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("sigma", dist.Gamma(2, 1))
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    y = np.random.default_rng(0).normal(1, 2, 100)
    start = time.perf_counter()
    with jax.enable_x64(True):
        mcmc = MCMC(
            NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
        )
        mcmc.run(jax.random.key(0), y)
        np.asarray(mcmc.get_samples()["mu"])
    return {"seconds": [time.perf_counter() - start]}


def time_coverage(replicates):
    """Seconds of a coverage study of `clipped_gaussian`, one chain of 500 + 500 each on 5,000 records."""
    import ldpbayes as ldp
    from ldpbayes import models
    from ldpbayes.studies import sbc

    start = time.perf_counter()
    plan = ldp.Release(None, ldp.LaplaceMechanism(1.0, -5, 5), 5000)
    found = sbc(models.clipped_gaussian(), plan, replicates=replicates)
    return {"seconds": [time.perf_counter() - start], "table": found.table()}


def _megabytes():
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except OSError:
        return None


def measure(python, row, count, cache=None):
    """What a row prints in a process of its own."""
    variables = {"SECONDS_CACHE": cache} if cache else {}
    result = printed(__file__, "--row", row, "--count", str(count), python=python, **variables)
    if isinstance(result, str):
        return {"seconds": [float("nan")] * max(count, 2), "errors": [], "failed": [result]}
    return result


def main():
    """Run every row and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    parser.add_argument("--against", help="the Python of another environment, with another version of the package")
    parser.add_argument("--fits", type=int, default=200, help="fits of `gaussian` in one process")
    parser.add_argument("--replicates", type=int, default=500, help="of the coverage study")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        special = {"plain": lambda _: time_plain(), "coverage": time_coverage}
        run = special.get(arguments.row, lambda fits: time_fits(arguments.row, fits))
        print(json.dumps(run(arguments.count)))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    pythons = [sys.executable] + ([arguments.against] if arguments.against else [])

    def report(name, values):
        ratio = f"   ratio {values[0] / values[1]:.3f}" if len(values) > 1 else ""
        print(f"{name:24}" + "".join(f"{value:9.2f} s" for value in values) + ratio, flush=True)

    for case in CASES:
        if not case.startswith(arguments.only):
            continue
        found = [measure(python, case, 2) for python in pythons]
        report(f"{case} cold", [each["seconds"][0] for each in found])
        report(f"{case} again", [each["seconds"][1] for each in found])
        warm = []
        for python in pythons:
            with tempfile.TemporaryDirectory() as cache:
                measure(python, case, 1, cache)
                warm.append(measure(python, case, 1, cache)["seconds"][0])
        report(f"{case} warm", warm)
        for each in found:
            print(f"{'':24}certificates {each['errors']} {each.get('failed', '')}", flush=True)
    if "plain".startswith(arguments.only):
        report("plain NumPyro cold", [measure(python, "plain", 0)["seconds"][0] for python in pythons])
    if "many fits".startswith(arguments.only):
        found = measure(sys.executable, "gaussian", arguments.fits)
        rest = found["seconds"][1:]
        report(f"mean of {len(rest)} more", [sum(rest) / len(rest)])
        print(f"{'':24}resident MB after 2, 20, ... fits: {found['megabytes'][1::18]}", flush=True)
    if "coverage".startswith(arguments.only):
        found = [measure(python, "coverage", arguments.replicates) for python in pythons]
        report(f"coverage, {arguments.replicates} fits", [each["seconds"][0] for each in found])
        for row in found[0]["table"]:
            print(f"{'':24}{row}", flush=True)


if __name__ == "__main__":
    main()
