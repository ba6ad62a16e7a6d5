"""Pages of our own in HTML and LaTeX: what must stay and what must go. Wiki text is in test_wiki_templates.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jax_diversity.corpus.passes.chain import Chain
from jax_diversity.corpus.steps.mathml import formula_text
from jax_diversity.corpus.steps.page_parts import prepared_page
from jax_diversity.foundation.settings import parse_yaml
from jax_diversity.schema import Document

DATA = Path(__file__).parent / "data"


def pages(name: str) -> list[Any]:
    """Return the pages of a file as test cases."""
    listed: Any = parse_yaml((DATA / f"{name}.yaml").read_text(encoding="utf-8"))
    return [pytest.param(page, id=page["name"]) for page in listed]


def result(step: str, page: dict[str, Any], **options: object) -> tuple[str, dict[str, int]]:
    """Return the text of a page in one line, and the rules that removed it."""
    chain = Chain([(step, {"always": True, **options})])
    left = list(chain.through([Document("0", page["page"], "web", title=page.get("title"))]))
    return " ".join(left[0].text.split()) if left else "", chain.funnel()[0]["removed"]


def check(text: str, page: dict[str, Any]) -> None:
    lost = [part for part in page.get("keep", []) if " ".join(part.split()) not in text]
    left = [part for part in page.get("drop", []) if part in text]
    assert (lost, left) == ([], []), text


@pytest.mark.parametrize("page", pages("html_pages"))
def test_pages_in_html(page: dict[str, Any]) -> None:
    pytest.importorskip("trafilatura", reason="trafilatura is in the extra `preparation`")
    text, removed = result("html", page)
    assert removed == ({page["removed"]: 1} if "removed" in page else {}), text
    check(text, page)


@pytest.mark.parametrize("page", pages("html_pages"))
def test_pages_in_html_by_resiliparse(page: dict[str, Any]) -> None:
    """It keeps some of what must go, so only what must stay is compared."""
    pytest.importorskip("resiliparse", reason="resiliparse is in the extra `preparation`")
    text, removed = result("html", page, extractor="resiliparse")
    assert bool(removed) == ("removed" in page), text
    check(text, page | {"drop": []})


@pytest.mark.parametrize("page", pages("latex_pages"))
def test_pages_in_latex(page: dict[str, Any]) -> None:
    text, removed = result("latex", page)
    assert removed == {}
    check(text, page)


def test_the_text_of_the_extractor_alone() -> None:
    pytest.importorskip("trafilatura", reason="trafilatura is in the extra `preparation`")
    page = next(each.values[0] for each in pages("html_pages") if "alone" in each.values[0]["name"])  # type: ignore[index]
    assert result("html", page, extractor_only=True) == (
        "Boots and shoes Coats Hats and scarves New this week Sale Gift cards Find a shop near you Customer service",
        {},
    )


def test_metadata_of_a_page_become_fields() -> None:
    pytest.importorskip("trafilatura", reason="trafilatura is in the extra `preparation`")
    page = (
        '<html><head><title>The mill</title><meta name="author" content="Jane Roe">'
        '<meta property="article:published_time" content="2021-05-03T10:00:00Z">'
        '<meta property="og:site_name" content="Valley News"></head><body><article><h1>The mill</h1><p>The mill is '
        "old, and nobody knows who built it.</p></article></body></html>"
    )
    chain = Chain([("html", {"always": True, "metadata": True})])
    [document] = chain.through([Document("0", page, "web")])
    expected = {"title": "The mill", "author": "Jane Roe", "date": "2021-05-03", "site": "Valley News"}
    assert document.metadata == {f"page_{name}": value for name, value in expected.items()}
    [document] = Chain([("html", {"always": True})]).through([Document("0", page, "web")])
    assert document.metadata == {}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<mi>a</mi><mo>&lt;</mo><mi>b</mi>", "a<b"),
        ("<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>", "x_1^2"),
        ("<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>0</mn></mrow><mi>n</mi></munderover>", "∑_(i=0)^n"),
        ("<mroot><mi>x</mi><mn>3</mn></mroot>", "root(x, 3)"),
        ("<mtext>if</mtext><mi>x</mi>", "if x"),
        ("<m:msup><m:mi>x</m:mi><m:mn>2</m:mn></m:msup>", "x^2"),
        ("<mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr>", "1, 0;"),
        ("<annotation-xml><apply/></annotation-xml><mi>x</mi>", "x"),
        ("<mrow>" * 3000 + "<mi>x</mi>", "x"),
        ("<mi>x", "x"),
        ("", ""),
    ],
)
def test_formulas_in_a_line(content: str, expected: str) -> None:
    assert formula_text("<math>", content) == expected


def test_formulas_in_images_and_open_elements() -> None:
    page = (
        '<p><span style="display: none;"><math alttext="{\\displaystyle a&lt;b}"><mi>a</mi></math></span>'
        '<img src="x.svg" class="mwe-math-fallback-image-inline" alt="{\\displaystyle a&lt;b}"> <img alt="a cat"></p>'
    )
    assert "$a&lt;b$ <img alt" in prepared_page(page)
    assert "<math" not in prepared_page(page)
    for unfinished in ("<math><mi>x", "<ul><li>a<li>b", '<script type="math/tex">x', "<ul><li>a</li></ul>"):
        assert prepared_page(unfinished) == unfinished
    assert prepared_page("<ul><li>a<li>b</ul>") == "<p>- a</p><p>- b</p>"
