"""How functions are compiled: on CPUs by the code generator that takes half the time."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from ldpbayes._tracing import is_concrete

__all__ = ["compiled", "quick_jit"]

# XLA's newer code generator for loops on CPUs takes twice as long to compile, and its loops are hardly faster. The
# option is dropped where XLA no longer knows it, since that generator is then the only one.
_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
_ONCE = {"xla_backend_optimization_level": 1}
"""For what runs a few times: it compiles in a quarter to a third less, and its loops are hardly slower."""


def compiled(lowered: Any) -> Callable:
    """A lowered function, compiled.

    Parameters
    ----------
    lowered : jax.stages.Lowered
        What ``jax.jit(function).lower(...)`` returns.
    """
    return _known(lambda options: lowered.compile(options), lowered.compile)


def quick_jit(function: Callable, **options: Any) -> Callable:
    """`jax.jit` for a function that is called a few times for each of its compilations, such as a whole estimation.

    Parameters
    ----------
    function : callable
        As `jax.jit` takes it.
    **options
        Of `jax.jit`.
    """
    plain = jax.jit(function, **options)
    quick = jax.jit(function, compiler_options={**_OPTIONS, **_ONCE}, **options)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not is_concrete(args, named):  # options are for what is compiled by itself
            return plain(*args, **named)
        return _known(lambda _: quick(*args, **named), lambda: plain(*args, **named))

    return call


def _known(with_options: Callable, without: Callable) -> Any:
    """The first one's result on CPUs whose compiler knows the options, else the second one's."""
    if jax.default_backend() == "cpu" and _OPTIONS:
        try:
            return with_options(_OPTIONS)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            _OPTIONS.clear()
    return without()
