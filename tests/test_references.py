"""Sources are cited by keys of docs/reference/references.md, and in no other way."""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCES = ROOT / "docs" / "reference" / "references.md"
KEY = r"\[((?:[A-Z][A-Za-z]*|xxHash)\d{0,2})\]"
CITED = re.compile(
    rf"(?<![\w\])]){KEY}(?:\((?:[./\w]*/)?references\.md\))?(?!\()"
)  # not an index as in x[N], nor another link
ENTRY = re.compile(rf"^\*\*{KEY}\*\* ", re.MULTILINE)
BY_YEAR = re.compile(r"\b[A-Z][\w-]+,? \(?(?:19|20)\d\d\b")


@functools.cache
def prose():
    """Docstrings (attributes' included) and comments of the package, its models and reproductions, by file."""
    found = {}
    for file in sorted(
        path for folder in ("ldpbayes", "models", "reproductions") for path in (ROOT / folder).rglob("*.py")
    ):
        source = file.read_text()
        statements = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
        texts = [node.value for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
        found[file.relative_to(ROOT).as_posix()] = "\n".join(texts)
    return found


def pages():
    return {
        file.relative_to(ROOT).as_posix(): file.read_text()
        for file in sorted((ROOT / "docs").rglob("*.md"))
        if file != REFERENCES
    }


def entries():
    return ENTRY.findall(REFERENCES.read_text())


def test_every_cited_key_has_one_entry():
    assert len(set(entries())) == len(entries())
    cited = {(file, key) for file, text in prose().items() for key in CITED.findall(text)}
    assert not {(file, key) for file, key in cited if key not in entries()}
    linked = {key for text in pages().values() for key in re.findall(rf"{KEY}\((?:[./\w]*/)?references\.md\)", text)}
    assert linked <= set(entries())


def test_every_entry_is_cited():
    text = "\n".join([*prose().values(), *pages().values()])
    assert not set(entries()) - set(CITED.findall(text))


def test_every_entry_has_a_link():
    parts = ENTRY.split(REFERENCES.read_text())[1:]
    assert not [key for key, text in zip(parts[::2], parts[1::2], strict=True) if "](https://" not in text]


def test_nothing_is_cited_otherwise():
    for word in ("errata", "erratum", "ibid"):
        assert not [file for file, text in prose().items() if word in text.lower()], word
    assert not {file: found for file, text in prose().items() if (found := BY_YEAR.findall(text))}
