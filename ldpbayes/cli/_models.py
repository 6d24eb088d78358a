"""``ldpbayes models``: what the factories' docstrings and their models' reprs say."""

import inspect
import re
from typing import Any

import numpy as np

__all__ = ["described_models"]


def described_models() -> list[dict[str, Any]]:
    """For each factory of `ldpbayes.models` a dict of text: ``name``, ``priors``, ``description``, ``takes``.

    The priors are those of a model made with the defaults; features, where a factory needs some, are one column.
    """
    from ldpbayes import models

    rows = []
    for name in models.__all__:
        factory = getattr(models, name)
        parameters = inspect.signature(factory).parameters.values()
        needed = [each.name for each in parameters if each.default is inspect.Parameter.empty]
        priors = repr(factory(*(np.zeros((1, 1)) for _ in needed))).removeprefix(f"{name}(").removesuffix(")")
        if needed:  # they come first, and are no priors
            first = next(each.name for each in parameters if each.name not in needed)
            priors = priors[priors.index(f"{first}=") :]
        text = (inspect.getdoc(factory) or "").replace("``", "").replace("`", "")
        returned = " ".join(text.partition("Returns\n-------\ncallable\n")[2].partition("\n\n")[0].split())
        rows.append(
            {
                "name": name,
                "priors": priors,
                "description": text.partition("\n\n")[0].replace("\n", " "),
                "takes": re.split(r"[;.] TypeError", returned)[0].rstrip("."),
            }
        )
    return rows
