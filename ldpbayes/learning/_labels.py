"""Private labels: how they are released, and which values are plausible."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ldpbayes._core.checks import check_order, checked
from ldpbayes.data import Release
from ldpbayes.estimation.priors import label_prior
from ldpbayes.mechanisms import LaplaceMechanism, RPWithPrior
from ldpbayes.mechanisms.design import Histogram, optimal_half_width
from ldpbayes.privacy import Guarantee
from ldpbayes.privacy.tradeoffs import PureProtocolTradeoff


def plausible_labels(values: Any, mechanism: Any) -> Any:
    """Labels to start from, shape (n,): unbiased ones where the mechanism has some, else the released values.

    Parameters
    ----------
    values : array (n,)
        Released labels.
    mechanism : Mechanism
        What released them.
    """
    try:
        return mechanism.unbiased(values)
    except ValueError:
        return values


def label_range(mechanism: Any) -> tuple[Any, Any] | None:
    """Bounds of labels, the widest of all of them; None where there are none.

    Parameters
    ----------
    mechanism : Mechanism
        What released them.
    """
    domain = mechanism.domain
    if not (hasattr(domain, "lower_bound") and hasattr(domain, "upper_bound")):
        return None
    return jnp.min(domain.lower_bound), jnp.max(domain.upper_bound)


def label_spread(values: Any, mechanism: Any) -> jax.Array:
    """A plausible scale of labels: a sixth of what lies between their bounds, else the released values' deviation.

    Parameters
    ----------
    values : array (n,)
        Released labels.
    mechanism : Mechanism
        What released them.
    """
    bounds = label_range(mechanism)
    if bounds is not None:
        return (bounds[1] - bounds[0]) / 6
    deviation = jnp.std(plausible_labels(jnp.asarray(values, float), mechanism))
    return jnp.where(deviation > 0, deviation, 1.0)


HELD = 0.9
"""Probability, under an estimated prior, of the interval in which labels keep their neighbourhood."""

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True, eq=False)
class LabelRelease:
    """What `release_labels` made: all of it may be shown to anybody.

    Attributes
    ----------
    release : Release
        Labels under `RPWithPrior`, to learn from.
    prior_release : Release or None
        Labels under Laplace noise, of which the prior was estimated; None where nothing was spent on one.
    prior : Histogram
        The prior of the labels: estimated, or uniform between the bounds.
    """

    release: Release
    prior_release: Release | None
    prior: Histogram

    @property
    def _budgets(self) -> tuple[float, ...]:
        """Of the prior, where there is one, and of the labels."""
        parts: tuple[Any, ...] = (self.prior_release, self.release)
        return tuple(part.mechanism.epsilon for part in parts if part is not None)

    @property
    def guarantee(self) -> Guarantee:
        """Of both releases together: pure differential privacy whose ε is their sum, by adaptive composition.

        The trade-off curve is the one that all mechanisms of this ε have or lie above. Of one release it is exact.
        """
        own = self.release.mechanism.guarantee
        if self.prior_release is None:
            return own
        epsilon = sum(self._budgets)
        return Guarantee(PureProtocolTradeoff(epsilon, 1 / (1 + np.exp(-epsilon))), unit="label")

    @property
    def privacy(self) -> str:
        """The guarantee in plain sentences."""
        said = self.guarantee.statement()
        if self.prior_release is None:
            return said
        first, second = self._budgets
        return (
            f"{said} Of this epsilon, {first:.4g} went into the prior of the labels and {second:.4g} into each label."
        )


def release_labels(
    labels: ArrayLike,
    epsilon: float,
    *,
    lower: float,
    upper: float,
    prior_epsilon: float = 0.0,
    half_width: float | None = None,
    interval: Interval | Callable[[Histogram, float, float], Interval] | None = None,
    outside: str = "projection",
    deconvolved: bool = True,
    seed: int = 0,
) -> LabelRelease:
    """Release labels under `RPWithPrior`, with the interval and the half-width chosen without looking at them.

    With a share ε₁ of the budget every label is first released under Laplace noise, a prior is estimated from these
    (`ldpbayes.estimation.label_prior`), and the rest goes into the labels ([LH], Algorithm 4). Without it, the prior is
    uniform between the bounds.

    A prior pays where the bounds are several times wider than where labels lie. Where they are not, its budget is
    better spent on the labels, since the half-width hardly depends on the prior. It takes about ε₁ = 12/√n to tell the
    law of n labels from a uniform one.

    For simulation and studies. To release real labels use a cryptographically secure sampler that is safe in floating
    point.

    Parameters
    ----------
    labels : array_like (n,)
        Numbers. Those outside the bounds are taken to be at them.
    epsilon : float
        Privacy budget of a label in all, positive and finite.
    lower, upper : float
        Bounds in the unit of the labels, finite, lower < upper; chosen without looking at the labels.
    prior_epsilon : float
        ε₁, the part of the budget that is spent on the prior: from 0, for none, to below `epsilon`.
    half_width : float, optional
        ζ of `RPWithPrior`, positive and finite. Default: the one whose releases explain most of the labels' variance
        under the prior (`ldpbayes.mechanisms.optimal_half_width`).
    interval : pair of float or callable, optional
        Interval of `RPWithPrior`; or what chooses it from the prior, the budget of the labels and ζ, such as
        `ldpbayes.mechanisms.optimal_interval`, which is [LH]'s choice. By default the interval of the highest
        densities of an estimated prior that have 90 % of it, or the bounds where nothing was spent on one.
    outside : {"projection", "uniform"}
        What becomes of labels outside the interval; see `RPWithPrior`.
    deconvolved : bool
        Whether the prior is that of the labels, or (as in [LH]) that of labels with Laplace noise, between the bounds.
    seed : int
        Of all randomness.

    Returns
    -------
    LabelRelease

    Raises
    ------
    ValueError
        Before anything is released: for labels that are missing, empty, not a vector or no numbers, bounds out of
        order, a prior's budget that is not below the whole one, or another number out of range.
    """
    values = checked("labels", labels, "numbers (drop or impute missing labels first)", lambda a: ~np.isnan(a))
    if np.ndim(values) != 1:
        raise ValueError(f"labels must be a vector of one number a record, got an array of shape {np.shape(values)}")
    epsilon = checked("epsilon", epsilon, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    allowed = f"at least 0 and below epsilon = {epsilon:g}, the whole budget"
    prior_epsilon = checked("prior_epsilon", prior_epsilon, allowed, lambda a: (a >= 0) & (a < epsilon))
    lower, upper = (checked(name, end, "finite", np.isfinite) for name, end in (("lower", lower), ("upper", upper)))
    check_order(lower, upper)
    if half_width is not None:
        half_width = checked("half_width", half_width, "positive and finite", lambda a: (a > 0) & (a < np.inf))
    own = epsilon - prior_epsilon
    # what is wrong with the interval or the rule is said before anything is released
    RPWithPrior(own, (lower, upper) if interval is None or callable(interval) else interval, upper - lower, outside)

    first, second = jax.random.split(jax.random.key(seed))
    if prior_epsilon > 0:
        prior_release = _released(first, values, LaplaceMechanism(prior_epsilon, lower, upper))
        prior = label_prior(prior_release, deconvolved=deconvolved).within(lower, upper)
        found = prior.highest_density_interval(HELD)
    else:
        prior_release, prior = None, Histogram(np.array([lower, upper]), np.array([1 / (upper - lower)]))
        found = lower, upper
    choice = found if interval is None else interval
    if half_width is None:
        half_width, chosen, _ = optimal_half_width(prior, own, interval=choice)
    else:
        chosen = choice(prior, own, half_width) if callable(choice) else choice
    release = _released(second, values, RPWithPrior(own, chosen, half_width, outside))
    return LabelRelease(release, prior_release, prior)


def _released(key: jax.Array, labels: Any, mechanism: Any) -> Release:
    """Labels under a mechanism, drawn in double precision."""
    with jax.enable_x64(True):
        return Release(np.asarray(mechanism.randomize(key, labels)), mechanism)
