"""Seconds of `fit` where many records are equal, a process each: counted once, or, with ``records``, read one by one.

python benchmarks/equal_rows.py              # all models at 10^5 records
python benchmarks/equal_rows.py logistic 10000 records
python benchmarks/equal_rows.py table 3000
"""

import subprocess
import sys
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import ldpbayes as ldp
from ldpbayes.inference.approximations import _equal_rows

RR = ldp.RandomizedResponse(1.0)


def people(count, kinds):
    """Covariates of so many kinds, and randomized answers."""
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, each, count) for each in kinds]
    shares = 1 / (1 + np.exp(0.5 - sum(np.sin(column) for column in columns)))
    return *columns, np.asarray(
        np.where(rng.random(count) < np.e / (1 + np.e), *((rng.random(count) < shares) ^ [[0], [1]]))
    )


def logistic(x, y=None):
    logits = numpyro.sample("a", dist.Normal(0, 2)) + numpyro.sample("b", dist.Normal(0, 2)) * x
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def observed(x, release):
    logits = numpyro.sample("a", dist.Normal(0, 2)) + numpyro.sample("b", dist.Normal(0, 2)) * x
    ldp.observe("y", dist.BernoulliLogits(logits), release)


def cells(cell, release):
    with numpyro.plate("cells", 36):
        share = numpyro.sample("share", dist.Beta(1, 1))
    ldp.observe("y", dist.Bernoulli(share[cell]), release)


def survey(region, age, release):
    level, ages = numpyro.sample("level", dist.Normal(0, 2)), numpyro.sample("ages", dist.Normal(0, 1).expand([3]))
    sd = numpyro.sample("sd", dist.HalfNormal(1))
    with numpyro.plate("region", 12):
        effects = sd * numpyro.sample("effects", dist.Normal(0, 1))
    ldp.observe("y", dist.BernoulliLogits(level + effects[region] + ages[age]), release)


def table(exposure, release):
    mean, concentration = (numpyro.sample(name, dist.LogNormal(*at)) for name, at in PRIORS.items())
    ldp.observe("z", dist.NegativeBinomial2(exposure * mean, concentration), release)


PRIORS = {"mean": (4, 1), "concentration": (0, 1)}


def withheld(count):
    """Exposures of so many cells, and a table in which noisy counts below 91 are withheld."""
    rng = np.random.default_rng(0)
    counts = rng.negative_binomial(2, 2 / 82, count)
    mechanism = ldp.DiscreteGaussianMechanism(17.0)
    noisy = np.asarray(mechanism.randomize(jax.random.key(0), counts), float)
    columns = {"page": np.arange(count), "n": np.where(noisy < 91, np.nan, noisy)}
    options = {"scale": 17.0, "sensitivity": 1.0, "threshold": 91}
    return np.ones(count), ldp.NoisyTable.from_frame(columns, "n", "page", "discrete_gaussian", **options)


MODELS = {
    "logistic": (ldp.privatize(logistic, {"y": RR}), [2]),
    "observed": (observed, [2]),
    "cells": (cells, [36]),
    "survey": (survey, [12, 3]),
}


def main(name, count, records):
    model, kinds = MODELS.get(name, (table, []))
    *columns, z = withheld(count) if name == "table" else people(count, kinds)
    if records:
        _equal_rows.equal_rows_once = lambda *_: None
    for run in ("cold", "again"):
        data = z if name in ("logistic", "table") else ldp.Release(z, RR)
        start = time.perf_counter()
        result = ldp.fit(model, *columns, data, seed=run == "again", progress_bar=False)
        seconds = time.perf_counter() - start
        print(
            f"{name} {count:,} {run}: {seconds:.1f} s, {result.attrs['integral']}, {result.attrs['expansion']}",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]), "records" in sys.argv)
    else:
        for each in MODELS:
            subprocess.run([sys.executable, __file__, each, "100000"], check=True)
