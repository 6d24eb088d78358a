"""One posterior sample: a draw from a tempered posterior is itself the private estimate ([WFS], [DNMR], [ZRD])."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._checks import at_least, check_order, checked
from ldpbayes._pytree import checked_field, pytree, static
from ldpbayes._tracing import is_concrete
from ldpbayes.bootstrap._conjugate import CONJUGATES, Conjugate, draw
from ldpbayes.bootstrap._private_estimator import Estimated, PrivateEstimator
from ldpbayes.bootstrap.families import Family
from ldpbayes.privacy import Guarantee, approximate_tradeoff

__all__ = ["OnePosteriorSample", "one_posterior_sample"]


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
        """A draw of the parameter, a number; see `ldpbayes.bootstrap._conjugate.draw` for how accurately.

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
