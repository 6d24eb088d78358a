import contextlib
import ctypes
import gc
import json
import os
import time
import warnings

import jax
import numpy as np
import pytest

from tests.seconds import Seconds

with warnings.catch_warnings():
    # ArviZ stamps a file at its first import of a day: workers that import it at once may fail over that, so it is
    # imported here, before there are workers
    warnings.simplefilter("ignore", FutureWarning)
    import arviz  # noqa: F401

os.environ.setdefault("MPLBACKEND", "Agg")


def compile_quickly():
    """Options of XLA under which the default tests run and the values in `recorded` are written."""
    if jax.__version_info__ < (0, 11):  # later versions lack the second option
        # Nearly all of the time goes into compiling programs that run for a moment. JAX reads the options when it first
        # compiles. With level 0 and the older emitters an earlier XLA compiled wrong derivatives: if a derivative is
        # wrong in a default test, see whether it is at level 1, too.
        flags = ["backend_optimization_level=0", "cpu_use_fusion_emitters=false"]
        flags += ["cpu_parallel_codegen_split_count=1", "cpu_prefer_vector_width=128"]
        os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in flags))


def pytest_configure(config):
    """Compile quickly, and share compiled functions between tests, workers and runs."""
    if "not slow" in config.getoption("markexpr"):
        compile_quickly()
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / ".pytest_cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    gc.set_threshold(50_000, 20, 20)  # nearly all of the many objects that tracing makes are freed without a search


# --- what the suite takes: see seconds.py ---------------------------------------------------------------------------

SECONDS = Seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    start = time.process_time()
    result = yield
    file = item.nodeid.partition("::")[0]
    SECONDS.add(file, time.process_time() - start)
    if nextitem is None or nextitem.nodeid.partition("::")[0] != file:
        SECONDS.calibrate()
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    SECONDS.merge(getattr(node, "workeroutput", {}).get("seconds", Seconds().as_dict()))


def whole_suite(config):
    """Whether the default tests run, and all of them."""
    chosen = config.getoption("keyword") or config.getoption("markexpr") != "not slow"
    return config.args_source == pytest.Config.ArgsSource.TESTPATHS and not chosen


def pytest_sessionfinish(session, exitstatus):
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["seconds"] = SECONDS.as_dict()
    elif exitstatus == 0 and whole_suite(config):
        (config.rootpath / ".pytest_cache" / "seconds.json").write_text(json.dumps(SECONDS.as_dict()))


# --- memory ---------------------------------------------------------------------------------------------------------

MOST, GROWTH = 1.5e9, 5e7  # bytes of one process; every compiled function takes about a million
set_aside_at = 0.0  # bytes when `set_aside` last did its work


def memory():
    """Bytes that this process holds, where that can be read."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@pytest.fixture(autouse=True, scope="module")
def set_aside():
    """Do not search what JAX keeps of compiled functions for garbage again and again; drop it where it is too much."""
    yield
    global set_aside_at
    if memory() < set_aside_at + GROWTH:
        return
    if memory() > MOST:
        jax.clear_caches()
        gc.unfreeze()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # where the C library can give back what is free
        ctypes.CDLL(None).malloc_trim(0)
    gc.freeze()
    set_aside_at = memory()


@pytest.fixture
def x64():
    """Double precision inside a test, as `fit` and the studies run; the global setting stays as it was."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(20260101)
