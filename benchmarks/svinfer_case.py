"""Regression on covariates with Gaussian noise of known scale: `ldp.fit` against svinfer (Meta), on its simulated case.

    python benchmarks/svinfer_case.py                    # estimates, widths and times at 10^5 records
    python benchmarks/svinfer_case.py --coverage 100     # and coverage at 10^4, over so many replicates
    python benchmarks/svinfer_case.py --only linear      # cases whose name starts so

Needs svinfer 0.2.2, which is on no package index and does not name what it needs:
`pip install pandas sqlalchemy git+https://github.com/facebookresearch/svinfer`.

Its case (`tests/utilities.py` there): z1 ~ Poisson(7), z2 ~ 2 z1 + Poisson(9), of which x = z + noise of standard
deviations 2 and 1 is seen; y = 10 + 12 z1 − 3 z2 + 2 ε, or P(y = 1) = sigmoid(1 + 2 z1 − z2/2). Ours takes covariates
to be normal. For a linear regression that is all the same, as the law of its estimate knows the covariates by their
second moments only; for a logistic one it is not. So there are a case with normal covariates of those moments, and for
the Poisson ones a model with a mixture of normals, which takes a few lines of NumPyro.

`cold` is the first fit in a process that has no compiled code, `again` the second in it, with another seed; importing
is apart. An interval is 95 %: estimate ± 1.96 standard errors for svinfer, the posterior's quantiles for ours.
"""

import argparse
import functools
import importlib.util
import json
import math
import os
import platform
import time
import warnings

import numpy as np
from own_process import printed

NOISE = {"x1": 2.0, "x2": 1.0}  # standard deviations
TRUTH = {"linear": (10.0, 12.0, -3.0), "logistic": (1.0, 2.0, -0.5)}
CASES = ("linear", "logistic", "logistic, normal covariates")
COMPONENTS = 3


def table(case, count, seed):
    """A data frame with the noisy covariates x1, x2 and the response y."""
    import pandas as pd
    from scipy import special

    rng = np.random.default_rng(seed)
    if case.endswith("normal covariates"):
        z1 = rng.normal(7, math.sqrt(7), count)
        z2 = 2 * z1 + rng.normal(9, 3, count)
    else:
        z1 = rng.poisson(7, count)
        z2 = 2 * z1 + rng.poisson(9, count)
    intercept, *slopes = TRUTH[kind(case)]
    predictor = intercept + slopes[0] * z1 + slopes[1] * z2
    if kind(case) == "linear":
        y = rng.normal(predictor, 2)
    else:
        y = (rng.random(count) < special.expit(predictor)).astype(float)
    noise = [scale * rng.normal(size=count) for scale in NOISE.values()]
    return pd.DataFrame({"x1": z1 + noise[0], "x2": z2 + noise[1], "y": y})


def kind(case):
    """Of regression: "linear" or "logistic"."""
    return case.split(",")[0]


# --- the two packages -------------------------------------------------------------------------------------------------


def theirs(case, frame, seed):
    """Estimates, standard errors, intervals (2, 3) and what went wrong, by svinfer."""
    from svinfer.linear_model import LinearRegression, LogisticRegression
    from svinfer.processor import DataFrameProcessor

    variances = [scale**2 for scale in NOISE.values()]
    if kind(case) == "linear":  # its standard errors are those of 500 simulated estimates
        model = LinearRegression(list(NOISE), "y", variances, random_state=seed)
    else:
        model = LogisticRegression(list(NOISE), "y", variances)
    model.fit(DataFrameProcessor(frame))
    beta, error = model.beta, model.beta_standarderror
    failed = kind(case) == "logistic" and not model.success
    return beta, error, np.array([beta - 1.96 * error, beta + 1.96 * error]), ["not converged"] if failed else []


def released(frame):
    """The table as a release: noise that is known and nothing clipped, so that nothing is promised either."""
    import ldpbayes as ldp

    noise = ldp.noise.IndependentGaussian(list(NOISE.values()))
    mechanism = ldp.mechanisms.AdditiveMechanism(
        noise, columns=["x1", "x2", "y"], perturbed=list(NOISE), sensitivity=math.inf
    )
    return ldp.Release(frame, mechanism)


def model_of(case):
    """The factory's model, with priors that are wide in the units of the table."""
    import numpyro.distributions as dist

    from ldpbayes.models import linear_regression, logistic_regression

    wide = dist.Normal(0, 100)
    covariates = {"mean": wide, "scale": dist.HalfNormal(30)}
    if kind(case) == "linear":
        return linear_regression(wide, wide, dist.Gamma(2, 0.1), **covariates)
    return logistic_regression(dist.Normal(0, 5), dist.Normal(0, 5), **covariates)


def start_of(frame):
    """Where chains start: at the moments of the table, without any slopes."""
    x, y = frame[list(NOISE)], frame["y"]
    start = {"mean": x.mean().to_numpy(), "scale": x.std().to_numpy(), "slopes": np.zeros(len(NOISE))}
    return start | ({"intercept": 0.0} if y.isin([0, 1]).all() else {"intercept": y.mean(), "sigma": y.std()})


def sampler(start):
    """Options of NUTS for covariates and coefficients that are strongly correlated."""
    from numpyro.infer import init_to_value

    start = init_to_value(values=start)
    return {"dense_mass": True, "max_tree_depth": 7, "target_accept_prob": 0.9, "init_strategy": start}


def ours(case, frame, seed):
    """The same by `ldp.fit`."""
    if kind(case) == "linear":
        return fitted(case, released(frame).sketch(), seed, start_of(frame))
    start = start_of(frame)
    if len(frame) > 4 * PILOT:  # a start that is many standard deviations away takes a long warm-up
        beta, *_ = fitted(case, released(frame[:PILOT]), seed, start)
        start |= {"intercept": beta[0], "slopes": beta[1:]}
    return fitted(case, released(frame), seed, start)


def fitted(case, release, seed, start):
    """Means, standard deviations and quantiles of the coefficients, and what `fit` warns of."""
    from numpyro.infer import NUTS

    import ldpbayes as ldp

    chains, iterations = CHAINS[kind(case)]
    posterior = ldp.fit(
        model_of(case), release, seed=seed, kernel=functools.partial(NUTS, **sampler(start)),
        num_warmup=iterations, num_samples=iterations, num_chains=chains, progress_bar=False,
    )  # fmt: skip
    draws = posterior["posterior"]
    beta = np.concatenate([np.asarray(draws["intercept"])[..., None], np.asarray(draws["slopes"])], axis=-1)
    beta = beta.reshape(-1, beta.shape[-1])
    problems = json.loads(posterior.attrs["convergence_warnings"])
    return beta.mean(axis=0), beta.std(axis=0), np.quantile(beta, [0.025, 0.975], axis=0), problems


# --- covariates that are a mixture of normals -------------------------------------------------------------------------


def mixture(release, center, spread):
    """A NumPyro model: logistic regression whose covariates are a mixture of normals, priors in units of the table."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from ldpbayes.likelihood import Privatized, RegressionRows

    slopes = numpyro.sample("slopes", dist.Normal(0, 5).expand([len(NOISE)]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(COMPONENTS, 2.0)))
    with numpyro.plate("components", COMPONENTS):
        mean = numpyro.sample("mean", dist.Normal(center, 2 * spread).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(2 * spread).to_event(1))
        root = numpyro.sample("root", dist.LKJCholesky(len(NOISE), 2.0))

    def rows(k):
        law = dist.MultivariateNormal(mean[k], scale_tril=scale[k][:, None] * root[k])
        return Privatized(RegressionRows(law, dist.BernoulliLogits, slopes, intercept), release.mechanism)

    law = dist.MixtureGeneral(dist.Categorical(weights), [rows(k) for k in range(COMPONENTS)])
    numpyro.sample("z", law, obs=release.values)


@functools.cache
def compiled(count, sites):
    """The mixture's potential a record, its gradient and its Hessian, in flat unconstrained coordinates."""
    import jax
    from jax.flatten_util import ravel_pytree
    from numpyro.infer.util import potential_energy

    unravel = ravel_pytree({name: np.zeros(shape) for name, shape in sites})[1]

    def potential(flat, *data):
        return potential_energy(mixture, data, {}, unravel(flat)) / count

    return jax.jit(jax.value_and_grad(potential)), jax.jit(jax.hessian(potential))


def ours_mixture(case, frame, seed):
    """Mode and curvature of the posterior with a mixture of normals; nothing in it is random."""
    import jax
    from jax.flatten_util import ravel_pytree
    from numpyro.infer import init_to_value
    from numpyro.infer.util import initialize_model
    from scipy import optimize

    x, release = frame[list(NOISE)].to_numpy(), released(frame)
    covariance = np.cov(x.T) - np.diag(np.square(list(NOISE.values())))
    center, spread = x.mean(axis=0), np.sqrt(np.diag(covariance))
    away = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]) @ np.linalg.cholesky(covariance).T
    root = np.linalg.cholesky(covariance / np.outer(spread, spread))
    start = {"mean": center + away, "scale": np.tile(0.7 * spread, (COMPONENTS, 1))}
    start |= {"root": np.tile(root, (COMPONENTS, 1, 1)), "weights": np.full(COMPONENTS, 1 / COMPONENTS)}
    start |= {"slopes": np.zeros(len(NOISE)), "intercept": 0.0}
    data = (release, center, spread)
    with jax.enable_x64(True):
        found = initialize_model(
            jax.random.key(0), mixture, model_args=data, init_strategy=init_to_value(values=start)
        ).param_info.z
        flat, unravel = ravel_pytree(found)
        function, hessian = compiled(len(frame), tuple((name, np.shape(found[name])) for name in sorted(found)))

        def evaluated(z):
            value, gradient = function(z, *data)
            return float(value), np.asarray(gradient)

        def bend(z):
            return np.asarray(hessian(z, *data))

        done = optimize.minimize(evaluated, flat, jac=True, hess=bend, method="trust-exact", options={"gtol": 1e-6})
        covariance = np.linalg.inv(bend(done.x)) / len(frame)
        position = unravel(np.arange(len(flat), dtype=float))
    at = np.array([position["intercept"], *position["slopes"]]).astype(int)
    beta, error = done.x[at], np.sqrt(np.diag(covariance)[at])
    problems = [] if done.success else [done.message]
    return beta, error, np.array([beta - 1.96 * error, beta + 1.96 * error]), problems


METHODS = {"svinfer": theirs, "ldpbayes": ours, "ldpbayes, 3 normals": ours_mixture}
CHAINS = {"linear": (4, 1000), "logistic": (2, 400)}  # how many, iterations of warm-up and as many that are kept
PILOT = 5000  # records, of more than four times as many, on which a logistic regression finds where to start
PATIENCE = 100  # seconds that the first fit may take for there to be a second


def rows_of(only):
    """Pairs of a case and a method."""
    pairs = [(case, method) for case in CASES for method in METHODS if case.startswith(only)]
    return [(case, method) for case, method in pairs if METHODS[method] is not ours_mixture or case == "logistic"]


# --- what is measured -------------------------------------------------------------------------------------------------


def time_row(case, method, count):
    """Seconds of the first and the second fit, and what the first found."""
    for package in ("svinfer.linear_model",) if METHODS[method] is theirs else ("ldpbayes.models", "scipy.optimize"):
        importlib.import_module(package)
    frames = [table(case, count, seed) for seed in (0, 1)]
    seconds, results = [], []
    for seed, frame in enumerate(frames):
        if sum(seconds) > PATIENCE:
            break
        start = time.perf_counter()
        results.append(METHODS[method](case, frame, seed))
        seconds.append(time.perf_counter() - start)
    beta, error, _, problems = results[0]
    return {"beta": beta.tolist(), "error": error.tolist(), "seconds": seconds, "problems": problems}


def cover_row(case, method, count, replicates):
    """Coverage, median half-width, root mean square and median absolute error of each coefficient, and failures."""
    frames = [table(case, count, 1000 + i) for i in range(replicates)]
    if METHODS[method] is ours:
        results = replicated(case, frames)
    else:
        results = [METHODS[method](case, frame, i) for i, frame in enumerate(frames)]
    beta, _, interval, problems = zip(*results, strict=True)
    away, interval, good = np.array(beta) - TRUTH[kind(case)], np.array(interval), np.array([not p for p in problems])
    held = (interval[:, 0] <= TRUTH[kind(case)]) & (TRUTH[kind(case)] <= interval[:, 1])
    return {
        "coverage": held.mean(axis=0).tolist(),
        "coverage_converged": held[good].mean(axis=0).tolist(),
        "half_width": (np.nanmedian(interval[:, 1] - interval[:, 0], axis=0) / 2).tolist(),
        "rmse": np.sqrt(np.mean(away**2, axis=0)).tolist(),
        "median_error": np.median(np.abs(away), axis=0).tolist(),
        "failed": int((~good).sum()),
    }


def replicated(case, frames):
    """Results of `ours`, a chain a table, compiled once."""
    import jax

    from ldpbayes.studies import ReplicatedFit

    _, iterations = CHAINS[kind(case)]
    run = ReplicatedFit(model_of(case), num_warmup=iterations, num_samples=iterations, **sampler(start_of(frames[0])))
    releases = [released(frame) for frame in frames]
    if kind(case) == "linear":
        releases = [release.sketch() for release in releases]
    draws = run(jax.random.key(0), releases)
    beta = np.concatenate([draws["intercept"][..., None], draws["slopes"]], axis=-1)
    return [(b.mean(axis=0), b.std(axis=0), np.quantile(b, [0.025, 0.975], axis=0), []) for b in beta]


def show(numbers, digits):
    """Numbers of the three coefficients."""
    return " ".join(f"{number:.{digits}f}" for number in numbers)


def main():
    """Run every row in its own process and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name starts so")
    parser.add_argument("--count", type=int, default=100_000, help="records")
    parser.add_argument("--coverage", type=int, default=0, help="replicates, of 10,000 records; only these are run")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        warnings.simplefilter("ignore")
        name, *rest = json.loads(arguments.row)
        print(json.dumps({"time": time_row, "cover": cover_row}[name](*rest)))
        return
    if importlib.util.find_spec("svinfer") is None:
        parser.error(
            "svinfer is missing: pip install pandas sqlalchemy git+https://github.com/facebookresearch/svinfer"
        )
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for case, method in rows_of(arguments.only):
        label = f"{case:27} {method:20}"
        if arguments.coverage:
            found = printed(__file__, "--row", json.dumps(["cover", case, method, 10_000, arguments.coverage]))
        else:
            found = printed(__file__, "--row", json.dumps(["time", case, method, arguments.count]))
        if isinstance(found, str):
            print(f"{label} {found}", flush=True)
        elif arguments.coverage:
            of_others = f"{found['failed']} not converged, {show(found['coverage_converged'], 2)} of the others"
            sizes = f"half a width {show(found['half_width'], 3)}  RMSE {show(found['rmse'], 3)}"
            middle = f"median error {show(found['median_error'], 3)}"
            print(f"{label} coverage {show(found['coverage'], 2)} ({of_others})  {sizes}  {middle}", flush=True)
        else:
            seconds = ", ".join(
                f"{which} {t:.2f} s" for which, t in zip(("cold", "again"), found["seconds"], strict=False)
            )
            found_here = f"{show(found['beta'], 3)}  ± {show(found['error'], 3)}"
            print(f"{label} {found_here}  {seconds}  {'; '.join(found['problems'])}", flush=True)


if __name__ == "__main__":
    main()
