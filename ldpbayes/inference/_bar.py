"""A progress bar that several threads count on."""

import sys
import threading
import time
from typing import Any

from tqdm.auto import tqdm

__all__ = ["Bar"]

FIRST, LATER = 10.0, 300.0
"""Seconds until a file has its first line; from line to line the time doubles, up to the second number more."""
MANY = 180.0
"""Seconds from which on it is said how long the rest takes, and what would be faster."""


class Bar:
    """A bar that counts the iterations of all chains; where stderr is a file, lines that say how many there have been.

    Parameters
    ----------
    total : int
        Iterations of all chains together, or what else the bar shows.
    shown : bool
        Whether there is a bar at all.
    each : int
        How many of what is counted the bar shows as one.
    faster : str, optional
        What would be faster: said once, with the expected time, where much is left after the first seconds. Nothing is
        said by default.
    **options
        Of `tqdm.tqdm`, such as ``desc`` and ``unit``.
    """

    def __init__(self, total: int, shown: bool, each: int = 1, faster: str | None = None, **options: Any) -> None:
        self._lock, self._count, self._each = threading.Lock(), options.get("initial", 0) * each, each
        options = {"desc": "sampling"} | options
        self._shown, self._faster, self._total, self._name = shown, faster, total, options["desc"]
        self._began, self._next = time.monotonic(), FIRST
        self._first: tuple[float, int] | None = None  # when the first iterations had been made, and how many
        self._steps, self._seconds = 0.0, 0.0
        self._bar = tqdm(total=total, disable=None if shown else True, mininterval=0.1, **options)

    def add(self, count: int, steps: float = 0.0, seconds: float = 0.0) -> None:
        """Count some more iterations, from any thread, and the gradients that a chain has taken in so many seconds."""
        with self._lock:
            self._count += count
            self._steps, self._seconds = self._steps + steps, self._seconds + seconds

    def show(self) -> None:
        """Move the bar to where the count is, or write a line when it is time for one."""
        self._bar.update(self._count // self._each - self._bar.n)
        now, count = time.monotonic(), self._count
        if count > 0 and self._first is None:
            self._first = now, count
        if not self._shown or now - self._began < self._next:
            return
        self._next = min(2 * self._next, self._next + LATER)
        when, before = self._first or (now, count)
        left = (now - when) / (count - before) * (self._total * self._each - count) if count > before else None
        if left is not None and left > MANY and self._faster is not None:
            gradient = f" A gradient takes {1000 * self._seconds / self._steps:.3g} ms." if self._steps else ""
            said = f"ldpbayes: sampling may take another {left / 60:.0f} minutes.{gradient} {self._faster}"
            tqdm.write(said.rstrip(), file=sys.stderr)
            self._faster = None
        if self._bar.disable:
            rest = ", compiling" if count == 0 else "" if left is None else f", about {_time(left)} left"
            done = f"{self._name}: {count // self._each:,} of {self._total:,} after {_time(now - self._began)}"
            print(f"{done}{rest}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.show()
        self._bar.close()


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * 60 else f"{seconds / 60:.0f} min"
