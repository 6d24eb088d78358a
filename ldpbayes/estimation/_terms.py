"""The terms of records in a linear estimate of frequencies, whose products say how estimates vary together."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax import lax

from ldpbayes.estimation._maximum_likelihood import Sample
from ldpbayes.estimation._products import products
from ldpbayes.likelihood._supported_mass import supported_mass
from ldpbayes.mechanisms import PureProtocol

__all__ = ["Terms"]


@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
    """Terms of a linear estimate about their means: slope_i (1[k ∈ S(z_i)] − q_i − (p_i − q_i) θ_k) of record i.

    They are independent, so that the sum of their products estimates the covariance, whatever the protocol.

    Attributes
    ----------
    mechanism : PureProtocol
        That released the values.
    nodes : array (n, ...)
        Released values.
    root : array (n,)
        Slope of each value, times the square root of the number of records that have it.
    common : array (n, 2)
        Minus q_i and p_i − q_i, times the same.
    basis : array (2, categories)
        What these are multiplied by: ones, and the estimate θ.
    """

    mechanism: PureProtocol
    nodes: jax.Array
    root: np.ndarray
    common: np.ndarray
    basis: np.ndarray

    @classmethod
    def of(cls, sample: Sample, slope: Any, estimate: np.ndarray) -> "Terms":
        """Those of an estimate.

        Parameters
        ----------
        sample : Sample
            What was released.
        slope : float or array (n,)
            By what a record of each value moves the estimate of a category that it supports.
        estimate : array (categories,)
            The linear estimate.
        """
        p, q = sample.mechanism.support_probabilities
        root = slope * np.sqrt(np.asarray(sample.weights))
        common = -np.stack(np.broadcast_arrays(root * q, root * (p - q)), axis=1)
        basis = np.stack([np.ones_like(estimate), estimate])
        return cls(sample.mechanism, sample.nodes, root, common, basis)

    def covariance(self) -> np.ndarray:
        """See `Joint.covariance`; a matrix product over the released values."""
        with jax.enable_x64(True):
            return np.asarray(_products(self.mechanism, self.nodes, self.root, self.common, self.basis))

    def variances(self, weights: np.ndarray) -> np.ndarray:
        """See `Joint.variances`; a pass over the released values for each sum.

        Parameters
        ----------
        weights : array (m, categories)
            Of the sums.
        """
        with jax.enable_x64(True):
            common = self.common @ (self.basis @ weights.T)
            return np.asarray(_squares(self.mechanism, self.nodes, self.root, common, weights))


_products = jax.jit(products)


@jax.jit
def _squares(
    mechanism: PureProtocol, z: jax.Array, root: jax.Array, common: jax.Array, weights: jax.Array
) -> jax.Array:
    """Sums of squares of weighted sums of terms, one a row of the weights."""

    def square(one: tuple[jax.Array, jax.Array]) -> jax.Array:
        terms = root * supported_mass(mechanism, z, one[0]) + one[1]
        return terms @ terms

    return lax.map(square, (weights, common.T))
