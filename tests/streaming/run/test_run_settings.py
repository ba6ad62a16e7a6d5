"""What Python says of a run, a file and the command line say too, and the orders are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.progress import ignore
from jax_diversity.foundation.settings import read_settings
from jax_diversity.ordering.base import METHODS
from jax_diversity.streaming.run.interleaving import interleave
from jax_diversity.streaming.run.settings import ScheduleConfig
from jax_diversity.streaming.run.weights import named_weights, phases_of
from tests.support.runs import whole
from tests.support.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("settings")
    write_tiny_dataset(root / "web", num_documents=60, features="space")
    write_tiny_dataset(root / "code", num_documents=25, seed=1, features="space")
    return root


MOVING = jd.Targets((0, 60), {"dataset": np.array([[0.9, 0.1], [0.5, 0.5]])})
BOTH, WEB = ("web", "code"), ("web",)
CASES: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "weights by name": (BOTH, "mixture: {weights: {web: 3, code: 1}, num_positions: 80}", {"weights": [3, 1]}),
    "Megatron's interleaving": (
        BOTH,
        "mixture: {weights: {web: 3, code: 2}, interleaving: megatron, num_positions: 80}",
        {"weights": [3, 2], "interleaving": "megatron"},
    ),
    "moving weights": (
        BOTH,
        "mixture: {num_positions: 80, "
        "weights: {shares: {dataset: [{web: 0.9}, {web: 0.5, code: 0.5}]}, starts: [0, 0.75]}}",
        {"weights": MOVING},
    ),
    "moving weights of a joint order": (
        BOTH,
        "mixture: {joint: true, num_positions: 80, "
        "weights: {shares: {dataset: [[0.9, 0.1], [0.5, 0.5]]}, starts: [0, 60]}}",
        {"weights": MOVING, "joint": True},
    ),
    "weights of families": (
        WEB,
        "mixture: {num_positions: 80}\norder: {objective: {"
        "family_weights: {length: 3}, document_weight: 0.2, norm_weight: 0.5, self_weight: 1, windows: [8]}}",
        {
            "objective": jd.Objective(
                family_weights=(1.0, 3.0), document_weight=0.2, norm_weight=0.5, self_weight=1.0, windows=(8,)
            )
        },
    ),
    "weights of families of a joint order": (
        BOTH,
        "mixture: {joint: true, num_positions: 80}\norder: {objective: {family_weights: {dataset: 2}}}",
        {"objective": jd.Objective(family_weights=(1.0, 2.0, 2.0)), "joint": True},
    ),
    "the published objective as in the authors' code": (
        WEB,
        "mixture: {num_positions: 80}\n"
        "order: {method: greedy, objective: {base: f3, form: norms, family_weights: [1, 0.5]}, seed: 3}",
        {"method": "greedy", "objective": jd.Objective.f3(0.5, form="norms"), "seed": 3},
    ),
    "targets of every epoch": (
        WEB,
        "mixture: {num_positions: 80}\norder: {targets: {shares: {length: [{short: 0.5, middle: 0.25, long: 0.25}]}}}",
        {"targets": {"length": np.array([0.5, 0.25, 0.25])}},
    ),
    "the order of the first epoch, and parts as they are made": (
        WEB,
        "mixture: {num_positions: 80}\nordering: balance\nbackground: true",
        {"ordering": "balance"},
    ),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("what", CASES)
def test_a_file_says_what_python_says(what: str, folder: Path, tmp_path: Path) -> None:
    names, text, settings = CASES[what]
    datasets = [str(folder / name) for name in names]
    config = tmp_path / "run.yaml"
    config.write_text(f"path: {tmp_path / 'file'}\ndatasets: {datasets}\n{text}\n")
    assert main(["schedule", "--config", str(config), "--quiet"]) == 0
    expected = jd.create_schedule(tmp_path / "python", datasets, num_positions=80, **settings)
    plain = jd.create_schedule(tmp_path / "plain", datasets, num_positions=80)
    np.testing.assert_array_equal(whole(jd.open_schedule(tmp_path / "file")), whole(expected))
    assert not np.array_equal(whole(expected), whole(plain))


def test_the_command_line_says_it_too(folder: Path, tmp_path: Path) -> None:
    arguments = ["schedule", "--path", str(tmp_path / "run"), "--datasets", str(folder / "web"), "--quiet"]
    arguments += ["--order.seed", "3", "--family-weights", "length", "3", "--document-weight", "0.2"]
    assert main(arguments) == 0
    expected = jd.create_schedule(
        tmp_path / "python",
        folder / "web",
        seed=3,
        objective=jd.Objective(family_weights=(1.0, 3.0), document_weight=0.2),
    )
    np.testing.assert_array_equal(whole(jd.open_schedule(tmp_path / "run")), whole(expected))
    # A change goes on with the seed of the version before, where none is given.
    assert main(["schedule", "--path", str(tmp_path / "run"), "--position", "-1", "--quiet"]) == 0
    np.testing.assert_array_equal(whole(jd.open_schedule(tmp_path / "run")), whole(jd.extend_schedule(expected)))


def test_shares_of_a_change_are_the_target_from_its_position_on(folder: Path, tmp_path: Path) -> None:
    """As in Python: earlier positions do not count towards them, so that nothing is made up for."""
    for name in ("command", "python"):
        jd.create_schedule(tmp_path / name, folder / "web", num_epochs=2)
    arguments = ["--position", "30", "--order.targets.shares", "{length: [{short: 0.6}]}", "--quiet"]
    assert main(["schedule", "--path", str(tmp_path / "command"), *arguments]) == 0
    run = jd.open_schedule(tmp_path / "python")
    expected = jd.extend_schedule(run, position=30, targets={"length": {"short": 0.6}})
    np.testing.assert_array_equal(whole(jd.open_schedule(tmp_path / "command")), whole(expected))
    assert expected.content.versions[-1].change == "from position 30 on; ordered by balance, seed 0, targets of length"


def test_a_run_is_not_a_dataset(folder: Path, tmp_path: Path) -> None:
    """But a loader opens the folder of a run."""
    run = jd.create_schedule(tmp_path / "run", folder / "web")
    with pytest.raises(jd.UserError, match=r"found the stored run .*run; open it with jd\.open_schedule"):
        jd.make_run(tmp_path / "run")
    loaders = (jd.make_loader(each, global_batch_size=4) for each in (run, tmp_path / "run", str(tmp_path / "run")))
    expected, *others = (next(iter(loader)) for loader in loaders)
    for batch in others:
        np.testing.assert_array_equal(batch["inputs"], expected["inputs"])
    with pytest.raises(jd.UserError, match="no ordering, because a run has its own"):
        jd.make_loader(tmp_path / "run", ordering="balance", global_batch_size=4)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_run_takes_the_settings_that_its_method_uses(method: str, folder: Path, tmp_path: Path) -> None:
    run = jd.create_schedule(tmp_path / "plain", folder / "web", method=method, num_epochs=1)
    seeded = METHODS.takes(method, "seed")
    assert run.content.versions[-1].change.endswith(f"{method}, seed 0" if seeded else method)
    targets = {"length": [1, 1, 1]}
    given = {"seed": (3, seeded), "objective": (jd.Objective(), METHODS.takes(method, "objective"))}
    for name, (value, used) in {**given, "targets": (targets, METHODS.takes(method, "plan"))}.items():
        if not used:
            with pytest.raises(jd.UserError, match=f"Method '{method}' cannot .*; expected one of "):
                jd.create_schedule(tmp_path / name, folder / "web", method=method, **{name: value})
            assert not (tmp_path / name).exists()
    # A seed that comes from the previous version is not refused.
    seeded_run = jd.create_schedule(tmp_path / "seeded", folder / "web", seed=3, num_epochs=1)
    extended = jd.extend_schedule(seeded_run, method=method, num_epochs=1)
    assert len(extended) == 2 * len(run)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mixture: {weights: {shares: {source: [{web: 1}]}}}", "source"),
        ("mixture: {weights: {shares: {dataset: [{wob: 1}]}}}", "found 'wob'"),
        ("mixture: {weights: [1, 1], temperature: 2}", "mixture: Expected weights or a temperature, found both"),
        ("order: {name: own}", "no order.name in a run"),
        ("order: {reverse: true}", "no order.reverse in a run"),
        (
            "order: {objective: {family_weights: {nothing: 1}}}",
            "family_weights to weigh families of the characteristics (cluster, length), found 'nothing'",
        ),
        ("order: {targets: {shares: {length: [{short: 1}]}}}", "order.targets with one dataset, found 2"),
        ("order: {method: grady}", "grady"),
        (
            "order: {method: stratified, objective: {windows: [8]}}",
            "Method 'stratified' cannot use objective; expected one of",
        ),
        ("order: {objective: {family_weights: 3}}", "order.objective.family_weights"),
        ("ordering: balance", "ordering only in a run of one dataset"),
        (
            "mixture: {interleaving: megatron, joint: true}",
            "interleaving=megatron with datasets that are mixed by position, found",
        ),
        ("mixture: {interleaving: megatron, consecutive: true}", "found consecutive datasets; leave it out"),
        ("mixture: {interleaving: first}", "interleaving"),
        ("quiet: true", "Unknown setting quiet"),
    ],
)
def test_settings_that_contradict_one_another(
    text: str, sentence: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    datasets = [str(folder / name) for name in BOTH]
    config = tmp_path / "run.yaml"
    config.write_text(f"path: {tmp_path / 'run'}\ndatasets: {datasets}\n{text}\n")
    assert main(["schedule", "--config", str(config), "--quiet"]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run" / "schedule.json").exists()


def test_llamas_mixture_gives_the_epochs_of_the_paper() -> None:
    """Touvron et al. 2023, table 1: with sizes as in the paper, every dataset is read as often as there."""
    path = Path(__file__).parents[3] / "configs" / "runs" / "llama.yaml"
    config = read_settings(path, ScheduleConfig())
    config.check(exists=False)
    epochs = np.array([1.10, 1.06, 0.64, 2.45, 2.23, 1.06, 1.03])
    shares = np.array([67, 15, 4.5, 4.5, 4.5, 2.5, 2])
    sizes = np.round(1000 * shares / epochs)
    weights = named_weights(config.mixture.weights, config.datasets, sizes, "dataset")
    np.testing.assert_array_equal(weights, shares)
    count = round(config.mixture.num_epochs * sizes.sum())
    chosen = interleave((0,), phases_of(weights)[1], count, config.mixture.interleaving, ignore)
    np.testing.assert_allclose(np.bincount(chosen) / sizes, epochs, atol=0.006)
    assert path.read_text(encoding="utf-8").startswith("# jax-diversity schedule --config configs/runs/llama.yaml")
