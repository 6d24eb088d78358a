"""Normal means of groups that share a population."""

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes import Release, Sketch, observe
from ldpbayes._core.tracing import is_concrete
from ldpbayes.mechanisms.protocol import joined_mechanism
from ldpbayes.models._factory import factory
from ldpbayes.models._pooled import pooled


def rough_means(releases: Sequence[Release | Sketch], spread: ArrayLike) -> tuple[Any, Any]:
    """Mean of each group's records before clipping, and its precision given their standard deviation `spread`: 0 for
    groups without values, with a budget a record, or under a mechanism whose values cannot be made unbiased.
    """
    # Concrete releases are averaged outside the trace, and a kind of mechanism is handled at once: the trace is small.
    with jax.ensure_compile_time_eval() if is_concrete(releases) else contextlib.nullcontext():
        center, noise, count = jnp.zeros(len(releases)), jnp.ones(len(releases)), jnp.zeros(len(releases))
        kinds: dict[Hashable, list[int]] = {}
        for group, release in enumerate(releases):
            if not (release.mechanism.batch_shape or (isinstance(release, Release) and release.values is None)):
                kinds.setdefault(jax.tree.structure(release.mechanism), []).append(group)
        for groups in map(np.array, kinds.values()):
            try:
                mechanism = joined_mechanism([releases[group].mechanism for group in groups])
                origin, one = mechanism.unbiased(0.0), mechanism.unbiased(1.0)
            except ValueError:
                continue
            sums, sizes = map(jnp.stack, zip(*(_sum_and_size(releases[group]) for group in groups), strict=True))
            # `unbiased` is linear, so the mean of unbiased values is the unbiased mean.
            mean = origin + (one - origin) * sums / sizes
            center, count = center.at[groups].set(mean), count.at[groups].set(sizes)
            noise = noise.at[groups].set(jnp.square(one - origin) * mechanism.moments(mean)[1])
    return center, count / (jnp.square(spread) + noise)


def _sum_and_size(data: Release | Sketch) -> tuple[jax.Array, jax.Array]:
    """Sum and number of the values, which all sketches preserve."""
    if isinstance(data, Sketch):
        return jnp.dot(data.weights, jnp.asarray(data.nodes, float)), jnp.sum(data.weights)
    return jnp.sum(jnp.asarray(data.values, float)), jnp.asarray(data.count, float)


@factory("numbers", groups=True)
def hierarchical(
    releases: Sequence[Release | Sketch],
    mu: dist.Distribution = dist.Normal(0, 5),
    tau: dist.Distribution = dist.HalfNormal(2),
    sigma: dist.Distribution = dist.Gamma(2, 1),
) -> None:
    """Model of numbers in several groups: normal in each group, with group means that are normal around a common mean.

    Returns ``model(releases)`` with sites ``mu``, ``tau``, ``sigma``, ``theta`` and ``z``. The argument ``releases`` is
    a sequence with a release or a sketch for each group.

    ``mu`` is the common mean, and ``theta`` has the mean of each group. ``tau`` is the standard deviation of the group
    means, and ``sigma`` the standard deviation within each group. ``z`` are the released values. If the mechanisms of
    the groups have different classes, ``z`` becomes several sites ``z_0``, ``z_1``, ... (see `observe`).

    The axis of ``theta`` in the results is called ``group``. To label the groups, use ``release.sketch(by=names)`` as
    data, or the option ``coords={"group": names}`` of `fit`.

    Parameters
    ----------
    mu : numpyro.distributions.Distribution
        Prior of the common mean, in the unit of the data. Default: normal with mean 0 and standard deviation 5.
    tau : numpyro.distributions.Distribution
        Prior of the standard deviation of the group means, in the unit of the data. Default: half-normal with scale 2.
    sigma : numpyro.distributions.Distribution
        Prior of the standard deviation within groups, in the unit of the data. Default: gamma with shape 2 and rate 1.
    """
    population_mean, spread = numpyro.sample("mu", mu), numpyro.sample("tau", tau)
    within = numpyro.sample("sigma", sigma)
    with numpyro.plate("group", len(releases)):
        # This is Normal(population_mean, spread): the rest says in which coordinates it is sampled well.
        theta = numpyro.sample("theta", pooled(population_mean, spread, *rough_means(releases, within)))
    observe("z", dist.Normal(theta, within), list(releases))
