"""The analyst's two words: `observe` a release in a new model, `privatize` a model that was written without us."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.primitives import _PYRO_STACK, Messenger

from ldpbayes.inference.release import Release, ReleaseWarning, doubts_about
from ldpbayes.likelihood.categorical import Grouped
from ldpbayes.likelihood.latent import is_concrete
from ldpbayes.likelihood.privatized import Privatized, law_of_records, privatized, unwrapped
from ldpbayes.likelihood.regression import PrivatizedRegression
from ldpbayes.likelihood.sketch import Sketch, joined_mechanism, joined_sketch
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.rows import RowMechanism

__all__ = ["LAWS", "check_site", "observe", "privatize"]

LAWS = (Privatized, PrivatizedRegression)
"""Laws of released values."""


class _weighted(numpyro.handlers.scale):
    """`numpyro.handlers.scale` for a sketch's weights, which integrate polynomials and may be negative."""

    def __init__(self, weights):
        self.scale = weights
        Messenger.__init__(self, None)


class _Selected(dist.MaskedDistribution):
    """A masked law that leaves the values alone: where they are known, so is the channel at them."""

    def log_prob(self, value, intermediates=None):
        return jnp.where(self._mask, self.base_dist.log_prob(value), 0.0)


def _of_records(shape, count):
    """Whether a batch shape has the records on its only axis, or on its last where NumPyro enumerates on the others."""
    enumerated = any(type(handler).__module__.startswith("numpyro.contrib.funsor") for handler in _PYRO_STACK)
    return shape[-1:] == (count,) and (len(shape) == 1 or enumerated)


class _once_each(Messenger):
    """Refuses a site that plates around it have made larger than the release, whose records would count repeatedly."""

    def __init__(self, name, count):
        self.name, self.count = name, count
        super().__init__(None)

    def postprocess_message(self, msg):
        """By now the plates have expanded the distribution."""
        if msg["type"] == "sample" and not _of_records(msg["fn"].batch_shape, self.count):
            raise ValueError(
                f"site {self.name!r}: plates make it of shape {msg['fn'].batch_shape}, but the release has "
                f"{self.count} records, each of which counts once"
            )


def observe(name, base_dist, data, **options):
    """Condition a NumPyro model on a release whose latent records follow ``base_dist``.

    Parameters
    ----------
    name : str
        Site name.
    base_dist : numpyro.distributions.Distribution
        Law of a record before the mechanism: batch shape () for records with one law, (N,) for a law a record (a
        regression on public covariates), (G,) for G groups. Wrappers of plates and masks are respected. Latent
        variables that NumPyro enumerates may add axes on the left.
    data : Release or Sketch, or sequence of them
        A release without values is simulated, so the same model is its own prior predictive. A sequence has one a
        group, with budgets and bounds of its own; however many they are, they are one site. (What differs in kind is
        not put together: releases, sketches, those of different classes of mechanisms, and for mechanisms that also
        take rows those of different bounds, are sites of their own, ``name_0``, ``name_1``, ... in order of
        appearance.)
    **options
        ``method`` and ``panels`` of `Privatized`.

    Returns
    -------
    Array
        The released values (a sketch's nodes), of groups those of one after the other (nodes: side by side); where
        there are sites of several kinds a list of them.

    Raises
    ------
    TypeError
        If ``data`` is neither a release nor a sketch, nor a sequence of these.
    ValueError
        If ``base_dist`` has a law per record where a sketch is given, or a batch shape that does not fit the release or
        the number of groups; if groups come without a release, with a sketch of several groups among them, with values
        for some only, or as releases of numbers and with a law whose parameters are not all it is made from (a mixture,
        say).
    """
    if isinstance(data, Sketch):
        if base_dist.batch_shape != data.law_shape:
            stands_for = "one common law" if data.law_shape == () else f"{data.law_shape[0]} groups"
            raise ValueError(
                f"site {name!r}: a sketch of records with {stands_for} needs a base distribution of batch shape "
                f"{data.law_shape}, got {base_dist.batch_shape}; pass the release itself, one sketch a group, or (for "
                "categories) a sketch made with by="
            )
        return _observe_nodes(name, base_dist, data, options)
    if isinstance(data, (list, tuple)):
        return _observe_groups(name, base_dist, data, options)
    if not isinstance(data, Release):
        raise TypeError(
            f"site {name!r}: observe takes a Release or a Sketch, or a sequence of them, got {type(data).__name__}"
        )
    try:
        fits = _of_records(lax.broadcast_shapes(base_dist.batch_shape, (data.count,)), data.count)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"site {name!r}: the base distribution has batch shape {base_dist.batch_shape}, "
            f"but the release has {data.count} records"
        )
    return _observe_records(name, base_dist, data.mechanism, data.values, data.count, options)


def _observe_nodes(name, base_dist, sketch, options):
    law, keep = unwrapped(base_dist)
    if not base_dist.event_shape:
        base_dist = law.expand(base_dist.batch_shape)
    law = sketch.law_of_nodes(base_dist, **options)
    groups = getattr(sketch, "groups", None)
    keep = keep if groups is None or not np.ndim(keep) else keep[groups]
    with _weighted(sketch.weights):
        # a node that stands for nothing may be where no record can be: zero times minus infinity is not a number
        return numpyro.sample(name, _Selected(law, keep & (sketch.weights != 0)), obs=sketch.nodes)


def _observe_records(name, base_dist, mechanism, values, count, options):
    site = privatized(base_dist, mechanism, **options)
    with _once_each(name, count):
        return numpyro.sample(name, site.expand(lax.broadcast_shapes(base_dist.batch_shape, (count,))), obs=values)


def _observe_groups(name, base_dist, data, options):
    """One site of all groups whose data are of the same kind."""
    kinds = {}
    for group, part in enumerate(data):
        if not isinstance(part, (Release, Sketch)):
            raise TypeError(f"site {name!r}: group {group} must be a Release or a Sketch, got {type(part).__name__}")
        if isinstance(part, Sketch) and part.law_shape != ():
            raise ValueError(
                f"site {name!r}: group {group} is a sketch of {part.law_shape[0]} groups, and needs a site of its own"
            )
        kinds.setdefault(_kind(part), []).append(group)
    if not data or base_dist.batch_shape != (len(data),):
        raise ValueError(
            f"site {name!r}: {len(data)} groups need a base distribution of batch shape ({len(data)},), one law a group"
            f"{' and one at least' if not data else ''}; got {base_dist.batch_shape}"
        )
    sites = []
    for number, groups in enumerate(kinds.values()):
        site, parts = name if len(kinds) == 1 else f"{name}_{number}", [data[group] for group in groups]
        observe_parts = _observe_releases if isinstance(parts[0], Release) else _observe_sketches
        sites.append(observe_parts(site, base_dist, np.array(groups), parts, options))
    return sites[0] if len(kinds) == 1 else sites


def _kind(data):
    """What groups have in common if they can be put together."""
    mechanism = data.mechanism
    structure = type(data), jax.tree.structure(mechanism)
    if not isinstance(mechanism, RowMechanism):
        return structure
    # whose bounds are never one a record
    bounds = mechanism.lower, mechanism.upper
    return structure, tuple(tuple(np.ravel(b).tolist()) if is_concrete(b) else id(b) for b in bounds)


def _observe_sketches(name, base_dist, groups, sketches, options):
    if len(groups) < base_dist.batch_shape[0]:
        base_dist = _laws(name, base_dist, groups)
    return _observe_nodes(name, base_dist, joined_sketch(sketches), options)


def _observe_releases(name, base_dist, groups, releases, options):
    counts, values = [release.count for release in releases], [release.values for release in releases]
    missing = [part is None for part in values]
    if any(missing) and not all(missing):
        raise ValueError(
            f"site {name!r}: the release of group {groups[missing.index(True)]} has no values, and others have"
        )
    law = _laws(name, base_dist, np.repeat(groups, counts), releases[0].mechanism.support.is_discrete)
    mechanism = joined_mechanism([release.mechanism for release in releases], counts)
    values = None if any(missing) else (np if is_concrete(values) else jnp).concatenate(values)
    return _observe_records(name, law, mechanism, values, sum(counts), options)


def _laws(name, base_dist, groups, grouped=False):
    """The laws of some groups, each perhaps repeatedly, with the masks that there are."""
    law, keep = unwrapped(base_dist)
    law = law.expand(base_dist.batch_shape) if law.batch_shape != base_dist.batch_shape else law
    try:
        law = Grouped(law, groups) if grouped else law_of_records(law, groups)
    except TypeError as error:
        raise ValueError(f"site {name!r}: {error}; sketch the releases, or give each group a site of its own") from None
    return law if keep is True else law.mask(keep[groups] if np.ndim(keep) else keep)


def check_site(name, distribution, value):
    """Refuse observed values that a site's mechanism cannot have released, where they can be seen.

    Parameters
    ----------
    name : str
        Of the site.
    distribution : numpyro.distributions.Distribution
        `Privatized` or `PrivatizedRegression`, in any wrappers.
    value : array
        Observed at the site; what a mask of the distribution hides may be anything.

    Returns
    -------
    tuple of Mechanism and ndarray (records, *event), or None
        What was looked at; see `Mechanism.validated_batch`.

    Raises
    ------
    ValueError
        With the site's name and the message that `Release` has.
    """
    law, keep = unwrapped(distribution)
    try:
        return law.mechanism.validated_batch(value, keep)
    except ValueError as error:
        raise ValueError(f"site {name!r}: {error}") from None


class privatize(Messenger):
    """Privatized version of an ordinary NumPyro model: named sites are seen only through their mechanisms.

    Plates, `scale`, `mask`, `Predictive`, SVI and every kernel keep working; observed values are now released values,
    and an unobserved site is simulated through its mechanism.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    mechanisms : dict
        Site name to `Mechanism`.
    **options
        ``method`` and ``panels`` of `Privatized`.

    Raises
    ------
    TypeError
        If a value of ``mechanisms`` is not a mechanism.
    ValueError
        When the model is run and has no sample site of one of the names, or observes values at one that its mechanism
        cannot have released (see `Mechanism.validated`), unless they are being traced.

    Warns
    -----
    ReleaseWarning
        When the model is run, once for each site whose mechanism could hardly have released the observed values.

    Examples
    --------
    >>> private = privatize(model, {"y": LaplaceMechanism(epsilon=1.0, lower=0, upper=10)})  # doctest: +SKIP
    """

    def __init__(self, model, mechanisms, **options):
        for name, value in mechanisms.items():
            if not isinstance(value, Mechanism):
                raise TypeError(
                    f"the mechanism of site {name!r} must be an ldpbayes mechanism, got {type(value).__name__}"
                )
        self.mechanisms, self.options = dict(mechanisms), options
        self._sites, self._doubts = [], {}
        super().__init__(model)

    def __enter__(self):
        """Start a run of the model."""
        self._sites = []
        return super().__enter__()

    def __exit__(self, exc_type, exc_value, traceback):
        """End a run of the model and check that every named site occurred."""
        super().__exit__(exc_type, exc_value, traceback)
        missing = set(self.mechanisms) - set(self._sites)
        if exc_type is None and missing:
            raise ValueError(
                f"the model has no sample site {', '.join(map(repr, sorted(missing)))}; "
                f"its sites are {', '.join(self._sites)}"
            )

    def process_message(self, msg):
        """Replace a named site's distribution by its privatized version."""
        if msg["type"] != "sample":
            return
        self._sites.append(msg["name"])
        if msg["name"] in self.mechanisms:
            msg["fn"] = privatized(msg["fn"], self.mechanisms[msg["name"]], **self.options)

    def postprocess_message(self, msg):
        """Look at what a named site observes: by now every handler has said what that is."""
        name = msg["name"]
        if msg["type"] != "sample" or name not in self.mechanisms or not msg["is_observed"]:
            return
        seen = check_site(name, msg["fn"], msg["value"])
        problem = doubts_about(*seen) if seen and name not in self._doubts else None
        if problem:
            self._doubts[name] = f"site {name!r}: {problem}"
            warnings.warn(self._doubts[name], ReleaseWarning, stacklevel=2)

    @property
    def doubts(self):
        """What was warned of, a tuple of str; `fit` keeps it with the result."""
        return tuple(self._doubts.values())
