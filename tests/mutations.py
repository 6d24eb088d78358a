"""Does the default suite notice when the package is wrong? Mutations of it, drawn at random, and the tests that fail.

    python tests/mutations.py draw             # draws them again, into mutations.json
    python tests/mutations.py run [NUMBER ...] # the first test that fails with each, if one does

A mutation is a small wrong change at a random place: one of eight kinds, the folders in turn. Those recorded are never
drawn again to suit the tests; one that a later version of the package no longer has is reported. `run` tries the tests
of the mutation's own folder first, so most are found early; a survivor has passed the whole default suite.
"""

import ast
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = pathlib.Path(__file__).with_suffix(".json")
SEED, NUMBER = 62, 20
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
SCALES = {"scale", "sd", "sigma", "std", "spread", "variance", "width", "steps"}
SILENT = ("warn", "TypeVar", "isinstance", "print")
ROOT_OF_TWO = ast.parse("2**0.5", mode="eval").body


def _numbers(node):
    """Whether an operand may be a number: sums of texts and lists are left alone."""
    return not any(isinstance(part, (ast.JoinedStr, ast.List, ast.Tuple)) for part in ast.walk(node)) and not any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node)
    )


def changes(node):
    """The mutations of one node of the syntax tree, as (kind, what stands in its place)."""
    if isinstance(node, ast.BinOp) and _numbers(node):
        if type(node.op) in SWAPPED:
            yield "sign", ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):  # a Jacobian, a mass at a bound, a constant of a density
            yield "dropped term", node.left
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield "sign", node.operand
    if isinstance(node, ast.Call):
        plain = len(node.args) == 2 and not any(isinstance(argument, ast.Starred) for argument in node.args)
        if plain and ast.unparse(node.func).endswith(("logaddexp", "maximum", "minimum", "max", "min")):
            yield "dropped term", node.args[0]
        elif plain and len(set(map(ast.unparse, node.args))) == 2 and all(map(_numbers, node.args)):
            yield "swapped arguments", ast.Call(node.func, node.args[::-1], node.keywords)
    read = isinstance(getattr(node, "ctx", None), ast.Load)
    if read and getattr(node, "id", getattr(node, "attr", None)) in SCALES:
        yield "scale", ast.BinOp(node, ast.Mult(), ROOT_OF_TWO)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        yield "comparison", ast.Compare(node.left, [COMPARED[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.IfExp):
        yield "condition", ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    parts = node.elts if read and isinstance(node, (ast.List, ast.Tuple)) else []
    if len(parts) >= 2 and any(isinstance(part, ast.Starred) for part in parts):  # a statement without a release
        yield "dropped part", type(node)(node.elts[:-1], node.ctx)
    index = node.slice.value if read and isinstance(getattr(node, "slice", None), ast.Constant) else None
    if index in (0, 1):  # of two keys, bounds or halves the other
        yield "other element", ast.Subscript(node.value, ast.Constant(1 - index), node.ctx)


def _left_alone(tree):
    """Nodes that say nothing about results: annotations, decorators, messages of errors, warnings and printing."""
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            parts = [node.returns, *node.decorator_list, *(each.annotation for each in every if each)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(SILENT)):
            parts = [node]
        for part in filter(None, parts):
            yield from ast.walk(part)


def sites(path):
    """Every mutation of a file: kind, where it begins and ends, and the new text."""
    text = path.read_text()
    tree = ast.parse(text)
    skipped = {id(node) for node in _left_alone(tree)}
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for kind, new in changes(node):
            old = ast.get_source_segment(text, node)
            lines = text.splitlines()[: node.lineno - 1]
            start = len("\n".join(lines).encode()) + bool(lines) + node.col_offset
            before = text.encode()[:start].decode().count(old)
            yield {
                "kind": kind,
                "file": str(path.relative_to(ROOT)),
                "line": node.lineno,
                "old": old,
                "nth": before,  # how often that text stands in the file before it
                "new": f"({ast.unparse(ast.fix_missing_locations(new))})",
            }


def draw():
    """`NUMBER` mutations: the folders in turn, in each a kind that came least often so far, then a place of it."""
    generator = random.Random(SEED)
    folders = sorted({path.parent for path in [*ROOT.glob("ldpbayes/**/*.py"), *ROOT.glob("models/*.py")]})
    order = generator.sample(folders, len(folders))
    used: dict[str, int] = {}
    drawn = []
    for folder in (order * 2)[:NUMBER]:
        found = [site for path in sorted(folder.glob("*.py")) for site in sites(path)]
        kinds = sorted({site["kind"] for site in found})
        kind = min(kinds, key=lambda kind: (used.get(kind, 0), generator.random()))
        used[kind] = used.get(kind, 0) + 1
        drawn.append(generator.choice([site for site in found if site["kind"] == kind and site not in drawn]))
    return drawn


def mutated(text, mutation):
    """The file's text with the mutation; a `LookupError` where its place is gone."""
    at = -1
    for _ in range(mutation["nth"] + 1):
        at = text.find(mutation["old"], at + 1 if at < 0 else at + len(mutation["old"]))
        if at < 0:
            raise LookupError(f"{mutation['file']} has no such text any more: {mutation['old']}")
    return text[:at] + mutation["new"] + text[at + len(mutation["old"]) :]


def own_tests(mutation):
    """The folder of tests that mirrors the mutated file's, where there is one."""
    folder = pathlib.Path(mutation["file"]).parts[-2]
    own = {"_core": "core", "closed_forms": "likelihood"}.get(folder, folder)
    return f"tests/{own}" if (ROOT / "tests" / own).is_dir() else "tests"


def failure(mutation, tests):
    """The first of some tests that fails with a mutation, or None."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch, "ldpbayes")  # laid out as if it were installed, before what is
        shutil.copytree(ROOT / "ldpbayes", copy)
        shutil.copytree(ROOT / "models", copy / "models")
        path = pathlib.Path(scratch, "ldpbayes" if mutation["file"].startswith("models") else "", mutation["file"])
        path.write_text(mutated(path.read_text(), mutation))
        ways = os.pathsep.join([scratch, str(ROOT)])
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-o", f"pythonpath={scratch}", tests],  # before the root
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": ways, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
        )
    if run.returncode == 0:
        return None
    named = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "ImportError"))]
    if not named and run.returncode not in (1, 2):  # no test ran: nothing was caught
        raise RuntimeError((run.stdout + run.stderr).strip()[-1000:])
    return named[0].split(" - ")[0] if named else (run.stdout + run.stderr).strip()[-300:]


def main(command, *numbers):
    if command == "draw":
        RECORD.write_text(json.dumps(draw(), indent=1, ensure_ascii=False) + "\n")
        return
    drawn = json.loads(RECORD.read_text())
    for number in map(int, numbers or range(len(drawn))):
        mutation = drawn[number]
        try:
            caught = failure(mutation, own_tests(mutation)) or failure(mutation, "tests")
        except LookupError as gone:
            caught = str(gone)
        place = f"{mutation['file']}:{mutation['line']} {mutation['kind']}"
        print(f"{number:2} {place}: {mutation['old']} -> {mutation['new']}\n     {caught or 'SURVIVED'}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
