"""Regressions on perturbed covariates against integrals over the noise's scale and the predictor, or all latents."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import special, stats

import ldpbayes as ldp
from ldpbayes.likelihood import ChebyshevExpansion, RegressionRows, linear_rows

pytestmark = pytest.mark.usefixtures("x64")

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(180)
LOG_WEIGHTS = np.log(np.maximum(WEIGHTS / np.sqrt(2 * np.pi), 1e-300))
INTERCEPT = 0.3


def normal_parts(z, mean, covariance, slopes, noise):
    """Log density of z = x + N(0, diag(noise)), and mean and variance of the predictor given z."""
    total = covariance + np.diag(noise)
    away = z - mean
    solved = np.linalg.solve(total, away.T).T
    log_density = -0.5 * np.sum(away * solved, axis=-1) - 0.5 * np.linalg.slogdet(2 * np.pi * total)[1]
    load = covariance @ slopes  # the variance is written without a difference, which rounding could take below 0
    return log_density, INTERCEPT + mean @ slopes + solved @ load, load @ np.linalg.solve(total, noise * slopes)


def log_mean(log_p, y, t, v):
    """Log of the mean of p(y | predictor): exact to 1e-9 for a variance up to 8, where the sigmoid is smooth enough."""
    return special.logsumexp(log_p(t[..., None] + np.sqrt(v) * NODES, y[..., None]) + LOG_WEIGHTS, axis=-1)


def logit(eta, y):
    return -np.logaddexp(0, np.where(y == 1, -eta, eta))


def symmetric_laplace(rows, mean, covariance, slopes, scale):
    """A sum over 160 scales of the noise, which a sum over 320 does not change by 1e-13."""
    t, step = np.linspace(-6.5, 4.3, 160, retstep=True)
    w = np.exp(t - np.exp(-t - 3))
    log_weights = np.log(step * w * (1 + np.exp(-t - 3))) - w
    z, y, terms = rows[:, :-1], rows[:, -1], []
    for at, log_weight in zip(w, log_weights, strict=True):
        log_density, m, v = normal_parts(z, mean, covariance, slopes, np.full(len(mean), scale**2 * at))
        terms.append(log_weight + log_density + log_mean(logit, y, m, v))
    return special.logsumexp(terms, axis=0)


def rows_of(mean, covariance, slopes, **options):
    options = {"response": dist.BernoulliLogits, **options}
    response = options.pop("response")
    if isinstance(covariance, np.ndarray):  # not by JAX, operation by operation
        law = dist.MultivariateNormal(mean, scale_tril=np.linalg.cholesky(covariance))
    else:
        law = dist.MultivariateNormal(mean, covariance)
    return RegressionRows(law, response, slopes, INTERCEPT, **options)


def laplace(d, scale, share=0.0):
    columns = d + 1, tuple(range(d))
    if share:
        return ldp.ZeroInflatedLaplaceMechanism(share, scale, -99.0, 99.0, *columns)
    return ldp.SymmetricLaplaceMechanism(scale, -99.0, 99.0, *columns)


def log_prob_under(mechanism):
    @jax.jit
    def log_prob(mean, covariance, slopes, z):
        return ldp.Privatized(rows_of(mean, covariance, slopes), mechanism).log_prob(z)

    return log_prob


@jax.jit
def of_six(mean, covariance, slopes, z):
    """Sum of log densities and each of them, and the gradient of the sum, under symmetric noise of scale 3."""

    def total(mean, covariance, slopes):
        value = ldp.Privatized(rows_of(mean, covariance, slopes), laplace(6, 3.0)).log_prob(z)
        return jnp.sum(value), value

    return jax.value_and_grad(total, (0, 1, 2), has_aux=True)(mean, covariance, slopes)


@pytest.fixture(scope="module")
def six():
    """Six covariates whose predictor has a standard deviation of 2.2, under noise three times theirs, and less."""
    rng = np.random.default_rng(0)
    covariance = 0.81 * np.eye(6)
    x = rng.multivariate_normal(np.zeros(6), covariance, 60)
    w = rng.exponential(size=60)
    w[:20] *= 1e-3
    y = rng.uniform(size=60) < special.expit(INTERCEPT + x.sum(axis=1))
    return np.column_stack([x + 3.0 * np.sqrt(w)[:, None] * rng.normal(size=(60, 6)), y]), covariance


def test_rows_under_symmetric_laplace_noise_are_the_integral_over_its_scale(six):
    rows, covariance = six
    mean, slopes = np.full(6, 0.05), np.linspace(0.7, 1.2, 6)
    (_, value), _ = of_six(mean, covariance, slopes, rows)
    want = symmetric_laplace(rows, mean, covariance, slopes, 3.0)
    np.testing.assert_allclose(value, want, rtol=0, atol=1e-8)
    # covariates a tenth as variable as the noise, and correlated
    narrow = 0.09 * (0.7 * np.eye(6) + 0.3)
    (_, value), _ = of_six(mean, narrow, slopes, rows)
    want = symmetric_laplace(rows, mean, narrow, slopes, 3.0)
    np.testing.assert_allclose(value, want, rtol=0, atol=3e-8)


def test_gradients_are_those_of_the_integral(six):
    rows, covariance = six
    mean, slopes = np.full(6, 0.05), np.linspace(0.7, 1.2, 6)
    _, by = of_six(mean, covariance, slopes, rows)
    rng, step = np.random.default_rng(1), 1e-4
    way = [rng.normal(size=6), 0.1 * np.eye(6), rng.normal(size=6)]
    ends = (
        symmetric_laplace(rows, mean + s * way[0], covariance + s * way[1], slopes + s * way[2], 3.0).sum()
        for s in (step, -step)
    )
    want = (next(ends) - next(ends)) / (2 * step)
    # the difference is right to step²; derivatives in the variance to 1e-6 a record
    assert sum(np.sum(b * w) for b, w in zip(by, way, strict=True)) == pytest.approx(want, abs=1e-5)


def test_some_rows_may_have_no_noise(six):
    rows, covariance = six
    mean, slopes = np.zeros(6), np.ones(6)
    got = log_prob_under(laplace(6, 3.0, 0.2))(mean, covariance, slopes, rows)
    noisy = symmetric_laplace(rows, mean, covariance, slopes, 3.0)
    own = normal_parts(rows[:, :-1], mean, covariance, slopes, np.full(6, 0.0))[0]
    own += logit(INTERCEPT + rows[:, :-1].sum(axis=1), rows[:, -1])
    want = np.logaddexp(np.log(0.8) + noisy, np.log(0.2) + own)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8)


COVARIANCE = np.array([[0.5, 0.2, -0.1], [0.2, 0.4, 0.05], [-0.1, 0.05, 0.3]])
MEAN, SLOPES = np.array([0.2, -0.1, 0.3]), np.array([1.5, -2.0, 0.7])
ROWS = np.array([[0.3, -0.4, 0.1, 1.0], [2.0, 0.1, 0.5, 0.0], [-1.0, 3.0, 0.0, 1.0]])


def per_column(scales):
    noise = ldp.noise.IndependentGaussian(scales)
    d = len(scales)
    return ldp.mechanisms.AdditiveMechanism(noise, columns=d + 1, perturbed=tuple(range(d)), sensitivity=np.inf)


def probit(eta):
    return dist.BernoulliProbs(jax.scipy.special.ndtr(eta))


def binomial(eta):
    return dist.BinomialLogits(eta, total_count=3)


RESPONSES = {
    "probit": (probit, [1, 0, 1], lambda eta, y: special.log_ndtr(np.where(y == 1, eta, -eta))),
    "binomial": (binomial, [3, 0, 2], lambda eta, y: stats.binom(3, special.expit(eta)).logpmf(y)),
    "poisson": (
        lambda eta: dist.Poisson(jnp.exp(0.3 * eta)),
        [4, 0, 1],
        lambda eta, y: stats.poisson(np.exp(0.3 * eta)).logpmf(y),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "probit" else pytest.mark.slow) for name in RESPONSES]
)
def test_other_responses_under_normal_noise(name):
    response, y, log_p = RESPONSES[name]
    scales, rows = np.array([0.3, 0.8, 0.5]), np.column_stack([ROWS[:, :3], y])

    def both(slopes, z):
        law = rows_of(MEAN, COVARIANCE, slopes, response=response, nodes=60)
        value = ldp.Privatized(law, per_column(scales)).log_prob(z)
        return value, value

    by, got = jax.jit(jax.jacfwd(both, has_aux=True))(SLOPES, rows)

    def want(slopes):
        log_density, t, v = normal_parts(rows[:, :3], MEAN, COVARIANCE, slopes, scales**2)
        return log_density + log_mean(log_p, rows[:, 3], t, v)

    np.testing.assert_allclose(got, want(SLOPES), rtol=0, atol=1e-8)
    steps = 1e-5 * np.eye(3)
    slopes = [(want(SLOPES + step) - want(SLOPES - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(by, np.stack(slopes, axis=-1), rtol=0, atol=1e-7)


def test_a_law_with_traced_parameters_is_differentiated_in_them():
    """Of such a law there is no table, but the quadrature of responses with infinitely many values."""

    def total(steepness):
        base = rows_of(MEAN, COVARIANCE, SLOPES, response=lambda eta: dist.BernoulliLogits(steepness * eta), nodes=80)
        return jnp.sum(ldp.Privatized(base, per_column(np.array([0.3, 0.8, 0.5]))).log_prob(ROWS))

    def want(steepness):
        log_density, t, v = normal_parts(ROWS[:, :3], MEAN, COVARIANCE, SLOPES, np.array([0.09, 0.64, 0.25]))
        return np.sum(log_density + log_mean(lambda e, y: logit(steepness * e, y), ROWS[:, 3], t, v))

    value, slope = jax.jit(jax.value_and_grad(total))(1.3)
    assert float(value) == pytest.approx(want(1.3), abs=1e-8)
    assert float(slope) == pytest.approx((want(1.3 + 1e-5) - want(1.3 - 1e-5)) / 2e-5, abs=1e-7)


PRIVATE = ldp.mechanisms.LogisticRecordsMechanism(3.0, 1e-2, 1.0, columns=4)
MECHANISMS = {"records": PRIVATE, "normal": per_column(np.array([0.3, 0.8, 0.5])), "laplace": laplace(3, 0.7)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["records", "laplace"])
def test_gradients_are_finite_without_slopes_and_far_out(name):
    @jax.jit
    def gradients(mean, root, slopes, z):
        def total(mean, root, slopes):
            base = RegressionRows(dist.MultivariateNormal(mean, scale_tril=root), dist.BernoulliLogits, slopes, 0.1)
            return jnp.sum(ldp.Privatized(base, MECHANISMS[name]).log_prob(z))

        return jax.value_and_grad(total, (0, 1, 2))(mean, root, slopes)

    batches = np.stack([ROWS, ROWS * [1e3, 1e3, 1e3, 1.0]])
    root = np.linalg.cholesky(COVARIANCE)
    for slopes in (np.zeros(3), SLOPES, 1e3 * SLOPES):
        for spread in (root, 1e-4 * np.eye(3)):
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients(MEAN, spread, slopes, batches)))
    if name == "records":  # slopes of 0 leave the covariates, and a response of one probability
        value = float(gradients(MEAN, root, np.zeros(3), np.stack([ROWS, ROWS]))[0]) / 2
        noise = np.full(3, PRIVATE.standard_deviation**2)
        density, *_ = normal_parts(ROWS[:, :3], MEAN, COVARIANCE, np.zeros(3), noise)
        flip, p = special.expit(-PRIVATE.response_epsilon), special.expit(0.1)
        one = flip + (1 - 2 * flip) * p
        assert value == pytest.approx(np.sum(density + np.log([one, 1 - one, one])), abs=1e-9)


def test_mapped_and_batched_and_single_precision_are_the_same():
    log_prob, rows = log_prob_under(MECHANISMS["laplace"]), np.stack([ROWS[::-1], ROWS])
    mapped = jax.jit(jax.vmap(log_prob, (None, None, 0, None)))
    batched = mapped(MEAN, COVARIANCE, np.stack([-3 * SLOPES, SLOPES]), rows)
    want = symmetric_laplace(ROWS, MEAN, COVARIANCE, SLOPES, 0.7)
    assert batched.shape == (2, 2, 3)
    np.testing.assert_allclose(batched[1], np.stack([want[::-1], want]), rtol=0, atol=1e-8)
    with jax.enable_x64(False):
        got = log_prob(*map(np.float32, (MEAN, COVARIANCE, SLOPES, ROWS)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("order", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_an_expansion_is_the_mean_of_its_polynomial(order):
    expansion = ChebyshevExpansion(order, 4.0)
    series = np.polynomial.chebyshev.Chebyshev.interpolate(lambda s: special.expit(s), 120, domain=[-4, 4]).truncate(
        order + 1
    )
    s, t, v = np.linspace(-4, 4, 9), np.array([-0.8, 0.0, 0.4, 1.0]), 0.7
    np.testing.assert_allclose(np.polynomial.polynomial.polyval(s, expansion.coefficients), series(s), atol=1e-12)
    want = np.exp(LOG_WEIGHTS) @ series(t + np.sqrt(v) * NODES[:, None])
    np.testing.assert_allclose(expansion.mean(t, v), want, atol=1e-10)

    @jax.jit
    def likelihoods(slopes):
        base = RegressionRows(
            dist.MultivariateNormal(MEAN, scale_tril=np.linalg.cholesky(COVARIANCE)),
            dist.BernoulliLogits,
            slopes,
            0.1,
            expansion=expansion,
        )
        one, zero = (np.column_stack([ROWS[:, :3], np.full(3, label)]) for label in (1.0, 0.0))
        laws = [ldp.Privatized(base, MECHANISMS[name]) for name in ("normal", "records")]
        return [[law.log_prob(rows) for rows in (one, zero)] for law in laws]

    for scale, clipped in ((0.3, False), (100.0, True)):
        known, private = likelihoods(scale * SLOPES)
        density, m, v = normal_parts(ROWS[:, :3], MEAN, COVARIANCE, scale * SLOPES, np.array([0.09, 0.64, 0.25]))
        m = m - INTERCEPT + 0.1
        p = expansion.mean(m, v)
        assert bool(np.any((p < 0) | (p > 1))) == clipped
        np.testing.assert_allclose(known[0], density + np.log(np.clip(p, 1e-6, 1 - 1e-6)), atol=1e-9)
        np.testing.assert_allclose(np.exp(known[0] - density) + np.exp(known[1] - density), 1.0, atol=1e-12)
        density, *_ = normal_parts(ROWS[:, :3], MEAN, COVARIANCE, SLOPES, np.full(3, PRIVATE.standard_deviation**2))
        shares = np.exp(np.asarray(private) - density)
        np.testing.assert_allclose(shares.sum(axis=0), 1.0, atol=1e-12)
        assert np.all(shares >= special.expit(-PRIVATE.response_epsilon) * (1 - 1e-12))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="only for the sigmoid of BernoulliLogits"):
        rows_of(MEAN, COVARIANCE, SLOPES, response=probit, expansion=ChebyshevExpansion())
    for options, what in (({"order": 0}, "order"), ({"half_width": 0.0}, "half_width"), ({"floor": 0.5}, "floor")):
        with pytest.raises(ValueError, match=what):
            ChebyshevExpansion(**options)
    base = rows_of(MEAN, COVARIANCE, SLOPES)
    wrong = np.array([[0.3, -0.4, 0.1, 2.0]])
    for name in ("normal", "laplace"):
        with pytest.raises(ValueError, match=r"1 responses .column 3. are not in the support of BernoulliLogits"):
            ldp.Privatized(base, MECHANISMS[name]).log_prob(wrong)
    # where it cannot be seen
    assert np.isneginf(jax.jit(ldp.Privatized(base, MECHANISMS["normal"]).log_prob)(wrong)[0])
    with pytest.raises(ValueError, match="responses of 0 and 1"):
        ldp.Privatized(rows_of(MEAN, COVARIANCE, SLOPES, response=binomial), PRIVATE).log_prob(ROWS)
    with pytest.raises(ValueError, match="one scale for all records"):
        ldp.Privatized(base, per_column(np.ones((3, 3)))).log_prob(ROWS)
    with pytest.raises(ValueError, match="must perturb all columns except the response"):
        rows = RegressionRows(
            dist.MultivariateNormal(MEAN, scale_tril=np.linalg.cholesky(COVARIANCE)),
            dist.BernoulliLogits,
            SLOPES,
            place=0,
        )
        ldp.Privatized(rows, PRIVATE).log_prob(ROWS)


# --- the trapezoidal rule over all latent covariates and labels -------------------------------------------------------

POINTS = {1: 4001, 2: 301, 3: 91}


def grid(d, z, scales):
    """Points x around N(x; m, C) N(z; x, scales²), the log of that density there, and the log of a cell's volume."""
    precision = np.linalg.inv(COVARIANCE[:d, :d]) + np.diag(1 / scales**2)
    spread = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    center = np.linalg.solve(precision, np.linalg.solve(COVARIANCE[:d, :d], MEAN[:d]) + z / scales**2)
    # normal tails beyond nine standard deviations hold 1e-18; the rule is exact to exp(−2π² (spread/step)²), and better
    # than exp(−2π · (distance of the sigmoid's poles)/step)
    axes = [np.linspace(c - 9 * s, c + 9 * s, POINTS[d]) for c, s in zip(center, spread, strict=True)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, d)
    log_density = stats.multivariate_normal(MEAN[:d], COVARIANCE[:d, :d]).logpdf(x)
    log_density += stats.norm(x, scales).logpdf(z).sum(axis=1)
    return x, log_density, sum(np.log(axis[1] - axis[0]) for axis in axes)


def log_integral(terms, cell):
    top = terms.max()
    return np.log(np.exp(terms - top).sum()) + top + cell


@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_logistic_rows_are_the_integral_over_covariates_and_labels(d):
    private = ldp.mechanisms.LogisticRecordsMechanism(3.0, 1e-2, 1.0, columns=d + 1)
    known = ldp.mechanisms.AdditiveMechanism(
        ldp.noise.IndependentGaussian([0.3, 0.8, 0.5][:d]), columns=d + 1, perturbed=tuple(range(d)), sensitivity=np.inf
    )

    def log_prob(z, mechanism):
        law = dist.MultivariateNormal(MEAN[:d], COVARIANCE[:d, :d])
        return ldp.Privatized(RegressionRows(law, dist.BernoulliLogits, SLOPES[:d], INTERCEPT), mechanism).log_prob(z)

    rng = np.random.default_rng(d)
    for mechanism in (private, known):
        scales = np.broadcast_to((mechanism if mechanism is private else mechanism.noise).standard_deviation, (d,))
        flip = special.expit(-mechanism.response_epsilon) if mechanism is private else 0.0
        rows = np.column_stack([MEAN[:d] + 2 * scales * rng.normal(size=(3, d)), [0, 1, 1]])
        want = []
        for *z, y in rows:
            x, log_density, cell = grid(d, np.array(z), scales)
            one = special.expit(INTERCEPT + x @ SLOPES[:d])
            seen = flip + (1 - 2 * flip) * (one if y else 1 - one)
            want.append(log_integral(log_density + np.log(seen), cell))
        # 91 points over 18 standard deviations in each of three axes: exp(−2π² · 25) and smaller still
        np.testing.assert_allclose(jax.jit(log_prob)(rows, mechanism), want, atol=1e-8)


@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_linear_rows_are_the_integral_over_covariates_and_responses(d):
    mechanism = ldp.mechanisms.LinearRecordsMechanism(3.0, 1e-2, 1.0, 1.5, columns=d + 1, split=0.3)

    @jax.jit
    def log_prob(z):
        law = dist.MultivariateNormal(MEAN[:d], COVARIANCE[:d, :d])
        return ldp.Privatized(linear_rows(law, SLOPES[:d], 0.6, INTERCEPT), mechanism).log_prob(z)

    scales = mechanism.noise.standard_deviations
    rows = np.column_stack([MEAN[:d] + scales[:d] * np.array([[1.0], [-0.5]]), [2.0, -3.0]])
    want = []
    for *z, y in rows:
        x, log_density, cell = grid(d, np.array(z), scales[:d])
        # y given x is normal with two variances added: the innermost integral
        seen = stats.norm(INTERCEPT + x @ SLOPES[:d], np.hypot(0.6, scales[d])).logpdf(y)
        want.append(log_integral(log_density + seen, cell))
    np.testing.assert_allclose(log_prob(rows), want, atol=1e-10)


def test_a_gradient_of_logistic_rows_is_that_of_differences():
    d, mechanism = 2, ldp.mechanisms.LogisticRecordsMechanism(3.0, 1e-2, 1.0, columns=3)
    rows = np.array([[1.0, -2.0, 1.0], [0.3, 0.1, 0.0], [-5.0, 4.0, 1.0]])
    start = np.append(SLOPES[:d], [INTERCEPT, 0.7, 0.6])

    def total(at):
        law = dist.MultivariateNormal(MEAN[:d], scale_tril=jnp.diag(at[3:]))
        base = RegressionRows(law, dist.BernoulliLogits, at[:d], at[d])
        return ldp.Privatized(base, mechanism).log_prob(rows).sum()

    compiled, step = jax.jit(jax.value_and_grad(total)), 1e-4
    slope = compiled(start)[1]
    sides = [[float(compiled(start + sign * step * np.eye(5)[i])[0]) for sign in (1, -1)] for i in range(5)]
    # values good to 3e-9 make differences good to 3e-5
    np.testing.assert_allclose(slope, [(up - down) / (2 * step) for up, down in sides], atol=1e-4)
    assert np.all(np.isfinite(compiled(np.repeat([0.0, 1.0], [3, 2]))[1]))  # slopes of 0: nothing is known of the label
