"""A model cut in two at its coordinates: the few numbers through which many records depend on the parameters.

Coordinates are values of sites, such as slopes or a deterministic site between group effects and the records. Above the
cut are priors and transformations; below is the log-likelihood as a function of the coordinates.
"""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.typing import ArrayLike

from ldpbayes._core.types import Array, Params
from ldpbayes.inference.compiled_programs import inputs_in_use
from ldpbayes.inference.density import Density, Site
from ldpbayes.inference.sketch_certificate import panel_sketches

WORTHWHILE_RECORDS = 1000  # records from which on an observed site is worth expanding
REQUESTED_RECORDS = 10  # records from which on an observed site is expanded on request
MAX_COORDINATES = 128  # numbers in which a function is expanded, in each of its groups
MAX_ALL_COORDINATES = 1 << 14  # numbers of all groups together


class Uncut(ValueError):
    """The model has no place where it can be cut; the message says why."""


@dataclass(frozen=True)
class Cut:
    """A model cut in two: potential = rest(parameters) − likelihood(coordinates(parameters))."""

    density: Density
    observed: tuple[str, ...]  # sites whose log-likelihood is below the cut
    names: tuple[str, ...]  # sites at whose values the model is cut
    unconstrained: frozenset[str]  # those of them whose unconstrained values are coordinates
    shapes: tuple[tuple[int, ...], ...]  # of the values of these sites
    groups: int | None  # number of groups if the likelihood is a sum over groups, each of its own coordinates
    count: int  # number of records below the cut
    irrelevant: Params  # any unconstrained values of the latent sites that the records do not depend on

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coordinates, (n,) or (groups, n)."""
        total = sum(math.prod(shape) for shape in self.shapes)
        return (total,) if self.groups is None else (self.groups, total // self.groups)

    def rest(self, parameters: Params) -> Array:
        """The potential of unconstrained parameters without the likelihood below the cut."""
        above = numpyro.handlers.block(self.density.model, hide=list(self.observed))
        return replace(self.density, model=above).potential(parameters)

    def coordinates(self, parameters: Params) -> Array:
        """The coordinates of unconstrained parameters, in the shape of the cut."""
        values = self.density.constrained(parameters) | {name: parameters[name] for name in self.unconstrained}
        lead = () if self.groups is None else (self.groups,)
        return jnp.concatenate([jnp.reshape(values[name], (*lead, -1)) for name in self.names], axis=-1)

    def likelihood(self, x: ArrayLike) -> Array:
        """Log-likelihood of all records at coordinates."""
        sizes = [math.prod(shape) // (self.groups or 1) for shape in self.shapes]
        parts = jnp.split(jnp.asarray(x), np.cumsum(sizes)[:-1], axis=-1)
        values = {name: jnp.reshape(p, s) for name, p, s in zip(self.names, parts, self.shapes, strict=True)}
        unconstrained = self.unconstrained | set(self.irrelevant)
        return self.density.log_likelihood(self.irrelevant | values, unconstrained, self.observed)


def cut_model(
    density: Density, sites: dict[str, Site], parameters: Params, min_records: int = WORTHWHILE_RECORDS
) -> Cut:
    """Cut a model above its observed sites with enough records, by any parameters of finite density; raises `Uncut`."""
    observed = tuple(name for name, site in sites.items() if site.records >= min_records)
    if not observed:
        raise Uncut(f"no observed site has {min_records} records or more")
    if panel_sketches(density):
        raise Uncut("a sketch on panels is among the data, which has a certificate of its own")
    count = sum(sites[name].records for name in observed)
    values = jax.eval_shape(density.constrained, parameters)
    real = [name for name, value in values.items() if jnp.issubdtype(value.dtype, jnp.floating)]
    small = [name for name in real if values[name].size <= MAX_ALL_COORDINATES and name not in parameters]
    for deterministic in (small, []):
        ancestors = _ancestors(density, observed, deterministic, parameters)
        # Two coordinates with a common latent ancestor are not free of each other: the cut is then at latent sites.
        if sum(map(len, ancestors.values())) == len(frozenset().union(*ancestors.values())):
            break
    names = tuple(ancestors)
    unconstrained = frozenset(name for name in names if name in parameters and not sites[name].expanded_constrained)
    shapes = tuple(np.shape(parameters[name]) if name in unconstrained else values[name].shape for name in names)
    irrelevant = {name: value for name, value in parameters.items() if name not in names}
    whole = Cut(density, observed, names, unconstrained, shapes, None, count, irrelevant)
    lead = {shape[:1] for shape in shapes}
    if len(lead) == 1 and lead not in ({()}, {(1,)}):
        (groups,) = next(iter(lead))
        grouped = replace(whole, groups=groups)
        # Groups with one coordinate each, such as slopes, are taken apart only if there are too many for one vector.
        worthwhile = grouped.shape[1] > 1 or whole.shape[0] > MAX_COORDINATES
        if worthwhile and grouped.shape[1] <= MAX_COORDINATES and _is_sum(grouped, grouped.coordinates(parameters)):
            return grouped
    if whole.shape[0] > MAX_COORDINATES:
        sizes = ", ".join(f"{math.prod(shape)} of {name!r}" for name, shape in zip(names, shapes, strict=True))
        raise Uncut(
            f"its records see {whole.shape[0]} numbers ({sizes}), and an expansion takes {MAX_COORDINATES} at most, or "
            "as many in each group where every record belongs to one (values that stand between these and the records "
            "may be named by numpyro.deterministic)"
        )
    return whole


def _ancestors(
    density: Density, observed: tuple[str, ...], deterministic: list[str], parameters: Params
) -> dict[str, frozenset[str]]:
    """Sites that the observed sites depend on if deterministic ones are fixed, with the latent sites behind each."""

    def likelihood(latent: Params, fixed: Params) -> Array:
        return density.log_likelihood(latent | fixed, latent, observed)

    shapes = jax.eval_shape(density.constrained, parameters)
    latent, fixed = inputs_in_use(likelihood, parameters, {name: shapes[name] for name in deterministic})
    ancestors = {name: frozenset([name]) for name in latent}
    for name in fixed:
        ancestors[name] = frozenset(inputs_in_use(lambda u, name=name: density.constrained(u)[name], parameters)[0])
    return {name: roots for name, roots in ancestors.items() if roots}


def _is_sum(cut: Cut, x: Array) -> bool:
    """Whether the likelihood is a sum over groups: changing some leaves the slopes of all others unchanged."""
    slopes = jax.jit(jax.grad(cut.likelihood))
    step, before = 1e-3 * (1 + jnp.abs(x)), slopes(x)
    numbers = np.arange(x.shape[0])
    for bit in range(int(x.shape[0] - 1).bit_length()):
        side = (numbers >> bit & 1).astype(bool)
        for changed in (side, ~side):
            after = slopes(x + jnp.where(changed[:, None], step, 0.0))
            if not np.array_equal(np.asarray(after)[~changed], np.asarray(before)[~changed]):
                return False
    return True
