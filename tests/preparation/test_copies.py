"""Steps that look for copies below and above the document: lines, sentences, substrings, texts that say the same."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here, Processes
from jax_diversity.foundation.text.sentences import split_sentences
from jax_diversity.foundation.text.words import split_words
from jax_diversity.preparation.passes import parts
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.steps import repeats, similarity
from jax_diversity.schema import Document

SOURCES = ("web", "books", "news")
EVERY: list[tuple[str, dict[str, Any]]] = [
    ("lines", {"precedence": ["news"]}),
    ("sentences", {"run": 2, "least_left": 0.2}),
    ("substrings", {"length": 6, "precedence": ["books", "web"]}),
    ("semantic", {"similarity": 0.7, "precedence": ["books"]}),
    ("similar_sentences", {"similarity": 0.8, "precedence": ["news"]}),
]


def through(step: str, texts: list[str], **options: Any) -> tuple[list[str], Chain]:
    """The texts as they are left, "" for those that are gone."""
    chain = Chain([(step, options)])
    documents = [Document(str(index), text, SOURCES[index % 3]) for index, text in enumerate(texts)]
    left = {int(document.id): document.text for document in chain.through(documents)}
    return [left.get(index, "") for index in range(len(texts))], chain


def random_texts(seed: int, number: int, mark: str = "") -> list[str]:
    """Texts of few words, so that everything comes again, some in lines, some with parts of others."""
    rng = np.random.default_rng(seed)
    texts: list[str] = []
    for _ in range(number):
        words = rng.choice(["aa", "bb", "cc", "dd"], int(rng.integers(1, 40)), p=[0.4, 0.3, 0.2, 0.1])
        ends = rng.choice([" ", "\n", "\n\n", mark + " ", mark + "\n"], len(words))
        text = "".join(word + end for word, end in zip(words, ends, strict=True))
        if texts and rng.random() < 0.3:
            text += texts[int(rng.integers(len(texts)))][: int(rng.integers(60))]
        texts.append(text)
    return texts


def reading_order(number: int, precedence: list[str]) -> list[int]:
    ranks = {source: rank for rank, source in enumerate(precedence)}
    return sorted(range(number), key=lambda index: (ranks.get(SOURCES[index % 3], 99), index))


def first_runs_left(rows: list[list[str]], run: int, precedence: list[str]) -> list[list[str]]:
    """Without what belongs to a run that came before: every run is compared with all before it."""
    before: list[list[str]] = []
    left: list[list[str]] = [[] for _ in rows]
    for index in reading_order(len(rows), precedence):
        row, gone = rows[index], set[int]()
        for start in range(len(row) - run + 1):
            piece = row[start : start + run]
            if any(piece == other for other in before):
                gone.update(range(start, start + run))
            before.append(piece)
        left[index] = [part for place, part in enumerate(row) if place not in gone]
    return left


# ---- Against slow references.
@pytest.mark.parametrize("seed", range(6))
def test_substrings_are_those_of_all_pairs(seed: int) -> None:
    texts, precedence = random_texts(seed, 24), ([], ["news", "books"])[seed % 2]
    length = 3 + seed
    left, chain = through("substrings", texts, length=length, precedence=precedence)
    expected = first_runs_left([split_words(text) for text in texts], length, precedence)
    assert [split_words(text) for text in left] == expected
    num_cut = sum(len(split_words(text)) for text in texts) - sum(map(len, expected))
    # Documents of which nothing is left are counted as removed alone.
    emptied = sum(len(split_words(text)) for text, words in zip(texts, expected, strict=True) if not words)
    assert num_cut - emptied <= chain.funnel()[0]["found"].get("words", 0) <= num_cut


@pytest.mark.campaign
def test_substrings_are_those_of_a_suffix_array() -> None:
    """In one text: the longest factors that begin at an earlier place, overlaps included."""
    pydivsufsort = pytest.importorskip("pydivsufsort")
    codes = np.random.default_rng(5).choice(3, 3000, p=[0.7, 0.2, 0.1]).astype(np.uint8)
    factors, length = np.asarray(pydivsufsort.longest_previous_factor(codes)), 12
    gone = np.zeros(len(codes), bool)
    for start in np.flatnonzero(factors >= length):
        gone[start : start + factors[start]] = True
    assert 100 < gone.sum() < 2900
    left, _ = through("substrings", [" ".join("xyz"[code] for code in codes)], length=length)
    assert left[0].split() == ["xyz"[code] for code in codes[~gone]]


@pytest.mark.parametrize("seed", range(4))
def test_sentences_are_those_of_all_pairs(seed: int) -> None:
    texts, precedence = random_texts(seed, 30, mark="."), ([], ["books"])[seed % 2]
    left, _ = through("sentences", texts, run=1 + seed, precedence=precedence)
    rows = [[re.sub(r"\W", "", sentence) for sentence in split_sentences(text)] for text in texts]
    expected = first_runs_left(rows, 1 + seed, precedence)
    assert [re.sub(r"\W", "", text) for text in left] == ["".join(row) for row in expected]


@pytest.mark.parametrize("seed", range(6))
def test_lines_are_counted_by_document(seed: int) -> None:
    texts, precedence = random_texts(seed, 30), ([], ["news"])[seed % 2]
    everywhere = seed >= 3
    left, chain = through("lines", texts, precedence=precedence, everywhere=everywhere, least_letters=3)
    holders: dict[str, list[int]] = defaultdict(list)
    rows = [[line for line in text.split("\n") if line.strip()] for text in texts]
    for index in reading_order(len(texts), precedence):
        for line in rows[index]:
            if index not in holders[line.replace(" ", "")]:
                holders[line.replace(" ", "")].append(index)
    expected = []
    for index, row in enumerate(rows):
        kept, seen = [], set[str]()
        for line in row:
            key = line.replace(" ", "")
            comes_again = len(holders[key]) >= 2 and (everywhere or holders[key][0] != index)
            if len(key) < 3 or not (comes_again or (everywhere and key in seen)):
                kept.append(line)
            seen.add(key)
        expected.append(kept)
    assert [[line for line in text.split("\n") if line.strip()] for text in left] == expected
    assert chain.funnel()[0]["found"]["lines"] > 20


# ---- Who works, and how much at a time, changes nothing.
def prepared(folder: Path) -> tuple[list[Document], dict[str, bytes]]:
    texts = [text + f" number {index} of all" for index, text in enumerate(random_texts(3, 150, mark="."))]
    documents = [Document(str(index), text, SOURCES[index % 3]) for index, text in enumerate(texts)]
    left = list(Chain(EVERY).through(documents, folder))
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return left, files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Document], dict[str, bytes]]:
    left, files = prepared(tmp_path_factory.mktemp("whole"))
    assert 20 < len(left) < 150
    return left, files


@pytest.mark.campaign
def test_parts_and_blocks_change_nothing(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PART_DOCUMENTS", 60)
    monkeypatch.setattr(repeats, "_BLOCK", 50)
    monkeypatch.setattr(repeats, "_CHUNK", 70)
    assert prepared(tmp_path) == whole


@pytest.mark.campaign
def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [Document(str(index), text, "web") for index, text in enumerate(random_texts(4, 60))]
    alone = list(Chain(EVERY[:1], Here()).through(documents))
    monkeypatch.setattr(parts, "_PART_DOCUMENTS", 31)
    assert list(Chain(EVERY[:1], Processes(2)).through(documents)) == alone


def test_a_run_that_was_cut_off_between_the_passes_goes_on(
    whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(repeats.HashedRepeats, "repeated", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path)
    assert prepared(tmp_path) == whole


# ---- What is left of a text.
def test_what_stays_keeps_its_lines_and_paragraphs() -> None:
    menu = "Home\nShop"
    texts = [menu, f"Title\n\n{menu}\n\nText.\n", f"{menu}\n  indented\nend", f"Text two.\n{menu}", "    indented\nz"]
    left, chain = through("lines", texts)
    assert left == [menu, "Title\n\nText.\n", "  indented\nend", "Text two.", "z"]
    assert chain.funnel()[0]["found"] == {"lines": 7}
    again = "One two. Three four. Five six."
    left, _ = through("sentences", [again, f"First.\n\n{again} Last.", f"{again}\n\nLast one.", f"So.\n{again}\n"])
    assert left == [again, "First.\n\nLast.", "Last one.", "So."]
    left, _ = through("substrings", ["a b c d", 'x ("a b c d"), y', "\tz a b c d\n\nw"], length=4)
    assert left == ["a b c d", 'x (" "), y', "\tz\n\nw"]


def test_what_makes_no_difference() -> None:
    line = "Posted on 12 May, 2023 \u2013 by Zoë"
    same = [
        "POSTED ON 30 MAY 1999 BY ZOË",
        "\u00a0posted  on 01 may 2000 \u2014 by zoë!",
        "posted on \u0663\u0663 may 2000 by zoë",
    ]
    for step, options in (("lines", {}), ("sentences", {"run": 1})):
        left, _ = through(step, [line, *same, "Posted on 1 May, 2023, by Zoë"], **options)
        assert left == [line, "", "", "", "Posted on 1 May, 2023, by Zoë"]
    # Substrings are equal to the letter.
    assert through("substrings", ["a b c", "A b c", "a  b\nc"], length=3)[0] == ["a b c", "A b c", ""]


def test_lines_without_letters_and_short_ones_stay() -> None:
    texts = ["---\n}\nyes it is", "---\n}\nyes it is\n\u660e\u6708\u5149"] * 2
    left, _ = through("lines", texts)
    assert left == ["---\n}\nyes it is", "---\n}\n\u660e\u6708\u5149", "---\n}", "---\n}"]
    assert through("lines", texts, least_letters=8)[0] == texts
    assert through("lines", texts, least_letters=7)[0][2:] == ["---\n}", "---\n}\n\u660e\u6708\u5149"]


def test_marks_alone_are_no_sentences() -> None:
    contents = "Chapter . . . . . . page. "
    left, _ = through("sentences", [contents + "It begins.", contents + "It ends."], run=2)
    assert left == [contents + "It begins.", "It ends."]
    assert through("sentences", ["Yes. . . .", "No. . . ."], run=2)[0] == ["Yes. . . .", "No. . . ."]


def test_a_period_is_left_of_what_repeats_itself() -> None:
    left, _ = through("substrings", ["la li lu " * 20], length=5)
    assert left == ["la li lu"]
    left, _ = through("sentences", ["So it is. And so on. " * 9 + "The end."], run=3)
    assert left == ["So it is. And so on. The end."]


def test_documents_of_little_left_go() -> None:
    texts = ["a b c d", "a b c d e f g h", "a b c d e"]
    left, chain = through("substrings", texts, length=4, least_left=0.5)
    assert left == ["a b c d", "e f g h", ""]
    assert chain.funnel()[0]["removed"] == {"least_left": 1}
    assert chain.funnel()[0]["found"] == {"words": 4}
    assert through("substrings", texts, length=4, least_left=1.0)[0] == ["a b c d", "", ""]


@pytest.mark.parametrize("step", ["lines", "sentences", "substrings"])
def test_shares_are_marked(step: str) -> None:
    options = {"lines": {}, "sentences": {"run": 1}, "substrings": {"length": 4}}[step]
    texts = ["It is so.", "Another one.", "It is so.\nHere are some more words."]
    documents = [Document(str(index), text, "web") for index, text in enumerate(texts)]
    marked = list(Chain([(step, options | {"mark": True})]).through(documents))
    assert [document.text for document in marked] == texts
    assert [document.metadata[f"repeated_{step}_share"] for document in marked] == [0, 0, 0.375]


# ---- Sentences that say the same.
CLOSED, WINTER = (
    "The harbour was closed by heavy ice until the spring.",
    "Nobody in our village remembered such a long winter.",
)
SAME_WORDS = "Until the spring the harbour was closed by heavy ice."


def test_a_sentence_with_the_words_of_an_earlier_one_goes() -> None:
    railway = CLOSED.replace("harbour", "railway")
    texts = [
        f"{CLOSED} Ships waited outside.",
        f"{SAME_WORDS} Ships waited outside.",
        f"Yes. {WINTER}\n\n{SAME_WORDS} {WINTER} It was 1901.",
        f"{railway} {WINTER}",
    ]
    left, chain = through("similar_sentences", texts)
    # Sentences of few words stay, and so does one with another rare word.
    assert left == [texts[0], "Ships waited outside.", f"Yes. {WINTER}\n\nIt was 1901.", railway]
    assert chain.funnel()[0]["found"] == {"sentences": 4}
    # The source that comes first keeps its sentences.
    assert through("similar_sentences", texts, precedence=["books", "news"])[0][0] == "Ships waited outside."
    left, chain = through("similar_sentences", texts, least_left=0.3)
    assert left[1] == ""
    assert chain.funnel()[0]["removed"] == {"least_left": 1}
    documents = [Document(str(index), text, "web") for index, text in enumerate(texts)]
    marked = list(Chain([("similar_sentences", {"mark": True})]).through(documents))
    assert [document.text for document in marked] == texts
    assert [document.metadata["repeated_similar_sentences_share"] for document in marked] == [
        *(0, 0.7692, 0.5938, 0.4737),  # 10 of 13 words, 19 of 32, 9 of 19
    ]


LIST = "\n".join(f"item{index} price{index}" for index in range(600))
STAY = {
    "one-digit numbers": (
        "On 3 May the council voted with 5 to 4 votes for the new bridge.",
        "On 9 May the council voted with 8 to 1 votes for the new bridge.",
    ),
    "formulas": (
        "Let $R = \\prod R_i$ be the usual product of rings as before.",
        "Let $G = \\prod G_i$ be the usual product of rings as before.",
    ),
    "short Chinese": ("他问我那个人去了哪里。我不知道。谢谢大家。", "她终于回到了故乡的小镇。我不知道。谢谢大家。"),
    "Chinese order": ("住在山上的狗咬了那个老人。", "那个住在山上的老人咬了狗。"),
    "dialogue": ("He said no. She said yes. Thank you.", "We met again. She said yes. Thank you."),
    "lists": (LIST + "\nleft" * 300, LIST + "\nright" * 300),
}


@pytest.mark.parametrize("name", STAY)
def test_sentences_that_say_something_else_stay(name: str) -> None:
    others = [
        f"Sentence {index} of the corpus speaks of subject {index * 7} and nothing else at all." for index in range(40)
    ]
    texts = [*STAY[name], *others]
    assert through("similar_sentences", texts)[0] == texts


@pytest.mark.parametrize("number", [20, 900])
def test_equal_texts_have_a_cosine_of_one(number: int) -> None:
    rng = np.random.default_rng(number)
    vocabulary = np.array([f"word{index}" for index in range(20_000)])
    rows = [" ".join(rng.choice(vocabulary, number)) + "." for _ in range(25)]
    for step in ("semantic", "similar_sentences"):
        assert through(step, rows * 2, similarity=1.0)[0] == rows + [""] * 25


@pytest.mark.parametrize("block", [2**26, 300])
def test_similar_sentences_are_those_of_all_pairs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one cluster: each sentence is compared with all sentences that stay."""
    monkeypatch.setattr(similarity, "_COSINES", block)
    rng = np.random.default_rng(3)
    vocabulary = np.array([f"word{index}" for index in range(60)])
    rows = [rng.choice(vocabulary, int(rng.integers(5, 14))).tolist() for _ in range(200)]
    rows += [[*rng.permutation(row), "word1"] for row in rows[:80]]
    texts = [" ".join(word.capitalize() if rng.random() < 0.5 else word for word in row) + "." for row in rows]
    documents = [" ".join(texts[start : start + 7]) for start in range(0, len(texts), 7)]
    left, _ = through("similar_sentences", documents, similarity=0.8, precedence=["books"])
    compared = [index for index, row in enumerate(rows) if len(set(row)) >= 8]
    number = Counter(word for index in compared for word in set(rows[index]))
    full_stop = np.log((1 + len(compared)) / len(compared))
    weight = {word: np.log((1 + len(compared)) / count) for word, count in number.items()}
    vectors = np.zeros((len(rows), 1 + len(vocabulary)))
    for index in compared:
        for word, count in Counter(rows[index]).items():
            vectors[index, int(word[4:])] = (1 + np.log(count)) * weight[word]
        vectors[index, -1] = full_stop
        vectors[index] /= np.linalg.norm(vectors[index])
    kept: list[int] = []
    for document in reading_order(len(documents), ["books"]):
        for index in range(7 * document, min(7 * document + 7, len(rows))):
            if index not in compared or not any(vectors[index] @ vectors[other] >= 0.8 for other in kept):
                kept.append(index)
    assert 30 < len(rows) - len(kept) < 150
    expected = [" ".join(texts[i] for i in sorted(kept) if i // 7 == place) for place in range(len(documents))]
    assert left == expected


# ---- Documents that say the same.
def test_texts_of_the_same_words_in_another_order_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vocabulary = np.array([f"word{index}" for index in range(3000)])
    texts = [rng.choice(vocabulary, 80) for _ in range(61)]
    texts += [rng.permutation(np.append(words, ["added", "words"])) for words in texts[:20]]
    documents = [Document(str(index), " ".join(words), SOURCES[index % 3]) for index, words in enumerate(texts)]
    marked = Chain([("semantic", {"mark": True})]).through(documents)
    groups = defaultdict(set)
    for document in marked:
        if "semantic_group" in document.metadata:
            groups[document.metadata["semantic_group"]].add(int(document.id))
    assert sorted(map(sorted, groups.values())) == [[index, index + 61] for index in range(20)]
    left = list(Chain([("semantic", {"precedence": ["news", "books"]})]).through(documents, tmp_path))
    assert len(left) == 61
    kept_of = {row["id"]: row["duplicate_of"] for row in pq.read_table(tmp_path / "decisions").to_pylist()}
    assert kept_of["2"] == kept_of["63"] == "2"
    assert kept_of["1"] == kept_of["62"] == "62"
    assert Counter(document.source for document in left)["web"] == 14


def vector_documents(vectors: list[Any]) -> list[Document]:
    return [Document(f"d{index}", "text", "web", metadata={"v": v}) for index, v in enumerate(vectors)]


def test_the_one_farthest_from_the_centre_is_kept() -> None:
    def at(degrees: float) -> list[float]:
        return [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]

    # The centre is near 30 degrees: of 3 and 8 the former is farther, of 50 and 57 the latter.
    documents = vector_documents([at(degrees) for degrees in (8, 3, 50, 57, 30, 30.01)] + [[0.0, 0.0]])
    options = {"vectors": "v", "similarity": float(np.cos(np.radians(9)))}
    left = [document.id for document in Chain([("semantic", options)]).through(documents)]
    assert left[:2] + left[3:] == ["d1", "d3", "d6"]
    assert left[2] in ("d4", "d5")


def test_whoever_goes_is_like_one_that_is_kept(tmp_path: Path) -> None:
    """A chain of neighbours is not a group: its ends are unlike each other."""
    vectors = np.random.default_rng(2).normal(size=(300, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    options = {"vectors": "v", "similarity": 0.97}
    documents = vector_documents(vectors.tolist())
    left = {document.id for document in Chain([("semantic", options)]).through(documents, tmp_path)}
    assert 30 < len(left) < 250
    kept = vectors[[int(name[1:]) for name in left]]
    cosines = kept @ kept.T - np.eye(len(kept))
    assert cosines.max() < 0.97
    for row in pq.read_table(tmp_path / "decisions").to_pylist():
        if not row["kept"]:
            assert row["duplicate_of"] in left
            assert vectors[int(row["id"][1:])] @ vectors[int(row["duplicate_of"][1:])] > 0.9699


@pytest.mark.parametrize("vector", [None, "text", [[1.0], [2.0]], [1.0, None], []], ids=str)
def test_a_document_without_a_vector_is_removed(vector: Any, tmp_path: Path) -> None:
    chain = Chain([("semantic", {"vectors": "v"})])
    left = list(chain.through(vector_documents([[1.0, 0.0], vector, [0.0, 1.0]])))
    assert [document.id for document in left] == ["d0", "d2"]
    assert chain.funnel()[0]["removed"] == {"raised": 1}
    assert chain.funnel()[0]["found"] == {"the field 'v' is not a list of numbers": 1}
    with pytest.raises(
        UserError, match=r"removed all 2 \(2 by semantic\.raised \(the field 'v' is not a list of numbers"
    ):
        list(chain.through(vector_documents([vector, vector]), tmp_path))


def test_vectors_of_several_lengths() -> None:
    with pytest.raises(UserError, match="equal numbers of entries, found 2 and 3"):
        list(Chain([("semantic", {"vectors": "v"})]).through(vector_documents([[1.0, 0.0], [1.0, 0.0, 0.0]])))


def test_few_documents_and_empty_ones() -> None:
    for step, _ in EVERY:
        assert list(Chain([(step, {})]).through([])) == []
        assert through(step, ["one text"])[0] == ["one text"]
    assert through("semantic", ["", "!", "a b", "one text here", "one text here", ""])[1].num_kept == 5


@pytest.mark.parametrize(
    ("step", "options"),
    [
        ("lines", {"least_letters": -1}),
        ("lines", {"least_left": 1.5}),
        ("sentences", {"run": 0}),
        ("sentences", {"least_left": -0.1}),
        ("substrings", {"length": 0}),
        ("semantic", {"similarity": 0.0}),
        ("semantic", {"similarity": 1.1}),
        ("similar_sentences", {"similarity": 0.0}),
        ("similar_sentences", {"least_left": 2.0}),
    ],
)
def test_options_that_are_refused(step: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        Chain([(step, options)])


# ---- Numbers in near copies.
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")


def table_of_numbers(seed: int) -> str:
    """A table of measured values: the words are the same in all tables."""
    rng = np.random.default_rng(seed)
    rows = (" ".join([month, *(f"{value:.1f}" for value in rng.normal(50, 20, 4))]) for month in MONTHS)
    return "Month Mean Least Most Rain\n" + "\n".join(rows)


def page_with_date(day: int) -> str:
    return (
        " ".join(f"Words of sentence number {index} of the same page." for index in range(20)) + f" Printed {day} May."
    )


@pytest.mark.parametrize(("digits", "num_tables", "num_pages"), [("auto", 6, 1), ("count", 6, 1), ("ignore", 1, 1)])
def test_tables_of_other_numbers_are_no_copies(digits: str, num_tables: int, num_pages: int) -> None:
    left, _ = through("minhash", [table_of_numbers(seed) for seed in range(6)], digits=digits)
    assert sum(map(bool, left)) == num_tables
    left, _ = through("minhash", [table_of_numbers(3)] * 4, digits=digits)
    assert sum(map(bool, left)) == 1
    left, _ = through("minhash", [page_with_date(day) for day in range(1, 7)], digits=digits, run=2)
    assert sum(map(bool, left)) == num_pages


def test_numbers_in_counters_are_ignored_unless_asked() -> None:
    pages = [
        " ".join(f"Item {index * seed} of the shop costs little today." for index in range(30)) for seed in (7, 11)
    ]
    assert sum(map(bool, through("minhash", pages)[0])) == 1
    assert sum(map(bool, through("minhash", pages, digits="count")[0])) == 2
    with pytest.raises(UserError, match="'digits' to be one of auto, count, ignore"):
        Chain([("minhash", {"digits": "no"})])
