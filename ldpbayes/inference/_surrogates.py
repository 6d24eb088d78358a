"""Sampling an expansion in place of the records, judged at its draws."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import init_to_uniform
from numpyro.infer.util import unconstrain_fn

from ldpbayes.data import ExpandedSketch, Release, Sketch
from ldpbayes.inference._cut import MANY, SEVERAL, Cut, Given, Uncut
from ldpbayes.inference._expansion import Expansion, outside, passes_for, values_of
from ldpbayes.inference._search import ORDERS, SEARCHES, Above, Mode, NoMode, Search, evenly
from ldpbayes.inference._tails import TOLERANCE, Compare, follow, straight, tails
from ldpbayes.inference.arviz_ import arviz
from ldpbayes.inference.certificate import leaves, panel_sketches
from ldpbayes.inference.chains import Bar, Chains
from ldpbayes.inference.density import RUNNING, Density, Site, density_of, sites_of
from ldpbayes.inference.programs import PROGRAMS, Compiled, trace
from ldpbayes.inference.result import resampled, smoothed_weights
from ldpbayes.likelihood.nodes import ExpandedLaw
from ldpbayes.likelihood.privatized import unwrapped
from ldpbayes.numerics.polynomial import Frame, Polynomial


@dataclass(frozen=True)
class Expanded(Density):
    """A model with its arguments, of whose density all that depends on the records is a polynomial.

    Attributes
    ----------
    cut : Cut
        Where the model meets its records.
    polynomial : Polynomial
        What stands for their log-likelihood.
    around : tuple of array
        Where chains start: the mode in flat parameters, and a root of the covariance there.
    unravel : callable
        From flat to unconstrained parameters.
    """

    cut: Cut
    polynomial: Polynomial
    around: tuple[Any, Any]
    unravel: Callable

    def start(
        self, key: jax.Array, strategy: Callable = init_to_uniform, sites: dict[str, Site] | None = None
    ) -> dict[str, Any]:
        """A draw from the normal approximation at the mode: a polynomial says nothing of places far from it."""
        at, root = self.around
        return self.unravel(at + root @ jax.random.normal(key, at.shape, at.dtype))

    def potential(self, parameters: dict[str, Any]) -> Any:
        """Minus the log density of unconstrained parameters, with the polynomial in the place of the records."""
        return self.cut.rest(parameters) - jnp.sum(self.polynomial(self.cut.coordinates(parameters)))


def expanded(cut: Cut, polynomial: Polynomial, around: Mode, above: Above) -> Expanded:
    """The density of a model below whose cut a polynomial stands.

    Parameters
    ----------
    cut : Cut
        Where the model meets its records.
    polynomial : Polynomial
        What stands for their log-likelihood.
    around : Mode
        Where chains start.
    above : Above
        What is above the cut.
    """
    density = cut.density
    # Arrays of JAX stay arguments of what is compiled, also those of one number: NumPy's would become constants.
    tensors, near = jax.tree.map(jnp.asarray, (polynomial, (np.asarray(around.at), np.asarray(around.root))))
    return Expanded(density.model, density.args, density.kwargs, cut, tensors, near, above.unravel)


DRAWS = 8000  # of a posterior at most, among which points are picked


def expand(
    model: Callable, *args: Any, at: Any = None, order: int | None = None, seed: int = 0, **kwargs: Any
) -> Expansion:
    """What a model's records say at points of its posterior; of shards, made at the same points, the results add.

    Two rounds serve data that do not fit one machine: expand every shard at the points of the first one's expansion,
    add, and `fit` with ``expand=`` the sum, given any shard; then once more ``at=`` that posterior, if `fit` asks for
    it. An expansion holds arrays alone, and can be pickled; points are compared exactly, so that machines which differ
    in rounding should be handed one expansion, rather than the posterior, as ``at``.

    Parameters
    ----------
    model : callable
        NumPyro model, called as ``model(*args, **kwargs)``.
    *args, **kwargs
        Arguments of the model: a shard of the records.
    at : Expansion or posterior, optional
        Where: at the points of another expansion, or at draws of what `fit` returned. Default: around the mode of the
        posterior of these records alone.
    order : int, optional
        2, 3 or 4. Default: that of an expansion given as ``at``, otherwise the highest for which few passes suffice.
    seed : int
        Of the points.

    Returns
    -------
    Expansion

    Raises
    ------
    ValueError
        If the model has no records that can be expanded, the order is another one, the posterior has several modes, or
        ``at`` is of another model.
    """
    if order is not None and order not in ORDERS:
        raise ValueError(f"order must be 2, 3 or 4, got {order!r}")
    density, key = density_of(model, args, kwargs), jax.random.key(seed)
    with jax.enable_x64(True):
        search = Search(density, sites_of(density), init_to_uniform, key)
        if isinstance(at, Expansion):
            if (at.names, at.points.shape[1:]) != (search.cut.names, search.cut.shape):
                raise ValueError(f"at is an expansion of another model, in {at.names}; here it is {search.cut.names}")
            made, rays = search.at(at.points, at.frame, at.order if order is None else order), at.rays
        else:
            draws = search.normal_draws(search.mode(SEARCHES)) if at is None else _draws(search, at)
            seen = search.above.coordinates(draws)
            made, rays = search.expansion(seen, order), straight(draws, seen)
        if rays is None:
            return made
        return dataclasses.replace(
            made, rays=rays, outwards=search.passes.values(search.above.coordinates(rays.points))
        )


def _draws(search: Search, posterior: Any) -> np.ndarray:
    """Unconstrained parameters (draws, n) of a posterior."""
    density = search.cut.density
    try:
        values = {name: np.asarray(posterior["posterior"][name]) for name in search.above.names}
    except (KeyError, TypeError):
        names = ", ".join(search.above.names)
        raise ValueError(f"at must be an expansion, or a posterior with draws of {names}; got {posterior!r}") from None
    some = {name: evenly(each.reshape(-1, *each.shape[2:]), DRAWS) for name, each in values.items()}

    def unconstrained(each: dict[str, Any]) -> Any:
        with RUNNING:
            return unconstrain_fn(density.model, density.args, density.kwargs, each)

    return search.above.flat(jax.jit(jax.vmap(unconstrained))(some))


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


def expanded_sketches(density: Density) -> list[ExpandedSketch]:
    """The expansions among the arguments of a density.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    """
    return [leaf for leaf in leaves((density.args, density.kwargs)) if isinstance(leaf, ExpandedSketch)]


def counted(density: Density) -> Density:
    """The same with counts of the released values in the places of expansions; ValueError without records.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    """
    args, kwargs = jax.tree.map(
        lambda leaf: leaf.exact if isinstance(leaf, ExpandedSketch) else leaf,
        (density.args, density.kwargs),
        is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)),
    )
    return Density(density.model, args, kwargs)


def by_sketch(
    kernel: Any, chain_method: str | None, key: jax.Array, numbers: tuple[int, int, int], shown: bool, density: Density
) -> Outcome:
    """Sample a model of expansions, and compare these with their records at the draws.

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
    density : Density
        The model with its arguments.
    """
    num_warmup, num_samples, num_chains = numbers
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_chains))
    chains = Chains(lambda _: density, kernel, keys, num_warmup, num_samples, chain_method)
    shares = _Shares(density, chains.example)
    about = {"order": max(sketch.polynomial.order for sketch in shares.sketches)}
    about["count"] = sum(int(sketch.size) for sketch in shares.sketches)
    kept = all(sketch.records is not None for sketch in expanded_sketches(density))
    with contextlib.closing(Bar(num_chains * (num_warmup + num_samples), shown)) as bar:
        positions, statistics = chains.run(num_warmup, bar)
        if num_warmup >= CHECKS and kept:
            off = shares.errors(evenly(shares.rows(positions, num_warmup // 2), CHECKS))
            if not np.std(off) <= HOPELESS:
                why = f"a sketch is off by {np.std(off):.2g} nats (standard deviation) at posterior draws"
                return Outcome({"ran": "records", "why": why} | errors_said(off) | about)
        positions, statistics = chains.run(num_samples, bar)
    if kept:
        rows, key = shares.rows(positions), jax.random.fold_in(key, num_chains)

        def compared(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Log densities with the records' likelihood, gradients with the expansions', and errors."""
            (potentials, gradients), off = chains.slopes(points), shares.errors(points)
            return off - potentials, -gradients, off

        outcome = judged(shares.errors, rows, positions, statistics, chains.constrained, key, rows, compared)
        return outcome._replace(report=outcome.report | about)
    share = shares.outside(evenly(shares.rows(positions), CHECKS))
    report = {"ran": "expansion without records", "outside": share} | about
    if share > 0:
        report["doubt"] = f"{share:.0%} of the draws are not where the sketch was made; make it with keep_records=True"
    return Outcome(report, chains.constrained(positions), statistics)


class _Shares:
    """What expansions see of draws: the shares of their categories."""

    def __init__(self, density: Density, example: dict[str, Any]) -> None:
        self.sketches: list[ExpandedSketch] = []

        def shares(_: Any, parameters: dict[str, Any]) -> list[Any]:
            given = numpyro.handlers.trace(Given(density.model, parameters, parameters))
            with RUNNING:
                sites = given.get_trace(*density.args, **density.kwargs).values()
            laws = [unwrapped(site["fn"])[0] for site in sites if site["type"] == "sample"]
            self.sketches[:] = [law.sketch for law in laws if isinstance(law, ExpandedLaw)]
            return [law.theta for law in laws if isinstance(law, ExpandedLaw)]

        self._names = sorted(example)
        self._shapes = {name: example[name].shape for name in self._names}
        traced, (self._arrays,) = trace(shares, example)
        self._program = PROGRAMS.get(("shares", traced.key), lambda: Compiled(traced, self._arrays, example))

    def rows(self, positions: dict[str, Any], start: int = 0) -> np.ndarray:
        """Flat parameters (draws, size) of the draws from one on, of all chains."""
        parts = []
        for name in self._names:
            some = positions[name][:, start:]
            parts.append(some.reshape(some.shape[0] * some.shape[1], -1))
        return np.concatenate(parts, axis=1)

    def _of(self, rows: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([int(np.prod(self._shapes[name])) for name in self._names])[:-1]
        made = []
        for row in rows:
            parts = zip(self._names, np.split(row, ends), strict=True)
            made.append(self._program(self._arrays, {name: part.reshape(self._shapes[name]) for name, part in parts}))
        return [np.stack(each) for each in zip(*made, strict=True)]

    def errors(self, rows: np.ndarray) -> np.ndarray:
        """Log-likelihood of the records less that of the expansions."""
        pairs = zip(self.sketches, self._of(rows), strict=True)
        return sum(sketch.log_likelihood(theta) - values_of(sketch.polynomial, theta) for sketch, theta in pairs)

    def outside(self, rows: np.ndarray) -> float:
        """Share of the draws that are not where the expansions were made."""
        pairs = zip(self.sketches, self._of(rows), strict=True)
        return max(outside(sketch.polynomial, theta) for sketch, theta in pairs)
