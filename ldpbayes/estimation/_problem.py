"""The problem of an M-estimate: its records, its units and its loss, examined before any work."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._core.tracing import quick_jit
from ldpbayes.data.frames import arrays_of_frames
from ldpbayes.data.release import Release
from ldpbayes.estimation import losses
from ldpbayes.estimation._corrections import Correction, check_noise, methods_for
from ldpbayes.estimation.losses._loss import Loss, as_loss, has_kinks
from ldpbayes.estimation.losses._regression import RegressionLoss
from ldpbayes.mechanisms import SymmetricLaplaceMechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Noise
from ldpbayes.numerics.arrays import snapped

LENGTHS = 2.0 ** np.arange(-64, 65)
BENT = 0.5  # what the linear approximation misses there, against the change that it predicts
ROUNDING = 2.0**-40


@functools.partial(quick_jit, static_argnames="loss")
def natural_units(loss: Loss, rows: jax.Array, theta: jax.Array) -> jax.Array:
    """For each parameter the shortest move over which a linear approximation of the losses fails by half.

    It follows the units of records, parameters and loss. Where there is none, as for a loss that is linear in a
    parameter, it is one plus the parameter's size.

    Parameters
    ----------
    loss : Loss
        Of a flat parameter.
    rows : array (N, columns)
        Records at which it is looked at.
    theta : array (p,)
        The parameter that is moved.

    Returns
    -------
    array (p,)
    """

    def size(values: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.mean(values**2, axis=-1))

    def one(direction: jax.Array) -> jax.Array:
        def moved(length: Any) -> jax.Array:
            return loss.values(rows, theta + length * direction)

        here, slope = jax.jvp(moved, (0.0,), (1.0,))
        lengths = jnp.asarray(LENGTHS)
        missed = jax.lax.map(lambda length: size(moved(length) - here - length * slope), lengths)
        # what rounding alone would miss says nothing
        blind = ROUNDING * (size(here) + jnp.abs(theta @ direction) * size(slope))
        share = jnp.where(missed <= blind, 0.0, missed / (lengths * size(slope)))
        bent = ~(share < BENT)  # also where the loss is not defined
        first = jnp.argmax(bent)
        low, high = share[first - 1], share[first]
        between = jnp.log(BENT / low) / jnp.log(high / low)  # log-linear, so that the lengths' grid does not matter
        length = lengths[first] * 2.0 ** jnp.where(jnp.isfinite(between), between - 1, 0.0)
        found = jnp.any(bent) & (first > 0) & (size(slope) > 0)
        return jnp.where(found, length, 1 + jnp.abs(theta @ direction))

    return jax.lax.map(one, jnp.eye(theta.shape[0], dtype=theta.dtype))


@dataclasses.dataclass(frozen=True)
class Records:
    """Records as a method takes them.

    Attributes
    ----------
    mechanism : Additive
        That made them; of original records one that adds nothing.
    rows : array (N, columns)
        In double precision, those that were on a bound of the support before they were rounded again on it.
    scalar : bool
        Whether a record is a number.
    support : (array, array) or None
        Where the method takes the original records to lie, in the perturbed columns.
    """

    mechanism: Additive
    rows: np.ndarray
    scalar: bool
    support: tuple[np.ndarray, np.ndarray] | None

    def inside(self, rows: np.ndarray) -> np.ndarray:
        """Any rows, brought into the support."""
        if self.support is None:
            return rows
        rows = np.array(rows, float)
        index = list(self.mechanism.index)
        rows[..., index] = np.clip(rows[..., index], *self.support)
        return rows


def records_of(release: Any, method: Correction) -> Records:
    """The records of a release, or original ones for a method that is given those.

    Parameters
    ----------
    release : Release or array
        What `m_estimate` was given.
    method : Correction
        With which they are to be used.

    Raises
    ------
    TypeError
        If it is not a release, or not one of additive noise.
    ValueError
        If it holds no values, for a method that is not for its noise, or public records outside the support.
    """
    if method.original:
        if isinstance(release, Release):
            raise ValueError("the oracle uses original records, and a release holds none: pass an array of records")
        return _originals(release)
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release (an array only for method='oracle'), got {type(release).__name__}")
    mechanism: Any = release.mechanism
    if release.values is None:
        raise ValueError("m_estimate needs released values; a release with only a count is for simulation")
    if not isinstance(getattr(mechanism, "noise", None), Noise):
        raise TypeError(
            f"m_estimate takes releases with additive noise, got {type(mechanism).__name__}; for others use "
            "ldpbayes.fit"
        )
    check_noise(method, mechanism)
    support = method.settled(mechanism).support
    rows = np.asarray(release.values)
    scalar = not mechanism.event_shape
    return Records(mechanism, _supported(rows[:, None] if scalar else rows, mechanism, support), scalar, support)


def _originals(records: Any) -> Records:
    records = arrays_of_frames(records)
    rows = np.asarray(records, float)
    if rows.ndim not in (1, 2) or not rows.size:
        raise ValueError(f"original records must be an array (N,) or (N, columns), got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError(f"original records must be finite; {(~np.isfinite(rows)).sum()} numbers are not")
    scalar = rows.ndim == 1
    rows = rows[:, None] if scalar else rows
    low, high = rows.min(axis=0) - 1, rows.max(axis=0) + 1
    bounds = (low[0], high[0], None) if scalar else (low, high, _width(records, rows.shape[1]))
    return Records(SymmetricLaplaceMechanism(0.0, *bounds), rows, scalar, None)


def _width(table: Any, columns: int) -> int | tuple[str, ...]:
    """What a data frame calls its columns, so that a loss takes them by name; else how many there are."""
    names = tuple(getattr(table, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else columns


def _supported(rows: np.ndarray, mechanism: Additive, support: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Rows in double precision, on the support where they were; ValueError if public records lie outside."""
    if support is None:
        return rows.astype(float)
    index = list(mechanism.index)
    part = snapped(rows[:, index], support).astype(float)
    public = np.broadcast_to(np.equal(mechanism.noise.standard_deviation, 0), len(rows))
    bad = public & np.any((part < support[0]) | (part > support[1]), axis=1)
    if bad.any():
        raise ValueError(
            f"{bad.sum()} public records lie outside the support, the first at {np.argmax(bad)}: "
            f"{part[np.argmax(bad)]}; give another support, or None"
        )
    rows = rows.astype(float)
    rows[:, index] = part
    return rows


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
