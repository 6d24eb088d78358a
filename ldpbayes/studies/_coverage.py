"""Coverage of posteriors over many data sets."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpyro
import scipy
from numpyro.infer import NUTS, Predictive

from ldpbayes._core.checks import at_least
from ldpbayes.data import MomentSketch, PanelSketch, Release, TotalSketch
from ldpbayes.estimation.estimates import table
from ldpbayes.inference import privatize
from ldpbayes.inference.certificate import COARSE_TOLERANCE, Certificate, coarser
from ldpbayes.inference.chains import Bar, Chains
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.inference.programs import Compiled
from ldpbayes.likelihood import Privatized
from ldpbayes.likelihood.families import unexpanded
from ldpbayes.likelihood.privatized import unwrapped
from ldpbayes.mechanisms import Mechanism
from ldpbayes.studies._checkpoint import Checkpoint


class ReplicatedFit:
    """NUTS, one chain a release: on sketches with common nodes, or on records that are rows or have a law each.

    It is compiled for the first batch, and again only when later ones bring released values that no earlier one had.

    Parameters
    ----------
    model : callable
        NumPyro model of one release or sketch.
    num_warmup, num_samples : int
        Iterations a release that adapt the kernel and are discarded, and that are kept.
    sketched : bool
        Whether releases of numbers and categories are fitted as sketches; not where a record has a law of its own.
    **options
        Of ``numpyro.infer.NUTS``.
    """

    def __init__(
        self, model: Callable, *, num_warmup: int = 500, num_samples: int = 500, sketched: bool = True, **options: Any
    ) -> None:
        self._model, self._iterations, self._sketched = model, (num_warmup, num_samples), sketched
        self._kernel = NUTS(model, **options)
        self._known: Any = 0  # a sketch of weight 0, with a node for each released value that there has been
        self._lattice: bool | None = None

    def bar(self, replicates: int, finished: int, shown: bool) -> Bar:
        """A bar that counts replicates, on stderr.

        Parameters
        ----------
        replicates : int
            Of the whole study.
        finished : int
            How many a checkpoint had.
        shown : bool
            Whether there is a bar at all.
        """
        return Bar(replicates, shown, sum(self._iterations), desc="study", unit=" replicates", initial=finished)

    def __call__(self, key: jax.Array, releases: Sequence[Any], bar: Bar | None = None) -> dict[str, Any]:
        """Sample the posteriors, in double precision.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        releases : sequence of Release, or of MomentSketch or TotalSketch
            Made by one mechanism. Releases of rows are fitted as they are, sketches of them in their place.
        bar : Bar, optional
            Counts the iterations.

        Returns
        -------
        dict of str to ndarray (releases, num_samples, *site)
        """
        with jax.enable_x64(True):
            keys = jax.random.split(key, len(releases))
            if isinstance(releases[0], (MomentSketch, TotalSketch)):
                names = [
                    f.name for f in dataclasses.fields(releases[0]) if f.name not in ("mechanism", "doubts", "added")
                ]
                return self._samples(keys, releases[0], [{n: getattr(one, n) for n in names} for one in releases], bar)
            if releases[0].mechanism.record_shape or not self._sketched:
                return self._samples(keys, releases[0], [{"values": release.values} for release in releases], bar)
            sketches: list[Any] = [release.sketch(keep_records=False, expand=False) for release in releases]
            if isinstance(sketches[0], PanelSketch):
                return self._on_panels(keys, [dataclasses.replace(sketch, probes=None) for sketch in sketches], bar)
            together = sum(sketches, self._known)
            # Added to a sketch with all nodes and no weight, every sketch has its weights at the same nodes.
            self._known = dataclasses.replace(together, weights=np.zeros(len(together.nodes)), added=())
            weights = [(self._known + sketch).weights for sketch in sketches]
            return self._samples(keys, self._known, [{"weights": each} for each in weights], bar)

    def _on_panels(self, keys: jax.Array, sketches: list[PanelSketch], bar: Bar | None) -> dict[str, Any]:
        """Samples on coarser sketches, as in `fit`, and again on those given where they are off by too much."""
        if self._lattice is None:
            sites = sites_of(Density(self._model, (sketches[0],), {}))
            self._lattice = any(site.discrete_base for site in sites.values())
        coarse = [coarser([sketch], self._lattice)[0] for sketch in sketches]
        if coarse[0] is sketches[0]:
            return self._samples(keys, sketches[0], _moments(sketches), bar)

        again: list[int] = []

        def too_coarse(positions: dict[str, Any], example: dict[str, Any]) -> None:
            first = [Density(self._model, (of[0],), {}) for of in (coarse, sketches)]
            certificate = Certificate(first[0], first[1], example)
            for i, both in enumerate(zip(coarse, sketches, strict=True)):
                draws = {name: values[i : i + 1] for name, values in positions.items()}
                if certificate.error(draws, [[one] for one in both]) > COARSE_TOLERANCE:
                    again.append(i)

        samples = self._samples(keys, coarse[0], _moments(coarse), bar, too_coarse)
        if again:
            finer = self._samples(keys[np.array(again)], sketches[0], _moments([sketches[i] for i in again]))
            for name, values in finer.items():
                samples[name][again] = values
        return samples

    def _samples(
        self,
        keys: jax.Array,
        template: Any,
        data: list[dict[str, Any]],
        bar: Bar | None = None,
        look: Callable = lambda *_: None,
    ) -> dict[str, Any]:
        """Samples on the template with each of the data in place of its own; `look` is shown the positions."""

        def density(data: dict[str, Any]) -> Density:
            return Density(self._model, (dataclasses.replace(template, **data),), {})

        chains = Chains(density, self._kernel, keys, *self._iterations, data=data)
        chains.run(self._iterations[0], bar)
        positions, _ = chains.run(self._iterations[1], bar)
        look(positions, chains.example)
        return chains.constrained(positions)


def _moments(sketches: Sequence[PanelSketch]) -> list[dict[str, Any]]:
    return [{name: getattr(sketch, name) for name in PanelSketch.arrays} for sketch in sketches]


FEW = 6  # so many parameters are shown by name


@dataclasses.dataclass(frozen=True, repr=False)
class Coverage:
    """Where the true parameters fell in their posteriors.

    Attributes
    ----------
    quantiles : dict of str to array (replicates,)
        Posterior cdf at the true value, for every scalar parameter; uniform if the posterior is calibrated. Entries
        that the model fixes, such as the diagonal of a correlation matrix's root, are left out.
    """

    quantiles: dict[str, np.ndarray]

    def __repr__(self) -> str:
        """Return how many replicates there are, of what."""
        names = ", ".join(self.quantiles) if len(self.quantiles) <= FEW else f"{len(self.quantiles)} parameters"
        return f"{type(self).__name__}({self.replicates} replicates of {names})"

    @property
    def replicates(self) -> int:
        """How many releases were fitted."""
        return len(next(iter(self.quantiles.values()), ()))

    def covered(self, level: float) -> dict[str, int]:
        """Number of replicates whose central interval of this level covers the truth, by parameter.

        Parameters
        ----------
        level : float
            Nominal coverage in (0, 1).

        Returns
        -------
        dict of str to int
        """
        return {name: int(np.sum(np.abs(q - 0.5) <= level / 2)) for name, q in self.quantiles.items()}

    def table(self, levels: Sequence[float] = (0.5, 0.8, 0.95), confidence: float = 0.99) -> list[dict[str, Any]]:
        """How many intervals cover the truth, beside how many may.

        Parameters
        ----------
        levels : sequence of float
            Nominal coverages in (0, 1).
        confidence : float
            Probability of the binomial band that a calibrated posterior's count falls into.

        Returns
        -------
        list of dict
            A row a level and parameter: ``parameter``, ``level``, share ``covered``, ends ``low`` and ``high`` of the
            band, and whether the share is ``inside``.
        """
        rows = []
        for level in levels:
            for name, count in self.covered(level).items():
                n = len(self.quantiles[name])
                low, high = binomial_band(n, level, confidence)
                rows.append(
                    {"parameter": name, "level": level, "covered": count / n, "low": low / n, "high": high / n}
                    | {"inside": low <= count <= high}
                )
        return rows

    def summary(self, levels: Sequence[float] = (0.5, 0.8, 0.95), confidence: float = 0.99) -> str:
        """Return `table` in plain text, a row a parameter; a star marks what is outside its band.

        Parameters
        ----------
        levels, confidence
            As for `table`.
        """
        bands = [np.divide(binomial_band(self.replicates, level, confidence), self.replicates) for level in levels]
        cells: dict[str, list[str]] = {"band": [f"{low:6.3f}-{high:.3f} " for low, high in bands]}
        for row in self.table(levels, confidence):
            cells.setdefault(row["parameter"], []).append(f"{row['covered']:12.3f}{' ' if row['inside'] else '*'}")
        title = f"{self.replicates} replicates: shares of central intervals that cover the truth, and the band that a\n"
        title += f"calibrated posterior's share is in with probability {confidence:g}"
        head = " ".join(f"{f'{100 * level:g} %':>12} " for level in levels).rstrip()
        return table(title, "parameter", head, [(name, " ".join(row).rstrip()) for name, row in cells.items()])


def binomial_band(n: int, level: float, confidence: float = 0.99) -> tuple[int, int]:
    """Central interval of a binomial count: the two tails outside hold at most 1 − confidence together.

    Parameters
    ----------
    n : int
        Number of trials.
    level : float
        Probability of success.
    confidence : float
        Probability of the band.

    Returns
    -------
    tuple of int
    """
    tail = (1 - confidence) / 2
    return int(scipy.stats.binom.ppf(tail, n, level)), int(scipy.stats.binom.isf(tail, n, level))


def coverage(
    model: Callable,
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
) -> Coverage:
    """Simulate parameters and releases from a model's prior predictive, fit each, and record the truth's quantile.

    The model is its own simulator: it is run on a release without values. The fits of a batch run in one compiled call,
    on sketches (on the releases, where each record has a law of its own, as in a regression, or the model is one by
    `privatize`), one chain each.

    Parameters
    ----------
    model : callable
        NumPyro model of one release, or one by `privatize` that observes its argument. Entries of sites that are arrays
        are counted one by one, as ``theta[0]``, ...
    mechanism : Mechanism
        What makes the releases, with one budget; for discrete outputs, personal budgets too.
    count : int
        Records a release.
    replicates, batch : int
        Number of prior draws, and how many run together and are saved together: an interrupt loses the batch that it
        meets. Results for a seed depend on the batch.
    seed : int
        Results are a function of the seed and the library versions.
    num_warmup, num_samples : int
        NUTS iterations of a fit that adapt it and are discarded, and that are kept.
    checkpoint : path, optional
        An ``.npz`` file to which every finished batch is added, and from which a study that was interrupted resumes.
    progress_bar : bool
        Whether a bar on stderr counts the replicates.

    Returns
    -------
    Coverage

    Raises
    ------
    ValueError
        If the checkpoint belongs to a study with another model or other settings, library versions included, is damaged
        or in use (see `Checkpoint`), the model has not exactly one privatized site, or a number is out of range.
    KeyboardInterrupt
        At an interrupt, with a message that says how many replicates are saved; with a checkpoint the
        same call goes on after the last batch that was finished.
    FileNotFoundError
        If there is no folder for the checkpoint.

    Notes
    -----
    Source: [KJKH] sec. 4.4 and Figures 1 and 10.
    """
    at_least(0, "num_warmup", num_warmup)
    for argument, given in (("replicates", replicates), ("batch", batch), ("num_samples", num_samples)):
        at_least(1, argument, given)
    plan = Release(None, mechanism, count)
    settings = {"mechanism": mechanism.spec(), "count": count, "replicates": replicates, "seed": seed}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples, "batch": batch}
    site, law_shape = _released_site(model, plan)
    sketched = law_shape == () and not isinstance(model, privatize)
    fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples, sketched=sketched)

    @functools.cache
    def simulate(size: int) -> Compiled:
        return Compiled(lambda key: Predictive(model, num_samples=size)(key, plan), jax.random.key(seed))

    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        done = stack.enter_context(Checkpoint(checkpoint, settings, (model, mechanism, count)))
        stack.enter_context(done.interruptible())
        finished = int(done.get("finished", 0))
        bar = stack.enter_context(contextlib.closing(fit.bar(replicates, finished, progress_bar)))
        for start in range(finished, replicates, batch):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), start), 2)
            size = min(batch, replicates - start)
            truth = simulate(size)(keys[0])
            samples = fit(keys[1], [Release(z, mechanism) for z in np.asarray(truth.pop(site))], bar)
            for name, value in truth.items():
                value = np.asarray(value)[:, None]
                below = np.mean(samples[name] < value, axis=1)
                free = np.any(samples[name] != value, axis=(0, 1))
                done[f"below {name}"] = np.concatenate([*filter(len, [done.get(f"below {name}", [])]), below])
                done[f"free {name}"] = done.get(f"free {name}", False) | free
            done["finished"] = np.array(start + size)
            done.save()
        names = [name.removeprefix("below ") for name in done if name.startswith("below ")]
        quantiles = {
            name + (f"[{', '.join(map(str, index))}]" if index else ""): done[f"below {name}"][:, *index]
            for name in names
            for index in map(tuple, np.argwhere(done[f"free {name}"]))
        }
    return Coverage(quantiles)


def _released_site(model: Callable, plan: Release) -> tuple[str, tuple[int, ...]]:
    """Name of the model's privatized site, and the batch shape of its law: () where one is of all records."""
    released: dict[str, tuple[int, ...]] = {}
    parameters: list[str] = []

    def run() -> None:
        trace = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(0))).get_trace(plan)
        laws = {name: unwrapped(site.get("fn"))[0] for name, site in trace.items() if site["type"] == "sample"}
        found = {name: law for name, law in laws.items() if isinstance(law, Privatized)}
        released.update({name: unexpanded(law.base_dist).batch_shape for name, law in found.items()})
        parameters.extend(laws.keys() - found.keys())

    jax.eval_shape(run)
    if not parameters:
        raise ValueError(
            "the model has no site to sample; a model factory is called first, as in coverage(clipped_gaussian(), ...)"
        )
    if len(released) != 1:
        raise ValueError(f"the model must have one privatized site, found {list(released)}")
    return next(iter(released.items()))
