"""The house is built as it says: read from the source, without running it."""

import ast
import pathlib
import re

import ldpbayes

ROOT = pathlib.Path(ldpbayes.__file__).parent
MODELS = pathlib.Path(ldpbayes.models.__file__).parent
FLOORS = [
    {"_tracing", "_warnings", "_extras"},
    {"_checks", "_compiling", "_shown"},
    {"_pytree"},
    {"numerics"},
    {"privacy"},
    {"noise"},
    {"mechanisms"},
    {"data"},
    {"likelihood"},
    {"inference", "estimation"},
    {"bootstrap", "learning"},
    {"studies"},
    {"plots"},
    {"cli"},
]
"""From the ground up: a module imports from floors below its own, and from its own folder."""
FREE = {"__init__", "_compiled_code", "models"}
"""What is not on a floor: the face, a setting of JAX, and models, which a user could have written."""
NUMBERS = {"int", "float", "complex", "bool", "integer", "floating", "number", "Number", "Integral", "Real"}
MOST_LINES = 350


def sources():
    files = [(path.relative_to(ROOT), path) for path in sorted(ROOT.rglob("*.py"))]
    files += [(pathlib.Path("models", path.name), path) for path in sorted(MODELS.glob("*.py"))]
    return {str(name): (path.read_text(), ast.parse(path.read_text())) for name, path in dict(files).items()}


SOURCES = sources()


def floor_of(module):
    head = module.split(".")[0]
    return next((number for number, floor in enumerate(FLOORS) if head in floor), None)


def test_no_file_is_too_long():
    assert not {file for file, (text, _) in SOURCES.items() if len(text.splitlines()) > MOST_LINES}


def imported(tree):
    """Modules of the package that a file imports from, its own face as an empty name."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (name.removeprefix("ldpbayes").lstrip(".") for name in names if name.split(".")[0] == "ldpbayes")


def test_imports_run_downwards():
    wrong = []
    for file, (_, tree) in SOURCES.items():
        head = file.removesuffix(".py").split("/")[0]
        if head in FREE:
            continue
        own = floor_of(head)
        assert own is not None, f"{file} is on no floor"
        for name in imported(tree):
            if not name:  # the face has things from any floor, so only the top may ask it
                wrong += [f"{file} imports from the face"] if own < len(FLOORS) - 1 else []
            elif name.split(".")[0] not in FREE | {head} and floor_of(name) >= own:
                wrong.append(f"{file} imports {name}")
    assert not wrong


def named(tree, *kinds):
    """Names and attributes in an expression."""
    return {getattr(part, "id", getattr(part, "attr", None)) for part in ast.walk(tree) if isinstance(part, kinds)}


def test_nothing_is_decided_by_the_python_type_of_a_number():
    wrong = []
    for file, (_, tree) in SOURCES.items():
        for node in ast.walk(tree) if file != "_checks.py" else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                wrong += [f"{file}:{node.lineno}"] if named(node.args[1], ast.Name, ast.Attribute) & NUMBERS else []
    assert not wrong


def test_methods_are_not_told_apart_by_their_names():
    wrong = []
    for file, (_, tree) in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                method = {getattr(side, "id", getattr(side, "attr", None)) for side in sides} & {"method"}
                words = [part for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)]
                wrong += [f"{file}:{node.lineno}"] if method and any(isinstance(w.value, str) for w in words) else []
    assert not wrong


def test_modules_behind_a_face_are_private_and_none_is_shadowed_by_what_it_holds():
    public = {file for file in SOURCES if not pathlib.Path(file).stem.startswith("_")}
    assert public == {"inference/arviz_.py", "plots.py"}


def test_every_parameter_in_a_docstring_is_described():
    wrong = []
    for file, (_, tree) in SOURCES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            doc = "\n" + (ast.get_docstring(node) or "")
            section = re.search(r"\nParameters\n-+\n(.*?)(?=\n\w[\w ]*\n-+\n|\Z)", doc, flags=re.S)
            lines = [line for line in section.group(1).splitlines() if line.strip()] if section else []
            for line, following in zip(lines, [*lines[1:], ""], strict=False):
                if not line.startswith(" ") and not following.startswith(" "):
                    wrong.append(f"{file}: {node.name}: {line}")
    assert not wrong
