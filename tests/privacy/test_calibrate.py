"""Gaussian calibration against the exact privacy curve in 80-digit arithmetic."""

import mpmath
import numpy as np
import pytest

from ldpbayes.privacy import gaussian_scale

EPSILONS = [1e-4, 0.01, 1.0, 5.0, 50.0, 700.0]
DELTAS = [1e-300, 1e-12, 1e-5, 0.1, 0.5, 0.999999]


def achieved_delta(scale: float, epsilon: float) -> mpmath.mpf:
    """Balle & Wang (2018), Theorem 8, as printed, at sensitivity one."""
    with mpmath.workdps(80):
        s, e = mpmath.mpf(float(scale)), mpmath.mpf(float(epsilon))

        def cdf(t):
            return mpmath.erfc(-t / mpmath.sqrt(2)) / 2

        return cdf(1 / (2 * s) - e * s) - mpmath.exp(e) * cdf(-1 / (2 * s) - e * s)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_achieved_delta_is_the_stated_one(epsilon, delta):
    achieved = achieved_delta(gaussian_scale(epsilon, delta), epsilon)
    assert abs(float(achieved / mpmath.mpf(delta) - 1)) < 1e-10


def test_scale_is_the_smallest_that_keeps_the_promise():
    for epsilon, delta in ((0.1, 1e-9), (1.0, 1e-5), (10.0, 0.2)):
        scale = gaussian_scale(epsilon, delta)
        assert achieved_delta(scale * (1 - 1e-9), epsilon) > delta > achieved_delta(scale * (1 + 1e-9), epsilon)


def test_scale_is_below_the_classical_one_and_proportional_to_sensitivity():
    assert gaussian_scale(0.5, 1e-5) < np.sqrt(2 * np.log(1.25e5)) / 0.5
    assert gaussian_scale(0.5, 1e-5, 10.0) == pytest.approx(10 * gaussian_scale(0.5, 1e-5), rel=1e-15)


def test_arrays_broadcast_and_agree_with_scalars():
    scales = gaussian_scale(np.array(EPSILONS)[:, None], DELTAS, sensitivity=2.0)
    assert scales.shape == (len(EPSILONS), len(DELTAS)) and scales.dtype == np.float64
    alone = [[gaussian_scale(e, d, 2.0) for d in DELTAS] for e in EPSILONS]
    np.testing.assert_allclose(scales, alone, rtol=1e-12)
    assert isinstance(gaussian_scale(1, 1e-5), float)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.1), "epsilon must be positive and finite, got 0.0"),
        ((np.inf, 0.1), "epsilon must be positive and finite, got inf"),
        ((1.0, 0.0), "delta must be between 0 and 1, exclusive, got 0.0"),
        ((1.0, [0.1, 1.0]), r"delta must be between 0 and 1, exclusive, got delta\[1\] = 1.0"),
        ((1.0, 0.1, -1.0), "sensitivity must be positive and finite, got -1.0"),
        (("1", 0.1), "epsilon must be positive and finite, got the string '1'"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        gaussian_scale(*arguments)
