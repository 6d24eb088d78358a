"""`observe_jointly`: several releases of the same people, whose records are independent given a latent class."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ldpbayes._core.checks import ends_of
from ldpbayes._core.types import Array, Message, is_concrete
from ldpbayes.data import CountSketch, Release, Sketch
from ldpbayes.inference._handlers import joined_release, kind_of, observe
from ldpbayes.laws.compound import MixtureOverClasses, unwrapped
from ldpbayes.laws.families import CATEGORICAL
from ldpbayes.likelihood.privatized import Privatized, log_prob_by_class
from ldpbayes.mechanisms import Categories
from ldpbayes.numerics.special import log_or_nothing


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

        - Every part is a release of N values.
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
    first, (_, whole) = next(iter(parts.items()))
    values, laws = dict[str, Any](), cast(Any, None)
    for name, (law, data) in parts.items():
        if values:
            data = _of_the_same(first, whole, name, data, len(parts) == 2)
            if isinstance(whole, Sketch):
                logits = logits + log_prob_by_class(laws, whole.mechanism, np.arange(len(data)))
                rows, data = zip(*((k, part) for k, sketch in enumerate(data) for part in sketch._parts), strict=True)
                logits = logits[np.array(rows)]
        laws, last = _laws(name, law, data, logits.shape[-1]), _Last()
        with last:
            values[name] = observe(name, _mixture(logits, laws), data)
        if isinstance(data, Release):
            logits = logits + last.log_prob_by_class(laws)
    return values


class _Last(Messenger):
    """Keeps the site that is sampled, as all handlers have left it."""

    def postprocess_message(self, msg: Message) -> None:
        if msg["type"] == "sample":
            self.site = msg

    def log_prob_by_class(self, laws: dist.Distribution) -> Array:
        """Of the site's values: released ones, or where a handler has taken the mechanism away, original ones."""
        law, value = unwrapped(self.site["fn"])[0], self.site["value"]
        if self.site["infer"].get("expectation"):
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


def _laws(name: str, law: Any, data: Any, classes: int) -> dist.Distribution:
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
        raise ValueError(f"site {name!r}: must have {wanted}{kinds}, because {first!r} has {whole!r}; got {data!r}")
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
    return jax.tree_util.tree_map_with_path(
        lambda at, leaf: xp.asarray(leaf)[order] if is_personal(at, leaf) else leaf, joined
    )
