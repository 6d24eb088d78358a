"""Plans of surveys: what released values will tell about a law, by their Fisher information and without simulation."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy
from jax.flatten_util import ravel_pytree

from ldpbayes._core.checks import ONE_INSIDE_0_1, ONE_POSITIVE, at_least, checked, ends_of
from ldpbayes._core.types import Array
from ldpbayes.data.sketches import atom_places, panel_edges
from ldpbayes.estimation.estimates import names_of, table
from ldpbayes.laws.compound import unwrapped
from ldpbayes.laws.families import graded_breaks, is_narrow, panel_nodes
from ldpbayes.laws.functionals import names_of_values, quantile
from ldpbayes.likelihood.latent import latent_nodes
from ldpbayes.likelihood.privatized import PreparedLikelihood, Privatized
from ldpbayes.mechanisms import Mechanism, NumericMechanism
from ldpbayes.numerics.arrays import evenly_spaced

MAX_VALUES = 1 << 16  # released values that are added up
MISSED_MASS = 1e-6  # probability that a sum over all released values may miss
TAIL_MASS = 1e-12  # probability on either side that is left out of the information in a record
MAX_ROWS = 1 << 10  # rows of covariates that are looked at, evenly spread
ROW_BATCH = 16  # of them at a time
LEAST_EIGENVALUE = 1e-10  # of the correlations of the scores: below it, parameters cannot be told apart


class Outcomes(NamedTuple):
    """Values that a mechanism may release, so that integrals are sums; beyond end cells, densities fall by a factor."""

    values: np.ndarray  # (n, *event)
    volume: np.ndarray  # (n,), 1 where values have probabilities
    cells: tuple[tuple[np.ndarray, int, int], ...] = ()  # places of a cell, of a value, and of that value a cell away

    def weights(self, log_prob: np.ndarray) -> np.ndarray:
        """Probabilities (n,) from log densities (n,); ValueError if they do not add up to one."""
        volume = self.volume.copy()
        for places, here, away in self.cells:
            factor = np.exp(log_prob[away] - log_prob[here])
            volume[places] += self.volume[places] * factor / (1 - factor)
        weights = np.where(volume > 0, volume * np.exp(log_prob), 0.0)
        if not abs(weights.sum() - 1) < MISSED_MASS:
            raise ValueError(f"the probabilities of all released values add up to {weights.sum():.9g} instead of 1")
        return weights


def outcomes(mechanism: Mechanism, law: Any, narrow: bool = False) -> Outcomes:
    """All values that a mechanism may release, denser for a narrow law; ValueError if they are rows, or too many."""
    if isinstance(mechanism, NumericMechanism) and mechanism.released_range is not None:
        return _numbers(mechanism, law.support.is_discrete, law if narrow else None)
    values = mechanism.possible_values(MAX_VALUES)
    if values is None:
        problem = "releases rows, or has too many possible values for a sum over them"
        raise ValueError(f"{type(mechanism).__name__} {problem}")
    return Outcomes(values, np.ones(len(values)))


def _numbers(mechanism: Any, counts: bool, narrow: Any) -> Outcomes:
    """Nodes on panels, or all whole numbers, with cells at both ends of linear tails, of counts or for a narrow law."""
    edges, _ = panel_edges(mechanism)
    low, high = float(edges[0]), float(edges[-1])
    whole, period = mechanism.support.is_discrete, mechanism.period
    length = 1.0 if whole else float(mechanism.resolution) if period is None else float(period)
    if not length > 0:
        raise ValueError(f"{mechanism!r} adds no noise: a plan for original records has no mechanism")
    if whole:
        at_least(0, "the number of released whole numbers", int(high - low), MAX_VALUES)
        values = np.arange(math.floor(low), math.ceil(high) + 1.0)
        volume = np.ones(len(values))
    else:
        if mechanism.linear_tails and period is None:
            edges = np.concatenate([[low - length], edges, [high + length]])
        if narrow is not None:
            edges = np.sort(np.concatenate([edges, _released_around(narrow, mechanism, edges)]))
        values, volume = panel_nodes(edges[:-1], edges[1:])
        places = atom_places(mechanism, (low, high))
        places = places if counts else places[[0, -1]] if len(places) else places
        values, volume = np.append(values, places), np.append(volume, np.ones(len(places)))
    if not mechanism.linear_tails:
        return Outcomes(values, volume)
    first, last = (values[0], values[-1]) if whole else (edges[0], edges[-1])
    inside = (values >= first) & (values <= last) if whole else np.isin(values, places, invert=True)
    ends = np.flatnonzero(inside & (values < first + length)), np.flatnonzero(inside & (values > last - length))
    away = values[ends[0][0]] - length, values[ends[1][-1]] + length
    cells = (ends[0], ends[0][0], len(values)), (ends[1], ends[1][-1], len(values) + 1)
    return Outcomes(np.append(values, away), np.append(volume, [0.0, 0.0]), cells)


def _released_around(law: Any, mechanism: Any, edges: np.ndarray) -> np.ndarray:
    """Released values, ever closer to those at which p(z | x) has a kink if x is a centre of the law."""
    probes = edges[0] + (edges[-1] - edges[0]) * np.array([0.5, 0.51])
    kinks = np.asarray(mechanism.breakpoints(probes))
    moving = np.isclose(np.diff(kinks, axis=0)[0], np.diff(probes)[0])  # others are fixed places of x
    points = np.add.outer(np.asarray(graded_breaks(law)), (probes[:1, None] - kinks[:1, moving])[0])
    return np.clip(points.ravel(), edges[0], edges[-1])


@dataclasses.dataclass(frozen=True, eq=False)
class SurveyDesign:
    """Result of `design`: for each mechanism, how precisely parameters can be estimated from N released values.

    The attributes are:

    - ``names``: the names of the parameters, and of the functionals (quantities that depend on the parameters);
    - ``values`` (names,): the guesses of the parameters, and the functionals at these guesses;
    - ``mechanisms``: the mechanisms, by name;
    - ``variances`` (mechanisms, names) and ``record_variances`` (names,): for large N, the variances of estimates from
      N released values, and from N original records, times N;
    - ``design_effect``: the factor that these variances have for people who are not a simple random sample.
    """

    names: list[str]
    values: np.ndarray
    mechanisms: dict[str, Mechanism]
    variances: np.ndarray
    record_variances: np.ndarray
    design_effect: float = 1.0

    @property
    def efficiency(self) -> dict[str, np.ndarray]:
        """For each mechanism, the efficiency (names,): 0.1 if an estimate needs ten times as many values as records."""
        return {name: self.record_variances / row for name, row in zip(self.mechanisms, self.variances, strict=True)}

    def standard_errors(self, count: int) -> dict[str, np.ndarray]:
        """Return, for each mechanism, the standard errors (names,) of estimates from `count` released values."""
        root = math.sqrt(at_least(1, "count", count))
        return {name: np.sqrt(row) / root for name, row in zip(self.mechanisms, self.variances, strict=True)}

    def counts(self, width: float, level: float = 0.95) -> dict[str, np.ndarray]:
        """Return the numbers (names,) of values, by mechanism, for intervals of this width and coverage `level`."""
        width = checked("width", width, *ONE_POSITIVE)
        needed = np.ceil((2 * _reach(level) / width) ** 2 * self.variances)
        return {name: row.astype(np.int64) for name, row in zip(self.mechanisms, needed, strict=True)}

    def table(self, count: int, level: float = 0.95) -> list[dict[str, Any]]:
        """Return the precision of estimates from `count` released values, as a list of dicts with the entries
        ``mechanism``, ``name``, ``value`` (the guess), ``standard_error``, ``width`` (of the confidence interval with
        the coverage `level`), and ``efficiency``.
        """
        errors, kept = self.standard_errors(count), self.efficiency
        return [
            {
                "mechanism": mechanism,
                "name": name,
                "value": float(self.values[j]),
                "standard_error": float(errors[mechanism][j]),
                "width": float(2 * _reach(level) * errors[mechanism][j]),
                "efficiency": float(kept[mechanism][j]),
            }
            for mechanism in self.mechanisms
            for j, name in enumerate(self.names)
        ]

    def summary(self, count: int, level: float = 0.95) -> str:
        """Return the widths and efficiencies (in %) of `table` as text, with a row for each mechanism."""
        rows = self.table(count, level)
        columns = {
            name: [f"{row['width']:.4g} ({row['efficiency']:.1%})" for row in rows[j :: len(self.names)]]
            for j, name in enumerate(self.names)
        }
        title = f"Widths of {100 * level:g} % intervals from {count:,} released values (information kept of a record's)"
        title += f", design effect {self.design_effect:g}" if self.design_effect != 1 else ""
        return table(title, list(self.mechanisms), columns)


def _reach(level: float) -> float:
    return float(scipy.stats.norm.isf((1 - checked("level", level, *ONE_INSIDE_0_1)) / 2))


def design(
    law: Callable[..., dist.Distribution],
    at: Mapping[str, Any],
    mechanisms: Mechanism | Mapping[str, Mechanism],
    *,
    columns: Mapping[str, Any] | None = None,
    functionals: Mapping[str, Callable[[Any], Any]] | None = None,
    design_effect: float = 1.0,
) -> SurveyDesign:
    """Plan a survey: compute how precisely parameters can be estimated from released values, for several mechanisms.

    The covariance matrix of estimates from N released values is the inverse of the Fisher information of one value,
    divided by N. This holds approximately for large N, for maximum-likelihood estimates and for posterior means under
    weak priors.

    Parameters
    ----------
    law : callable
        A function that returns the NumPyro law (distribution) of an original answer, a number or a category. Its
        arguments are the parameters, by name, and with ``columns`` also the covariates of one person.
    at : dict
        Guesses of the parameters, by name: numbers or arrays. The result holds for these values. The parameters must be
        free of each other. For example, use k − 1 parameters for k shares with sum one.
    mechanisms : Mechanism or dict of str to Mechanism
        The mechanisms to compare, for numbers, counts or categories, each with one budget for all records. Raises
        ValueError if the released values are rows, or too many for a sum, or do not determine the parameters.
    columns : dict of array_like (rows, ...), optional
        Public covariates, one row for each person, of people who are similar to the people in the survey. Of more than
        1,024 rows, 1,024 evenly spaced ones are used. Default: all answers have the same law.
    functionals : dict of str to callable, optional
        Further quantities to plan for, by name: functions of the law, such as those of `ldpbayes.functionals`. Only
        without ``columns``.
    design_effect : float
        Positive factor of all variances, also those from original records, for people who are not a simple random
        sample ([Kish]): for groups of m people whose released values have the correlation ρ, about 1 + (m − 1) ρ, and
        for weights w of N people, N Σ w²/(Σ w)². Default: 1.
    """
    design_effect = checked("design_effect", design_effect, *ONE_POSITIVE)
    if not at:
        raise ValueError("at must have a guess of at least one parameter of the law, got none")
    named = {type(mechanisms).__name__: mechanisms} if isinstance(mechanisms, Mechanism) else mechanisms
    if not (isinstance(named, Mapping) and named and all(isinstance(one, Mechanism) for one in named.values())):
        raise TypeError(f"mechanisms must be a mechanism, or a dict of mechanisms by name, got {mechanisms!r}")
    if columns is not None and functionals:
        raise ValueError("functionals need one law for all people; with columns each row has its own law")
    with jax.enable_x64(True):
        guess = {name: jnp.asarray(value, float) for name, value in at.items()}
        theta, unravel = ravel_pytree(guess)
        rows, count = _thinned(columns or {})

        def law_at(theta: Array, index: Array) -> Any:
            return unwrapped(law(**unravel(theta), **{name: column[index] for name, column in rows.items()}))[0]

        first = law_at(theta, 0)
        if not isinstance(first, dist.Distribution) or first.event_shape or first.batch_shape:
            raise TypeError(f"law must return the NumPyro law of one number or category, got {first!r}")
        if jax.tree.map(lambda leaf: leaf, first).support is None:
            raise TypeError(f"law must keep its support as a pytree of JAX, which {type(first).__name__} does not")

        @jax.jit  # mechanisms of one kind share the program
        def released(likelihood: PreparedLikelihood) -> tuple[Array, Array]:
            return _with_scores(lambda theta, index: likelihood.log_prob(law_at(theta, index)), theta, count)

        @jax.jit
        def narrow(edges: Array) -> Array:
            return jnp.any(_mapped(lambda index: is_narrow(law_at(theta, index), edges), count))

        def by_law(mechanism: Mechanism, values: Array, by_row: bool = False, **options: Any) -> tuple[Array, Array]:
            def log_prob(theta: Array, row: Array) -> Array:
                law = Privatized(law_at(theta, row), mechanism, validate_args=False, **options)
                return law.log_prob(values[row] if by_row else values)

            return _with_scores(log_prob, theta, count)

        names, guesses, jacobian = _questions(guess, lambda theta: law_at(theta, 0), functionals or {})
        variances = []
        for name, mechanism in named.items():
            if mechanism.batch_shape:
                raise ValueError(f"{name} must have one budget, got parameters of shape {mechanism.batch_shape}")
            possible = [outcomes(mechanism, first)] * count
            if first.support.is_discrete:  # its sums are over places that are known before tracing
                scored = by_law(mechanism, possible[0].values)
            elif narrow(latent_nodes(first, mechanism).edges):
                possible = [outcomes(mechanism, law_at(theta, row), narrow=True) for row in range(count)]
                of_rows = jnp.stack([of_row.values for of_row in possible])
                by_row = functools.partial(by_law, mechanism, by_row=True, method="quadrature")
                scored = jax.jit(by_row)(of_rows)
            else:
                scored = released(PreparedLikelihood.at(possible[0].values, possible[0].volume, mechanism, first))
            variances.append(_variances(_information([of_row.weights for of_row in possible], *scored), jacobian, name))
        points, weigh = _records(law_at, theta, count)
        of_records = _with_scores(lambda theta, index: law_at(theta, index).log_prob(points[index]), theta, count)
        record = _variances(_information([weigh] * count, *of_records), jacobian, "original records")
    of_all = design_effect * np.array(variances)
    return SurveyDesign(names, guesses, dict(named), of_all, design_effect * record, design_effect)


def _thinned(columns: Mapping[str, Any]) -> tuple[dict[str, jax.Array], int]:
    """Columns of at most `MAX_ROWS` rows, and how many, one without columns; ValueError unless they have one length."""
    arrays = {name: np.asarray(column, float) for name, column in columns.items()}
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()} or {1}
    if len(lengths) > 1 or 0 in lengths:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"columns must have the same number of rows, at least one; got shapes {shapes}")
    rows = {name: jnp.asarray(evenly_spaced(array, MAX_ROWS)) for name, array in arrays.items()}
    return rows, min(MAX_ROWS, lengths.pop())


def _with_scores(log_prob: Callable[[Array, Array], Array], theta: Array, count: int) -> tuple[Array, Array]:
    """Log densities (rows, n) and their derivatives by θ (rows, n, p)."""

    def of_row(index: Array) -> tuple[Array, Array]:
        return log_prob(theta, index), jax.jacfwd(log_prob)(theta, index)

    return _mapped(of_row, count)


def _mapped(function: Callable[[Array], Any], count: int) -> Any:
    """Results of a function of row numbers, for all rows, compiled as one."""
    return jax.jit(lambda rows: jax.lax.map(function, rows, batch_size=ROW_BATCH))(jnp.arange(count))


def _information(weigh: list[Callable[[np.ndarray], np.ndarray]], log_prob: Array, scores: Array) -> np.ndarray:
    """Mean over rows of Σ weight · score scoreᵀ, from (rows, n) and (rows, n, p); weights are of log densities."""
    weights = np.stack([of_row(logs) for of_row, logs in zip(weigh, np.asarray(log_prob), strict=True)])
    scores = np.where(weights[..., None] > 0, np.asarray(scores), 0.0)
    return np.einsum("rn,rnp,rnq->pq", weights, scores, scores) / len(scores)


def _records(law_at: Callable, theta: Array, count: int) -> tuple[Array, Callable[[np.ndarray], np.ndarray]]:
    """Original values (rows, n), and their probabilities: all of a category or count that are likely, or quantiles."""
    first = law_at(theta, 0)
    if not first.support.is_discrete:
        t = np.linspace(-2.9, 2.9, 117)
        u = scipy.special.expit(np.pi * np.sinh(t))
        weights = u * (1 - u) * np.pi * np.cosh(t) * (t[1] - t[0])
        return _mapped(lambda index: quantile(u)(law_at(theta, index)), count), lambda _: weights
    low, high = ends_of(first.support)
    if not np.isfinite([low, high]).all():
        tails = quantile(np.array([TAIL_MASS, 1 - TAIL_MASS]))
        ends = np.asarray(_mapped(lambda index: tails(law_at(theta, index)), count))
        low, high = ends.min(), ends.max()
    at_least(0, "the number of counts between", int(high - low), MAX_VALUES)
    return jnp.broadcast_to(jnp.arange(int(low), int(high) + 1), (count, int(high - low) + 1)), np.exp


def _questions(
    guess: Mapping[str, Array], law: Callable[[Array], Any], functionals: Mapping[str, Callable]
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names and values of the parameters and then the functionals, and their derivatives by the parameters."""
    theta, _ = ravel_pytree(guess)

    def at(theta: Array) -> list[Array]:
        there = law(theta)
        return [jnp.asarray(functional(there)) for functional in functionals.values()]

    values, slopes = jax.jit(lambda theta: (at(theta), jax.jacfwd(at)(theta)))(theta)
    jacobian = [np.eye(len(theta)), *(np.reshape(slope, (-1, len(theta))) for slope in slopes)]
    names = names_of(dict(guess)) + names_of_values(functionals, values)
    return names, np.concatenate([theta, *map(np.ravel, values)]), np.concatenate(jacobian)


def _variances(information: np.ndarray, jacobian: np.ndarray, where: str) -> np.ndarray:
    """Variances (names,) of the numbers with a jacobian (names, p), from one value with an information (p, p)."""
    scale = np.sqrt(np.maximum(np.diagonal(information), np.finfo(float).tiny))
    correlations = information / np.outer(scale, scale)
    if not np.isfinite(correlations).all() or np.linalg.eigvalsh(correlations)[0] < LEAST_EIGENVALUE:
        raise ValueError(f"{where}: released values do not identify the parameters; check that all can vary freely")
    return np.einsum("np,pq,nq->n", jacobian / scale, np.linalg.inv(correlations), jacobian / scale)
