"""Run a study of a paper, print its rows or table, and draw its picture: ``python -m reproductions figure_1``."""

import argparse
import ast

from ldpbayes.models import linear_regression, logistic_regression, oue_histogram, perturbed_covariates
from ldpbayes.plots import COLOURS
from ldpbayes.studies import CalibrationStudy
from reproductions import calibration, lu_chen_qiu, planned_errors, smooth_densities
from reproductions.ferrando_wang_sheldon import figures, report
from reproductions.kulkarni_et_al import histograms, regression
from reproductions.liu_huang import tables

STUDIES = {
    "calibration": calibration.calibration,
    "figure_1": figures.figure_1,
    "figure_2": figures.figure_2,
    "figure_3": figures.figure_3,
    "appendix": figures.appendix,
    "histogram_error": lambda **kw: histograms.histogram_error(oue_histogram(), **kw),
    "histogram_distance": lambda **kw: histograms.histogram_distance(
        oue_histogram(), histograms.kosarak_records(), **kw
    ),
    "linear_regression_error": lambda **kw: regression.linear_regression_error(
        linear_regression(), *regression.wine(), **kw
    ),
    "logistic_regression_auc": lambda **kw: regression.logistic_regression_auc(
        logistic_regression(), *regression.adult(), **kw
    ),
    "expansion_error": regression.expansion_error,
    "table_1": tables.table_1,
    "table_2": tables.table_2,
    "table_4": tables.table_4,
    "run_times": tables.run_times,
    "nonsmooth_means": lu_chen_qiu.nonsmooth_means,
    "logistic_regression": lu_chen_qiu.logistic_regression,
    "median_regression": lu_chen_qiu.median_regression,
    "logistic_posteriors": lambda **kw: lu_chen_qiu.logistic_posteriors(
        perturbed_covariates(intercept=None, concentration=None), **kw
    ),
    "planned_errors": planned_errors.planned_errors,
    "smooth_means": smooth_densities.table_1,
    "smooth_against_ems": smooth_densities.against_ems,
    "smooth_coverage": lambda **kw: [
        each.summary() if isinstance(each, CalibrationStudy) else each
        for each in smooth_densities.coverage(**kw).values()
    ],
}


def main():
    """Run one study with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m reproductions", description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an argument of the study")
    parser.add_argument("--picture", help="a file for the picture of figure_1, table_1 or table_4")
    given = parser.parse_args()
    arguments = {}
    for text in given.set:
        name, _, value = text.partition("=")
        try:
            arguments[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):  # a path or another word
            arguments[name] = value
    result = STUDIES[given.study](**arguments)
    if isinstance(result, tables.Table):
        print(result.table())
    elif STUDIES[given.study].__module__ == figures.__name__:
        print(report.table(result), report.table(result, "relative_width"), sep="\n\n")
    else:
        print(*(result if isinstance(result, list) else result.items()), sep="\n")
    if given.picture:
        is_table = isinstance(result, tables.Table)
        draw = tables.draw_errors({given.study: result}, COLOURS) if is_table else report.draw_coverage(result, COLOURS)
        draw.savefig(given.picture, dpi=150)


if __name__ == "__main__":
    main()
