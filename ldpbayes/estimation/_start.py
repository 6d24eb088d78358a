"""Where a minimisation starts, and the compact space of parameters that it stays in."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._compiling import quick_jit
from ldpbayes.estimation._arguments import Records
from ldpbayes.estimation._estimator import Estimator
from ldpbayes.estimation._examine import Examined, sample
from ldpbayes.estimation._solve import Ball, Box
from ldpbayes.estimation._units import natural_units
from ldpbayes.estimation.corrections import Naive

__all__ = ["Placed", "check_space", "placed"]

ROUNDS = 6  # of the naive estimate and the units there


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where to look for a minimum.

    Attributes
    ----------
    start : array (p,)
        Where the minimisation starts.
    space : Box or Ball
        The compact set of parameters.
    units : array (p,) or None
        Lengths of the parameters, over which a function with kinks is rounded off.
    """

    start: np.ndarray
    space: Box | Ball
    units: np.ndarray | None


def check_space(space: Box | Ball | None, start: np.ndarray, given: Any) -> None:
    """ValueError for a space of another number of parameters, or one that the start lies outside of.

    Parameters
    ----------
    space : Box, Ball or None
        What `m_estimate` was given.
    start : array (p,)
        The flat start.
    given : array or pytree, optional
        The start as it was given; one that was not is not checked.
    """
    if space is None:
        return
    if space.shape not in ((), (1,), (len(start),)):
        raise ValueError(f"space is for {space.shape[0]} parameters, and this loss has {len(start)}")
    if given is not None:
        moved = np.abs(np.asarray(space.project(jnp.asarray(start))) - start)
        if np.any(moved > 1e-9 * (1 + np.abs(start))):
            raise ValueError(f"start lies outside the space: {given!r}")


def placed(found: Examined, records: Records, start: np.ndarray, space: Box | Ball | None, *, given: bool) -> Placed:
    """The space, and the start in it: where they were not given, from the naive estimate.

    Parameters
    ----------
    found : Examined
        The loss.
    records : Records
        Of which it is minimised.
    start : array (p,)
        Where the naive estimate starts.
    space : Box, Ball or None
        What `m_estimate` was given.
    given : bool
        Whether the start was given: then it is kept, but for a function with kinks, which is only seen from nearby once
        it is rounded off.
    """
    if space is not None and given and not found.rough:
        return Placed(start, space, None)
    naive, units = _naive(found, records, start, space)
    space = _around(naive, start, units) if space is None else space
    return Placed(start if given and not found.rough else naive, space, units if found.rough else None)


def _naive(
    found: Examined, records: Records, start: np.ndarray, space: Box | Ball | None
) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser of the loss at face value, in a space so wide that it only keeps numbers finite, and units."""
    rows, some = jnp.asarray(records.inside(records.rows)), jnp.asarray(sample(records))
    naive, units = jnp.asarray(start), found.units
    if space is None:
        reach = 1e4 * (1 + units + np.abs(start))
        space = Box(start - reach, start + reach)
    for _ in range(ROUNDS):
        # of what the naive method does not look at, nothing: so methods and draws share what is compiled
        estimator = Estimator(found.loss, records.mechanism, Naive(), space, units=units if found.rough else None)
        naive, before = _minimum(estimator, rows, naive), units
        units = np.asarray(natural_units(found.loss, some, naive))
        # a loss that was rounded off over too much is minimised once more
        if not found.rough or np.all(np.abs(np.log2(units / before)) < 1):
            break
    return np.asarray(naive), units


@quick_jit
def _minimum(estimator: Estimator, rows: jax.Array, start: jax.Array) -> jax.Array:
    """Where the criterion of an estimator that draws nothing is smallest."""
    return estimator.minimum(estimator.evidence(jax.random.key(0), rows), start).theta


def _around(naive: np.ndarray, start: np.ndarray, units: np.ndarray) -> Box:
    """The default space: a box around the naive estimate that the start is in."""
    reach = 10 * (1 + units + np.abs(naive))
    return Box(np.minimum(naive - reach, start - 1), np.maximum(naive + reach, start + 1))
