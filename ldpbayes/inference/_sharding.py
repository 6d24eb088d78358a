"""Records over several devices and processes."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import PyTree
from ldpbayes.data import NoisyTable, Release


def sharded(data: PyTree, mesh: Mesh) -> PyTree:
    """Lay the records of releases, and columns beside them, over the devices of a mesh.

    Models observe them as before. A function that is compiled with them as arguments, such as a log density or its
    gradient, runs where the records are, and adds up over devices. After ``jax.distributed.initialize`` every process
    gives its own records, as many as each other one, and all run the same calls; the release is that of all records.

    Parameters
    ----------
    data : pytree
        A release, or several, and arrays such as covariates: any arguments of a model. Arrays whose first axis is of
        the releases' records are laid out, personal budgets among them; others stay. ValueError for tables, without a
        release, and for numbers of records that differ or are no multiple of this process's devices: put the rest into
        a release of its own, on one device or in a sketch.
    mesh : jax.sharding.Mesh
        Of the devices of all processes; records are split along all of its axes.

    Returns
    -------
    pytree
        Of the same structure, with arrays of JAX in double precision.
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
