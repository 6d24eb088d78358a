"""What developers run, by `nox -s NAME`, in the environment that has nox: a second one would take gigabytes."""

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "test"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style, types and spelling."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "-m", "mypy")
    session.run("codespell")


@nox.session
def test(session: nox.Session) -> None:
    """The default tests, or some: nox -s test -- tests/noise"""
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The slow tests, or some: nox -s slow -- tests/noise"""
    session.run("python", "-m", "pytest", "-m", "slow", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in the folder site; examples and notebooks run in the slow tests."""
    session.run("python", "-m", "sphinx", "-W", "-c", "docs", ".", "site", *session.posargs)


@nox.session
def record(session: nox.Session) -> None:
    """Records values anew that a change is meant to alter, by the beginnings of their names: nox -s record -- fit"""
    session.run("python", "-m", "tests.recorded.record", *session.posargs)
