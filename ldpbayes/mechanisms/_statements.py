"""What several mechanisms promise together, in words."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from ldpbayes.privacy._guarantee import quoted

__all__ = ["statements"]


def statements(mechanisms: Iterable[Any]) -> str:
    """What releases promise: of several the sum of their budgets, then each promise with the number of its releases.

    Whether two releases are about the same people cannot be told from them, so the words hold in either case.

    Parameters
    ----------
    mechanisms : iterable of Mechanism
        One a release.
    """
    guarantees = [mechanism.guarantee for mechanism in mechanisms]
    promises = Counter(guarantee.statement() for guarantee in guarantees)
    if len(guarantees) < 2:
        return "".join(promises)
    # basic composition: epsilons add up, and deltas
    budget, delta = (
        np.sum([(np.min(part), np.max(part)) for part in parts], axis=0)
        for parts in zip(*(guarantee.stated_pair for guarantee in guarantees), strict=True)
    )
    promised = f"is promised epsilon {quoted(budget)} and delta {quoted(delta)} in all"
    if budget[1] == np.inf or delta[1] >= 1:
        promised = "may be promised nothing in all"
    unit = min(guarantee.unit for guarantee in guarantees)  # a promise to a record is one to its attributes and label
    first = (
        f"{len(guarantees)} releases. Where they are about the same people, their budgets add up: someone with one "
        f"{unit} in each {promised}. What each promises by itself:"
    )
    counted = (f"{count} releases, each: {promise}" if count > 1 else promise for promise, count in promises.items())
    return "\n".join([first, *counted])
