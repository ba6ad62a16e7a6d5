"""The artifacts of the stage `characterize`: a matrix of counts for each family, group names, and documents' tables.

A *family* is a kind of characteristics, such as topic clusters, document lengths or sources. A *group* is one value of
a family, such as one cluster.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Int64, Integer

from jax_diversity.foundation.artifacts import read_array, read_json
from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from jax_diversity.foundation.stored import StoredStages

TOKENS = "tokens"
"""The family whose groups are token ids. It is counted when it is needed."""
SEQUENCE_CLUSTER = "sequence_cluster"
"""The family whose groups are clusters of sequences with similar tokens."""
SEQUENCE_FAMILIES = (TOKENS, SEQUENCE_CLUSTER)
"""The families that describe the tokens of a sequence. All other families describe documents."""
CHARACTERISTICS = "characteristics"
GROUPS = "groups.json"
TOTALS = "totals.json"
BINS = "bins.json"
DOCUMENTS = "documents.parquet"
CODES = "codes.parquet"
SEQUENCE_DOCUMENTS = "sequence_documents.npy"
SEQUENCE_COPIES = "sequence_copies.npy"
SEQUENCE_TURNS = "sequence_turns.npy"
SEQUENCE_CLUSTERS = "sequence_clusters.npy"
CENTRES = "sequence_cluster_centres.npy"


def counts_name(family: str) -> str:
    """Return the name of the file with the sequences' token counts in a family's groups."""
    return f"{family}.npz"


def read_counts(stored: StoredStages, family: str) -> csr_array:
    """Return the sequences' token counts in a family's groups; an absent or damaged file is a `UserError`."""
    from scipy.sparse import load_npz

    path = _file(stored, counts_name(family))
    try:
        return load_npz(path)
    except (OSError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise UserError(f"{path} does not contain counts ({error}); run `jax-diversity characterize` again.") from None


def read_sequence_array(stored: StoredStages, name: str) -> Integer[np.ndarray, "sequence ..."]:
    """Return an array with one row per sequence, such as `SEQUENCE_DOCUMENTS` or `SEQUENCE_CLUSTERS`."""
    return read_array(_file(stored, name), "characterize")


def centres_file(stored: StoredStages) -> Path:
    """Return the path of the file with the centres of the family `sequence_cluster`."""
    return _file(stored, CENTRES)


def read_centres(stored: StoredStages) -> Float32[np.ndarray, "cluster group"]:
    """Return the centres of the family `sequence_cluster`, as `fit_sequence_clusters` makes them."""
    return read_array(centres_file(stored), "characterize")


def read_groups(stored: StoredStages) -> dict[str, tuple[str, ...]]:
    """Return family -> the names of its groups, for every stored family."""
    return {family: tuple(names) for family, names in _read_json(stored, GROUPS).items()}


def read_totals(stored: StoredStages) -> dict[str, Int64[np.ndarray, " group"]]:
    """Return family -> the number of tokens in each of its groups, over all training sequences."""
    return {family: np.array(totals, np.int64) for family, totals in _read_json(stored, TOTALS).items()}


def read_bins(stored: StoredStages) -> dict[str, Any]:
    """Return family -> its bins, for families of numbers, as JSON values."""
    return _read_json(stored, BINS)


def read_families(stored: StoredStages, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the families that orderings balance; a family that is not among `known` is a `UserError`."""
    names = stored.counts("characterize")["families"]
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    if unknown:  # a manifest that was not written by a build
        raise UserError(
            f"Expected families among {', '.join(known)} in {stored.root / 'manifest.json'}, found "
            f"{unknown[0]!r}; restore the file or run `jax-diversity characterize` again."
        )
    return tuple(names)


def documents_file(stored: StoredStages) -> Path:
    """Return the path of the table that describes each document in one row: id, tokens, source, language ..."""
    return _file(stored, DOCUMENTS)


def codes_file(stored: StoredStages) -> Path:
    """Return the path of the table with every document's group in every family."""
    return _file(stored, CODES)


def _read_json(stored: StoredStages, name: str) -> dict[str, Any]:
    return read_json(_file(stored, name), "characterize")


def _file(stored: StoredStages, name: str) -> Path:
    return stored.file("characterize", f"{CHARACTERISTICS}/{name}")
