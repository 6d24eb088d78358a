"""The command line: ``ldpbayes demo``, ``ldpbayes fit`` and ``ldpbayes mechanisms``; see docs/command_line.md.

Exit codes: 0 for success, 1 for a missing extra or another problem at run time, 2 for bad usage or bad input, 3 for a
posterior that should not be trusted: its chains have not converged, or the mechanism could hardly have made the release
(it is still printed and written).
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import inspect
import json
import os
import pathlib
import sys
import warnings

from ldpbayes.cli._input import BadInput, as_sketch, blaming, load_model, load_release

__all__ = ["main"]

OK, FAILED, BAD_INPUT, DOUBTFUL = 0, 1, 2, 3
EXIT_CODES = """exit codes:
  0  done
  1  an optional dependency is missing, or another problem at run time
  2  bad usage or bad input
  3  done, but not to be trusted (the warnings say why): chains have not converged, or the release is hardly one of
     the stated mechanism
"""


def main(argv=None):
    """Run the command line.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; those of the process by default.

    Returns
    -------
    int
        The exit code.
    """
    parser = _parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed its message
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    try:
        return args.run(args)
    except BadInput as error:
        return _fail(error, BAD_INPUT)
    except (ImportError, OSError, MemoryError) as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def _fail(message, code):
    print(f"ldpbayes: error: {message}", file=sys.stderr)
    return code


def _parser():
    def command(name, run, text, examples, parents=()):
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

    parser = argparse.ArgumentParser(
        prog="ldpbayes",
        description="Bayesian inference from locally differentially private releases.",
        epilog=f"'ldpbayes COMMAND --help' explains a command, with examples.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ldpbayes {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

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
        "--no-cache",
        action="store_true",
        help="do not keep compiled code in $XDG_CACHE_HOME/ldpbayes (or set LDPBAYES_NO_CACHE=1)",
    )

    demo = command(
        "demo",
        _demo,
        "Privatize two real data sets, analyse them three ways, and print a table and draw a picture of the results.",
        "  ldpbayes demo\n  ldpbayes demo --out results --seed 7\n",
        [sampler],
    )
    demo.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("ldpbayes-demo"),
        metavar="DIR",
        help="default: ./ldpbayes-demo",
    )

    fit = command(
        "fit",
        _fit,
        "Sample the posterior of a model, given release files.",
        "  ldpbayes fit visits.npz --model clipped_counts --out visits.nc\n"
        "  ldpbayes fit answers.parquet --model warner\n"
        "  ldpbayes fit north.npz south.npz --model hierarchical\n"
        "  ldpbayes fit telemetry.npz --model oue_histogram\n"
        "  ldpbayes fit visits.npz --model my_model.py     (a file that defines model(release))\n",
        [sampler],
    )
    fit.add_argument(
        "release",
        nargs="+",
        type=pathlib.Path,
        metavar="RELEASE",
        help=".npz or .parquet file; see docs/command_line.md",
    )
    fit.add_argument(
        "--model",
        required=True,
        metavar="NAME_OR_FILE",
        help="a factory of ldpbayes.models, with its default priors, or a Python file that defines model(release); "
        "with several RELEASEs the model gets a list",
    )
    fit.add_argument("--out", type=pathlib.Path, metavar="FILE.nc", help="write the posterior as NetCDF, for ArviZ")
    fit.add_argument("--no-sketch", action="store_true", help="give the model the records themselves")
    fit.add_argument(
        "--no-progress", action="store_true", help="no progress bar (default where stderr is not a terminal)"
    )
    fit.add_argument("--quiet", action="store_true", help="print the summary and warnings only")

    mechanisms = command(
        "mechanisms",
        _mechanisms,
        "List all registered mechanisms, those of installed third parties included.",
        "  ldpbayes mechanisms\n  ldpbayes mechanisms --json\n",
    )
    mechanisms.add_argument("--json", action="store_true", help="as JSON, for programs")
    return parser


def _integer(least):
    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text!r}")
        return value

    return parse


# --- commands -------------------------------------------------------------------------------------------------------


def _demo(args):
    _needs("statsmodels", "matplotlib", "h5netcdf", "h5py")
    import jax

    from ldpbayes.cli import _demo as demo

    _use_compilation_cache(args)
    _make_folder(args.out)
    options = _sampler_options(args) | {"progress_bar": False}
    affairs, visits = demo.load_fair(), demo.load_randhie()
    print(
        f"Two real data sets, privatized here by simulation (seed {args.seed}):\n"
        f"  fair     {len(affairs):,} people, an affair or not; randomized response, epsilon = 0.5, 1, 2\n"
        f"  randhie  {len(visits):,} people, doctor visits clipped to 0..20; Laplace noise, epsilon = 1\n",
        flush=True,
    )
    key_affairs, key_visits = jax.random.split(jax.random.key(args.seed))
    log = demo.Steps(sys.stderr)
    with _plain_warnings():
        affairs = demo.fair(affairs, key_affairs, log, **options)
        visits = demo.randhie(visits, key_visits, log, **options)
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


def _fit(args):
    if args.out is not None:
        _needs("h5netcdf", "h5py")  # h5netcdf alone brings no backend
        if args.out.is_dir():
            raise BadInput(f"--out {args.out} is a folder; give the name of a file")
        if not args.out.absolute().parent.is_dir():
            raise BadInput(f"--out: there is no folder {args.out.absolute().parent}")
    model = load_model(args.model)
    if args.model in ("hierarchical", "regional_histograms") and len(args.release) == 1:
        raise BadInput(f"--model {args.model} needs several RELEASEs, one a group; got one")
    with _plain_warnings():
        return _fit_releases(args, model)


def _fit_releases(args, model):
    releases = [load_release(path) for path in args.release]
    say = (lambda text: None) if args.quiet else (lambda text: print(text, flush=True))
    data = []
    for path, release in zip(args.release, releases, strict=True):
        say(f"{path}: {len(release):,} records, {release.mechanism!r}\n  {release.mechanism.guarantee.statement()}")
        data.append(release if args.no_sketch else as_sketch(path, release, say))
    _use_compilation_cache(args)
    from ldpbayes import fit

    progress = sys.stderr.isatty() and not (args.no_progress or args.quiet)
    say(f"sampling {args.chains} chains of {args.warmup} + {args.samples} draws (at first, compiling for seconds) ...")
    with blaming(args.model):
        result = fit(model, data[0] if len(data) == 1 else data, progress_bar=progress, **_sampler_options(args))
    say("")
    print(_summary(result))
    if args.out is not None:
        result.to_netcdf(args.out, engine="h5netcdf")
        say(f"\nwrote {args.out}")
    return _exit_code([result])


def _mechanisms(args):
    from ldpbayes.mechanisms import mechanism_class, mechanism_names

    rows = []
    for name in mechanism_names():
        cls = mechanism_class(name)
        parameters = []
        for field in dataclasses.fields(cls):
            if field.init:
                default = None if field.default is dataclasses.MISSING else field.default
                required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
                parameters.append({"name": field.name, "required": required, "default": default})
        description = (inspect.getdoc(cls) or "").strip().split("\n\n")[0].replace("\n", " ")
        rows.append(
            {
                "name": name,
                "class": f"{cls.__module__}.{cls.__qualname__}",
                "parameters": parameters,
                "description": description,
            }
        )
    if args.json:
        print(json.dumps(rows, indent=2, default=repr))
        return OK
    for row in rows:
        signature = ", ".join(
            p["name"] if p["required"] else f"{p['name']}={p['default']!r}" for p in row["parameters"]
        )
        print(f"{row['name']}({signature})\n    {row['description']}")
    return OK


# --- what they share ------------------------------------------------------------------------------------------------


def _needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"this needs {' and '.join(missing)}: pip install 'ldpbayes[demo]'")


def _make_folder(path):
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadInput(f"--out {path} is not a folder") from None


def _sampler_options(args):
    return {"seed": args.seed, "num_chains": args.chains, "num_warmup": args.warmup, "num_samples": args.samples}


@contextlib.contextmanager
def _plain_warnings():
    """The package's warnings as one line each on stderr, none twice; others as they are."""
    from ldpbayes import LdpBayesWarning

    said = set()
    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.simplefilter("always", LdpBayesWarning)

        def plain(message, category, *args, **kwargs):
            if issubclass(category, LdpBayesWarning):
                if str(message) not in said:
                    print(f"ldpbayes: warning: {message}", file=sys.stderr)
                said.add(str(message))
            else:
                show(message, category, *args, **kwargs)

        warnings.showwarning = plain
        yield


def _summary(result):
    import arviz as az

    # ArviZ 0.2x and 1.x name the interval's probability differently
    old = "hdi_prob" in inspect.signature(az.summary).parameters
    frame = az.summary(result, **({"hdi_prob": 0.95} if old else {"ci_prob": 0.95, "ci_kind": "hdi"}))
    return frame.to_string()


def _exit_code(results):
    kinds = ("convergence_warnings", "release_warnings")
    return DOUBTFUL if any(json.loads(r.attrs[kind]) for r in results for kind in kinds) else OK


def _use_compilation_cache(args):
    """Keep compiled code between runs, unless it is not wanted."""
    from ldpbayes._compiled_code import keep_compiled_code

    if not (args.no_cache or os.environ.get("LDPBAYES_NO_CACHE")):
        keep_compiled_code()


if __name__ == "__main__":
    sys.exit(main())
