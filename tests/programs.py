"""Compiled functions that many tests share, in double precision and with NumPy arrays as results.

Compiling takes most of a test's time, so laws, mechanisms, parameters and values are arguments here: one program serves
all that have their structure (classes and shapes) in common. Values of a single law are padded to 8, 64, 512, ... for
that reason. Give parameters and values as Python numbers or NumPy arrays, and keep constructors (`make`, `function`) at
module level: a `lambda` inside a test is a new program for each call.

>>> log_prob(dist.Normal(0.3, 1.0), ldp.LaplaceMechanism(1.0, 0, 1), z)          # log p(z | θ), z integrated over x
>>> value_and_grad(dist.Normal, (0.3, 1.0), ldp.LaplaceMechanism(1.0, 0, 1), z)  # and derivatives of its sum in θ
>>> randomize(ldp.RandomizedResponse(1.0, 4), codes, seed=3)
>>> call("cdf", dist.Gamma(2.0, 1.0), x)                                         # any method of any pytree
>>> evaluate(of_law, law, x)                                                     # any function of arrays and pytrees

What fixes the shape of a computation cannot be an argument: the bounds of clipped counts, the scale of discrete
Gaussian noise, the trials of a binomial law. `constant` makes a law or a mechanism part of the program:

>>> log_prob(dist.Poisson(3.0), constant(ldp.DiscreteGaussianMechanism(36.0)), z)
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes import Privatized

__all__ = ["call", "constant", "evaluate", "log_prob", "randomize", "sample", "value_and_grad"]


@jax.tree_util.register_static
class Constant:
    """A pytree without leaves, equal to others that hold the same structure and numbers."""

    def __init__(self, thing):
        leaves, structure = jax.tree.flatten(thing)
        arrays = [np.asarray(leaf) for leaf in leaves]
        self.thing, self.key = thing, (structure, *((a.shape, a.dtype.str, a.tobytes()) for a in arrays))

    def __eq__(self, other):
        return isinstance(other, Constant) and self.key == other.key

    def __hash__(self):
        return hash(self.key)


def constant(thing):
    """Make a law or a mechanism part of the program: one more program for each that differs in a number."""
    return Constant(thing)


def opened(thing):
    return thing.thing if isinstance(thing, Constant) else thing


def in_double_precision(function):
    """The function in double precision, with NumPy arrays (of pytrees too) as results."""

    @functools.wraps(function)
    def wrapped(*arguments, **options):
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, function(*arguments, **options))

    return wrapped


@in_double_precision
def log_prob(law, mechanism, values, **options):
    """Log density (*batch) of released values of a law under a mechanism; options are those of `Privatized`."""
    return _of_padded(_log_prob, (law, mechanism), (law, mechanism), values, tuple(options.items()))


@in_double_precision
def value_and_grad(make, parameters, mechanism, values, **options):
    """Log densities (*batch) of values of the law ``make(*parameters)``, and derivatives of their sum in parameters.

    Where each value has parameters of its own, the derivatives are those of each log density.
    """
    laws = jax.eval_shape(make, *parameters), mechanism
    return _of_padded(_value_and_grad, laws, (make, tuple(parameters), mechanism), values, tuple(options.items()))


@in_double_precision
def randomize(mechanism, x, seed=0):
    """What a mechanism releases of records."""
    return _randomize(mechanism, np.asarray(x), seed)


@in_double_precision
def sample(law, seed=0, shape=()):
    """Draws of shape (*shape, *batch, *event) of a distribution."""
    return _sample(law, seed, shape)


@in_double_precision
def call(name, thing, *arguments):
    """A method of a law, a noise or a mechanism at some arguments, or its property if there are none."""
    return _call(name, thing, *arguments)


@in_double_precision
def evaluate(function, *arguments):
    """A function at module level of arrays and pytrees, compiled once for all arguments of a structure."""
    return _evaluate(function, *arguments)


def _of_padded(program, laws, arguments, values, options):
    laws, values = [opened(law) for law in laws], np.asarray(values)
    count = len(values) if values.ndim > len(laws[1].event_shape) and not any(law.batch_shape for law in laws) else 0
    room = 8 ** max(1, int(np.ceil(np.log(max(count, 1)) / np.log(8) - 1e-9)))
    padded = values[np.minimum(np.arange(room), count - 1)] if count else values
    result = program(*arguments, padded, count, options)
    of_values, *others = result if isinstance(result, tuple) else (result,)
    of_values = np.asarray(of_values)[:count] if count else of_values
    return (of_values, *others) if others else of_values


@functools.partial(jax.jit, static_argnums=4)
def _log_prob(law, mechanism, values, count, options):
    return Privatized(opened(law), opened(mechanism), **dict(options)).log_prob(values)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _value_and_grad(make, parameters, mechanism, values, count, options):
    def total(parameters):
        each = Privatized(make(*parameters), opened(mechanism), **dict(options)).log_prob(values)
        counted = (jnp.arange(len(each)) < count) | (count == 0) if each.ndim else True
        return jnp.sum(jnp.where(counted, each, 0.0)), each

    (_, each), slopes = jax.value_and_grad(total, has_aux=True)(parameters)
    return each, slopes


@jax.jit
def _randomize(mechanism, x, seed):
    return opened(mechanism).randomize(jax.random.key(seed), x)


@functools.partial(jax.jit, static_argnums=2)
def _sample(law, seed, shape):
    return opened(law).sample(jax.random.key(seed), shape)


@functools.partial(jax.jit, static_argnums=0)
def _call(name, thing, *arguments):
    attribute = getattr(opened(thing), name)
    return attribute(*arguments) if callable(attribute) else attribute


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(function, *arguments):
    return function(*map(opened, arguments))
