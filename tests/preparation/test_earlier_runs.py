"""Copies of an earlier run's documents, by stored signatures; copies by address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.steps.url_duplicates import normal_url
from jax_diversity.schema import Document

SIGNATURES = "preparation/learned/{step}/signatures.parquet"


def text(number: int, changed: int = 0) -> str:
    words = [f"w{word}" for word in np.random.default_rng(number).integers(0, 10_000, 100)]
    return " ".join(["changed"] * changed + words[changed:])


def documents(name: str, texts: list[str]) -> list[Document]:
    return [Document(f"{name}{index}", each, "web") for index, each in enumerate(texts)]


def run(folder: Path, step: str, given: list[Document], **options: Any) -> list[str]:
    chain = Chain([(step, options)])
    return [document.id for document in chain.through(given, folder / "preparation")]


@pytest.mark.parametrize(("step", "changed"), [("exact_duplicates", 0), ("minhash", 2)])
def test_copies_of_an_earlier_run_are_removed(tmp_path: Path, step: str, changed: int) -> None:
    first = documents("a", [text(0), text(1), text(0), "short"])
    assert run(tmp_path / "first", step, first, keep_signatures=True) == ["a0", "a1", "a3"]
    stored = pq.read_table(tmp_path / "first" / SIGNATURES.format(step=step))
    assert stored["id"].to_pylist() == (["a0", "a1"] if step == "minhash" else ["a0", "a1", "a3"])
    second = documents("b", [text(2), text(1, changed), text(3), text(3)])
    against = {"against": [str(tmp_path / "first")], "keep_signatures": True}
    assert run(tmp_path / "second", step, second, **against) == ["b0", "b2"]
    rows = pq.read_table(tmp_path / "second/preparation/decisions").to_pylist()
    assert [row["duplicate_of"] for row in rows] == [None, "a1", "b2", "b2"]
    # A third run names both; its documents are compared with the documents that were new in each.
    third = documents("c", [text(3), text(0), text(4)])
    both = [str(tmp_path / name / SIGNATURES.format(step=step)) for name in ("first", "second")]
    assert run(tmp_path / "third", step, third, against=both) == ["c2"]
    assert not (tmp_path / "third/preparation/learned").exists()
    # A step that marks removes nothing.
    assert run(tmp_path / "marked", step, third, against=both, mark=True) == ["c0", "c1", "c2"]


def test_signatures_decide_the_fingerprint(tmp_path: Path) -> None:
    run(tmp_path, "exact_duplicates", documents("a", ["one", "two"]), keep_signatures=True)
    assert Chain([("exact_duplicates", {})]).identities() == []
    [(name, hashes)] = Chain([("exact_duplicates", {"against": [str(tmp_path)]})]).identities()
    assert (name, len(hashes)) == ("exact_duplicates", 1)


def test_signatures_that_do_not_fit(tmp_path: Path) -> None:
    run(tmp_path, "minhash", documents("a", [text(0)]), keep_signatures=True)
    with pytest.raises(UserError, match=r"Expected signatures of the step exact_duplicates in .*, found none; prepare"):
        Chain([("exact_duplicates", {"against": [str(tmp_path)]})])
    found = r"found minhash \(bands 14, digits auto, rows 8, run 5, stored bands\)"
    with pytest.raises(UserError, match=rf"signatures of minhash \(bands 28.*{found}"):
        Chain([("minhash", {"against": [str(tmp_path)], "bands": 28})])
    with pytest.raises(UserError, match="found none"):
        Chain([("minhash", {"against": [str(tmp_path / "absent")]})])
    path = tmp_path / SIGNATURES.format(step="minhash")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"signatures\.parquet is damaged"):
        Chain([("minhash", {"against": [str(path)]})])


SAME = "http://example.org/b?x=1&y=2"


@pytest.mark.parametrize(
    "url",
    [
        *(SAME, "https://www.Example.org:443/a/../b/?y=2&x=1#top", "example.org/b/index.html?x=1&y=2"),
        *("http://example.org./b?utm_source=n&x=1&y=2&gclid=9", "http://example.org/%62;jsessionid=A9?x=1&y=2"),
    ],
)
def test_addresses_of_one_page(url: str) -> None:
    assert normal_url(url) == "example.org/b?x=1&y=2"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.org", "example.org"),
        ("http://example.org:8080/B", "example.org:8080/B"),
        ("http://example.org/%E4%BD%A0", "example.org/%E4%BD%A0"),
        ("http://example.org/你", "example.org/%E4%BD%A0"),
        ("http://example.org/%ff", "example.org/%FF"),
        ("http://[::1", ""),
        ("", ""),
    ],
)
def test_normal_addresses(url: str, expected: str) -> None:
    assert normal_url(url) == expected


@pytest.mark.parametrize("lines", ["bad.example\n", "good.example/shop\n", "# names\nbad.example\ngood.example/shop"])
def test_block_lists_of_domains_or_addresses_alone(tmp_path: Path, lines: str) -> None:
    (tmp_path / "list.txt").write_text(lines)
    urls = ["http://www.bad.example/x", "http://good.example/shop/x", "http://good.example/shopping"]
    given = [Document(str(index), "x", "web", metadata={"url": url}) for index, url in enumerate(urls)]
    left = Chain([("addresses", {"blocked": str(tmp_path / "list.txt")})]).through(given)
    expected = {"2", *(["0"] if "bad" not in lines else []), *(["1"] if "good" not in lines else [])}
    assert {document.id for document in left} == expected


def test_duplicates_by_address() -> None:
    urls = [SAME, "https://example.org/b/?y=2&x=1", "http://example.org/c", None, None, 7]
    given = [Document(f"d{index}", f"text {index}", "web", metadata={"url": url}) for index, url in enumerate(urls)]
    assert [document.id for document in Chain([("url_duplicates", {})]).through(given)] == [
        "d0",
        "d2",
        "d3",
        "d4",
        "d5",
    ]
    left = Chain([("url_duplicates", {"mark": True})]).through(given)
    assert [document.metadata.get("url_duplicates_group") for document in left] == [0, 0, None, None, None, None]
