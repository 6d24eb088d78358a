"""What can be typed: commands, their options, and the help on them."""

import argparse
import contextlib
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ldpbayes.cli._input import BadInput
from ldpbayes.cli._releases import option, parameter

EXIT_CODES = """exit codes:
  0  done
  1  an optional dependency is missing, or another problem at run time
  2  bad usage or bad input
  3  done, but not to be trusted (the warnings say why): chains have not converged, the release is hardly one of the
     stated mechanism, or it is outside the domain of the estimator
"""


def parser(
    demo: Callable[[argparse.Namespace], int],
    fit: Callable[[argparse.Namespace], int],
    bootstrap: Callable[[argparse.Namespace], int],
    regress: Callable[[argparse.Namespace], int],
    mechanisms: Callable[[argparse.Namespace], int],
    models: Callable[[argparse.Namespace], int],
    laws: Sequence[str] = (),
    parameters: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """The parser of the command line, in whose result ``run`` is the command; it raises `BadInput` for bad usage.

    Parameters
    ----------
    demo, fit, bootstrap, regress, mechanisms, models : callable
        The commands, from parsed arguments to an exit code.
    laws : sequence of str
        What ``regress --law`` may be.
    parameters : sequence of str
        Those of all mechanisms, which are options of commands that read CSV files.

    Returns
    -------
    argparse.ArgumentParser
    """

    def command(
        name: str,
        run: Callable[[Any], int],
        text: str,
        examples: str,
        parents: Sequence[Any] = (),
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"examples:\n{examples}\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=parents,
        )
        sub.set_defaults(run=run)
        return sub

    from ldpbayes import __version__

    top = _Parser(
        prog="ldpbayes",
        description="Bayesian inference from locally differentially private releases.",
        epilog=f"'ldpbayes COMMAND --help' explains a command, with examples.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"ldpbayes {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    sampler = argparse.ArgumentParser(add_help=False)
    group = sampler.add_argument_group("sampler (NUTS)")
    group.add_argument("--seed", type=_integer(0), default=0, metavar="N", help="random seed (default: 0)")
    group.add_argument("--chains", type=_integer(1), default=4, metavar="N", help="chains (default: 4)")
    group.add_argument(
        "--warmup", type=_integer(0), default=1000, metavar="N", help="warm-up draws a chain (default: 1000)"
    )
    group.add_argument(
        "--samples", type=_integer(1), default=1000, metavar="N", help="draws kept a chain (default: 1000)"
    )
    group.add_argument(
        "--target-accept",
        type=_probability,
        metavar="P",
        help="acceptance that warm-up aims at (default: 0.8); nearer to 1 where draws diverge",
    )
    group.add_argument(
        "--no-cache",
        action="store_true",
        help="do not keep compiled code in $XDG_CACHE_HOME/ldpbayes (or set LDPBAYES_NO_CACHE=1)",
    )

    demo_parser = command(
        "demo",
        demo,
        "Privatize two real data sets, analyse them three ways, and print a table and draw a picture of the results.",
        "  ldpbayes demo\n  ldpbayes demo --out results --seed 7\n",
        [sampler],
    )
    demo_parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("ldpbayes-demo"),
        metavar="DIR",
        help="default: ./ldpbayes-demo",
    )

    fit_parser = command(
        "fit",
        fit,
        "Sample the posterior of a model, given release files.",
        "  ldpbayes fit visits.npz --model clipped_counts --out visits.nc\n"
        "  ldpbayes fit answers.parquet --model warner\n"
        "  ldpbayes fit north.npz south.npz --model hierarchical\n"
        "  ldpbayes fit telemetry.npz --model oue_histogram\n"
        "  ldpbayes fit labels.npz --model label_regression --features features.csv\n"
        "  ldpbayes fit visits.npz --model my_model.py     (a file that defines model(release))\n"
        "  ldpbayes fit visits.csv --column visits --mechanism laplace --epsilon 1 --lower 0 --upper 20 \\\n"
        "      --model clipped_counts\n"
        "  ldpbayes fit people.csv --column income --by region --mechanism laplace --epsilon @budget \\\n"
        "      --lower -5 --upper 5 --model hierarchical\n",
        [sampler],
    )
    fit_parser.add_argument(
        "release",
        nargs="+",
        type=pathlib.Path,
        metavar="RELEASE",
        help=".npz, .parquet or .csv file; see docs/command_line.md",
    )
    _add_csv_options(fit_parser, parameters).add_argument(
        "--by", metavar="COLUMN", help="groups: the model gets a list with a release for each value in this column"
    )
    fit_parser.add_argument(
        "--model",
        required=True,
        metavar="NAME_OR_FILE",
        help="a factory of ldpbayes.models, with its default priors, or a Python file that defines model(release); "
        "with several RELEASEs the model gets a list",
    )
    fit_parser.add_argument(
        "--out", type=pathlib.Path, metavar="FILE.nc", help="write the posterior as NetCDF, for ArviZ"
    )
    fit_parser.add_argument(
        "--features",
        type=pathlib.Path,
        metavar="FILE",
        help="of label_regression: .csv or .npy, a row a label; or columns of a .csv RELEASE, as age,rooms",
    )
    fit_parser.add_argument("--no-sketch", action="store_true", help="give the model the records themselves")
    fit_parser.add_argument(
        "--no-progress", action="store_true", help="no progress bar, nor, where stderr is a file, lines now and then"
    )
    fit_parser.add_argument("--quiet", action="store_true", help="print the summary and warnings only")

    bootstrap_parser = command(
        "bootstrap",
        bootstrap,
        "Estimate the parameters of a family from released statistics, with intervals for sampling and noise together.",
        "  ldpbayes bootstrap sums.npz --family gaussian --lower 0 --upper 100 --count 5000\n"
        "  ldpbayes bootstrap visits.npz --family poisson --upper 20 --count 20190 --account-for-clamping\n"
        "  ldpbayes bootstrap moments.npz --family least_squares --lower 0,0 --upper 20,90 --count 6000\n",
    )
    bootstrap_parser.add_argument(
        "release",
        type=pathlib.Path,
        metavar="RELEASE",
        help="a file of one value: the noisy sums of the family's statistics; see docs/bootstrap.md",
    )
    family = (
        ("lower", "bound to which records were clamped; of rows one a column, as 0,0,18"),
        ("upper", "the other bound"),
        ("trials", "of binomial records"),
        ("categories", "of multinomial records"),
        ("scale", "known standard deviation, of gaussian_mean"),
        ("concentration", "known shape, of gamma_rate"),
    )
    own = {"count", *dict(family)}
    _add_csv_options(bootstrap_parser, [name for name in parameters if name not in own])
    group = bootstrap_parser.add_argument_group("the estimator that made the release")
    group.add_argument("--family", required=True, metavar="NAME", help="gaussian, poisson, ...; see docs/bootstrap.md")
    group.add_argument("--count", required=True, type=_integer(2), metavar="N", help="number of records, public")
    for name, what in family:
        group.add_argument(f"--{name}", metavar="X", type=_numbers, help=what)
    group.add_argument("--no-intercept", action="store_true", help="of least_squares")
    group.add_argument(
        "--account-for-clamping", action="store_true", help="match the moments of clamped records: where many are"
    )
    group = bootstrap_parser.add_argument_group("the bootstrap")
    group.add_argument("--draws", type=_integer(2), default=2000, metavar="N", help="replicates (default: 2000)")
    group.add_argument("--seed", type=_integer(0), default=0, metavar="N", help="random seed (default: 0)")
    group.add_argument("--level", type=float, default=0.95, metavar="P", help="of the intervals (default: 0.95)")
    group.add_argument(
        "--kind", default="percentile", metavar="NAME", help="percentile (default), pivotal, studentised or log"
    )
    group.add_argument("--match", action="store_true", help="correct the bias by matched replicates")
    group.add_argument("--out", type=pathlib.Path, metavar="FILE.nc", help="write the replicates as NetCDF")

    regress_parser = command(
        "regress",
        regress,
        "Fit a linear predictor to released labels and public features, by maximum a posteriori.",
        "  ldpbayes regress labels.npz --features features.csv\n"
        "  ldpbayes regress homes.csv --column price --mechanism laplace --epsilon 1 --lower 0 --upper 1 \\\n"
        "      --features age,rooms\n"
        "  ldpbayes regress incomes.npz --features features.npy --law log_normal --penalty 1 --out incomes.csv\n",
    )
    regress_parser.add_argument(
        "release", type=pathlib.Path, metavar="RELEASE", help=".npz, .parquet or .csv file of labels"
    )
    _add_csv_options(regress_parser, parameters)
    regress_parser.add_argument(
        "--features",
        type=pathlib.Path,
        required=True,
        metavar="FILE",
        help=".csv or .npy, a row a label; or columns of a .csv RELEASE, as age,rooms",
    )
    regress_parser.add_argument(
        "--law", choices=laws, default="normal", help="of a label given its predictor (default: normal)"
    )
    regress_parser.add_argument(
        "--penalty", type=float, metavar="X", help="prior precision of a slope (default: the most probable one)"
    )
    regress_parser.add_argument("--no-intercept", action="store_true", help="the predictor is 0 where the features are")
    regress_parser.add_argument(
        "--level", type=float, default=0.95, metavar="P", help="of the intervals (default: 0.95)"
    )
    regress_parser.add_argument("--out", type=pathlib.Path, metavar="FILE.csv", help="write the parameters")

    mechanisms_parser = command(
        "mechanisms",
        mechanisms,
        "List all registered mechanisms, those of installed third parties included.",
        "  ldpbayes mechanisms\n  ldpbayes mechanisms --json\n",
    )
    models_parser = command(
        "models",
        models,
        "List the models that fit knows by name: their default priors, what they are for, and their parameters.",
        "  ldpbayes models\n  ldpbayes models --json\n",
    )
    for listing in (mechanisms_parser, models_parser):
        listing.add_argument("--json", action="store_true", help="as JSON, for programs")
    return top


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as all commands do, and not below the usage."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message.removeprefix('argument ')}; see '{self.prog} --help'")


class _Parameter(argparse.Action):
    """Keeps what was typed of a mechanism together, by the names of its parameters."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.parameters = namespace.parameters | {self.dest: values}


def _add_csv_options(parser: argparse.ArgumentParser, parameters: Iterable[str]) -> Any:
    """The group of the options that say what a CSV file holds, the parameters of mechanisms among them."""
    group = parser.add_argument_group(
        "where a RELEASE is a .csv file",
        "The mechanism's parameters are options, as in --epsilon 1 --lower 0 --upper 20 ('ldpbayes mechanisms' lists "
        "them); @NAME takes one a record from a column.",
    )
    group.add_argument("--mechanism", metavar="NAME", help="what released the values")
    group.add_argument(
        "--column",
        action="append",
        metavar="NAME",
        help="where they are; of rows several, in order, as in x1,x2,y (default: the only column)",
    )
    group.add_argument(
        "--levels", type=_words, default=(), metavar="A,B,...", help="words that stand there for codes 0, 1, ..."
    )
    parser.set_defaults(parameters={})
    for name in parameters:
        group.add_argument(
            option(name),
            dest=name,
            action=_Parameter,
            type=parameter,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    return group


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if len(set(words)) < len(words) or not all(words):
        raise argparse.ArgumentTypeError(f"must be different words with commas between them, got {text!r}")
    if len(words) < 2:
        raise argparse.ArgumentTypeError(f"needs two words or more, with commas between them, got {text!r}")
    return words


def _probability(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, exclusive, got {text!r}")


def _integer(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text!r}")
        return value

    return parse


def _numbers(text: str) -> Any:
    """A number, or several with commas between them."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, or numbers with commas between them, got {text!r}"
        ) from None
    return numbers if len(numbers) > 1 else numbers[0]
