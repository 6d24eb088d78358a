"""The prior of labels from released ones: their histogram, or that of the labels behind them."""

import numpy as np

from ldpbayes._core.checks import POSITIVE, at_least, checked
from ldpbayes.data import Release
from ldpbayes.estimation.smoothing import SmoothFamily, estimate_density
from ldpbayes.laws.functionals import cdf
from ldpbayes.mechanisms import NumericMechanism
from ldpbayes.mechanisms.design import Histogram

BINS = 64  # of a deconvolved prior


def label_prior(release: Release, *, deconvolved: bool = True, width: float | None = None) -> Histogram:
    """Estimate the law (probability distribution) of labels from released labels, as a histogram.

    The function uses only the released labels, and not the original labels. Therefore it needs no further privacy
    budget.

    Parameters
    ----------
    release : Release
        The released labels, which are numbers. With ``deconvolved=True``, their mechanism must have clipping bounds,
        and very many labels must all have the same budget. Otherwise a ValueError is raised.
    deconvolved : bool
        True (default): the histogram describes the original labels. `estimate_density` computes it, with 64 bins
        between the clipping bounds. Labels outside the bounds belong to the first or the last bin. False: the histogram
        describes the released labels, including their noise ([LH], Algorithm 3).
    width : float, optional
        Only for ``deconvolved=False``: the width of the bins, in the unit of the labels. The first and the last bin are
        narrower. Default: the standard deviation of the released labels. Raises ValueError if all released labels are
        equal.

    Returns
    -------
    Histogram
        The estimated law: a density that is constant in each bin.
    """
    if not isinstance(release, Release):
        raise TypeError(f"release must be an ldpbayes Release, got {type(release).__name__}")
    if release.values is None:
        raise ValueError("the prior of labels needs released values; this release has none")
    if not deconvolved:
        return _released_histogram(release, width)
    if width is not None:
        raise ValueError(f"width is only for a histogram of released labels, deconvolved=False; got {width!r}")
    edges = np.linspace(*SmoothFamily.of(release.mechanism)[:2], BINS + 1)
    data = release if release.mechanism.batch_shape else release.sketch(keep_records=False)
    below = estimate_density(data, knots=len(edges), functionals={"below": cdf(edges[1:-1])}).params
    return Histogram(edges, np.diff(below, prepend=0.0, append=1.0) / np.diff(edges))


def _released_histogram(release: Release, width: float | None) -> Histogram:
    """[LH], Algorithm 3, with each bin's probability divided by its width."""
    mechanism = release.mechanism
    if not isinstance(mechanism, NumericMechanism) or mechanism.event_shape or mechanism.support.is_discrete:
        raise ValueError(f"released labels must be real numbers, one for each record; got values under {mechanism!r}")
    z = np.asarray(release.values, float)
    low, high, mean = z.min(), z.max(), z.mean()
    if not low < high:
        raise ValueError(f"the released labels are degenerate: all {len(z)} of them are {low:g}")
    width = checked("width", z.std() if width is None else width, *POSITIVE)
    first, last = np.floor((low - mean) / width) + 1, np.ceil((high - mean) / width)
    at_least(1, "the number of bins that width makes", int(last - first + 1), 10**6)
    nodes = mean + width * np.arange(first, last)
    nodes = np.concatenate([[low], nodes[(nodes > low) & (nodes < high)], [high]])
    return Histogram(nodes, np.histogram(z, nodes)[0] / len(z) / np.diff(nodes))
