"""What a likelihood of a regression on released records costs.

    python benchmarks/regression.py             # gradients: a minute
    python benchmarks/regression.py --posterior # and a posterior of 48,000 records

Gradients are of the log-likelihood in all parameters of the law of the records (slopes, mean and covariance), compiled,
in double precision: the median of 50 calls. "Streaming" is one pass over the released rows, z @ slopes summed up.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import ldpbayes as ldp
from ldpbayes.likelihood import RegressionRows, linear_rows


def seconds(function, *arguments, repeats=50):
    """Median time of a compiled function, after two calls."""
    for _ in range(2):
        jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def covariates(parameters):
    """Normal covariates from a mean and a lower triangular root."""
    return dist.MultivariateNormal(parameters["mean"], scale_tril=jnp.tril(parameters["root"]))


def start(d, spread=0.4):
    """A point in the parameter space."""
    return {"slopes": jnp.ones(d), "mean": jnp.zeros(d), "root": spread * jnp.eye(d)}


def linear(law, release):
    """Records and their sketch."""

    def rows(parameters):
        return linear_rows(covariates(parameters), parameters["slopes"], 0.3)

    at = start(5)
    product = jax.jit(jax.value_and_grad(lambda p, z: ldp.Privatized(rows(p), release.mechanism).log_prob(z).sum()))
    nodes = jax.jit(jax.value_and_grad(lambda p, z, w: w @ ldp.Privatized(rows(p), release.mechanism).log_prob(z)))
    sketch = release.sketch()
    one, few = product(at, release.values), nodes(at, sketch.nodes, sketch.weights)
    gap = abs(float(one[0] - few[0]) / float(one[0]))
    return seconds(product, at, release.values), seconds(nodes, at, sketch.nodes, sketch.weights), gap


def regression(mechanism, z, spread, repeats=50):
    """Gradient of a logistic regression on released rows, and one pass over them."""

    def total(p, z):
        rows = RegressionRows(covariates(p), dist.BernoulliLogits, p["slopes"])
        return ldp.Privatized(rows, mechanism).log_prob(z).sum()

    d = z.shape[1] - 1
    gradient, stream = jax.jit(jax.value_and_grad(total)), jax.jit(lambda s, z: (z[:, :-1] @ s).sum())
    return seconds(gradient, start(d, spread), z, repeats=repeats), seconds(stream, jnp.ones(d), z, repeats=repeats)


def people(n, d, spread, seed=0):
    """Covariates with standard deviation `spread`, and labels of a logistic regression with slopes 1."""
    rng = np.random.default_rng(seed)
    x = spread * rng.normal(size=(n, d))
    return np.column_stack([x, rng.uniform(size=n) < 1 / (1 + np.exp(-x.sum(axis=1)))])


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posterior", action="store_true")
    arguments = parser.parse_args()
    with jax.enable_x64(True):
        mechanism = ldp.mechanisms.LinearRecordsMechanism(1.0, 1e-5, 2.0, 2.0, columns=6)
        law = linear_rows(dist.MultivariateNormal(np.zeros(5), 0.16 * np.eye(5)), np.ones(5), 0.3)
        for n in (10**3, 10**6):
            z = np.asarray(mechanism.simulate(jax.random.key(0), law.sample(jax.random.key(1), (n,))))
            product, sketch, gap = linear(law, ldp.Release(z, mechanism))
            title = f"linear, {n:,} records"
            print(f"{title}: product {1e3 * product:.3f} ms, sketch {1e3 * sketch:.3f} ms, off by {gap:.0e}")
        for spread, scale in ((0.3, 1.0), (0.9, 3.0)):
            laplace = ldp.SymmetricLaplaceMechanism(scale, -5, 5, columns=7, perturbed=tuple(range(6)))
            z = np.asarray(laplace.randomize(jax.random.key(0), people(5_000, 6, spread)))
            gradient, _ = regression(laplace, z, spread)
            title = f"logistic, symmetric Laplace noise, 5,000 x 6, predictor {spread * 6**0.5:.1f}"
            print(f"{title}: {1e3 * gradient:.2f} ms")
        private = ldp.mechanisms.LogisticRecordsMechanism(1.0, 1e-5, 1.0, columns=7)
        z = np.asarray(private.simulate(jax.random.key(0), people(48_000, 6, 0.3)))
        gradient, stream = regression(private, z, 0.3)
        print("logistic, Gaussian noise and randomized response, 48,000 x 6:")
        print(f"gradient {1e3 * gradient:.2f} ms, streaming {1e3 * stream:.2f} ms, ratio {gradient / stream:.1f}")
    if arguments.posterior:
        for title in ("cold", "again"):
            begin = time.perf_counter()
            posterior = ldp.fit(ldp.models.logistic_regression(), ldp.Release(z, private), progress_bar=False)
            divergences = int(posterior["sample_stats"]["diverging"].values.sum())
            print(
                f"posterior of the last, 4 x (1,000 + 1,000), {title}: {time.perf_counter() - begin:.0f} s, "
                f"{divergences} divergences"
            )


if __name__ == "__main__":
    main()
