"""The density of symmetric Laplace noise against Bessel functions."""

import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special

from ldpbayes.numerics.radial_law import log_density


@pytest.mark.parametrize("dimension", [1, 2, 3, 6, 7, 50, 1000])
def test_density_is_the_bessel_form_near_zero_and_far_out(dimension):
    order = mpmath.mpf(dimension) / 2 - 1
    for radius in (1e-12, 1e-3, 0.3, 1.0, 7.0, 60.0, 500.0):
        with mpmath.workdps(40):
            r = mpmath.mpf(radius)
            bessel = mpmath.besselk(order, mpmath.sqrt(2) * r) if radius < 400 or dimension < 50 else None
            if bessel is None:  # mpmath gives up there; the integral of which the density is made
                half = mpmath.mpf(dimension) / 4
                peak = -half + mpmath.sqrt(half**2 + r**2 / 2)
                mass = mpmath.quad(
                    lambda w, r=r: mpmath.exp(-w - r**2 / (2 * w)) * w ** (-mpmath.mpf(dimension) / 2),
                    [peak * t / 20 for t in range(6, 41)],
                )
                exact = mpmath.log(mass) - mpmath.mpf(dimension) / 2 * mpmath.log(2 * mpmath.pi)
            else:
                exact = mpmath.log(
                    2 * (2 * mpmath.pi) ** (-mpmath.mpf(dimension) / 2) * (r**2 / 2) ** (-order / 2) * bessel
                )
        got = float(log_density(np, np.array(radius), dimension))
        # a few roundings of the largest of the terms that make up the logarithm
        assert got == pytest.approx(float(exact), rel=1e-13, abs=2e-13 * (1 + dimension / 10)), radius


def test_density_at_zero_is_infinite_in_two_dimensions_or_more():
    assert log_density(np, np.array(0.0), 1) == pytest.approx(-math.log(2) / 2)
    assert log_density(np, np.array(0.0), 2) == np.inf


@pytest.mark.parametrize("dimension", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_the_compiled_density_and_its_slope_are_those_of_the_bessel_function_for_few_radii_and_many(dimension, x64):
    order = dimension / 2 - 1
    law = functools.partial(log_density, jnp, dimension=dimension)
    both = jax.jit(lambda radius: (law(radius), jax.vmap(jax.grad(law))(radius)))
    for count in (16, 4096):
        radius = np.linspace(0.01, 12.0, count)
        x = math.sqrt(2) * radius
        want = math.log(2) - dimension / 2 * math.log(2 * math.pi) - order * np.log(radius / math.sqrt(2))
        want += np.log(special.kve(order, x)) - x
        density, slope = both(radius)
        np.testing.assert_allclose(density, want, atol=1e-12)  # units in the last place of numbers down to −20
        slope_of_log = special.kvp(order, x) / special.kv(order, x)
        np.testing.assert_allclose(slope, math.sqrt(2) * slope_of_log - order / radius, rtol=1e-12)
