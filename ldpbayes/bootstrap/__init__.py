"""Confidence intervals for private estimates: private estimators, their replicates, and intervals from these."""

from ldpbayes.bootstrap._bootstrap import (
    Estimated,
    FunctionEstimator,
    Matched,
    OneStep,
    PrivateEstimator,
    parametric_bootstrap,
)
from ldpbayes.bootstrap._families import Multinomial, NormalVector, ParametricFamily
from ldpbayes.bootstrap._intervals import Interval, Percentile, Pivotal, Studentised, Transformed
from ldpbayes.bootstrap._m_estimation import m_estimator, maximum_likelihood, simulator_of
from ldpbayes.bootstrap._number_families import (
    Bernoulli,
    Beta,
    Binomial,
    Exponential,
    Gamma,
    GammaRate,
    Normal,
    NormalMean,
    NumberFamily,
    OneParameterFamily,
    Poisson,
)
from ldpbayes.bootstrap._one_posterior_sample import one_posterior_sample
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning
from ldpbayes.bootstrap.regression import least_squares
from ldpbayes.bootstrap.statistics import fisher, sufficient_statistics

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "BootstrapEstimate",
    "BootstrapWarning",
    "Estimated",
    "Exponential",
    "FunctionEstimator",
    "Gamma",
    "GammaRate",
    "Interval",
    "Matched",
    "Multinomial",
    "Normal",
    "NormalMean",
    "NormalVector",
    "NumberFamily",
    "OneParameterFamily",
    "OneStep",
    "ParametricFamily",
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
