"""Parts of a corpus between the phases, as files: documents with the results of the steps, and accounts.

A part has a few megabytes of text. Its file is written atomically, so that a killed run continues after the finished
parts.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jax_diversity.preparation.passes.account import Account
from jax_diversity.preparation.passes.blocks import damage_as_error, read_blocks, write_blocks
from jax_diversity.preparation.steps.base import Candidate, Removal
from jax_diversity.schema import Document

_PART_BYTES = 8 * 2**20
_PART_DOCUMENTS = 8192
_SIZES = 5
"""Number of sizes that are stored for a document: bytes of its text, words and bytes before its step, and after it."""


def split(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Divide documents into parts of a few megabytes. The division does not depend on the number of processes."""
    part: list[Document] = []
    size = 0
    for document in documents:
        part.append(document)
        size += len(document.text)
        if size >= _PART_BYTES or len(part) == _PART_DOCUMENTS:
            yield part
            part, size = [], 0
    if part:
        yield part


def write_documents_part(path: Path, documents: Sequence[Document]) -> None:
    """Store a part as it was read, before the first phase."""
    write_part(path, [], [Candidate(document, document.language) for document in documents])


def write_part(path: Path, accounts: Sequence[Account], candidates: Sequence[Candidate]) -> None:
    """Store a part, without the texts of removed documents."""
    rules: dict[tuple[str, ...], int] = {}  # most documents of a part were measured by the same rules
    rows, texts, sizes, values = [], [], array("q"), array("d")
    for candidate in candidates:
        document, removed = candidate.document, candidate.removed
        text = b"" if removed else candidate.text.encode(errors="surrogatepass")
        texts.append(text)
        sizes.extend((len(text), *candidate.entered, *candidate.size))
        values.extend(candidate.measured.values())
        rows.append(
            (
                document.id,
                document.source,
                document.language,
                document.title,
                {} if removed else dict(document.metadata),
                candidate.language,
                candidate.scores,
                rules.setdefault(tuple(candidate.measured), len(rules)),
                removed,
                candidate.duplicate_group,
                candidate.duplicate_of,
                candidate.step,
                candidate.edited_by,
            )
        )
    columns = [*zip(*rows, strict=True)]  # JSON reads a few long lists faster than many short lists
    plain = json.dumps([[account.plain() for account in accounts], [*rules], columns])
    write_blocks(path, plain.encode(), b"".join(texts), sizes.tobytes(), values.tobytes())


def read_part(path: Path) -> tuple[list[Account], list[Candidate]]:
    """Read a stored part.

    Raises:
        UserError: the file is damaged.
    """
    with damage_as_error(path):
        plain, texts, sizes, values = read_blocks(path, 4)
        accounts, rules, columns = json.loads(bytes(plain))
        numbers, measured = array("q", bytes(sizes)).tolist(), array("d", bytes(values)).tolist()
        columns += [numbers[place::_SIZES] for place in range(_SIZES)]
        candidates = []
        start = first = 0
        for row in zip(*columns, strict=True):
            id, source, language, title, metadata, now, scores, of_rules, removed, group, duplicate_of = row[:11]
            step, edited_by, num_bytes, words_in, bytes_in, words, bytes_out = row[11:]
            names, text = rules[of_rules], str(texts[start : start + num_bytes], errors="surrogatepass")
            by_rule = dict(zip(names, measured[first : first + len(names)], strict=True))
            start, first = start + num_bytes, first + len(names)
            document = Document(id, text, source, language, title, metadata)
            reason = removed and Removal(*removed)
            candidate = Candidate(document, now, scores, by_rule, reason, group, duplicate_of, step=step)
            candidate.entered, candidate.edited_by = (words_in, bytes_in), edited_by
            candidate._size = words, bytes_out
            candidates.append(candidate)
        return [*map(Account.of_plain, accounts)], candidates
