"""The data as they are, but for sketches on panels: these are first coarser, and in the end as fine as necessary."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from scipy.linalg import block_diag

from ldpbayes._core.checks import warn
from ldpbayes._core.types import Array, Params, PyTree
from ldpbayes.data import ExpandedSketch, MixedSketch, PanelSketch, Release
from ldpbayes.inference.approximations.surrogates import ExpansionWarning, Report, SketchWarning, Surrogate
from ldpbayes.inference.chains import Sampling
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density
from ldpbayes.inference.problem import Problem

SKETCH_DRAWS = 64  # posterior draws at which densities are compared
COARSE_ERROR_NATS = 1e-4  # that a sketch on fewer panels may be off by
SKETCH_ERROR_NATS = 1e-3  # that a sketch's log-likelihood may differ by from that of the records
CACHED_SKETCHES = 2  # the matrices of so many sketches on 20 panels stay in a core's cache together
MAX_REFINEMENTS = 2  # each is by a factor 4: with more than 16 times the panels a channel's matrix would be too large
SKETCH_ADVICE = "Where many records share a law, a sketch in their place is faster, or a list of sketches by group."


@dataclasses.dataclass(eq=False)
class DataAsTheyAre(Surrogate):
    """The data, where sketches on panels are compared with their records, or with finer panels."""

    exact: Density
    coarse: bool  # whether sketches are coarser in the density than in the exact one

    def __post_init__(self) -> None:
        self.advice, self.density, sketches = faster(self.exact), self.exact, panel_sketches(self.exact)
        fewer = coarser(sketches, self.problem.on_whole_numbers) if self.coarse else sketches
        if any(a is not b for a, b in zip(fewer, sketches, strict=True)):
            self.density, self.least_warmup = with_sketches(self.exact, fewer), 2

    def prepare(self) -> None:
        if panel_sketches(self.density):
            self._certificate = Certificate(self.density, self.exact, self.chains.example, self.chains.measure)

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        panels, exact = panel_counts(self.density), self.density is self.exact
        if not panels:
            return Report()
        report = Report(error_nats=self._certificate.error(positions), panels=tuple(panels))
        if report.error_nats <= (SKETCH_ERROR_NATS if exact else COARSE_ERROR_NATS):
            return report
        if not exact:
            return dataclasses.replace(self, coarse=False)
        message = f"a sketch of {panels} panels has an error of {report.error_nats:.2g} nats at posterior draws"
        first = not any(earlier.panels for earlier in self.reports)
        finer = self._finer(positions) if first else None
        if finer is None and self.exact.whole is not None:  # `fit` made the sketch itself
            reports = (*self.reports, Report(ran="records", why=message))
            return dataclasses.replace(self, exact=self.exact.whole, coarse=False, reports=reports)
        if finer is None:
            advice = "sketch with more panels, or keep the records in the sketch" if first else "fit the release itself"
            warn(f"{message}, and cannot be refined; {advice}", SketchWarning)
            return report
        warn(f"{message}; refined to {panel_counts(finer)} and sampled again", SketchWarning)
        return dataclasses.replace(self, exact=finer, coarse=False, reports=(*self.reports, report))

    def _finer(self, positions: Params) -> Density | None:
        """A density with sketches fine enough at these draws, or as fine as they get; None if no records were kept."""
        density, chains, lattice = self.exact, self.chains, self.problem.on_whole_numbers or None
        for _ in range(MAX_REFINEMENTS):
            refined = [sketch.refine(lattice=lattice) or sketch for sketch in panel_sketches(density)]
            finer = with_sketches(density, refined)
            if panel_counts(finer) == panel_counts(density):
                return None
            density = finer
            # The margin is there because draws from the refined posterior will lie elsewhere.
            certificate = Certificate(density, density, chains.example, chains.measure)
            if certificate.error(positions) <= 0.1 * SKETCH_ERROR_NATS:
                break
        return density


def propose(problem: Problem, sampling: Sampling, *reports: Report) -> DataAsTheyAre:
    """The data as they are, which serve every problem; `reports` are of what was tried before."""
    exact = problem.density.replace_data(lambda data: data.exact if isinstance(data, ExpandedSketch) else data)
    # Panels that a density has kinks in would be refused after the warm-up.
    return DataAsTheyAre(problem, sampling, exact, sampling.outside is None and not problem.kinked, reports=reports)


def records_instead(problem: Problem, sampling: Sampling, why: str, report: Report | None = None) -> DataAsTheyAre:
    """The data as they are, with a warning of why, and a report of, what was not exact enough."""
    result = "no approximation was accurate enough, so the likelihood of all records is used (exact, but slow)"
    warn(f"{result}: {why}", ExpansionWarning)
    return propose(problem, sampling, dataclasses.replace(report or Report(), ran="records", why=why))


def faster(density: Density) -> str:
    """Advice for a model with releases that can be sketched."""
    releases = [] if density.whole else [data for data in density.data if isinstance(data, Release)]
    mechanisms: list[Any] = [release.mechanism for release in releases]
    numbers = [m for m in mechanisms if not (m.record_shape or m.batch_shape)]
    discrete = any(m.support.is_discrete for m in mechanisms)
    return SKETCH_ADVICE if discrete or any(m.released_range is not None for m in numbers) else ""


class Certificate:
    """The largest difference of sketches to their references, or to probes, in log density by a method of `Density`."""

    def __init__(
        self, density: Density, exact: Density, example: Params, measure: Callable = Density.potential
    ) -> None:
        coarse, fine = panel_sketches(density), [sketch.reference for sketch in panel_sketches(exact)]
        self._probed = all(sketch.probes is not None for sketch in coarse)
        coarse_nodes, fine_nodes = ([sketch.nodes for sketch in side] for side in (coarse, fine))
        if self._probed:
            fine_nodes = [np.concatenate([nodes, s.probes]) for nodes, s in zip(fine_nodes, coarse, strict=True)]
        self._weights, self._example = self._weightings(coarse, fine), example

        def difference(_: tuple, weights: PyTree, parameters: Params) -> Array:
            ours = measure(_reweighted(density, coarse, coarse_nodes, weights[0]), parameters)
            return ours - measure(_reweighted(exact, fine, fine_nodes, weights[1]), parameters)

        first = jax.tree.map(lambda rows: rows[0], self._weights)
        traced, (self._arrays,) = trace(difference, first, example)
        draws = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((SKETCH_DRAWS, *leaf.shape), leaf.dtype), example)
        mapped = jax.vmap(jax.vmap(traced, (None, 0, None)), (None, None, 0))
        self._program = traced.program("certificate", mapped, self._arrays, self._weights, draws)

    def _weightings(self, coarse: Sequence[PanelSketch], fine: Sequence[PanelSketch]) -> list[list[np.ndarray]]:
        """Weights of the nodes of both sides, a row a comparison: of all records, and of the probes, if there are."""
        if not self._probed:
            return [[sketch.weights[None] for sketch in side] for side in (coarse, fine)]
        shares = [np.full(len(sketch.probes), sketch.size / len(sketch.probes)) for sketch in coarse]
        exact = [block_diag(sketch.weights, share) for sketch, share in zip(fine, shares, strict=True)]
        return [[np.stack([sketch.weights, sketch.thinned.weights]) for sketch in coarse], exact]

    def error(self, positions: Params, sketches: Sequence[Sequence[PanelSketch]] | None = None) -> float:
        """Largest difference, in nats, at `SKETCH_DRAWS` of some positions (chains, draws, ...)."""
        flat = {name: positions[name].reshape(-1, *positions[name].shape[2:]) for name in self._example}
        pick = np.linspace(0, len(jax.tree.leaves(flat)[0]) - 1, SKETCH_DRAWS).astype(int)
        weights = self._weights
        if sketches is not None:  # judged and exact ones: on the panels of the densities' own, without probes
            weights = self._weightings(sketches[0], [sketch.reference for sketch in sketches[1]])
        differences = self._program(self._arrays, weights, {name: values[pick] for name, values in flat.items()})
        return float(np.max(np.abs(differences)))


def _reweighted(density: Density, sketches: list[PanelSketch], nodes: list[Array], weights: list[Array]) -> Density:
    """A density with these sketches, whose nodes and weights are replaced where they are kept once computed."""
    copies = [copy.copy(sketch) for sketch in sketches]
    for sketch, places, masses in zip(copies, nodes, weights, strict=True):
        vars(sketch).update(nodes=places, weights=masses)
    return with_sketches(density, copies)


def coarser(sketches: Sequence[PanelSketch], lattice: bool) -> list[PanelSketch]:
    """Sketches on fewer panels, with which sampling begins: the matrices of all of them stay in a core's cache."""
    panels, grid = (20, 20) if len(sketches) <= CACHED_SKETCHES else (10, 12)
    return [sketch.coarser(panels, grid, lattice) for sketch in sketches]


def panel_sketches(density: Density) -> list[PanelSketch]:
    """The sketches on panels among the arguments of a density, and their parts, in their order there."""
    return [part for data in density.data if isinstance(data, PanelSketch | MixedSketch) for part in data._parts]


def panel_counts(density: Density) -> list[int]:
    return [len(sketch.edges) - 1 for sketch in panel_sketches(density)]


def with_sketches(density: Density, sketches: Sequence[PanelSketch]) -> Density:
    """A density with other sketches in the places of those on panels."""
    others = iter(sketches)

    def replaced(data: Any) -> Any:
        if isinstance(data, MixedSketch):
            return dataclasses.replace(data, parts=tuple(next(others) for _ in data.parts))
        return next(others) if isinstance(data, PanelSketch) else data

    return density.replace_data(replaced)
