"""The command `table` for published layouts: what they state need not be typed, and what they lack is asked for."""

import csv
import json

import pytest

from ldpbayes import cli

SHARES = """ST,COUNTY NAME,COUNTY ID,POSTAL CODE,BROADBAND USAGE,ERROR RANGE (MAE)(+/-),ERROR RANGE (95%)(+/-),MSD
SC,Abbeville,45001,29639,0.448,0.034,0.11,0.002
SC,Abbeville,45001,29620,0.398,0.002,0.007,0
"""
PAGE = "Iceland\tIS\tis.wikipedia\t111\tReykjavík\tQ1764\t205\n"
PAGES = PAGE + PAGE.replace("111", "222") + PAGE.replace("IS", "BD").replace("205", "780")


def run(capsys, *argv):
    code = cli.main(["table", *map(str, argv)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def test_a_layout_states_columns_noise_rules_and_promise(tmp_path, capsys):
    path, out = tmp_path / "2024-03-01.tsv", tmp_path / "out.csv"
    path.write_text(PAGES, encoding="utf-8")
    only = json.dumps({"country_code": "IS"})
    argv = path, "--layout", "wikimedia-pageviews", "--only", only, "--samples", 9, "--out", out
    code, text, err = run(capsys, *argv)
    assert (code, err) == (0, "") and "DiscreteGaussian(scale=18.227" in text and "threshold=90.0" in text
    assert "Wikimedia: zCDP" in text
    with out.open() as file:
        assert [(row["page_id"], row["value"]) for row in csv.DictReader(file)] == [("111", "205.0"), ("222", "205.0")]


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("b.csv", SHARES.replace("USAGE", "USE"), ["us-broadband"], "b.csv has no column 'BROADBAND USAGE'"),
        (
            "b.csv",
            SHARES.replace("0.398", "0.3.98"),
            ["us-broadband"],
            "line 3: column 'BROADBAND USAGE' holds '0.3.98'",
        ),
        ("views.tsv", PAGES, ["wikimedia-pageviews"], "--date must be a day from 2015-07-01 on"),
        ("2024-03-01.tsv", PAGES, ["wikimedia-pageviews", "--only", "IS"], "--only must be labels by column"),
        ("2024-03-01.tsv", PAGES, ["wikimedia-pageviews", "--epsilon", "1"], "has no --epsilon"),
        ("s.json", "{}", ["chrome-summary-report"], "needs --epsilon"),
    ],
)
def test_files_and_options_that_do_not_fit_a_layout_are_refused(tmp_path, capsys, name, text, options, message):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    code, _, err = run(capsys, path, "--layout", *options)
    assert code == 2 and message in err and err.count("\n") == 1
