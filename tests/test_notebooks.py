"""Notebooks run from their first cell to the last."""

import json
import pathlib

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def outputs_of(cells):
    """Outputs of the code, without what libraries say on the side."""
    outputs = [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]
    return [output for output in outputs if output.get("name") != "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_are_kept_as_they_ran_from_the_first_cell_to_the_last(path):
    cells = json.loads(path.read_text())["cells"]
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert all(output["output_type"] != "error" for output in outputs_of(cells))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_run(path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # pictures are shown in a notebook
    nbformat = pytest.importorskip("nbformat", reason='notebooks need pip install ".[docs]"')
    nbclient = pytest.importorskip("nbclient", reason='notebooks need pip install ".[docs]"')
    notebook = nbformat.read(path, as_version=4)
    kept = [output["output_type"] for output in outputs_of(notebook.cells)]
    nbclient.NotebookClient(notebook, timeout=600).execute()
    assert [output["output_type"] for output in outputs_of(notebook.cells)] == kept
