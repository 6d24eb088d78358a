"""The likelihood of pure protocols against brute-force enumeration, and its collapsed, chunked and grouped forms."""

import functools
import itertools
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xxhash
from numpyro.infer import Predictive
from scipy.linalg import hadamard

import ldpbayes as ldp
from ldpbayes.data import CountSketch
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.likelihood.closed_forms import categories as _categories
from ldpbayes.likelihood.closed_forms.categories import supported_mass
from tests.programs import randomize
from tests.protocols import PROTOCOLS

pytestmark = pytest.mark.usefixtures("x64")
BUDGETS = np.array([0.2, 1.0, 4.0, np.inf])


def protocols(*names):
    """All of them, of which those named are taken by default."""
    cases = [(name, make, () if name in names else pytest.mark.slow) for name, make in PROTOCOLS.items()]
    return pytest.mark.parametrize("make", [pytest.param(make, id=name, marks=mark) for name, make, mark in cases])


def probability(mechanism, epsilon, z, x):
    """p(z | x) from the protocol's description, one record at a time."""
    d, e = mechanism.categories, np.exp(epsilon)
    if isinstance(mechanism, ldp.RandomizedResponse):
        if np.isinf(e):
            return float(z == x)
        return (e if z == x else 1) / (e + d - 1)
    if isinstance(mechanism, ldp.HadamardResponse):
        k = mechanism.columns
        keep = 1 / (1 + np.exp(-epsilon))
        return (keep if hadamard(k)[x + 1, z] > 0 else 1 - keep) * 2 / k
    if isinstance(mechanism, ldp.SubsetSelection):
        w = mechanism.subset_size
        held = 1 / (1 + (d - w) / w * np.exp(-epsilon))
        return held / math.comb(d - 1, w - 1) if z[x] else (1 - held) / math.comb(d - 1, w)
    if isinstance(mechanism, ldp.LocalHashing):
        g = mechanism.hash_range
        keep = 1 / (1 + (g - 1) * np.exp(-epsilon))
        own = xxhash.xxh32(str(x), seed=int(z[0])).intdigest() % g
        return (keep if own == z[1] else (1 - keep) / (g - 1)) / 2**32
    if isinstance(mechanism, ldp.OptimalUnaryEncoding):
        p, q = (1.0 if np.isinf(e) else 0.5), 1 / (e + 1)
    else:
        p, q = 1 / (1 + np.exp(-epsilon / 2)), 1 / (1 + np.exp(epsilon / 2))
    return math.prod((p if k == x else q) if bit else (1 - p if k == x else 1 - q) for k, bit in enumerate(z))


def simulate(make, d, n, budgets=BUDGETS, seed=0):
    rng = np.random.default_rng(seed)
    epsilon = np.resize(budgets, n)
    mechanism = make(epsilon, d)
    return ldp.Release(randomize(mechanism, rng.integers(0, d, n), seed), mechanism), rng.dirichlet(np.ones(d))


def log_prob(release, base, **options):
    return ldp.Privatized(base, release.mechanism, **options).log_prob(release.values)


def total(sketch, base):
    return jnp.sum(sketch.weights * law_of_nodes(sketch, base).log_prob(sketch.nodes))


# Whatever a test compares is compiled in one function: operation by operation compiling takes most of the time.
@protocols("k-rr", "hadamard", "oue", "subset", "local-hashing")
@pytest.mark.parametrize("d", [pytest.param(3, marks=pytest.mark.slow), 6])
def test_marginal_likelihood_is_the_enumerated_one(make, d):
    release, theta = simulate(make, d, 60)
    mechanism = release.mechanism
    pairs = zip(release.values, mechanism.epsilon, strict=True)
    rows = np.array([[probability(mechanism, epsilon, z, x) for x in range(d)] for z, epsilon in pairs])
    exact = np.log(rows @ theta)

    @jax.jit
    def compiled(theta, release):
        bases = dist.Categorical(theta), dist.Categorical(logits=jnp.log(theta) + 3)
        methods = "closed_form", "channel"
        values = [log_prob(release, base, method=method) for base in bases for method in methods]
        derivatives = [
            way(lambda t: jnp.sum(log_prob(release, dist.Categorical(t)))) for way in (jax.grad, jax.hessian)
        ]
        return values, *(derivative(theta) for derivative in derivatives)

    values, gradient, hessian = compiled(theta, release)
    for value in values:
        np.testing.assert_allclose(value, exact, rtol=0, atol=1e-12)
    # along the simplex: what the likelihood is beside it means nothing
    along = np.eye(d) - 1 / d
    scaled = rows / (rows @ theta)[:, None] @ along
    np.testing.assert_allclose(along @ gradient, scaled.sum(axis=0), rtol=1e-10)
    np.testing.assert_allclose(along @ hessian @ along, -scaled.T @ scaled, rtol=1e-10)


@protocols("oue", "local-hashing")
def test_a_sketch_keeps_one_value_of_each_kind_and_loses_nothing(make):
    release, theta = simulate(make, 5, 4000)
    sketch = release.sketch()
    assert isinstance(sketch, CountSketch) and sketch.size == 4000
    assert len(sketch.nodes) <= 4 * 2**5
    # two shards add up, also where one has other budgets
    parts = [ldp.Release(release.values[i::2], make(release.mechanism.epsilon[i::2], 5)).sketch() for i in (0, 1)]
    both = parts[0] + parts[1]
    assert len(both.nodes) == len(sketch.nodes)

    @jax.jit
    def compiled(theta, release, sketch, both):
        records = jax.value_and_grad(lambda t: jnp.sum(log_prob(release, dist.Categorical(t))))
        collapsed = jax.value_and_grad(lambda t: total(sketch, dist.Categorical(t)))
        return records(theta), collapsed(theta), total(both, dist.Categorical(theta))

    whole, collapsed, sum_of_parts = compiled(theta, release, sketch, both)
    for one, other in zip(collapsed, whole, strict=True):
        # 4,000 terms of size up to 25 (a seed's 32 bits), 1e-16 each
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(sum_of_parts, collapsed[0], rtol=1e-13)


@pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")  # bits of no release
def test_collapsing_in_chunks_counts_every_record_once(monkeypatch):
    rng = np.random.default_rng(1)
    for d in (4, 21, 70):  # a table, one word, two words
        values = (rng.random((5000, d)) < 0.02).astype(np.uint8)
        kinds, counts = np.unique(values, axis=0, return_counts=True)
        for rows in (1 << 20, 700):
            monkeypatch.setattr(sys.modules["ldpbayes.data.category_sketches"], "VALUES_COUNTED_AT_ONCE", rows)
            sketch = ldp.Release(values, ldp.OptimalUnaryEncoding(1.0, d)).sketch()
            order = np.lexsort(sketch.nodes.T[::-1])
            np.testing.assert_array_equal(sketch.nodes[order], kinds)
            np.testing.assert_array_equal(sketch.weights[order], counts)


def test_a_release_without_duplicates_is_kept_as_it_is():
    values = np.random.default_rng(0).integers(0, 2, (500, 100), np.uint8)
    assert ldp.Release(values, ldp.SymmetricUnaryEncoding(0.01, 100)).sketch().nodes is values


@pytest.mark.parametrize(
    "make",
    [
        ldp.OptimalUnaryEncoding,
        pytest.param(functools.partial(ldp.LocalHashing, hash_range=3), marks=pytest.mark.slow),
    ],
    ids=["oue", "local-hashing"],
)
def test_chunks_change_nothing(make, monkeypatch):
    release, theta = simulate(make, 6, 1001)
    by = np.random.default_rng(2).integers(0, 3, 1001)
    laws = np.random.default_rng(3).dirichlet(np.ones(6), 3)

    def functions(theta, laws):
        def mass(t):
            return jnp.sum(supported_mass(release.mechanism, release.values, t, by) ** 2)

        squares = jax.value_and_grad(lambda t: jnp.sum(log_prob(release, dist.Categorical(t)) ** 2))
        hessian = jax.hessian(lambda t: jnp.sum(log_prob(release, dist.Categorical(t))))
        return squares(theta), jax.value_and_grad(mass)(laws), hessian(theta)

    whole = jax.jit(functions)(theta, laws)
    monkeypatch.setattr(_categories, "CACHE_SIZE", 6 * 100)
    chunked = jax.jit(lambda *arguments: functions(*arguments))(theta, laws)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(chunked), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


@protocols("oue")
def test_groups_are_one_law_each(make):
    release, _ = simulate(make, 4, 300)
    by = np.random.default_rng(4).integers(0, 3, 300)
    laws = np.random.default_rng(5).dirichlet(np.ones(4), 3)
    sketch = release.sketch(by=by)
    assert sketch.law_shape == (3,)
    assert (sketch + sketch).size == 600

    @jax.jit
    def compiled(laws, release, sketch):
        channel = law_of_nodes(sketch, dist.Categorical(laws), method="channel").log_prob(sketch.nodes)
        records = jnp.sum(log_prob(release, dist.Categorical(laws[by])))
        return records, total(sketch, dist.Categorical(laws)), jnp.sum(sketch.weights * channel)

    expected, *of_groups = compiled(laws, release, sketch)
    np.testing.assert_allclose(of_groups, [expected] * 2, rtol=1e-13)


def test_any_law_on_the_codes_will_do():
    z = np.arange(4)
    mechanism = ldp.RandomizedResponse(1.0, 4)
    cases = (
        (dist.Binomial(3, 0.3), [0.343, 0.441, 0.189, 0.027]),
        (dist.Bernoulli(0.2), [0.8, 0.2, 0, 0]),
        (dist.Categorical(np.array([0.5, 0.3, 0.2])), [0.5, 0.3, 0.2, 0]),
        (dist.DiscreteUniform(1, 2), [0, 0.5, 0.5, 0]),
    )
    log_probs = jax.jit(lambda: [ldp.Privatized(base, mechanism).log_prob(z) for base, _ in cases])()
    kernel = np.where(np.eye(4), np.e, 1.0) / (np.e + 3)
    np.testing.assert_allclose(log_probs, np.log([theta @ kernel for _, theta in cases]), atol=1e-12)
    with pytest.raises(ValueError, match=r"takes values 0..3, but .* has support \[0, 4\]"):
        ldp.Privatized(dist.Binomial(4, 0.3), mechanism).log_prob(z)
    with pytest.raises(ValueError, match="takes categories, but the base Normal is continuous"):
        ldp.Privatized(dist.Normal(0, 1), mechanism).log_prob(z)


@pytest.mark.parametrize("make", [pytest.param(ldp.OptimalUnaryEncoding, marks=pytest.mark.slow), ldp.SubsetSelection])
def test_the_law_of_bits_is_a_numpyro_distribution(make):
    theta = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    law = ldp.Privatized(dist.Categorical(theta), make(1.0, 3))
    assert law.batch_shape == (2,) and law.event_shape == (3,)
    wide = law.expand((5, 2))
    z, wide_z = jax.jit(lambda key: (law.sample(key, (7,)), wide.sample(key)))(jax.random.key(0))
    assert z.shape == (7, 2, 3) and wide_z.shape == (5, 2, 3)
    bits = np.array(list(itertools.product([0, 1], repeat=3)), np.uint8)
    bits = bits[np.asarray(law.support(bits))]

    @jax.jit
    def compiled(again, z, bits):
        densities = law.log_prob(z), again.log_prob(z), wide.log_prob(z[:5])
        return *densities, law.log_prob(bits[:, None]), (law.mean, law.variance)

    log_p, traced, expanded, of_bits, moments = compiled(law, z, bits)
    assert log_p.shape == (7, 2) and expanded.shape == (5, 2)
    np.testing.assert_allclose(expanded, log_p[:5])
    p, mean, variance = np.exp(np.asarray(of_bits)), *moments
    np.testing.assert_allclose(p.sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(mean, p.T @ bits, rtol=1e-12)
    np.testing.assert_allclose(variance, p.T @ bits - (p.T @ bits) ** 2, rtol=1e-12)
    np.testing.assert_allclose(traced, log_p, rtol=1e-14)  # a law is a pytree
    with pytest.raises(ValueError, match="releases bits, 0 or 1; 1 of 1 rows hold something else"):
        ldp.Privatized(dist.Categorical(theta[0]), make(1.0, 3)).log_prob(np.array([0, 2, 0]))


@protocols("subset")
def test_models_written_without_us_are_privatized_and_simulated(make):
    mechanism = make(1.0, 4)

    def model(group, y=None):
        with numpyro.plate("groups", 2):
            theta = jax.nn.softmax(numpyro.sample("logits", dist.Normal(0, 1).expand([4]).to_event(1)), axis=-1)
        with numpyro.plate("records", len(group)):
            numpyro.sample("y", dist.Categorical(theta[group]), obs=y)

    private = ldp.privatize(model, {"y": mechanism})
    group = np.arange(12) % 2
    drawn = jax.jit(Predictive(private, num_samples=3))(jax.random.key(0), group)
    assert drawn["y"].shape == (3, 12, *mechanism.event_shape)

    def log_probs(y):
        site = numpyro.handlers.trace(numpyro.handlers.seed(private, 0)).get_trace(group, y)["y"]
        return site["fn"].log_prob(site["value"])

    assert jax.eval_shape(log_probs, drawn["y"][0]).shape == (12,)


def test_an_infinite_budget_is_the_multinomial_likelihood():
    x = np.random.default_rng(0).integers(0, 4, 200)
    theta = np.array([0.4, 0.3, 0.2, 0.1])
    exact = np.sum(np.log(theta[x]))
    for make in (ldp.RandomizedResponse, ldp.OptimalUnaryEncoding, ldp.SymmetricUnaryEncoding):
        mechanism = make(np.inf, 4)
        sketch = ldp.Release(randomize(mechanism, x), mechanism).sketch()
        compiled = jax.jit(jax.value_and_grad(lambda t, s: total(s, dist.Categorical(t))))
        assert float(compiled(theta, sketch)[0]) == pytest.approx(exact, rel=1e-14)
        edge = np.array([1.0, 0.0, 0.0, 0.0])  # impossible for the data: no NaN, in value or gradient
        value, gradient = compiled(edge, sketch)
        assert np.isfinite(value) and np.isfinite(gradient).all()


@pytest.mark.parametrize("by", [np.zeros(9, int), np.zeros(9), np.full(10, -1)])
def test_groups_must_be_a_number_for_each_record(by):
    release = ldp.Release(np.zeros(10, int), ldp.RandomizedResponse(1.0, 3))
    with pytest.raises(ValueError, match="by must hold a level, or an integer ≥ 0, for each of the 10 records"):
        release.sketch(by=by)
