"""Passes over the records below a cut: log-likelihoods and slopes at points, compiled once and run on all cores."""

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from ldpbayes.inference._cut import Cut
from ldpbayes.inference._programs import PROGRAMS, Compiled, Traced, trace

__all__ = ["Passes"]


class Passes:
    """What all records below a cut say at points, each of which costs one pass over them.

    Parameters
    ----------
    cut : Cut
        Where the model meets its records.

    Attributes
    ----------
    made : int
        How many passes there have been.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut, self.made, self._lock = cut, 0, threading.Lock()
        self._example = jax.ShapeDtypeStruct(cut.shape, np.dtype(float))
        self._traced = self._trace(jax.value_and_grad(cut.likelihood))
        self._programs: dict[bool, Any] = {}

    @property
    def numbers(self) -> int:
        """How many numbers a pass handles: what it costs, on any machine."""
        return self._traced[0].numbers

    def _trace(self, function: Callable) -> tuple[Traced, Any]:
        traced, (arrays,) = trace(lambda _, x: function(x), self._example)
        return traced, arrays

    def _program(self, slopes: bool) -> Callable:
        """With slopes or without, compiled when it is first asked for."""
        if slopes not in self._programs:
            traced, arrays = self._traced if slopes else self._trace(self._cut.likelihood)
            program = PROGRAMS.get(("pass", traced.key), lambda: Compiled(traced, arrays, self._example))
            self._programs[slopes] = functools.partial(program, arrays)
        return self._programs[slopes]

    def slopes(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-likelihoods (points,) and their gradients (points, *cut.shape) at points (points, *cut.shape)."""
        values, slopes = zip(*self._run(True, points), strict=True)
        return np.array(values), np.stack(slopes)

    def values(self, points: np.ndarray) -> np.ndarray:
        """Log-likelihoods (points,) at points (points, *cut.shape)."""
        return np.array(self._run(False, points))

    def _run(self, slopes: bool, points: np.ndarray) -> list[Any]:
        program = self._program(slopes)
        with self._lock:  # searches for the mode run in threads
            self.made += len(points)

        def one(point: np.ndarray) -> Any:
            with jax.enable_x64(True):
                return jax.tree.map(np.asarray, program(point))

        if len(points) == 1:
            return [one(points[0])]
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ldpbayes-pass") as pool:
            return list(pool.map(one, points))
