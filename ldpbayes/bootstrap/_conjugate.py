"""Conjugate laws of one parameter between two ends: their log densities, and draws by inversion of a table."""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from ldpbayes.bootstrap.families import Bernoulli, Binomial, Exponential, Family, GammaRate, GaussianMean, Poisson

__all__ = ["CONJUGATES", "Conjugate", "draw"]

Pair = tuple[Any, Any]

CELLS = 64  # of the table, half of them on either side of the mode
DEPTH = 40.0  # of the log density below its largest value, where the table ends: less than a double's last digit
NEWTON = 30  # steps down to that depth; any number leaves the table wide enough
HALVINGS = 36  # of a cell


class Conjugate(abc.ABC):
    """The conjugate law of a family's parameter, in a coordinate u in which its log density is concave.

    A law is a pair of numbers. Log densities are relative to a point, which they are computed from without the
    cancellation that large counts would bring.
    """

    parameter: ClassVar[str]
    """NumPyro's name of it."""
    prior: ClassVar[tuple[str, str]]
    """What the pair is called."""
    uniform: ClassVar[tuple[float, float]]
    """The pair of the uniform law."""
    inside: ClassVar[str]
    """Where the parameter may be, in words."""

    @abc.abstractmethod
    def allowed(self, theta: np.ndarray) -> Any:
        """Whether the natural parameter is finite.

        Parameters
        ----------
        theta : array
            Where.
        """

    def valid(self, pair: np.ndarray) -> Any:
        """Whether numbers are those of a prior; here the second may be 0, that of a uniform law.

        Parameters
        ----------
        pair : array (2,)
            The numbers.
        """
        return np.array([pair[0] > 0, pair[1] >= 0]) & np.isfinite(pair)

    @abc.abstractmethod
    def natural(self, theta: Any, family: Any) -> Any:
        """The natural parameter η of a family, whose log density is η(θ) x − A(θ) + log h(x).

        Parameters
        ----------
        theta : array
            The parameter.
        family : Family
            With what is known of it.
        """

    @abc.abstractmethod
    def updated(self, pair: Pair, weight: Any, total: Any, count: Any, family: Any) -> Pair:
        """The law after records, each of whose log likelihoods has a weight.

        Parameters
        ----------
        pair : tuple of two arrays ()
            The law before.
        weight : array ()
            The weight.
        total, count : array ()
            Sum and number of the records.
        family : Family
            Theirs.
        """

    @abc.abstractmethod
    def forward(self, theta: Any) -> jax.Array:
        """The coordinate u of a parameter; increasing.

        Parameters
        ----------
        theta : array
            The parameter.
        """

    @abc.abstractmethod
    def backward(self, u: Any) -> jax.Array:
        """The parameter at a coordinate.

        Parameters
        ----------
        u : array
            The coordinate.
        """

    @abc.abstractmethod
    def mode(self, pair: Pair) -> jax.Array:
        """Where the density of u is largest, possibly at infinity.

        Parameters
        ----------
        pair : tuple of two arrays ()
            The law.
        """

    @abc.abstractmethod
    def excess(self, pair: Pair, at: Any, step: Any) -> jax.Array:
        """Minus the log density of u = at + step, relative to that of u = at.

        Parameters
        ----------
        pair : tuple of two arrays ()
            The law.
        at, step : array
            Where.
        """


class _OfProbability(Conjugate):
    """Beta law of a probability; u is its logit."""

    parameter, prior, uniform = "probs", ("concentration1", "concentration0"), (1.0, 1.0)
    inside = "between 0 and 1, exclusive"

    def allowed(self, theta: np.ndarray) -> Any:
        return (theta > 0) & (theta < 1)

    def valid(self, pair: np.ndarray) -> Any:
        return (pair > 0) & np.isfinite(pair)

    def natural(self, theta: Any, family: Any) -> Any:
        return special.logit(theta)

    def updated(self, pair: Pair, weight: Any, total: Any, count: Any, family: Any) -> Pair:
        return pair[0] + weight * total, pair[1] + weight * (count * family.trials - total)

    def forward(self, theta: Any) -> jax.Array:
        return special.logit(theta)

    def backward(self, u: Any) -> jax.Array:
        return special.expit(u)

    def mode(self, pair: Pair) -> jax.Array:
        return jnp.log(pair[0]) - jnp.log(pair[1])

    def excess(self, pair: Pair, at: Any, step: Any) -> jax.Array:
        up, down = special.expit(at) * jnp.expm1(step), special.expit(-at) * jnp.expm1(-step)
        return pair[0] * jnp.log1p(down) + pair[1] * jnp.log1p(up)


class _OfRate(Conjugate):
    """Gamma law of a rate; u is its logarithm."""

    parameter, prior, uniform = "rate", ("concentration", "rate"), (1.0, 0.0)
    inside = "a positive and finite number"

    def allowed(self, theta: np.ndarray) -> Any:
        return (theta > 0) & (theta < np.inf)

    def forward(self, theta: Any) -> jax.Array:
        return jnp.log(theta)

    def backward(self, u: Any) -> jax.Array:
        return jnp.exp(u)

    def mode(self, pair: Pair) -> jax.Array:
        return jnp.log(pair[0]) - jnp.log(pair[1])

    def excess(self, pair: Pair, at: Any, step: Any) -> jax.Array:
        return pair[1] * jnp.exp(at) * jnp.expm1(step) - pair[0] * step


class _OfPoissonRate(_OfRate):
    def natural(self, theta: Any, family: Any) -> Any:
        return jnp.log(theta)

    def updated(self, pair: Pair, weight: Any, total: Any, count: Any, family: Any) -> Pair:
        return pair[0] + weight * total, pair[1] + weight * count


class _OfGammaRate(_OfRate):
    def natural(self, theta: Any, family: Any) -> Any:
        return -jnp.asarray(theta)

    def updated(self, pair: Pair, weight: Any, total: Any, count: Any, family: Any) -> Pair:
        shape = getattr(family, "concentration", 1.0)
        return pair[0] + weight * count * shape, pair[1] + weight * total


class _OfMean(Conjugate):
    """Normal law of a mean; u is the mean itself."""

    parameter, prior, uniform = "loc", ("loc", "precision"), (0.0, 0.0)
    inside = "a finite number"

    def allowed(self, theta: np.ndarray) -> Any:
        return np.isfinite(theta)

    def valid(self, pair: np.ndarray) -> Any:
        return np.array([True, pair[1] >= 0]) & np.isfinite(pair)

    def natural(self, theta: Any, family: Any) -> Any:
        return theta / family.scale**2

    def updated(self, pair: Pair, weight: Any, total: Any, count: Any, family: Any) -> Pair:
        gained = weight / family.scale**2
        precision = pair[1] + gained * count
        return (pair[0] * pair[1] + gained * total) / precision, precision

    def forward(self, theta: Any) -> jax.Array:
        return jnp.asarray(theta)

    def backward(self, u: Any) -> jax.Array:
        return jnp.asarray(u)

    def mode(self, pair: Pair) -> jax.Array:
        return jnp.asarray(pair[0])

    def excess(self, pair: Pair, at: Any, step: Any) -> jax.Array:
        return pair[1] * step * (at - pair[0] + step / 2)


CONJUGATES: dict[type[Family], Conjugate] = {
    Bernoulli: _OfProbability(),
    Binomial: _OfProbability(),
    Exponential: _OfGammaRate(),
    GammaRate: _OfGammaRate(),
    GaussianMean: _OfMean(),
    Poisson: _OfPoissonRate(),
}
"""The conjugate law of each family that has one of one parameter."""


def draw(key: Any, law: Conjugate, pair: Pair, lower: Any, upper: Any) -> jax.Array:
    """A draw from a conjugate law between two ends; traceable.

    The density is tabulated on both sides of its largest value, as far as it is not below exp(−40) of that, at places
    s² of the way for equidistant s; in s it is taken to be quadratic in each cell. Its cumulative distribution differs
    from the law's by less than 4e-5 in double precision; the draw is continuous in the law's numbers.

    Parameters
    ----------
    key : jax.Array
        A JAX random key.
    law : Conjugate
        Which law.
    pair : tuple of two arrays ()
        Its numbers.
    lower, upper : array ()
        The ends, of the parameter.
    """
    low, high = law.forward(jnp.asarray(lower, float)), law.forward(jnp.asarray(upper, float))
    mode = jnp.clip(law.mode(pair), low, high)

    def excess(step: jax.Array) -> jax.Array:
        return law.excess(pair, mode, step)

    def reach(edge: jax.Array) -> jax.Array:
        def nearer(_: int, step: jax.Array) -> jax.Array:
            # the excess is convex, so that Newton's steps from outside stay outside
            depth, slope = jax.jvp(excess, (step,), (jnp.ones_like(step),))
            return jnp.where(depth > DEPTH, step - (depth - DEPTH) / jnp.where(depth > DEPTH, slope, 1.0), step)

        return lax.fori_loop(0, NEWTON, nearer, edge)

    left, right = reach(low - mode), reach(high - mode)
    s = np.linspace(-1.0, 1.0, 2 * CELLS + 1)
    steps = jnp.where(s < 0, left, right) * s**2
    density = jnp.exp(-excess(steps)) * jnp.where(s < 0, -left, right) * np.abs(s)
    start, middle, end = density[:-1:2], density[1::2], density[2::2]
    below = jnp.cumsum((start + 4 * middle + end) / 6)
    wanted = jax.random.uniform(key, (), below.dtype) * below[-1]
    cell = jnp.minimum(jnp.sum(below <= wanted), CELLS - 1)
    a, b, c = (part[cell] for part in (start, middle, end))
    rest = wanted - jnp.where(cell > 0, below[cell - 1], 0.0)

    def halved(_: int, span: Pair) -> Pair:
        near, far = span
        t = (near + far) / 2
        mass = t * (a + t * ((4 * b - 3 * a - c) / 2 + t * (2 * a - 4 * b + 2 * c) / 3))
        return jnp.where(mass < rest, t, near), jnp.where(mass < rest, far, t)

    near, far = lax.fori_loop(0, HALVINGS, halved, (jnp.zeros_like(rest), jnp.ones_like(rest)))
    place = (cell + (near + far) / 2) * (2 / CELLS) - 1
    step = jnp.where(place < 0, left, right) * place**2
    return jnp.clip(law.backward(mode + step), lower, upper)
