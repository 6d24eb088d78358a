"""Rates of small areas from a published table of noisy counts."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from ldpbayes import NoisyTable, Release, observe
from ldpbayes._core.tracing import is_concrete
from ldpbayes.models._factory import factory
from ldpbayes.models._pooled import FlatPositive, Located, pooled, pooled_gamma

ROUGH_SPREAD = 0.5  # of cells within an area, for the coordinates in which areas are sampled


@factory("numbers")
def small_areas(
    table: NoisyTable | Release,
    exposure: Any = 1.0,
    covariates: Any = None,
    response: Literal["poisson", "negative_binomial", "binomial"] = "poisson",
    intercept: dist.Distribution = dist.Normal(0, 5),
    spread: dist.Distribution = dist.HalfNormal(1),
    slope: dist.Distribution = dist.Normal(0, 1),
    concentration: dist.Distribution = dist.Gamma(2, 0.1),
) -> None:
    """Model of the rates of areas, such as counties in states, whose counts were released with noise.

    Returns model(table) with sites ``intercept``, ``slopes`` (with covariates) and ``z``. Each key of the table has
    ``spread_KEY`` (but the last key of a negative binomial response has ``concentration``). Each key but the last has
    ``effect_KEY``, one value for each area: its mean log rate, or for binomial responses its mean logit. Each cell has
    ``effect``, ``rate`` and ``total``, the expected count. Keys are nested in their order: the label of an area and the
    labels of the keys before identify the area. A release without keys has the key "area".

    ``rate`` and ``total`` describe the population from which the counts are a sample. The true table
    (`ldpbayes.tables.true_table`) describes the counts. Raises ValueError if exposures or covariates have another
    number of cells, or are not positive or finite.

    Parameters
    ----------
    exposure : float, array (cells,) or Release
        Multiplier of the rates: numbers of people, or of people times years; for a binomial response, numbers of
        trials. Or a noisy release of the exposure with a value for each cell. It then has a flat prior and the site
        ``exposure``.
    covariates : array (cells, d), optional
        Covariates of the cells. Standardise them, since all slopes have one prior.
    response : {"poisson", "negative_binomial", "binomial"}
        Law of a count. "poisson": mean exposure × rate, with log-normal rates of the cells of an area.
        "negative_binomial": mean exposure × rate, with gamma rates. "binomial": logit-normal shares of the exposure.
    intercept, spread, slope, concentration : numpyro.distributions.Distribution
        Priors of the overall log rate or logit (default: normal with mean 0 and standard deviation 5), of the standard
        deviation of areas within the area above (default: half-normal with scale 1), of each slope (default: standard
        normal), and of a negative binomial's concentration (default: gamma with shape 2 and rate 0.1, mean 20).
    """
    if response not in ("poisson", "negative_binomial", "binomial"):
        raise ValueError(f"response must be poisson, negative_binomial or binomial, got {response!r}")
    binomial, count = response == "binomial", len(table)
    keys, gamma = list(getattr(table, "keys", None) or ["area"]), response == "negative_binomial"
    size, rough = _exposures(exposure, count, binomial)
    center, precision = _rough_effects(table, rough, binomial)
    matrix = _matrix(covariates, count)
    # All coordinates depend on rough estimates of effects and spreads, and no law does: with coordinates of one scale,
    # near the posterior, chains need no long trees before they know the scales.
    informed = 1 / (1 / np.maximum(precision, 1e-12) + ROUGH_SPREAD**2)
    known = np.sum(np.square(informed * ROUGH_SPREAD**2))  # number of cells that would tell as much without noise
    overall = np.average(center, weights=informed)
    mean = numpyro.sample("intercept", _located(intercept, overall, ROUGH_SPREAD))
    slopes = numpyro.sample("slopes", slope.expand([matrix.shape[1]]).to_event(1)) if matrix.shape[1] else jnp.zeros(0)
    cells = np.zeros(count, int)
    for key in keys[:-1]:
        cells, above = _areas(table, key, cells)
        total = np.bincount(cells, informed)
        columns = np.stack([center, *matrix.T])
        rough_mean, *rough_columns = (np.bincount(cells, informed * column) / total for column in columns)
        estimate = rough_mean - np.reshape(rough_columns, (-1, len(total))).T @ slopes
        between = numpyro.sample(f"spread_{key}", _located(spread, ROUGH_SPREAD, 1 / np.sqrt(2 * len(total))))
        with numpyro.plate(key, len(total)):
            mean = numpyro.sample(
                f"effect_{key}", pooled(mean[above] if jnp.ndim(mean) else mean, between, estimate, total)
            )
    mean = (mean[cells] if jnp.ndim(mean) else mean) + matrix @ slopes
    # Within an area rates are log-normal, or gamma with a variance of 1/concentration.
    error = 1 / np.sqrt(2 * max(known, 1.0))
    if gamma:
        within = numpyro.sample("concentration", _located(concentration, ROUGH_SPREAD**-2, 2 * error))
    else:
        within = numpyro.sample(f"spread_{keys[-1]}", _located(spread, ROUGH_SPREAD, error))
    with numpyro.plate(getattr(table, "dim", "area"), count):
        law = (pooled_gamma if gamma else pooled)(mean, within, center, precision)
        effect = numpyro.sample("effect", law)
        rate = numpyro.deterministic("rate", jax.nn.sigmoid(effect) if binomial else jnp.exp(effect))
        numpyro.deterministic("total", size * rate)
    observe("z", dist.BinomialLogits(effect, size) if binomial else dist.Poisson(size * rate), table)


def _located(law: dist.Distribution, center: float, scale: float) -> dist.Distribution:
    """A prior of a number, or of a positive one (with a relative scale), sampled near a center; others as they are."""
    if law.support is dist.constraints.positive:
        return Located(law, np.log(center), scale, positive=True)
    return Located(law, center, scale) if law.support is dist.constraints.real else law


def _areas(table: Any, key: str, above: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The area (cells,) of each cell by a key within areas above (cells,), and that of each area (areas,)."""
    pairs = np.stack([above, table.levels(key)[1]])
    _, first, areas = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[areas.ravel()], above[first[order]]


def _exposures(exposure: Any, count: int, binomial: bool) -> tuple[Any, np.ndarray]:
    """Exposures (cells,), a site if they were released with noise, and estimates of them."""
    noisy = isinstance(exposure, Release)
    values = np.asarray(exposure.values if noisy else exposure, float)
    if noisy and binomial:
        raise ValueError("a binomial response needs the number of trials; with a noisy one take a Poisson response")
    if values.shape not in ((), (count,)):
        raise ValueError(f"exposure must be a number, or one for each cell (here {count}), got shape {values.shape}")
    if not noisy:
        bad = ~(values > 0) | ~np.isfinite(values) | (binomial & (values != np.round(values)))
        if bad.any():
            allowed = "whole and positive, numbers of trials" if binomial else "positive and finite"
            raise ValueError(f"exposure must be {allowed}, got {values[bad].flat[0]}")
        return (values.astype(int) if binomial else values), values
    error = np.broadcast_to(exposure.mechanism.noise.standard_deviation, values.shape)
    rough = np.maximum(np.nan_to_num(values), error)
    with numpyro.plate("exposed", count):
        size = numpyro.sample("exposure", FlatPositive(rough, error / rough))
    observe("exposure_z", dist.Delta(size), exposure)
    return size, rough


def _rough_effects(table: Any, exposure: np.ndarray, binomial: bool) -> tuple[np.ndarray, np.ndarray]:
    """Log rates or logits (cells,) by the released counts, drawn to the overall one, and the precisions of these."""
    if table.values is None or not is_concrete(table.values):  # many tables at once have coordinates in common
        return np.zeros(len(table)), np.zeros(len(table))
    values = np.asarray(table.values, float)
    known, exposure = np.isfinite(values), np.broadcast_to(exposure, values.shape)
    overall = max(np.sum(values[known]), 1.0) / np.sum(exposure[known])
    expected = exposure * (min(overall, 0.5) if binomial else overall)
    variance = np.square(np.broadcast_to(table.mechanism.noise.standard_deviation, values.shape))
    # A count below what is expected says little of a logarithm: it is drawn to it by the noise's share of the variance.
    pull = variance / (variance + expected)
    counts = np.maximum(np.where(known, values, expected), 0) * (1 - pull) + expected * pull
    counts = np.clip(counts, 0.25, exposure - 0.25 if binomial else np.inf)
    share = binomial * counts / exposure
    information, center = counts * (1 - share), np.log(counts / exposure) - np.log1p(-share)
    return center, np.where(known, np.square(information) / (information + variance), 0.0)


def _matrix(covariates: Any, count: int) -> np.ndarray:
    """Covariates (cells, d), of which there may be none."""
    matrix = np.empty((count, 0)) if covariates is None else np.asarray(covariates, float)
    if matrix.ndim != 2 or len(matrix) != count or not np.isfinite(matrix).all():
        allowed = f"finite numbers (cells, d), here of {count} cells"
        raise ValueError(f"covariates must be {allowed}; got shape {matrix.shape}")
    return matrix
