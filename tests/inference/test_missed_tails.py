"""A posterior with a flat tail, where no draw of its expansion ever comes, is not mistaken for its expansion."""

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import ldpbayes as ldp
from ldpbayes.inference.approximations import polynomial
from ldpbayes.inference.approximations._expanded import TAIL_TOLERANCE, follow_rays, tail_errors
from ldpbayes.inference.approximations.polynomial import NoExpansion, find_mode
from ldpbayes.numerics.polynomial import Frame, polynomial_of_slopes
from tests.inference import problems
from tests.inference.problems import GivenUp, problem_of

COUNT = 1500  # records of each of three groups
GROUP = np.repeat(np.arange(3), COUNT)
PRIOR = 3.0
RR = ldp.RandomizedResponse(1.0)
TRUTH, LIE = np.e / (1 + np.e), 1 / (1 + np.e)
ERROR = np.sqrt(TRUTH * LIE / COUNT)  # standard error of a share of yes where everybody's answer is no
SHORT = {"num_warmup": 500, "num_samples": 1000, "num_chains": 2}
CODINGS = {
    "own": np.eye(3),
    "reference": np.array([[1.0, 0, 0], [1, 1, 0], [1, 0, 1]]),
    "centred": np.array([[1.0, -0.5, -1 / 3], [1, 0.5, -1 / 3], [1, 0, 2 / 3]]),
}


def model(release, coding):
    b = numpyro.sample("b", dist.Normal(0, PRIOR).expand([3]).to_event(1))
    ldp.observe("z", dist.BernoulliLogits((coding @ b)[GROUP]), release)


def exact(yes, coding):
    """Means and standard deviations of the coefficients, on a grid of the groups' logits."""
    axes = np.meshgrid(*[np.concatenate([np.linspace(-20, -5, 31)[:-1], np.linspace(-5, 2, 91)])] * 3, indexing="ij")
    logits = np.stack([axis.ravel() for axis in axes])
    widths = np.prod([np.gradient(axis, axis=k).ravel() for k, axis in enumerate(axes)], axis=0)
    b = np.linalg.solve(coding, logits)
    share = LIE + (TRUTH - LIE) / (1 + np.exp(-logits))
    log = (yes[:, None] * np.log(share) + (COUNT - yes[:, None]) * np.log1p(-share)).sum(axis=0)
    log = log - (b**2).sum(axis=0) / (2 * PRIOR**2)
    weights = widths * np.exp(log - log.max())
    means = b @ weights / weights.sum()
    return means, np.sqrt((b - means[:, None]) ** 2 @ weights / weights.sum())


def outcome(yes, coding):
    """The draws; raises `GivenUp` with the reason if the records would be sampled."""
    with jax.enable_x64(True):
        problem = problem_of(model, released(yes), coding, expand=True)
        return problems.outcome(polynomial.propose, NUTS(model), problem, **SHORT, progress_bar=False)


def released(yes):
    return ldp.Release((np.arange(COUNT) < yes[:, None]).astype(int).ravel(), RR)


def answers(*distances):
    """Numbers of yes whose shares are so many standard errors from where everybody's answer would be no."""
    return np.round(COUNT * (LIE + ERROR * np.array(distances)))


def settled(yes, coding):
    """The report; and whether draws that serve have the exact means and standard deviations, to Monte Carlo error."""
    try:
        made = outcome(yes, coding)
    except GivenUp as given_up:
        return given_up.args[0], None
    (report,), draws = made.reports, made.samples["b"]
    for k, (mean, sd) in enumerate(zip(*exact(yes, coding), strict=True)):
        # 4 standard errors, in six numbers: error rate 4e-4; and what the certificate allows, 2 % of a variance
        assert abs(draws[..., k].mean() - mean) < sd * (4 / np.sqrt(float(az.ess(draws[..., k]))) + 0.01)
        squares = (draws[..., k] - mean) ** 2
        assert abs(squares.mean() - sd**2) < 4 * squares.std() / np.sqrt(float(az.ess(squares))) + 0.02 * sd**2
    return report.ran, report.tail_error


def test_the_error_along_a_ray_counts_what_lies_beyond_all_draws():
    draws = np.random.default_rng(0).normal(size=(2000, 2))

    def compare(x, height):
        """Of a posterior that falls slowly below -3 in the first coordinate, and the normal law in its place."""
        normal = -0.5 * np.sum(x**2, axis=1)
        tail = height + 0.5 * (x[:, 0] + 3) - 0.5 * x[:, 1] ** 2
        there = (x[:, 0] < -3) & (tail > normal)
        slope = np.where(there[:, None], np.stack([np.full(len(x), 0.5), -x[:, 1]], axis=1), -x)
        log_density = np.where(there, tail, normal)
        return log_density, slope, log_density - normal

    for height, seen in ((-4.5, True), (-100.0, False)):
        _, beyond = tail_errors(*follow_rays(draws, draws, lambda x, height=height: compare(x, height)))
        assert (beyond > TAIL_TOLERANCE) == seen


@pytest.mark.slow
@pytest.mark.parametrize("distances, coding", [((4, 4, 14), "own"), ((2, 12, 14), "centred")])
def test_a_flat_tail_beyond_all_draws_is_seen(distances, coding):
    assert "tail that no draw reaches" in settled(answers(*distances), CODINGS[coding])[0]


@pytest.mark.slow
def test_a_posterior_far_from_the_boundary_is_that_of_its_expansion():
    ran, error = settled(answers(9, 12, 14), CODINGS["reference"])
    assert ran == "expansion" and error < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("distance", [0.5, 1, 2, 3, 4, 5, 6, 8])
def test_what_is_not_refused_is_exact(distance, coding, record_property):
    for others in ((12, 14), (distance, 13)):
        record_property(str(others), settled(answers(distance, *others), CODINGS[coding]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ldpbayes.inference.ConvergenceWarning")
def test_the_records_are_sampled_where_an_expansion_has_lost_a_tail():
    yes, coding = answers(3, 12, 14), CODINGS["reference"]
    with pytest.warns(ldp.LdpBayesWarning, match="tail that no draw reaches"):
        posterior = ldp.fit(model, released(yes), coding, **SHORT, progress_bar=False, expand=True)
    mean, sd = (each[0] for each in exact(yes, coding))
    squares = (posterior["posterior"]["b"].values[..., 0] - mean) ** 2
    # 4 standard errors: error rate 6e-5
    assert abs(squares.mean() - sd**2) < 4 * squares.std() / np.sqrt(float(az.ess(squares)))


@pytest.mark.slow
def test_shards_that_have_lost_a_tail_are_doubted():
    yes, coding = answers(3, 12, 14), CODINGS["reference"]
    # half of the answers twice, which stand for the records of two machines
    halves = 2 * [ldp.expand(model, ldp.Release(released(yes).values, RR), coding)]
    with pytest.warns(ldp.inference.ExpansionWarning, match="tail that the expansion lacks"):
        ldp.fit(model, released(yes), coding, **SHORT, progress_bar=False, expand=sum(halves))


def with_gradients(potential):
    """A potential and its gradients, by differences, at points."""

    def gradients(points):
        steps = 1e-6 * np.eye(points.shape[1])
        each = [[(potential(p + s) - potential(p - s)) / 2e-6 for s in steps] for p in points]
        return np.array([potential(point) for point in points]), np.array(each)

    return gradients


def test_the_mode_is_that_of_most_mass_and_not_of_the_highest_density():
    def potential(u):
        # twice the density, and 2 · 0.02⁴ = e^-15 of the mass
        return -np.logaddexp(-0.5 * u @ u, np.log(2) - 0.5 * (u - 10) @ (u - 10) / 0.02**2)

    starts = [np.full(4, 10.01), np.ones(4), -np.ones(4)]
    best = find_mode(with_gradients(potential), starts)
    assert np.allclose(best.at, 0, atol=0.05) and np.allclose(best.root @ best.root.T, np.eye(4), atol=1e-3)


def test_a_search_that_ends_in_the_neck_of_a_funnel_has_found_no_mode():
    data = np.array([-1.5, -0.5, 0.0, 0.5, 1.5])

    def potential(u):
        scale, effects = np.exp(u[0]), u[1:]
        return 4 * u[0] + 0.5 * scale**2 + 0.5 * np.sum((effects / scale) ** 2 + ((effects - data) / 0.2) ** 2)

    neck, wide = np.array([-7.0, 0, 0, 0, 0, 0]), np.array([0.0, *data])
    best = find_mode(with_gradients(potential), [neck, wide])
    assert abs(best.at[0]) < 0.5
    with pytest.raises(NoExpansion, match="may be unbounded"):
        find_mode(with_gradients(potential), [neck])


def test_a_frame_of_groups_of_different_rank_has_no_coordinate_where_nothing_varies(x64):
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(500, 3, 2)) @ np.array([[2.0, 1.0], [0.0, 0.5]])
    draws[:, 0] = 0.0  # a reference level
    draws[:, 1, 1] = 3.0
    frame = Frame.of_draws(draws)
    y = frame.coordinates(draws)
    expected = np.stack([np.zeros((2, 2)), np.diag([0.0, 1.0]), np.eye(2)])
    assert np.allclose(np.einsum("mgi,mgj->gij", y, y) / 500, expected)
    assert np.allclose(frame.center + np.einsum("gnr,mgr->mgn", frame.lift, y), draws)
    # log density of independent normals: the polynomial of its slopes is exact in the groups that vary
    slopes = -draws
    made = polynomial_of_slopes(frame, draws, -0.5 * np.sum(draws**2, axis=(1, 2)), slopes, 3)
    assert np.allclose(made.values(draws), -0.5 * np.sum(draws**2, axis=(1, 2)))


def test_a_search_may_end_where_slopes_nearby_are_no_numbers():
    def potential(u):
        return 0.5 * u @ u if np.abs(u).max() < 0.1 else np.nan

    best = find_mode(with_gradients(potential), [np.full(3, 0.02)])
    assert np.abs(best.at).max() < 0.05 and np.isfinite(best.root).all()
