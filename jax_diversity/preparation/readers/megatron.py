"""Megatron datasets as a corpus: the documents of `.idx` and `.bin` files."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.foundation.folders import source_of_file
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import InputFile, local_path
from jax_diversity.preparation.readers.records import Found, Place, Problem, converted, token_ids
from jax_diversity.schema.documents import TokenDocument
from jax_diversity.sequences.token_store.megatron import TokenFile


def read_megatron(file: InputFile, advance: Advance) -> Found:
    """Read the documents of an `.idx` file and its `.bin` file. For a `.bin` file, which is also listed, yield nothing.

    The source is the base name of the prefix, or its folder if the name only numbers the file (`00000_tokens`). The id
    is the prefix and a number: `web_text_document:17`.
    """
    path = local_path(file)
    if path.suffix == ".bin":
        advance(file.size())
        return
    prefix = path.with_suffix("")
    store = TokenFile(prefix)
    yield from token_documents(file, store.tokens, store.begins, store.ends)
    advance(file.size())


def token_documents(
    file: InputFile,
    tokens: Integer[np.ndarray, " token"],
    begins: Int64[np.ndarray, " document"],
    ends: Int64[np.ndarray, " document"],
    start_id: int | None = None,
) -> Found:
    """Yield the documents of a token file, which begin and end at these tokens; a `start_id` is moved to the end."""
    # Places and ids use the prefix, as Megatron does, not one of the two files.
    prefix = PurePosixPath(file.name).with_suffix("").name
    folder = file.name.removesuffix(PurePosixPath(file.name).name)
    address = str(Path(file.address).with_suffix(""))
    named = dataclasses.replace(file, address=address, name=folder + prefix)
    for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        place = Place(named, index + 1)
        yield place, converted(_document, tokens[begin:end], place, start_id)


def _document(tokens: Integer[np.ndarray, " token"], place: Place, start_id: int | None) -> TokenDocument | Problem:
    try:
        ids = token_ids(tokens)
    except ValueError as error:
        return Problem("num_broken_records", str(error))
    if start_id is not None and len(ids) and ids[0] == start_id:
        ids = np.roll(ids, -1)
    name = "" if place.file.is_split else PurePosixPath(place.file.name).name
    source = source_of_file(name, place.file.folder)
    return TokenDocument(id=place.name, text="", source=source, tokens=ids)
