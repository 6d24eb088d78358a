"""Base laws: what the generic ways ask of each."""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes.numerics.special import log1mexp, log_sum, stacked


class Registry:
    """Functions or classes under keys.

    Attributes
    ----------
    own : dict
        What has been registered outside this package: it counts before ours.
    ours : dict
        What this package brings.
    """

    def __init__(self) -> None:
        self.own: dict[Any, Any] = {}
        self.ours: dict[Any, Any] = {}

    @property
    def tables(self) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Both, in the order in which they count."""
        return self.own, self.ours

    def add(self, key: Any, entry: Any, what: str) -> None:
        """Register a function or a class.

        Parameters
        ----------
        key : hashable
            Under which it is found.
        entry : function or class
            Whose module says whether it is one of ours.
        what : str
            What it is for, in the words of the error.

        Raises
        ------
        ValueError
            When another entry has been registered there, from the same side.
        """
        table = self.ours if entry.__module__.startswith("ldpbayes.") else self.own
        known = table.get(key, entry)
        # running a notebook cell again defines the same entry anew
        if (known.__module__, known.__qualname__) != (entry.__module__, entry.__qualname__):
            raise ValueError(f"{known!r} is registered for {what} already")
        table[key] = entry


F = TypeVar("F", bound="type[Family]")
_FAMILIES = Registry()
COMPLEMENT_SUFFICES = -9.0  # a tail of exp(-9) as what other masses leave of 1 is good to 1e-12, relatively


class Family:
    """What the likelihood may ask of a law, and the answers that hold for any.

    Subclasses say what they know better and are registered with `register_family`. Whatever they return is traced and
    differentiated in the law's parameters.

    Parameters
    ----------
    law : numpyro.distributions.Distribution
        Univariate, without expansions.
    """

    tame: ClassVar[bool] = False
    """Whether the log density and its derivatives are finite wherever a float can be, so that no guards are needed."""

    def __init__(self, law: Any) -> None:
        self.law = law

    def breaks(self) -> list[Any]:
        """Points inside the support of a continuous law where its density has a kink or a jump.

        Returns
        -------
        list of array_like
            Of shapes that broadcast to the batch shape, in any order.
        """
        return []

    def centres(self) -> list[tuple[Any, Any]]:
        """Where the mass of a continuous law is: centres, each with a width of the order of a standard deviation.

        Moments are integrated on panels that become narrow there.

        Returns
        -------
        list of (array_like, array_like)
            Of shapes that broadcast to the batch shape; where one is not finite, it is left out.
        """
        try:
            return [(self.law.mean, jnp.sqrt(self.law.variance))]
        except NotImplementedError:
            return []

    def cdf(self, x: ArrayLike) -> Any:
        """P(X ≤ x) of a continuous law, differentiable in its parameters.

        One that raises, or that JAX cannot differentiate, is not used: quadrature takes its place.

        Parameters
        ----------
        x : array_like
            Inside the support.
        """
        return self.law.cdf(x)

    def tails(self, x: Any) -> jax.Array:
        """P(X ≤ x) and P(X > x) of a law on the real line, shape (2, ...), differentiable in its parameters.

        Each is accurate however small it is, where the family says so; here the second is what the first leaves of 1.

        Parameters
        ----------
        x : array_like
            Any numbers.
        """
        lower = self.cdf(x)
        return stacked(lower, 1.0 - lower)

    def integrated_tail(self, edges: Any) -> jax.Array:
        """∫ P(X > s) ds between neighbouring edges, shape (n − 1, ...), of a law on the real line.

        Parameters
        ----------
        edges : array (n, ...)
            Increasing.

        Raises
        ------
        NotImplementedError
            Where the family does not say it.
        """
        raise NotImplementedError(f"{type(self.law).__name__} has no integrated tail")

    def log_mass_outside(self, first: Any, last: Any) -> Any:
        """Log P(X < first) and log P(X > last) of a continuous law, with relative accuracy however small they are.

        Parameters
        ----------
        first, last : array
            Of shapes that broadcast with the batch shape.

        Returns
        -------
        Array (2, *batch) or None
            −inf where there is no mass. None where it is not known: the `cdf` serves where it is large, and quadrature.
        """
        return None

    def log_mass(self, counts: Any) -> Any:
        """Log mass of a discrete law.

        Parameters
        ----------
        counts : array of int (n, *batch)
            In the support; 0, 1, 2, ... along the first axis for a law on all natural numbers.
        """
        return self.law.log_prob(counts)

    def log_mass_above(self, nodes: Any, log_masses: Any) -> Any:
        """Log P(X > last node) of a law on 0, 1, 2, ..., with relative accuracy however small it is.

        Parameters
        ----------
        nodes : array (n,)
            0, 1, ..., n − 1: all that is not above.
        log_masses : array (n, *batch)
            At the nodes. Here what they leave of 1, which loses its digits where it is small.
        """
        return log1mexp(log_sum(log_masses, axis=0))


def register_family(*base_types: type) -> Callable[[F], F]:
    """Class decorator: what a `Family` says holds for these distributions and their subclasses.

    Parameters
    ----------
    *base_types : type
        NumPyro distribution classes. The nearest base class of a law counts, and yours before one of ours.

    Returns
    -------
    callable
        Decorator for a subclass of `Family`.

    Raises
    ------
    TypeError
        If an argument is no class, or what is decorated is no `Family`.
    ValueError
        When another family has been registered for one of them.
    """
    if not base_types or not all(isinstance(kind, type) for kind in base_types):
        raise TypeError(f"register_family takes classes of distributions, got {base_types!r}")

    def decorate(family: F) -> F:
        if not (isinstance(family, type) and issubclass(family, Family)):
            raise TypeError(f"register_family decorates subclasses of Family, got {family!r}")
        for kind in base_types:
            _FAMILIES.add(kind, family, kind.__name__)
        return family

    return decorate


def family_of(base: Any) -> Family:
    """What is known of a law.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Possibly expanded.
    """
    law = unexpanded(base)
    for table in _FAMILIES.tables:
        for kind in type(law).__mro__:
            if kind in table:
                return table[kind](law)
    return Family(law)


def unexpanded(base: Any) -> Any:
    """A distribution without its expansions, which only repeat it.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Any.
    """
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    return base
