"""Expansions in the place of the records: how exact they are, and what a posterior by them costs.

    python benchmarks/expansion.py table                # errors in nats: some ten minutes on two cores
    python benchmarks/expansion.py figure --out a.png   # the same against the number of records
    python benchmarks/expansion.py cost                 # against the records' way, from a few of its iterations
    python benchmarks/expansion.py cost --full          # from all of them: hours
    python benchmarks/expansion.py scaling              # more and more records, bits streamed from a file
    python benchmarks/expansion.py table --only oue-20  # rows whose name starts so

Every row runs in a process of its own. ε = 1 but for rows of noisy covariates (ε = 4).
"""

import argparse
import dataclasses
import json
import math
import os
import platform
import resource
import tempfile
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from matplotlib.figure import Figure
from numpyro.infer import init_to_median
from own_process import printed

import ldpbayes as ldp
from ldpbayes.data import ExpandedSketch, category_sketches
from ldpbayes.inference.approximations.polynomial import SplitModel
from ldpbayes.inference.chains import Chains
from ldpbayes.inference.density import Density, sites_of
from ldpbayes.models import label_regression, oue_histogram, perturbed_covariates
from ldpbayes.numerics.arrays import evenly_spaced

ORDERS = (2, 3, 4)
EVALUATED = 1000  # draws from the normal approximation at which expansions and records are compared
SHORT = {"num_warmup": 30, "num_samples": 30}  # of the records' way: seconds a step are the same in all iterations
SLOPES = (0.5, -0.5, 0.3, 0.0, 0.2, 1.0)
COUNTS = (1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
SECTIONS = {
    "table": [f"oue-{size}" for size in ("20-10000", "20-100000", "64-100000")]
    + [f"{name}-{count}" for name in ("logistic-6", "linear-6", "rows-2") for count in (5_000, 50_000)],
    "figure": [f"{name}-{count}" for name in ("oue-20", "logistic-6") for count in COUNTS],
    "cost": ["oue-20-100000", "oue-64-100000", "logistic-6-100000"],
    "scaling": [f"oue-64-{10**k}" for k in (5, 6, 7)] + [f"logistic-6-{10**k}" for k in (5, 6)],
}


# --- data -----------------------------------------------------------------------------------------------------------


def fill_with_bits(bits):
    """Optimal unary encoding at ε = 1 of records with one Dirichlet draw as their law, piece by piece."""
    rng = np.random.default_rng(0)
    d = bits.shape[1]
    theta = rng.dirichlet(np.ones(d))
    for start in range(0, len(bits), 50_000):
        part = bits[start : start + 50_000]
        own = rng.choice(d, len(part), p=theta)[:, None] == np.arange(d)
        part[:] = rng.random(part.shape, np.float32) < np.where(own, 0.5, 1 / (math.e + 1)).astype(np.float32)
    return bits


def oue(d, count):
    """The model of a histogram and its bits."""
    bits = fill_with_bits(np.empty((count, d), np.uint8))
    return oue_histogram(), ldp.Release(bits, ldp.OptimalUnaryEncoding(1.0, d))


def predictors(p, count):
    """Random numbers, public covariates and what they predict."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, p))
    return rng, features, features @ np.array(SLOPES[:p])


def logistic(p, count):
    """Logistic regression on public covariates with an intercept, answers under randomized response."""
    (rng, features, eta), mechanism = predictors(p, count), ldp.RandomizedResponse(1.0)
    answers = (rng.random(count) < 1 / (1 + np.exp(-eta))).astype(int)
    release = ldp.Release(np.asarray(mechanism.randomize(jax.random.key(1), answers)), mechanism)
    return label_regression(features, sigma=None, response=dist.BernoulliLogits), release


def linear(p, count):
    """Linear regression with an intercept, σ = 1 known, answers clipped to ±5 and under Laplace noise of scale 10."""
    rng, features, eta = predictors(p, count)
    noisy = np.clip(eta + rng.normal(size=count), -5, 5) + rng.laplace(0, 10, count)
    release = ldp.Release(noisy, ldp.LaplaceMechanism(1.0, -5, 5))
    return label_regression(features, sigma=None, response=lambda mean: dist.Normal(mean, 1.0)), release


def rows(d, count):
    """Logistic regression on covariates under symmetric Laplace noise, ε = 4, the answers as they are."""
    rng, features, eta = predictors(d, count)
    answers = rng.random(count) < 1 / (1 + np.exp(-eta))
    mechanism = ldp.SymmetricLaplaceMechanism(4.0, -3, 3, columns=d + 1, perturbed=tuple(range(d)))
    noisy = mechanism.randomize(jax.random.key(1), np.column_stack([features, answers]))
    return perturbed_covariates(), ldp.Release(np.asarray(noisy), mechanism)


DATA = {made.__name__: made for made in (oue, logistic, linear, rows)}


# --- errors ---------------------------------------------------------------------------------------------------------


def said(error):
    """Standard deviation and largest of errors, in nats."""
    return float(np.std(error)), float(np.max(np.abs(error)))


def normal_draws(polynomial):
    """Shares at draws from the normal law around an expansion's center; some leave the simplex."""
    upper = np.linalg.cholesky(-polynomial.curvature).T
    normals = np.linalg.solve(upper, np.random.default_rng(1).normal(size=(len(upper), EVALUATED)))
    return polynomial.center + (np.linalg.pinv(polynomial.root) @ normals).T


def posterior_draws(model, sketch):
    """Shares at 6,000 draws of the posterior, of all chains in turns."""
    made = ldp.fit(model, sketch, num_warmup=500, num_samples=1500, progress_bar=False)["posterior"]["theta"].values
    return np.swapaxes(made, 0, 1).reshape(-1, made.shape[-1])


def errors_of_sketches(release, draws=None):
    """Errors of sketches, Taylor expansions at the mode, around their value there, which is right."""
    with mock.patch.object(category_sketches, "MOST_CATEGORIES_OF_ORDER_4", 256):
        sketch = ExpandedSketch.of(release.values, release.mechanism)
    fourth = sketch.polynomial
    third = dataclasses.replace(fourth, fourth=None)
    second = dataclasses.replace(third, third=np.zeros_like(third.third))
    points = normal_draws(fourth) if draws is None else evenly_spaced(draws, EVALUATED)
    exact, polynomials = sketch.log_likelihood(points), zip(ORDERS, (second, third, fourth), strict=True)
    return {f"Taylor {order}": said(each.values(points) - exact) for order, each in polynomials}


def taylor(likelihood, center, points):
    """Taylor polynomials of the second to the fourth order at points, by repeated derivatives along the way there."""

    def derivative(function):
        return lambda t: jax.jvp(function, (t,), (1.0,))[1]

    def along(direction):
        def function(t):
            return likelihood(center + t * direction)

        terms = []
        for order in range(ORDERS[-1] + 1):
            terms.append(function(0.0) / math.factorial(order))
            function = derivative(function)
        return jnp.cumsum(jnp.stack(terms))[ORDERS[0] :]

    return jax.jit(lambda directions: jax.lax.map(along, directions))(points - center).T


def errors_of_expansions(model, release, orders=ORDERS, with_taylor=False, draws=None):
    """Errors of what `fit` makes of some draws, of the normal approximation or given, at others; and Taylor's."""
    density = Density(model, (release,), {})
    with jax.enable_x64(True):
        split = SplitModel(density, sites_of(density), init_to_median, jax.random.key(0), 10)
        split.compile()
        at, found = split.mode(1), {}
        if draws is None:
            noise = np.random.default_rng(1).normal(size=(6 * EVALUATED, len(at.at)))
            draws = split.coordinates(at.at + noise @ at.root.T)
        others = np.arange(len(draws)) % 6 > 0
        points, draws = draws[~others], draws[others]
        exact = split.values(points)
        for order in orders:
            error = split.expansion(draws, order).polynomial.values(points) - exact
            found[f"fitted {order}"] = said(error - error.mean())
        if with_taylor:
            center = split.coordinates(at.at[None])[0]
            errors = np.asarray(taylor(split.cut.likelihood, center, points)) - exact
            found |= {f"Taylor {order}": said(error) for order, error in zip(ORDERS, errors, strict=True)}
    return found


def table_row(name, size, count):
    """Errors of Taylor expansions and of the package's fitted ones, whose fourth order is too large at d = 64."""
    model, release = DATA[name](size, count)
    if name != "oue":
        return errors_of_expansions(model, release, with_taylor=name != "rows")
    draws = posterior_draws(model, release.sketch(expand=True))
    found = {f"{order}, normal draws": each for order, each in errors_of_sketches(release).items()}
    orders = ORDERS if size < 64 else ORDERS[:2]
    return found | errors_of_sketches(release, draws) | errors_of_expansions(model, release, orders, draws=draws)


def figure_row(name, size, count):
    """Errors at posterior draws of what the package makes: sketches of categories, else fitted polynomials."""
    model, release = DATA[name](size, count)
    if name != "oue":
        return errors_of_expansions(model, release)
    return errors_of_sketches(release, posterior_draws(model, release.sketch(expand=True)))


def draw(found, path):
    """The figure, from rows by name."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    titles = {"oue-20": "Histogram, 20 categories, OUE, ε = 1", "logistic-6": "Logistic regression, p = 6, RR, ε = 1"}
    for axis, (start, title) in zip(axes, titles.items(), strict=True):
        mine = {int(name.split("-")[2]): list(row.values()) for name, row in found.items() if name.startswith(start)}
        for j, colour in enumerate(("#b2182b", "#e08214", "#2166ac")):
            axis.loglog([*mine], [row[j][0] for row in mine.values()], "o-", color=colour, label=f"order {ORDERS[j]}")
        axis.axhline(0.01, color="#444444", linewidth=1, linestyle="--", label="below, draws serve as they are")
        axis.set(title=title, xlabel="records")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("error at posterior draws:\nstandard deviation in nats")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=100)


# --- seconds --------------------------------------------------------------------------------------------------------

RUNS, PASSES = [], []  # seconds and leapfrog steps of each run of the chains, seconds and number of passes


def watch(owner, name, noted, counted):
    """Let a method note its seconds and a count of what it made."""
    method = getattr(owner, name)

    def noting(*args):
        start = time.perf_counter()
        made = method(*args)
        noted.append((time.perf_counter() - start, counted(made)))
        return made

    setattr(owner, name, noting)


def timed(name, model, release, way, seed, **options):
    """Seconds of a posterior and of its parts. ``way`` is "sketch", "fit" (which decides by itself) or "records"."""
    RUNS.clear(), PASSES.clear()
    start, by_records = time.perf_counter(), way == "records"
    data = release.sketch(expand=not by_records) if name == "oue" and way != "fit" else release
    sketched = time.perf_counter()
    posterior = ldp.fit(model, data, seed=seed, progress_bar=False, expand=False if by_records else None, **options)
    report = json.loads(posterior.attrs["expansion"]) or {}
    return {
        "all": time.perf_counter() - start,
        "sketch": sketched - start,
        "passes": sum(each for each, _ in PASSES),
        "sampling": sum(each for each, _ in RUNS),
        "runs": RUNS[:],
        "said": {key: report[key] for key in ("ran", "order", "passes", "error_sd_nats") if key in report},
        "problems": json.loads(posterior.attrs["convergence_warnings"]),
    }


def cost_row(name, size, count, way, full=False):
    """A cold fit and, unless it is by the records, another with another seed in the same process."""
    model, release = DATA[name](size, count)
    options = SHORT if way == "records" and not full else {}
    return [timed(name, model, release, way, seed, **options) for seed in range(1 if way == "records" else 2)]


def cost(row, full):
    """Print a row of costs: by a sketch, by `fit` as it decides, by the records, and ratios."""
    (records,) = measured("cost", row, "records", full)
    seconds, steps = records["runs"][-1]  # without the run that waits for the compiler
    step = seconds / steps
    for way in ("sketch", "fit") if row.startswith("oue") else ("fit",):
        cold, again = measured("cost", row, way)
        steps = sum(number for _, number in again["runs"][-2:])
        sampling = records["sampling"] if full else step * steps
        whole = records["all"] + (0 if full else step * (steps - sum(number for _, number in records["runs"])))
        parts = ", ".join(f"{part} {again[part]:.2f}" for part in ("sketch", "passes", "sampling"))
        print(f"{row} {way}: cold {cold['all']:.1f} s; again {again['all']:.1f} s, of which {parts} s")
        print(
            f"    records: {1e3 * step:.2f} ms a step, {steps:,} steps: sampling {sampling:.0f} s, cold {whole:.0f} s"
        )
        print(f"    ratios: sampling {again['sampling'] / sampling:.4f}, cold {cold['all'] / whole:.3f}")
        print(f"    {again['said']} {again['problems']}", flush=True)


def scaling_row(name, size, count, path):
    """Seconds and memory of a fit, bits read from a memory map."""
    if name == "oue":
        bits = np.lib.format.open_memmap(path, "r")
        model, release = oue_histogram(), ldp.Release(bits, ldp.OptimalUnaryEncoding(1.0, size))
    else:
        model, release = DATA[name](size, count)
    found = timed(name, model, release, "sketch", 0)
    with open("/proc/self/status") as status:
        own = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found | {"peak_gib": peak / 2**20, "own_gib_at_the_end": own / 2**20}


def scaling(row):
    """Print a row; bits are written here, in another process than the one whose memory counts."""
    name, size, count = row.split("-")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bits.npy")
        if name == "oue":
            fill_with_bits(np.lib.format.open_memmap(path, "w+", np.uint8, (int(count), int(size)))).flush()
        print(row, json.dumps(measured("scaling", row, path)), flush=True)


ROWS = {"table": table_row, "figure": figure_row, "cost": cost_row, "scaling": scaling_row}


def measured(section, row, *more):
    """What a row's process prints."""
    result = printed(__file__, section, "--row", row, "--more", json.dumps(more))
    if isinstance(result, str):
        raise RuntimeError(result)
    return result


def main():
    """Run the rows of a section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=ROWS)
    parser.add_argument("--only", default="", help="rows whose name starts so")
    parser.add_argument("--out", default="expansions.png", help="of the figure; its numbers are printed")
    parser.add_argument("--full", action="store_true", help="all iterations of the records' way")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--more", default="[]", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        watch(Chains, "run", RUNS, lambda made: int(made[1]["num_steps"].sum()))
        watch(SplitModel, "_passes", PASSES, lambda made: len(jax.tree.leaves(made)[0]))
        name, size, count = arguments.row.split("-")
        print(json.dumps(ROWS[arguments.section](name, int(size), int(count), *json.loads(arguments.more))))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    found = {}
    for row in (row for row in SECTIONS[arguments.section] if row.startswith(arguments.only)):
        if arguments.section == "cost":
            cost(row, arguments.full)
        elif arguments.section == "scaling":
            scaling(row)
        else:
            found[row] = measured(arguments.section, row)
            shown = (f"{name}: {sd:.2g} / {largest:.2g}" for name, (sd, largest) in found[row].items())
            print(f"{row:20}", "   ".join(shown), flush=True)
    if arguments.section == "figure" and not arguments.only:
        draw(found, arguments.out)


if __name__ == "__main__":
    main()
