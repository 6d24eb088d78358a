# Commands of developers, which run in the active environment. `just --list` shows them.

set positional-arguments

# style, types and spelling, then the default tests
default: lint test

# style, types and spelling
lint:
    ruff check .
    ruff format --check .
    python -m mypy
    codespell

# the default tests, or some: just test tests/noise
test *args:
    python -m pytest "$@"

# did the default tests become slower? Compares the last whole run with the reference (--record: makes it the reference)
seconds *args:
    python tests/seconds.py "$@"

# the slow tests, or some: just slow tests/noise
slow *args:
    python -m pytest -m slow "$@"

# the site in the folder site; its examples and notebooks are slow tests
docs *args:
    python -m sphinx -W -c docs . site "$@"

# recorded values that a change is meant to alter: just record "fit, panels"
record *args:
    python -m tests.recorded.record "$@"
