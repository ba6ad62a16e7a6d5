"""Posts.xml of Stack Exchange: a question with its answers is one document.

Answers may appear anywhere after their question. Posts are sorted by question, then by score, with an external sort:
runs of 64 MB are sorted, written to a temporary file and merged. The dump is read once, in nearly constant memory. Its
texts are copied to disk once, into the folder that TMPDIR names. SQLite's sort gives the same order, but takes a third
more time and twice the disk space.

A dump has one row per line, and each row is parsed separately. So a broken row does not affect other rows, and no row
can declare entities.
"""

from __future__ import annotations

import heapq
import os
import pickle
import re
import tempfile
from collections.abc import Iterator
from html import escape
from itertools import groupby
from operator import attrgetter
from pathlib import PurePosixPath
from typing import IO, NamedTuple
from xml.etree import ElementTree

from jax_diversity.foundation.checks import number_in_data
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import valid_name
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import MAX_DOCUMENT_BYTES, InputFile, without_compression
from jax_diversity.preparation.readers.records import Found, Place, Problem, converted
from jax_diversity.schema import Document

_RUN_BYTES = 64 * 2**20
_POST_BYTES = 500  # memory of a post without its text
_BLOCK_POSTS = 32  # number of posts of each run that are in memory during the merge
_MOST_LINES_BEFORE = 64
_QUESTION, _ANSWER = "1", "2"
_ARTICLE = "<article data-score="
"""The mark of an answer in the text."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FRAME = re.compile(rb"(?:<\?xml[^>]*\?>)?\s*+(?:<posts>)?\s*+(?P<end></posts>|<posts\s*/>)?")
# The ids of synthetic posts, which dumps contain since July 2025.
_MADE_UP = ("1000000001", "1000000010")


class _Post(NamedTuple):
    """A question or an answer."""

    order: tuple[int, bool, int, int]
    """The sort key: number of the question, whether the post is an answer, minus its score, its own number."""
    line: int
    body: str
    title: str
    tags: str
    licence: str


def read_stack_exchange(file: InputFile, advance: Advance) -> Found:
    """Read the questions by number, each with its answers, by score (highest first) and number.

    The text is HTML: the title as `<h1>`, the question's body, then every answer as `<article data-score="3">`. Posts
    of other kinds, such as tag descriptions, are left out. A row that is not XML and an answer whose question is absent
    are `Problem`s. The source is the site: the name of the file's folder.

    Raises:
        UserError: the file is truncated or has no rows, or the disk has no room for the posts.
    """
    site = _site(file)
    with tempfile.TemporaryFile(prefix="jax-diversity-") as spool:
        posts = _SortedPosts(spool)
        for place, post in _posts(file, advance):
            if isinstance(post, Problem):
                yield place, post
            else:
                posts.add(post)
        for number, group in groupby(posts.merged(), key=lambda post: post.order[0]):
            first, *answers = group
            if not first.order[1]:
                yield Place(file, first.line), converted(_document, site, first, answers)
                continue
            for answer in (first, *answers):
                reason = f"answer {answer.order[3]} to question {number}, which the file does not hold"
                yield Place(file, answer.line), Problem("num_broken_records", reason)


def _posts(file: InputFile, advance: Advance) -> Iterator[tuple[Place, _Post | Problem]]:
    number, num_posts, ended = 0, 0, False
    with file.stream(advance) as content:
        while line := content.readline(MAX_DOCUMENT_BYTES + 1):
            number += 1
            if len(line) > MAX_DOCUMENT_BYTES:
                raise UserError(
                    f"{file.address}:{number} is longer than {MAX_DOCUMENT_BYTES} bytes; expected one row a line."
                )
            line = line.strip().removeprefix(_BYTE_ORDER_MARK)
            if line.startswith(b"<row"):
                post = converted(_parse, line, number)
                if post is not None:
                    num_posts += 1
                    yield Place(file, number), post
            elif frame := _FRAME.fullmatch(line):
                ended = ended or frame["end"] is not None
            elif number < _MOST_LINES_BEFORE and not num_posts:
                break
            else:
                yield Place(file, number), Problem("num_broken_records", "expected one row of a post, <row ... />")
    if not num_posts and not ended:
        raise UserError(
            f"Expected Posts.xml of Stack Exchange, one <row> a line within <posts>, found none in {file.address}; "
            "set corpus.format to its format."
        )
    if not ended:
        raise UserError(f"{file.address} is cut off: it has no </posts> at its end; fetch it again.")


def _parse(line: bytes, number: int) -> _Post | Problem | None:
    """The post of a row; None if it is neither a question nor an answer."""
    try:
        row = ElementTree.fromstring(line).attrib
    except ElementTree.ParseError as error:
        return Problem.of_xml(line, error)
    for name in ("Id", "PostTypeId"):
        if name not in row:
            return Problem("num_broken_records", f"a row without {name}")
    kind = row["PostTypeId"]
    if kind not in (_QUESTION, _ANSWER) or row["Id"] in _MADE_UP:
        return None
    parent = "Id" if kind == _QUESTION else "ParentId"
    if parent not in row:
        return Problem("num_broken_records", f"a row without {parent}")
    post_id, score, question = [number_in_data(row.get(name, "0")) for name in ("Id", "Score", parent)]
    if post_id is None or score is None or question is None:
        return Problem("num_broken_records", "a row with invalid numbers")
    texts = (row.get(name, "") for name in ("Body", "Title", "Tags", "ContentLicense"))
    return _Post((question, kind != _QUESTION, -score, post_id), number, *texts)


class _SortedPosts:
    """Posts, sorted on disk."""

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self._run: list[_Post] = []
        self._run_bytes = 0
        self._ends: list[int] = []

    def add(self, post: _Post) -> None:
        """Add a post."""
        self._run.append(post)
        self._run_bytes += _POST_BYTES + len(post.body)
        if self._run_bytes > _RUN_BYTES:
            self._write()

    def merged(self) -> Iterator[_Post]:
        """Return all posts in their order."""
        self._write()
        return heapq.merge(*map(self._read, (0, *self._ends), self._ends), key=attrgetter("order"))

    def _write(self) -> None:
        self._run.sort(key=attrgetter("order"))
        try:
            for start in range(0, len(self._run), _BLOCK_POSTS):
                pickle.dump(self._run[start : start + _BLOCK_POSTS], self._spool, pickle.HIGHEST_PROTOCOL)
            self._ends.append(self._spool.tell())
        except OSError as error:
            raise UserError(
                f"Expected room for the posts of a site in {tempfile.gettempdir()}, found: {in_one_line(error)}; "
                "set TMPDIR to a folder with as much room as Posts.xml takes."
            ) from None
        self._run, self._run_bytes = [], 0

    def _read(self, position: int, end: int) -> Iterator[_Post]:
        while position < end:
            self._spool.seek(position)
            block = pickle.load(self._spool)
            position = self._spool.tell()
            yield from block


def _body(post: _Post) -> str:
    """Return the body with escaped marks of answers, so that only this reader can write such marks."""
    return post.body.replace(_ARTICLE, escape(_ARTICLE, quote=False))


def _document(site: str, question: _Post, answers: list[_Post]) -> Document:
    number = question.order[0]
    texts = [f"<h1>{escape(question.title, quote=False)}</h1>\n{_body(question)}"]
    texts += [f'{_ARTICLE}"{-answer.order[2]}">\n{_body(answer)}</article>' for answer in answers]
    metadata = {
        "media_type": "text/x-stack-exchange",
        "site": site,
        "score": -question.order[2],
        "num_answers": len(answers),
        "tags": re.findall(r"[^<>|]+", question.tags),
        "licence": ", ".join(sorted({post.licence for post in (question, *answers)} - {""})),
        "url": f"https://{site}/questions/{number}" if "." in site else "",
    }
    return Document(
        id=f"{site}:{number}",
        text="\n".join(texts),
        source=site,
        title=question.title or None,
        metadata={name: value for name, value in metadata.items() if value != ""},
    )


def _site(file: InputFile) -> str:
    """Return the site: the folder of `SITE/Posts.xml`, or the beginning of the name of `SITE-Posts.xml`."""
    path = os.path.abspath(file.address) if file.filesystem is None else file.address.partition("://")[2]
    before = re.sub(r"-?posts\.xml$", "", PurePosixPath(without_compression(path)).name, flags=re.IGNORECASE)
    return valid_name(before.removesuffix(".xml") or PurePosixPath(path).parent.name) or file.stem
