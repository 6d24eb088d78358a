"""Studies in other processes, and studies whose processes are killed: nothing is lost, and nothing counted twice."""

import contextlib
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes._core.running import completed
from ldpbayes.models import warner
from ldpbayes.studies import Checkpoint, sbc

PLAN = ldp.Release(None, ldp.RandomizedResponse(1.0), 30)
OPTIONS = {"replicates": 8, "num_warmup": 10, "num_samples": 10, "batch": 2, "progress_bar": False}


def answers():
    """A share of yes answers with a uniform prior, which is quick to simulate."""
    return warner(dist.Uniform(0.0, 1.0))


class Processes(ProcessPoolExecutor):
    """A process of its own for the tasks, which can be killed."""

    def __init__(self):
        super().__init__(1, mp_context=multiprocessing.get_context("spawn"))

    def kill(self):
        for process in self._processes.values():
            os.kill(process.pid, signal.SIGKILL)


class Mortal(Executor):
    """Runs the first task; the others wait until the workers are killed."""

    def __init__(self):
        self.waiting = None

    def submit(self, function, *arguments):
        future = Future()
        if self.waiting is None:
            self.waiting = []
            future.set_result(function(*arguments))
        else:
            self.waiting.append(future)
        return future

    def kill(self):
        for future in self.waiting:
            future.set_exception(BrokenExecutor("a worker was killed"))


@pytest.fixture(scope="module")
def undisturbed():
    return sbc(answers(), PLAN, **OPTIONS).pit["theta"]


@contextlib.contextmanager
def after_the_first_batch(kill):
    """Call a function when the first batch has been saved."""
    saved, called = Checkpoint.save, []

    def save(checkpoint):
        saved(checkpoint)
        if not called:
            called.append(kill())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", save)
        yield called


@pytest.mark.parametrize("workers", [Mortal, pytest.param(Processes, marks=pytest.mark.slow)])
def test_a_killed_worker_loses_no_finished_batch(workers, undisturbed, tmp_path):
    options = OPTIONS | {"checkpoint": tmp_path / "c.npz"}
    with (
        workers() as executor,
        after_the_first_batch(executor.kill),
        pytest.raises(RuntimeError, match=r"workers have died .* replicates are in c"),
    ):
        sbc(answers(), PLAN, executor=executor, **options)
    with ThreadPoolExecutor(2) as executor:
        resumed = sbc(answers(), PLAN, executor=executor, **options)
    np.testing.assert_array_equal(resumed.pit["theta"], undisturbed)


SCRIPT = """
import sys
from ldpbayes.studies import sbc
from tests.studies.test_executors import OPTIONS, PLAN, answers

sbc(answers(), PLAN, checkpoint=sys.argv[1], **OPTIONS)
"""


def test_a_study_that_is_killed_goes_on(undisturbed, tmp_path):
    path, root = tmp_path / "c.npz", pathlib.Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], cwd=root) as process:
        while not path.exists() and process.poll() is None:
            time.sleep(0.002)
        process.kill()
    assert path.exists()
    # The file is taken up, so the fingerprint of the model is the same in another process.
    resumed = sbc(answers(), PLAN, checkpoint=path, **OPTIONS)
    np.testing.assert_array_equal(resumed.pit["theta"], undisturbed)


@pytest.mark.slow
def test_dask_goes_on_without_a_killed_worker(undisturbed, tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        pids = [worker.process.process.pid for worker in cluster.workers.values()]
        with after_the_first_batch(lambda: os.kill(pids[0], signal.SIGKILL)) as killed:
            study = sbc(answers(), PLAN, executor=executor, checkpoint=tmp_path / "c.npz", **OPTIONS)
    assert killed
    np.testing.assert_array_equal(study.pit["theta"], undisturbed)


def test_processes_that_are_forked_are_refused_and_so_is_what_cannot_travel():
    forking = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with forking, pytest.raises(ValueError, match="forked processes hang in JAX: use ProcessPoolExecutor"):
        sbc(answers(), PLAN, executor=forking, **OPTIONS)
    model, lock = answers(), multiprocessing.get_context("spawn").Lock()
    with ThreadPoolExecutor() as pool, pytest.raises(TypeError, match="the task cannot be sent to workers"):
        sbc(lambda release: (model(release), lock)[0], PLAN, executor=pool, **OPTIONS)


def test_an_error_in_a_task_is_raised_and_the_others_are_cancelled():
    def task(number):
        time.sleep(0.05)
        return 1 / number

    with ThreadPoolExecutor(1) as pool:
        start = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            list(completed(task, [(number,) for number in range(100)], pool))
    assert time.monotonic() - start < 4  # not of all hundred, which take five
