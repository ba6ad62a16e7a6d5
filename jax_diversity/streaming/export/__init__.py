"""Orders and sequences in the formats of other training stacks, one module per stack; no stack is imported."""
