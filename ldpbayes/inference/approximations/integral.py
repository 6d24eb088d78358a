"""Posteriors of few parameters, integrated on cells: draws are independent, and the evidence comes with them."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from ldpbayes._core.types import Array, Params, PyTree
from ldpbayes.inference.chains import Bar, DensityOf, Positions, flat_rows
from ldpbayes.inference.compiled_programs import in_threads, program_of, stacked
from ldpbayes.numerics.cubature import RINGS, Cells, NotIntegrable, integrate

MAX_INTEGRATED_PARAMETERS = 3
# Of the density. Four chains of 1,000 + 1,000 iterations take some 50,000 gradients, each longer than an evaluation.
MAX_EVALUATIONS = 200_000
# By number of parameters: iterations of chains in the time of an integral, and points where a search for modes starts.
ITERATIONS_AS_LONG, START_POINTS = {1: 50, 2: 200, 3: 2000}, {1: 256, 2: 768, 3: 2048}
PRIOR_BULK_SDS = 12.0  # standard deviations around its mean in which a prior has its mass
POINTS_AT_ONCE, MAX_ENTRIES_AT_ONCE = 128, 1 << 24  # points of one call, and array entries that these handle at most


class Integrated(Positions):
    """The integral of a density, or of each of several of one structure, in the place of chains, one for each seed."""

    def __init__(
        self,
        density: DensityOf,
        seeds: Sequence[Any],
        num_samples: int,
        data: Sequence[PyTree] = ((),),
        rings: int = RINGS,
        coarse: bool = False,
    ) -> None:
        count, most = sum(zeros.size for zeros in density(data[0]).example().values()), MAX_INTEGRATED_PARAMETERS
        if not 1 <= count <= most:
            raise NotIntegrable(f"the model has {count} unconstrained parameters, more than {most}")
        super().__init__(density, data, num_samples)
        self._options, self._seeds = (rings, coarse), seeds
        potential, self._arrays = self._traced(lambda d, row: d.potential(self.at(row)), np.zeros(count))
        self._size = max(1, min(POINTS_AT_ONCE, int(MAX_ENTRIES_AT_ONCE / max(potential.work, 1))))
        rows = np.zeros((self._size, count))
        try:
            self._program = potential.program("integrand", jax.vmap(potential, (None, 0)), self._arrays[0], rows)
        except NotImplementedError:  # a callback that takes one point at a time

            def one_by_one(arrays: PyTree, rows: Array) -> Array:
                return jax.lax.map(functools.partial(potential, arrays), rows)

            self._program = potential.program("integrand one by one", one_by_one, self._arrays[0], rows)
        self._spread = program_of("spread", density(data[0]).spread)
        self._bar: Bar | None = None

    @functools.cached_property
    def cells(self) -> list[Cells]:
        """The integrals, one for each entry of the data. Raises `NotIntegrable` or `ImproperDensity`."""
        starts = self._starts()

        def integral(arrays: PyTree) -> Cells:
            log_density = functools.partial(self._log_density, arrays)
            return integrate(log_density, *starts, MAX_EVALUATIONS, *self._options)

        return in_threads(integral, self._arrays)

    @property
    def facts(self) -> dict[str, Any]:
        """How the first density was integrated."""
        cells = self.cells[0]
        numbers = {"total_variation": cells.error, "evaluations": cells.evaluations, "cells": len(cells.masses)}
        return {"ran": "integral", **numbers, "log_evidence": cells.log_integral}

    def _log_density(self, arrays: PyTree, points: np.ndarray) -> np.ndarray:
        count, size = len(points), self._size
        padded = np.concatenate([points, np.repeat(points[-1:], -count % size, axis=0)])
        blocks = []
        for start in range(0, len(padded), size):
            blocks.append(np.asarray(self._program(arrays, padded[start : start + size])))
            if self._bar:
                self._bar.add(size)
                self._bar.show()
        return -np.concatenate(blocks)[:count]

    def _starts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points (m, n), where the prior has its mass, near 0, or, if it is unknown, at all scales; spreads (n,) of the
        prior; and how far from the first point its mass may be.
        """
        centre, scale = (flat_rows(part, self.example)[0] for part in self._spread())
        centre, scale = np.where(np.isfinite(centre), centre, 0.0), np.abs(scale)
        stated = np.isfinite(scale) & (scale > 0)
        scale = np.where(stated, scale, 1.0)
        count, n, rng = START_POINTS[len(scale)], len(scale), np.random.default_rng(0)
        # Evenly spread numbers: multiples of powers of the root of x^(n + 1) = x + 1.
        golden = np.max(np.real(np.roots([1.0, *[0.0] * (n - 1), -1.0, -1.0])))
        even = (0.5 + np.arange(count)[:, None] * golden ** -np.arange(1.0, n + 1)) % 1
        near, wide = 4 * even[: count // 4] - 2, rng.standard_normal((count // 4, n))
        wide *= np.where(stated, scale, 10.0 ** rng.uniform(-1, 4, (len(wide), 1)))
        prior = ndtri(even[count // 2 :]) * scale * np.resize([1.0, 1.0, 2.0, 4.0], (count - count // 2, 1))
        points = np.concatenate([[centre], centre + prior, near, centre + wide])
        return points, scale, np.where(stated, PRIOR_BULK_SDS * scale, np.inf)

    @functools.cached_property
    def _draws(self) -> tuple[Params, Params]:
        n = self.cells[0].low.shape[1]
        # Other data have other numbers, or draws from two posteriors would not be independent. The evidence is rounded,
        # so that numbers are the same where floating point numbers round otherwise.
        owners = zip(self._seeds, itertools.cycle(self.cells))
        seeds = [[*seed, round(1e4 * cell.log_integral) % 2**64] for seed, cell in owners]
        uniforms = [np.random.default_rng(seed).random((self._num_samples, 1 + n)) for seed in seeds]
        draws = in_threads(lambda pair: pair[0].draws(pair[1]), [*zip(itertools.cycle(self.cells), uniforms)])
        rows, log_density = stacked(draws)
        return self.at(rows), {"potential_energy": -log_density}

    def run(self, iterations: int, bar: Bar | None = None) -> tuple[Params, Params]:
        """Positions by site and statistics by name, (chains, num_samples, ...): the same in every call."""
        self._bar = bar
        return self._draws

    def warm_up(self, bar: Bar | None = None) -> Params:
        return self.run(self._num_samples, bar)[0]

    def at(self, rows: Array) -> Params:
        """Positions by site at flat parameters (..., n)."""
        ends = np.cumsum([np.size(zeros) for _, zeros in sorted(self.example.items())])
        parts = zip(sorted(self.example.items()), np.append(0, ends), ends, strict=False)
        lead = np.shape(rows)[:-1]
        return {name: rows[..., start:end].reshape(*lead, *np.shape(zeros)) for (name, zeros), start, end in parts}
