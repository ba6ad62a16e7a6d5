"""Print text; all output to a terminal or a log uses these functions.

Users' data may contain control characters. On a terminal these would move the cursor, change colours or the window's
title, or change the order of the shown text.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_ACTING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f"  # all control characters except the line end
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that change the direction of the text around them
    "\u2028\u2029\ud800-\udfff]"  # other line ends; halves of surrogate pairs, which cannot be encoded
)


def clean(text: str) -> str:
    """Replace each character that would control a terminal with U+FFFD; line ends are kept."""
    return _ACTING.sub("\ufffd", text)


def show(text: str, stream: Any = None) -> None:
    """Print a cleaned text to a stream; characters outside the stream's encoding become question marks."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    print(clean(text).encode(encoding, "replace").decode(encoding), file=stream, flush=True)
