"""Confidence intervals by the parametric bootstrap: a private estimator's replicates from simulated data sets."""

from ldpbayes.bootstrap._bootstrap import (
    Estimated,
    FunctionEstimator,
    Matched,
    OneStep,
    PrivateEstimator,
    parametric_bootstrap,
)
from ldpbayes.bootstrap._m_estimation import m_estimator, maximum_likelihood, simulator_of
from ldpbayes.bootstrap._one_posterior_sample import OnePosteriorSampleEstimator as one_posterior_sample
from ldpbayes.bootstrap._result import BootstrapEstimate, BootstrapWarning, Transformed
from ldpbayes.bootstrap.statistics import least_squares, sufficient_statistics
from ldpbayes.laws.counts import Bernoulli, Binomial, Counts, Multinomial, Poisson
from ldpbayes.laws.numbers import Beta, Exponential, Gamma, GammaRate, Normal, NormalMean, NormalVector
from ldpbayes.laws.parametric import NumberFamily, OneParameterFamily, ParametricFamily

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "BootstrapEstimate",
    "BootstrapWarning",
    "Counts",
    "Estimated",
    "Exponential",
    "FunctionEstimator",
    "Gamma",
    "GammaRate",
    "Matched",
    "Multinomial",
    "Normal",
    "NormalMean",
    "NormalVector",
    "NumberFamily",
    "OneParameterFamily",
    "OneStep",
    "ParametricFamily",
    "Poisson",
    "PrivateEstimator",
    "Transformed",
    "least_squares",
    "m_estimator",
    "maximum_likelihood",
    "one_posterior_sample",
    "parametric_bootstrap",
    "simulator_of",
    "sufficient_statistics",
]
