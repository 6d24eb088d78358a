"""Random mechanisms, laws, shapes, masks and values against brute force, under eager, jit, vmap and grad.

A structure is a law, a mechanism and how their parameters are laid out; its program is compiled once, with everything
else as arguments. Hypothesis draws the numbers, the same ones in every run. The default suite takes a few structures
and 200 examples; ``pytest -m slow tests/test_random_cases.py`` takes all of them and 10,000.
"""

import dataclasses
import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import ldpbayes as ldp
from ldpbayes.likelihood import law_of_nodes
from tests.brute_force import log_marginal, log_row_marginal

# some values are so far out that no records explain them
pytestmark = pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")

N, CATEGORIES = 4, 3
# name → ranges of the parameters (of numbers in units of the mechanism's range), NumPyro's law, SciPy's
LAWS = {
    "normal": ({"loc": (-0.7, 1.7), "scale": (0.08, 2.0)}, dist.Normal, lambda loc, scale: stats.norm(loc, scale)),
    "student": (
        {"df": (2.5, 9.0), "loc": (-0.3, 1.3), "scale": (0.1, 1.0)},
        dist.StudentT,
        lambda df, loc, scale: stats.t(df, loc, scale),
    ),
    "exponential": ({"rate": (0.2, 8.0)}, dist.Exponential, lambda rate: stats.expon(scale=1 / rate)),
    "gamma": (
        {"concentration": (1.2, 6.0), "rate": (2.0, 9.0)},
        dist.Gamma,
        lambda concentration, rate: stats.gamma(concentration, scale=1 / rate),
    ),
    "poisson": ({"rate": (0.3, 9.0)}, dist.Poisson, lambda rate: stats.poisson(rate)),
    "negative binomial": (
        {"mean": (0.3, 9.0), "concentration": (0.4, 5.0)},
        dist.NegativeBinomial2,
        lambda mean, concentration: stats.nbinom(concentration, concentration / (concentration + mean)),
    ),
    "bernoulli": ({"probs": (0.02, 0.98)}, dist.Bernoulli, lambda probs: stats.bernoulli(probs)),
    "binomial": (
        {"probs": (0.02, 0.98)},
        lambda probs: dist.Binomial(CATEGORIES - 1, probs),
        lambda probs: stats.binom(CATEGORIES - 1, probs),
    ),
}
LOCATED = {"loc": lambda value, lower, width: lower + width * value, "scale": lambda value, lower, width: width * value}
ON_WIDTH = {"exponential", "gamma"}  # whose rate is per range
COUNTS = {"poisson": (0.0, 9.0), "negative binomial": (0.5, 7.0), "bernoulli": (-1.0, 1.0)}
"""Bounds for discrete laws, which must be known before tracing: at integers, between them, beyond the support."""
FIXED = (-1.6, 4.1)
"""Bounds where there are sketches, whose panels belong to the structure; no numbers of single precision."""
UNITS = (1.0, 1e-6, 1e6)
NUMBERS = {
    "laplace": lambda e, low, high: ldp.LaplaceMechanism(e, low, high),
    "gaussian": lambda e, low, high: ldp.GaussianMechanism(e, 1e-4, low, high),
    "symmetric": lambda e, low, high: ldp.SymmetricLaplaceMechanism((high - low) / e, low, high),
    "independent": lambda e, low, high: ldp.mechanisms.IndependentLaplaceMechanism((high - low) / e, low, high),
    "zero-inflated": lambda e, low, high: ldp.ZeroInflatedLaplaceMechanism(
        0.1 + 0.5 / (1 + e), (high - low) / e, low, high
    ),
}
PROTOCOLS = {
    "k-rr": lambda e: ldp.RandomizedResponse(e, CATEGORIES),
    "oue": lambda e: ldp.OptimalUnaryEncoding(e, CATEGORIES),
    "sue": lambda e: ldp.SymmetricUnaryEncoding(e, CATEGORIES),
    "subset": lambda e: ldp.SubsetSelection(e, CATEGORIES, 2),
    "hadamard": lambda e: ldp.HadamardResponse(e, CATEGORIES),
    "hashing": lambda e: ldp.LocalHashing(e, CATEGORIES, 2),
}
BITS = st.lists(st.integers(0, 1), min_size=CATEGORIES, max_size=CATEGORIES)
RELEASED = {
    "k-rr": st.integers(0, CATEGORIES - 1),
    "oue": BITS,
    "sue": BITS,
    "subset": st.sampled_from([[1, 1, 0], [1, 0, 1], [0, 1, 1]]),
    "hadamard": st.integers(0, 3),
    "hashing": st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 1)),
}
ROWS = {
    "symmetric rows": lambda e: ldp.SymmetricLaplaceMechanism(1 / e, -50, 50, 2),
    "zero-inflated rows": lambda e: ldp.ZeroInflatedLaplaceMechanism(0.3, 1 / e, -50, 50, 2),
}
STEP = 1e-5
LAYOUTS = ("one law", "a law a record", "two groups", "personal")


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a program is compiled for: a law, a mechanism, a layout."""

    law: str
    mechanism: str
    layout: str

    def __str__(self):
        return f"{self.law}, {self.mechanism}, {self.layout}"

    @property
    def law_shape(self):
        """Batch shape of the law's parameters."""
        return {"a law a record": (N,), "two groups": (2, 1)}.get(self.layout, ())

    @property
    def budget_shape(self):
        """Shape of the mechanism's parameters."""
        return (N,) if self.layout == "personal" else ()

    @property
    def sketched(self):
        """Whether a sketch stands for the records: one law, and for numbers one budget."""
        one_budget = self.layout == "one law" or (self.layout == "personal" and self.mechanism in PROTOCOLS)
        return one_budget and self.mechanism not in ROWS


PAIRS = [
    *((law, mechanism) for law in LAWS for mechanism in NUMBERS if law != "binomial"),
    *((law, mechanism) for law in ("bernoulli", "binomial") for mechanism in PROTOCOLS),
]
STRUCTURES = [
    *(Structure(*pair, "one law") for pair in PAIRS),
    *(Structure(*pair, LAYOUTS[1 + i % 3]) for i, pair in enumerate(PAIRS)),
    *(Structure("rows", mechanism, layout) for mechanism in ROWS for layout in ("one law", "a law a record")),
]
FEW = [
    Structure("normal", "gaussian", "a law a record"),
    Structure("normal", "zero-inflated", "one law"),
    Structure("student", "laplace", "personal"),
    Structure("exponential", "independent", "two groups"),
    Structure("poisson", "zero-inflated", "one law"),
    Structure("bernoulli", "k-rr", "two groups"),
    Structure("binomial", "oue", "one law"),
    Structure("bernoulli", "hadamard", "personal"),
    Structure("rows", "zero-inflated rows", "a law a record"),
]
DEFAULT = [s for s in FEW if (s.law, s.mechanism) in [*(("normal", m) for m in NUMBERS), ("bernoulli", "k-rr")]]
DEFAULT += [s for s in FEW if s.law == "binomial"]
"""Which of them run by default: real numbers and categories, one law, one a record and groups; each takes seconds."""
EAGER = [s for s in FEW if s.mechanism == "k-rr"]
"""Which of them run op by op too, which takes seconds at first; in the slow test one in 25 examples does."""


def law_of(structure, parameters):
    if structure.law == "rows":
        return dist.MultivariateNormal(parameters["loc"], scale_tril=parameters["root"])
    return LAWS[structure.law][1](**parameters)


def known_bounds(structure, tree):
    """The same with bounds that are constants, where they must be."""

    def leaf(path, value):
        names = [getattr(key, "name", "") for key in path]
        return COUNTS[structure.law][names[-1] == "upper"] if names[-1:] in (["lower"], ["upper"]) else value

    constant = structure.law in COUNTS and structure.mechanism in NUMBERS
    return jax.tree_util.tree_map_with_path(leaf, tree) if constant else tree


@functools.cache
def program(structure):
    """The compiled function of a structure, from what is random to everything that is compared."""

    def model(parameters, values, mask):
        plates = [numpyro.plate("records", N, dim=-1)]
        if len(structure.law_shape) == 2:
            plates.append(numpyro.plate("groups", 2, dim=-2))
        law = law_of(structure, parameters).expand(np.broadcast_shapes(structure.law_shape, (N,)))
        with plates[0], plates[-1] if len(plates) > 1 else numpyro.handlers.scale(scale=2.0):
            numpyro.sample("x", law.mask(mask), obs=values)

    def observing(parameters, data, flag=True):
        ldp.observe("x", law_of(structure, parameters).mask(flag), data)

    def log_prob(parameters, mechanism, values):
        return ldp.Privatized(law_of(structure, parameters), mechanism).log_prob(values)

    def run(parameters, mechanism, values, hidden, mask, release, sketch):
        mechanism, release = known_bounds(structure, mechanism), known_bounds(structure, release)
        private = ldp.privatize(model, {"x": mechanism})
        one_by_one = structure.budget_shape == structure.law_shape == ()
        mapped = jax.vmap(log_prob, (None, None, 0)) if one_by_one else log_prob
        found = {"values": mapped(parameters, mechanism, values)}
        found["model"] = jax.value_and_grad(lambda p: log_density(private, (p, hidden, mask), {}, {})[0])(parameters)
        if structure.layout != "two groups":
            found["release"] = log_density(observing, (parameters, release), {}, {})[0]
        if structure.sketched:
            found["sketches"] = jax.vmap(
                lambda flag, one: log_density(observing, (parameters, known_bounds(structure, one), flag), {}, {})[0]
            )(jnp.array([True, False]), jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), sketch))
        return found

    return jax.jit(run)


@st.composite
def cases(draw, structure):
    """A structure with parameters, a mechanism, released values and a mask."""

    def numbers(low, high, shape):
        size = int(np.prod(shape, dtype=int))
        flat = draw(st.lists(st.floats(low, high, allow_subnormal=False), min_size=size, max_size=size))
        return np.array(flat).reshape(shape) if shape else flat[0]

    mask = np.array(draw(st.lists(st.booleans(), min_size=N, max_size=N)))
    epsilon = numbers(0.1, 6.0, structure.budget_shape)
    if structure.mechanism == "gaussian" and structure.sketched:
        epsilon = draw(st.sampled_from([0.5, 4.0]))  # on which the panels depend
    if structure.mechanism in ROWS:
        mechanism = ROWS[structure.mechanism](epsilon)
        shape = structure.law_shape
        root = np.zeros((*shape, 2, 2))
        root[..., [0, 1], [0, 1]] = numbers(0.3, 2.0, (*shape, 2))
        root[..., 1, 0] = numbers(-1.0, 1.0, shape)
        parameters = {"loc": numbers(-2.0, 2.0, (*shape, 2)), "root": root}
        return structure, parameters, mechanism, numbers(-6.0, 6.0, (N, 2)), mask
    ranges = LAWS[structure.law][0]
    parameters = {name: numbers(*ranges[name], structure.law_shape) for name in ranges}
    if structure.mechanism in PROTOCOLS:
        mechanism = PROTOCOLS[structure.mechanism](epsilon)
        values = np.array(draw(st.lists(RELEASED[structure.mechanism], min_size=N, max_size=N)))
        return structure, parameters, mechanism, values, mask
    if structure.law in COUNTS:
        lower, upper = COUNTS[structure.law]
    elif structure.sketched:
        lower, upper = FIXED
    else:
        unit = draw(st.sampled_from(UNITS))
        lower = unit * np.round(numbers(-3.0, 3.0, ()), 3)  # the reference underflows where a bound is 1e-100
        upper = lower + unit * numbers(0.5, 20.0, ())
    width = upper - lower
    for name, value in parameters.items():
        if name in LOCATED:
            parameters[name] = LOCATED[name](value, lower, width)
        elif structure.law in ON_WIDTH and name == "rate":
            parameters[name] = value / width
    mechanism = NUMBERS[structure.mechanism](epsilon, lower, upper)
    places = st.one_of(st.floats(-2.0, 3.0, allow_subnormal=False), st.sampled_from([0.0, 1.0]))
    where = draw(st.lists(places, min_size=N, max_size=N))
    values = np.array([upper if u == 1 else lower + width * u for u in where])
    if structure.law in COUNTS and draw(st.booleans()):
        values = np.round(values)
    if draw(st.booleans()):  # as `randomize` releases them by default
        values = values.astype(np.float32).astype(float)
    return structure, parameters, mechanism, values, mask


def brute_force(structure, parameters, mechanism, values):
    """Log density of every value, in the broadcast shape of law and values."""
    if structure.law == "rows":
        loc, root = (np.broadcast_to(parameters[name], (N, *(2,) * axes)) for name, axes in (("loc", 1), ("root", 2)))
        return np.array([log_row_marginal(m, r @ r.T, mechanism, z) for m, r, z in zip(loc, root, values, strict=True)])
    shape = np.broadcast_shapes(structure.law_shape, (N,))
    result = np.empty(shape)
    for index in np.ndindex(shape):
        record = index[-1]
        mine = {name: np.broadcast_to(value, shape)[index] for name, value in parameters.items()}
        result[index] = log_marginal(LAWS[structure.law][2](**mine), mechanism.of_records((N,), record), values[record])
    return result


def sketched(structure, release):
    """The sketch of a release, of the same shape for all of a structure."""
    if structure.mechanism not in PROTOCOLS:
        return release.sketch(panels=40)
    if structure.mechanism != "oue" or structure.budget_shape:
        return release.sketch()
    every = ldp.Release(list(itertools.product([0, 1], repeat=CATEGORIES)), release.mechanism).sketch()
    return dataclasses.replace(every, weights=np.zeros(len(every.nodes))) + release.sketch()


def check(case, eager=True):
    structure, parameters, mechanism, values, mask = case
    with jax.enable_x64(True):
        release = ldp.Release(values, mechanism)
        values = np.asarray(release.values)  # those that single precision moved off a bound are on it again
        hidden = np.where(mask.reshape((N,) + (1,) * (values.ndim - 1)), values, np.nan if values.dtype == float else 7)
        sketch = sketched(structure, release) if structure.sketched else None
        found = program(structure)(parameters, mechanism, values, hidden, mask, release, sketch)
        found = jax.tree.map(np.asarray, found)
        if eager:
            found["eager"] = np.asarray(ldp.Privatized(law_of(structure, parameters), mechanism).log_prob(values))
            if structure.sketched:
                law = law_of_nodes(sketch, law_of(structure, parameters))
                found["eager sketch"] = np.sum(
                    np.where(sketch.weights, sketch.weights * law.log_prob(sketch.nodes), 0.0)
                )
    expected = brute_force(structure, parameters, mechanism, values)
    scale = 1.0 if structure.layout == "two groups" else 2.0
    total, gradient = found.pop("model")
    # the reference is good to 1e-10; a channel of 40 panels to 1e-8 for laws no narrower than these
    close = functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-8)
    close(total, scale * np.sum(np.where(mask, expected, 0.0)), err_msg="model")
    for name, value in found.items():
        want = expected if name in ("values", "eager") else expected.sum()
        close(value, [want, 0.0] if name == "sketches" else want, err_msg=name)
    # derivatives along one direction: a central difference is off by STEP² times the third, and by 1e-10 / STEP = 1e-5
    # for the reference's error
    sizes = {name: np.max(np.abs(value)) for name, value in parameters.items()}
    way = {name: size * np.tril(np.ones(np.shape(parameters[name]))) for name, size in sizes.items() if name == "root"}
    way = {name: size * np.ones(np.shape(parameters[name])) for name, size in sizes.items()} | way

    def along_the_way(step):
        there = {name: parameters[name] + step * way[name] for name in way}
        return scale * np.sum(np.where(mask, brute_force(structure, there, mechanism, values), 0.0))

    along = sum(np.sum(gradient[name] * way[name]) for name in way)
    if np.isfinite(total):  # not where a value is observed that cannot have been released
        difference = (along_the_way(STEP) - along_the_way(-STEP)) / (2 * STEP)
        np.testing.assert_allclose(along, difference, rtol=2e-4, atol=2e-4, err_msg="gradient")


QUIET = {
    "deadline": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
    "database": None,
    "phases": [hypothesis.Phase.generate],  # shrinking would compile for minutes
}


def each(total, structures):
    return -(-total // len(structures))


@pytest.mark.parametrize(
    "structure", [pytest.param(s, id=str(s), marks=() if s in DEFAULT else pytest.mark.slow) for s in FEW]
)
@hypothesis.settings(max_examples=each(200, FEW), derandomize=True, **QUIET)
@hypothesis.given(st.data())
def test_random_cases_agree_with_brute_force(structure, data):
    check(data.draw(cases(structure)), eager=structure in EAGER)


SINGLE = [s for s in FEW if s in (FEW[1], FEW[3])]
"""Which of them run in single precision too."""


@pytest.mark.parametrize(
    "structure", [pytest.param(s, id=str(s), marks=() if s in DEFAULT else pytest.mark.slow) for s in SINGLE]
)
@hypothesis.settings(max_examples=10, derandomize=True, **QUIET)
@hypothesis.given(st.data())
def test_random_cases_in_single_precision_agree_with_brute_force(structure, data):
    structure, parameters, mechanism, values, _ = data.draw(cases(structure))
    values = values.astype(np.float32)
    got, slope = program_in_single_precision(structure)(parameters, mechanism, values)
    assert got.dtype == np.float32 and all(np.all(np.isfinite(leaf)) for leaf in slope.values())
    expected = brute_force(structure, parameters, mechanism, values.astype(float))
    # a dozen roundings of z, x and the scale, each multiplied by the distance in scales, which is at most 2 ranges of 6
    # scales; and of a density by interpolation, whose weights add up to 4 in size
    np.testing.assert_allclose(got, expected, atol=12 * (12 + 4) * np.finfo(np.float32).eps, rtol=1e-6)


@functools.cache
def program_in_single_precision(structure):
    def log_prob(parameters, mechanism, values):
        found = ldp.Privatized(law_of(structure, parameters), known_bounds(structure, mechanism)).log_prob(values)
        return jnp.sum(found), found

    def run(parameters, mechanism, values):
        slope, found = jax.grad(log_prob, has_aux=True)(parameters, mechanism, values)
        return found, slope

    return jax.jit(run)


@hypothesis.settings(max_examples=50, derandomize=True, **QUIET)
@hypothesis.given(st.permutations("abcd"), st.integers(1, 4), st.booleans())
def test_columns_may_be_named_in_any_order(order, count, by_position):
    named = "".join(sorted("abcd"))
    perturbed, lower = order[:count], np.arange(count) * 10.0
    bounds = {name: (low, low + 1 + low) for name, low in zip(perturbed, lower, strict=True)}
    mechanism = ldp.ZeroInflatedLaplaceMechanism(
        0.5,
        1e-9,
        lower,
        2 * lower + 1,
        columns=tuple(named),
        perturbed=[named.index(name) for name in perturbed] if by_position else perturbed,
    )
    got = zip(mechanism.index, mechanism.lower, mechanism.upper, strict=True)
    assert {named[column]: (low, high) for column, low, high in got} == bounds
    assert ldp.mechanisms.mechanism_from_spec(mechanism.spec()) == mechanism


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@hypothesis.settings(max_examples=each(10_000, STRUCTURES), derandomize=True, **QUIET)
@hypothesis.given(st.data())
def test_many_random_cases_agree_with_brute_force(structure, data):
    check(data.draw(cases(structure)), eager=data.draw(st.integers(0, 24)) == 7)
