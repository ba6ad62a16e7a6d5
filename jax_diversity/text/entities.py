"""Entities of HTML, such as `&amp;` and `&#228;`, as characters."""

from __future__ import annotations

import html
import re

_LONG = re.compile(r"&#[0-9]{100,}+;?")
"""Numbers above all characters. Python converts decimal numbers of at most 4,300 digits."""


def unescaped(text: str) -> str:
    """The text with characters in place of entities.

    Example:
        >>> unescaped("&lt;p&gt; &#228;")
        '<p> \\xe4'
    """
    return html.unescape(_LONG.sub("\ufffd", text) if "&#" in text else text)
