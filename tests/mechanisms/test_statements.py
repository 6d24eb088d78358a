"""What several releases promise together, and what one of many personal budgets does."""

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.mechanisms import AdditiveMechanism
from ldpbayes.mechanisms.protocol import Promise, parts_of, statements

SCALES = np.array([3.0, 8.0, 5.5, 4.0])


@pytest.mark.parametrize(
    "mechanism",
    [
        ldp.DiscreteGaussianMechanism(scale=SCALES, sensitivity=1),
        AdditiveMechanism(noise.Gaussian(SCALES), sensitivity=2.0),
        ldp.LaplaceMechanism(epsilon=SCALES, lower=0, upper=1),
        ldp.RandomizedResponse(SCALES, 4),
        ldp.RandomizedResponse(np.append(SCALES, np.inf), 4),
        ldp.SymmetricLaplaceMechanism(scale=np.append(SCALES, 0.0), lower=0, upper=1),
    ],
)
def test_the_statement_of_personal_parameters_is_that_of_all_of_them(mechanism):
    assert statements([Promise(mechanism)]) == mechanism.guarantee.statement()


@pytest.mark.parametrize("law", [noise.DiscreteLaplace, noise.Gaussian, noise.Laplace])
@pytest.mark.parametrize("sensitivity", [1.0, 3.0])
def test_promises_are_monotone_in_the_scale_of_noise(law, sensitivity):
    guarantee = AdditiveMechanism(law(np.geomspace(0.2, 60, 400)), sensitivity=sensitivity).guarantee
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        assert np.diff(guarantee.delta(epsilon)).max() <= 1e-15  # of probabilities, which are rounded to 1e-16


def test_every_scale_of_discrete_gaussian_noise_counts():
    """Delta at epsilon = 3 is .011 at scale .74 and .013 at .82."""
    scales = np.array([0.74, 0.82, 5.0])
    mechanism = ldp.DiscreteGaussianMechanism(scale=scales, sensitivity=1)
    assert statements([Promise(mechanism)]) == mechanism.guarantee.statement()
    assert mechanism.guarantee.delta(3.0)[1] > mechanism.guarantee.delta(3.0)[0]


def test_budgets_of_releases_about_different_people_are_not_added():
    mechanisms = [ldp.RandomizedResponse(0.7)] * 3 + [ldp.LaplaceMechanism(1.0, 0, 1)]
    answer, number = (each.guarantee.statement() for each in mechanisms[2:])
    heading, *rest = statements(map(Promise, mechanisms), different_people=True).split("\n")
    assert heading == "4 releases about different people. What each promises:"
    assert rest == [f"3 releases, each: {answer}", number]
    assert statements([Promise(mechanisms[0])], different_people=True) == answer
    with pytest.raises(ValueError, match="same_people=True or different_people=True, not both"):
        statements(map(Promise, mechanisms), True, True)


def test_the_promise_of_parts_counts_once_and_is_that_with_the_most_values_about_a_person():
    mechanism = ldp.RandomizedResponse(0.7)
    promises = [part for times in (None, 3, 2) for part in parts_of("chunks", [Promise(mechanism, times)])]
    assert statements(promises) == mechanism.guarantee.composed(3).statement()
    assert statements([*promises, Promise(mechanism)]).startswith("2 releases. Where they are about the same people")
