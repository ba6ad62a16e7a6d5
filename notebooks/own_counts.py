# %% [markdown]
# # Bring your own counts
#
# In Colab, upload this notebook and the package's wheel (`make dist` makes it); the first cell fails without a wheel.
#
# Your sequences are tokenised and packed already, in any format, and stay where they are. **jax-diversity** needs
# only a small table: the number of tokens of every sequence in each group, such as a topic or a source. The result
# is a permutation, which every training stack can follow.
#
# This notebook makes such a table, orders it, shows what the order changes, compares methods, and gives the order to
# other stacks. It takes half a minute on two cores and needs no GPU.

# %%
# %pip install --quiet jax_diversity-*.whl matplotlib pandas

# %%
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.sparse import csr_array

import jax_diversity as jd

BLUE, ORANGE, GREY = "#4a90d9", "#e08a3c", "#808080"

# %% [markdown]
# ## 1. The counts
#
# You know which pieces of documents are in every sequence, and the topic and the source of every document. Here
# they are random: documents of very different lengths, few large topics and many small ones, packed end to end
# into sequences of 2,048 tokens. For your own dataset, read `sequence`, `topic`, `source` and `length` from your
# files, with one entry per piece.
#
# If every sequence has one label, a list of labels is enough:
# `jd.Characteristics.from_counts({"topic": labels}, batch_size=64)`. If you have embeddings, cluster them first,
# for example with `sklearn.cluster.KMeans`, and use the clusters as labels.

# %%
rng = np.random.default_rng(0)
NUM_TOPICS, SOURCES = 300, ("web", "books", "code", "news")
document_lengths = np.clip(rng.lognormal(6.5, 1.2, 24_000), 16, 60_000).astype(int)
popularity = 1 / np.arange(1, NUM_TOPICS + 1) ** 0.9
document_topic = rng.choice(NUM_TOPICS, len(document_lengths), p=popularity / popularity.sum())
document_source = rng.choice(len(SOURCES), len(document_lengths), p=(0.6, 0.2, 0.15, 0.05))

pieces = jd.pack(document_lengths, 2048).segments
sequence, length = pieces.sequence_index, pieces.length
topic, source = document_topic[pieces.document_index], document_source[pieces.document_index]
print("the pieces of the first sequences: (sequence, topic, source, tokens)")
for piece in range(6):
    print(sequence[piece], topic[piece], SOURCES[source[piece]], length[piece])

# %% [markdown]
# Each family is a sparse matrix (sequence, group) of token counts. SciPy adds the entries with the same indices.
# Every token must belong to one group of each family.

# %%
counts = {
    "topic": csr_array((length, (sequence, topic)), shape=(pieces.num_sequences, NUM_TOPICS)),
    "source": csr_array((length, (sequence, source)), shape=(pieces.num_sequences, len(SOURCES))),
}
chars = jd.Characteristics.from_counts(counts)
chars

# %% [markdown]
# ## 2. The order

# %%
ordering = jd.order(chars, method="balance", seed=0)
shuffle = jd.order(chars, method="uniform_shuffle", seed=0)
jd.compare(chars, {"balance": ordering, "shuffle": shuffle}, windows=(64, 256))

# %% [markdown]
# *How to read it.* A *window* is a run of neighbouring sequences, such as a batch. Its *TV* (total variation) is
# the share of its tokens that would have to change their group to match the corpus: 0.1 means a tenth of them.
# No order has a mean TV below the *floor*, because sequences are not cut. `.table()` prints all measures, and
# `.plot(family="topic")` draws an interactive figure (which adds 2 MB to a notebook).
#
# **At all window sizes.** An order may be good only at the window size for which it was made. So compare all sizes.

# %%
sizes = tuple(2**power for power in range(int(np.log2(chars.num_sequences))))
shuffles = [jd.measure(chars, jd.order(chars, "uniform_shuffle", seed=seed), sizes) for seed in range(3)]
balance = jd.measure(chars, ordering, sizes)


def mean_tv(measured: jd.Balance) -> list[float]:
    """Mean topic TV at every window size."""
    return [measured.window_tv["topic"][size].mean() for size in sizes]


figure, axis = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
curves = [mean_tv(measured) for measured in shuffles]
axis.fill_between(sizes, np.min(curves, axis=0), np.max(curves, axis=0), color=GREY, alpha=0.5, label="three shuffles")
axis.plot(sizes, np.max(curves, axis=0), color=GREY)
axis.plot(sizes, mean_tv(balance), color=BLUE, marker=".", label="balance")
floors = [balance.window_tv_floor["topic"][size] for size in sizes]
axis.plot(sizes, floors, color=ORANGE, linestyle="--", label="floor")
ideal = [balance.ideal_tv["topic"][size] for size in sizes]
axis.plot(sizes, ideal, color=GREY, linestyle=":", label="shuffle of single tokens")
axis.set(xscale="log", yscale="log", xlabel="window, in sequences", ylabel="mean topic TV", ylim=(1e-3, 1))
axis.legend(fontsize="small")
plt.show()

# %% [markdown]
# *How to read it.* Lower is better. Both axes are logarithmic. The TV of a shuffle falls with the square root of the
# window size. The TV of the balanced order falls faster, because each sequence is chosen to correct the sequences
# before it. The floor is 0 for large windows, which a logarithmic axis cannot show. The dotted line is a shuffle of
# single tokens. The longer the window, the nearer the balanced order is to this line.

# %% [markdown]
# ## 3. Look at one batch
#
# Which groups of a batch differ most from the corpus?

# %%
BATCH = 64


def look_into(order: jd.Ordering, step: int, family: str = "topic", number: int = 5) -> pd.DataFrame:
    """The groups of a batch that are farthest from the corpus's shares."""
    rows = order.indices[step * BATCH : (step + 1) * BATCH]
    tokens = chars.counts[family][rows].sum(axis=0)
    share, target = tokens / tokens.sum(), chars.target_share(family)
    groups = np.argsort(-np.abs(share - target))[:number]
    return pd.DataFrame(
        {
            family: [str(group) for group in groups],
            "here": [f"{share[group]:.2%}" for group in groups],
            "in the corpus": [f"{target[group]:.2%}" for group in groups],
        }
    )


look_into(shuffle, step=20)

# %%
look_into(ordering, step=20)

# %% [markdown]
# *How to read it.* The first table is batch 20 of the shuffle, the second is batch 20 of the balanced order. Each
# table has the five topics with the largest differences.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), sharey=True, layout="constrained")
for axis, (name, order) in zip(axes, {"a shuffle": shuffle, "balance": ordering}.items(), strict=True):
    starts = np.arange(0, chars.num_sequences - BATCH + 1, BATCH)
    tokens = np.add.reduceat(chars.counts["source"][order.indices].toarray(), starts)[:-1]
    axis.stackplot(starts[:-1], (tokens / tokens.sum(axis=1, keepdims=True)).T, labels=SOURCES, alpha=0.8)
    axis.set(title=name, xlabel="position in training, in sequences", ylim=(0, 1))
    axis.xaxis.set_major_locator(plt.MaxNLocator(4))
axes[0].set_ylabel(f"share of batches of {BATCH}")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()

# %% [markdown]
# *How to read it.* The height of a band is a source's share of each batch. Even bands mean that all batches have the
# same mixture.
#
# ## 4. Other methods and other settings
#
# All methods are called in the same way. Published methods are included for comparison.

# %%
windows_matter = jd.Objective(windows=(BATCH,))  # balance windows of this size, too
candidates = {
    "uniform shuffle": lambda: jd.order(chars, "uniform_shuffle"),
    "shuffle buffer": lambda: jd.order(chars, "buffer_shuffle"),
    "stratified": lambda: jd.order(chars, "stratified"),
    "pool of a stream": lambda: jd.order(chars, "greedy_pool"),
    "greedy, published f3": lambda: jd.order(chars, "greedy", objective=jd.Objective.f3()),
    "balance": lambda: jd.order(chars, "balance"),
    "balance for batches": lambda: jd.order(chars, "balance", objective=windows_matter),
}
made, seconds = {}, {}
for name, make in candidates.items():
    start = time.perf_counter()
    made[name] = make()
    seconds[name] = time.perf_counter() - start
compared = jd.compare(chars, made, windows=(BATCH,))


def column(measure: str, digits: int, **where) -> list[str]:
    """A measure of every method."""
    return [f"{compared.value(name, 'topic', measure, **where):.{digits}f}" for name in made]


pd.DataFrame(
    {
        "method": list(made),
        "seconds": [f"{value:.1f}" for value in seconds.values()],
        "TV mean": column("tv_mean", 3, window=BATCH, offset="0"),
        "TV worst": column("tv_worst", 3, window=BATCH, offset="0"),
        "half a window later": column("tv_worst", 3, window=BATCH, offset="half"),
        "largest prefix deviation": column("prefix_l2_max", 1),
        "norm drift": column("norm_drift_max", 1),
    }
)

# %% [markdown]
# *How to read it.* Smaller is better in all columns. The seconds were measured on this machine and include
# compilation. *Norm drift* is large if an order uses the sequences with many groups first, as the published greedy
# does. *Half a window later* measures windows that begin between the batches: it shows whether an order is good
# only for batches that begin at the expected positions.
#
# **Several epochs, or a mixture that changes.** A *run* may repeat sequences and leave out others. It is measured
# like an order. Runs of built datasets are stored: see `jd.create_schedule`.

# %%
first = jd.order(chars)
second = jd.order(chars, seed=1, previous=first)  # a fresh order that begins where the first ends
one_and_a_half = jd.make_run(chars, positions=np.concatenate([first, second[: len(second) // 2]]))
print(one_and_a_half)

late = {"source": [0.45, 0.2, 0.3, 0.05]}  # twice the code at the end, less web
corpus_shares = {"source": chars.target_share("source")}
targets = jd.Targets.linear(corpus_shares, late, num_positions=chars.num_sequences // 2)
with warnings.catch_warnings():  # the warning says when the code is used up: after this run has ended
    warnings.simplefilter("ignore", UserWarning)
    shifted = jd.order(chars, targets=targets)
half = jd.make_run(chars, positions=shifted[: chars.num_sequences // 2])

# %%
figure, axis = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
source_counts = chars.counts["source"][half.indices].toarray()
starts = np.arange(0, len(half) - BATCH + 1, BATCH)
tokens = np.add.reduceat(source_counts, starts)[:-1]
for group, name in enumerate(SOURCES):
    axis.plot(starts[:-1], tokens[:, group] / tokens.sum(axis=1), label=name)
    axis.plot([0, len(half)], [corpus_shares["source"][group], late["source"][group]], color=GREY, linestyle=":")
axis.set(xlabel="position in training, in sequences", ylabel=f"share of batches of {BATCH}", ylim=0)
figure.legend(*axis.get_legend_handles_labels(), loc="outside right center")
plt.show()

# %% [markdown]
# *How to read it.* A line is a source's share of every batch. The dotted lines are the targets. Training stops after
# half of the corpus, because the corpus does not have enough code to follow these targets to its end. `jd.order`
# gives a warning that says when the code is used up; the cell hides it.
#
# ## 5. Use it
#
# An order is an array of int64 in a `.npy` file.

# %%
ordering.save("my-order.npy")
order = np.load("my-order.npy")
order[:8], order.dtype, jd.Ordering.load("my-order.npy")

# %% [markdown]
# **Hugging Face datasets**: `select` with the indices.

# %%
try:
    import datasets
except ImportError:
    print("This cell needs the package datasets: %pip install datasets")
else:
    packed = datasets.Dataset.from_dict({"sequence": np.arange(chars.num_sequences)})
    in_order = packed.select(order)
    print(in_order["sequence"][:8])

# %% [markdown]
# **A Megatron prefix** (`.bin` and `.idx`): Megatron shuffles its samples by an index file in its cache. The order
# replaces this file. The `.idx` contains the lengths of the documents, so the tokens are not read. The cell first
# writes a small prefix.

# %%
from jax_diversity.sequences.characteristics.codes import Codes
from jax_diversity.sequences.characteristics.counts import count_tokens
from jax_diversity.sequences.packing.megatron import megatron_indices, megatron_segments
from jax_diversity.sequences.token_store.megatron import TokenFile, TokenWriter
from jax_diversity.streaming.export.megatron import Description, write_megatron

with TokenWriter(Path("tokens/web"), np.dtype(np.uint16)) as writer:
    writer.add_documents([rng.integers(0, 50_000, size) for size in document_lengths[:500]])

lengths = TokenFile(Path("tokens/web")).sequence_lengths
sources = Codes(document_source[:500].astype(np.int32), SOURCES)
indices = megatron_indices(lengths, np.arange(len(lengths)), sequence_length=2048, seed=1234)
samples = megatron_segments(lengths, indices, sequence_length=2048)
megatron_chars = jd.Characteristics.from_counts({"source": count_tokens(samples, sources)})
about = Description("tokens/web", None, 1234, 2048, "100,0,0", {"class": "MyTokenizer"})
write_megatron(jd.order(megatron_chars), indices.document_index, indices.sample_index, about.text, Path("cache"))
sorted(path.name.split("-", 1)[1] for path in Path("cache").iterdir())

# %% [markdown]
# **A folder of ArrayRecord files**, as TFDS writes them: Grain reads the record at each position of the order. The
# cell first writes 64 records that are sorted by group.

# %%
import grain
from array_record.python.array_record_module import ArrayRecordWriter

Path("records").mkdir(exist_ok=True)
writer = ArrayRecordWriter("records/train.array_record", "group_size:1")
groups = np.repeat(["red", "green", "blue", "grey"], [8, 16, 16, 24])
for index, group in enumerate(groups):
    writer.write(f"record {index}, {group}".encode())
writer.close()

records = grain.sources.ArrayRecordDataSource(["records/train.array_record"])
record_counts = 100 * (groups[:, None] == np.unique(groups))  # tokens of every record, by group
order = jd.order(jd.Characteristics.from_counts({"group": record_counts})).indices
in_order = grain.MapDataset.range(len(order)).map(lambda position: records[int(order[position])])
[in_order[position].decode() for position in range(8)]

# %% [markdown]
# MaxText, OLMo-core, Levanter and PyTorch can use an order, too: see the page *Orders for other stacks*.
#
# ## Where to go from here
#
# - If you have plain texts, see the notebook *From a corpus to an order*.
# - What the order changes in training is the subject of the notebook *Train two small models*.
