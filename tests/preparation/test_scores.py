"""Steps that score: classifiers and language models of the user's own texts, weights, languages by fastText."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jax_diversity import open_dataset
from jax_diversity.cli.main import main
from jax_diversity.cli.parsing import parse_options
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.settings import read_settings
from jax_diversity.foundation.text.words import plain_word
from jax_diversity.pipeline.settings import BuildConfig, PreparationConfig
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.passes.settings import StepConfig
from jax_diversity.preparation.readers.named import read_texts
from jax_diversity.preparation.steps import perplexity, quality
from jax_diversity.preparation.steps.fasttext_model import labels
from jax_diversity.preparation.steps.kneser_ney import NgramModel, train
from jax_diversity.schema import Document
from tests.support.sentencepiece_models import train_model

GOOD = ["theorem", "proof", "lemma", "integral", "series", "convergence", "bounded", "function", "limit", "metric"]
BAD = ["buy", "cheap", "now", "offer", "click", "free", "discount", "winner", "prize", "deal", "sale", "bonus"]
COMMON = ["the", "a", "of", "and", "is", "to", "in", "that", "it", "for"]


def made_text(rng: random.Random, words: Sequence[str], length: int = 40) -> str:
    return " ".join(rng.choice(words if rng.random() < 0.4 else COMMON) for _ in range(length)) + "."


def made_texts(words: Sequence[str], number: int = 60, seed: int = 0) -> list[str]:
    rng = random.Random(f"{words[0]} {seed}")
    return [made_text(rng, words, rng.randint(10, 60)) for _ in range(number)]


def write_texts(path: Path, texts: Sequence[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


def through(
    steps: list[tuple[str, dict[str, Any]]], texts: Sequence[str], **about: Any
) -> tuple[list[Document], Chain]:
    chain = Chain(steps)
    return list(chain.through([Document(f"d{index}", text, "web", **about) for index, text in enumerate(texts)])), chain


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("examples")
    return {
        "good": write_texts(folder / "good.jsonl", made_texts(GOOD)),
        "bad": write_texts(folder / "bad.jsonl", made_texts(BAD)),
    }


# ---- Files of one's own texts.
def test_texts_come_in_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with gzip.open("some.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"text": "one"}\n\n{"text": " "}\n{"text": "zwölf", "id": 3}\n')
    pq.write_table(pa.table({"text": ["three", ""], "id": [1, 2]}), "more.parquet")
    Path("lines of mine.txt").write_text("\ufefffour\n\nfive five\n", encoding="utf-8")
    found = list(read_texts("good", ["some.jsonl.gz", "lines of*.txt", "more.parquet", "some.*"]))
    assert found == ["four", "five five", "three", "one", "zwölf"]
    assert len(list(read_texts("good", ["lines of mine.txt"]))) == 2
    # Of several plain files, each is a text.
    Path("other.txt").write_text("six\nseven", encoding="utf-8")
    assert len(list(read_texts("good", ["*.txt"]))) == 2


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n{"txt": "b"}\n',
            "a.jsonl:2: no field 'text' among txt; the option 'good' needs",
        ),
        ("a.jsonl", b'["a"]\n', "a.jsonl:1: expected a JSON object, found list"),
        ("a.jsonl", b'{"text": "\\ud800"}', "a.jsonl:1: invalid UTF-8"),
        ("a.jsonl.gz", b"no gzip", "damaged or not what its name says .it is not compressed"),
        ("a.txt.zst", b"no zstd", "damaged or not what its name says"),
        ("a.txt", b"\0\1\2\xff\xff", "a.txt: binary data"),
        ("a.parquet", b"PAR1", "damaged or not what its name says"),
        ("b.txt", b"", "name files, found none at .*a.txt"),
    ],
)
def test_files_that_hold_no_texts(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    asked = tmp_path / ("a.txt" if name == "b.txt" else name)
    with pytest.raises(UserError, match=sentence):
        list(read_texts("good", [str(asked)]))


# ---- The model of n-grams, beside a slow one that is written from the paper's equations.
Probability = Callable[[int, tuple[int, ...]], float]


def kneser_ney_reference(texts: list[list[int]], num_tokens: int, order: int) -> Probability:
    raw = [Counter(tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1)) for n in range(order + 1)]
    counts = [dict(each) for each in raw]
    for n in range(1, order):
        before = defaultdict(set)
        for ngram in raw[n + 1]:
            before[ngram[1:]].add(ngram[0])
        counts[n] = {ngram: raw[n][ngram] if ngram[0] == 0 else len(before[ngram]) for ngram in raw[n]}
    counts[1].pop((0,))
    discounts = []
    for n in range(order + 1):
        numbers = Counter(counts[n].values())
        found = [-1.0]
        if all(numbers[k] for k in (1, 2, 3, 4)):
            y = numbers[1] / (numbers[1] + 2 * numbers[2])
            found = [k - (k + 1) * y * numbers[k + 1] / numbers[k] for k in (1, 2, 3)]
        fits = all(0 <= d <= k for k, d in enumerate(found, 1))
        discounts.append([0, *(found if fits else (0.5, 1, 1.5))])

    def probability(token: int, context: tuple[int, ...]) -> float:
        n = len(context) + 1
        shorter = probability(token, context[1:]) if context else 1 / (num_tokens - 1)
        following = {ngram: count for ngram, count in counts[n].items() if ngram[:-1] == context}
        total = sum(following.values())
        if not total:
            return shorter
        count = following.get((*context, token), 0)
        left = sum(discounts[n][min(each, 3)] for each in following.values())
        return (count - discounts[n][min(count, 3)] + left * shorter) / total

    return probability


@pytest.mark.parametrize(("order", "num_texts"), [(1, 3), (2, 40), (3, 1), (5, 40)])
def test_n_grams_equal_a_slow_reference(order: int, num_texts: int, tmp_path: Path) -> None:
    rng = random.Random(order)
    num_tokens = 8
    texts = [
        [0, *(min(2 + int(rng.expovariate(0.6)), 6) for _ in range(rng.randint(0, 12))), 1] for _ in range(num_texts)
    ]
    trained = train([np.array(text) for text in texts], num_tokens, order)
    trained.save(tmp_path, "model")
    model, probability = NgramModel.load(tmp_path, "model"), kneser_ney_reference(texts, num_tokens, order)
    for _ in range(40):
        text = [0, *(rng.randrange(2, num_tokens) for _ in range(rng.randint(0, 9))), 1]
        expected = [math.log(probability(text[i], tuple(text[max(0, i - order + 1) : i]))) for i in range(1, len(text))]
        np.testing.assert_allclose(model.log_probabilities(np.array(text)), expected, rtol=1e-5)
        # After any context the tokens' probabilities sum up to 1.
        after = [np.exp(model.log_probabilities(np.array([*text[:-1], token]))[-1]) for token in range(1, num_tokens)]
        assert sum(after) == pytest.approx(1, abs=1e-5)


# ---- Perplexity.
REFERENCE = ["The cat sat on the mat.", "the dog sat on the log", "A cat and a dog met in 1984 on the mat.", "狗和猫"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_texts(tmp_path_factory.mktemp("reference") / "texts.jsonl", REFERENCE)


def perplexities(texts: Sequence[str], **options: Any) -> list[float]:
    left, _ = through([("perplexity", options)], texts)
    return [document.metadata["perplexity"] for document in left]


def test_perplexity_is_that_of_words_and_of_their_spelling(reference: str) -> None:
    """Against the slow reference: words that come once are unknown, and cost their characters as well."""
    texts = [[plain_word(word) for word in perplexity.split_words(text)] for text in REFERENCE]
    assert texts[3] == ["狗", "和", "猫"]

    def coded(texts: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]], Callable]:
        counts = Counter(itertools.chain.from_iterable(texts))
        known = [symbol for symbol in dict.fromkeys(itertools.chain.from_iterable(texts)) if counts[symbol] > 1]

        def code(text: Sequence[str]) -> list[int]:
            return [0, *(known.index(symbol) + 3 if symbol in known else 2 for symbol in text), 1]

        return known, [code(text) for text in texts], code

    known, coded_texts, code = coded(texts)
    characters, spelled, spell = coded(list(dict.fromkeys(itertools.chain.from_iterable(texts))))
    words = kneser_ney_reference(coded_texts, len(known) + 3, 5)
    letters = kneser_ney_reference(spelled, len(characters) + 3, 5)

    def total(probability: Probability, tokens: list[int]) -> float:
        return sum(math.log(probability(tokens[i], tuple(tokens[max(0, i - 4) : i]))) for i in range(1, len(tokens)))

    text = ["the", "cat", "sang", "猫", "on", "0000"]
    expected = total(words, code(text))
    for word in text:
        if word not in known:
            unknown = sum(character not in characters for character in word)
            expected += total(letters, spell(word)) - unknown * math.log(0x110000)
    assert perplexities(["THE cat sang 猫 on 2023"], reference=reference) == [
        pytest.approx(math.exp(-expected / 7), rel=1e-4)
    ]


def test_perplexity_ranks_texts(reference: str) -> None:
    ranked = [
        "the cat sat on the mat.",
        "the cat sat on the dog",
        "mat the on cat the sat",
        "mat the on cat the tam",
        "mat the on cat the tamtamtam",
        "Ελληνικά είναι εδώ",
    ]
    found = perplexities(ranked, reference=reference)
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    # Characters behind the twentieth do not count: an address is not a paragraph.
    assert len(set(perplexities(["the " + "xq" * 10, "the " + "xq" * 500], reference=reference))) == 1
    # A text has its perplexity whatever came before it.
    assert perplexities(ranked[::-1], reference=reference) == found[::-1]


def test_perplexity_judges_the_languages_it_was_asked_for(reference: str) -> None:
    texts = ["the cat sat on the mat.", "xqzwv xqzwv xqzwv"]
    options = {"reference": reference, "most": 100.0, "languages": ["en"]}
    left, chain = through([("perplexity", options)], texts, language="en")
    assert [document.id for document in left] == ["d0"]
    assert chain.funnel()[0]["removed"] == {"most": 1}
    left, _ = through([("perplexity", options)], texts, language="de")
    assert [document.metadata for document in left] == [{}, {}]
    left, chain = through([("perplexity", {"reference": reference, "least": 100.0})], texts)
    assert chain.funnel()[0]["removed"] == {"least": 1}


def test_thirds_are_of_each_language(reference: str) -> None:
    rng = random.Random(3)
    words = {
        "en": ["the", "cat", "dog", "sat", "on", "mat", "log", "a", "and"],
        "xx": ["the", "cat", "xqz", "wvk", "jjq"],
        None: ["cat"],
    }
    documents = [
        Document(f"{language}{index}", " ".join(rng.choices(words[language], k=rng.randint(5, 12))), "web", language)
        for language, number in (("en", 31), ("xx", 30), (None, 1))
        for index in range(number)
    ]
    rng.shuffle(documents)
    all_thirds = ["head", "middle", "tail"]
    chain = Chain([("perplexity", {"reference": reference, "thirds": all_thirds})])
    left = list(chain.through(documents))
    by_third = defaultdict(list)
    for document in left:
        by_third[document.language, document.metadata["perplexity_third"]].append(document.metadata["perplexity"])
    for language, number in (("en", 31), ("xx", 30)):
        head, middle, tail = (by_third[language, third] for third in all_thirds)
        assert len(head) >= number // 3  # texts of one perplexity stay together
        assert len(head) + len(middle) + len(tail) == number
        assert max(head) < min(middle)
        assert max(middle) < min(tail)
    chain = Chain([("perplexity", {"reference": reference, "thirds": ["head"]})])
    kept = {document.id for document in chain.through(documents)}
    assert kept == {document.id for document in left if document.metadata["perplexity_third"] == "head"}
    assert set(chain.funnel()[0]["removed"]) == {"middle", "tail"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"reference": "nowhere.txt"}, "'reference' to name files, found none at 'nowhere.txt'"),
        ({"thirds": ["first"]}, "'thirds' to list some of head, middle, tail, found first"),
        ({"model": "en.arpa.bin"}, "the option 'reference', or 'model' with 'pieces', found reference"),
        ({"reference": [], "pieces": "en.sp.model"}, "or 'model' with 'pieces', found .*en.sp.model"),
    ],
)
def test_wrong_options_of_perplexity(options: dict[str, Any], sentence: str, reference: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Chain([("perplexity", {"reference": reference} | options)])


def test_a_reference_without_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Expected words in the files of the option 'reference'"):
        perplexity.Perplexity((write_texts(tmp_path / "empty.jsonl", [" "]),)).learn(tmp_path)


# ---- Models of KenLM.
_ARPA = """\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.3
-0.8\t</s>
-0.5\ta\t-0.2
-0.7\tb\t-0.4

\\2-grams:
-0.2\t<s> a\t-0.1
-0.6\ta b\t-0.05
-0.3\tb </s>

\\3-grams:
-0.1\t<s> a b

\\end\\
"""
_COSTS = {  # text -> cost of each word and of the end of the text, read from the table above
    "a b": (0.2, 0.1, 0.05 + 0.3),
    "B\n": (0.3 + 0.7, 0.3),
    "b x a": (0.3 + 0.7, 0.4 + 1.0, 0.5, 0.2 + 0.8),
    "á\n\t b ": (0.2, 0.1, 0.05 + 0.3),  # no accents and control characters
    "a\nb": (0.3 + 1.0, 0.8),  # the line end is removed without a space: one unknown word
    "": (0.3 + 0.8,),
    "\udc80 a": (0.3 + 1.0, 0.5, 0.2 + 0.8),
}


class _KenlmStandIn(ModuleType):
    """As the library: the log10-probability of a text by a model with back-off; another kind of file is an error."""

    class Config:
        pass

    class ARPALoadComplain:
        NONE = 2

    class Model:
        def __init__(self, path: str, config: Any) -> None:
            if not (content := Path(path).read_bytes()).startswith(b"\\data\\"):
                raise RuntimeError(f"{path} is\nnot an ARPA file")
            rows = [line.split("\t") for line in content.decode().splitlines() if "\t" in line]
            self._table = {tuple(words.split()): (float(cost), *map(float, backoff)) for cost, words, *backoff in rows}

        def score(self, line: str) -> float:
            history, total = ("<s>",), 0.0
            for word in (*line.split(), "</s>"):
                word = word if (word,) in self._table else "<unk>"
                context = history[-2:]
                while (*context, word) not in self._table:
                    total += (*self._table.get(context, ()), 0.0, 0.0)[1]
                    context = context[1:]
                total += self._table[*context, word][0]
                history += (word,)
            return total


@pytest.fixture(params=["stand-in", "kenlm"])
def kenlm_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, and the library itself where it is installed."""
    if request.param == "kenlm":
        pytest.importorskip("kenlm")
    else:
        monkeypatch.setitem(sys.modules, "kenlm", _KenlmStandIn("kenlm"))


@pytest.mark.usefixtures("kenlm_library")
def test_models_of_kenlm_replace_the_reference(tmp_path: Path) -> None:
    (tmp_path / "en.arpa").write_text(_ARPA)
    options = {"model": str(tmp_path / "en.arpa"), "languages": ["en"], "thirds": ["head", "middle", "tail"]}
    left, _ = through([("perplexity", options)], list(_COSTS), language="en")
    expected = [10 ** np.mean(costs) for costs in _COSTS.values()]
    assert [document.metadata["perplexity"] for document in left] == pytest.approx(expected, abs=0.006)
    assert {document.metadata["perplexity_third"] for document in left} <= {"head", "middle", "tail"}


@pytest.mark.usefixtures("kenlm_library")
def test_ccnets_models_have_pieces(tmp_path: Path) -> None:
    """The mean cost of the pieces of the text in CCNet's form, whatever its lines are."""
    (tmp_path / "en.sp.model").write_bytes(train_model())
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_file=str(tmp_path / "en.sp.model"))
    costs = {pieces.id_to_piece(number): 1 + number / 100 for number in range(pieces.get_piece_size())}
    assert "<unk>" in costs
    rows = "".join(f"{-cost:.4f}\t{piece}\n" for piece, cost in costs.items())
    arpa = f"\\data\\\nngram 1={len(costs)}\nngram 2=1\n\n\\1-grams:\n{rows}\n\\2-grams:\n-0.5\t<s> </s>\n\n\\end\\\n"
    (tmp_path / "en.arpa").write_text(arpa, encoding="utf-8")
    texts = {"The Fox,\nover\r\n12 bridges… ": "the fox,over00 bridges...", "Zoë\u2019s 犬。": "zoe's 犬."}
    options = {"model": str(tmp_path / "en.arpa"), "pieces": str(tmp_path / "en.sp.model")}
    left, _ = through([("perplexity", options)], list(texts))
    for document, form in zip(left, texts.values(), strict=True):
        found = [costs.get(piece, costs["<unk>"]) for piece in (*pieces.encode(form, out_type=str), "</s>")]
        assert document.metadata["perplexity"] == pytest.approx(10 ** np.mean(found), abs=0.006)


@pytest.mark.usefixtures("kenlm_library")
def test_files_that_are_not_models_of_kenlm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "en.arpa").write_text(_ARPA)
    (tmp_path / "other.bin").write_bytes(b"other")
    for name, sentence in (("other.bin", "Expected a model of KenLM .* at .*other"), ("none", "found no file")):
        with pytest.raises(UserError, match=sentence):
            Chain([("perplexity", {"model": str(tmp_path / name)})])
    with pytest.raises(UserError, match=r"Expected a SentencePiece model at .*other\.bin"):
        Chain([("perplexity", {"model": str(tmp_path / "en.arpa"), "pieces": str(tmp_path / "other.bin")})])
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(UserError, match=r"Expected the library kenlm.*pip install 'kenlm'"):
        Chain([("perplexity", {"model": str(tmp_path / "other")})])


# ---- Quality.
def scores(texts: Sequence[str], field: str = "quality", **options: Any) -> list[float]:
    left, _ = through([("quality", {"least": 0.0, "field": field} | options)], texts)
    return [document.metadata[field] for document in left]


def test_good_texts_are_told_from_bad_ones(examples: dict[str, str]) -> None:
    good, bad = scores(made_texts(GOOD, 50, seed=1), **examples), scores(made_texts(BAD, 50, seed=1), **examples)
    assert np.mean(np.array(good) > 0.5) > 0.95
    assert np.mean(np.array(bad) < 0.5) > 0.95
    left, chain = through([("quality", dict(examples))], [*made_texts(GOOD, 2, seed=2), *made_texts(BAD, 2, seed=2)])
    assert [document.id for document in left] == ["d0", "d1"]
    assert chain.funnel()[0]["removed"] == {"probability": 2}


def test_probabilities_are_calibrated(tmp_path: Path) -> None:
    """Of texts with a probability near .7, some .7 are good; as many are good as bad."""
    rng = random.Random(5)

    def mixture(share: float) -> str:
        return " ".join(rng.choice(GOOD if rng.random() < share else BAD) for _ in range(12))

    good, bad = ([mixture(share) for _ in range(1500)] for share in (0.6, 0.4))
    files = {
        "good": write_texts(tmp_path / "good.jsonl", good[:800]),
        "bad": write_texts(tmp_path / "bad.jsonl", bad[:400]),
    }
    found = scores([*good[800:], *bad[800:]], **files)
    is_good = np.arange(len(found)) < 700
    for low, high in ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8)):
        inside = (np.array(found) >= low) & (np.array(found) < high)
        assert inside.sum() > 50
        assert abs(is_good[inside].mean() - np.mean(np.array(found)[inside])) < 0.12


def test_scripts_without_spaces(tmp_path: Path) -> None:
    rng = random.Random(1)

    def texts(words: str, number: int) -> list[str]:
        return ["".join(rng.choices(words.split(), k=20)) + "。" for _ in range(number)]

    good, bad = "定理 证明 函数 空间 的 和 在 是", "便宜 优惠 点击 中奖 的 和 在 是"
    files = {
        "good": write_texts(tmp_path / "good.jsonl", texts(good, 60)),
        "bad": write_texts(tmp_path / "bad.jsonl", texts(bad, 60)),
    }
    assert np.mean(np.array(scores(texts(good, 30), **files)) > 0.5) > 0.9
    assert np.mean(np.array(scores(texts(bad, 30), **files)) < 0.5) > 0.9


def test_a_model_on_another_machine(examples: dict[str, str], tmp_path: Path) -> None:
    quality.Quality(good=(examples["good"],), bad=(examples["bad"],)).learn(tmp_path)
    about = json.loads((tmp_path / "quality.json").read_text(encoding="utf-8"))
    assert about["accuracy"] > 0.9
    assert (about["good"], about["bad"], about["both"], about["held_out"]) == (60, 60, 0, 24)
    texts = [*made_texts(GOOD, 5, seed=3), *made_texts(BAD, 5, seed=3), "", "unknown"]
    assert scores(texts, model=str(tmp_path / quality.MODEL)) == scores(texts, **examples)


def test_how_well_a_classifier_tells_texts_of_other_files_apart(examples: dict[str, str], tmp_path: Path) -> None:
    """Files with other words in each: what is learned from one file says nothing about the other."""
    words = {"good": ("alpha beta gamma", "delta epsilon zeta"), "bad": ("eta theta iota", "kappa lambda mu")}
    rng = random.Random(3)
    files: dict[str, tuple[str, ...]] = {}
    for kind, of_files in words.items():
        texts = [[" ".join(rng.choices(each.split(), k=9)) for _ in range(60)] for each in of_files]
        paths = [write_texts(tmp_path / f"{kind}-{number}.jsonl", each) for number, each in enumerate(texts)]
        files[kind] = tuple(paths)
    quality.Quality(**files).learn(tmp_path)
    about = json.loads((tmp_path / "quality.json").read_text(encoding="utf-8"))
    assert about["accuracy"] > 0.9
    assert about["auc_on_other_files"] == 0.5
    copies = {kind: (examples[kind], write_texts(tmp_path / f"{kind}.jsonl", made_texts(each, 30, seed=8)))
              for kind, each in (("good", GOOD), ("bad", BAD))}  # fmt: skip
    quality.Quality(**copies).learn(tmp_path)
    assert json.loads((tmp_path / "quality.json").read_text(encoding="utf-8"))["auc_on_other_files"] > 0.9
    quality.Quality(good=(examples["good"],), bad=(examples["bad"],)).learn(tmp_path)
    assert "auc_on_other_files" not in json.loads((tmp_path / "quality.json").read_text(encoding="utf-8"))


def test_two_classifiers_in_one_chain(examples: dict[str, str]) -> None:
    swapped = {"good": examples["bad"], "bad": examples["good"], "field": "salesmanship", "least": 0.0}
    steps = [("quality", {**examples, "least": 0.0}), ("quality", swapped)]
    left, chain = through(steps, [GOOD[0], BAD[0]])
    assert [step["step"] for step in chain.funnel()] == ["quality", "quality_2"]
    assert left[0].metadata["quality"] > 0.5 > left[0].metadata["salesmanship"]
    assert left[1].metadata["quality"] < 0.5 < left[1].metadata["salesmanship"]


def test_pareto_keeps_some_of_low_quality(examples: dict[str, str]) -> None:
    """As GPT-3: a share of (2 - score)^-9 of the documents of a score, the same ones in every run."""
    draws = np.array([quality.pareto_draw(f"d{index}", 9) for index in range(4000)])
    for score in (0.0, 0.5, 0.9):
        assert np.mean(draws > 1 - score) == pytest.approx((2 - score) ** -9, abs=0.02)
    bad = made_texts(BAD, 1, seed=9) * 2000
    (score,) = scores(bad[:1], **examples)
    steps = [("quality", {**examples, "pareto": 3.0})]
    left, chain = through(steps, bad)
    assert len(left) / 2000 == pytest.approx((2 - score) ** -3, abs=0.04)
    assert chain.funnel()[0]["removed"] == {"pareto": 2000 - len(left)}
    assert [document.id for document in through(steps, bad)[0]] == [document.id for document in left]


REFUSED = [
    ({"good": GOOD, "bad": []}, "at least 20 different texts in the files of the option 'bad', found 0;"),
    ({"good": GOOD[:1], "bad": BAD}, "of the option 'good', found 19;"),
    ({"good": GOOD, "bad": GOOD}, "found 0, and 60 that are both good and bad"),
]


@pytest.mark.parametrize(("kinds", "sentence"), REFUSED)
def test_examples_that_teach_nothing(kinds: dict[str, list[str]], sentence: str, tmp_path: Path) -> None:
    files = {}
    for name, words in kinds.items():
        texts = made_texts(words, 19 if len(words) == 1 else 60) if words else []
        files[name] = write_texts(tmp_path / f"{name}.jsonl", texts)
    with pytest.raises(UserError, match=sentence):
        through([("quality", files)], ["a text"])


def test_examples_that_do_not_differ(tmp_path: Path) -> None:
    files = {
        name: write_texts(tmp_path / f"{name}.jsonl", made_texts(COMMON, 300, seed=index))
        for index, name in enumerate(("good", "bad"))
    }
    with pytest.raises(
        UserError, match=r"Expected good and bad texts that can be told apart, found .*300 good, 300 bad"
    ):
        through([("quality", files)], ["a text"])


def test_wrong_options_of_quality(examples: dict[str, str], tmp_path: Path) -> None:
    def refused(sentence: str, **options: Any) -> None:
        with pytest.raises(UserError, match=sentence):
            Chain([("quality", options)])

    refused("options 'good' and 'bad' of the step quality, or 'model' alone, found good \\[\\]")
    refused("or 'model' alone", good=examples["good"])
    refused("or 'model' alone", model="m.npz", **examples)
    refused("'good' to name files", good="no.jsonl", bad=examples["bad"])
    refused("a model that the step quality has learned .* found: .*No such file", model=str(tmp_path / "no.npz"))
    refused("a model that the step quality has learned", model=examples["good"])
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    refused("a model that the step quality has learned", model=str(tmp_path / "other.npz"))
    np.save(tmp_path / "array.npy", np.zeros(3))
    refused("a model that the step quality has learned", model=str(tmp_path / "array.npy"))
    refused("'pareto' to be a number >= 0", pareto=-1.0, **examples)
    refused("'field' to be a name such as toxicity", field="a b", **examples)


# ---- Weights.
def weights(documents: Sequence[Document], *steps: dict[str, Any]) -> list[float]:
    left = Chain([("weight", step) for step in steps]).through(documents)
    return [document.metadata["weight"] for document in left]


def test_weights() -> None:
    documents = [
        Document("a", "t", "wikipedia", "en", metadata={"cluster": 3, "score": 0.97}),
        Document("b", "t", "the web", "de", metadata={"cluster": 4, "score": 0.8}),
        Document("c", "t", "else", None, metadata={"cluster": 5, "score": 0.1}),
    ]
    by_source, by_score = {"source=wikipedia": 3, "source=the *": 2.5}, {"score>=0.8": 2, "score>=0.95": 1.5}
    assert weights(documents, {"weights": by_source}) == [3, 2.5, 1]
    assert weights(documents, {"weights": {"language=de": 2, "language!=de": 0.5}}) == [0.5, 2, 0.5]
    assert weights(documents, {"weights": {"cluster=3": 2, "cluster=4": 0}}) == [2, 0, 1]
    assert weights(documents, {"weights": by_score}) == [3, 2, 1]
    assert weights(documents, {"weights": "{no field=a: 2, source>=1: 2}"}) == [1, 1, 1]
    # The factors are multiplied, in one step or in two.
    assert weights(documents, {"weights": by_source | by_score}) == [9, 5, 1]
    assert weights(documents, {"weights": by_source}, {"weights": by_score}) == [9, 5, 1]


def test_weights_of_a_score_of_the_same_chain(examples: dict[str, str]) -> None:
    steps = [
        ("quality", {**examples, "least": 0.0}),
        ("weight", {"weights": {"quality>=0.5": 4, "quality<0.5": 0.25}}),
    ]
    left, _ = through(steps, [*made_texts(GOOD, 1, seed=4), *made_texts(BAD, 1, seed=4)])
    assert [document.metadata["weight"] for document in left] == [4, 0.25]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weights": {}}, "Expected rules in the option 'weights', found no rule"),
        ({"weights": "web"}, "'weights' to be a number for each name, found 'web'"),
        ({"weights": "{web: many}"}, "'weights' to be a number for each name"),
        ({"weights": "{web: 1, web: 2}"}, "line 1, column 10 has 'web' again"),
        ({"weights": {"source=web": -1}}, "Expected weights of 'source=web' to be finite and >= 0, found -1"),
        ({"weights": {"web": 2}}, "Expected rules such as source=web-.* in weights, found 'web'"),
        ({"weights": {"q@source>=1": 2}}, "found the mean of a group, 'q@source>=1'; give it as packing.weights"),
    ],
)
def test_weights_that_are_none(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Chain([("weight", options)])


# ---- Languages by fastText.
def fasttext_file(kind: int = 3) -> bytes:
    """A model of two words and two labels: `the` is English, `das` is German."""
    arguments = [2, 5, 1, 1, 5, 1, 3, kind, 0, 0, 0, 100]  # dimensions 2, softmax, no subwords
    words = [(b"the", 10, 0), (b"das", 5, 0), (b"__label__en", 10, 1), (b"__label__de", 5, 1)]
    made = struct.pack("<2i12id", 793712314, 12, *arguments, 1e-4)
    made += struct.pack("<3i2q", 4, 2, 2, 15, -1)
    made += b"".join(word + b"\0" + struct.pack("<qb", count, kind) for word, count, kind in words)
    matrix = struct.pack("<2q4f", 2, 2, 2.0, 0.0, 0.0, 2.0)
    return made + b"\0" + matrix + b"\0" + matrix


def test_models_of_fasttext_that_are_cut_off(tmp_path: Path) -> None:
    """The library would hang or crash."""
    whole = fasttext_file()
    path = tmp_path / "model.bin"
    path.write_bytes(whole)
    assert labels(path) == ["en", "de"]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="Expected a supervised model of fastText"):
            labels(path)
    for content in (whole + b"\0", fasttext_file(kind=1), b"\0" * 500):
        path.write_bytes(content)
        with pytest.raises(UserError, match="Expected a supervised model of fastText"):
            labels(path)
    with pytest.raises(UserError, match="found No such file"):
        labels(tmp_path / "absent.bin")


def test_languages_by_fasttext(tmp_path: Path) -> None:
    pytest.importorskip("fasttext", reason="fasttext-predict is not installed")
    path = tmp_path / "model.bin"
    path.write_bytes(fasttext_file())
    texts = ["the\nthe the", "das \ud7ff\0 das x", "the das x", "the the"]
    left, _ = through([("language", {"model": str(path), "probability": 0.9})], texts)
    assert [document.language for document in left] == ["en", "de"]
    expected = round(1 / (1 + math.exp(-4)), 4)
    assert left[0].metadata == {"detected_language": "en", "language_probability": pytest.approx(expected, abs=1e-3)}
    left, _ = through([("language", {"model": str(path), "languages": ["de"], "probability": 0.4})], texts)
    assert [document.id for document in left] == ["d1", "d2"]
    with pytest.raises(UserError, match="Expected languages among en, de, found 'fr'"):
        Chain([("language", {"model": str(path), "languages": "fr"})])
    (tmp_path / "cut.bin").write_bytes(fasttext_file()[:-3])
    with pytest.raises(UserError, match="Expected a supervised model of fastText"):
        Chain([("language", {"model": str(tmp_path / "cut.bin")})])


# ---- All of them.
def test_odd_texts_do_no_harm(examples: dict[str, str], reference: str) -> None:
    texts = [
        "",
        " ",
        "\0",
        "。",
        "\u0301" * 50,
        "🙂" * 300,
        "-" * 5000,
        "[" * 2000,
        "a" * 100_000,
        "\ud800 x",
        "猫" * 999,
    ]
    steps = [("quality", {**examples, "least": 0.0}), ("perplexity", {"reference": reference})]
    first, _ = through(steps, texts)
    assert len(first) == len(texts)
    assert [document.metadata for document in first] == [document.metadata for document in through(steps, texts)[0]]
    for document in first:
        assert 0 <= document.metadata["quality"] <= 1
        assert 1 <= document.metadata["perplexity"] < 1e300


# ---- Settings: options of steps given apart, files that change.
def test_options_of_a_recipes_steps(reference: str) -> None:
    config = PreparationConfig(recipe="ccnet", options={"perplexity.reference": reference, "language.probability": 0.1})
    _, language, last = config.listed()
    assert language.options == {"languages": ("en",), "probability": 0.1}
    assert last.options == {"thirds": ("head",), "reference": reference}
    twice = (StepConfig("words", {"least": 1}), StepConfig("words", {"least": 2}))
    config = PreparationConfig(steps=twice, options={"words_2.least": 7})
    assert [each.options["least"] for each in config.listed()] == [1, 7]
    assert config.made_of() != PreparationConfig(steps=twice).made_of()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"word.least": 3}, "STEP.OPTION with a step of words, found 'word.least'; did you mean 'words'"),
        ({"words_2.least": 3}, "found 'words_2.least'"),
        ({"least": 3}, "found 'least'"),
        ({"words": 3}, "found 'words'"),
        ({"words.most": 3}, "Method 'words' has no option 'most'"),
        ({"words.least": "many"}, "Expected the option 'least' to be a whole number"),
    ],
)
def test_options_of_no_step(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        PreparationConfig(steps=(StepConfig("words"),), options=options).check()


def test_lists_and_mappings_from_the_command_line_and_from_yaml(tmp_path: Path, reference: str) -> None:
    words = ["--preparation.recipe", "ccnet", "--preparation.options", "perplexity.reference", reference]
    words += ["perplexity.thirds", "[head, middle]", "perplexity.most", "9e3", "language.languages", "de"]
    given = parse_options(BuildConfig(), "prepare", words).preparation
    (tmp_path / "same.yaml").write_text(
        "preparation: {recipe: ccnet, options: {perplexity.thirds: [head, middle], perplexity.most: 9000.0, "
        f"language.languages: [de], perplexity.reference: [{reference}]}}}}"
    )
    read = read_settings(tmp_path / "same.yaml", BuildConfig())
    assert given.made_of() == read.preparation.made_of()
    # The file's options are the defaults of the command line's.
    again = parse_options(read, "prepare", []).preparation
    assert again.made_of() == given.made_of()


def test_a_recipe_says_which_files_it_needs() -> None:
    with pytest.raises(
        UserError, match=r"Recipe ccnet: .*have the option 'reference', or 'model'.*--preparation.options STEP.OPTION"
    ):
        PreparationConfig(recipe="ccnet").check()
    with pytest.raises(
        UserError, match=r"Recipe skywork: .*options 'good' and 'bad'.*--preparation.options STEP.OPTION"
    ):
        PreparationConfig(recipe="skywork").check()


def test_a_changed_file_runs_again(tmp_path: Path, examples: dict[str, str]) -> None:
    path = write_texts(tmp_path / "texts.jsonl", REFERENCE)
    config = PreparationConfig(
        steps=(
            StepConfig("perplexity", {"reference": path}),
            StepConfig("quality", {"good": path, "bad": examples["bad"]}),
        )
    )
    before = config.fingerprint_with("corpus")
    assert before == config.fingerprint_with("corpus") != "corpus"
    write_texts(tmp_path / "texts.jsonl", [*REFERENCE, "more"])
    assert config.fingerprint_with("corpus") != before


def test_a_build_from_the_command_line(tmp_path: Path, examples: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    """The recipe gets its files; the classifier and its accuracy stay in the dataset."""
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "out"
    write_texts(corpus, [*made_texts(GOOD, 30, seed=6), *made_texts(BAD, 30, seed=6)])
    arguments = ["prepare", "--corpus.paths", str(corpus), "--out", str(out), "--quiet"]
    arguments += ["--preparation.recipe", "baichuan2"]
    assert main(arguments) == 2
    assert "--preparation.options STEP.OPTION VALUE" in capsys.readouterr().err
    arguments += ["--preparation.options", "quality.good", examples["good"], "quality.bad", examples["bad"]]
    assert main(arguments) == 0
    about = json.loads((out / "preparation/learned/quality/quality.json").read_text(encoding="utf-8"))
    assert about["accuracy"] > 0.9
    metadata = open_dataset(out).documents.to_table(columns=["metadata"])["metadata"].to_pylist()
    found = Counter(json.loads(each)["weight"] for each in metadata)
    assert set(found) <= {0.5, 1.0, 2.0, 3.0}
    assert found[0.5] >= 20
    assert not (out / "preparation/work").exists()
    model = str(out / "preparation/learned/quality" / quality.MODEL)
    again = ["prepare", "--corpus.paths", str(corpus), "--out", str(tmp_path / "again"), "--quiet"]
    again += ["--preparation.steps", json.dumps([{"step": "quality", "options": {"model": model, "least": 0.0}}])]
    assert main(again) == 0
