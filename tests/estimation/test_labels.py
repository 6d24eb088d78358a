"""Labels released in two steps, the prior first."""

import numpy as np
import pandas as pd
import pytest

import ldpbayes as ldp
from ldpbayes.estimation import release_labels
from ldpbayes.mechanisms import optimal_half_width

N = 20_000
LABELS = np.random.default_rng(0).beta(2, 8, N)
OPTIONS = {"lower": 0.0, "upper": 1.0}


def test_the_budget_is_split_and_the_prior_is_where_the_labels_are():
    made = release_labels(LABELS, 1.5, lower=0.0, upper=4.0, prior_epsilon=0.5, seed=1)
    mechanism = made.release.mechanism
    assert mechanism.epsilon == 1.0 and made.prior_release.mechanism == ldp.LaplaceMechanism(0.5, 0.0, 4.0)
    assert len(made.release) == len(made.prior_release) == N
    low, high = mechanism.interval
    assert 0 <= low < np.quantile(LABELS, 0.25) and np.quantile(LABELS, 0.75) < high < 2
    assert made.prior.nodes[0] == 0 and made.prior.nodes[-1] == 4
    assert made.prior.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert made.guarantee.unit == "label"
    assert made.guarantee.epsilon(0.0) == pytest.approx(1.5, abs=1e-12)
    # the curve of pure privacy: no false alarm below exp(-epsilon) detects more than exp(epsilon) times as often
    assert made.guarantee.tradeoff(0.05) == pytest.approx(1 - 0.05 * np.exp(1.5), abs=1e-12)
    assert "0.5 went into the prior" in made.privacy and "epsilon = 1.5" in made.privacy


def test_without_a_prior_all_of_the_budget_goes_into_the_labels():
    made = release_labels(LABELS, 1.0, **OPTIONS)
    mechanism = made.release.mechanism
    assert made.prior_release is None and mechanism.epsilon == 1.0 and mechanism.interval == (0.0, 1.0)
    assert mechanism.half_width == optimal_half_width(([0, 1], [1]), 1.0).half_width
    assert made.guarantee.epsilon(0.0) == pytest.approx(1.0, abs=1e-12)
    assert made.privacy == mechanism.guarantee.statement()


@pytest.mark.slow
def test_both_steps_have_randomness_of_their_own_and_repeat_with_the_seed():
    one, same, other = (release_labels(LABELS[:50], 1.0, **OPTIONS, prior_epsilon=0.3, seed=seed) for seed in (0, 0, 1))
    for part in ("release", "prior_release"):
        values = [np.asarray(getattr(made, part).values) for made in (one, same, other)]
        assert values[0].dtype == float and np.array_equal(values[0], values[1])
        assert not np.any(values[0] == values[2])
    # with the mechanism's law as under NumPy: the mean of what is released, five standard errors around it
    made = release_labels(LABELS, 1.0, **OPTIONS)
    unbiased = np.asarray(made.release.mechanism.unbiased(made.release.values))
    assert abs(unbiased.mean() - LABELS.mean()) < 5 * unbiased.std() / np.sqrt(N)


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        ([0.1, np.nan], {}, "labels.*missing"),
        ([], {}, "labels"),
        ([[0.1, 0.2]], {}, "vector"),
        (["a", "b"], {}, "labels"),
        ([0.1], {"epsilon": 0.0}, "epsilon"),
        ([0.1], {"prior_epsilon": 1.0}, "below epsilon"),
        ([0.1], {"prior_epsilon": 2.0}, "below epsilon"),
        ([0.1], {"prior_epsilon": -0.1}, "prior_epsilon"),
        ([0.1], {"lower": 1.0}, "lower must be below upper"),
        ([0.1], {"upper": np.inf}, "upper"),
    ],
)
def test_bad_input_is_refused_before_anything_is_released(labels, options, said):
    with pytest.raises(ValueError, match=said):
        release_labels(labels, **({"epsilon": 1.0} | OPTIONS | options))


def test_text_among_features_is_refused_with_the_line_that_encodes_it():
    frame = pd.DataFrame({"age": [30.0, 40.0, 50.0], "education": ["school", "college", "school"]})
    release = ldp.Release([0.1, 0.5, 0.9], ldp.LaplaceMechanism(1.0, 0, 1))
    for fit in (
        lambda: ldp.estimation.linear_fit(frame, release),
        lambda: ldp.estimation.LabelPrivateRegressor(release.mechanism).fit(frame, release.values),
    ):
        with pytest.raises(ValueError, match=r"pandas.get_dummies\(features, drop_first=True\)"):
            fit()
