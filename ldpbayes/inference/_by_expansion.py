"""Posteriors by expansion: the records are read a few hundred times, and never by the sampler.

The log-likelihood of all records is fitted by a polynomial in the numbers through which they see the parameters: first
at draws from the normal approximation at the mode, then, where the certificate is not content, at draws of the chains.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes.inference._bar import Bar
from ldpbayes.inference._certificate import panel_sketches
from ldpbayes.inference._chains import Chains
from ldpbayes.inference._cut import MANY, SEVERAL, Uncut
from ldpbayes.inference._density import Density, Site
from ldpbayes.inference._expanded import Expanded, expanded
from ldpbayes.inference._expansion import Expansion, outside, passes_for, values_of
from ldpbayes.inference._mode import Mode, NoMode
from ldpbayes.inference._outcome import CHECKS, HOPELESS, MODERATE, NEGLIGIBLE, Outcome, errors_said, judged
from ldpbayes.inference._search import ORDERS, SEARCHES, Search, evenly
from ldpbayes.inference._tails import TOLERANCE
from ldpbayes.inference.arviz_ import arviz
from ldpbayes.numerics._polynomial import Frame, Polynomial

__all__ = ["by_expansion"]

ROUNDS = 4  # expansions at most, each at the draws of the one before
MOST = 6000  # passes for an expansion, beyond which no higher order is tried
NARROW = 0.05  # squared number of directions over the number of records up to which an expansion is nearly exact
WORTH = 1.5e11  # numbers that the records' way reads and writes from which on compiling an expansion is worth its time
GRADIENTS = 10  # that an iteration of NUTS takes, about
TAIL = 20  # every such draw, one of the largest errors, may become a further point of an expansion that is made again
FEW_OUTSIDE = 0.02  # share of the draws that may be far from where an expansion was made

_MakeChains = Callable[[Polynomial, Mode], Chains]
"""From what stands for the records, and where chains start, to the chains."""


def by_expansion(
    kernel: Any,
    chain_method: str | None,
    key: jax.Array,
    numbers: tuple[int, int, int],
    shown: bool,
    sites: dict[str, Site],
    density: Density,
    expand: "bool | Expansion | None",
) -> Outcome | None:
    """Sample a posterior by expansions of its likelihood.

    Parameters
    ----------
    kernel, chain_method
        As `Chains` takes them.
    key : jax.Array
        A JAX random key.
    numbers : tuple of int
        Warm-up iterations, draws and chains.
    shown : bool
        Whether a bar shows the progress.
    sites : dict of str to Site
        Of the model.
    density : Density
        The model with its arguments.
    expand : bool or Expansion, optional
        None where an expansion is tried only if it pays; one of all records, or of more than are here.

    Returns
    -------
    Outcome or None
        None where nobody asked for an expansion, and none pays.

    Raises
    ------
    ValueError
        If an expansion is given that is not of this model, or of shards, with a posterior of several modes.
    """
    num_warmup, num_samples, num_chains = numbers
    given = expand if isinstance(expand, Expansion) else None
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_chains))
    # Nothing is traced, let alone compiled, for the sketches that most fits are of.
    if expand is None and (panel_sketches(density) or max(site.rows for site in sites.values()) < MANY):
        return None
    try:
        search = Search(density, sites, kernel._init_strategy, key, MANY if expand is None else SEVERAL)
    except Uncut as reason:
        if given is not None:
            raise ValueError(f"an expansion is given, but the model cannot have one: {reason}") from None
        return Outcome({"ran": "records", "why": str(reason)}) if expand else None
    if given is not None and (given.names, given.points.shape[1:]) != (search.cut.names, search.cut.shape):
        raise ValueError(
            f"the expansion is of another model: it is in {given.names}, of shape {given.points.shape[1:]}, and here "
            f"records see {search.cut.names}, of shape {search.cut.shape}"
        )
    if expand is None and not _pays(search, (num_warmup + num_samples) * num_chains):
        return None

    def chains(polynomial: Polynomial, at: Mode) -> Chains:
        density: Expanded = expanded(search.cut, polynomial, at, search.above)
        return Chains(lambda _: density, kernel, keys, num_warmup, num_samples, chain_method)

    if given is not None and given.count != search.cut.count:
        return _of_shards(search, given, chains, numbers, shown)
    # An expansion that is given may be of another place, or of other records.
    for start in [None] if given is None else [given, None]:
        try:
            outcome = _of_records(search, start, chains, numbers, shown)
        except NoMode as reason:
            outcome = Outcome({"ran": "records", "why": str(reason)} | _about(search))
        if outcome.samples is not None:
            break
    return outcome


def _pays(search: Search, iterations: int) -> bool:
    """Whether an expansion is worth its time and likely to be exact; no clock has a part in it."""
    directions, groups = search.cut.shape[-1], search.cut.groups or 1
    narrow = groups * directions**2 <= NARROW * search.cut.count
    return narrow and GRADIENTS * float(iterations) * search.passes.numbers >= WORTH


def _about(search: Search, order: int | None = None) -> dict[str, Any]:
    found = search.cut
    about = {"sites": list(found.names), "shape": list(found.shape), "count": found.count, "passes": search.passes.made}
    return about | ({} if order is None else {"order": order})


def _of_records(
    search: Search, given: Expansion | None, chains: _MakeChains, numbers: tuple[int, int, int], shown: bool
) -> Outcome:
    """Expand and begin to sample until the expansion is exact enough at the draws, and then go on to the end."""
    num_warmup, num_samples, num_chains = numbers
    budget = num_chains * (num_warmup + num_samples)
    at = search.mode(max(SEARCHES, num_chains), given)
    expansion = search.expansion(search.above.coordinates(search.normal_draws(at))) if given is None else given
    for number in range(ROUNDS):
        order, polynomial = expansion.order, expansion.polynomial
        ran = chains(polynomial, at)
        arviz()  # imported while the programs are being compiled
        errors = functools.partial(_errors, search, polynomial)
        again = number < ROUNDS - 1 and search.passes.made < budget
        with contextlib.closing(Bar(budget, shown)) as bar:
            positions, statistics = ran.run(num_warmup, bar)
            if num_warmup >= CHECKS:
                draws = search.seen({name: values[:, num_warmup // 2 :] for name, values in positions.items()})
                off = errors(evenly(draws, CHECKS))
                higher = _higher(draws, order)
                # Reweighting takes a pass a draw, but no slopes and no other chains.
                dear = higher == order or 3 * passes_for(Frame.of_draws(draws), higher) > num_samples * num_chains
                hopeless = not np.std(off) <= HOPELESS
                if hopeless and (expansion is given or not again):  # the draws are not worth anything
                    break
                if again and not np.std(off) <= (MODERATE if dear else NEGLIGIBLE):
                    expansion = search.expansion(draws, higher)
                    continue
            positions, statistics = ran.run(num_samples, bar)
        seen, key = search.seen(positions), jax.random.fold_in(search.key, 2)
        flat, compare = search.above.flat(positions), functools.partial(search.compared, polynomial)
        outcome = judged(errors, seen, positions, statistics, ran.constrained, key, flat, compare)
        if not again or outcome.off is None:
            return outcome._replace(report=outcome.report | _about(search, order))
        worst = np.argsort(-np.abs(outcome.off))[: len(seen) // TAIL]
        expansion = search.expansion(seen, order, seen[worst])
    why = f"an expansion of order {order} is off by {np.std(off):.2g} nats (standard deviation) at posterior draws"
    return Outcome({"ran": "records", "why": why} | errors_said(off) | _about(search, order))


def _errors(search: Search, polynomial: Polynomial, draws: np.ndarray) -> np.ndarray:
    return search.passes.values(draws) - values_of(polynomial, draws)


def _higher(draws: np.ndarray, order: int) -> int:
    """The next order, if there is one and it does not take too many passes."""
    return order + 1 if order < ORDERS[-1] and passes_for(Frame.of_draws(draws), order + 1) <= MOST else order


def _of_shards(
    search: Search, given: Expansion, chains: _MakeChains, numbers: tuple[int, int, int], shown: bool
) -> Outcome:
    """Sample an expansion of records that are elsewhere; the certificate is what it says of itself."""
    num_warmup, num_samples, num_chains = numbers
    polynomial = given.polynomial
    try:
        at = search.mode(max(SEARCHES, num_chains), given)
    except NoMode as reason:
        raise ValueError(
            f"the expansion has no mode that chains could start from: {reason}; expand the shards again, at= points "
            "that are nearer to the posterior of all of them"
        ) from None
    ran = chains(polynomial, at)
    with contextlib.closing(Bar(num_chains * (num_warmup + num_samples), shown)) as bar:
        ran.run(num_warmup, bar)
        positions, statistics = ran.run(num_samples, bar)
    share = outside(polynomial, search.seen(positions))
    said = errors_said(given.errors()) | {"tail_error": search.tails(given).all}
    report: dict[str, Any] = {"ran": "expansion of shards", "outside": share} | said
    report |= _about(search, given.order) | {"count": given.count}
    doubts = []
    if share > FEW_OUTSIDE or not said["error_sd_nats"] <= NEGLIGIBLE:
        doubts.append(
            f"the expansion is off by {said['error_sd_nats']:.2g} nats (standard deviation) where it was made, and "
            f"{share:.0%} of the draws are elsewhere; expand the shards again, at=this posterior"
        )
    if not said["tail_error"] <= TOLERANCE:
        doubts.append(
            f"a variance is off by {said['tail_error']:.1%}: where that remains, the posterior has a tail that the "
            "expansion has not; fit the records"
        )
    if doubts:
        report["doubt"] = "; ".join(doubts)
    return Outcome(report, ran.constrained(positions), statistics)
