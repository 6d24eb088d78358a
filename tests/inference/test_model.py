"""A factory's model shows its priors, and is otherwise the function under the decorator."""

import inspect
import pydoc

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes import models
from ldpbayes.inference import factory

CASES = {
    "warner(theta=Beta(1, 1))": lambda: models.warner(),
    "hierarchical(mu=Normal(0, 5), tau=HalfNormal(2), sigma=Gamma(2, 1))": lambda: models.hierarchical(),
    "oue_histogram(theta=Dirichlet([1, ..., 1]))": lambda: models.oue_histogram(),
    "oue_histogram(theta=Dirichlet([1, 0.5, 2]))": lambda: models.oue_histogram(dist.Dirichlet(jnp.array([1, 0.5, 2]))),
    "linear_regression(slope=Normal(0, 2.236), sigma=HalfNormal(1), scale=HalfNormal(1.581), concentration=2)": (
        lambda: models.linear_regression()
    ),
    "clipped_exponential(rate=LeftTruncatedDistribution(Normal(0, 1), 0))": lambda: models.clipped_exponential(
        rate=dist.TruncatedNormal(0, 1, low=0)
    ),
    "label_regression(features=[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], slope=Normal(0, 1), intercept=Normal(0, 10), "
    "sigma=None, response=Laplace)": lambda: models.label_regression(
        np.zeros((3, 2)), sigma=None, response=dist.Laplace
    ),
}


@pytest.mark.parametrize("shown", CASES)
def test_a_model_shows_its_factory_and_the_priors_it_was_given(shown):
    assert repr(CASES[shown]()) == shown


def test_distributions_are_shown_as_one_writes_them():
    @factory("numbers")
    def made(release, prior):
        pass

    laws = {
        "Normal(0, 2).expand([6]).to_event(1)": dist.Normal(0, 2).expand([6]).to_event(1),
        "StudentT(3, 0, 1)": dist.StudentT(3, 0, 1),
        "Dirichlet(<10 values, all 1>)": dist.Dirichlet(jnp.ones(10)),
        "TransformedDistribution(...)": dist.TransformedDistribution(
            dist.Normal(0, 1), dist.transforms.AffineTransform(1, 2)
        ),
    }
    assert [repr(made(law)) for law in laws.values()] == [f"made(prior={text})" for text in laws]


@pytest.mark.parametrize("name", models.__all__)
def test_help_on_a_factory_shows_the_default_priors_and_says_them_in_words(name):
    factory = getattr(models, name)
    text = pydoc.plain(pydoc.render_doc(factory))
    assert "object at 0x" not in text and "default" in text.lower()
    # what is shown as a default is not what is used
    assert all(isinstance(p.default, str | type | None) for p in inspect.signature(factory).parameters.values())


def test_a_prior_that_is_no_distribution_is_refused_at_once():
    for make, message in (
        (lambda: models.warner(theta=0.3), "theta must be a NumPyro distribution, a prior; got 0.3"),
        (lambda: models.warner(None), "theta must be a NumPyro distribution, a prior; got None"),
        (lambda: models.hierarchical(tau=np.ones(1000)), "tau must be a NumPyro distribution, a prior; got ndarray"),
    ):
        with pytest.raises(TypeError, match=message):
            make()
    with pytest.raises(TypeError, match=r"warner\(\) got an unexpected keyword argument 'share'"):
        models.warner(share=0.3)


def test_a_model_is_called_as_the_function_it_was():
    @factory("numbers")
    def made(release, scale=2.0):
        calls.append((release, scale))

    calls: list = []
    model = made(3.0)
    release = ldp.Release([0.5], ldp.LaplaceMechanism(1.0, 0, 1))
    model(release)
    model(release=release)
    assert calls == [(release, 3.0)] * 2 and repr(model) == "made(scale=3)"
    assert model.__name__ == "model" and list(inspect.signature(model).parameters) == ["release"]
