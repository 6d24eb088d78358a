"""Names of types that annotations share; they say what `Any` would hide."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax

Array: TypeAlias = Any
"""An array of NumPy or JAX, a number, or a tracer of one: no common base class has the operators of all."""

Key: TypeAlias = jax.Array
"""A typed or raw random key of JAX."""

PyTree: TypeAlias = Any
"""Nested containers of arrays that JAX can flatten."""

Params: TypeAlias = dict[str, Any]
"""Arrays by the names of parameters or of a model's sites."""

Model: TypeAlias = Callable[..., Any]
"""A NumPyro model: it calls `numpyro.sample` and returns what it likes."""

Message: TypeAlias = dict[str, Any]
"""What NumPyro's handlers pass on about one site."""
