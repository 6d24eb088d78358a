"""The sampler: one chain of HMC or NUTS as two compiled functions of its arrays, run in threads or vectorised."""

import functools
import inspect
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.infer import HMC, NUTS
from numpyro.infer.hmc import hmc
from numpyro.infer.util import ParamInfo, initialize_model
from tqdm.auto import tqdm

from ldpbayes.inference.density import RUNNING
from ldpbayes.inference.programs import PROGRAMS, Compiled, trace

__all__ = ["STATISTICS", "Bar", "Chains", "takes"]

STATISTICS = ("potential_energy", "diverging", "num_steps", "accept_prob", "adapt_state.step_size", "energy")
ROWS = 256  # iterations a call of a compiled function at most
ROOM = 1 << 24  # bytes that their draws may take
BLOCK = 0.2  # seconds that such a call is to last: within it a bar moves, and an interrupt is heard
TRIES = 100  # points at which a chain may try to start


def takes(kernel, sites):
    """Whether a kernel on a model of these sites can be compiled once for all data.

    Parameters
    ----------
    kernel : numpyro.infer.mcmc.MCMCKernel
    sites : dict of str to Site
    """
    return type(kernel) in (HMC, NUTS) and kernel.model is not None and all(site.plain for site in sites.values())


class Chains:
    """Chains of one kernel, which go on for as long as they are asked to: on one density, or each on its own.

    The chain is compiled as two functions, its start and so many of its iterations, of the arrays in the density: they
    serve all data of one structure. Draws are a function of the key, not of how the chains are run.

    Parameters
    ----------
    density : callable
        `Density` of an entry of ``data``.
    kernel : numpyro.infer.HMC or NUTS
        Made for a model; its options count.
    keys : jax.Array (chains,)
    num_warmup, num_samples : int
        ``num_samples`` is how many draws of a chain `constrained` is compiled for.
    method : {"threads", "vectorized"}, optional
        By default in threads on a CPU, and vectorised, spread over all devices, on accelerators.
    data : sequence of pytrees of arrays, optional
        What the density of each chain is of, in one structure; one entry for all chains by default.

    Attributes
    ----------
    example : dict of str to jax.ShapeDtypeStruct
        Unconstrained parameters.
    """

    def __init__(self, density, kernel, keys, num_warmup, num_samples, method=None, data=((),)):
        self._density, self._kernel, self._keys, self._data = density, kernel, keys, data
        self._vectorized = method == "vectorized" if method else jax.default_backend() != "cpu"
        self._warmup = num_warmup

        def start(data, key):
            return density(data).start(key, kernel._init_strategy)

        def slope(data, parameters):
            return differentiate(density(data).potential)(parameters)

        differentiate = _forward if kernel._forward_mode_differentiation else jax.value_and_grad
        self._starting, start_arrays = trace(start, keys[0], data=data)
        self.example = jax.eval_shape(self._starting, start_arrays[0], keys[0])
        self._gradient, slope_arrays = trace(slope, self.example, data=data)
        self._arrays = list(zip(start_arrays, slope_arrays, strict=True))
        options = _options(kernel, self.example)
        dimensions = sum(leaf.size for leaf in jax.tree.leaves(self.example))
        self._rows = max(1, min(ROWS, ROOM // (8 * (dimensions + len(STATISTICS)))))
        key = (self._starting.key, self._gradient.key, kernel._algo, kernel._kinetic_fn, _hashable(options))
        key = (*key, num_warmup, self._rows)
        if self._vectorized:
            key = (*key, len(keys), len(data), tuple(jax.devices()))
        self._begin, self._advance = PROGRAMS.get(key, functools.partial(self._compiled, options))

        def constrain(data, parameters):
            return density(data).constrained(parameters)

        self._constraining, self._constants = trace(constrain, self.example, data=data)
        several = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_samples, *leaf.shape), leaf.dtype), self.example)
        self._constrained = PROGRAMS.get(
            ("constrained", self._constraining.key, num_samples),
            lambda: Compiled(jax.vmap(self._constraining, (None, 0)), self._constants[0], several),
        )
        self._states = [None] if self._vectorized else [None] * len(keys)

    def _compiled(self, options):
        """A chain's start, (key, arrays) to its state, and iterations, (state, arrays, count) to the next."""
        starting, gradient, example, rows = self._starting, self._gradient, self.example, self._rows
        kernel = self._kernel
        potentials = functools.partial(_potential, gradient)
        initial, following = hmc(potential_fn_gen=potentials, kinetic_fn=kernel._kinetic_fn, algo=kernel._algo)
        initial = functools.partial(initial, num_warmup=self._warmup, **options)

        def begin(key, arrays):
            def attempt(carry):
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

        def advance(state, arrays, count):
            # the kernel's functions know of its options only once it has been started, which costs nothing here
            initial(ParamInfo(state.z, state.potential_energy, state.z_grad), model_args=(arrays,))
            rooms = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), _kept(state))

            def step(index, carry):
                state, kept = carry
                state = following(state, (arrays,), {})
                place = functools.partial(lax.dynamic_update_index_in_dim, index=index, axis=0)
                return state, jax.tree.map(place, kept, _kept(state))

            return lax.fori_loop(0, count, step, (state, rooms))

        (keys, arrays), count, placed = self._all(), jnp.zeros((), int), {}
        if self._vectorized:
            each = None if len(self._arrays) == 1 else 0
            begin, advance = jax.vmap(begin, (0, each)), jax.vmap(advance, (0, each, None))
            placed["out_shardings"] = keys.sharding
        state, _ = jax.eval_shape(begin, keys, arrays)
        if self._vectorized:
            state = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=keys.sharding), state
            )
        advance = Compiled(advance, state, arrays[1], count, **placed)  # the larger one first
        return Compiled(begin, keys, arrays, **placed), advance

    def _all(self, index=0):
        """Key and arrays of one chain, or of all together."""
        if not self._vectorized:
            return self._keys[index], self._arrays[index % len(self._arrays)]
        devices = jax.devices()
        while len(self._keys) % len(devices):  # so many as the chains can be dealt to evenly
            devices = devices[:-1]
        mesh = jax.sharding.Mesh(np.array(devices), ("chains",))
        each = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("chains"))
        if len(self._arrays) > 1:
            stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *self._arrays)
            return jax.device_put(self._keys, each), jax.device_put(stacked, each)
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.device_put(self._keys, each), jax.device_put(self._arrays[0], whole)

    def run(self, iterations, bar=None):
        """Go on for so many iterations.

        Parameters
        ----------
        iterations : int
        bar : Bar, optional
            Is told of every iteration.

        Returns
        -------
        tuple of two dicts of str to ndarray (chains, iterations, ...)
            Unconstrained positions by site, and `STATISTICS` by name.

        Raises
        ------
        RuntimeError
            If no point was found at which the density and its gradient are finite.
        """
        stop, told = threading.Event(), bar.add if bar else lambda count: None
        work = functools.partial(self._work, iterations, stop, told)
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
            # who interrupts does not wait for a compiler
            pool.shutdown(wait=self._advance.ready(), cancel_futures=True)
        kept = [future.result() for future in futures]
        return kept[0] if self._vectorized else jax.tree.map(lambda *parts: np.stack(parts), *kept)

    def constrained(self, positions):
        """Samples of the latent and the deterministic sites, by site.

        Parameters
        ----------
        positions : dict of str to array (chains, num_samples, ...)
            What `run` returned.
        """
        chains = [
            self._constrained(
                self._constants[chain % len(self._constants)], {name: part[chain] for name, part in positions.items()}
            )
            for chain in range(len(self._keys))
        ]
        return jax.tree.map(lambda *parts: np.stack(parts), *chains)

    def _work(self, iterations, stop, told, index):
        """Iterations of one chain (of all, vectorised)."""
        with jax.enable_x64(True):
            keys, arrays = self._all(index)
            if self._states[index] is None:
                self._states[index], fine = self._begin(keys, arrays)
                if not np.all(fine):
                    self._explain(index)
            axis, parts, done, length = int(self._vectorized), [], 0, 1
            while done < iterations and not stop.is_set():
                count = min(length, iterations - done, self._rows)
                start = time.perf_counter()
                self._states[index], kept = self._advance(self._states[index], arrays[1], jnp.asarray(count))
                parts.append(jax.tree.map(lambda leaf, n=count: np.asarray(leaf).take(range(n), axis), kept))
                seconds = time.perf_counter() - start
                length = max(1, min(self._rows, int(4 * length), int(count * BLOCK / seconds)))
                done += count
                told(count)
            return jax.tree.map(lambda *blocks: np.concatenate(blocks, axis), *parts) if parts else ({}, {})

    def _explain(self, index):
        """Raise what NumPyro says of a model without a finite density."""
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


class Bar:
    """A bar that counts the iterations of all chains.

    Parameters
    ----------
    total : int
    shown : bool
    """

    def __init__(self, total, shown):
        self._lock, self._count = threading.Lock(), 0
        self._bar = tqdm(total=total, desc="sampling", disable=not shown, mininterval=0.1)

    def add(self, count):
        """Count iterations, from any thread."""
        with self._lock:
            self._count += count

    def show(self):
        """Move the bar to where the count is."""
        self._bar.update(self._count - self._bar.n)

    def close(self):
        """Leave the bar as it is."""
        self.show()
        self._bar.close()


def _options(kernel, example):
    """Options of a kernel that was made for a model, as `numpyro.infer.hmc.hmc` takes them."""
    names = inspect.signature(hmc(lambda z: 0.0)[0]).parameters
    options = {name: getattr(kernel, f"_{name}") for name in names if hasattr(kernel, f"_{name}")}
    if isinstance(options["dense_mass"], bool):  # as the kernel does
        options["dense_mass"] = [tuple(sorted(example))] if options["dense_mass"] else []
    return options


def _hashable(value):
    """Something that is equal for equal options; for what cannot be compared, only for the same object."""
    if isinstance(value, dict):
        return tuple((name, _hashable(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, (np.ndarray, jax.Array)):
        return np.asarray(value).tobytes(), value.shape, str(value.dtype)
    return value


def _leaves(tree):
    return jax.tree.leaves(tree)


def _forward(function):
    """`jax.value_and_grad` in forward mode, for models with loops that have no other."""
    return lambda parameters: (function(parameters), jax.jacfwd(function)(parameters))


def _potential(gradient, arrays):
    """The potential as a function whose derivative is the one that was traced with it."""

    @jax.custom_jvp
    def potential(parameters):
        return gradient(arrays, parameters)[0]

    @potential.defjvp
    def _(primals, tangents):
        value, slope = gradient(arrays, *primals)
        return value, sum(jnp.vdot(a, b) for a, b in zip(_leaves(slope), _leaves(tangents), strict=True))

    return potential


def _kept(state):
    """What is kept of every iteration."""
    statistics = {}
    for name in STATISTICS:
        statistics[name] = functools.reduce(getattr, name.split("."), state)
    return state.z, statistics
