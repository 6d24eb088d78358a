"""Simulation-based calibration: is the truth where posteriors say, over many simulated data sets?"""

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import scipy

from ldpbayes._core.checks import at_least
from ldpbayes._core.pytrees import MOST_SHOWN_ENTRIES
from ldpbayes._core.running import completed
from ldpbayes._core.types import Key, Message, Model, Params
from ldpbayes.data import Release, ReleaseWarning
from ldpbayes.estimation.estimates import table
from ldpbayes.inference import privatize
from ldpbayes.inference.chains import Bar
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import RUNNING, Density
from ldpbayes.inference.model import is_plan
from ldpbayes.inference.result import data_by_group
from ldpbayes.laws.compound import unwrapped
from ldpbayes.laws.families import unexpanded
from ldpbayes.likelihood import Privatized
from ldpbayes.mechanisms import StatisticsMechanism
from ldpbayes.studies._checkpoint import Checkpoint, model_fingerprint
from ldpbayes.studies._replicated_fit import ReplicatedFit

SHOWN_LEVELS = (0.5, 0.8, 0.95)
CDF_CELLS = 100  # cells of equal width, at whose ends an empirical cdf is compared with its band


@dataclasses.dataclass(frozen=True, repr=False)
class CalibrationStudy:
    """Result of `sbc`: the positions of true parameters in their posteriors, for many simulated data sets (replicates).

    Parameters
    ----------
    pit : dict of str to array (replicates,)
        For each scalar parameter, its PIT (probability integral transform) values: the posterior probability below the
        true value, in each replicate. If posteriors are calibrated, the PIT values are uniform on [0, 1]. Entries of
        arrays that are constant in the model are left out.
    draws : int, optional
        Number of posterior draws of each replicate, if PIT values are not from posterior cdfs. A PIT value is (rank +
        u) / (draws + 1), where the rank is the number of draws below the true value (of draws that equal it, a random
        number), and u is uniform on [0, 1].
    """

    pit: dict[str, np.ndarray]
    draws: int | None = None

    def __repr__(self) -> str:
        names = ", ".join(self.pit) if len(self.pit) <= MOST_SHOWN_ENTRIES else f"{len(self.pit)} parameters"
        return f"{type(self).__name__}({self.replicates} replicates of {names})"

    replicates = property(lambda self: len(next(iter(self.pit.values()), ())))

    @property
    def ranks(self) -> dict[str, np.ndarray]:
        """The numbers (replicates,) of draws below the true value, by parameter; ValueError without ``draws``."""
        if self.draws is None:
            raise ValueError("ranks need posterior draws, but these PIT values were computed from cdfs")
        return {name: (values * (self.draws + 1)).astype(int) for name, values in self.pit.items()}

    @property
    def data(self) -> Any:
        """PIT values and ranks as ArviZ data (``prior_sbc`` and ``ranks``), with replicates along the axis ``draw``."""
        groups = {"prior_sbc": self.pit} | ({"ranks": self.ranks} if self.draws is not None else {})
        return data_by_group({k: {name: values[None] for name, values in group.items()} for k, group in groups.items()})

    @functools.cached_property
    def p_values(self) -> dict[str, float]:
        """By parameter, the exact p-value of uniform PIT values, from the narrowest band that holds them ([SBV] sec.
        2).
        """
        n, p_values = self.replicates, {}
        for name, values in self.pit.items():
            counts = np.searchsorted(np.sort(values), _points(), side="right")
            tails = [scipy.stats.binom.cdf(counts, n, _points()), scipy.stats.binom.sf(counts - 1, n, _points())]
            # a little more, so that rounding does not let the band hold what it is compared with
            p_values[name] = max(0.0, 1 - _probability_inside(n, min(1.0, 2 * np.min(tails) * (1 + 1e-9))))
        return p_values

    def covered(self, level: float) -> dict[str, int]:
        """Return how many replicates have the true value in the interval (see `table`), by parameter."""
        return {name: int(np.sum(np.abs(q - 0.5) <= level / 2)) for name, q in self.pit.items()}

    def table(self, levels: Sequence[float] = SHOWN_LEVELS, confidence: float = 0.99) -> list[dict[str, Any]]:
        """Return how often equal-tailed credible intervals of posterior probabilities `levels` contain the true value.

        The result is a list of dicts with the entries ``parameter``; ``level``; ``covered``, the share of replicates
        whose interval contains the true value; ``low`` and ``high``, between which this share lies with probability
        `confidence` if posteriors are calibrated; and ``inside``, True if it does.
        """
        n, rows = self.replicates, []
        for level in levels:
            low, high = map(float, scipy.stats.binom.interval(confidence, n, level))
            for name, count in self.covered(level).items():
                row = {"parameter": name, "level": level, "covered": count / n, "low": low / n, "high": high / n}
                rows.append(row | {"inside": low <= count <= high})
        return rows

    def summary(self, levels: Sequence[float] = SHOWN_LEVELS, confidence: float = 0.99) -> str:
        """Return `table` and `p_values` as text, with stars where not ``inside`` or below 1 − `confidence`."""
        columns: dict[str, list[str]] = {}
        for level in levels:
            low, high = np.divide(scipy.stats.binom.interval(confidence, self.replicates, level), self.replicates)
            rows = self.table([level], confidence)
            shares = [f"{row['covered']:12.3f}{' ' if row['inside'] else '*'}" for row in rows]
            columns[f"{100 * level:g} % "] = [f"{low:6.3f}-{high:.3f} ", *shares]
        least = 1 - confidence
        uniform = [f"{p:.2g}{' ' if p >= least else '*'}" for p in self.p_values.values()]
        columns["uniform "] = [f">= {least:.2g} ", *uniform]
        title = f"{self.replicates} replicates: shares of central intervals that cover the truth, and p-values of the\n"
        title += f"truth's ranks as uniform; each is in its band with probability {confidence:g} if it is calibrated"
        return table(title, ["band", *self.pit], columns)

    def band(self, confidence: float = 0.99) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return points 0.01, ..., 0.99, and lower and upper ends there, between which the empirical cdf of the PIT
        values of a parameter lies with at least the probability `confidence`, if posteriors are calibrated ([SBV] sec.
        2).
        """
        least, most = np.log(1e-12), 0.0
        for _ in range(40):
            middle = (least + most) / 2
            inside = _probability_inside(self.replicates, np.exp(middle)) >= confidence
            least, most = (middle, most) if inside else (least, middle)
        low, high = _ends(self.replicates, np.exp(least))
        return _points(), low / self.replicates, high / self.replicates


def _points() -> np.ndarray:
    return np.arange(1, CDF_CELLS) / CDF_CELLS


def _ends(n: int, tails: float) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest numbers of n uniform values below the points both of whose tails have more than tails / 2."""
    return tuple(end(tails / 2, n, _points()).astype(int) for end in (scipy.stats.binom.ppf, scipy.stats.binom.isf))


def _probability_inside(n: int, tails: float) -> float:
    """Probability of being within `_ends` at all points: cells have Poisson numbers, given that they sum to n."""
    cell, first = scipy.stats.poisson.pmf(np.arange(n + 1), n / CDF_CELLS), 0
    cell = cell[: np.flatnonzero(cell)[-1] + 1]
    mass = np.ones(1)  # of the numbers first, first + 1, ... so far
    for low, high in zip(*_ends(n, tails), strict=True):
        mass = np.convolve(mass, cell)[max(low - first, 0) : high - first + 1]
        first = max(low, first)
        if high < first or not len(mass):
            return 0.0
    rest = n - first - np.arange(len(mass))
    last = np.where((rest >= 0) & (rest < len(cell)), cell[np.clip(rest, 0, len(cell) - 1)], 0.0)
    return float(mass @ last / scipy.stats.poisson.pmf(n, n))


def sbc(
    model: Model,
    *args: Any,
    replicates: int = 200,
    seed: int = 0,
    num_warmup: int = 500,
    num_samples: int = 500,
    thin: int = 5,
    batch: int = 50,
    simulator: Model | None = None,
    executor: Executor | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress_bar: bool = True,
) -> CalibrationStudy:
    """Check if a model and `fit` give calibrated posteriors, by simulation-based calibration ([TBSVG] alg. 1).

    In each replicate, true parameters are drawn from the prior, a release is simulated with them, and the posterior
    given this release is sampled, with one chain. If posteriors are calibrated, the ranks of the true parameters among
    the posterior draws are uniform ([KJKH] sec. 4.4, Figures 1 and 10).

    Parameters
    ----------
    model, *args : callable and its arguments
        NumPyro model and its arguments, as for `fit`. In place of each release, give a plan without values:
        ``Release(None, mechanism, count)``. If records are numbers, the plan can have at most 64 different budgets.
        Raises ValueError if a plan is not observed by exactly one site of the model. The entries of array parameters
        are studied separately, with names such as ``theta[0]``.
    replicates, batch, seed : int
        Number of replicates (simulated data sets), and how many run, and are saved, together. If the study is
        interrupted, only the current batch is lost. Calls with an equal random seed and versions of the libraries give
        the same result.
    num_warmup, num_samples, thin : int
        For each replicate: the number of warm-up iterations, which are discarded, and the number of posterior draws.
        The ranks are computed from every ``thin``-th draw, because they need nearly independent draws.
    simulator : callable, optional
        Another NumPyro model with the same arguments, which simulates the parameters and releases, to study the effects
        of wrong assumptions. Default: ``model``.
    executor : concurrent.futures.Executor, optional
        An executor whose workers run the batches at the same time, such as ``client.get_executor()`` of Dask, an
        ``MPIPoolExecutor``, or a ``ProcessPoolExecutor`` that spawns processes. Default: this process runs all batches.
        Raises ValueError for an executor that forks processes, because JAX could hang.
    checkpoint, progress_bar : path, optional, and bool
        Path of a file in which the finished batches are saved (see `Checkpoint`), so that a later call with equal
        arguments continues an interrupted study. And whether a progress bar is shown on stderr.
    """
    at_least(0, "num_warmup", num_warmup)
    for argument, number in (("replicates", replicates), ("batch", batch), ("num_samples", num_samples)):
        at_least(1, argument, number)
    if num_samples < at_least(1, "thin", thin):
        raise ValueError(f"thin must be at most num_samples = {num_samples}, got {thin}")
    study = _SimulatedPosteriors(model, args, simulator, seed, num_warmup, num_samples, thin)
    _, names = study.sites
    plans = [{"mechanism": plan.mechanism.spec(), "count": plan.count} for plan in study.plans]
    settings: Params = plans[0] if len(plans) == 1 else {f"release {i}": plan for i, plan in enumerate(plans)}
    settings |= {"replicates": replicates, "seed": seed, "batch": batch, "thin": thin}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples}
    if checkpoint is not None and simulator is not None:
        settings["simulator"] = model_fingerprint(study.simulated, study.plans)
    with Checkpoint(checkpoint, settings, (study.modelled, study.plans)) as results:
        if not results:
            results |= {f"place {name}": np.full((replicates, *shape), np.nan) for name, shape in names.items()}
            results |= {f"free {name}": np.zeros(shape, bool) for name, shape in names.items()}
            results["finished"] = np.array(0)
        first = results[f"place {next(iter(names))}"]  # NaN where a batch has not been run
        waiting = [start for start in range(0, replicates, batch) if np.isnan(first[start]).any()]
        tasks = [(start, min(batch, replicates - start)) for start in waiting]
        bar = study.fit.bar(replicates, int(results["finished"]), progress_bar)
        run = study if executor is not None else functools.partial(study, bar=bar)
        batches = completed(run, tasks, executor)
        with results.interruptible(), contextlib.closing(bar), contextlib.closing(batches):
            for (start, size), (places, free) in batches:
                for name in names:
                    results[f"place {name}"][start : start + size] = places[name]
                    results[f"free {name}"] |= free[name]
                results["finished"] += size
                results.save()
                if executor is not None:
                    bar.add(size * (num_warmup + num_samples))
                    bar.show()
    pit = {
        name + (f"[{', '.join(map(str, index))}]" if index else ""): results[f"place {name}"][:, *index]
        for name in names
        for index in map(tuple, np.argwhere(results[f"free {name}"]))
    }
    draws = num_samples // thin
    return CalibrationStudy({name: values / (draws + 1) for name, values in pit.items()}, draws)


class _Simulated(NamedTuple):
    """The release in the place of one plan: some of the values of a site."""

    site: str
    rows: slice
    plan: Release
    joined: bool


class _SimulatedPosteriors:
    """A function from the number of the first replicate, and how many they are, to the truth's places in posteriors."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._model, args, self._simulator, self._seed, *self._iterations, self._thin = arguments
        self._planned = Density(self._model, args, {})
        self.plans = tuple(filter(is_plan, self._planned.data))
        if not self.plans:
            raise ValueError("the model's arguments need a release to simulate: Release(None, mechanism, count)")

    def __reduce__(self) -> Any:  # without what has been compiled
        return type(self), self._arguments

    def modelled(self, data: Any) -> Any:
        """The model, as one of the data alone: a release, or a tuple of several."""
        return self._model(*self._with(data))

    def simulated(self, data: Any) -> Any:
        return (self._simulator or self._model)(*self._with(data))

    def _with(self, data: Any) -> tuple:
        releases = iter(data if isinstance(data, tuple) else (data,))
        return self._planned.replace_data(lambda part: next(releases) if is_plan(part) else part).args

    def _trace(self, model: Model, key: Key) -> dict[str, Message]:
        with RUNNING:
            return numpyro.handlers.trace(numpyro.handlers.seed(model, key)).get_trace(self.plans)

    def _abstract_trace(self, model: Model) -> dict[str, Message]:
        trace: dict[str, Message] = {}
        with jax.enable_x64(True):
            jax.eval_shape(lambda key: trace.update(self._trace(model, key)), jax.random.key(0))
        return trace

    @functools.cached_property
    def sites(self) -> tuple[list[_Simulated], dict[str, tuple[int, ...]]]:
        """The part of a site in the place of each plan, and shapes of parameters by site."""
        trace = self._abstract_trace(self.simulated)
        private = _privatized(trace)
        if len(private) == len([site for site in trace.values() if site["type"] == "sample"]):
            factory = "call a model factory first, as in sbc(clipped_gaussian(), ...)"
            raise ValueError(f"the model has no site to sample; {factory}")
        rest, parts = list(range(len(self.plans))), dict[int, _Simulated]()
        for name, site in private.items():
            source = site["infer"].get("released")
            of_site = [i for i in rest if self.plans[i] is source]
            if not of_site:  # what the model makes of its only plan, or groups of one kind, which are one site
                kinds: Any = [jax.tree.structure(p.mechanism) for p in (*self.plans, source or self.plans[0])]
                of_site = [i for i in rest if len(self.plans) == 1 or kinds[i] == kinds[-1]]
            ends = np.cumsum([0, *(self.plans[i].count for i in of_site)]).tolist()
            rest = [i for i in rest if i not in of_site]
            for i, start, stop in zip(of_site, ends[:-1], ends[1:], strict=True):
                plan = self.plans[i]
                if len(of_site) == 1 and source is not None and source.count != plan.count:
                    if not isinstance(plan.mechanism, StatisticsMechanism):  # of which the model takes the sum
                        problem = f"simulates {source.count:,} values for a release of {plan.count:,}"
                        raise ValueError(f"site {name!r} {problem}")
                    plan = source
                parts[i] = _Simulated(name, slice(start, stop), plan, len(of_site) > 1)
        if rest or {part.site for part in parts.values()} != private.keys():
            raise ValueError(f"the model must have one privatized site for each release, found {list(private)}")
        latent = {
            name: np.shape(site["value"])
            for name, site in trace.items()
            if name not in private and site["type"] in ("deterministic", "sample") and not site.get("is_observed")
        }
        return [parts[i] for i in range(len(parts))], latent

    @functools.cached_property
    def fit(self) -> ReplicatedFit:
        private = _privatized(self._abstract_trace(self.modelled))
        joined = {part.site for part in self.sites[0] if part.joined}
        laws = {name: unexpanded(unwrapped(site["fn"])[0].base_dist) for name, site in private.items()}
        common = all(law.batch_shape == () or name in joined for name, law in laws.items())
        sketched = bool(private) and common and not isinstance(self._model, privatize)
        num_warmup, num_samples = self._iterations
        return ReplicatedFit(self.modelled, num_warmup=num_warmup, num_samples=num_samples, sketched=sketched)

    def _simulate(self, keys: Key) -> Params:
        """Values of the parameters and of the released sites, (keys, ...)."""
        parts, parameters = self.sites
        names = {*parameters, *(part.site for part in parts)}

        def once(key: Key) -> Params:
            return {name: site["value"] for name, site in self._trace(self.simulated, key).items() if name in names}

        return program_of("simulated", lambda keys: jax.lax.map(once, keys), keys)(keys)

    def __call__(self, start: int, size: int, bar: Bar | None = None) -> tuple[Params, Params]:
        """Places (size, ...) of the truth between draws, ties broken at random, and whether draws differ from it."""
        parts, parameters = self.sites
        with jax.enable_x64(True):
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self._seed), np.arange(start, start + size))
            truth = jax.tree.map(np.asarray, self._simulate(keys))
            key = jax.random.fold_in(jax.random.key(self._seed), np.uint32(2**32 - 1 - start))
            with warnings.catch_warnings():  # models of rows leave out that these are clipped
                warnings.simplefilter("ignore", ReleaseWarning)
                releases = [
                    tuple(dataclasses.replace(part.plan, values=truth[part.site][i][part.rows]) for part in parts)
                    for i in range(size)
                ]
            samples = self.fit(key, releases, bar)
        rng, places, free = np.random.default_rng((self._seed, start)), {}, {}
        for name in parameters:
            value, draws = truth[name][:, None], samples[name]
            free[name] = np.any(draws != value, axis=(0, 1))
            draws = draws[:, self._thin - 1 :: self._thin]
            below, equal = (np.sum(compare(draws, value), axis=1) for compare in (np.less, np.equal))
            places[name] = below + rng.random(below.shape) * (equal + 1)
        return places, free


def _privatized(trace: Mapping[str, Message]) -> dict[str, Message]:
    """The privatized sites that are simulated."""
    drawn = {name: site for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}
    return {name: site for name, site in drawn.items() if isinstance(unwrapped(site["fn"])[0], Privatized)}
