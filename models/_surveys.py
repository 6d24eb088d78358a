"""Models of sensitive questions to which some people do not answer as they are told."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes import Release, Sketch, observe, observe_jointly
from ldpbayes.inference import factory
from ldpbayes.mechanisms import Noncompliance


@factory("yes-or-no answers", summary="Model of yes-or-no answers of people of whom a share always says no.")
def always_no(
    release: Release | Sketch,
    theta: dist.Distribution = dist.Beta(1, 1),
    share: dist.Distribution = dist.Beta(1, 1),
) -> None:
    """Model of answers in two groups with different designs, where some people give the answer 0 (no) whatever they are
    told. They are taken to be as often carriers of the trait as others. Sites: ``theta``, the share of people whose
    truth is yes, and ``share``, that of people who always say no. Default priors: uniform on [0, 1]. ValueError if all
    have one design, which does not identify both.
    """
    _observe(release, numpyro.sample("theta", theta), numpyro.sample("share", share))


@factory(
    "yes-or-no answers",
    summary="Cheating detection: shares of honest yes, honest no, and of people who always say no.",
    shares="Dirichlet([1, 1, 1])",
)
def cheating_detection(release: Release | Sketch, shares: dist.Distribution | None = None) -> None:
    """Cheating detection model of forced answers in two groups ([CD]). Site: ``shares`` (3,) of people whose honest
    answer is yes, of people whose honest answer is no, and of people who always say no, whose truth is not known.
    Default prior: uniform. The design is `ForcedResponse` or another one. ValueError if all people have one design.
    """
    yes, no, cheating = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)) if shares is None else shares)
    _observe(release, yes / (yes + no), cheating)


@factory("yes-or-no answers", summary="Stochastic lie detector: some people with the trait deny it.")
def stochastic_lie_detector(
    release: Release | Sketch,
    theta: dist.Distribution = dist.Beta(1, 1),
    honesty: dist.Distribution = dist.Beta(1, 1),
) -> None:
    """Stochastic lie detector: answers by `Mangat`'s design in two groups with different probabilities ([MME]), where
    some people with the trait deny it. Sites: ``theta``, the share of people whose truth is yes, and ``honesty``, the
    probability that they say so; others say no. Default priors: uniform on [0, 1]. ValueError if all have one design.
    """
    lying = 1 - numpyro.sample("honesty", honesty)
    _observe(release, numpyro.sample("theta", theta), jnp.stack([jnp.zeros_like(lying), lying]))


@factory("yes-or-no answers", groups=True, summary="Crosswise model with an anchor question: some answer at random.")
def anchored_crosswise(
    releases: Sequence[Release],
    theta: dist.Distribution = dist.Beta(1, 1),
    attentive: dist.Distribution = dist.Beta(1, 1),
    anchor: float = 0.0,
) -> None:
    """Model of two answers of each person ([AS]): by `Crosswise` about the sensitive question, and about an anchor
    question to which the share ``anchor`` (default: 0) of people would say yes. People who are not attentive answer
    both at random, with probability 1/2 each. Sites: ``theta``, the share of people whose truth is yes, and
    ``attentive``, that of attentive people. Default priors: uniform on [0, 1]. The releases have the same people in the
    same order. ValueError for a design under which somebody with a random truth gives no random answer, and for an
    anchor of 1/2, with which answers do not show who is attentive.
    """
    if not 0 <= anchor <= 1 or anchor == 0.5:
        raise ValueError(f"anchor must be a share in [0, 1] other than 1/2, got {anchor}")
    if len(releases) != 2:
        raise ValueError(f"anchored_crosswise takes the answers to a question and to its anchor, got {len(releases)}")
    for release in releases:
        if not _symmetric(release.mechanism):
            got = release.mechanism
            raise ValueError(f"anchored_crosswise takes symmetric designs, such as Crosswise, got {got!r}")
    yes, careful = numpyro.sample("theta", theta), numpyro.sample("attentive", attentive)
    # a record that is yes or no with probability 1/2 has a random answer, too
    classes = jnp.stack([careful * (1 - yes), careful * yes, 1 - careful])
    sensitive, second = releases
    laws = dist.Bernoulli(jnp.array([0.0, 1.0, 0.5])), dist.Bernoulli(jnp.array([anchor, anchor, 0.5]))
    observe_jointly(dist.Categorical(classes), {"z": (laws[0], sensitive), "anchor": (laws[1], second)})


def _observe(release: Any, theta: ArrayLike, share: ArrayLike) -> None:
    """Answers by a design that a share of people ignores, who say no; ValueError unless groups identify both."""
    design = release.mechanism
    if not design.has_matrix or not _identified(design):
        needs = "groups with different probabilities, an array with one for each record, as in Triangular(prevalence)"
        raise ValueError(f"one design does not identify who ignores it: the model needs {needs}; got {design!r}")
    ignoring = Noncompliance(design, share, np.array([1.0, 0.0]))
    observe("z", dist.Bernoulli(theta), dataclasses.replace(release, mechanism=ignoring))


def _identified(design: Any) -> bool:
    """Whether the probabilities of a yes, of both truths in several groups, differ by more than a factor."""
    matrix = design.matrix
    return isinstance(matrix, jax.core.Tracer) or np.linalg.matrix_rank(matrix[..., 1].reshape(-1, 2)) == 2


def _symmetric(design: Any) -> bool:
    """Whether somebody whose truth is yes or no with probability 1/2 gives such an answer, too."""
    if not design.has_matrix:
        return False
    return isinstance(design.matrix, jax.core.Tracer) or np.allclose(np.sum(design.matrix, axis=-2), 1)
