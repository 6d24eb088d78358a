"""Tables of log-likelihoods that depend on one number, such as a rate: computed once and then looked up."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import nn
from jax.scipy.special import logit
from numpyro.primitives import Messenger

from ldpbayes._core.checks import ends_of
from ldpbayes._core.pytrees import pytree_dataclass
from ldpbayes._core.types import Array, Message, Params, PyTree, is_concrete
from ldpbayes.inference.approximations.panels import panel_sketches, records_instead
from ldpbayes.inference.approximations.polynomial import WORTHWHILE_RECORDS
from ldpbayes.inference.approximations.surrogates import Report, Surrogate
from ldpbayes.inference.chains import Sampling, some_draws
from ldpbayes.inference.compiled_programs import in_threads, inputs_in_use, program_of, stacked, trace, unstacked
from ldpbayes.inference.density import Density
from ldpbayes.inference.problem import Problem
from ldpbayes.laws.compound import unwrapped
from ldpbayes.laws.families import unexpanded
from ldpbayes.likelihood.closed_forms import closed_form
from ldpbayes.likelihood.privatized import Privatized
from ldpbayes.mechanisms import Published
from ldpbayes.numerics.arrays import distinct, width_classes

MIN_TABULATED_ROWS = 10  # values of a site from which on it is tabulated
FEW_PARAMETERS = 50  # below which many records are better expanded: a look-up takes time for each
MIN_WORK_OF_A_ROW = 500  # array entries that a value's likelihood reads and writes from which on it is tabulated
TABLE_DEGREE = 7  # of the polynomial on each piece of a table
FIRST_PIECES, MAX_PIECES = 12, 12 << 5  # of a table; it has twice as many until it is exact
DEPTH_NATS = 100.0  # below the largest log-likelihood, where a table ends; it goes on in a straight line
FLAT_NATS = 1e-13  # differences of log-likelihoods that are 0, so that a table ends
TABLES_ERROR_NATS = 1e-4  # sum of the largest errors of all tables
LIKELIHOODS_AT_ONCE, FEW_LIKELIHOODS_AT_ONCE = 1 << 13, 1 << 9  # likelihoods that are computed in one call
TABLE_DRAWS = 32  # posterior draws at which tables are compared with the likelihood
SEARCHED_POINTS = 16  # numbers at which the ends of a table are sought, in each of at most so many rounds
MAX_SEARCHES_FOR_ENDS = 30
MIN_GAIN_OF_PIECES = 4.0  # twice as many pieces reduce an error by more, or never enough

_CHEBYSHEV = np.cos(np.pi * (np.arange(TABLE_DEGREE + 1) + 0.5) / (TABLE_DEGREE + 1))  # of Chebyshev
_TEST_PLACES = np.cos(np.pi * np.arange(TABLE_DEGREE + 2) / (TABLE_DEGREE + 1))  # of a smooth function's largest errors
_COEFFICIENTS = np.linalg.inv(np.vander(_CHEBYSHEV, increasing=True)).T  # of powers, from values at the nodes


class NoTable(ValueError):
    """The likelihood is no function of one number a record that a table could hold; the message says why."""


class _Scale(NamedTuple):
    """Where a parameter of a law stands in a table: on a scale on which log-likelihoods are nearly parabolas."""

    place: Callable[[Any, Any], Any]  # from the parameter and the variance of the noise
    parameter: Callable[[Any, Any], Any]  # its inverse
    sizes: np.ndarray  # parameters, in ascending order, among which the search for the ends of a table begins


def _angle(x: Any, variance: Any) -> jax.Array:
    """An angle whose squared sine is the share with the logit x: at 34 it is 1 to rounding."""
    return jnp.arctan(jnp.exp(jnp.clip(x, -34.0, 34.0) / 2))


def _logit(angle: Any, variance: Any) -> jax.Array:
    return 2 * jnp.log(jnp.clip(jnp.tan(angle), 4e-8, 2e7))


_SIZES, _LOGITS = 10.0 ** np.linspace(-3.0, 12.0, 31), np.linspace(-20.0, 20.0, 21)
# By the name of a parameter, or its bounds.
_SCALES: dict[Any, _Scale] = {
    "logits": _Scale(_angle, _logit, _LOGITS),
    (0.0, 1.0): _Scale(
        lambda share, variance: _angle(logit(jnp.clip(share, 1e-15, 1 - 1e-15)), variance),
        lambda angle, variance: nn.sigmoid(_logit(angle, variance)),
        1 / (1 + np.exp(-_LOGITS)),
    ),
    # a logarithm that goes on to rates of 0: what is less than the variance of the noise looks alike
    (0.0, np.inf): _Scale(
        lambda rate, variance: jnp.log(rate + variance + 0.25),
        lambda place, variance: jnp.maximum(jnp.exp(place) - variance - 0.25, 1e-15),
        np.append(1e-15, _SIZES),
    ),
    (-np.inf, np.inf): _Scale(lambda x, _: x, lambda x, _: x, np.concatenate([-_SIZES[::-1], [0.0], _SIZES])),
}


@pytree_dataclass(eq=False)
class Tables:
    """Log-likelihoods of records as functions of a number each: polynomials on pieces of equal width from `low`."""

    low: Array  # (records,), as all that follow but the coefficients
    width: Array  # of a piece
    first: Array  # place of the first piece among those of all tables
    pieces: Array  # their number
    below: Array  # slopes at the two ends, beyond which the log-likelihood goes on in a straight line
    above: Array
    coefficients: Array  # (all pieces, TABLE_DEGREE + 1), of powers of a place from −1 to 1 on a piece, upwards
    others: Array  # records without a table, whose likelihood is computed; 0 stands for it

    ends = property(lambda self: (self.low, self.low + self.width * self.pieces))

    def __call__(self, x: Array) -> jax.Array:
        """Log-likelihoods (records,) at numbers (records,)."""
        inside = jnp.clip(x, *self.ends)
        place = (inside - self.low) / self.width
        piece = jnp.clip(jnp.floor(place), 0, self.pieces - 1)
        coefficients = self.coefficients[self.first + piece.astype(int)]
        t, value = 2 * (place - piece) - 1, coefficients[:, TABLE_DEGREE]
        for power in range(TABLE_DEGREE - 1, -1, -1):
            value = value * t + coefficients[:, power]
        return value + jnp.where(x < self.low, self.below, self.above) * (x - inside)


class _LookUp(Messenger):
    """A model in which tables by site stand for likelihoods, as factors: released values are in the tables."""

    def __init__(self, model: Callable, tabulated: "Tabulated") -> None:
        self.tabulated = tabulated
        super().__init__(model)

    def process_message(self, msg: Message) -> None:
        if msg["type"] == "sample" and msg["name"] in self.tabulated:
            log_prob: Any = 0.0
            for site, tables, _ in self.tabulated[msg["name"]]:
                part, others = tables(site.numbers(msg)), tables.others
                if len(others):
                    law = site.law_at(site.parameters(msg)[others], others)
                    part = part.at[others].set(law.log_prob(site.values[others]))
                log_prob += site.times * part
            log_prob = jnp.where(unwrapped(msg["fn"])[1], log_prob, 0.0)
            msg["fn"], msg["value"] = dist.Unit(log_prob), jnp.empty((*log_prob.shape, 0))


@dataclasses.dataclass(frozen=True)
class TabulatedSite:
    """An observed site whose records see the parameters through one number each: a parameter of their law."""

    base: Any  # the law of the records, at any parameters
    parameter: str  # the name of that parameter of the law
    scale: _Scale  # of this parameter
    mechanism: Any
    values: np.ndarray  # (records,)
    weights: np.ndarray  # (records,)
    times: Array = 1.0  # factors of the log-likelihoods, beside the weights

    @classmethod
    def of(cls, density: Density, name: str, parameters: Params) -> "list[TabulatedSite]":
        """The site by its name, and beside it what was not published; `NoTable` if its law is of another form."""

        def depends(part: Callable[[Message], PyTree]) -> bool:
            return bool(inputs_in_use(lambda values: jax.tree.leaves(part(density.at(values)[name])), parameters)[0])

        def constants(site: Message) -> PyTree:
            """Parameters of the law, and what no parameter of the model may change: mechanism, values, weights."""
            (law, keep), base = unwrapped(site["fn"]), _law(site)
            scale = 1.0 if site["scale"] is None else site["scale"]
            arrays = {name: jnp.broadcast_to(getattr(base, name), shape) for name in base.arg_constraints}
            return arrays, law.mechanism, site["value"], jnp.broadcast_to(jnp.asarray(keep, float) * scale, shape)

        traced: list[Message] = []
        jax.eval_shape(lambda values: traced.append(density.at(values)[name]), parameters)  # nothing is computed
        (site,) = traced
        law, _ = unwrapped(site["fn"])
        shape = np.shape(site["value"])
        if not isinstance(law, Privatized) or len(shape) != 1 or site["fn"].batch_shape != shape or law.event_dim:
            raise NoTable("the values are not privatized numbers, one a record")
        base = _law(site)
        channel = closed_form(base, law.mechanism) is None and law.mechanism.bounded
        if channel or isinstance(base, dist.Delta):
            raise NoTable("a channel takes longer to build than tables save, and a number with noise is quick itself")
        arguments = inspect.signature(type(base)).parameters.values()
        if {argument.name for argument in arguments if argument.default is argument.empty} - set(base.arg_constraints):
            raise NoTable("the law of a record is made of other laws, not of numbers alone")
        if any(np.ndim(getattr(base, field)) > 1 for field in base.arg_constraints):
            raise NoTable("a parameter of the law of a record is no number")
        fields = [field for field in base.arg_constraints if depends(lambda site: getattr(_law(site), field))]  # noqa: B023
        if len(fields) != 1 or depends(lambda site: constants(site)[1:]):
            raise NoTable(f"a record sees the parameters through {len(fields)} numbers of its law, or others")
        (parameter,) = fields
        constraint = base.arg_constraints[parameter]
        bounds = None if constraint.event_dim or constraint.is_discrete else ends_of(constraint)
        scale = _SCALES.get(parameter, _SCALES.get(bounds))
        if scale is None:
            raise NoTable("a parameter of the law of a record is no number")
        constant = jax.jit(lambda values: constants(density.at(values)[name]))(parameters)
        arrays, mechanism, values, weights = jax.device_get(constant)
        mechanism = law.mechanism if is_concrete(law.mechanism) else mechanism
        whole = cls(type(base)(**arrays), parameter, scale, mechanism, values, weights)
        if not isinstance(mechanism, Published):
            return [whole]
        (rule, times), nothing = mechanism.others, np.full(values.shape, np.nan)
        others = cls(whole.base, parameter, scale, rule, nothing, weights * times, times)
        return [dataclasses.replace(whole, mechanism=mechanism.mechanism), others]

    @functools.cached_property
    def variances(self) -> np.ndarray:
        """Of the noise (records,)."""
        noise = self.mechanism.noise
        return np.broadcast_to(1.0 if noise is None else np.square(noise.standard_deviation), self.values.shape)

    def numbers(self, message: Message) -> jax.Array:
        """The numbers (records,) in a run of the model, on the scale of the tables."""
        number = self.scale.place(self.parameters(message), jnp.asarray(self.variances))
        return jnp.clip(number, -1e30, 1e30)  # finite, since it is multiplied by slopes that may be 0

    def parameters(self, message: Message) -> jax.Array:
        return jnp.broadcast_to(getattr(_law(message), self.parameter), self.values.shape)

    def law_at(self, parameter: Array, owners: np.ndarray) -> Privatized:
        parameters = {name: getattr(self.base, name)[owners] for name in self.base.arg_constraints}
        parameters[self.parameter] = parameter
        base = type(self.base)(**parameters, validate_args=False)
        return Privatized(base, self.mechanism.of_records(self.values.shape, owners), validate_args=False)

    def tables(self) -> tuple[Tables, float]:
        """Tables of the records, one for equal ones, and the sum of their largest errors; `NoTable` without any."""
        columns = [getattr(self.base, name) for name in self.base.arg_constraints if name != self.parameter]
        columns += [np.broadcast_to(leaf, self.values.shape) for leaf in jax.tree.leaves(self.mechanism)]
        rows = np.stack([self.values, *columns], axis=-1).astype(float)
        first, kinds = distinct(rows)
        count = len(first)
        low, high, possible = _ends(self, first)
        weights, errors = np.bincount(kinds, np.abs(self.weights), count), np.zeros(count)
        polynomials: dict[int, np.ndarray] = {}  # by kind: coefficients (pieces, powers)
        pieces, waiting, places = FIRST_PIECES, np.flatnonzero(possible), np.concatenate([_CHEBYSHEV, _TEST_PLACES])
        while len(waiting) and pieces <= MAX_PIECES:
            offset = (np.arange(pieces)[:, None] + 0.5 * (1 + places)).ravel() / pieces
            points = low[waiting] + (high - low)[waiting] * offset[:, None]
            values = self.at(points, first[waiting]).reshape(pieces, -1, len(waiting))
            fitted = np.einsum("pnk,nc->kpc", values[:, : TABLE_DEGREE + 1], _COEFFICIENTS)  # (waiting, pieces, powers)
            at_tests = np.einsum("kpc,tc->ptk", fitted, np.vander(_TEST_PLACES, TABLE_DEGREE + 1, increasing=True))
            before, now = errors[waiting], np.max(np.abs(at_tests - values[:, TABLE_DEGREE + 1 :]), axis=(0, 1))
            good = weights[waiting] * now <= TABLES_ERROR_NATS / count
            polynomials |= dict(zip(waiting[good].tolist(), fitted[good], strict=True))
            errors[waiting] = now
            hopeless = (pieces > 2 * FIRST_PIECES) & (now > before / MIN_GAIN_OF_PIECES)
            waiting, pieces = waiting[~good & ~hopeless], 2 * pieces
        if not polynomials:
            raise NoTable(f"a log-likelihood is no polynomial of degree {TABLE_DEGREE} on each of {MAX_PIECES} pieces")
        lacking = ~np.isin(np.arange(count), [*polynomials])
        errors[lacking], powers, flat = 0.0, np.arange(TABLE_DEGREE + 1), np.zeros((1, TABLE_DEGREE + 1))
        tables = [polynomials.get(kind, flat) for kind in range(count)]
        sizes = np.array([*map(len, tables)])
        width = (high - low) / sizes
        below = np.array([table[0] @ (powers * (-1.0) ** (powers + 1)) for table in tables]) * 2 / width
        above = np.array([table[-1] @ powers for table in tables]) * 2 / width
        # The number of rows is a power of two, so that what is compiled serves other data.
        coefficients = np.zeros((1 << int(sizes.sum() - 1).bit_length(), TABLE_DEGREE + 1))
        coefficients[: sizes.sum()] = np.concatenate(tables)
        of_records = [array[kinds] for array in (low, width, np.cumsum(sizes) - sizes, sizes, below, above)]
        others = np.flatnonzero(lacking[kinds])  # known while the model is traced
        arrays = [*map(jnp.asarray, [*of_records, coefficients]), others]
        return Tables(*arrays), float(weights @ errors)

    def at(self, numbers: np.ndarray, records: np.ndarray) -> np.ndarray:
        """Log-likelihoods of some records at numbers (..., records), in chunks and threads."""
        flat, owners = numbers.ravel(), np.broadcast_to(records, numbers.shape).ravel()
        size, result = LIKELIHOODS_AT_ONCE - 1, np.empty(flat.size)
        # Sums over counts have windows for the widest noise: records of one class of it share one that is compiled.
        widths = width_classes(np.sqrt(self.variances))
        parts = []
        for width in np.unique(widths[owners]):
            rows = np.flatnonzero(widths[owners] == width)
            widest = int(np.argmax(np.where(widths == width, self.variances, -1.0)))
            parts += [(rows[start : start + size], widest) for start in range(0, len(rows), size)]
        values = in_threads(lambda part: self._chunk(flat[part[0]], owners[part[0]], part[1]), parts)
        for (rows, _), log_prob in zip(parts, values, strict=True):
            result[rows] = log_prob
        return result.reshape(numbers.shape)

    def _chunk(self, x: np.ndarray, owners: np.ndarray, widest: int) -> np.ndarray:
        size = len(x)
        room = LIKELIHOODS_AT_ONCE if size > FEW_LIKELIHOODS_AT_ONCE else FEW_LIKELIHOODS_AT_ONCE
        x = np.pad(x, (0, room - size), mode="edge")
        owners = np.pad(owners, (0, room - size), constant_values=widest)
        parameters = self.scale.parameter(jnp.asarray(x), self.variances[owners])
        # Sums over counts choose their windows by the noise, which therefore must not be traced.
        log_prob = Privatized.log_prob if self.base.support.is_discrete else _log_prob
        values = np.asarray(log_prob(self.law_at(parameters, owners), self.values[owners]))
        return np.where(np.isnan(values), -np.inf, values)[:size]


_log_prob = jax.jit(Privatized.log_prob)
_looked_up = jax.jit(jax.vmap(Tables.__call__, (None, 0)))


def _law(message: Message) -> Any:
    return unexpanded(unwrapped(message["fn"])[0].base_dist)


def _ends(site: TabulatedSite, records: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers (kinds,) beyond which log-likelihoods are `DEPTH_NATS` below their largest; whether any are finite."""
    grid = site.scale.place(site.scale.sizes[:, None], site.variances[records])
    grid, every = np.broadcast_to(grid, (len(grid), len(records))), np.arange(len(records))
    for _ in range(MAX_SEARCHES_FOR_ENDS):  # on a finer grid between the neighbours of those that are not lower
        values = site.at(grid, records)
        near, possible = values >= values.max(axis=0) - DEPTH_NATS, np.isfinite(values.max(axis=0))
        with np.errstate(invalid="ignore"):
            flat = [np.logical_and.accumulate(np.abs(v - v[0]) <= FLAT_NATS, axis=0) for v in (values, values[::-1])]
        bends = near & ~flat[0] & ~flat[1][::-1]
        near = np.where(bends.any(axis=0), bends, near)
        first, last = np.argmax(near, axis=0), len(grid) - 1 - np.argmax(near[::-1], axis=0)
        low, high = grid[np.maximum(first - 1, 0), every], grid[np.minimum(last + 1, len(grid) - 1), every]
        if np.all(high - low > 0.7 * (grid[-1] - grid[0])):
            break
        grid = low + (high - low) * np.linspace(0, 1, SEARCHED_POINTS)[:, None]
    return low, high, possible


# By the name of a site: its parts, their tables and the sums of their errors.
Tabulated: TypeAlias = dict[str, list[tuple[TabulatedSite, Tables, float]]]


@dataclasses.dataclass(eq=False)
class TabulatedRecords(Surrogate):
    """A model in which likelihoods of records are looked up in tables, whose reference are the likelihoods."""

    tabulated: Tabulated

    def __post_init__(self) -> None:
        exact = self.problem.density
        model, whole = _LookUp(exact.model, self.tabulated), exact.whole or exact
        self.density = dataclasses.replace(exact, model=model, whole=whole)

    def prepare(self) -> None:
        def numbers(parameters: Params) -> dict[str, Array]:
            sites = self.problem.density.at(parameters)
            return {name: parts[0][0].numbers(sites[name]) for name, parts in self.tabulated.items()}

        self._numbers = program_of("numbers", numbers, self.chains.example)

    def judge(self, positions: Params, final: bool = True) -> Surrogate | Report:
        # By site, (draws, records).
        numbers = stacked(map(self._numbers, unstacked(some_draws(positions, TABLE_DRAWS))))
        errors, count, others = 0.0, 0, 0
        every = [(name, *part) for name, parts in self.tabulated.items() for part in parts]
        for name, site, tables, _ in every:
            kept = np.setdiff1d(np.arange(len(site.values)), tables.others)
            count, others = count + len(kept), others + len(tables.others)
            values = np.asarray(_looked_up(tables, numbers[name]))
            errors += (site.at(numbers[name][:, kept], kept) - values[:, kept]) @ site.weights[kept]
        error, certified = float(np.max(np.abs(errors))), sum(error for *_, error in every)
        report = Report("tables", sites=(*self.tabulated,), count=count, others=others or None)
        report = dataclasses.replace(report, error_nats=error, certified_nats=certified)
        if error <= 10 * TABLES_ERROR_NATS:
            return report
        why = f"the error of tabulated likelihoods is {error:.2g} nats at posterior draws"
        return records_instead(self.problem, self.sampling, why, report)


def propose(problem: Problem, sampling: Sampling) -> TabulatedRecords | None:
    """Tables for the observed sites whose likelihoods are worth it; None if there is no such site."""
    density, sites = problem.density, problem.sites
    fixed = [name for name, site in sites.items() if not (site.latent or site.sampled)]
    candidates = [name for name in fixed if sites[name].rows >= MIN_TABULATED_ROWS]
    if problem.expand is not None or not candidates or panel_sketches(density):
        return None
    parameters = density.example(sampling.kernel._init_strategy)
    few = sum(np.size(value) for value in parameters.values()) < FEW_PARAMETERS
    tabulated: Tabulated = {}
    for name in candidates:
        traced, _ = trace(lambda _, u, name=name: density.log_likelihood(u, u, [name]), parameters)
        if traced.work < MIN_WORK_OF_A_ROW * sites[name].rows or (few and sites[name].records >= WORTHWHILE_RECORDS):
            continue
        with contextlib.suppress(NoTable):
            tabulated[name] = [(site, *site.tables()) for site in TabulatedSite.of(density, name, parameters)]
    return TabulatedRecords(problem, sampling, tabulated) if tabulated else None
