"""Compiled code on disk, for the next process: compiling is most of what a fit waits for."""

import os
import pathlib

import jax

__all__ = ["keep_compiled_code"]

FILES, BYTES = 1000, 1 << 30


def keep_compiled_code(folder=None, files=FILES, size=BYTES):
    """Keep what JAX compiles in a folder, where later processes find it, for any data of the same structure.

    These are settings of JAX for the whole process. Where JAX has been given a folder already, nothing is changed.

    Parameters
    ----------
    folder : path, optional
        By default that of the environment variable ``LDPBAYES_COMPILED_CODE``, or ``ldpbayes/jax`` in the user's cache
        (``$XDG_CACHE_HOME``, or ``~/.cache``).
    files, size : int
        How many entries and bytes are left from before; those longest unused are deleted.

    Returns
    -------
    pathlib.Path or None
        The folder, None where there is none that can be written to.
    """
    if jax.config.jax_compilation_cache_dir:
        return pathlib.Path(jax.config.jax_compilation_cache_dir)
    folder = folder or os.environ.get("LDPBAYES_COMPILED_CODE")
    try:
        if folder is None:
            folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ldpbayes", "jax")
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _delete_old(folder, files, size)
    except (OSError, RuntimeError):
        return None  # no home, or a read-only one
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _delete_old(folder, files, size):
    """Delete what has not been used for longest, until so many files of this size together are left."""
    # JAX writes one file an entry, and (some versions) another with the time of its last use
    entries = sorted(((path.stat(), path) for path in folder.iterdir() if path.is_file()), key=lambda e: -e[0].st_atime)
    kept = 0
    for number, (status, path) in enumerate(entries):
        kept += status.st_size
        if number >= files or kept > size:
            path.unlink(missing_ok=True)
