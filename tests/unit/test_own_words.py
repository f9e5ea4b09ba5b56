"""Names speak as the field does: few words of them occur in no other codebase (CONTRIBUTING.md, "Words")."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs/tools"))

import own_words

MOST = 0.11  # of the words in our names; the median of seventeen others is 0.12


@pytest.mark.stress
def test_few_words_of_our_names_are_our_own() -> None:
    found = own_words.own()
    assert len(found) < MOST * len(own_words.words()), found.most_common()


def test_the_field_knows_the_words_that_were_chosen() -> None:
    assert {"transposed", "wave", "describe", "baseline", "comparison", "predicted"} <= own_words.FIELD
    assert not {"told", "duel", "champion"} & own_words.FIELD
