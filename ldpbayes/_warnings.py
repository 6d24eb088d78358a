"""What all warnings of the package have in common, and how they are given: with the caller's line."""

import sys
import warnings

__all__ = ["LdpBayesWarning", "warn"]

INSIDE = {"ldpbayes", "numpyro", "jax", "contextlib", "functools", "dataclasses"}
"""Packages whose lines would tell a user nothing: ours, and those through which it calls itself."""


class LdpBayesWarning(UserWarning):
    """Base of every warning of the package: a result that is given, and should not be trusted as it is."""


def warn(message: str, category: type[Warning] = LdpBayesWarning) -> None:
    """Warn, with the line outside the package that led here.

    Parameters
    ----------
    message : str
        What is wrong, and what to do.
    category : type
        Of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
