"""`m_estimate`: minimise a loss over a population whose records are only seen through noise."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from jax.typing import ArrayLike

from ldpbayes._checks import is_integer
from ldpbayes.data._release import Release
from ldpbayes.estimation._arguments import records_of
from ldpbayes.estimation._estimator import Estimator
from ldpbayes.estimation._examine import examined, parametrised
from ldpbayes.estimation._result import MEstimate
from ldpbayes.estimation._solve import Ball, Box
from ldpbayes.estimation._solver import Solver
from ldpbayes.estimation._start import check_space, placed
from ldpbayes.estimation.corrections import Correction
from ldpbayes.estimation.corrections._table import correction
from ldpbayes.estimation.losses._loss import Loss

__all__ = ["m_estimate"]


class _Default:
    def __repr__(self) -> str:
        return "<the method's>"


_DEFAULT: Any = _Default()


def m_estimate(
    loss: Loss | Callable,
    release: Release | ArrayLike,
    method: str | Correction = "combined",
    *,
    start: Any = None,
    space: Box | Ball | None = None,
    support: Literal["bounds"] | tuple[ArrayLike, ArrayLike] | None = _DEFAULT,
    draws: int | Literal["exact"] | None = None,
    cuts: Sequence[float] | None = None,
    starts: int = 1,
    seed: int = 0,
) -> MEstimate:
    """Estimate the parameter that minimises the mean loss of the original records, from released ones.

    Parameters
    ----------
    loss : Loss or callable
        One of `ldpbayes.estimation.losses`, or any JAX function loss(x, theta) of one record: a number, or a row with
        the columns of the release, perturbed or not.
    release : Release
        From a mechanism whose noise the method is for. For ``oracle`` original records: an array, or a data frame,
        whose columns a loss of `ldpbayes.estimation.losses` may name, and which then name the parameters. A function
        of your own sees the columns in the order of the data frame: ``frame[list(mechanism.columns)]`` has that of a
        release.
    method : str or Correction
        A correction method of `ldpbayes.estimation`, or the name of one with its defaults:

        - ``combined``, `Combined`: the asymptotically best linear combination of all scores below that apply, and of
          what the support says (two-step GMM, [Hansen]); the default, for zero-inflated symmetric Laplace noise.
        - ``dr``, `DoublyRandom`; ``sdr``, `SmoothedDoublyRandom`; ``sl``, `SymmetricLaplaceCorrection`: the corrected
          losses of [LCQ], doubly random, smoothed doubly random and symmetric Laplace; with ``draws=1`` and
          ``support=None`` as the paper defines them. The last is for noise that is not zero-inflated, too, and in one
          column for Laplace noise. ``sdr`` and ``sl`` need a smooth loss: two derivatives in the perturbed columns and
          two more in the parameters, of which only the last may jump.
        - ``independent``, `IndependentLaplaceCorrection`: the corrected loss for independent Laplace noise ([LCQ],
          preprint, eq. 4.9), which needs two derivatives in each perturbed column, and two in the parameters.
        - ``naive``, `Naive`: the loss of the released records, as if they were the original ones; biased.
        - ``oracle``, `Oracle`: the loss of original records, for studies.
    start : array or pytree, optional
        Where to start, in the form in which the loss takes its parameter. Losses of a linear predictor start from the
        naive estimate, and so does a loss with kinks in the parameter, from the one that is found from here.
    space : Box or Ball, optional
        The compact set of parameters. By default a box around the naive estimate, ten times as wide on either side as
        one plus its size and the parameter's unit: how far it has to be moved for the loss to bend.
    support : "bounds", (lower, upper) or None
        Of a method that is named: where the original records are known to lie, in the perturbed columns; by default
        between the mechanism's bounds. For ``dr``, which then never looks at the loss elsewhere, and ``combined``,
        which does so only where the loss is finite there. Other methods make nothing of it.
    draws : int or "exact", optional
        Of a method that is named: draws of the analyst's own noise to average over, a record; by default 16. "exact"
        integrates instead, for one perturbed column.
    cuts : sequence of float, optional
        Of a method that is named: kinks of the loss in the perturbed column, where ``draws="exact"`` is to cut its
        integrals.
    starts : int
        Number of starts, all but the first uniform in the space.
    seed : int
        For the analyst's own noise and the starts.

    Returns
    -------
    MEstimate

    Warns
    -----
    EstimationWarning
        If the minimisation has not converged, ends on the boundary of the space, or finds several minima.

    Raises
    ------
    TypeError
        If ``release`` is not a release of additive noise, ``loss`` not a function, ``method`` neither a name nor a
        `Correction`, or options of a method stand beside a `Correction`, which has its own.
    ValueError
        For a method that the noise or the loss does not admit, a loss that is not a finite number at the start,
        columns that it does not find, or an unperturbed response that it is not for; public records outside the
        support, a start outside the space, too few records, or an argument out of range.

    Notes
    -----
    Standard errors are those of the sandwich formula ([Huber67]; [LCQ] Theorem 5.3), with the curvature of a smooth
    version of a loss that has kinks; `MEstimate.bootstrap` makes others.
    """
    said: dict[str, Any] = {} if support is _DEFAULT else {"support": support}
    said |= {name: value for name, value in (("draws", draws), ("cuts", cuts)) if value is not None}
    chosen = correction(method, **said)
    if not is_integer(starts) or starts < 1:
        raise ValueError(f"starts must be a positive integer, got {starts!r}")
    if space is not None and not isinstance(space, (Box, Ball)):
        raise TypeError(f"space must be a Box or a Ball, got {type(space).__name__}")
    with jax.enable_x64(True):
        records = records_of(release, chosen)
        given = parametrised(loss, start, records)
        check_space(space, given.start, start)
        found = examined(given, records, chosen)
        place = placed(found, records, given.start, space, given=start is not None)
        estimator = Estimator(found.loss, records.mechanism, chosen, place.space, found.everywhere, place.units)
        return Solver(estimator, given.unravel, int(starts)).solve(records, place.start, seed)
