"""Rates of small areas from a published table of noisy counts."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from ldpbayes import NoisyTable, Release, observe
from ldpbayes.inference import factory
from ldpbayes.mechanisms import Published
from ldpbayes.models._coordinates import FlatPositive, located, pooled, pooled_gamma
from ldpbayes.models._published import log_published

ROUGH_SPREAD = 0.5  # of cells within an area, for the coordinates in which areas are sampled


@factory(
    "numbers", summary="Model of the rates of areas, such as counties in states, whose counts were released with noise."
)
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

    Returns ``model(table)``. The keys of the table are nested levels of areas, the largest areas first, such as "state"
    and "county". The cells are the areas of the last key. (If a release has no keys, the single key is called "area".)
    The sites of the model are:

    - ``intercept`` and, if there are covariates, ``slopes``;
    - ``effect_state``: the mean log rate of each state, and similarly for every key except the last;
    - ``spread_state``: the standard deviation of the states around the overall mean. ``spread_county``: the standard
      deviation of the counties within a state, or ``concentration`` for a negative binomial response;
    - ``effect``, ``rate`` and ``total``: for each cell, the log rate, the rate, and the expected count;
    - ``z``: the released counts.

    For a binomial response, logits replace log rates. ``rate`` and ``total`` describe the population, of which the
    people in the table are a sample. For the counts before noise, use `ldpbayes.tables.true_table`.

    If only a part of the table was published (`ldpbayes.mechanisms.Published`), the effects of cells have the law of
    all cells, published or not. ValueError for a binomial response, for several noises, and for a number of cells that
    were not published if cells have different exposures, covariates or larger areas.

    Parameters
    ----------
    exposure : float, array (cells,) or Release
        The expected count of a cell is exposure × rate. Usually, the exposure is the number of people in the cell. For
        a binomial response, it is the number of trials. If the exposure was released with noise, give this release,
        with one value for each cell (a table of equal cells may have them in any order). The true exposure is then a
        site ``exposure`` with a flat prior.
    covariates : array (cells, d), optional
        The d covariates of each cell. Standardise the covariates, because all slopes have the same prior.
    response : {"poisson", "negative_binomial", "binomial"}
        The law of a count before noise. "poisson" and "negative_binomial" are Poisson counts with mean exposure × rate,
        whose rates within a larger area have a log-normal or a gamma law. For "binomial", the rate is a probability,
        whose logits are normal.
    intercept, spread, slope, concentration : numpyro.distributions.Distribution
        Priors of the overall log rate or logit, of each standard deviation of areas within a larger area, of each
        slope, and of the concentration of a negative binomial response. Default: normal with mean 0 and standard
        deviation 5, half-normal with scale 1, standard normal, and gamma with shape 2 and rate 0.1 (mean 20).
    """
    if response not in ("poisson", "negative_binomial", "binomial"):
        raise ValueError(f"response must be poisson, negative_binomial or binomial, got {response!r}")
    binomial, count = response == "binomial", len(table)
    partial = isinstance(table.mechanism, Published)
    if partial and (binomial or table.mechanism.batch_shape):
        needs = "a Poisson or negative binomial response, and one noise and threshold for all cells"
        raise ValueError(f"a table of which only a part was published needs {needs}; or add a row for each other cell")
    keyed, gamma = table if isinstance(table, NoisyTable) else None, response == "negative_binomial"
    keys = ["area"] if keyed is None or not keyed.keys else list(keyed.keys)
    rows = exposure.rows_of(keyed) if keyed is not None and isinstance(exposure, NoisyTable) else None
    size, rough = _exposures(exposure if rows is None else exposure[rows], count, binomial)
    center, precision = _rough_effects(table, rough, binomial)
    matrix = _matrix(covariates, count)
    # All coordinates depend on rough estimates of effects and spreads, and no law does: with coordinates of one scale,
    # near the posterior, chains need no long trees before they know the scales.
    informed = 1 / (1 / np.maximum(precision, 1e-12) + ROUGH_SPREAD**2)
    exact_cells = np.sum(np.square(informed * ROUGH_SPREAD**2))  # that would tell as much without noise
    overall = np.average(center, weights=informed)
    mean = jnp.atleast_1d(numpyro.sample("intercept", located(intercept, overall, ROUGH_SPREAD)))
    slopes = numpyro.sample("slopes", slope.expand([matrix.shape[1]]).to_event(1)) if matrix.shape[1] else jnp.zeros(0)
    cells = np.zeros(count, int)
    for key in keys[:-1]:
        cells, above = _areas(table, key, cells)
        total = np.bincount(cells, informed)
        columns = np.stack([center, *matrix.T])
        rough_mean, *rough_columns = (np.bincount(cells, informed * column) / total for column in columns)
        estimate = rough_mean - np.reshape(rough_columns, (-1, len(total))).T @ slopes
        between = numpyro.sample(f"spread_{key}", located(spread, ROUGH_SPREAD, 1 / np.sqrt(2 * len(total))))
        with numpyro.plate(key, len(total)):
            mean = numpyro.sample(f"effect_{key}", pooled(mean[above], between, estimate, total))
    mean = mean[cells] + matrix @ slopes
    # Within an area rates are log-normal, or gamma with a variance of 1/concentration.
    error = 1 / np.sqrt(2 * max(exact_cells, 1.0))
    if gamma:
        within = numpyro.sample("concentration", located(concentration, ROUGH_SPREAD**-2, 2 * error))
    else:
        within = numpyro.sample(f"spread_{keys[-1]}", located(spread, ROUGH_SPREAD, error))
    with numpyro.plate("area" if keyed is None else keyed.dim, count):
        law = (pooled_gamma if gamma else pooled)(mean, within, center, precision)
        effect = numpyro.sample("effect", law)
        rate = numpyro.deterministic("rate", jax.nn.sigmoid(effect) if binomial else jnp.exp(effect))
        numpyro.deterministic("total", size * rate)
    if partial:  # the prior of effects is that of all cells
        numpyro.factor("unpublished", _log_others(table, cells, size, matrix, mean, within, gamma))
        rule: Any = table.mechanism
        table = Release(table.values, rule.mechanism, count=count)
    observe("z", dist.BinomialLogits(effect, size) if binomial else dist.Poisson(size * rate), table)


def _log_others(
    table: Any, cells: np.ndarray, size: Any, matrix: np.ndarray, mean: Any, within: Any, gamma: bool
) -> jax.Array:
    """What cells that were not published add to a log-likelihood: minus the log probability of those that were."""
    rule, count = table.mechanism, len(table)
    rows = np.arange(count)[:, None] if isinstance(size, jax.Array) else np.broadcast_to(size, count)[:, None]
    _, first, copies = np.unique(np.column_stack([cells, rows, matrix]), axis=0, return_index=True, return_counts=True)
    loc = mean[first] + jnp.log(jnp.broadcast_to(size, (count,))[first])
    log_prob = log_published(rule, loc, within, gamma)
    if rule.unpublished is None:
        return -copies @ log_prob
    if len(first) > 1 and rule.unpublished:
        wanted = "without larger areas, covariates and different exposures, or add a row without a value for each"
        raise ValueError(f"cells that were not published can be counted only {wanted}, or take them as unknown")
    return rule.unpublished * count * jnp.log1p(-jnp.exp(jnp.minimum(log_prob[0], -1e-12)))


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
    # Many tables at once have coordinates in common.
    if table.values is None or isinstance(table.values, jax.core.Tracer):
        return np.zeros(len(table)), np.zeros(len(table))
    values = np.asarray(table.values, float)
    reported, exposure = np.isfinite(values), np.broadcast_to(exposure, values.shape)
    overall = max(np.sum(values[reported]), 1.0) / np.sum(exposure[reported])
    expected = exposure * (min(overall, 0.5) if binomial else overall)
    variance = np.square(np.broadcast_to(table.mechanism.noise.standard_deviation, values.shape))
    # A count below what is expected says little of a logarithm: it is drawn to it by the noise's share of the variance.
    pull = variance / (variance + expected)
    counts = np.maximum(np.where(reported, values, expected), 0) * (1 - pull) + expected * pull
    counts = np.clip(counts, 0.25, exposure - 0.25 if binomial else np.inf)
    share = binomial * counts / exposure
    information, center = counts * (1 - share), np.log(counts / exposure) - np.log1p(-share)
    return center, np.where(reported, np.square(information) / (information + variance), 0.0)


def _matrix(covariates: Any, count: int) -> np.ndarray:
    matrix = np.empty((count, 0)) if covariates is None else np.asarray(covariates, float)
    if matrix.ndim != 2 or len(matrix) != count or not np.isfinite(matrix).all():
        allowed = f"finite numbers (cells, d), here of {count} cells"
        raise ValueError(f"covariates must be {allowed}; got shape {matrix.shape}")
    return matrix
