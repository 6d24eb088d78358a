"""Values of which only those above a threshold were published: conditional laws, numbers of others, and coverage.

References are sums over all counts, with masses and tails of `scipy.stats`, and adaptive quadrature.
"""

import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import integrate, stats
from scipy.special import logsumexp

import ldpbayes as ldp
from ldpbayes.laws.compound import MixtureOverClasses
from ldpbayes.mechanisms import AdditiveMechanism, Floored, Incomplete, Published, Rounded, Withheld
from ldpbayes.noise import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace

pytestmark = pytest.mark.usefixtures("x64")
K = np.arange(90_000)
LAWS = {
    "poisson": (dist.Poisson, lambda r: stats.poisson(r).logpmf(K)),
    "negative binomial": (
        lambda r: dist.NegativeBinomial2(r, 0.3),
        lambda r: stats.nbinom(0.3, 0.3 / (0.3 + r)).logpmf(K),
    ),
    "zero-inflated": (
        lambda r: dist.ZeroInflatedPoisson(0.2, r),
        lambda r: np.logaddexp(np.where(K == 0, np.log(0.2), -np.inf), np.log(0.8) + stats.poisson(r).logpmf(K)),
    ),
}
WHOLE = np.arange(-400, 401)


def log_noise_tail(noise, t):
    """Log P(noise ≥ t), by SciPy, or as a sum."""
    if isinstance(noise, Gaussian):
        return stats.norm(scale=noise.standard_deviation).logsf(t)
    if isinstance(noise, Laplace):
        return stats.laplace(scale=noise.scale).logsf(t)
    power = np.abs(WHOLE) / noise.scale
    logs = -power if isinstance(noise, DiscreteLaplace) else -(power**2) / 2
    tails = np.logaddexp.accumulate(logs[::-1])[::-1] - logsumexp(logs)
    return tails[np.clip(t + 400, 0, 800).astype(int)]


def ruled(noise, threshold, **options):
    return Published(Withheld(AdditiveMechanism(noise, sensitivity=1.0), threshold), **options)


@pytest.mark.parametrize("law", [pytest.param(law, marks=pytest.mark.slow if law[0] != "p" else ()) for law in LAWS])
@pytest.mark.parametrize(
    "noise",
    [
        *(pytest.param(noise, marks=pytest.mark.slow) for noise in (Gaussian(5.0), Laplace(3.0), DiscreteLaplace(3.0))),
        DiscreteGaussian(5.0),
    ],
    ids=repr,
)
def test_probabilities_to_be_published_are_sums_however_small_or_near_1_they_are(law, noise):
    rates = np.array([1e-3, 1.0, 30.0, 91.0, 700.0])
    for threshold in (91.0, 1.0, 0.0, -6.0):
        own = jax.jit(lambda r, t=threshold: ldp.Privatized(LAWS[law][0](r), ruled(noise, t)).log_published)(rates)
        tails = log_noise_tail(noise, np.clip(threshold - K, -400, None))
        want = [logsumexp(LAWS[law][1](rate) + tails) for rate in rates]
        np.testing.assert_allclose(own, want, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_published_count_has_a_law_that_sums_to_1_and_one_among_all_with_a_number():
    noise, z = DiscreteGaussian(5.0), np.arange(20.0, 200.0)
    plain, law = (ldp.Privatized(dist.Poisson(9.0), rule) for rule in (ruled(noise, 20).mechanism, ruled(noise, 20)))
    counted = ldp.Privatized(dist.Poisson(9.0), ruled(noise, 20, unpublished=2.5))
    logs = law.log_prob(z)
    assert float(logsumexp(logs)) == pytest.approx(0.0, abs=1e-12)
    withheld = plain.log_prob(np.array([np.nan]))[0]
    np.testing.assert_allclose(counted.log_prob(z) - plain.log_prob(z), 2.5 * withheld, rtol=1e-12)
    np.testing.assert_allclose(law.cdf(z[[0, 5, -1]]), np.cumsum(np.exp(logs))[[0, 5, -1]], rtol=1e-10)
    assert law.cdf(19.0) == 0.0
    for none in (np.array([np.nan]), np.array([19.0])):
        with pytest.raises(ValueError, match=r"must be finite .*; 1 are not|cannot print 1 of the values"):
            law.log_prob(none)
    slope = jax.grad(lambda r: jnp.sum(ldp.Privatized(dist.Poisson(r), ruled(noise, 20)).log_prob(z[:9])))(9.0)
    up, down = (np.sum(ldp.Privatized(dist.Poisson(r), ruled(noise, 20)).log_prob(z[:9])) for r in (9.001, 8.999))
    assert float(slope) == pytest.approx(float(up - down) / 0.002, rel=1e-5)


@pytest.mark.parametrize(
    ("law", "density", "rule"),
    [
        pytest.param(
            lambda: dist.Normal(3.0, 2.0), stats.norm(3.0, 2.0), ruled(Laplace(2.0), 7.0), marks=pytest.mark.slow
        ),
        pytest.param(
            lambda: dist.Normal(-30.0, 2.0), stats.norm(-30.0, 2.0), ruled(Gaussian(3.0), 7.0), marks=pytest.mark.slow
        ),
        pytest.param(
            lambda: dist.Gamma(2.0, 0.5),
            stats.gamma(2.0, scale=2.0),
            Published(Withheld(Rounded(ldp.LaplaceMechanism(0.8, 0, 12), 2.0), 10.0)),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: dist.Beta(2.0, 3.0),
            stats.beta(2.0, 3.0),
            Published(Floored(Withheld(ldp.LaplaceMechanism(2.0, 0, 1), 0.3), 0.7)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["normal", "far below", "rounded", "floored"],
)
def test_numbers_follow_quadrature_over_the_record(law, density, rule):
    inner, place = rule.innermost, (-120.0, 120.0) if not rule.bounded else rule.domain.lower_bound
    ends = place if not rule.bounded else (rule.domain.lower_bound, rule.domain.upper_bound)
    low = float(rule.any_published.interval(np.nan)[0])
    tail = stats.laplace if isinstance(inner.noise, Laplace) else stats.norm
    width = inner.noise.scale if isinstance(inner.noise, Laplace) else inner.noise.standard_deviation

    def published(x):
        return density.pdf(x) * tail(x, width).sf(low)

    middle = [x for x in (float(density.mean()), low) if ends[0] < x < ends[1]]
    want = integrate.quad(published, *ends, points=middle, epsrel=1e-13, epsabs=0, limit=500)[0]
    want += (density.sf(ends[1]) * tail(ends[1], width).sf(low)) if rule.bounded else 0.0
    law = law()  # in double precision
    found = ldp.Privatized(law, rule)
    assert float(found.log_published) == pytest.approx(np.log(want), rel=1e-9)
    z = np.array([12.0, 20.0])
    among_all = ldp.Privatized(law, rule.mechanism).log_prob(z)
    np.testing.assert_allclose(found.log_prob(z), among_all - np.log(want), rtol=1e-9)


def test_a_known_number_that_was_published_has_a_truncated_law():
    x, z, rule = np.array([1.0, 8.0]), np.array([7.5, 9.0]), ruled(Gaussian(3.0), 7.0)
    found = ldp.Privatized(dist.Delta(x), rule).log_prob(z)
    np.testing.assert_allclose(found, stats.truncnorm((7 - x) / 3, np.inf, x, 3.0).logpdf(z), rtol=1e-12)


@pytest.mark.slow
def test_personal_noises_and_laws_have_their_own_conditions_and_are_arguments_of_compiled_functions():
    scales, rates, z = np.array([4.0, 9.0, 4.0]), np.array([25.0, 3.0, 8.0]), np.array([31, 30, 44.0])
    rule = ruled(DiscreteGaussian(scales), np.array([30.0, 20.0, 40.0]))
    release = ldp.Release(z, rule)

    def total(release, rates):
        return log_density(lambda data: ldp.observe("z", dist.Poisson(rates), data), (release,), {}, {})[0]

    want = 0.0
    for scale, rate, value, threshold in zip(scales, rates, z, (30, 20, 40), strict=True):
        law = ldp.Privatized(dist.Poisson(rate), ruled(DiscreteGaussian(scale), threshold))
        want += float(law.log_prob(np.array([value]))[0])
    assert float(total(release, rates)) == pytest.approx(want, rel=1e-12)
    mapped = jax.jit(jax.vmap(lambda rates: total(release, rates)))(np.stack([rates, rates + 1]))
    assert float(mapped[0]) == pytest.approx(want, rel=1e-12) and mapped[1] != mapped[0]
    one = ldp.Release(z, Published(Withheld(ldp.LaplaceMechanism(1.0, 0, 40), 20.0)))
    compiled = jax.jit(lambda data: jnp.sum(ldp.Privatized(dist.Gamma(2.0, 0.1), data.mechanism).log_prob(data.values)))
    assert float(compiled(one)) == pytest.approx(
        float(jnp.sum(ldp.Privatized(dist.Gamma(2.0, 0.1), one.mechanism).log_prob(z))), rel=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("unpublished", [None, 2.0])
def test_releases_sketches_mixtures_and_privatized_models_agree(unpublished):
    rule = ruled(DiscreteGaussian(3.0), 10, unpublished=unpublished)
    release = ldp.Release(np.array([10, 10, 11, 10, 17, 12, 10, 14.0]), rule)

    def model(data, law):
        ldp.observe("z", law, data)

    def plain():
        numpyro.sample("z", dist.Poisson(6.0).expand([8]).to_event(0), obs=release.values)

    laws = dist.Poisson(6.0), MixtureOverClasses(np.log([0.3, 0.7]), dist.Poisson(np.array([6.0, 6.0])))
    totals = [log_density(model, (data, law), {}, {})[0] for law in laws for data in (release, release.sketch())]
    totals.append(log_density(ldp.privatize(plain, {"z": rule}), (), {}, {})[0])
    np.testing.assert_allclose(totals, float(totals[0]), rtol=1e-10)
    noise = ldp.Privatized(dist.Poisson(6.0), ldp.DiscreteGaussianMechanism(3.0)).log_prob(release.values)
    log_p = float(ldp.Privatized(dist.Poisson(6.0), rule).log_published)
    rest = -8 * log_p if unpublished is None else 16 * np.log1p(-np.exp(log_p))
    assert float(totals[0]) == pytest.approx(float(jnp.sum(noise)) + rest, rel=1e-10)


@pytest.mark.slow
def test_values_that_are_simulated_are_published_and_follow_the_conditional_law():
    rule = ruled(DiscreteGaussian(5.0), 20)
    law = ldp.Privatized(dist.Poisson(9.0), rule)
    z = np.asarray(jax.jit(lambda key: law.sample(key, (4000,)))(jax.random.key(0)))
    assert z.min() == 20
    # Chi-square of 8 cells at a level of 1e-3; the seed is fixed.
    expected = 4000 * np.exp(law.log_prob(np.arange(20.0, 27.0)))
    observed = np.array([*(np.sum(z == value) for value in range(20, 27)), np.sum(z >= 27)])
    expected = np.append(expected, 4000 - expected.sum())
    assert np.sum((observed - expected) ** 2 / expected) < stats.chi2(7).ppf(0.999)
    assert np.isnan(rule.randomize(jax.random.key(0), np.full(9, -50.0))).all()
    assert np.isnan(ldp.Privatized(dist.Poisson(1e-6), ruled(DiscreteGaussian(1.0), 400)).sample(jax.random.key(1)))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Published(ldp.DiscreteGaussianMechanism(3.0)), "takes a rule with a threshold, such as Withheld, got"),
        (lambda: Published(Incomplete(ldp.DiscreteGaussianMechanism(3.0))), "takes a rule with a threshold"),
        (lambda: Floored(ruled(Gaussian(1.0), 3.0), 5.0), "cannot stand around Published"),
        (lambda: ruled(Gaussian(1.0), 3.0, unpublished=-1), "unpublished must be non-negative and finite, got -1"),
        (lambda: ruled(Gaussian(1.0), 3.0, unpublished=np.nan), "unpublished must be non-negative and finite, got nan"),
        (lambda: ldp.Release([4.0, np.nan], ruled(Gaussian(1.0), 3.0)), "values must be finite .*; 1 are not"),
        (lambda: ldp.Release([4.0, 2.0], ruled(Gaussian(1.0), 3.0)), r"cannot print 1 of the values, the first \(2.0"),
        (
            lambda: ldp.observe(
                "z", dist.Normal(np.zeros(2)), ldp.Release([4.0, 5.0], ruled(Gaussian(1.0), 3.0, unpublished=2))
            ),
            r"have no law, as those that were have laws of shape \(2,\); add a value NaN for each",
        ),
        (
            lambda: ldp.observe_jointly(
                dist.Bernoulli(0.5), {"z": (dist.Normal(np.zeros(2)), ldp.Release([4.0], ruled(Gaussian(1.0), 3.0)))}
            ),
            "site 'z': what was published of a table cannot be one of several parts",
        ),
    ],
)
def test_bad_input_is_refused(call, error):
    with pytest.raises((TypeError, ValueError), match=error):
        call()


def rate_model(data):
    ldp.observe("z", dist.Poisson(numpyro.sample("rate", dist.Gamma(2.0, 0.02))), data)


@pytest.mark.slow
@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")
@pytest.mark.parametrize(("unpublished", "mean", "error"), [("unknown", 78.75, 1.28), (1571, 79.81, 0.39)])
def test_a_table_of_pages_above_a_threshold_has_the_rate_of_all_pages(unpublished, mean, error):
    """429 pages with noisy counts of at least 91, of 2,000: the likelihood is compared with sums, and its posterior."""
    path = pathlib.Path(os.environ["LDPBAYES_DATA"]).parent / "cases" / "published_part.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    noise = {"noise": "discrete_gaussian", "scale": 10.0, "threshold": 91, "privacy": "As stated."}
    table = ldp.NoisyTable.from_file(path, "n", "page", unpublished=unpublished, **noise)
    z, rates = np.asarray(table.values), np.linspace(66.0, 88.0, 441)
    logs = []
    for rate in rates:
        masses, k = stats.poisson(rate).logpmf(K[:400]), K[:400]
        power = -((z[:, None] - k) ** 2) / 200 - logsumexp(-(WHOLE**2) / 200)
        log_p = logsumexp(masses + log_noise_tail(DiscreteGaussian(10.0), 91 - k))
        rest = -429 * log_p if unpublished == "unknown" else unpublished * np.log1p(-np.exp(log_p))
        logs.append(np.sum(logsumexp(masses + power, axis=1)) + rest + stats.gamma(2, scale=50).logpdf(rate))
    for rate in (0, 240, 440):
        found = log_density(rate_model, (table,), {}, {"rate": rates[rate]})[0]
        assert float(found) == pytest.approx(logs[rate], rel=1e-10)
    weights = np.exp(np.array(logs) - max(logs)) / np.sum(np.exp(np.array(logs) - max(logs)))
    exact = np.sum(weights * rates), np.sqrt(np.sum(weights * rates**2) - np.sum(weights * rates) ** 2)
    posterior = ldp.fit(rate_model, table.sketch(), progress_bar=False).posterior["rate"].values
    np.testing.assert_allclose(exact, [mean, error], rtol=1e-2)
    # 4,000 draws: five standard errors of a mean and of a standard deviation
    assert abs(posterior.mean() - exact[0]) < 5 * exact[1] / 4000**0.5
    assert posterior.std() == pytest.approx(exact[1], rel=5 / 8000**0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "cells", "tables"),
    [(False, 60, 1000), (True, 300, 1000), (False, 300, 10_000)],
    ids=["unknown", "known", "unknown, of 300 cells"],
)
def test_intervals_of_the_rate_cover_it_in_tables_of_which_a_part_was_published(known, cells, tables):
    # Tables of rates from the prior: central 90 % intervals in a 99 % binomial band; the seed is fixed. There
    # are 300 cells, or 60 that are published. Without the rule, most intervals are too high. If the number published
    # depends on the rate, and intervals do not know it, they need not be calibrated.
    rng, grid, z, prior = np.random.default_rng(5), np.linspace(0.1, 150.0, 1500), np.arange(40, 400), stats.gamma(4)
    rule = ruled(DiscreteGaussian(6.0), 40.0, unpublished=1.0 if known else None)
    law, plain = (ldp.Privatized(dist.Poisson(grid[:, None]), each) for each in (rule, rule.innermost))
    rates, counts = 10 * prior.rvs(tables, random_state=rng), []
    power = -(WHOLE**2) / (2 * 6.0**2)
    noise = np.exp(power - logsumexp(power))
    for rate in rates:
        masses = np.convolve(stats.poisson(rate).pmf(K[:400]), noise)[440:800]  # of the values z
        withheld = [max(1 - masses.sum(), 0.0)] if cells == 300 else []
        shares = np.append(masses, withheld)
        counts.append(rng.multinomial(cells, shares / shares.sum())[:360])
    counts = np.array(counts)
    number = counts.sum(axis=1)
    rest = np.asarray(law.log_prob(z[:1]) - plain.log_prob(z[:1]))[:, 0]
    others = np.outer(300 - number if known else number, rest)
    covered, high = [], []
    for added in (others, 0.0):
        posterior = counts @ np.asarray(plain.log_prob(z)).T + added + prior.logpdf(grid / 10)
        cdf = np.cumsum(np.exp(posterior - posterior.max(axis=1, keepdims=True)), axis=1)
        low, top = (grid[np.argmax(cdf >= share * cdf[:, -1:], axis=1)] for share in (0.05, 0.95))
        covered.append(np.sum((low <= rates) & (rates <= top)))
        high.append(np.mean(low > rates))
    least, most = stats.binom.interval(0.99, tables, 0.9)
    print(f"known {known}, {cells} cells: {covered} of {tables}, band {least}..{most}; too high {high}")
    assert (known or cells == 60) == (least <= covered[0] <= most) and high[1] > 0.4
