"""`observe` inside NumPyro's own machinery: one release or sketch, or several groups in one site."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from numpyro.infer.util import log_density as uncompiled_log_density

import ldpbayes as ldp
from ldpbayes.data import CountSketch
from ldpbayes.laws.compound import law_of_records, unwrapped
from ldpbayes.models import clipped_gaussian, hierarchical

LAPLACE = ldp.LaplaceMechanism(1.0, -5, 5)
RESPONSE = ldp.RandomizedResponse(1.0)
ANSWERS = np.array([0, 1, 1, 0, 1, 0])


def log_density(model, data, values):
    return float(jax.jit(lambda at: uncompiled_log_density(model, (data,), {}, at)[0])(values))


def test_a_release_without_values_is_simulated_by_the_model_itself():
    plan = ldp.Release(None, LAPLACE, 50)
    prior = jax.eval_shape(Predictive(clipped_gaussian(), num_samples=7), jax.random.key(0), plan)
    assert prior["z"].shape == (7, 50)
    assert prior["mu"].shape == (7,)
    several = [plan, ldp.Release(None, LAPLACE, 20)]
    groups = jax.eval_shape(Predictive(hierarchical(), num_samples=3), jax.random.key(0), several)
    assert groups["z"].shape == (3, 70)


def test_a_sketch_has_the_density_of_its_release_inside_a_model(x64):
    z = np.random.default_rng(0).laplace(1.0, 10.0, 20_000)
    release = ldp.Release(z, LAPLACE)
    values = [log_density(clipped_gaussian(), data, {"mu": 1.0, "sigma": 2.0}) for data in (release, release.sketch())]
    assert abs(values[0] - values[1]) < 1e-7  # 2e4 terms of size 4, each with a few rounding errors


def test_a_mask_of_the_law_hides_records_from_a_sketch_too(x64):
    def model(keep, data):
        ldp.observe("z", dist.Bernoulli(np.full(np.shape(keep), 0.3)).mask(keep), data)

    release = ldp.Release(ANSWERS, RESPONSE)
    numbers = ldp.Release(ANSWERS * 1.0, LAPLACE).sketch()
    groups = release.sketch(by=np.arange(6) % 2)

    @jax.jit
    def totals(keep, each):
        masked = [
            uncompiled_log_density(model, (keep, data), {}, {})[0] for data in (release, release.sketch(), numbers)
        ]
        return masked, uncompiled_log_density(model, (each, groups), {}, {})[0]

    (whole, collapsed, panels), first = totals(True, np.array([True, False]))
    hidden, second = totals(False, np.array([False, True]))
    assert float(collapsed) == pytest.approx(float(whole), abs=1e-12)
    assert hidden == [0, 0, 0] and panels != 0
    assert float(first + second) == pytest.approx(float(whole), abs=1e-12) and first != 0


def of_groups(law, data):
    ldp.observe("z", law, data)


NUMBERS = np.random.default_rng(0).normal(1.0, 2.0, 60)
YES = np.random.default_rng(1).integers(0, 2, 60)


def numbers_of(mechanism, first, last, **panels):
    release = ldp.Release(NUMBERS[first:last], mechanism)
    return release.sketch(**panels) if panels else release


IN_GROUPS = {
    "sketches on panels of their own": (
        dist.Exponential,
        [numbers_of(ldp.LaplaceMechanism(2.0, 0, 4), 0, 20, panels=3, lattice=False)]
        + [numbers_of(ldp.LaplaceMechanism(1.0, 0, 6), 20, 60, panels=4, lattice=False)],
    ),
    "sketches on the same panels": (
        dist.BernoulliProbs,
        [numbers_of(ldp.LaplaceMechanism(2.0, 0, 2), 0, 20, panels=3)]
        + [numbers_of(ldp.LaplaceMechanism(1.0, 0, 2), 20, 60, panels=3)],
    ),
    "sketches with atoms": (
        dist.BernoulliProbs,
        [numbers_of(ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, 0, 2), 0, 20, panels=3)]
        + [numbers_of(ldp.ZeroInflatedLaplaceMechanism(0.4, 1.0, 0, 2), 20, 60, panels=3)],
    ),
    "releases of numbers": (
        dist.BernoulliProbs,
        [numbers_of(ldp.LaplaceMechanism(2.0, 0, 4), 0, 20)]
        + [numbers_of(ldp.LaplaceMechanism(np.geomspace(0.5, 2, 40), 0, 6), 20, 60)],
    ),
    "releases of answers": (
        dist.BernoulliProbs,
        [ldp.Release(YES[:20], RESPONSE), ldp.Release(YES[20:], ldp.RandomizedResponse(2.0))],
    ),
    "sketches of answers": (
        dist.BernoulliProbs,
        [ldp.Release(YES[:20], RESPONSE).sketch(), ldp.Release(YES[20:], ldp.RandomizedResponse(2.0)).sketch()],
    ),
    "counts of numbers": (
        dist.BernoulliProbs,
        [CountSketch(ldp.LaplaceMechanism(2.0, 0, 2), NUMBERS[:20], np.ones(20))]
        + [CountSketch(ldp.LaplaceMechanism(1.0, 0, 2), NUMBERS[20:60], np.ones(40))],
    ),
}


# sketches on the same panels are also those with atoms; `tests/recorded` holds their density and slope
KINDS = [pytest.param(each, marks=pytest.mark.slow) if "same panels" in each else each for each in IN_GROUPS]


@pytest.mark.parametrize("kind", KINDS)
def test_groups_in_one_site_have_the_density_and_the_gradient_of_a_site_each(kind, x64):
    family, data = IN_GROUPS[kind]

    @jax.jit
    def totals(parameters):
        def together(p):
            return uncompiled_log_density(of_groups, (family(p), data), {}, {})[0]

        def each(p):
            parts = zip(p, data, strict=True)
            return sum(uncompiled_log_density(of_groups, (family(own), part), {}, {})[0] for own, part in parts)

        return [jax.value_and_grad(total)(parameters) for total in (together, each)]

    (value, gradient), (want, wanted) = totals(np.array([0.3, 0.6]))
    # sums of at most 100 terms of size at most 100, with a few rounding errors each, in another order
    assert float(value) == pytest.approx(float(want), rel=1e-12)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-12)


def test_groups_of_different_kinds_have_a_site_a_kind_with_their_own_laws():
    plan, gauss = ldp.Release(None, LAPLACE, 3), ldp.Release([0.5, 1.0], ldp.GaussianMechanism(1.0, 1e-6, -5, 5))
    data = [gauss.sketch(), plan, gauss.sketch(panels=3), ldp.Release(None, ldp.LaplaceMechanism(2.0, -1, 1), 2)]
    rows = [ldp.Release([0.5], ldp.ZeroInflatedLaplaceMechanism(0.2, 1.0, 0, upper)).sketch() for upper in (1, 2)]
    laws = dist.Normal(np.arange(6.0), 1.0)
    model = numpyro.handlers.seed(of_groups, 0)
    trace = numpyro.handlers.trace(model).get_trace(laws, [*data, *rows])
    assert {name: site["value"].shape for name, site in trace.items()} == {
        "z_0": (len(data[0].nodes), 2),
        "z_1": (5,),
        "z_2": (len(rows[0].nodes), 1),
        "z_3": (len(rows[1].nodes), 1),
    }
    means = [unwrapped(site["fn"])[0].base_dist.loc.tolist() for site in trace.values()]
    assert means == [[0, 2], [1, 1, 1, 3, 3], [4], [5]]


def test_a_mask_of_the_laws_hides_groups(x64):
    numbers, answers = IN_GROUPS["sketches on the same panels"][1], IN_GROUPS["releases of answers"][1]

    @jax.jit
    def totals(keep):
        laws = dist.BernoulliProbs(np.array([0.3, 0.6])).mask(keep)
        return [uncompiled_log_density(of_groups, (laws, data), {}, {})[0] for data in (numbers, answers)]

    whole, first, second = (np.array(totals(np.array(keep))) for keep in ([True, True], [True, False], [False, True]))
    np.testing.assert_allclose(first + second, whole, rtol=1e-12)
    assert np.all(first != 0) and np.all(second != 0)


@pytest.mark.parametrize(
    ("law", "data", "error", "message"),
    [
        (
            dist.Normal(0.0, 1.0),
            ["plan"],
            ValueError,
            r"1 groups need .* shape \(1,\), one law for each group; got \(\)",
        ),
        (dist.Normal(0.0, 1.0), [], ValueError, "one law for each group, at least one; got"),
        (dist.Normal(np.zeros(2), 1.0), ["plan", 1.0], TypeError, "group 1 must be a Release or a Sketch, got float"),
        (dist.Normal(np.zeros(2), 1.0), ["plan", "release"], ValueError, "the release of group 0 has no values, but"),
        (
            dist.Bernoulli(np.full(2, 0.5)),
            ["by", "by"],
            ValueError,
            "group 0 is a sketch of 2 groups, and needs a",
        ),
        (
            # as many weights, which both groups share, as groups
            dist.MixtureSameFamily(dist.Categorical(np.array([0.5, 0.5])), dist.Normal(np.zeros((2, 2)), 1.0)),
            ["release", "release"],
            ValueError,
            "cannot be repeated for the records of each group; sketch the releases, or give each group a",
        ),
    ],
)
def test_groups_that_do_not_go_into_one_site_are_refused(law, data, error, message):
    made = {
        "plan": ldp.Release(None, LAPLACE, 3),
        "release": ldp.Release([1.0], LAPLACE),
        "by": ldp.Release(YES[:2], RESPONSE).sketch(by=np.arange(2)),
    }
    with pytest.raises(error, match=f"site 'z': .*{message}"):
        ldp.observe("z", law, [made.get(part, part) for part in data])


A, B = np.array([0.2, 0.5, 0.7]), np.array([0.8, 1.1, 1.3])
MADE_OF_LAWS = {
    "zero-inflated": lambda i: dist.ZeroInflatedNegativeBinomial2(5 * B[i], 3.0, gate=A[i]),
    "zero-inflated by logits": lambda i: dist.ZeroInflatedDistribution(dist.Poisson(3 * B[i]), gate_logits=A[i]),
    "mixture": lambda i: dist.MixtureSameFamily(
        dist.Categorical(np.stack([A, 1 - A], -1)[i]), dist.Normal(np.stack([A, B], -1)[i], 1.0)
    ),
    "mixture of kinds": lambda i: dist.MixtureGeneral(
        dist.Categorical(np.stack([A, 1 - A], -1)[i]), [dist.Normal(A[i], 1.0), dist.StudentT(3.0, B[i], 1.0)]
    ),
    "transformed": lambda i: dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(A[i], B[i])
    ),
    "truncated": lambda i: dist.TruncatedNormal(A[i], B[i], low=-A[i], high=2.0),
    "folded": lambda i: dist.FoldedDistribution(dist.Normal(A[i], B[i])),
    "normal rows": lambda i: dist.MultivariateNormal(np.stack([A, B, A], -1)[i], np.eye(3)),
}


@pytest.mark.parametrize("name", MADE_OF_LAWS)
def test_laws_that_are_made_of_other_laws_are_repeated_for_the_records_of_groups(name, x64):
    law, groups = MADE_OF_LAWS[name], np.array([0, 2, 1, 1, 0])

    @jax.jit
    def log_probs():
        records = law_of_records(law(np.arange(3)), groups)
        value = np.full(records.event_shape, 1.0)
        drawn = records.sample(jax.random.key(0))
        assert drawn.shape == records.shape() == (5, *records.event_shape)
        return records.log_prob(value), jnp.stack([law(i).log_prob(value) for i in groups]), records.support(value)

    found, expected, inside = log_probs()
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert np.all(inside)


def test_a_record_counts_once_whatever_plates_are_around_it():
    def model(count, data):
        with numpyro.plate("people", count):
            ldp.observe("z", dist.Normal(0.2, 1.0), data)

    with pytest.raises(ValueError, match=r"site 'z': plates give it shape \(200,\), but the release has 1 records"):
        uncompiled_log_density(model, (200, ldp.Release([1.0], LAPLACE)), {}, {})
    density = jax.eval_shape(lambda: uncompiled_log_density(model, (2, ldp.Release([1.0, 2.0], LAPLACE)), {}, {})[0])
    assert density.shape == ()


def test_latent_categories_may_be_enumerated(x64):
    from numpyro.contrib.funsor import enum
    from numpyro.contrib.funsor import log_density as enumerated_log_density

    release, means = ldp.Release([-2.0, 0.5, 3.0], LAPLACE), jnp.array([-2.0, 2.0])

    def of_each(share, data):
        with numpyro.plate("people", len(data)):
            kind = numpyro.sample("kind", dist.Bernoulli(share), infer={"enumerate": "parallel"})
            ldp.observe("z", dist.Normal(means[kind], 1.0), data)

    def mixed(share, data):
        law = dist.MixtureSameFamily(dist.Categorical(jnp.stack([1 - share, share])), dist.Normal(means, 1.0))
        ldp.observe("z", law, data)

    model = enum(numpyro.handlers.seed(of_each, 0), first_available_dim=-2)
    got = jax.jit(lambda share: enumerated_log_density(model, (share, release), {}, {})[0])(0.3)
    want = jax.jit(lambda share: uncompiled_log_density(mixed, (share, release), {}, {})[0])(0.3)
    assert float(got) == pytest.approx(float(want), abs=1e-8)


def test_a_law_a_record_needs_the_records_and_as_many_of_them(rng):
    release = ldp.Release(rng.normal(size=5), LAPLACE)
    with pytest.raises(ValueError, match=r"sketch without groups needs .* batch shape \(\), got \(5,\)"):
        ldp.observe("z", dist.Normal(np.zeros(5), 1.0), release.sketch())
    with pytest.raises(ValueError, match=r"batch shape \(4,\), but the release has 5 records"):
        ldp.observe("z", dist.Normal(np.zeros(4), 1.0), release)


def test_only_univariate_laws_are_privatized():
    with pytest.raises(ValueError, match="must be univariate"):
        ldp.Privatized(dist.Dirichlet(np.ones(3)), LAPLACE)
    point = dist.MixtureGeneral(
        dist.Categorical(np.array([0.5, 0.5])), [dist.Delta(0.0), dist.Normal(0.0, 1.0)], support=dist.constraints.real
    )
    with pytest.raises(ValueError, match="must have no point masses, got Delta"):
        ldp.Privatized(point, LAPLACE)
    with pytest.raises(ValueError, match="method must be one of"):
        ldp.Privatized(dist.Normal(0, 1), LAPLACE, method="magic")
    with pytest.raises(ValueError, match="no closed form for StudentT under LaplaceMechanism"):
        ldp.Privatized(dist.StudentT(3.0, 0.0, 1.0), LAPLACE, method="closed_form")
