"""The analyst's two words: `observe` a release in a new model, `privatize` a model that was written without us."""

import warnings

import numpy as np
import numpyro
from jax import lax
from numpyro.primitives import _PYRO_STACK, Messenger

from ldpbayes.inference.release import Release, ReleaseWarning, doubts_about
from ldpbayes.likelihood.privatized import Privatized, privatized, unwrapped
from ldpbayes.likelihood.regression import PrivatizedRegression
from ldpbayes.likelihood.sketch import Sketch
from ldpbayes.mechanisms import Mechanism

__all__ = ["LAWS", "check_site", "observe", "privatize"]

LAWS = (Privatized, PrivatizedRegression)
"""Laws of released values."""


class _weighted(numpyro.handlers.scale):
    """`numpyro.handlers.scale` for a sketch's weights, which integrate polynomials and may be negative."""

    def __init__(self, weights):
        self.scale = weights
        Messenger.__init__(self, None)


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
        regression on public covariates), (G,) for a sketch of G groups. Wrappers of plates and masks are respected.
        Latent variables that NumPyro enumerates may add axes on the left.
    data : Release or Sketch
        A release without values is simulated, so the same model is its own prior predictive.
    **options
        ``method`` and ``panels`` of `Privatized`.

    Returns
    -------
    Array
        The released values (a sketch's nodes).

    Raises
    ------
    TypeError
        If ``data`` is neither a release nor a sketch.
    ValueError
        If ``base_dist`` has a law per record where a sketch is given, or a batch shape that does not fit the release.
    """
    if isinstance(data, Sketch):
        if base_dist.batch_shape != data.law_shape:
            stands_for = "one common law" if data.law_shape == () else f"{data.law_shape[0]} groups"
            raise ValueError(
                f"site {name!r}: a sketch of records with {stands_for} needs a base distribution of batch shape "
                f"{data.law_shape}, got {base_dist.batch_shape}; pass the release itself, one sketch a group, or (for "
                "categories) a sketch made with by="
            )
        law, keep = unwrapped(base_dist)
        if not base_dist.event_shape:
            base_dist = law.expand(base_dist.batch_shape)
        law = data.law_of_nodes(base_dist, **options)
        keep = keep[data.groups] if np.ndim(keep) else keep
        with _weighted(data.weights):
            # a node that stands for nothing may be where no record can be: zero times minus infinity is not a number
            return numpyro.sample(name, law.mask(keep & (data.weights != 0)), obs=data.nodes)
    if not isinstance(data, Release):
        raise TypeError(f"site {name!r}: observe takes a Release or a Sketch, got {type(data).__name__}")
    try:
        shape = lax.broadcast_shapes(base_dist.batch_shape, (data.count,))
        fits = _of_records(shape, data.count)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"site {name!r}: the base distribution has batch shape {base_dist.batch_shape}, "
            f"but the release has {data.count} records"
        )
    site = privatized(base_dist, data.mechanism, **options)
    with _once_each(name, data.count):
        return numpyro.sample(name, site.expand(shape), obs=data.values)


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
