"""Laws that are narrow beside the panels of a channel, against closed forms and adaptive quadrature."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

import ldpbayes as ldp
from ldpbayes.inference import LikelihoodWarning
from ldpbayes.likelihood import latent
from ldpbayes.mechanisms import AdditiveMechanism
from ldpbayes.noise import FromDensity
from tests.programs import constant, evaluate, log_prob

pytestmark = pytest.mark.usefixtures("x64")
LOWER, UPPER = -5.0, 5.0
LAPLACE = ldp.LaplaceMechanism(1.0, LOWER, UPPER)
REACH = 10.0  # of the uniform noise
WIDTHS = np.array([0.04, 0.02, 1e-3, 1e-6])  # standard deviations, where a panel is 0.25 wide


def box(noise):
    return jnp.where(jnp.abs(noise) <= 1, -jnp.log(2.0), -jnp.inf)


def under_uniform_noise():
    return AdditiveMechanism(FromDensity(box, REACH, breaks=(-1.0, 1.0)), LOWER, UPPER)


def log_density_under_uniform_noise(z, centre, width):
    """Log [P(x ≤ z + r) − P(x ≤ z − r)]/(2 r), for a normal law far inside the bounds, by its smaller tail."""
    a, b = (z - REACH - centre) / width, (z + REACH - centre) / width
    near, far = np.where(a > 0, a, -b), np.where(a > 0, b, -a)
    low = special.log_ndtr(-near)
    return low + np.log1p(-np.exp(special.log_ndtr(-far) - low)) - np.log(2 * REACH)


CENTRE = 0.3
STEPS = WIDTHS[:, None] * np.array([-8.0, -3.0, -0.4, 0.0, 1.0, 6.0])  # of the noise's ends from the centre
Z = np.concatenate([CENTRE + REACH + STEPS, CENTRE - REACH + STEPS, np.tile(np.linspace(-9.0, 9.0, 60), (4, 1))], 1)


def density(law, mechanism, z):
    return ldp.Privatized(law, mechanism).log_prob(z)


@functools.cache
def densities_under_uniform_noise():
    """For all widths: JAX traces nothing, the laws, laws of one record each, or all of one law at a time."""
    uniform = AdditiveMechanism(FromDensity(box, REACH, breaks=(-1.0, 1.0)), LOWER, UPPER)
    laws, rows = (dist.Normal(np.full(shape, CENTRE), WIDTHS[:, None]) for shape in ((4, 1), Z.shape))
    return [
        evaluate(density, constant(laws), constant(uniform), constant(Z)),
        evaluate(density, laws, constant(uniform), constant(Z)),
        evaluate(density, rows, constant(uniform), Z),
        [log_prob(dist.Normal(CENTRE, width), uniform, z) for width, z in zip(WIDTHS, Z, strict=True)],
    ]


@pytest.mark.parametrize("case", range(len(WIDTHS)))
def test_uniform_noise_takes_nothing_from_a_law_that_is_narrow_beside_the_bounds(case):
    # Rounding of z − r moves the end of the noise by 2e-15, up to 2e-9 widths, times a slope of at most 8 a width.
    # Beyond 20 nats, 8 nodes do not resolve all of the tail behind the end of the noise.
    expected = log_density_under_uniform_noise(Z[case], CENTRE, WIDTHS[case])
    likely = expected > -20
    for log_probs in densities_under_uniform_noise():
        np.testing.assert_allclose(log_probs[case][likely], expected[likely], rtol=0, atol=1e-6)
        np.testing.assert_allclose(log_probs[case][~likely], expected[~likely], rtol=0, atol=2e-3)


NARROW = {
    "student": (lambda: dist.StudentT(2.5, 1.03, 0.004), stats.t(2.5, 1.03, 0.004)),
    "gamma": (lambda: dist.Gamma(400.0, 300.0), stats.gamma(400.0, scale=1 / 300.0)),
    "log-normal": (lambda: dist.LogNormal(0.2, 0.003), stats.lognorm(0.003, scale=np.exp(0.2))),
    "gumbel": (lambda: dist.Gumbel(-2.0, 0.002), stats.gumbel_r(-2.0, 0.002)),
}


SHORT = ("student", "gamma")  # on the whole line, and on half of it; the others, which are computed alike, are slow


@pytest.mark.parametrize("law", [pytest.param(n, marks=() if n in SHORT else pytest.mark.slow) for n in NARROW])
def test_narrow_laws_without_a_closed_form_agree_with_adaptive_quadrature(law):
    """Eight nodes in panels that are four times as far apart as the panel before take a power to 1e-8."""
    make, reference = NARROW[law]
    middle, scale = reference.median(), float(LAPLACE.scale)
    z = np.array([-20.0, middle - 0.1, middle, middle + 1e-3, 30.0])

    def expected(z):
        ends = np.unique(
            np.clip([LOWER, *reference.ppf([1e-9, 1e-4, 0.1, 0.5, 0.9, 1 - 1e-4]), z, UPPER], LOWER, UPPER)
        )
        options = {"epsabs": 0, "epsrel": 1e-11, "limit": 200}
        parts = [
            integrate.quad(lambda x: reference.pdf(x) * np.exp(-abs(z - x) / scale), a, b, **options)[0]
            for a, b in itertools.pairwise(ends)
        ]
        ends = reference.cdf(LOWER) * np.exp(-abs(z - LOWER) / scale) + reference.sf(UPPER) * np.exp(
            -abs(z - UPPER) / scale
        )
        return np.log((sum(parts) + ends) / (2 * scale))

    with np.errstate(over="ignore"):
        values = [expected(each) for each in z]
    np.testing.assert_allclose(log_prob(make(), LAPLACE, z), values, rtol=0, atol=1e-8)


METHODS = ("quadrature", "closed_form")


@pytest.mark.parametrize("room", [None, 5000])
def test_quadrature_and_its_gradient_are_those_of_the_closed_form_whatever_the_width_and_the_place(room, monkeypatch):
    if room:
        monkeypatch.setattr(latent, "NODES_AT_ONCE", room)  # panels are then integrated in groups
    centres = np.repeat([-30.0, -5.0, -4.999, 0.0, 0.124, 4.2, 5.01], 6)
    widths = np.tile([1e-7, 1e-3, 0.05, 0.3, 2.0, 50.0], 7)
    z = np.linspace(-30.0, 30.0, 42)

    def log_density(parameters, method):
        log_prob = ldp.Privatized(dist.Normal(*parameters), LAPLACE, method=method).log_prob(z)
        return log_prob.sum(), log_prob

    both = jax.jit(lambda p: [jax.value_and_grad(log_density, has_aux=True)(p, how) for how in METHODS])
    ((_, ours), slopes), ((_, exact), exact_slopes) = both((centres, widths))
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2e-9)
    # A derivative by a width's logarithm has the relative error of the integral.
    for mine, theirs in zip(slopes, exact_slopes, strict=True):
        np.testing.assert_allclose(mine * widths, theirs * widths, rtol=0, atol=1e-7)


def narrow(release, scale):
    mean = numpyro.sample("mean", dist.LogNormal(0.5, 0.3))
    numpyro.deterministic("rate", 1 / mean)
    ldp.observe("z", dist.Gamma((mean / scale) ** 2, mean / scale**2), release)


@pytest.mark.parametrize("scale, share", [(0.02, 1.0), (0.5, 0.0)])
def test_fit_warns_of_laws_that_the_panels_of_many_records_do_not_resolve(scale, share):
    z = np.random.default_rng(0).laplace(1.5, 2.5, 100)
    release = ldp.Release(z, ldp.LaplaceMechanism(4.0, LOWER, UPPER))
    chains = {"num_warmup": 30, "num_samples": 30, "num_chains": 1, "progress_bar": False}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = ldp.fit(narrow, release, np.array(scale), **chains)
    messages = [str(each.message) for each in caught if issubclass(each.category, LikelihoodWarning)]
    assert posterior.attrs["narrow_share"] == share
    assert len(messages) == int(share) and all("at 100% of posterior draws" in message for message in messages)


@pytest.mark.parametrize(
    "law, at",
    [
        (lambda b: dist.Uniform(0.2, b), 0.7),
        pytest.param(lambda t: dist.Pareto(t, 3.0), 0.1, marks=pytest.mark.slow),
        (lambda t: dist.TruncatedNormal(0.3, 0.2, low=t), 0.6),
    ],
    ids=["uniform", "pareto", "truncated"],
)
def test_gradients_follow_ends_of_the_support_that_are_parameters(law, at):
    released, mechanism = np.array([-0.5, 0.25, 0.77]), ldp.LaplaceMechanism(3.0, 0.0, 1.0)

    def log_density(end):
        return ldp.Privatized(law(end), mechanism).log_prob(released)

    with_slope = jax.jit(lambda end: jax.jvp(log_density, (end,), (1.0,)))
    (above, _), (below, _), (_, slope) = (map(np.asarray, with_slope(at + step)) for step in (1e-5, -1e-5, 0.0))
    # differences with errors of 1e-10 and rounding of 1e-11
    np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-6, atol=1e-6)
