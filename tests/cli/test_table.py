"""The command `table`: intervals of the cells of a noisy table and of their ratios, and what it refuses."""

import csv
import os
import pathlib

import numpy as np
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes import cli
from ldpbayes.data import readers

COUNTS = """state,county,n,sd,population,users,users_sd
Ohio,Adams,101,10,1000,1010,10
Ohio,Allen,-3,10,500,30,10
Iowa,Adair,,5,900,888,10
Iowa,Adams,40,5,70,71,10
"""
PLAIN = ["--value", "n", "--keys", "state,county", "--noise", "discrete_gaussian", "--standard-deviation-column", "sd"]


@pytest.fixture
def counts(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(COUNTS)
    return path


def run(capsys, *argv):
    code = cli.main(["table", *map(str, argv)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def written(path):
    with path.open() as file:
        return {(row["state"], row["county"], row["quantity"]): row for row in csv.DictReader(file)}


def test_intervals_of_cells_and_ratios_are_printed_and_written(counts, tmp_path, capsys):
    out = tmp_path / "cells.csv"
    code, text, err = run(capsys, counts, *PLAIN, "--ratio", "n/population", "--out", out, "--samples", 4000)
    assert (code, err) == (0, "")
    assert run(capsys, counts, *PLAIN, "--ratio", "n/population, population/n", "--samples", 9)[1].count("/") >= 2
    assert "Uncertainty of the table before noise, not of the population: intervals of 90 %." in text
    assert "no sensitivity and no statement of its publisher was given" in text
    assert "\nn\n===" in text and "\nn/population\n===" in text and f"wrote {out}" in text
    rows = written(out)
    assert len(rows) == 8
    row = {
        name: float(each)
        for name, each in rows["Ohio", "Adams", "n"].items()
        if name not in ("state", "county", "quantity")
    }
    # normal with standard deviation 10, to 5 standard errors of 4,000 draws: of the mean 0.16, of a quantile 0.34
    assert row["value"] == 101 and abs(row["mean"] - 101) < 0.8 and abs(row["sd"] - 10) < 0.6
    assert abs(row["lower"] - (101 - 16.45)) < 2.2 and abs(row["upper"] - (101 + 16.45)) < 2.2
    ratio = {name: float(rows["Ohio", "Adams", "n/population"][name]) for name in ("value", "mean", "lower", "upper")}
    assert ratio == pytest.approx({name: row[name] / 1000 for name in ratio}, rel=1e-12)
    assert float(rows["Ohio", "Allen", "n"]["lower"]) >= 0  # counts
    missing = rows["Iowa", "Adair", "n"]
    assert missing["value"] == missing["mean"] == "nan" and "Iowa, Adair nan nan nan nan nan" in " ".join(text.split())


def test_what_was_withheld_has_an_interval_below_the_threshold_and_some_noise(counts, tmp_path, capsys):
    out = tmp_path / "cells.csv"
    few = counts.read_text().replace("Ohio,Allen,-3", "Ohio,Allen,")
    counts.write_text(few)
    code, text, _ = run(capsys, counts, *PLAIN, "--threshold", 30, "--privacy", "As stated.", "--out", out)
    assert code == 0 and "As stated." in text
    row = written(out)["Iowa", "Adair", "n"]
    # the posterior of a count is proportional to P(noise of standard deviation 5 < 30 - count)
    x = np.arange(80)
    from scipy.special import ndtr

    p = ndtr((29.5 - x) / 5)
    cdf = np.cumsum(p) / p.sum()
    assert abs(float(row["upper"]) - x[np.searchsorted(cdf, 0.95)]) <= 2  # 5 standard errors of 1,000 draws are 1.2
    assert "2 not reported" in text


def test_a_ratio_of_two_noisy_values_has_the_noise_of_both(counts, tmp_path, capsys):
    out, values = (
        tmp_path / "cells.csv",
        ["--value", "n,users", "--keys", "state,county", "--noise", "discrete_gaussian"],
    )
    ratios = ["--ratio", "n/users", "--ratio", "n/population"]
    spreads = ["--standard-deviation-column", "sd,users_sd"]
    assert run(capsys, counts, *values, *spreads, *ratios, "--out", out)[0] == 0
    rows = written(out)
    assert {quantity for *_, quantity in rows} == {"n", "users", "n/users", "n/population"}
    noisy, public = (float(rows["Iowa", "Adams", name]["sd"]) for name in ("n/users", "n/population"))
    # relative errors 5/40 and 10/71, which add up in squares: 0.106 against 0.071
    assert 1.3 < noisy / public < 1.8
    assert run(capsys, counts, *values, "--scale", "5,10", *ratios)[0] == 0
    assert run(capsys, counts, *values, "--variance", "25", *ratios)[0] == 0


def test_a_ratio_without_a_positive_denominator_is_no_number(counts, tmp_path, capsys):
    counts.write_text(counts.read_text().replace("500,30", "0,30"))
    out = tmp_path / "cells.csv"
    assert run(capsys, counts, *PLAIN, "--ratio", "n/population", "--ratio", "population/n", "--out", out)[0] == 0
    rows = written(out)
    assert rows["Ohio", "Allen", "n/population"]["mean"] == "nan" != rows["Ohio", "Allen", "n"]["mean"]
    people_a_case = float(rows["Ohio", "Adams", "population/n"]["mean"])
    assert abs(people_a_case - 1000 / 101 * (1 + (10 / 101) ** 2)) < 0.2  # to second order, to 6 standard errors


def test_parquet_files_are_read_as_csv_files_are(counts, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import csv as reader

    path = tmp_path / "counts.parquet"
    parquet.write_table(reader.read_csv(counts), path)
    _, expected, _ = run(capsys, counts, *PLAIN, "--ratio", "n/population")
    code, text, _ = run(capsys, path, *PLAIN, "--ratio", "n/population")
    assert code == 0 and text == expected
    code, _, err = run(capsys, path, *PLAIN, "--ratio", "n/populaton")
    assert code == 2 and "there is no column 'populaton' (did you mean population?)" in err
    table = parquet.read_table(path)
    parquet.write_table(table.append_column("n", table["population"]), path)
    code, _, err = run(capsys, path, *PLAIN)
    assert code == 2 and "counts.parquet: " in err  # which of the two is meant?
    path.write_bytes(b"no parquet")
    code, _, err = run(capsys, path, *PLAIN)
    assert code == 2 and err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "argv", "message"),
    [
        (("", ""), PLAIN[:6], "give one of scale, standard_deviation, variance and margin, got none"),
        (("", ""), [*PLAIN, "--scale", "3"], "give one of scale, standard_deviation, variance and margin"),
        (("", ""), [*PLAIN[:4], "--scale", "3"], "noise must be one of"),
        (("", ""), [*PLAIN[:4], "--noise", "gausian", "--scale", "3"], "(did you mean gaussian?)"),
        (
            ("", ""),
            [*PLAIN[:4], "--noise", "laplace", "--scale", "3,4"],
            "--scale must be one, or one for each column of --value n",
        ),
        (("", ""), [*PLAIN[:4], "--noise", "laplace", "--scale", "x"], "has no column 'x'"),
        (("", ""), [*PLAIN, "--ratio", "n/pop"], "has no column 'pop'; its columns are"),
        (("", ""), [*PLAIN, "--ratio", "n"], "--ratio: must be names of two columns, as n/population, got 'n'"),
        (("", ""), ["--value", "m", *PLAIN[2:]], "has no column 'm'"),
        (("Ohio,Allen", "Ohio,Adams"), PLAIN, "rows 0 and 1 are of the same cell (state Ohio, county Adams)"),
        (("101,10", "1o1,10"), PLAIN, "line 2: column 'n' holds '1o1', which is not a number"),
        (("101,10", "101,0"), PLAIN, "column 'sd' holds 0.0 for Ohio, Adams: a standard_deviation must be positive"),
        (("101,10", "101.5,10"), PLAIN, "column 'n' holds 101.5 for Ohio, Adams: possible values are whole numbers"),
        (
            ("", ""),
            [*PLAIN, "--threshold", "-20", "--unpublished", "-3"],
            "--unpublished must be an integer of at least 0, got -3",
        ),
        (
            ("", ""),
            [*PLAIN, "--threshold", "50"],
            "column 'n' holds -3.0 for Ohio, Allen and 1 other cells: possible values are whole numbers, threshold 50",
        ),
        (("", ""), [*PLAIN, "--out", "cells.nc"], "written as CSV"),
    ],
)
def test_bad_input_is_refused_in_one_line(counts, change, argv, message, capsys):
    counts.write_text(counts.read_text().replace(*change))
    code, out, err = run(capsys, counts, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err


def test_a_file_of_another_kind_or_none_is_refused(tmp_path, capsys):
    for name in ("counts.npz", "counts.parquet", "counts.csv"):
        code, _, err = run(capsys, tmp_path / name, *PLAIN)
        assert code == 2 and name in err


def test_measurement_files_are_read_by_the_name_of_their_format(tmp_path, capsys):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    row = {"geocode": "01", "query_name": "age", "query_shape": [1, 2], "value": [10, 20], "variance": 4.0}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "answers.parquet")
    argv = [tmp_path / "answers.parquet", "--format", "census", "--privacy", "As stated."]
    code, text, _ = run(capsys, *argv, "--query", "age")
    assert code == 0 and "As stated." in text and "value: NoisyTable(2 cells by geocode, axis_0" in text
    table = ldp.NoisyTable.from_file(argv[0], format="census", query="age", privacy="As stated.")
    assert repr(table) in text and table.values.tolist() == [10, 20]
    code, _, err = run(capsys, *argv, "--query", "age", "--summary", "s.csv")
    assert code == 2 and "the format census has no --summary; its options are --query, --geocodes, --axes" in err
    code, _, err = run(capsys, *argv)
    assert code == 2 and "the format census needs --query" in err
    assert run(capsys, *argv, "--query", "age", "--geocodes", "01")[0] == 0  # a text, though it looks like a number
    assert "for geocodes '02'" in run(capsys, *argv, "--query", "age", "--geocodes", "02")[2]
    assert run(capsys, *argv, "--query", "age", "--geocodes", "01")[0] == 0  # a text, though it looks like a number
    assert "for geocodes '02'" in run(capsys, *argv, "--query", "age", "--geocodes", "02")[2]


def test_what_opendp_released_is_read_from_files(tmp_path, capsys):
    (tmp_path / "released.csv").write_text("town,len\n01,12\n02,0\n")
    (tmp_path / "summary.csv").write_text("column,aggregate,distribution,scale\nlen,Frame Length,Integer Laplace,2.0\n")
    argv = [tmp_path / "released.csv", "--format", "opendp", "--summary", tmp_path / "summary.csv"]
    code, text, _ = run(capsys, *argv, "--value", "len", "--keys", "town", "--signed", "false", "--sensitivity", 1)
    assert code == 0 and "len: NoisyTable(2 cells by town, Floored(" in text and "01" in text
    files = tmp_path / "released.csv", "len", "town"
    table = ldp.NoisyTable.from_file(*files, format="opendp", summary=argv[4], signed=False, sensitivity=1)
    assert repr(table) in text and table.keys["town"].tolist() == ["01", "02"]


def test_a_csv_file_is_a_table_in_python_as_on_the_command_line(counts, capsys):
    options = {"noise": "discrete_gaussian", "standard_deviation": "sd"}
    table = ldp.NoisyTable.from_file(counts, "n", ["state", "county"], **options)
    assert f"n: {table!r}" in run(capsys, counts, *PLAIN)[1]
    with pytest.raises(ValueError, match=r"a table must be a file whose name ends in .*\.csv.*, got counts.xyz"):
        ldp.NoisyTable.from_file("counts.xyz", "n", "state")
    code, _, err = run(capsys, counts, *PLAIN[2:])
    assert code == 2 and "--value: needed for a file of this format" in err


def test_a_format_of_ones_own_is_one_function(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(readers, "_FORMATS", dict(readers.formats()))

    @readers.reader("pairs", ".pairs")
    def read_pairs(path, keys, numbers, *, sign=1):
        pairs = [line.split("=") for line in path.read_text().split()]
        columns = {"word": [word for word, _ in pairs], "n": [sign * float(number) for _, number in pairs]}
        return readers.Contents(columns, {"value": "n", "keys": "word", "noise": "laplace", "scale": 2.0})

    (tmp_path / "a.pairs").write_text("x=1.5\ny=2.5\n")
    table = ldp.NoisyTable.from_file(tmp_path / "a.pairs", sign=-1, sensitivity=1.0)
    assert table.values.tolist() == [-1.5, -2.5]
    code, text, _ = run(capsys, tmp_path / "a.pairs", "--sign", -1, "--sensitivity", 1)
    assert code == 0 and repr(table) in text


@pytest.mark.slow
@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")
def test_shares_that_were_clamped_to_0_1_have_the_quantiles_of_quadrature(tmp_path, capsys):
    path, out = pathlib.Path(os.environ["LDPBAYES_DATA"]) / "broadband_ma.csv", tmp_path / "shares.csv"
    described = ["--keys", "POSTAL CODE", "--value", "BROADBAND USAGE", "--noise", "laplace", "--floor", 0, "--cap", 1]
    described += ["--margin", "ERROR RANGE (95%)(+/-)", "--margin-level", 0.95]
    code, _, err = run(capsys, path, *described)
    assert code == 2
    assert "reported as 1, has no proper posterior under a flat prior without bounds: give bounds (--between)" in err
    assert cli.main([*map(str, ["table", path, *described, "--between", "0,1", "--out", out])]) == 0
    with path.open() as file:
        columns = np.array([row[4:7:2] for row in csv.reader(file)][1:], float)
    with out.open() as file:
        drawn = np.array([row[5:] for row in csv.reader(file)][1:], float)
    assert np.count_nonzero(columns[:, 0] == 1) > 10
    grid = np.linspace(0, 1, 40001)
    middle = (grid[1:] + grid[:-1]) / 2
    outside = []
    for (z, margin), ends in zip(columns, drawn, strict=True):
        law = stats.laplace(scale=margin / np.log(20))  # of which 95 % is within the margin
        density = law.sf(1 - middle) if z == 1 else law.cdf(-middle) if z == 0 else law.pdf(z - middle)
        cdf = np.append(0, np.cumsum(density))
        outside.append(np.interp(ends, grid, cdf / cdf[-1]))
    # Of 1,000 draws each, the levels of quantiles have a standard error of 0.0069: 5 of them, 5e-7 an interval.
    np.testing.assert_allclose(outside, np.tile([0.05, 0.95], (len(columns), 1)), atol=5 * 0.0069)


@pytest.mark.parametrize("unpublished", ["7", "unknown"])
def test_cells_that_were_not_published_are_stated(unpublished, tmp_path, capsys):
    path = tmp_path / "part.csv"
    path.write_text("page,n\n" + "".join(f"{page},{90 + page % 3}\n" for page in range(60)))
    noise = ["--noise", "discrete_gaussian", "--scale", 10, "--threshold", 90, "--privacy", "As stated."]
    options = ["--value", "n", "--keys", "page", "--samples", 50, *noise]
    assert "no cell is withheld" in run(capsys, path, *options)[2]
    code, text, err = run(capsys, path, *options, "--unpublished", unpublished)
    assert (code, err) == (0, "") and ("7 not published" in text) == (unpublished == "7")
