"""Records of a crawl, as crawlers write them."""

from __future__ import annotations

import gzip


def compressed(content: bytes) -> bytes:
    """The same bytes at any time: names of tests are made of them."""
    return gzip.compress(content, mtime=0)


def record(number: int, body: bytes, content_type: str = "text/html", kind: str = "response", more: str = "") -> bytes:
    """A record as crawlers write it, compressed on its own."""
    head = f"WARC-Type: {kind}\r\nWARC-Target-URI: http://example.org/{number}\r\nWARC-Date: 2024-05-01T00:00:00Z\r\n"
    if kind == "response":
        body = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{more}\r\n".encode() + body
        content_type = "application/http; msgtype=response"
    head += f"WARC-Record-ID: <urn:uuid:{number}>\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return compressed(f"WARC/1.0\r\n{head}\r\n".encode() + body + b"\r\n\r\n")
