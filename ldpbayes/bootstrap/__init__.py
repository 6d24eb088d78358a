"""Confidence intervals for private estimates: private estimators, their replicates, and what follows from them."""

from ldpbayes.bootstrap._bootstrap import BiasCorrection, Matched, OneStep, parametric_bootstrap
from ldpbayes.bootstrap._estimators import Estimated, PrivateEstimator
from ldpbayes.bootstrap._family import Family
from ldpbayes.bootstrap._fisher import fisher
from ldpbayes.bootstrap._function import FunctionEstimator, simulator_of
from ldpbayes.bootstrap._intervals import Interval, Percentile, Pivotal, Studentised, Transformed
from ldpbayes.bootstrap._m_estimation import m_estimator, maximum_likelihood
from ldpbayes.bootstrap._number_families import (
    Bernoulli,
    Beta,
    Binomial,
    Exponential,
    Gamma,
    GammaRate,
    Gaussian,
    GaussianMean,
    Poisson,
)
from ldpbayes.bootstrap._one_posterior_sample import one_posterior_sample
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning
from ldpbayes.bootstrap._sufficient_statistics import sufficient_statistics
from ldpbayes.bootstrap._vector_families import Multinomial, MultivariateNormal
from ldpbayes.bootstrap.regression import least_squares

__all__ = [
    "Bernoulli",
    "Beta",
    "BiasCorrection",
    "Binomial",
    "BootstrapEstimate",
    "BootstrapWarning",
    "Estimated",
    "Exponential",
    "Family",
    "FunctionEstimator",
    "Gamma",
    "GammaRate",
    "Gaussian",
    "GaussianMean",
    "Interval",
    "Matched",
    "Multinomial",
    "MultivariateNormal",
    "OneStep",
    "Percentile",
    "Pivotal",
    "Poisson",
    "PrivateEstimator",
    "Studentised",
    "Transformed",
    "fisher",
    "least_squares",
    "m_estimator",
    "maximum_likelihood",
    "one_posterior_sample",
    "parametric_bootstrap",
    "simulator_of",
    "sufficient_statistics",
]
