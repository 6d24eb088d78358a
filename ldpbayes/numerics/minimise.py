"""Minimising a criterion over a compact space of parameters by damped Newton steps.

Corrected criteria need not be convex, so they need a compact space, and a method that leaves saddle points downhill and
says when it ends on the boundary. The quasi-Newton methods of libraries were tried first; see docs/benchmarks.md.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.checks import FINITE, ONE_POSITIVE
from ldpbayes._core.pytrees import checked_field, pytree
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Key

Derivatives = tuple[jax.Array, jax.Array, jax.Array]  # value, gradient (p,) and Hessian (p, p)

MAX_ITERATIONS = 100
TOLERANCE = 1e-6  # of the last step, against one that changes the criterion by its size; the step after is far shorter
SECULAR_STEPS = 12  # Newton steps for the Lagrange multiplier of a ball
EDGE = 1e-9  # share of the space's size: a parameter nearer than that to a bound is on the boundary


@pytree
@dataclasses.dataclass(frozen=True)
class Box:
    """Parameters between bounds: finite numbers, or arrays (p,), with lower < upper (else ValueError)."""

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            checked_field(self, name, *FINITE)
        if is_concrete(self) and np.any(np.greater_equal(self.lower, self.upper)):
            raise ValueError(f"lower must be below upper, got lower = {self.lower!r}, upper = {self.upper!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """(p,), or () if the bounds hold for every parameter."""
        return np.broadcast_shapes(np.shape(self.lower), np.shape(self.upper))

    def project(self, theta: jax.Array) -> jax.Array:
        """The nearest point of the box."""
        return jnp.clip(theta, jnp.asarray(self.lower, theta.dtype), jnp.asarray(self.upper, theta.dtype))

    def lowest(self, theta: jax.Array, gradient: jax.Array, hessian: jax.Array, damping: Array) -> jax.Array:
        """Minimum of a damped quadratic model, projected on the box; parameters pushed against a bound stay there."""
        at_lower, at_upper = theta <= jnp.asarray(self.lower), theta >= jnp.asarray(self.upper)
        free = ~((at_lower & (gradient > 0)) | (at_upper & (gradient < 0)))
        gradient = jnp.where(free, gradient, 0.0)
        # Scaled so that the Hessian's diagonal is one: the units of the parameters then do not matter.
        bend = jnp.abs(jnp.diagonal(hessian))
        unit = jnp.where(bend > 0, 1 / jnp.sqrt(jnp.where(bend > 0, bend, 1.0)), 1.0)
        hessian = jnp.where(free[:, None] & free, unit[:, None] * hessian * unit, jnp.eye(len(theta)))
        sizes, vectors = _downhill(hessian, damping)
        return self.project(theta - unit * (vectors @ ((vectors.T @ (unit * gradient)) / sizes)))

    def boundary(self, theta: jax.Array) -> jax.Array:
        """Which parameters are at a bound."""
        edge = EDGE * (jnp.asarray(self.upper) - jnp.asarray(self.lower))
        return (theta <= self.lower + edge) | (theta >= self.upper - edge)

    def sample(self, key: Key, shape: tuple[int, ...], size: int, dtype: jnp.dtype) -> jax.Array:
        """Uniform points, shape (*shape, size)."""
        lower, upper = (jnp.broadcast_to(jnp.asarray(b, dtype), (size,)) for b in (self.lower, self.upper))
        return lower + (upper - lower) * jax.random.uniform(key, (*shape, size), dtype)


@pytree
@dataclasses.dataclass(frozen=True)
class Ball:
    """Parameters within a radius, positive and finite, of a centre: a finite number, or an array (p,)."""

    centre: Array
    radius: Array

    def __post_init__(self) -> None:
        checked_field(self, "centre", *FINITE)
        checked_field(self, "radius", *ONE_POSITIVE)

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.centre)

    def project(self, theta: jax.Array) -> jax.Array:
        away = theta - jnp.asarray(self.centre, theta.dtype)
        square = jnp.sum(away**2)
        out = square > self.radius**2
        return jnp.where(out, self.centre + away * (self.radius / jnp.sqrt(jnp.where(out, square, 1.0))), theta)

    def lowest(self, theta: jax.Array, gradient: jax.Array, hessian: jax.Array, damping: Array) -> jax.Array:
        """Minimum of a damped quadratic model in the ball: a trust-region step whose region is the ball.

        On the sphere the Hessian is increased by a multiple of the identity, the root of the secular equation.
        """
        centre = jnp.asarray(self.centre, theta.dtype)
        sizes, vectors = _downhill(hessian, damping)
        target = vectors.T @ (theta - centre) * sizes - vectors.T @ gradient

        def length(shift: Array) -> jax.Array:
            return jnp.sqrt(jnp.sum((target / (sizes + shift)) ** 2))

        def newton_step(shift: jax.Array, _: None) -> tuple[jax.Array, None]:
            # Newton's method on 1/length, which is nearly linear; it increases to the root ([MS])
            there = length(shift)
            slope = jnp.sum(target**2 / (sizes + shift) ** 3) / there
            return jnp.maximum(shift + (there / self.radius - 1) * there / slope, 0.0), None

        outside = length(0.0) > self.radius
        shift, _ = jax.lax.scan(newton_step, jnp.zeros((), theta.dtype), None, length=SECULAR_STEPS)
        return self.project(centre + vectors @ (target / (sizes + jnp.where(outside, shift, 0.0))))

    def boundary(self, theta: jax.Array) -> jax.Array:
        """Whether the point is on the sphere, once for each parameter."""
        away = jnp.sqrt(jnp.sum((theta - jnp.asarray(self.centre, theta.dtype)) ** 2))
        return jnp.broadcast_to(away >= self.radius * (1 - EDGE), theta.shape)

    def sample(self, key: Key, shape: tuple[int, ...], size: int, dtype: jnp.dtype) -> jax.Array:
        keys = jax.random.split(key)
        direction = jax.random.normal(keys[0], (*shape, size), dtype)
        direction /= jnp.linalg.norm(direction, axis=-1, keepdims=True)
        return self.centre + self.radius * jax.random.uniform(keys[1], (*shape, 1), dtype) ** (1 / size) * direction


def _downhill(hessian: jax.Array, damping: Array) -> tuple[jax.Array, jax.Array]:
    """Damped absolute eigenvalues and eigenvectors: steps then lead downhill from a saddle point too."""
    values, vectors = jnp.linalg.eigh(hessian)
    sizes = jnp.abs(values)
    sizes = jnp.maximum(sizes, 1e-10 * jnp.max(sizes) + jnp.finfo(sizes.dtype).tiny)
    return sizes + damping * jnp.max(sizes), vectors


class Minimum(NamedTuple):
    """Where a minimisation ended: the parameter (p,), the criterion and its Hessian there."""

    theta: Array
    value: Array
    hessian: Array
    converged: Array
    iterations: Array


def minimise(
    derivatives: Callable[[jax.Array], Derivatives],
    start: jax.Array,
    space: Box | Ball,
    tolerance: Array = TOLERANCE,
    units: Array = None,
) -> Minimum:
    """Minimise a twice differentiable function by damped Newton steps inside the space; traceable.

    A step uses the absolute values of the Hessian's eigenvalues and is damped until the criterion decreases. The
    minimisation ends when a step changes the criterion by less than `tolerance` squared of its size. With `units` (p,)
    of the parameters, it ends when the last step is shorter than `tolerance` of them, and no step is longer than a unit
    unless the Hessian says so: for criteria whose curvature is only seen from nearby and known with an error.
    """

    def hessian_for_unit_steps(slope: jax.Array, hessian: jax.Array) -> jax.Array:
        if units is None:
            return hessian
        lacking = jnp.abs(slope) / units - jnp.diagonal(hessian)
        return hessian + jnp.diag(jnp.maximum(lacking, 0.0))

    def short(step: jax.Array, value: jax.Array, slope: jax.Array, hessian: jax.Array) -> jax.Array:
        if units is not None:
            return jnp.max(jnp.abs(step) / units) <= tolerance
        change = jnp.abs(slope @ step) + jnp.abs(step @ hessian @ step)
        return change <= tolerance**2 * (jnp.abs(value) + rounding)

    def body(state: tuple) -> tuple:
        theta, value, slope, hessian, damping, iterations, _ = state
        ahead = space.lowest(theta, slope, hessian_for_unit_steps(slope, hessian), damping)
        there = derivatives(ahead)
        better = there[0] <= value + 8 * (rounding + jnp.finfo(value.dtype).eps * jnp.abs(value))
        damping = jnp.where(better, jnp.where(damping > 1e-6, damping / 10, 0.0), jnp.maximum(10 * damping, 1e-3))
        # A short step does not mean convergence if damping made it short.
        stuck = damping > 1e8
        done = short(ahead - theta, value, slope, hessian) & (better | stuck) & ((damping < 1) | stuck)
        pairs = zip((ahead, *there), (theta, value, slope, hessian), strict=True)
        return (*(jnp.where(better, new, old) for new, old in pairs), damping, iterations + 1, done)

    def unfinished(state: tuple) -> jax.Array:
        return ~state[-1] & (state[-2] < MAX_ITERATIONS)

    start = space.project(start)
    first = derivatives(start)
    rounding = jnp.finfo(first[0].dtype).eps * jnp.abs(first[0])
    state = (start, *first, jnp.zeros((), start.dtype), jnp.zeros((), int), jnp.zeros((), bool))
    theta, value, _, hessian, _, iterations, done = jax.lax.while_loop(unfinished, body, state)
    return Minimum(theta, value, hessian, done & jnp.isfinite(value), iterations)
