"""The interface of all ordering methods: from characteristics, seed, objective and options they make an ordering."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import TokenCounts
from jax_diversity.counts.characteristics import MADE_BY
from jax_diversity.counts.targets import Targets, read_targets
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import as_whole_number, check_function, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder
from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.warned import warn
from jax_diversity.ordering.features import check_index_range
from jax_diversity.ordering.objective import Objective, as_objective
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.ordering.shortages import Shortage, UnmetTargets, Unreached, shortages, unreached
from jax_diversity.schema import Ordering


@runtime_checkable
class Method(Protocol):
    """A pure function from characteristics to a permutation; the same arguments give the same result.

    A method has only the parameters of this list that it uses. A value for another parameter of the list gives an
    error:

    - `characteristics` or `counts`, the first parameter: a method has `characteristics` if it needs all counts in
      memory. It has `counts` (`TokenCounts`, which may be stored) if it reads them in chunks, or not at all.
    - `seed`: for random numbers, 0 by default.
    - `objective`: the weights of the method's rule; it has no default.
    - `plan`: targets and consumed sequences. The method then returns the remaining sequences only. With None, the
      targets are the corpus's shares from the first position on. A method with `counts` also takes the plan of several
      chunks (`chunks.ChunkedPlan`).
    - `checkpoint`: the file for the state of a run, so that a run can be interrupted and continued.
    - `mesh`: devices that share the work; the result is the same as on one device. If a mesh has devices of several
      hosts, all its processes call the method with the same arguments, and each process gets the whole result. The
      method raises a ValueError if `mesh` is not a mesh of devices, or if it has no device of this process.

    `plan`, `checkpoint` and `mesh` have the default None. All other keyword parameters are the method's options; each
    has a default.
    """

    def __call__(self, counts: Any, /, *, advance: Advance = ignore) -> Int64[np.ndarray, " sequence"]:
        """Return the sequence index at every position.

        Args:
            counts: token counts.
            advance: called with the number of positions filled since its last call.
        """
        ...


METHODS = Methods(
    "ordering method",
    "jax_diversity.ordering",
    {
        "balance": "balance",
        "buffer_shuffle": "literature.buffers",
        "cluster_sorted": "literature.baselines",
        "corpus_order": "literature.baselines",
        "document_spacing": "literature.spacing",
        "greedy": "greedy",
        "greedy_block_shuffle": "literature.block_shuffle",
        "greedy_pool": "pool",
        "sequence_spacing": "literature.spacing",
        "stratified": "literature.baselines",
        "uniform_shuffle": "literature.baselines",
        "window_shuffle": "literature.buffers",
    },
    contract=frozenset({"characteristics", "counts", "seed", "objective", "advance", "plan", "checkpoint"}),
)
"""Name -> module in this package. For a new method, write a function of this name in a module, and add a line here."""
_CHECKPOINT = "checkpoint"
PLANNING = "follow targets or continue from earlier sequences"
"""The ability of methods with the parameter `plan`."""


def check_uses(method: str, *, seed: Any = 0, objective: Any = None, targets: Any = None) -> None:
    """Raise an error for a seed other than 0, an objective or targets if the method does not use them."""
    if as_whole_number("seed", seed):
        METHODS.check_takes(method, "seed", "use a seed")
    if objective is not None:
        METHODS.check_takes(method, "objective", "use an objective")
    if targets is not None:
        METHODS.check_takes(method, "plan", PLANNING)


def order(
    counts: TokenCounts,
    method: str = "balance",
    *,
    seed: int = 0,
    objective: Objective | str | None = None,
    targets: Targets | Mapping[str, Any] | None = None,
    consumed: Any = None,
    previous: Any = None,
    folder: str | Path | None = None,
    advance: Advance = ignore,
    **options: Any,
) -> Ordering:
    """Compute an ordering of the sequences.

    Args:
        counts: token counts of every sequence per family, in memory or stored. With `jd.order`, also a built dataset or
            its folder or address, or files of counts (`Characteristics.save`). Counts of several chunks (more than a
            million sequences, or 33 million counts) are read in chunks by the method `balance`.
        method: a name of `METHODS`: `balance` (linear time, the default), `greedy` (exact, quadratic
            time), `greedy_pool` (over a stream), or a method of the literature.
        seed: an integer >= 0, for methods that use random numbers.
        objective: weights of the method's rule, or the name of a published objective: "f1", "f2" or "f3". It is only
            for methods that have an objective; None means `Objective()`, with the batch size of the characteristics, if
            they have one, as its window.
        targets: target shares that replace the corpus's own shares. Either `Targets` (phases over the positions), the
            `info["targets"]` of an ordering, or a mapping family -> shares, which holds from the first position after
            the consumed sequences.
        consumed: the sequences that training has already used, in their order. They stay first. The other sequences are
            ordered so that they correct the deviation of the consumed ones. The phases of `Targets` start at position 0
            and also apply to consumed sequences: a group that had too many tokens gets fewer from now on.
        previous: the ordering of the previous epoch. Sequences of one document, and copies, are then as far apart
            at the boundary of the two epochs as within one epoch.
        folder: folder for the state of a long run, made if it is absent: after an interrupt or a kill, the same call
            continues from it. At the end the state is removed, and the folder if this call made it. Counts of several
            chunks need about 60 bytes a sequence there; without a folder, they use a temporary one.
        advance: called with the number of positions filled since its last call, for progress bars.
        options: the method's own options, such as `pool_size`; `jax-diversity order --help` lists them. The default of
            a `block_size` is the batch size of the characteristics, if they have one.

    Returns:
        A bijection (empty if there are no sequences). Its `info` describes how it was made: the seed, and the objective
        with its windows, if the method uses them, and all options with their values. With `consumed`, `replanned_at` is
        the first position after the consumed sequences.

    Raises:
        ValueError: unknown method or option; a method that does not use the given seed, objective, targets, consumed
            sequences, folder or norms; negative seed; an objective or targets that do not fit the characteristics;
            consumed sequences that do not exist or are repeated; a folder with the state of another run; counts that
            changed since an interrupted call; a full disk; more sequences or non-zeros
            than 32-bit indices can represent.

    Warns:
        UserWarning: a sequence has more than 65,536 tokens, so that sums are rounded (`greedy`, `greedy_pool`,
            `balance`, `sequence_spacing`).
        UnmetTargets: targets need more tokens of a group than the corpus has, and the warning says when they are used
            up; or a share of a tenth of the order is far from its target.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> order(chars, "greedy").indices.tolist()
        [0, 2, 1, 3]
        >>> order(chars, "greedy", consumed=[1]).indices.tolist()
        [1, 2, 0, 3]
    """
    check_type("characteristics", counts, TokenCounts, MADE_BY)
    if isinstance(method, str) and method in Objective.BASES:
        raise UserError(
            f"Expected a method, found the published objective {method!r}; give method='greedy' with "
            f"objective={method!r}."
        )
    run = METHODS.find(method)
    if within := {field.name for field in dataclasses.fields(Objective)}.intersection(options):
        raise UserError(f"Expected {min(within)} in an objective; give objective=jd.Objective({min(within)}=...).")
    METHODS.check_options(method, options)
    objective = as_objective(objective)
    check_function("advance", advance)
    seed = as_whole_number("seed", seed)
    check_uses(method, seed=seed, objective=objective, targets=targets)
    size = counts.batch_size
    if size is not None and size <= counts.num_sequences:
        objective = Objective(windows=(size,)) if objective is None else objective
        options = {"block_size": size, **options} if METHODS.takes(method, "block_size") else options
    objective = Objective() if objective is None else objective
    objective.check(method, counts.families)
    in_memory = None
    if METHODS.takes(method, "characteristics"):
        check_index_range(counts.num_sequences, 0)
        counts = in_memory = counts.rows(0, counts.num_sequences)
    shared = {"seed": seed, "objective": objective}
    used = {name: value for name, value in shared.items() if METHODS.takes(method, name)}
    info: dict[str, Any] = {
        "method": method,
        **used,
        **({"objective": dataclasses.asdict(objective)} if "objective" in used else {}),
        # `mesh` is left out, because devices do not change the result. NumPy numbers become Python numbers, so that
        # `info` is JSON.
        "options": {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in {**METHODS.options(method), **options}.items()
            if name != "mesh"
        },
    }
    # We hash the options as text: the method has not checked their types yet, and not every type is JSON.
    identity = {**info, "options": repr(sorted(info["options"].items()))}
    if isinstance(targets, Mapping):
        targets = read_targets(targets, counts)
    is_planned = targets is not None or consumed is not None or previous is not None
    if is_planned:
        METHODS.check_takes(method, "plan", PLANNING)
    state = None
    if folder is not None:
        check_type("folder", folder, str | Path, "the path of a folder")
        METHODS.check_takes(method, "checkpoint", "keep its state in a folder")
        state = Path(folder)
    with contextlib.ExitStack() as stack:
        if state is not None:
            if not state.exists():
                stack.callback(_remove_if_empty, state)  # also after an error
            make_folder(state)
        arguments, plan, lacking = {**used, **options}, None, []
        if METHODS.takes(method, "plan"):
            needs = (objective, targets, consumed, previous)
            if in_memory is None:
                from jax_diversity.ordering.chunks import planned  # loads JAX

                mesh = options.get("mesh")
                chunked = planned(counts, *needs, seed=seed, identity=identity, folder=state, mesh=mesh)
                plan = stack.enter_context(chunked)
            else:
                plan = Plan.build(in_memory, *needs)
            arguments["plan"] = plan
        if plan is not None or in_memory is not None:  # other methods do not read the counts
            info["characteristics"] = counts.fingerprint if plan is None else plan.counts_fingerprint(counts)
        if plan is not None and is_planned:
            info["plan"] = plan.fingerprint
            if targets is not None:
                followed = Targets.of(targets)
                info["targets"] = plan.plain_targets(tuple(followed.shares))
                if lacking := shortages(plan, followed):
                    warn(lacking[0].sentence(_name_of(lacking[0], counts), len(lacking) - 1), UnmetTargets)
        if state is not None:
            mark = fingerprint({**info, "options": identity["options"]})
            arguments["checkpoint"] = Checkpoint(state / _CHECKPOINT, mark)
        indices = run(counts, advance=advance, **arguments)
    if objective.document_weight and METHODS.takes(method, "plan"):  # a method that keeps documents apart
        indices = in_turn(indices, counts)
    if plan is None or consumed is None:
        # After consumed sequences, the order also corrects their deviation.
        if targets is not None and not lacking and (far := unreached(counts, Targets.of(targets), indices)):
            warn(far.sentence(_name_of(far, counts)), UnmetTargets)
        return Ordering(indices, info)
    # `Ordering` checks that both parts together are a bijection.
    return Ordering(np.concatenate([plan.consumed, indices]), {**info, "replanned_at": len(plan.consumed)})


def _name_of(group: Shortage | Unreached, counts: TokenCounts) -> str:
    names = counts.names.get(group.family)
    return str(group.group) if names is None else names[group.group]


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def in_turn(indices: Int64[np.ndarray, " position"], counts: TokenCounts) -> Int64[np.ndarray, " position"]:
    """Sort a document's sequences among their own positions by turn; sequences without a turn stay.

    A turn is a number that gives the place of a sequence among its document's sequences (`Characteristics.turns`).
    """
    if (of_documents := counts.turns_of_documents()) is None:
        return indices
    documents, turns = of_documents
    positions = np.flatnonzero((turns[indices] >= 0) & (documents[indices] >= 0))
    sequences = indices[positions]
    arranged = indices.copy()
    # Positions are sorted by document and then by position, sequences by document and then by turn.
    arranged[positions[np.argsort(documents[sequences], kind="stable")]] = sequences[
        np.lexsort((turns[sequences], documents[sequences]))
    ]
    return arranged
