"""The loss that `m_estimate` is given: as one of a flat parameter, and what can be found out about it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes.estimation import losses
from ldpbayes.estimation._arguments import Records
from ldpbayes.estimation._units import natural_units
from ldpbayes.estimation.corrections import Correction
from ldpbayes.estimation.corrections._table import methods_for
from ldpbayes.estimation.losses._function_loss import as_loss
from ldpbayes.estimation.losses._kinks import has_kinks
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.estimation.losses._regression_loss import RegressionLoss

__all__ = ["Examined", "Parametrised", "check_values", "examined", "parametrised", "sample"]

PROBES = 256


@dataclasses.dataclass(frozen=True)
class Parametrised:
    """A loss of a flat parameter.

    Attributes
    ----------
    loss : Loss
        With positions in place of columns' names.
    start : array (p,)
        The flat start.
    unravel : callable
        From a flat parameter to the form that the user's loss takes.
    function : callable or None
        The function of one record that the user gave, if it was one.
    """

    loss: Loss
    start: np.ndarray
    unravel: Callable
    function: Callable | None


@dataclasses.dataclass(frozen=True)
class Examined:
    """What was found out about a loss at some records.

    Attributes
    ----------
    loss : Loss
        The loss, which now says whether it is smooth, and is rounded off if it is a function with kinks.
    units : array (p,)
        Natural units of the parameters at the start.
    everywhere : bool
        Whether it is finite outside the support too.
    rough : bool
        Whether it is a function with kinks in its parameter, to be rounded off over the units.
    """

    loss: Loss
    units: np.ndarray
    everywhere: bool
    rough: bool


def parametrised(loss: Any, start: Any, records: Records) -> Parametrised:
    """The loss as one of a flat parameter.

    Parameters
    ----------
    loss : Loss or callable
        What `m_estimate` was given.
    start : array or pytree, optional
        The same.
    records : Records
        Whose columns the loss is about.

    Raises
    ------
    TypeError
        If ``loss`` is neither a loss nor a function.
    ValueError
        If the loss is not for these columns, or the start not for the loss.
    """
    mechanism = records.mechanism
    if isinstance(loss, Loss):
        loss = loss.of(mechanism.names)
        loss.check(records.rows, mechanism.index)
        names = loss.names(mechanism.names)
        if names is None and start is None:
            raise ValueError("start is needed: this loss does not name its parameters, so that their number is unknown")
        flat = np.zeros(len(names or ())) if start is None else np.asarray(start, float)
        if flat.ndim != 1 or (names is not None and len(flat) != len(names)):
            count = "" if names is None else f"{len(names)} "
            raise ValueError(f"start must be an array of {count}parameters, got shape {flat.shape}")
        return Parametrised(loss, flat, np.asarray, None)
    if not callable(loss):
        raise TypeError(f"loss must be a function loss(x, theta) of one record, got {type(loss).__name__}")
    name = getattr(loss, "__name__", "")
    if getattr(losses, name, None) is loss:
        raise TypeError(f"losses.{name} makes a loss: call it, losses.{name}(...)")
    if start is None:
        raise ValueError(
            "start is needed, such as 0.0 or jnp.zeros(3): it says which form the parameter of this loss has"
        )
    numbers, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start))
    if not numbers.size or not bool(jnp.all(jnp.isfinite(numbers))):
        raise ValueError(f"start must hold finite numbers, got {start!r}")
    made = as_loss(loss, scalar=records.scalar, unravel=unravel)
    return Parametrised(made, np.asarray(numbers), unravel, loss)


def examined(given: Parametrised, records: Records, method: Correction) -> Examined:
    """What can be found out about a loss at some records, for a method.

    Parameters
    ----------
    given : Parametrised
        The loss, and where it is looked at.
    records : Records
        Some of which it is looked at on.
    method : Correction
        Which says what it needs of a loss.

    Raises
    ------
    ValueError
        If the loss is not a finite number at the start, asks for columns that there are not, or lacks derivatives that
        the method needs.
    """
    loss, start, rows = given.loss, given.start, records.rows
    if given.function is not None:
        _check_function(given, records)
    # whether the loss is finite at released values, and at some as far out again
    centre = rows.mean(axis=0)
    far = np.concatenate([rows, centre + 3 * (rows - centre)])
    found = _losses(loss, np.concatenate([records.inside(rows), far]), start)
    _check_finite(found[: len(rows)], rows, bounded=records.support is not None)
    everywhere = bool(np.isfinite(found[len(rows) :]).all())
    units = np.asarray(natural_units(loss, jnp.asarray(sample(records)), jnp.asarray(start)))
    if method.derivatives(records.mechanism.dimension):
        loss = _told_whether_smooth(given, records, method, units, everywhere)
    rough = given.function is not None and not loss.smooth and _has_kinks_in_its_parameter(given, records, units)
    if rough:
        loss = _with(loss, rough=True)
    return Examined(loss, units, everywhere, rough)


def check_values(loss: Loss, rows: np.ndarray, records: Records, theta: np.ndarray, *, bounded: bool) -> None:
    """ValueError unless the losses at a parameter are finite.

    Parameters
    ----------
    loss : Loss
        Of a flat parameter.
    rows : array (N, columns)
        Where it is looked at: the records, brought into the support or not.
    records : Records
        To be shown.
    theta : array (p,)
        The parameter.
    bounded : bool
        Whether they were brought into the support.
    """
    _check_finite(_losses(loss, rows, theta), records.rows, bounded)


def sample(records: Records) -> np.ndarray:
    """Some of the records, drawn with a fixed seed and brought into the support, shape (256, columns).

    Parameters
    ----------
    records : Records
        All of them.
    """
    picked = np.random.default_rng(1).integers(len(records.rows), size=PROBES)
    return records.inside(records.rows[picked])


def _check_function(given: Parametrised, records: Records) -> None:
    """ValueError unless the user's function makes a number of a record and a parameter."""
    function: Any = given.function
    row = jnp.asarray(records.rows[0, 0] if records.scalar else records.rows[0])
    result: Any = jax.eval_shape(function, row, given.unravel(jnp.asarray(given.start)))
    try:  # NumPy refuses an index that JAX would move into the row
        function(np.asarray(row), given.unravel(np.asarray(given.start)))
    except IndexError as error:
        raise ValueError(f"the loss asks for what a record does not have: {error}") from error
    except Exception:  # not written for NumPy's arrays
        pass
    if getattr(result, "shape", None) != ():
        shown = getattr(result, "shape", type(result).__name__)
        raise ValueError(f"loss(x, theta) of one record must be a number, got an array of shape {shown}")


def _check_finite(values: np.ndarray, rows: np.ndarray, bounded: bool) -> None:
    if not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values))
        where = ", brought into the support," if bounded else ""
        raise ValueError(
            f"the loss must be finite, but at the start it is {values[bad[0]]} for record {bad[0]}{where} "
            f"and for {len(bad) - 1} others: {rows[bad[0]]}"
        )


def _told_whether_smooth(
    given: Parametrised, records: Records, method: Correction, units: np.ndarray, everywhere: bool
) -> Loss:
    """The loss, which says whether it has the derivatives that the method uses; it is found out where it did not."""
    loss, smooth = given.loss, given.loss.smooth
    there = method.derivatives(records.mechanism.dimension)
    if smooth is None:
        # two more in the parameters, for the gradient and the Hessian
        smooth = not has_kinks(loss, *_lines(given.start, records, units, everywhere), there + 2)
        loss = _with(loss, smooth=smooth)
    if not smooth and method.only_smooth:
        others = [repr(other.name) for other in methods_for(records.mechanism) if not other.only_smooth]
        advice = [f"use {' or '.join(others)}"] if others else []
        if isinstance(loss, RegressionLoss) and loss.smooth_kernel is not None:
            advice.append("round them off with loss.smoothed(width), and estimate what minimises the rounded loss")
        if not others:
            advice.append("take a posterior, ldpbayes.fit: no method is for such a loss under this noise")
        raise ValueError(
            f"method {method.name!r} needs {there + 2} derivatives of the loss, {there} in the perturbed columns "
            "and 2 in the parameters, and this loss, or a derivative of it below the last, has kinks or jumps "
            f"there, so that its corrected version would be biased; {', or '.join(advice)}"
        )
    return loss


def _with(loss: Loss, **said: bool) -> Loss:
    """The loss with fields replaced, where it has them."""
    given: Any = loss
    known = {field.name for field in dataclasses.fields(given)} if dataclasses.is_dataclass(given) else set()
    return dataclasses.replace(given, **said) if set(said) <= known else loss


def _lines(start: np.ndarray, records: Records, units: np.ndarray, everywhere: bool) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of lines along which records, in their perturbed columns, and parameters change."""
    rng = np.random.default_rng(0)
    rows = records.rows[rng.integers(len(records.rows), size=(2, PROBES))]
    others = [j for j in range(rows.shape[-1]) if j not in records.mechanism.index]
    rows[1][:, others] = rows[0][:, others]
    thetas = start + units * rng.normal(size=(2, PROBES, len(start)))
    return rows if everywhere else records.inside(rows), thetas


def _has_kinks_in_its_parameter(given: Parametrised, records: Records, units: np.ndarray) -> bool:
    rows, thetas = _lines(given.start, records, units, everywhere=False)
    return has_kinks(given.loss, rows[[0, 0]], thetas, 2)


@functools.partial(jax.jit, static_argnames="loss")
def _values(loss: Loss, rows: jax.Array, theta: jax.Array) -> jax.Array:
    return loss.values(rows, theta)


def _losses(loss: Loss, rows: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Loss of each of some rows, on the host."""
    return np.asarray(_values(loss, jnp.asarray(rows), jnp.asarray(theta)))
