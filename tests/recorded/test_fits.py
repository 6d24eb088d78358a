"""Values recorded at an earlier version: sketches, expansions, random draws, short fits and the command line.

`fits.py` computes them, `fits.json` holds them and `record.py` writes them. As in
`test_cases.py`, a change that is not meant to alter any result must leave these tests as they are, and whether a
result is right is for other tests to say.
"""

import json
import pathlib

import pytest

from tests.recorded import fits, slow

FOLDER = pathlib.Path(__file__).parent
RECORDED = json.loads((FOLDER / "fits.json").read_text())
# Relative and absolute tolerances by group. Whole numbers, texts and lists' lengths are compared exactly.
TOLERANCES = {
    # sums of some hundred terms of size 1 to 1000, in double precision; weights that are differences of such sums
    "sketch": (1e-9, 1e-9),
    # a mode that a search finds to a fraction of a standard deviation: its last step amplifies rounding
    "expansion": (1e-6, 1e-7),
    "noise": (1e-9, 0.0),
    "randomize": (1e-9, 0.0),
    # rounding grows with each step of a trajectory: with other options of XLA the draws differ by up to 1e-11
    "fit": (1e-6, 1e-7),
    "cli": (1e-6, 1e-9),  # of tables that are written: what an optimiser finds; texts are compared exactly
}
SINGLE = (2e-5, 1e-6)  # single precision rounds to 6e-8, and noise is a difference or quotient of what is rounded


def differences(found, recorded, tolerance, where=""):
    """Where two values differ: descriptions, none if they agree."""
    if isinstance(recorded, dict) and isinstance(found, dict) and found.keys() == recorded.keys():
        pairs = [(found[key], recorded[key], f"{where}/{key}") for key in recorded]
    elif isinstance(recorded, list) and isinstance(found, list) and len(found) == len(recorded):
        pairs = [(*both, f"{where}[{i}]") for i, both in enumerate(zip(found, recorded, strict=True))]
    else:
        both_floats = type(found) is type(recorded) is float
        return [] if both_floats and close(found, recorded, tolerance) else unequal(found, recorded, where)
    return [line for one, other, place in pairs for line in differences(one, other, tolerance, place)]


def close(found, recorded, tolerance):
    relative, absolute = tolerance
    return found == recorded or abs(found - recorded) <= absolute + relative * abs(recorded)


def unequal(found, recorded, where):
    return [] if type(found) is type(recorded) and found == recorded else [f"{where}: {found!r}, not {recorded!r}"]


def differing(case, found):
    group = case.split(", ")[0]
    tolerance = TOLERANCES[group]
    if case.endswith("single precision"):
        return differences(found, RECORDED[case], SINGLE)
    if group == "noise":
        kinds = {"float32": SINGLE, "float64": tolerance}
        parts = [(found[kind], RECORDED[case][kind], kinds[kind]) for kind in found]
        names = differences(sorted(found), sorted(RECORDED[case]), tolerance)
        return names + [line for part in parts for line in differences(*part)]
    return differences(found, RECORDED[case], tolerance)


DRAWS = [case for case in RECORDED if case.startswith(("noise", "randomize")) and case not in slow.names(slow.FITS)]


@pytest.mark.parametrize("case", slow.marked([case for case in RECORDED if case not in DRAWS], slow.FITS))
@pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")
def test_values_are_those_recorded(case):
    assert differing(case, fits.compute(case)) == []


def test_draws_are_those_recorded():
    found = fits.drawn(DRAWS)
    assert {case: lines for case in DRAWS if (lines := differing(case, found[case]))} == {}


def test_every_case_is_recorded():
    assert sorted(fits.cases()) == sorted(RECORDED)
    assert slow.names(slow.FITS) <= set(RECORDED)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1.0, 1.00001),
        (1, 2),
        (1, 1.0),
        (True, 1),
        ("a", "b"),
        ([1.0], [1.0, 2.0]),
        ({"a": 1.0}, {"b": 1.0}),
        ([[0.5, [1.0]]], [[0.5, [1.1]]]),
        (None, 0.0),
        (1.0, float("nan")),
    ],
)
def test_values_that_differ_are_seen(value, other):
    assert differences(value, other, (1e-6, 1e-7)) and differences(other, value, (1e-6, 1e-7))
    assert differences(value, value, (1e-6, 1e-7)) == []
