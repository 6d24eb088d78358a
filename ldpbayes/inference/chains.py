"""How a posterior is sampled: the options of `fit`, chains, and their progress bar."""

import functools
import inspect
import itertools
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.infer import HMC, MCMC, NUTS
from numpyro.infer.hmc import hmc
from numpyro.infer.util import ParamInfo, initialize_model
from scipy.optimize import minimize
from tqdm.auto import tqdm

from ldpbayes._core.checks import ONE_INSIDE_0_1, at_least, checked
from ldpbayes._core.types import Array, Key, Params, PyTree
from ldpbayes.inference.compiled_programs import Program, Traced, kept, stacked, trace, unstacked
from ldpbayes.inference.density import RUNNING, Density
from ldpbayes.inference.problem import Problem
from ldpbayes.numerics.arrays import evenly_spaced


@dataclass(frozen=True)
class Sampling:
    """How one posterior is sampled: a kernel that was made for its model, numbers of draws, and random keys."""

    kernel: Any
    seed: int  # of integrals, and of the key of chains
    num_warmup: int
    num_samples: int
    num_chains: int
    chain_method: str | None = None
    progress_bar: bool = True
    outside: Any = None  # the kernel, or what makes it for a model, if only NumPyro's own `MCMC` can run it
    chains_because: str | None = None  # why chains sample; None if the posterior is integrated where that is possible
    improper: bool = False  # whether a prior is

    key = property(lambda self: jax.random.key(self.seed))
    iterations = property(lambda self: self.num_chains * (self.num_warmup + self.num_samples))


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
        if not plain and problem.expand:
            needs = "expand= needs HMC or NUTS, and a model without discrete sites"
            raise ValueError(f"{needs}; got kernel {self.kernel!r}")
        chosen = self.kernel is not None or bool(options) or self.chain_method is not None
        why = "a kernel or its options were given" if chosen else None if plain else "sites are discrete or subsampled"
        numbers = self.num_warmup, self.num_samples, self.num_chains
        outside, how = None if plain else factory, (self.chain_method, self.progress_bar)
        return Sampling(kernel, seed, *numbers, *how, outside, why, problem.improper)


FIRST_LINE_SECONDS = 10.0  # seconds until a file has its first line; the time doubles from line to line
MAX_SECONDS_BETWEEN_LINES = 300.0  # seconds between lines at most
LONG_RUN_SECONDS = 180.0  # remaining seconds from which on the expected time is written, with what would be faster


class Bar:
    """A tqdm bar of iterations, ``unit_size`` of them as one, or lines in a file, with advice on what is ``faster``."""

    def __init__(
        self, total: int | None, shown: bool, unit_size: int = 1, faster: str | None = None, **options: Any
    ) -> None:
        self._lock, self._count, self._unit_size = threading.Lock(), options.get("initial", 0) * unit_size, unit_size
        options = {"desc": "sampling"} | options
        self._shown, self._faster, self._total, self._name = shown, faster, total, options["desc"]
        self._start, self._next = time.monotonic(), FIRST_LINE_SECONDS
        self._first: tuple[float, int] | None = None  # time and number of the first iterations
        self._steps, self._seconds = 0.0, 0.0
        self._bar = tqdm(total=total, disable=None if shown else True, mininterval=0.1, **options)

    def add(self, count: int, steps: float = 0.0, seconds: float = 0.0) -> None:
        """Count iterations, from any thread, and the gradients that one chain took in so many seconds."""
        with self._lock:
            self._count += count
            self._steps, self._seconds = self._steps + steps, self._seconds + seconds

    def show(self) -> None:
        """Move the bar to the count, or write a line when it is time for one."""
        self._bar.update(self._count // self._unit_size - self._bar.n)
        now, count = time.monotonic(), self._count
        if count > 0 and self._first is None:
            self._first = now, count
        if not self._shown or now - self._start < self._next:
            return
        self._next = min(2 * self._next, self._next + MAX_SECONDS_BETWEEN_LINES)
        first_time, first_count = self._first or (now, count)
        rest = (self._total or 0) * self._unit_size - count
        left = (now - first_time) / (count - first_count) * rest if count > first_count and self._total else None
        if left is not None and left > LONG_RUN_SECONDS and self._faster is not None:
            gradient = f" A gradient takes {1000 * self._seconds / self._steps:.3g} ms." if self._steps else ""
            message = f"ldpbayes: sampling may take another {left / 60:.0f} minutes.{gradient} {self._faster}"
            tqdm.write(message.rstrip(), file=sys.stderr)
            self._faster = None
        if self._bar.disable:
            state = ", compiling" if count == 0 else "" if left is None else f", about {_time(left)} left"
            total = f" of {self._total:,}" if self._total else ""
            done = f"{self._name}: {count // self._unit_size:,}{total} after {_time(now - self._start)}"
            print(f"{done}{state}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self.show()
        self._bar.close()


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * 60 else f"{seconds / 60:.0f} min"


STATISTICS = ("potential_energy", "diverging", "num_steps", "accept_prob", "adapt_state.step_size", "energy")
MAX_ITERATIONS_OF_A_CALL = 256  # iterations of a chain in one call of a compiled function
MAX_BYTES_OF_A_CALL = 1 << 24  # bytes of the draws of such a call
CALL_SECONDS = 0.2  # intended length of such a call; between calls the bar moves, and an interrupt is heard
MAX_CONSTANT_BYTES = 1 << 26  # of an array; larger ones become arguments of NumPyro's compiled function
STEEP_START_NATS = 2e7  # first potential, of some ten million records, from which on a chain is brought downhill
MIN_GAIN_NATS = 10.0  # nats that a step downhill gains at least
MAX_STARTS = 100  # points at which a chain may try to start


DensityOf: TypeAlias = Callable[[PyTree], Density]
"""The density of an entry of data that differ in arrays alone, such as those of a study."""


class Positions:
    """Densities as functions of positions: ``density`` of entries of ``data``, one for all chains or for each."""

    measure = staticmethod(Density.potential)  # of positions
    forward = False  # whether gradients are computed forwards

    def __init__(self, density: DensityOf, data: Sequence[PyTree], num_samples: int) -> None:
        self._density, self._data, self._num_samples = density, data, num_samples
        self.example = density(data[0]).example()
        # Deterministic sites are those of all records.
        constraining, self._constants = self._traced(lambda d, u: (d.whole or d).constrained(u), self.example)
        draws = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_samples, *leaf.shape), leaf.dtype), self.example)
        vectorized = jax.vmap(constraining, (None, 0))
        self._constrained = constraining.program("constrained", vectorized, self._constants[0], draws)

    def _traced(self, function: Callable, *examples: Any) -> tuple[Traced, list[tuple]]:
        """``function(density, *args)`` and its arrays for each entry of the data."""
        return trace(lambda part, *args: function(self._density(part), *args), *examples, data=self._data)

    @functools.cached_property
    def _gradient(self) -> tuple[Traced, list[tuple]]:
        def slope(density: Density, parameters: Params) -> tuple[Array, Params]:
            if self.forward:
                return density.potential(parameters), jax.jacfwd(density.potential)(parameters)
            return jax.value_and_grad(density.potential)(parameters)

        return self._traced(slope, self.example)

    def constrained(self, positions: Params) -> Params:
        """Samples of the latent and the deterministic sites at positions (chains, num_samples, ...)."""
        return stacked(map(self._constrained, itertools.cycle(self._constants), unstacked(positions)))

    def potentials(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) of the first density and their gradients (m, n) at flat parameters, in the order of names."""
        return stacked(self._slopes(self._gradient[1][0], row) for row in rows)

    @functools.cached_property
    def _slopes(self) -> Program:
        """(arrays, flat parameters) → the potential and its gradient; traced once for all data of one structure."""
        (gradient, arrays), (flat, unravel) = self._gradient, ravel_pytree(self.example)

        def slope(arrays: PyTree, row: Array) -> tuple[Array, Array]:
            value, slopes = gradient(arrays, unravel(row))
            return value, ravel_pytree(slopes)[0]

        return gradient.program("slopes", slope, arrays[0], flat)


class Chains(Positions):
    """Chains of an HMC or NUTS kernel, which `run` continues. Draws depend on the keys (chains,), not on the method."""

    def __init__(
        self, density: DensityOf, sampling: Sampling, keys: Key | None = None, data: Sequence[PyTree] = ((),)
    ) -> None:
        if keys is None:  # folding the chain's number in makes its draws independent of how many chains there are
            keys = jax.vmap(functools.partial(jax.random.fold_in, sampling.key))(jnp.arange(sampling.num_chains))
        super().__init__(density, data, sampling.num_samples)
        kernel, num_warmup, chain_method = sampling.kernel, sampling.num_warmup, sampling.chain_method
        self._kernel, self._keys, self._warmup = kernel, keys, num_warmup
        self._vectorized = chain_method == "vectorized" if chain_method else jax.default_backend() != "cpu"
        self.forward = kernel._forward_mode_differentiation  # for models with loops that have no reverse mode
        self._starting, starting = self._traced(lambda part, key: part.start(key, kernel._init_strategy), keys[0])
        gradient, slopes = self._gradient
        arrays = [*zip(starting, slopes, strict=True)]
        # What runs at once: a chain, or all if they are vectorised; with their keys and arrays.
        self._lanes = [self._spread(arrays)] if self._vectorized else [*zip(keys, itertools.cycle(arrays))]
        self._states: list[Any] = [None] * len(self._lanes)
        options = _hmc_options(kernel, self.example)
        dimensions = sum(leaf.size for leaf in self.example.values())
        self._rows = max(1, min(MAX_ITERATIONS_OF_A_CALL, MAX_BYTES_OF_A_CALL // (8 * (dimensions + len(STATISTICS)))))
        # Arrays are equal as text where all numbers are; a function, whose text has its address, equals itself only.
        described = repr(jax.tree.map(lambda value: value.tolist() if hasattr(value, "tolist") else value, options))
        algorithm = kernel._algo, kernel._kinetic_fn, described, num_warmup, self._rows
        spread = (len(keys), len(data), tuple(jax.devices())) if self._vectorized else ()
        key = self._starting.key, gradient.key, *algorithm, *spread
        self._begin, self._advance = kept(key, functools.partial(self._compiled, options))

    def _compiled(self, options: dict[str, Any]) -> tuple[Program, Program]:
        """Programs of a chain's start, (key, arrays) → state, and iterations, (state, arrays, count) → state, draws."""
        starting, (gradient, _), example, rows = self._starting, self._gradient, self.example, self._rows
        potentials, kernel = functools.partial(_potential, gradient), self._kernel
        initial, following = hmc(potential_fn_gen=potentials, kinetic_fn=kernel._kinetic_fn, algo=kernel._algo)
        initial = functools.partial(initial, num_warmup=self._warmup, **options)

        def begin(key: Key, arrays: PyTree) -> tuple[PyTree, Array]:
            def attempt(carry: tuple) -> tuple:
                tries, key, *_ = carry
                key, subkey = jax.random.split(key)
                position = starting(arrays[0], subkey)
                value, slope = gradient(arrays[1], position)
                finite = jnp.isfinite(value) & jnp.isfinite(ravel_pytree(slope)[0]).all()
                return tries + 1, key, ParamInfo(position, value, slope), finite

            def again(carry: tuple) -> Array:
                tries, *_, finite = carry
                return (tries < MAX_STARTS) & ~finite

            nothing = jax.tree.map(jnp.zeros_like, example)
            first = 0, key, ParamInfo(nothing, 0.0, nothing), False
            _, key, start, finite = lax.while_loop(again, attempt, first)
            return initial(start, rng_key=key, model_args=(arrays[1],)), finite

        def advance(state: Any, arrays: PyTree, count: Array) -> PyTree:
            # NumPyro's `hmc` keeps the options of the last start for its iterations; XLA removes this one, unused.
            initial(ParamInfo(state.z, state.potential_energy, state.z_grad), model_args=(arrays,))
            empty = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), _recorded(state))

            def step(index: Array, carry: tuple) -> tuple:
                state, draws = carry
                state = following(state, (arrays,), {})
                place = functools.partial(lax.dynamic_update_index_in_dim, index=index, axis=0)
                return state, jax.tree.map(place, draws, _recorded(state))

            return lax.fori_loop(0, count, step, (state, empty))

        (keys, arrays), count = self._lanes[0], jnp.zeros((), int)
        placed: dict[str, Any] = {}
        if self._vectorized:
            axis = None if len(self._data) == 1 else 0
            begin, advance = jax.vmap(begin, (0, axis)), jax.vmap(advance, (0, axis, None))
            placed["out_shardings"] = keys.sharding
        state, _ = jax.eval_shape(begin, keys, arrays)
        if self._vectorized:
            struct = functools.partial(jax.ShapeDtypeStruct, sharding=keys.sharding)
            state = jax.tree.map(lambda leaf: struct(leaf.shape, leaf.dtype), state)
        # Both are compiled in the background; the iterations, which take longer, come first.
        advancing = Program(advance, state, arrays[1], count, **placed)
        return Program(begin, keys, arrays, **placed), advancing

    def _spread(self, arrays: list[PyTree]) -> tuple[Key, PyTree]:
        """Keys and arrays of all chains, spread over the devices."""
        devices = jax.devices()
        while len(self._keys) % len(devices):  # each device gets the same number of chains
            devices = devices[:-1]
        mesh, spec = jax.sharding.Mesh(np.array(devices), ("chains",)), jax.sharding.PartitionSpec
        by_chain, replicated = (jax.sharding.NamedSharding(mesh, axes) for axes in (spec("chains"), spec()))
        keys = jax.device_put(self._keys, by_chain)
        if len(arrays) == 1:
            return keys, jax.device_put(arrays[0], replicated)
        return keys, jax.device_put(jax.tree.map(lambda *parts: jnp.stack(parts), *arrays), by_chain)

    def run(self, iterations: int, bar: Bar | None = None) -> tuple[Params, Params]:
        """Unconstrained positions by site and statistics by name, (chains, iterations, ...), of further iterations."""
        stop, count = threading.Event(), len(self._lanes)
        pool = ThreadPoolExecutor(min(count, os.cpu_count() or 1), "ldpbayes-chain")
        futures = [pool.submit(self._run_lane, iterations, stop, bar, index) for index in range(count)]
        try:
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, timeout=0.1)
                for future in done:
                    future.result()
                if bar:
                    bar.show()
        finally:
            stop.set()
            # Threads that wait for the compiler are not waited for, so that an interrupt is answered at once.
            pool.shutdown(wait=self._advance.ready(), cancel_futures=True)
        draws = [future.result() for future in futures]
        return draws[0] if self._vectorized else stacked(draws)

    def warm_up(self, bar: Bar | None = None) -> Params:
        """Positions of the second half of the warm-up."""
        positions, _ = self.run(self._warmup, bar)
        return {name: values[:, self._warmup // 2 :] for name, values in positions.items()}

    def _run_lane(self, iterations: int, stop: threading.Event, bar: Bar | None, index: int) -> tuple[Params, Params]:
        keys, arrays = self._lanes[index]
        with jax.enable_x64(True):
            if self._states[index] is None:
                self._states[index], finite = self._begin(keys, arrays)
                if not np.all(finite):
                    self._raise_no_start(index)
                if np.max(self._states[index].potential_energy) > STEEP_START_NATS:
                    self._states[index] = self._descended(self._states[index], index)
            axis, done, length = keys.ndim, 0, 1
            parts: list[Any] = []
            while done < iterations and not stop.is_set():
                count = min(length, iterations - done, self._rows)
                start = time.perf_counter()
                self._states[index], draws = self._advance(self._states[index], arrays[1], jnp.asarray(count))
                parts.append(jax.tree.map(lambda leaf, n=count: np.asarray(leaf).take(range(n), axis), draws))
                seconds = time.perf_counter() - start
                # The first call may have waited for the compiler.
                timed = (np.sum(parts[-1][1]["num_steps"]) / keys.size, seconds) if done else (0.0, 0.0)
                length = max(1, min(self._rows, int(4 * length), int(count * CALL_SECONDS / seconds)))
                done += count
                if bar:
                    bar.add(count * keys.size, *timed)
            return jax.tree.map(lambda *blocks: np.concatenate(blocks, axis), *parts) if parts else ({}, {})

    def _descended(self, state: Any, index: int) -> Any:
        """States moved downhill until a step gains little: from far away, a chain would need its whole warm-up."""
        if not self._vectorized:
            return state._replace(**self._downhill(index, state.z, float(state.potential_energy)))
        starts = enumerate(zip(unstacked(state.z), state.potential_energy, strict=True))
        lowered = stacked(self._downhill(chain, z, float(value)) for chain, (z, value) in starts)
        return state._replace(**jax.device_put(lowered, self._lanes[0][0].sharding))

    def _downhill(self, index: int, z: Params, start: float) -> dict[str, Any]:
        arrays, (flat, unravel) = self._gradient[1][index % len(self._data)], ravel_pytree(z)

        def value_and_gradient(row: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._slopes(arrays, row)
            return (float(value), np.asarray(gradient)) if np.isfinite(value) else (np.inf, np.zeros(len(row)))

        row: Any = np.asarray(flat)
        end = minimize(value_and_gradient, row, jac=True, method="L-BFGS-B", options={"ftol": MIN_GAIN_NATS / start})
        best = end.x if end.fun < start else row
        value, gradient = self._slopes(arrays, best)
        return {"z": unravel(best), "potential_energy": value, "z_grad": unravel(gradient)}

    def _raise_no_start(self, index: int) -> None:
        """Raise NumPyro's error for a model without a finite density, with its warnings."""
        density, strategy = self._density(self._data[index % len(self._data)]), self._kernel._init_strategy
        options = {"init_strategy": strategy, "model_args": density.args, "model_kwargs": density.kwargs}
        with RUNNING:
            initialize_model(self._keys[index], density.model, **options)
        raise RuntimeError("Cannot find valid initial parameters. Please check your model again.")


@dataclass(frozen=True, eq=False)
class NumpyroChains:
    """Chains of any kernel by `numpyro.infer.MCMC`, which compiles them at every call. Their positions are samples."""

    measure = staticmethod(Density.log_likelihood)
    density: Density
    sampling: Sampling

    @functools.cached_property
    def example(self) -> Params:
        return jax.eval_shape(self.density.values, jax.random.key(0))

    def warm_up(self, bar: Bar | None = None) -> Params:
        return {}  # `run` warms up

    def run(self, iterations: int, bar: Bar | None = None) -> tuple[Params, Params]:
        sampling, density = self.sampling, self.density
        kernel, model, args, kwargs = sampling.outside, density.model, density.args, density.kwargs
        parts, structure = jax.tree.flatten((args, kwargs))
        ours = {id(leaf) for leaf in jax.tree.leaves(density.data)}
        sizes = {i: getattr(part, "nbytes", 0) for i, part in enumerate(parts) if id(part) in ours}
        large = [i for i, size in sizes.items() if size > MAX_CONSTANT_BYTES]
        if large and callable(kernel):
            # XLA copies constants of a compiled function several times and may evaluate what they are in for minutes.
            def model_of_arrays(arrays: dict[int, Array]) -> Any:
                positional, named = jax.tree.unflatten(structure, [arrays.get(i, part) for i, part in enumerate(parts)])
                return density.model(*positional, **named)

            model, args, kwargs = model_of_arrays, ({i: parts[i] for i in large},), {}
        kernel = kernel(model) if callable(kernel) else kernel
        # Of NumPyro's kernels only HMC and NUTS can start vectorised chains without a starting point.
        one_device = "vectorized" if isinstance(kernel, HMC) else "sequential"
        mcmc = MCMC(
            kernel,
            num_warmup=sampling.num_warmup,
            num_samples=iterations,
            num_chains=sampling.num_chains,
            chain_method="parallel" if 1 < sampling.num_chains <= jax.local_device_count() else one_device,
            progress_bar=sampling.progress_bar,
            jit_model_args=bool(large),
        )
        # Kernels other than HMC and NUTS keep other statistics, or none.
        fields = STATISTICS if isinstance(kernel, HMC) else ()
        with RUNNING:
            mcmc.run(sampling.key, *args, extra_fields=fields, **kwargs)
        return jax.device_get((mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)))

    def constrained(self, positions: Params) -> Params:
        return positions


def largest_depth(kernel: Any) -> float:
    """Doublings of a trajectory after the warm-up, at most."""
    return np.ravel(kernel._max_tree_depth)[-1] if isinstance(kernel, NUTS) else np.inf


def flat_rows(positions: Params, example: Params) -> np.ndarray:
    """Flat parameters (draws, n), in the order of names, of positions (..., *shape) of each site."""
    parts = [np.reshape(np.asarray(positions[name]), (-1, np.size(zeros))) for name, zeros in sorted(example.items())]
    return np.concatenate(parts, axis=1)


def some_draws(positions: Params, count: int) -> Params:
    """Evenly spaced draws (count, ...) by site, or all if there are fewer, of positions (chains, draws, ...)."""
    return {name: evenly_spaced(values.reshape(-1, *values.shape[2:]), count) for name, values in positions.items()}


def _hmc_options(kernel: Any, example: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a kernel that was made for a model, as `numpyro.infer.hmc.hmc` takes them."""
    names = inspect.signature(hmc(lambda z: 0.0)[0]).parameters
    options = {name: getattr(kernel, f"_{name}") for name in names if hasattr(kernel, f"_{name}")}
    if not isinstance(options["dense_mass"], (list, tuple)):  # one block of all parameters or none, as kernels read it
        options["dense_mass"] = [tuple(sorted(example))] if options["dense_mass"] else []
    return options


def _potential(gradient: Callable, arrays: PyTree) -> Callable:
    """The potential as a function whose derivative is the gradient that was traced with it."""

    @jax.custom_jvp
    def potential(parameters: Params) -> Array:
        return gradient(arrays, parameters)[0]

    @potential.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
        value, slope = gradient(arrays, *primals)
        pairs = zip(jax.tree.leaves(slope), jax.tree.leaves(tangents), strict=True)
        return value, sum(jnp.vdot(a, b) for a, b in pairs)

    return potential


def _recorded(state: Any) -> tuple[Params, Params]:
    return state.z, {name: operator.attrgetter(name)(state) for name in STATISTICS}
