"""What released labels say of the labels before anything is fitted: where fits start, and in which units."""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["label_spread", "plausible_labels"]


def plausible_labels(values: Any, mechanism: Any) -> Any:
    """Labels to start from, shape (n,): unbiased ones where the mechanism has some, else the released values.

    Parameters
    ----------
    values : array (n,)
        Released labels.
    mechanism : Mechanism
        What released them.
    """
    try:
        return mechanism.unbiased(values)
    except ValueError:
        return values


def label_spread(values: Any, mechanism: Any) -> jax.Array:
    """A plausible scale of labels: a sixth of what lies between their bounds, else the released values' deviation.

    Parameters
    ----------
    values : array (n,)
        Released labels.
    mechanism : Mechanism
        What released them.
    """
    domain = mechanism.domain
    if hasattr(domain, "lower_bound") and hasattr(domain, "upper_bound"):
        return (jnp.max(domain.upper_bound) - jnp.min(domain.lower_bound)) / 6
    deviation = jnp.std(plausible_labels(jnp.asarray(values, float), mechanism))
    return jnp.where(deviation > 0, deviation, 1.0)
