"""Seconds of a plan: 30 designs, three mechanisms with ten budgets, in a process that has compiled nothing, and again.

python benchmarks/planning.py
"""

import time

import numpy as np
import numpyro.distributions as dist

import ldpbayes as ldp
from ldpbayes.studies import design

CUTS = np.linspace(0, 10, 9)
MECHANISMS = {
    "Laplace": lambda epsilon: ldp.LaplaceMechanism(epsilon, 0.0, 10.0),
    "square wave": lambda epsilon: ldp.mechanisms.SquareWaveMechanism(epsilon, 0.0, 10.0),
    "eight bins": lambda epsilon: ldp.mechanisms.RROnBins(epsilon, CUTS, (CUTS[1:] + CUTS[:-1]) / 2),
}

if __name__ == "__main__":
    mechanisms = {
        f"{name} {epsilon:g}": make(float(epsilon))
        for name, make in MECHANISMS.items()
        for epsilon in np.linspace(0.5, 4, 10)
    }
    for run in ("cold", "again"):
        start = time.perf_counter()
        design(dist.Normal, {"loc": 4.0, "scale": 2.0}, mechanisms)
        print(f"{len(mechanisms)} designs, {run}: {time.perf_counter() - start:.1f} s")
