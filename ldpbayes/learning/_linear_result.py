"""A linear predictor of labels, with the table and the intervals that statistics expects of it."""

import dataclasses
from typing import Any

import jax
import numpy as np
from scipy import special

from ldpbayes.estimation._estimate import Estimate, table, tails
from ldpbayes.estimation._sandwich import normal_interval
from ldpbayes.learning._arguments import checked_bounds, checked_features
from ldpbayes.learning._objectives import Objective
from ldpbayes.learning._scale_profile import ScaleProfile

__all__ = ["LinearFit"]


@dataclasses.dataclass(frozen=True, eq=False)
class LinearFit:
    """A linear predictor of labels with its errors; an `Estimate`.

    Attributes
    ----------
    names : list of str
        Of the parameters: "intercept", the features, "scale", as far as there are such.
    params : array (p,)
        The parameters in the units of features and labels.
    covariance : array (p, p)
        Of the marginal likelihood the inverse of the observed information, the prior's included; of squared errors the
        sandwich. NaN where parameters cannot be told apart.
    count : int
        Number of labels.
    objective : Objective
        What was minimised.
    penalty : float
        Precision of the prior of standardised features' coefficients.
    loss : float
        Sum of the labels' losses, without the penalty.
    converged : bool
        Whether the minimisation has.
    steps : int
        Of the minimisation.
    privacy : str
        What was promised to those whose labels were released.
    """

    names: list[str]
    params: np.ndarray
    covariance: np.ndarray
    count: int
    objective: Objective
    penalty: float
    loss: float
    converged: bool
    steps: int
    privacy: str
    _intercept: bool = dataclasses.field(repr=False)
    _profile: ScaleProfile | None = dataclasses.field(repr=False)

    @property
    def intercept(self) -> float:
        """The prediction where all features are 0."""
        return float(self.params[0]) if self._intercept else 0.0

    @property
    def coefficients(self) -> np.ndarray:
        """One a feature, shape (d,), in units of the label (before a link) a unit of the feature."""
        return self.params[int(self._intercept) : len(self.params) - self.objective.scaled]

    @property
    def scale(self) -> float | None:
        """The law's scale, None where there is none."""
        return float(self.params[-1]) if self.objective.scaled else None

    @property
    def estimate(self) -> dict[str, float]:
        """The parameters by their names."""
        return dict(zip(self.names, self.params.tolist(), strict=True))

    @property
    def standard_error(self) -> np.ndarray:
        """Standard errors, shape (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    def linear_predictor(self, features: Any) -> np.ndarray:
        """The linear predictor, before any link, shape (m,).

        Parameters
        ----------
        features : array_like (m, d) or data frame
            In the columns of the fit.

        Raises
        ------
        ValueError
            For another number of columns, other names of them, or what is not a finite number.
        """
        names = self.names[int(self._intercept) : len(self.names) - self.objective.scaled]
        matrix, _ = checked_features(features, width=len(names), like=names)
        return self.intercept + matrix @ self.coefficients

    def predict(self, features: Any, *, bounds: tuple[float, float] | None = None) -> np.ndarray:
        """Expected labels, shape (m,).

        Parameters
        ----------
        features : array_like (m, d)
            In the columns of the fit.
        bounds : (float, float), optional
            Between which all labels are known to lie, such as those of the mechanism: the label of the fit is then
            clipped, as the mechanism does it. By default predictions may be any numbers.

        Raises
        ------
        ValueError
            See `linear_predictor`.
        """
        with jax.enable_x64(True):
            return np.asarray(self.objective.mean(self.linear_predictor(features), self.scale, checked_bounds(bounds)))

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Confidence intervals, two arrays (p,).

        Those of all parameters but the scale are normal. That of the scale has all scales that the labels do not
        refuse, by the ratio of likelihoods without the scale's prior: it begins with 0 where they do not tell a small
        scale from none. Where they tell it to 10 %, it is normal in the logarithm.

        Parameters
        ----------
        level : float
            Coverage, between 0 and 1.

        Raises
        ------
        ValueError
            For another level.
        """
        lower, upper = normal_interval(self.params, self.standard_error, level)
        if self._profile is not None:
            lower[-1], upper[-1] = self._profile.interval(special.ndtri(0.5 + 0.5 * level))
        elif self.objective.scaled:
            scale = self.params[-1]
            ends = normal_interval(np.log(scale), self.standard_error[-1] / scale, level)
            lower[-1], upper[-1] = np.exp(ends)
        return lower, upper

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the parameters in plain text.

        Parameters
        ----------
        level : float
            Coverage of the intervals, between 0 and 1.
        """
        lower, upper = tails(level)
        head = f"{'coef':>10} {'std err':>10} {'z':>8} {'P>|z|':>7} {lower:>10} {upper:>10}"
        rows = []
        for name, coef, error, low, high in zip(
            self.names, self.params, self.standard_error, *self.interval(level), strict=True
        ):
            z = coef / error
            p = 2 * special.ndtr(-abs(z))
            rows.append((name, f"{coef:10.4f} {error:10.4f} {z:8.3f} {p:7.3f} {low:10.4f} {high:10.4f}"))
        if self.objective.scaled:  # it is positive: that it is 0 is no hypothesis
            name, numbers = rows[-1]
            rows[-1] = (name, numbers[:22] + f"{'':16}" + numbers[38:])
        done = "" if self.converged else ", NOT CONVERGED"
        title = f"{type(self.objective).__name__} of {self.count} released labels, penalty {self.penalty:.4g}{done}"
        return table(title, "parameter", head, rows)


_PROTOCOL: type[Estimate] = LinearFit  # for the type checker
