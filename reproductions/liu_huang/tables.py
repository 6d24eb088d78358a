"""Tables 1, 2, 4 and 6 of [LH], with columns for learners that know the noise, and their picture."""

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping

import jax
import numpy as np

from ldpbayes.data import Release
from ldpbayes.estimation import linear_fit
from ldpbayes.studies import Checkpoint
from reproductions.liu_huang.data import (
    EPSILONS,
    LARGEST,
    TABLE_6,
    Printed,
    california_setting,
    communities_setting,
    criteo,
    criteo_setting,
)
from reproductions.liu_huang.learners import LEARNERS, PAPER
from reproductions.liu_huang.releases import RELEASES
from reproductions.splits import TRAINING, Splits

COLUMNS = {
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
"""Release and learner of a column; "public range" is RPWithPrior with no budget spent on a prior."""
WITHOUT_PRIVACY = 20.0  # the budget in place of an infinite one, where a likelihood needs a mechanism
WITHOUT_PRIOR = ("public range", "Laplace")


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Errors of predicted labels on the records for testing, beside the printed ones."""

    errors: Mapping[tuple[float, str], np.ndarray]  # by budget and column, mean squared errors (trials,)
    printed: Printed

    def mean(self, epsilon, column):
        """Mean over the trials."""
        return float(np.mean(self.errors[epsilon, column]))

    def deviation(self, epsilon, column):
        """Standard deviation over the trials."""
        return float(np.std(self.errors[epsilon, column], ddof=1))

    def ratio(self, epsilon, column):
        """Ratio of the mean to that of the paper's own column "Ours"."""
        return self.mean(epsilon, column) / self.printed[epsilon]["RPWithPrior"][0]

    def table(self):
        """Means ± standard deviations in Markdown, a line a budget; the printed ones in brackets."""
        epsilons = list(dict.fromkeys(epsilon for epsilon, _ in self.errors))
        columns = list(dict.fromkeys(column for _, column in self.errors))
        lines = [["ε", *columns], ["---"] * (1 + len(columns))]
        for epsilon in epsilons:
            cells = [self._cell(epsilon, column) for column in columns]
            lines.append(["∞" if math.isinf(epsilon) else f"{epsilon:g}", *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _cell(self, epsilon, column):
        if (epsilon, column) not in self.errors:
            return ""
        cell = f"{self.mean(epsilon, column):.4f} ± {self.deviation(epsilon, column):.4f}"
        mean, deviation = self.printed[epsilon].get(column, (None, None))
        return cell if mean is None else f"{cell} ({mean:.4f} ± {deviation:.4f})"


def table_1(folder=None, *, trials=10, epsilons=EPSILONS, columns=tuple(COLUMNS), epochs=50, seed=0, checkpoint=None):
    """Table 1: Communities and Crime, mean squared error of 399 communities after learning from 1,595 released labels.

    The paper's columns have its network, trained by squared error on released labels. Of the others the first part is
    the release, the second the learner; penalties and priors are chosen from released labels alone.
    """
    return _table(communities_setting(folder), trials, epsilons, columns, epochs, seed, checkpoint)


def table_2(path, *, trials=10, epsilons=EPSILONS, columns=tuple(COLUMNS), epochs=50, seed=0, checkpoint=None):
    """Table 2: Criteo's log, mean squared error of 329,195 sales in euros² after learning from 1,316,782 released ones.

    Nothing is recorded of this table, since the log is not here. The network has 8,192 labels a step, on
    `Criteo.features`; the paper has embeddings, and trains by RMSProp. A trial takes 300 megabytes.
    """
    sales = criteo(path)
    setting = criteo_setting(sales.features(), sales.labels.astype(float))
    return _table(setting, trials, epsilons, columns, epochs, seed, checkpoint, batch=8192)


def table_4(folder=None, *, trials=10, epsilons=EPSILONS, columns=tuple(COLUMNS), epochs=50, seed=0, checkpoint=None):
    """Table 4: California Housing, mean squared error of 4,128 block groups after learning from 16,512 labels."""
    return _table(california_setting(folder), trials, epsilons, columns, epochs, seed, checkpoint)


def _table(setting, trials, epsilons, columns, epochs, seed, checkpoint, batch=PAPER.batch):
    """All cells, in the order of the budgets."""
    splits = Splits.of(setting.features, setting.labels, trials, seed)
    settings = {"table": splits.digest, "trials": trials, "epochs": epochs, "seed": seed}
    network = dataclasses.replace(PAPER, epochs=epochs, batch=batch)
    errors = {}
    with Checkpoint(checkpoint, settings) as saved:
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
                # Columns with one release share it and the initial weights.
                cell = f"{epsilon:g} {release} {learner}"
                if cell not in saved:
                    key = jax.random.fold_in(jax.random.key(seed), round(1e6 * used))
                    keys = jax.random.split(key, trials + 1)
                    rows = zip(keys[1:], splits.train, strict=True)
                    released = [RELEASES[release](k, train[:, -1], used, setting) for k, train in rows]
                    predicted = LEARNERS[learner](keys[0], splits, released, setting, network)
                    saved[cell] = np.mean((predicted - splits.test[..., -1]) ** 2, axis=1)
                    saved.save()
                errors[float(epsilon), column] = saved[cell]
    return Table(errors, setting.printed)


TIMED = {
    "Laplace": "Laplace",
    "Gaussian": "Gaussian",
    "staircase": "staircase",
    "RRonBins": "RRonBins",
    "RPWithPrior": "Algorithm 4",
    "Unbiased": "Unbiased",
    "RPWithPrior, public range": "public range",
}
"""Releases by their names in Table 6."""
CRITEO = 1_316_781
COEFFICIENTS = (0.6, 0.4, 0.3, 0.2, 0.1)


def criteo_like(count=CRITEO, seed=0):
    """Made-up sales of at most 400 euros, as many as [LH] trains with: log-normal, given five normal features."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, len(COEFFICIENTS)))
    logarithm = 3.7 + 0.7 * features @ np.array(COEFFICIENTS) + 0.7 * rng.standard_normal(count)
    return features, np.minimum(np.exp(logarithm), LARGEST)


def run_times(folder=None, *, epsilon=1.0, mechanisms=tuple(TIMED), count=CRITEO, repeats=3, fits=True, seed=0):
    """Table 6: seconds for releases of the labels for training, the choice of bins, intervals and priors included.

    Compilation is not counted. The paper counts its training loop's work on labels too, on another machine.
    """
    features, labels = criteo_like(count, seed)
    criteo = criteo_setting(features, labels)
    tables = {"communities": communities_setting(folder), "california": california_setting(folder), "criteo": criteo}
    rows = []
    for name, setting in tables.items():
        used = len(setting.labels) if setting is criteo else int(TRAINING * len(setting.labels))
        labels, about = setting.labels[:used], {"data": name, "count": used}

        def released(method, setting=setting, labels=labels):
            return RELEASES[TIMED[method]](jax.random.key(seed), labels, epsilon, setting)

        for method in mechanisms:
            seconds = _median(lambda: released(method), repeats)  # noqa: B023
            rows.append(about | {"method": method, "seconds": seconds, "printed": TABLE_6.get(method, {}).get(name)})
        if fits:
            release = Release(*released("RPWithPrior, public range"))
            fitted = setting.features[:used]
            seconds = _median(lambda: linear_fit(fitted, release, penalty=1.0), repeats)  # noqa: B023
            rows.append(about | {"method": "linear fit", "seconds": seconds, "printed": None})
    return rows


def _median(run, repeats):
    """Median seconds, after a first run that is not counted."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


PRINTED_CURVES = (("RPWithPrior", "o", "[LH] RPWithPrior, printed"), ("Laplace", "s", "[LH] Laplace, printed"))
OUR_CURVES = (
    ("RPWithPrior", ":", "RPWithPrior with a private prior, squared error"),
    ("public range, marginal likelihood, linear", "--", "RPWithPrior, marginal likelihood, linear"),
    ("public range, marginal likelihood, network", "-", "RPWithPrior, marginal likelihood, network"),
)


def draw_errors(tables, colours):
    """Mean squared error on test records against ε, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(tables), 4.6), layout="constrained")
    for axis, (title, table) in zip(np.atleast_1d(figure.subplots(1, len(tables))), tables.items(), strict=True):
        for column, marker, label in PRINTED_CURVES:
            points = [(e, row[column][0]) for e, row in table.printed.items() if np.isfinite(e) and e >= 0.3]
            axis.plot(*zip(*points, strict=True), marker, color=colours["naive"], fillstyle="none", label=label)
        for column, style, label in OUR_CURVES:
            points = [(e, table.mean(e, name)) for e, name in table.errors if name == column and 0.3 <= e < np.inf]
            if points:
                colour = colours["naive" if column == "RPWithPrior" else "noise-aware"]
                axis.plot(*zip(*points, strict=True), style, color=colour, label=label)
        not_private = table.printed[np.inf]["Laplace"][0]
        axis.axhline(not_private, color=colours["non-private"], linewidth=1, label="[LH] without privacy, printed")
        axis.set(xscale="log", yscale="log", title=title, xlabel="ε", ylabel="mean squared error of test labels")
        ticks = [e for e in table.printed if 0.3 <= e < np.inf]
        axis.set_xticks(ticks, [f"{e:g}" for e in ticks])
        axis.minorticks_off()
        low, high = axis.get_ylim()
        marks = [mark for power in range(-3, 2) for mark in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)]
        marks = [mark for mark in marks if low < mark < high]
        axis.set_yticks(marks, [f"{mark:g}" for mark in marks])
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure
