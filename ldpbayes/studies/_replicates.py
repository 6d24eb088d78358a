"""Posteriors of many releases of one kind, from one compiled chain."""

import dataclasses

import jax
import numpy as np
from numpyro.infer import NUTS

from ldpbayes.data import PanelSketch
from ldpbayes.inference._certificate import COARSE_TOLERANCE, Certificate, coarser
from ldpbayes.inference._chains import Chains
from ldpbayes.inference._density import Density, sites_of

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
        self._known = self._lattice = None

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
        with jax.enable_x64(True):
            keys = jax.random.split(key, len(releases))
            if releases[0].mechanism.record_shape:
                return self._samples(keys, releases[0], [{"values": release.values} for release in releases])
            sketches = [release.sketch(keep_records=False) for release in releases]
            if isinstance(sketches[0], PanelSketch):
                return self._on_panels(keys, [dataclasses.replace(sketch, probes=None) for sketch in sketches])
            self._known = nothing = _without_records(sum(sketches, self._known or 0))
            return self._samples(keys, nothing, [{"weights": (nothing + sketch).weights} for sketch in sketches])

    def _on_panels(self, keys, sketches):
        """On as few panels as `fit` begins with, and where its certificate finds them too few on those there are."""
        if self._lattice is None:
            sites = sites_of(Density(self._model, (sketches[0],), {}))
            self._lattice = any(site.discrete_base for site in sites.values())
        coarse = [coarser([sketch], self._lattice)[0] for sketch in sketches]
        if coarse[0] is sketches[0]:
            return self._samples(keys, sketches[0], _moments(sketches))

        def too_coarse(positions, example):
            pair = (Density(self._model, (of[0],), {}) for of in (coarse, sketches))
            certificate = Certificate(*pair, example)
            for i, both in enumerate(zip(coarse, sketches, strict=True)):
                draws = {name: values[i : i + 1] for name, values in positions.items()}
                if certificate.error(draws, [[one] for one in both]) > COARSE_TOLERANCE:
                    again.append(i)

        again = []
        samples = self._samples(keys, coarse[0], _moments(coarse), too_coarse)
        if again:
            finer = self._samples(keys[np.array(again)], sketches[0], _moments([sketches[i] for i in again]))
            for name, values in finer.items():
                samples[name][again] = values
        return samples

    def _samples(self, keys, template, data, look=lambda positions, example: None):
        """Samples on the template with each of the data in place of its own."""

        def density(data):
            return Density(self._model, (dataclasses.replace(template, **data),), {})

        chains = Chains(density, self._kernel, keys, *self._iterations, data=data)
        chains.run(self._iterations[0])
        positions, _ = chains.run(self._iterations[1])
        look(positions, chains.example)
        return chains.constrained(positions)


def _moments(sketches):
    return [{name: getattr(sketch, name) for name in PanelSketch.arrays} for sketch in sketches]


def _without_records(sketch):
    return dataclasses.replace(sketch, weights=np.zeros(len(sketch.nodes)))
