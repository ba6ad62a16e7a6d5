"""Ordinary and hostile input of the command line: one sentence, status 2, and nothing that acts on a terminal."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import jax_diversity as jd
from jax_diversity.cli import main as command_line
from jax_diversity.cli.main import main
from jax_diversity.foundation.artifacts import HashMemory
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.foundation.terminal import clean, show
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.settings import CorpusConfig
from tests.support.hostile import ACTING, LONG, NO_UTF8, ON_A_DATASET, SETTINGS
from tests.support.tiny_corpus import tiny_config, write_corpus

ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def refusal(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    """The one sentence of arguments that are a mistake."""
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert not ACTS.search(captured.out + captured.err)
    lines = captured.err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("jax-diversity: ")
    assert len(lines[0]) < 2000
    return lines[0]


# ---- Nothing of the data acts on a terminal.


def _field_names(folder: Path) -> list[str]:
    (folder / "a.jsonl").write_text(json.dumps({f"na\nme{ACTING}": "words"}) + "\n")
    return ["build", "--corpus.paths", str(folder / "a.jsonl")]


def _file_names(folder: Path) -> list[str]:
    path = folder / f"{ACTING.replace('/', '')}\n.jsonl"
    path.write_text("no JSON\n")
    return ["build", "--corpus.paths", str(folder / "*.jsonl")]


def _setting_names(folder: Path) -> list[str]:
    (folder / "a.yaml").write_text(f"{json.dumps(f'key{ACTING}')}: 1\n")
    return ["build", "--config", str(folder / "a.yaml")]


def _setting_values(folder: Path) -> list[str]:
    (folder / "a.yaml").write_text(f"orders: [{{name: {json.dumps(f'name{ACTING}')}}}]\ncorpus: {{paths: [a.jsonl]}}\n")
    return ["build", "--config", str(folder / "a.yaml")]


def _an_embedder(folder: Path) -> list[str]:
    (folder / "my_raising_embedder.py").write_text(f"def make():\n    raise RuntimeError({f'no GPU{ACTING}'!r})\n")
    return ["build", "--corpus.paths", "a.jsonl", "--embedding.method", "my_raising_embedder:make"]


def _an_argument(folder: Path) -> list[str]:
    return ["measure", "--out", f"{folder}/absent{ACTING}"]


@pytest.mark.parametrize(
    "write", [_field_names, _file_names, _setting_names, _setting_values, _an_embedder, _an_argument]
)
def test_no_sentence_acts_on_a_terminal(
    write: Callable[[Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert len(refusal(write(tmp_path), capsys)) > 60


def test_nothing_that_is_shown_acts_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    show(f"a line\nand {ACTING}")
    show(f"{ACTING}", sys.stderr)
    monkeypatch.setattr("jax_diversity.foundation.progress._SECONDS_WORTH_A_LINE", 0.0)
    with Progress().task(f"cluster_{ACTING}", 1, "row") as advance:
        advance(1)

    def warn(name: str, arguments: list[str]) -> None:
        warnings.warn(f"of a name\n{ACTING}", UserWarning, stacklevel=1)

    monkeypatch.setattr(command_line, "_run", warn)
    monkeypatch.setattr(warnings, "filters", [("always", None, Warning, None, 0)])
    assert main(["build"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 2
    assert captured.err.count("\n") == 3
    assert "cluster_" in captured.err
    assert "jax-diversity: warning: of a name" in captured.err
    assert not ACTS.search(captured.out + captured.err)
    assert clean("plain ünïcode\n日本") == "plain ünïcode\n日本"


@pytest.mark.campaign
def test_a_traceback_acts_on_no_terminal(tmp_path: Path) -> None:
    """Of a mistake in this package, which is printed as Python does."""
    program = (
        "import sys\nfrom jax_diversity.cli import main as command_line\n"
        f"def run(name, arguments):\n    raise TypeError({ACTING!r})\n"
        "command_line._run = run\nsys.argv = ['jax-diversity', 'build']\nsys.exit(command_line.main())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    text = done.stderr.decode()
    assert "Traceback" in text
    assert "TypeError" in text
    assert not ACTS.search(text)


def test_help_shows_the_defaults_of_a_hostile_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.yaml").write_text(f"corpus: {{text_field: {json.dumps(f'x{ACTING}')}}}\n")
    with pytest.raises(SystemExit) as ending:
        main(["build", "--config", str(tmp_path / "a.yaml"), "--help"])
    assert ending.value.code == 0
    text = capsys.readouterr().out
    assert "--corpus.text-field" in text
    assert not ACTS.search(text)


# ---- What the operating system refuses is one sentence, whatever it is.


@pytest.mark.parametrize("name", sorted(set(errno.errorcode) - {errno.EPIPE, errno.ESHUTDOWN}))
def test_every_refusal_of_the_system_is_a_sentence(
    name: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def run(verb: str, arguments: list[str]) -> None:
        raise OSError(name, os.strerror(name), "texts/a.jsonl")

    monkeypatch.setattr(command_line, "_run", run)
    sentence = refusal(["build"], capsys)
    assert "texts/a.jsonl" in sentence
    assert os.strerror(name) in sentence
    assert ("free some" in sentence) == (name in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def test_refusals_without_a_number_and_full_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Unable to allocate 9 bytes.")
    for error in (OSError("a stream\nended"), OSError(), MemoryError("Unable to allocate 8 TiB"), full):

        def run(verb: str, arguments: list[str], error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(command_line, "_run", run)
        assert re.search("a stream ended|OSError|Unable to allocate", refusal(["build"], capsys))

    def fail(verb: str, arguments: list[str]) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: another")

    monkeypatch.setattr(command_line, "_run", fail)
    with pytest.raises(jax.errors.JaxRuntimeError):
        main(["build"])


# ---- Settings that are too large, too deep, or no names.


@pytest.mark.parametrize("what", SETTINGS)
def test_settings_that_cannot_be(what: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text, sentence = SETTINGS[what]
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    out = ["--out", str(tmp_path / "out")] if not text.startswith("out") else []
    arguments = ["build", "--corpus.paths", str(tmp_path / "absent.jsonl"), "--config", str(tmp_path / "a.yaml"), *out]
    assert re.search(sentence, refusal(arguments, capsys))
    assert os.listdir(tmp_path) == ["a.yaml"], "refused before anything is made"


def test_settings_files_of_wrong_kinds(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "utf-16.yaml").write_text("out: a", encoding="utf-16")
    (tmp_path / "folder").mkdir()
    os.symlink("loop.yaml", tmp_path / "loop.yaml")
    for name in ("utf-16.yaml", "folder", "loop.yaml", "absent.yaml", LONG):
        assert name[:99] in refusal(["build", "--config", str(tmp_path / name)], capsys)


def test_a_long_sentence_keeps_its_beginning_and_its_end() -> None:
    sentence = str(UserError(f"Expected words, found {'x' * 10_000_000}; write them."))
    assert len(sentence) == 1500
    assert sentence.startswith("Expected words, found xxx")
    assert sentence.endswith("xxx; write them.")


# ---- Options of the command line.


@pytest.mark.parametrize("what", ON_A_DATASET)
def test_options_that_no_dataset_can_take(what: str, tiny_dataset: Path, capsys: pytest.CaptureFixture) -> None:
    (verb, *given), sentence = ON_A_DATASET[what]
    out = [] if "--out" in given else ["--out", str(tiny_dataset)]
    assert re.search(sentence, refusal([verb, *out, *given], capsys))


# ---- Corpora.


def test_a_dataset_whose_name_is_no_utf8(tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = str(shutil.copytree(tiny_dataset, tmp_path / NO_UTF8))
    for verb in ("build", "pack", "measure", "inspect", "order", "verify", "export", "train"):
        assert "Expected out to be a folder with a name in UTF-8" in refusal([verb, "--out", out], capsys)
    arguments = ["export", "--out", str(tiny_dataset), "--to", "maxtext", "--target", out]
    assert "Expected target to be a folder with a name in UTF-8" in refusal(arguments, capsys)


@pytest.mark.campaign
def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    """Files of every format, and the folder of the corpus, have such names."""
    folder = tmp_path / NO_UTF8
    write_corpus(folder, 60)
    for path in list(folder.iterdir()):
        path.rename(path.with_name(f"{NO_UTF8}{path.name}"))
    (folder / f"{NO_UTF8}.txt").write_text("some words of a text file")
    table = pyarrow.table({"text": ["words of a table"], "id": ["p"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.parquet").rename(folder / f"{NO_UTF8}.parquet")
    out = tmp_path / "out"
    config = ["--corpus.paths", f"{folder}/*", "--out", str(out), "--quiet", "--tokenizer.kind", "bytes"]
    config += ["--embedding.method", "hashing", "--embedding.options", "dimensions", "8", "--cluster.num-clusters", "2"]
    config += ["--packing.sequence-length", "32", "--characteristics.length-bins", "2", "--windows", "8"]
    assert main(["build", *config]) == 0
    assert main(["build", *config]) == 0, "the settings in the manifest are read again"
    assert main(["verify", "--out", str(out), "--quiet"]) == 0
    documents = jd.open_dataset(out).documents.to_table(columns=["id", "source"])
    assert len(documents) == 62
    assert main(["inspect", "--out", str(out), "--document", f"{NO_UTF8}.txt"]) == 0, "found as it is typed"
    topics = {"cooking", "sailing", "music", "law"}
    assert all("\ufffd" in source for source in {*documents["source"].to_pylist()} - topics)


def test_an_array_record_whose_name_is_no_utf8(tmp_path: Path) -> None:
    from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

    writer = array_record_module.ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    writer.write(np.arange(5, dtype=np.int32).tobytes())
    writer.close()
    (tmp_path / "a.array_record").rename(tmp_path / f"{NO_UTF8}.array_record")
    config = CorpusConfig(paths=(f"{tmp_path}/*",), format="tokens", array_record_tokens="int32")
    [document] = read_documents(config, ReadReport())
    assert document.source


def nested(levels: int) -> list | dict:
    value: list | dict = {}
    for _ in range(levels - 1):
        value = [value] if levels % 2 else {"a": value}
    return value


@pytest.mark.parametrize(("levels", "is_read"), [(63, True), (64, True), (65, False), (900, False), (901, False)])
def test_nested_metadata(levels: int, is_read: bool, tmp_path: Path) -> None:
    records = [{"id": "a", "text": "words", "about": nested(levels)}, {"id": "b", "text": "words"}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    report = ReadReport()
    found = [document.id for document in read_documents(CorpusConfig(paths=(f"{tmp_path}/a.jsonl",)), report)]
    assert found == (["a", "b"] if is_read else ["b"])
    assert report.num_broken_records == (not is_read)


def test_a_problem_of_a_record_is_short(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"x" * 10_000_000: 1}) + '\n{"text": "words"}\n')
    report = ReadReport()
    assert len(list(read_documents(CorpusConfig(paths=(f"{tmp_path}/a.jsonl",)), report))) == 1
    assert [len(problem) for problem in report.problems] == [300]


def test_a_file_that_changes_and_keeps_its_size_and_time(tmp_path: Path) -> None:
    path, cache = tmp_path / "a.jsonl", tmp_path / "cache.json"
    path.write_text('{"text": "some words"}\n')
    before = os.stat(path)
    first = HashMemory(cache)
    known = first.hash(path)
    first.save()
    assert HashMemory(cache).hash(path) == known
    for replaces in (False, True):
        other = tmp_path / "other.jsonl" if replaces else path
        other.write_text('{"text": "more words"}\n' if replaces else '{"text": "four words"}\n')
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        if replaces:
            other.replace(path)
        assert os.stat(path).st_mtime_ns == before.st_mtime_ns
        assert os.stat(path).st_size == before.st_size
        memory = HashMemory(cache)
        assert memory.hash(path) != known
        known = memory.hash(path)
        memory.save()


# ---- Damaged inputs of a stage.


@pytest.mark.parametrize(
    ("verb", "file"), [("write", "sequences/segments.parquet"), ("report", "clusters/assignments.npy")]
)
def test_a_stage_refuses_damaged_input(
    verb: str, file: str, tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = shutil.copytree(tiny_dataset, tmp_path / "out")
    content = bytearray((out / file).read_bytes())
    for place in (len(content) // 2, len(content) - 200):
        damaged = content.copy()
        damaged[place] ^= 16
        (out / file).write_bytes(damaged)
        for made in (out / "report.html", *out.glob("records/*")) if verb == "write" else (out / "report.html",):
            made.unlink(missing_ok=True)  # so that the stage has work to do
        assert file in refusal([verb, "--out", str(out), "--quiet"], capsys)


def test_a_table_refuses_damaged_figures(tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = shutil.copytree(tiny_dataset, tmp_path / "out")
    order = ["order", "--out", str(out), "--quiet", "--method"]
    assert main([*order, "corpus_order"]) == 0
    path = out / "orderings" / "corpus_order.json"
    path.write_bytes(path.read_bytes().replace(b"tv_mean", b"tv_meam"))
    assert "orderings/corpus_order.json is damaged" in refusal([*order, "cluster_sorted"], capsys)


# ---- NumPy's advice to allow pickles.


def test_no_advice_of_numpy(tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    np.savez(tmp_path / "several.npz", a=np.arange(3))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    for name in ("objects.npy", "text.npy", "several.npy"):
        path = str(tmp_path / name)
        options = ["--embedding.method", "precomputed", "--embedding.options", "path", path]
        out = shutil.copytree(tiny_dataset, tmp_path / f"out-{name}")
        for arguments in (
            ["measure", "--out", str(tiny_dataset), "--order", path],
            ["inspect", "--out", str(tiny_dataset), "--ordering", path],
            ["embed", "--out", str(out), "--quiet", *options],
        ):
            sentence = refusal(arguments, capsys)
            assert path in sentence
            assert "pickle" not in sentence.lower()


def test_the_options_of_every_verb_are_settings(tmp_path: Path) -> None:
    """What the command line reads goes through the checks of a settings file."""
    for verb in command_line.all_verbs().values():
        made = verb.options
        assert settings_from_plain(type(made), dataclasses.asdict(made)) == made
    config = tiny_config(tmp_path, tmp_path)
    assert settings_from_plain(BuildConfig, dataclasses.asdict(config)) == config
