"""Sampling a surrogate of the records: it is compared with its reference at its draws, and then serves, is refined or
reweighted, or is given up for the records.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import LdpBayesWarning, warn
from ldpbayes._core.types import Array, Key, Params
from ldpbayes.data import ExpandedSketch, Release
from ldpbayes.inference._missed_tails import TAIL_TOLERANCE, Compare, follow_rays, tail_errors
from ldpbayes.inference.chains import Sampler, evenly_spaced, flat_rows
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import Density, given
from ldpbayes.inference.result import Weights, arviz, resample, smoothed_weights
from ldpbayes.inference.sketch_certificate import (
    COARSE_TOLERANCE,
    Certificate,
    coarser,
    panel_counts,
    panel_sketches,
    replace_sketches,
)
from ldpbayes.likelihood.nodes import ExpandedLaw
from ldpbayes.likelihood.privatized import unwrapped


class ExpansionWarning(LdpBayesWarning):
    """An expansion was not exact enough for the posterior; the message says why the records were sampled."""


class SketchWarning(LdpBayesWarning):
    """A sketch was too coarse for the posterior; the message says what was done about it."""


@dataclass(frozen=True)
class Report:
    """What was sampled in place of the records, why, and how far off it was; defaults stand for what does not apply."""

    ran: str | None = None
    why: str | None = None  # the records were sampled
    outside: float = np.nan  # share of the draws that are far from where an expansion was made
    error_sd_nats: float = np.nan
    error_nats: float = np.nan
    tail_error: float = np.nan
    pareto_k: float = np.nan
    effective_share: float = np.nan
    sites: tuple[str, ...] = ()  # that the records see, and the shape of their values
    shape: tuple[int, ...] = ()
    count: int | None = None
    passes: int | None = None
    order: int | None = None
    panels: tuple[int, ...] = ()
    doubt: str | None = None

    def entries(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value not in (None, ()) and value == value}

    def of_errors(self, errors: np.ndarray, **facts: Any) -> "Report":
        """The report with errors, of which only the differences count, and further facts."""
        sd, largest = np.std(errors), np.max(np.abs(errors - np.mean(errors)))
        return dataclasses.replace(self, error_sd_nats=float(sd), error_nats=float(largest), **facts)


@dataclass(frozen=True)
class Comparison:
    """A surrogate and its reference at draws."""

    report: Report
    draws: Any  # in the form that `Surrogate.refined` needs
    final: bool = True  # not made of a warm-up
    errors: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))  # nats, at some draws or at all
    weights: Weights | None = None  # with which the draws may serve
    why: str | None = None  # the draws may not serve


@dataclass(frozen=True)
class Draws:
    """Samples by site and statistics by name, (chains, iterations, ...), of a density, and reports of how that went."""

    samples: Params
    statistics: Params
    density: Density
    reports: list[Report]


class Surrogate:
    """A density that is sampled in place of a reference, and perhaps replaced by another."""

    density: Density
    key: Key  # for resampling
    reports: tuple[Report, ...] = ()  # of what was sampled before
    least_warmup: float = np.inf  # iterations from which on the warm-up is compared with the reference, too
    advice: str | None = None  # what is faster

    def prepare(self, chains: Any) -> None:
        """Keep the chains, and let what compares be compiled while they are."""
        self.chains = chains

    def compare(self, positions: Params, final: bool = True) -> Comparison:
        """The errors at positions (chains, draws, ...), log densities of the reference less those that are sampled."""
        raise NotImplementedError

    def refined(self, comparison: Comparison) -> "Surrogate | None":
        """What must be sampled instead; None if the draws serve."""
        return None


def sample(surrogate: Surrogate, sampler: Sampler) -> Draws:
    """Draws of a surrogate, or of what it is refined to, that its reference has been compared with."""
    outcome: Surrogate | Draws = surrogate
    while isinstance(outcome, Surrogate):
        outcome = _attempt(outcome, sampler)
    return outcome


def _attempt(surrogate: Surrogate, sampler: Sampler) -> Surrogate | Draws:
    chains = sampler.chains(surrogate.density)
    surrogate.prepare(chains)
    arviz()  # imported while the programs are being compiled
    with sampler.bar(surrogate.advice) as bar:
        settled = chains.warm_up(bar)
        if sampler.num_warmup >= surrogate.least_warmup:
            better = surrogate.refined(surrogate.compare(settled, final=False))
            if better is not None:
                return better
        positions, statistics = chains.run(sampler.num_samples, bar)
    comparison = surrogate.compare(positions)
    better = surrogate.refined(comparison)
    if better is not None:
        return better
    if comparison.weights is not None:
        energy, errors = statistics["potential_energy"], comparison.errors
        draws = positions, statistics | {"potential_energy": energy - (errors - errors.mean()).reshape(energy.shape)}
        positions, statistics = resample(draws, comparison.weights.log.reshape(energy.shape), surrogate.key)
    if comparison.report.doubt is not None:
        warn(comparison.report.doubt, ExpansionWarning)
    reports = [report for report in (*surrogate.reports, comparison.report) if report.entries()]
    return Draws(chains.constrained(positions), statistics, surrogate.density, reports)


# --- the data as they are -------------------------------------------------------------------------------------------

TOLERANCE = 1e-3  # nats that a sketch's log-likelihood may differ by from that of the records
REFINEMENTS = 2  # each is by a factor 4, and with more than 16 times the panels a channel's matrix would be too large
FASTER = (
    "Where many records share a law, ldpbayes.observe is faster with a sketch in their place: release.sketch(), "
    "release.sketch(by=group) for discrete outputs, or a list with the sketch of each group."
)


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
            parts, self.least_warmup = iter(fewer), 2
            self.density = replace_sketches(self.exact, lambda _: next(parts))

    def prepare(self, chains: Any) -> None:
        super().prepare(chains)
        if panel_sketches(self.density):
            self._certificate = Certificate(self.density, self.exact, chains.example, chains.measure)

    def compare(self, positions: Params, final: bool = True) -> Comparison:
        panels = tuple(panel_counts(self.density))
        report = Report(error_nats=self._certificate.error(positions), panels=panels) if panels else Report()
        return Comparison(report, positions)

    def refined(self, comparison: Comparison) -> Surrogate | None:
        report, exact = comparison.report, self.density is self.exact
        if not report.panels or report.error_nats <= (TOLERANCE if exact else COARSE_TOLERANCE):
            return None
        if not exact:
            return dataclasses.replace(self, coarse=False)
        message = f"a sketch of {[*report.panels]} panels is off by {report.error_nats:.2g} nats at posterior draws"
        first = not any(each.panels for each in self.reports)
        finer = self._finer(comparison.draws) if first else None
        if finer is None:
            advice = "sketch with more panels, or with keep_records=True" if first else "fit the release itself"
            warn(f"{message}, and cannot be refined; {advice}", SketchWarning)
            return None
        warn(f"{message}; refined to {panel_counts(finer)} and sampled again", SketchWarning)
        return dataclasses.replace(self, exact=finer, coarse=False, reports=(*self.reports, report))

    def _finer(self, positions: Params) -> Density | None:
        """A density with sketches fine enough at these draws, or as fine as they get; None if no records were kept."""
        density, chains, lattice = self.exact, self.chains, True if self.whole_numbers else None
        for _ in range(REFINEMENTS):
            finer = replace_sketches(density, lambda sketch: sketch.refine(lattice=lattice) or sketch)
            if panel_counts(finer) == panel_counts(density):
                return None
            density = finer
            # The margin is there because draws from the refined posterior will lie elsewhere.
            if Certificate(density, density, chains.example, chains.measure).error(positions) <= 0.1 * TOLERANCE:
                break
        return density


def faster(density: Density) -> str:
    """Advice for a model with releases that can be sketched."""
    mechanisms: list[Any] = [data.mechanism for data in density.data if isinstance(data, Release)]
    numbers = [m for m in mechanisms if not (m.record_shape or m.batch_shape)]
    discrete = any(m.support.is_discrete for m in mechanisms)
    return FASTER if discrete or any(m.released_range is not None for m in numbers) else ""


# --- expansions -----------------------------------------------------------------------------------------------------

# Errors are the posterior's log density less the sampled one, at draws, up to a constant.
NEGLIGIBLE_SD = 0.01  # nats: such a standard deviation moves no mean by more than so many standard deviations
NEGLIGIBLE_MAX = 0.1  # nats: largest error of a draw that counts as negligible
MODERATE_SD = 0.3  # nats up to which reweighting loses less than a tenth of the draws
HOPELESS_SD = 1.0  # nats beyond which there is no reweighting
CHECKED_DRAWS = 64  # draws at which errors are measured first


class Expanded(Surrogate):
    """A surrogate with a smooth likelihood in the place of the records', by which its draws can be reweighted."""

    least_warmup: float = CHECKED_DRAWS
    records: Callable[..., Surrogate]  # the data as they are, from why an expansion is given up and its report
    name: str  # in words
    report: Callable[[], Report]  # what is sampled, and after how many passes over the records
    coordinates: Callable[[np.ndarray], np.ndarray]  # what the likelihood depends on, from flat parameters (draws, n)
    errors: Callable[[np.ndarray], np.ndarray]  # log-likelihoods of the records less those sampled, at coordinates
    along: Compare  # the posterior at flat parameters, and the errors

    def compare(self, positions: Params, final: bool = True) -> Comparison:
        rows = flat_rows(positions, self.chains.example)
        x = self.coordinates(rows)
        errors = self.errors(evenly_spaced(x, CHECKED_DRAWS))
        if not final:
            return Comparison(self.report().of_errors(errors), x, final, errors)
        farthest, log_density, outwards = follow_rays(rows, x, self.along)
        tail = tail_errors(farthest, log_density, outwards - np.mean(errors))
        negligible = np.std(errors) <= NEGLIGIBLE_SD and np.max(np.abs(errors - np.mean(errors))) <= NEGLIGIBLE_MAX
        weights = why = None
        if not tail.beyond <= TAIL_TOLERANCE:
            why = f"a variance is off by {tail.beyond:.1%}, because the posterior has a tail where no draw is"
        elif not (negligible and tail.all <= TAIL_TOLERANCE):
            errors = self.errors(x)
            # The largest error does not count here: among all draws, a few may be off by more.
            if not (np.std(errors) <= NEGLIGIBLE_SD and tail.all <= TAIL_TOLERANCE):
                weights = smoothed_weights(errors)
        report = self.report().of_errors(errors, tail_error=tail.all)
        if weights is not None:
            k, share = weights.pareto_k, weights.share
            report = dataclasses.replace(report, ran="expansion, reweighted", pareto_k=k, effective_share=share)
            if not weights.good:
                why = f"importance weights are too uneven (Pareto k {k:.2f}, {share:.0%} of the draws)"
        return Comparison(report, x, final, errors, weights, why)

    def refined(self, comparison: Comparison) -> Surrogate | None:
        why = comparison.why
        if not comparison.final and not (sd := np.std(comparison.errors)) <= HOPELESS_SD:
            why = f"{self.name} is off by {sd:.2g} nats (standard deviation) at posterior draws"
        return None if why is None else self.records(why, comparison.report)


@dataclass(eq=False)
class ExpandedCategories(Expanded):
    """A model of expanded sketches, whose reference are the records that they were made from, if these are kept."""

    density: Density
    sampler: Sampler
    records: Callable[..., Surrogate]
    name = "a sketch"

    def __post_init__(self) -> None:
        kept = [data.records is not None for data in self.density.data if isinstance(data, ExpandedSketch)]
        self.least_warmup = CHECKED_DRAWS if all(kept) else np.inf
        self.key = jax.random.fold_in(self.sampler.key, self.sampler.num_chains)

    def prepare(self, chains: Any) -> None:
        """The shares of categories that the expansions depend on are compiled."""
        super().prepare(chains)
        self._sketches: list[ExpandedSketch] = []
        example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), chains.example)
        first, unravel = ravel_pytree(example)

        def shares(row: Array) -> list[Array]:
            parameters = unravel(row)
            sites = self.density.trace(given(self.density.model, parameters, parameters)).values()
            laws = [unwrapped(site["fn"])[0] for site in sites if site["type"] == "sample"]
            self._sketches[:] = [law.sketch for law in laws if isinstance(law, ExpandedLaw)]
            return [law.theta for law in laws if isinstance(law, ExpandedLaw)]

        self._shares = program_of("shares", shares, first)

    def _at(self, rows: np.ndarray) -> Iterator[tuple[ExpandedSketch, np.ndarray]]:
        """Each sketch with its shares (draws, ...)."""
        shares = zip(*map(self._shares, rows), strict=True)
        return zip(self._sketches, map(np.stack, shares), strict=True)

    def report(self) -> Report:
        order = max(sketch.polynomial.order for sketch in self._sketches)
        return Report(ran="expansion", count=sum(int(sketch.size) for sketch in self._sketches), order=order)

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        return rows

    def errors(self, x: np.ndarray) -> np.ndarray:
        return sum(sketch.log_likelihood(theta) - sketch.polynomial.values(theta) for sketch, theta in self._at(x))

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (potentials, gradients), errors = self.chains.potentials(rows), self.errors(rows)
        return errors - potentials, -gradients, errors

    def compare(self, positions: Params, final: bool = True) -> Comparison:
        if self.least_warmup < np.inf:
            return super().compare(positions, final)
        rows = evenly_spaced(flat_rows(positions, self.chains.example), CHECKED_DRAWS)
        share = max(sketch.polynomial.share_outside(theta) for sketch, theta in self._at(rows))
        doubt = f"{share:.0%} of the draws are not where the sketch was made; make it with keep_records=True"
        report = dataclasses.replace(self.report(), ran="expansion without records", outside=share)
        return Comparison(dataclasses.replace(report, doubt=doubt if share > 0 else None), rows)
