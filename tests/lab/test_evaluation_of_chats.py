"""Losses of chats by the role and the number of the turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from jax_diversity.schema.documents import ROLES
from tests.support.chats import config_of, packed, write_corpus


def test_losses_by_role_and_turn(tmp_path: Path) -> None:
    """Against sums of one token at a time; documents that are not chats are a group of their own."""
    write_corpus(tmp_path)
    paths, options = ("chats.jsonl", "python-environment"), {"validation_fraction": 0.2}
    packed(tmp_path, paths, **options)
    for stage in ("characterize", "write"):
        Build(config_of(tmp_path, paths, **options)).run_stage(stage)
    dataset = jd.open_dataset(tmp_path / "out")
    segments, turns = dataset.validation_segments, dataset.tokens.turns
    loader = jd.make_loader(dataset, split="validation", global_batch_size=4, loss_mask="all")
    # The loss of a target is its own id: each token can then be found again.
    found = jd.Evaluator(loader, by=("role", "turn", "answer", "source"))(
        lambda batch: batch["targets"].astype(np.float32)
    )
    expected: dict[tuple[str, str], list[float]] = {}
    for row in range(len(segments)):
        document, offset = int(segments.document_index[row]), int(segments.document_offset[row])
        own = np.flatnonzero(turns.document_index == document)
        for place in range(offset + 1, offset + int(segments.length[row])):
            at = int(np.searchsorted(turns.offset[own], place, "right")) - 1
            groups = (ROLES[turns.role[own[at]]], str(at + 1)) if len(own) else ("no chat", "no chat")
            roles = [ROLES[role] for role in turns.role[own[: at + 1]]]
            answer = str(roles.count("assistant")) if groups[0] == "assistant" else "no answer"
            for family, group in zip(("role", "turn", "answer"), (*groups, answer), strict=True):
                expected.setdefault((family, group), []).append(float(dataset.tokens.document(document)[place]))
    assert {
        ("role", "user"),
        ("role", "assistant"),
        ("role", "no chat"),
        ("turn", "2"),
        ("answer", "2"),
    } <= expected.keys()
    for family in ("role", "turn", "answer"):
        by_group = found.by_group(family)
        assert {(family, group) for group in by_group} == {key for key in expected if key[0] == family}
        for group, mean in by_group.items():
            assert mean.num_targets == len(expected[family, group])
            assert mean.plain == pytest.approx(np.mean(expected[family, group]))
        assert not {"no chat", "no answer"} & {*found.without_documents(family)}
    assert "role, without targets: system, tool" in str(found)
    alone = jd.Evaluator(loader, by="source")(lambda batch: batch["targets"].astype(np.float32))
    assert found.loss.error == pytest.approx(alone.loss.error)
    assert found.by_group("source").keys() == alone.by_group("source").keys()
    with pytest.raises(jd.UserError, match=r"Expected a family among .*source, .*role, turn, answer, found 'turns'"):
        jd.Evaluator(loader, by="turns")
