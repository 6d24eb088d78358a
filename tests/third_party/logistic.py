"""A mechanism as somebody else would write it: logistic noise on a clipped number."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

import ldpbayes as ldp


@ldp.mechanisms.register("test_logistic", "Logistic noise on a clipped number.")
@dataclasses.dataclass(frozen=True)
class LogisticMechanism(ldp.mechanisms.NumericMechanism):
    """z = clip(x) + scale·logistic noise: log density −t − 2 log(1 + exp(−t)) − log(scale) at t = |noise|/scale."""

    scale: Any
    lower: Any
    upper: Any

    noise, bounded, has_atoms = None, True, False
    linear_tails = False  # nearly, but not exactly
    domain = property(lambda self: constraints.interval(self.lower, self.upper))
    support = constraints.real
    resolution = property(lambda self: self.scale)
    released_range = property(lambda self: (self.lower - 75 * self.scale, self.upper + 75 * self.scale))
    guarantee = property(lambda self: ldp.privacy.Guarantee(ldp.privacy.approximate_tradeoff(self._epsilon)))
    _epsilon = property(lambda self: (self.upper - self.lower) / self.scale)

    def randomize(self, key, x):
        return jnp.clip(x, self.lower, self.upper) + self.scale * jax.random.logistic(key, jnp.shape(x))

    def log_prob(self, z, x):
        t = jnp.abs(z - jnp.clip(x, self.lower, self.upper)) / self.scale
        return -t - 2 * jnp.log1p(jnp.exp(-t)) - jnp.log(self.scale)

    def moments(self, x):
        return jnp.clip(x, self.lower, self.upper), jnp.full(jnp.shape(x), (np.pi * self.scale) ** 2 / 3)

    def breakpoints(self, z):
        return z[..., None][..., :0]  # the density is smooth
