"""Tasks in this process, or on anything with the interface of `concurrent.futures`."""

import functools
import pickle
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, as_completed
from typing import Any

try:
    import cloudpickle as pickler  # which knows functions that were made within others, as models are
except ImportError:
    pickler = pickle  # type: ignore[misc]


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
