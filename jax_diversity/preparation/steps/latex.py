"""Prepare LaTeX as LLaMA does (Touvron et al. 2023, arXiv:2302.13971, section 2.1); the result is still LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jax_diversity.preparation.steps.base import Candidate, Measured, Step
from jax_diversity.preparation.steps.macros import expand_macros

MEDIA_TYPE = "text/x-tex"

# A comment, or the beginning of verbatim text. It is not escaped after an even number of backslashes.
_MARK = re.compile(
    r"(?<!\\)(?P<escaped>(?:\\\\)*)(?:(?P<comment>%)"
    r"|\\begin\{(?P<name>verbatim\*?|Verbatim\*?|BVerbatim|lstlisting|minted|comment)\}"
    r"|\\(?:verb\*?|lstinline)(?P<quote>[!\"#$&'()+,./0-9:;<=>?@\[\]^_`|~-]))"
)
_COMMENT_LINE_END = re.compile(r"\n[ \t]*(?=\S)")
_IN_COMMAND = re.compile(r"\\[a-zA-Z]+\Z")
_LONGEST_QUOTE = 500
_UNCONDITIONAL = r"((?>(?:(?!\\(?:if(?!f(?![a-zA-Z]))[a-zA-Z]*|else|fi)(?![a-zA-Z])).)*))"
_NEVER = re.compile(
    rf"\\iffalse(?![a-zA-Z]){_UNCONDITIONAL}(?:\\else(?![a-zA-Z]){_UNCONDITIONAL})?\\fi(?![a-zA-Z])[ \t]*", re.DOTALL
)
_SECTION = re.compile(r"\\(?:part|chapter|(?:sub){0,2}section)\s*+\*?\s*+[\[{](?!\s*(?:Acknowledg|ACKNOWLEDG))")
_FRONT_END = re.compile(r"\\maketitle(?![a-zA-Z])|\\end\{(?:abstract|frontmatter|titlepage)\}")
_APPENDIX = re.compile(r"\\appendix(?![a-zA-Z])|\\begin\{appendi(?:x|ces)\}")
_NEXT = re.compile(f"{_SECTION.pattern}|{_APPENDIX.pattern}")
_BIBLIOGRAPHY = re.compile(
    r"\\begin\{(?P<name>thebibliography|[rR]eferences|REFERENCES)\}"
    r"|\\(?P<title>(?:chapter|section)\*?\s*\{\s*(?:References|REFERENCES|Bibliography|BIBLIOGRAPHY)\s*\})"
    r"|\\(?:no)?bibliography(?:style)?\s*\{[^{}]*\}|\\printbibliography(?![a-zA-Z])(?:\s*\[[^\[\]]*\])?"
)
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")
_PLACEHOLDER = re.compile(r"\0([0-9]{1,9})\0")


@dataclass
class Latex(Step):
    r"""Prepares LaTeX: removes comments, the front matter and the bibliography, and expands the authors' macros.

    The text before the first section is removed; `abstract` keeps the abstract. `appendix: false` cuts at the appendix.
    A text without sections begins after its title. The report counts expanded macros, macros that stay, and recursive
    definitions. A macro stays if arguments are missing or the text would grow to five times its length. Documents with
    another media type than text/x-tex pass unchanged, unless `always`.
    """

    is_filter = False

    abstract: bool = False
    appendix: bool = True
    always: bool = False

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Edit the text."""
        if self.always or candidate.document.metadata.get("media_type") == MEDIA_TYPE:
            text, quoted = _without_comments(candidate.text)
            text, counts = expand_macros(text)
            candidate.found.update(counts)
            text = _body(_without_bibliography(text), self.abstract, candidate)
            if not self.appendix and (match := _APPENDIX.search(text)):
                text = text[: match.start()]
            # Each placeholder is replaced once: macros may have copied it.
            text = _PLACEHOLDER.sub(lambda match: quoted.pop(int(match[1]), ""), text)
            candidate.text = _BLANK_LINES.sub("\n\n", text).strip()
        yield from ()


def _without_comments(text: str) -> tuple[str, dict[int, str]]:
    """Return the text without comments, with numbered placeholders for verbatim text, and number -> verbatim text."""
    text = text.replace("\0", "")  # TeX ignores NUL
    parts: list[str] = []
    quoted: dict[int, str] = {}
    open_names: set[str] = set()  # environments without an end in the rest of the text
    position = 0

    def quote(start: int, end: int) -> int:
        parts.append(text[position:start] + f"\0{len(quoted)}\0")
        quoted[len(quoted)] = text[start:end]
        return end

    while match := _MARK.search(text, position):
        name, mark, start = match["name"], match["quote"], match.end("escaped")
        if match["comment"]:
            line_end = text.find("\n", start)
            end = len(text) if line_end < 0 else line_end
            line_start = text.rfind("\n", position, start) + 1
            before = text[max(position, line_start) : start]
            at_start = line_start or text[position - 1 : position] in ("", "\n")
            if at_start and not before.strip():  # the line contains only the comment
                parts.append(text[position : start - len(before)])
                position = end + 1
                continue
            parts.append(text[position:start])
            # In TeX a comment also hides the end of its line: a word before it continues in the next line.
            goes_on = not before[-1:].isspace() and not _IN_COMMAND.search(before[-40:])
            hidden = _COMMENT_LINE_END.match(text, end) if goes_on else None
            position = hidden.end() if hidden else end
        elif name:
            close = f"\\end{{{name}}}"
            end = -1 if name in open_names else text.find(close, match.end())
            if end < 0:
                open_names.add(name)
                parts.append(text[position : match.end()])
                position = match.end()
            elif name == "comment":
                parts.append(text[position:start])
                position = end + len(close)
            else:
                position = quote(start, end + len(close))
        else:
            end = text.find(mark, match.end(), match.end() + _LONGEST_QUOTE)
            if end < 0 or text.find("\n", match.end(), end) >= 0:
                parts.append(text[position : match.end()])
                position = match.end()
            else:
                position = quote(start, end + 1)
    return _NEVER.sub(r"\2", "".join(parts) + text[position:]), quoted


def _body(text: str, abstract: bool, candidate: Candidate) -> str:
    """The document from its first section on."""
    front, begins, body = text.partition(r"\begin{document}")
    body = (body if begins else front).partition(r"\end{document}")[0]
    appendix = _APPENDIX.search(body)
    section = _SECTION.search(body, 0, appendix.start() if appendix else len(body))
    if section is not None:
        start = section.start()
    else:
        candidate.found["without_section"] += 1
        start = max((match.end() for match in _FRONT_END.finditer(body)), default=0) if begins else 0
    kept = _abstract(body[:start]) if abstract else ""
    return kept + body[start:]


def _abstract(front: str) -> str:
    begin, end = r"\begin{abstract}", r"\end{abstract}"
    title, _, _ = front.partition(begin)[2].partition(end)
    return f"{begin}{title}{end}\n\n" if title else ""


def _without_bibliography(text: str) -> str:
    """The text without its lists of references, even if an appendix follows them."""
    parts: list[str] = []
    position = 0
    while match := _BIBLIOGRAPHY.search(text, position):
        parts.append(text[position : match.start()])
        position = match.end()
        if match["name"]:
            close = f"\\end{{{match['name']}}}"
            end = text.find(close, position)
            position = end + len(close) if end >= 0 else len(text)
        elif match["title"]:
            following = _NEXT.search(text, position)
            position = following.start() if following else len(text)
    return "".join(parts) + text[position:]
