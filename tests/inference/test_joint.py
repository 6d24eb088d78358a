"""`observe_jointly`: several releases of the same people, with their latent class summed out."""

import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.infer.util import log_density

import ldpbayes as ldp
from ldpbayes.likelihood import Privatized

N = 40
CLASSES = np.arange(N) % 3
BUDGETS = 0.5 + np.arange(N) / N
INCOME = ldp.LaplaceMechanism(1.0, 0, 200)


def noisy(mechanism, records, seed=0):
    """Numbers with Laplace noise."""
    rng = np.random.default_rng(seed)
    return ldp.Release(np.clip(records, 0, 200) + rng.laplace(0, mechanism.scale, len(records)), mechanism)


def said(mechanism, codes, seed=0):
    """Codes, of which randomized response replaces some."""
    rng, k = np.random.default_rng(seed), mechanism.categories
    kept = rng.random(len(codes)) < 1 - k / (np.exp(mechanism.epsilon) + k - 1)
    return ldp.Release(np.where(kept, codes, rng.integers(0, k, len(codes))), mechanism)


def bits(mechanism):
    return ldp.Release(np.random.default_rng(1).integers(0, 2, (N, mechanism.categories)), mechanism)


SHARES, MEANS = np.array([0.5, 0.3, 0.2]), np.array([20.0, 60.0, 140.0])


@functools.cache
def all_parts():
    visits = ldp.Release(3 * CLASSES + np.arange(N) % 5 - 2, ldp.DiscreteLaplaceMechanism(1.0, 0, 10))
    gauss = ldp.GaussianMechanism(1.0, 1e-5, 0, 100)
    hours = ldp.Release(30.0 * CLASSES + np.random.default_rng(5).normal(0, gauss.scale, N), gauss)
    jobs = np.array([[0.7, 0.2, 0.1, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
    return {
        "class": (None, said(ldp.RandomizedResponse(1.0, 3), CLASSES)),
        "bits": (None, bits(ldp.OptimalUnaryEncoding(1.0, 3))),
        "personal": (None, said(ldp.RandomizedResponse(BUDGETS, 4), CLASSES, 2)),
        "income": (dist.Normal(MEANS, np.array([5.0, 10.0, 30.0])), noisy(INCOME, 50.0 * CLASSES, 3)),
        "own": (
            dist.Normal(MEANS + np.arange(N)[:, None], 10 * np.ones((N, 3))),
            noisy(ldp.LaplaceMechanism(BUDGETS, 0, 200), 50.0 * CLASSES, 4),
        ),
        "hours": (dist.Exponential(1 / MEANS), hours),
        "visits": (dist.Poisson(MEANS / 20), visits),
        "job": (dist.Categorical(probs=jobs), bits(ldp.SymmetricUnaryEncoding(BUDGETS, 4))),
        "smoker": (dist.Bernoulli(np.array([0.1, 0.5, 0.9])), said(ldp.RandomizedResponse(1.0, 2), CLASSES // 2)),
        "student": (dist.Gamma(MEANS / 10, np.full(3, 0.5)), noisy(INCOME, 10.0 * CLASSES, 8)),
    }


def log_joint(classes, parts):
    return log_density(lambda: ldp.observe_jointly(classes, parts), (), {}, {})[0]


def brute_force(shares, parts):
    """Σ over people of log Σ over classes, each part by the law of one class."""
    total = jnp.log(jnp.broadcast_to(shares, (N, shares.shape[-1])))
    for law, data in parts.values():

        def of_class(c, law=law, data=data):
            if law is None:
                return data.mechanism.log_prob(data.values, c)
            ranks = {name: constraint.event_dim for name, constraint in law.arg_constraints.items()}
            own = {n: jnp.asarray(getattr(law, n))[(..., c, *[slice(None)] * ranks[n])] for n in ranks if n != "logits"}
            return Privatized(type(law)(**own), data.mechanism).log_prob(data.values)

        total = total + jax.lax.map(of_class, jnp.arange(shares.shape[-1])).T
    return jax.scipy.special.logsumexp(total, axis=1).sum()


def refuse(classes, parts):
    """What raises before anything is computed."""
    seeded = numpyro.handlers.seed(lambda: ldp.observe_jointly(classes, parts), 0)
    jax.eval_shape(lambda: log_density(seeded, (), {}, {})[0])


@pytest.mark.parametrize(
    ("names", "personal"),
    [
        pytest.param("class income", False, marks=pytest.mark.slow),
        ("bits own visits", True),
        ("hours personal", True),
        ("smoker student job", False),
    ],
)
def test_the_log_density_is_that_of_the_sum_over_classes(names, personal):
    """To 1e-10, relatively: both sum the same terms of double precision, some hundreds of them."""
    parts = {name: all_parts()[name] for name in names.split()}
    shares = np.random.default_rng(1).dirichlet(np.ones(3), N) if personal else SHARES
    with jax.enable_x64(True):
        law = dist.Categorical(shares)
        counts = {name: parts.pop(name) for name in ("visits",) if name in parts}  # whose bounds JAX must not trace

        @jax.jit
        def both(law, shares, parts):
            return log_joint(law, parts | counts), brute_force(shares, parts | counts)

        joint, expected = both(law, shares, parts)
    assert float(joint) == pytest.approx(float(expected), rel=1e-10)


def test_classes_may_be_a_bernoulli_law_or_have_logits():
    answers = said(ldp.RandomizedResponse(1.0, 2), CLASSES // 2)
    parts = {"class": (None, answers), "other": (dist.Bernoulli(np.array([0.2, 0.9])), answers)}
    logit = np.log(0.3 / 0.7)
    laws = dist.Bernoulli(0.3), dist.Bernoulli(logits=logit), dist.Categorical(logits=np.array([0.0, logit]))
    with jax.enable_x64(True):
        shares = np.array([0.7, 0.3])
        laws = *laws, dist.Categorical(shares).expand([N])
        found, expected = jax.jit(lambda: ([log_joint(law, parts) for law in laws], brute_force(shares, parts)))()
    for each in found:
        assert float(each) == pytest.approx(float(expected), rel=1e-6)  # logits in single precision


def model(answers, incomes, prior=1.0, sigma=None):
    share = numpyro.sample("share", dist.Dirichlet(prior * jnp.ones(2)))
    with numpyro.plate("group", 2):
        mu = numpyro.sample("mu", dist.Normal(50, 30))
    sigma = numpyro.sample("sigma", dist.HalfNormal(20)) if sigma is None else sigma
    parts = {"answer": (None, answers), "income": (dist.Normal(mu, sigma), incomes)}
    ldp.observe_jointly(dist.Categorical(share), parts)


def of_known_spread(answers, incomes):
    """Three parameters, whose posterior is integrated."""
    model(answers, incomes, sigma=10.0)


@functools.cache
def survey(count, epsilon=1.0):
    kind = np.random.default_rng(2).random(count) < 0.4
    incomes = np.where(kind, 120.0, 40.0) + 10 * np.random.default_rng(3).normal(size=count)
    answers = said(ldp.RandomizedResponse(epsilon, 2), kind.astype(int), 9)
    return answers, noisy(ldp.LaplaceMechanism(epsilon, 0, 200), incomes, 10)


def by_code(answers, incomes, panels=60):
    groups = (ldp.Release(incomes.values[answers.values == code], incomes.mechanism) for code in range(2))
    return answers.sketch(), [group.sketch(panels=panels) for group in groups]


@functools.cache
def value_and_slopes(sketched):
    data = survey(200)
    data = by_code(*data) if sketched else data

    def log_likelihood(share, mu, sigma):
        parts = {"answer": (None, data[0]), "income": (dist.Normal(mu, sigma), data[1])}
        return log_density(lambda: ldp.observe_jointly(dist.Categorical(share), parts), (), {}, {})[0]

    return jax.jit(jax.value_and_grad(log_likelihood, (0, 1, 2)))


@pytest.mark.parametrize("share", [[1.0, 0.0], [0.0, 1.0], [1e-300, 1.0], [0.4, 0.6]])
@pytest.mark.parametrize(("mu", "sigma"), [([40.0, 1e6], 1e-6), ([-1e6, 100.0], 1e6), ([30.0, 30.0], 5.0)])
@pytest.mark.parametrize("sketched", [False, True])
def test_gradients_are_finite_at_the_boundary(share, mu, sigma, sketched):
    with jax.enable_x64(True), numpyro.validation_enabled(False):
        value, slopes = value_and_slopes(sketched)(jnp.array(share), jnp.array(mu), jnp.array(sigma))
    assert np.isfinite(value)
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_an_impossible_class_for_all_parts_leaves_no_nan():
    """Exact answers 0 and 1 of a class that is 0 for certain: −inf, and gradients of 0 or of the other part alone."""
    answers = ldp.Release(np.array([0, 1, 0]), ldp.RandomizedResponse(np.inf, 2))
    incomes = ldp.Release(np.array([10.0, 20.0, 30.0]), INCOME)

    def log_likelihood(mu):
        parts = {"answer": (None, answers), "income": (dist.Normal(mu, 1.0), incomes)}
        return log_density(lambda: ldp.observe_jointly(dist.Categorical(jnp.array([1.0, 0.0])), parts), (), {}, {})[0]

    value, slope = jax.jit(jax.value_and_grad(log_likelihood))(jnp.array([10.0, 20.0]))
    assert not np.isnan(value)
    assert np.isfinite(slope).all()


@jax.jit
def log_joint_of(answers, incomes, values):
    return log_density(model, (answers, incomes), {}, values)[0]


def test_releases_may_be_arguments_of_jit_and_vmap():
    data, sketches = survey(50), by_code(*survey(50))
    values = {
        "share": np.tile([0.6, 0.4], (2, 1)),
        "mu": np.array([[40.0, 120.0], [30.0, 90.0]]),
        "sigma": np.full(2, 9.0),
    }
    with jax.enable_x64(True):
        together = jax.jit(jax.vmap(log_joint_of, (None, None, 0)))(*data, values)
        alone = [log_joint_of(*data, {name: each[i] for name, each in values.items()}) for i in range(2)]
        sketched = log_joint_of(*sketches, {name: each[0] for name, each in values.items()})
    np.testing.assert_allclose(together, alone, rtol=1e-10)
    np.testing.assert_allclose(sketched, alone[0], rtol=1e-4)


def test_sketches_by_released_code_have_the_density_of_the_releases():
    """To 1e-3 nats in all, the tolerance of sketches in `fit`; here with sixty panels."""
    data = survey(2000)
    sketches = by_code(*data)
    with jax.enable_x64(True):
        for sigma in (0.01, 10.0, 40.0):
            values = {"share": jnp.array([0.6, 0.4]), "mu": jnp.array([41.0, 110.0]), "sigma": sigma}
            exact, sketched = (float(log_joint_of(*args, values)) for args in (data, sketches))
            assert sketched == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("epsilon", [1.0, np.array([0.7, 2.0])[CLASSES % 2], BUDGETS], ids=["one", "code", "person"])
def test_releases_by_code_have_the_density_of_the_release_in_the_order_of_people(epsilon):
    """Budgets follow their people, also where all of it is traced."""
    codes, values = np.arange(N) % 3 % 2, np.linspace(-50.0, 250.0, N)
    whole = ldp.Release(values, ldp.LaplaceMechanism(epsilon, 0, 200))
    budgets = [epsilon if np.ndim(epsilon) == 0 else epsilon[codes == code] for code in range(2)]
    parts = [ldp.Release(values[codes == c], ldp.LaplaceMechanism(budgets[c], 0, 200)) for c in range(2)]
    answers = ldp.Release(codes, ldp.RandomizedResponse(1.0, 2))
    drawn = {"share": np.array([0.6, 0.4]), "mu": np.array([40.0, 120.0]), "sigma": 9.0}
    with jax.enable_x64(True):
        expected = float(log_joint_of(answers, whole, drawn))
        closed_over = jax.jit(lambda: log_density(model, (answers, parts), {}, drawn)[0])()
        assert float(closed_over) == pytest.approx(expected, rel=1e-12)
        assert float(log_joint_of(answers, parts, drawn)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_simulated_parts_have_their_joint_law():
    """Chi square of counts in 2 · 3 · 4 cells; a right simulator fails with probability 1e-4."""
    count = 20_000
    laws = dist.Categorical(jnp.array([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7]])), dist.Normal(jnp.array([40.0, 130.0]), 20.0)
    mechanisms = ldp.RandomizedResponse(2.0, 2), ldp.RandomizedResponse(2.0, 3), ldp.LaplaceMechanism(4.0, 0, 200)
    plans = [ldp.Release(None, mechanism, count) for mechanism in mechanisms]
    parts = dict(zip(("answer", "job", "income"), zip((None, *laws), plans, strict=True), strict=True))
    classes = dist.Categorical(jnp.array([0.6, 0.4]))
    drawn = jax.jit(lambda: numpyro.handlers.seed(lambda: ldp.observe_jointly(classes, parts), 0)())()
    edges = np.array([30.0, 80.0, 140.0])
    cells = np.ravel_multi_index((drawn["answer"], drawn["job"], np.searchsorted(edges, drawn["income"])), (2, 3, 4))
    expected = np.zeros((2, 3, 4))
    for c, share in enumerate((0.6, 0.4)):
        answer = np.exp(mechanisms[0].log_prob(np.arange(2), c))
        job = np.exp(Privatized(dist.Categorical(laws[0].probs[c]), mechanisms[1]).log_prob(np.arange(3)))
        below = Privatized(dist.Normal(laws[1].loc[c], 20.0), mechanisms[2]).cdf(edges)
        income = np.diff(below, prepend=0.0, append=1.0)
        expected += share * answer[:, None, None] * job[:, None] * income
    counts = np.bincount(np.asarray(cells), minlength=24)
    assert scipy.stats.chisquare(counts, count * expected.ravel() / expected.sum()).pvalue > 1e-4


@functools.cache
def posterior(sketched):
    data = survey(400, 3.0)
    data = by_code(*data, panels=20) if sketched else data
    options = {"num_samples": 200, "num_chains": 2, "posterior_predictive": True, "progress_bar": False}
    return ldp.fit(of_known_spread, *data, **options, log_likelihood=not sketched, seed=0)


SKETCHED = pytest.param(False, marks=pytest.mark.slow), True  # whether data are sketches


@pytest.mark.slow
@pytest.mark.parametrize("sketched", SKETCHED)
def test_a_fit_keeps_what_was_released_of_every_part(sketched):
    result, (answers, incomes) = posterior(sketched), survey(400, 3.0)
    observed = result["observed_data"]
    kinds = [spec["mechanism"] for spec in json.loads(result.attrs["mechanisms"])]
    assert set(kinds) == {"randomized_response", "laplace"}
    assert "epsilon = 3" in result.attrs["privacy"]
    pairs = lambda answer, income: sorted(zip(np.asarray(answer), np.asarray(income), strict=True))  # noqa: E731
    assert pairs(observed["answer"], observed["income"]) == pairs(answers.values, incomes.values)
    if not sketched:
        assert result["log_likelihood"]["answer"].shape == result["log_likelihood"]["income"].shape == (2, 200, 400)


@pytest.mark.slow
@pytest.mark.parametrize("sketched", SKETCHED)
def test_replicates_are_released_values_of_people_with_one_class(sketched):
    """Means of incomes by answer, as in the data: the difference is several standard errors of either."""
    result, (answers, incomes) = posterior(sketched), survey(400, 3.0)
    draws = result["posterior_predictive"]
    answer, income = np.asarray(draws["answer"]).ravel(), np.asarray(draws["income"]).ravel()
    gap = income[answer == 1].mean() - income[answer == 0].mean()
    own = incomes.values[answers.values == 1].mean() - incomes.values[answers.values == 0].mean()
    noise = np.sqrt(2) * 200 / 3
    assert abs(gap - own) < 4 * noise * np.sqrt(1 / np.sum(answers.values == 1) + 1 / np.sum(answers.values == 0))


@pytest.mark.slow
@pytest.mark.parametrize("sketched", SKETCHED)
def test_predictions_are_original_records_of_people_with_one_class(sketched):
    drawn = ldp.predict(posterior(sketched), of_known_spread)
    answer, income = (np.asarray(drawn[name]).ravel() for name in ("answer", "income"))
    mu = np.asarray(posterior(sketched)["posterior"]["mu"])
    share = np.asarray(posterior(sketched)["posterior"]["share"])
    mu, share = mu[:, :, None] if mu.ndim == 2 else mu, share
    for code in range(2):
        error = income[answer == code].std() / np.sqrt(np.sum(answer == code))
        assert income[answer == code].mean() == pytest.approx(np.mean(mu[..., code]), abs=5 * error)
    means = ldp.predict(posterior(sketched), of_known_spread, kind="mean")
    expected = (share * mu.reshape(share.shape)).sum(-1)
    np.testing.assert_allclose(np.asarray(means["income"])[..., 0], expected, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(means["answer"])[..., 0, :], share, rtol=1e-6)


def test_predictive_with_plans_simulates_all_parts():
    plans = [ldp.Release(None, mechanism, 7) for mechanism in (ldp.RandomizedResponse(1.0, 2), INCOME)]
    drawn = numpyro.infer.Predictive(model, num_samples=3)(jax.random.key(0), *plans)
    assert drawn["answer"].shape == drawn["income"].shape == (3, 7)


ANSWERS, INCOMES = survey(30)
LAW = dist.Normal(MEANS[:2], 1.0)
TWO = dist.Categorical(np.array([0.5, 0.5]))
SKETCHES = by_code(ANSWERS, INCOMES)


@pytest.mark.parametrize(
    ("classes", "parts", "error", "message"),
    [
        (
            dist.Poisson(1.0),
            {"a": (None, ANSWERS)},
            TypeError,
            "classes must be a Categorical or Bernoulli law, got Poi",
        ),
        (TWO, {}, TypeError, "parts must be a dict from names of sites to pairs"),
        (TWO, {"a": ANSWERS}, TypeError, "parts must be a dict from names of sites to pairs"),
        (TWO, {"a": (3.0, ANSWERS)}, ValueError, "site 'a': law must be None, or laws"),
        (TWO, {"a": (None, 3.0)}, TypeError, "site 'a': observe takes a Release or a Sketch"),
        (TWO, {"b": (None, INCOMES)}, ValueError, "None means that records are the 2 classes, which do not fit Lap"),
        (
            dist.Categorical(SHARES),
            {"a": (None, ANSWERS)},
            ValueError,
            "site 'a': the law None means that records are the 3",
        ),
        (
            TWO,
            {"a": (None, ANSWERS), "b": (dist.Normal(MEANS, 1.0), INCOMES)},
            ValueError,
            r"site 'b': law must be None, or laws \(..., 2\) of the classes",
        ),
        (TWO, {"a": (None, ANSWERS), "b": (dist.Normal(0.0, 1.0), INCOMES)}, ValueError, "law must be None, or laws"),
        (
            TWO,
            {"a": (None, ANSWERS), "b": (dist.Uniform(0.0, MEANS[:2]), INCOMES)},
            ValueError,
            "with one support; got <numpyro.*Uniform",
        ),
        (
            TWO,
            {"a": (None, ANSWERS), "b": (LAW, survey(31)[1])},
            ValueError,
            "must have as many released records, because 'a' has Release",
        ),
        (
            TWO,
            {"a": (None, ANSWERS), "b": (LAW, SKETCHES[1])},
            ValueError,
            "must have as many released records, of one kind, in the order of codes 0, ..., K − 1, because",
        ),
        (
            TWO,
            {"a": (None, SKETCHES[0]), "b": (LAW, INCOMES)},
            ValueError,
            "must have a list of sketches",
        ),
        (
            TWO,
            {"a": (None, SKETCHES[0]), "b": (LAW, SKETCHES[1][::-1])},
            ValueError,
            "must have \\[14. 16.\\] people by code, as counted at 'a', got \\[16. 14.\\]",
        ),
        (
            TWO,
            {"a": (None, SKETCHES[0]), "b": (LAW, SKETCHES[1]), "c": (LAW, SKETCHES[1])},
            ValueError,
            "site 'b': must have a list of sketches",
        ),
        (
            TWO,
            {"a": (LAW, INCOMES), "b": (LAW, [INCOMES, INCOMES])},
            ValueError,
            "must have .*, in the order of codes 0, .* because 'a' has Release",
        ),
        (
            TWO,
            {"a": (None, SKETCHES[0]), "b": (LAW, [INCOMES, INCOMES])},
            ValueError,
            "must have a list of sketches",
        ),
        (
            TWO,
            {
                "a": (None, ANSWERS),
                "b": (LAW, [INCOMES, ldp.Release(np.zeros(9), ldp.GaussianMechanism(1, 0.1, 0, 9))]),
            },
            ValueError,
            "must have as many released records, of one kind, in the order of codes",
        ),
        (
            TWO,
            {
                "a": (None, ldp.Release(None, ANSWERS.mechanism, 9)),
                "b": (LAW, [ldp.Release(None, ldp.LaplaceMechanism(epsilon, 0, 200), 9) for epsilon in (1.0, 2.0)]),
            },
            ValueError,
            "site 'b': 'a' has no values, so nobody's category is known",
        ),
        (
            dist.Categorical(SHARES).expand([29]),
            {"a": (None, said(ldp.RandomizedResponse(1.0, 3), np.arange(30) % 3))},
            ValueError,
            "site 'a': base_dist has batch shape",
        ),
    ],
)
def test_other_parts_are_refused(classes, parts, error, message):
    with pytest.raises(error, match=message):
        refuse(classes, parts)


def test_impossible_values_of_any_part_are_refused():
    wrong = ldp.Release(np.array([0.0] * 30), INCOME)
    object.__setattr__(wrong, "values", np.full(30, np.nan))
    with pytest.raises(ValueError, match="values must be finite"):
        refuse(TWO, {"a": (None, ANSWERS), "b": (LAW, wrong)})


@pytest.mark.slow
def test_a_chain_with_each_persons_class_and_income_finds_the_same_posterior():
    """Gibbs steps of the classes between steps of NUTS. Means agree to 5 Monte Carlo standard errors of both."""
    import arviz as az

    answers, incomes = survey(25, 4.0)
    keep = float(np.exp(answers.mechanism.log_prob(0, 0)))

    def explicit():
        share = numpyro.sample("share", dist.Dirichlet(2 * jnp.ones(2)))
        with numpyro.plate("group", 2):
            mu = numpyro.sample("mu", dist.Normal(50, 30))
        sigma = numpyro.sample("sigma", dist.HalfNormal(20))
        with numpyro.plate("people", answers.count):
            kind = numpyro.sample("kind", dist.Categorical(share))
            income = mu[kind] + sigma * numpyro.sample("u", dist.Normal(0, 1))
            numpyro.sample("answer", dist.Bernoulli(jnp.where(kind == 1, keep, 1 - keep)), obs=answers.values)
            numpyro.sample("income", dist.Laplace(jnp.clip(income, 0, 200), 50.0), obs=incomes.values)

    with jax.enable_x64(True):
        kernel = numpyro.infer.DiscreteHMCGibbs(numpyro.infer.NUTS(explicit, target_accept_prob=0.9))
        chain = numpyro.infer.MCMC(kernel, num_warmup=2000, num_samples=15_000, num_chains=2, progress_bar=False)
        chain.run(jax.random.key(0))
        samples = chain.get_samples(group_by_chain=True)
    result = ldp.fit(model, answers, incomes, 2.0, num_samples=4000, num_chains=2, seed=0, expand=False)
    for name in ("share", "mu", "sigma"):
        ours = np.asarray(result["posterior"][name])
        theirs = np.asarray(samples[name])
        for index in np.ndindex(ours.shape[2:]):
            one, other = ours[(..., *index)], theirs[(..., *index)]
            error = np.hypot(float(az.mcse(one)), float(az.mcse(other)))
            assert one.mean() == pytest.approx(other.mean(), abs=5 * error)


# --- exact columns: a randomized answer as covariate of an outcome without noise --------------------------------------


def outcome(answers, y, exact_first=False):
    share, slope = numpyro.sample("share", dist.Uniform()), numpyro.sample("slope", dist.Normal(0, 10))
    start, sigma = numpyro.sample("start", dist.Normal(0, 100)), numpyro.sample("sigma", dist.HalfNormal(10))
    parts = {"answer": (None, answers), "y": (dist.Normal(jnp.stack([start, start + slope]), sigma), y)}
    parts = dict(reversed(parts.items())) if exact_first else parts
    ldp.observe_jointly(dist.Bernoulli(share), parts)


VALUES = {"share": 0.3, "slope": 3.0, "start": 10.0, "sigma": 2.0}


@pytest.mark.slow
@pytest.mark.parametrize("exact_first", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_exact_column_has_the_likelihood_of_the_sum_over_classes(exact_first):
    rng = np.random.default_rng(4)
    z, y = rng.integers(0, 2, 50), rng.normal(11, 3, 50)
    answers = ldp.Release(z, ldp.RandomizedResponse(truth=0.75))
    kinds = [
        share * np.where(z == x, 0.75, 0.25) * scipy.stats.norm.pdf(y, 10 + 3 * x, 2)
        for x, share in enumerate((0.7, 0.3))
    ]
    priors = [dist.Uniform(), dist.Normal(0, 10), dist.Normal(0, 100), dist.HalfNormal(10)]
    with jax.enable_x64(True):
        prior = sum(float(law.log_prob(VALUES[name])) for law, name in zip(priors, VALUES, strict=True))
        found = log_density(outcome, (answers, y, exact_first), {}, VALUES)[0]
    assert float(found) - prior == pytest.approx(np.log(sum(kinds)).sum(), rel=1e-12)


@pytest.mark.slow
@pytest.mark.skipif("LDPBAYES_DATA" not in os.environ, reason="LDPBAYES_DATA names no folder with tables")
def test_an_answer_is_the_covariate_of_an_exact_outcome():
    """Maximum likelihood: share .3192, 9.9714 + 2.9123 x, sigma 2.0024; the standard error of the slope is .19."""
    path = pathlib.Path(os.environ["LDPBAYES_DATA"]).parent / "cases" / "answer_as_covariate.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    table = np.genfromtxt(path, delimiter=",", names=True)
    answers = ldp.Release(table["answer"].astype(int), ldp.RandomizedResponse(truth=0.75))
    posterior = ldp.fit(outcome, answers, table["y"], progress_bar=False).posterior
    wanted = {"share": (0.3192, 0.02), "start": (9.9714, 0.085), "slope": (2.9123, 0.19), "sigma": (2.0024, 0.056)}
    for name, (estimate, error) in wanted.items():
        assert abs(posterior[name].values.mean() - estimate) < 0.25 * error  # skewness and four chains
        assert posterior[name].values.std() == pytest.approx(error, rel=0.15)


def test_exact_columns_of_other_people_are_refused():
    answers = ldp.Release([0, 1, 1], ldp.RandomizedResponse(truth=0.75))
    laws = dist.Normal(jnp.array([0.0, 1.0]), 1.0)
    for y, message in ((np.zeros(4), "4 records are not of the people of 'z'"), (np.array([0, np.nan, 1]), "finite")):
        with pytest.raises(ValueError, match=message):
            ldp.observe_jointly(dist.Bernoulli(0.3), {"z": (None, answers), "y": (laws, y)})
    four = dist.Normal(jnp.zeros((4, 2)), 1.0)
    with pytest.raises(
        ValueError, match="site 'y': classes, laws or parts before are of 4 people, but there are 3 records"
    ):
        ldp.observe_jointly(dist.Bernoulli(0.3), {"z": (None, answers), "y": (four, np.zeros(3))})
    with pytest.raises(ValueError, match="Original records must be an array"):
        ldp.observe_jointly(dist.Bernoulli(0.3), {"z": (None, answers), "y": (laws, [0.0, 1.0, 1.0])})
    with pytest.raises(ValueError, match="are not of the people"):
        ldp.observe_jointly(dist.Bernoulli(0.3), {"z": (None, answers.sketch()), "y": (laws, np.zeros(3))})
