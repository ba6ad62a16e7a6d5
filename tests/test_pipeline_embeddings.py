"""The stage of the embeddings: every method, beginnings in tokens, resumption, and embedders of a user's own."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity import corpus as stored_corpus
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.dataset.beginnings import Beginnings, document_beginnings
from jax_diversity.embedding.base import METHODS, PRECOMPUTED, make_embedder
from jax_diversity.embedding.hashing import HashingEmbedder
from jax_diversity.embedding.outside import outside_files
from jax_diversity.embedding.precomputed import open_precomputed
from jax_diversity.embedding.qwen3 import Qwen3Embedder
from jax_diversity.embedding.settings import EmbeddingConfig
from jax_diversity.embedding.tfidf_svd import TfidfSvd
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.stage import Context
from jax_diversity.pipeline.build import Build, StageResult
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.tokenization.settings import TokenizerConfig
from tests.tiny_corpus import tiny_config, write_corpus


class Lengths:
    """An embedder in ten lines; faults are switched on by the test."""

    dimensions = 2
    fault: str | None = None
    num_calls = 0

    def __init__(self, config: EmbeddingConfig) -> None:
        assert config.max_tokens > 0

    def embed(self, texts: Sequence[str]) -> Any:
        Lengths.num_calls += 1
        vectors = np.array([(len(text), text.count(" ")) for text in texts], np.float32)
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
            case "late" if Lengths.num_calls > 1:
                raise KeyboardInterrupt
        return vectors


class Average(Lengths):
    """An embedder that learns; what it learnt is a JSON file."""

    num_fits = 0

    def __init__(self, mean: float) -> None:
        self.mean = mean

    @classmethod
    def fit(cls, texts: Sequence[str], config: EmbeddingConfig) -> Average:
        cls.num_fits += 1
        return cls(sum(map(len, texts)) / len(texts))

    def save(self, path: Path) -> None:
        assert path.suffix == ".npz"
        path.write_text(json.dumps(self.mean))

    @classmethod
    def load(cls, path: Path) -> Average:
        return cls(json.loads(path.read_text()))

    def embed(self, texts: Sequence[str]) -> Any:
        return super().embed(texts) - np.float32(self.mean)


class Broken(Average):
    """An embedder that learns, and of which one step fails."""

    step: str | None = None

    @classmethod
    def fail(cls, step: str) -> None:
        if cls.step == step:
            raise ValueError(f"cannot\n {step}")

    @classmethod
    def fit(cls, texts: Sequence[str], config: EmbeddingConfig) -> Broken:
        cls.fail("fit")
        return cls(0.0)

    def save(self, path: Path) -> None:
        self.fail("save")
        if self.step == "elsewhere":
            path.with_suffix(".json").write_text("{}")
        elif self.step == "folder":
            path.mkdir()
        elif self.step != "nothing":
            super().save(path)

    @classmethod
    def load(cls, path: Path) -> Broken:
        cls.fail("load")
        return cls(0.0)

    @property
    def dimensions(self) -> Any:
        self.fail("dimensions")
        return 2

    def embed(self, texts: Sequence[str]) -> Any:
        self.fail("embed")
        return super().embed(texts)


class TakesNothing:
    dimensions = 2
    embed = Lengths.embed


class WideAsNumpySays(Lengths):
    dimensions = np.int64(2)  # type: ignore[assignment]


def needs_weights(config: EmbeddingConfig) -> Any:
    return {}["weights"]


def refuses(config: EmbeddingConfig) -> Any:
    raise jd.UserError("Expected a checkpoint, found none; fetch it.")


class LearnsButForgets:
    dimensions = 2
    fit = embed = None


def zero_dimensions(config: EmbeddingConfig) -> Any:
    return type("Nothing", (), {"dimensions": 0, "embed": lambda self, texts: texts})()


@pytest.fixture(autouse=True)
def faultless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lengths, "fault", None)
    monkeypatch.setattr(Lengths, "num_calls", 0)
    monkeypatch.setattr(Average, "num_fits", 0)
    monkeypatch.setattr(Broken, "step", None)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """A dataset of documents and tokens; tests take copies of it."""
    folder = tmp_path_factory.mktemp("prepared")
    config = tiny_config(write_corpus(folder / "corpus", num_documents=300), folder / "out")
    for stage in ("prepare", "tokenize"):
        Build(config).run_stage(stage)
    return with_embedding(config, max_tokens=30)


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
    return np.load(Path(config.out) / "embeddings" / "embeddings.npy")


def beginnings_of(config: BuildConfig) -> list[str]:
    build = Build(config)
    context = Context(config, build.folder, Progress(quiet=True))
    return [text for texts in document_beginnings(context, config.embedding.max_tokens) for text in texts]


def files_of(config: BuildConfig) -> dict[str, bytes]:
    folder = Path(config.out) / "embeddings"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_beginnings_are_the_first_tokens(config: BuildConfig) -> None:
    run(config)
    dataset = jd.open_dataset(config.out)
    texts = dataset.documents.to_table(columns=["text"])["text"].to_pylist()
    found = beginnings_of(config)
    assert len(found) == len(texts) == dataset.tokens.num_documents
    lengths = dataset.tokens.document_lengths
    assert 0 < (lengths > 30).sum() < len(lengths)
    for text, beginning, length in zip(texts, found, lengths, strict=True):
        assert text.startswith(beginning)
        assert (beginning == text) == (length <= 31)  # the last token is the end token
    assert found == beginnings_of(config)


def test_beginnings_of_chosen_documents(config: BuildConfig) -> None:
    run(config)
    beginnings = Beginnings(Context(config, Build(config).folder, Progress(quiet=True)), 30)
    assert len(beginnings.paths) > 1
    wanted = np.arange(beginnings.num_documents) % 7 == 2
    chosen = [text for path in beginnings.paths for texts in beginnings.of_file(path, wanted) for text in texts]
    whole = beginnings_of(config)
    assert chosen == [text for text, keep in zip(whole, wanted, strict=True) if keep]
    firsts = [beginnings.first_document(path) for path in beginnings.paths]
    assert [next(beginnings.of_file(path))[0] for path in beginnings.paths] == [whole[first] for first in firsts]


@pytest.mark.parametrize("method", ["tfidf_svd", "hashing", f"{__name__}:Lengths", f"{__name__}:Average"])
def test_vectors_are_the_embedders_own(config: BuildConfig, method: str) -> None:
    config = with_embedding(config, method=method)
    counts = run(config).counts
    vectors = vectors_of(config)
    assert vectors.dtype == np.float32
    assert counts == {"num_documents": 300, "dimensions": vectors.shape[1], "num_zero_vectors": 0}
    texts = beginnings_of(config)
    if method == "tfidf_svd":
        embedder: Any = TfidfSvd.load(Path(config.out) / "embeddings" / "embedding.npz")
    else:
        embedder = make_embedder(config.embedding, lambda: texts)
    np.testing.assert_array_equal(vectors, embedder.embed(texts))
    learns = method.endswith(("svd", "Average"))
    assert set(files_of(config)) == {"embeddings.npy"} | ({"embedding.npz"} if learns else set())


@pytest.mark.parametrize("method", ["tfidf_svd", f"{__name__}:Average"])
def test_a_build_that_was_cut_off_ends_like_one_that_was_not(
    config: BuildConfig, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_embedding(config, method=method)
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
    assert {"embedding.npz", "part-00000.npy", "part-00001.npy"} <= left
    Average.num_fits = 0
    monkeypatch.setattr(TfidfSvd, "fit", None)  # what was learnt is kept
    run(other)
    assert Average.num_fits == 0
    assert files_of(other) == files_of(config)


def test_the_stage_is_kept_until_its_settings_or_files_change(config: BuildConfig, tmp_path: Path) -> None:
    first = tmp_path / "first.npy"
    np.save(first, np.eye(300, 5, dtype=np.float32))
    config = with_embedding(config, method="precomputed", path=str(first))
    assert run(config).counts["num_zero_vectors"] == 295
    assert run(config).kept
    np.save(first, np.ones((300, 5), np.float32))
    changed = run(config)
    assert not changed.kept
    assert changed.counts == {
        "num_documents": 300,
        "dimensions": 5,
        "num_zero_vectors": 0,
        "num_unused_vectors": 0,
    }
    assert run(config).kept
    assert not run(with_embedding(config, method="hashing", path=None)).kept


def test_the_source_of_an_own_embedder_is_watched(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "own_embedder.py"
    text = "import numpy as np\nclass Ones:\n    dimensions = 1\n    def __init__(self, config): ...\n"
    text += "    def embed(self, texts): return np.ones((len(texts), 1), np.float32)\n"
    source.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    config = with_embedding(config, method="own_embedder:Ones")
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
    config = with_embedding(config, method="precomputed", path=str(tmp_path / "vectors-*.parquet"), column="vector")
    assert run(config).counts["num_unused_vectors"] == 3
    np.testing.assert_array_equal(vectors_of(config), vectors)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "width",
            r"= \(\d+, 2\) for \d+ documents from document 'doc-0' \(number 0\) on, found float32 \(\d+, 1\)",
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
        run(with_embedding(config, method=f"{__name__}:Lengths"))


def test_zero_vectors_are_counted(config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lengths, "fault", "zeros")
    config = with_embedding(config, method=f"{__name__}:Lengths")
    counts = run(config).counts
    assert counts["num_zero_vectors"] == 3 * Lengths.num_calls > 3


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("word2vec", "one of tfidf_svd, hashing, qwen3, precomputed, or `module:name` .* found 'word2vec'"),
        ("nowhere:Embedder", "No module named 'nowhere'"),
        (f"{__name__}:Nothing", "has no attribute 'Nothing'"),
        (":Nothing", "import of embedding.method=:Nothing .*: Empty module name"),
        (f"{__name__}:", "AttributeError: .*attribute ''"),
        ("../own:Lengths", r"as `import` does, found a path, '\.\./own:Lengths'; put the module's folder"),
        (".own:Lengths", r"found a path, '\.own:Lengths'"),
        ("own/embedder:Lengths", "found a path, 'own/embedder:Lengths'"),
        ("builtins:int", r"construction of embedding.method=builtins:int .* found TypeError: int\(\) argument"),
        ("os.path:join", "construction of .* found TypeError: .* not EmbeddingConfig; repair it; it has to take"),
        (f"{__name__}:TakesNothing", r"TypeError: TakesNothing\(\) takes no arguments; repair it"),
        (f"{__name__}:needs_weights", r"KeyError: 'weights' in line \d+ of .*test_pipeline_embeddings\.py; repair"),
        (f"{__name__}:refuses", r"^Expected a checkpoint, found none; fetch it\.$"),
        ("math:pi", "takes the settings, found float"),
        ("builtins:str", "with `dimensions` and `embed`, found str"),
        (f"{__name__}:LearnsButForgets", "to have fit, load, save, found no load, save"),
        (f"{__name__}:zero_dimensions", "`dimensions`, a whole number of 1 or more, found 0"),
    ],
)
def test_methods_that_cannot_be_are_named(config: BuildConfig, method: str, message: str) -> None:
    with pytest.raises(jd.UserError, match=message):
        run(with_embedding(config, method=method))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": ""}, "Expected embedding.method to name a method"),
        ({"method": "qwen3"}, "embedding.path with embedding.method=qwen3, found nothing"),
        ({"method": "qwen3", "path": "nowhere"}, "found no folder at nowhere"),
        ({"method": "precomputed"}, "embedding.path with embedding.method=precomputed, found nothing"),
        ({"method": "precomputed", "path": "nowhere/*.npy"}, r"found no file at 'nowhere/\*.npy'"),
        ({"method": "hashing", "path": "v.npy"}, "embedding.path only with .*=qwen3, precomputed .* with hashing"),
        ({"path": "v.npy"}, "embedding.path only with .*, found v.npy with tfidf_svd; leave the setting out"),
        ({"dtype": "float32"}, "embedding.dtype only with embedding.method=qwen3 or"),
        ({"method": "hashing", "max_terms": 9}, "embedding.max_terms only with embedding.method=tfidf_svd or"),
        ({"method": "qwen3", "path": "~nobody-of-this-name/x"}, "found no folder at ~nobody-of-this-name/x"),
        ({"dimensions": 10**11}, "embedding.dimensions <= 8192, found 100000000000"),
        ({"seed": 2**40}, "embedding.seed from 0 to .*, found 1099511627776"),
        ({"seed": -1}, "embedding.seed from 0 to .*, found -1"),
        ({"batch_tokens": 0}, "embedding.batch_tokens >= 1, found 0"),
        ({"max_tokens": 0}, "embedding.max_tokens >= 1, found 0"),
    ],
)
def test_settings_that_cannot_be_are_named(config: BuildConfig, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(jd.UserError, match=message):
        run(with_embedding(config, **changes))


def test_the_methods_that_settings_name_are_those_that_there_are() -> None:
    assert (*METHODS, PRECOMPUTED) == checks._EMBEDDERS


def test_an_own_embedder_may_read_any_setting(config: BuildConfig) -> None:
    own = with_embedding(config, method=f"{__name__}:Lengths", path="v.npy", column="c", dtype="float32")
    assert run(own).counts["dimensions"] == 2


def test_the_largest_seed_is_a_seed(config: BuildConfig) -> None:
    assert run(with_embedding(config, seed=2**32 - 1)).counts["num_zero_vectors"] == 0


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("fit", "`fit` of .*Broken to end without an error, found ValueError: cannot fit in line"),
        ("embed", "`embed` of .* ValueError: cannot embed in line"),
        ("dimensions", "`dimensions` of .* ValueError: cannot dimensions in line"),
        ("save", "`save` of .* ValueError: cannot save in line"),
        ("nothing", r"`save` of .*Broken to write the file .* \(embedding\.npz\), found nothing written"),
        ("elsewhere", r"\(embedding\.npz\), found embedding\.json written"),
        ("folder", r"\(embedding\.npz\), found embedding\.npz/ written"),
    ],
)
def test_what_an_own_embedder_raises_is_named(
    config: BuildConfig, step: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_embedding(config, method=f"{__name__}:Broken")
    monkeypatch.setattr(Broken, "step", step)
    with pytest.raises(jd.UserError, match=message):
        run(config)
    monkeypatch.setattr(Broken, "step", None)
    run(config)
    assert set(files_of(config)) == {"embedding.npz", "embeddings.npy"}  # nothing of the broken try


def test_what_an_own_embedder_cannot_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EmbeddingConfig(method=f"{__name__}:Broken")
    make_embedder(settings, list, tmp_path / "own.npz")
    monkeypatch.setattr(Broken, "step", "load")
    with pytest.raises(jd.UserError, match=r"`load` of .* ValueError: cannot load in line") as failure:
        make_embedder(settings, list, tmp_path / "own.npz")
    assert isinstance(failure.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def (:", r"SyntaxError: invalid syntax \(own_faulty\.py, line 1\); repair the module"),
        ("raise RuntimeError('no\\nweights')", r"RuntimeError: no weights in line 1 of .*own_faulty\.py; repair"),
        ("import sys; sys.exit(3)", r"SystemExit: 3 in line 1 of .*own_faulty\.py"),
        ("raise RuntimeError('a b ' * 999)", r"a b \.\.\. in line 1"),
        ("raise RuntimeError", r"found RuntimeError in line 1"),
        ("import json\njson.loads('{')", r"JSONDecodeError: .* in line 2 of .*own_faulty\.py"),
    ],
)
@pytest.mark.parametrize("module", ["own_faulty", "own_faulty.part"])
def test_modules_that_fail_when_imported_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, message: str
) -> None:
    (tmp_path / "own_faulty.py").write_text(source + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = EmbeddingConfig(method=f"{module}:Embedder")
    with pytest.raises(jd.UserError, match=rf"import of embedding\.method={module}:Embedder .*{message}"):
        make_embedder(settings)
    expected = [tmp_path / "own_faulty.py"] if module == "own_faulty" else []
    assert outside_files(settings) == expected  # whose change runs the stage again


def test_a_width_that_numpy_gives_is_a_width(config: BuildConfig) -> None:
    assert run(with_embedding(config, method=f"{__name__}:WideAsNumpySays")).counts["dimensions"] == 2


@pytest.mark.parametrize("width", [True, 2.0, "2", None, [2]])
def test_widths_that_are_no_numbers_are_refused(width: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lengths, "dimensions", width)
    with pytest.raises(jd.UserError, match="a whole number of 1 or more, found"):
        make_embedder(EmbeddingConfig(method=f"{__name__}:Lengths"))


@pytest.mark.parametrize("method", ["qwen3", "precomputed", f"{__name__}:Lengths"])
def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    opened: list[str] = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Qwen3Embedder, "load", lambda folder, **_: opened.append(folder) or Lengths(EmbeddingConfig()))
    (tmp_path / "model").mkdir()
    np.save(tmp_path / "model" / "v.npy", np.eye(3, dtype=np.float32))
    path = "~/model/v.npy" if method == "precomputed" else "~/model"
    settings = EmbeddingConfig(method=method, path=path)
    checks.check_settings(BuildConfig(corpus=CorpusConfig(paths=("a.jsonl",)), embedding=settings))
    assert tmp_path / "model" / "v.npy" in outside_files(settings)
    if method == "qwen3":
        make_embedder(settings)
        assert opened == [str(tmp_path / "model")]
    if method == "precomputed":
        assert open_precomputed(settings, lambda: ["a", "b", "c"]).dimensions == 3


def test_an_empty_checkpoint_folder_is_named(config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(jd.UserError, match="found no files there"):
        run(with_embedding(config, method="qwen3", path=str(tmp_path / "empty")))


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
        embedding=EmbeddingConfig(dimensions=8, max_tokens=20),
    )


@pytest.mark.parametrize("method", ["tfidf_svd", "hashing"])
def test_tokens_without_a_tokenizer_are_words(token_config: BuildConfig, method: str) -> None:
    config = with_embedding(token_config, method=method)
    run(config)
    texts = beginnings_of(config)
    tokens = jd.open_dataset(config.out).tokens
    for index, text in enumerate(texts):
        ids = tokens.document(index)[:20].tolist()
        assert text == " ".join(f"t{token}" for token in ids if token != 0)
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
    decoding = with_embedding(decoding, max_tokens=30)
    run(decoding)
    assert beginnings_of(decoding) == beginnings_of(config)
    np.testing.assert_array_equal(vectors_of(decoding), vectors_of(config))


def test_tokens_of_other_documents_are_refused(config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    run(config)
    paths = DocumentStore.of_folder(Path(config.out) / "documents").paths
    monkeypatch.setattr(stored_corpus, "document_paths", lambda folder: paths[:-1])
    with pytest.raises(jd.UserError, match=r"Expected tokens of \d+ stored documents .* found tokens of 300"):
        beginnings_of(config)


def test_hashing_needs_nothing_stored(config: BuildConfig) -> None:
    config = with_embedding(config, method="hashing")
    run(config)
    np.testing.assert_array_equal(vectors_of(config), HashingEmbedder(config.embedding).embed(beginnings_of(config)))
