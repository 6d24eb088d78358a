"""Files: written whole or not at all, and with a digest by which a reader notices damage."""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import secrets
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import filelock
import numpy as np
from numpy.lib import format as numpy_format

from ldpbayes._core.checks import ArgumentError

ROWS_PER_DIGEST = 1 << 20  # rows of an array with one digest, so that a large file can be checked in parts
DIGEST_ENTRY = ', "digest": '  # begins the last entry of a signed text
FREELY_UNPACKED_BYTES = 1 << 28  # that any file may unpack to
MOST_UNPACKED_PER_BYTE = 200  # bytes unpacked from a stored one, in larger files: noise of 1/50 bit a value

# NumPy parses headers as Python, which raises SystemError in Python 3.11 if two threads do so at once (gh-106905).
_ONE_HEADER_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, new: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of `path` after the block, complete and on disk; an error, a kill or
    another writer before leaves the old file. FileExistsError if it must be `new`.
    """
    target = pathlib.Path(path if new else os.path.realpath(path))  # a link still points to the file
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}")
    if os.path.lexists(target) and (new or not target.is_file() or not os.access(target, os.W_OK)):
        raise FileExistsError(f"{target} exists, and is not overwritten")
    part = target.with_name(f".ldpbayes-{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            if not new and target.exists():
                shutil.copymode(target, part)  # before anything is in it that others may not read
            yield file
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(part, target)  # a rename would replace a file that came in between
        else:
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def reading(path: str | os.PathLike, problem: str = "") -> Iterator[BinaryIO]:
    """Open a regular file. An error in the block, as damage can cause, becomes a ValueError that names the file."""
    if not os.path.isfile(path):  # reading a pipe could wait forever
        raise FileNotFoundError(f"there is no regular file {path}")
    with open(path, "rb") as file:
        try:
            yield file
        except (ImportError, MemoryError, Warning):
            raise
        except ArgumentError as error:
            raise error.at(f"{path}{problem}") from None
        except Exception as error:  # a damaged file raises nearly anything
            raise ValueError(f"{path}{problem}: {error}") from None


def blocks_of(**arrays: Any) -> list[str]:
    """A line with name, type, shape and SHA-256 of each `ROWS_PER_DIGEST` rows of arrays."""
    lines = []
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        for rows in (array[start : start + ROWS_PER_DIGEST] for start in range(0, len(array), ROWS_PER_DIGEST)):
            digest = hashlib.sha256(rows.view(np.uint8)).hexdigest()  # type: ignore[arg-type]
            lines.append(f"{name} {rows.dtype.str} {rows.shape} {digest}")
    return lines


def signed(text: str, blocks: list[str]) -> str:
    """A JSON object as text, with one more entry at its end: the digest of the text and of blocks of arrays."""
    digest = hashlib.sha256("\n".join([text[:-1], *blocks]).encode()).hexdigest()
    return f'{text[:-1]}{DIGEST_ENTRY}"{digest}"}}'


def verified(text: str, blocks: Callable[[], list[str]]) -> Any:
    """The object in a text; ValueError if the text was `signed`, and it or the arrays have changed since."""
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ValueError(f"its description is not JSON: {error}") from None
    stated = isinstance(header, dict) and "digest" in header
    if stated and text != signed(text.rpartition(DIGEST_ENTRY)[0] + "}", blocks()):
        raise ValueError("its content does not agree with its digest: it is damaged, or another program changed it")
    return header


def save_arrays(file: BinaryIO, name: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write arrays in NumPy's format, and under a name of its own a header, as signed JSON."""
    text = signed(json.dumps(header, default=np.ndarray.tolist), blocks_of(**arrays))
    np.savez(file, **arrays, **{name: np.array(text)})  # type: ignore[arg-type]


def load_arrays(file: BinaryIO, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The header and the arrays of `save_arrays`; errors of any kind if the file is damaged."""
    arrays = read_arrays(file)
    return verified(str(arrays.pop(name)), lambda: blocks_of(**arrays)), arrays


def read_arrays(file: BinaryIO, *names: str) -> dict[str, np.ndarray]:
    """Arrays of a file in NumPy's format, all or those named; ValueError for missing ones and for excessive claims."""
    stored = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if absent := set(names) - entries.keys():
            raise ValueError(f"it lacks {' and '.join(sorted(absent))}; it has {', '.join(entries)}")
        refuse_growth(stored, sum(entry.file_size for entry in archive.infolist()))
        return {name: _read_array(archive, entries[name]) for name in names or entries}


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with _ONE_HEADER_AT_A_TIME, archive.open(entry) as member:
        version = numpy_format.read_magic(member)
        read_header = numpy_format.read_array_header_1_0 if version[0] < 2 else numpy_format.read_array_header_2_0
        shape, _, dtype = read_header(member)
        size = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and size != entry.file_size - member.tell():  # NumPy itself refuses objects
            claim = f"{entry.filename} claims an array {dtype} of shape {shape}"
            raise ValueError(f"{claim}, but holds {entry.file_size - member.tell():,} bytes")
    with _ONE_HEADER_AT_A_TIME, archive.open(entry) as member:
        return numpy_format.read_array(member, allow_pickle=False)


def refuse_growth(stored: int, unpacked: int) -> None:
    """ValueError if a file claims to unpack to much more than it is long, as no file of noisy values does."""
    if unpacked > max(FREELY_UNPACKED_BYTES, MOST_UNPACKED_PER_BYTE * stored):
        raise ValueError(f"its {stored:,} bytes claim to unpack to {unpacked:,}")


@contextlib.contextmanager
def only_user(path: pathlib.Path, refusal: str) -> Iterator[None]:
    """Hold a lock beside a file that is read and then written again; ValueError, a refusal, if another one has it."""
    lock = path.with_name(f".ldpbayes-{path.name}.lock")
    try:
        with filelock.FileLock(lock, timeout=0):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # on Windows the release itself removes it
                    lock.unlink()
    except filelock.Timeout:
        raise ValueError(refusal) from None
