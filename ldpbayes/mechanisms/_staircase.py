"""Staircase noise for a privacy budget."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from jax.typing import ArrayLike

from ldpbayes._pytree import optional, unchecked
from ldpbayes._tracing import is_concrete
from ldpbayes.mechanisms._additive import Additive
from ldpbayes.mechanisms._piecewise import PiecewiseConstant
from ldpbayes.mechanisms._registry import register
from ldpbayes.noise import Staircase, optimal_gamma

__all__ = ["StaircaseMechanism"]


@register("staircase")
@dataclasses.dataclass(frozen=True)
class StaircaseMechanism(Additive, PiecewiseConstant):
    """Staircase noise for a budget, on a clipped number ([GV]).

    Its step is the range of the numbers. No other noise that keeps the budget has a smaller variance, or a smaller mean
    absolute value, as γ is chosen; against Laplace noise that is much for large budgets and nothing for small ones.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive and finite; an array holds personal budgets, one a record.
    lower, upper : array_like
        Clipping bounds in the unit of the data, finite, lower < upper. Choose them without looking at the data.
    gamma : array_like, optional
        γ, in (0, 1]: where in a step the density jumps. By default `ldpbayes.noise.optimal_gamma` for squared error:
        released numbers are regressed on, and averaged, where what counts is the variance of the noise.

    Raises
    ------
    ValueError
        If a parameter is out of range or the shapes do not broadcast.
    """

    epsilon: Any
    lower: Any
    upper: Any
    gamma: Any = optional()

    columns: ClassVar[None] = None  # type: ignore[misc]
    perturbed: ClassVar[None] = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        for name in ("lower", "upper"):
            self._check(name, "finite", np.isfinite)
        if self.gamma is not None:
            self._check("gamma", "in (0, 1]", lambda a: (a > 0) & (a <= 1))
        self._check_columns_and_bounds()
        self._check_noise()
        with np.errstate(all="ignore"):
            if is_concrete(self) and not np.all(np.isfinite(self.noise.variance)):
                raise ValueError(f"the variance of the noise must be finite, got inf in {self!r}")

    @property
    def noise(self) -> Staircase:  # type: ignore[override]
        """Staircase noise whose step is the range."""
        gamma = optimal_gamma(self.epsilon) if self.gamma is None else self.gamma
        return unchecked(Staircase, self.upper - self.lower, self.epsilon, gamma)

    def pieces(self, z: ArrayLike) -> tuple[Any, Any]:
        """Two cuts and three levels; NumPy in, NumPy out. See `PiecewiseConstant.pieces`."""
        return self.noise.pieces(z, self.lower, self.upper)
