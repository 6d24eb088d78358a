"""Posteriors of models whose data are expansions already: sampled as they are, and compared with the records."""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from ldpbayes.data import ExpandedSketch, Release, Sketch
from ldpbayes.inference._bar import Bar
from ldpbayes.inference._certificate import leaves
from ldpbayes.inference._chains import Chains
from ldpbayes.inference._cut import Given
from ldpbayes.inference._density import RUNNING, Density
from ldpbayes.inference._expansion import outside, values_of
from ldpbayes.inference._outcome import CHECKS, HOPELESS, Outcome, errors_said, judged
from ldpbayes.inference._programs import PROGRAMS, Compiled, trace
from ldpbayes.inference._search import evenly
from ldpbayes.likelihood import ExpandedLaw
from ldpbayes.likelihood._privatized import unwrapped

__all__ = ["by_sketch", "counted", "expanded_sketches"]


def expanded_sketches(density: Density) -> list[ExpandedSketch]:
    """The expansions among the arguments of a density.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    """
    return [leaf for leaf in leaves((density.args, density.kwargs)) if isinstance(leaf, ExpandedSketch)]


def counted(density: Density) -> Density:
    """The same with counts of the released values in the places of expansions; ValueError without records.

    Parameters
    ----------
    density : Density
        The model with its arguments.
    """
    args, kwargs = jax.tree.map(
        lambda leaf: leaf.exact if isinstance(leaf, ExpandedSketch) else leaf,
        (density.args, density.kwargs),
        is_leaf=lambda leaf: isinstance(leaf, (Release, Sketch)),
    )
    return Density(density.model, args, kwargs)


def by_sketch(
    kernel: Any, chain_method: str | None, key: jax.Array, numbers: tuple[int, int, int], shown: bool, density: Density
) -> Outcome:
    """Sample a model of expansions, and compare these with their records at the draws.

    Parameters
    ----------
    kernel, chain_method
        As `Chains` takes them.
    key : jax.Array
        A JAX random key.
    numbers : tuple of int
        Warm-up iterations, draws and chains.
    shown : bool
        Whether a bar shows the progress.
    density : Density
        The model with its arguments.
    """
    num_warmup, num_samples, num_chains = numbers
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_chains))
    chains = Chains(lambda _: density, kernel, keys, num_warmup, num_samples, chain_method)
    shares = _Shares(density, chains.example)
    about = {"order": max(sketch.polynomial.order for sketch in shares.sketches)}
    about["count"] = sum(int(sketch.size) for sketch in shares.sketches)
    kept = all(sketch.records is not None for sketch in expanded_sketches(density))
    with contextlib.closing(Bar(num_chains * (num_warmup + num_samples), shown)) as bar:
        positions, statistics = chains.run(num_warmup, bar)
        if num_warmup >= CHECKS and kept:
            off = shares.errors(evenly(shares.rows(positions, num_warmup // 2), CHECKS))
            if not np.std(off) <= HOPELESS:
                why = f"a sketch is off by {np.std(off):.2g} nats (standard deviation) at posterior draws"
                return Outcome({"ran": "records", "why": why} | errors_said(off) | about)
        positions, statistics = chains.run(num_samples, bar)
    if kept:
        rows, key = shares.rows(positions), jax.random.fold_in(key, num_chains)

        def compared(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Log densities with the records' likelihood, gradients with the expansions', and errors."""
            (potentials, gradients), off = chains.slopes(points), shares.errors(points)
            return off - potentials, -gradients, off

        outcome = judged(shares.errors, rows, positions, statistics, chains.constrained, key, rows, compared)
        return outcome._replace(report=outcome.report | about)
    share = shares.outside(evenly(shares.rows(positions), CHECKS))
    report = {"ran": "expansion without records", "outside": share} | about
    if share > 0:
        report["doubt"] = f"{share:.0%} of the draws are not where the sketch was made; make it with keep_records=True"
    return Outcome(report, chains.constrained(positions), statistics)


class _Shares:
    """What expansions see of draws: the shares of their categories."""

    def __init__(self, density: Density, example: dict[str, Any]) -> None:
        self.sketches: list[ExpandedSketch] = []

        def shares(_: Any, parameters: dict[str, Any]) -> list[Any]:
            given = numpyro.handlers.trace(Given(density.model, parameters, parameters))
            with RUNNING:
                sites = given.get_trace(*density.args, **density.kwargs).values()
            laws = [unwrapped(site["fn"])[0] for site in sites if site["type"] == "sample"]
            self.sketches[:] = [law.sketch for law in laws if isinstance(law, ExpandedLaw)]
            return [law.theta for law in laws if isinstance(law, ExpandedLaw)]

        self._names = sorted(example)
        self._shapes = {name: example[name].shape for name in self._names}
        traced, (self._arrays,) = trace(shares, example)
        self._program = PROGRAMS.get(("shares", traced.key), lambda: Compiled(traced, self._arrays, example))

    def rows(self, positions: dict[str, Any], start: int = 0) -> np.ndarray:
        """Flat parameters (draws, size) of the draws from one on, of all chains."""
        parts = []
        for name in self._names:
            some = positions[name][:, start:]
            parts.append(some.reshape(some.shape[0] * some.shape[1], -1))
        return np.concatenate(parts, axis=1)

    def _of(self, rows: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum([int(np.prod(self._shapes[name])) for name in self._names])[:-1]
        made = []
        for row in rows:
            parts = zip(self._names, np.split(row, ends), strict=True)
            made.append(self._program(self._arrays, {name: part.reshape(self._shapes[name]) for name, part in parts}))
        return [np.stack(each) for each in zip(*made, strict=True)]

    def errors(self, rows: np.ndarray) -> np.ndarray:
        """Log-likelihood of the records less that of the expansions."""
        pairs = zip(self.sketches, self._of(rows), strict=True)
        return sum(sketch.log_likelihood(theta) - values_of(sketch.polynomial, theta) for sketch, theta in pairs)

    def outside(self, rows: np.ndarray) -> float:
        """Share of the draws that are not where the expansions were made."""
        pairs = zip(self.sketches, self._of(rows), strict=True)
        return max(outside(sketch.polynomial, theta) for sketch, theta in pairs)
