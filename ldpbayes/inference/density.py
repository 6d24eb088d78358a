"""A NumPyro model as plain functions of its unconstrained parameters, and the description of its sites."""

import math
import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.infer import init_to_uniform
from numpyro.infer.util import constrain_fn, helpful_support_errors, potential_energy, unconstrain_fn
from numpyro.primitives import Messenger
from numpyro.util import _validate_model

from ldpbayes._core.types import Array, Key, Message, Model, Params, PyTree, is_concrete
from ldpbayes.data import Release, Sketch
from ldpbayes.inference._handlers import check_site
from ldpbayes.inference.compiled_programs import inputs_in_use
from ldpbayes.laws.compound import unwrapped
from ldpbayes.laws.families import known_breaks, unexpanded
from ldpbayes.likelihood.privatized import Privatized
from ldpbayes.mechanisms import Mechanism, NumericMechanism

RUNNING = threading.RLock()  # held while a model runs, because all threads share NumPyro's stack of handlers


class Site(NamedTuple):
    latent: bool  # whether it is sampled
    discrete_base: bool  # whether it is privatized, with records that are whole numbers, not categories
    dims: list[str]  # names of the plates that the first axes of its values belong to
    plain: bool  # whether a sampler of unconstrained parameters takes it as it is
    records: int = 0  # number of observed records: concrete weights of a sketch's nodes count
    rows: int = 0  # number of observed values, each of which may stand for several records
    batch_shape: tuple[int, ...] = ()  # of the log-likelihoods of these values
    # whether an expansion uses its constrained values, in which likelihoods are smooth where a share or a scale is 0
    expanded_constrained: bool = False
    shape: tuple[int, ...] = ()
    mechanism: Mechanism | None = None  # the mechanism of observed values that came without their release
    sampled: tuple[str, ...] = ()  # sites that the parameters of its mechanism depend on
    release: Any = None  # whose values are observed
    fixed: bool = False  # whether it is privatized, with records that are numbers, not draws of a law
    on_panels: bool = False  # whether a channel integrates over its records, on panels that may be too wide
    kinked: bool = False  # whether it is privatized, with a density that has kinks at known places
    improper: bool = False  # whether its law is no probability


def _is_data(leaf: object) -> bool:
    return isinstance(leaf, (Release, Sketch))


def leaves(tree: PyTree) -> list[Any]:
    """Leaves of a pytree, where each release and each sketch is one leaf."""
    return jax.tree.leaves(tree, is_leaf=_is_data)


def given(model: Model, values: Params, unconstrained: Container[str] = ()) -> Model:
    """A model whose latent or deterministic sites have given values, some of them in unconstrained space."""

    def value_of(site: Message) -> Array | None:
        value = values.get(site["name"])
        return biject_to(site["fn"].support)(value) if site["name"] in unconstrained else value

    return numpyro.handlers.substitute(model, substitute_fn=value_of)


def sample_sites(trace: dict[str, Message], observed: bool) -> dict[str, Message]:
    return {name: site for name, site in trace.items() if site["type"] == "sample" and site["is_observed"] == observed}


@dataclass(frozen=True)
class Density:
    """A NumPyro model with its arguments."""

    model: Model
    args: tuple
    kwargs: dict[str, Any]
    # the density of all records, if equal ones count once in this one, or tables stand for their likelihoods
    whole: "Density | None" = field(default=None, kw_only=True)

    # The releases and sketches among the arguments, in their order there.
    data = property(lambda self: [leaf for leaf in leaves((self.args, self.kwargs)) if _is_data(leaf)])

    def replace_data(self, function: Callable[[Any], Any]) -> "Density":
        """The density with ``function(data)`` in the place of each release and sketch."""
        parts, structure = jax.tree.flatten((self.args, self.kwargs), is_leaf=_is_data)
        replaced = [function(leaf) if _is_data(leaf) else leaf for leaf in parts]
        return Density(self.model, *jax.tree.unflatten(structure, replaced), whole=self.whole)

    def trace(self, model: Model) -> dict[str, Message]:
        """Sites of one run of ``model``, a version of this model under further handlers."""
        with RUNNING:
            return numpyro.handlers.trace(model).get_trace(*self.args, **self.kwargs)

    def at(self, parameters: Params) -> dict[str, Message]:
        """Sites of one run with these unconstrained values of the latent sites."""
        return self.trace(given(self.model, parameters, parameters))

    def run(self, key: Key, strategy: Callable = init_to_uniform) -> dict[str, Message]:
        """Sites of one run, with latent values by a strategy of NumPyro: an improper prior gives no draws."""
        return self.trace(numpyro.handlers.substitute(numpyro.handlers.seed(self.model, key), substitute_fn=strategy))

    def values(self, key: Key, observed: bool = False) -> Params:
        """Values of the latent sites, or of the observed ones, in a run with this random key."""
        return {name: site["value"] for name, site in sample_sites(self.run(key), observed).items()}

    def start(self, key: Key, strategy: Callable = init_to_uniform) -> Params:
        """Unconstrained values of the latent sites that are not discrete, by a strategy of NumPyro."""
        values = {}
        for name, site in sample_sites(self.run(key, strategy), observed=False).items():
            if not site["fn"].support.is_discrete:
                with helpful_support_errors(site):
                    values[name] = biject_to(site["fn"].support).inv(site["value"])
        return values

    def example(self, strategy: Callable = init_to_uniform) -> Params:
        """Zeros in the place of the values of `start`; nothing is computed."""
        shapes = jax.eval_shape(lambda key: self.start(key, strategy), jax.random.key(0))
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def spread(self) -> tuple[Params, Params]:
        """Prior means and standard deviations of latent sites, unconstrained, to first order; NaN if unknown."""
        deviations = {}

        def mean(site: Message) -> Array | None:
            if site["type"] != "sample" or site["is_observed"]:
                return None
            law, transform = site["fn"], biject_to(site["fn"].support)
            try:
                moments = law.mean, jnp.sqrt(law.variance)
            except Exception:  # laws of users, too
                moments = jnp.asarray(jnp.nan), jnp.asarray(jnp.nan)
            middle = transform(jnp.zeros(transform.inverse_shape(law.shape())))
            centre, deviation = (jnp.broadcast_to(jnp.asarray(moment, float), law.shape()) for moment in moments)
            value = jnp.where(jnp.isfinite(centre), centre, middle)
            deviations[site["name"]] = jax.jvp(transform.inv, (value,), (deviation,))[1]
            return value

        return self.start(jax.random.key(0), mean), deviations

    def potential(self, parameters: Params) -> Array:
        """Minus the log density of unconstrained parameters."""
        with RUNNING:
            return potential_energy(self.model, self.args, self.kwargs, parameters)

    def constrained(self, parameters: Params) -> Params:
        """Values of the latent and the deterministic sites at unconstrained parameters."""
        with RUNNING:
            return constrain_fn(self.model, self.args, self.kwargs, parameters, return_deterministic=True)

    def unconstrained(self, values: Params) -> Params:
        with RUNNING:
            return unconstrain_fn(self.model, self.args, self.kwargs, values)

    def log_likelihood(
        self, values: Params, unconstrained: Container[str] = (), observed: Iterable[str] | None = None
    ) -> Array:
        """Log density of the observed sites, or of some, where other sites have values as in `given`."""
        sites = sample_sites(self.trace(given(self.model, values, unconstrained)), observed=True)
        parts = []
        for site in sites.values() if observed is None else [sites[name] for name in observed]:
            log_prob = site["fn"].log_prob(site["value"])
            parts.append(jnp.sum(log_prob if site["scale"] is None else site["scale"] * log_prob))
        return sum(parts)

    def is_narrow(self, values: Params) -> Array:
        """Whether any law of records is narrow beside the panels of its channel, which then cannot be exact."""
        sites = sample_sites(self.trace(given(self.model, values)), observed=True).values()
        laws = [unwrapped(site["fn"])[0] for site in sites if _on_fixed_panels(site)]
        return jnp.any(jnp.stack([law.is_narrow for law in laws]))


def _on_fixed_panels(site: Message) -> bool:
    fn, _ = unwrapped(site["fn"])
    return isinstance(fn, Privatized) and fn.on_fixed_panels(site["value"])


class _SurveyWeighted(Messenger):
    """Multiplies the log-likelihood of each observed record by its weight."""

    def __init__(self, model: Model, weights: Array) -> None:
        self.weights = weights
        super().__init__(model)

    def process_message(self, msg: Message) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], dist.Unit):
            if (shape := log_likelihood_shape(msg)) != np.shape(self.weights):
                needs = f"weights are of {len(self.weights)} records, but the site has shape {shape}"
                raise ValueError(f"site {msg['name']!r}: {needs}; give a weight for each record of the release")
            msg["scale"] = self.weights if msg["scale"] is None else self.weights * msg["scale"]


@dataclass(frozen=True)
class _WithWeights:
    """A model whose first argument are weights of the records."""

    model: Model

    def __call__(self, weights: Array, *args: Any, **kwargs: Any) -> Any:
        return _SurveyWeighted(self.model, weights)(*args, **kwargs)


def density_of(model: Model, args: tuple, kwargs: dict[str, Any], weights: Array = None) -> Density:
    """The density of a model with its `prepared` arguments: NumPy arrays become views. With weights (N,), the
    log-likelihood of each record is multiplied by its weight.
    """
    if weights is not None:
        model, args = _WithWeights(model), (weights, *args)
    # JAX 0.10 to 0.12 remember that an array, by its identity, was a constant in double precision, and would afterwards
    # refuse the caller's own array in single precision.
    views = jax.tree.map(lambda leaf: leaf.view() if isinstance(leaf, np.ndarray) else leaf, (args, kwargs))
    return Density(model, *views)


def sites_of(density: Density, strategy: Callable = init_to_uniform) -> dict[str, Site]:
    """Sites of a model by name, found by tracing it abstractly: nothing is computed. Warns as NumPyro."""
    sites: dict[str, Site] = {}

    def describe(key: Key) -> None:
        trace = density.run(key, strategy)
        sites.update({name: _described(name, site) for name, site in trace.items()})
        if all(site.plain for site in sites.values()):
            _validate_model(trace)

    jax.eval_shape(describe, jax.random.key(0))
    for name in [name for name, site in sites.items() if not is_concrete(site.mechanism)]:

        def mechanism(parameters: Params, name: str = name) -> Mechanism:
            model = numpyro.handlers.seed(given(density.model, parameters, parameters), jax.random.key(0))
            return unwrapped(density.trace(model)[name]["fn"])[0].mechanism

        (sampled,) = inputs_in_use(lambda values: jax.tree.leaves(mechanism(values)), density.example(strategy))
        fixed = None if sampled or sites[name].release else mechanism(density.start(jax.random.key(0), strategy))
        sites[name] = sites[name]._replace(mechanism=fixed, sampled=(*sampled,))
    return sites


def _described(name: str, site: Message) -> Site:
    if site["type"] == "plate":  # one that subsamples draws indices anew each time, fewer than its size
        return Site(False, False, [], plain=np.shape(site["value"]) == (site["args"][0],))
    fn, keep = unwrapped(site.get("fn"))
    sampled, private = site["type"] == "sample", isinstance(fn, Privatized)
    latent, observed = sampled and not site["is_observed"], sampled and site["is_observed"]
    if observed and _is_data(site["value"]):
        advice = f"use ldpbayes.observe for this site, or fit privatize(model, {{{name!r}: release.mechanism}})"
        raise TypeError(f"site {name!r} observes a {type(site['value']).__name__}: {advice}")
    if observed and private:
        check_site(name, site["fn"], site["value"])
    frames = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
    # A value computed inside a plate need not have the plate's shape: no axis of it then belongs to the plate.
    shape, sizes = np.shape(site["value"]), tuple(frame.size for frame in frames)
    fits = shape[: len(sizes)] == sizes and (sampled or len(shape) == len(sizes))
    if latent and (private or site["infer"].get("original")):
        raise ValueError(f"site {name!r} is privatized, but observes no values: give the model the released values")
    discrete = latent and (site["fn"].support.is_discrete or isinstance(fn, dist.Delta))
    batch_shape = log_likelihood_shape(site) if observed else ()
    released = site["infer"].get("released") if observed else None
    return Site(
        latent,
        discrete_base=private and fn.base_dist.support.is_discrete and isinstance(fn.mechanism, NumericMechanism),
        dims=[frame.name for frame in frames] if fits else [],
        plain=site["type"] in ("sample", "deterministic", "control_flow") and not discrete,
        records=_record_count(site, batch_shape) if observed else 0,
        rows=math.prod(batch_shape) if observed else 0,
        batch_shape=batch_shape,
        expanded_constrained=latent and _has_numbers_or_shares(site["fn"].support),
        shape=shape,
        mechanism=fn.mechanism if observed and private and (not released or not is_concrete(fn.mechanism)) else None,
        release=released,
        fixed=private and isinstance(unexpanded(fn.base_dist), dist.Delta),
        on_panels=observed and _on_fixed_panels(site),
        kinked=private and known_breaks(fn.base_dist) is not None,
        improper=latent and (isinstance(fn, dist.ImproperUniform) or keep is not True or site["scale"] is not None),
    )


def _has_numbers_or_shares(support: Any) -> bool:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.simplex or support.event_dim == 0


def log_likelihood_shape(site: Message) -> tuple[int, ...]:
    """Shape of an observed site's log-likelihood, a number a record; ValueError if values are not those of the laws."""
    values, laws = np.shape(site["value"]), site["fn"].batch_shape
    try:
        return np.broadcast_shapes(laws, values[: len(values) - site["fn"].event_dim])
    except ValueError:
        name = site["name"]
        raise ValueError(f"site {name!r}: observed values of shape {values} do not fit laws of shape {laws}") from None


def _record_count(site: Message, shape: tuple[int, ...]) -> int:
    weights = site["scale"]
    if weights is None or not is_concrete(weights):
        return math.prod(shape)
    return int(np.sum(np.broadcast_to(weights, np.broadcast_shapes(shape, np.shape(weights)))))
