"""Shares of categories, and their errors."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import ABOVE_0, at_least, checked, refuse, warn
from ldpbayes._core.pytrees import pytree_dataclass, static, unchecked
from ldpbayes._core.types import Array
from ldpbayes.data import BitCounts, CountSketch, ExpandedSketch, Sketch
from ldpbayes.data.release import Release, warn_of_repeats
from ldpbayes.data.sampling import SamplingDesign, design_in, refuse_population
from ldpbayes.estimation._bit_counts import shares_of_bits
from ldpbayes.estimation.estimates import Estimate, cells, table
from ldpbayes.likelihood.closed_forms.categories import supported_mass
from ldpbayes.mechanisms import MatrixProtocol, PureProtocol, Rappor, Repeated, TransitionMatrix
from ldpbayes.mechanisms.protocol import Promise, statements
from ldpbayes.numerics.minimise import likeliest_shares, nearest_probabilities

DENSE_CATEGORIES = 4096  # categories up to which a matrix of their pairs is affordable
CHUNK_ENTRIES = 1 << 20  # entries of the rows of a product that are held at a time
MOST_TERMS = 1 << 25  # terms of released values, by category, that are held for standard errors of persons' reports
UNLISTED = "(unlisted)"  # name of the category for all values that are not listed
COPIED_AT_ONCE = 1 << 20  # released values that are copied at a time
PROBED_VALUES = 4096  # released values among which kinds are counted first
SUMMARY_CATEGORIES = 40  # categories that a summary shows


def frequencies(
    data: Release | Sketch | Sequence[Release],
    method: str = "unbiased",
    *,
    sampling: SamplingDesign | None = None,
    domain: ArrayLike | None = None,
    alpha: float = 0.02,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> "FrequencyEstimate":
    """Estimate the share of each category in the population, from released categories.

    Issues a `RepeatedAnswersWarning` if several released values may be about one person, and the persons are unknown.

    Parameters
    ----------
    data : Release, CountSketch, ExpandedSketch or BitCounts
        Released categories, under a `ldpbayes.mechanisms.PureProtocol`, or under a `MatrixProtocol` whose rows are
        linearly independent, for one record or for all together, or rows of answers under a `Repeated`. An
        `ExpandedSketch` must have kept its released values. A sequence of releases of codes about the same people, in
        the same order, gives the shares of all cells of their table, with the names ``"0, 0"``, ``"0, 1"``, ...: the
        last answer varies fastest. Words in ``about["levels"]`` of a release take the places of its codes in names.
    method : str
        The method of estimation. Only the first and the last have standard errors.

        - ``unbiased`` (default): an estimate without bias, which is linear in the counts of the released values.
        - ``base_cut``: the unbiased estimate with shares below a threshold set to 0 ([WLLSL]). Only for pure protocols.
        - ``projection``: the non-negative shares with sum 1 that are closest to the unbiased estimate ([HRMS]; [WC]).
          ``norm_sub`` ([WLLSL]) is another name of this method.
        - ``mle``: maximum likelihood, by EM (expectation maximisation) steps, accelerated by SQUAREM ([VR]) and, for up
          to 4096 categories, by Newton steps ([KCSA]).
    sampling : SamplingDesign, optional
        How the people were sampled, for a release or a sketch with groups (``by=``). Default: all are independent.
    domain : array_like of bool, optional
        True for the records (or groups of the sketch) of a subgroup, whose shares are estimated. Default: everybody.
    alpha : float
        Only for ``base_cut``: a bound, positive and below the number d of categories, for the expected number of
        categories with true share 0 that are not set to 0. Default: 0.02. The threshold is Φ⁻¹(1 − alpha/d) σ, where σ
        is the standard deviation of the unbiased estimate of a share 0.
    tolerance : float
        Only for ``mle``: nats below the maximum, by a bound of [Lindsay], at which iterations stop. Default: 1e-6.
    max_iterations : int
        Only for ``mle``: the largest number of iterations, beyond which a RuntimeWarning is issued. Default: 1000.

    Notes
    -----
    Under a pure protocol, a released value z_i supports a set S(z_i) of categories. The true category of record i is in
    S(z_i) with probability p_i, and any other category with probability q_i (`support_probabilities`). The unbiased
    estimate of the share of category k is Σ w_i (1[k ∈ S(z_i)] − q_i)/(p_i − q_i) / Σ w_i ([WBLJ] sec. 3). If all
    records have the same budget, the weights w_i are equal. Otherwise, w_i is the inverse variance of term i, computed
    for equal shares of all categories.

    Under a count-mean sketch, what categories of large shares add to others by collisions of hash functions is
    subtracted. Standard errors include the other collisions, as if the functions were drawn at random.

    Under a matrix P of probabilities p(z | x), it is h P⁺ for shares h of the released values, where P⁺ gives the
    smallest variance of all matrices with P P⁺ = 1 if all categories have equal shares. If records have different
    designs, a value is a pair (design, z), and errors are for the given numbers of records of each design.

    Sums of bits (`BitCounts`, and releases of `Rappor`) have the unbiased estimate of their reports. With several
    cohorts, or more bits than categories, it is that of weighted least squares, whose weights come from a first
    estimate; if the bits vary more than expected, as values that are not listed let them, by moments ([DL]), errors
    take that in. Its intervals are normal.

    With a sampling design or a domain, the unbiased estimate is a ratio of weighted totals of the terms, in which each
    term has the weight of its record, also if budgets differ. ``mle`` maximises the weighted log-likelihood. Their
    standard errors are linearised ([Binder]), and their intervals normal. ``base_cut`` is not available.

    Under `Repeated`, the unbiased estimate is the mean over people of the mean of the terms of their answers. If a
    release has ``persons=``, and at most 4096 categories and 2^25 terms, people are clusters of a sampling design, but
    not for the unbiased estimate of a count-mean sketch.

    Standard errors include sampling and the mechanism. Those of ``mle`` come from the observed information about
    positive shares. They are NaN for a share whose estimate is 0: use ``unbiased`` for its interval.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> release = ldp.Release([0, 1, 1, 2] * 100, ldp.RandomizedResponse(epsilon=2.0, categories=3))
    >>> ldp.frequencies(release).params.round(2).tolist()
    [0.21, 0.58, 0.21]
    """
    if method not in _ESTIMATORS:
        raise ValueError(f"method must be one of {', '.join(_ESTIMATORS)}, got {method!r}")
    if isinstance(data, (list, tuple)):
        release, labels = _of_cells(data)
        options: Any = {"sampling": sampling, "domain": domain, "alpha": alpha, "tolerance": tolerance}
        table = frequencies(release, method, max_iterations=max_iterations, **options)
        promises = tuple(promise for part in data for promise in part.promises)
        return dataclasses.replace(table, _promises=promises, _labels=labels)
    if isinstance(data, BitCounts) or (isinstance(data, Release | Sketch) and isinstance(data.mechanism, Rappor)):
        return _of_bits(data, method, sampling is not None or domain is not None)
    one: Any = data
    simple = sampling is None and domain is None and not _of_persons(one, method)
    sketch, design = (_exact_counts(one), None) if simple else _surveyed(one, sampling, domain)
    if design is None or design.clusters is None:
        warn_of_repeats(sketch.promises)
    d = sketch.mechanism.categories
    alpha = checked("alpha", alpha, f"positive and less than {d}", lambda a: (a > 0) & (a < d))
    tolerance = checked("tolerance", tolerance, *ABOVE_0)
    max_iterations = at_least(1, "max_iterations", max_iterations)
    with jax.enable_x64(True):
        sketch = dataclasses.replace(sketch, weights=np.asarray(sketch.weights, float))
        if method in _LINEAR:
            result = _LINEAR[method](sketch, method, alpha, design)
        else:
            result = _maximum_likelihood(sketch, tolerance, max_iterations, design)
    return dataclasses.replace(result, _labels=_labels_of(one)) if len(_labels_of(one)) == d else result


def _of_cells(releases: Sequence[Any]) -> tuple[Release, tuple[str, ...]]:
    """Several answers of each person as one answer, the number of a cell, and names of the true cells: people answer
    independently, given the truth.
    """
    fit: list[Any] = [part for part in releases if isinstance(part, Release) and part.values is not None]
    fit = [part for part in fit if part.mechanism.has_matrix and not part.mechanism.batch_shape]
    if not fit or len(fit) < len(releases) or len({part.count for part in fit}) > 1:
        wanted = "releases of codes of equally many people, with values and one design or budget for all"
        raise TypeError(f"data must be {wanted}; got {[*releases]}")
    matrices = [part.mechanism.matrix for part in fit]
    kept, released = zip(*map(np.shape, matrices), strict=True)
    if math.prod(released) > DENSE_CATEGORIES:
        raise ValueError(f"tables are for at most {DENSE_CATEGORIES} cells, got {math.prod(released):,}")
    values = np.ravel_multi_index([part.values.astype(int) for part in releases], released)
    matrix = functools.reduce(np.kron, matrices)
    words = (
        labels if len(labels := _labels_of(part)) == k else range(k) for part, k in zip(releases, kept, strict=True)
    )
    cells = tuple(", ".join(map(str, cell)) for cell in itertools.product(*words))
    same = fit[0].of_persons is not None and all(np.array_equal(fit[0].of_persons, part.of_persons) for part in fit)
    persons, times = (fit[0].of_persons, None) if same else (None, max(part.times or 1 for part in fit))
    mechanism = TransitionMatrix(matrix / matrix.sum(axis=1, keepdims=True))
    return Release(values, mechanism, persons=persons, times=times), cells


def _of_persons(data: Any, method: str) -> bool:
    """Whether persons have several of the released values, and terms of each value can be held for standard errors."""
    if not isinstance(data, Release) or data.clusters is None or not data.mechanism.of_categories:
        return False
    mechanism: Any = data.mechanism
    d = mechanism.categories
    if mechanism.collision_variance and method in _LINEAR:  # what is subtracted is of no single value
        return False
    return d <= DENSE_CATEGORIES and d * data.count <= MOST_TERMS and _LINEAR.get(method) is not _base_cut


def _labels_of(data: Release | Sketch) -> tuple[str, ...]:
    """The words for codes of a release; none if they are not known."""
    return tuple((data.about or {}).get("levels", ()))


def _exact_counts(data: Release | Sketch, grouped: bool = False) -> CountSketch:
    """A sketch of the exact counts of released values; if `grouped`, of groups, which are the records of a release."""
    if not isinstance(data, (Release, Sketch)):
        raise TypeError(f"data must be a Release or a CountSketch, got {type(data).__name__}")
    if not isinstance(data.mechanism, (PureProtocol, MatrixProtocol, Repeated)):
        wanted = "categories under a pure protocol, such as RandomizedResponse, or a matrix, such as ForcedResponse"
        raise TypeError(f"data must be {wanted}; got a release of {type(data.mechanism).__name__}")
    if isinstance(data, Release) and data.values is None:
        raise ValueError("a release without values has no frequencies to estimate; simulate first")
    if isinstance(data, Sketch) and data.law_shape and not grouped:
        one = "make one sketch for each group, without by=, or give their sampling design"
        raise ValueError(f"the sketch holds {data.law_shape[0]} groups; {one}")
    sketch: Any = data
    if isinstance(data, Release) and not grouped and not _all_different(data):
        sketch = data.sketch(expand=False)
    if isinstance(sketch, Release):
        groups, number = (np.arange(sketch.count), sketch.count) if grouped else (None, None)
        weights, promises = np.ones(sketch.count), sketch.promises
        sketch = CountSketch(sketch.mechanism, sketch.values, weights, groups, num_groups=number, added=promises)
    sketch = sketch.exact if isinstance(sketch, ExpandedSketch) else sketch
    if isinstance(sketch.mechanism, (MatrixProtocol, Repeated)):
        repeated = isinstance(sketch.mechanism, Repeated)
        sketch = sketch if grouped or repeated else _of_one_matrix(sketch)
        mechanism: Any = sketch.mechanism
        rows, least = mechanism.categories, 1e-7  # the inverse of a worse condition would be rounding error
        matrix = mechanism.one_answer if repeated else mechanism.matrix
        rank = np.min(np.linalg.matrix_rank(matrix, rtol=least))
        if rank < rows:
            why = f"the {rows} rows of the matrix have rank {rank}, so that other frequencies have the same outputs"
            raise ValueError(f"the release cannot identify the frequencies: {why}")
    return sketch


def _all_different(release: Release) -> bool:
    """Whether hardly any two of many released values are alike, by the first of them: then counting takes long."""
    mechanism: Any = release.mechanism
    if not mechanism.event_shape or release.count < PROBED_VALUES:
        return False
    return len(np.unique(mechanism.equivalence(release.values[:PROBED_VALUES]), axis=0)) == PROBED_VALUES


@pytree_dataclass
class _SeveralDesigns(TransitionMatrix):
    """The matrices of several designs beside each other, times the shares of their records."""

    designs: int = static(default=1)


def _of_one_matrix(sketch: CountSketch) -> CountSketch:
    """With one matrix: the design of a record, drawn with the share of its records, and the value are one output."""
    matrices = np.asarray(sketch.mechanism.matrix)
    promises, number = sketch.promises, 1
    if matrices.ndim == 2:
        nodes, matrix = sketch.nodes, matrices
    else:
        matrices = np.broadcast_to(matrices, (len(sketch.nodes), *matrices.shape[1:]))
        designs, of = np.unique(matrices, axis=0, return_inverse=True)
        shares = np.bincount(of.ravel(), sketch.weights) / np.sum(sketch.weights)
        matrix = np.concatenate(shares[:, None, None] * designs, axis=1)
        nodes, number = of.ravel() * designs.shape[2] + sketch.nodes, len(designs)
    return CountSketch(_SeveralDesigns(matrix, number), nodes, sketch.weights, added=promises)


def _of_rows(sketch: CountSketch) -> CountSketch:
    """Rows of answers as outputs of a matrix, which has only the rows that occur, each up to a factor."""
    mechanism: Any = sketch.mechanism
    logs = np.asarray(mechanism.log_probs(sketch.nodes))
    matrix = np.exp(logs - logs.max(axis=1, keepdims=True)).T
    rows = unchecked(_SeveralDesigns, matrix)
    return CountSketch(rows, np.arange(len(logs)), sketch.weights, added=sketch.promises)


def _surveyed(
    data: Release | Sketch, sampling: SamplingDesign | None, domain: ArrayLike | None
) -> tuple[CountSketch, SamplingDesign]:
    """A sketch whose nodes are of one entry of the sampling design each, and the design of the nodes in the domain."""
    sketch = _exact_counts(data, grouped=True)
    if not sketch.law_shape:
        raise ValueError("sampling and domain need a release, or a sketch with groups, made with by=")
    if sketch.mechanism.categories > DENSE_CATEGORIES:
        raise ValueError(f"sampling and domain are for at most {DENSE_CATEGORIES} categories")
    counts = np.bincount(sketch.groups, sketch.weights, sketch.law_shape[0])
    refuse(counts == 0, "{} groups of the sketch have no records", None, "is {}")
    design: Any = design_in(sampling, domain, len(counts), counts, data)
    nodes = jax.tree.map(lambda leaf: leaf[sketch.groups], design)
    return dataclasses.replace(sketch, groups=None, num_groups=None), nodes


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """The linear estimate; given a frequency θ, its variance is θ holders + (1 − θ) others + θ (1 − θ) sampling."""

    sketch: Any  # CountSketch, None if only sums of bits are known
    estimate: np.ndarray
    slope: Any  # change of the estimate by a record of each value
    holders: float  # by the perturbation of records that have the category
    others: float  # by that of records that have not
    sampling: float
    collisions: float = 0.0  # by the choice of hash functions, a part of the two variances by perturbation

    @classmethod
    def of(cls, sketch: CountSketch) -> "Linear":
        p, q = sketch.mechanism.support_probabilities
        gain = p - q
        even = q + gain / sketch.mechanism.categories  # P(k in S(z)) if all categories were equally frequent
        precision = gain**2 / (even * (1 - even))
        counts = np.asarray(sketch.weights)
        slope = precision / gain / np.sum(counts * precision)
        estimate = _supporters(sketch, counts * slope) - np.sum(counts * slope * q)
        variances = [np.sum(counts * slope**2 * part) for part in (p * (1 - p), q * (1 - q), gain**2)]
        return cls(sketch, estimate, slope, *variances)._without_collisions()

    def _without_collisions(self) -> "Linear":
        """Without what categories of large shares add to others that known hash functions do not tell apart; what the
        others add to each other becomes a part of the variance, over hash functions.
        """
        mechanism, d, result = self.sketch.mechanism, len(self.estimate), self
        least, known = np.max(self.estimate), math.inf
        while mechanism.collision_variance and least < 0.9 * known:
            # an estimate that is larger than what the next larger shares can add to it, and than noise, is about itself
            known, variance = least, result.variance(np.clip(result.estimate, 0, 1))
            bar = -special.ndtri(0.01 / d) * np.sqrt(variance)
            least = max(mechanism.largest_collision * known, np.min(bar))
            large = result.estimate > np.maximum(least, bar)
            estimate = self.estimate - np.asarray(mechanism.collisions(np.where(large, result.estimate, 0.0)))
            variance = self.variance(np.clip(estimate, 0, 1))
            squares = np.sum(np.where(large, 0.0, estimate**2 - variance)) / (1 + mechanism.collision_variance * d)
            rest = mechanism.collision_variance * (max(squares, 0.0) + np.sum(variance, where=large))
            parts = {name: getattr(self, name) + rest for name in ("holders", "others")}
            result = dataclasses.replace(self, estimate=estimate, collisions=rest, **parts)
        return result

    def variance(self, theta: Array) -> Array:
        return theta * self.holders + (1 - theta) * self.others + theta * (1 - theta) * self.sampling

    def end(self, z: float) -> np.ndarray:
        """The frequencies that are z of *their* standard deviations away from the estimate, the furthest of several."""
        lead = 1 + z**2 * self.sampling
        middle = self.estimate + z**2 * (self.holders - self.others + self.sampling) / 2
        root = np.sqrt(np.maximum(middle**2 - lead * (self.estimate**2 - z**2 * self.others), 0.0))
        # Below 0 and above 1 the variance is constant, so that every estimate has an end.
        below, above = (self.estimate + z * np.sqrt(self.variance(theta)) for theta in (0.0, 1.0))
        end = (middle + np.sign(z) * root) / lead
        if z < 0:
            return np.where(below < 0, below, np.where(above > 1, above, end))
        return np.where(above > 1, above, np.where(below < 0, below, end))

    def terms(self) -> tuple[CountSketch, np.ndarray, np.ndarray, np.ndarray]:
        """Terms slope_i (1[k ∈ S(z_i)] − q_i − (p_i − q_i) θ_k) of the estimate, times the square root of the number of
        records, as extra_i 1[k ∈ S(z_i)] + low_i @ basis. The sum of their products estimates the covariance.
        """
        p, q = self.sketch.mechanism.support_probabilities
        extra = self.slope * np.sqrt(np.asarray(self.sketch.weights))
        low = -np.stack(np.broadcast_arrays(extra * q, extra * (p - q)), axis=1)
        return self.sketch, extra, low, np.stack([np.ones_like(self.estimate), self.estimate])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FrequencyEstimate(Estimate):
    """Estimated shares of the categories in the population: an `Estimate` with further attributes.

    - ``method``: the name of the method, such as ``unbiased`` or ``mle`` (maximum likelihood);
    - ``converged``, ``iterations``: False if ``mle`` stopped before ``tolerance``, and the number of its iterations;
    - ``gap``: for ``mle``, a bound of the nats between the log-likelihood and its maximum, otherwise None.

    Notes
    -----
    The intervals of ``unbiased`` under a pure protocol are score intervals ([Wilson]): a 95 % interval contains all
    shares θ from which the estimate differs by at most 1.96 of the standard deviations under θ. They are also valid for
    rare categories, and may extend below 0 or above 1.

    Other intervals, and those of contrasts (weighted sums of shares), are the estimate ± a multiple of the standard
    error. That of a contrast is too short if hardly any released value supports one of the categories in the sum.

    After ``base_cut`` or ``projection``, and for ``mle`` with more than 4096 categories, ``standard_error`` is None,
    and the methods `interval` and `contrast` raise ValueError.
    """

    method: str
    _promises: tuple[Promise, ...]
    estimate: np.ndarray
    standard_error: np.ndarray | None = None
    converged: bool = True
    iterations: int = 0
    gap: float | None = None
    _linear: Linear | None = None
    _matrix: np.ndarray | None = None
    _labels: tuple[str, ...] | None = None
    _sampled: bool = False  # whether _matrix is the covariance of the records, not of a model
    of_sampled_shares = property(lambda self: self._linear is not None or self._sampled)  # type: ignore[assignment]

    params = property(attrgetter("estimate"), doc="The estimate (categories,).")
    # words for the categories or for the cells of a table, or their codes
    names = cached_property(lambda self: [*map(str, self._labels or range(len(self.estimate)))])
    privacy = cached_property(lambda self: statements(self._promises))

    @cached_property
    def covariance(self) -> np.ndarray | None:
        """Covariance matrix (d, d) of d shares, None for more than 4096 categories and without standard errors.

        For ``unbiased``, its diagonal differs a little from the squared standard errors if budgets differ, or if an
        estimate lies outside [0, 1].
        """
        if self._matrix is not None or self._linear is None or len(self.estimate) > DENSE_CATEGORIES:
            return self._matrix
        with jax.enable_x64(True):
            return np.asarray(_products(*self._linear.terms())) + self._linear.collisions * np.eye(len(self.estimate))

    @property
    def _title(self) -> str:
        end = "" if self.converged else ", NOT CONVERGED"
        return f"Frequencies, method {self.method!r}, {len(self.estimate)} categories{end}"

    def _check_errors(self) -> None:
        if self.standard_error is None:
            raise ValueError(f"this {self.method!r} estimate has no standard errors; use method='unbiased'")

    def _quantile(self, probability: float) -> np.ndarray:
        self._check_errors()
        if self._linear is None:
            return super()._quantile(probability)
        return self._linear.end(special.ndtri(probability))

    def _variances(self, weights: np.ndarray) -> np.ndarray:
        self._check_errors()
        if self._linear is None or self._matrix is not None:
            return super()._variances(weights)
        with jax.enable_x64(True):
            squares = np.asarray(_squares(*self._linear.terms(), weights))
        return squares + self._linear.collisions * np.sum(weights**2, axis=1)

    def summary(self, level: float = 0.95) -> str:
        """Return a table as text, of the 40 most frequent categories, with intervals of coverage `level` (0.95)."""
        shown = np.sort(np.argsort(-self.estimate, kind="stable")[:SUMMARY_CATEGORIES])
        columns = {"frequency": self.estimate}
        if self.standard_error is not None:
            columns |= {"std err": self.standard_error} | self._ends(level)
        some = f", the {SUMMARY_CATEGORIES} most frequent" if len(self.estimate) > SUMMARY_CATEGORIES else ""
        columns = {head: column[shown] for head, column in columns.items()}
        outside = ", ".join(self.names[code] for code in shown if not 0 <= self.estimate[code] <= 1)
        note = f"\nOutside [0, 1], since the estimate is unbiased: {outside}" if outside else ""
        return table(self._title + some, [self.names[code] for code in shown], cells(columns)) + note


def _unbiased(sketch: CountSketch, method: str, alpha: float, design: SamplingDesign | None) -> FrequencyEstimate:
    mechanism: Any = sketch.mechanism
    if design is not None and mechanism.collision_variance:
        raise ValueError("sampling and domain are for count-mean sketches only with method='mle'")
    if design is not None or isinstance(sketch.mechanism, Repeated):
        return _weighted(sketch, method, design or SamplingDesign(np.ones(len(sketch.nodes))))
    if isinstance(sketch.mechanism, TransitionMatrix):
        return _by_inverse(sketch, method)
    linear = Linear.of(sketch)
    error = np.sqrt(linear.variance(np.clip(linear.estimate, 0, 1)))
    return FrequencyEstimate(method, sketch.promises, linear.estimate, error, _linear=linear)


def _of_bits(data: Release | Sketch, method: str, surveyed: bool) -> FrequencyEstimate:
    """The estimate from sums of bits, also of those of the reports of a release."""
    if _LINEAR.get(method) not in (_unbiased, _projected) or surveyed:
        raise ValueError("sums of bits take method='unbiased' or 'projection', without a sampling design or domain")
    sketch: Any = data
    if isinstance(data, Release):
        if data.values is None:
            raise ValueError("a release without values has no frequencies to estimate; simulate first")
        sketch = CountSketch(data.mechanism, data.values, np.ones(data.count), added=data.promises)
    counts = sketch if isinstance(sketch, BitCounts) else BitCounts.of(sketch)
    warn_of_repeats(counts.promises)
    law, labels = counts.mechanism.bit_law, _labels_of(data)
    d = law.design.shape[-1]
    labels += (UNLISTED,) * (len(labels) == d - 1 and law.rest)
    if len(labels) not in (0, d):
        raise ValueError(f"there are {len(labels)} words for {d} categories in about={{'levels': ...}}")
    names = labels or tuple(map(str, range(d)))
    estimate, covariance = shares_of_bits(counts, names)
    if _LINEAR[method] is _projected:
        return FrequencyEstimate(method, counts.promises, nearest_probabilities(estimate, np), _labels=names)
    error, linear = np.sqrt(np.diagonal(covariance)), None
    if isinstance(counts.mechanism, PureProtocol):
        of_one, of_zero = (part / (law.one - law.zero) ** 2 for part in (law.variance_one, law.variance_zero))
        linear = Linear(None, estimate, None, of_one / counts.size, of_zero / counts.size, 1 / counts.size)
        error = np.sqrt(linear.variance(np.clip(estimate, 0, 1)))
    options: Any = {"_linear": linear, "_matrix": covariance, "_labels": names}
    return FrequencyEstimate(method, counts.promises, estimate, error, **options)


def _base_cut(sketch: CountSketch, method: str, alpha: float, design: SamplingDesign | None) -> FrequencyEstimate:
    if not isinstance(sketch.mechanism, PureProtocol):
        others = " or ".join(name for name in _LINEAR if name != method)
        raise ValueError(f"method {method!r} needs a pure protocol; for a matrix use {others}")
    if design is not None:
        raise ValueError(f"method {method!r} takes no sampling design and no domain; use projection")
    linear = Linear.of(sketch)
    threshold = -special.ndtri(alpha / len(linear.estimate)) * np.sqrt(linear.variance(0.0))
    return FrequencyEstimate(method, sketch.promises, np.where(linear.estimate < threshold, 0.0, linear.estimate))


def _projected(sketch: CountSketch, method: str, alpha: float, design: SamplingDesign | None) -> FrequencyEstimate:
    unbiased = _unbiased(sketch, method, alpha, design).estimate
    return FrequencyEstimate(method, sketch.promises, nearest_probabilities(unbiased, np))


def _by_inverse(sketch: CountSketch, method: str) -> FrequencyEstimate:
    """The unbiased estimate under a matrix, with the variance under the closest point of the simplex."""
    mechanism: Any = sketch.mechanism
    matrix, weights = mechanism.matrix, np.asarray(sketch.weights)
    inverse, count = _inverse(matrix), weights.sum()
    estimate = inverse @ np.bincount(sketch.nodes, weights / count, matrix.shape[1])
    nearest = nearest_probabilities(estimate, np)
    terms = inverse * (nearest @ matrix)
    # the numbers of records of the designs are given
    means = terms.reshape(len(terms), mechanism.designs, -1).sum(axis=2)
    shares = matrix[0].reshape(mechanism.designs, -1).sum(axis=1)
    covariance = (terms @ inverse.T - (means / shares) @ means.T) / count
    error = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    return FrequencyEstimate(method, sketch.promises, estimate, error, _matrix=covariance)


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """P⁺ (..., k, m) of matrices P with P P⁺ᵀ = 1, of the smallest variance if all categories have equal shares."""
    even = matrix.mean(axis=-2, keepdims=True)
    scaled = matrix / np.where(even > 0, even, 1.0)
    return np.linalg.solve(scaled @ matrix.mT, scaled)


def _weighted(sketch: CountSketch, method: str, design: SamplingDesign) -> FrequencyEstimate:
    """The ratio of weighted totals of unbiased terms (nodes, d), with its linearised covariance."""
    mechanism: Any = sketch.mechanism
    if isinstance(mechanism, MatrixProtocol):
        nodes, inverse = np.asarray(sketch.nodes)[:, None, None], _inverse(np.asarray(mechanism.matrix))
        terms = np.take_along_axis(np.broadcast_to(inverse, (len(nodes), *inverse.shape[-2:])), nodes, -1)[..., 0]
    elif isinstance(mechanism, Repeated):
        refuse_population(design, "repeated answers")
        nodes, inverse = np.asarray(sketch.nodes), np.pad(_inverse(mechanism.one_answer), [(0, 0), (0, 1)])
        answers = np.sum(nodes >= 0, axis=1)  # 0 is the last column, of the missing answers −1
        terms = inverse[:, nodes].sum(axis=-1).T / np.maximum(answers, 1)[:, None]
        design = dataclasses.replace(design, weights=design.weights * (answers > 0))
    else:
        p, q = (np.reshape(part, (-1, 1)) for part in mechanism.support_probabilities)
        terms = (np.asarray(mechanism.membership(sketch.nodes)) - q) / (p - q)
    counts = np.asarray(sketch.weights)
    share = design.weights / (counts @ design.weights)
    estimate = (counts * share) @ terms
    covariance = np.asarray(design.covariance(share[:, None] * (terms - estimate), counts))
    # The correction for a finite population is not one of the noise, of which e eᵀ − diag e is the expected covariance.
    noisy = counts * share**2 * design.fractions(counts)
    covariance = covariance + (terms.T * noisy) @ terms - np.diag(noisy @ terms)
    if isinstance(mechanism, PureProtocol):  # a category that no value supports has the errors of the mechanism
        theta, even = np.clip(estimate, 0, 1), np.ptp(terms, axis=0) < 1e-9
        of_noise = (theta * p * (1 - p) + (1 - theta) * q * (1 - q)) / (p - q) ** 2
        covariance += np.diag(even * ((counts * share**2) @ np.broadcast_to(of_noise, terms.shape)))
    error, options = np.sqrt(np.diagonal(covariance)), {"_matrix": covariance, "_sampled": True}
    return FrequencyEstimate(method, sketch.promises, estimate, error, **options)


_LINEAR = {"unbiased": _unbiased, "base_cut": _base_cut, "norm_sub": _projected, "projection": _projected}
_ESTIMATORS = (*_LINEAR, "mle")


def _supporters(sketch: CountSketch, weights: np.ndarray) -> np.ndarray:
    """Σ_i weights_i 1[k ∈ S(z_i)], for every category k; a copy of all nodes at once could take too much memory."""
    n, total = len(sketch.nodes), np.zeros(sketch.mechanism.categories)
    for start in range(0, n, COPIED_AT_ONCE):
        rows = slice(start, start + COPIED_AT_ONCE)
        part = _support(sketch.mechanism.of_records((n,), rows), sketch.nodes[rows], weights[rows])
        total += np.asarray(part)
    return total


@jax.jit
def _support(mechanism: PureProtocol, z: jax.Array, weights: jax.Array) -> jax.Array:
    theta = jnp.zeros(mechanism.categories)
    return jax.vjp(lambda at: supported_mass(mechanism, z, at), theta)[1](weights)[0]


@jax.jit
def _squares(sketch: CountSketch, extra: Array, low: Array, basis: Array, weights: Array) -> jax.Array:
    """Sums of squares of sums of terms with weights (m, categories), by a pass over the released values for each."""

    def square(row_and_column: tuple[jax.Array, jax.Array]) -> jax.Array:
        row, column = row_and_column
        terms = extra * supported_mass(sketch.mechanism, sketch.nodes, row) + column
        return terms @ terms

    return lax.map(square, (weights, (low @ (basis @ weights.T)).T))


@jax.jit
def _products(sketch: CountSketch, extra: jax.Array, low: jax.Array, basis: jax.Array) -> jax.Array:
    """Σ_i r_i r_iᵀ (categories, categories) of rows r_i = low_i @ basis + extra_i 1[k ∈ S(z_i)], in chunks."""
    n, d = len(sketch.nodes), sketch.mechanism.categories
    rows = min(n, max(1, CHUNK_ENTRIES // d))

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        part, low_here, extra_here = (
            lax.dynamic_slice_in_dim(a, jnp.minimum(start, n - rows), rows) for a in (sketch.nodes, low, extra)
        )
        row = low_here @ basis + extra_here[:, None] * sketch.mechanism.membership(part)
        # the last chunk overlaps the one before, so that it has the shape of the others
        new = jnp.arange(rows) >= start - (n - rows)
        row = jnp.where(new[:, None], row, 0.0)
        return total + row.T @ row, None

    return lax.scan(add, jnp.zeros((d, d)), jnp.arange(0, n, rows))[0]


def _maximum_likelihood(
    sketch: CountSketch, tolerance: float, max_iterations: int, design: SamplingDesign | None
) -> FrequencyEstimate:
    """The frequencies under which the released values are most likely, with the observed information's errors."""
    sketch = jax.tree.map(jnp.asarray, sketch)
    part = whole = _of_rows(sketch) if isinstance(sketch.mechanism, Repeated) else sketch
    refuse_population(design, "method 'mle'")
    if design is not None:  # a value outside the domain may be impossible under the frequencies in the domain
        whole = _of_one_matrix(sketch) if isinstance(sketch.mechanism, MatrixProtocol) else whole
        inside = np.flatnonzero(design.weights)
        mechanism = whole.mechanism.of_records((len(whole.nodes),), inside)
        counts, weights = whole.weights[inside], whole.weights[inside] * design.weights[inside]
        weights *= counts.sum() / weights.sum()
        part = dataclasses.replace(whole, mechanism=mechanism, nodes=whole.nodes[inside], weights=weights)
    sketch = part
    count, d = float(sketch.weights.sum()), sketch.mechanism.categories

    def on_host(function: Callable) -> Callable:
        return lambda theta: jax.tree.map(np.asarray, function(sketch, theta))

    information = on_host(_information) if d <= DENSE_CATEGORIES else None
    theta, gap, steps = likeliest_shares(on_host(_likelihood), information, d, count, tolerance, max_iterations)
    converged = gap <= tolerance
    if not converged:
        below = f"the log-likelihood may be {gap:.3g} nats below its maximum, the tolerance is {tolerance:.3g}"
        warn(f"maximum likelihood has not converged in {max_iterations} iterations: {below}", RuntimeWarning)
    error: Any = None
    covariance: Any = None
    if information is not None:
        error, covariance = _errors(theta, count, information(theta))
    if design is not None:
        share = design.weights / (whole.weights @ design.weights)
        scores = jnp.where(share[:, None] > 0, share[:, None] * (_slopes(whole, theta) - 1), 0.0)
        bread = np.nan_to_num(count * covariance)
        spread = np.asarray(design.covariance(scores, whole.weights))
        covariance = np.where(np.isnan(covariance), np.nan, bread @ spread @ bread)
        error = np.sqrt(np.diagonal(covariance))
    return FrequencyEstimate("mle", sketch.promises, theta, error, converged, steps, gap, _matrix=covariance)


def _errors(theta: np.ndarray, count: float, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors and covariance (count × information)⁻¹ − θθᵀ/count on the positive frequencies, NaN elsewhere:
    the inverse on the tangent space Σ δ = 0, since information @ θ = 1 at the maximum.
    """
    positive = theta > 0
    values, vectors = np.linalg.eigh(information[np.ix_(positive, positive)])
    values = np.maximum(values, np.finfo(float).eps * len(values) * values[-1])
    inverse = (vectors / values) @ vectors.T
    covariance = np.full((len(theta), len(theta)), np.nan)
    covariance[np.ix_(positive, positive)] = (inverse - np.outer(theta[positive], theta[positive])) / count
    return np.sqrt(np.maximum(np.diagonal(covariance), 0.0)), covariance


def _kernel(mechanism: PureProtocol) -> tuple[jax.Array, jax.Array]:
    """K_ik = p(z_i | k)/p(z_i | supported): its value e^−ε for other categories, and how much larger supported ones."""
    epsilon = jnp.asarray(mechanism.epsilon)
    return jnp.exp(-epsilon), -jnp.expm1(-epsilon)


def _mixed(sketch: CountSketch, theta: jax.Array) -> jax.Array:
    """K_i·θ for each node, for a θ that need not sum to one."""
    if isinstance(sketch.mechanism, TransitionMatrix):
        return (theta @ sketch.mechanism.matrix)[sketch.nodes]
    low, extra = _kernel(sketch.mechanism)
    return low * jnp.sum(theta) + extra * supported_mass(sketch.mechanism, sketch.nodes, theta)


@jax.jit
def _likelihood(sketch: CountSketch, theta: Array) -> tuple[jax.Array, jax.Array]:
    """Mean log-likelihood up to a constant, and its gradient, the mean of K_i/(K_i·θ)."""
    weights = sketch.weights / sketch.weights.sum()
    return jax.value_and_grad(lambda at: weights @ jnp.log(_mixed(sketch, at)))(theta)


@jax.jit
def _slopes(sketch: CountSketch, theta: jax.Array) -> jax.Array:
    """Scores K_i/(K_i·θ) (nodes, d) of single records."""
    return jax.jacfwd(lambda at: jnp.log(_mixed(sketch, at)))(theta)


@jax.jit
def _information(sketch: CountSketch, theta: jax.Array) -> jax.Array:
    """Mean of K_i K_iᵀ/(K_i·θ)², minus the Hessian of the mean log-likelihood: (categories, categories)."""
    root = jnp.sqrt(sketch.weights / sketch.weights.sum()) / _mixed(sketch, theta)
    if isinstance(sketch.mechanism, TransitionMatrix):
        rows = root[:, None] * sketch.mechanism.matrix.T[sketch.nodes]
        return rows.T @ rows
    low, extra = (root * part for part in _kernel(sketch.mechanism))
    return _products(sketch, extra, low[:, None], jnp.ones((1, len(theta))))
