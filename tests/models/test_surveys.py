"""Models of people who do not answer as they are told: likelihoods, estimators, calibration and identification."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import ldpbayes as ldp
from ldpbayes import mechanisms, models
from ldpbayes.mechanisms import Noncompliance, mechanism_from_spec

PEOPLE = 600
GROUP = np.arange(PEOPLE) % 2
P = np.where(GROUP, 0.7, 0.2)
FORCED = mechanisms.ForcedResponse([np.where(GROUP, 0.1, 0.3), np.where(GROUP, 0.4, 0.1)])
ANCHORED = mechanisms.Crosswise(0.25), mechanisms.Crosswise(0.15)


def of_truth(rng, share, of_no, of_yes):
    """Answers yes, with these probabilities if the truth is no and if it is yes."""
    truth = rng.random(PEOPLE) < share
    return truth, (rng.random(PEOPLE) < np.where(truth, of_yes, of_no)).astype(int)


def cheating(rng, yes, no, _):
    """Honest yes; honest no, who say yes if the device says so; people who say no to all."""
    u = rng.random(PEOPLE)
    z = np.where(u < yes, 1, (u < yes + no) & (rng.random(PEOPLE) < P))
    return ldp.Release(z.astype(int), mechanisms.Triangular(P))


def lying(rng, share, honesty):
    _, z = of_truth(rng, share, 1 - P, honesty)
    return ldp.Release(z, mechanisms.Mangat(P))


def refusing(rng, share, refusers):
    no, yes = FORCED.forced
    _, z = of_truth(rng, share, yes, 1 - no)
    return ldp.Release(z * (rng.random(PEOPLE) >= refusers), FORCED)


def inattentive(rng, share, attentive):
    careful, random = rng.random(PEOPLE) < attentive, rng.integers(0, 2, (2, PEOPLE))
    first, second = of_truth(rng, share, 0.75, 0.25)[1], of_truth(rng, 0.0, 0.85, 0.15)[1]
    answers = np.where(careful, first, random[0]), np.where(careful, second, random[1])
    return [ldp.Release(z, design) for z, design in zip(answers, ANCHORED, strict=True)]


# the model, what simulates its data, and its sites
MODELS = {
    "cheating_detection": (models.cheating_detection(), cheating, ["shares"]),
    "stochastic_lie_detector": (models.stochastic_lie_detector(), lying, ["theta", "honesty"]),
    "always_no": (models.always_no(), refusing, ["theta", "share"]),
    "anchored_crosswise": (models.anchored_crosswise(), inattentive, ["theta", "attentive"]),
}


def log_likelihood(model, data, values):
    with jax.enable_x64(True):
        values = {name: jnp.asarray(value) for name, value in values.items()}
        trace = numpyro.handlers.trace(numpyro.handlers.substitute(model, values)).get_trace(data)
        observed = [site for site in trace.values() if site["type"] == "sample" and site["is_observed"]]
        return float(sum(jnp.sum(site["fn"].log_prob(site["value"])) for site in observed))


@pytest.mark.slow
def test_likelihoods_are_sums_over_kinds_of_people():
    rng = np.random.default_rng(0)
    pi, other = 0.3, 0.6
    cases = {
        "cheating_detection": ({"shares": [0.3, 0.5, 0.2]}, lambda z: np.where(z, 0.3 + 0.5 * P, 0.2 + 0.5 * (1 - P))),
        "stochastic_lie_detector": (
            {"theta": pi, "honesty": other},
            lambda z: np.where(z, pi * other + 0.7 * (1 - P), pi * (1 - other) + 0.7 * P),
        ),
        "always_no": (
            {"theta": pi, "share": other},
            lambda z: np.abs(1 - z - 0.4 * (pi * (1 - FORCED.forced[0]) + 0.7 * FORCED.forced[1])),
        ),
    }
    for name, (values, probability) in cases.items():
        model, simulate, _ = MODELS[name]
        release = simulate(rng, 0.3, 0.5, 0.2) if name == "cheating_detection" else simulate(rng, 0.3, 0.5)
        expected = np.log(probability(release.values)).sum()
        assert log_likelihood(model, release, values) == pytest.approx(expected, rel=1e-11)
        parameters = {name: jnp.asarray(value) for name, value in values.items()}
        with jax.enable_x64(True):
            records, counts = (log_density(model, (data,), {}, parameters)[0] for data in (release, release.sketch()))
        np.testing.assert_allclose(counts, records, rtol=1e-11)
    releases = inattentive(rng, 0.3, 0.6)
    a, b = (np.where(release.values, 1.0, -1.0) for release in releases)
    kinds = [0.42 * (0.5 + 0.25 * a) * (0.5 + 0.35 * b), 0.18 * (0.5 - 0.25 * a) * (0.5 + 0.35 * b), 0.4 / 4]
    found = log_likelihood(MODELS["anchored_crosswise"][0], releases, {"theta": 0.3, "attentive": 0.6})
    assert found == pytest.approx(np.log(sum(kinds)).sum(), rel=1e-11)


def moment_estimate(name, data):
    """The estimates of the papers, from the shares of yes in two groups or of two questions."""
    if name == "anchored_crosswise":
        first, second = (release.values.mean() for release in data)
        attentive = (second - 0.5) / (0.5 - 0.15)  # [AS] eq. 5 for an anchor of share 0
        return ((first - (1 - attentive) / 2) / attentive - 0.75) / (2 * 0.25 - 1), attentive
    low, high = (data.values[group == GROUP].mean() for group in (0, 1))
    if name == "cheating_detection":  # [CD]
        no = (high - low) / 0.5
        return low - 0.2 * no, no
    share = 1 - (low - high) / 0.5  # [MME]
    return share, (low - (1 - share) * 0.8) / share


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cheating_detection", "stochastic_lie_detector", "anchored_crosswise"])
def test_posterior_means_are_near_the_published_estimators(name):
    """Flat priors: at 600 people the posterior mean is within a standard deviation, nearly always far less."""
    model, simulate, sites = MODELS[name]
    data = simulate(np.random.default_rng(2), *[0.3, 0.5, 0.2] if name == "cheating_detection" else [0.35, 0.8])
    posterior = ldp.fit(model, data, progress_bar=False).posterior
    draws = [posterior[site].values.reshape(4000, -1) for site in sites]
    draws = np.concatenate(draws, axis=1)[:, :2]
    assert np.all(np.abs(draws.mean(0) - moment_estimate(name, data)) < 0.5 * draws.std(0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ldpbayes.data.ReleaseWarning")  # many who ignore a design are impossible under it
@pytest.mark.parametrize("name", MODELS)
def test_intervals_are_calibrated_on_200_data_sets(name):
    """Truths are drawn from the prior: 80 % intervals hold them in a 99 % band of a binomial of 200 (exact law)."""
    model, simulate, sites = MODELS[name]
    held = []
    for seed in range(200):
        rng = np.random.default_rng([3, seed])
        truth = rng.dirichlet(np.ones(3)) if name == "cheating_detection" else rng.random(2)
        posterior = ldp.fit(model, simulate(rng, *truth), progress_bar=False, seed=seed).posterior
        draws = np.concatenate([posterior[site].values.reshape(4000, -1) for site in sites], axis=1)
        low, high = np.quantile(draws, [0.1, 0.9], axis=0)
        held.append((low < truth) & (truth < high))
    low, high = stats.binom.interval(1 - 0.01 / np.shape(held)[1], 200, 0.8)
    assert np.all((np.sum(held, axis=0) >= low) & (np.sum(held, axis=0) <= high)), np.sum(held, axis=0)


def test_one_design_does_not_identify_who_ignores_it():
    z = np.arange(PEOPLE) % 3 == 0
    proportional = mechanisms.Kuk(np.where(GROUP, 0.2, 0.4), np.where(GROUP, 0.4, 0.8))  # a factor explains all
    for design in (mechanisms.Triangular(0.2), ldp.RandomizedResponse(1.0), proportional):
        for model in (models.always_no(), models.cheating_detection(), models.stochastic_lie_detector()):
            with pytest.raises(ValueError, match="does not identify who ignores it"):
                ldp.fit(model, ldp.Release(z.astype(int), design))
    model, release = models.anchored_crosswise(), ldp.Release(z.astype(int), mechanisms.Crosswise(0.2))
    with pytest.raises(ValueError, match="answers to a question and to its anchor, got 1"):
        ldp.fit(model, [release])
    # answers at random are not those of people with a random truth if a forced answer is more often yes than no
    with pytest.raises(ValueError, match="symmetric designs, such as Crosswise, got Triangular"):
        ldp.fit(model, [release, ldp.Release(z.astype(int), mechanisms.Triangular(0.2))])


@pytest.mark.parametrize("anchor", [-0.1, 0.5, 2.0, np.nan])
def test_an_anchor_has_a_share_that_shows_who_is_attentive(anchor):
    releases = [ldp.Release(GROUP, mechanisms.Crosswise(0.2))] * 2
    with pytest.raises(ValueError, match="anchor must be a share in \\[0, 1\\] other than 1/2"):
        ldp.fit(models.anchored_crosswise(anchor=anchor), releases)


@pytest.mark.slow
def test_the_anchored_crosswise_model_agrees_with_published_output():
    """R's cWise prints, of 2,000 people with p = p' = 0.15, a naive estimate of 0.195, which 1,427 equal answers have,
    an attentive rate of 0.7729, which 1,541 have, and the estimate 0.1054 ± 0.0208. It does not print how often both
    answers are equal: here as often as the model expects.
    """
    design, cells = mechanisms.Crosswise(0.15), [1133, 294, 408, 165]
    releases = [ldp.Release(np.repeat(answers, cells), design) for answers in ([1, 1, 0, 0], [1, 0, 1, 0])]
    posterior = ldp.fit(models.anchored_crosswise(), releases, same_people=True, progress_bar=False).posterior
    found = [float(posterior["theta"].mean()), float(posterior["theta"].std()), float(posterior["attentive"].mean())]
    np.testing.assert_allclose(found, [0.1054, 0.0208, 0.7729], atol=0.002)  # a tenth of the standard error


def test_people_who_ignore_a_design_mix_its_matrix_with_their_answers(tmp_path):
    design = mechanisms.ForcedResponse([0.1, 0.2, 0.1])
    mixed = Noncompliance(design, 0.25, [0.5, 0.5, 0.0])
    np.testing.assert_allclose(mixed.matrix, 0.75 * design.matrix + 0.25 * np.array([0.5, 0.5, 0.0]), atol=1e-15)
    by_truth = Noncompliance(design, [0.0, 0.5, 1.0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(by_truth.matrix[[0, 2]], [design.matrix[0], [1.0, 0.0, 0.0]], atol=1e-15)
    assert mechanism_from_spec(by_truth.spec()) == by_truth
    denied = Noncompliance(mechanisms.Crosswise(0.2), [0.0, 0.5], [1.0, 0.0])  # by people with the trait only
    assert denied.guarantee.epsilon(0.0) == pytest.approx(np.log(0.8 / 0.1))
    assert mixed.guarantee.epsilon(0.0) == design.guarantee.epsilon(0.0) > 0
    personal = Noncompliance(mechanisms.Crosswise(P), 0.25, [0.5, 0.5])
    assert personal.batch_shape == (PEOPLE,) and personal.matrix.shape == (PEOPLE, 2, 2)
    release = ldp.Release(GROUP, personal)
    release.save(tmp_path / "z.npz")
    assert ldp.Release.load(tmp_path / "z.npz").mechanism == personal
    assert ldp.frequencies(release).estimate.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((ldp.OptimalUnaryEncoding(1.0, 2), 0.1, [1, 0]), TypeError, "or RandomizedResponse"),
        ((mechanisms.Crosswise(0.2), 1.1, [1, 0]), ValueError, "share must be in"),
        ((mechanisms.Crosswise(0.2), 0.1, [0.9, 0]), ValueError, "answers must be rows of probabilities"),
        ((mechanisms.Crosswise(0.2), 0.1, [1, 0, 0]), ValueError, "must have shapes"),
        ((mechanisms.Crosswise(0.2), [0.1] * 3, [1, 0]), ValueError, "must have shapes"),
    ],
)
def test_bad_parameters_of_noncompliance(arguments, error, message):
    with pytest.raises(error, match=message):
        Noncompliance(*arguments)
