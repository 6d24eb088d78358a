"""An M-estimator as a pure function of a random key and released records, to be compiled, mapped and vmapped."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes.estimation.corrected import Corrected, controls, corrected
from ldpbayes.estimation.loss import Loss
from ldpbayes.estimation.sandwich import project_out, sandwich
from ldpbayes.estimation.solve import TOLERANCE, Minimum, minimise
from ldpbayes.mechanisms import RowMechanism

__all__ = ["Estimator", "Evidence", "Fit"]

WIDTHS = (1.0, 0.5, 0.25, 0.12, 0.06)
LEAST_SPREAD = 0.1  # of the released residuals': what is estimated to be less is taken for an accident


class Evidence(NamedTuple):
    """What a release says of the parameters: corrected losses, the first one to be minimised, and mean-zero functions.

    Evidence of two batches of records adds up: their records are put one after the other.

    Attributes
    ----------
    criteria : tuple of Corrected
    controls : array (N, q)
    """

    criteria: tuple[Corrected, ...]
    controls: Any

    def joined(self, other: "Evidence") -> "Evidence":
        """The evidence of both batches of records."""
        criteria = tuple(a + b for a, b in zip(self.criteria, other.criteria, strict=True))
        return Evidence(criteria, jnp.concatenate([self.controls, other.controls]))

    def weighted(self, weights: jax.Array) -> "Evidence":
        """The same with weights of records."""
        return Evidence(tuple(c.weighted(weights) for c in self.criteria), self.controls * weights[:, None])


class Fit(NamedTuple):
    """Estimate, its covariance, and how the minimisation ended; see `Minimum`."""

    theta: Any
    covariance: Any
    value: Any
    converged: Any
    iterations: Any
    boundary: Any


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("mechanism", "space", "support", "units"),
    meta_fields=("loss", "method", "draws", "cuts", "everywhere"),
)
@dataclasses.dataclass(frozen=True)
class Estimator:
    """An M-estimator for a loss and a mechanism.

    It is a pytree, so that a compiled function of an estimator serves all mechanisms and spaces of a kind.

    Parameters
    ----------
    loss : Loss
    mechanism : RowMechanism
    method : str
        As in `m_estimate`.
    space : Box or Ball
    draws : int or "exact"
    support : (array, array), optional
    cuts : tuple of float
        As in `m_estimate`.
    everywhere : bool
        Whether the loss is finite outside the support too, so that ``combined`` may look at it there.
    units : array (p,), optional
        Units of the parameters, for a user's loss with kinks in them; see `natural_units`.
    """

    loss: Loss
    mechanism: RowMechanism
    method: str
    space: Any
    draws: Any = 1
    support: Any = None
    cuts: tuple = ()
    everywhere: bool = True
    units: Any = None

    def __call__(self, key: Any, rows: Any, start: Any) -> Fit:
        """Estimate from released (for ``oracle``, original) records; traceable.

        Parameters
        ----------
        key : jax.Array
            A JAX random key, for the analyst's own noise.
        rows : array (N, columns)
        start : array (p,)

        Returns
        -------
        Fit
        """
        return self.fit(self.evidence(key, rows), start)

    def evidence(self, key: Any, rows: Any) -> Evidence:
        """What the records say of the parameters; see `__call__`."""
        rows = jnp.asarray(rows)

        def make(method, key, support=None):
            return corrected(method, self.mechanism, rows, key, draws=self.draws, support=support, cuts=self.cuts)

        nothing = jnp.zeros((len(rows), 0), rows.dtype)
        if self.method != "combined":
            return Evidence((make(self.method, key, self.support if self.method == "dr" else None),), nothing)
        keys = jax.random.split(key)
        # where the loss is smooth, sdr, dr and sl of the same draws are on one line: two of them say all
        methods = ("sdr", "dr") if self.loss.smooth else ("dr",)
        whole = [make(method, keys[0]) for method in methods if self.everywhere]
        if self.support is None:
            return Evidence(tuple(whole), nothing)
        return Evidence((make("dr", keys[1], self.support), *whole), controls(self.mechanism, rows, self.support))

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

        def follow(theta, width):
            loss = self.loss.smoothed(width * unit)
            found = self._minimised(lambda at: criterion.derivatives(loss, at, self.index), theta, width)
            return found.theta, found

        # a blurred loss is only followed from nearby: far away it may have lost what the start stands for
        widths = WIDTHS if self.loss.settles else WIDTHS[-1:]
        widths = jnp.asarray((*widths, self._narrow(criterion.count)), start.dtype)
        found = jax.lax.scan(follow, start, widths)[1]
        last = jax.tree.map(lambda leaf: leaf[-1], found)
        return last._replace(iterations=jnp.sum(found.iterations))

    def _minimised(self, derivatives, start, width):
        tolerance = TOLERANCE if self.loss.settles else 0.3 * width
        return minimise(derivatives, start, self.space, tolerance=tolerance, units=self.units)

    def _unit(self, criterion):
        return self.loss.width(criterion.loss.rows[0]) if self.units is None else self.units

    @staticmethod
    def _narrow(count):
        """Width, in units, at which smoothing costs nothing to first order."""
        return 0.5 * count**-0.4

    def _narrowed(self, criterion):
        """The loss as it is minimised."""
        unit = self._unit(criterion)
        return self.loss if unit is None else self.loss.smoothed(self._narrow(criterion.count) * unit)

    def _curved(self, criterion, theta):
        """The loss as its curvature is estimated: rounded off over the width at which a density is estimated best."""
        unit = self._unit(criterion)
        if unit is None:
            return self.loss
        # Silverman's rule for a logistic kernel, and records that show where they were
        shown = 1.0 if self.method == "naive" else jnp.mean(self.mechanism.unperturbed)
        wide = 1.06 * np.sqrt(3) / np.pi * (criterion.count * shown) ** -0.2
        if self.loss.value_of_normal is not None and self.support is not None:
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
                f"{self.method!r}: more than {spent} are needed, and many more for errors to be trusted"
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

    def _combine(self, evidence, found, spent):
        """Two-step GMM: the first criterion's score less its projection on everything that has mean zero.

        All scores are unbiased for the same one, so their differences have mean zero at every parameter. Taken at a
        first estimate, the projection is a constant: the first criterion is tilted by it and minimised again, twice.
        """
        base, *others = evidence.criteria
        narrow = self._narrowed(base)

        def residual(theta):
            score = base.scores(self.loss, theta, self.index)
            nuisance = [c.scores(self.loss, theta, self.index) - score for c in others] + [evidence.controls]
            nuisance = jnp.concatenate(nuisance, axis=1)
            coefficients = project_out(score, nuisance)
            return jnp.mean(nuisance, axis=0) @ coefficients, score - nuisance @ coefficients

        def reweigh(theta, _):
            tilt, _ = residual(theta)

            def derivatives(at):
                value, slope, hessian = base.derivatives(narrow, at, self.index)
                return value - tilt @ at, slope - tilt, hessian

            ahead = self._minimised(derivatives, theta, self._narrow(base.count))
            return ahead.theta, ahead

        _, path = jax.lax.scan(reweigh, found.theta, None, length=2)
        theta = _between(found.theta, *path.theta, jnp.abs(jnp.diagonal(found.hessian)))
        _, scores = residual(theta)
        boundary = self.space.boundary(theta)
        curvature = base.derivatives(self._curved(base, theta), theta, self.index)[2]
        covariance = sandwich(curvature, scores, ~boundary, spent=spent)
        iterations = found.iterations + jnp.sum(path.iterations)
        converged = found.converged & jnp.all(path.converged)
        return Fit(theta, covariance, path.value[-1], converged, iterations, boundary)


def _between(first, second, third, metric):
    """The fixed point of a map that takes the first point to the second and that to the third, if it turns back.

    The map is nearly linear. Where few records lie in the support it may overshoot by more each time; its fixed point
    then is between the last two points (Anderson's mixing of depth one). Else the third point is as good.
    """
    step = third - second
    turn = step - (second - first)
    size = jnp.sum(metric * turn**2)
    share = jnp.sum(metric * step * turn) / jnp.where(size > 0, size, 1.0)
    return third - jnp.clip(share, 0.0, 1.0) * step
