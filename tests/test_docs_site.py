"""The documentation builds without a warning, holds together, and needs nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

import jax_diversity as jd
from jax_diversity.cli.main import _VERBS, main

DOCS = Path(__file__).parent.parent / "docs"
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}

pytest.importorskip("sphinx", reason="the site is built with the extra `dev`")


class Page(HTMLParser):
    """A page's anchors, what it links to and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.ids.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED and LOADED[tag] in found and found.get("rel") not in ("next", "prev", "index", "search"):
            self.loads.append(found[LOADED[tag]])


class Site(NamedTuple):
    """The built site."""

    folder: Path
    pages: dict[str, Page]


def build(docs: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    return subprocess.run(
        [*command, "-d", str(out / "doctrees"), *more, str(docs), str(out / "html")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert done.returncode == 0, done.stderr
    folder = out / "html"
    return Site(folder, {str(path.relative_to(folder)): Page(path) for path in folder.rglob("*.html")})


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS / "site")
    return __import__("command_line")


def test_a_warning_ends_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(DOCS / "site", docs / "site")
    shutil.copy(DOCS / "conf.py", docs)
    (docs / "index.md").write_text("# Page\n\n[to nowhere](nowhere.md), [to no heading](#none)\n", encoding="utf-8")
    done = build(docs, tmp_path)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "none" in done.stderr


def test_every_page_is_reached_from_every_other(site: Site) -> None:
    sources = {
        str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md") if "_build" not in path.parts
    }
    assert sources <= set(site.pages)
    for name in sources:
        page = site.pages[name]
        reached = {(page.path.parent / urlsplit(link).path).resolve() for link in page.links}
        missing = {other for other in sources - {name} if (site.folder / other).resolve() not in reached}
        assert not missing, f"{name} has no way to {missing}"


def test_links_headings_and_pictures_exist(site: Site) -> None:
    for name, page in site.pages.items():
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            assert path.exists(), f"{name}: {target}"
            if parts.fragment and path.suffix == ".html":
                other = site.pages[str(path.relative_to(site.folder.resolve()))] if parts.path else page
                assert unquote(parts.fragment) in other.ids, f"{name}: {target}"


@pytest.mark.parametrize("page", ["index.html", "howto/colab.html"])
def test_the_notebooks_can_be_had_from_the_site(site: Site, page: str) -> None:
    found = site.pages[page]
    offered = [found.path.parent / target for target in found.links if target.endswith(".ipynb")]
    wanted = sorted((DOCS.parent / "notebooks").glob("*.ipynb"))
    assert len(wanted) == 3
    assert sorted(path.name for path in offered) == [path.name for path in wanted]
    for path in offered:
        assert path.read_bytes() == (DOCS.parent / "notebooks" / path.name).read_bytes()


def test_nothing_is_loaded_from_elsewhere(site: Site) -> None:
    for name, page in site.pages.items():
        assert page.loads
        for target in page.loads:
            assert not urlsplit(target).scheme or target.startswith("data:"), f"{name}: {target}"
            assert not urlsplit(target).netloc, f"{name}: {target}"
    styles = list(site.folder.rglob("*.css"))
    assert styles
    for path in styles:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""@import|url\(\s*["']?(https?:)?//""", text), path.name


def test_formulas_are_mathml(site: Site) -> None:
    page = site.pages["mathematics.html"]
    assert page.tags.count("math") > 50
    assert "merror" not in page.tags
    assert not re.search(r"\$\$|\\(frac|langle|sum)", re.sub(r"<annotation.*?</annotation>", "", page.text))


@pytest.mark.parametrize("name", jd.__all__)
def test_every_public_name_is_described(site: Site, name: str) -> None:
    anchor = f"jax_diversity.{name}"
    homes = [path for path, page in site.pages.items() if path.startswith("reference/") and anchor in page.ids]
    assert len(homes) == 1
    assert f'{Path(homes[0]).name}#{anchor}"' in site.pages["reference/python.html"].text


@pytest.mark.parametrize("verb", _VERBS)
def test_every_option_of_the_help_is_described(
    site: Site, command_line: ModuleType, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    page = site.pages["reference/command-line.html"]
    assert verb in page.ids
    with pytest.raises(SystemExit) as ending:
        main([verb, "--help"])
    assert ending.value.code == 0
    helped = set(re.findall(r"^[│| ] (--[a-z][\w.-]*)", capsys.readouterr().out, flags=re.MULTILINE))
    assert "--out" in helped
    described = {option.name for _, found in command_line.options(verb) for option in found}
    lists = {name for name in helped if re.match(r"--orders\.\d", name)}  # on the page they are lists, in YAML
    assert helped - lists - {"--config", "--quiet", "--open"} <= described
    for name in described:
        assert f">{name}<" in page.text, name
    for section, _ in command_line.options(verb):
        assert not section or verb == "order" or {f"{verb}-{section}", f"build-{section}"} & page.ids


def test_options_have_meanings_and_defaults(command_line: ModuleType) -> None:
    found = {option.name: option for _, options in command_line.options("build") for option in options}
    assert found["--packing.sequence-length"].default == "`512`"
    assert found["--records.layout"].kind == "`packed` · `ordered`"
    assert found["--corpus.strict"].kind == "switch"
    assert [name for name, option in found.items() if not option.meaning] == []


def test_pictures_show_what_the_package_computes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(DOCS / "pictures" / "concepts.py"), "--out", str(tmp_path)], check=True)
    drawn = sorted(tmp_path.glob("*.svg"))
    assert len(drawn) == 6
    for path in drawn:
        assert words_of(path) == words_of(DOCS / "images" / path.name), f"draw {path.name} anew"


def words_of(path: Path) -> list[str]:
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.attrib["aria-label"]
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
