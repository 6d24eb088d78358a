import gc
import os
import warnings

import jax
import numpy as np
import pytest

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
        # compiles. With the older emitters and level 0 XLA has been seen to compile wrong derivatives.
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false")


def pytest_configure(config):
    """Compile quickly, and share compiled functions between tests, workers and runs."""
    if "not slow" in config.getoption("markexpr"):
        compile_quickly()
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / ".pytest_cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


MOST_MAPS = 45_000  # of 65,530 that Linux lets a process have; every compiled function takes some


def memory_maps():
    """How many this process has, where that can be read: beyond the limit XLA crashes."""
    try:
        with open("/proc/self/maps") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


@pytest.fixture(autouse=True, scope="module")
def set_aside():
    """Do not search what JAX keeps of compiled functions for garbage again and again; drop it where it is too much."""
    yield
    if memory_maps() > MOST_MAPS:
        jax.clear_caches()
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def x64():
    """Double precision inside a test, as `fit` and the studies run; the global setting stays as it was."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(20260101)
