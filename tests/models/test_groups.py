"""Group means are sampled well whatever the groups say, in coordinates that change no posterior."""

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import HMC, MCMC, Predictive, util

import ldpbayes as ldp
from ldpbayes.inference.result import dataset
from ldpbayes.models import hierarchical

NAMES = ["mu", "tau", "sigma", "theta"]


def regions(count, tau, seed):
    """Sketches of 8 regions with epsilon from 0.3 to 4 and so many records each."""
    rng, sketches = np.random.default_rng(seed), []
    for epsilon in np.geomspace(0.3, 4.0, 8):
        x = np.clip(rng.normal(rng.normal(0.5, tau), 1.5, count), -5, 5)
        mechanism = ldp.LaplaceMechanism(float(epsilon), -5, 5)
        sketches.append(ldp.Release(x + rng.laplace(0, 10 / epsilon, count), mechanism).sketch())
    return sketches


@pytest.mark.slow
@pytest.mark.parametrize(("count", "tau"), [(24_000, 1.0), (3_000, 0.1), (100, 1.0), (24_000, 0.03)])
def test_chains_mix_whether_regions_are_large_or_small_and_far_apart_or_alike(count, tau):
    # The chains are a function of the seed. Were all 11 numbers independent and normal, R-hat would be above 1.01 for
    # one of them with about one seed in ten.
    posterior = ldp.fit(
        hierarchical(), regions(count, tau, 1), seed=1, num_warmup=500, num_samples=500, progress_bar=False
    )
    draws = dataset(posterior["posterior"])
    for name in NAMES:
        assert float(az.rhat(draws[[name]])[name].max()) <= 1.01
        for method in ("bulk", "tail"):
            assert float(az.ess(draws[[name]], method=method)[name].min()) >= 400


MECHANISMS = [
    ldp.LaplaceMechanism(1.0, 0, 20),
    ldp.LaplaceMechanism(np.linspace(0.5, 2.0, 40), 0, 20),
    ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, 0, 20),
    ldp.RPWithPrior(1.0, (0, 20), 5.0),
]
"""Of one budget, of one a record, with atoms, and without unbiased values."""


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(each, marks=[pytest.mark.slow] * (i in (0, 3))) for i, each in enumerate(MECHANISMS)],
    ids=["one budget", "budgets", "atoms", "biased"],
)
def test_coordinates_change_no_density_under_any_mechanism_of_numbers(mechanism, x64):
    """The potential in unconstrained space is minus the density of the values there times the map's volume."""
    x = np.random.default_rng(0).integers(3, 12, (2, 40)).astype(float)
    randomize = jax.jit(mechanism.randomize)
    releases = [ldp.Release(np.asarray(randomize(jax.random.key(i), x[i])), mechanism) for i in range(2)]
    at = {"mu": 4.0, "tau": np.log(1.5), "sigma": np.log(2.0), "theta": np.array([0.4, -0.7])}
    model = hierarchical()
    sketched = [[release.sketch() for release in releases]] if mechanism.batch_shape == () else []
    for data in (releases, *sketched):

        @jax.jit
        def densities(at, data=data):
            def constrained(eta):
                return util.constrain_fn(model, (data,), {}, at | {"theta": eta})["theta"]

            potential = jax.value_and_grad(lambda u: util.potential_energy(model, (data,), {}, u))(at)
            volume = jnp.linalg.slogdet(jax.jacobian(constrained)(at["theta"]))[1] + np.log(1.5 * 2.0)
            values = {"mu": 4.0, "tau": 1.5, "sigma": 2.0, "theta": constrained(at["theta"])}
            return *potential, util.log_density(model, (data,), {}, values)[0] + volume

        potential, slopes, density = densities(at)
        assert abs(potential + density) < 1e-9
        assert all(np.all(np.isfinite(slope)) for slope in jax.tree.leaves(slopes))


@pytest.mark.slow
def test_numpyros_own_sampler_and_predictions_of_other_data_know_the_group_means(x64):
    data = regions(100, 1.0, 0)[5:]
    kernel = HMC(hierarchical(), num_steps=5, trajectory_length=None)  # which compiles sooner than NUTS
    mcmc = MCMC(kernel, num_warmup=50, num_samples=20, progress_bar=False)
    mcmc.run(jax.random.key(0), data, extra_fields=("potential_energy",))
    samples = mcmc.get_samples()

    def potential(values):
        there = util.unconstrain_fn(hierarchical(), (data,), {}, values)
        return util.potential_energy(hierarchical(), (data,), {}, there)

    sampled = mcmc.get_extra_fields()["potential_energy"]
    assert np.allclose(jax.jit(jax.vmap(potential))(samples), sampled, rtol=1e-9)
    plans = [ldp.Release(None, ldp.LaplaceMechanism(8.0, -50, 50), 2000)] * 3
    drawn = jax.jit(Predictive(hierarchical(), samples))(jax.random.key(1), plans)["z"]
    means = drawn.reshape(20, 3, 2000).mean(axis=2)
    # A mean of 2,000 records has a standard deviation of √(σ² + 2 · 12.5²) / √2000 < 0.42; five of these are 2.1.
    assert np.all(np.abs(means - samples["theta"]) < 2.1)
