"""The Criteo Sponsored Search Conversion Log as [LH] sec. 5.2 uses it, from a local copy."""

import array
import os
from typing import NamedTuple

import numpy as np

from ldpbayes._checks import at_least

__all__ = ["CATEGORICAL", "COLUMNS", "NUMERIC", "Criteo", "criteo"]

NUMERIC = ("time_delay_for_conversion", "nb_clicks_1week", "product_price")
CATEGORICAL = (
    "product_age_group",
    "device_type",
    "audience_id",
    "product_gender",
    "product_brand",
    *(f"product_category{i}" for i in range(1, 8)),
    "product_country",
    "product_id",
    "product_title",
    "partner_id",
    "user_id",
)
COLUMNS = ("Sale", "SalesAmountInEuro", NUMERIC[0], "click_timestamp", *NUMERIC[1:], *CATEGORICAL)
"""Of the file, which has no line of names."""
LARGEST = 400.0
LABEL = COLUMNS.index("SalesAmountInEuro")


class Criteo(NamedTuple):
    """Clicks that led to a sale.

    Attributes
    ----------
    numeric : ndarray of float32 (n, 3)
        The columns `NUMERIC`; −1 is the file's mark of what is missing.
    categories : ndarray of int32 (n, 17)
        Codes of the columns `CATEGORICAL`: 0 for all categories that are rarer than the threshold together, the others
        counted from 1 in the order in which the file first has them.
    sizes : tuple of int
        How many codes each of these columns has, the code 0 among them.
    labels : ndarray of float32 (n,)
        SalesAmountInEuro, in [0, 400].
    """

    numeric: np.ndarray
    categories: np.ndarray
    sizes: tuple[int, ...]
    labels: np.ndarray

    def features(self) -> np.ndarray:
        """Numbers for a network, (n, 20): log(2 + x) of numeric columns, and how often a category is there, as log.

        [LH] has an embedding of eight numbers for each category in their place.
        """
        counts = [np.bincount(codes, minlength=size) for codes, size in zip(self.categories.T, self.sizes, strict=True)]
        often = [np.log(count[codes]) for count, codes in zip(counts, self.categories.T, strict=True)]
        return np.column_stack([np.log(2.0 + np.maximum(self.numeric, -1.0)), *often])


def criteo(path: str | os.PathLike, *, threshold: int = 5) -> Criteo:
    """Read the log, keeping the sales of at most 400 euros: 1,645,977 of its 15,995,634 lines.

    One pass, which keeps 160 bytes for each of these: of a category only a hash of 64 bits, by which two of a million
    categories are taken for one in one file out of thirty million.

    Parameters
    ----------
    path : path
        The file, 23 columns between tabs in the order of `COLUMNS`, without a line of names.
    threshold : int
        Categories that have fewer records are put together; the paper's code has 5.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line has not 23 columns, an amount or a numeric feature is no number, or no line is kept.
    """
    threshold = at_least(1, "threshold", threshold)
    numeric = [COLUMNS.index(name) for name in NUMERIC]
    categorical = [COLUMNS.index(name) for name in CATEGORICAL]
    labels, numbers = array.array("f"), array.array("f")
    hashes = [array.array("q") for _ in CATEGORICAL]
    with open(path, "rb") as file:
        for count, line in enumerate(file, 1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != len(COLUMNS):
                raise ValueError(f"line {count} of {path} has {len(fields)} columns, not {len(COLUMNS)}")
            try:
                amount = float(fields[LABEL])
                if not 0 <= amount <= LARGEST:  # −1 where nothing was sold
                    continue
                numbers.extend([float(fields[j]) for j in numeric])
            except ValueError:
                raise ValueError(f"line {count} of {path} has no number where one is due") from None
            labels.append(amount)
            for kept, j in zip(hashes, categorical, strict=True):
                kept.append(hash(fields[j]))
    if not labels:
        raise ValueError(f"{path} has no sale from 0 to {LARGEST:g} euros")
    codes = np.empty((len(labels), len(CATEGORICAL)), np.int32)
    sizes = []
    for j in range(len(CATEGORICAL)):
        codes[:, j], size = _codes(np.frombuffer(hashes[j], np.int64), threshold)
        sizes.append(size)
    table = np.frombuffer(numbers, np.float32).reshape(-1, len(NUMERIC)).copy()
    return Criteo(table, codes, tuple(sizes), np.frombuffer(labels, np.float32).copy())


def _codes(hashes: np.ndarray, threshold: int) -> tuple[np.ndarray, int]:
    """Codes of one column, and how many there are."""
    _, first, which, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    frequent = np.flatnonzero(counts >= threshold)
    code = np.zeros(len(counts), np.int32)
    # hashes differ from run to run, the order of the file does not
    code[frequent[np.argsort(first[frequent])]] = np.arange(1, len(frequent) + 1)
    return code[which], len(frequent) + 1
