"""Estimators that minimise a loss or maximise a likelihood, and simulators of data from models."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist
from numpyro.handlers import seed as seeded
from numpyro.handlers import uncondition
from numpyro.infer import init_to_median

from ldpbayes._core.checks import ends_of
from ldpbayes._core.pytrees import pytree_dataclass, static, unchecked
from ldpbayes._core.types import Array, Key, Message, Model, Params, PyTree
from ldpbayes.bootstrap._bootstrap import Estimated, PrivateEstimator, Simulator, check_simulator, estimated
from ldpbayes.bootstrap.statistics import values_released_by
from ldpbayes.data import Release, Sketch
from ldpbayes.estimation import Correction, m_estimate
from ldpbayes.estimation.losses import Loss
from ldpbayes.estimation.m_estimation import Estimator
from ldpbayes.inference.density import Density, given, sites_of
from ldpbayes.mechanisms import Mechanism
from ldpbayes.numerics.minimise import Box, minimise, value_gradient_hessian

REAL_LINE_REACH = 1e6  # how far a parameter on the whole line may move from the start, in units of one plus its size
FREE_REACH = 12.0  # how far another's unconstrained value may: a factor of 160,000 of a positive parameter
LIKELIHOOD_STEP_TOLERANCE = 3e-5  # the last step changes the log-likelihood by 1e-9 of its size: far below an error


class RecordsEstimator(PrivateEstimator):
    """An estimator from a `Release` of ``count`` records, each with its own noise by a ``mechanism``."""

    mechanism: Mechanism
    count: int

    def release_values(self, release: Release) -> PyTree:
        if not isinstance(release, Release) or release.count != self.count:
            kind = f"one of {release.count}" if isinstance(release, Release) else type(release).__name__
            raise ValueError(f"the estimator is for a Release of {self.count} records, got {kind}")
        return jnp.asarray(values_released_by(self.mechanism, release))

    privacy = property(lambda self: self.mechanism.guarantee.statement())


@pytree_dataclass
class LossEstimator(RecordsEstimator):
    """An M-estimator of a release, from ``start`` (p,); values are rows with a ``key`` of the analyst's own noise."""

    estimator: Estimator
    start: Array
    key: Key
    count: int = static()
    simulator: Simulator = static()
    unravel: Callable[[Array], PyTree] = static()
    mechanism = property(lambda self: self.estimator.mechanism)

    def randomize(self, key: Key, data: Array) -> tuple[jax.Array, Key]:
        noise, own_key = jax.random.split(key)
        return _rows(self.mechanism.simulate(noise, data)), own_key

    def estimate(self, values: tuple[jax.Array, Key]) -> Estimated:
        """Standard errors by the sandwich formula; outside if not converged, or on the parameter space's boundary."""
        rows, key = values
        fit = self.estimator(key, rows, self.start)
        error = jnp.sqrt(jnp.diagonal(fit.covariance))
        return Estimated(self.unravel(fit.theta), error, ~fit.converged | jnp.any(fit.boundary))

    def simulate_release(self, key: Key, params: PyTree) -> tuple[jax.Array, Key]:
        keys = jax.random.split(key)
        return self.randomize(keys[1], self.simulator(keys[0], params))

    def nearest(self, target: PyTree) -> PyTree:
        return self.constrained(self.unconstrained(target), target)

    def constrained(self, vector: Array, like: PyTree) -> PyTree:
        return self.unravel(self.estimator.space.project(vector))

    def release_values(self, release: Release) -> tuple[jax.Array, Key]:
        return _rows(super().release_values(release)), self.key


def _rows(values: Array) -> jax.Array:
    return jnp.asarray(values, float).reshape(len(values), -1)


def m_estimator(
    loss: Loss | Callable,
    release: Release,
    method: str | Correction = "combined",
    *,
    simulator: Simulator,
    seed: int = 0,
    **options: Any,
) -> LossEstimator:
    """Return an M-estimator, which minimises a sum of losses, for `parametric_bootstrap` with a simulator of your own.

    A loss does not define the law of the records. For intervals, call ``parametric_bootstrap(m_estimator(loss, release,
    simulator=simulator), release)``; `MEstimationResult.bootstrap` needs no simulator.

    Parameters
    ----------
    loss, release, method, **options
        As in `ldpbayes.m_estimate`.
    simulator : callable
        A JAX function (key, parameters) → as many original records as the release has. Their expected loss must be
        smallest at the given parameters.
    seed : int
        Random seed of the noise that the `method` adds to the release, as in `ldpbayes.m_estimate`. Default: 0.
    """
    if not callable(simulator):
        raise TypeError(f"simulator must be a function (key, parameters) -> records, got {simulator!r}")
    result = m_estimate(loss, release, method, seed=seed, **options)
    with jax.enable_x64(True):
        solver, start = result._solver, jnp.asarray(result.params)
        unravel = jnp.asarray if solver.unravel is np.asarray else solver.unravel  # the first takes no tracer
        key = jax.random.split(jax.random.key(seed))[0]  # as `m_estimate` has it
        estimator = LossEstimator(solver.estimator, start, key, release.count, simulator, unravel)
        check_simulator(estimator, simulator, estimator.release_values(release), unravel(start))
        return estimator


@pytree_dataclass
class MaximumLikelihoodEstimator(RecordsEstimator):
    """Maximum likelihood of the latent sites of a model of one release, from ``start`` on, inside ``space``."""

    model: Model = static()
    mechanism: Mechanism
    start: Params
    space: Box
    count: int = static()

    def density(self, values: Array = None) -> Density:
        """The model of released values; by default for questions that do not depend on them."""
        values = jnp.zeros((self.count, *self.mechanism.event_shape)) if values is None else values
        # the values were checked when the user made the release
        release = unchecked(Release, values, self.mechanism, self.count)
        return Density(seeded(self.model, jax.random.key(0)), (release,), {})

    def randomize(self, key: Key, data: Array) -> jax.Array:
        return self.mechanism.simulate(key, data)

    def estimate(self, values: Array) -> Estimated:
        """Standard errors by the observed information, or NaN. Outside where the space has no maximum inside: a scale's
        likelihood may increase all the way to 0 where noise outweighs what the records say.
        """

        def objective(vector: jax.Array) -> jax.Array:
            return -self.density(values).log_likelihood(self.constrained(vector))

        space, derivatives = self.space, functools.partial(value_gradient_hessian, objective)
        minimum = minimise(derivatives, self.unconstrained(self.start), space, tolerance=LIKELIHOOD_STEP_TOLERANCE)
        params = self.constrained(minimum.theta)
        slope = jax.jacfwd(lambda vector: ravel_pytree(self.target(self.constrained(vector)))[0])(minimum.theta)
        inverse = jnp.linalg.inv(minimum.at.hessian)
        variance = jnp.einsum("ij,jk,ik->i", slope, inverse, slope)
        error = jnp.sqrt(jnp.where(variance > 0, variance, jnp.nan))
        # near the end of the space the likelihood may be so flat that the search stops early: the error is as wide then
        variances, half = jnp.diagonal(inverse), (space.upper - space.lower) / 2
        settled = minimum.converged & jnp.all((variances > 0) & (variances < half**2))
        return Estimated(params, error, ~settled | jnp.any(space.boundary(minimum.theta)))

    def simulate_release(self, key: Key, params: Params) -> jax.Array:
        return simulator_of(self.model, Release(None, self.mechanism, self.count))(key, params)

    def nearest(self, target: Params) -> Params:
        """Values between the bounds of the sites' supports, where these are intervals."""
        density = self.density()
        sites = density.trace(given(density.model, self.start))
        supports = {name: sites[name]["fn"].support for name in target}
        ends = {name: ends_of(getattr(support, "base_constraint", support)) for name, support in supports.items()}
        return {name: jnp.clip(value, *ends[name]) for name, value in target.items()}

    def unconstrained(self, params: Params) -> jax.Array:
        return ravel_pytree(self.density().unconstrained(dict(params)))[0]

    def constrained(self, vector: Array, like: Params | None = None) -> Params:
        density = self.density()
        values = density.constrained(ravel_pytree(density.unconstrained(dict(self.start)))[1](vector))
        return {name: values[name] for name in self.start}


def maximum_likelihood(model: Model, release: Release) -> MaximumLikelihoodEstimator:
    """Return a maximum-likelihood estimator, from a NumPyro model, which also simulates, for `parametric_bootstrap`.

    For intervals, call ``parametric_bootstrap(maximum_likelihood(model, release), release)``.

    Parameters
    ----------
    model : callable
        Model of one release: of `ldpbayes.models`, or your own by `observe` or `privatize`. Its latent sites (the
        parameters) must be continuous. Only the supports of the priors are used, not their densities.
    release : Release
        The release, with its values.

    Notes
    -----
    The maximisation starts at the medians of the priors, and for a simulated release at the estimate from the release.
    """
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model of a release, got {type(model).__name__}")
    if not isinstance(release, Release):
        reason = ": a sketch holds no values that could be replicated" if isinstance(release, Sketch) else ""
        raise TypeError(f"release must be a Release, got {type(release).__name__}{reason}")
    values = values_released_by(release.mechanism, release)
    with jax.enable_x64(True):
        density = Density(model, (release,), {})
        sites = sites_of(density, init_to_median)
        latent = [name for name, site in sites.items() if site.latent]
        odd = [name for name in latent if not sites[name].plain]
        if not latent or odd:
            problem = f"site {odd[0]!r} is discrete or fixed" if odd else "it has no latent sites"
            raise ValueError(f"the likelihood of this model cannot be maximised: {problem}")
        medians = density.constrained(density.start(jax.random.key(0), init_to_median))
        first = {name: jnp.asarray(medians[name], float) for name in latent}
        free = Density(seeded(model, jax.random.key(0)), (release,), {}).unconstrained(first)
        space = _search_space(free, first)
        estimator = MaximumLikelihoodEstimator(model, release.mechanism, first, space, release.count)
        fit = estimated(estimator, jnp.asarray(values))
        # at the end of the space the likelihood is flat, and no place to start from
        return estimator if fit.outside else dataclasses.replace(estimator, start=fit.params)


def _search_space(free: Params, start: Params) -> Box:
    """The space of unconstrained values: wide where they are the parameters themselves, which may have any unit."""
    reach = {}
    for name, leaf in free.items():
        on_line = np.array_equal(leaf, start[name])
        reach[name] = REAL_LINE_REACH * (1 + jnp.abs(leaf)) if on_line else jnp.full_like(leaf, FREE_REACH)
    centre, around = ravel_pytree(free)[0], ravel_pytree(reach)[0]
    return Box(np.asarray(centre - around), np.asarray(centre + around))


def simulator_of(model: Model, *args: Any, site: str | None = None, **kwargs: Any) -> Simulator:
    """Return a simulator for the bootstrap, made from a NumPyro model: a function (key, parameters) → data.

    It returns released values if the model uses `observe`, with ``Release(None, mechanism, count)`` as its release, and
    otherwise original records. ``parameters`` is a dict with the values of all other sites of the model. The simulator
    raises ValueError if one is missing, unknown, or of another shape than in the model.

    Parameters
    ----------
    model, *args, **kwargs
        NumPyro model and its arguments, which must not be sketches.
    site : str, optional
        The site whose values are the data. Default: the only observed site or, if none is, the only one that is not
        among the parameters.
    """
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model, got {type(model).__name__}")
    density = Density(model, args, kwargs).replace_data(_without_values)

    def run(key: Key, params: Params) -> dict[str, Message]:
        """Sample sites of a run with these parameters in which all other sites are drawn, observed ones included."""
        trace = density.trace(given(uncondition(seeded(model, key)), params))
        # factors are sites of a unit law
        return {k: m for k, m in trace.items() if m["type"] == "sample" and not isinstance(m["fn"], dist.Unit)}

    shapes: dict[str, tuple[int, ...]] = {}
    observed = []

    def describe(key: Key) -> None:
        for name, message in run(key, {}).items():
            shapes[name] = np.shape(message["value"])
            if message["infer"].get("was_observed", False):
                observed.append(name)

    jax.eval_shape(describe, jax.random.key(0))
    if site is not None and site not in shapes:
        raise ValueError(f"the model has no sample site {site!r}; its sites are {', '.join(shapes)}")

    def simulator(key: Key, params: Mapping[str, Array]) -> Array:
        if not isinstance(params, Mapping):
            raise ValueError(f"parameters must be a dict from names of sites to values, got {type(params).__name__}")
        candidates = [site] if site else observed or [name for name in shapes if name not in params]
        if len(candidates) != 1:
            kinds = "are observed" if observed else "are not among the parameters"
            names = ", ".join(candidates) or "none"
            raise ValueError(f"it is unclear which site has the data: {len(candidates)} {kinds} ({names}); give site=")
        (data,) = candidates
        needed = {name: shape for name, shape in shapes.items() if name != data}
        got = {name: np.shape(value) for name, value in params.items()}
        if got != needed:
            raise ValueError(f"site {data!r} is simulated from values of shapes {needed}, got {got}")
        return run(key, dict(params))[data]["value"]

    return simulator


def _without_values(data: Release | Sketch) -> Release:
    if isinstance(data, Sketch):
        raise ValueError("a sketch cannot be simulated: give the model Release(None, mechanism, count)")
    return Release(None, data.mechanism, data.count)
