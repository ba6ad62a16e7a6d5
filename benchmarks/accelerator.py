"""Measure a machine with a GPU or a TPU: tests, orders, k-means, embeddings, training with the loader, a pair of runs.

    python benchmarks/accelerator.py [--sections orders k-means ...] [--on-processor] [--write]

`--write` replaces the sections that ran in the results of the same device, and keeps its other sections.

`make accelerator` runs all sections with `--write`, in less than ten minutes, with the Python of the machine and its
libraries; nothing is installed or fetched. The results are in `results/accelerator-DEVICE.json`. If the libraries of a
section are missing, or if it takes longer than its limit, its result contains the reason, and the other sections run.
`--on-processor` tries the script with small sizes on a machine without an accelerator.

- tests: the tests marked `accelerator`: the device makes the choices that processors make.
- orders: sequences per second of one to many pools that advance together (`pool.run_many`), without compilation; the
  seconds of halving and of whole orders, on the processors and on the device.
- k-means: seconds per pass over 200,000 vectors of 384 numbers, 1,000 clusters.
- embeddings: tokens per second of a model in the shape of Qwen3-Embedding-0.6B.
- training: a GPT of 160 million parameters reads the loader: tokens per second, and the share of time that it waits;
  the records per second that the loader alone brings to the device, with `decode="host"` and `decode="device"`.
- runs: a shuffle and `balance`, the lab's GPT of the size `small`: the two losses, and seconds per run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SECONDS = {"tests": 100, "orders": 170, "k-means": 30, "embeddings": 70, "training": 100, "runs": 150}
"""The longest time of each section, in seconds."""
POOLS = (1, 16, 256, 1024)
PART_SIZE = 32_768


def tests(small: bool) -> dict[str, Any]:
    """Run the marked tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/integration/test_accelerator.py"]
    # The programs of users: without the options that tests/conftest.py sets where none are set.
    environment = {"XLA_FLAGS": "", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return {"exit_status": done.returncode, "says": " ".join((done.stdout + done.stderr).split()[-12:])}


def orders(small: bool) -> dict[str, Any]:
    """Time pools that advance together, and whole orders."""
    import corpora
    import jax
    import numpy as np
    from jax.sharding import Mesh

    import jax_diversity as jd
    from jax_diversity.foundation.devices import processor
    from jax_diversity.ordering import pool
    from jax_diversity.ordering.halving import balanced_stream
    from jax_diversity.ordering.parts import parts_of
    from jax_diversity.ordering.plan import Plan

    part_size, steps = (512, 256) if small else (PART_SIZE, 2048)
    chars, objective = corpora.synthetic(part_size), jd.Objective()
    plan = Plan.build(chars, objective)
    sizes = pool.PoolSizes.of_whole(plan, plan.remaining, None)
    found: dict[str, Any] = {"part_size": part_size, "num_slots": sizes.num_slots, "together": {}}
    with jax.default_device(processor()):
        selector = pool.PoolSelector(plan, objective, plan.remaining, sizes)
    for number in POOLS[:3] if small else POOLS:
        rule, rows, stream, state = pool.stack([selector] * number)
        seconds = []
        for _ in range(3):  # the first call compiles
            start = time.perf_counter()
            state = jax.block_until_ready(pool.run_many(rule, rows, stream, state, np.int32(steps)))
            seconds.append(time.perf_counter() - start)
        found["together"][str(number)] = {
            "compile_seconds": round(seconds[0] - min(seconds[1:]), 2),
            "microseconds_per_step": round(min(seconds[1:]) / steps * 1e6, 1),
            "sequences_per_second": round(number * steps / min(seconds[1:])),
        }
        print(number, found["together"][str(number)], flush=True)
    found["whole"] = {}
    device = Mesh(np.array(jax.devices()[:1]), ("device",))
    for number in (2_000,) if small else (10_000, 1_000_000, 10_000_000):
        chars = corpora.synthetic(number)
        plan = Plan.build(chars, objective)
        start = time.perf_counter()
        balanced_stream(plan.features, plan.remaining, 0, parts_of(number, PART_SIZE))
        seconds = {"halving": round(time.perf_counter() - start, 2)}
        for where, mesh in (("device", device), ("processors", None)):
            if mesh is None and number > 1_000_000:
                break  # it would take a minute
            with jax.default_device(processor()):  # a mesh decides otherwise
                start = time.perf_counter()
                jd.order(chars, mesh=mesh)
                seconds[where] = round(time.perf_counter() - start, 2)
        found["whole"][str(number)] = seconds
        print(number, seconds, flush=True)
    return found


def k_means(small: bool) -> dict[str, Any]:
    """Time the passes of k-means."""
    import numpy as np
    from clustering import clustered_rows, ours

    rows = clustered_rows(5_000 if small else 200_000)
    start = rows[np.sort(np.random.default_rng(1).choice(len(rows), 100 if small else 1_000, replace=False))]
    ours(rows, start, 1)  # compiles
    seconds, _ = ours(rows, start, 5)
    return {"rows": list(rows.shape), "num_clusters": len(start), "seconds_per_pass": round(seconds / 5, 4)}


def embeddings(small: bool) -> dict[str, Any]:
    """Measure Qwen3's forward pass with random weights."""
    import qwen3

    options = argparse.Namespace(
        documents=20 if small else 2_000, max_tokens=1_024, batch_tokens=16_384, dtype="bfloat16", repeats=1
    )
    with tempfile.TemporaryDirectory() as folder:
        qwen3.write_checkpoint(Path(folder), qwen3.scaled(0.05 if small else 1.0))
        return qwen3.measure(Path(folder), options)


def training(small: bool) -> dict[str, Any]:
    """Train a GPT on the loader's batches."""
    import numpy as np
    from loader_waits import small_dataset

    import jax_diversity as jd
    from jax_diversity.lab.settings import TrainConfig
    from jax_diversity.lab.training import train

    shape: dict[str, int] = {} if small else {"width": 896, "num_layers": 12, "num_heads": 14}
    config = TrainConfig(
        num_steps=12 if small else 100,
        batch_size=16 if small else 64,
        validation_batches=0,
        checkpoint_every=100,
        **shape,
    )
    with small_dataset(None) as root, tempfile.TemporaryDirectory() as folder:
        dataset = jd.open_dataset(root)
        run = train(dataset, config, Path(folder) / "run")
        seconds = float(np.median([step["step_seconds"] for step in run.steps[1:]]))
        rates = {decode: loader_rate(dataset, config.batch_size, decode) for decode in ("host", "device")}
        return {
            "loader_records_per_second": rates,
            "step_seconds": round(seconds, 4),
            "tokens_per_second": round(config.batch_size * dataset.sequence_length / seconds),
            "share_of_waiting": round(run.input_wait_share, 4),
        }


def loader_rate(dataset: Any, batch_size: int, decode: str) -> int:
    """Return the number of records per second that arrive on the device, without training."""
    import jax

    import jax_diversity as jd

    loader = jd.make_loader(dataset, global_batch_size=batch_size, num_epochs=None, decode=decode)
    batches = (jax.block_until_ready(jax.device_put(dict(batch))) for batch in loader)
    for _ in range(3):  # compiles
        next(batches)
    start = time.perf_counter()
    for _ in range(50):
        next(batches)
    seconds = time.perf_counter() - start
    batches.close()
    return round(50 * batch_size / seconds)


def runs(small: bool) -> dict[str, Any]:
    """Train two of the lab's models on the installed packages' texts, with the same weights and different orders."""
    import yaml

    from evidence.results import read_rows

    plain = yaml.safe_load((ROOT / "configs/experiments/python_environment.yaml").read_text())
    plain["seeds"] = {"order": [0], "weights": [0]}
    plain["trial"] |= {
        "size": "tiny" if small else "small",
        "batch_size": 32,
        "num_steps": 20 if small else 600,
        "learning_rate": 0.001,
    }
    plain["arms"] = {name: plain["arms"][name] for name in ("shuffle", "balance")}
    plain["claims"] = []
    plain["datasets"]["packages"]["corpus"]["max_bytes"] = 8_388_608
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pair.yaml"
        path.write_text(yaml.safe_dump(plain))
        command = [sys.executable, "-m", "evidence", "run", str(path), "--out", f"{folder}/lab"]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        rows = read_rows(*(path.parent for path in Path(folder, "lab").rglob("results.parquet")))
    losses = {
        row.arm: {each.name: each.value for each in row.measures if each.name in plain["measures"]}
        for row in rows.values()
    }
    return {"seconds": round(seconds, 1), "losses": losses}


SECTIONS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "tests": tests,
    "orders": orders,
    "k-means": k_means,
    "embeddings": embeddings,
    "training": training,
    "runs": runs,
}


def run_section(name: str, small: bool) -> dict[str, Any]:
    """Run one section in its own process, so that its memory on the device is free afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--section", name, "--to", str(path)]
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, *(["--on-processor"] if small else [])],
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=SECONDS[name],
            )
        except subprocess.TimeoutExpired:
            return {"left_out": f"took longer than {SECONDS[name]} s"}
        if not path.exists():
            return {"left_out": (done.stderr.strip().splitlines() or ["no message"])[-1]}
        return {**json.loads(path.read_text()), "section_seconds": round(time.perf_counter() - start, 1)}


def device() -> dict[str, Any]:
    """Return the device that JAX starts. Another process asks JAX, so that this one takes no memory of the device."""
    code = "import jax, json; d = jax.devices(); print(json.dumps([d[0].platform, d[0].device_kind, len(d)]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"Expected an installation of JAX, found: {done.stderr.strip().splitlines()[-1]}")
    platform, kind, number = json.loads(done.stdout.splitlines()[-1])
    return {"platform": platform, "device": kind, "num_devices": number}


def main() -> None:
    """Run the sections, print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--on-processor", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    if options.section:
        found = SECTIONS[options.section](options.on_processor)
        options.to.write_text(json.dumps(found))
        return
    about = device()
    if about["platform"] == "cpu" and not options.on_processor:
        sys.exit("JAX finds no GPU or TPU on this machine; install JAX for the device, or try `--on-processor`.")
    print(f"{about['num_devices']} x {about['device']} ({about['platform']})", flush=True)
    results = {}
    for name in options.sections:
        print(f"\n{name}", flush=True)
        results[name] = run_section(name, options.on_processor)
        print(json.dumps(results[name], indent=1), flush=True)
    if options.write:
        import results_file

        name = "accelerator-" + about["device"].lower().replace(" ", "-").replace("/", "-")
        path = results_file.RESULTS / f"{name}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        others = {name: found for name, found in before.items() if name in SECTIONS}
        results_file.write(name, {**about, **results_file.environment("jax", "jaxlib"), **others, **results})


if __name__ == "__main__":
    main()
