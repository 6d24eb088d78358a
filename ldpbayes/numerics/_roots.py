"""Roots of many equations at once, by SciPy, which is imported when the first of them is to be solved."""

from collections.abc import Callable
from typing import Any

__all__ = ["find_root"]


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
