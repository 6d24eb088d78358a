"""Both tails of standard laws, each accurate however small it is, and integrals of the upper one."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special
from jax.typing import ArrayLike

from ldpbayes.numerics._special import student_t_cdf

__all__ = [
    "integrated_laplace_tail",
    "integrated_normal_tail",
    "integrated_student_t_tail",
    "laplace_tails",
    "logistic_tails",
    "normal_tails",
    "student_t_tails",
]

_SQRT_HALF = math.sqrt(0.5)
_INVERSE_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


def _sides(x: Any, smaller: jax.Array) -> jax.Array:
    """Lower and upper tail, shape (2, ...), from the smaller of them, of a law that is symmetric about 0."""
    larger = 1.0 - smaller
    return jnp.stack([jnp.where(x < 0, smaller, larger), jnp.where(x < 0, larger, smaller)])


@jax.custom_jvp
def normal_tails(x: ArrayLike) -> jax.Array:
    """Φ(x) and Φ(−x), shape (2, ...).

    Parameters
    ----------
    x : array_like
        Any numbers.
    """
    return _sides(x, 0.5 * special.erfc(jnp.abs(x) * _SQRT_HALF))


@normal_tails.defjvp
def _normal_tails_jvp(primals: tuple, tangents: tuple) -> tuple:
    (x,), (dx,) = primals, tangents
    slope = _normal_density(x) * dx
    return normal_tails(x), jnp.stack([slope, -slope])


def _normal_density(x: Any) -> jax.Array:
    return _INVERSE_SQRT_2PI * jnp.exp(-0.5 * x * x)


def laplace_tails(x: Any) -> jax.Array:
    """Tails of the Laplace law of scale 1, shape (2, ...).

    Parameters
    ----------
    x : array_like
        Any numbers.
    """
    # abs() would have no derivative at the centre
    return _sides(x, 0.5 * jnp.exp(jnp.where(x < 0, x, -x)))


def logistic_tails(x: Any) -> jax.Array:
    """Tails of the logistic law of scale 1, shape (2, ...).

    Parameters
    ----------
    x : array_like
        Any numbers.
    """
    return jnp.stack([jax.nn.sigmoid(x), jax.nn.sigmoid(-x)])


def student_t_tails(df: Any, x: Any) -> jax.Array:
    """Tails of Student's t, shape (2, ...).

    Parameters
    ----------
    df : array_like
        Degrees of freedom.
    x : array_like
        Any numbers.
    """
    return _sides(x, student_t_cdf(df, jnp.where(x < 0, x, -x)))


def _integrated(edges: Any, upper: Any, first_moments: Any) -> jax.Array:
    """∫ P(X > s) ds between neighbouring edges, by parts: the change of s P(X > s), and ∫ s f(s) ds."""
    products = edges * upper
    return products[1:] - products[:-1] + first_moments


def integrated_normal_tail(edges: Any) -> jax.Array:
    """∫ P(X > s) ds between neighbouring edges, X standard normal, shape (n − 1, ...).

    Parameters
    ----------
    edges : array (n, ...)
        Increasing.
    """
    density = _normal_density(edges)
    return _integrated(edges, normal_tails(edges)[1], density[:-1] - density[1:])


def integrated_laplace_tail(edges: Any) -> jax.Array:
    """∫ P(X > s) ds between neighbouring edges, X a Laplace variable of scale 1, shape (n − 1, ...).

    Parameters
    ----------
    edges : array (n, ...)
        Increasing.
    """
    far = jnp.where(edges < 0, -edges, edges)
    beyond = 0.5 * (1.0 + far) * jnp.exp(-far)  # ∫ s f(s) ds from there to infinity
    return _integrated(edges, laplace_tails(edges)[1], beyond[:-1] - beyond[1:])


def integrated_student_t_tail(df: Any, edges: Any) -> jax.Array:
    """∫ P(X > s) ds between neighbouring edges, X of Student's t law, shape (n − 1, ...).

    ∫ s f(s) ds from a to b is f(0) ν/2 · A^(−m) · L · (1 − exp(−m L))/(m L) with A = 1 + a²/ν, B = 1 + b²/ν,
    L = log(B/A) and m = (ν − 1)/2, which is regular at one degree of freedom, where there is no mean.

    Parameters
    ----------
    df : array_like
        Degrees of freedom ν.
    edges : array (n, ...)
        Increasing.
    """
    at_center = jnp.exp(special.gammaln(0.5 * (df + 1)) - special.gammaln(0.5 * df)) / jnp.sqrt(df * math.pi)
    logs = jnp.log1p(edges * edges / df)
    m, step = 0.5 * (df - 1), logs[1:] - logs[:-1]
    first = 0.5 * at_center * df * jnp.exp(-m * logs[:-1]) * step * _relative_expm1(-m * step)
    return _integrated(edges, student_t_tails(df, edges)[1], first)


def _relative_expm1(y: Any) -> jax.Array:
    """(exp(y) − 1)/y, regular at 0."""
    small = jnp.abs(y) < 1e-3
    series = jnp.where(small, y, 0.0)
    safe = jnp.where(small, 1.0, y)
    # the next term is below 1e-17 here
    return jnp.where(
        small, 1 + series * (1 / 2 + series * (1 / 6 + series * (1 / 24 + series / 120))), jnp.expm1(safe) / safe
    )
