"""Posteriors of many data sets by one compiled integral or chain."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpyro.infer import NUTS

from ldpbayes._core.types import Model, Params
from ldpbayes.data import CountSketch, MixedSketch, MomentSketch, PanelSketch, TotalSketch
from ldpbayes.inference.approximations.replicates import sample_replicates
from ldpbayes.inference.chains import Bar, Sampling


class ReplicatedFit:
    """A function that samples the posteriors of many similar data sets, and compiles the model only once.

    For ``fit = ReplicatedFit(model)``, call ``fit(key, data)`` with a random key and a sequence of data sets. A data
    set is a release, a sketch of rows, or a tuple of these if the model takes a tuple. If the model has at most three
    unconstrained parameters, each posterior is integrated, and its draws are independent, as in `ldpbayes.fit`, but
    with 30 times its tolerance. Otherwise, each data set has one chain of NUTS (no-U-turn sampler). The result has the
    posterior draws of each site (named variable), as an array (data sets, num_samples, ...).

    Parameters
    ----------
    model : callable
        NumPyro model with one argument, the data set.
    num_warmup, num_samples : int
        For each chain: the number of warm-up iterations, which are discarded, and the number of draws. Default: 500 and
        500.
    sketched : bool
        True (default) if all records of a release have the same law, so that a sketch can replace the release. Use
        False for regressions, where the law of a record depends on its covariates.
    **options
        Options of ``numpyro.infer.NUTS``, such as ``target_accept_prob``. With any option, chains sample all
        posteriors.
    """

    def __init__(
        self, model: Model, *, num_warmup: int = 500, num_samples: int = 500, sketched: bool = True, **options: Any
    ) -> None:
        self._iterations, self._sketched = (num_warmup, num_samples), sketched
        self._kernel, self._chains_because = NUTS(model, **options), "options of NUTS were given" if options else None

    def bar(self, replicates: int, finished: int, shown: bool) -> Bar:
        """Return a progress bar for `replicates` data sets, which is shown on stderr if `shown` is True.

        `finished` is the number of data sets that are already finished, for example in a `Checkpoint`.
        """
        return Bar(replicates, shown, sum(self._iterations), desc="study", unit=" replicates", initial=finished)

    def __call__(self, key: jax.Array, data: Sequence[Any], bar: Bar | None = None) -> Params:
        with jax.enable_x64(True):
            keys, parts = (
                jax.random.split(key, len(data)),
                [each if isinstance(each, tuple) else (each,) for each in data],
            )
            columns, names = zip(*map(self._alike, zip(*parts, strict=True)), strict=True)
            sampling = Sampling(self._kernel, key, *self._iterations, len(data), chains_because=self._chains_because)
            return sample_replicates(sampling, keys, [*zip(*columns, strict=True)], names, bar)

    def _alike(self, releases: Sequence[Any]) -> tuple[list[Any], Sequence[str]]:
        """Releases, or sketches of them, that differ in the named arrays alone."""
        if isinstance(releases[0], (MomentSketch, TotalSketch)):
            return [*releases], ["nodes", "weights"]
        if not self._sketched or releases[0].mechanism.record_shape:
            return [*releases], ["values"]
        sketches: list[Any] = [release.sketch(keep_records=False, expand=False) for release in releases]
        if isinstance(sketches[0], PanelSketch):
            return [dataclasses.replace(sketch, probes=None) for sketch in sketches], PanelSketch.arrays
        if isinstance(sketches[0], MixedSketch):
            alike = ([dataclasses.replace(part, probes=None) for part in each.parts] for each in sketches)
            return [dataclasses.replace(sketches[0], parts=tuple(parts)) for parts in alike], ["parts"]
        return _at_common_nodes(sketches), ["weights"]


def _at_common_nodes(sketches: Sequence[CountSketch]) -> list[CountSketch]:
    """Sketches with their weights at the nodes of all, the last one repeated up to a power of two: so many nodes are
    those of nearly all calls, which share a compiled chain.
    """
    total: Any = sum(sketches)
    n = len(total.nodes)
    rows = np.minimum(np.arange(1 << (n - 1).bit_length()), n - 1)
    empty = dataclasses.replace(total, weights=np.zeros(n), added=())
    mechanism, groups = total.mechanism.of_records((n,), rows), None if total.groups is None else total.groups[rows]
    common = dataclasses.replace(empty, mechanism=mechanism, nodes=total.nodes[rows], groups=groups)
    # added to a sketch with all nodes and no weight, every sketch has its weights at the same nodes
    weights = (np.pad((empty + sketch).weights, (0, len(rows) - n)) for sketch in sketches)
    return [dataclasses.replace(common, weights=each) for each in weights]
