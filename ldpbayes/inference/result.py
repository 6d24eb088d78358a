"""A fit as ArviZ data (of ArviZ 0.23 or 1.x), its convergence, and importance weights."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro

from ldpbayes._core.checks import ArgumentError, LdpBayesWarning
from ldpbayes._core.types import Key, Params, PyTree
from ldpbayes.data import DesignMatrix, Groups, NoisyTable, Sketch
from ldpbayes.inference.density import Site

MAX_RHAT = 1.01
MIN_ESS_PER_CHAIN = 100
# At the quantiles 1 % and 99 %, of so many draws in all: those of chains that mix well have twice as many.
MIN_TAIL_ESS_PER_CHAIN, MIN_DRAWS_FOR_TAIL_ESS = 125, 2000
ARVIZ_NAMES = {
    "potential_energy": "lp",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "accept_prob": "acceptance_rate",
}
ADVICE = {  # on options of `fit`, as Python spells them
    "num_samples": "run longer chains",
    "target_accept_prob": "raise target_accept_prob",
    "max_tree_depth": "raise max_tree_depth",
    "dense_mass": "reparametrise, or try dense_mass=True if parameters are correlated",
}
LABELLED = Sketch, Groups, DesignMatrix  # data whose `coords` label axes
# What intervals are of, where noisy tables are among the data: by whether cells are numbers, not draws of a law.
UNCERTAINTY = {
    True: "of the table: what the cells were before noise was added; not of a population that they are drawn from",
    False: "of the population: parameters of a law that the cells were drawn from; not only of noise in the table",
}


class ConvergenceWarning(LdpBayesWarning):
    """Warning that the chains of `fit` have not converged well enough, with the names of the parameters concerned.

    Parameters
    ----------
    problem, options : str, and dict of str to str
        What is wrong, and options of `fit` that may help, each with a remark or an empty text.
    """

    def __init__(self, problem: str, options: Mapping[str, str] | None = None) -> None:
        self.problem, self.options = problem, options or {}
        super().__init__(problem + advice(self.options, ADVICE))


def labels(
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
    sites: Mapping[str, Site],
    arguments: PyTree = (),
) -> tuple[dict[str, list[str]], dict[str, np.ndarray], dict[str, tuple[str, np.ndarray]]]:
    """Names of axes by site, by default of plates and tables; labels by axis, by default of the data."""
    plates = {axis for site in sites.values() for axis in site.dims}
    shapes = {name: site.shape for name, site in sites.items() if name not in plates}
    names = {name: list(sites[name].dims) for name in shapes if sites[name].dims}
    tables = {name: site.release for name, site in sites.items() if isinstance(site.release, NoisyTable)}
    for name, table in tables.items():
        alike = all(other.dim != table.dim or other.keys == table.keys for other in tables.values())
        for site, other in tables.items() if not alike else ():
            if (table.keys == other.keys) is False and table.rows_of(other) is not None:
                order = f"the tables of {name!r} and {site!r} have equal cells in another order, so that rows differ"
                hint = "pass one of them in the order of the other, a[a.rows_of(b)] for tables a and b"
                raise ValueError(f"{order}; {hint}")
        names.setdefault(name, [table.dim if alike else f"{name}_{table.dim}"])
    for name, axes in (dims or {}).items():
        if name not in shapes:
            raise ValueError(f"dims has the site {name!r}, but the sites of the model are {', '.join(shapes)}")
        if isinstance(axes, str) or len(axes) > len(shapes[name]):
            allowed = f"a list of names, at most one for each axis of {shapes[name]}"
            raise ArgumentError(f"dims of {name!r}", allowed, repr(axes))
        names[name] = list(axes)
    sizes: dict[str, dict[str, int]] = {}  # by axis and site
    for name, axes in names.items():
        for axis, size in zip(axes, shapes[name], strict=False):
            sizes.setdefault(axis, {})[name] = size
    arrays = {axis: np.asarray(values) for axis, values in (coords or {}).items()}
    for axis, array in arrays.items():
        if axis not in sizes:
            axes = ", ".join(sizes) or "without names"
            raise ValueError(f"coords has the axis {axis!r}, but the model has the axes {axes}; name axes with dims=")
        for name, size in sizes[axis].items():
            if array.shape != (size,):
                allowed = f"{size} labels, one for each place on this axis of {name!r}"
                raise ArgumentError(f"coords of {axis!r}", allowed, f"an array of shape {array.shape}")
    stated, keys = list[tuple[str, Any]](), dict[str, tuple[str, np.ndarray]]()  # axes, and the labels of their places
    for name, table in tables.items():
        axis = [*names[name], ""][0]
        stated += [(axis, table.labels), *((key, table.levels(key)[0]) for key in table.keys)]
        if len(table.keys) > 1:
            taken = {*sizes, *(key for key, (along, _) in keys.items() if along != axis)}
            keys |= {f"{key}_of_{axis}" if key in taken else key: (axis, levels) for key, levels in table.keys.items()}
    for part in jax.tree.leaves(arguments, is_leaf=lambda part: isinstance(part, LABELLED)):
        stated += (part.coords or {}).items() if isinstance(part, LABELLED) else ()
    candidates = dict[str, list[np.ndarray]]()
    for axis, places in stated:
        fitting = [name for name, others in sizes.items() if {*others.values()} == {len(places)}]
        # Groups whose levels came without a name are those of the only axis that fits.
        nameless = axis == "group" and len(fitting) == 1
        for name in [axis] if axis in fitting else fitting if nameless else []:
            candidates.setdefault(name, []).append(np.asarray(places))
    agreed = {axis: first for axis, (first, *more) in candidates.items() if all(np.array_equal(first, m) for m in more)}
    return names, agreed | arrays, keys


def inference_data(
    groups: Params, dims: Params, coords: Params | None = None, keys: Params | None = None, draws: Params | None = None
) -> Any:
    """ArviZ data of groups of arrays (chains, draws, ...), with further labels, and the draws that a group is of."""
    statistics = {ARVIZ_NAMES.get(name, name): values for name, values in groups.get("sample_stats", {}).items()}
    if "lp" in statistics:
        statistics["lp"] = -statistics["lp"]
    if "n_steps" in statistics:
        statistics["tree_depth"] = np.log2(statistics["n_steps"]).astype(int) + 1
    filled = {name: values for name, values in (*groups.items(), ("sample_stats", statistics)) if values}
    from_dict, named = arviz().from_dict, {"dims": dims, "coords": coords or {}}
    if "posterior" in inspect.signature(from_dict).parameters:  # in ArviZ 0.23
        result = from_dict(**filled, **named)
    else:
        result = from_dict(filled, **named, pred_dims=dims, pred_coords=coords or {})
    library = {"inference_library": "numpyro", "inference_library_version": numpyro.__version__}
    for name in {"posterior", "sample_stats"} & set(filled):
        result[name].attrs.update(library)
    for name in filled:
        labelled = {key: pair for key, pair in (keys or {}).items() if pair[0] in result[name].dims}
        assign_coords(result, name, labelled | ({"draw": draws[name]} if draws and name in draws else {}))
    return result


def assign_coords(result: Any, group: str, coords: Mapping[str, Any]) -> None:
    if callable(result.groups):  # in ArviZ 0.23
        result.assign_coords(coords, groups=group, inplace=True)
    else:
        result[group].dataset = dataset(result[group]).assign_coords(coords)


def netcdf(result: Any) -> memoryview:
    """A result as a NetCDF file in memory, since the library of this format crashes the process if a disk is full."""
    tree = result.to_datatree() if callable(result.groups) else result  # in ArviZ 0.23
    return tree.to_netcdf(engine="h5netcdf")


def convergence_problems(result: Any) -> list[str]:
    """Sentences about chains that have not converged, one for each criterion, which name the parameters."""
    az, problems = arviz(), []
    diverging = np.asarray(result["sample_stats"]["diverging"] if "sample_stats" in result else [])
    if np.any(diverging):
        problems.append(f"{int(np.sum(diverging))} of {diverging.size} draws diverged")
    posterior = dataset(result["posterior"])
    draws, chains = posterior.sizes["draw"], posterior.sizes["chain"]
    if draws < 4:
        return problems
    # Entries that the model fixes have variance 0, and no R-hat.
    varying = posterior[[name for name in posterior.data_vars if posterior[name].std() != 0]]
    names, enough = [*varying.data_vars], MIN_ESS_PER_CHAIN * chains
    lacking = dict[str, dict[str, str]]()  # numbers of the parameters concerned, by criterion

    def least_ess(names: Sequence[str], **how: Any) -> dict[str, float]:
        return {name: float(values.min()) for name, values in az.ess(varying[names], **how).data_vars.items()}

    with np.errstate(invalid="ignore", divide="ignore"):
        if chains > 1:
            worst = {name: float(values.max()) for name, values in az.rhat(varying).data_vars.items()}
            # Rounded, a number just above the limit would not be.
            texts = {name: f"{rhat:.3f}" if round(rhat, 3) > MAX_RHAT else f"{rhat}" for name, rhat in worst.items()}
            lacking[f"R-hat is above {MAX_RHAT}"] = {name: texts[name] for name in worst if not worst[name] <= MAX_RHAT}
        for method in ("bulk", "tail"):
            least = least_ess(names, method=method)
            few = {name: f"{np.floor(ess):.0f}" for name, ess in least.items() if not ess >= enough}
            lacking[f"{method} effective sample size is below {enough}"] = few
        # Chains that are seldom in a long tail, and then for long: elsewhere they may mix well.
        rare = [name for name in names if enough <= least[name] < draws * chains / 4]
        if rare and draws * chains >= MIN_DRAWS_FOR_TAIL_ESS:
            enough = MIN_TAIL_ESS_PER_CHAIN * chains
            ends = [least_ess(rare, method="quantile", prob=probability) for probability in (0.01, 0.99)]
            far = {name: min(end[name] for end in ends) for name in rare}
            seldom = "chains have seldom been in a tail, and standard deviations may be wrong: effective sample size at"
            seldom = f"{seldom} the 1% or the 99% quantile is below {enough}"
            lacking[seldom] = {name: f"{ess:.0f}" for name, ess in far.items() if ess < enough}
    for problem, texts in lacking.items():
        problems += [f"{problem}: {', '.join(f'{name} {text}' for name, text in texts.items())}"] if texts else []
    good = [name for name in names if not any(name in texts for texts in lacking.values())]
    if good and any(lacking.values()):
        problems.append(f"converged by these criteria: {', '.join(good)}")
    return problems


def helpful_options(result: Any, depth: float) -> dict[str, str]:
    """Options of `fit` that may help chains that have not converged, each with a remark; `depth` limits trees."""
    statistics = dataset(result["sample_stats"]) if "sample_stats" in result else {}
    diverging, steps = (np.asarray(statistics.get(name, 0)) for name in ("diverging", "n_steps"))
    full, options = np.mean(steps >= 2**depth - 1), {"num_samples": ""}
    options |= {"target_accept_prob": ""} if np.any(diverging) else {}
    share = f"({100 * full:.{2 if full < 0.995 else 3}g}% of the draws reached it)"
    return options | ({"max_tree_depth": share} if full else {}) | {"dense_mass": ""}


def advice(options: Mapping[str, str], sentences: Mapping[str, str]) -> str:
    """Ends a warning: the sentences of options of `fit`, in their order, with the remarks on these options."""
    texts = [f"{sentences[name]} {remark}".rstrip() for name, remark in options.items()]
    return f"; {', '.join(texts)}" if texts else ""


MAX_PARETO_K = 0.7  # Pareto shape beyond which importance weights are not to be trusted ([VSGYG])
EVEN_WEIGHTS_RATIO = 2.0  # ratio of the largest to the smallest weight up to which the tail is too short for a shape
MIN_EFFECTIVE_SHARE = 0.5  # share of the draws that must remain effective


class Weights(NamedTuple):
    log: np.ndarray  # (draws,), smoothed, on a log scale, normalised
    pareto_k: float  # shape of the tail of the raw weights; 0 if these are within a factor `EVEN_WEIGHTS_RATIO`
    share: float  # effective number of draws over their number
    ratios: np.ndarray  # (draws,), log densities of the posterior less those of what was sampled

    @property
    def good(self) -> bool:
        limit = min(MAX_PARETO_K, 1 - 1 / np.log10(len(self.log)))
        return bool(self.pareto_k <= limit and self.share >= MIN_EFFECTIVE_SHARE)


def smoothed_weights(log_ratios: np.ndarray) -> Weights:
    """Pareto-smoothed weights [VSGYG] of log ratios (draws,) of the posterior's density to the sampled one."""
    if not np.isfinite(log_ratios).all():
        return Weights(np.full(len(log_ratios), -np.log(len(log_ratios))), np.inf, 0.0, log_ratios)
    log, shape = log_ratios - log_ratios.max(), 0.0
    if np.ptp(log_ratios) > np.log(EVEN_WEIGHTS_RATIO):
        az = arviz()
        if hasattr(az, "psislw"):  # in ArviZ 0.23, which writes into the ratios
            log, shape = az.psislw(log)
        else:
            from arviz_stats.base import array_stats

            log, shape = array_stats.psislw(-log)  # which takes ratios with the opposite sign
    log = log - np.logaddexp.reduce(log)
    return Weights(log, float(shape), float(1 / np.sum(np.exp(2 * log)) / len(log)), log_ratios)


def resample(tree: PyTree, log_weights: np.ndarray, key: Key) -> PyTree:
    """Draws (chains, draws, ...) in proportion to their weights, each chain from its own draws, in their order."""
    chains, draws = log_weights.shape
    offsets = np.asarray(jax.random.uniform(key, (chains, 1)))
    shares = np.cumsum(np.exp(log_weights - log_weights.max(axis=1, keepdims=True)), axis=1)
    places = (np.arange(draws) + offsets) / draws * shares[:, -1:]
    indices = np.stack([np.searchsorted(*pair) for pair in zip(shares, places, strict=True)]).clip(0, draws - 1)
    return jax.tree.map(lambda leaf: np.stack([leaf[i][indices[i]] for i in range(chains)]), tree)


def arviz() -> Any:
    """ArviZ, imported without its warning that it is being refactored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as az
    return az


def data_by_group(groups: Mapping[str, Params]) -> Any:
    """ArviZ data of groups of any names, of arrays (chains, draws, ...)."""
    az = arviz()
    if "posterior" not in inspect.signature(az.from_dict).parameters:  # in ArviZ 1.x
        return az.from_dict(groups)
    with warnings.catch_warnings():  # ArviZ 0.23 knows no other groups, and keeps them
        warnings.simplefilter("ignore", UserWarning)
        return az.InferenceData(**{name: az.dict_to_dataset(arrays) for name, arrays in groups.items()})


def dataset(group: Any) -> Any:
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def summary_table(result: Any, names: Sequence[str]) -> str:
    """Table of some sites of a posterior, with highest-density intervals of 95 %."""
    az = arviz()
    is_old = "hdi_prob" in inspect.signature(az.summary).parameters  # ArviZ 0.23
    interval = {"hdi_prob": 0.95} if is_old else {"ci_prob": 0.95, "ci_kind": "hdi"}
    return az.summary(result, var_names=list(names), **interval).to_string()
