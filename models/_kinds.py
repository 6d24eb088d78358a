"""What kind of release a model is for: with another kind some models would give a wrong answer without an error."""

from collections.abc import Callable
from typing import Any

from ldpbayes import LinearStatisticsMechanism, LogisticStatisticsMechanism, PureProtocol, Release, Sketch
from ldpbayes.mechanisms import StatisticsMechanism

__all__ = ["check_kind"]

KINDS: dict[str, Callable[[Any], bool]] = {
    "numbers": lambda mechanism: not mechanism.record_shape and not isinstance(mechanism, PureProtocol),
    "categories": lambda mechanism: isinstance(mechanism, PureProtocol),
    "yes-or-no answers": lambda mechanism: isinstance(mechanism, PureProtocol) and mechanism.categories == 2,
    "labels": lambda mechanism: not mechanism.record_shape,
    "rows": lambda mechanism: bool(mechanism.record_shape) and not isinstance(mechanism, StatisticsMechanism),
    "rows or linear statistics": lambda mechanism: (
        KINDS["rows"](mechanism) or isinstance(mechanism, LinearStatisticsMechanism)
    ),
    "rows or logistic statistics": lambda mechanism: (
        KINDS["rows"](mechanism) or isinstance(mechanism, LogisticStatisticsMechanism)
    ),
}


def check_kind(factory: str, release: Any, kind: str) -> None:
    """Refuse what a model is not for.

    Parameters
    ----------
    factory : str
        Name of the model's factory, for the message.
    release : Release or Sketch
        What the model is given.
    kind : str
        What the model is for: a key of `KINDS`.

    Raises
    ------
    TypeError
        For a release of another kind, or anything else.
    """
    if not isinstance(release, (Release, Sketch)):
        raise TypeError(f"{factory} takes a release of {kind}, or a sketch of one; got {type(release).__name__}")
    if not KINDS[kind](release.mechanism):
        raise TypeError(f"{factory} takes a release of {kind}, got one under {release.mechanism!r}")
    if kind == "labels" and isinstance(release, Sketch):
        raise TypeError(f"{factory} takes the release itself: in a sketch labels have one law, whatever their features")
