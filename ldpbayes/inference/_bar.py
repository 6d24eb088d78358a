"""A progress bar that several threads count on."""

import threading
from typing import Any

from tqdm.auto import tqdm

__all__ = ["Bar"]


class Bar:
    """A bar that counts the iterations of all chains.

    Parameters
    ----------
    total : int
        Iterations of all chains together, or what else the bar shows.
    shown : bool
        Whether there is a bar at all; a stderr that is a file has none.
    each : int
        How many of what is counted the bar shows as one.
    **options
        Of `tqdm.tqdm`, such as ``desc`` and ``unit``.
    """

    def __init__(self, total: int, shown: bool, each: int = 1, **options: Any) -> None:
        self._lock, self._count, self._each = threading.Lock(), options.get("initial", 0) * each, each
        self._bar = tqdm(
            total=total, disable=None if shown else True, mininterval=0.1, **{"desc": "sampling"} | options
        )

    def add(self, count: int) -> None:
        """Count some more iterations, from any thread."""
        with self._lock:
            self._count += count

    def show(self) -> None:
        """Move the bar to where the count is."""
        self._bar.update(self._count // self._each - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.show()
        self._bar.close()
