"""Arrays that a device makes from stored rows equal the host's arrays, bit for bit."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.streaming.records.codec import Bodies, check_bodies, encode
from jax_diversity.streaming.records.decoding import FIELDS, decode, stored_rows
from jax_diversity.streaming.records.device_decoding import expand

NUM_ROWS = 3


def bodies_of(runs: list[list[tuple[int, int]]], length: int, dtype: str, seed: int, has_loss_mask: bool) -> Bodies:
    """Records of rows of (padding, tokens): padding comes before the segment; what is left of a row is padding."""
    rng, places, lengths, numbers = np.random.default_rng(seed), [], [], []
    for row in runs:
        at, number = 0, 0
        for padding, size in row:
            if (size := min(size, length - at - padding)) > 0:
                places.append(at + padding)
                lengths.append(size)
                at, number = at + padding + size, number + 1
        numbers.append(number)
    total = sum(lengths)
    matrix = encode(
        sequence_indices=np.arange(len(runs)),
        num_segments=np.array(numbers),
        position=np.array(places, np.int64),
        length=np.array(lengths, np.int64),
        tokens=rng.integers(0, 65_500, total).astype(dtype),
        sequence_length=length,
        loss_mask=rng.random(total) < 0.5 if has_loss_mask else None,
    )
    return check_bodies(matrix, length, np.dtype(dtype), has_loss_mask=has_loss_mask)


ROW = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2]), st.integers(1, 9)), max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    runs=st.lists(ROW, min_size=NUM_ROWS, max_size=NUM_ROWS),
    overlap=st.sampled_from([0, 1, 3]),
    form=st.sampled_from([("uint16", "uint16", 8), ("uint16", "int32", 7), ("int32", "int32", 7)]),
    seed=st.integers(0, 3),
    merge_segments=st.booleans(),
    mask=st.sampled_from([(False, False), (False, True), (True, True)]),
)
def test_a_device_makes_the_arrays_of_the_host(runs, overlap, form, seed, merge_segments, mask):
    (stored, wanted, width), (has_loss_mask, masks) = form, mask
    bodies = bodies_of(runs, width + overlap, stored, seed, has_loss_mask)
    rows = jax.device_put(stored_rows(bodies, width, np.dtype(wanted), masks))
    assert rows["tokens"].dtype == wanted
    expected = decode(bodies, merge_segments=merge_segments, loss_mask="answers" if masks else "all", width=width)
    found = expand(**rows, merge_segments=merge_segments)
    assert list(found) == list(expected) == list(FIELDS)
    for field in FIELDS:
        assert found[field].dtype == np.int32
        np.testing.assert_array_equal(found[field], expected[field], err_msg=field)


def test_rows_of_zeros_stay_empty() -> None:
    bodies = bodies_of([[(0, 8)]] * NUM_ROWS, 8, "uint16", 0, True)
    rows = jax.device_put(stored_rows(bodies, 8, np.dtype("uint16"), True))
    found = expand(**{field: 0 * part for field, part in rows.items()})
    assert not any(array.any() for array in found.values())


def test_fields_types_and_columns_are_chosen() -> None:
    bodies = bodies_of([[(0, 3), (1, 9)]] * NUM_ROWS, 8, "int32", 0, False)
    rows = jax.device_put(stored_rows(bodies, 8, np.dtype("int32"), False))
    fields = ("targets", "inputs_position")
    found = expand(**rows, fields=fields, dtype="float32", columns=(2, 6))
    assert tuple(found) == fields
    for field in fields:
        assert found[field].dtype == np.float32
        np.testing.assert_array_equal(found[field], decode(bodies)[field][:, 2:6])


def test_it_can_be_compiled_for_tpus() -> None:
    bodies = bodies_of([[(0, 3), (1, 9)]] * NUM_ROWS, 8, "uint16", 0, True)
    rows = jax.device_put(stored_rows(bodies, 8, np.dtype("uint16"), True))
    assert jax.export.export(jax.jit(expand), platforms=["tpu", "cuda"])(**rows).platforms == ("tpu", "cuda")


def test_positions_of_inputs_and_targets_are_one_read_only_array() -> None:
    bodies = bodies_of([[(0, 8)]] * NUM_ROWS, 9, "uint16", 0, False)
    for width in (8, 9):
        batch = decode(bodies, width=width)
        assert batch["inputs_position"] is batch["targets_position"]
        with pytest.raises(ValueError, match="read-only"):
            batch["inputs_position"][0] = 1
        batch["inputs"][0] = 1  # all others are writable
