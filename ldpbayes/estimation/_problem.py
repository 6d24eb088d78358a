"""The problem of an M-estimate: its records, its loss and its units, examined before the minimisation."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from ldpbayes._core.checks import FINITE, checked, refuse
from ldpbayes._core.running import quick_jit
from ldpbayes._core.tabular import arrays_of_frames, column_names
from ldpbayes._core.types import Array, PyTree
from ldpbayes.data.release import Release
from ldpbayes.estimation import losses
from ldpbayes.estimation._corrections import Bounds, Correction, methods_for, settled_for
from ldpbayes.estimation.losses import FunctionLoss, Loss, as_loss, derivatives_up_to
from ldpbayes.mechanisms import SymmetricLaplaceMechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import Promise
from ldpbayes.numerics.arrays import snapped

SAMPLE_RECORDS = 256  # records at which a loss is examined
MOVE_LENGTHS = 2.0 ** np.arange(-64, 65)  # moves of a parameter that are tried
BENT_SHARE = 0.5  # share of the predicted change by which a linear approximation fails after a move of one unit
ROUNDING_SHARE = 2.0**-40  # share of the values and slopes that is taken for rounding error

LINE_PANELS, PANEL_NODES = 16, 3  # panels of a line at each level of a search for kinks, Gauss nodes in each panel
ZOOM_LEVELS = 5  # so that the last panel is a millionth of the line
UNEXPLAINED_RATIO = 2.0  # times the change that the derivatives sampled in a panel explain; a jump misses all of it
ROUNDING_ON_A_LINE = 1e-9  # against the largest derivatives on the line
ROUNDING_ON_ANY_LINE = 1e-13  # against those on any line: a tail that ends in rounding to zero ends in steps


@dataclasses.dataclass(frozen=True)
class Records:
    """Rows (N, columns) in double precision, which are on the support if they were so before rounding."""

    mechanism: Additive  # of original records one that adds nothing
    rows: np.ndarray
    support: Bounds
    promises: tuple[Promise, ...] = ()  # of a release

    def inside(self, rows: np.ndarray) -> np.ndarray:
        """Rows with their perturbed columns clipped to the support."""
        if self.support is None:
            return rows
        rows = np.array(rows, float)
        index = list(self.mechanism.index)
        rows[..., index] = np.clip(rows[..., index], *self.support)
        return rows

    def sample(self) -> np.ndarray:
        """Rows (256, columns) drawn with a fixed seed and brought into the support."""
        return self.inside(self.rows[np.random.default_rng(1).integers(len(self.rows), size=SAMPLE_RECORDS)])


def records_of(release: Release | ArrayLike, method: Correction) -> Records:
    """The records of a release, or original ones for a method that takes these; TypeError or ValueError if unfit."""
    if method.original:
        if isinstance(release, Release):
            raise ValueError("the oracle needs original records, but a release has none: pass an array of records")
        return _original_records(release)
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release (an array only for method='oracle'), got {type(release).__name__}")
    if release.values is None:
        raise ValueError("m_estimate needs released values; a release with only a count is for simulation")
    mechanism, rows = release.mechanism, np.asarray(release.values)
    if not isinstance(mechanism, Additive):
        kind = type(mechanism).__name__
        raise TypeError(f"m_estimate takes releases with additive noise, got {kind}; for others use ldpbayes.fit")
    support = cast(Bounds, settled_for(mechanism, method).support)
    return Records(mechanism, _on_support(rows.reshape(len(rows), -1), mechanism, support), support, release.promises)


def _original_records(records: ArrayLike) -> Records:
    records = arrays_of_frames(records)
    rows = checked("original records", np.asarray(records, float), *FINITE)
    if np.ndim(rows) not in (1, 2):
        raise ValueError(f"original records must be an array (N,) or (N, columns), got shape {np.shape(rows)}")
    # A data frame's names of columns let a loss take them by name.
    names = tuple(column_names(records) or ())
    named = names and all(isinstance(name, str) for name in names)
    columns = None if rows.ndim == 1 else names if named else rows.shape[1]
    mechanism = SymmetricLaplaceMechanism(0.0, rows.min(axis=0) - 1, rows.max(axis=0) + 1, columns)
    return Records(mechanism, rows.reshape(len(rows), -1), None)


def _on_support(rows: np.ndarray, mechanism: Additive, support: Bounds) -> np.ndarray:
    """Rows in double precision, rounded back on the support; ValueError if public records lie outside it."""
    if support is None:
        return rows.astype(float)
    index = list(mechanism.index)
    part = snapped(rows[:, index], support).astype(float)
    public = np.broadcast_to(np.equal(mechanism.noise.standard_deviation, 0), len(rows))
    bad = public & np.any((part < support[0]) | (part > support[1]), axis=1)
    refuse(bad, "{} records without noise lie outside the support", part, "at {}; give another support, or None")
    rows = rows.astype(float)
    rows[:, index] = part
    return rows


@functools.partial(quick_jit, static_argnames="loss")
def natural_units(loss: Loss, rows: Array, theta: Array) -> jax.Array:
    """For each parameter (p,) the shortest move upwards over which a linear approximation of the losses fails by half;
    else downwards; else one plus the parameter's size.
    """

    def size(values: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.mean(values**2, axis=-1))

    def unit(direction: jax.Array) -> jax.Array:
        def moved(length: float | jax.Array) -> jax.Array:
            return loss.values(rows, theta + length * direction)

        here, slope = jax.jvp(moved, (0.0,), (1.0,))
        lengths = jnp.asarray(MOVE_LENGTHS)
        missed = jax.lax.map(lambda length: size(moved(length) - here - length * slope), lengths)
        rounding = ROUNDING_SHARE * (size(here) + jnp.abs(theta @ direction) * size(slope))
        share = jnp.where(missed <= rounding, 0.0, missed / (lengths * size(slope)))
        bent = ~(share < BENT_SHARE)  # also where the loss is not defined
        first = jnp.argmax(bent)
        low, high = share[first - 1], share[first]
        # log-linear, so that the lengths' grid does not matter
        between = jnp.log(BENT_SHARE / low) / jnp.log(high / low)
        length = lengths[first] * 2.0 ** jnp.where(jnp.isfinite(between), between - 1, 0.0)
        fails = jnp.any(bent) & (first > 0) & (size(slope) > 0)
        return jnp.where(fails, length, jnp.inf)

    ahead = jnp.eye(theta.shape[0], dtype=theta.dtype)
    up, down = jnp.split(jax.lax.map(unit, jnp.concatenate([ahead, -ahead])), 2)
    return jnp.where(jnp.isfinite(up), up, jnp.where(jnp.isfinite(down), down, 1 + jnp.abs(theta)))


@dataclasses.dataclass(frozen=True)
class PosedLoss:
    """Records, and a loss of a flat parameter with positions for columns."""

    records: Records
    loss: Loss
    start: np.ndarray  # (p,)
    unravel: Callable  # from a flat parameter to the form of the user's
    units: np.ndarray  # (p,), the natural ones at the start
    everywhere: bool  # whether the loss is finite outside the support too
    rough: bool  # whether the loss is a function with kinks in its parameter, to be rounded off over the units


def posed(loss: Loss | Callable, start: PyTree, release: Release | ArrayLike, method: Correction) -> PosedLoss:
    """The problem of a user's loss; TypeError or ValueError unless release, loss, start and method fit each other."""
    records = records_of(release, method)
    original, start, unravel = _with_flat_parameter(loss, start, records)
    check_finite(original, start, records, bounded=records.support is not None)
    # Whether the loss is finite at released values, and at points three times as far from their mean.
    centre = records.rows.mean(axis=0)
    places = (records.rows, centre + 3 * (records.rows - centre))
    everywhere = all(np.isfinite(_values(original, rows, start)).all() for rows in places)
    units = np.asarray(natural_units(original, records.sample(), start))
    examined, rough = _with_known_smoothness(original, start, records, method, units, everywhere), False
    if not (isinstance(loss, Loss) or examined.smooth):
        rows, thetas = _lines(start, records, units, everywhere=False)
        rough = bool(has_kinks(original, rows[[0, 0]], thetas, 2))  # in the parameter alone
    return PosedLoss(records, examined, start, unravel, units, everywhere, rough)


def _with_flat_parameter(
    loss: Loss | Callable, start: PyTree, records: Records
) -> tuple[Loss, np.ndarray, Callable[[Array], PyTree]]:
    """The user's loss as a loss of a flat parameter, the flat start, and the way back to the form of the user's."""
    mechanism = records.mechanism
    if isinstance(loss, Loss):
        loss = loss.of(mechanism.names)
        loss.check(records.rows, mechanism.index)
        names = loss.names(mechanism.names)
        if names is None and start is None:
            raise ValueError("start is needed: this loss does not name its parameters, so that their number is unknown")
        flat: Any = np.zeros(len(names or ())) if start is None else np.asarray(start, float)
        if flat.ndim != 1 or (names is not None and len(flat) != len(names)):
            count = "" if names is None else f"{len(names)} "
            raise ValueError(f"start must be an array of {count}parameters, got shape {flat.shape}")
        return loss, flat, np.asarray
    as_loss(loss)  # TypeError unless it can be called
    name = getattr(loss, "__name__", "")
    if getattr(losses, name, None) is loss:
        raise TypeError(f"losses.{name} is a function that returns a loss: write losses.{name}(...)")
    if start is None:
        raise ValueError("start is needed, such as 0.0 or jnp.zeros(3): it shows the shape of the parameters")
    numbers, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start))
    flat = np.asarray(numbers)
    if not flat.size or not np.isfinite(flat).all():
        raise ValueError(f"start must hold finite numbers, got {start!r}")
    scalar = not mechanism.event_shape
    row = jnp.asarray(records.rows[0, 0] if scalar else records.rows[0])
    shape = getattr(jax.eval_shape(loss, row, unravel(numbers)), "shape", "unknown")
    try:  # NumPy refuses an index that JAX would move into the row
        loss(np.asarray(row), unravel(flat))
    except IndexError as error:
        raise ValueError(f"the loss uses an index that a record does not have: {error}") from error
    except Exception:  # not written for NumPy's arrays
        pass
    if shape != ():
        raise ValueError(f"loss(x, theta) of one record must be a number, got an array of shape {shape}")
    return FunctionLoss(loss, scalar, unravel), flat, unravel


def check_finite(loss: Loss, theta: np.ndarray, records: Records, *, bounded: bool) -> None:
    """ValueError unless the losses of the records, brought into the support if `bounded`, are finite."""
    values = np.asarray(_values(loss, records.inside(records.rows) if bounded else records.rows, theta))
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        where = " (moved into the support)" if bounded else ""
        value = f"{values[bad[0]]} for record {bad[0]}{where} and for {len(bad) - 1} others: {records.rows[bad[0]]}"
        raise ValueError(f"the loss must be finite, but at the start it is {value}")


def _with_known_smoothness(
    loss: Loss, start: np.ndarray, records: Records, method: Correction, units: np.ndarray, everywhere: bool
) -> Loss:
    """The loss with `smooth` determined if unknown; ValueError if it lacks derivatives that the method needs."""
    order, smooth = method.derivatives(records.mechanism.dimension), loss.smooth
    if order and smooth is None:
        # two more in the parameters, for the gradient and the Hessian
        smooth = not has_kinks(loss, *_lines(start, records, units, everywhere), order + 2)
        if dataclasses.is_dataclass(loss) and "smooth" in {field.name for field in dataclasses.fields(loss)}:
            loss = dataclasses.replace(loss, smooth=smooth)
    if order and method.only_smooth and not smooth:
        others = [repr(other.name) for other in methods_for(records.mechanism) if not other.only_smooth]
        advice = [f"use {' or '.join(others)}"] if others else []
        if loss.width(jnp.asarray(records.rows)) is not None:
            advice.append("use loss.smoothed(width), and estimate the parameters that minimise the smoothed loss")
        if not others:
            advice.append("use ldpbayes.fit: no method corrects such a loss under this noise")
        needs = f"{order + 2} derivatives of the loss, {order} in the perturbed columns and 2 in the parameters"
        biased = "this loss, or a derivative, has kinks or jumps: the correction would be biased"
        raise ValueError(f"method {method.name!r} needs {needs}, but {biased}; {', or '.join(advice)}")
    return loss


def _lines(start: np.ndarray, records: Records, units: np.ndarray, everywhere: bool) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of lines along which records, in their perturbed columns, and parameters change."""
    rng = np.random.default_rng(0)
    rows = records.rows[rng.integers(len(records.rows), size=(2, SAMPLE_RECORDS))]
    exact = np.setdiff1d(np.arange(rows.shape[-1]), records.mechanism.index)
    rows[1][:, exact] = rows[0][:, exact]
    thetas = start + units * rng.normal(size=(2, SAMPLE_RECORDS, len(start)))
    return rows if everywhere else records.inside(rows), thetas


@functools.partial(jax.jit, static_argnames="loss")
def _values(loss: Loss, rows: Array, theta: Array) -> jax.Array:
    return loss.values(rows, theta)


@functools.partial(jax.jit, static_argnames=("loss", "order"))
def has_kinks(loss: Loss, rows: Array, thetas: Array, order: int) -> jax.Array:
    """Whether the loss or a derivative below the `order`-th jumps between rows[0], thetas[0] and rows[1], thetas[1].
    Each line is zoomed in, always to the panel where most of a change is not the derivative's integral: at a jump that
    part stays, while a curve, however steep, straightens; so units do not matter.
    """
    t, w = np.polynomial.legendre.leggauss(PANEL_NODES)
    edges = np.arange(LINE_PANELS + 1) / LINE_PANELS
    nodes = (edges[:-1, None] + (1 + t) / (2 * LINE_PANELS)).ravel()

    def along(rows: jax.Array, thetas: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def value(s: jax.Array) -> jax.Array:
            return loss.values(rows[0] + s * (rows[1] - rows[0]), thetas[0] + s * (thetas[1] - thetas[0]))

        derivatives = jax.vmap(derivatives_up_to(order, value))

        def zoomed(k: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            def zoom(place: Array, width: Array) -> tuple[Array, tuple]:
                at = jnp.stack(derivatives(place + width * jnp.asarray(np.concatenate([edges, nodes]))))
                at = jnp.where(jnp.isfinite(at), at, 0.0)
                ends, slopes = at[k, : LINE_PANELS + 1], at[k + 1, LINE_PANELS + 1 :].reshape(LINE_PANELS, PANEL_NODES)
                missing = jnp.abs(jnp.diff(ends) - slopes @ w * width / (2 * LINE_PANELS))
                worst = jnp.argmax(missing)
                steepest = jnp.maximum(jnp.max(jnp.abs(slopes[worst])), jnp.max(jnp.abs(at[k + 1, worst + edge])))
                sizes = jnp.max(jnp.abs(at), axis=1)
                return place + width * worst / LINE_PANELS, (missing[worst], steepest * width / LINE_PANELS, sizes)

            _, (missing, change, sizes) = jax.lax.scan(zoom, 0.0, float(LINE_PANELS) ** -np.arange(ZOOM_LEVELS))
            return missing[-1], change[-1], jnp.max(sizes, axis=0)

        missing, change, sizes = jax.vmap(zoomed)(jnp.arange(order))
        sizes = jnp.max(sizes, axis=0)
        # a derivative is made of terms like those below it and that above it; a large constant only hides a jump
        return missing, change, jax.lax.cummax(sizes[1:]) + 1e-3 * sizes[0]

    edge = jnp.arange(2)
    missing, change, sizes = jax.vmap(along, (1, 1))(rows, thetas)
    rounding = ROUNDING_ON_A_LINE * sizes + ROUNDING_ON_ANY_LINE * jnp.max(sizes, axis=0)
    return jnp.any(missing > UNEXPLAINED_RATIO * change + rounding)
