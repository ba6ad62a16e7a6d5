"""The schedule of a run beside a uniform shuffle of the same, as `measure` compares orderings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from jax_diversity.dataset.joining import comparable_characteristics
from jax_diversity.dataset.measuring import Chosen, choose
from jax_diversity.foundation.checks import one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.measures.balance import own_shares, target_shares
from jax_diversity.measures.comparison import SHUFFLE
from jax_diversity.measures.windows import usable_windows
from jax_diversity.schedule.stored import RunSchedule
from jax_diversity.schema import Characteristics, Schedule


def run_shares(characteristics: Characteristics, run: RunSchedule) -> dict[str, Float64[np.ndarray, " group"]]:
    """What a run is measured against: the shares of its only dataset, or of several in the amounts that it reads."""
    return target_shares(characteristics, own_shares(characteristics, run) if len(run.members) > 1 else {})


def choose_schedule(run: RunSchedule, windows: Sequence[int] = (), families: Sequence[str] = ()) -> Chosen:
    """What `measure` compares of a run.

    Of one dataset it is measured as that dataset's orderings are. Of several, `comparable_characteristics` count their
    sequences, targets are the run's own shares, and the shuffle is one of the run's positions: of the same mixture.

    Args:
        run: the schedule.
        windows: window sizes; none takes those of the first dataset's settings that fit twice into the run.
        families: those to measure; none takes all that the datasets balance and that mean the same in all of them.

    Raises:
        UserError: an unknown family, no family that is comparable.
    """
    schedule, name = run.to_schedule(), run.root.name
    if name == SHUFFLE:  # the reference's name
        name = f"{name} (the run)"
    if len(run.datasets) == 1:
        return choose(run.datasets[0], {name: schedule}, windows, families)
    chars = comparable_characteristics(run.datasets)
    for family in families:
        one_of("every family", family, chars.families)
    if families:
        kept = {family: chars.counts[family] for family in families}
        chars = replace(chars, counts=kept, weights=dict.fromkeys(kept, 1.0))
    if not len(schedule):
        raise UserError("Expected a schedule with positions to measure, found none.")
    shuffled = np.random.default_rng(0).permutation(schedule.indices)
    reference = Schedule(shuffled, schedule.num_sequences, {"method": SHUFFLE})
    if not windows:
        first = run.datasets[0]
        windows = usable_windows(first.settings["windows"], len(schedule), first.batch_size)
    return Chosen(chars, {name: schedule}, (SHUFFLE, reference), tuple(windows), targets=run_shares(chars, run))
