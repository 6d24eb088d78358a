"""Planned standard errors (`ldpbayes.studies.design`) beside posteriors of simulated releases of 10⁴ people."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import ldpbayes as ldp
from ldpbayes.studies import Checkpoint, design

M = ldp.mechanisms
WIDE = dist.Normal(0.0, 50.0)
POSITIVE = dist.LogNormal(0.0, 5.0)
AGE = np.linspace(-2, 2, 10_000)


def _shares(shares):
    return dist.Categorical(jnp.append(shares, 1 - jnp.sum(shares)))


def _answer(intercept, slope, age):
    return dist.Bernoulli(logits=intercept + slope * age)


LAWS = {  # law, guess, priors
    "normal": (dist.Normal, {"loc": 4.0, "scale": 2.0}, {"loc": WIDE, "scale": POSITIVE}),
    "log-normal": (dist.LogNormal, {"loc": 1.0, "scale": 0.4}, {"loc": WIDE, "scale": POSITIVE}),
    "poisson": (dist.Poisson, {"rate": 3.0}, {"rate": POSITIVE}),
    "shares": (_shares, {"shares": np.array([0.5, 0.3])}, None),
    "answers": (_answer, {"intercept": -0.5, "slope": 0.7}, {"intercept": WIDE, "slope": WIDE}),
}
PAIRS = {
    ("normal", "laplace"): ldp.LaplaceMechanism(4.0, 0, 10),
    ("normal", "square wave"): M.SquareWaveMechanism(4.0, 0, 10),
    ("normal", "staircase"): M.StaircaseMechanism(4.0, 0, 10),
    ("normal", "zero-inflated"): ldp.ZeroInflatedLaplaceMechanism(0.1, 3.0, 0, 10),
    ("log-normal", "laplace"): ldp.LaplaceMechanism(4.0, 0, 10),
    ("log-normal", "rp with prior"): M.RPWithPrior(4.0, (0.0, 10.0), 1.0),
    ("poisson", "discrete laplace"): ldp.DiscreteLaplaceMechanism(4.0, 0, 12),
    ("poisson", "discrete gaussian"): M.DiscreteGaussianMechanism(4.0, 0, 12),
    ("shares", "randomized response"): ldp.RandomizedResponse(1.0, 3),
    ("shares", "unary encoding"): M.OptimalUnaryEncoding(1.0, 3),
    ("shares", "subsets"): M.SubsetSelection(1.0, 3),
    ("answers", "randomized response"): ldp.RandomizedResponse(1.0, 2),
}


def _model(law):
    function, _, priors = LAWS[law]

    def model(data, **columns):
        if priors is None:
            simplex = numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))
            values = {"shares": numpyro.deterministic("shares", simplex[:2])}
        else:
            values = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        ldp.observe("z", function(**values, **columns), data)

    return model


def planned_errors(*, pairs=None, count=10_000, replicates=20, seed=0, checkpoint=None):
    """By pair of law and mechanism: planned standard errors, and means over `replicates` data sets of posterior
    standard deviations; their ratios.
    """
    rows = []
    with Checkpoint(checkpoint, {"count": count, "seed": seed}) as saved:
        for number, ((law, name), mechanism) in enumerate(PAIRS.items()):
            if pairs is not None and (law, name) not in pairs:
                continue
            function, guess, _ = LAWS[law]
            columns = {"age": AGE[:count]} if law == "answers" else {}
            plan = design(function, guess, mechanism, columns=columns or None)
            (planned,) = plan.standard_errors(count).values()
            place, model = f"{law} {name}", _model(law)
            found = list(saved.get(place, []))
            for replicate in range(len(found), replicates):
                key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), replicate)
                with jax.enable_x64(True):
                    base = function(**{k: jnp.asarray(v) for k, v in guess.items()}, **columns)
                    shape = () if columns else (count,)
                    x = base.sample(jax.random.fold_in(key, 0), shape)
                    z = np.asarray(mechanism.randomize(jax.random.fold_in(key, 1), x))
                data = ldp.Release(z, mechanism)
                options = {"seed": replicate, "num_warmup": 500, "num_samples": 1000, "progress_bar": False}
                posterior = ldp.fit(model, data if columns else data.sketch(), **columns, **options)["posterior"]
                spreads = [np.ravel(posterior[site].std(("chain", "draw"))) for site in sorted(guess)]
                found.append(np.concatenate(spreads))
                saved[place] = np.array(found)
                saved.save()
            mean = np.mean(found, axis=0)
            error = np.std(found, axis=0) / np.sqrt(len(found)) / mean
            row = {"law": law, "mechanism": name, "planned": planned, "found": mean, "ratio": mean / planned}
            rows.append(row | {"error": error, "replicates": len(found)})
    return rows
