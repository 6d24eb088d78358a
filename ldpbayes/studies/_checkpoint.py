"""Checkpoints of long studies, and fingerprints of the models that were run."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from types import ModuleType
from typing import IO, Any

import jax
import numpy as np
import numpyro
from numpyro.infer.util import log_density

from ldpbayes._core.types import Array, Model, Params, PyTree
from ldpbayes.data import CountSketch, PanelSketch, Release
from ldpbayes.inference import privatize
from ldpbayes.mechanisms import Mechanism

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # on Windows, where two studies that use one file are not noticed
    fcntl = None

FORMAT = 2
PACKAGES = ("ldpbayes", "numpyro", "jax", "jaxlib", "numpy", "scipy")
_version = functools.cache(metadata.version)  # which reads files of the installed package


class Checkpoint(dict):
    """A dict of arrays that `save` writes to a file, from which a study with the same settings resumes.

    It is entered as a context: one study at a time can use a file. Entering reads the file, or leaves it as it is and
    raises FileNotFoundError if there is no folder for it, and ValueError if it belongs to a study with other settings
    or another model, is no checkpoint or is damaged, or if another study that is running uses it.

    Parameters
    ----------
    path : path or None
        The ``.npz`` file; without one nothing is written.
    settings : dict
        All settings that the results depend on, JSON-able. Versions of libraries and the platform are added.
    model : tuple (model, mechanism, count), optional
        A NumPyro model, and the mechanism and count of its release, whose fingerprint is added to the settings.
    """

    def __init__(
        self, path: str | os.PathLike | None, settings: Params, model: tuple[Model, Mechanism, int] | None = None
    ) -> None:
        super().__init__()
        self.path = None if path is None else pathlib.Path(path).resolve()
        self.settings, self._model = settings, model
        self._lock: IO | None = None

    def __enter__(self) -> "Checkpoint":
        if self.path is not None:
            if not self.path.parent.is_dir():
                raise FileNotFoundError(f"there is no folder {self.path.parent} for the checkpoint {self.path.name}")
            self._lock = _lock(self.path)
            try:
                model = {} if self._model is None else {"model": model_fingerprint(*self._model)}
                versions = {name: _version(name) for name in PACKAGES} | {"platform": jax.default_backend()}
                self.settings = json.loads(json.dumps(self.settings | model | {"versions": versions}))
                self._read(self.path)
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._lock is not None:
            # removed before it is closed, so that the removed file cannot be the lock of another study
            pathlib.Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def save(self) -> None:
        """Write everything; an interrupted write leaves the old file as it is."""
        if self.path is None:
            return
        # arrays are stored by number, since a site may have a name that no file in an archive can have
        header = json.dumps({"format": FORMAT, "settings": self.settings, "names": list(self)})
        arrays = {str(i): array for i, array in enumerate(self.values())}
        part = self.path.with_name(f"{self.path.name}.part")
        with open(part, "wb") as file:
            np.savez(file, header=np.array(header), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Replace a KeyboardInterrupt by one that says how many replicates, the array ``finished``, are in the file."""
        try:
            yield
        except KeyboardInterrupt:
            if self.path is None:
                raise KeyboardInterrupt(
                    "nothing is saved: with checkpoint= a file keeps every finished batch"
                ) from None
            file = Checkpoint(self.path, self.settings)  # read, since an interrupt can come before the last write
            file._read(self.path)
            batch, replicates = self.settings["batch"], self.settings["replicates"]
            progress = f"nothing is saved: the first batch, of {min(batch, replicates)}, was not finished; see batch="
            if file:
                share = f"{int(file['finished'])} of {replicates} replicates"
                progress = f"{share} are in {self.path.name}; run the same call again to go on"
            raise KeyboardInterrupt(progress) from None

    def _read(self, path: pathlib.Path) -> None:
        if not path.exists():
            return
        damaged = f"checkpoint {path} is damaged, or no checkpoint; move it away to start afresh"
        content = path.read_bytes()
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                stored = {name: file[name] for name in file.files}
        except Exception as error:  # a damaged archive raises nearly anything
            raise ValueError(f"{damaged} ({error})") from None
        try:
            header = json.loads(str(stored["header"]))
            form, settings, names = header["format"], header["settings"], header["names"]
        except (KeyError, TypeError, ValueError):
            raise ValueError(damaged) from None
        if form != FORMAT:
            raise ValueError(f"checkpoint {path} has format {form!r}, written by another version of ldpbayes")
        differences = _differences(settings | {"model": None}, self.settings | {"model": None})
        # A fingerprint depends on the release and on the versions too: if these differ, it says nothing of the model.
        comparable = not any(each.startswith(("mechanism", "count ", "versions")) for each in differences)
        if comparable and settings.get("model") != self.settings.get("model"):
            differences.append("the model is another one, or has other priors")
        if differences:
            problem = f"belongs to a study with other settings: {'; '.join(differences)}"
            raise ValueError(f"checkpoint {path} {problem}; give this one another file")
        if set(stored) != {"header", *(str(i) for i in range(len(names)))}:
            raise ValueError(damaged)
        self.update({name: stored[str(i)] for i, name in enumerate(names)})


def _lock(path: pathlib.Path) -> IO:
    """An open file beside the path, locked until it is closed or the process ends."""
    lock = path.with_name(f"{path.name}.lock")
    while True:
        file = open(lock, "a")  # noqa: SIM115  (it stays open)
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == lock.stat().st_ino:
                return file
        except BlockingIOError:
            file.close()
            raise ValueError(
                f"another study that is running uses the checkpoint {path}; give this one another"
            ) from None
        except FileNotFoundError:
            pass
        file.close()  # the study that had locked this file has just removed it


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
            messages.append(f"{prefix}{name} is {abridged(a)} there, {abridged(b)} here")
    return messages


def model_fingerprint(model: Model, mechanism: Mechanism, count: int) -> str:
    """Digest of the programs of a model's simulation and of its log density given a release, constants included."""

    def seeded(key: jax.Array) -> Model:
        return numpyro.handlers.seed(model, jax.random.wrap_key_data(key))

    def simulate(key: jax.Array) -> dict[str, Array]:
        trace = numpyro.handlers.trace(seeded(key)).get_trace(Release(None, mechanism, count))
        return {name: site["value"] for name, site in trace.items() if site["type"] in ("sample", "deterministic")}

    with jax.enable_x64(True):
        key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        shapes, release_of = _release_shapes(mechanism, count, key, isinstance(model, privatize))

        def weigh(key: jax.Array, arrays: PyTree) -> Array:
            return log_density(seeded(key), (release_of(*arrays),), {}, {})[0]

        texts = [jax.jit(simulate).lower(key).as_text(), jax.jit(weigh).lower(key, shapes).as_text()]
    return "-".join(hashlib.sha256(text.encode()).hexdigest()[:20] for text in texts)


def _release_shapes(
    mechanism: Any, count: int, key: jax.ShapeDtypeStruct, keep_records: bool
) -> tuple[list[jax.ShapeDtypeStruct], Callable[..., Release | PanelSketch | CountSketch]]:
    """Shapes of the arrays in a study's release or sketch, and the function that makes it from such arrays."""
    keep_records = keep_records or bool(mechanism.record_shape)
    discrete = mechanism.support.is_discrete
    if not keep_records and not discrete:
        sketch = PanelSketch.of(np.mean([mechanism.released_range]).reshape(1), mechanism, keep_records=False)
        arrays = [getattr(sketch, name) for name in sketch.arrays]
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        return shapes, lambda *arrays: dataclasses.replace(sketch, **dict(zip(sketch.arrays, arrays, strict=True)))
    records = jax.ShapeDtypeStruct((count, *mechanism.record_shape), int if discrete else float)
    values = jax.eval_shape(lambda key, x: mechanism.randomize(jax.random.wrap_key_data(key), x), key, records)
    if keep_records:
        return [values], lambda values: Release(values, mechanism)
    weights = jax.ShapeDtypeStruct((count,), float)
    return [values, weights], lambda values, weights: CountSketch(mechanism, values, weights)
