"""The sampler: one program serves all data of a structure, draws do not depend on how it is run, progress is shown."""

import os
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS, init_to_value

import ldpbayes as ldp
from ldpbayes.inference import chains as chains_module
from ldpbayes.inference import compiled_programs as programs
from ldpbayes.inference.approximations.panels import SKETCH_ADVICE, faster
from ldpbayes.inference.chains import Bar, Chains, Sampling
from ldpbayes.inference.density import Density

Y = np.random.default_rng(0).normal(1.0, 2.0, 50)
START = {"mu": 0.3, "sigma": 1.5}


def model(y, weight):
    mu, sigma = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("sigma", dist.Gamma(2, 1))
    numpyro.deterministic("twice", 2 * mu)
    with numpyro.handlers.scale(scale=weight):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


ONE = np.ones(1)  # weight of a value


@jax.jit
def keys_of(numbers):
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(numbers)


def chains(*data, kernel=NUTS, method="parallel", count=2, model=model, warmup=20, **options):
    data = data or (Y, ONE)
    kernel = kernel(model, **options)
    sampling = Sampling(kernel, 0, warmup, 10, count, method)
    return Chains(lambda _: Density(model, data, {}), sampling, keys_of(np.arange(count)))


@pytest.fixture
def compiled(monkeypatch):
    """How many programs are compiled."""
    count = []
    original = programs.Program.__init__

    def counting(self, *args, **kwargs):
        count.append(args[0])
        original(self, *args, **kwargs)

    monkeypatch.setattr(programs.Program, "__init__", counting)
    return count


@pytest.fixture(scope="module")
def first():
    """Draws of two chains: positions and statistics of 20 + 10 iterations."""
    with jax.enable_x64(True):
        several = chains()
        return several.run(20), several.run(10)


def test_vectorised_chains_draw_what_threads_draw(x64, first):
    for name, together in chains(method="vectorized").run(20)[0].items():
        # rounding grows by a factor e an iteration at worst: after ten it is 1e-16 · 2e4, of values near 1
        np.testing.assert_allclose(together[:, :10], first[0][0][name][:, :10], rtol=1e-9, atol=1e-9)


def test_with_very_many_records_chains_start_downhill(x64, monkeypatch):
    """Each value stands for ten million records: 20 iterations would not bring a chain to where the posterior is."""

    expected = {"mu": Y.mean(), "sigma": np.log(Y.std())}
    for steep, method, near in (
        (chains_module.STEEP_START_NATS, "parallel", True),
        (chains_module.STEEP_START_NATS, "vectorized", True),
        (np.inf, "parallel", False),
    ):
        monkeypatch.setattr(chains_module, "STEEP_START_NATS", steep)
        positions, _ = chains(Y, 1e7 * ONE, method=method).run(20)
        away = max(np.max(np.abs(positions[name][:, -1] - value)) for name, value in expected.items())
        assert (away < 1e-3) == near  # of the posterior, whose standard deviations are 1e-4, or not yet


@pytest.mark.slow
def test_chains_vectorised_over_several_devices_draw_what_threads_draw(first, tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import jax, numpy as np; import test_chains as t\n"
        "with jax.enable_x64(True):\n"
        "    several = t.chains(method='vectorized')\n"
        "    np.savez(sys.argv[2], **several.run(20)[0])\n"
        "assert len(several._states[0].z['mu'].sharding.device_set) == 2\n"
    )
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    file = tmp_path / "draws.npz"
    subprocess.run([sys.executable, "-c", script, os.path.dirname(__file__), file], check=True, env=environment)
    for name, together in np.load(file).items():
        # rounding grows by a factor e an iteration at worst: after ten it is 1e-16 · 2e4, of values near 1
        np.testing.assert_allclose(together[:, :10], first[0][0][name][:, :10], rtol=1e-9, atol=1e-9)


def test_a_chain_does_not_depend_on_how_many_there_are_and_compiles_nothing_anew(x64, first, compiled):
    alone = chains(count=1)
    positions, statistics = alone.run(20)
    np.testing.assert_array_equal(positions["mu"], first[0][0]["mu"][:1])
    np.testing.assert_array_equal(statistics["energy"], first[0][1]["energy"][:1])
    assert not compiled


def test_other_data_of_the_same_structure_compile_nothing_anew(x64, first, compiled):
    positions, _ = chains(Y + 3, ONE).run(20)
    assert not compiled
    assert positions["mu"][:, 10:].mean() > first[0][0]["mu"][:, 10:].mean() + 1


def test_blocks_of_any_length_go_on_where_the_last_ended(x64, first):
    several = chains()
    parts = [several.run(n)[0]["mu"] for n in (1, 13, 6, 10)]
    np.testing.assert_array_equal(np.concatenate(parts, 1), np.concatenate([run[0]["mu"] for run in first], 1))


def test_options_of_a_kernel_count(x64):
    options = {"step_size": 1e-9, "adapt_step_size": False, "dense_mass": True, "max_tree_depth": 2}
    several = chains(init_strategy=init_to_value(values=START), **options)
    positions, statistics = several.run(20)
    np.testing.assert_allclose(positions["mu"][:, 0], START["mu"], atol=1e-6)
    assert np.all(statistics["num_steps"] == 3)  # trees of depth 2 that never turn
    assert several._states[0].adapt_state.inverse_mass_matrix[("mu", "sigma")].shape == (2, 2)


def test_hmc_goes_the_same_way(x64):
    _, statistics = chains(kernel=HMC, num_steps=3, trajectory_length=None).run(10)
    assert np.all(statistics["num_steps"] == 3)


@pytest.mark.slow
def test_a_model_that_decides_by_its_data_is_compiled_again_and_right(x64, compiled):
    def deciding(y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        likelihood = dist.Normal(mu, 1.0) if y.mean() > 0 else dist.Normal(-mu, 1.0)
        numpyro.sample("y", likelihood, obs=y)

    positions = {}
    for sign in (1, -1):
        positions[sign] = chains(sign * Y, model=deciding).run(20)[0]["mu"]
        assert compiled
        compiled.clear()
    # of the second model and data the posterior is the first's: the mean of Y, with standard error 1/√50
    for draws in positions.values():
        assert abs(draws[:, 10:].mean() - Y.mean()) < 4 / np.sqrt(50)  # error rate below 1e-4, even for dependent draws


@pytest.mark.slow
def test_a_model_of_other_shapes_is_compiled_again_and_right(x64, compiled):
    positions, _ = chains(np.concatenate([Y, Y + 20]), ONE).run(20)
    assert compiled
    assert positions["mu"][:, 10:].mean() > 5


def test_an_array_that_the_caller_changes_between_fits_is_read_anew(x64, compiled):
    covariate = np.ones(50)

    def closing(y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        numpyro.sample("y", dist.Normal(mu * covariate, 1.0), obs=y)

    before = chains(10 + Y, model=closing).run(20)[0]["mu"]
    compiled.clear()
    covariate[:] = 2.0
    after = chains(10 + Y, model=closing).run(20)[0]["mu"]
    assert not compiled
    np.testing.assert_allclose(after[:, 15:].mean(), before[:, 15:].mean() / 2, atol=0.5)  # ten against five


def test_a_model_fitted_from_two_threads_at_once_gives_each_its_own(x64, first):
    results = {}

    def fit(shift):
        with jax.enable_x64(True):
            results[shift] = chains(Y + shift, ONE).run(20)[0]["mu"]

    threads = [threading.Thread(target=fit, args=(shift,)) for shift in (0.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results[0.0], first[0][0]["mu"])
    np.testing.assert_array_equal(results[3.0], chains(Y + 3, ONE).run(20)[0]["mu"])


def test_deterministic_sites_come_with_the_samples(x64, first):
    samples = chains().constrained(first[1][0])
    np.testing.assert_allclose(samples["twice"], 2 * samples["mu"])
    np.testing.assert_allclose(samples["sigma"], np.exp(first[1][0]["sigma"]))


def test_a_density_that_is_finite_nowhere_is_refused_in_numpyros_words(x64):
    def impossible(y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        numpyro.factor("never", mu - np.inf)

    with pytest.raises(RuntimeError, match="Cannot find valid initial parameters"):
        chains(Y, model=impossible).run(1)


def test_an_interrupt_ends_a_fit_and_its_threads():
    ldp.fit(
        model, Y, ONE, chain_method="threads", num_warmup=20, num_samples=4, num_chains=2, progress_bar=False
    )  # compiled
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ldp.fit(
            model, Y, ONE, chain_method="threads", num_warmup=20, num_samples=10**7, num_chains=2, progress_bar=False
        )
    timer.join()
    deadline = time.monotonic() + 60  # generous: what is claimed is that they end
    while any(thread.name.startswith("ldpbayes") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- progress -------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Seconds, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr(chains_module.time, "monotonic", lambda: now[0])
    return now


def lines(bar, clock, seconds, per_second, each=5):
    """Show a bar every few seconds while so many iterations are made in each."""
    for _ in range(0, seconds, each):
        clock[0] += each
        bar.add(each * per_second, 3 * each * per_second, 0.02 * each * per_second)
        bar.show()


def test_a_file_has_a_line_now_and_then_and_early_how_long_it_takes(clock, capsys):
    bar = Bar(8000, True, faster="A sketch is faster.")
    clock[0] += 10
    bar.show()
    lines(bar, clock, seconds=600, per_second=5)
    bar.close()
    assert capsys.readouterr().err.splitlines() == [
        "sampling: 0 of 8,000 after 10 s, compiling",
        # 25 iterations in 5 s, and 50 when this is said: 7,950 others at five a second
        "ldpbayes: sampling may take another 26 minutes. A gradient takes 6.67 ms. A sketch is faster.",
        "sampling: 50 of 8,000 after 20 s, about 26 min left",
        "sampling: 150 of 8,000 after 40 s, about 26 min left",
        "sampling: 350 of 8,000 after 80 s, about 26 min left",
        "sampling: 750 of 8,000 after 3 min, about 24 min left",
        "sampling: 1,550 of 8,000 after 5 min, about 22 min left",
    ]


def test_a_short_fit_says_nothing_to_a_file_and_one_without_a_bar_never_does(clock, capsys):
    short, hidden = Bar(400, True, faster="..."), Bar(8000, False, faster="...")
    lines(short, clock, seconds=5, per_second=80)
    short.close()
    lines(hidden, clock, seconds=600, per_second=5)
    hidden.close()
    assert capsys.readouterr().err == ""


def test_a_study_counts_replicates_and_is_not_told_that_it_takes_long(clock, capsys):
    study = Bar(100, True, 2000, desc="study", unit=" replicates", initial=10)
    lines(study, clock, seconds=20, per_second=2000)
    # 5 replicates a step: 20 after 10 s, of which 15 were there when the rate was first measured, and 30 after 20 s
    assert capsys.readouterr().err.splitlines() == [
        "study: 20 of 100 after 10 s, about 80 s left",
        "study: 30 of 100 after 20 s, about 70 s left",
    ]


def test_a_sketch_is_advised_where_there_is_one():
    numbers, answers = ldp.LaplaceMechanism(1.0, 0, 1), ldp.RandomizedResponse(np.array([1.0, 2.0]))
    rows = ldp.ZeroInflatedLaplaceMechanism(0.2, 0.5, 0, 1, 2)
    for mechanism, value, advice in [
        (numbers, 0.5, SKETCH_ADVICE),
        (ldp.LaplaceMechanism(np.array([1.0, 2.0]), 0, 1), 0.5, ""),
        (answers, 1, SKETCH_ADVICE),
        (rows, [0.5, 0.5], ""),
    ]:
        release = ldp.Release(np.array([value, value]), mechanism)
        assert faster(Density(None, (release,), {})) == advice
        if advice:
            assert release.sketch().size == 2
            assert faster(Density(None, (release.sketch(),), {})) == ""
