"""Cells of a study, some at a time, kept in a checkpoint."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np

from ldpbayes.studies._checkpoint import Checkpoint

__all__ = ["computed"]


def computed(
    cells: Mapping[str, tuple[type, Callable[[], Any]]],
    settings: dict[str, Any],
    checkpoint: str | os.PathLike | None,
    workers: int,
) -> dict[str, Any]:
    """Results of all cells; those that a checkpoint has are not computed again.

    Parameters
    ----------
    cells : mapping of str to (type, callable)
        A named tuple of arrays and what returns one, by names for the checkpoint.
    settings : dict
        What a checkpoint must agree about.
    checkpoint : path or None
        An ``.npz`` file to which every finished cell is added.
    workers : int
        Cells that run at a time. Each is one compiled call that keeps about one core busy.

    Returns
    -------
    dict of str to named tuple
    """
    found = {}
    with Checkpoint(checkpoint, settings) as done, ThreadPoolExecutor(workers) as pool:
        waiting = {}
        for name, (kind, cell) in cells.items():
            stored = [done.get(f"{name} {field}") for field in kind._fields]  # type: ignore[attr-defined]
            if all(array is not None for array in stored):
                found[name] = kind(*stored)
            else:
                waiting[pool.submit(cell)] = name
        try:
            for future in as_completed(waiting):
                name, result = waiting[future], future.result()
                found[name] = result
                done.update({f"{name} {field}": np.asarray(array) for field, array in result._asdict().items()})
                done.save()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found
