"""The factories are what a user would have written, priors included."""

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import Predictive, util

import ldpbayes as ldp
from ldpbayes import models
from ldpbayes.inference.density import density_of, sites_of
from ldpbayes.inference.model import plans_of, with_plans
from ldpbayes.inference.result import labels
from tests.protocols import PROTOCOLS

LAPLACE = ldp.LaplaceMechanism(1.0, 0, 20)
RESPONSE = ldp.RandomizedResponse(1.0)
# priors, a point, the base distribution there, mechanism; laws are made in a test, so that they have double precision
CASES = {
    "clipped_gaussian": (
        lambda: {"mu": dist.Normal(0, 5), "sigma": dist.Gamma(2, 1)},
        {"mu": 1.5, "sigma": 2.0},
        lambda: dist.Normal(1.5, 2.0),
        LAPLACE,
    ),
    "clipped_exponential": (lambda: {"rate": dist.Gamma(2, 1)}, {"rate": 0.3}, lambda: dist.Exponential(0.3), LAPLACE),
    "clipped_counts": (
        lambda: {"mean": dist.LogNormal(0, 2), "concentration": dist.LogNormal(0, 1)},
        {"mean": 3.0, "concentration": 0.7},
        lambda: dist.NegativeBinomial2(3.0, 0.7),
        LAPLACE,
    ),
    "warner": (lambda: {"theta": dist.Beta(1, 1)}, {"theta": 0.3}, lambda: dist.Bernoulli(0.3), RESPONSE),
    "oue_histogram": (
        lambda: {"theta": dist.Dirichlet(np.ones(3))},
        {"theta": np.array([0.5, 0.3, 0.2])},
        lambda: dist.Categorical(np.array([0.5, 0.3, 0.2])),
        ldp.OptimalUnaryEncoding(1.0, 3),
    ),
}


def assert_density(cases, priors, values, privatized, constant=0.0):
    """The log density of each (model, data) is that of the priors and of (law, values) pairs, in one program."""

    @jax.jit
    def totals(at):
        want = sum(priors[name].log_prob(at[name]).sum() for name in priors)
        want += sum(law.log_prob(z).sum() for law, z in privatized)
        return want, [util.log_density(model, (data,), {}, at)[0] for model, data in cases]

    want, densities = totals(values)
    # at most 1000 terms of size 4 with a few rounding errors each
    np.testing.assert_allclose(densities, want, rtol=0, atol=1e-9 + constant)


def release(base, mechanism):
    sample = jax.jit(lambda key: ldp.Privatized(base, mechanism).sample(key, (500,)))
    return ldp.Release(sample(jax.random.key(0)), mechanism)


def by_default(*names):
    """The cases; those without these names are slow tests, because `test_independent.py` has their densities too."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", by_default("oue_histogram"))
def test_a_factorys_density_is_its_priors_times_the_privatized_law(name, x64):
    priors, values, make, mechanism = CASES[name]
    base, model = make(), getattr(models, name)
    data = release(base, mechanism)
    law = (ldp.Privatized(base, mechanism), data.values)
    # warner's default prior is made at import, in single precision: its constant is off by 2⁻²⁰
    constant = 2.0**-20 if name == "warner" else 0.0
    assert_density([(model(), data), (model(), data.sketch())], priors(), values, [law], constant)
    simplex = dist.Dirichlet(np.array([2.0, 1.0, 3.0]))
    others = {parameter: simplex if np.ndim(value) else dist.HalfNormal(3.0) for parameter, value in values.items()}
    assert_density([(model(**others), data)], others, values, [law])


@pytest.mark.parametrize("name", by_default("oue_histogram"))
def test_a_factory_is_its_own_simulator(name):
    _, values, _, mechanism = CASES[name]
    run = jax.jit(Predictive(getattr(models, name)(), num_samples=3))
    draws = run(jax.random.key(1), ldp.Release(None, mechanism, 20))
    assert draws["z"].shape == (3, 20, *mechanism.event_shape)
    assert set(draws) == {"z", *values}
    assert np.all(np.isfinite(draws["z"]))


ROWS = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -9, 9, 3, (0, 1))


def simulated(model, plan):
    """Shapes of what a model draws, without compiling it."""
    drawn = jax.eval_shape(Predictive(model, num_samples=3), jax.random.key(1), plan)
    return {name: value.shape for name, value in drawn.items()}


def test_models_of_rows_simulate_releases():
    plan = ldp.Release(None, ROWS, 20)
    one = ldp.Release(None, ldp.ZeroInflatedLaplaceMechanism(0.2, 0.7, -9, 9, 1), 20)
    assert simulated(models.multivariate_normal(), plan)["z"] == (3, 20, 3)
    assert simulated(models.multivariate_normal(), one)["z"] == (3, 20, 1)
    drawn = simulated(models.perturbed_covariates(intercept=None, concentration=None), plan)
    assert drawn["z"] == (3, 20, 3) and "intercept" not in drawn and "root" not in drawn


@pytest.mark.slow
def test_the_density_of_normal_rows_is_that_of_the_privatized_multivariate_normal(x64):
    values = {"mean": np.array([0.1, 0.2, -0.3]), "scale": np.array([1.0, 0.5, 0.8]), "root": np.eye(3)}
    values["root"][1, :2] = 0.6, 0.8
    base = dist.MultivariateNormal(values["mean"], scale_tril=values["scale"][:, None] * values["root"])
    data = release(base, ROWS)
    priors = {"mean": dist.Normal(0, 1), "scale": dist.HalfNormal(1), "root": dist.LKJCholesky(3, 2.0)}
    law = (ldp.Privatized(base, ROWS), data.values)
    assert_density([(models.multivariate_normal(), data)], priors, values, [law])


def test_the_density_of_independent_columns_has_no_correlations(x64):
    values = {"mean": np.array([0.1, 0.2, -0.3]), "scale": np.array([1.0, 0.5, 0.8])}
    base = dist.MultivariateNormal(values["mean"], scale_tril=np.diag(values["scale"]))
    data = release(base, ROWS)
    priors = {"mean": dist.Normal(0, 1), "scale": dist.HalfNormal(1)}
    law = (ldp.Privatized(base, ROWS), data.values)
    assert_density([(models.multivariate_normal(concentration=None), data)], priors, values, [law])


@pytest.mark.slow
def test_the_density_with_perturbed_covariates_is_that_of_the_regression(x64):
    values = {"slopes": np.array([0.5, -1.0]), "intercept": 0.3, "mean": np.zeros(2), "scale": np.array([1.0, 0.5])}
    values["root"] = np.array([[1.0, 0.0], [0.6, 0.8]])
    covariates = dist.MultivariateNormal(np.zeros(2), scale_tril=values["scale"][:, None] * values["root"])
    law = ldp.Privatized(ldp.likelihood.RegressionRows(covariates, dist.BernoulliLogits, values["slopes"], 0.3), ROWS)
    data = ldp.Release(law.sample(jax.random.key(0), (200,)), ROWS)
    priors = {"slopes": dist.Normal(0, 2), "intercept": dist.Normal(0, 2), "mean": dist.Normal(0, 1)}
    priors |= {"scale": dist.HalfNormal(1), "root": dist.LKJCholesky(2, 2.0)}
    assert_density([(models.perturbed_covariates(), data)], priors, values, [(law, data.values)])
    independent = models.perturbed_covariates(intercept=None, concentration=None)
    drawn = Predictive(independent, num_samples=3)(jax.random.key(1), ldp.Release(None, ROWS, 20))
    assert set(np.unique(drawn["z"][..., 2])) == {0, 1}


def test_models_of_rows_say_which_releases_they_are_not_for():
    numbers = ldp.Release([0.1, 0.2], ldp.LaplaceMechanism(1.0, 0, 1))
    for factory in (models.multivariate_normal, models.perturbed_covariates):
        with pytest.raises(TypeError, match=f"{factory.__name__} takes a release of rows, got one under LaplaceMech"):
            factory()(numbers)
    signs = ldp.Release([[0.1, 0.2, 1], [0.3, 0.1, -1]], ROWS)
    with pytest.raises(ValueError, match=r"1 responses \(column 2\) .* the support of Bernoulli.*\(-1.0\) at 1"):
        ldp.fit(models.perturbed_covariates(), signs, progress_bar=False)


@pytest.mark.slow
def test_the_hierarchical_density_pools_groups_with_their_own_budgets(x64):
    budgets = (0.5, 2.0)
    data = [release(dist.Normal(5.0, 2.0), ldp.LaplaceMechanism(epsilon, 0, 20)) for epsilon in budgets]
    values = {"mu": 4.0, "tau": 1.0, "sigma": 2.0, "theta": np.array([4.5, 3.0])}
    priors = {"mu": dist.Normal(0, 5), "tau": dist.HalfNormal(2), "sigma": dist.Gamma(2, 1)}
    priors["theta"] = dist.Normal(4.0, 1.0)
    laws = [
        (ldp.Privatized(dist.Normal(theta, 2.0), r.mechanism), r.values)
        for theta, r in zip((4.5, 3.0), data, strict=True)
    ]
    forms = (data, [r.sketch() for r in data])
    assert_density([(models.hierarchical(), form) for form in forms], priors, values, laws)


def test_the_hierarchical_density_has_no_more_equations_for_more_groups(x64):
    numbers = [ldp.Release([5.0], ldp.LaplaceMechanism(epsilon, 0, 20)) for epsilon in np.linspace(0.5, 2.0, 8)]

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
    logits = values["logits"] = values["mu"] + values["tau"] * np.array([[0.3, -1.0, 0.2], [0.0, 0.4, -0.6]])
    priors = {"mu": dist.Normal(0, 2), "tau": dist.HalfNormal(1), "logits": dist.Normal(values["mu"], values["tau"])}
    laws = [
        (ldp.Privatized(dist.Categorical(logits=row), mechanism), r.values) for row, r in zip(logits, data, strict=True)
    ]
    forms = (data, [r.sketch() for r in data], together.sketch(by=np.repeat([0, 1], 500)))
    assert_density([(models.regional_histograms(), form) for form in forms], priors, values, laws)
    drawn = simulated(models.regional_histograms(), [ldp.Release(None, mechanism, 5)] * 2)
    assert drawn["z"] == (3, 10, 3) and drawn["theta"] == (3, 2, 3)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("regional_histograms", lambda: ldp.Release([0, 1, 1], RESPONSE), "a sketch made with by="),
        ("regional_histograms", lambda: ldp.Release([0, 1, 1], RESPONSE).sketch(), "a sketch made with by="),
        ("hierarchical", lambda: ldp.Release([5.0, 2.0], LAPLACE), "one for each group, got a Release"),
        ("hierarchical", lambda: ldp.Release([5.0, 2.0], LAPLACE).sketch(), "one for each group, got a PanelSketch"),
        ("hierarchical", list, "one for each group, got an empty one"),
        (
            "hierarchical",
            lambda: {"a": ldp.Release([5.0, 2.0], LAPLACE)},
            r"pass ldpbayes.data.Groups\(\[\*d.values\(\)\], {'group': tuple\(d\)}\)",
        ),
        (
            "regional_histograms",
            lambda: [ldp.Release(None, ldp.RandomizedResponse(1.0, k), 5) for k in (3, 4)],
            r"releases with equal numbers of categories, got \[3, 4\]",
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
        ldp.mechanisms.StaircaseMechanism(1.0, 0, 20),
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
    "experiment": ["numbers or yes-or-no answers", "numbers", "yes-or-no answers"],
    "hierarchical": ["numbers"],
    "label_regression": ["labels", "numbers", "categories", "yes-or-no answers"],
    "linear_regression": ["rows or linear statistics", "rows", "linear statistics"],
    "logistic_regression": ["rows or logistic statistics", "rows", "logistic statistics"],
    "multivariate_normal": ["rows"],
    "oue_histogram": ["categories", "yes-or-no answers"],
    "perturbed_covariates": ["rows"],
    "regional_histograms": ["categories", "yes-or-no answers"],
    "small_areas": ["numbers"],
    "warner": ["yes-or-no answers"],
}
ARGUMENTS = {"label_regression": [np.zeros((5, 1))]}
"""What a factory cannot do without."""


@pytest.mark.parametrize("name", TAKES)
def test_every_factory_refuses_every_other_kind_of_release(name):
    for kind in OF_KIND.keys() - set(TAKES[name]):
        for mechanism in OF_KIND[kind]:
            plan = ldp.Release(None, mechanism, 5)
            data = [plan] if name in ("experiment", "hierarchical", "regional_histograms") else plan
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
    model = models.label_regression(features)
    assert_density([(model, data)], priors, at, [(law, data.values)])
    with pytest.raises(TypeError, match="takes a release and not a sketch"):
        simulated(model, data.sketch())
    with pytest.raises(ValueError, match="one row for each label, got 3 rows, 4 labels"):
        simulated(model, ldp.Release(None, mechanism, 4))
    with pytest.raises(ValueError, match="finite numbers"):
        models.label_regression([[np.nan]])
    # counts have no second parameter
    poisson = models.label_regression(features, sigma=None, response=lambda eta: dist.Poisson(np.e**eta))
    drawn = simulated(poisson, ldp.Release(None, mechanism, 3))
    assert set(drawn) == {"intercept", "slopes", "z"} and drawn["z"] == (3, 3)


@pytest.mark.parametrize("form", ["sketches", "releases", "counts"])
def test_names_of_groups_label_what_is_fitted(form):
    words = np.repeat(["north", "south", "west"], 10)
    numbers = ldp.Release(np.random.default_rng(0).laplace(0, 30, 30), ldp.LaplaceMechanism(1.0, 0, 20))
    model, axis, data = models.hierarchical(), "group", numbers.sketch(by=words)
    if form == "releases":
        data = ldp.data.Groups([numbers, numbers, numbers], {"group": ("north", "south", "west")})
    if form == "counts":
        codes, axis = ldp.Release(np.arange(30) % 2, RESPONSE), "region"
        model, data = models.regional_histograms(), codes.sketch(by=pd.Series(words, name=axis))
    with jax.enable_x64(True):
        sites = sites_of(density_of(model, (data,), {}))
    dims, coords, _ = labels(None, None, sites, ((data,), {}))
    assert dims["theta"][0] == axis and coords[axis].tolist() == ["north", "south", "west"]
    (planned,), _ = with_plans(model, (), {}, plans_of(model, (data,), {}), "released")  # as predictions do
    assert all(each.values is None for each in planned) and sum(each.count for each in planned) == 3
