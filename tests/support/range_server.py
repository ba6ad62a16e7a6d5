"""A small HTTP server on the loopback interface that gives ranges of files, slowly or with failures when told to.

    python -m tests.support.range_server ROOT [--delay SECONDS] [--slow SECONDS] [--fail-every N]

prints its address, and serves until its standard input ends. Every line there makes it print its counts as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Behaviour:
    """What the server does, and what it has done. Fields may be changed while it runs."""

    root: Path
    delay: float = 0.0
    slow: float = 0.0
    """Seconds of one request in 100."""
    fail_every: int = 0
    """Every so many requests of records fail, in turn by 503, a body that is cut, and a closed connection."""
    status: int = 0
    """A status for all requests of records, such as 403."""
    num_requests: int = 0
    num_bytes: int = 0
    """Bytes of records that were sent."""
    names: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def counts(self) -> dict[str, int]:
        with self.lock:
            return {"requests": self.num_requests, "bytes": self.num_bytes}


def handler(behaviour: Behaviour) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass

        def setup(self) -> None:
            super().setup()
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def do_GET(self) -> None:
            path = behaviour.root / self.path.lstrip("/")
            is_record = path.suffix == ".array_record"
            with behaviour.lock:
                behaviour.num_requests += is_record
                number = behaviour.num_requests
                behaviour.names.append(path.name)
            seconds = behaviour.slow if behaviour.slow and number % 100 == 50 else behaviour.delay
            if is_record and seconds:
                time.sleep(seconds)
            fails = is_record and behaviour.fail_every and number % behaviour.fail_every == 0
            kind = number // behaviour.fail_every % 3 if fails else None
            if kind == 2:
                self.close_connection = True
                return
            if kind == 0 or (is_record and behaviour.status):
                self.answer(503 if kind == 0 else behaviour.status)
                return
            if not path.is_file():
                self.answer(404)
                return
            content = path.read_bytes() if not is_record else b""
            size = path.stat().st_size
            tag = '"' + hashlib.sha256(f"{size} {path.stat().st_mtime_ns}".encode()).hexdigest()[:16] + '"'
            if (wanted := self.headers.get("If-Match")) and wanted != tag:
                self.answer(412)
                return
            start, stop, status = 0, size, 200
            if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                start, stop, status = int(found[1]), min(int(found[2]) + 1, size), 206
                if start >= size:
                    self.answer(416)
                    return
            with path.open("rb") as file:
                file.seek(start)
                content = file.read(stop - start)
            headers = {"ETag": tag, "Last-Modified": self.date_time_string(path.stat().st_mtime)}
            if status == 206:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            if kind == 1:
                self.close_connection = True
            self.answer(status, content, headers, cut=kind == 1)
            if is_record:
                with behaviour.lock:
                    behaviour.num_bytes += len(content) // 2 if kind == 1 else len(content)

        def answer(self, status: int, content: bytes = b"", headers: Any = (), *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth a traceback."""


@contextmanager
def serve(root: Path, **behaviour: Any) -> Iterator[tuple[str, Behaviour]]:
    """Serve a folder: the address, and the behaviour."""
    how = Behaviour(root, **behaviour)
    server = _Server(("127.0.0.1", 0), handler(how))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", how
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--fail-every", type=int, default=0)
    arguments = parser.parse_args()
    with serve(**vars(arguments)) as (address, behaviour):
        print(address, flush=True)
        for _ in sys.stdin:
            print(json.dumps(behaviour.counts()), flush=True)


if __name__ == "__main__":
    main()
