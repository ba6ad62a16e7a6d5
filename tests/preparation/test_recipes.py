"""The recipes: every threshold equals the number in its paper, and every header names the source and what differs."""

# ruff: noqa: RUF001

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.passes.settings import RECIPES, PreparationConfig
from jax_diversity.preparation.steps.base import METHODS
from jax_diversity.schema import Document

GOPHER = {  # Rae et al. 2021, appendix A.1.1
    **{"least_words": 50, "most_words": 100_000, "least_mean_length": 3, "most_mean_length": 10},
    **{
        "most_hashes_per_word": 0.1,
        "most_ellipses_per_word": 0.1,
        "most_bullet_lines": 0.9,
        "most_ellipsis_lines": 0.3,
    },
    **{"least_alphabetic_words": 0.8, "least_stop_words": 2},
}
REPETITION = {  # Rae et al. 2021, table A1
    **{"lines": 0.3, "paragraphs": 0.3, "line_characters": 0.2, "paragraph_characters": 0.2},
    **{"top_2": 0.2, "top_3": 0.18, "top_4": 0.16},
    **{"repeated_5": 0.15, "repeated_6": 0.14, "repeated_7": 0.13},
    **{"repeated_8": 0.12, "repeated_9": 0.11, "repeated_10": 0.1},
}
C4 = {"least_sentences": 5, "least_words_a_line": 3, "longest_word": 1000}  # Raffel et al. 2020, section 2.2; the code
FINEWEB = {  # datatrove's FineWebQualityFilter
    **{"least_punctuated_lines": 0.12, "most_short_lines": 0.67},
    **{"most_duplicate_characters": 0.01, "most_line_ends_per_word": 0.3},
}
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("gopher", "gopher"): {"thresholds": GOPHER},
    ("gopher", "repetition"): {"thresholds": REPETITION},
    ("gopher", "minhash"): {"run": 13, "similarity": 0.8},
    ("c4", "c4"): {"thresholds": C4, "without": ()},
    ("c4", "sentences"): {"run": 3},
    ("fineweb", "addresses"): {"left_out": ()},
    ("fineweb", "html"): {"favor_precision": True, "deduplicate": True, "extractor_only": True},
    ("refinedweb", "html"): {"favor_precision": False, "deduplicate": False, "extractor_only": True},
    ("fineweb", "language"): {"languages": ("en",), "probability": 0.65},
    ("fineweb", "gopher"): {"thresholds": GOPHER},
    ("fineweb", "repetition"): {"thresholds": REPETITION},
    ("fineweb", "c4"): {"thresholds": C4, "without": ("terminal_punctuation",)},
    ("fineweb", "fineweb"): {"thresholds": FINEWEB, "form": "datatrove"},
    ("fineweb", "minhash"): {"bands": 14, "rows": 8, "run": 5},
    ("refinedweb", "language"): {"probability": 0.65},
    ("refinedweb", "gopher"): {"thresholds": GOPHER},
    ("refinedweb", "repetition"): {"thresholds": REPETITION},
    ("refinedweb", "minhash"): {"bands": 450, "rows": 20, "run": 5},
    ("refinedweb", "substrings"): {"length": 44},  # 50 tokens of GPT-2 in the paper
    ("ccnet", "lines"): {"everywhere": True, "keep_marks": True},
    ("ccnet", "language"): {"probability": 0.5},
    ("ccnet", "perplexity"): {"thirds": ("head",)},
    ("llama-books", "minhash"): {"similarity": 0.82},
    ("llama-commoncrawl", "lines"): {"everywhere": True, "keep_marks": True},
    ("llama-commoncrawl", "language"): {"languages": ("en",), "probability": 0.5},
    ("llama-commoncrawl", "perplexity"): {"thirds": ("head", "middle")},
    ("llama-c4", "c4"): {"thresholds": C4, "without": ()},
    ("llama-c4", "sentences"): {"run": 3},
    ("llama-c4", "language"): {"languages": ("en",), "probability": 0.99},
    ("llama-github", "code"): {"thresholds": {"most_mean_line": 100, "longest_line": 1000, "least_alphanumeric": 0.25}},
    ("baichuan2", "sentences"): {"run": 3},  # the paper has no thresholds: these values are this package's
    ("baichuan2", "minhash"): {"bands": 14, "rows": 8, "run": 5},
    ("baichuan2", "quality"): {"least": 0},
    ("qwen", "gopher"): {"thresholds": GOPHER},
    ("qwen", "repetition"): {"thresholds": REPETITION},
    ("qwen", "minhash"): {"bands": 14, "rows": 8, "run": 5},
    ("skywork", "language"): {"languages": ("en", "zh"), "probability": 0.5},
    ("skywork", "quality"): {"least": 0.5},
    ("wikitext-50-words", "words"): {"least": 50},
}

ORDERS = {  # the order of the stages in the papers, without the stages that a header names as left out
    "gopher": ["gopher", "repetition", "exact_duplicates", "minhash"],  # Rae et al. 2021, appendix A.1
    "ccnet": ["lines", "language", "perplexity"],  # Wenzek et al. 2020, figure 1
    "refinedweb": [  # Penedo et al. 2023, table 2
        *("addresses", "html", "language", "repetition", "gopher", "line_corrections", "minhash", "substrings"),
    ],
    "fineweb": [  # datatrove, examples/fineweb.py
        *("addresses", "html", "language", "repetition", "gopher", "c4", "fineweb", "minhash", "personal_data"),
    ],
    "baichuan2": [  # Yang et al. 2023, figure 2; then the scores
        *("html", "exact_duplicates", "lines", "sentences", "minhash", "semantic", "quality", "weight"),
    ],
}


@pytest.mark.parametrize("recipe", ORDERS)
def test_steps_have_the_order_of_the_papers(recipe: str) -> None:
    assert [each.step for each in PreparationConfig(recipe=recipe).listed()] == ORDERS[recipe]


@pytest.mark.parametrize(("recipe", "step"), OPTIONS)
def test_options_equal_the_papers(recipe: str, step: str) -> None:
    [options] = [
        METHODS.options(each.step) | dict(each.options)
        for each in PreparationConfig(recipe=recipe).listed()
        if each.step == step
    ]
    assert {name: options[name] for name in OPTIONS[recipe, step]} == OPTIONS[recipe, step]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_names_its_source_and_what_is_left_out(path: Any) -> None:
    header = " ".join(line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#")
    assert header.startswith(f"jax-diversity build --recipe {path.stem} ")
    assert "arXiv:" in header or "JMLR" in header or path.stem == "wikitext-50-words"
    assert "Left out" in header or "Differences" in header
    for each in dataclasses.replace(PreparationConfig(recipe=path.stem)).listed():
        METHODS.check_name(each.step)


def test_two_forms_of_finewebs_rules() -> None:
    """The paper allows .1 of the characters in repeated lines, the code .01 and few line ends."""
    lines = [f"This is line {index} of the text, and it ends here." for index in range(38)]
    repeated = "\n".join([*lines, *lines[:2]])
    different = "\n".join(lines)

    def is_kept(text: str, **options: Any) -> bool:
        return bool(list(Chain([("fineweb", options)]).through([Document("a", text, "web")])))

    assert [is_kept(text) for text in (repeated, different)] == [False, True]
    assert [is_kept(text, form="paper") for text in (repeated, different)] == [True, True]
    many = "\n".join(
        f"word{index}{'x' * 30}." for index in range(30)
    )  # a line end for two words: the word and its mark
    assert not is_kept(many)
    assert is_kept(many, form="paper")


def test_ccnets_lines_keep_spaces_and_marks() -> None:
    documents = [Document("a", "One line.\nIt's here!", "web"), Document("b", "one line.\nIts here\n---", "web")]

    def left(**options: Any) -> list[str]:
        return [document.text for document in Chain([("lines", options)]).through(documents)]

    assert left(keep_marks=True) == ["One line.\nIt's here!", "Its here\n---"]
    assert left() == ["One line.\nIt's here!", "---"]
    documents = [Document("a", "x，一\n\uff11", "web"), Document("b", "X一\n1", "web")]
    assert left(keep_marks=True)[1:] == ["1"]


def test_repeated_paragraphs_of_a_page_do_not_depend_on_other_pages() -> None:
    repeated = (
        "<p>This paragraph has more than one hundred characters, and it occurs so often that it "
        "looks like a banner.</p>"
    )
    texts = [
        f"<p>Paragraph {index} of the article tells another part of the story, in a few more words.</p>"
        for index in range(6)
    ]
    page = f"<html><body><article>{repeated.join(['', *texts])}</article></body></html>"

    def counts(**options: bool) -> list[int]:
        chain = Chain([("html", {"always": True, **options})])
        documents = [Document(str(index), page, "web") for index in range(4)]
        return [document.text.count("looks like a banner") for document in chain.through(documents)]

    assert counts() == [6] * 4
    with_deduplication = counts(deduplicate=True)
    assert len(set(with_deduplication)) == 1
    assert 0 < with_deduplication[0] < 6
