"""What released labels say of the labels before anything is fitted: where fits start, and in which units."""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["label_range", "label_spread", "plausible_labels"]


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


def label_range(mechanism: Any) -> tuple[Any, Any] | None:
    """Bounds of labels, the widest of all of them; None where there are none.

    Parameters
    ----------
    mechanism : Mechanism
        What released them.
    """
    domain = mechanism.domain
    if not (hasattr(domain, "lower_bound") and hasattr(domain, "upper_bound")):
        return None
    return jnp.min(domain.lower_bound), jnp.max(domain.upper_bound)


def label_spread(values: Any, mechanism: Any) -> jax.Array:
    """A plausible scale of labels: a sixth of what lies between their bounds, else the released values' deviation.

    Parameters
    ----------
    values : array (n,)
        Released labels.
    mechanism : Mechanism
        What released them.
    """
    bounds = label_range(mechanism)
    if bounds is not None:
        return (bounds[1] - bounds[0]) / 6
    deviation = jnp.std(plausible_labels(jnp.asarray(values, float), mechanism))
    return jnp.where(deviation > 0, deviation, 1.0)
