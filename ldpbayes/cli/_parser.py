"""Commands, their options, and the help on them."""

import argparse
import contextlib
import math
import pathlib
import textwrap
from collections.abc import Callable, Set
from typing import Any, NamedTuple, NoReturn

from ldpbayes import __version__
from ldpbayes._core.checks import require
from ldpbayes.cli._inputs import FORMAT_PREFIX, PARAMETER_PREFIX, SPREADS, BadInput, option, parameter, parameters_of
from ldpbayes.data.readers import formats
from ldpbayes.laws.parametric import FAMILIES
from ldpbayes.mechanisms import mechanism_names
from ldpbayes.mechanisms.protocol import mechanism_class

EXIT_CODES = """exit codes:
  0  done
  1  an optional dependency is missing, or another problem at run time
  2  bad usage or bad input
  3  done, but do not trust the result; the warnings say why: the chains have not converged, the released values are
     nearly impossible under the stated mechanism, several of them may be about one person, the release is outside the
     domain of the estimator, or a model is not calibrated
"""

FAMILY_OPTIONS = {
    "lower": "lower bound to which records were clamped; of rows one for each column, as 0,0,18",
    "upper": "upper bound to which records were clamped",
}
FAMILY_OPTIONS |= {
    field: f"{text}, for --family {name}"
    for name, family in FAMILIES.items()
    for field, text in family.option_help.items()
}
# laws of a label, classes of NumPyro, by their names on the command line
LABEL_LAWS = {"bernoulli": "BernoulliLogits", "laplace": "Laplace", "log_normal": "LogNormal"}
LABEL_LAWS |= {"normal": "Normal", "poisson": "Poisson"}
HIDDEN: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}  # options that the help leaves out
# formats of outputs by the ending of the file, and the packages that write them: h5netcdf does not bring h5py along
WRITERS = {".csv": ("CSV", ()), ".nc": ("NetCDF", ("h5netcdf", "h5py")), ".png": ("PNG", ("matplotlib",))}
WRITERS |= {".npz": ("NumPy", ()), ".parquet": ("Parquet", ())}
FEATURES_HELP = ".csv or .npy file with one row for each label; or columns of a .csv RELEASE, as age,rooms"


class Command(NamedTuple):
    """A function of parsed arguments, which returns an exit code, and its help."""

    run: Callable[[argparse.Namespace], int]
    help: str
    examples: str


COMMANDS: dict[str, Command] = {}


def command(text: str, examples: str) -> Callable[[Callable], Callable]:
    """Decorator of the function of a command, with its help and examples of its use."""

    def decorate(function: Callable) -> Callable:
        COMMANDS[function.__name__.removeprefix("_")] = Command(function, text, textwrap.dedent(examples).strip())
        return function

    return decorate


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, whose result has the function of one of the commands as ``run``."""
    top = _Parser(
        prog="ldpbayes",
        description="Bayesian inference from differentially private releases.",
        epilog=f"'ldpbayes COMMAND --help' explains a command, with examples.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"ldpbayes {__version__}")
    group = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    subs = {}
    for name, (run, text, examples) in COMMANDS.items():
        epilog = f"examples:\n{textwrap.indent(examples, '  ')}\n\n{EXIT_CODES}"
        texts: Any = {"help": text, "description": text, "epilog": epilog}
        subs[name] = group.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
        subs[name].set_defaults(run=run)
    _add_sampler_options(subs["demo"])
    _add(subs["demo"], "--out", "DIR", "default: ./ldpbayes-demo", pathlib.Path, pathlib.Path("ldpbayes-demo"))
    _add_sampler_options(subs["fit"])
    _add_fit_options(subs["fit"])
    _add_bootstrap_options(subs["bootstrap"])
    _add_frequencies_options(subs["frequencies"])
    _add_regress_options(subs["regress"])
    _add_release_options(subs["release"])
    _add_table_options(subs["table"])
    _add_sketch_options(subs["sketch"])
    _add_design_options(subs["design"])
    _add_calibrate_options(subs["calibrate"])
    for name in ("mechanisms", "models"):
        _add_switch(subs[name], "--json", "as JSON, for programs")
    return top


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # in one line, as of all commands, and not below the usage
        raise BadInput(f"{message}; see '{self.prog} --help'")


def _add(group: Any, name: str, metavar: str, text: str, kind: Any = None, default: Any = None, **more: Any) -> None:
    group.add_argument(name, metavar=metavar, help=text, type=kind, default=default, **more)


def _add_switch(group: Any, name: str, text: str) -> None:
    group.add_argument(name, action="store_true", help=text)


def _add_output(group: Any, name: str, metavar: str, text: str, *endings: str, **more: Any) -> None:
    """A file that is written, by default with the ending of `metavar`; its name is checked before any work."""
    endings = endings or (pathlib.Path(metavar).suffix,)

    def output(text: str) -> pathlib.Path:
        path = pathlib.Path(text)
        if path.suffix not in endings:
            written = f"written as {' or '.join(WRITERS[ending][0] for ending in endings)}"
            raise BadInput(f"{name} {path}: {written}; give the name of a file that ends in {' or '.join(endings)}")
        require("demo", *WRITERS[path.suffix][1])
        if path.is_dir():
            raise BadInput(f"{name} {path} is a folder; give the name of a file")
        if not path.absolute().parent.is_dir():
            raise BadInput(f"{name}: there is no folder {path.absolute().parent}")
        return path

    _add(group, name, metavar, text, output, **more)


def _add_sampler_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampler (NUTS)")
    _add(group, "--seed", "N", "random seed (default: 0)", _integer(0), 0)
    _add(group, "--chains", "N", "number of chains (default: 4)", _integer(1), 4)
    _add(group, "--warmup", "N", "warm-up iterations of each chain (default: 1000)", _integer(0), 1000)
    _add(group, "--samples", "N", "draws kept from each chain (default: 1000)", _integer(1), 1000)
    target = "acceptance probability of the warm-up (default: 0.8); use one nearer to 1 after divergences"
    _add(group, "--target-accept", "P", target, _probability)
    _add(group, "--max-tree-depth", "N", "largest number of doublings of a trajectory (default: 10)", _integer(1))
    _add_switch(group, "--dense-mass", "adapt to correlations between parameters")
    cache = "do not keep compiled code in $XDG_CACHE_HOME/ldpbayes (LDPBAYES_NO_CACHE=1 does this, too)"
    _add_switch(group, "--no-cache", cache)


def _add_fit_options(fit: argparse.ArgumentParser) -> None:
    releases = ".npz, .parquet or .csv file; see docs/reference/command_line.md"
    _add(fit, "release", "RELEASE", releases, pathlib.Path, nargs="+")
    by = "groups: the model gets one release for each value in this column, or with --by file for each file"
    group = _add_csv_options(fit)
    _add(group, "--by", "COLUMN", by)
    _add_row_options(group)
    _add_switch(fit, "--add", "several RELEASEs are parts of one release")
    people = fit.add_mutually_exclusive_group()
    _add_switch(people, "--same-people", "all RELEASEs are about the same people: state their guarantee together")
    _add_switch(people, "--different-people", "nobody is in two RELEASEs: no budgets are added")
    model = (
        "a factory of ldpbayes.models, with its default priors, or a Python file that defines model(release); "
        "with groups the model gets a sequence"
    )
    _add(fit, "--model", "NAME_OR_FILE", model)
    formula = "instead of --model, such as 'income ~ age + C(education) + (1 | region)'; the RELEASE is the left side"
    _add(fit, "--formula", "TEXT", formula)
    family = "for --formula: normal, student_t, poisson or bernoulli (default: normal)"
    _add(fit, "--family", "NAME", family, default="normal")
    _add_output(fit, "--out", "FILE.nc", "write the posterior as NetCDF, for ArviZ")
    _add_output(fit, "--plot", "FILE.png", "draw density and cdf of original numbers, and released values")
    _add(fit, "--features", "FILE", f"for label_regression, or (.csv) for --formula: {FEATURES_HELP}", pathlib.Path)
    _add_switch(fit, "--no-sketch", "give the model the records instead of a sketch")
    _add_switch(fit, "--no-progress", "no progress bar (or progress lines, if stderr is a file)")
    _add_switch(fit, "--quiet", "print the summary and warnings only")


def _add_bootstrap_options(bootstrap: argparse.ArgumentParser) -> None:
    statistics = "file with the noisy sums of the statistics of the family; see docs/how_to/bootstrap.md"
    _add(bootstrap, "release", "RELEASE", statistics, pathlib.Path, nargs=1)
    _add_csv_options(bootstrap, without={"count", *FAMILY_OPTIONS})
    group = bootstrap.add_argument_group("the estimator that made the release")
    _add(group, "--family", "NAME", "gaussian, poisson, ...; see docs/how_to/bootstrap.md", required=True)
    _add(group, "--count", "N", "number of records, public", _integer(2), required=True)
    for name, text in FAMILY_OPTIONS.items():
        _add(group, f"--{name}", "X", text, parameter)
    _add_switch(group, "--no-intercept", "for --family least_squares: without an intercept")
    _add_switch(group, "--account-for-clamping", "match moments of clamped records; use it if many are clamped")
    group = bootstrap.add_argument_group("the bootstrap")
    _add(group, "--draws", "N", "number of replicates (default: 2000)", _integer(2), 2000)
    _add(group, "--seed", "N", "random seed (default: 0)", _integer(0), 0)
    _add(group, "--level", "P", "probability of the intervals (default: 0.95)", _probability, 0.95)
    _add(group, "--kind", "NAME", "intervals: percentile (default), pivotal, studentised or log", default="percentile")
    _add_switch(group, "--match", "correct the bias by matched replicates")
    _add_output(group, "--out", "FILE.nc", "write the replicates as NetCDF")


def _add_regress_options(regress: argparse.ArgumentParser) -> None:
    _add(regress, "release", "RELEASE", ".npz, .parquet or .csv file of labels", pathlib.Path, nargs=1)
    _add_csv_options(regress)
    _add(regress, "--features", "FILE", FEATURES_HELP, pathlib.Path, required=True)
    law = "distribution of a label given its predictor (default: normal)"
    regress.add_argument("--law", help=law, default="normal", choices=LABEL_LAWS)
    _add(regress, "--penalty", "X", "prior precision of a slope (default: the most probable one)", float)
    _add_switch(regress, "--no-intercept", "without an intercept: the predictor is 0 if all features are 0")
    _add(regress, "--level", "P", "probability of the intervals (default: 0.95)", _probability, 0.95)
    _add_output(regress, "--out", "FILE.csv", "write the estimates of the parameters")


def _add_release_options(release: argparse.ArgumentParser) -> None:
    _add(release, "data", "DATA", ".csv file of original records; no message quotes a record", pathlib.Path)
    _add_csv_options(release, {"clip"}, private=True)
    _add_switch(release, "--clip", "clip numbers to the bounds; without it, numbers beyond them are an error")
    _add_output(release, "--out", "FILE", "new release file, .npz or .parquet", ".npz", ".parquet", required=True)


def _add_table_options(table: argparse.ArgumentParser) -> None:
    _add(table, "table", "TABLE", ".csv or .parquet file, one row for each cell; missing: not reported", pathlib.Path)
    values = "columns of noisy values; several if --ratio divides one by another"
    _add(table, "--value", "NAME,...", values, _names)
    _add(table, "--keys", "NAME,...", "columns that identify the cell of a row, outermost first", _names, [])
    read = formats()
    names = f"{', '.join(read)} (default: by the ending of TABLE); options of a format are typed as --query"
    text = f"format of TABLE, or layout of a publisher: {names}"
    table.add_argument("--format", "--layout", metavar="NAME", help=text, choices=read)
    _add_format_options(table, *read)
    _add(table, "--noise", "NAME", "laplace, gaussian, discrete_laplace, geometric or discrete_gaussian")
    for name in SPREADS:
        text = f"{name.replace('_', ' ')} of the noise: a number, or a column; or one for each of --value"
        table.add_argument(option(name), f"{option(name)}-column", metavar="X|NAME,...", help=text, type=parameter)
    _add(table, "--margin-level", "P", "probability that noise is within --margin, such as 0.95", float)
    _add(table, "--between", "X,Y", "values before noise are numbers from X to Y, all as likely (uniform prior)", _ends)
    _add(table, "--sensitivity", "X", "largest change of a value by one person (or state --privacy)", float)
    _add(table, "--neighbours", "HOW", "data sets compared differ by one person: add_remove or replace; give --times")
    _add(table, "--times", "N", "largest number of cells in which one person is counted", int)
    _add(table, "--privacy", "TEXT", "privacy statement of the publisher")
    _add(table, "--unit", "X", "values were rounded to multiples of X", float)
    _add(table, "--floor", "X", "values below X were reported as X", float)
    _add(table, "--cap", "X", "values above X were reported as X", float)
    _add(table, "--threshold", "X", "values below X were not reported", float)
    unpublished = "number of cells without a row, because they are below --threshold; or unknown"
    _add(table, "--unpublished", "N|unknown", unpublished, parameter)
    _add(table, "--ratio", "A/B,...", "ratios of values, or of values and public columns", _ratios, [], action="extend")
    _add(table, "--level", "P", "probability of the intervals (default: 0.9)", _probability, 0.9)
    _add(table, "--samples", "N", "number of draws of the table (default: 1000)", _integer(2), 1000)
    _add(table, "--seed", "N", "random seed (default: 0)", _integer(0), 0)
    _add_output(table, "--out", "FILE.csv", "write the cells and ratios: means, sd and intervals")


def _add_sketch_options(sketch: argparse.ArgumentParser) -> None:
    files = "files, folders or patterns of .parquet, .csv, .npy or .npz files; also sketches"
    _add(sketch, "files", "FILE", files, nargs="+")
    _add(sketch, "--mechanism", "NAME", "mechanism of the values, if no file states it; its parameters are options")
    _add_parameters(sketch)
    _add(sketch, "--column", "NAME", "column of the values; for rows several (default: value)", action="append")
    _add(sketch, "--levels", "A,B,...", "words in the column that stand for the categories 0, 1, ...", _words, ())
    _add_switch(sketch, "--different-people", "nobody is in two FILEs: state the guarantee of one release")
    _add_output(sketch, "--out", "FILE.npz", "file of the sketch", required=True)
    _add_switch(sketch, "--no-progress", "no progress bar")


def _add_design_options(design: argparse.ArgumentParser) -> None:
    _add(design, "--law", "NAME", "law of original answers: a NumPyro distribution, such as Normal", required=True)
    _add(design, "--at", "NAME=X,...", "guesses of its parameters, as in loc=40,scale=15", _guesses, required=True)
    mechanisms = "one or several mechanisms; their parameters are options; --epsilon 0.5,1,2 compares budgets"
    _add(design, "--mechanism", "NAME,...", mechanisms, _names, required=True)
    _add_parameters(design)
    _add(design, "--people", "N", "number of people (default: 1000)", _integer(1), 1000)
    _add(design, "--width", "X", "also print the number of people that an interval of width X needs", float)
    _add(design, "--level", "P", "probability of the intervals (default: 0.95)", _probability, 0.95)
    factor = "factor of all variances, for weighted people or people in groups (default: 1)"
    _add(design, "--design-effect", "X", factor, float, 1.0)
    _add_output(design, "--plot", "FILE.png", "draw widths of intervals against epsilon, for N and 10 N people")
    _add(design, "--of", "NAME", "for --plot: a parameter, mean or median (default: the first parameter)")


def _add_calibrate_options(calibrate: argparse.ArgumentParser) -> None:
    model = "a factory of ldpbayes.models, with its default priors, or a Python file that defines model(release)"
    _add(calibrate, "model", "MODEL", model)
    mechanisms = "one or several mechanisms; their parameters are options (default: that of [KJKH], if there is one)"
    _add(calibrate, "--mechanism", "NAME,...", mechanisms, _names, ())
    _add_parameters(calibrate, {"epsilon"})
    budgets = {"nargs": "+", "dest": f"{PARAMETER_PREFIX}epsilon"}
    _add(calibrate, "--epsilon", "X", "privacy budgets, one study for each", float, **budgets)
    _add(calibrate, "--people", "N", "number of records of a release (default: 5000)", _integer(1), 5000)
    _add(calibrate, "--repeats", "N", "number of releases to simulate and analyse (default: 200)", _integer(1), 200)
    _add(calibrate, "--seed", "N", "random seed (default: 0)", _integer(0), 0)
    _add(calibrate, "--warmup", "N", "warm-up iterations for each posterior (default: 500)", _integer(0), 500)
    _add(calibrate, "--samples", "N", "draws kept of each; every fifth is used (default: 500)", _integer(5), 500)
    saved = "save finished posteriors in this folder, and resume from there after an interrupt"
    _add(calibrate, "--checkpoints", "FOLDER", saved, pathlib.Path)
    _add_output(calibrate, "--plot", "FILE.png", "draw empirical cdfs of ranks, one panel for each study")
    _add_switch(calibrate, "--no-progress", "no progress bar (or progress lines, if stderr is a file)")


def _add_csv_options(parser: argparse.ArgumentParser, without: Set[str] = frozenset(), private: bool = False) -> Any:
    """Options that say what a CSV file holds, parameters of all mechanisms among them, in a group."""
    group = parser.add_argument_group(
        "what is released, and how" if private else "if a RELEASE is a .csv file",
        "The mechanism's parameters are options, as in --epsilon 1 --lower 0 --upper 20 ('ldpbayes mechanisms' lists "
        + ("them), one for all records." if private else "them); @NAME reads one for each record from a column."),
    )
    column = "column of the values; for rows several in order, x1,x2,y" + " (default: the only column)" * (not private)
    help_text = "mechanism that adds the noise" if private else "mechanism that released the values"
    _add(group, "--mechanism", "NAME", help_text, required=private)
    _add(group, "--column", "NAME", column, action="append", required=private)
    _add(group, "--levels", "A,B,...", "words in the column that stand for the categories 0, 1, ...", _words, ())
    _add(group, "--times", "N", "largest number of values about one person (default: 1)", _integer(1))
    if not private:
        _add(group, "--persons", "COLUMN", "column of the person of each value, from which --times is counted")
        _add_format_options(group, "csv")
    parser.set_defaults(by=None, counts=None, missing=None)
    _add_parameters(group, without)
    return group


def _add_format_options(group: Any, *names: str) -> None:
    """Options of some formats of files."""
    of_formats = {name: field.annotation for format in names for name, field in formats()[format].options.items()}
    for name, kind in of_formats.items():
        kind = kind if kind is str else parameter
        group.add_argument(option(name), dest=FORMAT_PREFIX + name, type=kind, **HIDDEN)


def _add_row_options(group: Any) -> None:
    """Options on the rows of a CSV file."""
    totals = "column that says how many records each row stands for: totals in place of records"
    _add(group, "--counts", "COLUMN", totals)
    gaps = "leave out rows without an answer, or with --formula without a covariate (default: they are an error)"
    _add(group, "--missing", "drop", gaps, choices=["drop"])


def _add_frequencies_options(frequencies: argparse.ArgumentParser) -> None:
    _add(frequencies, "release", "RELEASE", ".npz, .parquet or .csv file of categories", pathlib.Path, nargs=1)
    group = _add_csv_options(frequencies)
    _add(group, "--by", "COLUMN", "groups: one table for each value in this column")
    _add_row_options(group)
    sums = "number of reports: the column has the sum of each bit of unary encodings over all reports"
    _add(group, "--sums", "N", sums, _integer(1))
    _add(group, "--map", "FILE", "RAPPOR's map of candidates; RELEASE has its counts of bits", pathlib.Path)
    _add(group, "--params", "FILE", "RAPPOR's parameters", pathlib.Path)
    _add(frequencies, "--method", "NAME", "unbiased (default), projection, base_cut or mle", default="unbiased")
    _add(frequencies, "--level", "P", "probability of the intervals (default: 0.95)", _probability, 0.95)
    found = "for many categories: print posteriors under a sparse prior, and what is found at this false discovery rate"
    _add(frequencies, "--fdr", "Q", found, _probability)


def _add_parameters(group: Any, without: Set[str] = frozenset()) -> None:
    """Parameters of all mechanisms as options."""
    kinds = [parameters_of(mechanism_class(name)) for name in mechanism_names()]
    names = {name for fields in kinds if "mechanism" not in fields for name in fields}  # rules have no options
    for name in sorted(names - without):
        group.add_argument(option(name), dest=PARAMETER_PREFIX + name, type=parameter, **HIDDEN)


def _kind(allowed: str, parse: Callable[[str], Any], ok: Callable[[Any], bool]) -> Callable[[str], Any]:
    """A type of options: texts that are parsed without a ValueError, and whose values pass a test."""

    def parsed(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if ok(value := parse(text)):
                return value
        raise argparse.ArgumentTypeError(f"{allowed}, got {text!r}")

    return parsed


def _integer(least: int) -> Callable[[str], int]:
    return _kind(f"must be an integer of at least {least}, below 2**63", int, lambda number: least <= number < 2**63)


def _pairs(text: str) -> dict[str, float]:
    return {name.strip(): float(value) for name, _, value in (part.partition("=") for part in text.split(","))}


def _fractions(text: str) -> list[tuple]:
    return [tuple(name.strip() for name in part.partition("/")[::2]) for part in text.split(",")]


_guesses = _kind("must be numbers by name, as in loc=40,scale=15", _pairs, all)
_ends = _kind(
    "must be two numbers, the smaller one first, as in 0,1",
    lambda text: [float(end) for end in text.split(",")],
    lambda ends: len(ends) == 2 and -math.inf < ends[0] < ends[1] < math.inf,
)
_names = _kind("needs names of columns", lambda text: [name.strip() for name in text.split(",")], all)
_ratios = _kind("must be names of two columns, as n/population", _fractions, lambda pairs: all(map(all, pairs)))
_words = _kind(
    "needs two words or more, all different, with commas between them",
    lambda text: [word.strip() for word in text.split(",")],
    lambda words: 1 < len(words) == len(set(words)) and all(words),
)
_probability = _kind("must be a number between 0 and 1, exclusive", float, lambda number: 0 < number < 1)
