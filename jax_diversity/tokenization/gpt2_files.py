"""GPT-2's pair of files: `vocab.json`, the tokens and their ids, and `merges.txt`, which tokens join to which.

Both are written in letters that stand for bytes (Radford et al., 2019, "Language Models are Unsupervised Multitask
Learners"). Vocabularies of Megatron and of older models come as such a pair. Every line is checked, since a list of
merges that is cut off or another vocabulary's would make other tokens than the model knows.
"""

from __future__ import annotations

import json
from pathlib import Path

from jax_diversity.foundation.errors import UserError

Merge = tuple[str, str]
_MOST_TOKENS_WITHOUT_MERGE = 100
_MOST_SHARE_WITHOUT_MERGE = 0.05


def read_text(path: Path, what: str) -> str:
    """A file's text.

    Args:
        path: the file.
        what: what messages call the file that is expected there.

    Raises:
        UserError: no such file, or no UTF-8 text in it.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"Expected {what} at {path}, found: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"Expected {what} at {path}, found a file that is no UTF-8 text.") from None


def byte_letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte: itself where it is printable, else one past 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)}


def read_vocabulary(path: Path) -> dict[str, int]:
    """The tokens of a `vocab.json` and their ids.

    Raises:
        UserError: no such file, no vocabulary in it, or one that has not a token for each byte: it could not write
            every text. So is one of words that end in `</w>`, which are not split as GPT-2's are.
    """
    try:
        vocabulary = json.loads(read_text(path, "a vocabulary"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is no vocabulary: no JSON ({error}); name a vocab.json.") from None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [None]
    if not all(type(token) is int and 0 <= token < 2**31 for token in ids) or len(set(ids)) < len(ids):
        raise UserError(
            f"Expected {path} to be a vocabulary, every token with an id of its own below 2^31, found other "
            "JSON; a tokenizer.json needs a name that does not end in vocab.json."
        )
    letters = byte_letters().values()
    num_lacking = sum(letter not in vocabulary for letter in letters)
    if num_lacking or any(f"{letter}</w>" in vocabulary for letter in letters):
        found = f"none for {num_lacking} of them" if num_lacking else "tokens that end in </w>"
        raise UserError(
            f"Expected a vocabulary of byte-level BPE in {path}, with a token for each of the 256 bytes, found "
            f"{found}; bring the tokenizer as a tokenizer.json."
        )
    return vocabulary


def read_merges(path: Path, vocabulary: dict[str, int]) -> list[Merge]:
    """The pairs of tokens of a `merges.txt`, the first to be joined first.

    Args:
        path: the file.
        vocabulary: the tokens that it joins.

    Raises:
        UserError: no such file; a line that is no pair of tokens which make a third; far fewer lines than tokens.
    """
    merges: list[Merge] = []
    for number, line in enumerate(read_text(path, "a list of merges").split("\n"), 1):
        if not line or line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocabulary.keys():
            raise UserError(
                f"{path}:{number}: expected two tokens of the vocabulary that join to a third, found "
                f"{line[:100]!r}; put the two files of one tokenizer side by side."
            )
        merges.append((parts[0], parts[1]))
    made = {first + second for first, second in merges}
    longer = sum(len(token) > 1 for token in vocabulary)
    without = longer - len(made)
    if without > max(_MOST_TOKENS_WITHOUT_MERGE, _MOST_SHARE_WITHOUT_MERGE * longer):
        raise UserError(
            f"Expected merges for the {longer} tokens of more than one byte in {path}, found none for {without} of "
            "them; the file is cut off, or another vocabulary's: fetch it anew."
        )
    return merges
