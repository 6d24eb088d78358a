"""What an M-estimation returns: estimates, errors, a table, and how to go on from there."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from ldpbayes._checks import at_least
from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.data._release import Release
from ldpbayes.estimation._estimate import Contrast, Estimate, Shown, contrast, in_line, table, tails, variances_under
from ldpbayes.estimation._estimator import Estimator
from ldpbayes.estimation._sandwich import normal_interval
from ldpbayes.estimation._solve import Ball, Box
from ldpbayes.estimation.corrections import Evidence
from ldpbayes.mechanisms._statements import statements

if TYPE_CHECKING:
    from ldpbayes.estimation._solver import Solver

__all__ = ["EstimationWarning", "MEstimate"]


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
