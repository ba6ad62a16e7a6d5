"""Convert HTML entities, such as `&amp;` and `&#228;`, to characters."""

from __future__ import annotations

import html
import re

_LONG = re.compile(r"&#[0-9]{100,}+;?")
"""Entities with a number larger than any character's number. Python raises an error above 4,300 decimal digits."""


def unescaped(text: str) -> str:
    """Replace the entities in a text with their characters.

    Example:
        >>> unescaped("&lt;p&gt; &#228;")
        '<p> \\xe4'
    """
    return html.unescape(_LONG.sub("\ufffd", text) if "&#" in text else text)
