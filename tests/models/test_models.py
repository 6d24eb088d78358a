"""The factories are what a user would have written, priors included."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive, util

import ldpbayes as ldp
from ldpbayes import models
from tests.protocols import PROTOCOLS

LAPLACE = ldp.LaplaceMechanism(1.0, 0, 20)
RESPONSE = ldp.RandomizedResponse(1.0)
# priors, a point, the base distribution there (made in a test, so that it is in double precision), mechanism
CASES = {
    "clipped_gaussian": (
        {"mu": dist.Normal(0, 5), "sigma": dist.Gamma(2, 1)},
        {"mu": 1.5, "sigma": 2.0},
        lambda: dist.Normal(1.5, 2.0),
        LAPLACE,
    ),
    "clipped_exponential": ({"rate": dist.Gamma(2, 1)}, {"rate": 0.3}, lambda: dist.Exponential(0.3), LAPLACE),
    "clipped_counts": (
        {"mean": dist.LogNormal(0, 2), "concentration": dist.LogNormal(0, 1)},
        {"mean": 3.0, "concentration": 0.7},
        lambda: dist.NegativeBinomial2(3.0, 0.7),
        LAPLACE,
    ),
    "warner": ({"theta": dist.Beta(1, 1)}, {"theta": 0.3}, lambda: dist.Bernoulli(0.3), RESPONSE),
    "oue_histogram": (
        {"theta": dist.Dirichlet(np.ones(3))},
        {"theta": np.array([0.5, 0.3, 0.2])},
        lambda: dist.Categorical(np.array([0.5, 0.3, 0.2])),
        ldp.OptimalUnaryEncoding(1.0, 3),
    ),
}


def log_density(model, data, values):
    return float(jax.jit(lambda at: util.log_density(model, (data,), {}, at)[0])(values))


def log_prob(law, z):
    return float(jax.jit(lambda at: law.log_prob(at).sum())(z))


def release(base, mechanism):
    return ldp.Release(ldp.Privatized(base, mechanism).sample(jax.random.key(0), (500,)), mechanism)


def expected(priors, values, base, data):
    prior = sum(log_prob(priors[name], value) for name, value in values.items())
    return prior + log_prob(ldp.Privatized(base, data.mechanism), data.values)


@pytest.mark.parametrize("name", CASES)
def test_a_factorys_density_is_its_priors_times_the_privatized_law(name, x64):
    priors, values, make, mechanism = CASES[name]
    base = make()
    data = release(base, mechanism)
    for form in (data, data.sketch()):  # 500 terms of size 4 with a few rounding errors each
        density = log_density(getattr(models, name)(), form, values)
        assert abs(density - expected(priors, values, base, data)) < 1e-9


@pytest.mark.parametrize("name", CASES)
def test_a_factory_takes_other_priors(name, x64):
    _, values, make, mechanism = CASES[name]
    base = make()
    data = release(base, mechanism)
    simplex = dist.Dirichlet(np.array([2.0, 1.0, 3.0]))
    others = {parameter: simplex if np.ndim(value) else dist.HalfNormal(3.0) for parameter, value in values.items()}
    density = log_density(getattr(models, name)(**others), data, values)
    assert abs(density - expected(others, values, base, data)) < 1e-9


@pytest.mark.parametrize("name", CASES)
def test_a_factory_is_its_own_simulator(name):
    priors, _, _, mechanism = CASES[name]
    draws = Predictive(getattr(models, name)(), num_samples=3)(jax.random.key(1), ldp.Release(None, mechanism, 20))
    assert draws["z"].shape == (3, 20, *mechanism.event_shape)
    assert set(draws) == {"z", *priors}
    assert np.all(np.isfinite(draws["z"]))


ROWS = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -9, 9, 3, (0, 1))


def test_the_density_of_normal_rows_is_that_of_the_privatized_multivariate_normal(x64):
    values = {"mean": np.array([0.1, 0.2, -0.3]), "scale": np.array([1.0, 0.5, 0.8]), "root": np.eye(3)}
    values["root"][1, :2] = 0.6, 0.8
    base = dist.MultivariateNormal(values["mean"], scale_tril=values["scale"][:, None] * values["root"])
    data = release(base, ROWS)
    prior = sum(
        float(p.log_prob(values[name]).sum())
        for name, p in {
            "mean": dist.Normal(0, 1),
            "scale": dist.HalfNormal(1),
            "root": dist.LKJCholesky(3, 2.0),
        }.items()
    )
    density = log_density(models.multivariate_normal(), data, values)
    want = prior + log_prob(ldp.Privatized(base, ROWS), data.values)
    assert abs(density - want) < 1e-9
    drawn = Predictive(models.multivariate_normal(), num_samples=3)(jax.random.key(1), ldp.Release(None, ROWS, 20))
    assert drawn["z"].shape == (3, 20, 3)
    one = ldp.Release(None, ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -9, 9, 1), 20)
    assert Predictive(models.multivariate_normal(), num_samples=3)(jax.random.key(1), one)["z"].shape == (3, 20, 1)


def test_the_density_with_perturbed_covariates_is_that_of_the_regression(x64):
    values = {"slopes": np.array([0.5, -1.0]), "intercept": 0.3, "mean": np.zeros(2), "scale": np.array([1.0, 0.5])}
    values["root"] = np.array([[1.0, 0.0], [0.6, 0.8]])
    covariates = dist.MultivariateNormal(np.zeros(2), scale_tril=values["scale"][:, None] * values["root"])
    law = ldp.Privatized(ldp.likelihood.RegressionRows(covariates, dist.BernoulliLogits, values["slopes"], 0.3), ROWS)
    data = ldp.Release(law.sample(jax.random.key(0), (200,)), ROWS)
    priors = {"slopes": dist.Normal(0, 2), "intercept": dist.Normal(0, 2), "mean": dist.Normal(0, 1)}
    priors |= {"scale": dist.HalfNormal(1), "root": dist.LKJCholesky(2, 2.0)}
    prior = sum(float(p.log_prob(values[name]).sum()) for name, p in priors.items())
    density = log_density(models.perturbed_covariates(), data, values)
    assert abs(density - prior - log_prob(law, data.values)) < 1e-9
    independent = models.perturbed_covariates(intercept=None, concentration=None)
    drawn = Predictive(independent, num_samples=3)(jax.random.key(1), ldp.Release(None, ROWS, 20))
    assert drawn["z"].shape == (3, 20, 3) and "intercept" not in drawn and "root" not in drawn
    assert set(np.unique(drawn["z"][..., 2])) == {0, 1}


def test_models_of_rows_say_which_releases_they_are_not_for():
    numbers = ldp.Release([0.1, 0.2], ldp.LaplaceMechanism(1.0, 0, 1))
    for factory in (models.multivariate_normal, models.perturbed_covariates):
        with pytest.raises(TypeError, match=f"{factory.__name__} takes a release of rows, got one under LaplaceMech"):
            factory()(numbers)
    signs = ldp.Release([[0.1, 0.2, 1], [0.3, 0.1, -1]], ROWS)
    with pytest.raises(ValueError, match=r"1 responses \(column 2\) are not in the support of Bernoulli.*\(-1\) at 1"):
        ldp.fit(models.perturbed_covariates(), signs, progress_bar=False)


def test_the_hierarchical_density_pools_groups_with_their_own_budgets(x64):
    budgets = (0.5, 2.0)
    data = [release(dist.Normal(5.0, 2.0), ldp.LaplaceMechanism(epsilon, 0, 20)) for epsilon in budgets]
    values = {"mu": 4.0, "tau": 1.0, "sigma": 2.0, "theta": np.array([4.5, 3.0])}
    priors = {"mu": dist.Normal(0, 5), "tau": dist.HalfNormal(2), "sigma": dist.Gamma(2, 1)}
    prior = sum(float(p.log_prob(values[name])) for name, p in priors.items())
    prior += float(dist.Normal(4.0, 1.0).log_prob(values["theta"]).sum())
    likelihood = sum(
        log_prob(ldp.Privatized(dist.Normal(theta, 2.0), r.mechanism), r.values)
        for theta, r in zip((4.5, 3.0), data, strict=True)
    )
    for form in (data, [r.sketch() for r in data]):
        density = log_density(models.hierarchical(), form, values)
        assert abs(density - prior - likelihood) < 1e-9


def test_the_hierarchical_density_has_no_more_equations_for_more_groups(x64):
    numbers = [ldp.Release([5.0], ldp.LaplaceMechanism(epsilon, 0, 20)) for epsilon in np.linspace(0.5, 2.0, 24)]

    def equations(data):
        values = {"mu": 4.0, "tau": 1.0, "sigma": 2.0, "theta": np.zeros(len(data))}
        density = jax.value_and_grad(lambda at: util.log_density(models.hierarchical(), (data,), {}, at)[0])
        return len(jax.make_jaxpr(density)(values).eqns)

    for form in (numbers, [r.sketch(panels=2, lattice=False) for r in numbers]):
        assert equations(form) == equations(form[:3])


def test_regional_histograms_pool_regions_given_one_by_one_or_together(x64):
    mechanism = ldp.OptimalUnaryEncoding(1.0, 3)
    theta = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
    data = [release(dist.Categorical(row), mechanism) for row in theta]
    together = ldp.Release(np.concatenate([r.values for r in data]), mechanism)
    values = {"mu": np.array([0.1, 0.0, -0.3]), "tau": np.array([0.5, 0.2, 1.0])}
    values["offset"] = np.array([[0.3, -1.0, 0.2], [0.0, 0.4, -0.6]])
    prior = sum(
        float(p.log_prob(values[name]).sum())
        for name, p in {"mu": dist.Normal(0, 2), "tau": dist.HalfNormal(1), "offset": dist.Normal(0, 1)}.items()
    )
    logits = values["mu"] + values["tau"] * values["offset"]
    likelihood = sum(
        log_prob(ldp.Privatized(dist.Categorical(logits=row), mechanism), r.values)
        for row, r in zip(logits, data, strict=True)
    )
    for form in (data, [r.sketch() for r in data], together.sketch(by=np.repeat([0, 1], 500))):
        density = log_density(models.regional_histograms(), form, values)
        assert abs(density - prior - likelihood) < 1e-9
    plans = [ldp.Release(None, mechanism, 5)] * 2
    drawn = Predictive(models.regional_histograms(), num_samples=3)(jax.random.key(0), plans)
    assert drawn["z"].shape == (3, 10, 3) and drawn["theta"].shape == (3, 2, 3)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("regional_histograms", lambda: release(dist.Bernoulli(0.5), RESPONSE), "a sketch made with by="),
        ("regional_histograms", lambda: release(dist.Bernoulli(0.5), RESPONSE).sketch(), "a sketch made with by="),
        ("hierarchical", lambda: release(dist.Normal(5.0, 2.0), LAPLACE), "one a group, got a Release"),
        ("hierarchical", lambda: release(dist.Normal(5.0, 2.0), LAPLACE).sketch(), "one a group, got a PanelSketch"),
        ("hierarchical", list, "one a group, got an empty one"),
        (
            "hierarchical",
            lambda: {"a": release(dist.Normal(5.0, 2.0), LAPLACE)},
            r"list\(d.values\(\)\), and the names as coords={'group': list\(d\)}",
        ),
        (
            "regional_histograms",
            lambda: [ldp.Release(None, ldp.RandomizedResponse(1.0, k), 5) for k in (3, 4)],
            r"releases of the same categories, got \[3, 4\] of them",
        ),
        (
            "warner",
            lambda: ldp.Release(None, ldp.RandomizedResponse(1.0, 3), 5),
            "takes a release of yes-or-no answers",
        ),
        ("warner", lambda: np.zeros(5), "takes a release of yes-or-no answers, or a sketch of one; got ndarray"),
    ],
)
def test_a_factory_refuses_what_it_is_not_for(name, data, message):
    with pytest.raises(TypeError, match=message):
        getattr(models, name)()(data())


OF_KIND = {
    "numbers": [
        LAPLACE,
        ldp.GaussianMechanism(1.0, 1e-6, 0, 20),
        ldp.SymmetricLaplaceMechanism(1.0, 0, 20),
        ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, 0, 20),
        ldp.mechanisms.IndependentLaplaceMechanism(1.0, 0, 20),
        ldp.RPWithPrior(1.0, (0, 20), 5.0),
        ldp.StaircaseMechanism(1.0, 0, 20),
        ldp.RROnBins(1.0, [0, 5, 20], [3.0, 12.0]),
    ],
    "categories": [make(1.0, 3) for make in PROTOCOLS.values()],
    "yes-or-no answers": [RESPONSE, ldp.OptimalUnaryEncoding(1.0, 2)],
    "rows": [
        ROWS,
        ldp.SymmetricLaplaceMechanism(1.0, 0, 20, 1),
        ldp.mechanisms.IndependentLaplaceMechanism(1.0, 0, 20, 2),
    ],
    "linear statistics": [ldp.mechanisms.LinearStatisticsMechanism(1.0, 1e-5, 1.0, 1.0, 3)],
    "logistic statistics": [ldp.mechanisms.LogisticStatisticsMechanism(1.0, 1e-5, 1.0, 3)],
}
TAKES = {
    "clipped_counts": ["numbers"],
    "clipped_exponential": ["numbers"],
    "clipped_gaussian": ["numbers"],
    "hierarchical": ["numbers"],
    "label_regression": ["labels", "numbers", "categories", "yes-or-no answers"],
    "linear_regression": ["rows or linear statistics", "rows", "linear statistics"],
    "logistic_regression": ["rows or logistic statistics", "rows", "logistic statistics"],
    "multivariate_normal": ["rows"],
    "oue_histogram": ["categories", "yes-or-no answers"],
    "perturbed_covariates": ["rows"],
    "regional_histograms": ["categories", "yes-or-no answers"],
    "warner": ["yes-or-no answers"],
}
ARGUMENTS = {"label_regression": [np.zeros((5, 1))]}
"""What a factory cannot do without."""


@pytest.mark.parametrize("name", models.__all__)
def test_every_factory_refuses_every_other_kind_of_release(name):
    for kind in OF_KIND.keys() - set(TAKES[name]):
        for mechanism in OF_KIND[kind]:
            plan = ldp.Release(None, mechanism, 5)
            data = [plan] if name in ("hierarchical", "regional_histograms") else plan
            message = f"{name} takes a release of {TAKES[name][0]}, got one under {type(mechanism).__name__}"
            with pytest.raises(TypeError, match=message):
                getattr(models, name)(*ARGUMENTS.get(name, ()))(data)


def test_label_regressions_are_priors_times_a_law_a_label_and_refuse_what_does_not_fit(x64):
    features = np.array([[0.0, 1.0], [1.0, -1.0], [2.0, 0.5]])
    mechanism = ldp.RPWithPrior(1.0, (0, 3), 0.5)
    data = ldp.Release([0.2, 1.9, 3.1], mechanism)
    at = {"intercept": 0.3, "slopes": np.array([0.5, -0.2]), "sigma": 0.7}
    priors = {"intercept": dist.Normal(0, 10), "slopes": dist.Normal(0, 1), "sigma": dist.HalfNormal(5)}
    law = ldp.Privatized(dist.Normal(0.3 + features @ at["slopes"], 0.7), mechanism)
    total = sum(log_prob(prior, at[name]) for name, prior in priors.items()) + log_prob(law, data.values)
    model = models.label_regression(features)
    assert log_density(model, data, at) == pytest.approx(total, rel=1e-12)
    with pytest.raises(TypeError, match="the release itself"):
        log_density(model, data.sketch(), at)
    with pytest.raises(ValueError, match="of 3 labels, but the release has 4"):
        log_density(model, ldp.Release(None, mechanism, 4), at)
    with pytest.raises(ValueError, match="finite numbers"):
        models.label_regression([[np.nan]])
    # counts have no second parameter
    poisson = models.label_regression(features, sigma=None, response=lambda eta: dist.Poisson(np.e**eta))
    trace = Predictive(poisson, num_samples=3)(jax.random.key(0), ldp.Release(None, mechanism, 3))
    assert set(trace) == {"intercept", "slopes", "z"} and trace["z"].shape == (3, 3)
