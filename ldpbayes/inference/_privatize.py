"""`privatize`: a model that was written without us, of which named sites are seen only through their mechanisms."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ldpbayes._core.checks import warn
from ldpbayes._core.tracing import is_concrete
from ldpbayes.data import Release, ReleaseWarning, Sketch
from ldpbayes.data.release import doubts_about
from ldpbayes.likelihood.privatized import privatized_law, unwrapped
from ldpbayes.mechanisms import Mechanism


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
    and an unobserved site is simulated through its mechanism. What a site observes may be a `Release` by that
    mechanism: its values are meant, and one without values is simulated.

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
        If ``mechanisms`` is not a dict of mechanisms. When the model is run, and a site observes a sketch, or a release
        without a mechanism for it.
    ValueError
        When the model is run and has no sample site of one of the names, or observes values at one that its mechanism
        cannot have released (see `Mechanism.validated`), unless they are being traced; or a release by another.

    Warns
    -----
    ReleaseWarning
        When the model is run, once for each site whose mechanism could hardly have released the observed values.

    Examples
    --------
    >>> private = privatize(model, {"y": LaplaceMechanism(epsilon=1.0, lower=0, upper=10)})  # doctest: +SKIP
    """

    def __init__(self, model: Callable, mechanisms: Mapping[str, Mechanism], **options: Any) -> None:
        if not callable(model):
            raise TypeError(f"privatize takes a model, then its mechanisms; as the model it got {model!r}")
        if not isinstance(mechanisms, Mapping):
            raise TypeError(
                'mechanisms must be a dict from the name of a site to its mechanism, as in privatize(model, {"y": '
                f"mechanism}}), got {mechanisms!r}"
            )
        for name, value in mechanisms.items():
            if not isinstance(value, Mechanism):
                raise TypeError(f"the mechanism of site {name!r} must be an ldpbayes mechanism, got {_said(value)}")
        self.mechanisms, self.options = dict(mechanisms), options
        self._sites: list[str] = []
        self._released: set[str] = set()
        self._doubts: dict[str, str] = {}
        super().__init__(model)

    def __repr__(self) -> str:
        """Return the call, with a function's name in its place."""
        model = self.fn.__name__ if inspect.isfunction(self.fn) else repr(self.fn)
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{type(self).__name__}({', '.join([model, repr(self.mechanisms), *options])})"

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
        name, value = msg["name"], msg["value"]
        self._sites.append(name)
        if isinstance(value, (Release, Sketch)):
            msg["value"] = self._values(name, value)
            msg["is_observed"] = msg["value"] is not None
            msg["infer"] = msg["infer"] | {"released": True}
        if name in self.mechanisms:
            msg["fn"] = privatized_law(msg["fn"], self.mechanisms[name], **self.options)

    def _values(self, name: str, data: Any) -> Any:
        """What a site observes that was given a release; None where it is to be simulated."""
        if isinstance(data, Sketch):
            raise TypeError(
                f"site {name!r} observes a {type(data).__name__}, but a privatized model needs the records: pass the "
                "release, or write the site with ldpbayes.observe, which takes sketches"
            )
        stated = self.mechanisms.get(name)
        if stated is None:
            raise TypeError(f"site {name!r} observes a release, but privatize is given no mechanism for it")
        if is_concrete(stated, data.mechanism) and stated != data.mechanism:
            raise ValueError(f"site {name!r}: privatize is given {stated!r}, but the release is by {data.mechanism!r}")
        self._released.add(name)
        return data.values

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
        # a release has said itself what speaks against its values
        problem = doubts_about(*seen) if seen and name not in {*self._doubts, *self._released} else None
        if problem:
            self._doubts[name] = f"site {name!r}: {problem}"
            warn(self._doubts[name], ReleaseWarning)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The warnings that were given, a tuple of str; `fit` keeps them with the result."""
        return tuple(self._doubts.values())


def _said(value: Any) -> str:
    """What somebody gave in place of a mechanism, and where that is near."""
    if isinstance(value, type) and issubclass(value, Mechanism):
        return f"the class {value.__name__}: make one, with its budget"
    if isinstance(value, (Release, Sketch)):
        return f"a {type(value).__name__}; its mechanism is its attribute .mechanism"
    if isinstance(value, str):
        return f"the string {value!r}; ldpbayes.mechanism makes one by name"
    return type(value).__name__
