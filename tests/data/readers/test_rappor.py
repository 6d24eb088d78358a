"""RAPPOR's files: the layout of its example, and messages with line and column."""

import os
import pathlib

import numpy as np
import pytest
from scipy import optimize

import ldpbayes as ldp
from ldpbayes.data import read_rappor
from ldpbayes.data.readers.files import FileError

PARAMS = '"k","h","m","p","q","f"\n4,2,2,0.5,0.75,0\n'
MAP = '"home",1,2,5,8\n"work",3,4,6,\n"gone",1,3,6,7\n'
COUNTS = "1000,600,610,550,505\n900,510,500,520,480\n"


@pytest.fixture
def files(tmp_path):
    def write(counts=COUNTS, map=MAP, params=PARAMS):
        paths = [tmp_path / f"{name}.csv" for name in ("counts", "map", "params")]
        for path, text in zip(paths, (counts, map, params), strict=True):
            path.write_text(text)
        return paths

    return write


def test_the_files_are_read_with_their_names_and_bits(files):
    paths = files()
    counts = ldp.data.open("rappor", paths[0], map=paths[1], params=paths[2])
    mechanism = counts.mechanism
    expected = [[[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], [[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0]]]
    np.testing.assert_array_equal(mechanism.bits, expected)
    np.testing.assert_array_equal(counts.sums[1], [510, 500, 520, 480])
    assert (mechanism.hashes, mechanism.p, mechanism.q, mechanism.f, mechanism.rest) == (2, 0.5, 0.75, 0.0, True)
    assert ldp.frequencies(counts).names == ["home", "work", "gone", "(unlisted)"]
    assert ldp.frequencies(read_rappor(*files(), rest=False)).names == ["home", "work", "gone"]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"params": "k,h,m,p,q\n4,2,2,0.5,0.75\n"}, "params.csv has no column 'f'"),
        (
            {"params": PARAMS.replace("0.5", "half")},
            "params.csv, line 2: column 'p' holds 'half', which is not a number",
        ),
        ({"params": PARAMS.replace("4,", "4.5,")}, "params.csv, line 2: column 'k' holds 4.5, which is not a whole"),
        ({"params": PARAMS.replace("0.5", "0.8")}, "p must be a number below q"),
        ({"params": PARAMS.replace(",2,2,", ",2,3,")}, "counts.csv has 2 rows of 5 numbers, but"),
        ({"params": PARAMS.replace(",2,2,", ",1,2,")}, "map.csv, line 1: 2 bits in cohort 1, but"),
        ({"counts": COUNTS.replace(",505", "")}, "counts.csv, line 2: the line has 5 cells, but 4"),
        (
            {"counts": COUNTS.replace("610", "1610")},
            "counts.csv, line 1, column 3: 1610 is not a whole number from 0 to",
        ),
        (
            {"counts": COUNTS.replace("520", "many")},
            "counts.csv, line 2: column 'x[3]' holds 'many', which is not a number",
        ),
        ({"counts": ""}, "counts.csv: the first line must be"),
        ({"map": "\n"}, "map.csv has no candidates"),
        ({"params": PARAMS + "4,2,2,0.5,0.75,0.1\n"}, "params.csv, line 3: a second row of parameters"),
        ({"map": MAP.replace("8", "9")}, "map.csv, line 1, column 5: '9' is not a bit from 1 to 8 (2 cohorts of 4"),
        ({"map": MAP.replace(",6,\n", ",x,\n")}, "map.csv, line 2, column 4: 'x' is not a bit from 1 to 8"),
        ({"map": MAP.replace("3,4,6,", "3,4,,")}, "map.csv, line 2: 0 bits in cohort 2, but a candidate has 1 to 2"),
        ({"map": MAP + "home,1,2,5,7\n"}, "map.csv: the candidates in lines 1 and 4 have the same word"),
        ({"map": MAP + "other,2,1,8,5\n"}, "map.csv: the candidates in lines 1 and 4 have the same bits"),
    ],
)
def test_what_does_not_fit_is_said_with_line_and_column(files, changed, problem):
    with pytest.raises(ValueError) as error:
        read_rappor(*files(**changed))
    assert problem in str(error.value)


def test_a_missing_file_is_named(files, tmp_path):
    with pytest.raises(FileError, match=r"no file .*other\.csv"):
        read_rappor(*files()[:2], tmp_path / "other.csv")


@pytest.mark.slow
@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with rappor")
def test_the_five_largest_candidates_of_rappors_example_are_those_of_non_negative_least_squares():
    folder = pathlib.Path(os.environ["LDPBAYES_DATA"]) / "rappor"
    counts = read_rappor(*(folder / f"{name}.csv" for name in ("counts", "map", "params")))
    estimate = ldp.frequencies(counts)
    posterior = ldp.estimation.sparse_posterior(estimate)
    table = np.loadtxt(folder / "counts.csv", delimiter=",")
    design = np.zeros((8 * 128, 300))
    for column, line in enumerate((folder / "map.csv").read_text().splitlines()):
        design[[int(cell) - 1 for cell in line.split(",")[1:] if cell], column] = 1
    reference = optimize.nnls(design, ((table[:, 1:] / table[:, :1] - 0.5) / 0.25).ravel())[0]
    largest = np.argsort(-estimate.params)[:5]
    assert largest.tolist() == np.argsort(-reference)[:5].tolist() == [0, 1, 2, 3, 4]
    difference = estimate.params[:300] - reference
    assert np.all(np.abs(difference[largest]) < estimate.standard_error[largest])
    assert np.max(np.abs(difference)) < 4 * np.max(estimate.standard_error[:300])
    assert np.argsort(-posterior.params)[:5].tolist() == [0, 1, 2, 3, 4]
    assert np.all(np.abs(posterior.params[:5] - reference[:5]) < 2 * posterior.standard_error[:5])
    assert {*range(5)} <= {*posterior.discoveries(fdr=0.05)}
    assert estimate.names[:5] == ["V_1", "V_2", "V_3", "V_4", "V_5"]
