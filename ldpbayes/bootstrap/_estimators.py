"""Private estimators: their protocol, and those of a released statistic."""

import abc
import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import special

from ldpbayes.bootstrap._result import tail_probabilities
from ldpbayes.data import Release
from ldpbayes.estimation import Estimate
from ldpbayes.estimation.estimates import table, tails
from ldpbayes.mechanisms.additive import Additive


class Estimated(NamedTuple):
    """What is estimated from a release.

    Attributes
    ----------
    params : pytree of arrays
        All parameters that a simulator needs.
    standard_error : array (p,) or None
        Of the flat `PrivateEstimator.target` of the parameters, by a formula; None where there is none.
    outside : array () of bool
        Whether the release was outside the domain of the estimator, which then did as it documents.
    """

    params: Any
    standard_error: Any
    outside: Any


class PrivateEstimator(abc.ABC):
    """An estimator of which `randomize` alone reads data; the rest is post-processing, as often as one likes.

    Subclasses are frozen dataclasses decorated with ``@ldpbayes.noise.pytree``: numbers are leaves, so that compiled
    replicates serve all of a kind.
    """

    @abc.abstractmethod
    def randomize(self, key: Any, data: Any) -> Any:
        """What is released of data: with noise, and protected by the guarantee that `privacy` states. Traceable.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        data : array (n, *event)
            Records.

        Returns
        -------
        pytree of arrays
        """

    @abc.abstractmethod
    def estimate(self, released: Any) -> Estimated:
        """Parameters from what was released. Traceable.

        Parameters
        ----------
        released : pytree of arrays
            As `randomize` returns it.
        """

    @abc.abstractmethod
    def replicate(self, key: Any, params: Any) -> Any:
        """What would be released of data that are drawn with these parameters. Traceable.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        params : pytree of arrays
            Of `Estimated.params`.

        Returns
        -------
        pytree of arrays
            As `randomize` returns it.
        """

    def target(self, params: Any) -> Any:
        """What is reported of the parameters: by default all of them.

        Parameters
        ----------
        params : pytree of arrays
            Of `Estimated.params`.
        """
        return params

    def nearest(self, target: Any) -> Any:
        """The nearest of what may be reported, to what a correction has made of it; by default anything may be.

        Parameters
        ----------
        target : pytree of arrays
            Of the form of `target`.
        """
        return target

    def free(self, params: Any) -> jax.Array:
        """Parameters as a vector in which any step is allowed; by default as they are, flat.

        Parameters
        ----------
        params : pytree of arrays
            Of `Estimated.params`.
        """
        return ravel_pytree(params)[0]

    def params(self, free: jax.Array, like: Any) -> Any:
        """Inverse of `free`.

        Parameters
        ----------
        free : array (q,)
            The vector.
        like : pytree of arrays
            Parameters of the same form.
        """
        return ravel_pytree(like)[1](free)

    def released(self, release: Any) -> Any:
        """What `estimate` takes, from what a user gives; checked.

        Parameters
        ----------
        release : Release, or pytree of arrays
            What was released of the data.

        Raises
        ------
        ValueError
            If it is not a release of this estimator.
        """
        return jax.tree.map(jax.numpy.asarray, release)

    @property
    @abc.abstractmethod
    def privacy(self) -> str:
        """What was promised to those whose records were read."""


@dataclasses.dataclass(frozen=True, eq=False)
class NormalEstimate:
    """An estimate whose intervals rest on a normal approximation; an `Estimate`.

    Attributes
    ----------
    estimate : pytree
        In the form in which the estimator has it.
    params : array (p,)
        The same, flat.
    names : list of str
        Of the p numbers.
    covariance : array (p, p)
        What the intervals rest on; whether the noise for privacy counts in it, ``title`` says.
    privacy : str
        What was promised to those whose records were read.
    title : str
        How it was made.
    """

    estimate: Any
    params: np.ndarray
    names: list[str]
    covariance: np.ndarray
    privacy: str
    title: str

    @property
    def standard_error(self) -> np.ndarray:
        """Standard errors (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    def interval(self, level: float = 0.95, *, side: str = "both") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (p,) of normal confidence intervals; infinite where an interval has one end.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.
        side : {"both", "lower", "upper"}
            Two-sided, or the one end that it has.

        Raises
        ------
        ValueError
            For another level or side.
        """
        below, above = tail_probabilities(level, side)
        size, error = len(self.params), self.standard_error
        low = self.params + special.ndtri(below) * error if below > 0 else np.full(size, -math.inf)
        high = self.params + special.ndtri(above) * error if above < 1 else np.full(size, math.inf)
        return low, high

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates in plain text.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        lower, upper = tails(level)
        head = f"{'estimate':>10} {'std err':>10} {lower:>10} {upper:>10}"
        columns = [self.params, self.standard_error, *self.interval(level)]
        rows = [(name, " ".join(f"{column[j]:10.4g}" for column in columns)) for j, name in enumerate(self.names)]
        return table(self.title, "parameter", head, rows)


_PROTOCOL: type[Estimate] = NormalEstimate  # for the type checker


def check_additive(mechanism: Any) -> None:
    """TypeError where a mechanism does not add noise to a statistic.

    Parameters
    ----------
    mechanism : Mechanism
        That is said to have made a release.
    """
    if not isinstance(mechanism, Additive):
        raise TypeError(
            "mechanism must be one that adds noise to statistics, such as LaplaceMechanism(epsilon, columns=..., "
            f"sensitivity=...), got {mechanism!r}: its releases are not sums"
        )


class OfReleasedStatistic(PrivateEstimator):
    """An estimator from a `Release` of one value, by a mechanism that has a sensitivity in place of bounds.

    Subclasses have the fields ``mechanism`` and ``count``, the public number of records.
    """

    mechanism: Additive
    count: int

    @property
    def whole(self) -> bool:
        """Whether the statistics are whole numbers, such as noise on whole numbers is for."""
        return False

    @abc.abstractmethod
    def checked(self, data: Any) -> np.ndarray:
        """Records as an array (n, *event), or ValueError.

        Parameters
        ----------
        data : array (n, *event)
            What a user gave.
        """

    def _check_mechanism(self, needed: float | None) -> None:
        """ValueError if the count is unknown, or the mechanism not one of statistics that so much can move."""
        check_additive(self.mechanism)
        if self.count is None:
            raise ValueError(
                "count is missing: the number of records is taken to be public, since estimates and replicates need "
                "it. If it is private, release it with a share of the budget and give what was released"
            )
        if self.mechanism.bounded:
            raise ValueError(
                "the mechanism of a statistic has no bounds but a sensitivity; records are clamped by the estimator"
            )
        if self.mechanism.noise.discrete and not self.whole:
            raise ValueError(
                f"the mechanism must have continuous noise: the statistics are real numbers, got {self.mechanism!r}"
            )
        if needed is None:
            return
        with jax.enable_x64(True):
            scales = np.asarray(self.mechanism.noise.over_columns(self.mechanism.noise.standard_deviation))
        if scales.shape[-1] > 1:  # a sensitivity is in units of the first column; another one may have less noise
            needed *= float(np.max(scales[..., :1] / scales))
        if self.mechanism.sensitivity < needed * (1 - 1e-12):
            raise ValueError(
                f"one record can move the statistics by {needed:g}, the mechanism's sensitivity is "
                f"{self.mechanism.sensitivity:g}"
            )

    def release(self, data: Any, *, seed: int) -> Release:
        """Read the data, and release their statistics with noise.

        For simulation and studies; see `Mechanism.randomize`.

        Parameters
        ----------
        data : array (n, *event)
            Records.
        seed : int
            Of the noise.

        Returns
        -------
        Release

        Raises
        ------
        ValueError
            If data are not what the estimator takes, or another number of records.
        """
        records = self.checked(data)
        if len(records) != self.count:
            raise ValueError(f"the estimator is for {self.count} records, got {len(records)}")
        with jax.enable_x64(True):
            value = np.asarray(self.randomize(jax.random.key(seed), records))
        return Release(value[None], self.mechanism)

    def released(self, release: Any) -> jax.Array:
        """The value of the release; see `PrivateEstimator.released`."""
        values, shape = release, self.mechanism.event_shape
        if isinstance(release, Release):
            if not release.mechanism == self.mechanism:
                raise ValueError(
                    f"the release was made by {release.mechanism!r}, the estimator is for {self.mechanism!r}: make the "
                    "estimator with the bounds, budget and count of the release"
                )
            if release.values is None:
                raise ValueError("a release without values has nothing to estimate from")
            values = release.values
        values = np.asarray(values, float)
        values = values[0] if values.shape == (1, *shape) else values
        if values.shape != shape:
            raise ValueError(
                f"a release of statistics is one value of shape {shape}, got {values.shape}: raw records are given to "
                "the estimator's release(), and never to the bootstrap"
            )
        if not np.isfinite(values).all():
            raise ValueError(f"released statistics must be finite, got {values}")
        return jnp.asarray(values)

    @property
    def privacy(self) -> str:
        """See `PrivateEstimator.privacy`."""
        return self.mechanism.guarantee.statement()
