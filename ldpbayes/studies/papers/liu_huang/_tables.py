"""Tables 1, 2 and 4 of [LH], with columns for learning that knows the noise."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from ldpbayes._checks import at_least
from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies.papers.kulkarni_et_al._splits import Splits
from ldpbayes.studies.papers.liu_huang._criteo import criteo
from ldpbayes.studies.papers.liu_huang._learners import LEARNERS
from ldpbayes.studies.papers.liu_huang._network import PAPER
from ldpbayes.studies.papers.liu_huang._printed import EPSILONS, Printed
from ldpbayes.studies.papers.liu_huang._releases import RELEASES
from ldpbayes.studies.papers.liu_huang._setting import Setting, california_setting, communities_setting, criteo_setting

__all__ = ["COLUMNS", "Table", "table_1", "table_2", "table_4"]

COLUMNS: dict[str, tuple[str, str]] = {
    "Laplace": ("Laplace", "paper"),
    "Gaussian": ("Gaussian", "paper"),
    "staircase": ("staircase", "paper"),
    "RRonBins": ("RRonBins", "paper"),
    "RPWithPrior": ("Algorithm 4", "paper"),
    "Unbiased": ("Unbiased", "paper"),
    "Gaussian, analytic": ("Gaussian, analytic", "paper"),
    "RPWithPrior, prior from the labels": ("prior from the labels", "paper"),
    **{
        f"{named}, {how}": (release, how)
        for named, release in (
            ("public range", "public range"),
            ("Algorithm 4", "Algorithm 4"),
            ("private prior", "private prior"),
            ("Laplace", "Laplace"),
        )
        for how in ("marginal likelihood, linear", "marginal likelihood, network")
    },
    "public range, paper's network": ("public range", "paper"),
    "public range, squared error, linear": ("public range", "squared error, linear"),
    "public range, unbiased labels, linear": ("public range", "unbiased labels, linear"),
}
"""What is released, and how it is learned from; "public range" is RPWithPrior with no budget spent on a prior."""
WITHOUT_PRIVACY = 20.0
"""The budget that stands for an infinite one where a likelihood needs a mechanism."""
WITHOUT_PRIOR = ("public range", "Laplace")


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Errors of predicted labels on the records for testing, beside the printed ones.

    Attributes
    ----------
    errors : dict of (float, str) to ndarray (trials,)
        Mean squared error of each trial against true labels, by budget and column.
    printed : mapping
        The paper's means and standard deviations, by budget and column.
    """

    errors: Mapping[tuple[float, str], np.ndarray]
    printed: Printed

    def mean(self, epsilon: float, column: str) -> float:
        """Mean over the trials.

        Parameters
        ----------
        epsilon : float
            Budget.
        column : str
            One of `COLUMNS`.
        """
        return float(np.mean(self.errors[epsilon, column]))

    def deviation(self, epsilon: float, column: str) -> float:
        """Standard deviation over the trials.

        Parameters
        ----------
        epsilon : float
            Budget.
        column : str
            One of `COLUMNS`.
        """
        return float(np.std(self.errors[epsilon, column], ddof=1))

    def ratio(self, epsilon: float, column: str) -> float:
        """Of the mean to that of the paper's own column "Ours".

        Parameters
        ----------
        epsilon : float
            Budget.
        column : str
            One of `COLUMNS`.
        """
        return self.mean(epsilon, column) / self.printed[epsilon]["RPWithPrior"][0]

    def table(self) -> str:
        """Means ± standard deviations in Markdown, a line a budget; the printed ones in brackets."""
        epsilons = list(dict.fromkeys(epsilon for epsilon, _ in self.errors))
        columns = list(dict.fromkeys(column for _, column in self.errors))
        lines = [["ε", *columns], ["---"] * (1 + len(columns))]
        for epsilon in epsilons:
            cells = [self._cell(epsilon, column) for column in columns]
            lines.append(["∞" if math.isinf(epsilon) else f"{epsilon:g}", *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _cell(self, epsilon: float, column: str) -> str:
        if (epsilon, column) not in self.errors:
            return ""
        found = f"{self.mean(epsilon, column):.4f} ± {self.deviation(epsilon, column):.4f}"
        mean, deviation = self.printed[epsilon].get(column, (None, None))
        return found if mean is None else f"{found} ({mean:.4f} ± {deviation:.4f})"


def table_1(
    folder: str | os.PathLike | None = None,
    *,
    trials: int = 10,
    epsilons: Sequence[float] = EPSILONS,
    columns: Sequence[str] = tuple(COLUMNS),
    epochs: int = 50,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
) -> Table:
    """Table 1: Communities and Crime, mean squared error of 399 communities after learning from 1,595 released labels.

    Columns with the names of the paper's have its network, trained by squared error on released labels. Of the others
    the first part is what is released, the second how it is learned from; penalties and priors are chosen from released
    labels alone, and no column sees a label of a record for testing.

    Parameters
    ----------
    folder : path, optional
        With the table; see `communities`.
    trials : int
        Random splits into 80 % and 20 %; at least 2.
    epsilons : sequence of float
        Out of the paper's. Infinity is the labels themselves, or a budget of 20 where a likelihood needs a mechanism;
        columns that spend a budget on a prior have no such line.
    columns : sequence of str
        Out of `COLUMNS`.
    epochs : int
        Passes of a network over the labels: the paper's 50 with the rate divided by ten after half of them.
    seed : int
        Of all that is random. At one budget columns have the same splits.
    checkpoint : path, optional
        An ``.npz`` file to which every finished cell is added, and from which an interrupted study resumes.

    Returns
    -------
    Table

    Raises
    ------
    FileNotFoundError
        If the table is not there.
    ValueError
        For a budget or a column that is not among them, or a checkpoint of another study.
    """
    return _table(communities_setting(folder), trials, epsilons, columns, epochs, seed, checkpoint)


def table_2(
    path: str | os.PathLike,
    *,
    trials: int = 10,
    epsilons: Sequence[float] = EPSILONS,
    columns: Sequence[str] = tuple(COLUMNS),
    epochs: int = 50,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
) -> Table:
    """Table 2: Criteo's log, mean squared error of 329,195 sales in euros² after learning from 1,316,782 released ones.

    The log is not part of this package's data, so that nothing is recorded of it. The network is that of `table_1` with
    8,192 labels a step, on `Criteo.features`; the paper has embeddings, and trains by RMSProp.

    Parameters
    ----------
    path : path
        Of the log; see `criteo`.
    trials : int
        As for `table_1`; each takes 300 megabytes of memory.
    epsilons, columns, epochs, seed, checkpoint
        As for `table_1`.

    Returns
    -------
    Table

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        For a file of another schema, a budget or a column that is not among them, or a checkpoint of another study.
    """
    sales = criteo(path)
    setting = criteo_setting(sales.features(), sales.labels.astype(float))
    return _table(setting, trials, epsilons, columns, epochs, seed, checkpoint, batch=8192)


def table_4(
    folder: str | os.PathLike | None = None,
    *,
    trials: int = 10,
    epsilons: Sequence[float] = EPSILONS,
    columns: Sequence[str] = tuple(COLUMNS),
    epochs: int = 50,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
) -> Table:
    """Table 4: California Housing, mean squared error of 4,128 block groups after learning from 16,512 released labels.

    Parameters
    ----------
    folder : path, optional
        With the table; see `california`.
    trials, epsilons, columns, epochs, seed, checkpoint
        As for `table_1`.

    Returns
    -------
    Table

    Raises
    ------
    FileNotFoundError
        If the table is not there.
    ValueError
        For a budget or a column that is not among them, or a checkpoint of another study.
    """
    return _table(california_setting(folder), trials, epsilons, columns, epochs, seed, checkpoint)


def _table(
    setting: Setting,
    trials: int,
    epsilons: Sequence[float],
    columns: Sequence[str],
    epochs: int,
    seed: int,
    checkpoint: str | os.PathLike | None,
    batch: int = PAPER.batch,
) -> Table:
    """All cells, in the order of the budgets."""
    at_least(2, "trials", trials)
    at_least(1, "epochs", epochs)
    for name, given, allowed in (("epsilons", epsilons, EPSILONS), ("columns", columns, COLUMNS)):
        for one in given:
            if one not in allowed:
                raise ValueError(f"{name} must be among {', '.join(map(str, allowed))}, got {one!r}")
    splits = Splits.of(setting.features, setting.labels, trials, seed)
    settings = {"table": splits.digest, "trials": trials, "epochs": epochs, "seed": seed}
    network = dataclasses.replace(PAPER, epochs=epochs, batch=batch)
    errors = {}
    with Checkpoint(checkpoint, settings) as done:
        for epsilon in epsilons:
            for column in columns:
                release, learner = COLUMNS[column]
                used = epsilon
                if math.isinf(epsilon):
                    if learner == "paper":
                        release = "labels"
                    elif release not in WITHOUT_PRIOR:
                        continue
                    used = WITHOUT_PRIVACY
                # the same release and the same initial weights for all columns that have it
                cell = f"{epsilon:g} {release} {learner}"
                if cell not in done:
                    key = jax.random.fold_in(jax.random.key(seed), round(1e6 * used))
                    keys = jax.random.split(key, trials + 1)
                    rows = zip(keys[1:], splits.train, strict=True)
                    released = [RELEASES[release](k, train[:, -1], used, setting) for k, train in rows]
                    predicted = LEARNERS[learner](keys[0], splits, released, setting, network)
                    done[cell] = np.mean((predicted - splits.test[..., -1]) ** 2, axis=1)
                    done.save()
                errors[float(epsilon), column] = done[cell]
    return Table(errors, setting.printed)
