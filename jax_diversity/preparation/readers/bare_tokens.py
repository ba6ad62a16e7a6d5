"""Files of bare token ids as a corpus: `.ds` of datatrove, `.npy` of dolma, `.bin` of nanoGPT and llm.c."""

from __future__ import annotations

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import InputFile, local_path
from jax_diversity.preparation.readers.megatron import token_documents
from jax_diversity.preparation.readers.records import Found
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.token_store.bare import find_documents
from jax_diversity.sequences.token_store.megatron import run_starts

_ENDINGS = (".ds", ".npy", ".bin")
_BESIDE = (".ds.index", ".ds.metadata", ".csv.gz")


def is_bare(file: InputFile) -> bool:
    """Whether the file has the name of a file of bare token ids, or of the index beside one."""
    if file.name.endswith(_ENDINGS) or file.name.endswith(_BESIDE[:2]):
        return True
    return file.name.endswith(_BESIDE) and local_path(file).with_suffix("").with_suffix(".npy").is_file()


def read_bare_tokens(file: InputFile, config: CorpusConfig, advance: Advance) -> Found:
    """Read the documents of a file of token ids. For the index beside one, yield nothing.

    The source and the ids are those of a Megatron dataset of the same name (`read_megatron`). A delimiter that begins
    documents is moved to their ends, so that equal texts are equal documents in the files of all programs.
    """
    path = local_path(file)
    if not file.name.endswith(_ENDINGS):
        advance(file.size())
        return
    if path.suffix == ".bin" and path.with_suffix(".idx").is_file():
        raise UserError(f"Expected token ids without an index, found {path} with its .idx; set corpus.format=megatron.")
    documents = find_documents(path, dtype=config.dtype, end_id=config.end_id, start_id=config.start_id)
    bounds = run_starts(documents.lengths)
    yield from token_documents(file, documents.tokens, bounds[:-1], bounds[1:], documents.start_id)
    advance(file.size())
