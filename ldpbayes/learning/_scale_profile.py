"""What labels say of the scale of their law: its profile likelihood, for intervals where no normal law describes it.

Under strong noise labels may say how large their scale is at most and not how small: in its logarithm the likelihood
then falls steeply on one side and is flat on the other.
"""

import dataclasses

import numpy as np

from ldpbayes.learning._criterion import Criterion, Derivatives
from ldpbayes.learning._newton import Minimum, newton

__all__ = ["ScaleProfile", "scale_profile"]

ENOUGH = 100.0  # information on the logarithm: a normal law of a standard deviation of 0.1 describes that
DEEP = 16.0  # twice the nats below the maximum at which a profile ends: four standard errors
MOST = 14  # steps to each side
STEPS = 0.1, 0.5  # least and largest first step in the logarithm
FLAT = 0.01  # nats a step: beyond two of them the likelihood has reached its limit at the scale 0
ROUGH = 1e-2  # nats of a minimum in the other parameters, of which 1.92 are asked for


@dataclasses.dataclass(frozen=True, eq=False)
class ScaleProfile:
    """The likelihood of a scale, other parameters at their best and without the scale's own prior.

    Parameters
    ----------
    logs : array (m,)
        Logarithms of scales, in ascending order.
    deviances : array (m,)
        Twice the nats below the largest.
    """

    logs: np.ndarray
    deviances: np.ndarray

    def interval(self, quantile: float) -> tuple[float, float]:
        """Scales whose deviance is at most the square of a normal quantile; from 0 and to infinity where all are.

        Parameters
        ----------
        quantile : float
            Positive.
        """
        k = int(np.argmin(self.deviances))
        lower, upper = (
            _crossing(quantile, side * self.logs[part], self.deviances[part])
            for side, part in ((-1, slice(k, None, -1)), (1, slice(k, None)))
        )
        return float(np.exp(-lower)), float(np.exp(upper))


def _crossing(quantile: float, places: np.ndarray, deviances: np.ndarray) -> float:
    """The last place, in ascending order, at which a deviance passes the square; infinity where none does."""
    roots = np.sqrt(np.minimum.accumulate(deviances[::-1])[::-1])  # linear in the place for a normal law
    return float(np.interp(quantile, roots, places)) if roots[-1] > quantile else np.inf


def scale_profile(criterion: Criterion, minimum: Minimum) -> ScaleProfile | None:
    """The profile around a minimum; None where the scale's logarithm is normal.

    Parameters
    ----------
    criterion : Criterion
        With a scale.
    minimum : Minimum
        Its minimum, where the information is positive definite.
    """
    precision = criterion.objective.scale_precision()
    information = 1 / np.linalg.inv(minimum.at.hessian)[-1, -1] - precision
    if information >= ENOUGH:
        return None

    def nats(others: np.ndarray, log_scale: float) -> tuple[np.ndarray, float]:
        def rest(part: np.ndarray) -> Derivatives:
            value, gradient, hessian, spread = criterion(np.append(part, log_scale))
            return Derivatives(value, gradient[:-1], hessian[:-1, :-1], spread[:-1, :-1])

        best = newton(rest, others, ROUGH)
        return best.theta, best.at.value - 0.5 * precision * (log_scale - np.log(criterion.scale)) ** 2

    start = minimum.theta[-1]
    step = float(np.clip(1 / np.sqrt(max(information, 1e-9)), *STEPS))
    found = {start: nats(minimum.theta[:-1], start)}
    for side in (1, -1):
        log_scale, flat = start, 0
        for _ in range(MOST):
            last, log_scale = found[log_scale], log_scale + side * step
            found[log_scale] = nats(last[0], log_scale)
            values = [value for _, value in found.values()]
            flat = flat + 1 if abs(values[-1] - last[1]) < FLAT else 0
            if 2 * (values[-1] - min(values)) > DEEP or (side < 0 and flat == 2):
                break
    logs = np.sort(list(found))
    nats_there = np.array([found[log_scale][1] for log_scale in logs])
    return ScaleProfile(logs, 2 * (nats_there - nats_there.min()))
