"""RAPPOR: Bloom filters of categories, perturbed by a permanent and an instantaneous step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ldpbayes._core.checks import INSIDE_0_1, ArgumentError, at_least, refuse
from ldpbayes._core.pytrees import check_fields, ruled, static
from ldpbayes._core.types import Array, Key, is_concrete
from ldpbayes.mechanisms._categories import LikelihoodTable
from ldpbayes.mechanisms._repeated import MOST_OUTCOMES, RAREST
from ldpbayes.mechanisms.plausibility import implausible_counts
from ldpbayes.mechanisms.protocol import BitLaw, checked_integers, registered
from ldpbayes.numerics.arrays import CACHE_SIZE
from ldpbayes.numerics.special import log_or_nothing, log_sum
from ldpbayes.privacy import FiniteTradeoff, Guarantee
from ldpbayes.privacy.tradeoffs import approximate_tradeoff


@registered("rappor", "Bloom filters of categories, perturbed by a permanent and an instantaneous step (RAPPOR).")
class Rappor(LikelihoodTable):
    """RAPPOR: each category sets some of m bits, of which a person reports a perturbed copy ([EPK]).

    Permanent step: the person replaces each bit, with probability f, by a random one (0 or 1 with probability 1/2), and
    keeps the result. Instantaneous step: in each report, a kept bit 0 is released as 1 with probability p, a kept bit 1
    with probability q. In one report, a bit is therefore 1 with probability q* = (1 − f/2) q + (f/2) p if the category
    sets it, else with p* = (1 − f/2) p + (f/2) q. Persons are in cohorts, which have hash functions of their own, and
    are assigned at random.

    A released value is the cohort (from 0; only if `bits` has an axis of cohorts), then for each bit the number of the
    person's reports in which it is 1: the bit itself, if there is one report.

    The guarantee is for all `reports` of a person about one value, and for any two values, also unlisted ones, which
    differ in at most 2 h bits. It is exact for up to 5,000 outcomes of these bits, else a bound with the exact epsilon
    at delta = 0. `permanent_guarantee` holds for any number of reports about one value. The epsilons of these two are
    ε₁ (for one report) and ε∞ in [EPK].

    Parameters
    ----------
    bits : array_like (categories, m) or (cohorts, categories, m)
        1 for the bits that a listed category sets, else 0: the identity matrix for one bit for each category.
    hashes : int
        Number h of hash functions: the most bits that a category sets, also an unlisted one.
    p, q : float
        Probabilities of the instantaneous step, 0 < p < q < 1. For the permanent step alone, give p = f/2, q = 1 − f/2.
    f : float
        Probability of the permanent step, in [0, 1). Default: 0, no such step.
    reports : array_like
        Number of reports of each person: one number, or one for each record. Default: 1.
    rest : bool
        Whether the last category is "any value that is not listed". It sets each bit independently with probability 1 −
        (1 − 1/m)^h, which is an approximation: a value sets exactly h bits, but for equal hashes. Default: False.

    Examples
    --------
    >>> rappor = ldp.mechanisms.Rappor([[1, 1, 0, 0], [0, 0, 1, 1]], hashes=2, p=0.5, q=0.75, f=0.5)
    >>> print(*(round(float(part.epsilon(0.0)), 3) for part in (rappor.guarantee, rappor.permanent_guarantee)))
    1.074 4.394
    """

    bits: Array
    hashes: int = static()
    p: Array = ruled(INSIDE_0_1)
    q: Array = ruled(INSIDE_0_1)
    f: Array = ruled(("at least 0, below 1", lambda a: (a >= 0) & (a < 1)), default=0.0)
    reports: Array = ruled(("a whole number from 1 on", lambda a: (a >= 1) & (a == np.floor(a))), default=1)
    rest: bool = static(default=False)

    monotone = True
    _shared = ("bits",)
    categories = property(lambda self: np.shape(self.bits)[-2] + self.rest, doc="Number of categories, with the rest.")
    cohorts = property(lambda self: self._map.shape[0], doc="Number of cohorts.")
    width = property(lambda self: np.shape(self.bits)[-1], doc="Number m of bits.")
    event_shape = property(
        lambda self: (self.width + self._leading,), doc="The cohort, if any, and a sum for each bit."
    )
    support = constraints.independent(constraints.nonnegative_integer, 1)
    _leading = property(lambda self: np.ndim(self.bits) - 2)  # whether the cohort comes first
    _map = property(lambda self: self.bits if np.ndim(self.bits) == 3 else self.bits[None])
    #: P(a bit is set | unlisted value)
    _density = property(lambda self: -np.expm1(self.hashes * np.log1p(-1 / self.width)))

    def __post_init__(self) -> None:
        check_fields(self)
        if is_concrete(self.p, self.q) and not (np.ndim(self.p) == np.ndim(self.q) == 0 and self.p < self.q):
            hint = "; in unary encodings, p is the probability of the true category's bit"
            raise ArgumentError("p", "a number below q", f"p = {self.p!r}, q = {self.q!r}{hint}")
        if np.ndim(self.f):
            raise ArgumentError("f", "one number", repr(self.f))
        if not is_concrete(self.bits):
            return
        bits = np.asarray(self.bits)
        if bits.ndim not in (2, 3) or not bits.size or bits.shape[-2] + self.rest < 2:
            allowed = "an array (categories, bits) or (cohorts, categories, bits) of at least two categories"
            raise ArgumentError("bits", allowed, f"shape {bits.shape}")
        if bits.dtype.kind not in "biuf":
            raise ArgumentError("bits", "an array of 0 and 1", f"an array of {bits.dtype}")
        refuse((bits != 0) & (bits != 1), "bits must be 0 or 1; {} are not", bits)
        object.__setattr__(self, "bits", bits.astype(np.uint8))
        at_least(max(1, int(bits.sum(axis=-1).max())), "hashes", self.hashes, self.width)

    @property
    def bit_law(self) -> BitLaw:  # type: ignore[override]
        kept, p, q, reports = 1 - self.f / 2, self.p, self.q, self.reports
        one, zero = kept * q + (1 - kept) * p, kept * p + (1 - kept) * q
        shared = (q - p) ** 2 * kept * (1 - kept)  # of the permanent step, the same in all reports
        of_one, of_zero = (a * q * (1 - q) + (1 - a) * p * (1 - p) for a in (kept, 1 - kept))
        design = np.moveaxis(np.asarray(self._map, float), -1, -2)
        if self.rest:
            design = np.concatenate([design, np.full((*design.shape[:-1], 1), self._density)], axis=-1)
        variances = of_one / reports + shared, of_zero / reports + shared
        return BitLaw(one, zero, *variances, reports, design, self.rest)

    @property
    def guarantee(self) -> Guarantee:
        """Of all reports of a person, of the one with the most."""
        reports = int(np.max(self.reports))
        with jax.enable_x64(True):
            return _of_filters(np.stack(self._of_sums(jnp.arange(reports + 1.0), jnp.asarray(reports))), self.hashes)

    @property
    def permanent_guarantee(self) -> Guarantee:
        """Of the permanent step, and so of any number of reports about one value; without this step it is infinite."""
        with np.errstate(divide="ignore"):
            kept = np.log([1 - self.f / 2, self.f / 2])
        return _of_filters(np.array([kept, kept[::-1]]), self.hashes)

    def randomize(self, key: Key, x: ArrayLike) -> jax.Array:
        codes, dtype = self._codes(x), jnp.result_type(float)
        shape = jnp.broadcast_shapes(codes.shape, jnp.shape(self.reports))
        keys = jax.random.split(key, 4)
        cohort = jax.random.randint(keys[0], shape, 0, self.cohorts)
        bits = jnp.asarray(self._map)[cohort, jnp.minimum(codes, np.shape(self.bits)[-2] - 1)]
        if self.rest:
            drawn = jax.random.bernoulli(keys[1], self._density, bits.shape)
            bits = jnp.where((codes == self.categories - 1)[..., None], drawn, bits)
        moved = jax.random.uniform(keys[2], bits.shape, dtype) < self.f / 2
        law = jnp.where((bits != 0) ^ moved, jnp.asarray(self.q, dtype), self.p)
        if is_concrete(self.reports) and np.all(np.equal(self.reports, 1)):
            sums = jax.random.uniform(keys[3], bits.shape, dtype) < law
        else:
            sums = jax.random.binomial(keys[3], jnp.asarray(self.reports, dtype)[..., None], law, bits.shape, dtype)
        first = jnp.broadcast_to(cohort[..., None], (*cohort.shape, self._leading))
        return jnp.concatenate([first, sums.astype(first.dtype)], axis=-1)

    def log_probs(self, z: ArrayLike) -> jax.Array:
        """By the ratio of the probabilities of a sum if its bit is set, and if it is not, in the bits of the cohort."""
        z, dtype = jnp.asarray(z), jnp.result_type(float)
        batch, k = z.shape[:-1], np.shape(self.bits)[-2]
        rows, reports = z.reshape(-1, z.shape[-1]), jnp.broadcast_to(jnp.asarray(self.reports, dtype), batch).ravel()
        spread = self.cohorts * self.width
        design = jnp.moveaxis(jnp.asarray(self._map, dtype), -2, 0).reshape(k, spread)

        def table(row_and_reports: tuple[jax.Array, jax.Array]) -> jax.Array:
            row, reports = row_and_reports
            one, zero = self._of_sums(row[self._leading :].astype(dtype), reports)
            cohort = row[0].astype(int) if self._leading else 0
            ratios = jnp.where(jnp.arange(self.cohorts)[:, None] == cohort, one - zero, 0.0).reshape(spread)
            logs = zero.sum() + design @ ratios
            if self.rest:
                unlisted = jnp.logaddexp(np.log(self._density) + one, np.log1p(-self._density) + zero).sum()
                logs = jnp.append(logs, unlisted)
            return logs - np.log(self.cohorts)

        return jax.lax.map(table, (rows, reports), batch_size=max(1, CACHE_SIZE // spread)).reshape(
            *batch, self.categories
        )

    def _of_sums(self, ones: jax.Array, reports: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log probabilities of sums over a person's reports, if a bit is set for the true category, and if not."""
        f, p, q = (jnp.asarray(a, ones.dtype) for a in (self.f, self.p, self.q))
        of_one, of_zero = (ones * jnp.log(a) + (reports - ones) * jnp.log1p(-a) for a in (q, p))
        kept, moved = jnp.log1p(-f / 2), log_or_nothing(f / 2)
        orders = gammaln(reports + 1) - gammaln(ones + 1) - gammaln(reports - ones + 1)
        pairs = (of_one, of_zero), (of_zero, of_one)
        one, zero = (orders + log_sum(jnp.stack([kept + a, moved + b], axis=-1)) for a, b in pairs)
        return one, zero

    def _validated(self, values: np.ndarray) -> np.ndarray:
        values = checked_integers(values, type(self).__name__, 0)
        if self._leading:
            problem = f"cohorts are numbers from 0 to {self.cohorts - 1}; {{}} are not"
            refuse(values[:, 0] >= self.cohorts, problem, values[:, 0], "in row {}")
        sums, most = values[:, self._leading :], np.reshape(self.reports, (-1, 1))
        refuse(sums > most, "{} sums of bits are above the number of reports", sums, "in row {}, bit {}")
        return values

    def implausible(self, values: np.ndarray) -> list[str]:
        if np.max(self.reports) > 1:  # sums over dependent reports
            return []
        one, zero = self.bit_law[:2]
        counts = values[:, self._leading :].sum(axis=0)
        return implausible_counts(counts, len(values), zero, one, 2 * len(counts), "have bit {}".format)


def _of_filters(logs: np.ndarray, hashes: int) -> Guarantee:
    """Of two values that set `hashes` bits each, none in common. Rows of `logs` have the log probabilities of what is
    released of a bit that is set, and of one that is not.
    """
    ratios = logs[0] - logs[1]
    if not np.all(np.isfinite(ratios)):
        return Guarantee(FiniteTradeoff(np.eye(2)))
    if logs.shape[1] ** (2 * hashes) <= MOST_OUTCOMES and hashes * logs.min(axis=1).sum() > np.log(RAREST):
        one, zero = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
        sides = [[one] * hashes + [zero] * hashes, [zero] * hashes + [one] * hashes]
        return Guarantee(FiniteTradeoff(np.stack([functools.reduce(np.kron, side) for side in sides])))
    return Guarantee(approximate_tradeoff(hashes * float(ratios.max() - ratios.min())))
