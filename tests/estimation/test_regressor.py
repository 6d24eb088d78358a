"""The regressor for those who know scikit-learn."""

import sys
import warnings

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import statsmodels.api as sm
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import ldpbayes as ldp
from ldpbayes.estimation import (
    LabelPrivateRegressor,
    MarginalLikelihood,
    Network,
    SquaredError,
    linear_fit,
)

MECHANISM = ldp.LaplaceMechanism(2.0, 0.0, 1.0)


def student_t(df):
    return lambda prediction, scale: dist.StudentT(df, prediction, scale, validate_args=False)


PLAIN = LabelPrivateRegressor(penalty=1.0, objective=SquaredError())


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = 0.4 + x @ [0.06, -0.04, 0.0] + 0.1 * rng.normal(size=400)
    return x, y, np.asarray(MECHANISM.randomize(jax.random.key(0), y))


def test_it_passes_the_checks_of_scikit_learn():
    # least squares, which has one small function to compile for each shape of data; the likelihood passes them too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for estimator, check in estimator_checks_generator(PLAIN):
            if check.func.__name__ == "check_array_api_input":
                continue  # NumPy's arrays only, which it says in its tags
            check(estimator)


def test_two_lines_give_what_linear_fit_gives(data):
    x, y, z = data
    regressor = LabelPrivateRegressor(penalty=1.0, bounds=(0.0, 1.0)).fit(x, z, MECHANISM)
    fit = linear_fit(x, ldp.Release(z, MECHANISM), penalty=1.0)
    np.testing.assert_array_equal(regressor.predict(x), fit.predict(x, bounds=(0.0, 1.0)))
    assert regressor.fit_.privacy == fit.privacy and "Each label" in fit.privacy
    assert 0.1 < regressor.score(x, y) < 1


def test_it_stands_in_pipelines_and_cross_validation(data):
    x, _, z = data
    regressor = LabelPrivateRegressor(MECHANISM, penalty=1.0, objective=SquaredError())
    assert cross_val_score(make_pipeline(StandardScaler(), regressor), x, z, cv=2).shape == (2,)
    assert clone(regressor).get_params()["mechanism"] == MECHANISM


def test_a_network_may_be_the_model(data):
    x, _, z = data
    network = Network(widths=(4,), epochs=2)
    regressor = LabelPrivateRegressor(MECHANISM, network=network, objective=SquaredError())
    assert regressor.fit(x, z).predict(x[:5]).shape == (5,)
    with pytest.raises(TypeError, match="network must be a Network, got 'linear'"):
        LabelPrivateRegressor(MECHANISM, network="linear").fit(x, z)


def test_without_a_mechanism_labels_are_taken_as_they_are_and_nothing_is_promised(data):
    x, y, _ = data
    regressor = LabelPrivateRegressor(penalty=0.0, objective=SquaredError()).fit(x, y)
    ols = np.linalg.lstsq(np.c_[np.ones(400), x], y, rcond=None)[0]
    np.testing.assert_allclose(regressor.fit_.params, ols, rtol=1e-8, atol=1e-10)
    assert "No label is protected" in regressor.fit_.privacy


def fitted(law, x, labels):
    objective = MarginalLikelihood(law, deviation=np.inf) if law is not dist.Poisson else MarginalLikelihood(law)
    return LabelPrivateRegressor(penalty=0.0, objective=objective).fit(x, labels).fit_


def test_without_a_mechanism_logarithms_and_heavy_tailed_labels_are_fitted_by_maximum_likelihood(data):
    x, y, _ = data
    design = sm.add_constant(x)
    # a step that promises 1e-8 nats moves a parameter by 1.4e-4 standard errors at most
    fit, reference = fitted(dist.LogNormal, x, np.exp(y)), sm.OLS(y, design).fit()
    assert np.all(np.abs(fit.params[:4] - reference.params) < 1.5e-4 * reference.bse)
    assert "No label is protected" in fit.privacy
    students = fitted(student_t(4), x, y)
    residual, scale = y - design @ students.params[:4], students.scale
    score = design.T @ (5 * residual / (4 * scale**2 + residual**2))
    assert np.all(np.abs(score) < 1.5e-4 * np.linalg.norm(design, axis=0) / scale)
    with pytest.raises(ValueError, match="y has labels outside the support of Poisson"):
        fitted(dist.Poisson, x, y)


@pytest.mark.slow
def test_without_a_mechanism_counts_and_medians_are_fitted_as_statsmodels_does(data):
    x, y, _ = data
    design, counts = sm.add_constant(x), np.random.default_rng(1).poisson(np.exp(y))
    fit, glm = fitted(dist.Poisson, x, counts), sm.GLM(counts, design, family=sm.families.Poisson()).fit()
    assert np.all(np.abs(fit.params[:4] - glm.params) < 1.5e-4 * glm.bse)
    # medians: the noise that smooths the kink has 0.3 of the standard error of a mean
    medians = sm.QuantReg(y, design).fit(0.5)
    assert np.all(np.abs(fitted(dist.Laplace, x, y).params[:4] - medians.params) < 0.5 * medians.bse)


def test_without_scikit_learn_the_rest_works_and_the_regressor_says_what_it_needs(monkeypatch):
    monkeypatch.delitem(sys.modules, "ldpbayes.estimation._regressor", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'ldpbayes\[learning\]'"):
        _ = ldp.estimation.LabelPrivateRegressor
