"""Sketches: the log-likelihood of all records from a few hundred nodes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.data import CountSketch, PanelSketch
from ldpbayes.data.sketches import panel_edges, panel_moments
from ldpbayes.likelihood import law_of_nodes

N = 1_000_000
LAPLACE = ldp.LaplaceMechanism(1.0, -5, 5)


def released(mechanism, count=N, mean=1.0, sd=2.0):
    """Normal values after clipping and noise: a sketch of them serves any law."""
    rng = np.random.default_rng(0)
    noise = rng.laplace if isinstance(mechanism, ldp.LaplaceMechanism) else rng.normal
    values = rng.normal(mean, sd, count).clip(mechanism.lower, mechanism.upper)
    return values + noise(0, mechanism.scale, count)


@functools.partial(jax.jit, static_argnums=1)
def log_prob(base, mechanism, z):
    return ldp.Privatized(base, mechanism).log_prob(z)


def log_likelihoods(base, mechanism, z, *sketches):
    """Log-likelihoods of the records and of the nodes of sketches, in one program."""
    values, weights = [z, *(each.nodes for each in sketches)], [1.0, *(each.weights for each in sketches)]
    with jax.enable_x64(True):
        terms = np.asarray(log_prob(base, mechanism, np.concatenate(values)))
    parts = np.split(terms, np.cumsum([len(part) for part in values])[:-1])
    return [float(np.sum(w * part, dtype=np.longdouble)) for w, part in zip(weights, parts, strict=True)]


def error(base, mechanism, z, sketch):
    return np.diff(log_likelihoods(base, mechanism, z, sketch)).item()


# The sums have 10⁶ terms of size up to 7, each with a few rounding errors (1e-15), whose systematic part is at most
# 10⁶ × 1e-15 × 7 ≈ 1e-8; the bound for a certified sketch is 1e-6.
@pytest.mark.parametrize(
    ("mu", "sigma"),
    [
        pytest.param(mu, sigma, marks=() if (mu, sigma) in ((4.9, 0.5), (12.0, 0.5), (1.0, 8.0)) else pytest.mark.slow)
        for mu in (0.0, 1.0, 4.9, 12.0)
        for sigma in (0.5, 1.0, 2.0, 8.0)
    ],
)
def test_a_sketch_of_a_million_records_has_their_log_likelihood(mu, sigma, million):
    assert abs(error(dist.Normal(mu, sigma), LAPLACE, million, ldp.Release(million, LAPLACE).sketch())) < 1e-6


@pytest.fixture(scope="module")
def million():
    return released(LAPLACE)


law = functools.partial


@pytest.mark.parametrize(
    ("base", "mechanism"),
    [
        pytest.param(law(dist.Normal, 1.0, 2.0), ldp.GaussianMechanism(1.0, 1e-6, -5, 5), marks=pytest.mark.slow),
        (law(dist.Normal, 1.0, 1.0), ldp.GaussianMechanism(8.0, 1e-6, -5, 5)),
        (law(dist.Exponential, 0.4), ldp.LaplaceMechanism(2.0, 0, 7.5)),
        (law(dist.NegativeBinomial2, 3.0, 0.5), ldp.LaplaceMechanism(1.0, 0, 20)),
        pytest.param(law(dist.Poisson, 4.0), ldp.LaplaceMechanism(8.0, 0.5, 12.3), marks=pytest.mark.slow),
        pytest.param(law(dist.Poisson, 4.0), ldp.GaussianMechanism(4.0, 1e-6, 0, 20), marks=pytest.mark.slow),
        pytest.param(law(dist.Gamma, 2.0, 1.0), ldp.LaplaceMechanism(1.0, 0, 10), marks=pytest.mark.slow),
    ],
    ids=lambda value: value.func.__name__ if isinstance(value, functools.partial) else type(value).__name__,
)
def test_sketches_of_other_laws_and_mechanisms_are_as_exact(base, mechanism):
    # without a closed form every record is a row of the channel
    z = released(mechanism, 20_000 if base.func is dist.Gamma else 200_000)
    assert abs(error(base(), mechanism, z, ldp.Release(z, mechanism).sketch())) < 1e-6


@pytest.mark.slow
def test_the_channel_equals_the_closed_form_on_a_million_records(million):
    # in chunks, since a channel's matrix has a row a record; bound of the issue: 1e-8 nats in total
    for mu, sigma in [(1.0, 2.0), (0.3, 0.5), (4.0, 1.0)]:
        base = dist.Normal(mu, sigma)
        total = np.longdouble(0)
        with jax.enable_x64(True):
            for part in np.array_split(million[:: 1 if sigma == 0.5 else 20], 20 if sigma == 0.5 else 1):
                channel = ldp.Privatized(base, LAPLACE, method="channel").log_prob(part)
                closed = ldp.Privatized(base, LAPLACE, method="closed_form").log_prob(part)
                total += np.sum(np.asarray(channel - closed), dtype=np.longdouble)
        assert abs(total) < 1e-8


def test_the_sketches_of_ten_shards_add_up_to_the_sketch_of_the_whole(million):
    whole = ldp.Release(million, LAPLACE).sketch()
    parts = sum(ldp.Release(shard, LAPLACE).sketch() for shard in np.array_split(million, 10))
    assert parts.size == whole.size == N
    # a moment is a sum of at most 10⁶ terms of size at most one: its rounding error is below 10⁶ × 1e-16 × log2(10⁶)
    np.testing.assert_allclose(parts.moments, whole.moments, rtol=0, atol=1e-8)
    np.testing.assert_allclose(parts.tails, whole.tails, rtol=1e-12)
    base = dist.Normal(1.0, 2.0)
    _, *totals = log_likelihoods(base, LAPLACE, million[:0], parts, whole)
    assert abs(totals[0] - totals[1]) < 1e-7


@jax.jit
def at_nodes(sketch, base):
    return law_of_nodes(sketch, base).log_prob(sketch.nodes) @ sketch.weights


def test_too_narrow_a_law_is_seen_by_the_reference_and_mended_by_refinement():
    base = dist.Normal(0.013, 0.02)  # σ is 0.2 % of the range
    z = released(LAPLACE, 100_000, 0.013, 0.02)
    sketch = ldp.Release(z, LAPLACE).sketch()

    def difference(s):
        with jax.enable_x64(True):
            totals = [float(at_nodes(part, base)) for part in (s, s.reference)]
        return abs(totals[0] - totals[1])

    assert difference(sketch) > 1e-3
    fine = sketch.refine().refine()
    assert difference(fine) < 1e-3
    assert abs(error(base, LAPLACE, z, fine)) < 1e-3


WIDE = [
    LAPLACE,
    ldp.LaplaceMechanism(1.0, 0, 20),
    ldp.LaplaceMechanism(1.0, 0.5, 12.3),
    ldp.GaussianMechanism(1.0, 1e-6, 0, 1),
    ldp.ZeroInflatedLaplaceMechanism(0.2, 3.0, 0, 12),
]


@pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")  # normal noise under any mechanism
@pytest.mark.parametrize("mechanism", WIDE, ids=repr)
def test_a_coarser_sketch_is_that_of_the_records_on_its_panels(mechanism, rng):
    x = np.clip(rng.uniform(-1, 13, 10_000), mechanism.lower, mechanism.upper)
    z = np.where(mechanism.has_atoms & (x > 4), x, x + mechanism.scale * rng.normal(size=10_000))
    fine = ldp.Release(z, mechanism).sketch()
    integers = {edge for edge in fine.edges if edge == round(edge)}
    for lattice in (True, False):
        coarse = fine.coarser(10, 12, lattice)
        edges = np.array(coarse.edges)
        moments, tails, atoms = panel_moments(mechanism, z, edges)
        # sums of at most 10⁴ terms of size at most 1, each with rounding errors of up to 11 steps of the recursion
        np.testing.assert_allclose(coarse.moments, moments, rtol=0, atol=1e4 * 11 * 1e-15)
        np.testing.assert_array_equal(coarse.tails, tails)
        np.testing.assert_array_equal(coarse.atoms, atoms)
        assert coarse.size == fine.size == coarse.weights.sum().round(8)
        assert (coarse.records, coarse.probes, coarse.doubts) == (fine.records, fine.probes, fine.doubts)
        # where edges at integers stay, there is a panel more at most for each
        assert len(edges) - 1 < len(fine.edges) - 1
        assert len(edges) - 1 <= 10 + (len(integers) if lattice else 0)
        assert not lattice or integers <= set(coarse.edges)
        # at most a tenth of the range and a panel of what there was
        assert np.diff(edges).max() <= (edges[-1] - edges[0]) / 10 + np.diff(fine.edges).max()


def test_a_coarser_sketch_has_a_coarser_channel_and_the_same_log_likelihood(x64, rng):
    mechanism, base = ldp.LaplaceMechanism(2.0, 0, 7.5), dist.Exponential(0.4)
    x = np.minimum(rng.exponential(2.5, 10_000), 7.5)
    fine = ldp.Release(x + rng.laplace(0, mechanism.scale, 10_000), mechanism).sketch()
    coarse = fine.coarser(10, 12, lattice=False)
    assert [law_of_nodes(s, base).panels for s in (fine, coarse, coarse.reference)] == [len(fine.edges) - 1, 12, 24]
    assert law_of_nodes(coarse, base, panels=7).panels == 7
    totals = [at_nodes(s, base) for s in (fine, coarse)]
    assert len(coarse.nodes) == 84 and len(fine.nodes) > 300
    # the law is a third as wide as the range: a panel's polynomials are off by 0.15⁸ / (2⁷ 8!) < 1e-13 a record, and
    # 10⁴ terms of size up to 7 have a rounding error of 1e-15 each
    assert abs(totals[0] - totals[1]) < 1e-7


def test_coarser_sketches_add_up_and_stay_what_they_are_as_pytrees(rng):
    parts = [ldp.Release(rng.laplace(0, 10, 100), LAPLACE).sketch() for _ in range(2)]
    whole, coarse = sum(parts).coarser(10, 12, True), sum(part.coarser(10, 12, True) for part in parts)
    # sums of 200 terms of size at most one in another order
    np.testing.assert_allclose(coarse.moments, whole.moments, rtol=0, atol=200 * 11 * 1e-15)
    assert (coarse.edges, coarse.grid) == (whole.edges, whole.grid) == (parts[0].coarser(10, 12, True).edges, 12)
    assert (parts[0].coarser(10, 12, True) + parts[1].coarser(10, 16, True)).grid == 16
    again = jax.tree.map(np.asarray, whole)
    assert (again.edges, again.grid, again.chosen) == (whole.edges, 12, False)
    assert jax.tree.structure(parts[0]) != jax.tree.structure(dataclasses.replace(parts[0], grid=12))


def test_a_sketch_does_not_get_coarser_where_its_panels_were_chosen_or_are_few(rng):
    release = ldp.Release(rng.laplace(0, 10, 100), LAPLACE)
    chosen, default = release.sketch(panels=40), release.sketch()
    assert chosen.edges == default.edges and chosen.chosen and not default.chosen
    coarse = default.coarser(10, 12, True)
    for sketch in (chosen, chosen + default, default.refine(), coarse):
        assert sketch.coarser(10, 12, True) is sketch and sketch.coarser(1000, 1000, True) is sketch


@pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")  # all between the bounds
def test_weights_sum_to_the_number_of_records_and_integrate_polynomials(rng):
    z = rng.uniform(-5, 5, 1000)
    sketch = ldp.Release(z, LAPLACE).sketch(panels=4, lattice=False)
    for power in range(8):  # the panels of 8 nodes reproduce degree 7
        scale = 5.0**power
        assert np.isclose(sketch.weights @ (sketch.nodes**power) / scale, np.sum(z**power) / scale, rtol=1e-11)


def test_the_tails_weights_integrate_linear_functions(rng):
    z = np.array([-9.0, -7.0, -5.5, 6.5, 0.0])
    sketch = ldp.Release(z, LAPLACE).sketch()
    assert np.isclose(sketch.weights.sum(), 5)
    assert sketch.nodes[-4:].tolist() == [-5.0, -15.0, 5.0, 15.0]
    for function in (lambda x: np.minimum(x, -5.0), lambda x: np.maximum(x, 5.0)):
        assert np.isclose(sketch.weights @ function(sketch.nodes), function(z).sum(), rtol=1e-12)
    inside = ldp.Release(np.zeros(3), LAPLACE).sketch()
    assert inside.weights[-4:].tolist() == [0.0] * 4


def test_discrete_outputs_collapse_to_exact_counts(rng):
    z = rng.integers(0, 5, 10_000)
    mechanism = ldp.RandomizedResponse(1.0, 5)
    sketch = ldp.Release(z, mechanism).sketch()
    assert isinstance(sketch, CountSketch)
    assert sketch.weights.tolist() == np.bincount(z).tolist()
    both = sketch + ldp.Release(np.full(7, 3), mechanism).sketch()
    assert both.weights.tolist() == (np.bincount(z) + [0, 0, 0, 7, 0]).tolist()
    base = dist.Categorical(probs=np.array([0.1, 0.2, 0.3, 0.15, 0.25]))
    # 10⁴ terms of size 2: a rounding error of 1e-15 each
    assert abs(error(base, mechanism, z, sketch)) < 1e-10


def test_counts_get_panels_cut_at_the_integers():
    edges, _ = panel_edges(ldp.LaplaceMechanism(1.0, 0.5, 12.3))
    assert set(range(1, 13)) <= set(edges.tolist())
    assert edges[0] == 0.5
    assert edges[-1] == 12.3
    assert np.all(np.diff(edges) > 0)
    wide, _ = panel_edges(ldp.LaplaceMechanism(1.0, 0, 10_000))
    assert len(wide) == 41  # too many integers to cut at by default


def test_a_sketch_is_a_pytree_that_can_be_mapped_over(x64, rng):
    sketches = [ldp.Release(rng.laplace(0, 10, 100), LAPLACE).sketch() for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *sketches)

    base = dist.Normal(0.0, 1.0)
    together = jax.jit(jax.vmap(at_nodes, in_axes=(jax.tree.map(lambda _: 0, stacked), None)))(stacked, base)
    np.testing.assert_allclose(together, [float(at_nodes(s, base)) for s in sketches], rtol=1e-12)


def test_values_that_the_mechanism_cannot_have_released_are_refused():
    mechanism = ldp.GaussianMechanism(1.0, 1e-6, 0, 1)
    beyond = 1 + 13 * mechanism.scale
    with pytest.warns(ldp.data.ReleaseWarning, match="1 of 2 lie .* or more above the upper bound 1"):
        release = ldp.Release([0.5, beyond], mechanism)
    with pytest.raises(ValueError, match="cannot have released"):
        release.sketch()


def test_sketches_that_do_not_belong_together_do_not_add(rng):
    z = rng.normal(size=10)
    sketch = ldp.Release(z, LAPLACE).sketch()
    with pytest.raises(ValueError, match="different mechanisms"):
        sketch + ldp.Release(z, ldp.GaussianMechanism(2.0, 1e-6, -5, 5)).sketch()
    with pytest.raises(ValueError, match="different panels"):
        sketch + ldp.Release(z, LAPLACE).sketch(panels=7)
    with pytest.raises(TypeError):
        sketch + 1


def test_personal_budgets_and_bad_panels_are_refused(rng):
    with pytest.raises(ValueError, match="one budget for all"):
        PanelSketch.of(rng.normal(size=3), ldp.LaplaceMechanism([0.5, 1.0, 2.0], -5, 5))
    for panels in (0, -3, 2.5):
        with pytest.raises(ValueError, match="panels must be an integer of at least 1"):
            ldp.Release([0.0], LAPLACE).sketch(panels=panels)


def test_a_sketch_without_its_records_cannot_refine(rng):
    sketch = ldp.Release(rng.normal(size=10), LAPLACE).sketch(keep_records=False)
    assert isinstance(sketch, PanelSketch)
    assert sketch.refine() is None


@ldp.noise.pytree
@dataclasses.dataclass(frozen=True)
class CauchyNoise(ldp.noise.Noise):
    """Somebody's noise without linear tails, of which 1e-32 lie further out than 1e32."""

    scale: float
    linear_tails, kinks, norm = False, (), 1
    standard_deviation = resolution = property(lambda self: self.scale)
    reach = property(lambda self: 1e32 * self.scale)
    sample = tradeoff = None

    def log_prob(self, value):
        return jnp.sum(-jnp.log(jnp.pi * self.scale) - jnp.log1p((value / self.scale) ** 2), axis=-1)

    def depth(self, distance):
        return -np.log2(np.arctan2(1, distance) / np.pi)


def test_noise_that_falls_off_like_a_power_has_a_sketch_of_panels_that_grow_with_the_distance(x64):
    law, scale, rng = stats.norm(0.4, 1.3), 0.7, np.random.default_rng(0)
    mechanism = ldp.mechanisms.AdditiveMechanism(CauchyNoise(scale), -4.0, 4.0)
    values = np.clip(law.rvs(8000, rng), -4, 4) + scale * rng.standard_cauchy(8000)
    values[:3] = 3e4, -2e5, 9e6
    sketch = ldp.Release(values, mechanism).sketch()
    assert len(sketch.nodes) < 1300
    t, w = np.polynomial.legendre.leggauss(200)  # the kernel has poles 0.7 away from the line: exact to 1.19^-400
    density = 4 * w * law.pdf(4 * t)
    exact = (density * stats.cauchy.pdf(values[:, None], 4 * t, scale)).sum(axis=1)
    exact += law.cdf(-4) * stats.cauchy.pdf(values, -4, scale) + law.sf(4) * stats.cauchy.pdf(values, 4, scale)
    total = at_nodes(sketch, dist.Normal(0.4, 1.3))
    # panels of half a scale, whose 8 nodes leave 8^-8, on which errors of either sign cancel
    assert float(total) == pytest.approx(np.log(exact).sum(), abs=1e-5)
    finer = sketch.refine()
    # between the bounds there are 4 times as many panels; beyond them the growth is a quarter, which makes
    # log(1.5)/log(1.125) = 3.44 times as many of panels that grow by a half, and fewer of those that grow by more
    assert 3 * len(sketch.edges) < len(finer.edges) < 4 * len(sketch.edges)
