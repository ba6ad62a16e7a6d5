"""The verb `export`: an ordering of a dataset, or the schedule of a run, written for another stack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.export import megatron
from jax_diversity.export.files import Written
from jax_diversity.export.maxtext import write_maxtext
from jax_diversity.export.olmo import write_olmo, write_olmo_tokens
from jax_diversity.export.permutation import document_order, write_permutation, write_places
from jax_diversity.export.rows import OrderedSequences, Sequences
from jax_diversity.export.settings import ExportConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import hold
from jax_diversity.foundation.progress import Progress
from jax_diversity.schedule.stored import RunSchedule, open_schedule
from jax_diversity.schema import Ordering, Schedule

Exported = Dataset | RunSchedule
"""What is exported: a dataset in an ordering, or a run."""


def export(out: str | Path | None, config: ExportConfig, progress: Progress) -> list[str]:
    """Write an ordering of a dataset, or a run's schedule, for another stack.

    Args:
        out: the dataset's folder or address; None with a schedule.
        config: what to write, for which stack.
        progress: is told what is done.

    Returns:
        A line for everything that was written.

    Raises:
        UserError: neither or both of a dataset and a schedule; what the stack's format cannot hold.
    """
    exports = {"npy": _npy, "megatron": _megatron, "olmo": _olmo, "maxtext": _maxtext}
    if (out is None) == (config.schedule is None):
        found = "neither" if out is None else "both"
        raise UserError(f"Expected a dataset or a schedule to export, found {found}.")
    exported: Exported
    exported = open_schedule(config.schedule or "", config.version) if out is None else open_dataset(out)
    target = Path(config.target)
    # The files of one export belong together: two at the same time could each leave some.
    with hold(target):
        lines = [each.line for each in exports[config.to](exported, target, config, progress)]
    if config.to != "npy" and any(dataset.marks_learned for dataset in _datasets(exported)):
        lines.append("The files do not say which tokens are answers of chats: a loss is counted on all tokens.")
    return lines


def _datasets(exported: Exported) -> Sequence[Dataset]:
    return (exported,) if isinstance(exported, Dataset) else exported.datasets


def _plan(exported: Exported, config: ExportConfig) -> tuple[str, Ordering | Schedule]:
    """Which sequence comes when, and a name for it."""
    if isinstance(exported, RunSchedule):
        return exported.root.name, exported.to_schedule()
    ordering = config.ordering or "balance"
    return Path(ordering).stem, exported.find_ordering(ordering)


def _single(exported: Exported, what: str) -> Dataset:
    """The only dataset; `what` says why there can be no other."""
    if isinstance(exported, Dataset):
        return exported
    if len(exported.members) > 1:
        raise UserError(
            f"Expected a schedule of one dataset, for {what}, found one of {len(exported.members)}; `--to npy` and "
            "`--to maxtext` take several."
        )
    return exported.datasets[0]


def _npy(exported: Exported, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    stem, plan = _plan(exported, config)
    arrays = {f"{stem}.npy": plan.indices}
    if config.documents:
        segments = _single(exported, "documents are numbered within a dataset").segments
        arrays[f"{stem}-documents.npy"] = document_order(segments.sequence_index, segments.document_index, plan)
    written = [write_permutation(array, target / name, overwrite=config.overwrite) for name, array in arrays.items()]
    if isinstance(exported, RunSchedule) and len(exported.members) > 1:
        written.append(write_places(exported, target / f"{stem}-datasets.json", overwrite=config.overwrite))
    return written


def _megatron(exported: Exported, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    dataset = _single(exported, "Megatron's cache tells samples of one .bin and .idx alone")
    options, (_, plan) = config.megatron, _plan(exported, config)
    indices = megatron.packed_indices(dataset)
    lengths, length = dataset.tokens.document_lengths, dataset.sequence_length
    written = []
    if options.description is not None:
        path = Path(options.description)
        about = megatron.read_description(path, sequence_length=length, num_positions=len(plan))
        megatron.check_prefix(str(json.loads(about).get("dataset_path")), lengths)
    else:
        tokenizer, prefix = _identifiers(options.tokenizer), options.prefix
        if prefix is not None:
            megatron.check_prefix(prefix, lengths)
        elif len(dataset.tokens.files) == 1:
            prefix = str(dataset.tokens.files[0].prefix.resolve())
        else:
            prefix = str((target / "tokens").resolve())
            with progress.task("export tokens", dataset.tokens.num_tokens, "tokens") as advance:
                path, overwrite = Path(prefix), config.overwrite
                written.append(megatron.write_tokens(dataset.tokens, path, overwrite=overwrite, advance=advance))
        seed = dataset.settings["packing"]["seed"] if options.seed is None else options.seed
        num_samples = options.num_samples
        if num_samples is None and isinstance(plan, Schedule):
            num_samples = len(plan)
        about = megatron.Description(prefix, num_samples, seed, length, options.split, tokenizer).text
    arrays = indices.document_index, indices.sample_index
    return [*written, megatron.write_megatron(plan, *arrays, about, target, overwrite=config.overwrite)]


def _olmo(exported: Exported, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    (_, plan), sequences = _plan(exported, config), Sequences(exported)
    length, overwrite = sequences.sequence_length, config.overwrite
    written = [write_olmo(plan, target, config.olmo, sequence_length=length, overwrite=overwrite)]
    if config.olmo.tokens:
        with progress.task("export tokens", len(sequences), "sequences") as advance:
            path = target / "sequences.npy"
            written.append(write_olmo_tokens(sequences, path, overwrite=overwrite, advance=advance))
    return written


def _maxtext(exported: Exported, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    sequences = OrderedSequences(exported, config.ordering)
    options = {"sequences_per_file": config.maxtext.sequences_per_file, "overwrite": config.overwrite}
    with progress.task("export records", len(sequences), "sequences") as advance:
        written = write_maxtext(sequences, target, **options, advance=advance)
    settings = written.files[-1].read_text(encoding="utf-8")
    return [Written(written.files, f"{written.line}\n\n{settings.rstrip()}")]


def _identifiers(tokenizer: str | None) -> Mapping[str, Any]:
    """The tokenizer's `unique_identifiers` from JSON or a file of it."""
    hint = (
        'give what its `unique_identifiers` holds, such as \'{"class": "...", "tokenizer_path": "..."}\', or the '
        "description that a run of yours left, --megatron.description"
    )
    if tokenizer is None:
        raise UserError(f"Expected --megatron.tokenizer, which decides the cache's name, found nothing; {hint}.")
    try:
        found = json.loads(Path(tokenizer).read_text("utf-8") if tokenizer.endswith(".json") else tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(f"Expected JSON in --megatron.tokenizer, found {tokenizer!r} ({error}); {hint}.") from None
    if not isinstance(found, dict):
        raise UserError(f"Expected a JSON object in --megatron.tokenizer, found {found!r}; {hint}.")
    return found
