"""The papers' tables and figures beside ours, with a verdict for every row: ``python -m reproductions.run``.

`verdicts` says how far a number of ours may be from a paper's. The exit code is 1 if an exhibit fails, or if a row
differs for no known reason.
"""

import argparse
import dataclasses
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ldpbayes import LaplaceMechanism, OptimalUnaryEncoding
from ldpbayes.models import clipped_exponential, clipped_gaussian, linear_regression, logistic_regression, oue_histogram
from reproductions import exhibits, lu_chen_qiu, printed
from reproductions.ferrando_wang_sheldon import figures
from reproductions.kulkarni_et_al import regression
from reproductions.liu_huang import tables
from reproductions.liu_huang.data import EPSILONS
from reproductions.splits import data_file
from reproductions.verdicts import FAILED, SKIPPED, Row, markdown

PAPERS = {
    "KJKH": "Kulkarni, Jälkö, Kaski & Honkela: Locally differentially private Bayesian inference",
    "LCQ": "Lu, Chen & Qiu: Versatile differentially private learning for general loss functions",
    "FWS": "Ferrando, Wang & Sheldon: Parametric bootstrap for differentially private confidence intervals",
    "LH": "Liu & Huang: RPWithPrior: label differential privacy in regression",
}


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper: a function of `exhibits`, its settings, and those of them that are quick."""

    paper: str
    name: str
    rows: Callable[..., list[Row]]
    settings: Mapping[str, Any]
    quick: Mapping[str, Any]
    data: str | None = None  # a file without which it is skipped


SHORT = {"num_warmup": 200, "num_samples": 200}
SHORTEST = {"num_warmup": 100, "num_samples": 100}
GAUSSIAN = {"model": clipped_gaussian, "mechanism": lambda epsilon: LaplaceMechanism(epsilon, -5, 5)}
EXPONENTIAL = {"model": clipped_exponential, "mechanism": lambda epsilon: LaplaceMechanism(epsilon, 0, 5)}
HISTOGRAM = {"model": oue_histogram, "mechanism": lambda epsilon: OptimalUnaryEncoding(epsilon, 6)}
LEVELS = (0.5, 0.7, 0.9, 0.95)
SIZES = (100, 200, 500, 1000, 2000, 5000)
WINE = {"study": regression.linear_regression_error, "model": linear_regression, "table": regression.wine}
ADULT = {"study": regression.logistic_regression_auc, "model": logistic_regression, "table": regression.adult}
BOTH = ("statistics", "ldp-sgd")
MEANS = {"study": lu_chen_qiu.nonsmooth_means, "figures": printed.TABLE_1, "replicates": printed.REPLICATIONS}
LOGISTIC = {"study": lu_chen_qiu.logistic_regression, "figures": printed.TABLE_2, "replicates": 1000}
MEDIAN = {"study": lu_chen_qiu.median_regression, "figures": printed.TABLE_3, "replicates": 1000}
USED = ("oracle", "naive", "sl", "sdr", "dr", "scl", "combined")  # neither of the averaged ones
FEW = {"counts": (100, 1000), "trials": 400, "replicates": 199}
LEARNERS = [exhibits.LINEAR, exhibits.NETWORK]
COLUMNS = [*exhibits.PAPERS, exhibits.FROM_LABELS, *LEARNERS]

EXHIBITS = [
    Exhibit(
        "KJKH",
        "Figure 1",
        exhibits.calibration,
        {
            **GAUSSIAN,
            "count": 5000,
            "levels": (0.5, 0.8, 0.95),
            "epsilons": (0.25, 0.5, 1, 2, 4),
            "replicates": 500,
            "batch": 100,
        },
        {"epsilons": (0.25, 1, 4), "replicates": 60, "batch": 60, **SHORT},
    ),
    Exhibit(
        "KJKH",
        "Figure 2",
        exhibits.histogram_distances,
        {},
        {"epsilons": (0.25, 1.0, 4.0), "replicates": 10, **SHORT},
        "kosarak_head.dat",
    ),
    Exhibit(
        "KJKH",
        "Figure 3",
        exhibits.histogram_errors,
        {"epsilons": (0.5,), "counts": SIZES, "lower_by": (0.1, 0.3)},
        {"counts": (100, 500), **SHORT},
    ),
    Exhibit(
        "KJKH",
        "Figure 9",
        exhibits.histogram_errors,
        {"epsilons": (0.25, 1.0, 2.0), "counts": SIZES},
        {"epsilons": (0.25, 2.0), "counts": (100,), "replicates": 100, **SHORT},
    ),
    Exhibit(
        "KJKH",
        "Figure 4",
        exhibits.regressions,
        {
            **WINE,
            "score": "rmse",
            "smaller_is_better": True,
            "epsilons": (0.4, 0.8, 1.6, 4.0, 16.0),
            "replicates": 30,
            "methods": BOTH,
        },
        {"epsilons": (0.4, 16.0), "replicates": 10, **SHORTEST},
        "winequality-red.csv",
    ),
    Exhibit(
        "KJKH",
        "Figure 5",
        exhibits.regressions,
        {
            **ADULT,
            "score": "auc",
            "smaller_is_better": False,
            "epsilons": (0.4, 0.8, 1.6, 4.0),
            "replicates": 30,
            "methods": (*BOTH, "records, mode"),
        },
        {"epsilons": (0.8, 4.0), "replicates": 5, "methods": BOTH, **SHORTEST},
        "adult.data",
    ),
    Exhibit("KJKH", "Figure 6", exhibits.expansions, {"dimensions": (2, 4, 6, 8, 10)}, {"dimensions": (2, 10)}),
    Exhibit(
        "KJKH",
        "Figure 10",
        exhibits.calibration,
        {**HISTOGRAM, "count": 1000, "levels": LEVELS, "epsilons": (0.5, 1.0, 2.0), "replicates": 400, "batch": 100},
        {"epsilons": (0.5, 2.0), "replicates": 100, **SHORT},
    ),
    Exhibit(
        "KJKH",
        "Figure 11",
        exhibits.calibration,
        {**EXPONENTIAL, "count": 1000, "levels": LEVELS, "epsilons": (0.5, 1.0, 2.0), "replicates": 400, "batch": 100},
        {"epsilons": (0.5, 2.0), "replicates": 80, "batch": 80, **SHORT},
    ),
    Exhibit(
        "LCQ",
        "Table 1",
        exhibits.corrected_losses,
        {
            **MEANS,
            "methods": USED,
            "own": {"parameters": ((0.1, 0.94), (0.05, 1.2))},
            "stated": {"parameters": ((0.05, 1.4),)},
        },
        {
            "replicates": 500,
            "counts": (500,),
            "own": {"parameters": ((0.1, 0.94),)},
            "stated": {"parameters": ((0.05, 1.4),), "functions": ("relu",), "methods": ("sl",)},
        },
    ),
    Exhibit(
        "LCQ",
        "Table 2",
        exhibits.corrected_losses,
        {**LOGISTIC, "methods": USED, "own": {"bound": 0.5}, "stated": {"bound": 1.0, "methods": ("oracle", "naive")}},
        {"replicates": 40, "counts": (5000,), "stated": {"bound": 1.0, "scales": (0.5,), "methods": ("oracle",)}},
    ),
    Exhibit(
        "LCQ",
        "Table 3",
        exhibits.corrected_losses,
        {**MEDIAN, "methods": USED, "own": {"spread": 0.8}, "stated": {"spread": 1.0, "methods": ("oracle",)}},
        {
            "replicates": 40,
            "counts": (2500,),
            "scales": (2.0,),
            "stated": {"spread": 1.0, "methods": ("oracle",), "replicates": 200},
        },
    ),
    Exhibit(
        "FWS",
        "Figure 1",
        exhibits.bootstrap_coverage,
        {"counts": figures.COUNTS, "trials": 1000},
        {**FEW, "families": ("Bernoulli", "Poisson", "Gaussian", figures.REGRESSION), "epsilons": (0.5,)},
    ),
    Exhibit(
        "FWS",
        "Figure 2",
        exhibits.posterior_samples_and_bias,
        {"counts": figures.COUNTS, "trials": 1000},
        {
            "counts": (1000,),
            "epsilons": (1.0,),
            "families": ("Poisson", figures.NORMAL_MEAN),
            "thresholds": {figures.NORMAL_MEAN: (2.0,)},
            "trials": 200,
            "replicates": 199,
        },
    ),
    Exhibit(
        "FWS",
        "Figure 3",
        exhibits.aggregates,
        {"counts": figures.COUNTS, "trials": 1000},
        {**FEW, "epsilons": (1.0,)},
    ),
    Exhibit(
        "LH",
        "Table 1",
        exhibits.label_privacy,
        {"name": "Table 1", "study": tables.table_1, "trials": 10, "epsilons": EPSILONS[2:-1], "columns": COLUMNS},
        {"trials": 3, "epsilons": (1.0,), "columns": COLUMNS[:-1]},
        "communities.data",
    ),
    Exhibit(
        "LH",
        "Table 2",
        lambda checkpoint, **settings: exhibits.label_privacy(
            checkpoint, study=lambda **rest: tables.table_2(data_file("CriteoSearchData"), **rest), **settings
        ),
        {"name": "Table 2", "trials": 10, "epsilons": EPSILONS[3:-1], "columns": [*exhibits.PAPERS, exhibits.LINEAR]},
        {"trials": 3, "epsilons": (1.0,)},
        "CriteoSearchData",
    ),
    Exhibit(
        "LH",
        "Table 4",
        exhibits.label_privacy,
        {"name": "Table 4", "study": tables.table_4, "trials": 10, "epsilons": EPSILONS[3:-1], "columns": COLUMNS},
        {"trials": 3, "epsilons": (0.5,), "columns": ["RPWithPrior", exhibits.LINEAR]},
        "cal_housing_full.data",
    ),
    Exhibit("LH", "Table 6", exhibits.run_times, {"repeats": 3}, {"count": 100_000, "repeats": 1}, "communities.data"),
]


def rows_of(exhibit, quick, folder):
    """Rows of an exhibit; one that says so, if its data are not there or it fails."""
    if exhibit.data is not None:
        try:
            data_file(exhibit.data)
        except FileNotFoundError:
            return [Row("all", "", "", "", SKIPPED, f"LDPBAYES_DATA has no file {exhibit.data}", exhibit.name)]

    def checkpoint(suffix=""):
        name = f"{exhibit.paper} {exhibit.name}{' quick' if quick else ''}{suffix}.npz"
        return None if folder is None else folder / name.replace(" ", "_")

    settings = {**exhibit.settings, **(exhibit.quick if quick else {})}
    try:
        return [dataclasses.replace(row, exhibit=exhibit.name) for row in exhibit.rows(checkpoint, **settings)]
    except Exception as error:  # the other exhibits go on
        traceback.print_exc()
        return [Row("all", "", "", "", FAILED, f"{type(error).__name__}: {error}".splitlines()[0], exhibit.name)]


def run(exhibits, quick, folder, write):
    """Rows by paper of all exhibits, written after each; seconds go to stderr."""
    found = {}
    for exhibit in exhibits:
        wall, processor = time.perf_counter(), time.process_time()
        rows = rows_of(exhibit, quick, folder)
        found.setdefault(exhibit.paper, []).extend(rows)
        write(markdown({f"{paper} ({PAPERS[paper]})": of_paper for paper, of_paper in found.items()}))
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        about = f"{exhibit.paper} {exhibit.name}: {len(rows)} rows, {wall:.0f} s, {processor:.0f} s of processor time"
        print(about, file=sys.stderr, flush=True)
    return found


def main(arguments=None, exhibits=EXHIBITS):
    """Run the exhibits that are asked for, write the report, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m reproductions.run", description=__doc__)
    parser.add_argument("paper", nargs="?", choices=PAPERS, help="all by default")
    parser.add_argument("--quick", action="store_true", help="fewer replicates and cells: minutes, not hours")
    parser.add_argument("--out", type=pathlib.Path, help="a Markdown file; by default stdout")
    parser.add_argument("--checkpoints", type=pathlib.Path, metavar="FOLDER", help="where studies resume from")
    given = parser.parse_args(arguments)
    if given.checkpoints is not None:
        given.checkpoints.mkdir(parents=True, exist_ok=True)
    asked = [exhibit for exhibit in exhibits if given.paper in (None, exhibit.paper)]
    reports = []
    found = run(asked, given.quick, given.checkpoints, given.out.write_text if given.out else reports.append)
    print(*reports[-1:], end="")
    return int(any(row.unexplained for rows in found.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
