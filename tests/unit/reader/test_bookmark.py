"""A bookmark is a small text, and nothing else passes for one."""

from __future__ import annotations

import pytest

from twofold_common.errors import UsageError
from twofold_reader.whole_transactions import WHOLE, Bookmark


@pytest.mark.parametrize("mark", [Bookmark("5f1c", 1, 0, 0), Bookmark("", 2**40, 2**41, WHOLE)])
def test_a_bookmark_comes_back(mark: Bookmark) -> None:
    assert Bookmark.parse(str(mark)) == mark


@pytest.mark.parametrize("text", ["", "1:5f1c:1:0", "2:5f1c:1:0:0", "1:5f1c:-1:0:0", "1:5f1c:1:0:0\n", "oldest"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no place to begin"):
        Bookmark.parse(text)
