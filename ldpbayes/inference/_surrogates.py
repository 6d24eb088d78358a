"""Sampling a surrogate of the records: it is compared with its reference at its draws, and then serves, is refined or
reweighted, or is given up for the records.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ldpbayes._core.checks import LdpBayesWarning, warn
from ldpbayes._core.types import Key, Params
from ldpbayes.data import Release
from ldpbayes.inference._missed_tails import TAIL_TOLERANCE, follow_rays, tail_errors
from ldpbayes.inference.chains import Sampler, evenly_spaced, flat_rows
from ldpbayes.inference.density import Density
from ldpbayes.inference.result import Weights, arviz, resample, smoothed_weights
from ldpbayes.inference.sketch_certificate import (
    COARSE_TOLERANCE,
    Certificate,
    coarser,
    panel_counts,
    panel_sketches,
    replace_sketches,
)
from ldpbayes.numerics.polynomial import Polynomial


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
        """Let what compares be compiled while the chains are."""

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

    density: Density
    exact: Density  # the density with its own sketches, which the references belong to
    whole_numbers: bool  # whether records are whole numbers
    begin_coarse: bool
    reports: tuple[Report, ...] = ()

    @classmethod
    def of(cls, density: Density, whole_numbers: bool, begin_coarse: bool, reports: tuple[Report, ...]) -> "Records":
        own = panel_sketches(density)
        coarse = coarser(own, whole_numbers) if begin_coarse else own
        parts, same = iter(coarse), all(a is b for a, b in zip(coarse, own, strict=True))
        first = density if same else replace_sketches(density, lambda _: next(parts))
        return cls(first, density, whole_numbers, begin_coarse, reports)

    def __post_init__(self) -> None:
        self.advice, self.least_warmup = faster(self.exact), np.inf if self.density is self.exact else 2

    def prepare(self, chains: Any) -> None:
        self._certificate = functools.partial(Certificate, example=chains.example, measure=chains.measure)
        if panel_sketches(self.density):
            self._error = self._certificate(self.density, self.exact).error

    def compare(self, positions: Params, final: bool = True) -> Comparison:
        panels = tuple(panel_counts(self.density))
        return Comparison(Report(error_nats=self._error(positions), panels=panels) if panels else Report(), positions)

    def refined(self, comparison: Comparison) -> Surrogate | None:
        report, exact = comparison.report, self.density is self.exact
        if not report.panels or report.error_nats <= (TOLERANCE if exact else COARSE_TOLERANCE):
            return None
        if not exact:
            return dataclasses.replace(self, density=self.exact)
        message = f"a sketch of {[*report.panels]} panels is off by {report.error_nats:.2g} nats at posterior draws"
        first = not any(each.panels for each in self.reports)
        finer = self._finer(comparison.draws) if first else None
        if finer is None:
            advice = "sketch with more panels, or with keep_records=True" if first else "fit the release itself"
            warn(f"{message}, and cannot be refined; {advice}", SketchWarning)
            return None
        warn(f"{message}; refined to {panel_counts(finer)} and sampled again", SketchWarning)
        return Records.of(finer, self.whole_numbers, self.begin_coarse, (*self.reports, report))

    def _finer(self, positions: Params) -> Density | None:
        """A density with sketches fine enough at these draws, or as fine as they get; None if no records were kept."""
        density, lattice = self.density, True if self.whole_numbers else None
        for _ in range(REFINEMENTS):
            finer = replace_sketches(density, lambda sketch: sketch.refine(lattice=lattice) or sketch)
            if panel_counts(finer) == panel_counts(density):
                return None
            density = finer
            # The margin is there because draws from the refined posterior will lie elsewhere.
            if self._certificate(density, density).error(positions) <= 0.1 * TOLERANCE:
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
OUTSIDE = 2.0  # standard deviations beyond the typical distance √r: at most one draw in 300 of a normal law is there


class Expanded(Surrogate):
    """A surrogate with a smooth likelihood in the place of the records', by which its draws can be reweighted."""

    least_warmup: float = CHECKED_DRAWS
    records: Callable[..., Surrogate]  # the data as they are, after reports of expansions

    def prepare(self, chains: Any) -> None:
        self.chains = chains

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        """What the likelihood depends on (draws, ...), at flat parameters (draws, n)."""
        return rows

    def report(self) -> Report:
        """What is sampled, and after how many passes over the records."""
        raise NotImplementedError

    def errors(self, x: np.ndarray) -> np.ndarray:
        """Log-likelihoods of the records less those that are sampled, at coordinates."""
        raise NotImplementedError

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The posterior's log densities at flat parameters, their gradients, and the errors."""
        raise NotImplementedError

    def compare(self, positions: Params, final: bool = True) -> Comparison:
        rows = flat_rows(positions, self.chains.example)
        x = self.coordinates(rows)
        errors = self.errors(evenly_spaced(x, CHECKED_DRAWS))
        if not final:
            return Comparison(self.report().of_errors(errors), x, final, errors)
        farthest, log_density, outwards = follow_rays(rows, x, self.along)
        tail = tail_errors(farthest, log_density, outwards - np.mean(errors))
        negligible = np.std(errors) <= NEGLIGIBLE_SD and np.max(np.abs(errors - np.mean(errors))) <= NEGLIGIBLE_MAX
        facts: dict[str, Any] = {"tail_error": tail.all}
        weights = why = None
        if not tail.beyond <= TAIL_TOLERANCE:
            why = f"a variance is off by {tail.beyond:.1%}, because the posterior has a tail where no draw is"
        elif not (negligible and tail.all <= TAIL_TOLERANCE):
            errors = self.errors(x)
            # The largest error does not count here: among all draws, a few may be off by more.
            if not (np.std(errors) <= NEGLIGIBLE_SD and tail.all <= TAIL_TOLERANCE):
                weights = smoothed_weights(errors)
                facts |= {
                    "ran": "expansion, reweighted",
                    "pareto_k": weights.pareto_k,
                    "effective_share": weights.share,
                }
                if not weights.good:
                    uneven = f"Pareto k {weights.pareto_k:.2f}, {weights.share:.0%} of the draws"
                    why = f"importance weights are too uneven ({uneven})"
        return Comparison(self.report().of_errors(errors, **facts), x, final, errors, weights, why)


def given_up(records: Callable[..., Surrogate], why: str, report: Report) -> Surrogate:
    """The data as they are, after an expansion."""
    warn(f"no expansion is sampled, but the data as they are: {why}", ExpansionWarning)
    return records(dataclasses.replace(report, ran="records", why=why))


def share_outside(polynomial: Polynomial, points: np.ndarray) -> float:
    """Share of points (points, ..., n), in any of the groups, that are far from the points of the fit."""
    y = polynomial.coordinates(points)
    return float(np.mean(np.linalg.norm(y, axis=-1) > np.sqrt(y.shape[-1]) + OUTSIDE))
