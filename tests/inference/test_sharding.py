"""Log densities of records over several devices and processes are those of one device, but for rounding."""

import json
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SETTING = """
import json, os, sys
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.sharding import Mesh
from numpyro.infer.util import log_density

jax.config.update("jax_platforms", "cpu")
if PROCESSES > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{PORT}", PROCESSES, int(sys.argv[1]))
import ldpbayes as ldp

COUNT, RNG = 400, np.random.default_rng(0)
X, BUDGETS = RNG.normal(size=(COUNT, 2)), np.resize([0.5, 1.0, 4.0], COUNT)
RELEASES = {
    "numbers": ldp.Release(RNG.laplace(1.0, 3.0, COUNT), ldp.LaplaceMechanism(5.0, -5, 5)),
    "personal bits": ldp.Release(RNG.binomial(1, 0.4, (COUNT, 3)), ldp.OptimalUnaryEncoding(BUDGETS, 3)),
}


def model(columns, releases):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    ldp.observe("z", dist.Normal(columns @ slopes, 1.5), releases["numbers"])
    shares = dist.Categorical(logits=jax.numpy.array([0.0, 0.5, 0.2]) * slopes[0])
    ldp.observe("bits", shares, releases["personal bits"])


def value_and_gradient(data):
    def value(slopes, data):
        return log_density(model, data, {}, {"slopes": slopes})[0]

    with jax.enable_x64(True):
        return jax.jit(jax.value_and_grad(value))(np.array([0.3, -0.7]), data)


def own(array):  # of this process
    return np.split(array, PROCESSES)[int(sys.argv[1])]


def own_release(release):
    mechanism = release.mechanism.of_records((COUNT,), own(np.arange(COUNT)))
    return ldp.Release(own(release.values), mechanism)
"""
COMPARE = """
mesh = Mesh(np.array(jax.devices()).reshape(PROCESSES, -1), ("hosts", "records"))
data = ldp.inference.sharded((own(X), {name: own_release(each) for name, each in RELEASES.items()}), mesh)
assert len(jax.tree.leaves(data)[0].sharding.device_set) == DEVICES * PROCESSES
value, gradient = value_and_gradient(data)
results = [[float(value), np.asarray(gradient).tolist(), data[1]["numbers"].count]]
if sys.argv[1] == "0":  # all records on one device
    value, gradient = value_and_gradient((X, RELEASES))
    results.append([float(value), np.asarray(gradient).tolist(), COUNT])
print(json.dumps(results))
"""


def results(devices, processes):
    """Value, gradient and number of records by each process, and last those of one device."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    script = f"DEVICES, PROCESSES, PORT = {devices}, {processes}, {port}{SETTING}{COMPARE}"
    runs = [
        subprocess.Popen([sys.executable, "-c", script, str(i)], stdout=subprocess.PIPE, cwd=ROOT, text=True)
        for i in range(processes)
    ]
    texts = [run.communicate(timeout=300)[0] for run in runs]
    assert not any(run.returncode for run in runs)
    first, *others = [json.loads(text.splitlines()[-1]) for text in texts]
    return [first[0], *[each for (each,) in others], first[1]]


@pytest.mark.parametrize(("devices", "processes"), [pytest.param(4, 1, marks=pytest.mark.slow), (2, 2)])
def test_values_and_gradients_are_those_of_one_device(devices, processes):
    *each, alone = results(devices, processes)
    assert len(each) == processes
    for found in each:
        for mine, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)  # sums of 800 numbers, in two orders


def test_records_that_cannot_be_split_are_refused():
    import jax
    from jax.sharding import Mesh

    import ldpbayes as ldp

    mesh = Mesh(np.array(jax.devices()[:1]), ("records",))
    release = ldp.Release(np.zeros(4, int), ldp.RandomizedResponse(1.0))
    with pytest.raises(ValueError, match="must be releases with values and equal numbers of records"):
        ldp.inference.sharded({"x": np.zeros(4)}, mesh)
    with pytest.raises(ValueError, match="must be releases with values and equal numbers of records"):
        ldp.inference.sharded(ldp.Release(None, release.mechanism, 4), mesh)

    class Two:
        size = 3

    with pytest.raises(ValueError, match="4 records cannot be split evenly over 3 devices: put 1 of them"):
        ldp.inference.sharded(release, Two())
