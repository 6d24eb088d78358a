"""Simulation-based calibration: calibrated posteriors cover as often as they say, and wrong ones are caught."""

import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes.inference.chains import Bar
from ldpbayes.models import clipped_gaussian, multivariate_normal, oue_histogram, warner
from ldpbayes.studies import CalibrationStudy, ReplicatedFit, sbc
from tests.checkpoints import read, write
from tests.protocols import PROTOCOLS

LAPLACE = ldp.LaplaceMechanism(1.0, -5, 5)
RESPONSE = ldp.RandomizedResponse(1.0)


def answers(least=0.0):
    """A share of yes answers with a uniform prior, which is quick to simulate and to integrate."""
    return warner(dist.Uniform(least, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_clipped_gaussian_intervals_cover_in_the_setting_of_figure_1(epsilon, tmp_path):
    # 200 prior draws, 5,000 records each. For every ε six 99 % bands (two parameters, three levels) are checked, so a
    # calibrated posterior fails with probability of at most 6 % at a random seed; the seed is fixed.
    mechanism = ldp.LaplaceMechanism(epsilon, -5, 5)
    study = sbc(
        clipped_gaussian(),
        ldp.Release(None, mechanism, 5000),
        replicates=200,
        batch=100,
        seed=1,
        checkpoint=tmp_path / "c.npz",
    )
    rows = study.table()
    print("\n".join(str(row) for row in rows))
    assert all(row["inside"] for row in rows)


MIXED = np.resize([0.2, 1.0, 4.0, np.inf], 1000)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, MIXED], ids=["0.5", "1", "mixed"])
@pytest.mark.parametrize("make", PROTOCOLS.values(), ids=PROTOCOLS)
def test_histogram_intervals_cover_in_the_setting_of_figure_10(make, epsilon):
    # 1,000 records of 6 categories, 400 prior draws, central intervals of 50, 70, 90 and 95 %. The 24 bands of a case
    # hold together with probability 99 % or more if the posterior is calibrated: each has error rate 1 % / 24.
    study = sbc(oue_histogram(), ldp.Release(None, make(epsilon, 6), 1000), replicates=400, batch=200, seed=10)
    rows = study.table(levels=(0.5, 0.7, 0.9, 0.95), confidence=1 - 0.01 / 24)
    shares = {
        level: np.mean([row["covered"] for row in rows if row["level"] == level]) for level in (0.5, 0.7, 0.9, 0.95)
    }
    wrong = binomial_band_misses(study)
    print(
        " ".join(f"{level:.0%}: {share:.3f}" for level, share in shares.items()), f"outside 99 % bands: {wrong} of 24"
    )
    assert all(row["inside"] for row in rows)


def binomial_band_misses(study):
    """Number of the 24 counts outside their own 99 % bands."""
    return sum(not row["inside"] for row in study.table(levels=(0.5, 0.7, 0.9, 0.95)))


@pytest.mark.slow
def test_histograms_are_counted_entry_by_entry_and_personal_budgets_kept():
    mechanism = ldp.LocalHashing(np.resize([0.5, np.inf], 60), 3, 2)
    study = sbc(oue_histogram(), ldp.Release(None, mechanism, 60), replicates=4, batch=2, num_warmup=50, num_samples=50)
    assert {name: q.shape for name, q in study.pit.items()} == {f"theta[{i}]": (4,) for i in range(3)}
    assert all(np.all((q >= 0) & (q <= 1)) for q in study.pit.values())


def test_a_study_needs_one_privatized_site():
    def two(release):
        for name in ("a", "b"):
            ldp.observe(name, dist.Normal(numpyro.sample(f"mu_{name}", dist.Normal(0, 1)), 1.0), release)

    with pytest.raises(ValueError, match=r"one privatized site for each release, found \['a', 'b'\]"):
        sbc(two, ldp.Release(None, LAPLACE, 10), replicates=1)


SHORT = {"replicates": 4, "num_warmup": 10, "num_samples": 10, "batch": 2, "seed": 3}


def test_a_study_resumes_from_its_checkpoint_and_refuses_another_ones(tmp_path):
    options = SHORT | {"checkpoint": tmp_path / "study.npz"}
    whole = sbc(answers(), ldp.Release(None, RESPONSE, 100), **options)
    assert {name: q.shape for name, q in whole.pit.items()} == {"theta": (4,)}
    header, half = read(options["checkpoint"])
    half["place theta"][:2] = np.nan  # of the first batch, as if workers had finished the second one before
    half["place theta"][3] = 0.125
    write(options["checkpoint"], header, half | {"finished": np.array(2)})
    resumed = sbc(answers(), ldp.Release(None, RESPONSE, 100), **options)
    assert resumed.pit["theta"][3] == 0.125 / 3  # taken from the file, not computed again
    np.testing.assert_array_equal(resumed.pit["theta"][:3], whole.pit["theta"][:3])
    with pytest.raises(ValueError, match="other settings: count is 100 in the file, 101 in this study; give"):
        sbc(answers(), ldp.Release(None, RESPONSE, 101), **options)
    # or it would return what the other one found
    with pytest.raises(ValueError, match="other settings: the model or its priors are different; g"):
        sbc(answers(0.1), ldp.Release(None, RESPONSE, 100), **options)


def test_central_intervals_are_counted_by_the_truths_quantile():
    study = CalibrationStudy({"mu": np.array([0.01, 0.2, 0.5, 0.76, 0.99])})
    assert study.covered(0.5) == {"mu": 1}
    assert study.covered(0.8) == {"mu": 3}
    assert study.table(levels=[0.95])[0]["covered"] == 0.6


def test_an_interrupt_is_answered_at_once_loses_no_finished_batch_and_leaves_no_lock(tmp_path, monkeypatch, capsys):
    checkpoint, sent = tmp_path / "study.npz", []
    options = SHORT | {"checkpoint": checkpoint}
    shown = Bar.show

    def show(bar):
        shown(bar)
        if bar._count > 2 * 20 and not sent:  # in the second batch
            sent.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Bar, "show", show)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)  # a stderr that is a file has no bar
    with pytest.raises(KeyboardInterrupt, match=r"^2 of 4 replicates are in study.npz; run the same call again"):
        sbc(answers(), ldp.Release(None, RESPONSE, 100), **options)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]
    assert int(read(checkpoint)[1]["finished"]) == 2
    assert "study" in capsys.readouterr().err
    resumed = sbc(answers(), ldp.Release(None, RESPONSE, 100), **options)
    assert "4/4" in (seen := capsys.readouterr().err)
    assert "0/4" not in seen  # the bar begins where the study does
    whole = sbc(answers(), ldp.Release(None, RESPONSE, 100), **options | {"checkpoint": None, "progress_bar": False})
    assert capsys.readouterr().err == ""
    for name, quantiles in whole.pit.items():
        np.testing.assert_array_equal(resumed.pit[name], quantiles)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "nothing is saved: give checkpoint=, a file for the finished batches"),
        ("study.npz", "nothing is saved: the first 2 replicates were not finished; see batch="),
    ],
)
def test_an_interrupt_says_that_nothing_is_saved_where_that_is_so(path, message, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ReplicatedFit, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt, match=message):
        sbc(answers(), ldp.Release(None, RESPONSE, 100), replicates=2, checkpoint=path and tmp_path / path)
    assert not list(tmp_path.iterdir())


def test_a_study_of_a_privatized_model_is_one_of_its_releases(tmp_path):
    def ordinary(y=None):
        share = numpyro.sample("share", dist.Uniform(0, 1))
        numpyro.sample("y", dist.Bernoulli(share).expand([10]), obs=y)

    mechanism = ldp.RandomizedResponse(1.0)
    options = {"replicates": 2, "num_warmup": 5, "num_samples": 5, "checkpoint": tmp_path / "c.npz"}
    study = sbc(ldp.privatize(ordinary, {"y": mechanism}), ldp.Release(None, mechanism, 10), **options)
    assert list(study.pit) == ["share"]
    assert repr(study) == "CalibrationStudy(2 replicates of share)"


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (clipped_gaussian, {}, "no site to sample; call a model factory first"),
        (clipped_gaussian(), {"replicates": 0}, "replicates must be an integer of at least 1, got 0"),
        (clipped_gaussian(), {"batch": 0}, "batch must be an integer of at least 1, got 0"),
        (clipped_gaussian(), {"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
        (clipped_gaussian(), {"thin": 0}, "thin must be an integer of at least 1, got 0"),
        (clipped_gaussian(), {"num_samples": 4}, "thin must be at most num_samples = 4, got 5"),
    ],
)
def test_a_study_that_cannot_be_says_why(model, options, message):
    with pytest.raises(ValueError, match=message):
        sbc(model, ldp.Release(None, LAPLACE, 10), **options)


def test_the_summary_has_a_row_a_parameter_and_marks_what_is_outside_its_band():
    study = CalibrationStudy({"mu": np.linspace(0.005, 0.995, 100), "sigma": np.full(100, 0.01)})
    band, mu, sigma = study.summary(levels=[0.5, 0.95]).splitlines()[-4:-1]
    assert band.split()[0] == "band"
    assert mu.split() == ["mu", "0.500", "0.960", "1"]
    *shares, p = sigma.split()
    assert shares == ["sigma", "0.000*", "0.000*"] and p.endswith("*") and float(p[:-1]) < 1e-12


@pytest.mark.parametrize("n", [20, 200])
def test_p_values_of_uniformity_are_exact(n, rng):
    """The share of uniform samples that are as far away is p: 4 standard errors, wrong once in 16,000 times a case."""
    samples = rng.random((4000, n))
    points = np.arange(1, 100) / 100
    counts = np.sum(samples[:, :, None] <= points, axis=1)
    tails = np.minimum(stats.binom.cdf(counts, n, points), stats.binom.sf(counts - 1, n, points)).min(axis=1)
    order = np.argsort(tails)
    for place in (40, 400, 2000):
        found = CalibrationStudy({"mu": samples[order[place]]}).p_values["mu"]
        share = np.mean(tails <= tails[order[place]] * (1 + 1e-9))
        assert abs(share - found) < 4 * np.sqrt(found * (1 - found) / 4000)


@pytest.mark.parametrize(("n", "confidence"), [(30, 0.9), (1000, 0.99)])
def test_bands_hold_an_empirical_cdf_as_often_as_they_say_or_a_little_more(n, confidence, rng):
    study = CalibrationStudy({"mu": np.linspace(0.01, 0.99, n)})
    points, low, high = study.band(confidence)
    cdfs = np.mean(rng.random((2000, n))[:, :, None] <= points, axis=1)
    share = np.mean(np.all((cdfs >= low - 1e-9) & (cdfs <= high + 1e-9), axis=1))
    error = 4 * np.sqrt(confidence * (1 - confidence) / 2000)  # wrong once in 16,000 times a case
    assert confidence - error < share < confidence + error + 0.03  # cdfs are discrete


def test_ranks_and_pit_values_are_those_that_arviz_draws():
    study = CalibrationStudy({"mu": np.array([0.0, 3.99, 4.2, 9.99]) / 10, "theta[0]": np.full(4, 0.5)}, draws=9)
    assert study.ranks["mu"].tolist() == [0, 3, 4, 9]
    assert {*study.data["prior_sbc"].data_vars} == {*study.data["ranks"].data_vars} == {"mu", "theta[0]"}
    assert study.data["prior_sbc"]["mu"].dims == ("chain", "draw")
    plots = pytest.importorskip("arviz_plots", reason="ArviZ 0.23 does not draw them")
    plots.plot_ecdf_pit(study.data, backend="none")


def test_pit_values_of_cdfs_have_no_ranks():
    with pytest.raises(ValueError, match="PIT values were computed from cdfs"):
        _ = CalibrationStudy({"mu": np.array([0.5])}).ranks


STRONG, NOISIER = (ldp.Release(None, ldp.RandomizedResponse(epsilon), 1000) for epsilon in (2.0, 2.0 / 1.2))
WEAK = ldp.Release(None, ldp.RandomizedResponse(0.1), 1000)  # where the prior matters
WRONG = {
    "nothing": {},
    "naive": {"model": lambda release: naive(release), "simulator": answers()},
    "noise": {"simulator": lambda _: answers()(NOISIER)},
    "prior": {"simulator": answers(0.5)},
}


def naive(release):
    """Released values as if they were original ones."""
    numpyro.sample("z", dist.Bernoulli(numpyro.sample("theta", dist.Uniform(0, 1))), obs=release.values)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_likelihood_noise_or_prior_is_caught(wrong):
    """At a random seed a right model is suspected with probability 1 %; the seed is fixed."""
    options = {"model": answers(), "num_warmup": 100, "num_samples": 100, "replicates": 100, "batch": 100, "seed": 2}
    options |= WRONG[wrong]
    study = sbc(options.pop("model"), STRONG if wrong == "noise" else WEAK, **options, progress_bar=False)
    assert (min(study.p_values.values()) < 0.01) == (wrong != "nothing"), study.summary()


def test_releases_of_groups_and_columns_are_simulated():
    plans = [ldp.Release(None, ldp.RandomizedResponse(epsilon), 40) for epsilon in (1.0, 2.0)]
    options = {"replicates": 2, "num_warmup": 20, "num_samples": 20, "progress_bar": False}

    def groups(releases):
        theta = numpyro.sample("theta", dist.Uniform(0, 1).expand([len(releases)]).to_event(1))
        ldp.observe("z", dist.Bernoulli(theta), releases)

    assert {*sbc(groups, plans, **options).pit} == {"theta[0]", "theta[1]"}

    def model(columns, release):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        ldp.observe("z", dist.Bernoulli(logits=slope * columns["x"]), release)

    columns = {"x": np.linspace(-1, 1, 40)}
    assert {*sbc(model, columns, plans[0], **options).pit} == {"slope"}
    with pytest.raises(ValueError, match="site 'z' simulates 40 values for a release of 1,000"):
        sbc(answers(), STRONG, simulator=lambda _: answers()(plans[0]))
    with pytest.raises(ValueError, match="need a release to simulate"):
        sbc(model, columns, None)


def inside(result, parameters):
    rows = [row for row in result.table(levels=(0.5, 0.95)) if row["parameter"] in parameters]
    assert len(rows) == 2 * len(parameters)
    return [row["inside"] for row in rows]


@pytest.mark.slow
def test_posteriors_of_numbers_and_rows_are_calibrated():
    number = ldp.ZeroInflatedLaplaceMechanism(0.1, 2.0, -2.0, 2.0)
    model = clipped_gaussian(mu=dist.Normal(0, 1), sigma=dist.Gamma(4, 4))
    result = sbc(model, ldp.Release(None, number, 1000), replicates=400, batch=50)
    print(result.table())
    assert all(inside(result, ["mu", "sigma"]))
    rows = ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, -20.0, 20.0, 3)
    model = multivariate_normal(scale=dist.Gamma(4, 4))
    result = sbc(model, ldp.Release(None, rows, 300), replicates=400, batch=50)
    print(result.table())
    names = [f"{name}[{j}]" for name in ("mean", "scale") for j in range(3)]
    assert np.sum(inside(result, names)) >= 11  # one of twelve counts may miss its 99 % band


def test_posteriors_of_rows_can_be_replicated():
    def model(release):
        mean = numpyro.sample("mean", dist.Normal(0, 5).expand([2]).to_event(1))
        numpyro.deterministic("root", jnp.diag(mean).at[0, 0].set(1))
        ldp.observe("z", dist.MultivariateNormal(mean, jnp.eye(2)), release)

    mechanism = ldp.GaussianMechanism(1.0, 1e-5, -20.0, 20.0, 2)
    result = sbc(model, ldp.Release(None, mechanism, 50), replicates=4, num_warmup=20, num_samples=20, batch=2)
    assert result.pit["mean[1]"].shape == (4,) and np.ptp(result.pit["mean[0]"]) > 0
    # the entries of the root that are 1 or 0 whatever the data have no posterior to speak of
    assert [name for name in result.pit if name.startswith("root")] == ["root[1, 1]"]


@pytest.mark.slow
def test_numbers_whose_law_is_too_narrow_for_coarse_panels_have_the_posterior_of_their_records(rng):
    """The error of a mean of 400 draws is a twentieth of their deviation, and that of the deviation 4 %."""
    mechanism = ldp.LaplaceMechanism(50.0, -5, 5)
    data = [ldp.Release(rng.normal(0.3, sd, 200) + rng.laplace(0, 0.2, 200), mechanism) for sd in (2.0, 0.05)]
    ours, theirs = (
        ReplicatedFit(clipped_gaussian(), sketched=sketched, num_samples=400)(jax.random.key(0), data)
        for sketched in (True, False)
    )
    for name in ("mu", "sigma"):
        spread = theirs[name].std(axis=1)
        assert np.all(np.abs(ours[name].mean(axis=1) - theirs[name].mean(axis=1)) < 0.3 * spread)
        np.testing.assert_allclose(ours[name].std(axis=1), spread, rtol=0.25)


def test_numbers_of_two_budgets_have_the_posterior_of_their_records(rng):
    epsilon = np.where(np.arange(200) % 2, 1.0, 3.0)
    mechanism = ldp.LaplaceMechanism(epsilon, -5, 5)
    data = [ldp.Release(rng.uniform(-2, 5, 200) + rng.laplace(0, 10 / epsilon), mechanism) for _ in range(2)]
    options = {"num_warmup": 300, "num_samples": 300}
    ours, theirs = (
        ReplicatedFit(clipped_gaussian(), sketched=sketched, **options)(jax.random.key(0), data)
        for sketched in (True, False)
    )
    for name in ("mu", "sigma"):  # equal random numbers; single trajectories end elsewhere, for rounding errors
        np.testing.assert_allclose(ours[name].mean(axis=1), theirs[name].mean(axis=1), atol=0.5)
