"""Losses of records: those of regressions, and any JAX function."""

from ldpbayes.estimation.losses._function_loss import as_loss
from ldpbayes.estimation.losses._loss import Loss
from ldpbayes.estimation.losses._regression import absolute, check, hinge, huber, logistic, squared
from ldpbayes.estimation.losses._regression_loss import RegressionLoss

__all__ = ["Loss", "RegressionLoss", "absolute", "as_loss", "check", "hinge", "huber", "logistic", "squared"]
