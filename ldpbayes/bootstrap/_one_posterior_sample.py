"""A draw from a tempered posterior is itself the private estimate ([WFS], [DNMR], [ZRD]), for conjugate families."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from ldpbayes._core.checks import FINITE, INSIDE_0_1, ONE_POSITIVE, Rule, checked
from ldpbayes._core.pytrees import checked_field, pytree_dataclass, static
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.bootstrap._bootstrap import Estimated
from ldpbayes.bootstrap.statistics import FamilyEstimator
from ldpbayes.laws.counts import Bernoulli, Binomial, Poisson
from ldpbayes.laws.numbers import Exponential, GammaRate, NormalMean
from ldpbayes.laws.parametric import ParametricFamily, check_bounds
from ldpbayes.privacy import Guarantee, approximate_tradeoff

Pair = tuple[Array, Array]  # the two numbers of a conjugate law
DENSITY_CELLS = 64  # of the table of a density, half of them on either side of the mode
TABLE_DEPTH_NATS = 40.0  # below the largest log density, where the table ends: less than a double's last digit
DEPTH_NEWTON_STEPS = 30  # down to that depth; any number leaves the table wide enough
CELL_HALVINGS = 36  # of a cell


@dataclasses.dataclass(frozen=True, eq=False)
class Conjugate:
    """The conjugate law of a parameter by two numbers, log-concave in the coordinate u of NumPyro's bijection."""

    parameter: str
    allowed: Rule  # where the natural parameter is finite
    support: Constraint
    # the natural parameter η(θ) of a family, whose log density is η(θ) x − A(θ) + log h(x)
    natural: Callable[[Array, Any], Array]
    # the law after records with weighted log likelihoods, from (weight, sum, count, family); the prior is uniform
    posterior: Callable[[Array, Array, Array, Any], Pair]
    mode: Callable[[Pair], jax.Array]  # where the density of u is largest, possibly at infinity
    # minus the log density of u = at + step, relative to that of u = at, from (pair, at, step)
    excess: Callable[[Pair, Array, Array], jax.Array]


def _log_ratio(pair: Pair) -> jax.Array:
    return jnp.log(pair[0]) - jnp.log(pair[1])


def _beta_excess(pair: Pair, at: Array, step: Array) -> jax.Array:
    up, down = special.expit(at) * jnp.expm1(step), special.expit(-at) * jnp.expm1(-step)
    return pair[0] * jnp.log1p(down) + pair[1] * jnp.log1p(up)


BETA = Conjugate(
    parameter="probs",
    allowed=INSIDE_0_1,
    support=constraints.unit_interval,
    natural=lambda theta, family: special.logit(theta),
    posterior=lambda w, total, count, family: (1 + w * total, 1 + w * (count * family.trials - total)),
    mode=_log_ratio,
    excess=_beta_excess,
)
GAMMA = Conjugate(
    parameter="rate",
    allowed=ONE_POSITIVE,
    support=constraints.positive,
    natural=lambda theta, family: -jnp.asarray(theta),
    posterior=lambda w, total, count, family: (1 + w * count * family.concentration, w * total),
    mode=_log_ratio,
    excess=lambda pair, at, step: pair[1] * jnp.exp(at) * jnp.expm1(step) - pair[0] * step,
)
GAMMA_OF_POISSON = dataclasses.replace(
    GAMMA,
    natural=lambda theta, family: jnp.log(theta),
    posterior=lambda w, total, count, family: (1 + w * total, w * count),
)
NORMAL = Conjugate(
    parameter="loc",
    allowed=FINITE,
    support=constraints.real,
    natural=lambda theta, family: theta / family.scale**2,
    posterior=lambda w, total, count, family: (total / count, w * count / family.scale**2),
    mode=lambda pair: jnp.asarray(pair[0]),
    excess=lambda pair, at, step: pair[1] * step * (at - pair[0] + step / 2),
)
CONJUGATES: dict[Any, Conjugate] = {
    Bernoulli: BETA,
    Binomial: BETA,
    Exponential: GAMMA,
    GammaRate: GAMMA,
    NormalMean: NORMAL,
    Poisson: GAMMA_OF_POISSON,
}


@functools.partial(jax.jit, static_argnames="law")
def draw(key: Key, law: Conjugate, pair: Pair, lower: Array, upper: Array) -> jax.Array:
    """A draw of the parameter between two ends, continuous in the law's numbers, from a table of the density down to
    exp(−40) of its mode, at places s² of the way for equidistant s, quadratic in s between: the error is below 4e-5.
    """
    bijection = biject_to(law.support)
    low, high = bijection.inv(jnp.asarray(lower, float)), bijection.inv(jnp.asarray(upper, float))
    mode = jnp.clip(law.mode(pair), low, high)

    def excess(step: jax.Array) -> jax.Array:
        return law.excess(pair, mode, step)

    def reach(edge: jax.Array) -> jax.Array:
        def nearer(_: int, step: jax.Array) -> jax.Array:
            # the excess is convex, so that Newton's steps from outside stay outside
            depth, slope = jax.jvp(excess, (step,), (jnp.ones_like(step),))
            deeper = depth > TABLE_DEPTH_NATS
            return jnp.where(deeper, step - (depth - TABLE_DEPTH_NATS) / jnp.where(deeper, slope, 1.0), step)

        return lax.fori_loop(0, DEPTH_NEWTON_STEPS, nearer, edge)

    left, right = reach(low - mode), reach(high - mode)
    s = np.linspace(-1.0, 1.0, 2 * DENSITY_CELLS + 1)
    steps = jnp.where(s < 0, left, right) * s**2
    density = jnp.exp(-excess(steps)) * jnp.where(s < 0, -left, right) * np.abs(s)
    start, middle, end = density[:-1:2], density[1::2], density[2::2]
    below = jnp.cumsum((start + 4 * middle + end) / 6)
    mass_below = jax.random.uniform(key, (), below.dtype) * below[-1]
    cell = jnp.minimum(jnp.sum(below <= mass_below), DENSITY_CELLS - 1)
    a, b, c = (part[cell] for part in (start, middle, end))
    rest = mass_below - jnp.where(cell > 0, below[cell - 1], 0.0)

    def halve(_: int, span: Pair) -> Pair:
        near, far = span
        t = (near + far) / 2
        mass = t * (a + t * ((4 * b - 3 * a - c) / 2 + t * (2 * a - 4 * b + 2 * c) / 3))
        return jnp.where(mass < rest, t, near), jnp.where(mass < rest, far, t)

    near, far = lax.fori_loop(0, CELL_HALVINGS, halve, (jnp.zeros_like(rest), jnp.ones_like(rest)))
    place = (cell + (near + far) / 2) * (2 / DENSITY_CELLS) - 1
    step = jnp.where(place < 0, left, right) * place**2
    return jnp.clip(bijection(mode + step), lower, upper)


@pytree_dataclass
class OnePosteriorSampleEstimator(FamilyEstimator):
    """Private estimator that releases one draw from a posterior as the estimate ([WFS]), an exponential mechanism.

    The prior is uniform on the range from ``lower`` to ``upper`` of the only parameter θ. The log-likelihood is
    multiplied by a number ρ ≤ 1 (tempering), so that one draw satisfies the privacy budget. If ρ = 1, the draw uses
    less than the budget ε, and `privacy` states the smaller budget.

    Parameters
    ----------
    family : ParametricFamily
        `Bernoulli`, `Binomial`, `Poisson`, `Exponential`, `GammaRate` or `NormalMean`, with the bounds for records.
    count : int
        Public number n of records.
    epsilon : float
        Privacy budget ε in nats, for replacing one record.
    lower, upper : float
        The range of θ, chosen without looking at the data. With a narrower range, ρ is larger.

    Notes
    -----
    Let S be the sum of the n clamped records, η(θ) the natural parameter and A(θ) the log normaliser of the family. The
    draw has the density f(θ | S) ∝ exp(ρ (η(θ) S − n A(θ))) on the range of θ. Here ρ = min(1, ε/(w (max η − min η))),
    where w is the distance between the bounds of the records, and max and min are over the range of θ.

    Let S and S' be the sums of two data sets that differ in one record. Then log f(θ | S)/f(θ | S') = ρ η(θ) (S − S') −
    log ∫ f(θ' | S') exp(ρ η(θ') (S − S')) dθ', the second term between the smallest and the largest exponent. So its
    size is at most ρ |S − S'| (max η − min η) ≤ ρ w (max η − min η) ≤ ε. For large n, it can come close, so in general
    no larger ρ will do: all records are at one bound, and the expected record is between the bounds for every θ.
    """

    family: ParametricFamily
    _: dataclasses.KW_ONLY
    count: int = static()
    epsilon: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        if type(self.family) not in CONJUGATES:
            names = ", ".join(kind.__name__ for kind in CONJUGATES)
            raise ValueError(f"family must have a conjugate prior of one parameter: {names}; got {self.family!r}")
        super().__post_init__()
        checked_field(self, "epsilon", *ONE_POSITIVE)
        allowed, inside = self._law.allowed
        check_bounds(self, allowed, lambda a: (a.ndim == 0) & inside(a))

    _law = property(lambda self: CONJUGATES[type(self.family)])

    @property
    def _largest_ratio(self) -> Array:
        """The largest log ratio of two posteriors of neighbours, not tempered."""
        low, high = (self._law.natural(theta, self.family) for theta in (self.lower, self.upper))
        return self.family.sensitivity(1) * jnp.abs(high - low)

    temper = property(lambda self: jnp.minimum(1.0, self.epsilon / self._largest_ratio), doc="The number ρ ≤ 1.")

    def posterior(self, total: Array) -> Pair:
        """The two parameters of the tempered posterior, for the sum `total` of the clamped records."""
        return self._law.posterior(self.temper, total, self.count, self.family)

    def perturbed(self, key: Key, total: Array) -> jax.Array:
        return draw(key, self._law, self.posterior(total), self.lower, self.upper)

    def estimate(self, values: Array) -> Estimated:
        return Estimated({self._law.parameter: jnp.asarray(values)}, None, jnp.zeros((), bool))

    def nearest(self, target: Params) -> Params:
        return {name: jnp.clip(part, self.lower, self.upper) for name, part in target.items()}

    def constrained(self, vector: Array, like: Params) -> Params:
        return self.nearest(super().constrained(vector, like))

    def release_values(self, release: Array) -> jax.Array:
        allowed = f"a draw of {self._law.parameter} from {self.lower:g} to {self.upper:g}, as release() returns it"
        draw = checked("release", release, allowed, lambda a: (a.ndim == 0) & (a >= self.lower) & (a <= self.upper))
        return jnp.asarray(draw)

    @property
    def guarantee(self) -> Guarantee:
        """A budget ε with δ = 0, where a trusted curator holds the records."""
        with jax.enable_x64(True):
            spent = float(self.temper * self._largest_ratio)
        return Guarantee(approximate_tradeoff(spent), trust_model="central")

    privacy = property(lambda self: self.guarantee.statement())
