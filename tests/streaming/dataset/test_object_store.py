"""The choice of the library that reads an address."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec.config
import fsspec.core
import pytest

from jax_diversity.foundation import object_store
from jax_diversity.foundation.object_store import ObjectStore

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without credentials, where s3fs is installed."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(fsspec.config, "conf", {})
    monkeypatch.setattr(object_store, "find_spec", lambda name: name)
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda address: ("fsspec", address))
    return monkeypatch


def reader(monkeypatch: pytest.MonkeyPatch, address: str = "s3://bucket/out") -> Any:
    """Return the options of the client of obstore; "fsspec" if fsspec reads the address."""

    def from_url(address: str, client_options: dict[str, Any], **_: Any) -> dict[str, Any]:
        return client_options

    library = SimpleNamespace(store=SimpleNamespace(from_url=from_url), get=None)
    monkeypatch.setitem(sys.modules, "obstore", library)  # pyright: ignore[reportArgumentType]
    return ObjectStore(address)._client[0]


@pytest.mark.parametrize("file", ["credentials", "config"])
def test_profiles_of_aws_are_read_by_fsspec(environment, tmp_path, file: str) -> None:
    assert reader(environment) != "fsspec"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / file).write_text("[default]\n")
    assert reader(environment) == "fsspec"
    assert reader(environment, "gs://bucket/out") != "fsspec"
    environment.setattr(object_store, "find_spec", lambda name: None)
    assert reader(environment) != "fsspec"  # s3fs is not installed
    environment.setattr(object_store, "find_spec", lambda name: name)
    for name, value in KEYS.items():
        environment.setenv(name, value)
    assert reader(environment) != "fsspec"


def test_a_named_file_of_credentials_and_settings_of_fsspec_count(environment, tmp_path) -> None:
    (tmp_path / "mine").touch()
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "mine"))
    assert reader(environment) == "fsspec"
    environment.delenv("AWS_SHARED_CREDENTIALS_FILE")
    assert reader(environment) != "fsspec"
    environment.setattr(fsspec.config, "conf", {"s3": {}})
    assert reader(environment) == "fsspec"


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_http_is_allowed_where_it_is_asked_for(environment, name: str) -> None:
    assert "allow_http" not in reader(environment)
    assert reader(environment, "http://127.0.0.1/out")["allow_http"]
    environment.setenv(name, "https://store")
    assert "allow_http" not in reader(environment)
    environment.setenv(name, "http://store")
    assert reader(environment)["allow_http"]
    assert "allow_http" not in reader(environment, "gs://bucket/out")
