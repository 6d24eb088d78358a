"""A progress bar that several threads count on."""

import threading

from tqdm.auto import tqdm

__all__ = ["Bar"]


class Bar:
    """A bar that counts the iterations of all chains.

    Parameters
    ----------
    total : int
        Iterations of all chains together.
    shown : bool
        Whether there is a bar at all.
    """

    def __init__(self, total: int, shown: bool) -> None:
        self._lock, self._count = threading.Lock(), 0
        self._bar = tqdm(total=total, desc="sampling", disable=not shown, mininterval=0.1)

    def add(self, count: int) -> None:
        """Count some more iterations, from any thread."""
        with self._lock:
            self._count += count

    def show(self) -> None:
        """Move the bar to where the count is."""
        self._bar.update(self._count - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.show()
        self._bar.close()
