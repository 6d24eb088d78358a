"""What estimators of local releases share: the values of a release, looked at."""

from typing import Any

import jax
import jax.numpy as jnp

from ldpbayes.data import Release
from ldpbayes.mechanisms import Mechanism

__all__ = ["values_of"]


def values_of(release: Any, mechanism: Mechanism, count: int) -> jax.Array:
    """The values (n, *event) of a release that an estimator was made for.

    Parameters
    ----------
    release : Release
        What a user gave.
    mechanism : Mechanism
        That is said to have made it.
    count : int
        How many records it is said to have.

    Raises
    ------
    ValueError
        If it is no release, one of another mechanism or number of records, or one without values.
    """
    if not isinstance(release, Release):
        raise ValueError(f"the estimator is for a Release, got {type(release).__name__}")
    if release.values is None:
        raise ValueError("a release without values has nothing to estimate from")
    if not release.mechanism == mechanism or release.count != count:
        raise ValueError(
            f"the release has {release.count} records by {release.mechanism!r}, the estimator is for {count} by "
            f"{mechanism!r}: make the estimator with this release"
        )
    return jnp.asarray(release.values)
