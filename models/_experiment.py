"""Experiments: the mean outcome of each arm."""

from typing import Any, Literal

import numpy as np
import numpyro
import numpyro.distributions as dist

from ldpbayes import Sketch, observe
from ldpbayes.inference import factory

_SHARE, _RATE = dist.Uniform(0, 1), dist.LogNormal(0, 2)
DEFAULT_MEANS = {"bernoulli": _SHARE, "binomial": _SHARE, "normal": dist.Normal(0, 5)}
DEFAULT_MEANS |= {"poisson": _RATE, "negative_binomial": _RATE}


@factory(
    "numbers or yes-or-no answers",
    groups=True,
    summary="Model of an experiment: the mean outcome of each arm, and its difference from the first arm.",
    mean="Uniform(0, 1) or Normal(0, 5) or LogNormal(0, 2)",
)
def experiment(
    arms: Any,
    response: Literal["bernoulli", "binomial", "normal", "poisson", "negative_binomial"] | None = None,
    exposure: Any = None,
    mean: dist.Distribution | None = None,
    sigma: dist.Distribution = dist.Gamma(2, 1),
    concentration: dist.Distribution = dist.LogNormal(0, 1),
) -> None:
    """Model of an experiment with two or more arms, of which the first is the control.

    Returns ``model(arms)`` of a sequence with a release, a sketch or a part of a `NoisyTable` for each arm, or of
    ``release.sketch(by=arm)``. The sites, along an axis ``arm``, are ``mean``, the mean outcome of an arm (the share of
    yes for answers, the rate for counts with an exposure), and ``effect``, its difference from that of the control; for
    outcomes that are not negative also ``lift``, the effect divided by the mean of the control. ``z`` (or several, as
    in `hierarchical`) has the released values.

    Parameters
    ----------
    response : str, optional
        The law of an outcome: "bernoulli" (0 or 1), "normal" with one standard deviation ``sigma`` in all arms,
        "poisson" or "negative_binomial" with one ``concentration``, or "binomial", the number of ones among
        ``exposure`` trials. Default: "bernoulli" for yes-or-no answers, and "normal" for numbers.
    exposure : float or array (arms,), optional
        For counts: the expectation of each count in an arm is exposure × mean. For "binomial": the number of trials.
        Default: 1.
    mean, sigma, concentration : numpyro.distributions.Distribution
        Priors. Default for ``mean``: uniform for shares, normal with mean 0 and standard deviation 5 for numbers, and
        for counts log-normal, where the logarithm has mean 0 and standard deviation 2.
    """
    together = isinstance(arms, Sketch)
    count = arms.law_shape[0] if together else len(arms)
    answers = any(part.mechanism.of_categories for part in ([arms] if together else arms))
    response = response or ("bernoulli" if answers else "normal")
    size = np.broadcast_to(np.asarray(1.0 if exposure is None else exposure, float), count)
    if response not in DEFAULT_MEANS or (answers and response != "bernoulli"):
        allowed = "bernoulli for yes-or-no answers" if answers else f"one of {', '.join(DEFAULT_MEANS)}"
        raise ValueError(f"response must be {allowed}, got {response!r}")
    if count < 2 or (exposure is not None and response in ("bernoulli", "normal")):
        raise ValueError(f"an experiment needs at least two arms, here {count}, and takes an exposure for counts only")
    whole = response == "binomial"
    if not np.all((size > 0) & np.isfinite(size) & ((size == np.round(size)) | (not whole))):
        raise ValueError(f"exposure must be positive{' and whole' * whole}, got {exposure}")
    with numpyro.plate("arm", count):
        level = numpyro.sample("mean", DEFAULT_MEANS[response] if mean is None else mean)
        numpyro.deterministic("effect", level - level[0])
        if response != "normal":
            numpyro.deterministic("lift", (level - level[0]) / level[0])
    if response == "normal":
        law: Any = dist.Normal(level, numpyro.sample("sigma", sigma))
    elif response == "negative_binomial":
        law = dist.NegativeBinomial2(size * level, numpyro.sample("concentration", concentration))
    elif response == "poisson":
        law = dist.Poisson(size * level)
    else:
        law = dist.BinomialProbs(level, size.astype(int)) if whole else dist.Bernoulli(level)
    observe("z", law, arms if together else list(arms))
