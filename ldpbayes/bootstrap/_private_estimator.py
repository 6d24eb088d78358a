"""What a private estimator is: it reads data once, to make a release, and goes on from that."""

import abc
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree

__all__ = ["Estimated", "PrivateEstimator"]


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
