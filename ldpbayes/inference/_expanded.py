"""A model whose records have been replaced by a polynomial in the few numbers through which they see the parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import init_to_uniform

from ldpbayes.inference._cut import Cut
from ldpbayes.inference._density import Density, Site
from ldpbayes.inference._mode import Above, Mode
from ldpbayes.numerics._polynomial import Polynomial

__all__ = ["Expanded", "expanded"]


@dataclass(frozen=True)
class Expanded(Density):
    """A model with its arguments, of whose density all that depends on the records is a polynomial.

    Attributes
    ----------
    cut : Cut
        Where the model meets its records.
    polynomial : Polynomial
        What stands for their log-likelihood.
    around : tuple of array
        Where chains start: the mode in flat parameters, and a root of the covariance there.
    unravel : callable
        From flat to unconstrained parameters.
    """

    cut: Cut
    polynomial: Polynomial
    around: tuple[Any, Any]
    unravel: Callable

    def start(
        self, key: jax.Array, strategy: Callable = init_to_uniform, sites: dict[str, Site] | None = None
    ) -> dict[str, Any]:
        """A draw from the normal approximation at the mode: a polynomial says nothing of places far from it."""
        at, root = self.around
        return self.unravel(at + root @ jax.random.normal(key, at.shape, at.dtype))

    def potential(self, parameters: dict[str, Any]) -> Any:
        """Minus the log density of unconstrained parameters, with the polynomial in the place of the records."""
        return self.cut.rest(parameters) - jnp.sum(self.polynomial(self.cut.coordinates(parameters)))


def expanded(cut: Cut, polynomial: Polynomial, around: Mode, above: Above) -> Expanded:
    """The density of a model below whose cut a polynomial stands.

    Parameters
    ----------
    cut : Cut
        Where the model meets its records.
    polynomial : Polynomial
        What stands for their log-likelihood.
    around : Mode
        Where chains start.
    above : Above
        What is above the cut.
    """
    density = cut.density
    # Arrays of JAX stay arguments of what is compiled, also those of one number: NumPy's would become constants.
    tensors, near = jax.tree.map(jnp.asarray, (polynomial, (np.asarray(around.at), np.asarray(around.root))))
    return Expanded(density.model, density.args, density.kwargs, cut, tensors, near, above.unravel)
