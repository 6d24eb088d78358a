"""Progress of a fit, also where stderr is a file."""

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes.inference import chains as _bar
from ldpbayes.inference._sampled import FASTER, _faster
from ldpbayes.inference.density import Density


@pytest.fixture
def clock(monkeypatch):
    """Seconds, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr(_bar.time, "monotonic", lambda: now[0])
    return now


def lines(bar, clock, seconds, per_second, each=5):
    """Show a bar every few seconds while so many iterations are made in each."""
    for _ in range(0, seconds, each):
        clock[0] += each
        bar.add(each * per_second, 3 * each * per_second, 0.02 * each * per_second)
        bar.show()


def test_a_file_has_a_line_now_and_then_and_early_how_long_it_takes(clock, capsys):
    bar = _bar.Bar(8000, True, faster="A sketch is faster.")
    clock[0] += 10
    bar.show()
    lines(bar, clock, seconds=600, per_second=5)
    bar.close()
    assert capsys.readouterr().err.splitlines() == [
        "sampling: 0 of 8,000 after 10 s, compiling",
        # 25 iterations in 5 s, and 50 when this is said: 7,950 others at five a second
        "ldpbayes: sampling may take another 26 minutes. A gradient takes 6.67 ms. A sketch is faster.",
        "sampling: 50 of 8,000 after 20 s, about 26 min left",
        "sampling: 150 of 8,000 after 40 s, about 26 min left",
        "sampling: 350 of 8,000 after 80 s, about 26 min left",
        "sampling: 750 of 8,000 after 3 min, about 24 min left",
        "sampling: 1,550 of 8,000 after 5 min, about 22 min left",
    ]


def test_a_short_fit_says_nothing_to_a_file_and_one_without_a_bar_never_does(clock, capsys):
    short, hidden = _bar.Bar(400, True, faster="..."), _bar.Bar(8000, False, faster="...")
    lines(short, clock, seconds=5, per_second=80)
    short.close()
    lines(hidden, clock, seconds=600, per_second=5)
    hidden.close()
    assert capsys.readouterr().err == ""


def test_a_study_counts_replicates_and_is_not_told_that_it_takes_long(clock, capsys):
    study = _bar.Bar(100, True, 2000, desc="study", unit=" replicates", initial=10)
    lines(study, clock, seconds=20, per_second=2000)
    # 5 replicates a step: 20 after 10 s, of which 15 were there when the rate was first measured, and 30 after 20 s
    assert capsys.readouterr().err.splitlines() == [
        "study: 20 of 100 after 10 s, about 80 s left",
        "study: 30 of 100 after 20 s, about 70 s left",
    ]


def test_a_sketch_is_advised_where_there_is_one():
    numbers, answers = ldp.LaplaceMechanism(1.0, 0, 1), ldp.RandomizedResponse(np.array([1.0, 2.0]))
    rows = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.5, 0, 1, 2)
    for mechanism, value, advice in [
        (numbers, 0.5, FASTER),
        (ldp.LaplaceMechanism(np.array([1.0, 2.0]), 0, 1), 0.5, ""),
        (answers, 1, FASTER),
        (rows, [0.5, 0.5], ""),
    ]:
        release = ldp.Release(np.array([value, value]), mechanism)
        assert _faster(Density(None, (release,), {})) == advice
        if advice:
            assert release.sketch().size == 2
            assert _faster(Density(None, (release.sketch(),), {})) == ""
