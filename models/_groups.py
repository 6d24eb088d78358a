"""Models of groups that share a population: normal means, and shares of categories by region."""

import contextlib
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from scipy import special

from ldpbayes import Release, Sketch, observe
from ldpbayes.data import ExpandedSketch
from ldpbayes.inference import factory
from ldpbayes.models._coordinates import pooled, pooled_relative

HALF_WEIGHT_PRECISION = 8.0  # at which a rough logit has half of its weight: less sharp posteriors are skewed
MAX_MATRIX_ENTRIES = 1 << 24  # of a matrix of released values and categories that rough logits are computed from
ROUGH_SCALES = 3.0, 0.7  # standard deviations of the mean logits and of those of a region, in their rough estimates


def rough_means(releases: Sequence[Release | Sketch], spread: ArrayLike) -> tuple[Any, Any]:
    """Group means before clipping, and their precisions given the standard deviation `spread`, 0 where unknown."""
    # Concrete releases are averaged outside the trace, and a kind of mechanism is handled at once: the trace is small.
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(releases))
    with contextlib.nullcontext() if traced else jax.ensure_compile_time_eval():
        center, noise, count = jnp.zeros(len(releases)), jnp.ones(len(releases)), jnp.zeros(len(releases))
        kinds: dict[Hashable, list[int]] = {}
        for group, release in enumerate(releases):
            if not (release.mechanism.batch_shape or (isinstance(release, Release) and release.values is None)):
                kinds.setdefault(jax.tree.structure(release.mechanism), []).append(group)
        for groups in map(np.array, kinds.values()):
            alike = [(releases[group].mechanism, *_sum_and_size(releases[group])) for group in groups]
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike)
            with contextlib.suppress(ValueError):  # values under this mechanism cannot be made unbiased
                mean, variance = jax.vmap(_unbiased_mean)(*stacked)
                center, count = center.at[groups].set(mean), count.at[groups].set(stacked[2])
                noise = noise.at[groups].set(variance)
    return center, count / (jnp.square(spread) + noise)


def _unbiased_mean(mechanism: Any, total: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Unbiased mean of a group's records, from the sum and number of its values, and the variance of one value."""
    origin, one = mechanism.unbiased(0.0), mechanism.unbiased(1.0)
    mean = origin + (one - origin) * total / size  # `unbiased` is linear
    return mean, jnp.square(one - origin) * mechanism.moments(mean)[1]


def _sum_and_size(data: Release | Sketch) -> tuple[jax.Array, jax.Array]:
    """Sum and number of the values, which all sketches preserve."""
    if isinstance(data, Sketch):
        return jnp.dot(data.weights, jnp.asarray(data.nodes, float)), jnp.sum(data.weights)
    return jnp.sum(jnp.asarray(data.values, float)), jnp.asarray(data.count, float)


@factory("numbers", summary="Model of numbers in several groups: normal in each, with normal group means.", groups=True)
def hierarchical(
    releases: Sequence[Release | Sketch],
    mu: dist.Distribution = dist.Normal(0, 5),
    tau: dist.Distribution = dist.HalfNormal(2),
    sigma: dist.Distribution = dist.Gamma(2, 1),
) -> None:
    """Model of numbers in several groups: normal in each group, with group means that are normal around a common mean.

    Returns ``model(releases)`` of a sequence with a release or a sketch for each group. Sites: ``mu`` (the common
    mean), ``theta`` (the mean of each group), ``tau`` (the standard deviation of the group means), ``sigma`` (the
    standard deviation within each group) and ``z``, or several sites ``z_0``, ``z_1``, ... if mechanisms have different
    classes (see `observe`). The axis of ``theta`` is called ``group``. To label it, use ``release.sketch(by=names)`` as
    data, or the option ``coords={"group": names}`` of `fit`. Default priors, in the unit of the data: normal with mean
    0 and standard deviation 5 for ``mu``, half-normal with scale 2 for ``tau``, and gamma with shape 2 and rate 1 for
    ``sigma``.
    """
    population_mean, spread = numpyro.sample("mu", mu), numpyro.sample("tau", tau)
    within = numpyro.sample("sigma", sigma)
    with numpyro.plate("group", len(releases)):
        # This is Normal(population_mean, spread): the rest says in which coordinates it is sampled well.
        theta = numpyro.sample("theta", pooled(population_mean, spread, *rough_means(releases, within)))
    observe("z", dist.Normal(theta, within), list(releases))


def _rough_logits(regions: Any, **_: Any) -> tuple[Any, Any]:
    """Logits (regions, categories) by the released values, up to a number for each region, and their precisions."""
    parts = []
    for data in [regions] if isinstance(regions, Sketch) else regions:
        sketch: Any = data.sketch(expand=False) if isinstance(data, Release) else data
        sketch = sketch.exact if isinstance(sketch, ExpandedSketch) else sketch
        weights, categories, count = np.asarray(sketch.weights), sketch.mechanism.categories, len(sketch.weights)
        if count * categories > MAX_MATRIX_ENTRIES:
            return 0.0, 0.0
        columns = [sketch.mechanism.log_prob(sketch.nodes, np.full(count, k)) for k in range(categories)]
        masses = np.exp(np.stack(columns, axis=-1))
        codes = np.zeros(count, int) if sketch.groups is None else np.asarray(sketch.groups)
        rows = [codes == group for group in range(math.prod(sketch.law_shape))]
        parts += [(masses[row], weights[row]) for row in rows]
    masses, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    overall = _rough(masses, weights, np.zeros(categories), ROUGH_SCALES[0])[0]
    logits, precisions = zip(*(_rough(*part, overall, ROUGH_SCALES[1]) for part in parts), strict=True)
    return np.stack(logits), np.stack(precisions)


def _rough(masses: np.ndarray, weights: np.ndarray, mean: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Most probable logits (categories,) by Fisher scoring, and the numbers of noiseless answers that tell as much."""
    logits = mean
    for _ in range(30):
        shares = special.softmax(logits)
        mixed = masses * shares
        excess = mixed / mixed.sum(axis=1, keepdims=True) - shares
        information, slope = (weights * excess.T) @ excess, weights @ excess - (logits - mean) / scale**2
        step = np.linalg.solve(information + np.eye(len(logits)) / scale**2, slope)
        logits = logits + step / max(1.0, np.abs(step).max())
        if np.abs(step).max() < 1e-3:
            break
    precision = np.diag(information) / np.maximum(1 - shares, 1e-6)
    return logits, precision**2 / (precision + HALF_WEIGHT_PRECISION)


@factory(
    "categories",
    summary="Model of categories in several regions, whose shares vary around common shares.",
    groups=True,
    coordinates=_rough_logits,
)
def regional_histograms(
    regions: Any,
    mu: dist.Distribution = dist.Normal(0, 2),
    tau: dist.Distribution = dist.HalfNormal(1),
    coordinates: tuple[Any, Any] = (0.0, 0.0),
) -> None:
    """Model of categories in several regions, where the shares of the regions vary around common shares.

    The shares of a region are softmax(l), where the logits l, one for each category, are normal over regions, with mean
    ``mu`` and standard deviation ``tau``. Returns ``model(regions)`` with sites ``mu``, ``tau``, ``theta`` (a row of
    shares for each region) and ``z`` (or several, as in `hierarchical`). The argument ``regions`` is
    ``release.sketch(by=region)``, or a sequence with a release or a sketch for each region. Raises TypeError if these
    have different numbers of categories. Default priors: normal with mean 0 and standard deviation 2, and half-normal
    with scale 1.
    """
    grouped = isinstance(regions, Sketch)
    categories = sorted({release.mechanism.categories for release in ([regions] if grouped else regions)})
    if len(categories) != 1:
        raise TypeError(f"regional_histograms takes releases with equal numbers of categories, got {categories}")
    count = regions.law_shape[0] if grouped else len(regions)
    with numpyro.plate("category", categories[0]):
        population, spread = numpyro.sample("mu", mu), numpyro.sample("tau", tau)
    with numpyro.plate("region", count):
        # These are Normal(population, spread): the rest says in which coordinates they are sampled well.
        logits = numpyro.sample("logits", pooled_relative(population, spread, *coordinates))
    with numpyro.plate("category", categories[0]), numpyro.plate("region", count):
        theta = numpyro.deterministic("theta", jax.nn.softmax(logits, axis=-1))
    observe("z", dist.Categorical(theta), regions if grouped else list(regions))
