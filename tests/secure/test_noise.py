"""Noise drawn by OpenDP on a grid: its bounds, its law, and what the grid costs.

The draws cannot be seeded. Each test of draws fails a right sampler with probability 1e-7 (`LEVEL`).
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

import ldpbayes as ldp
from ldpbayes import secure as noise
from ldpbayes.mechanisms import AdditiveMechanism
from tests.programs import call, constant

pytest.importorskip("opendp")

LEVEL = 1e-7
CONTINUOUS = {
    "laplace": ldp.LaplaceMechanism(1.0, 0, 20),
    "laplace, small budget": ldp.LaplaceMechanism(1e-4, -0.1, 0.3),
    "laplace, large budget": ldp.LaplaceMechanism(300.0, 1e9, 1e9 + 1 / 3),
    "laplace, wide": ldp.LaplaceMechanism(0.7, -1e150, 1e151),
    "laplace of a scale": ldp.LaplaceMechanism.from_scale(math.pi, -1, 7.7),
    "laplace in columns": ldp.LaplaceMechanism(1.3, [0, 0.1], [1e-7, 0.2], columns=("a", "b")),
    "laplace on a statistic": ldp.LaplaceMechanism(0.3, sensitivity=0.7),
    "laplace, personal": ldp.LaplaceMechanism([0.1, 2.0, 0.1, math.nextafter(2.0, 3)], 0, 1),
    "gaussian": ldp.GaussianMechanism(1.0, 1e-6, 0, 20),
    "gaussian, small delta": ldp.GaussianMechanism(0.05, 1e-14, -1 / 3, 0.3),
    "gaussian, large budget": ldp.GaussianMechanism(60.0, 1e-9, 0, 1),
    "gaussian of a scale": ldp.GaussianMechanism.from_standard_deviation(0.3, 0, 1),
    "gaussian in columns": ldp.GaussianMechanism(1.3, 1e-5, [0, 0.1, 1], [7, 0.2, 3], columns=3),
    "gaussian on a statistic": ldp.GaussianMechanism(0.3, 1e-3, sensitivity=0.7),
}
WHOLE = {
    "discrete laplace": ldp.DiscreteLaplaceMechanism(10.1, -3, 17),
    "discrete laplace, narrow": ldp.DiscreteLaplaceMechanism(0.3, 0, 1),
    "discrete laplace of a count": ldp.DiscreteLaplaceMechanism(2.0),
    "discrete laplace in columns": AdditiveMechanism(ldp.noise.DiscreteLaplace(2.3), 0, [2, 5], columns=2),
}
EXACT = {
    "discrete gaussian": ldp.DiscreteGaussianMechanism(2.3, 0, 7),
    "discrete gaussian of a count": ldp.DiscreteGaussianMechanism(3.0, sensitivity=2),
}


def records(mechanism):
    """Any records that the mechanism takes."""
    shape = (max(4, *mechanism.batch_shape, 0), *mechanism.record_shape)
    return np.broadcast_to(mechanism.lower, shape) if mechanism.bounded else 5


def exact(number):
    return Fraction(float(number))


@pytest.mark.parametrize("name", [*CONTINUOUS, *WHOLE])
def test_the_bound_of_opendp_is_at_most_the_stated_one_and_the_scale_hardly_more(name):
    mechanism = (CONTINUOUS | WHOLE)[name]
    step, widths = exact(noise.step_of(mechanism)), noise.widths(mechanism)
    for nominal, (measurement, distance, bound) in noise.measurements(mechanism).items():
        assert measurement.map(distance) <= bound
        # the distance is one of two records in steps, whichever way they are rounded
        most = [math.floor(exact(width) / step) + (not mechanism.noise.discrete) for width in widths]
        assert distance >= (sum(most) if mechanism.noise.norm == 1 else math.hypot(*most))
        stated = np.unique(
            mechanism.guarantee.epsilon(0.0) if mechanism.noise.norm == 1 else (mechanism.guarantee.tradeoff.mu**2 / 2)
        )
        assert bound in stated
        # OpenDP's own map says what scale was given
        reached = measurement.map(distance)
        scale = (distance / reached if mechanism.noise.norm == 1 else distance / math.sqrt(2 * reached)) * float(step)
        slack = 1e-9 if not mechanism.bounded or "small" in name else 1e-10
        assert -1e-15 <= scale / nominal - 1 <= (1e-15 if mechanism.noise.discrete else slack)
    assert ldp.secure.release(mechanism, records(mechanism)).sampler.startswith("OpenDP 0.")


@pytest.mark.parametrize("name", [name for name in CONTINUOUS if "gaussian" in name])
def test_delta_of_the_scale_that_is_run_is_at_most_the_stated_one(name):
    mechanism = CONTINUOUS[name]
    ((measurement, distance, _),) = noise.measurements(mechanism).values()
    with mpmath.workdps(60):
        mu = mpmath.sqrt(2 * mpmath.mpf(measurement.map(distance)))  # at least that of what is run

        def delta(epsilon):
            return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)

        if isinstance(mechanism, ldp.GaussianMechanism):
            assert delta(mpmath.mpf(mechanism.epsilon)) <= mechanism.delta
        for epsilon in (0.01, 0.5, 3.0):
            assert delta(epsilon) <= mechanism.guarantee.delta(epsilon) * (1 + 1e-9) + 1e-300


@pytest.mark.parametrize("steps", [2.0**5, 2.0**7])
@pytest.mark.parametrize(
    "mechanism",
    [ldp.LaplaceMechanism(2.0, 0, 1), ldp.GaussianMechanism(1.5, 1e-3, 0, 1), ldp.LaplaceMechanism(0.6, 0, 0.8)],
)
def test_the_curve_of_the_law_on_a_coarse_grid_is_within_the_stated_curve(monkeypatch, mechanism, steps):
    monkeypatch.setattr(noise, "MOST_STEPS", steps)
    ((measurement, distance, _),) = noise.measurements(mechanism).values()
    laplace, moved = mechanism.noise.norm == 1, distance - 2
    # the scale, in steps, that OpenDP was given, from what it says of the distance 1
    scale = 1 / measurement.map(1) if laplace else 1 / math.sqrt(2 * measurement.map(1))
    k = np.arange(-60 * int(scale + 1), 60 * int(scale + 1) + moved)
    mass = np.exp(-np.abs(k) / scale) if laplace else np.exp(-(k**2) / (2 * scale**2))
    mass /= mass.sum()
    for epsilon in np.linspace(0, 2.5, 26):
        for apart in (moved - 1, moved):
            shifted = np.concatenate([np.zeros(apart), mass[:-apart]])
            assert np.maximum(mass - np.exp(epsilon) * shifted, 0).sum() <= mechanism.guarantee.delta(epsilon) + 1e-15


def cdf(mechanism, z):
    law = mechanism.noise
    return (
        stats.laplace(0, law.scale).cdf(z)
        if mechanism.noise.norm == 1
        else stats.norm(0, law.standard_deviation).cdf(z)
    )


@pytest.mark.parametrize("draws", [2_000, pytest.param(500_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [n for n in CONTINUOUS if "personal" not in n and "columns" not in n and "statistic" not in n]
)
def test_continuous_noise_has_its_law(name, draws):
    mechanism = CONTINUOUS[name]
    x = np.linspace(mechanism.lower, mechanism.upper, draws)
    z = ldp.secure.release(mechanism, x).values
    assert stats.kstest((z - x), lambda t: cdf(mechanism, t)).pvalue > LEVEL


def test_noise_of_columns_personal_budgets_and_statistics():
    columns = CONTINUOUS["laplace in columns"]
    z = ldp.secure.release(columns, np.tile([0.0, 0.15], (1_500, 1))).values - [0, 0.15]
    assert all(stats.kstest(column, stats.laplace(0, columns.scale).cdf).pvalue > LEVEL for column in z.T)
    assert abs(stats.spearmanr(*z.T).statistic) < 5.4 / math.sqrt(1_500)
    budgets = np.tile([0.1, 2.0], 1_500)
    z = ldp.secure.release(ldp.LaplaceMechanism(budgets, 0, 1), np.ones(3_000)).values - 1
    for epsilon in (0.1, 2.0):
        assert stats.kstest(z[budgets == epsilon], stats.laplace(0, 1 / epsilon).cdf).pvalue > LEVEL
    sums = [ldp.secure.release(CONTINUOUS["laplace on a statistic"], -1e7 / 3).values[0] for _ in range(150)]
    assert stats.kstest(np.array(sums) + 1e7 / 3, stats.laplace(0, 0.7 / 0.3).cdf).pvalue > LEVEL


@pytest.mark.parametrize("draws", [4_000, pytest.param(500_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in (*WHOLE, *EXACT) if "count" not in name and "columns" not in name])
def test_discrete_noise_has_its_law(name, draws):
    mechanism = (WHOLE | EXACT)[name]
    z = ldp.secure.release(mechanism, np.full(draws, mechanism.upper)).values
    assert z.dtype.kind == "i"
    k = np.arange(-200, 201)
    assert z.min() >= -200 and z.max() <= 200  # 50 scales or more beyond all bounds
    expected = draws * np.exp(call("log_prob", constant(mechanism), k, np.full(len(k), mechanism.upper)))
    counts, many = np.bincount(z + 200, minlength=len(k)), expected >= 10
    counts = np.append(counts[many], counts[~many].sum())
    expected = np.append(expected[many], draws - expected[many].sum())
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def test_discrete_gaussian_noise_has_the_stated_scale_itself():
    for mechanism in EXACT.values():
        ((nominal, (measurement, distance, _)),) = noise.measurements(mechanism).items()
        rho = Fraction(distance) ** 2 / (2 * Fraction(nominal) ** 2)
        assert abs(measurement.map(distance) / float(rho) - 1) < 1e-14 and nominal == mechanism.scale


def test_released_numbers_lie_on_the_grid_whatever_the_records_are():
    mechanism = ldp.LaplaceMechanism(1.0, 0.0, 3.0)
    step = noise.step_of(mechanism)
    z = ldp.secure.release(mechanism, np.random.default_rng(0).uniform(0, 3, 200)).values
    assert step == 2.0**-48 and (z % step == 0).all()
    release = ldp.secure.release(ldp.LaplaceMechanism(1.0, 1 / 3, 5.0), np.full(3, 1 / 3))
    assert ((release.values - 1 / 3) % step < 1e-14).all()  # of one more rounding, which is public


def test_errors_of_opendp_are_not_passed_on(monkeypatch):
    def broken(steps):
        raise ValueError(f"cannot take {steps}")

    monkeypatch.setattr(noise, "measurements", lambda mechanism: {mechanism.scale: (broken, 1, 1.0)})
    with pytest.raises(RuntimeError, match="OpenDP's sampler failed; nothing is released") as error:
        ldp.secure.release(ldp.LaplaceMechanism(1.0, 0, 3), [1.5])
    assert error.value.__context__ is None


def test_the_curve_of_rows_on_a_coarse_grid_is_within_the_stated_curve(monkeypatch):
    monkeypatch.setattr(noise, "MOST_STEPS", 2.0**6)
    mechanism = ldp.GaussianMechanism(1.5, 1e-3, 0, [1, 0.7], columns=2)
    ((measurement, _, _),) = noise.measurements(mechanism).values()
    scale, step = 1 / math.sqrt(2 * measurement.map(1)), noise.step_of(mechanism)
    moves = [math.ceil(width / step) for width in noise.widths(mechanism)]
    k = np.arange(-int(9 * scale), int(9 * scale))
    mass = np.exp(-(k**2) / (2 * scale**2))
    mass /= mass.sum()
    moved = [np.concatenate([np.zeros(by), mass[:-by]]) for by in moves]
    for epsilon in np.linspace(0, 2.5, 11):
        delta = np.maximum(np.outer(mass, mass) - np.exp(epsilon) * np.outer(*moved), 0).sum()
        assert delta <= mechanism.guarantee.delta(epsilon) + 1e-15
