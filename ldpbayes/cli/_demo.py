"""`ldpbayes demo`: two real data sets, privatized, and analysed by one model: naive, noise-aware and non-private."""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.figure import Figure
from statsmodels import datasets

from ldpbayes import LaplaceMechanism, RandomizedResponse, Release, fit, models
from ldpbayes._core.archive import whole_file
from ldpbayes._core.types import Array
from ldpbayes.data.release import simulated_release
from ldpbayes.inference.result import netcdf
from ldpbayes.plots import plot_intervals, plot_release, plot_shares

AFFAIR_EPSILONS = (0.5, 1.0, 2.0)
VISITS_MECHANISM = LaplaceMechanism(epsilon=1.0, lower=0, upper=20)
TOP_VISITS = 20  # visits: the last count stands for this many or more
ANALYSES = ("naive", "noise-aware", "non-private")
BETA_DRAWS = 4000

Draws = dict[str, dict[str, Array]]  # by quantity and analysis


def run(out: pathlib.Path, **options: Any) -> list[Any]:
    """Print the demo, write its files into a folder, and return the noise-aware posteriors; options of `fit`."""
    # Whether each respondent reports an affair ([Fair]), and visits to a doctor in a year (RAND health insurance).
    affairs = np.asarray(datasets.fair.load_pandas().data["affairs"] > 0, int)
    visits = np.asarray(datasets.randhie.load_pandas().data["mdvis"], int)
    print(
        f"Two real data sets, privatized here by simulation (seed {options['seed']}):\n"
        f"  fair     {len(affairs):,} people, an affair or not; randomized response, epsilon = 0.5, 1, 2\n"
        f"  randhie  {len(visits):,} people, doctor visits clipped to 0..20; Laplace noise, epsilon = 1\n",
        flush=True,
    )
    keys = jax.random.split(jax.random.key(options["seed"]))
    options["progress_bar"] = False
    shares, posteriors = analysed_affairs(affairs, keys[0], **options)
    release = simulated_release(keys[1], visits.astype(float), VISITS_MECHANISM)
    counts, posteriors["randhie"] = analysed_visits(visits, release, **options)
    print(f"\nPosterior mean and 95 % interval\n\n{table(shares | counts)}\n")
    mean, error = release.values.mean(), 1.96 * release.values.std(ddof=1) / np.sqrt(len(release))
    print(
        "naive: same model, released values at face value (visits: rounded, negative ones set to 0).\n"
        "noise-aware: same model, with the mechanism in the likelihood.\n"
        "non-private: same model, original data (visits: 20 stands for 20 or more).\n"
        f"The plain average of the released visits, {mean:.2f} [{mean - error:.2f}, {mean + error:.2f}], is a fair "
        f"estimate of the mean\nof the clipped visits ({visits.clip(max=TOP_VISITS).mean():.2f}), but it says nothing "
        "of their distribution.\n"
    )
    with whole_file(out / "demo.png") as file:
        draw(shares, counts, release, visits).savefig(file, format="png")
    print(f"wrote {out / 'demo.png'}")
    for name, posterior in posteriors.items():
        with whole_file(out / f"{name}.nc") as file:
            file.write(netcdf(posterior))
        print(f"wrote {out / f'{name}.nc'}")
    return list(posteriors.values())


def fitted(step: str, model: Callable, data: Any, **options: Any) -> Any:
    print(f"  {step} ...", file=sys.stderr, flush=True)
    return fit(model, data, **options)


def analysed_affairs(records: np.ndarray, key: jax.Array, **options: Any) -> tuple[Draws, dict[str, Any]]:
    """The share of true "yes" answers among `records` (N,) at three budgets, and noise-aware posteriors by file."""
    estimates, posteriors = {}, {}
    rng = np.random.default_rng(options["seed"])

    def beta(answers: np.ndarray) -> np.ndarray:  # the posterior of `models.warner` for answers without noise
        return rng.beta(1 + answers.sum(), 1 + (1 - answers).sum(), BETA_DRAWS)

    original = beta(records)
    for epsilon, subkey in zip(AFFAIR_EPSILONS, jax.random.split(key, len(AFFAIR_EPSILONS)), strict=True):
        release = simulated_release(subkey, records, RandomizedResponse(epsilon))
        step = f"affairs, epsilon = {epsilon:g}: noise-aware"
        posterior = fitted(step, models.warner(), release.sketch(), **options)
        posteriors[f"fair-epsilon-{epsilon:g}"] = posterior
        draws = (beta(release.values), _draws(posterior, "theta"), original)
        estimates[f"affair, epsilon={epsilon:g}"] = dict(zip(ANALYSES, draws, strict=True))
    return estimates, posteriors


def analysed_visits(records: np.ndarray, release: Release, **options: Any) -> tuple[Draws, Any]:
    """The mean of doctor visits (N,), the share without any and the concentration; and the noise-aware posterior."""
    step = "doctor visits: "
    posterior = fitted(f"{step}noise-aware", models.clipped_counts(), release.sketch(), **options)
    # The naive analyst, who needs counts, rounds the released values and replaces negative ones by 0.
    naive = np.maximum(np.round(release.values), 0).astype(int)
    counts = {"naive": _frequencies(naive, naive.max() + 1), "non-private": _frequencies(records)}
    fits = {name: fitted(f"{step}{name}", noiseless_counts, data, **options) for name, data in counts.items()}
    fits["noise-aware"] = posterior
    mean, concentration = ({a: _draws(fits[a], site) for a in ANALYSES} for site in ("mean", "concentration"))
    none = {name: visit_shares(mean[name], concentration[name])[:, 0] for name in ANALYSES}
    return {"mean visits": mean, "no visit": none, "concentration": concentration}, posterior


def noiseless_counts(frequencies: np.ndarray) -> None:
    """The model of `models.clipped_counts` without noise, for the numbers of 0, 1, ..., k − 2, and of k − 1 or more."""
    mean = numpyro.sample("mean", dist.LogNormal(0, 2))
    concentration = numpyro.sample("concentration", dist.LogNormal(0, 1))
    shares = visit_shares(mean, concentration, len(frequencies) - 1)
    numpyro.sample("x", dist.MultinomialProbs(shares, int(frequencies.sum())), obs=frequencies)


def visit_shares(mean: Array, concentration: Array, top: int = TOP_VISITS) -> jax.Array:
    """Shares (*draws, top + 1) of records with 0, 1, ..., top − 1 and with `top` or more visits."""
    law = dist.NegativeBinomial2(mean[..., None], concentration[..., None])
    below = jnp.exp(law.log_prob(np.arange(top)))
    rest = jnp.maximum(1 - below.sum(axis=-1), 1e-12)  # far from the data it may be a rounding error below 0
    return jnp.concatenate([below, rest[..., None]], axis=-1)


def table(estimates: Draws) -> str:
    rows = [("", ANALYSES)] + [(name, [summary(draws[kind]) for kind in ANALYSES]) for name, draws in estimates.items()]
    return "\n".join(f"{name:<20}{''.join(f'{cell:<21}' for cell in cells)}".rstrip() for name, cells in rows)


def summary(draws: np.ndarray) -> str:
    """Mean and 95 % equal-tailed interval, as in ``0.32 [0.28, 0.37]``, to three significant digits of the mean."""
    mean, (low, high) = np.mean(draws), np.quantile(draws, [0.025, 0.975])
    digits = 3 if abs(mean) < 1 else 2
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def draw(affairs: Draws, visits: Draws, release: Release, records: np.ndarray) -> Any:
    """The demo's picture, a Matplotlib figure: `release` is that of `records` (N,), the visits."""
    figure = Figure(figsize=(10, 3.6), layout="constrained", dpi=140)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 0.85, 1.25))
    groups = {f"ε = {e:g}": v for e, v in zip(AFFAIR_EPSILONS, affairs.values(), strict=True)}
    plot_intervals(
        {group: {name: draws[name] for name in ANALYSES[:2]} for group, draws in groups.items()},
        reference=next(iter(groups.values()))["non-private"],
        ax=left,
    )
    left.set_xlabel("share who report an affair, 95 % interval")
    left.set_title("Randomized response", loc="left", pad=20)

    plot_release(release, bins=np.arange(-100, 121, 4), ax=middle)
    beyond = np.mean((release.values < -100) | (release.values > 120))
    middle.set(xlim=(-100, 120), xlabel=f"doctor visits as released ({100 * beyond:.1f} % beyond)", ylabel="people")
    middle.text(24, middle.get_ylim()[1], "clipping\nrange", color="#0072B2", va="top")
    middle.set_title("Laplace noise, ε = 1 ...", loc="left", pad=20)

    k = np.arange(TOP_VISITS + 1)
    original = _frequencies(records) / len(records)
    right.bar(k, original, color="#C4C4C4", width=0.85)
    shares = {name: visit_shares(visits["mean visits"][name], visits["concentration"][name]) for name in ANALYSES[:2]}
    plot_shares(k, shares, ax=right)
    right.text(0.75, 0.95 * original[0], "original records", color="#4D4D4D", va="center")
    right.set_xticks([0, 5, 10, 15, 20], ["0", "5", "10", "15", "20+"])
    right.set(xlabel="doctor visits", ylabel="share of people, 95 % interval")
    right.set_title("... and the visits recovered from it", loc="left", pad=20)
    return figure


def _frequencies(counts: np.ndarray, top: int = TOP_VISITS) -> np.ndarray:
    return np.bincount(np.minimum(counts, top), minlength=top + 1)


def _draws(posterior: Any, name: str) -> np.ndarray:
    return np.ravel(posterior["posterior"][name].values)
