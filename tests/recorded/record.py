"""Writes recorded values: ``python -m tests.recorded.record "bootstrap" "fit, panels"``.

The values of all cases whose names begin with one of the words are computed and written to `values.json` or
`fits.json`, where a change is meant to alter them; `""` stands for all cases. Specs and statements of mechanisms that
have none yet are added. Programs are compiled as in the default tests, so that their results agree to rounding.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent


def record(beginnings: tuple[str, ...]) -> None:
    from tests.conftest import compile_quickly

    compile_quickly()  # before the modules of the cases are imported, which compile
    from tests.recorded import cases, fits

    path = FOLDER / "values.json"
    recorded = json.loads(path.read_text())
    chosen = [case for case in cases.names() if case.startswith(beginnings)]
    kept = {key: value for key, value in recorded["numbers"].items() if key.rsplit(": ", 1)[0] not in chosen}
    recorded["numbers"] = kept | cases.compute(*chosen)
    recorded["specs"] = cases.specs() | recorded["specs"]
    recorded["statements"] = cases.statements() | recorded["statements"]
    path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")

    path = FOLDER / "fits.json"
    kept = json.loads(path.read_text())
    kept |= {case: fits.compute(case) for case in fits.cases() if case.startswith(beginnings)}
    parts = [
        f"{json.dumps(case)}: {{\n"
        + ",\n".join(f" {json.dumps(what)}: {json.dumps(value)}" for what, value in kept[case].items())
        + "\n}"
        for case in fits.cases()
        if case in kept
    ]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    record(tuple(sys.argv[1:]))
