"""Answers that are kept until a file changes (files/answers.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.files import answers


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Asks a question; returns the answer, and how often one was made so far."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("a")
    made: list[object] = []

    def ask(question: object = "how long?") -> tuple[object, int]:
        answers._state.cache_clear()
        return answers.kept(question, [tmp_path / "data"], lambda: made.append(question) or [1.5]), len(made)

    return ask


def test_an_answer_is_made_once(asked) -> None:
    assert [asked(), asked(), asked("how wide?"), asked()] == [([1.5], 1), ([1.5], 1), ([1.5], 2), ([1.5], 2)]


def test_it_is_made_again_once_a_file_changed(asked, tmp_path: Path) -> None:
    asked()
    (tmp_path / "data/a.txt").write_text("another")
    assert asked() == ([1.5], 2)


def test_the_oldest_go_first(asked, tmp_path: Path) -> None:
    for number in range(answers._MOST + 3):
        asked(number)
    assert len(list((tmp_path / "cache/answers").iterdir())) == answers._MOST


@pytest.mark.parametrize("damage", ["", "{"])
def test_one_that_was_damaged_is_made_again(asked, tmp_path: Path, damage: str) -> None:
    asked()
    (kept,) = (tmp_path / "cache/answers").iterdir()
    kept.write_text(damage)
    assert [asked(), asked()] == [([1.5], 2), ([1.5], 2)]


def test_without_a_folder_to_keep_it_in_it_is_made_again(asked, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert [asked(), asked()] == [([1.5], 1), ([1.5], 2)]
