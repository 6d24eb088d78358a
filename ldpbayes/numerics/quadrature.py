"""Gauss-Legendre rules, and roots of functions of one number."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial.legendre import leggauss, legvander

from ldpbayes._core.types import Array


def lagrange_from_legendre(order: int) -> np.ndarray:
    """Matrix C that turns Legendre moments into weights at Gauss-Legendre nodes: ℓ_k(t) = Σ_n C[n, k] P_n(t)."""
    t, w = leggauss(order)
    n = np.arange(order)
    return (n[:, None] + 0.5) * legvander(t, order - 1).T * w


def find_root(function: Callable, bracket: tuple[Array, Array], *, args: tuple[Array, ...]) -> Any:
    """Elementwise roots between the arrays of a bracket, by `scipy.optimize.elementwise.find_root`."""
    from scipy.optimize import elementwise  # takes a fifth of a second to import

    return elementwise.find_root(function, bracket, args=args)
