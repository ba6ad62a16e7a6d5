"""A built dataset as one value: every artifact an attribute, read when first asked for."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Int32, Int64
from scipy.sparse import csr_array

from jax_diversity.dataset.orderings import Orderings, is_file_name, load_ordering, packed_beside
from jax_diversity.dataset.remote import RemoteFolder, is_address, local_path
from jax_diversity.foundation.artifacts import Fault, OutputFolder, fingerprint, is_as_written, read_array, read_json
from jax_diversity.foundation.checks import instance_of, one_of, whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Characteristics, Ordering, Segments

if TYPE_CHECKING:
    import pyarrow.dataset

    from jax_diversity.corpus.store import DocumentStore
    from jax_diversity.dataset.beginnings import Beginnings
    from jax_diversity.records.reading import RecordReader
    from jax_diversity.token_store.megatron import TokenStore
    from jax_diversity.tokenization.base import Tokenizer


def open_dataset(path: str | Path, *, cache_folder: str | Path | None = None, memory_map: bool = True) -> Dataset:
    """Open a built dataset; nothing but its manifest is read yet.

    A process compares every other file with its SHA-256 before it first reads it (about a second a gigabyte), but for
    records, which have checksums of their own.

    Args:
        path: its folder, or its address on an object store, any that fsspec knows.
        cache_folder: where files of a dataset on an object store are kept, each fetched when it is first needed
            and checked; None takes `~/.cache/jax-diversity`. Local datasets are read where they lie.
        memory_map: how records are read. A file that is mapped must not be cut short by another program while it is
            read: that ends the process. False reads by system calls: slower, but then this is an error.

    Raises:
        UserError: no such folder or object, one that holds no dataset, or an address whose driver is not installed.

    Example:
        >>> dataset = open_dataset("out/")
        >>> dataset.orderings["balance"].indices[:64]   # the sequences of the first batch of 64
        >>> open_dataset("gs://bucket/out")
    """
    instance_of("path", path, str | os.PathLike, "a dataset's folder or its address")
    if is_address(path):
        remote = RemoteFolder(str(path), cache_folder)
        return Dataset(remote.root, remote, memory_map=memory_map)
    root = local_path(path)
    if not (root / "manifest.json").is_file():
        found = "no such folder" if not root.exists() else "no manifest.json in it"
        raise UserError(f"Expected a dataset at {root}, found {found}; make one with `jax-diversity build`.")
    return Dataset(root, memory_map=memory_map)


class Dataset:
    """A dataset's documents, tokens, segments, characteristics, orderings and records.

    Attributes are read when first used and kept; one whose stage has not run yet raises a `UserError` that names
    the verb that makes it. Get one with `open_dataset`; `remote` is where its folder's files are fetched from.
    """

    def __init__(self, root: Path, remote: RemoteFolder | None = None, *, memory_map: bool = True) -> None:
        self.root, self.remote, self._memory_map = root, remote, memory_map
        self._folder = OutputFolder(root)

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that unpickles opens the dataset itself: memory maps and tables are not pickled.
        again = partial(open_dataset, memory_map=self._memory_map)
        if self.remote is None:
            return again, (self.root.absolute(),)
        return partial(again, cache_folder=self.remote.cache_folder), (self.remote.address,)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What `manifest.json` says: format version and finished stages."""
        return self._folder.manifest

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that the dataset was last built with, as plain values."""
        return self.manifest["settings"]

    @property
    def address(self) -> str:
        """Where it lies: its folder, or its address on an object store."""
        return str(self.root) if self.remote is None else self.remote.address

    @property
    def batch_size(self) -> int | None:
        """The global batch size that it was built for; None where its settings name none."""
        return self.settings.get("batch_size")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the sequences' contents: a checkpoint belongs to exactly these.

        The records' number of files, order and form are not part of it.
        """
        identity = self.counts("write")["identity"]
        return fingerprint("sequences", identity, self.sequence_length, self.num_sequences)

    @property
    def feature_space(self) -> str:
        """Hash of what describes documents: tokenizer, embedder, centroids, bounds of bins, families.

        Datasets of one feature space have groups of the same meaning by the same names: one, and those that were built
        with `features_from` it. Sequence length, packing and the families' weights are no part of it.
        """
        stages = ("tokenize", "embed", "cluster", "characterize")
        return fingerprint("features", [self.counts(stage)["features"] for stage in stages])

    @property
    def sequence_length(self) -> int:
        """L, tokens of a sequence that a model sees."""
        return self._number("pack", "sequence_length")

    @property
    def overlap(self) -> int:
        """Tokens that a stored sequence shares with the next, and that are targets only; 0 but for `megatron`."""
        return self._number("pack", "overlap")

    @property
    def num_sequences(self) -> int:
        """Number of training sequences."""
        return self._number("pack", "num_sequences")

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the end token's included."""
        return self._number("tokenize", "vocab_size")

    @property
    def end_id(self) -> int:
        """The token that ends a document."""
        return self._number("tokenize", "end_id")

    @property
    def marks_learned(self) -> bool:
        """Whether some tokens are learnt and others not, where it is asked for: whether it was made of chats."""
        return "num_learned_tokens" in self.counts("tokenize")

    @cached_property
    def documents(self) -> pyarrow.dataset.Dataset:
        """The documents in their stored order; columns are read when a table of them is asked for.

        Example:
            >>> dataset.documents.to_table(columns=["id", "source"])
        """
        import pyarrow.dataset

        paths = self._files("prepare", "documents/", ".parquet")
        return pyarrow.dataset.dataset([str(path) for path in paths], format="parquet")

    @cached_property
    def document_store(self) -> DocumentStore:
        """The documents' files, to be read in small batches or by columns."""
        from jax_diversity.corpus.store import DocumentStore

        return DocumentStore(tuple(self._files("prepare", "documents/documents-", ".parquet")))

    @cached_property
    def duplicate_groups(self) -> Int64[np.ndarray, " document"]:
        """Equal numbers for documents of one text, 0 .. number of different texts - 1."""
        return read_array(self.file("prepare", "documents/duplicate_groups.npy"), "prepare", mmap=True)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """What made the tokens; None where the corpus came as tokens without it."""
        from jax_diversity.tokenization.factory import load_saved

        # Its files are fetched by looking for them; `load_saved` takes the folder.
        return load_saved(self.root / "tokens") if self._files("tokenize", "tokens/tokenizer.", "") else None

    @cached_property
    def tokens(self) -> TokenStore:
        """The documents' tokens, memory-mapped."""
        from jax_diversity.token_store.megatron import LEARNED, TokenStore

        # All files of a name are fetched and checked; the store is given their common names.
        self._files("tokenize", "tokens/", ".bin")
        self._files("tokenize", "tokens/", LEARNED)
        return TokenStore([path.with_suffix("") for path in self._files("tokenize", "tokens/", ".idx")])

    def beginnings(self, max_characters: int) -> Beginnings:
        """The documents' first characters."""
        from jax_diversity.dataset.beginnings import Beginnings

        return Beginnings(
            self.document_store,
            self.tokens,
            max_characters,
            has_text=self.counts("prepare")["has_text"],
            end_id=self.end_id,
            tokenizer=lambda: self.tokenizer,
        )

    @cached_property
    def embeddings(self) -> Float32[np.ndarray, "document feature"]:
        """The documents' vectors, memory-mapped."""
        path = self.file("embed", "embeddings/embeddings.npy")
        vectors = read_array(path, "embed", mmap=True)
        num_documents = self.counts("prepare")["num_documents"]
        if vectors.ndim != 2 or len(vectors) != num_documents or vectors.dtype != np.float32:
            raise UserError(
                f"{path} is damaged: expected a float32 vector of each of {num_documents} documents, found "
                f"{vectors.dtype} of the shape {vectors.shape}; run `jax-diversity embed` again."
            )
        return vectors

    def assignments(self, family: str = "cluster") -> Int32[np.ndarray, " document"]:
        """Every document's cluster of one clustering, `cluster` or such as `cluster_100`.

        Raises:
            UserError: no such clustering, or a damaged file.
        """
        from jax_diversity.clustering.stored import ending, read_assignments

        clusterings = self.counts("cluster")["clusterings"]
        one_of("family", family, clusterings)
        self.file("cluster", f"clusters/assignments{ending(family)}.npy")
        return read_assignments(self.root / "clusters", family, clusterings[family])

    def clusters(self, family: str = "cluster") -> list[dict[str, Any]]:
        """What is known of every cluster of one clustering: name, number of documents, terms, titles ...

        Raises:
            UserError: no such clustering, or a damaged file.
        """
        from jax_diversity.clustering.stored import ending, read_clusters

        one_of("family", family, self.counts("cluster")["clusterings"])
        self.file("cluster", f"clusters/clusters{ending(family)}.json")
        return read_clusters(self.root / "clusters", family)

    @cached_property
    def segments(self) -> Segments:
        """The packing of the training sequences."""
        return self._read_segments("segments", self.num_sequences)

    @cached_property
    def validation_segments(self) -> Segments:
        """The packing of the validation sequences."""
        return self._read_segments("validation", self._number("pack", "num_validation_sequences"))

    @cached_property
    def appearances(self) -> Int64[np.ndarray, " document"] | None:
        """How often every document was packed for training, by its weight; None where nothing was weighed."""
        if "num_appearances" not in self.counts("pack"):
            return None
        return read_array(self.file("pack", "sequences/appearances.npy"), "pack")

    @cached_property
    def characteristics(self) -> Characteristics:
        """Token counts of the training sequences in the families that orderings balance."""
        counts = self.counts("characterize")
        return self.count_families(counts["families"]).with_weights(counts["weights"])

    def count_families(self, families: Sequence[str]) -> Characteristics:
        """Token counts of the training sequences in any stored families, balanced or not, each of weight 1.

        Raises:
            UserError: no family, or one whose file is absent or damaged.
        """
        return Characteristics.from_counts(
            {family: self._read_counts(family) for family in families},
            sequence_length=self.sequence_length + self.overlap,
            documents=self.sequence_documents,
            copies=self.sequence_copies,
            turns=self.sequence_turns,
        )

    @cached_property
    def sequence_documents(self) -> Int64[np.ndarray, " sequence"]:
        """The document of every training sequence; -1 where none holds 99 % of its tokens."""
        return read_array(self.file("characterize", "characteristics/sequence_documents.npy"), "characterize")

    @cached_property
    def sequence_copies(self) -> Int64[np.ndarray, "sequence member"]:
        """The groups of documents with equal texts of which every training sequence holds a part; -1 for none."""
        return read_array(self.file("characterize", "characteristics/sequence_copies.npy"), "characterize")

    @cached_property
    def sequence_turns(self) -> Int64[np.ndarray, " sequence"] | None:
        """The turns of the sequences that one document fills and that come again; None where nothing was weighed."""
        if self.appearances is None:
            return None
        return read_array(self.file("characterize", "characteristics/sequence_turns.npy"), "characterize")

    @property
    def families(self) -> tuple[str, ...]:
        """The families that orderings balance."""
        names = self.counts("characterize")["families"]
        unknown = [name for name in names if not isinstance(name, str) or name not in self.group_names]
        if unknown:  # a manifest that was not written by a build
            raise UserError(
                f"Expected families among {', '.join(self.group_names)} in {self.root / 'manifest.json'}, found "
                f"{unknown[0]!r}; restore the file or run `jax-diversity characterize` again."
            )
        return tuple(names)

    @cached_property
    def group_names(self) -> Mapping[str, tuple[str, ...]]:
        """Every stored family's groups by name."""
        return {family: tuple(names) for family, names in self._read_json("groups").items()}

    @cached_property
    def group_tokens(self) -> Mapping[str, Int64[np.ndarray, " group"]]:
        """Every stored family's groups: their tokens in the training sequences."""
        return {family: np.array(totals, np.int64) for family, totals in self._read_json("totals").items()}

    @cached_property
    def orderings(self) -> Orderings:
        """The orderings by name, each read when asked for."""
        names = [stage.removeprefix("order/") for stage in self._folder.stages if stage.startswith("order/")]
        # Names only: an ordering of a hundred million sequences is 800 MB, and most callers want one.
        paths = {name: self.root / "orderings" / f"{name}.npy" for name in sorted(names)}
        return Orderings(paths, self._read_ordering)

    def find_ordering(self, ordering: str | Path) -> Ordering:
        """One of the orderings by name, or one for this dataset from a .npy file.

        Raises:
            UserError: unknown, broken, of another number of sequences, or one of another dataset's.
        """
        if not is_file_name(ordering):
            return self.orderings[str(ordering)]
        found = load_ordering(Path(ordering), self.num_sequences)
        self.check_origin(found, Path(ordering))
        return found

    def check_origin(self, ordering: Ordering, path: Path | None = None) -> None:
        """Refuse an ordering's file that lies in another dataset; warn of one made of other token counts.

        The number of sequences proves little: datasets of one corpus packed by other rules often agree in it. A file in
        a dataset's `orderings` folder belongs to the sequences that this dataset was packed into. Other token counts
        are no proof: an ordering by weights or matrices of the user's own has others than the dataset's and is valid.

        Raises:
            UserError: the file lies in a dataset whose sequences are others.
        """
        stages = self._folder.stages
        theirs = None if path is None else packed_beside(path)
        if theirs is not None and theirs != (ours := stages["pack"]["fingerprint"]):
            raise UserError(
                f"Expected an ordering of this dataset's sequences (packing {ours[:16]}), found {path} of a "
                f"dataset packed otherwise ({theirs[:16]}); make one with `jax-diversity order`. To use it all the "
                "same, read it with jax_diversity.Ordering.load and give the ordering itself."
            )
        made_of = ordering.info.get("characteristics")  # none in an ordering of one's own
        own = {entry["counts"]["characteristics"] for stage, entry in stages.items() if stage.startswith("order/")}
        # Only if they were read already: for this check alone they would be a large read.
        if made_of is not None and (loaded := self.__dict__.get("characteristics")) is not None:
            own.add(loaded.fingerprint)
        if isinstance(made_of, str) and own and made_of not in own:
            warnings.warn(
                f"The ordering was made of token counts of fingerprint {made_of[:16]}, none of the dataset's orderings "
                f"was ({', '.join(sorted(mark[:16] for mark in own))}): this is right if you gave weights or counts of "
                "your own (its `indices` alone give no such warning); if not, it may be of another dataset.",
                stacklevel=2,
            )

    @property
    def layout_ordering(self) -> str | None:
        """Name of the ordering in which the training records lie; None where they lie as packed."""
        counts = self.counts("write")
        return counts["ordering"] if counts["layout"] == "ordered" else None

    @cached_property
    def records(self) -> RecordReader:
        """The training records, in the order of their layout."""
        return self._reader("train")

    @cached_property
    def validation_records(self) -> RecordReader:
        """The validation records; there may be none."""
        return self._reader("validation")

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare every file with the manifest: there, size, SHA-256; `advance` is called with the bytes read."""
        return (self._folder if self.remote is None else self.remote).verify(advance)

    def __repr__(self) -> str:
        lines = [f"Dataset({str(self.root if self.remote is None else self.remote.address)!r})"]
        for stage, entry in self._folder.stages.items():
            if "/" not in stage:  # all orderings stand in one line below
                lines.append(f"  {stage:<13}{entry['summary']}  [{entry['fingerprint'][:8]}]")
        lines.append(f"  {'orderings':<13}{', '.join(self.orderings) or 'none made yet'}")
        if "write" in self._folder.stages and "pack" in self._folder.stages:
            lines.append(f"  {'fingerprint':<13}{self.fingerprint[:16]}")
        return "\n".join(lines)

    def counts(self, stage: str) -> Mapping[str, Any]:
        """What a finished stage counted."""
        return self._stage(stage)["counts"]

    def _number(self, stage: str, name: str) -> int:
        return whole_number(f"{name!r} in {self.root / 'manifest.json'}", self.counts(stage)[name])

    def _stage(self, stage: str) -> Mapping[str, Any]:
        try:
            return self._folder.stages[stage]
        except KeyError:
            verb = stage.split("/")[0]
            raise UserError(
                f"{self.root} has no stage {stage!r} yet; make it with `jax-diversity {verb}` (or `build`)."
            ) from None

    def ordering_file(self, name: str) -> tuple[Path, str]:
        """An ordering's .npy and its fingerprint; raises like `orderings[name]`."""
        self.orderings.check(name)
        path = self.file(f"order/{name}", f"orderings/{name}.npy", checked=False)
        return path, self.counts(f"order/{name}")["fingerprint"]

    def file(self, stage: str, name: str, *, checked: bool = True) -> Path:
        """The path of one of a stage's files; of a dataset on an object store it is fetched first.

        Its content is compared with the manifest's SHA-256, once a process; `checked=False` compares its size only,
        which suffices where its reader has another proof: records have checksums, orderings are fingerprints.

        Raises:
            UserError: the stage has not run, or the file is absent or not as it was written.
        """
        path, about = self.root / name, self._stage(stage)["files"].get(name)
        if about is None:
            raise UserError(f"Expected {name} among the files of stage {stage!r} in {self.root}, found no such entry.")
        if self.remote is not None:
            return self.remote.fetch(name, checked=checked)
        verb = stage.split("/")[0]
        found = path.stat().st_size if path.is_file() else None
        if found != about["bytes"]:
            raise UserError(
                f"Expected {about['bytes']} bytes in {path}, found {'no such file' if found is None else found}; "
                f"restore the file or run `jax-diversity {verb}` again."
            )
        if checked and not is_as_written(path, about):
            raise UserError(
                f"{path} is damaged: its SHA-256 is not the manifest's; restore it, or delete it and run "
                f"`jax-diversity {verb}` again."
            )
        return path

    def _files(self, stage: str, start: str, suffix: str, *, checked: bool = True) -> list[Path]:
        """The stage's files with that start and suffix, in the order of the numbers in their names."""
        names = self._names(stage, start, suffix)
        # Hashing leaves the interpreter's lock to others. An object store's fetch has threads of its own.
        num_threads = 1 if self.remote else min(len(os.sched_getaffinity(0)), max(len(names), 1))
        with ThreadPoolExecutor(num_threads) as threads:
            return list(threads.map(partial(self.file, stage, checked=checked), names))

    def _names(self, stage: str, start: str, suffix: str) -> list[str]:
        # From the 100,000th on a number takes one digit more than those before it.
        names = sorted(self._stage(stage)["files"], key=lambda name: (len(name), name))
        return [name for name in names if name.startswith(start) and name.endswith(suffix)]

    def _read_ordering(self, name: str) -> Ordering:
        path, expected = self.ordering_file(name)
        # How it was made; `load_ordering` reads it from beside the .npy.
        beside = (f"measure/{name}", f"orderings/{name}.json")
        is_measured = beside[0] in self._folder.stages
        if is_measured and self.remote is not None:
            self.remote.fetch(beside[1])
        ordering = load_ordering(path, expected=expected)
        if is_measured:  # checked after the .npy: where another ordering was made, its fingerprint says more
            self.file(*beside)
        return ordering

    def _read_json(self, name: str) -> dict[str, Any]:
        return read_json(self.file("characterize", f"characteristics/{name}.json"), "characterize")

    def _read_counts(self, family: str) -> csr_array:
        from scipy.sparse import load_npz

        path = self.file("characterize", f"characteristics/{family}.npz")
        try:
            return load_npz(path)
        except (OSError, ValueError, KeyError, BadZipFile, zlib.error) as error:
            raise UserError(f"{path} does not hold counts ({error}); run `jax-diversity characterize` again.") from None

    def _read_segments(self, name: str, num_sequences: int) -> Segments:
        import pyarrow.parquet

        path = self.file("pack", f"sequences/{name}.parquet")
        try:
            table = pyarrow.parquet.read_table(path, columns=list(Segments.COLUMNS))
            columns = {column: table[column].to_numpy() for column in Segments.COLUMNS}
        except (pyarrow.ArrowException, OSError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} does not hold segments ({reason}); run `jax-diversity pack` again.") from None
        return Segments(
            **columns,
            num_sequences=num_sequences,
            sequence_length=self.sequence_length + self.overlap,  # as stored; `sequence_length` is what a model sees
            overlap=self.overlap,
        )

    def _reader(self, stem: str) -> RecordReader:
        from jax_diversity.records.reading import RecordReader

        counts = self.counts("write")
        where = ("write", f"records/{stem}-", ".array_record")
        # A record file on an object store is fetched when the reader first needs it, not here.
        paths = (
            [self.root / name for name in self._names(*where)] if self.remote else self._files(*where, checked=False)
        )
        per_file = counts["records"][stem]
        if counts["dtype"] not in ("uint16", "int32"):
            raise UserError(
                f"Expected records of uint16 or int32 tokens in {self.root / 'manifest.json'}, found "
                f"{counts['dtype']!r}; restore the file or run `jax-diversity write` again."
            )
        if len(paths) != len(per_file):
            raise UserError(
                f"Expected {len(per_file)} files of {stem} records in {self.root}, found {len(paths)}; "
                "run `jax-diversity write` again."
            )
        ordered = stem == "train" and counts["layout"] == "ordered"
        return RecordReader(
            [path.absolute() for path in paths],  # a process that unpickles it may have another working folder
            per_file,
            sequence_length=self.sequence_length + self.overlap,
            dtype=counts["dtype"],
            identity=counts["identity"],
            overlap=self.overlap,
            marks_learned=counts.get("marks_learned", False),
            layout=self.root.absolute() / "orderings" / f"{counts['ordering']}.npy" if ordered else None,
            fetch=None if self.remote is None else self.remote.fetch_path,
            memory_map=self._memory_map,
        )
