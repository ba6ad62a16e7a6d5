# %% [markdown]
# # From a corpus to an order
#
# In Colab, upload this notebook and the package's wheel (`make dist` makes it); the first cell fails without a wheel.
#
# Language models read their training text in a shuffled order. A shuffle is random: some batches hold too much
# of one topic, others too little. **jax-diversity** computes an order in which every window of training holds
# the corpus's own mixture.
#
# This notebook shows all steps on a few megabytes of text that every machine has, the sources and docstrings of
# its Python packages. It builds a dataset, shows its contents, orders it, compares the order with a shuffle, and
# reads batches. It takes one to three minutes on two cores and needs no GPU.

# %%
# %pip install --quiet jax_diversity-*.whl matplotlib pandas

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow.parquet as pq

import jax_diversity as jd

BLUE, ORANGE, GREY = "#4a90d9", "#e08a3c", "#808080"

# %% [markdown]
# ## 1. Build
#
# `jd.build` reads files. The settings have the same names in Python, in YAML files and on the command line. The
# small numbers here are for a short notebook; a real corpus needs none of them. For your own texts, replace
# `"python-environment"` by your files, such as `"texts/*.jsonl.gz"`. If the texts are a Python list, write them
# to a file first: `pd.DataFrame({"text": texts, "label": labels}).to_parquet("texts.parquet")`. With
# `"families": ["cluster", "length", "label"]` the order then balances your labels, too.

# %%
dataset = jd.build(
    "python-environment",
    "dataset",
    batch_size=64,
    sequence_length=256,
    quiet=True,
    corpus={"max_bytes": 8 * 2**20},
    tokenizer={"vocab_size": 4096, "train_bytes": 2 * 2**20},
    embedding={"options": {"dimensions": 64}},
    cluster={"num_clusters": 100},
    characteristics={"families": ["cluster", "length"], "length_bins": 30},
    windows=(64, 256),
)
dataset

# %% [markdown]
# If you run the cell again, finished stages are kept. A build that was killed continues.

# %% [markdown]
# ## 2. Look
#
# **What are the topics?** Documents with similar words are in one *cluster*. Its name consists of the words that
# distinguish it from the other clusters.

# %%
clusters = json.loads(Path("dataset/clusters/clusters.json").read_text())
tokens = dataset.group_tokens["cluster"]
shares, largest = tokens / tokens.sum(), np.argsort(-tokens)
pd.DataFrame(
    {
        "cluster": [clusters[group]["name"] for group in largest[:8]],
        "of all tokens": [f"{share:.1%}" for share in shares[largest[:8]]],
        "documents": [str(clusters[group]["num_documents"]) for group in largest[:8]],
        "such as": [", ".join(clusters[group]["titles"][:2]) for group in largest[:8]],
    }
)

# %%
lengths = dataset.tokens.document_lengths
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
left.bar(np.arange(len(shares)), shares[largest], width=1.0, color=BLUE)
left.set(xlabel="clusters, largest first", ylabel="share of all tokens")
left.yaxis.set_major_formatter("{x:.1%}")
right.hist(lengths, bins=np.geomspace(lengths.min(), lengths.max(), 40), color=BLUE)
right.axvline(dataset.sequence_length, color=ORANGE)
right.set(xscale="log", xlabel="tokens of a document (orange: a sequence)", ylabel="documents")
plt.show()

# %% [markdown]
# *How to read it.* Left: each bar is a cluster. A few clusters are large, most are small. A shuffle spreads the
# small clusters unevenly. Right: the documents have very different lengths. They are cut and joined to sequences
# of one length.
#
# **What does packing lose?** The documents become sequences of 256 tokens. The packing methods differ in what
# they cut, drop and leave empty.

# %%
documents = pq.read_table("dataset/characteristics/documents.parquet")  # one row per document
methods = ("concat", "pad", "best_fit", "same_cluster")
packings = [
    jd.pack(lengths, dataset.sequence_length, method=method, clusters=documents["cluster"].to_numpy()).report
    for method in methods
]
places = [packing.num_sequences * dataset.sequence_length for packing in packings]
pd.DataFrame(
    {
        "packing": methods,
        "sequences": [f"{packing.num_sequences:,}" for packing in packings],
        "tokens dropped": [f"{p.num_tokens_dropped / p.num_tokens:.2%}" for p in packings],
        "left empty": [f"{p.num_padding_tokens / n:.2%}" for p, n in zip(packings, places, strict=True)],
        "documents cut": [f"{p.num_documents_cut / p.num_documents:.0%}" for p in packings],
        "clusters per sequence": [f"{p.clusters_per_sequence:.2f}" for p in packings],
    }
)

# %% [markdown]
# *How to read it.* `concat`, the default, leaves no places empty and cuts the most documents. `best_fit` cuts
# only documents that are longer than a sequence. No method is best for everything.

# %% [markdown]
# ## 3. Order
#
# An ordering method reads only the *characteristics*: the number of tokens of every sequence in each group of a
# family. Here the families are the topic clusters and the lengths of the documents. The result is a permutation.

# %%
chars = dataset.characteristics
orderings = {
    "a shuffle": jd.order(chars, "uniform_shuffle", seed=0),
    "balance": jd.order(chars, "balance", seed=0),
}
print(chars)
print(orderings["balance"])
print("the first batch of 8 is the sequences", orderings["balance"].indices[:8])

# %% [markdown]
# **Is it better?** A *window* is a run of neighbouring sequences, such as a batch. Its *TV* (total variation) is
# the share of its tokens that would have to change their group to match the corpus. `jd.compare` measures it
# for several orders.

# %%
WINDOW = 64
jd.compare(chars, orderings, windows=(WINDOW, 256))

# %% [markdown]
# `jd.compare(dataset).plot()` draws an interactive figure of it. Such a figure adds 2 MB to a notebook, so this
# notebook draws its figures with matplotlib.

# %%
balances = {name: jd.measure(chars, ordering, windows=(WINDOW,)) for name, ordering in orderings.items()}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.9), layout="constrained")
for (name, balance), colour in zip(balances.items(), (GREY, BLUE), strict=True):
    tv = balance.window_tv["cluster"][WINDOW]
    left.plot(np.arange(len(tv)) * WINDOW, tv, color=colour, label=name)
    right.plot(balance.prefix_l2["cluster"], color=colour)
left.axhline(balances["balance"].window_tv_floor["cluster"][WINDOW], color=ORANGE, linestyle="--", label="floor")
left.set(xlabel="position in training, in sequences", ylabel=f"TV of {WINDOW} sequences", ylim=0)
right.set(xlabel="position in training, in sequences", ylabel="prefix deviation", ylim=0)
left.legend(ncols=3, loc="lower left", fontsize="small")
plt.show()

# %% [markdown]
# *How to read it.* Left: every point is a window; lower is better. No order has a mean below the floor, because
# sequences are not cut. Right: the distance between all tokens read so far and the corpus's mixture, in
# sequences. A shuffle moves away from 0 and returns only at the end, when all sequences were read. The balanced
# order stays near 0.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
counts = chars.counts["cluster"][:, largest[:30]]
starts = np.arange(0, chars.num_sequences - WINDOW + 1, WINDOW)
for axis, (name, ordering) in zip(axes, orderings.items(), strict=True):
    seen = np.add.reduceat(counts[ordering.indices].toarray(), starts)[:-1]
    relative = seen / seen.mean(axis=0)
    picture = axis.imshow(relative.T, aspect="auto", cmap="coolwarm", vmin=0, vmax=2, interpolation="nearest")
    axis.set(title=name, xlabel=f"windows of {WINDOW} sequences")
axes[0].set_ylabel("clusters, largest first")
figure.colorbar(picture, ax=axes, label="share, 1 = as in the corpus")
plt.show()

# %% [markdown]
# *How to read it.* A row is a cluster, a column is a window. Red: the window has too much of the cluster. Blue: it
# has too little. In the balanced order the large clusters are even. A cluster with about one sequence per window
# cannot be even, because sequences are not cut: a window holds one sequence of it, or two, or none. Therefore the
# TV is not 0.
#
# ## 4. Batches
#
# `Inspector` lists the documents of a step of training.

# %%
from jax_diversity.streaming.run.inspection import Inspector

for name in ("uniform_shuffle", "balance"):
    inspector = Inspector(jd.make_run(dataset, name), global_batch_size=WINDOW)
    deviations = [inspector.batch(step).families["cluster"].total_variation for step in range(20)]
    print(f"{name:<16} cluster TV of the first 20 batches: {min(deviations):.2f} to {max(deviations):.2f}")

view = inspector.batch(step=3)
segments = [segment for sequence in view.sequences[:8] for segment in sequence.segments]
pd.DataFrame(
    {
        "tokens": [str(segment.num_tokens) for segment in segments],
        "cluster": [clusters[segment.codes["cluster"]]["name"] for segment in segments],
        "document": [segment.about["id"] for segment in segments],
    }
)

# %% [markdown]
# These are the documents in the first eight rows of one batch. Their topics differ.
#
# ## 5. Load
#
# `make_loader` gives a Grain dataset of whole batches. Row j of the batch at position p is sequence
# `ordering.indices[p + j]`, whatever the number of hosts or threads.

# %%
loader = jd.make_loader(dataset, ordering="balance", global_batch_size=WINDOW, num_epochs=1)
iterator = iter(loader)
batch = next(iterator)
pd.DataFrame(
    {
        "array": list(batch),
        "shape": [str(array.shape) for array in batch.values()],
        "type": [str(array.dtype) for array in batch.values()],
    }
)

# %%
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("dataset/tokens/tokenizer.json")
print(tokenizer.decode(batch["inputs"][0][:80]))

# %% [markdown]
# `inputs_segmentation` numbers the documents in a sequence, so that attention can be restricted to one document.
# `inputs_position` counts from the beginning of each document. **To resume training,** store the state of the
# iterator with your checkpoint. It is plain JSON. Training continues at the same position, also with another
# batch size or another number of hosts.

# %%
state = iterator.get_state()
print(state)
other = iter(jd.make_loader(dataset, ordering="balance", global_batch_size=WINDOW // 2, num_epochs=1))
other.set_state(state)
np.array_equal(next(other)["inputs"], next(iterator)["inputs"][: WINDOW // 2])

# %% [markdown]
# ## 6. Into a model
#
# Any JAX model takes these arrays. The small GPT of the lab, in Flax NNX:

# %%
from jax_diversity.lab.model import Gpt

model = Gpt(vocab_size=dataset.vocab_size, width=64, num_layers=2, num_heads=2, seed=0)
hidden = model(batch["inputs"], batch["inputs_segmentation"], batch["inputs_position"])
logits = hidden @ model.embedding.embedding[...].T
print("hidden states (row, token, width):", hidden.shape)
print("logits (row, token, vocabulary):  ", logits.shape)

# %% [markdown]
# ## Where to go from here
#
# - The build wrote a report with these figures and more: open `dataset/report.html`.
# - The command line has the same steps: `jax-diversity build`, `measure`, `inspect`, `train`.
# - If your sequences exist already, see the notebook *Bring your own counts*.
# - What the order changes in training is the subject of the notebook *Train two small models*. What it is worth
#   for your model is measured by `jax-diversity lab explain`.
