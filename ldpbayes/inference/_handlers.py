"""How releases come into a model: `observe` makes a site of one, `observe_jointly` sites of several about the same
people, and `privatize` changes a model of records.
"""

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro.primitives import _PYRO_STACK, Messenger

from ldpbayes._core.checks import ends_of, refuse, warn
from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.types import Array, Message, Model, PyTree, is_concrete
from ldpbayes.data import (
    CountSketch,
    ExpandedSketch,
    Groups,
    MixedSketch,
    NoisyTable,
    PanelSketch,
    Release,
    ReleaseWarning,
    Sketch,
)
from ldpbayes.data.category_sketches import joined_sketch
from ldpbayes.data.release import doubts_about
from ldpbayes.laws.compound import MixtureOverClasses, law_of_records, unwrapped
from ldpbayes.laws.families import CATEGORICAL
from ldpbayes.likelihood import law_of_nodes
from ldpbayes.likelihood.closed_forms import is_own
from ldpbayes.likelihood.privatized import Privatized, log_prob_by_class, privatized_law
from ldpbayes.mechanisms import Categories, Mechanism, Published
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.mechanisms.protocol import joined_mechanism
from ldpbayes.numerics.special import log_or_nothing


def observe(
    name: str, base_dist: dist.Distribution, data: Release | Sketch | Sequence[Release | Sketch] | None, **options: Any
) -> Array | list[Array]:
    """Add released data to a NumPyro model, in which the original records have the law ``base_dist``.

    With known original records, you would write ``numpyro.sample(name, base_dist, obs=records)``. `observe` adds the
    log-likelihood of the released values, which is an integral over the unknown records. It returns the observed value
    of the site: the released values of a release, the nodes of a sketch, or the number of records of an
    `ExpandedSketch`.

    Parameters
    ----------
    name : str
        Name of the site (the named variable of the model).
    base_dist : numpyro.distributions.Distribution
        Law (probability distribution) of an original record. Plates and masks of NumPyro are allowed. The batch shape
        is () if all records have the same law, (N,) if each of N records has its own law, as in a regression on public
        covariates, or (G,) if the data have G groups with a law each. If NumPyro enumerates discrete latent variables,
        the shape has further axes on the left. What was published of a table is conditional on this law.
    data : Release or Sketch, or sequence of them, or None
        The released data. A sequence has one release or sketch for each group of records. The groups can have different
        budgets and clipping bounds. If a release has no values, the site samples released values. If ``data`` is None,
        the site samples original records.
    **options
        Options of `Privatized` for the computation of the log-likelihood: ``method`` and ``panels``.

    Raises
    ------
    ValueError
        The batch shape of ``base_dist`` does not fit the data, ``data`` is an empty sequence, or only some releases of
        the sequence have values.

    Notes
    -----
    Groups become several sites ``name_0``, ``name_1``, ..., with a list of values, if some are releases and others are
    sketches, if their mechanisms have different classes, or if they have different clipping bounds and either the
    records are rows, or the mechanism releases some records without noise. Otherwise, they become one site.

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
            laws = "without groups" if data.law_shape == () else f"of {data.law_shape[0]} groups"
            needs = f"a sketch {laws} needs base_dist of batch shape {data.law_shape}, got {base_dist.batch_shape}"
            raise ValueError(f"site {name!r}: {needs}; pass the release, a list of sketches, or a sketch made with by=")
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
            shape = f"plates give it shape {msg['fn'].batch_shape}"
            raise ValueError(f"site {self.name!r}: {shape}, but the release has {self.count} records")


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
    if isinstance(sketch, CountSketch) and sketch.groups is not None and np.ndim(keep):
        keep = keep[sketch.groups]
    by_user = is_own(base_dist, sketch.mechanism) and is_concrete(sketch.weights)
    nodes = sketch.occupied if by_user and isinstance(sketch, PanelSketch | MixedSketch) else sketch.nodes
    scale = numpyro.handlers.scale(scale=1.0)
    scale.scale = sketch.weights  # set here, since weights may be negative, which the handler's own check refuses
    with scale:
        # A node of weight 0 may lie where no record can be, and 0 · log 0 is not a number: such nodes are masked.
        masked = _MaskedInPlace(law, keep & (sketch.weights != 0))
        return numpyro.sample(name, masked, obs=nodes, infer={"released": True})


def _observe_groups(name: str, base_dist: dist.Distribution, data: Sequence, options: dict) -> Array | list[Array]:
    """One site for all groups whose data are of one kind."""
    kinds: dict[Hashable, list[tuple[int, Any]]] = {}
    for group, part in enumerate(data):
        if not isinstance(part, (Release, Sketch)):
            raise TypeError(f"site {name!r}: group {group} must be a Release or a Sketch, got {type(part).__name__}")
        if isinstance(part, Sketch) and part.law_shape != ():
            several = f"group {group} is a sketch of {part.law_shape[0]} groups"
            raise ValueError(f"site {name!r}: {several}, and needs a separate site")
        for piece in part.parts if isinstance(part, MixedSketch) else (part,):
            kinds.setdefault(kind_of(piece), []).append((group, piece))
    if not data or base_dist.batch_shape != (len(data),):
        needs = f"base_dist of batch shape ({len(data)},), one law for each group{'' if data else ', at least one'}"
        raise ValueError(f"site {name!r}: {len(data)} groups need {needs}; got {base_dist.batch_shape}")
    joined: Any
    sites = []
    for number, members in enumerate(kinds.values()):
        site, (groups, parts) = name if len(kinds) == 1 else f"{name}_{number}", zip(*members, strict=True)
        if isinstance(parts[0], Release):
            joined, numbers = joined_release(site, groups, parts), np.repeat(groups, [part.count for part in parts])
            laws = _laws(site, base_dist, numbers, parts[0].mechanism)
        else:
            joined = joined_sketch(parts)
            laws = base_dist if groups == (*range(len(data)),) else _laws(site, base_dist, np.array(groups))
        sites.append(observe(site, laws, joined, **options))
    return sites[0] if len(kinds) == 1 else sites


def kind_of(data: Any) -> Hashable:
    """A key that is equal for the data of groups which can be one site."""
    mechanism = data.mechanism
    polynomial = data.polynomial if isinstance(data, ExpandedSketch) else None
    structure = type(data), jax.tree.structure((mechanism, polynomial))
    if not isinstance(mechanism, Additive) or not (mechanism.columns or mechanism.omits_noise):
        return structure
    # Bounds of these mechanisms are shared by all records, so that groups with different bounds cannot be one site.
    bounds = mechanism.lower, mechanism.upper
    return structure, tuple(tuple(np.ravel(b).tolist()) if is_concrete(b) else id(b) for b in bounds)


def joined_release(name: str, groups: Sequence[int], releases: Sequence[Release]) -> Release:
    counts, values = [release.count for release in releases], [release.values for release in releases]
    missing = [group for group, part in zip(groups, values, strict=True) if part is None]
    if 0 < len(missing) < len(values):
        raise ValueError(f"site {name!r}: the release of group {missing[0]} has no values, but others have")
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
        raise ValueError(f"site {name!r}: {error}; sketch the releases, or give each group a separate site") from None
    return law if keep is True else law.mask(keep[groups] if np.ndim(keep) else keep)


def observe_jointly(classes: dist.Distribution, parts: Mapping[str, tuple]) -> dict[str, Any]:
    """Add several releases about the same people, in the same order, to a NumPyro model.

    Each person belongs to one of C unknown (latent) classes. Given the class, the records of a person are independent.
    The likelihood is an exact sum over the classes. Each release becomes one site of the model, whose likelihood is
    conditional on the released values of the sites before it. The result is a dict of the values that `observe`
    returns, by site. Raises TypeError or ValueError if arguments have another form, for example different numbers of
    people in two releases.

    Parameters
    ----------
    classes : numpyro.distributions.Distribution
        Law (probability distribution) of the class of a person: Categorical or Bernoulli. The batch shape is () if all
        N people have the same law, or (N,) if each person has a different law.
    parts : dict of str to tuple
        For each name of a site, a pair: the law of a record, given the class of the person, and the release of the
        records. The batch shape of the law is (C,), with one entry for each class, or (N, C). If the record is the
        class itself, give None instead of a law. There are two forms:

        - Every part is a release of N values, or an array (N, *event) of original records, which nothing protects.
        - For many people: exactly two parts, with sketches instead of releases. The first part has a `CountSketch` of
          released codes 0, ..., K − 1. The second part has a sequence of K sketches, where sketch k has the people
          whose released code in the first part is k.

    Examples
    --------
    >>> import ldpbayes as ldp, numpyro, numpyro.distributions as dist
    >>> def model(answers, ages):  # two releases; yes-or-no answers are the class, and ages depend on it
    ...     mean = numpyro.sample("mean", dist.Normal(50, 20).expand([2]))
    ...     parts = {"answer": (None, answers), "age": (dist.Normal(mean, 15), ages)}
    ...     ldp.observe_jointly(dist.Bernoulli(numpyro.sample("share", dist.Uniform())), parts)
    """
    logits = _logits(classes)
    if not isinstance(parts, Mapping) or not parts or {len(part) for part in parts.values()} != {2}:
        raise TypeError(f"parts must be a dict from names of sites to pairs (law or None, release); got {parts!r}")
    released = ((name, data) for name, (_, data) in parts.items() if not isinstance(data, np.ndarray | jax.Array))
    first, whole = next(released, ("", None))
    values, laws = dict[str, Any](), cast(Any, None)
    for name, (law, data) in parts.items():
        exact = isinstance(data, np.ndarray | jax.Array)
        if isinstance(data, Release | Sketch) and isinstance(data.mechanism, Published):
            raise ValueError(f"site {name!r}: what was published of a table cannot be one of several parts")
        if not exact and values and name != first:
            data = _of_the_same(first, whole, name, data, len(parts) == 2)
            if isinstance(whole, Sketch):
                logits = logits + log_prob_by_class(laws, whole.mechanism, np.arange(len(data)))
                rows, data = zip(*((k, part) for k, sketch in enumerate(data) for part in sketch._parts), strict=True)
                logits = logits[np.array(rows)]
        laws = _laws_by_class(name, law, data, logits.shape[-1])
        if exact:
            _check_records(name, first, whole, data, laws.batch_shape[:-1] + logits.shape[:-1])
        mixture = _mixture(logits, laws)
        with numpyro.handlers.trace() as sites:
            if exact:
                values[name] = numpyro.sample(name, mixture.expand([len(data)]), obs=data)
            else:
                values[name] = observe(name, mixture, data)
        if exact or isinstance(data, Release):
            logits = logits + _site_by_class(laws, sites[name])
    return values


def _check_records(name: str, first: str, whole: Any, data: Array, sizes: tuple[int, ...]) -> None:
    """ValueError for original records of other people than those of the first release, if any, or of the laws."""
    count = np.shape(data)[0] if np.ndim(data) else 0
    if isinstance(whole, Sketch) or (whole is not None and count != whole.count):
        raise ValueError(f"site {name!r}: {count} records are not of the people of {first!r}, which has {whole!r}")
    if others := {*sizes} - {1, count}:
        people = f"classes, laws or parts before are of {others.pop()} people"
        raise ValueError(f"site {name!r}: {people}, but there are {count} records")
    if is_concrete(data):
        refuse(~np.isfinite(np.asarray(data, float)), f"site {name!r}: {{}} records are not finite")


def _site_by_class(laws: dist.Distribution, site: Message) -> Array:
    """Log-likelihoods of a site's values: released ones, or where a handler has taken the mechanism away, original."""
    law, value = unwrapped(site["fn"])[0], site["value"]
    if site["infer"].get("expectation"):
        return 0.0  # it says nothing about a person's class
    if isinstance(law, Privatized):
        return log_prob_by_class(laws, law.mechanism, value)
    return laws.log_prob(jnp.expand_dims(value, -1 - law.event_dim))


def _logits(classes: dist.Distribution) -> jax.Array:
    """Logs (*batch, classes) of the probabilities of classes, −inf where they are 0."""
    law, _ = unwrapped(classes)
    if isinstance(law, dist.BernoulliProbs):
        law = dist.Categorical(probs=jnp.stack([1 - law.probs, law.probs], axis=-1), validate_args=False)
    elif isinstance(law, dist.BernoulliLogits):
        law = dist.Categorical(logits=jnp.stack([0 * law.logits, law.logits], axis=-1), validate_args=False)
    if not isinstance(law, CATEGORICAL):
        raise TypeError(f"classes must be a Categorical or Bernoulli law, got {type(law).__name__}")
    logs = log_or_nothing(law.probs) if isinstance(law, dist.CategoricalProbs) else jax.nn.log_softmax(law.logits)
    return jnp.broadcast_to(logs, (*classes.batch_shape, logs.shape[-1]))


def _laws_by_class(name: str, law: Any, data: Any, classes: int) -> dist.Distribution:
    """The laws (*batch, classes) of a part's records; ValueError for others."""
    if law is None:
        part = data[0] if isinstance(data, Sequence) else data
        mechanism = part.mechanism if isinstance(part, (Release, Sketch)) else None
        if mechanism is not None and not (isinstance(mechanism, Categories) and mechanism.categories >= classes):
            needs = f"the law None means that records are the {classes} classes"
            raise ValueError(f"site {name!r}: {needs}, which do not fit {mechanism!r}")
        return dist.Categorical(probs=jnp.eye(classes), validate_args=False)
    fits = isinstance(law, dist.Distribution) and law.batch_shape[-1:] == (classes,)
    if not fits or (not law.event_shape and any(np.ndim(end) for end in ends_of(law.support))):
        allowed = f"None, or laws (..., {classes}) of the classes with one support"
        raise ValueError(f"site {name!r}: law must be {allowed}; got {law!r}")
    return law


def _mixture(logits: Array, laws: dist.Distribution) -> dist.Distribution:
    """The law of a record whose class has log weights, of which all may be −inf where no class is possible."""
    logits = jnp.where(jnp.any(logits > -jnp.inf, axis=-1, keepdims=True), logits, 0.0)
    law, _ = unwrapped(laws)
    if isinstance(law, CATEGORICAL):
        return dist.Categorical(jnp.sum(jax.nn.softmax(logits)[..., None] * law.probs, -2), validate_args=False)
    return MixtureOverClasses(logits, laws)


def _of_the_same(first: str, whole: Any, name: str, data: Any, alone: bool) -> Any:
    """The data of a further part, in the order of the people of the first; ValueError if those are other people."""
    grouped, sketched = isinstance(data, Sequence), isinstance(whole, Sketch)
    fits = all(isinstance(part, Sketch if sketched else Release) for part in (whole, *(data if grouped else [data])))
    if sketched:
        one_budget = not whole.law_shape + whole.mechanism.batch_shape
        fits = fits and grouped and alone and isinstance(whole, CountSketch) and one_budget
    if fits and grouped:
        fits = isinstance(whole.mechanism, Categories) and not whole.mechanism.event_shape
        fits = fits and len(set(map(kind_of, data))) == 1
    if not fits or not (grouped or data.count == whole.count):
        sketches = f"a list of sketches (and {first!r} counts of codes under one budget)"
        wanted = sketches if sketched else "as many released records"
        kinds = ", of one kind, in the order of codes 0, ..., K − 1" if grouped else ""
        hint = "" if sketched else ". Original records must be an array"
        raise ValueError(
            f"site {name!r}: must have {wanted}{kinds}, because {first!r} has {whole!r}; got {data!r}{hint}"
        )
    if not grouped:
        return data
    codes, weights = (whole.nodes, whole.weights) if sketched else (whole.values, None)
    if codes is not None and is_concrete(whole, data):
        sizes = np.array([part.size if sketched else part.count for part in data])
        counts = np.bincount(np.asarray(codes, int), weights, len(data))
        if len(counts) != len(sizes) or not np.allclose(counts, sizes):
            raise ValueError(f"site {name!r}: must have {counts} people by code, as counted at {first!r}, got {sizes}")
    if sketched:
        return data
    joined = joined_release(name, range(len(data)), data)
    if codes is None:  # plans of what sketches were made of
        if joined.mechanism.batch_shape or joined.values is not None:
            hint = f"{first!r} has no values, so nobody's category is known; pass one Release(None, mechanism, count)"
            raise ValueError(f"site {name!r}: {hint}; got {data!r}")
        return Release(None, joined.mechanism, whole.count)
    xp: Any = np if is_concrete(whole, joined) else jnp
    order = xp.argsort(xp.lexsort((codes,)))  # from people by code, as they are joined, to their own order
    is_personal = joined.mechanism._is_personal
    return jax.tree.map_with_path(lambda at, leaf: xp.asarray(leaf)[order] if is_personal(at, leaf) else leaf, joined)


def check_site(name: str, distribution: dist.Distribution, value: Array) -> tuple[Mechanism, np.ndarray] | None:
    """Mechanism and values (records, *event) of a `Privatized` site; ValueError for impossible concrete values."""
    law, keep = unwrapped(distribution)
    try:
        return law.mechanism.validated_batch(value, keep)
    except ValueError as error:
        raise ValueError(f"site {name!r}: {error}") from None


class privatize(Messenger):
    """Turn a NumPyro model of original records into a model of released values.

    In the new model, the observed values of a site with a mechanism are released values: an array, or a `Release` that
    the mechanism made. A site without observed values simulates them. `Predictive`, SVI and all kernels of NumPyro can
    be used with the new model.

    Parameters
    ----------
    model : callable
        A NumPyro model of original records.
    mechanisms : dict of str to Mechanism
        The mechanism of each site whose values are released.
    **options
        Options of `Privatized` for the computation of the log-likelihood: ``method`` and ``panels``.

    Raises
    ------
    TypeError, ValueError
        When the model runs: a site observes a sketch, or a release without a mechanism in ``mechanisms`` or with
        another mechanism. A name in ``mechanisms`` is of no site. A released value is impossible.

    Warns
    -----
    ReleaseWarning
        The released values of a site are nearly impossible under its mechanism. Each site warns once.

    Examples
    --------
    >>> import ldpbayes as ldp, numpyro, numpyro.distributions as dist
    >>> def model(answers=None):
    ...     numpyro.sample("y", dist.Bernoulli(numpyro.sample("theta", dist.Beta(1, 1))), obs=answers)
    >>> private = ldp.privatize(model, {"y": ldp.RandomizedResponse(epsilon=1.0)})  # for ldp.fit(private, released)
    """

    def __init__(self, model: Model, mechanisms: Mapping[str, Mechanism], **options: Any) -> None:
        if not callable(model):
            raise TypeError(f"model must be a function, as in privatize(model, mechanisms), got {model!r}")
        if not isinstance(mechanisms, Mapping):
            form = 'a dict by site, as in privatize(model, {"y": mechanism})'
            raise TypeError(f"mechanisms must be {form}, got {mechanisms!r}")
        for name, value in mechanisms.items():
            if not isinstance(value, Mechanism):
                raise TypeError(f"the mechanism of site {name!r} must be an ldpbayes mechanism, got {value!r}")
        self.mechanisms, self.options = dict(mechanisms), options
        self._sites: list[str] = []
        self._doubts: dict[str, str] = {}  # by site, the warnings of all runs
        super().__init__(model)

    doubts = property(lambda self: tuple(self._doubts.values()))

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
                raise ValueError(f"site {name!r}: privatize has {stated!r}, but the release has {value.mechanism!r}")
            msg["value"], msg["is_observed"] = value.values, value.values is not None
            msg["infer"] = msg["infer"] | {"released": value}
        if stated is not None:
            msg["fn"] = privatized_law(msg["fn"], stated, **self.options)

    def postprocess_message(self, msg: Message) -> None:
        name = msg["name"]
        looked_up = isinstance(msg["fn"], dist.Unit)  # a table stands for the likelihood of checked values
        if msg["type"] != "sample" or name not in self.mechanisms or not msg["is_observed"] or looked_up:
            return
        checked = check_site(name, msg["fn"], msg["value"])
        # A release has given the warning about its values itself.
        has_warned = name in self._doubts or msg["infer"].get("released")
        if checked and not has_warned and (problem := doubts_about(*checked)):
            self._doubts[name] = f"site {name!r}: {problem}"
            warn(self._doubts[name], ReleaseWarning)


def sharded(data: PyTree, mesh: Mesh) -> PyTree:
    """Distribute the records of releases, and the covariates of these records, over several devices.

    In a compiled function of JAX that takes the result as an argument, each device computes the log-likelihood of its
    own records, and JAX adds the parts. If several processes work together (``jax.distributed.initialize``), each
    passes the same number of records, and the resulting release has the records of all processes. The result has arrays
    of JAX in double precision.

    Parameters
    ----------
    data : pytree
        Arguments of a model: releases of equally many records, but no `NoisyTable`, and arrays such as covariates. All
        arrays with one row for each record are distributed, also arrays of budgets. Other arrays are not changed.
        Raises ValueError if the number of records is not a multiple of the number of devices of this process. Then put
        the remaining records into another release, on one device or in a sketch.
    mesh : jax.sharding.Mesh
        A mesh of the devices of all processes. The records are divided among all devices.
    """
    leaves, structure = jax.tree.flatten(data, is_leaf=lambda leaf: isinstance(leaf, Release))
    releases = [leaf for leaf in leaves if isinstance(leaf, Release)]
    counts = {release.count for release in releases}
    if len(counts) != 1 or any(isinstance(release, NoisyTable) or release.values is None for release in releases):
        raise ValueError(f"data must be releases with values and equal numbers of records; got {releases or data}")
    (count,), processes = counts, jax.process_count()
    devices = mesh.size // processes
    if count % devices:
        rest = f"{count:,} records cannot be split evenly over {devices} devices"
        raise ValueError(f"{rest}: put {count % devices} of them into a separate release")
    layout = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def laid_out(leaf: Any) -> Any:
        if isinstance(leaf, Release):
            data, facts = jax.tree.map(laid_out, (leaf.values, leaf.mechanism)), (leaf.doubts, leaf.times)
            return unchecked(Release, *data, count * processes, *facts, leaf.about, leaf.added)
        if np.shape(leaf)[:1] != (count,):
            return leaf
        return jax.make_array_from_process_local_data(layout, np.asarray(leaf))

    with jax.enable_x64(True):
        return jax.tree.unflatten(structure, map(laid_out, leaves))
