"""Posteriors of many data sets by one compiled integral or chain."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpyro.infer import NUTS

from ldpbayes._core.types import Model, Params
from ldpbayes.data import CountSketch, MixedSketch, MomentSketch, PanelSketch, TotalSketch
from ldpbayes.inference.approximations.integral import Integrated
from ldpbayes.inference.approximations.panels import COARSE_ERROR_NATS, Certificate, coarser
from ldpbayes.inference.chains import Bar, Chains, Positions
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.numerics.cubature import ImproperDensity, NotIntegrable


class ReplicatedFit:
    """A function that samples the posteriors of many similar data sets, and compiles the model only once.

    For ``fit = ReplicatedFit(model)``, call ``fit(key, data)`` with a random key and a sequence of data sets. A data
    set is a release, a sketch of rows, or a tuple of these if the model takes a tuple. If the model has at most three
    unconstrained parameters, each posterior is integrated, and its draws are independent, as in `ldpbayes.fit`, but
    with 30 times its tolerance. Otherwise, each data set has one chain of NUTS (no-U-turn sampler). The result has the
    posterior draws of each site (named variable), as an array (data sets, num_samples, ...).

    Parameters
    ----------
    model : callable
        NumPyro model with one argument, the data set.
    num_warmup, num_samples : int
        For each chain: the number of warm-up iterations, which are discarded, and the number of draws. Default: 500 and
        500.
    sketched : bool
        True (default) if all records of a release have the same law, so that a sketch can replace the release. Use
        False for regressions, where the law of a record depends on its covariates.
    **options
        Options of ``numpyro.infer.NUTS``, such as ``target_accept_prob``. With any option, chains sample all
        posteriors.
    """

    def __init__(
        self, model: Model, *, num_warmup: int = 500, num_samples: int = 500, sketched: bool = True, **options: Any
    ) -> None:
        self._model, self._iterations, self._sketched = model, (num_warmup, num_samples), sketched
        self._kernel, self._integrates = NUTS(model, **options), not options

    def bar(self, replicates: int, finished: int, shown: bool) -> Bar:
        """Return a progress bar for `replicates` data sets, which is shown on stderr if `shown` is True.

        `finished` is the number of data sets that are already finished, for example in a `Checkpoint`.
        """
        return Bar(replicates, shown, sum(self._iterations), desc="study", unit=" replicates", initial=finished)

    def __call__(self, key: jax.Array, data: Sequence[Any], bar: Bar | None = None) -> Params:
        with jax.enable_x64(True):
            keys = jax.random.split(key, len(data))
            if isinstance(data[0], tuple):
                columns, names = zip(*map(self._alike, zip(*data, strict=True)), strict=True)
                chains, positions = self._run(keys, [*zip(*columns, strict=True)], names, bar)
                return chains.constrained(positions)
            sources, arrays = self._alike(data)
            if isinstance(sources[0], PanelSketch):
                return self._on_panels(keys, sources, bar)
            chains, positions = self._run(keys, [(source,) for source in sources], [arrays], bar)
            return chains.constrained(positions)

    def _alike(self, releases: Sequence[Any]) -> tuple[list[Any], Sequence[str]]:
        """Releases, or sketches of them, that differ in the named arrays alone."""
        if isinstance(releases[0], (MomentSketch, TotalSketch)):
            return [*releases], ["nodes", "weights"]
        if not self._sketched or releases[0].mechanism.record_shape:
            return [*releases], ["values"]
        sketches: list[Any] = [release.sketch(keep_records=False, expand=False) for release in releases]
        if isinstance(sketches[0], PanelSketch):
            return [dataclasses.replace(sketch, probes=None) for sketch in sketches], PanelSketch.arrays
        if isinstance(sketches[0], MixedSketch):
            alike = ([dataclasses.replace(part, probes=None) for part in each.parts] for each in sketches)
            return [dataclasses.replace(sketches[0], parts=tuple(parts)) for parts in alike], ["parts"]
        return _at_common_nodes(sketches), ["weights"]

    def _on_panels(self, keys: jax.Array, sketches: Sequence[PanelSketch], bar: Bar | None) -> Params:
        """Samples on coarser sketches, as in `fit`, and on the sketches themselves if those err too much."""
        own = Density(self._model, (sketches[0],), {})
        sites = sites_of(own).values()
        lattice, kinked = any(site.discrete_base for site in sites), any(site.kinked for site in sites)
        coarse = sketches if kinked else [coarser([sketch], lattice)[0] for sketch in sketches]
        chains, positions = self._run(keys, [(sketch,) for sketch in coarse], [PanelSketch.arrays], bar)
        samples = chains.constrained(positions)
        if coarse[0] is sketches[0]:
            return samples
        certificate, failures = Certificate(Density(self._model, (coarse[0],), {}), own, chains.example), []
        for i, pair in enumerate(zip(coarse, sketches, strict=True)):
            draws = {name: values[i : i + 1] for name, values in positions.items()}
            if certificate.error(draws, [[sketch] for sketch in pair]) > COARSE_ERROR_NATS:
                failures.append(i)
        if failures:
            exact = [(sketches[i],) for i in failures]
            finer, positions = self._run(keys[np.array(failures)], exact, [PanelSketch.arrays])
            for name, values in finer.constrained(positions).items():
                samples[name][failures] = values
        return samples

    def _run(
        self, keys: jax.Array, sources: Sequence[tuple], names: Sequence[Sequence[str]], bar: Bar | None = None
    ) -> tuple[Positions, Params]:
        """Integrals or chains of tuples of sources that differ in the named arrays alone, and positions of draws."""

        def density(arrays: Sequence[Params]) -> Density:
            parts = tuple(dataclasses.replace(part, **own) for part, own in zip(sources[0], arrays, strict=True))
            return Density(self._model, (parts if len(parts) > 1 else parts[0],), {})

        data = [
            tuple({name: getattr(part, name) for name in own} for part, own in zip(each, names, strict=True))
            for each in sources
        ]
        if self._integrates:
            with contextlib.suppress(NotIntegrable, ImproperDensity):  # one that is not sends all to chains
                integrals = Integrated(
                    density, [*np.asarray(jax.random.key_data(keys))], self._iterations[1], data, coarse=True
                )
                positions, _ = integrals.run(self._iterations[1])
                if bar:
                    bar.add(len(data) * sum(self._iterations))
                    bar.show()
                return integrals, positions
        chains = Chains(density, self._kernel, keys, *self._iterations, data=data)
        chains.run(self._iterations[0], bar)
        return chains, chains.run(self._iterations[1], bar)[0]


def _at_common_nodes(sketches: Sequence[CountSketch]) -> list[CountSketch]:
    """Sketches with their weights at the nodes of all, the last one repeated up to a power of two: so many nodes are
    those of nearly all calls, which share a compiled chain.
    """
    total: Any = sum(sketches)
    n = len(total.nodes)
    rows = np.minimum(np.arange(1 << (n - 1).bit_length()), n - 1)
    empty = dataclasses.replace(total, weights=np.zeros(n), added=())
    mechanism, groups = total.mechanism.of_records((n,), rows), None if total.groups is None else total.groups[rows]
    common = dataclasses.replace(empty, mechanism=mechanism, nodes=total.nodes[rows], groups=groups)
    # added to a sketch with all nodes and no weight, every sketch has its weights at the same nodes
    weights = (np.pad((empty + sketch).weights, (0, len(rows) - n)) for sketch in sketches)
    return [dataclasses.replace(common, weights=each) for each in weights]
