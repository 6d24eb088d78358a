"""Mechanisms that clip a number and add noise to it: Laplace and Gaussian."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import special

from ldpbayes.mechanisms.mechanism import Mechanism, _array, _concrete, _extreme, check_order, register
from ldpbayes.mechanisms.plausibility import implausible_numbers
from ldpbayes.privacy import GaussianTradeoff, Guarantee, LaplaceTradeoff, gaussian_scale
from ldpbayes.privacy.tradeoff import checked

__all__ = ["AdditiveMechanism", "GaussianMechanism", "LaplaceMechanism"]


class AdditiveMechanism(Mechanism):
    """z = clip(x, lower, upper) + scale * noise, with noise from a fixed law.

    Subclasses have the fields ``lower`` and ``upper`` (numbers or arrays that broadcast against the records), a
    ``scale`` of the noise, and the law of the noise at scale one.
    """

    lower: Any
    upper: Any
    scale: Any

    _noise_variance: ClassVar[float]
    """Variance of the noise at scale one."""

    _reach: ClassVar[float]
    """How many scales beyond the bounds `released_range` goes."""

    @abc.abstractmethod
    def _noise(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw noise of scale one."""

    @abc.abstractmethod
    def _noise_log_prob(self, noise: jax.Array) -> jax.Array:
        """Log density of noise of scale one."""

    @abc.abstractmethod
    def _noise_depth(self, distance: np.ndarray) -> np.ndarray:
        """Minus the binary logarithm of the probability that noise of scale one exceeds `distance`, at least 0."""

    def implausible(self, values: np.ndarray) -> list[str]:
        """Values too far beyond the bounds, or too few of them; see `Mechanism.implausible`."""
        return implausible_numbers(values, self.lower, self.upper, self.scale, 1.0, self._noise_depth)

    def _check_bounds(self) -> None:
        for name in ("lower", "upper"):
            self._check(name, "finite", np.isfinite)
        check_order(self.lower, self.upper)
        fields = dataclasses.fields(self)
        shapes = {f.name: np.shape(getattr(self, f.name)) for f in fields if f.init}
        try:
            np.broadcast_shapes(*shapes.values())
        except ValueError:
            raise ValueError(f"parameters must broadcast against each other, got shapes {shapes}") from None

    def _check_scale(self) -> None:
        with np.errstate(over="ignore"):
            scale = self.scale
        if _concrete(scale) and not np.all((scale > 0) & (scale < np.inf)):
            bad = np.ravel(scale)[np.argmin(np.ravel((scale > 0) & (scale < np.inf)))]
            raise ValueError(f"the scale of the noise must be positive and finite, got {bad} in {self!r}")

    def _parameters_as(self, *data: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Lower, upper and scale in the floating dtype of the data: parameters never promote it."""
        dtype = jnp.result_type(*data, float)
        return tuple(jnp.asarray(value, dtype) for value in (self.lower, self.upper, self.scale))

    def randomize(self, key: ArrayLike, x: ArrayLike) -> jax.Array:
        """Clip `x` and add noise; infinite values are clipped, NaN raises ValueError where it can be seen.

        For simulation and studies. To release real data use a cryptographically secure sampler that is safe in
        floating point, such as OpenDP's: differences of floating-point noise betray the record (Mironov 2012).
        """
        if _concrete(x):
            checked("x", x, "a number (drop or impute missing records first)", lambda a: ~np.isnan(a))
        x = jnp.asarray(x)
        lower, upper, scale = self._parameters_as(x)
        clipped = jnp.clip(x, lower, upper)
        return clipped + scale * self._noise(key, jnp.broadcast_shapes(clipped.shape, scale.shape), scale.dtype)

    def log_prob(self, z: ArrayLike, x: ArrayLike) -> jax.Array:
        """Log density of z given x, with respect to Lebesgue measure; see `Mechanism.log_prob`."""
        lower, upper, scale = self._parameters_as(z, x)
        return self._noise_log_prob((z - jnp.clip(x, lower, upper)) / scale) - jnp.log(scale)

    def moments(self, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return clip(x) and the variance of the noise; see `Mechanism.moments`."""
        lower, upper, scale = self._parameters_as(x)
        return tuple(jnp.broadcast_arrays(jnp.clip(x, lower, upper), self._noise_variance * scale**2))

    @property
    def domain(self) -> constraints.Constraint:
        """The interval from `lower` to `upper`: what is left of x after clipping."""
        return constraints.interval(self.lower, self.upper)

    @property
    def support(self) -> constraints.Constraint:
        """The real line."""
        return constraints.real

    @property
    def resolution(self) -> Any:
        """The smallest noise scale; see `Mechanism.resolution`."""
        return _extreme("min", self.scale)

    @property
    def released_range(self) -> tuple[Any, Any]:
        """The bounds, widened by what the noise adds to them; see `Mechanism.released_range`."""
        low, high = self.lower - self._reach * self.scale, self.upper + self._reach * self.scale
        return _extreme("min", low), _extreme("max", high)


@register("laplace")
@dataclasses.dataclass(frozen=True)
class LaplaceMechanism(AdditiveMechanism):
    """Laplace noise on a clipped number (Dwork, McSherry, Nissim & Smith 2006; the sensitivity is the range).

    The guarantee is that of a record, a number between the bounds. It is not that of a person in a noisy count or sum,
    which is a number about many records; see `ldpbayes.Release`.

    Parameters
    ----------
    epsilon : array_like
        Privacy budget of each record, positive and finite; an array holds personal budgets, one a record.
    lower, upper : array_like
        Clipping bounds in the unit of the data, finite, lower < upper. Choose them without looking at the data.

    Raises
    ------
    ValueError
        If a parameter is out of range or the shapes do not broadcast.
    """

    epsilon: Any
    lower: Any
    upper: Any

    linear_tails: ClassVar[bool] = True
    _noise_variance: ClassVar[float] = 2.0
    _reach: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        self._check_bounds()
        self._check_scale()

    @property
    def scale(self) -> Any:
        """Scale of the noise: (upper - lower) / epsilon."""
        return (self.upper - self.lower) / self.epsilon

    def breakpoints(self, z: ArrayLike) -> Any:
        """p(z | x) has a kink at x = z; see `Mechanism.breakpoints`."""
        return _array(z)[..., None]

    @property
    def guarantee(self) -> Guarantee:
        """Pure local differential privacy, with the trade-off curve of inputs at the two bounds."""
        return Guarantee(LaplaceTradeoff(self.epsilon))

    def _noise(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.laplace(key, shape, dtype)

    def _noise_log_prob(self, noise: jax.Array) -> jax.Array:
        return -jnp.abs(noise) - np.log(2).item()

    def _noise_depth(self, distance: np.ndarray) -> np.ndarray:
        return 1 + distance / np.log(2)


@register("gaussian")
@dataclasses.dataclass(frozen=True)
class GaussianMechanism(AdditiveMechanism):
    """Gaussian noise on a clipped number, calibrated exactly (Balle & Wang 2018, Theorem 8).

    The guarantee is that of a record, a number between the bounds. It is not that of a person in a noisy count or sum,
    which is a number about many records; see `ldpbayes.Release`.

    Parameters
    ----------
    epsilon : array_like
        Positive and finite; an array holds personal budgets, one a record.
    delta : array_like
        Between 0 and 1, exclusive.
    lower, upper : array_like
        Clipping bounds in the unit of the data, finite, lower < upper. Choose them without looking at the data.

    Attributes
    ----------
    scale : float or ndarray
        Standard deviation of the noise, calibrated when the mechanism is made. It is a leaf of the pytree, so a
        function that is to differentiate or map over budgets maps over `scale` with them.

    Raises
    ------
    ValueError
        If a parameter is out of range or the shapes do not broadcast, or if epsilon or delta is being traced:
        calibration solves an equation on the host.
    """

    epsilon: Any
    delta: Any
    lower: Any
    upper: Any
    scale: Any = dataclasses.field(init=False)

    _noise_variance: ClassVar[float] = 1.0
    _reach: ClassVar[float] = 12.0

    def __post_init__(self) -> None:
        self._check("epsilon", "positive and finite", lambda a: (a > 0) & (a < np.inf))
        self._check("delta", "between 0 and 1, exclusive", lambda a: (a > 0) & (a < 1))
        self._check_bounds()
        if not _concrete(self.epsilon, self.delta):
            raise ValueError(
                "epsilon and delta of a GaussianMechanism must be concrete, got a traced value; "
                "make the mechanism outside the traced function and pass it in as an argument"
            )
        with np.errstate(over="ignore"):
            scale = (self.upper - self.lower) * gaussian_scale(self.epsilon, self.delta)
        object.__setattr__(self, "scale", scale)
        self._check_scale()

    @property
    def guarantee(self) -> Guarantee:
        """Approximate local differential privacy, with the trade-off curve of inputs at the two bounds."""
        mu = np.divide(np.subtract(self.upper, self.lower), self.scale)
        return Guarantee(GaussianTradeoff(mu), stated_delta=self.delta)

    def _noise(self, key: ArrayLike, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.random.normal(key, shape, dtype)

    def _noise_log_prob(self, noise: jax.Array) -> jax.Array:
        return -(noise**2) / 2 - np.log(2 * np.pi).item() / 2

    def _noise_depth(self, distance: np.ndarray) -> np.ndarray:
        return -np.log2(np.maximum(special.ndtr(-distance), np.finfo(float).tiny))
