"""Draws of a density that is nearly the posterior: they serve as they are, reweighted, or not at all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ldpbayes.inference._reweight import resampled, smoothed_weights
from ldpbayes.inference._search import evenly
from ldpbayes.inference._tails import TOLERANCE, Compare, follow, tails

__all__ = ["CHECKS", "HOPELESS", "MODERATE", "NEGLIGIBLE", "Outcome", "errors_said", "judged"]

NEGLIGIBLE = 0.01  # nats of standard deviation of the error: it moves no mean by more than so many standard deviations
LARGE = 0.1  # nats that no single draw's error may exceed for that
MODERATE = 0.3  # nats of standard deviation up to which reweighting loses less than a tenth of the draws
HOPELESS = 1.0  # nats of standard deviation of the error beyond which there is no reweighting
CHECKS = 64  # draws at which what is sampled and the records are compared


class Outcome(NamedTuple):
    """What came of sampling something else than the records.

    Attributes
    ----------
    report : dict
        What ran, and why where it was the records, for the attributes of the result.
    samples, statistics : dict, optional
        Draws of the posterior; None where only the records will do.
    off : ndarray, optional
        Errors at all draws, where these could not be reweighted.
    """

    report: dict[str, Any]
    samples: dict[str, Any] | None = None
    statistics: dict[str, Any] | None = None
    off: np.ndarray | None = None


def errors_said(off: np.ndarray) -> dict[str, float]:
    """Errors, as a report has them.

    Parameters
    ----------
    off : ndarray (draws,)
        In nats, up to a constant.
    """
    off = off - np.mean(off)
    return {"error_sd_nats": float(np.std(off)), "error_nats": float(np.max(np.abs(off)))}


def judged(
    errors: Callable[[np.ndarray], np.ndarray],
    seen: np.ndarray,
    positions: dict[str, Any],
    statistics: dict[str, Any],
    constrained: Callable[[dict[str, Any]], dict[str, Any]],
    key: jax.Array,
    draws: np.ndarray,
    compare: Compare,
) -> Outcome:
    """Draws as they are where their density's error is negligible, reweighted where it is not, or none.

    Parameters
    ----------
    errors : callable
        From some of ``seen`` to the log density of the posterior less that which was sampled, up to a constant.
    seen : ndarray (chains · draws, ...)
        What the records see of the draws.
    positions, statistics : dict of str to ndarray (chains, draws, ...)
        Of the chains.
    constrained : callable
        From positions to samples of the sites.
    key : jax.Array
        A JAX random key.
    draws : ndarray (chains · draws, n)
        The positions, flat.
    compare : callable
        At parameters like these; see `Compare`.
    """
    off = errors(evenly(seen, CHECKS))
    said = errors_said(off)
    rays, log_density, outwards = follow(draws, seen, compare)
    tail = tails(rays, log_density, outwards - np.mean(off))
    said |= {"tail_error": tail.all}
    if not tail.beyond <= TOLERANCE:
        why = f"a variance is off by {tail.beyond:.1%}, because the posterior has a tail where no draw is"
        return Outcome({"ran": "records", "why": why, **said})
    if said["error_sd_nats"] <= NEGLIGIBLE and said["error_nats"] <= LARGE and tail.all <= TOLERANCE:
        return Outcome({"ran": "expansion", **said}, constrained(positions), statistics)
    off = errors(seen)
    said |= errors_said(off)
    # Of all draws, among which a few may be off by more.
    if said["error_sd_nats"] <= NEGLIGIBLE and tail.all <= TOLERANCE:
        return Outcome({"ran": "expansion", **said}, constrained(positions), statistics)
    weights = smoothed_weights(off)
    said |= {"pareto_k": weights.pareto_k, "effective_share": weights.share}
    if not weights.good:
        why = f"importance weights are too uneven (Pareto k {weights.pareto_k:.2f}, {weights.share:.0%} of the draws)"
        return Outcome({"ran": "records", "why": why, **said}, off=off - np.mean(off))
    each = statistics["potential_energy"].shape
    energy = statistics["potential_energy"] - (off - np.mean(off)).reshape(each)
    both = positions, statistics | {"potential_energy": energy}
    positions, statistics = resampled(both, weights.log.reshape(each), key)
    return Outcome({"ran": "expansion, reweighted", **said}, constrained(positions), statistics)
