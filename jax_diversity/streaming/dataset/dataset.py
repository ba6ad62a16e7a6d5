"""A built dataset as one object: every artifact is an attribute, which is read at its first use.

A family is one kind of characteristics, such as topic clusters, lengths or sources. It divides the documents into
groups: a group is one value of the family, such as one cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.artifacts import Fault, fingerprint
from jax_diversity.foundation.checks import as_whole_number, check_one_of, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.figures.figure import Figure
from jax_diversity.foundation.finding import not_found
from jax_diversity.foundation.folders import as_path
from jax_diversity.foundation.object_store import is_address
from jax_diversity.foundation.stored import StoredStages
from jax_diversity.foundation.tables import Display, Displayed
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering import stored as ordered
from jax_diversity.ordering.measures import stored as measured
from jax_diversity.schema import Ordering, Segments
from jax_diversity.schema.prepared import DocumentArtifacts
from jax_diversity.sequences.characteristics import stored as characterized
from jax_diversity.sequences.characteristics.stored import LOSS, SEQUENCE_CLUSTER, TOKENS, CharacteristicArtifacts
from jax_diversity.sequences.clustering.stored import ClusterArtifacts
from jax_diversity.sequences.embedding.stored import EmbeddingArtifacts
from jax_diversity.sequences.packing.stored import PackingArtifacts, read_segments, stored_length
from jax_diversity.sequences.tokenization.stored import TokenArtifacts, open_token_files
from jax_diversity.streaming.dataset.orderings import (
    OrderingFile,
    Orderings,
    is_file_name,
    load_ordering,
    packed_beside,
)
from jax_diversity.streaming.dataset.remote import RemoteFolder, local_path
from jax_diversity.streaming.records.stored import RecordArtifacts, open_records

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from jax_diversity.counts import TokenCounts
    from jax_diversity.sequences.token_store.megatron import TokenStore
    from jax_diversity.sequences.tokenization.base import Tokenizer
    from jax_diversity.streaming.dataset.beginnings import Beginnings
    from jax_diversity.streaming.records.reading import RecordReader


_LENGTH_BINS = 100
_ROWS_COUNTED = 1 << 14


def open_dataset(path: str | Path, *, cache_folder: str | Path | None = None, memory_map: bool = True) -> Dataset:
    """Open a built dataset; this reads only its manifest.

    Before its first read, each file (except records) is compared with its SHA-256. This takes about one second per
    gigabyte. Records have their own checksums.

    Args:
        path: its folder, or its address on an object store that fsspec supports.
        cache_folder: the local folder for downloaded files, if the dataset is on an object store. A file is downloaded
            and checked when it is first needed. None means `~/.cache/jax-diversity`. A local dataset is not copied.
        memory_map: whether records are mapped into memory. If another program truncates a mapped file, the process
            ends. With False, records are read by system calls. This is slower, but a truncated file then raises an
            error instead of ending the process.

    Raises:
        UserError: the folder or object is absent or not a dataset, or the address's driver is not installed.

    Example:
        >>> dataset = open_dataset("out/")
        >>> dataset.orderings["balance"].indices[:64]   # the sequences of the first batch of 64
        >>> open_dataset("gs://bucket/out")
    """
    check_type("path", path, str | os.PathLike, "a dataset's folder or its address")
    if is_address(path):
        remote = RemoteFolder(str(path), cache_folder)
        return Dataset(remote.root, remote, memory_map=memory_map)
    root = as_path("a dataset's folder", local_path(path))
    if not (root / "manifest.json").is_file():
        raise UserError(f"Expected a dataset at {root}, {not_found(root)}")
    return Dataset(root, memory_map=memory_map)


class Dataset(
    DocumentArtifacts,
    TokenArtifacts,
    EmbeddingArtifacts,
    ClusterArtifacts,
    PackingArtifacts,
    CharacteristicArtifacts,
    RecordArtifacts,
    Displayed,
):
    """A dataset's documents, tokens, segments, characteristics, orderings and records.

    Attributes are read at their first use and kept. If an attribute's stage has not run yet, a `UserError` names the
    command that makes it. Get one with `open_dataset`.

    Attributes:
        root: its folder; for a dataset on an object store, the local folder for its downloaded files.
        remote: the object store of its files; None for a local dataset.
        stored: the counts and the files of the finished stages.
    """

    _open_tokens: tuple[tuple[int, int], TokenStore] | None = None

    def __init__(self, root: Path, remote: RemoteFolder | None = None, *, memory_map: bool = True) -> None:
        self.root, self.remote, self._memory_map = root, remote, memory_map
        self.stored = StoredStages(root, remote)

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that unpickles opens the dataset again, because memory maps and tables are not pickled.
        again = partial(open_dataset, memory_map=self._memory_map)
        if self.remote is None:
            return again, (self.root.absolute(),)
        return partial(again, cache_folder=self.remote.cache_folder), (self.remote.address,)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The content of `manifest.json`: format version, settings and finished stages."""
        return self.stored.manifest

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the dataset was last built with, as plain values."""
        return self.manifest["settings"]

    @property
    def address(self) -> str:
        """The folder of the dataset, or its address on an object store."""
        return str(self.root) if self.remote is None else self.remote.address

    @property
    def batch_size(self) -> int | None:
        """The global batch size that the dataset was built for; None if its settings contain no batch size."""
        size = self.settings.get("batch_size")
        return None if size is None else as_whole_number("batch_size in manifest.json", size, 1)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents of the sequences.

        A checkpoint stores this hash and can only be used with the same sequences. The hash does not depend on how the
        records are stored: number of files, order, file format.
        """
        identity = self.counts("write")["identity"]
        return fingerprint("sequences", identity, self.sequence_length, self.num_sequences)

    @property
    def feature_space(self) -> str:
        """Hash of the features of the documents: tokenizer, embedder, centroids, bounds of the length bins, families.

        A dataset and the datasets that were built from it with `features_from` have the same feature space: groups
        with the same name have the same meaning. Sequence length, packing and the weights of the families do not change
        the hash.
        """
        stages = ("tokenize", "embed", "cluster", "characterize")
        return fingerprint("features", [self.counts(stage)["features"] for stage in stages])

    def file_of_documents(self, number: int) -> Dataset:
        """One stored file of documents and its tokens, like a dataset of its own; only these files are checked."""
        return FilePart(self, number)

    def beginnings(self, max_characters: int) -> Beginnings:
        """The first characters of the documents."""
        from jax_diversity.streaming.dataset.beginnings import Beginnings

        return Beginnings(
            self.document_store,
            self.tokens,
            max_characters,
            has_text=self.counts("prepare")["has_text"],
            end_id=self.end_id,
            tokenizer=lambda: self.tokenizer,
        )

    def document_groups(self, family: str) -> Int32[np.ndarray, " document"]:
        """The number of each document's group in a clustering, or in `length`, `source` or `language`.

        Unlike the stored characteristics, they are known before the documents are packed.
        """
        from jax_diversity.sequences.characteristics.codes import column_codes, length_bins

        if family == "length":
            return length_bins(self.tokens.document_lengths, _LENGTH_BINS).group
        if family in ("source", "language"):
            return column_codes(self.document_store, family, None).group
        return self.assignments(family)

    @cached_property
    def validation_segments(self) -> Segments:
        """The packing of the validation sequences."""
        return read_segments(self.stored.of("validation"))

    def segments_between(self, part: Literal["train", "validation"], first: int, stop: int) -> Segments:
        """The packing of the sequences from `first` to `stop - 1` of a part, which get the numbers 0, 1 ...

        Only their rows are read: the whole table may be larger than the memory.
        """
        return read_segments(self.stored.of(part), first, stop)

    def tokens_between(self, first: int, last: int) -> tuple[TokenStore, int]:
        """The tokens of the documents from `first` to `last`, and the number of the first document in them.

        Only the files with these documents are checked and opened; they stay open until other files are needed.
        """
        # "right": an empty file begins at the same document as the next file, which has the document.
        starts = self._first_documents
        begin, end = (int(number) for number in np.searchsorted(starts[:-1], [first, last], "right"))
        tokens = self._open_tokens
        if tokens is None or tokens[0] != (begin, end):
            self._open_tokens = tokens = (begin, end), open_token_files(self.stored, begin - 1, end)
        return tokens[1], int(starts[begin - 1])

    @cached_property
    def validation(self) -> Dataset:
        """The validation sequences like a dataset of their own: its segments, characteristics and records are theirs.

        Raises:
            UserError: the dataset has no validation documents.
        """
        return ValidationPart(self)

    @cached_property
    def characteristics(self) -> Characteristics:
        """Token counts of the training sequences in the families that orderings balance."""
        counts = self.counts("characterize")
        return self._counts_in_memory(counts["families"]).with_weights(counts["weights"])

    def token_counts(self, families: Sequence[str] = ()) -> TokenCounts:
        """Token counts of the training sequences, which are read in blocks if there are many.

        Args:
            families: stored families, each with weight 1. By default, the families that orderings balance, with their
                weights.

        Raises:
            UserError: a family is unknown; the dataset has no characteristics, or they are damaged.
        """
        from jax_diversity.streaming.dataset.counts import DatasetCounts

        for family in families:
            check_one_of("every family", family, self.group_names)
        weights = dict.fromkeys(families, 1.0) if families else self.counts("characterize")["weights"]
        families = families or self.families
        return DatasetCounts(
            # As matrices have it: a family without groups has one column.
            {family: max(len(self.group_names[family]), 1) for family in families},
            {family: float(weights[family]) for family in families},
            stored_length(self.stored),
            self.batch_size,
            {family: self.group_names[family] for family in families},
            self,
        )

    @cached_property
    def num_token_entries(self) -> int:
        """Number of pairs of a training sequence and one of its token groups: the entries of the family `tokens`."""
        total = 0
        for first in range(0, self.num_sequences, _ROWS_COUNTED):
            segments = self.segments_between("train", first, min(first + _ROWS_COUNTED, self.num_sequences))
            total += int(np.maximum(np.diff(self.count_segments(segments).indptr), 1).sum())
        return total

    def _counts_in_memory(self, families: Sequence[str]) -> Characteristics:
        unnamed = Characteristics.from_counts(
            {family: self._counts_of(family) for family in families},
            sequence_length=stored_length(self.stored),
            documents=self.sequence_documents,
            copies=self.sequence_copies,
            turns=self.sequence_turns,
            batch_size=self.batch_size,
        )
        return replace(unnamed, names={family: self.group_names[family] for family in families})

    def count_segments(self, segments: Segments, family: str = TOKENS) -> csr_array:
        """Token counts of any packing of the dataset's documents in a stored family: int32 CSR (sequence, group).

        Raises:
            UserError: the family is unknown, or its files are absent or damaged.
        """
        import pyarrow.parquet as pq

        from jax_diversity.sequences.characteristics.codes import Codes
        from jax_diversity.sequences.characteristics.counts import count_loss, count_own_tokens, count_tokens
        from jax_diversity.sequences.characteristics.sequence_clusters import count_sequence_clusters, nearest_clusters

        if family == TOKENS:
            return count_own_tokens(segments, self.tokens, self.vocab_size, self.end_id)
        if family not in self.group_names:
            raise UserError(f"Expected a family among {', '.join(self.group_names)}, found {family!r}.")
        if family == SEQUENCE_CLUSTER:
            centres = characterized.CENTRES.read(self.stored)
            clusters = nearest_clusters(segments, self.count_segments, centres)
            return count_sequence_clusters(segments, clusters, len(centres))
        if family == LOSS:
            return count_loss(segments, self.tokens)
        groups = pq.read_table(characterized.CODES.path(self.stored), columns=[family])[family].to_numpy()
        return count_tokens(segments, Codes(groups.astype(np.int32), self.group_names[family]))

    def _counts_of(self, family: str) -> csr_array:
        from jax_diversity.sequences.characteristics.sequence_clusters import count_sequence_clusters

        if family == TOKENS:
            return self.count_segments(self.segments)
        if family == SEQUENCE_CLUSTER:
            clusters = characterized.SEQUENCE_CLUSTERS.read(self.stored)
            return count_sequence_clusters(self.segments, clusters, len(self.group_names[family]))
        return characterized.read_counts(self.stored, family)

    @cached_property
    def shown_groups(self) -> Mapping[str, tuple[str, ...]]:
        """`group_names` as reports show them: a cluster has its terms as its name instead of its number."""
        clusterings = self.counts("cluster").get("clusterings", {}) if "cluster" in self.stored.stages else {}
        return {
            family: tuple(cluster["name"] for cluster in self.clusters(family)) if family in clusterings else names
            for family, names in self.group_names.items()
        }

    @cached_property
    def orderings(self) -> Orderings:
        """The orderings by name; an ordering is read at its first use."""
        # Only names are read here: an ordering of a hundred million sequences is 800 MB, and most callers need one.
        return Orderings(ordered.ordering_paths(self.stored), self._read_ordering)

    def find_ordering(self, ordering: str | Path) -> Ordering:
        """Return the ordering with a name, or an ordering for this dataset from a .npy file.

        Raises:
            UserError: the ordering is unknown, damaged, of another length or of another dataset.
        """
        if not is_file_name(ordering):
            return self.orderings[str(ordering)]
        loaded = load_ordering(Path(ordering), self.num_sequences)
        self.check_origin(loaded, Path(ordering))
        return loaded

    def check_origin(self, ordering: Ordering, path: Path | None = None) -> None:
        """Refuse an ordering from the folder of another dataset; warn if it was made from other token counts.

        The number of sequences is not enough: datasets of one corpus with different packings often have the same
        number. A file in a dataset's `orderings` folder belongs to this dataset's sequences. Other token counts are
        allowed: an ordering that was made with your own weights or matrices has other counts and is valid.

        Raises:
            UserError: the file is in the folder of a dataset with other sequences.
        """
        packed_from = None if path is None else packed_beside(path)
        if packed_from is not None and packed_from != (packing := self.stored.stage("pack")["fingerprint"]):
            raise UserError(
                f"Expected an ordering of this dataset's sequences (packing {packing[:16]}), found {path} of a "
                f"dataset with another packing ({packed_from[:16]}); make one with `jax-diversity order`. To use "
                "it anyway, load it with jax_diversity.Ordering.load and pass the Ordering object instead of the path."
            )
        made_of = ordering.info.get("characteristics")  # absent from a user's own ordering
        characteristics = ordered.counted_characteristics(self.stored)
        # Only if they are in memory: reading them just for this check would be slow.
        if made_of is not None and (loaded := self.__dict__.get("characteristics")) is not None:
            characteristics.add(loaded.fingerprint)
        if isinstance(made_of, str) and characteristics and made_of not in characteristics:
            warn(
                f"This ordering was made from other token counts ({made_of[:16]}) than the dataset's orderings "
                f"({', '.join(sorted(mark[:16] for mark in characteristics))}). Ignore this warning if you used your "
                "own weights or counts; to avoid it, pass `ordering.indices`. If not, the ordering may belong to "
                "another dataset.",
            )

    @cached_property
    def records(self) -> RecordReader:
        """The training records, in the order in which they are stored (see `layout_ordering`)."""
        return self._open_records(self.stored)

    @cached_property
    def validation_records(self) -> RecordReader:
        """The validation records; there may be none."""
        return self._open_records(self.stored.of("validation"))

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare size and SHA-256 of every file with the manifest; `advance` gets the number of bytes read."""
        return self.stored.verify(advance)

    def plot(
        self,
        figure: str = "windows",
        *,
        ordering: str | None = None,
        family: str | None = None,
        window: int | None = None,
    ) -> Figure:
        """Return a figure of the dataset's report, which a notebook shows.

        Args:
            figure: the name of the figure, such as `windows`, `profile`, `prefix`, `heat`, `loss` or `topics`; an
                unknown name raises an error that lists all.
            ordering: the ordering that `heat` shows; by default the ordering that the report judges.
            family: the family; by default the one with which the report begins.
            window: the window size of `windows`; by default the batch size, or the measured size nearest to 256.

        Raises:
            UserError: the dataset has no report, or the report does not have this figure, ordering, family or window.

        Example:
            >>> open_dataset("out").plot("heat", family="source")
        """
        values = json.loads(self.stored.file("report", "report.json").read_text(encoding="utf-8"))
        main = values["summary"]
        figure_choices = {
            "family": main.get("main_family") if family is None else family,
            "focus": main["main_ordering"] if ordering is None else ordering,
            "size": main["main_window"] if window is None else window,
        }
        choices = {name: value for name, value in figure_choices.items() if value is not None}
        return Figure(figure, values, {"wide": False, **choices})

    def __repr__(self) -> str:
        lines = (f"  {name:<13}{text}" for name, text in self._lines())
        return "\n".join([f"Dataset({self.address!r})", *lines])

    def _display(self) -> Display:
        return Display(f"Dataset {self.address}", [("", [["", ""], *map(list, self._lines())])])

    def _lines(self) -> Iterator[tuple[str, str]]:
        """What the dataset holds, in the order of the stages."""
        shown = {"prepare": "documents", "tokenize": "tokens", "pack": "sequences", "characterize": "groups"}
        hidden = ("embed", "cluster", "order_validation", "write", "report")
        other_stages = {name: name for name in self.stored.stages if "/" not in name and name not in (*shown, *hidden)}
        for stage, name in {**shown, **other_stages}.items():
            if stage in self.stored.stages:
                yield name, self.stored.stages[stage]["summary"]
        is_evaluated = "pack" in self.stored.stages and not self.num_sequences
        without = "none, because all documents are held out" if is_evaluated else "none made yet"
        yield "orderings", ", ".join(self.orderings) or without
        if self.batch_size is not None:
            yield "batch size", counted(self.batch_size, "sequence")
        if {"write", "pack"} <= self.stored.stages.keys():
            yield "fingerprint", self.fingerprint[:16]

    def counts(self, stage: str) -> Mapping[str, Any]:
        """The counts of a finished stage."""
        return self.stored.counts(stage)

    def open_ordering(self, name: str) -> OrderingFile:
        """Open an ordering. A large one is fetched and checked in pieces, each when it is first read.

        Raises:
            UserError: the ordering is unknown, or its file is absent or damaged.
        """
        self.orderings.check(name)
        file = ordered.ordering_path(self.stored, name).relative_to(self.root).as_posix()
        stage = self.stored.stage(f"order/{name}")
        pieces = stage["files"].get(file, {}).get("pieces", ())
        if self.remote is not None and pieces:
            path, fetch = self.remote.pieces_path(file), partial(self.remote.fetch_piece, file)
            return OrderingFile(path, stage["counts"]["fingerprint"], self.num_sequences, pieces, fetch)
        path, description = ordered.ordering_file(self.stored, name)
        return OrderingFile(path.absolute(), str(description), self.num_sequences, pieces)

    def _read_ordering(self, name: str) -> Ordering:
        path, expected = ordered.ordering_file(self.stored, name)
        is_measured = measured.fetch_figures(self.stored, name)  # `load_ordering` reads this file, too
        ordering = load_ordering(path, expected=expected)
        if is_measured:  # checked after the .npy, because the error about a replaced ordering is clearer
            measured.figures_file(self.stored, name)
        return ordering

    def _open_records(self, stored: StoredStages) -> RecordReader:
        layout = type(self).layout_ordering.read(stored)
        path = None if layout is None else ordered.ordering_path(stored, layout)
        return open_records(stored, path, memory_map=self._memory_map)


class FilePart(Dataset):
    """One file of a dataset's documents, and the file of its tokens."""

    def __init__(self, whole: Dataset, number: int) -> None:
        self.root, self.remote, self._memory_map = whole.root, whole.remote, whole._memory_map
        self.stored, self._whole = whole.stored.of(number_of_file=number), whole

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._whole, self.stored.number_of_file)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the whole dataset."""
        return self._whole.tokenizer


class ValidationPart(Dataset):
    """The validation sequences of a dataset. Sequences, segments, characteristics and records are theirs.

    Documents, tokens and groups are those of the whole dataset, so groups have the same meaning. It has one
    order, which the build made: a balanced one, so that its first sequences are a sample of all.

    Args:
        whole: the dataset.

    Raises:
        UserError: the dataset has no validation sequences.
    """

    def __init__(self, whole: Dataset) -> None:
        self.root, self.remote, self._memory_map = whole.root, whole.remote, whole._memory_map
        self.stored, self._whole = whole.stored.of("validation"), whole
        if not self.num_sequences:
            reason = whole.counts("pack").get("no_validation")
            raise UserError(
                f"Expected validation documents in {whole.address}, found none{f': {reason}' if reason else ''}; build "
                f"the dataset with {'a larger ' if reason else ''}packing.validation_fraction"
                f"{'' if reason else ' above 0'}."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._whole,)

    @property
    def whole(self) -> Dataset:
        """The dataset."""
        return self._whole

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents of the sequences."""
        return fingerprint("validation", self._whole.fingerprint)

    @cached_property
    def order(self) -> Ordering | OrderingFile:
        """The balanced order of the sequences; the order of the packing if the build did not make it."""
        file = ordered.validation_order_file(self.stored)
        if file is None:
            return Ordering(np.arange(self.num_sequences), {"method": "validation"})
        path, mark = file
        return OrderingFile(path.absolute(), str(mark), self.num_sequences)

    @cached_property
    def orderings(self) -> Orderings:
        """No orderings by name: those of the dataset are of its training sequences."""
        return Orderings({}, self._read_ordering)

    @cached_property
    def sequence_documents(self) -> Int64[np.ndarray, " sequence"]:
        """For every sequence, the document that has at least 99 % of its tokens; -1 if there is no such document."""
        from jax_diversity.sequences.characteristics.counts import sequence_documents

        return sequence_documents(self.segments)

    @cached_property
    def sequence_copies(self) -> Int64[np.ndarray, "sequence member"]:
        """For every sequence, the groups of copies that it has parts of, then -1."""
        from jax_diversity.sequences.characteristics.counts import sequence_copies

        return sequence_copies(self.segments, self.duplicate_groups)

    def token_counts(self, families: Sequence[str] = ()) -> TokenCounts:
        """Token counts of the validation sequences, in memory."""
        return self._counts_in_memory(families) if families else self.characteristics

    def _counts_of(self, family: str) -> csr_array:
        return self.count_segments(self.segments, family)

    def check_origin(self, ordering: Ordering, path: Path | None = None) -> None:
        """Accept every ordering: no ordering of validation sequences is stored with a dataset."""

    def __repr__(self) -> str:
        return f"ValidationPart({self.address!r}, {counted(self.num_sequences, 'sequence')})"
