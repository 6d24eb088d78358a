"""Ways to compute a posterior, one in each file, with `propose`: from a problem and a sampling to a surrogate or None.
A new way is a file with a `Surrogate` and `propose`, and a place in `WAYS`; `panels` serves every problem.
"""

from ldpbayes.inference.approximations import _equal_rows, _expanded, _tables, panels, polynomial
from ldpbayes.inference.approximations.surrogates import Surrogate
from ldpbayes.inference.chains import Sampling
from ldpbayes.inference.problem import Problem

WAYS = _expanded.propose, _tables.propose, polynomial.propose, panels.propose
"""In the order in which they are asked."""


def surrogate_of(problem: Problem, sampling: Sampling) -> Surrogate:
    """The surrogate of the first way that takes a problem. Fewer rows in place of all records serve all ways."""
    if sampling.outside is not None:  # kernels of other kinds sample the data as they are
        return panels.propose(problem, sampling)
    problem = _equal_rows.reduced(problem, sampling)
    return next(surrogate for propose in WAYS if (surrogate := propose(problem, sampling)) is not None)
