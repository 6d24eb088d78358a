"""A NumPyro model as plain functions of its unconstrained parameters, and what its sites are."""

import threading
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from numpyro.infer import init_to_uniform
from numpyro.infer.util import constrain_fn, helpful_support_errors, log_density, potential_energy
from numpyro.util import _validate_model

from ldpbayes.inference.handlers import LAWS, check_site
from ldpbayes.likelihood.privatized import Privatized, unwrapped

__all__ = ["RUNNING", "Density", "Site", "sites_of"]

RUNNING = threading.RLock()
"""Held while a model is run: NumPyro's stack of handlers is one for all threads."""


class Site(NamedTuple):
    """What a site of a model is."""

    latent: bool
    discrete_base: bool
    dims: list  # names of plates that the first axes of its values are of
    plain: bool  # whether a sampler of unconstrained parameters takes it as it is


@dataclass(frozen=True)
class Density:
    """A model with its arguments.

    Attributes
    ----------
    model : callable
    args : tuple
    kwargs : dict
    """

    model: object
    args: tuple
    kwargs: dict

    def start(self, key, strategy=init_to_uniform, sites=None):
        """Where a chain may start: unconstrained values of the latent sites.

        Parameters
        ----------
        key : jax.Array
        strategy : callable
            One of NumPyro's, such as `numpyro.infer.init_to_median`.
        sites : dict, optional
            Is filled with the model's sites by name; NumPyro's warnings of missing plates are given then.
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

    def observed(self, key):
        """What is observed, by site."""
        sites = self._run(key, init_to_uniform).items()
        return {name: site["value"] for name, site in sites if site["type"] == "sample" and site["is_observed"]}

    def _run(self, key, strategy):
        # not drawn from their priors, which may be improper
        started = numpyro.handlers.substitute(numpyro.handlers.seed(self.model, key), substitute_fn=strategy)
        with RUNNING:
            return numpyro.handlers.trace(started).get_trace(*self.args, **self.kwargs)

    def potential(self, parameters):
        """Minus the log density of unconstrained parameters."""
        with RUNNING:
            return potential_energy(self.model, self.args, self.kwargs, parameters)

    def constrained(self, parameters):
        """Values of the latent and the deterministic sites at unconstrained parameters."""
        with RUNNING:
            return constrain_fn(self.model, self.args, self.kwargs, parameters, return_deterministic=True)

    def log_density(self, values):
        """Log density of values of the latent sites."""
        with RUNNING:
            return log_density(self.model, self.args, self.kwargs, values)[0]


def sites_of(density, strategy=init_to_uniform):
    """What a model's sites are, found by tracing it abstractly: nothing is computed.

    Parameters
    ----------
    density : Density
    strategy : callable

    Returns
    -------
    dict of str to Site
    """
    sites = {}
    jax.eval_shape(lambda key: density.start(key, strategy, sites), jax.random.key(0))
    return sites


def _is_latent(site):
    return site["type"] == "sample" and not site["is_observed"]


def _sites(trace):
    sites = {}
    for name, site in trace.items():
        if site["type"] == "plate":
            plain = np.shape(site["value"]) == (site["args"][0],)  # of all that it counts, not of some drawn anew
            sites[name] = Site(False, False, [], plain)
            continue
        fn, _ = unwrapped(site.get("fn"))
        observed = site["type"] == "sample" and site["is_observed"]
        if observed and isinstance(fn, LAWS):
            check_site(name, site["fn"], site["value"])
        frames = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
        # what is computed inside a plate need not have its shape
        shape, sizes = np.shape(site["value"]), tuple(frame.size for frame in frames)
        fits = shape[: len(sizes)] == sizes and (site["type"] == "sample" or len(shape) == len(sizes))
        latent = _is_latent(site)
        odd = latent and (site["fn"].support.is_discrete or isinstance(fn, dist.Delta))
        sites[name] = Site(
            latent,
            isinstance(fn, Privatized) and fn.base_dist.support.is_discrete,
            [frame.name for frame in frames] if fits else [],
            site["type"] in ("sample", "deterministic", "control_flow") and not odd,
        )
    return sites
