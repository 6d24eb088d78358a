"""Closed forms of p(z | θ), one file for each kind of records: their registry by base law and mechanism, and the
mixture with records without noise.
"""

import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from ldpbayes._core.checks import ends_of
from ldpbayes._core.types import Array, is_concrete
from ldpbayes.laws import families
from ldpbayes.laws.numbers import normal_log_density
from ldpbayes.likelihood.latent import latent_nodes
from ldpbayes.mechanisms import Mechanism
from ldpbayes.mechanisms.additive import Additive
from ldpbayes.noise import Noise
from ldpbayes.numerics.special import log_or_nothing, log_sum, logsumexp

# (base, mechanism, z) -> log density, in the broadcast shape of z and the base's batch.
ClosedForm = Callable[[Any, Any, Any], Any]
_FORMS = families.Registry()


def register_closed_form(
    base_type: type | tuple[type, ...], kind: type | tuple[type, ...], *, bounded: bool | None = None
) -> Callable[[ClosedForm], ClosedForm]:
    """Decorator that registers a closed form: a function (base, mechanism, z) → log density of released values z.

    ``base`` is the law of the record. The result has the broadcast shape of `z` and the batch of `base`. Functions that
    you register come before those of the package. ValueError if you have registered another one for the same classes.

    Parameters
    ----------
    base_type : type or tuple of types
        NumPyro classes of the law of the records. Subclasses are included.
    kind : type or tuple of types
        Classes of mechanisms, of which the function describes all records, or of noises: for all mechanisms that add
        such noise, and the records with noise only.
    bounded : bool, optional
        True: only for mechanisms that clip records to bounds. False: only for those without, whose releases are
        statistics. Default: both, and the function checks ``mechanism.bounded``.
    """
    laws, kinds = (part if isinstance(part, tuple) else (part,) for part in (base_type, kind))
    if not all(isinstance(part, type) for part in laws + kinds):
        raise TypeError(f"register_closed_form takes classes, got {base_type!r} and {kind!r}")

    def decorate(function: ClosedForm) -> ClosedForm:
        mixed = for_all_records(function)
        for law, part, clips in itertools.product(laws, kinds, (True, False) if bounded is None else (bounded,)):
            form = mixed if issubclass(part, Noise) else function
            _FORMS.add((law, part, clips), form, f"{law.__name__} under {part.__name__}")
        return function

    return decorate


def closed_form(base: dist.Distribution, mechanism: Mechanism) -> ClosedForm | None:
    """The function that serves all records of a law under a mechanism, or None: of the nearest base class first."""
    return _FORMS.find(_keys(base, mechanism))


def is_own(base: dist.Distribution, mechanism: Mechanism) -> bool:
    return any(key in _FORMS.users for key in _keys(base, mechanism))


def _keys(base: dist.Distribution, mechanism: Mechanism) -> list[tuple[type, type, bool]]:
    laws = type(families.unexpanded(base)).__mro__
    return [(law, kind, mechanism.bounded) for law in laws for kind in mechanism.form_classes]


def for_all_records(form: Callable) -> Callable:
    """A form for records with noise, mixed with the records that a mechanism leaves without."""

    @functools.wraps(form)
    def mixed(base: dist.Distribution, mechanism: Any, z: Array, **options: Any) -> jax.Array:
        if not mechanism.omits_noise:
            return form(base, mechanism, z, **options)
        return with_unperturbed(base, mechanism, z, form(base, mechanism.perturbing, z, **options))

    return mixed


def with_unperturbed(base: dist.Distribution, mechanism: Additive, z: Array, noisy: Array) -> jax.Array:
    """Log density (*batch) of values, some of them the records themselves, `noisy` that of the others: by Lebesgue's
    measure, plus unit masses at counts, and at bounds of numbers beyond which the support can go on.
    """
    share = mechanism.unperturbed
    if is_concrete(share) and not np.any(share):
        return noisy  # without public records the mixture below reduces to `noisy`
    possible = jnp.asarray(share) > 0
    share = jnp.asarray(share, jnp.result_type(float))
    log_share = log_or_nothing(share)
    noisy = jnp.where(share < 1, jnp.log1p(-jnp.where(share < 1, share, 0.0)), -jnp.inf) + noisy
    if mechanism.record_shape:
        unperturbed = normal_log_density(base, z) if isinstance(base, dist.MultivariateNormal) else base.log_prob(z)
        return logsumexp(log_share + unperturbed, noisy)
    discrete = base.support.is_discrete
    if not (mechanism.bounded or discrete):
        return logsumexp(log_share + families.log_prob_on_support(base, jnp.asarray(z)[None])[0], noisy)
    at_lower, at_upper = (possible & at for at in mechanism.at_bounds(z))
    ends = (mechanism.lower, mechanism.upper) if mechanism.bounded else (-np.inf, np.inf)
    lower, upper = (jnp.asarray(end) for end in ends)
    if discrete:
        grid = latent_nodes(base, mechanism)
        masses = grid.log_masses(base)
        rank = max(1 + jnp.ndim(z), masses.ndim)
        # a bound that no record can be clipped to has no atom
        gathered = [(at & reached)[None] for at, reached in zip((at_lower, at_upper), grid.open_ends, strict=True)]
        z = jnp.where(at_lower, lower, jnp.where(at_upper, upper, z))
        matches = [possible & (z == families.aligned(jnp.clip(grid.nodes, lower, upper), rank)), *gathered]
        batch = jnp.broadcast_shapes(*(match.shape[1:] for match in matches))
        at_node = jnp.concatenate([jnp.broadcast_to(match, (len(match), *batch)) for match in matches])
        unperturbed = log_sum(jnp.where(at_node, families.aligned(masses, rank), -jnp.inf), axis=0)
        return jnp.where(jnp.any(at_node, axis=0), log_share + unperturbed, noisy)
    # where ends of the support depend on parameters, the class has a property, and they are taken to be infinite
    first, last = ends_of(type(families.unexpanded(base)).support)
    at_lower, at_upper = at_lower & (first < lower), at_upper & (last > upper)
    inside = (z >= lower) & (z <= upper) & ~(at_lower | at_upper)
    below, above = families.log_mass_outside(base, lower, upper)
    # the base's density is evaluated in the middle of the bounds where it does not count; and at a bound, where it may
    # have a pole, at the number next to it
    info = jnp.finfo(jnp.result_type(z, float))
    near = (bound + side * (info.eps * jnp.abs(bound) + info.tiny) for bound, side in ((lower, 1), (upper, -1)))
    points = jnp.where(inside, jnp.clip(z, *near), (lower + upper) / 2)
    unperturbed = families.log_prob_on_support(base, points[None])[0]
    # not logaddexp: where neither is possible, as at the atom of a public number, its derivative is NaN
    mixed = logsumexp(noisy, jnp.where(inside, log_share + unperturbed, -jnp.inf))
    return jnp.where(at_lower, log_share + below, jnp.where(at_upper, log_share + above, mixed))


for _module in pkgutil.iter_modules(__path__, f"{__name__}."):  # in which closed forms register themselves
    importlib.import_module(_module.name)
