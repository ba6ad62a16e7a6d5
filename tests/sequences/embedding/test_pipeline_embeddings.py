"""The stage of the embeddings: every method, beginnings in tokens, resumption, and embedders of a user's own."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity.pipeline.build import Build, StageResult
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema.document_store import DocumentStore
from jax_diversity.sequences.embedding.base import CHARACTERS_PER_TOKEN, check_method, make_embedder
from jax_diversity.sequences.embedding.hashing import hashing
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.embedding.tfidf_svd import TfidfSvd
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from tests.support.tiny_corpus import tiny_config, write_corpus


class Lengths:
    """An embedder in ten lines; faults are switched on by the test."""

    dimensions = 2
    fault: str | None = None
    num_calls = 0

    def __init__(self, *, max_tokens: int = 0, scale: float = 1.0, path: str = "") -> None:
        self.scale = scale

    def embed(self, texts: Sequence[str]) -> Any:
        Lengths.num_calls += 1
        vectors = np.array([(len(text) * self.scale, text.count(" ")) for text in texts], np.float32)
        match self.fault:
            case "width":
                return vectors[:, :1]
            case "rows":
                return vectors[1:]
            case "dtype":
                return vectors.astype(np.float64)
            case "list":
                return vectors.tolist()
            case "nan":
                vectors[3, 1] = np.nan
            case "zeros":
                vectors[:3] = 0
        return vectors


class Average(Lengths):
    """Lengths less their mean in the texts to learn from."""

    num_fits = 0

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = mean

    def embed(self, texts: Sequence[str]) -> Any:
        return super().embed(texts) - np.float32(self.mean)


def average(*, texts: Callable[[], Sequence[str]], stored: Path | None, max_tokens: int) -> Average:
    """An embedder that learns; what it learnt is a JSON file."""
    if stored is not None and stored.exists():
        return Average(json.loads(stored.read_text()))
    Average.num_fits += 1
    drawn = texts()
    mean = sum(map(len, drawn)) / max(len(drawn), 1)
    if stored is not None:
        stored.write_text(json.dumps(mean))
    return Average(mean)


def needs_weights(*, weights: str) -> Any:
    return {}[weights]


def refuses() -> Any:
    raise jd.UserError("Expected a checkpoint, found none; fetch it.")


def zero_dimensions() -> Any:
    return type("Nothing", (), {"dimensions": 0, "embed": lambda self, texts: texts})()


@pytest.fixture(autouse=True)
def faultless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lengths, "fault", None)
    monkeypatch.setattr(Lengths, "num_calls", 0)
    monkeypatch.setattr(Average, "num_fits", 0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """A dataset of documents and tokens; tests take copies of it."""
    folder = tmp_path_factory.mktemp("prepared")
    config = tiny_config(write_corpus(folder / "corpus", num_documents=300), folder / "out")
    for stage in ("prepare", "tokenize"):
        Build(config).run_stage(stage)
    return with_embedding(config, max_tokens=10)


@pytest.fixture
def config(prepared: BuildConfig, tmp_path: Path) -> BuildConfig:
    shutil.copytree(prepared.out, tmp_path / "out")
    return dataclasses.replace(prepared, out=str(tmp_path / "out"))


def with_embedding(config: BuildConfig, **changes: Any) -> BuildConfig:
    return dataclasses.replace(config, embedding=dataclasses.replace(config.embedding, **changes))


def run(config: BuildConfig) -> StageResult:
    made = Build(config).folder.stages  # a stage alone takes no settings of others that are made
    stages = [stage for stage in ("prepare", "tokenize") if stage not in made]
    return [Build(config).run_stage(stage) for stage in [*stages, "embed"]][-1]


def vectors_of(config: BuildConfig) -> np.ndarray:
    return np.asarray(jd.open_dataset(config.out).embeddings)


def texts_of(config: BuildConfig) -> list[str]:
    return jd.open_dataset(config.out).documents.to_table(columns=["text"])["text"].to_pylist()


def beginnings_of(config: BuildConfig) -> list[str]:
    beginnings = jd.open_dataset(config.out).beginnings(config.embedding.max_tokens * CHARACTERS_PER_TOKEN)
    return [text for path in beginnings.paths for texts in beginnings.of_file(path) for text in texts]


def files_of(config: BuildConfig) -> dict[str, bytes]:
    folder = Path(config.out) / "embeddings"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_beginnings_are_the_first_characters(config: BuildConfig) -> None:
    run(config)
    dataset = jd.open_dataset(config.out)
    texts = dataset.documents.to_table(columns=["text"])["text"].to_pylist()
    assert 0 < sum(len(text) > 160 for text in texts) < len(texts)
    assert beginnings_of(config) == [text[:160] for text in texts]


@pytest.mark.parametrize("method", ["tfidf_svd", "hashing"])
def test_embedders_read_the_first_tokens_of_their_own(config: BuildConfig, method: str) -> None:
    config = with_embedding(config, method=method, options={"dimensions": 8})
    run(config)
    found = vectors_of(config)
    if method == "tfidf_svd":
        embedder: Any = TfidfSvd.load(Path(config.out) / "embeddings" / "embedding.npz")
        assert embedder.max_tokens == 10
    else:
        embedder = hashing(dimensions=8, max_tokens=10)
    # Ten of the embedder's own, whatever the dataset's tokens are: that texts arrive cut changes nothing.
    np.testing.assert_array_equal(found, embedder.embed(texts_of(config)))


def test_a_text_of_a_megabyte_is_not_read_whole(config: BuildConfig) -> None:
    run(with_embedding(config, method=f"{__name__}:Lengths", options={}, max_tokens=5))
    assert vectors_of(config)[:, 0].max() == 5 * CHARACTERS_PER_TOKEN


def test_beginnings_of_chosen_documents(config: BuildConfig) -> None:
    run(config)
    beginnings = jd.open_dataset(config.out).beginnings(160)
    assert len(beginnings.paths) > 1
    wanted = np.arange(beginnings.num_documents) % 7 == 2
    chosen = [text for path in beginnings.paths for texts in beginnings.of_file(path, wanted) for text in texts]
    whole = beginnings_of(config)
    assert chosen == [text for text, keep in zip(whole, wanted, strict=True) if keep]
    firsts = [beginnings.first_document(path) for path in beginnings.paths]
    assert [next(beginnings.of_file(path))[0] for path in beginnings.paths] == [whole[first] for first in firsts]


@pytest.mark.parametrize("method", ["tfidf_svd", "hashing", f"{__name__}:Lengths", f"{__name__}:average"])
def test_vectors_are_the_embedders_own(config: BuildConfig, method: str) -> None:
    config = with_embedding(config, method=method, options={} if ":" in method else {"dimensions": 8})
    counts = run(config).counts
    vectors = vectors_of(config)
    assert vectors.dtype == np.float32
    features = counts["features"]
    assert counts == {
        "features": features,
        "num_documents": 300,
        "dimensions": vectors.shape[1],
        "num_zero_vectors": 0,
    }
    texts = beginnings_of(config)
    if method == "tfidf_svd":
        embedder: Any = TfidfSvd.load(Path(config.out) / "embeddings" / "embedding.npz")
    else:
        embedder = make_embedder(config.embedding.method, config.embedding.options, max_tokens=10, texts=lambda: texts)
    np.testing.assert_array_equal(vectors, embedder.embed(texts))
    learns = method.endswith(("svd", "average"))
    parts = {f"embeddings-{number:05d}.npy" for number in range(jd.open_dataset(config.out).num_document_files)}
    assert len(parts) > 1
    assert set(files_of(config)) == parts | ({"embedding.npz"} if learns else set())


@pytest.mark.parametrize("method", ["tfidf_svd", f"{__name__}:average"])
def test_a_build_that_was_cut_off_ends_like_one_that_was_not(
    config: BuildConfig, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_embedding(config, method=method, options={} if ":" in method else {"dimensions": 8})
    run(config)
    other = dataclasses.replace(config, out=str(tmp_path / "other"))
    embed = TfidfSvd.embed if method == "tfidf_svd" else Average.embed
    calls = iter(range(100))

    def until_third(self: Any, texts: Sequence[str]) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return embed(self, texts)

    monkeypatch.setattr(TfidfSvd if method == "tfidf_svd" else Average, "embed", until_third)
    with pytest.raises(KeyboardInterrupt):
        run(other)
    left = {path.name for path in (tmp_path / "other" / ".partial").rglob("*") if path.is_file()}
    assert {"embedding.npz", "embeddings-00000.npy", "embeddings-00001.npy"} <= left
    Average.num_fits = 0
    fit = TfidfSvd.fit
    # Settings are checked with no texts; what was learnt is loaded.
    monkeypatch.setattr(TfidfSvd, "fit", lambda texts, *rest: pytest.fail("fitted") if texts else fit(texts, *rest))
    run(other)
    assert Average.num_fits == 0
    assert files_of(other) == files_of(config)


def test_the_stage_is_kept_until_its_settings_or_files_change(config: BuildConfig, tmp_path: Path) -> None:
    first = tmp_path / "first.npy"
    np.save(first, np.eye(300, 5, dtype=np.float32))
    config = with_embedding(config, method="precomputed", options={"path": str(first)})
    assert run(config).counts["num_zero_vectors"] == 295
    assert run(config).kept
    np.save(first, np.ones((300, 5), np.float32))
    changed = run(config)
    assert not changed.kept
    assert changed.counts == {
        "features": changed.counts["features"],
        "num_documents": 300,
        "dimensions": 5,
        "num_zero_vectors": 0,
        "num_unused_vectors": 0,
    }
    assert run(config).kept
    assert not run(with_embedding(config, method="hashing", options={})).kept


def test_the_source_of_an_own_embedder_is_watched(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "own_embedder.py"
    text = "import numpy as np\nclass Ones:\n    dimensions = 1\n"
    text += "    def embed(self, texts): return np.ones((len(texts), 1), np.float32)\n"
    source.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    config = with_embedding(config, method="own_embedder:Ones", options={})
    run(config)
    assert run(config).kept
    source.write_text(text + "# changed\n")
    assert not run(config).kept


def test_vectors_from_parquet_files_are_matched_by_id(config: BuildConfig, tmp_path: Path) -> None:
    run(with_embedding(config, method="hashing"))
    ids = jd.open_dataset(config.out).documents.to_table(columns=["id"])["id"].to_pylist()
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(300, 4)).astype(np.float32)
    order = rng.permutation(300)
    for index, part in enumerate(np.split(order, [100, 250])):
        names = [*(ids[place] for place in part), f"unknown-{index}"]
        rows = [*vectors[part].tolist(), [9.0] * 4]
        pq.write_table(pa.table({"id": names, "vector": rows}), tmp_path / f"vectors-{index}.parquet")
    options = {"path": str(tmp_path / "vectors-*.parquet"), "column": "vector"}
    config = with_embedding(config, method="precomputed", options=options)
    assert run(config).counts["num_unused_vectors"] == 3
    np.testing.assert_array_equal(vectors_of(config), vectors)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "width",
            r"= \(\d+, 2\) for \d+ documents \(the first is document 'doc-0' \(number 0\)\), found float32 \(\d+, 1\)",
        ),
        ("rows", r"found float32 \(\d+, 2\); repair its `embed`"),
        ("dtype", r"a float32 array .*, found float64 \(\d+, 2\)"),
        ("list", r"a float32 array .*, found list"),
        ("nan", r"found NaN or infinity for document 'doc-6' \(number 3\)"),
    ],
)
def test_what_an_own_embedder_gives_is_checked(
    config: BuildConfig, fault: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lengths, "fault", fault)
    with pytest.raises(jd.UserError, match=message):
        run(with_embedding(config, method=f"{__name__}:Lengths", options={}))


def test_zero_vectors_are_counted(config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lengths, "fault", "zeros")
    config = with_embedding(config, method=f"{__name__}:Lengths", options={})
    counts = run(config).counts
    assert counts["num_zero_vectors"] == 3 * Lengths.num_calls > 3


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("word2vec", "Unknown embedding method 'word2vec': expected one of hashing, precomputed, qwen3, tfidf_svd"),
        ("", "Unknown embedding method ''"),
        ("nowhere:Embedder", "No module named 'nowhere'; check that the module's folder is in PYTHONPATH"),
        (f"{__name__}:Nothing", "has no attribute 'Nothing'"),
        (":Nothing", "a function in it, as `module:name`, found ':Nothing'"),
        (f"{__name__}:", "a function in it, as `module:name`, found"),
        ("../own:Lengths", r"as in `import`, .*, found '\.\./own:Lengths'; add the module's folder"),
        (".own:Lengths", r"found '\.own:Lengths'"),
        ("own/embedder:Lengths", "found 'own/embedder:Lengths'"),
        ("math:pi", "to name a function, found 3.14"),
        (f"{__name__}:needs_weights", r"takes the options \(none\), found: missing a required .*argument: 'weights'"),
        (f"{__name__}:refuses", r"^Expected a checkpoint, found none; fetch it\.$"),
        ("json:JSONDecoder", "with `dimensions` and `embed`, found JSONDecoder"),
        (f"{__name__}:zero_dimensions", "to be a whole number >= 1, found 0"),
    ],
)
def test_methods_that_cannot_be_are_named(config: BuildConfig, method: str, message: str) -> None:
    with pytest.raises(jd.UserError, match=message):
        run(with_embedding(config, method=method, options={}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "qwen3"}, r"Method 'qwen3' needs the option 'path' \(text\), found none"),
        ({"method": "qwen3", "options": {"path": "nowhere"}}, "found no files in 'nowhere'"),
        ({"method": "qwen3", "options": {"path": "~no-such-user/x"}}, "found no files in '~no-such-user/x'"),
        ({"method": "precomputed"}, "Method 'precomputed' needs the option 'path'"),
        ({"method": "precomputed", "options": {"path": "nowhere/*.npy"}}, r"found no file at 'nowhere/\*.npy'"),
        ({"method": "hashing", "options": {"path": "v.npy"}}, "no option 'path': expected one of dimensions"),
        ({"options": {"dtype": "float32"}}, "'tfidf_svd' has no option 'dtype': expected one of dimensions"),
        ({"method": f"{__name__}:Lengths", "options": {"length": 2}}, "the options length, found: got an unexpected"),
        ({"options": {"dimensions": 10**11}}, "dimensions to be a whole number >= 1 and <= 8192, found 100000000000"),
        ({"options": {"dimensions": 0}}, "dimensions to be a whole number >= 1 and <= 8192, found 0"),
        ({"method": "qwen3", "options": {"path": ".", "batch_tokens": 0}}, "batch_tokens to be a whole number >= 1"),
        (
            {"method": "qwen3", "options": {"path": ".", "dtype": "float16"}},
            "'dtype' to be one of bfloat16, float32, found",
        ),
        ({"method": "qwen3", "options": {"path": ".", "mesh": "a"}}, "can only be given in Python"),
        ({"seed": 2**40}, "embedding.seed from 0 to .*, found 1099511627776"),
        ({"seed": -1}, "embedding.seed from 0 to .*, found -1"),
        ({"max_tokens": 0}, "embedding.max_tokens >= 1, found 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_work(changes: dict[str, Any], message: str) -> None:
    config = EmbeddingConfig(**changes)
    with pytest.raises(jd.UserError, match=message):
        BuildConfig(corpus=CorpusConfig(paths=("a.jsonl",)), embedding=config).check()


def test_an_own_embedder_has_options_of_its_own(config: BuildConfig) -> None:
    plain = with_embedding(config, method=f"{__name__}:Lengths", options={})
    run(plain)
    lengths = vectors_of(plain)
    run(with_embedding(plain, options={"scale": 3.0}))
    np.testing.assert_array_equal(vectors_of(plain), lengths * np.array([3, 1], np.float32))


@pytest.mark.parametrize("seed", [0, 3])
def test_the_documents_to_learn_from_are_drawn_by_the_seed(
    config: BuildConfig, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jax_diversity.sequences.embedding.files.FIT_DOCUMENTS", 40)
    run(with_embedding(config, method=f"{__name__}:average", options={}, seed=seed))
    chosen = np.random.default_rng(seed).choice(300, 40, replace=False)
    lengths = np.array(list(map(len, beginnings_of(config))))
    mean = json.loads((Path(config.out) / "embeddings" / "embedding.npz").read_text())
    assert mean == pytest.approx(lengths[chosen].mean())


def test_the_largest_seed_is_a_seed(config: BuildConfig) -> None:
    assert run(with_embedding(config, seed=2**32 - 1)).counts["num_zero_vectors"] == 0


@pytest.mark.parametrize("width", [True, 2.0, "2", None, [2]])
def test_widths_that_are_no_numbers_are_refused(width: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lengths, "dimensions", width)
    with pytest.raises(jd.UserError, match="a whole number >= 1, found"):
        make_embedder(f"{__name__}:Lengths", {})


@pytest.mark.parametrize("method", ["qwen3", "precomputed", f"{__name__}:Lengths"])
def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    np.save(tmp_path / "model" / "v.npy", np.eye(3, dtype=np.float32))
    path = "~/model/v.npy" if method == "precomputed" else "~/model"
    settings = EmbeddingConfig(method=method, options={"path": path})
    assert tmp_path / "model" / "v.npy" in check_method(settings.method, settings.options)
    if method == "precomputed":
        assert make_embedder(settings.method, settings.options, document_ids=lambda: ["a", "b", "c"]).dimensions == 3


def test_an_empty_checkpoint_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(jd.UserError, match="found no files in"):
        EmbeddingConfig(method="qwen3", options={"path": str(tmp_path)}).check()


@pytest.fixture
def token_config(tmp_path: Path) -> BuildConfig:
    """Two kinds of documents that came as token ids, without texts and without a tokenizer."""
    rng = np.random.default_rng(0)
    lines = []
    for index in range(60):
        low = 10 if index % 2 else 40
        tokens = [*rng.integers(low, low + 20, int(rng.integers(5, 80))).tolist(), 0]
        lines.append(json.dumps({"id": f"doc-{index}", "tokens": tokens}))
    path = tmp_path / "tokens.jsonl"
    path.write_text("\n".join(lines) + "\n")
    config = tiny_config(tmp_path, tmp_path / "out")
    return dataclasses.replace(
        config,
        corpus=CorpusConfig(paths=(str(path),), format="tokens"),
        tokenizer=TokenizerConfig(kind="stored"),
        embedding=EmbeddingConfig(max_tokens=20, options={"dimensions": 8}),
    )


@pytest.mark.parametrize("method", ["tfidf_svd", "hashing"])
def test_tokens_without_a_tokenizer_are_words(token_config: BuildConfig, method: str) -> None:
    config = with_embedding(token_config, method=method)
    run(config)
    texts = beginnings_of(config)
    tokens = jd.open_dataset(config.out).tokens
    for index, text in enumerate(texts):
        words = " ".join(f"t{token}" for token in tokens.document(index).tolist() if token != 0)
        assert text == words[: 20 * CHARACTERS_PER_TOKEN]
    vectors = vectors_of(config)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    agree = similarity.argmax(axis=1) % 2 == np.arange(60) % 2
    assert agree.mean() > 0.9


def test_tokens_with_a_tokenizer_are_decoded(config: BuildConfig, token_config: BuildConfig) -> None:
    run(config)
    dataset = jd.open_dataset(config.out)
    path = Path(token_config.corpus.paths[0])
    rows = [dataset.tokens.document(index).tolist() for index in range(dataset.tokens.num_documents)]
    path.write_text("\n".join(json.dumps({"id": str(index), "tokens": row}) for index, row in enumerate(rows)))
    tokenizer = TokenizerConfig(kind="stored", path=str(Path(config.out) / "tokens" / "tokenizer.json"))
    decoding = dataclasses.replace(token_config, tokenizer=tokenizer, out=str(path.parent / "decoded"))
    decoding = with_embedding(decoding, max_tokens=10)
    run(decoding)
    assert beginnings_of(decoding) == beginnings_of(config)
    np.testing.assert_array_equal(vectors_of(decoding), vectors_of(config))


def test_tokens_of_other_documents_are_refused(config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    run(config)
    dataset = jd.open_dataset(config.out)
    fewer = DocumentStore(dataset.document_store.paths[:-1])
    monkeypatch.setattr(type(dataset), "document_store", fewer)
    with pytest.raises(jd.UserError, match=r"Expected tokens of \d+ stored documents.* found tokens of 300"):
        beginnings_of(config)


def test_hashing_needs_nothing_stored(config: BuildConfig) -> None:
    config = with_embedding(config, method="hashing")
    run(config)
    np.testing.assert_array_equal(vectors_of(config), hashing(dimensions=8, max_tokens=10).embed(beginnings_of(config)))
