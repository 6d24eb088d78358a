"""Regression on released labels in two lines, with the interface of scikit-learn."""

import dataclasses
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ldpbayes._core.tabular import column_names
from ldpbayes._core.types import Array
from ldpbayes.data import Release
from ldpbayes.estimation._labels import MarginalLikelihood, Objective, checked_bounds, checked_features
from ldpbayes.estimation._linear import LinearPredictor, Penalty, linear_fit
from ldpbayes.estimation._network import Network, NetworkPredictor, network_fit
from ldpbayes.laws.families import density_breaks
from ldpbayes.mechanisms import AdditiveMechanism, Mechanism
from ldpbayes.noise import Gaussian, Laplace

NEGLIGIBLE_SHARE = 1e-6  # share of the labels' deviation: noise of labels that were not randomized
SMOOTHING_SHARE = 0.3  # share of a mean's standard error: noise that gives a kinked density a curvature


class LabelPrivateRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Regression on public features and released labels, as an estimator of scikit-learn.

    `predict` predicts original labels. Give `score` original labels, too: the noise of released labels makes R² far
    smaller. The attribute ``fit_`` is the `LinearPredictor` or the `NetworkPredictor`.

    Parameters
    ----------
    mechanism : Mechanism, optional
        The mechanism of the labels, if `fit` gets none. Without any, the labels are treated as original labels.
    network : Network, optional
        The network, which `network_fit` trains. Default: none, but the linear predictor of `linear_fit`.
    objective : Objective, optional
        The loss. Default: ``MarginalLikelihood()``. For original labels, the fit smooths a density with a kink, such as
        that of ``dist.Laplace``, which changes estimates by less than half of a standard error.
    penalty, intercept
        Options of `linear_fit`. A network does not use them.
    bounds : (float, float), optional
        As in `LinearPredictor.predict`. Default: no bounds.
    random_state : int
        Random seed for the training of a network. Default: 0.
    """

    def __init__(
        self,
        mechanism: Mechanism | None = None,
        *,
        network: Network | None = None,
        objective: Objective | None = None,
        penalty: float | Penalty | None = None,
        intercept: bool = True,
        bounds: tuple[float, float] | None = None,
        random_state: int = 0,
    ) -> None:
        self.mechanism, self.network, self.objective = mechanism, network, objective
        self.penalty, self.intercept, self.bounds, self.random_state = penalty, intercept, bounds, random_state

    def fit(self, X: Array, y: Array, mechanism: Mechanism | None = None) -> "LabelPrivateRegressor":
        """Fit to features X (n, d) and labels y (n,) that `mechanism` released, by default that of the constructor."""
        if column_names(X) is not None:  # scikit-learn refuses text without advice
            checked_features(X)
        X, y = validate_data(self, X, y, y_numeric=True, ensure_min_samples=2)
        checked_bounds(self.bounds)
        mechanism = self.mechanism if mechanism is None else mechanism
        objective = MarginalLikelihood() if self.objective is None else self.objective
        if mechanism is None:  # one without a guarantee, for labels as they are
            labels = np.asarray(y, float)
            noise = Gaussian(NEGLIGIBLE_SHARE * (float(labels.std()) or 1.0))
            mechanism = AdditiveMechanism(noise, sensitivity=np.inf)
            objective = _likelihood(objective, labels) if isinstance(objective, MarginalLikelihood) else objective
        if not isinstance(self.network, Network | None):
            raise TypeError(f"network must be a Network, got {self.network!r}")
        data = np.asarray(X, float), Release(y, mechanism)
        self.fit_: LinearPredictor | NetworkPredictor
        if self.network is None:
            self.fit_ = linear_fit(*data, objective=objective, penalty=self.penalty, intercept=self.intercept)
        else:
            self.fit_ = network_fit(*data, objective=objective, network=self.network, seed=self.random_state)
        return self

    def predict(self, X: Array, return_std: bool = False) -> Any:
        """Return the expected original labels (m,) for features X (m, d), with the columns of the fit.

        With `return_std`, also the standard deviations (m,) of new labels; ValueError for a network, or an objective
        that is not a likelihood.
        """
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, reset=False), float)
        if not return_std:
            return self.fit_.predict(X, bounds=self.bounds)
        if not isinstance(self.fit_, LinearPredictor):
            raise ValueError("return_std is for linear models: a network has no standard errors")
        prediction: Any = self.fit_.predict(X, bounds=self.bounds, interval=0.95)
        return prediction.mean, prediction.label_sd


@dataclasses.dataclass(frozen=True)
class Likelihood(MarginalLikelihood):
    """−log p(y | prediction, scale) of labels that were not randomized; `noise` smooths a density that has a kink."""

    noise: tuple[float, float, float] | None = None  # scale of Laplace noise, and bounds far outside the labels

    def loss(self, prediction: Array, scale: Array, values: Array, mechanism: Mechanism) -> jax.Array:
        if self.noise is None:
            return -self.label(prediction, scale).log_prob(values)
        smooth = AdditiveMechanism(Laplace(self.noise[0]), *self.noise[1:])
        return super().loss(prediction, scale, values, smooth)


def _likelihood(objective: MarginalLikelihood, labels: np.ndarray) -> Likelihood:
    """The likelihood of labels as they are; ValueError if the law cannot have such labels."""
    law = objective.label(np.zeros(1), np.ones(1))
    if not np.all(law.support(labels)):
        raise ValueError(f"y has labels outside the support of {type(law).__name__}: {law.support}")
    noise = None
    if density_breaks(law) is not None:
        width = float(np.ptp(labels)) or 1.0
        scale = SMOOTHING_SHARE * (float(labels.std()) or 1.0) / np.sqrt(len(labels))
        noise = (scale, float(labels.min()) - width, float(labels.max()) + width)
    return Likelihood(objective.law, objective.scale, objective.deviation, noise)
