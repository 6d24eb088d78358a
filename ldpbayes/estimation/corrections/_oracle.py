"""The loss of original records, for studies."""

import dataclasses
from typing import ClassVar

from ldpbayes._pytree import pytree
from ldpbayes.estimation.corrections._naive import Naive

__all__ = ["Oracle"]


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Oracle(Naive):
    """ℓ(X) of the original records X: what would be estimated if nothing were private."""

    name: ClassVar[str] = "oracle"
    original: ClassVar[bool] = True
