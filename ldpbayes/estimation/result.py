"""What an M-estimation returns: estimates, errors, a table, and how to go on from there."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.estimation.sandwich import normal_interval

__all__ = ["EstimationWarning", "MEstimate"]


class EstimationWarning(LdpBayesWarning):
    """An estimate that should not be used as it is; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class MEstimate:
    """An M-estimate with its covariance, for sampling and perturbation together.

    Attributes
    ----------
    method : str
    estimate : float, array or pytree
        In the form of the start.
    params : array (p,)
        The same, flat.
    covariance : array (p, p)
        NaN for parameters on the boundary.
    names : list of str
    count : int
        Number of records.
    space : Box or Ball
    converged : bool
    iterations : int
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
    names: list
    count: int
    space: Any
    converged: bool
    iterations: int
    boundary: np.ndarray
    minima: list
    _problem: Any = dataclasses.field(repr=False, default=None)
    _evidence: Any = dataclasses.field(repr=False, default=None)

    @property
    def standard_error(self):
        """Standard errors, shape (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    def interval(self, level=0.95):
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

    def summary(self, level=0.95):
        """Return a table of the estimates in plain text, like those of statsmodels."""
        low, high = self.interval(level)
        tail = f"{(1 - level) / 2:.3g}", f"{(1 + level) / 2:.3g}"
        width = max(len("parameter"), *map(len, self.names))
        head = (
            f"{'':{width}} {'coef':>10} {'std err':>10} {'z':>8} {'P>|z|':>7} {'[' + tail[0]:>10} {tail[1] + ']':>10}"
        )
        lines = [
            f"M-estimate, method {self.method!r}, {self.count} records" + ("" if self.converged else ", NOT CONVERGED"),
            "=" * len(head),
            head,
            "-" * len(head),
        ]
        for name, coef, error, lower, upper, edge in zip(
            self.names, self.params, self.standard_error, low, high, self.boundary, strict=True
        ):
            z = coef / error
            p = 2 * stats.norm.sf(abs(z))
            numbers = f"{coef:10.4f} {error:10.4f} {z:8.3f} {p:7.3f} {lower:10.4f} {upper:10.4f}"
            lines.append(f"{name:{width}} {numbers}" + ("  on the boundary" if edge else ""))
        return "\n".join([*lines, "=" * len(head)])

    def update(self, release, *, seed=1):
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
        problem = self._problem.with_release(release, seed)
        with jax.enable_x64(True):
            return problem.solve(self._evidence, self.params)

    def bootstrap(self, replicates=200, *, seed=0, batch=8):
        """Covariance from the bootstrap with exponential weights of records (Rubin 1981; Chatterjee & Bose 2005).

        Every replicate starts from the estimate and uses the same draws of the analyst's own noise.

        Parameters
        ----------
        replicates : int
        seed : int
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
        if not isinstance(replicates, (int, np.integer)) or replicates < 2:
            raise ValueError(f"replicates must be an integer of at least 2, got {replicates!r}")
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.key(seed), int(replicates))
            thetas = np.asarray(_reweighted(self._problem.estimator, keys, self._evidence, self.params, batch))
        return dataclasses.replace(self, covariance=np.atleast_2d(np.cov(thetas, rowvar=False)))


@functools.partial(jax.jit, static_argnames="batch")
def _reweighted(estimator, keys, evidence, start, batch):
    """Estimates with random weights of records, one a key."""

    def one(key):
        weights = jax.random.exponential(key, (evidence.criteria[0].count,))
        return estimator.fit(evidence.weighted(weights / jnp.mean(weights)), start).theta

    return jax.lax.map(one, keys, batch_size=batch)
