"""MaxText's way of reading an export."""

from __future__ import annotations

import glob
import json
from pathlib import Path

from array_record.python import array_record_data_source


def parse_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not data[place - 1] & 0x80:
            return value, place


def parse_fields(data: bytes) -> dict[int, list[bytes]]:
    fields: dict[int, list[bytes]] = {}
    place = 0
    while place < len(data):
        tag, place = parse_varint(data, place)
        assert tag & 7 == 2, "length-delimited fields alone are expected"
        size, place = parse_varint(data, place)
        assert place + size <= len(data)
        fields.setdefault(tag >> 3, []).append(data[place : place + size])
        place += size
    return fields


def parse_example(data: bytes) -> dict[str, list[int]]:
    """A slow parser of `tf.train.Example` with int64 features, straight from the message definitions."""
    features = {}
    for entry in parse_fields(parse_fields(data)[1][0])[1]:
        key, value = (parse_fields(entry)[number][0] for number in (1, 2))
        packed = parse_fields(parse_fields(value)[3][0]).get(1, [b""])[0]
        values, place = [], 0
        while place < len(packed):
            number, place = parse_varint(packed, place)
            values.append(number)
        features[key.decode()] = values
    return features


def read_as_maxtext(settings: Path) -> list[list[int]]:
    """The records as MaxText's Grain pipeline gets them: its own globbing, Grain's source, one column."""
    lines = [line for line in settings.read_text().splitlines() if not line.startswith("#")]
    config = dict(line.split(": ", 1) for line in lines)
    assert config["enable_data_shuffling"] == config["tokenize_train_data"] == config["packing"] == "false"
    column = config["train_data_columns"].strip("[']")
    files = sorted(glob.glob(json.loads(config["grain_train_files"])))
    with array_record_data_source.ArrayRecordDataSource(files) as source:
        return [parse_example(source[index])[column] for index in range(len(source))]
