# %% [markdown]
# # Fine-tune on chats
#
# In Colab, upload this notebook and the package's wheel (`make dist` makes it); the first cell fails without a wheel.
#
# This notebook makes 600 conversations, packs them so that answers stay with their questions, trains a tiny model
# on the answers alone, and measures the loss of held-out conversations by answer. At the end, the chats are mixed with
# plain text. It takes one to two minutes on two cores and needs no GPU. Losses after training differ with the version
# of JAX and with the processor. The intervals do not include this: they are about the held-out documents alone.
#
# The page *Fine-tune on chats* of the documentation has the same way for your own files.

# %%
# %pip install --quiet jax_diversity-*.whl matplotlib pandas

# %%
import json
from functools import partial
from itertools import islice
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pandas as pd
from flax import nnx

import jax_diversity as jd
from jax_diversity.lab.model import Gpt
from jax_diversity.streaming.run.inspection import chat_turns

BLUE, ORANGE, GREY = "#4a90d9", "#e08a3c", "#808080"

# %% [markdown]
# ## 1. Conversations
#
# A conversation is one line of JSON. Two formats are common: `messages` with `role` and `content`, and
# `conversations` with `from` and `value`. A file may have both. The conversations here are about four subjects. Some
# have long questions and short answers, as in summaries: these are the chats whose batches have few targets.

# %%
rng = np.random.default_rng(0)
NOUNS = ["mast", "keel", "sail", "anchor", "rope", "deck", "harbour", "lantern", "compass", "rudder"]


def question_and_answer(subject: str) -> tuple[str, str]:
    """One question about a subject, and its answer."""
    words = rng.choice(NOUNS, 3).tolist()
    if subject == "backwards":
        return f"Write these words backwards: {' '.join(words)}", " ".join(words[::-1])
    if subject == "count":
        number = int(rng.integers(20, 60))
        return f"How many words are here? {' '.join(rng.choice(NOUNS, number))}", f"There are {number} words."
    if subject == "plural":
        return f"What is the plural of {words[0]}?", f"The plural of {words[0]} is {words[0]}s."
    first, second = rng.integers(1, 50, 2).tolist()
    return f"What is {first} + {second}?", f"{first} + {second} = {first + second}"


def conversation(number: int) -> dict:
    """A conversation of one to four questions, in one of the two formats."""
    subject = ("backwards", "count", "plural", "sum")[number % 4]
    pairs = [question_and_answer(subject) for _ in range(rng.integers(1, 5))]
    named = {"id": f"{subject}-{number}", "source": subject}
    if number % 3:
        turns = [{"role": "system", "content": "Answer in one sentence."}]
        turns += [
            {"role": role, "content": text}
            for each in pairs
            for role, text in zip(("user", "assistant"), each, strict=True)
        ]
        return named | {"messages": turns}
    turns = [{"from": role, "value": text} for each in pairs for role, text in zip(("human", "gpt"), each, strict=True)]
    return named | {"conversations": turns}


conversations = [conversation(number) for number in range(600)]
Path("chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in conversations), encoding="utf-8")
print(json.dumps(conversations[0], indent=1))

# %% [markdown]
# ## 2. The dataset
#
# `corpus.format: chat` reads the turns, and `chat_template` writes them as text. Use the template of your model: the
# folder with its `tokenizer.json` and `tokenizer_config.json`, or one of the built-in templates. Long chats are cut
# between turns.

# %%
BATCH = 4
dataset = jd.build(
    "chats.jsonl",
    "chats",
    batch_size=BATCH,
    sequence_length=128,
    quiet=True,
    corpus={"format": "chat", "chat_template": "chatml", "source_field": "source"},
    tokenizer={"vocab_size": 600},
    embedding={"options": {"dimensions": 32}},
    cluster={"num_clusters": 8},
    packing={"validation_fraction": 0.1},
    orders=[{"method": "balance"}, {"method": "uniform_shuffle"}],
)
dataset

# %% [markdown]
# A chat by turns. With `loss_mask="answers"`, the tokens between » and « count towards the loss: the answers, and the
# mark that ends them. The mark tells the model to stop.

# %%
for turn in chat_turns(dataset, "backwards-4"):
    said = "".join(f"»{text}«" if counts else text for text, counts in turn.texts)
    print(f"{turn.role:9} {turn.num_tokens:3} tokens  {said!r}")

# %% [markdown]
# ## 3. Batches have targets
#
# A token that counts towards the loss is a *target*. The family `loss` divides the tokens of a chat into targets and
# others, and the balanced order gives every batch its share of both. A step on a batch without targets does nothing.

# %%
targets = {}
for name in ("uniform_shuffle", "balance"):
    loader = jd.make_loader(dataset, ordering=name, global_batch_size=BATCH, loss_mask="answers")
    targets[name] = np.array([int((batch["targets_segmentation"] != 0).sum()) for batch in loader])

figure, axis = plt.subplots(figsize=(6.5, 3), layout="constrained")
bins = np.linspace(0, max(map(np.max, targets.values())) + 1, 24)
for (name, numbers), colour in zip(targets.items(), (GREY, BLUE), strict=True):
    axis.hist(numbers, bins, color=colour, alpha=0.7, label=name.replace("_", " "))
axis.set(xlabel=f"targets in a batch of {BATCH} sequences", ylabel="batches")
axis.legend(fontsize="small")
plt.show()

pd.DataFrame({name: {"mean": n.mean(), "std": n.std(), "smallest": n.min()} for name, n in targets.items()}).round(1)

# %% [markdown]
# ## 4. Train on the answers
#
# The step is that of any Flax NNX loop. The loss is the sum over the targets, divided by their number in the batch.

# %%
training = jd.make_loader(dataset, ordering="balance", global_batch_size=BATCH, num_epochs=2, loss_mask="answers")
held_out = jd.make_loader(dataset, split="validation", global_batch_size=BATCH, loss_mask="answers")
evaluate = jd.Evaluator(held_out, by=("answer", "source"))
model = Gpt(vocab_size=dataset.vocab_size, width=64, num_layers=2, num_heads=2, seed=0)
optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)


@nnx.jit
def token_losses(model, batch):
    hidden = model(batch["inputs"], batch["inputs_segmentation"], batch["inputs_position"])
    logits = hidden @ model.embedding.embedding[...].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])


@nnx.jit
def train_step(model, optimizer, batch):
    def mean_loss(model):
        counts = batch["targets_segmentation"] != 0
        return (token_losses(model, batch) * counts).sum() / jnp.maximum(counts.sum(), 1)

    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    return loss


before = evaluate(partial(token_losses, model))
losses = [float(train_step(model, optimizer, batch)) for batch in training]
after = evaluate(partial(token_losses, model))
print(f"{len(losses)} steps; held-out loss of answers")
print("before:", before.loss)
print("after: ", after.loss)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(losses, color=BLUE)
left.set(xlabel="step", ylabel="loss of the answers", title="training")
# Groups of few chats have wide intervals.
by_answer = {answer: each for answer, each in after.by_group("answer").items() if each.worth >= 10}
means = np.array([[each.mean, each.low, each.high] for each in by_answer.values()])
right.errorbar(list(by_answer), means[:, 0], np.abs(means[:, 1:] - means[:, :1]).T, fmt="o", color=ORANGE, capsize=3)
right.set(xlabel="answer", ylabel="held-out loss", title="by the number of the answer, with 95 % intervals")
plt.show()

# %% [markdown]
# *How to read it.* The answers of a chat are numbered from 1. The picture shows answers of chats worth at least ten of
# equal length. Intervals that overlap show no difference between earlier and later answers.

# %%
pd.DataFrame({name: {"held-out loss": each.mean} for name, each in after.by_group("source").items()}).T.round(2)

# %% [markdown]
# ## 5. Mix with plain text
#
# A model that reads only chats may lose what it knows of other text. `features_from` gives the texts the tokenizer
# and the clusters of the chats. The mixture reads the chats twice, as 30 % of the positions. In texts every token
# counts.

# %%
texts = [" ".join(rng.choice(NOUNS, 60)) + "." for _ in range(800)]
lines = (json.dumps({"id": f"text-{number}", "text": text}) + "\n" for number, text in enumerate(texts))
Path("texts.jsonl").write_text("".join(lines), encoding="utf-8")
plain = jd.build("texts.jsonl", "texts", features_from="chats", sequence_length=128, batch_size=BATCH, quiet=True)

mixture = jd.create_schedule("mixture", [dataset, plain], weights=[0.3, 0.7], num_epochs={"chats": 2})
mixed = jd.make_loader(mixture, global_batch_size=BATCH, loss_mask="answers")
mixed_losses = [float(train_step(model, optimizer, batch)) for batch in islice(mixed, 50)]
print(
    f"{len(mixed)} batches; loss of the first five steps {np.mean(mixed_losses[:5]):.2f}, "
    f"of the last five {np.mean(mixed_losses[-5:]):.2f}"
)
print("held-out answers:", evaluate(partial(token_losses, model)).loss)

# %% [markdown]
# The held-out loss of the answers is higher than before the mixture: 70 % of the sequences of these 50 batches are
# texts, which the model had not read before.
