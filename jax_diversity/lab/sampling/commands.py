"""The command `sample`: chooses sequences or documents that stand for all, or says how many a precision needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jax_diversity.foundation.artifacts import NO_ARRAY
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.finding import existing_dataset
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.terminal import show

if TYPE_CHECKING:
    from jax_diversity.lab.sampling.sample import Sample

_ENDINGS = (".npz", ".npy", ".parquet")


def sample(
    *,
    out: str = "out",
    n: int | None = None,
    share: float | None = None,
    of: Literal["sequences", "documents"] | None = None,
    values: str | None = None,
    num_samples: int = 1,
    to: str | None = None,
    seed: int = 0,
    precision: float | None = None,
    losses: str | None = None,
    pilot: str | None = None,
    quiet: bool = False,
) -> None:
    """Choose sequences or documents that stand for all.

    Args:
        out: The dataset's folder, or a Parquet file of documents.
        n: The number to choose.
        share: The share to choose, above 0 and below 1.
        of: What to choose; by default sequences of a dataset, and documents if `--out` is a Parquet file of documents.
        values: Your own numbers, such as losses of an earlier model, that the sample also balances: a .npy file with
            one number for each of all, or a .npz file with several arrays by name.
        num_samples: Number of samples; no two have a common sequence.
        to: The file to write: NAME.npz (the sample), NAME.npy (only its positions) or NAME.parquet (the documents, or
            the sequences' tokens). With several samples the names get numbers.
        seed: Other seeds give other samples.
        precision: Choose nothing; say how many sequences the mean loss ± this number (95 % interval) needs, from
            `--losses`.
        losses: With `--precision`: a .npy file of pilot losses, one for each of all, or for each of `--pilot`.
        pilot: With `--precision`: the sample (.npz) that the pilot losses belong to.
        quiet: Show no progress.
    """
    if not out.endswith(".parquet"):
        existing_dataset(out)
    with Progress(quiet).task("order" if precision else "sample", None, of or "sequence") as advance:
        if precision is not None:
            if losses is None:
                raise UserError("Expected --losses with --precision, found none; give a .npy file of pilot losses.")
            for name, value in (("n", n), ("share", share), ("to", to), ("values", values)):
                if value is not None:
                    raise UserError(f"Expected --precision without --{name}, found both; leave --{name} out.")
            from jax_diversity.lab.sampling.precision import sequences_needed
            from jax_diversity.lab.sampling.sample import Sample

            array, first = _read_array(losses), None if pilot is None else Sample.load(pilot)
            needed = sequences_needed(out, precision, array, first, of=of, seed=seed, advance=advance)
            show(str(needed))
            return
        for name, value in (("losses", losses), ("pilot", pilot)):
            if value is not None:
                raise UserError(
                    f"Expected --{name} only with --precision, found it alone; add --precision or remove it."
                )
        if (n is None) == (share is None):
            given_options = "neither" if n is None else "both"
            raise UserError(
                f"Expected --n or --share, found {given_options}; say how many to choose, such as --share 0.01."
            )
        paths = [] if to is None else _new_files(Path(to), num_samples)
        from jax_diversity.lab.sampling import sample as sampling

        samples = sampling.sample(
            out,
            float(share or 0) if n is None else n,
            of=of,
            values=None if values is None else read_values(values),
            num_samples=num_samples,
            seed=seed,
            advance=advance,
        )
    for path, drawn in zip(paths, samples, strict=False):
        _write(drawn, path, out)
    lines = [str(samples[0])]
    if len(samples) > 1:
        lines[0] = f"{len(samples)} samples without a common one; the first:\n{lines[0]}"
    written = [f"written to {path}" for path in paths] or ["not written: give --to FILE"]
    show("\n".join([*lines, *written]))


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


def _new_files(target: Path, number: int) -> list[Path]:
    """Return the files of the samples: with several, their numbers are before the ending."""
    if target.suffix not in _ENDINGS or not target.absolute().parent.is_dir():
        raise UserError(
            f"Expected --to as a file in an existing folder that ends in {', '.join(_ENDINGS)}, found {target}."
        )
    paths = [target.with_name(f"{target.stem}-{place}{target.suffix}") for place in range(number)]
    paths = [target] if number < 2 else paths
    if taken := [path for path in paths if path.suffix == ".parquet" and path.exists()]:
        raise UserError(f"Expected a new file, found that {taken[0]} exists; name another or remove it.")
    return paths


def _write(chosen: Sample, path: Path, source: str) -> None:
    if path.suffix == ".parquet":
        chosen.write(path, source)
    else:
        chosen.save(path)
