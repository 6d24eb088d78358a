"""Results of a long study kept in a file: nothing done is computed again, or mixed with another study's."""

import json
import pathlib

import numpy as np

__all__ = ["Checkpoint"]


class Checkpoint(dict):
    """A dict of arrays that `save` writes to an ``.npz`` file, from which the next study of the same settings starts.

    Parameters
    ----------
    path : path or None
        Without one nothing is written.
    settings : dict
        What the results depend on; JSON-able.

    Raises
    ------
    ValueError
        If the file belongs to a study with other settings.
    """

    def __init__(self, path, settings):
        super().__init__()
        self.path, self.settings = path and pathlib.Path(path), json.dumps(settings)
        if self.path is None or not self.path.exists():
            return
        with np.load(self.path) as file:
            stored = str(file["settings"])
            if stored != self.settings:
                raise ValueError(f"{path} belongs to a study with other settings: {stored}; this one: {self.settings}")
            self.update({name: file[name] for name in file.files if name != "settings"})

    def save(self):
        """Write everything; a crash in between leaves the old file."""
        if self.path is not None:
            partial = self.path.with_suffix(".part.npz")
            np.savez(partial, settings=np.array(self.settings), **self)
            partial.replace(self.path)
