"""Coverage of the regressions of [KJKH]: original records from the model, perturbed as the mechanism says, and back."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import lax

from ldpbayes.data import Release, ReleaseWarning
from ldpbayes.data.sketches import MomentSketch, TotalSketch
from ldpbayes.laws.compound import unwrapped
from ldpbayes.likelihood import Privatized
from ldpbayes.mechanisms import AdditiveMechanism, LinearRecordsMechanism, StatisticsMechanism
from ldpbayes.noise import Gaussian
from ldpbayes.studies import CalibrationStudy, Checkpoint, ReplicatedFit


def regression_coverage(
    model,
    mechanism,
    count,
    *,
    replicates=100,
    seed=0,
    num_warmup=500,
    num_samples=500,
    batch=20,
    checkpoint=None,
    progress_bar=True,
    **options,
):
    """Simulate parameters, original records and releases of a regression, fit each, and record the truth's quantile.

    Unlike in `ldpbayes.studies.sbc`, statistics are sums over records drawn from the model, and not draws of the
    normal law that the model has for such a sum: the study judges this law too. Records are not clipped. Original
    records depend neither on the mechanism nor on how the model weighs them. Options are those of NUTS.
    """
    released, size = (mechanism.total(count), 1) if isinstance(mechanism, StatisticsMechanism) else (mechanism, count)
    settings = {"mechanism": mechanism.spec(), "count": count, "replicates": replicates, "seed": seed, "batch": batch}
    settings |= {"num_warmup": num_warmup, "num_samples": num_samples, "options": repr(sorted(options.items()))}
    fit = ReplicatedFit(model, num_warmup=num_warmup, num_samples=num_samples, **options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        saved = stack.enter_context(Checkpoint(checkpoint, settings, (model, Release(None, released, size))))
        stack.enter_context(saved.interruptible())
        finished = int(saved.get("finished", 0))
        bar = stack.enter_context(contextlib.closing(fit.bar(replicates, finished, progress_bar)))
        keys = jax.random.split(jax.random.key(seed), replicates + 1)
        simulate = jax.jit(lambda keys: lax.map(lambda key: _simulated(key, model, mechanism, count), keys))
        for start in range(finished, replicates, batch):
            truth, values = simulate(keys[1 + start : 1 + min(start + batch, replicates)])
            samples = fit(jax.random.fold_in(keys[0], start), [_fitted(np.asarray(z), released) for z in values], bar)
            for name, value in truth.items():
                below = np.mean(samples[name] < np.asarray(value)[:, None], axis=1)
                for part, array in (("below", below), ("truth", np.asarray(value))):
                    before = [saved[f"{part} {name}"]] if f"{part} {name}" in saved else []
                    saved[f"{part} {name}"] = np.concatenate([*before, array])
            saved["finished"] = np.array(min(start + batch, replicates))
            saved.save()
        return CalibrationStudy(dict(_quantiles(saved)))


def _simulated(key, model, mechanism, count):
    """Parameters, and what is released: the rows, or the sum of their statistics."""
    keys = jax.random.split(key, 3)
    summed = isinstance(mechanism, StatisticsMechanism)
    width = mechanism.covariates + 1 if summed else mechanism.event_shape[0]
    # Any release of rows serves to read the law of a row from the model.
    plan = AdditiveMechanism(Gaussian(1.0), columns=width, perturbed=tuple(range(width - 1)), sensitivity=np.inf)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, keys[0])).get_trace(Release(None, plan, 1))
    laws = {name: unwrapped(site["fn"])[0] for name, site in trace.items() if site["type"] == "sample"}
    (law,) = (law for law in laws.values() if isinstance(law, Privatized))
    truth = {name: trace[name]["value"] for name, law in laws.items() if not isinstance(law, Privatized)}
    rows = law.base_dist.sample(keys[1], (count,))
    if not summed:
        return truth, mechanism.simulate(keys[2], rows)
    # The sum of the records' noises is normal, and drawn as such.
    return truth, mechanism.total(count).simulate(keys[2], jnp.sum(mechanism.statistics(rows), axis=0))


def _fitted(values, mechanism):
    """The release, or a sketch of it where that loses nothing."""
    if isinstance(mechanism, StatisticsMechanism):
        return TotalSketch(mechanism, values[None], np.ones(1))
    if isinstance(mechanism, LinearRecordsMechanism):
        return MomentSketch.of(values, mechanism)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReleaseWarning)  # records beyond the bounds are not clipped
        return Release(values, mechanism)


def _quantiles(saved):
    """Quantiles of every scalar parameter, without the entries that a model fixes, which all replicates share."""
    for name in (name.removeprefix("truth ") for name in saved if name.startswith("truth ")):
        truth = saved[f"truth {name}"]
        for index in map(tuple, np.argwhere(np.any(truth != truth[:1], axis=0))):
            yield name + (f"[{', '.join(map(str, index))}]" if index else ""), saved[f"below {name}"][:, *index]
