"""Values recorded at an earlier version: however the code is reorganised, the same calls give the same numbers.

`cases.py` computes log densities with their gradients, estimates with their errors, replicates, guarantees and
designs, through public names alone; `values.json` holds what an earlier version gave, and the release files
beside it are ones that it wrote. A change that is not meant to alter any result must leave these tests as they are.
They do not say whether a result is right: other tests do. Where one was wrong and is corrected, its recorded value is
replaced.
"""

import json
import pathlib

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes import mechanisms
from tests.recorded import cases, slow

FOLDER = pathlib.Path(__file__).parent
RECORDED = json.loads((FOLDER / "values.json").read_text())
NUMBERS = RECORDED["numbers"]
CASES = sorted({key.rsplit(": ", 1)[0] for key in NUMBERS})
# Each is a relative and an absolute tolerance. Compilers may sum in another order: of a few hundred terms in double
# precision that changes 1e-13 of a sum, and up to 1e-9 of what is left where large terms cancel.
DENSITY, GRADIENT, GUARANTEE = (1e-8, 0.0), (1e-8, 1e-9), (1e-8, 1e-14)
# Minimisations end where a step changes the criterion by 1e-12 of it: the parameters are known to 1e-6.
ESTIMATE = (1e-6, 1e-9)
# The search for a half-width ends when its logarithm is known to 1e-5; rounding may change its steps.
SEARCH = (2e-5, 0.0)


def tolerance(key):
    if key.startswith("design, half width"):
        return SEARCH
    if key.startswith("guarantee"):
        return GUARANTEE
    if key.startswith(("density", "model")):
        return GRADIENT if ": gradient" in key else DENSITY
    return ESTIMATE


@pytest.mark.parametrize("case", slow.marked(CASES, slow.CASES))
def test_numbers_are_those_recorded(case):
    found = cases.compute(case)
    assert found.keys() == {key for key in NUMBERS if key.rsplit(": ", 1)[0] == case}
    for key, numbers in found.items():
        relative, absolute = tolerance(key)
        np.testing.assert_allclose(numbers, NUMBERS[key], rtol=relative, atol=absolute, err_msg=key)


def test_slow_cases_are_recorded():
    assert slow.names(slow.CASES) <= set(CASES)


def test_statements_are_those_recorded():
    assert cases.statements() == RECORDED["statements"]


def test_specs_are_those_recorded_and_make_the_mechanisms_again():
    specs = cases.specs()
    assert specs == RECORDED["specs"]
    for recorded in RECORDED["specs"].values():
        mechanism = mechanisms.mechanism_from_spec(recorded["spec"])
        assert mechanism.spec() == recorded["spec"] and repr(mechanism) == recorded["repr"]


MECHANISMS = {
    "laplace.npz": ldp.LaplaceMechanism(1.5, -2.0, 3.0),
    "laplace.parquet": ldp.LaplaceMechanism(1.5, -2.0, 3.0),
    "rows.npz": mechanisms.ZeroInflatedLaplaceMechanism(
        0.25, 0.835, 0.0, [1.0, 2.0], columns=("age", "income", "ill"), perturbed=("age", "income")
    ),
    "unary.npz": ldp.OptimalUnaryEncoding(1.0, 5),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_release_files_of_an_earlier_version_are_read(name, tmp_path):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    recorded = RECORDED["files"][name]
    written_now = tmp_path / name
    ldp.Release.load(FOLDER / name).save(written_now)
    for path in (FOLDER / name, written_now):
        release = ldp.Release.load(path)
        assert release.mechanism == MECHANISMS[name] and len(release) == 20
        assert release.values.dtype == recorded["dtype"]
        np.testing.assert_array_equal(release.values, recorded["values"])
