"""What several releases promise together, and what one of many personal budgets does."""

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.mechanisms import AdditiveMechanism
from ldpbayes.mechanisms.protocol import Promise, statements

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
