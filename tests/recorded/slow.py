"""Recorded cases that are left out of the default run.

By default a case runs for each kind of closed form, channel, sketch, mechanism, method and command, and a few ways
through bootstraps and samplers. The cases here run other parameters, laws or mechanisms through functions of those
cases, or are of values that other tests of the default run check against references: densities and sketches in
`tests/likelihood` and `tests/data`, models in `tests/models/test_independent.py`.
"""

import re

import pytest

CASES = {
    "guarantee": """symmetric, personal scales | symmetric, eight columns | symmetric, named columns, attribute
        zero-inflated, rows""",
    "density": """normal, Laplace, closed form | normal, Laplace, channel | normal, Laplace, channel of 15 panels
        normal, Laplace, personal budgets | normal, a law a record | exponential, Laplace, channel
        exponential, Laplace, personal budgets | normal, Gaussian, channel | normal, Gaussian, personal budgets
        exponential, Gaussian, channel | gamma, Gaussian | mixture, Gaussian | Poisson, Gaussian
        normal, symmetric, channel | mixture, symmetric | Student, independent | exponential, symmetric
        normal, zero-inflated | normal, zero-inflated, channel | mixture, zero-inflated | Student, zero-inflated
        normal, symmetric, some public | wider rows, symmetric | rows, symmetric in two columns | rows, symmetric
        rows, symmetric, personal scales | rows, zero-inflated | wider rows, zero-inflated in two columns
        rows, zero-inflated, personal | categories, randomized response | categories, randomized response, channel
        a law a record, randomized response | categories, optimal unary encoding | categories, subset selection
        categories, optimal unary encoding, personal budgets | categories, local hashing
        categories, Hadamard response | uniform beyond the bounds, Laplace | truncated normal, Laplace
        beta, Laplace | lognormal, Laplace | logistic, Laplace | Cauchy, Laplace | geometric, Laplace
        negative binomial, Laplace | binomial, Laplace | Bernoulli, Laplace | exponential, Gaussian
        Laplace with its kink beyond the bounds, Laplace | rows, symmetric in one named column
        normal, independent | Bernoulli, optimal unary encoding | binomial, randomized response
        a law a record, optimal unary encoding | gamma, Laplace | normal, zero-inflated, personal
        rows, zero-inflated in two named columns""",
    "model": """sketch, Laplace | sketch, Gaussian | sketch, symmetric | sketch, independent | sketch, zero-inflated
        sketch, counts | sketch, 17 panels | sketch, sum of two | sketch, randomized response, personal budgets
        sketch, optimal unary encoding | sketch, symmetric unary encoding | sketch, subset selection
        sketch, local hashing | sketch, Hadamard response | release, rows | logistic regression, zero-inflated
        logistic regression, symmetric | normal regression, zero-inflated | regression, 9 scales, 5 nodes
        release, a law a record | release, many categories | privatize | sketch, groups | normal regression, symmetric
        clipped_gaussian | clipped_exponential | clipped_counts | oue_histogram | warner | multivariate_normal
        hierarchical | perturbed_covariates""",
    "estimate": """logistic, combined | logistic, dr | logistic, sl | logistic, naive | squared, combined | squared, dr
        squared, sdr | squared, age on income, naive | logistic, oracle | logistic, sl under symmetric noise
        logistic, dr, no support, one draw | logistic, dr, wider support, seed 3 | logistic, dr, in a ball
        squared, oracle | absolute, combined | absolute, dr | absolute, naive | check, combined
        median of a number, dr | huber, dr | huber, oracle | function, combined
        function of a tree, sdr | bootstrap | absolute, oracle | function, dr, exact | logistic, independent
        two batches | check, dr | huber, naive | squared, sl""",
    "frequencies": """randomized response, personal budgets, unbiased | randomized response, personal budgets, mle
        symmetric unary encoding, mle""",
    "bootstrap": """Bernoulli | Beta | Exponential | Gamma | GammaRate | Gaussian | GaussianMean | Multinomial | Poisson
        MultivariateNormal | Gaussian, Gaussian noise, clamping accounted for | M-estimator
        maximum likelihood | least squares | Binomial""",
    "learning": """normal, RP with prior | Poisson, Laplace | prior, smooth | normal, Laplace
        normal, Laplace, a penalty""",
}
FITS = {
    "sketch": """panels given | panels, counts | counts, sum of two | moments, sum of two | total of linear statistics
        total of logistic statistics | panels, zero-inflated | panels, staircase | panels, Gaussian
        panels, near or anywhere | counts of unary codes | counts, personal budgets | counts of hashes
        side by side
        expansion | expansion of codes""",
    "expansion": "of a shard",
    "randomize": """Laplace, statistic | discrete Laplace, statistic | discrete Laplace, rows
        unary encoding, personal budgets | near or anywhere, personal budgets | linear statistics, central
        Laplace, single precision | Laplace, personal budgets | Laplace, rows | Gaussian, personal budgets
        Gaussian, rows | additive, a deviation a column | symmetric, rows | symmetric, named columns
        zero-inflated, rows | zero-inflated, personal | independent, rows | staircase, personal budgets
        randomized response, personal budgets | subset selection, size given | local hashing, range given
        Hadamard response, personal budgets | near or anywhere, uniform outside | bins, personal budgets
        zero-inflated, rows, single precision | Laplace, records drawn too""",
    "fit": """panels, refined | counts, vectorised chains | category sketch | expansion | expansion of shards
        Barker | groups | privatize""",
    "cli": "regress",
}


def names(table):
    """Full names "group, name" of the cases of a table."""
    return {f"{group}, {name.strip()}" for group, text in table.items() for name in re.split(r"\||\n", text)}


def marked(cases, table):
    """Parameters of a test: the cases, those of the table as slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (case in names(table))) for case in cases]
