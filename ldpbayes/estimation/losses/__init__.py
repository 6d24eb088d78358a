"""Losses of records: those of regressions, and any JAX function."""

from ldpbayes.estimation.losses._loss import Loss, as_loss
from ldpbayes.estimation.losses._regression import RegressionLoss, absolute, hinge, huber, logistic, pinball, squared

__all__ = ["Loss", "RegressionLoss", "absolute", "as_loss", "hinge", "huber", "logistic", "pinball", "squared"]
