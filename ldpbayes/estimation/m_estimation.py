"""M-estimation from a release: its start, its solution and its errors."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import special

from ldpbayes._core.checks import LdpBayesWarning, at_least, is_integer, warn
from ldpbayes._core.pytrees import pytree, static
from ldpbayes._core.tracing import quick_jit
from ldpbayes.data.release import Release
from ldpbayes.estimation._corrections import Corrected, Correction, Evidence, Naive, check_noise, correction
from ldpbayes.estimation._problem import (
    Examined,
    Records,
    check_values,
    examined,
    natural_units,
    parametrised,
    records_of,
    sample,
)
from ldpbayes.estimation.estimates import (
    Contrast,
    Estimate,
    Shown,
    contrast,
    in_line,
    normal_interval,
    project_out,
    sandwich,
    table,
    tails,
    variances_under,
)
from ldpbayes.estimation.losses._loss import Derivatives, Loss
from ldpbayes.estimation.minimise import TOLERANCE, Ball, Box, Minimum, minimise
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import statements

WIDTHS = (1.0, 0.5, 0.25, 0.12, 0.06)
LEAST_SPREAD = 0.1  # of the released residuals': what is estimated to be less is taken for an accident


class Fit(NamedTuple):
    """Estimate, its covariance, and how the minimisation ended; see `Minimum`."""

    theta: Any
    covariance: Any
    value: Any
    converged: Any
    iterations: Any
    boundary: Any


@pytree
@dataclasses.dataclass(frozen=True)
class Estimator:
    """An M-estimator for a loss and a mechanism.

    It is a pytree, so that a compiled function of an estimator serves all mechanisms and spaces of a kind.

    Parameters
    ----------
    loss : Loss
        Of a flat parameter, and with positions for columns.
    mechanism : Additive
        That made the release.
    method : Correction
        One of `ldpbayes.estimation.corrections`, such as ``DoublyRandom(draws=4)``.
    space : Box or Ball
        The compact set of parameters.
    everywhere : bool
        Whether the loss is finite outside the support too, so that a method may look at it there.
    units : array (p,), optional
        Units of the parameters, for a user's loss with kinks in them; see `natural_units`.

    Raises
    ------
    TypeError
        If the method is not a `Correction`.
    ValueError
        If it is not for the mechanism's noise, or its options do not fit the mechanism.
    """

    loss: Loss = dataclasses.field(metadata={"static": True})
    mechanism: Additive
    method: Correction
    space: Box | Ball
    everywhere: bool = static(default=True)
    units: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Correction):
            raise TypeError(f"method must be a Correction, such as DoublyRandom(draws=4), got {self.method!r}")
        if jax.tree_util.all_leaves([self.method]):  # a class from elsewhere, seen for the first time
            pytree(type(self.method))
        check_noise(self.method, self.mechanism)
        self.method.settled(self.mechanism)

    def __call__(self, key: Any, rows: Any, start: Any) -> Fit:
        """Estimate from released (for `Oracle`, original) records; traceable.

        Parameters
        ----------
        key : jax.Array
            A JAX random key, for the analyst's own noise.
        rows : array (N, columns)
            The records.
        start : array (p,)
            Where the minimisation starts.

        Returns
        -------
        Fit
        """
        return self.fit(self.evidence(key, rows), start)

    def evidence(self, key: Any, rows: Any) -> Evidence:
        """What the records say of the parameters; see `__call__`."""
        return self.method.evidence(self.loss, self.mechanism, jnp.asarray(rows), key, everywhere=self.everywhere)

    @property
    def settled(self) -> "Estimator":
        """The same with what the method takes from the mechanism filled in, so that all of a kind share a structure."""
        return dataclasses.replace(self, method=self.method.settled(self.mechanism))

    @property
    def index(self) -> tuple[int, ...]:
        """Perturbed columns."""
        return self.mechanism.index

    def minimum(self, evidence: Evidence, start: Any) -> Minimum:
        """Minimum of the first criterion found from a start; through ever less smooth criteria, if it has kinks."""
        criterion = evidence.criteria[0]
        unit = self._unit(criterion)
        if unit is None:
            return minimise(lambda theta: criterion.derivatives(self.loss, theta, self.index), start, self.space)

        def follow(theta: jax.Array, width: jax.Array) -> tuple[jax.Array, Minimum]:
            loss = self.loss.smoothed(width * unit)
            found = self._minimised(lambda at: criterion.derivatives(loss, at, self.index), theta, width)
            return found.theta, found

        # rounded off over a large width such a loss may have another minimum far from the start, and no way back
        before = WIDTHS if self.loss.settles else WIDTHS[-1:]
        widths = jnp.asarray((*before, self._narrow(criterion.count)), start.dtype)
        found = jax.lax.scan(follow, start, widths)[1]
        last = jax.tree.map(lambda leaf: leaf[-1], found)
        return last._replace(iterations=jnp.sum(found.iterations))

    def _minimised(self, derivatives: Callable, start: jax.Array, width: Any) -> Minimum:
        tolerance = TOLERANCE if self.loss.settles else 0.3 * width
        return minimise(derivatives, start, self.space, tolerance=tolerance, units=self.units)

    def _unit(self, criterion: Corrected) -> Any:
        return self.loss.width(criterion.terms[0].rows[0]) if self.units is None else self.units

    @staticmethod
    def _narrow(count: int) -> float:
        """Width, in units, at which smoothing costs nothing to first order."""
        return 0.5 * count**-0.4

    def _narrowed(self, criterion: Corrected) -> Loss:
        """The loss as it is minimised."""
        unit = self._unit(criterion)
        return self.loss if unit is None else self.loss.smoothed(self._narrow(criterion.count) * unit)

    def _curved(self, criterion: Corrected, theta: jax.Array) -> Loss:
        """The loss as its curvature is estimated: rounded off over the width at which a density is estimated best."""
        unit = self._unit(criterion)
        if unit is None:
            return self.loss
        # Silverman's rule for a logistic kernel; the density of residuals is known from the records that are exact
        exact = jnp.maximum(criterion.count * jnp.mean(self.method.exact(self.mechanism)), 1.0)
        wide = 1.06 * np.sqrt(3) / np.pi * exact**-0.2
        if self.loss.value_of_normal is not None and self.method.settled(self.mechanism).support is not None:
            # the unit is the spread of released residuals, the criterion's value tells that of the original ones (but
            # little where it is not truncated to the support: then it may even be negative)
            spread = jnp.mean(criterion.values(self.loss, theta, self.index)) / self.loss.value_of_normal
            unit = jnp.clip(spread, LEAST_SPREAD * unit, unit)
        return self.loss.smoothed(wide * unit)

    def fit(self, evidence: Evidence, start: Any) -> Fit:
        """Estimate from evidence; traceable."""
        return self.finish(evidence, self.minimum(evidence, jnp.asarray(start)))

    def finish(self, evidence: Evidence, found: Minimum) -> Fit:
        """The estimate with its covariance, given the minimum of the first criterion.

        Raises
        ------
        ValueError
            If there are no more records than parameters and mean-zero functions.
        """
        spent = len(found.theta) * len(evidence.criteria) + evidence.controls.shape[1]
        if evidence.criteria[0].count <= spent:
            raise ValueError(
                f"{evidence.criteria[0].count} records are too few for {len(found.theta)} parameters by method "
                f"{self.method.name!r}: more than {spent} are needed, and many more for errors to be trusted"
            )
        if spent > len(found.theta):
            return self._combine(evidence, found, spent)
        criterion = evidence.criteria[0]
        boundary = self.space.boundary(found.theta)
        wide = self._curved(criterion, found.theta)
        curvature = found.hessian if wide is self.loss else criterion.derivatives(wide, found.theta, self.index)[2]
        scores = criterion.scores(self.loss, found.theta, self.index)
        covariance = sandwich(curvature, scores, ~boundary, spent=spent)
        return Fit(found.theta, covariance, found.value, found.converged, found.iterations, boundary)

    def _combine(self, evidence: Evidence, found: Minimum, spent: int) -> Fit:
        """Two-step GMM: the first criterion's score less its projection on everything that has mean zero.

        All scores are unbiased for the same one, so their differences have mean zero at every parameter. Taken at a
        first estimate, the projection is a constant: the first criterion is tilted by it and minimised again, twice.
        """
        base, *others = evidence.criteria
        narrow = self._narrowed(base)

        def residual(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
            score = base.scores(self.loss, theta, self.index)
            apart = [c.scores(self.loss, theta, self.index) - score for c in others]
            nuisance = jnp.concatenate([*apart, evidence.controls], axis=1)
            coefficients = project_out(score, nuisance)
            return jnp.mean(nuisance, axis=0) @ coefficients, score - nuisance @ coefficients

        def reweigh(theta: jax.Array, _: None) -> tuple[jax.Array, Minimum]:
            tilt = residual(theta)[0]

            def derivatives(at: jax.Array) -> Derivatives:
                value, slope, hessian = base.derivatives(narrow, at, self.index)
                return value - tilt @ at, slope - tilt, hessian

            ahead = self._minimised(derivatives, theta, self._narrow(base.count))
            return ahead.theta, ahead

        _, path = jax.lax.scan(reweigh, found.theta, None, length=2)
        theta = _between(found.theta, path.theta[0], path.theta[1], jnp.abs(jnp.diagonal(found.hessian)))
        scores = residual(theta)[1]
        boundary = self.space.boundary(theta)
        curvature = base.derivatives(self._curved(base, theta), theta, self.index)[2]
        covariance = sandwich(curvature, scores, ~boundary, spent=spent)
        iterations = found.iterations + jnp.sum(path.iterations)
        converged = found.converged & jnp.all(path.converged)
        return Fit(theta, covariance, path.value[-1], converged, iterations, boundary)


def _between(first: jax.Array, second: jax.Array, third: jax.Array, metric: jax.Array) -> jax.Array:
    """The fixed point of a map that takes the first point to the second and that to the third, if it turns back.

    The map is nearly linear. Where few records lie in the support it may overshoot by more each time; its fixed point
    then is between the last two points (Anderson's mixing of depth one). Else the third point is as good.
    """
    step = third - second
    turn = step - (second - first)
    size = jnp.sum(metric * turn**2)
    share = jnp.sum(metric * step * turn) / jnp.where(size > 0, size, 1.0)
    return third - jnp.clip(share, 0.0, 1.0) * step


ROUNDS = 6  # of the naive estimate and the units there


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where to look for a minimum.

    Attributes
    ----------
    start : array (p,)
        Where the minimisation starts.
    space : Box or Ball
        The compact set of parameters.
    units : array (p,) or None
        Lengths of the parameters, over which a function with kinks is rounded off.
    """

    start: np.ndarray
    space: Box | Ball
    units: np.ndarray | None


def check_space(space: Box | Ball | None, start: np.ndarray, given: Any) -> None:
    """ValueError for a space of another number of parameters, or one that the start lies outside of.

    Parameters
    ----------
    space : Box, Ball or None
        What `m_estimate` was given.
    start : array (p,)
        The flat start.
    given : array or pytree, optional
        The start as it was given; one that was not is not checked.
    """
    if space is None:
        return
    if space.shape not in ((), (1,), (len(start),)):
        raise ValueError(f"space is for {space.shape[0]} parameters, and this loss has {len(start)}")
    if given is not None:
        moved = np.abs(np.asarray(space.project(jnp.asarray(start))) - start)
        if np.any(moved > 1e-9 * (1 + np.abs(start))):
            raise ValueError(f"start lies outside the space: {given!r}")


def placed(found: Examined, records: Records, start: np.ndarray, space: Box | Ball | None, *, given: bool) -> Placed:
    """The space, and the start in it: where they were not given, from the naive estimate.

    Parameters
    ----------
    found : Examined
        The loss.
    records : Records
        Of which it is minimised.
    start : array (p,)
        Where the naive estimate starts.
    space : Box, Ball or None
        What `m_estimate` was given.
    given : bool
        Whether the start was given: then it is kept, but for a function with kinks, which is only seen from nearby once
        it is rounded off.
    """
    if space is not None and given and not found.rough:
        return Placed(start, space, None)
    naive, units = _naive(found, records, start, space)
    space = _around(naive, start, units) if space is None else space
    return Placed(start if given and not found.rough else naive, space, units if found.rough else None)


def _naive(
    found: Examined, records: Records, start: np.ndarray, space: Box | Ball | None
) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser of the loss at face value, in a space so wide that it only keeps numbers finite, and units."""
    rows, some = jnp.asarray(records.inside(records.rows)), jnp.asarray(sample(records))
    naive, units = jnp.asarray(start), found.units
    if space is None:
        reach = 1e4 * (1 + units + np.abs(start))
        space = Box(start - reach, start + reach)
    for _ in range(ROUNDS):
        # of what the naive method does not look at, nothing: so methods and draws share what is compiled
        estimator = Estimator(found.loss, records.mechanism, Naive(), space, units=units if found.rough else None)
        naive, before = _minimum(estimator, rows, naive), units
        units = np.asarray(natural_units(found.loss, some, naive))
        # a loss that was rounded off over too much is minimised once more
        if not found.rough or np.all(np.abs(np.log2(units / before)) < 1):
            break
    return np.asarray(naive), units


@quick_jit
def _minimum(estimator: Estimator, rows: jax.Array, start: jax.Array) -> jax.Array:
    """Where the criterion of an estimator that draws nothing is smallest."""
    return estimator.minimum(estimator.evidence(jax.random.key(0), rows), start).theta


def _around(naive: np.ndarray, start: np.ndarray, units: np.ndarray) -> Box:
    """The default space: a box around the naive estimate that the start is in."""
    reach = 10 * (1 + units + np.abs(naive))
    return Box(np.minimum(naive - reach, start - 1), np.maximum(naive + reach, start + 1))


class EstimationWarning(LdpBayesWarning):
    """An estimate that should not be used as it is; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MEstimate(Shown):
    """An M-estimate with its covariance, for sampling and perturbation together; an `Estimate`.

    Attributes
    ----------
    method : str
        Name of the correction method.
    estimate : float, array or pytree
        In the form of the start.
    params : array (p,)
        The same, flat.
    covariance : array (p, p)
        NaN for parameters on the boundary.
    names : list of str
        Of the parameters.
    count : int
        Number of records.
    space : Box or Ball
        The compact set of parameters.
    converged : bool
        Whether the minimisation has.
    iterations : int
        Of the minimisation.
    boundary : array (p,) of bool
        Parameters that ended on the boundary of the space.
    minima : list of (array (p,), float)
        Distinct minima that were found from the starts, with the criterion there. The first is the estimate, but for
        ``combined``, which goes on from there.
    """

    method: str
    estimate: Any
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
    _evidence: Evidence
    _mechanisms: tuple[Any, ...]

    def __repr__(self) -> str:
        """Return a line; `summary` has a table."""
        head = f"{self.method}, {self.count:,} records{'' if self.converged else ', NOT CONVERGED'}"
        return f"{type(self).__name__}({in_line(head, self.names, self.params, self.standard_error)})"

    @property
    def standard_error(self) -> np.ndarray:
        """Standard errors, shape (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def privacy(self) -> str:
        """What the mechanisms of the releases promise; see `Estimate.privacy`."""
        return statements(self._mechanisms)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Normal confidence intervals: two arrays (p,).

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.

        Raises
        ------
        ValueError
            For another level.
        """
        return normal_interval(self.params, self.standard_error, level)

    def contrast(self, weights: ArrayLike | Mapping[Any, float], level: float = 0.95) -> Contrast:
        """Estimate, standard error and normal interval of Σ w_j θ_j, such as a difference of two coefficients.

        Parameters
        ----------
        weights : array_like (p,) or (m, p), or dict
            Of one sum of parameters, or of m. A dict has the weights of one sum by name, as ``{"age": 1, "income":
            -1}``; others have weight 0.
        level : float
            Coverage of the interval, between 0 and 1.

        Returns
        -------
        Contrast
            NaN for the error of a sum with a parameter on the boundary.

        Raises
        ------
        ValueError
            For weights of another shape, of names that there are not, or that are not finite, and for another level.
        """
        variances = functools.partial(variances_under, self.covariance)
        return contrast(self.params, variances, weights, level, self.names)

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates in plain text, like those of statsmodels.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        lower, upper = tails(level)
        head = f"{'coef':>10} {'std err':>10} {'z':>8} {'P>|z|':>7} {lower:>10} {upper:>10}"
        rows = []
        for name, coef, error, low, high, edge in zip(
            self.names, self.params, self.standard_error, *self.interval(level), self.boundary, strict=True
        ):
            z = coef / error
            p = 2 * special.ndtr(-abs(z))
            numbers = f"{coef:10.4f} {error:10.4f} {z:8.3f} {p:7.3f} {low:10.4f} {high:10.4f}"
            rows.append((name, numbers + ("  on the boundary" if edge else "")))
        done = "" if self.converged else ", NOT CONVERGED"
        return table(f"M-estimate, method {self.method!r}, {self.count} records{done}", "parameter", head, rows)

    def update(self, release: Release, *, seed: int = 1) -> "MEstimate":
        """Estimate again with a new batch of released records; the old ones are not touched.

        The analyst's own noise on the old records is kept, so nothing is drawn for them again.

        Parameters
        ----------
        release : Release
            Of the same kind of mechanism with the same columns, in the same order; its parameters may differ. Unless
            the support was given, the new records' is between their own mechanism's bounds.
        seed : int
            For the analyst's own noise on the new records.

        Returns
        -------
        MEstimate

        Raises
        ------
        ValueError
            For another kind of mechanism, other columns, or records that `m_estimate` would refuse.
        """
        with jax.enable_x64(True):
            solver, records = self._solver.for_release(release, self.params)
            return solver.solve(records, self.params, seed, self)

    def bootstrap(self, replicates: int = 200, *, seed: int = 0, batch: int = 8) -> "MEstimate":
        """Covariance from the bootstrap with exponential weights of records ([Rubin]; [CB]).

        Every replicate starts from the estimate and uses the same draws of the analyst's own noise.

        Parameters
        ----------
        replicates : int
            How often records are weighted anew.
        seed : int
            For the weights.
        batch : int
            Replicates that run together.

        Returns
        -------
        MEstimate
            The same estimate with the bootstrap's covariance.

        Raises
        ------
        ValueError
            For fewer than 2 replicates.
        """
        replicates = at_least(2, "replicates", replicates)
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.key(seed), replicates)
            estimator = self._solver.estimator.settled
            thetas = np.asarray(_reweighted(estimator, keys, self._evidence, self.params, batch))
        return dataclasses.replace(self, covariance=np.atleast_2d(np.cov(thetas, rowvar=False)))


@functools.partial(jax.jit, static_argnames="batch")
def _reweighted(estimator: Estimator, keys: jax.Array, evidence: Evidence, start: Any, batch: int) -> jax.Array:
    """Estimates with random weights of records, one a key."""

    def one(key: jax.Array) -> jax.Array:
        weights = jax.random.exponential(key, (evidence.criteria[0].count,))
        return estimator.fit(evidence.weighted(weights / jnp.mean(weights)), start).theta

    return jax.lax.map(one, keys, batch_size=batch)


_PROTOCOL: type[Estimate] = MEstimate  # for the type checker


APART = 1e-3  # of the parameters' units: minima nearer than that are the same


@dataclasses.dataclass(frozen=True, eq=False)
class Solver:
    """All of an M-estimation but the records.

    Parameters
    ----------
    estimator : Estimator
        Whose method is as it was given: what it takes from the mechanism is filled in for each release anew.
    unravel : callable
        From a flat parameter to the form of the start.
    starts : int
        Number of starts, all but the first uniform in the space.
    """

    estimator: Estimator
    unravel: Callable
    starts: int

    def solve(self, records: Records, start: np.ndarray, seed: int, earlier: MEstimate | None = None) -> MEstimate:
        """Minimise from every start, and warn of what went wrong.

        Parameters
        ----------
        records : Records
            Of the estimator's mechanism.
        start : array (p,)
            The first start.
        seed : int
            For the analyst's own noise and the other starts.
        earlier : MEstimate, optional
            To whose evidence that of the records is added.
        """
        settled, keys, first = self.estimator.settled, jax.random.split(jax.random.key(seed)), jnp.asarray(start)
        others = settled.space.sample(keys[1], (self.starts - 1,), len(first), first.dtype)
        starts = jnp.concatenate([first[None], others])
        known = None if earlier is None else earlier._evidence
        evidence, ends, fit = _run(settled, keys[0], jnp.asarray(records.rows), starts, known)
        params = np.asarray(fit.theta)
        result = MEstimate(
            self.estimator.method.name,
            jax.tree.map(np.asarray, self.unravel(fit.theta)),
            params,
            np.asarray(fit.covariance),
            self._names(params),
            int(evidence.criteria[0].count),
            self.estimator.space,
            bool(fit.converged),
            int(fit.iterations),
            np.asarray(fit.boundary),
            _distinct(ends, self.estimator.units),
            self,
            evidence,
            (*(() if earlier is None else earlier._mechanisms), self.estimator.mechanism),
        )
        _warn(result)
        return result

    def for_release(self, release: Any, theta: np.ndarray) -> tuple["Solver", Records]:
        """The same for another release of the same kind, and its records.

        Parameters
        ----------
        release : Release
            See `MEstimate.update`.
        theta : array (p,)
            Where the loss must be finite.

        Raises
        ------
        ValueError
            If it cannot be added to the first one.
        """
        before = self.estimator
        records = records_of(release, before.method)
        mechanism = records.mechanism
        if _kind(mechanism) != _kind(before.mechanism):
            raise ValueError(f"an update needs records of a mechanism like {before.mechanism}, got {mechanism}")
        if mechanism.names != before.mechanism.names:
            raise ValueError(
                f"an update needs records with the columns {', '.join(before.mechanism.names)}, in this order, got "
                + ", ".join(mechanism.names)
            )
        before.loss.check(records.rows, mechanism.index)
        bounded = records.support is not None and not (before.method.beyond and before.everywhere)
        rows = records.inside(records.rows) if bounded else records.rows
        check_values(before.loss, rows, records, theta, bounded=bounded)
        estimator = dataclasses.replace(before, mechanism=mechanism)
        return dataclasses.replace(self, estimator=estimator), records

    def _names(self, params: np.ndarray) -> list[str]:
        names = self.estimator.loss.names(self.estimator.mechanism.names)
        return names or (["theta"] if params.size == 1 else [f"theta[{j}]" for j in range(params.size)])


def _kind(mechanism: Additive) -> tuple:
    return type(mechanism), jax.tree.structure(mechanism.noise), mechanism.event_shape, mechanism.index


@quick_jit
def _run(
    estimator: Estimator, key: jax.Array, rows: jax.Array, starts: jax.Array, earlier: Evidence | None
) -> tuple[Evidence, Minimum, Fit]:
    """Evidence, the minima found from each start, and the fit that follows from the lowest."""
    evidence = estimator.evidence(key, rows)
    evidence = evidence if earlier is None else earlier.joined(evidence)
    ends = jax.lax.map(lambda at: estimator.minimum(evidence, at), starts)
    lowest = jnp.argmin(jnp.where(jnp.isfinite(ends.value), ends.value, jnp.inf))
    best = jax.tree.map(lambda leaf: leaf[lowest], ends)
    return evidence, ends, estimator.finish(evidence, best)


def _distinct(ends: Minimum, units: np.ndarray | None) -> list[tuple[np.ndarray, float]]:
    """Minima that are further apart than what they are known to, lowest first."""
    thetas, values, hessians = (np.asarray(part) for part in (ends.theta, ends.value, ends.hessian))
    minima: list[tuple[np.ndarray, float]] = []
    for i in np.argsort(np.where(np.isfinite(values), values, np.inf)):
        with np.errstate(divide="ignore", invalid="ignore"):
            # what changes the criterion by its size, as far as a quadratic knows
            unit = np.sqrt(np.abs(values[i] / np.diagonal(hessians[i]))) if units is None else units
        near = APART * unit + 1e-9 * np.abs(thetas[i])
        if np.isfinite(values[i]) and all(np.any(np.abs(thetas[i] - theta) > near) for theta, _ in minima):
            minima.append((thetas[i], float(values[i])))
    return minima


def _warn(result: MEstimate) -> None:
    problems = []
    if not result.converged:
        problems.append(f"the minimisation has not converged in {result.iterations} iterations")
    if result.boundary.any():
        where = ", ".join(name for name, edge in zip(result.names, result.boundary, strict=True) if edge)
        problems.append(f"the estimate is on the boundary of the parameter space ({where}): no standard errors there")
    if len(result.minima) > 1:
        problems.append(f"{len(result.minima)} minima were found; the estimate is from the lowest")
    for problem in problems:
        warn(problem, EstimationWarning)


class _Default:
    def __repr__(self) -> str:
        return "<the method's>"


_DEFAULT: Any = _Default()


def m_estimate(
    loss: Loss | Callable,
    release: Release | ArrayLike,
    method: str | Correction = "combined",
    *,
    start: Any = None,
    space: Box | Ball | None = None,
    support: Literal["bounds"] | tuple[ArrayLike, ArrayLike] | None = _DEFAULT,
    draws: int | Literal["exact"] | None = None,
    cuts: Sequence[float] | None = None,
    starts: int = 1,
    seed: int = 0,
) -> MEstimate:
    """Estimate the parameter that minimises the mean loss of the original records, from released ones.

    Parameters
    ----------
    loss : Loss or callable
        One of `ldpbayes.estimation.losses`, or any JAX function loss(x, theta) of one record: a number, or a row with
        the columns of the release, perturbed or not.
    release : Release
        From a mechanism whose noise the method is for. For ``oracle`` original records: an array, or a data frame,
        whose columns a loss of `ldpbayes.estimation.losses` may name, and which then name the parameters. A function
        of your own sees the columns in the order of the data frame: ``frame[list(mechanism.columns)]`` has that of a
        release.
    method : str or Correction
        A correction method of `ldpbayes.estimation`, or the name of one with its defaults:

        - ``combined``, `Combined`: the asymptotically best linear combination of all scores below that apply, and of
          what the support says (two-step GMM, [Hansen]); the default, for zero-inflated symmetric Laplace noise.
        - ``dr``, `DoublyRandom`; ``sdr``, `SmoothedDoublyRandom`; ``sl``, `SymmetricLaplaceCorrection`: the corrected
          losses of [LCQ], doubly random, smoothed doubly random and symmetric Laplace; with ``draws=1`` and
          ``support=None`` as the paper defines them. The last is for noise that is not zero-inflated, too, and in one
          column for Laplace noise. ``sdr`` and ``sl`` need a smooth loss: two derivatives in the perturbed columns and
          two more in the parameters, of which only the last may jump.
        - ``independent``, `IndependentLaplaceCorrection`: the corrected loss for independent Laplace noise ([LCQ],
          preprint, eq. 4.9), which needs two derivatives in each perturbed column, and two in the parameters.
        - ``naive``, `Naive`: the loss of the released records, as if they were the original ones; biased.
        - ``oracle``, `Oracle`: the loss of original records, for studies.
    start : array or pytree, optional
        Where to start, in the form in which the loss takes its parameter. Losses of a linear predictor start from the
        naive estimate, and so does a loss with kinks in the parameter, from the one that is found from here.
    space : Box or Ball, optional
        The compact set of parameters. By default a box around the naive estimate, ten times as wide on either side as
        one plus its size and the parameter's unit: how far it has to be moved for the loss to bend.
    support : "bounds", (lower, upper) or None
        Of a method that is named: where the original records are known to lie, in the perturbed columns; by default
        between the mechanism's bounds. For ``dr``, which then never looks at the loss elsewhere, and ``combined``,
        which does so only where the loss is finite there. Other methods make nothing of it.
    draws : int or "exact", optional
        Of a method that is named: draws of the analyst's own noise to average over, a record; by default 16. "exact"
        integrates instead, for one perturbed column.
    cuts : sequence of float, optional
        Of a method that is named: kinks of the loss in the perturbed column, where ``draws="exact"`` is to cut its
        integrals.
    starts : int
        Number of starts, all but the first uniform in the space.
    seed : int
        For the analyst's own noise and the starts.

    Returns
    -------
    MEstimate

    Warns
    -----
    EstimationWarning
        If the minimisation has not converged, ends on the boundary of the space, or finds several minima.

    Raises
    ------
    TypeError
        If ``release`` is not a release of additive noise, ``loss`` not a function, ``method`` neither a name nor a
        `Correction`, or options of a method stand beside a `Correction`, which has its own.
    ValueError
        For a method that the noise or the loss does not admit, a loss that is not a finite number at the start,
        columns that it does not find, or an unperturbed response that it is not for; public records outside the
        support, a start outside the space, too few records, or an argument out of range.

    Notes
    -----
    Standard errors are those of the sandwich formula ([Huber67]; [LCQ] Theorem 5.3), with the curvature of a smooth
    version of a loss that has kinks; `MEstimate.bootstrap` makes others.
    """
    said: dict[str, Any] = {} if support is _DEFAULT else {"support": support}
    said |= {name: value for name, value in (("draws", draws), ("cuts", cuts)) if value is not None}
    chosen = correction(method, **said)
    if not is_integer(starts) or starts < 1:
        raise ValueError(f"starts must be a positive integer, got {starts!r}")
    if space is not None and not isinstance(space, (Box, Ball)):
        raise TypeError(f"space must be a Box or a Ball, got {type(space).__name__}")
    with jax.enable_x64(True):
        records = records_of(release, chosen)
        given = parametrised(loss, start, records)
        check_space(space, given.start, start)
        found = examined(given, records, chosen)
        place = placed(found, records, given.start, space, given=start is not None)
        estimator = Estimator(found.loss, records.mechanism, chosen, place.space, found.everywhere, place.units)
        return Solver(estimator, given.unravel, int(starts)).solve(records, place.start, seed)
