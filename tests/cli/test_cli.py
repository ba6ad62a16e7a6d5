"""The command line as a user meets it: verbs, exit statuses, one clear sentence for a mistake."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import all_verbs, main
from jax_diversity.cli.parsing import list_options
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.ordering.base import METHODS

# The settings of `tiny_config`.
TINY = [
    *("--quiet", "--corpus.file-bytes", "20000", "--tokenizer.vocab-size", "300"),
    *("--embedding.options", "dimensions", "8"),
    *("--cluster.num-clusters", "4", "--cluster.options", "max_iterations", "10"),
    *("--packing.sequence-length", "32", "--packing.validation-fraction", ".05"),
    *("--characteristics.length-bins", "5", "--windows", "8", "32"),
]


@pytest.fixture(scope="module")
def corpus(tiny_dataset: Path) -> Path:
    return tiny_dataset.parent / "corpus"


@pytest.fixture(scope="module")
def built(tiny_dataset: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("cli") / "out")
    assert main(["report", "--out", str(out), *TINY]) == 0  # it names the folder
    return out


def fails(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    """Run something that is a user's mistake; its one sentence."""
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert error.startswith("jax-diversity: ")
    return error


def test_overview_lists_every_verb(capsys: pytest.CaptureFixture) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in ("build", "prepare", "tokenize", "pack", "characterize", "order", "write", "measure", "verify"):
        assert f"\n  {verb} " in text
    assert max(map(len, text.splitlines())) <= 80


def test_build_prints_what_it_made(built: Path, corpus: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["build", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(built), *TINY]) == 0
    text = capsys.readouterr().out
    assert "`balance` is better than a shuffle in" in text
    assert "--all\n\nReport: " in text
    assert text.count("kept") == 13
    assert "400 documents" in text
    assert "balance" in text
    assert "report.html" in text


def test_stages_one_after_another_make_the_same(built: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["prepare", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(out), *TINY]) == 0
    for verb in ("tokenize", "embed", "cluster", "pack", "characterize"):
        assert main([verb, "--out", str(out), *TINY]) == 0
    assert main(["order", "--out", str(out), "--quiet"]) == 0
    assert main(["write", "--out", str(out), "--quiet"]) == 0
    assert main(["report", "--out", str(out), "--quiet"]) == 0
    whole, parts = (json.loads((folder / "manifest.json").read_text())["stages"] for folder in (built, out))
    for stage in ("tokenize", "embed", "cluster", "pack", "characterize", "write"):
        assert parts[stage]["files"] == whole[stage]["files"]
    balance = "orderings/balance.npy"
    assert (out / balance).read_bytes() == (built / balance).read_bytes()


def test_measure_prints_a_table_and_json(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["measure", "--out", str(built), "--windows", "16", "--quiet"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("`balance` is better than a shuffle in 4 of 4 comparisons")
    rows = table.partition("\n\n")[2].splitlines()[1:5]
    assert [line.split()[0] for line in rows] == ["uniform_shuffle", "balance", "floor", "gap"]
    assert len(table.splitlines()) < 20
    assert max(map(len, table.splitlines())) <= 80
    assert main(["measure", "--out", str(built), "--windows", "16", "--quiet", "--curves"]) == 0
    assert "cluster: TV of windows of 16; scale " in capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 80
    order = np.load(built / "orderings" / "balance.npy")
    np.save(tmp_path / "mine.npy", order[::-1])
    arguments = ["measure", "--out", str(built), "--windows", "16", "--json", "--orderings", "balance"]
    assert main([*arguments, str(tmp_path / "mine.npy")]) == 0
    summaries = json.loads(capsys.readouterr().out)
    assert len(summaries) == 2
    assert summaries["balance"]["families"]["cluster"]["windows"]["16"]["gap_closed"] > 0
    assert summaries["balance"]["families"]["cluster"]["windows"]["16"]["tv_mean"] > 0


def test_measure_compares_with_a_shuffle_and_ones_own_file(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    order = np.load(built / "orderings" / "balance.npy")
    mine = tmp_path / "a-folder-of-mine" / "mine.npy"
    mine.parent.mkdir()
    np.save(mine, order[::-1])
    out = ["measure", "--out", str(built), "--quiet"]
    assert main([*out, "--order", str(mine), "--all"]) == 0
    text = capsys.readouterr().out
    blocks = {block.split("\n")[0]: block.split("\n")[1:] for block in text.strip().split("\n\n")}
    windows = blocks["cluster: window TV, mean / worst, aligned"]
    assert windows[0].split() == ["8", "32"]  # as the dataset's settings say
    assert [line.split()[0] for line in windows[1:4]] == ["uniform_shuffle", "balance", "mine.npy"]
    assert max(map(len, text.splitlines())) <= 80
    # Alone, an ordering still stands beside the shuffle; JSON holds what was asked for.
    assert main([*out, "--orderings", str(mine), "--windows", "16", "--markdown"]) == 0
    table = capsys.readouterr().out
    assert "| uniform_shuffle |" in table
    assert "| mine.npy |" in table
    assert "balance" not in table
    assert main([*out, "--orderings", str(mine), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [str(mine)]
    assert "--json or --markdown, found both" in fails([*out, "--json", "--markdown"], capsys)
    assert "no such file" in fails([*out, "--order", str(tmp_path / "absent.npy")], capsys)


def test_measure_makes_a_shuffle_where_there_is_none(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    assert main(["measure", "--out", str(built), "--quiet", "--windows", "16", "--all"]) == 0
    expected = capsys.readouterr().out
    folder = OutputFolder(out)
    with folder.lock():
        for stage in ("order/uniform_shuffle", "measure/uniform_shuffle"):
            folder.withdraw(stage)
    assert main(["measure", "--out", str(out), "--quiet", "--windows", "16", "--all"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected.splitlines())
    with folder.lock():
        for stage in ("order/balance", "measure/balance"):
            folder.withdraw(stage)
    assert "Expected orderings to measure, found none" in fails(["measure", "--out", str(out)], capsys)


def test_verify(built: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["verify", "--out", str(built), "--quiet"]) == 0
    assert "all unchanged" in capsys.readouterr().out
    path = built / "orderings" / "balance.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        error = fails(["verify", "--out", str(built), "--quiet"], capsys)
    finally:
        path.write_bytes(content)
    assert "found 1 file damaged or missing" in error
    assert "orderings/balance.npy: expected sha256" in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bild"], "Unknown command 'bild': expected one of .*did you mean 'build'"),
        (["build"], "Expected --corpus to name files"),
        (["build", "--config"], "Expected a value after --config"),
        (["build", "--config", "absent.yaml"], "absent.yaml"),
        (["build", "--corpus.paths", "absent.jsonl"], "absent.jsonl"),
        (["verify", "--out", "absent"], "Expected a dataset in absent, found no such folder; make one with"),
        (["measure", "--out", "absent"], "absent"),
        (["order", "--out", "absent"], "Expected a dataset in absent, found no such folder"),
        (["report", "--out", "absent"], "Expected a dataset in absent, found no such folder"),
        (["train", "--out", "absent"], "absent"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(sentence, fails(arguments, capsys))
    assert not list(tmp_path.glob("out/*.json"))


def test_mistakes_on_a_dataset(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = ["--out", str(built), "--quiet"]
    assert "did you mean 'greedy'" in fails(["order", *out, "--method", "gredy"], capsys)
    assert "plain file name" in fails(["order", *out, "--name", "../x"], capsys)
    assert "has no option 'pool_sise'" in fails(["order", *out, "--options", "pool_sise", "8"], capsys)
    assert "found 0" in fails(["order", *out, "--options", "pool_size", "0"], capsys)
    assert "found 'topic'" in fails(["order", *out, "--name", "x", "--family-weights", "topic", "1"], capsys)
    assert "has balance, uniform_shuffle" in fails(["measure", *out, "--orderings", "balence"], capsys)
    assert "found 99999" in fails(["measure", *out, "--windows", "99999"], capsys)
    np.save(tmp_path / "short.npy", np.arange(3))
    assert "another dataset" in fails(["measure", *out, "--orderings", str(tmp_path / "short.npy")], capsys)
    np.save(tmp_path / "bad.npy", np.zeros(3, int))
    assert "found 0 3 times" in fails(["measure", *out, "--orderings", str(tmp_path / "bad.npy")], capsys)


SLIPS = [
    (
        ["build", "--packing.sequence-lenght", "3"],
        r"no option --packing.sequence-lenght; did you mean --packing.sequence-length\?",
    ),
    (["measure", "--outt", "x"], r"`jax-diversity measure` has no option --outt; did you mean --out\?"),
    (["order", "--metod", "greedy"], r"no option --metod; did you mean --method\?"),
    (["measure", "--batch-size", "16"], r"no option --batch-size; did you mean --windows\?"),
    (
        ["build", "--corpus", "a", "--corpus.paths", "b"],
        r"Expected --corpus once, found it 2 times; write all values after one --corpus\.",
    ),
    (["build", "--seq-len", "16"], r"no option --seq-len; did you mean --sequence-length\?"),
    (
        ["build", "--corpus", "texts.jsonl", "--corpus.text-field", "body"],
        "only id, text; set --corpus.text-field; if ",
    ),
    (["inspect", "--quux"], "has no option --quux; `jax-diversity inspect --help` lists all options"),
    (["measure", "folder"], r"has no argument folder; did you mean --out folder\?"),
    (["build", "texts.jsonl"], r"no argument texts.jsonl; did you mean --corpus.paths texts.jsonl\?"),
    (["build", "absent.jsonl"], "has no argument absent.jsonl; `jax"),
    (["measure", "--out"], "Expected a value after --out, found nothing"),
    (["measure", "--windows", "8,16"], "Expected values that are each a whole number after --windows, found 8,16"),
    (["build", "--packing.sequence_length=x"], "Expected a whole number after --packing.sequence-length, found x"),
    (["inspect", "--rank", "first"], "Expected a whole number or None after --rank, found first"),
    (["train", "--train.learning-rate", "1e"], "Expected a number after --train.learning-rate, found 1e"),
    (
        ["order", "--family-weights", "cluster"],
        "each a number or pairs of a name and its value or None after --objective.family-weights, found cluster",
    ),
    (
        ["build", "--packing.document-order", "shufle"],
        r"one of shuffle, corpus, spacing after --packing.document-order, found shufle; did you mean shuffle\?",
    ),
    (["--out", "x", "measure"], "Expected a command first, as in .*found the option --out"),
    (["build", "--config", "bad.yaml"], "bad.yaml: line 2, column 1 is not YAML: "),
    (
        ["build", "--config", "slip.yaml"],
        r"slip.yaml: Unknown setting packing.sequence_lenght; .*mean 'sequence_length'\?",
    ),
    (["build", "--config", "kind.yaml"], "kind.yaml: Expected packing.sequence_length to be int, found 'long'"),
    (["build", "--config", "folder"], "Expected a configuration file at folder, found none"),
    (["build", "--corpus.paths", "folder"], "Expected files at folder, found none; check --corpus"),
    (["build", "--corpus.paths", "texts.jsonl", "--out", "texts.jsonl"], "found a file at texts.jsonl"),
    (["measure", "--out", "folder"], "Expected a dataset in folder, found no manifest.json in it; make one"),
    (["measure", "--out", "texts.jsonl"], "Expected a dataset in texts.jsonl, found a file; make one"),
    (["measure", "--json", "--relative-to", "balance"], "Expected --json or --relative-to, found both"),
    (["inspect", "--rows", "-1"], "Expected --rows >= 0, found -1"),
]


@pytest.mark.parametrize(("arguments", "sentence"), SLIPS)
def test_slips(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "texts.jsonl").write_text(json.dumps({"id": "a", "text": "some words"}) + "\n")
    (tmp_path / "bad.yaml").write_text("packing: [1, 2\n")
    (tmp_path / "slip.yaml").write_text("packing: {sequence_lenght: 64}\n")
    (tmp_path / "kind.yaml").write_text("packing: {sequence_length: long}\n")
    assert re.search(sentence, fails(arguments, capsys))
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.rglob("manifest.json"))


def test_another_dataset_is_offered(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for verb in ("measure", "inspect", "order", "train", "verify", "pack", "export"):
        assert "in out, found no such folder; did you mean --out mine?" in fails([verb], capsys)
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "manifest.json").write_text("{}")
    assert "did you mean --out mine?" in fails(["measure", "--out", "mines"], capsys)  # the most similar name


def test_too_many_clusters_are_found_before_the_work(corpus: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    arguments = ["build", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(out), *TINY]
    arguments += ["--cluster.num-clusters", "401"]
    assert "of at most the 400 documents, found 401" in fails(arguments, capsys)
    assert list(OutputFolder(out).stages) == ["prepare"]


def test_help_of_every_verb(capsys: pytest.CaptureFixture, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([]) == 0
    verbs = re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("verbs:")[2], re.MULTILINE)
    assert len(verbs) == 19
    for verb in verbs:
        with pytest.raises(SystemExit) as ending:
            main(["help", verb])
        assert ending.value.code == 0
        text = capsys.readouterr().out
        assert f"usage: jax-diversity {verb}" in text
        assert "--out" in text
        assert "(default: )" not in text
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("verb", "option", "meaning"),
    [
        ("order", "", "page Draw the"),
        ("inspect", "", "compare Show the"),
        ("pack", "packing.", "keep-validation Whether"),
    ],
)
def test_help_of_an_option_that_is_on_has_both_names(
    verb: str, option: str, meaning: str, capsys: pytest.CaptureFixture
) -> None:
    name, text = meaning.split(" ", 1)
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"--{option}{name}, --{option}no-{name} (default: on) {text} " in shown


def test_help_names_no_value_of_python() -> None:
    """A user leaves an option out; `None` is a word only for options whose default is another value."""
    for verb, command in all_verbs().items():
        for option in list_options(command.options, expands=True):
            assert "None" not in option.meaning.replace("`None`", ""), (verb, option.name)
            assert "`None`" not in option.meaning or option.default is not None, (verb, option.name)


def test_help_lists_comparisons_after_the_methods_of_our_own(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["order", "--help"])
    own, literature = capsys.readouterr().out.split("Methods, and their options")[1].split("for comparison:")
    assert "\n  balance " in own
    assert "\n  uniform_shuffle\n" in literature


def test_help_names_every_method_and_its_options(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["order", "--help"])
    assert ending.value.code == 0
    text = capsys.readouterr().out
    listed = text.partition("\nMethods,")[2].replace("\n\nMethods of the literature, for comparison:", "")
    entries = re.split(r"\n  (?=[a-z])", listed.partition("\n\n")[0])[1:]
    assert sorted(entry.split()[0] for entry in entries) == sorted(METHODS)
    for entry in entries:
        head, *lines = entry.split("\n")
        name, _, options = head.partition("  ")
        settable = {option: default for option, default in METHODS.options(name).items() if option != "mesh"}
        given = options.strip("()").split()
        assert dict(zip(given[::2], given[1::2], strict=True)) == {
            option: str(default) for option, default in settable.items()
        }
        sentence = (METHODS.find(name).__doc__ or "").partition("\n")[0]
        assert " ".join(" ".join(lines).split()) == sentence


def test_options_of_a_method(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    options = ["--options", "pool_size", "20", "shuffle", "False"]
    assert main(["order", "--out", str(out), "--method", "greedy_pool", *options, "--quiet"]) == 0
    assert "greedy_pool" in capsys.readouterr().out
    dataset = jd.open_dataset(out)
    expected = jd.order(dataset.characteristics, "greedy_pool", pool_size=20, shuffle=False)
    assert dataset.orderings["greedy_pool"].fingerprint == expected.fingerprint
    assert dataset.manifest["settings"]["orders"][-1]["options"] == {"pool_size": 20, "shuffle": False}


def commands_of(printed: str) -> list[str]:
    """The commands that a demonstration ends with, as a shell takes them."""
    steps = printed.partition("Try next:\n")[2].replace("\\\n", "")
    return [line.strip() for line in steps.splitlines() if line.strip() and not line.strip().startswith("#")]


@pytest.mark.campaign
def test_what_the_demonstration_says_to_try_works(corpus: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [
        "--train.num-steps",
        "4",
        "--train.batch-size",
        "2",
        "--train.width",
        "16",
        "--train.num-layers",
        "1",
    ]
    arguments = ["demo", "--corpus.paths", f"{corpus}/*.jsonl", "--out", "a folder", *settings, *TINY]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Report: a folder/report.html\n" in printed
    assert max(map(len, printed.splitlines())) <= 80
    commands = commands_of(printed)
    assert [command.split()[1] for command in commands] == ["measure", "inspect", "build"]
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
        printed, errors = capsys.readouterr()
        assert "\x1b" not in printed + errors
        assert "\r" not in printed + errors
        assert max(map(len, printed.splitlines())) <= 80
    assert (tmp_path / "a folder-again" / "report.html").exists()


def test_the_report_is_opened_when_asked_for(built: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    report = ["report", "--out", str(built), "--quiet", *TINY[1:]]
    assert main(report) == 0
    assert not opened
    assert main([*report, "--open"]) == 0
    assert opened == [(built / "report.html").resolve().as_uri()]
    capsys.readouterr()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert main([*report, "--open"]) == 0
    assert len(opened) == (2 if sys.platform == "darwin" else 1)
    assert sys.platform == "darwin" or "No browser could be opened here" in capsys.readouterr().err


@pytest.mark.campaign
def test_an_interrupted_ordering_goes_on_with_the_same_command(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run keeps its state at every call, and is sent the signal after the third."""
    program = (
        "import os, signal, sys\n"
        "from jax_diversity.cli.main import main\n"
        "from jax_diversity.ordering import running\n"
        "number, save, saves = getattr(signal, sys.argv[1], None), running.Checkpoint.save, []\n"
        "def saving(self, arrays):\n"
        "    save(self, arrays)\n"
        "    saves.append(len(arrays['placed']))\n"
        "    if len(saves) == 3 and number: os.kill(os.getpid(), number)\n"
        "running.Checkpoint.save = saving\n"
        "running.STEPS_PER_CALL, running._SECONDS_BETWEEN_SAVES = 64, 0.0\n"
        # A shell's background jobs ignore interrupts, and hand that down.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "status = main(sys.argv[2:])\n"
        "print(saves[0])\n"
        "sys.exit(status)"
    )
    # The report has the name of the folder.
    whole, cut = (shutil.copytree(built, tmp_path / name / "out") for name in ("whole", "cut"))
    order = ["order", "--name", "long", "--seed", "4", "--quiet", "--out"]

    def run(ending: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, ending, *order, str(cut)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    interrupted = run("SIGINT")
    assert interrupted.returncode == 130, interrupted.stderr
    sentence = "jax-diversity: interrupted; run the same command again to continue where it stopped.\n"
    assert interrupted.stderr == sentence
    assert run("SIGKILL").returncode == -signal.SIGKILL
    monkeypatch.setattr("jax_diversity.ordering.running.STEPS_PER_CALL", 64)  # near-ties fall as in the other run
    finished = run("none")
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout.splitlines()[-1]) > 5 * 64  # the first that it saved was placed after both others
    assert main([*order, str(whole)]) == 0
    for name in ("orderings/long.npy", "orderings/long.json", "manifest.json"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    assert not (cut / ".partial").exists()  # nor did the orderings that other tests were refused leave one


@pytest.mark.campaign
def test_a_full_disk_is_a_sentence_and_the_build_goes_on_afterwards(corpus: Path, tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk: writing fails in the middle, with an error of the system."""
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
        "from jax_diversity.cli.main import main\n"
        "sys.exit(main(sys.argv[2:]))"
    )
    out = tmp_path / "out"
    arguments = ["build", "--corpus.paths", f"{corpus}/*.jsonl", "--out", str(out), *TINY]
    for limit in (20_000, 60_000):
        # -B: a compiled module that is cut at the limit would break later processes.
        done = subprocess.run(
            [sys.executable, "-B", "-c", program, str(limit), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert "space" in done.stderr
        assert "Traceback" not in done.stderr
    assert main(arguments) == 0
    assert main(["verify", "--out", str(out), "--quiet"]) == 0
