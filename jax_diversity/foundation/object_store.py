"""Read the objects of a store, with obstore if it is installed, otherwise with fsspec.

obstore needs no other library, and it refuses an object that was replaced after its first read (`If-Match`). fsspec
supports more stores, and reads settings from `~/.config/fsspec`. If there are settings for a protocol, fsspec reads it.
The same holds for `s3` if the credentials are in the files of AWS, which obstore does not read.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.artifacts import PIECE_BYTES
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.libraries import missing_driver

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_PIECES_AT_A_TIME = 4
_BY_OBSTORE = ("gs", "s3", "az", "abfs", "abfss", "http", "https")
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_TRIES = 6
_FIRST_WAIT_SECONDS = 0.1  # doubled before each further try: at most 3.1 seconds in total
_REQUEST_SECONDS = 30  # the time after which a request without an answer has failed


def sleep(seconds: float) -> bool:
    """Wait before a further try of work that nobody ends."""
    time.sleep(seconds)
    return False


def is_address(path: str | Path) -> bool:
    """Whether this is an address on an object store rather than a local path."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None and not path.startswith("file://")


class ObjectStore:
    """The objects below an address. Any number of threads may read; a pickle contains only the address."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._tags: dict[str, str] = {}  # the ETag of each object at its first read
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self.address,)

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes | memoryview:
        """Return the bytes of an object, from `start` to `stop` or all.

        Raises the exceptions of the library; `describe` turns them into a sentence.
        """
        client, path, library = self._opened()
        if library is None:
            return bytes(client.cat_file(f"{path}/{name}", **({} if stop is None else {"start": start, "end": stop})))
        options: dict[str, Any] = {} if stop is None else {"range": (start, stop)}
        if (tag := self._tags.get(name)) is not None:
            options["if_match"] = tag
        response = library.get(client, name, options=options)
        content = memoryview(response.bytes())
        if tag is None and stop is not None and (first := response.meta.get("e_tag")) and not first.startswith("W/"):
            with self._lock:
                self._tags.setdefault(name, first)
        return content

    def read_surely(
        self,
        name: str,
        start: int | None = None,
        stop: int | None = None,
        wait: Callable[[float], bool] = sleep,
        what: str = "",
    ) -> memoryview | bytes:
        """Return the bytes of an object as `read` does; failures that may pass are tried again, up to five times.

        Args:
            name: the name of the object.
            start: the first byte.
            stop: the byte after the last; None for the whole object.
            wait: waits for some seconds before a further try; True ends the work with an `InterruptedError`.
            what: the name of the bytes in errors.

        Raises:
            UserError: the object does not exist, may not be read or was replaced, or all tries failed.
        """
        size = None if stop is None else stop - (start or 0)
        seconds = _FIRST_WAIT_SECONDS
        for number in range(_TRIES):
            try:
                content = self.read(name, start, stop)
                if size not in (None, len(content)):
                    raise EOFError(f"{len(content)} of {size} bytes came; if this stays so, upload the object again")
                return content
            except Exception as error:
                lasting = lasting_fault(error)
                if lasting or number == _TRIES - 1:
                    tries = "" if lasting else f" (tried {_TRIES} times)"
                    what = what or f"{size} bytes from byte {start} on"
                    raise describe(error, f"{self.address}/{name}", what, tries) from None
            # Hosts that failed together do not try again together.
            if wait(seconds * float(np.random.default_rng().uniform(0.5, 1.0))):
                raise InterruptedError
            seconds *= 2
        raise AssertionError

    def pieces(self, name: str, size: int, wait: Callable[[float], bool] = sleep) -> Iterator[bytes]:
        """Yield the bytes of an object of `size` bytes in order; the next pieces are read while a piece is used."""
        starts = deque(range(0, size, PIECE_BYTES))
        coming: deque[Future[Any]] = deque()  # in the object's order: a hash is computed piece by piece
        # One connection rarely uses the whole bandwidth. A few parallel pieces use it, with bounded memory.
        with ThreadPoolExecutor(_PIECES_AT_A_TIME, thread_name_prefix="jax-diversity-fetch") as threads:
            try:
                while starts or coming:
                    while starts and len(coming) < _PIECES_AT_A_TIME:
                        start = starts.popleft()
                        stop = min(start + PIECE_BYTES, size)
                        coming.append(threads.submit(self.read_surely, name, start, stop, wait))
                    yield bytes(coming.popleft().result())
            finally:  # also runs if the reader stops early: pieces whose download has not begun are not fetched
                threads.shutdown(wait=False, cancel_futures=True)

    def _opened(self) -> tuple[Any, str, Any]:
        """See `_client`; raises if this process is a fork of one that has read with obstore."""
        opened = self._client
        if opened[2] is not None:
            if _PROCESSES and os.getpid() not in _PROCESSES:
                raise UserError(
                    f"Expected {self.address} to be read by the process that read from an object store first, found a "
                    'fork of it; start its processes by the method "spawn", for example '
                    'DataLoader(..., multiprocessing_context="spawn").'
                )
            _PROCESSES.add(os.getpid())
        return opened

    @cached_property
    def _client(self) -> tuple[Any, str, Any]:
        """The library's object for the store, the path below it, and the module obstore; None with fsspec."""
        import fsspec.config

        protocol = self.address.partition("://")[0]
        has_settings = protocol in fsspec.config.conf or (protocol == "s3" and _has_aws_profile())
        if protocol in _BY_OBSTORE and not has_settings:
            try:
                library: Any = import_module("obstore")
                options: dict[str, Any] = {"timeout": f"{_REQUEST_SECONDS}s"}
                # Beside other options obstore ignores AWS_ALLOW_HTTP. An endpoint's address shows what is wanted.
                endpoints = [os.environ.get(name, "") for name in _ENDPOINTS] if protocol == "s3" else []
                if protocol == "http" or any(endpoint.startswith("http://") for endpoint in endpoints):
                    options["allow_http"] = True
                # We try again ourselves, because a try must end when a stream is closed.
                retries = {"max_retries": 0}
                store = library.store.from_url(self.address, client_options=options, retry_config=retries)
                _STORES.add(self)
                return store, "", library
            except ImportError:
                pass
        # In a chain such as simplecache::gs://bucket the last protocol names the store.
        protocol = protocol.rpartition("::")[2]
        try:
            filesystem, path = fsspec.core.url_to_fs(self.address)
        except ImportError as error:
            raise missing_driver(protocol, error) from None
        except ValueError as error:
            raise UserError(f"Expected an address that fsspec supports, found {self.address}: {error}.") from None
        return filesystem, path.rstrip("/"), None


def _has_aws_profile() -> bool:
    """Return whether s3fs finds credentials in the files of AWS, and obstore finds none in the environment."""
    if {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"} & os.environ.keys() or find_spec("s3fs") is None:
        return False
    files = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
    return any(Path(os.environ.get(name, path)).expanduser().is_file() for name, path in files.items())


# A forked process has none of obstore's threads, so that a request would wait for ever. It shares the connections of
# its parent: if it freed them, requests of the parent would fail.
_PROCESSES: set[int] = set()  # this process after its first request, and the processes from which it was forked
_STORES: weakref.WeakSet[ObjectStore] = weakref.WeakSet()
_INHERITED: list[ObjectStore] = []  # never freed
os.register_at_fork(after_in_child=lambda: _INHERITED.extend(_STORES))


def lasting_fault(error: Exception) -> bool:
    """Return whether a further try cannot succeed: the object is absent, forbidden or replaced."""
    lasting = (UserError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
    return isinstance(error, (*lasting, NotImplementedError)) or type(error).__name__ in _LASTING


_LASTING = (
    "NotFoundError",
    "PermissionDeniedError",
    "UnauthenticatedError",
    "PreconditionError",
    "InvalidPathError",
    "NotSupportedError",
)
"""Names of obstore's exceptions."""


def describe(error: Exception, where: str, what: str, tries: str = "") -> UserError:
    """Turn an exception of a library into a `UserError` of one sentence."""
    if isinstance(error, UserError):
        return error
    name = type(error).__name__
    if name == "PreconditionError":
        return UserError(
            f"Expected {where} as it was when this process first read it, found that another object replaced it (its "
            "ETag changed); open the dataset again, and restart the programs that read it."
        )
    if name == "NotFoundError" or isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return UserError(f"Expected {what} at {where}, found no such object; check the address, or upload it again.")
    if name in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(error, PermissionError):
        return UserError(
            f"Expected {what} at {where}, but the store refused to give it to this user; set the credentials of the "
            "store (docs/loading.md, Object stores), or ask its owner for the right to read."
        )
    return UserError(f"Expected {what} at {where}, but it could not be read{tries}: {_reason(error)}.")


def _reason(error: Exception) -> str:
    # After the first line, obstore's messages continue with a Rust representation.
    return " ".join(str(error).split("\n\n")[0].split()) or repr(error)
