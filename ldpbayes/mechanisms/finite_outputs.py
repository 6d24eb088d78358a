"""Mechanisms with finitely many outputs, and densities of steps and of lines."""

import abc
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.checks import checked
from ldpbayes._core.tracing import array_of, floating, is_concrete
from ldpbayes._core.types import Array
from ldpbayes.mechanisms.plausibility import improbable_count
from ldpbayes.mechanisms.protocol import DiscreteMechanism, Mechanism
from ldpbayes.numerics.arrays import rounded
from ldpbayes.numerics.special import log_or_nothing


class FiniteOutputs(DiscreteMechanism):
    """A mechanism that takes numbers and releases one of the numbers in its field ``outputs``, an increasing array."""

    outputs: Array

    _shared: ClassVar[tuple[str, ...]] = ("outputs",)
    resolution = math.inf  # p(z | x) is smooth between its `breakpoints`

    @property
    @abc.abstractmethod
    def output_probabilities(self) -> tuple[Array, Array]:
        """Least and largest p(z | x) over all x of each output, arrays that broadcast with (*budgets, outputs)."""

    @property
    def support(self) -> constraints.Constraint:
        return _OneOf(self.outputs)

    def place(self, z: ArrayLike) -> Array:
        """Position of the output nearest to each released value. NumPy in, NumPy out; JAX in, JAX out."""
        at = array_of(z)
        xp: Any = np if isinstance(at, np.ndarray) and is_concrete(self.outputs) else jnp
        outputs = xp.asarray(self.outputs)
        # values that another precision has rounded are still nearest to what they were
        return xp.searchsorted((outputs[1:] + outputs[:-1]) / 2, at)

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(self.place(np.asarray(z)))[:, None]

    def implausible(self, values: np.ndarray) -> list[str]:
        counts, n = np.bincount(self.place(values), minlength=len(self.outputs)), len(values)
        sentences = []
        for few, bound, p in zip((True, False), ("least", "most"), self.output_probabilities, strict=True):
            expected = n * np.broadcast_to(np.reshape(p, (-1, np.shape(p)[-1])).mean(axis=0), counts.shape)
            wrong = improbable_count(counts, n, expected / n, 2 * len(counts), few)
            if wrong.any():
                first = int(np.argmax(np.where(wrong, np.abs(counts - expected), -1.0)))
                others = f" (and {wrong.sum() - 1} more)" if wrong.sum() > 1 else ""
                sentences.append(
                    f"{counts[first]:,} of {n:,} are {self.outputs[first]:g}{others}, where at {bound} "
                    f"{expected[first]:,.1f} are expected"
                )
        return sentences

    def _validated(self, values: np.ndarray) -> np.ndarray:
        if not is_concrete(self.outputs):
            return values
        values = values if values.dtype.kind == "f" else values.astype(float)
        nearest = self.outputs[self.place(values)]
        bad = (values != nearest) & (values != rounded(np, nearest, values.dtype))
        if bad.any():
            raise ValueError(
                f"{type(self).__name__} releases one of its {len(self.outputs)} outputs, from {self.outputs[0]:g} to "
                f"{self.outputs[-1]:g}; {bad.sum()} of these values are none, the first ({values[bad][0]:g}) at "
                f"{np.argmax(bad)}"
            )
        return nearest


class PiecewiseConstant(Mechanism):
    """A mechanism under which p(z | x) is constant in x but for some steps."""

    @abc.abstractmethod
    def pieces(self, z: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Cuts (*z, m) in ascending order, of which two may be equal, and levels (*z, m + 1) of p(z | x) between them.

        p(z | x) = levels[..., i] for cuts[..., i − 1] < x ≤ cuts[..., i].
        """

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z, x = array_of(z), array_of(x)
        dtype = jnp.result_type(z, x, float)
        cuts, levels = self.pieces(jnp.asarray(z, dtype))
        x = jnp.asarray(x, dtype)[..., None]
        # from the right: the first level is that of the records below all cuts
        level = levels[..., 0]
        for i in range(cuts.shape[-1]):
            level = jnp.where(x[..., 0] > cuts[..., i], levels[..., i + 1], level)
        return log_or_nothing(level)


class PiecewiseLinear(Mechanism):
    """A mechanism under which p(z | x) is linear in x between nodes, and constant beyond the first and the last."""

    nodes: Array
    """Array (k,), increasing: a field."""

    @abc.abstractmethod
    def levels(self, z: ArrayLike) -> jax.Array:
        """p(z | x) at the nodes (*z, k)."""

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        z, x = array_of(z), array_of(x)
        dtype = jnp.result_type(z, x, float)
        above, share = interpolation(jnp, jnp.asarray(self.nodes, dtype), jnp.asarray(x, dtype))
        levels, above, share = jnp.broadcast_arrays(
            self.levels(jnp.asarray(z, dtype)), above[..., None], share[..., None]
        )
        left, right = (jnp.take_along_axis(levels, at[..., :1], axis=-1)[..., 0] for at in (above - 1, above))
        return log_or_nothing(left + (right - left) * share[..., 0])


def interpolation(xp: Any, nodes: Array, x: Array) -> tuple[Array, Array]:
    """The node at or above x (clipped), never the first, and the share of the way to it from the node below."""
    x = xp.clip(x, nodes[0], nodes[-1])
    above = xp.clip(xp.searchsorted(nodes, x), 1, len(nodes) - 1)
    return above, (x - nodes[above - 1]) / (nodes[above] - nodes[above - 1])


def checked_labels(x: ArrayLike) -> jax.Array:
    """Labels as a floating-point array; ValueError for NaN, where it can be seen."""
    if is_concrete(x):
        checked("x", x, "a number (drop or impute missing labels first)", lambda a: ~np.isnan(a))
    return floating(x)


def increasing(name: str, value: Array, least: int) -> None:
    """ValueError unless a parameter, if concrete, is an increasing array of at least `least` finite numbers."""
    if not is_concrete(value):
        return
    if np.ndim(value) != 1 or len(value) < least:
        raise ValueError(f"{name} must be an array of at least {least} numbers, got shape {np.shape(value)}")
    wrong = np.flatnonzero(np.diff(value) <= 0)
    if len(wrong):
        i = wrong[0]
        raise ValueError(
            f"{name} must increase strictly, got {name}[{i}] = {value[i]:g} and {name}[{i + 1}] = {value[i + 1]:g}"
        )


class _OneOf(constraints.Constraint):
    """Some numbers, in ascending order."""

    is_discrete = True

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers

    def __call__(self, z: Array) -> Array:
        numbers = jnp.asarray(self.numbers)
        z = jnp.asarray(z)
        nearest = numbers[jnp.searchsorted((numbers[1:] + numbers[:-1]) / 2, z)]
        return (z == nearest) | (z == rounded(jnp, nearest, jnp.result_type(z, float)))

    def feasible_like(self, prototype: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.numbers)[0], jnp.shape(prototype))

    def tree_flatten(self) -> tuple:
        return (self.numbers,), (("numbers",), {})

    def eq(self, other: object, static: bool = False) -> Array:
        same = isinstance(other, _OneOf) and np.shape(self.numbers) == np.shape(other.numbers)
        return same and (np if static else jnp).all(self.numbers == other.numbers)  # type: ignore[attr-defined]
