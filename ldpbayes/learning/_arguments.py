"""Public features and released labels, as all fits take them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ldpbayes._checks import check_order, checked
from ldpbayes._warnings import LdpBayesWarning
from ldpbayes.data import Release
from ldpbayes.learning._objectives import Objective

__all__ = [
    "LearningWarning",
    "centre_and_unit",
    "checked_bounds",
    "checked_features",
    "checked_labels",
    "privacy_of",
]


class LearningWarning(LdpBayesWarning):
    """A fit that should not be used as it is; the message says why."""


def checked_features(
    features: Any, count: int | None = None, width: int | None = None, like: Sequence[str] | None = None
) -> tuple[np.ndarray, list[str]]:
    """Features as a matrix, and what they are called.

    Parameters
    ----------
    features : array_like (n, d) or data frame
        Finite numbers.
    count : int, optional
        How many rows there have to be.
    width : int, optional
        How many columns there have to be.
    like : sequence of str, optional
        What the columns have to be called, if both these names and those of a data frame are somebody's choice.

    Raises
    ------
    ValueError
        If they are not, or not numbers.
    """
    matrix = np.asarray(features)
    if matrix.dtype.kind not in "iuf":
        try:
            matrix = matrix.astype(float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"features must be numbers (encode categories as 0 and 1 first): {error}") from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"features must be a matrix of a row a label, got an array of shape {matrix.shape}")
    if count is not None and len(matrix) != count:
        raise ValueError(f"features must have a row a label: got {len(matrix)} rows, and {count} released labels")
    if width is not None and matrix.shape[1] != width:
        raise ValueError(f"features must have {width} columns, as those of the fit had, got {matrix.shape[1]}")
    matrix = checked("features", matrix, "finite numbers", np.isfinite)
    columns: Sequence[Any] = getattr(features, "columns", range(matrix.shape[1]))
    names = [name if isinstance(name, str) else f"x[{name}]" for name in columns]
    unnamed = [f"x[{j}]" for j in range(matrix.shape[1])]
    if like is not None and hasattr(features, "columns") and unnamed not in (names, list(like)) and names != list(like):
        raise ValueError(f"features must have the columns of the fit in their order, {list(like)}, got {names}")
    return matrix, names


def centre_and_unit(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of the columns and their standard deviations, 1 for a constant column, each of shape (d,).

    Parameters
    ----------
    matrix : array (n, d)
        Features in double precision: in single, a column far from 0 has lost what its numbers differ by.
    """
    unit = matrix.std(axis=0)
    return matrix.mean(axis=0), np.where(unit > 1e-12 * np.abs(matrix).max(axis=0), unit, 1.0)


def checked_bounds(bounds: Any) -> tuple[float, float] | None:
    """Bounds of labels as two finite numbers in order, or None.

    Parameters
    ----------
    bounds : (float, float) or None
        As they are given.

    Raises
    ------
    ValueError
        If they are not.
    """
    if bounds is None:
        return None
    pair = checked(
        "bounds", bounds, "two finite numbers, the lower first", lambda a: np.isfinite(a) & (a.shape == (2,))
    )
    check_order(*pair)
    return float(pair[0]), float(pair[1])


def checked_labels(release: Any, objective: Any) -> None:
    """Whether a release holds labels that can be learned from, by an objective.

    Parameters
    ----------
    release : Release
        Of one number, or category, a record.
    objective : Objective
        What is minimised.

    Raises
    ------
    TypeError
        If one of the two is something else.
    ValueError
        If the release has no values, or rows.
    """
    if not isinstance(release, Release):
        hint = {"LabelRelease": ": pass its .release", "PanelSketch": ": in a sketch labels have one law"}
        kind = type(release).__name__
        raise TypeError(f"release must be a Release of labels, got {kind}{hint.get(kind, '')}")
    if release.mechanism.record_shape or release.mechanism.event_shape:
        raise ValueError(f"labels must be numbers, but {type(release.mechanism).__name__} releases rows")
    if release.values is None:
        raise ValueError("a release without values has no labels to learn from")
    if not isinstance(objective, Objective):
        raise TypeError(f"objective must be an Objective, such as MarginalLikelihood(normal), got {objective!r}")


def privacy_of(release: Release) -> str:
    """What was promised to those whose labels were released.

    Parameters
    ----------
    release : Release
        Of labels.
    """
    of_labels = dataclasses.replace(release.mechanism.guarantee, unit="label")
    return (
        f"{of_labels.statement()} The budget of whatever else was released of these labels, such as a prior, adds to "
        "that of this release. Features are public: nothing protects them."
    )
