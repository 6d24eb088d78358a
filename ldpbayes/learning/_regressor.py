"""Regression on released labels in two lines, for those who know scikit-learn."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from ldpbayes._core.checks import missing
from ldpbayes.data import Release
from ldpbayes.learning._linear import LinearModel, linear_fit
from ldpbayes.learning._network import Network, network_fit
from ldpbayes.learning._objectives import MarginalLikelihood, Objective, checked_bounds
from ldpbayes.likelihood.latent import density_breaks
from ldpbayes.mechanisms import AdditiveMechanism, Mechanism
from ldpbayes.noise import Gaussian, Laplace

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(missing("LabelPrivateRegressor needs scikit-learn", "learning")) from None


NEXT_TO_NOTHING = 1e-6  # of the labels' deviation: noise that stands for none
SMOOTHING = 0.3  # of the standard error of a mean: noise that gives a density with a kink a curvature, and moves no fit


class LabelPrivateRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Regression on public features and released labels; an estimator of scikit-learn.

    ``fit(X, z, mechanism)`` is given released labels, and `predict` expects original ones. `score` compares with what
    it is given: of original labels it is R², of released ones it is far smaller.

    Parameters
    ----------
    mechanism : Mechanism, optional
        What released the labels, unless `fit` is told. Without any, labels are taken as they are.
    model : LinearModel or Network, optional
        What predicts: by default ``LinearModel()``.
    objective : Objective, optional
        What is minimised: by default ``MarginalLikelihood()``. Without a mechanism that is the likelihood of labels as
        they are (of a law whose density has a kink, such as `laplace`, of labels with so little noise that no fit moves
        by half of a standard error).
    bounds : (float, float), optional
        Between which predictions lie; see `LinearPredictor.predict`.
    random_state : int
        For what a fit draws at random.

    Attributes
    ----------
    fit_ : LinearPredictor or NetworkPredictor
        The fit with all that it knows.
    n_features_in_ : int
        Number of features.
    """

    def __init__(
        self,
        mechanism: Mechanism | None = None,
        *,
        model: LinearModel | Network | None = None,
        objective: Objective | None = None,
        bounds: tuple[float, float] | None = None,
        random_state: int = 0,
    ) -> None:
        self.mechanism = mechanism
        self.model = model
        self.objective = objective
        self.bounds = bounds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, mechanism: Mechanism | None = None) -> "LabelPrivateRegressor":
        """Fit to released labels.

        Parameters
        ----------
        X : array_like (n, d) or data frame
            Public features.
        y : array_like (n,)
            Released labels.
        mechanism : Mechanism, optional
            What released them, where it is not the regressor's own.

        Returns
        -------
        LabelPrivateRegressor
            The regressor itself.

        Raises
        ------
        TypeError, ValueError
            For the reasons of `linear_fit` and `network_fit`.
        """
        X, y = validate_data(self, X, y, y_numeric=True, ensure_min_samples=2)
        checked_bounds(self.bounds)
        by = self.mechanism if mechanism is None else mechanism
        release = Release(y, _none(np.asarray(y, float)) if by is None else by)
        model = LinearModel() if self.model is None else self.model
        objective = MarginalLikelihood() if self.objective is None else self.objective
        if by is None and isinstance(objective, MarginalLikelihood):
            objective = _of_labels(objective, np.asarray(y, float))
        self.fit_ = _fitted(model, np.asarray(X, float), release, objective, self.random_state)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Expected labels, shape (m,).

        Parameters
        ----------
        X : array_like (m, d) or data frame
            In the columns of the fit.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        return self.fit_.predict(np.asarray(X, float), bounds=self.bounds)


@dataclasses.dataclass(frozen=True)
class Likelihood(MarginalLikelihood):
    """−log p(y | prediction, scale) of labels that were not randomized.

    Parameters
    ----------
    law, scale, deviation
        See `MarginalLikelihood`.
    noise : (float, float, float), optional
        Scale of Laplace noise and bounds far outside the labels, which smooth a density that has a kink.
    """

    noise: tuple[float, float, float] | None = None

    def loss(self, prediction: Any, scale: Any, release_values: Any, mechanism: Any) -> jax.Array:
        """See `Objective.loss`: that of the label's law, or of its sum with the noise."""
        if self.noise is None:
            return -self.label(prediction, scale).log_prob(release_values)
        smooth = AdditiveMechanism(Laplace(self.noise[0]), *self.noise[1:])
        return super().loss(prediction, scale, release_values, smooth)


def _of_labels(objective: MarginalLikelihood, labels: np.ndarray) -> Likelihood:
    """The likelihood of labels as they are, which have to be such as the law can give."""
    law = objective.label(np.zeros(1), np.ones(1))
    if not np.all(law.support(labels)):
        raise ValueError(f"y has labels outside the support of {type(law).__name__}: {law.support}")
    noise = None
    if density_breaks(law) is not None:
        width = float(np.ptp(labels)) or 1.0
        scale = SMOOTHING * (float(labels.std()) or 1.0) / np.sqrt(len(labels))
        noise = (scale, float(labels.min()) - width, float(labels.max()) + width)
    return Likelihood(objective.law, objective.scale, objective.deviation, noise)


def _none(labels: np.ndarray) -> Mechanism:
    """A mechanism that promises nothing, for labels as they are."""
    return AdditiveMechanism(Gaussian(NEXT_TO_NOTHING * (float(labels.std()) or 1.0)), sensitivity=np.inf)


@functools.singledispatch
def _fitted(model: Any, features: np.ndarray, release: Release, objective: Objective, seed: int) -> Any:
    raise TypeError(f"model must be a LinearModel or a Network, got {model!r}")


@_fitted.register
def _linear(model: LinearModel, features: Any, release: Any, objective: Any, seed: int) -> Any:
    return linear_fit(features, release, objective=objective, penalty=model.penalty, intercept=model.intercept)


@_fitted.register
def _network(model: Network, features: Any, release: Any, objective: Any, seed: int) -> Any:
    return network_fit(features, release, objective=objective, network=model, seed=seed)
