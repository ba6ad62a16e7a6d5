"""The tree of settings: a frozen dataclass for each stage and one of all; a docstring behind every field."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PYTHON_ENVIRONMENT = "python-environment"


@dataclass(frozen=True)
class CorpusConfig:
    """Which documents, and which of their fields are what."""

    paths: tuple[str, ...] = ()
    """Files or globs (local or any fsspec address, `gs://bucket/*.jsonl.gz`), or the word `python-environment`
    for the modules, docstrings, READMEs and licences of the installed Python packages."""
    format: Literal["auto", "jsonl", "parquet", "text", "megatron", "tokens"] = "auto"
    """What the files are; `auto` goes by their names. `megatron`: prefixes of .bin and .idx files, or globs of
    them; `tokens`: JSONL, Parquet or ArrayRecord files that hold token ids in `tokens_field`. Both go with
    tokenizer.kind `stored`."""
    text_field: str = "text"
    """The field that holds a document's text."""
    id_field: str | None = "id"
    """The field that holds its id; where absent, an id is made of file name and place."""
    source_field: str = "source"
    """The field that names where it comes from; where absent, the file's name serves."""
    language_field: str = "language"
    """The field that holds its language."""
    tokens_field: str = "tokens"
    """The field that holds a document's token ids (format `tokens`)."""
    array_record_tokens: Literal["example", "uint16", "int32", "uint32", "int64"] = "example"
    """What an ArrayRecord file's records are (format `tokens`): `example`, a tf.train.Example with the token ids as
    an int64 list in `tokens_field`; otherwise the bytes of a little-endian array of that type."""
    title_field: str = "title"
    """The field that holds its title."""
    duplicate_ids: Literal["error", "rename"] = "error"
    """What to do when an id comes twice: stop, or append `#2`, `#3` ..."""
    strict: bool = False
    """Stop at the first broken record instead of counting it and going on."""
    max_bytes: int | None = None
    """Keep a part of the corpus of about this many bytes of text, chosen by a hash of the documents' ids
    (python-environment) or from the start (files). A token that came with the corpus counts as four bytes."""
    file_bytes: int = 16 * 2**20
    """Text bytes (and four for a token that came along) in a stored file of documents; also what is held in memory
    at a time."""


def tokenizer_files(path: str | Path) -> tuple[Path, ...]:
    """The files that `tokenizer.path` stands for: itself, and GPT-2's `*merges.txt` beside a `*vocab.json`.

    Example:
        >>> [file.name for file in tokenizer_files("models/gpt2-vocab.json")]
        ['gpt2-vocab.json', 'gpt2-merges.txt']
    """
    path = Path(path)
    if not path.name.endswith("vocab.json"):
        return (path,)
    return path, path.with_name(path.name.removesuffix("vocab.json") + "merges.txt")


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Literal["bpe", "bytes", "file", "sentencepiece", "tensorflow-text", "stored"] = "bpe"
    """`bpe` trains byte-level BPE on the corpus, `bytes` takes UTF-8 bytes, `file` reads a tokenizer.json or a
    vocab.json with its merges.txt; `sentencepiece` and `tensorflow-text` read a SentencePiece model, each with the
    library of that name; `stored`: the corpus holds tokens already."""
    path: str | None = None
    """The tokenizer.json (kind `file`), or a `*vocab.json` with its `*merges.txt` beside it, as GPT-2 has them; or
    the SentencePiece model; for kind `stored` a tokenizer of the first two sorts that turns tokens into text for
    embeddings and reports, where there is one."""
    end_token: str | None = None
    """The end-of-document token of a tokenizer that `path` names; None looks for the usual names."""
    end_id: int | None = None
    """The end-of-document token's id (kind `stored`); None takes what all documents end with."""
    vocab_size: int = 16_384
    """Vocabulary of a trained BPE, the end token included."""
    train_bytes: int = 16 * 2**20
    """Text bytes that BPE is trained on, spread evenly over the corpus."""
    normalization: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "none"
    """Unicode normalisation of the text before it is tokenised, by tensorflow-text; not for kind `stored`."""
    cut_at: Literal["blanks", "sentences"] = "blanks"
    """Where texts too long to be tokenised at once are cut (SentencePiece models): before a blank, or after a
    sentence, which tensorflow-text finds."""
    num_processes: int = 0
    """Processes that tokenise side by side; 0 takes as many as there are cores, or none but this one where starting
    them would cost more than it saves. The result is the same."""


@dataclass(frozen=True)
class EmbeddingConfig:
    """How documents become vectors."""

    method: str = "tfidf_svd"
    """`tfidf_svd`, `hashing`, `qwen3` (a folder with a Qwen3-Embedding checkpoint), `precomputed` (vectors from
    files), or `module:name` of an embedder of your own; docs/embeddings.md says which when."""
    dimensions: int = 128
    """Width of a document's vector, at most 8192 (tfidf_svd, hashing)."""
    max_tokens: int = 1024
    """Only a document's first tokens are read."""
    fit_documents: int = 20_000
    """Documents that an embedder learns from (tfidf_svd: the vocabulary, its weights and the SVD)."""
    max_terms: int = 50_000
    """Terms kept, the most frequent first (tfidf_svd)."""
    path: str | None = None
    """The checkpoint's folder (qwen3), or the vectors (precomputed): a .npy, or Parquet files or a glob of them."""
    column: str = "embedding"
    """The Parquet column that holds the vectors (precomputed)."""
    id_column: str | None = "id"
    """The Parquet column that holds the documents' ids (precomputed); where the files have no such column, or for
    None, rows follow the documents' stored order."""
    batch_tokens: int = 16_384
    """Tokens of a batch, padding included (qwen3)."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of a checkpoint's weights and activations (qwen3)."""
    seed: int = 0
    """Seed of what is drawn: documents to fit on, the randomised SVD, the projection."""


@dataclass(frozen=True)
class ClusterConfig:
    """How vectors become topic clusters."""

    num_clusters: int = 1000
    """Number of clusters, k."""
    also: tuple[int, ...] = ()
    """Further clusterings of the same vectors with so many clusters: the families `cluster_100` ..."""
    backend: Literal["jax", "sklearn"] = "jax"
    """`jax`: jit-compiled Lloyd k-means; `sklearn`: MiniBatchKMeans."""
    start: Literal["k-means++", "k-means||", "random"] = "k-means++"
    """How the first centroids are drawn; `k-means||` draws many at once, for thousands of clusters in one level."""
    spherical: bool = False
    """Vectors and centroids are brought to length one: clusters by cosine alone."""
    coarse_clusters: int = 0
    """Two levels: so many coarse clusters first, each of which is then divided. 0 takes one level below 10,000
    clusters, and about the square root of their number from there on; 1 takes one level in any case."""
    max_iterations: int = 25
    """Most passes of Lloyd's algorithm."""
    train_documents: int = 200_000
    """Documents the centroids are computed from; the rest are assigned to the nearest."""
    label_field: str = "domain"
    """The metadata field that clusters are compared with in the report (purity); the source where it is absent."""
    seed: int = 0
    """Seed of the starting centroids and of the choice of training documents."""


@dataclass(frozen=True)
class PackingConfig:
    """How documents become sequences of one length."""

    method: Literal[
        "concat",
        "pad",
        "best_fit",
        "first_fit",
        "same_cluster",
        "nearest",
        "spread",
        "megatron",
        "partial_shuffle",
    ] = "concat"
    """`concat`: documents end to end, cut every L tokens; docs/packing.md shows all methods with what they lose."""
    sequence_length: int = 512
    """L: tokens a sequence."""
    atom_size: int | None = None
    """Tokens of an atom, what is shuffled before sequences are made (concat, pad): L, a multiple of it or a
    fraction of it; None takes L."""
    num_epochs: int = 1
    """Passes over the training documents that are packed at once, each shuffled anew (megatron,
    partial_shuffle)."""
    num_samples: int | None = None
    """Pack as many epochs as hold so many sequences, instead of num_epochs (megatron: steps times batch size)."""
    num_rows: int = 16
    """Rows of the stream, and so the batch size at which batches continue one another (partial_shuffle)."""
    num_neighbors: int = 10
    """Nearest neighbours of a document, among which the next one is looked for (nearest)."""
    num_candidates: int = 4096
    """Documents that each document is compared with, those in the nearest cells; all with all where there are at
    most four times as many (nearest)."""
    document_order: Literal["shuffle", "corpus", "spacing"] = "shuffle"
    """How documents follow one another: in a random order, as in the corpus, or spaced by topic cluster
    (`document_spacing`: every cluster near its share all along, short documents first)."""
    last_sequence: Literal["drop", "pad"] = "drop"
    """The unfilled last sequence is dropped, or padded; of every row with partial_shuffle. best_fit and first_fit
    leave room in many sequences, which is padded."""
    validation_fraction: float = 0.01
    """Share of documents (by a hash of their ids) kept for validation; copies of a text stay together."""
    seed: int = 0
    """Seed of the documents' random order, and of what a method draws."""


@dataclass(frozen=True)
class CharacteristicsConfig:
    """Which families an ordering balances."""

    families: tuple[str, ...] = ("cluster", "length")
    """The families that orderings see, the first being the one whose norm is balanced: `cluster` (and `cluster_100`
    ..., see cluster.also), `length`, `source`, `language`, `host` (of the address), `duplicate` (groups of equal
    texts), or the name of any metadata field. All that are not metadata fields are stored in any case."""
    length_bins: int = 100
    """Quantile bins of the documents' token counts."""
    url_field: str = "url"
    """The metadata field that holds a document's address, whose host is a family."""
    field_bins: int = 10
    """Quantile bins of a numeric metadata field."""
    max_groups: int = 1000
    """Groups of a family of names (source, language, host, metadata field): the largest; the rest are one group."""


@dataclass(frozen=True)
class OrderConfig:
    """One ordering: method and its options, seed, objective."""

    method: str = "balance"
    """A method's name; `jax-diversity order --help` lists them."""
    options: dict[str, int | float | bool | str] = field(default_factory=dict)
    """The method's own options, such as `pool_size 8192`; their defaults where not given."""
    name: str | None = None
    """Name of the ordering; None takes the method's."""
    seed: int = 0
    """Seed of the methods that draw."""
    objective: Literal["default", "f1", "f2", "f3"] = "default"
    """`default`: families, norm column, self weight 0.5; f1, f2, f3: exactly as published."""
    weights: dict[str, float] = field(default_factory=dict)
    """λ per family; 1.0 where not given."""
    windows: tuple[int, ...] = ()
    """Window sizes, in sequences, that are balanced besides the whole prefix. The global batch size of training
    belongs here: batches are then some per cent nearer to the corpus's mixture, at little cost elsewhere."""
    window_weight: float = 0.5
    """β, the weight of the windows."""
    norm_weight: float | None = None
    """λ of the norm column; None takes the objective's own."""
    self_weight: float | None = None
    """Weight of a sequence's own squared excess; None takes the objective's own."""


@dataclass(frozen=True)
class RecordsConfig:
    """How sequences are stored for training."""

    layout: Literal["packed", "ordered"] = "packed"
    """`packed`: as packed, any ordering reads through its permutation; `ordered`: in the order of `ordering`."""
    ordering: str = "balance"
    """The ordering that the ordered layout follows."""
    sequences_per_file: int = 65_536
    """Records a file holds at most."""
    num_writers: int = 0
    """Files written side by side, by threads; 0 takes as many as there are cores. The files are the same."""


@dataclass(frozen=True)
class TrainConfig:
    """The lab's small GPT and its training run."""

    ordering: str = "balance"
    """The ordering that feeds the run."""
    num_steps: int = 200
    """Optimiser steps."""
    batch_size: int = 16
    """Sequences a step."""
    num_layers: int = 2
    """Transformer blocks."""
    num_heads: int = 4
    """Attention heads."""
    width: int = 128
    """Model width."""
    learning_rate: float = 3e-3
    """Peak of the cosine schedule."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    checkpoint_every: int = 100
    """Steps between checkpoints; model, optimiser and input position together."""
    validate_every: int = 50
    """Steps between validation losses."""
    validation_batches: int = 8
    """Batches of validation sequences that a validation loss looks at, at most; 0 for none."""
    diagnose_every: int = 0
    """Steps between measurements of the gradients (their diversity among the batch's sequences, and stable rank),
    each of which costs about as much as a step; 0 for none."""
    metrics: tuple[Literal["tensorboard"], ...] = ()
    """Where values go besides the log while training runs: `tensorboard` (needs the extra of that name) writes
    beside the log."""
    seed: int = 0
    """Seed of the weights."""


@dataclass(frozen=True)
class MegatronExportConfig:
    """The run of Megatron-LM that reads the cache: what decides under which name it looks for it."""

    description: str | None = None
    """The `...-GPTDataset-train-description.txt` that such a run left in its cache; None makes one of the rest."""
    prefix: str | None = None
    """The .bin and .idx files that the run reads, letter for letter as in its --data-path; None takes the
    dataset's own, written once more as one pair into the target where there are several."""
    seed: int | None = None
    """Its --seed; None takes the seed that the sequences were packed with."""
    split: str | None = "100,0,0"
    """Its --split; None where it has --train-data-path instead."""
    num_samples: int | None = None
    """Its number of iterations times its global batch size; None where it reads one epoch."""
    tokenizer: str | None = None
    """Its tokenizer's `unique_identifiers`, as JSON or the name of a .json file."""


@dataclass(frozen=True)
class OlmoExportConfig:
    """The run of OLMo-core that reads the indices: what decides under which name it looks for them."""

    loader: Literal["numpy", "numpy_2024", "composable"] = "numpy"
    """Its data loader: NumpyFSLDataLoader, that of 2024, or ComposableDataLoader."""
    seed: int = 0
    """The loader's seed."""
    num_epochs: int = 1
    """Epochs that follow the order."""
    global_batch_size: int | None = None
    """Sequences a step (numpy_2024)."""
    tokens: bool = False
    """Write the sequences' tokens, too, as the one file whose instances the indices count: `sequences.npy`."""


@dataclass(frozen=True)
class MaxTextExportConfig:
    """Files for MaxText."""

    sequences_per_file: int | None = None
    """Records a file; None puts all into one. MaxText takes several in the order in which a disk lists them, which
    is not always the order of their names; a gs:// bucket lists them sorted."""


@dataclass(frozen=True)
class ExportConfig:
    """An order, or ordered sequences, in the form that another training stack reads."""

    to: Literal["npy", "megatron", "olmo", "maxtext"] = "npy"
    """`npy`: the indices alone; `megatron`: the index cache of Megatron-LM and NeMo; `olmo`: the global indices of
    OLMo-core; `maxtext`: ordered records. Levanter and PyTorch need no files: docs/exports.md."""
    ordering: str = "balance"
    """The dataset's ordering, or a .npy file of sequence indices."""
    target: str = "export"
    """The folder that takes the files."""
    overwrite: bool = False
    """Replace another ordering's files there."""
    documents: bool = False
    """Write the order in which training first meets the documents, too (npy)."""
    megatron: MegatronExportConfig = MegatronExportConfig()
    olmo: OlmoExportConfig = OlmoExportConfig()
    maxtext: MaxTextExportConfig = MaxTextExportConfig()


@dataclass(frozen=True)
class BuildConfig:
    """Everything from a corpus to an ordered, stored, measured dataset."""

    out: str = "out"
    """The dataset's folder."""
    corpus: CorpusConfig = CorpusConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    cluster: ClusterConfig = ClusterConfig()
    packing: PackingConfig = PackingConfig()
    characteristics: CharacteristicsConfig = CharacteristicsConfig()
    orders: tuple[OrderConfig, ...] = (OrderConfig(method="uniform_shuffle"), OrderConfig(method="balance"))
    """The orderings to make."""
    records: RecordsConfig = RecordsConfig()
    windows: tuple[int, ...] = (64, 256, 1024)
    """Window sizes, in sequences, at which orderings are measured."""
    train: TrainConfig = TrainConfig()


def demo_config() -> BuildConfig:
    """The demonstration: some megabytes of the installed Python packages' texts, and a short training run."""
    return BuildConfig(
        out="demo",
        corpus=CorpusConfig(paths=(PYTHON_ENVIRONMENT,), max_bytes=24 * 2**20),
        tokenizer=TokenizerConfig(vocab_size=8192, train_bytes=8 * 2**20),
        cluster=ClusterConfig(num_clusters=200),
        packing=PackingConfig(sequence_length=256, validation_fraction=0.02),
        characteristics=CharacteristicsConfig(families=("cluster", "length", "source"), length_bins=50),
        train=TrainConfig(num_steps=200, batch_size=8, validate_every=50, checkpoint_every=100, diagnose_every=40),
    )
