"""Posteriors of many releases of one kind, from one compiled chain."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpyro.infer import NUTS

from ldpbayes.data import MomentSketch, PanelSketch, TotalSketch
from ldpbayes.inference._bar import Bar
from ldpbayes.inference._certificate import COARSE_TOLERANCE, Certificate, coarser
from ldpbayes.inference._chains import Chains
from ldpbayes.inference._density import Density, sites_of

__all__ = ["ReplicatedFit"]


class ReplicatedFit:
    """NUTS, one chain a release: on sketches with common nodes, or on records that are rows or have a law each.

    It is compiled for the first batch, and again only when later ones bring released values that no earlier one had.

    Parameters
    ----------
    model : callable
        NumPyro model of one release or sketch.
    num_warmup, num_samples : int
        Iterations a release that adapt the kernel and are discarded, and that are kept.
    sketched : bool
        Whether releases of numbers and categories are fitted as sketches; not where a record has a law of its own.
    **options
        Of ``numpyro.infer.NUTS``.
    """

    def __init__(
        self, model: Callable, *, num_warmup: int = 500, num_samples: int = 500, sketched: bool = True, **options: Any
    ) -> None:
        self._model, self._iterations, self._sketched = model, (num_warmup, num_samples), sketched
        self._kernel = NUTS(model, **options)
        self._known: Any = 0  # a sketch of weight 0, with a node for each released value that there has been
        self._lattice: bool | None = None

    def bar(self, replicates: int, finished: int, shown: bool) -> Bar:
        """A bar that counts replicates, on stderr.

        Parameters
        ----------
        replicates : int
            Of the whole study.
        finished : int
            How many a checkpoint had.
        shown : bool
            Whether there is a bar at all.
        """
        return Bar(replicates, shown, sum(self._iterations), desc="study", unit=" replicates", initial=finished)

    def __call__(self, key: jax.Array, releases: Sequence[Any], bar: Bar | None = None) -> dict[str, Any]:
        """Sample the posteriors, in double precision.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        releases : sequence of Release, or of MomentSketch or TotalSketch
            Made by one mechanism. Releases of rows are fitted as they are, sketches of them in their place.
        bar : Bar, optional
            Counts the iterations.

        Returns
        -------
        dict of str to ndarray (releases, num_samples, *site)
        """
        with jax.enable_x64(True):
            keys = jax.random.split(key, len(releases))
            if isinstance(releases[0], (MomentSketch, TotalSketch)):
                names = [
                    f.name for f in dataclasses.fields(releases[0]) if f.name not in ("mechanism", "doubts", "added")
                ]
                return self._samples(keys, releases[0], [{n: getattr(one, n) for n in names} for one in releases], bar)
            if releases[0].mechanism.record_shape or not self._sketched:
                return self._samples(keys, releases[0], [{"values": release.values} for release in releases], bar)
            sketches: list[Any] = [release.sketch(keep_records=False, expand=False) for release in releases]
            if isinstance(sketches[0], PanelSketch):
                return self._on_panels(keys, [dataclasses.replace(sketch, probes=None) for sketch in sketches], bar)
            together = sum(sketches, self._known)
            # Added to a sketch with all nodes and no weight, every sketch has its weights at the same nodes.
            self._known = dataclasses.replace(together, weights=np.zeros(len(together.nodes)), added=())
            weights = [(self._known + sketch).weights for sketch in sketches]
            return self._samples(keys, self._known, [{"weights": each} for each in weights], bar)

    def _on_panels(self, keys: jax.Array, sketches: list[PanelSketch], bar: Bar | None) -> dict[str, Any]:
        """Samples on coarser sketches, as in `fit`, and again on those given where they are off by too much."""
        if self._lattice is None:
            sites = sites_of(Density(self._model, (sketches[0],), {}))
            self._lattice = any(site.discrete_base for site in sites.values())
        coarse = [coarser([sketch], self._lattice)[0] for sketch in sketches]
        if coarse[0] is sketches[0]:
            return self._samples(keys, sketches[0], _moments(sketches), bar)

        again: list[int] = []

        def too_coarse(positions: dict[str, Any], example: dict[str, Any]) -> None:
            first = [Density(self._model, (of[0],), {}) for of in (coarse, sketches)]
            certificate = Certificate(first[0], first[1], example)
            for i, both in enumerate(zip(coarse, sketches, strict=True)):
                draws = {name: values[i : i + 1] for name, values in positions.items()}
                if certificate.error(draws, [[one] for one in both]) > COARSE_TOLERANCE:
                    again.append(i)

        samples = self._samples(keys, coarse[0], _moments(coarse), bar, too_coarse)
        if again:
            finer = self._samples(keys[np.array(again)], sketches[0], _moments([sketches[i] for i in again]))
            for name, values in finer.items():
                samples[name][again] = values
        return samples

    def _samples(
        self,
        keys: jax.Array,
        template: Any,
        data: list[dict[str, Any]],
        bar: Bar | None = None,
        look: Callable = lambda *_: None,
    ) -> dict[str, Any]:
        """Samples on the template with each of the data in place of its own; `look` is shown the positions."""

        def density(data: dict[str, Any]) -> Density:
            return Density(self._model, (dataclasses.replace(template, **data),), {})

        chains = Chains(density, self._kernel, keys, *self._iterations, data=data)
        chains.run(self._iterations[0], bar)
        positions, _ = chains.run(self._iterations[1], bar)
        look(positions, chains.example)
        return chains.constrained(positions)


def _moments(sketches: Sequence[PanelSketch]) -> list[dict[str, Any]]:
    return [{name: getattr(sketch, name) for name in PanelSketch.arrays} for sketch in sketches]
