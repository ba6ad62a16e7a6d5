"""Pages of our own in HTML and LaTeX: what must stay and what must go. Wiki text is in test_wiki_templates.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.settings import parse_yaml
from jax_diversity.preparation.passes.chain import Chain
from jax_diversity.preparation.steps.mathml import formula_text
from jax_diversity.preparation.steps.page_code import with_marked_code
from jax_diversity.preparation.steps.page_parts import prepared_page
from jax_diversity.preparation.steps.raised import with_raised
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
    assert "$a&lt;b$ <img alt" in prepared_page(page)[0]
    assert "<math" not in prepared_page(page)[0]
    for unfinished in ("<math><mi>x", "<ul><li>a<li>b", '<script type="math/tex">x', "<ul><li>a</li></ul>", "<pre>a"):
        assert prepared_page(unfinished) == (unfinished, [])
    assert prepared_page("<ul><li>a<li>b</ul>")[0] == "<p>- a</p><p>- b</p>"
    # Menus stay lists, which extractors leave out: the last link may have no end, icons may be long.
    icon = "<svg>" + '<path d="M1 2M1 2"/>' * 200 + "</svg>"
    for menu in (
        "<ul><li><a href=1>Home page<li><a href=2>About us</ul>",
        f"<ul><li><a href='/a'>{icon}Facebook</a></li><li><a href='/b'>{icon}Twitter page</a></li></ul>",
    ):
        assert prepared_page(menu)[0] == menu


def test_formulas_that_a_browser_has_rendered() -> None:
    """MathJax 2 puts what it draws before the script with the formula: a saved page has the formula three times."""
    glyphs = "".join(f'<span class="mrow"><span class="mi">{letter}</span></span>' for letter in "xyz")
    drawn = f'<span class="MathJax" id="M-1-Frame" tabindex="0"><nobr aria-hidden="true">{glyphs}</nobr>' + (
        '<span class="MJX_Assistive_MathML"><math><mi>x</mi></math></span></span>'
    )
    script = '<script type="math/tex" id="M-1">x+y</script>'
    rest = '<span class="mi">as</span> <math><mi>a</mi></math>.</p>'
    page = f'<p>So <span class="MathJax_Preview">x+y</span>{drawn}{script} holds, {rest}'
    assert prepared_page(page)[0] == '<p>So $x+y$ holds, <span class="mi">as</span> a.</p>'
    assert prepared_page(page.replace("math/tex", "text/plain"))[0].count("x") >= 3  # nothing else has the formula
    unclosed = '<span class="MathJax">x' + script
    assert prepared_page(unclosed)[0] == '<span class="MathJax">x$x+y$'


# ---- Parts that extractors lose.
EXTRACTORS = ["trafilatura", "resiliparse"]
FILLER = "".join(f"<p>Plain words of paragraph {number}, long enough for an extractor.</p>" for number in range(6))


def extracted(part: str, extractor: str, **options: object) -> str:
    """Return the text of a page between its other paragraphs."""
    pytest.importorskip(extractor, reason="the extractors are in the extra `preparation`")
    page = (
        f"<html><head><title>t</title></head><body><article><h1>Head</h1>{FILLER}{part}<p>Last words of the page.</p>"
    )
    chain = Chain([("html", {"always": True, "extractor": extractor, **options})], Here())
    (left,) = chain.through([Document("0", f"{page}</article></body></html>", "web")])
    assert not set(left.text) & set(map(chr, range(0x10600, 0x10780)))  # the marks of the step
    return left.text.partition("paragraph 5, long enough for an extractor.")[2].rpartition("Last words")[0].strip("\n")


CODE = "if a:\n    b()\n\n    c(<1>)"
INSIDE = "if a:\n    b()\n\n    c(&lt;1&gt;)"
LINES_OF_CODE = INSIDE.split("\n")


def each_line(form: str, between: str = "") -> str:
    return between.join(form.format(number=number, line=line) for number, line in enumerate(LINES_OF_CODE, 1))


CHROMA_NUMBER = "<span class=lnt>{number}\n</span>"
CHROMA_LINE = "<span class=line><span class=cl>{line}\n</span></span>"
GITLAB_NUMBER = '<a class="file-line-num" data-line-number="{number}" href="#L{number}">{number}</a>'
GITEA_ROW = (
    '<tr><td class="lines-num"><span data-line-number="{number}"></span></td>'
    '<td class="lines-code"><code>{line}\n</code></td></tr>'
)
CODEMIRROR_LINE = (
    '<div><div class="CodeMirror-gutter-wrapper"><div class="CodeMirror-linenumber">{number}</div></div>'
    '<pre class="CodeMirror-line"><span>{line}</span></pre></div>'
)
ENLIGHTER_LINE = '<div class=""><div><span class="enlighter-text">{line}</span></div></div>'
GITWEB_LINE = '<div class="pre"><a id="l{number}" href="#l{number}" class="linenr">   {number}</a> {line}</div>'
DOXYGEN_LINE = '<div class="line"><span class="lineno"> {number}</span>&#160;{line}</div>\n'
CODE_BLOCKS = {
    "plain": f"<pre>{INSIDE}</pre>",
    "code in pre": f"<pre class='x'><code class='python'>{INSIDE}\n</code></pre>",
    "line ends of Windows": f"<pre>{INSIDE}</pre>".replace("\n", "\r\n"),
    "br and nbsp": f"<pre>{INSIDE}</pre>".replace("\n", "<br/>").replace("    ", "&nbsp;" * 4),
    "coloured": "<pre><span class='k'>if</span> <b>a</b>:\n    <a href='#'>b</a>()\n\n    c(<i>&lt;</i>1&gt;)</pre>",
    "a div for every line": f"<pre><code>{each_line('<div class=l>{line}<br></div>')}</code></pre>",
    "a span for every line, with line ends": f"<pre>{each_line('<span class=line>{line}</span>', chr(10))}</pre>",
    "a span for every line, Chroma": f"<pre>{each_line(CHROMA_LINE)}</pre>",
    "an item for every line": f"<pre><ol>{each_line('<li>{line}</li>')}</ol></pre>".replace(
        "<li></li>", "<li><br></li>"
    ),
    "numbers before lines": f"<pre>{each_line('<span class=linenos>{number}</span>{line}', chr(10))}</pre>",
    "numbers before lines, of Chroma": f"<pre>{each_line('<span class=ln> {number}</span>{line}', chr(10))}</pre>",
    "numbers in a table, Hexo": (
        '<figure class="highlight python"><figcaption><span>a.py</span></figcaption><table><tr><td class="gutter"><pre>'
        f'{each_line("<span class=line>{number}</span><br>")}</pre></td><td class="code"><pre>'
        f"{each_line('<span class=line>{line}</span><br>')}</pre></td></tr></table></figure>"
    ),
    "in a figure beside a figure": f"<figure><pre>{INSIDE}</pre><figure><img src='a.png'></figure></figure>",
    "in a figure of a figure": f"<figure><figure><pre>{INSIDE}</pre></figure><figcaption>a.py</figcaption></figure>",
    "numbers in a table, Pygments": (
        '<table class="highlighttable"><tr><td class="linenos"><div class="linenodiv"><pre>1\n2\n3\n4</pre></div></td>'
        f'<td class="code"><div class="highlight"><pre><span></span>{INSIDE}\n</pre></div></td></tr></table>'
    ),
    "numbers in a table, Chroma": (
        f'<table class="lntable"><tr><td class="lntd"><pre>{each_line(CHROMA_NUMBER)}'
        f'</pre></td><td class="lntd"><pre>{INSIDE}</pre></td></tr></table>'
    ),
    "a row for every line, GitHub": (
        '<table class="highlight js-file-line-container">\n'
        + each_line(
            '<tr>\n  <td id="L{number}" class="blob-num js-line-number" data-line-number="{number}"></td>\n'
            '  <td class="blob-code blob-code-inner js-file-line">{line}</td>\n</tr>\n'
        ).replace('js-file-line"></td>', 'js-file-line">\n</td>')
        + "</table>"
    ),
    "a row for every line, with an empty cell": (
        "<table class='highlight'>"
        + each_line("<tr><td class='blob-num' data-line-number='{number}'></td><td class='blob-code'>{line}</td></tr>")
        + "</table>"
    ),
    "numbers in a table, SyntaxHighlighter": (
        '<div class="syntaxhighlighter"><table><tr><td class="gutter">'
        f'{each_line("<div class=line>{number}</div>")}</td><td class="code"><div class="container">'
        f"{each_line('<div class=line><code>{line}</code></div>')}</div></td></tr></table></div>"
    )
    .replace("    ", "&nbsp;" * 4)
    .replace("<code></code>", "&nbsp;"),
    "numbers in a table, Crayon": (
        '<div class="crayon-syntax"><table class="crayon-table"><tr><td class="crayon-nums"><div>'
        f'{each_line("<div class=crayon-num>{number}</div>")}</div></td><td class="crayon-code"><div>'
        f"{each_line('<div class=crayon-line>{line}</div>')}</div></td></tr></table></div>"
    )
    .replace("    ", "&nbsp;" * 4)
    .replace("<div class=crayon-line></div>", "<div class=crayon-line>&nbsp;</div>"),
    "code with br": f"<p><code>{INSIDE}</code></p>".replace("\n", "<br />\n").replace("    ", "&nbsp;" * 4),
    "numbers in links beside, GitLab": (
        f'<div class="file-content"><div class="line-numbers">{each_line(GITLAB_NUMBER, chr(10))}</div>'
        f'<div class="blob-content"><pre class="code"><code>{INSIDE}</code></pre></div></div>'
    ),
    "a row for every line, Gitea": f"<table><tbody>{each_line(GITEA_ROW)}</tbody></table>",
    "CodeMirror 5": f'<div class="CodeMirror"><div class="CodeMirror-code">{each_line(CODEMIRROR_LINE)}</div></div>',
    "CodeMirror 6": (
        f'<div class="cm-scroller"><div class="cm-gutters">{each_line("<div class=cm-gutterElement>{number}</div>")}'
        f'</div><div class="cm-content">{each_line("<div class=cm-line>{line}</div>")}</div></div>'
    ).replace("cm-line></div>", "cm-line><br></div>"),
    "Doxygen": f'<div class="fragment">{each_line(DOXYGEN_LINE)}</div>',
    "gitweb": f'<div class="page_body">{each_line(GITWEB_LINE, chr(10))}</div>',
    "EnlighterJS": (
        '<div class="enlighter-default enlighter-linenumbers"><div class="enlighter-code"><div class="enlighter">'
        f"{each_line(ENLIGHTER_LINE)}</div></div></div>"
    ),
    "numbers in a block beside": (
        f'<div><div class="line-numbers"><pre>1\n2\n3\n4\n</pre></div><pre class="code">{INSIDE}</pre></div>'
    ),
}


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize("name", CODE_BLOCKS)
def test_code_keeps_its_lines(name: str, extractor: str) -> None:
    assert CODE in extracted(CODE_BLOCKS[name], extractor)
    assert "2" not in extracted(CODE_BLOCKS[name], extractor)


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_numbers_that_are_no_numbers_of_lines_stay(extractor: str) -> None:
    assert extracted("<pre>12\n15</pre>", extractor) == "12\n15"
    table = "<table><tr><td class='num'>17</td><td>Words</td></tr><tr><td class='num'>18</td><td>More</td></tr></table>"
    assert "17" in extracted(table, extractor)
    assert "<pre>" in extracted("<pre>a &lt;pre&gt; b</pre>", extractor)
    literals = "<pre>x = <span class=num>42</span> + y\n<span class=num>17</span> + <span class=ln>9</span></pre>"
    assert extracted(literals, extractor) == "x = 42 + y\n17 + 9"
    prose = (
        '<p>It is <span class="num">42</span> and <a class="line-number" href="#">7</a>, on line '
        '<span class="linenum">5</span>.</p><pre>x = 1</pre>'
    )
    text = extracted(prose, extractor)
    assert [number for number in ("42", "7", "5", "x = 1") if number in text] == ["42", "7", "5", "x = 1"]
    cells = "".join(f"<tr><td class=num>{year}</td><td class=num>{year % 7}</td></tr>" for year in (2020, 2023))
    assert "2023" in extracted(f"<table>{cells}<tr><td><pre>run()</pre></td></tr></table>", extractor)


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_a_slide_is_not_code(extractor: str) -> None:
    slide = '<div class="fragment"><ul><li>The first point of the talk.</li><li>The second point.</li></ul></div>'
    code, _ = with_marked_code(slide, slide.encode())
    assert code == slide
    assert "first point" in extracted(slide, extractor)


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("10<sup>6</sup> cells", "10⁶ cells"),
        ("10<sup>-9</sup> m, 10<SUP class='x'>&minus;9</SUP> m", "10⁻⁹ m, 10⁻⁹ m"),
        ("2<sup>n</sup>, 2<sup><i>n</i></sup>, 2<sup>n+1</sup>", "2ⁿ, 2ⁿ, 2ⁿ⁺¹"),
        ("x<sub>1</sub><sup>2</sup>, x<sub>i</sub>, x<sub>i,j</sub>", "x₁², x_i, x_(i,j)"),
        ("H<sub>2</sub>O, SO<sub>4</sub><sup>2-</sup>", "H₂O, SO₄²⁻"),
        ("the 1<sup>st</sup> of May, XIX<sup>e</sup>", "the 1st of May, XIXe"),
        ("words<sup>3</sup> with a note", "words³ with a note"),
        ("words<sup class=r><a href='#n'>3</a></sup> with a note", "words³ with a note"),
        ("10<sup><b><i>6</i></b></sup>, 10<sup><!-- x -->6</sup>, 10<sup>\n6\n</sup>", "10⁶, 10⁶, 10⁶"),
        ("10<sup>&nbsp;6</sup>, 10<sup>\u20136</sup>, 2<sup>2<sup>n</sup></sup>", "10⁶, 10⁻⁶, 2^2ⁿ"),
        ("10<span style='vertical-align: super'>6</span>, CO<span class=\"sub\">2</span>", "10⁶, CO₂"),
        ("10<span class='sup'>6</span>, notes on pages<sup>12\u201315</sup>", "10⁶, notes on pages^(12\u201315)"),
        ("10<font size='1' style='color:red;vertical-align:super'>6</font> cells", "10⁶ cells"),
        ("<pre>10<sup>6</sup></pre>", "10⁶"),
    ],
)
def test_exponents_and_indices_stay_apart(markup: str, text: str, extractor: str) -> None:
    assert extracted(f"<p>{markup}</p>", extractor).strip() == text


@pytest.mark.parametrize(
    "markup",
    [
        'century.<sup class="reference"><a href="#x"><span>&#91;</span>1<span>&#93;</span></a></sup>',
        "<sup><math><msup><mi>x</mi><mn>2</mn></msup></math></sup>",
        "<p>Brand<sup>TM</p><p>Next</sup> words</p>",
        "<sup>2<br>3</sup>",
    ],
)
def test_notes_formulas_and_paragraphs_are_no_exponents(markup: str) -> None:
    assert with_raised(markup) == markup


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize(
    "part",
    [
        "<ul><li>first words<ul><li>inner one</li><li>inner two</li></ul></li><li>second words</li></ul>",
        "<ul><li>first words<ol><li>inner one<ul><li>inner two</li></ul></li></ol></li><li>second words</li></ul>",
        "<ul><li>first words with <a href='/'>a link</a><li>inner one<li>inner two<li>second words</ul>",
    ],
)
def test_lists_in_lists_stay(part: str, extractor: str) -> None:
    lines = [line for line in extracted(part, extractor).splitlines() if line.strip()]
    words = [line.strip().removeprefix("- ").removesuffix(" with a link") for line in lines]
    assert words == ["first words", "inner one", "inner two", "second words"]


JOINED = {
    "Persian": "می\u200cشود و می\u200cبیند",
    "Sinhala": "ශ්\u200dරී ලංකා",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ\u180eᠠ ᠪᠢᠴᠢᠭ",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 and \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "Khmer": "ខ្ញុំ\u200bស្រឡាញ់\u200bភាសា",
    "Thai": "ฉัน\u200bรัก\u200bภาษา",
    "Burmese": "မြန်မာ\u200bဘာသာ",
    "marks of direction": "\u200fשלם\u200e abc",
}


@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize("language", JOINED)
@pytest.mark.parametrize("is_escaped", [False, True])
def test_letters_without_width_stay(language: str, extractor: str, is_escaped: bool) -> None:
    text = JOINED[language]
    markup = "".join(f"&#{ord(each)};" if is_escaped and ord(each) in range(0x200B, 0x2010) else each for each in text)
    assert text in extracted(f"<p>Words {markup} words</p>", extractor)
    if extractor == "trafilatura":
        assert text in extracted(f"<p>Words {markup} words</p>", extractor, extractor_only=True)
        assert "invisible" in extracted("<p>Words invis\u200bible words</p>", extractor)
