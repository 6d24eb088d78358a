"""What several mechanisms promise together, in words."""

from collections.abc import Iterable
from typing import Any

__all__ = ["statements"]


def statements(mechanisms: Iterable[Any]) -> str:
    """What mechanisms promise, each statement once, a paragraph each.

    Parameters
    ----------
    mechanisms : sequence of Mechanism
        One a release.
    """
    return "\n".join(dict.fromkeys(mechanism.guarantee.statement() for mechanism in mechanisms))
