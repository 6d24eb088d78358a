"""Time and memory of frequencies of 10⁶ categories from 10⁷ reports, and of their sparse posterior.

    python benchmarks/large_domains.py                  # three rows, about three minutes on two cores
    python benchmarks/large_domains.py --only hadamard  # rows whose name starts so

Every row runs in a process of its own. The true shares are 1/k of 1,000 categories, ε = 4, 64 hash functions and 1,024
cells. Reports are simulated in pieces by NumPy, whose time does not count.
"""

import argparse
import json
import os
import platform
import resource
import time

from own_process import printed

CATEGORIES, REPORTS, PRESENT, EPSILON = 10**6, 10**7, 1000, 4.0
ROWS = ("count_mean_sketch", "hadamard_count_mean_sketch", "hadamard_response")
DIGITS = 24  # binary digits of the probability of a flip


def bits_of(mechanism, x, rng):
    """Reports of a count-mean sketch: words of flips, by the binary digits of their probability, and the cell's bit."""
    import numpy as np

    function, words = rng.integers(0, mechanism.hashes, len(x), np.uint32), mechanism.event_shape[0] - 1
    flips, digits = np.zeros((len(x), words), np.uint32), round(2**DIGITS / (1 + np.exp(EPSILON / 2)))
    for place in range(DIGITS):
        word = rng.integers(0, 2**32, flips.shape, np.uint32)
        flips = flips | word if digits >> place & 1 else flips & word
    cell = np.asarray(mechanism.hash(function, x)).astype(int)
    flips[np.arange(len(x)), cell // 32] ^= np.left_shift(1, cell % 32).astype(np.uint32)
    return np.column_stack([function, flips])


def row(name):
    import jax
    import numpy as np

    import ldpbayes as ldp

    rng = np.random.default_rng(0)
    theta = np.zeros(CATEGORIES)
    present = rng.choice(CATEGORIES, PRESENT, replace=False)
    theta[present] = 1 / np.arange(1, PRESENT + 1)
    theta /= theta.sum()
    make = {kind.name: kind for kind in (ldp.mechanisms.CountMeanSketch, ldp.mechanisms.HadamardCountMeanSketch)}
    mechanism = make.get(name, ldp.HadamardResponse)(EPSILON, CATEGORIES)
    values, step = np.empty((REPORTS, *mechanism.event_shape), np.uint32), REPORTS // 100
    draw = jax.jit(mechanism.randomize)
    for start in range(0, REPORTS, step):
        x = rng.choice(CATEGORIES, step, p=theta)
        part = bits_of(mechanism, x, rng) if name == "count_mean_sketch" else draw(jax.random.key(start), x)
        values[start : start + step] = part
    start = time.perf_counter()
    estimate = ldp.frequencies(ldp.Release(values, mechanism))
    middle = time.perf_counter()
    posterior = ldp.estimation.sparse_posterior(estimate)
    found = posterior.discoveries(0.1)
    end = time.perf_counter()
    return {
        "frequencies, s": middle - start,
        "sparse posterior and discoveries, s": end - middle,
        "peak memory, GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "standard deviation of errors, in standard errors": float(
            np.std((estimate.params - theta) / estimate.standard_error)
        ),
        "found": len(found),
        "of which absent": int(np.sum(theta[found] == 0)),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--row")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if args.row:
        print(json.dumps(row(args.row)))
        return
    print(json.dumps({"cores": os.cpu_count(), "python": platform.python_version()}))
    for name in ROWS:
        if name.startswith(args.only):
            print(name, json.dumps(printed(__file__, "--row", name)), flush=True)


if __name__ == "__main__":
    main()
