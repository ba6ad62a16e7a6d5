"""A sample: some sequences or documents that stand for all, and what it holds beside the whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.checks import as_whole_number, check_one_of, check_type
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.folders import as_path
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.tables import Display, Displayed
from jax_diversity.lab.sampling.population import Kind, Population, Source, find_population
from jax_diversity.lab.sampling.selection import balanced_prefix
from jax_diversity.ordering.measures.windows import total_variation
from jax_diversity.ordering.objective import Objective
from jax_diversity.schema.orderings import as_integers

_DRAWS = 8
"""Number of random samples whose mean TV stands beside the sample's."""
_INFO, _COUNTS = "info", ("data", "indices", "indptr")


@dataclass(frozen=True, eq=False, repr=False)
class Sample(Displayed):
    """Sequences or documents that stand for all. It can be used like the array of their positions.

    Attributes:
        positions: the numbers of the sequences or documents, each once, in the order of the choice: the first n are a
            sample, too. int64, read-only.
        kind: `sequences` or `documents`.
        num_all: number of sequences or documents that it stands for.
        characteristics: the counts of the sample, in the order of `positions`. Documents count equally: the counts of
            each have the same sum.
        shares: family -> every group's share in the whole.
        random_tv: family -> mean TV (see `tv`) of random samples of this size.
        names: family -> the names of its groups, if they are known.
        ids: the ids of the documents; None for sequences.
        numbers: the positions that the sample stands for; None means 0 .. `num_all` - 1.
        all_tokens: tokens of each of the `num_all`; None if all have equally many.
        info: how the sample was made.

    Make one with `jd.sample`, or `Sample.of` for positions that you chose.
    """

    positions: Int64[np.ndarray, " chosen"]
    kind: Kind
    num_all: int
    characteristics: Characteristics
    shares: Mapping[str, Float64[np.ndarray, " group"]]
    random_tv: Mapping[str, float]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ids: tuple[str, ...] | None = None
    numbers: Int64[np.ndarray, " row"] | None = None
    all_tokens: Int64[np.ndarray, " row"] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions.setflags(write=False)
        for name in ("shares", "random_tv", "names", "info"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @classmethod
    def of(
        cls,
        source: Source,
        positions: Any,
        *,
        of: Kind | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Sample:
        """Make a sample of positions that you chose, such as random ones; `jd.estimate` needs no balanced sample.

        Positions must not be chosen by the losses that are to be estimated.

        Args:
            source: see `jd.sample`, also for `of` and `values`.
            positions: numbers of different sequences or documents.

        Raises:
            UserError: a position that does not exist or is repeated.

        Example:
            >>> Sample.of(chars, np.random.default_rng(0).permutation(chars.num_sequences)[:1_000])
        """
        population = find_population(source, of).with_values(values or {})
        chosen = as_integers("positions", positions, below=max(population.num_numbers, 1))
        rows = chosen
        if population.numbers is not None:
            rows = np.searchsorted(population.numbers, chosen).clip(max=len(population.numbers) - 1)
            if (strange := chosen[population.numbers[rows] != chosen]).size:
                raise UserError(
                    f"Expected documents that training reads, found document {strange[0]}, which is not in the "
                    "training sequences; leave it out."
                )
        if len(np.unique(rows)) < len(rows) or not len(rows):
            raise UserError("Expected at least one position and each position once, found none or a repeated one.")
        return _of_rows(population, rows, {"method": "given"})

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, place: Any) -> Any:
        return self.positions[place]

    def __iter__(self) -> Iterator[np.int64]:
        return iter(self.positions)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.positions, dtype, copy=copy)

    def __reduce__(self) -> tuple[Any, ...]:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        return Sample, tuple(dict(value) if isinstance(value, MappingProxyType) else value for value in values)

    @property
    def tokens(self) -> Int64[np.ndarray, " chosen"]:
        """Number of tokens of every sequence; for documents a constant, because documents count equally."""
        return self.characteristics.tokens

    @cached_property
    def tv(self) -> dict[str, float]:
        """Family -> TV of the sample: the share of its tokens that would have to change their group to match the whole.

        Compare it with `random_tv`.
        """
        deviations = {}
        for family, matrix in self.characteristics.counts.items():
            counts = np.asarray(matrix.sum(axis=0)).reshape(1, -1)
            deviations[family] = float(total_variation(counts, self.shares[family])[0])
        return deviations

    def prefix(self, number: int) -> Sample:
        """Return the first `number` as a sample of their own; its `random_tv` is scaled by the size."""
        number = as_whole_number("number", number, 1, len(self))
        scale = _random_scale(number, self.num_all) / max(_random_scale(len(self), self.num_all), 1e-12)
        return replace(
            self,
            positions=self.positions[:number].copy(),
            characteristics=self.characteristics.take(np.arange(number)),
            random_tv={family: tv * scale for family, tv in self.random_tv.items()},
            ids=None if self.ids is None else self.ids[:number],
        )

    def save(self, path: str | Path) -> None:
        """Write the sample into one .npz file, or only the positions into a .npy file (int64).

        `np.load("sample.npz")["positions"]` reads the positions; `Sample.load` needs the .npz.

        Raises:
            UserError: the name ends in neither .npz nor .npy.
        """
        path = Path(path)
        if path.suffix not in (".npz", ".npy"):
            raise UserError(f"Expected a file name that ends in .npz or .npy for a sample, found {path.name!r}.")
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            if path.suffix == ".npy":
                np.save(file, self.positions)
            else:
                np.savez_compressed(file, allow_pickle=False, **self._arrays())

    def _arrays(self) -> dict[str, np.ndarray]:
        chars = self.characteristics
        description = {
            "kind": self.kind,
            "num_all": self.num_all,
            "families": list(chars.families),
            "weights": dict(chars.weights),
            "sequence_length": chars.sequence_length,
            "random_tv": dict(self.random_tv),
            "names": {family: list(names) for family, names in self.names.items()},
            "info": dict(self.info),
        }
        arrays: dict[str, Any] = {"positions": self.positions, _INFO: json.dumps(description, sort_keys=True)}
        for name in ("numbers", "all_tokens", "ids"):
            if (value := getattr(self, name)) is not None:
                arrays[name] = np.asarray(value)
        for number, (family, matrix) in enumerate(chars.counts.items()):
            arrays[f"share-{number}"] = self.shares[family]
            arrays |= {f"{part}-{number}": getattr(matrix, part) for part in _COUNTS}
        return {name: np.asarray(value) for name, value in arrays.items()}

    @classmethod
    def load(cls, path: str | Path) -> Sample:
        """Read a sample from a .npz file of `save`.

        Raises:
            UserError: no such file, or another kind of file.
        """
        check_type("path", path, str | os.PathLike, "the path of a sample's .npz file")
        path = as_path("the sample's .npz file", path)
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            description = json.loads(str(arrays[_INFO]))
            counts = {
                family: csr_array(
                    tuple(arrays[f"{part}-{number}"] for part in _COUNTS),
                    shape=(len(arrays["positions"]), len(arrays[f"share-{number}"])),
                )
                for number, family in enumerate(description["families"])
            }
            chars = Characteristics.from_counts(
                counts, weights=description["weights"], sequence_length=description["sequence_length"]
            )
            shares = {family: arrays[f"share-{number}"] for number, family in enumerate(description["families"])}
            ids = tuple(arrays["ids"].tolist()) if "ids" in arrays else None
            keys = ("kind", "num_all", "random_tv", "names", "info")
            numbers, tokens = arrays.get("numbers"), arrays.get("all_tokens")
            described = {key: description[key] for key in keys}
            sample = cls(
                arrays["positions"],
                characteristics=chars,
                shares=shares,
                ids=ids,
                numbers=numbers,
                all_tokens=tokens,
                **described,
            )
            sample._check()
        except FileNotFoundError:
            raise UserError(f"Expected a sample at {path}, found no such file.") from None
        except Exception as error:  # zip files, compressed streams and arrays raise many kinds for damaged bytes
            reason = in_one_line(error) or type(error).__name__
            raise UserError(
                f"Expected a sample at {path} that Sample.save wrote (.npz), found another or a damaged file: {reason}"
            ) from None
        return sample

    def _check(self) -> None:
        """Check that the values belong together, because a file may have been edited."""
        check_one_of("kind", self.kind, ("sequences", "documents"))
        num_all = as_whole_number("num_all", self.num_all, max(len(self), 1))
        for name in ("numbers", "all_tokens"):
            if (values := getattr(self, name)) is not None:
                as_integers(name, values, below=2**62)
                if len(values) != num_all:
                    raise UserError(f"Expected {num_all} {name}, found {len(values)}.")
        below = num_all if self.numbers is None else int(self.numbers.max()) + 1
        positions = as_integers("positions", self.positions, below=below)
        if len(np.unique(positions)) < len(positions):
            raise UserError("Expected each position once, found a repeated one.")
        if self.numbers is not None and not np.isin(positions, self.numbers).all():
            raise UserError("Expected positions among the numbers of all, found another one.")
        if self.ids is not None and len(self.ids) != len(positions):
            raise UserError(f"Expected {len(positions)} ids, found {len(self.ids)}.")
        for family, share in self.shares.items():
            if not np.isfinite(share).all() or not 0 <= share.min() <= share.max() <= 1 + 1e-6:
                raise UserError(f"Expected shares of {family} in [0, 1], found others.")
            if not math.isfinite(self.random_tv[family]):
                raise UserError(f"Expected a finite random_tv of {family}, found {self.random_tv[family]}.")
        for family, names in self.names.items():
            if len(names) != len(self.shares[family]):
                raise UserError(f"Expected {len(self.shares[family])} names of {family}, found {len(names)}.")

    def write(self, path: str | Path, source: Source) -> None:
        """Write the sampled documents or sequences into a Parquet file, in the order of `positions`.

        Documents keep all their columns, so that `jax-diversity build --corpus.paths FILE --features-from DATASET`
        makes a small dataset of them. A sequence has its number, its tokens and, if the dataset has a tokenizer, its
        text.

        Args:
            path: a new file whose name ends in .parquet.
            source: the dataset, its folder or the Parquet file that the sample was taken from.

        Raises:
            UserError: the file exists; the source has no texts and no tokens.
        """
        from jax_diversity.lab.sampling.writing import write_parquet

        write_parquet(self.kind, self.positions, Path(path), source)

    def __str__(self) -> str:
        share = len(self) / self.num_all
        lines = [f"{len(self):,} of {self.num_all:,} {self.kind} ({share:.3g} of all)"]
        unit = "tokens" if self.kind == "sequences" else "documents"
        lines.append(f"TV: the share of the sample's {unit} that would have to change their group to match the whole")
        width = max(map(len, self.tv), default=0)
        lines += [
            f"  {family:<{width}}  {tv:.4f}   random samples {self.random_tv[family]:.4f}"
            for family, tv in self.tv.items()
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Sample({len(self):,} of {self.num_all:,} {self.kind})"

    def _display(self) -> Display:
        rows = [[family, f"{tv:.4f}", f"{self.random_tv[family]:.4f}"] for family, tv in self.tv.items()]
        sentence = f"Sample: {len(self):,} of {self.num_all:,} {self.kind}"
        header = ["distance from the whole (TV)", "this sample", "random samples"]
        return Display(sentence, [("", [header, *rows])])


@overload
def sample(
    source: Source,
    size: float,
    *,
    of: Kind | None = None,
    values: Mapping[str, Any] | None = None,
    num_samples: None = None,
    seed: int = 0,
    objective: Objective | str | None = None,
    advance: Advance = ignore,
) -> Sample: ...


@overload
def sample(
    source: Source,
    size: float,
    *,
    of: Kind | None = None,
    values: Mapping[str, Any] | None = None,
    num_samples: int,
    seed: int = 0,
    objective: Objective | str | None = None,
    advance: Advance = ignore,
) -> tuple[Sample, ...]: ...


def sample(
    source: Source,
    size: float,
    *,
    of: Kind | None = None,
    values: Mapping[str, Any] | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    objective: Objective | str | None = None,
    advance: Advance = ignore,
) -> Sample | tuple[Sample, ...]:
    """Choose sequences or documents that stand for all: for validation, proxy runs, labels, or to look at.

    The sample is the beginning of a balanced order (`jd.order`), so it holds nearly the mixture of all in every family.
    Its mean loss is nearer to the mean loss of all than that of a random sample of the same size; `jd.estimate` says
    how near.

    Args:
        source: token counts of sequences; a built dataset or its folder; or a Parquet file of documents with a column
            `text`. The families of a Parquet file are its other columns, the length of the text, and hashed words.
        size: the number of sequences or documents, or their share: a float above 0 and below 1.
        of: `sequences` (the default), or `documents` of a dataset that training reads. Documents count equally.
        values: name -> a finite number for each of all sequences or documents, such as losses of an earlier model,
            scores or lengths. Each becomes a family of 50 quantile bins that the sample balances, too.
        num_samples: number of disjoint samples of this size, consecutive stretches of one balanced order.
        seed: an integer >= 0; other seeds give other samples.
        objective: weights of the order's rule; None means `Objective()`.
        advance: called with the number of positions filled since its last call, for progress bars.

    Returns:
        One sample; with `num_samples` a tuple.

    Raises:
        UserError: a size of 0 or above all; values that are not finite, all equal or of another length; no such source.

    Example:
        >>> chosen = sample(chars, 1_000)
        >>> print(chosen)
        1,000 of 37,811 sequences ...
        >>> first, second = sample("dataset", 0.01, of="documents", num_samples=2)
    """
    population = find_population(source, of).with_values({} if values is None else values)
    number = _as_number(size, population)
    times = 1 if num_samples is None else as_whole_number("num_samples", num_samples, 1)
    if number * times > (number_of_all := population.characteristics.num_sequences):
        raise UserError(
            f"Expected at most all {number_of_all:,} {population.kind} in a sample, found {number:,}"
            f"{f' in each of {times} samples' if times > 1 else ''}; ask for fewer."
        )
    seed = as_whole_number("seed", seed)
    rows = balanced_prefix(
        population.characteristics, number * times, seed=seed, objective=objective, advance=advance
    ).reshape(times, number)
    info = {"method": "balance", "seed": seed}
    samples = tuple(_of_rows(population, part, {**info, "number": place}) for place, part in enumerate(rows))
    return samples[0] if num_samples is None else samples


def _as_number(size: Any, population: Population) -> int:
    """Return the number of a sample from a number or a share."""
    number_of_all = population.characteristics.num_sequences
    if isinstance(size, float | np.floating):
        if not 0 < size < 1:
            raise UserError(
                f"Expected a sample's size as a whole number >= 1 or as a share above 0 and below 1, found {size}."
            )
        if (number := round(float(size) * number_of_all)) < 1:
            raise UserError(
                f"Expected a share that is at least one of the {number_of_all:,} {population.kind}, found {size:g}; "
                "ask for more."
            )
        return number
    number = as_whole_number("a sample's size", size, 1)
    if number > number_of_all:
        raise UserError(
            f"Expected at most all {number_of_all:,} {population.kind} in a sample, found {quoted(size)}; ask for "
            "fewer."
        )
    return number


def _of_rows(population: Population, rows: Int64[np.ndarray, " chosen"], info: Mapping[str, Any]) -> Sample:
    """Make the sample of some rows of the population."""
    chars = population.characteristics
    shares = {family: chars.target_share(family) for family in chars.families}
    positions = rows.copy() if population.numbers is None else population.numbers[rows]
    tokens = chars.tokens
    return Sample(
        positions,
        population.kind,
        chars.num_sequences,
        # Without documents and copies, which only orderings use.
        Characteristics.from_counts(
            {family: matrix[rows] for family, matrix in chars.counts.items()},
            weights=chars.weights,
            sequence_length=chars.sequence_length,
        ),
        shares,
        _random_tv(chars, len(rows), shares),
        population.names,
        None if population.ids is None else population.ids(positions),
        population.numbers,
        None if np.ptp(tokens) == 0 else tokens,
        {**info, "num_numbers": population.num_numbers, "characteristics": chars.fingerprint},
    )


def _random_tv(
    chars: Characteristics, number: int, shares: Mapping[str, Float64[np.ndarray, " group"]]
) -> dict[str, float]:
    """Return the mean TV of some random samples in every family."""
    # A small and fixed number of draws; for a large sample a smaller one is drawn and the result is scaled.
    drawn = min(number, max(chars.num_sequences // 2, 1), 4096)
    scale = _random_scale(number, chars.num_sequences) / max(_random_scale(drawn, chars.num_sequences), 1e-12)
    rng = np.random.default_rng(0)
    rows = [rng.choice(chars.num_sequences, drawn, replace=False) for _ in range(_DRAWS)]
    values = {}
    for family, matrix in chars.counts.items():
        windows = np.array([np.asarray(matrix[window].sum(axis=0)).ravel() for window in rows])
        values[family] = min(float(total_variation(windows, shares[family]).mean()) * scale, 1.0)
    return values


def _random_scale(number: int, number_of_all: int) -> float:
    """Return the factor of the deviation of a random sample of `number` without replacement."""
    return float(np.sqrt(max(1 / number - 1 / number_of_all, 0.0)))
