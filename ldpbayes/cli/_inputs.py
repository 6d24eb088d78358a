"""What a command is given: releases in files of their own or CSV files, features of labels, and models."""

import argparse
import contextlib
import importlib.util
import inspect
import io
import itertools
import json
import math
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

import ldpbayes as ldp
from ldpbayes import Release, Sketch
from ldpbayes._core.checks import ArgumentError, guess, require
from ldpbayes._core.tabular import Table as Features
from ldpbayes._core.tabular import column, columns_of
from ldpbayes.data.readers import format_of
from ldpbayes.data.readers.files import CSV_ENDINGS, CsvFile, FileError
from ldpbayes.data.release import grouped
from ldpbayes.data.sketches import MOST_BUDGETS, budgets_of
from ldpbayes.data.streams import holds_sketch
from ldpbayes.mechanisms import Mechanism, StatisticsMechanism, mechanism_from_spec, mechanism_names
from ldpbayes.mechanisms.protocol import mechanism_class
from ldpbayes.noise import Gaussian, IndependentGaussian

RELEASE_ENDINGS = (".npz", ".parquet")
PARAMETER_PREFIX = "mechanism's "  # begins the names under which arguments have parameters of mechanisms
FORMAT_PREFIX = "format's "  # begins the names under which arguments have options of formats of tables
SPREADS = ldp.NoisyTable.NOISE_SIZES
_OF_NOISE = "noise", "margin_level", "sensitivity", "neighbours", "times", "privacy"
FRAME_OPTIONS = (*_OF_NOISE, "unit", "floor", "cap", "threshold", "unpublished")  # of tables
COLUMN_PREFIX = "@"  # stands before the name of a column with a parameter's values, one a record
MOMENT_MODELS = {"linear_regression", "multivariate_normal"}  # models of normal rows, for which moments are sufficient
THETA_AXES = {"regional_histograms": ["region", "category"], "oue_histogram": ["category"]}
GROUP_PLATES = {"experiment": "arm", "hierarchical": "group", "regional_histograms": "region"}  # names of their plates
# sites that the summary leaves out: coordinates of the sampler, and a density, of which it shows functionals
INNER_SITES = {"regional_histograms": {"logits"}, "smooth_density": {"coefficients", "log_density", "odds"}}

# Mechanisms with which [KJKH] studies calibration: Figures 1, 11 and 10.
CALIBRATED_MECHANISMS: dict[str, dict[str, Any]] = {
    "clipped_gaussian": {"mechanism": "laplace", "lower": -5, "upper": 5},
    "clipped_exponential": {"mechanism": "laplace", "lower": 0, "upper": 5},
    "oue_histogram": {"mechanism": "optimal_unary_encoding", "categories": 6},
    "warner": {"mechanism": "randomized_response"},
}


class BadInput(Exception):
    """The user gave something that cannot be used; the message says what and why, and the exit code is 2."""


def option(name: str) -> str:
    """Name of an argument on the command line."""
    return f"--{name.replace('_', '-')}"


@contextlib.contextmanager
def naming(source: object, options: Container[str] = ()) -> Iterator[None]:
    """Errors of values and files become `BadInput` with their source; arguments among `options` as they are typed."""
    try:
        yield
    except FileError as error:
        raise BadInput(f"{error}") from None
    except ArgumentError as error:
        raise BadInput(error.at(f"{source}", option(error.name) if error.name in options else None)) from None
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{source}: {error}") from None


def parameter(text: str) -> Any:
    """A parameter: JSON with fractions and percentages, as ``[[1,0],[0,1]]``, ``1/6,1/6`` or ``75%``; or names."""
    with contextlib.suppress(ZeroDivisionError, ValueError):
        if re.fullmatch(r"[-\d./%,\[\]\s]+", text):
            ratios = re.sub(r"([\d.]+)%", r"\1/100", text)
            text = re.sub(r"([\d.]+)/([\d.]+)", lambda ratio: repr(float(ratio[1]) / float(ratio[2])), ratios)
    for written in (text, f"[{text}]"):
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            return json.loads(written)
    parts: list[Any] = [part.strip() for part in text.split(",")]
    with contextlib.suppress(ValueError):
        parts = [float(part) for part in parts]  # such as .5 and inf, which are no JSON
    return parts if len(parts) > 1 else parts[0]


def parameters_of(maker: Callable | Iterable[inspect.Parameter]) -> dict[str, bool]:
    """Names of the parameters of a class or function, or of some, and whether each must be given."""
    parameters = inspect.signature(maker).parameters.values() if callable(maker) else maker
    return {p.name: p.default is p.empty for p in parameters}


def check_options(subject: str, values: Mapping[str, Any], parameters: Mapping[str, bool]) -> None:
    """BadInput for values that the subject has no parameter for, and for parameters that lack a value."""
    beyond = [option(name) for name in values if name not in parameters]
    lacking = [option(name) for name, needed in parameters.items() if needed and name not in values]
    for problem, names in (("has no", beyond), ("needs", lacking)):
        if names:
            possible = ", ".join(map(option, parameters)) or "none"
            raise BadInput(f"{subject} {problem} {', '.join(names)}; its options are {possible}")


class Named(NamedTuple):
    """A release, or a sketch, its name in messages, and its word among others: that of its group, or its file."""

    name: str
    word: str
    release: Any


def load_releases(args: argparse.Namespace, sketches: bool = False) -> list[Named]:
    """What the arguments name; BadInput for files of sketches where these do not serve."""
    parameters = _typed(args)
    describing = ["mechanism", "column", "levels", "by", "times", "persons", "counts"]
    describing += [] if getattr(args, "features", None) else ["missing"]  # else also of them
    options = [option(name) for name in (*(name for name in describing if getattr(args, name)), *parameters)]
    if options and not any(path.suffix in CSV_ENDINGS for path in args.release):
        _load_file(args.release[0])  # a plain table is no release file, and is refused first
        raise BadInput(f"{', '.join(options)}: only for .csv files; {args.release[0]} states its own mechanism")
    releases: list[Named] = []
    for path in args.release:
        if path.suffix in CSV_ENDINGS:
            releases += _load_csv(path, args, parameters)
        else:
            releases.append(Named(str(path), path.stem, _load_file(path)))
            if not sketches and isinstance(releases[-1].release, Sketch):
                raise BadInput(f"{path} is a sketch, but this command needs the release itself")
    return releases


def load_bit_counts(args: argparse.Namespace) -> Named:
    """Sums of bits: in RAPPOR's files, or in a column with a row for each category."""
    (path,), in_files = args.release, bool(args.map or args.params)
    names = ["by", "times", "persons", "counts", "missing"] + in_files * ["mechanism", "column", "levels", "sums"]
    given = [name for name in names if getattr(args, name)] + in_files * [*_typed(args)]
    if given:
        raise BadInput(f"{', '.join(map(option, given))}: not for sums of bits{' in files of RAPPOR' * in_files}")
    if in_files:
        if not (args.map and args.params):
            raise BadInput("--map and --params are given together, for counts of bits in RAPPOR's layout")
        with naming(path):
            return Named(str(path), path.stem, ldp.data.read_rappor(path, args.map, args.params))
    table = CsvFile(path, **_typed(args, FORMAT_PREFIX))
    names = table.columns(args.column) if args.column else table.names
    if len(names) != 1 or not args.mechanism:
        raise BadInput(f"--sums needs --mechanism, and a --column of sums; {path} has the columns {', '.join(names)}")
    table.read(names)
    sums, mechanism = table.numbers(names[0]), stated_mechanism(args, names)
    for line in np.array(table.lines)[sums > args.sums]:
        raise FileError(f"{path}, line {line}: column {names[0]!r} has a sum above the {args.sums} reports of --sums")
    with naming(path):
        about = {"levels": [*args.levels]} if args.levels else None
        return Named(str(path), path.stem, ldp.data.BitCounts(mechanism, sums, args.sums, about=about))


def _load_file(path: pathlib.Path) -> Release | Sketch:
    if path.suffix not in RELEASE_ENDINGS:
        raise BadInput(f"a RELEASE is an .npz or .parquet file, or a .csv file with --mechanism; got {path}")
    try:
        return Sketch.load(path) if holds_sketch(path) else Release.load(path)
    except (ValueError, OSError) as error:
        hint = "" if isinstance(error, OSError) else "; give a plain table as a .csv file, with --mechanism"
        raise BadInput(f"{error}{hint}") from None


def _load_csv(path: pathlib.Path, args: argparse.Namespace, parameters: Mapping[str, Any]) -> list[Named]:
    """The release in a CSV file, or those of the groups in it."""
    table = CsvFile(path, **_typed(args, FORMAT_PREFIX))
    if args.mechanism is None:
        example = "--mechanism laplace --epsilon 1 --lower 0 --upper 20; 'ldpbayes mechanisms' lists them"
        raise BadInput(f"{path}: name the mechanism that released it and its parameters, such as {example}")
    personal = {
        name: table.columns([value.removeprefix(COLUMN_PREFIX)])[0]
        for name, value in parameters.items()
        if isinstance(value, str) and value.startswith(COLUMN_PREFIX)
    }
    beside = args.by, args.persons, args.counts
    by, persons, counts = (table.columns([name] if name else []) for name in beside)
    others = [name for name in table.names if name not in {*personal.values(), *by, *persons, *counts}]
    others = [args.answer] if getattr(args, "answer", None) in others else others  # of a formula
    columns = table.columns(args.column) if args.column else others
    for name in columns:
        if name in args.levels:  # the first record would be lost
            raise BadInput(f"{path}: the first line must be the names of the columns, but it holds the level {name!r}")
    spec = _mechanism_spec(args, parameters, columns)
    table.read([*columns, *personal.values(), *by, *persons, *counts])
    arrays = {name: table.numbers(column) for name, column in personal.items()}
    groups = table.groups(by[0]) if by else {}
    people = table.words(persons[0]) if persons and table.groups(persons[0]) else None  # no cell may be empty
    single = sum(len(records) == 1 for records in groups.values())
    # Most groups have one record, and are no statistics: the column numbers the records.
    if 1 < len(groups) < 2 * single and not counts and not {"sensitivity", "count"} & parameters.keys():
        found = f"{len(groups):,} groups of {len(table.lines):,} records, most with a single record"
        raise BadInput(f"--by must name a column of groups, but {args.by} makes {found}")
    shared = {name: float(array[0]) for name, array in arrays.items() if (array == array[0]).all()}
    with naming(path, parameters):
        try:
            mechanism: Any = mechanism_from_spec(spec | arrays | shared)
        except ArgumentError as error:
            if error.name not in personal:
                raise
            line = table.lines[error.entry[0] if error.entry else 0]
            raise error.at(f"line {line}, column {personal[error.name]!r}", f"parameter {error.name}", ()) from None
    if len(columns) != math.prod(mechanism.event_shape):
        count = f"{math.prod(mechanism.event_shape)} numbers" if mechanism.event_shape else "one number"
        need = f"--column names {len(columns)} columns" if args.column else "--column is needed"
        columns_of_file = f"{path} has the columns {', '.join(table.names)}"
        raise BadInput(f"{need}: --mechanism {args.mechanism} releases {count} for each record; {columns_of_file}")
    words = "; name the words for categories with --levels, as in --levels no,yes"
    hint = words if mechanism.of_categories else ""
    values = np.stack([table.numbers(name, args.levels, hint, bool(args.missing)) for name in columns], axis=-1)
    values = values if mechanism.event_shape else values[:, 0]
    totals: Any = table.numbers(counts[0]) if counts else None
    about: dict[str, Any] = {"cells": dict(table.counts)} if table.counts else {}
    if args.levels:
        codes = mechanism.possible_values(len(args.levels))
        if mechanism.event_shape == () and (codes is None or len(codes) < len(args.levels)):
            raise BadInput(f"--levels has {len(args.levels)} words, which are not one for each code of {mechanism!r}")
        about["levels"] = [*args.levels]
    with naming(path, {"missing"}):
        options: Any = {"times": args.times, "persons": people, "missing": args.missing, "about": about}
        release = Release(values, mechanism, totals, **options)
    if not by:
        return [Named(str(path), path.stem, release)]
    codes = {word: code for code, word in enumerate(groups)}
    places = np.array([codes[word] for word in table.words(by[0])])
    places = places if release.rows is None else places[release.rows]
    present = {*places.tolist()}
    if empty := [word for word in groups if codes[word] not in present]:
        raise BadInput(f"{path}: no row has an answer where {by[0]} is {empty[0]}")
    parts = grouped(release, places)
    return [Named(f"{path}, {by[0]} {word}", word, part) for word, part in zip(groups, parts, strict=True)]


def _typed(args: argparse.Namespace, prefix: str = PARAMETER_PREFIX) -> dict[str, Any]:
    """Parameters of mechanisms, or of what has another prefix, among the arguments."""
    return {name.removeprefix(prefix): value for name, value in vars(args).items() if name.startswith(prefix)}


def load_private(args: argparse.Namespace) -> tuple[Mechanism, np.ndarray]:
    """The mechanism that is named, and original records in a CSV file, which no message quotes."""
    table = CsvFile(args.data, private=True)
    columns = table.columns(args.column)
    mechanism = stated_mechanism(args, columns)
    table.read(columns)
    values = np.stack([table.numbers(name, args.levels) for name in columns], axis=-1)
    return mechanism, values if mechanism.record_shape or len(columns) > 1 else values[:, 0]


def stated_mechanism(args: argparse.Namespace, columns: list[str]) -> Mechanism:
    """The mechanism that is named."""
    with naming(f"--mechanism {args.mechanism}", _typed(args)):
        return mechanism_from_spec(_mechanism_spec(args, _typed(args), columns))


def planned_mechanisms(args: argparse.Namespace, model: str = "") -> dict[str, Mechanism]:
    """Every mechanism with every epsilon, by both names, each with the options it has; or a model's by default."""
    typed = {name: value for name, value in _typed(args).items() if value is not None}
    mechanisms = dict[str, Mechanism]()
    if not args.mechanism:
        if model not in CALIBRATED_MECHANISMS:
            only = ", ".join(CALIBRATED_MECHANISMS)
            raise BadInput(f"--mechanism is needed: {model} has no default mechanism (only {only})")
        typed = CALIBRATED_MECHANISMS[model] | typed
    named = args.mechanism or [typed.pop("mechanism")]
    budgets, unused = typed.pop("epsilon", None), {*typed}
    for name in named:
        fields = parameters_of(_mechanism_class(name))
        unused -= fields.keys()
        common_options = {key: value for key, value in typed.items() if key in fields}
        several = "epsilon" in fields and budgets is not None
        for epsilon in np.ravel(budgets).tolist() if several else [None]:
            values = common_options | ({"epsilon": epsilon} if several else {})
            check_options(f"--mechanism {name}", values, fields)
            with naming(f"--mechanism {name}", values):
                mechanism = mechanism_from_spec({"mechanism": name} | values)
            mechanisms[f"{name} {epsilon:g}" if several else name] = mechanism
    if unused:
        raise BadInput(f"none of the mechanisms has an option {', '.join(map(option, sorted(unused)))}")
    return mechanisms


def _mechanism_class(name: str) -> Any:
    try:
        return mechanism_class(name)
    except ValueError:
        names = mechanism_names()
        meant = f"{name!r}{guess(name, names)}"
        raise BadInput(f"no mechanism {meant}; --mechanism must be one of {', '.join(names)}") from None


def _mechanism_spec(args: argparse.Namespace, typed: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    """The mechanism that is named, as a spec; BadInput if it is unknown, has no such option, or needs another."""
    cls: Any = _mechanism_class(args.mechanism)
    values, fields = dict(typed), parameters_of(cls)
    if "mechanism" in fields:
        raise BadInput(f"{args.mechanism} is a rule around another mechanism: make a release file with Release.save")
    if "columns" in fields and not issubclass(cls, StatisticsMechanism):  # a released row has the columns of a record
        fields["column"] = fields.pop("columns")
        values |= {"column": args.column} if args.column else {}
    values |= {"levels": args.levels} if args.levels else {}
    if cls.of_categories:
        fields["levels"] = False
    if "categories" in fields:
        values = ({"categories": len(args.levels)} if args.levels else {}) | values
    check_options(f"--mechanism {args.mechanism}", values, fields)
    unbounded = [name for name in ("lower", "upper") if name in fields and name not in values]
    if unbounded and "sensitivity" in fields and "sensitivity" not in values:
        bounds = f"{' and '.join(map(option, unbounded))} (bounds to which records were clipped), or "
        family = hasattr(args, "account_for_clamping")  # the bounds are parameters of the family
        raise BadInput(f"{args.mechanism} needs {'' if family else bounds}--sensitivity for a statistic")
    values.pop("levels", None)
    if values.pop("column", None) and (fields["column"] or len(columns) > 1):
        values["columns"] = columns
    return {"mechanism": args.mechanism} | values


def load_tables(args: argparse.Namespace) -> tuple[dict[str, ldp.NoisyTable], dict[str, np.ndarray]]:
    """Noisy tables of a file by the column of their values; and the numbers of which there are ratios, too."""
    values, spreads = args.value or [""], {name: getattr(args, name) for name in SPREADS}
    for name, spread in spreads.items():
        spreads[name] = spread if isinstance(spread, list) else [spread] * len(values)
        if len(spreads[name]) != len(values):
            allowed = f"one, or one for each column of --value {','.join(values)}"
            raise BadInput(f"{option(name)} must be {allowed}, got {spread}")
    public = {name for ratio in args.ratio for name in ratio}
    columns_in_use = [*itertools.chain(*spreads.values()), *sorted(public)]
    of_format = _typed(args, FORMAT_PREFIX)
    options = {name: getattr(args, name) for name in FRAME_OPTIONS if getattr(args, name) is not None}
    tables, columns = dict[str, ldp.NoisyTable](), dict[str, np.ndarray]()
    with naming(args.table, {*FRAME_OPTIONS, *SPREADS, "format", "date", *of_format}):
        name, chosen = format_of(args.table, args.format)
        check_options(f"the format {name}", of_format, parameters_of(chosen.options.values()))
        for value, *sizes in zip(values, *spreads.values(), strict=True):
            names = [name for name in (value, *columns_in_use) if isinstance(name, str) and name]
            contents, stated = chosen.read(args.table, args.keys, [*dict.fromkeys(names)], **of_format)
            columns |= columns_of(contents)
            typed = {"value": value, "keys": args.keys, **dict(zip(SPREADS, sizes, strict=True)), **options}
            frame_options = {**stated, **{name: text for name, text in typed.items() if text not in (None, "", [])}}
            if lacking := [option(name) for name in ("value", "keys") if name not in frame_options]:
                raise ValueError(f"{' and '.join(lacking)}: needed for a file of this format")
            tables[frame_options["value"]] = ldp.NoisyTable.from_frame(columns, **frame_options)
        return tables, {
            name: np.asarray(column(columns, name), float) for name in [*tables, *sorted(public - tables.keys())]
        }


def load_features(args: argparse.Namespace) -> Features:
    """Features (n, d) in a ``.csv`` file, with or without names, an ``.npy`` file, or columns of the release's file."""
    path = args.features
    if path.suffix == ".npy":
        with naming(f"--features: {path} is not a matrix of numbers"):
            matrix = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False), float)
        if matrix.ndim != 2 or not matrix.size:
            raise BadInput(f"--features: {path} holds an array of shape {matrix.shape}, not one row for each label")
        return Features({f"x[{j}]": column for j, column in enumerate(matrix.T)})
    if path.suffix in CSV_ENDINGS:
        table = CsvFile(path, headless=True, **_typed(args, FORMAT_PREFIX))
        names = table.columns(table.names)
    elif len(args.release) == 1 and args.release[0].suffix in CSV_ENDINGS:
        table = CsvFile(args.release[0], **_typed(args, FORMAT_PREFIX))
        names = table.columns([str(path)])
    else:
        raise BadInput(f"--features must be a .csv or .npy file, or columns of a .csv file of labels; got {path}")
    if not all(names):
        advice = "name it, or leave it out if it is the index of a data frame (to_csv(index=False))"
        raise BadInput(f"--features: column {names.index('') + 1} of {path} has no name: {advice}")
    table.read(names)
    return Features({name: table.numbers(name) for name in names})


def load_frame(args: argparse.Namespace) -> Any:
    """The data frame of a formula: of --features, or of the .csv file of the release."""
    path = args.features or args.release[0]
    if path.suffix not in CSV_ENDINGS:
        raise BadInput(f"--formula takes its columns from a .csv RELEASE, or from --features FILE.csv; got {path}")
    require("formula", "formulaic", "pandas")
    import pandas as pd

    table = CsvFile(path, **_typed(args, FORMAT_PREFIX))
    table.read(table.columns(table.names))  # of which pandas would rename those of one name
    frame = pd.read_csv(io.StringIO(table.text), sep=table.delimiter, skipinitialspace=True)
    written = [name for name in frame if not table.notation.plain and table.holds_numbers(name)]
    return frame.assign(**{name: table.numbers(name, gaps=True) for name in written})


def load_model(name: str, *arguments: Any) -> Callable:
    """The model of a ``.py`` file, or of a factory, with its required `arguments` and default priors."""
    if name in ldp.models.__all__:
        with naming(f"--model {name}"):
            return getattr(ldp.models, name)(*arguments)
    path = pathlib.Path(name)
    if path.suffix != ".py":
        models = f"{', '.join(ldp.models.__all__)}, or a Python file (.py)"
        raise BadInput(f"no model {name!r}{guess(name, ldp.models.__all__)}; --model must be one of {models}")
    if not path.is_file():
        raise BadInput(f"--model: no file {path}")
    spec = importlib.util.spec_from_file_location("ldpbayes_user_model", path)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pickle look for what the file defines
    with blaming(name):
        spec.loader.exec_module(module)
    model = getattr(module, "model", None)
    if not callable(model):
        raise BadInput(f"--model: {path} defines no function model(release)")
    return model


@contextlib.contextmanager
def blaming(model: str) -> Iterator[None]:
    """Run a model, or its file: it can import from its folder, and its errors become `BadInput` with their line."""
    path = pathlib.Path(model).absolute()
    folder = [str(path.parent)] if path.suffix == ".py" else []
    sys.path[:0] = folder  # as ``python model.py`` does
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if not folder:  # a model of the package
            if isinstance(error, (ValueError, TypeError)):
                raise BadInput(f"--model {model}: {error}" if model else f"{error}") from None
            raise
        trace = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in trace if os.path.abspath(frame.filename) == str(path)]
        where = f"{model}:{lines[-1]}" if lines else model
        if isinstance(error, SyntaxError):
            where = f"{os.path.relpath(error.filename or model)}:{error.lineno}"
        raise BadInput(f"{where}: {type(error).__name__}: {error}") from None
    finally:
        for added in folder:
            sys.path.remove(added)


def as_sketch(named: Named, model: str) -> Release | Sketch | None:
    """The release as a sketch, or as it is if models sum its values; None if it has no sketch that the model takes."""
    release, mechanism = named.release, cast(Any, named.release.mechanism)
    if isinstance(mechanism, StatisticsMechanism) or isinstance(release, Sketch):
        return release
    if mechanism.record_shape:
        normal = mechanism.batch_shape == () and not {Gaussian, IndependentGaussian}.isdisjoint(mechanism.form_classes)
        has_sketch = model in MOMENT_MODELS and normal
    else:
        few = len(budgets_of(mechanism, release.count)[1]) <= MOST_BUDGETS
        has_sketch = mechanism.support.is_discrete or (few and mechanism.released_range is not None)
    with naming(named.name):
        return release.sketch() if has_sketch else None


def place_names(model: str, first: Named, levels: Sequence[str]) -> dict[str, Any]:
    """Options ``dims`` and ``coords`` of `ldpbayes.fit`: the first categories are called as the `levels`."""
    mechanism = first.release.mechanism
    count = mechanism.categories if mechanism.of_categories else 0
    if getattr(mechanism.support, "upper_bound", None) != count - 1:  # released codes, which have words, are others
        levels = ()
    stated = (first.release.about or {}).get("levels", ())
    levels = levels or (stated if len(stated) <= count else ())
    names = [*levels, *map(str, range(len(levels), count))][:count]
    axes = THETA_AXES.get(model, ()) if levels else ()
    return {"dims": {"theta": axes}, "coords": {"category": names}} if axes else {}
