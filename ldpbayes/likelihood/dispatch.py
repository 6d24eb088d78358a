"""Which closed form serves a base law and a mechanism."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ldpbayes._core.tracing import is_concrete
from ldpbayes.likelihood._masses import aligned, log_mass_outside, log_prob_on_support, static_support_ends
from ldpbayes.likelihood._mixing import normal_log_density
from ldpbayes.likelihood.families import Registry, unexpanded
from ldpbayes.likelihood.latent import latent
from ldpbayes.noise import Noise
from ldpbayes.noise.omitted import Omitted
from ldpbayes.numerics.special import log_or_nothing, log_sum, logsumexp


def log_shares(share: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Logs of the shares of records without noise and with it, −inf with zero gradient where there are none.

    Parameters
    ----------
    share : array_like
        Between 0 and 1, both included: which of the two it is need not be known while it is traced.
    """
    share = jnp.asarray(share, jnp.result_type(float))
    return log_or_nothing(share), jnp.where(share < 1, jnp.log1p(-jnp.where(share < 1, share, 0.0)), -jnp.inf)


def with_unperturbed(base: Any, mechanism: Any, z: Any, noisy: Any) -> jax.Array:
    """Log density of released values some of which are the records themselves, given that of the noisy ones.

    The reference measure is Lebesgue's plus unit masses at what a clipped record can be, for a discrete base; for
    numbers, at the bounds, where clipping gathers records, unless the base's support, whatever its parameters, has
    nothing beyond: then a value there is like any other. It must not depend on parameters, or likelihoods would not
    compare.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Law of a record.
    mechanism : Mechanism
        Its noise is `Omitted`.
    z : array (*batch, *event)
        Released values.
    noisy : array (*batch)
        Log density of z under ``mechanism.perturbing``.

    Returns
    -------
    Array (*batch)
    """
    share = mechanism.unperturbed
    if is_concrete(share) and not np.any(share):
        return noisy  # as what follows is, for less
    log_share, log_rest = log_shares(share)
    some, noisy = jnp.asarray(share) > 0, log_rest + noisy
    if mechanism.record_shape:
        own = normal_log_density(base, z) if isinstance(base, dist.MultivariateNormal) else base.log_prob(z)
        return logsumexp(log_share + own, noisy)
    discrete = base.support.is_discrete
    if not (mechanism.bounded or discrete):
        return logsumexp(log_share + log_prob_on_support(base, jnp.asarray(z)[None])[0], noisy)
    at_lower, at_upper = (some & at for at in mechanism.at_bounds(z))
    ends = (mechanism.lower, mechanism.upper) if mechanism.bounded else (-np.inf, np.inf)
    lower, upper = (jnp.asarray(end) for end in ends)
    if discrete:
        grid = latent(base, mechanism)
        masses = grid.log_masses(base)
        rank = max(1 + jnp.ndim(z), masses.ndim)
        # a bound that no record can be clipped to has no atom
        gathered = [(at & reached)[None] for at, reached in zip((at_lower, at_upper), grid.open_ends, strict=True)]
        z = jnp.where(at_lower, lower, jnp.where(at_upper, upper, z))
        parts = [some & (z == aligned(jnp.clip(grid.nodes, lower, upper), rank)), *gathered]
        batch = jnp.broadcast_shapes(*(h.shape[1:] for h in parts))
        here = jnp.concatenate([jnp.broadcast_to(h, (len(h), *batch)) for h in parts])
        own = log_sum(jnp.where(here, aligned(masses, rank), -jnp.inf), axis=0)
        return jnp.where(jnp.any(here, axis=0), log_share + own, noisy)
    first, last = static_support_ends(base)
    at_lower, at_upper = at_lower & (first < lower), at_upper & (last > upper)
    inside = (z >= lower) & (z <= upper) & ~(at_lower | at_upper)
    below, above = log_mass_outside(base, lower, upper)
    # where it is not looked at, the base is asked about the middle of the bounds; and at a bound, where its density may
    # have a pole, about the number next to it
    info = jnp.finfo(jnp.result_type(z, float))
    near = (bound + side * (info.eps * jnp.abs(bound) + info.tiny) for bound, side in ((lower, 1), (upper, -1)))
    own = log_prob_on_support(base, jnp.where(inside, jnp.clip(z, *near), (lower + upper) / 2)[None])[0]
    # not logaddexp: where neither is possible, as at the atom of a public number, its derivative is NaN
    mixed = logsumexp(noisy, jnp.where(inside, log_share + own, -jnp.inf))
    return jnp.where(at_lower, log_share + below, jnp.where(at_upper, log_share + above, mixed))


ClosedForm = Callable[[Any, Any, Any], Any]

_FORMS = Registry()


def register_closed_form(
    base_type: type, kind: type, *, bounded: bool | None = None
) -> Callable[[ClosedForm], ClosedForm]:
    """Decorator: use the function for `base_type` under mechanisms, or noises, of a class and its subclasses.

    Parameters
    ----------
    base_type : type
        A NumPyro distribution class.
    kind : type
        A class of noises (of `ldpbayes.noise`), for any mechanism that adds such noise; or a class of mechanisms. A
        form for a noise serves also where that noise is left out for some records: these are mixed in. A form for a
        mechanism has to say all of it.
    bounded : bool, optional
        Serve only mechanisms that clip records to bounds (True), or only those without bounds (False), whose releases
        are statistics. By default both: the function then looks at ``mechanism.bounded``.

    Returns
    -------
    callable
        Decorator for a function (base, mechanism, z) -> log density of the broadcast shape of z and the base's batch.
        Your own function wins over one of ours, in `Privatized` and `observe`, for releases and for sketches.

    Raises
    ------
    TypeError
        If one of the first two arguments is not a class.
    ValueError
        When another function has been registered for the pair.
    """
    if not (isinstance(base_type, type) and isinstance(kind, type)):
        raise TypeError(f"register_closed_form takes two classes, got {base_type!r} and {kind!r}")

    def decorate(function: ClosedForm) -> ClosedForm:
        for clips in (True, False) if bounded is None else (bounded,):
            _FORMS.add((base_type, kind, clips), function, f"{base_type.__name__} under {kind.__name__}")
        return function

    return decorate


def closed_form(base: Any, mechanism: Any) -> ClosedForm | None:
    """The function registered for a law and a mechanism, a user's before ours, or None.

    The nearest base class counts first, then the mechanism's classes, then those of its noise.

    Parameters
    ----------
    base : numpyro.distributions.Distribution
        Law of a record.
    mechanism : Mechanism
        What perturbs it.

    Returns
    -------
    callable or None
        Maps (base, mechanism, z) to the log density of z, records without noise included.
    """
    for forms in _FORMS.tables:
        found = _found(forms, base, mechanism)
        if found is not None:
            return found
    return None


def is_own(base: Any, mechanism: Any) -> bool:
    """Whether a closed form for these is a user's own.

    Parameters
    ----------
    base, mechanism
        See `closed_form`.
    """
    return _found(_FORMS.own, base, mechanism) is not None


def _found(forms: dict[Any, ClosedForm], base: Any, mechanism: Any) -> ClosedForm | None:
    noise = getattr(mechanism, "noise", None)
    left_out = isinstance(noise, Omitted)
    law = noise.noise if isinstance(noise, Omitted) else noise
    clips = bool(getattr(mechanism, "bounded", True))  # categories have no bounds, and nothing beyond them either
    for base_type in type(unexpanded(base)).__mro__:
        for kind in type(mechanism).__mro__:
            if (base_type, kind, clips) in forms:
                return forms[base_type, kind, clips]
        for kind in type(law).__mro__ if isinstance(law, Noise) else ():
            if (base_type, kind, clips) in forms:
                form = forms[base_type, kind, clips]
                return _mixed(form) if left_out else form
    return None


def _mixed(function: ClosedForm) -> ClosedForm:
    """A form for the records that get noise, as one for all of them."""

    def mixed(base: Any, mechanism: Any, z: Any) -> Any:
        return with_unperturbed(base, mechanism, z, function(base, mechanism.perturbing, z))

    return mixed
