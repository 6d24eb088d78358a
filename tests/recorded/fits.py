"""Computations whose results are kept in `fits.json`: sketches, expansions, random draws, fits, the command line.

`record.py` writes the file; `test_fits.py` compares.

Only public names are used, each from the folder that owns it. Released values come from NumPy's generators, except
where the draws of a mechanism are themselves what is recorded. Everything is computed in double precision, except where
a case says otherwise.
"""

import contextlib
import functools
import io
import json
import os
import pathlib
import tempfile
import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
from numpyro.infer import HMC, BarkerMH
from numpyro.infer.util import log_density

import ldpbayes as ldp
from ldpbayes import data, likelihood, mechanisms, models, noise
from ldpbayes.cli import main


def compute(case):
    """What a case gives, by name: numbers, texts, and lists of these."""
    with jax.enable_x64(True):
        return _plain(cases()[case]())


@functools.cache
def cases():
    """Functions without arguments, by the names of their cases, "group, name"."""
    with jax.enable_x64(True):  # the tables hold constants of laws
        groups = {
            "sketch": _sketches(),
            "expansion": _expansions(),
            "fit": _fits(),
            "cli": _commands(),
        }
        draws = {name: functools.partial(_drawn_alone, name) for name in _draws()}
    return {f"{group}, {name}": case for group, table in groups.items() for name, case in table.items()} | draws


def _plain(value):
    """Values as JSON has them: Boolean, whole and other numbers stay apart."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    return np.asarray(value).tolist()


# --- sketches -------------------------------------------------------------------------------------------------------


def _normal(mean):
    return dist.Normal(mean, 1.2)


def _shares(slope):
    return dist.Categorical(logits=slope * jnp.array([0.0, 1.0, 0.3, -0.4, 0.9, 0.2]))


def _shares_of_groups(slope):
    return dist.Categorical(logits=slope * jnp.array([[0.0, 1.0, 0.3, -0.4, 0.9, 0.2], [0.5, 0.0, 0.1, 0.7, 0.0, 1.0]]))


def _rows(mean):
    return dist.MultivariateNormal(mean * jnp.array([1.0, -0.5]), jnp.array([[1.0, 0.3], [0.3, 0.8]]))


NUMBERS = np.random.default_rng(1).normal(0.5, 1.2, 80).clip(-2, 3)
WIDE = np.random.default_rng(2).laplace(0, 5, 80)
NORMAL = np.random.default_rng(16).normal(size=80)
COUNTS = np.random.default_rng(3).poisson(3.0, 80).clip(0, 6)
LAPLACE = mechanisms.LaplaceMechanism(1.0, -2, 3)


def _observed(law, sketches, points=(0.4, 0.9)):
    """Log densities of the records under `observe` and their slopes; and at each node, where there are nodes."""

    def total(parameter):
        model = functools.partial(ldp.observe, "z", law(parameter))
        several = isinstance(sketches, list)
        each = ()
        if not several and not isinstance(sketches, data.ExpandedSketch):
            each = likelihood.law_of_nodes(sketches, law(parameter)).log_prob(sketches.nodes)
        return log_density(model, (sketches,), {}, {})[0], each

    function = jax.jit(jax.value_and_grad(total, has_aux=True))
    results = [function(point) for point in points]
    return {
        "log density": [value for (value, _), _ in results],
        "slope": [slope for _, slope in results],
        "at the nodes": results[0][0][1],
    }


def _sketch(make, law, *attributes):
    """What a sketch holds, and what a model sees of it."""
    sketch = make()
    holds = {name: getattr(sketch, name) for name in ("size", "law_shape", *attributes)}
    return {"kind": type(sketch).__name__, "repr": repr(sketch)} | holds | _observed(law, sketch)


def _release(values, mechanism):
    return data.Release(np.asarray(values), mechanism)


def _sketches():
    panel = ("moments", "tails", "atoms", "edges", "order", "grid", "places", "channel_panels", "nodes", "weights")
    count = ("nodes", "weights", "groups", "num_groups")
    table = {}
    for name, (make, law) in _panel_sketches().items():
        table[name] = functools.partial(_sketch, make, law, *panel)
    for name, (make, law) in _count_sketches().items():
        table[name] = functools.partial(_sketch, make, law, *count)
    for name, (make, law) in _other_sketches().items():
        table[name] = functools.partial(_sketch, make, law, "nodes", "weights")
    for name, (make, law) in _expanded_sketches().items():
        table[name] = functools.partial(_expanded_sketch, make, law)
    table["panels, coarser and finer"] = _grids
    table["side by side"] = lambda: _observed(
        lambda mean: dist.Normal(mean * jnp.array([1.0, -0.5]), 1.2),
        [_release(NUMBERS + part, LAPLACE).sketch(panels=4) for part in (WIDE, WIDE[::-1])],
    )
    return table


def _panel_sketches():
    def laplace(**options):
        return _release(NUMBERS + WIDE, LAPLACE).sketch(**options)

    def inflated():
        mechanism = mechanisms.ZeroInflatedLaplaceMechanism(0.4, 0.9, -2, 3)
        return _release(NUMBERS + np.where(np.arange(80) % 3 == 0, 0, WIDE / 5), mechanism).sketch(panels=4)

    def counts():
        return _release(COUNTS + WIDE * 0.6, mechanisms.LaplaceMechanism(2.0, 0, 6)).sketch(panels=5, lattice=True)

    def gaussian():
        return _release(NUMBERS + NORMAL * 12.9, mechanisms.GaussianMechanism(1.0, 1e-3, -2, 3)).sketch(panels=4)

    def staircase():
        return _release(NUMBERS + WIDE, mechanisms.StaircaseMechanism(1.0, -2, 3)).sketch(panels=4)

    def near_or_anywhere():
        return _release(NUMBERS[:40], mechanisms.RPWithPrior(1.0, (-2, 3), 0.5)).sketch(panels=4)

    return {
        "panels by default": (laplace, _normal),
        "panels given": (functools.partial(laplace, panels=4), _normal),
        "panels, sum of two": (
            lambda: (
                laplace(panels=4, keep_records=False)
                + _release(NUMBERS - WIDE, LAPLACE).sketch(panels=4, keep_records=False)
            ),
            _normal,
        ),
        "panels, zero-inflated": (inflated, _normal),
        "panels, counts": (counts, dist.Poisson),
        "panels, Gaussian": (gaussian, _normal),
        "panels, staircase": (staircase, _normal),
        "panels, near or anywhere": (near_or_anywhere, _normal),
    }


def _grids():
    """Other grids of one sketch."""
    sketch = _release(NUMBERS + WIDE, LAPLACE).sketch()
    grids = {
        "coarser": sketch.coarser(3, 4, lattice=True),
        "reference": sketch.reference,
        "thinned": sketch.thinned,
    }
    return {
        name: [grid.order, grid.grid, grid.channel_panels, grid.size, grid.edges[:3], grid.weights[:30]]
        for name, grid in grids.items()
    }


def _unary(count, categories, epsilon=2.0, seed=5):
    """Optimal unary encodings of random codes."""
    rng = np.random.default_rng(seed)
    own = np.eye(categories, dtype=bool)[rng.integers(0, categories, count)]
    return np.where(own, rng.random(own.shape) < 0.5, rng.random(own.shape) < 1 / (np.exp(epsilon) + 1)).astype(int)


CODES = np.random.default_rng(4).integers(0, 6, 90)
BITS = _unary(90, 6, 1.0)
GROUPS = np.arange(90) % 2


def _count_sketches():
    response, unary = mechanisms.RandomizedResponse(1.0, 6), mechanisms.OptimalUnaryEncoding(1.0, 6)
    personal = mechanisms.RandomizedResponse(np.where(np.arange(90) < 40, 0.5, 2.0), 6)
    hashing = np.column_stack([CODES * 7 + 1, CODES % 3]).astype(np.uint32)
    whole = mechanisms.DiscreteLaplaceMechanism(2.0, 0, 6)
    three = np.argsort(np.argsort(np.random.default_rng(6).random((90, 6)), axis=1), axis=1) < 2
    bins = mechanisms.RROnBins(1.0, (-2.0, -0.5, 1.0, 3.0), (-1.5, 0.2, 2.0))
    return {
        "counts": (lambda: _release(CODES, response).sketch(), _shares),
        "counts by group": (lambda: _release(CODES, response).sketch(by=GROUPS), _shares_of_groups),
        "counts, personal budgets": (lambda: _release(CODES, personal).sketch(), _shares),
        "counts, sum of two": (
            lambda: _release(CODES[:50], response).sketch() + _release(CODES[50:], response).sketch(),
            _shares,
        ),
        "counts of unary codes": (lambda: _release(BITS[:30], unary).sketch(expand=False), _shares),
        "counts of subsets": (
            lambda: _release(three.astype(int), mechanisms.SubsetSelection(1.0, 6, 2)).sketch(),
            _shares,
        ),
        "counts of hashes": (lambda: _release(hashing, mechanisms.LocalHashing(1.0, 6, 3)).sketch(), _shares),
        "counts of columns": (lambda: _release(CODES, mechanisms.HadamardResponse(1.0, 6)).sketch(), _shares),
        "counts of whole numbers": (lambda: _release(COUNTS + np.round(WIDE / 5), whole).sketch(), dist.Poisson),
        "counts of bins": (lambda: _release(np.array([-1.5, 0.2, 2.0])[CODES % 3], bins).sketch(), _normal),
    }


def _other_sketches():
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(60, 2)) * 22
    gaussian = mechanisms.GaussianMechanism(1.0, 1e-3, -3, 3, columns=("a", "b"))
    linear = mechanisms.LinearStatisticsMechanism(2.0, 1e-3, 1.0, 1.0, columns=("x", "y"))
    logistic = mechanisms.LogisticStatisticsMechanism(2.0, 1e-3, 1.0, columns=("x", "y"))
    x = rng.uniform(-0.9, 0.9, (60, 1))
    y = {linear: 0.5 * x + rng.uniform(-0.3, 0.3, (60, 1)), logistic: (rng.uniform(size=(60, 1)) < 0.5) * 1.0}

    def total(mechanism, part):
        statistics = np.asarray(mechanism.statistics(np.hstack([x, y[mechanism]])))[part]
        shifts = np.random.default_rng(8).normal(size=statistics.shape)
        return _release(statistics + shifts, mechanism).sketch()

    covariates = dist.MultivariateNormal(jnp.array([0.1]), jnp.array([[0.27]]))

    def linear_law(slope):
        return likelihood.linear_statistics(likelihood.linear_rows(covariates, jnp.stack([slope]), 0.3), 60)

    def logistic_law(slope):
        return likelihood.logistic_statistics(covariates, jnp.stack([slope]), count=60)

    return {
        "moments": (lambda: _release(rows, gaussian).sketch(), _rows),
        "moments, sum of two": (
            lambda: _release(rows[:25], gaussian).sketch() + _release(rows[25:], gaussian).sketch(),
            _rows,
        ),
        "total of linear statistics": (lambda: total(linear, slice(None)), linear_law),
        "total of linear statistics, sum of two": (
            lambda: total(linear, slice(0, 20)) + total(linear, slice(20, None)),
            linear_law,
        ),
        "total of logistic statistics": (lambda: total(logistic, slice(None)), logistic_law),
    }


def _expanded_sketches():
    unary, response = mechanisms.OptimalUnaryEncoding(1.0, 6), mechanisms.RandomizedResponse(1.0, 6)

    def sum_of_two():
        first = _release(BITS[:50], unary).sketch(expand=True)
        return first + _release(BITS[50:], unary).sketch(at=first)

    return {
        "expansion": (lambda: _release(BITS, unary).sketch(expand=True), _shares),
        "expansion by group": (lambda: _release(BITS, unary).sketch(expand=True, by=GROUPS), _shares_of_groups),
        "expansion of codes": (lambda: _release(CODES, response).sketch(expand=True), _shares),
        "expansion, sum of two": (sum_of_two, _shares),
    }


def _expanded_sketch(make, law):
    sketch = make()
    points = np.random.default_rng(9).dirichlet(np.full(6, 5.0), (3, *sketch.law_shape))
    return {
        "kind": type(sketch).__name__,
        "repr": repr(sketch),
        "size": sketch.size,
        "law_shape": sketch.law_shape,
        "center": sketch.polynomial.center,
        "exact log likelihood": sketch.log_likelihood(points),
        "exact nodes": sketch.exact.nodes[:8],
    } | _observed(law, sketch)


# --- expansions -----------------------------------------------------------------------------------------------------

RECORDS = 600
X = np.random.default_rng(10).normal(size=RECORDS)
YES = np.random.default_rng(11).uniform(size=RECORDS) < 1 / (1 + np.exp(-(0.5 + X)))
FLIPPED = np.where(np.random.default_rng(12).uniform(size=RECORDS) < np.e / (1 + np.e), YES, ~YES)
RESPONSE = mechanisms.RandomizedResponse(1.0)


def logistic(release, x):
    a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, 1))
    ldp.observe("z", dist.BernoulliLogits(a + b * x), release)


def _expanded(part=slice(None), **options):
    return ldp.expand(logistic, _release(FLIPPED[part], RESPONSE), X[part], **options)


def _expansions():
    def described(expansion):
        near = expansion.points[:4]
        centre, root = expansion.frame.center, expansion.frame.root
        with jax.enable_x64(True):
            values = [expansion.polynomial(point) for point in near]
        return {
            "names": expansion.names,
            "order": expansion.order,
            "count": expansion.count,
            "passes": expansion.points.shape,
            "center": centre,
            # the sign of a direction is a matter of the decomposition
            "covariance": np.linalg.inv(np.swapaxes(root, -1, -2) @ root),
            "points": near,
            "values": expansion.values[:4],
            "slopes": expansion.slopes[:4],
            "outwards": None if expansion.outwards is None else expansion.outwards[:4],
            "polynomial": values,
            "errors": np.abs(expansion.errors()).max() < 0.05,
        }

    return {"of a shard": lambda: described(_shards()[0]), "of two shards": lambda: described(_shards()[1])}


@functools.cache
def _shards():
    first = _expanded(part=slice(0, 300), order=3)
    return first, first + _expanded(part=slice(300, None), at=first)


# --- draws ----------------------------------------------------------------------------------------------------------

KEY = 20260101


def drawn(names):
    """What cases of the groups "noise" and "randomize" give, by name: one program draws all of each precision."""
    found = {}
    for single in (False, True):
        own = {name: _draws()[name] for name in names if name.endswith("single precision") == single}
        with jax.enable_x64(not single):
            draw = jax.jit(lambda key, own=own: {name: draw(key) for name, draw in own.items()})
            found |= draw(jax.random.key(KEY))
    return {name: _plain(_described(name, found[name])) for name in names}


def _drawn_alone(name):
    return drawn([name])[name]


@functools.cache
def _draws():
    """Functions of a random key that return arrays by name, by the names of their cases."""
    with jax.enable_x64(True):
        noises = {f"noise, {name}": draw for name, draw in _noises().items()}
        return noises | {f"randomize, {name}": draw for name, draw in _randomized().items()}


def _described(name, arrays):
    """The arrays; of a mechanism also what it is and the type of its draws."""
    if name.startswith("noise") or name.endswith("records drawn too"):
        return arrays
    mechanism, _ = _mechanisms()[name.removeprefix("randomize, ").removesuffix(", single precision")]
    return {"mechanism": repr(mechanism), "dtype": str(arrays["z"].dtype)} | arrays


def _noises():
    budgets = np.array([0.5, 1.0, 2.0, 4.0])
    laws = {
        "Laplace": (noise.Laplace(1.5), 2),
        "Laplace, personal": (noise.Laplace(budgets), 2),
        "Gaussian": (noise.Gaussian(1.5), 2),
        "independent Gaussian": (noise.IndependentGaussian(np.array([0.5, 2.0])), 2),
        "symmetric Laplace": (noise.SymmetricLaplace(1.5), 3),
        "symmetric Laplace of one column": (noise.SymmetricLaplace(budgets), 1),
        "staircase": (noise.Staircase(2.0, 1.0, 0.3), 1),
        "discrete Laplace": (noise.DiscreteLaplace(2.5), 2),
        "discrete Gaussian": (noise.DiscreteGaussian(2.5), 2),
        "zero-inflated": (noise.ZeroInflated(noise.Laplace(1.5), 0.4), 2),
        "with public records": (noise.WithPublicRecords(noise.Laplace(np.array([0.0, 1.0, 0.0, 2.0]))), 1),
    }

    def draw(law, columns, key):
        kinds = (
            (jnp.float64, jnp.float32) if isinstance(law, (noise.Laplace, noise.SymmetricLaplace)) else (jnp.float64,)
        )
        return {str(np.dtype(kind)): law.sample(key, (4, columns), kind) for kind in kinds}

    return {name: functools.partial(draw, *pair) for name, pair in laws.items()}


def _randomized():
    table = {name: functools.partial(_randomize, *pair) for name, pair in _mechanisms().items()}
    for name in ("Laplace", "zero-inflated, rows", "randomized response"):
        mechanism, x = _mechanisms()[name]
        single = np.asarray(x, np.float32) if np.asarray(x).dtype.kind == "f" else x
        table[f"{name}, single precision"] = functools.partial(_randomize, mechanism, single)
    for name, base in (
        ("Laplace", dist.Normal(0.4, 1.2)),
        ("randomized response", dist.Categorical(np.full(6, 1 / 6))),
    ):
        law = likelihood.Privatized(base, _mechanisms()[name][0])
        table[f"{name}, records drawn too"] = lambda key, law=law: {"z": law.sample(key, (4,))}
    return table


def _randomize(mechanism, x, key):
    return {"z": mechanism.randomize(key, x)}


@functools.cache
def _mechanisms():
    """Mechanisms and records, four of each, by name."""
    budgets, four = np.array([0.5, 1.0, 2.0, 4.0]), np.array([-2.5, -0.4, 1.3, 3.7])
    rows = np.random.default_rng(13).normal(size=(4, 3))
    codes, whole = np.array([0, 3, 5, 2]), np.array([0, 3, 9, 5])
    names, labels = ("age", "income", "ill"), np.array([0.1, 0.4, 0.55, 0.9])
    numeric = np.column_stack([rows[:, :2].clip(-0.6, 0.6), labels])
    binary = np.column_stack([rows[:, :2].clip(-0.6, 0.6), codes % 2])
    frame = pandas.DataFrame(rows, columns=names)[["ill", "age", "income"]]
    linear = mechanisms.LinearStatisticsMechanism(2.0, 1e-4, 1.0, 1.0, columns=("a", "b", "y"))
    linear_central = mechanisms.LinearStatisticsMechanism(
        2.0, 1e-4, 1.0, 1.0, columns=("a", "b", "y"), trust_model="central", count=4
    )
    logistic = mechanisms.LogisticStatisticsMechanism(2.0, 1e-4, 1.0, columns=("a", "b", "y"))
    m = mechanisms
    histogram = (np.linspace(0, 1, 5), np.array([1.6, 1.2, 0.8, 0.4]))
    return {
        "Laplace": (LAPLACE, four),
        "Laplace, personal budgets": (m.LaplaceMechanism(budgets, -2, 3), four),
        "Laplace, statistic": (m.LaplaceMechanism(1.0, sensitivity=2.0), np.array([40.0])),
        "Laplace, rows": (m.LaplaceMechanism(1.0, -1, 1, columns=3), rows),
        "Gaussian": (m.GaussianMechanism(1.0, 1e-3, -2, 3), four),
        "Gaussian, personal budgets": (m.GaussianMechanism(budgets, 1e-3, -2, 3), four),
        "Gaussian, rows": (m.GaussianMechanism(1.0, 1e-3, -1, 1, columns=names, perturbed=("age", "ill")), rows),
        "additive": (m.AdditiveMechanism(noise.Gaussian(0.7), -2, 3), four),
        "additive, a deviation a column": (
            m.AdditiveMechanism(noise.IndependentGaussian(np.array([0.5, 1.0, 2.0])), -1, 1, columns=3),
            rows,
        ),
        "symmetric": (m.SymmetricLaplaceMechanism(0.8, -2, 3), four),
        "symmetric, rows": (m.SymmetricLaplaceMechanism(budgets, -1, 1, 3, (0, 2)), rows),
        "symmetric, named columns": (m.SymmetricLaplaceMechanism(0.8, -1, 1, names, ("age", "income")), rows),
        "symmetric, some public": (m.SymmetricLaplaceMechanism([0.5, 0.0, 0.0, 2.0], -2, 3), four),
        "zero-inflated": (m.ZeroInflatedLaplaceMechanism(0.4, 0.9, -2, 3), four),
        "zero-inflated, rows": (m.ZeroInflatedLaplaceMechanism(0.4, 0.9, -1, 1, 3), rows),
        "zero-inflated, personal": (m.ZeroInflatedLaplaceMechanism(budgets / 5, budgets, -2, 3), four),
        "zero-inflated, named columns": (
            m.ZeroInflatedLaplaceMechanism(0.4, 0.9, -1, [1.0, 2.0], columns=names, perturbed=("age", "income")),
            frame,
        ),
        "independent": (m.IndependentLaplaceMechanism(0.8, -2, 3), four),
        "independent, rows": (m.IndependentLaplaceMechanism(0.8, -1, 1, names, ("income", "ill")), rows),
        "staircase": (m.StaircaseMechanism(1.0, -2, 3), four),
        "staircase, personal budgets": (m.StaircaseMechanism(budgets, -2, 3, 0.4), four),
        "discrete Laplace": (m.DiscreteLaplaceMechanism(2.0, 0, 6), whole),
        "discrete Laplace, statistic": (m.DiscreteLaplaceMechanism(3.0), np.array([40])),
        "discrete Laplace, rows": (m.DiscreteLaplaceMechanism(budgets, 0, 6, columns=2), np.stack([whole, whole], 1)),
        "discrete Gaussian": (m.DiscreteGaussianMechanism(2.0, 0, 6), whole),
        "randomized response": (m.RandomizedResponse(1.0, 6), codes),
        "randomized response, personal budgets": (m.RandomizedResponse([0.5, 1.0, 2.0, np.inf], 6), codes),
        "unary encoding": (m.OptimalUnaryEncoding(1.0, 6), codes),
        "unary encoding, personal budgets": (m.OptimalUnaryEncoding(budgets, 6), codes),
        "symmetric unary encoding": (m.SymmetricUnaryEncoding(1.0, 6), codes),
        "subset selection": (m.SubsetSelection(1.0, 6), codes),
        "subset selection, size given": (m.SubsetSelection(budgets, 6, 3), codes),
        "local hashing": (m.LocalHashing(1.0, 6), codes),
        "local hashing, range given": (m.LocalHashing(budgets, 6, 2), codes),
        "Hadamard response": (m.HadamardResponse(1.0, 6), codes),
        "Hadamard response, personal budgets": (m.HadamardResponse(budgets, 6), codes),
        "near or anywhere": (m.RPWithPrior(1.0, (0.2, 0.8), 0.1), labels),
        "near or anywhere, uniform outside": (m.RPWithPrior(1.0, (0.2, 0.8), 0.1, "uniform"), labels),
        "near or anywhere, personal budgets": (m.RPWithPrior(budgets, (0.2, 0.8), 0.1), labels),
        "bins": (m.RROnBins(1.0, (0.0, 0.3, 0.6, 1.0), (0.1, 0.5, 0.9)), labels),
        "bins, personal budgets": (m.RROnBins(budgets, (0.0, 0.3, 0.6, 1.0), (0.1, 0.5, 0.9)), labels),
        "unbiased randomizer": (m.UnbiasedRandomizer.optimal(histogram, 1.0, nodes=3), labels),
        "linear records": (m.LinearRecordsMechanism(2.0, 1e-4, 1.0, 1.0, columns=("a", "b", "y")), numeric),
        "logistic records": (m.LogisticRecordsMechanism(2.0, 1e-4, 1.0, columns=("a", "b", "y")), binary),
        "linear statistics": (linear, linear.statistics(numeric)),
        "linear statistics, central": (linear_central, np.asarray(linear.statistics(numeric)).sum(0)),
        "logistic statistics": (logistic, logistic.statistics(binary)),
    }


# --- fits -----------------------------------------------------------------------------------------------------------

SHORT = {"num_warmup": 30, "num_samples": 20, "num_chains": 1, "progress_bar": False, "seed": 3}
KEPT = 5  # draws of a chain: what follows them parts by rounding sooner or later


def _fitted(model, *args, **options):
    """The first draws of every chain, which way they were made, and what was said of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = ldp.fit(model, *args, **SHORT | options)
    groups = {name: result[name] for name in _GROUPS if name in _names(result)}
    report = json.loads(result.attrs["expansion"])
    certificates = json.loads(result.attrs["certificates"])
    steps = groups.get("sample_stats", {}).get("n_steps")
    return {
        "variables": {name: sorted(map(str, group.data_vars)) for name, group in groups.items()},
        "sizes": {str(name): int(size) for name, size in groups["posterior"].sizes.items()},
        "draws": {
            f"{name}, {variable}": np.asarray(groups[name][variable])[:, :KEPT]
            for name in ("posterior", "posterior_predictive", "log_likelihood")
            for variable in (map(str, groups[name].data_vars) if name in groups else ())
        },
        "steps": None if steps is None else np.asarray(steps)[:, :KEPT],
        "expansion": report and {name: value for name, value in report.items() if name not in _ROUNDED},
        "certificates": [
            {"panels": each["panels"], "good enough": bool(each["error_nats"] <= 1e-3)} for each in certificates
        ],
        "mechanisms": json.loads(result.attrs["mechanisms"]),
        "privacy": result.attrs["privacy"],
        "release warnings": json.loads(result.attrs["release_warnings"]),
        "warnings": [
            f"{each.category.__name__}: {each.message}"
            for each in caught
            if issubclass(each.category, ldp.LdpBayesWarning)
        ],
    }


_GROUPS = ("posterior", "sample_stats", "observed_data", "constant_data", "posterior_predictive", "log_likelihood")
_ROUNDED = {"error_nats", "error_sd_nats", "tail_error", "pareto_k", "effective_share"}  # of differences near rounding


def _names(result):
    """Names of the groups of an ArviZ structure, of either kind."""
    return {str(name).lstrip("/") for name in (result.groups() if callable(result.groups) else result.groups)}


def schools(y=None):
    mean, spread = numpyro.sample("mean", dist.Normal(0, 5)), numpyro.sample("spread", dist.HalfNormal(2))
    with numpyro.plate("records", 40):
        numpyro.sample("y", dist.Normal(mean, 0.5 + spread), obs=y)


def narrow(release):
    ldp.observe("z", dist.Normal(numpyro.sample("mu", dist.Normal(0.5, 0.01)), 0.02), release)


def _fits():
    answers = _release(FLIPPED.astype(int), RESPONSE)
    unary = _release(_unary(400, 3), mechanisms.OptimalUnaryEncoding(2.0, 3))
    groups = [_release(NUMBERS[:40] + WIDE[:40], LAPLACE), _release(NUMBERS[40:] - WIDE[40:], LAPLACE)]
    personal = _release(NUMBERS + WIDE, mechanisms.LaplaceMechanism(np.linspace(0.5, 2, 80), -2, 3))
    rng = np.random.default_rng(14)
    exact = 0.5 + 0.02 * rng.normal(size=4000) + rng.laplace(0, 0.05, 4000)
    precise = _release(exact, mechanisms.LaplaceMechanism(100.0, -2, 3))
    warner, gaussian, several = models.warner(), models.clipped_gaussian(), {"num_samples": 64, "seed": 4}

    def shards():
        return _fitted(logistic, _release(FLIPPED[:300], RESPONSE), X[:300], expand=_shards()[1], **several)

    return {
        "panels, refined": lambda: _fitted(narrow, precise.sketch(panels=2)),
        "records": lambda: _fitted(gaussian, personal, expand=False, log_likelihood=True, num_warmup=10),
        "counts": lambda: _fitted(warner, answers.sketch(), posterior_predictive=True),
        "counts, vectorised chains": lambda: _fitted(
            warner, answers.sketch(), num_chains=2, chain_method="vectorized", max_tree_depth=(3, 2)
        ),
        "category sketch": lambda: _fitted(models.oue_histogram(), unary.sketch(expand=True), num_samples=64),
        "expansion": lambda: _fitted(logistic, answers, X, expand=True, **several),
        "expansion of shards": shards,
        "Barker": lambda: _fitted(warner, answers.sketch(), kernel=BarkerMH),
        "Hamiltonian": lambda: _fitted(warner, answers.sketch(), kernel=HMC, target_accept_prob=0.9),
        "groups": lambda: _fitted(models.hierarchical(), [each.sketch(panels=4) for each in groups]),
        "privatize": lambda: _fitted(ldp.privatize(schools, {"y": LAPLACE}), (NUMBERS + WIDE)[:40], expand=False),
    }


# --- the command line -----------------------------------------------------------------------------------------------

FEW = ["--chains", "1", "--warmup", "30", "--samples", "20", "--no-progress"]


def _typed(*argv):
    """What a command prints and returns, and which files it writes, in a folder with small releases."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        _write_inputs()
        before = set(os.listdir())
        out, err = io.StringIO(), io.StringIO()
        stack.enter_context(mock.patch.dict(os.environ, LDPBAYES_NO_CACHE="1", COLUMNS="100", NO_COLOR="1"))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        code = main(list(argv))
        new = sorted(set(os.listdir()) - before)
        tables = {
            name: [*map(_cells, pathlib.Path(name).read_text().splitlines())] for name in new if name.endswith(".csv")
        }
    return {"code": code, "out": _lines(out), "err": _lines(err), "files": new, "tables": tables}


def _lines(text):
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def _cells(line):
    """Cells of a line of a table, numbers as numbers."""
    cells = line.strip().split(",")
    return [float(cell) if cell[-1].isdigit() else cell for cell in cells]


def _write_inputs():
    rng = np.random.default_rng(15)
    answers = "\n".join(["yes" if each else "no" for each in FLIPPED])
    pathlib.Path("answers.csv").write_text(f"answer\n{answers}\n")
    data.Release(FLIPPED.astype(int), RESPONSE).save("answers.npz")
    features = rng.normal(size=(200, 2))
    label = np.clip(0.5 + features @ [0.1, -0.05] + 0.1 * rng.normal(size=200), 0, 1) + rng.laplace(0, 0.25, 200)
    np.savetxt("homes.csv", np.column_stack([label, features]), delimiter=",", header="price,age,rooms", comments="")
    data.Release([6100.0], mechanisms.LaplaceMechanism(1.0, sensitivity=12.0)).save("sums.npz")


def _commands():
    label = ["--column", "price", "--mechanism", "laplace", "--epsilon", "4", "--lower", "0", "--upper", "1"]
    warner = ["--mechanism", "randomized_response", "--epsilon", "1", "--levels", "no,yes", "--model", "warner"]
    poisson = ["--family", "poisson", "--upper", "12", "--count", "3000"]
    typed = {
        "help": ["--help"],
        "version": ["--version"],
        **{
            f"{name} --help": [name, "--help"]
            for name in ("demo", "fit", "bootstrap", "regress", "release", "mechanisms", "models")
        },
        "mechanisms": ["mechanisms"],
        "models": ["models"],
        "models --json": ["models", "--json"],
        "fit": ["fit", "answers.npz", "--model", "warner", "--out", "posterior.nc", *FEW],
        "fit of a table": ["fit", "answers.csv", *warner, "--quiet", *FEW],
        "fit, no such model": ["fit", "answers.npz", "--model", "warnr"],
        "fit, another mechanism's model": ["fit", "answers.npz", "--model", "clipped_gaussian"],
        "bootstrap": ["bootstrap", "sums.npz", *poisson, "--draws", "100", "--out", "replicates.nc"],
        "bootstrap, no such family": ["bootstrap", "sums.npz", "--family", "poison", "--count", "3000"],
        "regress": ["regress", "homes.csv", *label, "--features", "age,rooms", "--penalty", "1", "--out", "fit.csv"],
        "no command": [],
        "no such command": ["nonsense"],
    }
    return {name: functools.partial(_typed, *argv) for name, argv in typed.items()} | {
        "mechanisms --json": _listed_mechanisms
    }


def _listed_mechanisms():
    """Without the places where classes are defined."""
    result = _typed("mechanisms", "--json")
    rows = json.loads("\n".join(result["out"]))
    return result | {"out": [{name: value for name, value in row.items() if name != "class"} for row in rows]}
