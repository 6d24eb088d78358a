"""Minimising a criterion over a compact space of parameters: damped Newton steps, the same code alone and vmapped.

Corrected criteria need not be convex, so they need a compact space, and a method that leaves saddle points downhill and
says when it ends on the boundary. The quasi-Newton methods of libraries were tried first; see docs/benchmarks.md.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._core.pytrees import checked_field, pytree
from ldpbayes._core.tracing import is_concrete
from ldpbayes.estimation.losses._loss import Derivatives

MAX_ITERATIONS = 100
TOLERANCE = 1e-6  # of the last step, against one that changes the criterion by its size; the step after is far shorter
SECULAR_STEPS = 12
EDGE = 1e-9  # of the space's size: nearer than that is on the boundary


@pytree
@dataclasses.dataclass(frozen=True)
class Box:
    """Parameters between a lower and an upper bound.

    Parameters
    ----------
    lower, upper : array_like
        Finite numbers, or arrays (p,).

    Raises
    ------
    ValueError
        If a bound is not finite, or the lower not below the upper.
    """

    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            checked_field(self, name, "finite", np.isfinite)
        if is_concrete(self) and np.any(np.greater_equal(self.lower, self.upper)):
            raise ValueError(f"lower must be below upper, got lower = {self.lower!r}, upper = {self.upper!r}")

    @property
    def shape(self) -> tuple[int, ...]:
        """(p,), or () where it is as wide for all parameters."""
        return np.broadcast_shapes(np.shape(self.lower), np.shape(self.upper))

    def project(self, theta: jax.Array) -> jax.Array:
        """The nearest point of the box."""
        return jnp.clip(theta, jnp.asarray(self.lower, theta.dtype), jnp.asarray(self.upper, theta.dtype))

    def lowest(self, theta: jax.Array, gradient: jax.Array, hessian: jax.Array, damping: Any) -> jax.Array:
        """Where a damped quadratic model is smallest: its free minimum, brought into the box.

        Parameters at a bound that the descent pushes against stay there.
        """
        at_lower, at_upper = theta <= jnp.asarray(self.lower), theta >= jnp.asarray(self.upper)
        free = ~((at_lower & (gradient > 0)) | (at_upper & (gradient < 0)))
        gradient = jnp.where(free, gradient, 0.0)
        # in units in which the Hessian's diagonal is one, so that the parameters' own do not matter
        bend = jnp.abs(jnp.diagonal(hessian))
        unit = jnp.where(bend > 0, 1 / jnp.sqrt(jnp.where(bend > 0, bend, 1.0)), 1.0)
        hessian = jnp.where(free[:, None] & free, unit[:, None] * hessian * unit, jnp.eye(len(theta)))
        sizes, vectors = _downhill(hessian, damping)
        return self.project(theta - unit * (vectors @ ((vectors.T @ (unit * gradient)) / sizes)))

    def boundary(self, theta: jax.Array) -> jax.Array:
        """Which parameters are at a bound."""
        edge = EDGE * (jnp.asarray(self.upper) - jnp.asarray(self.lower))
        return (theta <= self.lower + edge) | (theta >= self.upper - edge)

    def sample(self, key: Any, shape: tuple[int, ...], size: int, dtype: Any) -> jax.Array:
        """Uniform points, shape (*shape, size)."""
        lower, upper = (jnp.broadcast_to(jnp.asarray(b, dtype), (size,)) for b in (self.lower, self.upper))
        return lower + (upper - lower) * jax.random.uniform(key, (*shape, size), dtype)


@pytree
@dataclasses.dataclass(frozen=True)
class Ball:
    """Parameters within a radius of a centre.

    Parameters
    ----------
    centre : array_like
        A finite number, or an array (p,).
    radius : float
        Positive and finite.

    Raises
    ------
    ValueError
        If the radius is not positive and finite, or the centre not finite.
    """

    centre: Any
    radius: Any

    def __post_init__(self) -> None:
        checked_field(self, "centre", "finite", np.isfinite)
        allowed = "a positive and finite number"
        checked_field(self, "radius", allowed, lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))

    @property
    def shape(self) -> tuple[int, ...]:
        """(p,), or () where the centre is one number."""
        return np.shape(self.centre)

    def project(self, theta: jax.Array) -> jax.Array:
        """The nearest point of the ball."""
        away = theta - jnp.asarray(self.centre, theta.dtype)
        square = jnp.sum(away**2)
        out = square > self.radius**2
        return jnp.where(out, self.centre + away * (self.radius / jnp.sqrt(jnp.where(out, square, 1.0))), theta)

    def lowest(self, theta: jax.Array, gradient: jax.Array, hessian: jax.Array, damping: Any) -> jax.Array:
        """Where a damped quadratic model is smallest in the ball: a trust-region step whose region is the ball.

        On the sphere the Hessian is increased by a multiple of the identity, for which the secular equation is solved.
        """
        centre = jnp.asarray(self.centre, theta.dtype)
        sizes, vectors = _downhill(hessian, damping)
        target = vectors.T @ (theta - centre) * sizes - vectors.T @ gradient

        def length(more: Any) -> jax.Array:
            return jnp.sqrt(jnp.sum((target / (sizes + more)) ** 2))

        def towards(more: jax.Array, _: None) -> tuple[jax.Array, None]:
            # Newton's method on 1/length, which is nearly linear; it increases to the root ([MS])
            there = length(more)
            slope = jnp.sum(target**2 / (sizes + more) ** 3) / there
            return jnp.maximum(more + (there / self.radius - 1) * there / slope, 0.0), None

        outside = length(0.0) > self.radius
        more, _ = jax.lax.scan(towards, jnp.zeros((), theta.dtype), None, length=SECULAR_STEPS)
        return self.project(centre + vectors @ (target / (sizes + jnp.where(outside, more, 0.0))))

    def boundary(self, theta: jax.Array) -> jax.Array:
        """Whether the point is on the sphere, once for each parameter."""
        away = jnp.sqrt(jnp.sum((theta - jnp.asarray(self.centre, theta.dtype)) ** 2))
        return jnp.broadcast_to(away >= self.radius * (1 - EDGE), theta.shape)

    def sample(self, key: Any, shape: tuple[int, ...], size: int, dtype: Any) -> jax.Array:
        """Uniform points, shape (*shape, size)."""
        keys = jax.random.split(key)
        direction = jax.random.normal(keys[0], (*shape, size), dtype)
        direction /= jnp.linalg.norm(direction, axis=-1, keepdims=True)
        return self.centre + self.radius * jax.random.uniform(keys[1], (*shape, 1), dtype) ** (1 / size) * direction


def _downhill(hessian: jax.Array, damping: Any) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues, made positive and damped, and eigenvectors: so steps lead downhill from a saddle point too."""
    values, vectors = jnp.linalg.eigh(hessian)
    sizes = jnp.abs(values)
    sizes = jnp.maximum(sizes, 1e-10 * jnp.max(sizes) + jnp.finfo(sizes.dtype).tiny)
    return sizes + damping * jnp.max(sizes), vectors


class Minimum(NamedTuple):
    """Where a minimisation ended.

    Attributes
    ----------
    theta : array (p,)
        The parameter.
    value : array ()
        The criterion there.
    hessian : array (p, p)
        Its second derivatives.
    converged : array () of bool
        Whether the last step was short, and the criterion finite.
    iterations : array () of int
        How many steps were tried.
    """

    theta: Any
    value: Any
    hessian: Any
    converged: Any
    iterations: Any


def minimise(
    derivatives: Callable[[jax.Array], Derivatives],
    start: jax.Array,
    space: Box | Ball,
    max_iterations: int = MAX_ITERATIONS,
    tolerance: Any = TOLERANCE,
    units: Any = None,
) -> Minimum:
    """Minimise a twice differentiable function by damped Newton steps inside the space; traceable.

    A step uses the absolute values of the Hessian's eigenvalues, so that it leads downhill from a saddle point too.
    Steps are damped until the criterion decreases.

    Parameters
    ----------
    derivatives : callable
        From an array (p,) to the criterion, its gradient and its Hessian (or a positive definite stand-in).
    start : array (p,)
        Brought into the space, if it lies outside.
    space : Box or Ball
        The compact set of parameters.
    max_iterations : int
        After which it is given up.
    tolerance : float
        Of the last step, against `units`; without them its square is that of the change of the criterion that the last
        step stands for, against the criterion. The units of the parameters and of the criterion do not matter.
    units : array (p,), optional
        Of the parameters; no step is then longer than one of them but for what the Hessian says. For criteria whose
        curvature is only seen from nearby, and known up to an error that keeps a minimisation from settling.

    Returns
    -------
    Minimum
    """

    def held(slope: jax.Array, hessian: jax.Array) -> jax.Array:
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
        ahead = space.lowest(theta, slope, held(slope, hessian), damping)
        there = derivatives(ahead)
        better = there[0] <= value + 8 * (rounding + jnp.finfo(value.dtype).eps * jnp.abs(value))
        damping = jnp.where(better, jnp.where(damping > 1e-6, damping / 10, 0.0), jnp.maximum(10 * damping, 1e-3))
        # a short step that was damped says nothing
        done = (
            short(ahead - theta, value, slope, hessian) & (better | (damping > 1e8)) & ((damping < 1) | (damping > 1e8))
        )
        chosen = jax.tree.map(
            lambda new, old: jnp.where(better, new, old), (ahead, *there), (theta, value, slope, hessian)
        )
        return (*chosen, damping, iterations + 1, done)

    def unfinished(state: tuple) -> jax.Array:
        *_, iterations, done = state
        return ~done & (iterations < max_iterations)

    start = space.project(start)
    first = derivatives(start)
    rounding = jnp.finfo(first[0].dtype).eps * jnp.abs(first[0])
    state = (start, *first, jnp.zeros((), start.dtype), jnp.zeros((), int), jnp.zeros((), bool))
    theta, value, _, hessian, _, iterations, done = jax.lax.while_loop(unfinished, body, state)
    return Minimum(theta, value, hessian, done & jnp.isfinite(value), iterations)
