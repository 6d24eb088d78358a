"""Sampling surrogates, which are compared with a reference at their draws; here those with sketches on panels."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.linalg import block_diag

from ldpbayes._core.checks import LdpBayesWarning, warn
from ldpbayes._core.types import Array, Key, Params, PyTree
from ldpbayes.data import MixedSketch, PanelSketch, Release
from ldpbayes.inference.chains import Sampler
from ldpbayes.inference.compiled_programs import trace
from ldpbayes.inference.density import Density
from ldpbayes.inference.integrated import Integrated
from ldpbayes.inference.result import Weights, arviz, resample
from ldpbayes.numerics.cubature import RINGS, ImproperDensity, NotIntegrable


class ExpansionWarning(LdpBayesWarning):
    """Warning that an expansion was not exact enough to sample the posterior, or that `fit` could not check the
    expansion.

    An expansion is a polynomial that replaces the log-likelihood of many records. The message gives the reason, and
    says if `fit` used the exact log-likelihood of the records instead.
    """


class LikelihoodWarning(LdpBayesWarning):
    """Warning that a law of many records is too narrow, at some posterior draws, for the panels of its likelihood.

    The panels are the intervals in which the likelihood integrates numerically over the unknown records. The message
    says at how many draws, and what is exact there.
    """


class SketchWarning(LdpBayesWarning):
    """Warning that the log-likelihood of a sketch was not exact enough to sample the posterior.

    A sketch is a small summary that replaces the released values. The message gives the error, and says if `fit` made a
    more exact sketch and sampled again.
    """


@dataclass(frozen=True)
class Report:
    """What was sampled in place of the records, why, and how far off it was; defaults stand for what does not apply."""

    ran: str | None = None
    why: str | None = None  # the records were sampled
    outside: float = np.nan  # share of the draws that are far from where an expansion was made
    error_sd_nats: float = np.nan
    error_nats: float = np.nan
    certified_nats: float = np.nan  # error of tables between their ends, wherever draws lie: largest at test points
    tail_error: float = np.nan
    pareto_k: float = np.nan
    effective_share: float = np.nan
    sites: tuple[str, ...] = ()  # that the records see, and the shape of their values
    shape: tuple[int, ...] = ()
    count: int | None = None
    others: int | None = None  # records without a table, whose likelihood is computed
    passes: int | None = None
    order: int | None = None
    panels: tuple[int, ...] = ()
    doubt: str | None = None
    weights: Weights | None = None  # of the draws; not among the entries, and neither is
    log_ratio: float = 0.0  # the logarithm of the posterior's integral over that of what was sampled

    def entries(self) -> dict[str, Any]:
        facts = {name: value for name, value in vars(self).items() if name not in ("weights", "log_ratio")}
        return {name: value for name, value in facts.items() if value not in (None, ()) and value == value}

    def of_errors(self, errors: np.ndarray, **facts: Any) -> "Report":
        """The report with errors, of which only the differences count, and further facts."""
        mean, sd = np.mean(errors), float(np.std(errors))
        largest = float(np.max(np.abs(errors - mean)))
        ratio = float(mean + np.log(np.mean(np.exp(np.minimum(errors - mean, 500.0)))))
        return dataclasses.replace(self, error_sd_nats=sd, error_nats=largest, log_ratio=ratio, **facts)


@dataclass(frozen=True)
class Draws:
    """Samples by site and statistics by name, (chains, iterations, ...), of a density, and reports of how that went."""

    samples: Params
    statistics: Params
    density: Density
    reports: list[Report]
    integral: dict[str, Any]  # how the posterior was integrated, or why chains sampled it


class Surrogate:
    """A density that is sampled in place of a reference, and perhaps replaced by another."""

    density: Density
    key: Key  # for resampling
    reports: tuple[Report, ...] = ()  # of what was sampled before
    least_warmup: float = np.inf  # iterations from which on the warm-up is compared with the reference, too
    advice: str | None = None  # what is faster
    rings: int = RINGS  # of cells around the mode, within which the density stands for that of the posterior

    def prepare(self, chains: Any) -> None:
        """Keep the chains, and let what compares be compiled while they are."""
        self.chains = chains

    def judge(self, positions: Params, final: bool = True) -> "Surrogate | Report":
        """A report, or what is sampled instead if draws (chains, draws, ...) of a run, or its warm-up, do not serve."""
        raise NotImplementedError


def sample(surrogate: Surrogate, sampler: Sampler) -> Draws:
    """Draws of a surrogate, or of what it is refined to, that its reference has been compared with: by an integral of
    few parameters, otherwise by chains.
    """
    verdict: Surrogate | Report = surrogate
    why = sampler.chains_because
    while isinstance(verdict, Surrogate):
        surrogate, integrated = verdict, why is None
        chains: Any = None
        try:
            chains = _integral_of(surrogate, sampler) if integrated else sampler.chains(surrogate.density)
            surrogate.prepare(chains)
            arviz()  # imported while the programs are being compiled
            with sampler.bar(surrogate.advice, integrated) as bar:
                settled = chains.warm_up(bar)
                if sampler.num_warmup >= surrogate.least_warmup or (integrated and surrogate.least_warmup < np.inf):
                    verdict = surrogate.judge(settled, final=False)
                    if isinstance(verdict, Surrogate):
                        continue
                positions, statistics = chains.run(sampler.num_samples, bar)
        except NotIntegrable as reason:
            if sampler.improper and chains is not None:
                problem = f"the posterior may be improper, since a prior is, and it could not be integrated: {reason}"
                raise ValueError(f"{problem}. Give every parameter a proper prior, or kernel=NUTS.") from None
            why = str(reason)
        except ImproperDensity as reason:
            problem = f"the posterior is improper, so it has no means and no quantiles: {reason}"
            raise ValueError(f"{problem}. Give every parameter a proper prior.") from None
        else:
            verdict = surrogate.judge(positions)
    samples, facts = chains.constrained(positions), {"ran": "chains", "why": why}
    if integrated:
        _check_range({name: samples[name] for name in positions})
        facts = chains.facts | {"log_evidence": chains.facts["log_evidence"] + verdict.log_ratio}
        facts["log_evidence_error"] = facts["total_variation"] + float(np.nan_to_num(verdict.error_nats))
    if verdict.weights is not None:
        energy, ratios = statistics["potential_energy"], verdict.weights.ratios
        draws = positions, statistics | {"potential_energy": energy - (ratios - ratios.mean()).reshape(energy.shape)}
        positions, statistics = resample(draws, verdict.weights.log.reshape(energy.shape), surrogate.key)
        samples = chains.constrained(positions)
    if verdict.doubt is not None:
        warn(verdict.doubt, ExpansionWarning)
    reports = [report for report in (*surrogate.reports, verdict) if report.entries()]
    return Draws(samples, statistics, surrogate.density, reports, facts)


SMALLEST, MAX_EDGE = 1e-290, 0.01  # size of a number, and share of draws, at the end of the range of numbers


def _check_range(samples: Params) -> None:
    """ValueError if draws of unconstrained parameters are where numbers in double precision end."""
    for name, values in samples.items():
        edge = ~np.isfinite(values) | (np.abs(values) < SMALLEST) | (np.abs(values - 1) < 2**-52)
        varying = np.ptp(values, axis=(0, 1)) > 1e-6 * np.max(np.abs(values), axis=(0, 1))  # others are fixed
        share = np.max(np.mean(edge, axis=(0, 1)) * varying, initial=0.0)
        if share > MAX_EDGE:
            where = f"{share:.0%} of the draws of {name!r} are 0, 1 or infinite, up to rounding"
            raise ValueError(f"the posterior is improper, or nearly: {where}. Give every parameter a proper prior.")


def _integral_of(surrogate: Surrogate, sampler: Sampler) -> Integrated:
    seeds = [(sampler.seed, chain) for chain in range(sampler.num_chains)]
    return Integrated(
        lambda _: surrogate.density, seeds, sampler.num_samples, rings=surrogate.rings, coarse=surrogate.rings < RINGS
    )


# --- the data as they are -------------------------------------------------------------------------------------------

DRAWS = 64  # posterior draws at which densities are compared
COARSE_TOLERANCE = 1e-4  # nats that a sketch on fewer panels may be off by
CACHED_SKETCHES = 2  # the matrices of so many sketches on 20 panels stay in a core's cache together
TOLERANCE = 1e-3  # nats that a sketch's log-likelihood may differ by from that of the records
REFINEMENTS = 2  # each is by a factor 4, and with more than 16 times the panels a channel's matrix would be too large
FASTER = "Where many records share a law, a sketch in their place is faster, or a list of sketches by group."


@dataclass(eq=False)
class Records(Surrogate):
    """The data as they are, but for sketches on panels: first coarser, and in the end as fine as is necessary."""

    exact: Density
    whole_numbers: bool  # whether records are whole numbers
    coarse: bool  # whether sketches are coarser in the density than in the exact one
    reports: tuple[Report, ...] = ()

    def __post_init__(self) -> None:
        self.advice, self.density, own = faster(self.exact), self.exact, panel_sketches(self.exact)
        fewer = coarser(own, self.whole_numbers) if self.coarse else own
        if any(a is not b for a, b in zip(fewer, own, strict=True)):
            self.density, self.least_warmup = _with_sketches(self.exact, fewer), 2

    def prepare(self, chains: Any) -> None:
        super().prepare(chains)
        if panel_sketches(self.density):
            self._certificate = Certificate(self.density, self.exact, chains.example, chains.measure)

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        panels, exact = panel_counts(self.density), self.density is self.exact
        if not panels:
            return Report()
        report = Report(error_nats=self._certificate.error(positions), panels=tuple(panels))
        if report.error_nats <= (TOLERANCE if exact else COARSE_TOLERANCE):
            return report
        if not exact:
            return dataclasses.replace(self, coarse=False)
        message = f"a sketch of {panels} panels has an error of {report.error_nats:.2g} nats at posterior draws"
        first = not any(each.panels for each in self.reports)
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
        density, chains, lattice = self.exact, self.chains, True if self.whole_numbers else None
        for _ in range(REFINEMENTS):
            refined = [sketch.refine(lattice=lattice) or sketch for sketch in panel_sketches(density)]
            finer = _with_sketches(density, refined)
            if panel_counts(finer) == panel_counts(density):
                return None
            density = finer
            # The margin is there because draws from the refined posterior will lie elsewhere.
            if Certificate(density, density, chains.example, chains.measure).error(positions) <= 0.1 * TOLERANCE:
                break
        return density


def faster(density: Density) -> str:
    """Advice for a model with releases that can be sketched."""
    mechanisms: list[Any] = [each.mechanism for each in density.data if isinstance(each, Release) and not density.whole]
    numbers = [m for m in mechanisms if not (m.record_shape or m.batch_shape)]
    discrete = any(m.support.is_discrete for m in mechanisms)
    return FASTER if discrete or any(m.released_range is not None for m in numbers) else ""


class Certificate:
    """Largest difference in log density between the sketches of ``density`` and the references of those in ``exact``,
    which have more nodes for the same moments; if all keep probes, also between the sketch of these alone and the
    probes themselves. ``measure`` is a method of `Density` of parameters like the example.
    """

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

        first = jax.tree.map(lambda each: each[0], self._weights)
        traced, (self._arrays,) = trace(difference, first, example)
        draws = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((DRAWS, *leaf.shape), leaf.dtype), example)
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
        """Largest difference, in nats, at `DRAWS` of some positions (chains, draws, ...)."""
        flat = {name: positions[name].reshape(-1, *positions[name].shape[2:]) for name in self._example}
        pick = np.linspace(0, len(jax.tree.leaves(flat)[0]) - 1, DRAWS).astype(int)
        weights = self._weights
        if sketches is not None:  # judged and exact ones: on the panels of the densities' own, without probes
            weights = self._weightings(sketches[0], [sketch.reference for sketch in sketches[1]])
        differences = self._program(self._arrays, weights, {name: values[pick] for name, values in flat.items()})
        return float(np.max(np.abs(differences)))


def _reweighted(density: Density, sketches: list[PanelSketch], nodes: list[Array], weights: list[Array]) -> Density:
    """A density with these sketches, whose nodes and weights are replaced where they are kept once computed."""
    copies = [copy.copy(sketch) for sketch in sketches]
    for sketch, own_nodes, own_weights in zip(copies, nodes, weights, strict=True):
        vars(sketch).update(nodes=own_nodes, weights=own_weights)
    return _with_sketches(density, copies)


def coarser(sketches: Sequence[PanelSketch], lattice: bool) -> list[PanelSketch]:
    """Sketches on fewer panels, with which sampling begins: the matrices of all of them stay in a core's cache."""
    panels, grid = (20, 20) if len(sketches) <= CACHED_SKETCHES else (10, 12)
    return [sketch.coarser(panels, grid, lattice) for sketch in sketches]


def panel_sketches(density: Density) -> list[PanelSketch]:
    """The sketches on panels among the arguments of a density, and their parts, in their order there."""
    return [part for data in density.data if isinstance(data, PanelSketch | MixedSketch) for part in data._parts]


def panel_counts(density: Density) -> list[int]:
    return [len(sketch.edges) - 1 for sketch in panel_sketches(density)]


def _with_sketches(density: Density, sketches: Sequence[PanelSketch]) -> Density:
    """A density with other sketches in the places of those on panels."""
    others = iter(sketches)

    def replaced(data: Any) -> Any:
        if isinstance(data, MixedSketch):
            return dataclasses.replace(data, parts=tuple(next(others) for _ in data.parts))
        return next(others) if isinstance(data, PanelSketch) else data

    return density.replace_data(replaced)
