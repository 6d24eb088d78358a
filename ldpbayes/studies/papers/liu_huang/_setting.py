"""A data set with what [LH] sets for it."""

import dataclasses
import os
from collections.abc import Mapping

import numpy as np

from ldpbayes.studies.papers.liu_huang._data import california, communities
from ldpbayes.studies.papers.liu_huang._printed import PARAMETERS, TABLE_1, TABLE_2, TABLE_4, Printed

__all__ = ["Setting", "california_setting", "communities_setting", "criteo_setting"]

COMMUNITIES_RANGE = (0.0, 1.0)
CALIFORNIA_RANGE = (0.14999, 5.00001)
CRITEO_RANGE = (0.0, 400.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A data set, its public range of labels, and parameters.

    Attributes
    ----------
    features, labels : ndarray (N, d), (N,)
        The table.
    bounds : pair of float
        Of labels, known without looking at them.
    parameters : mapping of float to pair of float
        By ε, the budget ε₁ of the prior and the half-width: Table 5.
    printed : mapping
        The paper's table.
    cell : float
        To which labels are rounded for RRonBins: what [LH] E.2 gives as their number fits this.
    rounds : int
        How many fifths of the records for training are held out in turn, where a network is validated.
    """

    features: np.ndarray
    labels: np.ndarray
    bounds: tuple[float, float]
    parameters: Mapping[float, tuple[float, float]]
    printed: Printed
    cell: float = 0.01
    rounds: int = 1

    @property
    def cells(self) -> np.ndarray:
        """Ends of cells that cover the range."""
        lower, upper = self.bounds
        return self.cell * np.arange(np.floor(lower / self.cell), np.ceil(upper / self.cell) + 1)


def communities_setting(folder: str | os.PathLike | None) -> Setting:
    """Table 1.

    Parameters
    ----------
    folder : path or None
        As for `communities`.
    """
    return Setting(*communities(folder), COMMUNITIES_RANGE, PARAMETERS["communities"], TABLE_1, rounds=5)


def california_setting(folder: str | os.PathLike | None) -> Setting:
    """Table 4.

    Parameters
    ----------
    folder : path or None
        As for `california`.
    """
    return Setting(*california(folder), CALIFORNIA_RANGE, PARAMETERS["california"], TABLE_4, rounds=2)


def criteo_setting(features: np.ndarray, labels: np.ndarray) -> Setting:
    """Table 2.

    Parameters
    ----------
    features, labels : ndarray (N, d), (N,)
        Of sales from 0 to 400 euros.
    """
    return Setting(features, labels, CRITEO_RANGE, PARAMETERS["criteo"], TABLE_2, cell=1.0)
