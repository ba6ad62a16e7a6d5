"""Compute the values of the page on a stored run: its datasets over time, and its balance.

They are the values of a report (see `values`) without the sections on a corpus and its preparation, and with the
section `run`:

    run  version, num_positions,
         datasets   [{path, num_sequences, sequence_length, positions, share, epochs, checked_against}]; share is a
                     fraction of all positions, `checked_against` has the files of evaluation texts that the dataset's
                     preparation was given
         versions   [{version, positions, change, changed_at?}]; changed_at is the first position that differs
                    from the version before
         changes    [{version, position}]: the positions `changed_at` that are also positions of this version
         stretches  [{start, stop, parts [{dataset, epoch, share}]}]: a stretch is a part of the run. `parts` lists
                    the datasets that it reads (by their index in `datasets`), their epochs and their shares
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.figures.plain import clean_text, round_value
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.training_log import LOG_FILE, training_folder
from jax_diversity.ordering.measures.comparison import SHUFFLE
from jax_diversity.report import words
from jax_diversity.report.orderings import Shown, orders_values
from jax_diversity.report.training import logged_steps, training_values
from jax_diversity.report.values import FORMAT_VERSION, summary_values
from jax_diversity.schema.orderings import Positions
from jax_diversity.streaming.run.joining import joined_groups
from jax_diversity.streaming.run.measuring import choose
from jax_diversity.streaming.run.run import Origins
from jax_diversity.streaming.run.stored import StoredRun

NUM_STRETCHES = 72


def run_values(
    run: StoredRun, progress: Progress, windows: Sequence[int] = (), families: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the values that the docstring of the module lists; equal runs give equal values.

    Args:
        run: the run, in one of its versions.
        progress: shows the progress of measuring.
        windows: window sizes, see `choose`.
        families: families to measure, see `choose`.

    Raises:
        UserError: the run has no positions; and the errors of `choose`.
    """
    if not len(run):
        raise UserError(f"Expected a run with positions at {run.root}, found none; make a run of one epoch.")
    chosen = choose({run.name: run}, windows, families)
    (name,), several = chosen.orders, len(run.datasets) > 1
    reference, shuffle = chosen.reference

    def shuffled(seed: int) -> Positions:
        """The positions of the run in a random order."""
        return Positions(np.random.default_rng(seed).permutation(run.indices), run.num_sequences)

    shown = [
        Shown(shuffle, {"name": reference, "method": SHUFFLE}),
        Shown(
            Positions(run.indices, run.num_sequences, run.info),
            {"name": name, "method": "schedule", "targeted": run.info["targeted"]},
        ),
    ]
    counts = chosen.counts
    names = (
        {family: joined_groups(run.datasets, family) for family in counts.families}
        if several
        else run.datasets[0].shown_groups
    )
    ordering, verdicts = orders_values(
        counts,
        shown,
        chosen.windows,
        names,
        progress,
        targets=chosen.targets,
        shuffle=shuffled if several else None,
    )
    reading = _reading(run)
    # The log may be of an earlier version, which this one continues.
    path = training_folder(run) / LOG_FILE
    steps = logged_steps(path, run.identity, lambda of: run.continues(0, of))
    values = {
        "format_version": FORMAT_VERSION,
        "title": clean_text(run.root.name) or "Untitled run",
        "run": reading,
        "ordering": {**ordering, "balanced": "", "unbalanced": "", "batches": None},
        "verdicts": verdicts,
        "training": [training_values(run.name, steps)] if steps else [],
        **dict.fromkeys(("corpus", "preparation", "clusters", "packing")),
        "settings": {},
        "fingerprints": {},
    }
    tokens = sum(dataset["positions"] * dataset["sequence_length"] for dataset in reading["datasets"])
    sentence = (
        f"{counted(len(run), 'sequence')} ({tokens:,} tokens, padding included) from "
        f"{counted(len(run.datasets), 'dataset')}, in the order in which training reads them."
    )
    measured = "its own mixture" if several else "the dataset's mixture"
    cards = [
        ("Positions", words.compact(len(run)), "sequences, including repetitions"),
        ("Tokens", words.compact(tokens), "padding included"),
        ("Datasets", f"{len(run.datasets)}", f"version {run.version} of {len(run.content.versions)}"),
    ]
    sentences = [sentence, f"Its windows are measured against {measured}."]
    main, batch_size = clean_text(name), run.datasets[0].batch_size
    return {**values, "summary": summary_values(values, sentences, cards, main, batch_size)}


def _reading(run: StoredRun) -> dict[str, Any]:
    """The section `run`: which datasets the run reads at which positions, and its versions."""
    origins = run.origins(np.arange(len(run)))
    versions = [_version(run, number) for number in range(1, len(run.content.versions) + 1)]
    counts = np.bincount(origins.dataset, minlength=len(run.members)).tolist()
    return {
        "version": run.version,
        "num_positions": len(run),
        "datasets": [
            {
                "path": clean_text(member.path),
                "num_sequences": member.num_sequences,
                "sequence_length": member.sequence_length,
                "positions": count,
                "share": round_value(count / len(run)),
                "epochs": round_value(count / max(member.num_sequences, 1)),
                "checked_against": [*map(clean_text, member.checked_against)],
            }
            for member, count in zip(run.members, counts, strict=True)
        ],
        "versions": versions,
        "changes": [
            {"version": version["version"], "position": version["changed_at"]}
            for version in versions[1 : run.version]
            # Positions after the last common position were moved by a later change.
            if version["changed_at"] <= run.agrees_until(version["version"])
        ],
        "stretches": stretches(origins),
    }


def stretches(origins: Origins) -> list[dict[str, Any]]:
    """Divide a run into stretches of nearly equal length, and return the share of each dataset and epoch in each."""
    total = len(origins.dataset)
    bounds = np.unique(np.arange(NUM_STRETCHES + 1) * total // NUM_STRETCHES).tolist()
    shares = []
    for start, stop in pairwise(bounds):
        pairs = np.stack([origins.dataset[start:stop], origins.epoch[start:stop]], axis=1)
        distinct, counts = np.unique(pairs, axis=0, return_counts=True)
        parts = [
            {"dataset": dataset, "epoch": epoch, "share": round_value(count / (stop - start))}
            for (dataset, epoch), count in zip(distinct.tolist(), counts.tolist(), strict=True)
        ]
        shares.append({"start": start, "stop": stop, "parts": parts})
    return shares


def _version(run: StoredRun, number: int) -> dict[str, Any]:
    version = run.with_version(number)
    changed_at = version.agrees_until(number - 1) if number > 1 else None
    change = clean_text(run.content.versions[number - 1].change)
    return {"version": number, "positions": len(version), "change": change, "changed_at": changed_at}
