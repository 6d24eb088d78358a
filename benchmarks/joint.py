"""Seconds of `fit` for joint models of people, four chains of 1,000 + 1,000, cold, a process each.

python benchmarks/joint.py                  # all models
python benchmarks/joint.py sketches 5000
"""

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import ldpbayes as ldp

ANSWER, JOB, INCOME = (
    ldp.RandomizedResponse(1.0, 2),
    ldp.RandomizedResponse(1.0, 4),
    ldp.LaplaceMechanism(1.0, 0, 200),
)


def people(count):
    """Releases of a class, of a job that depends on it, and of an income that does."""
    rng = np.random.default_rng(0)
    kind = (rng.random(count) < 0.35).astype(int)
    job = np.where(rng.random(count) < 0.5, 3 * kind, rng.integers(0, 4, count))
    records = kind, job, rng.normal(np.array([40.0, 90.0])[kind], 15.0)
    keys = jax.random.split(jax.random.key(0), 3)
    with jax.enable_x64(True):
        made = zip(keys, records, (ANSWER, JOB, INCOME), strict=True)
        return [ldp.Release(np.asarray(mechanism.randomize(key, x)), mechanism) for key, x, mechanism in made]


def incomes_by_class(answers, incomes):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("class", 2):
        mu = numpyro.sample("mu", dist.Normal(50, 30))
    sigma = numpyro.sample("sigma", dist.HalfNormal(20))
    parts = {"answer": (None, answers), "income": (dist.Normal(mu, sigma), incomes)}
    ldp.observe_jointly(dist.Categorical(share), parts)


def jobs_by_class(answers, jobs):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("class", 2):
        job = numpyro.sample("job_share", dist.Dirichlet(jnp.ones(4)))
    ldp.observe_jointly(dist.Categorical(share), {"answer": (None, answers), "job": (dist.Categorical(job), jobs)})


def main(name, count):
    answers, jobs, incomes = people(count)
    if name == "sketches":
        groups = [ldp.Release(incomes.values[answers.values == code], INCOME).sketch() for code in range(2)]
        model, data = incomes_by_class, (answers.sketch(), groups)
    elif name == "sketches_60":
        groups = [ldp.Release(incomes.values[answers.values == code], INCOME).sketch(panels=60) for code in range(2)]
        model, data = incomes_by_class, (answers.sketch(), groups)
    else:
        model, data = (incomes_by_class, (answers, incomes)) if name == "releases" else (jobs_by_class, (answers, jobs))
    start = time.perf_counter()
    result = ldp.fit(model, *data, num_warmup=1000, num_samples=1000, num_chains=4, seed=0, progress_bar=False)
    seconds, steps = time.perf_counter() - start, int(result["sample_stats"]["n_steps"].sum())
    print(f"{name} {count:,}: {seconds:.1f} s, {steps:,} steps, {result.attrs['expansion']}", flush=True)
    for site in result["posterior"]:
        draws = np.asarray(result["posterior"][site])
        print(f"  {site}: mean {draws.mean((0, 1)).round(2).tolist()}, sd {draws.std((0, 1)).round(2).tolist()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]))
    else:
        for each in ("sketches", "sketches_60", "releases", "categories"):
            subprocess.run([sys.executable, __file__, each, "5000"], check=True)
