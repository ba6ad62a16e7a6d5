"""The command `export`: write a run for another training stack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import hold
from jax_diversity.foundation.progress import Progress
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.export import megatron
from jax_diversity.streaming.export.files import Written, common_length
from jax_diversity.streaming.export.maxtext import write_maxtext
from jax_diversity.streaming.export.olmo import check_full, write_olmo, write_olmo_tokens
from jax_diversity.streaming.export.permutation import document_order, write_permutation, write_places
from jax_diversity.streaming.export.settings import ExportConfig
from jax_diversity.streaming.run.run import Run


def export(run: Run, config: ExportConfig, progress: Progress) -> list[str]:
    """Write a run for another training stack.

    Args:
        run: a dataset in an ordering, or a stored run.
        config: the format, and the settings of the training stack that reads the files.
        progress: shows the progress.

    Returns:
        One line for each thing that was written.

    Raises:
        UserError: sequences of several lengths, or content that the format cannot represent.
    """
    exports = {"npy": _npy, "megatron": _megatron, "olmo": _olmo, "maxtext": _maxtext}
    target = Path(config.target)
    # The files of one export belong together; two exports at the same time could leave a mixture.
    with hold(target):
        lines = [written.line for written in exports[config.to](run, target, config, progress)]
    has_mask = config.to == "olmo" and config.olmo.tokens  # a file says which tokens count
    if config.to != "npy" and not has_mask and any(dataset.has_loss_mask for dataset in run.datasets):
        lines.append("The files do not say which tokens are answers of chats: all tokens count towards the loss.")
    return lines


def _single(run: Run, format_name: str) -> Dataset:
    """Return the only dataset of a run; `what` gives the reason why several datasets raise an error."""
    dataset, *other_datasets = run.datasets
    if other_datasets:
        raise UserError(
            f"Expected a run of one dataset, for {format_name}, found {len(run.datasets)} datasets; `--to npy` and "
            "`--to maxtext` take several."
        )
    return dataset


def _npy(run: Run, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    stem = Path(run.name).stem
    arrays = {f"{stem}.npy": run.indices}
    if config.documents:
        segments = _single(run, "documents are numbered within a dataset").segments
        arrays[f"{stem}-documents.npy"] = document_order(segments.sequence_index, segments.document_index, run)
    written = [write_permutation(array, target / name, overwrite=config.overwrite) for name, array in arrays.items()]
    if len(run.datasets) > 1:
        written.append(write_places(run, target / f"{stem}-datasets.json", overwrite=config.overwrite))
    return written


def _megatron(run: Run, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    dataset = _single(run, "Megatron's cache describes the samples of one .bin and .idx")
    options = config.megatron
    indices = megatron.packed_indices(dataset)
    lengths, length = dataset.tokens.document_lengths, dataset.sequence_length
    written, copied = [], None
    if options.description is not None:
        path = Path(options.description)
        description = megatron.read_description(path, sequence_length=length, num_positions=len(run))
        megatron.check_prefix(str(json.loads(description).get("dataset_path")), lengths)
    else:
        tokenizer, prefix = _identifiers(options.tokenizer), options.prefix
        if prefix is not None:
            megatron.check_prefix(prefix, lengths)
        elif len(dataset.tokens.files) == 1:
            prefix = str(dataset.tokens.files[0].prefix.resolve())
        else:
            prefix = copied = str((target / "tokens").resolve())
        seed = dataset.settings["packing"]["seed"] if options.seed is None else options.seed
        num_samples = options.num_samples
        if num_samples is None and not run.is_bijection:
            num_samples = len(run)
        description = megatron.Description(prefix, num_samples, seed, length, options.split, tokenizer).text
    arrays = indices.document_index, indices.sample_index
    if copied is not None:
        megatron.check_samples(run, indices.sample_index, description)  # before the tokens are written
        with progress.task("export tokens", dataset.tokens.num_tokens, "token") as advance:
            tokens = dataset.tokens
            written.append(megatron.write_tokens(tokens, Path(copied), overwrite=config.overwrite, advance=advance))
    return [*written, megatron.write_megatron(run, *arrays, description, target, overwrite=config.overwrite)]


def _olmo(run: Run, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    length, overwrite = common_length(run), config.overwrite
    if config.olmo.tokens:
        check_full(run)  # no order beside tokens that are refused
    written = [write_olmo(run, target, config.olmo, sequence_length=length, overwrite=overwrite)]
    if config.olmo.tokens:
        with progress.task("export tokens", run.num_sequences, "sequence") as advance:
            written.append(write_olmo_tokens(run, target / "sequences.npy", overwrite=overwrite, advance=advance))
    return written


def _maxtext(run: Run, target: Path, config: ExportConfig, progress: Progress) -> list[Written]:
    options = {"sequences_per_file": config.maxtext.sequences_per_file, "overwrite": config.overwrite}
    with progress.task("export records", len(run), "sequence") as advance:
        written = write_maxtext(run, target, **options, advance=advance)
    settings = written.files[-1].read_text(encoding="utf-8")
    return [Written(written.files, f"{written.line}\n\n{settings.rstrip()}")]


def _identifiers(tokenizer: str | None) -> Mapping[str, Any]:
    """Read the tokenizer's `unique_identifiers` from JSON text or from a JSON file."""
    hint = (
        'give the value of its `unique_identifiers`, such as \'{"class": "...", "tokenizer_path": "..."}\', or the '
        "description that one of your runs wrote, --megatron.description"
    )
    if tokenizer is None:
        raise UserError(f"Expected --megatron.tokenizer, which decides the cache's name, found nothing; {hint}.")
    try:
        tokenizer_values = json.loads(Path(tokenizer).read_text("utf-8") if tokenizer.endswith(".json") else tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(f"Expected JSON in --megatron.tokenizer, found {tokenizer!r} ({error}); {hint}.") from None
    if not isinstance(tokenizer_values, dict):
        raise UserError(f"Expected a JSON object in --megatron.tokenizer, found {tokenizer_values!r}; {hint}.")
    return tokenizer_values
