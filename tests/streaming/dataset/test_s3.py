"""A dataset in a bucket of moto's server, which speaks the protocol of S3. Skipped where moto is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation import object_store
from jax_diversity.foundation.errors import UserError
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset

servers = pytest.importorskip("moto.server")
boto3: Any = pytest.importorskip("boto3")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("s3") / "out", layout="ordered")


@pytest.fixture(params=["obstore", "s3fs"])
def bucket(request, tiny, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The client of a bucket with the dataset; one library reads it."""
    pytest.importorskip(request.param)
    server = servers.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    host, port = server.get_host_and_port()
    values = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**values, "ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(object_store, "_FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(object_store, "_BY_OBSTORE", ("s3",) if request.param == "obstore" else ())
    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")
    for path in (path for path in tiny.root.rglob("*") if path.is_file() and path.name != ".lock"):
        client.put_object(Bucket="texts", Key=f"out/{path.relative_to(tiny.root)}", Body=path.read_bytes())
    yield client
    server.stop()


def read(where: Any, **choices: Any) -> np.ndarray:
    return np.concatenate([batch["inputs"] for batch in jd.stream_batches(where, global_batch_size=4, **choices)])


def test_streams_and_loaders_read_what_the_folder_has(bucket, tiny, tmp_path: Path) -> None:
    expected = read(tiny.root)
    for host in range(2):
        mine = {"num_hosts": 2, "host_index": host}
        np.testing.assert_array_equal(
            read("s3://texts/out", cache_folder=tmp_path, **mine), read(tiny.root, **mine), err_msg=str(host)
        )
    loader = jd.make_loader("s3://texts/out", ordering="balance", global_batch_size=4, cache_folder=tmp_path)
    np.testing.assert_array_equal(np.concatenate([batch["inputs"] for batch in loader]), expected)
    assert jd.open_dataset("s3://texts/out", cache_folder=tmp_path).verify() == []


def test_absent_and_changed_objects_are_one_sentence(bucket, tiny, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such object|found none"):
        jd.open_dataset("s3://texts/elsewhere", cache_folder=tmp_path)
    batches = iter(jd.stream_batches("s3://texts/out", global_batch_size=4, num_prefetch=0, cache_folder=tmp_path))
    next(batches)
    name = "out/records/train-00000-of-"
    [key] = [each["Key"] for each in bucket.list_objects_v2(Bucket="texts", Prefix=name)["Contents"]]
    content = bytearray((tiny.root / key.removeprefix("out/")).read_bytes())
    content[70:-70] = bytes(len(content) - 140)
    bucket.put_object(Bucket="texts", Key=key, Body=bytes(content))
    with pytest.raises(UserError, match=r"train-00000"):
        read("s3://texts/out", cache_folder=tmp_path)
    bucket.delete_object(Bucket="texts", Key=key)
    with pytest.raises(UserError, match=r"no such object"):
        read("s3://texts/out", cache_folder=tmp_path)
