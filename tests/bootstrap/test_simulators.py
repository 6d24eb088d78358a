import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ldpbayes as ldp
from ldpbayes.bootstrap import simulator_of

MECHANISM = ldp.LaplaceMechanism(epsilon=2.0, lower=-3, upper=3)


def simulated(simulator, params, seed=0):
    """What a simulator makes, by one compiled function."""
    return np.asarray(jax.jit(lambda seed, params: simulator(jax.random.key(seed), params))(seed, params))


def regression(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(slope * x, sigma), obs=y)


def test_a_model_of_a_release_simulates_released_values():
    simulator = simulator_of(ldp.models.clipped_gaussian(), ldp.Release(None, MECHANISM, 20_000))
    z = simulated(simulator, {"mu": 0.5, "sigma": 0.1})
    # noise of scale 3, so variance 18: means are within 4 standard errors but once in 16,000 seeds
    assert z.shape == (20_000,)
    assert abs(z.mean() - 0.5) < 4 * (18.01 / 20_000) ** 0.5
    assert z.var() == pytest.approx(18.01, rel=0.1)


def test_values_of_a_release_are_not_used():
    given = ldp.Release(np.full(5, 1.0), MECHANISM)
    model = ldp.models.clipped_gaussian()
    params = {"mu": 0.5, "sigma": 0.1}
    other = simulator_of(model, ldp.Release(None, MECHANISM, 5))
    np.testing.assert_array_equal(simulated(simulator_of(model, given), params), simulated(other, params))


def test_an_ordinary_model_simulates_records_at_its_public_covariates():
    x = np.linspace(-1, 1, 50)
    params = {"slope": 2.0, "sigma": 1e-9}
    for arguments in ((x,), (x, np.zeros(50))):  # observed data are replaced
        np.testing.assert_allclose(simulated(simulator_of(regression, *arguments), params), 2 * x, atol=1e-6)


def test_other_draws_come_from_other_keys_and_many_at_a_time():
    simulator = simulator_of(regression, np.linspace(-1, 1, 4))

    @jax.jit
    def three(seed):
        keys = jax.random.split(jax.random.key(seed), 3)
        return jax.vmap(lambda key: simulator(key, {"slope": 2.0, "sigma": 1.0}))(keys)

    made = np.asarray(three(0))
    assert made.shape == (3, 4)
    assert len(np.unique(made)) == 12


def test_a_site_can_be_named():
    def two(count):
        loc = numpyro.sample("loc", dist.Normal(0, 1))
        numpyro.sample("a", dist.Normal(loc, 1).expand([count]))
        numpyro.sample("b", dist.Normal(loc + 5, 1e-9))

    params = {"loc": 1.0, "a": np.zeros(3)}
    assert simulated(simulator_of(two, 3, site="b"), params) == pytest.approx(6.0, abs=1e-5)
    with pytest.raises(ValueError, match="which site has the data"):
        simulated(simulator_of(two, 3), {"loc": 1.0})


def test_what_does_not_fit_is_named():
    x, key = np.zeros(4), jax.random.key(0)
    with pytest.raises(TypeError, match="must be a NumPyro model"):
        simulator_of(3)
    with pytest.raises(ValueError, match="no sample site 'q'; its sites are slope, sigma, y"):
        simulator_of(regression, x, site="q")
    simulator = simulator_of(regression, x, x)
    with pytest.raises(ValueError, match=r"from values of shapes .*'sigma': \(\)\}, got .*'intercept': \(\)\}"):
        simulator(key, {"slope": 1.0, "sigma": 1.0, "intercept": 0.0})
    with pytest.raises(ValueError, match=r"'slope': \(\), 'sigma': \(\)\}, got \{'slope': \(\)\}"):
        simulator(key, {"slope": 1.0})
    with pytest.raises(ValueError, match=r"shapes \{'slope': \(\), .*, got \{'slope': \(2,\)"):
        simulator(key, {"slope": np.ones(2), "sigma": 1.0})
    with pytest.raises(ValueError, match=r"'y' is simulated from .*, got .*'y': \(4,\)\}"):
        simulator(key, {"slope": 1.0, "sigma": 1.0, "y": x})
    with pytest.raises(ValueError, match="a dict from names of sites to values"):
        simulator(key, np.ones(2))
    with pytest.raises(ValueError, match="a sketch cannot be simulated"):
        simulator_of(ldp.models.clipped_gaussian(), ldp.Release(np.zeros(5), MECHANISM).sketch())
