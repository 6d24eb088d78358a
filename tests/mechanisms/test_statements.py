"""What several releases promise together, and what one of many personal budgets does."""

import numpy as np
import pytest

import ldpbayes as ldp
from ldpbayes import noise
from ldpbayes.mechanisms import AdditiveMechanism
from ldpbayes.mechanisms.protocol import statements

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
    assert statements([mechanism]) == mechanism.guarantee.statement()
