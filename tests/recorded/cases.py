"""Computations whose results are kept in `values.json`: log densities, estimates, replicates and guarantees.

Only public names of `ldpbayes` and its folders are used, so that the same file runs with earlier and later versions.
Records and released values come from NumPy's generators: they do not depend on how a mechanism draws. The bootstrap
cases alone draw with JAX, from fixed seeds. Everything is computed in double precision.

`record.py` writes the file.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density

import ldpbayes as ldp
from ldpbayes import bootstrap, estimation, likelihood, mechanisms, models, noise, privacy
from ldpbayes.estimation import losses
from ldpbayes.mechanisms import design
from ldpbayes.privacy import calibration


def compute(*cases: str) -> dict[str, list[float]]:
    """Numbers of the cases that are named, by name, "case: what"."""
    found = {}
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ldp.LdpBayesWarning)
        for case in cases:
            for what, numbers in _table(case.split(", ")[0])[case]().items():
                found[f"{case}: {what}"] = np.asarray(numbers, float).ravel().tolist()
    return found


def statements() -> dict[str, str]:
    """What the guarantees say, by the names of their cases."""
    return {name: guarantee.statement() for name, guarantee in _guarantees().items()}


def specs() -> dict[str, dict]:
    """Spec and repr of mechanisms, by a name."""
    return {name: {"spec": m.spec(), "repr": repr(m)} for name, m in _mechanisms().items()}


_GROUPS = ("guarantee", "density", "model", "estimate", "frequencies", "bootstrap", "learning", "design")


def names() -> list[str]:
    """Names of all cases."""
    with jax.enable_x64(True):
        return [case for group in _GROUPS for case in _table(group)]


@functools.cache
def _table(group):
    """Functions without arguments, by the names of their cases, which begin with the group: they return numbers."""
    if group == "learning":
        fits = {name: functools.partial(_linear_fit, *given) for name, given in _linear_fits().items()}
        return {f"learning, {name}": function for name, function in (fits | _label_priors()).items()}
    if group == "design":
        return {f"design, {name}": function for name, function in _designs().items()}
    if group == "guarantee":
        return {name: functools.partial(_guarantee, name) for name in _guarantees()}
    function, arguments = {
        "density": (_density, _densities),
        "model": (_joint_density, _joint_densities),
        "estimate": (_estimate, _estimates),
        "frequencies": (_frequencies, _histograms),
        "bootstrap": (_bootstrap, _bootstraps),
    }[group]
    table = {f"{group}, {name}": functools.partial(function, *given) for name, given in arguments().items()}
    if group == "estimate":
        table["estimate, two batches"] = lambda: _numbers(_first_batch().update(_rows()[1]))
        table["estimate, bootstrap"] = lambda: _numbers(_first_batch().bootstrap(20))
    return table


# --- mechanisms


@functools.cache
def _mechanisms():
    """One or two instances of every registered mechanism."""
    budgets = np.array([0.5, 1.0, 2.0])
    names = ("age", "income", "ill")
    return {
        "Laplace": ldp.LaplaceMechanism(1.5, -2, 3),
        "Laplace, personal budgets": ldp.LaplaceMechanism(budgets, 0, 1.0),
        "Gaussian": ldp.GaussianMechanism(1.0, 1e-5, -2, 3),
        "Gaussian, personal budgets": ldp.GaussianMechanism(budgets, 1e-3, 0.0, 4.0),
        "symmetric": mechanisms.SymmetricLaplaceMechanism(0.8, -2, 3),
        "symmetric, personal scales": mechanisms.SymmetricLaplaceMechanism(
            [0.5, 2.0, 2.0], [-1.0, -1.0], [1.0, 2.0], 3, (0, 2)
        ),
        "symmetric, named columns": mechanisms.SymmetricLaplaceMechanism(0.8, 0, 1, names, ("age", "income")),
        "symmetric, eight columns": mechanisms.SymmetricLaplaceMechanism(2.0, 0, 1, 8),
        "zero-inflated": mechanisms.ZeroInflatedLaplaceMechanism(0.1, 1.5, -1, 1),
        "zero-inflated, rows": mechanisms.ZeroInflatedLaplaceMechanism(0.25, 0.7, -1, 1, 3),
        "zero-inflated, named columns": mechanisms.ZeroInflatedLaplaceMechanism(
            0.25, 0.835, 0, [1.0, 2.0], columns=names, perturbed=("age", "income")
        ),
        "zero-inflated, personal": mechanisms.ZeroInflatedLaplaceMechanism([0.1, 0.2, 0.3], budgets, 0, 1),
        "independent": mechanisms.IndependentLaplaceMechanism(0.4, -0.5, 0.5),
        "independent, rows": mechanisms.IndependentLaplaceMechanism(0.9, -0.5, 0.5, names, ("income", "ill")),
        "randomized response": ldp.RandomizedResponse(1.0, 2),
        "randomized response, personal budgets": ldp.RandomizedResponse([0.5, 2.0, np.inf], 6),
        "optimal unary encoding": ldp.OptimalUnaryEncoding(2.0, 10),
        "optimal unary encoding, personal budgets": ldp.OptimalUnaryEncoding(budgets, 4),
        "symmetric unary encoding": mechanisms.SymmetricUnaryEncoding(1.0, 5),
        "symmetric unary encoding, personal budgets": mechanisms.SymmetricUnaryEncoding(budgets, 5),
        "subset selection": mechanisms.SubsetSelection(1.0, 12),
        "subset selection, size given": mechanisms.SubsetSelection(budgets, 12, 3),
        "local hashing": mechanisms.LocalHashing(1.5, 100),
        "local hashing, range given": mechanisms.LocalHashing(budgets, 100, 2),
        "Hadamard response": mechanisms.HadamardResponse(1.0, 7),
        "count-mean sketch": mechanisms.CountMeanSketch(1.0, 100, 4, 40),
        "Hadamard count-mean sketch": mechanisms.HadamardCountMeanSketch(budgets, 100, 4, 32),
        "Hadamard response, personal budgets": mechanisms.HadamardResponse(budgets, 20),
        "additive, a law of noise": mechanisms.AdditiveMechanism(noise.Laplace(2.0), -1.0, 4.0),
        "discrete Laplace": mechanisms.DiscreteLaplaceMechanism(2.0, 0, 10),
        "discrete Laplace, a statistic": mechanisms.DiscreteLaplaceMechanism(2.0, sensitivity=1.0),
        "discrete Gaussian": mechanisms.DiscreteGaussianMechanism(3.0, 0, 10),
        "discrete Gaussian, rows": mechanisms.DiscreteGaussianMechanism(3.0, 0, 2, names, ("age", "ill")),
        "floored": mechanisms.Floored(ldp.LaplaceMechanism(1.5, -2, 3), -1.0),
        "withheld, rounded": mechanisms.Rounded(
            mechanisms.Withheld(mechanisms.DiscreteGaussianMechanism(3.0), [5, 10.0]), 5
        ),
        "incomplete": mechanisms.Incomplete(mechanisms.AdditiveMechanism(noise.Laplace(2.0), sensitivity=1.0)),
        "staircase": mechanisms.StaircaseMechanism(2.0, -1.0, 2.0),
        "staircase, gamma given": mechanisms.StaircaseMechanism(budgets, -1.0, 2.0, 0.8),
        "linear records": mechanisms.LinearRecordsMechanism(2.0, 1e-4, 1.0, 1.5, names),
        "linear statistics": mechanisms.LinearStatisticsMechanism(1.0, 1e-6, 1.0, 2.0, 2),
        "linear statistics, central": mechanisms.LinearStatisticsMechanism(
            1.0, 1e-6, 1.0, 2.0, names, trust_model="central", count=500
        ),
        "logistic records": mechanisms.LogisticRecordsMechanism(2.0, 1e-4, 1.0, names, 0.3),
        "logistic statistics": mechanisms.LogisticStatisticsMechanism(2.0, 1e-4, 1.0, names),
        "logistic statistics, ratios": mechanisms.LogisticStatisticsMechanism(2.0, 1e-4, 1.0, 3, ratios=(1.0, 0.5)),
        "RP with prior": mechanisms.RPWithPrior(1.3, (-1.0, 3.0), 0.2),
        "RP with prior, uniform outside": mechanisms.RPWithPrior(budgets, (-1.0, 3.0), 0.2, "uniform"),
        "RR on bins": mechanisms.RROnBins(1.0, [0.0, 1.0, 2.5, 4.0], [0.6, 1.7, 3.1]),
        "unbiased randomizer": mechanisms.UnbiasedRandomizer(1.0, *_TWO_OUTPUTS),
        "square wave": mechanisms.SquareWaveMechanism(1.3, -1.0, 3.0),
        "transition matrix": mechanisms.TransitionMatrix([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]),
    }


# Two labels, two outputs and p(output | label): each row has its label as mean, and ratios are e at most.
_TWO_OUTPUTS = ([0.0, 1.0], [-1.0, 2.0], [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])


@functools.cache
def _guarantees():
    """Guarantees by the names of their cases."""
    found = {f"guarantee, {name}": mechanism.guarantee for name, mechanism in _mechanisms().items()}
    for name in ("symmetric, named columns", "independent, rows"):
        found[f"guarantee, {name}, attribute"] = _mechanisms()[name].attribute_guarantee
    return found


def _guarantee(name):
    guarantee = _guarantees()[name]
    return {
        "delta": guarantee.delta([0.1, 1, 3]),
        "epsilon": guarantee.epsilon([1e-6, 1e-3, 0.1]),
        "tradeoff": guarantee.tradeoff([0.01, 0.05, 0.3]),
    }


# --- log densities of released values


def _density(law, parameter, mechanism, values, options=None):
    """Log densities of released values, and the derivative of their sum with respect to a parameter of the law."""

    def total(parameter):
        each = ldp.Privatized(law(parameter), mechanism, **(options or {})).log_prob(values)
        return jnp.sum(each), each

    gradient, each = jax.jit(jax.grad(total, has_aux=True))(float(parameter))
    return {"log density": each, "gradient": gradient}


def _densities():
    """(law as a function of a parameter, the parameter, mechanism, released values, options) by name."""
    return _number_densities() | _row_densities() | _category_densities()


def _normal(mean):
    return dist.Normal(mean, 1.2)


def _exponential(rate):
    return dist.Exponential(rate)


def _mixture(share):
    weights = dist.Categorical(jnp.stack([share, 1 - share]))
    return dist.MixtureSameFamily(weights, dist.Normal(jnp.array([-1.0, 1.5]), jnp.array([0.5, 0.8])))


def _number_densities():
    z = np.array([-7.3, -1.7, 0.45, 1.9, 6.2])
    near = np.array([-2.9, -0.6, 0.45, 1.3, 4.1])
    budgets = np.array([0.3, 0.7, 1.1, 2.0, 5.0])
    both = ldp.LaplaceMechanism(1.5, -2, 3)
    above = ldp.LaplaceMechanism(2.0, 0, 5)
    unit = ldp.LaplaceMechanism(1.0, 0, 1)
    counts = ldp.LaplaceMechanism(1.0, 0, 10)
    gaussian = ldp.GaussianMechanism(1.0, 1e-3, -2, 3)
    gaussian_above = ldp.GaussianMechanism(2.0, 1e-4, 0, 5)
    symmetric, independent = (
        mechanisms.SymmetricLaplaceMechanism(1.1, -2, 3),
        mechanisms.IndependentLaplaceMechanism(1.1, -2, 3),
    )
    inflated = mechanisms.ZeroInflatedLaplaceMechanism(0.2, 0.9, -2, 3)
    at_bounds = np.array([-3.1, -2.0, -0.4, 3.0, 4.7])
    channel, closed_form = {"method": "channel"}, {"method": "closed_form"}
    return {
        "normal, Laplace": (_normal, 0.4, both, z),
        "normal, Laplace, closed form": (_normal, 0.4, both, z, closed_form),
        "normal, Laplace, channel": (_normal, 0.4, both, z, channel),
        "normal, Laplace, channel of 15 panels": (_normal, 0.4, both, z, channel | {"panels": 15}),
        "normal, Laplace, personal budgets": (_normal, 0.4, ldp.LaplaceMechanism(budgets, -2, 3), z),
        "normal, Laplace, personal budgets, channel": (_normal, 0.4, ldp.LaplaceMechanism(budgets, -2, 3), z, channel),
        "normal, a law a record": (lambda m: dist.Normal(m * jnp.arange(5.0), 1.2), 0.4, both, z),
        "exponential, Laplace": (_exponential, 0.8, above, z),
        "exponential, Laplace, channel": (_exponential, 0.8, above, z, channel),
        "exponential, Laplace, personal budgets": (_exponential, 0.8, ldp.LaplaceMechanism(budgets, 0.5, 5), z),
        "gamma, Laplace": (lambda a: dist.Gamma(a, 1.5), 2.5, above, z),
        "lognormal, Laplace": (lambda m: dist.LogNormal(m, 0.6), 0.3, above, z),
        "beta, Laplace": (lambda a: dist.Beta(a, 3.0), 2.0, unit, near),
        "mixture, Laplace": (_mixture, 0.3, both, z),
        "Student, Laplace": (lambda m: dist.StudentT(4.0, m, 1.1), 0.4, both, z),
        "logistic, Laplace": (lambda m: dist.Logistic(m, 0.9), 0.4, both, z),
        "Cauchy, Laplace": (lambda m: dist.Cauchy(m, 0.9), 0.4, both, z),
        "truncated normal, Laplace": (lambda m: dist.TruncatedNormal(m, 1.5, low=-3, high=4), 0.4, both, z),
        "uniform beyond the bounds, Laplace": (lambda low: dist.Uniform(low, 5.0), -4.0, both, z),
        "Laplace with its kink beyond the bounds, Laplace": (lambda m: dist.Laplace(m, 2.0), -3.0, both, z),
        "Poisson, Laplace": (dist.Poisson, 3.2, counts, z),
        "geometric, Laplace": (dist.Geometric, 0.3, counts, z),
        "negative binomial, Laplace": (lambda m: dist.NegativeBinomial2(m, 1.3), 3.2, counts, z),
        "binomial, Laplace": (lambda p: dist.Binomial(8, p), 0.3, counts, z),
        "Bernoulli, Laplace": (dist.Bernoulli, 0.3, unit, near),
        "normal, Gaussian": (_normal, 0.4, gaussian, z),
        "normal, Gaussian, channel": (_normal, 0.4, gaussian, z, channel),
        "normal, Gaussian, personal budgets": (_normal, 0.4, ldp.GaussianMechanism(budgets, 1e-3, -2, 3), z),
        "exponential, Gaussian": (_exponential, 0.8, gaussian_above, z),
        "exponential, Gaussian, channel": (_exponential, 0.8, gaussian_above, z, channel),
        "gamma, Gaussian": (lambda a: dist.Gamma(a, 1.5), 2.5, gaussian_above, z),
        "mixture, Gaussian": (_mixture, 0.3, gaussian, z),
        "Poisson, Gaussian": (dist.Poisson, 3.2, ldp.GaussianMechanism(2.0, 1e-4, 0, 10), z),
        "normal, symmetric": (_normal, 0.4, symmetric, z),
        "normal, symmetric, channel": (_normal, 0.4, symmetric, z, channel),
        "mixture, symmetric": (_mixture, 0.3, symmetric, z),
        "normal, independent": (_normal, 0.4, independent, z),
        "Student, independent": (lambda m: dist.StudentT(4.0, m, 1.1), 0.4, independent, z),
        "exponential, symmetric": (_exponential, 0.8, mechanisms.SymmetricLaplaceMechanism(1.1, 0, 5), z),
        "normal, zero-inflated": (_normal, 0.4, inflated, at_bounds),
        "normal, zero-inflated, channel": (_normal, 0.4, inflated, at_bounds, channel),
        "mixture, zero-inflated": (_mixture, 0.3, inflated, at_bounds),
        "Student, zero-inflated": (lambda m: dist.StudentT(4.0, m, 1.1), 0.4, inflated, at_bounds),
        "normal, zero-inflated, personal": (
            _normal,
            0.4,
            mechanisms.ZeroInflatedLaplaceMechanism([0.1, 0.2, 0.3, 0.4, 0.5], budgets, -2, 3),
            at_bounds,
        ),
        "normal, symmetric, some public": (
            _normal,
            0.4,
            mechanisms.SymmetricLaplaceMechanism([0.5, 0.0, 0.0, 0.0, 2.0], -2, 3),
            near,
        ),
    }


_COVARIANCE = np.array([[1.0, 0.3, -0.2], [0.3, 0.8, 0.1], [-0.2, 0.1, 0.5]])


def _normal_rows(mean):
    return dist.MultivariateNormal(mean * jnp.array([1.0, -0.5, 2.0]), _COVARIANCE)


def _wider_normal_rows(variance):
    return dist.MultivariateNormal(jnp.array([0.3, 0.0, -0.2]), variance * _COVARIANCE)


def _row_densities():
    rng = np.random.default_rng(1)
    z = np.round(rng.normal(0, 1.5, (4, 3)), 3)
    scales = np.array([0.3, 0.6, 1.0, 2.0])
    names = ("age", "income", "ill")
    symmetric, inflated = mechanisms.SymmetricLaplaceMechanism, mechanisms.ZeroInflatedLaplaceMechanism
    return {
        "rows, symmetric": (_normal_rows, 0.3, symmetric(0.9, -5, 5, 3), z),
        "wider rows, symmetric": (_wider_normal_rows, 1.3, symmetric(0.9, -5, 5, 3), z),
        "rows, symmetric in two columns": (_normal_rows, 0.3, symmetric(0.9, -5, 5, 3, (0, 2)), z),
        "rows, symmetric in one named column": (_normal_rows, 0.3, symmetric(0.9, -5, 5, names, ("income",)), z),
        "rows, symmetric, personal scales": (_normal_rows, 0.3, symmetric(scales, -5, 5, 3, (0, 2)), z),
        "rows, zero-inflated": (_normal_rows, 0.3, inflated(0.2, 0.9, -5, 5, 3), z),
        "rows, zero-inflated in two named columns": (
            _normal_rows,
            0.3,
            inflated(0.2, 0.9, -5, 5, columns=names, perturbed=("age", "ill")),
            z,
        ),
        "wider rows, zero-inflated in two columns": (_wider_normal_rows, 1.3, inflated(0.2, 0.9, -5, 5, 3, (1, 2)), z),
        "rows, zero-inflated, personal": (_normal_rows, 0.3, inflated(scales / 4, scales, -5, 5, 3), z),
    }


_SCORES = np.array([0.0, 1.0, 0.3, -0.4, 0.9])


def _categories(slope):
    return dist.Categorical(logits=slope * jnp.asarray(_SCORES))


def _category_densities():
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2, (6, 5))
    codes = np.array([0, 1, 2, 3, 4, 2])
    pairs = np.array([[0, 1], [1, 0], [0, 1], [0, 1], [1, 0], [1, 0]])
    subsets = np.argsort(np.argsort(rng.random((6, 5)), axis=1), axis=1) < 2
    hashes = np.column_stack([rng.integers(0, 2**32, 6), rng.integers(0, 3, 6)]).astype(np.uint32)
    columns = np.array([0, 1, 3, 5, 6, 7])
    budgets = np.array([0.3, 0.6, 1.0, 1.5, 2.0, 4.0])

    def law_a_record(slope):
        return dist.Categorical(logits=slope * jnp.asarray(_SCORES) * jnp.arange(6.0)[:, None])

    binomial = functools.partial(dist.Binomial, 4)
    return {
        "Bernoulli, randomized response": (dist.Bernoulli, 0.3, ldp.RandomizedResponse(1.0, 2), codes % 2),
        "categories, randomized response": (_categories, 0.7, ldp.RandomizedResponse(1.0, 5), codes),
        "categories, randomized response, channel": (
            _categories,
            0.7,
            ldp.RandomizedResponse(1.0, 5),
            codes,
            {"method": "channel"},
        ),
        "categories, randomized response, personal budgets": (
            _categories,
            0.7,
            ldp.RandomizedResponse(budgets, 5),
            codes,
        ),
        "a law a record, randomized response": (law_a_record, 0.7, ldp.RandomizedResponse(1.0, 5), codes),
        "binomial, randomized response": (binomial, 0.4, ldp.RandomizedResponse(1.0, 5), codes),
        "categories, optimal unary encoding": (_categories, 0.7, ldp.OptimalUnaryEncoding(1.0, 5), bits),
        "categories, optimal unary encoding, personal budgets": (
            _categories,
            0.7,
            ldp.OptimalUnaryEncoding(budgets, 5),
            bits,
        ),
        "a law a record, optimal unary encoding": (law_a_record, 0.7, ldp.OptimalUnaryEncoding(budgets, 5), bits),
        "Bernoulli, optimal unary encoding": (dist.Bernoulli, 0.3, ldp.OptimalUnaryEncoding(1.0, 2), pairs),
        "categories, symmetric unary encoding": (_categories, 0.7, mechanisms.SymmetricUnaryEncoding(1.0, 5), bits),
        "categories, subset selection": (_categories, 0.7, mechanisms.SubsetSelection(1.0, 5, 2), subsets.astype(int)),
        "categories, subset selection, personal budgets": (
            _categories,
            0.7,
            mechanisms.SubsetSelection(budgets, 5, 2),
            subsets.astype(int),
        ),
        "categories, local hashing": (_categories, 0.7, mechanisms.LocalHashing(1.0, 5, 3), hashes),
        "categories, local hashing, personal budgets": (
            _categories,
            0.7,
            mechanisms.LocalHashing(budgets, 5, 3),
            hashes,
        ),
        "categories, Hadamard response": (_categories, 0.7, mechanisms.HadamardResponse(1.0, 5), columns),
        "categories, Hadamard response, personal budgets": (
            _categories,
            0.7,
            mechanisms.HadamardResponse(budgets, 5),
            columns,
        ),
    }


# --- log densities of models of releases, sketches and regressions


def _joint_density(model, parameters):
    """Log density of a model, and its derivatives with respect to all parameters."""

    def total(parameters):
        return log_density(model, (), {}, parameters)[0]

    parameters = {name: jnp.asarray(value, float) for name, value in parameters.items()}
    value, gradient = jax.jit(jax.value_and_grad(total))(parameters)
    return {"log density": value} | {f"gradient, {name}": gradient[name] for name in sorted(gradient)}


def _observed(law, data):
    """A model of released values whose records follow a law of one parameter p."""

    def model():
        ldp.observe("z", law(numpyro.sample("p", dist.ImproperUniform(dist.constraints.real, (), ()))), data)

    return model


def _joint_densities():
    """(model without arguments, parameters) by name."""
    numbers, rows, categories = _number_releases(), _rows()[0], _category_releases()
    found = {}
    for name, (law, parameter) in {
        "Laplace": (_normal, 0.4),
        "Gaussian": (_mixture, 0.3),
        "symmetric": (_mixture, 0.3),
        "independent": (_normal, 0.4),
        "zero-inflated": (_normal, 0.4),
        "counts": (dist.Poisson, 3.2),
    }.items():
        found[f"sketch, {name}"] = _observed(law, numbers[name].sketch()), {"p": parameter}
    found["sketch, 17 panels"] = _observed(_normal, numbers["Laplace"].sketch(panels=17)), {"p": 0.4}
    two = [ldp.Release(values, numbers["Laplace"].mechanism) for values in np.split(numbers["Laplace"].values, 2)]
    found["sketch, sum of two"] = _observed(_normal, two[0].sketch() + two[1].sketch()), {"p": 0.4}
    for name, release in categories.items():
        law = functools.partial(_many_categories, release.mechanism.categories)
        found[f"sketch, {name}"] = _observed(law, release.sketch()), {"p": 0.7}
    groups = np.arange(300) % 3
    found["sketch, groups"] = (
        _observed(
            lambda p: dist.Categorical(logits=p * jnp.arange(1.0, 4)[:, None] * jnp.asarray(_SCORES)),
            categories["randomized response"].sketch(by=groups),
        ),
        {"p": 0.7},
    )
    found["release, a law a record"] = (
        _observed(lambda p: dist.Normal(p * jnp.linspace(-1, 1, 300), 1.2), numbers["Laplace"]),
        {"p": 0.4},
    )
    found["release, rows"] = (
        _observed(lambda p: dist.MultivariateNormal(p * jnp.ones(3), 0.3 * _COVARIANCE), rows),
        {"p": 0.2},
    )
    found["release, many categories"] = (
        _observed(functools.partial(_many_categories, 80), _many_bits()),
        {"p": 0.7},
    )

    def ordinary():
        with numpyro.plate("records", 300):
            mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()).mask(False))
            numpyro.sample("x", dist.Normal(mean, 1.2), obs=numbers["Laplace"].values)

    found["privatize"] = ldp.privatize(ordinary, {"x": numbers["Laplace"].mechanism}), {"mean": np.linspace(-1, 1, 300)}
    for name, response, intercept in (
        ("logistic regression", lambda eta: dist.Bernoulli(logits=eta), 0.3),
        ("normal regression", lambda eta: dist.Normal(eta, 0.7), 0.0),
    ):
        for kind, release in (("zero-inflated", rows), ("symmetric", _symmetric_rows())):
            found[f"{name}, {kind}"] = _regression(response, intercept, release), {"slopes": [1.0, -2.0]}
    found["regression, 9 scales, 5 nodes"] = (
        _regression(lambda eta: dist.Bernoulli(logits=eta), 0.3, rows, scales=9, nodes=5),
        {"slopes": [1.0, -2.0]},
    )
    simplex = np.arange(1.0, 6) / 15
    found["clipped_gaussian"] = _with(models.clipped_gaussian(), numbers["Laplace"]), {"mu": 0.3, "sigma": 1.1}
    found["clipped_exponential"] = _with(models.clipped_exponential(), numbers["counts"]), {"rate": 0.4}
    found["clipped_counts"] = _with(models.clipped_counts(), numbers["counts"]), {"mean": 3.2, "concentration": 1.3}
    found["oue_histogram"] = _with(models.oue_histogram(), categories["optimal unary encoding"]), {"theta": simplex}
    found["warner"] = _with(models.warner(), _yes_or_no()), {"theta": 0.3}
    found["multivariate_normal"] = (
        _with(models.multivariate_normal(), rows),
        {"mean": [0.1, 0.0, 0.5], "scale": [0.3, 0.4, 0.5], "root": np.linalg.cholesky(0.7 * np.eye(3) + 0.3)},
    )
    found["hierarchical"] = (
        _with(models.hierarchical(), [release.sketch() for release in two]),
        {"mu": 0.3, "tau": 0.7, "sigma": 1.1, "theta": [0.44, -0.05]},
    )
    found["perturbed_covariates"] = (
        _with(models.perturbed_covariates(concentration=None), rows),
        {"slopes": [1.0, -2.0], "intercept": 0.3, "mean": [0.1, 0.0], "scale": [0.3, 0.4]},
    )
    return found


def _with(model, data):
    return functools.partial(model, data)


def _regression(response, intercept, release, **options):
    """A model of rows of two covariates and a response."""

    def model():
        slopes = numpyro.sample("slopes", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
        covariates = dist.MultivariateNormal(jnp.array([0.1, -0.1]), np.array([[0.1, 0.03], [0.03, 0.08]]))
        rows = likelihood.RegressionRows(covariates, response, slopes, intercept, place=2, **options)
        law = ldp.Privatized(rows, release.mechanism)
        numpyro.sample("z", law.expand([len(release)]), obs=release.values)

    return model


def _many_categories(count, slope):
    return dist.Categorical(logits=slope * jnp.asarray(np.resize(_SCORES, count)))


@functools.cache
def _number_releases():
    """300 released numbers by the kind of noise, and released counts."""
    rng = np.random.default_rng(3)
    x = np.clip(rng.normal(0.5, 1.2, 300), -2, 3)
    made = {
        "Laplace": ldp.LaplaceMechanism(1.5, -2, 3),
        "Gaussian": ldp.GaussianMechanism(1.0, 1e-3, -2, 3),
        "symmetric": mechanisms.SymmetricLaplaceMechanism(1.1, -2, 3),
        "independent": mechanisms.IndependentLaplaceMechanism(1.1, -2, 3),
        "zero-inflated": mechanisms.ZeroInflatedLaplaceMechanism(0.2, 0.9, -2, 3),
    }
    drawn = {
        "Laplace": rng.laplace(0, 5 / 1.5, 300),
        "Gaussian": rng.normal(0, made["Gaussian"].scale, 300),
        "symmetric": rng.laplace(0, 1.1 / np.sqrt(2), 300),
        "independent": rng.laplace(0, 1.1 / np.sqrt(2), 300),
        "zero-inflated": rng.laplace(0, 0.9 / np.sqrt(2), 300) * (rng.random(300) > 0.2),
    }
    found = {name: ldp.Release(x + drawn[name], mechanism) for name, mechanism in made.items()}
    counts = np.minimum(rng.poisson(3.2, 300), 10) + rng.laplace(0, 10, 300)
    return found | {"counts": ldp.Release(counts, ldp.LaplaceMechanism(1.0, 0, 10))}


@functools.cache
def _category_releases():
    """300 released values of five categories, or of a hundred under local hashing, by the protocol."""
    rng = np.random.default_rng(4)
    x = rng.choice(5, 300, p=np.array([4, 3, 2, 1, 0.5]) / 10.5)
    own = np.eye(5, dtype=bool)[x]
    budgets = np.resize([0.5, 1.0, 3.0], 300)
    chosen = np.where(own, np.where(rng.random((300, 1)) < 0.7, -1.0, 2.0), rng.random((300, 5)))
    released = {
        "randomized response": (
            ldp.RandomizedResponse(1.0, 5),
            np.where(rng.random(300) < 0.3, x, rng.integers(0, 5, 300)),
        ),
        "randomized response, personal budgets": (
            ldp.RandomizedResponse(budgets, 5),
            np.where(rng.random(300) < 0.4, x, rng.integers(0, 5, 300)),
        ),
        "optimal unary encoding": (
            ldp.OptimalUnaryEncoding(1.0, 5),
            rng.random((300, 5)) < np.where(own, 0.5, 0.27),
        ),
        "symmetric unary encoding": (
            mechanisms.SymmetricUnaryEncoding(budgets, 5),
            rng.random((300, 5)) < np.where(own, 0.65, 0.35),
        ),
        "subset selection": (
            mechanisms.SubsetSelection(1.0, 5, 2),
            np.argsort(np.argsort(chosen, axis=1), axis=1) < 2,
        ),
        "local hashing": (
            mechanisms.LocalHashing(1.0, 100, 4),
            np.column_stack([rng.integers(0, 2**32, 300), rng.integers(0, 4, 300)]),
        ),
        "Hadamard response": (mechanisms.HadamardResponse(1.0, 5), rng.integers(0, 8, 300)),
    }
    return {name: ldp.Release(values.astype(np.uint32), mechanism) for name, (mechanism, values) in released.items()}


def _many_bits():
    """A release that takes more than one chunk of the likelihood."""
    bits = np.random.default_rng(5).random((1000, 80)) < 0.2718
    return ldp.Release(bits.astype(np.uint8), ldp.OptimalUnaryEncoding(1.0, 80))


def _yes_or_no():
    return ldp.Release(np.random.default_rng(6).random(300) < 0.4, ldp.RandomizedResponse(1.0, 2))


# --- M-estimates and frequencies


def _numbers(estimate):
    return {"parameters": estimate.params, "errors": estimate.standard_error}


def _estimate(loss, data, method, options=None):
    return _numbers(ldp.m_estimate(loss, data, method, **(options or {})))


def _originals(rng, count):
    """Rows of two covariates and a response in {0, 1}."""
    x = rng.uniform(-0.5, 0.5, (count, 2))
    y = rng.random(count) < 1 / (1 + np.exp(-(0.3 + x @ [1.0, -2.0])))
    return np.column_stack([x, y])


def _noise(rng, count, scale):
    """Symmetric Laplace noise on the two covariates."""
    noise = scale * np.sqrt(rng.exponential(size=count))[:, None] * rng.normal(size=(count, 2))
    return np.column_stack([noise, np.zeros(count)])


@functools.cache
def _rows():
    """400 and 200 rows released with zero-inflated noise, and the 400 original ones."""
    rng = np.random.default_rng(7)
    mechanism = mechanisms.ZeroInflatedLaplaceMechanism(
        0.3, 0.2, -0.5, 0.5, ("age", "income", "ill"), ("age", "income")
    )
    originals = [_originals(rng, count) for count in (400, 200)]
    releases = [
        ldp.Release(rows + _noise(rng, len(rows), 0.2) * (rng.random((len(rows), 1)) > 0.3), mechanism)
        for rows in originals
    ]
    return *releases, originals[0]


@functools.cache
def _symmetric_rows():
    rng = np.random.default_rng(8)
    return ldp.Release(
        _originals(rng, 400) + _noise(rng, 400, 0.2), mechanisms.SymmetricLaplaceMechanism(0.2, -0.5, 0.5, 3, (0, 1))
    )


@functools.cache
def _independent_rows():
    rng = np.random.default_rng(9)
    rows = _originals(rng, 400)
    rows[:, :2] += rng.laplace(0, 0.2 / np.sqrt(2), (400, 2))
    return ldp.Release(rows, mechanisms.IndependentLaplaceMechanism(0.2, -0.5, 0.5, 3, (0, 1)))


@functools.cache
def _continuous_rows():
    """400 rows with a response that is a real number: as released, and as they were."""
    rng = np.random.default_rng(10)
    rows = _originals(rng, 400)
    rows[:, 2] = 0.3 + rows[:, :2] @ [1.0, -2.0] + rng.normal(0, 0.5, 400)
    released = rows + _noise(rng, 400, 0.2) * (rng.random((400, 1)) > 0.3)
    return ldp.Release(released, mechanisms.ZeroInflatedLaplaceMechanism(0.3, 0.2, -0.5, 0.5, 3, (0, 1))), rows


@functools.cache
def _unit_numbers():
    """400 numbers between 0 and 1, released with zero-inflated noise."""
    rng = np.random.default_rng(11)
    noise = rng.laplace(0, 0.5 / np.sqrt(2), 400) * (rng.random(400) > 0.3)
    return ldp.Release(rng.random(400) + noise, mechanisms.ZeroInflatedLaplaceMechanism(0.3, 0.5, 0, 1))


@functools.cache
def _first_batch():
    release = _rows()[0]
    # as many rows as the second batch, which has its programs then
    return ldp.m_estimate(losses.logistic(), ldp.Release(release.values[:200], release.mechanism), draws=4)


def _square(x, theta):
    return (theta - x**2) ** 2


def _interaction(row, theta):
    return (row[2] - theta["mean"] - theta["slope"] * row[0] * row[1]) ** 2


def _estimates():
    """(loss, data, method, options) by name."""
    binary, _, original = _rows()
    released, rows = _continuous_rows()
    numbers = _unit_numbers()
    form = {"start": {"mean": 0.0, "slope": 0.0}}
    found = {
        f"logistic, {method}": (losses.logistic(), binary, method)
        for method in ("combined", "dr", "sdr", "sl", "naive")
    }
    found |= {f"squared, {method}": (losses.squared(), released, method) for method in ("combined", "dr", "sdr", "sl")}
    return found | {
        "logistic, oracle": (losses.logistic(), original, "oracle"),
        "logistic, sl under symmetric noise": (losses.logistic(), _symmetric_rows(), "sl"),
        "logistic, independent": (losses.logistic(), _independent_rows(), "independent"),
        "logistic, dr, no support, one draw": (losses.logistic(), binary, "dr", {"support": None, "draws": 1}),
        "logistic, dr, wider support, seed 3": (losses.logistic(), binary, "dr", {"support": (-1, 1), "seed": 3}),
        "logistic, dr, in a ball": (losses.logistic(), binary, "dr", {"space": estimation.Ball(0.0, 1.5)}),
        "squared, age on income, naive": (losses.squared("age", features=("income",)), binary, "naive"),
        "squared, oracle": (losses.squared(), rows, "oracle"),
        "absolute, combined": (losses.absolute(), released, "combined"),
        "absolute, dr": (losses.absolute(), released, "dr"),
        "absolute, naive": (losses.absolute(), released, "naive"),
        "absolute, oracle": (losses.absolute(), rows, "oracle"),
        "check, combined": (losses.pinball(0.8), released, "combined"),
        "check, dr": (losses.pinball(0.8), released, "dr"),
        "median of a number, dr": (losses.absolute(features=()), numbers, "dr"),
        "huber, dr": (losses.huber(0.6), released, "dr"),
        "huber, naive": (losses.huber(0.6), released, "naive"),
        "huber, oracle": (losses.huber(0.6), rows, "oracle"),
        "function, combined": (_square, numbers, "combined", {"start": 0.0}),
        "function, dr, exact": (_square, numbers, "dr", {"start": 0.0, "draws": "exact", "cuts": (0.5,)}),
        "function of a tree, sdr": (_interaction, released, "sdr", form),
    }


def _frequencies(release, method):
    found = ldp.frequencies(release, method)
    errors = {} if found.standard_error is None else {"errors": found.standard_error}
    return {"parameters": found.estimate} | errors


def _histograms():
    """(release, method) by name."""
    releases = _category_releases()
    found = {}
    for method in ("unbiased", "base_cut", "norm_sub", "projection", "mle"):
        found[f"optimal unary encoding, {method}"] = releases["optimal unary encoding"], method
    for name in ("randomized response, personal budgets", "symmetric unary encoding", "subset selection"):
        found |= {f"{name}, {method}": (releases[name], method) for method in ("unbiased", "mle")}
    found["randomized response, unbiased"] = releases["randomized response"], "unbiased"
    found["local hashing, unbiased"] = releases["local hashing"], "unbiased"
    found["Hadamard response, unbiased"] = releases["Hadamard response"], "unbiased"
    return found


# --- replicates of private estimates


def _bootstrap(released):
    result = ldp.parametric_bootstrap(*released(), draws=20, seed=0)
    return {"parameters": result.params, "replicates": result.draws}


def _bootstraps():
    """A function that returns (estimator, release), by name: 200 records, released by the estimator with seed 0."""
    rng = np.random.default_rng(12)
    covariance = np.array([[1.0, 0.4], [0.4, 0.5]])
    numbers = rng.normal(0.5, 1.2, 200)
    positive = rng.gamma(2.5, 0.6, 200)
    shares = rng.beta(2.0, 3.0, 200)
    counts = rng.poisson(3.2, 200)
    yes = (rng.random(200) < 0.3).astype(float)
    categories = rng.choice(3, 200, p=[0.5, 0.3, 0.2])
    rows = rng.multivariate_normal([0.3, -0.2], covariance, 200)
    families = {
        "Bernoulli": (bootstrap.Bernoulli(), yes),
        "Beta": (bootstrap.Beta(0.05, 0.95), shares),
        "Binomial": (bootstrap.Binomial(8), np.minimum(counts, 8)),
        "Exponential": (bootstrap.Exponential(6.0), positive),
        "Gamma": (bootstrap.Gamma(0.1, 6.0), positive),
        "GammaRate": (bootstrap.GammaRate(2.5, 0.1, 6.0), positive),
        "Gaussian": (bootstrap.Normal(-4.0, 5.0), numbers),
        "GaussianMean": (bootstrap.NormalMean(1.2, -4.0, 5.0), numbers),
        "Multinomial": (bootstrap.Multinomial(3), categories),
        "MultivariateNormal": (bootstrap.NormalVector([-4.0, -4.0], [4.0, 4.0]), rows),
        "Poisson": (bootstrap.Poisson(12), counts),
    }
    estimators = {
        name: (bootstrap.sufficient_statistics(family, count=200, epsilon=4.0), data)
        for name, (family, data) in families.items()
    }
    estimators["Gaussian, Gaussian noise, clamping accounted for"] = (
        bootstrap.sufficient_statistics(
            bootstrap.Normal(-1.0, 2.0), count=200, epsilon=4.0, delta=1e-4, account_for_clamping=True
        ),
        numbers,
    )
    estimators["least squares"] = (
        bootstrap.least_squares(lower=[-4.0, -4.0], upper=[4.0, 4.0], count=200, epsilon=8.0),
        rows,
    )
    estimators["one posterior sample"] = (
        bootstrap.one_posterior_sample(bootstrap.Bernoulli(), count=200, epsilon=2.0, lower=0.05, upper=0.95),
        yes,
    )
    found = {name: (functools.partial(_released, *given),) for name, given in estimators.items()}
    return found | {"M-estimator": (_m_estimator,), "maximum likelihood": (_maximum_likelihood,)}


def _released(estimator, data):
    return estimator, estimator.release(data, seed=0)


def _m_estimator():
    release = _unit_numbers()
    options = {"simulator": _uniform_numbers, "start": 0.0, "draws": 1}
    return bootstrap.m_estimator(_square, release, "dr", **options), release


def _maximum_likelihood():
    return bootstrap.maximum_likelihood(models.warner(), _yes_or_no()), _yes_or_no()


def _uniform_numbers(key, theta):
    """400 numbers whose mean square is theta."""
    return jax.random.uniform(key, (400,), maxval=jnp.sqrt(3 * jnp.maximum(theta, 0.0)))


# --- predictors of released labels


def _linear_fit(release, options):
    fit = estimation.linear_fit(_label_data()[0], release, **options)
    return {"parameters": fit.params, "errors": fit.standard_error, "penalty": [fit.penalty], "loss": [fit.loss]}


@functools.cache
def _label_data():
    """Two features of 300 records, and labels before the release."""
    rng = np.random.default_rng(13)
    features = rng.normal(size=(300, 2))
    return features, 0.5 + features @ [1.0, -0.5] + rng.normal(0, 0.6, 300)


@functools.cache
def _label_releases():
    rng = np.random.default_rng(14)
    features, labels = _label_data()
    clipped = np.clip(labels, -2, 3)
    yes = rng.random(300) < 1 / (1 + np.exp(-(0.2 + features @ [1.0, -0.5])))
    counts = np.minimum(rng.poisson(np.exp(0.5 + features @ [0.4, -0.2])), 10)
    anywhere = rng.uniform(-2.4, 3.4, 300)
    near = clipped + rng.uniform(-0.4, 0.4, 300)
    return {
        "Laplace": ldp.Release(clipped + rng.laplace(0, 5 / 3, 300), ldp.LaplaceMechanism(3.0, -2, 3)),
        "RP with prior": ldp.Release(
            np.where(rng.random(300) < 0.7, near, anywhere), mechanisms.RPWithPrior(2.5, (-2.0, 3.0), 0.4)
        ),
        "randomized response": ldp.Release(
            np.where(rng.random(300) < 0.8, yes, ~yes).astype(int), ldp.RandomizedResponse(np.log(4), 2)
        ),
        "counts": ldp.Release(counts + rng.laplace(0, 10 / 4, 300), ldp.LaplaceMechanism(4.0, 0, 10)),
    }


def _linear_fits():
    """(release, options of `linear_fit`) by name."""
    releases = _label_releases()
    likelihood_of = estimation.MarginalLikelihood
    return {
        "normal, Laplace": (releases["Laplace"], {}),
        "normal, Laplace, a penalty": (releases["Laplace"], {"penalty": 2.0}),
        "squared error, Laplace": (releases["Laplace"], {"objective": estimation.SquaredError()}),
        "normal, RP with prior": (releases["RP with prior"], {"penalty": 1.0}),
        "Bernoulli, randomized response": (
            releases["randomized response"],
            {"objective": likelihood_of(dist.BernoulliLogits)},
        ),
        "Poisson, Laplace": (releases["counts"], {"objective": likelihood_of(dist.Poisson), "penalty": 1.0}),
    }


def _label_priors():
    release = _label_releases()["Laplace"]
    options = {"smooth": {}, "as released": {"deconvolved": False}}
    return {f"prior, {name}": functools.partial(_label_prior, release, given) for name, given in options.items()}


def _label_prior(release, options):
    return estimation.label_prior(release, **options)._asdict()


# --- mechanisms and noise chosen to be best, and what they need


def _loss(values, probabilities, outputs, matrix):
    return probabilities @ np.sum(matrix * (outputs - values[:, None]) ** 2, axis=1)


def _bins(values, probabilities, epsilon):
    edges, outputs = design.optimal_bins(values, probabilities, epsilon)
    odds = np.where(np.searchsorted(edges, values)[:, None] == np.arange(len(outputs)), np.exp(epsilon), 1.0)
    loss = _loss(values, probabilities, outputs, odds / odds.sum(axis=1, keepdims=True))
    return {"edges": [values[0], *edges, values[-1]], "outputs": outputs, "loss": loss}


def _unbiased(values, probabilities, *options):
    outputs, matrix = design.optimal_unbiased(values, probabilities, *options)
    return {"outputs": outputs, "matrix": matrix, "loss": _loss(values, probabilities, outputs, matrix)}


def _designs():
    """Functions without arguments by name."""
    prior = np.linspace(0.0, 4.0, 9), np.exp(-np.linspace(0.0, 2.0, 8)) / 1.8
    values, probabilities = np.array([0.0, 1.0, 2.0, 4.0]), np.array([0.4, 0.3, 0.2, 0.1])
    nodes = [0.0, 0.5, 1.5, 2.0, 4.0]
    bounds = [-1.0, 0.0], [1.0, 2.0]
    return {
        "bins": lambda: _bins(values, probabilities, 1.2),
        "unbiased": lambda: _unbiased(values, probabilities, 1.2),
        "unbiased, outputs given": lambda: _unbiased(values, probabilities, 1.2, np.linspace(-5, 9, 29)),
        "interval": lambda: {"ends": mechanisms.optimal_interval(prior, 1.5, 0.3)},
        "half width": lambda: _half_width(mechanisms.optimal_half_width(prior, 1.5)),
        "half width, interval chosen": lambda: _half_width(
            mechanisms.optimal_half_width(prior, 1.5, interval=mechanisms.optimal_interval)
        ),
        "explained variance": lambda: {"share": design.explained_variance(prior, 1.5, (0.5, 3.0), 0.3)},
        "RR on bins": lambda: _fields(mechanisms.RROnBins.optimal(prior, 2.0), "edges", "outputs"),
        "unbiased randomizer": lambda: _fields(
            mechanisms.UnbiasedRandomizer.optimal(prior, 1.3, nodes=nodes), "nodes", "outputs", "matrix"
        ),
        "gamma": lambda: {"squared": [noise.Staircase.optimal_gamma(e) for e in (0.2, 1.0, 4.0)]},
        "zero-inflated": lambda: _zero_inflated(1.0, 0.3, 0.2, (-1.0, 1.0)),
        "zero-inflated, rows": lambda: _zero_inflated(1.0, 0.3, 0.2, bounds),
        "zero-inflated, attributes": lambda: _zero_inflated(1.0, 0.3, 0.2, bounds, unit="attribute"),
        "zero-inflated, rows, exact": lambda: _zero_inflated(1.0, 0.3, 0.2, bounds, exact=True),
        "gaussian scale": lambda: {"scale": privacy.gaussian_scale([0.1, 1.0, 5.0], 1e-5, 2.0)},
        "gaussian beside response": lambda: {"scale": calibration.gaussian_beside_response(2.0, 1e-4, [0.5, 1.0])},
        "sensitivities": lambda: {
            "linear": [privacy.linear_sensitivity(d, 1.5, 2.0, (1.0, 0.7, 0.4)) for d in (1, 2, 5)],
            "linear bound": privacy.linear_sensitivity_bound(1.5, 2.0, (1.0, 0.7, 0.4)),
            "logistic": [privacy.logistic_sensitivity(d, 1.5, (1.0, 0.6)) for d in (1, 2, 5)],
        },
    }


def _half_width(chosen):
    return {"half width": chosen.half_width, "interval": chosen.interval, "explained": chosen.explained}


def _fields(mechanism, *names):
    return {name: getattr(mechanism, name) for name in names}


def _zero_inflated(*given, **options):
    found = privacy.zil_parameters(*given, **options)._asdict()
    return {"tradeoff": found.pop("tradeoff")([0.01, 0.05, 0.3])} | found
