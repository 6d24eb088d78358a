"""Coverage of the regressions of [KJKH]: original records from the model, perturbed as the mechanism says, and back."""

import contextlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import lax

from ldpbayes._checks import at_least
from ldpbayes.data import MomentSketch, Release, ReleaseWarning, TotalSketch
from ldpbayes.likelihood import Privatized
from ldpbayes.likelihood._privatized import unwrapped
from ldpbayes.mechanisms import (
    AdditiveMechanism,
    LinearRecordsMechanism,
    LogisticRecordsMechanism,
    StatisticsMechanism,
)
from ldpbayes.noise import Gaussian
from ldpbayes.studies._checkpoint import Checkpoint
from ldpbayes.studies._coverage import Coverage
from ldpbayes.studies._replicates import ReplicatedFit

__all__ = ["regression_coverage"]


def regression_coverage(
    model: Callable,
    mechanism: LinearRecordsMechanism | LogisticRecordsMechanism | StatisticsMechanism,
    count: int,
    *,
    replicates: int = 100,
    seed: int = 0,
    num_warmup: int = 500,
    num_samples: int = 500,
    batch: int = 20,
    checkpoint: str | os.PathLike | None = None,
    progress_bar: bool = True,
    **options: Any,
) -> Coverage:
    """Simulate parameters, original records and releases of a regression, fit each, and record the truth's quantile.

    Parameters are drawn from the model's priors. Unlike in `ldpbayes.studies.coverage`, statistics are those of records
    drawn from the model, summed, and not drawn from the normal law that a model has for such a sum: whether that law is
    good enough is part of what is found. Records are not clipped, wherever they lie.

    Parameters
    ----------
    model : callable
        NumPyro model of a release of rows or of statistics, such as ``ldpbayes.models.linear_regression()``.
    mechanism : LinearRecordsMechanism, LogisticRecordsMechanism, or StatisticsMechanism of one record
        What makes the releases, with one budget; statistics are released as the sum of locally perturbed ones.
    count : int
        Records a release.
    replicates, batch : int
        Number of prior draws, and how many run together and are saved together: an interrupt loses the batch that it
        meets. Results for a seed depend on the batch.
    seed : int
        Results are a function of the seed and the library versions. Original records do not depend on the mechanism,
        nor on how the model weighs them: likelihoods and budgets are compared on the same ones.
    num_warmup, num_samples : int
        NUTS iterations of a fit that adapt it and are discarded, and that are kept.
    checkpoint : path, optional
        An ``.npz`` file to which every finished batch is added, and from which a study that was interrupted resumes.
    progress_bar : bool
        Whether a bar on stderr counts the replicates.
    **options
        Of ``numpyro.infer.NUTS``.

    Returns
    -------
    Coverage
        Of every scalar parameter.

    Raises
    ------
    ValueError
        If the checkpoint belongs to another study, statistics are not of one record each and locally perturbed, or an
        argument is out of range.

    Notes
    -----
    Source: [KJKH] sec. 4.4, which has such a study of histograms.
    """
    for name, value in (("count", count), ("replicates", replicates), ("batch", batch)):
        at_least(1, name, value)
    released, values = (mechanism.total(count), 1) if isinstance(mechanism, StatisticsMechanism) else (mechanism, count)
    settings = {"mechanism": mechanism.spec(), "count": count, "replicates": replicates, "seed": seed, "batch": batch}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples, "options": repr(sorted(options.items()))}
    fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples, **options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        done = stack.enter_context(Checkpoint(checkpoint, settings, (model, released, values)))
        stack.enter_context(done.interruptible())
        finished = int(done.get("finished", 0))
        bar = stack.enter_context(contextlib.closing(fit.bar(replicates, finished, progress_bar)))
        keys = jax.random.split(jax.random.key(seed), replicates + 1)
        simulate = jax.jit(lambda keys: lax.map(lambda key: _simulated(key, model, mechanism, count), keys))
        for start in range(finished, replicates, batch):
            truth, given = simulate(keys[1 + start : 1 + min(start + batch, replicates)])
            samples = fit(jax.random.fold_in(keys[0], start), [_given(np.asarray(z), released) for z in given], bar)
            for name, value in truth.items():
                below = np.mean(samples[name] < np.asarray(value)[:, None], axis=1)
                for part, array in (("below", below), ("truth", np.asarray(value))):
                    before = [done[f"{part} {name}"]] if f"{part} {name}" in done else []
                    done[f"{part} {name}"] = np.concatenate([*before, array])
            done["finished"] = np.array(min(start + batch, replicates))
            done.save()
        return Coverage(dict(_quantiles(done)))


def _simulated(key: Any, model: Callable, mechanism: Any, count: int) -> tuple[dict[str, Any], Any]:
    """Parameters, and what is released: the rows, or the sum of their statistics."""
    keys = jax.random.split(key, 3)
    summed = isinstance(mechanism, StatisticsMechanism)
    width = mechanism.covariates + 1 if summed else mechanism.event_shape[0]
    # what the model is given only has to be a release of rows: their law is taken from it
    plan = AdditiveMechanism(Gaussian(1.0), columns=width, perturbed=tuple(range(width - 1)), sensitivity=np.inf)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, keys[0])).get_trace(Release(None, plan, 1))
    laws = {name: unwrapped(site["fn"])[0] for name, site in trace.items() if site["type"] == "sample"}
    (law,) = (law for law in laws.values() if isinstance(law, Privatized))
    truth = {name: trace[name]["value"] for name, law in laws.items() if not isinstance(law, Privatized)}
    rows = law.base_dist.sample(keys[1], (count,))
    if not summed:
        return truth, mechanism.simulate(keys[2], rows)
    # the sum of the records' noises is normal, and drawn as such
    return truth, mechanism.total(count).simulate(keys[2], jnp.sum(mechanism.statistics(rows), axis=0))


def _given(values: np.ndarray, mechanism: Any) -> Any:
    """What is fitted: a sketch, where one says all that the release does."""
    if isinstance(mechanism, StatisticsMechanism):
        return TotalSketch(mechanism, values[None], np.ones(1))
    if isinstance(mechanism, LinearRecordsMechanism):
        return MomentSketch.of(values, mechanism)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReleaseWarning)  # records beyond the bounds are not clipped
        return Release(values, mechanism)


def _quantiles(done: dict[str, np.ndarray]) -> Any:
    """Those of every scalar parameter, but for entries that the model fixes: these are the same in all replicates."""
    for name in (name.removeprefix("truth ") for name in done if name.startswith("truth ")):
        truth = done[f"truth {name}"]
        for index in map(tuple, np.argwhere(np.any(truth != truth[:1], axis=0))):
            yield name + (f"[{', '.join(map(str, index))}]" if index else ""), done[f"below {name}"][:, *index]
