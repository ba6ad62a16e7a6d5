"""Datasets built in the feature space of another one: the same codes, nothing learnt, nothing needed afterwards."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.foundation.settings import read_settings
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, StageResult, recorded_config
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.characteristics.codes import Bins
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig
from jax_diversity.sequences.tokenization.tokenizer_json import byte_tokenizer
from tests.support.tiny_corpus import tiny_config, write_corpus

TO_CHARACTERIZE = ("prepare", "tokenize", "embed", "cluster", "pack", "characterize")
FAMILIES = ("cluster", "cluster_2", "length", "source", "quality", "kind")


def write_rich_corpus(folder: Path, num_documents: int, seed: int, scale: float = 1.0) -> Path:
    """The made-up corpus with a field of numbers and one of names; `scale` shifts the numbers."""
    write_corpus(folder, num_documents, seed)
    for path in folder.glob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for index, record in enumerate(records):
            record["quality"] = round(scale * 0.1 * index, 3)
            record["kind"] = f"{seed} {index % 3}"
        path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module", autouse=True)
def few_bins() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax_diversity.sequences.characteristics.stage.FIELD_BINS", 4)
        yield


def reference_config(corpus: Path, out: Path) -> BuildConfig:
    return dataclasses.replace(
        tiny_config(corpus, out),
        cluster=ClusterConfig(num_clusters=4, also=(2,), options={"max_iterations": 10}),
        characteristics=CharacteristicsConfig(families=FAMILIES, length_bins=5),
        orders=(OrderConfig(method="uniform_shuffle"),),
    )


def following(reference: Path | str, texts: Path, out: Path, **settings: Any) -> BuildConfig:
    """Settings that say nothing of features but where they come from."""
    given: dict[str, Any] = {
        "corpus": CorpusConfig(paths=(str(texts / "*.jsonl"),)),
        "packing": PackingConfig(sequence_length=24),
        "orders": (OrderConfig(method="uniform_shuffle"),),
        "windows": (8,),
    }
    return BuildConfig(out=str(out), features_from=str(reference), **(given | settings))


def run(config: BuildConfig, stages: Sequence[str] = TO_CHARACTERIZE) -> list[StageResult]:
    build = Build(config)
    return [build.run_stage(stage) for stage in stages]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two corpora, a dataset of the first one, and one of the second with its features."""
    folder = tmp_path_factory.mktemp("features")
    run(reference_config(write_rich_corpus(folder / "corpus", 160, seed=0), folder / "reference"))
    write_rich_corpus(folder / "other", 90, seed=7, scale=3)
    run(following(folder / "reference", folder / "other", folder / "new"))
    return folder


@pytest.fixture
def reference(folder: Path, tmp_path: Path) -> Path:
    """A copy of the first dataset, which the test may change."""
    return shutil.copytree(folder / "reference", tmp_path / "reference")


def codes(dataset: Path, family: str) -> np.ndarray:
    return pq.read_table(dataset / "characteristics" / "codes.parquet")[family].to_numpy()


def numbers(dataset: jd.Dataset) -> dict[str, np.ndarray]:
    metadata = dataset.documents.to_table(columns=["metadata"])["metadata"].to_pylist()
    quality = np.array([json.loads(each)["quality"] for each in metadata])
    return {"length": dataset.tokens.document_lengths, "quality": quality}


def stored(dataset: Path) -> dict[str, str]:
    """The hash of every file."""
    entries = OutputFolder(dataset).stages.values()
    return {name: about["sha256"] for entry in entries for name, about in entry["files"].items()}


def test_documents_get_the_nearest_of_the_other_datasets_centroids(folder: Path) -> None:
    vectors = np.asarray(jd.open_dataset(folder / "new").embeddings).astype(np.float64)
    assert len(vectors) == 90
    theirs, new = jd.open_dataset(folder / "reference"), jd.open_dataset(folder / "new")
    for family, ending in (("cluster", ""), ("cluster_2", "_2")):
        centroids = np.load(folder / "reference" / "clusters" / f"centroids{ending}.npy").astype(np.float64)
        nearest = ((vectors[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(codes(folder / "new", family), nearest)
        for before, after in zip(theirs.clusters(family), new.clusters(family), strict=True):
            for name in ("name", "top_terms", "position"):
                assert after[name] == before[name]
        sizes = np.bincount(nearest, minlength=len(centroids)).tolist()
        assert [cluster["num_documents"] for cluster in new.clusters(family)] == sizes
    assert new.counts("cluster")["label_field"] == "source"
    titles = [title for cluster in new.clusters() for title in cluster["titles"]]
    texts = new.documents.to_table(columns=["text"])["text"].to_pylist()
    assert titles
    assert all(any(text.startswith(title) for text in texts) for title in titles)


def test_numbers_are_put_into_the_other_datasets_bins(folder: Path) -> None:
    theirs, new = jd.open_dataset(folder / "reference"), jd.open_dataset(folder / "new")
    learnt, found = numbers(theirs), numbers(new)
    for family in ("length", "quality"):
        assert new.group_names[family] == theirs.group_names[family]
        before = codes(folder / "reference", family)
        highest = [learnt[family][before == group].max() for group in range(before.max() + 1)]
        expected = [int(np.argmax([*(value <= highest[:-1]), True])) for value in found[family]]
        np.testing.assert_array_equal(codes(folder / "new", family), expected)
    assert found["quality"].max() > learnt["quality"].max()  # beyond all bins: in the last one
    assert new.families == theirs.families
    assert new.counts("characterize")["weights"] == theirs.counts("characterize")["weights"]
    assert new.group_names["kind"] == ("7 0", "7 1", "7 2")  # its own names


def test_values_between_bins_are_in_the_upper_one() -> None:
    assert Bins(("1-2", "5-7", "9-9"), (2, 7, 9)).places(np.array([0, 2, 3, 7, 8, 9, 10])).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        2,
    ]


def test_lengths_beyond_all_bins_are_in_the_outer_ones(reference: Path, tmp_path: Path) -> None:
    rows = [{"id": f"{size}", "text": "a" * size} for size in (1, 3000)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run(
        following(
            reference, tmp_path, tmp_path / "out", packing=PackingConfig(sequence_length=2, validation_fraction=0)
        )
    )
    assert codes(tmp_path / "out", "length").tolist() == [0, 4]
    new = jd.open_dataset(tmp_path / "out")
    assert new.group_names["length"] == jd.open_dataset(reference).group_names["length"]
    # A field that no document has makes no bins and no names.
    assert set(codes(tmp_path / "out", "quality").tolist()) == {4}
    assert new.group_names["quality"] == (*jd.open_dataset(reference).group_names["quality"], "unknown")
    assert new.group_names["kind"] == ("unknown",)
    assert new.feature_space == jd.open_dataset(reference).feature_space


def test_the_same_documents_get_the_same_codes(folder: Path, tmp_path: Path) -> None:
    run(
        following(
            folder / "reference", folder / "corpus", tmp_path / "again", packing=PackingConfig(sequence_length=40)
        )
    )
    # Stored in files of other sizes: a document's features depend on that document alone.
    theirs, again = jd.open_dataset(folder / "reference"), jd.open_dataset(tmp_path / "again")
    assert len(theirs.document_store.paths) != len(again.document_store.paths)
    assert again.documents.to_table(columns=["id"]) == theirs.documents.to_table(columns=["id"])
    for family in FAMILIES:
        np.testing.assert_array_equal(codes(tmp_path / "again", family), codes(folder / "reference", family))
    assert (theirs.sequence_length, again.sequence_length) == (32, 40)
    assert again.feature_space == theirs.feature_space
    assert again.tokenizer is not None
    assert theirs.tokenizer is not None
    assert again.tokenizer.fingerprint == theirs.tokenizer.fingerprint


def test_feature_spaces_are_equal_along_a_chain_and_differ_otherwise(folder: Path, tmp_path: Path) -> None:
    space = jd.open_dataset(folder / "reference").feature_space
    assert jd.open_dataset(folder / "new").feature_space == space
    run(following(folder / "new", folder / "corpus", tmp_path / "third"))
    assert jd.open_dataset(tmp_path / "third").feature_space == space
    run(reference_config(folder / "other", tmp_path / "alone"))
    spaces = {space, jd.open_dataset(tmp_path / "alone").feature_space}
    config = reference_config(folder / "corpus", tmp_path / "alone")
    changes: list[dict[str, Any]] = [
        {"tokenizer": TokenizerConfig(kind="bytes")},
        {"embedding": dataclasses.replace(config.embedding, seed=1)},
        {"cluster": dataclasses.replace(config.cluster, num_clusters=3)},
        {"characteristics": dataclasses.replace(config.characteristics, length_bins=4)},
        {"characteristics": dataclasses.replace(config.characteristics, families=FAMILIES[:5])},
    ]
    for change in changes:
        run(dataclasses.replace(config, **change))
        spaces.add(jd.open_dataset(tmp_path / "alone").feature_space)
    assert len(spaces) == 7
    run(dataclasses.replace(config, packing=PackingConfig(sequence_length=16, seed=4)))
    assert jd.open_dataset(tmp_path / "alone").feature_space == space


@pytest.mark.campaign
def test_a_dataset_needs_the_other_one_only_to_be_built(
    folder: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = following(reference, folder / "other", tmp_path / "new")
    Build(config).run_all()
    reference.rename(tmp_path / "elsewhere")
    dataset = jd.open_dataset(tmp_path / "new")
    assert dataset.verify() == []
    assert dataset.tokenizer is not None
    out = ["--out", str(tmp_path / "new"), "--quiet"]
    assert main(["order", *out, "--method", "greedy", "--family-weights", "quality", "0.5"]) == 0
    assert main(["measure", *out, "--windows", "8"]) == 0
    assert main(["pack", *out]) == 0
    assert main(["report", *out]) == 0
    # Settings that were given, and not those recorded: what was made with them counts.
    assert not Build(config).run_orders([OrderConfig(method="balance")])[0].kept
    assert recorded_config(tmp_path / "new").cluster == config.cluster
    capsys.readouterr()
    assert main(["build", *out, "--features-from", str(reference), "--corpus.paths", f"{folder}/other/*.jsonl"]) == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith("jax-diversity: features_from: Expected a dataset at")
    assert sentence.count("\n") == 1
    moved = dataclasses.replace(config, features_from=str(tmp_path / "elsewhere"))
    assert all(result.kept for result in run(moved))  # where it lies is not part of what is made


def test_only_stages_that_take_what_changed_are_made_again(folder: Path, reference: Path, tmp_path: Path) -> None:
    config = following(reference, folder / "other", tmp_path / "new")
    assert not any(result.kept for result in run(config))
    assert stored(tmp_path / "new") == stored(folder / "new")
    assert all(result.kept for result in run(config))
    assert all(result.kept for result in run(recorded_config(tmp_path / "new")))
    before = reference_config(folder / "corpus", reference)

    def kept_after(**change: Any) -> list[str]:
        run(dataclasses.replace(before, **change))
        return [result.stage for result in run(config) if result.kept]

    bins = dataclasses.replace(before.characteristics, length_bins=3)
    assert kept_after(characteristics=bins) == ["prepare", "tokenize", "embed", "cluster", "pack"]
    fewer = dataclasses.replace(before.cluster, num_clusters=3)
    assert kept_after(cluster=fewer) == ["prepare", "tokenize", "embed"]
    assert jd.open_dataset(tmp_path / "new").feature_space == jd.open_dataset(reference).feature_space
    # Packing is not part of what is taken.
    assert kept_after(cluster=fewer, packing=PackingConfig(sequence_length=16)) == [*TO_CHARACTERIZE]


def test_a_build_that_was_cut_off_ends_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = following(folder / "reference", folder / "other", tmp_path / "new")

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("embedding.stage._embed_documents", "clustering.stage._read_nearest"):
        with monkeypatch.context() as patch:
            patch.setattr(f"jax_diversity.sequences.{name}", end)
            with pytest.raises(KeyboardInterrupt):
                run(config)
    run(config)
    assert stored(tmp_path / "new") == stored(folder / "new")


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": ({"tokenizer": TokenizerConfig(vocab_size=400)}, r"tokenizer\.vocab_size .* \(300\), found 400"),
    "tokens": ({"tokenizer": TokenizerConfig(kind="bytes")}, r"tokenizer\.kind .* \('bpe'\), found 'bytes'"),
    "embedder": ({"embedding": EmbeddingConfig(method="hashing")}, r"embedding\.method .*, found 'hashing'"),
    "width": ({"embedding": EmbeddingConfig(options={"dimensions": 9})}, r"embedding\.options .* 8\}\), found .* 9\}"),
    "clusters": ({"cluster": ClusterConfig(num_clusters=5)}, r"cluster\.num_clusters .* \(4\), found 5"),
    "clusterings": ({"cluster": ClusterConfig(also=(3,))}, r"cluster\.also .* \(\(2,\)\), found \(3,\)"),
    "bins": ({"characteristics": CharacteristicsConfig(length_bins=7)}, r"characteristics\.length_bins .* found 7"),
    "families": (
        {"characteristics": CharacteristicsConfig(families=("cluster",))},
        r"characteristics\.families .* found",
    ),
    "format": ({"corpus": CorpusConfig(paths=("a",), format="tokens")}, r"Expected texts.* corpus\.format=tokens"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_settings_that_contradict_are_refused(what: str, folder: Path, tmp_path: Path) -> None:
    settings, sentence = CONTRADICTIONS[what]
    with pytest.raises(jd.UserError, match=sentence):
        Build(following(folder / "reference", folder / "other", tmp_path / "new", **settings)).run_all()
    assert not (tmp_path / "new").exists()


def test_settings_that_agree_or_concern_the_new_documents_are_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = reference_config(folder / "other", tmp_path / "new")
    config = dataclasses.replace(
        same,
        features_from=str(folder / "reference"),
        cluster=dataclasses.replace(same.cluster, label_field="kind"),
    )
    monkeypatch.setattr("jax_diversity.sequences.characteristics.stage.MAX_GROUPS", 2)
    run(config)
    new = jd.open_dataset(tmp_path / "new")
    assert new.counts("cluster")["label_field"] == "kind"
    assert new.group_names["kind"] == ("(other)", "7 0")
    assert new.feature_space == jd.open_dataset(folder / "reference").feature_space
    assert vars(recorded_config(tmp_path / "new")) == vars(config)


def unfinished(reference: Path, out: Path) -> Path:
    with (folder := OutputFolder(reference)).lock():
        folder.withdraw("characterize")
    return reference


def damaged(name: str) -> Callable[[Path, Path], Path]:
    def damage(reference: Path, out: Path) -> Path:
        content = bytearray((reference / name).read_bytes())
        content[-3] ^= 1
        (reference / name).write_bytes(content)
        return reference

    return damage


BAD: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "absent": (
        lambda reference, out: reference / "nothing",
        "features_from: Expected a dataset at .*, found no such fol",
    ),
    "no dataset": (
        lambda reference, out: reference.parent,
        "features_from: Expected a dataset at .*, found no manifest",
    ),
    "itself": (lambda reference, out: out / ".." / "new", "Expected features_from to name another dataset"),
    "unfinished": (unfinished, "Expected features_from to name a finished .* without stage 'characterize'"),
    "manifest": (damaged("manifest.json"), "features_from: .* is not a dataset's manifest"),
    "tokenizer": (damaged("tokens/tokenizer.json"), r"tokenizer\.json is damaged"),
    "embedding": (damaged("embeddings/embedding.npz"), r"embedding\.npz is damaged"),
    "centroids": (damaged("clusters/centroids_2.npy"), r"centroids_2\.npy is damaged"),
    "names": (damaged("clusters/clusters.json"), r"clusters\.json is damaged"),
    "bins": (damaged("characteristics/bins.json"), r"bins\.json is damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_datasets_are_one_sentence(
    what: str, folder: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    spoil, sentence = BAD[what]
    arguments = ["--out", str(tmp_path / "new"), "--corpus.paths", f"{folder}/other/*.jsonl", "--quiet"]
    assert main(["build", *arguments, "--features-from", str(spoil(reference, tmp_path / "new"))]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert re.search(sentence, printed), printed


def test_settings_come_from_a_file_and_the_help_names_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "new.yaml").write_text("features_from: web\n")
    assert read_settings(tmp_path / "new.yaml", BuildConfig()).features_from == "web"
    assert BuildConfig().features_from is None
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    assert "--features-from" in capsys.readouterr().out


def write_tokens(folder: Path, seed: int) -> Path:
    """Documents of ids below 256, each ended by 256."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    rows = [{"id": f"{index}", "tokens": [*rng.integers(97, 110, 30).tolist(), 256]} for index in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def of_tokens(corpus: Path) -> CorpusConfig:
    return CorpusConfig(paths=(str(corpus / "*.jsonl"),), format="tokens")


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_corpus_of_tokens_goes_on_with_tokens(has_tokenizer: bool, folder: Path, tmp_path: Path) -> None:
    byte_tokenizer().save_file(tmp_path)
    path = str(tmp_path / "tokenizer.json") if has_tokenizer else None
    first = dataclasses.replace(
        tiny_config(tmp_path, tmp_path / "first"),
        corpus=of_tokens(write_tokens(tmp_path / "a", 0)),
        tokenizer=TokenizerConfig(kind="stored", path=path),
        packing=PackingConfig(sequence_length=16),
    )
    run(first)
    (tmp_path / "tokenizer.json").unlink()  # the dataset has its own
    # One document lacks the end token, so that it has to come from the first dataset.
    rows = write_tokens(tmp_path / "b", 1) / "rows.jsonl"
    rows.write_text(json.dumps({"id": "short", "tokens": [97, 98]}))
    new = following(tmp_path / "first", tmp_path / "b", tmp_path / "new", corpus=of_tokens(tmp_path / "b"))
    run(dataclasses.replace(new, packing=PackingConfig(sequence_length=3)))
    assert jd.open_dataset(tmp_path / "new").tokens.document(0).tolist() == [97, 98, 256]
    texts = following(tmp_path / "first", folder / "other", tmp_path / "texts")
    if has_tokenizer:
        run(texts)
        assert jd.open_dataset(tmp_path / "texts").tokens.document(0)[-1] == 256
    else:
        with pytest.raises(jd.UserError, match=r"Expected a corpus of tokens .* has no tokenizer, found .*=auto"):
            run(texts)
    spaces = {jd.open_dataset(path).feature_space for path in (tmp_path / "first", tmp_path / "new")}
    assert len(spaces) == 1


def test_vectors_of_ones_own_have_to_be_as_wide(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, shape in (("theirs", (160, 5)), ("ours", (90, 5)), ("wide", (90, 6))):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=shape).astype(np.float32))

    def given(name: str) -> EmbeddingConfig:
        return EmbeddingConfig(method="precomputed", options={"path": str(tmp_path / f"{name}.npy")})

    run(dataclasses.replace(reference_config(folder / "corpus", tmp_path / "first"), embedding=given("theirs")))
    new = following(tmp_path / "first", folder / "other", tmp_path / "new")
    with pytest.raises(jd.UserError, match="needs the option 'path'"):
        run(new)
    with pytest.raises(jd.UserError, match=r"Expected vectors of 5 dimensions, as in .*, found 6"):
        run(dataclasses.replace(new, embedding=given("wide")))
    run(dataclasses.replace(new, embedding=dataclasses.replace(given("ours"), method="tfidf_svd")))
    vectors = np.asarray(jd.open_dataset(tmp_path / "new").embeddings)
    np.testing.assert_array_equal(vectors, np.load(tmp_path / "ours.npy"))
    assert len({jd.open_dataset(tmp_path / name).feature_space for name in ("first", "new")}) == 1


OWN_EMBEDDER = """
import numpy as np

class Shares:
    dimensions = 3
    def embed(self, texts):
        return np.array([[text.count(letter) for letter in "aeo"] for text in texts], np.float32)

def shares({parameter}):
    return Shares()
"""


def test_an_embedder_of_ones_own_has_to_be_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for module, parameter in (("own_plain", ""), ("own_learning", "texts")):
        (tmp_path / f"{module}.py").write_text(OWN_EMBEDDER.format(parameter=parameter))
    config = reference_config(folder / "corpus", tmp_path / "first")
    # The function runs only where it is named again: the manifest of the first dataset does not count.
    plain, learning = (EmbeddingConfig(method=f"{module}:shares") for module in ("own_plain", "own_learning"))
    run(dataclasses.replace(config, embedding=plain))
    new = following(tmp_path / "first", folder / "other", tmp_path / "new", embedding=plain)
    run(new)
    spaces = {jd.open_dataset(tmp_path / name).feature_space for name in ("first", "new")}
    assert len(spaces) == 1
    with (tmp_path / "own_plain.py").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(jd.UserError, match=r"Expected the files with which embedding.method=own_plain:shares made"):
        run(new)
    run(dataclasses.replace(config, embedding=learning))
    with pytest.raises(jd.UserError, match=r"Expected the fitted state of embedding.method=own_learning:shares in"):
        run(dataclasses.replace(new, out=str(tmp_path / "newer"), embedding=learning))


def test_a_field_of_numbers_stays_one(folder: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(folder / "other", tmp_path / "corpus")
    for path in corpus.glob("*.jsonl"):
        path.write_text(path.read_text().replace('"quality": ', '"quality": true, "old": '))
    with pytest.raises(jd.UserError, match=r"Expected numbers in the metadata field 'quality', as in .*; use"):
        run(following(folder / "reference", corpus, tmp_path / "new"))
    assert set(OutputFolder(tmp_path / "new").stages) < {*TO_CHARACTERIZE}


def test_chats_with_another_template_than_the_other_dataset_are_said(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps({'messages': turns})}\n" for _ in range(40)))
    (tmp_path / "own.yaml").write_text('user: "U: {content}{end} "\nassistant: "A: {content}{end} "\n')

    def build(name: str, template: str, **settings: Any) -> None:
        chats = CorpusConfig(paths=(str(tmp_path / "chats.jsonl"),), format="chat", chat_template=template)
        config = BuildConfig(out=str(tmp_path / name), corpus=chats, **settings)
        Build(config).run_all(report=False)

    def tested(name: str, template: str) -> None:
        packing = PackingConfig(sequence_length=32, validation_fraction=1.0)
        build(name, template, packing=packing, features_from=str(tmp_path / "reference"))

    own, packing = str(tmp_path / "own.yaml"), PackingConfig(sequence_length=32, validation_fraction=0.2)
    build("reference", own, packing=packing, tokenizer=TokenizerConfig(vocab_size=270), batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tested("same", own)
    with pytest.warns(UserWarning, match=r"chat template chatml, .*: --corpus\.chat-template .*own\.yaml\."):
        tested("other", "chatml")
    (tmp_path / "own.yaml").write_text('user: "V: {content}{end} "\nassistant: "A: {content}{end} "\n')
    with pytest.warns(UserWarning, match=r"own\.yaml, or as this file was then"):
        tested("edited", own)
