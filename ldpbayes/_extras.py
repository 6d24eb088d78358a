"""What is not installed with the package itself: how its absence is said, one way for all extras."""

import importlib.util

__all__ = ["missing", "require"]


def missing(what: str, extra: str) -> str:
    """The message of an ImportError: what needs which extra, and how that is installed.

    Parameters
    ----------
    what : str
        The beginning of the sentence, such as "pictures need matplotlib".
    extra : str
        Of ``pyproject.toml``, such as "demo".
    """
    return f"{what}: pip install 'ldpbayes[{extra}]' (in a clone of the project: pip install '.[{extra}]')"


def require(extra: str, *modules: str) -> None:
    """ImportError that names the modules of an extra that are not installed.

    Parameters
    ----------
    extra : str
        Of ``pyproject.toml``.
    *modules : str
        What is needed of it.
    """
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        raise ImportError(missing(f"this needs {' and '.join(absent)}", extra))
