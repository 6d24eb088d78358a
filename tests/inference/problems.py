"""A model's density as a problem, and what a surrogate of it gives up for, in tests of ways to compute a posterior."""

import jax
import pytest

from ldpbayes.inference.approximations import _expanded, polynomial
from ldpbayes.inference.approximations.surrogates import sample
from ldpbayes.inference.chains import Sampling
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.inference.problem import Problem


def problem_of(model, *args, expand=None):
    density = Density(model, args, {})
    return Problem(density, sites_of(density), expand)


class GivenUp(Exception):
    """The records would be sampled: why, and what the report of the surrogate is."""


def given_up(problem, sampling, why, report=None):
    """In the place of `records_instead`."""
    raise GivenUp(why, report)


def outcome(propose, kernel, problem, **numbers):
    """Draws of what is proposed for a problem; `GivenUp` if the records would be sampled."""
    sampling = Sampling(kernel, 0, **numbers)
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        for module in (_expanded, polynomial):
            patch.setattr(module, "records_instead", given_up)
        return sample(propose(problem, sampling))
