"""Megatron datasets as a corpus: the documents of `.idx` and `.bin` files."""

from __future__ import annotations

import dataclasses
from pathlib import PurePosixPath

from jax_diversity.corpus.readers.files import InputFile, local_path
from jax_diversity.corpus.readers.records import Found, Place, Problem, TokenDocument, converted, token_ids
from jax_diversity.foundation.folders import source_of_file
from jax_diversity.foundation.progress import Advance
from jax_diversity.token_store.megatron import TokenFile


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
    # Places and ids use the prefix, as Megatron does, not one of the two files.
    named = dataclasses.replace(file, address=str(prefix), name=file.name.removesuffix(".idx"))
    for index in range(store.num_documents):
        place = Place(named, index + 1)
        yield place, converted(_document, store, index, place)
    advance(file.size())


def _document(store: TokenFile, index: int, place: Place) -> TokenDocument | Problem:
    try:
        tokens = token_ids(store.document(index))
    except ValueError as error:
        return Problem("num_broken_records", str(error))
    source = source_of_file(PurePosixPath(place.file.name).name, place.file.folder)
    return TokenDocument(id=place.name, text="", source=source, tokens=tokens)
