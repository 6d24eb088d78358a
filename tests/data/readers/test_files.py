"""Columns as offices publish them: each is read with the option that says what it is, or refused with this option."""

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes.cli import main
from ldpbayes.data.readers.files import CsvFile, FileError

MARKS = "zip,n,sd\n01001,120,10\n01002,<20,10\n02139,*,10\n02140,Suppressed,10\n"
GAPS = "zip,n,sd\n01001,120,10\n01002,NA,10\n01003,nan,10\n01004,-,10\n01005,,10\n"
THOUSANDS = 'zip,n,sd\n01001,"1,204",10\n01002,57,10\n01003,"-1,204,000.5",10\n'
COMMENTS = "# DP release, eps=1\nzip,n,sd\n01001,120,10\n# a note\n01002,57,10\n# the end\n"
NAN = np.nan
READ = {  # text, options, values, and what is reported of the cells
    "plain": ("\ufeffzip,n,sd\n01001,120,10\n01002,57,10\n", {}, [120, 57], None),
    "marks": (MARKS, {"withheld": ["<20", "*", "Suppressed"]}, [120, NAN, NAN, NAN], {"withheld": 3}),
    "one mark": (GAPS, {"withheld": "-"}, [120, NAN, NAN, NAN, NAN], {"withheld": 1}),
    "thousands": (THOUSANDS, {"thousands": ","}, [1204, 57, -1204000.5], {"thousands": 2}),
    "points": (
        "zip;n;sd\n01001;1.204,5;10,0\n01002;57,0;10\n",
        {"thousands": ".", "decimal": ","},
        [1204.5, 57],
        {"thousands": 1, "decimal": 3},
    ),
    "percent": ("zip,n,sd\n01001,12%,1%\n01002,57.5%,1%\n", {"percent": True}, [0.12, 0.575], {"percent": 4}),
    "comments": (COMMENTS, {"comment": "#"}, [120, 57], None),
    "Latin": ("zip,n,sd\nK\u00f6ln,120,10\n", {"encoding": "latin-1"}, [120], None),
}
REFUSED = {  # text, options, and what is said
    "mark": (
        MARKS,
        {},
        "line 3: column 'n' holds '<20', .* marks a withheld value, give withheld='<20' .--withheld '<2",
    ),
    "another mark": (MARKS, {"withheld": "<20"}, "line 4: column 'n' holds '\\*', .* withheld='\\*' .--withheld '\\*'"),
    "thousands": (
        THOUSANDS,
        {},
        "line 2: column 'n' holds '1,204', .* if it is one, give thousands=',' .--thousands ,",
    ),
    "groups": ("zip,n,sd\n1,1.20.400,1\n", {"thousands": ".", "decimal": ","}, "line 2: column 'n' holds '1.20.400'"),
    "comma": ("zip;n;sd\n1;120,5;1\n", {}, "line 2: column 'n' holds '120,5', .* give decimal=',' .--decimal ,.$"),
    "point": ("zip;n;sd\n1;120.5;1\n", {"decimal": ","}, "line 2: column 'n' holds '120.5', which is not a number"),
    "percent": ("zip,n,sd\n1,12%,1%\n", {}, "line 2: column 'n' holds '12%', .* give percent=True .--percent true.$"),
    "comment": (COMMENTS, {}, "no column 'zip'; its .*; to leave out lines with comments, give comment='#' .--comment"),
    "line": (COMMENTS.replace("57", "x"), {"comment": "#"}, "line 5: column 'n' holds 'x'"),
    "Latin": (
        "zip,n,sd\nK\u00f6ln,120,10\n",
        {},
        "is not text in UTF-8, line 2: .* give encoding='latin-1' .--encoding",
    ),
    "encoding": ("zip,n,sd\n1,2,3\n", {"encoding": "latin-77"}, "unknown encoding: latin-77"),
    "width": ("# eps=1\nzip,n,sd\n1,2,3\n", {}, "give comment='#'"),
}


def written(folder, text):
    path = folder / "table.csv"
    path.write_bytes(text.encode("latin-1" if "\u00f6" in text else "utf-8"))
    return path


def from_file(path, options):
    return ldp.NoisyTable.from_file(path, "n", "zip", noise="gaussian", standard_deviation="sd", **options)


@pytest.mark.parametrize(("text", "options", "values", "cells"), READ.values(), ids=READ)
def test_a_published_column_is_read_as_it_is_meant(text, options, values, cells, tmp_path, capsys):
    path = written(tmp_path, text)
    table = from_file(path, options)
    np.testing.assert_allclose(table.values, values, rtol=1e-15)
    assert (table.about or {}).get("cells") == cells and table.keys["zip"][0] in ("01001", "K\u00f6ln")
    assert table[:1].about == table.about
    typed = {
        name: ",".join([value] if isinstance(value, str) else value)
        for name, value in options.items()
        if value is not True
    }
    typed = typed | ({"percent": "true"} if "percent" in options else {})
    spread = [f"--{name}={value}" for name, value in typed.items()]
    described = ["--value", "n", "--keys", "zip", "--noise", "gaussian", "--standard-deviation", "sd"]
    assert main(["table", str(path), *described, "--samples", "2", *spread]) == 0
    assert repr(table) in capsys.readouterr().out


@pytest.mark.parametrize(("text", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_a_cell_that_is_no_number_is_refused_with_the_option_that_reads_it(text, options, message, tmp_path):
    with pytest.raises(FileError, match=message):
        from_file(written(tmp_path, text), options)


def test_private_records_are_not_quoted(tmp_path):
    with pytest.raises(FileError, match=r"is not text in UTF-8$"):
        CsvFile(written(tmp_path, "zip\nK\u00f6ln\n"), private=True)
