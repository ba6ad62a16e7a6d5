"""How evenly an ordering spreads the corpus's groups: pure functions of counts and an ordering.

With `c_s` a sequence's token counts in one family, `t_s` its tokens, τ the corpus's token shares and L the
sequence length:

- *prefix deviation* at t: `||Σ_{s placed up to t} (c_s - τ t_s)||₂ / L`, in sequence lengths;
- *window TV* of n: half the L1 distance between the token shares of n consecutive sequences and τ, for aligned
  windows, for windows that begin half a window later, and at every start position: an order made for one alignment
  is seen at the others;
- *window profile*: the window TV of n = 1, 2, 4 ... up to all positions, aligned and half a window later;
- *group timeline*: the largest groups' shares along the order;
- *window L2* of n: the Euclidean distance between the same, the error of a batch of n sequences;
- *window maximum*: the largest |share - τ| of a group over all start positions;
- *floor* and *bound of the mean window TV*: what no ordering's mean can be below, since pieces cannot be split;
- *gap closed*: the part of a shuffle's distance from the floor that an ordering closes;
- *norm drift*: the running sum of `||c_s||₂ / L` of the first family minus its mean, in sequences;
- *groups per batch* and *per sequence*: distinct groups with tokens;
- *duplicate gaps*: positions between the copies of what is in the corpus more than once;
- *ideal token shuffle*: the TV to expect if single tokens could be shuffled.

`measure` measures one ordering, `compare` several; `dataset.measuring` does both for a built dataset, by name or
file. Counts stay sparse, and every running sum costs what the non-zeros cost, not positions times groups.
"""
