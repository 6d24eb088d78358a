"""What is in a checkpoint's file, read and written without the package."""

import json

import numpy as np

__all__ = ["read", "write"]


def read(path):
    """Header (a dict, without its digest) and arrays by name."""
    with np.load(path) as file:
        header = json.loads(str(file["header"]))
        header.pop("digest", None)
        return header, {name: file[str(i)] for i, name in enumerate(header["names"])}


def write(path, header, arrays):
    """Inverse of `read`; the header's names are those of the arrays."""
    header = header | {"names": list(arrays)}
    numbered = {str(i): array for i, array in enumerate(arrays.values())}
    with open(path, "wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **numbered)
