"""The law of all records of an expansion together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from ldpbayes.data import ExpandedSketch
from ldpbayes.likelihood._dispatch import is_own
from ldpbayes.likelihood.closed_forms._categorical import category_probabilities

__all__ = ["ExpandedLaw"]


class ExpandedLaw(dist.Distribution):
    """All records of an `ExpandedSketch` as one event, their number, whose log density is the expansion.

    Parameters
    ----------
    base_dist : numpyro.distributions.Distribution
        Law of a category, of batch shape ``sketch.law_shape``.
    sketch : ExpandedSketch
        What stands for the records.
    validate_args : bool, optional
        Of `numpyro.distributions.Distribution`.

    Attributes
    ----------
    theta : array (d,) or (G, d)
        Shares of the categories.
    polynomial : Polynomial
        The sketch's own.
    sketch : ExpandedSketch
        What stands for the records; lost where the law is taken apart as a pytree.

    Raises
    ------
    ValueError
        If the law is none of the mechanism's categories, or has a closed form of your own under the mechanism.
    """

    arg_constraints: dict[str, Constraint] = {}
    pytree_data_fields = ("theta", "polynomial")
    support = constraints.nonnegative

    def __init__(self, base_dist: Any, sketch: ExpandedSketch, *, validate_args: bool | None = None) -> None:
        if is_own(base_dist, sketch.mechanism):
            raise ValueError(
                f"{type(base_dist).__name__} under {type(sketch.mechanism).__name__} has a closed form of your own, "
                "and an expansion is one of ours; release.sketch(expand=False) counts released values instead"
            )
        self.theta, self.polynomial = category_probabilities(base_dist, sketch.mechanism), sketch.polynomial
        self.sketch = sketch
        super().__init__((), (), validate_args=validate_args)

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        """Log-likelihood of all records, a single number.

        Parameters
        ----------
        value : array_like
            How many they are; it is not looked at.
        intermediates : list, optional
            Not used: NumPyro's own distributions have the argument.
        """
        return jnp.sum(self.polynomial(self.theta))

    def expand(self, batch_shape: tuple[int, ...]) -> "ExpandedLaw":
        """Itself; ValueError in a plate or under a mask with an axis, which would count or leave out single records.

        Parameters
        ----------
        batch_shape : tuple of int
            Only ().
        """
        if tuple(batch_shape):
            raise ValueError(
                f"an expansion is one site of all records, and plates or masks make it of shape {tuple(batch_shape)}; "
                "release.sketch(expand=False) counts released values instead"
            )
        return self
