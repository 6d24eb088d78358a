"""`expand`: a pass over records, or over a shard of them, whose result `fit` takes in their place."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpyro.infer import init_to_uniform
from numpyro.infer.util import unconstrain_fn

from ldpbayes.inference._density import RUNNING, density_of, sites_of
from ldpbayes.inference._expansion import Expansion
from ldpbayes.inference._search import ORDERS, SEARCHES, Search, evenly
from ldpbayes.inference._tails import straight

__all__ = ["expand"]

DRAWS = 8000  # of a posterior at most, among which points are picked


def expand(
    model: Callable, *args: Any, at: Any = None, order: int | None = None, seed: int = 0, **kwargs: Any
) -> Expansion:
    """What a model's records say at points of its posterior; of shards, made at the same points, the results add.

    Two rounds serve data that do not fit one machine: expand every shard at the points of the first one's expansion,
    add, and `fit` with ``expand=`` the sum, given any shard; then once more ``at=`` that posterior, if `fit` asks for
    it. An expansion holds arrays alone, and can be pickled; points are compared exactly, so that machines which differ
    in rounding should be handed one expansion, rather than the posterior, as ``at``.

    Parameters
    ----------
    model : callable
        NumPyro model, called as ``model(*args, **kwargs)``.
    *args, **kwargs
        Arguments of the model: a shard of the records.
    at : Expansion or posterior, optional
        Where: at the points of another expansion, or at draws of what `fit` returned. Default: around the mode of the
        posterior of these records alone.
    order : int, optional
        2, 3 or 4. Default: that of an expansion given as ``at``, otherwise the highest for which few passes suffice.
    seed : int
        Of the points.

    Returns
    -------
    Expansion

    Raises
    ------
    ValueError
        If the model has no records that can be expanded, the order is another one, the posterior has several modes, or
        ``at`` is of another model.
    """
    if order is not None and order not in ORDERS:
        raise ValueError(f"order must be 2, 3 or 4, got {order!r}")
    density, key = density_of(model, args, kwargs), jax.random.key(seed)
    with jax.enable_x64(True):
        search = Search(density, sites_of(density), init_to_uniform, key)
        if isinstance(at, Expansion):
            if (at.names, at.points.shape[1:]) != (search.cut.names, search.cut.shape):
                raise ValueError(f"at is an expansion of another model, in {at.names}; here it is {search.cut.names}")
            made, rays = search.at(at.points, at.frame, at.order if order is None else order), at.rays
        else:
            draws = search.normal_draws(search.mode(SEARCHES)) if at is None else _draws(search, at)
            seen = search.above.coordinates(draws)
            made, rays = search.expansion(seen, order), straight(draws, seen)
        if rays is None:
            return made
        return dataclasses.replace(
            made, rays=rays, outwards=search.passes.values(search.above.coordinates(rays.points))
        )


def _draws(search: Search, posterior: Any) -> np.ndarray:
    """Unconstrained parameters (draws, n) of a posterior."""
    density = search.cut.density
    try:
        values = {name: np.asarray(posterior["posterior"][name]) for name in search.above.names}
    except (KeyError, TypeError):
        names = ", ".join(search.above.names)
        raise ValueError(f"at must be an expansion, or a posterior with draws of {names}; got {posterior!r}") from None
    some = {name: evenly(each.reshape(-1, *each.shape[2:]), DRAWS) for name, each in values.items()}

    def unconstrained(each: dict[str, Any]) -> Any:
        with RUNNING:
            return unconstrain_fn(density.model, density.args, density.kwargs, each)

    return search.above.flat(jax.jit(jax.vmap(unconstrained))(some))
