"""A model that is cut in two: what is above, and the likelihood of many records below, as a function of few numbers."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from ldpbayes._core.types import Array, Params
from ldpbayes.inference.approximations.panels import panel_sketches
from ldpbayes.inference.compiled_programs import inputs_in_use
from ldpbayes.inference.density import Density, Site

WORTHWHILE_RECORDS = 1000  # records from which on an observed site is worth expanding
REQUESTED_RECORDS = 10  # records from which on an observed site is expanded on request
MAX_COORDINATES = 128  # numbers in which a function is expanded, in each of its groups
MAX_ALL_COORDINATES = 1 << 14  # numbers of all groups together


class NoExpansion(ValueError):
    """The model has no place where it can be cut, or no mode, or several of which an expansion would know one only."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """A model cut in two: potential = rest(parameters) − likelihood(coordinates(parameters))."""

    density: Density
    observed: tuple[str, ...]  # sites whose log-likelihood is below the cut
    names: tuple[str, ...]  # sites whose values are coordinates: slopes, or a deterministic site below group effects
    unconstrained: frozenset[str]  # those of them whose unconstrained values are taken
    shapes: tuple[tuple[int, ...], ...]  # of the values of these sites
    groups: int | None  # number of groups if the likelihood is a sum over groups, each of its own coordinates
    count: int  # number of records below the cut
    parameters: Params  # any unconstrained values of the latent sites

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coordinates, (n,) or (groups, n)."""
        total = sum(math.prod(shape) for shape in self.shapes)
        return (total,) if self.groups is None else (self.groups, total // self.groups)

    def rest(self, parameters: Params) -> Array:
        above = numpyro.handlers.block(self.density.model, hide=list(self.observed))
        return dataclasses.replace(self.density, model=above).potential(parameters)

    def coordinates(self, parameters: Params) -> Array:
        values = self.density.constrained(parameters) | {name: parameters[name] for name in self.unconstrained}
        lead = () if self.groups is None else (self.groups,)
        return jnp.concatenate([jnp.reshape(values[name], (*lead, -1)) for name in self.names], axis=-1)

    def likelihood(self, x: Array) -> Array:
        sizes = [math.prod(shape) // (self.groups or 1) for shape in self.shapes]
        parts = jnp.split(jnp.asarray(x), np.cumsum(sizes)[:-1], axis=-1)
        values = {name: jnp.reshape(p, s) for name, p, s in zip(self.names, parts, self.shapes, strict=True)}
        unconstrained = self.unconstrained | (set(self.parameters) - set(self.names))
        return self.density.log_likelihood(self.parameters | values, unconstrained, self.observed)


def cut_model(density: Density, sites: dict[str, Site], parameters: Params, least: int = WORTHWHILE_RECORDS) -> Cut:
    """Cut a model above its observed sites with enough records, by any parameters of finite density."""
    observed = tuple(name for name, site in sites.items() if site.records >= least)
    if not observed:
        raise NoExpansion(f"no observed site has {least} records or more")
    if panel_sketches(density):
        raise NoExpansion("the data include a PanelSketch, whose accuracy is checked in another way")
    count = sum(sites[name].records for name in observed)
    values = jax.eval_shape(density.constrained, parameters)
    real = [name for name, value in values.items() if jnp.issubdtype(value.dtype, jnp.floating)]
    small = [name for name in real if values[name].size <= MAX_ALL_COORDINATES and name not in parameters]
    for fixed in (small, []):
        ancestors = _ancestors(density, observed, {name: values[name] for name in fixed}, parameters)
        # Two coordinates with a common latent ancestor are not free of each other: the cut is then at latent sites.
        if sum(map(len, ancestors.values())) == len(frozenset().union(*ancestors.values())):
            break
    names = tuple(ancestors)
    unconstrained = frozenset(name for name in names if name in parameters and not sites[name].expanded_constrained)
    shapes = tuple(np.shape(parameters[name]) if name in unconstrained else values[name].shape for name in names)
    whole = Cut(density, observed, names, unconstrained, shapes, None, count, parameters)
    lead = {shape[:1] for shape in shapes}
    if len(lead) == 1 and lead not in ({()}, {(1,)}):
        (groups,) = next(iter(lead))
        grouped = dataclasses.replace(whole, groups=groups)
        # Groups with one coordinate each, such as slopes, are taken apart only if there are too many for one vector.
        worthwhile = grouped.shape[1] > 1 or whole.shape[0] > MAX_COORDINATES
        if worthwhile and grouped.shape[1] <= MAX_COORDINATES and _is_sum(grouped, grouped.coordinates(parameters)):
            return grouped
    if whole.shape[0] > MAX_COORDINATES:
        sizes = ", ".join(f"{math.prod(shape)} of {name!r}" for name, shape in zip(names, shapes, strict=True))
        most = f"at most {MAX_COORDINATES} are allowed for a group of records (name fewer with numpyro.deterministic)"
        raise NoExpansion(f"the likelihood depends on {whole.shape[0]} numbers ({sizes}), but {most}")
    return whole


def _ancestors(density: Density, observed: tuple[str, ...], fixed: Params, parameters: Params) -> dict[str, frozenset]:
    """Sites that the observed sites depend on if deterministic ones are fixed, with the latent sites behind each."""

    def likelihood(latent: Params, fixed: Params) -> Array:
        return density.log_likelihood(latent | fixed, latent, observed)

    latent, deterministic = inputs_in_use(likelihood, parameters, fixed)
    ancestors = {name: frozenset([name]) for name in latent}
    for name in deterministic:
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
