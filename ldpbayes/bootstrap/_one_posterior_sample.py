"""Private Bayesian inference from one draw of the posterior, for conjugate families."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from ldpbayes._core.checks import at_least, check_order, checked
from ldpbayes._core.pytrees import checked_field, pytree, static
from ldpbayes._core.tracing import is_concrete
from ldpbayes.bootstrap._estimators import Estimated, PrivateEstimator
from ldpbayes.bootstrap._family import Family
from ldpbayes.bootstrap._number_families import Bernoulli, Binomial, Exponential, GammaRate, GaussianMean, Poisson
from ldpbayes.privacy import Guarantee, approximate_tradeoff

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


@pytree
@dataclasses.dataclass(frozen=True)
class OnePosteriorSample(PrivateEstimator):
    """A draw from a tempered posterior, as the exponential mechanism.

    Most make it with `one_posterior_sample`.

    Parameters
    ----------
    family : Family
        Of one parameter: `Bernoulli`, `Binomial`, `Poisson`, `Exponential`, `GammaRate` or `GaussianMean`, with the
        bounds to which records are clamped.
    epsilon : float
        Budget, for replacing one record; positive and finite.
    lower, upper : float
        Ends of the range in which the parameter is taken to be, chosen without looking at the data, in its unit.
    prior : tuple of two floats
        The conjugate prior, on that range: (concentration1, concentration0) of the beta law of ``probs``,
        (concentration, rate) of the gamma law of a ``rate``, (loc, precision) of the normal law of ``loc``.
    count : int
        Number of records, public; neighbouring data sets differ in one record and have the same number.

    Raises
    ------
    ValueError
        If the family has no such prior, the count is unknown, or an argument is out of range.

    Notes
    -----
    The release is θ itself, with density f(θ | S) ∝ π(θ) exp(ρ (η(θ) S − n A(θ))) between ``lower`` and ``upper``, S
    the sum of clamped records, η the natural parameter and ρ = min(1, ε/(w (max η − min η))), w the distance of the
    bounds of records. What log h(x) of the family is does not matter: f is normalised.

    *Guarantee.* For the sums S and S' of neighbours,

        log f(θ | S)/f(θ | S') = ρ η(θ) (S − S') − log ∫ f(θ' | S') exp(ρ η(θ') (S − S')) dθ'.

    The logarithm of the mean of an exponential lies between the smallest and the largest exponent. So the difference
    is at most ρ |S − S'| (max η − min η) ≤ ρ w (max η − min η) ≤ ε in size. That is the exponential mechanism with the
    utility η(θ) S − n A(θ), from which the centre of the range of η may be taken, times S, as this cancels in f: the
    sensitivity then is Δ = w (max η − min η)/2, and ρ = ε/(2Δ). The factor 2 is needed: the first term alone can be Δρ
    and the normalising constant as much again, where f(θ' | S') is concentrated at the end of the range opposite to
    θ. So it is, as n grows, where all records are at the bound of that end, and the range of θ has no more than the
    means that lie between the bounds: then no larger ρ would do.

    Where ρ = 1 the release spends less than ε, and its statement says so.
    """

    family: Family
    epsilon: Any
    lower: Any
    upper: Any
    prior: tuple[Any, Any]
    count: int = static()

    def __post_init__(self) -> None:
        if type(self.family) not in CONJUGATES:
            names = ", ".join(kind.__name__ for kind in CONJUGATES)
            raise ValueError(
                f"family must be one with a conjugate prior of one parameter: {names}; got {self.family!r}"
            )
        if self.count is None:
            raise ValueError("count is missing: the number of records is taken to be public")
        object.__setattr__(self, "count", at_least(1, "count", self.count))
        checked_field(self, "epsilon", "a positive and finite number", lambda a: (a.ndim == 0) & (a > 0) & (a < np.inf))
        law = self._law
        for name in ("lower", "upper"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{name} is missing: the range of {law.parameter} must be bounded, and chosen without looking at "
                    "the data, or the log likelihood of one record has no bound"
                )
            checked_field(self, name, law.inside, lambda a: (a.ndim == 0) & law.allowed(a))
        check_order(self.lower, self.upper)
        if is_concrete(self.prior):
            object.__setattr__(self, "prior", _checked_prior(law, self.prior))

    @property
    def _law(self) -> Conjugate:
        return CONJUGATES[type(self.family)]

    @property
    def _most(self) -> Any:
        """The largest log ratio of two posteriors of neighbours, not tempered."""
        low, high = (self._law.natural(theta, self.family) for theta in (self.lower, self.upper))
        return self.family.sensitivity(1) * jnp.abs(high - low)

    @property
    def temper(self) -> Any:
        """ρ: the weight that the log likelihood has, at most 1."""
        return jnp.minimum(1.0, self.epsilon / self._most)

    def posterior(self, total: Any) -> tuple[Any, Any]:
        """The tempered posterior, with numbers as those of ``prior``; the release is a draw from it in the range.

        Parameters
        ----------
        total : array ()
            Sum of clamped records.
        """
        return self._law.updated(self.prior, self.temper, total, self.count, self.family)

    def sample(self, key: Any, total: Any) -> jax.Array:
        """A draw of the parameter, a number; see `ldpbayes.bootstrap._one_posterior_sample.draw` for how accurately.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        total : array ()
            Sum of clamped records.
        """
        return draw(key, self._law, self.posterior(total), self.lower, self.upper)

    def release(self, data: Any, *, seed: int) -> np.ndarray:
        """Read the data, and release a draw.

        For simulation and studies; to release real data use a cryptographically secure source of random numbers.

        Parameters
        ----------
        data : array (n,)
            Records.
        seed : int
            Of the draw.

        Returns
        -------
        array ()

        Raises
        ------
        ValueError
            If data are not what the family takes, or another number of records.
        """
        records = self.family.checked(data)
        if len(records) != self.count:
            raise ValueError(f"the estimator is for {self.count} records, got {len(records)}")
        with jax.enable_x64(True):
            return np.asarray(_randomized(self, jax.random.key(seed), records))

    def randomize(self, key: Any, data: Any) -> jax.Array:
        """See `PrivateEstimator.randomize`."""
        return self.sample(key, self.family.statistics(data).sum(axis=0))

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`: what was released."""
        return Estimated({self._law.parameter: jnp.asarray(released)}, None, jnp.zeros((), bool))

    def replicate(self, key: Any, params: Any) -> jax.Array:
        """See `PrivateEstimator.replicate`; the sum is drawn, not the records."""
        keys = jax.random.split(key)
        return self.sample(keys[1], self.family.total(keys[0], params, self.count))

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`: in the range."""
        return {name: jnp.clip(part, self.lower, self.upper) for name, part in target.items()}

    def free(self, params: Any) -> jax.Array:
        """See `PrivateEstimator.free`: the logarithm of a positive parameter."""
        return self.family.free(params)

    def params(self, free: jax.Array, like: Any) -> Any:
        """See `PrivateEstimator.params`: in the range."""
        return self.nearest(self.family.params(free, like))

    def released(self, release: Any) -> jax.Array:
        """See `PrivateEstimator.released`: a number between the ends."""
        given = f"a draw of {self._law.parameter} from {self.lower:g} to {self.upper:g}, as release() returns it"
        return jnp.asarray(
            checked("release", release, given, lambda a: (a.ndim == 0) & (a >= self.lower) & (a <= self.upper))
        )

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the release: pure, of what ρ spends, for a trusted curator."""
        with jax.enable_x64(True):
            spent = float(self.temper * self._most)
        return Guarantee(approximate_tradeoff(spent), trust_model="central")

    @property
    def privacy(self) -> str:
        """See `PrivateEstimator.privacy`."""
        return self.guarantee.statement()


@jax.jit
def _randomized(estimator: OnePosteriorSample, key: Any, data: Any) -> jax.Array:
    return estimator.randomize(key, data)


def _checked_prior(law: Conjugate, prior: Any) -> tuple[float, float]:
    if np.shape(prior) != (2,):
        raise ValueError(f"prior must be two numbers, {' and '.join(law.prior)} of {law.parameter}, got {prior!r}")
    allowed = f"{' and '.join(law.prior)} of a prior of {law.parameter}"
    first, second = checked("prior", prior, allowed, law.valid)
    return float(first), float(second)


def one_posterior_sample(
    family: Family, *, count: int, epsilon: Any, lower: Any, upper: Any, prior: Any = None
) -> OnePosteriorSample:
    """Private estimator of a one-parameter family: a draw from its tempered posterior.

    ``parametric_bootstrap(estimator, estimator.release(data, seed=0))`` gives its intervals.

    Parameters
    ----------
    family : Family
        Of `ldpbayes.bootstrap`, with the bounds to which records are clamped; see `OnePosteriorSample`.
    count : int
        Number of records, public.
    epsilon : float
        Budget, for replacing one record.
    lower, upper : float
        Ends of the range in which the parameter is taken to be. The narrower, the less it is tempered.
    prior : tuple of two floats, optional
        The conjugate prior; by default uniform on the range. See `OnePosteriorSample`.

    Returns
    -------
    OnePosteriorSample

    Raises
    ------
    ValueError
        For the reasons of `OnePosteriorSample`.
    """
    law = CONJUGATES.get(type(family))
    chosen = law.uniform if prior is None and law is not None else prior
    return OnePosteriorSample(family, epsilon, lower, upper, chosen, count)
