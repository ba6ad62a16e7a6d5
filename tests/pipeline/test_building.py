"""`jd.build`: a dataset with one call, the same as the command makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jax_diversity as jd
from jax_diversity.pipeline.settings import PackingConfig
from tests.support.tiny_corpus import tiny_config


def test_a_call_makes_the_dataset_of_the_command(tiny_dataset: Path, tmp_path: Path) -> None:
    """The stages have the fingerprints of the tiny dataset, so nothing is made again."""
    import dataclasses
    import shutil

    out = shutil.copytree(tiny_dataset, tmp_path / "out")
    config = tiny_config(tiny_dataset.parent / "corpus", out)
    plain = dataclasses.asdict(config)
    settings = {name: plain[name] for name in plain if name not in ("out", "batch_size", "packing", "corpus", "orders")}
    corpus = {name: value for name, value in plain["corpus"].items() if name != "paths"}
    packing = PackingConfig(**{**plain["packing"], "sequence_length": 999})
    dataset = jd.build(
        config.corpus.paths, out, quiet=True, sequence_length=32, packing=packing, corpus=corpus, **settings
    )
    assert dataset.sequence_length == 32
    before = jd.open_dataset(tiny_dataset).manifest["stages"]
    after = dataset.manifest["stages"]
    for stage in ("prepare", "tokenize", "pack", "order/balance", "write"):
        assert after[stage]["fingerprint"] == before[stage]["fingerprint"]


@pytest.mark.parametrize("texts", ["A text.\nIt has two lines.", "word " * 1000, "The garden has flowers."])
def test_texts_in_place_of_files_are_refused_with_the_way_to_write_them(texts: str, tmp_path: Path) -> None:
    with pytest.raises(jd.UserError, match=r"Expected paths to be names of files, found .*to_parquet") as caught:
        jd.build([texts], tmp_path / "out")
    assert len(str(caught.value)) < 300
    assert not (tmp_path / "out").exists()


def test_names_of_files_may_have_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my texts").mkdir()
    for name in ("my texts", "my tex*", "no such file.jsonl", str(tmp_path / "no such")):
        with pytest.raises(jd.UserError, match="Expected files at"):
            jd.build(name, "out", quiet=True)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("paths", "out", "sentence"),
    [
        (None, "out", "paths to be names of files, or `python-environment`, found None"),
        (3, "out", "paths to be names of files, or `python-environment`, found int 3"),
        ("a.jsonl", 3, "out to be the dataset's folder, found int 3"),
        ("a.jsonl", None, "out to be the dataset's folder, found None"),
        ("a.jsonl", "x" * 300, r"path that can exist, found 'xxx.*xxx' \(its name is too long\)"),
        ("a.jsonl", "a\0b", "a text that can name a file"),
    ],
)
def test_names_that_are_none_are_sentences(
    paths: Any, out: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(jd.UserError, match=sentence) as caught:
        jd.build(paths, out, quiet=True)
    assert len(str(caught.value)) < 300
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_long_names_are_sentences_at_other_doors(tmp_path: Path) -> None:
    name = "x" * 300
    chars = jd.Characteristics.from_counts({"topic": ["a", "b"] * 4})
    for door in (
        lambda: jd.open_dataset(name),
        lambda: jd.open_schedule(name),
        lambda: jd.Sample.load(f"{name}.npz"),
        lambda: jd.sample(name, 3),
        lambda: jd.order(chars).save(tmp_path / f"{name}.npy"),
    ):
        with pytest.raises(jd.UserError, match="its name is too long"):
            door()


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(jd.UserError, match=r'Unknown setting end_id; .*; write corpus=\{"end_id": \.\.\.\}\.$'):
        jd.build("x.bin", tmp_path / "out", end_id=7)  # pyright: ignore[reportCallIssue]
    with pytest.raises(jd.UserError, match="Unknown setting paking"):
        jd.build("a.jsonl", tmp_path / "out", paking={"sequence_length": 8})
    with pytest.raises(jd.UserError, match="Expected packing to be a mapping of settings, found int"):
        jd.build("a.jsonl", tmp_path / "out", sequence_length=8, packing=3)
    with pytest.raises(jd.UserError, match=r"Expected files at .*none.jsonl, found none"):
        jd.build(tmp_path / "none.jsonl", tmp_path / "out", quiet=True)
