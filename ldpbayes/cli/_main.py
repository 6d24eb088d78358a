"""The commands, from typed arguments to exit codes; see docs/command_line.md."""

import argparse
import contextlib
import csv
import dataclasses
import inspect
import json
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ldpbayes import LdpBayesWarning, fit, keep_compiled_code
from ldpbayes._core.checks import is_integer, require
from ldpbayes.cli._commands import GROUPED, bootstrapped, few, load_features, place_names, regressed, summary
from ldpbayes.cli._input import BadInput, as_sketch, blaming, described_models, load_model
from ldpbayes.cli._parser import parser
from ldpbayes.cli._releases import load_releases
from ldpbayes.inference.result import ADVICE
from ldpbayes.mechanisms import mechanism_names
from ldpbayes.mechanisms.composition import statements
from ldpbayes.mechanisms.registry import mechanism_class

OK, FAILED, BAD_INPUT, DOUBTFUL = 0, 1, 2, 3
TYPED_ADVICE = "; give more --warmup and --samples, or --target-accept 0.9"  # `ADVICE`, in options of the command line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with arguments, by default those of the process, and return the exit code.

    It is 0: done; 1: a missing extra or another problem at run time; 2: bad usage or bad input; 3: done, but not to be
    trusted; 130: interrupted.
    """
    try:
        commands = (_demo, _fit, _bootstrap, _regress, _mechanisms, _models)
        args = parser(commands, _parameters()).parse_args(_joined(sys.argv[1:] if argv is None else argv))
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


def _parameters() -> list[str]:
    """Names of the parameters of all mechanisms."""
    classes: list[Any] = [mechanism_class(name) for name in mechanism_names()]
    return sorted({field.name for cls in classes for field in dataclasses.fields(cls) if field.init})


def _fail(message: object, code: int) -> int:
    print(f"ldpbayes: error: {message}", file=sys.stderr)
    return code


def _demo(args: argparse.Namespace) -> int:
    require("demo", "statsmodels", "matplotlib", "h5netcdf", "h5py")
    import jax

    from ldpbayes.cli import _demo as demo

    _use_compilation_cache(args)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadInput(f"--out {args.out} is not a folder") from None
    options = _sampler_options(args) | {"progress_bar": False}
    answers, counts = demo.load_fair(), demo.load_randhie()
    print(
        f"Two real data sets, privatized here by simulation (seed {args.seed}):\n"
        f"  fair     {len(answers):,} people, an affair or not; randomized response, epsilon = 0.5, 1, 2\n"
        f"  randhie  {len(counts):,} people, doctor visits clipped to 0..20; Laplace noise, epsilon = 1\n",
        flush=True,
    )
    key_affairs, key_visits = jax.random.split(jax.random.key(args.seed))
    with _plain_warnings():
        affairs = demo.fair(answers, key_affairs, **options)
        visits = demo.randhie(counts, key_visits, **options)
    clipped = visits.records.clip(max=20)
    average = "{:.2f} [{:.2f}, {:.2f}]".format(*visits.average)
    print(f"\nPosterior mean and 95 % interval\n\n{demo.table(affairs, visits)}\n")
    print(
        "naive: same model, released values at face value (visits: rounded, negative ones set to 0).\n"
        "noise-aware: same model, with the mechanism in the likelihood.\n"
        "non-private: same model, original data (visits: 20 stands for 20 or more).\n"
        f"The plain average of the released visits, {average}, is a fair estimate of the mean\n"
        f"of the clipped visits ({clipped.mean():.2f}), but it says nothing of their distribution.\n"
    )
    for path in demo.write(affairs, visits, args.out):
        print(f"wrote {path}")
    return _exit_code([*affairs.posteriors.values(), *visits.posteriors.values()])


def _fit(args: argparse.Namespace) -> int:
    from ldpbayes import models

    _check_out(args.out, ".nc", "draws are written as NetCDF")
    if (args.features is None) != (args.model != "label_regression"):
        raise BadInput("--features is for --model label_regression, and that model needs it")
    model = load_model(args.model, *(() if args.features is None else load_features(args)[1:]))
    several = len(args.release) > 1 or args.by
    if args.model in GROUPED and not several:
        raise BadInput(f"--model {args.model} needs several RELEASEs, one a group, or one .csv file with --by COLUMN")
    if several and args.model in models.__all__ and args.model not in GROUPED:
        advice = f"give it one RELEASE, without --by; models of groups are {' and '.join(GROUPED)}"
        raise BadInput(f"--model {args.model} is not for groups: {advice}")
    with _plain_warnings():
        return _fit_releases(args, model)


def _fit_releases(args: argparse.Namespace, model: Callable) -> int:
    def say(text: str) -> None:
        if not args.quiet:
            print(text, flush=True)

    data: list[Any] = []
    notes: list[str] = []
    releases = load_releases(args)
    say(few(f"{name}: {len(release):,} records, {release.mechanism!r}" for name, _, release in releases))
    promises = statements(named.release.mechanism for named in releases)
    say(few(f"  {line}" for line in promises.splitlines()))
    for name, _, release in releases:
        records = args.no_sketch or args.features
        data.append(release if records else as_sketch(name, release, args.model, notes.append))
    if notes:
        say(few(dict.fromkeys(notes)))
    _use_compilation_cache(args)
    progress = not (args.no_progress or args.quiet)
    say(f"sampling {args.chains} chains of {args.warmup} + {args.samples} draws (at first, compiling for seconds) ...")
    options = _sampler_options(args) | place_names(args.model, releases, args.levels) | {"progress_bar": progress}
    with blaming(args.model):
        result = fit(model, data if len(data) > 1 or args.by else data[0], **options)
    say("")
    print(summary(result, args.model))
    if args.out is not None:
        result.to_netcdf(args.out, engine="h5netcdf")
        say(f"\nwrote {args.out}")
    return _exit_code([result])


def _bootstrap(args: argparse.Namespace) -> int:
    _check_out(args.out, ".nc", "draws are written as NetCDF")
    with _plain_warnings() as messages:
        estimate = bootstrapped(args)
        print(estimate.summary(args.level))
        print(estimate.privacy)
    if args.out is not None:
        estimate.replicates.to_netcdf(args.out, engine="h5netcdf")
        print(f"wrote {args.out}")
    return DOUBTFUL if messages else OK


def _regress(args: argparse.Namespace) -> int:
    _check_out(args.out, ".csv", "estimates are written as CSV")
    with _plain_warnings() as messages:
        predictor = regressed(args)
        print(predictor.summary(args.level))
        print(predictor.privacy)
    if args.out is not None:
        ends = predictor.interval(args.level)
        with args.out.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["parameter", "estimate", "standard_error", "lower", "upper"])
            columns = predictor.names, predictor.params, predictor.standard_error, *ends
            rows.writerows(zip(*columns, strict=True))
        print(f"wrote {args.out}")
    return DOUBTFUL if messages else OK


def _mechanisms(args: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for name in mechanism_names():
        cls: Any = mechanism_class(name)
        parameters, missing = [], dataclasses.MISSING
        for field in filter(lambda field: field.init, dataclasses.fields(cls)):
            default = None if field.default is missing else field.default
            required = field.default is missing and field.default_factory is missing
            parameters.append({"name": field.name, "required": required, "default": default})
        description = (inspect.getdoc(cls) or "").strip().split("\n\n")[0].replace("\n", " ")
        names = {"name": name, "class": f"{cls.__module__}.{cls.__qualname__}"}
        rows.append(names | {"parameters": parameters, "description": description})
    if args.json:
        print(json.dumps(rows, indent=2, default=repr))
        return OK
    for row in rows:
        signature = [p["name"] + ("" if p["required"] else f"={p['default']!r}") for p in row["parameters"]]
        print(f"{row['name']}({', '.join(signature)})\n    {row['description']}")
    return OK


def _models(args: argparse.Namespace) -> int:
    rows = described_models()
    texts = [f"{row['name']}({row['priors']})\n    {row['description']}\n    {row['takes']}" for row in rows]
    print(json.dumps(rows, indent=2) if args.json else "\n".join(texts))
    return OK


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
        warnings.simplefilter("always", LdpBayesWarning)

        def plain(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
            text = str(message).replace(ADVICE, TYPED_ADVICE)
            if not issubclass(category, LdpBayesWarning):
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
        keep_compiled_code()
