"""Examples of removed and edited documents: personal data are masked first, then the texts are cut and compared."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from jax_diversity.corpus.steps.personal_data import masked, masked_versions
from jax_diversity.foundation.errors import shortened

_EXCERPT = 2000
"""Characters of a removed text that are shown."""
_COMPARED_LINES, _SHOWN_LINES, _LINE = 300, 40, 300
_MARGIN = 25_000
"""Characters that are masked, but not shown, at the end of a cut text; no find is longer."""
REMOVED_CHARACTERS = _EXCERPT + _MARGIN
EDITED_CHARACTERS = _COMPARED_LINES * _LINE + _MARGIN


def shown_removed(example: Mapping[str, Any]) -> dict[str, Any]:
    """An example with the beginning of its masked text; `text` holds at most `REMOVED_CHARACTERS` of the document."""
    text = example["text"]
    return {**_about(example), "text": _whole(masked(text), text, REMOVED_CHARACTERS)[:_EXCERPT]}


def shown_edited(example: Mapping[str, Any]) -> dict[str, Any]:
    """An example with `lines` in place of its two texts; each holds at most `EDITED_CHARACTERS` of the document."""
    versions = example["before"], example["after"]
    about = {key: value for key, value in example.items() if key not in ("before", "after")}
    lines = [
        [*zip(text.splitlines(), _whole(shown, text, EDITED_CHARACTERS).splitlines()[:_COMPARED_LINES], strict=False)]
        for text, shown in zip(versions, masked_versions(*versions), strict=True)
    ]
    return {**_about(about), "lines": [*islice(_difference(*lines), _SHOWN_LINES)]}


def _about(example: Mapping[str, Any]) -> dict[str, Any]:
    return {**example, "id": masked(example["id"])}


def _whole(shown: str, text: str, most: int) -> str:
    """A masked text without its end, where the document was cut in the middle of a find."""
    return shown if len(text) < most else shown[:-_MARGIN]


def _difference(old: list[tuple[str, str]], new: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The changed lines with one line around each, from pairs of a line and the masked line.

    The lines themselves are compared: the edits of `personal_data` are lines that are equal when masked.
    """
    matcher = difflib.SequenceMatcher(None, [line for line, _ in old], [line for line, _ in new])
    for group in matcher.get_grouped_opcodes(1):
        yield " ", "..."
        for tag, start, stop, new_start, new_stop in group:
            if tag == "equal":
                yield from ((" ", shortened(line, _LINE)) for _, line in old[start:stop])
            else:
                yield from (("-", shortened(line, _LINE)) for _, line in old[start:stop])
                yield from (("+", shortened(line, _LINE)) for _, line in new[new_start:new_stop])
