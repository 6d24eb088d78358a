"""Sampling an expansion in place of the records, with its errors measured at its draws."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_uniform
from numpyro.infer.util import unconstrain_fn

from ldpbayes._core.types import Array, Key, Model, Params
from ldpbayes.data import ExpandedSketch
from ldpbayes.inference import _mode_search
from ldpbayes.inference._missed_tails import TAIL_TOLERANCE, Compare, follow_rays, straight_rays, tail_errors
from ldpbayes.inference._mode_search import Expansion, Mode, NoMode, Search
from ldpbayes.inference._split_model import REQUESTED_RECORDS, WORTHWHILE_RECORDS, Cut, Uncut
from ldpbayes.inference.chains import Chains, Sampling
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import RUNNING, Density, Site, density_of, given, sites_of
from ldpbayes.inference.result import arviz, resample, smoothed_weights
from ldpbayes.inference.sketch_certificate import panel_sketches
from ldpbayes.likelihood.nodes import ExpandedLaw
from ldpbayes.likelihood.privatized import unwrapped
from ldpbayes.numerics.polynomial import Frame, Polynomial

MAX_DRAWS = 8000  # draws of a posterior, among which points are picked


def expand(
    model: Model, *args: Any, at: Any = None, order: int | None = None, seed: int = 0, **kwargs: Any
) -> Expansion:
    """Expand the log-likelihood of a model's records around its posterior, as an `Expansion`; those of shards add.

    Two rounds serve data that do not fit one machine. Expand every shard at the points of the first one's expansion,
    add, and `fit` any shard with ``expand=`` the sum; then once more ``at=`` that posterior, if `fit` asks for it. An
    expansion holds arrays only and can be pickled. Points are compared exactly: machines that differ in rounding need
    one expansion as ``at``, not the posterior.

    Parameters
    ----------
    model, *args, **kwargs
        NumPyro model and its arguments, a shard of the records. ValueError if none of them can be expanded.
    at : Expansion or posterior, optional
        The points: those of another expansion, or draws of what `fit` returned, of this model. Default: around the mode
        of the posterior of these records alone; ValueError if it has several.
    order : int, optional
        2, 3 or 4. Default: that of an expansion ``at``, otherwise the highest for which few passes suffice.
    seed : int
        Of the points.
    """
    if order is not None and order not in _mode_search.ORDERS:
        raise ValueError(f"order must be 2, 3 or 4, got {order!r}")
    density, key = density_of(model, args, kwargs), jax.random.key(seed)
    with jax.enable_x64(True):
        search = Search(density, sites_of(density), init_to_uniform, key, REQUESTED_RECORDS)
        if isinstance(at, Expansion):
            if (at.names, at.points.shape[1:]) != (search.cut.names, search.cut.shape):
                raise ValueError(f"at is an expansion of another model, in {at.names}; here it is {search.cut.names}")
            expansion, rays = search.expansion_at(at.points, at.frame, order or at.order), at.rays
        else:
            if at is None:
                draws = search.normal_draws(search.mode(_mode_search.MIN_SEARCHES))
            else:
                draws = _unconstrained_draws(search, at)
            coordinates = search.above.coordinates(draws)
            expansion, rays = search.expansion(coordinates, order), straight_rays(draws, coordinates)
        if rays is None:
            return expansion
        outwards = search.passes.values(search.above.coordinates(rays.points))
        return dataclasses.replace(expansion, rays=rays, outwards=outwards)


def _unconstrained_draws(search: Search, posterior: Any) -> np.ndarray:
    """Unconstrained parameters (draws, n) of a posterior."""
    density = search.cut.density
    try:
        values = {name: np.asarray(posterior["posterior"][name]) for name in search.above.names}
    except (KeyError, TypeError):
        names = ", ".join(search.above.names)
        raise ValueError(f"at must be an expansion, or a posterior with draws of {names}; got {posterior!r}") from None
    draws = {
        name: _mode_search.evenly_spaced(each.reshape(-1, *each.shape[2:]), MAX_DRAWS) for name, each in values.items()
    }

    def unconstrained(values: Params) -> Params:
        with RUNNING:
            return unconstrain_fn(density.model, density.args, density.kwargs, values)

    return search.above.flat(jax.jit(jax.vmap(unconstrained))(draws))


# Errors are the posterior's log density less the sampled one, at draws, up to a constant.
NEGLIGIBLE_SD = 0.01  # nats: such a standard deviation moves no mean by more than so many standard deviations
NEGLIGIBLE_MAX = 0.1  # nats: largest error of a draw that counts as negligible
MODERATE_SD = 0.3  # nats up to which reweighting loses less than a tenth of the draws
HOPELESS_SD = 1.0  # nats beyond which there is no reweighting
CHECKED_DRAWS = 64  # draws at which errors are measured first


@dataclass(frozen=True)
class Outcome:
    """Result of sampling a surrogate of the records."""

    report: dict[str, Any]  # for the attributes of the fit: what ran, why if it was the records, and the errors
    samples: Params | None = None  # draws of the posterior; None if the records must be sampled
    statistics: Params = dataclasses.field(default_factory=dict)
    errors: np.ndarray | None = None  # at all draws, if these could not be reweighted
    warning: str | None = None


def _records_needed(why: str, facts: dict[str, Any], errors: np.ndarray | None = None) -> Outcome:
    warning = f"no expansion is sampled, but the data as they are: {why}"
    return Outcome({"ran": "records", "why": why} | facts, errors=errors, warning=warning)


def _error_summary(errors: np.ndarray) -> dict[str, float]:
    errors = errors - np.mean(errors)
    return {"error_sd_nats": float(np.std(errors)), "error_nats": float(np.max(np.abs(errors)))}


def _assess(
    chains: Chains,
    positions: Params,
    statistics: Params,
    coordinates: np.ndarray,
    errors: Callable[[np.ndarray], np.ndarray],
    flat: np.ndarray,
    compare: Compare,
    key: Key,
) -> Outcome:
    """Draws as they are if their density's error is negligible, reweighted if it is moderate, otherwise none.
    ``errors`` takes some of the coordinates (draws, ...); ``flat`` are the positions (draws, n), for ``compare``.
    """
    off = errors(_mode_search.evenly_spaced(coordinates, CHECKED_DRAWS))
    facts = _error_summary(off)
    rays, log_density, outwards = follow_rays(flat, coordinates, compare)
    tail = tail_errors(rays, log_density, outwards - np.mean(off))
    facts |= {"tail_error": tail.all}
    if not tail.beyond <= TAIL_TOLERANCE:
        why = f"a variance is off by {tail.beyond:.1%}, because the posterior has a tail where no draw is"
        return _records_needed(why, facts)
    negligible = facts["error_sd_nats"] <= NEGLIGIBLE_SD and facts["error_nats"] <= NEGLIGIBLE_MAX
    if not (negligible and tail.all <= TAIL_TOLERANCE):
        off = errors(coordinates)
        facts |= _error_summary(off)
        # The largest error does not count here: among all draws, a few may be off by more.
        negligible = facts["error_sd_nats"] <= NEGLIGIBLE_SD
    if negligible and tail.all <= TAIL_TOLERANCE:
        return Outcome({"ran": "expansion", **facts}, chains.constrained(positions), statistics)
    weights = smoothed_weights(off)
    facts |= {"pareto_k": weights.pareto_k, "effective_share": weights.share}
    if not weights.good:
        why = f"importance weights are too uneven (Pareto k {weights.pareto_k:.2f}, {weights.share:.0%} of the draws)"
        return _records_needed(why, facts, off - np.mean(off))
    shape = statistics["potential_energy"].shape
    energy = statistics["potential_energy"] - (off - np.mean(off)).reshape(shape)
    draws = positions, statistics | {"potential_energy": energy}
    positions, statistics = resample(draws, weights.log.reshape(shape), key)
    return Outcome({"ran": "expansion, reweighted", **facts}, chains.constrained(positions), statistics)


MAX_ROUNDS = 4  # expansions, each at the draws of the one before
MAX_PASSES = 6000  # passes for an expansion, beyond which no higher order is tried
NARROW_RATIO = 0.05  # squared number of directions over the number of records up to which an expansion is nearly exact
MIN_WORK = 1.5e11  # array entries that sampling the records handles, from which on compiling an expansion pays
GRADIENTS = 10  # gradients of an iteration of NUTS, about
WORST_ONE_IN = 20  # one draw in twenty, with the largest errors, may be a further point of the next expansion
MAX_OUTSIDE = 0.02  # share of the draws that may be far from the points of an expansion


@dataclass(frozen=True)
class _Expanded(Density):
    """A density in which a polynomial stands for the log-likelihood of the records below a cut."""

    cut: Cut
    polynomial: Polynomial
    mode: Mode
    unravel: Callable[[Array], Params]

    def start(self, key: Key, strategy: Callable = init_to_uniform, sites: dict[str, Site] | None = None) -> Params:
        """A draw from the normal approximation at the mode: far from it, the polynomial is wrong."""
        at, root = self.mode
        return self.unravel(at + root @ jax.random.normal(key, at.shape, at.dtype))

    def potential(self, parameters: Params) -> Array:
        return self.cut.rest(parameters) - jnp.sum(self.polynomial(self.cut.coordinates(parameters)))


def _expanded_chains(search: Search, polynomial: Polynomial, mode: Mode, sampling: Sampling) -> Chains:
    density = search.cut.density
    # Arrays of JAX stay arguments of what is compiled, also those of one number: NumPy's would become constants.
    polynomial, mode = jax.tree.map(jnp.asarray, (polynomial, mode))
    return sampling.chains(
        _Expanded(density.model, density.args, density.kwargs, search.cut, polynomial, mode, search.above.unravel)
    )


def by_expansion(
    sampling: Sampling, sites: dict[str, Site], density: Density, expand: bool | Expansion | None
) -> Outcome | None:
    """Sample a posterior by expansions of its likelihood; None if these are neither requested nor worthwhile. An
    expansion ``expand`` may be of all records, or of more than the arguments have. Raises ValueError if it is of
    another model, or of shards, with a posterior of several modes.
    """
    expansion = expand if isinstance(expand, Expansion) else None
    # Nothing is traced, let alone compiled, for the sketches that most fits are of.
    if expand is None and (panel_sketches(density) or max(site.rows for site in sites.values()) < WORTHWHILE_RECORDS):
        return None
    min_records = WORTHWHILE_RECORDS if expand is None else REQUESTED_RECORDS
    try:
        search = Search(density, sites, sampling.kernel._init_strategy, sampling.key, min_records)
    except Uncut as reason:
        if expansion is not None:
            raise ValueError(f"an expansion is given, but the model cannot have one: {reason}") from None
        return _records_needed(str(reason), {}) if expand else None
    if expansion is not None and (expansion.names, expansion.points.shape[1:]) != (search.cut.names, search.cut.shape):
        raise ValueError(
            f"the expansion is of another model: it is in {expansion.names}, of shape {expansion.points.shape[1:]}, "
            f"and here records see {search.cut.names}, of shape {search.cut.shape}"
        )
    directions, groups, work = search.cut.shape[-1], search.cut.groups or 1, float(search.passes.work)
    narrow = groups * directions**2 <= NARROW_RATIO * search.cut.count
    # Whether it is worth its time and likely to be exact; no clock has a part in it.
    if expand is None and not (narrow and GRADIENTS * float(sampling.iterations) * work >= MIN_WORK):
        return None
    if expansion is not None and expansion.count != search.cut.count:
        return _by_shards(search, expansion, sampling)
    # An expansion by the user may be around another place, or of other records.
    for first in [None] if expansion is None else [expansion, None]:
        try:
            outcome = _by_records(search, first, sampling)
        except NoMode as reason:
            outcome = _records_needed(str(reason), _facts(search))
        if outcome.samples is not None:
            break
    return outcome


def _facts(search: Search, order: int | None = None) -> dict[str, Any]:
    cut = search.cut
    facts = {"sites": list(cut.names), "shape": list(cut.shape), "count": cut.count, "passes": search.passes.count}
    return facts | ({} if order is None else {"order": order})


def _by_records(search: Search, first: Expansion | None, sampling: Sampling) -> Outcome:
    """Expand and begin to sample until the expansion is exact enough at the draws, and then go on to the end."""
    mode = search.mode(max(_mode_search.MIN_SEARCHES, sampling.num_chains), first)
    expansion = search.expansion(search.above.coordinates(search.normal_draws(mode))) if first is None else first
    for number in range(MAX_ROUNDS):
        order, polynomial = expansion.order, expansion.polynomial
        chains = _expanded_chains(search, polynomial, mode, sampling)
        arviz()  # imported while the programs are being compiled

        def errors(coordinates: np.ndarray, polynomial: Polynomial = polynomial) -> np.ndarray:
            return search.passes.values(coordinates) - _mode_search.values_of(polynomial, coordinates)

        may_repeat = number < MAX_ROUNDS - 1 and search.passes.count < sampling.iterations
        with sampling.bar() as bar:
            positions, statistics = chains.run(sampling.num_warmup, bar)
            if sampling.num_warmup >= CHECKED_DRAWS:
                draws = search.above.coordinates(search.above.flat(sampling.settled(positions)))
                off = errors(_mode_search.evenly_spaced(draws, CHECKED_DRAWS))
                frame = Frame.of_draws(draws)
                may_rise = order < _mode_search.ORDERS[-1] and _mode_search.passes_for(frame, order + 1) <= MAX_PASSES
                next_order = order + may_rise
                # Reweighting takes a pass a draw, but no slopes and no other chains.
                cost = 3 * _mode_search.passes_for(frame, next_order)
                reweighting_is_cheaper = next_order == order or cost > sampling.num_samples * sampling.num_chains
                # A hopeless expansion by the user is replaced by one around the mode, not by one at its draws.
                if not np.std(off) <= HOPELESS_SD and (expansion is first or not may_repeat):
                    break
                if may_repeat and not np.std(off) <= (MODERATE_SD if reweighting_is_cheaper else NEGLIGIBLE_SD):
                    expansion = search.expansion(draws, next_order)
                    continue
            positions, statistics = chains.run(sampling.num_samples, bar)
        flat, compare = search.above.flat(positions), functools.partial(search.compare, polynomial)
        draws, key = search.above.coordinates(flat), jax.random.fold_in(search.key, 2)
        outcome = _assess(chains, positions, statistics, draws, errors, flat, compare, key)
        if not may_repeat or outcome.errors is None:
            return dataclasses.replace(outcome, report=outcome.report | _facts(search, order))
        worst = np.argsort(-np.abs(outcome.errors))[: len(draws) // WORST_ONE_IN]
        expansion = search.expansion(draws, order, draws[worst])
    why = f"an expansion of order {order} is off by {np.std(off):.2g} nats (standard deviation) at posterior draws"
    return _records_needed(why, _error_summary(off) | _facts(search, order))


def _by_shards(search: Search, expansion: Expansion, sampling: Sampling) -> Outcome:
    """Sample an expansion of records on other machines; its errors are those at its own points."""
    polynomial = expansion.polynomial
    try:
        mode = search.mode(max(_mode_search.MIN_SEARCHES, sampling.num_chains), expansion)
    except NoMode as reason:
        raise ValueError(
            f"the expansion has no mode that chains could start from: {reason}; expand the shards again, at= points "
            "that are nearer to the posterior of all of them"
        ) from None
    chains = _expanded_chains(search, polynomial, mode, sampling)
    with sampling.bar() as bar:
        chains.run(sampling.num_warmup, bar)
        positions, statistics = chains.run(sampling.num_samples, bar)
    share = _mode_search.share_outside(polynomial, search.above.coordinates(search.above.flat(positions)))
    errors = _error_summary(expansion.errors()) | {"tail_error": search.tail_error(expansion, polynomial)}
    report: dict[str, Any] = {"ran": "expansion of shards", "outside": share} | errors
    report |= _facts(search, expansion.order) | {"count": expansion.count}
    doubts = []
    if share > MAX_OUTSIDE or not errors["error_sd_nats"] <= NEGLIGIBLE_SD:
        doubts.append(
            f"the expansion is off by {errors['error_sd_nats']:.2g} nats (standard deviation) where it was made, and "
            f"{share:.0%} of the draws are elsewhere; expand the shards again, at=this posterior"
        )
    if not errors["tail_error"] <= TAIL_TOLERANCE:
        doubts.append(
            f"a variance is off by {errors['tail_error']:.1%}: where that remains, the posterior has a tail that the "
            "expansion has not; fit the records"
        )
    return _uncompared(report, "; ".join(doubts), chains.constrained(positions), statistics)


def _uncompared(report: dict[str, Any], doubt: str, samples: Params, statistics: Params) -> Outcome:
    """Draws that are not compared with records."""
    return Outcome(report | ({"doubt": doubt} if doubt else {}), samples, statistics, warning=doubt or None)


def expanded_sketches(density: Density) -> list[ExpandedSketch]:
    return [data for data in density.data if isinstance(data, ExpandedSketch)]


def without_expansions(density: Density) -> Density:
    """A density with counts of released values in the places of expansions; ValueError if they keep no records."""
    return density.replace_data(lambda data: data.exact if isinstance(data, ExpandedSketch) else data)


def by_sketch(sampling: Sampling, density: Density) -> Outcome:
    """Sample a model of expansions of categories, and compare these with their records at the draws."""
    chains = sampling.chains(density)
    shares = _Shares(density, chains.example)
    facts = {"order": max(sketch.polynomial.order for sketch in shares.sketches)}
    facts["count"] = sum(int(sketch.size) for sketch in shares.sketches)
    has_records = all(sketch.records is not None for sketch in expanded_sketches(density))
    with sampling.bar() as bar:
        positions, statistics = chains.run(sampling.num_warmup, bar)
        if sampling.num_warmup >= CHECKED_DRAWS and has_records:
            flat = _mode_search.flat_rows(sampling.settled(positions), chains.example)
            off = shares.errors(_mode_search.evenly_spaced(flat, CHECKED_DRAWS))
            if not np.std(off) <= HOPELESS_SD:
                why = f"a sketch is off by {np.std(off):.2g} nats (standard deviation) at posterior draws"
                return _records_needed(why, _error_summary(off) | facts)
        positions, statistics = chains.run(sampling.num_samples, bar)
    flat = _mode_search.flat_rows(positions, chains.example)
    if has_records:

        def compare(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Log densities with the records' likelihood, gradients with the expansions', and errors."""
            (potentials, gradients), off = chains.potentials(points), shares.errors(points)
            return off - potentials, -gradients, off

        key = jax.random.fold_in(sampling.key, sampling.num_chains)
        outcome = _assess(chains, positions, statistics, flat, shares.errors, flat, compare, key)
        return dataclasses.replace(outcome, report=outcome.report | facts)
    share = shares.outside(_mode_search.evenly_spaced(flat, CHECKED_DRAWS))
    report = {"ran": "expansion without records", "outside": share} | facts
    doubt = f"{share:.0%} of the draws are not where the sketch was made; make it with keep_records=True"
    return _uncompared(report, doubt if share > 0 else "", chains.constrained(positions), statistics)


class _Shares:
    """Shares of categories, which the expansions among the arguments of a density depend on, at draws."""

    def __init__(self, density: Density, example: Params) -> None:
        self.sketches: list[ExpandedSketch] = []
        first, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), example))

        def shares(flat: Array) -> list[Array]:
            parameters = unravel(flat)
            sites = density.trace(given(density.model, parameters, parameters)).values()
            laws = [unwrapped(site["fn"])[0] for site in sites if site["type"] == "sample"]
            self.sketches[:] = [law.sketch for law in laws if isinstance(law, ExpandedLaw)]
            return [law.theta for law in laws if isinstance(law, ExpandedLaw)]

        self._program = program_of("shares", shares, first)

    def _at(self, flat: np.ndarray) -> Iterator[tuple[ExpandedSketch, np.ndarray]]:
        """Each sketch with its shares (draws, ...)."""
        return zip(self.sketches, (np.stack(each) for each in zip(*map(self._program, flat), strict=True)), strict=True)

    def errors(self, flat: np.ndarray) -> np.ndarray:
        """Log-likelihood of the records less that of the expansions."""
        return sum(s.log_likelihood(theta) - _mode_search.values_of(s.polynomial, theta) for s, theta in self._at(flat))

    def outside(self, flat: np.ndarray) -> float:
        """Share of the draws that are far from the points of the expansions."""
        return max(_mode_search.share_outside(sketch.polynomial, theta) for sketch, theta in self._at(flat))
