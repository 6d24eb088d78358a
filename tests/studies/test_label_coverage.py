"""Intervals of a linear model's coefficients, given released labels."""

import numpy as np
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.studies import sbc

LABELS = 600
FEATURES = np.random.default_rng(1).normal(size=(LABELS, 3))
PRIORS = {"slope": dist.Normal(0, 0.3), "intercept": dist.Normal(0, 0.5), "sigma": dist.LogNormal(-0.7, 0.3)}
MAKE = {
    "rp_with_prior": lambda epsilon: ldp.RPWithPrior(epsilon, (-1.5, 1.5), 1.5 if epsilon < 1 else 1.0),
    "laplace": lambda epsilon: ldp.LaplaceMechanism(epsilon, -1.5, 1.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", MAKE)
def test_intervals_of_coefficients_cover_as_often_as_they_should(name, epsilon):
    """A calibrated share is outside its 99 % band once in a hundred: at most 2 of 15 (p < 5e-4 if independent)."""
    model = ldp.models.label_regression(FEATURES, **PRIORS)
    plan = ldp.Release(None, MAKE[name](epsilon), LABELS)
    study = sbc(model, plan, replicates=200, seed=0, num_warmup=400, num_samples=400, batch=200)
    rows = study.table((0.5, 0.8, 0.95))
    assert len(rows) == 15
    assert sum(not row["inside"] for row in rows) <= 2, rows
