"""What Tab shows after ``import ldpbayes as ldp``."""

import rlcompleter

import pytest

import ldpbayes as ldp


def completed(text):
    """Names that Python's own completion offers, which asks `dir` and then looks each name up."""
    return {name.rstrip("()").removeprefix(text) for name in rlcompleter.Completer({"ldp": ldp}).attr_matches(text)}


def test_modules_that_come_when_asked_for_are_completed():
    assert {"models", "studies", "plots", "estimation"} <= completed("ldp.")
    assert completed("ldp.mod") == {"els"} and completed("ldp.plo") == {"ts"}


@pytest.mark.parametrize("name", ["models", "studies", "plots"])
def test_completion_in_a_module_shows_what_is_public_and_nothing_else(name):
    modules = {"papers"} if name == "studies" else set()  # one file a paper, which shows once it has been imported
    assert completed(f"ldp.{name}.") - modules == set(getattr(ldp, name).__all__)
