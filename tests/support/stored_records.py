"""Records as ArrayRecord's own reader gives them."""

from __future__ import annotations

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

from jax_diversity.streaming.records.reading import RecordReader


def stored(reader: RecordReader, places: list[int]) -> list[bytes]:
    """Return the records at some places."""
    found = []
    for place in places:
        number = int(reader.files_of(np.array([place]))[0])
        record = place - sum(reader.counts[:number])
        library = array_record_module.ArrayRecordReader(str(reader.paths[number]))
        found += library.read(record, record + 1)
    return found
