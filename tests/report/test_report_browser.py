"""The page in a real browser: drawn without an error or a request, in both themes, from desk to telephone."""

from __future__ import annotations

import copy
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_diversity.report.page import write_report
from tests.support.browser import EXECUTABLE, PATIENCE, Browser
from tests.support.report_values import HOSTILE, make_clusters, make_values, without_orderings

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome on the path: the page is not drawn"),
]

NUM_FIGURES = 15
DESK, TELEPHONE = 1280, 360
VERDICT = "document.getElementById('verdict').textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert EXECUTABLE is not None
    try:
        browser = Browser(EXECUTABLE, tmp_path_factory.mktemp("profile"))
    except (ConnectionError, BrokenPipeError):  # a packager's stub, a missing library
        pytest.skip(f"{EXECUTABLE} does not start: the page is not drawn")
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    values = {
        "common": make_values(),
        "hostile": make_values(HOSTILE),
        "tiny": make_values(num_sequences=1),
        "nothing": without_orderings(make_values()),
        "many": with_many_orderings(),
    }
    paths = {}
    for name, of_page in values.items():
        folder = tmp_path_factory.mktemp(name)
        write_report(folder, of_page)
        paths[name] = folder / "report.html"
    return paths


def with_many_orderings() -> dict[str, Any]:
    """A shuffle and eight other orderings."""
    values = copy.deepcopy(make_values())
    shuffle, greedy = values["ordering"]["orders"]
    values["ordering"]["orders"] = [shuffle, *({**greedy, "name": f"ordering {index}"} for index in range(8))]
    return {**values, "training": []}


def figures_of(values: dict[str, Any], name: str, family: str, size: int) -> dict[str, Any]:
    """What the values say of an ordering's windows."""
    (order,) = (order for order in values["ordering"]["orders"] if order["name"] == name)
    (row,) = (row for row in order["windows"] if (row["family"], row["window_size"]) == (family, size))
    return row


def show_more(browser: Browser) -> None:
    browser.evaluate("document.querySelectorAll('details.more').forEach(details => { details.open = true; })")


def draw(browser: Browser, name: str) -> None:
    """Bring a figure to the window: figures are drawn when they come near."""
    browser.point(f"#{name}")
    browser.wait_for(f"document.getElementById('{name}').data !== undefined")


def draw_all(browser: Browser) -> None:
    """Bring every figure to the window once; some are behind `more`."""
    show_more(browser)
    for number in range(browser.ask("figures().length")):
        # Figures that are drawn meanwhile may move this one away, so every look brings it back.
        figure = f"checks.figures()[{number}]"
        browser.wait_for(f"({figure}.scrollIntoView({{ behavior: 'instant' }}), checks.isDone({figure}))")


def open_all(browser: Browser) -> None:
    """Open every batch, the settings, and every figure's numbers."""
    browser.evaluate("document.querySelectorAll(':not(.more) > summary').forEach(summary => summary.click())")
    show_more(browser)
    browser.evaluate("document.querySelectorAll('.foot [aria-expanded]').forEach(button => button.click())")
    browser.wait_for("[...document.querySelectorAll('.batch')].every(batch => batch.children.length === 2)")


@pytest.mark.parametrize(
    ("name", "width"),
    [("common", DESK), ("common", TELEPHONE), ("hostile", TELEPHONE), ("tiny", TELEPHONE), ("nothing", DESK)],
)
def test_the_page_is_drawn_without_a_fault(browser, pages, name, width):
    browser.open(pages[name], width)
    draw_all(browser)
    open_all(browser)
    assert browser.faults() == []
    assert browser.evaluate("document.documentElement.dataset.errors") == "0"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.ask("drawn()") + len(browser.ask("instead()")) == browser.ask("figures().length")
    if name in ("common", "hostile"):
        assert browser.ask("drawn()") == NUM_FIGURES
    assert browser.ask("addresses()") == []


def test_too_little_for_a_figure_becomes_a_sentence(browser, pages):
    browser.open(pages["tiny"])
    draw_all(browser)
    instead = browser.ask("instead()")
    assert instead["ranks"] == "There is nothing to draw: a curve needs at least two points, and there is one."
    assert instead["prefix"] == instead["drift"] == "There is nothing to draw: all values are zero."
    assert "two parts of training" in instead["heat"]
    assert not browser.evaluate("document.getElementById('prefix').checkVisibility()")
    shown = "[...document.querySelectorAll('figure:has(#prefix) [data-format]')].filter(e => e.checkVisibility())"
    savers = f"{shown}.length"
    assert browser.evaluate(savers) == 0
    browser.open(pages["common"])
    draw_all(browser)
    assert browser.ask("instead()") == {}
    assert browser.evaluate(savers) == 2
    assert browser.faults() == []


def share_of(row: dict[str, Any]) -> str:
    return f"{row['value']:.3f} ± {(row['high'] - row['low']) / 2:.3f}"


def test_the_page_says_what_the_order_gives_a_model(browser, pages):
    browser.open(pages["common"])
    draw_all(browser)
    words = browser.evaluate("document.getElementById('explained-words').textContent")
    assert words.startswith("In the run on greedy, at the checkpoint after 39 steps: The families explain ")
    assert "Early checkpoints overstate the share" in words
    cells = "row => [...row.cells].map(cell => cell.textContent)"
    rows = browser.evaluate(f"[...document.querySelectorAll('#explained-shares tbody tr')].map({cells})")
    (run,) = make_values()["training"]
    expected = [
        ["greedy", str(about["num_steps"]), row["family"], "4", share_of(row)]
        for about in run["explained"]
        for row in about["shares"]
    ]
    assert rows == expected
    curve = browser.evaluate("[...document.getElementById('worth').data[0].y]")
    assert curve == pytest.approx([1 / row["value"] for row in run["explained"][-1]["windows"]])
    browser.open(pages["many"])
    assert not browser.evaluate("document.getElementById('explained').checkVisibility()")


def test_measures_of_gradients_are_drawn_only_beside_a_shuffle(browser, pages, tmp_path):
    shown = "['diversity', 'rank'].map(name => document.getElementById(name).checkVisibility())"
    browser.open(pages["common"])
    assert browser.evaluate(shown) == [False, False]
    values = copy.deepcopy(make_values())
    (run,) = values["training"]
    values["training"] = [{**run, "ordering": "uniform_shuffle"}, run]
    write_report(tmp_path, values)
    browser.open(tmp_path / "report.html")
    draw_all(browser)
    assert browser.evaluate(shown) == [True, True]
    assert browser.faults() == []


def test_the_head_of_the_page_draws_the_orders_beside_the_shuffle_in_steps(browser, tmp_path):
    values = copy.deepcopy(make_values())
    values["summary"]["batch_size"] = 100
    write_report(tmp_path, values)
    browser.open(tmp_path / "report.html")
    browser.wait_for("document.getElementById('course').data !== undefined")
    traces = "document.getElementById('course').data"
    assert browser.evaluate(f"{traces}.filter(trace => trace.showlegend !== false).map(trace => trace.name)") == [
        "uniform_shuffle",
        "greedy",
    ]
    assert "batches of 100 sequences" in browser.evaluate("document.getElementById('course').textContent")
    steps: list[float] = browser.evaluate(f"{traces}.at(-1).x")
    assert 19 < steps[-1] <= 20
    told = browser.evaluate("document.getElementById('next').textContent").replace("\u00a0", " ")
    assert told == f"What to do next{''.join(values['summary']['next']).replace('`', '')}"


def test_names_on_the_map_do_not_touch(browser, tmp_path):
    values = copy.deepcopy(make_values())
    rng = np.random.default_rng(0)
    for number, row in enumerate(values["clusters"]["map"]["rows"]):
        x, y = rng.uniform(-1, 1, 2).round(3).tolist()
        row.update(x=x, y=y, name=f"distinctive{number}, term{number}, third")
    write_report(tmp_path, values)
    boxes = (
        "[...document.querySelectorAll('#topics .textpoint text')].map(node => node.getBoundingClientRect())"
        ".map(({ left, right, top, bottom }) => ({ left, right, top, bottom }))"
    )
    for width, least in ((DESK, 10), (700, 8), (390, 4), (TELEPHONE, 4)):
        browser.open(tmp_path / "report.html", width)
        browser.point("#topics")
        browser.wait_for(f"{boxes}.length > 0")
        names: list[dict[str, Any]] = browser.evaluate(boxes)
        assert least <= len(names) <= 24, (width, len(names))
        assert apart(names), width
        assert all(0 <= each["left"] <= each["right"] <= width for each in names), width


def test_a_wide_table_shows_that_it_can_be_scrolled(browser, pages):
    """The edges of a table have shadows, which a cover hides where there is nothing more to scroll to."""
    browser.open(pages["common"], 390)
    tables: list[list[float]] = browser.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(node => node.checkVisibility())"
        ".map(node => [node.scrollWidth, node.clientWidth])"
    )
    assert any(whole > shown for whole, shown in tables)
    drawn = "getComputedStyle(document.getElementById('measures'))"
    assert browser.evaluate(f"{drawn}.backgroundImage").count("linear-gradient") == 4
    assert browser.evaluate(f"{drawn}.backgroundAttachment") == "local, local, scroll, scroll"
    # The column that the head is about can be seen without scrolling.
    second = "document.querySelectorAll('#first-table th')[1]"
    assert browser.evaluate(f"{second}.textContent") == "gap closed"
    assert browser.evaluate(f"{second}.getBoundingClientRect().right <= innerWidth")
    # A word of a table's head is not broken.
    assert browser.evaluate(
        "[...document.querySelectorAll('#first-table th')].every(node => node.scrollWidth <= node.clientWidth)"
    )


def test_the_page_prints_on_white_and_all_of_its_tables(browser, pages):
    browser.open(pages["common"], scheme="dark")
    printed = browser.call("Page.printToPDF", preferCSSPageSize=True)["data"]
    assert len(printed) > 100_000
    assert browser.faults() == []
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(252, 252, 250)"
    assert browser.evaluate(
        "[...document.querySelectorAll('.scroll')].every(node => getComputedStyle(node).maxHeight === 'none')"
    )
    browser.call("Emulation.setEmulatedMedia", media="", features=[])


def apart(boxes: list[dict[str, Any]]) -> bool:
    """Whether no two labels touch."""
    return all(
        one["right"] < other["left"]
        or other["right"] < one["left"]
        or one["bottom"] <= other["top"] + 2
        or other["bottom"] <= one["top"] + 2
        for one, other in itertools.combinations(boxes, 2)
    )


@pytest.mark.parametrize(
    "shares",
    [[4.1, 3.6, 2.9, 2.3], [5.0, 5.0, 5.0], [10 ** -(rank / 9) for rank in range(40)]],
)
def test_axes_of_shares_and_ranks_have_numbers_that_can_be_read(browser, tmp_path, shares):
    write_report(tmp_path, {**make_values(), "clusters": make_clusters([int(share * 1e6) for share in shares])})
    for width in (DESK, TELEPHONE):
        browser.open(tmp_path / "report.html", width)
        browser.point("#ranks")
        browser.wait_for("document.getElementById('ranks').data !== undefined")
        for axis in ("x", "y"):
            ticks: list[dict[str, Any]] = browser.ask(f"ticks('ranks', '{axis}')")
            texts = [tick["text"] for tick in ticks]
            assert 2 <= len(set(texts)) == len(texts) <= 16, texts
            assert apart(ticks), texts
            if axis == "x":
                assert all(tick["bottom"] - tick["top"] < 20 for tick in ticks), "level, not tilted"


def test_hostile_text_is_shown_as_text_and_changes_nothing(browser, pages):
    elements = {}
    for name in ("common", "hostile"):
        browser.open(pages[name])
        draw_all(browser)
        open_all(browser)
        elements[name] = browser.ask("census()")
    assert elements["hostile"] == elements["common"]
    assert browser.evaluate("document.querySelectorAll('main a[href], main img, main bdi *').length") == 0
    assert browser.evaluate("window.harmed === undefined")
    for place in ("#cluster-table tbody tr:first-child", "#sources", ".batch[open] .sequences", "#heat-numbers"):
        shown = browser.evaluate(f"document.querySelector({json.dumps(place)}).textContent")
        assert "<img src=x onerror='window.harmed = 2'>" in shown, place
    # What reverses the text after it ends with its own element.
    assert browser.evaluate("[...document.querySelectorAll('bdi')].every(e => e.dir === 'auto')")
    assert browser.evaluate("getComputedStyle(document.documentElement).direction") == "ltr"
    assert browser.faults() == []


def test_the_selectors_change_the_figures_and_obey_the_keyboard(browser, pages):
    browser.open(pages["common"])
    draw(browser, "windows")
    points = "JSON.stringify(document.getElementById('windows').data.map(trace => trace.y))"
    chosen = "document.querySelector('input[name=family]:checked').value"
    before, sentence = browser.evaluate(points), browser.evaluate(VERDICT)
    browser.evaluate("document.querySelector('input[name=family]:checked').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(chosen) == "length"
    browser.wait_for(f"{points} !== {json.dumps(before)}")
    assert browser.evaluate(VERDICT) != sentence
    browser.click("input[name=size][value='64']")
    browser.wait_for(f"{VERDICT}.includes('By length, windows of 64 sequences')")
    browser.click("#log")
    browser.wait_for("document.getElementById('prefix').layout?.yaxis.type === 'log'")
    assert browser.faults() == []


def test_windows_at_half_an_offset_have_their_own_curves(browser, pages):
    browser.open(pages["common"])
    browser.point("#profile")
    browser.wait_for("document.getElementById('profile').data !== undefined")
    sizes = "document.getElementById('profile').data.find(trace => trace.name === 'greedy').x"
    assert browser.evaluate(sizes) == [
        64,
        128,
        256,
        512,
        1024,
    ]  # a quarter of a window to 16, as far as they fit
    browser.click("#wide")
    browser.wait_for(f"{sizes}[0] === 1")
    assert not browser.evaluate("document.getElementById('profile-span').checkVisibility()")
    browser.click("input[name=half][value='true']")
    browser.wait_for(f"{sizes}[0] === 2")  # half of a window of one sequence is not a sequence
    names = browser.evaluate("document.getElementById('profile').data.map(trace => trace.name)")
    assert {"uniform_shuffle, 5 seeds", "floor of the mean", "ideal token shuffle"} <= set(names)
    assert browser.faults() == []


def test_orderings_are_switched_off_and_on(browser, pages):
    browser.open(pages["common"], TELEPHONE)
    drawn = "document.getElementById('windows').data.map(trace => trace.name).includes('greedy')"
    row = "document.getElementById('measures').textContent.includes('greedy')"
    browser.point("#windows")
    browser.wait_for(f"document.getElementById('windows').data !== undefined && {drawn}")
    for shown in ("false", "true"):
        browser.click("input[name=shown][value='greedy']")
        browser.wait_for(f"{drawn} === {shown}")
        assert browser.evaluate(f"{row} === {shown}")
    assert browser.faults() == []


def test_a_curve_under_the_mouse_tells_its_value(browser, pages):
    browser.open(pages["common"])
    draw(browser, "windows")
    browser.point("#windows .nsewdrag", across=0.2)
    told = "document.querySelector('#windows .hoverlayer').textContent"
    browser.wait_for(f"{told}.includes('greedy')")
    curve = figures_of(make_values(), "greedy", "cluster", 256)["curve"]
    assert any(f"{mean:.4g}" in browser.evaluate(told) for mean in curve["mean"])
    assert "uniform_shuffle" in browser.evaluate(told)
    assert browser.faults() == []


def test_a_batch_opens_to_its_documents(browser, pages):
    browser.open(pages["common"], TELEPHONE)
    first = "document.querySelector('.batch')"
    assert browser.evaluate(f"{first}.textContent").startswith("TV 0.71Step 90")
    assert browser.evaluate("document.querySelectorAll('.batch .document').length") == 0
    browser.click(".batch summary")
    browser.wait_for(f"{first}.open && {first}.querySelectorAll('.document').length > 10")
    shown = browser.evaluate(f"{first}.textContent")
    assert "doc-90-0-0" in shown
    assert "4 rows more." in shown
    browser.press("Enter")  # the summary has the focus
    browser.wait_for(f"!{first}.open")
    browser.ask("choose('#batches select', 'uniform_shuffle')")
    assert browser.evaluate("document.querySelector('figure select.focus').value") == "uniform_shuffle"
    assert browser.evaluate("document.querySelectorAll('.batch').length") == 6
    assert browser.faults() == []


def test_a_long_id_is_shortened_in_its_middle_and_told_in_full(browser, tmp_path):
    values = copy.deepcopy(make_values())
    name = f"first/{'path/' * 30}last-17"
    batch = values["ordering"]["batches"]["orders"]["greedy"]["cluster"]["worst"][0]
    batch["rows"] = [{**batch["rows"][0], "segments": [{**batch["rows"][0]["segments"][0], "document": name}]}]
    write_report(tmp_path, values)
    browser.open(tmp_path / "report.html")
    browser.click(".batch summary")
    browser.wait_for("document.querySelector('.batch .document .meta bdi[title]') !== null")
    shown = "document.querySelector('.batch .document .meta bdi[title]')"
    assert browser.evaluate(f"{shown}.title") == name
    text = browser.evaluate(f"{shown}.textContent")
    assert len(text) == 60
    assert text.startswith("first/path/")
    assert text.endswith("/last-17")
    assert browser.faults() == []


def test_many_orderings_look_different(browser, pages):
    browser.open(pages["many"])
    draw_all(browser)
    looks = browser.evaluate(
        "document.getElementById('windows').data.filter(trace => trace.marker)"
        ".map(trace => JSON.stringify([trace.line.color, trace.line.dash, trace.marker.symbol]))"
    )
    assert len(looks) == len(set(looks)) == 9
    assert browser.faults() == []


def test_the_theme_follows_the_system_until_another_is_chosen(browser, pages):
    ground = "getComputedStyle(document.body).backgroundColor"
    paper = "document.getElementById('course').layout.paper_bgcolor"
    browser.open(pages["common"], scheme="light")
    light, light_paper = browser.evaluate(ground), browser.evaluate(paper)
    browser.open(pages["common"], scheme="dark")
    dark, dark_paper = browser.evaluate(ground), browser.evaluate(paper)
    assert light != dark
    assert light_paper != dark_paper
    for chosen, wanted, wanted_paper in (("light", light, light_paper), ("", dark, dark_paper)):
        browser.ask(f"choose('#theme', '{chosen}')")
        assert browser.evaluate(ground) == wanted
        browser.wait_for(f"{paper} === '{wanted_paper}'")
    assert browser.faults() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser, pages, scheme):
    browser.open(pages["common"], scheme=scheme)
    open_all(browser)
    contrasts = browser.ask("contrasts()")
    assert len(contrasts) > 200
    assert [found for found in contrasts if found[0] < 4.5] == []


def accessible(browser: Browser) -> list[dict[str, str]]:
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    return [
        {key: str(node.get(key, {}).get("value", "")) for key in ("role", "name")}
        for node in nodes
        if not node["ignored"]
    ]


def test_a_screen_reader_finds_landmarks_headings_and_names(browser, pages):
    browser.open(pages["common"])
    draw_all(browser)
    nodes = accessible(browser)
    roles = [node["role"] for node in nodes]
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert roles.count(landmark) == 1, landmark
    named = ("button", "link", "checkbox", "radio", "combobox", "searchbox", "figure", "image", "region", "heading")
    assert [node for node in nodes if node["role"] in named and not node["name"].strip()] == []
    images = [node["name"] for node in nodes if node["role"] == "image"]
    assert len(images) == roles.count("figure") == NUM_FIGURES
    mean = figures_of(make_values(), "uniform_shuffle", "cluster", 256)["mean"]
    assert any(f"Mean over the windows: uniform_shuffle {mean:.3g}" in name for name in images)
    levels: list[int] = browser.ask("headings()")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_figure_has_its_numbers_as_a_table(browser, pages):
    browser.open(pages["common"])
    show_more(browser)
    browser.evaluate("document.querySelectorAll('.foot [aria-expanded]').forEach(button => button.click())")
    tables: list[Any] = browser.ask("tables()")
    assert len(tables) == NUM_FIGURES
    assert all(rows >= 2 and columns >= 2 and first for rows, columns, first in tables)
    shown = browser.evaluate("document.getElementById('windows-numbers').textContent")
    values = make_values()
    assert f"{max(figures_of(values, 'greedy', 'cluster', 256)['curve']['mean']):.4f}" in shown
    browser.click("input[name=size][value='64']")
    first = figures_of(values, "greedy", "cluster", 64)["curve"]["mean"][0]
    assert f"{first:.4f}" in browser.evaluate("document.getElementById('windows-numbers').textContent")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, pages):
    browser.open(pages["tiny"])
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.id") == "top"
    browser.open(pages["common"])
    wanted = browser.ask("stops()")
    stops = []
    for _ in range(2 * wanted):
        browser.press("Tab")
        stop = browser.ask("focused()")
        if stop is None:
            break
        stops.append(stop)
    assert len(stops) >= wanted > 40
    assert [stop for stop in stops if stop[0] != "solid"] == []
    assert browser.faults() == []


def test_clusters_can_be_filtered(browser, pages):
    browser.open(pages["hostile"])
    rows = "[...document.querySelectorAll('#cluster-table tbody tr')].filter(row => !row.hidden).length"
    for wanted, shown in (("NO SUCH TOPIC", 0), ("ONERROR", 60)):
        browser.ask(f"choose('#filter', '{wanted}', 'input')")
        assert browser.evaluate(rows) == shown
        assert browser.evaluate("document.getElementById('filter-count').textContent") == f"{shown} of 60 clusters"


def saved(folder: Path, name: str) -> bytes:
    deadline = time.monotonic() + PATIENCE
    while not (folder / name).exists():
        assert time.monotonic() < deadline, f"{name} was not saved; there is {[p.name for p in folder.iterdir()]}"
        time.sleep(0.1)
    return (folder / name).read_bytes()


def test_figures_are_saved_for_a_paper_whatever_the_theme(browser, pages, tmp_path):
    browser.open(pages["common"], scheme="dark")
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    assert browser.ask("figures().every(f => f.querySelectorAll('[data-format]').length === 2)")
    figure = "figure:has(#windows) [data-format={}]"
    browser.click(figure.format("svg"))
    svg = saved(tmp_path, "window-deviation-cluster-256.svg").decode()
    assert "rgb(255, 255, 255)" in svg or "#ffffff" in svg
    assert "Arial" in svg
    assert "TV of a window" in svg
    browser.click(figure.format("png"))
    png = saved(tmp_path, "window-deviation-cluster-256.png")
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == 1800
    assert browser.faults() == []


def test_a_browser_that_cannot_unpack_the_figures_says_so(browser, pages):
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    try:
        browser.call("Page.navigate", url=pages["common"].as_uri())
        browser.wait_for("document.getElementById('undrawn')?.hidden === false")
        browser.evaluate("document.querySelector('figure:has(#windows) [aria-expanded]').click()")
        assert browser.evaluate("document.querySelectorAll('#windows-numbers tbody tr').length") == 7
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


def test_the_page_of_many_orderings_is_small_and_says_how_long_it_took(browser, pages):
    assert pages["many"].stat().st_size < 6_000_000
    browser.open(pages["many"])
    interactive, drawn = browser.evaluate(
        "[document.documentElement.dataset.interactive, document.documentElement.dataset.ready].map(Number)"
    )
    assert 0 < interactive <= drawn


def test_removed_documents_open_and_places_change_the_figure(browser, pages):
    browser.open(pages["common"])
    browser.point("#flow")
    browser.wait_for("document.getElementById('flow').data !== undefined")
    left = "JSON.stringify(document.getElementById('flow').data[0].customdata.map(row => row[1]))"
    assert browser.evaluate(left) == '["900","800","700","700"]'
    options = browser.evaluate("[...document.querySelectorAll('#place option')].map(option => option.textContent)")
    assert options == ["all documents", "web", "words", "(none)", "web"]
    browser.ask("choose('#place', '1')")
    browser.wait_for(f'{left} === \'["600","500","400","400"]\'')
    assert "600 documents were read" in browser.evaluate("document.getElementById('flow').ariaLabel")
    rules = browser.evaluate("[...document.querySelectorAll('#rules tbody tr')].map(row => row.textContent)")
    assert rules == [
        "wordswordstoo few words10011.1\u00a0%",
        "languageprobabilitylanguage uncertain, or not a wanted one8010.0\u00a0%",
        "languageweb\u2013202.5\u00a0%",
    ]
    assert browser.evaluate("document.querySelectorAll('.excerpt').length") == 0
    browser.click(".opens summary")
    browser.wait_for("document.querySelectorAll('.excerpt').length === 3")
    assert "measured 12, threshold 50" in browser.evaluate("document.querySelector('.opens').textContent")
    browser.evaluate("[...document.querySelectorAll('.opens summary')].at(-1).click()")
    browser.wait_for("document.querySelector('.excerpt ins') !== null")
    shown = "[...document.querySelectorAll('.diff > *')].map(e => [e.tagName, e.textContent])"
    assert browser.evaluate(shown) == [
        ["DIV", "…"],
        ["DIV", "near"],
        ["DEL", "web"],
        ["INS", "<email>"],
        ["DIV", "words"],
        ["DIV", "…"],
    ]
    assert browser.faults() == []
    browser.open(pages["tiny"])  # without steps there is no such section
    assert not browser.evaluate("document.getElementById('preparation').checkVisibility()")
    assert "Preparation" not in browser.evaluate("document.getElementById('nav').textContent")
