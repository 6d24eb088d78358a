"""The commands, from typed arguments to exit codes; see docs/command_line.md."""

import argparse
import contextlib
import csv
import inspect
import json
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import ldpbayes as ldp
from ldpbayes._core.checks import is_integer, require
from ldpbayes.cli._csv import BadInput, naming
from ldpbayes.cli._models import (
    GROUPED,
    as_sketch,
    blaming,
    load_model,
    place_names,
    summary,
)
from ldpbayes.cli._parser import FAMILY_OPTIONS, parser
from ldpbayes.cli._releases import load_features, load_releases
from ldpbayes.inference.result import ADVICE
from ldpbayes.mechanisms import mechanism_names
from ldpbayes.mechanisms.protocol import statements
from ldpbayes.mechanisms.registry import mechanism_class

if TYPE_CHECKING:
    from ldpbayes.bootstrap import PrivateEstimator

OK, FAILED, BAD_INPUT, DOUBTFUL = 0, 1, 2, 3
TYPED_ADVICE = "; give more --warmup and --samples, or --target-accept 0.9"  # `ADVICE`, in options of the command line
LINES = 8  # of notes on releases that are printed
FAMILIES = {
    "bernoulli": "Bernoulli",
    "beta": "Beta",
    "binomial": "Binomial",
    "exponential": "Exponential",
    "gamma": "Gamma",
    "gamma_rate": "GammaRate",
    "gaussian": "Normal",
    "gaussian_mean": "NormalMean",
    "multinomial": "Multinomial",
    "multivariate_normal": "NormalVector",
    "poisson": "Poisson",
}
WHOLE = {"trials", "categories"}  # parameters of families that are integers


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with arguments, by default those of the process, and return the exit code.

    It is 0: done; 1: a missing extra or another problem at run time; 2: bad usage or bad input; 3: done, but not to be
    trusted; 130: interrupted.
    """
    try:
        commands = (_demo, _fit, _bootstrap, _regress, _mechanisms, _models)
        args = parser(commands).parse_args(_joined(sys.argv[1:] if argv is None else argv))
        return args.run(args)
    except SystemExit as stop:  # argparse has printed its message
        return int(stop.code) if is_integer(stop.code) else BAD_INPUT  # type: ignore[arg-type]
    except BadInput as error:
        return _fail(error, BAD_INPUT)
    except (ImportError, OSError, MemoryError) as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def _joined(argv: Sequence[str]) -> list[str]:
    """Arguments with ``--interval -1,2`` as ``--interval=-1,2``: argparse would take -1,2 for an option."""
    joined: list[str] = []
    for word in argv:
        follows = joined and re.match(r"-[\d.]+,", word) and re.fullmatch(r"--[\w-]+", joined[-1])
        joined.append(f"{joined.pop()}={word}" if follows else word)
    return joined


def _fail(message: object, code: int) -> int:
    print(f"ldpbayes: error: {message}", file=sys.stderr)
    return code


def _demo(args: argparse.Namespace) -> int:
    require("demo", "statsmodels", "matplotlib", "h5netcdf", "h5py")
    from ldpbayes.cli._demo import run

    _use_compilation_cache(args)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadInput(f"--out {args.out} is not a folder") from None
    with _plain_warnings():
        return _exit_code(run(args.out, **_sampler_options(args)))


def _fit(args: argparse.Namespace) -> int:
    _check_out(args.out, ".nc", "draws are written as NetCDF")
    if (args.features is None) != (args.model != "label_regression"):
        raise BadInput("--features is for --model label_regression, and that model needs it")
    model = load_model(args.model, *(() if args.features is None else (load_features(args),)))
    several = len(args.release) > 1 or args.by
    if args.model in GROUPED and not several:
        raise BadInput(f"--model {args.model} needs several RELEASEs, one a group, or one .csv file with --by COLUMN")
    if several and args.model in ldp.models.__all__ and args.model not in GROUPED:
        advice = f"give it one RELEASE, without --by; models of groups are {' and '.join(GROUPED)}"
        raise BadInput(f"--model {args.model} is not for groups: {advice}")

    def say(text: str) -> None:
        if not args.quiet:
            print(text, flush=True)

    notes: list[str] = []
    with _plain_warnings():
        releases = load_releases(args)
        say(few(f"{name}: {len(release):,} records, {release.mechanism!r}" for name, _, release in releases))
        promises = statements(named.release.mechanism for named in releases)
        say(few(f"  {line}" for line in promises.splitlines()))
        whole = args.no_sketch or args.features
        data = [named.release if whole else as_sketch(named, args.model, notes.append) for named in releases]
        if notes:
            say(few(dict.fromkeys(notes)))
        _use_compilation_cache(args)
        draws = f"{args.chains} chains of {args.warmup} + {args.samples} draws"
        say(f"sampling {draws} (at first, compiling for seconds) ...")
        options = _sampler_options(args) | place_names(args.model, releases, args.levels)
        options["progress_bar"] = not (args.no_progress or args.quiet)
        with blaming(args.model):
            result = ldp.fit(model, data if len(data) > 1 or args.by else data[0], **options)
        say("")
        print(summary(result, args.model))
        if args.out is not None:
            result.to_netcdf(args.out, engine="h5netcdf")
            say(f"\nwrote {args.out}")
    return _exit_code([result])


def few(lines: Iterable[str]) -> str:
    """The first lines, and how many others there are."""
    texts = list(lines)
    beyond = len(texts) - LINES
    return "\n".join(texts[:LINES] + [f"... and {beyond:,} more"] * (beyond > 0))


def _bootstrap(args: argparse.Namespace) -> int:
    _check_out(args.out, ".nc", "draws are written as NetCDF")
    with _plain_warnings() as messages:
        ((name, _, release),) = load_releases(args)
        with naming(name):
            options = {"draws": args.draws, "seed": args.seed, "kind": args.kind}
            correction = ldp.bootstrap.Matched() if args.match else None
            estimator = _estimator(args, release.mechanism)
            estimate = ldp.parametric_bootstrap(estimator, release, correction=correction, **options)
            table = estimate.summary(args.level)
        print(f"{table}\n{estimate.privacy}")
    if args.out is not None:
        estimate.replicates.to_netcdf(args.out, engine="h5netcdf")
        print(f"wrote {args.out}")
    return DOUBTFUL if messages else OK


def _estimator(args: argparse.Namespace, mechanism: Any) -> "PrivateEstimator":
    from ldpbayes.bootstrap.regression import LeastSquaresEstimator
    from ldpbayes.bootstrap.statistics import SufficientStatisticsEstimator

    values: dict[str, Any] = {name: getattr(args, name) for name in FAMILY_OPTIONS if getattr(args, name) is not None}
    least_squares = args.family == "least_squares"
    if args.family not in FAMILIES and not least_squares:
        raise BadInput(f"--family must be one of {', '.join(FAMILIES)}, least_squares, got {args.family!r}")
    family: Any = getattr(ldp.bootstrap, "NormalVector" if least_squares else FAMILIES[args.family])
    parameters = inspect.signature(family).parameters
    beyond = [f"--{name}" for name in values if name not in parameters]
    if least_squares:
        values = {"lower": None, "upper": None} | values  # refused with the reason why both are needed
    lacking = [f"--{p.name}" for p in parameters.values() if p.default is p.empty and p.name not in values]
    for problem, names in (("has no", beyond), ("needs", lacking)):
        if names:
            raise BadInput(f"--family {args.family} {problem} {' and '.join(names)}")
    whole = {name: int(values[name]) for name in WHOLE & values.keys() if values[name] == int(values[name])}
    records = family(**values | whole)
    if least_squares:
        return LeastSquaresEstimator(records, mechanism, args.count, intercept=not args.no_intercept)
    return SufficientStatisticsEstimator(records, mechanism, args.count, args.account_for_clamping)


def _regress(args: argparse.Namespace) -> int:
    _check_out(args.out, ".csv", "estimates are written as CSV")
    with _plain_warnings() as messages:
        ((name, _, release),) = load_releases(args)
        features, intercept = load_features(args), not args.no_intercept
        with naming(name):
            objective = ldp.learning.MarginalLikelihood(getattr(ldp.learning, f"{args.law}_labels"))
            options = {"objective": objective, "penalty": args.penalty, "intercept": intercept}
            predictor = ldp.learning.linear_fit(features, release, **options)
            table = predictor.summary(args.level)
        print(f"{table}\n{predictor.privacy}")
    if args.out is not None:
        with args.out.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["parameter", "estimate", "standard_error", "lower", "upper"])
            ends = predictor.interval(args.level)
            rows.writerows(zip(predictor.names, predictor.params, predictor.standard_error, *ends, strict=True))
        print(f"wrote {args.out}")
    return DOUBTFUL if messages else OK


def _mechanisms(args: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for name in mechanism_names():
        cls = mechanism_class(name)
        parameters = [
            {"name": p.name, "required": p.default is p.empty, "default": None if p.default is p.empty else p.default}
            for p in inspect.signature(cls).parameters.values()
        ]
        names = {"name": name, "class": f"{cls.__module__}.{cls.__qualname__}"}
        rows.append(names | {"parameters": parameters, "description": first_paragraph(inspect.getdoc(cls))})
    if args.json:
        print(json.dumps(rows, indent=2, default=repr))
        return OK
    for row in rows:
        signature = [p["name"] + ("" if p["required"] else f"={p['default']!r}") for p in row["parameters"]]
        print(f"{row['name']}({', '.join(signature)})\n    {row['description']}")
    return OK


def _models(args: argparse.Namespace) -> int:
    rows = []
    for name in ldp.models.__all__:
        factory = getattr(ldp.models, name)
        parameters = inspect.signature(factory).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty]
        shown = factory(*(np.zeros((1, 1)) for _ in needed)).shown  # features, where they are needed, of one column
        priors = ", ".join(f"{name}={text}" for name, text in shown.items() if name not in needed)
        text = (inspect.getdoc(factory) or "").replace("`", "")
        returned = first_paragraph(text.partition("Returns\n-------\ncallable\n")[2])
        takes = re.split(r"[;.] TypeError", returned)[0].rstrip(".")
        rows.append({"name": name, "priors": priors, "description": first_paragraph(text), "takes": takes})
    texts = [f"{row['name']}({row['priors']})\n    {row['description']}\n    {row['takes']}" for row in rows]
    print(json.dumps(rows, indent=2) if args.json else "\n".join(texts))
    return OK


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring in a line."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def _check_out(path: pathlib.Path | None, suffix: str, form: str) -> None:
    if path is None:
        return
    if path.suffix != suffix:
        raise BadInput(f"--out {path}: {form}; give the name of a file that ends in {suffix}")
    if suffix == ".nc":
        require("demo", "h5netcdf", "h5py")  # h5netcdf writes through h5py, which it does not bring along
    if path.is_dir():
        raise BadInput(f"--out {path} is a folder; give the name of a file")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--out: there is no folder {path.absolute().parent}")


def _sampler_options(args: argparse.Namespace) -> dict[str, Any]:
    options = {"seed": args.seed, "num_chains": args.chains, "num_warmup": args.warmup, "num_samples": args.samples}
    return options if args.target_accept is None else options | {"target_accept_prob": args.target_accept}


@contextlib.contextmanager
def _plain_warnings() -> Iterator[set[str]]:
    """Print each of the package's warnings once, as a line on stderr, and collect them; leave other warnings alone."""
    messages: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.simplefilter("always", ldp.LdpBayesWarning)

        def plain(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
            text = str(message).replace(ADVICE, TYPED_ADVICE)
            if not issubclass(category, ldp.LdpBayesWarning):
                show(message, category, *args, **kwargs)
            elif text not in messages:
                print(f"ldpbayes: warning: {text}", file=sys.stderr)
                messages.add(text)

        warnings.showwarning = plain  # `catch_warnings` puts the old one back
        yield messages


def _exit_code(results: Iterable[Any]) -> int:
    kinds = ("convergence_warnings", "release_warnings")
    return DOUBTFUL if any(json.loads(r.attrs[kind]) for r in results for kind in kinds) else OK


def _use_compilation_cache(args: argparse.Namespace) -> None:
    if not (args.no_cache or os.environ.get("LDPBAYES_NO_CACHE")):
        ldp.keep_compiled_code()
