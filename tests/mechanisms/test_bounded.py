"""Noise in a bounded domain, against SciPy's laws cut off and integrals over the record; its curves by brute force."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import integrate, stats

import ldpbayes as ldp
from ldpbayes.mechanisms import BoundedGaussianMechanism, BoundedLaplaceMechanism, mechanism_from_spec
from ldpbayes.privacy.bounded_domain import BoundedDomainTradeoff
from tests.programs import call, randomize

pytestmark = pytest.mark.usefixtures("x64")
LAWS = {BoundedLaplaceMechanism: stats.laplace, BoundedGaussianMechanism: stats.norm}
KINDS = pytest.mark.parametrize("kind", LAWS, ids=lambda kind: kind.name)
LOWER, UPPER = -1.0, 2.0


@KINDS
@pytest.mark.parametrize("scale", [0.02, 0.5, 1e4])
def test_the_density_is_that_of_the_law_cut_off_and_draws_follow_it(kind, scale):
    mechanism, z = kind(scale, LOWER, UPPER), np.array([LOWER, -0.99, 0.3, UPPER, 2.001, -1.5])
    for x in (LOWER, 0.4, 7.0):
        law = LAWS[kind](np.clip(x, LOWER, UPPER), scale)
        inside = law.cdf(UPPER) - law.cdf(LOWER)
        want = np.where((z >= LOWER) & (z <= UPPER), law.logpdf(z) - np.log(inside), -np.inf)
        np.testing.assert_allclose(call("log_prob", mechanism, z, x), want, rtol=1e-10, atol=1e-10)
        draws = randomize(mechanism, np.full(4000, x))
        # a false alarm once in 10,000 cases of 18
        assert stats.kstest(draws, lambda t, law=law, p=inside: (law.cdf(t) - law.cdf(LOWER)) / p).pvalue > 1e-4 / 18


@pytest.mark.slow
@KINDS
def test_the_likelihood_is_the_integral_over_the_record_of_a_release_and_of_its_sketch(kind):
    mechanism, base, z = kind(0.5, LOWER, UPPER), stats.norm(0.3, 1.2), np.array([LOWER, 0.1, 1.9])
    law, cuts = LAWS[kind](0, 0.5), np.linspace(LOWER, UPPER, 25)

    def density(z, x):
        return law.pdf(z - x) / (law.cdf(UPPER - x) - law.cdf(LOWER - x))

    def likelihood(z):
        points = itertools.pairwise(np.unique([*cuts, z]))
        inside = sum(integrate.fixed_quad(lambda x: base.pdf(x) * density(z, x), *pair, n=20)[0] for pair in points)
        return np.log(inside + base.cdf(LOWER) * density(z, LOWER) + base.sf(UPPER) * density(z, UPPER))

    def model(data):
        ldp.observe("z", dist.Normal(0.3, 1.2), data)

    release = ldp.Release(z, mechanism)
    got = [float(log_density(model, (data,), {}, {})[0]) for data in (release, release.sketch())]
    np.testing.assert_allclose(got, np.sum([likelihood(each) for each in z]), rtol=1e-10)


@KINDS
def test_scales_of_records_are_arguments_and_files_and_checks_know_the_domain(kind, tmp_path):
    scales = np.array([0.2, 0.5, 3.0])
    mechanism, z, x = kind(scales, LOWER, UPPER), np.array([0.1, 0.2, 2.0]), np.array([0.0, 1.0, 5.0])
    each = [float(kind(scale, LOWER, UPPER).log_prob(*pair)) for scale, *pair in zip(scales, z, x, strict=True)]
    np.testing.assert_allclose(call("log_prob", mechanism, z, x), each, rtol=1e-12)
    mapped = jax.vmap(lambda m, z, x: m.log_prob(z, x))(kind(scales, np.full(3, LOWER), np.full(3, UPPER)), z, x)
    np.testing.assert_allclose(mapped, each, rtol=1e-12)
    slope = jax.grad(lambda x: jnp.sum(mechanism.log_prob(z, x)))(np.array([LOWER, 0.2, UPPER]))
    assert np.isfinite(slope).all()
    # single precision rounds a bound off the domain
    tenth = kind(0.5, 0.0, 0.1)
    release = ldp.Release(np.array([0.1, 0.05], np.float32), tenth)
    assert release.values[0] == 0.1
    release = ldp.Release(z, mechanism)
    release.save(tmp_path / "r.npz")
    assert ldp.Release.load(tmp_path / "r.npz").mechanism == mechanism
    assert mechanism_from_spec(json.loads(json.dumps(mechanism.spec()))) == mechanism
    assert "epsilon between" in mechanism.guarantee.statement()
    for make, message in (
        (lambda: ldp.Release([0.1, 2.5], kind(0.5, LOWER, UPPER)), r"from -1 to 2; 1 values .* \(2.5\) at 1"),
        (lambda: ldp.Release([0.1, np.nan], kind(0.5, LOWER, UPPER)), "must be finite; 1 are not"),
        (lambda: kind(0.0, LOWER, UPPER), "scale must be positive"),
        (lambda: kind(0.5, 1.0, 1.0), "lower must be below upper"),
        (lambda: kind(np.ones(3), np.zeros(2), 1.0), "scale, lower and upper must broadcast"),
        (lambda: kind(0.5, LOWER, UPPER).randomize(jax.random.key(0), [np.nan]), "x must be a number"),
        (lambda: kind(0.5, LOWER, UPPER).moments(0.1), "has no formula for the moments"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


CURVES = {"laplace": stats.laplace, "gaussian": stats.norm}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CURVES)
@pytest.mark.parametrize(("width", "step"), [(1.0, 1.0), (5.0, 5.0), (5.0, 1.0), (30.0, 4.0), (30.0, 0.1), (3.0, 2.9)])
def test_no_pair_of_inputs_is_told_better_than_the_curve_says(kind, width, step):
    """All tests z < t of all pairs on a grid; those of the ends of the domain are exact."""
    law, curve = CURVES[kind], BoundedDomainTradeoff(kind, width, step)
    epsilon, t = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 9.0]), np.linspace(0, width, 6001)
    found, largest = np.zeros(len(epsilon)), 0.0
    for x in np.linspace(0, width - step, 101 if step < width else 1):
        inside = [law.cdf(width - at) - law.cdf(-at) for at in (x, x + step)]
        p, q = ((law.cdf(t - at) - law.cdf(-at)) / mass for at, mass in zip((x, x + step), inside, strict=True))
        found = np.maximum(found, (p - np.exp(epsilon)[:, None] * q).max(axis=1))
        largest = max(largest, law.logpdf(-x) - law.logpdf(-x - step) - np.log(inside[0] / inside[1]))
    stated = curve.delta(epsilon)
    assert np.all(stated >= found - 1e-14)
    assert curve.epsilon(0.0) == pytest.approx(largest, rel=1e-9)
    assert curve.delta(curve.epsilon(0.0)) == 0
    alpha = np.linspace(0.0, 1.0, 41)
    assert np.all(curve(alpha)[:, None] >= 1 - stated - np.exp(epsilon) * alpha[:, None] - 1e-9)
    for delta in (1e-9, 1e-3, 0.1):
        assert curve.delta(curve.epsilon(delta)) <= delta * (1 + 1e-9)
    if step == width:
        np.testing.assert_allclose(stated, found, rtol=1e-5, atol=1e-14)
