"""`sketch`: a release compressed in one streaming pass."""

from jax.typing import ArrayLike

from ldpbayes.data._count_sketch import CountSketch
from ldpbayes.data._expanded_sketch import ExpandedSketch, expands
from ldpbayes.data._moment_sketch import MomentSketch
from ldpbayes.data._panel_sketch import PanelSketch
from ldpbayes.data._sketch import Sketch
from ldpbayes.data._total_sketch import TotalSketch
from ldpbayes.mechanisms import Mechanism, StatisticsMechanism

__all__ = ["sketch"]


def sketch(
    values: ArrayLike,
    mechanism: Mechanism,
    *,
    panels: int | None = None,
    lattice: bool | None = None,
    keep_records: bool = True,
    by: ArrayLike | None = None,
    expand: bool | None = None,
    at: ExpandedSketch | None = None,
) -> Sketch:
    """Compress released values to weighted nodes in one streaming pass, or to an expansion in a few.

    Parameters
    ----------
    values : array (N, *event)
        Released values; a NumPy memory map is read in chunks.
    mechanism : Mechanism
        What released them: numbers with one budget for all records, or discrete outputs, where the records of each
        budget are counted on their own.
    panels : int, optional
        Panels over the released range. Default: 40, more where the mechanism's noise is narrow.
    lattice : bool, optional
        Cut the panels at the integers, where a count's log-likelihood has kinks under Laplace noise. Default: where at
        most 128 integers lie between the bounds.
    keep_records : bool
        Whether a reference to ``values`` is kept, so that `fit` can refine a sketch that turns out to be too coarse.
        An expansion without them cannot be compared with what it stands for.
    by : array of int (N,), optional
        Group of each record, 0, ..., G − 1, for discrete outputs: the records' law then has batch shape (G,).
    expand : bool, optional
        For categories under a pure protocol: whether the log-likelihood is kept as a polynomial of the shares, instead
        of a count of each kind of released value. Default: where there are thousands of kinds, and records enough for
        the polynomial to be as good as the counts.
    at : ExpandedSketch, optional
        Expand where this sketch was expanded, and to the same order, so that the two add; it takes one pass.

    Returns
    -------
    PanelSketch, CountSketch, ExpandedSketch, MomentSketch or TotalSketch
        Of numbers, of discrete outputs, of categories in many kinds of released values, of rows under Gaussian noise,
        of locally perturbed statistics.

    Raises
    ------
    ValueError
        For personal budgets of a continuous release (sketch each budget's records apart), rows under other noise than
        Gaussian, a mechanism of numbers that names no released range, values that the mechanism cannot have released, a
        number of panels that is no positive integer, or groups of another length, negative, or of a continuous release;
        for an expansion that is asked for where there is none, or elsewhere than at a sketch's of the same categories
        and groups.
    """
    if expand is False and at is not None:
        raise ValueError("at= is for expansions, and expand is False")
    if expand or at is not None or (expand is None and expands(values, mechanism, by)):
        return ExpandedSketch.of(values, mechanism, by, at, keep_records)
    if mechanism.support.is_discrete:
        return CountSketch.of(values, mechanism, by)
    if by is not None:
        raise ValueError("by= is for releases with discrete outputs; make one sketch a group")
    if isinstance(mechanism, StatisticsMechanism):
        return TotalSketch.of(values, mechanism)
    if mechanism.record_shape:
        return MomentSketch.of(values, mechanism)
    return PanelSketch.of(values, mechanism, panels, lattice, keep_records)
