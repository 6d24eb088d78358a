"""Expansions of categories in the place of their records."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._core.types import Array, Params
from ldpbayes.data import ExpandedSketch
from ldpbayes.inference._surrogates import (
    CHECKED_DRAWS,
    HOPELESS_SD,
    Comparison,
    Expanded,
    Report,
    Surrogate,
    given_up,
    share_outside,
)
from ldpbayes.inference.chains import Sampler, evenly_spaced, flat_rows
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import Density, given
from ldpbayes.likelihood.nodes import ExpandedLaw
from ldpbayes.likelihood.privatized import unwrapped


@dataclasses.dataclass(eq=False)
class ExpandedCategories(Expanded):
    """A model of expanded sketches, whose reference are the records that they were made from, if these are kept."""

    density: Density
    sampler: Sampler
    records: Callable[[Report], Surrogate]

    def __post_init__(self) -> None:
        kept = [data.records is not None for data in self.density.data if isinstance(data, ExpandedSketch)]
        self.least_warmup = CHECKED_DRAWS if all(kept) else np.inf
        self.key = jax.random.fold_in(self.sampler.key, self.sampler.num_chains)

    def prepare(self, chains: Any) -> None:
        """Compile the shares of categories that the expansions depend on."""
        self.chains, self._sketches = chains, list[ExpandedSketch]()
        example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), chains.example)
        first, unravel = ravel_pytree(example)

        def shares(row: Array) -> list[Array]:
            parameters = unravel(row)
            sites = self.density.trace(given(self.density.model, parameters, parameters)).values()
            laws = [unwrapped(site["fn"])[0] for site in sites if site["type"] == "sample"]
            self._sketches[:] = [law.sketch for law in laws if isinstance(law, ExpandedLaw)]
            return [law.theta for law in laws if isinstance(law, ExpandedLaw)]

        self._shares = program_of("shares", shares, first)

    def _at(self, rows: np.ndarray) -> Iterator[tuple[ExpandedSketch, np.ndarray]]:
        """Each sketch with its shares (draws, ...)."""
        shares = zip(*map(self._shares, rows), strict=True)
        return zip(self._sketches, map(np.stack, shares), strict=True)

    def report(self) -> Report:
        order = max(sketch.polynomial.order for sketch in self._sketches)
        return Report(ran="expansion", count=sum(int(sketch.size) for sketch in self._sketches), order=order)

    def errors(self, x: np.ndarray) -> np.ndarray:
        return sum(sketch.log_likelihood(theta) - sketch.polynomial.values(theta) for sketch, theta in self._at(x))

    def along(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (potentials, gradients), errors = self.chains.potentials(rows), self.errors(rows)
        return errors - potentials, -gradients, errors

    def compare(self, positions: Params, final: bool = True) -> Comparison:
        if self.least_warmup < np.inf:
            return super().compare(positions, final)
        rows = evenly_spaced(flat_rows(positions, self.chains.example), CHECKED_DRAWS)
        share = max(share_outside(sketch.polynomial, theta) for sketch, theta in self._at(rows))
        doubt = f"{share:.0%} of the draws are not where the sketch was made; make it with keep_records=True"
        report = dataclasses.replace(self.report(), ran="expansion without records", outside=share)
        return Comparison(dataclasses.replace(report, doubt=doubt if share > 0 else None), rows)

    def refined(self, comparison: Comparison) -> Surrogate | None:
        why = comparison.why
        if not comparison.final and not np.std(comparison.errors) <= HOPELESS_SD:
            why = f"a sketch is off by {np.std(comparison.errors):.2g} nats (standard deviation) at posterior draws"
        return None if why is None else given_up(self.records, why, comparison.report)
