"""The how-to pages run as they are written; what needs another stack runs where that is installed, and parses."""

from __future__ import annotations

import ast
import csv
import gzip
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.lab.metrics import read_log
from jax_diversity.pipeline.tables import orderings_verdict
from jax_diversity.sequences.token_store.megatron import TokenWriter
from tests.conftest import MakeFolder
from tests.support.documented_model import train_on, train_on_tokens
from tests.support.example_datasets import build_examples
from tests.support.programs import devices
from tests.support.tiny_corpus import write_corpus
from tests.support.web_records import record

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "howto").glob("*.md"))}
STACKS = {"torchtitan": "torchtitan", "tunix": "tunix", "datasets": "datasets"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], flags=re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The page's own commands, word by word."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line[:1] == ["jax-diversity"]]


@pytest.fixture(scope="module")
def workplace(make_once: MakeFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a dataset, and tokens in Megatron's format."""
    folder = tmp_path_factory.mktemp("howto")
    shutil.copytree(make_once("examples", build_examples) / "dataset", folder / "dataset")
    rng = np.random.default_rng(0)
    with TokenWriter(folder / "tokens" / "web", np.dtype(np.uint16)) as writer:
        writer.add_documents([np.append(rng.integers(1, 90, 24), 99) for _ in range(40)])
    return folder


@pytest.fixture
def here(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return workplace


def run(page: str, edited: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a page's blocks one after another; the documented model trains on every batch that they show.

    A user replaces the keys of `edited` by its values.
    """
    names: dict[str, Any] = {"__name__": page}
    for block in blocks(page, "python"):
        for before, after in (edited or {}).items():
            block = block.replace(before, after)
        if needed := re.match(r"# needs (\w+)\n", block):
            pytest.importorskip(STACKS[needed[1]], reason="no dependency of the project")
        before = names.get("batch")
        exec(compile(block, f"{page}.md", "exec"), names)
        if names.get("batch") is not before:
            train_on(names["batch"])
    return names


def run_commands(page: str) -> None:
    for words in commands(page):
        assert main([*words, "--quiet"]) == 0, words


def test_every_page_says_when_what_to_check_and_what_goes_wrong() -> None:
    assert len(PAGES) == 18
    for page, text in PAGES.items():
        assert text.startswith("# "), page
        assert "\n**When:**" in text, page
        assert "\n## Check\n" in text, page
        assert "\n## Pitfalls\n" in text, page


@pytest.mark.parametrize("page", PAGES)
def test_code_of_other_stacks_parses(page: str) -> None:
    for block in [*blocks(page, "py"), *blocks(page, "python")]:
        lines = [line for line in block.splitlines() if not line.startswith("!")]  # a notebook's shell lines
        assert ast.parse("\n".join(lines)).body


def written_crawl(path: Path) -> None:
    """Pages of real prose: the docstrings of Python's own library, a module a page."""
    pages = []
    for number, name in enumerate(sorted(sys.stdlib_module_names)):
        if name.startswith("_") or name in ("antigravity", "this", "idlelib"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:  # of other systems
            continue
        texts = [text for value in vars(module).values() if isinstance(text := getattr(value, "__doc__", None), str)]
        lines = {" ".join(paragraph.split()) for text in texts for paragraph in text.split("\n\n")}
        prose = sorted(line for line in lines if line.endswith(".") and len(line) > 60)[:40]
        body = "".join(f"<p>{escape(line)}</p>" for line in prose)
        page = f"<html><title>{name}</title><body><article><h1>{name}</h1>{body}</article></body></html>"
        pages.append(record(number, page.encode()))
    path.write_bytes(b"".join(pages))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_common_crawl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("trafilatura", reason="its text is taken out by the extra `preparation`")
    monkeypatch.chdir(tmp_path)
    written_crawl(tmp_path / "CC-MAIN-20240501-00000.warc.gz")
    *looks, build = commands("common-crawl")
    for words in looks:
        assert main(words) == 0
        assert "gopher" in capsys.readouterr().out
        assert not Path("crawl").exists()
    small = ["64" if word == "2048" else word for word in build]
    assert main([*small, "--tokenizer.vocab-size", "600", "--windows", "8", "--quiet"]) == 0
    names: dict[str, Any] = {}
    for block in blocks("common-crawl", "python"):
        exec(compile(block, "common-crawl.md", "exec"), names)
    assert names["batch"]["inputs"].shape == (16, 64)
    assert 20 <= names["kept"] < names["decisions"].num_rows
    Path("dataset").symlink_to("crawl")
    train_on(names["batch"])


def test_tpu_vm(here: Path) -> None:
    names = run("tpu-vm")
    assert names["batch"]["inputs"].shape == (64, 32)
    assert names["batch"]["inputs"].sharding == names["rows"]


def launch(num_processes: int, num_devices: int) -> list[subprocess.Popen[str]]:
    """train.py in processes that are told of each other as Open MPI tells them, on emulated devices."""
    job = int(np.random.default_rng().integers(2**20)) * 2**12  # JAX makes the port of it
    flags = {"XLA_FLAGS": devices(num_devices), "JAX_PLATFORMS": "cpu"}
    programs = []
    for process in range(num_processes):
        cluster = {
            "OMPI_MCA_orte_hnp_uri": f"{job}.0;tcp://127.0.0.1:1",
            "OMPI_COMM_WORLD_SIZE": str(num_processes),
            "OMPI_COMM_WORLD_RANK": str(process),
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        }
        environment = {**os.environ, **cluster, **flags, "PYTHONPATH": str(ROOT)}
        with Path(f"errors-{process}.txt").open("w", encoding="utf-8") as errors:
            programs.append(
                subprocess.Popen(
                    [sys.executable, "train.py"], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
                )
            )
    return programs


def losses_until_the_end(programs: Sequence[subprocess.Popen[str]]) -> dict[int, str]:
    """What the first process prints, step by step, until it ends or is done; then all processes are killed."""
    losses = {}
    try:
        for line in programs[0].stdout or ():
            if line == "done\n":
                break
            if match := re.fullmatch(r"(\d) (\d+\.\d+)\n", line):
                losses[int(match[1])] = match[2]
        else:
            for program in programs:
                program.wait(timeout=60)
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    return losses


@pytest.mark.parametrize(("num_processes", "num_devices"), [(1, 4), (2, 2)])
def test_several_hosts_killed_and_resumed(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_processes: int, num_devices: int
) -> None:
    """The program is killed before its last checkpoint, and continues from another: the losses are the same bits."""
    (tmp_path / "dataset").symlink_to(here / "dataset")
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("several-hosts", "python")
    program = program.replace("several_hosts = False", "several_hosts = True")
    due = "    if (step + 1) % save_every == 0:\n"
    assert program.count(due) == 1
    wait = "    if step + 1 == num_steps:\n        print('done', flush=True)\n        __import__('time').sleep(600)\n"
    Path("train.py").write_text(program.replace(due, wait + due), encoding="utf-8")
    whole = losses_until_the_end(launch(num_processes, num_devices))
    errors = Path("errors-0.txt").read_text(encoding="utf-8")
    assert list(whole) == [0, 1, 2, 3, 4, 5], errors[-3000:]
    Path("train.py").write_text(program, encoding="utf-8")
    programs = launch(num_processes, num_devices)
    resumed = losses_until_the_end(programs)
    errors = Path("errors-0.txt").read_text(encoding="utf-8")
    assert [each.returncode for each in programs] == [0] * num_processes, errors[-3000:]
    assert list(resumed) in ([2, 3, 4, 5], [4, 5])  # the last of the checkpoints that was written whole
    assert resumed == {step: whole[step] for step in resumed}
    assert float(whole[5]) < float(whole[0])


def test_flax_nnx_and_a_restart(here: Path, capsys: pytest.CaptureFixture) -> None:
    """Twenty steps, then two more from the checkpoint: the losses and batches of a run that was not interrupted."""
    first, second = blocks("flax-nnx", "python")
    names: dict[str, Any] = {}
    exec(compile(first, "flax-nnx.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(": loss ")[0] for line in printed] == [f"step {step}" for step in range(20)]
    assert np.isfinite(float(printed[-1].split()[-1]))
    restarted: dict[str, Any] = {}
    exec(compile(first.replace("num_steps = 20", "num_steps = 22"), "flax-nnx.md", "exec"), restarted)
    assert capsys.readouterr().out.splitlines()[0] == "continued from step 20"
    assert restarted["batches"].position == 22 * 16
    losses = [names["train_step"](names["model"], names["optimizer"], next(names["batches"])) for _ in range(2)]
    np.testing.assert_allclose(restarted["loss"], losses[-1], rtol=1e-5)
    exec(compile(second, "flax-nnx.md", "exec"), names)
    assert [step for step, _ in names["seen"]] == [0, 1, 2]


def test_evaluate(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """On one device and on eight: the same losses; a log that the report draws; a resumed log."""
    for place in ("one", "eight"):
        shutil.copytree(here / "dataset", tmp_path / place / "dataset")
    monkeypatch.chdir(tmp_path / "one")
    own = write_corpus(tmp_path / "own", num_documents=60, seed=7) / "part-0.jsonl"
    Path("test.jsonl").write_bytes(own.read_bytes())
    build = next(words for words in commands("evaluate") if words[0] == "build")
    assert main([*build, "--quiet"]) == 0
    shutil.copytree("test", tmp_path / "eight" / "test")
    names: dict[str, Any] = {"__name__": "evaluate"}
    *program, resumed = blocks("evaluate", "python")
    for block in program:
        exec(compile(block, "evaluate.md", "exec"), names)
    dataset, found = names["dataset"], names["found"]
    segments = dataset.validation_segments
    assert found.loss.num_targets == int((segments.length - 1).sum())
    assert found.loss.low < found.loss.mean < found.loss.high
    assert sum(mean.num_targets for mean in found.by_group("source").values()) == found.loss.num_targets
    assert names["on_mesh"].values() == pytest.approx(
        names["evaluate"](names["partial"](names["token_losses"], names["model"])).values(), rel=1e-5
    )
    tested = jd.open_dataset("test")
    assert tested.held_out.all()
    assert names["results"]["test"].loss.num_documents == len(set(tested.document_store.text_hashes()[:, 0].tolist()))
    assert names["results"]["test"].loss.num_targets == int((tested.validation_segments.length - 1).sum())
    assert names["difference"].mean == pytest.approx(names["after"].loss.mean - names["before"].loss.mean)
    assert names["difference"].error < names["before"].loss.error / 2
    run_commands("evaluate")
    (drawn,) = json.loads(Path("dataset/report.json").read_text(encoding="utf-8"))["training"]
    assert drawn["num_steps"] == min(60, dataset.num_sequences // 16)
    assert capsys.readouterr().out.count(": validation loss ") == -(-drawn["num_steps"] // 20)
    assert set(drawn["groups"]) == {f"source/{name}" for name in found.by_group("source")}
    exec(compile(resumed, "evaluate.md", "exec"), names)
    steps = read_log(Path("dataset/training/balance/log.jsonl"))[1]
    assert [step["step"] for step in steps] == list(range(21))
    assert {"loss", "validation_loss", "batch_tv/cluster"} < steps[0].keys()
    assert "validation_loss" not in steps[20]
    environment = {**os.environ, "XLA_FLAGS": devices(8), "PYTHONPATH": str(ROOT)}
    told = "import json\nprint(json.dumps([mesh.size, on_mesh.values(), found.values()]))"
    command, place = [sys.executable, "-c", "\n".join([*program, told])], tmp_path / "eight"
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    size, on_mesh, alone = json.loads(done.stdout.splitlines()[-1])
    assert size == 8
    assert alone == pytest.approx(found.values(), rel=1e-3)
    assert on_mesh == pytest.approx(names["on_mesh"].values(), rel=1e-3)


@pytest.mark.parametrize("form", ["messages", "conversations"])
def test_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, form: str) -> None:
    """The page as it is, on chats in both forms; the mixture has the chats twice."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def said(number: float) -> str:
        return " ".join(rng.choice(["mast", "keel", "sail", "wind", "rope"], int(number) + 1))

    names_of = ("role", "content", "user", "assistant") if form == "messages" else ("from", "value", "human", "gpt")
    lines = []
    for number in range(300):
        turns = [
            {names_of[0]: speaker, names_of[1]: said(rng.lognormal(2.5, 1))}
            for _ in range(rng.integers(1, 5))
            for speaker in names_of[2:]
        ]
        lines.append(json.dumps({"id": f"chat-{number}", form: turns}))
    Path("chats.jsonl").write_text("\n".join(lines), encoding="utf-8")
    write_corpus(tmp_path / "texts", num_documents=300)
    build, texts, *_ = commands("chats")
    assert main([*build, "--quiet"]) == 0
    texts = [word.replace("*.jsonl", "*") for word in texts]
    assert main([*texts, "--quiet"]) == 0
    Path("dataset").symlink_to("chats")
    names = run("chats")
    assert names["after"].loss.mean < names["before"].loss.mean
    assert set(names["after"].by_group("answer")) <= {"1", "2", "3", "4"}
    chats = names["chats"].num_sequences
    origins = names["mixture"].origins(np.arange(len(names["mixture"])))
    assert int((origins.dataset == 0).sum()) == pytest.approx(2 * chats, abs=2)
    capsys.readouterr()
    assert main(["inspect", "--out", "chats", "--step", "0", "--document", "chat-0"]) == 0
    (said,) = [turn[names_of[1]] for turn in json.loads(lines[0])[form][1:2]]
    shown = capsys.readouterr().out
    assert "1 user (" in shown
    assert f"<|im_start|>assistant »{said[:99]}" in shown
    assert main(["inspect", "--out", "mixture", "--step", "0"]) == 0
    assert "mast" in capsys.readouterr().out  # clusters have their names, tokens their text


def test_moving_targets(here: Path) -> None:
    names = run("moving-targets")
    assert sorted(names["curriculum"].indices) == list(range(names["chars"].num_sequences))
    assert (names["changed"].version, names["later"].version) == (2, 3)
    assert names["state"]["position"] == 64
    assert names["batches"].position == 80
    by_tenth = [names["mean_lengths"][tenth].mean() for tenth in np.array_split(names["by_length"].indices, 10)]
    assert by_tenth[-1] > 1.5 * by_tenth[0]
    by_tenth = [names["mean_lengths"][tenth].mean() for tenth in np.array_split(names["ordering"].indices, 10)]
    assert max(by_tenth) < 1.5 * min(by_tenth)


def test_near_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The page as it is: marked copies stay, and the orders keep them farther apart than a shuffle."""
    monkeypatch.chdir(tmp_path)
    folder = write_corpus(tmp_path / "texts", num_documents=300)
    lines = (folder / "part-0.jsonl").read_text(encoding="utf-8").splitlines()
    copied = [json.loads(line) for line in lines if len(line) > 250][:30]
    with (folder / "part-1.jsonl").open("a", encoding="utf-8") as file:
        for record, number in itertools.product(copied, range(3)):
            copy = {**record, "id": f"{record['id']}-{number}", "text": f"{record['text']} {number}"}
            file.write(json.dumps(copy) + "\n")
    build, order = commands("near-duplicates")
    build = [word.replace(".jsonl.gz", ".jsonl") for word in build]
    assert main(small(build, "--tokenizer.vocab-size", "300", "--sequence-length", "32", "--windows", "64")) == 0
    assert main([*order, "--quiet"]) == 0
    capsys.readouterr()
    names = run("near-duplicates")
    sizes = np.bincount(names["dataset"].duplicate_groups)
    assert (sizes > 1).sum() == len(copied) == 30
    assert (sizes == 4).sum() == 30
    printed = {
        line.split()[0]: [float(word) for word in line.split()[1:]] for line in capsys.readouterr().out.splitlines()
    }
    assert printed["apart"][1] < printed["balance"][1] < printed["uniform_shuffle"][1]
    assert printed["apart"][3] < printed["uniform_shuffle"][3]


def test_maxtext(here: Path) -> None:
    run_commands("maxtext")
    names = run("maxtext")
    assert set(names["batch"]) == set(re.findall(r"(?:inputs|targets)(?:_\w+)?", blocks("maxtext", "python")[0]))
    settings = yaml.safe_load((here / "for-maxtext" / "maxtext.yml").read_text(encoding="utf-8"))
    words = shlex.split(blocks("maxtext", "sh")[1].replace("\\\n", " "))
    shown = {name: yaml.safe_load(value) for name, _, value in (word.partition("=") for word in words)}
    of_the_machine = {"grain_train_files", "max_target_length"}
    assert {name: shown[name] for name in settings.keys() - of_the_machine} == {
        name: value for name, value in settings.items() if name not in of_the_machine
    }


def small(words: list[str], *more: str) -> list[str]:
    """A command of a page, for a small corpus."""
    sizes = {"2048": "64", "512": "64", "256": "8"}
    return [*(sizes.get(word, word) for word in words), *more, "--quiet"]


def test_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "texts", num_documents=300)
    (build, *_) = commands("own-data")
    build = [word.replace(".jsonl.gz", ".jsonl") for word in build]
    assert main(small(build, "--tokenizer.vocab-size", "600", "--windows", "8")) == 0
    assert "is better than a shuffle" in capsys.readouterr().out
    names = run("own-data")
    assert names["batch"]["inputs"].shape == (64, 64)
    said = orderings_verdict(names["dataset"]).split("\n\n")[0]
    assert str(jd.compare("dataset")).startswith(said)  # the build, the report and Python say the same
    assert main(["inspect", "--out", "dataset", "--step", "0"]) == 0


def test_token_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    rng = np.random.default_rng(0)
    lines = [json.dumps({"id": str(n), "tokens": [*rng.integers(1, 90, 40).tolist(), 99]}) for n in range(200)]
    (tmp_path / "shards" / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for name in ("web", "code"):
        with TokenWriter(tmp_path / "tokens" / f"{name}_text_document", np.dtype(np.uint16)) as writer:
            writer.add_documents([np.append(rng.integers(1, 90, 40), 99) for _ in range(100)])
    build, of_megatron = commands("token-shards")
    assert main(small(build, "--windows", "8")) == 0
    assert main(small(of_megatron, "--windows", "8")) == 0
    sources = jd.open_dataset("from-megatron").group_names["source"]
    assert sorted(sources) == ["code_text_document", "web_text_document"]
    assert "200 documents, without text" in str(jd.open_dataset("from-megatron"))
    Path("dataset").symlink_to("from-shards")
    names = run("token-shards")
    assert names["batch"]["inputs"].shape == (8, 64)


SHARDS = {
    "Megatron": ("*/*.idx", "{}"),
    "datatrove": ("*/*.ds", "{}"),
    "dolma": ("*/*.npy", "{}"),
    "nanoGPT": ("*/train*.bin", '{"end_id": 0}'),
    "modded-nanogpt": ("*/*train*.bin", '{"start_id": 0}'),
    "llm.c": ("*/*train*.bin", '{"start_id": 0}'),
    "others": ("*/*.bin", '{"start_id": 0}'),
}
"""Program -> the pattern and the options of the page's table, for a tokenizer whose delimiter is 0."""
HEADERS = {"modded-nanogpt": 20240520, "llm.c": 20240801}


@pytest.fixture(scope="module")
def orders_of_shards() -> dict[bool, np.ndarray]:
    """Whether the delimiter begins the documents -> the order of the first program's shards."""
    return {}


@pytest.mark.parametrize("program", SHARDS)
def test_existing_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, orders_of_shards: dict[bool, np.ndarray]
) -> None:
    """The page's code on the files of every program; equal texts have equal documents and orders."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    stored = []
    for folder in ("code", "web"):
        documents = [np.append(rng.integers(1, 7_999, 600), 0).astype("<u2") for _ in range(60)]
        if "start_id" in SHARDS[program][1]:
            documents = [np.roll(tokens, 1) for tokens in documents]
        write_shard(program, tmp_path / "shards" / folder, documents)
        stored += documents
    before = {path: path.read_bytes() for path in (tmp_path / "shards").rglob("*.*")}
    pattern, options = SHARDS[program]
    changes = {'pattern, options = "*/*.ds", {}': f'pattern, options = "{pattern}", {options}'}
    if program == "Megatron":  # the table: leave the loop out, and take the .idx files for `prefixes`
        loop = (
            'for shard in sorted(Path("shards").glob(pattern)):\n'
            '    jd.link_tokens(shard, Path("linked") / shard.parent.name / shard.stem, **options)\n'
        )
        changes |= {loop: "", 'Path("linked").glob("*/*.idx")': 'Path("shards").glob(pattern)'}
    names = run("existing-shards", changes)
    assert names["store"].document_lengths.tolist() == [601] * 120
    assert names["names"] == ["code", "web"]
    length = names["sequence_length"] + 1
    tokens = np.concatenate(stored)
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)[names["ordering"].indices]
    parts = list(names["loader"])
    assert len(parts) == names["num_steps"] == len(rows) // 32
    np.testing.assert_array_equal(np.concatenate([part["inputs"] for part in parts]), rows[: 32 * len(parts), :-1])
    np.testing.assert_array_equal(np.concatenate([part["targets"] for part in parts]), rows[: 32 * len(parts), 1:])
    assert {path: path.read_bytes() for path in (tmp_path / "shards").rglob("*.*")} == before
    first = orders_of_shards.setdefault("start_id" in options, names["ordering"].indices)
    np.testing.assert_array_equal(names["ordering"].indices, first)
    train_on_tokens({name: np.asarray(values) for name, values in names["batch"].items()}, names["vocab_size"])


def write_shard(program: str, folder: Path, documents: Sequence[np.ndarray]) -> None:
    """Write the documents, which contain the delimiter, as a program writes them."""
    if program == "datatrove":
        write_trove(folder, documents)
        return
    folder.mkdir(parents=True)
    if program == "Megatron":
        with TokenWriter(folder / "text_document", np.dtype(np.uint16)) as writer:
            writer.add_documents(documents)
        return
    tokens = np.concatenate(documents).astype("<u4" if program == "llm.c" else "<u2")
    if program == "dolma":
        tokens.tofile(folder / "part-0-00000.npy")
        ends = np.cumsum([len(each) for each in documents]).tolist()
        with gzip.open(folder / "part-0-00000.csv.gz", "wt", newline="") as file:
            csv.writer(file).writerows([begin, end, "id"] for begin, end in zip([0, *ends], ends, strict=False))
        return
    header = np.zeros(256 if program in HEADERS else 0, "<i4")
    if program in HEADERS:
        header[:3] = HEADERS[program], 7 if program == "llm.c" else 1, len(tokens)
    (folder / "train.bin").write_bytes(header.tobytes() + tokens.tobytes())
    if program != "others":  # the programs' own names of validation files: the page's pattern leaves them out
        (folder / "val.bin").write_bytes(header.tobytes() + tokens.tobytes())


def write_trove(folder: Path, documents: Sequence[np.ndarray]) -> None:
    """Write a file of datatrove, with datatrove if it is installed."""
    folder.mkdir(parents=True)
    try:
        from datatrove.pipeline.tokens.tokenizer import TokenizedFile
    except ImportError:
        (folder / "00000_unshuffled.ds").write_bytes(np.concatenate(documents).tobytes())
        ends = np.cumsum([len(tokens) for tokens in documents])
        (folder / "00000_unshuffled.ds.index").write_bytes(ends.astype("<u8").tobytes())
        (folder / "00000_unshuffled.ds.metadata").write_text(f"tokenizer.json|2\n{ends[-1]}", encoding="utf-8")
        return
    file = TokenizedFile(
        str(folder), "00000_unshuffled.ds", tokenizer_name_or_path="tokenizer.json", save_final_metadata=True
    )
    for tokens in documents:
        file.write(tokens.tolist(), None)
    file.close()


def test_levanter(here: Path) -> None:
    names = run("levanter")
    assert len(names["first"]) == 8
    assert names["first"][0]["tokens"].shape == (32,)


def test_tunix(here: Path) -> None:
    names = run("tunix")
    assert names["trainer"].train_steps == 4
    batch = next(iter(names["loader"]))
    mask = names["model_input"](batch)["attention_mask"]
    segments = batch["inputs_segmentation"]
    row = int(np.argmax(segments.max(axis=1)))
    assert not mask[row, -1, 0] or segments[row, -1] == segments[row, 0]


def test_torchtitan(here: Path) -> None:
    names = run("torchtitan")
    config = names["OrderedDataLoader"].Config(dataset="dataset")
    ranks = [
        config.build(dp_world_size=2, dp_rank=rank, tokenizer=None, seq_len=32, local_batch_size=4) for rank in range(2)
    ]
    inputs = np.concatenate([next(iter(rank))[0]["input"].numpy() for rank in ranks])
    expected = next(iter(jd.make_loader("dataset", global_batch_size=8)))["inputs"]
    np.testing.assert_array_equal(inputs, expected)
    assert ranks[0].state_dict() == ranks[1].state_dict()


def test_megatron(here: Path) -> None:
    run_commands("megatron")
    assert len(run("megatron")["dataset"].orderings["balance"]) == 31


def test_colab(here: Path) -> None:
    pytest.importorskip("matplotlib")
    names = run("colab")
    assert set(names["orders"]) == {"balance", "shuffle"}


def test_hugging_face(here: Path) -> None:
    names = run("hugging-face")
    assert sorted(names["ordering"].indices) == list(range(600))
    assert names["first"]["input_ids"] == [
        names["packed"][int(row)]["input_ids"] for row in names["ordering"].indices[:64]
    ]
    run_commands("hugging-face")
    assert jd.open_dataset("from-texts").num_sequences > 0
