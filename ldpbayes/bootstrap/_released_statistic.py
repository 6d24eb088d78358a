"""What private estimators share whose release is one noisy statistic of all records."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes.bootstrap._private_estimator import PrivateEstimator
from ldpbayes.data import Release
from ldpbayes.mechanisms._additive import Additive

__all__ = ["OfReleasedStatistic", "check_additive"]


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
