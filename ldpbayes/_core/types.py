"""Arrays of NumPy and JAX: names of their types that annotations share, and what is known of them while JAX traces."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

Array: TypeAlias = Any  # of NumPy or JAX, a number, or a tracer: no common base class has the operators of all
ArrayModule: TypeAlias = ModuleType  # `numpy` or `jax.numpy`
Key: TypeAlias = jax.Array  # a typed or raw random key of JAX
PyTree: TypeAlias = Any  # nested containers of arrays that JAX can flatten
Params: TypeAlias = dict[str, Any]  # arrays by the names of parameters or of a model's sites
Model: TypeAlias = Callable[..., Any]  # a NumPyro model: it calls `numpyro.sample`
Message: TypeAlias = dict[str, Any]  # the state of one site that NumPyro's handlers pass on


def is_concrete(*values: Any) -> bool:
    """Whether no leaf of the pytrees is a JAX tracer, so that values can be read while a function is traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def array_of(value: ArrayLike) -> Any:
    """The value as an array: a JAX one stays as it is, anything else becomes one of NumPy."""
    return value if isinstance(value, jax.Array) else np.asarray(value)


def floating(value: ArrayLike) -> jax.Array:
    """The value as a JAX array of floating-point numbers, in its own precision where it has one."""
    value = array_of(value)
    return jnp.asarray(value, jnp.result_type(value, float))


def extreme(which: str, value: Any) -> Any:
    """Smallest ("min") or largest ("max") entry: a float if concrete."""
    return float(getattr(np, which)(value)) if is_concrete(value) else getattr(jnp, which)(value)
