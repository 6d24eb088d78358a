"""Where a model meets its records: the few numbers through which the likelihood of many records sees the parameters.

These are values of the model's sites: shares, slopes and intercepts, a scale, a correlation matrix in unconstrained
space, or a deterministic site that stands between group effects and the records. The model is cut there: above is all
that does not grow with the records, priors and transformations, below is the log-likelihood as a function of these
numbers.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import biject_to
from numpyro.infer.util import compute_log_probs, potential_energy
from numpyro.primitives import Messenger

from ldpbayes.inference.certificate import panel_sketches
from ldpbayes.inference.density import RUNNING, Density, Site
from ldpbayes.inference.programs import inputs_in_use

MANY = 1000  # records from which on an observed site is worth expanding
SEVERAL = 10  # records from which on it is where an expansion is asked for
MOST = 128  # numbers in which a function is expanded at most, in each of its groups
MOST_GROUPED = 1 << 14  # numbers of all groups together


class Uncut(ValueError):
    """The model has no place where it can be cut; the message says why."""


class Given(Messenger):
    """Sites take values that are given: in their own space, or (those named in ``moved``) in unconstrained space.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    values : dict of str to array
        By site, latent or deterministic.
    moved : iterable of str
        Those that are unconstrained.
    """

    def __init__(self, model: Callable, values: dict[str, Any], moved: Iterable[str] = ()) -> None:
        self.values, self.moved = values, frozenset(moved)
        super().__init__(model)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Put the value in, of a latent or of a deterministic site."""
        if msg.get("name") in self.values and msg["type"] in ("sample", "deterministic"):
            value = self.values[msg["name"]]
            msg["value"] = biject_to(msg["fn"].support)(value) if msg["name"] in self.moved else value


class _Silent(Messenger):
    """Observed sites whose log density is left out."""

    def __init__(self, model: Callable, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        super().__init__(model)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Hide what is observed."""
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["fn"] = msg["fn"].mask(False)


@dataclass(frozen=True)
class Cut:
    """A model cut in two: potential = rest(parameters) − likelihood(coordinates(parameters)).

    Attributes
    ----------
    density : Density
        The model with its arguments.
    observed : tuple of str
        The sites whose log-likelihood is below the cut.
    names : tuple of str
        The sites at whose values it is cut.
    moved : frozenset of str
        Those of them that are taken in unconstrained space.
    shapes : tuple of tuple of int
        Of these values.
    groups : int, optional
        Where the likelihood is a sum over groups, each of which sees only its own numbers: how many there are.
    count : int
        Number of records below the cut.
    elsewhere : dict
        Unconstrained values of the latent sites that the records do not see, which may be anything.
    """

    density: Density
    observed: tuple[str, ...]
    names: tuple[str, ...]
    moved: frozenset[str]
    shapes: tuple[tuple[int, ...], ...]
    groups: int | None
    count: int
    elsewhere: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the coordinates, (n,) or (groups, n)."""
        total = sum(math.prod(shape) for shape in self.shapes)
        return (total,) if self.groups is None else (self.groups, total // self.groups)

    def rest(self, parameters: dict[str, Any]) -> Any:
        """The potential of unconstrained parameters without the likelihood below the cut."""
        silent = _Silent(self.density.model, self.observed)
        with RUNNING:
            return potential_energy(silent, self.density.args, self.density.kwargs, parameters)

    def coordinates(self, parameters: dict[str, Any]) -> Any:
        """The numbers that the records see at unconstrained parameters, in the shape of the cut."""
        return self.joined(self.density.constrained(parameters) | {name: parameters[name] for name in self.moved})

    def joined(self, values: dict[str, Any]) -> Any:
        """Values of the sites at which the model is cut, as one array."""
        lead = () if self.groups is None else (self.groups,)
        return jnp.concatenate([jnp.reshape(values[name], (*lead, -1)) for name in self.names], axis=-1)

    def likelihood(self, x: ArrayLike) -> Any:
        """Log-likelihood of all records at the numbers that they see."""
        sizes = [math.prod(shape) // (self.groups or 1) for shape in self.shapes]
        parts = jnp.split(jnp.asarray(x), np.cumsum(sizes)[:-1], axis=-1)
        seen = {name: jnp.reshape(p, s) for name, p, s in zip(self.names, parts, self.shapes, strict=True)}
        given = Given(self.density.model, self.elsewhere | seen, self.moved | set(self.elsewhere))
        with RUNNING:
            sums = compute_log_probs(given, self.density.args, self.density.kwargs, {})[0]
        return sum(sums[name] for name in self.observed)


def cut(density: Density, sites: dict[str, Site], parameters: dict[str, Any], many: int = MANY) -> Cut:
    """Find where a model may be cut.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    sites : dict of str to Site
        See `sites_of`.
    parameters : dict of str to array
        Any unconstrained parameters of finite density.
    many : int
        Records that an observed site has at least, if it is to be below the cut.

    Returns
    -------
    Cut

    Raises
    ------
    Uncut
        If no observed site has many records, or these see too many numbers.
    """
    observed = tuple(name for name, site in sites.items() if site.records >= many)
    if not observed:
        raise Uncut(f"no observed site has {many} records or more")
    if panel_sketches(density):
        raise Uncut("a sketch on panels is among the data, which has a certificate of its own")
    count = sum(sites[name].records for name in observed)
    values = jax.eval_shape(density.constrained, parameters)
    small = [name for name in values if values[name].size <= MOST_GROUPED and name not in parameters]
    small = [name for name in small if jnp.issubdtype(values[name].dtype, jnp.floating)]
    for between in (small, []):
        seen, ancestors = _seen(density, observed, between, parameters)
        # Every latent value may be counted once: where two sites carry it, the numbers are not free of each other.
        if sum(map(len, ancestors)) == len(frozenset().union(*ancestors)):
            break
    moved = frozenset(name for name in seen if name in parameters and not sites[name].flat)
    shapes = tuple(np.shape(parameters[name]) if name in moved else values[name].shape for name in seen)
    elsewhere = {name: value for name, value in parameters.items() if name not in seen}
    whole = Cut(density, observed, tuple(seen), moved, shapes, None, count, elsewhere)
    lead = {shape[:1] for shape in shapes}
    if len(lead) == 1 and lead not in ({()}, {(1,)}):
        (groups,) = next(iter(lead))
        apart = Cut(density, observed, tuple(seen), moved, shapes, groups, count, elsewhere)
        # One number a group is looked at only where they are too many to be one vector, of slopes for instance.
        worth = apart.shape[1] > 1 or whole.shape[0] > MOST
        if worth and apart.shape[1] <= MOST and _adds_up(apart, apart.coordinates(parameters)):
            return apart
    if whole.shape[0] > MOST:
        sizes = ", ".join(f"{math.prod(shape)} of {name!r}" for name, shape in zip(seen, shapes, strict=True))
        raise Uncut(
            f"its records see {whole.shape[0]} numbers ({sizes}), and an expansion takes {MOST} at most, or as many in "
            "each group where every record belongs to one (values that stand between these and the records may be "
            "named by numpyro.deterministic)"
        )
    return whole


def _seen(
    density: Density, observed: tuple[str, ...], between: list[str], parameters: dict[str, Any]
) -> tuple[list[str], list[frozenset[str]]]:
    """Sites that the observed ones depend on where those between are given, and the latent sites behind each."""

    def likelihood(values: dict[str, Any], given: dict[str, Any]) -> Any:
        model = Given(density.model, values | given, values)
        with RUNNING:
            sums = compute_log_probs(model, density.args, density.kwargs, {})[0]
        return sum(sums[name] for name in observed)

    every = jax.eval_shape(density.constrained, parameters)
    latent, given = inputs_in_use(likelihood, parameters, {name: every[name] for name in between})
    behind = {name: frozenset([name]) for name in latent}
    for name in given:
        behind[name] = frozenset(inputs_in_use(lambda u, name=name: density.constrained(u)[name], parameters)[0])
    seen = [name for name in behind if behind[name]]
    return seen, [behind[name] for name in seen]


def _adds_up(cut: Cut, x: Any) -> bool:
    """Whether the likelihood is a sum over groups: moving some leaves the slopes of all others as they are.

    Any two groups are on different sides of one of log2(groups) divisions.
    """
    slopes = jax.jit(jax.grad(cut.likelihood))
    step, before = 1e-3 * (1 + jnp.abs(x)), slopes(x)
    numbers = np.arange(x.shape[0])
    for bit in range(int(x.shape[0] - 1).bit_length()):
        some = (numbers >> bit & 1).astype(bool)
        for mine in (some, ~some):
            after = slopes(x + jnp.where(mine[:, None], step, 0.0))
            if not np.array_equal(np.asarray(after)[~mine], np.asarray(before)[~mine]):
                return False
    return True
