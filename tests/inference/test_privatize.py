"""`privatize` inside NumPyro's own machinery."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density as uncompiled_log_density
from scipy import stats

import ldpbayes as ldp

LAPLACE = ldp.LaplaceMechanism(1.0, -5, 5)
RESPONSE = ldp.RandomizedResponse(1.0)
GROUP = np.repeat(np.arange(4), 25)


def log_density(model, data, values):
    return float(jax.jit(lambda at: uncompiled_log_density(model, (data,), {}, at)[0])(values))


@jax.jit
def log_prob(law, z):
    return law.log_prob(z)


def schools(y=None):
    """An ordinary model, written without us: a hierarchical prior, plates, an observed site y."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("records", 100):
        return numpyro.sample("y", dist.Normal(theta[GROUP], 1.5), obs=y)


def schools_by_hand(z, mu, tau, theta):
    """The log density of the privatized model, by the trapezoidal rule."""
    prior = stats.norm.logpdf(mu, 0, 5) + stats.halfnorm.logpdf(tau, 0, 2) + stats.norm.logpdf(theta, mu, tau).sum()
    x = np.linspace(-5, 5, 20_001)
    law = stats.norm(theta, 1.5)
    noise = np.exp(-np.abs(z[:, None] - x) / 10.0) / 20.0  # (records, nodes)
    trapezoid = np.r_[0.5, np.ones(len(x) - 2), 0.5] * (x[1] - x[0])
    inside = np.sum(noise * trapezoid * law.pdf(x[:, None]).T[GROUP], axis=1)
    below, above = law.cdf(-5.0)[GROUP], law.sf(5.0)[GROUP]
    return prior + np.log(inside + below * noise[:, 0] + above * noise[:, -1]).sum()


PARAMETERS = {"mu": 0.3, "tau": 1.2, "theta": np.array([-1.0, 0.2, 4.0, 1.0])}


@functools.cache
def released():
    return simulated()


def simulated(*plan):
    with jax.enable_x64(True):
        draw = jax.jit(Predictive(ldp.privatize(schools, {"y": LAPLACE}), num_samples=1))
        return np.asarray(draw(jax.random.key(0), *plan)["y"][0])


def test_a_privatized_model_has_the_density_of_the_one_written_by_hand(x64):
    z = released()
    private = log_density(ldp.privatize(schools, {"y": LAPLACE}), z, PARAMETERS)
    by_hand = schools_by_hand(z, **PARAMETERS)
    # the trapezoidal rule's relative error is at most h²·f''/12·range ≈ (5e-4)²/12·(1/1.5² + 1/10)·10 < 2e-7 a record
    assert abs(private - by_hand) < 100 * 2e-7


def test_a_privatized_model_shows_the_model_and_its_mechanisms():
    private = ldp.privatize(schools, {"y": LAPLACE}, panels=8)
    assert repr(private) == f"privatize(schools, {{'y': {LAPLACE!r}}}, panels=8)"


def test_observe_says_the_same_as_privatize(x64):
    z = released()

    def model(release):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfNormal(2))
        with numpyro.plate("groups", 4):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        ldp.observe("y", dist.Normal(theta[GROUP], 1.5), release)

    observed = log_density(model, ldp.Release(z, LAPLACE), PARAMETERS)
    private = log_density(ldp.privatize(schools, {"y": LAPLACE}), z, PARAMETERS)
    assert np.isclose(observed, private, rtol=1e-13)


def test_scale_and_mask_keep_working(x64):
    z = released()
    keep = np.arange(100) < 60

    def weighted(y):
        theta = numpyro.sample("mu", dist.Normal(0, 5))
        with numpyro.handlers.scale(scale=2.0), numpyro.plate("records", 100):
            numpyro.sample("y", dist.Normal(theta, 1.5).mask(keep), obs=y)

    private = log_density(ldp.privatize(weighted, {"y": LAPLACE}), z, {"mu": 0.5})
    expected = 2.0 * log_prob(ldp.Privatized(dist.Normal(0.5, 1.5), LAPLACE), z[keep]).sum()
    assert np.isclose(private, expected + stats.norm.logpdf(0.5, 0, 5), rtol=1e-12)


def test_an_event_site_is_privatized_elementwise(x64):
    z = np.array([0.5, -3.0, 9.0])

    def vector(y):
        numpyro.sample("y", dist.Normal(np.array([0.0, 1.0, 2.0]), 1.0).to_event(1), obs=y)

    private = log_density(ldp.privatize(vector, {"y": LAPLACE}), z, {})
    law = ldp.Privatized(dist.Normal(np.array([0.0, 1.0, 2.0]), 1.0), LAPLACE)
    assert np.isclose(private, log_prob(law, z).sum())


def test_predictive_simulates_releases_whose_moments_are_the_privatized_laws():
    draws = Predictive(
        ldp.privatize(schools, {"y": LAPLACE}),
        posterior_samples={k: np.stack([v] * 500) for k, v in PARAMETERS.items()},
    )
    y = np.asarray(jax.jit(draws)(jax.random.key(1))["y"])
    assert y.shape == (500, 100)
    law = ldp.Privatized(dist.Normal(PARAMETERS["theta"][GROUP], 1.5), LAPLACE)
    mean, variance = jax.jit(lambda law: (jnp.mean(law.mean), jnp.mean(law.variance)))(law)
    assert abs(y.mean() - mean) < 4 * np.sqrt(variance / y.size)  # error rate 6e-5; the seed is fixed


def ordinary(y):
    """A share and answers, in a plate, without us."""
    share = numpyro.sample("share", dist.Beta(1, 1))
    with numpyro.plate("people", 6):
        numpyro.sample("y", dist.Bernoulli(share), obs=y)


ANSWERS = np.array([0, 1, 1, 0, 1, 0])
BAD = [
    (RESPONSE, ANSWERS + 1, r"integers in 0..1 under RandomizedResponse; 3 are not, the first \(2\) at 1"),
    (RESPONSE, ANSWERS - 0.5, r"integers in 0..1 under RandomizedResponse; 6 are not, the first \(-0.5\) at 0"),
    (RESPONSE, np.where(ANSWERS == 1, np.nan, 0.0), r"must be finite; 3 are not, the first \(nan\) at 1"),
    (
        ldp.HadamardResponse(1.0, 2),
        ANSWERS + 3,
        r"integers in 0..3 under HadamardResponse; 3 are not, the first \(4\) at 1",
    ),
    (ldp.OptimalUnaryEncoding(1.0, 2), np.eye(2)[ANSWERS] * 2, r"releases bits, 0 or 1; 6 of 6 rows"),
    (
        ldp.SubsetSelection(1.0, 2, 1),
        np.ones((6, 2), int),
        r"releases sets of 1 categories; 6 of 6 rows have another size",
    ),
    (
        ldp.LocalHashing(1.0, 2, 2),
        np.stack([ANSWERS, ANSWERS * 2], axis=1),
        r"with hash an integer from 0 to 1; 3 are not",
    ),
    (
        ldp.OptimalUnaryEncoding([np.inf] * 6, 2),
        np.ones((6, 2), int),
        "infinite budget must be released as itself, with one bit set",
    ),
    (LAPLACE, np.where(ANSWERS == 1, np.inf, 0.0), r"must be finite; 3 are not, the first \(inf\) at 1"),
    (ldp.SymmetricLaplaceMechanism([0.0] * 6, 0, 1), ANSWERS * 3.0, "they must be between the bounds"),
]


@pytest.mark.parametrize(("mechanism", "values", "message"), BAD, ids=lambda value: getattr(value, "name", None))
def test_observed_values_are_refused_with_the_words_of_a_release_wherever_they_are_seen(mechanism, values, message):
    """At a privatized site, at one that a user privatized by hand, given through a handler, in a trace, by `fit`."""

    def by_hand(y):
        law = ldp.Privatized(dist.Bernoulli(numpyro.sample("share", dist.Beta(1, 1))), mechanism)
        numpyro.sample("y", law.expand([6]), obs=y)

    private, at = ldp.privatize(ordinary, {"y": mechanism}), {"share": 0.5}
    with pytest.raises(ValueError, match=message):
        ldp.Release(values, mechanism)
    with pytest.raises(ValueError, match=f"site 'y': .*{message}"):
        uncompiled_log_density(private, (values,), {}, at)
    with pytest.raises(ValueError, match=f"site 'y': .*{message}"):
        numpyro.handlers.trace(numpyro.handlers.condition(private, {"y": values, **at})).get_trace(None)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda share: uncompiled_log_density(by_hand, (values,), {}, {"share": share})[0])(0.5)
    for model in (private, by_hand):
        with pytest.raises(ValueError, match=f"site 'y': .*{message}"):
            ldp.fit(model, values, progress_bar=False)


def test_values_that_a_mask_hides_may_be_anything():
    hidden, keep = np.where(ANSWERS == 1, np.nan, 0.0), ANSWERS == 0

    def masked(y, keep):
        with numpyro.plate("groups", 2, dim=-2), numpyro.plate("people", 6), numpyro.handlers.mask(mask=keep):
            numpyro.sample("y", dist.Bernoulli(0.3), obs=y)

    def event(y, keep):
        with numpyro.plate("groups", 2):
            numpyro.sample("y", dist.Bernoulli(np.full(6, 0.3)).to_event(1).mask(keep), obs=y)

    def total(model, *data):
        return uncompiled_log_density(ldp.privatize(model, {"y": RESPONSE}), data, {}, {})[0]

    rows = np.stack([np.zeros(6), hidden])
    cases = [
        ((masked, hidden, keep), 2),
        ((masked, hidden, np.array([[True], [False]]) & keep), 1),
        ((masked, hidden, False), 0),
        ((event, rows, np.array([True, False])), 2),
    ]
    one = 3 * np.log(0.7 * np.e / (1 + np.e) + 0.3 / (1 + np.e))  # no three times
    found = jax.jit(lambda: [total(*case) for case, _ in cases])()
    assert np.array(found) == pytest.approx([times * one for _, times in cases])
    with pytest.raises(ValueError, match=r"must be finite; 3 are not, the first \(nan\) at 1"):
        total(masked, hidden, True)
    with pytest.raises(ValueError, match="must be finite; 3 are not"):
        total(event, rows, np.array([False, True]))


def test_values_that_are_traced_are_let_pass():
    private = ldp.privatize(ordinary, {"y": RESPONSE})
    density = jax.jit(lambda y: uncompiled_log_density(private, (y,), {}, {"share": 0.5})[0])
    assert np.isfinite(density(ANSWERS + 1))  # nobody can say so there


def test_a_privatized_model_says_once_what_speaks_against_its_data():
    private = ldp.privatize(schools, {"y": LAPLACE})
    far = np.where(np.arange(100) < 50, 400.0, 0.0)
    with pytest.warns(
        ldp.data.ReleaseWarning, match="site 'y': .*50 of 100 lie 395 or more above the upper bound 5"
    ) as said:
        for _ in range(3):
            numpyro.handlers.trace(numpyro.handlers.seed(private, 0)).get_trace(far)
    assert private.doubts == tuple(str(warning.message) for warning in said) and len(said) == 1


def test_svi_finds_the_optimum_of_the_privatized_model():
    model = ldp.privatize(ordinary, {"y": RESPONSE})
    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.05), Trace_ELBO())
    losses = jax.jit(lambda key: svi.run(key, 300, np.ones(6, int), progress_bar=False).losses)(jax.random.key(0))
    assert np.all(np.isfinite(losses))
    assert np.mean(losses[-50:]) < np.mean(losses[:50])


def test_a_misspelt_site_is_an_error_that_lists_the_sites():
    private = ldp.privatize(schools, {"x": LAPLACE})
    with (
        pytest.raises(ValueError, match=r"no sample site 'x'; its sites are mu, tau, theta, y"),
        numpyro.handlers.seed(rng_seed=0),
    ):
        private(np.zeros(100))


def test_privatize_and_observe_take_mechanisms_and_releases_only():
    with pytest.raises(TypeError, match=r"site 'y' must be an ldpbayes mechanism, got 1\.0"):
        ldp.privatize(schools, {"y": 1.0})
    with pytest.raises(TypeError, match="site 'z': observe takes a Release or a Sketch, or a sequence of them, got nd"):
        ldp.observe("z", dist.Normal(0, 1), np.zeros(3))


def test_a_privatized_model_takes_a_release_where_it_observes_an_array(x64):
    z, private = released(), ldp.privatize(schools, {"y": LAPLACE})
    assert log_density(private, ldp.Release(z, LAPLACE), PARAMETERS) == log_density(private, z, PARAMETERS)
    np.testing.assert_array_equal(simulated(ldp.Release(None, LAPLACE, 100)), z)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (lambda z: ldp.Release(z, LAPLACE).sketch(), TypeError, "'y' observes a PanelSketch, .*pass the release"),
        (
            lambda z: ldp.Release(z, ldp.LaplaceMechanism(2.0, -5, 5)),
            ValueError,
            r"privatize has LaplaceMechanism\(epsilon=1.0.*release has LaplaceMechanism\(epsilon=2.0",
        ),
    ],
    ids=["sketch", "another mechanism"],
)
def test_a_privatized_model_refuses_what_is_not_its_release(data, error, message):
    with pytest.raises(error, match=message):
        numpyro.handlers.seed(ldp.privatize(schools, {"y": LAPLACE}), 0)(data(released()))
    with pytest.raises(TypeError, match="'y' observes a release, but privatize is given no mechanism for it"):
        numpyro.handlers.seed(ldp.privatize(schools, {"mu": LAPLACE}), 0)(ldp.Release(released(), LAPLACE))


@pytest.mark.parametrize(
    ("mechanisms", "message"),
    [
        (LAPLACE, r'dict .* as in privatize\(model, {"y": mechanism}\), got LaplaceMechanism'),
        ([("y", LAPLACE)], "must be a dict"),
        ({"y": ldp.LaplaceMechanism}, "site 'y' .* got <class .*LaplaceMechanism"),
        ({"y": "laplace"}, "site 'y' .* got 'laplace'"),
        ({"y": ldp.Release([0.5], LAPLACE)}, r"site 'y' .* got Release\("),
    ],
)
def test_privatize_names_its_form_where_it_gets_another(mechanisms, message):
    with pytest.raises(TypeError, match=message):
        ldp.privatize(schools, mechanisms)
