"""Experiments: posteriors of effects, lifts and of which arm is best, by conjugacy and by quadrature.

Draws of integrated posteriors are independent: 4,000 of them have means within 5 of their standard errors but with
probability 6e-7.
"""

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import util
from scipy import stats

import ldpbayes as ldp
from ldpbayes.models import experiment

pytestmark = pytest.mark.usefixtures("x64")

GRID = np.linspace(0, 1, 4001)[1:-1]
EXACT = ldp.RandomizedResponse(40.0)  # a lie in 10^17 answers


def close(draws, mean, sd):
    return abs(float(draws.mean()) - mean) < 5 * sd / np.sqrt(draws.size)


def moments(laws, function):
    """Mean and standard deviation of a function of the means of two arms, with masses (points,) on the grid."""
    values, masses = function(*np.meshgrid(GRID, GRID, indexing="ij")), np.multiply.outer(*laws)
    mean = np.sum(masses * values)
    return mean, np.sqrt(np.sum(masses * values**2) - mean**2)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [ldp.RandomizedResponse(1.0), pytest.param(EXACT, marks=pytest.mark.slow)])
def test_arms_of_answers_have_the_posteriors_of_conjugacy_or_of_quadrature(mechanism):
    people, counts = np.array([200, 190]), np.array([60, 75])
    answers = np.concatenate([np.arange(n) < k for n, k in zip(people, counts, strict=True)]).astype(int)
    by = pd.Series(pd.Categorical(np.repeat(["old", "new"], people), ["old", "new"], ordered=True), name="arm")
    truth = 1 / (1 + np.exp(-mechanism.epsilon))
    yes = truth * GRID + (1 - truth) * (1 - GRID)
    laws = [stats.binom.pmf(k, n, yes) for n, k in zip(people, counts, strict=True)]
    if mechanism is EXACT:
        laws = [stats.beta.pdf(GRID, 1 + k, 1 + n - k) for n, k in zip(people, counts, strict=True)]
    laws = [law / law.sum() for law in laws]
    release = ldp.Release(answers, mechanism)
    posterior = ldp.fit(experiment(), release.sketch(by=by), progress_bar=False)["posterior"]
    old, new = (posterior.sel(arm=arm) for arm in ("old", "new"))
    assert close(new["effect"], *moments(laws, lambda a, b: b - a))
    assert close(new["lift"] > 0.5, *moments(laws, lambda a, b: b > 1.5 * a))
    assert close(new["mean"] > old["mean"], *moments(laws, lambda a, b: (b > a) + 0.5 * (a == b)))
    assert not old["effect"].any() and not old["lift"].any()


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("poisson", "binomial")]


@pytest.mark.parametrize("response", ["negative_binomial", *SLOW])
def test_counts_of_a_noisy_table_have_the_density_of_sums_over_counts(response):
    """Two cells in one arm, one in another, whose exposures differ."""
    values, size, scale = np.array([7, -1, 12]), np.array([30, 50]), 2.0
    table = ldp.NoisyTable(values, ldp.DiscreteLaplaceMechanism(scale, sensitivity=1), keys={"arm": ["a", "b", "c"]})
    model, arms, of = experiment(response, exposure=size), [table[[0, 1]], table[[2]]], [0, 0, 1]
    at = {"mean": np.array([0.1, 0.25])}
    at |= {"concentration": 1.7} if response == "negative_binomial" else {}
    counts = np.arange(200)
    mu = (size * at["mean"])[of][:, None]
    masses = {
        "poisson": stats.poisson.pmf(counts, mu),
        "binomial": stats.binom.pmf(counts, size[of][:, None], at["mean"][of][:, None]),
        "negative_binomial": stats.nbinom.pmf(counts, 1.7, 1.7 / (1.7 + mu)),
    }[response]
    q = np.exp(-1 / scale)
    noise = (1 - q) / (1 + q) * q ** np.abs(values[:, None] - counts)
    expected = np.log(np.sum(masses * noise, axis=1)).sum()
    if response != "binomial":
        expected += stats.lognorm.logpdf(at["mean"], 2).sum()
    expected += stats.lognorm.logpdf(1.7, 1) * (response == "negative_binomial")
    assert util.log_density(model, (arms,), {}, at)[0] == pytest.approx(expected, rel=1e-10)


def test_priors_plans_and_predictions():
    release = ldp.Release([0, 1, 1] * 40, ldp.RandomizedResponse(2.0))
    model = experiment(mean=dist.Beta(2, 5))
    assert "mean=Beta(2, 5)" in repr(model)
    posterior = ldp.fit(model, [release, release, release], num_samples=50, progress_bar=False)
    means = ldp.predict(posterior, model, kind="mean")["z"]
    np.testing.assert_allclose(means, posterior["posterior"]["mean"], rtol=1e-12)
    drawn = jax.jit(lambda key: util.log_density(model, ([release] * 2,), {}, {"mean": np.array([0.2, 0.3])})[0])
    assert np.isfinite(drawn(jax.random.key(0)))


@pytest.mark.parametrize(
    ("options", "arms", "message"),
    [
        ({}, 1, "at least two arms, here 1"),
        ({"response": "normal"}, 2, "response must be bernoulli for yes-or-no answers, got 'normal'"),
        ({"response": "gamma"}, 2, "got 'gamma'"),
        ({"exposure": 3.0}, 2, "takes an exposure for counts only"),
        ({"response": "poisson", "exposure": [1.0, 0.0]}, -2, "exposure must be positive"),
        ({"response": "binomial", "exposure": 2.5}, -2, "exposure must be positive and whole"),
    ],
)
def test_what_is_no_experiment_is_refused(options, arms, message):
    answers, counts = ldp.Release([0, 1], EXACT), ldp.Release([3, 4], ldp.DiscreteLaplaceMechanism(1.0, sensitivity=1))
    data = [answers] * arms if arms > 0 else [counts] * -arms
    with pytest.raises(ValueError, match=message):
        util.log_density(experiment(**options), (data,), {}, {"mean": np.full(len(data), 0.5)})
