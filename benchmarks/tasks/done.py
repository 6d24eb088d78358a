"""The ten tasks, as a new user would do them: each takes the folder of given.py, and says means and errors.

Imports are inside, since a task's seconds begin where its process begins.
"""

import json

QUIET = {"progress_bar": False}
SUMMED = (3, 7, 11)  # the categories whose shares are added
OFFICE = {"count": 1234.0, "count_scale": 20.0, "total": 31_000.0, "limit": 100.0}


def moments(posterior, *names):
    """Mean and standard deviation of every entry of the named sites."""
    import numpy as np

    found = {}
    for name in names:
        draws = np.asarray(posterior["posterior"][name])
        for place in np.ndindex(draws.shape[2:]):
            entry = draws[(..., *place)]
            found[f"{name}{list(place) if place else ''}"] = float(entry.mean()), float(entry.std())
    return found


def share(folder):
    """The share of 3,000 yes-or-no answers under randomized response (epsilon = 1.5), and their logistic regression."""
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import ldpbayes as ldp
    from ldpbayes import models

    data = np.load(folder / "share.npz")
    release = ldp.Release(data["answers"], ldp.RandomizedResponse(1.5))

    def regression(x, release):
        intercept = numpyro.sample("intercept", dist.Normal(0, 2))
        slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([3]).to_event(1))
        ldp.observe("z", dist.Bernoulli(logits=intercept + x @ slopes), release)

    found = moments(ldp.fit(models.warner(), release.sketch(), **QUIET), "theta")
    return found | moments(ldp.fit(regression, data["x"], release, **QUIET), "intercept", "slopes")


def incomes(folder):
    """A LogNormal from 50,000 clipped incomes under Laplace noise, plotted with ArviZ, saved and loaded."""
    import arviz as az
    import matplotlib
    import numpy as np
    import numpyro
    import numpyro.distributions as dist

    import ldpbayes as ldp

    matplotlib.use("Agg")

    def model(release):
        mu, sigma = numpyro.sample("mu", dist.Normal(3, 2)), numpyro.sample("sigma", dist.Gamma(2, 2))
        ldp.observe("z", dist.LogNormal(mu, sigma), release)

    release = ldp.Release(np.load(folder / "incomes.npy"), ldp.LaplaceMechanism(2.0, 0, 150))
    posterior = ldp.fit(model, release.sketch(), **QUIET)
    az.plot_posterior(posterior, var_names=["mu", "sigma"]).ravel()[0].figure.savefig(folder / "incomes.png")
    posterior.to_netcdf(str(folder / "incomes.nc"))
    return moments(az.from_netcdf(str(folder / "incomes.nc")), "mu", "sigma")


def regions(folder):
    """Means of eight regions of 3,000 records each under budgets from 0.3 to 4, 500 + 500, from sketches."""
    import numpy as np
    from given import REGIONS

    import ldpbayes as ldp
    from ldpbayes import models

    sketches = [
        ldp.Release(z, ldp.LaplaceMechanism(epsilon, -5, 5)).sketch()
        for z, epsilon in zip(np.load(folder / "regions.npy"), REGIONS, strict=True)
    ]
    posterior = ldp.fit(models.hierarchical(), sketches, num_warmup=500, num_samples=500, **QUIET)
    return moments(posterior, "mu", "tau", "sigma", "theta")


def histogram(folder):
    """Twenty shares under OUE from 100,000 people, and the interval of a sum of three: posterior and frequencies."""
    import numpy as np

    import ldpbayes as ldp
    from ldpbayes import models

    mechanism = ldp.OptimalUnaryEncoding(1.0, 20)
    release = ldp.Release(np.load(folder / "bits.npy"), mechanism)
    weights = np.isin(np.arange(20), SUMMED).astype(float)
    posterior = ldp.fit(models.oue_histogram(), release.sketch(), **QUIET)
    draws = np.asarray(posterior["posterior"]["theta"]) @ weights
    estimate = ldp.frequencies(release)
    total = float(estimate.estimate @ weights)
    if getattr(estimate, "covariance", None) is not None:
        error = float(np.sqrt(weights @ estimate.covariance @ weights))
    else:
        supported = np.asarray(release.values) @ weights
        error = float(supported.std() / (0.5 - 1 / (np.e + 1)) / np.sqrt(len(supported)))
    found = {"sum of shares": (float(draws.mean()), float(draws.std())), "sum of frequencies": (total, error)}
    return found | moments(posterior, "theta")


def command_line(folder):
    """From a CSV to a posterior by the command line: 5,000 visits to a doctor, negative binomial."""
    import contextlib
    import io

    from ldpbayes.cli import main

    out = folder / "visits.nc"
    rest = ["--model", "clipped_counts", "--no-progress", "--out", str(out)]
    described = ["--column", "visits", "--mechanism", "laplace", "--epsilon", "1.5", "--lower", "0", "--upper", "20"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                code = main(["fit", str(folder / "visits.csv"), *described, *rest])
        except SystemExit as ended:
            code = ended.code
        if code == 2:  # this version does not take the options: the short script of its documentation
            import numpy as np
            import pandas as pd

            spec = {"mechanism": "laplace", "epsilon": 1.5, "lower": 0.0, "upper": 20.0}
            values = pd.read_csv(folder / "visits.csv")["visits"].to_numpy()
            np.savez(folder / "visits.npz", values=values, mechanism=np.array(json.dumps(spec)))
            code = main(["fit", str(folder / "visits.npz"), *rest])
    if code not in (0, 3, None):
        raise RuntimeError(f"the command line ended with {code}: {text.getvalue()[-500:]}")
    import arviz as az

    return moments(az.from_netcdf(str(out)), "mean", "concentration")


def office(folder):
    """People and their total income in thousands, as a statistics office published both, with noise."""
    import numpyro
    import numpyro.distributions as dist

    import ldpbayes as ldp

    scale, limit = OFFICE["count_scale"], OFFICE["limit"]
    if hasattr(ldp, "DiscreteLaplaceMechanism"):
        count, total = ldp.DiscreteLaplaceMechanism(scale=scale), ldp.LaplaceMechanism(epsilon=0.5, sensitivity=limit)
    else:
        count = ldp.LaplaceMechanism(5000 / scale, 0, 5000)
        total = ldp.LaplaceMechanism(500_000 / (limit / 0.5), -100_000, 400_000)

    def model(people, income):
        rate = numpyro.sample("rate", dist.LogNormal(7, 1))
        mean = numpyro.sample("mean", dist.LogNormal(3, 1))
        ldp.observe("n", dist.Poisson(rate), people)
        ldp.observe("total", dist.Normal(rate * mean, mean * (1.5 * rate) ** 0.5), income)

    releases = ldp.Release([OFFICE["count"]], count), ldp.Release([OFFICE["total"]], total)
    return moments(ldp.fit(model, *releases, **QUIET), "rate", "mean")


def medians(folder):
    """Median regression of house values from a data frame of rows with zero-inflated noise."""
    import pandas as pd

    import ldpbayes as ldp
    from ldpbayes import losses

    frame = pd.read_csv(folder / "houses.csv")
    mechanism = ldp.ZeroInflatedLaplaceMechanism(
        0.25, 0.5, lower=0, upper=1, columns=tuple(frame.columns), perturbed=("income", "age")
    )
    estimate = ldp.m_estimate(losses.absolute("value"), ldp.Release(frame, mechanism))
    pairs = zip(estimate.params, estimate.standard_error, strict=True)
    estimate.summary()
    return {name: (float(value), float(error)) for name, (value, error) in zip("iab", pairs, strict=True)}


def own_mechanism(folder):
    """A mechanism of one's own: two-sided geometric noise on counts that are clipped to 0, ..., 10; Poisson, 4,000."""
    import dataclasses
    from typing import Any

    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.distributions import constraints

    import ldpbayes as ldp

    @ldp.mechanisms.register("two_sided_geometric")
    @dataclasses.dataclass(frozen=True)
    class TwoSidedGeometric(getattr(ldp.mechanisms, "DiscreteMechanism", ldp.mechanisms.Mechanism)):
        """z = clip(x, 0, 10) + k, P(k) proportional to exp(-epsilon |k| / 10)."""

        epsilon: Any

        noise, bounded = None, True
        domain = constraints.interval(0.0, 10.0)
        support = constraints.integer_interval(-2000, 2000)
        guarantee = property(lambda self: ldp.privacy.Guarantee(ldp.privacy.approximate_tradeoff(self.epsilon)))

        def randomize(self, key, x):
            x = jnp.clip(x, 0, 10)
            up, down = jnp.floor(jax.random.exponential(key, (2, *jnp.shape(x))) / (self.epsilon / 10))
            return (x + up - down).astype(jnp.int32)

        def log_prob(self, z, x):
            rate = self.epsilon / 10
            return jnp.log(jnp.tanh(rate / 2)) - rate * jnp.abs(z - jnp.clip(x, 0, 10))

        def moments(self, x):
            variance = 0.5 / jnp.sinh(self.epsilon / 20) ** 2
            return jnp.clip(x, 0.0, 10.0), jnp.full(jnp.shape(x), variance)

        def equivalence(self, z):
            return np.asarray(z).reshape(len(z), -1)

    def model(release):
        ldp.observe("z", dist.Poisson(numpyro.sample("rate", dist.Gamma(2, 0.5))), release)

    release = ldp.Release(np.load(folder / "counts.npy"), TwoSidedGeometric(1.0))
    return moments(ldp.fit(model, release.sketch(), **QUIET), "rate")


def plates(folder):
    """A model with plates under `privatize`, 800 records: by MCMC, by SVI, and posterior predictive checks."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Predictive, Trace_ELBO, autoguide

    import ldpbayes as ldp

    def model(group, groups, y=None):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 3)), numpyro.sample("tau", dist.HalfNormal(1))
        sigma = numpyro.sample("sigma", dist.Gamma(2, 2))
        with numpyro.plate("groups", groups):
            effect = numpyro.sample("effect", dist.Normal(0, 1))
        with numpyro.plate("people", group.shape[0]):
            numpyro.sample("y", dist.Normal(mu + tau * effect[group], sigma), obs=y)

    data = np.load(folder / "plates.npz")
    group, scores = jnp.asarray(data["group"]), data["scores"]
    private = ldp.privatize(model, {"y": ldp.LaplaceMechanism(4.0, -2, 6)})
    posterior = ldp.fit(private, group, 6, scores, num_warmup=500, num_samples=500, **QUIET)
    guide = autoguide.AutoNormal(private)
    optimum = SVI(private, guide, numpyro.optim.Adam(0.02), Trace_ELBO()).run(
        jax.random.key(0), 2000, group, 6, jnp.asarray(scores), progress_bar=False
    )
    svi = guide.sample_posterior(jax.random.key(1), optimum.params, sample_shape=(1000,))
    names = "mu", "tau", "sigma", "effect"
    draws = {n: np.asarray(posterior["posterior"][n]).reshape(2000, -1).squeeze()[::2] for n in names}
    replicated = Predictive(private, draws)(jax.random.key(2), group, 6)["y"]
    found = {
        "mu by SVI": (float(svi["mu"].mean()), float(svi["mu"].std())),
        "replicated sd": (float(replicated.std(axis=1).mean()), float(replicated.std(axis=1).std())),
    }
    return found | moments(posterior, *names)


def coverage(folder):
    """A coverage study of one's own model: 200 replicates of 2,000 records."""
    import numpyro
    import numpyro.distributions as dist

    import ldpbayes as ldp
    from ldpbayes.studies import sbc

    def model(release):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        scale = numpyro.sample("scale", dist.Gamma(4, 4))
        ldp.observe("z", dist.Laplace(mu, scale), release)

    study = sbc(model, ldp.Release(None, ldp.LaplaceMechanism(2.0, -4, 4), 2000), replicates=200, seed=3)
    rows = [row for row in study.table() if row["level"] == 0.8]
    return {row["parameter"]: (row["covered"], (0.8 * 0.2 / 200) ** 0.5) for row in rows}
