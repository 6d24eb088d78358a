"""Planned standard errors (`ldpbayes.studies.design`) beside posteriors of simulated releases of 10⁴ people."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import ldpbayes as ldp
from ldpbayes.studies import Checkpoint, ReplicatedFit, design

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


def planned_errors(*, pairs=None, count=10_000, replicates=200, batch=50, seed=0, checkpoint=None):
    """By pair of law and mechanism: planned standard errors, and means over `replicates` data sets of posterior
    standard deviations, of one chain each; their ratios.
    """
    rows = []
    with Checkpoint(checkpoint, {"count": count, "seed": seed, "batch": batch}) as saved, jax.enable_x64(True):
        for number, ((law, name), mechanism) in enumerate(PAIRS.items()):
            if pairs is not None and (law, name) not in pairs:
                continue
            function, guess, _ = LAWS[law]
            columns = {"age": AGE[:count]} if law == "answers" else {}
            plan = design(function, guess, mechanism, columns=columns or None)
            (planned,) = plan.standard_errors(count).values()
            base = function(**{name: jnp.asarray(value) for name, value in guess.items()}, **columns)
            model = functools.partial(_model(law), **columns)
            fit = ReplicatedFit(model, num_warmup=1000, num_samples=500, sketched=not columns)
            place = f"{law} {name}"
            found = list(saved.get(place, []))
            for start in range(len(found), replicates, batch):
                keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), start), 3)
                x = base.sample(keys[0], (batch,) if columns else (batch, count))
                z = np.asarray(jax.vmap(mechanism.randomize)(jax.random.split(keys[1], batch), x))
                draws = fit(keys[2], [ldp.Release(each, mechanism) for each in z])
                spreads = [draws[site].std(axis=1).reshape(batch, -1) for site in sorted(guess)]
                found += [*np.concatenate(spreads, axis=1)]
                saved[place] = np.array(found)
                saved.save()
            mean = np.mean(found, axis=0)
            error = np.std(found, axis=0) / np.sqrt(len(found)) / mean
            row = {"law": law, "mechanism": name, "planned": planned, "found": mean, "ratio": mean / planned}
            rows.append(row | {"error": error, "replicates": len(found)})
            print(rows[-1], flush=True)
    return rows


def rankings(rows):
    """Mechanisms of each law and parameter from the smallest error to the largest, as planned and as found."""
    for law in dict.fromkeys(row["law"] for row in rows):
        own = [row for row in rows if row["law"] == law]
        for place in range(len(own[0]["planned"])):
            ranked = [
                [row["mechanism"] for row in sorted(own, key=lambda row, how=how: row[how][place])]
                for how in ("planned", "found")
            ]
            yield law, place, *ranked
