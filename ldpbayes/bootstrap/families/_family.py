"""What a parametric family owes the bootstrap: its bounded statistics, how far a record can move them, and its laws."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

__all__ = ["Family", "Params"]

Params = dict[str, Any]


class Family(abc.ABC):
    """An exponential family whose statistics are bounded by clamping records; parameters are dicts, named as NumPyro's.

    Subclasses are frozen dataclasses and pytrees. A record is clamped before its statistics are taken; these are in
    units in which they are of size one, or the record's own where it is the only statistic, so that the noise does not
    depend on the unit of the data.
    """

    columns: ClassVar[tuple[str, ...] | None] = None
    """Names of the statistics; None for a single one, which is then released as a number. May be a property."""

    step: ClassVar[float | None] = None
    """Of the lattice on which records and their statistics are, 1 for whole numbers; None for densities."""

    accounts_for_clamping: ClassVar[bool] = True
    """Whether there is a `solve_clamped`."""

    @abc.abstractmethod
    def distribution(self, params: Mapping[str, Any]) -> dist.Distribution:
        """Law of a record before it is clamped.

        Parameters
        ----------
        params : mapping of str to array
            Parameters of the family.
        """

    @abc.abstractmethod
    def statistics(self, x: Any) -> jax.Array:
        """Statistics of clamped records.

        Parameters
        ----------
        x : array (*batch, *event)
            Records.

        Returns
        -------
        array (*batch) or (*batch, statistics)
        """

    @abc.abstractmethod
    def sensitivity(self, order: int) -> float:
        """How far replacing one record can move the sum of the statistics; exactly, attained by two records.

        Parameters
        ----------
        order : {1, 2}
            Sum of absolute differences, or Euclidean distance.
        """

    @abc.abstractmethod
    def solve(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """Maximum likelihood from a mean of statistics, as if no record had been clamped.

        Parameters
        ----------
        mean : array () or (statistics,)
            Possibly with noise, so possibly no mean of any records.

        Returns
        -------
        params : dict of str to array
            In the ranges.
        outside : array () of bool
            Whether there is no such maximum inside the ranges, so that the nearest was taken.
        """

    @abc.abstractmethod
    def solve_clamped(self, mean: jax.Array) -> tuple[Params, jax.Array]:
        """Parameters under which *clamped* records have these expected statistics: the method of moments.

        Parameters
        ----------
        mean : array () or (statistics,)
            As for `solve`. What no parameters inside the ranges have is replaced by the nearest that some have.
        """

    def covariance(self, params: Mapping[str, Any], noise: Any, count: Any, *, clamped: bool) -> jax.Array | None:
        """Asymptotic covariance (p, p) of the flat estimate from a noisy sum of statistics; None where it has none.

        Parameters
        ----------
        params : mapping of str to array
            Of the family.
        noise : array ()
            Variance of the noise in each statistic's sum; 0 for what is usual where nothing is private.
        count : array ()
            Number of records.
        clamped : bool
            Whether the estimate is that of `solve_clamped`, or of `solve`.
        """
        return None

    @abc.abstractmethod
    def nearest(self, params: Mapping[str, Any]) -> Params:
        """The nearest parameters that are allowed.

        Parameters
        ----------
        params : mapping of str to array
            Of the family's form, with any finite values.
        """

    def free(self, params: Mapping[str, Any]) -> jax.Array:
        """Parameters as a vector in which any step is allowed: `params` takes each to parameters of the family.

        Parameters
        ----------
        params : mapping of str to array
            Of the family.
        """
        return ravel_pytree(dict(params))[0]

    def params(self, free: jax.Array, like: Any = None) -> Params:
        """Inverse of `free`; here the nearest parameters that are allowed, which may be at an edge.

        Parameters
        ----------
        free : array (q,)
            The vector.
        like : mapping of str to array, optional
            Parameters of the same form.
        """
        return self.nearest(ravel_pytree(like)[1](free))

    @abc.abstractmethod
    def total(self, key: Any, params: Mapping[str, Any], count: Any) -> jax.Array:
        """Sum of the statistics of records that are drawn, and clamped.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        params : mapping of str to array
            Of the family.
        count : array ()
            Number of records.
        """

    @abc.abstractmethod
    def checked(self, data: Any) -> np.ndarray:
        """Records as an array (n, *event), or ValueError."""

    def simulate(self, key: Any, params: Mapping[str, Any], count: int) -> jax.Array:
        """Records (count, *event), before they are clamped.

        Parameters
        ----------
        key : jax.Array
            A JAX random key.
        params : mapping of str to array
            Of the family.
        count : int
            Number of records.
        """
        return self.distribution(params).sample(key, (count,))
