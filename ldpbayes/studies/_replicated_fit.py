"""Posteriors of many data sets of one structure, by one compiled integral or chain."""

import contextlib
import dataclasses
from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import jax
import numpy as np
from numpyro.infer import NUTS

from ldpbayes._core.types import Model, Params
from ldpbayes.data import CountSketch, MixedSketch, PanelSketch
from ldpbayes.data.sketches import MomentSketch, TotalSketch
from ldpbayes.inference.approximations.integral import Integrated
from ldpbayes.inference.approximations.panels import COARSE_ERROR_NATS, Certificate, coarser
from ldpbayes.inference.approximations.surrogates import Report, Surrogate, sample
from ldpbayes.inference.chains import Bar, Chains, Sampling
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.inference.problem import Problem
from ldpbayes.numerics.cubature import ImproperDensity, NotIntegrable


class ReplicatedFit:
    """A function that samples the posteriors of many similar data sets, and compiles the model only once.

    For ``fit = ReplicatedFit(model)``, call ``fit(key, data)`` with a random key and a sequence of data sets. A data
    set is a release, a sketch of rows, or a tuple of these if the model takes a tuple. At most three unconstrained
    parameters are integrated as in `ldpbayes.fit`, with 30 times its tolerance. Otherwise, each data set has one chain
    of NUTS. The result has the draws of each site, as an array (data sets, num_samples, ...).

    Parameters
    ----------
    model : callable
        NumPyro model with one argument, the data set.
    num_warmup, num_samples, **options
        For each chain: the number of warm-up iterations, which are discarded, and the number of draws. And options of
        ``numpyro.infer.NUTS``, such as ``target_accept_prob``, with which chains sample all posteriors.
    sketched : bool
        Whether all records of a release have the same law, so that a sketch can replace the release, unlike in
        regressions, where the law of a record depends on its covariates.
    """

    def __init__(
        self, model: Model, *, num_warmup: int = 500, num_samples: int = 500, sketched: bool = True, **options: Any
    ) -> None:
        self._iterations, self._sketched = (num_warmup, num_samples), sketched
        self._kernel, self._chains_because = NUTS(model, **options), "options of NUTS were given" if options else None

    def bar(self, replicates: int, finished: int, shown: bool) -> Bar:
        """Return a progress bar, on stderr if `shown`, for `replicates` data sets, of which `finished` are done."""
        return Bar(replicates, shown, sum(self._iterations), desc="study", unit=" replicates", initial=finished)

    def __call__(self, key: jax.Array, data: Sequence[Any], bar: Bar | None = None) -> Params:
        with jax.enable_x64(True):
            keys = jax.random.split(key, len(data))
            parts = [entry if isinstance(entry, tuple) else (entry,) for entry in data]
            columns, names = zip(*map(self._alike, zip(*parts, strict=True)), strict=True)
            sources, exact = [*zip(*columns, strict=True)], None
            problem = Problem(Density(self._kernel.model, _argument(sources[0]), {}), {})
            if len(columns) == 1 and isinstance(sources[0][0], PanelSketch):
                problem = dataclasses.replace(problem, sites=sites_of(problem.density))
                fewer = [coarser([sketch], problem.on_whole_numbers)[0] for sketch in columns[0]]
                if not problem.kinked and fewer[0] is not columns[0][0]:
                    sources, exact = [(sketch,) for sketch in fewer], columns[0]
            sampling = Sampling(self._kernel, 0, *self._iterations, len(data), chains_because=self._chains_because)
            posteriors = ReplicatedPosteriors(problem, sampling, keys, sources, names, exact, bar)
            sample(posteriors)
            return posteriors.samples

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
            alike = ([dataclasses.replace(part, probes=None) for part in sketch.parts] for sketch in sketches)
            return [dataclasses.replace(sketches[0], parts=tuple(parts)) for parts in alike], ["parts"]
        return _at_common_nodes(sketches), ["weights"]


@dataclasses.dataclass(eq=False)
class ReplicatedPosteriors(Surrogate):
    """Data sets that differ in arrays of given names alone, each with its integral or its chain."""

    keys: jax.Array  # one for each data set
    sources: Sequence[tuple]  # the parts of each data set, such as releases
    names: Sequence[Sequence[str]]  # of the arrays of each part in which data sets differ
    exact: Sequence[PanelSketch] | None  # sketches that are compared with the coarser ones in `sources`
    bar: Bar | None
    samples: Params = dataclasses.field(default_factory=dict)  # by site, (all data sets, draws, ...)
    places: np.ndarray | EllipsisType = ...  # of these data sets among all

    def _density(self, arrays: Sequence[Params]) -> Density:
        parts = [dataclasses.replace(part, **changed) for part, changed in zip(self.sources[0], arrays, strict=True)]
        return Density(self.problem.density.model, _argument(parts), {})

    def positions(self, integrated: bool) -> Any:
        sampling, self.integrated = self.sampling, integrated
        data = [
            tuple({n: getattr(part, n) for n in names} for part, names in zip(parts, self.names, strict=True))
            for parts in self.sources
        ]
        if not integrated:
            return Chains(self._density, sampling, self.keys, data)
        seeds = [*np.asarray(jax.random.key_data(self.keys))]
        integrals = Integrated(self._density, seeds, sampling.num_samples, data, coarse=True)
        try:
            integrals.warm_up()
        except ImproperDensity as reason:  # one data set without an integral sends all to chains
            raise NotIntegrable(str(reason)) from None
        return integrals

    def progress(self, integrated: bool) -> contextlib.AbstractContextManager[Bar | None]:
        return contextlib.nullcontext(None if integrated else self.bar)

    def check_range(self, samples: Params) -> None:
        """Nothing: a study keeps the data set whose posterior reaches the end of the range of numbers."""

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        if self.integrated and self.bar:
            self.bar.add(len(self.sources) * (self.sampling.num_warmup + self.sampling.num_samples))
            self.bar.show()
        for name, values in self.chains.constrained(positions).items():
            self.samples.setdefault(name, values)[self.places] = values
        if self.exact is None or not len(failures := self._failures(positions, self.exact)):
            return Report()
        keys, sources = self.keys[failures], [(self.exact[i],) for i in failures]
        return dataclasses.replace(self, keys=keys, sources=sources, exact=None, places=failures, bar=None)

    def _failures(self, positions: Params, exact: Sequence[PanelSketch]) -> np.ndarray:
        """Numbers of the data sets whose coarse sketches err too much at their draws."""
        # The problem's density has the first exact sketch.
        certificate = Certificate(self._density([{}]), self.problem.density, self.chains.example)
        errors = []
        for i, ((judged,), sketch) in enumerate(zip(self.sources, exact, strict=True)):
            draws = {name: values[i : i + 1] for name, values in positions.items()}
            errors.append(certificate.error(draws, [[judged], [sketch]]))
        return np.flatnonzero(np.array(errors) > COARSE_ERROR_NATS)


def _argument(parts: Sequence[Any]) -> tuple:
    """The only argument of a model: a part, or a tuple of several."""
    return (tuple(parts) if len(parts) > 1 else parts[0],)


def _at_common_nodes(sketches: Sequence[CountSketch]) -> list[CountSketch]:
    """Sketches at the nodes of all, repeated up to a power of two, so that nearly all calls share a program."""
    total: Any = sum(sketches)
    n = len(total.nodes)
    rows = np.minimum(np.arange(1 << (n - 1).bit_length()), n - 1)
    empty = dataclasses.replace(total, weights=np.zeros(n), added=())
    mechanism, groups = total.mechanism.of_records((n,), rows), None if total.groups is None else total.groups[rows]
    common = dataclasses.replace(empty, mechanism=mechanism, nodes=total.nodes[rows], groups=groups)
    # added to a sketch with all nodes and no weight, every sketch has its weights at the same nodes
    weights = (np.pad((empty + sketch).weights, (0, len(rows) - n)) for sketch in sketches)
    return [dataclasses.replace(common, weights=row) for row in weights]
