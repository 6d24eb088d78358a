"""Coverage of posteriors over many simulated data sets."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpyro
import scipy
from numpyro.infer import NUTS, Predictive

from ldpbayes._core.checks import at_least
from ldpbayes._core.printing import FEW
from ldpbayes._core.types import Model, Params
from ldpbayes.data import MomentSketch, PanelSketch, Release, TotalSketch
from ldpbayes.estimation.estimates import table
from ldpbayes.inference import privatize
from ldpbayes.inference.chains import Bar, Chains
from ldpbayes.inference.compiled_programs import Program
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.inference.surrogates import COARSE_TOLERANCE, Certificate, coarser
from ldpbayes.likelihood import Privatized
from ldpbayes.likelihood.families import unexpanded
from ldpbayes.likelihood.privatized import unwrapped
from ldpbayes.mechanisms import Mechanism
from ldpbayes.studies._checkpoint import Checkpoint


@dataclasses.dataclass(frozen=True, repr=False)
class CoverageTable:
    """Posterior cdfs at the true values, (replicates,) by scalar parameter: uniform if the posterior is calibrated.

    Entries that the model fixes, such as the diagonal of a correlation matrix's root, are not among the `quantiles`.
    """

    quantiles: dict[str, np.ndarray]

    def __repr__(self) -> str:
        names = ", ".join(self.quantiles) if len(self.quantiles) <= FEW else f"{len(self.quantiles)} parameters"
        return f"{type(self).__name__}({self.replicates} replicates of {names})"

    @property
    def replicates(self) -> int:
        return len(next(iter(self.quantiles.values()), ()))

    def covered(self, level: float) -> dict[str, int]:
        """Number of replicates whose central interval of this level in (0, 1) covers the truth, by parameter."""
        return {name: int(np.sum(np.abs(q - 0.5) <= level / 2)) for name, q in self.quantiles.items()}

    def table(self, levels: Sequence[float] = (0.5, 0.8, 0.95), confidence: float = 0.99) -> list[dict[str, Any]]:
        """Shares of intervals that cover the truth, beside the band of a calibrated posterior's shares.

        A row a level and parameter: ``parameter``, ``level``, share ``covered``, ends ``low`` and ``high`` of the
        binomial band of probability `confidence`, and whether the share is ``inside``.
        """
        n, rows = self.replicates, []
        for level in levels:
            low, high = binomial_band(n, level, confidence)
            for name, count in self.covered(level).items():
                row = {"parameter": name, "level": level, "covered": count / n, "low": low / n, "high": high / n}
                rows.append(row | {"inside": low <= count <= high})
        return rows

    def summary(self, levels: Sequence[float] = (0.5, 0.8, 0.95), confidence: float = 0.99) -> str:
        """Return `table` in plain text, a row a parameter; a star marks shares outside their bands."""
        columns: dict[str, list[str]] = {}
        for level in levels:
            low, high = np.divide(binomial_band(self.replicates, level, confidence), self.replicates)
            rows = self.table([level], confidence)
            shares = [f"{row['covered']:12.3f}{' ' if row['inside'] else '*'}" for row in rows]
            columns[f"{100 * level:g} % "] = [f"{low:6.3f}-{high:.3f} ", *shares]
        title = f"{self.replicates} replicates: shares of central intervals that cover the truth, and the band that a\n"
        title += f"calibrated posterior's share is in with probability {confidence:g}"
        return table(title, ["band", *self.quantiles], columns)


def binomial_band(n: int, level: float, confidence: float = 0.99) -> tuple[int, int]:
    """Central interval (low, high) of a binomial (`n`, `level`) count; at most 1 − `confidence` lies outside."""
    low, high = scipy.stats.binom.interval(confidence, n, level)
    return int(low), int(high)


def coverage(
    model: Model,
    mechanism: Mechanism,
    count: int,
    *,
    replicates: int = 200,
    seed: int = 0,
    num_warmup: int = 500,
    num_samples: int = 500,
    batch: int = 20,
    checkpoint: str | os.PathLike | None = None,
    progress_bar: bool = True,
) -> CoverageTable:
    """Simulate parameters and releases from a model's prior predictive, fit each, and record the truth's quantile.

    The fits of a batch run in one compiled call, one chain each, on sketches; on releases if each record has a law of
    its own, as in a regression, or the model is one by `privatize`. A KeyboardInterrupt says how many replicates are
    saved. Source: [KJKH] sec. 4.4 and Figures 1 and 10.

    Parameters
    ----------
    model : callable
        NumPyro model with one privatized site (else ValueError) of one release, which simulates if that has no values;
        or one by `privatize` that observes its argument. Entries of arrays are counted one by one, as ``theta[0]``, ...
    mechanism, count : Mechanism, int
        Makes the releases, with one budget, for discrete outputs personal ones too; and records a release.
    replicates, batch : int
        Number of prior draws, and of those that run and are saved together: an interrupt loses its batch.
    seed : int
        Results are a function of the seed, the batch and the library versions.
    num_warmup, num_samples : int
        NUTS iterations of a fit that adapt it and are discarded, and that are kept.
    checkpoint, progress_bar : path, optional, and bool
        The file of a `Checkpoint`, to which every finished batch is added, and from which an interrupted study resumes;
        and whether a bar on stderr counts the replicates.
    """
    at_least(0, "num_warmup", num_warmup)
    for argument, number in (("replicates", replicates), ("batch", batch), ("num_samples", num_samples)):
        at_least(1, argument, number)
    plan = Release(None, mechanism, count)
    settings = {"mechanism": mechanism.spec(), "count": count, "replicates": replicates, "seed": seed}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples, "batch": batch}
    site, law_shape = _privatized_site(model, plan)
    sketched = law_shape == () and not isinstance(model, privatize)
    fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples, sketched=sketched)

    @functools.cache
    def simulate(size: int) -> Program:
        return Program(lambda key: Predictive(model, num_samples=size)(key, plan), jax.random.key(seed))

    with jax.enable_x64(True), Checkpoint(checkpoint, settings, (model, mechanism, count)) as results:
        finished = int(results.get("finished", 0))
        bar = fit.bar(replicates, finished, progress_bar)
        with results.interruptible(), contextlib.closing(bar):
            for start in range(finished, replicates, batch):
                keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), start), 2)
                size = min(batch, replicates - start)
                truth = simulate(size)(keys[0])
                samples = fit(keys[1], [Release(z, mechanism) for z in np.asarray(truth.pop(site))], bar)
                for name, value in truth.items():
                    value = np.asarray(value)[:, None]
                    below = np.mean(samples[name] < value, axis=1)
                    free = np.any(samples[name] != value, axis=(0, 1))
                    results[f"below {name}"] = np.concatenate([results.get(f"below {name}", below[:0]), below])
                    results[f"free {name}"] = results.get(f"free {name}", False) | free
                results["finished"] = np.array(start + size)
                results.save()
    names = [name.removeprefix("below ") for name in results if name.startswith("below ")]
    quantiles = {
        name + (f"[{', '.join(map(str, index))}]" if index else ""): results[f"below {name}"][:, *index]
        for name in names
        for index in map(tuple, np.argwhere(results[f"free {name}"]))
    }
    return CoverageTable(quantiles)


def _privatized_site(model: Model, plan: Release) -> tuple[str, tuple[int, ...]]:
    """Name of the model's privatized site, and the batch shape of its law: () if all records have one law."""
    private: dict[str, tuple[int, ...]] = {}

    def run() -> None:
        trace = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(0))).get_trace(plan)
        laws = {name: unwrapped(site["fn"])[0] for name, site in trace.items() if site["type"] == "sample"}
        released = {name: law for name, law in laws.items() if isinstance(law, Privatized)}
        if len(released) == len(laws):
            factory = "a model factory is called first, as in coverage(clipped_gaussian(), ...)"
            raise ValueError(f"the model has no site to sample; {factory}")
        private.update({name: unexpanded(law.base_dist).batch_shape for name, law in released.items()})

    jax.eval_shape(run)
    if len(private) != 1:
        raise ValueError(f"the model must have one privatized site, found {list(private)}")
    return next(iter(private.items()))


class ReplicatedFit:
    """Posteriors of many releases of one mechanism, by NUTS in double precision: one chain a release.

    ``fit(key, releases)`` takes a sequence of releases, or of sketches of rows, and returns draws by site: arrays
    (releases, num_samples, ...). Chains run on sketches with common nodes, or on records that are rows or have a law
    each. It is compiled for the first call, and again only for released values that no earlier call had.

    Parameters
    ----------
    model, sketched : callable and bool
        NumPyro model of one release, and whether its records have one law, so that a sketch serves: no regression.
    num_warmup, num_samples, **options
        As in `coverage`, and options of ``numpyro.infer.NUTS``.
    """

    def __init__(
        self, model: Model, *, num_warmup: int = 500, num_samples: int = 500, sketched: bool = True, **options: Any
    ) -> None:
        self._model, self._iterations, self._sketched = model, (num_warmup, num_samples), sketched
        self._kernel = NUTS(model, **options)
        self._nodes: Any = 0  # a sketch of weight 0, with a node for each released value so far

    def bar(self, replicates: int, finished: int, shown: bool) -> Bar:
        """A bar on stderr, if it is shown, that counts replicates; a checkpoint had the finished ones."""
        return Bar(replicates, shown, sum(self._iterations), desc="study", unit=" replicates", initial=finished)

    def __call__(self, key: jax.Array, releases: Sequence[Any], bar: Bar | None = None) -> Params:
        with jax.enable_x64(True):
            keys = jax.random.split(key, len(releases))
            sources, names = releases, ["values"]
            if isinstance(releases[0], (MomentSketch, TotalSketch)):
                names = ["nodes", "weights"]
            elif self._sketched and not releases[0].mechanism.record_shape:
                sketches: list[Any] = [release.sketch(keep_records=False, expand=False) for release in releases]
                if isinstance(sketches[0], PanelSketch):
                    return self._on_panels(keys, [dataclasses.replace(sketch, probes=None) for sketch in sketches], bar)
                total = sum(sketches, self._nodes)
                # added to a sketch with all nodes and no weight, every sketch has its weights at the same nodes
                self._nodes = dataclasses.replace(total, weights=np.zeros(len(total.nodes)), added=())
                sources, names = [self._nodes + sketch for sketch in sketches], ["weights"]
            chains, positions = self._run(keys, sources, names, bar)
            return chains.constrained(positions)

    def _on_panels(self, keys: jax.Array, sketches: list[PanelSketch], bar: Bar | None) -> Params:
        """Samples on coarser sketches, as in `fit`, and on the sketches themselves if those err too much."""
        own = Density(self._model, (sketches[0],), {})
        sites = sites_of(own).values()
        lattice, kinked = any(site.discrete_base for site in sites), any(site.kinked for site in sites)
        coarse = sketches if kinked else [coarser([sketch], lattice)[0] for sketch in sketches]
        chains, positions = self._run(keys, coarse, PanelSketch.arrays, bar)
        samples = chains.constrained(positions)
        if coarse[0] is sketches[0]:
            return samples
        certificate, failures = Certificate(Density(self._model, (coarse[0],), {}), own, chains.example), []
        for i, pair in enumerate(zip(coarse, sketches, strict=True)):
            draws = {name: values[i : i + 1] for name, values in positions.items()}
            if certificate.error(draws, [[sketch] for sketch in pair]) > COARSE_TOLERANCE:
                failures.append(i)
        if failures:
            exact = [sketches[i] for i in failures]
            finer, positions = self._run(keys[np.array(failures)], exact, PanelSketch.arrays)
            for name, values in finer.constrained(positions).items():
                samples[name][failures] = values
        return samples

    def _run(
        self, keys: jax.Array, sources: Sequence[Any], names: Sequence[str], bar: Bar | None = None
    ) -> tuple[Chains, Params]:
        """Chains on sources that differ in the named arrays alone, and their positions after the warm-up."""

        def density(arrays: Params) -> Density:
            return Density(self._model, (dataclasses.replace(sources[0], **arrays),), {})

        data = [{name: getattr(source, name) for name in names} for source in sources]
        chains = Chains(density, self._kernel, keys, *self._iterations, data=data)
        chains.run(self._iterations[0], bar)
        return chains, chains.run(self._iterations[1], bar)[0]
