"""Notebooks run from their first cell to the last."""

import pathlib

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_run(path):
    nbformat = pytest.importorskip("nbformat", reason='notebooks need pip install ".[docs]"')
    nbclient = pytest.importorskip("nbclient", reason='notebooks need pip install ".[docs]"')
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600).execute()
