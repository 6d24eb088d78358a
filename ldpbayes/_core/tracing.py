"""What is known while JAX traces a function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


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
