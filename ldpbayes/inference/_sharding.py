"""Records over several devices and processes."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import PyTree
from ldpbayes.data import NoisyTable, Release


def sharded(data: PyTree, mesh: Mesh) -> PyTree:
    """Distribute the records of releases, and the covariates of these records, over several devices.

    Use the result like any other release in a model. In a compiled function of JAX that takes the result as an
    argument, each device computes the log-likelihood of its own records, and JAX adds the parts.

    If several processes work together (``jax.distributed.initialize``), each process passes its own records, the same
    number in each process. The resulting release has the records of all processes.

    Parameters
    ----------
    data : pytree
        Arguments of a model: one or several releases, and arrays such as covariates. All arrays with one row for each
        record are distributed, also arrays of budgets. Other arrays are not changed.
    mesh : jax.sharding.Mesh
        A mesh of the devices of all processes. The records are divided among all devices.

    Returns
    -------
    pytree
        The same arguments, in which arrays of JAX in double precision replace the arrays.

    Raises
    ------
    ValueError
        There is no release, one of the releases is a `NoisyTable`, or the releases have different numbers of records.
        Or the number of records is not a multiple of the number of devices of this process. Then put the remaining
        records into another release, on one device or in a sketch.
    """
    leaves, structure = jax.tree.flatten(data, is_leaf=lambda leaf: isinstance(leaf, Release))
    releases = [leaf for leaf in leaves if isinstance(leaf, Release)]
    counts = {release.count for release in releases}
    if len(counts) != 1 or any(isinstance(each, NoisyTable) or each.values is None for each in releases):
        raise ValueError(f"data must be releases with values and equal numbers of records; got {releases or data}")
    (count,), processes = counts, jax.process_count()
    devices = mesh.size // processes
    if count % devices:
        rest = f"{count:,} records cannot be split evenly over {devices} devices"
        raise ValueError(f"{rest}: put {count % devices} of them into a separate release")
    layout = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def laid_out(leaf: Any) -> Any:
        if np.shape(leaf)[:1] != (count,):
            return leaf
        return jax.make_array_from_process_local_data(layout, np.asarray(leaf))

    def of_release(leaf: Any) -> Any:
        if not isinstance(leaf, Release):
            return laid_out(leaf)
        values, mechanism = laid_out(leaf.values), jax.tree.map(laid_out, leaf.mechanism)
        return unchecked(Release, values, mechanism, count * processes, leaf.doubts, leaf.times, leaf.about, leaf.added)

    with jax.enable_x64(True):
        return jax.tree.unflatten(structure, map(of_release, leaves))
