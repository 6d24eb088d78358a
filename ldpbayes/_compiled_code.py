"""Compiled code on disk, for the next process: most of the time that a fit takes goes into compiling."""

import os
import pathlib
from typing import Any

import jax

__all__ = ["keep_compiled_code"]

FILES, BYTES = 1000, 1 << 30


def keep_compiled_code(folder: str | os.PathLike | None = None) -> pathlib.Path | None:
    """Keep what JAX compiles in a folder, where later processes find it, for any data of the same structure.

    These are settings of JAX for the whole process. Where JAX has been given a folder already, nothing is changed.

    Parameters
    ----------
    folder : path, optional
        By default that of the environment variable ``LDPBAYES_COMPILED_CODE``, or ``ldpbayes/jax`` in the user's cache
        (``$XDG_CACHE_HOME``, or ``~/.cache``). Of older entries at most 1,000 and 1 GiB are left; those longest unused
        are deleted.

    Returns
    -------
    pathlib.Path or None
        The folder, None where there is none that can be written to.
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir:
        return pathlib.Path(settings.jax_compilation_cache_dir)
    named = folder or os.environ.get("LDPBAYES_COMPILED_CODE")
    try:
        if named is None:
            named = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ldpbayes", "jax")
        path = pathlib.Path(named)
        path.mkdir(parents=True, exist_ok=True)
        _delete_old(path, FILES, BYTES)
    except (OSError, RuntimeError):
        return None  # there is no home, or one that is read-only
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def _delete_old(folder: pathlib.Path, files: int, size: int) -> None:
    """Delete entries, those longest unused first, until at most `files` of `size` bytes together are left."""
    # JAX writes a file for each entry; some versions write another with the time of its last use.
    entries = sorted(((path.stat(), path) for path in folder.iterdir() if path.is_file()), key=lambda e: -e[0].st_atime)
    kept = 0
    for number, (status, path) in enumerate(entries):
        kept += status.st_size
        if number >= files or kept > size:
            path.unlink(missing_ok=True)
