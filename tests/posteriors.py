"""A posterior by each of the ways in which `fit` computes one, on small data, made once in a process for many tests.

A function returns the model, its arguments and the result of `fit`. Nobody changes what it returns. Data are NumPy's.
"""

import functools
import warnings
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd

import ldpbayes as ldp
from ldpbayes.models import clipped_gaussian, warner

RESPONSE = ldp.RandomizedResponse(1.0)
LAPLACE = ldp.LaplaceMechanism(epsilon=2.0, lower=-10, upper=10)
CHAINS = {"num_warmup": 50, "num_samples": 40, "num_chains": 2}  # too short to converge
DRAWS = {"num_samples": 100, "num_chains": 2}  # independent ones of an integral


def fitted(model, *args, **options):
    """The posterior, with its model and arguments, without the warnings of short chains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.ConvergenceWarning)
        posterior = ldp.fit(model, *args, progress_bar=False, **options)
    return SimpleNamespace(model=model, args=args, posterior=posterior)


def answers(count, share, seed=0):
    """Randomized answers, in which a share of the people says yes."""
    rng = np.random.default_rng(seed)
    yes = rng.random(count) < share
    return ldp.Release(np.where(rng.random(count) < np.e / (1 + np.e), yes, ~yes).astype(int), RESPONSE)


def numbers(count, mean, sd, mechanism=LAPLACE, seed=0):
    """Numbers of a normal law, clipped and with Laplace noise."""
    rng = np.random.default_rng(seed)
    records = np.clip(rng.normal(mean, sd, count), mechanism.lower, mechanism.upper)
    return ldp.Release(records + rng.laplace(0, mechanism.scale, count), mechanism)


# --- integrals --------------------------------------------------------------------------------------------------------


@functools.cache
def share():
    """One parameter, `theta`: counts of 300 randomized answers."""
    return fitted(warner(), answers(300, 0.4).sketch(), **DRAWS)


@functools.cache
def normal():
    """Two parameters, `mu` and `sigma`: a sketch of 400 numbers, which has a certificate."""
    return fitted(clipped_gaussian(), numbers(400, 1.0, 2.0).sketch(), **DRAWS)


def plane(frame, release=None):
    level = numpyro.sample("level", dist.Normal(0, 2))
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    ldp.observe("z", dist.Normal(level + frame[["age", "score"]] @ slopes, 2.0), release)


@functools.cache
def regression():
    """Three parameters, `level` and two `slopes`, with covariates of 60 people: predictions, labels and likelihoods."""
    rng = np.random.default_rng(3)
    frame = {"age": rng.normal(size=60), "score": rng.normal(size=60)}
    release = numbers(60, 1 + frame["age"] - frame["score"], 2.0)
    extras = {"posterior_predictive": True, "log_likelihood": True}
    names = {"dims": {"slopes": ["covariate"], "z": ["person"]}, "coords": {"covariate": ["age", "score"]}}
    return fitted(plane, pd.DataFrame(frame), release, **extras, **names, **DRAWS)


# --- chains -----------------------------------------------------------------------------------------------------------


def groups(releases):
    with numpyro.plate("group", 4):
        mean = numpyro.sample("mean", dist.Normal(0, 3))
        numpyro.deterministic("twice", 2 * mean)
    ldp.observe("z", dist.Normal(mean, 1.0), releases)


def _groups():
    return [numbers(30, place, 1.0, ldp.LaplaceMechanism(1.0 + place, -8, 8), place) for place in range(4)]


@functools.cache
def threads():
    """Four means of groups, a release and a budget each: chains in threads."""
    return fitted(groups, _groups(), **CHAINS)


@functools.cache
def vectorised():
    """Four means of groups: chains in one vectorised program."""
    return fitted(groups, _groups(), chain_method="vectorized", **CHAINS)


# --- what stands for the records --------------------------------------------------------------------------------------


def narrow(release):
    ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Normal(1, 1)), 0.3), release)


@functools.cache
def refined():
    """A sketch on panels that are too wide for the law: two certificates, and a `SketchWarning` that is hidden."""
    sketch = numbers(4000, 1.03, 0.3, ldp.LaplaceMechanism(20.0, -5, 5)).sketch(panels=5, lattice=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.SketchWarning)
        return fitted(narrow, sketch, **DRAWS)


def line(x, release):
    a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, 1))
    ldp.observe("z", dist.BernoulliLogits(a + b * x), release)


@functools.cache
def equal_rows():
    """A logistic line of 1,000 answers at three places: six kinds of records."""
    x = np.arange(1000) % 3 / 2
    return fitted(line, x, answers(1000, 1 / (1 + np.exp(-x))), **DRAWS)


def areas(release, exposure):
    mean, spread = numpyro.sample("mean", dist.Normal(-3, 1)), numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("area", 60):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
    ldp.observe("z", dist.Poisson(exposure * jnp.exp(effect)), release)


@functools.cache
def tabulated():
    """Noisy counts of sixty areas, with an effect each: tables of their likelihoods, and chains."""
    rng = np.random.default_rng(5)
    exposure = np.rint(np.exp(rng.normal(6.0, 1.0, 60)))
    counts = rng.poisson(exposure * np.exp(rng.normal(-3.0, 0.4, 60)))
    noisy = counts + np.rint(rng.normal(0, 6.0, 60)).astype(int)
    return fitted(areas, ldp.Release(noisy, ldp.DiscreteGaussianMechanism(scale=6.0)), exposure, **CHAINS)


@functools.cache
def expansion():
    """A logistic line of 2,000 answers, all at different places, by a polynomial."""
    x = np.random.default_rng(0).normal(size=2000)
    return fitted(line, x, answers(2000, 1 / (1 + np.exp(-0.5 - x))), expand=True, **DRAWS)


# --- several releases of the same people ------------------------------------------------------------------------------


def classes(answer, income):
    share = numpyro.sample("share", dist.Beta(1, 1))
    mu = numpyro.sample("mu", dist.Normal(50, 30).expand([2]).to_event(1))
    parts = {"answer": (None, answer), "income": (dist.Normal(mu, 10.0), income)}
    ldp.observe_jointly(dist.Bernoulli(share), parts)


@functools.cache
def joint():
    """A share and two means, from answers and incomes of the same 200 people."""
    answer, rng = answers(200, 0.4, seed=2), np.random.default_rng(2)
    rich = rng.random(200) < 0.4  # by the draws that `answers` makes
    income = numbers(200, np.where(rich, 120.0, 40.0), 10.0, ldp.LaplaceMechanism(3.0, 0, 200), seed=3)
    return fitted(classes, answer, income, same_people=True, **DRAWS)
