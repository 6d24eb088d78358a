"""`privatize`: an ordinary model whose named sites are observed only through their mechanisms."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ldpbayes._core.checks import warn
from ldpbayes._core.tracing import is_concrete
from ldpbayes._core.types import Array, Message, Model
from ldpbayes.data import Release, ReleaseWarning, Sketch
from ldpbayes.data.release import doubts_about
from ldpbayes.likelihood.privatized import privatized_law, unwrapped
from ldpbayes.mechanisms import Mechanism


def check_site(name: str, distribution: dist.Distribution, value: Array) -> tuple[Mechanism, np.ndarray] | None:
    """Refuse observed values of a `Privatized` site that its mechanism cannot have released, unless masked or traced.
    Returns the mechanism and the values (records, *event) that were checked; see `Mechanism.validated_batch`.
    """
    law, keep = unwrapped(distribution)
    try:
        return law.mechanism.validated_batch(value, keep)
    except ValueError as error:
        raise ValueError(f"site {name!r}: {error}") from None


class privatize(Messenger):
    """Privatized version of an ordinary NumPyro model: named sites are observed only through their mechanisms.

    Plates, `scale`, `mask`, `Predictive`, SVI and every kernel keep working. Observed values are now released values:
    an array, or a `Release` by that mechanism. An unobserved site is simulated through its mechanism.

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
        If ``mechanisms`` is not a dict of mechanisms; in a run, if a site observes a sketch, or a release without a
        mechanism for it.
    ValueError
        In a run, if the model has no sample site of one of the names, or one observes concrete values that its
        mechanism cannot have released (see `Mechanism.validated`), or a release by another mechanism.

    Warns
    -----
    ReleaseWarning
        In a run, once for each site whose mechanism could hardly have released the observed values.

    Examples
    --------
    >>> private = privatize(model, {"y": LaplaceMechanism(epsilon=1.0, lower=0, upper=10)})  # doctest: +SKIP
    """

    def __init__(self, model: Model, mechanisms: Mapping[str, Mechanism], **options: Any) -> None:
        if not callable(model):
            raise TypeError(f"privatize takes a model, then its mechanisms; as the model it got {model!r}")
        if not isinstance(mechanisms, Mapping):
            raise TypeError(
                'mechanisms must be a dict from the name of a site to its mechanism, as in privatize(model, {"y": '
                f"mechanism}}), got {mechanisms!r}"
            )
        for name, value in mechanisms.items():
            if not isinstance(value, Mechanism):
                raise TypeError(f"the mechanism of site {name!r} must be an ldpbayes mechanism, got {_in_words(value)}")
        self.mechanisms, self.options = dict(mechanisms), options
        self._sites: list[str] = []
        self._releases: set[str] = set()
        self._doubts: dict[str, str] = {}
        super().__init__(model)

    def __repr__(self) -> str:
        """The call, in which a function's name stands for the function."""
        model = self.fn.__name__ if inspect.isfunction(self.fn) else repr(self.fn)
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{type(self).__name__}({', '.join([model, repr(self.mechanisms), *options])})"

    def __enter__(self) -> Any:
        self._sites = []
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        super().__exit__(exc_type, exc_value, traceback)
        missing = set(self.mechanisms) - set(self._sites)
        if exc_type is None and missing:
            raise ValueError(
                f"the model has no sample site {', '.join(map(repr, sorted(missing)))}; "
                f"its sites are {', '.join(self._sites)}"
            )

    def process_message(self, msg: Message) -> None:
        """Replace a named site's distribution by its privatized version, and a release by its values."""
        if msg["type"] != "sample":
            return
        name, value = msg["name"], msg["value"]
        self._sites.append(name)
        if isinstance(value, (Release, Sketch)):
            msg["value"] = self._released_values(name, value)
            msg["is_observed"] = msg["value"] is not None
            msg["infer"] = msg["infer"] | {"released": True}
        if name in self.mechanisms:
            msg["fn"] = privatized_law(msg["fn"], self.mechanisms[name], **self.options)

    def _released_values(self, name: str, data: Release | Sketch) -> Array | None:
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
        self._releases.add(name)
        return data.values

    def postprocess_message(self, msg: Message) -> None:
        """Check the observed values of a named site: all handlers have run, so its value and mask are final."""
        name = msg["name"]
        if msg["type"] != "sample" or name not in self.mechanisms or not msg["is_observed"]:
            return
        checked = check_site(name, msg["fn"], msg["value"])
        # A release has given the warning about its values itself.
        problem = doubts_about(*checked) if checked and name not in {*self._doubts, *self._releases} else None
        if problem:
            self._doubts[name] = f"site {name!r}: {problem}"
            warn(self._doubts[name], ReleaseWarning)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The warnings of all runs; `fit` keeps them with the result."""
        return tuple(self._doubts.values())


def _in_words(value: object) -> str:
    """What an argument is that should be a mechanism, with advice."""
    if isinstance(value, type) and issubclass(value, Mechanism):
        return f"the class {value.__name__}: make one, with its budget"
    if isinstance(value, (Release, Sketch)):
        return f"a {type(value).__name__}; its mechanism is its attribute .mechanism"
    if isinstance(value, str):
        return f"the string {value!r}; ldpbayes.mechanism makes one by name"
    return type(value).__name__
