"""Studies of smooth densities: against the estimators of [LCQ], against EMS of [LWLSL], and coverage.

Data sets are a function of the seed and their number, so that a checkpoint can be extended by more `replicates`, or by
more `posteriors`: replicates that are also sampled, in the same order.
"""

import functools
import warnings

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import ldpbayes as ldp
from ldpbayes import functionals
from ldpbayes.estimation import Box, Combined, EstimationWarning, estimate_density
from ldpbayes.estimation.losses import as_loss
from ldpbayes.estimation.m_estimation import Estimator
from ldpbayes.likelihood import SmoothDensity
from ldpbayes.mechanisms import RPWithPrior, RROnBins, SquareWaveMechanism, StaircaseMechanism
from ldpbayes.mechanisms.design import optimal_half_width
from ldpbayes.studies import CalibrationStudy, Checkpoint
from reproductions.li_et_al import ems
from reproductions.lu_chen_qiu import DRAWS, FUNCTIONS
from reproductions.splits import data_file

ATOMS = dist.Normal(-3.0, 1.5)
MODELS = {False: ldp.models.smooth_density(), True: ldp.models.smooth_density(outside=ATOMS)}  # by: with atoms
CELLS = 1000  # of [0, 1], over which functions are integrated and distances computed
EDGES = np.linspace(0, 1, CELLS + 1)
MIDDLES = (EDGES[:-1] + EDGES[1:]) / 2
PROBABILITIES = np.arange(1, 10) / 10


@functools.partial(jax.jit, static_argnums=1)
def _at_draws(law, kind):
    return jnp.concatenate([functional(law).reshape(*law.batch_shape, -1) for functional in kind], axis=-1)


def sampled(sketch, kind, atoms=False, seed=0):
    """Posterior draws (600, k) of all functionals, whether `fit` warned of the chains, and the functionals' R-hat."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"num_warmup": 300, "num_samples": 300, "num_chains": 2, "progress_bar": False}
        sites = ldp.fit(MODELS[atoms], sketch, seed=seed, **options)["posterior"]
    doubts = [each for each in caught if issubclass(each.category, ldp.LdpBayesWarning)]
    with jax.enable_x64(True):  # as `predict`, which would be traced for each data set
        law = SmoothDensity(sites["log_density"].values, 0.0, 1.0, sites["outside"].values if atoms else None)
        draws = np.asarray(_at_draws(law, tuple(kind.values())))
    r_hat = max(arviz.rhat(each) for each in np.moveaxis(draws, 2, 0))
    return draws.reshape(600, -1), [bool(doubts), r_hat]


def estimated(sketch, kind, atoms=False):
    """The penalised estimate of functionals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EstimationWarning)
        return estimate_density(sketch, outside=atoms, functionals=kind)


def released(mechanism, x, *seeds):
    key = jax.random.key(np.random.default_rng(seeds).integers(2**31))
    with jax.enable_x64(True):
        return ldp.Release(np.asarray(mechanism.randomize(key, x)), mechanism)


def appended(saved, name, row):
    saved[name] = np.concatenate([saved.get(name, np.empty((0, *np.shape(row)))), [row]])


def done(saved, name):
    return len(saved.get(name, ()))


# Laws on [0, 1], by samplers and cdfs; what is missing of the cdf at 0 and below 1 is an atom there.


def _mixture(rng, n):
    normal = np.where(rng.uniform(size=n) < 0.4, rng.normal(0.25, 0.05, n), rng.normal(0.7, 0.08, n))
    return normal.clip(1e-9, 1 - 1e-9)  # no atoms, of which records without noise would tell


LAWS = {
    "uniform": (lambda rng, n: rng.uniform(size=n), stats.uniform.cdf),
    "beta": (lambda rng, n: rng.beta(2, 5, n), stats.beta(2, 5).cdf),
    "mixture": (_mixture, lambda x: 0.4 * stats.norm.cdf(x, 0.25, 0.05) + 0.6 * stats.norm.cdf(x, 0.7, 0.08)),
    "atom": (
        lambda rng, n: np.where(rng.uniform(size=n) < 0.2, 1.0, rng.beta(2, 2, n)),
        lambda x: 0.8 * stats.beta(2, 2).cdf(x),
    ),
}
POINTS = np.concatenate([[0.0], MIDDLES, [1.0]])


def expectations(law):
    """Means (3, *batch) of the paper's functions: over the density, and over the atoms that a law may have."""
    x = MIDDLES.reshape(-1, *[1] * len(law.batch_shape))
    inside = jnp.exp(law.log_prob(x)) / CELLS
    outside = jnp.zeros((2, *law.batch_shape)) if law.outside is None else jnp.moveaxis(law.outside, -1, 0)
    masses = jnp.concatenate([outside[:1], inside, outside[1:]])
    return jnp.stack([jnp.tensordot(function(jnp.asarray(POINTS)), masses, 1) for function in FUNCTIONS.values()], -1)


def true_expectations(cdf):
    at = cdf(EDGES)
    masses = np.concatenate([at[:1], np.diff(at), 1 - at[-1:]])
    with jax.enable_x64(True):
        return np.array([masses @ np.asarray(function(jnp.asarray(POINTS))) for function in FUNCTIONS.values()])


@functools.cache
def _combined(name, delta, scale):
    """`Combined` as in `lu_chen_qiu`: a function of keys (R,) and releases (R, n)."""
    function, mechanism = FUNCTIONS[name], ldp.ZeroInflatedLaplaceMechanism(delta, scale, 0.0, 1.0)
    loss = as_loss(lambda x, theta: jnp.sum((theta - function(x)) ** 2), scalar=True)
    estimator = Estimator(loss, mechanism, Combined(DRAWS), Box(-50.0, 50.0))

    def fit(each):
        return estimator(jax.random.wrap_key_data(each[0]), each[1][:, None], jnp.zeros(1)).theta[0]

    return jax.jit(lambda keys, z: jax.lax.map(fit, (jax.random.key_data(keys), z), batch_size=20))


def table_1(
    *,
    laws=tuple(LAWS),
    counts=(500, 1000),
    parameters=((0.1, 0.94), (0.05, 1.4)),
    replicates=300,
    posteriors=20,
    seed=0,
    checkpoint=None,
):
    """Means of [LCQ]'s three functions under four laws: root mean squared errors (3,), and ratios to `Combined`.

    The law with an atom at 1 is estimated with atoms, the other laws without. Ratios are of errors in the same data
    sets.
    """
    cells = [(law, n, delta, scale) for law in laws for delta, scale in parameters for n in counts]
    name = "{} {} {} {}".format

    def release(cell, number):
        law, n, delta, scale = cell
        x = LAWS[law][0](np.random.default_rng([seed, number, n]), n)
        return released(ldp.ZeroInflatedLaplaceMechanism(delta, scale, 0.0, 1.0), x, seed, number, 1)

    with Checkpoint(checkpoint, {"seed": seed}) as saved:
        for cell in cells:
            place = name(*cell)
            start = done(saved, f"{place} penalised")
            if start < replicates:
                releases = [release(cell, number) for number in range(start, replicates)]
                with jax.enable_x64(True):
                    z, keys = jnp.stack([each.values for each in releases]), jax.random.key(seed)
                    keys = jax.vmap(jax.random.fold_in, (None, 0))(keys, jnp.arange(start, replicates))
                    fits = np.stack([_combined(f, *cell[2:])(keys, z) for f in FUNCTIONS], 1)
                for number, each in enumerate(releases):
                    appended(saved, f"{place} combined", fits[number])
                    estimate = estimated(each.sketch(), {"f": expectations}, cell[0] == "atom")
                    appended(saved, f"{place} penalised", estimate.params)
                saved.save()
        for number in range(posteriors):
            for cell in cells:
                place = f"{name(*cell)} posterior"
                if done(saved, place) <= number:
                    draws, _ = sampled(release(cell, number).sketch(), {"f": expectations}, cell[0] == "atom", number)
                    appended(saved, place, draws.mean(axis=0))
                    saved.save()
        rows = []
        for cell in cells:
            truth = true_expectations(LAWS[cell[0]][1])
            for method in ("combined", "penalised", "posterior"):
                values = saved.get(f"{name(*cell)} {method}")
                if values is not None:
                    rivals = saved[f"{name(*cell)} combined"][: len(values)]
                    error, rival = (np.sqrt(np.mean((each - truth) ** 2, axis=0)) for each in (values, rivals))
                    bias = values.mean(axis=0) - truth
                    row = {"cell": name(*cell), "method": method, "replicates": len(values)}
                    rows.append(row | {"rmse": error, "bias": bias, "ratio": error / rival})
    return rows


def _income():
    with open(data_file("cal_housing_full.data")) as file:
        column = file.readline().strip().split(",").index("medianIncome")
        return np.sort(np.loadtxt(file, delimiter=",", usecols=column) / 15.0001)


def sources(name):
    """Sampler and cdf of a law of `against_ems`."""
    if name == "beta":
        return lambda rng, n: rng.beta(5, 2, n), stats.beta(5, 2).cdf
    income = _income()
    return lambda rng, n: rng.choice(income, n), lambda x: np.searchsorted(income, x, side="right") / len(income)


def mechanisms(epsilon):
    """Mechanisms of the same budget on [0, 1], chosen without a guess of the law."""
    uniform = np.linspace(0, 1, 65), np.ones(64)
    width = optimal_half_width(uniform, epsilon).half_width
    bins = {d: (np.linspace(0, 1, d + 1), (np.arange(d) + 0.5) / d) for d in (8, 16)}
    return {
        "square wave": SquareWaveMechanism(epsilon, 0.0, 1.0),
        "laplace": ldp.LaplaceMechanism(epsilon, 0.0, 1.0),
        "staircase": StaircaseMechanism(epsilon, 0.0, 1.0),
        "rp with prior": RPWithPrior(epsilon, (0.0, 1.0), width),
    } | {f"rr on {d} bins": RROnBins(epsilon, *each) for d, each in bins.items()}


def distances(estimated_cdf, cdf):
    """Wasserstein-1 and Kolmogorov distances, and the mean absolute error of nine quantiles, from cdfs at `EDGES`."""
    gap = np.abs(estimated_cdf - cdf)
    quantiles = [np.interp(PROBABILITIES, each, EDGES) for each in (estimated_cdf, cdf)]
    return np.array([(gap[1:] + gap[:-1]).sum() / 2 / CELLS, gap.max(), np.abs(np.subtract(*quantiles)).mean()])


CDF = {"cdf": functionals.cdf(EDGES)}


def against_ems(
    *,
    data=("beta", "income"),
    counts=(10_000, 100_000),
    budgets=(0.5, 1.0, 1.5, 2.0, 2.5),
    others=("laplace", "staircase", "rp with prior", "rr on 8 bins"),
    bins=256,
    replicates=20,
    posteriors=2,
    seed=0,
    checkpoint=None,
):
    """Distances (3,) of estimated cdfs from the true one: EMS, the penalised estimate and the posterior mean of square
    wave releases, and the penalised estimate of releases by `others`; with ratios to EMS in the same data sets.
    """
    cells = [(source, n, budget) for source in data for n in counts for budget in budgets]
    with Checkpoint(checkpoint, {"seed": seed, "bins": bins}) as saved:
        laws = {source: sources(source) for source in data}
        truths = {source: cdf(EDGES) for source, (_, cdf) in laws.items()}

        def sketch(cell, mechanism, number):
            source, n, _ = cell
            x = laws[source][0](np.random.default_rng([seed, number, n]), n)
            return released(mechanism, x, seed, number, 1)

        for cell in cells:
            place, truth = "{} {} {}".format(*cell), truths[cell[0]]
            for name, mechanism in mechanisms(cell[2]).items():
                if name not in ("square wave", *others):
                    continue
                for number in range(done(saved, f"{place} {name}"), replicates):
                    release = sketch(cell, mechanism, number)
                    found = estimated(release.sketch(), CDF).params
                    appended(saved, f"{place} {name}", distances(found, truth))
                    if name == "square wave":
                        shares, _ = ems(np.asarray(release.values), mechanism, bins)
                        steps = np.interp(EDGES, np.linspace(0, 1, bins + 1), np.append(0, np.cumsum(shares)))
                        appended(saved, f"{place} ems", distances(steps, truth))
            saved.save()
        for number in range(posteriors):
            for cell in cells:
                place = "{} {} {} posterior".format(*cell)
                if done(saved, place) <= number:
                    release = sketch(cell, SquareWaveMechanism(cell[2], 0.0, 1.0), number)
                    draws, _ = sampled(release.sketch(), CDF, seed=number)
                    appended(saved, place, distances(draws.mean(axis=0), truths[cell[0]]))
                    saved.save()
        rows = []
        for cell in cells:
            place = "{} {} {}".format(*cell)
            for method in ("ems", "posterior", *mechanisms(cell[2])):
                values = saved.get(f"{place} {method}")
                if values is not None:
                    error, rival = values.mean(axis=0), saved[f"{place} ems"][: len(values)].mean(axis=0)
                    row = {"cell": place, "method": method, "replicates": len(values)}
                    rows.append(row | {"distances": error, "ratio": error / rival})
    return rows


OF_A_LAW = {
    "mean": functionals.mean,
    "median": functionals.quantile(0.5),
    "90 % quantile": functionals.quantile(0.9),
    "share (0.25, 0.5]": functionals.share(0.25, 0.5),
    "gini": functionals.gini,
}


SINGLE = {  # one law for all data sets; the last two are narrow beside the bounds, with a Gini coefficient of about 1/4
    "beta": (LAWS["beta"][0], dist.Beta(2.0, 5.0)),
    "log-normal": (lambda rng, n: rng.lognormal(np.log(0.1), 0.44, n).clip(0, 1), dist.LogNormal(np.log(0.1), 0.44)),
    "gamma": (lambda rng, n: rng.gamma(5, 0.02, n).clip(0, 1), dist.Gamma(5.0, 50.0)),
}
_truth = jax.jit(lambda law: jnp.stack([functional(law) for functional in OF_A_LAW.values()]))


def coverage(*, law="prior", count=2000, epsilon=2.0, replicates=200, posteriors=200, seed=0, checkpoint=None):
    """Coverage tables of functionals, by posteriors and by normal intervals of the penalised estimate.

    Laws are draws of the model's prior, or one of `SINGLE` each time. Also returned are the share of
    fits that warned of their chains, and the median, 90 % quantile and maximum of the functionals' largest R-hat.
    """
    mechanism = ldp.LaplaceMechanism(epsilon, 0.0, 1.0)

    @jax.jit
    def from_the_prior(key):
        model = numpyro.handlers.seed(MODELS[False], key)
        trace = numpyro.handlers.trace(model).get_trace(ldp.Release(None, mechanism, count))
        return _truth(SmoothDensity(trace["log_density"]["value"], 0.0, 1.0)), trace["z"]["value"]

    def simulated(number):
        """True values (5,) and a sketch."""
        if law == "prior":
            truth, z = from_the_prior(jax.random.fold_in(jax.random.key(seed), number))
            return np.asarray(truth), ldp.Release(np.asarray(z), mechanism).sketch()
        x = SINGLE[law][0](np.random.default_rng([seed, number]), count)
        return np.asarray(_truth(SINGLE[law][1])), released(mechanism, x, seed, number, 1).sketch()

    with Checkpoint(checkpoint, {"law": law, "count": count, "epsilon": epsilon, "seed": seed}) as saved:
        for number in range(replicates):
            if min(done(saved, "normal"), done(saved, "posterior") if number < posteriors else replicates) > number:
                continue
            with jax.enable_x64(True):
                truth, sketch = simulated(number)
            if done(saved, "normal") <= number:
                estimate = estimated(sketch, OF_A_LAW)
                appended(saved, "normal", stats.norm.cdf((truth - estimate.params) / estimate.standard_error))
            if number < posteriors and done(saved, "posterior") <= number:
                draws, doubts = sampled(sketch, OF_A_LAW, seed=number)
                appended(saved, "posterior", (np.sum(draws < truth, axis=0) + 0.5) / (len(draws) + 1))
                appended(saved, "doubts", doubts)
            if number % 5 == 4 or number == replicates - 1:
                saved.save()
        tables = {
            method: CalibrationStudy(dict(zip(OF_A_LAW, saved[method].T, strict=True)))
            for method in ("posterior", "normal")
            if method in saved
        }
        doubts = saved.get("doubts", np.full((1, 2), np.nan))
        return tables | {"warned": float(np.mean(doubts[:, 0])), "r_hat": np.quantile(doubts[:, 1], [0.5, 0.9, 1.0])}
