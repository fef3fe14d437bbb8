"""MkDocs hook: what the site's search leaves out, and what it shows last.

A page is found by its folder, so that no page needs front matter, which generated pages cannot
have. Measurements are records: the search does not have them. The pages for those who change
Twofold come after those for its users.
"""

from __future__ import annotations

from typing import Any, Final

LEFT_OUT: Final = "inside/measurements/"
LAST: Final = "inside/"
BOOST_OF_LAST: Final = 0.02
"""A word in a title counts a thousand times a word in the text, so this is 20 words of text."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Tell the search plugin, by the page's metadata."""
    if page.file.src_uri.startswith(LEFT_OUT):
        page.meta["search"] = {"exclude": True}
    elif page.file.src_uri.startswith(LAST):
        page.meta["search"] = {"boost": BOOST_OF_LAST}
    return markdown
