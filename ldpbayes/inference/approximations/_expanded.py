"""Surrogates with a smooth likelihood in the place of the records', here those of expanded sketches of categories."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._core.types import Array, Params
from ldpbayes.data import ExpandedSketch
from ldpbayes.inference.approximations._rays import TAIL_TOLERANCE, follow_rays, tail_errors
from ldpbayes.inference.approximations.panels import records_instead
from ldpbayes.inference.approximations.surrogates import Report, Surrogate
from ldpbayes.inference.chains import Sampling, flat_rows
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import given
from ldpbayes.inference.problem import Problem
from ldpbayes.inference.result import smoothed_weights
from ldpbayes.laws.compound import unwrapped
from ldpbayes.likelihood.privatized import ExpandedLaw
from ldpbayes.numerics.arrays import evenly_spaced

# Errors are the posterior's log density less the sampled one, at draws, up to a constant.
NEGLIGIBLE_SD_NATS = 0.01  # nats: such a standard deviation moves no mean by more than so many standard deviations
NEGLIGIBLE_ERROR_NATS = 0.1  # nats: largest error of a draw that counts as negligible
MODERATE_SD_NATS = 0.3  # nats up to which reweighting loses less than a tenth of the draws
HOPELESS_SD_NATS = 1.0  # nats beyond which there is no reweighting
CHECKED_DRAWS = 64  # draws at which errors are measured first


@dataclasses.dataclass(eq=False)
class Expanded(Surrogate):
    """A surrogate with a smooth likelihood in the place of the records', by which its draws can be reweighted."""

    rings = 1  # further out a polynomial is wrong, and may rise
    least_warmup = float(CHECKED_DRAWS)

    def report(self) -> Report:
        """What is sampled, and after how many passes over the records."""
        raise NotImplementedError

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        """What the likelihood depends on, from flat parameters (draws, n)."""
        raise NotImplementedError

    def errors(self, x: np.ndarray) -> np.ndarray:
        """Log-likelihoods (draws,) of the records less those sampled, at coordinates."""
        raise NotImplementedError

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The posterior's log densities (draws,) at flat parameters, their gradients (draws, n), and the errors."""
        raise NotImplementedError

    def give_up(self, why: str, report: Report) -> Surrogate:
        return records_instead(self.problem, self.sampling, why, report)

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        rows = flat_rows(positions, self.chains.example)
        x = self.coordinates(rows)
        errors = self.errors(evenly_spaced(x, CHECKED_DRAWS))
        if not final:
            report, sd = self.report().of_errors(errors), np.std(errors)
            why = f"the error of the expansion is {sd:.2g} nats (standard deviation over posterior draws)"
            return self.again(x, errors, final) or (report if sd <= HOPELESS_SD_NATS else self.give_up(why, report))
        farthest, log_density, outwards = follow_rays(rows, x, self.along)
        tail, beyond = tail_errors(farthest, log_density, outwards - np.mean(errors))
        report = self.report().of_errors(errors, tail_error=tail)
        if not beyond <= TAIL_TOLERANCE:
            why = f"a variance is wrong by {beyond:.1%}, because the posterior has a tail that no draw reaches"
            return self.give_up(why, report)
        whole = tail <= TAIL_TOLERANCE
        if not (whole and report.error_sd_nats <= NEGLIGIBLE_SD_NATS and report.error_nats <= NEGLIGIBLE_ERROR_NATS):
            errors = self.errors(x)
            report = self.report().of_errors(errors, tail_error=tail)
        # The largest error does not count among all draws, of which a few may be off by more.
        if whole and report.error_sd_nats <= NEGLIGIBLE_SD_NATS:
            return report
        weights = smoothed_weights(errors)
        k, share = weights.pareto_k, weights.share
        report = dataclasses.replace(report, ran="expansion, reweighted", pareto_k=k, effective_share=share)
        if weights.good:
            return dataclasses.replace(report, weights=weights)
        why = f"importance weights are too uneven (Pareto k {k:.2f}, effective share of the draws {share:.0%})"
        return self.again(x, errors, final) or self.give_up(why, report)

    def again(self, draws: np.ndarray, errors: np.ndarray, final: bool) -> Surrogate | None:
        """An expansion at these draws; None if there is none, or if it would not help or is not necessary."""
        return None


@dataclasses.dataclass(eq=False)
class ExpandedCategories(Expanded):
    """A model of expanded sketches, whose reference are the records that they were made from, if these are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = [data.records is not None for data in self.density.data if isinstance(data, ExpandedSketch)]
        self.least_warmup = CHECKED_DRAWS if all(kept) else np.inf

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows)

    def prepare(self, chains: Any) -> None:
        super().prepare(chains)
        self._sketches: list[ExpandedSketch] = []
        first, unravel = ravel_pytree(chains.example)

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

    def errors(self, x: np.ndarray) -> np.ndarray:
        return sum(sketch.log_likelihood(theta) - sketch.polynomial.values(theta) for sketch, theta in self._at(x))

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (potentials, gradients), errors = self.chains.potentials(rows), self.errors(rows)
        return errors - potentials, -gradients, errors

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        if self.least_warmup < np.inf:
            return super().judge(positions, final)
        rows = evenly_spaced(flat_rows(positions, self.chains.example), CHECKED_DRAWS)
        share = max(sketch.polynomial.share_outside(theta) for sketch, theta in self._at(rows))
        doubt = f"{share:.0%} of the draws are far from the centre of the sketch; keep the records in it"
        report = dataclasses.replace(self.report(), ran="expansion without records", outside=share)
        return dataclasses.replace(report, doubt=doubt if share > 0 else None)


def propose(problem: Problem, sampling: Sampling) -> ExpandedCategories | None:
    """The model of expanded sketches, if there are any and they may be sampled as they are."""
    if not any(isinstance(data, ExpandedSketch) for data in problem.density.data):
        return None
    if problem.expansion is not None:
        raise ValueError("expand= cannot be an Expansion if the data are an expanded sketch; pass the release")
    return ExpandedCategories(problem, sampling) if problem.expand is not False and sampling.outside is None else None
