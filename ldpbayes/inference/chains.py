"""Chains of NUTS and HMC, and the bar that shows how far they are."""

import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.infer import HMC, NUTS
from numpyro.infer.hmc import hmc
from numpyro.infer.util import ParamInfo, initialize_model
from tqdm.auto import tqdm

from ldpbayes.inference.density import RUNNING, Density, Site
from ldpbayes.inference.programs import PROGRAMS, Compiled, trace

FIRST, LATER = 10.0, 300.0
"""Seconds until a file has its first line; from line to line the time doubles, up to the second number more."""
MANY = 180.0
"""Seconds from which on it is said how long the rest takes, and what would be faster."""


class Bar:
    """A bar that counts the iterations of all chains; where stderr is a file, lines that say how many there have been.

    Parameters
    ----------
    total : int
        Iterations of all chains together, or what else the bar shows.
    shown : bool
        Whether there is a bar at all.
    each : int
        How many of what is counted the bar shows as one.
    faster : str, optional
        What would be faster: said once, with the expected time, where much is left after the first seconds. Nothing is
        said by default.
    **options
        Of `tqdm.tqdm`, such as ``desc`` and ``unit``.
    """

    def __init__(self, total: int, shown: bool, each: int = 1, faster: str | None = None, **options: Any) -> None:
        self._lock, self._count, self._each = threading.Lock(), options.get("initial", 0) * each, each
        options = {"desc": "sampling"} | options
        self._shown, self._faster, self._total, self._name = shown, faster, total, options["desc"]
        self._began, self._next = time.monotonic(), FIRST
        self._first: tuple[float, int] | None = None  # when the first iterations had been made, and how many
        self._steps, self._seconds = 0.0, 0.0
        self._bar = tqdm(total=total, disable=None if shown else True, mininterval=0.1, **options)

    def add(self, count: int, steps: float = 0.0, seconds: float = 0.0) -> None:
        """Count some more iterations, from any thread, and the gradients that a chain has taken in so many seconds."""
        with self._lock:
            self._count += count
            self._steps, self._seconds = self._steps + steps, self._seconds + seconds

    def show(self) -> None:
        """Move the bar to where the count is, or write a line when it is time for one."""
        self._bar.update(self._count // self._each - self._bar.n)
        now, count = time.monotonic(), self._count
        if count > 0 and self._first is None:
            self._first = now, count
        if not self._shown or now - self._began < self._next:
            return
        self._next = min(2 * self._next, self._next + LATER)
        when, before = self._first or (now, count)
        left = (now - when) / (count - before) * (self._total * self._each - count) if count > before else None
        if left is not None and left > MANY and self._faster is not None:
            gradient = f" A gradient takes {1000 * self._seconds / self._steps:.3g} ms." if self._steps else ""
            said = f"ldpbayes: sampling may take another {left / 60:.0f} minutes.{gradient} {self._faster}"
            tqdm.write(said.rstrip(), file=sys.stderr)
            self._faster = None
        if self._bar.disable:
            rest = ", compiling" if count == 0 else "" if left is None else f", about {_time(left)} left"
            done = f"{self._name}: {count // self._each:,} of {self._total:,} after {_time(now - self._began)}"
            print(f"{done}{rest}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        self.show()
        self._bar.close()


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * 60 else f"{seconds / 60:.0f} min"


STATISTICS = ("potential_energy", "diverging", "num_steps", "accept_prob", "adapt_state.step_size", "energy")
ROWS = 256  # iterations that one call of a compiled function makes at most
ROOM = 1 << 24  # bytes that the draws of such a call may take
BLOCK = 0.2  # seconds that such a call is to last; between calls the bar moves, and an interrupt is heard
TRIES = 100  # points at which a chain may try to start


def takes(kernel: Any, sites: Mapping[str, Site]) -> bool:
    """Whether a kernel on a model of these sites can be compiled once for all data.

    Parameters
    ----------
    kernel : numpyro.infer.mcmc.MCMCKernel
        Made for a model, or for a potential.
    sites : dict of str to Site
        Of the model; see `sites_of`.
    """
    return type(kernel) in (HMC, NUTS) and kernel.model is not None and all(site.plain for site in sites.values())


class Chains:
    """Chains of one kernel, all on one density or each on its own, which `run` continues.

    A chain is compiled as two functions of the arrays in its density, one for its start and one for some of its
    iterations, which serve all data of one structure. Draws are a function of the key, not of how the chains are run.

    Parameters
    ----------
    density : callable
        From an entry of ``data`` to a `Density`.
    kernel : numpyro.infer.HMC or NUTS
        Made for a model, with the options that the chains have.
    keys : jax.Array (chains,)
        JAX random keys.
    num_warmup, num_samples : int
        Iterations that adapt the kernel, and draws of a chain that `constrained` is compiled for.
    chain_method : {"threads", "vectorized"}, optional
        By default in threads on a CPU, and vectorised, spread over all devices, on accelerators.
    data : sequence of pytrees of arrays, optional
        An entry for each chain's density, all of one structure; or, by default, one entry for all chains.

    Attributes
    ----------
    example : dict of str to jax.ShapeDtypeStruct
        Shapes and types of the unconstrained parameters.
    """

    def __init__(
        self,
        density: Callable[[Any], Density],
        kernel: Any,
        keys: jax.Array,
        num_warmup: int,
        num_samples: int,
        chain_method: str | None = None,
        data: Sequence[Any] = ((),),
    ) -> None:
        self._density, self._kernel, self._keys, self._data = density, kernel, keys, data
        self._vectorized = chain_method == "vectorized" if chain_method else jax.default_backend() != "cpu"
        self._warmup = num_warmup

        def start(data: Any, key: jax.Array) -> Any:
            return density(data).start(key, kernel._init_strategy)

        def slope(data: Any, parameters: Any) -> Any:
            return differentiate(density(data).potential)(parameters)

        differentiate = _forward if kernel._forward_mode_differentiation else jax.value_and_grad
        self._starting, start_arrays = trace(start, keys[0], data=data)
        self.example = jax.eval_shape(self._starting, start_arrays[0], keys[0])
        self._gradient, slope_arrays = trace(slope, self.example, data=data)
        self._arrays = list(zip(start_arrays, slope_arrays, strict=True))
        options = _options(kernel, self.example)
        dimensions = sum(leaf.size for leaf in jax.tree.leaves(self.example))
        self._rows = max(1, min(ROWS, ROOM // (8 * (dimensions + len(STATISTICS)))))
        algorithm = self._starting.key, self._gradient.key, kernel._algo, kernel._kinetic_fn, _hashable(options)
        spread = (len(keys), len(data), tuple(jax.devices())) if self._vectorized else ()
        self._begin, self._advance = PROGRAMS.get(
            (*algorithm, num_warmup, self._rows, *spread), functools.partial(self._compiled, options)
        )

        def constrain(data: Any, parameters: Any) -> Any:
            return density(data).constrained(parameters)

        self._constraining, self._constants = trace(constrain, self.example, data=data)
        several = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_samples, *leaf.shape), leaf.dtype), self.example)
        self._constrained = PROGRAMS.get(
            ("constrained", self._constraining.key, num_samples),
            lambda: Compiled(jax.vmap(self._constraining, (None, 0)), self._constants[0], several),
        )
        self._states: list[Any] = [None] if self._vectorized else [None] * len(keys)

    def _compiled(self, options: dict[str, Any]) -> tuple[Compiled, Compiled]:
        """A chain's start, (key, arrays) → state, and iterations, (state, arrays, count) → state and draws."""
        starting, gradient, example, rows = self._starting, self._gradient, self.example, self._rows
        kernel = self._kernel
        potentials = functools.partial(_potential, gradient)
        initial, following = hmc(potential_fn_gen=potentials, kinetic_fn=kernel._kinetic_fn, algo=kernel._algo)
        initial = functools.partial(initial, num_warmup=self._warmup, **options)

        def begin(key: Any, arrays: Any) -> Any:
            def attempt(carry: Any) -> Any:
                tries, key, *_ = carry
                key, own = jax.random.split(key)
                position = starting(arrays[0], own)
                value, slope = gradient(arrays[1], position)
                fine = jnp.isfinite(value) & jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in _leaves(slope)]))
                return tries + 1, key, position, value, slope, fine

            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), example)
            first = 0, key, nothing, jnp.zeros(()), nothing, jnp.array(False)
            *_, key, position, value, slope, fine = lax.while_loop(
                lambda carry: (carry[0] < TRIES) & ~carry[-1], attempt, first
            )
            start = ParamInfo(position, value, slope)
            return initial(start, rng_key=key, model_args=(arrays[1],)), fine

        def advance(state: Any, arrays: Any, count: Any) -> Any:
            # NumPyro's `hmc` keeps the options of the last start for its iterations; XLA removes this one, unused.
            initial(ParamInfo(state.z, state.potential_energy, state.z_grad), model_args=(arrays,))
            rooms = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), _kept(state))

            def step(index: Any, carry: Any) -> Any:
                state, kept = carry
                state = following(state, (arrays,), {})
                place = functools.partial(lax.dynamic_update_index_in_dim, index=index, axis=0)
                return state, jax.tree.map(place, kept, _kept(state))

            return lax.fori_loop(0, count, step, (state, rooms))

        (keys, arrays), count = self._all(), jnp.zeros((), int)
        placed: dict[str, Any] = {}
        if self._vectorized:
            each = None if len(self._arrays) == 1 else 0
            begin, advance = jax.vmap(begin, (0, each)), jax.vmap(advance, (0, each, None))
            placed["out_shardings"] = keys.sharding
        state, _ = jax.eval_shape(begin, keys, arrays)
        if self._vectorized:
            state = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=keys.sharding), state
            )
        # Both are compiled in the background; the iterations, which take longer, come first.
        advancing = Compiled(advance, state, arrays[1], count, **placed)
        return Compiled(begin, keys, arrays, **placed), advancing

    def _all(self, index: int = 0) -> tuple[Any, Any]:
        """Key and arrays of one chain, or of all together."""
        if not self._vectorized:
            return self._keys[index], self._arrays[index % len(self._arrays)]
        devices = jax.devices()
        while len(self._keys) % len(devices):  # each device gets the same number of chains
            devices = devices[:-1]
        mesh = jax.sharding.Mesh(np.array(devices), ("chains",))
        each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("chains"))
        if len(self._arrays) > 1:
            stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *self._arrays)
            return jax.device_put(self._keys, each), jax.device_put(stacked, each)
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.device_put(self._keys, each), jax.device_put(self._arrays[0], whole)

    def run(self, iterations: int, bar: Bar | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Continue all chains.

        Parameters
        ----------
        iterations : int
            How many each chain makes.
        bar : Bar, optional
            Counts the iterations.

        Returns
        -------
        tuple of two dicts of str to ndarray (chains, iterations, ...)
            Unconstrained positions by site, and `STATISTICS` by name.

        Raises
        ------
        RuntimeError
            If no point was found at which the density and its gradient are finite.
        """
        stop = threading.Event()
        work = functools.partial(self._work, iterations, stop, bar)
        threads = min(len(self._states), os.cpu_count() or 1)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="ldpbayes-chain")
        try:
            futures = [pool.submit(work, index) for index in range(len(self._states))]
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, timeout=0.1)
                for future in done:
                    future.result()
                if bar:
                    bar.show()
        finally:
            stop.set()
            # Threads that wait for the compiler are left to themselves, so that an interrupt is answered at once.
            pool.shutdown(wait=self._advance.ready(), cancel_futures=True)
        kept = [future.result() for future in futures]
        return kept[0] if self._vectorized else jax.tree.map(lambda *parts: np.stack(parts), *kept)

    def constrained(self, positions: dict[str, Any]) -> dict[str, Any]:
        """Samples of the latent and the deterministic sites.

        Parameters
        ----------
        positions : dict of str to array (chains, num_samples, ...)
            Unconstrained, as `run` returns them.

        Returns
        -------
        dict of str to ndarray (chains, num_samples, ...)
            By site.
        """
        chains = [
            self._constrained(
                self._constants[chain % len(self._constants)], {name: part[chain] for name, part in positions.items()}
            )
            for chain in range(len(self._keys))
        ]
        return jax.tree.map(lambda *parts: np.stack(parts), *chains)

    def slopes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (m,) of the first density and their gradients (m, n) at flat parameters, by name in order."""
        flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.example))

        def slope(arrays: Any, row: Any) -> Any:
            value, gradient = self._gradient(arrays, unravel(row))
            return value, ravel_pytree(gradient)[0]

        arrays = self._arrays[0][1]
        program = PROGRAMS.get(("slopes", self._gradient.key), lambda: Compiled(slope, arrays, flat))
        values, gradients = zip(*(program(arrays, row) for row in rows), strict=True)
        return np.array(values), np.stack(gradients)

    def _work(self, iterations: int, stop: threading.Event, bar: Bar | None, index: int) -> Any:
        """Iterations of one chain (of all, vectorised)."""
        with jax.enable_x64(True):
            keys, arrays = self._all(index)
            if self._states[index] is None:
                self._states[index], fine = self._begin(keys, arrays)
                if not np.all(fine):
                    self._explain(index)
            axis, done, length = int(self._vectorized), 0, 1
            parts: list[Any] = []
            while done < iterations and not stop.is_set():
                count = min(length, iterations - done, self._rows)
                start = time.perf_counter()
                self._states[index], kept = self._advance(self._states[index], arrays[1], jnp.asarray(count))
                parts.append(jax.tree.map(lambda leaf, n=count: np.asarray(leaf).take(range(n), axis), kept))
                seconds = time.perf_counter() - start
                chains = len(self._keys) if self._vectorized else 1
                # the first call may have waited for the compiler
                timed = (np.sum(parts[-1][1]["num_steps"]) / chains, seconds) if done else (0.0, 0.0)
                length = max(1, min(self._rows, int(4 * length), int(count * BLOCK / seconds)))
                done += count
                if bar:
                    bar.add(count * chains, *timed)
            return jax.tree.map(lambda *blocks: np.concatenate(blocks, axis), *parts) if parts else ({}, {})

    def _explain(self, index: int) -> None:
        """Raise the error that NumPyro has for a model without a finite density."""
        density = self._density(self._data[index % len(self._data)])
        with RUNNING:
            initialize_model(
                self._keys[index],
                density.model,
                init_strategy=self._kernel._init_strategy,
                model_args=density.args,
                model_kwargs=density.kwargs,
            )
        raise RuntimeError("Cannot find valid initial parameters. Please check your model again.")


def _options(kernel: Any, example: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a kernel that was made for a model, as `numpyro.infer.hmc.hmc` takes them."""
    names = inspect.signature(hmc(lambda z: 0.0)[0]).parameters
    options = {name: getattr(kernel, f"_{name}") for name in names if hasattr(kernel, f"_{name}")}
    if not isinstance(options["dense_mass"], (list, tuple)):  # one block of all parameters or none, as kernels read it
        options["dense_mass"] = [tuple(sorted(example))] if options["dense_mass"] else []
    return options


def _hashable(value: Any) -> Any:
    """Something hashable that is equal for equal options; for options without ``==`` it is the object itself."""
    if isinstance(value, dict):
        return tuple((name, _hashable(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, (np.ndarray, jax.Array)):
        return np.asarray(value).tobytes(), value.shape, str(value.dtype)
    return value


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree)


def _forward(function: Callable) -> Callable:
    """`jax.value_and_grad` in forward mode, for models with loops that have no reverse mode."""
    return lambda parameters: (function(parameters), jax.jacfwd(function)(parameters))


def _potential(gradient: Callable, arrays: Any) -> Callable:
    """The potential as a function whose derivative is the one that was traced with it."""

    @jax.custom_jvp
    def potential(parameters: Any) -> Any:
        return gradient(arrays, parameters)[0]

    @potential.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        value, slope = gradient(arrays, *primals)
        return value, sum(jnp.vdot(a, b) for a, b in zip(_leaves(slope), _leaves(tangents), strict=True))

    return potential


def _kept(state: Any) -> tuple[Any, dict[str, Any]]:
    """The position and the statistics of an iteration."""
    return state.z, {name: functools.reduce(getattr, name.split("."), state) for name in STATISTICS}
