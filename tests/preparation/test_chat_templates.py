"""Chat templates in Jinja: texts and answers as an independent rendering gives them; templates that do harm."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.errors import UserError
from jax_diversity.preparation.readers import jinja_template
from jax_diversity.preparation.readers.chat import with_loss_spans
from jax_diversity.preparation.readers.chat_template import load_template
from jax_diversity.preparation.readers.jinja_template import JINJA, JinjaTemplate
from jax_diversity.preparation.readers.reading import read_documents
from jax_diversity.preparation.readers.records import ReadReport
from jax_diversity.preparation.readers.turns import Turn, TurnSpan
from jax_diversity.preparation.settings import CorpusConfig

FOLDER = Path(jinja_template.__file__).parent / "chat_templates"
WORDS = ("keel", "mast ", " sail", "<|im_end|>", "</s>", "wind\n", "é", "<think>", "42", "{{ x }}", "[INST]", "rope")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


class Generation(Extension):
    """The block as transformers defines it, without its marks."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    def said(self, caller: Any) -> str:
        return caller()


@functools.cache
def compiled_as_in_transformers(source: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )

    def fail(message: str) -> None:
        raise ValueError(message)

    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = fail
    return environment.from_string(source)


def as_transformers(
    source: str, messages: list[dict], *, prompt: bool = False, tools: Any = None, **special: str
) -> str:
    """The text of a chat by the rules of transformers' `apply_chat_template`."""
    values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
    return compiled_as_in_transformers(source).render(**values, **special)


def random_chat(rng: random.Random, name: str) -> tuple[list[Turn], list[dict], Any]:
    """Turns, the same turns as messages, and tools; such chats as the template accepts."""

    def said() -> str:
        return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5))).replace("<think>", "think") + "."

    turns, with_tools, as_text = list[Turn](), name != "gemma" and rng.random() < 0.5, rng.random() < 0.3
    if rng.random() < 0.4:
        turns.append(Turn("system", said()))
    for _ in range(rng.randint(1, 4)):
        turns.append(Turn("user", said()))
        if with_tools and rng.random() < 0.5:
            arguments = [{"at": said()} for _ in range(rng.randint(1, 2))]
            functions = [{"name": "look", "arguments": json.dumps(each) if as_text else each} for each in arguments]
            calls = tuple({"type": "function", "function": function} for function in functions)
            content = rng.choice(["", said()])
            turns.append(Turn("assistant", content, calls=calls, has_content=bool(content) or rng.random() < 0.5))
            turns += [Turn("tool", said()) for _ in calls]
        turns.append(Turn("assistant", said(), reasoning=said().strip() if rng.random() < 0.3 else ""))
    messages = []
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role} | ({"content": turn.content} if turn.has_content else {})
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [*turn.calls]
        messages.append(message)
    return turns, messages, TOOLS if with_tools else None


def check_chats(name: str, number: int) -> None:
    """Texts are equal; an answer is what the turn adds to the text of the turns before it and the prompt."""
    rng, source, template = random.Random(name), (FOLDER / f"{name}.jinja").read_text("utf-8"), load_template(name)
    assert isinstance(template, JinjaTemplate)
    for _ in range(number):
        turns, messages, tools = random_chat(rng, name)
        text, spans, contents = template.render(turns, {} if tools is None else {"tools": tools})
        assert text == as_transformers(source, messages, tools=tools)
        assert spans is not None
        shown = {place for start, stop in contents for place in range(start, stop)}
        for index, (turn, span) in enumerate(zip(turns, spans, strict=True)):
            if turn.role != "assistant":
                continue
            # No later turn changes earlier text: only the answers after the last question show their reasoning in
            # Qwen 3, and Mistral's system turn and tools are in the last question.
            until = as_transformers(source, messages[: index + 1], tools=tools)
            before = as_transformers(source, messages[:index], tools=tools, prompt=True)
            if until.startswith(before) and text.startswith(until.rstrip()):
                assert (span.start, span.end) == (len(before), len(until.rstrip()))
            # Marks of the template in the answer are outside of contents, and marks that were said are inside.
            said = turn.content.strip()
            if said and text[span.start : span.end].count(said) == 1:
                start = span.start + text[span.start : span.end].index(said)
                assert set(range(start, start + len(said))) <= shown
        assert [span.begin for span in spans] == sorted(span.begin for span in spans)


@pytest.mark.parametrize("name", JINJA)
def test_texts_and_answers_equal_an_independent_rendering(name: str) -> None:
    check_chats(name, 60)


@pytest.mark.campaign
@pytest.mark.parametrize("name", JINJA)
def test_many_texts_and_answers_equal_an_independent_rendering(name: str) -> None:
    check_chats(name, 2_000)


def test_generation_blocks_mark_the_answers(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(
        "{% for message in messages %}[{{ message.role }}]"
        "{% if message.role == 'assistant' %}{% generation %}{{ message.content }};{% endgeneration %}"
        "{% else %}{{ message.content }}{% endif %}\n{% endfor %}"
    )
    text, spans, _ = load_template(str(tmp_path / "own.jinja")).render([Turn("user", "Why?"), Turn("assistant", "So")])
    assert spans is not None
    assert text[spans[1].start : spans[1].end] == "So;"
    assert (spans[0].start, spans[0].end) == (0, 0)


def test_text_between_the_parts_of_an_answer_does_not_count(tmp_path: Path) -> None:
    """A template may write the results of tools into the turn of the answer, after its calls."""
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}<{{ m.role }}>"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% if not loop.last and loop.nextitem.role == 'tool' %}[{{ loop.nextitem.content }}]{% endif %}"
        "{% generation %}</a>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    turns = [Turn("user", "Why?"), Turn("assistant", "I look."), Turn("tool", "42"), Turn("assistant", "So.")]
    text, spans, _ = JinjaTemplate(source, {}, "own").render(turns)
    assert text == "<user>Why?<assistant>I look.[42]</a><assistant>So.</a>"
    assert spans is not None
    places = [[text[start:stop] for start, stop in TurnSpan.counted(span)] for span in spans]
    assert places == [[], ["I look.", "</a>"], [], ["So.</a>"]]


def test_a_loop_that_ends_early_is_no_pass_over_the_turns() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{% break %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'system' %}{% for c in 'abc' %}{% continue %}{% endfor %}{% continue %}"
        "{% elif m.role == 'tool' %}{% continue %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    turns = [Turn("system", "Be brief."), Turn("user", "Why?"), Turn("tool", "42"), Turn("assistant", "So.")]
    text, spans, _ = JinjaTemplate(source, {}, "own").render(turns)
    assert text == "<user>Why?<assistant>So."
    assert spans is not None
    assert [text[span.begin : span.end] for span in spans] == ["", "<user>Why?", "", "<assistant>So."]


def test_the_template_of_a_tokenizers_folder(tmp_path: Path) -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    config = {"chat_template": source, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    turns = [Turn("user", "a"), Turn("assistant", "b")]
    assert load_template(str(tmp_path)).render(turns).text == "<s>a</s>b</s>"
    named = [{"name": "default", "template": source}, {"name": "tool_use", "template": "x"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    assert load_template(str(tmp_path)).render(turns).text == "<s>a</s>b</s>"
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}.{% endfor %}")
    assert load_template(str(tmp_path / "tokenizer_config.json")).render(turns).text == "a.b."
    (tmp_path / "chat_template.jinja").unlink()
    for content in ("{}", "[]", "{", '{"chat_template": 5}'):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(UserError, match="Expected a chat template at"):
            load_template(str(tmp_path))


def test_a_file_takes_the_special_tokens_of_its_folder(tmp_path: Path) -> None:
    """Without them no answer would have its end token, and a model would not learn to stop."""
    source = "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    file, config = tmp_path / "own.jinja", tmp_path / "tokenizer_config.json"
    file.write_text(source)
    with pytest.raises(UserError, match=r"for bos_token and eos_token, .*own\.jinja writes, .*; put the template be"):
        load_template(str(file))
    for tokens in ({"eos_token": "</s>"}, {"bos_token": "<s>", "eos_token": 5}):
        config.write_text(json.dumps(tokens))
        with pytest.raises(UserError, match=r'a text for ..s_token, .*found none; add a line such as "..s_token": \.'):
            load_template(str(file))
    turns = [Turn("user", "a"), Turn("assistant", "b")]
    # A token of null has no text, as in transformers.
    for begin, text in (({"content": "<s>"}, "<s>a</s>b</s>"), (None, "a</s>b</s>")):
        config.write_text(json.dumps({"bos_token": begin, "eos_token": "</s>"}))
        assert load_template(str(file)).render(turns).text == text
    text, spans, _ = load_template(str(file)).render(turns)
    assert spans is not None
    assert text[spans[1].start : spans[1].end] == "b</s>"
    # A folder whose tokenizer lacks the token is refused too.
    config.write_text(json.dumps({"chat_template": source, "bos_token": None}))
    with pytest.raises(UserError, match=r"a text for eos_token, .*found none"):
        load_template(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("{{ eos_token }}", True),
        ("{{ eos_token | trim }}", True),
        ("{{ ('a' ~ eos_token) | default('.') }}", True),
        ("{{ 'a' ~ eos_token }}", True),
        ("{% set end = eos_token %}{{ end }}", True),
        ("{% for m in messages %}{{ (m.content + eos_token) if loop.last else '' }}{% endfor %}", True),
        ("{% if messages and add_end %}{% generation %}{{ eos_token }}{% endgeneration %}{% endif %}", True),
        ("{{ messages and eos_token }}", True),
        ("{% if bos_token is defined %}{{ eos_token }}{% endif %}", True),
        ("{% if eos_token is defined %}{{ eos_token }}{% endif %}", False),
        ("{% if eos_token is not defined %}{% set eos_token = '.' %}{% endif %}{{ eos_token }}", False),
        ("{% if not eos_token %}.{% else %}{{ 'a' + eos_token }}{% endif %}", False),
        ("{% set end = eos_token if eos_token is defined else '.' %}{{ end }}", False),
        ("{{ eos_token or '.' }}{{ eos_token and eos_token }}", False),
        ("{{ eos_token | default('.') }}", False),
        ("{{ ''.replace(eos_token, '') }}{% if messages[0].content == eos_token %}a{% endif %}", False),
        ("{% macro ended(eos_token) %}a{{ eos_token }}{% endmacro %}{{ ended('.') }}", False),
        ("{{ messages[0].eos_token }}{{ other_token }}", False),
    ],
)
def test_special_tokens_without_a_value_are_refused_where_they_are_written(
    tmp_path: Path, source: str, is_refused: bool
) -> None:
    (tmp_path / "own.jinja").write_text(source)
    if is_refused:
        with pytest.raises(UserError, match=r"a text for eos_token, .*; put the template beside the tokenizer_config"):
            load_template(str(tmp_path / "own.jinja"))
    else:
        load_template(str(tmp_path / "own.jinja"))


def test_turns_are_found_whatever_the_template_does() -> None:
    """Templates with loops before the text, without system turns, with `continue`, with turns as numbers."""
    turns = [Turn("system", "Be brief."), Turn("user", "Why?"), Turn("assistant", "So.")]
    for source in (
        "{% for m in messages %}{% endfor %}<s>{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "<s><system>{{ messages[0].content }}{% for m in messages[1:] %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "{% for i in range(messages | length) %}<{{ messages[i].role }}>{{ messages[i].content }}{% endfor %}",
        "{% set others = messages %}{% for m in others %}"
        "{% if m.role == 'system' %}<system>{{ m.content }}{% continue %}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}",
    ):
        text, spans, contents = JinjaTemplate(source, {}, "own").render(turns)
        assert spans is not None
        begins = [text[span.begin :].removeprefix("<s>")[:4] for span in spans]
        assert begins == ["<sys", "<use", "<ass"], source
        assert [text[start:stop] for start, stop in contents] == ["Be brief.", "Why?", "So."]
    # The last turn first: then the places are not certain, and no answer counts.
    backwards = "{% for m in messages[::-1] %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert JinjaTemplate(backwards, {}, "own").render(turns).spans is None


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = y %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'a' * 999999999 }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 9 ** 999999999 }}",
        "{{ ('a' * 9999).replace('a', 'a' * 9999) }}",
        "{{ ('a' * 9999) | replace('a', 'a' * 9999) }}",
        "{{ ('a' * 9999) | indent(99999999) }}",
        "{{ ('a' * 9999).join(range(9999) | map('string') | list) }}",
        "{% for m in messages %}{{ 'a' * 9999999 }}{% endfor %}{{ 'a' * 9999999 }}{{ 'a' * 9999999 }}",
        "{% for i in range(99999) %}{% for j in range(999) %}{{ 'aaaaaaaaaaaaaaaaaaaaa' }}{% endfor %}{% endfor %}",
    ],
)
def test_templates_that_do_not_end_are_refused(source: str) -> None:
    with pytest.raises(UserError, match="Expected a chat template that ends, found"):
        JinjaTemplate(source, {}, "own")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{% include '/etc/passwd' %}", "without other files"),
        ("{% extends 'base' %}", "without other files"),
        ("{% import 'os' as os %}", "without other files"),
        ("{% for m in messages %}", "in Jinja"),
        ("{{ messages | nofilter }}", "in Jinja"),
        ("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "recursive"),
        ("{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}", "do not call one another"),
    ],
)
def test_templates_that_are_not_valid_are_refused(source: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        JinjaTemplate(source, {}, "own")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ (messages | attr('__class__')).x }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ messages[9].content }}",
    ],
)
def test_templates_that_fail_refuse_the_chat(source: str) -> None:
    with pytest.raises(DocumentError):
        JinjaTemplate(source, {}, "own").render([Turn("user", "a")])


def test_private_attributes_are_not_defined() -> None:
    source = "{{ jd_turn.__globals__ }}{{ raise_exception.__code__ }}{{ messages.__class__ }}."
    assert JinjaTemplate(source, {}, "own").render([Turn("user", "a")]).text == "."


# ---- Hostile conversations.
def hostile_record(rng: random.Random) -> Any:
    """A record of turns with wrong roles, types, marks, nested parts and empty values."""
    values: list[Any] = [None, 7, 1.5, True, "", " ", "\u0000", "<|im_end|>", "\ufdd0" + "0;", [], {}, [[]], "[", "{}"]
    values += ["x" * 500, {"type": "text"}, [{"type": "text", "text": ["a", "b"]}], [{"type": "thinking"}], ["a", 7]]
    values += [[{"type": "tool_result", "content": [{"type": "tool_result", "content": "a"}]}], float("inf"), -1]
    values += ['[{"role": "user", "content": "a"}]', [{"type": "tool_use", "name": 5}], "</s>[INST]", "é" * 9]

    def value() -> Any:
        return rng.choice(values)

    def turn() -> Any:
        entry: Any = {
            "role": rng.choice(["user", "assistant", "system", "tool", "gpt", "function_call"]),
            "content": "a",
        }
        for field in rng.sample(
            [
                "role",
                "content",
                "value",
                "tool_calls",
                "reasoning",
                "train",
                "loss",
                "mask",
                "weight",
                "name",
                "thinking",
            ],
            rng.randint(0, 3),
        ):
            entry[field] = value()
        return rng.choice([entry] * 9 + [value()])

    record: dict[str, Any] = {"messages": [turn() for _ in range(rng.randint(0, 6))]}
    if rng.random() < 0.2:
        record = {"instruction": value(), "output": value(), "history": value(), "input": value()}
    for field in rng.sample(["tools", "documents", "system", "messages", "roles", "turn_spans"], rng.randint(0, 2)):
        record[field] = value()
    return record


@pytest.mark.parametrize("template", ["chatml", "qwen-3", "mistral"])
def test_hostile_conversations_are_documents_or_counted(tmp_path: Path, template: str) -> None:
    rng = random.Random(1)
    records = [hostile_record(rng) for _ in range(1_000)]
    records[500] = {"messages": [{"role": ("user", "assistant")[turn % 2], "content": "a"} for turn in range(10_000)]}
    records[501] = json.loads('{"messages": ' + "[" * 60 + "]" * 60 + "}")
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    config = CorpusConfig(paths=(str(tmp_path / "chats.jsonl"),), format="chat", chat_template=template)
    config.check()
    report, counts = ReadReport(), dict[str, int]()
    documents = [*with_loss_spans(read_documents(config, report), config, counts)]
    assert len(documents) + report.num_problems + report.num_empty_documents == 1_000
    assert 100 < len(documents) < 900
    assert report.num_raised == report.num_took_too_long == 0
    for document in documents:
        length, fields = len(document.text), document.metadata
        for name in ("turn_spans", "loss_spans"):
            bounds = [bound for span in fields[name] for bound in span]
            assert bounds == sorted(bounds)
            assert all(0 <= bound <= length for bound in bounds)
        assert len(fields["turn_starts"]) in (0, fields["num_turns"])
