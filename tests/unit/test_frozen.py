"""Classes of `frozen` do what those of `dataclass(frozen=True)` do."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from autotune.facts.frozen import frozen


@frozen(order=True)
class Ours:
    """A record."""

    first: int
    second: str = "b"
    third: object = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("first is negative")


@dataclass(frozen=True, order=True)
class Plain:
    """A record."""

    first: int
    second: str = "b"
    third: object = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("first is negative")


@frozen()
class Further(Ours):
    """With one field more, which has to have a default."""

    fourth: float = 0.5

    def __repr__(self) -> str:
        return "a further one"


def test_instances_are_as_those_of_a_dataclass() -> None:
    for made in (Ours, Plain):
        one, same, other = made(1), made(first=1, third=3), made(2, "a")
        assert one == same and hash(one) == hash(same) and one != other
        assert one < other and one <= same and other > one and same >= one
        assert repr(one).removeprefix(made.__name__) == "(first=1, second='b')"
        assert asdict(other) == vars(other) == {"first": 2, "second": "a", "third": None}
        assert replace(one, second="c") == made(1, "c")
        assert [copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))] == [one] * 3
        assert {one: "found"}[same] == "found"


def test_another_class_is_not_equal_and_has_no_order() -> None:
    assert Ours(1) != Plain(1) and Ours(1) != Further(1) and Ours(1) != (1, "b")
    with pytest.raises(TypeError):
        _ = Ours(1) < Plain(1)  # type: ignore[operator]


def test_nothing_can_be_set_or_deleted() -> None:
    one = Ours(1)
    for name in ("first", "new"):
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, 2)
    with pytest.raises(FrozenInstanceError):
        del one.first  # type: ignore[misc]
    assert vars(one) == vars(Plain(1))


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, "b", 3, 4), {}), ((1,), {"first": 1}), ((1,), {"new": 1})]
)
def test_wrong_arguments_are_refused_in_the_same_words(
    values: tuple[object, ...], named: dict[str, object]
) -> None:
    notes = []
    for made in (Ours, Plain):
        with pytest.raises(TypeError) as rejected:
            made(*values, **named)  # type: ignore[arg-type]
        notes.append(str(rejected.value).removeprefix(made.__name__))
    assert notes[0] == notes[1]


def test_what_is_checked_behind_the_fields_is_checked() -> None:
    with pytest.raises(ValueError, match="negative"):
        replace(Ours(1), first=-1)


def test_a_record_may_stand_on_another_and_tell_itself() -> None:
    assert [one.name for one in fields(Further)] == ["first", "second", "third", "fourth"]
    assert repr(Further(1)) == "a further one" and Further(1, fourth=2.0).fourth == 2.0


def test_the_signature_is_told() -> None:
    assert inspect.signature(Ours) == inspect.signature(Plain)
