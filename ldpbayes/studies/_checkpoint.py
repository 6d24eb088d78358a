"""Checkpoints of long studies, and fingerprints of the models that were run."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from concurrent.futures import BrokenExecutor
from importlib import metadata
from typing import Any

import jax
import numpyro
from numpyro.infer.util import log_density

from ldpbayes._core.archive import load_arrays, only_user, reading, save_arrays, whole_file
from ldpbayes._core.types import Array, Model, Params
from ldpbayes.data import Release

CHECKPOINT_FORMAT = 2
VERSIONED_PACKAGES = ("ldpbayes", "numpyro", "jax", "jaxlib", "numpy", "scipy")
_version = functools.cache(metadata.version)  # which reads files of the installed package


class Checkpoint(dict):
    """A dict of arrays that is saved in a file, so that an interrupted simulation study can continue later.

    Use the class as a context manager: ``with Checkpoint(...) as results:``. If the file exists, ``results`` then has
    its arrays. Only one study at a time can use a file.

    Parameters
    ----------
    path : path or None
        Path of the ``.npz`` file. None means that nothing is written. Raises FileNotFoundError if there is no such
        folder.
    settings : dict
        All settings that determine the results, as objects that JSON can store. The versions of the libraries and the
        kind of device (such as "cpu") are added.
    model : tuple (model, plan), optional
        A NumPyro model, and a plan (a release without values) or a tuple of plans, whose fingerprint (hash) is stored
        in the file.

    Raises
    ------
    ValueError
        The file is damaged or not a checkpoint, another running study uses the file, or the file belongs to a study
        with other settings or another model. The file is not changed.
    """

    def __init__(
        self, path: str | os.PathLike | None, settings: Params, model: tuple[Model, Any] | None = None
    ) -> None:
        super().__init__()
        self.path = None if path is None else pathlib.Path(path).resolve()
        self.settings, self._model, self._lock = settings, model, contextlib.ExitStack()

    def __enter__(self) -> "Checkpoint":
        if self.path is not None:
            if not self.path.parent.is_dir():
                raise FileNotFoundError(f"there is no folder {self.path.parent} for the checkpoint {self.path.name}")
            with contextlib.ExitStack() as stack:
                refusal = f"another running study uses the checkpoint {self.path}; give this study another file"
                stack.enter_context(only_user(self.path, refusal))
                settings = self.settings | ({} if self._model is None else {"model": model_fingerprint(*self._model)})
                versions = {name: _version(name) for name in VERSIONED_PACKAGES}
                settings["versions"] = versions | {"platform": jax.default_backend()}
                self.settings = json.loads(json.dumps(settings))
                self._read(self.path)
                self._lock = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.close()

    def save(self) -> None:
        """Write all arrays to the file. If the program is interrupted while it writes, the old file is not changed."""
        if self.path is None:
            return
        # arrays are stored by number, since a site may have a name that no file in an archive can have
        header = {"format": CHECKPOINT_FORMAT, "settings": self.settings, "names": list(self)}
        with whole_file(self.path) as file:
            save_arrays(file, "header", header, {str(i): array for i, array in enumerate(self.values())})

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Return a context in which a KeyboardInterrupt, or the error of workers that died, says what is saved."""
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._progress()) from None
        except BrokenExecutor as error:
            raise RuntimeError(f"workers have died ({error}); {self._progress()}") from error

    def _progress(self) -> str:
        """How many replicates, the array ``finished``, are in the file, in words."""
        if self.path is None:
            return "nothing is saved: give checkpoint=, a file for the finished batches"
        self.clear()
        self._read(self.path)  # since an interrupt can come before the last write
        batch, replicates = self.settings["batch"], self.settings["replicates"]
        if not self:
            return f"nothing is saved: the first {min(batch, replicates)} replicates were not finished; see batch="
        share = f"{int(self['finished'])} of {replicates} replicates"
        return f"{share} are in {self.path.name}; run the same call again to go on"

    def _read(self, path: pathlib.Path) -> None:
        if not path.exists():
            return
        with reading(path, " is damaged, or is not a checkpoint; remove the file to start again") as file:
            header, arrays = load_arrays(file, "header")
            settings, results = header["settings"], {name: arrays[str(i)] for i, name in enumerate(header["names"])}
            if header["format"] != CHECKPOINT_FORMAT:
                raise ValueError(f"its format is {header['format']!r}, of another version of ldpbayes")
        differences = _differences(settings | {"model": None}, self.settings | {"model": None})
        # A fingerprint depends on the release and on the versions too: if these differ, it says nothing of the model.
        comparable = not any(text.startswith(("mechanism", "count ", "release ", "versions")) for text in differences)
        if comparable and settings.get("model") != self.settings.get("model"):
            differences.append("the model or its priors are different")
        if differences:
            problem = f"belongs to a study with other settings: {'; '.join(differences)}"
            raise ValueError(f"checkpoint {path} {problem}; give this study another file")
        self.update(results)


def _differences(stored: Mapping[str, Any], current: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The entries in which two JSON-able dicts differ, in words."""

    def abridged(value: object) -> str:
        text = json.dumps(value)
        return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"

    messages = []
    for name in sorted({*stored, *current}):
        a, b = stored.get(name), current.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            messages += _differences(a, b, f"{prefix}{name}.")
        elif json.dumps(a) != json.dumps(b):  # NaN is not equal to itself, but its text is
            messages.append(f"{prefix}{name} is {abridged(a)} in the file, {abridged(b)} in this study")
    return messages


def model_fingerprint(model: Model, plan: Any) -> str:
    """Digest of the programs of a model's simulation and log density, given a release without values, or several."""
    plans = plan if isinstance(plan, tuple) else (plan,)

    def simulate(key: jax.Array) -> dict[str, Array]:
        trace = numpyro.handlers.trace(numpyro.handlers.seed(model, key)).get_trace(plan)
        return {name: site["value"] for name, site in trace.items() if site["type"] in ("sample", "deterministic")}

    def weigh(key: jax.Array, values: list[Array]) -> Array:
        releases = tuple(dataclasses.replace(plan, values=z) for plan, z in zip(plans, values, strict=True))
        data = releases if isinstance(plan, tuple) else releases[0]
        return log_density(numpyro.handlers.seed(model, key), (data,), {}, {})[0]

    def released(key: jax.Array, plan: Release) -> Array:
        number = int if plan.mechanism.support.is_discrete else float
        records = jax.ShapeDtypeStruct((plan.count, *plan.mechanism.record_shape), number)
        return jax.eval_shape(plan.mechanism.randomize, key, records)

    with jax.enable_x64(True):
        key = jax.eval_shape(jax.random.key, 0)
        values = [released(key, plan) for plan in plans]
        texts = [jax.jit(simulate).lower(key).as_text(), jax.jit(weigh).lower(key, values).as_text()]
    return "-".join(hashlib.sha256(text.encode()).hexdigest()[:20] for text in texts)
