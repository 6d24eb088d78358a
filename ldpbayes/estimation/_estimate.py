"""What every estimate has, whatever made it."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

__all__ = ["Estimate", "statements", "table", "tails"]


@runtime_checkable
class Estimate(Protocol):
    """A point estimate with its errors, and the privacy of what it was made from."""

    @property
    def estimate(self) -> Any:
        """The estimate, in the form in which it was asked for."""
        ...

    @property
    def params(self) -> np.ndarray:
        """The same as a flat array (p,)."""
        ...

    @property
    def names(self) -> list[str]:
        """What the p numbers are called."""
        ...

    @property
    def covariance(self) -> np.ndarray | None:
        """Covariance (p, p), for sampling and perturbation together; None where no theory gives it."""
        ...

    @property
    def standard_error(self) -> np.ndarray | None:
        """Standard errors (p,); None where no theory gives them."""
        ...

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of confidence intervals.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.
        """
        ...

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates in plain text.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        ...

    @property
    def privacy(self) -> str:
        """What was promised to those whose records it was made from, one paragraph a release."""
        ...


def statements(mechanisms: Iterable[Any]) -> str:
    """What mechanisms promise, each statement once.

    Parameters
    ----------
    mechanisms : sequence of Mechanism
        One a release.
    """
    return "\n".join(dict.fromkeys(mechanism.guarantee.statement() for mechanism in mechanisms))


def table(title: str, first: str, head: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table in plain text, like those of statsmodels.

    Parameters
    ----------
    title : str
        The line above it.
    first : str
        What is named; the column of names is at least as wide.
    head : str
        The head of the numbers.
    rows : sequence of (str, str)
        Name and numbers of each row.
    """
    width = max(len(first), *(len(name) for name, _ in rows))
    head = f"{'':{width}} {head}"
    body = [f"{name:{width}} {numbers}" for name, numbers in rows]
    return "\n".join([title, "=" * len(head), head, "-" * len(head), *body, "=" * len(head)])


def tails(level: float) -> tuple[str, str]:
    """Heads of the columns with an interval's ends: the probabilities below them.

    Parameters
    ----------
    level : float
        Coverage, between 0 and 1.
    """
    return f"[{(1 - level) / 2:.3g}", f"{(1 + level) / 2:.3g}]"
