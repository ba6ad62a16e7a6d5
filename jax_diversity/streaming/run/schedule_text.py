"""Format the output of the command `schedule`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.tables import end_of, plain_table, printed, wrapped
from jax_diversity.foundation.terminal import clean
from jax_diversity.streaming.run.content import Member, Version

_VISIBLE = 0.005
"""The smallest difference of two shares that a reader should see: only chats and padding make one."""


def schedule_table(
    names: Sequence[str],
    members: Sequence[Member],
    versions: Sequence[Version],
    num_positions: Int64[np.ndarray, " dataset"],
) -> str:
    """Tables of the datasets of a run, their shares of positions and of targets, and the versions of the run.

    If a dataset was checked against files of evaluation texts, these files are listed for every dataset.

    Args:
        names: the names of the datasets, as in the weights of a run.
        members: the datasets.
        versions: all versions of the run.
        num_positions: the number of positions of every dataset.
    """
    of_targets = _target_shares(members, num_positions)
    columns = ("dataset", "sequences", "positions", "share", *["loss tokens"] * bool(of_targets), "epochs")
    datasets = plain_table(*columns, numbers=("sequences", "positions"))
    for number, (name, member, count) in enumerate(zip(names, members, num_positions.tolist(), strict=True)):
        epochs = count / member.num_sequences if member.num_sequences else 0.0
        shares = [count / max(int(num_positions.sum()), 1), *of_targets[number : number + 1]]
        cells = (f"{member.num_sequences:,}", f"{count:,}", *(f"{share:.1%}" for share in shares), f"{epochs:.2f}")
        datasets.add_row(end_of(clean(name), 36), *cells)
    changes = plain_table("version", "positions", "change", numbers=("version", "positions"))
    for number, version in enumerate(versions, start=1):
        length = sum(len(piece) for piece in version.slices if not piece.skipped)
        changes.add_row(str(number), f"{length:,}", clean(version.change))
    words = 'The column "loss tokens" has the shares of tokens that count towards the loss with loss_mask="answers".'
    parts = ["\n".join([printed(datasets), *[wrapped(words)] * bool(of_targets)]), printed(changes)]
    if any(member.checked_against for member in members):
        lists = (
            f"{name}: {'; '.join(member.checked_against) or 'none'}"
            for name, member in zip(names, members, strict=True)
        )
        words = "Evaluation texts that the datasets were checked against:"
        parts.insert(1, "\n".join([words, *(wrapped(clean(text)) for text in lists)]))
    return "\n\n".join(parts)


def _target_shares(members: Sequence[Member], num_positions: Int64[np.ndarray, " dataset"]) -> list[float]:
    """Return each dataset's share of the run's targets, by its mean of a sequence; empty if it is that of positions."""
    means = [member.num_loss_tokens / max(member.num_sequences, 1) for member in members]
    targets = num_positions * np.array(means)
    shares = targets / max(targets.sum(), 1)
    of_positions = num_positions / max(num_positions.sum(), 1)
    return shares.tolist() if np.abs(shares - of_positions).max(initial=0) >= _VISIBLE else []
