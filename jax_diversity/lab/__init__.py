"""A small laboratory: train a GPT on an ordering, resume it exactly, compare losses and gradients of orderings."""
