"""The same release analysed by ldpbayes and by other packages: the tables of docs/reference/peers.md.

    python benchmarks/peers.py                  # both tables in Markdown, some minutes
    python benchmarks/peers.py --only answers   # the rows whose name starts so

Needs `pip install -e ".[benchmarks,test]"` (PyMC, pure-LDP) and, for the rows of dapper, R with
`install.packages("dapper")`. A package that is missing has a row that says so. dapper takes the longest: with
DAPPER_PART=0.25 in the environment it makes a quarter of its iterations.

Every row runs in a process of its own, without compiled code on disk. Imports are not counted. Compilation is.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
import warnings

import numpy as np
from own_process import printed

LIMIT = 600  # seconds for each row
CHAINS, WARMUP, SAMPLES = 4, 1000, 1000
PART = float(os.environ.get("DAPPER_PART", "1"))  # of dapper's iterations, on a slow or busy machine
DAPPER_ITERATIONS = {"answers": round(1_000 * PART), "numbers": round(10_000 * PART)}  # a single chain

ANSWERS = ("yes", "no", "do not know", "no answer")
SHARES = np.array([0.50, 0.25, 0.15, 0.10])
PEOPLE, ANSWER_EPSILON = 10_000, 1.0

MEAN, SD = 1.0, 2.0
RECORDS, NUMBER_EPSILON, LOWER, UPPER = 1_000, 2.0, -5.0, 5.0
SCALE = (UPPER - LOWER) / NUMBER_EPSILON

DAPPER_ANSWERS = """
k <- 4
keep <- exp(epsilon) / (exp(epsilon) + k - 1)
log_p <- matrix(log((1 - keep) / (k - 1)), k, k)
diag(log_p) <- log(keep)
model <- new_privacy(
  posterior_f = function(dmat, theta) {
    g <- rgamma(k, 1 + tabulate(dmat, k))
    g / sum(g)
  },
  latent_f = function(theta) matrix(sample.int(k, length(z), TRUE, theta), ncol = 1),
  statistic_f = function(xi, sdp, i) log_p[xi, sdp[i]],
  mechanism_f = function(sdp, sx) sx,
  npar = k, varnames = paste0("p", 1:k))
start <- rep(1 / k, k)
z <- z + 1
"""
DAPPER_NUMBERS = """
n <- length(z)
log_density <- function(s, squares) (1 - n) * log(s) - s - squares / (2 * s^2)
model <- new_privacy(
  posterior_f = function(dmat, theta) {
    s <- theta[2]
    precision <- 1 / 25 + n / s^2
    mu <- rnorm(1, sum(dmat) / s^2 / precision, 1 / sqrt(precision))
    squares <- sum((dmat - mu)^2)
    for (step in 1:10) {
      other <- s * exp(rnorm(1, 0, 1.7 / sqrt(2 * n)))
      gain <- log_density(other, squares) + log(other) - log_density(s, squares) - log(s)
      if (log(runif(1)) < gain) s <- other
    }
    c(mu, s)
  },
  latent_f = function(theta) matrix(rnorm(n, theta[1], theta[2]), ncol = 1),
  statistic_f = function(xi, sdp, i) -abs(sdp[i] - min(max(xi, lower), upper)) / scale,
  mechanism_f = function(sdp, sx) sx,
  npar = 2, varnames = c("mu", "sigma"))
start <- c(0, 3)
"""
DAPPER = """
suppressMessages(library(dapper))
z <- scan("z.txt", quiet = TRUE)
{names}
{model}
times <- system.time(
  fitted <- dapper_sample(model, sdp = z, init_par = start, seed = 1, niter = {iterations}, warmup = {warmup})
)
write.table(unclass(fitted$chain), "draws.txt", row.names = FALSE, col.names = FALSE)
cat(times[["elapsed"]], times[["user.self"]] + times[["sys.self"]])
"""


# --- answers under randomized response --------------------------------------------------------------------------------


def answers():
    """10,000 answers in four categories, released under randomized response."""
    rng = np.random.default_rng(1)
    x = rng.choice(len(SHARES), PEOPLE, p=SHARES)
    keep = answer_matrix()[0, 0]
    other = (x + rng.integers(1, len(SHARES), PEOPLE)) % len(SHARES)
    return np.where(rng.random(PEOPLE) < keep, x, other)


def answer_matrix():
    """P(z | x), a row for each x."""
    k = len(SHARES)
    return (np.ones((k, k)) + (np.exp(ANSWER_EPSILON) - 1) * np.eye(k)) / (np.exp(ANSWER_EPSILON) + k - 1)


def answers_frequencies():
    """`ldp.frequencies`: closed form."""
    import ldpbayes as ldp

    z = answers()
    start = clock()
    release = ldp.Release(z, ldp.RandomizedResponse(ANSWER_EPSILON, categories=len(SHARES)))
    found = ldp.frequencies(release)
    seconds = clock() - start
    error = 1.959964 * np.asarray(found.standard_error)
    return from_estimates(found.estimate, np.array([found.estimate - error, found.estimate + error]), seconds)


def answers_fit():
    """`ldp.fit` with a flat prior on the simplex."""
    import numpyro
    import numpyro.distributions as dist

    import ldpbayes as ldp

    def model(release):
        theta = numpyro.sample("theta", dist.Dirichlet(np.ones(len(SHARES))))
        ldp.observe("z", dist.Categorical(theta), release)

    z = answers()
    start = clock()
    release = ldp.Release(z, ldp.RandomizedResponse(ANSWER_EPSILON, categories=len(SHARES)))
    fitted = ldp.fit(
        model, release.sketch(), num_warmup=WARMUP, num_samples=SAMPLES, num_chains=CHAINS, progress_bar=False
    )
    seconds = clock() - start
    return from_draws(np.asarray(fitted["posterior"]["theta"]), seconds)


def answers_pure_ldp():
    """Estimates of pure-LDP: no intervals."""
    from pure_ldp.frequency_oracles import DEServer

    z = answers()
    start = clock()
    server = DEServer(ANSWER_EPSILON, len(SHARES))
    server.aggregate_all(z)
    counts = server.estimate_all(range(1, len(SHARES) + 1), suppress_warnings=True)
    return from_estimates(np.asarray(counts) / len(z), None, clock() - start)


def answers_pymc():
    """The counts of released answers are multinomial: three lines of PyMC."""
    import pymc as pm

    z = answers()
    warm_pytensor()
    start = clock()
    with pm.Model():
        theta = pm.Dirichlet("theta", np.ones(len(SHARES)))
        pm.Multinomial("z", len(z), pm.math.dot(theta, answer_matrix()), observed=np.bincount(z))
        fitted = pm.sample(SAMPLES, tune=WARMUP, chains=CHAINS, random_seed=0, progressbar=False)
    seconds = clock() - start
    return from_draws(np.asarray(fitted["posterior"]["theta"]), seconds)


def answers_dapper():
    """A latent answer for each person."""
    names = f"epsilon <- {ANSWER_EPSILON}"
    return dapper(answers(), names, DAPPER_ANSWERS, DAPPER_ITERATIONS["answers"])


# --- numbers under Laplace noise --------------------------------------------------------------------------------------


def numbers():
    """1,000 normal records, clipped and released with Laplace noise."""
    rng = np.random.default_rng(2)
    return np.clip(rng.normal(MEAN, SD, RECORDS), LOWER, UPPER) + rng.laplace(0, SCALE, RECORDS)


def numbers_fit():
    """`ldp.fit` of a sketch."""
    import ldpbayes as ldp

    z = numbers()
    start = clock()
    release = ldp.Release(z, ldp.LaplaceMechanism(NUMBER_EPSILON, LOWER, UPPER))
    fitted = ldp.fit(
        ldp.models.clipped_gaussian(), release.sketch(), num_warmup=WARMUP, num_samples=SAMPLES, num_chains=CHAINS,
        progress_bar=False,
    )  # fmt: skip
    seconds = clock() - start
    return from_draws(stack(fitted["posterior"]), seconds)


def numbers_numpyro():
    """A latent variable for each record, non-centred."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(z):
        mu, sigma = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("sigma", dist.Gamma(2, 1))
        with numpyro.plate("records", len(z)):
            e = numpyro.sample("e", dist.Normal(0, 1))
            numpyro.sample("z", dist.Laplace(jnp.clip(mu + sigma * e, LOWER, UPPER), SCALE), obs=z)

    numpyro.enable_x64()
    z = numbers()
    start = clock()
    chains = MCMC(
        NUTS(model), num_warmup=WARMUP, num_samples=SAMPLES, num_chains=CHAINS, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    chains.run(jax.random.key(0), z)
    draws = stack(chains.get_samples(group_by_chain=True))
    return from_draws(draws, clock() - start)


def numbers_pymc():
    """The record integrated out by the trapezoid rule on 401 points, and an atom at either bound."""
    import pymc as pm
    import pytensor.tensor as pt

    z = numbers()
    warm_pytensor()
    start = clock()
    x = np.linspace(LOWER, UPPER, 401)
    weight = np.full(len(x), x[1] - x[0])
    weight[[0, -1]] /= 2
    noise = np.exp(-np.abs(z[:, None] - x) / SCALE) / (2 * SCALE)
    with pm.Model():
        mu, sigma = pm.Normal("mu", 0, 5), pm.Gamma("sigma", 2, 1)
        law = pm.Normal.dist(mu, sigma)
        inside = pt.dot(noise, weight * pt.exp(pm.logp(law, x)))
        below, above = pt.exp(pm.logcdf(law, LOWER)), pt.exp(pm.logcdf(pm.Normal.dist(-mu, sigma), -UPPER))
        pm.Potential("z", pt.sum(pt.log(inside + below * noise[:, 0] + above * noise[:, -1])))
        fitted = pm.sample(SAMPLES, tune=WARMUP, chains=CHAINS, random_seed=0, progressbar=False)
    seconds = clock() - start
    return from_draws(stack(fitted["posterior"]), seconds)


def numbers_dapper():
    """A latent record for each person; μ and σ given the records by Gibbs and Metropolis steps."""
    names = f"lower <- {LOWER}; upper <- {UPPER}; scale <- {SCALE}"
    return dapper(numbers(), names, DAPPER_NUMBERS, DAPPER_ITERATIONS["numbers"])


# --- what the rows have in common -------------------------------------------------------------------------------------


def clock():
    """Time, and processor time of this process and of its children that have ended."""
    uses = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), sum(use.ru_utime + use.ru_stime for use in uses)])


def stack(draws):
    """Draws (chain, draw, 2) of μ and σ."""
    return np.stack([np.asarray(draws[name]) for name in ("mu", "sigma")], axis=-1)


def warm_pytensor():
    """Builds what PyTensor builds once for each installation."""
    import pytensor

    pytensor.function([], pytensor.tensor.zeros(()))


def from_estimates(estimate, interval, seconds):
    """A row without draws."""
    interval = None if interval is None else np.asarray(interval).tolist()
    return {
        "estimate": np.asarray(estimate).tolist(),
        "interval": interval,
        "seconds": np.asarray(seconds).tolist(),
        "effective": None,
    }


def from_draws(draws, seconds):
    """A row from draws (chain, draw, parameter); effective draws are those of the worst parameter."""
    from numpyro.diagnostics import effective_sample_size

    flat = draws.reshape(-1, draws.shape[-1])
    return {
        "estimate": flat.mean(axis=0).tolist(),
        "interval": np.quantile(flat, [0.025, 0.975], axis=0).tolist(),
        "seconds": np.asarray(seconds).tolist(),
        "effective": float(np.min(effective_sample_size(draws))),
    }


def dapper(z, names, model, iterations):
    """One chain of dapper in R, a fifth of it warm-up."""
    if shutil.which("Rscript") is None:
        raise ModuleNotFoundError("no R")
    with tempfile.TemporaryDirectory() as folder:
        np.savetxt(os.path.join(folder, "z.txt"), z)
        script = DAPPER.format(names=names, model=model, iterations=iterations, warmup=iterations // 5)
        done = subprocess.run(["Rscript", "-e", script], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise ModuleNotFoundError(done.stderr.strip().splitlines()[-1])
        draws = np.loadtxt(os.path.join(folder, "draws.txt"))
    return from_draws(draws[None], np.array(done.stdout.split(), float))


ROWS = {
    "answers": {
        "ldpbayes, `frequencies`": answers_frequencies,
        "ldpbayes, `fit`": answers_fit,
        "pure-LDP": answers_pure_ldp,
        "PyMC by hand, multinomial counts": answers_pymc,
        f"dapper, {DAPPER_ITERATIONS['answers']:,} iterations": answers_dapper,
    },
    "numbers": {
        "ldpbayes, `fit` of a sketch": numbers_fit,
        "PyMC by hand, records integrated out": numbers_pymc,
        "NumPyro by hand, a latent value for each record": numbers_numpyro,
        f"dapper, {DAPPER_ITERATIONS['numbers']:,} iterations": numbers_dapper,
    },
}
HEADS = {
    "answers": (f"share of “yes” (true {SHARES[0]})", f"share of “no answer” (true {SHARES[-1]})", (0, 3), 3),
    "numbers": (f"mean (true {MEAN:g})", f"standard deviation (true {SD:g})", (0, 1), 2),
}


def cell(result, number, digits):
    """Estimate and interval of one parameter."""
    text = f"{result['estimate'][number]:.{digits}f}"
    if result["interval"] is not None:
        low, high = (bound[number] for bound in result["interval"])
        text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return text.replace("-", "−")


def duration(seconds):
    """Seconds with two significant digits."""
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def time_cell(seconds):
    """Time, and processor time in brackets."""
    wall, processor = map(duration, seconds)
    return f"{wall} ({processor})"


def main():
    """Run every row in its own process and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name starts so: answers, numbers, answers-4")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        warnings.simplefilter("ignore")
        task, number = arguments.row.split("-")
        print(json.dumps(list(ROWS[task].values())[int(number)]()))
        return
    for task, rows in ROWS.items():
        if not any(f"{task}-{number}".startswith(arguments.only) for number in range(len(rows))):
            continue
        first, second, which, digits = HEADS[task]
        print(f"| package | {first} | {second} | time (processor time) | effective draws |")
        print("| --- | --- | --- | --- | --- |")
        for number, name in enumerate(rows):
            if not f"{task}-{number}".startswith(arguments.only):
                continue
            result = printed(__file__, "--row", f"{task}-{number}", limit=LIMIT)
            if isinstance(result, str):
                print(f"| {name} | {result} | | | |", flush=True)
                continue
            cells = " | ".join(cell(result, index, digits) for index in which)
            effective = "" if result["effective"] is None else f"{result['effective']:,.0f}"
            print(f"| {name} | {cells} | {time_cell(result['seconds'])} | {effective} |", flush=True)
        print()


if __name__ == "__main__":
    main()
