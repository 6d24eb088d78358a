"""A NumPyro model as plain functions of its unconstrained parameters, and what its sites are."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.infer import init_to_uniform
from numpyro.infer.util import constrain_fn, helpful_support_errors, log_density, potential_energy
from numpyro.util import _validate_model

from ldpbayes._core.tracing import is_concrete
from ldpbayes.data import Release, Sketch
from ldpbayes.data.frames import arrays_of_frames
from ldpbayes.inference._privatize import check_site
from ldpbayes.likelihood.privatized import Privatized, unwrapped

RUNNING = threading.RLock()
"""Is held while a model runs, because all threads share NumPyro's stack of handlers."""


class Site(NamedTuple):
    """What a site of a model is.

    Attributes
    ----------
    latent : bool
        Whether it is sampled.
    discrete_base : bool
        Whether it is privatized, with records that are whole numbers.
    dims : list of str
        Names of the plates that the first axes of its values belong to.
    plain : bool
        Whether a sampler of unconstrained parameters takes it as it is.
    records : int
        How many records are observed there; those that a node of a sketch stands for count, where that can be seen.
    rows : int
        How many values are observed there, each of which may stand for several records.
    flat : bool
        Whether its values are numbers of their own, or shares. Likelihoods of perturbed records are nearer to
        polynomials in these than in unconstrained parameters: they are smooth where a share or a scale is 0.
    shape : tuple of int
        Of its value.
    mechanism : Mechanism or None
        Where values are observed that came without their release: what released them.
    """

    latent: bool
    discrete_base: bool
    dims: list[str]
    plain: bool
    records: int = 0
    rows: int = 0
    flat: bool = False
    shape: tuple[int, ...] = ()
    mechanism: Any = None


@dataclass(frozen=True)
class Density:
    """A model with its arguments.

    Attributes
    ----------
    model : callable
        NumPyro model.
    args : tuple
        Its arguments by position.
    kwargs : dict
        Its arguments by name.
    """

    model: Callable
    args: tuple
    kwargs: dict[str, Any]

    def start(
        self, key: jax.Array, strategy: Callable = init_to_uniform, sites: dict[str, Site] | None = None
    ) -> dict[str, Any]:
        """Where a chain may start: unconstrained values of the latent sites.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        strategy : callable
            One of NumPyro's, such as `numpyro.infer.init_to_median`.
        sites : dict, optional
            Is filled with the model's sites by name, and NumPyro's warnings of missing plates are then given.
        """
        trace = self._run(key, strategy)
        if sites is not None:
            sites.update(_sites(trace))
            if all(site.plain for site in sites.values()):
                _validate_model(trace)
        values = {}
        for name, site in trace.items():
            if _is_latent(site) and not site["fn"].support.is_discrete:
                with helpful_support_errors(site):
                    values[name] = biject_to(site["fn"].support).inv(site["value"])
        return values

    def values(self, key: jax.Array, strategy: Callable) -> dict[str, Any]:
        """Values of the latent sites, where a chain may start."""
        return {name: site["value"] for name, site in self._run(key, strategy).items() if _is_latent(site)}

    def observed(self, key: jax.Array) -> dict[str, Any]:
        """Observed values by site, of a run with this random key."""
        sites = self._run(key, init_to_uniform).items()
        return {name: site["value"] for name, site in sites if site["type"] == "sample" and site["is_observed"]}

    def _run(self, key: jax.Array, strategy: Callable) -> Any:
        # The strategy gives all latent sites their values, since nothing can be drawn from an improper prior.
        started = numpyro.handlers.substitute(numpyro.handlers.seed(self.model, key), substitute_fn=strategy)
        with RUNNING:
            return numpyro.handlers.trace(started).get_trace(*self.args, **self.kwargs)

    def potential(self, parameters: dict[str, Any]) -> Any:
        """Minus the log density of unconstrained parameters."""
        with RUNNING:
            return potential_energy(self.model, self.args, self.kwargs, parameters)

    def constrained(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Values of the latent and the deterministic sites at unconstrained parameters."""
        with RUNNING:
            return constrain_fn(self.model, self.args, self.kwargs, parameters, return_deterministic=True)

    def log_density(self, values: dict[str, Any]) -> Any:
        """Log density of values of the latent sites."""
        with RUNNING:
            return log_density(self.model, self.args, self.kwargs, values)[0]


def density_of(model: Callable, args: tuple, kwargs: dict[str, Any]) -> Density:
    """A model with the arguments that a user gave, data frames among them.

    Parameters
    ----------
    model : callable
        NumPyro model.
    args : tuple
        Its arguments by position.
    kwargs : dict
        Its arguments by name.

    Returns
    -------
    Density
        With new NumPy arrays, on the same memory. JAX 0.10 to 0.12 remember, by the identity of a NumPy array that a
        compiled function holds as a constant, that its precision was double; were it the caller's own array, they would
        refuse it in single precision afterwards.
    """
    arrays = arrays_of_frames((args, kwargs))
    views = jax.tree.map(lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, arrays)
    return Density(model, *views)


def sites_of(density: Density, strategy: Callable = init_to_uniform) -> dict[str, Site]:
    """What a model's sites are, found by tracing it abstractly: nothing is computed.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    strategy : callable
        How a chain would start; see `Density.start`.

    Returns
    -------
    dict of str to Site
    """
    sites: dict[str, Site] = {}
    jax.eval_shape(lambda key: density.start(key, strategy, sites), jax.random.key(0))
    return sites


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _sites(trace: Any) -> dict[str, Site]:
    sites = {}
    for name, site in trace.items():
        if site["type"] == "plate":
            # A plate that subsamples draws indices anew each time, fewer than its size.
            plain = np.shape(site["value"]) == (site["args"][0],)
            sites[name] = Site(False, False, [], plain)
            continue
        fn, _ = unwrapped(site.get("fn"))
        observed = site["type"] == "sample" and site["is_observed"]
        if observed and isinstance(site["value"], (Release, Sketch)):
            raise TypeError(
                f"site {name!r} observes a {type(site['value']).__name__}: write it with ldpbayes.observe, or fit "
                f"privatize(model, {{{name!r}: release.mechanism}})"
            )
        if observed and isinstance(fn, Privatized):
            check_site(name, site["fn"], site["value"])
        frames = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
        # A value computed inside a plate need not have the plate's shape, and has then no axis that it names.
        shape, sizes = np.shape(site["value"]), tuple(frame.size for frame in frames)
        fits = shape[: len(sizes)] == sizes and (site["type"] == "sample" or len(shape) == len(sizes))
        latent = _is_latent(site)
        if latent and isinstance(fn, Privatized):
            raise ValueError(f"site {name!r} is privatized and observes nothing: give the model its released values")
        odd = latent and (site["fn"].support.is_discrete or isinstance(fn, dist.Delta))
        sites[name] = Site(
            latent,
            isinstance(fn, Privatized) and fn.base_dist.support.is_discrete,
            [frame.name for frame in frames] if fits else [],
            site["type"] in ("sample", "deterministic", "control_flow") and not odd,
            *(_observed(site) if observed else (0, 0)),
            latent and _is_flat(site["fn"].support),
            shape,
            fn.mechanism if observed and isinstance(fn, Privatized) and not site["infer"].get("released") else None,
        )
    return sites


def _is_flat(support: Any) -> bool:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.simplex or support.event_dim == 0


def _observed(site: dict[str, Any]) -> tuple[int, int]:
    """How many records there are, and in how many values."""
    values, weights, laws = np.shape(site["value"]), site["scale"], site["fn"].batch_shape
    try:
        shape = np.broadcast_shapes(laws, values[: len(values) - site["fn"].event_dim])
    except ValueError:
        raise ValueError(
            f"site {site['name']!r}: observed values of shape {values} are not those of {laws} laws"
        ) from None
    rows = math.prod(shape)
    if weights is None or not is_concrete(weights):
        return rows, rows
    return int(np.sum(np.broadcast_to(weights, np.broadcast_shapes(shape, np.shape(weights))))), rows
