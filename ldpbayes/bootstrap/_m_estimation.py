"""Estimators that are an M-estimate or a maximum of a likelihood."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.handlers import seed as seeded
from numpyro.handlers import substitute, trace
from numpyro.infer import init_to_median
from numpyro.infer.util import constrain_fn, unconstrain_fn

from ldpbayes._core.pytrees import pytree, static
from ldpbayes.bootstrap._bootstrap import estimated
from ldpbayes.bootstrap._estimators import Estimated, PrivateEstimator
from ldpbayes.bootstrap._function import simulated
from ldpbayes.data import Release, Sketch
from ldpbayes.estimation import m_estimate
from ldpbayes.estimation.m_estimation import Estimator
from ldpbayes.estimation.minimise import Box, minimise
from ldpbayes.inference.density import RUNNING, Density, sites_of
from ldpbayes.mechanisms import Mechanism


def values_of(release: Any, mechanism: Mechanism, count: int) -> jax.Array:
    """The values (n, *event) of a release that an estimator was made for.

    Parameters
    ----------
    release : Release
        What a user gave.
    mechanism : Mechanism
        That is said to have made it.
    count : int
        How many records it is said to have.

    Raises
    ------
    ValueError
        If it is no release, one of another mechanism or number of records, or one without values.
    """
    if not isinstance(release, Release):
        raise ValueError(f"the estimator is for a Release, got {type(release).__name__}")
    if release.values is None:
        raise ValueError("a release without values has nothing to estimate from")
    if not release.mechanism == mechanism or release.count != count:
        raise ValueError(
            f"the release has {release.count} records by {release.mechanism!r}, the estimator is for {count} by "
            f"{mechanism!r}: make the estimator with this release"
        )
    return jnp.asarray(release.values)


@pytree
@dataclasses.dataclass(frozen=True)
class MEstimator(PrivateEstimator):
    """An M-estimator from a release, with a simulator of original records.

    Most make it with `m_estimator`.

    Parameters
    ----------
    estimator : Estimator
        Of `ldpbayes.estimation`, compiled for a release of its kind.
    start : array (p,)
        Where minimisations start.
    key : jax.Array
        A JAX random key: of the analyst's own noise for the release itself. Replicates draw theirs anew.
    count : int
        Number of records.
    simulator : callable
        From a random key and parameters, in the form of the loss, to original records.
    unravel : callable
        From a flat parameter to the form in which the loss takes it.
    """

    estimator: Estimator
    start: Any
    key: Any
    count: int = static()
    simulator: Callable[[Any, Any], Any] = static()
    unravel: Callable[[Any], Any] = static()

    def randomize(self, key: Any, data: Any) -> tuple[jax.Array, jax.Array]:
        """See `PrivateEstimator.randomize`: released records, and a key of the analyst's own noise.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        data : array (n, *event)
            Original records.
        """
        noise, own = jax.random.split(key)
        return self._rows(self.estimator.mechanism.simulate(noise, data)), own

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`; standard errors are those of the sandwich formula.

        ``outside`` says that the minimisation has not converged, or ended on the boundary of the parameter space.
        """
        rows, key = released
        fit = self.estimator(key, rows, self.start)
        error = jnp.sqrt(jnp.diagonal(fit.covariance))
        return Estimated(self.unravel(fit.theta), error, ~fit.converged | jnp.any(fit.boundary))

    def replicate(self, key: Any, params: Any) -> tuple[jax.Array, jax.Array]:
        """See `PrivateEstimator.replicate`."""
        keys = jax.random.split(key)
        return self.randomize(keys[1], self.simulator(keys[0], params))

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`: in the space."""
        return self.params(self.free(target), target)

    def params(self, free: jax.Array, like: Any) -> Any:
        """See `PrivateEstimator.params`: in the space."""
        return self.unravel(self.estimator.space.project(free))

    def released(self, release: Any) -> tuple[jax.Array, jax.Array]:
        """See `PrivateEstimator.released`: the records of a release of the same mechanism, and the analyst's key."""
        return self._rows(values_of(release, self.estimator.mechanism, self.count)), self.key

    def _rows(self, values: Any) -> jax.Array:
        values = jnp.asarray(values, float)
        return values if values.ndim == 2 else values[:, None]

    @property
    def privacy(self) -> str:
        """See `PrivateEstimator.privacy`."""
        return self.estimator.mechanism.guarantee.statement()


def m_estimator(
    loss: Any,
    release: Release,
    method: Any = "combined",
    *,
    simulator: Callable[[Any, Any], Any],
    seed: int = 0,
    **options: Any,
) -> MEstimator:
    """Private estimator of a release: an M-estimate, with a simulator of original records.

    ``parametric_bootstrap(m_estimator(loss, release, simulator=simulator), release)`` gives its intervals. A loss alone
    does not say how records are drawn; `MEstimationResult.bootstrap` weights records instead, and needs no simulator.

    Parameters
    ----------
    loss : Loss or callable
        As for `ldpbayes.m_estimate`.
    release : Release
        What was released, from a mechanism whose noise the method is for.
    method : str or Correction
        As for `ldpbayes.m_estimate`.
    simulator : callable
        A JAX function (key, parameters) → original records, of the shape of the release. Their law is to have the
        parameters as its minimum of the mean loss.
    seed : int
        For the analyst's own noise on the release.
    **options
        Others of `ldpbayes.m_estimate`.

    Returns
    -------
    MEstimator

    Raises
    ------
    TypeError, ValueError
        For the reasons of `ldpbayes.m_estimate`; or if the simulator's records are not of the release's shape.
    """
    if not callable(simulator):
        raise TypeError(f"simulator must be a function (key, parameters) -> records, got {simulator!r}")
    result = m_estimate(loss, release, method, seed=seed, **options)
    with jax.enable_x64(True):
        solver = result._solver
        unravel = jnp.asarray if solver.unravel is np.asarray else solver.unravel  # the first takes no tracer
        shape = np.shape(release.values)
        try:
            made = jax.eval_shape(simulator, jax.random.key(0), unravel(jnp.asarray(result.params)))
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"simulator does not fit the parameters of the loss: {error}") from error
        if np.shape(made) != shape:
            raise ValueError(f"simulator returns records of shape {np.shape(made)}, the release has {shape}")
        key = jax.random.split(jax.random.key(seed))[0]  # as `m_estimate` has it
        start = jnp.asarray(result.params)
        return MEstimator(solver.estimator.settled, start, key, shape[0], simulator, unravel)


FAR = 1e6  # of a parameter on the whole line from the start, in units of one plus its size
FREE = 12.0  # of any other's free value: of a positive parameter that is a factor of 160,000
TOLERANCE = 3e-5  # the last step changes the log-likelihood by 1e-9 of its size, far less than a standard error would


@pytree
@dataclasses.dataclass(frozen=True)
class MaximumLikelihood(PrivateEstimator):
    """Maximum likelihood of the latent sites of a model of one release; their priors play no role.

    Most make it with `maximum_likelihood`.

    Parameters
    ----------
    model : callable
        NumPyro model of a release, such as those of `ldpbayes.models`; its latent sites are the parameters.
    plan : Release
        ``Release(None, mechanism, count)``: what is released, by what and of how many.
    start : dict of str to array
        Value of each latent site, where the maximisation starts.
    space : Box
        In which free values, as `free` has them, are looked for.
    """

    model: Callable = dataclasses.field(metadata={"static": True})
    plan: Release
    start: dict[str, Any]
    space: Box

    def randomize(self, key: Any, data: Any) -> jax.Array:
        """See `PrivateEstimator.randomize`: each record by the mechanism.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        data : array (n, *event)
            Original records.
        """
        return self.plan.mechanism.simulate(key, data)

    def log_likelihood(self, params: Mapping[str, Any], released: Any) -> jax.Array:
        """Log density of released values, without the priors.

        Parameters
        ----------
        params : dict of str to array
            Values of the latent sites.
        released : array (n, *event)
            Released values.
        """
        with RUNNING:
            found = trace(substitute(self.model, data=dict(params))).get_trace(self._release(released))
        observed = [site for site in found.values() if site["type"] == "sample" and site["is_observed"]]
        parts = [site["fn"].log_prob(site["value"]) * _scale(site) for site in observed]
        return jnp.sum(jnp.stack([jnp.sum(part) for part in parts]))

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`; standard errors are those of the observed information.

        ``outside`` says that no maximum was found inside the space, as where the noise outweighs what the records say:
        then a standard deviation's likelihood may increase all the way to 0, say. Errors that the information does not
        give are not numbers.
        """
        return _fitted(self, released)

    def replicate(self, key: Any, params: Any) -> jax.Array:
        """See `PrivateEstimator.replicate`: values that the model releases."""
        return simulated(self.model, (self.plan,), {}, None, key, params)

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`: between the bounds of the supports, where these are intervals."""
        with RUNNING:
            sites = trace(substitute(self._any[0], data=self.start)).get_trace(*self._any[1])
        supports = {name: sites[name]["fn"].support for name in target}
        supports = {name: getattr(support, "base_constraint", support) for name, support in supports.items()}
        ends = {
            name: [getattr(support, end, None) for end in ("lower_bound", "upper_bound")]
            for name, support in supports.items()
        }
        return {name: jnp.clip(value, *ends[name]) for name, value in target.items()}

    def free(self, params: Any) -> jax.Array:
        """See `PrivateEstimator.free`: NumPyro's unconstrained values."""
        with RUNNING:
            return ravel_pytree(unconstrain_fn(*self._any, dict(params)))[0]

    def params(self, free: jax.Array, like: Any) -> Any:
        """See `PrivateEstimator.params`."""
        return self._constrained(free)

    def released(self, release: Any) -> jax.Array:
        """See `PrivateEstimator.released`: the values of a release of the same mechanism and number of records."""
        return values_of(release, self.plan.mechanism, self.plan.count)

    @property
    def privacy(self) -> str:
        """See `PrivateEstimator.privacy`."""
        return self.plan.mechanism.guarantee.statement()

    def _release(self, values: Any) -> Release:
        made: Any = object.__new__(Release)  # the values were looked at when they came
        for name, value in (("values", values), ("mechanism", self.plan.mechanism), ("count", self.plan.count)):
            object.__setattr__(made, name, value)
        object.__setattr__(made, "doubts", ())
        return made

    @property
    def _any(self) -> tuple[Callable, tuple, dict]:
        """The model with its arguments, for questions that the values have nothing to do with."""
        values = jnp.zeros((self.plan.count, *self.plan.mechanism.event_shape))
        return seeded(self.model, jax.random.key(0)), (self._release(values),), {}

    def _constrained(self, free: jax.Array) -> dict[str, Any]:
        with RUNNING:
            shapes = jax.eval_shape(lambda: unconstrain_fn(*self._any, dict(self.start)))
            like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return constrain_fn(*self._any, ravel_pytree(like)[1](free))


def _scale(site: dict[str, Any]) -> Any:
    return 1.0 if site["scale"] is None else site["scale"]


def _fitted(estimator: MaximumLikelihood, released: Any) -> Estimated:
    def objective(free: jax.Array) -> jax.Array:
        return -estimator.log_likelihood(estimator._constrained(free), released)

    def gradient(free: jax.Array) -> Any:
        value, slope = jax.value_and_grad(objective)(free)
        return slope, (value, slope)

    def derivatives(free: jax.Array) -> Any:
        hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(free)
        return value, slope, hessian

    space = estimator.space
    found = minimise(derivatives, estimator.free(estimator.start), space, tolerance=TOLERANCE)
    params = estimator._constrained(found.theta)
    slope = jax.jacfwd(lambda free: ravel_pytree(estimator.target(estimator._constrained(free)))[0])(found.theta)
    inverse = jnp.linalg.inv(found.hessian)
    variance = jnp.einsum("ij,jk,ik->i", slope, inverse, slope)
    error = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), jnp.nan)
    # towards the end of the space the likelihood may be so flat that the search stops early: then an error is as wide
    of_free, half = jnp.diagonal(inverse), (space.upper - space.lower) / 2
    settled = found.converged & jnp.all((of_free > 0) & (of_free < half**2))
    return Estimated(params, error, ~settled | jnp.any(space.boundary(found.theta)))


def maximum_likelihood(model: Callable, release: Release, start: Mapping[str, Any] | None = None) -> MaximumLikelihood:
    """Private estimator of a release: maximum likelihood of a model's latent sites, and the model as its simulator.

    ``parametric_bootstrap(maximum_likelihood(model, release), release)`` gives confidence intervals from any model of
    `ldpbayes.models`, or one that is written with `observe` or `privatize` and takes the release.

    Parameters
    ----------
    model : callable
        NumPyro model of one release. Its latent sites are continuous; priors play no role but for their supports.
    release : Release
        What was released. Of a release without values replicates alone can be made.
    start : dict of str to array, optional
        Value of each latent site, where the maximisation starts; by default the medians of the priors. Replicates
        start from the estimate.

    Returns
    -------
    MaximumLikelihood

    Raises
    ------
    TypeError
        If it is no release, or the model not callable.
    ValueError
        If the model has no latent sites, or discrete ones; or ``start`` is not one of its sites.
    """
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model of a release, got {type(model).__name__}")
    if not isinstance(release, Release):
        kind = "a sketch holds no values that could be replicated" if isinstance(release, Sketch) else "got"
        raise TypeError(f"release must be a Release: {kind} ({type(release).__name__})")
    if release.values is None:
        raise ValueError("a release without values has nothing to estimate from")
    with jax.enable_x64(True):
        density = Density(model, (release,), {})
        sites = sites_of(density, init_to_median)
        latent = [name for name, site in sites.items() if site.latent]
        odd = [name for name in latent if not sites[name].plain]
        if not latent or odd:
            problem = f"site {odd[0]!r} is discrete or fixed" if odd else "it has no latent sites"
            raise ValueError(f"the likelihood of this model has no maximum to be found: {problem}")
        if start is None:
            begun = density.constrained(density.start(jax.random.key(0), init_to_median))
        elif set(start) != set(latent):
            raise ValueError(f"start must have a value of each of {', '.join(latent)}, got {', '.join(start)}")
        else:
            begun = dict(start)
        first = {name: jnp.asarray(begun[name], float) for name in latent}
        plan = Release(None, release.mechanism, release.count)
        estimator = MaximumLikelihood(model, plan, first, _space(density, first))
        fit, _ = estimated(estimator, estimator.released(release))
        # at the end of the space the likelihood is flat, and no place to start from
        return estimator if fit.outside else dataclasses.replace(estimator, start=fit.params)


def _space(density: Density, start: dict[str, Any]) -> Box:
    """The space of free values: wide where they are the parameters themselves, which may have any unit."""
    with RUNNING:
        free = unconstrain_fn(seeded(density.model, jax.random.key(0)), density.args, density.kwargs, start)
    same = {
        name: np.shape(free[name]) == np.shape(start[name]) and bool(jnp.all(free[name] == start[name]))
        for name in free
    }
    reach = {name: jnp.where(same[name], FAR * (1 + jnp.abs(leaf)), FREE) + 0 * leaf for name, leaf in free.items()}
    centre, around = ravel_pytree(free)[0], ravel_pytree(reach)[0]
    return Box(np.asarray(centre - around), np.asarray(centre + around))
