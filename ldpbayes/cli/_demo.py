"""`ldpbayes demo`: two real data sets, privatized, and analysed three ways by the same model and priors.

Naive: the released values taken at face value. Noise-aware: the mechanism is part of the likelihood. Non-private: the
original data, which an analyst would not have.
"""

import contextlib
import dataclasses
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

from ldpbayes import LaplaceMechanism, RandomizedResponse, Release, fit, models
from ldpbayes.mechanisms import Mechanism
from ldpbayes.plots import plot_intervals, plot_release, plot_shares

EPSILONS = (0.5, 1.0, 2.0)
VISITS = LaplaceMechanism(epsilon=1.0, lower=0, upper=20)
ANALYSES = ("naive", "noise-aware", "non-private")
BETA_DRAWS = 4000


@dataclasses.dataclass
class Demo:
    """Results of one part of the demo."""

    estimates: dict[str, dict[str, Any]]  # draws by quantity and analysis
    posteriors: dict[str, Any]  # noise-aware fits, by the names of their files
    release: Release  # the last one
    records: np.ndarray  # the original data (N,)
    average: Any = None  # mean of released numbers, with its 95 % normal interval


def load_fair() -> np.ndarray:
    """Whether each of 6,366 respondents reports an affair ([Fair]), integers 0 and 1, shape (6366,)."""
    return (_column("fair", "affairs") > 0).astype(int)


def load_randhie() -> np.ndarray:
    """Outpatient visits to a doctor in a year (RAND health insurance experiment), integers, shape (20190,)."""
    return _column("randhie", "mdvis").astype(int)


def _column(data_set: str, name: str) -> np.ndarray:
    from statsmodels import datasets

    return np.asarray(getattr(datasets, data_set).load_pandas().data[name])


def fair(records: np.ndarray, key: jax.Array, **options: Any) -> Demo:
    """Randomized response at three budgets, and the share of true "yes" answers among `records` (N,) of 0 and 1."""
    estimates, posteriors = {}, {}
    rng = np.random.default_rng(options["seed"])

    def beta(answers: np.ndarray) -> np.ndarray:
        """Draws of the posterior of `models.warner` for answers without noise, under its Beta(1, 1) prior."""
        return rng.beta(1 + answers.sum(), 1 + (1 - answers).sum(), BETA_DRAWS)

    original = beta(records)
    for epsilon, subkey in zip(EPSILONS, jax.random.split(key, len(EPSILONS)), strict=True):
        release = simulate(RandomizedResponse(epsilon), subkey, records)
        with timed(f"affairs, epsilon = {epsilon:g}: noise-aware"):
            posterior = fit(models.warner(), release.sketch(), **options)
        posteriors[f"fair-epsilon-{epsilon:g}"] = posterior
        draws = (beta(release.values), _draws(posterior, "theta"), original)
        estimates[f"affair, epsilon={epsilon:g}"] = dict(zip(ANALYSES, draws, strict=True))
    return Demo(estimates, posteriors, release, records)


def randhie(records: np.ndarray, key: jax.Array, **options: Any) -> Demo:
    """Doctor visits `records` (N,) with Laplace noise, their mean and the share without any."""
    release = simulate(VISITS, key, records.astype(float))
    with timed("doctor visits: noise-aware"):
        posterior = fit(models.clipped_counts(), release.sketch(), **options)
    # The naive analyst, who needs counts, rounds the released values and replaces negative ones by 0.
    face_value = np.maximum(np.round(release.values), 0).astype(int)
    fits = {"noise-aware": posterior}
    for name, counts, top in (("naive", face_value, face_value.max() + 1), ("non-private", records, int(VISITS.upper))):
        with timed(f"doctor visits: {name}"):
            fits[name] = fit(noiseless_counts, _frequencies(counts, top), **options)
    estimates: dict[str, dict[str, Any]] = {"mean visits": {}, "no visit": {}, "concentration": {}}
    for name in ANALYSES:
        mean, concentration = _draws(fits[name], "mean"), _draws(fits[name], "concentration")
        estimates["mean visits"][name] = mean
        estimates["no visit"][name] = visit_shares(mean, concentration)[:, 0]
        estimates["concentration"][name] = concentration
    centre, error = release.values.mean(), 1.96 * release.values.std(ddof=1) / np.sqrt(len(release))
    average = (centre, centre - error, centre + error)
    return Demo(estimates, {"randhie": posterior}, release, records, average)


def noiseless_counts(frequencies: np.ndarray) -> None:
    """The model of `models.clipped_counts` without noise, for the numbers of 0, 1, ..., k − 2, and of k − 1 or more."""
    mean = numpyro.sample("mean", dist.LogNormal(0, 2))
    concentration = numpyro.sample("concentration", dist.LogNormal(0, 1))
    below = jnp.exp(dist.NegativeBinomial2(mean, concentration).log_prob(np.arange(len(frequencies) - 1)))
    rest = jnp.maximum(1 - below.sum(), 1e-12)  # far from the data the difference may be a rounding error below 0
    shares = jnp.append(below, rest)
    numpyro.sample("x", dist.MultinomialProbs(shares, int(frequencies.sum())), obs=frequencies)


def visit_shares(mean: np.ndarray, concentration: np.ndarray) -> np.ndarray:
    """Shares of records with 0, 1, ..., 19 and with 20 or more visits, shape (draws, 21)."""
    success = concentration / (concentration + mean)
    below = stats.nbinom.pmf(np.arange(VISITS.upper), concentration[:, None], success[:, None])
    return np.column_stack([below, np.maximum(1 - below.sum(axis=1), 0)])


def simulate(mechanism: Mechanism, key: jax.Array, records: np.ndarray) -> Release:
    """A release of the records, in double precision; a real one needs a cryptographically secure sampler."""
    with jax.enable_x64(True):
        return Release(np.asarray(mechanism.randomize(key, records)), mechanism)


def table(*parts: Demo) -> str:
    """The estimates as text: a row a quantity, a column an analysis."""
    lines = [" " * 20 + "".join(f"{name:<21}" for name in ANALYSES).rstrip()]
    for part in parts:
        for quantity, by_analysis in part.estimates.items():
            cells = [summary(by_analysis[name]) for name in ANALYSES]
            lines.append(f"{quantity:<20}" + "".join(f"{cell:<21}" for cell in cells).rstrip())
    return "\n".join(lines)


def summary(draws: np.ndarray) -> str:
    """Mean and 95 % equal-tailed interval, as in ``0.32 [0.28, 0.37]``, to three significant digits of the mean."""
    mean, (low, high) = np.mean(draws), np.quantile(draws, [0.025, 0.975])
    digits = 3 if abs(mean) < 1 else 2
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def draw(affairs: Demo, visits: Demo) -> Any:
    """The demo's picture, a Matplotlib figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained", dpi=140)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 0.85, 1.25))
    groups = {f"ε = {e:g}": v for e, v in zip(EPSILONS, affairs.estimates.values(), strict=True)}
    plot_intervals(
        {group: {name: draws[name] for name in ANALYSES[:2]} for group, draws in groups.items()},
        reference=next(iter(groups.values()))["non-private"],
        ax=left,
    )
    left.set_xlabel("share who report an affair, 95 % interval")
    left.set_title("Randomized response", loc="left", pad=20)

    plot_release(visits.release, bins=np.arange(-100, 121, 4), ax=middle)
    beyond = np.mean((visits.release.values < -100) | (visits.release.values > 120))
    middle.set(xlim=(-100, 120), xlabel=f"doctor visits as released ({100 * beyond:.1f} % beyond)", ylabel="people")
    middle.text(24, middle.get_ylim()[1], "clipping\nrange", color="#0072B2", va="top")
    middle.set_title("Laplace noise, ε = 1 ...", loc="left", pad=20)

    k = np.arange(VISITS.upper + 1)
    original = _frequencies(visits.records) / len(visits.records)
    right.bar(k, original, color="#C4C4C4", width=0.85)
    shares = {
        name: visit_shares(visits.estimates["mean visits"][name], visits.estimates["concentration"][name])
        for name in ANALYSES[:2]
    }
    naive_end = shares["naive"][:, -1].mean()
    plot_shares(k, shares, labels_at={"naive": (16.4, naive_end), "noise-aware": (2.7, 0.2)}, ax=right)
    right.text(0.75, 0.95 * original[0], "original records", color="#4D4D4D", va="center")
    right.set_xticks([0, 5, 10, 15, 20], ["0", "5", "10", "15", "20+"])
    right.set(xlabel="doctor visits", ylabel="share of people, 95 % interval")
    right.set_title("... and the visits recovered from it", loc="left", pad=20)
    return figure


def write(affairs: Demo, visits: Demo, out: pathlib.Path) -> list[pathlib.Path]:
    """Write the picture and the noise-aware posteriors into an existing folder, and return their paths."""
    paths = [out / "demo.png"]
    draw(affairs, visits).savefig(paths[0])
    for name, posterior in (affairs.posteriors | visits.posteriors).items():
        paths.append(out / f"{name}.nc")
        posterior.to_netcdf(paths[-1], engine="h5netcdf")
    return paths


def _frequencies(counts: np.ndarray, top: int = int(VISITS.upper)) -> np.ndarray:
    return np.bincount(np.minimum(counts, top), minlength=top + 1)


def _draws(posterior: Any, name: str) -> np.ndarray:
    return np.ravel(posterior["posterior"][name].values)


@contextlib.contextmanager
def timed(step: str) -> Iterator[None]:
    """Print a step to stderr when it begins, and its time when it ends without an error."""
    print(f"  {step} ... ", end="", file=sys.stderr, flush=True)
    start, end = time.perf_counter(), ""
    try:
        yield
        end = f"{time.perf_counter() - start:.0f} s"
    finally:
        print(end, file=sys.stderr, flush=True)
