"""The loop that samples a surrogate, compares it with its reference at the draws, and refines or replaces it."""

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ldpbayes._core.checks import LdpBayesWarning, warn
from ldpbayes._core.types import Params
from ldpbayes.inference.approximations.integral import Integrated
from ldpbayes.inference.chains import Bar, Chains, NumpyroChains, Sampling
from ldpbayes.inference.density import Density
from ldpbayes.inference.problem import Problem
from ldpbayes.inference.result import Weights, arviz, resample
from ldpbayes.numerics.cubature import RINGS, ImproperDensity, NotIntegrable

SMALLEST_NUMBER = 1e-290  # draws below are at the end of the range of numbers
MAX_SHARE_AT_THE_END = 0.01  # share of such draws


class ExpansionWarning(LdpBayesWarning):
    """Warning that a polynomial in place of the records was not exact enough, or that `fit` could not check it. The
    message gives the reason, and says if the records were used instead.
    """


class LikelihoodWarning(LdpBayesWarning):
    """Warning that a law of many records is too narrow, at some posterior draws, for the panels of its likelihood. The
    message says at how many draws, and what is exact there.
    """


class SketchWarning(LdpBayesWarning):
    """Warning that the log-likelihood of a sketch was not exact enough, by how much, and what `fit` then did."""


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
    problem: Problem
    density: Density
    reports: list[Report]
    integral: dict[str, Any]  # how the posterior was integrated, or why chains sampled it


@dataclass(eq=False)
class Surrogate:
    """A density that is sampled in the place of a problem's, and perhaps replaced by another."""

    problem: Problem
    sampling: Sampling
    reports: tuple[Report, ...] = dataclasses.field(default=(), kw_only=True)  # of what was sampled before
    chains: Any = dataclasses.field(default=None, init=False)  # the `Positions` that draw

    least_warmup = math.inf  # iterations from which on the warm-up is compared with the reference, too
    advice = ""  # what is faster
    rings = RINGS  # of cells around the mode, within which the density stands for that of the posterior

    def __post_init__(self) -> None:
        self.density = self.problem.density

    # For resampling: chains have the numbers below that of chains.
    key = property(lambda self: jax.random.fold_in(self.sampling.key, self.sampling.num_chains))

    def positions(self, integrated: bool) -> Any:
        """What draws: an integral, or chains."""
        sampling = self.sampling
        if integrated:
            seeds = [(sampling.seed, chain) for chain in range(sampling.num_chains)]
            count, coarse = sampling.num_samples, self.rings < RINGS
            return Integrated(lambda _: self.density, seeds, count, rings=self.rings, coarse=coarse)
        outside = sampling.outside is not None
        return NumpyroChains(self.density, sampling) if outside else Chains(lambda _: self.density, sampling)

    def progress(self, integrated: bool) -> contextlib.AbstractContextManager[Bar | None]:
        shown, total = self.sampling.progress_bar, self.sampling.iterations
        if integrated:
            return contextlib.closing(Bar(None, shown, desc="integrating", unit=" evaluations"))
        # NumPyro's own sampler has a bar of its own.
        return contextlib.closing(Bar(total, shown and self.sampling.outside is None, faster=self.advice))

    def prepare(self) -> None:
        """Let what compares be compiled while the chains are."""

    def check_range(self, samples: Params) -> None:
        """ValueError if draws of unconstrained parameters are where numbers in double precision end."""
        for name, values in samples.items():
            edge = ~np.isfinite(values) | (np.abs(values) < SMALLEST_NUMBER) | (np.abs(values - 1) < 2**-52)
            varying = np.ptp(values, axis=(0, 1)) > 1e-6 * np.max(np.abs(values), axis=(0, 1))  # others are fixed
            share = np.max(np.mean(edge, axis=(0, 1)) * varying, initial=0.0)
            if share > MAX_SHARE_AT_THE_END:
                where = f"{share:.0%} of the draws of {name!r} are 0, 1 or infinite, up to rounding"
                raise ValueError(f"the posterior is improper, or nearly: {where}. Give every parameter a proper prior.")

    def judge(self, positions: Params, final: bool = True) -> "Surrogate | Report":
        """A report, or what is sampled instead if draws (chains, draws, ...) of a run, or its warm-up, do not serve."""
        raise NotImplementedError


def sample(surrogate: Surrogate) -> Draws:
    """Draws of a surrogate, by an integral or by chains, that were compared with its reference."""
    verdict: Surrogate | Report = surrogate
    sampling = surrogate.sampling
    why = sampling.chains_because
    while isinstance(verdict, Surrogate):
        surrogate, integrated = verdict, why is None
        try:
            chains = surrogate.chains = surrogate.positions(integrated)
            surrogate.prepare()
            arviz()  # imported while the programs are being compiled
            with surrogate.progress(integrated) as bar:
                settled = chains.warm_up(bar)
                if sampling.num_warmup >= surrogate.least_warmup or (integrated and surrogate.least_warmup < np.inf):
                    verdict = surrogate.judge(settled, final=False)
                    if isinstance(verdict, Surrogate):
                        continue
                positions, statistics = chains.run(sampling.num_samples, bar)
        except NotIntegrable as reason:
            if sampling.improper and surrogate.chains is not None:
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
        surrogate.check_range({name: samples[name] for name in positions})
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
    return Draws(samples, statistics, surrogate.problem, surrogate.density, reports, facts)
