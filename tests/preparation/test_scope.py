"""The option `only` of every step: other documents pass unchanged, and the funnel counts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig, CorpusConfig
from jax_diversity.pipeline.tables import funnel_table
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.passes.phases import labelled
from jax_diversity.preparation.passes.settings import PreparationConfig, StepConfig
from jax_diversity.preparation.steps.base import METHODS
from jax_diversity.schema import Document

TEXT = "one two three four five six seven eight nine ten"
PLACES = [("web-1", "en"), ("law", "en"), ("web-2", "de"), ("web-1", "en-US"), ("web-1", None)]
DOCUMENTS = [
    Document(f"d{index}", TEXT, source, language) for index, (source, language) in enumerate(PLACES)
]  # fmt: skip


def removed(step: str, only: Any, **options: Any) -> list[str]:
    chain = Chain([(step, {**options, "only": only})])
    kept = {document.id for document in chain.through(DOCUMENTS)}
    step_funnel = chain.funnel()[0]
    assert step_funnel["documents_in"] == len(DOCUMENTS)
    return [document.id for document in DOCUMENTS if document.id not in kept]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ({"language": ["en"]}, ["d0", "d1", "d3"]),
        ({"source": ["web-*"]}, ["d0", "d2", "d3", "d4"]),
        ({"source": "web-*", "language": ["en-US", "de"]}, ["d2", "d3"]),
        ("{source: law}", ["d1"]),
        ({"language": ["fr"]}, []),
        ({"source": ["!law"]}, ["d0", "d2", "d3", "d4"]),
        ({"source": ["web-*", "!web-2"], "language": ["!en-US"]}, ["d0", "d4"]),
    ],
)
def test_a_step_is_applied_to_some_sources_and_languages(only: Any, expected: list[str]) -> None:
    assert removed("words", only, least=50) == expected


def test_a_scope_without_documents_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "one two three"}\n' * 2)
    scope = {"source": ("missspelt",)}
    config = BuildConfig(
        out=str(tmp_path / "out"),
        corpus=CorpusConfig(paths=(str(tmp_path / "texts.jsonl"),)),
        preparation=PreparationConfig(steps=(StepConfig("words", {"least": 1}, scope),)),
    )
    with pytest.warns(UserWarning, match="`only` of the step words excludes all 2 documents"):
        Build(config, Progress(quiet=True)).run_stage("prepare")


def test_other_documents_take_no_part_in_a_comparison(tmp_path: Path) -> None:
    for step in ("exact_duplicates", "minhash", "lines", "sentences", "substrings", "semantic", "similar_sentences"):
        chain = Chain([(step, {"only": {"source": ["web-1"]}})])
        left = list(chain.through(DOCUMENTS, tmp_path / step))
        assert {"d0", "d1", "d2"} <= {document.id for document in left}, step
        assert all(document.text == TEXT for document in left), step
        assert chain.funnel()[0]["unjudged"] == {"all_rules": 2}, step
    assert [row["kept"] for row in pq.read_table(tmp_path / "exact_duplicates/decisions").to_pylist()] == [
        *(True, True, True, False, False)
    ]


def test_thresholds_by_source_and_language() -> None:
    steps = [
        ("words", {"least": 50, "only": {"source": ["law"]}}),
        ("words", {"least": 11, "only": {"language": ["de"]}}),
        ("words", {"least": 5}),
    ]
    chain = Chain(steps)
    assert [document.id for document in chain.through(DOCUMENTS)] == ["d0", "d3", "d4"]
    assert [(step["removed"], step["unjudged"]) for step in chain.funnel()] == [
        ({"words": 1}, {"all_rules": 4}),
        ({"words": 1}, {"all_rules": 3}),
        ({}, {}),
    ]


def test_the_summary_says_how_many_documents_a_scope_excludes() -> None:
    steps = [
        ("words", {"least": 1, "only": {"language": ["englisch"]}}),
        ("words", {"least": 1, "only": {"language": ["de"]}}),
    ]
    chain = Chain(steps)
    assert list(chain.through(DOCUMENTS))
    printed = funnel_table(chain.account())
    assert "words judged no document: `only` excludes all 5" in printed
    assert "words_2 did not judge 4 documents, which `only` excludes" in printed


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("python",)])
def test_every_step_takes_it(name: str) -> None:
    [spec] = labelled([(name, {"only": {"language": ["xx"]}})])
    assert spec.only == {"language": ("xx",)}
    assert "only" not in METHODS.parameters(name)


def test_settings() -> None:
    config = PreparationConfig(steps=(StepConfig("words", {"least": 50}, {"language": ("en",)}),))
    assert config.made_of()["preparation"] == [
        {"step": "words", "options": {"least": 50}, "only": {"language": ("en",)}}
    ]
    plain = PreparationConfig(steps=(StepConfig("words", {"least": 50}),)).made_of()
    assert plain["preparation"] == [{"step": "words", "options": {"least": 50}}]
    config = PreparationConfig(recipe="gopher", options={"gopher.only": "{source: [web]}"})
    config.check()
    assert config.made_of()["preparation"][0]["only"] == {"source": ("web",)}
    assert "only" not in config.made_of()["preparation"][1]


@pytest.mark.parametrize(
    "only", [{}, {"topic": ["a"]}, {"language": []}, {"language": [1]}, {"language": ["en"], "id": "x"}, 3, [], "x"]
)
def test_a_wrong_scope_is_one_clear_sentence(only: Mapping[str, Any]) -> None:
    with pytest.raises(UserError, match="Expected the option 'only' of the step words to list sources or languages"):
        Chain([("words", {"only": only})])
