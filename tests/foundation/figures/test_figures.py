"""Figures of single objects, as a notebook shows them, in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.figures.embedding import resource
from jax_diversity.foundation.figures.figure import FIGURES, Figure
from tests.support.browser import EXECUTABLE, Browser
from tests.support.report_values import HOSTILE, make_values

CHARS = jd.Characteristics.from_counts(
    {
        "topic": np.random.default_rng(0).multinomial(64, np.full(6, 1 / 6), 600),
        HOSTILE[0]: np.random.default_rng(1).multinomial(64, [0.5, 0.5], 600),
    }
)


@pytest.fixture(scope="module")
def balance() -> jd.Balance:
    return jd.measure(CHARS, jd.order(CHARS, "uniform_shuffle"), windows=(16, 64))


@pytest.fixture(scope="module")
def comparison() -> jd.Comparison:
    orders = {name: jd.order(CHARS, name) for name in ("uniform_shuffle", "corpus_order")}
    return jd.compare(CHARS, orders, windows=(16, 64))


@pytest.mark.core
def test_a_figure_of_an_order_has_the_measured_values(balance: jd.Balance) -> None:
    (order,) = balance.plot("windows", family="topic", window=64).values["ordering"]["orders"]
    row = next(row for row in order["windows"] if (row["family"], row["window_size"]) == ("topic", 64))
    np.testing.assert_allclose(row["curve"]["mean"], balance.window_tv["topic"][64], rtol=1e-5)
    assert balance.plot(window=64).choices == {"size": 64}


@pytest.mark.core
def test_a_figure_of_a_comparison_has_its_numbers(comparison: jd.Comparison) -> None:
    ordering = comparison.plot(family="topic").values["ordering"]
    for order in ordering["orders"]:
        drawn = order["profile"]["topic"]["0"]
        assert drawn["sizes"] == [16, 64]
        for size, mean in zip(drawn["sizes"], drawn["mean"], strict=True):
            assert mean == comparison.value(order["name"], "topic", "tv_mean", size, "0")


@pytest.mark.core
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda balance, _: balance.plot("loss"), "figure to be one of windows, prefix, drift, found 'loss'"),
        (lambda balance, _: balance.plot(family="host"), "family to be one of topic, .*, found 'host'"),
        (lambda balance, _: balance.plot(window=7), "window to be one of 16, 64, found 7"),
        (lambda _, comparison: comparison.plot(family="host"), "family to be one of topic, .*, found 'host'"),
        (lambda _, comparison: comparison.relative_to("corpus_order").plot(), "found ratios"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make: Any, sentence: str, balance: Any, comparison: Any) -> None:
    with pytest.raises(jd.UserError, match=sentence):
        make(balance, comparison)


@pytest.mark.core
def test_objects_show_a_table_in_a_notebook() -> None:
    ordering = jd.order(CHARS, "uniform_shuffle", seed=3)
    shown = [
        (ordering, ["Ordering of 600 sequences", "uniform_shuffle", ordering.fingerprint[:16]]),
        (CHARS, ["600 sequences of 64 tokens", "&lt;/script&gt;"]),
        (jd.sample(CHARS, 20), ["20 of 600 sequences", "random samples"]),
        (jd.pack([100, 30], 64, last_sequence="pad"), ["documents cut", "<td"]),
        (jd.make_run(CHARS, ordering), ["positions", "600"]),
    ]
    for thing, wanted in shown:
        text = thing._repr_html_()
        assert text.startswith("<p>")
        assert "<table>" in text
        assert "<script" not in text
        assert [part for part in wanted if part not in text] == []
    assert repr(jd.pack([100, 30], 64)) == "Packed(2 documents in 2 sequences)"


@pytest.mark.core
def test_a_comparison_at_one_window_size_has_no_curve() -> None:
    with pytest.raises(jd.UserError, match="at least two window sizes to draw, found 1"):
        jd.compare(CHARS, {"a": jd.order(CHARS, "corpus_order")}, windows=(16,)).plot()


@pytest.mark.core
def test_all_figures_of_the_page_are_listed() -> None:
    names = re.findall(r"^  (\w+): { make:", resource("foundation.figures", "catalogue.js"), re.MULTILINE)
    assert names == list(FIGURES)
    page = resource("report", "page.html")
    assert all(f'id="{name}"' in page for name in names)


@pytest.mark.core
def test_a_notebook_gets_a_frame_that_loads_nothing(balance: jd.Balance) -> None:
    shown = balance.plot()._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert 'sandbox="allow-scripts allow-downloads"' in shown
    assert "default-src &#x27;none&#x27;" in shown
    assert shown.count("<") == 2


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if EXECUTABLE is None:
        pytest.skip("no Chromium or Chrome on the path")
    try:
        browser = Browser(EXECUTABLE, tmp_path_factory.mktemp("profile"))
    except (ConnectionError, BrokenPipeError):
        pytest.skip(f"{EXECUTABLE} does not start")
    yield browser
    browser.close()


def draw_in_the_open_page(browser: Browser, figure: Figure) -> None:
    """Draw a figure as its own page does, in a page that has unpacked plotly.js: that takes most of a page's time."""
    about = json.dumps({"name": figure.name, "values": figure.values, "choices": figure.choices})
    single = resource("foundation.figures", "single.js")
    browser.evaluate(
        "library.unpack = async () => {}; Plotly.purge('plot'); delete document.documentElement.dataset.ready;"
        f" document.getElementById('values').textContent = {json.dumps(about)}; {single} null"
    )
    browser.wait_for("document.documentElement.dataset.ready > 0")


@pytest.mark.campaign
def test_every_figure_is_drawn_without_a_fault(browser: Browser, balance: Any, comparison: Any, tmp_path: Path) -> None:
    values = make_values(HOSTILE)
    figures = [balance.plot(name) for name in ("windows", "prefix", "drift")] + [comparison.plot()]
    figures += [Figure(name, values) for name in FIGURES if name != "reading"]  # which only a run has
    undrawn = []
    with pytest.raises(jd.UserError, match=r"Expected a path that ends in .html, found 'first.png': a browser draws"):
        figures[0].save(tmp_path / "first.png")
    figures[0].save(tmp_path / "first.html")
    browser.open(tmp_path / "first.html", 700)
    for number, figure in enumerate(figures):
        if number:
            draw_in_the_open_page(browser, figure)
        assert browser.faults() == []
        if not browser.evaluate("document.querySelector('#plot .main-svg') !== null"):
            undrawn.append((figure.name, browser.evaluate("document.getElementById('about').textContent")))
    # The made-up training run has no shuffle beside it.
    assert undrawn == [(name, "There are no values for this figure.") for name in ("diversity", "rank")]


@pytest.mark.campaign
def test_a_notebook_draws_the_frame(browser: Browser, comparison: jd.Comparison, tmp_path: Path) -> None:
    page = f"<!DOCTYPE html><meta charset=utf-8><body>{comparison.plot()._repr_html_()}"
    ready = "document.documentElement.dataset.ready = 1"
    page += f"<script>document.querySelector('iframe').onload = () => {{ {ready}; }}</script>"
    (tmp_path / "notebook.html").write_text(page, encoding="utf-8")
    browser.open(tmp_path / "notebook.html", 700)
    assert browser.faults() == []


@pytest.mark.campaign
def test_a_figure_is_saved_as_png_and_as_svg(browser: Browser, comparison: jd.Comparison, tmp_path: Path) -> None:
    figure = comparison.plot()
    figure.save(tmp_path / "figure.html")
    browser.open(tmp_path / "figure.html", 700)
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for format, begin in (("PNG", b"\x89PNG\r\n\x1a\n"), ("SVG", b"<svg")):
        browser.evaluate(f"""document.querySelector('.modebar-btn[data-title="Save {format}"]').click()""")
        path = tmp_path / f"{figure.name}.{format.lower()}"
        for _ in range(200):
            if path.exists():
                break
            time.sleep(0.05)
        assert path.read_bytes().startswith(begin)
