"""The protocol of private estimators, and any function of data as one."""

import abc
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import IdentityTransform, Transform

from ldpbayes._core.pytrees import pytree_dataclass, static
from ldpbayes._core.types import Array, Key, Params, PyTree
from ldpbayes.data import Release

Simulator = Callable[[Key, PyTree], PyTree]  # from a random key and parameters to data
Constraints = Mapping[str, Constraint]


def _bijection(constraint: Constraint) -> Transform:
    """NumPyro's, but for probabilities, which may be 0 and 1: there a logit would be infinite."""
    edges = constraint is constraints.unit_interval or constraint is constraints.simplex
    return IdentityTransform() if edges else biject_to(constraint)


def free_vector(allowed: Constraints, params: Params) -> jax.Array:
    """Parameters, a dict, as a vector (q,) in which any step is allowed."""
    return ravel_pytree({k: _bijection(allowed[k]).inv(jnp.asarray(value, float)) for k, value in params.items()})[0]


def params_of_free(allowed: Constraints, vector: Array, like: Params) -> Params:
    """Inverse of `free_vector`, for parameters of the shapes of ``like``; probabilities are the nearest."""
    free = {k: _bijection(allowed[k]).inv(jnp.asarray(value, float)) for k, value in like.items()}
    params = {k: _bijection(allowed[k])(part) for k, part in ravel_pytree(free)[1](vector).items()}
    for name, value in params.items():
        if allowed[name] is constraints.unit_interval:
            params[name] = jnp.clip(value, 0.0, 1.0)
        if allowed[name] is constraints.simplex:
            params[name] = nearest_probabilities(value)
    return params


def nearest_probabilities(shares: jax.Array) -> jax.Array:
    """The nearest point of the simplex, by Euclidean distance ([WC])."""
    falling = jnp.sort(shares)[::-1]
    excess = (jnp.cumsum(falling) - 1) / jnp.arange(1, len(shares) + 1)
    probs = jnp.maximum(shares - excess[jnp.sum(falling > excess) - 1], 0.0)
    return probs / jnp.sum(probs)


class Estimated(NamedTuple):
    """Parameters estimated from a release: all that a simulator needs, a pytree of arrays.

    The ``standard_error`` (p,) is that of the flat `PrivateEstimator.target` by a formula; None where there is none.
    ``outside`` () says whether the release was outside the domain of the estimator, which then did as it documents.
    """

    params: PyTree
    standard_error: Array | None
    outside: Array


class PrivateEstimator(abc.ABC):
    """An estimator of which `randomize` alone reads data; everything else is post-processing and costs no privacy.

    Subclasses are frozen dataclasses decorated with ``@ldpbayes.noise.pytree``: numbers are leaves, so that compiled
    replicates serve all estimators of a kind. `randomize`, `estimate` and `simulate_release` are traceable.
    """

    constraints: Constraints | None = None
    """NumPyro's constraints of the parameters, which are a dict then; None where any numbers are parameters."""

    @abc.abstractmethod
    def randomize(self, key: Key, data: Array) -> PyTree:
        """Values released of records (n, *event): with noise, and protected by the guarantee that `privacy` states."""

    @abc.abstractmethod
    def estimate(self, values: PyTree) -> Estimated:
        """Parameters from released values, in the form in which `randomize` returns them."""

    @abc.abstractmethod
    def simulate_release(self, key: Key, params: PyTree) -> PyTree:
        """Values as `randomize` returns them, of data that are drawn with these parameters."""

    def target(self, params: PyTree) -> PyTree:
        """The reported part or function of the parameters: by default all of them."""
        return params

    def nearest(self, target: PyTree) -> PyTree:
        """The nearest allowed target, for one that a correction has moved; by default any is allowed."""
        return target

    def unconstrained(self, params: PyTree) -> jax.Array:
        """Parameters as a vector (q,) in which any step is allowed."""
        return ravel_pytree(params)[0] if self.constraints is None else free_vector(self.constraints, params)

    def constrained(self, vector: Array, like: PyTree) -> PyTree:
        """Inverse of `unconstrained`; ``like`` holds parameters of the wanted form."""
        unflatten = ravel_pytree(like)[1]
        return unflatten(vector) if self.constraints is None else params_of_free(self.constraints, vector, like)

    def release_values(self, release: Release | PyTree) -> PyTree:
        """The values for `estimate` in a user's release; ValueError if it is not a release of this estimator."""
        return jax.tree.map(jnp.asarray, release)

    @property
    @abc.abstractmethod
    def privacy(self) -> str:
        """Statement of the guarantee for those whose records were read."""


@pytree_dataclass
class FunctionEstimator(PrivateEstimator):
    """A function of a key and data that returns private parameters: the returned parameters are the release.

    Parameters
    ----------
    function : callable
        From (key, data) to parameters, a pytree of arrays, in JAX. It bounds what it takes from each record and adds
        the noise itself. Arrays that it holds, such as a grid, are public.
    statement : str
        Its guarantee, for the result's privacy statement.
    """

    function: Callable[[Key, PyTree], PyTree] = static()
    statement: str = static(default="privacy: as promised by the estimator that was given")

    def randomize(self, key: Key, data: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), self.function(key, data))

    def estimate(self, values: PyTree) -> Estimated:
        return Estimated(values, None, jnp.zeros((), bool))

    def simulate_release(self, key: Key, params: PyTree) -> PyTree:
        raise ValueError("an estimator that is a function needs simulator=, a function (key, params) -> data")

    @property
    def privacy(self) -> str:
        return self.statement


@pytree_dataclass
class AdaptedEstimator(PrivateEstimator):
    """A private estimator with a user's simulator, or a user's target of the parameters."""

    estimator: PrivateEstimator
    simulator: Simulator | None = static(default=None)
    target_function: Callable[[PyTree], PyTree] | None = static(default=None)

    def randomize(self, key: Key, data: PyTree) -> PyTree:
        return self.estimator.randomize(key, data)

    def estimate(self, values: PyTree) -> Estimated:
        result = self.estimator.estimate(values)
        # standard errors by a formula are those of the estimator's own target
        return result if self.target_function is None else result._replace(standard_error=None)

    def simulate_release(self, key: Key, params: PyTree) -> PyTree:
        if self.simulator is None:
            return self.estimator.simulate_release(key, params)
        keys = jax.random.split(key)
        return self.estimator.randomize(keys[1], self.simulator(keys[0], params))

    def target(self, params: PyTree) -> PyTree:
        return (self.target_function or self.estimator.target)(params)

    def nearest(self, target: PyTree) -> PyTree:
        return self.estimator.nearest(target) if self.target_function is None else target

    def unconstrained(self, params: PyTree) -> jax.Array:
        return self.estimator.unconstrained(params)

    def constrained(self, vector: Array, like: PyTree) -> PyTree:
        return self.estimator.constrained(vector, like)

    def release_values(self, release: Release | PyTree) -> PyTree:
        return self.estimator.release_values(release)

    @property
    def privacy(self) -> str:
        return self.estimator.privacy


def with_simulator(
    estimator: PrivateEstimator | Callable, simulator: Simulator | None, release: Release | PyTree
) -> PrivateEstimator:
    """A user's estimator with the user's simulator, if there is one, after a check that the two fit the release."""
    if isinstance(estimator, PrivateEstimator) and not isinstance(estimator, FunctionEstimator):
        if simulator is None:
            return estimator
        _check_count(estimator, simulator, release)
        return AdaptedEstimator(estimator, simulator)
    if not isinstance(estimator, FunctionEstimator) and not callable(estimator):
        kinds = "one of ldpbayes.bootstrap, or a function (key, data) -> parameters"
        raise TypeError(f"estimator must be {kinds}, got {estimator!r}")
    if simulator is None:
        raise ValueError("an estimator that is a function needs simulator=, a function (key, parameters) -> data")
    private = estimator if isinstance(estimator, FunctionEstimator) else FunctionEstimator(estimator)
    _check_function(private.function, simulator, private.release_values(release), public=private is estimator)
    return AdaptedEstimator(private, simulator)


def _check_count(estimator: PrivateEstimator, simulator: Simulator, release: PyTree) -> None:
    """ValueError where a simulator makes another number of records than its estimator is for."""
    if (count := getattr(estimator, "count", None)) is None:
        return
    params = jax.eval_shape(lambda values: estimator.estimate(values).params, estimator.release_values(release))
    data = jax.eval_shape(simulator, jax.random.key(0), params)
    shapes = [leaf.shape for leaf in jax.tree.leaves(data)]
    if any(shape[:1] != (count,) for shape in shapes):
        text = f"the estimator is for {count} records, those that it makes have shapes {shapes}"
        raise ValueError(f"simulator does not fit: {text}")


def _check_function(function: Callable, simulator: Simulator, params: PyTree, *, public: bool) -> None:
    """ValueError where a simulator does not fit a function, or the function reads other data than its argument.

    A replicate may depend on data through the released parameters alone. So the function's value has to depend on its
    data, and unless ``public`` it must not hold arrays of as many rows as there are records.
    """
    key = jax.random.key(0)
    try:
        data = jax.eval_shape(simulator, key, params)
        value = jax.eval_shape(function, key, data)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(
            "simulator does not fit: the estimator cannot be run on what the simulator returns for the released "
            f"parameters. {type(error).__name__}: {error}"
        ) from error
    released_shapes, simulated_shapes = (jax.tree.map(np.shape, tree) for tree in (params, value))
    if released_shapes != simulated_shapes:
        raise ValueError(
            "simulator or release does not fit: of simulated data the estimator makes parameters of shapes "
            f"{simulated_shapes}, those released have {released_shapes}"
        )
    closed = jax.make_jaxpr(function)(key, data)
    if not _depends_on_inputs(closed.jaxpr, len(jax.tree.leaves(key))):
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


def _depends_on_inputs(jaxpr: core.Jaxpr, first: int) -> bool:
    """Whether every output depends on an input from position ``first`` on."""
    reached = set(jaxpr.invars[first:])
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, core.Literal) and v in reached for v in eqn.invars):
            reached.update(eqn.outvars)
    return all(not isinstance(v, core.Literal) and v in reached for v in jaxpr.outvars)


def _constants(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> Iterator[Array]:
    """Arrays that a traced function holds, and that functions which it calls hold."""
    yield from getattr(jaxpr, "consts", ())
    for eqn in jaxpr.eqns:
        yield from (v.val for v in eqn.invars if isinstance(v, core.Literal) and np.ndim(v.val))
        for parameter in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            if hasattr(parameter, "eqns"):
                yield from _constants(parameter)
