"""Examples of removed and edited documents. First personal data are masked, then the texts are cut and compared."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from jax_diversity.foundation.errors import shortened
from jax_diversity.preparation.steps.personal_data import masked, masked_versions

_EXCERPT = 2000
"""Number of characters of a removed text that are shown."""
_COMPARED_LINES, _SHOWN_LINES, _LINE = 300, 40, 300
_MARGIN = 25_000
"""Number of characters at the end of a cut text that are masked but not shown. No find is longer than this."""
REMOVED_CHARACTERS = _EXCERPT + _MARGIN
EDITED_CHARACTERS = _COMPARED_LINES * _LINE + _MARGIN


def shown_removed(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example with the beginning of its masked text.

    The given `text` has at most `REMOVED_CHARACTERS` characters of the document.
    """
    text = example["text"]
    return {**_about(example), "text": _whole(masked(text), text, REMOVED_CHARACTERS)[:_EXCERPT]}


def shown_edited(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example in which `lines` replaces the two texts.

    The given texts each have at most `EDITED_CHARACTERS` characters of the document.
    """
    versions = example["before"], example["after"]
    values = {key: value for key, value in example.items() if key not in ("before", "after")}
    lines = [
        [*zip(text.splitlines(), _whole(shown, text, EDITED_CHARACTERS).splitlines()[:_COMPARED_LINES], strict=False)]
        for text, shown in zip(versions, masked_versions(*versions), strict=True)
    ]
    return {**_about(values), "lines": [*islice(_difference(*lines), _SHOWN_LINES)]}


def _about(example: Mapping[str, Any]) -> dict[str, Any]:
    return {**example, "id": masked(example["id"])}


def _whole(shown: str, text: str, most: int) -> str:
    """Return a masked text; if the document was cut, without the end, because the cut may be within a find."""
    return shown if len(text) < most else shown[:-_MARGIN]


def _difference(old: list[tuple[str, str]], new: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the changed lines, with one line before and after each. The inputs are pairs (line, masked line).

    We compare the lines, not the masked lines: lines that the step `personal_data` edited are equal if they are masked.
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
