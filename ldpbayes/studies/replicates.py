"""Posteriors of many releases of one kind in one compiled call."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

from ldpbayes.inference.release import Release
from ldpbayes.likelihood.sketch import PanelSketch

__all__ = ["ReplicatedFit"]


class ReplicatedFit:
    """NUTS, one chain a release, vectorised over releases: on sketches with common nodes, for rows on the records.

    Compiled for the first batch, and again only when later ones bring released values that no earlier one had.

    Parameters
    ----------
    model : callable
        NumPyro model of one release or sketch.
    num_warmup, num_samples : int
        Iterations a release.
    **options
        Of ``numpyro.infer.NUTS``.
    """

    def __init__(self, model, *, num_warmup=500, num_samples=500, **options):
        self._model, self._iterations = model, {"num_warmup": num_warmup, "num_samples": num_samples}
        self._options = options
        self._template = None

    def __call__(self, key, releases):
        """Sample the posteriors, in double precision.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        releases : sequence of Release
            Of one mechanism.

        Returns
        -------
        dict of str to ndarray (releases, num_samples, *site)
        """
        if releases[0].mechanism.record_shape:
            template, varying = releases[0], {"values": np.stack([release.values for release in releases])}
        else:
            sketches = [release.sketch(keep_records=False) for release in releases]
            template, varying = _stack(sketches, self._template)
        with jax.enable_x64(True):
            if self._template is None or _differ(template, self._template):
                self._template = template
                self._sample = jax.jit(jax.vmap(self._one))
            samples = self._sample(jax.random.split(key, len(releases)), varying)
            return {name: np.asarray(values) for name, values in samples.items()}

    def _one(self, key, varying):
        mcmc = MCMC(NUTS(self._model, **self._options), progress_bar=False, **self._iterations)
        # the mechanism and the nodes stay concrete, so that what depends on them is computed only once
        mcmc.run(key, dataclasses.replace(self._template, **varying))
        return mcmc.get_samples()


def _differ(template, other):
    """Whether what was compiled for one template does not serve another."""
    if isinstance(template, Release):
        return template.values.shape != other.values.shape
    return not np.array_equal(template.nodes, other.nodes)


def _stack(sketches, template):
    """A sketch with the nodes of all, and for each sketch what differs from it, stacked."""
    if isinstance(sketches[0], PanelSketch):
        return sketches[0], {name: jnp.stack([getattr(s, name) for s in sketches]) for name in PanelSketch.arrays}
    union = sum(sketches) if template is None else sum(sketches, template)
    nothing = dataclasses.replace(union, weights=np.zeros(len(union.nodes)))
    return nothing, {"weights": np.stack([(nothing + s).weights for s in sketches])}
