# %% [markdown]
# # From a corpus to an order
#
# In Colab, upload this notebook and the package's wheel beside it; the first cell installs the wheel.
#
# Language models read their training text in a shuffled order. A shuffle is a game of dice: at some moments the
# model sees too much of one topic, at others too little. **jax-diversity** computes an order in which every
# stretch of training holds the corpus's own mixture.
#
# This notebook goes the whole way on a few megabytes of text that every machine has, the sources and docstrings
# of its Python packages: build a dataset, look into it, order it, measure the order against a shuffle, and read
# batches from it. It takes about a minute and no GPU.

# %%
# %pip install --quiet jax_diversity-*.whl

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
# All settings stand in one tree, the same for Python, YAML files and the command line. Left out here is what
# has a good default. For your own texts, put their files into `paths`: `("texts/*.jsonl.gz",)`.

# %%
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import (
    BuildConfig,
    CharacteristicsConfig,
    ClusterConfig,
    CorpusConfig,
    EmbeddingConfig,
    PackingConfig,
    TokenizerConfig,
)

settings = BuildConfig(
    out="dataset",
    corpus=CorpusConfig(paths=("python-environment",), max_bytes=8 * 2**20),
    tokenizer=TokenizerConfig(vocab_size=4096, train_bytes=2 * 2**20),
    embedding=EmbeddingConfig(options={"dimensions": 64}),
    cluster=ClusterConfig(num_clusters=100),
    packing=PackingConfig(sequence_length=256),
    characteristics=CharacteristicsConfig(families=("cluster", "length"), length_bins=30),
    windows=(64, 256),
)
Build(settings).run_all()
dataset = jd.open_dataset("dataset")
dataset

# %% [markdown]
# Every line is a stage, from documents to records. Run the cell again: nothing is done twice. A killed build
# goes on where it stopped.

# %% [markdown]
# ## 2. Look
#
# **What is it about?** Documents with similar words are in one *cluster*. The names are the words that set a
# cluster apart.

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
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
left.bar(np.arange(len(shares)), shares[largest], width=1.0, color=BLUE)
left.set(xlabel="clusters, largest first", ylabel="share of all tokens")
left.yaxis.set_major_formatter("{x:.1%}")
right.hist(lengths, bins=np.geomspace(lengths.min(), lengths.max(), 40), color=BLUE)
right.axvline(dataset.sequence_length, color=ORANGE)
right.set(xscale="log", xlabel="tokens of a document (orange: a sequence)", ylabel="documents")
plt.show()

# %% [markdown]
# *How to read it.* Left: one bar a cluster; a few are large, most are small, and the small ones are what a
# shuffle spreads unevenly. Right: documents are of all lengths, so they have to be cut and put together to
# sequences of one length.
#
# **What does packing lose?** The tokens of a document have to stand in sequences of 256. The methods differ in
# what they cut, drop and leave empty.

# %%
documents = pq.read_table("dataset/characteristics/documents.parquet")  # one row a document
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
        "clusters a sequence": [f"{p.clusters_per_sequence:.2f}" for p in packings],
    }
)

# %% [markdown]
# *How to read it.* `concat`, the default and the one used here, wastes nothing and cuts most. `best_fit` cuts
# only what is longer than a sequence. No method is best for everything.

# %% [markdown]
# ## 3. Order
#
# All that an ordering method sees are the *characteristics*: how many tokens of every sequence belong to which
# group of a family, here to which topic cluster and to which length of document. It gives back a permutation.

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
# **Is it better?** For a window of 64 sequences in a row, say a batch, take every cluster's share of its tokens
# and the cluster's share of the corpus. Half the sum of the differences is the window's *TV* (total variation):
# the share of tokens that would have to be swapped to make the mixture right.

# %%
WINDOW = 64
balances = {name: jd.measure(chars, ordering, windows=(WINDOW,)) for name, ordering in orderings.items()}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.9))
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
# *How to read it.* Left: every point is a window, lower is better, and no order's mean can be under the floor,
# since sequences cannot be cut in pieces. Right: what the model has seen from the start up to here, against
# what it should have seen, in sequences too many or too few. A shuffle drifts away and comes back only at the
# end, when everything has been seen; the order stays near zero all along.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
counts = chars.counts["cluster"][:, largest[:30]]
starts = np.arange(0, chars.num_sequences - WINDOW + 1, WINDOW)
for axis, (name, ordering) in zip(axes, orderings.items(), strict=True):
    seen = np.add.reduceat(counts[ordering.indices].toarray(), starts)[:-1]
    relative = seen / seen.mean(axis=0)
    picture = axis.imshow(relative.T, aspect="auto", cmap="coolwarm", vmin=0, vmax=2, interpolation="nearest")
    axis.set(title=name, xlabel=f"windows of {WINDOW} sequences")
axes[0].set_ylabel("clusters, largest first")
figure.colorbar(picture, label="share, 1 = as in the corpus")
plt.show()

# %% [markdown]
# *How to read it.* A row is a cluster, a column a moment of training. Red: too much of it just now, blue: too
# little. In the order the large clusters are even. A cluster of about one sequence a window cannot be
# even: sequences are not divided, so that a window holds one too many or none. This keeps the TV above zero.
#
# ## 4. Batches
#
# `Inspector` opens a step of training to its documents.

# %%
from jax_diversity.run.inspection import Inspector

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
# These are the documents in the first eight rows of one batch: no two of them need to have anything in common.
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
# `inputs_segmentation` numbers the documents in a sequence, so that attention can stay within one;
# `inputs_position` counts from every document's beginning. The state of the iterator is plain JSON. With it
# training goes on exactly where it was, also with another batch size or on another number of hosts.

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
# - The build left a report with all of this and more: open `dataset/report.html`.
# - The command line does the same: `jax-diversity build`, `measure`, `inspect`, `train`.
# - You have your dataset already and only want a better order? That is the notebook *Bring your own counts*.
# - Does the model notice? See the notebook *Train two small models*.
