"""Expansions of categories against the log-likelihood of the records and its derivatives."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import ldpbayes as ldp
from ldpbayes.data import CountSketch, ExpandedSketch
from ldpbayes.data import category_sketches as category_records
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.likelihood.privatized import ExpandedLaw

pytestmark = pytest.mark.usefixtures("x64")


def released(make, d, n, seed=0):
    """Values of n records under a mechanism ``make(d)``, their shares drawn at random, and the mechanism."""
    rng = np.random.default_rng(seed)
    mechanism = make(d)
    x = rng.choice(d, n, p=rng.dirichlet(np.full(d, 2.0)))
    return np.asarray(jax.jit(mechanism.randomize)(jax.random.key(seed), x)), mechanism


def bits(d, n):
    """Those of optimal unary encoding: the own bit is set with probability 1/2, others with 1 / (1 + e)."""
    rng = np.random.default_rng(0)
    own = np.eye(d, dtype=bool)[rng.choice(d, n, p=rng.dirichlet(np.full(d, 2.0)))]
    return (rng.uniform(size=(n, d)) < np.where(own, 0.5, 1 / (1 + np.e))).astype(int), ldp.OptimalUnaryEncoding(1.0, d)


def sketch_of(values, mechanism, **options):
    with warnings.catch_warnings(action="ignore", category=ldp.data.ReleaseWarning):  # some are of another mechanism
        return ldp.Release(values, mechanism).sketch(**options)


def model(data):
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(data.mechanism.categories)).expand(data.law_shape))
    ldp.observe("z", dist.Categorical(theta), data)


def by_records(values, mechanism, theta):
    """The log-likelihood of each record, as the closed form has it."""
    return np.asarray(closed_form(mechanism, theta, values))


@jax.jit
def closed_form(mechanism, theta, values):
    return ldp.Privatized(dist.CategoricalProbs(theta), mechanism, validate_args=False).log_prob(values)


PERSONAL = functools.partial(ldp.RandomizedResponse, np.resize([0.3, 1.0, 2.5], 150))
GROUPS = np.resize([0, 2, 2, 0, 0], 150)


@jax.jit
def derivatives(likelihoods, counts, center, lift):
    """Of all orders up to the fourth, in coordinates y, of the log-likelihood Σ log p(z | θ) at θ = center + lift y."""
    function, found = lambda y: jnp.sum(counts * jnp.log(likelihoods @ (center + lift @ y))), []
    for _ in range(5):
        found.append(function(jnp.zeros(lift.shape[1])))
        function = jax.jacfwd(function)
    return found


@pytest.mark.parametrize(
    "make, by",
    [
        (functools.partial(ldp.OptimalUnaryEncoding, 1.0), None),
        pytest.param(functools.partial(ldp.SubsetSelection, 0.7), None, marks=pytest.mark.slow),
        pytest.param(PERSONAL, None, marks=pytest.mark.slow),
        (PERSONAL, GROUPS),
    ],
    ids=["oue", "subset selection", "k-rr, personal budgets", "k-rr, personal budgets, groups"],
)
def test_all_orders_are_the_derivatives_of_the_records_log_likelihood(make, by, monkeypatch):
    d = 5
    values, mechanism = released(make, d, 150)
    monkeypatch.setattr(category_records, "MEMBERSHIPS_AT_ONCE", 40 * d)  # several chunks, the last of which is shorter
    monkeypatch.setattr(category_records, "PRODUCTS_AT_ONCE", 15 * 10)
    made = sketch_of(values, mechanism, by=by, expand=True)
    one, mine = made.polynomial, np.ones(150)
    if by is not None:
        one, mine = jax.tree.map(lambda leaf: leaf[2], one), by == 2
        assert not np.any(made.polynomial.third[1]) and not np.any(made.polynomial.slope[1])  # nobody is in group 1
    likelihoods = np.exp(np.stack([by_records(values, mechanism, row) for row in np.eye(d)], axis=1))
    want = derivatives(likelihoods, mine, one.center, np.linalg.pinv(one.root))
    constant, slope, curvature, third, fourth = map(np.asarray, want)
    rows, columns = np.triu_indices(d - 1)
    twice = np.where(rows == columns, 1.0, 2.0)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    close(one.constant, constant)
    close(one.slope, slope)
    close(one.curvature, curvature)
    close(one.third, 0.5 * twice * third[:, rows, columns])
    close(one.fourth, twice[:, None] * twice * fourth[rows, columns][:, rows, columns] / 24)


@pytest.mark.parametrize("order, sd", [pytest.param(3, 0.02, marks=pytest.mark.slow), (4, 0.002)])
def test_the_expansion_is_as_good_as_the_records_where_the_posterior_is(order, sd, monkeypatch):
    # Three releases of this kind have errors of standard deviation 0.0187 to 0.0190 nats at order 3, where what is left
    # out is 1/N of a form of the fourth order in standardised draws, and of 0.0006 at order 4.
    d, n = 20, 10_000
    values, mechanism = bits(d, n)
    monkeypatch.setattr(category_records, "MOST_CATEGORIES_OF_ORDER_4", 24 if order == 4 else 0)
    made = ExpandedSketch.of(values, mechanism)
    assert made.polynomial.order == order
    draws = normal_draws(made, 1000)
    error = np.asarray(jax.jit(jax.vmap(made.polynomial))(draws)) - made.log_likelihood(draws)
    assert np.std(error) < sd
    # Shares nearest to the mode: the gradient with that of Σ log θ is 0, to a fraction of a standard deviation.
    theta, root = made.polynomial.center, made.polynomial.root
    slope = made.polynomial.slope + np.linalg.pinv(root).T @ (1 / theta)
    assert np.linalg.norm(slope) < 0.1
    assert np.isclose(np.sum(theta), 1) and np.all(theta > 0)


def normal_draws(made, count):
    """Draws of the normal law whose precision is the information of the records at the expansion's center."""
    lift = np.linalg.pinv(made.polynomial.root)
    upper = np.linalg.cholesky(-made.polynomial.curvature).T
    y = np.linalg.solve(upper, np.random.default_rng(1).normal(size=(upper.shape[0], count)))
    return made.polynomial.center + (lift @ y).T


def test_expansions_of_shards_at_one_point_add_up_to_that_of_the_whole():
    values, mechanism = bits(6, 900)
    by = np.resize([0, 1, 1], 900)
    one = sketch_of(values, mechanism, by=by, expand=True)
    parts = [
        ldp.Release(values[rows], mechanism).sketch(by=by[rows], at=one) for rows in (slice(0, 500), slice(500, None))
    ]
    total = sum(parts)
    assert total.size == 900 and total.law_shape == (2,) and len(total.records) == 2
    for mine, theirs in zip(jax.tree.leaves(total.polynomial), jax.tree.leaves(one.polynomial), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)  # sums of 900 terms in another order
    points = np.random.default_rng(0).dirichlet(np.ones(6), (3, 2))
    np.testing.assert_allclose(total.log_likelihood(points), one.log_likelihood(points), rtol=1e-12)
    assert sum(total.exact.weights) == 900
    other = ldp.OptimalUnaryEncoding(2.0, 6)
    both = one + sketch_of(values, other, by=by, at=one)  # budgets may differ
    assert both.mechanism.epsilon.shape == (1800,)
    assert len(both.exact.nodes) == 2 * len(one.exact.nodes)


def test_the_pass_over_the_records_is_their_log_likelihood():
    values, mechanism = released(PERSONAL, 5, 150)
    by = np.resize([0, 1, 1], 150)
    made = sketch_of(values, mechanism, by=by, expand=True)
    theta = np.random.default_rng(0).dirichlet(np.ones(5), (3, 2))
    want = [sum(by_records(values, mechanism, each[by])) for each in theta]
    np.testing.assert_allclose(made.log_likelihood(theta), want, rtol=1e-12)
    exact = made.exact
    log_probs = jax.jit(lambda theta: law_of_nodes(exact, dist.Categorical(theta)).log_prob(exact.nodes))(theta[0])
    counted = np.sum(exact.weights * np.asarray(log_probs))
    assert float(counted) == pytest.approx(float(want[0]), rel=1e-12)


def test_a_memory_map_is_read_in_chunks_and_stays_one(tmp_path):
    values, mechanism = bits(12, 5000)
    file = np.memmap(tmp_path / "bits", np.uint8, "w+", shape=values.shape)
    file[:] = values
    mapped, held = (ExpandedSketch.of(each, mechanism) for each in (file, values))
    assert isinstance(mapped.records[0].values, np.memmap)
    for mine, theirs in zip(jax.tree.leaves(mapped), jax.tree.leaves(held), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_an_expansion_is_an_argument_of_compiled_and_vectorised_functions():
    values, mechanism = bits(6, 900)
    made = [sketch_of(rows, mechanism, expand=True) for rows in np.split(values, 3)]
    theta = np.full(6, 1 / 6)

    def density(data, theta):
        return log_density(model, (data,), {}, {"theta": theta})[0]

    @jax.jit
    def densities(one, stacked, exact):
        slope = jax.value_and_grad(density, argnums=1)(one, theta)
        return *slope, jax.vmap(density, (0, None))(stacked, theta), density(exact, theta)

    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *made)
    value, slope, several, exact = densities(made[0], stacked, made[1].exact)
    assert np.isfinite(slope).all()
    assert float(several[0]) == pytest.approx(float(value), rel=1e-12)
    assert float(several[1]) == pytest.approx(float(exact), abs=0.5)
    law = law_of_nodes(made[0], dist.Categorical(theta))
    assert isinstance(law, ExpandedLaw) and law.theta.shape == (6,) and jax.eval_shape(law.log_prob, 0.0).shape == ()


def test_expansions_of_groups_are_one_site():
    values, mechanism = bits(6, 900)
    theta = np.random.default_rng(0).dirichlet(np.full(6, 20.0), 3)

    def groups(data):
        return log_density(lambda: ldp.observe("z", dist.Categorical(theta), data), (), {}, {})[0]

    @jax.jit
    def densities(parts, exact):
        want = sum(part.polynomial(row) for part, row in zip(parts, theta, strict=True))
        return want, groups(parts), groups([parts[0], exact, parts[2]])

    parts = [sketch_of(rows, mechanism, expand=True) for rows in np.split(values, 3)]
    want, together, mixed = map(float, densities(parts, parts[1].exact))
    assert together == pytest.approx(want, rel=1e-12)
    assert mixed == pytest.approx(want, abs=1.0)
    joined, points = category_records.joined_sketch(parts), np.random.default_rng(1).dirichlet(np.full(6, 20.0), (4, 3))
    apart = sum(part.log_likelihood(points[:, j]) for j, part in enumerate(parts))
    np.testing.assert_allclose(joined.log_likelihood(points), apart, rtol=1e-12)
    assert joined.exact.law_shape == (3,) and joined.exact.size == 900


def test_counts_stay_where_they_pay_and_where_the_posterior_is_wide():
    wide, mechanism = bits(20, 7000)  # 19² is more than 0.05 times as many
    assert isinstance(sketch_of(wide, mechanism), CountSketch)
    many, mechanism = bits(20, 10_000)
    assert isinstance(sketch_of(many, mechanism), ExpandedSketch)
    assert isinstance(sketch_of(many, mechanism, expand=False), CountSketch)
    assert isinstance(sketch_of(many, mechanism, by=np.arange(10_000) % 2), CountSketch)  # too few in a group
    few, mechanism = bits(8, 8000)  # 256 kinds
    assert isinstance(sketch_of(few, mechanism), CountSketch)


def test_frequencies_count_what_an_expansion_was_made_from():
    values, mechanism = bits(6, 900)
    estimates = [ldp.frequencies(sketch_of(values, mechanism, expand=expand), "mle") for expand in (True, False)]
    np.testing.assert_allclose(estimates[0].estimate, estimates[1].estimate)


def test_what_an_expansion_cannot_do_is_said():
    values, mechanism = bits(6, 900)
    one = sketch_of(values, mechanism, expand=True)
    bare = sketch_of(values, mechanism, expand=True, keep_records=False)
    law = dist.Categorical(np.full(6, 1 / 6))
    with pytest.raises(ValueError, match="got LaplaceMechanism"):
        sketch_of(np.zeros(9), ldp.LaplaceMechanism(1.0, -1, 1), expand=True)
    with pytest.raises(ValueError, match="finite budgets, but some are infinite"):
        sketch_of(np.eye(6, dtype=int), ldp.OptimalUnaryEncoding(np.inf, 6), expand=True)
    with pytest.raises(ValueError, match="at most 256 categories, got 300"):
        sketch_of(np.arange(9), ldp.RandomizedResponse(1.0, 300), expand=True)
    with pytest.raises(ValueError, match="expand is False"):
        sketch_of(values, mechanism, expand=False, at=one)
    with pytest.raises(ValueError, match="for 6 categories, but the values have 5"):
        sketch_of(values[:, :5], ldp.OptimalUnaryEncoding(1.0, 5), at=one)
    with pytest.raises(ValueError, match="for no groups, but the values have 2"):
        sketch_of(values, mechanism, by=np.arange(900) % 2, at=one)
    with pytest.raises(ValueError, match="keep_records=True"):
        bare.exact  # noqa: B018
    with pytest.raises(ValueError, match="has not kept its records"):
        bare.log_likelihood(np.full((1, 6), 1 / 6))
    with pytest.raises(ValueError, match=r"of shape \(m, 6\), got \(6,\)"):
        one.log_likelihood(np.full(6, 1 / 6))
    with pytest.raises(AttributeError, match="expand=False"):
        one.nodes  # noqa: B018
    with pytest.raises(ValueError, match="have the same centre"):
        one + sketch_of(values[::2], mechanism, expand=True)
    with pytest.raises(ValueError, match="different mechanisms or groups cannot be added"):
        one + sketch_of(values, ldp.SymmetricUnaryEncoding(1.0, 6), at=one)
    with pytest.raises(ValueError, match="method cannot be chosen"):
        law_of_nodes(one, law, method="channel")
    with pytest.raises(ValueError, match="a mask cannot leave out records of an expansion"):
        ldp.observe("z", law.mask(False), one)
    with numpyro.handlers.seed(rng_seed=0), numpyro.plate("people", 900), pytest.raises(ValueError, match="plates"):
        ldp.observe("z", law, one)
