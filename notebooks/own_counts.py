# %% [markdown]
# # Bring your own counts
#
# In Colab, upload this notebook and the package's wheel beside it; the first cell installs the wheel.
#
# Your sequences are tokenised and packed already, in whatever format, and should stay where they are. All that
# **jax-diversity** needs for an order is a small table: how many tokens of every sequence belong to which
# group, say which topic or which source. It gives back a permutation, and every training stack can follow one.
#
# This notebook makes such a table, orders it, looks into the order, compares methods, and hands the order over
# to other stacks. It takes half a minute and no GPU.

# %%
# %pip install --quiet jax_diversity-*.whl

# %%
import time
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
# Somewhere you know which pieces of documents every sequence is made of, and for every document its topic and
# its source. Here both are made up: documents of very different lengths, few large topics and many small ones,
# packed end to end into sequences of 2,048 tokens. With your own dataset, `sequence`, `topic`, `source` and
# `length` come from your files; one entry a piece.

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
# A sparse matrix a family, (sequence, group) in tokens; SciPy adds up what falls on the same place. Every token
# has to be in one group of each family.

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
print(jd.compare(chars, {"balance": ordering, "shuffle": shuffle}, windows=(64, 256)).table())

# %% [markdown]
# *How to read it.* A *window* is a run of sequences, such as a batch. Its *TV* is half the sum of the
# differences between its groups' shares of tokens and the corpus's: 0.1 means that a tenth of its tokens belong
# elsewhere. The *floor* is what no order's mean can be under, since sequences stay whole; the *bound* is the
# same, a little sharper, since a window also holds whole numbers of pieces. The *prefix deviation* (prefix L2)
# is of everything from the first position to here, in sequences.
#
# **At all window sizes.** An order may look good at the one size that it was made for. So look at all of them.

# %%
sizes = tuple(2**power for power in range(int(np.log2(chars.num_sequences))))
shuffles = [jd.measure(chars, jd.order(chars, "uniform_shuffle", seed=seed), sizes) for seed in range(3)]
balance = jd.measure(chars, ordering, sizes)


def mean_tv(measured: jd.Balance) -> list[float]:
    """Mean topic TV at every window size."""
    return [measured.window_tv["topic"][size].mean() for size in sizes]


figure, axis = plt.subplots(figsize=(6.5, 3.4))
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
# *How to read it.* Lower is better, and both axes are logarithmic. Long windows of a shuffle get better with the
# square root of their size; those of the order faster, since what one sequence has too much of is made good by
# those after it. Where the floor falls off the page it is zero: windows of that size leave room for everything.
# The dotted line is a thought experiment: what if single tokens could be shuffled? The order keeps whole
# sequences, and comes nearer to that line the longer the window.

# %% [markdown]
# ## 3. Look into it
#
# Which groups are in step k, and which of them too much?

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
# *How to read it.* The first table is the shuffle's batch 20, the second the order's. These are the five worst
# topics of each.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), sharey=True)
for axis, (name, order) in zip(axes, {"a shuffle": shuffle, "balance": ordering}.items(), strict=True):
    starts = np.arange(0, chars.num_sequences - BATCH + 1, BATCH)
    tokens = np.add.reduceat(chars.counts["source"][order.indices].toarray(), starts)[:-1]
    axis.stackplot(starts[:-1], (tokens / tokens.sum(axis=1, keepdims=True)).T, labels=SOURCES, alpha=0.8)
    axis.set(title=name, xlabel="position in training, in sequences", ylim=(0, 1))
axes[0].set_ylabel(f"share of batches of {BATCH}")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
plt.show()

# %% [markdown]
# *How to read it.* The width of a band is a source's share of each batch. Even bands mean the same mixture all
# along.
#
# ## 4. Other methods, other wishes
#
# Every method has the same shape, and the published ones are there to compare with.

# %%
windows_matter = jd.Objective(windows=(BATCH,))  # batches of this size matter besides the whole
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
# *How to read it.* Smaller is better everywhere; the seconds are those of this machine and include compilation. *Norm
# drift* is what gives a greedy order away that spends the mixed sequences first and is left with the others.
# Windows half a window later show whether an order is good only for batches that begin where it was told.
#
# **More than one epoch, another mixture over time.** A *run* may repeat and leave out sequences; it is measured
# like an order. Runs of built datasets are stored: `jd.create_schedule`.

# %%
first = jd.order(chars)
second = jd.order(chars, seed=1, previous=first)  # a fresh order that begins where the first ends
one_and_a_half = jd.make_run(chars, positions=np.concatenate([first, second[: len(second) // 2]]))
print(one_and_a_half)

late = {"source": [0.45, 0.2, 0.3, 0.05]}  # twice the code at the end, less web
corpus_shares = {"source": chars.target_share("source")}
targets = jd.Targets.linear(corpus_shares, late, num_positions=chars.num_sequences // 2)
half = jd.make_run(chars, positions=jd.order(chars, targets=targets)[: chars.num_sequences // 2])

# %%
figure, axis = plt.subplots(figsize=(6.5, 2.8))
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
# *How to read it.* A line is a source's share of every batch; the dotted lines are what was asked for. Training
# stops halfway through the corpus: a mixture that is not the corpus's own cannot hold to the last sequence,
# since the code would be used up before.
#
# ## 5. Use it
#
# An order is an array of int64, in a file that NumPy and everything else reads.

# %%
ordering.save("my-order.npy")
order = np.load("my-order.npy")
order[:8], order.dtype, jd.Ordering.load("my-order.npy")

# %% [markdown]
# **Hugging Face datasets**: `select` with the indices. (jax-diversity itself does without `datasets`.)

# %%
try:
    import datasets
except ImportError:
    print("pip install datasets, to try this cell")
else:
    packed = datasets.Dataset.from_dict({"sequence": np.arange(chars.num_sequences)})
    in_order = packed.select(order)
    print(in_order["sequence"][:8])

# %% [markdown]
# **A Megatron prefix** (`.bin` and `.idx`): Megatron shuffles its samples by an index file in its cache; ours
# takes that file's place. The documents' lengths stand in the `.idx`, so the tokens are not read. Here the
# prefix is made first, so that the cell has something to read.

# %%
from jax_diversity.characteristics.codes import Codes
from jax_diversity.characteristics.counts import count_tokens
from jax_diversity.export.megatron import Description, write_megatron
from jax_diversity.packing.megatron import megatron_indices, megatron_segments
from jax_diversity.token_store.megatron import TokenFile, TokenWriter

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
# **A folder of ArrayRecord files**, as TFDS writes them: read the record that the order names, through Grain or
# anything else. Again the records are made first: 64 that lie sorted by group, as exports often do, so that the
# order has something to mix.

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
# MaxText, OLMo-core, Levanter and PyTorch take an order, too; see the page *Orders for other stacks* of the
# documentation.
#
# ## Where to go from here
#
# - No dataset yet? The notebook *From a corpus to an order* begins with plain text.
# - Does the model notice? See the notebook *Train two small models*.
