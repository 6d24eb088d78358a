"""Posteriors of many releases of one kind, from one compiled chain."""

import dataclasses

import jax
import numpy as np
from numpyro.infer import NUTS

from ldpbayes.inference.chains import Chains
from ldpbayes.inference.density import Density
from ldpbayes.likelihood.sketch import PanelSketch

__all__ = ["ReplicatedFit"]


class ReplicatedFit:
    """NUTS, one chain a release: on sketches with common nodes, for rows on the records.

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
        self._model, self._iterations = model, (num_warmup, num_samples)
        self._kernel = NUTS(model, **options)
        self._known = None

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
            template, varying = releases[0], [{"values": release.values} for release in releases]
        else:
            template, varying = self._common([release.sketch(keep_records=False) for release in releases])

        def density(data):
            return Density(self._model, (dataclasses.replace(template, **data),), {})

        with jax.enable_x64(True):
            chains = Chains(density, self._kernel, jax.random.split(key, len(releases)), *self._iterations, data=varying)
            for iterations in self._iterations:
                positions, _ = chains.run(iterations)
            return chains.constrained(positions)

    def _common(self, sketches):
        """A sketch with the nodes of all, and for each sketch what differs from it."""
        if isinstance(sketches[0], PanelSketch):
            return sketches[0], [{name: getattr(s, name) for name in PanelSketch.arrays} for s in sketches]
        union = sum(sketches, self._known or 0)
        self._known = nothing = dataclasses.replace(union, weights=np.zeros(len(union.nodes)))
        return nothing, [{"weights": (nothing + sketch).weights} for sketch in sketches]
