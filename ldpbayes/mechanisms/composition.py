"""What several releases promise together."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from ldpbayes.mechanisms.protocol import Mechanism
from ldpbayes.privacy.guarantee import quoted


def statements(mechanisms: Iterable[Mechanism]) -> str:
    """The privacy statements of releases: the sum of their budgets, then each promise with its number of releases.

    Releases do not say whether they are about the same people, so the words hold in either case.
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
    sum_of_budgets = f"is promised epsilon {quoted(budget)} and delta {quoted(delta)} in all"
    if budget[1] == np.inf or delta[1] >= 1:
        sum_of_budgets = "may be promised nothing in all"
    unit = min(guarantee.unit for guarantee in guarantees)  # a promise to a record is one to its attributes and label
    heading = (
        f"{len(guarantees)} releases. Where they are about the same people, their budgets add up: someone with one "
        f"{unit} in each {sum_of_budgets}. What each promises by itself:"
    )
    lines = (f"{count} releases, each: {promise}" if count > 1 else promise for promise, count in promises.items())
    return "\n".join([heading, *lines])
