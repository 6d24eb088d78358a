"""What a correction method is: what it takes, what it needs of a loss, and what it makes of released records."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from ldpbayes._tracing import is_concrete
from ldpbayes.estimation.corrections._evidence import Evidence
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.mechanisms import Additive
from ldpbayes.noise import Laplace, Noise, Omitted, SymmetricLaplace, ZeroInflated

__all__ = ["Correction", "is_independent_laplace", "is_symmetric_laplace", "is_zero_inflated", "left_out"]


@dataclasses.dataclass(frozen=True, eq=False)
class Correction(abc.ABC):
    """How the loss of original records is estimated from released ones.

    Subclasses are frozen dataclasses; a field that is not a number or an array is declared with
    ``dataclasses.field(metadata={"static": True})``.
    """

    name: ClassVar[str]
    """What the method is called in tables and messages: by default as its class."""

    original: ClassVar[bool] = False
    """Whether it is given original records, not a release."""

    only_smooth: ClassVar[bool] = False
    """Whether it is biased for a loss that lacks the derivatives it uses; else it is told by the loss's `smooth`."""

    beyond: ClassVar[bool] = False
    """Whether it looks at a loss outside the support too, where that is finite."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @property
    def support(self) -> Any:
        """Where the original records are known to lie: a pair of arrays over the perturbed columns, or None.

        A method that makes use of it has it as a field. The loss is then asked to be finite there only.
        """
        return None

    @abc.abstractmethod
    def takes(self, noise: Noise, columns: int) -> bool:
        """Whether the method is right for a noise.

        Parameters
        ----------
        noise : Noise
            What a mechanism adds.
        columns : int
            Number of perturbed columns.
        """

    @abc.abstractmethod
    def evidence(self, loss: Loss, mechanism: Additive, rows: jax.Array, key: Any, *, everywhere: bool) -> Evidence:
        """What records say of the parameters of a loss; traceable.

        Parameters
        ----------
        loss : Loss
            What is corrected; its terms are evaluated later, at many parameters.
        mechanism : Additive
            What was done to the records: its ``noise``, and the ``index`` of the perturbed columns.
        rows : array (N, columns)
            Released records (original ones, for a method that is given those).
        key : jax.Array
            A JAX random key, for noise of the analyst's own.
        everywhere : bool
            Whether the loss is finite outside the support too.

        Returns
        -------
        Evidence
        """

    def derivatives(self, columns: int) -> int:
        """How many derivatives of the loss in the perturbed columns it uses; none by default.

        Parameters
        ----------
        columns : int
            Number of perturbed columns.
        """
        return 0

    def settled(self, mechanism: Additive) -> "Correction":
        """The method with what it takes from a mechanism filled in; by default the method itself.

        Parameters
        ----------
        mechanism : Additive
            That made the release.

        Raises
        ------
        ValueError
            If the method's options do not fit the mechanism.
        """
        return self

    def exact(self, mechanism: Additive) -> Any:
        """Shares of the records that enter as they were before the noise: by default what the mechanism left as it was.

        The curvature of a loss with kinks is known from those alone.

        Parameters
        ----------
        mechanism : Additive
            That made the release.
        """
        return mechanism.unperturbed

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        fields = [field.name for field in dataclasses.fields(self)]
        (own, kind), (others, other_kind) = (
            jax.tree.flatten([getattr(method, name) for name in fields]) for method in (self, other)
        )
        same = [a is b or (is_concrete(a, b) and np.array_equal(a, b)) for a, b in zip(own, others, strict=False)]
        return len({kind, other_kind}) == 1 and all(same)

    def __hash__(self) -> int:
        return hash((type(self), jax.tree.structure(self)))


def left_out(noise: Noise) -> Any:
    """Probability that a record whose scale is positive gets no noise."""
    return noise.chance if isinstance(noise, Omitted) else 0.0


def is_zero_inflated(noise: Noise) -> bool:
    """Whether noise is left out at random."""
    return isinstance(noise, ZeroInflated)


def is_symmetric_laplace(noise: Noise, columns: int) -> bool:
    """Whether what is added, where anything is, is symmetric Laplace noise; in one column Laplace noise is the same."""
    law = noise.noise if isinstance(noise, Omitted) else noise
    return isinstance(law, SymmetricLaplace) or (columns == 1 and isinstance(law, Laplace))


def is_independent_laplace(noise: Noise, columns: int) -> bool:
    """Whether what is added, where anything is, is Laplace noise in every column independently."""
    law = noise.noise if isinstance(noise, Omitted) else noise
    return isinstance(law, Laplace) or (columns == 1 and isinstance(law, SymmetricLaplace))
