"""How functions run: compiled, with a folder that keeps compiled code for later processes; and as tasks of workers."""

import functools
import os
import pathlib
import pickle
import re
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, as_completed
from typing import Any

import jax

from ldpbayes._core.types import is_concrete

try:
    import cloudpickle as pickler  # which knows functions that were made within others, as models are
except ImportError:
    pickler = pickle  # type: ignore[misc]

# XLA's newer code generator for loops on CPUs takes twice as long to compile, and its loops are hardly faster. The
# option is dropped where XLA no longer knows it, since that generator is then the only one.
_COMPILER_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
# For functions that run a few times: compiling takes a quarter to a third less, and loops are hardly slower.
_QUICK_COMPILER_OPTIONS = {"xla_backend_optimization_level": 1}

CACHE_ENTRY = re.compile(r"-[0-9a-f]{64}-(cache|atime)$")  # ends the names of files in which JAX keeps compiled code


def compiled(lowered: jax.stages.Lowered) -> Callable:
    """A lowered function, ``jax.jit(function).lower(...)``, compiled."""
    return _with_known_options(lowered.compile, lowered.compile)


def quick_jit(function: Callable, **options: Any) -> Callable:
    """`jax.jit`, with its options, for a function that runs a few times, such as a whole estimation."""
    plain = jax.jit(function, **options)
    quick = jax.jit(function, compiler_options={**_COMPILER_OPTIONS, **_QUICK_COMPILER_OPTIONS}, **options)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not is_concrete(args, named):  # compiler options are only allowed where the outermost function is compiled
            return plain(*args, **named)
        return _with_known_options(lambda _: quick(*args, **named), lambda: plain(*args, **named))

    return call


def _with_known_options(with_options: Callable, without: Callable) -> Any:
    """The first one's result on CPUs whose compiler knows the options, else the second one's."""
    if jax.default_backend() == "cpu" and _COMPILER_OPTIONS:
        try:
            return with_options(_COMPILER_OPTIONS)
        except jax.errors.JaxRuntimeError:
            result = without()  # raises again, unless the options are what this compiler does not know
            _COMPILER_OPTIONS.clear()
            return result
    return without()


def keep_compiled_code(folder: str | os.PathLike | None = None) -> pathlib.Path | None:
    """Store compiled code in a folder, so that later Python processes start faster if data have the same shapes and
    types.

    Returns the folder, or None if no files can be written to it. If JAX already has such a folder, nothing changes.

    Parameters
    ----------
    folder : path, optional
        Default: the environment variable ``LDPBAYES_COMPILED_CODE``, or else ``ldpbayes/jax`` in the user's cache
        folder (``$XDG_CACHE_HOME``, or ``~/.cache``). The 1,000 files of compiled code that were used last are kept,
        and at most 1 GiB. No other files are deleted.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> folder = ldp.keep_compiled_code()  # at the beginning of a script
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir:
        return pathlib.Path(settings.jax_compilation_cache_dir)
    place = folder or os.environ.get("LDPBAYES_COMPILED_CODE")
    try:
        if place is None:
            place = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ldpbayes", "jax")
        path = pathlib.Path(place)
        path.mkdir(parents=True, exist_ok=True)
        _delete_old(path)
    except (OSError, RuntimeError):
        return None  # there is no home, or one that is read-only
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def _delete_old(folder: pathlib.Path, files: int = 1000, size: int = 1 << 30) -> None:
    """Delete JAX's entries, those longest unused first, until at most `files` of `size` bytes together are left."""
    # JAX would do so itself (jax_compilation_cache_max_size), but it then lists and locks the folder for every entry
    # that it reads, and takes all files whose names end like that of an entry for its own.
    entries = [path for path in folder.iterdir() if CACHE_ENTRY.search(path.name) and path.is_file()]
    kept = 0
    for number, path in enumerate(sorted(entries, key=lambda path: -path.stat().st_atime)):
        kept += path.stat().st_size
        if number >= files or kept > size:
            path.unlink(missing_ok=True)


def completed(
    function: Callable[..., Any], tasks: Iterable[tuple], executor: Executor | None = None, in_order: bool = False
) -> Generator[tuple[tuple, Any], None, None]:
    """Pairs of a task's arguments and ``function(*task)``, in order, or as an executor's workers finish them unless
    `in_order`. TypeError for a function that cannot travel, by value, ValueError for processes that are forked.
    """
    if executor is None:
        yield from ((task, function(*task)) for task in tasks)
        return
    context = getattr(executor, "_mp_context", None)  # of a ProcessPoolExecutor
    if context is not None and context.get_start_method() == "fork":
        context = "multiprocessing.get_context('spawn')"
        raise ValueError(f"forked processes hang in JAX: use ProcessPoolExecutor(mp_context={context})")
    try:
        payload = pickler.dumps(function)
    except Exception as error:  # pickle raises nearly anything
        hint = "" if pickler is not pickle else "; install cloudpickle to send models that are defined inside functions"
        raise TypeError(f"the task cannot be sent to workers: {error}{hint}") from None
    futures = {executor.submit(_call, payload, task): task for task in tasks}
    try:
        for future in futures if in_order else as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _call(payload: bytes, task: tuple) -> Any:
    return _loaded(payload)(*task)


@functools.lru_cache(maxsize=4)  # so that what a function has compiled serves its next task
def _loaded(payload: bytes) -> Callable[..., Any]:
    return pickle.loads(payload)
