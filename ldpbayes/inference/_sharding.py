"""Records over several devices and processes."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import PyTree
from ldpbayes.data import NoisyTable, Release


def sharded(data: PyTree, mesh: Mesh) -> PyTree:
    """Distribute the records of releases, and covariates with one row for each record, over the devices of a mesh.

    Models observe the result like any release. A compiled function that takes the result as an argument, such as a log
    density, runs where the records are and adds up over devices. After ``jax.distributed.initialize``, every process
    passes its own records, equally many in each process, and makes the same calls. The release then has the records of
    all processes.

    Parameters
    ----------
    data : pytree
        Any arguments of a model: one or several releases, and arrays such as covariates. Arrays with one row for each
        record are distributed, including personal budgets. Other arrays are not changed.
    mesh : jax.sharding.Mesh
        Devices of all processes. Records are split along all axes of the mesh.

    Returns
    -------
    pytree
        The arguments, with arrays of JAX in double precision. Raises ValueError for a table, if there is no release, or
        if the numbers of records differ or are not a multiple of the number of devices of this process. Put the
        remaining records into another release, on one device or in a sketch.
    """
    leaves, structure = jax.tree.flatten(data, is_leaf=lambda leaf: isinstance(leaf, Release))
    releases = [leaf for leaf in leaves if isinstance(leaf, Release)]
    counts = {release.count for release in releases}
    if len(counts) != 1 or any(isinstance(each, NoisyTable) or each.values is None for each in releases):
        raise ValueError(f"data must have releases with values, of one number of records; got {releases or data}")
    (count,), processes = counts, jax.process_count()
    devices = mesh.size // processes
    if count % devices:
        rest = f"{count:,} records cannot be split evenly over {devices} devices"
        raise ValueError(f"{rest}: put {count % devices} of them into a release of their own")
    layout = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def laid_out(leaf: Any) -> Any:
        if np.shape(leaf)[:1] != (count,):
            return leaf
        return jax.make_array_from_process_local_data(layout, np.asarray(leaf))

    def of_release(leaf: Any) -> Any:
        if not isinstance(leaf, Release):
            return laid_out(leaf)
        values, mechanism = laid_out(leaf.values), jax.tree.map(laid_out, leaf.mechanism)
        return unchecked(Release, values, mechanism, count * processes, leaf.doubts, leaf.times, leaf.about)

    with jax.enable_x64(True):
        return jax.tree.unflatten(structure, map(of_release, leaves))
