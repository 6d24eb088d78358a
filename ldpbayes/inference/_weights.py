"""Posteriors of weighted surveys: a pseudo-posterior, whose draws get the spread that follows from the sampling."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import warn
from ldpbayes._core.types import Array, Params
from ldpbayes.data import SamplingDesign
from ldpbayes.data.sampling import refuse_population
from ldpbayes.inference.approximations.surrogates import Draws, LikelihoodWarning
from ldpbayes.inference.compiled_programs import program_of
from ldpbayes.inference.density import Density, given, sample_sites

LEAST_PRECISION = 1e-10  # of scaled precisions: below it a parameter is not identified by the weighted records
LEAST_RANKED = 1e-8  # eigenvalue, where the precision of the posterior is 1, from which on it is not rounding error
LARGE_EFFECT, LEAST_RECORDS = 2.0, 10  # of weights on variances; for each parameter, in equal weights
CORRECTION = (
    "Pseudo-posterior: each record's log-likelihood is multiplied by its weight (mean 1). Draws are moved linearly, "
    "without constraints, so that their covariance is A⁻¹ (J + P) A⁻¹, where A and P are the curvatures of posterior "
    "and prior at the mean, and J is the variance of the weighted score under the sampling design."
)


def checked_design(weights: Any, **others: Any) -> SamplingDesign:
    """The design of all records; ValueError for options of `fit` that a pseudo-posterior has not."""
    for name, value in others.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} cannot be given together with weights")
    design = weights if isinstance(weights, SamplingDesign) else SamplingDesign(weights)
    refuse_population(design, "weights of fit, whose parameters are those of a law of records,")
    design.check(len(design.weights))
    return design


def corrected(draws: Draws, density: Density, design: SamplingDesign) -> tuple[Draws, Params]:
    """Draws with the spread of the sampling design ([WS]), and attributes of the result; ValueError if the weighted
    records or the prior do not identify all parameters.

    [WS] Theorem 4 has no prior. With a prior of curvature P, the score of the posterior has the variance J + P, so that
    equal weights leave draws as they are, up to sampling error in J.
    """
    latent = {name: values for name, values in draws.samples.items() if name in density.example()}
    lead = next(iter(latent.values())).shape[:2]
    flat_draws = {name: values.reshape(-1, *values.shape[2:]) for name, values in latent.items()}
    first = jax.tree.map(lambda values: values[0], flat_draws)
    unravel = ravel_pytree(density.unconstrained(first))[1]
    flat = jax.vmap(lambda values: ravel_pytree(density.unconstrained(values))[0])
    rows = np.asarray(program_of("unconstrained draws", flat, flat_draws)(flat_draws))
    centre = rows.mean(axis=0)

    def log_terms(parameters: Array) -> Array:
        """Weighted log-likelihoods (N,) of the records."""
        values = unravel(parameters)
        sites = sample_sites(density.trace(given(density.model, values, values)), observed=True)
        scaled = [site for site in sites.values() if site["scale"] is not None]  # numpyro.factor is of no records
        return sum(site["fn"].log_prob(site["value"]) * site["scale"] for site in scaled)

    def curvatures(parameters: Array) -> tuple[Array, Array, Array]:
        information = -jax.hessian(lambda at: jnp.sum(log_terms(at)))(parameters)
        precision = jax.hessian(lambda at: density.potential(unravel(at)))(parameters)
        return jax.jacfwd(log_terms)(parameters), information, precision

    scores, information, precision = program_of("curvatures", curvatures, centre)(centre)
    prior, variance = precision - information, np.asarray(design.covariance(np.asarray(scores)))
    spread = variance + prior
    units = 1 / np.sqrt(np.abs(np.diagonal(precision)))
    for matrix in (precision, spread):
        if not np.linalg.eigvalsh(matrix * np.outer(units, units))[0] > LEAST_PRECISION:
            raise ValueError(
                "the spread of the pseudo-posterior cannot be corrected: the weighted records and the prior do not "
                "identify all parameters at the mean. Use fewer parameters, or narrower priors"
            )
    inverse = np.linalg.inv(precision)
    before, after = np.linalg.cholesky(inverse), np.linalg.cholesky(inverse @ spread @ inverse)
    # Of few clusters, J is 0 in directions that the records do inform: draws would have hardly any spread there.
    found, needed = (
        np.linalg.matrix_rank(before.T @ part @ before, LEAST_RANKED, hermitian=True)
        for part in (variance, information)
    )
    if found < needed:
        raise ValueError(
            f"the sampling design has {design.degrees_of_freedom} degrees of freedom (clusters less strata), and shows "
            f"the variance of {found} of the {needed} parameters that the records inform. Use fewer parameters"
        )
    number, effect = len(design.weights), design.kish_design_effect
    if effect > LARGE_EFFECT and number < LEAST_RECORDS * effect * needed:
        few = f"weights are so unequal that {number:,} records count as {number / effect:.1f}"
        warn(f"{few}: centre and spread of the pseudo-posterior, which has all, can be far off", LikelihoodWarning)
    moved = centre + np.linalg.solve(before, (rows - centre).T).T @ after.T
    positions = jax.vmap(unravel)(jnp.asarray(moved))
    samples = program_of("constrained draws", jax.vmap(density.constrained), positions)(positions)
    samples = jax.tree.map(lambda values: np.asarray(values).reshape(*lead, *values.shape[1:]), samples)
    effect = np.linalg.eigvals(inverse @ spread).real.max()
    facts = {"correction": CORRECTION, "largest_design_effect": float(effect), "kish": design.kish_design_effect}
    return dataclasses.replace(draws, samples=samples), {"pseudo_posterior": json.dumps(facts)}
