"""`observe_jointly`: several releases of the same people, whose records are independent given a latent class."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ldpbayes._core.pytrees import unchecked
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Message
from ldpbayes.data import CountSketch, Release, Sketch
from ldpbayes.inference._handlers import observe
from ldpbayes.likelihood.families import ends_of
from ldpbayes.likelihood.mixtures import MixtureOverClasses, log_prob_by_class
from ldpbayes.likelihood.privatized import Privatized, unwrapped
from ldpbayes.mechanisms import PureProtocol
from ldpbayes.numerics.special import log_or_nothing

Data = Release | Sketch | Sequence[Release | Sketch]


def observe_jointly(
    classes: dist.Distribution, parts: Mapping[str, tuple[dist.Distribution | None, Data]]
) -> dict[str, Any]:
    """Condition a NumPyro model on several releases of the same people, in the same order.

    Each person has a latent class, over which the likelihood is summed exactly; given the class, the person's records
    are independent. Each part is a site: the law of a released value given those of the parts before.

    Parameters
    ----------
    classes : numpyro.distributions.Distribution
        Law of the class: Categorical or Bernoulli, of batch shape () or (N,); TypeError for others.
    parts : dict
        By name of a site, a pair of the law of its records and their release. The law has an entry a class on its last
        batch axis: batch shape (C,) or (N, C). None says that the record is the class, a category. Either all parts are
        releases of N values; or there are two, of any number of people: the sketch of a release of codes 0, ..., K − 1,
        then a sequence of K sketches, one of the people who released each code. Else ValueError or TypeError.

    Returns
    -------
    dict
        What `observe` returns, by site.
    """
    logits = _logits(classes)
    pairs = isinstance(parts, Mapping) and all(isinstance(part, tuple) and len(part) == 2 for part in parts.values())
    if not pairs or not parts:
        form = 'a dict of pairs by site, as in {"answer": (None, answers), "income": (law, incomes)}'
        raise TypeError(f"parts must be {form}, got {parts!r}")
    (first, (_, whole)), *others = parts.items()
    values: dict[str, Any] = {}
    data: Any
    for name, (law, data) in parts.items():
        laws = _laws(name, law, data, logits.shape[-1])
        if values:
            data = _of_the_same(first, whole, name, data, len(others))
        last = _Last()
        with last:
            values[name] = observe(name, _mixture(logits, laws), data)
        if isinstance(data, Release):
            logits = logits + last.log_prob_by_class(laws)
        elif others and _counts_codes(data):
            logits = logits + log_prob_by_class(laws, data.mechanism, np.arange(_groups(others[0][1][1])))
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
    if isinstance(law, dist.CategoricalProbs):
        logs = log_or_nothing(law.probs)
    elif isinstance(law, dist.CategoricalLogits):
        logs = jax.nn.log_softmax(law.logits)
    elif isinstance(law, dist.BernoulliProbs):
        logs = log_or_nothing(jnp.stack([1 - law.probs, law.probs], axis=-1))
    elif isinstance(law, dist.BernoulliLogits):
        logs = jax.nn.log_sigmoid(jnp.stack([-law.logits, law.logits], axis=-1))
    else:
        raise TypeError(f"classes must be a Categorical or Bernoulli law, got {type(law).__name__}")
    return jnp.broadcast_to(logs, (*classes.batch_shape, logs.shape[-1]))


def _laws(name: str, law: dist.Distribution | None, data: Data, classes: int) -> dist.Distribution:
    """The laws (*batch, classes) of a part's records; ValueError for others."""
    mechanism = getattr(data[0] if isinstance(data, Sequence) and data else data, "mechanism", None)
    if law is None:
        if mechanism is not None and not (isinstance(mechanism, PureProtocol) and mechanism.categories >= classes):
            needs = f"None says that its records are the {classes} classes, which the mechanism does not take"
            raise ValueError(f"site {name!r}: {needs}: {mechanism!r}; give the law of the records in each class")
        return dist.Categorical(probs=jnp.eye(classes), validate_args=False)
    if not isinstance(law, dist.Distribution):
        raise TypeError(f"site {name!r}: the law of its records must be a distribution or None, got {law!r}")
    if law.batch_shape[-1:] != (classes,):
        needs = f"a law of batch shape ({classes},) or (N, {classes}), an entry a class"
        raise ValueError(f"site {name!r}: {classes} classes need {needs}; got {law.batch_shape}")
    if not law.event_shape and any(np.ndim(end) for end in ends_of(law.support)):
        raise ValueError(f"site {name!r}: the records of all classes must have one support, got {law.support}")
    return law


def _mixture(logits: Array, laws: dist.Distribution) -> dist.Distribution:
    """The law of a record whose class has log weights, of which all may be −inf where no class is possible."""
    logits = jnp.where(jnp.any(logits > -jnp.inf, axis=-1, keepdims=True), logits, 0.0)
    own, _ = unwrapped(laws)
    if isinstance(own, (dist.CategoricalProbs, dist.CategoricalLogits)):
        shares = jnp.sum(jax.nn.softmax(logits)[..., None] * own.probs, axis=-2)
        return dist.Categorical(probs=shares, validate_args=False)
    return MixtureOverClasses(logits, laws)


def _of_the_same(first: str, whole: Any, name: str, data: Any, others: int) -> Any:
    """The data of a further part, in the order of the people of the first; ValueError if those are other people."""
    if isinstance(data, Sequence) and isinstance(whole, Release) and all(isinstance(each, Release) for each in data):
        if whole.values is None:  # a plan of what sketches may have been made of
            return Release(None, data[0].mechanism, whole.count)
        _check_sizes(first, whole.values, None, name, data)
        values = np.concatenate([each.values for each in data])[np.argsort(np.argsort(whole.values, kind="stable"))]
        return unchecked(Release, values, data[0].mechanism, whole.count, ())
    if isinstance(whole, Release):
        if not isinstance(data, Release) or data.count != whole.count:
            got = f"{data.count} records" if isinstance(data, Release) else f"a {type(data).__name__}"
            raise ValueError(f"site {name!r}: {first!r} is a release of {whole.count} records, and here is {got}")
        return data
    if others > 1 or not _counts_codes(whole):
        needs = "sketches serve two parts, the first a count of codes under one budget"
        raise ValueError(f"site {name!r}: {needs}; give the releases of all parts")
    if is_concrete(whole, data):
        _check_sizes(first, whole.nodes, whole.weights, name, data)
    return data


def _check_sizes(first: str, codes: Array, weights: Array | None, name: str, data: Any) -> None:
    """ValueError unless the groups are those of the people who released each code."""
    if isinstance(data, CountSketch):
        sizes = np.bincount(data.groups, data.weights, _groups(data)) if _groups(data) else np.empty(0)
    else:
        parts = data if isinstance(data, Sequence) else ()
        sizes = np.array([getattr(each, "count", None) or each.size for each in parts])
    counts = np.bincount(np.asarray(codes, int), weights, len(sizes))
    if counts.shape != sizes.shape or not np.allclose(counts, sizes):
        needs = (
            f"{first!r} counts {counts.tolist()} people with the codes 0, 1, ...: a sketch of each such group is needed"
        )
        raise ValueError(f"site {name!r}: {needs}; got groups of {sizes.tolist()}")


def _counts_codes(data: Any) -> bool:
    mechanism = getattr(data, "mechanism", None)
    return isinstance(data, CountSketch) and not (data.law_shape or mechanism.batch_shape or mechanism.event_shape)


def _groups(data: Any) -> int:
    return len(data) if isinstance(data, Sequence) else getattr(data, "num_groups", None) or 0
