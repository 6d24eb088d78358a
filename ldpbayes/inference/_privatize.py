"""`privatize`: a model that was written without us, of which named sites are seen only through their mechanisms."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ldpbayes.data import ReleaseWarning
from ldpbayes.data._release import doubts_about
from ldpbayes.likelihood._privatized import privatized, unwrapped
from ldpbayes.mechanisms import Mechanism

__all__ = ["check_site", "privatize"]


def check_site(name: str, distribution: dist.Distribution, value: Any) -> tuple[Mechanism, np.ndarray] | None:
    """Refuse observed values that a site's mechanism cannot have released, where they can be seen.

    Parameters
    ----------
    name : str
        Of the site.
    distribution : numpyro.distributions.Distribution
        `Privatized`, in any wrappers.
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

    def __init__(self, model: Callable, mechanisms: Mapping[str, Mechanism], **options: Any) -> None:
        for name, value in mechanisms.items():
            if not isinstance(value, Mechanism):
                raise TypeError(
                    f"the mechanism of site {name!r} must be an ldpbayes mechanism, got {type(value).__name__}"
                )
        self.mechanisms, self.options = dict(mechanisms), options
        self._sites: list[str] = []
        self._doubts: dict[str, str] = {}
        super().__init__(model)

    def __enter__(self) -> Any:
        """Start a run of the model."""
        self._sites = []
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        """End a run of the model and check that every named site occurred."""
        super().__exit__(exc_type, exc_value, traceback)
        missing = set(self.mechanisms) - set(self._sites)
        if exc_type is None and missing:
            raise ValueError(
                f"the model has no sample site {', '.join(map(repr, sorted(missing)))}; "
                f"its sites are {', '.join(self._sites)}"
            )

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace a named site's distribution by its privatized version.

        Parameters
        ----------
        msg : dict
            What NumPyro says of a site.
        """
        if msg["type"] != "sample":
            return
        self._sites.append(msg["name"])
        if msg["name"] in self.mechanisms:
            msg["fn"] = privatized(msg["fn"], self.mechanisms[msg["name"]], **self.options)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Look at what a named site observes: by now every handler has said what that is.

        Parameters
        ----------
        msg : dict
            What NumPyro says of a site.
        """
        name = msg["name"]
        if msg["type"] != "sample" or name not in self.mechanisms or not msg["is_observed"]:
            return
        seen = check_site(name, msg["fn"], msg["value"])
        problem = doubts_about(*seen) if seen and name not in self._doubts else None
        if problem:
            self._doubts[name] = f"site {name!r}: {problem}"
            warnings.warn(self._doubts[name], ReleaseWarning, stacklevel=2)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The warnings that were given, a tuple of str; `fit` keeps them with the result."""
        return tuple(self._doubts.values())
