"""What a fit has for ArviZ beyond draws: names of axes, labels, replicated data, log-likelihoods."""

import json

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import NUTS, Predictive, init_to_median

import ldpbayes as ldp
from ldpbayes.inference import _predict
from ldpbayes.inference._predict import released
from ldpbayes.inference.density import Density, Site
from ldpbayes.inference.result import labels
from ldpbayes.models import warner

MECHANISM = ldp.RandomizedResponse(1.0)
COUNT = 300
SHORT = {"num_warmup": 30, "num_samples": 40, "num_chains": 2, "progress_bar": False}


def model(frame, release):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("region", 2):
        level = numpyro.sample("level", dist.Normal(0, 1))
    north = (frame["region"] == "north").astype(int)
    ldp.observe("z", dist.Bernoulli(logits=level[north] + frame[["age", "income"]] @ slopes), release)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    columns = {"age": rng.normal(size=COUNT), "income": rng.integers(0, 3, COUNT)}
    return pd.DataFrame(columns | {"region": rng.choice(["north", "south"], COUNT)}, index=np.arange(COUNT)[::-1])


@pytest.fixture(scope="module")
def fitted(frame):
    release = ldp.Release(np.random.default_rng(1).integers(0, 2, COUNT), MECHANISM)
    with pytest.warns(ldp.inference.ConvergenceWarning):
        return release, ldp.fit(
            model,
            frame,
            release,
            init_strategy=init_to_median,
            dims={"slopes": ["covariate"], "z": ["person"]},
            coords={"covariate": ["age", "income"], "region": ["south", "north"]},
            posterior_predictive=True,
            log_likelihood=True,
            **SHORT,
        )


def test_axes_have_the_names_and_labels_that_were_given_or_those_of_plates(fitted):
    _, result = fitted
    slopes, level = (result["posterior"][name] for name in ("slopes", "level"))
    assert slopes.dims == ("chain", "draw", "covariate") and list(slopes["covariate"].values) == ["age", "income"]
    assert level.dims == ("chain", "draw", "region") and list(level["region"].values) == ["south", "north"]
    for group in ("posterior_predictive", "log_likelihood"):
        assert result[group]["z"].dims == ("chain", "draw", "person")


def test_the_log_likelihood_is_that_of_each_record(fitted, frame):
    release, result = fitted
    slopes, level = (np.asarray(result["posterior"][name]) for name in ("slopes", "level"))
    covariates = frame[["age", "income"]].to_numpy()
    north = (frame["region"] == "north").to_numpy().astype(int)
    share = 1 / (1 + np.exp(-(level[..., north] + slopes @ covariates.T)))
    keep = np.e / (1 + np.e)
    yes = keep * share + (1 - keep) * (1 - share)
    expected = np.log(np.where(release.values == 1, yes, 1 - yes))
    np.testing.assert_allclose(np.asarray(result["log_likelihood"]["z"]), expected, rtol=1e-10)
    assert np.isfinite(az.loo(result).elpd if hasattr(az.loo(result), "elpd") else az.loo(result).elpd_loo)


def test_replicated_data_follow_the_law_of_released_values_at_each_draw(fitted):
    release, result = fitted
    replicated = np.asarray(result["posterior_predictive"]["z"])
    probability = np.exp(np.asarray(result["log_likelihood"]["z"]))
    yes = np.where(release.values == 1, probability, 1 - probability)
    spread = np.sqrt(np.sum(yes * (1 - yes)))
    assert set(np.unique(replicated)) == {0, 1}
    assert abs(np.sum(replicated - yes)) < 4 * spread  # given the draws all are independent: error rate 6e-5
    assert not np.array_equal(replicated[0, 0], replicated[0, 1])


def test_generated_groups_are_of_evenly_spaced_draws_where_there_is_no_room_for_all(monkeypatch, frame, fitted):
    release, whole = fitted
    monkeypatch.setattr(_predict, "MAX_BYTES_OF_A_GROUP", 8 * COUNT * 2 * 5)
    with pytest.warns(ldp.inference.ConvergenceWarning):
        result = ldp.fit(model, frame, release, init_strategy=init_to_median, log_likelihood=True, **SHORT)
    some = result["log_likelihood"]["z"]
    picked = np.linspace(0, 39, 5).astype(int)
    np.testing.assert_array_equal(some["draw"], picked)
    np.testing.assert_allclose(some, np.asarray(whole["log_likelihood"]["z"])[:, picked], rtol=1e-12)
    monkeypatch.setattr(_predict, "MAX_BYTES_OF_A_GROUP", 100)
    with pytest.raises(
        ValueError, match=r"log_likelihood would take 0\.0 GiB for each draw; give the model fewer records"
    ):
        ldp.fit(model, frame, release, log_likelihood=True)


def test_sketches_are_replicated_record_by_record_and_have_no_log_likelihood_of_records():
    mechanism = ldp.LaplaceMechanism(1.0, -5, 5)
    sketch = ldp.Release(np.linspace(-30, 30, 500), mechanism).sketch()
    result = ldp.fit(mean_alone, sketch, posterior_predictive=True, **SHORT)
    assert result["posterior_predictive"]["z"].shape == (2, 40, 500)
    np.testing.assert_array_equal(result["observed_data"]["z"], np.linspace(-30, 30, 500))  # and not nodes
    with pytest.raises(ValueError, match="a sketch has none; pass log_likelihood=release"):
        ldp.fit(mean_alone, sketch, log_likelihood=True)
    grouped = ldp.Release(np.arange(20) % 2, MECHANISM).sketch(by=np.arange(20) // 10)
    with pytest.raises(ValueError, match="posterior_predictive needs each record's law, which a CountSketch of groups"):
        ldp.fit(lambda data: ldp.observe("z", two_shares(), data), grouped, posterior_predictive=True)


def mean_alone(data):
    ldp.observe("z", dist.Normal(numpyro.sample("mean", dist.Normal(0, 1)), 5.0), data)


def two_shares():
    with numpyro.plate("region", 2):
        return dist.Bernoulli(numpyro.sample("theta", dist.Uniform()))


@pytest.mark.parametrize(
    ("dims", "coords", "message"),
    [
        ({"slope": ["covariate"]}, {}, "dims has the site 'slope', but the sites of the model are slopes, level, z"),
        ({"slopes": "covariate"}, {}, "dims of 'slopes' must be a list of names"),
        ({"slopes": ["a", "b"]}, {}, r"at most one for each axis of \(2,\)"),
        ({}, {"covariate": ["age"]}, "coords has the axis 'covariate', but the model has the axes region"),
        ({}, {"region": ["a", "b", "c"]}, "coords of 'region' must be 2 labels, one for each place on this"),
    ],
)
def test_names_and_labels_that_do_not_fit_raise_before_anything_runs(frame, fitted, dims, coords, message):
    with pytest.raises(ValueError, match=message):
        ldp.fit(model, frame, fitted[0], dims=dims, coords=coords)


def test_a_kernel_that_has_been_made_takes_no_other_start(frame, fitted):
    with pytest.raises(ValueError, match="init_strategy: pass a kernel class"):
        ldp.fit(model, frame, fitted[0], kernel=NUTS(model), init_strategy=init_to_median)
    with pytest.raises(ValueError, match="target_accept_prob and max_tree_depth: pass a kernel class"):
        ldp.fit(model, frame, fitted[0], kernel=NUTS(model), target_accept_prob=0.9, max_tree_depth=3)
    with pytest.raises(ValueError, match="target_accept_prob must be a number between 0 and 1, exclusive, got 80"):
        ldp.fit(model, frame, fitted[0], target_accept_prob=80)
    with pytest.raises(ValueError, match="max_tree_depth must be an integer of at least 1, got 0"):
        ldp.fit(model, frame, fitted[0], max_tree_depth=(0, 10))
    for dense in (["slopes"], "slopes", [("slope",)]):
        with pytest.raises(ValueError, match=r"dense_mass must be True, False or tuples of \[.*'slopes'\], got"):
            ldp.fit(model, frame, fitted[0], dense_mass=dense)


def test_predictive_takes_a_converted_frame_as_fit_does(fitted, frame):
    release, result = fitted
    samples = {name: np.asarray(result["posterior"][name])[0, :4] for name in ("slopes", "level")}
    args = ldp.data.arrays_of_frames((frame, ldp.Release(None, release.mechanism, COUNT)))
    drawn = Predictive(model, samples)(jax.random.key(0), *args)["z"]
    assert drawn.shape == (4, COUNT) and set(np.unique(drawn)) == {0, 1}


def test_plates_are_no_sites_with_axes(fitted):
    with pytest.raises(ValueError, match="sites of the model are a"):
        labels({"p": ["x"]}, None, {"p": _site([], ()), "a": _site(["p"], (3,))})


def _site(dims, shape):
    return Site(True, False, dims, True, shape=shape)


def test_mechanisms_of_a_privatized_model_that_is_given_values_are_kept_with_the_posterior():
    def ordinary(y=None):
        share = numpyro.sample("share", dist.Uniform())
        with numpyro.plate("people", 40):
            numpyro.sample("y", dist.Bernoulli(share), obs=y)

    release = ldp.Release(np.arange(40) % 2, MECHANISM)
    with pytest.raises(
        TypeError, match=r"site 'y' observes a Release: .* privatize\(model, {'y': release.mechanism}\)"
    ):
        ldp.fit(ordinary, release)
    for observed in (release.values, release):
        result = ldp.fit(ldp.privatize(ordinary, {"y": MECHANISM}), observed, **SHORT)
        assert result.attrs["privacy"] == MECHANISM.guarantee.statement()
        assert json.loads(result.attrs["mechanisms"]) == [MECHANISM.spec()]


def test_released_values_are_found_again_in_sketches_that_have_them():
    counts = ldp.Release(np.arange(30) % 2, MECHANISM).sketch()
    found = released(Density(None, (counts, [counts]), {}))
    assert [np.bincount(each.values).tolist() for each in (found.args[0], *found.args[1])] == [[15, 15]] * 2
    panels = ldp.Release(np.linspace(-30, 30, 500), ldp.LaplaceMechanism(1.0, -5, 5)).sketch(keep_records=False)
    assert released(Density(None, (panels,), {})) is None


def test_calls_that_cannot_be_meant_are_named():
    sketch = ldp.Release(np.arange(20) % 2, MECHANISM).sketch()
    with pytest.raises(TypeError, match=r"'num_sample'; the model is model\(release\); fit has an option num_samples"):
        ldp.fit(warner(), sketch, num_sample=10)
    with pytest.raises(TypeError, match=r"too many positional arguments; the model is model\(release\)"):
        ldp.fit(warner(), sketch, sketch)

    def ordinary(x, y=None):
        numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)) + x, 1), obs=y)

    private = ldp.privatize(ordinary, {"y": ldp.LaplaceMechanism(1.0, -5, 5)})
    with pytest.raises(ValueError, match="site 'y' is privatized, but observes no values: give the model the released"):
        ldp.fit(private, np.zeros(9))
    with pytest.raises(ValueError, match=r"site 'y': observed values of shape \(5,\) do not fit laws of shape \(9,\)"):
        ldp.fit(private, np.zeros(9), np.zeros(5))


def test_a_sketch_is_fitted_and_the_log_likelihood_is_that_of_its_release():
    release = ldp.Release(np.linspace(-30, 30, 500), ldp.LaplaceMechanism(1.0, -5, 5))
    result = ldp.fit(mean_alone, release.sketch(), log_likelihood=release, **SHORT)
    mean = result["posterior"]["mean"].values
    with jax.enable_x64(True):
        at = jax.jit(lambda mean: ldp.Privatized(dist.Normal(mean, 5.0), release.mechanism).log_prob(release.values))
        expected = np.asarray(at(mean[1, 3]))
    np.testing.assert_allclose(result["log_likelihood"]["z"].values[1, 3], expected, rtol=1e-9)  # rounding
    other = ldp.Release(release.values[:400], release.mechanism)
    for data, wrong in ((release.sketch(), other), (release, release)):
        with pytest.raises(ValueError, match="log_likelihood must be the release from which the only sketch was made"):
            ldp.fit(mean_alone, data, log_likelihood=wrong, **SHORT)
