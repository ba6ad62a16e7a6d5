"""What is printed: tables and curves of at most 80 columns, in ASCII too; JSON with the same figures."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.tables import speaks_unicode
from jax_diversity.foundation.terminal import show
from jax_diversity.ordering.measures.comparison import compare
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.pipeline.guidance import next_steps
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.streaming.run.inspection import (
    BatchView,
    DocumentUse,
    FamilyView,
    Inspector,
    SegmentView,
    SequenceView,
)
from jax_diversity.streaming.run.inspection_text import AllBatches, batch_json, batch_table, uses_table
from jax_diversity.streaming.run.measures_text import size_label, sparkline
from tests.support.synthetic import synthetic_characteristics

LONG_NAME = "a-name-of-an-ordering-that-says-more-than-a-line-of-a-table-can-hold-before-its-numbers"

ONE = jd.make_run(jd.Characteristics.from_counts({"topic": np.eye(2, dtype=int)}), np.arange(2))


@pytest.fixture(scope="module")
def built(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("shown") / "out")
    Build(recorded_config(out)).run_orders([OrderConfig(name=LONG_NAME)])
    return out


def width(text: str) -> int:
    return max(map(len, text.splitlines()))


def strict_json(text: str) -> dict:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_sparklines_show_the_largest_value_of_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert sparkline(np.arange(8.0), 0.0, 7.0, width=8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 1.0, 0.0, 0.0], 0.0, 1.0, width=2) == "█▁"
    assert sparkline([0.5], 0.5, 0.5, width=9) == "▁"
    assert sparkline([math.nan, 1.0], 0.0, 1.0, width=2) == " █"
    assert sparkline([], 0.0, 1.0, width=5) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert sparkline([0.0, 1.0], 0.0, 1.0, width=2) == "_#"


def test_streams_that_speak_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for encoding, speaks in (("utf-8", True), ("ascii", False), ("latin-1", False)):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        assert speaks_unicode() is speaks


@pytest.mark.parametrize("num_windows", [1, 4, 9])
@pytest.mark.parametrize("names", [("a", "b"), (LONG_NAME, f"{LONG_NAME}-2")])
def test_comparisons_fit_into_80_columns(num_windows: int, names: tuple[str, str]) -> None:
    chars = synthetic_characteristics(2300, num_clusters=9, num_bins=3)
    orders = {name: jd.order(chars, "uniform_shuffle", seed=seed) for seed, name in enumerate(names)}
    windows = tuple(1 << power for power in range(10, 10 - num_windows, -1))
    compared = compare(chars, orders, windows=windows, offsets=("0", "half", "every"))
    text = compared.table()
    assert width(text) <= 80
    for size in windows:
        for name in names:
            mean, worst = (compared.value(name, "cluster", f"tv_{part}", size, "0") for part in ("mean", "worst"))
            assert f"{mean:.4f} / {worst:.4f}" in text, "what does not fit beside stands below"
    assert width(compared.relative_to(names[0]).table()) <= 80


def test_measure_shows_what_its_json_holds(built: Path, capsys: pytest.CaptureFixture) -> None:
    measure = ["measure", "--out", str(built), "--quiet"]
    assert main([*measure, "--profile", "--all"]) == 0
    text = capsys.readouterr().out
    assert width(text) <= 80
    assert "\x1b" not in text
    assert main([*measure, "--profile", "--json"]) == 0
    captured = capsys.readouterr()
    found = strict_json(captured.out)
    assert captured.err == ""
    assert set(found) == {"balance", LONG_NAME, "uniform_shuffle"}
    for summary in found.values():
        for about in summary["families"].values():
            assert f"{about['prefix_l2_max']:.2f}" in text
            for window in about["windows"].values():
                assert f"{window['tv_mean']:.4f} / {window['tv_worst']:.4f}" in text
            curve = about["curves"]["prefix_l2"]
            assert max(curve["max"]) == pytest.approx(about["prefix_l2_max"], rel=1e-3)
            assert len(curve["position"]) <= 100
            profile = about["profile"]["0"]
            assert profile["sizes"] == [1 << power for power in range(len(profile["sizes"]))]
            for size in (8, 32):
                at = profile["sizes"].index(size)
                assert profile["mean"][at] == pytest.approx(about["windows"][str(size)]["tv_mean"])
    dataset = jd.open_dataset(built)
    largest = 1 << (dataset.num_sequences.bit_length() - 1)
    assert f"cluster: mean TV of windows of at most {size_label(largest)} sequences" in text
    profile = found["balance"]["families"]["cluster"]["profile"]["0"]
    table = text.partition("cluster: mean TV of windows")[2].partition("on one logarithmic scale")[0]
    shown = re.findall(r"^balance((?: +0\.\d{4})+)$", table, re.MULTILINE)
    assert " ".join(shown).split() == [f"{value:.4f}" for value in profile["mean"]]
    assert "cluster: TV of windows of 32; scale " in text


def test_inspect_shows_what_its_json_holds(built: Path, capsys: pytest.CaptureFixture) -> None:
    inspect = ["inspect", "--out", str(built), "--batch-size", "16", "--step", "1"]
    assert main(inspect) == 0
    text = capsys.readouterr().out
    assert width(text) <= 80
    assert main([*inspect, "--json"]) == 0
    found = strict_json(capsys.readouterr().out)
    deviations = Inspector(jd.make_run(built, "balance"), 16).deviations()
    assert list(found["families"]) == list(deviations)
    for family, others in deviations.items():
        about = found["families"][family]
        assert about["total_variation"] == pytest.approx(others[1])
        assert about["all_batches"]["number"] == len(others)
        assert about["all_batches"]["share_worse"] == pytest.approx(np.mean(others > about["total_variation"]))
        assert f"{about['total_variation']:.3f}" in text
        assert f"{others.max():.3f}" in text
    repeats = found["steps_with_repeats"]
    assert f"{len(repeats)} of {len(others)} batches have two rows of one document" in text
    assert (1 in repeats) == (found["num_repeats"] > 0)
    assert main([*inspect, "--no-compare"]) == 0
    assert "better than" not in capsys.readouterr().out
    document = found["sequences"][0]["segments"][0]["about"]["id"]
    assert main([*inspect, "--document", document, "--json"]) == 0
    assert all(use["num_tokens"] > 0 for use in strict_json(capsys.readouterr().out)["uses"])


@pytest.mark.campaign
def test_ascii_is_enough(built: Path) -> None:
    """A terminal of another encoding gets every table and curve, and no error."""
    for arguments in (["measure", "--profile"], ["inspect", "--batch-size", "8"], ["measure", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "jax_diversity", *arguments, *(["--out", str(built)])],
            env={"PYTHONIOENCODING": "ascii", "PATH": "", "COLUMNS": "80"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode("ascii")
        assert width(text) <= 80
        assert "\x1b" not in text


def batch_of(names: list[str]) -> BatchView:
    shares = np.full(len(names), 1 / len(names))
    segments = tuple(
        SegmentView(index, 7, {"id": f"{name}/{'path/' * 40}end-{index}", "source": name}, {"cluster": index})
        for index, name in enumerate(names)
    )
    rows = tuple(SequenceView(row, 9_876_543_210 + row, 0, "out", 1, 123_456_789, segments) for row in range(3))
    family = FamilyView(0.25, shares, shares[::-1].copy(), tuple(names))
    families = {name[:40] or "none": family for name in names}
    return BatchView(LONG_NAME, None, 12_345_678, 9_876_543_210, rows, families, num_repeats=3, num_copies=2)


def test_hostile_text_is_text() -> None:
    names = ["\x1b[31mred", "right\u202eto left", "tab\tnew\nline", "\ud800lone", "[bold]markup[/bold]", "x" * 300]
    batch = batch_of(names)
    deviations = {family: np.linspace(0.1, 0.4, 9) for family in batch.families}
    all_batches = AllBatches(9, deviations, np.arange(9))
    text = batch_table(batch, ONE, 2, all_batches)
    assert width(text) <= 80
    assert not {"\x1b", "\u202e", "\t", "\ud800"} & set(text)
    assert "[bold]markup" in text
    assert "end-0" in text, "the end of a long id, where ids differ"
    assert "... and 1 row more" in text
    assert strict_json(batch_json(batch, all_batches))["step"] == 12_345_678


@pytest.mark.parametrize(
    ("better", "equal", "worse", "shown"),
    [(0, 1, 432, "> 99 %"), (432, 1, 0, "0 %"), (430, 1, 2, "< 1 %"), (1, 2, 1, "25 %"), (0, 1, 99, "99 %")],
)
def test_all_are_worse_only_where_all_are(better: int, equal: int, worse: int, shown: str) -> None:
    deviations = np.repeat([0.1, 0.25, 0.4], [better, equal, worse])
    batch = batch_of(["family"])
    text = batch_table(batch, ONE, 1, AllBatches(len(deviations), {"family": deviations}, None))
    row = next(line for line in text.splitlines() if line.startswith("family ") and " 0.250 " in line)
    assert re.search(rf" 0\.250 +{re.escape(shown)} ", row)


def test_what_the_stream_cannot_say_becomes_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", plain)
    show("müßig 日本")
    plain.seek(0)
    assert plain.read() == "müßig ??\n"


def test_a_document_that_is_not_used_and_one_that_is() -> None:
    absent = uses_table("a", ONE, [], absence="kept for validation")
    assert absent == "a: in no training sequence of the run (kept for validation)"
    text = uses_table("a\x1b", ONE, [DocumentUse(5, 4_000, 62, 32, 0, 17, 0, "out", 0)])
    assert text.splitlines()[-1].split() == ["62", "32", "4,000", "5", "17", "0"]
    assert "\x1b" not in text


def test_next_steps_quote_what_a_shell_would_read() -> None:
    config = BuildConfig(out="my data/it's")
    steps = next_steps(config)
    program = 'run() { printf "%s\\n" "$@"; }\n' + steps.replace("jax-diversity ", "run ")
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("my data/it's\n") == 2
    assert "my data/it's/documents/*.parquet\n" in done.stdout
    assert done.stdout.endswith("--out\nmy data/it's-again\n")
