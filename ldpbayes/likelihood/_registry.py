"""A table in which a user's entries and ours stand apart, so that theirs win and neither is overwritten unseen."""

from typing import Any

__all__ = ["Registry"]


class Registry:
    """Functions or classes under keys.

    Attributes
    ----------
    own : dict
        What has been registered outside this package: it counts before ours.
    ours : dict
        What this package brings.
    """

    def __init__(self) -> None:
        self.own: dict[Any, Any] = {}
        self.ours: dict[Any, Any] = {}

    @property
    def tables(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Both, in the order in which they count."""
        return self.own, self.ours

    def add(self, key: Any, entry: Any, what: str) -> None:
        """Register a function or a class.

        Parameters
        ----------
        key : hashable
            Under which it is found.
        entry : function or class
            Whose module says whether it is one of ours.
        what : str
            What it is for, in the words of the error.

        Raises
        ------
        ValueError
            When another entry has been registered there, from the same side.
        """
        table = self.ours if entry.__module__.startswith("ldpbayes.") else self.own
        known = table.get(key, entry)
        # running a notebook cell again defines the same entry anew
        if (known.__module__, known.__qualname__) != (entry.__module__, entry.__qualname__):
            raise ValueError(f"{known!r} is registered for {what} already")
        table[key] = entry
