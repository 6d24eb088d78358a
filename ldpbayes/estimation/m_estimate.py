"""`m_estimate`: minimise a loss over a population whose records are only seen through Laplace noise."""

import copy
import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes.estimation import losses
from ldpbayes.estimation.arguments import checked_cuts, checked_draws, checked_support, records_of, supported
from ldpbayes.estimation.corrected import Deconvolved
from ldpbayes.estimation.differentiable import has_kinks
from ldpbayes.estimation.estimator import Estimator, Evidence
from ldpbayes.estimation.function_loss import as_loss
from ldpbayes.estimation.loss import Loss
from ldpbayes.estimation.regression_loss import RegressionLoss
from ldpbayes.estimation.result import EstimationWarning, MEstimate
from ldpbayes.estimation.solve import Ball, Box
from ldpbayes.estimation.units import natural_units

__all__ = ["m_estimate"]

METHODS = ("combined", "dr", "sdr", "sl", "independent", "naive", "oracle")
APART = 1e-3  # of the parameters' units: minima nearer than that are the same
PROBES = 256
ROUNDS = 6  # of the naive estimate and the units there


def m_estimate(
    loss,
    release,
    method="combined",
    *,
    start=None,
    space=None,
    support="bounds",
    draws=None,
    cuts=(),
    starts=1,
    seed=0,
):
    """Estimate the parameter that minimises the mean loss of the original records, from released ones.

    Parameters
    ----------
    loss : Loss or callable
        One of `ldpbayes.estimation.losses`, or any JAX function loss(x, theta) of one record: a number, or a row with
        the columns of the release, perturbed or not.
    release : Release
        From a zero-inflated, symmetric or independent Laplace mechanism. For ``oracle`` an array of original records.
    method : str
        - ``combined``: the asymptotically best linear combination of all scores below that apply, and of what the
          support says (two-step GMM, Hansen 1982); the default for zero-inflated noise.
        - ``dr``, ``sdr``, ``sl``: the corrected losses of Lu, Chen & Qiu (see `ldpbayes.estimation.corrected`); with
          ``draws=1`` and ``support=None`` as the paper defines them. ``sdr`` and ``sl`` need a smooth loss: two
          derivatives in the perturbed columns and two more in the parameters, of which only the last may jump.
        - ``independent``: the corrected loss for independent Laplace noise (preprint, eq. 4.9), which needs two
          derivatives in each perturbed column, and two in the parameters.
        - ``naive``: the loss of the released records, as if they were the original ones; biased.
        - ``oracle``: the loss of original records, for studies.
    start : array or pytree, optional
        Where to start, in the form in which the loss takes its parameter. Losses of a linear predictor start from the
        naive estimate, and so does a loss with kinks in the parameter, from the one that is found from here.
    space : Box or Ball, optional
        The compact set of parameters. By default a box around the naive estimate, ten times as wide on either side as
        one plus its size and the parameter's unit (`ldpbayes.estimation.units`).
    support : "bounds", (lower, upper) or None
        Where the original records are known to lie, in the perturbed columns: between the mechanism's bounds, by
        default. For ``dr``, which then never looks at the loss elsewhere, and ``combined``, which does so only where
        the loss is finite there.
    draws : int or "exact", optional
        Draws of the analyst's own noise to average over, a record: 16 by default. "exact" integrates instead, for one
        perturbed column.
    cuts : sequence of float
        Kinks of the loss in the perturbed column, where ``draws="exact"`` is to cut its integrals.
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
        If ``release`` is not a release or ``loss`` not a function.
    ValueError
        For a method that the mechanism or the loss does not admit, a loss that is not a finite number at the start,
        columns that it does not find, or an unperturbed response that it is not for; public records outside the
        support, a start outside the space, too few records, or an argument out of range.

    Notes
    -----
    Standard errors are those of the sandwich formula (`ldpbayes.estimation.sandwich`), with the curvature of a smooth
    version of a loss that has kinks; `MEstimate.bootstrap` makes others.
    """
    problem = _Problem(loss, release, method, start, space, support, draws, cuts, starts, seed)
    with jax.enable_x64(True):
        return problem.solve()


class _Problem:
    """The arguments of `m_estimate`, checked, and what follows from them."""

    def __init__(self, loss, release, method, start, space, support, draws, cuts, starts, seed):
        self.method, self.seed, self.starts = method, seed, starts
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if isinstance(starts, bool) or not isinstance(starts, (int, np.integer)) or starts < 1:
            raise ValueError(f"starts must be a positive integer, got {starts!r}")
        if space is not None and not isinstance(space, (Box, Ball)):
            raise TypeError(f"space must be a Box or a Ball, got {type(space).__name__}")
        self.mechanism, rows, self.scalar = records_of(release, method)
        self.draws = checked_draws(draws, method, self.mechanism)
        self.given_support = support
        self.support = checked_support(support, self.mechanism, method)
        self.cuts = checked_cuts(cuts)
        self.rows = supported(rows, self.mechanism, self.support)
        self.user_loss = loss
        self.loss, self.start, self.unravel = self._parametrised(loss, start)
        self.space, self.units = space, None
        with jax.enable_x64(True):
            self._check_space(start)
            units, rough = self._check_loss(self.start)
            if space is None or start is None or rough:
                naive, units = self._naive_estimate(units, rough)
                self.space = space or _around(naive, self.start, units)
                # a loss that is rounded off is only seen from nearby
                self.start = naive if start is None or rough else self.start
                self.units = units if rough else None
        self.estimator = self._estimator()

    def _check_space(self, start):
        if self.space is None:
            return
        size = len(self.start)
        if self.space.shape not in ((), (1,), (size,)):
            raise ValueError(f"space is for {self.space.shape[0]} parameters, and this loss has {size}")
        if start is not None:
            moved = np.abs(np.asarray(self.space.project(jnp.asarray(self.start))) - self.start)
            if np.any(moved > 1e-9 * (1 + np.abs(self.start))):
                raise ValueError(f"start lies outside the space: {start!r}")

    def _parametrised(self, loss, start):
        """The loss as one of a flat parameter, the flat start, and how to give a flat parameter its form."""
        if isinstance(loss, Loss):
            loss = loss.of(self.mechanism.names)
            loss.check(self.rows, self.mechanism.index)
            count = len(loss.names(self.mechanism.names))
            flat = np.zeros(count) if start is None else np.asarray(start, float)
            if flat.shape != (count,):
                raise ValueError(f"start must be an array of {count} parameters, got shape {flat.shape}")
            return loss, flat, np.asarray
        if not callable(loss):
            raise TypeError(f"loss must be a function loss(x, theta) of one record, got {type(loss).__name__}")
        if getattr(loss, "__module__", None) == losses.__name__:
            raise TypeError(f"losses.{loss.__name__} makes a loss: call it, losses.{loss.__name__}(...)")
        if start is None:
            raise ValueError("start is needed: it says which form the parameter of this loss has")
        with jax.enable_x64(True):
            flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start))
        if not flat.size or not bool(jnp.all(jnp.isfinite(flat))):
            raise ValueError(f"start must hold finite numbers, got {start!r}")
        return as_loss(loss, scalar=self.scalar, unravel=unravel), np.asarray(flat), unravel

    def _check_loss(self, start):
        """Units of the parameters at the start, and whether the loss is to be rounded off; what it is otherwise."""
        if not isinstance(self.user_loss, Loss):
            row = jnp.asarray(self.rows[0, 0] if self.scalar else self.rows[0])
            result = jax.eval_shape(self.user_loss, row, self.unravel(jnp.asarray(start)))
            try:  # NumPy refuses an index that JAX would move into the row
                self.user_loss(np.asarray(row), self.unravel(np.asarray(start)))
            except IndexError as error:
                raise ValueError(f"the loss asks for what a record does not have: {error}") from error
            except Exception:  # not written for NumPy's arrays
                pass
            if getattr(result, "shape", None) != ():
                shown = getattr(result, "shape", type(result).__name__)
                raise ValueError(f"loss(x, theta) of one record must be a number, got an array of shape {shown}")
        # whether the loss is finite at released values, and at some as far out again
        centre = self.rows.mean(axis=0)
        far = np.concatenate([self.rows, centre + 3 * (self.rows - centre)])
        found = _losses(self.loss, np.concatenate([self._inside(self.rows), far]), start)
        self._check_values(found[: len(self.rows)], bounded=self.support is not None)
        self.everywhere = bool(np.isfinite(found[len(self.rows) :]).all())
        units = np.asarray(natural_units(self.loss, jnp.asarray(self._sample()), jnp.asarray(start)))
        if self.method not in ("naive", "oracle", "dr"):
            self._check_smooth(start, units)
        rough = not isinstance(self.user_loss, Loss) and not self.loss.smooth and self._rough(start, units)
        if rough:
            self.loss = dataclasses.replace(self.loss, rough=True)
        return units, rough

    def _check_smooth(self, start, units):
        """Find out whether the loss has the derivatives that Laplacians need, where it does not say."""
        # two in the parameters, and two in the perturbed columns: in each of them for independent noise
        there = 2 * self.mechanism.dimension if self.method == "independent" else 2
        if self.loss.smooth is None:
            smooth = not has_kinks(self.loss, *self._lines(start, units, self.everywhere), there + 2)
            if isinstance(self.loss, RegressionLoss) or not isinstance(self.user_loss, Loss):
                self.loss = dataclasses.replace(self.loss, smooth=smooth)
        else:
            smooth = self.loss.smooth
        if not smooth and self.method != "combined":
            rounded = isinstance(self.loss, RegressionLoss) and self.loss.smooth_kernel is not None
            raise ValueError(
                f"method {self.method!r} needs {there + 2} derivatives of the loss, {there} in the perturbed columns "
                "and 2 in the parameters, and this loss, or a derivative of it below the last, has kinks or jumps "
                "there, so that its corrected version would be biased; use 'combined' or 'dr'"
                + (", or round them off with loss.smoothed(width)" if rounded else "")
            )

    def _check_values(self, values, bounded):
        """Losses of the records at the start, brought into the support or not, must be finite."""
        if not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values))
            where = ", brought into the support," if bounded else ""
            raise ValueError(
                f"the loss must be finite, but at the start it is {values[bad[0]]} for record {bad[0]}{where} "
                f"and for {len(bad) - 1} others: {self.rows[bad[0]]}"
            )

    def _sample(self):
        """Some of the records, in the support."""
        return self._inside(self.rows[np.random.default_rng(1).integers(len(self.rows), size=PROBES)])

    def _lines(self, start, units, everywhere):
        """Both ends of lines along which records, in their perturbed columns, and parameters change."""
        rng = np.random.default_rng(0)
        rows = self.rows[rng.integers(len(self.rows), size=(2, PROBES))]
        others = [j for j in range(self.rows.shape[1]) if j not in self.mechanism.index]
        rows[1][:, others] = rows[0][:, others]
        thetas = start + units * rng.normal(size=(2, PROBES, len(start)))
        return rows if everywhere else self._inside(rows), thetas

    def _rough(self, start, units):
        """Whether the loss has kinks in the parameter."""
        rows, thetas = self._lines(start, units, everywhere=False)
        return has_kinks(self.loss, rows[[0, 0]], thetas, 2)

    def _inside(self, rows):
        if self.support is None:
            return rows
        rows = np.array(rows, float)
        index = list(self.mechanism.index)
        rows[..., index] = np.clip(rows[..., index], *self.support)
        return rows

    def _estimator(self):
        loss, method = self.loss, self.method
        if method == "independent":
            loss, method = Deconvolved(loss, self.mechanism.index, float(self.mechanism.scale)), "naive"
        options = (self.draws, self.support, self.cuts, self.everywhere)
        return Estimator(loss, self.mechanism, method, self.space, *options, self.units)

    def _naive_estimate(self, units, rough):
        """The minimiser of the loss at face value, in a space so wide that it only keeps numbers finite, and units."""
        rows = jnp.asarray(self.rows if self.method == "oracle" else self._inside(self.rows))
        sample, naive = jnp.asarray(self._sample()), jnp.asarray(self.start)
        reach = 1e4 * (1 + units + np.abs(self.start))
        space = self.space or Box(self.start - reach, self.start + reach)
        for _ in range(ROUNDS):
            # of what the naive method does not look at, nothing: so methods and draws share what is compiled
            estimator = Estimator(self.loss, self.mechanism, "naive", space, units=units if rough else None)
            naive, before = _minimum(estimator, rows, naive), units
            units = np.asarray(natural_units(self.loss, sample, naive))
            # a loss that was rounded off over too much is minimised once more
            if not rough or np.all(np.abs(np.log2(units / before)) < 1):
                break
        return np.asarray(naive), units

    def with_release(self, release, seed):
        """The same problem for another batch of records."""
        other = copy.copy(self)
        mechanism, rows, _ = records_of(release, self.method)
        kinds = [(type(m), m.event_shape, m.index) for m in (mechanism, self.mechanism)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"an update needs records of a mechanism like {self.mechanism}, got {mechanism}")
        if mechanism.names != self.mechanism.names:
            raise ValueError(
                f"an update needs records with the columns {', '.join(self.mechanism.names)}, in this order, got "
                + ", ".join(mechanism.names)
            )
        other.mechanism, other.seed = mechanism, seed
        other.support = checked_support(self.given_support, mechanism, self.method)
        other.rows = supported(rows, mechanism, other.support)
        self.loss.check(other.rows, mechanism.index)
        with jax.enable_x64(True):
            bounded = other.support is not None and not (self.method == "combined" and self.everywhere)
            rows = other._inside(other.rows) if bounded else other.rows
            other._check_values(_losses(self.loss, rows, self.start), bounded)
        other.estimator = other._estimator()
        return other

    def solve(self, earlier: Evidence | None = None, start=None):
        """Run the minimisation from every start; `earlier` is evidence to add this problem's records to."""
        estimator, keys = self.estimator, jax.random.split(jax.random.key(self.seed))
        start = jnp.asarray(self.start if start is None else start)
        others = self.space.sample(keys[1], (self.starts - 1,), len(start), start.dtype)

        starts = jnp.concatenate([start[None], others])
        evidence, ends, fit = _run(estimator, keys[0], jnp.asarray(self.rows), starts, earlier)
        params = np.asarray(fit.theta)
        names = self._names(params)
        result = MEstimate(
            self.method,
            jax.tree.map(np.asarray, self.unravel(fit.theta)),
            params,
            np.asarray(fit.covariance),
            names,
            int(evidence.criteria[0].count),
            self.space,
            bool(fit.converged),
            int(fit.iterations),
            np.asarray(fit.boundary),
            _distinct(ends, self.units),
            self,
            evidence,
        )
        _warn(result)
        return result

    def _names(self, params):
        names = self.loss.names(self.mechanism.names)
        return names or (["theta"] if params.size == 1 else [f"theta[{j}]" for j in range(params.size)])


@functools.partial(jax.jit, static_argnames="loss")
def _values(loss, rows, theta):
    return loss.values(rows, theta)


def _losses(loss, rows, theta):
    """Loss of each of some rows, on the host."""
    return np.asarray(_values(loss, jnp.asarray(rows), jnp.asarray(theta)))


@jax.jit
def _minimum(estimator, rows, start):
    """Where the criterion of an estimator that draws nothing is smallest."""
    return estimator.minimum(estimator.evidence(jax.random.key(0), rows), start).theta


@jax.jit
def _run(estimator, key, rows, starts, earlier):
    """Evidence, the minima found from each start, and the fit that follows from the lowest."""
    evidence = estimator.evidence(key, rows)
    evidence = evidence if earlier is None else earlier.joined(evidence)
    ends = jax.lax.map(lambda at: estimator.minimum(evidence, at), starts)
    lowest = jnp.argmin(jnp.where(jnp.isfinite(ends.value), ends.value, jnp.inf))
    best = jax.tree.map(lambda leaf: leaf[lowest], ends)
    return evidence, ends, estimator.finish(evidence, best)


def _around(naive, start, units):
    """The default space: a box around the naive estimate that the start is in."""
    reach = 10 * (1 + units + np.abs(naive))
    return Box(np.minimum(naive - reach, start - 1), np.maximum(naive + reach, start + 1))


def _distinct(ends, units):
    """Minima that are further apart than what they are known to, lowest first."""
    thetas, values, hessians = (np.asarray(part) for part in (ends.theta, ends.value, ends.hessian))
    minima = []
    for i in np.argsort(np.where(np.isfinite(values), values, np.inf)):
        with np.errstate(divide="ignore", invalid="ignore"):
            # what changes the criterion by its size, as far as a quadratic knows
            unit = np.sqrt(np.abs(values[i] / np.diagonal(hessians[i]))) if units is None else units
        near = APART * unit + 1e-9 * np.abs(thetas[i])
        if np.isfinite(values[i]) and all(np.any(np.abs(thetas[i] - theta) > near) for theta, _ in minima):
            minima.append((thetas[i], float(values[i])))
    return minima


def _warn(result):
    problems = []
    if not result.converged:
        problems.append(f"the minimisation has not converged in {result.iterations} iterations")
    if result.boundary.any():
        where = ", ".join(name for name, edge in zip(result.names, result.boundary, strict=True) if edge)
        problems.append(f"the estimate is on the boundary of the parameter space ({where}): no standard errors there")
    if len(result.minima) > 1:
        problems.append(f"{len(result.minima)} minima were found; the estimate is from the lowest")
    for problem in problems:
        warnings.warn(problem, EstimationWarning, stacklevel=4)
