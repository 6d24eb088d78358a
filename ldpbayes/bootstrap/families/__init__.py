"""Parametric families, each with bounded statistics, their exact sensitivity and the law of their sum."""

from ldpbayes.bootstrap.families._beta import Beta
from ldpbayes.bootstrap.families._counts import Bernoulli, Binomial, Poisson
from ldpbayes.bootstrap.families._family import Family
from ldpbayes.bootstrap.families._gamma import Exponential, Gamma, GammaRate
from ldpbayes.bootstrap.families._gaussian import Gaussian, GaussianMean
from ldpbayes.bootstrap.families._multinomial import Multinomial
from ldpbayes.bootstrap.families._multivariate_normal import MultivariateNormal, SecondMoments
from ldpbayes.bootstrap.families._on_the_line import OnTheLine, Range

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Exponential",
    "Family",
    "Gamma",
    "GammaRate",
    "Gaussian",
    "GaussianMean",
    "Multinomial",
    "MultivariateNormal",
    "OnTheLine",
    "Poisson",
    "Range",
    "SecondMoments",
]
