"""Texts, tokens and masks of chats beside those of transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import jax_diversity as jd
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.readers import jinja_template
from jax_diversity.preparation.readers.jinja_template import JINJA
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.tokenization.settings import TokenizerConfig

transformers: Any = pytest.importorskip("transformers", reason="texts and masks are compared with transformers")
pytestmark = pytest.mark.campaign

NUM_CHATS = 2_000
FOLDER = Path(jinja_template.__file__).parent / "chat_templates"
_ANSWER = (
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}END{% endgeneration %}"
    "{% else %}{{ m.content }}END{% endif %}"
)
_HEADERS = "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n" + _ANSWER + "{% endfor %}"
SOURCES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    + _ANSWER.replace("END", "<|im_end|>")
    + "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}",
    "llama-3": _HEADERS.replace("END", "<|eot_id|>").replace(
        "{{ m.role }}", "{{ 'ipython' if m.role == 'tool' else m.role }}"
    ),
} | {name: (FOLDER / f"{name}.jinja").read_text("utf-8") for name in JINJA}
"""The templates in Jinja. The first two are patterns in the package; here `generation` blocks mark their answers."""
MARKS = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"),
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<start_of_turn>"),
    *("<end_of_turn>", "<bos>", "<s>", "</s>", "<|endoftext|>"),
)
WORDS = ("keel", "mast ", " sail", "wind\n", "é", "42", "{{ x }}", "rope", "中文", "\U0001f600", "a\tb", "\n\n", "<b>")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


def write_tokenizer(folder: Path, source: str) -> Any:
    """Write a tokenizer of bytes whose special tokens are the templates' marks; return it as transformers reads it."""
    backend = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*MARKS])
    backend.save(str(folder / "tokenizer.json"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source)


def random_chat(rng: random.Random, name: str) -> dict[str, Any]:
    """A record of messages with reasoning, calls of tools and their results, as the template accepts them."""

    def said() -> str:
        return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5))) + "."

    has_calls = name not in ("chatml", "llama-3")
    with_tools = has_calls and name != "gemma" and rng.random() < 0.5
    messages: list[dict[str, Any]] = [{"role": "system", "content": said()}] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": said()})
        if with_tools and rng.random() < 0.5:
            calls = [
                {"type": "function", "function": {"name": "look", "arguments": {"at": said()}}}
                for _ in range(rng.randint(1, 2))
            ]
            messages.append({"role": "assistant", "content": rng.choice(["", said()]), "tool_calls": calls})
            messages += [{"role": "tool", "content": said()} for _ in calls]
        answer = {"role": "assistant", "content": said()}
        messages.append(answer | {"reasoning_content": said().strip()} if has_calls and rng.random() < 0.3 else answer)
    return {"messages": messages} | ({"tools": TOOLS} if with_tools else {})


class Expected(NamedTuple):
    """What transformers gives for a chat.

    Attributes:
        ids: the tokens.
        counts: whether each token is one of an answer whose place is certain.
        num_answers: the number of these answers.
        is_whole: whether the places of all answers are certain.
    """

    ids: list[int]
    counts: list[bool]
    num_answers: int
    is_whole: bool


def expected_chat(tokenizer: Any, record: dict[str, Any]) -> Expected:
    """Tokens and masks of transformers. Without `generation` blocks, an answer is what its turn adds to the prompt.

    Its place is not certain if the template changes the text of earlier turns, as Qwen 3 does with reasoning.
    """
    messages, tools = record["messages"], record.get("tools")
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]

    def rendered(number: int, prompt: bool = False) -> str:
        return tokenizer.apply_chat_template(
            messages[:number], tools=tools, tokenize=False, add_generation_prompt=prompt
        )

    if "{% generation %}" in tokenizer.chat_template:
        found = tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return Expected(list(found["input_ids"]), [*map(bool, found["assistant_masks"])], len(answers), True)
    text = rendered(len(messages))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    counts, num_answers = np.zeros(len(text) + 1, bool), 0
    for number in answers:
        before, until = rendered(number, prompt=True), rendered(number + 1).rstrip()
        if until.startswith(before) and text.startswith(until):
            counts[len(before) : len(until)] = True
            num_answers += 1
    of_tokens = [bool(counts[start]) for start, _ in encoded["offset_mapping"]]
    return Expected(list(encoded["input_ids"]), of_tokens, num_answers, num_answers == len(answers))


@pytest.mark.parametrize("name", SOURCES)
def test_tokens_and_masks_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    tokenizer = write_tokenizer(tmp_path, SOURCES[name])
    records = [random_chat(rng, name) for _ in range(NUM_CHATS)]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    config = BuildConfig(
        out=str(tmp_path / "out"),
        corpus=CorpusConfig(paths=(str(tmp_path / "chats.jsonl"),), format="chat", chat_template=name),
        tokenizer=TokenizerConfig(kind="file", path=str(tmp_path / "tokenizer.json"), end_token="<|endoftext|>"),
    )
    for stage in ("prepare", "tokenize"):
        Build(config).run_stage(stage)
    tokens, num_answers, num_whole = jd.open_dataset(tmp_path / "out").tokens, 0, 0
    for number, record in enumerate(records):
        expected, found = expected_chat(tokenizer, record), tokens.document(number)
        assert found[:-1].tolist() == expected.ids, record  # the last token ends the document
        own = tokens.loss_mask(np.array([number]), np.array([0]), np.array([len(found)]))[:-1]
        assert own.tolist() == expected.counts if expected.is_whole else own[expected.counts].all(), record
        num_answers += expected.num_answers
        num_whole += expected.is_whole
    assert num_answers > NUM_CHATS // 2
    print(f"{name}: {NUM_CHATS} texts, {num_answers} answers and {num_whole} whole masks are equal")
