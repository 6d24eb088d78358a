"""Families, true parameters and bounds of the experiments of [FWS] sec. 7."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

from ldpbayes.bootstrap import (
    Bernoulli,
    Beta,
    Binomial,
    Exponential,
    Family,
    Gamma,
    GammaRate,
    Gaussian,
    GaussianMean,
    Multinomial,
    MultivariateNormal,
    Poisson,
)

__all__ = ["FAMILIES", "MULTIVARIATE", "FamilySetting", "chosen"]

SURROGATES = 1000
NEGLIGIBLE = 1e-13  # probability of a record beyond the bounds of what is not clamped


@dataclasses.dataclass(frozen=True)
class FamilySetting:
    """A family with true parameters.

    Attributes
    ----------
    truth : dict of str to array
        Parameters.
    family : callable
        From bounds to a `Family`.
    law : frozen scipy.stats distribution or None
        Of a record; None where records have bounds by themselves.
    """

    truth: Mapping[str, Any]
    family: Callable[[Any, Any], Family]
    law: Any = None

    @property
    def positive(self) -> np.ndarray:
        """Which parameters, as they are flattened, are positive: these have intervals on the logarithmic scale."""
        ranges = getattr(self.unclamped(), "ranges", {})
        parts = {
            name: np.full(np.shape(value), name in ranges and ranges[name].positive)
            for name, value in self.truth.items()
        }
        return np.asarray(ravel_pytree(parts)[0])

    def clamped(self, seed: int) -> Family:
        """The family with the range of 1,000 other records as bounds: the paper's stand-in for public knowledge.

        Parameters
        ----------
        seed : int
            Of these records.
        """
        if self.law is None:
            return self.family(None, None)
        others = self.law.rvs(SURROGATES, random_state=np.random.default_rng(seed))
        return self.family(others.min(axis=0), others.max(axis=0))

    def unclamped(self) -> Family:
        """The family with bounds beyond which there is nothing, for estimates that are not private."""
        if self.law is None:
            return self.family(None, None)
        return self.family(self.law.ppf(NEGLIGIBLE), self.law.isf(NEGLIGIBLE))


FAMILIES = {
    "Bernoulli": FamilySetting({"probs": 0.3}, lambda low, high: Bernoulli()),
    "binomial": FamilySetting({"probs": 0.3}, lambda low, high: Binomial(10)),
    "Poisson": FamilySetting({"rate": 8.0}, lambda low, high: Poisson(int(high)), stats.poisson(8.0)),
    "exponential": FamilySetting({"rate": 0.5}, lambda low, high: Exponential(high), stats.expon(scale=2.0)),
    "Gaussian, known variance": FamilySetting(
        {"loc": 1.0}, lambda low, high: GaussianMean(2.0, low, high), stats.norm(1.0, 2.0)
    ),
    "Gaussian": FamilySetting({"loc": 1.0, "scale": 2.0}, Gaussian, stats.norm(1.0, 2.0)),
    "gamma, known shape": FamilySetting(
        {"rate": 0.5}, lambda low, high: GammaRate(3.0, low, high), stats.gamma(3.0, scale=2.0)
    ),
    "gamma": FamilySetting({"concentration": 3.0, "rate": 0.5}, Gamma, stats.gamma(3.0, scale=2.0)),
    "beta": FamilySetting({"concentration1": 2.0, "concentration0": 3.0}, Beta, stats.beta(2.0, 3.0)),
    "multinomial": FamilySetting({"probs": np.array([0.5, 0.3, 0.2])}, lambda low, high: Multinomial(3)),
}
"""What Figure 1 has; by name."""

COVARIANCE = np.array([[1.0, 0.5], [0.5, 2.0]])
MULTIVARIATE = FamilySetting(
    {"loc": np.array([0.0, 1.0]), "covariance_matrix": COVARIANCE},
    MultivariateNormal,
    stats.multivariate_normal([0.0, 1.0], COVARIANCE),
)
"""A bivariate normal law, in the appendix."""


def chosen(names: Sequence[str]) -> dict[str, FamilySetting]:
    """Settings by name.

    Parameters
    ----------
    names : sequence of str
        Of `FAMILIES`.

    Raises
    ------
    ValueError
        For another name.
    """
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise ValueError(f"families must be out of {', '.join(FAMILIES)}; got {', '.join(unknown)}")
    return {name: FAMILIES[name] for name in names}
