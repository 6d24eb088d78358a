"""Damped Newton methods for criteria that need not be convex: in a bounded space, in NumPy, for shares. Roots."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from ldpbayes._core.checks import FINITE, ONE_POSITIVE, check_order
from ldpbayes._core.pytrees import check_fields, pytree_dataclass, ruled
from ldpbayes._core.types import Array, ArrayModule, Key

MAX_NEWTON_STEPS = 100
MAX_DAMPING = 1e8  # above it no step will decrease the criterion any more
STEP_TOLERANCE = 1e-6  # of the last step, over one that changes the criterion by its size; the next is far shorter
SECULAR_STEPS = 12  # Newton steps for the Lagrange multiplier of a ball
EDGE_SHARE = 1e-9  # share of the space's size: a parameter nearer than that to a bound is on the boundary
FLAT_CURVATURE = 1e-10  # share of the largest curvature: a smaller one counts as none
HOST_ROUNDING = 1e-12  # share of a criterion on the host, a sum over many records, that is lost in rounding
HOST_NATS = 1e-8  # that a last step on the host promises: the estimate is then off by 1e-4 of its standard errors


class Derivatives(NamedTuple):
    value: Array
    gradient: Array  # (p,)
    hessian: Array  # (p, p)


def value_gradient_hessian(function: Callable, theta: jax.Array) -> Derivatives:

    def gradient(at: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, slope = jax.value_and_grad(function)(at)
        return slope, (value, slope)

    hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(theta)
    return Derivatives(value, slope, hessian)


@pytree_dataclass
class Box:
    """A box, in which `ldpbayes.m_estimate` searches: each parameter is between ``lower`` and ``upper``.

    Parameters
    ----------
    lower, upper : array_like
        Ends, lower < upper, finite: one for all parameters, or one for each, (p,).
    """

    lower: Array = ruled(FINITE)
    upper: Array = ruled(FINITE)
    shape = property(lambda self: np.broadcast_shapes(np.shape(self.lower), np.shape(self.upper)))  # (p,) or ()

    def __post_init__(self) -> None:
        check_fields(self)
        check_order(self.lower, self.upper)

    def project(self, theta: jax.Array) -> jax.Array:
        """Return the point of the box that is nearest to `theta`."""
        return jnp.clip(theta, jnp.asarray(self.lower, theta.dtype), jnp.asarray(self.upper, theta.dtype))

    def lowest(self, theta: jax.Array, gradient: jax.Array, hessian: jax.Array, damping: Array) -> jax.Array:
        """Return the point of the box where a damped quadratic model, by derivatives at `theta`, is smallest."""
        at_lower, at_upper = theta <= jnp.asarray(self.lower), theta >= jnp.asarray(self.upper)
        free = ~((at_lower & (gradient > 0)) | (at_upper & (gradient < 0)))
        hessian = jnp.where(free[:, None] & free, hessian, jnp.eye(len(theta)))
        return self.project(theta - _newton_step(jnp.where(free, gradient, 0.0), hessian, damping))

    def boundary(self, theta: jax.Array) -> jax.Array:
        """Return for each parameter in `theta` (p,) whether it is at a bound."""
        edge = EDGE_SHARE * (jnp.asarray(self.upper) - jnp.asarray(self.lower))
        return (theta <= self.lower + edge) | (theta >= self.upper - edge)

    def sample(self, key: Key, shape: tuple[int, ...], size: int, dtype: jnp.dtype) -> jax.Array:
        """Return uniform random points (*shape, size) of the box, for `size` parameters."""
        lower, upper = jnp.asarray(self.lower, dtype), jnp.asarray(self.upper, dtype)
        return lower + (upper - lower) * jax.random.uniform(key, (*shape, size), dtype)


@pytree_dataclass
class Ball:
    """A ball, in which `ldpbayes.m_estimate` searches: parameters within ``radius`` from ``centre``.

    Parameters
    ----------
    centre : array_like
        Centre, finite: one number for all parameters, or one for each, (p,).
    radius : float
        Radius in the Euclidean norm, positive and finite.
    """

    centre: Array = ruled(FINITE)
    radius: Array = ruled(ONE_POSITIVE)
    shape = property(lambda self: np.shape(self.centre))

    def __post_init__(self) -> None:
        check_fields(self)

    def project(self, theta: jax.Array) -> jax.Array:
        away = theta - jnp.asarray(self.centre, theta.dtype)
        square = jnp.sum(away**2)
        out = square > self.radius**2
        return jnp.where(out, self.centre + away * (self.radius / jnp.sqrt(jnp.where(out, square, 1.0))), theta)

    def lowest(self, theta: jax.Array, gradient: jax.Array, hessian: jax.Array, damping: Array) -> jax.Array:
        """Return the point of the ball where the model of `Box.lowest` is smallest: a trust-region step ([MS])."""
        centre = jnp.asarray(self.centre, theta.dtype)
        sizes, vectors = _downhill(hessian, damping)
        target = vectors.T @ (theta - centre) * sizes - vectors.T @ gradient

        def length(shift: Array) -> jax.Array:
            return jnp.sqrt(jnp.sum((target / (sizes + shift)) ** 2))

        def newton_step(shift: jax.Array, _: None) -> tuple[jax.Array, None]:
            # Newton's method on 1/length, which is nearly linear; the shift increases to the root
            there = length(shift)
            slope = jnp.sum(target**2 / (sizes + shift) ** 3) / there
            return jnp.maximum(shift + (there / self.radius - 1) * there / slope, 0.0), None

        outside = length(0.0) > self.radius
        shift, _ = jax.lax.scan(newton_step, jnp.zeros((), theta.dtype), None, length=SECULAR_STEPS)
        return self.project(centre + vectors @ (target / (sizes + jnp.where(outside, shift, 0.0))))

    def boundary(self, theta: jax.Array) -> jax.Array:
        """Return (p,) whether `theta` is on the surface of the ball."""
        away = jnp.sqrt(jnp.sum((theta - jnp.asarray(self.centre, theta.dtype)) ** 2))
        return jnp.broadcast_to(away >= self.radius * (1 - EDGE_SHARE), theta.shape)

    def sample(self, key: Key, shape: tuple[int, ...], size: int, dtype: jnp.dtype) -> jax.Array:
        keys = jax.random.split(key)
        direction = jax.random.normal(keys[0], (*shape, size), dtype)
        direction /= jnp.linalg.norm(direction, axis=-1, keepdims=True)
        return self.centre + self.radius * jax.random.uniform(keys[1], (*shape, 1), dtype) ** (1 / size) * direction


def _newton_step(gradient: Array, hessian: Array, damping: Array, xp: ArrayModule = jnp) -> Array:
    """Parameters (p,) less the minimum of a damped quadratic model, found in units that make its diagonal one."""
    bend = xp.abs(xp.diagonal(hessian))
    unit = xp.where(bend > 0, 1 / xp.sqrt(xp.where(bend > 0, bend, 1.0)), 1.0)
    sizes, vectors = _downhill(unit[:, None] * hessian * unit, damping, xp)
    return unit * (vectors @ ((vectors.T @ (unit * gradient)) / sizes))


def _downhill(hessian: Array, damping: Array, xp: ArrayModule = jnp) -> tuple[Array, Array]:
    """Damped absolute eigenvalues and eigenvectors: steps then lead downhill from a saddle point too."""
    values, vectors = xp.linalg.eigh(hessian)
    sizes = xp.abs(values)
    sizes = xp.maximum(sizes, FLAT_CURVATURE * xp.max(sizes) + xp.finfo(sizes.dtype).tiny)
    return sizes + damping * xp.max(sizes), vectors


def _next_damping(damping: Array, better: Array, xp: ArrayModule = jnp) -> Array:
    """Less damping after a step that did not increase the criterion, more after one that did."""
    return xp.where(better, xp.where(damping > 1e-6, damping / 10, 0.0), xp.maximum(10 * damping, 1e-3))


class Minimum(NamedTuple):
    theta: Array  # (p,)
    at: Any  # the criterion's derivatives there
    converged: Array
    iterations: Array


def minimise(
    derivatives: Callable[[jax.Array], Derivatives],
    start: jax.Array,
    space: Box | Ball,
    tolerance: Array = STEP_TOLERANCE,
    units: Array = None,
) -> Minimum:
    """Minimise a function by damped Newton steps inside `space`, until a step changes it by less than `tolerance`² of
    its size; with `units` (p,), until a step is shorter than `tolerance` units, and at most a unit long unless the
    Hessian justifies it. JAX may trace this function.
    """

    def body(state: tuple) -> tuple:
        theta, at, damping, iterations, _ = state
        hessian = at.hessian
        if units is not None:
            lacking = jnp.abs(at.gradient) / units - jnp.diagonal(hessian)
            hessian = hessian + jnp.diag(jnp.maximum(lacking, 0.0))
        ahead = space.lowest(theta, at.gradient, hessian, damping)
        step = ahead - theta
        if units is None:
            change = jnp.abs(at.gradient @ step) + jnp.abs(step @ hessian @ step)
            short = change <= tolerance**2 * (jnp.abs(at.value) + rounding)
        else:
            short = jnp.max(jnp.abs(step) / units) <= tolerance
        there = derivatives(ahead)
        better = there.value <= at.value + 8 * (rounding + jnp.finfo(at.value.dtype).eps * jnp.abs(at.value))
        damping = _next_damping(damping, better)
        # A short step does not mean convergence if damping made it short.
        done = short & ((better & (damping < 1)) | (damping > MAX_DAMPING))
        theta, at = jax.tree.map(lambda new, old: jnp.where(better, new, old), (ahead, there), (theta, at))
        return theta, at, damping, iterations + 1, done

    start = space.project(start)
    first = derivatives(start)
    rounding = jnp.finfo(first.value.dtype).eps * jnp.abs(first.value)
    state = (start, first, jnp.zeros((), start.dtype), jnp.zeros((), int), jnp.zeros((), bool))
    theta, at, _, iterations, done = jax.lax.while_loop(lambda s: ~s[-1] & (s[-2] < MAX_NEWTON_STEPS), body, state)
    return Minimum(theta, at, done & jnp.isfinite(at.value), iterations)


def minimise_on_host(criterion: Callable[[np.ndarray], Any], start: np.ndarray, nats: float = HOST_NATS) -> Minimum:
    """Damped Newton steps in NumPy from a `start` where it is finite, until one promises less than `nats`."""
    theta, at, damping = np.array(start, float), criterion(start), 0.0  # `at`: `Derivatives`, or alike
    for steps in range(MAX_NEWTON_STEPS):
        step = _newton_step(at.gradient, at.hessian, 0.0, np)
        promised = 0.5 * float(at.gradient @ step)  # decrease by a step without damping
        rounding = HOST_ROUNDING * abs(at.value)
        if steps and promised <= nats + rounding:
            return Minimum(theta, at, bool(np.isfinite(at.value)), steps)
        ahead = theta - (_newton_step(at.gradient, at.hessian, damping, np) if damping else step)
        there = criterion(ahead)
        better = there.value <= at.value + rounding  # false for NaN
        theta, at = (ahead, there) if better else (theta, at)
        damping = _next_damping(damping, better, np)
        if damping > MAX_DAMPING:
            return Minimum(theta, at, promised <= 1e3 * (nats + rounding), steps)
    return Minimum(theta, at, False, MAX_NEWTON_STEPS)


def nearest_probabilities(shares: Array, xp: ArrayModule = jnp) -> Array:
    """Probabilities (k,) that are nearest to the numbers `shares` (k,) ([WC] Algorithm 1)."""
    falling = xp.sort(shares)[::-1]
    excess = (xp.cumsum(falling) - 1) / xp.arange(1, len(shares) + 1)
    probs = xp.maximum(shares - excess[xp.sum(falling > excess) - 1], 0.0)
    return probs / xp.sum(probs)


Likelihood = tuple[float, np.ndarray]  # mean log-likelihood of shares and its gradient (k,)


class LikeliestShares(NamedTuple):
    theta: np.ndarray  # (k,)
    gap: float  # nats that the log-likelihood may be below its maximum
    iterations: int


def likeliest_shares(
    likelihood: Callable[[np.ndarray], Likelihood],
    information: Callable[[np.ndarray], np.ndarray] | None,
    categories: int,
    count: float,
    tolerance: float,
    max_iterations: int,
) -> LikeliestShares:
    """Maximum-likelihood shares θ of mixture components, at most `tolerance` nats below the maximum. With the gradient
    g, g_k the mean of p(z_i | k)/p(z_i | θ) over `count` records, it is at most count (max g_k − 1) below ([Lindsay]).
    `information` is minus the second derivative (k, k); None omits Newton steps.
    """
    slack = 0.1 * tolerance / count  # rounding error of the mean log-likelihood that a step may cost

    def squarem(theta: np.ndarray, mean: float, gradient: np.ndarray) -> tuple[np.ndarray, Likelihood]:
        """Two EM steps, extrapolated if that does not make the log-likelihood smaller ([VR], scheme S3)."""
        first = theta * gradient
        second = first * likelihood(first)[1]
        step = first - theta
        bend = second - first - step
        if np.linalg.norm(step) > np.linalg.norm(bend) > 0:
            length = np.linalg.norm(step) / np.linalg.norm(bend)
            ahead = theta + 2 * length * step + length**2 * bend
            ahead = np.where(ahead > 0, ahead, second)
            ahead /= ahead.sum()
            there = likelihood(ahead)
            if there[0] >= mean - slack:
                return ahead, there
        second /= second.sum()
        return second, likelihood(second)

    def newton(theta: np.ndarray, mean: float, gradient: np.ndarray, bend: np.ndarray) -> tuple[np.ndarray, Likelihood]:
        """A step to a quadratic model's maximum over θ ≥ 0, halved while the log-likelihood decreases ([KCSA])."""
        # the model is of the mean log-likelihood − Σθ, whose maximum sums to one
        diagonal = np.diag(bend)
        damped = bend + np.diag(np.where(diagonal > 0, 1e-10 * diagonal, 1.0))
        root = scipy.linalg.cholesky(damped, lower=True)
        aim = scipy.linalg.solve_triangular(root, damped @ theta + gradient - 1, lower=True)
        target, _ = scipy.optimize.nnls(root.T, aim, maxiter=10 * len(theta))
        if target.any():
            target /= target.sum()
            for fraction in 0.5 ** np.arange(10):
                ahead = theta + fraction * (target - theta)
                there = likelihood(ahead)
                if there[0] >= mean - slack:
                    return ahead, there
        return theta, (mean, gradient)

    theta = np.full(categories, 1 / categories)
    at = likelihood(theta)
    gap, iterations = math.inf, 0
    while gap > tolerance and iterations < max_iterations:
        theta, at = squarem(theta, *at)
        if information is not None:
            theta, at = newton(theta, *at, information(theta))
        gap, iterations = max(count * (float(at[1].max()) - 1), 0.0), iterations + 1
    return LikeliestShares(theta, gap, iterations)


def find_root(function: Callable, target: Array, bracket: tuple[Array, Array], *arguments: Array) -> Any:
    """SciPy's report on the solution x of function(x, *arguments) = target between the ends of a bracket."""
    from scipy.optimize import elementwise  # takes a fifth of a second to import

    return elementwise.find_root(lambda x, y, *rest: function(x, *rest) - y, bracket, args=(target, *arguments))
