"""An M-estimator as a pure function of a random key and released records, to be compiled, mapped and vmapped."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._pytree import pytree, static
from ldpbayes.estimation._sandwich import project_out, sandwich
from ldpbayes.estimation._solve import TOLERANCE, Ball, Box, Minimum, minimise
from ldpbayes.estimation.corrections import Corrected, Correction, Evidence
from ldpbayes.estimation.corrections._table import check_noise
from ldpbayes.estimation.losses._loss import Derivatives, Loss
from ldpbayes.mechanisms import Additive

__all__ = ["Estimator", "Fit"]

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
