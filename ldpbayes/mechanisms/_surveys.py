"""Randomized answers of surveys, by the names and probabilities with which methods sections describe them."""

from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from scipy import special

from ldpbayes._core.checks import INSIDE_0_1, PROBABILITY, ArgumentError, at_least, checked
from ldpbayes._core.pytrees import Owed, check_fields, ruled, static
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.mechanisms._categories import MatrixProtocol
from ldpbayes.mechanisms.protocol import Mechanism, registered
from ldpbayes.privacy import Guarantee
from ldpbayes.privacy.tradeoffs import checked_laws

NOTHING_LEARNT = "such that the probability of an answer depends on the truth"


class YesNoDesign(MatrixProtocol):
    """Base of designs of a question with the answers no (code 0) and yes (1), by the probabilities of a yes.

    A probability is one number, or one for each record (N,). In a model it may be sampled.
    """

    categories = property(lambda self: 2, doc="The answers no and yes.")
    of_no: Annotated[Any, Owed("probability of the answer 1 if the truth is no")]
    of_yes: Annotated[Any, Owed("probability of the answer 1 if the truth is yes")]

    def __post_init__(self) -> None:
        check_fields(self)
        _check_identified(self, *self._answers)

    @property
    def _answers(self) -> tuple[Array, Array]:
        concrete = is_concrete(self)
        return tuple((np if concrete else jnp).broadcast_arrays(self.of_no, self.of_yes))  # type: ignore[return-value]

    @property
    def matrix(self) -> Array:
        xp: Any = np if is_concrete(self) else jnp
        yes = xp.stack(self._answers, axis=-1)
        return xp.stack([1 - yes, yes], axis=-1)


def _check_identified(mechanism: Any, *rows: Array) -> None:
    """ArgumentError if the answers of some record tell nothing, as they have one law whatever the truth is."""
    if is_concrete(mechanism) and np.any(np.isclose(rows[0], rows[1], rtol=0, atol=1e-12)):
        raise ArgumentError("the probabilities", NOTHING_LEARNT, repr(mechanism))


@registered("mirrored_question", "Warner's design: the question, or with the rest of the probability its opposite.")
class MirroredQuestion(YesNoDesign):
    """Warner's design, or mirrored question: answer the question, or its opposite, without saying which ([Warner]).

    For a probability above 1/2, it has the law of `RandomizedResponse`, which is faster.

    Parameters
    ----------
    truth : array_like
        Probability in (0, 1), other than 1/2, of the question itself; else the answer is to its opposite. One number,
        or one for each record.

    Examples
    --------
    >>> ldp.mechanisms.MirroredQuestion(truth=0.3).matrix.tolist()
    [[0.3, 0.7], [0.7, 0.3]]
    """

    truth: Array = ruled(INSIDE_0_1)
    of_no = property(lambda self: 1 - self.truth)
    of_yes = property(lambda self: self.truth)


@registered("crosswise", "Crosswise model: answer whether two questions have the same answer.")
class Crosswise(YesNoDesign):
    """Crosswise model: say whether the answers to the sensitive and an innocuous question are equal ([YTT]).

    The released code is 1 for equal answers (both yes or both no), and 0 for different ones. No one answer is a safe
    one, so that nobody gains by lying.

    Parameters
    ----------
    prevalence : array_like
        Probability of a yes to the innocuous question, in (0, 1), other than 1/2: one number, or one for each record.
    """

    prevalence: Array = ruled(INSIDE_0_1)
    of_no = property(lambda self: 1 - self.prevalence)
    of_yes = property(lambda self: self.prevalence)


@registered("triangular", "Triangular model: answer whether at least one of two answers is yes.")
class Triangular(YesNoDesign):
    """Triangular model: say whether at least one of the sensitive and an innocuous question has the answer yes ([YTT]).

    The released code is 0 for two times no, which gives the sensitive answer away: epsilon is infinite, for delta below
    1 − prevalence.

    Parameters
    ----------
    prevalence : array_like
        Probability of a yes to the innocuous question, in (0, 1): one number, or one for each record.
    """

    prevalence: Array = ruled(INSIDE_0_1)
    of_no = property(lambda self: self.prevalence)
    of_yes = property(lambda self: self.prevalence * 0 + 1)


@registered("mangat", "Mangat's design: people with the trait say so, others use Warner's design.")
class Mangat(YesNoDesign):
    """Mangat's design: people with the sensitive trait say yes, all others use Warner's design ([Mangat]).

    The answer no gives away that the trait is absent: epsilon is infinite, for delta below `truth`.

    Parameters
    ----------
    truth : array_like
        Probability in (0, 1) with which people without the trait say no: one number, or one for each record.
    """

    truth: Array = ruled(INSIDE_0_1)
    of_no = property(lambda self: 1 - self.truth)
    of_yes = property(lambda self: self.truth * 0 + 1)


@registered("unrelated_question", "Unrelated question: the sensitive question, or an innocuous one.")
class UnrelatedQuestion(YesNoDesign):
    """Unrelated question design: answer the sensitive question, or an innocuous one, without saying which ([GASH]).

    If the prevalence of the innocuous question is not known, sample it in the model, and give two groups of people
    different probabilities `truth`.

    Parameters
    ----------
    truth : array_like
        Probability in (0, 1] of the sensitive question: one number, or one for each record.
    prevalence : array_like
        Probability of a yes to the innocuous question, in [0, 1]: one number, or one for each record.
    """

    truth: Array = ruled(PROBABILITY)
    prevalence: Array = ruled(PROBABILITY)
    of_no = property(lambda self: (1 - self.truth) * self.prevalence)
    of_yes = property(lambda self: self.truth + (1 - self.truth) * self.prevalence)


@registered("forced_response", "Forced response: the truth, or an answer that the random device dictates.")
class ForcedResponse(MatrixProtocol):
    """Forced response: a random device tells people to give a certain answer, or the true one ([Boruch]).

    Parameters
    ----------
    forced : sequence of array_like
        For each category 0, 1, ..., the probability that the device dictates it: numbers with a sum below 1, and the
        truth has the rest. For a question with the answers no and yes, these are no and yes in this order. Each is one
        number, or an array with one for each record.

    Examples
    --------
    >>> design = ldp.mechanisms.ForcedResponse([1 / 6, 1 / 6])  # no for a 1, yes for a 6, else the truth
    >>> design.matrix.round(4).tolist(), round(float(design.guarantee.epsilon(0.0)), 4)
    ([[0.8333, 0.1667], [0.1667, 0.8333]], 1.6094)
    """

    forced: tuple[Array, ...]
    categories = property(lambda self: len(self.forced), doc="Number of categories.")

    def __post_init__(self) -> None:
        forced: Any = self.forced
        forced = [*(forced if isinstance(forced, (tuple, list)) or np.ndim(forced) else [forced])]
        at_least(2, "the number of categories of forced", len(forced))
        if is_concrete(forced):
            whole = checked("forced", np.stack(np.broadcast_arrays(*forced)), *PROBABILITY)
            checked("the sum of forced", whole.sum(axis=0), "below 1", lambda a: a < 1 - 1e-12)
            forced = [*whole] if whole.ndim > 1 else whole.tolist()
        object.__setattr__(self, "forced", tuple(forced))

    @property
    def matrix(self) -> Array:
        xp: Any = np if is_concrete(self) else jnp
        forced = xp.stack(xp.broadcast_arrays(*self.forced), axis=-1)
        truth = 1 - forced.sum(axis=-1)
        return forced[..., None, :] + truth[..., None, None] * np.eye(len(self.forced))


@registered("kuk", "Kuk's design: report how many of the cards drawn from one of two decks are red.")
class Kuk(MatrixProtocol):
    """Kuk's design: report how many cards of one of two decks are red; which deck depends on the truth ([Kuk]).

    Parameters
    ----------
    no, yes : array_like
        Share of red cards in the deck of people whose truth is no (code 0), and yes (1): one number in [0, 1] each, or
        one for each record.
    cards : int
        Number of cards that are drawn, each put back before the next. The released value is 0, ..., cards. Default: 1.
    """

    no: Array = ruled(PROBABILITY)
    yes: Array = ruled(PROBABILITY)
    cards: int = static(default=1)
    categories = property(lambda self: 2, doc="The answers no and yes.")

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "cards", at_least(1, "cards", self.cards, 1000))
        _check_identified(self, self.no, self.yes)
        if is_concrete(self):  # zeros in place of tiny probabilities would change the guarantee
            shares = np.concatenate([np.ravel(end) for end in (self.no, self.yes, 1 - self.no, 1 - self.yes)])
            if np.min(shares[shares > 0]) ** self.cards < np.finfo(float).tiny:
                raise ArgumentError("cards", "so few that double precision holds all probabilities", f"{self.cards}")

    @property
    def matrix(self) -> Array:
        xp: Any = np if is_concrete(self) else jnp
        red, drawn = xp.stack(xp.broadcast_arrays(self.no, self.yes), axis=-1)[..., None], np.arange(self.cards + 1)
        return special.comb(self.cards, drawn) * red**drawn * (1 - red) ** (self.cards - drawn)


@registered("noncompliance", "Some people ignore the instructions of another design.")
class Noncompliance(MatrixProtocol):
    """A design whose instructions some people ignore, and give an answer that does not depend on the truth.

    In a model, `share` is usually sampled (`ldpbayes.models.always_no`). It is identified if people have different
    designs. The guarantee is that of the design, since an answer that ignores the truth gives nothing away. If `share`
    depends on the category, who ignores the instructions tells something, and the guarantee is that of `matrix`.

    Parameters
    ----------
    mechanism : Mechanism
        The design, a `MatrixProtocol` or `RandomizedResponse`. In a `spec`, it is under "of".
    share : array_like
        Probability in [0, 1] that a person ignores the instructions: one number, or one for each category (k,).
    answers : array_like (m,)
        Probabilities of the answers of these people, such as ``[1, 0]`` if they always say no.

    Examples
    --------
    >>> design = ldp.mechanisms.Noncompliance(ldp.mechanisms.Crosswise(0.2), share=0.1, answers=[0.5, 0.5])
    >>> design.matrix.round(2).tolist()
    [[0.23, 0.77], [0.77, 0.23]]
    """

    mechanism: Any
    share: Array = ruled(PROBABILITY)
    answers: Array
    _shared = property(lambda self: ("share", "answers", *self.mechanism._shared))

    def __post_init__(self) -> None:
        if not (isinstance(self.mechanism, Mechanism) and self.mechanism.has_matrix):
            allowed = "a MatrixProtocol, such as ForcedResponse, or RandomizedResponse"
            raise TypeError(f"mechanism must be {allowed}, got {self.mechanism!r}")
        check_fields(self)
        if is_concrete(self.answers):
            object.__setattr__(self, "answers", checked_laws("answers", np.atleast_2d(self.answers))[0])
        inner: Any = self.mechanism
        *_, k, m = np.shape(inner.matrix)
        if np.shape(self.share) not in ((), (k,)) or np.shape(self.answers) != (m,):
            sizes = f"{np.shape(self.share)} and {np.shape(self.answers)}"
            raise ValueError(f"share and answers must have shapes () or ({k},), and ({m},), got {sizes}")

    @property
    def guarantee(self) -> Guarantee:
        return super().guarantee if np.ndim(self.share) else self.mechanism.guarantee

    @property
    def matrix(self) -> Array:
        share = (np if is_concrete(self) else jnp).reshape(self.share, (-1, 1))
        return (1 - share) * self.mechanism.matrix + share * self.answers

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"mechanism": self.name, "of": self.mechanism.spec()}
