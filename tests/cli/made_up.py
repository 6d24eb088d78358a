"""Posteriors that nobody sampled, for tests of what the command line reads, prints and draws."""

import json

import jax
import numpy as np

from ldpbayes.inference.density import density_of, sites_of
from ldpbayes.inference.model import plans_of
from ldpbayes.inference.result import inference_data, labels

__all__ = ["fit"]


def fit(model, *args, num_samples, num_chains, dims=None, coords=None, **options):
    """In place of `ldpbayes.fit`: draws between 1/2 and 1 for each parameter of a model, which takes the data and is
    traced, with the names that `fit` gives to entries.
    """
    with jax.enable_x64(True):
        sites = sites_of(density_of(model, args, {}))
    dims, coords, keys = labels(dims, coords, sites, (args, {}))
    rng, shape = np.random.default_rng(0), (num_chains, num_samples)
    draws = {
        name: rng.uniform(0.5, 1.0, (*shape, *site.shape))
        for name, site in sites.items()
        if not (site.records or site.dims == [name])
    }
    result = inference_data({"posterior": draws}, dims, coords, keys)
    plans = json.dumps(plans_of(model, args, {}))  # which predictions need
    result.attrs.update(convergence_warnings="[]", release_warnings="[]", releases=plans)
    return result
