"""Coverage of posterior intervals: parameters from the prior, a release from the model, and back."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS, Predictive
from scipy import stats

from ldpbayes.inference.release import Release
from ldpbayes.likelihood.sketch import PanelSketch

__all__ = ["Coverage", "binomial_band", "coverage"]


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Where the true parameters fell in their posteriors.

    Attributes
    ----------
    quantiles : dict of str to array (replicates,)
        Posterior cdf at the true value, for every scalar parameter; uniform if the posterior is calibrated.
    """

    quantiles: dict

    def covered(self, level):
        """Number of replicates whose central interval of this level covers the truth, by parameter.

        Parameters
        ----------
        level : float
            Nominal coverage in (0, 1).

        Returns
        -------
        dict of str to int
        """
        return {name: int(np.sum(np.abs(q - 0.5) <= level / 2)) for name, q in self.quantiles.items()}

    def table(self, levels=(0.5, 0.8, 0.95), confidence=0.99):
        """Rows (parameter, level, share covered, band low, band high, inside), as a list of dicts.

        Parameters
        ----------
        levels : sequence of float
        confidence : float
            Of the binomial band that a calibrated posterior's count falls into.
        """
        rows = []
        for level in levels:
            for name, count in self.covered(level).items():
                n = len(self.quantiles[name])
                low, high = binomial_band(n, level, confidence)
                rows.append(
                    {"parameter": name, "level": level, "covered": count / n, "low": low / n, "high": high / n}
                    | {"inside": low <= count <= high}
                )
        return rows


def binomial_band(n, level, confidence=0.99):
    """Central interval of a binomial count: the two tails outside hold at most 1 − confidence together.

    Parameters
    ----------
    n : int
    level, confidence : float
        Success probability; probability of the band.

    Returns
    -------
    tuple of int
    """
    tail = (1 - confidence) / 2
    return int(stats.binom.ppf(tail, n, level)), int(stats.binom.isf(tail, n, level))


def coverage(
    model, mechanism, count, *, replicates=200, seed=0, num_warmup=500, num_samples=500, batch=50, checkpoint=None
):
    """Simulate parameters and releases from a model's prior predictive, fit each, and record the truth's quantile.

    The model is its own simulator: it is run on a release without values. The fits of a batch run in one compiled call,
    on sketches, one chain each.

    Parameters
    ----------
    model : callable
        NumPyro model of one release whose latent sites are scalars.
    mechanism : Mechanism
        With one budget, and outputs that `Release.sketch` puts on panels.
    count : int
        Records a release.
    replicates, batch : int
        Number of prior draws, and how many run together.
    seed : int
    num_warmup, num_samples : int
        NUTS iterations a fit.
    checkpoint : path, optional
        An ``.npz`` file to which every finished batch is added, and from which a study that was interrupted resumes.

    Returns
    -------
    Coverage

    Raises
    ------
    ValueError
        If the checkpoint belongs to a study with other settings, or the mechanism's releases have no panels.

    Notes
    -----
    Source: Kulkarni et al., sec. 4.4 and Figure 1.
    """
    settings = json.dumps(
        {"mechanism": mechanism.spec(), "count": count, "replicates": replicates, "seed": seed}
        | {"num_warmup": num_warmup, "num_samples": num_samples, "batch": batch}
    )
    done = _resume(checkpoint, settings)
    plan = Release(None, mechanism, count)
    with jax.enable_x64(True):
        fit = jax.jit(jax.vmap(_fitter(model, mechanism, num_warmup, num_samples)))
        for start in range(len(next(iter(done.values()), [])), replicates, batch):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), start), 2)
            size = min(batch, replicates - start)
            prior = Predictive(model, num_samples=size)(keys[0], plan)
            releases = [name for name, value in prior.items() if value.ndim == 2]
            if len(releases) != 1:
                raise ValueError(f"the model must have scalar latent sites and one release, found releases {releases}")
            truth = {name: np.asarray(value) for name, value in prior.items() if value.ndim == 1}
            sketches = [Release(z, mechanism).sketch(keep_records=False) for z in np.asarray(prior[releases[0]])]
            if not isinstance(sketches[0], PanelSketch):
                raise ValueError(
                    f"{type(mechanism).__name__} has discrete outputs; this study needs a continuous release"
                )
            samples = fit(
                jax.random.split(keys[1], size),
                jnp.stack([s.moments for s in sketches]),
                jnp.stack([s.tails for s in sketches]),
            )
            for name, value in truth.items():
                quantile = np.mean(np.asarray(samples[name]) < value[:, None], axis=1)
                done[name] = np.concatenate([done.get(name, np.empty(0)), quantile])
            if checkpoint is not None:
                partial = pathlib.Path(checkpoint).with_suffix(".part.npz")
                np.savez(partial, settings=np.array(settings), **done)
                partial.replace(checkpoint)
    return Coverage(done)


def _fitter(model, mechanism, num_warmup, num_samples):
    # any release of this mechanism lends its panels; the mechanism stays concrete, so its channel is built only once
    template = Release(np.zeros(1) + float(mechanism.domain.lower_bound), mechanism).sketch(keep_records=False)

    def fit(key, moments, tails):
        mcmc = MCMC(NUTS(model), num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
        mcmc.run(key, dataclasses.replace(template, moments=moments, tails=tails))
        return mcmc.get_samples()

    return fit


def _resume(checkpoint, settings):
    if checkpoint is None or not pathlib.Path(checkpoint).exists():
        return {}
    with np.load(checkpoint) as file:
        if str(file["settings"]) != settings:
            raise ValueError(
                f"{checkpoint} belongs to a study with other settings: {file['settings']}; this one: {settings}"
            )
        return {name: file[name] for name in file.files if name != "settings"}
