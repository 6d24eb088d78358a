"""Equal rows count once: the same log density from a few kinds of records, or the records as they are."""

import json
import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_uniform

import ldpbayes as ldp
from ldpbayes.inference import compiled_programs as _programs
from ldpbayes.inference.approximations import _equal_rows
from ldpbayes.inference.approximations._equal_rows import distinct_rows, equal_rows_once
from ldpbayes.inference.density import density_of, sites_of
from ldpbayes.inference.problem import Problem

N = 1000
RNG = np.random.default_rng(0)
REGION, AGE = RNG.integers(0, 12, N), RNG.integers(0, 3, N)
X, YES = AGE / 2, RNG.integers(0, 2, N)
RR = ldp.RandomizedResponse(1.0)
PERSONAL = ldp.RandomizedResponse(np.where(AGE == 1, 2.0, 0.5))
RELEASE = ldp.Release(YES, RR)
ANSWERS = RNG.integers(0, 2, (N, 2))
SCALES = np.where(REGION < 6, 1.0, 2.0)
COUNTS = ldp.Release(np.clip(np.round(RNG.normal(2, 2, N)), -3, 7), ldp.DiscreteLaplaceMechanism(SCALES))
CELLS = np.where(COUNTS.values < 3, np.nan, COUNTS.values)  # 593 of 1,000 withheld
TABLE = ldp.NoisyTable.from_frame(
    {"cell": np.arange(N), "half": np.arange(N) % 2, "n": CELLS},
    "n",
    ["half", "cell"],
    "geometric",
    scale=2.0,
    threshold=3,
)
NORMAL_TABLE = ldp.NoisyTable.from_frame(
    {"cell": np.arange(N), "n": COUNTS.values}, "n", "cell", "gaussian", standard_deviation=2.0
)
FRAME = pd.DataFrame({"id": np.arange(N), "income": RNG.normal(size=N), "x": X, "name": ["a"] * N, "region": REGION})


def normal(name, *shape):
    return numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))


def logistic(x, y=None):
    a, b = normal("a"), normal("b")
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)


def line(x, release):
    ldp.observe("y", dist.BernoulliLogits(normal("a") + normal("b") * x), release)


def survey(region, age, release):
    with numpyro.plate("region", 12):
        effects = numpyro.sample("effects", dist.Normal(0, numpyro.sample("sd", dist.HalfNormal(1))))
    ages = normal("ages", 3)
    with numpyro.plate("people", len(region)):
        logits = numpyro.deterministic("logits", effects[region] + ages[age])
        ldp.observe("y", dist.BernoulliLogits(logits), release)


def of_frame(frame, release):
    ldp.observe("y", dist.BernoulliLogits(frame[["x", "region"]] @ normal("b", 2)), release)


def items(x, y):
    logits = normal("a", 2) + normal("b") * x[:, None]
    with numpyro.plate("people", len(x), dim=-2), numpyro.plate("items", 2):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def counted(x, release):
    ldp.observe("n", dist.Poisson(jnp.exp(normal("a") + normal("b") * x)), release)


def cells(table, exposure):
    ldp.observe("n", dist.NegativeBinomial2(exposure * jnp.exp(normal("a")), jnp.exp(normal("b"))), table)


def normal_cells(table, exposure):
    ldp.observe("n", dist.Normal(exposure * normal("a"), 1.0), table)


def weighted(x, y, keep, weight):
    line = normal("a") + normal("b") * x
    with numpyro.handlers.scale(scale=weight), numpyro.handlers.mask(mask=keep):
        numpyro.sample("y", dist.Normal(line, 1), obs=y)
    numpyro.factor("more", -jnp.abs(normal("c") - x))
    numpyro.sample("other", dist.Normal(normal("d"), 1), obs=jnp.arange(5.0))


CASES = {
    "privatized answers": (ldp.privatize(logistic, {"y": RR}), (X, YES), {}, 6),
    "personal budgets, and arguments by name": (ldp.privatize(logistic, {"y": PERSONAL}), (), {"x": X, "y": YES}, 6),
    "a release": (line, (jnp.asarray(X.astype(np.float32)), RELEASE), {}, 6),
    "a survey with effects of regions": (survey, (REGION, AGE, RELEASE), {}, 72),
    "a data frame": (of_frame, (FRAME, RELEASE), {}, 72),
    "two answers a person": (ldp.privatize(items, {"y": RR}), (X, ANSWERS), {}, 12),
    "counts under noise of two scales": (counted, (X, COUNTS), {}, None),
    "cells of a table": (normal_cells, (NORMAL_TABLE, 1.0 + (REGION > 5)), {}, None),
    "withheld counts of a table": (cells, (TABLE, 1.0 + (REGION > 5)), {}, None),
    "masks, weights and factors": (weighted, (X, YES, AGE > 0, 1.0 + (REGION > 3)), {}, 12),
}


def collapsed(model, args, kwargs=None):
    density = density_of(model, ldp.data.arrays_of_frames(args), kwargs or {})
    sites = sites_of(density)
    fewer = equal_rows_once(Problem(density, sites), init_to_uniform, jax.random.key(0))
    return density, *((fewer.density, fewer.sites, fewer.fewer) if fewer else (density, sites, {}))


SHORT = (
    "cells of a table",
    "personal budgets, and arguments by name",
    "a data frame",
    "masks, weights and factors",
)  # others are slow


@pytest.mark.parametrize(
    "case", [each if each in SHORT else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
def test_the_log_density_of_kinds_and_their_numbers_is_that_of_all_records(case, x64):
    model, args, kwargs, kinds = CASES[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, counted, sites, report = collapsed(model, args, kwargs)
    rows = report["rows"] if kinds is None else kinds
    assert report == {"ran": "equal rows counted once", "rows": rows, "records": N}
    assert counted.whole is whole and max(site.rows for site in sites.values()) < N / 10
    before = sites_of(whole)
    if "masks" not in case:
        assert {name: site.records for name, site in sites.items()} == {n: site.records for n, site in before.items()}
    shapes = jax.eval_shape(whole.start, jax.random.key(0))
    _, unravel = ravel_pytree(jax.tree.map(lambda each: np.zeros(each.shape), shapes))
    flat = np.random.default_rng(7).uniform(-2, 2, sum(each.size for each in jax.tree.leaves(shapes)))
    slopes = [jax.value_and_grad(lambda row, each=each: each.potential(unravel(row))) for each in (counted, whole)]
    (a, da), (b, db) = jax.jit(lambda row: [slope(row) for slope in slopes])(2 * flat)
    # A sum of n numbers is off by n 2^-53 of the sum of their absolute values, here some 2 nats each.
    assert abs(a - b) < 2 * N * N * 2**-53 * 10 and np.allclose(da, db, rtol=1e-10, atol=1e-9)


def test_where_the_most_records_all_differ_others_are_counted(x64):
    def model(numbers, x, y):
        logistic(x, y)
        numpyro.sample("number", dist.Normal(normal("mean"), 1), obs=numbers)

    _, _, sites, report = collapsed(model, (RNG.normal(size=2 * N), X, YES))
    assert report["records"] == N and (sites["number"].rows, sites["y"].rows) == (2 * N, 6)


# --- models that use their data otherwise than row by row -------------------------------------------------------------


def centred(x, y):
    logistic(x - x.mean(), y)


def effects_of_records(x, y):
    slope = normal("a")
    with numpyro.plate("people", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=slope * x + numpyro.sample("u", dist.Normal(0, 1))), obs=y)


def plate_of_a_fixed_size(x, y):
    slope = normal("a")
    with numpyro.plate("people", N):
        numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)


def of_a_closure(x, y):
    logistic(x + (REGION > 5), y)


def prior_by_number(x, y):
    numpyro.sample("c", dist.Normal(0, 1 / len(x)))
    logistic(x, y)


def in_sequence(x, y):
    logistic(jnp.cumsum(x) / 1e4, y)


def sum_of_all(x, y):
    numpyro.factor("all", dist.Bernoulli(logits=normal("c") * x).log_prob(y).sum())
    logistic(x, y)


def factor_by_number(x, y):
    logistic(x, y)
    numpyro.factor("number", 1e-3 * normal("c") * len(x))


def drawn_anew(x, y):
    logistic(x + RNG.normal(), y)


OTHERS = [centred, effects_of_records, plate_of_a_fixed_size, of_a_closure, prior_by_number, in_sequence, sum_of_all]


@pytest.mark.parametrize("model", [*OTHERS, factor_by_number, drawn_anew])
def test_a_model_that_uses_its_data_otherwise_is_left_as_it_is(model, x64):
    density, found, sites, report = collapsed(model, (X, YES))
    assert found is density and report == {} and max(site.rows for site in sites.values()) == N


def by_half(table):
    effects = normal("effects", 2)
    ldp.observe("n", dist.Poisson(jnp.exp(effects[table.levels("half")[1]])), table)


@pytest.mark.parametrize("model", [by_half, ldp.models.small_areas(), ldp.models.small_areas(exposure=1.0 + X)])
def test_a_table_whose_cells_differ_by_their_keys_is_left_as_it_is(model, x64):
    density, found, _, report = collapsed(model, (TABLE,))
    assert found is density and report == {}


def test_few_records_many_kinds_objects_and_sketches_are_left_as_they_are(x64):
    numbers, few = RNG.normal(size=N), slice(0, 400)
    for model, *args in [
        (logistic, numbers, YES),
        (logistic, X[few], YES[few]),
        (lambda: logistic(X, YES),),
        (lambda x, y, names: logistic(x, y), X, YES, np.array(["a"] * N, object)),
        (lambda x, y, z: (logistic(x, y), ldp.observe("z", dist.Bernoulli(0.5), z)), X, YES, RELEASE.sketch()),
    ]:
        density, found, _, report = collapsed(model, tuple(args))
        assert found is density and report == {}


# --- distinct rows ----------------------------------------------------------------------------------------------------


def test_distinct_rows_stand_for_all_in_their_order():
    columns = [
        RNG.choice([0.0, 1.5, np.nan], N),
        RNG.integers(-1, 2, (N, 3)).astype(np.int8),
        RNG.random(N) < 0.5,
        RNG.choice(["", "north", "südwest"], N),
    ]
    index, weights, rows = distinct_rows(columns, N)

    def keys(places):
        return [repr([column[place].tolist() for column in columns]) for place in places]

    expected, found = Counter(keys(range(N))), Counter()
    for key, weight in zip(keys(index), weights, strict=True):
        found[key] += weight
    assert found == expected and rows == len(expected) and np.all(np.diff(index) > 0) and weights.min() >= 1


def test_numbers_of_kinds_that_are_close_have_arrays_of_one_shape():
    sizes = {len(distinct_rows([np.resize(np.arange(kinds), 500)], 500)[0]) for kinds in range(65, 81)}
    assert sizes == {80}
    index, _, _ = distinct_rows(
        [np.minimum(np.arange(500), 181)], 500
    )  # one kind of 319, 181 others: all are kept once
    assert len(index) == 192
    index, _, _ = distinct_rows([np.r_[np.arange(181), np.arange(100), np.full(219, 7)]], 500)
    assert np.bincount(np.r_[np.arange(181), np.arange(100), np.full(219, 7)][index]).max() == 2
    for kinds in (1, 4, 7, 200):
        index, weights, rows = distinct_rows([np.resize(np.arange(kinds), 500)], 500)
        assert rows == kinds <= len(index) <= 1.25 * kinds and weights.sum() == 500


# --- fits -------------------------------------------------------------------------------------------------------------

SHORT = {"num_warmup": 20, "num_samples": 20, "num_chains": 2, "progress_bar": False, "max_tree_depth": 3}
EXTRAS = {"posterior_predictive": True, "log_likelihood": True}


def quiet_fit(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.inference.ConvergenceWarning)
        return ldp.fit(*args, **{**SHORT, **kwargs})


def said(result):
    return json.loads(result.attrs["expansion"])


@pytest.fixture(scope="module")
def fitted():
    return quiet_fit(survey, REGION, AGE, RELEASE, coords={"region": list("abcdefghijkl")}, **EXTRAS)


@pytest.mark.slow
def test_a_fit_has_all_that_a_fit_of_the_records_has(fitted, monkeypatch):
    monkeypatch.setattr(_equal_rows, "equal_rows_once", lambda *_: None)
    records = quiet_fit(survey, REGION, AGE, RELEASE, coords={"region": list("abcdefghijkl")}, **EXTRAS)
    assert said(fitted) == {"ran": "equal rows counted once", "rows": 72, "records": N} and said(records) is None
    for group in ("posterior", "sample_stats", "observed_data", "posterior_predictive", "log_likelihood"):
        assert set(fitted[group].data_vars) == set(records[group].data_vars)
        for name, values in records[group].data_vars.items():
            same = fitted[group][name]
            assert same.dims == values.dims and set(same.coords) == set(values.coords)
            # 40 iterations of at most 7 steps; rounding grows with each
            np.testing.assert_allclose(np.asarray(same, float), np.asarray(values, float), rtol=1e-6, atol=1e-7)
    assert fitted["posterior"]["logits"].dims == ("chain", "draw", "people")
    assert all(fitted.attrs[name] == records.attrs[name] for name in ("mechanisms", "privacy", "release_warnings"))


@pytest.mark.slow
def test_other_answers_of_as_many_kinds_need_no_other_program(fitted, monkeypatch):
    built = []
    monkeypatch.setattr(_programs, "Program", lambda *args, **_: built.append(args))
    other = quiet_fit(survey, (REGION + 1) % 12, AGE, ldp.Release(1 - YES, RR))
    assert said(other)["rows"] == 72 and not built


@pytest.mark.slow
def test_an_expansion_on_request_is_made_of_the_kinds():
    report = said(quiet_fit(line, X, RELEASE, expand=True))
    assert report["ran"].startswith("expansion") and report["rows"] == 6 and report["records"] == report["count"] == N


def test_kinds_of_rows_raise_no_doubts_about_a_mechanism(x64):
    def model(bits):
        shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(6)))
        numpyro.sample("z", dist.Categorical(shares).expand([len(bits)]), obs=bits)

    mechanism = ldp.OptimalUnaryEncoding(4.0, 6)
    own = RNG.integers(0, 6, 20_000)[:, None] == np.arange(6)
    values = (RNG.random((20_000, 6)) < np.where(own, 0.5, 1 / (1 + np.exp(4.0)))).astype(int)
    private = ldp.privatize(model, {"z": mechanism})
    _, counted, _, report = collapsed(private, (values,))
    assert report["rows"] <= 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sites_of(counted)
    with pytest.warns(ldp.data.ReleaseWarning):  # as the kinds alone could hardly have been released
        sites_of(density_of(private, counted.args, {}))
