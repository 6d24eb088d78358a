"""Checks of arguments raise errors that are data."""

import pickle

import numpy as np
import pytest

from ldpbayes._core.checks import POSITIVE, ArgumentError, at_least, checked


def test_a_wrong_argument_is_known_by_its_parts_and_not_by_its_message():
    with pytest.raises(ArgumentError, match=r"^scale must be positive and finite, got scale\[1\] = -2\.0$") as caught:
        checked("scale", [1.0, -2.0], *POSITIVE)
    error = caught.value
    assert (error.name, error.allowed, error.value, error.entry, error.place) == (
        "scale",
        POSITIVE[0],
        "-2.0",
        (1,),
        "",
    )
    with pytest.raises(ArgumentError) as caught:
        at_least(1, "draws", 0)
    assert (caught.value.name, caught.value.allowed, caught.value.entry) == ("draws", "an integer of at least 1", ())


def test_a_caller_can_say_where_a_wrong_argument_stands_and_what_it_is_called_there():
    error = ArgumentError("epsilon", "positive", "-1", entry=(3,)).at("line 5", "--epsilon", ()).at("people.csv")
    assert str(error) == "people.csv, line 5: --epsilon must be positive, got -1"


def test_a_wrong_argument_travels_between_processes():
    error = ArgumentError("epsilon", "positive", "-1", "people.csv", (3,))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "people.csv: epsilon must be positive, got epsilon[3] = -1"
    assert copy.entry == (3,) and isinstance(copy, ValueError)


def test_arrays_that_hold_no_numbers_are_described():
    with pytest.raises(ArgumentError, match="got an array of strings"):
        checked("scale", np.array(["a", "b"]), *POSITIVE)
