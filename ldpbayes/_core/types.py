"""Names of types that annotations share; they say what `Any` would hide."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

import jax

Array: TypeAlias = Any  # of NumPy or JAX, a number, or a tracer: no common base class has the operators of all
ArrayModule: TypeAlias = ModuleType  # `numpy` or `jax.numpy`
Key: TypeAlias = jax.Array  # a typed or raw random key of JAX
PyTree: TypeAlias = Any  # nested containers of arrays that JAX can flatten
Params: TypeAlias = dict[str, Any]  # arrays by the names of parameters or of a model's sites
Model: TypeAlias = Callable[..., Any]  # a NumPyro model: it calls `numpyro.sample`
Message: TypeAlias = dict[str, Any]  # the state of one site that NumPyro's handlers pass on
