"""Gauss-Legendre rules, and roots of functions of one number."""

from collections.abc import Callable
from typing import Any

import numpy as np


def gauss_legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss-Legendre rule on [−1, 1], each of shape (order,).

    Parameters
    ----------
    order : int
        Number of nodes, positive.
    """
    return np.polynomial.legendre.leggauss(order)


def lagrange_from_legendre(order: int) -> np.ndarray:
    """Matrix that turns Legendre moments into weights at Gauss-Legendre nodes, exactly for polynomials.

    Parameters
    ----------
    order : int
        Number of nodes.

    Returns
    -------
    ndarray (order, order)
        C with ℓ_k(t) = Σ_n C[n, k] P_n(t).
    """
    t, w = gauss_legendre(order)
    n = np.arange(order)
    return (n[:, None] + 0.5) * np.polynomial.legendre.legvander(t, order - 1).T * w


def find_root(function: Callable, bracket: tuple[Any, Any], *, args: tuple) -> Any:
    """`scipy.optimize.elementwise.find_root`; that module takes a fifth of a second to import.

    Parameters
    ----------
    function : callable
        Of an array and `args`, elementwise.
    bracket : tuple of two arrays
        Between which the roots are.
    args : tuple of arrays
        Further arguments.
    """
    from scipy.optimize import elementwise

    return elementwise.find_root(function, bracket, args=args)
