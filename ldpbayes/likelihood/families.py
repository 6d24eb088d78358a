"""Families of base laws: facts about a distribution that the generic likelihood asks for."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array
from ldpbayes.numerics.special import log1mexp, log_sum, stacked

COMPLEMENT_SUFFICES = -9.0  # a tail above exp(-9), as 1 less all other masses, is good to 1e-12, relatively


class Family:
    """What the likelihood may ask of a univariate law without expansions, and the answers that hold for any. Subclasses
    override what they know better and are registered with `register_family`. What their methods return is traced and
    differentiated in the law's parameters; its shape broadcasts with the batch shape.
    """

    # Whether the log density and its derivatives are finite wherever a float can be, so that no guards are needed.
    tame: ClassVar[bool] = False

    def __init__(self, law: Any) -> None:
        self.law = law

    def breaks(self) -> list[Array]:
        """Points inside the support of a continuous law where its density has a kink or a jump, in any order."""
        return []

    def centres(self) -> list[tuple[Array, Array]]:
        """Centres of the mass of a continuous law, each with a width of the order of a standard deviation."""
        try:
            return [(self.law.mean, jnp.sqrt(self.law.variance))]
        except NotImplementedError:
            return []

    def cdf(self, x: Array) -> Array:
        """P(X ≤ x) of a continuous law inside its support; quadrature serves where it raises or has no derivative."""
        return self.law.cdf(x)

    def tails(self, x: Array) -> jax.Array:
        """P(X ≤ x) and P(X > x) of a law on the real line, (2, ...); overrides are accurate however small they are."""
        lower = self.cdf(x)
        return stacked(lower, 1.0 - lower)

    def integrated_tail(self, edges: Array) -> jax.Array:
        """∫ P(X > s) ds of a law on the real line between increasing edges (n, ...), shape (n − 1, ...), if known."""
        raise NotImplementedError(f"{type(self.law).__name__} has no integrated tail")

    def log_mass_outside(self, first: Array, last: Array) -> Array:
        """Log P(X < first), log P(X > last) of a continuous law, (2, *batch), however small; None if unknown."""
        return None

    def log_mass(self, counts: Array) -> Array:
        """Log mass of a discrete law at integers (n, *batch) in the support: 0, 1, 2, ... for all natural numbers."""
        return self.law.log_prob(counts)

    def log_mass_above(self, nodes: Array, log_masses: Array) -> Array:
        """Log P(X > last node) of a law on 0, 1, 2, ..., accurate however small, from log masses (n, *batch) at the
        nodes 0, 1, ..., n − 1. By default the log of 1 less these masses, which loses its digits where it is small.
        """
        return log1mexp(log_sum(log_masses, axis=0))


class Registry:
    """Functions or classes under keys: those of other modules (`own`) count before those of this package (`ours`)."""

    def __init__(self) -> None:
        self.own: dict[Any, Any] = {}
        self.ours: dict[Any, Any] = {}

    def add(self, key: Any, entry: Any, purpose: str) -> None:
        """ValueError, which names the purpose, if another function or class from its side has the key."""
        table = self.ours if entry.__module__.startswith("ldpbayes.") else self.own
        known = table.get(key, entry)
        # running a notebook cell again defines an entry of the same name anew
        if (known.__module__, known.__qualname__) != (entry.__module__, entry.__qualname__):
            raise ValueError(f"{known!r} is registered for {purpose} already")
        table[key] = entry

    def find(self, keys: Sequence[Any]) -> Any:
        """What is registered under the first of some keys, from other modules if possible; None without any."""
        return next((table[key] for table in (self.own, self.ours) for key in keys if key in table), None)


F = TypeVar("F", bound="type[Family]")
_FAMILIES = Registry()


def register_family(*base_types: type) -> Callable[[F], F]:
    """Class decorator: a subclass of `Family` describes these distributions and their subclasses.

    Parameters
    ----------
    *base_types : type
        NumPyro distribution classes. The nearest base class of a law counts, and yours before one of ours. ValueError
        if another family has been registered for one of them.
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


def family_of(base: dist.Distribution) -> Family:
    law = unexpanded(base)
    return (_FAMILIES.find(type(law).__mro__) or Family)(law)


def unexpanded(base: dist.Distribution) -> Any:
    """A distribution without its expansions, which only repeat it."""
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    return base


def support_ends(base: dist.Distribution) -> tuple[Array, Array]:
    """Lower and upper end of a univariate support, possibly traced, or ±inf, from its NumPyro constraint."""
    support: Any = base.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.boolean:
        return 0.0, 1.0
    return getattr(support, "lower_bound", -math.inf), getattr(support, "upper_bound", math.inf)


def static_support_ends(base: dist.Distribution) -> tuple[Array, Array]:
    """Ends of the support where they are those of a whole family, and ±inf where they depend on parameters."""
    family = type(unexpanded(base)).support
    depends = isinstance(family, property) or not isinstance(family, constraints.Constraint)
    return (-math.inf, math.inf) if depends else support_ends(base)


def is_infinite(end: Array) -> bool:
    """Whether an end of a support is known to be infinite: one that is traced is taken to be finite."""
    return is_concrete(end) and bool(np.all(np.isinf(end)))
