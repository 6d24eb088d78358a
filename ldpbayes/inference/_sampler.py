"""`Sampler`: the options of `fit` that say how a posterior is sampled."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from numpyro.infer import HMC, NUTS

from ldpbayes._core.checks import ONE_INSIDE_0_1, at_least, checked
from ldpbayes.inference.chains import Sampling
from ldpbayes.inference.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How `fit` samples a posterior. Each of these options can also be given to `fit` itself. Raises ValueError for a
    wrong value, or an option of a kernel class beside a finished kernel.

    Parameters
    ----------
    kernel : callable or numpyro.infer.mcmc.MCMCKernel
        An MCMC kernel of NumPyro, or a function of the model that returns a kernel. A kernel, or any of the options
        `chain_method`, `init_strategy`, `target_accept_prob`, `max_tree_depth` and `dense_mass`, gives chains. Default:
        an integral for at most three unconstrained parameters, otherwise ``numpyro.infer.NUTS``.
    num_warmup, num_samples, num_chains : int
        For each chain: the number of warm-up iterations, which are discarded, and the number of draws. And the number
        of chains. An integral has no warm-up, but its draws have the axis of chains.
    chain_method : {"threads", "vectorized"}, optional
        How several chains of HMC or NUTS run at the same time: each in its own thread (default on a CPU), or all in one
        vectorized program (default on an accelerator). Both give the same draws, up to rounding errors.
    init_strategy : callable, optional
        A function of NumPyro that chooses the starting point of each chain. Default: ``numpyro.infer.init_to_uniform``.
    target_accept_prob : float, optional
        The acceptance probability for which the warm-up adapts the step size of HMC or NUTS. Default: 0.8.
    max_tree_depth : int or pair of int, optional
        Only for NUTS: the largest number of doublings of a trajectory, or a pair for the warm-up and the draws after
        it. Default: 10.
    dense_mass : bool or list of tuple of str, optional
        The mass matrix of HMC or NUTS: diagonal (False, the default), full (True), or with correlations only between
        sites in the same tuple, as in ``[("mu", "sigma")]``.
    progress_bar : bool
        Whether `fit` shows its progress: by a bar, or by lines of text if stderr is redirected to a file.

    Examples
    --------
    >>> import ldpbayes as ldp
    >>> short = ldp.inference.Sampler(num_warmup=200, num_samples=200, progress_bar=False)
    >>> release = ldp.Release([1, 0, 1] * 60, ldp.RandomizedResponse(epsilon=1.0))
    >>> ldp.fit(ldp.models.warner(), release, sampler=short).posterior["theta"].shape
    (4, 200)
    """

    kernel: Any = None
    num_warmup: int = 1000
    num_samples: int = 1000
    num_chains: int = 4
    chain_method: Literal["threads", "vectorized"] | None = None
    init_strategy: Callable | None = None
    target_accept_prob: float | None = None
    max_tree_depth: int | tuple[int, int] | None = None
    dense_mass: bool | Sequence[tuple[str, ...]] | None = None
    progress_bar: bool = True

    def __post_init__(self) -> None:
        for name, least in (("num_warmup", 0), ("num_samples", 1), ("num_chains", 1)):
            object.__setattr__(self, name, at_least(least, name, getattr(self, name)))
        if self.chain_method not in (None, "threads", "vectorized"):
            raise ValueError(f"chain_method must be 'threads', 'vectorized' or None, got {self.chain_method!r}")
        if self._options and self.kernel is not None and not callable(self.kernel):
            options = " and ".join(self._options)
            raise ValueError(f"{options}: pass a kernel class, or give these options to the kernel itself")
        if self.target_accept_prob is not None:
            checked("target_accept_prob", self.target_accept_prob, *ONE_INSIDE_0_1)
        depth = self.max_tree_depth
        for number in depth if isinstance(depth, tuple) else [depth] if depth is not None else []:
            at_least(1, "max_tree_depth", number)

    @property
    def _options(self) -> dict[str, Any]:
        names = "init_strategy", "target_accept_prob", "max_tree_depth", "dense_mass"
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def for_problem(self, problem: Problem, seed: int) -> Sampling:
        """Make the kernel for a problem. ValueError if the kernel or its options do not fit the problem."""
        blocks, options = self.dense_mass, self._options
        if isinstance(blocks, Sequence) and not all(isinstance(b, tuple) and {*b} <= problem.sampled for b in blocks):
            raise ValueError(f"dense_mass must be True, False or tuples of {sorted(problem.sampled)}, got {blocks!r}")
        factory = self.kernel or NUTS
        factory = functools.partial(factory, **options) if options else factory
        kernel = factory(problem.density.model) if callable(factory) else factory
        plain = type(kernel) in (HMC, NUTS) and kernel.model is not None and problem.plain
        if not plain and (problem.expand or problem.expansion is not None):
            needs = "expand= needs HMC or NUTS, and a model without discrete sites"
            raise ValueError(f"{needs}; got kernel {self.kernel!r}")
        chosen = self.kernel is not None or bool(options) or self.chain_method is not None
        why = "a kernel or its options were given" if chosen else None if plain else "sites are discrete or subsampled"
        return Sampling(
            kernel,
            jax.random.key(seed),
            self.num_warmup,
            self.num_samples,
            self.num_chains,
            self.chain_method,
            self.progress_bar,
            outside=None if plain else factory,
            chains_because=why,
            improper=problem.improper,
            seed=seed,
        )


def largest_depth(kernel: Any) -> float:
    """Doublings of a trajectory after the warm-up, at most."""
    return np.ravel(kernel._max_tree_depth)[-1] if isinstance(kernel, NUTS) else np.inf
