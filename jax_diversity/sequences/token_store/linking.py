"""Read the tokens of other programs where they are.

The token files of datatrove, dolma, OLMo, nanoGPT, llm.c and modded-nanogpt contain what a `.bin` contains: token ids,
end to end, little-endian. Only the index differs. So we write an `.idx`, and the `.bin` is a symbolic link to the file.
The offsets in the `.idx` skip a header.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder
from jax_diversity.sequences.token_store.bare import find_documents
from jax_diversity.sequences.token_store.megatron import TokenFile, write_index


def link_tokens(
    tokens: str | Path,
    prefix: str | Path,
    *,
    lengths: Any = None,
    dtype: np.typing.DTypeLike | None = None,
    end_id: int | None = None,
    start_id: int | None = None,
) -> TokenFile:
    """Make `prefix.idx` for the tokens of another program, and `prefix.bin`, a link to them; no token is copied.

    Args:
        tokens: a file of token ids, such as `00000_unshuffled.ds`, `part-0-00000.npy` or `train.bin`. A header of llm.c
            is skipped.
        prefix: path of the new files, without `.bin` and `.idx`. Files that a call with these tokens made are replaced.
        lengths: the number of tokens of every document. None reads the index beside a `.ds` or `.npy` file, unless a
            delimiter is given.
        dtype: the type of the stored ids. None means the type in the metadata of a `.ds` file or in the header; else it
            is recognised from the size or from the tokens. uint32 is stored as int32 in the index, because the format
            has no uint32: ids must be below 2^31.
        end_id: the token that ends every document. Tokens after the last one are a document without an end.
        start_id: the token that begins every document. Tokens before the first one, as in a shard that begins inside a
            document, are a document of their own. With an end_id too, documents have both. None means no such token,
            or, if the file has a header and no delimiter is given, GPT-2's 50256 or Llama 3's 128000.

    Returns:
        The tokens as documents, checked.

    Raises:
        UserError: a file is absent or damaged; lengths or a type that do not fit the size of the file; a delimiter that
            does not occur; an id of 2^31 or more; a type that Megatron does not have; a type that cannot be recognised;
            a `.npy` file with NumPy's header; a prefix that other files have.

    Example:
        >>> link_tokens("web/00000_unshuffled.ds", "linked/web/00000_unshuffled").num_documents
        357
    """
    prefix = Path(prefix)
    if prefix.suffix in (".idx", ".bin"):
        raise UserError(f"Expected a prefix without .idx and .bin, found {prefix}; both files get it.")
    documents = find_documents(tokens, lengths=lengths, dtype=dtype, end_id=end_id, start_id=start_id)
    make_folder(prefix.parent)
    with atomic_path(prefix.with_name(f"{prefix.name}.idx")) as path:
        write_index(path, documents.lengths, documents.dtype, documents.first_byte)
        _link(documents.path, prefix.with_name(f"{prefix.name}.bin"))
    return TokenFile(prefix)


def _link(source: Path, link: Path) -> None:
    target = os.path.relpath(source.resolve(), link.parent.resolve())  # both may move together
    if link.is_symlink() and os.readlink(link) == target:
        return
    try:
        link.symlink_to(target)
    except FileExistsError:
        raise UserError(f"Expected no other tokens at {link}, found a file; choose another prefix.") from None
    except OSError as error:
        raise UserError(f"Expected a folder that can have links, found {link}: {error.strerror}.") from None
