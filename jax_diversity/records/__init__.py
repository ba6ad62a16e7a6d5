"""Sequences as stored bytes: ArrayRecord files whose every record holds all that one sequence needs.

`write_records` gathers sequences from the tokens of their segments, `RecordReader` reads them back by place and
decodes whole batches into the arrays that training takes.
"""

from jax_diversity.records.codec import Bodies, CorruptRecordError, OtherBuildError, document_indices, encode
from jax_diversity.records.decoding import FIELDS, decode, segment_lengths
from jax_diversity.records.reading import RecordReader
from jax_diversity.records.writing import file_counts, record_paths, write_records

__all__ = [
    "FIELDS",
    "Bodies",
    "CorruptRecordError",
    "OtherBuildError",
    "RecordReader",
    "decode",
    "document_indices",
    "encode",
    "file_counts",
    "record_paths",
    "segment_lengths",
    "write_records",
]
