"""CSV files on the command line: the releases that they are, and what is said of those that are none."""

import argparse
import csv
import json
import os
import pathlib
import re

import arviz as az
import numpy as np
import pandas as pd
import pytest

import ldpbayes as ldp
from ldpbayes.cli import _main as cli
from ldpbayes.cli._inputs import BadInput, Named, load_features, load_releases, parameter, place_names
from ldpbayes.cli._main import few
from ldpbayes.data.readers.files import CsvFile, FileError
from ldpbayes.data.release import promises
from tests.cli import made_up

FITTED = az.from_dict(posterior={"mu": np.random.default_rng(0).normal(size=(4, 100))})
FITTED.attrs.update(convergence_warnings="[]", release_warnings="[]")
ROWS = ("a", "b", "y")
MECHANISMS = [
    (ldp.mechanisms.AdditiveMechanism(ldp.noise.Laplace(3.0), -5, 5), 0.5),
    (ldp.mechanisms.CountMeanSketch(1.0, 3, 2, 40), [1, 0x55555555, 0]),
    (ldp.DiscreteGaussianMechanism(2.0), 3),
    (ldp.DiscreteLaplaceMechanism(2.0, 0, 10), 3),
    (ldp.GaussianMechanism(1.0, 1e-4, -5, 5), 0.5),
    (ldp.mechanisms.HadamardCountMeanSketch(1.0, 3, 2, 4), [1, 7]),
    (ldp.HadamardResponse(1.0, 3), 2),
    (
        ldp.mechanisms.IndependentLaplaceMechanism(0.5, [0, -1], [1, 1], columns=ROWS, perturbed=("a", "b")),
        [0.1, 1.5, 1],
    ),
    (ldp.LaplaceMechanism(1.0, -5, 5), -7.25),
    (ldp.mechanisms.LinearRecordsMechanism(4.0, 1e-4, 1.0, 1.0, columns=ROWS), [0.1, 0.2, 0.3]),
    (ldp.mechanisms.LinearStatisticsMechanism(4.0, 1e-4, 1.0, 1.0, columns=("x", "y")), [0.1, 0.2, 0.3]),
    (ldp.LocalHashing(1.0, 3, 4), [4_294_967_295, 3]),
    (ldp.mechanisms.LogisticRecordsMechanism(4.0, 1e-4, 1.0, columns=ROWS), [0.1, 0.2, 1]),
    (ldp.mechanisms.LogisticStatisticsMechanism(4.0, 1e-4, 1.0, columns=("x", "y")), [0.1, 0.2]),
    (ldp.OptimalUnaryEncoding(1.0, 3), [1, 0, 1]),
    (ldp.RPWithPrior(1.0, (-5, 5), 2.0), 6.5),
    (ldp.RROnBins(1.0, [-5, -1, 2, 5], [-3.0, 0.5, 3.0]), 0.5),
    (ldp.RandomizedResponse(np.inf, 4), 3),
    (ldp.mechanisms.Rappor([[1, 0, 1], [0, 1, 1]], 2, 0.4, 0.7, 0.2), [1, 0, 1]),
    (ldp.mechanisms.UnaryEncoding(3, 0.7, 0.4), [1, 0, 1]),
    (ldp.mechanisms.SquareWaveMechanism(1.0, -5, 5), 6.5),
    (ldp.mechanisms.StaircaseMechanism(1.0, -5, 5), 9.5),
    (ldp.SubsetSelection(1.0, 3, 1), [0, 1, 0]),
    (ldp.SymmetricLaplaceMechanism(0.5, -1, 1), 0.25),
    (ldp.SymmetricUnaryEncoding(1.0, 2), [0, 1]),
    (ldp.mechanisms.TransitionMatrix([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]]), 2),
    (ldp.mechanisms.MirroredQuestion(0.3), 1),
    (ldp.mechanisms.Crosswise(0.3), 1),
    (ldp.mechanisms.Triangular(0.3), 1),
    (ldp.mechanisms.Mangat(0.3), 0),
    (ldp.mechanisms.UnrelatedQuestion(0.7, 0.3), 1),
    (ldp.mechanisms.ForcedResponse([0.1, 0.2, 0.1]), 2),
    (ldp.mechanisms.Kuk(0.3, 0.6, 2), 2),
    (ldp.mechanisms.MultiplicativeScrambling(1.0, 0.5, 0.5, 5.0), 4.5),
    (ldp.mechanisms.UnbiasedRandomizer(1.0, [0, 1], [-1.0, 2.0], [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]), 2.0),
    (ldp.ZeroInflatedLaplaceMechanism(0.2, 9.0, -5, 5), 0.125),
    (ldp.mechanisms.BoundedLaplaceMechanism(9.0, -5, 5, sensitivity=2.0), 0.125),
    (ldp.mechanisms.BoundedGaussianMechanism(9.0, -5, 5), 0.125),
]
LAPLACE = ["--mechanism", "laplace", "--epsilon", "1", "--lower", "0", "--upper", "20"]
RESPONSE = ["--mechanism", "randomized_response", "--epsilon", "1"]


def typed(command, *argv):
    """What a command is given, as it sees it."""
    return cli.parser().parse_args(cli._joined([command, *map(str, argv)]))


def load_release(args):
    ((_, _, release),) = load_releases(args)
    return release


def written(path, text):
    path.write_text(text)
    return path


def refused(capsys, *argv):
    code = cli.main([str(a) for a in argv])
    out, err = capsys.readouterr()
    assert code == 2 and "Traceback" not in out + err
    assert err.count("\n") == 1  # one line
    return err


RULES = {"banded", "capped", "floored", "incomplete", "noncompliance", "published", "repeated", "rounded", "withheld"}


def test_every_mechanism_is_here():
    assert {mechanism.name for mechanism, _ in MECHANISMS} == set(ldp.mechanisms.mechanism_names()) - RULES


@pytest.mark.parametrize("rule", sorted(RULES))
def test_reporting_rules_are_read_from_release_files(rule, tmp_path, capsys):
    path = written(tmp_path / "z.csv", "z\n1\n2\n")
    err = refused(capsys, "fit", path, "--model", "clipped_gaussian", "--mechanism", rule)
    assert f"{rule} is a rule around another mechanism: make a release file with" in err


@pytest.mark.parametrize(("mechanism", "value"), MECHANISMS, ids=lambda part: getattr(part, "name", ""))
def test_a_release_of_any_mechanism_can_be_described(mechanism, value, tmp_path):
    spec = {name: part for name, part in mechanism.spec().items() if part is not None}
    names = [f"z{j}" for j in range(np.size(value))]
    if not isinstance(mechanism, ldp.mechanisms.StatisticsMechanism):  # whose rows are of statistics, not of columns
        names = spec.pop("columns", names)
    path = written(tmp_path / "z.csv", "\n".join([",".join(names), *[",".join(map(str, np.ravel(value)))] * 2]))
    described = ["--mechanism", spec.pop("mechanism")] + ["--column", ",".join(names)] * (len(names) > 1)
    for name, part in spec.items():
        described += [f"--{name.replace('_', '-')}", json.dumps(part).removeprefix("[").removesuffix("]")]
    found = load_release(typed("fit", path, *described, "--model", "warner"))
    assert found.mechanism == mechanism
    np.testing.assert_array_equal(found.values, [value, value])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("inf", np.inf),
        ("-1,2", [-1, 2]),
        ("[1, 0], [0, 1]", [[1, 0], [0, 1]]),
        ("age,rooms built", ["age", "rooms built"]),
        ("scaled", "scaled"),
        ("true", True),
        ("1/6,1/6", [1 / 6, 1 / 6]),
        ("2/3", 2 / 3),
        ("[[5/6, 1/6], [-1/6, 0.5]]", [[5 / 6, 1 / 6], [-1 / 6, 0.5]]),
        ("75%", 0.75),
        ("1.2.3/4", "1.2.3/4"),
        ("1/0", "1/0"),
        ("a/2", "a/2"),
    ],
)
def test_a_parameter_is_a_number_numbers_a_name_or_names(text, value):
    assert parameter(text) == value
    assert type(parameter(text)) is type(value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_column_is_found_by_its_name_whatever_stands_around_it(delimiter, tmp_path):
    head = delimiter.join(["id", '"visits, a year"', "note"])
    lines = [delimiter.join([str(i), f" {i - 0.5} ", f'"one{delimiter}\ntwo"']) for i in range(3)]
    path = tmp_path / "visits.csv"
    path.write_bytes("\r\n".join(["\ufeff" + head, *lines, ""]).encode())
    found = load_release(typed("fit", path, "--column", "visits, a year", *LAPLACE, "--model", "clipped_counts"))
    np.testing.assert_array_equal(found.values, [-0.5, 0.5, 1.5])


def test_a_column_of_any_file_is_read_as_it_was_written_or_refused(tmp_path):
    """Against Python's own writer: names and cells with delimiters, quotes and lines in them, commas for decimals."""
    rng, path, read = np.random.default_rng(0), tmp_path / "z.csv", 0
    alphabet = np.array(list('ab ,;\t|"\n') + ["1", "2"])
    for _ in range(300):
        delimiter, decimal = rng.choice([",", ";", "\t", "|"]), rng.choice([".", ","])
        words = ["".join(rng.choice(alphabet, rng.integers(1, 6))).strip() or "a" for _ in range(6)]
        names = [f"{word}{j}" for j, word in enumerate(words[:3])]
        values = np.round(rng.normal(size=(3, 2)), 1)
        rows = [[*map(str, row), word] for row, word in zip(values, words[3:], strict=True)]
        rows = [[cell.replace(".", decimal) if delimiter != "," else cell for cell in row] for row in rows]
        quoting = [csv.QUOTE_MINIMAL, csv.QUOTE_ALL][rng.integers(2)]
        end = rng.choice(["\n", "\r\n"])
        with path.open("w", newline="", encoding=rng.choice(["utf-8", "utf-8-sig"])) as file:
            csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows([names, *rows])
        try:
            table = CsvFile(path)
            table.read(table.names[1:2])
            column = table.numbers(table.names[1])
        except FileError:
            continue
        read += 1
        np.testing.assert_array_equal(column, values[:, 1], str((names, rows)))
    assert read > 100  # decimals with commas are refused, and names that could be divided in two ways


def test_a_file_without_names_loses_no_record_to_them(tmp_path):
    path = written(tmp_path / "answers.csv", "yes\nno\nyes\n")
    with pytest.raises(
        (BadInput, FileError), match="the first line must be the names of the columns, but it holds the level 'yes'"
    ):
        load_release(typed("fit", path, *RESPONSE, "--levels", "no,yes", "--model", "warner"))


@pytest.mark.parametrize("head", ["", "age;rooms\n"])
def test_features_are_read_as_releases_are(head, tmp_path):
    path = tmp_path / "features.csv"
    path.write_bytes(f"\ufeff{head}1.5;2\r\n3; 4\r\n".encode())  # once the first record stood for names
    matrix = load_features(typed("regress", "z.npz", "--features", path))
    assert matrix.columns == (["age", "rooms"] if head else ["x[0]", "x[1]"])
    np.testing.assert_array_equal(matrix, [[1.5, 2], [3, 4]])
    for text, message in (
        ("1;2\n#N/A;3\n", "line 2: column 'x.0.'"),
        ("a\n1\n\n3\n", "line 3: the line is empty"),
        ("a,a\n1,2\n", "has several columns 'a'"),  # once a matrix of one column
    ):
        with pytest.raises((BadInput, FileError), match=message):  # once rows that were left out
            load_features(typed("regress", "z.npz", "--features", written(path, text)))


def test_words_are_given_codes_by_levels(tmp_path):
    path = written(tmp_path / "answers.csv", "answer\nyes\nno\nyes\n")
    found = load_release(typed("fit", path, *RESPONSE, "--levels", "no,yes", "--model", "warner"))
    np.testing.assert_array_equal(found.values, [1, 0, 1])
    three = load_release(typed("fit", path, *RESPONSE, "--levels", "no,yes,none", "--model", "warner"))
    assert (found.mechanism.categories, three.mechanism.categories) == (2, 3)


def test_budgets_stand_in_a_column_and_groups_have_those_of_their_records(tmp_path):
    text = "visits,region,budget\n1,south,1\n2,north,0.5\n3,south,1\n4,east,2\n5,east,4\n"
    path = written(tmp_path / "visits.csv", text)
    described = ["--column", "visits", "--mechanism", "laplace", "--epsilon", "@budget", "--lower", 0, "--upper", 20]
    whole = load_release(typed("fit", path, *described, "--model", "clipped_counts"))
    np.testing.assert_array_equal(whole.mechanism.epsilon, [1, 0.5, 1, 2, 4])
    south, north, east = load_releases(typed("fit", path, *described, "--by", "region", "--model", "hierarchical"))
    assert (south.word, north.word, east.name) == ("south", "north", f"{path}, region east")
    np.testing.assert_array_equal(south.release.values, [1, 3])
    assert south.release.mechanism == ldp.LaplaceMechanism(1.0, 0, 20)  # one budget, so that it has a sketch
    np.testing.assert_array_equal(east.release.mechanism.epsilon, [2, 4])


def test_groups_are_named_in_the_summary(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ldp, "fit", made_up.fit)
    rng = np.random.default_rng(0)
    lines = [
        f"{answer},{region}"
        for answer, region in zip(rng.choice(["no", "yes"], 60), ["south", "north"] * 30, strict=True)
    ]
    path = written(tmp_path / "answers.csv", "\n".join(["answer,region", *lines]))
    argv = [
        "fit",
        path,
        "--column",
        "answer",
        "--by",
        "region",
        *RESPONSE,
        "--levels",
        "no,yes",
        "--model",
        "regional_histograms",
        "--no-cache",
        "--target-accept",
        0.9,
    ]
    assert cli.main([str(a) for a in [*argv, "--chains", 1, "--warmup", 20, "--samples", 20]]) == 0
    out = capsys.readouterr().out
    assert f"{path}, region south: 30 records" in out
    assert "theta[south, no]" in out and "theta[north, yes]" in out and "mu[yes]" in out
    assert "logits" not in out  # which is no parameter
    assert out.count("Each record is protected") == 1  # of both regions


def test_statistics_labels_and_features_are_read_by_the_other_commands(tmp_path):
    sums = written(tmp_path / "sums.csv", "sum\n5991.25\n")
    described = ["--mechanism", "laplace", "--epsilon", 1, "--sensitivity", 12]
    found = load_release(typed("bootstrap", sums, *described, "--family", "poisson", "--upper", 12, "--count", 3000))
    assert found.mechanism == ldp.LaplaceMechanism(1.0, sensitivity=12.0)
    assert found.values == [5991.25]
    homes = written(tmp_path / "homes.csv", "price,age,rooms\n0.5,3,4\n1.5,2,5\n")
    args = typed("regress", homes, "--column", "price", *LAPLACE, "--features", "rooms,age")
    np.testing.assert_array_equal(load_release(args).values, [0.5, 1.5])
    features = load_features(args)
    assert features.columns == ["rooms", "age"]
    np.testing.assert_array_equal(features, [[4, 3], [5, 2]])
    with pytest.raises((BadInput, FileError), match="has no column 'garden'; its columns are price, age, rooms"):
        load_features(argparse.Namespace(**vars(args) | {"features": pathlib.Path("garden")}))


VISITS = "id,visits,region\n1,3.5,north\n2,-2.5,south\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (VISITS, [], "name the mechanism that released it and its parameters, such as --mechanism laplace"),
        (VISITS, LAPLACE, "--column is needed: --mechanism laplace releases one number for each record; v"),
        (VISITS, ["--column", "visit", *LAPLACE], "has no column 'visit' (did you mean visits?); its columns are id"),
        (VISITS, ["--column", "id,id", *LAPLACE], "column 'id' of visits.csv is given twice"),
        (VISITS, ["--column", "visits", "--by", "area", *LAPLACE], "has no column 'area'"),
        (VISITS, ["--column", "region", *LAPLACE], "line 2: column 'region' holds 'north', which is not a number"),
        (VISITS, ["--column", "region", *RESPONSE], "name the words for categories with --levels"),
        (VISITS, ["--column", "region", *RESPONSE, "--levels", "north,east"], "line 3: column 'region' holds 'south'"),
        (VISITS, ["--column", "visits", *LAPLACE, "--levels", "a,b"], "--mechanism laplace has no --levels"),
        (VISITS, ["--column", "id,visits", *RESPONSE], "--column names 2 columns: --mechanism randomized_response"),
        (VISITS, ["--column", "visits", *RESPONSE], "values must be integers in 0..1 under RandomizedResponse"),
        (
            VISITS,
            ["--column", "visits", "--mechanism", "laplac"],
            "no mechanism 'laplac' (did you mean laplace?); --mechanism must be one of additive, banded",
        ),
        (VISITS, ["--column", "visits", "--mechanism", "zzz"], "no mechanism 'zzz'; --mechanism must be one of add"),
        (VISITS, ["--column", "visits", *LAPLACE, "--delta", "0.1"], "has no --delta; its options are --epsilon, --lo"),
        (
            VISITS,
            ["--column", "visits", "--mechanism", "gaussian", "--epsilon", "1"],
            "gaussian needs --delta; its opt",
        ),
        (
            VISITS,
            ["--column", "visits", *LAPLACE[:4]],
            "laplace needs --lower and --upper (bounds to which records were clipped), or --sensitivity for a stat",
        ),
        (VISITS, ["--column", "visits", *LAPLACE[:6]], "laplace needs --upper (bounds"),
        (VISITS, ["--column", "visits", *RESPONSE, "--levels", "yes"], "--levels: needs two words or more"),
        (VISITS, ["--column", "visits", *LAPLACE, "--target-accept", "1"], "--target-accept: must be a number between"),
        (VISITS, ["--column", "visits", *LAPLACE, "--epsilon", "much"], "epsilon must be"),
        (VISITS, ["--column", "visits", *LAPLACE, "--epsilon", "@budget"], "has no column 'budget'"),
        ("visits\n1\n\n3\n", LAPLACE, "visits.csv, line 3: the line is empty, but more lines follow"),
        (
            "visits,id\n1,2\n,3\nNA,4\n",
            ["--column", "visits", *LAPLACE],
            "2 of the 3 values in column 'visits' are mis",
        ),
        ("visits,id\n1,2\n,3\nNA,4\n", ["--column", "visits", *LAPLACE], "the first in line 3"),
        (
            "visits,id\n1,2\n3\n",
            ["--column", "visits", *LAPLACE],
            "line 3: the line has 1 cell, but the first line has 2 names of",
        ),
        (
            "visits;id\n1,5;2\n",
            ["--column", "visits", *LAPLACE],
            "holds '1,5', which is not a number; if it is one, give decimal=',' (--decimal ,)",
        ),
        ("visits,visits\n1,2\n", ["--column", "visits", *LAPLACE], "has several columns 'visits'"),
        ("visits,region\n1,\n", ["--column", "visits", "--by", "region", *LAPLACE], "1 of the 1 values in column 'reg"),
        ("1.5\n2.5\n", LAPLACE, "the first line must be the names of the columns, but it holds numb"),
        ("NA\n1\n", LAPLACE, "the first line must be the names of the columns, but it holds numb"),
        ("income, net;age\n3,5;42\n", ["--column", "income", *LAPLACE], "could be separated by ',' or ';'"),  # was 3
        ('visits,id\n1,"a\n2,b\n', ["--column", "visits", *LAPLACE], "unexpected end of data, in line 3"),  # was one
        ("visits\n1_5\n", LAPLACE, "line 2: column 'visits' holds '1_5', which is not a number"),  # was 15
        ("visits\n\uff11\n", LAPLACE, "which is not a number"),
        ("", LAPLACE, "the first line must be the names of the columns, but it is empty"),
        ("visits\n", LAPLACE, "has no records below the names of its columns"),
    ],
)
def test_a_mistake_in_a_file_or_its_description_is_said_in_a_line(
    text, options, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "visits.csv", text)
    model = "hierarchical" if "--by" in options else "clipped_counts"
    assert message in refused(capsys, "fit", "visits.csv", *options, "--model", model)


@pytest.mark.parametrize("options", [[], ["--by", "region"]])
def test_a_budget_that_is_none_is_found_in_its_line(options, tmp_path, capsys):
    path = written(tmp_path / "z.csv", "visits,region,budget\n1,south,1\n2,north,1\n3,south,1\n4,north,-1\n")
    described = ["--column", "visits", "--mechanism", "laplace", "--epsilon", "@budget", "--lower", 0, "--upper", 20]
    err = refused(capsys, "fit", path, *described, *options, "--model", "hierarchical" if options else "clipped_counts")
    assert f"{path}, line 5, column 'budget': parameter epsilon must be positive and finite, got -1.0" in err
    path.write_text(path.read_text().replace(",1\n", ",-1\n"))  # one budget in a group, which is a number then
    err = refused(capsys, "fit", path, *described, *options, "--model", "hierarchical" if options else "clipped_counts")
    assert f"{path}, line 2, column 'budget': parameter epsilon must be positive and finite, got -1.0" in err


def test_a_column_that_tells_records_apart_is_none_of_groups(tmp_path, capsys):
    lines = [f"{record % 20},{record // 2 if record < 2000 else record}" for record in range(5000)]
    path = written(tmp_path / "z.csv", "\n".join(["visits,id", *lines]))
    described = [path, "--column", "visits", "--by", "id"]
    err = refused(capsys, "fit", *described, *LAPLACE, "--model", "hierarchical")
    assert "--by must name a column of groups, but id makes 4,000 groups of 5,000 records, most with" in err
    path.write_text("\n".join(["visits,id", *lines[1996:2003]]))  # two groups of two, three of one
    err = refused(capsys, "fit", *described, *LAPLACE, "--model", "hierarchical")
    assert "5 groups of 7 records" in err
    sums = load_releases(typed("fit", *described, *LAPLACE[:4], "--sensitivity", 1, "--model", "model.py"))
    assert [len(each.release) for each in sums] == [2, 2, 1, 1, 1]  # of statistics there may be one a group
    path.write_text("\n".join(["visits,id", *lines[1996:2002]]))  # half
    assert len(load_releases(typed("fit", *described, *LAPLACE, "--model", "hierarchical"))) == 4


def test_models_of_one_release_are_not_for_groups(tmp_path, capsys):
    path = tmp_path / "z.csv"  # which is not read before
    message = "--model clipped_gaussian is not for groups: give it one RELEASE, without --by; models of groups are"
    assert message in refused(capsys, "fit", path, "--by", "region", *LAPLACE, "--model", "clipped_gaussian")
    assert message in refused(capsys, "fit", path, path, "--by", "file", *LAPLACE, "--model", "clipped_gaussian")


def test_groups_of_a_file_do_not_add(tmp_path, capsys):
    options = ["--by", "region", "--add", *LAPLACE, "--model", "hierarchical"]
    assert "needs several RELEASEs with --by file, or one .csv" in refused(capsys, "fit", tmp_path / "z.csv", *options)


@pytest.mark.parametrize("options", [[], ["--by", "file", "--add"]])
def test_several_files_are_groups_or_parts_and_the_user_says_which(options, tmp_path, capsys):
    paths = [tmp_path / "north.csv", tmp_path / "south.csv"]  # which are not read before
    err = refused(capsys, "fit", *paths, *options, *LAPLACE, "--model", "hierarchical")
    assert "2 RELEASEs need --by file (each is a group) or --add (all are parts of one release)" in err


@pytest.mark.filterwarnings("ignore::ldpbayes.inference.ConvergenceWarning")
@pytest.mark.parametrize(("options", "said"), [(["--by", "file"], "each a group"), (["--add"], "parts of one release")])
def test_what_several_files_are_is_said_and_done(options, said, tmp_path, capsys, monkeypatch):
    given = []
    monkeypatch.setattr(ldp, "fit", lambda model, data, **kwargs: given.append(data) or FITTED)
    for name, epsilon in (("north", 1.0), ("south", 2.0)):
        ldp.Release([3.0, -2.0], ldp.LaplaceMechanism(epsilon, 0, 5), times=2).save(tmp_path / f"{name}.npz")
    model = "hierarchical" if "file" in options else "clipped_gaussian"
    paths = [str(tmp_path / f"{name}.npz") for name in ("north", "south")]
    assert cli.main(["fit", *paths, *options, "--model", model]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"2 files, {said}\n") and out.count("2 records") == 2
    (data,) = given
    if "file" in options:
        assert len(data) == 2 and data.coords == {"group": ("north", "south")}
        assert [part.size for part in data] == [2, 2] and [part.mechanism.epsilon for part in data] == [1.0, 2.0]
    else:
        assert [part.mechanism.epsilon for part in data.parts] == [1.0, 2.0] and data.size == 4
        assert [promise.times for promise in data.promises] == [2, 2]


@pytest.mark.parametrize(
    "joined", [["--by", "file", "--model", "hierarchical"], ["--add", "--model", "clipped_gaussian"]]
)
def test_files_of_different_people_have_no_total(joined, tmp_path, capsys, monkeypatch):
    given = []
    monkeypatch.setattr(ldp, "fit", lambda model, data, **options: given.append(options) or FITTED)
    for name in ("north", "south"):
        ldp.Release([3.0, -2.0], ldp.LaplaceMechanism(1.0, 0, 5)).save(tmp_path / f"{name}.npz")
    said = {}
    for option in ("--different-people", "--same-people", None):
        argv = ["fit", *(str(tmp_path / f"{name}.npz") for name in ("north", "south")), *joined]
        assert cli.main(argv + ([option] if option else [])) == 0
        said[option] = capsys.readouterr().out
    assert "2 releases about different people. What each promises:" in said["--different-people"]
    assert "epsilon = 2 " not in said["--different-people"] and said["--different-people"].count("epsilon = 1 ") == 1
    assert "2 releases about the same people. A person with up to 2 reports" in said["--same-people"]
    assert "2 releases. Where they are about the same people, their budgets add up" in said[None]
    assert [(each["same_people"], each["different_people"]) for each in given] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    assert "not allowed with" in refused(capsys, *argv, "--same-people", "--different-people")


def test_groups_by_a_column_promise_what_their_file_does(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ldp, "fit", lambda model, data, **options: FITTED)
    rows = [f"{'nsew'[record % 4]},{record % 3},{1 + record % 2}" for record in range(40)]
    path = written(tmp_path / "z.csv", "\n".join(["region,visits,budget", *rows]))
    argv = ["fit", path, "--column", "visits", "--by", "region", *LAPLACE[:2], "--epsilon", "@budget", *LAPLACE[4:]]
    argv = [*map(str, argv), "--model", "hierarchical"]
    parts = load_releases(typed(*argv))
    assert [each.release.mechanism.epsilon for each in parts] == [1.0, 2.0, 1.0, 2.0]
    for more in ([], ["--no-sketch"]):
        assert cli.main([*argv, *more]) == 0
        out = capsys.readouterr().out
        assert "releases" not in out and "Each record is protected" in out and "epsilon between 1 and 2" in out


def test_a_column_may_be_called_file(tmp_path):
    path = written(tmp_path / "z.csv", "file,visits\na,1\nb,2\na,3\nb,4")
    args = typed("fit", path, "--column", "visits", "--by", "file", *LAPLACE, "--model", "hierarchical")
    assert [(each.word, each.release.count) for each in load_releases(args)] == [("a", 2), ("b", 2)]


def test_few_of_many_lines_are_printed():
    assert few(map(str, range(8))).split() == list("01234567")
    assert few(map(str, range(48))).splitlines()[7:] == ["7", "... and 40 more"]


def test_categories_are_called_by_their_words():
    north = Named("z.csv, region north", "north", ldp.Release([0, 1], ldp.RandomizedResponse(1.0, 3)))
    assert place_names("oue_histogram", north, ["no", "yes"]) == {
        "dims": {"theta": ["category"]},
        "coords": {"category": ["no", "yes", "2"]},  # more categories than words
    }
    assert place_names("oue_histogram", north, []) == place_names("model.py", north, ["no", "yes"]) == {}
    both = place_names("regional_histograms", north, ["no", "yes", "none"])
    assert both["dims"] == {"theta": ["region", "category"]} and both["coords"] == {"category": ["no", "yes", "none"]}


def test_words_are_the_codes_of_a_transition_matrix(tmp_path):
    path = written(tmp_path / "z.csv", "answer\nno\nyes\nrefused\nno")
    for matrix, words in (
        ("[[0.7,0.2,0.1],[0.2,0.7,0.1]]", {}),
        ("[[0.8,0.1,0.1],[0.1,0.8,0.1],[0.1,0.1,0.8]]", WORDS),
    ):
        argv = ["--levels", "no,yes,refused", "--mechanism", "transition_matrix", "--matrix", matrix]
        args = typed("fit", path, *argv, "--model", "oue_histogram")
        (named,) = load_releases(args)
        assert named.release.values.tolist() == [0, 1, 2, 0] and named.release.mechanism.matrix.shape[1] == 3
        # of a matrix with more outputs than categories, words for outputs are none for categories
        assert place_names("oue_histogram", named, args.levels).get("coords", {}) == words


WORDS = {"category": ["no", "yes", "refused"]}


def test_text_that_is_not_unicode_is_refused(tmp_path, capsys):
    (tmp_path / "z.csv").write_bytes("größe\n1\n".encode("latin-1"))
    assert "is not text in UTF-8" in refused(capsys, "fit", tmp_path / "z.csv", *LAPLACE, "--model", "clipped_counts")


def test_a_release_file_says_itself_what_released_it(tmp_path, capsys):
    path = tmp_path / "z.npz"
    ldp.Release([1.0, 2.0], ldp.LaplaceMechanism(1.0, 0, 20)).save(path)
    err = refused(capsys, "fit", path, "--column", "visits", *LAPLACE, "--model", "clipped_counts")
    assert f"--mechanism, --column, --epsilon, --lower, --upper: only for .csv files; {path} states" in err
    plain = tmp_path / "visits.parquet"
    pd.DataFrame({"visits": [1.0, 2.0]}).to_parquet(plain)
    err = refused(capsys, "fit", plain, "--column", "visits", *LAPLACE, "--model", "clipped_counts")
    assert "visits.parquet is not a valid release file" in err and "states its own mechanism" not in err
    assert "give a plain table as a .csv file, with --mechanism" in err
    err = refused(capsys, "fit", "z.xlsx", *LAPLACE, "--model", "clipped_counts")
    assert "a RELEASE is an .npz or .parquet file, or a .csv file with --mechanism; got z.xlsx" in err


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (["fit", "none.npz", "--model", "warner", "--out", "x.csv"], ".nc"),
        (["bootstrap", "none.npz", "--family", "poisson", "--count", "9", "--out", "x.csv"], ".nc"),
        (["regress", "none.npz", "--features", "none.csv", "--out", "x.nc"], ".csv"),
    ],
)
def test_an_output_of_another_form_is_refused_before_anything_is_read(command, ending, capsys):
    assert f"give the name of a file that ends in {ending}" in refused(capsys, *command)


def test_promises_are_to_persons_who_report_several_times(tmp_path):
    (tmp_path / "days.csv").write_text("answer\n1\n0\n0\n1\n")
    mechanism = ["--mechanism", "randomized_response", "--epsilon", "1", "--times", "3"]
    args = cli.parser().parse_args(["fit", str(tmp_path / "days.csv"), "--model", "warner", *mechanism])
    ((_, _, release),) = load_releases(args)
    assert "up to 3 reports" in release.guarantee.statement()


def test_reports_a_person_are_counted_from_a_column(tmp_path, capsys):
    path = written(tmp_path / "days.csv", "who,region,answer\nann,n,1\nbob,n,0\nann,n,0\nann,s,1\n ann,s,1")
    response = ["--column", "answer", "--mechanism", "randomized_response", "--epsilon", "1", "--model", "warner"]
    assert load_release(typed("fit", path, *response, "--persons", "who")).times == 4
    grouped = load_releases(typed("fit", path, *response, "--persons", "who", "--by", "region"))
    assert [(each.word, each.release.times) for each in grouped] == [("n", 4), ("s", 4)]  # in all groups together
    said = promises([each.release for each in grouped])
    assert said == ldp.Release([0], ldp.RandomizedResponse(1.0), times=4).guarantee.statement()
    assert "do not give times" in refused(capsys, "fit", path, *response, "--persons", "who", "--times", "2")
    written(path, "who,answer\nann,1\n,0")
    assert "1 of the 2 values in column 'who' are missing, the first in line 3" in refused(
        capsys, "fit", path, *response, "--persons", "who"
    )


SURVEY = "rr.q1;my age;region;n\nja;20,5;S;3\nnein;40,0;N;2\nNA;30,0;S;4\nja;*;N;1\n"
FORCED = ["--mechanism", "forced_response", "--forced", "1/6,1/6", "--levels", "nein,ja"]
WRITTEN = ["--decimal", ",", "--withheld", "*"]


def test_missing_answers_are_left_out_and_totals_are_records(tmp_path, capsys):
    path = written(tmp_path / "z.csv", SURVEY)
    asked = ["fit", path, "--column", "rr.q1", *FORCED, "--model", "warner"]
    assert "1 of the 4 values in column 'rr.q1' are missing, the first in line 4" in refused(capsys, *asked)
    release = load_release(typed(*asked, "--missing", "drop"))
    assert release.values.tolist() == [1, 0, 1] and release.mechanism == ldp.mechanisms.ForcedResponse([1 / 6, 1 / 6])
    release = load_release(typed(*asked, "--missing", "drop", "--counts", "n"))
    assert release.values.tolist() == [1, 1, 1, 0, 0, 1] and release.about["missing"] == "4 of 10 values, left out"
    groups = load_releases(typed(*asked, "--missing", "drop", "--counts", "n", "--by", "region"))
    assert [(name, part.values.tolist()) for _, name, part in groups] == [("S", [1, 1, 1]), ("N", [0, 0, 1])]
    path.write_text(SURVEY.replace("3\n", "3.5\n"))
    assert "count[0] = 3.5" in refused(capsys, *asked, "--missing", "drop", "--counts", "n")
    path.write_text(SURVEY.replace("30,0;S", "30,0;W"))
    asked = ["frequencies", *asked[1:-2], "--missing", "drop", "--by", "region"]
    assert f"{path}: no row has an answer where region is W" in refused(capsys, *asked, "--counts", "n")
    path = tmp_path / "z.npz"
    ldp.Release([1, 0], ldp.RandomizedResponse(1.0)).save(path)
    assert "--missing: only for .csv files" in refused(capsys, "frequencies", path, "--missing", "drop")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_formula_reads_its_answer_and_columns_from_one_file(elsewhere, tmp_path, capsys, monkeypatch):
    """The column of the answer is that of the formula; numbers of its columns are written as the options say."""
    path, given = written(tmp_path / "z.csv", SURVEY), []

    def fit(model, frame, release, **options):
        (design, release), _, entries = model.prepare((frame, release), {})
        given.extend([design, release])
        result = FITTED.copy()
        result.attrs.update(FITTED.attrs | entries)
        return result

    monkeypatch.setattr(ldp, "fit", fit)
    files = [path, "--features", written(tmp_path / "x.csv", SURVEY)] if elsewhere else [path]
    asked = ["fit", *files, *FORCED, *WRITTEN, "--missing", "drop", "--formula", "`rr.q1` ~ `my age`"]
    assert cli.main([str(a) for a in [*asked, "--family", "bernoulli"]]) == 0
    out = capsys.readouterr().out
    assert "missing: 1 of 4 values, left out" in out
    assert "1 of 4 values, left out; 1 of 3 answers without a covariate, left out" in out
    design, release = given
    assert release.values.tolist() == [1, 0] and float(design.centre[0]) == pytest.approx(30.25)


def test_sums_of_bits_are_read_in_a_column_and_in_rappors_files(tmp_path, capsys):
    texts = "1000,600,610,550,505\n", '"home",1,2\n"work",2,3\n', "k,h,m,p,q,f\n4,2,1,0.5,0.75,0\n"
    counts, words, params = (str(written(tmp_path / f"{i}.csv", text)) for i, text in enumerate(texts))
    assert cli.main(["frequencies", counts, "--map", words, "--params", params, "--method", "projection"]) == 0
    assert "(unlisted)" in capsys.readouterr().out
    sums = written(tmp_path / "sums.csv", "n\n1801\n1631\n1458\n1471\n1365\n1364\n")
    encoding = ["--mechanism", "optimal_unary_encoding", "--epsilon", "1", "--levels", "a,b,c,d,e,f"]
    assert cli.main(["frequencies", str(sums), "--sums", "5000", *encoding]) == 0
    out = capsys.readouterr().out
    assert "a             0.3950     0.0294" in out and "epsilon = 1 and delta = 0" in out
    for argv, problem in (
        ([counts, "--map", words], "--map and --params are given together"),
        ([counts, "--map", words, "--params", params, "--q", "0.5"], "--q: not for sums of bits in files of RAPPOR"),
        ([str(sums), "--sums", "5000", *encoding, "--by", "n"], "--by: not for sums of bits"),
        ([str(sums), "--sums", "1700", *encoding], "sums.csv, line 2: column 'n' has a sum above the 1700 reports"),
        ([str(sums), "--sums", "5000"], "--sums needs --mechanism"),
        ([str(sums), "--sums", "5000", *encoding[:-1], "a,b"], "sums must be of shape (2,)"),
    ):
        assert problem in refused(capsys, "frequencies", *argv)


def test_frequencies_are_printed_with_errors_and_words(tmp_path, capsys):
    path = written(tmp_path / "z.csv", "answer,n,region\nno,20,N\nyes,80,N\nyes,5,S\nno,5,S\n")
    asked = [path, "--column", "answer", "--levels", "no,yes", "--counts", "n"]
    asked += ["--mechanism", "transition_matrix", "--matrix", "[[1/2,1/2],[0,1]]", "--by", "region"]
    assert cli.main(["frequencies", *map(str, asked), "--level", "0.9"]) == 0
    north, south = capsys.readouterr().out.split("Frequencies, method 'unbiased', 2 categories")[1:]
    assert re.search(r"yes +0.6000 +0.0800 +0.4684 +0.7316", north) and re.search(r"yes +0.0000 ", south)
    assert "epsilon = 0 and delta = 0.5" in south
    release = ldp.Release(["no", "yes"], ldp.RandomizedResponse(2.0), about={"levels": ["no", "yes"]})
    release.save(tmp_path / "z.npz")
    assert cli.main(["frequencies", str(tmp_path / "z.npz"), "--method", "mle"]) == 0
    assert re.search(r"yes +0.5000 ", capsys.readouterr().out)
    assert "method must be one of unbiased, " in refused(capsys, "frequencies", tmp_path / "z.npz", "--method", "best")
    assert "data must be categories" in refused(capsys, "frequencies", path, "--column", "n", *LAPLACE)


@pytest.mark.slow
@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with nigeria.csv")
def test_a_survey_as_it_comes_is_analysed_by_one_command(capsys):
    path = str(pathlib.Path(os.environ["LDPBAYES_DATA"]) / "nigeria.csv")
    names = [f"cov.{name}" for name in ("asset.index", "married", "age", "education", "female")]
    formula = f"`rr.q1` ~ {' + '.join(f'`{name}`' for name in names)}"
    asked = [path, *FORCED[:4], "--missing", "drop"]
    assert cli.main(["fit", *asked, "--formula", formula, "--family", "bernoulli", "--no-progress"]) == 0
    out = capsys.readouterr().out
    assert "2,435 records" in out and "12 of 2,435 answers without a covariate" in out
    assert re.search(r"coefficients\[cov.female\] +-0.5[789]\d +0.1[67]\d", out)
    assert cli.main(["frequencies", *asked, "--column", "rr.q1"]) == 0
    assert re.search(r"1 +0.2619 +0.0144", capsys.readouterr().out)
