"""Posteriors of many data sets of one structure, by one compiled integral or chain: a surrogate for a whole study."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ldpbayes._core.types import Params
from ldpbayes.data import PanelSketch
from ldpbayes.inference.approximations._integral import Integrated
from ldpbayes.inference.approximations.panels import COARSE_ERROR_NATS, Certificate, coarser
from ldpbayes.inference.approximations.surrogates import Report, Surrogate, sample
from ldpbayes.inference.chains import Bar, Chains, Sampling
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.inference.problem import Problem
from ldpbayes.numerics.cubature import ImproperDensity, NotIntegrable


@dataclasses.dataclass(eq=False)
class Replicates(Surrogate):
    """Data sets that differ in arrays of given names alone, each with its integral or its chain."""

    keys: jax.Array  # one for each data set
    sources: Sequence[tuple]  # the parts of each data set, such as releases
    names: Sequence[Sequence[str]]  # of the arrays of each part in which data sets differ
    exact: Sequence[PanelSketch] | None = None  # sketches that are compared with the coarser ones in `sources`
    bar: Bar | None = None
    samples: Params = dataclasses.field(default_factory=dict)  # by site, (data sets, draws, ...)
    places: np.ndarray | None = None  # of these data sets among all, if others have their draws

    def _density(self, arrays: Sequence[Params]) -> Density:
        parts = [dataclasses.replace(part, **own) for part, own in zip(self.sources[0], arrays, strict=True)]
        return Density(self.problem.density.model, _argument(parts), {})

    def positions(self, integrated: bool) -> Any:
        sampling, self.integrated = self.sampling, integrated
        data = [
            tuple({n: getattr(part, n) for n in names} for part, names in zip(parts, self.names, strict=True))
            for parts in self.sources
        ]
        if not integrated:
            numbers = sampling.num_warmup, sampling.num_samples
            return Chains(self._density, sampling.kernel, self.keys, *numbers, data=data)
        seeds = [*np.asarray(jax.random.key_data(self.keys))]
        integrals = Integrated(self._density, seeds, sampling.num_samples, data, coarse=True)
        try:
            integrals.solve()
        except ImproperDensity as reason:  # one data set without an integral sends all to chains
            raise NotIntegrable(str(reason)) from None
        return integrals

    def progress(self, integrated: bool) -> contextlib.AbstractContextManager[Bar | None]:
        return contextlib.nullcontext(None if integrated or self.places is not None else self.bar)

    def check_range(self, samples: Params) -> None:
        """Nothing: a study keeps the data set whose posterior reaches the end of the range of numbers."""

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        if self.integrated and self.bar and self.places is None:
            self.bar.add(len(self.sources) * (self.sampling.num_warmup + self.sampling.num_samples))
            self.bar.show()
        samples = self.chains.constrained(positions)
        if self.places is None:
            self.samples.update(samples)
        else:
            for name, values in samples.items():
                self.samples[name][self.places] = values
        failures = self._failures(positions)
        if not len(failures):
            return Report()
        exact = [(self.exact[i],) for i in failures] if self.exact else []
        return dataclasses.replace(self, keys=self.keys[failures], sources=exact, exact=None, places=failures)

    def _failures(self, positions: Params) -> np.ndarray:
        """Numbers of the data sets whose coarse sketches err too much at their draws."""
        if self.exact is None or self.exact[0] is self.sources[0][0]:
            return np.array([], int)
        coarse, fine = (Density(self.problem.density.model, (one,), {}) for one in (self.sources[0][0], self.exact[0]))
        certificate = Certificate(coarse, fine, self.chains.example)
        errors = []
        for i, ((judged,), exact) in enumerate(zip(self.sources, self.exact, strict=True)):
            draws = {name: values[i : i + 1] for name, values in positions.items()}
            errors.append(certificate.error(draws, [[judged], [exact]]))
        return np.flatnonzero(np.array(errors) > COARSE_ERROR_NATS)


def _argument(parts: Sequence[Any]) -> tuple:
    """The only argument of a model: a part, or a tuple of several."""
    return (tuple(parts) if len(parts) > 1 else parts[0],)


def sample_replicates(
    sampling: Sampling, keys: jax.Array, sources: Sequence[tuple], names: Sequence[Sequence[str]], bar: Bar | None
) -> Params:
    """Samples by site, (data sets, draws, ...), of many posteriors. Sketches on panels are first coarser."""
    density, exact = Density(sampling.kernel.model, _argument(sources[0]), {}), None
    if isinstance(sources[0][0], PanelSketch) and len(sources[0]) == 1:
        exact = [sketch for (sketch,) in sources]
        sites = sites_of(density).values()
        lattice, kinked = any(site.discrete_base for site in sites), any(site.kinked for site in sites)
        sources = sources if kinked else [(coarser([sketch], lattice)[0],) for sketch in exact]
    replicates = Replicates(Problem(density, {}, None, None), sampling, keys, sources, names, exact, bar)
    sample(replicates)
    return replicates.samples
