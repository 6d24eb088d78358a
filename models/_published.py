"""Probabilities that a cell is published of which only the law is known, for tables that lack the other cells."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpy.polynomial.legendre import leggauss

from ldpbayes import Privatized
from ldpbayes.mechanisms import mechanism_from_spec

TABLE_STEP = 1 / 64  # of a table of probabilities by rate, on a scale on which the noisy count has standard deviation 1
RATE_DEVIATIONS = 10.0  # of a count, and with noise in them:
NOISE_DEVIATIONS = 40.0  # beyond the threshold, where all is published
EVENLY = np.linspace(-1, 1, 19)[:, None]  # ends of panels of a normal law of log rates, as far as it matters
# and others around the rate of which half is published, on the scale of the table
TRANSITION = np.array([-9.0, -6.0, -4.5, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.5, 6.0, 9.0])


def log_published(rule: Any, loc: jax.Array, spread: jax.Array, gamma: bool) -> jax.Array:
    """Log probabilities (cells,) that a Poisson count is published, if the logarithm of its rate is normal with this
    mean (cells,) and spread, or, for `gamma`, its rate is gamma with this log mean and concentration.
    """
    if gamma:
        law = dist.GammaPoisson(spread, spread * jnp.exp(-loc), validate_args=False)
        return Privatized(law, rule, validate_args=False).log_published
    log_by_rate, slopes, first, variance, half = _table(json.dumps(rule.spec()))
    low, high = loc - 9 * spread, jnp.maximum(loc, half[len(half) // 2]) + 9 * spread
    near, beyond = loc + 9 * spread * EVENLY, loc + 9 * spread + (high - loc - 9 * spread) * (EVENLY[1:] + 1) / 2
    edges = jnp.concatenate(
        [near, beyond, jnp.clip(jnp.broadcast_to(half[:, None], (len(half), *loc.shape)), low, high)]
    )
    edges = jax.lax.stop_gradient(jnp.sort(edges, axis=0))
    nodes, weights = (array[:, None, None] for array in leggauss(8))
    log_rates = edges[:-1] + (edges[1:] - edges[:-1]) * (1 + nodes) / 2
    place = (2 * jnp.sqrt(jnp.exp(jnp.minimum(log_rates, 99.0)) + variance) - first) / TABLE_STEP
    row = jnp.clip(place.astype(int), 0, len(log_by_rate) - 2)
    t = jnp.minimum(place - row, 1.0)  # cubic between two places, by values and slopes
    (a, da), (b, db) = ((jnp.asarray(log_by_rate)[at], TABLE_STEP * jnp.asarray(slopes)[at]) for at in (row, row + 1))
    log_prob = a + t * (da + t * (3 * (b - a) - 2 * da - db + t * (da + db - 2 * (b - a))))
    terms = dist.Normal(loc, spread, validate_args=False).log_prob(log_rates) + log_prob
    return jax.nn.logsumexp(terms, axis=(0, 1), b=weights * (edges[1:] - edges[:-1]) / 2)


@functools.lru_cache(maxsize=8)
def _table(spec: str) -> tuple[Any, ...]:
    """Log probabilities that counts are published, and their slopes, at equal steps of 2·sqrt(rate + variance) from a
    `first` one; the variance of the noise; and log rates around that of which half is published.
    """
    rule: Any = mechanism_from_spec(json.loads(spec))
    deviation = float(rule.noise.standard_deviation)
    threshold = max(float(rule.any_published.interval(np.nan)[0]), 0.0)
    most = threshold + NOISE_DEVIATIONS * deviation + RATE_DEVIATIONS * np.sqrt(threshold + deviation**2 + 100)
    scale = np.arange(2 * deviation, 2 * np.sqrt(most + deviation**2) + TABLE_STEP, TABLE_STEP)
    rates = np.maximum(np.square(scale / 2) - deviation**2, 1e-12)
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        found, back = jax.vjp(lambda rates: Privatized(dist.Poisson(rates), rule).log_published, jnp.asarray(rates))
        logs, slopes = np.asarray(found), np.asarray(back(jnp.ones(len(rates)))[0]) * scale / 2
    secants = np.diff(logs) / TABLE_STEP  # near a rate of 0, where hardly any is published, slopes may be very steep
    slopes = np.minimum(slopes, 3 * np.minimum(np.append(secants[0], secants), np.append(secants, secants[-1])))
    middle = np.maximum(scale[np.argmin(np.abs(logs - np.log(0.5)))] + TRANSITION, 2 * deviation)
    return logs, slopes, scale[0], deviation**2, np.log(np.maximum(np.square(middle / 2) - deviation**2, 1e-3))
