"""A NumPyro model as plain functions of its unconstrained parameters, and the description of its sites."""

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
from ldpbayes._core.types import Array, Key, Message, Model, Params, PyTree
from ldpbayes.data import Release, Sketch
from ldpbayes.data.frames import arrays_of_frames
from ldpbayes.inference._handlers import check_site
from ldpbayes.likelihood.privatized import Privatized, unwrapped
from ldpbayes.mechanisms import Mechanism

RUNNING = threading.RLock()  # held while a model runs, because all threads share NumPyro's stack of handlers


class Site(NamedTuple):
    latent: bool  # whether it is sampled
    discrete_base: bool  # whether it is privatized, with records that are whole numbers
    dims: list[str]  # names of the plates that the first axes of its values belong to
    plain: bool  # whether a sampler of unconstrained parameters takes it as it is
    records: int = 0  # number of observed records: concrete weights of a sketch's nodes count
    rows: int = 0  # number of observed values, each of which may stand for several records
    # Whether an expansion uses its constrained values, which are single numbers or shares. Likelihoods of perturbed
    # records are nearer to polynomials in these: they are smooth where a share or a scale is 0.
    expanded_constrained: bool = False
    shape: tuple[int, ...] = ()
    mechanism: Mechanism | None = None  # the mechanism of observed values that came without their release


def _is_data(leaf: object) -> bool:
    return isinstance(leaf, (Release, Sketch))


def leaves(tree: PyTree) -> list[Any]:
    """Leaves of a pytree, where each release and each sketch is one leaf."""
    return jax.tree.leaves(tree, is_leaf=_is_data)


@dataclass(frozen=True)
class Density:
    """A NumPyro model with its arguments."""

    model: Model
    args: tuple
    kwargs: dict[str, Any]

    @property
    def data(self) -> list[Any]:
        """The releases and sketches among the arguments, in their order there."""
        return [leaf for leaf in leaves((self.args, self.kwargs)) if _is_data(leaf)]

    def replace_data(self, function: Callable[[Any], Any]) -> "Density":
        """The density with ``function(data)`` in the place of each release and sketch."""
        args, kwargs = jax.tree.map(
            lambda leaf: function(leaf) if _is_data(leaf) else leaf, (self.args, self.kwargs), is_leaf=_is_data
        )
        return Density(self.model, args, kwargs)

    def trace(self, model: Model) -> dict[str, Message]:
        """Sites of one run of ``model``, a version of this model under further handlers."""
        with RUNNING:
            return numpyro.handlers.trace(model).get_trace(*self.args, **self.kwargs)

    def _initial_trace(self, key: Key, strategy: Callable) -> dict[str, Message]:
        # The strategy gives all latent sites their values, since nothing can be drawn from an improper prior.
        return self.trace(numpyro.handlers.substitute(numpyro.handlers.seed(self.model, key), substitute_fn=strategy))

    def start(self, key: Key, strategy: Callable = init_to_uniform, sites: dict[str, Site] | None = None) -> Params:
        """Unconstrained values of the latent sites, by a strategy of NumPyro; fills ``sites`` and warns as NumPyro."""
        trace = self._initial_trace(key, strategy)
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

    def values(self, key: Key, strategy: Callable) -> Params:
        """Constrained values of the latent sites at which a chain may start."""
        return {name: site["value"] for name, site in self._initial_trace(key, strategy).items() if _is_latent(site)}

    def observed(self, key: Key) -> Params:
        """Observed values by site, of a run with this random key."""
        trace = self._initial_trace(key, init_to_uniform)
        return {name: site["value"] for name, site in trace.items() if _is_observed(site)}

    def potential(self, parameters: Params) -> Array:
        """Minus the log density of unconstrained parameters."""
        with RUNNING:
            return potential_energy(self.model, self.args, self.kwargs, parameters)

    def constrained(self, parameters: Params) -> Params:
        """Values of the latent and the deterministic sites at unconstrained parameters."""
        with RUNNING:
            return constrain_fn(self.model, self.args, self.kwargs, parameters, return_deterministic=True)

    def log_density(self, values: Params) -> Array:
        """Log density of values of the latent sites."""
        with RUNNING:
            return log_density(self.model, self.args, self.kwargs, values)[0]


def density_of(model: Model, args: tuple, kwargs: dict[str, Any]) -> Density:
    """The density of a model with a user's arguments: data frames become arrays, NumPy arrays become views. JAX 0.10 to
    0.12 remember, by the identity of a NumPy array that a compiled function holds as a constant, that its precision was
    double. They would afterwards refuse the caller's own array in single precision.
    """
    arrays = arrays_of_frames((args, kwargs))
    views = jax.tree.map(lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, arrays)
    return Density(model, *views)


def sites_of(density: Density, strategy: Callable = init_to_uniform) -> dict[str, Site]:
    """Sites of a model by name, found by tracing it abstractly: nothing is computed."""
    sites: dict[str, Site] = {}
    jax.eval_shape(lambda key: density.start(key, strategy, sites), jax.random.key(0))
    return sites


def _is_latent(site: Message) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _is_observed(site: Message) -> bool:
    return site["type"] == "sample" and site["is_observed"]


def _sites(trace: dict[str, Message]) -> dict[str, Site]:
    sites = {}
    for name, site in trace.items():
        if site["type"] == "plate":  # one that subsamples draws indices anew each time, fewer than its size
            sites[name] = Site(False, False, [], plain=np.shape(site["value"]) == (site["args"][0],))
            continue
        fn, _ = unwrapped(site.get("fn"))
        latent, observed, private = _is_latent(site), _is_observed(site), isinstance(fn, Privatized)
        if observed and _is_data(site["value"]):
            raise TypeError(
                f"site {name!r} observes a {type(site['value']).__name__}: write it with ldpbayes.observe, or fit "
                f"privatize(model, {{{name!r}: release.mechanism}})"
            )
        if observed and private:
            check_site(name, site["fn"], site["value"])
        frames = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
        # A value computed inside a plate need not have the plate's shape: no axis of it then belongs to the plate.
        shape, sizes = np.shape(site["value"]), tuple(frame.size for frame in frames)
        fits = shape[: len(sizes)] == sizes and (site["type"] == "sample" or len(shape) == len(sizes))
        if latent and private:
            raise ValueError(f"site {name!r} is privatized and observes nothing: give the model its released values")
        discrete = latent and (site["fn"].support.is_discrete or isinstance(fn, dist.Delta))
        records, rows = _record_count(site) if observed else (0, 0)
        sites[name] = Site(
            latent,
            discrete_base=private and fn.base_dist.support.is_discrete,
            dims=[frame.name for frame in frames] if fits else [],
            plain=site["type"] in ("sample", "deterministic", "control_flow") and not discrete,
            records=records,
            rows=rows,
            expanded_constrained=latent and _has_numbers_or_shares(site["fn"].support),
            shape=shape,
            mechanism=fn.mechanism if observed and private and not site["infer"].get("released") else None,
        )
    return sites


def _has_numbers_or_shares(support: Any) -> bool:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.simplex or support.event_dim == 0


def _record_count(site: Message) -> tuple[int, int]:
    """Number of records observed at a site, and number of values that they are observed in."""
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
