"""Models of formulas: designs against statsmodels', coefficients against its fits, new data, and what is refused."""

import os
import pathlib

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import patsy
import pytest
import statsmodels.api as sm
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy import optimize, stats

import ldpbayes as ldp
from ldpbayes.models import regression

COUNT = 400
EXACT = ldp.mechanisms.AdditiveMechanism(ldp.noise.Gaussian(1e-3), sensitivity=np.inf)  # next to no noise
SHORT = {"num_warmup": 300, "num_samples": 500, "num_chains": 2, "progress_bar": False, "expand": False}


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(5)
    columns = {"age": rng.uniform(20, 70, COUNT), "education": rng.choice(["high", "low", "mid"], COUNT)}
    return pd.DataFrame(columns | {"region": rng.choice(list("ESW"), COUNT), "kind": rng.integers(0, 3, COUNT)})


def design(formula, frame, attrs=None, **options):
    (prepared, _), _, entries = regression(formula, answer=(50, 10), **options).prepare((frame,), {}, attrs)
    return prepared, entries


@pytest.mark.parametrize(
    ("right", "theirs"),
    [
        ("age + education", None),
        ("age * education + C(kind)", None),
        ("bs(age, df=4) + education:age", "bs(age, df=4, include_intercept=False) + education:age"),
        ("0 + age + np.log(age)", None),
        ("poly(age, 2)", None),
    ],
)
def test_designs_are_those_of_patsy_also_for_new_data_with_a_level_missing(people, right, theirs):
    """Up to standardisation; of polynomials, which patsy has not, the column space."""
    ours, entries = design(f"income ~ {right}", people)
    new = people[people["education"] != "mid"].iloc[:7][["kind", "education", "region", "age"]]
    again, _ = design(f"income ~ {right}", new, entries)
    if "poly" in right:
        both = np.column_stack([np.ones(COUNT), people["age"], people["age"] ** 2, ours.columns])
        assert np.linalg.matrix_rank(both / np.linalg.norm(both, axis=0), tol=1e-8) == 3
        np.testing.assert_allclose(again.columns, ours.columns[new.index], atol=1e-10)
        return
    matrix = patsy.dmatrix(theirs or right, people)
    (fresh,) = patsy.build_design_matrices([matrix.design_info], new)
    first = "Intercept" in matrix.design_info.column_names
    raw, expected = (ours.columns * ours.unit + ours.centre).T, np.asarray(matrix)[:, first:].T
    order = [int(np.argmin(np.abs(expected - column).max(axis=1))) for column in raw]  # the two name columns otherwise
    assert sorted(order) == list(range(len(expected)))
    np.testing.assert_allclose(raw, expected[order], atol=1e-9)
    np.testing.assert_allclose(
        again.columns * again.unit + again.centre, np.asarray(fresh)[:, first:][:, order], atol=1e-9
    )


def test_designs_are_arguments_under_jit_and_vmap(people):
    prepared, _ = design("income ~ age + (1 | region)", people)
    total = lambda part: part.columns.sum() + part.codes["region"].sum() + len(part) + part.unit.sum()  # noqa: E731
    whole = jax.jit(total)(prepared)
    assert whole == pytest.approx(total(jax.tree.map(np.asarray, prepared)), rel=1e-5)
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), prepared)
    np.testing.assert_allclose(jax.jit(jax.vmap(total))(stacked), whole, rtol=1e-5)
    assert prepared.coords == {"coefficient": ["age"], "region": ["E", "S", "W"]}


@pytest.fixture(scope="module")
def fitted(people):
    rng, own = np.random.default_rng(6), {"high": 8.0, "low": -5.0, "mid": 0.0}
    answers = 30 + 0.5 * people["age"] + people["education"].map(own) + rng.normal(0, 5, COUNT)
    model = regression("income ~ age + education", answer=(50, 20))
    return answers, model, ldp.fit(model, people, ldp.Release(answers.to_numpy(), EXACT), **SHORT)


def test_coefficients_without_noise_are_those_of_least_squares(people, fitted):
    """Means of 1,000 draws, whose effective number is above 200: five standard errors are 0.36 posterior deviations.
    Priors, with less than 1/200 of the precision, and Student's degrees of freedom move them by less than 0.04 more.
    """
    answers, _, posterior = fitted
    reference = sm.OLS(answers, np.asarray(patsy.dmatrix("age + education", people))).fit()
    names = ["Intercept", "education[T.low]", "education[T.mid]", "age"]
    posterior = posterior["posterior"]
    estimates = {"Intercept": posterior["intercept"]}
    estimates |= {name: posterior["coefficients"].sel(coefficient=name) for name in names[1:]}
    for name, value, error in zip(names, reference.params, reference.bse, strict=True):
        assert float(estimates[name].mean()) == pytest.approx(value, abs=0.4 * error), name
        assert float(estimates[name].std()) == pytest.approx(error, rel=0.25), name


def test_new_data_are_read_as_those_of_the_fit(people, fitted):
    _, model, posterior = fitted
    new = people.iloc[:3].assign(education=["low", "low", "high"])
    draws = ldp.predict(posterior, model, new)["income"]
    shuffled = new[["kind", "education", "age"]]
    np.testing.assert_array_equal(ldp.predict(posterior, model, shuffled)["income"], draws)
    unfitted = regression("income ~ age + education", answer=(50, 20))  # what it needs is in the posterior
    np.testing.assert_array_equal(ldp.predict(posterior, unfitted, frame=new)["income"], draws)
    means = ldp.predict(posterior, model, new, kind="mean")["income"]
    group = posterior["posterior"]
    own = group["coefficients"].sel(coefficient="age") * new["age"].iloc[2] + group["intercept"]
    np.testing.assert_allclose(means[..., 2], own, rtol=1e-10)
    flat = {name: np.concatenate(np.asarray(group[name])) for name in ("at_means", "coefficients", "sigma")}
    with jax.enable_x64(True):
        theirs = Predictive(model, flat)(jax.random.key(0), new)["income"]  # NumPyro's own, with the data frame
    # of 1,000 draws with a deviation of 5: five standard errors, 1.1
    np.testing.assert_allclose(theirs.mean(axis=0), np.concatenate(draws).mean(axis=0), atol=1.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "link", "law"),
    [("poisson", sm.families.Poisson(), "poisson"), ("bernoulli", sm.families.Binomial(), "binomial")],
)
def test_generalised_linear_models_without_noise_are_those_of_statsmodels(people, family, link, law):
    """As for least squares; priors have 1/8 of a coefficient's range, and move them by at most 0.1 errors."""
    rng, age = np.random.default_rng(7), (people["age"] - 45) / 15
    eta = 0.5 + 0.6 * age
    poisson = law == "poisson"
    answers = rng.poisson(np.exp(eta)) if poisson else rng.binomial(1, 1 / (1 + np.exp(-eta)))
    mechanism = ldp.DiscreteGaussianMechanism(scale=0.1) if poisson else ldp.RandomizedResponse(30.0, 2)
    release = ldp.Release(answers, mechanism)
    posterior = ldp.fit(regression("y ~ age", family=family), people, release, **SHORT)["posterior"]
    reference = sm.GLM(answers, sm.add_constant(people["age"]), family=link).fit()
    for draws, value, error in zip(
        (posterior["intercept"], posterior["coefficients"][..., 0]), reference.params, reference.bse, strict=True
    ):
        assert float(draws.mean()) == pytest.approx(value, abs=0.5 * error)
        assert float(draws.std()) == pytest.approx(error, rel=0.25)


@pytest.mark.slow
def test_groups_have_intercepts_that_share_a_spread(people):
    rng = np.random.default_rng(8)
    mechanism = ldp.LaplaceMechanism(epsilon=8.0, lower=0, upper=100)
    answers = 50 + people["region"].map({"E": -8.0, "S": 0.0, "W": 8.0}) + 5 * rng.normal(size=COUNT)
    release = ldp.Release(np.asarray(mechanism.randomize(jax.random.key(0), answers.to_numpy())), mechanism)
    posterior = ldp.fit(regression("income ~ age + (1 | region)"), people, release, **SHORT)["posterior"]
    means = posterior["by_region"].mean(("chain", "draw"))
    assert list(means["region"].values) == ["E", "S", "W"]
    # Noise of scale 12.5 beside 5: a mean of 130 answers has an error of 1.6, and a difference 2.3; three and a half.
    np.testing.assert_allclose(means - means.sel(region="S"), [-8, 0, 8], atol=8)


def densities(model, prepared, release, at, law):
    """The log density of a model, and that of released values whose records have a law, by one program."""

    @jax.jit
    def both(at):
        likelihood = ldp.Privatized(law, release.mechanism).log_prob(release.values).sum()
        return log_density(model, (prepared, release), {}, at)[0], likelihood

    return map(float, both(at))


@pytest.mark.parametrize("family", ["normal", pytest.param("student_t", marks=pytest.mark.slow)])
def test_the_density_is_that_of_the_documented_priors_and_law(people, family, x64):
    robust = family == "student_t"
    priors = {"age": dist.Laplace(0, 0.1)} | ({"nu": dist.Gamma(4, 1)} if robust else {})
    model = regression("income ~ age + kind + (1 | region)", family=family, priors=priors)
    mechanism = ldp.LaplaceMechanism(epsilon=8.0, lower=0, upper=100)
    few = people.iloc[:6].reset_index(drop=True)
    release = ldp.Release(np.array([10.0, 40.0, 55.0, 60.0, 20.0, 90.0]), mechanism)
    at = {"at_means": 48.0, "coefficients": np.array([0.3, -1.0]), "tau_region": 6.0, "sigma": 9.0}
    at |= {"nu": 4.0} if robust else {}
    at["by_region"] = np.array([1.0, -2.0, 3.0])[: few["region"].nunique()]
    (prepared, _), _, _ = model.prepare((few, release), {})
    eta = 48 + (few[["age", "kind"]] - few[["age", "kind"]].mean()) @ at["coefficients"]
    eta = eta.to_numpy() + at["by_region"][np.unique(few["region"], return_inverse=True)[1]]
    expected = stats.norm.logpdf(48.0, 50, 62.5) + stats.laplace.logpdf(0.3, 0, 0.1)
    expected += stats.norm.logpdf(-1.0, 0, 62.5 / few["kind"].std(ddof=0)) + stats.halfnorm.logpdf(6.0, 0, 62.5)
    expected += stats.norm.logpdf(at["by_region"], 0, 6.0).sum()
    expected += stats.gamma.logpdf(4.0, 4) if robust else 0.0
    expected += np.log(2) + stats.t.logpdf(9.0, 4, 0, 25)
    law = dist.StudentT(4.0, eta, 9.0) if robust else dist.Normal(eta, 9.0)
    density, likelihood = densities(model, prepared, release, at, law)
    assert density == pytest.approx(expected + likelihood, rel=1e-10)


def test_an_offset_has_the_coefficient_1_also_for_new_data(people, x64):
    """By the definition of an offset in R and statsmodels; the mean that is taken off is that of the fit."""
    model, days = regression("visits ~ age + offset(np.log(kind + 1)) + offset(age / 10)", family="poisson"), 5
    release = ldp.Release(np.array([3, 0, 5, 2, 9]), ldp.DiscreteLaplaceMechanism(1.0, 0, 50))
    few, at = people.iloc[:days], {"at_means": 0.4, "coefficients": np.array([0.02])}
    (prepared, _), _, entries = model.prepare((few, release), {})
    offset, age = np.log(few["kind"] + 1) + few["age"] / 10, few["age"].to_numpy()
    eta = (0.4 + 0.02 * (age - age.mean()) + offset - offset.mean()).to_numpy()
    expected = stats.norm.logpdf(0.4, 0, 2.5) + stats.norm.logpdf(0.02, 0, 2.5 / age.std())
    density, likelihood = densities(model, prepared, release, at, dist.Poisson(np.exp(eta)))
    assert density == pytest.approx(expected + likelihood, rel=1e-10)

    @jax.jit
    def intercept(at):
        return trace(substitute(seed(model, 0), at)).get_trace(prepared)["intercept"]["value"]

    assert float(intercept(at)) == pytest.approx(0.4 - 0.02 * age.mean() - offset.mean())
    new = people.iloc[7:9]
    again = model.prepare((new,), {}, entries)[0][0]
    np.testing.assert_allclose(again.offset, np.log(new["kind"] + 1) + new["age"] / 10 - offset.mean())
    assert again.names == ("age",)
    with pytest.raises(ValueError, match=r"an offset cannot be in a term with other columns, got 'age:offset\(kind\)'"):
        design("y ~ age:offset(kind)", people)


def test_what_a_formula_cannot_be_is_said(people):
    for text, message in (
        ("income", "formula must be 'answer ~ columns', with a name on the left"),
        ("log(income) ~ age", "formula must be 'answer ~ columns', with a name on the left"),
        ("income ~ age + (age | region)", r"write groups as \(1 \| column\)"),
    ):
        with pytest.raises(ValueError, match=message):
            regression(text)
    with pytest.raises(ValueError, match="family must be one of normal, student_t, poisson, bernoulli, got 'gamma'"):
        regression("income ~ age", family="gamma")
    with pytest.raises(ValueError, match=r"`agee` is not present .*; the columns are age, education, region, kind"):
        design("income ~ agee", people)
    for wrong in ("log(age", "np.log(age +)", "log(" + "(" * 3000 + "age" + ")" * 3001):  # some are Python's errors
        with pytest.raises(ValueError, match="the columns are age, education, region, kind"):
            design(f"income ~ {wrong}", people)
    with pytest.raises(ValueError, match="priors has 'ages', which is no parameter"):
        design("income ~ age", people, priors={"ages": dist.Normal(0, 1)})
    with pytest.raises(ValueError, match="column 'age' has 1 missing values, the first in row 3"):
        design("income ~ age", people.assign(age=people["age"].where(people.index != 3)))
    with pytest.raises(ValueError, match="without bounds, the size of the answers is unknown"):
        regression("income ~ age").prepare((people, ldp.Release(np.zeros(COUNT), EXACT)), {})
    with pytest.raises(
        ValueError, match=r"column 'np.log\(age\)' has 1 values that are not finite, the first in row 3"
    ):
        design("income ~ np.log(age)", people.assign(age=people["age"].where(people.index != 3, 0.0)))
    for column in ("age", "y"):
        with pytest.raises(ValueError, match="the answer is private and cannot be a column on the right"):
            design(f"{column} ~ np.log({column})", people.assign(y=1.0))
    sketch = ldp.Release(np.linspace(-300, 400, COUNT), ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=100)).sketch()
    with pytest.raises(TypeError, match="the model takes a data frame and a Release with one answer for each row"):
        regression("income ~ age").prepare((people, sketch), {})
    for name, law in (
        ("age", dist.HalfNormal(1)),
        ("sigma", dist.Normal(0, 1)),
        ("age", dist.Normal(0, [1.0])),
        ("nu", 3),
    ):
        with pytest.raises(TypeError, match=f"the prior of '{name}' must be a NumPyro law of"):
            regression("income ~ age", priors={name: law})
    release = ldp.Release(None, ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=100), 7)
    with pytest.raises(ValueError, match="the data frame has 400 rows, but the release has 7 answers"):
        Predictive(regression("income ~ age"), num_samples=1)(jax.random.key(0), people, release)


def test_new_data_that_the_fit_knows_nothing_of_are_refused(people):
    text = "income ~ age + C(kind) + education + (1 | region)"
    _, entries = design(text, people)
    design(text.replace(" ", ""), people.astype({"education": "string", "region": "string"}), entries)  # one formula
    for column, level, name in (
        ("education", "new", "education"),
        ("region", "new", "region"),
        ("kind", 7, r"C\(kind\)"),
    ):
        new = people.assign(**{column: people[column].where(people.index != 5, level)})
        with pytest.raises(ValueError, match=rf"column '{name}' has 1 values .* the first \({level}\) in row 5"):
            design(text, new, entries)
    with pytest.raises(ValueError, match=r"the columns of 'y ~ kind' are \['kind\[T.b\]'\], but the fit had"):
        design("y ~ kind", people.assign(kind=np.where(people["kind"] > 0, "a", "b")), design("y ~ kind", people)[1])
    with pytest.raises(ValueError, match="the posterior has the formula y~age, but the model has y~kind"):
        design("y ~ kind", people, design("y ~ age", people)[1])


def test_levels_have_the_order_of_a_categorical_column(people):
    ordered = people.astype({"education": pd.CategoricalDtype(["low", "mid", "high"]), "region": "category"})
    ours, _ = design("y ~ education + (1 | region)", ordered)
    assert ours.coords == {"coefficient": ["education[T.mid]", "education[T.high]"], "region": ["E", "S", "W"]}


def test_priors_by_name_are_drawn_from(people):
    priors = {"age": dist.Normal(3.0, 0.01), "sigma": dist.Uniform(2.0, 2.1), "tau": dist.LogNormal(0.0, 0.01)}
    model = regression("income ~ kind + age + (1 | region)", priors=priors, answer=(50, 20))
    release = ldp.Release(None, EXACT, COUNT)
    draws = jax.jit(lambda key: Predictive(model, num_samples=200)(key, people, release))(jax.random.key(0))
    draws = jax.tree.map(np.asarray, draws)
    assert draws["coefficients"].shape == (200, 2) and draws["coefficients"][:, 0].std() > 20
    np.testing.assert_allclose(draws["coefficients"][:, 1], 3.0, atol=0.06)  # six standard deviations
    np.testing.assert_allclose(draws["sigma"], 2.05, atol=0.05)
    np.testing.assert_allclose(draws["tau_region"], 1.0, atol=0.06)


ODD = {"age": "cov.age", "education": "my education", "region": "the.region", "kind": "kind"}


def test_names_with_dots_and_spaces_stand_between_backticks(people):
    odd, text = people.rename(columns=ODD), "np.log(`cov.age`) + `my education` + kind:`cov.age` + (1 | `the.region`)"
    ours, entries = design(f"`rr.q1` ~ {text}", odd)
    plain, _ = design("y ~ np.log(age) + education + kind:age + (1 | region)", people)
    assert ours.names[:3] == ("np.log(`cov.age`)", "my education[T.low]", "my education[T.mid]")
    np.testing.assert_array_equal(ours.columns, plain.columns)
    assert ours.coords["the.region"] == ["E", "S", "W"] and regression(f"`rr.q1` ~ {text}").formula.answer == "rr.q1"
    np.testing.assert_allclose(design(f"`rr.q1` ~ {text}", odd[:9], entries)[0].columns, ours.columns[:9], atol=1e-12)


@pytest.mark.parametrize(
    ("formula", "quoted"),
    [
        ("rr.q1 ~ cov.age + np.log(cov.age)", "`rr.q1` ~ `cov.age` + np.log(`cov.age`)"),
        ("y ~ cov.age + kind", "y ~ `cov.age` + kind"),
        ("y ~ my education + `cov.age`", "y ~ `my education` + `cov.age`"),
    ],
)
def test_a_formula_without_its_backticks_is_shown_with_them(formula, quoted, people):
    with pytest.raises(ValueError) as found:
        design(formula, people.rename(columns=ODD))
    assert str(found.value).endswith(f"need backticks, as in {quoted}")


YES_OR_NO = ldp.RandomizedResponse(2.0)


@pytest.fixture(scope="module")
def survey(people):
    """Answers of some, to which 7 rows lack an answer, 5 a covariate, and 2 both."""
    rng = np.random.default_rng(3)
    gone = rng.permutation(COUNT)
    frame = people.assign(answer=rng.integers(0, 2, COUNT).astype(float), unused=np.nan)
    frame.loc[gone[:9], "answer"] = np.nan
    frame.loc[gone[7:14], "age"] = np.nan
    return frame


def test_rows_with_gaps_are_left_out_of_the_frame_and_the_release(survey):
    release = ldp.Release(survey["answer"], YES_OR_NO, missing="drop")
    model = regression("answer ~ age + education + (1 | region)", "bernoulli", missing="drop")
    (ours, answers), _, entries = model.prepare((survey, release), {})
    whole = survey.drop(columns="unused").dropna()
    (plain, _), *_ = model.prepare((whole, ldp.Release(whole["answer"], YES_OR_NO)), {})
    jax.tree.map(np.testing.assert_array_equal, ours, plain)
    assert answers.values.tolist() == whole["answer"].tolist() and len(answers) == COUNT - 14
    left_out = "9 of 400 values, left out; 5 of 391 answers without a covariate, left out"
    assert entries["left_out"] == left_out
    assert answers.promises[0].mechanism == YES_OR_NO
    (short, _), _, entries = model.prepare((survey[survey["answer"].notna()], release), {})  # cut by the user
    np.testing.assert_array_equal(short.columns, plain.columns)


def test_missing_covariates_are_refused_unless_they_are_to_be_left_out(survey):
    release, model = ldp.Release(survey["answer"], YES_OR_NO, missing="drop"), regression("answer ~ age", "bernoulli")
    row = survey.index[survey["age"].isna() & survey["answer"].notna()][0]
    with pytest.raises(ValueError, match=f"column 'age' has 5 missing values, the first in row {row}"):
        model.prepare((survey, release), {})
    with pytest.raises(ValueError, match="the data frame has 399 rows, but the release has 391 answers"):
        model.prepare((survey.iloc[:399], release), {})
    with pytest.raises(ValueError, match='missing must be "drop" to leave out missing covariates, or None; got True'):
        regression("answer ~ age", missing=True)


def test_totals_by_cell_are_as_many_rows(people):
    cells = people.groupby(["education", "region"], as_index=False).size()
    cells["answer"] = np.arange(len(cells)) % 2
    rows = cells.loc[cells.index.repeat(cells["size"])]
    model = regression("answer ~ education + (1 | region)", "bernoulli")
    (ours, answers), *_ = model.prepare((cells, ldp.Release(cells["answer"], YES_OR_NO, count=cells["size"])), {})
    (plain, others), *_ = model.prepare((rows, ldp.Release(rows["answer"], YES_OR_NO)), {})
    jax.tree.map(np.testing.assert_array_equal, (ours, answers.values), (plain, others.values))


@pytest.mark.slow
@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with nigeria.csv")
def test_a_survey_as_it_comes_has_the_posterior_of_its_likelihood():
    """Forced response: a coin says yes or no with 1/6 each. ML was computed by itself; the posterior here by importance
    sampling from Student's t at it. Of 4,000 draws each: five standard errors are a tenth of a standard deviation.
    """
    frame = pd.read_csv(pathlib.Path(os.environ["LDPBAYES_DATA"]) / "nigeria.csv")
    release = ldp.Release(frame["rr.q1"], ldp.mechanisms.ForcedResponse([1 / 6, 1 / 6]), missing="drop")
    names = [f"cov.{name}" for name in ("asset.index", "married", "age", "education", "female")]
    model = regression(f"`rr.q1` ~ {' + '.join(f'`{name}`' for name in names)}", "bernoulli", missing="drop")
    posterior = ldp.fit(model, frame, release, progress_bar=False)
    assert posterior.attrs["left_out"].startswith("22 of 2,457 values")
    draws = posterior["posterior"]["coefficients"].sel(coefficient=names)

    whole = frame[["rr.q1", *names]].dropna()
    assert len(whole) == 2423 and posterior["observed_data"]["rr.q1"].size == 2423
    x, y = whole[names].to_numpy(), whole["rr.q1"].to_numpy()
    unit = (x - x.mean(axis=0)) / x.std(axis=0)

    def log_density(theta, prior=1.0):
        """Of rows (intercept at the means, slopes of the standardised columns); priors have standard deviation 2.5."""
        yes = 1 / 6 + 2 / 3 / (1 + np.exp(-theta[:, :1] - theta[:, 1:] @ unit.T))
        return np.log(np.where(y, yes, 1 - yes)).sum(axis=1) - prior * (theta**2).sum(axis=1) / 12.5

    most = optimize.minimize(lambda theta: -log_density(theta[None], 0.0)[0], np.zeros(6), method="BFGS")
    np.testing.assert_allclose(most.x[1:] / x.std(axis=0), [0.07873, -0.41794, 0.00323, -0.01816, -0.57361], atol=2e-4)
    law = stats.multivariate_t(most.x, 1.2 * most.hess_inv, 5, seed=1)
    theta = law.rvs(4000)
    log_weights = log_density(theta) - law.logpdf(theta)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    slopes = theta[:, 1:] / x.std(axis=0)
    mean = weights @ slopes
    error = np.sqrt(weights @ (slopes - mean) ** 2)
    assert 1 / (weights**2).sum() > 2500
    assert np.all(np.abs(draws.mean(("chain", "draw")) - mean) < 0.1 * error)
    np.testing.assert_allclose(draws.std(("chain", "draw")), error, rtol=0.08)
    np.testing.assert_allclose(error, [0.0405, 0.2200, 0.0068, 0.0438, 0.1625], rtol=0.1)  # of ML
    share = ldp.frequencies(release).estimate[1]
    assert share == pytest.approx(0.26191, abs=1e-5)
