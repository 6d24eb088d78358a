"""Results of a long study kept in a file: nothing finished is lost, computed again, or mixed with another study's."""

import functools
import io
import json
import os
import pathlib
from importlib.metadata import version

import jax
import numpy as np

from ldpbayes.studies._fingerprint import model_fingerprint

try:
    import fcntl
except ImportError:  # Windows: that two studies use one file is not noticed there
    fcntl = None

__all__ = ["Checkpoint"]

FORMAT = 2
PACKAGES = ("ldpbayes", "numpyro", "jax", "jaxlib", "numpy", "scipy")


class Checkpoint(dict):
    """A dict of arrays that `save` writes to a file, from which the next study of the same settings starts.

    It is entered as a context: only one study at a time can have a file, and it is looked at before any work.

    Parameters
    ----------
    path : path or None
        Without one nothing is written.
    settings : dict
        What the results depend on; JSON-able. The versions of the libraries and the platform are added.
    model : tuple (model, mechanism, count), optional
        A NumPyro model that they depend on, and what it is a model of: its fingerprint is added.

    Raises
    ------
    FileNotFoundError
        If there is no folder for the file.
    ValueError
        On entering, if the file belongs to a study with other settings or another model, is no checkpoint or is
        damaged, or if another study that is running has it. It is left as it is.
    """

    def __init__(self, path, settings, model=None):
        super().__init__()
        self.path = None if path is None else pathlib.Path(path).resolve()
        self.settings, self._model, self._lock = settings, model, None

    def __enter__(self):
        """Take the file, and read what is in it."""
        if self.path is not None:
            if not self.path.parent.is_dir():
                raise FileNotFoundError(f"there is no folder {self.path.parent} for the checkpoint {self.path.name}")
            self._lock = _locked(self._beside(".lock"), self.path)
            try:
                self._complete_settings()
                self._read()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception):
        """Let others have the file."""
        if self._lock is not None:
            self._beside(".lock").unlink(missing_ok=True)  # while it is held, so that nobody else's is removed
            self._lock.close()
            self._lock = None

    def save(self):
        """Write everything; whatever stops this in between leaves the old file."""
        if self.path is None:
            return
        # by number, since a site may be called anything
        header = json.dumps({"format": FORMAT, "settings": self.settings, "names": list(self)})
        arrays = {str(i): array for i, array in enumerate(self.values())}
        with open(self._beside(".part"), "wb") as file:
            np.savez(file, header=np.array(header), **arrays)
            file.flush()
            os.fsync(file.fileno())
        self._beside(".part").replace(self.path)

    def _complete_settings(self):
        model = {} if self._model is None else {"model": model_fingerprint(*self._model)}
        self.settings = json.loads(json.dumps(self.settings | model | {"versions": _versions()}))

    def _beside(self, ending):
        return self.path.with_name(self.path.name + ending)

    def _read(self):
        if not self.path.exists():
            return
        damaged = f"checkpoint {self.path} is damaged, or no checkpoint; move it away to start afresh"
        content = self.path.read_bytes()
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                stored = {name: file[name] for name in file.files}
        except Exception as error:  # a damaged archive raises nearly anything
            raise ValueError(f"{damaged} ({error})") from None
        try:
            header = json.loads(str(stored["header"]))
            form, settings, names = header["format"], header["settings"], header["names"]
        except (KeyError, TypeError, ValueError):
            if "settings" in stored:
                raise ValueError(f"checkpoint {self.path} was written by an earlier version of ldpbayes") from None
            raise ValueError(damaged) from None
        if form != FORMAT:
            raise ValueError(f"checkpoint {self.path} has format {form!r}, written by another version of ldpbayes")
        differences = _differences(settings, self.settings)
        if differences:
            raise ValueError(
                f"checkpoint {self.path} belongs to a study with other settings: {'; '.join(differences)}; give this "
                "one another file"
            )
        if set(stored) != {"header", *(str(i) for i in range(len(names)))}:
            raise ValueError(damaged)
        self.update({name: stored[str(i)] for i, name in enumerate(names)})


@functools.cache
def _versions():
    return {name: version(name) for name in PACKAGES} | {"platform": jax.default_backend()}


def _locked(lock, path):
    """An open file that no other process has; the system takes it from a process that ends, however it does."""
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
        file.close()  # whoever had it has removed it in between


def _differences(stored, mine, prefix=""):
    """What differs between two JSON-able dicts, in words."""
    said = []
    for name in sorted({*stored, *mine}):
        a, b = stored.get(name), mine.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            said += _differences(a, b, f"{prefix}{name}.")
        elif json.dumps(a) != json.dumps(b):  # as text, since NaN is not equal to itself
            said.append(f"{prefix}{name} is {_abridged(a)} there, {_abridged(b)} here")
    return said


def _abridged(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"
