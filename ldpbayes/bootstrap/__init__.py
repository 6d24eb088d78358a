"""Confidence intervals for private estimates: private estimators, their replicates, and what follows from them."""

from ldpbayes.bootstrap._bias import BiasCorrection, Matched, OneStep
from ldpbayes.bootstrap._bootstrap import parametric_bootstrap
from ldpbayes.bootstrap._fisher import fisher
from ldpbayes.bootstrap._function import FunctionEstimator
from ldpbayes.bootstrap._intervals import Interval, Percentile, Pivotal, Studentised, Transformed
from ldpbayes.bootstrap._least_squares import LeastSquares, least_squares
from ldpbayes.bootstrap._m_estimator import MEstimator, m_estimator
from ldpbayes.bootstrap._maximum_likelihood import MaximumLikelihood, maximum_likelihood
from ldpbayes.bootstrap._normal_estimate import NormalEstimate
from ldpbayes.bootstrap._one_posterior_sample import OnePosteriorSample, one_posterior_sample
from ldpbayes.bootstrap._private_estimator import Estimated, PrivateEstimator
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning
from ldpbayes.bootstrap._simulators import simulator_of
from ldpbayes.bootstrap._sufficient_statistics import SufficientStatistics, sufficient_statistics
from ldpbayes.bootstrap.families import (
    Bernoulli,
    Beta,
    Binomial,
    Exponential,
    Family,
    Gamma,
    GammaRate,
    Gaussian,
    GaussianMean,
    Multinomial,
    MultivariateNormal,
    Poisson,
)

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
    "LeastSquares",
    "MEstimator",
    "Matched",
    "MaximumLikelihood",
    "Multinomial",
    "MultivariateNormal",
    "NormalEstimate",
    "OnePosteriorSample",
    "OneStep",
    "Percentile",
    "Pivotal",
    "Poisson",
    "PrivateEstimator",
    "Studentised",
    "SufficientStatistics",
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
