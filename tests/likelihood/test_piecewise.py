"""Closed forms under mechanisms that step, or bend, in the record, against 40 digits and against the channel."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import ldpbayes as ldp
from ldpbayes.laws.families import family_of
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.mechanisms.protocol import PiecewiseLinear
from tests.programs import randomize

pytestmark = pytest.mark.usefixtures("x64")

BASES = [dist.Normal, dist.Laplace, dist.Cauchy, dist.Logistic, lambda loc, scale: dist.StudentT(3.5, loc, scale)]
STEPS = [ldp.RPWithPrior(1.3, (0.1, 1.4), 0.2), ldp.RPWithPrior(0.7, (0.1, 1.4), 0.9, "uniform")]


@dataclasses.dataclass(frozen=True)
class Bent(PiecewiseLinear):
    """Two outputs, whose probabilities bend at three nodes."""

    nodes = np.array([-0.5, 0.2, 1.0])
    matrix = np.array([[0.7, 0.3], [0.45, 0.55], [0.25, 0.75]])

    def levels(self, z):
        return jnp.asarray(self.matrix.T)[jnp.asarray(z, int)]

    domain, support = constraints.interval(-0.5, 1.0), constraints.integer_interval(0, 1)
    randomize = log_prob = moments = guarantee = noise = None
    bounded = True

    def _validated(self, values):
        return values


def upper_tail(name, df=None):
    """P(X > x) of a standard law in arithmetic of 40 digits."""
    return {
        "normal": lambda x: mp.erfc(x / mp.sqrt(2)) / 2,
        "laplace": lambda x: mp.exp(-x) / 2 if x > 0 else 1 - mp.exp(x) / 2,
        "student_t": lambda x: (
            mp.betainc(mp.mpf(df) / 2, 0.5, 0, mp.mpf(df) / (df + x**2), regularized=True) / 2
            if x > 0
            else 1 - mp.betainc(mp.mpf(df) / 2, 0.5, 0, mp.mpf(df) / (df + x**2), regularized=True) / 2
        ),
    }[name]


LAWS = [("normal", None), ("laplace", None), ("student_t", 1.0), ("student_t", 1.0004), ("student_t", 3.5)]


@pytest.mark.parametrize(("name", "df"), LAWS)
def test_tails_and_their_integrals_are_right_to_rounding(name, df):
    x = np.array([-30.0, -7.3, -1e-3, 0.4, 9.1, 30.0])

    @jax.jit
    def both(df):
        law = {"normal": dist.Normal(), "laplace": dist.Laplace(), "student_t": dist.StudentT(df)}[name]
        return family_of(law).tails(x), family_of(law).integrated_tail(x)

    tails, integrals = map(np.asarray, both(df or 1.0))
    with mp.workdps(40):
        tail = upper_tail(name, df)
        for i, at in enumerate(x):
            # incomplete beta functions and exp of 450 lose some digits; all others a rounding error or two
            assert float(abs(tails[0, i] / tail(-mp.mpf(at)) - 1)) < 2e-12
            assert float(abs(tails[1, i] / tail(mp.mpf(at)) - 1)) < 2e-12
        for i, value in enumerate(integrals):
            exact = mp.quad(tail, mp.linspace(mp.mpf(x[i]), mp.mpf(x[i + 1]), 4))
            # ends times tails cancel: some rounding errors of the larger of them
            assert float(abs(value - exact)) < 2e-14 * (1 + np.max(np.abs(x[i : i + 2])))


NAMES = ["normal", "laplace", "cauchy", "logistic", "student_t"]
SHORT = [("normal", 0), ("cauchy", 0), ("logistic", 1)]  # the tails of the others have tests of their own


@pytest.mark.parametrize(
    ("base", "mechanism"),
    [
        pytest.param(
            base,
            mechanism,
            id=f"{name}-{mechanism.outside}",
            marks=() if (name, i) in SHORT else pytest.mark.slow,
        )
        for name, base in zip(NAMES, BASES, strict=True)
        for i, mechanism in enumerate(STEPS)
    ],
)
def test_closed_forms_equal_the_channel_and_their_own_differences(base, mechanism):
    low, high = mechanism.released_range
    z = np.linspace(low, high, 13)[1:-1]

    def total(parameters, method="closed_form"):
        return ldp.Privatized(base(*parameters), mechanism, method=method).log_prob(z)

    step = 1e-5 * np.eye(2)

    @jax.jit
    def compiled(parameters):
        sides = jax.vmap(total)(jnp.concatenate([parameters + step, parameters - step]))
        return total(parameters), total(parameters, "channel"), jax.jacfwd(total)(parameters), sides

    for parameters in (np.array([0.5, 0.7]), np.array([-1.0, 0.3])):
        closed, channel, slopes, sides = compiled(parameters)
        # the channel's 40 panels resolve a law whose scale is a tenth of the interval to 1e-12
        np.testing.assert_allclose(closed, channel, rtol=1e-11, atol=1e-11)
        # central differences are off by step² times third derivatives, some (1/0.3)³, and by rounding over the step
        np.testing.assert_allclose(slopes, ((sides[:2] - sides[2:]) / 2e-5).T, atol=2e-8)


def test_marginal_densities_equal_the_definition_in_40_digits_far_out_too():
    mechanism = STEPS[0]
    z = np.array([-0.05, 0.25, 0.8, 1.3, 1.55])
    log_prob = jax.jit(lambda loc, scale: ldp.Privatized(dist.Normal(loc, scale), mechanism).log_prob(z))
    with mp.workdps(40):
        for loc, scale in ((0.5, 0.7), (-40.0, 0.5), (60.0, 3.0), (0.9, 1e-3)):
            found = np.asarray(log_prob(loc, scale))
            total = 2 * mp.mpf(0.2) + mp.exp(-mp.mpf(1.3)) * (mp.mpf(1.4) - mp.mpf(0.1))
            for value, at in zip(found, z, strict=True):
                start, stop = mp.mpf(at) - mp.mpf(0.2), mp.mpf(at) + mp.mpf(0.2)
                start, stop = (-mp.inf if start < 0.1 else start), (mp.inf if stop > 1.4 else stop)
                mass = mp.ncdf((stop - loc) / mp.mpf(scale)) - mp.ncdf((start - loc) / mp.mpf(scale))
                exact = mp.log((mp.exp(-mp.mpf(1.3)) * (1 - mass) + mass) / total)
                assert float(abs(value - exact)) < 1e-13


@pytest.mark.parametrize("base", [dist.Normal, dist.Laplace, BASES[-1]], ids=["normal", "laplace", "student_t"])
def test_laws_under_mechanisms_that_bend_equal_quadrature(base):
    law = base(0.3, 0.4)
    own = jax.jit(
        lambda law, z, x: (ldp.Privatized(law, Bent()).log_prob(z), law.log_prob(x), law.cdf(30.0 * (2 * z - 1)))
    )
    t, w = np.polynomial.legendre.leggauss(60)
    edges = np.array([-30.0, -8.0, -3.0, -0.5, 0.2, 0.3, 1.0, 3.0, 8.0, 30.0])
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + t)
    found, log_density, (below, not_above) = map(np.asarray, own(law, np.array([0, 1]), x))
    found, density = np.exp(found), np.exp(log_density) * half * w
    levels = np.stack([np.interp(x, Bent.nodes, column) for column in Bent.matrix.T])
    # Student's t has a mass of some 1e-7 beyond 30, whose levels are those of the outer nodes
    exact = (levels * density).sum(axis=(1, 2)) + Bent.matrix.T[:, [0, -1]] @ [below, 1 - not_above]
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-13)


def test_gradients_are_finite_however_far_a_label_is_from_its_prediction():
    mechanism = ldp.RPWithPrior(8.0, (0.0, 1.0), 0.05)

    def total(loc, scale):
        return jnp.sum(ldp.Privatized(dist.Normal(loc, scale), mechanism).log_prob(jnp.linspace(-0.05, 1.05, 23)))

    locs, scales = np.meshgrid([-1e6, -3.0, 0.05, 0.5, 4.0, 1e6], [1e-6, 1e-2, 1.0, 1e4])
    slopes = jax.jit(jax.vmap(jax.grad(total, argnums=(0, 1))))(locs.ravel(), scales.ravel())
    assert np.all(np.isfinite(slopes))


@pytest.mark.parametrize(
    "mechanism",
    [STEPS[0], pytest.param(STEPS[1], marks=pytest.mark.slow)],
    ids=lambda mechanism: mechanism.outside,
)
def test_sketches_cut_where_released_labels_bend_equal_the_product_over_records(mechanism):
    x = np.random.default_rng(0).normal(0.5, 0.7, 5_000)
    release = ldp.Release(randomize(mechanism, x, 1), mechanism)
    sketch = release.sketch()

    @jax.jit
    def totals(loc, scale, values, weights):
        law = dist.Normal(loc, scale)
        product = jnp.sum(ldp.Privatized(law, mechanism).log_prob(values))
        return product, weights @ law_of_nodes(sketch, law).log_prob(sketch.nodes)

    for parameters in ((0.4, 0.6), (1.6, 0.3)):
        product, total = totals(*parameters, release.values, sketch.weights)
        # between the cuts the law is smooth on its own scale, three panels and more
        assert float(total) == pytest.approx(float(product), rel=2e-9)
    coarse = sketch.coarser(10, 12, True)
    assert set(mechanism.released_breakpoints[[1, 2]].tolist()) <= set(coarse.edges)


@pytest.mark.slow
def test_where_a_jump_is_on_an_edge_of_the_support_the_gradient_is_that_of_moves_that_shrink_it():
    z, mechanism = 0.55, ldp.RPWithPrior(1.0, (0.0, 1.0), 0.2)

    def log_prob(low, high):
        return ldp.Privatized(dist.Uniform(low, high), mechanism).log_prob(z)

    both, moves = jax.jit(jax.value_and_grad(log_prob, (0, 1))), (1e-6, -1e-6)
    for place in (0.35, 0.75):  # z less and plus the half-width, where p(z | x) jumps
        for edge, inwards in ((0, 1e-6), (1, -1e-6)):
            ends = (place, 0.98) if edge == 0 else (0.03, place)
            value, slopes = both(*ends)
            moved = {move: [end + move * (k == edge) for k, end in enumerate(ends)] for move in moves}
            sides = {move: float(both(*moved[move])[0] - value) / move for move in moves}
            # a difference over 1e-6 is off by the second derivative, of the order 10, times that
            assert float(slopes[edge]) == pytest.approx(sides[inwards], abs=1e-4)
            assert abs(sides[inwards] - sides[-inwards]) > 0.5
