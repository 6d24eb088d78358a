"""The bootstrap for local releases: M-estimates, with a simulator of original records."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._pytree import pytree, static
from ldpbayes.bootstrap._local import values_of
from ldpbayes.bootstrap._private_estimator import Estimated, PrivateEstimator
from ldpbayes.data import Release
from ldpbayes.estimation import m_estimate
from ldpbayes.estimation._estimator import Estimator

__all__ = ["MEstimator", "m_estimator"]


@pytree
@dataclasses.dataclass(frozen=True)
class MEstimator(PrivateEstimator):
    """An M-estimator from a release, with a simulator of original records.

    Most make it with `m_estimator`.

    Parameters
    ----------
    estimator : Estimator
        Of `ldpbayes.estimation`, compiled for a release of its kind.
    start : array (p,)
        Where minimisations start.
    key : jax.Array
        A JAX random key: of the analyst's own noise for the release itself. Replicates draw theirs anew.
    count : int
        Number of records.
    simulator : callable
        From a random key and parameters, in the form of the loss, to original records.
    unravel : callable
        From a flat parameter to the form in which the loss takes it.
    """

    estimator: Estimator
    start: Any
    key: Any
    count: int = static()
    simulator: Callable[[Any, Any], Any] = static()
    unravel: Callable[[Any], Any] = static()

    def randomize(self, key: Any, data: Any) -> tuple[jax.Array, jax.Array]:
        """See `PrivateEstimator.randomize`: released records, and a key of the analyst's own noise.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        data : array (n, *event)
            Original records.
        """
        noise, own = jax.random.split(key)
        return self._rows(self.estimator.mechanism.simulate(noise, data)), own

    def estimate(self, released: Any) -> Estimated:
        """See `PrivateEstimator.estimate`; standard errors are those of the sandwich formula.

        ``outside`` says that the minimisation has not converged, or ended on the boundary of the parameter space.
        """
        rows, key = released
        fit = self.estimator(key, rows, self.start)
        error = jnp.sqrt(jnp.diagonal(fit.covariance))
        return Estimated(self.unravel(fit.theta), error, ~fit.converged | jnp.any(fit.boundary))

    def replicate(self, key: Any, params: Any) -> tuple[jax.Array, jax.Array]:
        """See `PrivateEstimator.replicate`."""
        keys = jax.random.split(key)
        return self.randomize(keys[1], self.simulator(keys[0], params))

    def nearest(self, target: Any) -> Any:
        """See `PrivateEstimator.nearest`: in the space."""
        return self.params(self.free(target), target)

    def params(self, free: jax.Array, like: Any) -> Any:
        """See `PrivateEstimator.params`: in the space."""
        return self.unravel(self.estimator.space.project(free))

    def released(self, release: Any) -> tuple[jax.Array, jax.Array]:
        """See `PrivateEstimator.released`: the records of a release of the same mechanism, and the analyst's key."""
        return self._rows(values_of(release, self.estimator.mechanism, self.count)), self.key

    def _rows(self, values: Any) -> jax.Array:
        values = jnp.asarray(values, float)
        return values if values.ndim == 2 else values[:, None]

    @property
    def privacy(self) -> str:
        """See `PrivateEstimator.privacy`."""
        return self.estimator.mechanism.guarantee.statement()


def m_estimator(
    loss: Any,
    release: Release,
    method: Any = "combined",
    *,
    simulator: Callable[[Any, Any], Any],
    seed: int = 0,
    **options: Any,
) -> MEstimator:
    """Private estimator of a release: an M-estimate, with a simulator of original records.

    ``parametric_bootstrap(m_estimator(loss, release, simulator=simulator), release)`` gives its intervals. A loss alone
    does not say how records are drawn; `MEstimate.bootstrap` weights records instead, and needs no simulator.

    Parameters
    ----------
    loss : Loss or callable
        As for `ldpbayes.m_estimate`.
    release : Release
        What was released, from a mechanism whose noise the method is for.
    method : str or Correction
        As for `ldpbayes.m_estimate`.
    simulator : callable
        A JAX function (key, parameters) → original records, of the shape of the release. Their law is to have the
        parameters as its minimum of the mean loss.
    seed : int
        For the analyst's own noise on the release.
    **options
        Others of `ldpbayes.m_estimate`.

    Returns
    -------
    MEstimator

    Raises
    ------
    TypeError, ValueError
        For the reasons of `ldpbayes.m_estimate`; or if the simulator's records are not of the release's shape.
    """
    if not callable(simulator):
        raise TypeError(f"simulator must be a function (key, parameters) -> records, got {simulator!r}")
    result = m_estimate(loss, release, method, seed=seed, **options)
    with jax.enable_x64(True):
        solver = result._solver
        unravel = jnp.asarray if solver.unravel is np.asarray else solver.unravel  # the first takes no tracer
        shape = np.shape(release.values)
        try:
            made = jax.eval_shape(simulator, jax.random.key(0), unravel(jnp.asarray(result.params)))
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"simulator does not fit the parameters of the loss: {error}") from error
        if np.shape(made) != shape:
            raise ValueError(f"simulator returns records of shape {np.shape(made)}, the release has {shape}")
        key = jax.random.split(jax.random.key(seed))[0]  # as `m_estimate` has it
        start = jnp.asarray(result.params)
        return MEstimator(solver.estimator.settled, start, key, shape[0], simulator, unravel)
