"""M-estimation from a release: its start, its solution and its errors."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import at_least, warn
from ldpbayes._core.pytrees import pytree, pytree_dataclass, static
from ldpbayes._core.running import quick_jit
from ldpbayes._core.types import Array, Key, PyTree
from ldpbayes.data.release import Release, warn_of_repeats
from ldpbayes.data.sampling import SamplingDesign, design_in, refuse_population
from ldpbayes.estimation._corrections import Correction, EvidenceCorrection, Naive, Oracle, correction_from, settled_for
from ldpbayes.estimation._problem import PosedLoss, Records, check_finite, natural_units, posed, records_of
from ldpbayes.estimation.estimates import Estimate, EstimationWarning, names_of
from ldpbayes.estimation.losses import Loss
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import Promise, statements
from ldpbayes.numerics.minimise import STEP_TOLERANCE, Ball, Box, Derivatives, Minimum, minimise

SMOOTHING_WIDTHS = (1.0, 0.5, 0.25, 0.12, 0.06)  # in units: kinks are rounded off over these before the final width
LEAST_SPREAD_SHARE = 0.1  # share of the released residuals' spread: a smaller estimate is an accident
NAIVE_ROUNDS = 6  # at most, of a naive estimate followed by the units there
APART_UNITS = 1e-3  # of the parameters' units: two minima nearer than that are one


def m_estimate(
    loss: Loss | Callable,
    release: Release | ArrayLike,
    method: str | Correction = "combined",
    *,
    sampling: SamplingDesign | None = None,
    domain: ArrayLike | None = None,
    start: PyTree = None,
    space: Box | Ball | None = None,
    support: Literal["bounds"] | tuple[ArrayLike, ArrayLike] | EllipsisType | None = ...,
    draws: int | Literal["exact"] | None = None,
    cuts: Sequence[float] | None = None,
    starts: int = 1,
    seed: int = 0,
) -> "MEstimationResult":
    """Estimate the parameter that minimises the mean loss of the original records, if only released records are known.

    It minimises the mean of a corrected loss: a function of a released record that has the expectation of the original
    record's loss.

    Parameters
    ----------
    loss : Loss or callable
        A loss of `ldpbayes.estimation.losses`, or a JAX function ``loss(x, theta)`` of a record (a number, or a row
        with all columns of the release) and a parameter.
    release : Release
        The released records. For the method ``oracle``, an array or a data frame of original records, whose columns
        have the order of the release if the loss is a function: ``frame[list(mechanism.columns)]``.
    method : str or Correction
        The correction: an object, such as ``DoublyRandom(draws=4)``, or one of these names for a class with default
        options:

        - ``dr``, `DoublyRandom`: for zero-inflated symmetric Laplace noise, and any loss;
        - ``sdr``, `SmoothedDoublyRandom`: for zero-inflated symmetric Laplace noise, and a smooth loss;
        - ``combined`` (default), `Combined`: an optimal combination of ``dr`` and ``sdr``;
        - ``sl``, `SymmetricLaplaceCorrection`: for symmetric Laplace noise (in one column, also Laplace), smooth loss;
        - ``independent``, `IndependentLaplaceCorrection`: for independent Laplace noise, and a smooth loss;
        - ``naive``, `Naive`: no correction. The estimate is biased;
        - ``oracle``, `Oracle`: the loss of original records, for comparisons.
    sampling : SamplingDesign, optional
        How the people were sampled. The estimate then minimises the weighted mean of the corrected losses, and standard
        errors are linearised ([Binder]). Default: all are independent.
    domain : array_like (N,) of bool, optional
        True for the records of a subgroup, to which the estimate applies. Default: all records.
    start : array or pytree, optional
        Where the minimisation starts, or for a function with kinks the search for the naive estimate. Needed if the
        loss is a function, to show the form of ``theta``. Default for regressions: the naive estimate.
    space : Box or Ball, optional
        The set of parameters in which the minimum is searched. Default: a wide box around the naive estimate.
    support, draws, cuts
        Options of a method that is given by its name. `DoublyRandom` describes them.
    starts : int
        Number of starts (default 1), after ``start`` random points of the space. The lowest minimum is the estimate.
    seed : int
        Random seed of the starts, and of the further noise that the method draws. Default: 0.

    Warns
    -----
    EstimationWarning
        Not converged, an estimate on the boundary of ``space``, or several minima.
    RepeatedAnswersWarning
        Several records may be about one person, but the estimate treats them as independent.

    Raises
    ------
    TypeError, ValueError
        Arguments do not fit each other, such as method and noise; a loss not finite at the start; too few records.

    Notes
    -----
    A smooth loss has two derivatives in the columns with noise (for ``independent``, in each), and then two in the
    parameters, of which only the last may jump. Standard errors come from the sandwich formula ([Huber67]; [LCQ]
    Theorem 5.3), for a loss with kinks from a smooth approximation, or from `MEstimationResult.bootstrap`.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> release = ldp.Release([-3, -1, 1, 2, 2, 3, 4, 8] * 9, ldp.LaplaceMechanism(epsilon=1.0, lower=0, upper=4))
    >>> ldp.m_estimate(ldp.losses.squared(features=()), release, "sl").params.tolist()  # the mean
    [2.0]
    """
    options: dict[str, Any] = {} if support is ... else {"support": support}  # None is a support
    options |= {name: value for name, value in (("draws", draws), ("cuts", cuts)) if value is not None}
    correction = correction_from(method, **options)
    starts = at_least(1, "starts", starts)
    if space is not None and not isinstance(space, (Box, Ball)):
        raise TypeError(f"space must be a Box or a Ball, got {type(space).__name__}")
    with jax.enable_x64(True):
        problem = posed(loss, start, release, correction)
        sampling = design_in(sampling, domain, len(problem.records.rows), release=release)
        if not isinstance(correction, Oracle):
            refuse_population(sampling, "records with noise")
        first, space, units = _place(problem, space, start)
        mechanism = problem.records.mechanism
        estimator = Estimator(problem.loss, mechanism, correction, space, problem.everywhere, units)
        return Solver(estimator, correction, problem.unravel, starts, sampling).solve(problem.records, first, seed)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MEstimationResult(Estimate):
    """An M-estimate: the parameters that minimise a corrected loss of released records.

    It is an `Estimate` with further attributes:

    - ``method``, ``count``: the name of the correction, and the number of records;
    - ``space``: the set of parameters in which the minimum was searched;
    - ``boundary`` (p,): True for parameters on the boundary of the space, whose covariances are NaN;
    - ``minima``: the local minima, the lowest first, as pairs (parameters, mean corrected loss). The first is the
      estimate or, for the method ``combined``, the start of a last step;
    - ``converged``, ``iterations``: True if the minimisation converged, and the number of its iterations.
    """

    method: str
    estimate: PyTree
    params: np.ndarray
    covariance: np.ndarray
    names: list[str]
    count: int
    space: Box | Ball
    converged: bool
    iterations: int
    boundary: np.ndarray
    minima: list[tuple[np.ndarray, float]]
    _solver: "Solver"
    _evidence: EvidenceCorrection
    _promises: tuple[Promise, ...]

    privacy = functools.cached_property(lambda self: statements(self._promises))

    @property
    def _title(self) -> str:
        end = "" if self.converged else ", NOT CONVERGED"
        return f"M-estimate, method {self.method!r}, {self.count} records{end}"

    def _columns(self, level: float) -> dict[str, list[str]]:
        return super()._columns(level) | {"": [" on the boundary" if edge else "" for edge in self.boundary]}

    def update(self, release: Release, *, seed: int = 1) -> "MEstimationResult":
        """Return a new estimate from the records of this estimate together with those of one more release.

        The release can have another budget and other bounds; a mechanism of another class or with other columns raises
        ValueError. `seed` (default 1) is for the noise that the method draws for the new records.
        """
        self._refuse_sampling("be updated: estimate from all records and one design of them")
        before, method = self._solver.estimator, self._solver.method
        with jax.enable_x64(True):
            records = records_of(release, method)
            pair = records.mechanism, before.mechanism
            kinds = [(type(m), jax.tree.structure(m.noise), m.event_shape, m.index) for m in pair]
            if kinds[0] != kinds[1]:
                raise ValueError(f"an update needs records of a mechanism like {pair[1]}, got {pair[0]}")
            if pair[0].names != pair[1].names:
                wanted, columns = (", ".join(m.names) for m in reversed(pair))
                raise ValueError(f"an update needs records with the columns {wanted}, in this order, got {columns}")
            before.loss.check(records.rows, records.mechanism.index)
            bounded = records.support is not None and not (method.beyond and before.everywhere)
            check_finite(before.loss, self.params, records, bounded=bounded)
            estimator = dataclasses.replace(before, mechanism=records.mechanism, method=method)
            solver = dataclasses.replace(self._solver, estimator=estimator)
            return solver.solve(records, self.params, seed, self)

    def bootstrap(self, draws: int = 200, *, seed: int = 0, batch: int = 8) -> "MEstimationResult":
        """Return the same estimate, with a covariance matrix from a bootstrap of the records ([Rubin]; [CB]).

        In each of `draws` replicates (at least 2, default 200), the weighted corrected loss is minimised, with
        exponential random weights from `seed` (default 0). `batch` (default 8) replicates are computed at a time.
        """
        self._refuse_sampling("be bootstrapped as if people were independent: use its standard errors")
        draws = at_least(2, "draws", draws)
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.key(seed), draws)
            thetas = np.asarray(_bootstrap_estimates(self._solver.estimator, keys, self._evidence, self.params, batch))
        return dataclasses.replace(self, covariance=np.atleast_2d(np.cov(thetas, rowvar=False)))

    def _refuse_sampling(self, problem: str) -> None:
        if self._solver.sampling is not None:
            raise ValueError(f"an estimate with a sampling design, a domain or persons cannot {problem}")


class Solution(NamedTuple):
    theta: Array  # (p,)
    covariance: Array  # (p, p)
    converged: Array
    iterations: Array
    boundary: Array  # whether each parameter is on the boundary of the space


@pytree_dataclass
class Estimator:
    """An M-estimator as a function that JAX can compile: from a key, released records and a start to an estimate.

    Use it for simulations. It is a pytree: a compiled function also works for other numbers in ``mechanism`` and
    ``space``. Raises ValueError for too few records, or a method that is not valid for the noise.

    Parameters
    ----------
    loss : Loss
        A loss whose parameter is a vector (p,), and whose columns are given by their positions.
    mechanism, method, space : AdditiveMechanism, Correction, Box or Ball
        The mechanism of the records, the correction, such as ``DoublyRandom(draws=4)``, and the set of parameters.
    everywhere : bool
        True (default) if the loss is also finite outside the support (the region that contains all original records).
    units : array (p,), optional
        Only for a function with kinks: for each parameter, a length over which the loss is smoothed at first.
    """

    loss: Loss = static()
    mechanism: Additive
    method: Correction
    space: Box | Ball
    everywhere: bool = static(default=True)
    units: Array = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Correction):
            raise TypeError(f"method must be a Correction, such as DoublyRandom(draws=4), got {self.method!r}")
        if jax.tree_util.all_leaves([self.method]):  # a third party's class at its first use
            pytree(type(self.method))
        object.__setattr__(self, "method", settled_for(self.mechanism, self.method))

    def __call__(self, key: Key, rows: Array, start: Array) -> Solution:
        """Return the estimate from records (N, columns) and a start (p,); `key` is for noise that the method adds."""
        return self.fit(self.evidence(key, rows), start)

    def evidence(self, key: Key, rows: Array) -> EvidenceCorrection:
        """Return the corrected losses of records (N, columns)."""
        return self.method.evidence(self.loss, self.mechanism, jnp.asarray(rows), key, everywhere=self.everywhere)

    def fit(self, evidence: EvidenceCorrection, start: Array) -> Solution:
        """Return the estimate, given the result of `evidence` and a start (p,)."""
        return self.finish(evidence, self.minimum(evidence, jnp.asarray(start)))

    def minimum(self, evidence: EvidenceCorrection, start: Array) -> Minimum:
        """Return a minimum of the first corrected loss in `evidence` from a start (p,), through ever less smoothing."""
        unit = self._unit(evidence)
        if unit is None:
            return self._minimise(evidence, self.loss, start)

        def follow(theta: jax.Array, width: jax.Array) -> tuple[jax.Array, Minimum]:
            minimum = self._minimise(evidence, self.loss.smoothed(width * unit), theta, width)
            return minimum.theta, minimum

        # Rounded off over a large width, a user's loss may have another minimum far from the start.
        before = SMOOTHING_WIDTHS if self.units is None else SMOOTHING_WIDTHS[-1:]
        widths = jnp.asarray((*before, _final_width(evidence.criteria[0].count)), start.dtype)
        minima = jax.lax.scan(follow, start, widths)[1]
        last = jax.tree.map(lambda leaf: leaf[-1], minima)
        return last._replace(iterations=jnp.sum(minima.iterations))

    def finish(
        self, evidence: EvidenceCorrection, minimum: Minimum, sampling: SamplingDesign | None = None
    ) -> Solution:
        """Return the estimate with its covariance matrix, given the results of `evidence` and `minimum`; for a
        `sampling` design, of evidence with its weights.
        """
        criterion, index = evidence.criteria[0], self.mechanism.index
        spent = len(minimum.theta) * len(evidence.criteria) + evidence.controls.shape[1]
        if criterion.count <= spent:
            few = f"{criterion.count} records are too few for {len(minimum.theta)} parameters with method"
            enough = f"more than {spent} are needed, and many more for reliable standard errors"
            raise ValueError(f"{few} {self.method.name!r}: {enough}")
        if spent > len(minimum.theta):
            minimum, scores = self._combine(evidence, minimum)
        else:
            scores = criterion.scores(self.loss, minimum.theta, index)
        theta, at = minimum.theta, minimum.at
        wide = self._loss_for_curvature(evidence, theta)
        if at is None or wide is not self.loss:
            at = criterion.derivatives(wide, theta, index)
        boundary = self.space.boundary(theta)
        covariance = sandwich(at.hessian, scores, ~boundary, spent=spent, sampling=sampling)
        return Solution(theta, covariance, minimum.converged, minimum.iterations, boundary)

    def _combine(self, evidence: EvidenceCorrection, minimum: Minimum) -> tuple[Minimum, jax.Array]:
        """Two-step GMM: the score less its projection on functions of mean zero is at an estimate the score tilted by a
        constant, so the tilted criterion is minimised twice.
        """
        base, *others = evidence.criteria
        index, unit, width = self.mechanism.index, self._unit(evidence), _final_width(base.count)
        final = self.loss if unit is None else self.loss.smoothed(width * unit)

        def residual(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
            score = base.scores(self.loss, theta, index)
            apart = [c.scores(self.loss, theta, index) - score for c in others]
            nuisance = jnp.concatenate([*apart, evidence.controls], axis=1)
            coefficients = project_out(score, nuisance)
            return jnp.mean(nuisance, axis=0) @ coefficients, score - nuisance @ coefficients

        def reweigh(theta: jax.Array, _: None) -> tuple[jax.Array, Minimum]:
            ahead = self._minimise(evidence, final, theta, width, tilt=residual(theta)[0])
            return ahead.theta, ahead

        _, path = jax.lax.scan(reweigh, minimum.theta, None, length=2)
        theta = _fixed_point(minimum.theta, path.theta[0], path.theta[1], jnp.abs(jnp.diagonal(minimum.at.hessian)))
        converged = minimum.converged & jnp.all(path.converged)
        end = Minimum(theta, None, converged, minimum.iterations + jnp.sum(path.iterations))
        return end, residual(theta)[1]

    def _minimise(
        self, evidence: EvidenceCorrection, loss: Loss, start: jax.Array, width: Array = None, tilt: Array = 0.0
    ) -> Minimum:
        """Minimum of first criterion − tilt · θ, for a loss that is rounded off over a width if it has kinks."""

        def derivatives(at: jax.Array) -> Derivatives:
            value, slope, hessian = evidence.criteria[0].derivatives(loss, at, self.mechanism.index)
            return Derivatives(value - jnp.sum(tilt * at), slope - tilt, hessian)

        # A user's loss settles to within the width only, not to rounding error.
        tolerance = STEP_TOLERANCE if self.units is None else 0.3 * width
        return minimise(derivatives, start, self.space, tolerance=tolerance, units=self.units)

    def _unit(self, evidence: EvidenceCorrection) -> Array:
        """Unit of smoothing widths; None for a loss without kinks."""
        return self.loss.width(evidence.criteria[0].terms[0].rows[0]) if self.units is None else self.units

    def _loss_for_curvature(self, evidence: EvidenceCorrection, theta: jax.Array) -> Loss:
        """The loss rounded off over the width at which its curvature, a density of residuals, is estimated best."""
        criterion, unit = evidence.criteria[0], self._unit(evidence)
        if unit is None:
            return self.loss
        # Silverman's rule for a logistic kernel; the density of residuals is known from the records that are exact
        exact = jnp.maximum(criterion.count * jnp.mean(self.method.exact(self.mechanism)), 1.0)
        wide = 1.06 * np.sqrt(3) / np.pi * exact**-0.2
        if self.loss.value_of_normal is not None and self.method.support is not None:
            # The unit is the spread of released residuals; the criterion's value tells the spread of the original ones.
            # Without truncation to the support it tells little, and may even be negative.
            spread = jnp.mean(criterion.values(self.loss, theta, self.mechanism.index)) / self.loss.value_of_normal
            unit = jnp.clip(spread, LEAST_SPREAD_SHARE * unit, unit)
        return self.loss.smoothed(wide * unit)


def _final_width(count: int) -> float:
    """Width, in units, at which smoothing costs nothing to first order."""
    return 0.5 * count**-0.4


def sandwich(
    curvature: Array, scores: Array, free: Array, *, spent: int, sampling: SamplingDesign | None = None
) -> jax.Array:
    """Covariance (p, p) of an M-estimate ([Huber67]; [LCQ] Theorem 5.3); NaN on the boundary. The `curvature` is the
    derivative of the mean of the `scores` (N, p); `spent` are degrees of freedom, at least p. Those beyond p, of what
    was projected out, are missed by the variance between clusters, too.
    """
    count, p = scores.shape
    centred = scores - jnp.mean(scores, axis=0)
    if sampling is None:
        spread = centred.T @ centred / (count - spent)
    else:
        clusters = count if sampling.clusters is None else jnp.max(sampling.clusters) + 1
        freedom = clusters - jnp.max(sampling.strata) - 1.0
        left = jnp.where(freedom > spent - p, freedom - (spent - p), jnp.nan)
        spread = sampling.covariance(scores) / count * freedom / left
    both = free[:, None] & free
    inverse = jnp.linalg.inv(jnp.where(both, curvature, jnp.eye(p)))
    spread = jnp.where(both, spread, 0.0)
    return jnp.where(both, inverse @ spread @ inverse.T / count, jnp.nan)


def project_out(scores: Array, nuisance: Array) -> jax.Array:
    """Coefficients Γ (q, p) for which scores (N, p) − nuisance (N, q) @ Γ has the least variance, whatever the rank."""
    centred = nuisance - jnp.mean(nuisance, axis=0)
    size = jnp.sqrt(jnp.mean(centred**2, axis=0))
    safe = jnp.where(size > 0, size, 1.0)
    unit = centred / safe
    inverse = jnp.linalg.pinv(unit.T @ unit / len(unit), rtol=1e-8, hermitian=True)
    return inverse @ (unit.T @ (scores - jnp.mean(scores, axis=0)) / len(unit)) / safe[:, None]


def _fixed_point(first: jax.Array, second: jax.Array, third: jax.Array, metric: jax.Array) -> jax.Array:
    """Fixed point of a nearly linear map through three points, if it overshoots (Anderson's mixing of depth one)."""
    step = third - second
    turn = step - (second - first)
    size = jnp.sum(metric * turn**2)
    share = jnp.sum(metric * step * turn) / jnp.where(size > 0, size, 1.0)
    return third - jnp.clip(share, 0.0, 1.0) * step


@functools.partial(jax.jit, static_argnames="batch")
def _bootstrap_estimates(
    estimator: Estimator, keys: jax.Array, evidence: EvidenceCorrection, start: Array, batch: int
) -> jax.Array:
    """Estimates with random weights of records, one for each key."""

    def replicate(key: jax.Array) -> jax.Array:
        weights = jax.random.exponential(key, (evidence.criteria[0].count,))
        return estimator.fit(evidence.weighted(weights / jnp.mean(weights)), start).theta

    return jax.lax.map(replicate, keys, batch_size=batch)


def _place(
    problem: PosedLoss, space: Box | Ball | None, original_start: PyTree
) -> tuple[np.ndarray, Box | Ball, np.ndarray | None]:
    """A start, its space, and units (p,) to round off kinks over; with kinks the start is the naive estimate."""
    start = problem.start
    if space is not None and space.shape not in ((), (1,), (len(start),)):
        raise ValueError(f"space is for {space.shape[0]} parameters, but this loss has {len(start)}")
    if space is not None and original_start is not None:
        moved = np.abs(np.asarray(space.project(jnp.asarray(start))) - start)
        if np.any(moved > 1e-9 * (1 + np.abs(start))):
            raise ValueError(f"start lies outside the space: {original_start!r}")
    keep_start = original_start is not None and not problem.rough
    if space is not None and keep_start:
        return start, space, None
    naive, units = _naive_estimate(problem, space)
    if space is None:
        reach = 10 * (1 + units + np.abs(naive))
        space = Box(np.minimum(naive - reach, start - 1), np.maximum(naive + reach, start + 1))
    return start if keep_start else naive, space, units if problem.rough else None


def _naive_estimate(problem: PosedLoss, space: Box | Ball | None) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser of the uncorrected loss, in a space so wide that it only keeps numbers finite, and units there."""
    records, naive, units = problem.records, problem.start, problem.units
    if space is None:
        reach = 1e4 * (1 + units + np.abs(naive))
        space = Box(naive - reach, naive + reach)
    rows, sample = records.inside(records.rows), records.sample()
    for _ in range(NAIVE_ROUNDS):
        # The estimator holds nothing that `Naive` does not use, so that methods and draws share a compiled function.
        rounding = units if problem.rough else None
        estimator = Estimator(problem.loss, records.mechanism, Naive(), space, units=rounding)
        naive, before = np.asarray(_minimiser(estimator, rows, naive)), units
        units = np.asarray(natural_units(problem.loss, sample, naive))
        # A loss that was rounded off over too much is minimised once more.
        if not problem.rough or np.all(np.abs(np.log2(units / before)) < 1):
            break
    return naive, units


@quick_jit
def _minimiser(estimator: Estimator, rows: Array, start: Array) -> jax.Array:
    """Minimiser of the criterion of an estimator whose method draws nothing."""
    return estimator.minimum(estimator.evidence(jax.random.key(0), rows), start).theta


@dataclasses.dataclass(frozen=True, eq=False)
class Solver:
    """All of an M-estimation but the records; its method is settled for each release anew, in the estimator."""

    estimator: Estimator
    method: Correction
    unravel: Callable
    starts: int
    sampling: SamplingDesign | None = None

    def solve(
        self, records: Records, start: np.ndarray, seed: int, earlier: MEstimationResult | None = None
    ) -> MEstimationResult:
        """Minimise from every start, with the evidence of an earlier estimate added, and warn of problems."""
        estimator, keys = self.estimator, jax.random.split(jax.random.key(seed))
        starts = start[None]
        if self.starts > 1:  # else nothing is compiled for no points
            others = estimator.space.sample(keys[1], (self.starts - 1,), len(start), start.dtype)
            starts = np.concatenate([starts, others])
        evidence_before, promises = (earlier._evidence, earlier._promises) if earlier else (None, ())
        promises += records.promises or (Promise(estimator.mechanism),)
        if self.sampling is None or self.sampling.clusters is None:
            warn_of_repeats(promises)
        evidence, ends, solution = _run(
            estimator, keys[0], jnp.asarray(records.rows), starts, evidence_before, self.sampling
        )
        estimate = jax.tree.map(np.asarray, self.unravel(solution.theta))
        result = MEstimationResult(
            method=self.method.name,
            estimate=estimate,
            params=np.asarray(solution.theta),
            covariance=np.asarray(solution.covariance),
            names=estimator.loss.names(estimator.mechanism.names) or names_of(estimate),
            count=evidence.criteria[0].count,
            space=estimator.space,
            converged=bool(solution.converged),
            iterations=int(solution.iterations),
            boundary=np.asarray(solution.boundary),
            minima=_distinct_minima(ends, estimator.units),
            _solver=self,
            _evidence=evidence,
            _promises=promises,
        )
        if not result.converged:
            warn(f"the minimisation has not converged in {result.iterations} iterations", EstimationWarning)
        if result.boundary.any():
            edges = ", ".join(name for name, edge in zip(result.names, result.boundary, strict=True) if edge)
            place = f"on the boundary of the parameter space ({edges})"
            warn(f"the estimate is {place}, where standard errors are not available", EstimationWarning)
        if len(result.minima) > 1:
            warn(f"{len(result.minima)} minima were found; the estimate is from the lowest", EstimationWarning)
        return result


@quick_jit
def _run(
    estimator: Estimator,
    key: jax.Array,
    rows: jax.Array,
    starts: jax.Array,
    earlier: EvidenceCorrection | None,
    sampling: SamplingDesign | None,
) -> tuple[EvidenceCorrection, Minimum, Solution]:
    """Evidence, the minima found from each start, and the solution that follows from the lowest."""
    evidence = estimator.evidence(key, rows)
    evidence = evidence if earlier is None else earlier.joined(evidence)
    evidence = evidence if sampling is None else evidence.weighted(sampling.normalised)
    ends = jax.lax.map(lambda at: estimator.minimum(evidence, at), starts)
    lowest = jnp.argmin(jnp.where(jnp.isfinite(ends.at.value), ends.at.value, jnp.inf))
    best = jax.tree.map(lambda leaf: leaf[lowest], ends)
    return evidence, ends, estimator.finish(evidence, best, sampling)


def _distinct_minima(ends: Minimum, units: np.ndarray | None) -> list[tuple[np.ndarray, float]]:
    """Minima that are further apart than the accuracy to which they are known, lowest first."""
    thetas, values, hessians = (np.asarray(part) for part in (ends.theta, ends.at.value, ends.at.hessian))
    with np.errstate(divide="ignore", invalid="ignore"):
        # moves that change the criterion by its size, in a quadratic approximation
        moves = np.sqrt(np.abs(values[:, None] / np.diagonal(hessians, axis1=1, axis2=2)))
    near = APART_UNITS * (moves if units is None else units) + 1e-9 * np.abs(thetas)
    minima: list[tuple[np.ndarray, float]] = []
    for i in np.argsort(values):
        if np.isfinite(values[i]) and all(np.any(np.abs(thetas[i] - theta) > near[i]) for theta, _ in minima):
            minima.append((thetas[i], float(values[i])))
    return minima
