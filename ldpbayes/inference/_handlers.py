"""How releases come into a model: `observe` makes a site of one, `privatize` puts mechanisms on an ordinary model."""

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.primitives import _PYRO_STACK, Messenger

from ldpbayes._core.checks import warn
from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Message, Model
from ldpbayes.data import ExpandedSketch, Groups, PanelSketch, Release, ReleaseWarning, Sketch
from ldpbayes.data.category_sketches import joined_sketch
from ldpbayes.data.release import doubts_about
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.likelihood.privatized import law_of_records, privatized_law, unwrapped
from ldpbayes.likelihood.registry import is_own
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import joined_mechanism
from ldpbayes.noise.zero_inflated import Omitted


def observe(
    name: str, base_dist: dist.Distribution, data: Release | Sketch | Sequence[Release | Sketch] | None, **options: Any
) -> Array | list[Array]:
    """Condition a NumPyro model on a release whose original records follow ``base_dist``.

    Parameters
    ----------
    name : str
        Name of the site.
    base_dist : numpyro.distributions.Distribution
        Law of a record before the mechanism. Its batch shape is () for one law of all records, (N,) for one law for
        each of N records (as in a regression on public covariates), or (G,) for G groups. Raises ValueError for other
        shapes. Plates and masks are allowed. Enumerated latent variables may add axes on the left.
    data : Release or Sketch, or sequence of them, or None
        The released data. A release without values is simulated. With None, the original record is sampled. A sequence
        has one entry for each group, each with its own budget and bounds. The groups become one site. They become
        several sites ``name_0``, ``name_1``, ... if some groups are releases and some sketches, or if their classes of
        mechanisms differ, or if their bounds differ and rows are perturbed or noise may be left out. Raises ValueError
        if there is no group, if an entry is a sketch of several groups, if only some entries have values, or if the law
        of groups of numbers is a mixture, which cannot be indexed by its parameters.
    **options
        Parameters ``method`` and ``panels`` of `Privatized`.

    Returns
    -------
    Array or list of Array
        The released values, or the nodes of a sketch, or the number of records of an expansion, for all groups
        together. If there are several sites, a list with one entry for each site.

    Examples
    --------
    >>> import ldpbayes as ldp, numpyro, numpyro.distributions as dist
    >>> def model(release):
    ...     theta = numpyro.sample("theta", dist.Beta(1, 1))
    ...     ldp.observe("z", dist.Bernoulli(theta), release)
    """
    if data is None:
        return numpyro.sample(name, base_dist, infer={"original": True})
    if isinstance(data, Sketch):
        if base_dist.batch_shape != data.law_shape:
            laws = "one common law" if data.law_shape == () else f"{data.law_shape[0]} groups"
            needs = f"a sketch of {laws} needs base_dist of batch shape {data.law_shape}, got {base_dist.batch_shape}"
            raise ValueError(f"site {name!r}: {needs}; pass the release, a sketch a group, or one made with by=")
        return _observe_sketch(name, base_dist, data, options)
    if isinstance(data, (list, tuple, Groups)):
        return _observe_groups(name, base_dist, data, options)
    if not isinstance(data, Release):
        kind = type(data).__name__
        raise TypeError(f"site {name!r}: observe takes a Release or a Sketch, or a sequence of them, got {kind}")
    shape = base_dist.batch_shape
    if shape[-1:] not in ((), (1,), (data.count,)) or not _has_records((*shape[:-1], data.count), data.count):
        raise ValueError(f"site {name!r}: base_dist has batch shape {shape}, but the release has {data.count} records")
    law = privatized_law(base_dist, data.mechanism, **options)
    with _CountedOnce(name, data.count):
        law = law.expand(lax.broadcast_shapes(shape, (data.count,)))
        return numpyro.sample(name, law, obs=data.values, infer={"released": data})


class _MaskedInPlace(dist.MaskedDistribution):
    """A masked law that evaluates masked values, too: NumPyro's own traces them, and with them the channel."""

    def log_prob(self, value: Array, intermediates: Any = None) -> jax.Array:
        return jnp.where(self._mask, self.base_dist.log_prob(value), 0.0)


class _CountedOnce(Messenger):
    """Refuses a site that plates around it have made larger than the release, whose records would count repeatedly."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        super().__init__(None)

    def postprocess_message(self, msg: Message) -> None:
        if msg["type"] == "sample" and not _has_records(msg["fn"].batch_shape, self.count):
            made = f"plates make it of shape {msg['fn'].batch_shape}"
            raise ValueError(f"site {self.name!r}: {made}, but the release has {self.count} records")


def _has_records(shape: tuple[int, ...], count: int) -> bool:
    """Whether the records are the only axis of a batch shape, or the last where NumPyro enumerates on the others."""
    enumerated = any(type(handler).__module__.startswith("numpyro.contrib.funsor") for handler in _PYRO_STACK)
    return shape[-1:] == (count,) and (len(shape) == 1 or enumerated)


def _observe_sketch(name: str, base_dist: dist.Distribution, sketch: Any, options: dict[str, Any]) -> Array:
    inner, keep = unwrapped(base_dist)
    if not base_dist.event_shape:
        base_dist = inner.expand(base_dist.batch_shape)
    law = law_of_nodes(sketch, base_dist, **options)
    if isinstance(sketch, ExpandedSketch):
        if not (is_concrete(keep) and np.all(keep)):
            raise ValueError(f"site {name!r}: a mask cannot leave out records of an expansion; use expand=False")
        return numpyro.sample(name, law, obs=sketch.size)
    groups = getattr(sketch, "groups", None)
    keep = keep if groups is None or not np.ndim(keep) else keep[groups]
    nodes = sketch.nodes
    if isinstance(sketch, PanelSketch) and is_own(base_dist, sketch.mechanism) and is_concrete(sketch.weights):
        nodes = sketch.occupied
    scale = numpyro.handlers.scale(scale=1.0)
    scale.scale = sketch.weights  # set here, since weights may be negative, which the handler's own check refuses
    with scale:
        # A node of weight 0 may lie where no record can be, and 0 · log 0 is not a number: such nodes are masked.
        return numpyro.sample(
            name, _MaskedInPlace(law, keep & (sketch.weights != 0)), obs=nodes, infer={"released": True}
        )


def _observe_groups(name: str, base_dist: dist.Distribution, data: Sequence, options: dict) -> Array | list[Array]:
    """One site for all groups whose data are of one kind."""
    kinds: dict[Hashable, list[int]] = {}
    for group, part in enumerate(data):
        if not isinstance(part, (Release, Sketch)):
            raise TypeError(f"site {name!r}: group {group} must be a Release or a Sketch, got {type(part).__name__}")
        if isinstance(part, Sketch) and part.law_shape != ():
            several = f"group {group} is a sketch of {part.law_shape[0]} groups"
            raise ValueError(f"site {name!r}: {several}, and needs a site of its own")
        kinds.setdefault(kind_of(part), []).append(group)
    if not data or base_dist.batch_shape != (len(data),):
        needs = f"base_dist of batch shape ({len(data)},), one law a group{'' if data else ' and one at least'}"
        raise ValueError(f"site {name!r}: {len(data)} groups need {needs}; got {base_dist.batch_shape}")
    joined: Any
    sites = []
    for number, groups in enumerate(kinds.values()):
        site, parts = name if len(kinds) == 1 else f"{name}_{number}", [data[group] for group in groups]
        if isinstance(parts[0], Release):
            joined, numbers = joined_release(site, groups, parts), np.repeat(groups, [part.count for part in parts])
            laws = _laws(site, base_dist, numbers, parts[0].mechanism)
        else:
            joined = joined_sketch(parts)
            laws = _laws(site, base_dist, np.array(groups)) if len(groups) < len(data) else base_dist
        sites.append(observe(site, laws, joined, **options))
    return sites[0] if len(kinds) == 1 else sites


def kind_of(data: Any) -> Hashable:
    """A key that is equal for the data of groups which can be one site."""
    mechanism = data.mechanism
    structure = type(data), jax.tree.structure((mechanism, getattr(data, "polynomial", None)))
    if not isinstance(mechanism, Additive) or not (mechanism.columns or isinstance(mechanism.noise, Omitted)):
        return structure
    # Bounds of these mechanisms are shared by all records, so that groups with different bounds cannot be one site.
    bounds = mechanism.lower, mechanism.upper
    return structure, tuple(tuple(np.ravel(b).tolist()) if is_concrete(b) else id(b) for b in bounds)


def joined_release(name: str, groups: Sequence[int], releases: Sequence[Release]) -> Release:
    counts, values = [release.count for release in releases], [release.values for release in releases]
    missing = [group for group, part in zip(groups, values, strict=True) if part is None]
    if 0 < len(missing) < len(values):
        raise ValueError(f"site {name!r}: the release of group {missing[0]} has no values, and others have")
    mechanism = joined_mechanism([release.mechanism for release in releases], counts)
    joined = None if missing else (np if is_concrete(values) else jnp).concatenate(values)
    return unchecked(Release, joined, mechanism, sum(counts))


def _laws(
    name: str, law: dist.Distribution, groups: np.ndarray, mechanism: Mechanism | None = None
) -> dist.Distribution:
    """The laws and masks of groups, by their numbers, which may repeat."""
    shape, (law, keep) = law.batch_shape, unwrapped(law)
    law = law.expand(shape) if law.batch_shape != shape else law
    try:
        law = law_of_records(law, groups, mechanism)
    except TypeError as error:
        raise ValueError(f"site {name!r}: {error}; sketch the releases, or give each group a site of its own") from None
    return law if keep is True else law.mask(keep[groups] if np.ndim(keep) else keep)


def check_site(name: str, distribution: dist.Distribution, value: Array) -> tuple[Mechanism, np.ndarray] | None:
    """Mechanism and values (records, *event) of a `Privatized` site; ValueError for impossible concrete values."""
    law, keep = unwrapped(distribution)
    try:
        return law.mechanism.validated_batch(value, keep)
    except ValueError as error:
        raise ValueError(f"site {name!r}: {error}") from None


class privatize(Messenger):
    """Turn an ordinary NumPyro model into a model that observes the named sites through their mechanisms only.

    Plates, `scale`, `mask`, `Predictive`, SVI and all kernels work as before. The observed values of a named site are
    released values: an array, or a `Release` by the mechanism of the site. A site without observed values is simulated.

    Parameters
    ----------
    model : callable
        A NumPyro model. When it runs, TypeError is raised if a site observes a sketch, or a release but has no
        mechanism. ValueError is raised for impossible values, or if the release has another mechanism. A
        `ReleaseWarning`, once for each site, says that the values are nearly impossible under the mechanism.
    mechanisms : dict of str to Mechanism
        The mechanism of each site, such as ``{"y": LaplaceMechanism(epsilon=1.0, lower=0, upper=10)}``. Running the
        model raises ValueError if it has no such site.
    **options
        Parameters ``method`` and ``panels`` of `Privatized`.

    Examples
    --------
    >>> import ldpbayes as ldp, numpyro, numpyro.distributions as dist
    >>> def model(answers=None):
    ...     numpyro.sample("y", dist.Bernoulli(numpyro.sample("theta", dist.Beta(1, 1))), obs=answers)
    >>> private = ldp.privatize(model, {"y": ldp.RandomizedResponse(epsilon=1.0)})  # for ldp.fit(private, released)
    """

    def __init__(self, model: Model, mechanisms: Mapping[str, Mechanism], **options: Any) -> None:
        if not callable(model):
            raise TypeError(f"privatize takes a model, then its mechanisms; as the model it got {model!r}")
        if not isinstance(mechanisms, Mapping):
            form = 'a dict by site, as in privatize(model, {"y": mechanism})'
            raise TypeError(f"mechanisms must be {form}, got {mechanisms!r}")
        for name, value in mechanisms.items():
            if not isinstance(value, Mechanism):
                raise TypeError(f"the mechanism of site {name!r} must be an ldpbayes mechanism, got {value!r}")
        self.mechanisms, self.options = dict(mechanisms), options
        self._sites: list[str] = []
        self.doubts: tuple[str, ...] = ()  # the warnings of all runs
        super().__init__(model)

    def __repr__(self) -> str:
        model = self.fn.__name__ if inspect.isfunction(self.fn) else repr(self.fn)
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{type(self).__name__}({', '.join([model, repr(self.mechanisms), *options])})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._sites = []
        value = super().__call__(*args, **kwargs)
        missing = ", ".join(map(repr, sorted(set(self.mechanisms) - set(self._sites))))
        if missing:
            raise ValueError(f"the model has no sample site {missing}; its sites are {', '.join(self._sites)}")
        return value

    def process_message(self, msg: Message) -> None:
        """Replace the distribution of a named site by its privatized version, and a release by its values."""
        if msg["type"] != "sample":
            return
        name, value, kind = msg["name"], msg["value"], type(msg["value"]).__name__
        self._sites.append(name)
        if isinstance(value, Sketch):
            raise TypeError(f"site {name!r} observes a {kind}, not records: pass the release, or use ldpbayes.observe")
        stated = self.mechanisms.get(name)
        if isinstance(value, Release):
            if stated is None:
                raise TypeError(f"site {name!r} observes a release, but privatize is given no mechanism for it")
            if is_concrete(stated, value.mechanism) and stated != value.mechanism:
                raise ValueError(f"site {name!r}: privatize is given {stated!r}, the release is by {value.mechanism!r}")
            msg["value"], msg["is_observed"] = value.values, value.values is not None
            msg["infer"] = msg["infer"] | {"released": value}
        if stated is not None:
            msg["fn"] = privatized_law(msg["fn"], stated, **self.options)

    def postprocess_message(self, msg: Message) -> None:
        """Check the observed values of a named site, after all handlers have set its value and mask."""
        name = msg["name"]
        if msg["type"] != "sample" or name not in self.mechanisms or not msg["is_observed"]:
            return
        site, checked = f"site {name!r}: ", check_site(name, msg["fn"], msg["value"])
        warned = any(doubt.startswith(site) for doubt in self.doubts)
        # A release has given the warning about its values itself.
        if checked and not warned and not msg["infer"].get("released"):
            problem = doubts_about(*checked)
            if problem:
                self.doubts += (site + problem,)
                warn(site + problem, ReleaseWarning)
