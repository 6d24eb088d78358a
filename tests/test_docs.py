"""The code blocks of README and docs run as they stand and print what is printed beside them; the site is whole."""

import contextlib
import doctest
import importlib
import inspect
import io
import os
import pathlib
import re
import subprocess
import sys
import warnings

import pytest

import ldpbayes
from ldpbayes.mechanisms import protocol as registry
from tests import test_house

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def code_blocks(page):
    """(line, code, output): Python blocks, with what the page shows as their output, or None."""
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    for number, block in enumerate(blocks):
        if block[1] == "python":
            following = next(iter(blocks[number + 1 :]), block)
            shows = following[1] in ("", "text") and not text[block.end() : following.start()].strip()
            yield text[: block.start()].count("\n") + 1, block[2], following[2] if shows else None


def words(output):
    """Output without its numbers, brackets and spaces: draws differ in their digits between machines and versions."""
    return re.sub(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?", "#", re.sub(r"[\[\]]", " ", output)).split()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(code_blocks(page))], ids=lambda page: page.stem)
def test_code_blocks_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch):
    if "LDPBAYES_DATA" in page.read_text() and "LDPBAYES_DATA" not in os.environ:
        pytest.skip("the page reads the data that LDPBAYES_DATA names")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))  # what a page registers is its own
    names = {"__name__": "__main__"}
    for line, code, output in code_blocks(page):
        with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("default")
            exec(compile("\n" * line + code, str(page), "exec"), names)
        if output is not None:  # the page shows the warnings of a block that prints nothing
            text = printed.getvalue() or "\n".join(f"{each.category.__name__}: {each.message}" for each in messages)
            assert words(text) == words(output), f"{page.name}, line {line}"


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_describes_every_public_name(tmp_path):
    pytest.importorskip("pydata_sphinx_theme", reason='the site needs pip install ".[docs]"')
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = {path.stem for path in (tmp_path / "docs/reference/api/objects").glob("*.html")}
    for path, names in test_house.faces().items():
        face = ".".join(["ldpbayes", *path.parts])
        if path.parts[:1] not in ((), ("cli",)) and not path.name.startswith("_"):
            values = {name for name in names if not inspect.ismodule(getattr(importlib.import_module(face), name))}
            assert not {name for name in values if not {f"{face}.{name}", f"ldpbayes.{name}"} & pages}, face


@pytest.mark.slow
@pytest.mark.parametrize("name", ldpbayes.__all__)
def test_examples_of_everyday_names_run(name):
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(recurse=False).find(getattr(ldpbayes, name), name, globs={"ldp": ldpbayes}):
        runner.run(example)
    assert not runner.failures
