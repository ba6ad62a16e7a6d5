"""What a report is made of: arrays and tables as the stages leave them, gathered by the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.measures.curves import Curve


@dataclass(frozen=True, eq=False)
class DocumentGroups:
    """Which group of one family (source, language ...) every document belongs to.

    Attributes:
        codes: index into `names` for every document.
        names: the groups' names.

    Raises:
        ValueError: a code without a name.
    """

    codes: Int64[np.ndarray, " document"]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.codes) and not (self.codes.min() >= 0 and self.codes.max() < len(self.names)):
            raise ValueError(
                f"Expected codes in 0 .. {len(self.names) - 1}, found {self.codes.min()} .. {self.codes.max()}."
            )

    @classmethod
    def from_names(cls, names: Sequence[str | None]) -> DocumentGroups:
        """Code one name a document; None becomes the group `unknown`.

        Example:
            >>> DocumentGroups.from_names(["web", "books", None, "web"]).names
            ('web', 'books', 'unknown')
        """
        known: dict[str, int] = {}
        codes = [known.setdefault("unknown" if name is None else name, len(known)) for name in names]
        return cls(np.array(codes, np.int64), tuple(known))


@dataclass(frozen=True, eq=False)
class CorpusInputs:
    """What was read.

    Attributes:
        text_bytes: UTF-8 bytes of all documents' text.
        document_lengths: tokens of every document.
        sources: the documents' sources; None leaves the table out.
        languages: the documents' languages; None leaves the table out.
        skipped: reason -> number of records that were left out for it.
        num_duplicates: documents whose text occurs before them; None where nobody looked.
        num_duplicate_groups: texts that more than one document has; likewise.
        largest_duplicate_group: documents of the text that most have; likewise.
    """

    text_bytes: int
    document_lengths: Int64[np.ndarray, " document"]
    sources: DocumentGroups | None = None
    languages: DocumentGroups | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    num_duplicates: int | None = None
    num_duplicate_groups: int | None = None
    largest_duplicate_group: int | None = None

    def __post_init__(self) -> None:
        for name, groups in (("sources", self.sources), ("languages", self.languages)):
            if groups is not None and len(groups.codes) != len(self.document_lengths):
                raise ValueError(
                    f"Expected {len(self.document_lengths)} codes in {name}, one a document, found {len(groups.codes)}."
                )


@dataclass(frozen=True, eq=False)
class PurityInputs:
    """How clusters agree with a label that the documents came with.

    Attributes:
        field: the label's name, such as `domain`.
        num_labels: different labels.
        largest_label: share of documents with the commonest label: what one cluster of all would give.
        shares: a clustering's number of clusters -> share of documents whose cluster's majority label is their own.
        embedding: the name of what made the vectors.
    """

    field: str
    num_labels: int
    largest_label: float
    shares: Mapping[int, float]
    embedding: str


@dataclass(frozen=True, eq=False)
class ClusterInputs:
    """The topic clusters.

    Attributes:
        num_documents: documents of every cluster.
        num_tokens: tokens of every cluster.
        top_terms: the terms that tell a cluster from the rest, the strongest first.
        example_titles: titles (or first words) of documents near the cluster's centre.
        names: what the clusters are called on the map; None takes the first terms.
        positions: where they stand on the map, NaN for those that are not on it; None leaves the map out.
        labels: the majority label of every cluster's documents, which colours the map; None for one colour.
        purity: how clusters agree with labels; None leaves the sentence out.
    """

    num_documents: Int64[np.ndarray, " cluster"]
    num_tokens: Int64[np.ndarray, " cluster"]
    top_terms: Sequence[Sequence[str]]
    example_titles: Sequence[Sequence[str]]
    names: Sequence[str] | None = None
    positions: Float64[np.ndarray, "cluster 2"] | None = None
    labels: Sequence[str | None] | None = None
    purity: PurityInputs | None = None

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "purity"}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"Expected one entry a cluster in every column, found {lengths}.")


@dataclass(frozen=True, eq=False)
class PackingInputs:
    """What packing kept.

    Attributes:
        method: the packing method's name.
        sequence_length: L, tokens a sequence can hold.
        num_sequences: training sequences.
        num_validation_sequences: sequences kept for validation.
        num_tokens_kept: tokens that stand in a training or a validation sequence.
        num_tokens_dropped: tokens that stand in none.
        num_documents_cut: documents that lie in more than one sequence.
        segments_per_sequence: number of segments of every training sequence.
        num_padding_tokens: places of sequences that hold nothing.
        num_inserted_ends: end tokens that packing inserted.
        num_tokens_repeated: places of sequences whose token stands elsewhere too.
        clusters_per_sequence: mean number of topic clusters in a training sequence; None where nobody counted.
        largest_cluster_share: mean share of a training sequence's largest cluster, likewise.
    """

    method: str
    sequence_length: int
    num_sequences: int
    num_validation_sequences: int
    num_tokens_kept: int
    num_tokens_dropped: int
    num_documents_cut: int
    segments_per_sequence: Int64[np.ndarray, " sequence"]
    num_padding_tokens: int = 0
    num_inserted_ends: int = 0
    num_tokens_repeated: int = 0
    clusters_per_sequence: float | None = None
    largest_cluster_share: float | None = None


@dataclass(frozen=True, eq=False)
class ProfileInputs:
    """The window TV of one family over window sizes, at one offset.

    Attributes:
        sizes: window sizes, in sequences, ascending.
        num_windows: windows of each size, at least one.
        mean: their mean TV.
        best: their smallest.
        worst: their largest.
    """

    sizes: Int64[np.ndarray, " size"]
    num_windows: Int64[np.ndarray, " size"]
    mean: Float64[np.ndarray, " size"]
    best: Float64[np.ndarray, " size"]
    worst: Float64[np.ndarray, " size"]


@dataclass(frozen=True, eq=False)
class ReferenceInputs:
    """What one family's profiles are drawn beside.

    Attributes:
        sizes: window sizes, in sequences, ascending.
        floor: the lowest mean that any ordering can have.
        ideal: the TV to expect of independently drawn tokens.
        shuffles: of uniform shuffles with different seeds, offset (`0`, `half`) -> profile.
    """

    sizes: Int64[np.ndarray, " size"]
    floor: Float64[np.ndarray, " size"]
    ideal: Float64[np.ndarray, " size"]
    shuffles: Sequence[Mapping[str, ProfileInputs]] = ()


@dataclass(frozen=True, eq=False)
class HeatMapInputs:
    """A family's largest groups over training time.

    Attributes:
        bin_size: sequences of a bin; the last may have fewer.
        names: the groups' names.
        target: the groups' shares of all tokens.
        share: the groups' shares of each bin's tokens.
    """

    bin_size: int
    names: Sequence[str]
    target: Float64[np.ndarray, " group"]
    share: Float64[np.ndarray, "group bin"]


@dataclass(frozen=True)
class SegmentInputs:
    """One document's part of a sequence.

    Attributes:
        document: the document's id.
        title: its title or first words.
        source: its source.
        language: its language, where it has one.
        cluster: the name of its cluster, where there are clusters.
        num_tokens: its tokens in this sequence.
    """

    document: str
    title: str
    source: str
    language: str | None
    cluster: str | None
    num_tokens: int


@dataclass(frozen=True)
class RowInputs:
    """One row of a batch: which sequence it is, its first segments, and how many more it has."""

    row: int
    sequence_index: int
    segments: Sequence[SegmentInputs]
    num_more_segments: int = 0


@dataclass(frozen=True)
class BatchInputs:
    """One batch, opened to its documents.

    Attributes:
        step: batches before it.
        position: sequences before it.
        tv: total variation between its token shares and the corpus's, in the family that it was chosen by.
        differences: groups whose share is farthest from the target: name, share, target.
        rows: its first rows.
        num_more_rows: rows besides these.
    """

    step: int
    position: int
    tv: float
    differences: Sequence[tuple[str, float, float]]
    rows: Sequence[RowInputs]
    num_more_rows: int = 0


@dataclass(frozen=True)
class ExtremeInputs:
    """The batches nearest to the corpus's mixture, the nearest first, and those farthest, the farthest first."""

    best: Sequence[BatchInputs]
    worst: Sequence[BatchInputs]


@dataclass(frozen=True, eq=False)
class OrderingInputs:
    """One ordering and its measured balance; shares are of tokens, deviations in sequence lengths.

    Curves of one value a sequence may come shortened: many orderings of ten million sequences need not be held.

    Attributes:
        name: the ordering's name.
        method: the method that made it; `uniform_shuffle` makes it the baseline.
        prefix_l2: family -> prefix deviation after 1, 2 ... sequences.
        window_tv: family -> window size in sequences -> total variation of every window.
        window_tv_floor: family -> window size -> the lowest mean that any ordering can have.
        window_max: family -> window size -> largest |share - target| over all windows and groups.
        norm_drift: norm drift after 1, 2 ... sequences.
        info: how it was made (objective, seed ...), shown as it is.
        profile: family -> offset (`0`, `half`) -> window TV over window sizes.
        heat_maps: family -> its largest groups over training time.
        batches: family -> the best and the worst batches.
    """

    name: str
    method: str
    prefix_l2: Mapping[str, Float64[np.ndarray, " sequence"] | Curve]
    window_tv: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_floor: Mapping[str, Mapping[int, float]]
    window_max: Mapping[str, Mapping[int, float]]
    norm_drift: Float64[np.ndarray, " sequence"] | Curve
    info: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Mapping[str, ProfileInputs]] = field(default_factory=dict)
    heat_maps: Mapping[str, HeatMapInputs] = field(default_factory=dict)
    batches: Mapping[str, ExtremeInputs] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """One training run: the ordering that fed it, and a record a step.

    Each record has `step` and any of `loss` and `validation_loss` (nats a token), `gradient_diversity`,
    `stable_rank` and `input_wait_seconds`; what else it holds is ignored.
    """

    ordering: str
    steps: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class ReportInputs:
    """All that a report shows.

    Attributes:
        title: the dataset's name.
        orderings: the measured orderings, in the order in which they are drawn.
        ideal_token_tv: family -> window size -> mean total variation of windows of independently drawn tokens.
        profile_references: family -> what its profiles are drawn beside.
        batch_size: sequences of the batches that are opened; None where none are.
        training: finished or running training runs; empty leaves the section out.
        settings: the build's settings, nested as in the configuration.
        fingerprints: stage or file -> hash.
        main_ordering: the ordering that the summary judges; None takes the first that is no uniform shuffle.
        main_window: the window size that the summary judges; None takes 256 where it was measured on two windows
            or more, else the measured size nearest to it.
    """

    title: str
    corpus: CorpusInputs
    clusters: ClusterInputs
    packing: PackingInputs
    orderings: Sequence[OrderingInputs]
    ideal_token_tv: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    profile_references: Mapping[str, ReferenceInputs] = field(default_factory=dict)
    batch_size: int | None = None
    training: Sequence[TrainingInputs] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    main_ordering: str | None = None
    main_window: int | None = None
