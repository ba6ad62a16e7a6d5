"""A small laboratory: train a GPT on an ordering, resume the run exactly, compare losses and gradients of orderings."""
