"""One mechanism of the records of several."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._mechanism import Mechanism

__all__ = ["joined_mechanism"]


def joined_mechanism(mechanisms: Sequence[Mechanism], counts: Sequence[int] | None = None) -> Mechanism:
    """One mechanism of the records of several, whose tree structures are equal.

    Parameters
    ----------
    mechanisms : sequence of Mechanism
        Of one kind, in the order of their records.
    counts : sequence of int, optional
        How many records each of them is of. Default: one.

    Returns
    -------
    Mechanism
        Parameters that are one number for all stay one, and arrays over bins, which all must have in common, one array.

    Raises
    ------
    ValueError
        If arrays over bins differ.
    """

    def join(path: tuple, *leaves: Any) -> Any:
        first, known = leaves[0], is_concrete(leaves)
        if np.ndim(first) and path[0].name in mechanisms[0]._shared:
            if not all(leaf is first or (known and np.array_equal(leaf, first)) for leaf in leaves):
                kind = type(mechanisms[0]).__name__
                raise ValueError(f"releases of {kind} whose {path[0].name} differ have no mechanism in common")
            return first
        if np.ndim(first) == 0 and all(leaf is first or (known and np.array_equal(leaf, first)) for leaf in leaves):
            return first
        xp: Any = np if known else jnp
        if counts is None:
            return xp.stack(leaves)
        return xp.concatenate([xp.broadcast_to(leaf, n) for leaf, n in zip(leaves, counts, strict=True)])

    return jax.tree_util.tree_map_with_path(join, *mechanisms)
