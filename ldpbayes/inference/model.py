"""What `fit` asks of a model beyond calling it."""

import abc
from collections.abc import Mapping
from typing import Any


class Model(abc.ABC):
    """A NumPyro model that says which data it takes, and how `fit` reads and samples it.

    A plain function is a model, too. Derive from this class only if a model prepares its arguments, or if its
    posterior is sampled better in coordinates that depend on the data. `factory` makes models of this class.

    Attributes
    ----------
    name : str or None
        Name of the factory that made the model. Default: None.
    kind : str
        The kind of releases that the model takes, such as ``"numbers"`` (default) or ``"categories"``.
    groups : bool
        True if the model takes a sequence of releases, one for each group. Default: False.
    """

    name: str | None = None
    kind: str = "numbers"
    groups: bool = False

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the model: call ``numpyro.sample`` and `observe`."""

    def prepare(
        self, args: tuple, kwargs: dict[str, Any], attrs: Mapping[str, Any] | None = None
    ) -> tuple[tuple, dict[str, Any], dict[str, str]]:
        """Return the arguments of a fit as the model reads them, and entries for the attributes of the result.

        For predictions, `attrs` are the attributes of the result of the fit. Default: no change, and no entries.
        """
        return args, kwargs, {}

    def tuned(self, *args: Any, **kwargs: Any) -> "Model":
        """Return an equal model in coordinates in which the posterior given these arguments is easy to sample.

        Default: the model itself.
        """
        return self


def traits_of(model: Any) -> Any:
    """What has the traits `name`, `kind` and `groups` of a model: `Model` itself, with the defaults, for a function."""
    return model if isinstance(model, Model) else Model
