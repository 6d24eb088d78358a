"""How the people of a survey were sampled, and the variance of weighted totals that follows from it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import ABOVE_0, NOT_NEGATIVE, ArgumentError, checked, refuse
from ldpbayes._core.pytrees import Called, pytree_dataclass, static
from ldpbayes._core.tabular import entries_of, is_missing, values_of
from ldpbayes._core.types import Array
from ldpbayes.data.release import Release

LONELY = ("error", "certainty", "average", "adjust")  # ways to take a stratum with one sampled cluster


@pytree_dataclass(eq=False, repr=False)
class SamplingDesign(Called):
    """How the people of a survey were sampled: their weights, strata and clusters, and the sizes of the population.

    Each array has one entry for each record of a release, or for each group of a sketch that was made with ``by=``. In
    the attributes, arrays (N,), labels are integers from 0. Standard errors do not take into account that weights were
    calibrated to known totals, and are a few percent too small if there are only some tens of clusters.

    Parameters
    ----------
    weights : array_like (N,), optional
        Number of people for whom a record stands, or a multiple of it, such as the inverse of the probability that the
        record was sampled. Default: equal weights.
    strata, clusters : array_like (N,), optional
        Labels of the stratum and of the cluster (primary sampling unit, such as a village) of each record. Default: one
        stratum, and each record is a cluster.
    population : float or array_like (N,), optional
        Number of clusters (of people, without ``clusters``) in the population of the record's stratum, if the finite
        population correction is wanted: only for the unbiased `frequencies`, and for records without noise.
    lonely : str
        What a stratum adds to the variance if one of its several clusters was sampled, as with ``survey.lonely.psu`` in
        the R package survey ([Lumley]): ``error`` (default; ``fail`` in R) is a ValueError, ``certainty`` nothing,
        ``average`` the mean over the other strata, ``adjust`` the squared deviation from the mean of all clusters.
    nest : bool
        True if labels of clusters begin anew in each stratum. Default: False, which refuses clusters that cross strata.

    Raises
    ------
    ValueError
        Arrays do not fit each other, entries are missing, weights are negative or all 0, clusters cross strata, a
        population is too small, or a stratum has one cluster. Without ``clusters``, records are counted at the first
        use, by `check`.
    """

    weights: Any = None
    strata: Any = dataclasses.field(default=None, kw_only=True)
    clusters: Any = dataclasses.field(default=None, kw_only=True)
    population: Any = dataclasses.field(default=None, kw_only=True)
    lonely: str = static(default="error", kw_only=True)
    nest: dataclasses.InitVar[bool] = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self, nest: bool = False) -> None:
        if self.lonely not in LONELY:
            raise ArgumentError("lonely", f"one of {', '.join(LONELY)}", repr(self.lonely))
        given = {name: getattr(self, name) for name in ("weights", "strata", "clusters", "population")}
        shapes = {name: np.shape(array) for name, array in given.items() if np.ndim(array) > 0}
        if len({*shapes.values()}) != 1 or len(size := max(shapes.values())) != 1:
            raise ValueError(f"a sampling design needs arrays with one entry for each record, got shapes {shapes}")
        numbers = {"weights": (1.0, NOT_NEGATIVE), "population": (np.inf, ABOVE_0)}  # and defaults
        for name, (default, rule) in numbers.items():
            values = default if given[name] is None else values_of(given[name])
            object.__setattr__(self, name, np.array(np.broadcast_to(checked(name, values, *rule), size)))
        if not self.weights.any():
            raise ArgumentError("weights", "positive for some records", "only zeros")
        strata = np.zeros(size, int) if self.strata is None else _codes("strata", self.strata)
        object.__setattr__(self, "strata", strata)
        stratum_starts = np.unique(strata, return_index=True)[1]
        refuse(self.population != self.population[stratum_starts][strata], "{} populations differ in their stratum")
        if self.clusters is not None:
            labels = _codes("clusters", self.clusters)
            clusters = _codes("clusters", labels * size[0] + strata)
            if not nest and clusters.max() > labels.max():
                problem = f"clusters cross strata: {labels.max() + 1} labels are {clusters.max() + 1} in strata"
                raise ValueError(f"{problem}; give nest=True if labels begin anew in each stratum")
            object.__setattr__(self, "clusters", clusters)
            self.check(*size)

    def check(self, size: int, counts: Array = None) -> None:
        """Raise ValueError unless the design has `size` entries, which stand for `counts` (N,) records (default: 1),
        and enough clusters in each stratum.
        """
        if size != len(self.weights):
            raise ValueError(f"the sampling design has {len(self.weights)} entries, but the data have {size}")
        sampled = self._sampled(counts)
        refuse(sampled > self.population, "{} records are of strata with more clusters than their population", sampled)
        alone = (sampled == 1) & (self.population > 1)
        if self.lonely == "error" or alone.all():
            ways = "merge strata" + f", or give lonely={' or '.join(map(repr, LONELY[1:]))}" * (not alone.all())
            refuse(alone, f"{{}} records are of strata with one sampled cluster: {ways}", self.strata)

    def _sampled(self, counts: Array = None) -> np.ndarray:
        """Number of sampled clusters (of records, without clusters) in the stratum of each entry."""
        rows = slice(None) if self.clusters is None else np.unique(self.clusters, return_index=True)[1]
        ones = np.ones(len(self.weights)) if counts is None or self.clusters is not None else counts
        return np.bincount(self.strata[rows], ones[rows])[self.strata]

    def fractions(self, counts: Array = None) -> np.ndarray:
        """Return the sampled fraction n_h/N_h of the stratum of each entry (N,), 0 without a finite population."""
        return self._sampled(counts) / self.population

    def covariance(self, scores: Array, counts: Array = None) -> jax.Array:
        """Return the covariance matrix (p, p) of the sum of scores (N, p), by Taylor linearisation ([Binder]).

        It is Σ_h (1 − n_h/N_h) n_h/(n_h − 1) Σ_c (u_hc − ū_h)(u_hc − ū_h)ᵀ for strata h with n_h of N_h clusters c,
        whose sums of scores are u_hc. A score is the contribution of a record to the total, with its weight, such as
        w_i (y_i − θ) / Σ w for a weighted mean θ, and 0 outside a domain. `counts` (N,) are the numbers of records with
        these scores (default: 1). Under JAX's transformations, ``lonely="error"`` gives NaN instead of an error. It is
        also NaN if all positive weights are of one cluster (record, without clusters), of which no variance is seen.
        """
        with jax.enable_x64(True):
            return _covariance(self, jnp.asarray(scores), jnp.ones(len(scores)) if counts is None else counts)

    normalised = property(lambda self: self.weights / self.weights.mean(), doc="Weights (N,) with the mean 1.")

    @property
    def degrees_of_freedom(self) -> int:
        """Number of clusters (of records, without clusters) minus the number of strata."""
        clusters = len(self.weights) if self.clusters is None else int(self.clusters.max()) + 1
        return clusters - int(self.strata.max()) - 1

    @property
    def kish_design_effect(self) -> float:
        """Factor n Σ w² / (Σ w)² by which unequal weights of n records increase variances ([Kish])."""
        return float(np.mean(self.normalised**2))


def of_records(tree: Any, release: Any) -> Any:
    """Arrays with an entry for each row of the data, such as a design, for the records of a release that left out
    missing values or repeated rows; arrays of its records as they are.
    """
    if not isinstance(release, Release) or release.rows is None:
        return tree
    n, rows = len(release.row_counts), release.rows
    return jax.tree.map(lambda leaf: leaf[rows] if len(leaf) == n and n != release.count else leaf, tree)


def design_in(
    sampling: SamplingDesign | None, domain: ArrayLike | None, size: int, counts: Array = None, release: Any = None
) -> SamplingDesign | None:
    """The design checked for data, with weights 0 outside a domain; None is one of equal weights, or none at all.
    Persons with several reports are clusters, if no others are given.
    """
    persons = release.clusters if isinstance(release, Release) else None
    if sampling is None and domain is None and persons is None:
        return None
    if isinstance(sampling, SamplingDesign):
        sampling = of_records(sampling, release)
    domain = None if domain is None else of_records(values_of(domain), release)
    design = SamplingDesign(np.ones(size)) if sampling is None else sampling
    if not isinstance(design, SamplingDesign):
        raise TypeError(f"sampling must be a SamplingDesign, got {type(sampling).__name__}")
    if persons is not None and len(design.weights) == len(persons):
        if design.clusters is None:
            design = dataclasses.replace(design, clusters=persons)
        elif len(np.unique(persons + 1j * design.clusters)) > persons.max() + 1:
            raise ValueError("all reports of a person must be in one cluster of the sampling design")
    design.check(size, counts)
    inside = np.asarray(True if domain is None else domain)
    if inside.dtype != bool or inside.shape not in ((), (size,)) or not np.any(design.weights * inside):
        allowed = f"an array of {size} bools, some of them True for positive weights"
        raise ArgumentError("domain", allowed, f"{inside.dtype}, shape {inside.shape}")
    return dataclasses.replace(design, weights=design.weights * inside)


def refuse_population(design: SamplingDesign | None, what: str) -> None:
    """ValueError for a finite population: its correction is for sampling, and would also be made for the noise."""
    if design is not None and np.isfinite(design.population).any():
        raise ValueError(f"{what} cannot have population=: the finite population correction would remove noise, too")


@jax.jit
def _covariance(design: SamplingDesign, scores: Array, counts: Array) -> jax.Array:
    """`SamplingDesign.covariance`, with as many places for clusters and strata as there are records."""

    def total(values: Array, codes: Array) -> jax.Array:
        return jax.ops.segment_sum(values, codes, len(scores))

    strata, population = design.strata, jax.ops.segment_max(design.population, design.strata, len(scores))
    weighted = jnp.where(design.weights > 0, counts, 0.0)
    if design.clusters is not None:
        weighted = jnp.where(total(weighted, design.clusters) > 0, 1.0, 0.0)
        scores = total(scores * counts[:, None], design.clusters)
        strata = jnp.maximum(jax.ops.segment_max(strata, design.clusters, len(scores)), 0)
        counts = jnp.where(total(counts, design.clusters) > 0, 1.0, 0.0)
    sampled = total(counts, strata)
    share_left = jnp.where(sampled > 0, 1 - sampled / population, 0.0)
    lonely = (sampled == 1) & (share_left > 0)
    means = total(scores * counts[:, None], strata) / jnp.maximum(sampled, 1.0)[:, None]
    if design.lonely == "adjust":
        means = jnp.where(lonely[:, None], counts @ scores / jnp.sum(counts), means)
    factor = share_left * sampled / jnp.where(sampled > 1, sampled - 1, 1.0)
    single = (jnp.sum(weighted) == 1) & (total(weighted, strata) == 1)
    factor = jnp.where((lonely & (design.lonely == "error")) | (single & (share_left > 0)), jnp.nan, factor)
    deviations = scores - means[strata]
    covariance = (deviations * (counts * factor[strata])[:, None]).T @ deviations
    used = jnp.sum((sampled > 0) & ~lonely) / jnp.sum(sampled > 0)
    return covariance / (used if design.lonely == "average" else 1.0)


def _codes(name: str, labels: Any) -> np.ndarray:
    """Labels as integers from 0; ValueError if one is missing."""
    words = entries_of(labels)
    if any(map(is_missing, words)):
        raise ValueError(f"{name} has no label in row {[*map(is_missing, words)].index(True)}")
    codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
    return np.array([codes[word] for word in words])
