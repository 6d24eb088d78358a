"""Gauss-Legendre rules, and polynomials through their nodes."""

import numpy as np

__all__ = ["gauss_legendre", "lagrange_from_legendre"]


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
