"""The command `sample`: chooses sequences or documents that stand for all, or says how many a precision needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.cli.options import SampleOptions
from jax_diversity.foundation.artifacts import NO_ARRAY
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.progress import Progress
from jax_diversity.sampling.sample import Sample, sample

_ENDINGS = (".npz", ".npy", ".parquet")


def take_samples(options: SampleOptions) -> str:
    """Choose samples, write them to `--to`, and describe the first."""
    if (options.n is None) == (options.share is None):
        found = "neither" if options.n is None else "both"
        raise UserError(f"Expected --n or --share, found {found}; say how many to choose, such as --share 0.01.")
    target = None if options.to is None else Path(options.to)
    if target is not None and (target.suffix not in _ENDINGS or not target.absolute().parent.is_dir()):  # before work
        raise UserError(
            f"Expected --to as a file in an existing folder that ends in {', '.join(_ENDINGS)}, found {target}."
        )
    paths = [] if target is None else _paths(target, options.num_samples)
    if taken := [path for path in paths if path.suffix == ".parquet" and path.exists()]:
        raise UserError(f"Expected a new file, found that {taken[0]} exists; name another or remove it.")
    size = options.share if options.n is None else options.n
    with Progress(options.quiet).task("sample", None, options.of or "sequence") as advance:
        samples = sample(
            options.out,
            float(size or 0) if options.n is None else options.n,
            of=options.of,
            values=None if options.values is None else read_values(options.values),
            num_samples=options.num_samples,
            seed=options.seed,
            advance=advance,
        )
    for path, each in zip(paths, samples, strict=False):
        _write(each, path, options.out)
    lines = [str(samples[0])]
    if len(samples) > 1:
        lines[0] = f"{len(samples)} samples without a common one; the first:\n{lines[0]}"
    written = [f"written to {path}" for path in paths] or ["not written: give --to FILE"]
    return "\n".join([*lines, *written])


def say_needed(options: SampleOptions) -> str:
    """Say how many sequences `--precision` needs, from the pilot losses in `--losses`."""
    from jax_diversity.sampling.precision import sequences_needed

    if options.losses is None:
        raise UserError("Expected --losses with --precision, found none; give a .npy file of pilot losses.")
    for name in ("n", "share", "to", "values"):
        if getattr(options, name) is not None:
            raise UserError(f"Expected --precision without --{name}, found both; leave --{name} out.")
    pilot = None if options.pilot is None else Sample.load(options.pilot)
    losses = _read_array(options.losses)
    with Progress(options.quiet).task("order", None, options.of or "sequence") as advance:
        needed = sequences_needed(
            options.out, options.precision or 0.0, losses, pilot, of=options.of, seed=options.seed, advance=advance
        )
    return str(needed)


def read_values(path: str) -> dict[str, Any]:
    """Read a user's own values: a .npy file has the name of the file, a .npz file may have several by name."""
    if Path(path).suffix != ".npz":
        return {Path(path).stem: _read_array(path)}
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise UserError(f"Expected values at {path}, found no such file.") from None
    except Exception as error:  # damaged archives raise various errors
        raise UserError(f"Expected arrays (.npz) at {path}: {in_one_line(error)}") from None


def _read_array(path: str) -> np.ndarray:
    try:
        return np.array(np.lib.format.open_memmap(Path(path), mode="r"))
    except FileNotFoundError:
        raise UserError(f"Expected numbers at {path}, found no such file.") from None
    except NO_ARRAY as error:
        raise UserError(f"Expected numbers (.npy) at {path}: {in_one_line(error)}") from None


def _paths(target: Path, number: int) -> list[Path]:
    """Return the files of the samples: with several, their numbers are before the ending."""
    if number < 2:
        return [target]
    return [target.with_name(f"{target.stem}-{place}{target.suffix}") for place in range(number)]


def _write(chosen: Sample, path: Path, source: str) -> None:
    if path.suffix == ".parquet":
        chosen.write(path, source)
    else:
        chosen.save(path)
