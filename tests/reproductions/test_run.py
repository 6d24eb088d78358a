"""Verdicts of the report on the papers, and what becomes of exhibits that fail or have no data."""

import math

import numpy as np
import pytest
from scipy import stats

from reproductions import printed
from reproductions.exhibits import reason_of
from reproductions.run import EXHIBITS, PAPERS, Exhibit, main
from reproductions.verdicts import Estimate, allowed, claim, inside, number, order, share_band

PAPER = Estimate(0.5, 0.003)


def test_the_band_is_four_standard_errors_of_the_difference_and_half_a_unit():
    assert allowed(Estimate(1.0, 0.004), PAPER, 0.001) == pytest.approx(4 * 0.005 + 0.0005)
    # with few trials, Student's quantile that is as improbable
    few = allowed(Estimate(1.0, 0.004, 2), Estimate(0.5, 0.003, 9), 0.001)
    assert stats.t.sf((few - 0.0005) / 0.005, 11) == pytest.approx(stats.norm.sf(4.0))
    assert few > 1.3 * allowed(Estimate(1.0, 0.004), PAPER, 0.001)


@pytest.mark.parametrize(
    ("value", "rival", "verdict"),
    [
        (0.520, False, "reproduced"),
        (0.480, False, "reproduced"),
        (0.521, False, "differs"),
        (0.479, False, "differs"),  # the paper's own method is not better if it comes out lower
        (0.479, True, "better"),
        (0.481, True, "reproduced"),
        (0.521, True, "differs"),
    ],
)
def test_numbers_are_reproduced_in_the_band_and_only_methods_of_ours_are_better(value, rival, verdict):
    row = number("a", PAPER, Estimate(value, 0.004), 0.001, rival=rival, reason="known")
    assert row.verdict == verdict and row.paper == "0.500" and row.allowed.startswith("± 0.02")
    assert row.reason == ("known" if verdict == "differs" else "")
    assert ("ratio" in row.ours) == rival
    assert number("a", PAPER, Estimate(value, 0.004), 0.001, rival=rival).unexplained == (verdict == "differs")


def test_a_band_of_more_than_half_of_the_number_decides_nothing():
    for error, verdict in ((0.06, "reproduced"), (0.07, "undecided")):
        row = number("a", PAPER, Estimate(0.4, error), 0.001)
        assert row.verdict == verdict and not row.unexplained


def test_claims_without_a_number_are_counted_apart():
    assert claim("a", "0.95", "0.94", "0.9–1", True).verdict == "reproduced"
    assert claim("a", "0.95", "0.94", "0–1", True, decided=False).verdict == "undecided"
    assert order("a", "smaller", "1; 2", True).verdict == "no number"
    for row in (order("a", "smaller", "2; 1", False), claim("a", "0.95", "0.8", "0.9–1", False)):
        assert row.verdict == "differs" and row.unexplained
    assert not order("a", "smaller", "2; 1", False, reason="known").unexplained


def test_shares_are_in_their_binomial_band():
    low, high = share_band(400, 0.95)
    assert inside(low, 400, 0.95) and inside(high, 400, 0.95)
    assert not inside(low - 1 / 400, 400, 0.95) and not inside(high + 1 / 400, 400, 0.95)
    assert low == pytest.approx(0.95 - 4 * math.sqrt(0.95 * 0.05 / 400), abs=0.01)


def test_printed_figures_are_those_of_the_paper():
    assert printed.TABLE_1["abs_sin 1000 0.05 1.4"]["dr"] == [0.257] and len(printed.TABLE_1) == 12
    assert printed.TABLE_2["10000 1.0"]["sdr"].tolist() == [0.390, 0.387, 0.380, 0.386, 0.388, 0.388]
    assert printed.TABLE_3["7500 2.5"]["dr"].tolist() == [0.052, 0.301, 0.304, 0.300, 0.300, 0.303, 0.296]
    assert printed.overall(printed.TABLE_3["2500 2.0"]["oracle"]) == pytest.approx(0.0373, abs=1e-4)
    shapes = {f.shape for table in (printed.TABLE_2, printed.TABLE_3) for cell in table.values() for f in cell.values()}
    assert shapes == {(6,), (7,)} and len(printed.TABLE_2) == len(printed.TABLE_3) == 6


def test_reasons_are_found_by_their_words():
    assert "SL's criterion" in reason_of("abs_sin", "500", "0.1", "0.94", "sl")
    assert "λ = 1.2" in reason_of("relu", "500", "0.05", "1.4", "sl", "parameters")
    assert "±0.5" in reason_of("5000", "1.0", "naive", "bound", "methods")  # before the reason of these figures
    assert reason_of("relu", "500", "0.1", "0.94", "sl") == "" == reason_of("5000", "0.5", "combined")


def test_every_paper_has_exhibits_and_quick_settings_replace_full_ones():
    assert {exhibit.paper for exhibit in EXHIBITS} == set(PAPERS)
    assert len({(exhibit.paper, exhibit.name) for exhibit in EXHIBITS}) == len(EXHIBITS)


def made_up(paper, name, rows, **more):
    return Exhibit(paper, name, rows, {"size": 10}, {"size": 2}, **more)


def good(checkpoint, size):
    return [order(f"size {size}", "|x| smaller", f"1; 2, kept in {checkpoint(' part')}", True)]


def bad(checkpoint, size):
    raise FloatingPointError("no number\nat all")


def test_an_exhibit_that_fails_is_a_row_and_the_others_go_on(tmp_path, capsys):
    path = tmp_path / "report.md"
    failing = [made_up("LCQ", "Table 1", bad), made_up("LCQ", "Table 2", good), made_up("LH", "Table 1", good)]
    options = ["--quick", "--out", str(path), "--checkpoints", str(tmp_path / "kept")]
    assert main(options, failing) == 1
    text = path.read_text()
    assert "| Table 1 | all |  |  |  | failed | FloatingPointError: no number |" in text
    kept = tmp_path / "kept" / "LCQ_Table_2_quick_part.npz"
    assert rf"| Table 2 | size 2 | \|x\| smaller | 1; 2, kept in {kept} | the order | no number |  |" in text
    assert "| all | 0 | 0 | 2 | 0 | 0 | 0 | 1 |" in text
    assert "LH Table 1: 1 rows" in capsys.readouterr().err
    assert main(["LH"], failing) == 0
    assert "kept in None" in capsys.readouterr().out


def test_an_exhibit_without_its_data_is_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LDPBAYES_DATA", str(tmp_path))
    assert main([], [made_up("LH", "Table 4", bad, data="no.data")]) == 0
    assert "| Table 4 | all |  |  |  | skipped: no data |" in capsys.readouterr().out


@pytest.mark.parametrize(("reason", "code"), [("", 1), ("known", 0)])
def test_a_difference_needs_a_reason(reason, code):
    def different(checkpoint, size):
        return [number("a", PAPER, Estimate(np.float64(0.9), 0.01), 0.001, reason=reason)]

    assert main([], [made_up("FWS", "Figure 1", different)]) == code
