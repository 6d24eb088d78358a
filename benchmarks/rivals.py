"""Time of a posterior by `ldp.fit` against PyMC with nutpie, the marginal density typed in by hand.

    python benchmarks/rivals.py                # the whole table, a quarter of an hour on two cores
    python benchmarks/rivals.py --only nutpie  # rows whose name starts so

Needs `pip install -e ".[benchmarks]"`. The release, the model and the priors are those of posterior.py:
`clipped_gaussian` under Laplace noise at ε = 1, μ ~ Normal(0, 5), σ ~ Gamma(2, 1); both run 4 chains of 1,000 + 1,000.

The rival is what a good user does without us: the closed form in log space, and records outside the bounds, whose
likelihoods are proportional, counted instead of summed. nutpie compiles it by Numba, its default, or by JAX. Every row
runs in a process of its own without a compilation cache; imports are not counted, and neither is what PyTensor builds
once an installation. `fit` checks its sketch and its chains in the time given; the rival checks nothing.
"""

import argparse
import json
import math
import os
import platform
import time
import warnings

from own_process import printed

LIMIT = 600  # seconds a row
CHAINS, WARMUP, SAMPLES = 4, 1000, 1000
NAMES = ("mu", "sigma")
COUNTS = (5_000, 100_000)
OURS, RIVALS = "fit", ("nutpie_jax", "nutpie_numba")
LOWER, UPPER, EPSILON = -5.0, 5.0, 1.0
APART = 4.5  # standard errors: means of the same posterior differ by more once in 140,000 comparisons


def records(count):
    """The released values of posterior.py; seconds are counted from after this."""
    import numpy as np

    rng = np.random.default_rng(count)
    return np.clip(rng.normal(1, 2, count), LOWER, UPPER) + rng.laplace(0, (UPPER - LOWER) / EPSILON, count)


def ours(z):
    """Draws, seconds, and of these the seconds of tracing and compiling."""
    import jax

    import ldpbayes as ldp
    from ldpbayes.models import clipped_gaussian

    spans = []

    def listen(event, duration, **_):
        if event.startswith("/jax/core/compile/"):
            end = time.perf_counter()
            spans.append((end - duration, end))

    jax.monitoring.register_event_duration_secs_listener(listen)
    release = ldp.Release(z, ldp.LaplaceMechanism(EPSILON, LOWER, UPPER))
    start = time.perf_counter()
    fitted = ldp.fit(
        clipped_gaussian(), release.sketch(), num_warmup=WARMUP, num_samples=SAMPLES, num_chains=CHAINS,
        progress_bar=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    compilation, reached = 0.0, start  # spans are nested, so their union is what counts
    for begin, end in sorted(spans):
        compilation += max(end - max(begin, reached), 0.0)
        reached = max(end, reached)
    return fitted["posterior"], seconds, compilation


def by_hand(z):
    """The model as a PyMC user types it: two atoms, and the tilted normal integrals left and right of a record."""
    import numpy as np
    import pymc as pm
    import pytensor.tensor as pt

    rate = EPSILON / (UPPER - LOWER)

    def log_ndtr(x):
        # erfc underflows at −38; neither erfcx, which JAX lacks, nor the dead branch of a switch may spoil a gradient
        tail, body = pt.minimum(x, -35.0), pt.maximum(x, -35.0)
        series = pt.log1p(-1 / tail**2 + 3 / tail**4 - 15 / tail**6) - tail**2 / 2 - pt.log(-tail)
        return pt.switch(x < -35.0, series - 0.5 * math.log(2 * math.pi), pt.log(pt.erfc(-body / math.sqrt(2)) / 2))

    def log_difference(a, b):
        larger = log_ndtr(a)
        return larger + pt.log1mexp(log_ndtr(b) - larger)

    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 5), pm.Gamma("sigma", 2, 1)
        rise, fall = mu + rate * sigma**2, mu - rate * sigma**2  # means of the normal times exp(±rate x)
        half = (rate * sigma) ** 2 / 2
        below, above = log_ndtr((LOWER - mu) / sigma), log_ndtr((mu - UPPER) / sigma)

        def left(x):  # each integral is taken from the side of its bound, where the normal's tail is
            return rate * mu + half + log_difference((x - rise) / sigma, (LOWER - rise) / sigma)

        def right(x):
            return -rate * mu + half + log_difference((fall - x) / sigma, (fall - UPPER) / sigma)

        x = z[(z > LOWER) & (z < UPPER)]
        inside = pt.logaddexp(
            below + rate * (LOWER - x), above + rate * (x - UPPER), left(x) - rate * x, right(x) + rate * x
        )
        # of a record outside, all but a factor that knows no parameter is the density at the bound
        low = pt.logaddexp(below, above + rate * (LOWER - UPPER), right(LOWER) + rate * LOWER)
        high = pt.logaddexp(below + rate * (LOWER - UPPER), above, left(UPPER) - rate * UPPER)
        outside = np.sum(z <= LOWER) * low + np.sum(z >= UPPER) * high
        pm.Potential("z", pt.sum(inside) + outside)
    return model


def theirs(z, backend):
    """Draws, seconds, and of these the seconds of building and compiling the model."""
    import jax  # noqa: F401 - so that no backend is imported in the time given
    import numba  # noqa: F401
    import nutpie
    import pymc  # noqa: F401
    import pytensor

    pytensor.function([], pytensor.tensor.zeros(()))  # builds PyTensor's linker
    start = time.perf_counter()
    compiled = nutpie.compile_pymc_model(by_hand(z), backend=backend)
    middle = time.perf_counter()
    fitted = nutpie.sample(compiled, draws=SAMPLES, tune=WARMUP, chains=CHAINS, seed=0, progress_bar=False)
    end = time.perf_counter()
    return fitted["posterior"], end - start, middle - start


def time_row(kind, count):
    """Seconds to 1,000 effective draws of the worse of both parameters, with compilation, and the means.

    Sampling that takes t seconds for W warm-up iterations and S draws a chain and yields E effective draws counts as
    t·(W + S·1000/E)/(W + S), as in posterior.py.
    """
    import numpy as np
    from numpyro.diagnostics import effective_sample_size

    z = records(count)
    cpu = time.process_time()
    posterior, seconds, compilation = ours(z) if kind == OURS else theirs(z, kind.removeprefix("nutpie_"))
    cpu = time.process_time() - cpu
    draws = {name: np.asarray(posterior[name]) for name in NAMES}
    ess = {name: float(effective_sample_size(draws[name])) for name in NAMES}
    worse = min(ess.values())
    sampling = (seconds - compilation) * (WARMUP + SAMPLES * 1000 / worse) / (WARMUP + SAMPLES)
    return {
        "to_1000_s": compilation + sampling,
        "compilation_s": compilation,
        "sampling_s": seconds - compilation,
        "cpu_s": cpu,
        "ess": worse,
        "means": [float(draws[name].mean()) for name in NAMES],
        "errors": [float(draws[name].std() / math.sqrt(ess[name])) for name in NAMES],
    }


def compare(count, mine, other, rival):
    """Print the ratio of the times, and by how many standard errors the posterior means differ."""
    pairs = zip(mine["means"], other["means"], mine["errors"], other["errors"], strict=True)
    apart = max(abs(a - b) / math.hypot(s, t) for a, b, s, t in pairs)
    verdict = "the same posterior" if apart < APART else "NOT the same posterior"
    ratio = mine["to_1000_s"] / other["to_1000_s"]
    print(f"{count} records, {OURS}/{rival}: {ratio:.3f}; means {apart:.1f} standard errors apart, {verdict}")


def main():
    """Run every row in its own process and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        warnings.simplefilter("ignore")
        kind, count = arguments.row.rsplit("-", 1)
        print(json.dumps(time_row(kind, int(count))))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for count in COUNTS:
        results = {}
        for kind in (OURS, *RIVALS):
            row = f"{kind}-{count}"
            if not row.startswith(arguments.only):
                continue
            result = printed(__file__, "--row", row, limit=LIMIT)
            if isinstance(result, dict):
                results[kind] = result
                shown = {k: round(v, 1) for k, v in result.items() if isinstance(v, float)}
                means = ", ".join(f"{name} {mean:.3f}" for name, mean in zip(NAMES, result["means"], strict=True))
                result = f"{json.dumps(shown)}   {means}"
            print(f"{row:20} {result}", flush=True)
        for rival in RIVALS:
            if OURS in results and rival in results:
                compare(count, results[OURS], results[rival], rival)


if __name__ == "__main__":
    main()
