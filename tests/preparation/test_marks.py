"""Annotate first, filter later: marked steps, the step `fields`, and removed documents in full."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Processes
from jax_diversity.pipeline.build import Build
from jax_diversity.preparation.passes import parts as preparation_parts
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.passes.settings import PreparationConfig, StepConfig
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document
from jax_diversity.schema.document_store import write_documents
from tests.support.tiny_corpus import tiny_config, write_corpus

DOCUMENTS = [
    Document("a", "one two three four", "web", "en", "A", {"n": 1}),
    Document("b", "one two", "web", "en"),
    Document("c", "one two three four five.\nA line that ends a sentence.", "law", "de"),
]


def test_a_marked_step_keeps_documents_and_stores_its_values() -> None:
    chain = Chain([("words", {"least": 4, "mark": True}), ("c4", {"mark": True})])
    left = list(chain.through(DOCUMENTS))
    assert [document.text for document in left] == [document.text for document in DOCUMENTS]
    assert [document.metadata["words_passes"] for document in left] == [True, False, True]
    assert left[0].metadata["n"] == 1
    assert {name for name in left[1].metadata if name.startswith("words")} == {"words", "words_words", "words_passes"}
    assert left[1].metadata["words_words"] == 2
    funnel = chain.funnel()
    assert funnel[0]["removed"] == {}
    assert funnel[0]["found"] == {"fails words": 1}
    assert funnel[1]["edited"] == 0
    # `c4` would remove lines; every rule is measured, also after the first that fails.
    assert {"c4_least_sentences", "c4_passes"} <= set(left[0].metadata)


def test_steps_with_a_mark_of_their_own_and_steps_that_only_edit() -> None:
    chain = Chain([("exact_duplicates", {"mark": True})])
    assert len(list(chain.through([*DOCUMENTS, Document("d", "ONE two", "web")]))) == 4
    for step, options in (("personal_data", {}), ("gutenberg", {}), ("latex", {}), ("weight", {"weights": {"n=1": 1}})):
        with pytest.raises(UserError, match=f"'mark' with a step that removes documents, found it with {step}"):
            Chain([(step, {**options, "mark": True})])
    with pytest.raises(UserError, match="Expected the option 'mark' of words to be True or False, found 1"):
        Chain([("words", {"mark": 1})])
    config = PreparationConfig(steps=(StepConfig("words", {"mark": True}),))
    assert config.made_of()["preparation"][0]["mark"] is True
    assert "mark" not in PreparationConfig(steps=(StepConfig("words"),)).made_of()["preparation"][0]


def test_a_later_run_filters_by_the_fields(tmp_path: Path) -> None:
    marked = Chain([("words", {"least": 4, "mark": True})]).through(DOCUMENTS)
    write_documents(marked, tmp_path / "documents", 1000)
    config = CorpusConfig(paths=(str(tmp_path / "documents/*.parquet"),))
    stored = list(read_documents(config, ReadReport()))
    assert [document.title for document in stored] == ["A", None, None]
    assert stored[0].metadata == {"n": 1, "words": 4, "words_words": 4, "words_passes": True}
    for options, expected in (
        ({"keep": ["words_passes=true"]}, ["a", "c"]),
        ({"keep": "words_words>=4", "remove": ["source=law"]}, ["a"]),
        ({"remove": ["words_words<3", "language!=en"]}, ["a"]),
        ({"keep": ["n=1"]}, ["a", "b", "c"]),  # documents without the field pass
    ):
        chain = Chain([("fields", options)])
        assert [document.id for document in chain.through(stored)] == expected
    assert chain.funnel()[0]["unjudged"] == {"n=1": 2}
    chain = Chain([("fields", {"keep": ["words_words>=3"]})])
    list(chain.through(stored, tmp_path / "preparation"))
    (row,) = (each for each in pq.read_table(tmp_path / "preparation/decisions").to_pylist() if not each["kept"])
    assert (row["rule"], row["value"], row["threshold"]) == ("words_words>=3", 2, 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "Expected rules in the options 'keep' or 'remove', found no rule"),
        ({"keep": ["quality"]}, "Expected rules such as source=web-"),
        ({"keep": ["quality>=high"]}, "to compare with a number, found 'high'"),
        ({"remove": ["quality@source<0.5"]}, "found the mean of a group"),
    ],
)
def test_wrong_rules(options: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Chain([("fields", options)])


def test_a_field_that_no_document_has() -> None:
    chain = Chain([("fields", {"keep": ["source=web", "qualty>=0.5"]})])
    with pytest.raises(UserError, match=r"Expected the field 'qualty' of the rule 'qualty>=0\.5' .* in none of 2"):
        list(chain.through(DOCUMENTS))
    # A rule may remove all documents that have the field.
    chain = Chain([("fields", {"remove": ["n=1"]})])
    assert [document.id for document in chain.through(DOCUMENTS)] == ["b", "c"]


@pytest.mark.campaign
@pytest.mark.parametrize("num_processes", [1, 2])
def test_removed_documents_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_processes: int) -> None:
    monkeypatch.setattr(preparation_parts, "_PART_DOCUMENTS", 2)
    documents = [
        *DOCUMENTS,
        dataclasses.replace(DOCUMENTS[0], id="d"),
        Document("e", "f", "web", None, None, {"k": "v"}),
    ]
    steps = [("words", {"least": 3}), ("exact_duplicates", {}), ("words", {"least": 9})]
    chain = Chain(steps, Processes(num_processes), keep_removed=True)
    assert [document.id for document in chain.through(documents, tmp_path)] == ["c"]
    files = sorted(path.name for path in (tmp_path / "removed").iterdir())
    assert files == ["exact_duplicates.duplicate.parquet", "words.words.parquet", "words_2.words.parquet"]
    rows = pq.read_table(tmp_path / "removed/words.words.parquet").to_pylist()
    assert [(row["id"], row["text"], row["value"], row["threshold"]) for row in rows] == [
        ("b", "one two", 2, 3),
        ("e", "f", 1, 3),
    ]
    assert json.loads(rows[1]["metadata"]) == {"k": "v", "words": 1}
    (copy,) = pq.read_table(tmp_path / "removed/exact_duplicates.duplicate.parquet").to_pylist()
    assert (copy["id"], copy["duplicate_of"], copy["title"]) == ("d", "a", "A")
    # The files can be read as a corpus.
    found = list(read_documents(CorpusConfig(paths=(str(tmp_path / "removed/words_2*"),)), ReadReport()))
    assert [(document.id, document.text, document.source) for document in found] == [("a", DOCUMENTS[0].text, "web")]
    assert found[0].metadata["rule"] == "words"


def test_removed_documents_of_a_build(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "raw", 60)
    preparation = PreparationConfig(steps=(StepConfig("words", {"least": 60}),), keep_removed=True)
    config = dataclasses.replace(tiny_config(corpus, tmp_path / "out"), preparation=preparation)
    result = Build(config).run_stage("prepare")
    (path,) = (tmp_path / "out/preparation/removed").iterdir()
    assert pq.read_metadata(path).num_rows == result.counts["preparation"]["steps"][0]["removed"]["words"] > 0
    without = dataclasses.replace(preparation, keep_removed=False)
    assert without.made_of() != preparation.made_of()
