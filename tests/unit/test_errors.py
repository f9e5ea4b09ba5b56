"""The error tree: every error is ours, says how the shell learns of it, and survives a process boundary."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from autotune.facts.measurement import Outcome
from autotune.files import errors
from autotune.files.errors import AutotuneError, TrialFailure


def _subclasses(kind: type[AutotuneError]) -> Iterator[type[AutotuneError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _subclasses(child)


TREE = sorted(_subclasses(AutotuneError), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", [k for k in TREE if k is not TrialFailure], ids=lambda k: k.__name__)
def test_an_error_crosses_a_process_boundary(kind: type[AutotuneError]) -> None:
    again = pickle.loads(pickle.dumps(kind("no GPU here; pass --gpu replay:FILE")))
    assert type(again) is kind
    assert str(again) == "no GPU here; pass --gpu replay:FILE"


@pytest.mark.parametrize("outcome", Outcome)
def test_a_trial_failure_crosses_a_process_boundary(outcome: Outcome) -> None:
    again = pickle.loads(pickle.dumps(TrialFailure(outcome, "illegal address")))
    assert (again.outcome, again.reason) == (outcome, "illegal address")
    assert str(again) == f"{outcome}: illegal address"


def test_the_shell_can_tell_errors_apart() -> None:
    direct = [kind for kind in AutotuneError.__subclasses__() if kind in TREE and kind is not TrialFailure]
    codes = [kind.exit_code for kind in direct]
    assert len(set(codes)) == len(codes)
    assert all(code > 1 for code in codes), "1 is left to what nobody foresaw"


def test_the_tree_at_the_top_is_the_tree() -> None:
    for kind in TREE:
        line = next(line for line in errors.__doc__.splitlines() if kind.__name__ in line)
        assert f"exit {kind.exit_code}" in line or kind.exit_code in {1, kind.__mro__[1].exit_code}
