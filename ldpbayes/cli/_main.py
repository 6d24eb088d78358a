"""The commands, from typed arguments to exit codes; see docs/reference/command_line.md."""

import argparse
import contextlib
import csv
import functools
import inspect
import itertools
import json
import operator
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from encodings import utf_8
from typing import Any, BinaryIO

import numpy as np
import numpyro.distributions as dist

import ldpbayes as ldp
from ldpbayes._core.archive import whole_file
from ldpbayes._core.checks import guess, is_integer, require
from ldpbayes._core.pytrees import one_line
from ldpbayes.cli import _inputs as inputs
from ldpbayes.cli._inputs import BadInput, naming
from ldpbayes.cli._parser import FAMILY_OPTIONS, LABEL_LAWS, command, parser
from ldpbayes.data.readers.files import FileError
from ldpbayes.data.release import is_npz, promises, write_release
from ldpbayes.estimation import estimates
from ldpbayes.estimation.smoothing import DEFAULTS, SmoothFamily
from ldpbayes.inference.model import model_of
from ldpbayes.inference.result import advice, netcdf, summary_table
from ldpbayes.laws.functionals import cdf, density, gini, mean, quantile
from ldpbayes.laws.parametric import FAMILIES
from ldpbayes.mechanisms.protocol import mechanism_class, summary_of

OK, FAILED, BAD_INPUT, DOUBTFUL = 0, 1, 2, 3
ADVICE_ON_OPTIONS = {  # on options of `fit`, as the command line spells them
    "num_samples": "give more --warmup and --samples",
    "target_accept_prob": "raise --target-accept",
    "max_tree_depth": "raise --max-tree-depth",
    "dense_mass": "or try --dense-mass if parameters are correlated",
}
LEAST_P_VALUE = 0.001  # p-value of calibration, of all parameters together, below which a model is doubted
MOST_NOTES = 8  # of notes on releases that are printed
MOST_NAMED = 40  # categories that are named


def main(argv: Sequence[str] | None = None) -> int:
    """`ldpbayes.cli.main`, after the imports."""
    try:
        args = parser().parse_args(_joined(sys.argv[1:] if argv is None else argv))
        with _plain_warnings() as messages:
            code = args.run(args)
        return (DOUBTFUL if messages else OK) if code is None else code
    except SystemExit as stop:  # argparse has printed its message
        return int(stop.code) if is_integer(stop.code) else BAD_INPUT  # type: ignore[arg-type]
    except (BadInput, FileError) as error:
        return _fail(error, BAD_INPUT)
    except (ImportError, OSError, MemoryError) as error:
        return _fail(error, FAILED)


def _joined(argv: Sequence[str]) -> list[str]:
    """Arguments with ``--interval -1,2`` as ``--interval=-1,2``: argparse would take -1,2 for an option."""
    joined: list[str] = []
    for word in argv:
        follows = joined and re.match(r"-[\d.]+,", word) and re.fullmatch(r"--[\w-]+", joined[-1])
        joined.append(f"{joined.pop()}={word}" if follows else word)
    return joined


def display(*texts: object, **options: Any) -> None:
    """Print texts, in which words of a file cannot move a terminal's cursor or change what it shows."""
    print(*("\n".join(map(one_line, str(text).split("\n"))) for text in texts), **options)


def _fail(message: object, code: int) -> int:
    display(f"ldpbayes: error: {' '.join(str(message).split())}", file=sys.stderr)
    return code


@command(
    "Add noise to two real data sets, analyse them in three ways, print a table and draw a picture of the results.",
    """
    ldpbayes demo
    ldpbayes demo --out results --seed 7
    """,
)
def _demo(args: argparse.Namespace) -> int:
    require("demo", "statsmodels", "matplotlib", "h5netcdf", "h5py")
    from ldpbayes.cli._demo import run

    _use_compilation_cache(args)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadInput(f"--out {args.out} is not a folder") from None
    return _exit_code(run(args.out, **_sampler_options(args)))


@command(
    "Sample the posterior of a model, given files of released values.",
    r"""
    ldpbayes fit visits.npz --model clipped_counts --out visits.nc
    ldpbayes fit visits.npz --model smooth_density --plot visits.png
    ldpbayes fit answers.parquet --model warner
    ldpbayes fit north.npz south.npz --by file --model hierarchical
    ldpbayes fit monday.npz tuesday.npz --add --model warner
    ldpbayes fit telemetry.npz --model oue_histogram
    ldpbayes fit labels.npz --model label_regression --features features.csv
    ldpbayes fit visits.npz --model my_model.py     (a file that defines model(release))
    ldpbayes fit visits.csv --column visits --mechanism laplace --epsilon 1 --lower 0 --upper 20 \
        --model clipped_counts
    ldpbayes fit people.csv --column income --by region --mechanism laplace --epsilon @budget \
        --lower -5 --upper 5 --model hierarchical
    ldpbayes fit people.csv --mechanism laplace --epsilon 1 --lower 0 --upper 100 --missing drop \
        --formula "income ~ age + education"
    """,
)
def _fit(args: argparse.Namespace) -> int:
    if (args.model is None) == (args.formula is None):
        raise BadInput("fit needs either --model or --formula")
    frame: tuple = ()
    files = len(args.release)
    if args.formula is not None:
        if files > 1 or args.by:
            raise BadInput("--formula needs one RELEASE without --by; write groups in the formula, as (1 | column)")
        with naming("--formula"):
            model = ldp.models.regression(args.formula, args.family, missing=args.missing)
            frame, args.model, args.answer = (inputs.load_frame(args),), "", model.formula.answer
    else:
        if (args.features is None) != (args.model != "label_regression"):
            raise BadInput("--model label_regression needs --features, and no other model takes --features")
        model = inputs.load_model(args.model, *(() if args.features is None else (inputs.load_features(args),)))
    if files > 1 and args.add == bool(args.by):
        raise BadInput(f"{files} RELEASEs need --by file (each is a group) or --add (all are parts of one release)")
    several, args.by = bool(args.by), None if files > 1 and args.by == "file" else args.by
    if args.model in inputs.GROUP_PLATES and (args.add or not several):
        raise BadInput(f"--model {args.model} needs several RELEASEs with --by file, or one .csv file with --by COLUMN")
    if several and args.model in ldp.models.__all__ and args.model not in inputs.GROUP_PLATES:
        advice = f"give it one RELEASE, without --by; models of groups are {', '.join(inputs.GROUP_PLATES)}"
        raise BadInput(f"--model {args.model} is not for groups: {advice}")

    def say(text: str) -> None:
        if not args.quiet:
            display(text, flush=True)

    releases = inputs.load_releases(args, sketches=True)
    role = "parts of one release" if args.add else "with groups in each" if args.by else "each a group"
    say(f"{files} files, {role}") if files > 1 else None
    say(few(f"{name}: {data.size:,.0f} records, {data.mechanism!r}" for name, _, data in releases))
    facts = [fact for named in releases for fact in (named.release.about or {}).items()]
    if facts:
        say(few(dict.fromkeys(one_line(f"  {name}: {value}") for name, value in facts)))
    with naming("--add"):
        added = functools.reduce(operator.add, [release for _, _, release in releases]) if args.add else None
    releases = [inputs.Named("--add", "", added)] if added else releases
    mechanism, factory = releases[0].release.mechanism, model_of(model).name or ""
    if args.plot is not None:
        others = several or mechanism.record_shape or mechanism.of_categories
        if others or model_of(model).kind != "numbers":
            raise BadInput("--plot needs one RELEASE of numbers, without --by, and a model of their law")
        with naming("--plot"):
            bounds = SmoothFamily.of(mechanism)[:2]
    with naming("--same-people"):
        statement = promises([release for _, _, release in releases], (), args.same_people, args.different_people)
    say(few(f"  {line}" for line in statement.splitlines()))
    whole = args.no_sketch or args.features or frame
    sketches = [named.release if whole else inputs.as_sketch(named, args.model) for named in releases]
    if any(sketch is None for sketch in sketches):
        say("  no sketch of these: the model gets the records themselves")
    data = [named.release if sketch is None else sketch for named, sketch in zip(releases, sketches, strict=True)]
    words = tuple(release.word for release in releases)
    words = words if len({*words}) == len(words) else tuple(release.name for release in releases)
    groups = ldp.data.Groups(data, {inputs.GROUP_PLATES.get(args.model, "group"): words})
    _use_compilation_cache(args)
    draws = f"{args.chains} chains of {args.warmup} + {args.samples} draws"
    say(f"sampling {draws} (at first, compiling for seconds) ...")
    options = _sampler_options(args) | inputs.place_names(args.model, releases[0], args.levels)
    options |= {"same_people": args.same_people, "different_people": args.different_people}
    options["progress_bar"] = not (args.no_progress or args.quiet)
    with inputs.blaming(args.model):
        result = ldp.fit(model, *frame, groups if several else data[0], **options)
    say(result.attrs.get("left_out", ""))
    shown = [name for name in result["posterior"].data_vars if name not in inputs.INNER_SITES.get(factory, ())]
    with np.errstate(invalid="ignore"):  # a parameter that never changes has no effective sample size
        display(summary_table(result, shown))
        if factory == "smooth_density":
            family = SmoothFamily.of(mechanism)
            positive = args.model == factory and family.lower >= 0 and not family.whole
            kinds = DEFAULTS | ({"gini": gini} if positive else {})
            law = ldp.predict(result, model, kind=kinds)[[*kinds]].squeeze("z_dim_0")
            display(f"\n{summary_table(law, [*kinds])}")
    _write(args.out, lambda file: file.write(netcdf(result)), say)
    if args.plot is not None:
        with _picture(args.plot, 10, 4, 2, say) as axes, naming("--plot"):
            _draw_law(axes, result, model, releases[0].release, *bounds)
    return _exit_code([result])


def _draw_law(axes: Any, result: Any, model: Any, release: ldp.Release, low: float, high: float) -> None:
    """Draw the posterior of a law between bounds: the density beside the released values, and the cdf."""
    x = np.linspace(low, high, 201)
    mass = np.round(x)  # where the law is one of whole numbers
    kinds: Any = {"density": lambda law: density(mass if law.support.is_discrete else x)(law), "cdf": cdf(x)}
    laws = ldp.predict(result, model, kind=kinds)
    if "cdf" not in laws or np.prod(laws["cdf"].shape[2:-1]) != 1:
        raise ValueError("the model must observe one law of numbers")
    for ax, name, top, beside in zip(axes, kinds, (None, 1), (release, None), strict=True):
        shown = beside if isinstance(beside, ldp.Release) else None
        ldp.plots.plot_density(x, {"noise-aware": laws[name]}, release=shown, ax=ax)
        ax.set(xlabel="original value", ylabel=name, ylim=(0, top))


def few(lines: Iterable[str]) -> str:
    """The first lines, and how many others there are."""
    texts = list(lines)
    beyond = len(texts) - MOST_NOTES
    return "\n".join(texts[:MOST_NOTES] + [f"... and {beyond:,} more"] * (beyond > 0))


@command(
    "Estimate the parameters of a family from released statistics, with intervals for sampling and noise together.",
    """
    ldpbayes bootstrap sums.npz --family gaussian --lower 0 --upper 100 --count 5000
    ldpbayes bootstrap visits.npz --family poisson --upper 20 --count 20190 --account-for-clamping
    ldpbayes bootstrap moments.npz --family least_squares --lower 0,0 --upper 20,90 --count 6000
    """,
)
def _bootstrap(args: argparse.Namespace) -> None:
    ((name, _, release),) = inputs.load_releases(args)
    with naming(name):
        options = {"draws": args.draws, "seed": args.seed, "kind": args.kind}
        correction = ldp.bootstrap.Matched() if args.match else None
        estimator = _estimator(args, release.mechanism)
        estimate = ldp.parametric_bootstrap(estimator, release, correction=correction, **options)
        table = estimate.summary(args.level)
    display(f"{table}\n{estimate.privacy}")
    _write(args.out, lambda file: file.write(estimate.replicates.to_netcdf(engine="h5netcdf")))


def _estimator(args: argparse.Namespace, mechanism: Any) -> "ldp.bootstrap.PrivateEstimator":
    from ldpbayes.bootstrap import statistics

    families: dict[str, Any] = dict(sorted(FAMILIES.items())) | {"least_squares": ldp.bootstrap.NormalVector}
    if args.family not in families:
        raise BadInput(f"--family must be one of {', '.join(families)}, got {args.family!r}")
    values: dict[str, Any] = {name: getattr(args, name) for name in FAMILY_OPTIONS if getattr(args, name) is not None}
    least_squares, intercept = args.family == "least_squares", not args.no_intercept
    if least_squares:
        values = {"lower": None, "upper": None} | values  # refused with the reason why both are needed
    family = families[args.family]
    inputs.check_options(f"--family {args.family}", values, inputs.parameters_of(family))
    if least_squares:
        return statistics.LeastSquaresEstimator(family(**values), mechanism, args.count, intercept=intercept)
    return statistics.SufficientStatisticsEstimator(family(**values), mechanism, args.count, args.account_for_clamping)


@command(
    "Estimate the share of each category from released answers, with standard errors and intervals.",
    r"""
    ldpbayes frequencies answers.csv --column answer --levels no,yes --mechanism forced_response --forced 1/6,1/6
    ldpbayes frequencies totals.csv --column answer --counts n --mechanism randomized_response --epsilon 1 --by region
    ldpbayes frequencies sums.csv --sums 5000 --mechanism optimal_unary_encoding --epsilon 1 --levels a,b,c,d,e,f
    ldpbayes frequencies counts.csv --map map.csv --params params.csv
    """,
)
def _frequencies(args: argparse.Namespace) -> None:
    of_bits = args.sums or args.map or args.params
    parts = [inputs.load_bit_counts(args)] if of_bits else inputs.load_releases(args, sketches=True)
    for name, _, release in parts:
        with naming(name):
            estimate: Any = ldp.frequencies(release, args.method)
            text = ""
            if args.fdr is not None:
                estimate = ldp.estimation.sparse_posterior(estimate)
                found = estimate.discoveries(args.fdr)
                names = ", ".join(estimate.names[code] for code in found[:MOST_NAMED])
                beyond = f" and {len(found) - MOST_NAMED:,} more" * (len(found) > MOST_NAMED)
                text = f"\nAbove 0 at a false discovery rate of {args.fdr:g}: {names or 'none'}{beyond}"
        display(f"{name}: {release!r}\n{estimate.summary(args.level)}{text}\n")
    display(promises([part.release for part in parts]))


@command(
    "Fit a linear regression of released labels on public features, by maximum a posteriori.",
    r"""
    ldpbayes regress labels.npz --features features.csv
    ldpbayes regress homes.csv --column price --mechanism laplace --epsilon 1 --lower 0 --upper 1 \
        --features age,rooms
    ldpbayes regress incomes.npz --features features.npy --law log_normal --penalty 1 --out incomes.csv
    """,
)
def _regress(args: argparse.Namespace) -> None:
    ((name, _, release),) = inputs.load_releases(args)
    features, intercept = inputs.load_features(args), not args.no_intercept
    with naming(name):
        objective = ldp.estimation.MarginalLikelihood(getattr(dist, LABEL_LAWS[args.law]))
        options = {"objective": objective, "penalty": args.penalty, "intercept": intercept}
        predictor = ldp.estimation.linear_fit(features, release, **options)
        table = predictor.summary(args.level)
    display(f"{table}\n{predictor.privacy}")
    columns = predictor.names, predictor.params, predictor.standard_error, *predictor.interval(args.level)
    rows = [["parameter", "estimate", "standard_error", "lower", "upper"], *zip(*columns, strict=True)]
    _write_rows(args.out, rows)


@command(
    "Add noise to original records, with secure randomness, and write a release file that may be published.",
    r"""
    ldpbayes release visits.csv --column visits --mechanism laplace --epsilon 1 --lower 0 --upper 20 --out visits.npz
    ldpbayes release people.csv --column smokes --levels no,yes --mechanism randomized_response --epsilon 1 \
        --out smokes.npz
    """,
)
def _release(args: argparse.Namespace) -> None:
    try:
        with whole_file(args.out, new=True) as file:
            mechanism, data = inputs.load_private(args)
            with naming(args.data):
                about: dict[str, Any] = {"column": ",".join(args.column)}
                about |= {"levels": args.levels} if args.levels else {}
                release = ldp.secure.release(mechanism, data, clip=args.clip, times=args.times, about=about)
            write_release(release, file, is_npz(args.out))
    except FileExistsError:
        raise BadInput(f"--out {args.out} exists, and is not overwritten") from None
    display(f"{release.guarantee.statement()}\nDrawn by {release.sampler}.")
    facts = "the mechanism, who drew them, and the names of the column and its levels"
    display(f"wrote {args.out}: {len(release):,} released values, {facts}, and nothing else")


@command(
    "Estimate the cells of a noisy table before the noise, and ratios of cells, with intervals.",
    r"""
    ldpbayes table counts.csv --value n --keys state,county --noise discrete_gaussian \
        --standard-deviation-column sd --ratio n/population
    ldpbayes table answers.parquet --format census --query total --geocodes 0500000US01 --privacy "zCDP as stated"
    ldpbayes table released.csv --format opendp --summary summary.csv --value len --signed true
    ldpbayes table visits.parquet --value visits,users --keys page --noise gaussian --variance 100,400 \
        --ratio visits/users
    """,
)
def _table(args: argparse.Namespace) -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # of cells and ratios of which nothing is known
    tables, values = inputs.load_tables(args)
    reported = {name: ~np.isnan(values[name]) | (args.threshold is not None) for name in tables}
    with naming(args.table):
        parts = {name: table[reported[name]] for name, table in tables.items()}
        discrete = next(iter(tables.values())).mechanism.noise.discrete
        prior = args.between and (dist.DiscreteUniform if discrete else dist.Uniform)(*args.between)
        options: Any = {"prior": prior, "num_samples": args.samples, "seed": args.seed}
        posterior = ldp.tables.true_table(parts, **options)["posterior"]
    draws = {name: np.tile(array, (args.samples if name in tables else 1, 1)) for name, array in values.items()}
    for name in tables:
        draws[name][:, reported[name]] = posterior[name].values[0]
    for over, by in args.ratio:
        for part in (values, draws):  # without a positive denominator there is no ratio
            part[f"{over}/{by}"] = part[over] / np.where(part[by] > 0, part[by], np.nan)
    table, rows = next(iter(tables.values())), list[tuple]()
    display("\n".join([*(f"{name}: {part!r}" for name, part in tables.items()), promises([*tables.values()])]))
    display(f"Uncertainty of the table before noise, not of the population: intervals of {100 * args.level:g} %.\n")
    for name in [*tables, *map("/".join, args.ratio)]:
        levels = estimates.tail_probabilities(args.level, "both")
        low, high = np.nanquantile(draws[name], levels, axis=0, method="inverted_cdf")  # whole where draws are
        columns = {"value": values[name], "mean": np.nanmean(draws[name], axis=0)}
        columns |= {"sd": np.nanstd(draws[name], axis=0), "lower": low, "upper": high}
        display(estimates.table(name, [*map(str, table.labels)], estimates.cells(columns, ",.6g")))
        rows += zip(*table.keys.values(), itertools.repeat(name), *columns.values())
    rows.insert(0, (*table.keys, "quantity", *columns))
    _write_rows(args.out, rows)


@command(
    "Summarise release files of any size in one small sketch file for fit; it names its source files.",
    r"""
    ldpbayes sketch 'day-*.parquet' --column visits --mechanism laplace --epsilon 1 --lower 0 --upper 20 \
        --out total.npz
    ldpbayes sketch total.npz tuesday.npz --out both.npz
    """,
)
def _sketch(args: argparse.Namespace) -> None:
    args.column = [name for text in args.column or () for name in text.split(",")]
    with naming("sketch"):
        column: Any = args.column if len(args.column) > 1 else "".join(args.column) or None
        options = {"column": column, "levels": args.levels, "progress_bar": not args.no_progress}
        options["different_people"] = args.different_people
        stated = None if args.mechanism is None else inputs.stated_mechanism(args, args.column or ["value"])
        total = ldp.data.sketch_from(args.files, stated, **options)
    total.save(args.out)
    display(few(one_line(f"{source.name}: {source.records:,} records") for source in total.sources))
    display(f"{promises([total])}\nwrote {args.out}: {total!r}")


@command(
    "Plan a survey: compute widths of intervals, and the share of information that remains under a mechanism.",
    r"""
    ldpbayes design --law LogNormal --at loc=6.8,scale=0.4 --mechanism laplace,square_wave --epsilon 0.5,1,2 \
        --lower 0 --upper 3000 --people 2000
    ldpbayes design --law Bernoulli --at probs=0.3 --mechanism randomized_response --categories 2 --epsilon 1 \
        --width 0.05
    """,
)
def _design(args: argparse.Namespace) -> None:
    laws = [name for name in dir(dist) if name[0].isupper()]
    if args.law not in laws:
        meant = f"{args.law!r}{guess(args.law, laws)}"
        raise BadInput(f"--law must be a NumPyro distribution, such as Normal; got {meant}")
    law: Any = getattr(dist, args.law)
    mechanisms = inputs.planned_mechanisms(args)
    try:
        counts = law(**args.at, validate_args=True).support.is_discrete
    except Exception as error:  # NumPyro asserts, and takes any number for a law
        raise BadInput(f"--law {args.law} cannot be the law of a number, with --at as given: {error}") from None
    with naming(f"--law {args.law}", {"design_effect": args.design_effect}):
        kinds: dict[str, Any] = {} if counts else {"mean": mean, "median": quantile(0.5)}
        plan = ldp.studies.design(law, args.at, mechanisms, functionals=kinds, design_effect=args.design_effect)
    display(plan.summary(args.people, args.level))
    if args.width is not None:
        with naming("--width"):
            needed = plan.counts(args.width, args.level)
        columns = {name: [f"{row[j]:,}" for row in needed.values()] for j, name in enumerate(plan.names)}
        title = f"People for {100 * args.level:g} % intervals {args.width:g} wide"
        display(f"\n{estimates.table(title, list(needed), columns)}")
    if args.plot is not None:
        with _picture(args.plot, 6, 4) as (ax,), naming("--plot"):
            people = args.people, 10 * args.people
            ldp.plots.plot_design(plan, args.of or plan.names[0], people, level=args.level, ax=ax)


@command(
    "Check a model by simulation: how often posteriors of simulated releases cover the true parameters.",
    r"""
    ldpbayes calibrate clipped_gaussian --epsilon 0.5 1 2 --repeats 500
    ldpbayes calibrate my_model.py --mechanism laplace --epsilon 1 --lower 0 --upper 20 --people 2000 \
        --plot calibration.png
    """,
)
def _calibrate(args: argparse.Namespace) -> int:
    if args.checkpoints is not None and not args.checkpoints.is_dir():
        raise BadInput(f"--checkpoints: there is no folder {args.checkpoints}")
    model = inputs.load_model(args.model)
    if model_of(model).groups:
        raise BadInput(f"{args.model} takes several releases; use ldpbayes.studies.sbc")
    options = {"replicates": args.repeats, "seed": args.seed, "progress_bar": not args.no_progress}
    options |= {"num_warmup": args.warmup, "num_samples": args.samples}
    _use_compilation_cache(args)
    studies = {}
    for label, mechanism in inputs.planned_mechanisms(args, args.model).items():
        plan = ldp.Release(None, mechanism, args.people)
        path = args.checkpoints and args.checkpoints / f"{pathlib.Path(args.model).stem} {label}.npz"
        with inputs.blaming(args.model):
            studies[label] = ldp.studies.sbc(model, plan, checkpoint=path, **options)
        display(f"{mechanism!r}, {args.people:,} records\n{studies[label].summary()}\n", flush=True)
    if args.plot is not None:
        with _picture(args.plot, 5 * len(studies), 4, len(studies)) as axes:
            for (label, study), ax in zip(studies.items(), axes, strict=True):
                ldp.plots.plot_calibration(study, ax=ax).set_title(label)
    p_values = [p for study in studies.values() for p in study.p_values.values()]
    return DOUBTFUL if min(p_values) < LEAST_P_VALUE / len(p_values) else OK


@command(
    "List all registered mechanisms, with those of other installed packages.",
    """
    ldpbayes mechanisms
    ldpbayes mechanisms --json
    """,
)
def _mechanisms(args: argparse.Namespace) -> None:
    rows, texts = [], []
    for name in ldp.mechanisms.mechanism_names():
        cls = mechanism_class(name)
        parameters: list[dict[str, Any]] = [
            {"name": p.name, "required": p.default is p.empty, "default": None if p.default is p.empty else p.default}
            for p in inspect.signature(cls).parameters.values()
        ]
        row = {"name": name, "class": f"{cls.__module__}.{cls.__qualname__}", "parameters": parameters}
        rows.append(row | {"description": summary_of(name)})
        signature = [p["name"] + ("" if p["required"] else f"={p['default']!r}") for p in parameters]
        texts.append(f"{name}({', '.join(signature)})\n    {rows[-1]['description']}")
    display(json.dumps(rows, indent=2, default=repr) if args.json else "\n".join(texts))


@command(
    "List the models that fit knows by name, with their default priors, their purpose and their parameters.",
    """
    ldpbayes models
    ldpbayes models --json
    """,
)
def _models(args: argparse.Namespace) -> None:
    rows = []
    for name in ldp.models.__all__:
        factory = getattr(ldp.models, name)
        needed = [parameter for parameter, required in inputs.parameters_of(factory).items() if required]
        # a formula, or features of one column, where they are needed
        model = factory(*("y ~ x" if parameter == "formula" else np.zeros((1, 1)) for parameter in needed))
        priors = ", ".join(f"{name}={text}" for name, text in model.shown.items() if name not in needed)
        takes = f"Takes {'one release for each group, of' if model.groups else 'a release of'} {model.kind}."
        rows.append({"name": name, "priors": priors, "description": model.summary, "takes": takes})
    texts = [f"{row['name']}({row['priors']})\n    {row['description']}\n    {row['takes']}" for row in rows]
    display(json.dumps(rows, indent=2) if args.json else "\n".join(texts))


def _write(path: pathlib.Path | None, write: Callable[[BinaryIO], object], say: Callable = display) -> None:
    """Write an output file, if it is wanted, and say so."""
    if path is not None:
        with whole_file(path) as file:
            write(file)
        say(f"\nwrote {path}")


@contextlib.contextmanager
def _picture(
    path: pathlib.Path, width: float, height: float, columns: int = 1, say: Callable = display
) -> Iterator[np.ndarray]:
    """Axes, side by side, of a picture that is written when they have been drawn on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure.subplots(1, columns, squeeze=False)[0]
    _write(path, lambda file: figure.savefig(file, format="png", dpi=150), say)


def _write_rows(path: pathlib.Path | None, rows: list) -> None:
    _write(path, lambda file: csv.writer(utf_8.StreamWriter(file)).writerows(rows))


def _sampler_options(args: argparse.Namespace) -> dict[str, Any]:
    options = {"seed": args.seed, "num_chains": args.chains, "num_warmup": args.warmup, "num_samples": args.samples}
    sampler = {"target_accept_prob": args.target_accept, "max_tree_depth": args.max_tree_depth}
    sampler |= {"dense_mass": args.dense_mass or None}  # any of these makes `fit` run chains
    return options | {name: option for name, option in sampler.items() if option is not None}


@contextlib.contextmanager
def _plain_warnings() -> Iterator[set[str]]:
    """Print each of the package's warnings once, as a line on stderr, and collect them; leave other warnings alone."""
    messages: set[str] = set()
    with warnings.catch_warnings(action="always", category=ldp.LdpBayesWarning):
        show = warnings.showwarning

        def plain(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
            text = str(message)
            if isinstance(message, ldp.inference.ConvergenceWarning):
                text = message.problem + advice(message.options, ADVICE_ON_OPTIONS)
            if not issubclass(category, ldp.LdpBayesWarning):
                show(message, category, *args, **kwargs)
            elif text not in messages:
                display(f"ldpbayes: warning: {text}", file=sys.stderr)
                messages.add(text)

        warnings.showwarning = plain  # `catch_warnings` puts the old one back
        yield messages


def _exit_code(results: Iterable[Any]) -> int:
    kinds = ("convergence_warnings", "release_warnings")
    return DOUBTFUL if any(json.loads(r.attrs[kind]) for r in results for kind in kinds) else OK


def _use_compilation_cache(args: argparse.Namespace) -> None:
    if not (getattr(args, "no_cache", False) or os.environ.get("LDPBAYES_NO_CACHE")):
        ldp.keep_compiled_code()
