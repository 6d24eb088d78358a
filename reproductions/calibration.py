"""Simulation-based calibration of every model factory; results are in docs/explanation/calibration.md."""

import numpy as np
import numpyro.distributions as dist

import ldpbayes as ldp
from ldpbayes import mechanisms, models
from ldpbayes.studies import sbc

FEATURES = np.random.default_rng(0).normal(size=(400, 2))
FRAME = {"x": FEATURES[:, 0], "group": np.repeat(["a", "b", "c", "d"], 100)}
# Under half normal scales, those of the factories, a covariate may hardly vary, and a short chain explores its slope
# badly.
SCALE = {"scale": dist.LogNormal(np.log(0.4), 0.5)}


def plan(mechanism, count):
    return ldp.Release(None, mechanism, count)


def laplace(epsilon=2.0, low=-5, high=5, count=1000):
    return plan(ldp.LaplaceMechanism(epsilon, low, high), count)


CASES = {
    "clipped_gaussian": lambda: (models.clipped_gaussian(), laplace()),
    "clipped_exponential": lambda: (models.clipped_exponential(), laplace(low=0)),
    "clipped_counts": lambda: (models.clipped_counts(), laplace(low=0, high=20)),
    "warner": lambda: (models.warner(), plan(ldp.RandomizedResponse(1.0), 500)),
    "oue_histogram": lambda: (models.oue_histogram(), plan(ldp.OptimalUnaryEncoding(1.0, 5), 1000)),
    "regional_histograms": lambda: (
        models.regional_histograms(),
        [plan(ldp.RandomizedResponse(epsilon, 3), 500) for epsilon in (1.0, 1.5, 2.0, 2.5)],
    ),
    "hierarchical": lambda: (models.hierarchical(), [laplace(epsilon, count=300) for epsilon in (1.0, 2.0, 4.0, 8.0)]),
    "multivariate_normal": lambda: (
        models.multivariate_normal(scale=dist.Gamma(4, 4)),
        plan(ldp.GaussianMechanism(4.0, 1e-5, -20.0, 20.0, 2), 2000),
    ),
    "linear_regression, rows": lambda: (
        models.linear_regression(**SCALE, sigma=SCALE["scale"]),
        plan(mechanisms.LinearRecordsMechanism(8.0, 1e-5, 1.0, 1.0, 2), 400),
    ),
    "linear_regression, statistics": lambda: (
        models.linear_regression(**SCALE, sigma=SCALE["scale"]),
        plan(mechanisms.LinearStatisticsMechanism(4.0, 1e-5, 1.0, 1.0, 2), 20_000),
    ),
    "logistic_regression, rows": lambda: (
        models.logistic_regression(**SCALE),
        plan(mechanisms.LogisticRecordsMechanism(8.0, 1e-5, 1.0, 2), 300),
    ),
    "logistic_regression, statistics": lambda: (
        models.logistic_regression(**SCALE),
        plan(mechanisms.LogisticStatisticsMechanism(4.0, 1e-5, 1.0, 2), 20_000),
    ),
    "label_regression": lambda: (
        models.label_regression(FEATURES, intercept=dist.Normal(0, 1), sigma=dist.Gamma(4, 4)),
        laplace(4.0, count=400),
    ),
    "perturbed_covariates": lambda: (
        models.perturbed_covariates(concentration=None, scale=dist.Gamma(4, 4)),
        plan(ldp.ZeroInflatedLaplaceMechanism(0.3, 0.8, -9, 9, columns=("x", "y"), perturbed=("x",)), 400),
    ),
    "regression": lambda: (
        models.regression("income ~ x + (1 | group)"),
        FRAME,
        laplace(4.0, -10, 10, 400),
    ),
    "smooth_density": lambda: (models.smooth_density(knots=11), laplace(4.0, 0, 1, 1000)),
    "small_areas": lambda: (
        models.small_areas(np.full(12, 2000.0), intercept=dist.Normal(-4, 1)),
        plan(mechanisms.AdditiveMechanism(ldp.noise.DiscreteLaplace(7.0), sensitivity=1), 12),
    ),
}


def calibration(*, only=None, replicates=200, seed=0, checkpoints=None, **options):
    """A row a factory: the least p-value of its parameters, also times their number, and what intervals cover."""
    rows = []
    for name, make in CASES.items():
        if only is None or name in only:
            path = checkpoints and f"{checkpoints}/{name}.npz"
            study = sbc(*make(), replicates=replicates, seed=seed, checkpoint=path, **options)
            shares = [row["covered"] for row in study.table([0.9])]
            least = min(study.p_values, key=study.p_values.get)
            rows.append(
                {
                    "model": name,
                    "parameters": len(study.pit),
                    "least p": study.p_values[least],
                    "of": least,
                    "p": min(1.0, study.p_values[least] * len(study.pit)),
                    "90 % intervals": (min(shares), float(np.mean(shares)), max(shares)),
                }
            )
            print(rows[-1], flush=True)
    return rows
