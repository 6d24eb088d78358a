"""Regression on released labels in two lines, for those who know scikit-learn."""

import functools
from typing import Any

import numpy as np

from ldpbayes._extras import missing
from ldpbayes.data import Release
from ldpbayes.learning._arguments import checked_bounds
from ldpbayes.learning._linear_fit import LinearModel, linear_fit
from ldpbayes.learning._network import Network
from ldpbayes.learning._network_fit import network_fit
from ldpbayes.learning._objectives import Objective
from ldpbayes.mechanisms import AdditiveMechanism, Mechanism
from ldpbayes.noise import Gaussian

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(missing("LabelPrivateRegressor needs scikit-learn", "learning")) from None

__all__ = ["LabelPrivateRegressor"]

NEXT_TO_NOTHING = 1e-6  # of the labels' deviation: noise that stands for none


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
        What is minimised: by default ``MarginalLikelihood()``.
    bounds : (float, float), optional
        Between which predictions lie; see `LinearFit.predict`.
    random_state : int
        For what a fit draws at random.

    Attributes
    ----------
    fit_ : LinearFit or NetworkFit
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
        self.fit_ = _fitted(model, np.asarray(X, float), release, self.objective, self.random_state)
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


def _none(labels: np.ndarray) -> Mechanism:
    """A mechanism that promises nothing, for labels as they are."""
    return AdditiveMechanism(Gaussian(NEXT_TO_NOTHING * (float(labels.std()) or 1.0)), sensitivity=np.inf)


@functools.singledispatch
def _fitted(model: Any, features: np.ndarray, release: Release, objective: Objective | None, seed: int) -> Any:
    raise TypeError(f"model must be a LinearModel or a Network, got {model!r}")


@_fitted.register
def _linear(model: LinearModel, features: Any, release: Any, objective: Any, seed: int) -> Any:
    return linear_fit(features, release, objective=objective, penalty=model.penalty, intercept=model.intercept)


@_fitted.register
def _network(model: Network, features: Any, release: Any, objective: Any, seed: int) -> Any:
    return network_fit(features, release, objective=objective, network=model, seed=seed)
