"""Noisy tables: releases whose values are cells with keys, as statistical offices publish them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ldpbayes._core.pytrees import host, pytree_dataclass
from ldpbayes.data.release import Release


@pytree_dataclass(eq=False, repr=False)
class NoisyTable(Release):
    """A release of statistics, a cell each, with keys that say whom each cell counts.

    Parameters
    ----------
    values, mechanism, count
        As of `Release`: a value a cell (N,), and an additive mechanism without bounds.
    keys : dict of str to array (N,)
        Labels of the cells by the name of the key, outermost first: ``{"state": [...], "county": [...]}``.
    """

    keys: Mapping[str, Any] = host(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        keys = {str(name): np.asarray(labels) for name, labels in (self.keys or {}).items()}
        object.__setattr__(self, "keys", keys)

    @property
    def dim(self) -> str:
        """Name of the axis of cells: that of the only key, or "cell"."""
        return next(iter(self.keys)) if len(self.keys) == 1 else "cell"

    @property
    def labels(self) -> np.ndarray:
        """A label a cell (N,): the labels of its keys with commas between them."""
        return np.array([", ".join(map(str, row)) for row in zip(*self.keys.values(), strict=True)])

    def levels(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Distinct labels of a key in the order of the cells, and the position (N,) of each cell's label among them."""
        labels, first, codes = np.unique(self.keys[key], return_index=True, return_inverse=True)
        order = np.argsort(first)
        return labels[order], np.argsort(order)[codes]
