"""Time of secure releases of 100,000 records: seconds and, in brackets, processor time, three calls a process.

python -m benchmarks.secure
"""

import os
import platform
import time

import numpy as np

import ldpbayes as ldp

RECORDS = 100_000
RNG = np.random.default_rng(0)
NUMBERS, CODES = RNG.uniform(0, 20, RECORDS), RNG.integers(0, 16, RECORDS)
ROWS = {
    "Laplace noise": (ldp.LaplaceMechanism(1.0, 0, 20), NUMBERS),
    "Laplace noise, 100 budgets": (ldp.LaplaceMechanism(RNG.integers(1, 101, RECORDS) / 50, 0, 20), NUMBERS),
    "Gaussian noise": (ldp.GaussianMechanism(1.0, 1e-6, 0, 20), NUMBERS),
    "discrete Laplace noise": (ldp.DiscreteLaplaceMechanism(20.0, 0, 20), np.rint(NUMBERS)),
    "discrete Gaussian noise": (ldp.DiscreteGaussianMechanism(20.0, 0, 20), np.rint(NUMBERS)),
    "randomized response": (ldp.RandomizedResponse(1.0, 16), CODES),
    "randomized response, 100,000 budgets": (ldp.RandomizedResponse(RNG.uniform(0.5, 2, RECORDS), 16), CODES),
    "optimal unary encoding": (ldp.OptimalUnaryEncoding(1.0, 16), CODES),
    "subset selection": (ldp.SubsetSelection(1.0, 16), CODES),
    "Hadamard response": (ldp.HadamardResponse(1.0, 16), CODES),
    "local hashing": (ldp.LocalHashing(1.0, 16), CODES),
}


def main():
    """Print a line a row."""
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name, (mechanism, data) in ROWS.items():
        seconds = []
        for _ in range(3):
            wall, processor = time.perf_counter(), time.process_time()
            ldp.secure.release(mechanism, data)
            seconds.append((time.perf_counter() - wall, time.process_time() - processor))
        print(f"{name:40}" + ", ".join(f"{wall:.2f} s ({processor:.2f})" for wall, processor in seconds), flush=True)


if __name__ == "__main__":
    main()
