"""The house is built as it says: read from the source, without running it."""

import ast
import importlib
import inspect
import pathlib
import re

import ldpbayes

ROOT = pathlib.Path(ldpbayes.__file__).parent
MODELS = pathlib.Path(ldpbayes.models.__file__).parent
TESTS = pathlib.Path(__file__).parent
FLOORS = [
    {"_core"},
    {"numerics"},
    {"privacy"},
    {"noise"},
    {"mechanisms"},
    {"laws"},
    {"data"},
    {"likelihood"},
    {"inference", "estimation"},
    {"bootstrap", "secure", "tables"},
    {"studies"},
    {"plots"},
    {"cli"},
]
"""From the ground up: a module imports from floors below its own, and from its own folder."""
FREE = {"__init__", "models"}
"""Not on a floor: the top level, and the models, which import faces only."""
ALIKE = {frozenset({"Release", "release"}), frozenset({"SmoothDensity", "smooth_density"})}
"""`ldpbayes.secure.release` makes a `Release`, `ldpbayes.models.smooth_density` is the model of a `SmoothDensity`."""
NUMBERS = {"int", "float", "complex", "bool", "integer", "floating", "number", "Number", "Integral", "Real"}
MOST_NAMES = 30  # at the top level


def sources():
    files = [(path.relative_to(ROOT), path) for path in sorted(ROOT.rglob("*.py"))]
    files += [(pathlib.Path("models", path.name), path) for path in sorted(MODELS.glob("*.py"))]
    return {str(name): (path.read_text(), ast.parse(path.read_text())) for name, path in dict(files).items()}


SOURCES = sources()


def floor_of(module):
    head = module.split(".")[0]
    return next((number for number, floor in enumerate(FLOORS) if head in floor), None)


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


def test_models_are_what_a_user_would_have_written():
    """They import public names of faces, and helpers of their own folder."""
    public = {".".join(["ldpbayes", *path.parts]): {*names} for path, names in faces().items()}
    wrong = []
    for file, (_, tree) in SOURCES.items():
        if file.split("/")[0] != "models":
            continue
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        for node in imports:
            module, names = node.module or "", {alias.name for alias in node.names}
            if module.startswith("ldpbayes") and not module.startswith("ldpbayes.models."):
                wrong += [f"{file} imports {module}.{name}" for name in names - public.get(module, set())]
        wrong += [
            f"{file} uses {name}"
            for name in imported(tree)
            if name.split(".")[-1].startswith("_") and not name.startswith("models.")
        ]
    assert not wrong


def named(tree, *kinds):
    """Names and attributes in an expression."""
    return {getattr(part, "id", getattr(part, "attr", None)) for part in ast.walk(tree) if isinstance(part, kinds)}


def test_nothing_is_decided_by_the_python_type_of_a_number():
    wrong = []
    for file, (_, tree) in SOURCES.items():
        for node in ast.walk(tree) if file != "_core/checks.py" else ():
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


def test_files_are_written_in_one_way():
    """`whole_file` of the archive opens a ``file``, to which others may write; nothing else opens or writes one."""
    to_a_file = {"savefig", "write_table", "savez", "savez_compressed", "savetxt", "dump", "to_csv"}
    wrong = []
    for file, (_, tree) in SOURCES.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", None))
            modes = [arg.value for arg in ast.walk(call) if isinstance(arg, ast.Constant) and name == "open"]
            writes = any(isinstance(mode, str) and set(mode) & set("wxa+") and len(mode) < 4 for mode in modes)
            writes |= name in ("write_text", "write_bytes") or (name == "to_netcdf" and bool(call.args))
            writes |= name in to_a_file and "file" not in named(call, ast.Name)
            wrong += [f"{file}:{ast.unparse(call)}"] if writes else []
    assert wrong == ["_core/archive.py:open(part, 'xb')"]


def modules_in_use(sources):
    """(importing file, folder and module that it imports), for every module that is not a face."""
    paths = {pathlib.PurePath(file).with_suffix("") for file in SOURCES}
    for file, (_, tree) in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ldpbayes":
                module = pathlib.PurePath(*node.module.split(".")[1:])
                for path in {module, *(module / alias.name for alias in node.names)} & paths:
                    yield file, path


def folder_of(path):
    return pathlib.PurePath(path).parts[0].strip("_")


def test_an_underscore_means_that_only_its_own_folder_imports_a_module():
    """The tests of a folder may import its modules; other tests, and the reproductions, are outside."""
    outside = {}
    for path in [*(TESTS.parent / "reproductions").rglob("*.py"), *TESTS.rglob("*.py")]:
        name = path.relative_to(TESTS if path.is_relative_to(TESTS) else TESTS.parent)
        outside[str(name)] = (path.read_text(), ast.parse(path.read_text()))
    uses = [*modules_in_use(SOURCES), *modules_in_use(outside)]
    uses = [(file, path) for file, path in uses if folder_of(file) != folder_of(path)]
    assert not [f"{file} imports {path}" for file, path in uses if path.name.startswith("_")]
    # A folder within a folder is a room of its own: what the rest of its folder imports of it has no underscore.
    shared = {path for _, path in uses}
    rooms = [(pathlib.PurePath(file).parent, path) for file, path in modules_in_use(SOURCES)]
    shared |= {path for room, path in rooms if room not in (path.parent, path)}
    modules = [pathlib.PurePath(file).with_suffix("") for file in SOURCES]
    modules = [path for path in modules if len(path.parts) > 1 and not path.name.startswith("_") and path not in shared]
    assert not [path for path in modules if path.parts[0] != "_core"]


def test_no_module_has_the_name_of_something_that_its_face_holds():
    for path, names in faces().items():
        modules = {pathlib.PurePath(file).stem for file in SOURCES if pathlib.PurePath(file).parent == path}
        face = importlib.import_module(".".join(["ldpbayes", *path.parts]))
        assert not {name for name in modules & set(names) if not inspect.ismodule(getattr(face, name))}, path


def faces():
    """Names in each `__all__`, by folder, or by module where that has one."""
    result = {}
    for file, (_, tree) in SOURCES.items():
        path = pathlib.PurePath(file)
        lists = [
            node.value for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.dump(node.targets[0])
        ]
        if lists or path.name == "__init__.py":
            place = path.parent if path.name == "__init__.py" else path.with_suffix("")
            result[place] = [item for each in lists for item in ast.literal_eval(each)]
    return result


def public_objects():
    """What the faces hold, by name; names of folders and modules left out."""
    found = {}
    for path, names in faces().items():
        face = importlib.import_module(".".join(["ldpbayes", *path.parts]))
        for name in names:
            if not inspect.ismodule(getattr(face, name)):
                found.setdefault(name, {})[id(getattr(face, name))] = getattr(face, name)
    return found


def test_the_top_level_is_short_and_no_public_name_stands_for_two_things():
    assert len(ldpbayes.__all__) <= MOST_NAMES
    objects = public_objects()
    assert not {name for name, values in objects.items() if len(values) > 1}
    spellings = {}
    for name in objects:
        spellings.setdefault(name.replace("_", "").lower(), set()).add(name)
    assert not {frozenset(names) for names in spellings.values() if len(names) > 1} - ALIKE


def test_classes_and_constants_have_names_of_their_own():
    """A name that stands in two modules would mean two things, in two units."""
    places = {}
    for file, (_, tree) in SOURCES.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            constants = {name for target in targets if target for name in named(target, ast.Name)}
            constants = {name for name in constants if re.fullmatch(r"_?[A-Z][A-Z0-9_]+", name)}
            for name in constants | ({node.name} if isinstance(node, ast.ClassDef) else set()):
                places.setdefault(name, set()).add(file)
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_what_a_face_exports_has_a_docstring():
    assert not {
        name for name, (value, *_) in ((n, [*v.values()]) for n, v in public_objects().items()) if not value.__doc__
    }


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


def docstrings(value):
    """The docstring of an object, with those of the classes of ours that it inherits from."""
    classes = value.__mro__ if inspect.isclass(value) else [value]
    return "\n".join(each.__doc__ or "" for each in classes if each.__module__.startswith("ldpbayes"))


def parameters(value):
    try:
        return {name for name in inspect.signature(value).parameters if not name.startswith("_")}
    except (TypeError, ValueError):  # without a signature, such as a table of constants
        return set()


def test_every_parameter_of_what_a_face_exports_is_described():
    values = {name: value for name, each in public_objects().items() for value in each.values()}
    values = {
        name: value for name, value in values.items() if not (inspect.isclass(value) and issubclass(value, Warning))
    }
    missing = {
        name: [each for each in parameters(value) if not re.search(rf"(?<!\w){each}(?!\w)", docstrings(value))]
        for name, value in values.items()
    }
    # NumPyro describes `validate_args`, which all its distributions take
    assert not {name: names for name, names in missing.items() if {*names} - {"validate_args"}}


def test_everyday_names_have_an_example():
    values = {name: getattr(ldpbayes, name) for name in ldpbayes.__all__}
    assert not {name for name, value in values.items() if not inspect.ismodule(value) and ">>> " not in value.__doc__}


def test_the_reference_has_every_face():
    page = (pathlib.Path(__file__).parents[1] / "docs" / "reference" / "api.md").read_text()
    listed = {line.strip() for line in page.splitlines() if line.strip().startswith("ldpbayes")}
    modules = {".".join(["ldpbayes", *path.parts]) for path, names in faces().items() if names}
    assert {name for name in modules if not re.search(r"\._|\.cli", name)} == listed
