"""Mechanisms for the labels (responses) of a regression."""

import dataclasses
import math
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from numpyro.distributions import constraints

from ldpbayes._core import checks
from ldpbayes._core.checks import FINITE_NUMBERS, ONE_POSITIVE, POSITIVE, check_order, checked, refuse
from ldpbayes._core.pytrees import Owed, check_fields, ruled, static, unchecked
from ldpbayes._core.types import Array, ArrayModule, Key, array_of, extreme, floating, is_concrete
from ldpbayes.mechanisms import design, protocol
from ldpbayes.mechanisms._categories import RandomizedResponse, drawn_columns, flipped
from ldpbayes.mechanisms.design import HistogramLike, checked_histogram, checked_interval, increasing
from ldpbayes.mechanisms.plausibility import implausible_counts
from ldpbayes.mechanisms.protocol import NumericMechanism, PiecewiseConstant, registered
from ldpbayes.numerics.arrays import rounded, snapped
from ldpbayes.numerics.special import log_or_nothing
from ldpbayes.privacy import Guarantee
from ldpbayes.privacy.tradeoffs import FiniteTradeoff, PureProtocolTradeoff

MOST_PRIOR_CELLS = 512  # of a prior: the optimum takes less than a second
LEAST_PRIOR_CELLS = 64  # of a prior: more do not change the optimum visibly


class _OneOf(constraints.Constraint):
    """Some numbers, in ascending order."""

    is_discrete = True

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers

    def __call__(self, z: Array) -> Array:
        numbers = jnp.asarray(self.numbers)
        z = jnp.asarray(z)
        nearest = numbers[jnp.searchsorted((numbers[1:] + numbers[:-1]) / 2, z)]
        return (z == nearest) | (z == rounded(jnp, nearest, jnp.result_type(z, float)))

    def feasible_like(self, prototype: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(self.numbers)[0], jnp.shape(prototype))

    def tree_flatten(self) -> tuple:
        return (self.numbers,), (("numbers",), {})


class FiniteOutputs(protocol.DiscreteMechanism):
    """Base of mechanisms that take numbers and release one of finitely many numbers, the array ``outputs``."""

    outputs: Array
    #: Least and largest p(z | x) over all x of each output, arrays that broadcast with (*budgets, outputs).
    output_probabilities: Annotated[Any, Owed("least and largest p(z | x) over all x of each output")]
    noise, bounded = None, True
    _shared: ClassVar[tuple[str, ...]] = ("outputs",)
    resolution = math.inf  # p(z | x) is smooth between its `breakpoints`
    support = property(lambda self: _OneOf(self.outputs))

    def possible_values(self, most: int) -> np.ndarray | None:
        return np.asarray(self.outputs, float)

    def place(self, z: ArrayLike) -> Array:
        """Return the position of the nearest output for each released value, in NumPy or JAX, like `z`."""
        at = array_of(z)
        xp = np if isinstance(at, np.ndarray) and is_concrete(self.outputs) else jnp
        outputs = xp.asarray(self.outputs)
        # values that another precision has rounded are still nearest to what they were
        return xp.searchsorted((outputs[1:] + outputs[:-1]) / 2, at)

    def equivalence(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(self.place(np.asarray(z)))[:, None]

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        x = floating(x)
        outputs = jnp.asarray(self.outputs, x.dtype).reshape(-1, *[1] * max(x.ndim, len(self.batch_shape)))
        p = jnp.exp(self.log_prob(outputs, x))
        mean = jnp.sum(p * outputs, axis=0)
        return mean, jnp.sum(p * (outputs - mean) ** 2, axis=0)

    def implausible(self, values: np.ndarray) -> list[str]:
        counts = np.bincount(self.place(values), minlength=len(self.outputs))
        least, most = (np.reshape(p, (-1, np.shape(p)[-1])).mean(axis=0) for p in self.output_probabilities)
        names = [f"are {output:g}" for output in self.outputs]
        return implausible_counts(counts, len(values), least, most, 2 * len(counts), names.__getitem__)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        if not is_concrete(self.outputs):
            return values
        values = values if values.dtype.kind == "f" else values.astype(float)
        nearest = self.outputs[self.place(values)]
        bad = snapped(values, [nearest]) != nearest
        outputs = f"one of its {len(self.outputs)} outputs, from {self.outputs[0]:g} to {self.outputs[-1]:g}"
        refuse(bad, f"{type(self).__name__} releases {outputs}; {{}} values are not outputs", values)
        return nearest


@registered("rr_on_bins", "Randomized response over bins of labels, each of which is released as one number.")
class RROnBins(FiniteOutputs, PiecewiseConstant):
    """Randomized response over d ≥ 2 bins of labels. Each bin is released as one number ([GKKLMVZ] Algorithm 1).

    A label in bin i is released as outputs[i] with probability p = exp(epsilon) q, and as each other output with
    probability q = 1/(exp(epsilon) + d − 1). Choose edges and outputs without looking at the labels, or by `optimal`.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget in nats, positive and finite: one number, or one personal budget for each label.
    edges : array_like (d + 1,)
        Ends of the bins, edges[i] < x ≤ edges[i + 1], increasing, in the unit of the labels. Labels beyond are clipped.
    outputs : array_like (d,)
        The released number of each bin, strictly increasing, in the unit of the labels.

    Examples
    --------
    >>> ldp.RROnBins(epsilon=1.0, edges=[0, 5, 10, 20], outputs=[3, 7, 14]).bin([1.0, 6.0]).tolist()
    [0, 1]
    """

    epsilon: Array = ruled(POSITIVE)
    edges: Array = ruled(FINITE_NUMBERS)
    outputs: Array = ruled(FINITE_NUMBERS)

    monotone = True
    _shared: ClassVar[tuple[str, ...]] = ("edges", "outputs")
    domain = property(lambda self: constraints.interval(self.edges[0], self.edges[-1]))
    _response = property(lambda self: unchecked(RandomizedResponse, self.epsilon, len(self.outputs)))
    output_probabilities = property(lambda self: [p[..., None] for p in self._probabilities(np, float)[::-1]])
    # the curve of any two labels in different bins
    guarantee = property(lambda self: dataclasses.replace(self._response.guarantee, unit="label"))

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in (("edges", 3), ("outputs", 2)):
            increasing(name, getattr(self, name), least)
        edges, outputs = np.shape(self.edges), np.shape(self.outputs)
        if edges[0] != outputs[0] + 1:
            raise ValueError(f"edges must be one more than outputs, got shapes {edges} and {outputs}")

    @classmethod
    def optimal(cls, prior: HistogramLike, epsilon: float, *, nodes: ArrayLike | None = None) -> "RROnBins":
        """Return the mechanism with the least mean squared error E[(z − x)²] under a prior of the labels x.

        Parameters
        ----------
        prior : pair of array_like
            Nodes (k + 1,) and densities (k,) of a histogram of the labels, public or estimated privately.
        epsilon : float
            Privacy budget in nats, positive and finite.
        nodes : array_like, optional
            Ends of cells, whose unions are the bins, strictly increasing, in the unit of the labels. A label counts as
            the middle of its cell, which does not change the optimum if cells are equally wide. Default: 64 to 512
            cells, which take up to half a second.
        """
        histogram = checked_histogram(prior)
        cells = increasing("nodes", _cells(histogram.nodes) if nodes is None else nodes, 3)
        inner = np.interp(cells[1:-1], histogram.nodes, histogram.cumulative)
        below = np.concatenate([[0.0], inner, [histogram.cumulative[-1]]])
        edges, outputs = design.optimal_bins((cells[1:] + cells[:-1]) / 2, np.diff(below), epsilon)
        return cls(epsilon, np.concatenate([cells[:1], edges, cells[-1:]]), outputs)

    def bin(self, x: ArrayLike) -> jax.Array:
        """Return the number of the bin of each label `x`, from 0 on."""
        x = floating(x)
        return jnp.searchsorted(jnp.asarray(self.edges, x.dtype)[1:-1], x)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x = _checked_labels(x)
        p, _ = self._probabilities(jnp, x.dtype)
        key_flip, key_other = jax.random.split(key)
        flip = jax.random.uniform(key_flip, jnp.broadcast_shapes(x.shape, p.shape), x.dtype) >= p
        return jnp.asarray(self.outputs, x.dtype)[flipped(key_other, self.bin(x), flip, len(self.outputs))]

    def pieces(self, z: Array) -> tuple[Array, Array]:
        xp, z = _module_of(self, z)
        code, (p, q), edges = self.place(z), self._probabilities(xp, z.dtype), xp.asarray(self.edges, z.dtype)
        below, above = xp.where(code == 0, p, q), xp.where(code == len(self.outputs) - 1, p, q)
        code = xp.broadcast_to(code, below.shape)
        levels = xp.broadcast_arrays(below, p, above)
        return xp.stack([edges[code], edges[code + 1]], axis=-1), xp.stack(levels, axis=-1)

    def _probabilities(self, xp: ArrayModule, dtype: DTypeLike) -> tuple[Array, Array]:
        keep = xp.exp(-xp.asarray(self.epsilon, dtype))
        p = 1 / (1 + (len(self.outputs) - 1) * keep)
        return p, p * keep


def _interpolation(xp: ArrayModule, nodes: Array, x: Array) -> tuple[Array, Array]:
    """The node at or above x (clipped), never the first, and the share of the way to it from the node below."""
    x = xp.clip(x, nodes[0], nodes[-1])
    above = xp.clip(xp.searchsorted(nodes, x), 1, len(nodes) - 1)
    return above, (x - nodes[above - 1]) / (nodes[above] - nodes[above - 1])


def _checked_labels(x: ArrayLike) -> jax.Array:
    """Labels as a floating-point array; ValueError for NaN, where it can be seen."""
    if is_concrete(x):
        checked("x", x, "a number (drop or impute missing labels first)", lambda a: ~np.isnan(a))
    return floating(x)


def _module_of(mechanism: protocol.Mechanism, z: ArrayLike) -> tuple[ArrayModule, Array]:
    """NumPy if z is no JAX array and all parameters are concrete, else `jax.numpy`; z as its floating-point array."""
    z = array_of(z)
    xp: ArrayModule = np if isinstance(z, np.ndarray) and is_concrete(mechanism) else jnp
    return xp, xp.asarray(z, xp.result_type(z, float))


def _cells(nodes: np.ndarray) -> np.ndarray:
    """Ends of cells: a prior's bins, cut into parts, or equal cells of its range instead of too many bins."""
    bins = len(nodes) - 1
    if bins > MOST_PRIOR_CELLS:
        return np.linspace(nodes[0], nodes[-1], MOST_PRIOR_CELLS + 1)
    parts = -(-LEAST_PRIOR_CELLS // bins)
    return np.interp(np.arange(parts * bins + 1) / parts, np.arange(bins + 1), nodes)


OUTSIDE_RULES = ("projection", "uniform")  # for labels outside the interval


class NearOrAnywhere(PiecewiseConstant, NumericMechanism):
    """Base of mechanisms that release a number near the label, or else a number anywhere, as `RPWithPrior` does."""

    epsilon: Array
    interval: tuple[Array, Array]
    half_width: Array

    _unit: ClassVar[str] = "label"
    _projects: bool = True  # whether inputs outside the interval are taken to be at its nearest end

    noise, bounded = None, True
    linear_tails = has_atoms = False
    resolution = math.inf
    _ends = property(lambda self: (self.interval[0] - self.half_width, self.interval[1] + self.half_width))
    released_range = property(lambda self: (extreme("min", self._ends[0]), extreme("max", self._ends[1])))
    support = property(lambda self: constraints.interval(*self._ends))
    # under the uniform rule the interval has a margin, which stands for all labels outside it
    domain = property(lambda self: constraints.interval(*(self.interval if self._projects else self._ends)))

    def _law(self, dtype: DTypeLike, xp: ArrayModule = jnp) -> tuple[Array, Array, Array, Array, Array]:
        """exp(−ε), a, b, ζ and γ."""
        keep = xp.exp(-xp.asarray(self.epsilon, dtype))
        lower, upper, half = (xp.asarray(part, dtype) for part in (*self.interval, self.half_width))
        return keep, lower, upper, half, 2 * half + keep * (upper - lower)

    def _near(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Projected labels, and the probability of release within ζ only: 2ζ(1 − exp(−ε))/γ; 0 if not projected."""
        _, lower, upper, half, total = self._law(x.dtype)
        projected, near = jnp.clip(x, lower, upper), -2 * half * jnp.expm1(-jnp.asarray(self.epsilon, x.dtype)) / total
        return projected, near if self._projects else jnp.where(x == projected, near, 0.0)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x = _checked_labels(x)
        _, lower, upper, half, _ = self._law(x.dtype)
        shape = jnp.broadcast_shapes(x.shape, self.batch_shape)
        choice, place = jax.random.uniform(key, (2, *shape), x.dtype)
        projected, probability = self._near(x)
        near = choice < probability
        start = jnp.where(near, projected, lower) - half
        length = jnp.where(near, 0.0, upper - lower) + 2 * half
        return jnp.minimum(start + length * place, upper + half)

    def pieces(self, z: Array) -> tuple[Array, Array]:
        xp, z = _module_of(self, z)
        keep, lower, upper, half, total = self._law(z.dtype, xp)
        z = xp.broadcast_to(z, np.broadcast_shapes(z.shape, total.shape))
        possible = (z >= lower - half) & (z <= upper + half)
        high, low = (xp.where(possible, level / total, 0.0) for level in (1.0, keep))
        if self._projects:
            # beyond the interval's end labels are taken to be at it, which may be within ζ of z
            below, above = xp.where(z <= lower + half, high, low), xp.where(z >= upper - half, high, low)
            return xp.stack([z - half, z + half], axis=-1), xp.stack([below, high, above], axis=-1)
        flat = xp.where(possible, 1 / (2 * half + upper - lower), 0.0)
        start = xp.nextafter(lower, -xp.inf)  # the interval's lower end is inside
        near = xp.clip(z - half, start, upper), xp.clip(z + half, start, upper)
        cuts = xp.stack(xp.broadcast_arrays(start, *near, upper), axis=-1)
        return cuts, xp.stack([flat, low, high, low, flat], axis=-1)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        x = floating(x)
        _, lower, upper, half, _ = self._law(x.dtype)
        projected, near = self._near(x)
        middle, apart = (lower + upper) / 2, projected - (lower + upper) / 2
        within, anywhere = half**2 / 3, (upper - lower + 2 * half) ** 2 / 12
        return middle + near * apart, near * within + (1 - near) * anywhere + near * (1 - near) * apart**2

    def unbiased(self, z: ArrayLike) -> jax.Array:
        """Return `Mechanism.unbiased` values; ValueError unless outer labels are projected to the interval."""
        if not self._projects:
            raise ValueError(f"{type(self).__name__} has unbiased values only with outside='projection'")
        z = floating(z)
        _, lower, upper, _, _ = self._law(z.dtype)
        middle, near = self._near((lower + upper) / 2)
        return middle + (z - middle) / near

    released_breakpoints = property(lambda self: self._bends(np.asarray(self.interval)))

    def _bends(self, places: np.ndarray) -> np.ndarray:
        """Where the density of released values bends if that of the inputs does at some places (m, *batch)."""
        return np.ravel(np.add.outer(places, np.multiply.outer([-1.0, 1.0], self.half_width)))

    @property
    def guarantee(self) -> Guarantee:
        # the neighbourhoods differ in a length of min(2ζ, b − a), of density 1/γ and exp(−ε)/γ
        width = self.interval[1] - self.interval[0]
        separation = np.minimum(2 * self.half_width, width) / (2 * self.half_width + np.exp(-self.epsilon) * width)
        return Guarantee(PureProtocolTradeoff(self.epsilon, separation), unit=self._unit)

    def _validated(self, values: np.ndarray) -> np.ndarray:
        return super()._validated(snapped(values, self._ends) if is_concrete(self) else values)


@registered("rp_with_prior", "Release a value near the label, or else a value anywhere in an interval.")
class RPWithPrior(NearOrAnywhere):
    """Release a value within a distance ζ of the label, or else a value anywhere in an interval ([LH] eqs. 3.4-3.17).

    For a label x in the interval [a, b], the density of z on [a − ζ, b + ζ] is 1/γ if |z − x| ≤ ζ, and exp(−ε)/γ
    otherwise, with γ = 2ζ + exp(−ε)(b − a). Nothing else in a record is protected.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget ε in nats, positive and finite: one number, or one personal budget for each label.
    interval : pair of float
        The ends a < b, in the unit of the labels, chosen without looking at the labels, or from a private histogram of
        them by `optimal_interval` or `optimal_half_width`.
    half_width : array_like
        Distance ζ, positive and finite, in the unit of the labels: one number, or one number for each label.
    outside : {"projection", "uniform"}
        A label outside [a, b] is released like the nearest end (default, eq. 3.12), or uniformly on [a − ζ, b + ζ]
        (3.17).

    Examples
    --------
    >>> ldp.RPWithPrior(epsilon=1.0, interval=(0.0, 20.0), half_width=2.0).released_range
    (-2.0, 22.0)
    """

    epsilon: Array = ruled(POSITIVE)
    interval: tuple[Array, Array]
    half_width: Array = ruled(POSITIVE)
    outside: str = static(default="projection")
    _projects = property(lambda self: self.outside == "projection")

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "interval", checked_interval(self.interval))
        if self.outside not in OUTSIDE_RULES:
            raise ValueError(f"outside must be one of {', '.join(OUTSIDE_RULES)}, got {self.outside!r}")


ONE_FINITE_NUMBER = "a finite number", lambda a: (a.ndim == 0) & np.isfinite(a)
_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(40)


@registered("square_wave", "Square wave: release a number near the clipped record, or else a number anywhere.")
class SquareWaveMechanism(NearOrAnywhere):
    """Release a number near the clipped record, or else a number anywhere: the square wave mechanism ([LWLSL] sec. 5).

    This is `RPWithPrior` for a record between bounds. In units of upper − lower, the half-width is b = (ε exp(ε) −
    exp(ε) + 1)/(2 exp(ε)(exp(ε) − 1 − ε)), which maximises a bound on the mutual information of x and z.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget ε in nats, positive and at most 30 (where b is 1e-12): one number, or one number for each record.
    lower, upper : float
        Clipping bounds in the unit of the data, finite, lower < upper. Choose them without looking at the data.
    """

    epsilon: Array = ruled(("positive and at most 30", lambda a: (a > 0) & (a <= 30)))
    lower: Array = ruled(ONE_FINITE_NUMBER)
    upper: Array = ruled(ONE_FINITE_NUMBER)

    monotone = True
    _unit: ClassVar[str] = "record"
    interval = property(lambda self: (self.lower, self.upper), doc="The bounds, as a pair.")

    def __post_init__(self) -> None:
        check_fields(self)
        check_order(self.lower, self.upper)

    @property
    def half_width(self) -> Array:
        """The half-width in the unit of the data: b = f(−ε)/(2 f(ε)) of the range, with f(t) = (exp(t) − 1 − t)/t²."""
        xp = np if is_concrete(self) else jnp
        half, weights = xp.asarray(self.epsilon)[..., None] / 2, _GAUSS_WEIGHTS * (1 - _GAUSS_NODES)
        rising, falling = (xp.exp(part * (1 + _GAUSS_NODES)) @ weights for part in (half, -half))
        return (self.upper - self.lower) * falling / (2 * rising)

    #: Possible kinks, for records whose law has kinks at 40ths of the interval, as `SmoothDensity` has.
    released_breakpoints = property(lambda self: self._bends(np.linspace(self.lower, self.upper, 41)))


DEFAULT_NODES = 25  # labels with a row of their own: a second's work
MATRIX_TOLERANCE = 1e-9  # for the sums and means of rows, and for the budget


@registered("unbiased_randomizer", "Unbiased mechanism for labels, with finitely many outputs.")
class UnbiasedRandomizer(FiniteOutputs, protocol.PiecewiseLinear):
    """Unbiased mechanism for labels with finitely many outputs ([BGKKLMVZ]): E[z | x] = x between the outer nodes.

    A label at a node is released as an output by the probabilities in the node's row. A label between two nodes is
    first rounded at random to one of them, so that its mean is the label. A label beyond the outer nodes is clipped.

    Parameters
    ----------
    epsilon : float
        Privacy budget in nats, positive and finite: two entries in a column of `matrix` have at most a ratio of
        exp(epsilon).
    nodes : array_like (k,)
        At least two labels, strictly increasing, in the unit of the labels.
    outputs : array_like (m,)
        Released numbers, strictly increasing, in the unit of the labels, from below all nodes to above all.
    matrix : array_like (k, m)
        Positive probabilities p(output | node). Each row sums to one, and its mean output is its node, both up to 1e-9.
    """

    epsilon: Array = ruled(ONE_POSITIVE)
    nodes: Array = ruled(FINITE_NUMBERS)
    outputs: Array = ruled(FINITE_NUMBERS)
    matrix: Array = ruled(POSITIVE)

    _shared: ClassVar[tuple[str, ...]] = ("nodes", "outputs", "matrix")
    domain = property(lambda self: constraints.interval(self.nodes[0], self.nodes[-1]))
    # of the nodes: a label between two has a mixture of their laws, which is never more extreme and tells no more
    output_probabilities = property(lambda self: (self.matrix.min(axis=0), self.matrix.max(axis=0)))
    guarantee = property(lambda self: Guarantee(FiniteTradeoff(self.matrix), unit="label"))

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("nodes", "outputs"):
            increasing(name, getattr(self, name), 2)
        shape = (*np.shape(self.nodes), *np.shape(self.outputs))
        if (got := np.shape(self.matrix)) != shape:
            raise ValueError(f"matrix must have one row for each node, one column for each output, {shape}, got {got}")
        if not is_concrete(self):
            return
        bias = (self.matrix @ self.outputs - self.nodes) / (self.nodes[-1] - self.nodes[0])
        excess = np.max(np.log(self.matrix.max(axis=0) / self.matrix.min(axis=0))) - self.epsilon
        for error, needed in (
            (np.max(np.abs(self.matrix.sum(axis=1) - 1)), "rows that sum to one"),
            (np.max(np.abs(bias)), "rows whose means are the nodes"),
            (excess, f"columns in which no entry is more than exp({self.epsilon:g}) times another"),
        ):
            if error > MATRIX_TOLERANCE:
                raise ValueError(f"matrix must have {needed}, up to {MATRIX_TOLERANCE:g}; the error is {error:.3g}")

    @classmethod
    def optimal(
        cls, prior: HistogramLike, epsilon: float, *, nodes: int | ArrayLike = DEFAULT_NODES
    ) -> "UnbiasedRandomizer":
        """Return the unbiased mechanism with the least mean squared error E[(z − x)²] under a prior of the labels x.

        Parameters
        ----------
        prior, epsilon
            As in `RROnBins.optimal`.
        nodes : int or array_like
            The nodes, or their number, equally spaced over the range of the prior. Default: 25, which takes a second.
            Rounding to nodes adds at most a quarter of their squared distance to the variance of a released value.
        """
        histogram = checked_histogram(prior)
        if checks.is_integer(nodes):
            rows = np.linspace(histogram.nodes[0], histogram.nodes[-1], checks.at_least(2, "nodes", nodes))
        else:
            rows = increasing("nodes", nodes, 2)
        # probabilities of the rows after rounding at random: under a density that is constant on a cell, the mean of a
        # linear function is its value in the middle
        ends = np.unique(np.concatenate([histogram.nodes, rows]))
        mass = np.diff(np.interp(ends, histogram.nodes, histogram.cumulative))
        (above, share), k = _interpolation(np, rows, (ends[1:] + ends[:-1]) / 2), len(rows)
        probabilities = np.bincount(above - 1, (1 - share) * mass, k) + np.bincount(above, share * mass, k)
        return cls(epsilon, rows, *design.optimal_unbiased(rows, probabilities, epsilon))

    def _neighbour(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _interpolation(jnp, jnp.asarray(self.nodes, x.dtype), x)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        x = _checked_labels(x)
        above, share = self._neighbour(x)
        node, law = jax.random.uniform(key, (2, *x.shape), x.dtype)
        row = jnp.where(node < share, above, above - 1)
        place = drawn_columns(jnp.asarray(self.matrix, x.dtype), row, law)
        return jnp.asarray(self.outputs, x.dtype)[place]

    def levels(self, z: ArrayLike) -> jax.Array:
        z = floating(z)
        return jnp.asarray(self.matrix, z.dtype).T[self.place(z)]

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        dtype = jnp.result_type(z, x, float)
        place, (above, share) = self.place(jnp.asarray(z, dtype)), self._neighbour(jnp.asarray(x, dtype))
        matrix = jnp.asarray(self.matrix, dtype)
        return log_or_nothing((1 - share) * matrix[above - 1, place] + share * matrix[above, place])

    def breakpoints(self, z: Array) -> Array:
        xp, z = _module_of(self, z)
        return xp.broadcast_to(xp.asarray(self.nodes), (*z.shape, len(self.nodes)))

    def unbiased(self, z: ArrayLike) -> jax.Array:
        return floating(z)
