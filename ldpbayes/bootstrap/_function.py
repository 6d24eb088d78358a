"""A user's own private estimator and simulator: two functions, looked at before they are run."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core

from ldpbayes._pytree import pytree, static
from ldpbayes.bootstrap._private_estimator import Estimated, PrivateEstimator

__all__ = ["FunctionEstimator", "WithSimulator", "WithTarget", "check_count", "check_function"]


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
