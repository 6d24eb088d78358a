"""Any function of released values as an estimator, and simulators for it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.extend import core

from ldpbayes._core.pytrees import pytree, static
from ldpbayes.bootstrap._estimators import Estimated, PrivateEstimator
from ldpbayes.data import Release, Sketch
from ldpbayes.inference.density import RUNNING


def simulator_of(model: Callable, *args: Any, site: str | None = None, **kwargs: Any) -> Callable[[Any, Any], Any]:
    """A simulator, as the bootstrap takes it, from a NumPyro model.

    Of a model with `observe` the data are released values: give it ``Release(None, mechanism, count)``. (Of a release
    with values only the number of records is used.) An ordinary model simulates original records, and may be given
    observed data or none.

    Parameters
    ----------
    model : callable
        NumPyro model.
    *args, **kwargs
        Its arguments.
    site : str, optional
        Whose values are the data; by default the model's only site that is observed or, if none is, the only one
        that is not a parameter.

    Returns
    -------
    callable
        (key, parameters) → data. The parameters are a dict of the values of the model's other sites, in their own,
        constrained form; ValueError if it lacks one of them, holds what is none, or an array of another shape.

    Raises
    ------
    TypeError
        If the model is not callable.
    ValueError
        If it has no such site, or the site cannot be told from others; or for a sketch, which does not say how many
        records there are and what made them.
    """
    if not callable(model):
        raise TypeError(f"model must be a NumPyro model, got {type(model).__name__}")
    args, kwargs = planned((args, kwargs))
    if site is not None:
        names = list(_abstract(model, args, kwargs))
        if site not in names:
            raise ValueError(f"the model has no sample site {site!r}; its sites are {', '.join(names)}")

    def simulator(key: Any, params: Mapping[str, Any]) -> Any:
        return simulated(model, args, kwargs, site, key, params)

    return simulator


def planned(arguments: Any) -> Any:
    """Arguments of a model without the values of releases among them, so that the model simulates.

    Parameters
    ----------
    arguments : pytree
        With releases among its leaves.

    Raises
    ------
    ValueError
        For a sketch.
    """

    def plan(leaf: Any) -> Any:
        if isinstance(leaf, Sketch):
            raise ValueError("a sketch cannot be simulated: give the model Release(None, mechanism, count)")
        return Release(None, leaf.mechanism, leaf.count) if isinstance(leaf, Release) else leaf

    return jax.tree.map(plan, arguments, is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)))


def simulated(model: Callable, args: tuple, kwargs: dict, site: str | None, key: Any, params: Mapping[str, Any]) -> Any:
    """Values of a site of a model with its other sites given; traceable.

    Parameters
    ----------
    model : callable
        NumPyro model.
    args, kwargs
        Its arguments, releases without values among them.
    site : str or None
        Whose values; None for the only one that can be meant.
    key : jax.Array
        A JAX random key.
    params : mapping of str to array
        Values of the other sites.
    """
    name = _checked(_abstract(model, args, kwargs), site, params)
    return _sampled(model, args, kwargs, key, params)[name]["value"]


def _sampled(model: Callable, args: tuple, kwargs: dict, key: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Sample sites of a run in which observed ones are drawn, but for those of which the values are given."""
    drawn = numpyro.handlers.uncondition(numpyro.handlers.seed(model, key))
    with RUNNING:
        trace = numpyro.handlers.trace(numpyro.handlers.substitute(drawn, data=dict(params))).get_trace(*args, **kwargs)
    return {
        name: found
        for name, found in trace.items()
        if found["type"] == "sample" and not isinstance(found["fn"], dist.Unit)  # which is a factor
    }


def _abstract(model: Callable, args: tuple, kwargs: dict) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Shape of each sample site, and whether the model observes it; nothing is computed."""
    found: dict[str, tuple[tuple[int, ...], bool]] = {}

    def look(key: Any) -> None:
        for name, at in _sampled(model, args, kwargs, key, {}).items():
            found[name] = np.shape(at["value"]), bool(at["infer"].get("was_observed", False))

    jax.eval_shape(look, jax.random.key(0))
    return found


def _checked(found: dict[str, tuple[tuple[int, ...], bool]], site: str | None, params: Mapping[str, Any]) -> str:
    """The name of the site of the data, where the parameters are those of all others."""
    if not isinstance(params, Mapping):
        raise ValueError(f"parameters of a model are a dict of its sites' values, got {type(params).__name__}")
    stray = [repr(name) for name in params if name not in found]
    if stray:
        raise ValueError(
            f"parameters {', '.join(stray)} are no sample sites of the model; its sites are {', '.join(found)}"
        )
    if site is None:
        observed = [name for name, (_, seen) in found.items() if seen]
        data = observed or [name for name in found if name not in params]
        if len(data) != 1:
            what = "are observed" if observed else "are not among the parameters"
            raise ValueError(
                f"which site has the data? {len(data)} {what}: {', '.join(data) or 'none'}; give all parameters that "
                "the model has, and site= where it has other sites"
            )
        site = data[0]
    if site in params:
        raise ValueError(f"site {site!r} is to be simulated, and is given as a parameter")
    missing = [repr(name) for name in found if name != site and name not in params]
    if missing:
        raise ValueError(f"parameters lack values of the model's sites {', '.join(missing)}")
    for name, value in params.items():
        if np.shape(value) != found[name][0]:
            raise ValueError(f"site {name!r} has shape {found[name][0]}, the parameter has {np.shape(value)}")
    return site


@pytree
@dataclasses.dataclass(frozen=True)
class FunctionEstimator(PrivateEstimator):
    """A function of a key and data that returns private parameters: what it returns is the release.

    Parameters
    ----------
    function : callable
        From a random key and data to parameters, a pytree of arrays. It bounds what it takes from each record and adds
        the noise itself; a JAX function. Arrays that it holds, such as a grid, are public.
    statement : str
        What it promises, for the result's privacy statement.
    """

    function: Callable[[Any, Any], Any] = static()
    statement: str = static(default="privacy: as promised by the estimator that was given")

    def randomize(self, key: Any, data: Any) -> Any:
        """See `PrivateEstimator.randomize`."""
        return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, float), self.function(key, data))

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`: what was released."""
        return Estimated(released, None, jax.numpy.zeros((), bool))

    def replicate(self, key: Any, params: Any) -> Any:
        """See `PrivateEstimator.replicate`: a function alone has no simulator."""
        raise ValueError("an estimator that is a function needs simulator=, a function (key, params) -> data")

    @property
    def privacy(self) -> str:
        """See `PrivateEstimator.privacy`."""
        return self.statement


class _Wrapped(PrivateEstimator):
    """Another estimator, changed in one thing."""

    estimator: PrivateEstimator

    def randomize(self, key: Any, data: Any) -> Any:
        """See `PrivateEstimator.randomize`."""
        return self.estimator.randomize(key, data)

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`."""
        return self.estimator.estimate(released)

    def replicate(self, key: Any, params: Any) -> Any:
        """See `PrivateEstimator.replicate`."""
        return self.estimator.replicate(key, params)

    def target(self, params: Any) -> Any:
        """See `PrivateEstimator.target`."""
        return self.estimator.target(params)

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`."""
        return self.estimator.nearest(target)

    def free(self, params: Any) -> jax.Array:
        """See `PrivateEstimator.free`."""
        return self.estimator.free(params)

    def params(self, free: jax.Array, like: Any) -> Any:
        """See `PrivateEstimator.params`."""
        return self.estimator.params(free, like)

    def released(self, release: Any) -> Any:
        """See `PrivateEstimator.released`."""
        return self.estimator.released(release)

    @property
    def privacy(self) -> str:
        """See `PrivateEstimator.privacy`."""
        return self.estimator.privacy


@pytree
@dataclasses.dataclass(frozen=True)
class WithSimulator(_Wrapped):
    """A private estimator with another simulator of data.

    Parameters
    ----------
    estimator : PrivateEstimator
        What is run on the data.
    simulator : callable
        From a random key and parameters to data.
    """

    estimator: PrivateEstimator
    simulator: Callable[[Any, Any], Any] = static()

    def replicate(self, key: Any, params: Any) -> Any:
        """See `PrivateEstimator.replicate`."""
        keys = jax.random.split(key)
        return self.estimator.randomize(keys[1], self.simulator(keys[0], params))


@pytree
@dataclasses.dataclass(frozen=True)
class WithTarget(_Wrapped):
    """A private estimator of which a function of the parameters is reported.

    Parameters
    ----------
    estimator : PrivateEstimator
        What is run on the data.
    function : callable
        From parameters to what is reported, a pytree of arrays.
    """

    estimator: PrivateEstimator
    function: Callable[[Any], Any] = static()

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`; standard errors are of the parameters, so that none are left."""
        return self.estimator.estimate(released)._replace(standard_error=None)

    def target(self, params: Any) -> Any:
        """See `PrivateEstimator.target`."""
        return self.function(params)

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`: of a function it is not known what it may return."""
        return target


def check_count(estimator: WithSimulator, release: Any) -> None:
    """ValueError where a simulator makes another number of records than the estimator, which has one, is for.

    Parameters
    ----------
    estimator : WithSimulator
        Both.
    release : Release, or pytree of arrays
        What was released.
    """
    count = getattr(estimator.estimator, "count", None)
    if count is None:
        return
    params = jax.eval_shape(lambda value: estimator.estimate(value).params, estimator.released(release))
    made = jax.eval_shape(estimator.simulator, jax.random.key(0), params)
    shapes = [leaf.shape for leaf in jax.tree.leaves(made)]
    if any(shape[:1] != (count,) for shape in shapes):
        raise ValueError(
            f"simulator does not fit: the estimator is for {count} records, those that it makes have shapes {shapes}"
        )


def check_function(estimator: WithSimulator, function: Callable[[Any, Any], Any], params: Any, *, public: bool) -> None:
    """ValueError where a simulator and a function estimator do not fit, or the function reads other data.

    A replicate may depend on data through the released parameters alone. So what the function returns has to depend on
    the data it is given, and it must not hold arrays of as many rows as there are records, unless they are public.

    Parameters
    ----------
    estimator : WithSimulator
        Both.
    function : callable
        The function.
    params : pytree of arrays
        What was released.
    public : bool
        Whether all arrays that the function holds are said to be.
    """
    key = jax.random.key(0)
    try:
        data = jax.eval_shape(estimator.simulator, key, params)
        made = jax.eval_shape(function, key, data)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(
            "simulator does not fit: the estimator cannot be run on what the simulator returns for the released "
            f"parameters. {type(error).__name__}: {error}"
        ) from error
    wanted, given = (jax.tree.map(np.shape, tree) for tree in (params, made))
    if wanted != given:
        raise ValueError(
            "simulator or release does not fit: of simulated data the estimator makes parameters of shapes "
            f"{given}, those released have {wanted}"
        )
    closed = jax.make_jaxpr(function)(key, data)
    if not _depends(closed.jaxpr, len(jax.tree.leaves(key))):
        raise ValueError(
            "the estimator does not depend on the data it is given: it would read other data in every replicate. Write "
            "it as a function of (key, data)"
        )
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(data) if leaf.shape and leaf.shape[0] > 1}
    held = [const.shape for const in _constants(closed) if np.ndim(const) and np.shape(const)[0] in rows]
    if held and not public:
        raise ValueError(
            f"the estimator holds an array of shape {held[0]}, as many rows as there are records, and would read it in "
            "every replicate: if that is data, it costs privacy anew each time. If all that the estimator holds is "
            "public, such as a grid, say so by ldpbayes.bootstrap.FunctionEstimator(function)"
        )


def _depends(jaxpr: Any, first: int) -> bool:
    """Whether all outputs depend on an input from the given position on."""
    reached = set(jaxpr.invars[first:])
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, core.Literal) and v in reached for v in eqn.invars):
            reached.update(eqn.outvars)
    return all(not isinstance(v, core.Literal) and v in reached for v in jaxpr.outvars)


def _inner(eqn: Any) -> Iterator[Any]:
    """Jaxprs in the parameters of an equation."""
    for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
        if hasattr(value, "eqns"):
            yield value


def _constants(closed: Any) -> Iterator[Any]:
    """Arrays that a function was closed over, also in functions that it calls."""
    yield from getattr(closed, "consts", ())
    for eqn in closed.eqns:
        yield from (v.val for v in eqn.invars if isinstance(v, core.Literal) and np.ndim(v.val))
        for inner in _inner(eqn):
            yield from _constants(inner)
