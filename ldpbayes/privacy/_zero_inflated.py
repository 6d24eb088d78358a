"""Trade-off functions of mechanisms that give the input away with some probability."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ldpbayes._checks import checked
from ldpbayes.privacy._tradeoff import PureProtocolTradeoff, Tradeoff, _probability

__all__ = ["ZeroInflatedTradeoff", "approximate_tradeoff"]


@dataclasses.dataclass(frozen=True, eq=False)
class ZeroInflatedTradeoff(Tradeoff):
    """A noise's trade-off function, shrunk because the noise is left out with some probability.

    A test that sees an input as it is knows which one it was. So the curve is (1 − δ) T(α/(1 − δ)) up to 1 − δ, then 0
    ([LCQ] eq. 3.3 and Theorem 3.3).

    Parameters
    ----------
    tradeoff : Tradeoff
        Of the noise.
    zero_probability : array_like
        δ: the probability that there is no noise, between 0 and 1, exclusive.
    """

    tradeoff: Tradeoff
    zero_probability: Any = dataclasses.field()  # else the attribute of the base class would be its default

    def __post_init__(self) -> None:
        share = checked(
            "zero_probability", self.zero_probability, "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1)
        )
        object.__setattr__(self, "zero_probability", share)

    def __call__(self, alpha: ArrayLike) -> Any:
        """Smallest type II error at level `alpha`."""
        noisy = 1 - np.asarray(self.zero_probability)
        return noisy * self.tradeoff(np.minimum(np.asarray(_probability("alpha", alpha)) / noisy, 1.0))

    def delta(self, epsilon: ArrayLike) -> Any:
        """1 − (1 − δ) (1 − delta of the noise)."""
        return self.zero_probability + (1 - np.asarray(self.zero_probability)) * self.tradeoff.delta(epsilon)

    def epsilon(self, delta: ArrayLike) -> Any:
        """Inverse of `delta`; infinite below the zero probability."""
        share = np.asarray(self.zero_probability)
        rest = (np.asarray(_probability("delta", delta)) - share) / (1 - share)
        return np.where(rest >= 0, self.tradeoff.epsilon(np.maximum(rest, 0.0)), np.inf)[()]


def approximate_tradeoff(epsilon: float, delta: float = 0.0) -> Tradeoff:
    """f_{ε,δ}: the curve below which no (epsilon, delta)-differentially private mechanism goes.

    It is the largest of 0, 1 − δ − exp(ε) α and exp(−ε) (1 − δ − α) ([WZ] Theorem 2.4): the curve of randomized
    response between two answers that gives the true one away with probability δ.

    Parameters
    ----------
    epsilon : float
        Positive and finite.
    delta : float
        At least 0 and below 1.

    Returns
    -------
    Tradeoff
        The curve.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    epsilon = checked("epsilon", epsilon, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    delta = checked("delta", delta, "at least 0 and below 1", lambda a: (a >= 0) & (a < 1))
    response = PureProtocolTradeoff(epsilon, 1 / (1 + np.exp(-np.asarray(epsilon))))
    return response if np.all(np.equal(delta, 0)) else ZeroInflatedTradeoff(response, delta)
